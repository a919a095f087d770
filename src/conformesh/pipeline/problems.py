r"""Problems: a guarantee and a table become columns of integer weights and one required rank for each part and level.

Groups, the two sides of an interval and centres are *parts*; their product has one column of weighted scores for each
combination. A row's weight in a column is a product: whether the row is in the group, how near it is to the centre, how
much likelier it is among new examples. Levels are the alphas, times the weights of new examples that get a threshold of
their own. Losses are columns of drops: an example's loss falls at its breakpoints. All problems of a call are solved in
one run.

Device weights :math:`\pi_k / n_k`, the unit of weights and required ranks need everybody's number of rows, and groups
the names that any device has. Engines exchange both with `agree_on_facts`; devices of a mesh have the names in
their configuration (`configured_part_names`) and exchange numbers only. What follows (`problem_columns`) sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.common.arrays import note_similar_names
from conformesh.common.names import natural_order, unknown_name
from conformesh.common.random_streams import hash_numbers, random_stream
from conformesh.files.memberships import Atom, atom_name
from conformesh.guarantee import LOWER, UPPER, Groups, Guarantee, LossBound, Mixture, Weighting
from conformesh.kernels.ranks import LOCAL_LOSS_UNITS, LOSS_UNITS, Requirement
from conformesh.kernels.time_uniform import scores_per_step, steps_at_look
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.shift import WeightUnit, label_weights, refuse_weights_above_bound
from conformesh.protocols.block import merge_rows
from conformesh.scores.centres import WEIGHT_UNITS, Centres, centre_name

if TYPE_CHECKING:  # a device of a mesh without groups needs none of these
    from conformesh.engines.base import Engine
    from conformesh.protocols.block import Answers
    from conformesh.protocols.groups import Grouping
    from conformesh.table import Table

# Thresholds of one call. Groups, sides, centres and levels multiply: more are most likely a product that nobody meant,
# and each column takes memory for all scores.
_MOST_PROBLEMS = 10_000
# Scores that change so often from row to row, in one direction only, are sorted: by chance once in 1.8 million devices.
_SORTED_STEPS = 9


class Problem(NamedTuple):
    """One threshold that was asked for, and where the run has its answer.

    Attributes
    ----------
    part
        The names of group, side, centre and weight of new examples, those that there are; empty without parts.
    alpha
        The level that was asked for; of a side that of the whole interval.
    column, level
        Where the answer stands.
    examples
        How many calibration examples the part has on all devices.
    """

    part: tuple[str, ...]
    alpha: Fraction
    column: int
    level: int
    examples: int


class _PartNames(NamedTuple):
    """What all devices must know of the parts before they can count rows.

    Attributes
    ----------
    atoms
        The combinations of groups that may occur, in the order of their names; empty without groups.
    overlapping
        Whether a row may be in several groups, or in none.
    loss_bound
        The largest possible loss.
    """

    atoms: tuple[Atom, ...] = ()
    overlapping: bool = False
    loss_bound: float = 1.0


class PublicFacts(NamedTuple):
    """What all devices know before anything is weighed, the same everywhere.

    Attributes
    ----------
    names
        The names of the parts.
    rows
        How many rows every device of the network has in each combination of groups, (devices, atoms); one column where
        there are no groups.
    """

    names: _PartNames
    rows: Ints

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """The combinations of groups, in the order of their names."""
        return self.names.atoms

    @property
    def total(self) -> int:
        """How many rows all devices have."""
        return int(self.rows.sum())


class LocalRows:
    """The rows of the devices here, and the scores that they have: one each, two for an interval, drops of a loss."""

    def __init__(self, table: Table, names: Sequence[str]) -> None:
        self.table, self.names, self.devices = table, names, table.devices

    @cached_property
    def owner(self) -> Ints:
        """Which device each row belongs to."""
        return np.repeat(np.arange(self.devices), self.table.sizes)

    def scores(self, loss_unit: int) -> tuple[Ints, Ints | None, Floats]:
        """Return the row of each score, how much a loss falls there, in units (None: no losses), and values by side."""
        if self.table.losses is not None:
            return _loss_drops(self.table, loss_unit)
        assert self.table.score is not None
        values = self.table.score if self.table.score.ndim == 2 else self.table.score[:, None]
        return np.arange(len(self.table)), None, values

    def place(self, row: int) -> tuple[str, int]:
        """Return whose a row is, and which of its rows."""
        k = int(self.owner[row])
        return f"device {self.names[k]}", row - int(self.table.offsets[k])

    def atom_codes(self, atoms: Sequence[Atom]) -> Ints | None:
        """Return which of the agreed combinations of groups each row is in; None without groups."""
        groups = self.table.groups
        if groups is None:
            return None
        place = {atom: i for i, atom in enumerate(atoms)}
        known = np.array([place.get(atom, -1) for atom in groups.atoms], dtype=np.int64)
        codes = known[groups.codes] if len(known) else np.zeros(0, dtype=np.int64)
        if (codes < 0).any():
            row = int((codes < 0).argmax())
            whose, at = self.place(row)
            name = atom_name(groups.atoms[groups.codes[row]])
            raise ValueError(f"{whose}, row {at}: {unknown_name('group', name, map(atom_name, atoms))}")
        return codes

    def counts(self, atoms: Sequence[Atom]) -> Ints:
        """Return how many rows the devices here have of each combination of groups, (devices here, atoms or 1)."""
        codes = self.atom_codes(atoms)
        if codes is None:
            return self.table.sizes[:, None]
        found = np.bincount(self.owner * len(atoms) + codes, minlength=self.devices * len(atoms))
        return found.reshape(self.devices, len(atoms))


def agree_on_facts(engine: Engine, rows: LocalRows, bound: float | None, named: Iterable[Atom]) -> PublicFacts:
    """Exchange what the weights depend on: names of groups and the largest loss, then numbers of rows."""
    groups = rows.table.groups
    if groups is None and rows.table.losses is None:  # there are no names to agree on
        return PublicFacts(_PartNames(), gather_counts(engine, rows.table.sizes[:, None]))
    mine = (
        set() if groups is None else {groups.atoms[code] for code in np.unique(groups.codes).tolist()},
        groups is not None and groups.overlapping,
        {name: steps.bound for name, steps in zip(rows.names, rows.table.losses or (), strict=False) if len(steps)},
    )
    shared = engine.share(mine)
    by_name = {atom_name(atom): atom for atoms, _, _ in shared for atom in atoms}
    if groups is not None and not by_name:
        raise ValueError("groups were asked for, but no device has a score")
    by_name |= {atom_name(atom): atom for atom in named}
    note_similar_names((group for atom in by_name.values() for group in atom), "groups")
    names = _PartNames(
        tuple(by_name[name] for name in natural_order(by_name)),
        any(overlapping for _, overlapping, _ in shared),
        _agreed_bound([bounds for _, _, bounds in shared], bound),
    )
    return PublicFacts(names, gather_counts(engine, rows.counts(names.atoms)))


def first_rows(
    rows: LocalRows, agreed: PublicFacts, mixture: Mixture, ids: Sequence[str], local: Ints
) -> tuple[LocalRows, PublicFacts, dict[str, Any]]:
    """Return the rows that count where a confidence holds at all looks, all numbers of them, and how many do not.

    At such a look devices contribute in proportion to their shares: each its first rows, as many as the device with the
    fewest for its share allows. `local` are the places of the devices here among `ids`.
    """
    sizes = agreed.rows[:, 0]
    given = mixture.shares
    assert given is not None or mixture.kind == "equal" or len(ids) == 1  # the mixtures that are fixed in advance
    per_step = [1] * len(ids) if given is None else scores_per_step([given[name] for name in ids])
    counts = steps_at_look(sizes, per_step) * np.array(per_step, dtype=np.int64)
    unused = int(sizes.sum() - counts.sum())
    _refuse_sorted(rows, counts[local])
    table = rows.table.first_rows(counts[local])
    return LocalRows(table, rows.names), agreed._replace(rows=counts[:, None]), {"unused_rows": unused}


def _refuse_sorted(rows: LocalRows, counts: Ints) -> None:
    """Refuse sorted scores where only the first ones count: they would be the lowest, or the highest.

    Where all count, their order changes nothing.
    """
    assert rows.table.score is not None
    values = rows.table.score if rows.table.score.ndim == 2 else rows.table.score[:, None]
    owner, devices = rows.owner[1:], rows.devices
    same = owner == rows.owner[:-1]
    for column in values.T:
        rises, falls = column[1:] > column[:-1], column[1:] < column[:-1]
        up = np.bincount(owner[same & rises], minlength=devices)
        down = np.bincount(owner[same & falls], minlength=devices)
        found = (np.minimum(up, down) == 0) & (up + down >= _SORTED_STEPS) & (counts < rows.table.sizes)
        if found.any():
            k = int(found.argmax())
            raise ValueError(
                f"device {rows.names[k]}: scores must be in the order in which they arrived, and these are sorted; "
                f"time_uniform counts the first {counts[k]:,} of {rows.table.sizes[k]:,}, which would be the "
                f"{'lowest' if up[k] else 'highest'}"
            )


def gather_counts(engine: Engine, counts: Ints) -> Ints:
    """Return numbers of all devices of the network by row, from those of the devices here."""
    return merge_rows(engine.blocks, engine.share(counts))


def configured_part_names(guarantee: Guarantee, table: Table, device: str) -> _PartNames:
    """Return the names of the parts as a device of a mesh is configured with them; others do not count.

    A device that believed names of others would let one of them add columns to everybody's run.
    """
    groups, loss = guarantee.groups, guarantee.loss
    if (groups is None) != (table.groups is None):
        missing = "the configuration names no groups" if groups is None else "its rows have no groups"
        raise ValueError(f"device {device}: the configuration and the rows must both have groups, and {missing}")
    if loss is not None and any(len(steps) and steps.bound != loss.bound for steps in table.losses or ()):
        raise ValueError(f"device {device}: its losses must have the bound of the configuration, {loss.bound:g}")
    bound = 1.0 if loss is None else loss.bound
    if groups is None:
        return _PartNames(loss_bound=bound)
    atoms = groups.atoms.values() if groups.rule else [(name,) for name in groups.names]
    by_name = {atom_name(atom): tuple(atom) for atom in atoms}
    return _PartNames(tuple(by_name[name] for name in natural_order(by_name)), bool(groups.rule), bound)


def _agreed_bound(parts: Sequence[Mapping[str, float]], given: float | None) -> float:
    """Return the one bound of the losses of all devices."""
    if given is not None:
        return float(given)
    bounds = {name: bound for part in parts for name, bound in part.items()}
    if len({*bounds.values()}) > 1:
        low, high = min(bounds, key=bounds.__getitem__), max(bounds, key=bounds.__getitem__)
        raise ValueError(
            f"all devices must know the same largest loss, got {bounds[low]:g} on device {low} and {bounds[high]:g} on "
            f"device {high}; say it with bound="
        )
    return next(iter(bounds.values()), 1.0)


@dataclass(frozen=True, eq=False)
class ProblemColumns:
    """What one run solves: weighted scores of the devices here, and what is required of them.

    Attributes
    ----------
    scores
        A column for each combination of parts. With `grouping` the columns are the atoms, apart for each side.
    sizes
        How many scores every device of the network has in each column, (devices, columns) for each of `scores`. None
        where rows have weights: who weighs nothing is left out, so that these numbers must be exchanged.
    requirement
        What is required of the columns.
    levels
        The level of each problem in a column: alpha, or the part of it that a side has.
    problems
        The thresholds that were asked for, parts outer, levels inner.
    examples
        How many examples every device has, (devices, columns), where these are not the scores of a column; None
        otherwise.
    asked
        Which levels of each column were asked for; None: all.
    grouping
        For rules of overlapping groups that are more than a rank for each group: `seq` and `regression`.
    """

    scores: tuple[WeightedScores, ...]
    sizes: tuple[Ints, ...] | None
    requirement: Requirement
    levels: tuple[Fraction, ...]
    problems: list[Problem]
    examples: Ints | None = None
    asked: NDArray[np.bool_] | None = None
    grouping: Grouping | None = None

    @property
    def hides_scores(self) -> bool:
        """Whether each device hides one of its scores, which regression over many groups does."""
        return self.grouping is not None and self.grouping.hides_drawn_scores


class _Weights:
    """What each row weighs: the factor of every column but its group."""

    def __init__(self, rows: LocalRows, guarantee: Guarantee, agreed: PublicFacts) -> None:
        centres, weighting = guarantee.centres, guarantee.weighting
        self.loss_unit = 0 if guarantee.loss is None else LOSS_UNITS if centres is None else LOCAL_LOSS_UNITS
        self.near = None if centres is None else _centre_weights(centres, rows.table, rows.place)
        self.weight: Ints | None = None
        self.lost: Ints | None = None
        self.unit: WeightUnit | None = None
        if weighting is not None:
            factor = (1 if centres is None else WEIGHT_UNITS) * max(self.loss_unit, 1)
            self.unit = WeightUnit.of(weighting.bound, agreed.total, guarantee.mixture.kind, factor)
            values = _likelihoods(rows, weighting)
            self.weight, self.lost = self.unit.round_down(values), self.unit.rounding_loss(values)

    @property
    def is_plain(self) -> bool:
        """Whether every row weighs 1 in its column."""
        return self.weight is None and self.near is None and not self.loss_unit

    def factor(self, centre: int | None) -> Ints | None:
        """Return what each row weighs at a centre, beside its device's weight; None: 1."""
        near = None if centre is None or self.near is None else self.near[:, centre]
        if near is None or self.weight is None:
            return self.weight if near is None else near
        return np.asarray(self.weight * near)


