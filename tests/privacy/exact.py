"""The noisy search on small tables without chance: every hidden example, every noise, weighed by its exact chance."""

import itertools
import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from conformesh.privacy.noise import law


@lru_cache(maxsize=8)
def chances(epsilon, shape, cells, reach):
    """Chances of the sum of 0..cells noises, each -2 reach..2 reach."""
    known = law(epsilon, shape)
    size = 8 * max(reach, known.reach)
    one = np.zeros(size)
    one[np.arange(-known.reach, known.reach + 1)] = known.chances
    waves = np.fft.rfft(one)
    side = np.arange(-2 * reach, 2 * reach + 1)
    return [np.fft.irfft(waves**k, size).clip(min=0.0)[side] for k in range(cells + 1)]


class Search:
    """One way to search: `stages` of `cells`, noise of one epsilon in all and one shape, at level alpha."""

    def __init__(self, alpha, cells, stages, epsilon, shape=Fraction(1), reach=None):
        self.alpha, self.cells, self.stages, self.epsilon, self.shape = alpha, cells, stages, epsilon, shape
        self.each = Fraction(epsilon) / stages
        self.reach = reach or math.ceil((16 + 3 * math.sqrt(2 * cells)) / self.each)
        self.known = {}

    def accepted(self, needs):
        """Return the chance that pivot j is the first with Z_j >= needs[j], for each j, and that there is none."""
        key = tuple(needs)
        if key not in self.known:
            self.known[key] = self._accepted(key)
        return self.known[key]

    def _accepted(self, needs):
        sums = chances(self.each, self.shape, self.cells, self.reach)
        side = np.arange(-self.reach, self.reach + 1)
        between = sums[1][side[None, :] - side[:, None] + 2 * self.reach]
        a, q = self.alpha.numerator, self.alpha.denominator
        z = q * side[None, :] - (q - a) * side[:, None]  # q Z, row T, column L_j
        state = np.tile(np.where(side == 0, 1.0, 0.0), (len(side), 1))
        found = []
        for j, need in enumerate(needs, 1):
            state = state @ between
            stops = z >= math.ceil(need * q)
            rest = sums[self.cells - j][side[:, None] - side[None, :] + 2 * self.reach]
            found.append(float((state * stops * rest).sum()))
            state = np.where(stops, 0.0, state)
        return np.array([*found, 1 - sum(found)])

    @property
    def grid(self):
        """How many cells there are after all stages."""
        return self.cells**self.stages

    def answers(self, d, need):
        """Return the chance of each answer 0..grid - 1, the last being infinite: d[i] is D at the end of fine cell i.

        Cell i of the grid ends at grid point i; the last has no end. A stage cuts its bracket into `cells` parts.
        """
        found = np.zeros(self.grid)
        self._descend(d, need, 0, self.grid, 1.0, found)
        return found

    def _descend(self, d, need, start, size, chance, found):
        if size == 1:
            found[start] += chance
            return
        part = size // self.cells
        ends = [start + part * (j + 1) - 1 for j in range(self.cells - 1)]
        for j, p in enumerate(self.accepted([need - d[i] for i in ends])):
            if chance * p > 0:
                self._descend(d, need, start + part * j, part, chance * p, found)

    def d_of(self, counts):
        """Return D at the end of each fine cell, from the scores in each."""
        below = np.cumsum(counts)
        return [self.alpha * int(b) - (1 - self.alpha) * int(below[-1] - b) for b in below]

    def coverage(self, table, target, extra, slack=None):
        """Return the exact coverage of a table: device k has n_k + 1 items, each the number of a fine cell.

        Every item of a device is as likely to be the new example; the device asked is drawn by the target.
        """
        sizes = [len(items) - 1 for items in table]
        shares = [n + (target == "paper") for n in sizes]
        if slack is None:
            slack = (1 - self.alpha) * len(table) if target == "paper" else 1
        assert sum(shares) > 0
        whole = np.bincount(np.concatenate(table), minlength=self.grid)
        total = 0.0
        ways = {}  # the same cells hidden: the same answer
        for hidden in itertools.product(*table):
            ways[hidden] = ways.get(hidden, 0) + 1
        for hidden, often in ways.items():
            d = self.d_of(whole - np.bincount(hidden, minlength=self.grid))
            upto = np.cumsum(self.answers(d, slack + extra)[::-1])[::-1]  # chance that the answer is cell i or higher
            total += often * sum(s * upto[h] for s, h in zip(shares, hidden, strict=True)) / sum(shares)
        return total / math.prod(map(len, table))
