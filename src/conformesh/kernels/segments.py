"""Loops over ragged, sorted segments: sort them, count in them, find their ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.kernels.compiling import njit

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


@njit(cache=True)
def count_problems(values: Any, offsets: Any, trials: int, trial_of: Any, thresholds: Any) -> Any:
    """Count, per device, the values of trial ``trial_of[p]`` up to ``thresholds[p, m]``: (devices, M, problems)."""
    devices = (len(offsets) - 1) // trials
    problems, m_count = thresholds.shape
    out = np.empty((devices, m_count, problems), np.int64)
    for device in range(devices):
        for p in range(problems):
            start = offsets[device * trials + trial_of[p]]
            stop = offsets[device * trials + trial_of[p] + 1]
            for m in range(m_count):
                out[device, m, p] = bisect_right(values, start, stop, thresholds[p, m]) - start
    return out


@njit(cache=True)
def scores_inside(values: Any, offsets: Any, trials: int, trial_of: Any, low: Any, high: Any) -> Any:
    """Return, per device and problem, the smallest value above low (else +inf) and the largest at or below high."""
    devices = (len(offsets) - 1) // trials
    above = np.full((devices, len(low)), np.inf)
    below = np.full((devices, len(low)), -np.inf)
    for device in range(devices):
        for p in range(len(low)):
            start = offsets[device * trials + trial_of[p]]
            stop = offsets[device * trials + trial_of[p] + 1]
            first = bisect_right(values, start, stop, low[p])
            last = bisect_right(values, start, stop, high[p])
            if first < stop:
                above[device, p] = values[first]
            if last > start:
                below[device, p] = values[last - 1]
    return above, below
