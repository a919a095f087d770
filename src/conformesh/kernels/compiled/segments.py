"""Loops over ragged, sorted segments: count in them, copy them; and sums into rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.kernels.compiled import loop
from conformesh.kernels.segments import empty_counts
from conformesh.kernels.threads import run_in_blocks


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


def count_at_most_compiled(values: Floats, offsets: Ints, thresholds: Floats, trials: int) -> Ints:
    """Count in blocks of devices, see `kernels.segments.count_at_most`."""
    devices = (len(offsets) - 1) // trials
    out = np.empty((devices, thresholds.shape[1], trials), np.int64)

    def block(a: int, b: int) -> None:
        _count_at_most(values, offsets[a * trials : b * trials + 1], thresholds, trials, out[a:b])

    run_in_blocks(block, devices, 2 * out.size)
    return out


@loop
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


def count_per_problem_compiled(values: Floats, offsets: Ints, trials: int, trial_of: Ints, thresholds: Floats) -> Ints:
    """Count in blocks of devices, see `kernels.segments.count_per_problem`."""
    devices = (len(offsets) - 1) // trials
    out = empty_counts(values, devices, thresholds)

    def block(a: int, b: int) -> None:
        _count_per_problem(values, offsets[a * trials : b * trials + 1], trials, trial_of, thresholds, out[a:b])

    run_in_blocks(block, devices, 4 * out.size)
    return out


@loop
def _count_per_problem(values: Any, offsets: Any, trials: int, trial_of: Any, thresholds: Any, out: Any) -> None:
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


def copy_segments_compiled(values: NDArray[Any], starts: Ints, cuts: Ints) -> NDArray[Any]:
    """Copy in blocks of segments, see `kernels.segments.copy_segments`."""
    out = np.empty(int(cuts[-1]), values.dtype)

    def block(a: int, b: int) -> None:
        _copy(values, starts[a:b], cuts[a : b + 1], out)

    run_in_blocks(block, len(starts), len(out) + len(starts))
    return out


@loop
def _copy(values: Any, starts: Any, cuts: Any, out: Any) -> None:
    for i in range(len(starts)):
        for p in range(cuts[i], cuts[i + 1]):
            out[p] = values[starts[i] + p - cuts[i]]


@loop
def add_rows_compiled(x: Any, rows: Any, values: Any) -> None:
    """Add each row of `values` to the row of `x` that `rows` names, which may be the same one several times."""
    for i in range(len(rows)):
        for c in range(values.shape[1]):
            x[rows[i], c] += values[i, c]