def _likelihoods(rows: LocalRows, weighting: Weighting) -> Floats:
    """Return how much likelier each row is among new examples."""
    table = rows.table
    if weighting.class_weights:
        assert table.labels is not None
        return label_weights(table.labels, weighting.class_weights, rows.place)
    assert table.weight is not None
    refuse_weights_above_bound(table.weight, weighting.bound, rows.place)
    return table.weight


def _centre_weights(centres: Centres, table: Table, place: Callable[[int], tuple[str, int]]) -> Ints:
    """Return the weights of all rows at the centres, (rows, centres)."""
    if table.inputs is None:
        raise ValueError("centres need inputs=, the features of every score, beside the scores")
    if not len(table):
        return np.zeros((0, len(centres)), dtype=np.int64)
    try:
        return centres.weights(table.inputs)
    except ValueError as problem:
        raise ValueError(f"{place(0)[0]}: {problem}") from None


def _loss_drops(table: Table, unit: int) -> tuple[Ints, Ints, Floats]:
    """Return the row of every drop of a loss, how many units the loss falls there, and at which lambda."""
    rows, drops, points = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros((0, 1))]
    for k, steps in enumerate(table.losses or ()):
        lambdas, falls, items = steps.drops(unit)
        rows.append(items + table.offsets[k])
        drops.append(falls)
        points.append(lambdas[:, None])
    return np.concatenate(rows), np.concatenate(drops), np.concatenate(points)


