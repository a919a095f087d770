"""Maxima and minima that spread over a graph: only what has just changed is news to its neighbours.

Agreeing on a maximum takes as many rounds as the diameter, a thousand on a square of a million devices; but a value
changes only when it is beaten, about as often as a record falls: a dozen times. So a round in which only changed rows
speak up costs a hundredth of one that looks at everybody, and ends at the same values: whatever has not changed was
already compared with in the round before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.kernels.compiling import compiled
from conformesh.kernels.graph import edges_of_rows
from conformesh.kernels.neighbours import neighbour_extreme, unsigned

Array = NDArray[Any]


class Spreading:
    """Values that only rise (or only fall) towards their neighbours', round by round.

    Parameters
    ----------
    indptr, indices
        The graph in compressed rows.
    values
        Where they start, shape (rows, ...), float64 or int64, `equal_is_same`; taken as they are and not changed.
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
        neighbour_extreme(indptr, indices, x, self._x, upward)
        self.values = self._x.reshape(values.shape)
        self.values.flags.writeable = False
        self._marked = np.zeros(len(x), dtype=bool)
        self._rows = np.empty((2, len(x)), dtype=np.uint32)
        changed = np.flatnonzero((self._x != x).any(axis=1))
        self._count = len(changed)
        self._rows[0, : self._count] = changed

    def round(self) -> Array:
        """Let everybody hear their neighbours once more; return `values`."""
        if self._count:
            changed, news = self._rows[0, : self._count], self._rows[1]
            told = *self._graph, self._x, self._x[changed], changed, self.upward
            loops = compiled("neighbours", 10.0 * self._count * self._x.shape[1])
            if loops is not None:
                self._count = loops.tell(*told, self._marked, news)
            else:
                rows = _tell(*told)
                self._count = len(rows)
                news[: self._count] = rows
            self._rows = self._rows[::-1]
        return self.values


def _tell(indptr: Any, indices: Any, x: Any, said: Any, speakers: Any, upward: bool) -> NDArray[np.int64]:
    """Let the speakers say their rows to their neighbours; return who changed."""
    edges, counts = edges_of_rows(indptr.view(np.int64), speakers)
    receivers = indices[edges].astype(np.int64)
    listeners = np.unique(receivers)
    before = x[listeners]
    (np.maximum if upward else np.minimum).at(x, receivers, np.repeat(said, counts, axis=0))
    return np.asarray(listeners[(x[listeners] != before).any(axis=1)])
