"""How many of m independent events happen, one event after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformesh.kernels.compiled import loop


@loop
def poisson_binomial_cdf_compiled(chance: Any) -> Any:
    """Return P(fewer than k of the m events), k = 1..m, for each column of `chance` (m, nodes): O(m^2) per node.

    One event after the other, from the top down, so that the table is updated in place.
    """
    m, nodes = chance.shape
    out = np.empty((m, nodes))
    exactly = np.zeros(m + 1)
    for node in range(nodes):
        exactly[:] = 0.0
        exactly[0] = 1.0
        for j in range(m):
            p = chance[j, node]
            for i in range(j + 1, 0, -1):
                exactly[i] = exactly[i] * (1.0 - p) + exactly[i - 1] * p
            exactly[0] *= 1.0 - p
        total = 0.0
        for k in range(m):
            total += exactly[k]
            out[k, node] = min(total, 1.0)
    return out
