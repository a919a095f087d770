"""Rows as users have them: one table with a device for each row, or a table for each device.

`EstimatorRows` is what both become: tables that a model predicts from in one call each, and for every row its device,
label, groups, weight and inputs. `EstimatorRows.table` makes a `Table` of them once the scores are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing, column_or_1d, indexable

from conformesh.common.array_types import Floats
from conformesh.common.arrays import as_array, as_input_rows, check_index, frame_columns
from conformesh.common.names import device_name, natural_order, unknown_name
from conformesh.files.memberships import Memberships
from conformesh.table import Table

ONLY_DEVICE = "0"  # the device of rows that name none
_Names = NDArray[np.str_]


@dataclass(frozen=True, eq=False)
class EstimatorRows:
    """Rows of devices, in the order in which they were given.

    Attributes
    ----------
    tables
        What a model predicts from, in one or several pieces.
    owners
        The name of each row's device; None where rows name none.
    names
        All devices, with or without rows.
    labels
        The label of each row, or a row of labels each; None for rows to predict.
    groups, group_column
        The groups of each row, and the column of the frame that names them.
    weight
        The weight of each row, or a function of the inputs.
    inputs
        The features of each row as numbers.
    """

    tables: list[Any]
    owners: _Names | None
    names: tuple[str, ...]
    labels: NDArray[Any] | None = None
    groups: Memberships | None = None
    group_column: str = ""
    weight: Floats | Callable[[Any], Any] | None = None
    inputs: Floats | None = None

    @classmethod
    def of(
        cls,
        who: str,
        X: Any,
        y: Any = None,
        *,
        devices: Any = None,
        groups: Any = None,
        weight: Any = None,
        inputs: Any = None,
        needs_inputs: bool = False,
        is_labelled: bool = True,
        is_multilabel: bool = False,
        features: Iterable[str] | None = (),
    ) -> EstimatorRows:
        """Read what a caller gave; columns of a frame that are named are no features, except for these `features`.

        With `features` None all columns but that of the devices stay. Rows by device have their groups, weights and
        inputs by device, too. With `needs_inputs` the features are the inputs where none were given.
        """
        pieces = estimator_rows_by_device(who, X, y, is_multilabel) if is_labelled else None
        if pieces is not None and devices is not None:
            raise ValueError(f"{who}: rows came by device already, so devices= must be left out")
        names = (ONLY_DEVICE,) if pieces is None else tuple(pieces)
        given = {"devices": devices, "groups": groups, "sample_weight": weight, "inputs": inputs}
        read: list[dict[str, Any]] = []
        sizes = []
        for k, name in enumerate(names):
            table, truth = (X, y) if pieces is None else pieces[name]
            sizes.append(count_estimator_rows(table))
            if pieces is not None and not sizes[-1]:  # models refuse tables without rows
                continue
            of = who if pieces is None else f"{who}: device {name}"
            columns = given if pieces is None else {what: _of_device(given[what], what, names, k) for what in given}
            read.append(_read(of, table, columns, features))
            if is_labelled:
                check_index(table, truth, "y", "X")
                read[-1]["y"] = estimator_row_labels(of, truth, sizes[-1], is_multilabel)
            if needs_inputs and inputs is None:
                read[-1]["inputs"] = as_input_rows(read[-1]["X"], f"{of}: inputs")
        if not read:
            raise ValueError(f"{who} needs rows of at least one device, got {len(names)} devices without any")
        owners = read[0]["devices"] if pieces is None else np.repeat([*names], sizes)
        return cls(
            [one["X"] for one in read],
            owners,
            natural_order(names if pieces is not None or owners is None else {*owners.tolist()}),
            np.concatenate([one["y"] for one in read]) if is_labelled else None,
            None if groups is None else Memberships.concatenate([one["groups"] for one in read]),
            groups if isinstance(groups, str) else "",
            weight if weight is None or callable(weight) else np.concatenate([one["sample_weight"] for one in read]),
            None if read[0]["inputs"] is None else np.concatenate([one["inputs"] for one in read]),
        )

    def __len__(self) -> int:
        return sum(map(count_estimator_rows, self.tables))

    def take(self, rows: NDArray[np.intp]) -> EstimatorRows:
        """Return some rows of a single table."""
        count = len(self)
        columns = (self.owners, self.labels)
        owners, labels = (None if column is None else column[rows] for column in columns)
        groups = None if self.groups is None else self.groups.take(rows)
        tables = [take_estimator_rows(table, rows, count) for table in self.tables]
        return EstimatorRows(tables, owners, self.names, labels, groups, self.group_column)

    def table(self, names: Sequence[str], **columns: Any) -> Table:
        """Return the rows grouped by device, with scores or losses; `names` are those of all devices."""
        return Table.from_rows(
            np.full(len(self), names[0]) if self.owners is None else self.owners,
            names=names,
            **{
                "groups": self.groups,
                "group_column": self.group_column,
                "weight": None if callable(self.weight) else self.weight,
                "inputs": self.inputs,
                **columns,
            },
        )


def _read(who: str, X: Any, given: Mapping[str, Any], features: Iterable[str] | None) -> dict[str, Any]:
    """Return what is known of the rows of one table, and the table without the columns that are no features."""
    count, read, named = count_estimator_rows(X), dict[str, Any](), set[str]()
    for what, value in given.items():
        values = value
        if names := _column_names(who, X, value, what):
            values = X[names[0]] if isinstance(value, str) else X[[c for c in X.columns if str(c) in names]]
            if what == "devices" or (what != "inputs" and features is not None):
                named |= {*names}
        read[what] = None if value is None else _READERS[what](who, X, values, count)
    drop = named - {*(features or ())}
    read["X"] = X[[column for column in X.columns if str(column) not in drop]] if drop else X
    return read


def _column_names(who: str, X: Any, given: Any, what: str) -> list[str]:
    """Return the columns of the frame X that an argument names; none where it has a value for each row."""
    columns = frame_columns(X)
    if isinstance(given, str):
        if columns is None:
            raise TypeError(
                f"{who}: {what}={given!r} names a column, so X must be a frame with it, got {type(X).__name__}; give "
                "one value for each row instead"
            )
        if given not in columns:
            raise ValueError(f"{who}: {what}: {unknown_name('column', given, columns)}")
        return [given]
    several = isinstance(given, list | tuple) and len(given) > 0 and all(isinstance(name, str) for name in given)
    if several and what in ("groups", "inputs") and columns is not None and {*given} <= {*columns}:
        return [*given]
    return []


def _read_devices(who: str, X: Any, given: Any, count: int) -> _Names:
    check_index(X, given, "devices", "X")
    owners = as_array(given, f"{who}: devices")
    if owners.shape != (count,):
        raise ValueError(f"{who} needs one device for each of {count} rows, got devices of shape {owners.shape}")
    values = owners.tolist()
    gap = next((i for i, owner in enumerate(values) if owner is None or owner != owner), None)  # noqa: PLR0124 - NaN
    if gap is not None:
        raise ValueError(f"{who}: row {gap} names no device ({values[gap]}); drop this row or name its device")
    return np.array([device_name(owner) for owner in values], dtype=str)


def _read_groups(who: str, X: Any, given: Any, count: int) -> Memberships:
    check_index(X, given, "groups", "X")
    groups = Memberships.of(given, who)
    if len(groups) != count:
        raise ValueError(f"{who} needs the groups of each of {count} rows, got groups of {len(groups)}")
    return groups


def _read_weight(who: str, X: Any, given: Any, count: int) -> Floats | None:
    if callable(given):
        return None
    check_index(X, given, "sample_weight", "X")
    weight = as_array(given, f"{who}: sample_weight")
    if weight.shape != (count,) or weight.dtype.kind not in "fiu":
        raise ValueError(
            f"{who} needs sample_weight to be a number for each of {count} rows, got {weight.dtype} of shape "
            f"{weight.shape}"
        )
    return np.asarray(weight, dtype=np.float64)


def _read_inputs(who: str, X: Any, given: Any, count: int) -> Floats:
    check_index(X, given, "inputs", "X")
    inputs = as_input_rows(given, f"{who}: inputs")
    if len(inputs) != count:
        raise ValueError(f"{who} needs the inputs of each of {count} rows, got {len(inputs)}")
    return inputs


_READERS: dict[str, Callable[[str, Any, Any, int], Any]] = {
    "devices": _read_devices,
    "groups": _read_groups,
    "sample_weight": _read_weight,
    "inputs": _read_inputs,
}


def _of_device(given: Any, what: str, names: Sequence[str], k: int) -> Any:
    """Return what one device has of an argument that comes by device, as the rows do, or names a column."""
    if given is None or callable(given) or isinstance(given, str):
        return given
    if isinstance(given, Mapping) and {*map(device_name, given)} == {*names}:
        return next(own for name, own in given.items() if device_name(name) == names[k])
    if isinstance(given, list | tuple) and len(given) == len(names) and not isinstance(given[0], str):
        return given[k]
    raise ValueError(
        f"{what} must come by device as the rows do, with an entry for each of {len(names)} devices, got "
        f"{type(given).__name__} of length {len(given)}"
    )


def estimator_row_labels(who: str, y: Any, rows: int | None = None, is_multilabel: bool = False) -> NDArray[Any]:
    """Return the labels of rows: one each or, where several may be true, a row of booleans each."""
    if y is None:
        raise ValueError(f"{who} requires y to be passed, but the target y is None")
    labels = as_array(y, f"{who}: y")
    if (len(labels) or labels.ndim > 1) and not (is_multilabel and labels.ndim > 1 and labels.shape[1] > 1):
        labels = column_or_1d(labels, warn=True)
    if rows is not None and len(labels) != rows:
        raise ValueError(f"{who} needs one label for each row, got {rows} rows and {len(labels)} labels")
    return labels


def count_estimator_rows(X: Any) -> int:
    """Return how many rows a table has: an array, a sparse matrix, a frame or a list."""
    if isinstance(X, Sequence):
        return len(X)
    shape: tuple[int, ...] = X.shape if hasattr(X, "shape") else np.asarray(X).shape
    if not shape:
        raise TypeError(f"X must be a table with a row for each example, got {type(X).__name__} {X!r:.40}")
    return int(shape[0])


def split_training_rows(
    owners: _Names, share: Any, rng: np.random.RandomState
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows that train and those that calibrate: of every device the same share, drawn, in their order.

    >>> owners = np.array(["a"] * 4 + ["b"] * 8)
    >>> split_training_rows(owners, 0.25, np.random.RandomState(0))[1].tolist()
    [2, 4, 6]
    """
    if isinstance(share, bool) or not isinstance(share, float | np.floating) or not 0 < share < 1:
        raise ValueError(
            "calibration_size must be the share of each device's rows that calibrate, strictly between 0 and 1, or "
            f"None, got {share!r}"
        )
    kept = np.zeros(len(owners), dtype=bool)
    for name in natural_order({*owners.tolist()}):
        local = np.flatnonzero(owners == name)
        kept[rng.permutation(local)[: round(share * len(local))]] = True
    return np.flatnonzero(~kept), np.flatnonzero(kept)


