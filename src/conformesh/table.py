"""Table: what the devices hold, in one form: rows grouped by device, and for each row its score, groups, weight, ...

Every function that calibrates takes the same: arrays in the order of the network's devices, a table with one row per
device, a dict by device name, or a long frame with a row for each score (of pandas, polars or Arrow, a structured
array, a dict of columns, a list of records). `Table.of` reads each of them once; columns with other names are mapped by
`columns`. Rows keep the order in which the user has them within each device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.common.arrays import (
    as_array,
    as_rows,
    check_index,
    columns_of,
    note_alike,
    note_duplicates,
    note_large_integers,
)
from conformesh.common.names import device_name, natural_order, unknown
from conformesh.common.notes import note
from conformesh.files.memberships import Memberships
from conformesh.graph.network import Network
from conformesh.graph.topologies import divisor
from conformesh.kernels.ranks import CHOSEN_MIXTURES
from conformesh.kernels.weighted_scores import clean_scores
from conformesh.scores import Score
from conformesh.scores.losses import Steps

# The roles of columns in a long frame, and the names they have unless `columns` says otherwise. The command line has
# an option for each of them, such as --device-column.
_ROLES = ("device", "score", "label", "group", "weight", "share", "id", "time")
_FIELDS = {"weight": "weight", "label": "labels"}  # of a `Table`, by role
_ITEM, _LAMBDA, LOSS = "item", "lambda", "loss"  # further columns of a long frame of losses
LOWER, UPPER = "lower", "upper"  # columns of a long frame of scores with two sides


class ColumnNames:
    """Which column of a long frame has which role.

    >>> ColumnNames({"device": "hospital"}).device
    'hospital'
    """

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(
                f"columns must be a dict such as {{'device': 'hospital', 'score': 's'}}, got {type(given).__name__}"
            )
        for role in given or {}:
            if role not in _ROLES:
                raise ValueError(f"columns: {unknown('role', role, _ROLES)}")
        self.given = {role: str(name) for role, name in (given or {}).items()}
        self.device = self.given.get("device", "device")
        self.score = self.given.get("score", "score")
        self.id = self.given.get("id", "id")

    def named(self, role: str, value: Any, data: Any = None) -> Any:
        """Return what an argument says; without it the column that was named for its role, or what a table has."""
        if value is None and role in self.given:
            return self.given[role]
        return getattr(data, _FIELDS[role]) if value is None and isinstance(data, Table) else value


class _DeviceFrame:
    """A long frame, whose rows are put in the order of devices once for all columns."""

    def __init__(self, frame: Any, columns: ColumnNames, needed: Sequence[str]) -> None:
        self.frame, self.columns = frame, columns_of(frame) or []
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
        self.order = np.argsort(names, kind="stable")
        each, starts = np.unique(names[self.order], return_index=True)
        self.names = tuple(each.tolist())
        self.sizes = np.diff(np.append(starts, len(names)))
        note_alike(self.names, "devices")
        if columns.id in self.columns:
            note_duplicates(as_array(frame[columns.id], f"column {columns.id!r}").tolist(), "the frame", names.tolist())

    def read(self, name: str, what: str) -> NDArray[Any]:
        """Return a column in the order of devices."""
        if name not in self.columns:
            raise ValueError(f"{what}: {unknown('column', name, self.columns)}")
        values = as_array(self.frame[name], f"column {name!r}")
        if len(values) != len(self.order):
            raise ValueError(
                f"columns {what!r} and {name!r} must be equally long, got {len(self.order)} and {len(values)}"
            )
        return np.asarray(values[self.order])

    def split(self, values: NDArray[Any]) -> dict[str, Any]:
        """Return a column that was read as one array for each device."""
        return dict(zip(self.names, np.split(values, np.cumsum(self.sizes)[:-1]), strict=True))


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of calibration examples, grouped by device.

    Attributes
    ----------
    names
        The devices, in the order of their rows; None: those of the network, in its order.
    offsets
        Rows ``offsets[k]`` to ``offsets[k + 1]`` belong to the k-th device.
    score
        The score of each row, or two for both sides of an interval, (rows, 2).
    groups, group_column
        The groups that each row belongs to, and the name of the column that they were read from.
    weight
        How much likelier each row is among new examples, up to a common factor.
    inputs
        The features of each row, for centres.
    labels
        The class of each row, as text.
    losses
        The losses of each device's rows (items), one `Steps` per device.
    shares
        How likely a new example comes from each device, where a column of the frame says so.
    in_place
        Whether `score` may be sorted where it is, because nobody else uses the array.
    is_wide
        Whether it was given as one array with a row for each device, which may have been meant the other way round.
    """

    names: tuple[str, ...] | None
    offsets: Ints
    score: Floats | None = None
    groups: Memberships | None = None
    group_column: str = ""
    weight: Floats | None = None
    inputs: Floats | None = None
    labels: NDArray[Any] | None = None
    losses: tuple[Steps, ...] | None = None
    shares: dict[str, Any] | None = None
    in_place: bool = False
    is_wide: bool = False

    @classmethod
    def from_flat(cls, values: Any, sizes: Any, *, names: Iterable[Any] | None = None, copy: bool = True) -> Table:
        """Build from flat scores already grouped by device, `sizes` of them for each.

        With ``copy=False`` the array may be sorted where it is: a million devices with fifty scores each are 400 MB.
        Groups, weights and the like, which belong to rows, are then refused.

        >>> Table.from_flat(np.array([3.0, 1.0, 2.0]), [2, 0, 1]).sizes.tolist()
        [2, 0, 1]
        """
        array = np.asarray(values)
        scores = np.array(array, dtype=np.float64, copy=copy or None)
        counts = np.asarray(sizes, dtype=np.int64)
        if counts.ndim != 1 or not len(counts) or (counts < 0).any():
            raise ValueError(
                f"sizes must be how many scores each device has, one number from 0 on each, got {sizes!r:.60}"
            )
        if scores.ndim not in (1, 2) or scores.shape[1:] not in ((), (2,)) or int(counts.sum()) != len(scores):
            raise ValueError(
                f"flat scores must be one array with as many scores as `sizes` add up to, {int(counts.sum())}, got "
                f"shape {scores.shape}"
            )
        given = None if names is None else tuple(map(device_name, names))
        if given is not None and len({*given}) != len(counts):
            raise ValueError(f"names must be {len(counts)} different names, one for each device, got {given!r:.60}")
        note_alike(given or (), "devices")
        return cls(given, _offsets(counts), scores, in_place=not copy)

    @classmethod
    def from_rows(
        cls,
        devices: Sequence[str] | NDArray[np.str_],
        *,
        names: Iterable[str] = (),
        score: Any = None,
        losses: Steps | None = None,
        groups: Memberships | None = None,
        group_column: str = "",
        weight: Floats | None = None,
        inputs: Floats | None = None,
        labels: NDArray[Any] | None = None,
    ) -> Table:
        """Build from rows in any order, each with the name of its device; `names` adds devices without rows.

        >>> table = Table.from_rows(["b", "a", "b"], score=np.array([3.0, 1.0, 2.0]), names=["c"])
        >>> table.names, table.sizes.tolist(), table.score.tolist()
        (('a', 'b', 'c'), [1, 2, 0], [1.0, 3.0, 2.0])
        """
        each, codes = np.unique(np.asarray(devices, dtype=str), return_inverse=True)
        known = natural_order({*each.tolist(), *names})
        note_alike(known, "devices")
        place = {name: k for k, name in enumerate(known)}
        owners = np.array([place[name] for name in each.tolist()], dtype=np.int64)[codes]
        rows = np.argsort(owners, kind="stable")
        offsets = _offsets(np.bincount(owners, minlength=len(known)))
        parts = [rows[start:stop] for start, stop in pairwise(offsets.tolist())]
        if score is not None:
            sides = np.ndim(score) == 2
            cleaned = zip(known, parts, strict=True)
            score = np.concatenate([clean_scores(score[own], f"device {name}", sides=sides) for name, own in cleaned])
        return cls(
            known,
            offsets,
            score,
            groups=None if groups is None else groups.taken(rows),
            group_column=group_column,
            weight=None if weight is None else weight[rows],
            inputs=None if inputs is None else inputs[rows],
            labels=None if labels is None else labels[rows],
            losses=None if losses is None else tuple(losses.taken(own) for own in parts),
        )

    @classmethod
    def of(
        cls,
        data: Any,
        *,
        columns: Mapping[str, str] | ColumnNames | None = None,
        sides: bool = False,
        groups: Any = None,
        weight: Any = None,
        inputs: Any = None,
        labels: Any = None,
        mixture: Any = None,
        what: str = "data",
        ids: Sequence[Sequence[str]] = (),
        once: bool = False,
    ) -> Table:
        """Read scores, and whatever belongs to their rows, in any of the forms that this module describes.

        `groups`, `weight`, `inputs` and `labels` are names of columns where `data` is a frame, else they have the form
        of `data`: one array per device in the same order, or a dict by device name. `weight` may be a function of a
        device's inputs. Where `data` is a table, "weight", "inputs" and "labels" name its own columns, and its groups
        stay. `ids` are what devices may be called in errors where `data` has only their order, see `known_devices`.
        `once` says that the table is for a single run, which may then sort its scores in place.
        """
        names = columns if isinstance(columns, ColumnNames) else ColumnNames(columns)
        reader = _Reader.of(data, names, (LOWER, UPPER) if sides else (names.score,), what, ids)
        table = reader.scores(sides)
        if not once and not isinstance(data, Table):
            table = replace(table, in_place=False)
        return _with_columns(
            table, reader, names, groups=groups, weight=weight, inputs=inputs, labels=labels, mixture=mixture
        )

    @property
    def devices(self) -> int:
        """How many devices have rows, or none."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        """How many rows each device has."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def __repr__(self) -> str:
        more = [name for name in ("groups", "weight", "inputs", "labels", "losses") if getattr(self, name) is not None]
        beside = f" with {', '.join(more)}" if more else ""
        return f"Table({len(self):,} rows of {self.devices:,} devices{beside})"

    def rows(self, device: int) -> slice:
        """Return which rows belong to a device."""
        return slice(int(self.offsets[device]), int(self.offsets[device + 1]))

    def taken(self, devices: Sequence[int] | Ints) -> Table:
        """Return the rows of these devices, in this order."""
        chosen = np.asarray(devices, dtype=np.int64)
        if np.array_equal(chosen, np.arange(self.devices)):
            return self
        sizes = self.sizes[chosen]
        offsets = _offsets(sizes)
        rows = np.repeat(self.offsets[chosen] - offsets[:-1], sizes) + np.arange(int(offsets[-1]))
        return replace(
            self,
            names=None if self.names is None else tuple(self.names[k] for k in chosen.tolist()),
            offsets=offsets,
            score=None if self.score is None else self.score[rows],
            groups=None if self.groups is None else self.groups.taken(rows),
            weight=None if self.weight is None else self.weight[rows],
            inputs=None if self.inputs is None else self.inputs[rows],
            labels=None if self.labels is None else self.labels[rows],
            losses=None if self.losses is None else tuple(self.losses[k] for k in chosen.tolist()),
            in_place=False,
        )

    def _for_one_run(self, devices: Sequence[int] | Ints) -> Table:
        """Return the rows of these devices for one run, which may sort what was copied."""
        chosen = self.taken(devices)
        return chosen if chosen is self else replace(chosen, in_place=True)

    def ordered(self, network: Network, local_rows: Ints, what: str = "scores") -> Table:
        """Return the rows of this process's devices, in the order of the network.

        `local_rows` are the rows of the network that an engine hosts in this process. Devices with names are put in
        order. Devices without names must be in order already; a network whose order is ambiguous refuses them.
        """
        local = network.local_ids(local_rows)
        if self.names is not None:
            # A process may bring the rows of its own devices only, or those of all.
            brings_own = len(local) < network.devices and {*self.names} <= {*local}
            place = _places(self.names, local if brings_own else network.ids, what)
            return self._for_one_run([place[network.ids[row]] for row in local_rows.tolist()])
        network.check_list(what)
        if self.devices == network.devices:
            return self._for_one_run(local_rows)
        chosen = self
        if chosen.devices != len(local):
            of_rank = "" if len(local) == network.devices else f", or for the {len(local)} of this rank"
            turned = chosen.devices and {*chosen.sizes.tolist()} == {network.devices}
            raise ValueError(
                f"the network {network.name!r} has {network.devices} devices but {what} came for {chosen.devices}; "
                f"pass one array per device{of_rank} (empty where a device has none)"
                + ("; its columns seem to be the devices: pass table.T" if turned else "")
            )
        return chosen


