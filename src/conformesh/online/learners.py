"""LEARNERS: rules that move a threshold as labels come, each a small pure state machine.

A learner is a frozen dataclass of options. ``begin(devices)`` returns a state, a named tuple of arrays whose first axis
is the device; ``threshold(state)`` the thresholds to predict with; ``observe(state, score, has_label, miss)`` the next
state. No learner draws, waits or knows of a network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Bools, Floats
from conformesh.online.integrators import (
    ACI,
    Decaying,
    QuantileTracker,
    ScoreHistory,
    integrate_scores,
    require_alpha,
    require_positive,
)

_GAMMAS = tuple(0.001 * 2**k for k in range(8))  # steps of the experts, as in the authors' code


class _ExpertsState(NamedTuple):
    """State of DtACI: levels of misses and logarithms of weights, (devices, experts), and past scores."""

    alphas: Floats
    weights: Floats
    past: ScoreHistory


@dataclass(frozen=True)
class DtACI:
    """Dynamically tuned ACI: experts with different steps, weighted by how well they did ([Gibbs2024] Algorithm 1).

    The set is that of the weighted mean of the experts' levels. Constants are those of the authors' code: eight steps
    from .001 on, and an interval of 500 examples, from which the rate of the weights follows. Nothing is learned from
    the first ``1 / alpha`` examples: too few scores to rank others among. No deterministic bound is known: the
    paper's holds in expectation, for experts drawn at random.

    salesforce/online_conformal has ``DtACI(interval=100, rate=9.8232, clipped=True)``. Its experts lose part of
    their sum whenever a level is clipped at 0, and so miss more than alpha.

    Attributes
    ----------
    alpha
        The tolerated share of misses.
    interval
        Number of examples over which it should be as good as the best expert.
    window
        How many scores are kept.
    gammas
        Steps of the experts.
    rate
        How fast weights follow losses, eta of the paper; by default the best for `interval` where nothing changes.
    clipped
        Whether levels are kept in [0, 1], and thresholds among the scores, which the paper does not.
    """

    alpha: float = 0.1
    interval: int = 500
    window: int = 2000
    gammas: tuple[float, ...] = _GAMMAS
    rate: float | None = None
    clipped: bool = False
    is_integrator: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_alpha(self.alpha)
        require_positive(self, "interval", *([] if self.rate is None else ["rate"]))

    def begin(self, devices: int) -> _ExpertsState:
        """Return the state of so many devices before the first example."""
        shape = devices, len(self.gammas)
        return _ExpertsState(np.full(shape, self.alpha), np.zeros(shape), ScoreHistory.empty(devices, self.window))

    def threshold(self, state: _ExpertsState) -> Floats:
        """Return the thresholds for the next examples, (devices,): 0 as long as there is no score."""
        alpha, n = (_shares(state.weights) * state.alphas).sum(axis=1), state.past.sizes
        if self.clipped:
            place = np.maximum(np.ceil(n * np.clip(1 - alpha, 0, 1)).astype(np.int64) - 1, 0)
            return np.where(n == 0, 0.0, state.past.smallest(place))
        place = n - np.ceil(n * np.clip(alpha, 0, 1)).astype(np.int64)  # of n scores at least n alpha are no smaller
        found = np.where(alpha <= 0, np.inf, state.past.smallest(np.maximum(place, 0)))
        return np.where(n == 0, 0.0, np.where(alpha > 1, -np.inf, found))

    def observe(
        self, state: _ExpertsState, score: Floats, has_label: Bools, miss: Bools | None = None
    ) -> _ExpertsState:
        """Return the state after labels of the devices in `has_label`, as in `QuantileTracker.observe`."""
        n = state.past.sizes
        learns = (has_label & (n > np.floor(1 / self.alpha)))[:, None]
        beta = (state.past.at_least(score) / np.maximum(n, 1))[:, None]
        loss = np.maximum(self.alpha * (beta - state.alphas), (1 - self.alpha) * (state.alphas - beta))
        sigma = 1 / (2 * self.interval)
        shares = (1 - sigma) * _shares(state.weights - self._rate * loss) + sigma / len(self.gammas)
        moved = state.alphas + np.array(self.gammas) * (self.alpha - (state.alphas > beta))
        if self.clipped:
            moved = np.clip(moved, 0, 1)
        return _ExpertsState(
            np.where(learns, moved, state.alphas),
            np.where(learns, np.log(shares), state.weights),
            integrate_scores(state.past, score, has_label),
        )

    @property
    def _rate(self) -> float:
        """Return sqrt((log(2 k I) + 1) / sum of squared losses over I uniform ranks): 2.72 for I = 500, alpha = .1."""
        if self.rate is not None:
            return self.rate
        a, n, k = self.alpha, self.interval, len(self.gammas)
        squares = n * ((1 - a) ** 2 * a**3 + a**2 * (1 - a) ** 3) / 3
        return float(np.sqrt((np.log(2 * k * n) + 1) / squares))


def _shares(weights: Floats) -> Floats:
    shares: Floats = np.exp(weights - weights.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


class _PIDState(NamedTuple):
    """State of conformal PID: threshold of the tracker, and the excess of misses without and with the last label."""

    level: Floats
    before: Floats
    excess: Floats
    taken: NDArray[np.int64]
    past: ScoreHistory
    cast: Any


@dataclass(frozen=True)
class Smoothing:
    """A scorecaster: exponential smoothing of the scores.

    Any object with these three methods can be used.
    """

    rate: float = 0.1

    def begin(self, devices: int) -> Floats:
        """Return the memory before the first score."""
        return np.zeros(devices)

    def cast(self, memory: Floats) -> Floats:
        """Return the scores that are expected next, (devices,)."""
        return memory

    def learn(self, memory: Floats, score: Floats, has_label: Bools) -> Floats:
        """Return the memory after the scores of the devices in `has_label`."""
        return np.where(has_label, memory + self.rate * (score - memory), memory)


@dataclass(frozen=True)
class PID:
    """Conformal PID: quantile tracking, an integrator that saturates, and a forecast of scores ([Angelopoulos2023]).

    Conventions are those of aangelopoulos/conformal-time-series: the step is a share of the range of the last `window`
    scores, and the integrator is ``gain * tan(x log(t + 1) / (saturation (t + 1)))``, infinite from pi / 2 on, with x
    the excess of misses before the latest example.

    Attributes
    ----------
    alpha
        The tolerated share of misses.
    step
        The step of the tracker, as a share of the range of past scores.
    gain, saturation
        K_I and C_sat; without gain there is no integrator, and no bound.
    window
        How many scores the range is taken of.
    scorecaster
        What forecasts scores, such as `Smoothing`, or None.
    """

    alpha: float = 0.1
    step: float = 0.1
    gain: float = 10.0
    saturation: float = 5.0
    window: int = 300
    scorecaster: Any = None
    is_integrator: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_alpha(self.alpha)
        require_positive(self, "step", "saturation")

    def begin(self, devices: int) -> _PIDState:
        """Return the state of so many devices before the first example."""
        zero = np.zeros(devices)
        cast = None if self.scorecaster is None else self.scorecaster.begin(devices)
        count = np.zeros(devices, dtype=np.int64)
        return _PIDState(zero, zero, zero, count, ScoreHistory.empty(devices, self.window), cast)

    def threshold(self, state: _PIDState) -> Floats:
        """Return the thresholds for the next examples, (devices,)."""
        total = state.level + self._integral(state)
        return total if self.scorecaster is None else total + self.scorecaster.cast(state.cast)

    def _integral(self, state: _PIDState) -> Floats:
        if self.gain == 0:
            return np.zeros(len(state.level))
        t = np.maximum(state.taken - 1, 0)  # the example before the latest
        angle = state.before * np.log(t + 1) / (self.saturation * (t + 1))
        edge = np.where(angle > 0, np.inf, -np.inf)
        inside = np.abs(angle) < np.pi / 2
        return np.where(inside, self.gain * np.tan(np.where(inside, angle, 0.0)), edge)

    def observe(self, state: _PIDState, score: Floats, has_label: Bools, miss: Bools | None = None) -> _PIDState:
        """Return the state after labels of the devices in `has_label`, as in `QuantileTracker.observe`."""
        if miss is None:
            miss = score > self.threshold(state)
        surprise = np.where(has_label, miss - self.alpha, 0.0)
        step = self.step * np.where(state.taken > 0, state.past.spread(), 1.0)
        learn: Callable[..., Any] = (lambda *_: None) if self.scorecaster is None else self.scorecaster.learn
        return _PIDState(
            state.level + step * surprise,
            np.where(has_label, state.excess, state.before),
            state.excess + surprise,
            state.taken + has_label,
            integrate_scores(state.past, score, has_label),
            learn(state.cast, score, has_label),
        )


class _DescentState(NamedTuple):
    """State of SF-OGD: the threshold and the sum of squared gradients, (devices,)."""

    level: Floats
    squares: Floats


@dataclass(frozen=True)
class SFOGD:
    """Scale-free online gradient descent on the pinball loss ([Bhatnagar2023] Section 4.1).

    Attributes
    ----------
    alpha
        The tolerated share of misses.
    scale
        D of the paper: the largest score, about. The first move is ``scale / sqrt(3)``.
    high
        From here on the threshold is infinite: nothing is missed.
    start
        The first threshold.

    Departures: salesforce/online_conformal keeps thresholds at 0 and above, which the paper does not.
    """

    alpha: float = 0.1
    scale: float = 1.0
    high: float = 1.0
    start: float = 0.0
    is_integrator: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_alpha(self.alpha)
        require_positive(self, "scale", "high")

    def begin(self, devices: int) -> _DescentState:
        """Return the state of so many devices before the first example."""
        return _DescentState(np.full(devices, float(self.start)), np.zeros(devices))

    def threshold(self, state: _DescentState) -> Floats:
        """Return the thresholds for the next examples, (devices,)."""
        return np.where(state.level >= self.high, np.inf, state.level)

    def observe(
        self, state: _DescentState, score: Floats, has_label: Bools, miss: Bools | None = None
    ) -> _DescentState:
        """Return the state after labels of the devices in `has_label`, as in `QuantileTracker.observe`."""
        if miss is None:
            miss = score > self.threshold(state)
        surprise = np.where(has_label, miss - self.alpha, 0.0)
        squares = state.squares + surprise**2
        step = self.scale / np.sqrt(3 * np.where(squares > 0, squares, 1.0))
        return _DescentState(state.level + step * surprise, squares)


class Learner(Protocol):
    """Interface of learners."""

    @property
    def alpha(self) -> float:
        """The tolerated share of misses."""

    @property
    def is_integrator(self) -> bool:
        """Whether it is an integrator, so that a network can share it."""

    def begin(self, devices: int) -> Any:
        """Return the state of so many devices before the first example."""

    def threshold(self, state: Any) -> Floats:
        """Return the thresholds for the next examples."""

    def observe(self, state: Any, score: Floats, has_label: Bools, miss: Bools | None = None) -> Any:
        """Return the state after labels of the devices in `has_label`."""


LEARNERS: dict[str, Any] = {
    "tracker": QuantileTracker,
    "decaying": Decaying,
    "aci": ACI,
    "dtaci": DtACI,
    "pid": PID,
    "sf-ogd": SFOGD,
}
