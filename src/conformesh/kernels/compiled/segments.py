"""Loops over ragged, sorted segments: count in them, copy them; and sums into rows."""

from __future__ import annotations

from typing import Any

from conformesh.kernels.compiled import loop


@loop
def bisect_right(values: Any, lo: int, hi: int, x: float) -> int:
    """Return the first index in [lo, hi) whose value exceeds x, or hi."""
    while lo < hi:
        middle = (lo + hi) // 2
        if values[middle] <= x:
            lo = middle + 1
        else:
            hi = middle
    return lo


@loop
def count_at_most(values: Any, offsets: Any, thresholds: Any, trials: int, out: Any) -> None:
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


@loop
def count_problems(values: Any, offsets: Any, trials: int, trial_of: Any, thresholds: Any, out: Any) -> None:
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
                if m and not x >= thresholds[p, m - 1]:  # falls, or one of them is NaN
                    here = start
                if walk:
                    while here < stop and values[here] <= x:
                        here += 1
                else:
                    here = bisect_right(values, here, stop, x)
                out[device, m, p] = here - start


@loop
def take(values: Any, offsets: Any, which: Any, taken: Any, out: Any) -> None:
    """Copy the segments `which`, the i-th of them to ``taken[i]``."""
    for i in range(len(which)):
        start = offsets[which[i]]
        for p in range(taken[i], taken[i + 1]):
            out[p] = values[start + p - taken[i]]


@loop
def add_rows(x: Any, rows: Any, values: Any) -> None:
    """Add each row of `values` to the row of `x` that `rows` names, which may be the same one several times."""
    for i in range(len(rows)):
        for c in range(values.shape[1]):
            x[rows[i], c] += values[i, c]
