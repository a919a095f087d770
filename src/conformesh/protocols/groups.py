r"""Overlapping groups: thresholds that cover within each of them, from counts alone.

An *atom* is a combination of groups; every score lies in one. The trials of the samples are the atoms, and each device
adds up its atoms to groups before anything is sent. `count_g` is how many scores of group g (or how much weight, where
the target weighs devices) lie at or below their threshold, :math:`n_g` how many there are.

atoms   each atom's own swap rank, :math:`\text{count} \ge (1-\alpha) n + 1`; so it holds for every union of atoms
max     each group's own swap rank; a point takes the largest threshold of its groups
seq     groups in a public order, everyone last. T_lo and T_hi are 0 at first, that is -inf. Each group takes the
        smallest theta_hi at which :math:`\#\{i \in g: S_i \le \max(T_{lo}, \theta)\} \ge (1-\alpha) n_g + 1`, the
        smallest theta_lo with T_hi in place of T_lo and :math:`(1-\alpha)(n_g - 1)`; T_hi and T_lo are the largest of
        these over the groups that hold the point. The threshold is T_hi

Assumes     graph connected; an aggregator that is exact on it; groups and their order not chosen from these scores
Guarantees  :math:`P(S > T \mid g) \le \alpha` for all groups at once: *counted* (docs/guarantees.md)
Message     as `e_dcp`, for every atom or group; `seq` has a search of its own for each group that overlaps earlier ones
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.common.names import natural_order, unknown_name
from conformesh.files.memberships import EVERYONE, Atom, atom_name
from conformesh.kernels.keys import from_keys
from conformesh.kernels.ranks import AUTO, GROUP_RULES
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.aggregate import NetworkSum
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.e_dcp import EDCP, best_stage_width, e_dcp_in_rounds, search_by_counts, with_exact_sums
from conformesh.protocols.messages import Protocol
from conformesh.results.certificate import Certificate

# Expected scores of every atom from which the rule `auto` chooses `atoms`: with fewer, the swap rank of an atom leaves
# it far above 1 - alpha, and sharing scores with other groups gives smaller sets. A choice; every rule is valid.
_ENOUGH_FOR_ATOMS = 70


@dataclass(frozen=True, eq=False)
class Grouping:
    """Which groups there are and how they overlap: what everybody knows before the first message.

    Attributes
    ----------
    atoms
        The combinations of groups that occur, in the order of the trials.
    rule
        A name of `GROUP_RULES`.
    order
        The groups in the order of `seq`, everyone last.
    hidden
        For `regression` with many atoms: one score of each device here, drawn at random, in the column of its atom;
        +inf elsewhere, (devices here, atoms).
    """

    atoms: tuple[Atom, ...]
    rule: str
    order: tuple[str, ...]
    hidden: Floats | None = None

    @classmethod
    def of(
        cls,
        atoms: Sequence[Atom],
        rule: str,
        order: Sequence[str] | None = None,
        expected: Mapping[Atom, int] | None = None,
    ) -> Grouping:
        """Check the rule and the order against the groups that occur, and choose what was left open.

        The choice depends on nothing but what is known before the scores: `auto` is `atoms` where every atom was named
        beforehand and `_ENOUGH_FOR_ATOMS` scores are expected of each; else `seq`, which is never above `max` and needs
        no scale on which scores add up, as `regression` does.
        """
        if rule not in (AUTO, *GROUP_RULES):
            raise ValueError(unknown_name("group rule", rule, (AUTO, *GROUP_RULES)))
        names = natural_order({name for atom in atoms for name in atom})
        if EVERYONE in names:
            raise ValueError(f"the group {EVERYONE!r} holds everybody and is always there; leave it out, or rename it")
        wanted = tuple(name for name in order or names if name != EVERYONE)
        if missing := [name for name in names if name not in wanted]:
            raise ValueError(f"group_order must name every group, everyone comes last, got no {missing[0]!r}")
        if len({*wanted}) < len(wanted):
            raise ValueError(f"group_order must name every group once, got {', '.join(wanted)}")
        if rule == AUTO:
            large = bool(expected) and all((expected or {}).get(atom, 0) >= _ENOUGH_FOR_ATOMS for atom in atoms)
            rule = "atoms" if large else "seq"
        return cls(tuple(atoms), rule, (*(name for name in wanted if name in names), EVERYONE))

    @cached_property
    def members(self) -> NDArray[np.bool_]:
        """Which group holds which atom, (groups, atoms)."""
        return np.array([[name == EVERYONE or name in atom for atom in self.atoms] for name in self.order])

    @property
    def by_atoms(self) -> bool:
        """Whether thresholds are those of atoms, and not of groups."""
        return self.rule in ("atoms", "regression")

    @property
    def hides_drawn_scores(self) -> bool:
        """Whether `regression` hides one drawn score of each device: there are too many atoms to hide all in turn."""
        from conformesh.protocols.group_regression import MOST_ATOMS_HIDDEN

        return self.rule == "regression" and len(self.atoms) > MOST_ATOMS_HIDDEN

    @property
    def parts(self) -> tuple[str, ...]:
        """What thresholds are for: atoms, or groups."""
        return tuple(map(atom_name, self.atoms)) if self.by_atoms else self.order


def group_thresholds(block: Block, samples: WeightedScores, options: EDCP, grouping: Grouping) -> Protocol[Answers]:
    """Run a rule on scores by atom; thresholds and certificates are those of `Grouping.parts`.

    The promise of the block is that of parts of what devices hold; how many examples these hold follows from the sizes,
    as every example is in one atom.
    """
    examples = np.repeat(block.sizes.sum(axis=1)[:, None], block.trials, axis=1)
    requirement = replace(block.requirement, is_weighted=True)
    if grouping.rule in ("seq", "regression"):  # proven by an exchange of scores, also where one device holds them all
        requirement = replace(requirement, rank_rule="swap")
    block = replace(block, requirement=requirement, items=examples)
    outcome = yield from _PROTOCOLS[grouping.rule](block, block.weighed(samples), options, grouping)
    signed = [
        [block.signed(certificate, 0, level) for level, certificate in enumerate(row)] for row in outcome.certificates
    ]
    rule = {"seq": "seq", "regression": "regression"}.get(grouping.rule, "swap")
    target = block.requirement.mixture
    return replace(
        outcome,
        certificates=[[structs.replace(one, rule=rule, mixture=target) for one in row] for row in signed],
        facts={**outcome.facts, "group_rule": grouping.rule},
    )


def _by_atoms(block: Block, samples: WeightedScores, options: EDCP, grouping: Grouping) -> Protocol[Answers]:
    """Search every atom's own swap rank."""
    return (yield from e_dcp_in_rounds(block, samples, options))


