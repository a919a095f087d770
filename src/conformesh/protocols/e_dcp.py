"""E-DCP: the exact pooled threshold, by counting.

The answer is the score of rank r among the scores of all devices. Several schedules find it with the same bits and
differ in cost:

top-k    the n - r + 1 largest scores (or r smallest): flooded in as many rounds as the diameter (`top_k`), or merged
         over a spanning tree (`waves`)
window   a sketch of all scores rises in a spanning tree; then all scores in the window that should hold rank r
count    sketches of ever narrower brackets, until few scores are left; or, with sums by flooding, counts at a few
         thresholds a stage, as below

In asynchronous mode each device sends a sketch to everybody, then its scores of a window (`e_dcp_entries`).

Counts at thresholds (`search_by_counts`):

1. n follows from the sizes or, where scores have weights of their own, comes with the first replies. The guarantee
   gives the rank r. If r > n the threshold is +inf.
2. The devices agree on the smallest and the largest score.
3. Bracket (lo, hi] with count(lo) < r <= count(hi). Each stage adds up the counts at `width` thresholds inside.
4. Once count(hi) = r the answer is the largest score <= hi; once count(lo) = r - 1, the smallest score > lo. Ties have
   neither: then the smallest score > lo and the largest <= hi are found to be the same.

Thresholds interpolate between the counts at the ends, kept within the middle half of the bracket. After
`STAGES_BY_VALUE` stages they halve the *keys* of the floats instead: no interval has more than 2^64 keys, so the search
always ends.

Assumes     graph connected
Guarantees  the smallest score at which the count, or the weight, reaches r, bit for bit, on every device: *counted*
Message     that of the schedule; by counts `width` integers a stage through the aggregator, two numbers a round for the
            ends, one for the answer
Departures  not from a paper: [Wen2025] has no exact method
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar
from typing import Protocol as TypingProtocol

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.kernels.keys import from_keys, to_keys
from conformesh.kernels.ranks import AUTO
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.aggregate import (
    AGGREGATORS,
    PREFERENCES,
    NetworkSum,
    aggregate_choices,
    aggregator_prices,
    get_aggregator,
    rank_aggregators,
    sort_by_price,
)
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.consensus import agreed_maximum
from conformesh.protocols.messages import GatheringProtocol, Protocol
from conformesh.protocols.options import check_option_choice, option
from conformesh.protocols.quantiser import agree_on_ends
from conformesh.protocols.score_windows import windows_of
from conformesh.protocols.top_k import can_flood, search_by_flooding
from conformesh.protocols.waves import FoundScore, Pace, needs_search, search_by_waves
from conformesh.results.certificate import Certificate, too_few_certificate

# Thresholds per stage among which the default is chosen. Each is about a third more than the one before: between them
# the cost of a search changes little.
STAGE_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
# Log of a number of scores, for the prediction of stages. Devices may not know n, but all must choose the same width;
# the choice depends on it only weakly.
_LOG_TYPICAL_SIZE = math.log(1000)
SCHEDULES = (AUTO, "top-k", "window", "count")
# By preference: scores that a device may list in a pass on average, and the factor on the width of windows. Measured as
# the cheapest on drawn scores and PathMNIST; the result does not depend on them.
PACES = {"rounds": (math.inf, 1.2), "numbers": (12.0, 0.38), "bits": (12.0, 0.38), "balanced": (12.0, 0.42)}
COUNT_LISTED = 6.0  # scores that a device may list in the schedule `count`, which is there to list few
# Points of a device's sketch. On more than `_FEW_DEVICES` devices the sketch of a subtree has `_GROWTH` points more for
# each doubling of its weight, so that merging does not lose what it gains.
SKETCH_POINTS, _GROWTH, _FEW_DEVICES = 7, 1, 64
_MORE_PER_DOUBLING = 2.0  # more scores that a device may list when all is balanced, for each doubling beyond that
# Stages that interpolate values. Usual searches take 6 to 15 (docs/decisions.md); scores that defeat interpolation,
# such as those with infinite or enormous values, are then searched by key.
STAGES_BY_VALUE = 16
_KEY_BITS = 64  # no bracket holds more than 2^64 floats
# Each stage by key leaves half of the floats, so 64 are enough for honest counts. Twice as many allow for stages that
# are spent on ties; counts that need more contradict each other.
_MOST_STAGES = STAGES_BY_VALUE + 2 * _KEY_BITS


@dataclass(frozen=True)
class EDCP:
    """Options of E-DCP. None of them changes the threshold, only what it costs."""

    schedule: Literal["auto", "top-k", "window", "count"] = option(AUTO, "in which order scores are asked for")
    aggregate: str = option(AUTO, "over what replies travel, or how sums are formed", aggregate_choices)
    prefer: Literal["rounds", "numbers", "bits", "balanced"] = option("balanced", "what `auto` and `width` save")
    width: int | None = option(None, "points of a sketch, or thresholds a stage; by default the best for `prefer`")
    warm: tuple[float, float] | None = None  # the bracket of an earlier result, to start from
    entries: bool = False  # by entries as in asynchronous mode, whatever the schedule

    def __post_init__(self) -> None:
        check_option_choice("prefer", self.prefer, PREFERENCES)
        check_option_choice("schedule", self.schedule, SCHEDULES)
        if self.aggregate != AUTO:
            get_aggregator(self.aggregate)
        if self.width is not None and self.width < 1:
            raise ValueError(f"width must be at least 1, got {self.width}")
        if self.warm is not None and not self.warm[0] <= self.warm[1]:
            raise ValueError(f"warm must be LOW <= HIGH, got {self.warm[0]} {self.warm[1]}")
        ways = aggregators_for(self.schedule)
        if self.aggregate != AUTO and self.aggregate not in ways:
            raise ValueError(
                f"schedule {self.schedule!r} goes over {' or '.join(ways)}, and not over {self.aggregate!r}; leave one "
                "of the two out"
            )


def aggregators_for(schedule: str) -> tuple[str, ...]:
    """Return the names of the aggregators that a schedule can use."""
    return tuple(name for name, way in AGGREGATORS.items() if schedule in (AUTO, *way.schedules))


@dataclass(frozen=True)
class _Chosen:
    """A schedule, the aggregator it uses, and how much it asks in one pass (over a tree)."""

    schedule: str
    over: str
    pace: Pace


def choose_schedule(block: Block, options: EDCP, ranks: Ints | None, n: Ints | None) -> _Chosen:
    """Return the schedule that was asked for, or the best one for `prefer` on this network."""
    growth = _GROWTH if block.devices > _FEW_DEVICES else 0
    fetched, slack = PACES[options.prefer]
    if options.prefer == "balanced":
        # In a large tree one more pass takes long and its sketches are many, so listing more scores at once pays.
        fetched += _MORE_PER_DOUBLING * math.log2(max(block.devices / _FEW_DEVICES, 1.0))
    schedule: str = options.schedule
    over = options.aggregate
    if schedule == AUTO and over == AUTO:
        schedule = "top-k" if options.prefer == "rounds" else AUTO
    elif schedule == AUTO:
        schedule = get_aggregator(over).schedules[0]
    if over == AUTO:
        over = "tree"
        if block.window is None and schedule == "top-k" and (ranks is None or n is None or can_flood(block, ranks, n)):
            over = "flood"
    if options.schedule == AUTO and schedule == "top-k" and over == "tree" and options.aggregate == AUTO:
        schedule = "window"  # more scores than a flood may carry
    fetched = {"window": math.inf, "count": COUNT_LISTED}.get(schedule, fetched)
    return _Chosen(schedule, over, Pace(options.width or SKETCH_POINTS, growth, fetched, slack))


def e_dcp(
    block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: EDCP
) -> GatheringProtocol[Answers]:
    """Find the exact threshold of every trial and alpha together, in rounds or by entries."""
    if block.requirement.is_for_unknown_mixtures:
        if options.entries:
            raise ValueError(
                f"e-dcp keeps the guarantee {block.requirement} in rounds only: the devices that have reported are no "
                "sample of a mixture that is not known; use mode rounds"
            )
        from conformesh.protocols.unknown_mixtures import (
            thresholds_for_unknown_mixtures,  # loaded only where it is used
        )

        return (yield from thresholds_for_unknown_mixtures(block, samples))
    if not options.entries:
        return (yield from e_dcp_in_rounds(block, samples, options))
    from conformesh.protocols.e_dcp_entries import search_by_entries  # loaded only where it is used

    if block.window is not None:
        raise ValueError(
            "e-dcp returns no window of scores in asynchronous mode, where no device knows when all have replied; run "
            "it in rounds"
        )
    outcome = yield from search_by_entries(block, samples, alphas, options.width)
    return replace(outcome, facts={"schedule": "entries", "over": "flood"})


def e_dcp_in_rounds(block: Block, samples: WeightedScores, options: EDCP) -> Protocol[Answers]:
    """Find the exact thresholds by the schedule that was asked for, or the best one."""
    n, ranks = (block.masses.sum(axis=0), block.ranks()) if block.knows_totals else (None, None)
    examples: Ints | None = None
    rounding_loss = block.rounding_loss if block.knows_totals else None
    plan = choose_schedule(block, options, ranks, n)
    if block.window is not None and plan.over != "tree":
        raise ValueError(
            f"e-dcp returns a window of scores only over a tree, not over {plan.over!r}; leave aggregate out, or use "
            "aggregate='tree'"
        )
    if plan.schedule == "count" and plan.over != "tree":
        return (yield from _search_by_sums(block, samples, options))
    if n is None and (block.rounds_weights or plan.over == "flood" or plan.schedule == "top-k"):
        total = yield from get_aggregator(plan.over).prepare(block)
        totals = yield from sum_weights(block, samples, total)
        n, ranks, rounding_loss, examples = totals.weights, block.ranks(*totals), *totals[1:]
        plan = choose_schedule(block, options, ranks, n)  # with n it is known how many scores a flood would carry
    facts = {"over": plan.over}
    if plan.over == "flood" and n is not None and ranks is not None:
        found = yield from search_by_flooding(block, samples, ranks, n)
        answers = {problem: FoundScore(key, rank) for problem, (key, rank) in found.items()}
        facts |= {"schedule": "top-k"}
    else:
        one_side = plan.schedule == "top-k"
        ranks, n, asked = yield from search_by_waves(block, samples, plan.pace, n, ranks, one_side, options.warm)
        answers = {problem: asked.found[problem] for problem in np.flatnonzero(needs_search(ranks, n)).tolist()}
        named = "top-k" if one_side else "count" if asked.sketches else "window"
        facts |= {"schedule": named, "passes": str(asked.passes), "points": str(plan.pace.points)}
    brackets = _new_brackets(block, ranks, n)
    for problem, one in answers.items():
        which = np.array([problem])
        brackets.low[which], brackets.high[which] = one.bracket
        brackets.close(which, np.array([one.answer]), np.array([one.counted]))
    outcome = replace(counted_answers(block, ranks, n, brackets, examples), facts=facts)
    if block.window is None:
        return outcome
    windows = {problem: one.window for problem, one in answers.items() if one.window is not None}
    return replace(outcome, windows=windows_of(windows, ranks, n, rounding_loss, examples))


def _search_by_sums(block: Block, samples: WeightedScores, options: EDCP) -> Protocol[Answers]:
    """Find the thresholds from counts that an aggregator adds up."""
    width = options.width or best_stage_width(block, options.aggregate, options.prefer)

    def attempt(total: NetworkSum) -> Protocol[Answers]:
        totals = yield from sum_weights(block, samples, total)
        n, ranks = totals.weights, block.ranks(*totals)
        first = None if options.warm is None else _warm_thresholds(*options.warm, ranks.size)
        brackets = yield from search_by_counts(block, samples, ranks, n, total, width, first)
        facts = {"schedule": "count", "over": "sums", "stage_width": str(width)}
        return replace(counted_answers(block, ranks, n, brackets, totals.examples), facts=facts)

    return (yield from with_exact_sums(block, options.aggregate, options.prefer, width, attempt))


class _Totals(NamedTuple):
    """Total weight of each column, what rounding took from it, and the weight of its examples, (columns,) each."""

    weights: Ints
    rounding_loss: Ints | None = None
    examples: Ints | None = None


def sum_weights(block: Block, samples: WeightedScores, total: NetworkSum) -> Protocol[_Totals]:
    """Add up the total weight of each column, and what else the required ranks depend on."""
    mine = samples.masses
    if block.knows_totals:  # all devices know all sizes
        return _Totals(block.masses.sum(axis=0), block.rounding_loss)
    if not block.rounds_weights:
        return _Totals((yield from total(mine))[0])
    lost = np.zeros_like(mine) if samples.rounding_loss is None else samples.rounding_loss.reshape(mine.shape)
    if samples.example_mass is None:
        n, rounding_loss = (yield from total(np.stack([mine, lost], axis=1)))[0]
        return _Totals(n, rounding_loss)
    mass = samples.example_mass.reshape(mine.shape)
    return _Totals(*(yield from total(np.stack([mine, lost, mass], axis=1)))[0])


def best_stage_width(block: Block, aggregate: str, prefer: str) -> int:
    """Return how many thresholds a stage should try, from the price of a sum on this network.

    A stage of M thresholds cuts the bracket to about 1/(M + 1), or 1/3 with one, which interpolates; so about
    log(n) / log(M + 1) sums are needed, besides the sum that gives n and two maxima over the network. The choice
    minimises the predicted rounds, numbers, or their product.
    """
    rounds_count, numbers_count = PREFERENCES[prefer]
    prices = aggregator_prices(block) if aggregate == AUTO else {aggregate: get_aggregator(aggregate).price(block)}

    def predicted(width: int) -> float:
        price = sort_by_price(prices, prefer, width)[0][1]
        stages = _LOG_TYPICAL_SIZE / math.log(width + 1 if width > 1 else 3)
        rounds = price.setup + (1 + stages) * price.rounds + 2 * block.network.diameter
        numbers = price.per_number * (1 + stages * width) + 3 * block.network.diameter
        return float((rounds + 1) ** rounds_count * (numbers + 1) ** numbers_count)

    return min(STAGE_WIDTHS, key=predicted)


def choose_aggregator(block: Block, aggregate: str, prefer: str, width: int) -> str:
    """Return the name of the aggregator: the one asked for, or the best one for `prefer` on this network."""
    if aggregate == AUTO:
        return rank_aggregators(block, prefer, width)[0][0]
    get_aggregator(aggregate).price(block)  # raises, with the reason, if it cannot be used here
    return aggregate


class _HasFacts(TypingProtocol):
    """A dataclass with `facts`: what was chosen during the run."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def facts(self) -> dict[str, str]: ...


