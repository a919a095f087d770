"""Maxima and minima that spread over a graph: only what has just changed is news to its neighbours.

Agreeing on a maximum takes as many rounds as the diameter, a thousand on a square of a million devices; but a value
changes only when it is beaten, about as often as a record falls: a dozen times. So a round in which only changed rows
speak up costs a hundredth of one that looks at everybody, and ends at the same values: whatever has not changed was
already compared with in the round before.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Array, Ints
from conformesh.kernels.compilation import compiled
from conformesh.kernels.graph import edges_of_rows
from conformesh.kernels.neighbours import equal_is_same, unsigned


class Spreading:
    """Values that only rise (or only fall) towards what neighbours say, round by round.

    Parameters
    ----------
    indptr, indices
        The graph in compressed rows: who hears each row.
    values
        Where they start, shape (rows, ...), in a type that travels; copied.
    upward
        True for maxima, False for minima.
    order
        The order of the rows in which a row takes the first of equals (0.0 and -0.0); None is ascending.

    Attributes
    ----------
    values
        The values after the rounds taken so far, in memory that the next round changes; read-only for everybody else.
    """

    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        values: Array,
        upward: bool,
        order: Ints | None = None,
    ) -> None:
        self._graph, self.upward = unsigned(indptr, indices), upward
        kind = np.float64 if values.dtype.kind == "f" else np.int64  # which hold smaller types exactly
        self._x = np.array(values, dtype=kind, order="C").reshape(len(values), math.prod(values.shape[1:]))
        self._sent = None if values.dtype == kind else values.copy()  # in the type sent
        self._order = None if order is None or equal_is_same(self._x) else order
        self.values = (self._x.reshape(values.shape) if self._sent is None else self._sent).view()
        self.values.flags.writeable = False
        self._marked = np.zeros(len(values), dtype=bool)
        self._news = np.empty(len(values), dtype=np.uint32)

    def round(self, speakers: Ints) -> Ints:
        """Let these rows, ascending, be heard by their neighbours; return who changed, ascending."""
        if not len(speakers):
            return speakers
        if self._order is not None:
            speakers = speakers[np.argsort(self._order[speakers])]
        return self.hear(self._x[speakers], speakers)

    def hear(self, said: Array, speakers: Ints) -> Ints:
        """Let every neighbour of a speaker take the better of what it has and what is said; return who changed.

        Speakers stand for the rows of the graph: of equals the first of them is taken.
        """
        said = np.ascontiguousarray(said, dtype=self._x.dtype)
        loops = compiled("neighbours", 10.0 * said.size)
        told = *self._graph, self._x, said, speakers.astype(np.uint32), self.upward
        if loops is not None:
            count = loops.tell(*told, self._marked, self._news)
            changed: Ints = np.sort(self._news[:count]).astype(np.int64)
        else:
            changed = _tell(*told)
        if self._sent is not None:
            self._sent.reshape(self._x.shape)[changed] = self._x[changed]
        return changed


def _tell(indptr: Any, indices: Any, x: Any, said: Any, speakers: Any, upward: bool) -> Ints:
    """Let the speakers say their rows to their neighbours; return who changed."""
    edges, counts = edges_of_rows(indptr.view(np.int64), speakers)
    receivers = indices[edges].astype(np.int64)
    if not len(receivers):
        return np.asarray(receivers)
    which = np.repeat(np.arange(len(speakers)), counts)
    order = np.argsort(receivers, kind="stable")
    listeners, starts = np.unique(receivers[order], return_index=True)
    mine, heard = x[listeners], said[which[order]]
    if equal_is_same(heard):
        best = (np.maximum if upward else np.minimum).reduceat(heard, starts, axis=0)
        new = _better(best, mine, upward)
    else:  # one neighbour after the other: of equals with different bits the first stays
        new, left = mine.copy(), np.diff([*starts, len(heard)])
        for at in range(int(left.max())):
            rows = left > at
            new[rows] = _better(heard[starts[rows] + at], new[rows], upward)
    changed = ((new != mine) & ~np.isnan(mine)).any(axis=1)
    x[listeners[changed]] = new[changed]
    return np.asarray(listeners[changed])


def _better(said: Array, mine: Array, upward: bool) -> Array:
    """Take what was said where it is better, or NaN, which nothing beats."""
    return np.where((said > mine if upward else said < mine) | (np.isnan(said) & ~np.isnan(mine)), said, mine)
