"""Streams from files: one row per example, with its time, its device and its score.

Times are numbers or dates (`files.times` says which formats). All examples of one time are one step; a device
that has none at a time has nothing to predict there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.names import natural_order
from conformesh.files.score_files import find_column
from conformesh.files.tables import FileColumns, FileLayout, check_equal_lengths, read_table
from conformesh.files.times import TimeError, parse_times

_NEEDED = "columns 'time', 'device' and 'score', one row per example"


@dataclass(frozen=True, eq=False)
class StreamFile:
    """The scores of every device, step by step.

    Attributes
    ----------
    devices
        Device names in natural order.
    times
        The time of each step, ascending: numbers, or text as the file has it.
    scores
        (devices, steps); not a number where a device has no example.
    name
        Where they come from, for errors.
    """

    devices: tuple[str, ...]
    times: NDArray[Any]
    scores: NDArray[np.float64]
    name: str


def read_streams(source: str, time: str = "time", layout: FileLayout | None = None) -> StreamFile:
    """Read streams from CSV, Parquet or NPZ; "-" reads CSV from standard input. `time` names the column of times."""
    layout = layout or FileLayout()
    table = read_table(source, _NEEDED, None, layout)
    device, score = (find_column(table, word, getattr(layout, word)) for word in ("device", "score"))
    values = table.numbers(score)
    if not len(values):
        raise ValueError(f"{table.name} has no rows; needed {_NEEDED}")
    if np.isnan(values).any():
        row = int(np.isnan(values).argmax())
        raise ValueError(f"{table.where(row)}: score must be a number, got NaN; repair or drop this row")
    names, who = table.names(device)
    times, step = _steps(table, time)
    if table.lines is None:
        check_equal_lengths(table, (time, device, score))
    devices = natural_order(names)
    row_of = {name: row for row, name in enumerate(devices)}
    rows = np.array([row_of[name] for name in names], dtype=np.int64)[who]
    _refuse_twice(
        table, rows * len(times) + step, lambda at: f"device {names[who[at]]!r} has two scores at {times[step[at]]}"
    )
    scores = np.full((len(devices), len(times)), np.nan)
    scores[rows, step] = values
    return StreamFile(tuple(devices), times, scores, table.name)


def _steps(table: FileColumns, time: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the times, ascending, and which of them each row has: numbers, or dates in a format that is understood."""
    try:
        column = table.column(time)
    except ValueError as problem:
        raise ValueError(f"{problem}; another name is given with --time-column") from None
    if isinstance(column, np.ndarray) and column.dtype.kind == "M":
        return _numbered(table, column.astype(str), column.astype("datetime64[ns]").astype(np.int64))
    if hasattr(column, "to_physical") and column.dtype.is_temporal():  # a Polars series of dates
        return _numbered(table, column.cast(str).to_numpy(), column.to_physical().to_numpy())
    try:
        numbers = table.numbers(time)
    except ValueError:
        return _dates(table, time)
    if not np.isfinite(numbers).all():
        row = int((~np.isfinite(numbers)).argmax())
        raise ValueError(
            f"{table.where(row)}: {time} must be a finite number, got {numbers[row]}; repair or drop this row"
        )
    return np.unique(numbers, return_inverse=True)


def _dates(table: FileColumns, time: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the same for times that are text."""
    names, index = table.names(time)
    try:
        when = np.array(parse_times(names), dtype=np.int64)
    except TimeError as unread:
        row = int((index == unread.place).argmax())
        raise ValueError(f"{table.where(row)}: {time}: {unread}") from None
    return _numbered(table, np.array(names, dtype=str)[index], when[index])


def _numbered(
    table: FileColumns, texts: NDArray[np.str_], when: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the distinct times in their order, each as it was first written, and which of them each row has."""
    gaps = np.array([str(text) in ("NaT", "None", "null") for text in texts])
    if gaps.any():
        raise ValueError(f"{table.where(int(gaps.argmax()))}: the time is missing; repair or drop this row")
    _, first, step = np.unique(when, return_index=True, return_inverse=True)
    return texts[first], step


def _refuse_twice(table: FileColumns, keys: NDArray[np.int64], words: Any) -> None:
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(np.diff(keys[order]) == 0)
    if len(again):
        at = int(order[again[0] + 1])
        raise ValueError(f"{table.where(at)}: {words(at)}; keep one, or tell times apart")
