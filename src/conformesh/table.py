"""Table: what the devices hold, in one form: rows grouped by device, and for each row its score, groups, weight, ...

Every function that calibrates takes the same: arrays in the order of the network's devices, a table with one row per
device, a dict by device name, or a long frame with a row for each score (of pandas, polars or Arrow, a structured
array, a dict of columns, a list of records). `Table.of` makes a table of each of them; `files.input_forms` reads them.
Rows keep the order in which the user has them within each device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.common.arrays import check_index, columns_in_order, frame_columns, note_similar_names
from conformesh.common.names import device_name, natural_order
from conformesh.files.input_forms import (
    ColumnRoles,
    DeviceArrays,
    FrameRows,
    ItemRows,
    LongFrame,
    RowReader,
    RowSource,
    arrays_beside,
    as_frame,
    places_by_id,
    read_labelled_outputs,
    read_rows,
    refuse_missing_labels,
)
from conformesh.files.memberships import Memberships
from conformesh.graph.network import Network
from conformesh.guarantee import LOWER, UPPER
from conformesh.kernels.ranks import CHOSEN_MIXTURES
from conformesh.kernels.weighted_scores import clean_scores
from conformesh.scores import Score
from conformesh.scores.base import label_positions
from conformesh.scores.losses import StepLosses

if TYPE_CHECKING:
    from conformesh.scores.adapt import Adaptation

_ITEM, _LAMBDA, LOSS = "item", "lambda", "loss"  # further columns of a long frame of losses


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
        The losses of each device's rows (items), one `StepLosses` per device.
    outputs, truth
        For adapted scores: the outputs of the model for each row, and its true label: a column number, or a number.
    classes
        The names of the columns of outputs, where data says them.
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
    losses: tuple[StepLosses, ...] | None = None
    outputs: NDArray[Any] | None = None
    truth: NDArray[Any] | None = None
    classes: tuple[Any, ...] | None = None
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
        note_similar_names(given or (), "devices")
        return cls(given, _offsets(counts), scores, in_place=not copy)

    @classmethod
    def from_rows(
        cls,
        devices: Sequence[str] | NDArray[np.str_],
        *,
        names: Iterable[str] = (),
        score: Any = None,
        losses: StepLosses | None = None,
        groups: Memberships | None = None,
        group_column: str = "",
        weight: Floats | None = None,
        inputs: Floats | None = None,
        labels: NDArray[Any] | None = None,
        outputs: NDArray[Any] | None = None,
        truth: NDArray[Any] | None = None,
    ) -> Table:
        """Build from rows in any order, each with the name of its device; `names` adds devices without rows.

        >>> table = Table.from_rows(["b", "a", "b"], score=np.array([3.0, 1.0, 2.0]), names=["c"])
        >>> table.names, table.sizes.tolist(), table.score.tolist()
        (('a', 'b', 'c'), [1, 2, 0], [1.0, 3.0, 2.0])
        """
        each, codes = np.unique(np.asarray(devices, dtype=str), return_inverse=True)
        known = natural_order({*each.tolist(), *names})
        note_similar_names(known, "devices")
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
            groups=None if groups is None else groups.take(rows),
            group_column=group_column,
            weight=None if weight is None else weight[rows],
            inputs=None if inputs is None else inputs[rows],
            labels=None if labels is None else labels[rows],
            losses=None if losses is None else tuple(losses.take(own) for own in parts),
            outputs=None if outputs is None else outputs[rows],
            truth=None if truth is None else truth[rows],
        )

    @classmethod
    def of(
        cls,
        data: Any,
        *,
        columns: Mapping[str, str] | ColumnRoles | None = None,
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
        roles = columns if isinstance(columns, ColumnRoles) else ColumnRoles(columns)
        if isinstance(data, Table):
            reader, table = _reader_of_table(data, ids), data._with_sides(sides)
        else:
            reader, read = read_rows(data, roles, (LOWER, UPPER) if sides else (roles.score,), what, ids)
            in_place = once and read.in_place
            table = cls(reader.source.names, _offsets(read.sizes), read.values, in_place=in_place, is_wide=read.is_wide)
        return _with_columns(
            table, reader, roles, groups=groups, weight=weight, inputs=inputs, labels=labels, mixture=mixture
        )

    @classmethod
    def of_losses(
        cls,
        losses: Any,
        bound: float | None = None,
        *,
        columns: Mapping[str, str] | ColumnRoles | None = None,
        ids: Sequence[Sequence[str]] = (),
        **given: Any,
    ) -> Table:
        """Read losses: `StepLosses` of each device, (breakpoints, values) of each item, or a long frame.

        `given` are the further columns of `Table.of`, with one entry for each item. In a long frame they are names of
        columns, which must say the same in all rows of an item. `ids` is as in `Table.of`.
        """
        if isinstance(losses, StepLosses):
            raise TypeError(
                "losses are the StepLosses of one device; give a list with those of each device, or a dict by name"
            )
        roles = columns if isinstance(columns, ColumnRoles) else ColumnRoles(columns)
        if isinstance(losses, Table):
            if losses.losses is None:
                raise TypeError("losses must be StepLosses of each device, or a frame of losses, got a Table of scores")
            reader = _reader_of_table(losses, ids)
            steps = tuple(_as_steps(own, reader.who(k), bound) for k, own in enumerate(losses.losses))
            return _with_columns(replace(losses, losses=steps), reader, roles, **given)
        data = as_frame(losses, roles, LOSS, "losses")
        source: RowSource
        if frame_columns(data) is not None:
            source, steps = _losses_of_frame(FrameRows(LongFrame(data, roles, (_ITEM, _LAMBDA, LOSS))), bound)
        else:
            source = arrays = DeviceArrays(data, "losses")
            who = RowReader(source, np.zeros(0, np.int64), ids).who
            steps = tuple(_as_steps(own, who(k), bound) for k, own in enumerate(arrays.arrays))
            if not steps:
                raise ValueError("calibration needs at least one device, got none")
        sizes = np.array([len(own) for own in steps], dtype=np.int64)
        table = cls(source.names, _offsets(sizes), losses=steps)
        return _with_columns(table, RowReader(source, sizes, ids), roles, **given)

    @classmethod
    def of_outputs(
        cls,
        data: Any,
        adaptation: Adaptation,
        *,
        columns: Mapping[str, str] | ColumnRoles | None = None,
        classes: Sequence[Any] | None = None,
        labels: Any = None,
        ids: Sequence[Sequence[str]] = (),
        **given: Any,
    ) -> Table:
        """Read outputs and true labels, for adapted scores: a pair for each device, or a long frame.

        A frame has the columns `device` and `label` and one for each class, or `prediction` (and `scale`) for
        regression. `labels` may be given apart from outputs, in their form, or names the column. Labels are column
        numbers, or names among `classes`. `given` are the further columns of `Table.of`.
        """
        roles = columns if isinstance(columns, ColumnRoles) else ColumnRoles(columns)
        if isinstance(data, Table):
            if data.outputs is None:
                raise TypeError("adapted scores need outputs and labels of every row; this Table holds scores")
            return _with_columns(data, _reader_of_table(data, ids), roles, **given)
        used = [name for key in ("groups", "mixture") for name in _column_names(given.get(key))]
        reader, each, found = read_labelled_outputs(data, roles, labels, adaptation.task, classes, used, ids)
        classes = found if classes is None else classes
        names = [*map(str, classes)] if classes is not None and adaptation.task == "classification" else []
        bags = []
        for k, (outputs, own) in enumerate(each):
            who = reader.who(k)
            check_index(own, outputs, "labels", "outputs")
            in_order = columns_in_order(outputs, names, f"{who}: outputs")
            bags.append(adaptation.read(in_order, _as_positions(own, names, adaptation, who), who))
        shapes = {bag.outputs.shape[1:] for bag in bags if len(bag.labels)}
        if len(shapes) > 1:
            odd = next(k for k, bag in enumerate(bags) if len(bag.labels) and bag.outputs.shape[1:] != min(shapes))
            raise ValueError(
                f"{reader.who(odd)}: outputs must have as many columns as on other devices, got "
                f"{bags[odd].outputs.shape[1:]} and {min(shapes)}"
            )
        if not shapes:
            raise ValueError("adapted scores need labelled outputs of at least one device; all devices have none")
        empty = (0, *shapes.pop())
        made = cls(
            reader.source.names,
            _offsets(reader.sizes),
            outputs=np.concatenate([bag.outputs if len(bag.labels) else np.zeros(empty) for bag in bags]),
            truth=np.concatenate([bag.labels for bag in bags if len(bag.labels)]),
            classes=None if classes is None else tuple(classes),
        )
        return _with_columns(made, reader, roles, **given)

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
        more = [
            name
            for name in ("groups", "weight", "inputs", "labels", "losses", "outputs")
            if getattr(self, name) is not None
        ]
        beside = f" with {', '.join(more)}" if more else ""
        return f"Table({len(self):,} rows of {self.devices:,} devices{beside})"

    def rows(self, device: int) -> slice:
        """Return which rows belong to a device."""
        return slice(int(self.offsets[device]), int(self.offsets[device + 1]))

    def take(self, devices: Sequence[int] | Ints) -> Table:
        """Return the rows of these devices, in this order."""
        chosen = np.asarray(devices, dtype=np.int64)
        if np.array_equal(chosen, np.arange(self.devices)):
            return self
        return self._first_rows(chosen, self.sizes[chosen])

    def first_rows(self, sizes: Sequence[int] | Ints) -> Table:
        """Return the first rows of each device, so many of each."""
        counts = np.asarray(sizes, dtype=np.int64)
        return self if np.array_equal(counts, self.sizes) else self._first_rows(np.arange(self.devices), counts)

    def _first_rows(self, chosen: Ints, sizes: Ints) -> Table:
        """Return the first rows of these devices, in this order, so many of each."""
        offsets = _offsets(sizes)
        rows = np.repeat(self.offsets[chosen] - offsets[:-1], sizes) + np.arange(int(offsets[-1]))
        return replace(
            self,
            names=None if self.names is None else tuple(self.names[k] for k in chosen.tolist()),
            offsets=offsets,
            score=None if self.score is None else self.score[rows],
            groups=None if self.groups is None else self.groups.take(rows),
            weight=None if self.weight is None else self.weight[rows],
            inputs=None if self.inputs is None else self.inputs[rows],
            labels=None if self.labels is None else self.labels[rows],
            losses=None
            if self.losses is None
            else tuple(_first_items(self.losses[k], n) for k, n in zip(chosen.tolist(), sizes.tolist(), strict=True)),
            outputs=None if self.outputs is None else self.outputs[rows],
            truth=None if self.truth is None else self.truth[rows],
            in_place=False,
        )

    def _for_one_run(self, devices: Sequence[int] | Ints) -> Table:
        """Return the rows of these devices for one run, which may sort what was copied."""
        chosen = self.take(devices)
        return chosen if chosen is self else replace(chosen, in_place=True)

    def ordered(self, network: Network, local_rows: Ints, what: str = "scores") -> Table:
        """Return the rows of this process's devices, in the order of the network.

        `local_rows` are the rows of the network that an engine hosts in this process. Devices with names are put in
        order. Devices without names must be in order already; a network whose order is ambiguous refuses them.
        """
        local = network.local_ids(local_rows)
        if self.names is not None:
            if self.names == local:
                return self
            # A process may bring the rows of its own devices only, or those of all.
            brings_own = len(local) < network.devices and {*self.names} <= {*local}
            place = places_by_id(self.names, local if brings_own else network.ids, what)
            return self._for_one_run([place[name] for name in local])
        network.check_list(what)
        if self.devices == network.devices:
            return self._for_one_run(local_rows)
        if self.devices != len(local):
            of_rank = "" if len(local) == network.devices else f", or for the {len(local)} of this rank"
            turned = self.devices and {*self.sizes.tolist()} == {network.devices}
            raise ValueError(
                f"the network {network.name!r} has {network.devices} devices but {what} came for {self.devices}; "
                f"pass one array per device{of_rank} (empty where a device has none)"
                + ("; its columns seem to be the devices: pass table.T" if turned else "")
            )
        return self

    def check_range(self, score: Score | None, names: Sequence[str]) -> None:
        """Refuse scores that the score which was named cannot give; say whose they are and where they stand.

        The two sides of an interval are signed distances, whatever the range of the score itself.
        """
        if score is None or self.score is None or self.score.ndim == 2:
            return
        outside = score.outside(self.score)
        if outside.any():
            k = int(np.searchsorted(self.offsets, int(outside.argmax()), side="right") - 1)
            score.check_range(self.score[self.rows(k)], f"device {names[k]}")

    def _with_sides(self, sides: bool) -> Table:
        """Return this table, or refuse it where it has not the scores that are needed."""
        if self.score is None:
            raise TypeError("this Table holds losses and no scores; use control, or give scores")
        if sides != (self.score.ndim == 2):
            columns = "two columns of scores, one for each side" if self.score.ndim == 2 else "one column of scores"
            raise ValueError(f"this Table has {columns}; use symmetric={self.score.ndim != 2}")
        return self


class _TableColumns:
    """The columns of a table that exists: its own by name, others in the form of `Table.of`."""

    _NAMED = ("weight", "inputs", "labels")

    def __init__(self, table: Table) -> None:
        self.table, self.names, self.devices = table, table.names, table.devices

    def has_column(self, name: str) -> bool:
        """Return False: shares come from a frame or a dict."""
        return False

    def column(self, given: Any, what: str, sizes: Ints) -> list[Any]:
        """Return what each device has of a column, one entry for each of its rows."""
        if isinstance(given, str):
            values = getattr(self.table, given) if given in self._NAMED else None
            if values is None:
                raise ValueError(f"{what}={given!r} names a column, which this table does not have: {self.table!r}")
            return [values[self.table.rows(k)] for k in range(self.devices)]
        if self.table.in_place:  # an earlier run may have sorted the scores: which row is which is lost
            raise ValueError(
                f"{what} belong to rows, and Table.from_flat(..., copy=False) lets runs reorder them; leave copy=False "
                "out"
            )
        return arrays_beside(given, what, self.names, self.devices)


def _reader_of_table(table: Table, ids: Sequence[Sequence[str]]) -> RowReader:
    return RowReader(_TableColumns(table), table.sizes, ids)


def argument_or_own(roles: ColumnRoles, role: str, given: Any, data: Any) -> Any:
    """Return what an argument says; without it the column that was named for its role, or what a table has of it."""
    if given is not None or role in roles.given or not isinstance(data, Table):
        return roles.argument(role, given)
    return {"weight": data.weight, "label": data.labels}[role]


def _with_columns(
    table: Table,
    reader: RowReader,
    roles: ColumnRoles,
    *,
    groups: Any = None,
    weight: Any = None,
    inputs: Any = None,
    labels: Any = None,
    mixture: Any = None,
) -> Table:
    """Return a table with the further columns that were asked for."""
    groups, weight, labels = (
        roles.argument(role, value) for role, value in (("group", groups), ("weight", weight), ("label", labels))
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
    share = roles.given.get("share") if mixture is None or isinstance(mixture, str) else None
    if isinstance(mixture, str) and mixture not in CHOSEN_MIXTURES and reader.source.has_column(mixture):
        share = mixture
    return table if share is None else replace(table, shares=reader.shares(share))


def _column_names(given: Any) -> list[str]:
    """Return the names of columns that an argument may be; a list of rows is none."""
    if isinstance(given, str):
        return [given]
    return [*given] if isinstance(given, list | tuple) and all(isinstance(name, str) for name in given) else []


def _as_positions(labels: Any, classes: Sequence[str], adaptation: Adaptation, who: str) -> Any:
    """Return labels as column numbers where they are names of classes; none may be missing."""
    given = np.asarray(labels)
    refuse_missing_labels(given, who)
    if classes:
        return label_positions(given, classes, f"{who}, labels")
    if adaptation.task == "classification" and (name := next((y for y in given.tolist() if isinstance(y, str)), None)):
        raise ValueError(
            f"{who}: labels are names, such as {name!r}, and nothing says which column of outputs belongs to which; "
            "give classes=, the names in the order of the columns"
        )
    return labels


def _offsets(sizes: Any) -> Ints:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _first_items(steps: StepLosses, items: int) -> StepLosses:
    return steps if len(steps) == items else steps.take(np.arange(items))


def _as_steps(held: Any, who: str, bound: float | None) -> StepLosses:
    """Return a device's losses as steps that may be controlled, or say what is wrong with them."""
    if isinstance(held, StepLosses):
        return (held if bound is None else replace(held, bound=bound)).checked(who)
    try:
        steps = StepLosses.of(held, 1.0 if bound is None else bound)
    except (TypeError, ValueError) as problem:
        shape = getattr(held, "shape", None)
        given = f"{type(held).__name__}: {problem}" if shape is None else f"an array of shape {tuple(shape)}"
        raise ValueError(
            f"{who}: losses must be StepLosses, or (breakpoints, values) for each item, got {given}; a loss makes "
            "StepLosses of outputs and labels, such as losses.FalseNegativeRate()(outputs, labels), and "
            "losses.StepLosses.on_grid(lambdas, table) of a table of losses, items x lambdas"
        ) from None
    return steps.checked(who)


def _losses_of_frame(frame: FrameRows, bound: float | None) -> tuple[ItemRows, tuple[StepLosses, ...]]:
    """Return the losses of a long frame, and a source of one value for each item of its columns."""
    empty = np.zeros(0, np.int64)
    columns = [frame.column(name, "losses", empty) for name in (_ITEM, _LAMBDA, LOSS)]
    steps = []
    for name, items, lambdas, values in zip(frame.names, *columns, strict=True):
        try:
            made = StepLosses.of_table(items, lambdas, values, 1.0 if bound is None else bound)
        except ValueError as problem:
            raise ValueError(f"device {name}, {problem}") from None
        steps.append(made.checked(f"device {name}"))
    return ItemRows(frame, [np.asarray(items).astype(str) for items in columns[0]]), tuple(steps)
