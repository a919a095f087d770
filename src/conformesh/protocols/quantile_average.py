"""The average of the local quantiles, agreed on by consensus: Q-DCP's s0, and a naive baseline.

Assumes     graph connected; every n_k known
Guarantees  one number, the same bits on every device; it is *not* the pooled quantile, after any number of rounds
Message     one number per round
Departures  the paper leaves open which sample quantile is meant; docs/decisions.md has the choice
"""

from __future__ import annotations

import math

import numpy as np

from conformesh.common.array_types import Floats
from conformesh.graph.spectrum import Spectrum
from conformesh.graph.weights import constant_rate, constant_weights
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Block
from conformesh.protocols.consensus import FULL_PRECISION, agreed_mean, agreed_minimum, rounds_to_shrink
from conformesh.protocols.messages import Protocol
from conformesh.protocols.wire_format import WireFormat

S0_RULES = ("average", "average-rank", "min")
# Largest local quantile that is averaged. Weighted sums over neighbours and rounds must stay below 1.8e308, the largest
# float64; the rest is a margin for degrees up to 10^8.
LARGEST_AVERAGED = 1e300
# Each averaging shrinks the disagreement by at least this factor: far below the error terms that are added to s0.
_AVERAGING_PRECISION = 1e-6


def agree_on_s0(
    block: Block,
    samples: WeightedScores,
    gamma: Floats,
    spectrum: Spectrum,
    kind: str | float,
    averaging: int | None = None,
    wire: WireFormat = FULL_PRECISION,
) -> Protocol[Floats]:
    """Return s0, the same on every device: (devices here, trials, alphas).

    The average (or minimum) of the local quantiles at level gamma, agreed on by consensus; or a given number. Sample
    quantiles interpolate between order statistics (`average-rank`: they do not). Devices without scores do not count.
    """
    if str(kind) not in S0_RULES:
        return np.full((len(block.rows), *gamma.shape), float(kind))
    holders = (block.sizes > 0).sum(axis=0)
    mine = local_quantiles(samples, gamma, interpolate=kind != "average-rank")
    empty = samples.sizes == 0
    if np.isinf(mine[~empty]).any():
        raise ValueError(
            "s0 from local quantiles needs finite ones, but a device's own quantile is infinite; give s0 as a number"
        )
    if kind == "min":
        mine[empty] = np.inf
        found = (yield from agreed_minimum(wire.outward(mine, -np.inf), block, runs=2)).astype(np.float64)
        return np.where(np.isfinite(found), found, 0.0)
    mine[empty] = 0.0  # adds nothing to the sum; the mean is scaled below
    refuse_overflow(np.where(np.abs(mine) > LARGEST_AVERAGED, np.inf, mine))
    weights = constant_weights(block.network, spectrum)
    mean = yield from agreed_mean(mine, block, weights, averaging_rounds(block, spectrum, averaging), wire)
    # The mean is over all devices, with 0 where there are no scores; so it is scaled to the devices that have some.
    found = mean * (block.devices / np.maximum(holders, 1))[:, None]
    return wire(found).astype(np.float64)


def refuse_overflow(mean: Floats) -> Floats:
    """Return the average, or raise `OverflowError` if it is not finite: sums of scores near 1.8e308 end in NaN."""
    if not np.isfinite(mean).all():
        raise OverflowError(
            f"scores beyond {LARGEST_AVERAGED:g} cannot be averaged, since their sums leave float64: divide all scores "
            "by one number, calibrate, and multiply the threshold by it; or use e-dcp, which only compares them"
        )
    return mean


def local_quantiles(samples: WeightedScores, gamma: Floats, interpolate: bool = True) -> Floats:
    """Return the sample quantile of each local device at level gamma, (devices here, trials, alphas)."""
    sizes = samples.sizes[:, :, None]
    if not interpolate:
        # gamma is r / n in floats: without rounding, noise in the last bit could lift the product above a whole number.
        whole = np.ceil(np.round(gamma * sizes, 9)).astype(np.int64)
        return samples.at_rank(np.clip(whole, 1, np.maximum(sizes, 1)))
    place = np.maximum(sizes - 1, 0) * gamma
    below = np.floor(place).astype(np.int64)
    low = samples.at_rank(below + 1)
    high = samples.at_rank(np.minimum(below + 2, np.maximum(sizes, 1)))
    share = place - below
    with np.errstate(invalid="ignore", over="ignore"):
        # The second form is exact at share 0 and for equal ends; the first one cannot overflow.
        between = np.where(np.isinf(high - low), low * (1 - share) + high * share, low + (high - low) * share)
        return np.where(low == high, low, between)


def averaging_rounds(block: Block, spectrum: Spectrum, given: int | None) -> int:
    """Return the rounds of one averaging: as given, or enough for `_AVERAGING_PRECISION`."""
    if given is not None:
        return given
    if block.devices == 1:
        return 0
    return rounds_to_shrink(constant_rate(spectrum), _AVERAGING_PRECISION / math.sqrt(block.devices))
