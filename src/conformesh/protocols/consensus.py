"""Consensus: every device ends with the network's mean, its largest or its smallest value.

Mean: each round a device moves towards its neighbours' values ([XiaoBoyd2004], linear iteration; [Wen2025] Eq. (23)).
Largest and smallest: each round a device keeps the best value received; after as many rounds as the diameter all agree.
A device that received nothing better in the last round has nothing new to send, and is silent.

Assumes     graph connected; weights symmetric and doubly stochastic; 0 < eta <= 1
Guarantees  the mean is preserved, also by rounded messages; disagreement shrinks by `Weights.rate` at eta = 1
Message     mean: the current value, one number per coordinate, in every round; largest and smallest: the same in the
            first round and after each in which it changed: about H(K) times where values are in no order
Departures  a device subtracts its own value *as it was sent*, so that what one end of an edge gains the other loses and
            rounding on the wire moves no mean; at 64 bits this is the paper's update
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats
from conformesh.graph.weights import Weights
from conformesh.kernels.compilation import expect_work
from conformesh.kernels.gossip import gossip_step
from conformesh.protocols.block import Block
from conformesh.protocols.messages import Extreme, Max, Min, Protocol, Sum
from conformesh.protocols.wire_format import WireFormat

FULL_PRECISION = WireFormat(64)  # bits of a number: float64, as devices compute, so nothing is rounded


def gossip(
    x: Floats, block: Block, weights: Weights, rounds: int, eta: float = 1.0, wire: WireFormat = FULL_PRECISION
) -> Protocol[Floats]:
    """Average by linear consensus; `x` has shape (devices here, ...), trailing axes ride along."""
    x = np.array(x, dtype=np.float64, order="C")
    if isinstance(weights.edge, float):  # one weight for all edges: plain sums, scaled once
        edge, strength, step = None, block.degree, eta * weights.edge
    else:
        edge, strength, step = weights.edge[block.edge_rows], weights.strength[block.rows], eta
    numbers = float(rounds) * x[0].size
    expect_work("neighbours", numbers * float(block.degree.sum()))
    expect_work("gossip", numbers * len(x))
    for _ in range(rounds):
        sent = wire(x)
        neighbours = yield Sum(sent, edge, brief=True)  # sum over j in N_k of W_kj x_j(t)
        gossip_step(x, neighbours, sent, strength, step)  # x_k += eta sum_j W_kj (x_j - x_k)
    return x


def rate_at(weights: Weights, eta: float = 1.0) -> float:
    """Return the factor by which one round of gossip shrinks disagreement: the second largest |eigenvalue| of W_eta."""
    return max(abs(1 - eta * (1 - weights.second)), abs(1 - eta * (1 - weights.smallest)))


def rounds_to_shrink(rate: float, factor: float) -> int:
    """Return the fewest rounds after which disagreement is at most `factor` of what it was."""
    if factor >= 1:
        return 0
    if rate <= 0:
        return 1
    return math.ceil(math.log(factor) / math.log(rate)) if rate < 1 else np.iinfo(np.int64).max


def agreed_maximum(x: NDArray[np.generic], block: Block, runs: int = 0) -> Protocol[NDArray[np.generic]]:
    """Agree on the elementwise maximum over all devices, in as many rounds as the diameter.

    The last `runs` axes of `x` are independent runs, each of which pays only for its own changes.
    """
    return (yield from _spread_extreme(Max, x, block, runs))


def agreed_minimum(x: NDArray[np.generic], block: Block, runs: int = 0) -> Protocol[NDArray[np.generic]]:
    """Agree on the elementwise minimum over all devices, in as many rounds as the diameter."""
    return (yield from _spread_extreme(Min, x, block, runs))


def _spread_extreme(
    ask: type[Max] | type[Min], x: NDArray[Any], block: Block, runs: int
) -> Protocol[NDArray[np.generic]]:
    """Spread the best values: a device sends in the first round, then only after it received a better value."""
    several = math.prod(x.shape[x.ndim - runs :]) > 1
    news = x != _neutral_value(x, ask is Max)
    speakers: NDArray[Any] = np.flatnonzero(news.any(axis=tuple(range(1, x.ndim))))
    for _ in range(block.network.diameter):
        billed = _numbers_billed(news, runs)[speakers] if several else None
        before = np.array(x) if several else x
        heard: Extreme = yield ask(x, brief=True, speakers=speakers, billed=billed)
        x, speakers = heard.values, heard.changed
        news = x != before if several else news
    return np.array(x)  # an answer to a brief question does not last


def _numbers_billed(news: NDArray[np.bool_], runs: int) -> NDArray[np.int64]:
    """Return how many numbers each device would send if every run were alone: those of the runs with any change."""
    own = tuple(range(1, news.ndim - runs))
    each = math.prod(news.shape[axis] for axis in own)
    with_news = news.any(axis=own) if own else news
    return np.asarray(each * with_news.reshape(len(news), -1).sum(axis=1))


def _neutral_value(x: NDArray[Any], upward: bool) -> Any:
    """Return the value that no other is worse than: a device that has only this stays silent."""
    if x.dtype.kind == "f":
        worst: Any = -np.inf if upward else np.inf
    elif x.dtype.kind == "b":
        worst = not upward
    else:
        worst = np.iinfo(x.dtype).min if upward else np.iinfo(x.dtype).max
    return worst


def agreed_mean(
    x: Floats, block: Block, weights: Weights, rounds: int, wire: WireFormat = FULL_PRECISION
) -> Protocol[Floats]:
    """Agree on one number at or just above the mean, the same bits on every device.

    Gossip leaves every device with its own last digits. One maximum over them makes the number common; since gossip
    preserves the mean, the maximum is never below it.
    """
    x = yield from gossip(x, block, weights, rounds, wire=wire)
    common = yield from agreed_maximum(wire.outward(x, np.inf), block, runs=x.ndim - 1)
    return common.astype(np.float64)
