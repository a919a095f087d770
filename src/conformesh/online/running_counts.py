"""Along a run: labels and misses of every device after some steps, each counted once, also while it still goes on.

`Online.account` counts from the first step on, which is quick once and slow for a curve; this goes on.

>>> import numpy as np
>>> from conformesh import Network
>>> from conformesh.online import online
>>> found = online(np.random.default_rng(0).random((4, 2000)), Network.cycle(4))
>>> along = RunningCounts(found)
>>> labels, misses = along.go_on(np.array([500, 1000]))
>>> along.account(1000, labels[:, 1], misses[:, 1]) == found.account(after=1000)
True
"""

from __future__ import annotations

import numpy as np

from conformesh.online.accounts import DeviceAccount
from conformesh.online.result import Ints, OnlineResult


class RunningCounts:
    """Counts the labels that have come, and their misses.

    Parameters
    ----------
    found
        What it counts in; of a run that goes on, only steps that are done may be asked for.
    """

    def __init__(self, found: OnlineResult) -> None:
        self.found, self.done = found, 0
        self._labels, self._misses = (np.zeros((len(found.ids), 1), dtype=np.int64) for _ in range(2))

    def go_on(self, points: Ints) -> tuple[Ints, Ints]:
        """Return labels and misses after so many steps, (devices, points); points rise, from where it was."""
        if len(points) == 0 or self.done >= points[0] or (np.diff(points) <= 0).any():
            raise ValueError(f"points must rise from {self.done + 1} on, got {points.tolist()}")
        new = self._at_once(points) if self.found.arrivals.at_once else self._late(points)
        labels, misses = (
            before + np.cumsum(now, axis=1) for before, now in zip((self._labels, self._misses), new, strict=True)
        )
        self._labels, self._misses, self.done = labels[:, -1:], misses[:, -1:], int(points[-1])
        return labels, misses

    def _at_once(self, points: Ints) -> tuple[Ints, Ints]:
        """Count between points where every label comes after its own step."""
        begins = np.concatenate([[self.done], points[:-1]]) - self.done
        said = self.found.misses[:, self.done : points[-1]]
        short = len(said[0]) < 2**15  # then no sum is larger than what adds up in half the time
        added = np.add.reduceat(said, begins, axis=1, dtype=np.int16 if short else np.int64)
        unknown = said < 0
        if not unknown.any():
            return np.broadcast_to(np.diff(points, prepend=self.done), added.shape), added
        without = np.add.reduceat(unknown, begins, axis=1, dtype=np.int64)
        return np.diff(points, prepend=self.done) - without, added + without

    def _late(self, points: Ints) -> tuple[Ints, Ints]:
        found, begins = self.found, [self.done, *points[:-1]]
        labels, misses = [], []
        for a, b in zip(begins, points, strict=True):
            device, example = found.arrivals.between(int(a), int(b))
            missed = found.misses[device, example] == 1
            labels.append(np.bincount(device, minlength=len(found.ids)))
            misses.append(np.bincount(device[missed], minlength=len(found.ids)))
        return np.stack(labels, axis=1), np.stack(misses, axis=1)

    def account(self, done: int, labels: Ints, misses: Ints, row: int | None = None) -> DeviceAccount:
        """Return the account of all devices, or of one, after so many steps with these counts, (devices,)."""
        found = self.found
        past = found.trail.past(done, labels)
        if row is None:
            counts = int(labels.sum()), int(misses.sum())
            return DeviceAccount(found.alpha, *counts, found.rule.gap(past), found.rule.why_no_bound())
        gap = found.rule.own(past, row)
        return DeviceAccount(found.alpha, int(labels[row]), int(misses[row]), gap, found.rule.why_no_bound())
