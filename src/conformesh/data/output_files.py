"""Model outputs from files: one row per example, one numeric column per class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from conformesh.data.tables import Table, read_table, same_length

NEEDED = "one row of model outputs per example, one numeric column per class"
DEVICE = "device"
ARRAYS = ("probabilities", "logits", "outputs")  # what an NPZ may call them, best first


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
    in_arrays = isinstance(next(iter(table.columns.values())), np.ndarray)
    values, labels = _from_arrays(table, logits) if in_arrays else _from_columns(table, where)
    if not len(values):
        raise ValueError(f"{table.name} has no rows; needed {NEEDED}")
    if where not in table.columns:
        return OutputFile(values, labels, None, table.name)
    if len(table.column(where)) != len(values):
        same_length(table, [where, next(name for name in ARRAYS if name in table.columns)])
    names, index = table.names(where)
    return OutputFile(values, labels, [names[i] for i in index], table.name)


def _from_columns(table: Table, device_column: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    labels = tuple(name for name in table.columns if name != device_column)
    if not labels:
        raise ValueError(f"{table.name} has no column but {device_column!r}; needed {NEEDED}")
    return np.column_stack([table.numbers(name) for name in labels]), labels


def _from_arrays(table: Table, logits: bool) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    wanted = ("logits", *ARRAYS) if logits else ARRAYS
    found = next((name for name in wanted if name in table.columns), None)
    if found is None:
        there = ", ".join(map(repr, table.columns))
        raise ValueError(f"{table.name}: needs an array 'probabilities', 'logits' or 'outputs', found {there}")
    values = table.numbers(found)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise ValueError(f"{table.name}: {found!r} must have shape (rows, classes), got {values.shape}")
    return values, tuple(map(str, range(values.shape[1])))
