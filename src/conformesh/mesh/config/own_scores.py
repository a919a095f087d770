"""A device's own scores: its share of a score file, and how it reads them back."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conformesh.io.score_files import NEEDED, read_scores
from conformesh.io.tables import read_table
from conformesh.io.writing import write_scores
from conformesh.mesh.config.device_toml import FILE, DeviceConfig, read_device
from conformesh.mesh.config.endpoints import as_roster_name
from conformesh.names import listed

EMPTY = "device,score\n"
SMALL = 1_000_000  # bytes
NUMBER = re.compile(rb"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


def read_own_scores(config: DeviceConfig) -> NDArray[np.float64]:
    """Read the scores of this device; a heading alone means none, and without a column `device` all are its own."""
    path = config.path("scores")
    if not path.is_file():
        raise ValueError(f"{path}: device {config.name!r} needs a file with its scores; a heading alone means none")
    if path.suffix.lower() == ".csv":
        if _is_heading_alone(path):
            return np.empty(0)
        plain = _plain_scores(path, config.name)
        if plain is not None:
            return plain
    table = read_table(str(path), NEEDED)
    if "device" not in table.columns:
        values = table.numbers("score")
        if np.isnan(values).any():
            row = int(np.isnan(values).argmax())
            raise ValueError(f"{table.where(row)}: score must be a number, got NaN; repair or drop this row")
        return values
    held = read_scores(str(path))
    strange = [name for name in held.devices if as_roster_name(name, config.devices) != config.name]
    if strange:
        raise ValueError(
            f"{path}: holds scores of {listed(strange)} and belongs to {config.name!r}; a device keeps only its own"
        )
    return np.concatenate(held.scores)


def _plain_scores(path: Path, name: str) -> NDArray[np.float64] | None:
    """Read a small file in which nothing is unusual, without loading Polars; None where that is for others to say."""
    if path.stat().st_size > SMALL:
        return None
    heading, *lines = path.read_bytes().splitlines()
    if heading == b"device,score":
        own = name.encode() + b","
        if not all(line.startswith(own) for line in lines):
            return None
        lines = [line[len(own) :] for line in lines]
    elif heading != b"score":
        return None
    if not all(map(NUMBER.fullmatch, lines)):
        return None
    return np.array([*map(float, lines)])


def _is_heading_alone(path: Path) -> bool:
    with path.open("rb") as file:
        first, second = file.readline(), file.readline()
    return b"score" in [word.strip(b' "\xef\xbb\xbf\r\n') for word in first.split(b",")] and not second.strip()


def scatter_scores(root: Path, score_file: str | Path) -> dict[str, int]:
    """Split a score file by device into the folders of a mesh; return how many scores each device got.

    A device is meant by its name, or by its number where the mesh calls it ``device-07``.
    """
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
    for config in configs:
        scores = own.get(config.name, np.empty(0))
        write_scores(config.path("scores"), [config.name] * len(scores), scores)
    return {name: len(own.get(name, ())) for name in roster}
