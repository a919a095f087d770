"""Model outputs from files: one row per example, one numeric column per class, or the columns of a regression score.

A column is a class unless it is the device, the label or the id of a row, or was named to pass through. Where it is
known which classes there should be, they are checked by name, and columns in another order are put right. Predictions
of numbers are found by the names that their score has for them, or are all columns that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from conformesh.common.array_types import Floats
from conformesh.common.arrays import SUM_SLACK
from conformesh.files.memberships import Memberships
from conformesh.files.tables import (
    CLASSES,
    FileColumns,
    FileLayout,
    check_equal_lengths,
    is_number,
    note_ids,
    quote_column_names,
    read_table,
    row_groups,
)

OUTPUT_FILE = "one row of model outputs per example, one numeric column per class"
DEVICE_COLUMN = "device"
_ARRAYS = ("probabilities", "logits", "outputs")  # what an NPZ may call them, best first
_PREDICTED = ("predictions", "outputs", "prediction")  # and predictions of numbers
_ROLES = ("id", "label")  # columns beside the classes that need not be named


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
    kept
        Columns that pass through as they are, by name: id, label and what else was asked for.
    groups
        The groups of every row, where columns of them were asked for.
    weight, inputs
        The weight and the features of every row, where columns of them were asked for.
    order
        Which column of the file each column was, where they were put in another order.
    """

    values: Floats
    labels: tuple[str, ...]
    devices: list[str] | None
    name: str
    kept: dict[str, list[Any]] = field(default_factory=dict)
    groups: Memberships | None = None
    order: tuple[int, ...] | None = None
    weight: Floats | None = None
    inputs: Floats | None = None


