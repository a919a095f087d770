"""One gossip update, fused: no temporary of the size of the message."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.kernels.compiling import njit
from conformesh.kernels.threads import alone, in_blocks


def drift(
    x: NDArray[np.float64], neighbours: NDArray[Any], sent: NDArray[Any], strength: NDArray[np.float64], step: float
) -> None:
    """Move x in place: ``x_k += step * (neighbours_k - strength_k * sent_k)``, trailing axes riding along."""
    rows = len(x)
    table = x.reshape(rows, -1)
    heard = np.ascontiguousarray(neighbours, dtype=np.float64).reshape(rows, -1)
    if sent is not x:
        said = np.ascontiguousarray(sent, dtype=np.float64).reshape(rows, -1)
        in_blocks(lambda a, b: _drift(table[a:b], heard[a:b], said[a:b], strength[a:b], step), rows, 2 * table.size)
    elif alone(2 * table.size):  # nothing was rounded; saying so lets the compiler vectorise
        _drift_own(table, heard, strength, step)
    else:
        in_blocks(lambda a, b: _drift_own(table[a:b], heard[a:b], strength[a:b], step), rows, 2 * table.size)


@njit(cache=True, nogil=True)
def _drift(x: Any, neighbours: Any, sent: Any, strength: Any, step: float) -> None:
    for k in range(x.shape[0]):
        for m in range(x.shape[1]):
            x[k, m] += step * (neighbours[k, m] - strength[k] * sent[k, m])


@njit(cache=True, nogil=True)
def _drift_own(x: Any, neighbours: Any, strength: Any, step: float) -> None:
    for k in range(x.shape[0]):
        for m in range(x.shape[1]):
            x[k, m] += step * (neighbours[k, m] - strength[k] * x[k, m])
