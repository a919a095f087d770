r"""Bounds: how far the number of misses can be from its target, for any scores; each bound with its proof.

Of N labelled examples E were misses. Each function returns a `MissGap`: ``-down <= E - alpha N <= up`` for every
sequence of scores, even one chosen by an adversary who sees everything. `late` counts, for an example, the earlier
examples whose labels were not yet observed when it was predicted but have arrived since; it is the largest such number,
and 0 if every label arrives before the next prediction. Examples whose labels never arrive are not among the N.

All proofs use one idea. An *integrator* moves its level x by ``step (miss - alpha)``; a level of at least `high`
cannot miss (the set is everything), one below 0 must. So x cannot get far beyond either end, and the
sum of its moves is the gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SMALLEST_SCALE = 1e-100  # a scale of 0 would make every level mean the same threshold


@dataclass(frozen=True)
class MissGap:
    """``-down <= E - alpha N <= up``."""

    down: float
    up: float

    def __add__(self, other: MissGap) -> MissGap:
        """Gaps of several devices add up to that of all."""
        return MissGap(self.down + other.down, self.up + other.up)


def tracker_gap(start: float, alpha: float, step: float, high: float, late: int = 0) -> MissGap:
    r"""Return the gap of one integrator with a constant step, without a network.

    *Proof.* Let the last miss so far be that of an example predicted at a level x. Then x < high. What x had summed up,
    ``x - start = step * sum(miss - alpha)``, lacks at most `late` earlier examples and the example itself; each adds at
    most ``1 - alpha``, and later ones are no misses. So E - alpha N is at most ``(high - start) / step + (1 - alpha)
    (late + 1)``. The last cover, at a level of at least 0, gives the other side. ∎
    """
    crowd = late + 1
    return MissGap(start / step + alpha * crowd, (high - start) / step + (1 - alpha) * crowd)


def mixed_levels_gap(
    starts: float, members: int, alpha: float, steps: tuple[float, float], high: float, late: int = 0
) -> MissGap:
    r"""Return the gap of all devices together whose levels are mixed by doubly stochastic matrices.

    `starts` is the sum of the levels at which `members` began: a device that comes again is one more member, and one
    that leaves stays among them. `steps` are the first and the last step, which may decay on a common clock.

    *Proof.* Levels are kept in ``[-alpha s, high + (1 - alpha) s]`` with s the first step: what would carry one beyond
    is held back by its device and added as soon as there is room. Without late labels nothing is ever held back: a
    level of at least `high` does not rise, one below 0 does not fall, and rows of W sum to one. With late labels a
    device that holds back something upwards stands at the upper end, where it cannot miss; so what it holds stems from
    at most ``late + 1`` examples that were predicted before. Hence level and what is held, of each member, stay in
    ``[-alpha s c, high + (1 - alpha) s c]`` with c = 1, or c = late + 2 where labels are late. Columns of W sum to one,
    so mixing leaves the sum over devices alone, and ``S_t``, the sum of all ``step (miss - alpha)`` up to t, is how far
    the members' sum has moved: it lies in [-D, U], with U and D the sums over members of the room above and below their
    starts. With a constant step, E - alpha N = S_T / step. With steps that never grow, by Abel summation, ``E - alpha N
    = S_T / s_T + sum_t S_t (1 / s_t - 1 / s_{t+1})``, at most ``U / s_T + D (1 / s_T - 1 / s_1)``, and likewise below.
    ∎

    With one member that never mixes this is the theorem of Angelopoulos, Barber and Bates (2024) on decaying steps.
    """
    first, last = steps
    crowd = 1 if late == 0 else late + 2
    below = starts + members * alpha * first * crowd
    above = members * (high + (1 - alpha) * first * crowd) - starts
    spread = 1 / last - 1 / first
    return MissGap(below / last + above * spread, above / last + below * spread)


def counted_levels_gap(start: float, alpha: float, step: float, high: float, late: int) -> MissGap:
    """Return the gap of all devices together, each at the level ``start + step (E - alpha N)`` of its known counts.

    *Proof.* As for `tracker_gap`, with the examples of all devices in the order of their predictions: the counts that a
    device has received lack at most `late` of the earlier ones. How and how often they arrived does not matter. ∎
    """
    return tracker_gap(start, alpha, step, high, late)


def local_integrator_gap(alpha: float, step: float, high: float, late: int = 0) -> MissGap:
    """Return the gap of one device whose level is any level in [0, high] plus that of its local integrator.

    *Proof.* The sum is at least `high` where the local integrator is, and below 0 where that is below -high. So it is
    an integrator between -high and high that starts at 0, and the proof of `tracker_gap` holds. ∎
    """
    return MissGap(high / step + alpha * (late + 1), high / step + (1 - alpha) * (late + 1))


def sf_ogd_gap(labels: int, alpha: float, scale: float, high: float, late: int = 0) -> MissGap:
    r"""Return the gap of SF-OGD, whose steps are ``scale / sqrt(3 G)``, G the sum of the squared gradients so far.

    *Proof.* No gradient is larger than :math:`\sqrt G`, so no move is larger than ``m = scale / sqrt(3)``, and levels
    stay in ``[-m c, high + m c]`` with c = late + 1. Steps never grow. Abel summation as in `mixed_levels_gap` gives
    ``(high + 2 m c) / s_N``, and G is at most ``N max(alpha, 1 - alpha)^2``. ∎
    """
    move = scale / np.sqrt(3)
    last = move / (max(alpha, 1 - alpha) * np.sqrt(max(labels, 1)))
    gap = float((high + 2 * move * (late + 1)) / last)
    return MissGap(gap, gap)


def pid_gap(labels: int, alpha: float, saturation: float, late: int = 0) -> MissGap:
    r"""Return the gap of conformal PID, whose integrator is infinite where the gap has reached h(t).

    Here ``h(t) = saturation * (t + 1) * pi / (2 log(t + 1))``, of the tangent of Angelopoulos, Candes and Tibshirani
    (2023).

    *Proof.* An example is missed only where the sum up to the label before the last was below h(t); the two labels
    since, and those that are late, add at most ``1 - alpha`` each. Of t from 1 to N, h(t) is largest at N or 1. ∎
    """
    if labels < 1:
        return MissGap(0.0, 0.0)
    largest = max(_room(1, saturation), _room(labels, saturation))
    return MissGap(largest + alpha * (late + 2), largest + (1 - alpha) * (late + 2))


def _room(labels: int, saturation: float) -> float:
    return float(saturation * (labels + 1) * np.pi / (2 * np.log(labels + 1)))


@dataclass(frozen=True)
class MissAccount:
    """Misses so far, of one device or of all together, with what is guaranteed about them.

    Only examples whose labels have arrived count.

    >>> str(MissAccount(0.1, 1000, 103, MissGap(20.1, 20.9)))
    'so far 0.103, guaranteed within 0.021 of 0.1'

    Attributes
    ----------
    alpha
        The target share of misses.
    labels, misses
        How many labels have arrived, and how many of their examples were missed.
    gap
        How far `misses` can be from ``alpha * labels``, whatever the scores; None if no bound is known.
    why
        Why there is no gap.
    """

    alpha: float
    labels: int
    misses: int
    gap: MissGap | None
    why: str = "no bound is known"

    @property
    def rate(self) -> float:
        """The share of misses so far; not a number before the first label."""
        return self.misses / self.labels if self.labels else math.nan

    @property
    def bound(self) -> float:
        """How far the share of misses can be from `alpha`, for any scores; at most the largest possible distance."""
        most = max(self.alpha, 1 - self.alpha)
        if self.gap is None or self.labels == 0:
            return most
        return min(most, max(self.alpha - self.lowest, self.highest - self.alpha))

    @property
    def lowest(self) -> float:
        """The smallest share of misses that the guarantee allows."""
        known = self.gap is not None and self.labels > 0
        return max(0.0, self.alpha - self.gap.down / self.labels) if known and self.gap else 0.0

    @property
    def highest(self) -> float:
        """The largest share of misses that the guarantee allows."""
        known = self.gap is not None and self.labels > 0
        return min(1.0, self.alpha + self.gap.up / self.labels) if known and self.gap else 1.0

    @property
    def is_kept(self) -> bool:
        """Whether the misses are within the guarantee; False means a bug or scores outside their stated range."""
        slack = 1e-9 * (1 + self.labels)  # rounding of sums
        excess = self.misses - self.alpha * self.labels
        return self.gap is None or -self.gap.down - slack <= excess <= self.gap.up + slack

    def __str__(self) -> str:
        if not self.labels:
            return "no labels so far"
        if self.gap is None:
            return f"so far {self.rate:.3f} for {self.alpha:g}, {self.why}"
        up = math.ceil(1000 * self.bound - 1e-9) / 1000  # a bound is never rounded down
        return f"so far {self.rate:.3f}, guaranteed within {up:.3f} of {self.alpha:g}"
