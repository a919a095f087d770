"""Scores from files: one row per calibration point, with its `device` and its `score`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from conformesh.io.tables import STDIN, Table, read_table, same_length
from conformesh.names import natural_order

NEEDED = "columns 'device' and 'score', one row per score"


@dataclass(frozen=True, eq=False)
class ScoreFile:
    """The scores of every device that has some.

    Attributes
    ----------
    devices
        Device names in natural order.
    scores
        One array per device, in that order.
    name
        Where they come from, for errors.
    groups
        The group of each score, where a column was asked for.
    """

    devices: tuple[str, ...]
    scores: tuple[NDArray[np.float64], ...]
    name: str
    groups: tuple[NDArray[np.str_], ...] | None = None

    def for_devices(self, ids: tuple[str, ...]) -> list[NDArray[np.float64]]:
        """Return one array for each of `ids`, empty where a device has no scores."""
        held = dict(zip(self.devices, self.scores, strict=True))
        return [held.get(device, np.empty(0)) for device in ids]

    def groups_for(self, ids: tuple[str, ...]) -> list[NDArray[np.str_]]:
        """Return the groups of each device's scores."""
        held = dict(zip(self.devices, self.groups or (), strict=True))
        return [held.get(device, np.empty(0, dtype=str)) for device in ids]


def read_scores(source: str, stdin: BinaryIO | None = None, group: str | None = None) -> ScoreFile:
    """Read scores from CSV, Parquet or NPZ, or a folder of such; "-" reads CSV from standard input.

    `group` names a column of groups.
    """
    if source != STDIN and Path(source).is_dir():
        from conformesh.io.score_folders import ScoreFolder

        return ScoreFolder.open(source).read(group=group)
    return scores_in(read_table(source, NEEDED, stdin), group)


def scores_in(table: Table, group: str | None = None) -> ScoreFile:
    """Sort the rows of a table by device."""
    columns = ("device", "score") if group is None else ("device", "score", group)
    for column in columns:
        if np.ndim(table.column(column)) != 1:
            raise ValueError(
                f"{table.name}: {column!r} must be one-dimensional, got shape {table.column(column).shape}"
            )
    same_length(table, columns)
    if not len(table.column("score")):
        raise ValueError(f"{table.name} has no rows; needed {NEEDED}")
    names, index = table.names("device")
    values = table.numbers("score")
    _refuse_nan(table, values, names, index)
    order = np.argsort(index, kind="stable")
    cuts = np.cumsum(np.bincount(index, minlength=len(names)))[:-1]
    held = dict(zip(names, np.split(values[order], cuts), strict=True))
    devices = natural_order(names)
    groups = None
    if group is not None:
        kinds, which = table.names(group)
        labels = dict(zip(names, np.split(np.array(kinds)[which][order], cuts), strict=True))
        groups = tuple(labels[device] for device in devices)
    return ScoreFile(devices, tuple(held[device] for device in devices), table.name, groups)


def _refuse_nan(table: Table, values: NDArray[np.float64], names: list[str], index: NDArray[np.int64]) -> None:
    missing = np.isnan(values)
    if missing.any():
        row = int(missing.argmax())
        raise ValueError(
            f"{table.where(row)}: score must be a number, got NaN for device {names[index[row]]!r}; "
            "repair or drop this row"
        )