def _by_max(block: Block, samples: WeightedScores, options: EDCP, grouping: Grouping) -> Protocol[Answers]:
    """Search every group's own swap rank."""
    merged = _merge_atoms(samples, [np.flatnonzero(row) for row in grouping.members])
    return (yield from e_dcp_in_rounds(_with_trials(block, merged, grouping), merged, options))


def _by_seq(block: Block, samples: WeightedScores, options: EDCP, grouping: Grouping) -> Protocol[Answers]:
    """Go through the groups in their order; those that do not overlap are searched together."""
    width = options.width or best_stage_width(block, options.aggregate, options.prefer)

    def attempt(total: NetworkSum) -> Protocol[Answers]:
        return (yield from _search_in_sequence(block, samples, grouping, total, width))

    return (yield from with_exact_sums(block, options.aggregate, options.prefer, width, attempt))


def _search_in_sequence(
    block: Block, samples: WeightedScores, grouping: Grouping, total: NetworkSum, width: int
) -> Protocol[Answers]:
    """Find theta_hi and theta_lo of one batch of groups after the other."""
    groups, levels = len(grouping.order), len(block.alphas)
    masses, rounding_loss = yield from _group_masses(samples, grouping, total)
    required = _with_trials(block, samples, grouping).ranks(masses, rounding_loss)  # (1 - alpha) n_g + 1
    least = _lower_ranks(block, masses, rounding_loss)  # (1 - alpha) (n_g - 1)
    reach = np.full((2, len(grouping.atoms), levels), -np.inf)  # T_hi and T_lo of every atom
    found, counted = np.full((groups, levels), -np.inf), np.zeros((groups, levels), dtype=np.int64)
    for batch in _batches(grouping.members):
        last = batch[-1] == groups - 1
        problems = [(side, g, level) for side in range(1 if last else 2) for g in batch for level in range(levels)]
        trials = [
            _scores_above(samples, np.flatnonzero(grouping.members[g]), reach[1 - side, :, level])
            for side, g, level in problems
        ]
        rest = _join_trials(trials)
        covered = samples.masses @ grouping.members.T  # (devices here, groups)
        mine = np.stack([covered[:, g] for _, g, _ in problems], axis=1) - rest.masses
        done = np.zeros(len(problems), dtype=np.int64)
        if (reach > -np.inf).any():  # else nobody is covered yet
            done = np.asarray((yield from total(mine, block.most))[0], dtype=np.int64)
        ranks = np.array([(least if side else required)[g, level] for side, g, level in problems]) - done
        left = np.array([masses[g] for _, g, _ in problems]) - done
        here = replace(
            block,
            sizes=np.repeat(block.sizes[:, :1], len(problems), axis=1),
            items=None if block.items is None else np.repeat(block.items[:, :1], len(problems), axis=1),
            alphas=block.alphas[:1],
        )
        brackets = yield from search_by_counts(here, rest, ranks[:, None], left, total, width)
        theta = np.where(ranks > left, np.inf, np.where(ranks <= 0, -np.inf, from_keys(brackets.high)))
        reached = np.where(ranks <= 0, done, done + brackets.at_high)
        for at, (side, g, level) in enumerate(problems):
            within = grouping.members[g]
            reach[side, within, level] = np.maximum(reach[side, within, level], theta[at])
            if side == 0:
                found[g, level], counted[g, level] = theta[at], reached[at]
    weights = [None] * groups if block.alike(0) else masses.tolist()
    certificates = [
        [Certificate("counted", int(required[g, a]), int(counted[g, a]), weight=weights[g]) for a in range(levels)]
        for g in range(groups)
    ]
    thresholds = np.broadcast_to(found, (len(block.rows), groups, levels)).copy()
    return Answers(thresholds, certificates, facts={"stage_width": str(width)})


