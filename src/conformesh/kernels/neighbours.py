"""What neighbours' messages combine to: sums, weighted sums, maxima and minima over a graph in compressed rows.

Every row is combined in the order of its neighbours in `indices` and on its own, so the bits depend neither on the
number of threads nor on the engine. Messages arrive in the type that travelled (float16, float32, int8, ...) and are
combined in float64 or int64.

The loops read `indptr` and `indices` as unsigned integers: an index that cannot be negative needs no test for it, which
halves the time of a sum of single numbers. Large exchanges are cut into blocks of rows (`threads`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.kernels.compiling import njit
from conformesh.kernels.threads import alone, in_blocks

Array = NDArray[Any]
Offsets = NDArray[np.int64]
Rows = NDArray[np.int32]

ONE, TWO, THREE, FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


@njit(cache=True, nogil=True)
def _sum_of_one(indptr, indices, x, out):  # type: ignore[no-untyped-def]
    for k in range(np.uint64(out.shape[0])):  # the usual message is one number: keep its sum in a register
        total = x.dtype.type(0)
        for p in range(indptr[k], indptr[k + ONE]):
            total += x[indices[p], 0]
        out[k, 0] = total


@njit(cache=True, nogil=True)
def _sum(indptr, indices, x, out):  # type: ignore[no-untyped-def]
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


@njit(cache=True, nogil=True)
def _weighted_sum(indptr, indices, weights, x, out):  # type: ignore[no-untyped-def]
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


@njit(cache=True, nogil=True)
def _raise_to_max(indptr, indices, x, out):  # type: ignore[no-untyped-def]
    for k in range(np.uint64(out.shape[0])):
        for p in range(indptr[k], indptr[k + ONE]):
            j = indices[p]
            for c in range(x.shape[1]):
                value = x[j, c]
                if value > out[k, c] or value != value:  # noqa: PLR0124 - NaN, which must not be lost on the way
                    out[k, c] = value


@njit(cache=True, nogil=True)
def _lower_to_min(indptr, indices, x, out):  # type: ignore[no-untyped-def]
    for k in range(np.uint64(out.shape[0])):
        for p in range(indptr[k], indptr[k + ONE]):
            j = indices[p]
            for c in range(x.shape[1]):
                value = x[j, c]
                if value < out[k, c] or value != value:  # noqa: PLR0124
                    out[k, c] = value


def _by_rows(kernel: Callable[..., None], indptr: Offsets, indices: Rows, *rest: Array, out: Array) -> None:
    """Run `kernel` over all rows, in blocks of about equally many edges when there is enough to do."""
    starts, who = unsigned(indptr, indices)
    work = int(indptr[-1] - indptr[0]) * out.shape[1]
    if alone(work):
        kernel(starts, who, *rest, out)
        return

    def block(first: int, last: int) -> None:
        kernel(starts[first : last + 1], who, *rest, out[first:last])

    in_blocks(block, len(out), work, indptr)


def unsigned(indptr: Offsets, indices: Rows) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """View compressed rows as what they are: not negative; what has been viewed so before stays as it is."""
    if indptr.dtype == np.uint64:
        return indptr, indices  # type: ignore[return-value]
    return np.asarray(indptr, np.int64).view(np.uint64), np.asarray(indices, np.int32).view(np.uint32)


def neighbour_sum(indptr: Offsets, indices: Rows, x: Array, out: Array) -> None:
    """Write ``sum over j in N_k of x_j`` into ``out[k]``; `x` and `out` are (rows, columns), float64 or int64."""
    _by_rows(_sum_of_one if x.shape[1] == 1 else _sum, indptr, indices, x, out=out)


def weighted_neighbour_sum(indptr: Offsets, indices: Rows, weights: Array, x: Array, out: Array) -> None:
    """Write ``sum over j in N_k of w_kj x_j`` into ``out[k]``, with one float64 weight per directed edge."""
    _by_rows(_weighted_sum, indptr, indices, weights, x, out=out)


def neighbour_max(indptr: Offsets, indices: Rows, x: Array, out: Array) -> None:
    """Write the largest of row k's own value and its neighbours' into ``out[k]``; NaN wins, of equals the first."""
    out[:] = x[: len(out)]
    _by_rows(_raise_to_max, indptr, indices, x, out=out)


def neighbour_min(indptr: Offsets, indices: Rows, x: Array, out: Array) -> None:
    """Write the smallest of row k's own value and its neighbours' into ``out[k]``; NaN wins, of equals the first."""
    out[:] = x[: len(out)]
    _by_rows(_lower_to_min, indptr, indices, x, out=out)


def sum_over_neighbours(
    indptr: Offsets, indices: Rows, x: Array, weights: Array | None = None, out: Array | None = None
) -> Array:
    """Return ``sum over j in N_k of w_kj x_j`` for every row k.

    Parameters
    ----------
    indptr, indices
        Compressed rows; a row's neighbours are added in this order. There may be fewer rows than `x` has: a block of
        devices and its halo.
    x
        Shape (devices, ...). Floats are added in float64, integers and booleans in int64.
    weights
        None for plain sums, or one number per directed edge in the order of `indices`; the answer is then float64.
    out
        Where to put the answer, if it has the right shape and type and is not `x`; otherwise it goes to new memory.

    Returns
    -------
    Array
        Shape (rows, ...), float64 or int64; zeros where a row has no neighbours.

    >>> import numpy as np
    >>> indptr, indices = np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], dtype=np.int32)        # 0 - 1 - 2
    >>> sum_over_neighbours(indptr, indices, np.array([1, 10, 100]))
    array([ 10, 101,  10])
    """
    values = _table(indptr, x, real=weights is not None)
    answer = _room(out, (len(indptr) - 1, *x.shape[1:]), values)
    out = answer.reshape(len(answer), values.shape[1])
    if weights is None:
        neighbour_sum(indptr, indices, values, out)
    else:
        factors = np.ascontiguousarray(weights, dtype=np.float64)
        if factors.shape != indices.shape:
            raise ValueError(f"weights must be one per directed edge, shape {indices.shape}, got {factors.shape}")
        weighted_neighbour_sum(indptr, indices, factors, values, out)
    return answer


def max_over_neighbours(indptr: Offsets, indices: Rows, x: Array) -> Array:
    """Return, elementwise for every row, the largest of its own value and its neighbours', as float64 or int64."""
    values = _table(indptr, x)
    out = np.empty((len(indptr) - 1, values.shape[1]), values.dtype)
    neighbour_max(indptr, indices, values, out)
    return out.reshape(len(out), *x.shape[1:])


