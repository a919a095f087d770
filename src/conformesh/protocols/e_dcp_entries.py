"""E-DCP by entries: the exact threshold in asynchronous mode, and a certified one at every moment before.

Every device sends two entries to all others, and never changes them:

1. how many scores it holds, and some of its order statistics, around the level where the threshold should lie;
2. once it has the first entries of all devices: how many of its scores lie at or below the window (lo, hi] that these
   entries imply, and its scores inside. The window is a function of integers and floats that all devices have alike, so
   they agree on it without further messages.

A score known to be the i-th of its device proves that at least i scores of that device lie at or below it. So for any
threshold the proven scores of the devices that have reported add up to a lower bound of the count, and a threshold
whose bound reaches the required rank is certified: for *the reported devices* with the rank that the guarantee requires
of them alone, for *all devices* with the rank that it requires of all. With all entries the bound is the count, and the
threshold that of the pooled scores, bit for bit.

Assumes     which devices have reported does not depend on the scores
Guarantees  a *counted* threshold for the devices that have reported, after any entries; the exact one after all
Message     2 strings of each device, to everybody (`Gather`)
Departures  not from a paper
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.kernels.keys import from_keys, to_keys
from conformesh.kernels.ranks import Demand
from conformesh.kernels.varints import decode_varints_at, encode_varints
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Answers, Block, with_guarantee
from conformesh.protocols.messages import Gather, GatheredStrings, GatheringProtocol, Packets
from conformesh.protocols.size_agreement import MOST_CLAIMED_SCORES
from conformesh.results.certificate import Certificate, too_few_certificate

ENTRY_POINTS = 8  # order statistics of a device, for each level
# Most order statistics lie within this many standard deviations of the level, as it varies for independent scores. A
# bad choice only widens the window of the second entry.
_NEAR_DEVIATIONS = 1.8
# One order statistic lies this many times as far from the end as the level: devices need not be alike.
_FAR_FACTOR = 4.0
_FLOAT = struct.Struct("<d")
ENTRIES_REMEMBERED = 4096  # decoded entries: in asynchronous mode a device reads the same ones again and again
_BELOW_ALL_KEYS = -(2**63)  # below the key of every float


class _DeviceSketch(NamedTuple):
    """What is known of one device's scores: ascending keys, and how many scores at least lie at or below each.

    `most` has how many lie at most at or below each key, and up to the next known one.
    """

    keys: Ints
    least: Ints
    most: Ints
    size: int


_TrialSketches = tuple[_DeviceSketch, ...]  # of one device, by trial


def search_by_entries(
    block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], points: int | None
) -> GatheringProtocol[Answers]:
    """Find the exact threshold of every trial and level, or the best certain one for the devices that reported."""
    if block.requirement.loss_unit or block.requirement.is_weighted or samples.weights is not None:
        raise ValueError("without rounds e-dcp counts every score alike, and these have weights of their own")
    sketch = _SketchFormat(alphas, points or ENTRY_POINTS, block.trials)
    first: GatheredStrings = yield Gather(sketch.packets(samples), sketch.check)
    known = [sketch.read(first.packets[row]) if first.heard[row] else None for row in range(block.devices)]
    if not first.complete:
        return _partial_answers(block, alphas, _add_own_scores(block, samples, known), first.heard)
    everybody = _CertainCounts(block, alphas, known)
    windows = everybody.windows()
    refined = partial(_refine_sketches, known=tuple(known), windows=windows)
    second: GatheredStrings = yield Gather(_window_packets(samples, windows), refined)
    for row in np.flatnonzero(second.heard).tolist():
        known[row] = refined(second.packets[row], row)
    everybody = _CertainCounts(block, alphas, known if second.complete else _add_own_scores(block, samples, known))
    return everybody.outcome(len(block.rows), exact=second.complete)


# --- the first entry --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SketchFormat:
    """Which order statistics a device tells, and how: sizes of its trials, then for each the values, 8 bytes each."""

    alphas: tuple[Fraction, ...]
    points: int
    trials: int

    def ranks(self, n: int) -> Ints:
        """Return the ranks of the order statistics that a device with n scores tells, the last of them n."""
        if n <= self.points:
            return np.arange(1, n + 1)
        chosen = {n}
        for alpha in self.alphas:
            tail = float(alpha) * n
            spread = _NEAR_DEVIATIONS * math.sqrt(tail * (1 - float(alpha)))
            near = np.linspace(tail - spread, tail + spread, max(self.points - 2, 1))
            chosen |= {min(max(n - round(t), 1), n) for t in (*near.tolist(), _FAR_FACTOR * tail)}
        return np.array(sorted(chosen))

    def packets(self, samples: WeightedScores) -> Packets:
        """Return what the devices here say first."""
        strings = []
        for device in range(samples.devices):
            own = [samples.segment(device, t) for t in range(self.trials)]
            head = encode_varints(np.array([len(values) for values in own])).tobytes()
            told = [values[self.ranks(len(values)) - 1].astype("<f8").tobytes() for values in own]
            strings.append(head + b"".join(told))
        return Packets.of(strings)

    @lru_cache(maxsize=ENTRIES_REMEMBERED)  # noqa: B019 - sketches are small, and alike for all devices
    def read(self, entry: bytes) -> _TrialSketches:
        """Return what an entry says of each trial; `ValueError` if nobody could say it."""
        data = np.frombuffer(entry, dtype=np.uint8)
        at, sizes = 0, []
        for _ in range(self.trials):
            size, at = _read_number(data, at)
            sizes.append(size)
        ranks = [self.ranks(size) for size in sizes]
        values = _read_scores(entry[at:], sum(map(len, ranks)))
        parts = np.split(values, np.cumsum([len(one) for one in ranks])[:-1])
        return tuple(_device_sketch(part, rank, size) for part, rank, size in zip(parts, ranks, sizes, strict=True))

    def check(self, entry: bytes, owner: int) -> None:
        """Refuse what is no first entry."""
        self.read(entry)


def _device_sketch(values: NDArray[np.float64], ranks: Ints, size: int) -> _DeviceSketch:
    keys = to_keys(values)
    if (keys[1:] < keys[:-1]).any():  # a difference of keys may overflow
        raise ValueError("order statistics that do not ascend")
    return _DeviceSketch(keys, ranks, np.append(ranks[1:] - 1, size)[: len(ranks)], size)


def _read_number(data: NDArray[np.uint8], at: int) -> tuple[int, int]:
    numbers, behind = decode_varints_at(data, np.array([at]), np.array([len(data)]))
    if numbers[0] > MOST_CLAIMED_SCORES:
        raise ValueError(f"{numbers[0]:,} scores, which nobody holds")
    return int(numbers[0]), int(behind[0])


def _read_scores(data: bytes, count: int) -> NDArray[np.float64]:
    if len(data) != _FLOAT.size * count:
        raise ValueError(f"{count} scores take {_FLOAT.size * count} bytes, got {len(data)}")
    values = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if np.isnan(values).any():
        raise ValueError("a score that is no number")
    return values


# --- the second entry -------------------------------------------------------------------------------------------------


class _Window(NamedTuple):
    """Between which keys the answer of a problem lies, (low, high], and of which trial it is."""

    trial: int
    low: int
    high: int


class _WindowScores(NamedTuple):
    """A device's scores in a window: how many lie at or below its lower end, and the others as keys."""

    window: _Window
    below: int
    keys: Ints


