r"""What noise costs: how much more a noisy search must ask for so that coverage is kept.

A stage asks for w + 1 disjoint cells and accepts the first pivot p with D(p) + Z(p) >= slack + I, where D = alpha
below - (1 - alpha) above. The noise of pivot j is Z_j = L_j - (1 - alpha) T: L_j that of the first j cells, T that of
all. Let A be the least that alpha times the number of scores can be, and c = I - A. Coverage is kept if no table
gains more than A from the noise, the gain being :math:`(t - c)^+` where the pivot accepted last is p, t = I - D(p)
(docs/privacy-proofs.md). Two bounds on what it gains, and the smaller I that they allow:

maximum   :math:`E (M - c)^+`, M the largest Z of all stages and pivots: equal to :math:`E \min(A, I - M) \ge 0`.
          Convex in the noise, so it stays true if devices add less than their share
closed    the same, with :math:`x^+ \le e^{\lambda x}/(\lambda e)` summed over all pivots

The law of M is worked out on a lattice, with everything that was cut off or rounded carried upwards: the walk
L_1, L_2, .. is followed for every bound m on its maximum at once, which gives the law of (max L_j, T). Noise too wide
for the lattice is moved to multiples of a step at random so that its mean stays: the mean of what is convex in the
noise only grows (Jensen). Walks that leave the lattice are bounded by Doob's inequality for exp(lambda L).

Floats decide here, and the last digit of I may differ between machines: devices compare it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from conformesh.privacy.noise import Floats, exact_epsilon, law
from conformesh.promises import Ints

POINTS = 200  # of the lattice on either side of 0, at most
CELLS = 300  # more cells than this are bounded in closed form
UNITS = 400_000  # different values of M that are told apart, at most
_SAFE = 1 + 1e-9  # more than round-off of sums of products of positive numbers comes to


class Inflation(NamedTuple):
    """What a noisy search asks for beyond its slack, and how that was proven: by `maximum` or `closed`."""

    value: Fraction
    how: str


@lru_cache(maxsize=256)
def inflation(
    alpha: Fraction,
    cells: int,
    stages: int,
    epsilon: Fraction | float,
    ratio: Fraction,
    least: Fraction,
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
    >>> inflation(Fraction(1, 10), 8, 1, 2.0, Fraction(20, 19), Fraction(20))
    Inflation(value=Fraction(7, 10), how='maximum')
    """
    if cells < 2 or stages < 1:
        raise ValueError(f"a noisy search needs at least 2 cells and 1 stage, got {cells} and {stages}")
    if not 0 < alpha < 1 or least <= 0 or ratio <= 0:
        raise ValueError(f"alpha must lie in (0, 1), least and ratio be positive, got {alpha}, {least} and {ratio}")
    noise = Noise(exact_epsilon(Fraction(str(epsilon)) / stages), Fraction(ratio), cells, stages)
    found = Inflation(_closed(alpha, noise, least), "closed")
    if cells > CELLS:
        return found
    sharper = Inflation(_maximum(alpha, noise, _lattice(noise, least), least), "maximum")
    return found if found.value < sharper.value else sharper


class Noise(NamedTuple):
    """Noise of a search: epsilon of one stage, the shape of each cell's, and how many cells and stages there are."""

    epsilon: Fraction
    shape: Fraction
    cells: int
    stages: int

    @property
    def deviation(self) -> float:
        """Standard deviation of T."""
        p = math.exp(-float(self.epsilon))
        return math.sqrt(self.cells * 2 * float(self.shape) * p) / (1 - p)

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


class Lattice(NamedTuple):
    """Multiples of `step`, `points` of them on either side of 0; walks that leave it add `outside` to a gain."""

    step: int
    points: int
    outside: float

    @property
    def width(self) -> int:
        """How far it reaches."""
        return self.step * self.points

    @property
    def side(self) -> Ints:
        """The multiples."""
        return np.arange(-self.points, self.points + 1)

    def room(self, least: Fraction) -> float:
        """Return A, or less: `outside` is right for c >= -width, and whatever is enough for less is enough for A."""
        return min(float(least), float(self.width))