def _group_masses(samples: WeightedScores, grouping: Grouping, total: NetworkSum) -> Protocol[tuple[Ints, Ints]]:
    """Add up what the scores of every group weigh, and how much more they might have weighed before rounding."""
    mine = samples.masses @ grouping.members.T
    if samples.rounding_loss is None:
        masses = (yield from total(mine))[0]
        return np.asarray(masses, dtype=np.int64), np.zeros(len(masses), dtype=np.int64)
    lost = samples.rounding_loss.reshape(samples.devices, samples.trials) @ grouping.members.T
    masses, rounding_loss = (yield from total(np.stack([mine, lost], axis=1)))[0]
    return np.asarray(masses, dtype=np.int64), np.asarray(rounding_loss, dtype=np.int64)


def _lower_ranks(block: Block, masses: Ints, rounding_loss: Ints) -> Ints:
    """Return what the fit of any exchange of one score reaches in each group at least, (groups, alphas)."""
    largest = block.demands[0].largest
    return np.array(
        [
            [math.ceil((1 - alpha) * (mass - largest)) - spare for alpha in block.alphas]
            for mass, spare in zip(masses.tolist(), rounding_loss.tolist(), strict=True)
        ],
        dtype=np.int64,
    )


def _batches(members: NDArray[np.bool_]) -> list[list[int]]:
    """Return groups that can be searched together, in order: none overlaps another of its batch or of a later one."""
    depth: list[int] = []
    for g, mine in enumerate(members):
        before = [depth[h] + 1 for h in range(g) if (members[h] & mine).any()]
        depth.append(max(before, default=0))
    return [[g for g, d in enumerate(depth) if d == level] for level in range(max(depth) + 1)]


def _with_trials(block: Block, samples: WeightedScores, grouping: Grouping) -> Block:
    """Return a block whose trials are the groups."""
    groups = len(grouping.order)
    items = None if block.items is None else np.repeat(block.items[:, :1], groups, axis=1)
    return replace(block, sizes=block.sizes @ grouping.members.T.astype(np.int64), items=items)


def _merge_atoms(samples: WeightedScores, trials: Sequence[Ints]) -> WeightedScores:
    """Return samples whose trials are unions of trials."""
    return _join_trials([_scores_above(samples, atoms, None) for atoms in trials])


_Piece = tuple[list[Floats], list[Ints] | None, Ints | None]


def _scores_above(samples: WeightedScores, atoms: Ints, floor: Floats | None) -> _Piece:
    """Return each device's scores of some atoms, those above the floor of their atom alone, with their weights."""
    values, weights = [], []
    for device in range(samples.devices):
        own, weigh = [], []
        for atom in atoms.tolist():
            start, stop = samples.offsets[device * samples.trials + atom : device * samples.trials + atom + 2]
            if floor is not None:
                start += np.searchsorted(samples.values[start:stop], floor[atom], side="right")
            own.append(samples.values[start:stop])
            if samples.weights is not None:
                weigh.append(samples.weights[start:stop])
        values.append(np.concatenate(own) if own else np.zeros(0))
        weights.append(np.concatenate(weigh) if weigh else np.zeros(0, dtype=np.int64))
    rounding_loss = None
    if samples.rounding_loss is not None:
        rounding_loss = samples.rounding_loss.reshape(samples.devices, samples.trials)[:, atoms].sum(axis=1)
    return values, None if samples.weights is None else weights, rounding_loss


def _join_trials(pieces: Sequence[_Piece]) -> WeightedScores:
    """Return samples with these trials."""
    values = [values for values, _, _ in pieces]
    weights = [weights for _, weights, _ in pieces if weights is not None]
    samples = WeightedScores.weighted(values, weights) if weights else WeightedScores.of_trials(values)
    rounding_loss = [rounding_loss for _, _, rounding_loss in pieces if rounding_loss is not None]
    return replace(samples, rounding_loss=np.stack(rounding_loss, axis=1).ravel()) if rounding_loss else samples


def _by_regression(block: Block, samples: WeightedScores, options: EDCP, grouping: Grouping) -> Protocol[Answers]:
    """Fit quantile regressions on counts."""
    from conformesh.protocols.group_regression import fit_group_thresholds

    def attempt(total: NetworkSum) -> Protocol[Answers]:
        return (yield from fit_group_thresholds(block, samples, grouping.members, grouping.hidden, total))

    width = options.width or best_stage_width(block, options.aggregate, options.prefer)
    return (yield from with_exact_sums(block, options.aggregate, options.prefer, width, attempt))


_PROTOCOLS: dict[str, Callable[[Block, WeightedScores, EDCP, Grouping], Protocol[Answers]]] = {
    "atoms": _by_atoms,
    "max": _by_max,
    "seq": _by_seq,
    "regression": _by_regression,
}
