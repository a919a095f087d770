r"""What noise costs: how much more a noisy search must ask for so that coverage is kept.

A stage asks for w + 1 disjoint cells and accepts the first pivot p with D(p) + Z(p) >= slack + I, where
D = alpha below - (1 - alpha) above. The noise of pivot j is Z_j = L_j - (1 - alpha) T: L_j that of the first j cells, T
that of all. With M the largest Z of all stages and pivots, coverage is kept if

.. math:: E \min(A, I - M) \ge 0 \quad\Longleftrightarrow\quad E (M - c)^+ \le A, \quad c = I - A,

A being the least that alpha times the number of scores can be (docs/privacy-proofs.md). The smallest such I comes from
the law of M, worked out on a lattice, with everything that was cut off or rounded carried upwards:

- the walk L_1, L_2, .. is followed for every bound m on its maximum at once, which gives the law of (max L_j, T);
- noise too wide for the lattice is moved to multiples of a step h at random so that its mean stays. Given where it was,
  it is where it was on average, and (M - c)^+ is convex in the noise: its mean only grows (Jensen);
- walks that leave the lattice are bounded by Doob's inequality for exp(lambda L).

Where there are too many cells for that: (x)^+ <= exp(lambda x)/(lambda e), summed over all pivots, with the best lambda.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from conformesh.privacy.noise import Floats, exact_epsilon, law

POINTS = 200  # of the lattice, on either side of 0
CELLS = 300  # more cells than this are bounded in closed form
UNITS = 400_000  # different values of M that are told apart, at most
_SAFE = 1 + 1e-9  # more than round-off of sums of products of positive numbers comes to


class Inflation(NamedTuple):
    """What a noisy search asks for beyond its slack, and how that was proven: `exact` or `closed`."""

    value: Fraction
    how: str


@lru_cache(maxsize=256)
def inflation(
    alpha: Fraction, cells: int, stages: int, epsilon: Fraction | float, ratio: Fraction, least: Fraction
) -> Inflation:
    """Return the smallest I that is proven to keep coverage, a multiple of 1/(denominator of alpha).

    Parameters
    ----------
    alpha
        Tolerated miscoverage.
    cells
        w + 1: how many noisy counts a stage asks for.
    stages
        How many stages there are; each spends epsilon / stages.
    epsilon
        What all stages spend together.
    ratio
        K/H: all K devices add noise of which H shares would do.
    least
        A: alpha times the smallest number of scores that there may be (with ghosts, for target `paper`).

    Examples
    --------
    >>> inflation(Fraction(1, 10), 16, 2, 1.0, Fraction(20, 19), Fraction(200))
    Inflation(value=Fraction(...), how='exact')
    """
    if cells < 2 or stages < 1:
        raise ValueError(f"a noisy search needs at least 2 cells and 1 stage, got {cells} and {stages}")
    if not 0 < alpha < 1 or least <= 0 or ratio <= 0:
        raise ValueError(f"alpha must lie in (0, 1), least and ratio be positive, got {alpha}, {least} and {ratio}")
    noise = Noise(exact_epsilon(Fraction(str(epsilon)) / stages), Fraction(ratio), cells, stages)
    found = [Inflation(_closed(alpha, noise, least), "closed")]
    if cells <= CELLS:
        found.append(Inflation(_exact(alpha, noise, least), "exact"))
    return min(found)


class Noise(NamedTuple):
    """Noise of a search: epsilon of one stage, the shape of each cell's, and how many cells and stages there are."""

    epsilon: Fraction
    shape: Fraction
    cells: int
    stages: int

    def log_moment(self, rate: Floats) -> Floats:
        """Return log E exp(rate X), X the noise of one cell; |rate| must be below epsilon."""
        p = math.exp(-float(self.epsilon))
        grown, shrunk = -np.expm1(rate - float(self.epsilon)), -np.expm1(-rate - float(self.epsilon))
        return np.asarray(float(self.shape) * (2 * math.log1p(-p) - np.log(grown) - np.log(shrunk)))


def _closed(alpha: Fraction, noise: Noise, least: Fraction) -> Fraction:
    """Return I with sum E (Z_j - c)^+ <= A' for some A' <= A, from exponential moments.

    The condition only gets easier with A, so any A' may be used; 1/rate is the best.
    """
    a, b = float(alpha), 1 - float(alpha)
    rate = np.geomspace(1e-3, 0.999, 400) * float(noise.epsilon) / max(a, b)
    j = np.arange(1, noise.cells)[:, None]
    moments = np.logaddexp.reduce(
        j * noise.log_moment(a * rate) + (noise.cells - j) * noise.log_moment(b * rate), axis=0
    )
    room = np.minimum(float(least), 1 / rate)
    value = np.min(room + (math.log(noise.stages) + moments - np.log(rate * math.e * room)) / rate)
    return _upwards(float(value) * _SAFE, alpha)


