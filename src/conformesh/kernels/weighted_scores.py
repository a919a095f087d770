"""WeightedScores: the calibration scores of all devices, ragged and sorted, ready for kernels.

One flat array and offsets serve twenty devices or a million. Each (device, trial) has a sorted segment; trials are
independent draws of the same experiment that are computed in one run. Usually there is one trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.common.arrays import as_array, note_large_integers
from conformesh.kernels.segments import (
    bracket_extremes,
    count_at_most,
    count_per_problem,
    segment_extremes,
    sort_segments,
    take_segments,
)


@dataclass(frozen=True, eq=False)
class WeightedScores:
    """Sorted scores of a block of devices over one or more trials.

    Attributes
    ----------
    values
        All scores, flat; segment ``device * trials + trial`` is ``values[offsets[i]:offsets[i + 1]]``, ascending.
    offsets
        Shape (devices * trials + 1,).
    trials
        Number of independent draws.
    weights
        Weight of each score, a positive integer, in the order of `values`; None: all weigh 1, and none are stored.
    rounding_loss
        By how much the weights of each segment may have been rounded down, in all; None: not at all.
    example_mass
        What the examples of each segment weigh, where scores are drops of their losses; None: what the scores weigh.
    """

    values: Floats
    offsets: Ints
    trials: int = 1
    weights: Ints | None = None
    rounding_loss: Ints | None = None
    example_mass: Ints | None = None

    def __repr__(self) -> str:
        devices = (len(self.offsets) - 1) // max(self.trials, 1)
        weighed = "" if self.weights is None else ", weighted"
        many = "" if self.trials == 1 else f" in {self.trials:,} trials"
        return f"WeightedScores({len(self.values):,} scores{many} on {devices:,} devices{weighed})"

    @classmethod
    def of(cls, devices: Iterable[Any], names: Sequence[str] | None = None) -> WeightedScores:
        """Build from one array of scores per device (any of them may be empty), or a table with one row per device.

        >>> WeightedScores.of([[3.0, 1.0], [], [2.0]]).sizes.ravel().tolist()
        [2, 0, 1]
        """
        table: NDArray[Any] = np.empty(0)
        if type(devices) is np.ndarray or (isinstance(devices, np.ndarray) and not np.ma.is_masked(devices)):
            table = devices
        if table.ndim == 2 and table.dtype.kind in "fiu" and len(table):
            return cls.from_flat(table.reshape(-1), np.full(len(table), table.shape[1]), names=names)
        return cls.of_trials([devices], names)

    @classmethod
    def of_trials(cls, trials: Iterable[Iterable[Any]], names: Sequence[str] | None = None) -> WeightedScores:
        """Build from a list of trials, each a list with one array of scores per device."""
        table = [[clean_scores(scores, _who(device, names)) for device, scores in enumerate(trial)] for trial in trials]
        if not table or not table[0]:
            raise ValueError("calibration needs at least one device, got none")
        counts = sorted({len(trial) for trial in table})
        if len(counts) > 1:
            raise ValueError(f"every trial must list the same devices, got trials with {counts} devices")
        pieces = [trial[device] for device in range(counts[0]) for trial in table]
        return cls._sorted(np.concatenate(pieces), np.array([len(piece) for piece in pieces]), len(table))

    @classmethod
    def weighted(
        cls,
        trials: Iterable[Iterable[Any]],
        weights: Iterable[Iterable[Any]],
        names: Sequence[str] | None = None,
        rounding_loss: Ints | None = None,
        example_mass: Ints | None = None,
    ) -> WeightedScores:
        """Build from trials as `of_trials` does, with an array of whole weights beside every array of scores.

        `rounding_loss` (devices, trials) says by how much these were rounded down, `example_mass` (devices, trials)
        what the examples weigh where the scores are drops of losses.
        """
        plain = [[np.asarray(own, dtype=np.float64) for own in trial] for trial in trials]
        given = [[np.asarray(own, dtype=np.int64) for own in trial] for trial in weights]
        samples = cls.of_trials(plain, names)
        pieces = [
            given[trial][device][np.argsort(plain[trial][device], kind="stable")]
            for device in range(samples.devices)
            for trial in range(samples.trials)
        ]
        mass = None if example_mass is None else example_mass.ravel()
        return samples.with_weights(
            np.concatenate(pieces), None if rounding_loss is None else rounding_loss.ravel(), mass
        )

    @classmethod
    def from_flat(
        cls, values: Floats, sizes: Ints, trials: int = 1, *, names: Sequence[str] | None = None, copy: bool = True
    ) -> WeightedScores:
        """Build from flat scores already grouped by (device, trial), `sizes` of them in each group.

        With ``copy=False`` the array is sorted in place and must not be used elsewhere: a million devices with fifty
        scores each take 400 MB.

        >>> WeightedScores.from_flat(np.array([3.0, 1.0, 2.0]), np.array([2, 0, 1])).segment(0).tolist()
        [1.0, 3.0]
        """
        note_large_integers(np.asarray(values), "scores")
        values, sizes = np.array(values, dtype=np.float64, copy=copy or None), np.asarray(sizes)
        if values.ndim != 1 or not values.flags.c_contiguous or int(sizes.sum()) != len(values):
            raise ValueError(
                f"flat scores must be one array with as many scores as `sizes` add up to, {int(sizes.sum())}, got "
                f"shape {values.shape}"
            )
        if np.isnan(values).any():
            owner = np.repeat(np.arange(len(sizes)) // trials, sizes)
            raise ValueError(_nan_message(_who(int(owner[np.isnan(values)][0]), names)))
        return cls._sorted(values, sizes, trials)

    @classmethod
    def _sorted(cls, values: Floats, sizes: Ints, trials: int) -> WeightedScores:
        """Take ownership of `values` and sort its segments in place."""
        offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        sort_segments(values, offsets)
        return cls(values, offsets, trials)

    @property
    def devices(self) -> int:
        """How many devices are in this block."""
        return (len(self.offsets) - 1) // self.trials

    @property
    def sizes(self) -> Ints:
        """How many scores each device holds, shape (devices, trials)."""
        return np.diff(self.offsets).reshape(self.devices, self.trials)

    @property
    def masses(self) -> Ints:
        """How much the scores of each device weigh, shape (devices, trials)."""
        if self.weights is None:
            return self.sizes
        return np.diff(self._cumulative_weights[self.offsets]).reshape(self.devices, self.trials)

    @cached_property
    def _cumulative_weights(self) -> Ints:
        """The weight of all scores before each place, and of all; only where scores have weights."""
        assert self.weights is not None
        sums = np.zeros(len(self.values) + 1, dtype=np.int64)
        np.cumsum(self.weights, out=sums[1:])
        return sums

    def with_weights(
        self, weights: Ints, rounding_loss: Ints | None = None, example_mass: Ints | None = None
    ) -> WeightedScores:
        """Return the same scores with these weights, flat and in the order of `values`; those of weight 0 are dropped.

        >>> WeightedScores.of([[3.0, 1.0], [2.0]]).with_weights(np.array([5, 0, 2])).masses.ravel().tolist()
        [5, 2]
        """
        each = np.asarray(weights, dtype=np.int64)
        if each.shape != self.values.shape or (each < 0).any():
            raise ValueError(f"weights must be {len(self.values)} whole numbers, none negative, got shape {each.shape}")
        if (each == 1).all():  # None is quicker: weights need not be summed up, and counts are weights
            return replace(self, weights=None, rounding_loss=rounding_loss, example_mass=example_mass)
        kept = each > 0
        if kept.all():
            return replace(self, weights=each, rounding_loss=rounding_loss, example_mass=example_mass)
        owner = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))[kept]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(self.offsets) - 1))])
        return WeightedScores(self.values[kept], offsets, self.trials, each[kept], rounding_loss, example_mass)

    def take(self, devices: Ints) -> WeightedScores:
        """Return the samples of these devices, in this order."""
        values, offsets = take_segments(self.values, self.offsets, devices, self.trials)
        weights = None if self.weights is None else take_segments(self.weights, self.offsets, devices, self.trials)[0]
        rounding_loss = (
            None if self.rounding_loss is None else self.rounding_loss.reshape(-1, self.trials)[devices].ravel()
        )
        mass = None if self.example_mass is None else self.example_mass.reshape(-1, self.trials)[devices].ravel()
        return WeightedScores(values, offsets, self.trials, weights, rounding_loss, mass)

    def segment(self, device: int, trial: int = 0) -> Floats:
        """Return the sorted scores of one device in one trial."""
        start, stop = self.offsets[device * self.trials + trial : device * self.trials + trial + 2]
        return self.values[start:stop]

    def pooled(self, trial: int = 0) -> Floats:
        """Return every score of a trial, unsorted: what no device may see, for baselines and checks."""
        if self.trials == 1:
            return self.values.copy()
        return np.concatenate([self.segment(device, trial) for device in range(self.devices)])

    def at_rank(self, ranks: Ints) -> Floats:
        """Return each device's own order statistic.

        `ranks` has shape (devices, trials, ...), counting from 1. Rank 0 gives -inf, a rank above the device's number
        of scores gives +inf.
        """
        shape = ranks.shape
        ranks = ranks.reshape(self.devices * self.trials, -1)
        sizes = np.diff(self.offsets)[:, None]
        inside = (ranks >= 1) & (ranks <= sizes)  # ranks count from 1, places from 0
        where = np.where(inside, self.offsets[:-1, None] + ranks - 1, 0)
        found = self.values[where] if len(self.values) else np.zeros(ranks.shape)
        return np.where(inside, found, np.where(ranks < 1, -np.inf, np.inf)).reshape(shape)

    def counts(self, thresholds: Floats) -> Ints:
        """Count each device's scores at or below each threshold, each as often as it weighs.

        `thresholds` has shape (trials, M), ascending in M; the answer (devices, M, trials).
        """
        counts: Ints = count_at_most(self.values, self.offsets, np.ascontiguousarray(thresholds), self.trials)
        return counts if self.weights is None else self._weight_of(counts, np.arange(self.trials))

    def counts_of(self, trials: Ints, thresholds: Floats) -> Ints:
        """Count each device's scores for many problems: problem p asks trial ``trials[p]`` for ``thresholds[p]``.

        `thresholds` has shape (problems, M), in any order; the answer (devices, M, problems).
        """
        counts: Ints = count_per_problem(
            self.values, self.offsets, self.trials, trials, np.ascontiguousarray(thresholds)
        )
        return counts if self.weights is None else self._weight_of(counts, trials)

    @cached_property
    def _starts(self) -> tuple[Ints, Ints]:
        """Where each segment starts, and what all scores before it weigh, both (devices, 1, trials)."""
        starts = self.offsets[:-1].reshape(self.devices, 1, self.trials)
        return starts, self._cumulative_weights[starts]

    def _weight_of(self, counts: Ints, trials: Ints) -> Ints:
        """Return what the first so many scores of each segment weigh; `counts` (devices, M, problems)."""
        starts, before = self._starts
        if self.trials > 1:
            starts, before = starts[:, :, trials], before[:, :, trials]
        return np.asarray(self._cumulative_weights.take(counts + starts) - before)

    def bracket_extremes(self, trials: Ints, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Return each device's smallest score above `low` and largest at or below `high`, (devices, problems).

        +inf where no score is above `low`, -inf where none is at or below `high`.
        """
        return bracket_extremes(self.values, self.offsets, self.trials, trials, low, high)

    def extremes(self, finite: bool = False) -> tuple[Floats, Floats]:
        """Return each device's smallest and largest (finite) score, (devices, trials); +inf and -inf if it has none."""
        low, high = segment_extremes(self.values, self.offsets, finite)
        shape = (self.devices, self.trials)
        return low.reshape(shape), high.reshape(shape)