AnswersWithFacts = TypeVar("AnswersWithFacts", bound=_HasFacts)


def with_exact_sums(
    block: Block, aggregate: str, prefer: str, width: int, attempt: Callable[[NetworkSum], Protocol[AnswersWithFacts]]
) -> Protocol[AnswersWithFacts]:
    """Run `attempt` with the chosen aggregator, and record in its facts which one that was and why."""
    name = choose_aggregator(block, aggregate, prefer, width)
    total = yield from get_aggregator(name).prepare(block)
    outcome = yield from attempt(total)
    why = "as asked for" if aggregate != AUTO else f"best for {prefer} of the exact ways on this network"
    return replace(outcome, facts={**outcome.facts, "sums_by": name, "sums_why": why})


def search_by_counts(
    block: Block,
    samples: WeightedScores,
    ranks: Ints,
    n: Ints,
    total: NetworkSum,
    width: int,
    first: Floats | None = None,
    settle: bool = False,
) -> Protocol[Brackets]:
    """Search all (trial, alpha) problems together in stages; solved problems send nothing more.

    `first` (problems, M) are thresholds to try before anything else: an old result usually brackets the new one, and
    then the smallest and the largest score are not needed. With `settle` the first threshold (one per problem) is the
    answer where its count is high enough, though a smaller one might be too.
    """
    most = int(n.max(initial=0))
    brackets = _new_brackets(block, ranks, n)
    if first is not None and brackets.open.any():
        which = np.flatnonzero(brackets.open)
        pivots = np.sort(to_keys(first[which]), axis=1)
        counts = yield from _count_at(samples, brackets, which, pivots, total, most)
        brackets.shrink(which, pivots, counts.T)
        block.progress.bracket = brackets.first
        if settle:
            enough = counts[0] >= brackets.rank[which]
            brackets.close(which[enough], pivots[enough, 0], counts[0, enough])
    if (brackets.open & ~brackets.closed_in).any():
        brackets.begin((yield from agree_on_ends(block, *samples.extremes())))
        block.progress.bracket = brackets.first
    while brackets.open.any():
        if brackets.stage.max() > _MOST_STAGES:
            raise _contradiction(f"no threshold is left after {_MOST_STAGES} stages")
        if brackets.stuck().any():
            yield from _shrink_to_scores(block, samples, brackets, np.flatnonzero(brackets.stuck()))
        elif (ready := brackets.ready()).any():
            yield from _name_answer(block, samples, brackets, np.flatnonzero(ready), total, most)
        else:
            which = np.flatnonzero(brackets.open)
            pivots = brackets.pivots(which, width)
            counts = yield from _count_at(samples, brackets, which, pivots, total, most)
            brackets.shrink(which, pivots, counts.T)
        block.progress.bracket = brackets.first
    return brackets


