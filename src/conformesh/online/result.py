"""Result of a simulation: thresholds, misses, accounts at any time, tables."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Bools, Floats, Ints
from conformesh.files.table_writers import write_columns
from conformesh.online.arrivals import Arrivals
from conformesh.online.bounds import MissAccount
from conformesh.online.couplings import BoundInputs, CoupledState, Rule


@dataclass(eq=False)
class BoundTrail:
    """What bounds need from every step.

    Attributes
    ----------
    steps
        How many there are.
    joined
        Step, device and level of every device that joined.
    """

    steps: int
    joined: list[tuple[int, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = np.zeros(self.steps, dtype=np.int64)
        self.late = np.zeros(self.steps, dtype=np.int64)
        self.unheard = np.zeros(self.steps, dtype=np.int64)
        self._cache: tuple[int, Floats, Ints] | None = None

    def record_unheard(self, t: int, state: CoupledState, arrivals: Arrivals, there: Bools) -> None:
        """Record the largest number of labels of other devices that a present device has not received yet."""
        if not state.counts:
            return
        known = state.counts[0].sum(axis=1)[there]
        most = int(
            arrivals.labelled_before[t]
            + max(int(there.sum()) - 1, 0)
            - known.min(initial=int(arrivals.labelled_before[t]))
        )
        self.unheard[t] = max(most, int(self.unheard[t - 1]) if t else 0)

    def past(self, done: int, labels: Ints) -> BoundInputs:
        """Return the input of bounds after so many steps, with these numbers of labels per device."""
        starts, members = self._starts_of_members(done, len(labels))
        late, unheard, clock = (int(a[done - 1]) for a in (self.late, self.unheard, self.clock))
        return BoundInputs(starts, members, labels, late, unheard, clock)

    def _starts_of_members(self, done: int, devices: int) -> tuple[Floats, Ints]:
        """Return the sum of levels at which each device joined, and how often it joined; cached until another joins."""
        many, cached = bisect_left(self.joined, (done,)), self._cache
        if cached is None or cached[0] != many:
            starts, members = np.zeros(devices), np.zeros(devices, dtype=np.int64)
            for _, row, level in self.joined[:many]:
                starts[row] += level
                members[row] += 1
            # One assignment, because other threads may read while a run continues.
            cached = self._cache = many, starts, members
        return cached[1:]


class OnlineObserver:
    """Base class of observers that also receive the result of a run; by default its methods do nothing."""

    def begin(self, result: OnlineResult) -> None:
        """Receive the result before the first step. It is filled during the run: read only finished steps."""

    def __call__(self, done: int) -> None:
        """Receive the number of finished steps; called repeatedly."""


@dataclass(frozen=True, eq=False)
class OnlineResult:
    """Result of `online`.

    Attributes
    ----------
    ids
        Names of the devices.
    rule
        Learner and coupling.
    scores, thresholds
        Of every example, (devices, steps); NaN where a device is absent.
    misses
        1 where the example was missed, 0 where it was covered, -1 where there is no example or its label never arrived.
    arrivals, trail
        Arrival times of labels, and the input of bounds.
    """

    ids: tuple[str, ...]
    rule: Rule
    scores: Floats
    thresholds: Floats
    misses: NDArray[np.int8]
    arrivals: Arrivals
    trail: BoundTrail

    @property
    def alpha(self) -> float:
        """The tolerated share of misses."""
        return float(self.rule.learner.alpha)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.scores.shape[1])

    def account(self, device: str | None = None, after: int | None = None) -> MissAccount:
        """Return the misses of one device or all with their guarantee, after so many steps or all."""
        done = self.steps if after is None else after
        if not 1 <= done <= self.steps:
            raise ValueError(f"after must lie between 1 and {self.steps} steps, got {after}")
        arrived = self.arrivals.arrived_by(done)
        missed = (self.misses[:, :done] == 1) & arrived
        past = self.trail.past(done, arrived.sum(axis=1))
        if device is None:
            labels, misses = int(arrived.sum()), int(missed.sum())
            return MissAccount(self.alpha, labels, misses, self.rule.gap(past), self.rule.why_no_bound())
        row = self._row(device)
        labels, misses = int(arrived[row].sum()), int(missed[row].sum())
        return MissAccount(self.alpha, labels, misses, self.rule.device_gap(past, row), self.rule.why_no_bound())

    def _row(self, device: str) -> int:
        if device not in self.ids:
            raise ValueError(f"no device {device!r}; there are {len(self.ids)}, from {self.ids[0]!r} on")
        return self.ids.index(device)

    @property
    def rates(self) -> Floats:
        """The share of misses of each device, (devices,); NaN where no label arrived."""
        labels = (self.misses >= 0).sum(axis=1)
        return np.where(labels > 0, (self.misses == 1).sum(axis=1) / np.maximum(labels, 1), np.nan)

    def rolling_coverage(self, window: int, device: str | None = None) -> Floats:
        """Return the share of covered examples in the last steps, after each step, (steps,).

        It also counts labels that arrive later. NaN where none of the examples in the window has a label.
        """
        if window < 1:
            raise ValueError(f"window must be at least 1 step, got {window}")
        rows = self.misses if device is None else self.misses[[self._row(device)]]
        covered, labels = (np.concatenate([[0], np.cumsum(x.sum(axis=0))]) for x in (rows == 0, rows >= 0))
        start = np.maximum(np.arange(1, self.steps + 1) - window, 0)
        many = labels[1:] - labels[start]
        return np.where(many > 0, (covered[1:] - covered[start]) / np.maximum(many, 1), np.nan)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return all examples, in the order of time: step, device, score, threshold, miss (-1 without label)."""
        step, row = np.nonzero(~np.isnan(self.scores.T))
        return {
            "step": step,
            "device": np.array(self.ids)[row],
            "score": self.scores[row, step],
            "threshold": self.thresholds[row, step],
            "miss": self.misses[row, step],
        }

    def to_frame(self) -> Any:
        """Return all examples as a Polars frame; see `columns`."""
        import polars as pl

        return pl.DataFrame(self.columns())

    def save(self, path: str | Path) -> None:
        """Write all examples to a CSV, Parquet or NPZ file; see `columns`."""
        write_columns(Path(path), self.columns())

    def __str__(self) -> str:
        return str(self.account())