def min_over_neighbours(indptr: Offsets, indices: Rows, x: Array) -> Array:
    """Return, elementwise for every row, the smallest of its own value and its neighbours', as float64 or int64."""
    values = _table(indptr, x)
    out = np.empty((len(indptr) - 1, values.shape[1]), values.dtype)
    neighbour_min(indptr, indices, values, out)
    return out.reshape(len(out), *x.shape[1:])


def _room(out: Array | None, shape: tuple[int, ...], x: Array) -> Array:
    """Return `out` if the answer fits into it and nobody reads there, else new memory."""
    fits = out is not None and out.shape == shape and out.dtype == x.dtype and out.flags.c_contiguous
    return out if fits and out is not None and not np.may_share_memory(out, x) else np.empty(shape, x.dtype)


def _table(indptr: Offsets, x: Array, real: bool = False) -> Array:
    """View messages as a C-ordered table (devices, columns) of float64 or int64, which hold smaller types exactly."""
    if x.dtype.kind not in "fiub":
        raise TypeError(f"messages must be floats, integers or booleans, got dtype {x.dtype}")
    if x.ndim == 0 or len(x) < len(indptr) - 1:
        raise ValueError(f"messages need one row for each of the {len(indptr) - 1} devices, got shape {x.shape}")
    kind = np.float64 if real or x.dtype.kind == "f" else np.int64
    return np.ascontiguousarray(x, dtype=kind).reshape(len(x), math.prod(x.shape[1:]))
