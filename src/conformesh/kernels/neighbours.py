"""What neighbours' messages combine to: sums, weighted sums, maxima and minima over a graph in compressed rows.

Every row is combined in ascending neighbour and on its own, so the bits depend neither on the number of threads nor on
the engine. Messages arrive in the type that travelled (float16, float32, int8, ...) and are combined in float64 or
int64.

Large exchanges are cut into blocks of rows for a pool of threads; the compiled loops release the interpreter lock.
Numba's own ``parallel=True`` is not used: its OpenMP layer kills a forked child and its workqueue layer aborts when two
Python threads call it at once, and the engines do both. ``NUMBA_NUM_THREADS=1`` keeps everything on the calling thread.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numba import config, njit
from numpy.typing import NDArray

Array = NDArray[Any]
Offsets = NDArray[np.int64]
Rows = NDArray[np.int32]

THREADS: int = getattr(config, "NUMBA_NUM_THREADS")  # noqa: B009 - set when numba is imported
PARALLEL_ABOVE = 1_000_000  # additions (directed edges x columns); handing work to a thread costs about 0.1 ms


@njit(cache=True, nogil=True)
def _sum(indptr, indices, x, out):  # type: ignore[no-untyped-def]
    if x.shape[1] == 1:  # the usual message is one number: keep its sum in a register
        for k in range(out.shape[0]):
            total = x.dtype.type(0)
            for p in range(indptr[k], indptr[k + 1]):
                total += x[indices[p], 0]
            out[k, 0] = total
        return
    for k in range(out.shape[0]):
        out[k, :] = 0
        p = indptr[k]
        while p + 4 <= indptr[k + 1]:  # four neighbours a pass, added in the same order: a quarter of the traffic
            a, b, c, d = indices[p], indices[p + 1], indices[p + 2], indices[p + 3]
            for m in range(x.shape[1]):
                out[k, m] = (((out[k, m] + x[a, m]) + x[b, m]) + x[c, m]) + x[d, m]
            p += 4
        while p < indptr[k + 1]:
            j = indices[p]
            for m in range(x.shape[1]):
                out[k, m] += x[j, m]
            p += 1


@njit(cache=True, nogil=True)
def _weighted_sum(indptr, indices, weights, x, out):  # type: ignore[no-untyped-def]
    if x.shape[1] == 1:
        for k in range(out.shape[0]):
            total = 0.0
            for p in range(indptr[k], indptr[k + 1]):
                total += weights[p] * x[indices[p], 0]
            out[k, 0] = total
        return
    for k in range(out.shape[0]):
        out[k, :] = 0
        for p in range(indptr[k], indptr[k + 1]):
            j = indices[p]
            w = weights[p]
            for c in range(x.shape[1]):
                out[k, c] += w * x[j, c]


@njit(cache=True, nogil=True)
def _raise_to_max(indptr, indices, x, out):  # type: ignore[no-untyped-def]
    for k in range(out.shape[0]):
        for p in range(indptr[k], indptr[k + 1]):
            j = indices[p]
            for c in range(x.shape[1]):
                value = x[j, c]
                if value > out[k, c] or value != value:  # noqa: PLR0124 - NaN, which must not be lost on the way
                    out[k, c] = value


@njit(cache=True, nogil=True)
def _lower_to_min(indptr, indices, x, out):  # type: ignore[no-untyped-def]
    for k in range(out.shape[0]):
        for p in range(indptr[k], indptr[k + 1]):
            j = indices[p]
            for c in range(x.shape[1]):
                value = x[j, c]
                if value < out[k, c] or value != value:  # noqa: PLR0124
                    out[k, c] = value


def limit_threads(most: int) -> None:
    """Use at most so many threads from now on: several processes on one machine share its cores."""
    global THREADS  # noqa: PLW0603 - one setting for the process, like the variable it starts from
    THREADS = max(1, min(THREADS, most))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS - 1, thread_name_prefix="conformesh")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a fork takes the pool object along but not its threads


def _by_rows(kernel: Callable[..., None], indptr: Offsets, indices: Rows, *rest: Array, out: Array) -> None:
    """Run `kernel` over all rows, in blocks of about equally many edges when there is enough to do."""
    rows = len(out)
    if THREADS == 1 or int(indptr[-1] - indptr[0]) * out.shape[1] <= PARALLEL_ABOVE:
        kernel(indptr, indices, *rest, out)
        return
    cuts = np.searchsorted(indptr, np.linspace(indptr[0], indptr[-1], THREADS + 1))
    cuts[0], cuts[-1] = 0, rows  # rows without neighbours at either end
    first, *others = [(a, b) for a, b in pairwise(cuts) if a < b]
    jobs = [_pool().submit(kernel, indptr[a : b + 1], indices, *rest, out[a:b]) for a, b in others]
    kernel(indptr[: first[1] + 1], indices, *rest, out[: first[1]])
    for job in jobs:
        job.result()


def neighbour_sum(indptr: Offsets, indices: Rows, x: Array, out: Array) -> None:
    """Write ``sum over j in N_k of x_j`` into ``out[k]``; `x` and `out` are (rows, columns), float64 or int64."""
    _by_rows(_sum, indptr, indices, x, out=out)


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


def sum_over_neighbours(indptr: Offsets, indices: Rows, x: Array, weights: Array | None = None) -> Array:
    """Return ``sum over j in N_k of w_kj x_j`` for every row k.

    Parameters
    ----------
    indptr, indices
        Compressed rows, ascending within a row. There may be fewer rows than `x` has: a block of devices and its halo.
    x
        Shape (devices, ...). Floats are added in float64, integers and booleans in int64.
    weights
        None for plain sums, or one number per directed edge in the order of `indices`; the answer is then float64.

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
    out = np.empty((len(indptr) - 1, values.shape[1]), values.dtype)
    if weights is None:
        neighbour_sum(indptr, indices, values, out)
    else:
        factors = np.ascontiguousarray(weights, dtype=np.float64)
        if factors.shape != indices.shape:
            raise ValueError(f"weights must be one per directed edge, shape {indices.shape}, got {factors.shape}")
        weighted_neighbour_sum(indptr, indices, factors, values, out)
    return out.reshape(len(out), *x.shape[1:])


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


def _table(indptr: Offsets, x: Array, real: bool = False) -> Array:
    """View messages as a C-ordered table (devices, columns) of float64 or int64, which hold smaller types exactly."""
    if x.dtype.kind not in "fiub":
        raise TypeError(f"messages must be floats, integers or booleans, got dtype {x.dtype}")
    if x.ndim == 0 or len(x) < len(indptr) - 1:
        raise ValueError(f"messages need one row for each of the {len(indptr) - 1} devices, got shape {x.shape}")
    kind = np.float64 if real or x.dtype.kind == "f" else np.int64
    return np.ascontiguousarray(x, dtype=kind).reshape(len(x), math.prod(x.shape[1:]))
