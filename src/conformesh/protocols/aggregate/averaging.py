r"""Sums by averaging: gossip, Chebyshev-accelerated gossip, and averaging that ends after finitely many rounds.

All three keep the mean and shrink the rest: after T rounds x = p(W) x(0) for a polynomial p with p(1) = 1. Every
device multiplies by K and rounds; a bound on the error, computed beforehand from the spectrum and afterwards from the
sum found, makes that the exact count.

gossip       p = l^T                          rate^T                             ([XiaoBoyd2004])
chebyshev    p = T_T(l / rate) / T_T(1 / rate)   1 / cosh(T arccosh(1 / rate))
finite-time  p = prod over distinct non-zero Laplacian eigenvalues of (1 - L / l_i): zero on every eigenvector but the
             constant, after as many rounds as there are such eigenvalues; Leja order keeps round-off small

Assumes     graph connected, spectrum known. Gossip and Chebyshev also need n known, to know when to stop
Message     one number per coordinate and round
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.graph.weights import constant_rate, constant_weights
from conformesh.protocols.aggregate.base import CannotAggregate, InexactCount, Ints, Price, Total
from conformesh.protocols.consensus import gossip, rounds_to_shrink
from conformesh.protocols.messages import Protocol, Sum
from conformesh.protocols.site import Site

Floats = NDArray[np.float64]
UNIT = 2.0**-53
LARGEST_DENSE = 1500  # devices up to which all eigenvalues are computed
DISTINCT = 1e-9  # eigenvalues nearer than this, relative to the largest, are one
LARGEST_SUM = 1e7  # what finite-time must be able to add up to be offered at all
SAFE = 0.2  # of a count: what the error bound must stay below


def gossip_total(site: Site) -> Protocol[Total]:
    """Add up by plain gossip, for as many rounds as the bound asks."""
    yield from ()
    weights = constant_weights(site.network, site.network.spectrum)
    rounds = gossip_price(site).rounds

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        mean = yield from gossip(values.astype(np.float64), site, weights, rounds)
        return _whole(mean, site, SAFE)

    return total


def gossip_price(site: Site) -> Price:
    """Rounds until K times the disagreement of at most n is below a fraction of a count."""
    rate = constant_rate(site.network.spectrum)
    rounds = rounds_to_shrink(rate, _shrink_needed(site)) if site.devices > 1 else 0
    _room_for_roundoff(site, rounds * _roundoff(site.network))
    return Price(rounds, rounds)


def chebyshev_total(site: Site) -> Protocol[Total]:
    """Add up by Chebyshev-accelerated gossip: the same messages, two remembered rounds."""
    yield from ()
    weights = constant_weights(site.network, site.network.spectrum)
    rounds = chebyshev_price(site).rounds

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        mean = yield from chebyshev(values.astype(np.float64), site, float(weights.edge), weights.rate, rounds)
        return _whole(mean, site, SAFE)

    return total


def chebyshev_price(site: Site) -> Price:
    """Rounds T with K n / cosh(T arccosh(1 / rate)) below a fraction of a count."""
    rate = constant_rate(site.network.spectrum)
    rounds = chebyshev_rounds(rate, _shrink_needed(site)) if site.devices > 1 else 0
    _room_for_roundoff(site, (rounds + 2) ** 2 * _roundoff(site.network))
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


def finite_time_total(site: Site) -> Protocol[Total]:
    """Add up exactly in as many rounds as the Laplacian has distinct non-zero eigenvalues."""
    yield from ()
    roots, relative = finite_time_plan(site.network)

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        x = yield from finite_time(values.astype(np.float64), site, roots)
        found = float(np.abs(x).max(initial=0.0)) * site.devices  # the sum itself, but for an error of `share` of it
        share = site.devices * relative
        return _whole(x, site, share * found / (1 - share) if share < 1 else math.inf)

    return total


def finite_time(x: Floats, site: Site, roots: Floats) -> Protocol[Floats]:
    """Take the eigenvalues in `roots` out of x, one a round: what is left is the mean."""
    degree = site.degree.reshape(-1, *[1] * (x.ndim - 1))
    for root in roots:
        x = x - (degree * x - (yield Sum(x))) / root
    return x


def finite_time_price(site: Site) -> Price:
    """As many rounds as there are distinct non-zero eigenvalues."""
    roots, relative = finite_time_plan(site.network)
    if site.devices * relative * LARGEST_SUM >= SAFE:
        raise CannotAggregate(f"float64 round-off could spoil a count of {LARGEST_SUM:,.0f} on this network")
    return Price(len(roots), len(roots))


@lru_cache(maxsize=64)  # networks are immutable and compared by identity; a search asks for its plan several times
def finite_time_plan(network: Network) -> tuple[Floats, float]:
    """Return the eigenvalues in Leja order and a bound on the relative error: ``|x_k - mean| <= bound * ||x(0)||``.

    With factors f_t(l) = 1 - l / l_t the round-off of round t is multiplied by the later factors and is relative to
    what the earlier ones left, both at their worst over the spectrum; eigenvalues themselves are known to about 1e-14
    of the largest, which leaves of eigenvector j the product of its other factors times that error.
    """
    if network.devices == 1:
        return np.zeros(0), 0.0
    if network.devices > LARGEST_DENSE:
        raise CannotAggregate(f"finite-time needs all eigenvalues, computed up to {LARGEST_DENSE:,} devices only")
    laplacian = np.diag(network.degree.astype(np.float64))
    laplacian[network.receivers, network.indices] = -1.0
    eigenvalues = np.linalg.eigvalsh(laplacian)[1:]
    new = np.concatenate([[True], np.diff(eigenvalues) > DISTINCT * eigenvalues[-1]])
    groups = np.split(eigenvalues, np.flatnonzero(new)[1:])
    distinct = np.array([group.mean() for group in groups])
    roots = leja(distinct)
    factors = np.abs(1 - eigenvalues[None, :] / roots[:, None])  # (rounds, eigenvalues)
    known = 1e-14 * eigenvalues[-1] / eigenvalues  # relative error of an eigenvalue, generously
    factors = np.maximum(factors, known[None, :])
    ones = np.ones((1, len(eigenvalues)))
    before = np.concatenate([ones, np.cumprod(factors, axis=0)]).max(axis=1)
    after = np.concatenate([np.cumprod(factors[::-1], axis=0)[::-1], ones]).max(axis=1)
    left = np.prod(factors, axis=0).max()
    growth = 1 + 2 * network.degree.max() / roots
    noise = (int(network.degree.max()) + 6) * UNIT * growth * np.maximum(before[:-1], 1.0) * np.maximum(after[1:], 1.0)
    roots.flags.writeable = False  # shared by whoever asks
    return roots, float(left + noise.sum())


def leja(points: Floats) -> Floats:
    """Order points so that each next one is farthest from those before, in the product of distances."""
    left = np.ones(len(points), dtype=bool)
    order = [int(np.argmax(points))]
    left[order[0]] = False
    distance = np.zeros(len(points))
    while left.any():
        with np.errstate(divide="ignore"):
            distance += np.log(np.abs(points - points[order[-1]]))
        nearest = int(np.argmax(np.where(left, distance, -np.inf)))
        order.append(nearest)
        left[nearest] = False
    return points[order]


def _shrink_needed(site: Site) -> float:
    """Return by how much ||x - mean|| <= n must shrink for K times it to be below a fraction of a count."""
    return SAFE / (2 * site.devices * max(int(site.totals.max(initial=0)), 1))


def _roundoff(network: Network) -> float:
    """Bound what one round of float64 arithmetic adds, relative to the norm: weights of a device sum to less than 2."""
    return (network.largest_degree + 6) * (1 + 2 * 2) * 2 * UNIT


def _room_for_roundoff(site: Site, relative: float) -> None:
    """Refuse where float64 itself cannot keep K n x `relative` below a fraction of a count."""
    if site.devices * max(int(site.totals.max(initial=0)), 1) * relative >= SAFE / 2:
        raise CannotAggregate("float64 round-off could reach a fifth of a count on a network and a sum this large")


def _whole(mean: Floats, site: Site, error: float) -> Ints:
    """Turn means into sums, if they are as near to integers as the bound says and the bound is small enough."""
    sums = mean * site.devices
    counts = np.rint(sums)
    off = float(np.abs(sums - counts).max(initial=0.0))
    if not (error < 0.25 and off <= 0.25):
        raise InexactCount(f"a sum is {off:.3g} away from an integer, with an error bound of {error:.3g}")
    return counts.astype(np.int64)
