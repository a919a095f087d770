"""Streams from files: one row per example, with its time, its device and its score.

Times are numbers, or text whose order is that of time, as 2026-11-17T08:00. All examples of one time are one step; a
device that has none at a time has nothing to predict there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.io.score_files import column_named
from conformesh.io.tables import Layout, Table, read_table, same_length
from conformesh.names import natural_order

NEEDED = "columns 'time', 'device' and 'score', one row per example"


@dataclass(frozen=True, eq=False)
class StreamFile:
    """The scores of every device, step by step.

    Attributes
    ----------
    devices
        Device names in natural order.
    times
        The time of each step, ascending: numbers or text.
    scores
        (devices, steps); not a number where a device has no example.
    name
        Where they come from, for errors.
    """

    devices: tuple[str, ...]
    times: NDArray[Any]
    scores: NDArray[np.float64]
    name: str


def read_streams(source: str, time: str = "time", layout: Layout | None = None) -> StreamFile:
    """Read streams from CSV, Parquet or NPZ; "-" reads CSV from standard input. `time` names the column of times."""
    layout = layout or Layout()
    table = read_table(source, NEEDED, None, layout)
    device, score = (column_named(table, word, getattr(layout, word)) for word in ("device", "score"))
    values = table.numbers(score)
    if not len(values):
        raise ValueError(f"{table.name} has no rows; needed {NEEDED}")
    if np.isnan(values).any():
        row = int(np.isnan(values).argmax())
        raise ValueError(f"{table.where(row)}: score must be a number, got NaN; repair or drop this row")
    names, who = table.names(device)
    times, step = _steps(table, time)
    if table.lines is None:
        same_length(table, (time, device, score))
    devices = natural_order(names)
    row_of = {name: row for row, name in enumerate(devices)}
    rows = np.array([row_of[name] for name in names], dtype=np.int64)[who]
    _refuse_twice(
        table, rows * len(times) + step, lambda at: f"device {names[who[at]]!r} has two scores at {times[step[at]]}"
    )
    scores = np.full((len(devices), len(times)), np.nan)
    scores[rows, step] = values
    return StreamFile(tuple(devices), times, scores, table.name)


def _steps(table: Table, time: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the times, ascending, and which of them each row has: by number where all are, else by text."""
    try:
        table.column(time)
    except ValueError as problem:
        raise ValueError(f"{problem}; another name is given with --time") from None
    try:
        return np.unique(table.numbers(time), return_inverse=True)
    except ValueError:
        names, index = table.names(time)
    times, step = np.unique(np.array(names, dtype=str), return_inverse=True)
    return times, step[index]


def _refuse_twice(table: Table, keys: NDArray[np.int64], words: Any) -> None:
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(np.diff(keys[order]) == 0)
    if len(again):
        at = int(order[again[0] + 1])
        raise ValueError(f"{table.where(at)}: {words(at)}; keep one, or tell times apart")
