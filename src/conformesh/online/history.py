"""The last scores of each device, for learners that ask for quantiles of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class History(NamedTuple):
    """A ring of scores for each device.

    Attributes
    ----------
    values
        Scores, (devices, window), infinite where none has come yet.
    taken
        How many have come in all, (devices,).
    """

    values: Floats
    taken: NDArray[np.int64]

    @classmethod
    def empty(cls, devices: int, window: int) -> History:
        """Return a history without scores that will keep the last `window`."""
        if window < 1:
            raise ValueError(f"window must be at least 1 score, got {window}")
        return cls(np.full((devices, window), np.inf), np.zeros(devices, dtype=np.int64))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many scores are kept of each device, (devices,)."""
        return np.minimum(self.taken, self.values.shape[1])

    @property
    def filled(self) -> Floats:
        """The part of the ring in which there are scores of anybody."""
        return self.values[:, : max(int(self.sizes.max(initial=0)), 1)]

    def smallest(self, place: NDArray[np.int64]) -> Floats:
        """Return of each device the score with so many smaller ones; infinity where there are too few."""
        ordered = np.sort(self.filled, axis=1)
        found: Floats = ordered[np.arange(len(ordered)), np.minimum(place, ordered.shape[1] - 1)]
        return found

    def at_least(self, score: Floats) -> NDArray[np.int64]:
        """Return how many of each device's scores are at least so large."""
        there = np.arange(self.filled.shape[1]) < self.sizes[:, None]
        many: NDArray[np.int64] = np.count_nonzero((self.filled >= score[:, None]) & there, axis=1)
        return many

    def spread(self) -> Floats:
        """Return the range of each device's scores, 0 where there are none."""
        there = np.isfinite(self.filled)
        low = np.min(self.filled, axis=1, initial=np.inf, where=there)
        high = np.max(self.filled, axis=1, initial=-np.inf, where=there)
        return np.where(self.taken > 0, high - low, 0.0)


def remembered(past: History, score: Floats, seen: NDArray[np.bool_]) -> History:
    """Return the history with the scores of the devices in `seen` added."""
    rows = np.flatnonzero(seen)
    values = past.values.copy()
    values[rows, past.taken[rows] % values.shape[1]] = score[rows]
    return History(values, past.taken + seen)
