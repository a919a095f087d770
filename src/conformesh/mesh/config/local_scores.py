"""The local scores of a device: reading them, replacing them, and splitting one file over the folders of a mesh.

A device that calibrates with epsilon reads row by row (`_read_row_by_row`): a bad row changes only how this row counts.
If one NaN made the whole file unusable, one record more or less would change every count, and no epsilon would hold.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import re
import stat
import zlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.names import list_names, unknown_name
from conformesh.files.atomic_writes import PRIVATE, write_file
from conformesh.files.memberships import Memberships, atom_name
from conformesh.files.score_files import (
    COLUMN_SYNONYMS,
    EPOCH_COLUMN,
    SCORE_FILE,
    SIDE_COLUMNS,
    ScoreFile,
    extract_scores,
    find_column,
    parse_recorded_score,
    read_scores,
    row_epochs,
)
from conformesh.files.tables import GZIP, SCORE_FUNCTION, FileColumns, FileLayout, read_bytes, read_table
from conformesh.files.text import SNIFFED
from conformesh.mesh.config.device_toml import DEVICE_FILE, DeviceConfig, read_device
from conformesh.mesh.config.endpoints import find_device_name
from conformesh.mesh.config.epochs import FIRST_EPOCH
from conformesh.pipeline.shift import refuse_weights_above_bound
from conformesh.scores import Score, reconcile_score

if TYPE_CHECKING:
    from conformesh.results.adapted_facts import DeviceRows

EMPTY_SCORE_FILE = "device,score\n"  # the heading alone: no scores


@dataclass(frozen=True, eq=False)
class LocalScores:
    """The scores of one device, and a digest of its rows that does not depend on their order.

    Attributes
    ----------
    values
        A score for each row, or two for both sides of an interval, (rows, 2).
    groups, weights
        The groups of each row and how much likelier it is among new examples, where the mesh is configured with these.
    epochs
        The epoch of each score; None: all are of epoch 1.
    problem
        What the operator should know about the file; empty where all is well.
    rows
        Labelled outputs, where scores adapt to them: there are no scores then, and the digest depends on their order.
    """

    values: NDArray[np.float64]
    epochs: NDArray[np.int64] | None = None
    problem: str = ""
    groups: Memberships | None = None
    weights: NDArray[np.float64] | None = None
    rows: DeviceRows | None = None
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        # 64 bits are enough to tell versions of a file apart.
        digest = hashlib.sha256(self._sorted_rows()).hexdigest()[:16]
        object.__setattr__(self, "digest", digest)

    def _sorted_rows(self) -> bytes:
        if self.rows is not None:  # a device hides one of them by its place
            return self.rows.digest.encode()
        if self.values.ndim == 1 and self.groups is None and self.weights is None:
            return np.sort(self.values).tobytes()
        weights = np.ones(len(self)) if self.weights is None else self.weights
        numbers = np.column_stack([self.values, weights]).astype(np.float64)
        names = [""] * len(self)
        if self.groups is not None:
            names = [atom_name(self.groups.atoms[code]) for code in self.groups.codes.tolist()]
        rows = (repr((name, row.tobytes())) for name, row in zip(names, numbers, strict=True))
        return "\n".join(sorted(rows)).encode()

    def in_epoch(self, epoch: int) -> NDArray[np.float64]:
        """Return the scores of one epoch, ascending."""
        return self._by_epoch.get(epoch, np.empty(0))

    def up_to_epoch(self, epoch: int) -> NDArray[np.float64]:
        """Return the scores of this epoch and all before it."""
        return self.values if self.epochs is None else self.values[self.epochs <= epoch]

    @cached_property
    def _by_epoch(self) -> dict[int, NDArray[np.float64]]:
        epochs = np.full(len(self.values), FIRST_EPOCH) if self.epochs is None else self.epochs
        return {int(epoch): np.sort(self.values[epochs == epoch]) for epoch in np.unique(epochs)}

    def __len__(self) -> int:
        return len(self.values) if self.rows is None else len(self.rows.bag)


NO_SCORES = LocalScores(np.empty(0))  # no score: where there is no file of scores, or none may be used


def read_local_scores(config: DeviceConfig) -> LocalScores:
    """Read the scores of this device; a heading alone means none, and without a column of devices all are its own."""
    path = config.path("scores")
    if not path.is_file():
        what = "scores" if config.guarantee.adapt is None else "labelled outputs"
        raise ValueError(f"{path}: device {config.name!r} needs a file with its {what}; a heading alone means none")
    if config.has_epsilon:
        return _read_row_by_row(config)
    if config.guarantee.adapt is not None:
        return _labelled_rows(config, str(path))
    return _local_scores_in(read_table(str(path), SCORE_FILE, layout=_layout(config), may_be_empty=True), config)


def _layout(config: DeviceConfig) -> FileLayout:
    """Return which columns of a score file are read."""
    groups, sides = (
        (config.scores.group_column,) if config.guarantee.groups else (),
        config.chosen_guarantee.sides is not None,
    )
    return FileLayout(groups=groups, weight=config.scores.weight_column, sides=sides)


def _read_row_by_row(config: DeviceConfig) -> LocalScores:
    """Read the scores of a device that calibrates with epsilon.

    A row of this device counts as +infinity where its score is no number, NaN, out of the range of the score of the
    mesh, or made by another score; it does not count where it belongs to no epoch. `problem` says how many there are. A
    ValueError is about the file as a whole: it cannot be read, or lacks the column of scores.
    """
    path = str(config.path("scores"))
    return _read_rows(config, path, read_bytes(path))


def _read_rows(config: DeviceConfig, name: str, data: bytes) -> LocalScores:
    table, broken = _table_of_rows(name, data)
    values = np.array([_number(cell) for cell in table.columns[find_column(table, "score")]], dtype=np.float64)
    own, of_rows = _local_rows(table, len(values), config), row_epochs(table)
    epochs = np.full(len(values), FIRST_EPOCH) if of_rows is None else of_rows
    if not len(values) == len(own) == len(epochs):  # which only NPZ can have
        raise ValueError(f"{table.name}: arrays must have one entry per row each")
    score, useless = config.chosen_score, np.isnan(values)
    if score is not None:
        useless |= score.outside(values)
        if SCORE_FUNCTION in table.columns:
            useless |= _differing_scores([*table.columns[SCORE_FUNCTION]], score)
    values[useless] = np.inf
    counted = own & (epochs > 0)
    said = {
        "cannot be read": broken,
        "belong to other devices": int((~own).sum()),
        "have no epoch, which is a whole number above 0": int((own & (epochs < 1)).sum()),
        "have no usable score and count as +infinity": int((counted & useless).sum()),
    }
    words = ", ".join(f"{count:,} {what}" for what, count in said.items() if count)
    problem = f"{table.name}: of {len(values) + broken:,} rows {words}; repair or drop them" if words else ""
    found = LocalScores(values[counted], None if of_rows is None else epochs[counted], problem)
    _ = found.in_epoch(FIRST_EPOCH)  # sorted now, and not while neighbours wait
    return found


def _table_of_rows(path: str, data: bytes) -> tuple[FileColumns, int]:
    """Return a table whose cells are still to be read, and how many rows of a text file have too many or few cells."""
    if _ending(path) != ".csv":
        return read_table(path, SCORE_FILE, may_be_empty=True, data=data), 0
    try:
        data = gzip.decompress(data) if data.startswith(GZIP) else data
    except (OSError, EOFError, zlib.error) as problem:
        raise ValueError(f"{path}: cannot be unpacked by gzip: {problem}; is the file whole?") from None
    text = data.decode("utf-8-sig", errors="replace")  # a byte that is no UTF-8 spoils its own row
    lines = [line for line in re.split(r"\r\n|\r|\n", text) if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty; needed {SCORE_FILE}")
    mark = max(SNIFFED, key=lines[0].count)  # the heading alone decides, and no row
    heading, *rows = [[cell.strip().strip('"') for cell in line.split(mark)] for line in lines]
    whole = [row for row in rows if len(row) == len(heading)]
    columns = [[*column] for column in zip(*whole, strict=True)] or [[] for _ in heading]
    return FileColumns(dict(zip(heading, columns, strict=True)), path), len(rows) - len(whole)


def _local_rows(table: FileColumns, rows: int, config: DeviceConfig) -> NDArray[np.bool_]:
    """Return which rows belong to this device: all, where no column names devices."""
    device = next((name for name in table.columns if name.lower() in ("device", *COLUMN_SYNONYMS["device"])), None)
    if device is None:
        return np.ones(rows, dtype=np.bool_)
    names = [str(cell).strip() for cell in table.columns[device]]
    mine = {name for name in {*names} if find_device_name(name, config.devices) == config.name}
    return np.array([name in mine for name in names], dtype=np.bool_)


def _number(cell: Any) -> float:
    """Return a cell as a number, NaN where it is none; a comma may be its decimal sign."""
    try:
        return float(cell.replace(",", ".") if isinstance(cell, str) else cell)
    except (TypeError, ValueError):
        return math.nan


def _differing_scores(cells: list[Any], score: Score) -> NDArray[np.bool_]:
    """Return which rows record another score than that of the mesh; rows without a record go with the others."""
    differ = {}
    for text in {*map(str, cells)} - {"", "None"}:
        try:
            reconcile_score(*parse_recorded_score(text, ""), score, "", exact=True)
        except ValueError:
            differ[text] = True
    return np.array([differ.get(str(cell), False) for cell in cells], dtype=np.bool_)


def replace_scores(config: DeviceConfig, source: str) -> LocalScores:
    """Replace the scores of a device in one step by the content of a file, or of standard input ("-"); return them.

    The content is checked first, as the device will read it, and copied byte by byte: a device that runs finds the old
    file or the new one. The new file keeps the owner and the permissions of the old one, also if root puts it there;
    where there is none it is private, and belongs to the owner of the folder.
    """
    target = config.path("scores")
    if _ending(source) != _ending(target.name):
        raise ValueError(
            f"{source}: a file that ends in {_ending(source)} cannot take the place of {target}; convert it, or name "
            f"another file in {config.folder / DEVICE_FILE}, as `file` in [scores]"
        )
    data = read_bytes(source)
    if config.has_epsilon:
        scores = _read_rows(config, source, data)
    elif config.guarantee.adapt is not None:
        scores = _labelled_rows(config, source, data)
    else:
        table = read_table(source, SCORE_FILE, layout=_layout(config), may_be_empty=True, data=data)
        scores = _local_scores_in(table, config)
    if config.chosen_guarantee.time_uniform and not scores.problem and not _begins_with_old_rows(scores, config):
        scores = replace(scores, problem=f"{source}: {_NEW_SEQUENCE}")
    owner, mode = _owner_and_mode(target)
    write_file(target, data, mode, owner)
    return scores


# A confidence at all looks is about the first rows of each device, in the order of the file.
_NEW_SEQUENCE = (
    "the file does not begin with the rows of the old one. pac_confidence at all looks holds while rows are added at "
    "the end; from here on it is that of a new sequence of looks"
)


def _begins_with_old_rows(scores: LocalScores, config: DeviceConfig) -> bool:
    """Return whether rows were only added at the end; also where the old file has none, or cannot be read."""
    try:
        old = read_local_scores(config).values
    except ValueError:
        return True
    return np.array_equal(scores.values[: len(old)], old)


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
            f"that it points to, or name that file in {DEVICE_FILE}, as `file` in [scores]"
        )
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{target}: is not a regular file; remove it, and put the scores again")
    return (status.st_uid, status.st_gid), status.st_mode & 0o777


def _ending(source: str) -> str:
    """Return the ending by which a file is read; text may have any other."""
    suffix = Path(source).suffix.lower()
    return {".npz": ".npz", ".npy": ".npy", ".parquet": ".parquet", ".pq": ".parquet"}.get(suffix, ".csv")


def _local_scores_in(table: FileColumns, config: DeviceConfig) -> LocalScores:
    layout = _layout(config)
    rows = len(table.column(SIDE_COLUMNS[0] if layout.sides else find_column(table, "score")))
    if not rows:
        nobody = Memberships((), np.zeros(0, dtype=np.int64), overlapping=False) if config.guarantee.groups else None
        weights = None if config.scores.weight_column is None else np.empty(0)
        return LocalScores(np.empty((0, 2) if layout.sides else 0), groups=nobody, weights=weights)
    if not any(name.lower() in ("device", *COLUMN_SYNONYMS["device"]) for name in table.columns):
        table = replace(table, columns={**table.columns, "device": np.full(rows, config.name)})
    held = extract_scores(table, layout)
    strange = [name for name in held.devices if find_device_name(name, config.devices) != config.name]
    if strange:
        raise ValueError(
            f"{table.name}: holds scores of {list_names(strange)} and belongs to {config.name!r}; a device keeps only "
            "its own"
        )
    _check_score_function(held, config)
    epochs, values = held.epoch if config.is_private else None, held.rows.score
    if epochs is not None and (epochs < 1).any():
        raise ValueError(
            f"{table.name}: the column {EPOCH_COLUMN!r} must hold whole numbers, at least 1; repair or drop it"
        )
    ordered = config.has_parts or config.chosen_guarantee.time_uniform
    if ordered and len(held.devices) > 1:  # rows of several names would not be in the order of the file
        raise ValueError(f"{table.name}: rows must name their device in one way, got {list_names(held.devices)}")
    if not config.has_parts:
        return LocalScores(values, epochs)
    groups, weights = held.rows.groups, held.rows.weight
    check_group_names(table.name, groups, config)
    if weights is not None and config.guarantee.weight_bound is not None:
        refuse_weights_above_bound(weights, config.guarantee.weight_bound, lambda row: (table.name, row))
    return LocalScores(values, epochs, groups=groups, weights=weights)


def _labelled_rows(config: DeviceConfig, source: str, data: bytes | None = None) -> LocalScores:
    """Read labelled outputs, to which scores adapt."""
    from conformesh.mesh.config.labelled_rows import read_device_rows  # which other devices need not hold in memory

    rows = read_device_rows(config, source, data)
    return LocalScores(np.empty(0), groups=rows.groups, rows=rows)


def check_group_names(name: str, groups: Memberships | None, config: DeviceConfig) -> None:
    """Refuse rows in several groups, or in groups that the mesh is not configured with."""
    if groups is None:
        return
    if groups.overlapping:
        raise ValueError(f"{name}: column {config.scores.group_column!r} must name one group in each row")
    for (group,) in groups.atoms:
        if group not in config.guarantee.groups:
            problem = unknown_name("group", group, config.guarantee.groups)
            raise ValueError(f"{name}: column {config.scores.group_column!r}: {problem}")


def _check_score_function(held: ScoreFile, config: DeviceConfig) -> None:
    """Refuse scores that the file says were made with another score than the mesh names, or that cannot be its own."""
    if (score := config.chosen_score) is None:
        return
    if held.made_by is not None:
        reconcile_score(*held.made_by, score, held.name, exact=True)
    for name, own in zip(held.devices, held.scores, strict=True):
        if own.ndim == 2:  # distances to the two ends of an interval have no range of their own
            continue
        score.check_range(own, f"{held.name}: device {name}")


def scatter_scores(root: Path, score_file: str | Path) -> dict[str, int]:
    """Split a score file by device into the folders of a mesh; return how many scores each device got.

    A device is meant by its name, or by its number where the mesh calls it ``device-07``.
    """
    from conformesh.files.table_writers import write_scores  # a node reads scores and writes none

    root = Path(root)
    folders = {path.parent.name: path.parent for path in sorted(root.glob(f"*/{DEVICE_FILE}"))}
    if not folders:
        raise ValueError(f"{root}: no folder of a device is in there; make a mesh with `conformesh mesh init {root}`")
    any_device = read_device(next(iter(folders.values())))
    if any_device.guarantee.adapt is not None:
        from conformesh.mesh.config.labelled_rows import scatter_rows

        return scatter_rows([read_device(folders.get(name, root / name)) for name in any_device.devices], score_file)
    if any_device.guarantee.lower_share is not None:
        raise ValueError(
            f"{score_file}: a file with the columns lower and upper is not split by device; give each device its own "
            "with `conformesh mesh put-scores`"
        )
    roster, layout = any_device.devices, _layout(any_device)
    held = read_scores(str(score_file), layout=layout)
    owner = {name: find_device_name(name, roster) for name in held.devices}
    strange = [name for name, found in owner.items() if found is None]
    if strange:
        raise ValueError(
            f"{held.name}: {list_names(strange)} have scores and are none of the devices {list_names(roster)}"
        )
    if len({*owner.values()}) < len(owner):
        raise ValueError(f"{held.name}: one device has scores under two names; write its name in one way")
    own = {str(owner[name]): scores for name, scores in zip(held.devices, held.scores, strict=True)}
    configs = [read_device(folders.get(name, root / name)) for name in roster]
    _check_score_function(held, configs[0])
    epochs = {} if held.epochs is None else {str(owner[n]): e for n, e in zip(held.devices, held.epochs, strict=True)}
    if configs[0].is_private and any((of_rows < 1).any() for of_rows in epochs.values()):
        raise ValueError(
            f"{held.name}: the column {EPOCH_COLUMN!r} must hold whole numbers, at least 1; repair or drop it"
        )
    beside = {str(owner[name]): _extra_columns(held, k, any_device) for k, name in enumerate(held.devices)}
    for config in configs:
        scores = own.get(config.name, np.empty(0))
        kept: dict[str, Any] = {}
        if config.is_private and config.name in epochs:
            kept[EPOCH_COLUMN] = epochs[config.name].tolist()
        if config.name in beside:
            kept |= beside[config.name]
        names = [config.name] * len(scores)
        write_scores(config.path("scores"), names, scores, kept=kept, made_by=held.made_by, mode=PRIVATE)
    return {name: len(own.get(name, ())) for name in roster}


def _extra_columns(held: ScoreFile, k: int, config: DeviceConfig) -> dict[str, Any]:
    """Return the columns of groups and weights of a device's rows."""
    found: dict[str, Any] = {}
    rows = slice(*held.rows.offsets[k : k + 2].tolist())
    if held.rows.groups is not None:
        groups = held.rows.groups.take(rows)
        check_group_names(held.name, groups, config)
        found[config.scores.group_column] = [groups.atoms[code][0] for code in groups.codes.tolist()]
    if held.rows.weight is not None and config.scores.weight_column is not None:
        found[config.scores.weight_column] = held.rows.weight[rows].tolist()
    return found
