"""What neighbours' messages combine to: sums, weighted sums, maxima and minima over a graph in compressed rows.

Every row is combined in the order of its neighbours in `indices` and on its own, so the bits depend neither on the
number of threads nor on the engine. Messages arrive in the type that travelled (float16, float32, int8, ...) and are
combined in float64 or int64.

In NumPy all rows take their first neighbour, then all their second, and so on; single numbers are added edge by edge
and large tables row by row. The order within a row is the same. Large exchanges are cut into blocks of rows
(`threads`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise, repeat
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Array
from conformesh.kernels.compilation import has_compiled_twin
from conformesh.kernels.threads import fits_one_thread, run_in_blocks

_Offsets = NDArray[np.int64]
_Rows = NDArray[np.int32]

_Loop = Callable[..., None]
_LONG = 128  # numbers per message; from there on adding a row takes longer than calling NumPy for it
_CACHED = 65_536  # float64 numbers of a table (512 KB) that stays in a core's cache


def _additions(indptr: _Offsets, indices: _Rows, x: Array, out: Array, *_: Any, **__: Any) -> float:
    return float(indptr[-1] - indptr[0]) * int(out.shape[1])


@has_compiled_twin("neighbours", work=_additions)
def neighbour_sum(indptr: _Offsets, indices: _Rows, x: Array, out: Array, weights: Array | None = None) -> None:
    """Write ``sum over j in N_k of w_kj x_j`` into ``out[k]``; `x` and `out` are (rows, columns), float64 or int64.

    There is one float64 weight per directed edge, or none: then the sum is plain.
    """
    if x.shape[1] != 1:
        out[:] = 0
        _combine(np.add, indptr, indices, x, out, weights)
        return
    places = _places(indptr, indices)
    messages = x[:, 0].take(places.neighbours)  # the one number along every edge
    if weights is not None:
        messages = weights * messages
    if out.dtype == np.int64:
        # Differences of running sums: exact even where these overflow, because integers wrap around in any order.
        total = np.zeros(len(messages) + 1, np.int64)
        np.cumsum(messages, out=total[1:])
        np.subtract(total[places.ends[1:]], total[places.ends[:-1]], out=out[:, 0])
    else:
        # Floats round, so they are added edge after edge, from +0, as the compiled loop does.
        out[:, 0] = np.bincount(places.rows, messages, len(out))


@has_compiled_twin("neighbours", work=_additions)
def neighbour_extreme(indptr: _Offsets, indices: _Rows, x: Array, out: Array, upward: bool) -> None:
    """Write the largest (or smallest) of row k's own value and its neighbours' into ``out[k]``.

    NaN wins, and of equals the first.
    """
    out[:] = x[: len(out)]
    best: Callable[..., Any] = np.maximum if upward else np.minimum
    if not equal_values_have_equal_bits(x):
        best = partial(_take_better, np.greater if upward else np.less)
    _combine(best, indptr, indices, x, out)


def equal_values_have_equal_bits(values: Array) -> bool:
    """Return True for int64, and for float64 without NaN and without zeros of both signs.

    Then it does not matter which of several equal values a maximum takes, and NumPy's own maximum will do.
    """
    if values.dtype == np.int64:
        return True
    if values.dtype != np.float64 or np.isnan(values).any():
        return False
    zero = values == 0
    if not zero.any():
        return True
    signs = np.signbit(values[zero])
    return bool(signs.all() or not signs.any())


def _take_better(better: Callable[..., Any], received: Array, best: Array, out: Array) -> None:
    """Take what was received where it is better or NaN: of equals with different bits the first stays."""
    np.copyto(out, received, where=better(received, best) | np.isnan(received))


def run_in_row_blocks(kernel: _Loop, indptr: _Offsets, indices: _Rows, *rest: Array, out: Array) -> None:
    """Run `kernel` over all rows, in blocks of about equally many edges when there is enough to do."""
    starts, columns = as_unsigned(indptr, indices)
    work = int(indptr[-1] - indptr[0]) * out.shape[1]
    if fits_one_thread(work):
        kernel(starts, columns, *rest, out)
        return

    def block(first: int, last: int) -> None:
        kernel(starts[first : last + 1], columns, *rest, out[first:last])

    run_in_blocks(block, len(out), work, indptr)


def as_unsigned(indptr: _Offsets, indices: _Rows) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """View compressed rows as unsigned integers: compiled loops need not test an index that cannot be negative."""
    if indptr.dtype == np.uint64:
        return indptr, indices  # type: ignore[return-value]
    return np.asarray(indptr, np.int64).view(np.uint64), np.asarray(indices, np.int32).view(np.uint32)


@dataclass(frozen=True, eq=False)
class _Places:
    """Where NumPy finds the neighbours of all rows at once: `neighbours`, and where those of a row end."""

    ends: _Offsets
    neighbours: NDArray[np.intp]

    @cached_property
    def rows(self) -> _Offsets:
        """The row of every edge."""
        return np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))

    @cached_property
    def positions(self) -> tuple[_Offsets | None, list[_Offsets]]:
        """Rows by falling degree (None: all have the same), and their edges to all first neighbours, all second, ..."""
        starts, degree = self.ends[:-1], np.diff(self.ends)
        most, least = int(degree.max(initial=0)), int(degree.min(initial=0))
        order = None if most == least else np.argsort(-degree, kind="stable")
        if order is not None:
            starts, degree = starts[order], degree[order]
        counts = np.searchsorted(-degree, -np.arange(most)).tolist()  # rows that have a neighbour at that position
        return order, [starts[:count] + position for position, count in enumerate(counts)]


_PLACES: dict[tuple[int, int], tuple[Any, Any, _Places]] = {}  # by the ids of the arrays of a graph
_MOST_PLACES = 16  # graphs; a run has one or two, and its places take as much memory as the graph


def _places(indptr: _Offsets, indices: _Rows) -> _Places:
    """Return the places of a graph; those of a graph that cannot change are remembered for as long as it lives."""
    key = id(indptr), id(indices)
    stored = _PLACES.get(key)
    # An id is given again once its array is gone, so weak references tell whether these are the same arrays.
    if stored is not None and stored[0]() is indptr and stored[1]() is indices:
        return stored[2]
    places = _Places(indptr.view(np.int64), indices.astype(np.intp))
    if not (indptr.flags.writeable or indices.flags.writeable):
        if len(_PLACES) >= _MOST_PLACES:
            _PLACES.clear()
        _PLACES[key] = ref(indptr), ref(indices), places
    return places


def _combine(
    combine: Callable[..., Any], indptr: _Offsets, indices: _Rows, x: Array, out: Array, weights: Array | None = None
) -> None:
    """Combine `out` with the first neighbours of all rows, then with the second, and so on; long rows one by one."""
    if x.shape[1] >= _LONG and x.size > _CACHED:
        run_in_row_blocks(partial(_by_row, combine, weights=weights), indptr, indices, x, out=out)
        return
    places = _places(indptr, indices)
    order, positions = places.positions
    table = out if order is None else out[order]
    buffer = np.empty_like(table)
    for edges in positions:
        received, result = buffer[: len(edges)], table[: len(edges)]
        # No index is out of range; only with "clip" does NumPy write into `received` without a copy in between.
        np.take(x, places.neighbours[edges], axis=0, out=received, mode="clip")
        if weights is not None:
            received *= weights[edges, None]
        combine(received, result, out=result)
    if order is not None:
        out[order] = table


def _by_row(
    combine: Callable[..., Any], indptr: _Offsets, indices: _Rows, x: Array, out: Array, weights: Array | None = None
) -> None:
    """Combine each row of `out` with one neighbour after the other: for rows so long that this is what takes time."""
    rows = [*x]
    for result, (start, stop) in zip(out, pairwise(indptr.tolist()), strict=True):
        factors = repeat(None) if weights is None else weights[start:stop].tolist()
        for j, w in zip(indices[start:stop].tolist(), factors, strict=False):
            combine(rows[j] if w is None else w * rows[j], result, out=result)


def sum_over_neighbours(
    indptr: _Offsets, indices: _Rows, x: Array, weights: Array | None = None, out: Array | None = None
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
    shape = (len(indptr) - 1, *x.shape[1:])
    fits = out is not None and out.shape == shape and out.dtype == values.dtype and out.flags.c_contiguous
    if out is None or not fits or np.may_share_memory(out, values):
        out = np.empty(shape, values.dtype)
    factors = None if weights is None else np.ascontiguousarray(weights, dtype=np.float64)
    if factors is not None and factors.shape != indices.shape:
        raise ValueError(f"weights must be one per directed edge, shape {indices.shape}, got {factors.shape}")
    neighbour_sum(indptr, indices, values, out.reshape(len(out), values.shape[1]), factors)
    return out


def max_over_neighbours(indptr: _Offsets, indices: _Rows, x: Array) -> Array:
    """Return, elementwise for every row, the largest of its own value and its neighbours', as float64 or int64."""
    values = _table(indptr, x)
    out = np.empty((len(indptr) - 1, values.shape[1]), values.dtype)
    neighbour_extreme(indptr, indices, values, out, True)
    return out.reshape(len(out), *x.shape[1:])


def min_over_neighbours(indptr: _Offsets, indices: _Rows, x: Array) -> Array:
    """Return, elementwise for every row, the smallest of its own value and its neighbours', as float64 or int64."""
    values = _table(indptr, x)
    out = np.empty((len(indptr) - 1, values.shape[1]), values.dtype)
    neighbour_extreme(indptr, indices, values, out, False)
    return out.reshape(len(out), *x.shape[1:])


def _table(indptr: _Offsets, x: Array, real: bool = False) -> Array:
    """View messages as a C-ordered table (devices, columns) of float64 or int64, which hold smaller types exactly."""
    if x.dtype.kind not in "fiub":
        raise TypeError(f"messages must be floats, integers or booleans, got dtype {x.dtype}")
    if x.ndim == 0 or len(x) < len(indptr) - 1:
        raise ValueError(f"messages need one row for each of the {len(indptr) - 1} devices, got shape {x.shape}")
    kind = np.float64 if real or x.dtype.kind == "f" else np.int64
    return np.ascontiguousarray(x, dtype=kind).reshape(len(x), math.prod(x.shape[1:]))
