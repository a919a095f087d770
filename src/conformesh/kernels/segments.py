"""Ragged, sorted segments: sort them, count in them, find their ends; and sums into rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.kernels.compilation import has_compiled_twin
from conformesh.kernels.threads import run_in_blocks

FEW_SEGMENTS = 32  # segments; up to this many are searched with one NumPy call each


def sort_segments(values: Floats, offsets: Ints) -> None:
    """Sort each segment in place; NumPy's vectorised sort beats a compiled loop from a few dozen values on."""
    sizes = np.diff(offsets)
    if len(sizes) and (sizes == sizes[0]).all():
        table = values.reshape(len(sizes), -1)
        run_in_blocks(lambda a, b: table[a:b].sort(axis=1), len(table), 8 * table.size)
        return
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        values[start:stop].sort()


@has_compiled_twin(
    "segments", work=lambda values, offsets, thresholds, trials: (len(offsets) - 1) * thresholds.shape[1]
)
def count_at_most(values: Floats, offsets: Ints, thresholds: Floats, trials: int) -> Ints:
    """Count, per segment, the values at or below each ascending threshold: (devices, M, trials) integers."""
    out = np.empty(((len(offsets) - 1) // trials, thresholds.shape[1], trials), np.int64)
    for trial in range(trials):
        out[:, :, trial] = _counts(values, offsets[trial:-1:trials], offsets[trial + 1 :: trials], thresholds[trial])
    return out


@has_compiled_twin(
    "segments", work=lambda values, offsets, trials, _, thresholds: (len(offsets) - 1) // trials * thresholds.size
)
def count_per_problem(values: Floats, offsets: Ints, trials: int, trial_of: Ints, thresholds: Floats) -> Ints:
    """Count, per device, the values of trial ``trial_of[p]`` up to ``thresholds[p, m]``: (devices, M, problems).

    No value is at or below NaN, which stands for less than -inf where a bracket begins below all floats.
    Counts are int32 where no device can have more than that many: a million devices and 64 thresholds take 256 MB.
    """
    out = empty_counts(values, (len(offsets) - 1) // trials, thresholds)
    for p, trial in enumerate(trial_of.tolist()):
        out[:, :, p] = _counts(values, offsets[trial:-1:trials], offsets[trial + 1 :: trials], thresholds[p])
    return out


def empty_counts(values: Floats, devices: int, thresholds: Floats) -> Ints:
    """Return memory for the counts of `count_per_problem`, in the smallest type that holds all of them."""
    kind = np.int32 if len(values) <= np.iinfo(np.int32).max else np.int64
    return np.empty((devices, *thresholds.shape[::-1]), kind)


def _counts(values: Floats, starts: Ints, stops: Ints, thresholds: Floats) -> Ints:
    """Count the values of each segment at or below each threshold, in any order: (segments, M).

    By the quicker of two ways: every value looks up its place among the thresholds, or all searches halve at once.
    """
    segments, m_count = len(starts), len(thresholds)
    nowhere = np.isnan(thresholds)
    if nowhere.any():
        out = _counts(values, starts, stops, np.where(nowhere, -np.inf, thresholds))
        out[:, nowhere] = 0
        return out
    if segments <= FEW_SEGMENTS:
        parts = [values[a:b].searchsorted(thresholds, "right") for a, b in zip(starts, stops, strict=True)]
        return np.array(parts, dtype=np.int64).reshape(segments, m_count)
    sizes = stops - starts
    steps = int(sizes.max()).bit_length()
    held = int(sizes.sum())
    if held * (2 + math.log2(m_count + 1)) < 4 * segments * m_count * steps:
        if (thresholds[1:] < thresholds[:-1]).any():
            order = np.argsort(thresholds, kind="stable")
            out = np.empty((segments, m_count), np.int64)
            out[:, order] = _counts(values, starts, stops, thresholds[order])
            return out
        among = _gathered(values, starts, sizes) if held < len(values) else values
        bins = thresholds.searchsorted(among)  # the first threshold that is at or above the value
        bins += np.repeat(np.arange(0, segments * (m_count + 1), m_count + 1), sizes)
        table = np.bincount(bins, minlength=segments * (m_count + 1)).reshape(segments, m_count + 1)
        return np.cumsum(table[:, :-1], axis=1)
    low = np.repeat(starts[:, None], m_count, axis=1)
    high = np.repeat(stops[:, None], m_count, axis=1)
    last = max(len(values) - 1, 0)
    for _ in range(steps):
        middle = (low + high) >> 1
        below = (values[np.minimum(middle, last)] <= thresholds) & (low < high)
        np.copyto(low, middle + 1, where=below)
        np.copyto(high, middle, where=~below)
    return low - starts[:, None]


def segment_extremes(values: Floats, offsets: Ints, finite: bool) -> tuple[Floats, Floats]:
    """Return the smallest and the largest (finite) value of each sorted segment; +inf and -inf where it has none."""
    first, last = offsets[:-1], offsets[1:] - 1
    if finite and np.isinf(values).any():
        ends = np.searchsorted(offsets, np.flatnonzero(values == -np.inf), "right") - 1
        first = first + np.bincount(ends, minlength=len(first))
        ends = np.searchsorted(offsets, np.flatnonzero(values == np.inf), "right") - 1
        last = last - np.bincount(ends, minlength=len(last))
    some = np.flatnonzero(first <= last)
    low, high = np.full(len(first), np.inf), np.full(len(first), -np.inf)
    low[some], high[some] = values[first[some]], values[last[some]]
    return low, high


def bracket_extremes(
    values: Floats, offsets: Ints, trials: int, trial_of: Ints, low: Floats, high: Floats
) -> tuple[Floats, Floats]:
    """Return, per device and problem, the smallest value above low (else +inf) and the largest at or below high."""
    sizes = np.diff(offsets).reshape(-1, trials)[:, trial_of]
    starts = offsets[:-1].reshape(-1, trials)[:, trial_of]
    ends = count_per_problem(values, offsets, trials, trial_of, np.stack([low, high], axis=1))
    more, some = ends[:, 0] < sizes, ends[:, 1] > 0
    above, below = np.full(sizes.shape, np.inf), np.full(sizes.shape, -np.inf)
    above[more] = values[(starts + ends[:, 0])[more]]
    below[some] = values[(starts + ends[:, 1] - 1)[some]]
    return above, below


def take_segments(values: NDArray[Any], offsets: Ints, devices: Ints, pieces: int = 1) -> tuple[NDArray[Any], Ints]:
    """Return the values and offsets of these devices, in this order; each device owns `pieces` segments in a row."""
    which = (devices[:, None] * pieces + np.arange(pieces)).ravel()
    sizes = np.diff(offsets)[which]
    taken = np.zeros(len(which) + 1, dtype=np.int64)
    np.cumsum(sizes, out=taken[1:])
    return copy_segments(values, offsets[which], taken), taken


@has_compiled_twin("segments", work=lambda values, starts, cuts: int(cuts[-1]) / 4)
def copy_segments(values: NDArray[Any], starts: Ints, cuts: Ints) -> NDArray[Any]:
    """Return the segments that begin at `starts`, the i-th of them at ``cuts[i]:cuts[i + 1]`` of the copy."""
    return _gathered(values, starts, np.diff(cuts))


def _gathered(values: NDArray[Any], starts: Ints, sizes: Ints) -> NDArray[Any]:
    ends = np.cumsum(sizes)
    where = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - sizes), sizes)
    return np.asarray(values[where])


@has_compiled_twin("segments", work=lambda x, rows, values: 4 * values.size)
def add_rows(x: NDArray[Any], rows: Ints, values: NDArray[Any]) -> None:
    """Add each row of `values` to the row of `x` that `rows` names, which may be the same one several times."""
    np.add.at(x, rows, values)