def _window_packets(samples: WeightedScores, windows: Sequence[_Window]) -> Packets:
    """Return what the devices here say second: for each window, how many scores lie below it, and those inside."""
    strings = []
    for device in range(samples.devices):
        numbers, told = [], []
        for window in windows:
            values = samples.segment(device, window.trial)
            keys = to_keys(values)
            below, upto = np.searchsorted(keys, [window.low, window.high], side="right").tolist()
            numbers += [below, upto - below]
            told.append(values[below:upto].astype("<f8").tobytes())
        strings.append(encode_varints(np.array(numbers, dtype=np.int64)).tobytes() + b"".join(told))
    return Packets.of(strings)


def _read_window(entry: bytes, windows: Sequence[_Window], trials: int) -> list[list[_WindowScores]]:
    """Return what a second entry says, by trial; `ValueError` if nobody could say it."""
    data = np.frombuffer(entry, dtype=np.uint8)
    at, numbers = 0, []
    for _ in range(2 * len(windows)):
        number, at = _read_number(data, at)
        numbers.append(number)
    counts = numbers[1::2]
    parts = np.split(_read_scores(entry[at:], sum(counts)), np.cumsum(counts)[:-1]) if windows else []
    found: list[list[_WindowScores]] = [[] for _ in range(trials)]
    for window, below, values in zip(windows, numbers[::2], parts, strict=True):
        keys = to_keys(values)
        if len(keys) and (keys[0] <= window.low or keys[-1] > window.high or (keys[1:] < keys[:-1]).any()):
            raise ValueError("scores that do not ascend inside their window")
        found[window.trial].append(_WindowScores(window, below, keys))
    return found


