r"""Exact counts below given thresholds, for p-values; and the step-up rule of Benjamini and Hochberg from counts.

A p-value is a count: :math:`p(s) = (v_{max} + \sum_{S_i \ge s} v_i) / T`. Every device counts its own scores below
every given threshold, and the counts are added up exactly.

Benjamini and Hochberg flag the R test scores with the smallest p-values, R the largest number with
:math:`\#\{p \le qR/m\} \ge R`. The devices start at R = m and repeat: the threshold :math:`\tau` of the level qR/m,
found as by E-DCP, then :math:`R \leftarrow \#\{\text{test scores} > \tau\}`, until R stays. No test score leaves its
device. Numbers below the largest R need not satisfy the inequality: halving an interval of them could end too low.

Assumes     graph connected; an aggregator that is exact on it; the asked thresholds known to all (`flood_test_scores`)
Guarantees  the counts themselves, and the R of Benjamini and Hochberg, on every device
Message     one integer per threshold through the aggregator; for the step-up rule a search and one integer a step
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from conformesh.common.array_types import Floats, Ints
from conformesh.kernels.keys import from_keys
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.aggregate import NetworkSum
from conformesh.protocols.block import Block
from conformesh.protocols.e_dcp import EDCP, best_stage_width, search_by_counts, sum_weights, with_exact_sums
from conformesh.protocols.flood import flood_strings
from conformesh.protocols.messages import Packets, Protocol
from conformesh.results.certificate import Cost

COUNTS_AT_ONCE = 2**22  # counts of all devices in one sum: bounds the memory of a simulation to about 32 MB


@dataclass(frozen=True, eq=False)
class CountQuestion:
    """Thresholds, each asked of one trial: in the order of trials, and ascending within each of them."""

    trials: Ints
    thresholds: Floats

    @classmethod
    def of(cls, trials: Ints, thresholds: Floats) -> tuple[CountQuestion, Ints]:
        """Return what is asked, each once, and where each of the given thresholds stands in it."""
        order = np.argsort(thresholds, kind="stable")
        if len(trials) and (trials != trials[0]).any():
            order = order[np.argsort(trials[order], kind="stable")]
        ordered, owners = thresholds[order], trials[order]
        new = np.ones(len(order), dtype=bool)
        new[1:] = (ordered[1:] != ordered[:-1]) | (owners[1:] != owners[:-1])
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.cumsum(new) - 1
        return cls(owners[new], ordered[new]), places

    def parts(self, most: int) -> Iterator[list[tuple[int, Floats]]]:
        """Go through the thresholds, at most so many at a time, by trial."""
        for start in range(0, len(self.trials), most):
            trials, thresholds = self.trials[start : start + most], self.thresholds[start : start + most]
            cuts = np.flatnonzero(np.diff(trials)) + 1
            yield [*zip(trials[[0, *cuts]].tolist(), np.split(thresholds, cuts), strict=True)]


@dataclass(frozen=True, eq=False)
class RankCounts:
    """What was counted, the same on every device.

    Attributes
    ----------
    below
        What the scores strictly below each asked threshold weigh.
    totals, rounding_loss
        What all scores of each trial weigh, and how much more they might have before rounding.
    notes, facts, sizes, cost
        As in `Outcome`.
    """

    below: Ints
    totals: Ints
    rounding_loss: Ints
    notes: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    sizes: Ints | None = None
    cost: Cost | None = None


def count_below(block: Block, samples: WeightedScores, asked: CountQuestion, options: EDCP) -> Protocol[RankCounts]:
    """Count what is asked, in runs of sums that fit in memory."""
    weighed = block.weighed(samples)
    width = max(1, min(len(asked.trials), COUNTS_AT_ONCE // block.devices))

    def attempt(total: NetworkSum) -> Protocol[RankCounts]:
        if block.requirement.is_weighted:  # the weight of a device in a group is not public
            n, rounding_loss, _ = yield from sum_weights(block, weighed, total)
        else:
            n, rounding_loss = np.array([demand.total for demand in block.demands], dtype=np.int64), None
        most, found = int(n.max(initial=0)), [np.empty(0, dtype=np.int64)]
        for part in asked.parts(width):
            mine = np.concatenate(
                [_count_strictly_below(weighed, trial, thresholds) for trial, thresholds in part], axis=1
            )
            found.append(np.array((yield from total(mine, most))[0], dtype=np.int64))
        return RankCounts(np.concatenate(found), n, np.zeros_like(n) if rounding_loss is None else rounding_loss)

    return (yield from with_exact_sums(block, options.aggregate, options.prefer, width, attempt))


def _count_strictly_below(samples: WeightedScores, trial: int, thresholds: Floats) -> Ints:
    """Return what each device's scores strictly below each threshold weigh, (devices, M)."""
    before = np.where(thresholds == -np.inf, np.nan, np.nextafter(thresholds, -np.inf))  # no score is at or below NaN
    return samples.counts_of(np.array([trial]), before[None, :])[:, :, 0]


