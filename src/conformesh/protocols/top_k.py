r"""TOP-K by flooding: every device learns the k largest scores of all, in as many rounds as the diameter.

Of n scores the one of rank r is the k-th largest, k = n - r + 1 (or the r-th smallest, if these are fewer). In each
round a device says which scores it has heard for the first time in the round before, as long as they are among the k
largest that it knows of: no other score can be among the k largest of all. After as many rounds as the diameter
everybody knows the k largest, whom they belong to, and so the answer.

Few of a device's own scores will be among the k largest. It says at first only as many as are likely,
:math:`3 k n_j / n + 12`, and with them the largest that it keeps back. Everybody hears of the largest score that anyone
keeps back: if the k-th largest that was said is not below it, nothing is missing. Otherwise all devices know that
alike, those with more to say do, and it takes as many rounds again.

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

from conformesh.kernels import replies as written
from conformesh.kernels.compiling import compiled
from conformesh.kernels.keys import to_keys
from conformesh.kernels.replies import LOWEST
from conformesh.protocols.messages import Packets, Protocol, Tell
from conformesh.protocols.site import Site
from conformesh.samples import Samples

Ints = NDArray[np.int64]
LIKELY, SPARE = 3, 12  # a device says at first so many times its share of the k largest, and so many more
LARGEST_FLOOD = 2**28  # scores that all devices together may hold at the end: each has its own list of k


@dataclass(frozen=True, eq=False)
class Wanted:
    """A list that everybody is to know: the largest (or smallest) scores of a trial, until they weigh `k` together."""

    trial: int
    smallest: bool
    k: int

    def likely(self, mine: int, total: int, scores: int) -> int:
        """Return how much of that a device says at first which holds `mine` of the `total` weight of all scores."""
        spare = math.ceil(SPARE * total / max(scores, 1))  # a score weighs that much on average
        return LIKELY * math.ceil(self.k * mine / max(total, 1)) + spare


class Known:
    """What one device knows of one list: scores as keys, ascending, with owner and weight; negated for the smallest."""

    def __init__(self, wanted: Wanted, row: int, keys: Ints, times: Ints, likely: int) -> None:
        self.k, self.row, self.counts_ties = wanted.k, row, wanted.smallest
        self._mine = keys, times
        kept = self._until(keys, times, min(likely, wanted.k))
        nobody = np.empty(0, np.int64)
        self.keys, self.owners, self.times = nobody, nobody, nobody
        self.held_back = LOWEST if not kept or _weight(times[kept:]) >= wanted.k else int(keys[kept - 1])
        self.hear([(keys[kept:], np.full(len(keys) - kept, row), times[kept:])], LOWEST)
        self.news_held_back = self.held_back > LOWEST

    @staticmethod
    def _until(keys: Ints, times: Ints, weight: int) -> int:
        """Return where the largest scores begin that weigh so much together."""
        upward = np.cumsum(times[::-1])
        return max(len(keys) - int(np.searchsorted(upward, weight)) - 1, 0)

    def say_rest(self, above: int) -> None:
        """Say what was held back and lies above a key that everybody knows, or at it where ties count."""
        keys, times = self._mine
        rest = (keys > above - self.counts_ties) & (keys <= self.held_back)
        self.held_back, self.news_held_back = LOWEST, False
        self.hear([(keys[rest], np.full(int(rest.sum()), self.row), times[rest])], LOWEST)

    def hear(self, said: list[tuple[Ints, Ints, Ints]], held_back: int) -> None:
        """Take what neighbours say; what is new and among the k largest is news."""
        self.news_held_back = held_back > self.held_back
        self.held_back = max(self.held_back, held_back)
        parts = [(self.keys, self.owners, self.times), *said]
        keys, owners, times = (np.concatenate(part) for part in zip(*parts, strict=True))
        old = np.arange(len(keys)) < len(self.keys)
        order = np.lexsort((~old, owners, keys))  # of the same score what is known comes first
        keys, owners, times, old = keys[order], owners[order], times[order], old[order]
        first = np.ones(len(keys), dtype=bool)
        first[1:] = (keys[1:] != keys[:-1]) | (owners[1:] != owners[:-1])
        keys, owners, times, old = keys[first], owners[first], times[first], old[first]
        kept = int(np.searchsorted(keys, keys[self._until(keys, times, self.k)])) if len(keys) else 0  # ties stay
        self.keys, self.owners, self.times = keys[kept:], owners[kept:], times[kept:]
        new = ~old[kept:]
        self.news = self.keys[new], self.owners[new], self.times[new]

    @property
    def answered(self) -> bool:
        """Whether nothing among the k largest can have been held back, nor one of their ties where these count.

        The rank of the k-th largest is counted from above it, that of the r-th smallest from those up to it.
        """
        if self.held_back == LOWEST:
            return True
        return len(self.keys) > 0 and self.answer(self.k)[0] - self.counts_ties >= self.held_back

    def answer(self, k: int) -> tuple[int, int]:
        """Return the key at which the largest scores reach a weight, and what those above it weigh."""
        at = self._until(self.keys, self.times, k)
        key = int(self.keys[at])
        return key, _weight(self.times[self.keys > key])


def _weight(times: Ints) -> int:
    return int(times.sum())


def wanted_lists(ranks: Ints, n: Ints) -> tuple[list[Wanted], dict[int, int]]:
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
    return [Wanted(t, smallest, k) for (t, smallest), k in lists.items()], {p: places[key] for p, key in served.items()}


def can_flood(site: Site, ranks: Ints, n: Ints) -> bool:
    """Say whether every device can know what it would have to know."""
    return site.devices * _at_most(site, wanted_lists(ranks, n)[0]) <= LARGEST_FLOOD


def _at_most(site: Site, lists: list[Wanted]) -> int:
    """Return how many scores are in these lists at most: each weighs 1 or more, and there are no others."""
    return sum(min(wanted.k, int(site.totals[wanted.trial])) for wanted in lists)


def by_flooding(site: Site, samples: Samples, ranks: Ints, n: Ints) -> Protocol[dict[int, tuple[int, int]]]:
    """Find the score of every rank; return the key and its counted rank for each open problem (trial, alpha), flat."""
    lists, served = wanted_lists(ranks, n)
    if not can_flood(site, ranks, n):
        many = _at_most(site, lists)
        raise ValueError(
            f"top-k over flood lets each of {site.devices:,} devices know {many:,} scores, which is too much; use "
            "--schedule window, or top-k with --aggregate tree"
        )
    if not lists:
        return {}
    scores = site.totals
    devices = [
        [
            Known(wanted, int(row), *_own(samples, place, wanted), _likely(site, samples, place, wanted, n, scores))
            for wanted in lists
        ]
        for place, row in enumerate(site.here)
    ]
    yield from _flood(site, devices)
    missing = [i for i in range(len(lists)) if not devices[0][i].answered]  # the same on every device
    if missing:
        above = {i: devices[0][i].answer(lists[i].k)[0] if len(devices[0][i].keys) else LOWEST for i in missing}
        for known in devices:
            for i, one in enumerate(known):
                one.news = tuple(part[:0] for part in one.news)  # type: ignore[assignment]
                if i in above:
                    one.say_rest(above[i])
        yield from _flood(site, devices)
    found = {}
    for problem, place in served.items():
        wanted, one = lists[place], devices[0][place]
        if _weight(one.times) < wanted.k:
            raise ValueError(
                f"device {site.network.ids[site.here[0]]} has heard of scores that weigh {_weight(one.times)} together "
                f"where {wanted.k} were needed: a device does not pass on what it hears, or says what is not so"
            )
        t, rank = wanted.trial, int(ranks.ravel()[problem])
        if wanted.smallest:
            key, below = one.answer(rank)
            found[problem] = (-key, below + _weight(one.times[one.keys == key]))
        else:
            key, above_it = one.answer(int(n[t]) - rank + 1)
            found[problem] = (key, int(n[t]) - above_it)
    return found


def _own(samples: Samples, place: int, wanted: Wanted) -> tuple[Ints, Ints]:
    """Return the runs of a device's own scores, ascending; negated where the smallest are wanted."""
    segment = place * samples.trials + wanted.trial
    start, stop = samples.offsets[segment : segment + 2]
    weights = np.ones(stop - start, np.int64) if samples.weights is None else samples.weights[start:stop]
    keys, first = np.unique(to_keys(samples.values[start:stop]), return_index=True)
    times = np.add.reduceat(weights, first) if len(first) else weights[:0]
    return (-keys[::-1], times[::-1]) if wanted.smallest else (keys, times)


