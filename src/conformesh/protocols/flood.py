"""Flooding: every device learns the strings of all devices, in as many rounds as the diameter.

In the first round a device sends its own string; in each later round it relays those that it received for the first
time in the round before. So in round t + 1 it relays what comes from t hops away, each string once: who sends what, and
when, follows from the map alone.

A device also receives its own entries back from its neighbours. A device that relays a changed entry, the same to all
its neighbours, is therefore noticed by the one that it had the entry from: all copies of an entry must be equal.

Assumes     graph connected, diameter known
Guarantees  the strings of all devices, byte for byte, on every device, in the fewest rounds possible
Message     entries by ascending owner: owner, length (LEB128) and the bytes themselves
Departures  none
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.kernels.bits import Bits, bits_of, marked_columns, row_unions, words_for
from conformesh.kernels.segments import take_segments
from conformesh.kernels.varints import decode_varints, decode_varints_at, encode_varints, varint_lengths
from conformesh.protocols.block import Block
from conformesh.protocols.messages import PacketDeliveries, Packets, Protocol, Silence, Tell

_SHORT = 16  # bytes; entries up to this length are copied as rows of a table, which is faster than slices of any length


def flood_strings(block: Block, mine: Packets, numbers: Ints | None = None) -> Protocol[Packets]:
    """Send the string of every device to all devices.

    Parameters
    ----------
    mine
        The strings of the local devices, in the order of `block.rows`.
    numbers
        How many numbers the string of every device stands for, (devices,) by row: for the ledger. By default the words
        of 64 bits that it fills.

    Returns
    -------
    Packets
        The strings of all devices, by row.
    """
    entries, ears, check = (
        _EntryTable.of(block, mine),
        _Listeners.of(block),
        partial(_check_entries, devices=block.devices),
    )
    news = bits_of(np.arange(len(block.rows)), block.rows, (len(block.rows), words_for(block.devices)))
    known, held = news.copy(), np.zeros(len(news), dtype=np.int64)
    block.progress.heard = "heard", lambda: held
    for left in reversed(range(block.network.diameter)):
        each, owners = np.bitwise_count(news).sum(axis=1, dtype=np.int64), marked_columns(news)
        speakers = np.flatnonzero(each)
        ends = np.cumsum(each[speakers])
        held += each
        complete = speakers[held[speakers] == block.devices]  # they have all entries, so they will send nothing more
        quiet = Silence(complete, np.full(len(complete), left))
        many = _sum_numbers(entries.words if numbers is None else numbers, owners, ends)
        told: PacketDeliveries = yield Tell(entries.told(owners, ends), speakers, many, check, quiet)
        news = ears.heard(news, entries.from_elsewhere(told, ears, block)) & ~known
        known |= news
    return entries.all_of(block, known)


def flood_numbers(block: Block, mine: NDArray[np.integer]) -> Protocol[Ints]:
    """Send each device's row of whole numbers >= 0 to all devices; (devices here, ...) in, all rows out."""
    each = int(np.prod(mine.shape[1:], dtype=np.int64))
    strings = _encode_rows(mine.reshape(len(mine), each).astype(np.int64))
    found = yield from flood_strings(block, strings, np.full(block.devices, each))
    counted = np.diff(np.append(0, np.cumsum(found.values < 128))[found.offsets])  # the last byte of a LEB128 number
    if (counted != each).any():
        owner = int(np.argmax(counted != each))
        raise ValueError(
            f"{each} numbers of device {block.network.ids[owner]} should have come, and {counted[owner]} did; run the "
            "same version of conformesh on every device, and look whether this one can be trusted"
        )
    return decode_varints(found.values).reshape(block.devices, *mine.shape[1:])


def _encode_rows(table: Ints) -> Packets:
    """Return every row of whole numbers as a string."""
    ends = np.cumsum(varint_lengths(table).sum(axis=1))
    return Packets(encode_varints(table.ravel()), np.concatenate([[0], ends]))


