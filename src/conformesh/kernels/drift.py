"""One gossip update: every device moves towards its neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.kernels.compilation import compiled
from conformesh.kernels.threads import alone, in_blocks

BLOCK = 8192  # numbers of a temporary that stays in a core's own cache and costs no new pages


def drift(
    x: NDArray[np.float64], neighbours: NDArray[Any], sent: NDArray[Any], strength: NDArray[np.float64], step: float
) -> None:
    """Move x in place: ``x_k += step * (neighbours_k - strength_k * sent_k)``, trailing axes riding along."""
    rows = len(x)
    table = x.reshape(rows, -1)
    heard = np.ascontiguousarray(neighbours, dtype=np.float64).reshape(rows, -1)
    work = 2 * table.size
    loops = compiled("drift", table.size)
    said = table if sent is x else np.ascontiguousarray(sent, dtype=np.float64).reshape(rows, -1)
    if loops is None:
        in_blocks(lambda a, b: _drift(table[a:b], heard[a:b], said[a:b], strength[a:b], step), rows, work)
    elif sent is not x:
        in_blocks(
            lambda a, b: loops.drift(table[a:b], heard[a:b], said[a:b], strength[a:b], step), rows, 2 * table.size
        )
    elif alone(work):  # nothing was rounded; saying so lets the compiler vectorise
        loops.drift_own(table, heard, strength, step)
    else:
        in_blocks(lambda a, b: loops.drift_own(table[a:b], heard[a:b], strength[a:b], step), rows, work)


def _drift(x: Any, neighbours: Any, sent: Any, strength: Any, step: float) -> None:
    many = max(1, BLOCK // max(x.shape[1], 1))
    for a in range(0, len(x), many):
        b = a + many
        move = strength[a:b, None] * sent[a:b]
        np.subtract(neighbours[a:b], move, out=move)
        move *= step
        x[a:b] += move