def flood_test_scores(block: Block, tests: WeightedScores, sizes: Ints) -> Protocol[Floats]:
    """Tell every device the test scores of all, (scores,) by device; each device passes each of them on once.

    `sizes` says how many every device holds, (devices,). Trials do not ride along: there is one.
    """
    mine = Packets.of([np.asarray(tests.segment(k), dtype="<f8").tobytes() for k in range(len(block.rows))])
    found = yield from flood_strings(block, mine, sizes)
    return found.values.view("<f8").astype(np.float64)


@dataclass(frozen=True, eq=False)
class FlaggedCounts:
    """What the step-up rule found, the same on every device.

    Attributes
    ----------
    thresholds
        Test scores above it are flagged, one for each trial; +inf where none is.
    flagged, tests
        How many are, of how many, (trials,).
    steps
        How often R was counted, (trials,).
    notes, facts, sizes, cost
        As in `Outcome`.
    """

    thresholds: Floats
    flagged: Ints
    tests: Ints
    steps: Ints
    notes: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    sizes: Ints | None = None
    cost: Cost | None = None


def benjamini_hochberg(
    block: Block, samples: WeightedScores, tests: WeightedScores, level: Fraction, options: EDCP
) -> Protocol[FlaggedCounts]:
    """Flag test scores by Benjamini and Hochberg's rule at `level`, every trial by itself."""
    weighed = block.weighed(samples)
    width = options.width or best_stage_width(block, options.aggregate, options.prefer)

    def attempt(total: NetworkSum) -> Protocol[FlaggedCounts]:
        n, rounding_loss, _ = yield from sum_weights(block, weighed, total)
        m = np.array((yield from total(tests.sizes))[0], dtype=np.int64)
        flagged, steps = m.copy(), np.zeros_like(m)
        thresholds, going = np.full(len(m), np.inf), np.flatnonzero(m)
        while len(going):
            levels = [level * Fraction(r, max(k, 1)) for r, k in zip(flagged.tolist(), m.tolist(), strict=True)]
            ranks = _ranks_at_levels(block, levels, n, rounding_loss)
            ranks = np.where(np.isin(np.arange(len(m)), going), ranks, n + 1)[
                :, None
            ]  # finished trials ask for nothing
            brackets = yield from search_by_counts(block, weighed, ranks, n, total, width)
            found = np.where(ranks[:, 0] > n, np.inf, from_keys(brackets.high))[going]
            inside = yield from total(tests.counts_of(going, found[:, None]), int(m.max()))
            left = m[going] - np.asarray(inside[0, 0], dtype=np.int64)
            steps[going] += 1
            thresholds[going] = found
            same = left == flagged[going]
            flagged[going] = left
            going = going[~same & (left > 0)]
        return FlaggedCounts(thresholds, flagged, m, steps)

    return (yield from with_exact_sums(block, options.aggregate, options.prefer, width, attempt))


def _ranks_at_levels(block: Block, levels: list[Fraction], n: Ints, rounding_loss: Ints | None) -> Ints:
    """Return the required rank of every trial at a level of its own."""
    more = np.zeros_like(n) if rounding_loss is None else rounding_loss
    return np.array(
        [
            demand.required(block.requirement, levels[t], t, 0, int(n[t]), int(more[t])) if levels[t] else int(n[t]) + 1
            for t, demand in enumerate(block.demands)
        ],
        dtype=np.int64,
    )