def _sum_numbers(numbers: Ints, owners: Ints, ends: Ints) -> Ints:
    """Return how many numbers the owners up to each end stand for."""
    if (numbers == numbers[0]).all():
        return np.asarray(numbers[0] * np.diff(ends, prepend=0))
    total = np.cumsum(numbers[owners])
    return np.diff(total[ends - 1], prepend=0) if len(ends) else ends


@dataclass(frozen=True, eq=False)
class _Listeners:
    """The senders that local devices receive from: compressed rows into local devices and, behind them, `ghosts`.

    Ghosts are neighbours that are hosted elsewhere.
    """

    ghosts: Ints
    starts: Ints
    columns: Ints

    @classmethod
    def of(cls, block: Block) -> _Listeners:
        senders = block.network.indices[block.edge_rows].astype(np.int64)
        place = np.full(block.devices, -1, dtype=np.int64)
        place[block.rows] = np.arange(len(block.rows))
        # Without an index np.unique would load numpy.ma, which a device needs for nothing else.
        ghosts = np.unique(senders[place[senders] < 0], return_index=True)[0]
        place[ghosts] = len(block.rows) + np.arange(len(ghosts))
        degree = block.network.degree[block.rows]
        return cls(ghosts, np.cumsum(degree) - degree, place[senders])

    def heard(self, here: Bits, elsewhere: Bits) -> Bits:
        """Return the entries that every local device receives when all send what they mark."""
        return row_unions(np.concatenate([here, elsewhere]), self.columns, self.starts)


