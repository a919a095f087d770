"""Arrival times of labels: with their step, late, in any order, or never."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.common.array_types import Bools, Ints


def broadcast_to_table(values: NDArray[Any], shape: tuple[int, ...], what: str, one: str) -> NDArray[Any]:
    """Return one value, or a table of values, as a table (devices, steps)."""
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        raise ValueError(f"{what} must be one {one} or have shape {shape}, got shape {values.shape}") from None


@dataclass(frozen=True, eq=False)
class Arrivals:
    """The step after which each label arrives.

    Attributes
    ----------
    has_label
        Which examples have a label that arrives before the end, (devices, steps).
    step
        The step after which it arrives, (devices, steps); None if that is always the example's own step.
    """

    has_label: Bools
    step: Ints | None

    @classmethod
    def of(cls, scores: NDArray[np.float64], delays: ArrayLike | None, present: Bools | None) -> Arrivals:
        """Return arrival times for these delays in steps; a negative delay means that the label never arrives."""
        arrives = ~np.isnan(scores) if present is None else ~np.isnan(scores) & present
        if delays is None:
            return cls(arrives, None)
        late = broadcast_to_table(np.asarray(delays), scores.shape, "delays", "number")
        if not np.issubdtype(late.dtype, np.integer):
            raise TypeError(f"delays must be whole numbers of steps, got {late.dtype}")
        steps = scores.shape[1]
        arrival = np.arange(steps) + late.astype(np.int64)
        arrives = arrives & (late >= 0) & (arrival < steps)
        if present is not None:  # a device that leaves loses labels that have not arrived yet
            gone = np.where(present, steps, np.arange(steps))
            until = np.minimum.accumulate(gone[:, ::-1], axis=1)[:, ::-1]
            arrives &= arrival < until
        if np.array_equal(arrival[arrives], np.broadcast_to(np.arange(steps), scores.shape)[arrives]):
            return cls(arrives, None)
        return cls(arrives, arrival)

    @property
    def at_once(self) -> bool:
        """Whether every label arrives with its own step."""
        return self.step is None

    def labelled(self, a: int, b: int) -> Bools:
        """Return which examples of some steps have a label, (steps, devices)."""
        return np.ascontiguousarray(self.has_label[:, a:b].T)

    @cached_property
    def _queue(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Device, example and place among the device's labels of that step, by arrival; and where steps begin."""
        assert self.step is not None
        device, example = np.nonzero(self.has_label)
        when = self.step[device, example]
        order = np.lexsort((example, device, when))
        device, example, when = device[order], example[order], when[order]
        new = np.ones(len(when), dtype=np.bool_)
        new[1:] = (when[1:] != when[:-1]) | (device[1:] != device[:-1])
        starts = np.flatnonzero(new)
        place = np.arange(len(when)) - np.repeat(starts, np.diff(np.append(starts, len(when))))
        return device, example, place, np.searchsorted(when, np.arange(self.step.shape[1] + 1))

    def labels_after(self, t: int) -> Iterator[tuple[Ints, Ints]]:
        """Yield devices and examples whose labels arrive after step t, a device once per yield; yield at least once."""
        device, example, place, begins = self._queue
        rows = slice(begins[t], begins[t + 1])
        for turn in range(int(place[rows].max(initial=0)) + 1):
            chosen = place[rows] == turn
            yield device[rows][chosen], example[rows][chosen]

    def labels_between(self, a: int, b: int) -> tuple[Ints, Ints]:
        """Return devices and examples whose labels arrive after steps a to b - 1, where labels may be late."""
        device, example, _, begins = self._queue
        rows = slice(begins[a], begins[b])
        return device[rows], example[rows]

    def most_awaited(self) -> Ints:
        """Return the largest number of labels that any device awaited when it predicted, up to each step, (steps,)."""
        steps = self.has_label.shape[1]
        if self.step is None:
            return np.zeros(steps, dtype=np.int64)
        change = np.zeros((self.has_label.shape[0], steps + 1), dtype=np.int64)
        device, example = np.nonzero(self.has_label)
        np.add.at(change, (device, example + 1), 1)
        np.add.at(change, (device, self.step[device, example] + 1), -1)
        return np.maximum.accumulate(np.cumsum(change[:, :steps], axis=1).max(axis=0))

    @cached_property
    def labelled_before(self) -> Ints:
        """How many examples with labels all devices had before each step, (steps + 1,)."""
        return np.concatenate([[0], np.cumsum(self.has_label.sum(axis=0))])

    def arrived_by(self, done: int) -> Bools:
        """Return which labels have arrived after so many steps, (devices, done)."""
        arrives = self.has_label[:, :done]
        return arrives if self.step is None else arrives & (self.step[:, :done] < done)