def _with_columns(
    table: Table,
    reader: _Reader,
    names: ColumnNames,
    *,
    groups: Any = None,
    weight: Any = None,
    inputs: Any = None,
    labels: Any = None,
    mixture: Any = None,
) -> Table:
    """Return a table with the further columns that were asked for."""
    groups, weight, labels = (
        names.named(role, value) for role, value in (("group", groups), ("weight", weight), ("label", labels))
    )
    if groups is not None:
        column = groups if isinstance(groups, str) else ""
        table = replace(table, groups=reader.groups(groups), group_column=column)
    if labels is not None and labels is not table.labels:
        table = replace(table, labels=reader.labels(labels))
    if inputs is not None and inputs is not table.inputs:
        table = replace(table, inputs=reader.inputs(inputs))
    if weight is not None and weight is not table.weight:
        table = replace(table, weight=reader.weights(weight))
    share = names.given.get("share") if mixture is None or isinstance(mixture, str) else None
    if isinstance(mixture, str) and mixture not in CHOSEN_MIXTURES and reader.has_column(mixture):
        share = mixture
    return table if share is None else replace(table, shares=reader.shares(share))


class _Reader:
    """Reads the columns of one `data` argument; its children know a frame, or one array for each device."""

    sizes: Ints
    names: tuple[str, ...] | None
    ids: Sequence[Sequence[str]] = ()
    of_whom = ""  # what errors add to the name of a device

    @classmethod
    def of(
        cls, data: Any, columns: ColumnNames, needed: Sequence[str], what: str, ids: Sequence[Sequence[str]] = ()
    ) -> _Reader:
        """Return the reader for whatever was given."""
        reader: _Reader
        if isinstance(data, Table):
            reader = _OfTable(data, ids)
        else:
            data = as_frame(data, columns, needed[0], what)
            framed = columns_of(data) is not None
            reader = _OfFrame(_DeviceFrame(data, columns, needed), needed) if framed else _OfDevices(data, what, ids)
        reader.of_whom = ", test scores" if what == "test_scores" else ""
        return reader

    def scores(self, sides: bool) -> Table:
        """Return a table with the scores."""
        raise NotImplementedError

    def column(self, given: Any, what: str) -> list[Any]:
        """Return what each device has of a further column, one entry for each of its rows."""
        raise NotImplementedError

    def has_column(self, name: str) -> bool:
        """Return whether there is a column of this name."""
        return False

    def who(self, k: int) -> str:
        """Return what a device is called in errors."""
        if self.names is not None:
            return f"device {self.names[k]}{self.of_whom}"
        called = next((each for each in self.ids if len(each) == self._count()), None)
        if called is None and self.ids:  # too many or too few: nobody knows whose array this is
            return f"array {k}{self.of_whom}"
        return f"device {k if called is None else called[k]}{self.of_whom}"

    def _count(self) -> int:
        """Return how many devices there are, also before their sizes are known."""
        return len(self.sizes)

    def groups(self, given: Any) -> Memberships:
        """Return the groups of every row."""
        each = [Memberships.of(own, self.who(k)) for k, own in enumerate(self.column(given, "groups"))]
        for k, own in enumerate(each):
            self._check_length(k, len(own), "group labels")
        return Memberships.joined(each)

    def labels(self, given: Any) -> NDArray[Any]:
        """Return the class of every row as text."""
        each = []
        for k, own in enumerate(self.column(given, "labels")):
            values = as_array(own, f"{self.who(k)}, labels")
            cells = values.tolist()
            gaps = [i for i, label in enumerate(cells) if label is None or label != label]  # noqa: PLR0124 - NaN
            if gaps:
                raise ValueError(
                    f"{self.who(k)}: label {gaps[0]} is missing ({cells[gaps[0]]}); drop these scores or name their "
                    "class"
                )
            self._check_length(k, len(values), "labels")
            each.append(values.astype(str))
        return np.concatenate(each) if each else np.empty(0, dtype=str)

    def inputs(self, given: Any) -> Floats:
        """Return the features of every row."""
        each = [as_rows(own, f"{self.who(k)}: inputs") for k, own in enumerate(self.column(given, "inputs"))]
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
        for k, own in enumerate(self.column(given, "weight" if function is None else "inputs")):
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
        names = self.names or ()
        return shares_in(dict(zip(names, self.column(column, "mixture"), strict=True)), f"column {column!r}")

    def _check_length(self, k: int, count: int, what: str) -> None:
        if count != self.sizes[k]:
            raise ValueError(f"{self.who(k)} has {self.sizes[k]} scores but {count} {what}; one each is needed")