# --- the entries ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _EntryTable:
    """All entries that any local device has received, one after the other; `place` has the index of each owner's."""

    values: NDArray[np.uint8]
    offsets: Ints
    bodies: Ints  # where the string itself begins
    place: Ints

    @classmethod
    def of(cls, block: Block, mine: Packets) -> _EntryTable:
        sizes = np.diff(mine.offsets)
        heads = _encode_rows(np.stack([block.rows, sizes], axis=1))
        both = Packets(
            np.concatenate([heads.values, mine.values]),
            np.concatenate([heads.offsets, heads.offsets[-1] + mine.offsets[1:]]),
        )
        each = np.arange(len(mine))
        entries = both.take(np.stack([each, len(mine) + each], axis=1).ravel())
        place = np.full(block.devices, -1, dtype=np.int64)
        place[block.rows] = each
        return cls(entries.values, entries.offsets[::2], entries.offsets[1::2], place)

    @property
    def words(self) -> Ints:
        """How many words of 64 bits the string of every device fills, (devices,); 0 where it is not known yet."""
        known, out = self.place >= 0, np.zeros(len(self.place), dtype=np.int64)
        sizes = (self.offsets[1:] - self.bodies)[self.place[known]]
        out[known] = -(-sizes // 8)
        return out

    def told(self, owners: Ints, ends: Ints) -> Packets:
        """Return the entries of these owners, joined to one string up to each end."""
        places, sizes = self.place[owners], np.diff(self.offsets)
        taken = np.concatenate([[0], np.cumsum(sizes[places])[ends - 1]])
        longest = int(sizes.max())
        if longest > _SHORT:
            return Packets(take_segments(self.values, self.offsets, places)[0], taken)
        table = np.zeros((len(sizes), longest), dtype=np.uint8)  # short ones: whole rows, then what of them is filled
        filled = np.arange(longest) < sizes[:, None]
        table[filled] = self.values
        return Packets(table[places][filled[places]], taken)

    def from_elsewhere(self, told: PacketDeliveries, ears: _Listeners, block: Block) -> Bits:
        """Store new entries from ghosts; return which ghost sent which. Entries of local devices are stored already."""
        shape = len(ears.ghosts), words_for(len(self.place))
        if not len(ears.ghosts):
            return np.zeros(shape, dtype="<u8")
        sender, first = np.unique(told.sender, return_index=True)
        chosen = np.isin(sender, ears.ghosts)
        sender, packets = sender[chosen], told.packets.take(first[chosen])
        said, owner, start, body, stop = _parse_entries(packets, sender, len(self.place), told.round)
        row = np.searchsorted(ears.ghosts, sender[said])
        new, at = np.unique(owner, return_index=True)
        at = at[self.place[new] < 0]
        self._keep(owner[at], packets.values, start[at], body[at], stop[at])
        same = self._are_known(owner, packets.values, start, stop)
        if not same.all():
            wrong = int(np.argmin(same))
            speaker, of = (block.network.ids[row] for row in (sender[said[wrong]], owner[wrong]))
            raise ValueError(
                f"round {told.round}: device {speaker} says something else of device {of} than was heard before: this "
                "one, or one of those in between, says what is not so; look whether they can be trusted"
            )
        return bits_of(row, owner, shape)

    def _are_known(self, owners: Ints, values: NDArray[np.uint8], start: Ints, stop: Ints) -> NDArray[np.bool_]:
        """Mark the entries that are equal, byte for byte, to the stored ones of their owners."""
        known, sizes = self.offsets[self.place[owners]], stop - start
        same = np.asarray(self.offsets[self.place[owners] + 1] - known == sizes)
        at = np.flatnonzero(same)
        each = np.repeat(at, sizes[at])
        within = np.arange(len(each)) - np.repeat(np.cumsum(sizes[at]) - sizes[at], sizes[at])
        same[each[values[start[each] + within] != self.values[known[each] + within]]] = False
        return same

    def _keep(self, owners: Ints, values: NDArray[np.uint8], start: Ints, body: Ints, stop: Ints) -> None:
        sizes, end = stop - start, self.offsets[-1]
        within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self.values = np.concatenate([self.values, values[np.repeat(start, sizes) + within]])
        ends = end + np.cumsum(sizes)
        self.place[owners] = len(self.offsets) - 1 + np.arange(len(owners))
        self.bodies = np.concatenate([self.bodies, ends - (stop - body)])
        self.offsets = np.concatenate([self.offsets, ends])

    def all_of(self, block: Block, known: Bits) -> Packets:
        """Return the strings of all devices, by row; every local device must have received all."""
        everyone = np.arange(block.devices)
        missing = bits_of(0 * everyone, everyone, (1, known.shape[1])) & ~known
        if missing.any():
            k = int(np.argmax(missing.any(axis=1)))
            owner = int(marked_columns(missing[k : k + 1])[0])
            raise ValueError(
                f"device {int(block.rows[k])} has heard nothing of device {owner} in as many rounds as the diameter, "
                f"{block.network.diameter}; check that all have the same map"
            )
        ends = np.stack([self.bodies[self.place], self.offsets[self.place + 1]], axis=1).ravel()
        order = 2 * np.arange(block.devices)
        sizes = np.diff(ends)[order]
        within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return Packets(self.values[np.repeat(ends[order], sizes) + within], np.concatenate([[0], np.cumsum(sizes)]))


def _check_entries(said: bytes, devices: int) -> None:
    """Raise `ValueError` for bytes that are not entries."""
    _parse_entries(Packets.of([said]), np.zeros(1, dtype=np.int64), devices, 0)


def _parse_entries(packets: Packets, senders: Ints, devices: int, round_: int) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return the entries of all strings: index of the string, owner, start of entry and of its bytes, and end.

    Vectorised over strings: first the first entry of each, then the second ones, and so on.
    """
    found: list[tuple[Ints, ...]] = []
    which = np.flatnonzero(np.diff(packets.offsets))
    start = packets.offsets[which]
    while len(which):
        ends = packets.offsets[which + 1]
        try:
            owner, behind = decode_varints_at(packets.values, start, ends)
            length, body = decode_varints_at(packets.values, behind, ends)
            stop = body + length
            if (owner >= devices).any() or (length > ends - body).any():
                raise ValueError(f"an owner must be one of {devices} devices, and its bytes must all be there")
        except ValueError as problem:
            said = ", ".join(map(str, senders[which][:5].tolist()))
            raise ValueError(f"round {round_}: one of devices {said} passed on what is no entry: {problem}") from None
        found.append((which, owner, start, body, stop))
        more = stop < ends
        which, start = which[more], stop[more]
    if not found:
        return tuple(np.empty(0, dtype=np.int64) for _ in range(5))  # type: ignore[return-value]
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))  # type: ignore[return-value]
