"""True labels from files: as numbers from 0 or as names of classes, beside the outputs or in a file of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conformesh.common.array_types import Ints
from conformesh.common.names import closest_name
from conformesh.files.output_files import holds_arrays
from conformesh.files.tables import FileColumns, FileLayout, is_number, quote_column_names, read_table

_NEEDED = "one label per row"
LABEL_COLUMNS = ("label", "labels", "y")  # what an NPZ may call them


@dataclass(frozen=True, eq=False)
class LabelColumn:
    """A column of labels, and where it stands."""

    table: FileColumns
    column: str

    def __len__(self) -> int:
        return len(self.table.column(self.column))

    @property
    def place(self) -> str:
        """The file and the column, for an error."""
        return f"{self.table.name}, {self.column!r}"


def column_labels(table: FileColumns, column: str) -> LabelColumn:
    """Find the labels beside the outputs."""
    if not holds_arrays(table):
        table.column(column)
        return LabelColumn(table, column)
    wanted = LABEL_COLUMNS if column == LABEL_COLUMNS[0] else (column,)
    found = next((name for name in wanted if name in table.columns), None)
    if found is None:
        raise ValueError(
            f"{table.name}: needs an array {' or '.join(map(repr, wanted))}, found "
            f"{quote_column_names([*table.columns])}; "
            "or give the labels in a file of their own"
        )
    return LabelColumn(table, found)


def file_labels(source: str, column: str, layout: FileLayout) -> LabelColumn:
    """Read labels from a file of their own: NPY, NPZ, CSV or Parquet; a single column may have any name."""
    table = read_table(source, _NEEDED, layout=layout)
    return LabelColumn(table, next(iter(table.columns))) if len(table.columns) == 1 else column_labels(table, column)


def label_indices(labels: LabelColumn, classes: Sequence[str]) -> Ints:
    """Return each row's class as an index into `classes`.

    Numbers in an array are indices. Text, and what stands in a CSV or Parquet column, are names of classes if all of
    them are, and indices otherwise.
    """
    table, column = labels.table, labels.column
    found = table.column(column)
    if isinstance(found, np.ndarray):
        if found.ndim == 2 and found.shape[1] == 1:
            table = FileColumns({**table.columns, column: found[:, 0]}, table.name, table.lines)
        elif found.ndim != 1:
            hint = "; for one-hot labels give labels.argmax(axis=1)" if found.ndim == 2 else ""
            raise ValueError(f"{labels.place}: needs labels of shape (rows,) or (rows, 1), got {found.shape}{hint}")
        if found.dtype.kind in "fiub":
            return _whole(table, column)
    names, index = table.names(column)
    place = {name: i for i, name in enumerate(classes)}
    if all(name in place for name in names):
        return np.array([place[name] for name in names], np.int64)[index]
    if all(is_number(name) for name in names):
        return _whole(table, column)
    strange = next(i for i, name in enumerate(names) if name not in place and not is_number(name))
    row = int((index == strange).argmax())
    close = closest_name(names[strange], classes)
    hint = f", did you mean {close!r}?" if close else ";"
    raise ValueError(
        f"{table.where(row)}: unknown label {names[strange]!r}{hint} classes: {quote_column_names(classes)}"
    )


def _whole(table: FileColumns, column: str) -> Ints:
    numbers = table.numbers(column)
    wrong = ~(np.isfinite(numbers) & (numbers == np.rint(numbers)))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"{table.where(row)}: {column} must be a whole number or the name of a class, got {numbers[row]:g}; "
            "repair or drop this row"
        )
    return numbers.astype(np.int64)