def _refine_sketches(
    entry: bytes, owner: int, known: Sequence[_TrialSketches | None], windows: Sequence[_Window]
) -> _TrialSketches:
    """Return what is known of a device with its second entry; `ValueError` if that contradicts the first."""
    first = known[owner] or ()
    return tuple(map(_refine_sketch, first, _read_window(entry, windows, len(first))))


def _refine_sketch(known: _DeviceSketch, finer: Sequence[_WindowScores]) -> _DeviceSketch:
    """Return a device's sketch completed by its scores inside the windows."""
    keys, least = [known.keys], [known.least]
    for window, below, inside in finer:
        if below + len(inside) > known.size:
            raise ValueError(f"{below + len(inside)} scores up to a window, of {known.size}")
        keys += [np.array([window.low]), inside]
        least += [np.array([below]), below + 1 + np.arange(len(inside))]
    at, order = np.concatenate(keys), np.concatenate(least)
    sorting = np.lexsort((order, at))
    at, order = at[sorting], np.maximum.accumulate(order[sorting])
    return _DeviceSketch(
        at, order, np.full(len(at), known.size), known.size
    )  # what lies below at most is no longer asked


def _add_own_scores(
    block: Block, samples: WeightedScores, known: Sequence[_TrialSketches | None]
) -> list[tuple[_DeviceSketch, ...] | None]:
    """Return what is known, with all scores of the local device where it is alone: it knows these in any case."""
    found = [*known]
    if len(block.rows) == 1:
        own = []
        for t in range(block.trials):
            keys = to_keys(samples.segment(0, t))
            own.append(_DeviceSketch(keys, 1 + np.arange(len(keys)), np.full(len(keys), len(keys)), len(keys)))
        found[int(block.rows[0])] = tuple(own)
    return found


# --- lower bounds -----------------------------------------------------------------------------------------------------


class _CertainCounts:
    """What is known of some devices, and the rank that the guarantee requires of them; None in `known`: no report."""

    def __init__(self, block: Block, alphas: tuple[Fraction, ...], known: Sequence[_TrialSketches | None]) -> None:
        self.block, self.alphas = block, alphas
        self.rows = [row for row, one in enumerate(known) if one is not None]
        self.known = [one for one in known if one is not None]
        self.demands = [self._demand(t) for t in range(block.trials)]

    def _sizes(self, t: int) -> Ints:
        return np.array([one[t].size for one in self.known], dtype=np.int64)

    def _demand(self, t: int) -> Demand:
        given, ids = self.block.requirement.shares, self.block.network.ids
        shares = None if given is None else [given[ids[row]] for row in self.rows]
        return self.block.requirement.demand(self._sizes(t), self.alphas, shares=shares)

    def _weights(self, t: int) -> Ints:
        weights = self.demands[t].weights
        return np.ones(len(self.rows), dtype=np.int64) if weights is None else weights

    def total(self, t: int) -> int:
        """Return the total weight of the scores of these devices."""
        return int(self._weights(t) @ self._sizes(t))

    def rank(self, t: int, level: int) -> int:
        """Return the rank that the guarantee requires of these devices."""
        demand, requirement = self.demands[t], self.block.requirement
        spare = int(self._sizes(t).sum()) * demand.rounded
        return demand.required(requirement, self.alphas[level], t, level, self.total(t), spare)

    def certain(self, t: int) -> tuple[Ints, Ints]:
        """Return ascending distinct keys, and the weight that at least lies at or below each of them."""
        return _sum_counts([one[t].keys for one in self.known], [one[t].least for one in self.known], self._weights(t))

    def _possible(self, t: int) -> Ints:
        """Return the weight that at most lies at or below each key of `certain`."""
        told, weights = [one[t] for one in self.known], self._weights(t)
        first = np.array([one.least[0] - 1 if len(one.least) else 0 for one in told], dtype=np.int64)
        _, more = _sum_counts(
            [one.keys for one in told], [one.most - f for one, f in zip(told, first, strict=True)], weights
        )
        return more + int(weights @ first)  # below the first key of a device lie fewer scores than its rank

    def windows(self) -> list[_Window]:
        """Return a window that must hold the answer, for every problem that has one."""
        found = []
        for t in range(self.block.trials):
            keys, least = self.certain(t)
            most = self._possible(t)
            for level in range(len(self.alphas)):
                rank = self.rank(t, level)
                if not 0 < rank <= self.total(t):
                    continue
                high = int(keys[np.searchsorted(least, rank)])
                below = int(np.searchsorted(most, rank)) - 1  # the last key that surely has too little below it
                found.append(_Window(t, int(keys[below]) if below >= 0 else _BELOW_ALL_KEYS, high))
        return found

    def outcome(self, here: int, heard: tuple[str, ...] = (), exact: bool = False) -> Answers:
        """Return the smallest certain thresholds."""
        shape = self.block.trials, len(self.alphas)
        thresholds, brackets = np.full(shape, np.inf), np.full((2, *shape), np.inf)
        certificates = []
        for t in range(self.block.trials):
            keys, least = self.certain(t)
            row = []
            for level, alpha in enumerate(self.alphas):
                rank, total = self.rank(t, level), self.total(t)
                certificate = too_few_certificate(rank, total)
                if rank <= total and len(least) and least[-1] >= rank:
                    at = int(np.searchsorted(least, rank))
                    thresholds[t, level] = from_keys(keys[at : at + 1])[0]
                    brackets[:, t, level] = from_keys(keys[[max(at - 1, 0), at]])  # NaN where nothing is below
                    certificate = Certificate("counted", rank, int(least[at]))
                elif rank <= total:
                    certificate = Certificate("counted", rank, int(least[-1]) if len(least) else 0)
                row.append(self._signed(certificate, t, level, alpha, total, heard))
            certificates.append(row)
        each = np.broadcast_to(thresholds, (here, *shape)).copy()
        sizes = np.zeros((self.block.devices, shape[0]), dtype=np.int64)
        sizes[self.rows] = np.stack([self._sizes(t) for t in range(shape[0])], axis=1)
        brackets = np.where(np.isnan(brackets), -np.inf, brackets)
        return Answers(each, certificates, brackets=brackets if exact else None, sizes=sizes)

    def _signed(
        self, certificate: Certificate, t: int, level: int, alpha: Fraction, total: int, heard: tuple[str, ...]
    ) -> Certificate:
        demand = self.demands[t]
        told = structs.replace(certificate, heard=heard, weight=None if demand.weights is None else total)
        return with_guarantee(told, demand, self.block.requirement, t, level, alpha)


