"""Lists of scores with their owners, as bits; the packets of all senders are written at once.

A packet holds a list or several; `replies.get_entries` reads one, and has the format:

    how many (gamma); the zeros at which all keys end (6 bits); the first key (64); the low bits of differences (6, if
    there are any); the differences (Rice), or keys of 64 bits where the list goes from one end of the floats to the
    other; owners; whether any score is there more than once, and then how often each is (gamma)

and after each list a bit, and where it is set the largest score that some device keeps back (64).

A field is a number and where it ends, so fields of millions of scores are written by a few operations on arrays. The
slow twin, in `tests.reference`, writes one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.kernels.replies import HALF, LOWEST

_Words = NDArray[np.uint64]
_RAW = 63  # stands for the number of low bits of differences where keys are written whole
_ONE = np.uint64(1)  # in the type of the words, so that shifts of it stay 64 bits without a sign


@dataclass(frozen=True, eq=False)
class Lists:
    """One list for each of several senders: sender i has the items from ``cuts[i]`` to ``cuts[i + 1]``.

    Attributes
    ----------
    keys, owners, times
        The items, of each speaker by ascending key: whose score it is, and how often that one has it, 1 or more.
    cuts
        Shape (senders + 1,).
    held_back
        The largest key that some device keeps back, as far as the sender knows, (senders,); `LOWEST` if none.
    """

    keys: Ints
    owners: Ints
    times: Ints
    cuts: Ints
    held_back: Ints


def packets_of(lists: Sequence[Lists], owner_bits: int) -> tuple[NDArray[np.uint8], Ints, Ints]:
    """Return the packets of the senders, with all lists: bytes, the ends of packets, and how many numbers."""
    coded = [_Coded(one, owner_bits) for one in lists]
    sizes = np.stack([one.bits for one in coded], axis=1)  # (speakers, lists)
    offsets = np.concatenate([[0], np.cumsum((sizes.sum(axis=1) + 7) >> 3)])
    begins = 8 * offsets[:-1, None] + np.cumsum(sizes, axis=1) - sizes
    words = np.zeros((int(offsets[-1]) + 7) >> 3, np.uint64)
    for one, begin in zip(coded, begins.T, strict=True):
        one.write(words, begin)
    said = words.astype(">u8").view(np.uint8)[: offsets[-1]]
    return said, offsets, np.asarray(sum(one.numbers for one in coded), dtype=np.int64)


class _Coded:
    """A list of every speaker as fields: whose, where it ends, counted from the begin of that list, and its value."""

    def __init__(self, lists: Lists, owner_bits: int) -> None:
        self._fields: list[tuple[Any, Ints, _Words]] = []
        count = np.diff(lists.cuts)
        some = np.flatnonzero(count)
        speaker = np.repeat(np.arange(len(count)), count)
        drop, short = np.zeros(len(count), np.int64), np.zeros(len(count), np.int64)
        first, last = lists.cuts[some], lists.cuts[some + 1] - 1
        drop[some], short[some] = _steps(lists.keys, first, last)

        each = 2 * _bits_in(count + 1) - 1
        end = each + 6 * (count > 0)
        self._field(slice(None), end, np.where(count > 0, (count + 1 << 6) | drop, 1))
        more = np.flatnonzero(count > 1)
        self._field(more, end[more] + 64 + 6, short[more])
        end = self._keys(lists, end, speaker, first, drop, short)
        within = np.arange(len(speaker)) - lists.cuts[speaker]
        self._field(speaker, end[speaker] + owner_bits * (within + 1), lists.owners)
        end = end + owner_bits * count
        end, several = self._times(lists, end, speaker, count)
        said = lists.held_back > LOWEST
        self._field(slice(None), end + 1, said)
        self._field(said, end[said] + 65, _raw(lists.held_back[said]))
        self.bits = end + 1 + 64 * said
        self.numbers = count * (1 + several) + said

    def _keys(self, lists: Lists, end: Ints, speaker: Ints, first: Ints, drop: Ints, short: Ints) -> Ints:
        """Add the first key of every speaker, and how far it is to each of the others."""
        low = short[speaker]
        raw = first
        if (short == _RAW).any():
            as_they_are = low == _RAW
            as_they_are[first] = True
            raw = np.flatnonzero(as_they_are)
        shifted = lists.keys >> drop[speaker]
        gaps = np.diff(shifted, prepend=0)
        gaps[raw] = low[raw] = 0
        ones = gaps >> low
        width = ones + low + 1
        width[raw] = 64
        value = (gaps - (ones << low)).view(np.uint64)
        long = np.flatnonzero(width > 63)
        before = value[long]
        value += (_ONE << np.minimum(width, 63).view(np.uint64)) - (_ONE << (low + 1).view(np.uint64))
        value[long] = before
        value[raw] = _raw(lists.keys[raw])
        behind = np.zeros(len(width), np.int64)  # after the first key it is said how the others are written
        behind[first] = 6 * (np.diff(lists.cuts)[speaker[first]] > 1)
        ends = np.cumsum(width + behind)
        upto = np.concatenate([[0], ends])[lists.cuts]
        ends += (end - upto[:-1])[speaker] - behind
        self._field(speaker, ends, value)
        long = long[ones[long] > 0]
        if len(long):  # ones that are more than a word has room for
            pieces = (ones[long] + 62) // 63
            which = np.repeat(long, pieces)
            before = 63 * (np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces))
            many = np.minimum(ones[which] - before, 63)
            begin = ends[which] - width[which] + before
            self._field(speaker[which], begin + many, (_ONE << many.view(np.uint64)) - _ONE)
        return np.asarray(end + np.diff(upto))

    def _times(self, lists: Lists, end: Ints, speaker: Ints, count: Ints) -> tuple[Ints, Any]:
        """Add how often scores are there, where a speaker has one that is there more than once."""
        several = np.zeros(len(count), np.bool_)
        several[speaker[lists.times != 1]] = True
        self._field(several, end[several] + 1, np.ones(int(several.sum()), np.int64))
        end = end + (count > 0)
        if several.any():
            each = np.where(several[speaker], 2 * _bits_in(lists.times) - 1, 0)
            upto = np.concatenate([[0], np.cumsum(each)])
            at = np.flatnonzero(each)
            begin = end - upto[lists.cuts[:-1]]
            self._field(speaker[at], upto[at + 1] + begin[speaker[at]], lists.times[at])
            end = end + np.diff(upto[lists.cuts])
        return end, several

    def _field(self, speaker: Any, ends: Ints, values: NDArray[Any]) -> None:
        self._fields.append((speaker, ends, values.astype(np.uint64, copy=False)))

    def write(self, words: _Words, begin: Ints) -> None:
        """Write all fields, of each speaker from a bit on; a word's highest bit is its first."""
        for speaker, ends, values in self._fields:
            last = begin[speaker] + ends - 1
            word, left = last >> 6, (~last & 63).view(np.uint64)
            np.add.at(words, word, values << left)  # no two fields have a bit in common, so a sum is their union
            over = (values >> _ONE) >> (left ^ np.uint64(63))
            np.add.at(words, word - 1, over)  # 0 at the first word, where there is none before


def _steps(keys: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Return, for lists between these places, how many zeros all keys end with, and the low bits of differences."""
    if not len(first):
        return first, first
    together = np.bitwise_or.reduceat(keys, first)
    drop = np.where(together == 0, 62, np.bitwise_count((together & -together) - 1).astype(np.int64))
    low, high = keys[first], keys[last]
    wide = (high >> 1) - (low >> 1) >= HALF
    mean = np.where(wide, 0, (high >> drop) - (low >> drop)) // np.maximum(last - first, 1)
    return drop, np.where(wide, _RAW, np.maximum(_bits_in(mean) - 1, 0))


def _bits_in(values: Ints) -> Ints:
    """Return how many bits numbers >= 0 take."""
    for shift in (1, 2, 4, 8, 16, 32):
        values = values | values >> shift
    return np.bitwise_count(values).astype(np.int64)


def _raw(keys: Ints) -> _Words:
    """Return keys as they are written in 64 bits: the lowest first."""
    return keys.view(np.uint64) ^ (_ONE << np.uint64(63))
