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
from conformesh.kernels.compilation import has_compiled_twin
from conformesh.kernels.graph import edges_of_rows
from conformesh.kernels.neighbours import as_unsigned, equal_values_have_equal_bits


class Spreading:
    """Values that only rise (or only fall) towards what neighbours send, round by round.

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
        The values after the rounds taken so far, in memory that the next round changes; read-only for callers.
    """

    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        values: Array,
        upward: bool,
        order: Ints | None = None,
    ) -> None:
        self._graph, self.upward = as_unsigned(indptr, indices), upward
        kind = np.float64 if values.dtype.kind == "f" else np.int64  # which hold smaller types exactly
        self._x = np.array(values, dtype=kind, order="C").reshape(len(values), math.prod(values.shape[1:]))
        self._sent = None if values.dtype == kind else values.copy()  # in the type sent
        self._order = None if order is None or equal_values_have_equal_bits(self._x) else order
        self.values = (self._x.reshape(values.shape) if self._sent is None else self._sent).view()
        self.values.flags.writeable = False
        self._scratch = np.zeros(len(values), dtype=bool), np.empty(len(values), dtype=np.uint32)

    def round(self, speakers: Ints) -> Ints:
        """Send these rows, ascending, to their neighbours; return the rows that changed, ascending."""
        if not len(speakers):
            return speakers
        if self._order is not None:
            speakers = speakers[np.argsort(self._order[speakers])]
        return self.receive(self._x[speakers], speakers)

    def receive(self, sent: Array, speakers: Ints) -> Ints:
        """Let every neighbour of a speaker take the better of its value and what was sent; return which changed.

        Speakers stand for the rows of the graph: of equals the first of them is taken.
        """
        sent = np.ascontiguousarray(sent, dtype=self._x.dtype)
        changed = spread_values(*self._graph, self._x, sent, speakers, self.upward, self._scratch)
        if self._sent is not None:
            self._sent.reshape(self._x.shape)[changed] = self._x[changed]
        return changed


# About ten neighbours receive each number.
@has_compiled_twin("neighbours", work=lambda indptr, indices, x, sent, *_: 10.0 * sent.size)
def spread_values(
    indptr: NDArray[np.uint64],
    indices: NDArray[np.uint32],
    x: Array,
    sent: Array,
    speakers: Ints,
    upward: bool,
    scratch: tuple[Any, Any],
) -> Ints:
    """Send the rows `sent` of the speakers to their neighbours in `x`; return the rows that changed, ascending.

    `scratch` is False for every row, before and after, and room for the numbers of all rows: a round in which few rows
    change must not take time for all of them.
    """
    edges, counts = edges_of_rows(indptr.view(np.int64), speakers)
    receivers = indices[edges].astype(np.int64)
    if not len(receivers):
        return np.asarray(receivers)
    which = np.repeat(np.arange(len(speakers)), counts)
    order = np.argsort(receivers, kind="stable")
    listeners, starts = np.unique(receivers[order], return_index=True)
    old, received = x[listeners], sent[which[order]]
    if equal_values_have_equal_bits(received):
        best = (np.maximum if upward else np.minimum).reduceat(received, starts, axis=0)
        new = _better(best, old, upward)
    else:  # one neighbour after the other: of equals with different bits the first stays
        new, left = old.copy(), np.diff([*starts, len(received)])
        for at in range(int(left.max())):
            rows = left > at
            new[rows] = _better(received[starts[rows] + at], new[rows], upward)
    changed = ((new != old) & ~np.isnan(old)).any(axis=1)
    x[listeners[changed]] = new[changed]
    return np.asarray(listeners[changed])


def _better(received: Array, old: Array, upward: bool) -> Array:
    """Take what was received where it is better, or NaN, which nothing beats."""
    gains = received > old if upward else received < old
    return np.where(gains | (np.isnan(received) & ~np.isnan(old)), received, old)