def _sum_counts(keys: Sequence[Ints], counts: Sequence[Ints], weights: Ints) -> tuple[Ints, Ints]:
    """Return all keys of some devices, and their weighted counts at each key added up; counts never fall."""
    steps = [w * np.diff(count, prepend=0) for count, w in zip(counts, weights.tolist(), strict=True)]
    at, step = np.concatenate([*keys, np.empty(0, np.int64)]), np.concatenate([*steps, np.empty(0, np.int64)])
    order = np.argsort(at, kind="stable")
    at, total = at[order], np.cumsum(step[order])
    last = np.flatnonzero(np.append(at[1:] != at[:-1], True)[: len(at)])  # of equal keys, where all have been added
    return at[last], total[last]


def _partial_answers(
    block: Block, alphas: tuple[Fraction, ...], known: Sequence[_TrialSketches | None], heard: NDArray[np.bool_]
) -> Answers:
    """Return certain thresholds before all first entries are there: for reported devices, and for all devices."""
    table = _CertainCounts(block, alphas, known)
    names = tuple(block.network.ids[row] for row in table.rows)
    return replace(table.outcome(len(block.rows), names), about_all=_answers_about_all(block, alphas, known, heard))


def _answers_about_all(
    block: Block, alphas: tuple[Fraction, ...], known: Sequence[_TrialSketches | None], heard: NDArray[np.bool_]
) -> Answers | None:
    """Return certain thresholds for all devices before all have reported, where caps bound the missing scores.

    The swap rank of mixture `sizes` only grows with the number of scores. So each missing device is taken to hold as
    many scores as its cap allows, none of them at or below the threshold: the worst case.
    """
    if block.caps is None or block.requirement.mixture != "sizes" or block.requirement.pac_confidence is not None:
        return None
    nobody = np.empty(0, np.int64)
    filled = [
        (_DeviceSketch(nobody, nobody, nobody, int(block.caps[row])),) * block.trials if one is None else one
        for row, one in enumerate(known)
    ]
    strict = replace(block, requirement=replace(block.requirement, rank_rule="swap"))
    return _CertainCounts(strict, alphas, filled).outcome(len(block.rows))
