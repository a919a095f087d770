"""Which threshold each row of new outputs has: by its device, groups, weight, inputs, and by the label in question.

All thresholds of a level form an array with an axis for each kind of part (groups, sides, centres, weights) and one for
devices. Every axis gets an index: one number where it is settled, one per row, or one per column of the answer (sides,
or labels for class-conditional sets). NumPy's indexing then reads all thresholds at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformesh.common.array_types import Floats, Ints
from conformesh.common.arrays import as_array
from conformesh.common.names import natural_order
from conformesh.files.memberships import EVERYONE, Atom, Memberships
from conformesh.guarantee import LOWER, UPPER, Groups, Guarantee
from conformesh.scores.centres import centre_name

if TYPE_CHECKING:
    from conformesh.results.result import Result

GROUP, SIDE, CENTRE, _WEIGHT, _CLASS = "group", "side", "centre", "weight", "class"


class _LookupAxis(NamedTuple):
    """One kind of part: its name, and what has a threshold of its own."""

    kind: str
    names: tuple[str, ...]


def part_axes(guarantee: Guarantee) -> tuple[_LookupAxis, ...]:
    """Return the kinds of parts in the order of a part's components."""
    axes = []
    if guarantee.groups is not None:
        axes.append(_LookupAxis(GROUP, guarantee.groups.part_names))
    if guarantee.sides is not None:
        axes.append(_LookupAxis(SIDE, (LOWER, UPPER)))
    if guarantee.centres is not None:
        axes.append(_LookupAxis(CENTRE, tuple(map(centre_name, range(len(guarantee.centres))))))
    if guarantee.weighting is not None and guarantee.weighting.names:
        axes.append(
            _LookupAxis(_CLASS if guarantee.weighting.class_weights else _WEIGHT, (*guarantee.weighting.names,))
        )
    return tuple(axes)


class LookupRows(NamedTuple):
    """What is known of the rows that thresholds are looked up for; see `Result.predict`.

    `total` says how many rows there are, where that is known; `columns` names the labels of the outputs' columns, for
    sets that may be class-conditional.
    """

    device: Any = None
    groups: Any = None
    weight: Any = None
    inputs: Any = None
    rng: Any = None
    keys: Iterable[Any] | None = None
    total: int | None = None
    columns: Sequence[str] | None = None


class PredictionLimits(NamedTuple):
    """Thresholds as rows need them: one for all or one per row, times one, two (sides) or one per label."""

    values: Floats
    by_label: bool
    by_side: bool

    @property
    def per_row(self) -> float | Floats:
        """One threshold for all rows, or one each."""
        return float(self.values[0, 0]) if len(self.values) == 1 else self.values[:, 0]

    def side(self, column: int) -> float | Floats:
        """The thresholds of one side."""
        return float(self.values[0, column]) if len(self.values) == 1 else self.values[:, column]


def prediction_limits(result: Result, rows: LookupRows) -> PredictionLimits:
    """Return the thresholds of rows, of a result with one level."""
    guarantee, axes = result.guarantee, part_axes(result.guarantee)
    _refuse_unused(result, rows, axes)
    table = np.stack([answer.thresholds for answer in result.answers])
    places: Any = 0
    if rows.device is None:
        table = table.max(axis=1, keepdims=True)
    elif np.ndim(rows.device) == 0:
        places = result.place_of(rows.device)
    else:
        places = _per_row(result.places_of(rows.device), rows.total, "device")
    table = table.reshape(*(len({part[i] for part in result.parts}) for i in range(len(axes))), -1)
    index: list[Any] = []
    labelled = sided = False
    for i, axis in enumerate(axes):
        if result.is_settled(i):
            index.append(0)
        elif axis.kind == SIDE:
            sided = True
            index.append(np.array([[0, 1]]))
        elif axis.kind == CENTRE:
            index.append(_per_row(_draws(guarantee, rows), rows.total, "inputs"))
        elif axis.kind == _WEIGHT:
            index.append(_per_row(_by_weight(guarantee, rows), rows.total, "weight"))
        else:
            groups = guarantee.groups if axis.kind == GROUP else Groups(axis.names)
            assert groups is not None
            if rows.groups is not None and (axis.kind == GROUP or guarantee.groups is None):
                given = Memberships.of(rows.groups, "groups")
                table = _by_atom(table, i, given.atoms, groups)
                index.append(_per_row(given.codes, rows.total, "groups"))
            else:
                labelled = True
                table, where = _by_label(table, i, axis.names, rows.columns, groups.rule)
                index.append(where[None, :])
    values = np.asarray(table[(*index, places)], dtype=np.float64)
    return PredictionLimits(values if values.ndim == 2 else values.reshape(1, 1), labelled, sided)