def problem_columns(
    rows: LocalRows, guarantee: Guarantee, agreed: PublicFacts, requirement: Requirement, grouping: Grouping | None
) -> ProblemColumns:
    """Return the columns, the requirement and the problems of a guarantee for the rows of the devices here.

    `requirement` has mixture and rank rule; `grouping` says how groups overlap, where they do.
    """
    if not has_parts(guarantee) and guarantee.sides is None and guarantee.loss is None:
        # One column of scores that weigh alike. A million devices need no second array: it may be sorted in place.
        table, n = rows.table, agreed.total
        assert table.score is not None
        scores = WeightedScores.from_flat(table.score, table.sizes, names=rows.names, copy=not table.in_place)
        problems = [Problem((), alpha, 0, level, n) for level, alpha in enumerate(guarantee.alphas)]
        return ProblemColumns((scores,), (agreed.rows,), requirement, guarantee.alphas, problems)
    weights = _Weights(rows, guarantee, agreed)
    strategy = grouping is not None and grouping.rule in ("seq", "regression")
    sides = (None,) if guarantee.sides is None else (LOWER, UPPER)
    centres = (None,) if guarantee.centres is None else tuple(range(len(guarantee.centres)))
    atoms = group_memberships(guarantee.groups, grouping, agreed, strategy)
    parts = [(g, s, c) for g in range(len(atoms)) for s in range(len(sides)) for c in range(len(centres))]
    runs = [[part for part in parts if part[1] == s] for s in range(len(sides))] if strategy else [parts]
    examples = agreed.rows if guarantee.groups is None else _by_group(agreed.rows, atoms)
    levels, level_of = _levels(guarantee)
    largest = _largest_weights(weights, guarantee, parts)
    counts = examples.sum(axis=0).tolist()
    problems = _problems(guarantee, grouping if strategy else None, counts, sides, centres, level_of)
    _refuse_many(problems)
    members, codes = None, rows.atom_codes(agreed.atoms)
    if codes is not None:
        members = np.array([[code in atom for code in range(len(agreed.atoms))] for atom in atoms], dtype=bool)
    held = None
    if requirement.is_weighted or weights.loss_unit:
        held = np.repeat(agreed.rows.sum(axis=1)[:, None], len(parts), axis=1)
    return ProblemColumns(
        scores=tuple(_weigh(rows, weights, guarantee, run, members, codes, centres) for run in runs),
        sizes=tuple(examples[:, [g for g, _, _ in run]] for run in runs) if weights.is_plain else None,
        requirement=replace(
            requirement,
            largest_weights=largest if {*largest} != {largest[0]} else largest[:1],
            test_weights=_test_weights(guarantee.weighting, weights, levels, largest),
            loss_unit=weights.loss_unit,
            pac_problems=0 if requirement.pac_confidence is None else len(problems),
        ),
        levels=tuple(alpha for alpha, _ in levels),
        problems=problems,
        examples=held,
        asked=_asked_levels(guarantee, sides, parts, levels),
        grouping=grouping if strategy else None,
    )