class _OfFrame(_Reader):
    """Reads a long frame: columns are named."""

    def __init__(self, frame: _DeviceFrame, needed: Sequence[str]) -> None:
        self.frame, self.needed = frame, needed
        self.names, self.sizes = frame.names, frame.sizes

    def scores(self, sides: bool) -> Table:
        each = [self.frame.split(self.frame.read(name, name)) for name in self.needed]
        columns = [
            np.concatenate([clean_scores(part[name], self.who(k)) for k, name in enumerate(self.frame.names)])
            for part in each
        ]
        values = np.stack(columns, axis=1) if sides else columns[0]
        return Table(self.frame.names, _offsets(self.sizes), values, in_place=True)

    def has_column(self, name: str) -> bool:
        return name in self.frame.columns

    def column(self, given: Any, what: str) -> list[Any]:
        if isinstance(given, str):
            return [*self.frame.split(self.frame.read(given, what)).values()]
        several = isinstance(given, list | tuple) and len(given) > 0 and all(isinstance(name, str) for name in given)
        if several and what in ("groups", "inputs"):
            return self._several(given, what)
        if isinstance(given, Mapping):
            return _beside(given, what, self.names, len(self.sizes))
        raise TypeError(
            f"{what} must be the name of a column, or a list of names, where scores are a frame, got "
            f"{type(given).__name__}; put them into a column of the frame"
        )

    def _several(self, given: Sequence[str], what: str) -> list[Any]:
        if strange := next((name for name in given if name not in self.frame.columns), None):
            raise ValueError(
                f"{what}: {unknown('column', strange, self.frame.columns)}; where scores are a frame, {what} are names "
                "of columns"
            )
        columns = {name: self.frame.split(self.frame.read(name, what)) for name in given}
        if what == "inputs":
            return [np.stack([column[name] for column in columns.values()], axis=1) for name in self.frame.names]
        return [
            Memberships.of_columns({name: held[owner] for name, held in columns.items()}, f"device {owner}")
            for owner in self.frame.names
        ]


