r"""Quantiles of a noisy histogram: the value next to the crossing of a rank, and how far its rank may be off.

Let F(v) be the number of values at or below v, and :math:`B_j = F(p_j) - q n = (1 - q) n - above_j` at pivot j. The
release gives :math:`B_j` with noise, :math:`\tilde B_j = B_j + Z_j`. The answer is the pivot next to the last crossing
of 0 with the smaller :math:`|\tilde B|`. Where :math:`|Z_j| \le e_j` at all pivots at once, :math:`|F(p_j) - q n| \le
|\tilde B_j| + e_j`: the *rank error*, of which the first part is the resolution of the grid and the second the noise
(`_noise_bound`).
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from conformesh.privacy.histogram import Release
from conformesh.privacy.noise import FOURIER_ERROR, ROUNDOFF_FACTOR, noise_law, noise_variance

# Relative precision of a rank error. A choice: smaller costs more steps and changes no reader's mind.
_RANK_PRECISION = 1e-3


def read_quantile(release: Release, part: Fraction, risk: float) -> tuple[float, float, float]:
    """Return the value of one quantile, and the two parts of its rank error: resolution, and noise."""
    cells = np.array(release.totals[1:])
    above = np.append(np.cumsum(cells[::-1])[::-1], 0).tolist()  # beyond each pivot, and beyond +infinity
    wanted = (1 - part) * release.number
    crossing = max((j for j, noisy in enumerate(above) if noisy > wanted), default=-1)
    off = {j: abs(wanted - above[j]) for j in (crossing, crossing + 1) if 0 <= j < len(above)}
    at = min(off, key=lambda j: (off[j], j))
    error = _noise_bound(release, 1 - part, len(cells) - at, risk)
    return float(np.append(release.pivots, math.inf)[at]), float(off[at]), error


def _noise_bound(release: Release, factor: Fraction, cells: int, risk: float) -> float:
    """Return e for a pivot with so many cells above it: P(|Z_j| > e_j for some j) <= risk.

    Z_j = factor X' - X_1 - .. - X_j is a walk over the noise of the cells from the right. Its lengths are cut into
    stretches over which its variance doubles, each of which gets an equal part of the risk: few stretches leave each a
    large part, many fit each walk closely, and doubling is near the best.
    """
    cell, number = (noise_variance(Fraction(text or "1")) for text in (release.cell_epsilon, release.number_epsilon))
    ends = [1]
    while ends[-1] < release.cells - 1:
        ends.append(min(math.floor(2 * ends[-1] + float(factor) ** 2 * number / cell), release.cells - 1))
    return noise_walk_bound(release, factor, min(end for end in ends if end >= cells), risk / len(ends))


def noise_walk_bound(release: Release, factor: Fraction, cells: int, risk: float) -> float:
    """Return what |factor X' - X_1 - .. - X_j| exceeds for some j <= cells with a chance of at most `risk`.

    The steps are independent and symmetric, so by Levy's inequality the chance is at most twice that of the whole walk,
    |factor X' - S| > e. Let T(y) be P(S > k - 1) at whole numbers y = k >= 1 and linear between them: above P(S > y),
    and convex, since chances fall outwards. Given X', with x = |factor X'|, the chance is at most
    g(x) = min(1, T(e - x) + T(e + x)), and 1 for x > e - 1. T grows with the shape of the noise (the law is symmetric
    and unimodal), g grows with x (T is convex), and |X'| grows with the shape, so left-out noise does no harm.
    """
    shape = Fraction(release.shape)
    walk = noise_law(Fraction(release.cell_epsilon), shape * cells)
    number = noise_law(Fraction(release.number_epsilon or 1), shape)
    beyond = np.cumsum(walk.chances[::-1])[::-1][walk.reach + 1 :]  # P(S > k), k = 0, 1, ..
    beyond = np.append(beyond, 0.0) * ROUNDOFF_FACTOR + walk.cut + FOURIER_ERROR
    whole = np.arange(1.0, len(beyond) + 1)
    x = float(factor) * np.abs(np.arange(-number.reach, number.reach + 1))

    def chance(e: float) -> float:
        both = np.interp(e - x, whole, beyond) + np.interp(e + x, whole, beyond)
        given = np.where(x > e - 1, 1.0, np.minimum(both, 1.0))
        return 2 * (float(number.chances @ given) + number.cut) * ROUNDOFF_FACTOR

    low, high = 0.0, 1.0
    while chance(high) > risk:
        low, high = high, 2 * high
    while high - low > _RANK_PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) > risk else (low, middle)
    return high
