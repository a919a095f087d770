r"""Sums by Chebyshev-accelerated gossip: p = T_T(l / rate) / T_T(1 / rate).

Disagreement shrinks as 1 / cosh(T arccosh(1 / rate)).

Assumes     graph connected, spectrum known; n known, to know when to stop
Guarantees  the integer nearest to K times a mean whose error is below a fifth of a count, or `InexactCount`
Message     one number per coordinate and round
"""

from __future__ import annotations

import math

import numpy as np

from conformesh.graph.weights import constant_rate, constant_weights
from conformesh.protocols.aggregate.averaging import SAFE, Floats, room_for_roundoff, roundoff, shrink_needed, whole
from conformesh.protocols.aggregate.base import Ints, Price, Total
from conformesh.protocols.messages import Protocol, Sum
from conformesh.protocols.site import Site

ARRAYS, NUMBER_NS = 7.1, 5.0  # of a simulation, with two rounds remembered


def chebyshev_total(site: Site) -> Protocol[Total]:
    """Add up by Chebyshev-accelerated gossip: the same messages, two remembered rounds."""
    yield from ()
    weights = constant_weights(site.network, site.network.spectrum)
    rounds = chebyshev_price(site).rounds

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        mean = yield from chebyshev(values.astype(np.float64), site, float(weights.edge), weights.rate, rounds)
        return whole(mean, site, SAFE)

    return total


def chebyshev_price(site: Site) -> Price:
    """Rounds T with K n / cosh(T arccosh(1 / rate)) below a fraction of a count."""
    rate = constant_rate(site.network.spectrum)
    rounds = chebyshev_rounds(rate, shrink_needed(site)) if site.devices > 1 else 0
    room_for_roundoff(site, (rounds + 2) ** 2 * roundoff(site.network))
    return Price(rounds, rounds)


def chebyshev_rounds(rate: float, factor: float) -> int:
    """Return the fewest rounds after which disagreement is at most `factor` of what it was."""
    if factor >= 1:
        return 0
    if rate <= 1e-12:
        return 1
    return max(1, math.ceil(math.acosh(1 / factor) / math.acosh(1 / rate)))


def chebyshev(x: Floats, site: Site, edge: float, rate: float, rounds: int) -> Protocol[Floats]:
    """Run p_T(W) x with W = I - edge L; `rate` bounds every other eigenvalue of W in magnitude."""
    degree = site.degree.reshape(-1, *[1] * (x.ndim - 1))
    if rounds == 0:
        return x

    def mixed(x: Floats, neighbours: Floats) -> Floats:
        return x + edge * (neighbours - degree * x)

    before, now = x, mixed(x, (yield Sum(x)))
    omega = 2.0  # of round 1 in the recurrence omega <- 1 / (1 - rate^2 omega / 4)
    for _ in range(rounds - 1):
        omega = 1 / (1 - rate * rate * omega / 4)
        after = omega * (mixed(now, (yield Sum(now))) - before) + before
        before, now = now, after
    return now
