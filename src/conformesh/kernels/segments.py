"""Loops over ragged, sorted segments: sort them, count in them, find their ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def sort_segments(values: Floats, offsets: Ints) -> None:
    """Sort each segment in place; NumPy's vectorised sort beats a compiled loop from a few dozen values on."""
    sizes = np.diff(offsets)
    if len(sizes) and (sizes == sizes[0]).all():
        values.reshape(len(sizes), -1).sort(axis=1) if sizes[0] else None
        return
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        values[start:stop].sort()


@njit(cache=True)
def bisect_right(values: Any, lo: int, hi: int, x: float) -> int:
    """Return the first index in [lo, hi) whose value exceeds x, or hi."""
    while lo < hi:
        middle = (lo + hi) // 2
        if values[middle] <= x:
            lo = middle + 1
        else:
            hi = middle
    return lo


@njit(cache=True)
def count_at_most(values: Any, offsets: Any, thresholds: Any, trials: int) -> Any:
    """Count, per segment, the values at or below each ascending threshold: (devices, M, trials) integers.

    A search per threshold when there are few thresholds, one merging walk otherwise: O(min(M log n_k, M + n_k)).
    """
    devices = (len(offsets) - 1) // trials
    m_count = thresholds.shape[1]
    out = np.empty((devices, m_count, trials), np.int64)
    for device in range(devices):
        for trial in range(trials):
            start = offsets[device * trials + trial]
            stop = offsets[device * trials + trial + 1]
            here = start
            walk = stop - start < 8 * m_count
            for m in range(m_count):
                x = thresholds[trial, m]
                if walk:
                    while here < stop and values[here] <= x:
                        here += 1
                else:
                    here = bisect_right(values, here, stop, x)
                out[device, m, trial] = here - start
    return out


@njit(cache=True)
def segment_extremes(values: Any, offsets: Any, finite: bool) -> Any:
    """Return the smallest and the largest (finite) value of each sorted segment; +inf and -inf where it has none."""
    segments = len(offsets) - 1
    low = np.full(segments, np.inf)
    high = np.full(segments, -np.inf)
    for i in range(segments):
        first = offsets[i]
        last = offsets[i + 1] - 1
        if finite:
            first = bisect_right(values, offsets[i], offsets[i + 1], -np.inf)
            while last >= first and values[last] == np.inf:
                last -= 1
        if first <= last:
            low[i] = values[first]
            high[i] = values[last]
    return low, high