def _by_group(counts: Ints, atoms: Sequence[frozenset[int]]) -> Ints:
    """Return numbers of every device by column of groups, (devices, groups), from numbers by combination of groups."""
    return np.stack([counts[:, sorted(atom)].sum(axis=1) for atom in atoms], axis=1)


def group_memberships(
    groups: Groups | None, grouping: Grouping | None, agreed: PublicFacts, by_atom: bool
) -> list[frozenset[int]]:
    """Return the atoms that make up each column of groups; one column of everything where there are no groups."""
    if groups is None:
        return [frozenset()]
    if by_atom or grouping is None or grouping.by_atoms:
        return [frozenset([code]) for code in range(len(agreed.atoms))]
    return [frozenset(np.flatnonzero(row).tolist()) for row in grouping.members]


def _levels(guarantee: Guarantee) -> tuple[list[tuple[Fraction, float | None]], dict[Any, int]]:
    """Return the levels of the run, each an alpha and a weight of new examples, and where each asked one stands."""
    weighting, loss = guarantee.weighting, guarantee.loss
    tests = [None] if weighting is None or not weighting.names else sorted({*weighting.names.values()})
    found: dict[tuple[Fraction, float | None], int] = {}
    level_of: dict[Any, int] = {}
    for asked in guarantee.alphas:
        alpha = asked if loss is None else _risk_level(asked, loss)
        each = {None: alpha} if guarantee.sides is None else guarantee.sides.levels(alpha)
        for side, level in each.items():
            for test in tests:
                level_of[asked, side, test] = found.setdefault((level, test), len(found))
    return [*found], level_of


