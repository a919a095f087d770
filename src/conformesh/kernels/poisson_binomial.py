"""How many of m independent events happen, each with its own chance."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformesh.kernels.compiling import compiled
from conformesh.kernels.threads import in_blocks

BLOCK = 16  # nodes at a time: their tables of a thousand events stay in a core's own cache


def fewer_than(chance: Any) -> Any:
    """Return P(fewer than k of the m events), k = 1..m, for each column of `chance` (m, nodes): O(m^2) per node."""
    m, nodes = chance.shape
    loops = compiled("poisson_binomial", float(m * m * nodes))
    if loops is not None:
        return loops.fewer_than(chance)
    out = np.empty((m, nodes))
    in_blocks(lambda a, b: _fewer_than(chance[:, a:b], out[:, a:b]), nodes, m * m * nodes)
    return out


def _fewer_than(chance: Any, out: Any) -> None:
    """One event after the other, all of a few nodes at once, in tables that are updated in place."""
    m, nodes = chance.shape
    for first in range(0, nodes, BLOCK):
        happens = np.ascontiguousarray(chance[:, first : first + BLOCK])[:, :, None]
        exactly = np.zeros((happens.shape[1], m + 1))
        exactly[:, 0] = 1.0
        moved = np.empty((happens.shape[1], m))
        for j, p in enumerate(happens):
            np.multiply(exactly[:, : j + 1], p, out=moved[:, : j + 1])
            exactly[:, : j + 2] *= 1.0 - p
            exactly[:, 1 : j + 2] += moved[:, : j + 1]
        out[:, first : first + BLOCK] = np.minimum(np.add.accumulate(exactly[:, :m], axis=1), 1.0).T
