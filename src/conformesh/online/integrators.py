"""Learners that are integrators: one number a device, its level, moves by ``step (miss - alpha)`` ([Gibbs2021]).

What a level means differs: the threshold itself, or a quantile of the device's own past scores. Always a level of at
least `high` is a set of everything, and one below 0 an empty set, so that bounds hold for any scores from 0 on, and
networks can mix levels or count misses (`couplings`).

A level is kept within one step of its ends. What would carry it further, because several labels came late at once, is
held back and added when there is room: the sum of both is the plain integrator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Bools, Floats


class History(NamedTuple):
    """A ring of scores for each device.

    Attributes
    ----------
    values
        Scores, (devices, window), infinite where none has come yet.
    taken
        How many have come in all, (devices,).
    """

    values: Floats
    taken: NDArray[np.int64]

    @classmethod
    def empty(cls, devices: int, window: int) -> History:
        """Return a history without scores that will keep the last `window`."""
        if window < 1:
            raise ValueError(f"window must be at least 1 score, got {window}")
        return cls(np.full((devices, window), np.inf), np.zeros(devices, dtype=np.int64))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many scores are kept of each device, (devices,)."""
        return np.minimum(self.taken, self.values.shape[1])

    @property
    def filled(self) -> Floats:
        """The part of the ring in which there are scores of anybody."""
        return self.values[:, : max(int(self.sizes.max(initial=0)), 1)]

    def smallest(self, place: NDArray[np.int64]) -> Floats:
        """Return of each device the score with so many smaller ones; infinity where there are too few."""
        ordered = np.sort(self.filled, axis=1)
        found: Floats = ordered[np.arange(len(ordered)), np.minimum(place, ordered.shape[1] - 1)]
        return found

    def at_least(self, score: Floats) -> NDArray[np.int64]:
        """Return how many of each device's scores are at least so large."""
        there = np.arange(self.filled.shape[1]) < self.sizes[:, None]
        many: NDArray[np.int64] = np.count_nonzero((self.filled >= score[:, None]) & there, axis=1)
        return many

    def spread(self) -> Floats:
        """Return the range of each device's scores, 0 where there are none."""
        there = np.isfinite(self.filled)
        low = np.min(self.filled, axis=1, initial=np.inf, where=there)
        high = np.max(self.filled, axis=1, initial=-np.inf, where=there)
        return np.where(self.taken > 0, high - low, 0.0)


def remembered(past: History, score: Floats, seen: NDArray[np.bool_]) -> History:
    """Return the history with the scores of the devices in `seen` added."""
    rows = np.flatnonzero(seen)
    values = past.values.copy()
    values[rows, past.taken[rows] % values.shape[1]] = score[rows]
    return History(values, past.taken + seen)


class _Levels(NamedTuple):
    """Where integrators stand.

    Attributes
    ----------
    level, held
        Level of each device, and what is held back of it, (devices,).
    clock
        How often labels were awaited: on all devices the same, (devices,).
    past
        What the learner remembers of scores.
    """

    level: Floats
    held: Floats
    clock: NDArray[np.int64]
    past: Any = None


@dataclass(frozen=True)
class QuantileTracker:
    """Quantile tracking: the level is the threshold ([Angelopoulos2023] Section 2.1).

    Attributes
    ----------
    alpha
        The tolerated share of misses.
    step
        How far a miss moves the threshold, about.
    high
        From here on the threshold is infinite: nothing is missed. A bound of the scores, if one is known.
    start
        The first threshold.
    """

    alpha: float = 0.1
    step: float = 0.05
    high: float = 1.0
    start: float = 0.0
    linear: ClassVar[bool] = True
    constant: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_alpha(self.alpha)
        require_positive(self, "step", "high")
        if not 0 <= self.start <= self.high:
            raise ValueError(f"start must lie between 0 and high {self.high:g}, got {self.start:g}")

    def begin(self, devices: int) -> _Levels:
        """Return the state of so many devices before the first example."""
        return _Levels(np.full(devices, float(self.start)), np.zeros(devices), np.zeros(devices, dtype=np.int64))

    def threshold(self, state: _Levels) -> Floats:
        """Return the thresholds for the next examples, (devices,)."""
        return self.read(state, state.level)

    def read(self, state: _Levels, level: Floats) -> Floats:
        """Return the thresholds that levels mean."""
        return np.where(level >= self.high, np.inf, level)

    def observe(self, state: _Levels, score: Floats, seen: Bools, miss: Bools | None = None) -> _Levels:
        """Return the state after labels of the devices in `seen`.

        Parameters
        ----------
        state
            Where the learner stands.
        score
            Scores of the labels, (devices,); of devices that are not in `seen` anything.
        seen
            Whose label has come, (devices,).
        miss
            Whether the example was missed by the threshold it was predicted with; by today's, if not given.
        """
        if miss is None:
            miss = score > self.threshold(state)
        step = self.step_at(int(state.clock[0]))
        move = step * np.where(seen, miss - self.alpha, 0.0)
        return self.moved(state, move)._replace(clock=state.clock + 1)

    def step_at(self, clock: int) -> float:
        """Return the step after so many times on the common clock."""
        return self.step

    def moved(self, state: _Levels, move: Floats | float = 0.0) -> _Levels:
        """Return the state with levels moved, and what does not fit held back."""
        wanted = state.level + state.held + move
        level = np.clip(wanted, -self.alpha * self.step, self.high + (1 - self.alpha) * self.step)
        return state._replace(level=level, held=wanted - level)


