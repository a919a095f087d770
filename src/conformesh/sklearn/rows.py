"""Rows as people have them: one table with a device for each row, or a table for each device.

`Rows` is what both become: tables for which a model is asked in one call each, and for every row its label and device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing, column_or_1d, indexable

from conformesh.io.arrays import as_array, check_index, columns_of
from conformesh.names import device_name, natural_order, unknown

ALONE = "0"  # the device of rows that name none
Names = NDArray[np.str_]


@dataclass(frozen=True, eq=False)
class Rows:
    """Labelled rows of devices.

    Attributes
    ----------
    tables
        What a model predicts from, in one or several pieces, in the order of labels and owners.
    labels
        The label of every row.
    owners
        The name of its device.
    devices
        All devices, with or without rows.
    named
        Whether the devices were named, by row or by table; otherwise all rows are of one device.
    """

    tables: list[Any]
    labels: NDArray[Any]
    owners: Names
    devices: tuple[str, ...]
    named: bool = True

    @classmethod
    def of(cls, who: str, X: Any, y: Any, devices: Any = None, features: Iterable[str] = ()) -> Rows:
        """Read what a caller gave; `features` are columns of a frame that the model knows and keeps.

        A table with labels and, perhaps, `devices`: one name per row, or the name of a column. Or a table per device: a
        dict of (X, y), two dicts, a list of (X, y), or two lists.
        """
        parts = parts_of(who, X, y)
        if parts is None:
            check_index(X, y, "y", "X")
            X, owners = owners_of(who, X, devices, features)
            labels = labels_of(who, y, rows_in(X))
            if owners is None:
                return cls([X], labels, np.full(len(labels), ALONE), (ALONE,), named=False)
            return cls([X], labels, owners, natural_order({*owners.tolist()}))
        if devices is not None:
            raise ValueError(f"{who}: rows came by device already, so devices= must be left out")
        for own, truth in parts.values():
            check_index(own, truth, "y", "X")
        each = {name: labels_of(f"{who}: device {name}", y, rows_in(X)) for name, (X, y) in parts.items()}
        filled = [name for name in parts if len(each[name])]
        if not filled:
            raise ValueError(f"{who} needs rows of at least one device, got {len(parts)} devices without any")
        return cls(
            [parts[name][0] for name in filled],
            np.concatenate([each[name] for name in filled]),
            np.repeat([*parts], [len(each[name]) for name in parts]),
            natural_order(parts),
        )

    def by_device(self, values: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return what every device has of one value per row, in the order of rows; nothing for a device without any."""
        order = np.argsort(self.owners, kind="stable")
        each, starts = np.unique(self.owners[order], return_index=True)
        parts = np.split(values[order], starts[1:])
        found = {str(name): part for name, part in zip(each, parts, strict=True)}
        return {name: found.get(name, values[:0]) for name in self.devices}


def owners_of(who: str, X: Any, devices: Any, features: Iterable[str] = ()) -> tuple[Any, Names | None]:
    """Return X and the device of every row, None where none are named.

    A column that names devices is taken out of the frame, unless it is one of the model's `features`.
    """
    if devices is None:
        return X, None
    if isinstance(devices, str):
        columns = columns_of(X)
        if columns is None:
            raise TypeError(
                f"{who}: devices={devices!r} names a column, so X must be a frame with it, got {type(X).__name__}; "
                "give the device of every row instead"
            )
        if devices not in columns:
            raise ValueError(f"{who}: {unknown('column', devices, columns)}")
        named, devices = devices, X[devices]
        X = X if named in features else X[[column for column in X.columns if str(column) != named]]
    check_index(X, devices, "devices", "X")
    owners = as_array(devices, f"{who}: devices")
    if owners.shape != (rows_in(X),):
        raise ValueError(f"{who} needs one device for each of {rows_in(X)} rows, got devices of shape {owners.shape}")
    values = owners.tolist()
    gap = next((i for i, owner in enumerate(values) if owner is None or owner != owner), None)  # noqa: PLR0124 - NaN
    if gap is not None:
        raise ValueError(f"{who}: row {gap} names no device ({values[gap]}); drop this row or name its device")
    return X, np.array([device_name(owner) for owner in values], dtype=str)


def labels_of(who: str, y: Any, rows: int | None = None) -> NDArray[Any]:
    """Return labels as a list of them, one for each of so many rows."""
    if y is None:
        raise ValueError(f"{who} requires y to be passed, but the target y is None")
    labels = as_array(y, f"{who}: y")
    if len(labels) or labels.ndim > 1:
        labels = column_or_1d(labels, warn=True)
    if rows is not None and len(labels) != rows:
        raise ValueError(f"{who} needs one label for each row, got {rows} rows and {len(labels)} labels")
    return labels


def rows_in(X: Any) -> int:
    """Return how many rows a table has: an array, a sparse matrix, a frame or a list."""
    if isinstance(X, Sequence):
        return len(X)
    shape: tuple[int, ...] = X.shape if hasattr(X, "shape") else np.asarray(X).shape
    if not shape:
        raise TypeError(f"X must be a table with a row for each example, got {type(X).__name__} {X!r:.40}")
    return int(shape[0])


def held_back(owners: Names, share: Any, rng: np.random.RandomState) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows that train and those that calibrate: of every device the same share, drawn, in their order.

    >>> owners = np.array(["a"] * 4 + ["b"] * 8)
    >>> held_back(owners, 0.25, np.random.RandomState(0))[1].tolist()
    [2, 4, 6]
    """
    if isinstance(share, bool) or not isinstance(share, float | np.floating) or not 0 < share < 1:
        raise ValueError(
            "calibration_size must be the share of each device's rows that calibrate, strictly between 0 and 1, or "
            f"None, got {share!r}"
        )
    kept = np.zeros(len(owners), dtype=bool)
    for name in natural_order({*owners.tolist()}):
        mine = np.flatnonzero(owners == name)
        kept[rng.permutation(mine)[: round(share * len(mine))]] = True
    return np.flatnonzero(~kept), np.flatnonzero(kept)


def taken(values: Any, rows: NDArray[np.intp], of: int) -> Any:
    """Return these rows of an array, a frame or a list with one entry for each of so many rows; else what it is."""
    if values is None or np.isscalar(values) or rows_in(values) != of:
        return values
    return _safe_indexing(indexable(values)[0], rows)


def parts_of(who: str, X: Any, y: Any) -> dict[str, tuple[Any, Any]] | None:
    """Return (X, y) by device name where they were given by device, else None."""
    if isinstance(X, Mapping) and not hasattr(X, "shape"):  # a sparse matrix of keys is a dict
        if y is not None and (not isinstance(y, Mapping) or {*X} != {*y}):
            got = f"{len(y)} other devices" if isinstance(y, Mapping) else type(y).__name__
            raise ValueError(f"{who}: X is a dict by device, so y must be one of the same devices, got {got}")
        items = {device_name(name): own if y is None else (own, y[name]) for name, own in X.items()}
    elif isinstance(X, list | tuple) and y is None and len(X) and all(isinstance(own, tuple) for own in X):
        items = {str(k): own for k, own in enumerate(X)}
    elif isinstance(X, list | tuple) and isinstance(y, list | tuple) and len(y) and np.ndim(y[0]) == 1:
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