def clean_scores(scores: Any, who: str, *, sides: bool = False) -> Floats:
    """Return the scores of one device as numbers, (scores,) or with two `sides` (scores, 2), or say what is wrong."""
    array = as_array(scores, who)
    if array.dtype.kind == "b":
        raise TypeError(f"{who}: scores must be numbers, not booleans: how badly a label fits, not whether it does")
    try:
        if array.dtype.kind in "cmM":  # NumPy would convert a part of them, with a warning or none
            raise TypeError
        if array.dtype.kind in "iuO":
            note_large_integers(array, who)
        array = np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{who}: scores must be numbers, got {type(scores).__name__} {str(scores)[:40]!r}") from None
    if sides:
        array = array.reshape(0, 2) if array.shape == (0,) else array
        if array.ndim != 2 or array.shape[1] != 2:
            raise ValueError(
                f"{who}: sides must have two columns, how far labels lie below and above, got shape {array.shape}; "
                "score.sides(outputs, labels) returns them"
            )
    elif array.ndim != 1:
        raise ValueError(f"{who}: scores must be one-dimensional, got shape {array.shape}; pass one array per device")
    if np.isnan(array).any():
        raise ValueError(_nan_message(who))
    return array


def _who(device: int, names: Sequence[str] | None) -> str:
    return f"device {names[device] if names is not None and device < len(names) else device}"


def _nan_message(who: str) -> str:
    return f"{who}: scores must be numbers, got NaN; drop or repair these rows first"
