"""How many stages the search of E-DCP takes: the search itself, on scores that are drawn only where it looks.

The number of stages depends on the scores, so it is predicted as a mean over draws. A draw needs no scores: given how
many lie in a bracket, how many of them lie below a threshold inside is binomial. So n may be 10^12, and the thresholds
that are tried come from the very code of the protocol.

Assumes scores without ties, all from one distribution (`SHAPES`), of which the stages depend little. With the scores at
hand nothing is assumed: the search is run on them, in one place and without a network, and its stages are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformesh.kernels.keys import from_keys, to_keys
from conformesh.protocols.e_dcp import Brackets
from conformesh.protocols.predicting import Searches

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
DRAWS = 200
ANY = "any"  # nobody has said what scores look like
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


@lru_cache(maxsize=256)
def stages_of(n: int, rank: int, width: int, shape: str = "uniform", draws: int = DRAWS, seed: int = 0) -> Searches:
    """Search for the score of that rank among n, in many draws at once; needs 1 <= rank <= n."""
    return _searched(_Drawn(n, rank, draws, *SHAPES[shape](), np.random.default_rng(seed)), width)


def stages_in(scores: Floats, rank: int, width: int) -> Searches:
    """Search for the score of that rank among these, which are all there are; needs 1 <= rank <= n."""
    return replace(_searched(_Given(np.sort(scores), rank), width), known=True)


def stages_of_any(n: int, rank: int, width: int, shape: str) -> Searches:
    """Return draws of one shape; or of any, the even ones twice as likely."""
    names = [*SHAPES, "uniform", "normal"] if shape == ANY else [shape]
    drawn = [stages_of(n, rank, width, name) for name in names]

    def joined(part: str) -> Ints:
        return np.concatenate([getattr(one, part) for one in drawn])

    return Searches(joined("stages"), joined("snaps"), joined("named"), joined("recounts"))


def _searched(pool: _Drawn | _Given, width: int) -> Searches:
    brackets = pool.brackets
    stages, snaps, named, recounts = (np.zeros(len(brackets.rank), dtype=np.int64) for _ in range(4))
    while brackets.open.any():
        stuck, ready = np.flatnonzero(brackets.stuck()), np.flatnonzero(brackets.ready())
        if len(stuck):
            snaps[stuck] += 1
            pool.snap(stuck)
        if len(ready):
            named[ready] = 1
            recounts[ready] += brackets.at_high[ready] != brackets.rank[ready]
            brackets.open[ready] = False
        which = np.flatnonzero(brackets.open & ~brackets.stuck() & ~brackets.ready())
        if len(which):
            stages[which] += 1
            pool.stage(which, width)
    return Searches(stages, snaps, named, recounts)


class _Given:
    """All scores of the network, in ascending order."""

    def __init__(self, scores: Floats, rank: int) -> None:
        self.keys = to_keys(scores)
        self.brackets = Brackets(np.array([rank]), np.array([len(scores)]), np.zeros(1, dtype=np.int64))
        self.brackets.begin(scores[[0, -1]][:, None])

    def stage(self, which: Ints, width: int) -> None:
        """Count at the thresholds that the search would try, and shrink the bracket."""
        pivots = self.brackets.pivots(which, width)
        self.brackets.shrink(which, pivots, np.searchsorted(self.keys, pivots, side="right"))

    def snap(self, which: Ints) -> None:
        """Draw the bracket in to the scores that it holds."""
        b = self.brackets
        bottom = self.keys[np.searchsorted(self.keys, b.low[which], side="right")]
        top = self.keys[np.searchsorted(self.keys, b.high[which], side="right") - 1]
        b.low[which], b.high[which], b.quiet[which] = bottom - 1, top, 0
        b.open[which[bottom == top]] = False


class _Drawn:
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
