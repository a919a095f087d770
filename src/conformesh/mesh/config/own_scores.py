"""A device's own scores: its share of a score file, and how it reads them back."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conformesh.io.files import PRIVATE, write_file
from conformesh.io.score_files import ALSO_CALLED, NEEDED, ScoreFile, column_named, read_scores, scores_in
from conformesh.io.tables import Table, bytes_of, read_table
from conformesh.mesh.config.device_toml import FILE, DeviceConfig, read_device
from conformesh.mesh.config.endpoints import as_roster_name
from conformesh.names import listed
from conformesh.scores import settle_score

EMPTY = "device,score\n"


@dataclass(frozen=True, eq=False)
class OwnScores:
    """The scores of one device, and a digest of them that does not depend on their order."""

    values: NDArray[np.float64]
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(np.sort(self.values).tobytes()).hexdigest()[:16]
        object.__setattr__(self, "digest", digest)

    def __len__(self) -> int:
        return len(self.values)


NO_SCORES = OwnScores(np.empty(0))


def read_own_scores(config: DeviceConfig) -> OwnScores:
    """Read the scores of this device; a heading alone means none, and without a column of devices all are its own."""
    path = config.path("scores")
    if not path.is_file():
        raise ValueError(f"{path}: device {config.name!r} needs a file with its scores; a heading alone means none")
    return _own_scores_in(read_table(str(path), NEEDED, may_be_empty=True), config)


def put_scores(config: DeviceConfig, source: str) -> OwnScores:
    """Replace the scores of a device in one step by the content of a file, or of standard input ("-"); return them.

    The content is checked first, as the device will read it, and copied byte by byte: a device that runs finds the old
    file or the new one. The new file keeps the owner and the permissions of the old one, also if root puts it there;
    where there is none it is private, and belongs to the owner of the folder.
    """
    target = config.path("scores")
    if _ending(source) != _ending(target.name):
        raise ValueError(
            f"{source}: a file that ends in {_ending(source)} cannot take the place of {target}; convert it, or name "
            f"another file in {config.folder / FILE}, as `scores`"
        )
    data = bytes_of(source)
    scores = _own_scores_in(read_table(source, NEEDED, may_be_empty=True, data=data), config)
    owner, mode = _owner_and_mode(target)
    write_file(target, data, mode, owner)
    return scores


def _owner_and_mode(target: Path) -> tuple[tuple[int, int], int]:
    """Return the owner and the permissions that a new score file needs: the device may run as a user of its own."""
    try:
        status = target.lstat()
    except FileNotFoundError:
        status = target.parent.stat()
        return (status.st_uid, status.st_gid), PRIVATE
    if stat.S_ISLNK(status.st_mode):
        raise ValueError(
            f"{target}: is a symbolic link to {os.readlink(target)} and would become a regular file; replace the file "
            f"that it points to, or name that file in {FILE}, as `scores`"
        )
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{target}: is not a regular file; remove it, and put the scores again")
    return (status.st_uid, status.st_gid), status.st_mode & 0o777


def _ending(source: str) -> str:
    """Return the ending by which a file is read; text may have any other."""
    suffix = Path(source).suffix.lower()
    return {".npz": ".npz", ".npy": ".npy", ".parquet": ".parquet", ".pq": ".parquet"}.get(suffix, ".csv")


def _own_scores_in(table: Table, config: DeviceConfig) -> OwnScores:
    rows = len(table.column(column_named(table, "score")))
    if not rows:
        return NO_SCORES
    if not any(name.lower() in ("device", *ALSO_CALLED["device"]) for name in table.columns):
        table = replace(table, columns={**table.columns, "device": np.full(rows, config.name)})
    held = scores_in(table)
    strange = [name for name in held.devices if as_roster_name(name, config.devices) != config.name]
    if strange:
        raise ValueError(
            f"{table.name}: holds scores of {listed(strange)} and belongs to {config.name!r}; a device keeps only its "
            "own"
        )
    check_made_by(held, config)
    return OwnScores(np.concatenate(held.scores))


def check_made_by(held: ScoreFile, config: DeviceConfig) -> None:
    """Refuse scores that the file says were made with another score than the mesh names, or that cannot be its own."""
    if (score := config.chosen_score) is None:
        return
    if held.made_by is not None:
        settle_score(*held.made_by, score, held.name, exact=True)
    for name, own in zip(held.devices, held.scores, strict=True):
        score.check_range(own, f"{held.name}: device {name}")


def scatter_scores(root: Path, score_file: str | Path) -> dict[str, int]:
    """Split a score file by device into the folders of a mesh; return how many scores each device got.

    A device is meant by its name, or by its number where the mesh calls it ``device-07``.
    """
    from conformesh.io.writing import write_scores  # a node reads scores and writes none

    root = Path(root)
    held = read_scores(str(score_file))
    folders = {path.parent.name: path.parent for path in sorted(root.glob(f"*/{FILE}"))}
    if not folders:
        raise ValueError(f"{root}: no folder of a device is in there; make a mesh with `conformesh mesh init {root}`")
    roster = read_device(next(iter(folders.values()))).devices
    owner = {name: as_roster_name(name, roster) for name in held.devices}
    strange = [name for name, found in owner.items() if found is None]
    if strange:
        raise ValueError(f"{held.name}: {listed(strange)} have scores and are none of the devices {listed(roster)}")
    if len({*owner.values()}) < len(owner):
        raise ValueError(f"{held.name}: one device has scores under two names; write its name in one way")
    own = {str(owner[name]): scores for name, scores in zip(held.devices, held.scores, strict=True)}
    configs = [read_device(folders.get(name, root / name)) for name in roster]
    check_made_by(held, configs[0])
    for config in configs:
        scores = own.get(config.name, np.empty(0))
        write_scores(config.path("scores"), [config.name] * len(scores), scores, made_by=held.made_by, mode=PRIVATE)
    return {name: len(own.get(name, ())) for name in roster}
