"""Sums, maxima and minima over neighbours, row by row.

The loops read `indptr` and `indices` as unsigned integers: an index that cannot be negative needs no test for it, which
halves the time of a sum of single numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformesh.common.array_types import Array
from conformesh.kernels.compiled import loop
from conformesh.kernels.neighbours import run_in_row_blocks

# Numba adds uint64 and a Python integer in float64, so steps along unsigned indices are unsigned too.
ONE, TWO, THREE, FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


def neighbour_sum_compiled(indptr: Any, indices: Any, x: Array, out: Array, weights: Array | None = None) -> None:
    """Add in blocks of rows, see `kernels.neighbours.neighbour_sum`."""
    if weights is not None:
        run_in_row_blocks(_weighted_sum, indptr, indices, weights, x, out=out)
    else:
        run_in_row_blocks(_sum_of_one if x.shape[1] == 1 else _sum_of_many, indptr, indices, x, out=out)


def neighbour_extreme_compiled(indptr: Any, indices: Any, x: Array, out: Array, upward: bool) -> None:
    """Compare in blocks of rows, see `kernels.neighbours.neighbour_extreme`."""
    out[:] = x[: len(out)]
    run_in_row_blocks(_raise_to_max if upward else _lower_to_min, indptr, indices, x, out=out)


@loop
def _sum_of_one(indptr: Any, indices: Any, x: Any, out: Any) -> None:
    """Add up messages of one number."""
    for k in range(np.uint64(out.shape[0])):  # the usual message is one number: keep its sum in a register
        total = x.dtype.type(0)
        for p in range(indptr[k], indptr[k + ONE]):
            total += x[indices[p], 0]
        out[k, 0] = total


@loop
def _sum_of_many(indptr: Any, indices: Any, x: Any, out: Any) -> None:
    """Add up messages of any length."""
    zero = x.dtype.type(0)
    for k in range(np.uint64(out.shape[0])):
        p, end = indptr[k], indptr[k + ONE]
        if p + FOUR <= end:  # four neighbours a pass, added in the same order: a quarter of the traffic
            a, b, c, d = indices[p], indices[p + ONE], indices[p + TWO], indices[p + THREE]
            for m in range(x.shape[1]):
                out[k, m] = (((zero + x[a, m]) + x[b, m]) + x[c, m]) + x[d, m]  # a sum starts at +0, also of -0
            p += FOUR
        else:
            out[k, :] = 0
        while p + FOUR <= end:
            a, b, c, d = indices[p], indices[p + ONE], indices[p + TWO], indices[p + THREE]
            for m in range(x.shape[1]):
                out[k, m] = (((out[k, m] + x[a, m]) + x[b, m]) + x[c, m]) + x[d, m]
            p += FOUR
        if p + TWO <= end:
            a, b = indices[p], indices[p + ONE]
            for m in range(x.shape[1]):
                out[k, m] = (out[k, m] + x[a, m]) + x[b, m]
            p += TWO
        if p < end:
            a = indices[p]
            for m in range(x.shape[1]):
                out[k, m] += x[a, m]


@loop
def _weighted_sum(indptr: Any, indices: Any, weights: Any, x: Any, out: Any) -> None:
    """Add up messages, each times the weight of its edge."""
    if x.shape[1] == 1:
        for k in range(np.uint64(out.shape[0])):
            total = 0.0
            for p in range(indptr[k], indptr[k + ONE]):
                total += weights[p] * x[indices[p], 0]
            out[k, 0] = total
        return
    for k in range(np.uint64(out.shape[0])):
        out[k, :] = 0
        for p in range(indptr[k], indptr[k + ONE]):
            j = indices[p]
            w = weights[p]
            for c in range(x.shape[1]):
                out[k, c] += w * x[j, c]


@loop
def _raise_to_max(indptr: Any, indices: Any, x: Any, out: Any) -> None:
    """Raise `out` to the largest message of its row."""
    for k in range(np.uint64(out.shape[0])):
        for p in range(indptr[k], indptr[k + ONE]):
            j = indices[p]
            for c in range(x.shape[1]):
                value = x[j, c]
                if value > out[k, c] or value != value:  # noqa: PLR0124 - NaN, which must not be lost on the way
                    out[k, c] = value


@loop
def _lower_to_min(indptr: Any, indices: Any, x: Any, out: Any) -> None:
    """Lower `out` to the smallest message of its row."""
    for k in range(np.uint64(out.shape[0])):
        for p in range(indptr[k], indptr[k + ONE]):
            j = indices[p]
            for c in range(x.shape[1]):
                value = x[j, c]
                if value < out[k, c] or value != value:  # noqa: PLR0124
                    out[k, c] = value


def spread_values_compiled(
    indptr: Any, indices: Any, x: Array, sent: Array, speakers: Any, upward: bool, scratch: tuple[Any, Any]
) -> Any:
    """Spread values from row to row, see `kernels.spreading.spread_values`."""
    marked, changed = scratch
    count = _spread(indptr, indices, x, sent, speakers.astype(np.uint32), upward, marked, changed)
    return np.sort(changed[:count]).astype(np.int64)


@loop
def _spread(indptr: Any, indices: Any, x: Any, sent: Any, speakers: Any, upward: bool, marked: Any, news: Any) -> int:
    """Send the speakers' rows to their neighbours; list in `news` which rows changed, and return how many."""
    count = 0
    for i in range(len(speakers)):
        k = speakers[i]
        for p in range(indptr[k], indptr[k + ONE]):
            j = indices[p]
            for c in range(x.shape[1]):
                value, best = sent[i, c], x[j, c]
                if (value > best if upward else value < best) or (value != value and best == best):  # noqa: PLR0124
                    x[j, c] = value
                    if not marked[j]:
                        marked[j] = True
                        news[count] = j
                        count += 1
    for i in range(count):
        marked[news[i]] = False
    return count
