r"""Quantile regression over groups from counts: thresholds that add up over groups, no score leaves its device.

`L_C` fits the scores C by quantile regression over group indicators at a level just below :math:`1-\alpha` and takes
the largest optimal fit. The threshold of atom a is :math:`T(a) = \max_h L_{C-h+(a,\infty)}(a)`: one score h is hidden,
a new one at a stands at infinity. Which score of atom b is hidden does not matter, but for its side of the fit: below
it or not. So there are at most two problems for each pair (a, b), which `kernels.group_fit` solves. With more than
`MOST_ATOMS_HIDDEN` atoms only one score of each device is hidden, which it drew at random: coverage also averages
over this draw.

1. Add up the scores of every atom; agree on the smallest and the largest of all.
2. An atom's line falls into cells, of which is known how many scores they hold. The scores of a cell are taken as
   spread over it, and all fits are made.
3. Every cell that holds a fitted value is split, by counts inside it or by naming its smallest and largest score; back
   to 2. When no such cell is left, it is known of every score on which side of every fit it lies: the fits satisfy
   the conditions of optimality of the true problem, which is counted with integers.

Assumes     graph connected; an aggregator that is exact on it; finite scores that weigh alike (target `sizes`)
Guarantees  :math:`P(S > T \mid g) \le \alpha` for all groups at once (docs/guarantees.md), counted
Message     counts at a few thresholds for each cell that is split, and a number that tells whether all ask the same
Departures  [Gibbs2025] have one sample, all of it exchangeable with the new point; with K > 1 devices their threshold
            does not cover, and a score must be hidden
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from conformesh.common.array_types import Bools, Floats, Ints
from conformesh.kernels.group_fit import Bends, Vertices, first_vertex, improved, leaning
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.aggregate import NetworkSum
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.consensus import agreed_maximum
from conformesh.protocols.messages import Protocol
from conformesh.protocols.quantiser import agree_on_ends
from conformesh.results.certificate import Certificate

# Atoms above which only one drawn score per device is hidden: hiding every score in turn takes two fits per pair of
# atoms.
MOST_ATOMS_HIDDEN = 50
_FEW_NAMED_SCORES = 3  # scores; up to this many of a cell are named, which takes no more numbers than counting them
_MOST_SPLITS = 8  # splits by value after which ends are named, so that skewed scores and ties end
_POINTS_PER_CELL = 4  # values that stand for the scores of a cell in a fit; cells that decide are split until exact
ENTRIES_AT_ONCE = 2_000_000  # entries of all tableaus at once: 16 MB
_GOLDEN_RATIO = 0.6180339887498949  # multiples of it modulo 1 are evenly spread and never repeat
_FINEST_SLOPE = 1e13  # slopes are whole numbers over small determinants; float64 tells them apart up to here


@dataclass(eq=False)
class ScoreInterval:
    """Scores of one atom between two values, both included; `tight` where both are scores."""

    low: float
    high: float
    scores: int
    tight: bool
    splits: int = 0

    @property
    def known(self) -> bool:
        """Whether all scores of the cell are known."""
        return self.low == self.high

    @property
    def wants_names(self) -> bool:
        """Whether its smallest and largest score should be named rather than its scores be counted."""
        return not self.tight and (self.scores <= _FEW_NAMED_SCORES or self.splits > _MOST_SPLITS)

    def cuts(self) -> list[float]:
        """Return thresholds inside the cell, ascending, none of them its upper end: counts there split it."""
        inner = [self.low + (self.high - self.low) * part for part in (0.25, 0.5, 0.75)]
        if self.tight and (
            self.scores <= 2 * _FEW_NAMED_SCORES or self.splits > _MOST_SPLITS
        ):  # the ends are scores, and leave
            inner = [self.low, inner[1], float(np.nextafter(self.high, -np.inf))]
        return sorted({min(max(cut, self.low), float(np.nextafter(self.high, -np.inf))) for cut in inner})


@dataclass(eq=False)
class ScoreCells:
    """What everybody knows of the scores: for each atom its cells in ascending order; `trials` are those of atoms."""

    cells: list[list[ScoreInterval]]
    trials: Ints

    @classmethod
    def of(cls, counts: Ints, low: float, high: float, trials: Ints) -> ScoreCells:
        """Begin with one cell for each atom that has scores, from the smallest score of all to the largest."""
        return cls(
            [[ScoreInterval(low, high, count, tight=False)] if count else [] for count in counts.tolist()], trials
        )

    def bends(self, level: PinballLevel) -> tuple[Bends, Bends]:
        """Return where the atoms' functions bend: apart from each other, as the simplex method needs it, and as is."""
        spots = [_points_of_cells(own, atom) for atom, own in enumerate(self.cells)]
        width = max(len(where) for where, _ in spots) + 2
        at = np.full((len(spots), width), np.inf)
        slopes = np.empty((len(spots), width))
        at[:, 0] = -np.inf
        for atom, (where, scores) in enumerate(spots):
            at[atom, 1 : 1 + len(where)] = where
            counts = np.concatenate([[0], np.cumsum(scores)])
            steps = level.steep * counts - level.pull * counts[-1]
            slopes[atom, : len(steps)], slopes[atom, len(steps) :] = steps, steps[-1]
        return Bends(_separate_bends(at), slopes), Bends(at, slopes)

    def hit(self, values: Floats) -> set[tuple[int, int]]:
        """Return the cells, by atom and place, that hold a value and scores not known; `values` (problems, atoms)."""
        found: set[tuple[int, int]] = set()
        for atom, (own, fits) in enumerate(zip(self.cells, values.T, strict=True)):
            if not own:
                continue
            lows, highs = np.array([cell.low for cell in own]), np.array([cell.high for cell in own])
            at = np.searchsorted(highs, fits)
            inside = at < len(own)
            inside[inside] = fits[inside] >= lows[at[inside]]
            found |= {(atom, i) for i in np.unique(at[inside]).tolist() if not own[i].known}
        return found

    def count(self, atom: int, value: float) -> int:
        """Return how many scores of an atom are at or below a value that no open cell holds."""
        return sum(cell.scores for cell in self.cells[atom] if cell.high <= value)

    def split(self, atom: int, index: int, cuts: list[float], counts: list[int]) -> list[ScoreInterval]:
        """Return the cells that counts at cuts make of one; `counts` are those of the whole atom."""
        cell, before = self.cells[atom][index], sum(one.scores for one in self.cells[atom][:index])
        lows = [cell.low, *(float(np.nextafter(cut, np.inf)) for cut in cuts)]
        highs = [*cuts, cell.high]
        ranks = [before, *counts, before + cell.scores]
        parts = [
            ScoreInterval(low, high, above - below, tight=False, splits=cell.splits + 1)
            for low, high, below, above in zip(lows, highs, ranks[:-1], ranks[1:], strict=True)
        ]
        return _split_known_pairs([part for part in parts if part.scores])


