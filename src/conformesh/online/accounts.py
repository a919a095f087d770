"""Accounts: how many examples were missed so far, and how far from the target that can be at most."""

from __future__ import annotations

import math
from dataclasses import dataclass

from conformesh.online.bounds import Gap


@dataclass(frozen=True)
class DeviceAccount:
    """Misses so far, of one device or of all together, with what is guaranteed about them.

    Only examples whose labels have come are in it.

    >>> str(DeviceAccount(0.1, 1000, 103, Gap(20.1, 20.9)))
    'so far 0.103, guaranteed within 0.021 of 0.1'

    Attributes
    ----------
    alpha
        The share of misses that was asked for.
    labels, misses
        How many labels have come, and how many of their examples were missed.
    gap
        How far `misses` can be from ``alpha * labels``, whatever the scores; None where nobody knows.
    why
        Why there is no gap.
    """

    alpha: float
    labels: int
    misses: int
    gap: Gap | None
    why: str = "no bound is known"

    @property
    def rate(self) -> float:
        """The share of misses so far; not a number before the first label."""
        return self.misses / self.labels if self.labels else math.nan

    @property
    def bound(self) -> float:
        """How far the share of misses can be from `alpha`, whatever the scores; never more than any share can be."""
        most = max(self.alpha, 1 - self.alpha)
        if self.gap is None or self.labels == 0:
            return most
        return min(most, max(self.alpha - self.lowest, self.highest - self.alpha))

    @property
    def lowest(self) -> float:
        """The smallest share of misses that the guarantee allows."""
        known = self.gap is not None and self.labels > 0
        return max(0.0, self.alpha - self.gap.down / self.labels) if known and self.gap else 0.0

    @property
    def highest(self) -> float:
        """The largest share of misses that the guarantee allows."""
        known = self.gap is not None and self.labels > 0
        return min(1.0, self.alpha + self.gap.up / self.labels) if known and self.gap else 1.0

    @property
    def kept(self) -> bool:
        """Whether the guarantee was kept, which it is unless something is wrong."""
        slack = 1e-9 * (1 + self.labels)  # rounding of sums
        excess = self.misses - self.alpha * self.labels
        return self.gap is None or -self.gap.down - slack <= excess <= self.gap.up + slack

    def __str__(self) -> str:
        if not self.labels:
            return "no labels so far"
        if self.gap is None:
            return f"so far {self.rate:.3f} for {self.alpha:g}, {self.why}"
        up = math.ceil(1000 * self.bound - 1e-9) / 1000  # a bound is never rounded down
        return f"so far {self.rate:.3f}, guaranteed within {up:.3f} of {self.alpha:g}"
