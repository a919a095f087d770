"""Loops over ragged, sorted segments: sort them, count in them, find their ends; and sums into rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.kernels.compiling import njit
from conformesh.kernels.threads import in_blocks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def sort_segments(values: Floats, offsets: Ints) -> None:
    """Sort each segment in place; NumPy's vectorised sort beats a compiled loop from a few dozen values on."""
    sizes = np.diff(offsets)
    if len(sizes) and (sizes == sizes[0]).all():
        table = values.reshape(len(sizes), -1)
        in_blocks(lambda a, b: table[a:b].sort(axis=1), len(table), 8 * table.size)
        return
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        values[start:stop].sort()


def count_at_most(values: Floats, offsets: Ints, thresholds: Floats, trials: int) -> Ints:
    """Count, per segment, the values at or below each ascending threshold: (devices, M, trials) integers."""
    devices, m_count = (len(offsets) - 1) // trials, thresholds.shape[1]
    out = np.empty((devices, m_count, trials), np.int64)

    def block(a: int, b: int) -> None:
        _count_at_most(values, offsets[a * trials : b * trials + 1], thresholds, trials, out[a:b])

    in_blocks(block, devices, 2 * out.size)
    return out


def count_problems(values: Floats, offsets: Ints, trials: int, trial_of: Ints, thresholds: Floats) -> Ints:
    """Count, per device, the values of trial ``trial_of[p]`` up to ``thresholds[p, m]``: (devices, M, problems).

    Counts are int32 where no device can have more than that many: a million devices and 64 thresholds take 256 MB.
    """
    devices, (problems, m_count) = (len(offsets) - 1) // trials, thresholds.shape
    kind = np.int32 if len(values) <= np.iinfo(np.int32).max else np.int64
    out = np.empty((devices, m_count, problems), kind)

    def block(a: int, b: int) -> None:
        _count_problems(values, offsets[a * trials : b * trials + 1], trials, trial_of, thresholds, out[a:b])

    in_blocks(block, devices, 4 * out.size)
    return out


@njit(cache=True, nogil=True)
def bisect_right(values: Any, lo: int, hi: int, x: float) -> int:
    """Return the first index in [lo, hi) whose value exceeds x, or hi."""
    while lo < hi:
        middle = (lo + hi) // 2
        if values[middle] <= x:
            lo = middle + 1
        else:
            hi = middle
    return lo


@njit(cache=True, nogil=True)
def _count_at_most(values: Any, offsets: Any, thresholds: Any, trials: int, out: Any) -> None:
    """A search per threshold when there are few thresholds, one merging walk otherwise: O(min(M log n_k, M + n_k))."""
    m_count = thresholds.shape[1]
    for device in range(len(out)):
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _count_problems(values: Any, offsets: Any, trials: int, trial_of: Any, thresholds: Any, out: Any) -> None:
    """Thresholds may come in any order; where they ascend, the next search begins where the last one ended."""
    problems, m_count = thresholds.shape
    for device in range(len(out)):
        for p in range(problems):
            start = offsets[device * trials + trial_of[p]]
            stop = offsets[device * trials + trial_of[p] + 1]
            here = start
            walk = stop - start < 4 * m_count
            for m in range(m_count):
                x = thresholds[p, m]
                if m and x < thresholds[p, m - 1]:
                    here = start
                if walk:
                    while here < stop and values[here] <= x:
                        here += 1
                else:
                    here = bisect_right(values, here, stop, x)
                out[device, m, p] = here - start


def take_segments(values: NDArray[Any], offsets: Ints, devices: Ints, pieces: int = 1) -> tuple[NDArray[Any], Ints]:
    """Return the values and offsets of these devices, in this order; each device owns `pieces` segments in a row."""
    which = (devices[:, None] * pieces + np.arange(pieces)).ravel()
    taken = np.zeros(len(which) + 1, dtype=np.int64)
    np.cumsum(np.diff(offsets)[which], out=taken[1:])
    out = np.empty(int(taken[-1]), values.dtype)
    in_blocks(lambda a, b: _take(values, offsets, which[a:b], taken[a : b + 1], out), len(which), len(out) + len(which))
    return out, taken


@njit(cache=True, nogil=True)
def _take(values: Any, offsets: Any, which: Any, taken: Any, out: Any) -> None:
    for i in range(len(which)):
        start = offsets[which[i]]
        for p in range(taken[i], taken[i + 1]):
            out[p] = values[start + p - taken[i]]


@njit(cache=True, nogil=True)
def add_rows(x: Any, rows: Any, values: Any) -> None:
    """Add each row of `values` to the row of `x` that `rows` names, which may be the same one several times."""
    for i in range(len(rows)):
        for c in range(values.shape[1]):
            x[rows[i], c] += values[i, c]


@njit(cache=True, nogil=True)
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