class RunningCounts:
    """Counts of arrived labels and of their misses, which advance with a run.

    Parameters
    ----------
    result
        The result; while a run continues only finished steps may be requested.
    """

    def __init__(self, result: OnlineResult) -> None:
        self.result, self.done = result, 0
        self._labels, self._misses = (np.zeros((len(result.ids), 1), dtype=np.int64) for _ in range(2))

    def advance(self, points: Ints) -> tuple[Ints, Ints]:
        """Return labels and misses after these numbers of steps, (devices, points); points must rise."""
        if len(points) == 0 or self.done >= points[0] or (np.diff(points) <= 0).any():
            raise ValueError(f"points must rise from {self.done + 1} on, got {points.tolist()}")
        new = self._at_once(points) if self.result.arrivals.at_once else self._late(points)
        labels, misses = (
            before + np.cumsum(now, axis=1) for before, now in zip((self._labels, self._misses), new, strict=True)
        )
        self._labels, self._misses, self.done = labels[:, -1:], misses[:, -1:], int(points[-1])
        return labels, misses

    def _at_once(self, points: Ints) -> tuple[Ints, Ints]:
        """Return labels and misses between points, if every label arrives with its own step."""
        begins = np.concatenate([[self.done], points[:-1]]) - self.done
        outcomes = self.result.misses[:, self.done : points[-1]]
        short = len(outcomes[0]) < 2**15  # no sum can overflow 16 bits, which add up in half the time
        added = np.add.reduceat(outcomes, begins, axis=1, dtype=np.int16 if short else np.int64)
        unknown = outcomes < 0
        if not unknown.any():
            return np.broadcast_to(np.diff(points, prepend=self.done), added.shape), added
        without = np.add.reduceat(unknown, begins, axis=1, dtype=np.int64)
        return np.diff(points, prepend=self.done) - without, added + without

    def _late(self, points: Ints) -> tuple[Ints, Ints]:
        """Return labels and misses between points, if labels may be late."""
        result, begins = self.result, [self.done, *points[:-1]]
        labels, misses = [], []
        for a, b in zip(begins, points, strict=True):
            device, example = result.arrivals.labels_between(int(a), int(b))
            missed = result.misses[device, example] == 1
            labels.append(np.bincount(device, minlength=len(result.ids)))
            misses.append(np.bincount(device[missed], minlength=len(result.ids)))
        return np.stack(labels, axis=1), np.stack(misses, axis=1)

    def account(self, done: int, labels: Ints, misses: Ints, row: int | None = None) -> MissAccount:
        """Return misses and guarantee of all devices, or of one, after so many steps with these counts, (devices,)."""
        result = self.result
        past = result.trail.past(done, labels)
        if row is None:
            counts = int(labels.sum()), int(misses.sum())
            return MissAccount(result.alpha, *counts, result.rule.gap(past), result.rule.why_no_bound())
        gap = result.rule.device_gap(past, row)
        return MissAccount(result.alpha, int(labels[row]), int(misses[row]), gap, result.rule.why_no_bound())
