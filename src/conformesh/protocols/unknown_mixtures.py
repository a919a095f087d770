"""Thresholds for a mixture of devices that is not known.

own      each device by itself: its local score of rank ceil((1 - alpha)(n_k + 1)), without a message
any      the largest of these: it covers new examples of every device, and so of every mixture of devices
bounded  covers every mixture whose shares are at most c times given ones, w_k <= c pi_k: the smallest score at which

             min over w of sum_k w_k F_k  >=  1 - alpha + max_k min(1, c pi_k) / n_k,

         where F_k is the part of the scores of device k at or below it. It is at least the swap threshold of each such
         mixture (docs/guarantees.md). The minimum gives the devices with the smallest F_k as much as they may have.

The bounded threshold needs counts of each device at the same scores. Devices search in passes: each sends to all others
some of its scores in a window that contains the answer, with the number of its scores at or below each. From these
counts all devices compute the same smaller window. A device with few scores in the window sends all of them. In the
last pass every device does, so that the search ends.

Assumes     graph connected
Guarantees  the exact thresholds, the same on every device except for `own`: *counted*
Message     own: none. any: a number, in the rounds in which the largest one known changes. bounded: in each pass a
            string of each device, sent to all devices (`Gather`)
Departures  not from a paper
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from conformesh.common.array_types import Floats, Ints
from conformesh.kernels.keys import from_keys, to_keys
from conformesh.kernels.ranks import ANY, OWN, BoundedMixtures, conformal_rank
from conformesh.kernels.varints import decode_varints_at, encode_varints
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.consensus import agreed_maximum
from conformesh.protocols.messages import Gather, GatheredStrings, GatheringProtocol, Packets
from conformesh.results.certificate import Certificate

# Scores that a device sends in a pass if it has more in the window. Three passes then suffice for a thousand scores a
# device.
POINTS = 10
# The scores that a device sends first, by the part of its scores above them, in units of alpha: where devices differ,
# some may miss much more than alpha. A bad choice only widens the next window.
_FIRST_TAILS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
MOST_PASSES = 6  # in the last one devices send all their scores in the window, however many these are
_BELOW_ALL_KEYS, _ABOVE_ALL_KEYS = -(2**63), 2**63 - 1  # beyond the keys of all floats
_OWN_DATA = "each device covers test points from its own distribution only"


def thresholds_for_unknown_mixtures(block: Block, samples: WeightedScores) -> GatheringProtocol[Answers]:
    """Find the thresholds of a guarantee for more than one mixture."""
    if block.requirement.mixture == OWN:
        return replace(own_thresholds(block, samples), facts={"found_by": "each device by itself"})
    if block.requirement.mixture == ANY:
        return (yield from largest_thresholds(block, samples))
    return (yield from bounded_thresholds(block, samples))


def own_thresholds(block: Block, samples: WeightedScores) -> Answers:
    """Return the threshold of every local device by itself; +inf for one with too few scores."""
    ranks = _own_ranks(block)
    thresholds = samples.at_rank(ranks[block.rows])
    return Answers(thresholds, _certificates(block, samples, ranks, thresholds, block.rows, _OWN_DATA))


def largest_thresholds(block: Block, samples: WeightedScores) -> GatheringProtocol[Answers]:
    """Find the largest of the thresholds that devices have by themselves; +inf if one has too few scores."""
    ranks, all_devices = _own_ranks(block), np.arange(block.devices)
    own = samples.at_rank(ranks[block.rows])
    found = np.asarray((yield from agreed_maximum(own, block)), dtype=np.float64)
    return Answers(found, _certificates(block, samples, ranks, found, all_devices, ""), facts={"found_by": "maximum"})


def _own_ranks(block: Block) -> Ints:
    """Return the rank that each device needs among its local scores, (devices, trials, alphas)."""
    known: dict[int, list[int]] = {}
    for n in np.unique(block.sizes).tolist():
        known[n] = [conformal_rank(n, alpha) for alpha in block.alphas]
    flat = [known[n] for n in block.sizes.ravel().tolist()]
    return np.array(flat, dtype=np.int64).reshape(*block.sizes.shape, len(block.alphas))


def _certificates(
    block: Block, samples: WeightedScores, ranks: Ints, thresholds: Floats, about: Ints, assumption: str
) -> list[list[Certificate]]:
    """Return certificates with the ranks of the local devices; of the devices `about`, those with too few scores."""
    counts = np.zeros(thresholds.shape, dtype=np.int64)
    for device, trial, a in np.ndindex(*thresholds.shape):
        own = samples.segment(device, trial)
        counts[device, trial, a] = np.searchsorted(own, thresholds[device, trial, a], "right")
    local, sizes, ids = ranks[block.rows], block.sizes, block.network.ids

    def certificate(t: int, a: int) -> Certificate:
        few = about[ranks[about, t, a] > sizes[about, t]].tolist()
        required, counted = tuple(local[:, t, a].tolist()), tuple(counts[:, t, a].tolist())
        short = {ids[row]: int(sizes[row, t]) for row in few}
        return Certificate("counted", required, counted, assumption=assumption, short=short)

    return [[certificate(t, a) for a in range(len(block.alphas))] for t in range(block.trials)]


# --- shares up to a bound ---------------------------------------------------------------------------------------------


def bounded_thresholds(block: Block, samples: WeightedScores) -> GatheringProtocol[Answers]:
    """Find the smallest scores that cover every mixture whose shares are at most a bound times the given ones."""
    known: dict[tuple[bytes, int], BoundedMixtures] = {}  # draws of one experiment often have the same sizes
    numbers = block.sizes if block.items is None else np.stack([block.sizes, block.items])

    def mixtures(t: int, level: int) -> BoundedMixtures:
        key = numbers[..., t].tobytes(), level
        if key not in known:
            known[key] = block.bounded_mixtures(t, block.alphas[level])
        return known[key]

    problems = [
        _Problem(t, a, mixtures(t, a), _Window(t, _BELOW_ALL_KEYS, _ABOVE_ALL_KEYS))
        for t in range(block.trials)
        for a in range(len(block.alphas))
        if block.asked is None or block.asked[t, a]
    ]
    searched = [one for one in problems if one.mixtures.is_reachable]
    passes = 0
    while left := [one for one in searched if one.counts is None]:
        passes += 1
        windows = [one.window for one in left]
        tails = [block.alphas[one.level] if passes == 1 else None for one in left]
        local = _packets(block, samples, left, tails, everything=passes >= MOST_PASSES)
        received: GatheredStrings = yield Gather(local, partial(_check, windows=windows, sizes=block.sizes))
        reports = [_read(received.packets[row], windows) for row in range(block.devices)]
        for place, one in enumerate(left):
            one.narrow([report[place] for report in reports])
    thresholds = np.full((len(block.rows), block.trials, len(block.alphas)), np.inf)
    certificates = [[Certificate("none") for _ in block.alphas] for _ in range(block.trials)]
    for one in problems:
        if one.counts is not None:
            thresholds[:, one.trial, one.level] = from_keys(np.array([one.window.high]))[0]
        certificates[one.trial][one.level] = one.certificate()
    return Answers(thresholds, certificates, facts={"found_by": "counts by device", "passes": str(passes)})


class _Window(NamedTuple):
    """The keys between which the answer of a problem lies, (low, high], and its trial."""

    trial: int
    low: int
    high: int


class _Points(NamedTuple):
    """The report of one device about its scores in a window.

    `keys` are some of the distinct scores in the window, the first and the last among them, or all if `complete`;
    `counts` are the numbers of scores at or below each, `below` the number at or below the lower end of the window.
    """

    below: int
    complete: bool
    counts: Ints
    keys: Ints

    def least(self, key: int) -> int:
        """Return a lower bound on the number of scores at or below a key of the window."""
        place = int(np.searchsorted(self.keys, key, side="right"))
        return int(self.counts[place - 1]) if place else self.below

    def most(self, key: int) -> int:
        """Return an upper bound on the number of scores at or below a key of the window."""
        place = int(np.searchsorted(self.keys, key, side="right"))
        # Nothing lies below the first key or above the last one, and counts at keys are exact.
        exact = self.complete or place in (0, len(self.keys)) or int(self.keys[place - 1]) == key
        return self.least(key) if exact else int(self.counts[place]) - 1


@dataclass(eq=False)
class _Problem:
    """The search for one trial and level."""

    trial: int
    level: int
    mixtures: BoundedMixtures
    window: _Window
    counts: list[int] | None = None  # of each device at the answer, once it is found

    def narrow(self, reports: Sequence[_Points]) -> None:
        """Take the smallest window that surely contains the answer; if all its scores are known, the search ends."""
        keys = np.unique(np.concatenate([points.keys for points in reports]))
        high = _first(keys, lambda key: self.mixtures.is_reached([points.least(key) for points in reports]))
        low = _first(keys, lambda key: self.mixtures.is_reached([points.most(key) for points in reports]))
        if high == len(keys):
            raise ValueError("a device sent fewer scores than it has, or its scores changed during the run")
        found = int(keys[high])
        self.window = _Window(self.trial, int(keys[low - 1]) if low else self.window.low, found)
        if all(points.complete for points in reports):
            self.counts = [points.least(found) for points in reports]

    def certificate(self) -> Certificate:
        """Return the certificate, in units that make the ranks of all these mixtures whole numbers."""
        unit = self.mixtures.unit
        counts = self.mixtures.sizes if self.counts is None else self.counts
        return Certificate(
            "counted",
            math.ceil(unit * self.mixtures.required),
            math.ceil(unit * self.mixtures.covered(counts)),
            weight=math.ceil(unit * self.mixtures.covered(self.mixtures.sizes)),
        )


def _first(keys: Ints, reaches: Callable[[int], bool]) -> int:
    """Return the place of the first key for which a monotone condition holds; their number if there is none."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if reaches(int(keys[middle])):
            high = middle
        else:
            low = middle + 1
    return low