def _contradiction(what: str) -> ValueError:
    return ValueError(
        f"counts of this network contradict each other: {what}; a device sent wrong numbers, or its scores have "
        "changed during the run"
    )


def _new_brackets(block: Block, ranks: Ints, n: Ints) -> Brackets:
    """Return the state of a new search for all ranks."""
    levels = ranks.shape[1]
    grains = np.repeat([demand.grain(block.requirement) for demand in block.demands], levels)
    return Brackets(ranks.ravel(), np.repeat(n, levels), np.repeat(np.arange(len(n)), levels), grains)


def counted_answers(block: Block, ranks: Ints, n: Ints, brackets: Brackets, examples: Ints | None = None) -> Answers:
    """Return thresholds and certificates, the same on every device; `examples` is their weight for losses."""
    unit = block.requirement.loss_unit
    found = np.where(ranks > n[:, None], np.inf, from_keys(brackets.high).reshape(ranks.shape))
    found = np.where(ranks <= 0, -np.inf, found)  # losses are low enough with empty sets
    counted = np.where(ranks <= 0, 0, brackets.at_high.reshape(ranks.shape))
    certificates = [
        [
            structs.replace(
                too_few_certificate(int(r), int(n[t]))
                if r > n[t]
                else Certificate("counted", int(r), int(counted[t, a])),
                weight=None if block.alike(t) else int(n[t]),
                losses=None if examples is None else unit * int(examples[t]),
            )
            for a, r in enumerate(ranks[t])
        ]
        for t in range(len(n))
    ]
    thresholds = np.broadcast_to(found, (len(block.rows), *ranks.shape)).copy()
    return Answers(thresholds, certificates, brackets=brackets.last.reshape(2, *ranks.shape))