class _OfDevices(_Reader):
    """Reads one array for each device, by name or in the order of the network."""

    def __init__(self, data: Any, what: str, ids: Sequence[Sequence[str]] = ()) -> None:
        held = as_devices(data, what)
        self.ids = ids
        self.names = tuple(held) if isinstance(held, dict) else None
        self.held: Any = [*held.values()] if isinstance(held, dict) else held
        self.sizes = np.zeros(0, dtype=np.int64)

    def _count(self) -> int:
        return len(self.held)

    def scores(self, sides: bool) -> Table:
        table = self.held
        whole = isinstance(table, np.ndarray) and table.ndim == 2 and table.dtype.kind in "fiu" and len(table) > 0
        if np.ma.isMaskedArray(table):  # row by row, which refuses masked entries
            self.held, whole = [*table], False
        if whole and not sides:  # a row for each device: a table of a million rows stays one array
            self.sizes = np.full(len(table), table.shape[1])
            values = self._clean_rows(table)
        else:
            if not len(self.held):
                raise ValueError("calibration needs at least one device, got none")
            arrays = [clean_scores(own, self.who(k), sides=sides) for k, own in enumerate(self.held)]
            self.sizes = np.array([len(own) for own in arrays], dtype=np.int64)
            values = np.concatenate(arrays)
        return Table(
            self.names,
            _offsets(self.sizes),
            values,
            in_place=not np.may_share_memory(values, table) if whole else True,
            is_wide=bool(whole),
        )

    def _clean_rows(self, table: NDArray[Any]) -> Floats:
        """Return the scores of a table with a row for each device."""
        note_large_integers(table, "scores")
        values = np.asarray(table.reshape(-1), dtype=np.float64)
        if np.isnan(values).any():
            first = int(np.isnan(values).argmax()) // table.shape[1]
            clean_scores(table[first], self.who(first))
        return values

    def column(self, given: Any, what: str) -> list[Any]:
        each = _beside(given, what, self.names, len(self.sizes))
        for k, (own, other) in enumerate(zip(self.held, each, strict=True)):
            name = k if self.names is None else self.names[k]
            check_index(own, other, f"{what}[{name!r}]", f"scores[{name!r}]")
        return each