def _likely(site: Site, samples: Samples, place: int, wanted: Wanted, n: Ints, scores: Ints) -> int:
    t = wanted.trial
    return wanted.likely(int(samples.masses[place, t]), int(n[t]), int(scores[t]))


def _flood(site: Site, devices: list[list[Known]]) -> Protocol[None]:
    """Pass on news for as many rounds as the diameter."""
    for _ in range(site.network.diameter):
        loops = compiled("replies", 40.0 * sum(len(one.news[0]) for known in devices for one in known))
        chosen = written if loops is None else loops
        said = [_packet(chosen, known, _owner_bits(site)) for known in devices]
        speakers = np.array([place for place, (_, numbers) in enumerate(said) if numbers], dtype=np.int64)
        told = yield Tell(
            Packets.of([said[place][0] for place in speakers]),
            speakers,
            np.array([said[place][1] for place in speakers], dtype=np.int64),
        )
        receiver, sender, packets = told.receiver, told.sender, told.packets
        speaking, at = np.unique(sender, return_index=True)  # to all its neighbours alike
        said_by = {
            row: _read(chosen, packets[i], row, len(devices[0]), site)
            for row, i in zip(speaking.tolist(), at.tolist(), strict=True)
        }
        places = np.append(np.flatnonzero(np.diff(receiver, prepend=-1)), len(receiver))
        quiet = [True] * len(devices)
        for a, b in zip(places[:-1].tolist(), places[1:].tolist(), strict=True):
            place = int(site.local(receiver[a : a + 1])[0])
            quiet[place] = False
            heard = [said_by[row] for row in sender[a:b].tolist()]
            for i, one in enumerate(devices[place]):
                one.hear([packet[i][0] for packet in heard], max(packet[i][1] for packet in heard))
        for place in np.flatnonzero(quiet).tolist():
            for one in devices[place]:
                one.hear([], LOWEST)