def _packets(
    block: Block,
    samples: WeightedScores,
    problems: Sequence[_Problem],
    tails: Sequence[Fraction | None],
    *,
    everything: bool,
) -> Packets:
    """Return the reports of the local devices about the windows of these problems."""
    strings = []
    for device, row in enumerate(block.rows.tolist()):
        numbers: list[int] = []
        values: list[bytes] = []
        for one, alpha in zip(problems, tails, strict=True):
            counted = one.mixtures.counts_device(row)  # scores of devices without a share are not sent
            scores = samples.segment(device, one.trial) if counted else np.empty(0)
            points = _points(to_keys(scores), one.window, alpha, everything)
            numbers += [points.below, int(points.complete), len(points.keys), *points.counts.tolist()]
            values.append(from_keys(points.keys).astype("<f8").tobytes())
        strings.append(encode_varints(np.array(numbers, dtype=np.int64)).tobytes() + b"".join(values))
    return Packets.of(strings)


def _points(keys: Ints, window: _Window, alpha: Fraction | None, everything: bool) -> _Points:
    """Return the report of a device with these scores, as ascending keys, about a window."""
    below, upto = np.searchsorted(keys, [window.low, window.high], side="right").tolist()
    inside, last = np.unique(keys[below:upto][::-1], return_index=True)
    counts = upto - last  # of equal keys the last place
    if everything or len(inside) <= POINTS:
        return _Points(below, True, counts, inside)
    if alpha is None:
        chosen = np.linspace(0, len(inside) - 1, POINTS).astype(np.int64)
    else:
        ranks = [upto - math.floor(min(tail * float(alpha), 1.0) * (upto - below)) for tail in _FIRST_TAILS]
        chosen = np.append(np.searchsorted(counts, ranks), [0, len(inside) - 1])
    chosen = np.unique(np.clip(chosen, 0, len(inside) - 1))
    return _Points(below, False, counts[chosen], inside[chosen])


