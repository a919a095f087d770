"""Maxima and minima that spread over a graph: a row can change only if a neighbour has just changed.

Agreeing on a maximum takes as many rounds as the diameter, a thousand on a square of a million devices; but a value
changes only when it is beaten, about as often as a record falls: a dozen times. So a round that looks at the neighbours
of what has changed costs a hundredth of one that looks at everybody, and gives the same bits: whatever has not changed
was already compared with in the round before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from conformesh.kernels.neighbours import ONE, neighbour_max, neighbour_min, unsigned
from conformesh.kernels.threads import in_blocks

Array = NDArray[Any]


class Spreading:
    """Values that only rise (or only fall) towards their neighbours', round by round.

    Parameters
    ----------
    indptr, indices
        The graph in compressed rows.
    values
        Where they start, shape (rows, ...), float64 or int64; taken as they are and not changed.
    upward
        True for maxima, False for minima.

    Attributes
    ----------
    values
        The values after the rounds taken so far, in memory that the next round changes; read-only for everybody else.
    """

    def __init__(self, indptr: NDArray[np.int64], indices: NDArray[np.int32], values: Array, upward: bool) -> None:
        self._graph, self.upward = unsigned(indptr, indices), upward
        x = np.ascontiguousarray(values).reshape(len(values), -1)
        self._x = np.empty_like(x)
        (neighbour_max if upward else neighbour_min)(indptr, indices, x, self._x)
        self.values = self._x.reshape(values.shape)
        self.values.flags.writeable = False
        self._changed = np.flatnonzero((self._x != x).any(axis=1)).astype(np.uint32)  # NaN too: it must spread
        rows = len(x)
        self._marked = np.zeros(rows, dtype=bool)
        self._near = np.empty(rows, dtype=np.uint32)

    def round(self) -> Array:
        """Let everybody hear their neighbours once more; return `values`."""
        if len(self._changed):
            near = self._near[: _neighbours_of(*self._graph, self._changed, self._marked, self._near)]
            best = np.empty((len(near), self._x.shape[1]), self._x.dtype)
            moved = np.empty(len(near), dtype=bool)

            def block(first: int, last: int) -> None:
                _improve(*self._graph, self._x, near[first:last], self.upward, best[first:last], moved[first:last])

            in_blocks(block, len(near), best.size * len(self._graph[1]) // max(len(self._x), 1))
            self._changed = near[: _settle(self._x, near, best, moved, self._marked)].copy()
        return self.values


@njit(cache=True, nogil=True)
def _neighbours_of(indptr: Any, indices: Any, rows: Any, marked: Any, found: Any) -> int:
    """List every neighbour of `rows` once, leaving it marked; return how many."""
    count = 0
    for k in rows:
        for p in range(indptr[k], indptr[k + ONE]):
            j = indices[p]
            if not marked[j]:
                marked[j] = True
                found[count] = j
                count += 1
    return count


@njit(cache=True, nogil=True)
def _improve(indptr: Any, indices: Any, x: Any, rows: Any, upward: bool, best: Any, moved: Any) -> None:
    """Compare each row with its neighbours in their order, as `neighbour_max` and `neighbour_min` do."""
    for i in range(len(rows)):
        k = rows[i]
        moved[i] = False
        for c in range(x.shape[1]):
            own = x[k, c]
            for p in range(indptr[k], indptr[k + ONE]):
                value = x[indices[p], c]
                if (value > own if upward else value < own) or (value != value and own == own):  # noqa: PLR0124
                    own = value
                    moved[i] = True
            best[i, c] = own


@njit(cache=True, nogil=True)
def _settle(x: Any, rows: Any, best: Any, moved: Any, marked: Any) -> int:
    """Write down what has changed, unmark all rows, and bring the changed ones to the front; return how many."""
    count = 0
    for i in range(len(rows)):
        k = rows[i]
        marked[k] = False
        if moved[i]:
            x[k, :] = best[i, :]
            rows[count] = k
            count += 1
    return count
