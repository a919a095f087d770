r"""Top-k by flooding: every device learns the k largest scores of all, in as many rounds as the diameter.

Of n scores the one of rank r is the k-th largest, k = n - r + 1 (or the r-th smallest, if these are fewer). In each
round a device relays the scores that it received for the first time in the round before, if they are among the k
largest that it knows of: no other score can be among the k largest of all. After as many rounds as the diameter every
device knows the k largest, their owners, and so the answer.

Few of a device's own scores will be among the k largest. At first it sends only as many as are likely, :math:`3 k n_j /
n + 12`, and the largest score that it holds back. All devices learn the largest score that any device holds back: if
the k-th largest score that was sent is not below it, nothing is missing. Otherwise all devices know this, send what
they held back, and it takes as many rounds again.

Assumes     graph connected, diameter known
Guarantees  the score of rank r, bit for bit, and its counted rank, on every device; in the fewest rounds possible,
            or twice as many
Message     scores with their owners, each once; nothing in a round without news
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.kernels import replies as written
from conformesh.kernels.compilation import compiled_loops
from conformesh.kernels.items import packets_of
from conformesh.kernels.keys import to_keys
from conformesh.kernels.replies import LOWEST
from conformesh.kernels.segments import take_segments
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Block
from conformesh.protocols.merged_scores import MergedScores, ScoreReport, ScoreRuns
from conformesh.protocols.messages import PacketDeliveries, Packets, Protocol, Tell

# A device first sends this multiple of its share of the k largest, and this many more: enough for most devices even
# where scores are not alike. Too little costs a second flood, too much costs bits; the result is the same.
LIKELY, SPARE = 3, 12
# Scores that the lists of all devices together may hold at the end: each device has its own list of k. In a simulation
# this bounds memory; beyond it, the schedule `window` sends far less anyway.
_LARGEST_FLOOD = 2**28
LARGEST_TABLE_BITS = 2**33  # bits of one table, 1 GB; if more are needed, there are several tables
SCORES_AT_ONCE = 2**18  # scores that are encoded at a time: bounds the memory for temporary arrays
_WORK_PER_BYTE = 0.13  # work to read a byte, in the units of `kernels.compilation` (measured)


@dataclass(frozen=True, eq=False)
class WantedList:
    """A list that all devices need: the largest (or smallest) scores of a trial, up to a total weight of `k`."""

    trial: int
    smallest: bool
    k: int

    def likely(self, mine: int, total: int, scores: int) -> int:
        """Return the weight that a device sends at first if it holds `mine` of the `total` weight of all scores."""
        spare = math.ceil(SPARE * total / max(scores, 1))  # a score weighs that much on average
        return LIKELY * math.ceil(self.k * mine / max(total, 1)) + spare


def wanted_lists(ranks: Ints, n: Ints) -> tuple[list[WantedList], dict[int, int]]:
    """Return the lists that serve all ranks (trials, alphas), and which of them serves each open problem."""
    lists: dict[tuple[int, bool], int] = {}
    served: dict[int, tuple[int, bool]] = {}
    for t, row in enumerate(ranks.tolist()):
        for a, rank in enumerate(row):
            if 0 < rank <= n[t]:
                k, smallest = min((int(n[t]) - rank + 1, False), (rank, True))
                lists[t, smallest] = max(lists.get((t, smallest), 0), k)
                served[t * len(row) + a] = (t, smallest)
    places = {key: i for i, key in enumerate(lists)}
    return [WantedList(t, smallest, k) for (t, smallest), k in lists.items()], {
        p: places[key] for p, key in served.items()
    }


def can_flood(block: Block, ranks: Ints, n: Ints) -> bool:
    """Return whether the lists of all devices stay within the limit of a flood."""
    return block.devices * _most_scores(block, wanted_lists(ranks, n)[0]) <= _LARGEST_FLOOD


def _most_scores(block: Block, lists: list[WantedList]) -> int:
    """Return an upper bound of the scores in these lists: each weighs at least 1."""
    return sum(min(wanted.k, int(block.totals[wanted.trial])) for wanted in lists)


def search_by_flooding(
    block: Block, samples: WeightedScores, ranks: Ints, n: Ints
) -> Protocol[dict[int, tuple[int, int]]]:
    """Find the score of every rank; return the key and its counted rank for each open problem (trial, alpha), flat."""
    lists, served = wanted_lists(ranks, n)
    if not can_flood(block, ranks, n):
        many = _most_scores(block, lists)
        raise ValueError(
            f"top-k over flood lets each of {block.devices:,} devices know {many:,} scores, which is too much; use "
            "--schedule window, or top-k with --aggregate tree"
        )
    if not lists:
        return {}
    parts = [_DeviceTable(block, samples, places, lists, n) for places in _split_into_tables(block, lists)]
    block.progress.heard = "known", lambda: np.concatenate([part.lists[0].known_of_each for part in parts])
    yield from _flood_news(block, parts)
    if not all(known.answered for known in parts[0].lists):  # the same on every device
        for part in parts:
            for known in part.lists:
                known.say_rest()
        yield from _flood_news(block, parts)
    found = {}
    for problem, place in served.items():
        wanted, one = lists[place], parts[0].lists[place].of_first
        if one.weight < wanted.k:
            raise ValueError(
                f"device {block.network.ids[block.rows[0]]} has heard of scores that weigh {one.weight} together "
                f"where {wanted.k} were needed: a device does not relay what it receives, or sends wrong numbers"
            )
        t, rank = wanted.trial, int(ranks.ravel()[problem])
        if wanted.smallest:
            key, below = one.answer(rank)
            found[problem] = (-key, below + int(one.times[one.keys == key].sum()))
        else:
            key, above_it = one.answer(int(n[t]) - rank + 1)
            found[problem] = (key, int(n[t]) - above_it)
    return found


def _split_into_tables(block: Block, lists: list[WantedList]) -> list[Ints]:
    """Return the places of the devices here, in as many parts as there are to be tables: one, if it is not too large.

    A table has a bit for every device and score. Where many devices want few scores, most bits would be of scores that
    are never heard of: then several tables take less, though each has to read what is said to it from the others.
    """
    here = len(block.rows)
    said = sum(min(wanted.k, LIKELY + SPARE) * here + LIKELY * wanted.k for wanted in lists)  # an estimate
    return np.array_split(np.arange(here), min(max(here * said // LARGEST_TABLE_BITS, 1), here))


def _flood_news(block: Block, parts: list[_DeviceTable]) -> Protocol[None]:
    """Relay new scores for as many rounds as the diameter."""
    for _ in range(block.network.diameter):
        said = [part.says(_owner_bits(block)) for part in parts]
        told = yield Tell(
            Packets.concatenate([one.packets for one in said]),
            np.concatenate([part.places[one.speakers] for part, one in zip(parts, said, strict=True)]),
            np.concatenate([one.numbers for one in said]),
        )
        for part, one in zip(parts, said, strict=True):
            part.hears(told, one)


class _DeviceTable:
    """Devices that share tables of known scores, one for each list."""

    def __init__(self, block: Block, samples: WeightedScores, places: Ints, lists: list[WantedList], n: Ints) -> None:
        self.places, self._site = places, block
        self._rows = block.rows[places]
        self._place = np.full(block.devices, -1, dtype=np.int64)  # where each row of the network stands here
        self._place[self._rows] = np.arange(len(places))
        masses, scores = samples.masses[places], block.totals
        self.lists = []
        for wanted in lists:
            k, t = wanted.k, wanted.trial
            likely = [min(wanted.likely(mine, int(n[t]), int(scores[t])), k) for mine in masses[:, t].tolist()]
            runs = _local_runs(samples, places, wanted)
            self.lists.append(MergedScores(k, wanted.smallest, self._rows, runs, np.array(likely, dtype=np.int64)))

    def says(self, owner_bits: int) -> Tell:
        """Return the news of all devices here; in `speakers`, places among these."""
        speakers = np.flatnonzero(np.any([known.has_news for known in self.lists], axis=0))
        many = np.cumsum(np.sum([known.counts[speakers] for known in self.lists], axis=0))
        cuts = np.flatnonzero(np.diff(many // SCORES_AT_ONCE)) + 1
        parts = [
            packets_of([known.said(some) for known in self.lists], owner_bits) for some in np.split(speakers, cuts)
        ]
        packets = Packets.concatenate([Packets(said, offsets) for said, offsets, _ in parts])
        return Tell(packets, speakers, np.concatenate([numbers for _, _, numbers in parts]))

    def hears(self, told: PacketDeliveries, said: Tell) -> None:
        """Take what was told to the devices here, which have `said` this."""
        here = self._place[told.receiver] >= 0
        receiver, sender = told.receiver[here], told.sender[here]
        starts = np.flatnonzero(np.diff(receiver, prepend=-1))
        speaking, first, which = np.unique(sender, return_index=True, return_inverse=True)
        row = self._place[speaking]
        packets = told.said_by(receiver[first], speaking)  # to all its neighbours alike
        strange = np.flatnonzero(~self._as_said(row, packets, said))
        row[strange] = len(self.places) + np.arange(len(strange))
        read = self._read(packets.take(strange), speaking[strange])
        for i, known in enumerate(self.lists):
            known.hear(self._place[receiver[starts]], starts, row[which], [each[i] for each in read])

    @staticmethod
    def _as_said(row: Ints, packets: Packets, said: Tell) -> NDArray[np.bool_]:
        """Return which packets come, byte for byte, from devices here: what these say is known by its columns."""
        same = np.isin(row, said.speakers)
        own = packets.take(np.flatnonzero(same))
        mine = said.packets.take(np.searchsorted(said.speakers, row[same]))
        if not (np.array_equal(own.offsets, mine.offsets) and np.array_equal(own.values, mine.values)):
            same[same] = [own[i] == mine[i] for i in range(len(own))]
        return same

    def _read(self, packets: Packets, senders: Ints) -> list[list[ScoreReport]]:
        """Return what packets of these senders say of each list."""
        loops = compiled_loops("replies", _WORK_PER_BYTE * len(packets.values)) if len(packets) else None
        get_entries = written.get_entries if loops is None else loops.get_entries
        return [
            _read_lists(get_entries, packets[i], row, len(self.lists), self._site)
            for i, row in enumerate(senders.tolist())
        ]


def _local_runs(samples: WeightedScores, places: Ints, wanted: WantedList) -> ScoreRuns:
    """Return the runs of these devices' own scores, of each ascending; negated where the smallest are wanted."""
    segments = places * samples.trials + wanted.trial
    values, offsets = take_segments(samples.values, samples.offsets, segments)
    owner, keys = np.repeat(np.arange(len(places)), np.diff(offsets)), to_keys(values)
    if samples.weights is None:
        weights = np.ones(len(keys), np.int64)
    else:
        weights = take_segments(samples.weights, samples.offsets, segments)[0]
    if wanted.smallest:
        owner, keys, weights = owner[::-1], -keys[::-1], weights[::-1]
    first = np.flatnonzero((np.diff(owner, prepend=-1) != 0) | (np.diff(keys, prepend=0) != 0))
    return ScoreRuns(owner[first], keys[first], np.add.reduceat(weights, first) if len(first) else weights)


def _owner_bits(block: Block) -> int:
    return max(block.devices - 1, 1).bit_length()


def _read_lists(get_entries: Any, packet: bytes, sender: int, lists: int, block: Block) -> list[ScoreReport]:
    """Return what a packet says of each list: scores with owners and weights, and the largest held back."""
    data, at, found, owner_bits = np.frombuffer(packet, np.uint8), 0, [], _owner_bits(block)
    room = 8 * len(packet) // owner_bits + 1
    for _ in range(lists):
        keys, owners, times = (np.empty(room, np.int64) for _ in range(3))
        count, at = get_entries(data, at, keys, owners, times, owner_bits)
        back, at = written.get_bits(data, at, 1)
        held_back = LOWEST
        if back:
            held_back, at = written.get_raw(data, at)
        found.append(ScoreReport(keys[:count], owners[:count], times[:count], int(held_back)))
    if (at + 7) >> 3 != len(packet):
        raise ValueError(
            f"device {block.network.ids[sender]} says {len(packet)} bytes that are no list of scores; run the "
            "same version of conformesh on every device, and look whether this one can be trusted"
        )
    return found
