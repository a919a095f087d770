r"""What sums by averaging share: gossip, Chebyshev-accelerated gossip, and averaging that ends.

All three keep the mean and shrink the rest: after T rounds x = p(W) x(0) for a polynomial p with p(1) = 1. Every
device multiplies by K and rounds; a bound on the error, computed beforehand from the spectrum and afterwards from the
sum found, makes that the exact count.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.protocols.aggregate.base import CannotAggregate, InexactCount, Ints
from conformesh.protocols.site import Site

Floats = NDArray[np.float64]
UNIT = 2.0**-53
SAFE = 0.2  # of a count: what the error bound must stay below


def shrink_needed(site: Site) -> float:
    """Return by how much ||x - mean|| <= n must shrink for K times it to be below a fraction of a count."""
    return SAFE / (2 * site.devices * max(site.most, 1))


def roundoff(network: Network) -> float:
    """Bound what one round of float64 arithmetic adds, relative to the norm: weights of a device sum to less than 2."""
    return (network.largest_degree + 6) * (1 + 2 * 2) * 2 * UNIT


def room_for_roundoff(site: Site, relative: float) -> None:
    """Refuse where float64 itself cannot keep K n x `relative` below a fraction of a count."""
    if site.devices * max(site.most, 1) * relative >= SAFE / 2:
        raise CannotAggregate("float64 round-off could reach a fifth of a count on a network and a sum this large")


def whole(mean: Floats, site: Site, error: float) -> Ints:
    """Turn means into sums, if they are as near to integers as the bound says and the bound is small enough."""
    sums = mean * site.devices
    counts = np.rint(sums)
    off = float(np.abs(sums - counts).max(initial=0.0))
    if not (error < 0.25 and off <= 0.25):
        raise InexactCount(f"a sum is {off:.3g} away from an integer, with an error bound of {error:.3g}")
    return counts.astype(np.int64)
