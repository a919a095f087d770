"""Projection gossip: every device tracks the weights behind its numbers, and needs neither matrix nor clock nor map.

A device holds its view of the histogram and, in one more number per device, the weight with which the histogram of that
device is in it. Whatever was lost, late or repeated, the weights say how far the view can be from the truth
(`bounds.tracked_weights`), and each device takes the nearest combination of what it has heard (`row_combination`).

Assumes     K and every n_k known; the graph, over all rounds, connected
Guarantees  at every device at least r of all scores lie at or below its threshold, whichever messages were lost:
            *counted* where its weights leave one whole number, *bounded* before
Message     weights, histogram and the range, two float64 each, and an error bound: 2 (K + M) + 1 numbers, and 4 more
            where the range is to be agreed on; who does not know the range yet says what it knows of it
Departures  not in the paper. Numbers are pairs of float64, because extrapolation costs digits; messages of one round
            are taken together, up to `_MESSAGES_TOGETHER` at a time, by ascending sender
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from conformesh.common.array_types import Bools, Floats, Ints
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Block
from conformesh.protocols.bounds.tracked_weights import CountInterval, combine_rows, tracked_epsilon, whole_counts
from conformesh.protocols.messages import Packets, Tell
from conformesh.protocols.quantiser import Quantiser, quantiser_over
from conformesh.protocols.row_combination import WeightRows, best_combination

# Messages that are combined in one least squares problem. A device with more neighbours solves several; the sum of
# these, the earlier rows and two more stays below the limit of rows in `bounds.tracked_weights`.
_MESSAGES_TOGETHER = 16
# Earlier rows that a device keeps: as in accelerated gossip, their differences show the direction of progress.
ROWS_REMEMBERED = 4
_ROW_COPIES = 7 + ROWS_REMEMBERED  # copies of every row that a round holds in memory at a time
MOST_STATE_BYTES = 4 * 10**9  # bytes in one process; beyond, an error says what to use instead
NUMBERS_AT_ONCE = 2**23  # numbers of messages that are combined at a time: 64 MB


def default_gossip_rounds(block: Block) -> int:
    """Return rounds after which counts are usually exact, also if a third of all messages are lost."""
    return 30 + 9 * block.network.diameter if block.devices > 1 else 0


def check_memory(devices: int, here: int, bins: int, trials: int) -> None:
    """Refuse what does not fit into memory: every device here keeps a number for every device."""
    needed = 16 * _ROW_COPIES * here * trials * (devices + bins)
    if needed > MOST_STATE_BYTES:
        raise ValueError(
            f"consensus='projection' keeps {devices:,} weights and {bins:,} bins for each of {here:,} devices, which "
            f"takes about {needed / 1e9:,.0f} GB here, and {MOST_STATE_BYTES / 1e9:.0f} GB are the limit; use q-dcp "
            "with asynchronous=True, which bears the same faults, or consensus='gossip' where no message is lost"
        )


def _message_numbers(devices: int, bins: int, trials: int, agreed: bool) -> tuple[int, int]:
    """Return how many numbers a device says that does not know the range yet, which is to be agreed on, and later."""
    ends = 4 * trials if agreed else 0
    return ends + -(-devices // 64), ends + trials * (1 + 2 * (devices + bins))


class _Ends(NamedTuple):
    """What each device here knows of the range: ends of all and of finite scores, (devices, 4, trials), and of whom."""

    values: Floats
    known: Bools

    @property
    def ready(self) -> Bools:
        """Who knows the whole range."""
        return np.asarray(self.known.all(axis=1))


@dataclass(eq=False)
class _ProjectionState:
    """What each device here has: rows of weights and numbers as pairs, (devices, trials, K + M), and error bounds."""

    high: Floats
    low: Floats
    noises: Floats

    @property
    def parts(self) -> tuple[Floats, Floats, Floats]:
        """All of it, to be treated alike."""
        return self.high, self.low, self.noises

    @classmethod
    def own(cls, block: Block, samples: WeightedScores, edges: Floats) -> _ProjectionState:
        """Return what devices know of themselves: weight one, and their own counts."""
        here, K = len(block.rows), block.devices
        high = np.zeros((here, block.trials, K + edges.shape[1]))
        high[np.arange(here), :, block.rows] = 1
        high[:, :, K:] = samples.counts(edges).transpose(0, 2, 1)
        return cls(high, np.zeros_like(high), np.zeros((here, block.trials)))

    def strings(self) -> Floats:
        """Return what each device says of it, one row of numbers each."""
        here = len(self.high)
        return np.concatenate([self.noises, self.high.reshape(here, -1), self.low.reshape(here, -1)], axis=1)

    @classmethod
    def heard(cls, rows: Floats, trials: int) -> _ProjectionState:
        """Return what such rows of numbers say."""
        noises, rest = rows[:, :trials], rows[:, trials:].reshape(len(rows), 2, trials, -1)
        return cls(rest[:, 0], rest[:, 1], noises)


class ProjectionGossip:
    """The devices here, from round to round."""

    def __init__(self, block: Block, samples: WeightedScores, bins: int, range_: tuple[float, float] | None) -> None:
        self.block, self.samples, self.bins = block, samples, bins
        self.sizes = block.masses.T.astype(np.float64)  # (trials, K); exact: promises keep sums below 2^52
        self.agreed = range_ is None
        self.view: _ProjectionState | None = None  # what the devices here have, and what they know of themselves
        self.own: _ProjectionState | None = None
        self.past: _ProjectionState | None = None
        self._turn = np.zeros(len(block.rows), dtype=np.int64)
        self.quantiser: Quantiser | None = None
        known = (
            np.eye(block.devices, dtype=np.bool_)[block.rows] if self.agreed else np.ones((len(block.rows), 1), bool)
        )
        ends = [-samples.extremes()[0], samples.extremes()[1]]
        ends += [-samples.extremes(finite=True)[0], samples.extremes(finite=True)[1]]
        self.ends = _Ends(np.stack(ends, axis=1), known)
        if range_ is not None:
            given = np.tile(np.array([[-range_[0]], [range_[1]]]), (1, block.trials))
            self._begin(quantiser_over(given, given, bins, complete=False))
        elif self.ends.ready.any():
            self._learn()

    # --- what is said ---------------------------------------------------------------------------------------------

    @property
    def _lengths(self) -> tuple[int, int]:
        """How many numbers who is not ready says, and who is."""
        return _message_numbers(self.block.devices, self.bins, self.block.trials, self.agreed)

    def message(self) -> Tell:
        """Return what the devices here say."""
        ready, here = self.ends.ready, len(self.block.rows)
        ends = self.ends.values.reshape(here, -1) if self.agreed else np.zeros((here, 0))
        short, long = self._lengths
        lengths = np.where(ready, long, short)
        flat = np.empty(int(lengths.sum()), dtype=np.int64)  # bits: a set of devices is no number
        starts = np.cumsum(lengths) - lengths
        if self.view is not None and ready.any():
            rows = np.concatenate([ends, self.view.strings()], axis=1)[ready]
            flat[starts[ready][:, None] + np.arange(long)] = rows.view(np.int64)
        if not ready.all():
            bits = np.zeros((here, 8 * -(-self.block.devices // 64)), dtype=np.uint8)
            packed = np.packbits(self.ends.known, axis=1)
            bits[:, : packed.shape[1]] = packed
            whom = np.concatenate([ends.view(np.int64), bits.view(np.int64)], axis=1)[~ready]
            flat[starts[~ready][:, None] + np.arange(short)] = whom
        offsets = np.concatenate([[0], 8 * np.cumsum(lengths)])
        return Tell(Packets(flat.view(np.uint8), offsets), np.arange(here), lengths, partial(_check, self._lengths))

    # --- what is heard --------------------------------------------------------------------------------------------

    def hear(self, told: Any) -> None:
        """Take what arrived: first what it says of the range, then the rows."""
        receiver, sender = np.asarray(told.receiver), np.asarray(told.sender)
        place = np.arange(len(receiver)) - np.searchsorted(receiver, receiver)
        if not self.ends.ready.all():
            for part in self._parts(receiver):
                self._hear_of_range(self.block.local(receiver[part]), told.said_by(receiver[part], sender[part]))
            self._learn()
        if self.view is None:
            return
        for first in range(0, int(place.max(initial=-1)) + 1, _MESSAGES_TOGETHER):
            some = np.flatnonzero((place >= first) & (place < first + _MESSAGES_TOGETHER))
            for part in self._parts(receiver[some]):
                at = some[part]
                said = told.said_by(receiver[at], sender[at])
                self._combine(self.block.local(receiver[at]), place[at] - first, said)

    def _parts(self, receiver: Ints) -> list[Ints]:
        """Return messages in parts that fit into memory; those of one receiver stay together."""
        most = max(NUMBERS_AT_ONCE // self._lengths[1], 1)
        starts = np.flatnonzero(np.diff(receiver, prepend=-1)).tolist()
        cuts = [0]
        for start, end in pairwise([*starts, len(receiver)]):
            if end - cuts[-1] > most and start > cuts[-1]:
                cuts.append(start)
        return [np.arange(a, b) for a, b in pairwise([*cuts, len(receiver)]) if b > a]

    def _hear_of_range(self, receiver: Ints, said: Packets) -> None:
        """Know of the range what others know; who knows all of it says no more whom it has heard."""
        count, K = 4 * self.block.trials, self.block.devices
        long = np.diff(said.offsets) == 8 * self._lengths[1]
        numbers = said.values.view(np.float64)
        starts = said.offsets[:-1] // 8
        heard = numbers[starts[:, None] + np.arange(count)].reshape(-1, 4, self.block.trials)
        bits = np.ones((len(receiver), K), dtype=np.bool_)
        if not long.all():
            words = numbers.view(np.int64)[starts[~long][:, None] + count + np.arange(-(-K // 64))]
            bits[~long] = np.unpackbits(words.view(np.uint8), axis=1, count=K).astype(np.bool_)
        np.maximum.at(self.ends.values, receiver, heard)
        np.logical_or.at(self.ends.known, receiver, bits)

    def _learn(self) -> None:
        """Count one's own scores as soon as the range is known: it is the same for all who know it."""
        ready = self.ends.ready
        if self.quantiser is None and ready.any():
            ends = self.ends.values[int(np.argmax(ready))]
            self._begin(quantiser_over(ends[:2], ends[2:], self.bins, complete=True))

    def _begin(self, quantiser: Quantiser) -> None:
        self.quantiser = quantiser
        self.own = _ProjectionState.own(self.block, self.samples, quantiser.edges)
        self.view = _ProjectionState(*(part.copy() for part in self.own.parts))
        self.past = _ProjectionState(
            *(np.zeros((len(part), ROWS_REMEMBERED, *part.shape[1:])) for part in self.own.parts)
        )

    def _combine(self, receiver: Ints, place: Ints, said: Packets) -> None:
        """Replace the rows of those who heard some by the best combination of these, their own, and themselves."""
        long = np.diff(said.offsets) == 8 * self._lengths[1]
        receiver, place, said = receiver[long], place[long], said.take(np.flatnonzero(long))
        if not len(receiver) or self.view is None or self.own is None or self.past is None:
            return
        trials, K = self.block.trials, self.block.devices
        numbers = said.values.view(np.float64).reshape(len(receiver), -1)
        heard = _ProjectionState.heard(numbers[:, 4 * trials :] if self.agreed else numbers, trials)
        who, at = np.unique(receiver, return_inverse=True)
        # as many rows for all, with zeros in place of what was not heard: then every engine rounds alike
        many = min(_MESSAGES_TOGETHER, self.block.network.largest_degree) + ROWS_REMEMBERED + 2
        stacked = _ProjectionState(*(np.zeros((len(who), many, *part.shape[1:])) for part in self.view.parts))
        for rows, *sources in zip(
            stacked.parts, self.view.parts, heard.parts, self.past.parts, self.own.parts, strict=True
        ):
            mine, theirs, before, alone = sources
            rows[:, 0], rows[at, 1 + place], rows[:, -1] = mine[who], theirs, alone[who]
            rows[:, -1 - ROWS_REMEMBERED : -1] = before[who]
        self._remember(who)
        for trial in np.flatnonzero(self.sizes.any(axis=1)).tolist():
            high, low, noises = (part[:, :, trial] for part in stacked.parts)
            sizes = np.broadcast_to(self.sizes[trial], (len(who), K))
            coefficients, bound = best_combination(WeightRows(high[:, :, :K], noises, sizes))
            self.view.high[who, trial], self.view.low[who, trial] = combine_rows(coefficients, high, low)
            self.view.noises[who, trial] = bound

    def _remember(self, who: Ints) -> None:
        """Keep the rows of these devices as they are now, in place of the oldest."""
        assert self.view is not None
        assert self.past is not None
        slot = self._turn[who] % ROWS_REMEMBERED
        self._turn[who] += 1
        for before, mine in zip(self.past.parts, self.view.parts, strict=True):
            before[who, slot] = mine[who]

    # --- what is known --------------------------------------------------------------------------------------------

    def epsilons(self, trial: int) -> Floats:
        """Return how far off each device's fractions can be; 1 where it knows nothing."""
        out = np.ones(len(self.block.rows))
        ready = self.ends.ready
        if self.view is not None and self.sizes[trial].any():
            K = self.block.devices
            weights = self.view.high[ready, trial, :K], self.view.low[ready, trial, :K]
            out[ready] = np.minimum(tracked_epsilon(*weights, self.view.noises[ready, trial], self.sizes[trial]), 1)
        return out

    def counts(self, trial: int) -> CountInterval:
        """Return between which whole numbers each device knows the counts to be."""
        here, n, K = len(self.block.rows), int(self.sizes[trial].sum()), self.block.devices
        low, high = np.zeros((here, self.bins), dtype=np.int64), np.full((here, self.bins), n)
        ready = self.ends.ready
        if self.view is not None and self.quantiser is not None and ready.any():
            parts = [part[ready, trial] for part in (self.view.high, self.view.low)]
            x, weights = [part[:, K:] for part in parts], [part[:, :K] for part in parts]
            noises = self.view.noises[ready, trial]
            found = whole_counts((x[0], x[1]), (weights[0], weights[1]), noises, self.sizes[trial])
            low[ready], high[ready] = found
            if self.quantiser.complete[trial]:  # the range was agreed on: no score lies above it
                low[ready, -1] = high[ready, -1] = n
        return CountInterval(low, high)


def _check(lengths: tuple[int, int], said: bytes) -> None:
    """Refuse what nobody could say here."""
    if len(said) not in (8 * lengths[0], 8 * lengths[1]):
        raise ValueError(f"a row must have {lengths[0]} or {lengths[1]} numbers, got {len(said)} bytes")
    if len(said) == 8 * lengths[1] and np.isnan(np.frombuffer(said)).any():
        raise ValueError("a row of weights must not hold NaN")
