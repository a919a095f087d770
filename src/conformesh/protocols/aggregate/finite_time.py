r"""Sums by averaging that ends: p = prod over distinct non-zero Laplacian eigenvalues of (1 - L / l_i).

That is zero on every eigenvector but the constant one, after as many rounds as there are such eigenvalues; Leja order
keeps round-off small.

Assumes     graph connected, all its eigenvalues known
Guarantees  the integer nearest to K times a mean whose error is bounded below a quarter of a count, or `InexactCount`
Message     one number per coordinate and round
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from conformesh.graph.network import Network
from conformesh.protocols.aggregate.averaging import SAFE, UNIT, Floats, whole
from conformesh.protocols.aggregate.base import CannotAggregate, Ints, Price, Total
from conformesh.protocols.messages import Protocol, Sum
from conformesh.protocols.site import Site

LARGEST_DENSE = 1500  # devices up to which all eigenvalues are computed
DISTINCT = 1e-9  # eigenvalues nearer than this, relative to the largest, are one
LARGEST_SUM = 1e7  # what finite-time must be able to add up to be offered at all


def finite_time_total(site: Site) -> Protocol[Total]:
    """Add up exactly in as many rounds as the Laplacian has distinct non-zero eigenvalues."""
    yield from ()
    roots, relative = finite_time_plan(site.network)

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        x = yield from finite_time(values.astype(np.float64), site, roots)
        found = float(np.abs(x).max(initial=0.0)) * site.devices  # the sum itself, but for an error of `share` of it
        share = site.devices * relative
        return whole(x, site, share * found / (1 - share) if share < 1 else math.inf)

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
    largest = max(LARGEST_SUM, site.most)  # weights may add up to much more
    if site.devices * relative * largest >= SAFE:
        raise CannotAggregate(f"float64 round-off could spoil a count of {largest:,.0f} on this network")
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