def _warm_thresholds(low: float, high: float, problems: int) -> Floats:
    """Return thresholds at and around an old bracket; a few scores more or less seldom move the answer out of it."""
    if not (np.isfinite(low) and np.isfinite(high)):
        return np.full((problems, 1), high)
    # At least a few units in the last place, at most what six steps can add without overflow.
    step = min(max(high - low, abs(high) * 1e-12, 1e-300), 1e307)
    return np.tile(np.array([low - 6 * step, low, high, high + 6 * step]), (problems, 1))


def _count_at(
    samples: WeightedScores, brackets: Brackets, which: Ints, pivots: Ints, total: NetworkSum, most: int
) -> Protocol[Ints]:
    """Return the weight of all scores at or below every pivot, (width, problems), summed over devices."""
    counts: Ints = yield from total(samples.counts_of(brackets.trial[which], from_keys(pivots)), most)
    return np.asarray(counts[0], dtype=np.int64)


def _name_answer(
    block: Block, samples: WeightedScores, brackets: Brackets, which: Ints, total: NetworkSum, most: int
) -> Protocol[None]:
    """Find the answer as a score: the largest <= high where count(high) = r, else the smallest > low.

    The rank of the latter is not known yet and takes one more count.
    """
    above = brackets.from_below()[which]
    low, high = samples.bracket_extremes(
        brackets.trial[which], from_keys(brackets.low[which]), from_keys(brackets.high[which])
    )
    found = (yield from agreed_maximum(np.where(above, -low, high), block))[0]
    answer = to_keys(np.where(above, -found, found))
    brackets.close(which[~above], answer[~above], brackets.at_high[which[~above]])
    if above.any():
        rest = which[above]
        counts = yield from _count_at(samples, brackets, rest, answer[above][:, None], total, most)
        brackets.close(rest, answer[above], counts[0])


