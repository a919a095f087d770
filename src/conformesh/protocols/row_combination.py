r"""One step of projection gossip: the best combination of what a device has and what it has heard.

A device holds weights a, with numbers x that go with them (`bounds.tracked_weights`). From its own row, the received
rows, its earlier rows and its own unit vector (its own counts, without error) it forms the combination whose weights
are nearest to (1, ..., 1), in the norm in which device j counts n_j times: a small least squares problem.

Extrapolation costs digits: coefficients of opposite signs add up the round-off of the rows. So the coefficients are
regularised by a ridge, and of several ridges the best trade-off is taken: a factor of `_ROUNDOFF_PRICE` powers
of ten in round-off is worth one power of ten in distance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conformesh.common.array_types import Floats
from conformesh.protocols.bounds.tracked_weights import combined_noise

# Relative weights of the ridge, from nothing but round-off protection to almost no extrapolation; the best is taken.
_RIDGES = np.array([1e-15, *(10.0**-e for e in range(13, -1, -1))])
_ROUNDOFF_PRICE = 15.0  # powers of ten in round-off that are worth one in distance: a pair of float64 has about 32
_LARGEST_ROUNDOFF = 0.1  # scores: a whole count stays readable as long as all errors are below one half
# Round-off below the largest allowed one times this power of the remaining distance is free: far from the goal digits
# are plenty, and only the distance counts.
_FREE_ROUNDOFF_POWER = 6.0
_LEAST_PROGRESS = 1 - 1e-9  # a step must shrink the distance by this factor, or its gain is round-off


class WeightRows(NamedTuple):
    """Rows of weights and what goes with them, problem by problem.

    Attributes
    ----------
    weights
        (problems, rows, devices): first one's own row, then those heard and those of before, zero where there are
        fewer; last the unit vector of the device itself.
    noises
        Error bounds of the numbers that go with them, (problems, rows).
    sizes
        Total weight of the scores of every device, (problems, devices).
    """

    weights: Floats
    noises: Floats
    sizes: Floats


def best_combination(rows: WeightRows) -> tuple[Floats, Floats]:
    """Return the coefficients of the best combination, (problems, rows), and its error bound, (problems,).

    The device's own row, unchanged, where no combination is better.
    """
    gram, aims = _gram(rows)
    total = rows.sizes.sum(axis=1)[:, None]
    masses = (np.abs(rows.weights) * rows.sizes[:, None]).sum(axis=2)
    tried = _solutions(gram, aims)  # (problems, ridges, rows)
    distances = total - 2 * (tried * aims[:, None]).sum(axis=2) + ((tried @ gram) * tried).sum(axis=2)
    noises = combined_noise(tried, masses[:, None], rows.noises[:, None])
    now = ((1 - rows.weights[:, :1]) ** 2 * rows.sizes[:, None]).sum(axis=2)
    prices = _price(distances, noises, total)
    worth = (
        (noises <= _LARGEST_ROUNDOFF)
        & (distances < now * _LEAST_PROGRESS)
        & (prices < _price(now, rows.noises[:, :1], total))
    )
    best = np.where(worth, prices, np.inf).argmin(axis=1)
    each = np.arange(len(best))
    moved, stay = worth[each, best], np.zeros_like(aims)
    stay[:, 0] = 1
    coefficients = np.where(moved[:, None], tried[each, best], stay)
    return coefficients, np.where(moved, noises[each, best], rows.noises[:, 0])


def _price(distances: Floats, noises: Floats, total: Floats) -> Floats:
    """Return the remaining error on a scale on which distance and round-off can be traded."""
    off = np.sqrt(np.maximum(distances, 1e-20) * total)  # largest error of a count, by Cauchy and Schwarz
    free = _LARGEST_ROUNDOFF * np.minimum(1, 0.5 / off) ** _FREE_ROUNDOFF_POWER
    return np.asarray(np.log(off) + np.log(np.maximum(noises, free)) / _ROUNDOFF_PRICE)


def _gram(rows: WeightRows) -> tuple[Floats, Floats]:
    """Return inner products of the rows, and those with (1, ..., 1); device j counts n_j times."""
    weighed = rows.weights * rows.sizes[:, None]
    return weighed @ rows.weights.transpose(0, 2, 1), weighed.sum(axis=2)


def _solutions(gram: Floats, aims: Floats) -> Floats:
    """Return the coefficients for every ridge; missing rows, which are all zero, get the coefficient zero."""
    diagonal = np.einsum("bii->bi", gram)
    ridge = diagonal.copy()
    ridge[:, -1] = 0  # the device's own counts have no error
    missing = diagonal <= 0
    systems = np.repeat(gram[:, None], len(_RIDGES), axis=1)
    at = np.arange(gram.shape[1])
    systems[:, :, at, at] += _RIDGES[:, None] * ridge[:, None] + missing[:, None]
    sought = np.broadcast_to(aims[:, None], systems.shape[:3])
    try:
        return np.asarray(np.linalg.solve(systems, sought[..., None])[..., 0])
    except np.linalg.LinAlgError:  # one of them has no unique solution
        return np.asarray((np.linalg.pinv(systems, hermitian=True) @ sought[..., None])[..., 0])
