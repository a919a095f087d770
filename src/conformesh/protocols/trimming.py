r"""The trimmed certificate: a threshold for the honest devices, whoever they are.

Of K devices at most f are Byzantine. With the weights v_j, bases s_j and slack of `Requirement.device_ranks`, and
c_j the number of scores at or below the threshold as device j says it, let

.. math:: d_j(\tau) = v_j c_j(\tau) - (1 - \alpha) s_j

If the K - f smallest d_j add up to the slack or more, the rank condition holds over every set of K - f devices or more,
so over the honest ones (docs/guarantees.md). All of it is in whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.kernels.ranks import DeviceRanks
from conformesh.protocols.histogram_reports import Report

_LARGEST_INT_SUM = 2**62  # larger sums could overflow int64 and are formed of Python integers


@dataclass(frozen=True)
class TrimmedCount:
    """Sums over the K - f devices with the smallest d_j at a threshold: the worst case for the honest devices."""

    threshold: float
    required: int
    counted: int
    weight: int
    worst: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TrimmedSearch:
    """Finds the smallest threshold with the trimmed certificate.

    Attributes
    ----------
    reports
        The report of every device that may be honest; None where there is none, so that the device counts 0.
    sizes
        The reported size of each, or the maximum that it may hold where there is no report.
    parts
        What the guarantee requires of each.
    byzantine
        How many of them may be Byzantine, fewer than there are.
    """

    reports: Sequence[Report | None]
    sizes: Ints
    parts: DeviceRanks
    byzantine: int

    @cached_property
    def _points(self) -> tuple[NDArray[np.float64], Ints, NDArray[np.float64]]:
        """All reported thresholds, ascending, their devices, and how many more scores lie at or below each."""
        each = [(k, *one.points) for k, one in enumerate(self.reports) if one is not None]
        where = np.concatenate([np.empty(0), *(at for _, at, _ in each)])
        owner = np.concatenate([np.empty(0, np.int64), *(np.full(len(at), k) for k, at, _ in each)])
        more = np.concatenate([np.empty(0), *(many for _, _, many in each)])
        order = np.argsort(where, kind="stable")
        return where[order], owner[order], more[order]

    def counts(self, threshold: float) -> Ints:
        """Return c_j: how many scores of each device lie at or below a threshold, if its report is honest."""
        where, owner, more = self._points
        upto = np.searchsorted(where, threshold, side="right")
        return np.bincount(owner[:upto], more[:upto], len(self.reports)).astype(np.int64)  # exact: at most 2^52

    def at(self, alpha: Fraction) -> TrimmedCount:
        """Return the smallest threshold with the certificate, +inf where there is none."""
        weights = self.parts.weights
        margin = _trimming_margin(
            self.parts, alpha, sum((weights * self.sizes).tolist()), len(self.reports) - self.byzantine
        )
        where = np.unique(self._points[0])
        low, high = 0, len(where)
        # Bisection: d_j never falls with the threshold, and neither does the sum of the smallest ones.
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if margin.holds(self.counts(where[middle])) else (middle + 1, high)
        threshold = float(where[low]) if low < len(where) else math.inf
        counts = self.counts(threshold)
        worst = margin.worst(counts)
        return TrimmedCount(
            threshold,
            math.ceil(Fraction(sum(margin.needed[worst].tolist()), margin.common) + self.parts.slack),
            sum((weights * counts)[worst].tolist()),
            sum((weights * self.sizes)[worst].tolist()),
            tuple(worst.tolist()),
        )


@dataclass(frozen=True, eq=False)
class _Margin:
    """d_j and the slack, times a common denominator: `scale` c_j - `needed`, and `slack`; `kept` of them are added."""

    scale: NDArray[Any]
    needed: NDArray[Any]
    slack: int
    common: int
    kept: int

    def each(self, counts: Ints) -> NDArray[Any]:
        each: NDArray[Any] = self.scale * counts.astype(self.scale.dtype) - self.needed
        return each

    def worst(self, counts: Ints) -> Ints:
        """Return the devices with the smallest d_j, ascending."""
        return np.sort(np.argsort(self.each(counts), kind="stable")[: self.kept])

    def holds(self, counts: Ints) -> bool:
        """Return whether the sum of the smallest d_j reaches the slack."""
        return bool(np.sort(self.each(counts))[: self.kept].sum() >= self.slack)


@lru_cache(maxsize=64)  # draws of one experiment often have the same sizes
def _trimming_margin(parts: DeviceRanks, alpha: Fraction, total: int, kept: int) -> _Margin:
    """Return d_j in whole numbers, which decide ties exactly; `total` is the total weight."""
    needed = [(1 - alpha) * base for base in parts.bases]
    common = math.lcm(*(each.denominator for each in needed))
    whole = [int(each * common) for each in needed]
    kind: Any = np.int64 if common * total + sum(whole) < _LARGEST_INT_SUM else object
    scale = np.array([common * weight for weight in parts.weights.tolist()], dtype=kind)
    return _Margin(scale, np.array(whole, dtype=kind), math.ceil(parts.slack * common), common, kept)
