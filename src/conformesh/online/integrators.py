"""Integrators: learners with one number per device, its level, that moves by ``step (miss - alpha)`` ([Gibbs2021]).

A level is the threshold itself, or a quantile of the device's own past scores. A level of at least `high` always means
the set of all labels, and one below 0 the empty set, so bounds hold for any scores from 0 on, and networks can mix
levels or count misses (`couplings`).

A level stays within one step of 0 and `high`. If several late labels arrive at once and would move it further, the
excess is held back and added when there is room: the sum of both is the plain integrator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Bools, Floats


class ScoreHistory(NamedTuple):
    """The last scores of each device, in a ring buffer.

    Attributes
    ----------
    values
        Scores, (devices, window), infinite in slots that are not filled yet.
    taken
        How many scores were added in all, (devices,).
    """

    values: Floats
    taken: NDArray[np.int64]

    @classmethod
    def empty(cls, devices: int, window: int) -> ScoreHistory:
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
        """The slots in which at least one device has a score."""
        return self.values[:, : max(int(self.sizes.max(initial=0)), 1)]

    def smallest(self, place: NDArray[np.int64]) -> Floats:
        """Return each device's score with `place` smaller ones; infinity if there are too few."""
        ordered = np.sort(self.filled, axis=1)
        chosen: Floats = ordered[np.arange(len(ordered)), np.minimum(place, ordered.shape[1] - 1)]
        return chosen

    def at_least(self, score: Floats) -> NDArray[np.int64]:
        """Return how many of each device's scores are at least as large as `score`."""
        is_filled = np.arange(self.filled.shape[1]) < self.sizes[:, None]
        many: NDArray[np.int64] = np.count_nonzero((self.filled >= score[:, None]) & is_filled, axis=1)
        return many

    def spread(self) -> Floats:
        """Return the range of each device's scores, 0 where there are none."""
        is_filled = np.isfinite(self.filled)
        low = np.min(self.filled, axis=1, initial=np.inf, where=is_filled)
        high = np.max(self.filled, axis=1, initial=-np.inf, where=is_filled)
        return np.where(self.taken > 0, high - low, 0.0)


def integrate_scores(past: ScoreHistory, score: Floats, has_label: NDArray[np.bool_]) -> ScoreHistory:
    """Return the history with the scores of the devices in `has_label` added."""
    rows = np.flatnonzero(has_label)
    values = past.values.copy()
    values[rows, past.taken[rows] % values.shape[1]] = score[rows]
    return ScoreHistory(values, past.taken + has_label)


class _Levels(NamedTuple):
    """State of integrators.

    Attributes
    ----------
    level, held
        Level of each device, and the part of its moves that is held back, (devices,).
    clock
        How often the common clock has advanced: the same on all devices, (devices,).
    past
        Past scores, for learners that need them.
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
        How far a miss moves the threshold, approximately.
    high
        From here on the threshold is infinite: nothing is missed. A bound of the scores, if one is known.
    start
        The first threshold.
    """

    alpha: float = 0.1
    step: float = 0.05
    high: float = 1.0
    start: float = 0.0
    is_integrator: ClassVar[bool] = True
    has_constant_step: ClassVar[bool] = True

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
        return self.thresholds_at(state, state.level)

    def thresholds_at(self, state: _Levels, level: Floats) -> Floats:
        """Return the thresholds at these levels."""
        return np.where(level >= self.high, np.inf, level)

    def observe(self, state: _Levels, score: Floats, has_label: Bools, miss: Bools | None = None) -> _Levels:
        """Return the state after labels of the devices in `has_label`.

        Parameters
        ----------
        state
            The state before.
        score
            Scores of the labels, (devices,); values without a label are ignored.
        has_label
            Which devices received a label, (devices,).
        miss
            Whether the example was missed by the threshold it was predicted with; by default the current one.
        """
        if miss is None:
            miss = score > self.threshold(state)
        step = self.step_at(int(state.clock[0]))
        move = step * np.where(has_label, miss - self.alpha, 0.0)
        return self.move_levels(state, move)._replace(clock=state.clock + 1)

    def step_at(self, clock: int) -> float:
        """Return the step after so many times on the common clock."""
        return self.step

    def move_levels(self, state: _Levels, move: Floats | float = 0.0) -> _Levels:
        """Return the state with levels moved; what would leave the range is held back."""
        wanted = state.level + state.held + move
        level = np.clip(wanted, -self.alpha * self.step, self.high + (1 - self.alpha) * self.step)
        return state._replace(level=level, held=wanted - level)


@dataclass(frozen=True)
class Decaying(QuantileTracker):
    """Quantile tracking with steps ``step * t ** -decay`` ([AngelopoulosBarber2024]), which settles where scores do.

    The clock is common: it advances also for devices without a label, otherwise mixing would weigh misses differently.

    Attributes
    ----------
    alpha, step, high, start
        As in `QuantileTracker`; `step` is the first step.
    decay
        How fast steps shrink.
    floor
        The smallest step. Above 0, the learner keeps following changes, though it starts with large steps.
    """

    step: float = 0.5
    decay: float = 0.6
    floor: float = 0.0
    has_constant_step: ClassVar[bool] = False

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
    how many scores are kept; that code counts all scores so far, also those that its window no longer holds.
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
        return super().begin(devices)._replace(past=ScoreHistory.empty(devices, self.window))

    def thresholds_at(self, state: _Levels, level: Floats) -> Floats:
        """Return the thresholds at these levels."""
        past: ScoreHistory = state.past
        n = past.sizes
        place = np.ceil((n - 1) * np.clip(level, 0, 1)).astype(np.int64)
        exact = past.smallest(np.maximum(place, 0))
        return np.where(1 - level <= 1 / (n + 1), np.inf, np.where(level < 0, -np.inf, exact))

    def observe(self, state: _Levels, score: Floats, has_label: Bools, miss: Bools | None = None) -> _Levels:
        """Return the state after labels of the devices in `has_label`, as in `QuantileTracker.observe`."""
        after = super().observe(state, score, has_label, miss)
        return after._replace(past=integrate_scores(state.past, score, has_label))


def require_alpha(alpha: float) -> None:
    """Raise unless alpha is a share strictly between 0 and 1."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie strictly between 0 and 1, got {alpha!r}")


def require_positive(options: Any, *names: str) -> None:
    """Raise unless these options are finite and above 0."""
    for name in names:
        if not 0 < getattr(options, name) < np.inf:
            raise ValueError(f"{name} must be above 0 and finite, got {getattr(options, name)!r}")