def _risk_level(risk: Fraction, loss: LossBound) -> Fraction:
    """Return a risk as a part of the largest possible loss."""
    bound = Fraction(str(float(loss.bound)))
    if not 0 < risk < bound:
        raise ValueError(
            f"risk must be a number strictly between 0 and the largest possible loss, {loss.bound:g}, got "
            f"{float(risk):g}"
        )
    return risk / bound


def _weigh(
    rows: LocalRows,
    weights: _Weights,
    guarantee: Guarantee,
    parts: Sequence[tuple[int, int, int]],
    members: NDArray[np.bool_] | None,
    atom_of_row: Ints | None,
    centres: Sequence[int | None],
) -> WeightedScores:
    """Return the weighted scores of all columns."""
    columns, (row_of, drop, each) = len(parts), rows.scores(weights.loss_unit)
    values, segments, weighed = [], [], []
    lost = np.zeros((rows.devices, columns), dtype=np.int64)
    mass = np.zeros((rows.devices, columns), dtype=np.int64)
    for column, (g, s, c) in enumerate(parts):
        within = None if members is None or atom_of_row is None else members[g][atom_of_row]
        inside = slice(None) if within is None else within[row_of]
        factor = weights.factor(None if centres[c] is None else c)
        taken = row_of[inside]
        values.append(each[inside, s])
        segments.append(rows.owner[taken] * columns + column)
        if factor is not None or drop is not None:
            weight = np.ones(len(taken), np.int64) if factor is None else factor[taken]
            weighed.append(weight if drop is None else weight * drop[inside])
        every = slice(None) if within is None else within
        if weights.lost is not None:
            # Weights were rounded down; what that lost is added to the required rank, so that coverage cannot suffer.
            more = weights.lost if weights.near is None else weights.lost * weights.near[:, c]
            np.add.at(lost[:, column], rows.owner[every], more[every])
        if drop is not None:
            np.add.at(mass[:, column], rows.owner[every], 1 if factor is None else factor[every])
    # Device first, column second. The sort is stable, so that weights stay beside their scores.
    order = np.argsort(np.concatenate(segments), kind="stable")
    flat, where = np.concatenate(values)[order], np.concatenate(segments)
    sizes = np.bincount(where, minlength=rows.devices * columns)
    if not weighed:
        return WeightedScores.from_flat(flat, sizes, columns, names=rows.names, copy=False)
    weigh = np.concatenate(weighed)[order]
    within = np.lexsort((flat, where[order]))  # the order into which `from_flat` sorts the scores of each segment
    scores = WeightedScores.from_flat(flat, sizes, columns, names=rows.names)
    return scores.with_weights(
        weigh[within],
        None if weights.lost is None else lost.ravel(),
        mass.ravel() if drop is not None and has_parts(guarantee) else None,
    )