class _OfTable(_Reader):
    """Reads further columns for a table that exists: its own by name, others in the form of `Table.of`."""

    NAMED = ("weight", "inputs", "labels")

    def __init__(self, table: Table, ids: Sequence[Sequence[str]] = ()) -> None:
        self.table, self.names, self.sizes, self.ids = table, table.names, table.sizes, ids

    def scores(self, sides: bool) -> Table:
        held = self.table.score
        if held is None:
            raise TypeError("this Table holds losses and no scores; use control, or give scores")
        if sides != (held.ndim == 2):
            columns = "two columns of scores, one for each side" if held.ndim == 2 else "one column of scores"
            raise ValueError(f"this Table has {columns}; use symmetric={held.ndim != 2}")
        return self.table

    def column(self, given: Any, what: str) -> list[Any]:
        if isinstance(given, str):
            values = getattr(self.table, given) if given in self.NAMED else None
            if values is None:
                raise ValueError(f"{what}={given!r} names a column, which this table does not have: {self.table!r}")
            return [values[self.table.rows(k)] for k in range(self.table.devices)]
        if self.table.in_place:  # an earlier run may have sorted the scores: which row is which is lost
            raise ValueError(
                f"{what} belong to rows, and Table.from_flat(..., copy=False) lets runs reorder them; leave copy=False "
                "out"
            )
        return _beside(given, what, self.names, self.table.devices)


