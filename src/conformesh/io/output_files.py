"""Model outputs from files: one row per example, one numeric column per class."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from conformesh.io.tables import Table, listed, read_table, same_length

NEEDED = "one row of model outputs per example, one numeric column per class"
DEVICE = "device"
ARRAYS = ("probabilities", "logits", "outputs")  # what an NPZ may call them, best first
CLASSES = "classes"  # where an NPZ names its classes


@dataclass(frozen=True, eq=False)
class OutputFile:
    """Outputs of a model.

    Attributes
    ----------
    values
        Shape (rows, columns).
    labels
        The names of the columns; "0", "1", ... where the file has none.
    devices
        The device of every row, where the file names it.
    name
        Where they come from, for errors.
    """

    values: NDArray[np.float64]
    labels: tuple[str, ...]
    devices: list[str] | None
    name: str


def read_outputs(
    source: str, device_column: str | None = None, stdin: BinaryIO | None = None, *, logits: bool = False
) -> OutputFile:
    """Read outputs from CSV, Parquet, NPZ or NPY; "-" reads CSV from standard input.

    A column called `device`, or the one that `device_column` names, says at which device a row is and is no class. An
    NPZ holds `probabilities`, `logits` or `outputs`; with `logits` these are preferred.
    """
    table = read_table(source, NEEDED, stdin)
    where = device_column or DEVICE
    if device_column is not None:
        table.column(device_column)
    if in_arrays(table):
        _, values, labels = class_array(table, ("logits", *ARRAYS) if logits else ARRAYS)
    else:
        values, labels = class_columns(table, (where,))
    if not len(values):
        raise ValueError(f"{table.name} has no rows; needed {NEEDED}")
    return OutputFile(values, labels, devices_in(table, where, len(values)), table.name)


def in_arrays(table: Table) -> bool:
    """Say whether a table holds arrays, from an NPZ or NPY, rather than columns."""
    return isinstance(next(iter(table.columns.values())), np.ndarray)


def class_columns(table: Table, besides: Collection[str]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return every column but those as values, with their names."""
    labels = tuple(name for name in table.columns if name not in besides)
    if not labels:
        raise ValueError(f"{table.name} has no column but {listed([*table.columns])}; needed {NEEDED}")
    return np.column_stack([table.numbers(name) for name in labels]), labels


def class_array(table: Table, wanted: Iterable[str]) -> tuple[str, NDArray[np.float64], tuple[str, ...]]:
    """Return the first array that is there: its name, its values and the names of its classes."""
    found = next((name for name in wanted if name in table.columns), None)
    if found is None:
        raise ValueError(
            f"{table.name}: needs an array 'probabilities', 'logits' or 'outputs', found {listed([*table.columns])}"
        )
    values = table.numbers(found)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise ValueError(f"{table.name}: {found!r} must have shape (rows, classes), got {values.shape}")
    names = table.columns.get(CLASSES, np.arange(values.shape[1]))
    if names.shape != values.shape[1:]:
        raise ValueError(
            f"{table.name}: {CLASSES!r} must name the {values.shape[1]} columns of {found!r}, got shape {names.shape}"
        )
    return found, values, tuple(map(str, names.tolist()))


def devices_in(table: Table, column: str, rows: int) -> list[str] | None:
    """Return the device of every row, where the table has that column."""
    if column not in table.columns:
        return None
    if len(table.column(column)) != rows:
        same_length(table, [column, next(name for name in ARRAYS if name in table.columns)])
    names, index = table.names(column)
    return [names[i] for i in index]