def take_estimator_rows(values: Any, rows: NDArray[np.intp], of: int) -> Any:
    """Return these rows of an array, a frame or a list with one entry for each of so many rows; else what it is."""
    if values is None or np.isscalar(values) or count_estimator_rows(values) != of:
        return values
    return _safe_indexing(indexable(values)[0], rows)


def estimator_rows_by_device(
    who: str, X: Any, y: Any, is_multilabel: bool = False
) -> dict[str, tuple[Any, Any]] | None:
    """Return (X, y) by device name where they were given by device, else None."""
    if isinstance(X, Mapping) and not hasattr(X, "shape"):  # a sparse matrix of keys is a dict
        if y is not None and (not isinstance(y, Mapping) or {*X} != {*y}):
            got = f"{len(y)} other devices" if isinstance(y, Mapping) else type(y).__name__
            raise ValueError(f"{who}: X is a dict by device, so y must be one of the same devices, got {got}")
        items = {device_name(name): own if y is None else (own, y[name]) for name, own in X.items()}
    elif isinstance(X, list | tuple) and y is None and len(X) and all(isinstance(own, tuple) for own in X):
        items = {str(k): own for k, own in enumerate(X)}
    elif isinstance(X, list | tuple) and isinstance(y, list | tuple) and len(y) and np.ndim(y[0]) >= 1:
        if is_multilabel and np.ndim(y[0]) == np.ndim(X[0]) == 1:
            return None  # a list of rows, each with its row of labels
        if len(X) != len(y):
            raise ValueError(f"{who}: X and y must have a table and labels per device, got {len(X)} and {len(y)}")
        items = {str(k): pair for k, pair in enumerate(zip(X, y, strict=True))}
    else:
        return None
    for name, own in items.items():
        if not isinstance(own, tuple) or len(own) != 2:
            raise ValueError(
                f"{who}: device {name} must have a pair (X, y), got {type(own).__name__} {str(own)[:40]!r}"
            )
    return items