def _beside(given: Any, what: str, names: tuple[str, ...] | None, devices: int) -> list[Any]:
    """Return what each device has of a further column, which must have the form of the scores."""
    names_columns = isinstance(given, list | tuple) and given and all(isinstance(name, str) for name in given)
    if isinstance(given, str) or (what == "inputs" and names_columns):
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


def _offsets(sizes: Any) -> Ints:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


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
    place = _places([*held], names, what)
    values = [*held.values()]
    return [values[place[name]] for name in names]


def _places(given: Sequence[str], wanted: Sequence[str], what: str) -> dict[str, int]:
    """Return where each wanted device stands among those given; both must be the same devices."""
    if strange := natural_order({*given} - {*wanted}):
        known = ", ".join(wanted[:8]) + (", ..." if len(wanted) > 8 else "")
        raise ValueError(f"{what} are given for device {strange[0]!r}, which the network does not have: {known}")
    if missing := natural_order({*wanted} - {*given}):
        raise ValueError(
            f"no {what} are given for device {missing[0]!r} of the network; give an empty list if it has none"
        )
    return {name: k for k, name in enumerate(given)}


# What the first argument of a public function is called, and what it holds; other arguments stand beside it.
_FIRST = {"data": "scores", "values": "values", "losses": "losses"}
_ARGUMENT = {"values": "data"}  # where the argument is not called what it holds


def as_devices(data: Any, what: str) -> NDArray[Any] | list[Any] | dict[str, Any]:
    """Return one entry for each device: a table with a row each, a list, or a dict by name."""
    if isinstance(data, list | tuple):
        return _by_device([*data], what)
    if isinstance(data, Mapping):
        named = {device_name(name): own for name, own in data.items()}
        if len(named) < len(data):
            raise ValueError("two devices of the dict have the same name once written as text; rename one of them")
        note_alike(named, "devices")
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


def as_frame(data: Any, columns: ColumnNames, column: str, what: str) -> Any:
    """Return columns as a frame, what is grouped or labelled by device as a dict, and the rest as it is."""
    if isinstance(data, Mapping) and {columns.device, column} <= {*data}:  # a frame as a dict of columns
        return _Columns(data)
    if isinstance(data, list | tuple) and data and all(isinstance(row, Mapping) for row in data):
        return _Columns({name: [row.get(name) for row in data] for name in data[0]})
    if hasattr(data, "collect") and hasattr(data, "explain"):
        raise TypeError(f"{what} is a lazy frame, which holds no scores yet; pass frame.collect()")
    if hasattr(data, "ngroups"):  # a pandas frame or column, grouped
        return {name: part if columns_of(part) is None else part[column] for name, part in data}
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
    if hasattr(data, "index") and hasattr(data, "groupby") and columns_of(data) is None:  # a pandas column
        return _of_column(data, columns, what)
    return data


def _of_column(series: Any, columns: ColumnNames, what: str) -> dict[Any, Any]:
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