def _refuse_unused(result: Result, rows: LookupRows, axes: Sequence[_LookupAxis]) -> None:
    """Refuse what the thresholds do not depend on: who gives it expects that they do."""
    member = _CLASS if result.guarantee.groups is None else GROUP
    settled = {axis.kind: result.is_settled(i) for i, axis in enumerate(axes)}
    who = "control" if result.controlled else "calibrate"
    for name, value, kind, maker in (
        ("weight", rows.weight, _WEIGHT, "test_weights"),
        ("groups", rows.groups, member, "groups"),
        ("inputs", rows.inputs, CENTRE, "centres"),
    ):
        if value is None or settled.get(kind) is False:
            continue
        if kind in settled:
            raise ValueError(f"this is a view of one {kind}, whose {result.what} serves all rows; leave {name}= out")
        what = {_WEIGHT: "test weight", CENTRE: "centre"}.get(kind, "group")
        raise ValueError(f"{name}= is for thresholds by {what}, which {who}({maker}=...) finds")


def _per_row(index: Ints, rows: int | None, what: str) -> Ints:
    if rows is not None and len(index) != rows:
        raise ValueError(f"{what} must be one for each of {rows} rows, got {len(index)}")
    return index[:, None]


def _draws(guarantee: Guarantee, rows: LookupRows) -> Ints:
    """Draw a centre for each row."""
    if rows.inputs is None:
        raise ValueError("predict needs inputs=, one row for each row of outputs: each draws a centre by its inputs")
    assert guarantee.centres is not None
    return guarantee.centres.draw(rows.inputs, rng=rows.rng, keys=rows.keys)


def _by_weight(guarantee: Guarantee, rows: LookupRows) -> Ints:
    """Return for each row the smallest computed weight that is at least its own."""
    if rows.weight is None:
        raise ValueError("predict needs weight=, one per row: thresholds are for weights of new examples")
    assert guarantee.weighting is not None
    levels, weight = guarantee.weighting.test_weights, as_array(rows.weight, "weight")
    count = 1 if rows.total is None else rows.total
    each = np.broadcast_to(np.asarray(weight, dtype=np.float64), (count,)) if weight.ndim == 0 else weight
    if each.ndim != 1 or (rows.total is not None and len(each) != count):
        raise ValueError(f"weight must be one for each of {count} rows, got shape {each.shape}")
    wrong = np.flatnonzero(~((each >= 0) & (each <= levels[-1])))
    if len(wrong):
        raise ValueError(f"weight: row {wrong[0]} must be from 0 to weight_bound {levels[-1]:g}, got {each[wrong[0]]}")
    return np.asarray(np.searchsorted(levels, each), dtype=np.int64)


def _by_atom(table: Floats, axis: int, atoms: Sequence[Atom], groups: Groups) -> Floats:
    """Return the table with an entry along the axis for each combination of groups that rows have."""
    table = np.moveaxis(table, axis, 0)
    place = {name: i for i, name in enumerate(groups.part_names)}
    by_members = {atom: name for name, atom in groups.atoms.items()}
    found = np.full((len(atoms), *table.shape[1:]), np.inf)
    for i, atom in enumerate(atoms):
        names = natural_order({*map(str, atom)} - ({EVERYONE} if groups.rule else set()))
        if strange := next((name for name in names if name not in groups.names), None):
            raise ValueError(f"no threshold for group {strange!r}; known: {', '.join(groups.names)}")
        if not groups.rule:
            if len(names) != 1:
                raise ValueError(f"a point lies in one of the groups {', '.join(groups.names)}, got {list(names)}")
            found[i] = table[place[names[0]]]
        elif not groups.has_threshold_per_atom:  # the largest covers the point in each of its groups
            found[i] = table[[place[name] for name in (*names, EVERYONE)]].max(axis=0)
        elif names in by_members:  # a combination that no calibration score had keeps +inf
            found[i] = table[place[by_members[names]]]
    return np.moveaxis(found, 0, axis)


def _by_label(
    table: Floats, axis: int, names: Sequence[str], columns: Sequence[str] | None, rule: str
) -> tuple[Floats, Ints]:
    """Return the place of every label along the axis; a class without calibration scores has +inf, and is always in."""
    if columns is None or rule:
        raise ValueError("predict needs groups=, one per row: thresholds differ by group")
    if strange := next((name for name in names if name not in columns), None):
        raise ValueError(
            f"class-conditional sets need groups named by label, {columns[0]} to {columns[-1]}, got {strange!r}; or "
            "pass groups=, one per row"
        )
    shape = [*table.shape]
    shape[axis] = 1
    place = {name: i for i, name in enumerate(names)}
    padded = np.concatenate([table, np.full(shape, np.inf)], axis=axis)
    return padded, np.array([place.get(label, len(names)) for label in columns], dtype=np.int64)