def _split_known_pairs(cells: list[ScoreInterval]) -> list[ScoreInterval]:
    """Part cells with two scores, both of which are known, in two."""
    found = []
    for cell in cells:
        if cell.tight and not cell.known and cell.scores == 2:
            found += [
                ScoreInterval(cell.low, cell.low, 1, tight=True),
                ScoreInterval(cell.high, cell.high, 1, tight=True),
            ]
        else:
            found.append(cell)
    return found


def _points_of_cells(cells: list[ScoreInterval], atom: int) -> tuple[list[float], list[int]]:
    """Return values that stand for the scores of an atom, ascending, and for how many each of them stands."""
    where, scores = [], []
    for cell in cells:
        if cell.known:
            where.append(cell.high)
            scores.append(cell.scores)
            continue
        many = min(cell.scores, _POINTS_PER_CELL)
        shares = np.diff(np.arange(many + 1) * cell.scores // many).tolist()
        noise = (zlib.crc32(repr((atom, cell.low, cell.high)).encode()) / 2**32 - 0.5) * 0.6
        spots = [cell.low + (cell.high - cell.low) * (i + 0.5 + noise) / many for i in range(many)]
        for spot, share in zip(spots, shares, strict=True):
            if where and spot <= where[-1]:  # no float is left in between
                scores[-1] += share
            else:
                where.append(spot)
                scores.append(share)
    return where, scores


def _separate_bends(at: Floats) -> Floats:
    """Move bends up by less than a billionth of their range, so that no fit meets two of them by chance."""
    finite = np.isfinite(at)
    span = float(np.ptp(at[finite])) or 1.0
    room = np.full(at.shape, 1e-10 * span)
    both = finite[:, :-1] & finite[:, 1:]
    room[:, :-1][both] = np.minimum(room[:, :-1][both], (at[:, 1:][both] - at[:, :-1][both]) / 2)
    noise = np.modf(np.arange(1, at.size + 1) * _GOLDEN_RATIO)[0].reshape(at.shape)  # no two sums of few of them agree
    return np.where(finite, at + noise * room, at)


@dataclass(frozen=True)
class PinballLevel:
    """The level of a regression, in whole numbers: a score above the fit pulls up by `pull` of `steep`."""

    pull: int
    steep: int

    @classmethod
    def of(cls, alpha: Fraction, n: int) -> PinballLevel:
        """Return the level just below 1 - alpha at which no group of n scores or fewer has too many above its fit."""
        steep = alpha.denominator * (n + 1)
        if float(steep) * n > _FINEST_SLOPE:
            raise ValueError(
                f"group_rule='regression' takes fewer scores: {n:,} at alpha {alpha} are too many to be told apart in "
                "float64; use 'seq' or 'atoms'"
            )
        return cls((alpha.denominator - alpha.numerator) * (n + 1) - 1, steep)


@dataclass(frozen=True, eq=False)
class _Hidden:
    """Atoms in which a score is hidden, and the smallest and largest of these scores as far as known, (2, atoms)."""

    atoms: Ints
    ends: Floats

    @classmethod
    def anywhere(cls, book: ScoreCells) -> _Hidden:
        """Hide every score in turn; a cell that is open is on one side of every fit, or it will be split."""
        ends = [(own[0].high, own[-1].low) if own else (np.inf, -np.inf) for own in book.cells]
        return cls(np.array([atom for atom, own in enumerate(book.cells) if own], dtype=np.int64), np.array(ends).T)


def _fits_for(
    book: ScoreCells, members: Bools, level: PinballLevel, hidden: _Hidden | None
) -> Iterator[tuple[Floats, Floats, Ints]]:
    """Fit all problems, some at a time: their values (problems, atoms), the value for the new point, and its atom.

    The value for the new point is -inf where it does not count: without hidden scores, to begin with, none does.
    """
    apart, true = book.bends(level)
    atoms = members.shape[1]
    masses = np.array([sum(cell.scores for cell in own) for own in book.cells])
    base = improved(apart, first_vertex(members, apart, masses), np.zeros((1, atoms)))
    yield _fit_values(base, true), np.full(1, -np.inf), np.zeros(1, dtype=np.int64)
    push = np.eye(atoms) * (level.pull + 1)  # a new score at infinity, and among equal fits the largest
    every = np.arange(atoms)
    alone = improved(apart, base.repeated(np.zeros(atoms, dtype=np.int64)), push)
    yield _fit_values(alone, true)[alone.bounded], np.full(atoms, -np.inf), every
    if hidden is None:
        return
    slack = 1e-9 * float(np.ptp(true.at[np.isfinite(true.at)]))
    size = max(ENTRIES_AT_ONCE // (atoms * base.basis.shape[1] * len(hidden.atoms)), 1)
    for begin in range(0, atoms, size):
        new = np.repeat(every[begin : begin + size], len(hidden.atoms))
        gone = np.tile(hidden.atoms, len(new) // len(hidden.atoms))
        values, own = _fits_without_hidden(
            apart, true, alone, push, new, gone, level.steep - level.pull
        )  # one below the fit
        fit = _fit_at_atoms(values, own, gone)
        high = np.flatnonzero(hidden.ends[1, gone] >= fit - slack)
        over, raised = _fits_without_hidden(
            apart, true, alone, push, new[high], gone[high], -level.pull
        )  # one that is not
        # with a hidden score on the fit itself, the other fit counts, unless that passes through it too
        counts = hidden.ends[0, gone] < fit - slack
        counts[high] |= _fit_at_atoms(over, raised, gone[high]) >= fit[high] - slack
        yield values[np.isfinite(own)], np.where(counts, own, -np.inf), new
        yield over[np.isfinite(raised)], raised, new[high]


def _fit_at_atoms(values: Floats, own: Floats, atoms: Ints) -> Floats:
    """Return the value of each fit at an atom, +inf where the fit has no bound."""
    return np.where(np.isfinite(own), values[np.arange(len(atoms)), atoms], np.inf)


def _fits_without_hidden(
    apart: Bends, true: Bends, alone: Vertices, push: Floats, new: Ints, gone: Ints, pull: int
) -> tuple[Floats, Floats]:
    """Return the values of the fits with a new score at each of some atoms and without one at others, and at the new.

    A score that is gone pulls no more: `pull` is what that adds.
    """
    pulls = push[new]
    pulls[np.arange(len(new)), gone] += pull
    values, own = _fit_values(alone, true)[new], _fit_at_new_point(alone, true, np.arange(len(alone.basis)))[new]
    moved = np.flatnonzero(_is_not_optimal(apart, alone, pulls, new))
    if len(moved):
        found = improved(apart, alone.repeated(new[moved]), pulls[moved])
        values[moved], own[moved] = _fit_values(found, true), _fit_at_new_point(found, true, new[moved])
    return values, own


def _is_not_optimal(bends: Bends, at: Vertices, pulls: Floats, rows: Ints) -> Bools:
    """Mark the problems for which the vertex they start from, `rows` of them, is not optimal."""
    lean = np.empty((len(rows), at.basis.shape[1]))
    for row in np.unique(rows):
        own = np.flatnonzero(rows == row)
        plain = leaning(bends, at, np.zeros((len(at.basis), pulls.shape[1])), np.array([row]))
        lean[own] = plain - pulls[own] @ at.tableau[row]
    basis, bend = at.basis[rows], at.bend[rows]
    off = np.maximum(-(lean + bends.slopes[basis, bend]), lean + bends.slopes[basis, bend - 1]) > 0.01
    return np.asarray(off.any(axis=1) & at.bounded[rows])


def _fit_values(at: Vertices, bends: Bends) -> Floats:
    """Return the values of fits that pass through the scores of their basis, exactly there.

    Every other value must lie between the bends for which the conditions of optimality were checked.
    """
    own = bends.at[at.basis, at.bend]
    values: Floats = np.einsum("pcj,pj->pc", at.tableau, own)
    np.put_along_axis(values, at.basis, own, axis=1)
    every, slack = np.arange(values.shape[1]), 1e-8 * float(np.ptp(bends.at[np.isfinite(bends.at)]))
    off = (values < bends.at[every, at.place] - slack) | (values > bends.at[every, at.place + 1] + slack)
    np.put_along_axis(off, at.basis, False, axis=1)
    if off[at.bounded].any():
        raise ArithmeticError("a fit over groups is not optimal for the scores as they are; use group_rule='seq'")
    return values


def _fit_at_new_point(at: Vertices, bends: Bends, atoms: Ints) -> Floats:
    """Return the value of each fit for the new point, rounded up; +inf where it has no bound."""
    own = bends.at[at.basis, at.bend]
    many = np.arange(len(atoms))
    row = at.tableau[many, atoms]
    value = np.einsum("pj,pj->p", row, own)
    error = 4e-16 * row.shape[1] * np.einsum("pj,pj->p", np.abs(row), np.abs(own))
    inside = (np.abs(row) > 0).sum(axis=1) == 1  # of the basis itself: the score, as it is
    return np.where(at.bounded, np.where(inside & (row.max(axis=1) == 1), value, value + error), np.inf)


def fit_group_thresholds(
    block: Block, samples: WeightedScores, members: Bools, hidden: Floats | None, total: NetworkSum
) -> Protocol[Answers]:
    """Find the threshold of every atom and level; `hidden` (devices here, atoms) has one score of each device here."""
    if any(demand.weights is not None for demand in block.demands):
        raise ValueError(
            "group_rule='regression' counts every score alike, and the mixture gives them weights; use "
            "mixture='sizes', or group_rule='seq'"
        )
    counts = np.asarray((yield from total(samples.masses))[0], dtype=np.int64)
    least, most = samples.extremes()
    ends = yield from agree_on_ends(block, least.min(axis=1, keepdims=True), most.max(axis=1, keepdims=True))
    low, high = ends[:, 0].tolist()
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError("group_rule='regression' adds scores up, so they must be finite, got inf; use 'seq'")
    fitted = determined_atoms(members, counts > 0)
    run = _Regression(block, samples, members[:, fitted], ScoreCells.of(counts[fitted], low, high, fitted), total)
    levels = [PinballLevel.of(alpha, int(counts.sum())) for alpha in block.alphas]
    _, reach = yield from run.settle(levels, None)  # most is settled by the few fits without a hidden score
    if hidden is None or (counts > 0).sum() <= MOST_ATOMS_HIDDEN:
        inner, _ = yield from run.settle(levels, lambda level: _Hidden.anywhere(run.book))
    else:
        drawn = yield from _hide_drawn_scores(block, hidden[:, fitted], reach, total)
        inner, _ = yield from run.settle(levels, lambda level: drawn[level])
    thresholds = np.full((len(counts), len(levels)), np.inf)
    thresholds[fitted] = inner
    covered = counts[:, None] * np.ones(len(levels), dtype=np.int64)
    covered[fitted] = [[run.book.count(atom, value) for value in row] for atom, row in enumerate(inner)]
    certificates = [[Certificate("counted", None, int(count)) for count in row] for row in covered]
    everywhere = np.broadcast_to(thresholds, (len(block.rows), *thresholds.shape)).copy()
    return Answers(everywhere, certificates, facts={"exchanges": str(run.exchanges)})


def _hide_drawn_scores(block: Block, hidden: Floats, reach: Floats, total: NetworkSum) -> Protocol[list[_Hidden]]:
    """Learn in which atoms drawn scores lie, and whether all of an atom lie below all fits, or above them.

    `reach` (levels, 2, atoms) are the smallest and the largest fit without a hidden score.
    """
    there = np.isfinite(hidden)
    room = reach[:, 1] - reach[:, 0]
    floor, ceiling = reach[:, 0] - room, reach[:, 1] + room
    below, above = hidden[:, None] < floor, there[:, None] & (hidden[:, None] > ceiling)
    table = np.concatenate([there[:, None], below, above], axis=1).astype(np.int64)
    sums = np.asarray((yield from total(table, block.devices))[0], dtype=np.int64)
    every, low, high = sums[0], *np.split(sums[1:], 2)
    return [
        _Hidden(
            np.flatnonzero(every),
            np.stack([np.where(high[a] == every, ceiling[a], -np.inf), np.where(low[a] == every, floor[a], np.inf)]),
        )
        for a in range(len(reach))
    ]


@dataclass(eq=False)
class _Regression:
    """One device's part in a regression: what it holds, and what everybody has learnt."""

    block: Block
    samples: WeightedScores
    members: Bools
    book: ScoreCells
    total: NetworkSum
    exchanges: int = 0

    def settle(
        self, levels: list[PinballLevel], hidden: Callable[[int], _Hidden] | None
    ) -> Protocol[tuple[Floats, Floats]]:
        """Make all fits and split the cells they hit, until they hit none.

        Return thresholds (atoms, levels), and the smallest and largest fit for each atom, (levels, 2, atoms).
        """
        atoms = self.members.shape[1]
        while True:
            hits: set[tuple[int, int]] = set()
            thresholds, reach = np.full((atoms, len(levels)), -np.inf), np.empty((len(levels), 2, atoms))
            reach[:, 0], reach[:, 1] = np.inf, -np.inf
            for a, level in enumerate(levels):
                for values, own, new in _fits_for(
                    self.book, self.members, level, None if hidden is None else hidden(a)
                ):
                    np.maximum.at(thresholds[:, a], new, own)
                    reach[a, 0] = np.minimum(reach[a, 0], values.min(axis=0, initial=np.inf))
                    reach[a, 1] = np.maximum(reach[a, 1], values.max(axis=0, initial=-np.inf))
                    hits |= self.book.hit(values)
            if not hits:
                return thresholds, reach
            yield from _refine_cells(self.block, self.samples, self.book, hits, self.total)
            self.exchanges += 1


def determined_atoms(members: Bools, held: Bools) -> Ints:
    """Return the atoms that have scores, or whose fit follows from those that have; `members` is (groups, atoms)."""
    known = members[:, held].astype(np.float64)
    rank = np.linalg.matrix_rank(known)
    free = [c for c in np.flatnonzero(~held) if np.linalg.matrix_rank(np.c_[known, members[:, c]]) == rank]
    return np.sort(np.concatenate([np.flatnonzero(held), np.array(free, dtype=np.int64)]))


def _refine_cells(
    block: Block, samples: WeightedScores, book: ScoreCells, hits: set[tuple[int, int]], total: NetworkSum
) -> Protocol[None]:
    """Split every cell that was hit: by counts, or by naming its ends where few scores are left or counts do not."""
    named = sorted((atom, index) for atom, index in hits if book.cells[atom][index].wants_names)
    counted = sorted(hits - {*named})
    if named:
        yield from _name_ends(block, samples, book, [(atom, book.cells[atom][index]) for atom, index in named])
    parts: dict[tuple[int, int], list[ScoreInterval]] = {}
    if counted:
        cuts = [book.cells[atom][index].cuts() for atom, index in counted]
        trials = book.trials[[atom for (atom, _), own in zip(counted, cuts, strict=True) for _ in own]]
        counts = yield from _count_and_compare(block, samples, trials, np.concatenate(cuts), total)
        ends = np.cumsum([len(own) for own in cuts])
        for place, mine, some in zip(counted, cuts, np.split(counts, ends[:-1]), strict=True):
            parts[place] = book.split(*place, mine, some.tolist())
    for atom, cells in enumerate(book.cells):
        cells[:] = _split_known_pairs([part for i, cell in enumerate(cells) for part in parts.get((atom, i), [cell])])


def _count_and_compare(
    block: Block, samples: WeightedScores, trials: Ints, asked: Floats, total: NetworkSum
) -> Protocol[Ints]:
    """Count the scores of atoms at or below thresholds that every device has worked out for itself.

    One more number tells whether all of them have worked out the same.
    """
    mine = samples.counts_of(trials, asked[:, None])[:, 0, :]
    check = zlib.crc32(asked.tobytes() + trials.tobytes()) & 0xFFFF
    words = np.concatenate([mine, np.full((len(mine), 1), check)], axis=1)
    sums = np.asarray((yield from total(words, max(int(block.sizes.sum()), 0xFFFF * block.devices)))[0], dtype=np.int64)
    if sums[-1] != check * block.devices:
        raise ArithmeticError("devices asked for counts at different thresholds: their arithmetic differs")
    return sums[:-1]


def _name_ends(
    block: Block, samples: WeightedScores, book: ScoreCells, named: list[tuple[int, ScoreInterval]]
) -> Protocol[None]:
    """Draw cells in to the smallest and the largest score that they hold."""
    lows = np.array([np.nextafter(cell.low, -np.inf) for _, cell in named])
    highs = np.array([cell.high for _, cell in named])
    low, high = samples.bracket_extremes(book.trials[[atom for atom, _ in named]], lows, highs)
    ends = (yield from agreed_maximum(np.stack([-low, high], axis=1), block))[0]
    for (_, cell), first, last in zip(named, (-ends[0]).tolist(), ends[1].tolist(), strict=True):
        cell.low, cell.high, cell.tight = first, last, True