def shares_in(held: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the one share of every device, from a column that repeats it in each of its rows."""
    shares = {}
    for name, own in held.items():
        each = {*np.asarray(own).tolist()}
        if len(each) != 1:
            raise ValueError(f"{what}: device {name} must have the same share in all its rows, got {sorted(each)[:3]}")
        shares[name] = each.pop()
    return shares


def check_range(score: Score | None, table: Table, names: Sequence[str]) -> None:
    """Refuse scores that the score which was named cannot give; say whose they are and where they stand.

    The two sides of an interval are signed distances, whatever the range of the score itself.
    """
    if (
        score is None
        or table.score is None
        or table.score.ndim == 2
        or not (outside := score.outside(table.score)).any()
    ):
        return
    k = int(np.searchsorted(table.offsets, int(outside.argmax()), side="right") - 1)
    score.check_range(table.score[table.rows(k)], f"device {names[k]}")


def as_classes(classes: Any) -> tuple[str | bool | int | float, ...] | None:
    """Return classes: names, numbers and booleans as given, all else as written; or the columns of a frame.

    >>> as_classes(["cat", "dog"]), as_classes(np.array([3, 5]))
    (('cat', 'dog'), (3, 5))
    """
    if classes is None:
        return None
    columns = columns_of(classes)
    if isinstance(classes, str | bytes) or (columns is None and not hasattr(classes, "__iter__")):
        raise TypeError(
            f"classes must be the names of the columns of outputs, got {type(classes).__name__} {classes!r:.40}"
        )
    given = [*columns] if columns is not None else as_array(classes, "classes").tolist()
    names = tuple(name if isinstance(name, bool | int | float) else str(name) for name in given)
    if len({*names}) < max(2, len(names)):
        raise ValueError(f"classes must be at least 2 different names, got {', '.join(map(str, names[:8]))}")
    return names


def loss_table(
    losses: Any,
    bound: float | None,
    columns: Mapping[str, str] | ColumnNames | None = None,
    ids: Sequence[Sequence[str]] = (),
    **given: Any,
) -> Table:
    """Read losses: `Steps` of each device, (breakpoints, values) of each item, or a long frame.

    `given` are the further columns of `Table.of`, with one entry for each item. In a long frame they are names of
    columns, which must say the same in all rows of an item. `ids` is as in `Table.of`.
    """
    if isinstance(losses, Steps):
        raise TypeError("losses are the Steps of one device; give a list with those of each device, or a dict by name")
    names = columns if isinstance(columns, ColumnNames) else ColumnNames(columns)
    data = losses if isinstance(losses, Table) else as_frame(losses, names, LOSS, "losses")
    reader: _Reader
    if isinstance(data, Table):
        if data.losses is None:
            raise TypeError("losses must be Steps of each device, or a frame of losses, got a Table of scores")
        reader = _OfTable(data)
        steps = tuple(_as_steps(own, reader.who(k), bound) for k, own in enumerate(data.losses))
        return _with_columns(replace(data, losses=steps), reader, names, **given)
    if columns_of(data) is None:
        reader = by_device = _OfDevices(data, "losses", ids)
        steps = tuple(_as_steps(own, reader.who(k), bound) for k, own in enumerate(by_device.held))
        if not steps:
            raise ValueError("calibration needs at least one device, got none")
    else:
        frame = _DeviceFrame(data, names, (_ITEM, _LAMBDA, LOSS))
        reader, steps = _steps_of_frame(frame, bound)
    reader.sizes = np.array([len(own) for own in steps], dtype=np.int64)
    table = Table(reader.names, _offsets(reader.sizes), losses=steps)
    return _with_columns(table, reader, names, **given)


def _as_steps(held: Any, who: str, bound: float | None) -> Steps:
    """Return a device's losses as steps that may be controlled, or say what is wrong with them."""
    if isinstance(held, Steps):
        return (held if bound is None else replace(held, bound=bound)).checked(who)
    try:
        steps = Steps.of(held, 1.0 if bound is None else bound)
    except (TypeError, ValueError) as problem:
        shape = getattr(held, "shape", None)
        given = f"{type(held).__name__}: {problem}" if shape is None else f"an array of shape {tuple(shape)}"
        raise ValueError(
            f"{who}: losses must be Steps, or (breakpoints, values) for each item, got {given}; a loss makes Steps "
            "of outputs and labels, such as losses.FalseNegativeRate()(outputs, labels), and "
            "losses.Steps.on_grid(lambdas, table) of a table of losses, items x lambdas"
        ) from None
    return steps.checked(who)


def _steps_of_frame(frame: _DeviceFrame, bound: float | None) -> tuple[_Reader, tuple[Steps, ...]]:
    """Return the losses of a long frame, and a reader of one value for each item of its columns."""
    items, lambdas, values = (frame.split(frame.read(name, "losses")) for name in (_ITEM, _LAMBDA, LOSS))
    steps = []
    for name in frame.names:
        try:
            made = Steps.of_table(items[name], lambdas[name], values[name], 1.0 if bound is None else bound)
        except ValueError as problem:
            raise ValueError(f"device {name}, {problem}") from None
        steps.append(made.checked(f"device {name}"))
    return _OfItems(frame, [np.asarray(items[name]).astype(str) for name in frame.names]), tuple(steps)


class _OfItems(_OfFrame):
    """Reads columns of a long frame of losses, whose rows are items and lambdas: one value for each item."""

    def __init__(self, frame: _DeviceFrame, items: list[NDArray[Any]]) -> None:
        super().__init__(frame, ())
        self.items = items

    def column(self, given: Any, what: str) -> list[Any]:
        if not isinstance(given, str):
            raise TypeError(f"{what} must be the name of a column where losses are a frame, got {type(given).__name__}")
        each = []
        for k, own in enumerate(super().column(given, what)):
            values = np.asarray(own)
            _, first, item = np.unique(self.items[k], return_index=True, return_inverse=True)
            if not (values == values[first][item]).all():
                wrong = self.items[k][int((values != values[first][item]).argmax())]
                raise ValueError(f"{self.who(k)}, item {wrong}: column {given!r} must say the same in all its rows")
            each.append(values[first])
        return each


def known_devices(network: Any, engine: Any = "simulator") -> tuple[Any, list[Sequence[str]]]:
    """Return the network with a NetworkX graph read, and the names that devices in an order have in errors.

    The data may be of all devices, or of those that an engine which exists hosts. A network that only has a name takes
    its devices from the data: then there is nothing to know.
    """
    if _is_networkx(network):
        network = Network.from_networkx(network)
    if not isinstance(network, Network):
        return network, []
    local_rows = getattr(engine, "rows", None)  # an engine that is only named does not exist yet and hosts nothing
    return network, [network.ids, *([] if local_rows is None else [network.local_ids(local_rows)])]


def _is_networkx(network: Any) -> bool:
    return hasattr(network, "is_directed") and hasattr(network, "adj")  # without importing it


def as_network(network: Any, table: Table) -> Network:
    """Return the network that was meant.

    A `Network`, a NetworkX graph, pairs of devices, an adjacency matrix, or the name of a topology of as many devices
    as the table has. None is a torus, or a cycle where the number of devices has no two factors.
    """
    if isinstance(network, Network):
        return network
    if network is None:
        network = "cycle" if divisor(table.devices) is None else "torus"
    if isinstance(network, str):
        from conformesh.graph.topologies import TOPOLOGIES

        if network not in TOPOLOGIES:
            raise ValueError(unknown("topology", network, TOPOLOGIES))
        if table.is_wide and table.devices > len(table) / table.devices:
            each = len(table) // table.devices
            note(
                f"a table of shape {(table.devices, each)} is read as {table.devices} devices with {each} scores each, "
                "a row per device; pass table.T if its columns are the devices"
            )
        built = Network.of(network, table.devices)
        return built if table.names is None else built.relabelled(natural_order(table.names))
    if _is_networkx(network):
        return Network.from_networkx(network)
    if hasattr(network, "shape") and len(network.shape) == 2 and network.shape[0] == network.shape[1] != 2:
        return _of_matrix(network, table)
    if isinstance(network, list | tuple | np.ndarray) and all(_is_pair(pair) for pair in network):
        return _of_pairs(network, table)
    raise TypeError(
        "network must be a Network, the name of a topology such as 'torus', pairs of devices, an adjacency matrix or a "
        f"NetworkX graph, got {type(network).__name__} {str(network)[:40]!r}"
    )


def _is_pair(pair: Any) -> bool:
    return not isinstance(pair, str) and hasattr(pair, "__len__") and len(pair) == 2


def _of_pairs(pairs: Any, table: Table) -> Network:
    """Return the network with these edges; devices are those of the table, by name or by number."""
    if table.names is None:
        return Network.from_pairs(table.devices, pairs)
    return Network.from_pairs(natural_order(table.names), [tuple(map(device_name, pair)) for pair in pairs])


def _of_matrix(matrix: Any, table: Table) -> Network:
    """Return the network of a symmetric matrix, whose entries other than 0 are edges."""
    dense = np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else as_array(matrix, "network"))
    if len(dense) != table.devices:
        raise ValueError(f"the adjacency matrix has {len(dense)} rows but scores came for {table.devices} devices")
    if table.names is not None and table.names != natural_order(table.names):
        note(
            "an adjacency matrix does not name its devices: its rows are read in the order of their names, "
            f"{', '.join(natural_order(table.names)[:5])}, ...; give pairs of devices if another order is meant"
        )
    linked = dense != 0
    if (linked != linked.T).any():
        raise ValueError("the adjacency matrix must be symmetric: devices that are linked talk both ways")
    pairs = np.argwhere(np.triu(linked, 1))
    built = Network.from_pairs(table.devices, pairs)
    return built if table.names is None else built.relabelled(natural_order(table.names))