def _largest_weights(weights: _Weights, guarantee: Guarantee, parts: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
    """Return the largest weight that an example may have in each column."""
    caps = (1,) if guarantee.centres is None else tuple(guarantee.centres.caps.tolist())
    whole = (
        1 if weights.unit is None or guarantee.weighting is None else weights.unit.round_up(guarantee.weighting.bound)
    )
    return tuple(caps[c] * whole for _, _, c in parts)


def has_parts(guarantee: Guarantee) -> bool:
    """Return whether columns hold a part of the examples, or examples have weights."""
    return any(part is not None for part in (guarantee.groups, guarantee.centres, guarantee.weighting))


def _test_weights(
    weighting: Weighting | None,
    weights: _Weights,
    levels: Sequence[tuple[Fraction, float | None]],
    largest: tuple[int, ...],
) -> tuple[tuple[int, ...], ...] | None:
    """Return the weight of the new example for each column and level; None: the largest."""
    if weighting is None or weights.unit is None or not weighting.names:
        return None
    # Weights of new examples are rounded up, those of calibration examples down: both can only raise the rank.
    whole = weights.unit.round_up(weighting.bound)
    each = [weights.unit.round_up(weighting.bound if test is None else test) for _, test in levels]
    made = [tuple(one // whole * test for test in each) for one in largest]
    return (made[0],) if len({*made}) == 1 else tuple(made)


def _asked_levels(
    guarantee: Guarantee,
    sides: Sequence[str | None],
    parts: Sequence[tuple[int, int, int]],
    levels: Sequence[tuple[Fraction, float | None]],
) -> NDArray[np.bool_] | None:
    """Return which levels of each column were asked for; sides with unequal shares have levels of their own."""
    if guarantee.sides is None:
        return None
    each = [{guarantee.sides.levels(alpha)[str(side)] for alpha in guarantee.alphas} for side in sides]
    asked = np.array([[alpha in each[s] for alpha, _ in levels] for _, s, _ in parts], dtype=bool)
    return None if asked.all() else asked


def _problems(
    guarantee: Guarantee,
    strategy: Grouping | None,
    counts: Sequence[int],
    sides: Sequence[str | None],
    centres: Sequence[int | None],
    level_of: Mapping[Any, int],
) -> list[Problem]:
    """Return the problems, parts outer, levels inner."""
    groups: Sequence[str | None] = (None,) if guarantee.groups is None else guarantee.groups.part_names
    examples = [*counts]
    if strategy is not None and not strategy.by_atoms:
        examples = (strategy.members @ np.array(counts)).tolist()
    tests: dict[str | None, float | None] = {None: None}
    if guarantee.weighting is not None and guarantee.weighting.names:
        tests = dict(guarantee.weighting.names.items())
    found = []
    for g, group in enumerate(groups):
        for s, side in enumerate(sides):
            for c, centre in enumerate(centres):
                column = (g * len(sides) + s) * len(centres) + c
                for name, test in tests.items():
                    named = (group, side, None if centre is None else centre_name(centre), name)
                    part = tuple(one for one in named if one is not None)
                    found += [
                        Problem(part, alpha, column, level_of[alpha, side, test], examples[g])
                        for alpha in guarantee.alphas
                    ]
    return found


def _refuse_many(problems: Sequence[Problem]) -> None:
    if len(problems) > _MOST_PROBLEMS:
        raise ValueError(
            f"groups, sides, centres, weights and levels multiply to {len(problems):,} thresholds, and at most "
            f"{_MOST_PROBLEMS:,} are computed in one call; use fewer groups, centres or levels"
        )


def draw_hidden_scores(
    rows: LocalRows, network_rows: Ints, agreed: PublicFacts, columns: ProblemColumns, seed: int
) -> list[Floats]:
    """Return for each side one score of each device here, drawn at random, in the column of its atom; +inf elsewhere.

    Empty where no score is hidden. `network_rows` says which rows of the network the devices here are. The hash of the
    device's scores makes the place differ between data sets also where the seed is fixed: in sorted scores a fixed
    place is always the same rank.
    """
    if not columns.hides_scores:
        return []
    codes = rows.atom_codes(agreed.atoms)
    assert codes is not None
    scores = rows.scores(0)[2]
    hidden = [np.full((len(network_rows), len(agreed.atoms)), np.inf) for _ in columns.scores]
    for side, found in enumerate(hidden):
        for k, row in enumerate(network_rows.tolist()):
            own = rows.table.rows(k)
            values = np.ascontiguousarray(scores[own, side])
            if len(values):
                place = int(random_stream(seed, "hidden", row, hash_numbers(values)).integers(len(values)))
                found[k, codes[own][place]] = values[place]
    return hidden


def guarantee_groups(table: Table, grouping: Grouping | None, agreed: PublicFacts) -> Groups | None:
    """Return the groups as a guarantee names them."""
    if table.groups is None:
        return None
    if grouping is None:
        return Groups(tuple(map(atom_name, agreed.atoms)), column=table.group_column)
    atoms = {atom_name(atom): atom for atom in agreed.atoms}
    return Groups(grouping.order, grouping.rule, atoms, table.group_column)


def add_agreed_parts(guarantee: Guarantee, groups: Groups | None, agreed: PublicFacts) -> Guarantee:
    """Return the guarantee with what the devices agreed on."""
    loss = guarantee.loss if guarantee.loss is None else structs.replace(guarantee.loss, bound=agreed.names.loss_bound)
    return structs.replace(guarantee, groups=groups, loss=loss)


def merge_sides(outcomes: Sequence[Answers], groups: int, asked: Sequence[Sequence[int]], levels: int) -> Answers:
    """Return one outcome for both sides of groups that were searched side by side: columns are group, then side."""
    first = outcomes[0]
    devices = len(first.thresholds)
    thresholds = np.full((devices, groups, len(outcomes), levels), np.inf)
    nothing = first.certificates[0][0]
    certificates = [[[nothing] * levels for _ in outcomes] for _ in range(groups)]
    for s, (outcome, own) in enumerate(zip(outcomes, asked, strict=True)):
        for at, level in enumerate(own):
            thresholds[:, :, s, level] = outcome.thresholds[:, :, at]
            for g in range(groups):
                certificates[g][s][level] = outcome.certificates[g][at]
    return replace(
        first,
        thresholds=thresholds.reshape(devices, groups * len(outcomes), levels),
        certificates=[certificates[g][s] for g in range(groups) for s in range(len(outcomes))],
        estimates=None,
        brackets=None,
        notes=tuple(dict.fromkeys(note for outcome in outcomes for note in outcome.notes)),
    )
