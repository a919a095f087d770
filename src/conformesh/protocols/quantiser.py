"""The quantiser: common bins for everybody's scores ([Wen2025] Eq. (19)), over a given or an agreed range.

Bin m holds the scores in (edge m-1, edge m]; the first also everything below, and what lies above the last edge
overflows: its threshold is +inf, never silently the last edge.

Message     nothing for a given range; else two numbers per round, for as many rounds as the diameter (twice that if
            some score is infinite)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Block
from conformesh.protocols.consensus import FULL_PRECISION, agreed_maximum
from conformesh.protocols.messages import Protocol
from conformesh.protocols.wire_format import WireFormat


def check_quantiser(bins: int, range_: tuple[float, float] | None) -> None:
    """Refuse a quantiser without bins, or with an empty range."""
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    if range_ is not None and not (np.isfinite(range_).all() and range_[0] < range_[1]):
        raise ValueError(f"range must be two finite numbers LO < HI, got {range_[0]} {range_[1]}")


@dataclass(frozen=True, eq=False)
class Quantiser:
    """Upper edges of the bins, (trials, bins), and whether no score of a trial lies above the last of them."""

    edges: NDArray[np.float64]
    complete: NDArray[np.bool_]


def agree_on_edges(
    block: Block,
    samples: WeightedScores,
    bins: int,
    range_: tuple[float, float] | None,
    wire: WireFormat = FULL_PRECISION,
) -> Protocol[Quantiser]:
    """Return the quantiser, the same bits on every device."""
    complete = np.zeros(block.trials, dtype=bool)
    if range_ is not None:
        low, high = np.full(block.trials, float(range_[0])), np.full(block.trials, float(range_[1]))
    else:
        ends = yield from agree_on_ends(block, *samples.extremes(), wire)
        complete = np.isfinite(ends[1])
        if np.isinf(ends).any():  # somebody holds an infinite score, so the finite ones need a range of their own
            ends = yield from agree_on_ends(block, *samples.extremes(finite=True), wire)
        low, high = np.where(np.isfinite(ends), ends, 0.0)  # no finite score anywhere: any range will do
    return Quantiser(bin_edges(low, high, bins), complete)


def quantiser_over(ends: NDArray[np.float64], finite: NDArray[np.float64], bins: int, complete: bool) -> Quantiser:
    """Return the quantiser over known ends, (2, trials), the lower ones negated: of all scores, and of finite ones.

    `complete` says whether these are ends of all scores, so that none lies above unless one is infinite.
    """
    usable = np.where(np.isinf(ends).any(axis=0), finite, ends)
    low, high = np.where(np.isfinite(usable), usable, 0.0)
    return Quantiser(bin_edges(-low, high, bins), np.isfinite(ends[1]) & complete)


def bin_edges(low: NDArray[np.float64], high: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """Return the upper edges of bins between two ends, (trials, bins), ascending, the last of them exactly `high`."""
    share = np.arange(1, bins + 1) / bins
    edges = low[:, None] * (1 - share) + high[:, None] * share  # cannot overflow
    return np.maximum.accumulate(np.minimum(edges, high[:, None]), axis=1)


def agree_on_ends(
    block: Block, least: NDArray[np.float64], most: NDArray[np.float64], wire: WireFormat = FULL_PRECISION
) -> Protocol[NDArray[np.float64]]:
    """Agree on the smallest and the largest score, (2, trials); one maximum serves both ends."""
    mine = np.stack([wire.outward(-least, np.inf), wire.outward(most, np.inf)], axis=1)
    agreed = (yield from agreed_maximum(mine, block, runs=1))[0].astype(np.float64)
    return np.stack([-agreed[0], agreed[1]])


def crowding_note(
    method: str, edges: NDArray[np.float64], counts: NDArray[Any], rank: int, may_miss: float, short: bool
) -> tuple[float, str] | None:
    """Return how much of alpha a histogram's threshold gives away, and the words for it; None where that is little.

    The threshold is the upper end of the bin that reaches the rank, so that all scores of that bin are covered. Where
    these are more than a quarter of alpha (n + K) too many, sets cover as if alpha were less than three quarters of
    what was asked: worth a note, since another range, or another method, would do better.

    Parameters
    ----------
    edges, counts
        Upper ends of the bins, and how many scores certainly lie at or below them.
    rank, may_miss
        The required rank, and alpha (n + K): how many points the promise lets lie above.
    short
        Whether a range was given that ends below the rank: then the threshold is +inf, always worth a note.
    """
    reached = counts >= rank
    if not reached.any():
        words = (
            f"{method}: fewer than the required {rank:,} scores lie at or below {edges[-1]:.6g}, the end of the given "
            "range, so that the threshold is +inf and every set full; widen the range, or leave it out to have it "
            "agreed on"
        )
        return (math.inf, words) if short else None
    bin_ = int(reached.argmax())
    excess = float(counts[bin_]) - rank
    if excess <= max(1.0, may_miss / 4) or edges[0] == edges[-1]:  # all scores equal: no bin could tell them apart
        return None
    inside = float(counts[bin_]) - (float(counts[bin_ - 1]) if bin_ else 0.0)
    words = (
        f"{method}: {inside:,.0f} scores lie in {'the first' if bin_ == 0 else 'one'} of {len(edges):,} bins, whose "
        f"upper end {edges[bin_]:.6g} is the threshold, so that {counts[bin_]:,.0f} scores are covered where {rank:,} "
        "are required and sets are larger than needed; give a range LO HI that is narrow around the threshold, or more "
        "bins, or use e-dcp, which is exact"
    )
    return excess / may_miss, words
