"""How many of m independent events happen, each with its own chance."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformesh.kernels.compilation import has_compiled_twin


def _products(chance: Any) -> float:
    return float(chance.shape[0] ** 2 * chance.shape[1])


@has_compiled_twin("poisson_binomial", work=_products)
def poisson_binomial_cdf(chance: Any) -> Any:
    """Return P(fewer than k of the m events), k = 1..m, for each column of `chance` (m, nodes): O(m^2) per node.

    One event after the other, in tables that are updated in place.
    """
    m, nodes = chance.shape
    exactly, moved = np.zeros((m + 1, nodes)), np.empty((m, nodes))
    exactly[0] = 1.0
    for j, p in enumerate(chance):
        grown = exactly[: j + 2]
        np.multiply(grown[:-1], p, out=moved[: j + 1])
        grown *= 1.0 - p
        grown[1:] += moved[: j + 1]
    return np.minimum(np.add.accumulate(exactly[:m], axis=0), 1.0)
