"""How many stages the search of E-DCP takes: the search itself, on scores that are drawn only where it looks.

The number of stages depends on the scores, so it is predicted as a mean over draws. A draw needs no scores: given how
many lie in a bracket, how many of them lie below a threshold inside is binomial. So n may be 10^12, and the thresholds
that are tried come from the very code of the protocol.

Assumes scores without ties, all from one distribution (`SHAPES`), of which the stages depend little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformesh.keys import from_keys, to_keys
from conformesh.protocols.e_dcp import Brackets

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
DRAWS = 200
Shape = tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]  # the distribution function, and its inverse


def _normal() -> Shape:
    from scipy.special import ndtr, ndtri

    return ndtr, ndtri


def _uniform() -> Shape:
    return lambda x: x, lambda u: u


def _exponential() -> Shape:
    return lambda x: -np.expm1(-x), lambda u: -np.log1p(-u)


def _cubic() -> Shape:
    """Most scores near 0, few near 1: errors 1 - p of a good classifier."""
    return lambda x: np.cbrt(np.maximum(x, 0.0)), lambda u: u**3


SHAPES: dict[str, Callable[[], Shape]] = {
    "uniform": _uniform,
    "normal": _normal,
    "exponential": _exponential,
    "skewed": _cubic,
}


@dataclass(frozen=True, eq=False)
class Stages:
    """What searches took, one entry per draw: stages, snaps of the ends, and sums of one number after the last stage.

    `ends` says whether the smallest and the largest score had to be agreed on, which is the same for all.
    """

    stages: Ints
    snaps: Ints
    recounts: Ints

    @property
    def certain(self) -> bool:
        """Whether all draws took the same, because nothing had to be searched."""
        return bool((self.stages == 0).all() and np.ptp(self.recounts) == 0)


@lru_cache(maxsize=256)
def stages_of(n: int, rank: int, width: int, shape: str = "uniform", draws: int = DRAWS, seed: int = 0) -> Stages:
    """Search for the score of that rank among n, in many draws at once; needs 1 <= rank <= n."""
    pool = _Pool(n, rank, draws, *SHAPES[shape](), np.random.default_rng(seed))
    stages, snaps, recounts = (np.zeros(draws, dtype=np.int64) for _ in range(3))
    brackets = pool.brackets
    while brackets.open.any():
        stuck, ready = np.flatnonzero(brackets.stuck()), np.flatnonzero(brackets.ready())
        if len(stuck):
            snaps[stuck] += 1
            pool.snap(stuck)
        if len(ready):
            recounts[ready] += brackets.at_high[ready] != brackets.rank[ready]
            brackets.open[ready] = False
        which = np.flatnonzero(brackets.open & ~brackets.stuck() & ~brackets.ready())
        if len(which):
            stages[which] += 1
            pool.stage(which, width)
    return Stages(stages, snaps, recounts)


class _Pool:
    """All scores of the network, known only at the ends of the brackets; one network per draw.

    `at_bottom` and `at_top` say whether a score lies exactly at an end of the bracket; the others are free inside.
    """

    def __init__(
        self,
        n: int,
        rank: int,
        draws: int,
        cdf: Callable[[Floats], Floats],
        inverse: Callable[[Floats], Floats],
        rng: np.random.Generator,
    ) -> None:
        self.cdf, self.inverse, self.rng = cdf, inverse, rng
        self.brackets = Brackets(np.full(draws, rank), np.full(draws, n), np.arange(draws))
        top = rng.random(draws) ** (1 / n)
        bottom = top * self._smallest(np.full(draws, n - 1))
        self.brackets.begin(np.stack([inverse(bottom), inverse(top)]))
        self.at_bottom, self.at_top = np.full(draws, n > 1), np.ones(draws, dtype=bool)

    def stage(self, which: Ints, width: int) -> None:
        """Count at the thresholds that the search would try, and shrink the brackets."""
        b = self.brackets
        pivots = b.pivots(which, width)
        low, high = self._ends(which)
        free = (b.at_high - b.at_low - self.at_bottom - self.at_top)[which]
        below = b.at_low[which] + self.at_bottom[which]
        counts, before = np.zeros(pivots.shape, dtype=np.int64), low
        for at, x in enumerate(self.cdf(from_keys(pivots)).T):
            inside = self.rng.binomial(free, _share(x - before, high - before))
            free, below, before = free - inside, below + inside, np.maximum(x, before)
            counts[:, at] = below
        lower, upper = b.low[which], b.high[which]
        b.shrink(which, pivots, counts)
        self.at_bottom[which] &= b.low[which] == lower
        self.at_top[which] &= b.high[which] == upper

    def snap(self, which: Ints) -> None:
        """Draw brackets in to the scores that they hold."""
        b = self.brackets
        low, high = self._ends(which)
        free = (b.at_high - b.at_low - self.at_bottom - self.at_top)[which]
        smallest = low + (high - low) * self._smallest(free)
        greatest = high - (high - smallest) * self._smallest(np.maximum(free - 1, 1))
        bottom = np.where(self.at_bottom[which], b.low[which] + 1, to_keys(self.inverse(smallest)))
        top = np.where(self.at_top[which], b.high[which], to_keys(self.inverse(greatest)))
        b.low[which], b.high[which] = np.minimum(bottom, top) - 1, top
        b.quiet[which] = 0
        self.at_bottom[which] = self.at_top[which] = True
        b.open[which[(bottom >= top) | (b.high[which] - 1 == b.low[which])]] = False

    def _ends(self, which: Ints) -> tuple[Floats, Floats]:
        return self.cdf(from_keys(self.brackets.low[which])), self.cdf(from_keys(self.brackets.high[which]))

    def _smallest(self, many: Ints) -> Floats:
        """Draw the smallest of so many numbers, uniform between 0 and 1."""
        return np.asarray(-np.expm1(np.log1p(-self.rng.random(len(many))) / np.maximum(many, 1)))


def _share(part: Floats, whole: Floats) -> Floats:
    return np.clip(np.divide(part, whole, out=np.zeros_like(part), where=whole > 0), 0.0, 1.0)