def _upwards(value: float, alpha: Fraction) -> Fraction:
    return Fraction(math.ceil(Fraction(value) * alpha.denominator), alpha.denominator)


def _exact(alpha: Fraction, noise: Noise, least: Fraction) -> Fraction:
    """Return the smallest I with E (M - c)^+ <= A, c = I - A, from the law of M on a lattice."""
    width, outside = _width(noise, least)
    step = math.ceil(width / POINTS)
    room = min(float(least), float(width))  # `outside` is so small for c >= -width only; less room is harder
    units, tails = _tails(alpha, _kept(noise, step), step)
    either = -np.expm1(noise.stages * np.log1p(-np.minimum(tails * _SAFE, 1 - 1e-16)))  # P(M > x)
    gaps = np.diff(units, append=units[-1])
    excess = np.cumsum((gaps * either)[::-1])[::-1] * _SAFE + outside  # E (M - x)^+
    low, q = float(units[0]), alpha.denominator
    tried = np.arange(math.ceil(float(units[-1]) * q) + q) / q  # I is not negative: all Z have mean 0
    c = tried - room
    found = np.where(c < low, excess[0] + (low - c) * _SAFE, np.interp(c, units, excess))
    return Fraction(int(np.argmax(found <= room * (2 - _SAFE))), q)


def _width(noise: Noise, least: Fraction) -> tuple[int, float]:
    """Return R, and what walks that leave [-R, R] in some stage add to E (M - c)^+, for any c >= -R.

    Y = max |L_j| has P(Y > y) <= 2 exp(-rate y) E exp(rate L), and M <= 2 Y within a stage, so they add at most
    2 exp(-rate R) (3 R + 2/rate) E exp(rate L) each.
    """
    rate = np.linspace(0.02, 0.98, 97) * float(noise.epsilon)
    step = 0.0
    wide = 8 / float(noise.epsilon)
    while True:
        step = max(1.0, math.ceil(wide / POINTS))  # moving to multiples of it: a factor exp(rate^2 step^2/8), at most
        moment = noise.cells * (noise.log_moment(rate) + (0.0 if step == 1 else 1.0) * (rate * step) ** 2 / 8)
        outside = 2 * noise.stages * float(np.min(np.exp(moment - rate * wide) * (3 * wide + 2 / rate)))
        if outside <= 1e-6 * min(float(least), 1.0):
            return math.ceil(wide), outside
        wide *= 1.05


def _kept(noise: Noise, step: int) -> Floats:
    """Return P(max L_j = m, T = t) for all m, t on the lattice of so many steps: of walks that never leave it."""
    f = _moved(noise, step)
    side = np.arange(-POINTS, POINTS + 1)
    between = f[side[None, :] - side[:, None] + 2 * POINTS]
    allowed = side[None, :] <= side[:, None]  # row m: walks that were never above m
    state = np.where(allowed, f[side + 2 * POINTS], 0.0)
    for _ in range(noise.cells - 2):
        state = np.where(allowed, state @ between, 0.0)
    return np.asarray(np.diff(state @ between, axis=0, prepend=0.0).clip(min=0.0))


def _moved(noise: Noise, step: int) -> Floats:
    """Return the chances of -2 POINTS .. 2 POINTS steps: noise between two multiples of the step goes to either."""
    known = law(noise.epsilon, noise.shape)
    reach = (2 * POINTS + 1) * step
    full = np.full(2 * reach + 1, known.cut)
    inner = min(reach, known.reach)
    full[reach - inner : reach + inner + 1] += known.chances[known.reach - inner : known.reach + inner + 1]
    share = 1 - np.abs(np.arange(-step, step + 1)) / step
    windows = np.lib.stride_tricks.sliding_window_view(full, 2 * step + 1)[::step]
    return np.asarray(windows @ share)


def _tails(alpha: Fraction, kept: Floats, step: int) -> tuple[Floats, Floats]:
    """Return the values of max L_j - (1 - alpha) T, ascending, and the chance to lie above each."""
    a, q = alpha.numerator, alpha.denominator
    side = np.arange(-POINTS, POINTS + 1) * step
    values = q * side[:, None] - (q - a) * side[None, :]  # in units of 1/q
    grain = max(1, math.ceil(2 * int(values.max()) / UNITS))
    index = -(-values // grain)
    low = int(index.min())
    chance = np.bincount((index - low).ravel(), weights=kept.ravel())
    above = np.cumsum(chance[::-1])[::-1] - chance
    return (np.arange(len(chance)) + low) * (grain / q), np.asarray(above.clip(min=0.0))