def _lattice(noise: Noise, least: Fraction) -> Lattice:
    """Return a lattice which walks leave so rarely that it matters little.

    Let Y be the largest |L_j| or |T - L_j| of a stage: P(Y > y) <= 4 exp(-rate y) E exp(rate T) by Doob's inequality,
    and no Z is above Y. If a stage has Y > R it adds at most E (Y - c; Y > R), and each other P(Y > R) E (Y - c)^+: its
    mean is at most 2 R if c >= -R, as E Y <= sqrt(8 Var T) <= R. Moving noise to multiples of a step multiplies
    E exp(rate X) by no more than exp(rate^2 step^2/8) (Hoeffding).
    """
    rate = np.linspace(0.02, 0.98, 97) * float(noise.epsilon)
    wide = 3 * noise.deviation + 4
    while True:
        step = math.ceil(wide / POINTS)
        moved = (rate * step) ** 2 / 8 if step > 1 else 0.0
        exponent = noise.cells * (noise.log_moment(rate) + moved) - rate * wide
        leaves = 4 * np.exp(np.minimum(exponent, 100.0))
        outside = noise.stages * float(np.min(leaves * (2 * noise.stages * wide + 1 / rate)))
        if outside <= 1e-4 * min(float(least), 1.0):
            return Lattice(step, math.ceil(wide / step), outside)
        wide *= 1.05


def _maximum(alpha: Fraction, noise: Noise, lattice: Lattice, least: Fraction) -> Fraction:
    """Return the smallest I with E (M - c)^+ <= A, c = I - A, from the law of M on a lattice."""
    room = lattice.room(least)
    units, tails = _tails(alpha, noise, lattice)
    either = -np.expm1(noise.stages * np.log1p(-np.minimum(tails, 1 - 1e-16)))  # P(M > x)
    gaps = np.diff(units, append=units[-1])
    excess = np.cumsum((gaps * either)[::-1])[::-1] * _SAFE + lattice.outside  # E (M - x)^+, linear between units
    q, low = alpha.denominator, units[0]
    tried = np.arange(math.ceil(units[-1] * q) + 1) / q  # I is not negative: every Z has mean 0
    c = tried - room
    found = np.where(c < low, excess[0] + (low - c) * _SAFE, np.interp(c, units, excess))
    return Fraction(int(np.argmax(found <= room)), q)


def _kept(noise: Noise, lattice: Lattice) -> Floats:
    """Return P(max L_j = m, T = t) for all m and t on the lattice, of walks that never leave it."""
    between, side = _between(noise, lattice), lattice.side
    allowed = side[None, :] <= side[:, None]  # row m: walks that were never above m
    state = np.where(allowed, between[lattice.points], 0.0)
    for _ in range(noise.cells - 2):
        state = np.where(allowed, state @ between, 0.0)
    return np.asarray(np.diff(state @ between, axis=0, prepend=0.0).clip(min=0.0))


def _between(noise: Noise, lattice: Lattice) -> Floats:
    """Return the chances to get from a point to a point by the noise of a cell, moved to multiples of the step."""
    known, step, side = law(noise.epsilon, noise.shape), lattice.step, lattice.side
    reach = (2 * lattice.points + 1) * step
    full = np.full(2 * reach + 1, known.cut)
    inner = min(reach, known.reach)
    full[reach - inner : reach + inner + 1] += known.chances[known.reach - inner : known.reach + inner + 1]
    share = 1 - np.abs(np.arange(-step, step + 1)) / step  # noise between two multiples goes to either, by nearness
    moved = np.lib.stride_tricks.sliding_window_view(full, 2 * step + 1)[::step] @ share
    return np.asarray(moved[side[None, :] - side[:, None] + 2 * lattice.points])


def _tails(alpha: Fraction, noise: Noise, lattice: Lattice) -> tuple[Floats, Floats]:
    """Return the values of max L_j - (1 - alpha) T, ascending, and how likely one stage leads above each, at most."""
    a, q = alpha.numerator, alpha.denominator
    side = lattice.side * lattice.step
    values = q * side[:, None] - (q - a) * side[None, :]  # in units of 1/q
    grain = math.ceil(2 * int(values.max()) / UNITS)
    index = -(-values // grain)
    low = int(index.min())
    chance = np.bincount((index - low).ravel(), weights=_kept(noise, lattice).ravel())
    above = np.cumsum(chance[::-1])[::-1] - chance
    units = (np.arange(len(chance)) + low) * (grain / q)
    # Sums of differences of two rows are differences of two sums, each with a relative error below cells points 2e-16
    return units.astype(np.float64), above.astype(np.float64) * _SAFE + 1e-15 * noise.cells * lattice.points