def _owner_bits(site: Site) -> int:
    return max(site.devices - 1, 1).bit_length()


def _packet(chosen: Any, known: list[Known], owner_bits: int) -> tuple[bytes, int]:
    """Return a device's news of all lists as bytes, and how many numbers that is."""
    total = sum(len(one.news[0]) for one in known)
    if not total and not any(one.news_held_back for one in known):
        return b"", 0
    out, at, numbers = np.zeros(written.room_for_keys(total) + 16 * len(known), np.uint8), 0, 0
    for one in known:
        keys, owners, times = one.news
        at = chosen.put_items(out, at, keys, owners, times, len(keys), owner_bits)
        at = chosen.put(out, at, int(one.news_held_back), 1)
        if one.news_held_back:
            at = chosen.put_raw(out, at, one.held_back)
        numbers += len(keys) * (1 + bool((times != 1).any())) + one.news_held_back
    return out[: (at + 7) >> 3].tobytes(), numbers


def _read(chosen: Any, packet: bytes, sender: int, lists: int, site: Site) -> list[tuple[tuple[Ints, Ints, Ints], int]]:
    """Return what a packet says of each list: scores with owners and weights, and the largest held back."""
    data, at, found, owner_bits = np.frombuffer(packet, np.uint8), 0, [], _owner_bits(site)
    room = 8 * len(packet) // owner_bits + 1
    for _ in range(lists):
        keys, owners, times = (np.empty(room, np.int64) for _ in range(3))
        count, at = chosen.get_items(data, at, keys, owners, times, owner_bits)
        back, at = chosen.get(data, at, 1)
        held_back = LOWEST
        if back:
            held_back, at = chosen.get_raw(data, at)
        found.append(((keys[:count], owners[:count], times[:count]), int(held_back)))
    if (at + 7) >> 3 != len(packet):
        raise ValueError(
            f"device {site.network.ids[sender]} says {len(packet)} bytes that are no list of scores; run the "
            "same version of conformesh on every device, and look whether this one can be trusted"
        )
    return found
