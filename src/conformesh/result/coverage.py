"""Covered rows out of all rows, with an interval for the rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Coverage:
    """Covered rows out of all rows, with a Wilson interval."""

    covered: int
    rows: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        """The fraction covered; nan without rows."""
        return self.covered / self.rows if self.rows else float("nan")

    @classmethod
    def of(cls, hits: NDArray[np.bool_], confidence: float = 0.95) -> Coverage:
        """Count hits and enclose their rate."""
        covered, rows = int(np.count_nonzero(hits)), len(hits)
        return cls(covered, rows, *wilson(covered, rows, confidence))


def wilson(hits: int, rows: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion.

    >>> low, high = wilson(90, 100)
    >>> round(low, 4), round(high, 4)
    (0.8256, 0.9448)
    """
    if rows == 0:
        return 0.0, 1.0
    from statistics import NormalDist  # a node never evaluates, and need not hold it in memory

    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = hits / rows
    centre = (p + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z / (1 + z * z / rows) * np.sqrt(p * (1 - p) / rows + z * z / (4 * rows * rows))
    low = 0.0 if hits == 0 else float(centre - half)  # exact ends, where round-off would leave 1e-17
    high = 1.0 if hits == rows else float(centre + half)
    return low, high