def _check(entry: bytes, owner: int, windows: Sequence[_Window], sizes: Ints) -> None:
    """Refuse an impossible report, and more scores than the device has."""
    for window, points in zip(windows, _read(entry, windows), strict=True):
        count, size = int(points.counts[-1]) if len(points.counts) else points.below, int(sizes[owner, window.trial])
        if count > size:
            raise ValueError(f"{count} scores up to the end of a window, but the device has {size}")


def _read(entry: bytes, windows: Sequence[_Window]) -> list[_Points]:
    """Return the report about each window in a string; raise `ValueError` if it is impossible."""
    data = np.frombuffer(entry, dtype=np.uint8)
    at, heads = 0, []

    def number() -> int:
        nonlocal at
        values, behind = decode_varints_at(data, np.array([at]), np.array([len(data)]))
        at = int(behind[0])
        return int(values[0])

    for _ in windows:
        below, complete, many = number(), number(), number()
        if complete > 1 or many > len(data):
            raise ValueError(f"{many} scores in a string of {len(data)} bytes")
        heads.append((below, bool(complete), np.array([number() for _ in range(many)], dtype=np.int64)))
    total = sum(len(counts) for _, _, counts in heads)
    if len(data) - at != 8 * total:
        raise ValueError(f"{total} scores take {8 * total} bytes, got {len(data) - at}")
    values = np.frombuffer(entry[at:], dtype="<f8").astype(np.float64)
    if np.isnan(values).any():
        raise ValueError("a score is NaN")
    found, start = [], 0
    for window, (below, complete, counts) in zip(windows, heads, strict=True):
        keys = to_keys(values[start : start + len(counts)])
        start += len(counts)
        ascending = [window.low, *keys.tolist()], [below, *counts.tolist()]
        if any(a >= b for row in ascending for a, b in pairwise(row)) or (len(keys) and keys[-1] > window.high):
            raise ValueError("scores or counts do not ascend within their window")
        found.append(_Points(below, complete, counts, keys))
    return found
