"""The forms in which users give rows: one array per device, a dict by device name, a long frame.

A long frame has a row for each score: of pandas, polars or Arrow, a structured array, a dict of columns or a list of
records. `read_rows` finds out which form `data` has. A `RowReader` then reads scores and what belongs to their rows
(groups, labels, inputs, weights) from it, in the order of devices, and names device and row in errors. A frame is put
in the order of devices once, for all its columns. `table.Table` is what callers make of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.common.arrays import (
    as_array,
    as_input_rows,
    check_index,
    frame_columns,
    note_duplicates,
    note_large_integers,
    note_similar_names,
)
from conformesh.common.names import device_name, natural_order, unknown_name
from conformesh.files.memberships import Memberships
from conformesh.kernels.weighted_scores import clean_scores

# The roles of columns in a long frame, and the names they have unless `columns` says otherwise. The command line has
# an option for each of them, such as --device-column.
_ROLES = ("device", "score", "label", "group", "weight", "share", "id", "time")
# What the first argument of a public function is called, and what it holds; other arguments stand beside it.
_FIRST = {"data": "scores", "values": "values", "losses": "losses"}
_ARGUMENT = {"values": "data"}  # where the argument is not called what it holds


class ColumnRoles:
    """Which column of a long frame has which role.

    >>> ColumnRoles({"device": "hospital"}).device
    'hospital'
    """

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(
                f"columns must be a dict such as {{'device': 'hospital', 'score': 's'}}, got {type(given).__name__}"
            )
        for role in given or {}:
            if role not in _ROLES:
                raise ValueError(f"columns: {unknown_name('role', role, _ROLES)}")
        self.given = {role: str(name) for role, name in (given or {}).items()}
        self.device = self.given.get("device", "device")
        self.score = self.given.get("score", "score")
        self.id = self.given.get("id", "id")

    def argument(self, role: str, value: Any) -> Any:
        """Return what an argument says or, where it was left out, the column that was named for its role."""
        return self.given.get(role) if value is None else value


class LongFrame:
    """A long frame, whose rows are put in the order of devices once for all columns."""

    def __init__(self, frame: Any, columns: ColumnRoles, needed: Sequence[str]) -> None:
        self.frame, self.columns = frame, frame_columns(frame) or []
        wanted = [columns.device, *needed]
        if missing := [name for name in wanted if name not in self.columns]:
            role = {columns.device: "device", columns.score: "score"}.get(missing[0])
            spare = next((name for name in self.columns if name not in wanted), None)
            hint = f"name them with columns=, such as columns={{{role!r}: {spare!r}}}, " if role and spare else ""
            raise ValueError(
                f"a frame of scores must have the columns {', '.join(map(repr, wanted[:-1]))} and {wanted[-1]!r}, a "
                f"row for each score, got {', '.join(self.columns[:8])}; rename its columns, {hint}or give a dict of "
                "device -> scores"
            )
        owners = as_array(frame[columns.device], f"column {columns.device!r}")
        cells = owners.tolist()
        gaps = [i for i, owner in enumerate(cells) if owner is None or owner != owner]  # noqa: PLR0124 - NaN
        if gaps:
            raise ValueError(f"column {columns.device!r}: row {gaps[0]} names no device; drop this row or name it")
        names = np.array([device_name(owner) for owner in cells], dtype=str)
        self.order = np.argsort(names, kind="stable")  # rows of a device stay in the order of the user
        each, starts = np.unique(names[self.order], return_index=True)
        self.names = tuple(each.tolist())
        self.sizes = np.diff(np.append(starts, len(names)))
        if not self.names:
            raise ValueError("calibration needs at least one device, got a frame without rows")
        note_similar_names(self.names, "devices")
        if columns.id in self.columns:
            note_duplicates(as_array(frame[columns.id], f"column {columns.id!r}").tolist(), "the frame", names.tolist())

    def split(self, name: str, what: str) -> list[NDArray[Any]]:
        """Return a column as one array for each device."""
        if name not in self.columns:
            raise ValueError(f"{what}: {unknown_name('column', name, self.columns)}")
        values = as_array(self.frame[name], f"column {name!r}")
        if len(values) != len(self.order):
            raise ValueError(
                f"columns {what!r} and {name!r} must be equally long, got {len(self.order)} and {len(values)}"
            )
        return np.split(np.asarray(values[self.order]), np.cumsum(self.sizes)[:-1])


class FlatScores(NamedTuple):
    """Scores of all devices, one after the other.

    Attributes
    ----------
    sizes
        How many scores each device has.
    values
        The scores, (rows,), or (rows, 2) for the two sides of an interval.
    in_place
        Whether they may be sorted where they are, because nobody else uses the array.
    is_wide
        Whether they came as one array with a row for each device, which may have been meant the other way round.
    """

    sizes: Ints
    values: Floats
    in_place: bool = True
    is_wide: bool = False


class RowSource(Protocol):
    """Where columns come from: a frame, one array for each device, or a `Table`."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """The devices, where they have names."""

    @property
    def devices(self) -> int:
        """How many devices there are."""

    def column(self, given: Any, what: str, sizes: Ints) -> list[Any]:
        """Return what each device has of a further column, one entry for each of its rows."""

    def has_column(self, name: str) -> bool:
        """Return whether there is a column of this name."""


class FrameRows:
    """A long frame: columns are named."""

    def __init__(self, frame: LongFrame, needed: Sequence[str] = ()) -> None:
        self.frame, self.needed = frame, needed
        self.names, self.devices = frame.names, len(frame.names)

    def scores(self, who: Callable[[int], str], sides: bool) -> FlatScores:
        """Return the scores; `who` names a device in errors."""
        columns = [
            np.concatenate([clean_scores(own, who(k)) for k, own in enumerate(self.frame.split(name, name))])
            for name in self.needed
        ]
        return FlatScores(self.frame.sizes, np.stack(columns, axis=1) if sides else columns[0])

    def has_column(self, name: str) -> bool:
        """Return whether there is a column of this name."""
        return name in self.frame.columns

    def column(self, given: Any, what: str, sizes: Ints) -> list[Any]:
        """Return what each device has of a column, or of several that are features or groups."""
        if isinstance(given, str):
            return self.frame.split(given, what)
        if _are_names(given) and what in ("groups", "inputs"):
            return self._several(given, what)
        if isinstance(given, Mapping):
            return arrays_beside(given, what, self.names, self.devices)
        raise TypeError(
            f"{what} must be the name of a column, or a list of names, where scores are a frame, got "
            f"{type(given).__name__}; put them into a column of the frame"
        )

    def _several(self, given: Sequence[str], what: str) -> list[Any]:
        if strange := next((name for name in given if name not in self.frame.columns), None):
            raise ValueError(
                f"{what}: {unknown_name('column', strange, self.frame.columns)}; where scores are a frame, {what} are "
                "names of columns"
            )
        columns = [self.frame.split(name, what) for name in given]
        if what == "inputs":
            return [np.stack(own, axis=1) for own in zip(*columns, strict=True)]
        return [
            Memberships.of_columns(dict(zip(given, own, strict=True)), f"device {owner}")
            for owner, *own in zip(self.names, *columns, strict=True)
        ]


class ItemRows:
    """A long frame of losses, whose rows are items and lambdas: further columns have one value for each item."""

    def __init__(self, frame: FrameRows, items: list[NDArray[Any]]) -> None:
        self.frame, self.items = frame, items
        self.names, self.devices = frame.names, frame.devices

    def has_column(self, name: str) -> bool:
        """Return whether there is a column of this name."""
        return self.frame.has_column(name)

    def column(self, given: Any, what: str, sizes: Ints) -> list[Any]:
        """Return what each item has of a column, which must say the same in all rows of an item."""
        if not isinstance(given, str):
            raise TypeError(f"{what} must be the name of a column where losses are a frame, got {type(given).__name__}")
        each = []
        for name, items, own in zip(self.names, self.items, self.frame.column(given, what, sizes), strict=True):
            values = np.asarray(own)
            _, first, item = np.unique(items, return_index=True, return_inverse=True)
            if not (values == values[first][item]).all():
                wrong = items[int((values != values[first][item]).argmax())]
                raise ValueError(f"device {name}, item {wrong}: column {given!r} must say the same in all its rows")
            each.append(values[first])
        return each


class DeviceArrays:
    """One array for each device, by name or in the order of the network."""

    def __init__(self, data: Any, what: str) -> None:
        given = as_devices(data, what)
        self.names = tuple(given) if isinstance(given, dict) else None
        self.arrays: Any = [*given.values()] if isinstance(given, dict) else given
        self.devices = len(self.arrays)

    def scores(self, who: Callable[[int], str], sides: bool) -> FlatScores:
        """Return the scores; `who` names a device in errors."""
        arrays = self.arrays
        if np.ma.isMaskedArray(arrays):  # row by row, which refuses masked entries
            self.arrays = arrays = [*arrays]
        if len(arrays) == 0:
            raise ValueError("calibration needs at least one device, got none")
        is_table = isinstance(arrays, np.ndarray) and arrays.ndim == 2 and arrays.dtype.kind in "fiu"
        if is_table and not sides:  # a row for each device: a table of a million rows stays one array
            values = _clean_rows(arrays, who)
            in_place = not np.may_share_memory(values, arrays)
            return FlatScores(np.full(len(arrays), arrays.shape[1]), values, in_place, is_wide=True)
        cleaned = [clean_scores(own, who(k), sides=sides) for k, own in enumerate(arrays)]
        return FlatScores(np.array([len(own) for own in cleaned], dtype=np.int64), np.concatenate(cleaned))

    def has_column(self, name: str) -> bool:
        """Return False: arrays have no columns with names."""
        return False

    def column(self, given: Any, what: str, sizes: Ints) -> list[Any]:
        """Return what each device has of an argument in the same form."""
        each = arrays_beside(given, what, self.names, self.devices)
        for k, (own, other) in enumerate(zip(self.arrays, each, strict=True)):
            name = k if self.names is None else self.names[k]
            check_index(own, other, f"{what}[{name!r}]", f"scores[{name!r}]")
        return each


def _clean_rows(table: NDArray[Any], who: Callable[[int], str]) -> Floats:
    """Return the scores of a table with a row for each device."""
    note_large_integers(table, "scores")
    values = np.asarray(table.reshape(-1), dtype=np.float64)
    if np.isnan(values).any():
        first = int(np.isnan(values).argmax()) // table.shape[1]
        clean_scores(table[first], who(first))
    return values


class RowReader:
    """Reads the further columns of one `data` argument, checked against the number of rows of each device.

    Attributes
    ----------
    source
        What was given.
    sizes
        How many rows each device has.
    ids
        What devices may be called in errors where `data` has only their order.
    suffix
        What errors add to the name of a device.
    """

    def __init__(self, source: RowSource, sizes: Ints, ids: Sequence[Sequence[str]] = (), suffix: str = "") -> None:
        self.source, self.sizes, self.ids, self.suffix = source, sizes, ids, suffix

    def who(self, k: int) -> str:
        """Return what a device is called in errors."""
        if self.source.names is not None:
            return f"device {self.source.names[k]}{self.suffix}"
        called = next((each for each in self.ids if len(each) == self.source.devices), None)
        if called is None and self.ids:  # too many or too few: nobody knows whose array this is
            return f"array {k}{self.suffix}"
        return f"device {k if called is None else called[k]}{self.suffix}"

    def groups(self, given: Any) -> Memberships:
        """Return the groups of every row."""
        each = [Memberships.of(own, self.who(k)) for k, own in enumerate(self._column(given, "groups"))]
        for k, own in enumerate(each):
            self._check_length(k, len(own), "group labels")
        return Memberships.concatenate(each)

    def labels(self, given: Any) -> NDArray[Any]:
        """Return the class of every row as text."""
        each = []
        for k, own in enumerate(self._column(given, "labels")):
            values = as_array(own, f"{self.who(k)}, labels")
            refuse_missing_labels(values, self.who(k))
            self._check_length(k, len(values), "labels")
            each.append(values.astype(str))
        return np.concatenate(each) if each else np.empty(0, dtype=str)

    def inputs(self, given: Any) -> Floats:
        """Return the features of every row."""
        each = [as_input_rows(own, f"{self.who(k)}: inputs") for k, own in enumerate(self._column(given, "inputs"))]
        for k, own in enumerate(each):
            self._check_length(k, len(own), "inputs")
        some = [own for own in each if len(own)]
        if odd := next((k for k, own in enumerate(each) if len(own) and own.shape[1] != some[0].shape[1]), None):
            raise ValueError(
                f"{self.who(odd)}: inputs must have as many features as on other devices, {some[0].shape[1]}, got "
                f"{each[odd].shape[1]}"
            )
        return np.concatenate(some) if some else np.empty((0, 1))

    def weights(self, given: Any) -> Floats:
        """Return the weight of every row; whether it is within the bound is checked by whoever knows that."""
        function: Callable[[Any], Any] | None = None
        if isinstance(given, tuple) and len(given) == 2 and callable(given[0]):
            function, given = given
        what = "weights" if function is None else "inputs"
        each = []
        for k, own in enumerate(self._column(given, "weight" if function is None else "inputs")):
            if not np.ndim(own):
                raise ValueError(f"{self.who(k)} has {self.sizes[k]} scores but one value; one each is needed")
            values = as_array(own, f"{self.who(k)}, {what}")
            self._check_length(k, len(values), what)
            if function is not None and len(values):
                made = as_array(function(own), f"{self.who(k)}, weights")
                if made.shape != (len(values),):
                    raise ValueError(
                        f"{self.who(k)}: the weight function must return one weight for each of {len(values)} inputs, "
                        f"got shape {made.shape}"
                    )
                values = made
            each.append(_as_weights(values, self.who(k)))
        return np.concatenate(each) if each else np.empty(0)

    def shares(self, column: str) -> dict[str, Any]:
        """Return the one share of every device, from a column that repeats it in each of its rows."""
        each = self._column(column, "mixture")
        return device_shares(dict(zip(self.source.names or (), each, strict=True)), f"column {column!r}")

    def _column(self, given: Any, what: str) -> list[Any]:
        return self.source.column(given, what, self.sizes)

    def _check_length(self, k: int, count: int, what: str) -> None:
        if count != self.sizes[k]:
            raise ValueError(f"{self.who(k)} has {self.sizes[k]} scores but {count} {what}; one each is needed")


def read_rows(
    data: Any, columns: ColumnRoles, needed: Sequence[str], what: str, ids: Sequence[Sequence[str]]
) -> tuple[RowReader, FlatScores]:
    """Return scores in whatever form they have, and a reader of what belongs to their rows.

    `needed` are the columns of scores in a long frame: one, or two for the sides of an interval.
    """
    data = as_frame(data, columns, needed[0], what)
    is_frame = frame_columns(data) is not None
    source: Any = FrameRows(LongFrame(data, columns, needed), needed) if is_frame else DeviceArrays(data, what)
    reader = RowReader(source, np.zeros(0, np.int64), ids, ", test scores" if what == "test_scores" else "")
    scores: FlatScores = source.scores(reader.who, len(needed) == 2)
    reader.sizes = scores.sizes
    return reader, scores


PREDICTION, SCALE = "prediction", "scale"  # columns of outputs of a regression model in a long frame


def read_labelled_outputs(
    data: Any,
    columns: ColumnRoles,
    labels: Any,
    task: str,
    classes: Sequence[Any] | None,
    used: Sequence[str],
    ids: Sequence[Sequence[str]],
) -> tuple[RowReader, list[tuple[Any, Any]], tuple[str, ...] | None]:
    """Return outputs and labels of each device, a reader of what belongs to their rows, and the names of the classes.

    `used` are columns of a frame that are no classes, such as groups. Classes are named by a frame only.
    """
    label = labels if isinstance(labels, str) else columns.given.get("label", "label")
    data = as_frame(data, columns, label, "data")
    known = frame_columns(data)
    if known is not None:
        roles = {"label": label, "device": columns.device}
        if missing := [role for role, name in roles.items() if name not in known]:
            raise ValueError(
                f"a frame of outputs must have the column {roles[missing[0]]!r} with the {missing[0]} of each row, got "
                f"{', '.join(known[:8])}; name it with columns={{{missing[0]!r}: ...}}"
            )
        taken = {columns.device, label, *columns.given.values(), columns.id, *used}
        if task == "regression":
            wanted = [PREDICTION, *([SCALE] if SCALE in known else [])]
        else:
            wanted = [*map(str, classes)] if classes is not None else [name for name in known if name not in taken]
        frame = LongFrame(data, columns, (label, *wanted))
        each = [frame.split(name, name) for name in wanted]
        outputs = [
            own[0] if len(own) == 1 and task == "regression" else np.stack(own, axis=1)
            for own in zip(*each, strict=True)
        ]
        pairs = [*zip(outputs, frame.split(label, label), strict=True)]
        return RowReader(FrameRows(frame), frame.sizes, ids), pairs, None if task == "regression" else tuple(wanted)
    held = as_devices(data, "data")
    names = tuple(held) if isinstance(held, dict) else None
    entries = [*held.values()] if isinstance(held, dict) else [*held]
    if not entries:
        raise ValueError("calibration needs at least one device, got none")
    if labels is not None:
        if isinstance(labels, str):
            raise ValueError(
                f"labels={labels!r} names a column, but data is not a frame; give the labels of every device"
            )
        pairs = [*zip(entries, arrays_beside(labels, "labels", names, len(entries)), strict=True)]
    else:
        for k, own in enumerate(entries):
            if not (isinstance(own, tuple | list) and len(own) == 2):
                raise ValueError(
                    f"device {k if names is None else names[k]} must have a pair (outputs, labels) for adapted scores, "
                    f"got {type(own).__name__}; add the labels, or give them with labels="
                )
        pairs = [(own[0], own[1]) for own in entries]
    each_label = [as_array(own, "labels") for _, own in pairs]
    source = DeviceArrays(each_label if names is None else dict(zip(names, each_label, strict=True)), "data")
    reader = RowReader(source, np.array([len(own) for own in each_label], dtype=np.int64), ids)
    for k, (table, _) in enumerate(pairs):
        many, wanted_rows = len(np.asarray(table)), len(each_label[k])
        if many != wanted_rows:
            raise ValueError(f"{reader.who(k)} has {many} rows of outputs but {wanted_rows} labels; one each is needed")
    named = None if task == "regression" else frame_columns(entries[0] if labels is not None else entries[0][0])
    return reader, pairs, None if named is None else tuple(named)


def refuse_missing_labels(labels: NDArray[Any], who: str) -> None:
    """Refuse labels of which some are missing; `who` names the device."""
    cells = labels.tolist()
    gaps = [i for i, label in enumerate(cells) if label is None or label != label]  # noqa: PLR0124 - NaN
    if gaps:
        raise ValueError(f"{who}: label {gaps[0]} is missing ({cells[gaps[0]]}); drop these rows or name their class")


def _are_names(given: Any) -> bool:
    """Return whether an argument is a list of names of columns."""
    return isinstance(given, list | tuple) and len(given) > 0 and all(isinstance(name, str) for name in given)


def arrays_beside(given: Any, what: str, names: tuple[str, ...] | None, devices: int) -> list[Any]:
    """Return what each device has of an argument, which must have the form of the scores."""
    if isinstance(given, str) or (what == "inputs" and _are_names(given)):
        raise TypeError(
            f"{what}={given!r} names a column, so scores must be a frame with it, got one array per device; give "
            "one array per device instead"
        )
    held = as_devices(given, what)
    if isinstance(held, dict) != (names is not None):
        raise TypeError(f"scores and {what} must both go by device name or both by order, got one of each")
    plural = "weights" if what == "weight" else what
    each = order_by_id(names or (), held, plural) if isinstance(held, dict) else [*held]
    if len(each) != devices:
        raise ValueError(
            f"scores came for {devices} devices but {plural} for {len(each)}; pass one array per device (empty where a "
            "device has none)"
        )
    return each


def _as_weights(values: NDArray[Any], who: str) -> Floats:
    """Return the weights of one device as numbers."""
    if not len(values):
        return np.empty(0)
    try:
        weights = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{who}: weights must be numbers, got {str(values[:1])[:40]}") from None
    if weights.ndim != 1:
        raise ValueError(f"{who}: weights must be one-dimensional, got shape {weights.shape}")
    return weights


def order_by_id(names: Sequence[str], held: Mapping[str, Any], what: str) -> list[Any]:
    """Return what devices hold in the order of their names."""
    place = places_by_id([*held], names, what)
    values = [*held.values()]
    return [values[place[name]] for name in names]


def places_by_id(given: Sequence[str], wanted: Sequence[str], what: str) -> dict[str, int]:
    """Return where each wanted device stands among those given; both must be the same devices."""
    if strange := natural_order({*given} - {*wanted}):
        known = ", ".join(wanted[:8]) + (", ..." if len(wanted) > 8 else "")
        raise ValueError(f"{what} are given for device {strange[0]!r}, which the network does not have: {known}")
    if missing := natural_order({*wanted} - {*given}):
        raise ValueError(
            f"no {what} are given for device {missing[0]!r} of the network; give an empty list if it has none"
        )
    return {name: k for k, name in enumerate(given)}


def as_devices(data: Any, what: str) -> NDArray[Any] | list[Any] | dict[str, Any]:
    """Return one entry for each device: a table with a row each, a list, or a dict by name."""
    if isinstance(data, list | tuple):
        return _by_device([*data], what)
    if isinstance(data, Mapping):
        named = {device_name(name): own for name, own in data.items()}
        if len(named) < len(data):
            raise ValueError("two devices of the dict have the same name once written as text; rename one of them")
        note_similar_names(named, "devices")
        return named
    if isinstance(data, str | bytes) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise TypeError(f"{_allowed(what)}, got {type(data).__name__} {str(data)[:40]!r}")
    return data if isinstance(data, np.ndarray) and data.ndim > 1 else _by_device([*data], what)


def _allowed(what: str) -> str:
    """Return the forms in which an argument may be given."""
    if what in _FIRST:
        return (
            f"{_ARGUMENT.get(what, what)} must be one array of {_FIRST[what]} per device, a dict by device name, or a "
            "frame with the columns 'device' and 'score'"
        )
    return f"{what} must be one array per device in the order of the scores, or a dict by device name"


def as_frame(data: Any, columns: ColumnRoles, column: str, what: str) -> Any:
    """Return columns as a frame, what is grouped or labelled by device as a dict, and the rest as it is."""
    if isinstance(data, Mapping) and {columns.device, column} <= {*data}:  # a frame as a dict of columns
        return _Columns(data)
    if isinstance(data, list | tuple) and data and all(isinstance(row, Mapping) for row in data):
        return _Columns({name: [row.get(name) for row in data] for name in data[0]})
    if hasattr(data, "collect") and hasattr(data, "explain"):
        raise TypeError(f"{what} is a lazy frame, which holds no scores yet; pass frame.collect()")
    if hasattr(data, "ngroups"):  # a pandas frame or column, grouped
        return {name: part if frame_columns(part) is None else part[column] for name, part in data}
    if hasattr(data, "nnz") and hasattr(data, "toarray"):
        raise TypeError(
            f"{what} is a sparse matrix, which does not say which of its zeros are scores; pass matrix.toarray(), a "
            "row for each device, or one array per device"
        )
    if isinstance(data, Set):
        raise TypeError(f"{what} is a set, which has no order; give a dict of device -> scores")
    if hasattr(data, "coords") and hasattr(data, "dims"):  # of xarray
        names = getattr(data.coords.get(data.dims[0]), "values", None) if data.dims else None
        rows = as_array(data, what)
        return rows if names is None else dict(zip(np.asarray(names).tolist(), rows, strict=True))
    if hasattr(data, "index") and hasattr(data, "groupby") and frame_columns(data) is None:  # a pandas column
        return _of_column(data, columns, what)
    return data


def _of_column(series: Any, columns: ColumnRoles, what: str) -> dict[Any, Any]:
    """Return the scores of a pandas column whose index names the device of each, or of each array in it."""
    values = as_array(series, what)
    if type(series.index).__name__ == "RangeIndex" and values.dtype != np.dtype(object):
        raise TypeError(
            f"{what} is one column of numbers, whose index does not name their devices; give a frame with the columns "
            f"{columns.device!r} and {columns.score!r}, or set_index({columns.device!r})"
        )
    if values.dtype == np.dtype(object) and series.index.is_unique:
        return dict(series.items())
    return dict([*series.groupby(level=0)])


def _by_device(devices: list[Any], what: str) -> list[Any]:
    """Return one array for each device, refusing a flat list of values, which does not say whose they are."""
    flat = devices and all(
        isinstance(own, int | float | str | np.generic) or getattr(own, "shape", None) == () for own in devices
    )
    if flat and what not in _FIRST:
        raise ValueError(
            f"{_allowed(what)}, got {len(devices)} values in a row, which do not say whose they are; split them as the "
            f"scores are split, or give scores in a frame and name a column: {what}='...'"
        )
    if flat:
        raise ValueError(
            f"{_ARGUMENT.get(what, what)} must be one array of {_FIRST[what]} per device, got {len(devices)} numbers "
            f"in a row, which do not say whose they are; for a single device pass [{_FIRST[what]}], else a frame with "
            "the columns 'device' and 'score'"
        )
    return devices


class _Columns:
    """A frame made of columns."""

    def __init__(self, held: Mapping[Any, Any]) -> None:
        self.held, self.columns = held, [*held]

    def __getitem__(self, name: str) -> Any:
        return self.held[name]


def device_shares(held: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the one share of every device, from a column that repeats it in each of its rows."""
    shares = {}
    for name, own in held.items():
        each = {*np.asarray(own).tolist()}
        if len(each) != 1:
            raise ValueError(f"{what}: device {name} must have the same share in all its rows, got {sorted(each)[:3]}")
        shares[name] = each.pop()
    return shares