@dataclass(frozen=True)
class Decaying(QuantileTracker):
    """Quantile tracking with steps ``step * t ** -decay`` ([AngelopoulosBarber2024]), which settles where scores do.

    Time is common: it goes on for devices whose label did not come, else mixing would weigh misses differently.

    Attributes
    ----------
    alpha, step, high, start
        As of `QuantileTracker`; `step` is the first one.
    decay
        How fast steps shrink.
    floor
        The smallest step: with one above 0 it never stops following what changes, and starts fast all the same.
    """

    step: float = 0.5
    decay: float = 0.6
    floor: float = 0.0
    constant: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {self.decay:g}; above, no bound shrinks")
        if not 0 <= self.floor <= self.step:
            raise ValueError(f"floor must lie between 0 and the first step {self.step:g}, got {self.floor:g}")

    def step_at(self, clock: int) -> float:
        """Return the step after so many times on the common clock."""
        return max(self.floor, self.step * math.pow(clock + 1, -self.decay))


@dataclass(frozen=True)
class ACI(QuantileTracker):
    """Adaptive conformal inference: the level is that of a quantile of the device's own past scores ([Gibbs2021]).

    Of n past scores the level q asks for the one at place ``ceil((n - 1) q)``, and for infinity if ``1 - q <= 1 / (n +
    1)``, as in the authors' code of conformal PID. The first level is ``1 - alpha`` unless `start` says otherwise;
    `window` is how many scores are kept.

    Departures: below a level of 0 the set is empty, as the paper has it; that code takes the smallest score. And n is
    how many scores are kept; that code has all that ever came, and so asks of a window what it cannot tell.
    """

    step: float = 0.005
    start: float = np.nan
    window: int = 500

    def __post_init__(self) -> None:
        if np.isnan(self.start):
            object.__setattr__(self, "start", 1 - self.alpha)
        super().__post_init__()
        if self.high != 1:
            raise ValueError(f"levels of ACI are shares: high must be 1, got {self.high:g}")

    def begin(self, devices: int) -> _Levels:
        """Return the state of so many devices before the first example."""
        return super().begin(devices)._replace(past=History.empty(devices, self.window))

    def read(self, state: _Levels, level: Floats) -> Floats:
        """Return the thresholds that levels mean."""
        past: History = state.past
        n = past.sizes
        place = np.ceil((n - 1) * np.clip(level, 0, 1)).astype(np.int64)
        exact = past.smallest(np.maximum(place, 0))
        return np.where(1 - level <= 1 / (n + 1), np.inf, np.where(level < 0, -np.inf, exact))

    def observe(self, state: _Levels, score: Floats, seen: Bools, miss: Bools | None = None) -> _Levels:
        """Return the state after labels of the devices in `seen`, as in `QuantileTracker.observe`."""
        after = super().observe(state, score, seen, miss)
        return after._replace(past=remembered(state.past, score, seen))


def require_alpha(alpha: float) -> None:
    """Raise unless alpha is a share strictly between 0 and 1."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie strictly between 0 and 1, got {alpha!r}")


def require_positive(options: Any, *names: str) -> None:
    """Raise unless these options are finite and above 0."""
    for name in names:
        if not 0 < getattr(options, name) < np.inf:
            raise ValueError(f"{name} must be above 0 and finite, got {getattr(options, name)!r}")