def _shrink_to_scores(block: Block, samples: WeightedScores, brackets: Brackets, which: Ints) -> Protocol[None]:
    """Shrink brackets to the smallest and largest score inside; where these are equal, that is the answer.

    One maximum serves both ends. The low end is open, hence one key below the smallest score.
    """
    low, high = samples.bracket_extremes(
        brackets.trial[which], from_keys(brackets.low[which]), from_keys(brackets.high[which])
    )
    ends = (yield from agreed_maximum(np.stack([-low, high], axis=1), block))[0]
    smallest, greatest = to_keys(-ends[0]), to_keys(ends[1])
    if (smallest > greatest).any():
        raise _contradiction("no score lies where some were counted")
    brackets.low[which], brackets.high[which] = smallest - 1, greatest
    brackets.quiet[which] = 0
    same = smallest == greatest
    brackets.close(which[same], greatest[same], brackets.at_high[which[same]])


class Brackets:
    """State of a search, one entry per problem: count(low) < rank <= count(high), with ends as keys of floats."""

    def __init__(self, rank: Ints, n: Ints, trial: Ints, grain: Ints | int = 1) -> None:
        self.rank, self.trial, self.grain = rank, trial, grain  # grain: no score weighs less
        self.open = (rank <= n) & (rank > 0)
        self.low, self.high = np.zeros(len(rank), dtype=np.int64), np.zeros(len(rank), dtype=np.int64)
        self.at_low, self.at_high = np.zeros(len(rank), dtype=np.int64), n.copy()
        self.stage, self.quiet = np.zeros(len(rank), dtype=np.int64), np.zeros(len(rank), dtype=np.int64)
        self.below, self.above = (
            np.zeros(len(rank), dtype=bool),
            np.zeros(len(rank), dtype=bool),
        )  # whether an end is known
        self.last = np.zeros((2, len(rank)))  # brackets before the answers, for a warm start

    @property
    def first(self) -> tuple[float, float, int, int]:
        """The bracket of the first problem with its counts; once it is solved, the answer twice."""
        low = self.low[0] if self.open[0] else self.high[0]
        bottom, top = from_keys(np.array([low, self.high[0]])).tolist()
        return (
            (-math.inf if math.isnan(bottom) else bottom),
            top,
            int(self.at_low[0] if self.open[0] else self.at_high[0]),
            int(self.at_high[0]),
        )

    @property
    def closed_in(self) -> NDArray[np.bool_]:
        """Mark the brackets with two known ends."""
        return self.below & self.above

    def begin(self, ends: Floats) -> None:
        """Use the smallest and the largest score of each trial, `ends` (2, trials), where an end is not known."""
        self.low = np.where(self.below, self.low, to_keys(ends[0])[self.trial] - 1)
        self.high = np.where(self.above, self.high, to_keys(ends[1])[self.trial])
        self.below[:] = self.above[:] = True

    def ready(self) -> NDArray[np.bool_]:
        """Mark problems whose answer is the next score above the low end or below the high end.

        Every score weighs at least one grain, so less than a grain between a count and the rank holds no other score.
        """
        near = (self.at_high - self.rank < self.grain) | (self.rank - self.at_low <= self.grain)
        return np.asarray(self.open & near)

    def from_below(self) -> NDArray[np.bool_]:
        """Mark problems whose answer is the next score above the low end, not the last one up to the high end."""
        return np.asarray(self.at_high - self.rank >= self.grain)

    def stuck(self) -> NDArray[np.bool_]:
        """Mark problems that are stuck at ties: two stages excluded no score, or no float is left in between."""
        return np.asarray(self.open & ~self.ready() & ((self.quiet >= 2) | (self.high - 1 == self.low)))

    def pivots(self, which: Ints, width: int) -> Ints:
        """Return `width` ascending keys strictly inside each bracket, (problems, width)."""
        low, high = self.low[which], self.high[which]
        share = (self.rank[which] - 0.5 - self.at_low[which]) / (self.at_high[which] - self.at_low[which])
        if width == 1:
            # Interpolate, but never leave the middle half: pure interpolation took 31 stages on Cauchy scores
            # (docs/decisions.md).
            parts = np.clip(share, 0.25, 0.75)[:, None]
        else:
            parts = np.broadcast_to(np.arange(1, width + 1) / (width + 1), (len(which), width))
        bottom, top = from_keys(low), from_keys(high)
        with np.errstate(over="ignore", invalid="ignore"):
            by_value = bottom[:, None] * (1 - parts) + top[:, None] * parts
        keys = to_keys(np.where(np.isnan(by_value), 0.0, by_value))
        by_key = [self._between(int(a), int(b), width) for a, b in zip(low, high, strict=True)]
        late = (self.stage[which] >= STAGES_BY_VALUE) | ~np.isfinite(bottom) | ~np.isfinite(top)
        keys = np.where(late[:, None], np.array(by_key, dtype=np.int64).reshape(keys.shape), keys)
        return np.sort(np.clip(keys, (low + 1)[:, None], (high - 1)[:, None]), axis=1)

    @staticmethod
    def _between(low: int, high: int, width: int) -> list[int]:
        """Return keys that cut a bracket into equal parts; differences of keys may exceed int64, so in Python ints."""
        return [low + (high - low) * (i + 1) // (width + 1) for i in range(width)]

    def shrink(self, which: Ints, pivots: Ints, counts: Ints) -> None:
        """Shrink brackets as far as the counts allow; pivots and counts are (problems, width), ascending."""
        before = self.at_high[which] - self.at_low[which]
        ascending = np.concatenate([self.at_low[which][:, None], counts, self.at_high[which][:, None]], axis=1)
        if (np.diff(ascending, axis=1) < 0).any():
            raise _contradiction("more scores lie below a threshold than below a higher one")
        below = (counts < self.rank[which][:, None]).sum(axis=1)  # number of pivots below the answer
        at = np.arange(len(which))
        up, down = below < pivots.shape[1], below > 0
        self.high[which[up]] = pivots[at[up], below[up]]
        self.at_high[which[up]] = counts[at[up], below[up]]
        self.low[which[down]] = pivots[at[down], below[down] - 1]
        self.at_low[which[down]] = counts[at[down], below[down] - 1]
        self.above[which[up]] = self.below[which[down]] = True
        self.stage[which] += 1
        still = self.at_high[which] - self.at_low[which] == before
        self.quiet[which] = np.where(still, self.quiet[which] + 1, 0)

    def close(self, which: Ints, answer: Ints, counted: Ints) -> None:
        """Record answers and their counted ranks."""
        ends = from_keys(np.stack([self.low[which], self.high[which]]))
        self.last[:, which] = np.where(np.isnan(ends), -np.inf, ends)  # the key below -inf is NaN
        self.high[which], self.at_high[which] = answer, counted
        self.open[which] = False
