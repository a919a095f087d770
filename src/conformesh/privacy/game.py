r"""What the worst table gains from noise: a game that it plays against the search, solved backwards.

For a fixed table the needs t_j = I - D(p_j) are fixed numbers: pivot j is accepted if Z_j >= t_j, and then D = I -
t_j is what coverage has to spare. So a table gains :math:`(t - c)^+`, c = I - A, with t the need of the pivot
accepted last, and never the noise beyond it. Let it play with more: let it know the noise T of all cells before a
stage begins, and that of every cell counted so far, and name t_j only then, before cell j is counted. What it can
expect to gain now, V(c), is at least what any table gains, so coverage is kept if :math:`V(I - A) \le A`.

Let u = L_j - T, what is still to come with its sign changed; Z_j = alpha T + u. For every T the game is one on a
line: go from u by the noise of a cell to u', stop there with the gain of t if alpha T + u' >= t, else go on. It is
solved from the last pivot to the first, over all t for every u. Each way to play gains what is convex in alpha T, so
the best of them does, and a chord between two values is above it. In an earlier one of several stages t gains max(t,
c) - c + V'(max(t, c)), V' the value of the stages to come; V' is convex too, and falls by 1 at most where c grows by
1.

Here less noise may mean more gain: every device has to add its share.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from conformesh.privacy.noise import Floats

Gain = Callable[[Floats], Floats]

NODES = np.array([-9.0, -3, -1.25, 0, 1.25, 3, 9])  # values of T for chords, in its standard deviations
BASES = np.array([-3, -1.5, -0.75, -0.25, 0.25, 0.75, 1.25, 2, 3.5])  # values of c, in standard deviations of T
SAFE = 1 + 1e-9  # more than round-off of sums of products of positive numbers comes to


class Game:
    """A search on the lattice -R..R.

    Parameters
    ----------
    alpha
        Tolerated miscoverage.
    between
        Chances to get from any point of the lattice to any other by the noise of a cell, (2R + 1, 2R + 1).
    cells
        How many a stage has.
    """

    def __init__(self, alpha: float, between: Floats, cells: int) -> None:
        half = len(between) // 2
        self.alpha, self.between = alpha, between
        self.side = np.arange(-half, half + 1, dtype=np.float64)
        self._rest = [between[half]]  # chances of what is still to come, of 1, 2, .. cells
        while len(self._rest) < cells:
            self._rest.append(between @ self._rest[-1])
        self._deviation = math.sqrt(float(self._rest[-1] @ self.side**2))
        self._known: dict[int, Floats] = {}  # V_s at all bases

    def best(self, stages: int, c: float) -> float:
        """Return V_S(c): the most that a table can expect to gain in so many stages, starting from c."""
        bases = BASES * self._deviation
        if stages > 1 and stages - 1 not in self._known:
            self._known[stages - 1] = np.array([self.best(stages - 1, float(base)) for base in bases])

        def later(t: Floats) -> Floats:
            """What the other stages add, at most: chords, and a slope of -1 before the first."""
            if stages == 1:
                return np.zeros(len(t))
            values = self._known[stages - 1]
            return np.asarray(np.interp(t, bases, values) + np.maximum(bases[0] - t, 0.0))

        start = later(np.array([c]))

        def gain(t: Floats) -> Floats:
            reached = np.maximum(t, c)
            return np.maximum(reached - c + later(reached) - start, 0.0)

        return float(start[0]) + self._stage(gain)

    def work(self, stages: int) -> float:
        """Return how many steps from a point to a point it takes to find where V_S falls below something, about."""
        return float(len(self.side) ** 2 * len(self._rest) * len(NODES) * (len(BASES) * (stages - 1) + 5))

    def _stage(self, gain: Gain) -> float:
        """Return the most that one stage can be expected to gain, if need t gains gain(t): convex and not falling."""
        nodes = self.alpha * np.clip(NODES * self._deviation, self.side[0], self.side[-1])
        nodes[[0, -1]] = self.alpha * self.side[[0, -1]]
        gains = [gain(node + self.side) for node in nodes]
        values = np.zeros((len(nodes), len(self.side)))
        before = np.zeros((len(self.side), len(self.side) + 1))
        for rest in self._rest[:-1]:  # the last pivot first, when one cell is still to come
            ahead = np.cumsum((self.between * rest)[:, ::-1], axis=1)[:, ::-1]  # chance to get to u' or above
            for node, each in enumerate(gains):
                np.cumsum(self.between * values[node], axis=1, out=before[:, 1:])  # go on from below u'
                values[node] = np.maximum((each * ahead + before[:, :-1]).max(axis=1), before[:, -1])
        starts = values[:, ::-1]  # a stage starts at u = -T
        at = self.alpha * self.side
        return SAFE * sum(float(np.interp(at[i], nodes, starts[:, i])) for i in range(len(at)))