def read_outputs(
    source: str,
    layout: FileLayout | None = None,
    stdin: BinaryIO | None = None,
    *,
    logits: bool = False,
    classes: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> OutputFile:
    """Read outputs from CSV, Parquet, NPZ or NPY; "-" reads CSV from standard input.

    A column called `device`, or the one that the layout names, says at which device a row is. An NPZ holds
    `probabilities`, `logits` or `outputs`; with `logits` these are preferred. `classes` are those that the outputs must
    have, in the order in which they are wanted. With `columns` the outputs are no classes but predictions of numbers:
    what a regression score calls its columns.
    """
    layout = layout or FileLayout()
    return extract_outputs(
        read_table(source, OUTPUT_FILE, stdin, layout), layout, logits=logits, classes=classes, columns=columns
    )


def extract_outputs(
    table: FileColumns,
    layout: FileLayout,
    *,
    logits: bool = False,
    classes: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    truth: str | None = None,
) -> OutputFile:
    """Return the outputs in a table that was read, as `read_outputs` does; the column `truth` is none of them."""
    where = layout.device or DEVICE_COLUMN
    if layout.device is not None:
        table.column(layout.device)
    note_ids(table, layout)
    kept = kept_columns(table, layout, classes or ())
    beside = (where, *layout.groups, *layout.inputs, *(() if layout.weight is None else (layout.weight,)), *kept)
    order = None
    if columns is not None:
        values, names = _prediction_columns(table, beside, columns, layout.outputs)
    elif holds_arrays(table):
        _, values, names = class_array(table, ("logits", *_ARRAYS) if logits else _ARRAYS)
    else:
        values, names = read_class_columns(table, beside, classes)
    if not len(values):
        raise ValueError(
            f"{table.name} has no rows; needed {OUTPUT_FILE if columns is None else quote_column_names(columns)}"
        )
    if classes is not None:
        order, names = _order_of(names, classes, table.name)
        values = values if order is None else values[:, order]
    kept = tuple(name for name in kept if name != truth)
    passing = {name: column_cells(table, name, len(values)) for name in kept}
    groups = row_groups(table, layout.groups) if layout.groups else None
    if groups is not None and len(groups) != len(values):
        raise ValueError(f"{table.name}: has {len(values)} rows of outputs but groups of {len(groups)}; one each")
    weight = None if layout.weight is None else table.numbers(layout.weight)
    inputs = table.matrix(layout.inputs) if layout.inputs else None
    devices = row_devices(table, where, len(values))
    return OutputFile(values, names, devices, table.name, passing, groups, order, weight, inputs)


def holds_arrays(table: FileColumns) -> bool:
    """Say whether a table holds arrays, from an NPZ or NPY, rather than columns."""
    return isinstance(next(iter(table.columns.values())), np.ndarray)


def kept_columns(table: FileColumns, layout: FileLayout, classes: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the columns that pass through: what was asked for, and an `id` and a `label` beside columns of classes."""
    asked = [name for name in (layout.id, layout.label, *layout.keep) if name is not None]
    for name in asked:
        table.column(name)
    if holds_arrays(table):
        return tuple(dict.fromkeys(asked))
    usual = [name for name in _ROLES if name in table.columns and getattr(layout, name) is None and name not in classes]
    return tuple(dict.fromkeys([*usual, *asked]))


def read_class_columns(
    table: FileColumns, besides: Iterable[str], classes: Sequence[str] | None = None
) -> tuple[Floats, tuple[str, ...]]:
    """Return every column but those as values, with their names."""
    apart = {*besides}
    names = tuple(name for name in table.columns if name not in apart)
    if not names:
        raise ValueError(f"{table.name} has no column but {quote_column_names([*table.columns])}; needed {OUTPUT_FILE}")
    _check_names(table, names, classes)
    try:
        values = table.matrix(names)
    except ValueError as problem:
        if classes is not None:
            raise
        raise ValueError(
            f"{problem}; a column that is no class is named with --id-column, --label-column or --keep"
        ) from None
    if classes is None:
        _refuse_strays(table.name, values, names)
    return values, names


def _check_names(table: FileColumns, names: Sequence[str], classes: Sequence[str] | None) -> None:
    """Refuse a first line that names no classes, and columns that are none."""
    if "" in names:
        at = [*table.columns].index("") + 1
        raise ValueError(
            f"{table.name}: column {at} has no name; name it, and give it with --id-column if it counts rows"
        )
    numbers = [name for name in names if is_number(name) and not name.isdecimal()]
    if table.lines is not None and numbers:
        raise ValueError(f"{table.name}: the first line must name the classes, got the number {numbers[0]!r}")
    if classes is not None and not are_only_numbered(classes) and not are_only_numbered(names):
        strange = [name for name in names if name not in {*classes}]
        if strange and {*classes} <= {*names}:
            raise ValueError(
                f"{table.name}: column {strange[0]!r} is none of the classes {quote_column_names(classes)}; "
                f"name it with --keep {strange[0]}, or drop it"
            )


def _refuse_strays(name: str, values: Floats, names: Sequence[str]) -> None:
    """Raise if a column is not a class: without it all rows are probabilities, with it they are not."""
    if values.shape[1] < 3:  # a single class would be left
        return
    inside = ((values >= 0.0) & (values <= 1.0 + SUM_SLACK)).all(axis=0)
    sums = values[:, inside].sum(axis=1)
    if not inside.all():
        strays = [*np.flatnonzero(~inside)] if inside.sum() > 1 and (np.abs(sums - 1.0) <= SUM_SLACK).all() else []
    elif (np.abs(sums - 1.0) <= SUM_SLACK).all():
        return
    else:
        without = (np.abs(sums[:, None] - values - 1.0) <= SUM_SLACK).all(axis=0)
        strays = [*np.flatnonzero(without & (values != 0.0).any(axis=0))]
    if strays:
        raise ValueError(
            f"{name}: column {names[strays[0]]!r} seems to be no class: without it every row sums to 1; "
            f"name it with --keep {names[strays[0]]}, or drop it"
        )


def class_array(table: FileColumns, wanted: Iterable[str]) -> tuple[str, Floats, tuple[str, ...]]:
    """Return the first array that is there: its name, its values and the names of its classes."""
    array = next((name for name in wanted if name in table.columns), None)
    if array is None:
        raise ValueError(
            f"{table.name}: needs an array 'probabilities', 'logits' or 'outputs', "
            f"found {quote_column_names([*table.columns])}"
        )
    values = table.numbers(array)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise ValueError(f"{table.name}: {array!r} must have shape (rows, classes), got {values.shape}")
    names = table.columns.get(CLASSES, np.arange(values.shape[1]))
    if names.shape != values.shape[1:]:
        raise ValueError(
            f"{table.name}: {CLASSES!r} must name the {values.shape[1]} columns of {array!r}, got shape {names.shape}"
        )
    titles = tuple(map(str, names.tolist()))
    if len({*titles}) < len(titles):
        raise ValueError(f"{table.name}: {CLASSES!r} must differ, got {quote_column_names(titles)}")
    return array, values, titles


def _prediction_columns(
    table: FileColumns, besides: Iterable[str], wanted: Sequence[str], chosen: Sequence[str] = ()
) -> tuple[Floats, tuple[str, ...]]:
    """Return the columns of predictions, as many as a score wants, with their names.

    They are those that were `chosen`, else those with the names that the score has for them, else all that are left; in
    an NPZ an array of the shape (rows, columns) will do.
    """
    taken = [*besides]
    whole = [name for name in _PREDICTED if name in table.columns]
    if not chosen and holds_arrays(table) and whole and not {*wanted} <= {*table.columns}:
        values = table.numbers(whole[0])
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2 or values.shape[1] != len(wanted):
            raise ValueError(
                f"{table.name}: {whole[0]!r} must have a column for each of {', '.join(wanted)}, got shape "
                f"{table.columns[whole[0]].shape}"
            )
        return values, tuple(wanted)
    left = [name for name in table.columns if name not in taken]
    if holds_arrays(table) and not chosen and (of_classes := [name for name in _ARRAYS[:2] if name in left]):
        raise ValueError(
            f"{table.name}: holds {of_classes[0]!r}, outputs of classes, and this score is for regression: it reads "
            f"{' and '.join(wanted)}; choose another --score"
        )
    names = [*chosen] or ([*wanted] if {*wanted} <= {*left} else left)
    if len(names) != len(wanted):
        what = f"--output-columns named {quote_column_names(names)}" if chosen else f"found {quote_column_names(left)}"
        raise ValueError(
            f"{table.name}: this score reads {len(wanted)} column{'s' * (len(wanted) > 1)}, {' and '.join(wanted)}; "
            f"{what}; name them in this order with --output-columns, and others with --id-column, --label-column or "
            "--keep"
        )
    if holds_arrays(table):
        check_equal_lengths(table, names)
    return table.matrix(names), tuple(names)


def are_only_numbered(classes: Sequence[str]) -> bool:
    """Say whether classes are only counted: "0", "1", ..."""
    return [*classes] == [str(i) for i in range(len(classes))]


def _order_of(
    names: Sequence[str], classes: Sequence[str], where: str
) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
    """Return which column each class is, None where they stand in order, and their names; or say how they differ.

    Where one side only counts its classes, they are taken in the order in which they stand.
    """
    wanted = tuple(classes)
    if tuple(names) == wanted:
        return None, wanted
    if len(names) == len(wanted) and (are_only_numbered(names) or are_only_numbered(wanted)) and {*names} != {*wanted}:
        return None, tuple(names) if are_only_numbered(wanted) else wanted
    place = {name: i for i, name in enumerate(names)}
    lacking = [name for name in wanted if name not in place]
    strange = [name for name in names if name not in {*wanted}]
    if lacking or strange:
        what = [f"lacks {quote_column_names(lacking)}"] if lacking else []
        what += [f"has {quote_column_names(strange)}"] if strange else []
        raise ValueError(
            f"{where}: {len(names)} classes, but the scores came from {len(wanted)}: it {' and '.join(what)}; "
            "predict with outputs of the model that was calibrated"
        )
    return tuple(place[name] for name in wanted), wanted


def row_devices(table: FileColumns, column: str, rows: int) -> list[str] | None:
    """Return the device of every row, where the table has that column."""
    if column not in table.columns:
        return None
    if len(table.column(column)) != rows:
        check_equal_lengths(table, [column, next(name for name in (*_ARRAYS, *_PREDICTED) if name in table.columns)])
    names, index = table.names(column)
    return [names[i] for i in index]


def column_cells(table: FileColumns, column: str, rows: int) -> list[Any]:
    """Return the cells of a column as they are."""
    cells = table.column(column)
    if len(cells) != rows:
        check_equal_lengths(table, [column, next(name for name in (*_ARRAYS, *_PREDICTED) if name in table.columns)])
    if isinstance(cells, list):
        return cells
    return list(cells.tolist() if isinstance(cells, np.ndarray) else cells.to_list())  # a column of Polars
