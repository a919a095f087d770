"""Entries: the strings that devices in asynchronous mode exchange. They are added and never changed.

Each device owns a few slots. The first ones are for its strings, one for each question that its protocol asks of all
devices; then one for a reason, if it cannot take part; then one for a proof that it has signed two different strings.
The key of an entry is its owner's row times the number of slots plus the slot, and a set of keys travels as one whole
number with a bit for each.

The body of a frame of entries: the keys that its sender has, ``(4 K + 7) // 8`` bytes for K devices, the lowest first;
8 bytes of a digest, which shows whether two devices with the same keys have the same strings; then any number of
entries, each with its key and its length (7 bits a byte, the lowest first) before its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Protocol

from conformesh.peer.frames import RUN, FrameError, pack_number, unpack_number

STAGES = 2  # questions that a protocol may ask of all devices: part of the wire format, since keys depend on it
REASON, PROOF = STAGES, STAGES + 1
SLOTS = STAGES + 2
LONGEST = 1 << 24  # bytes of an entry: 2 million scores; with its key it must fit into a frame, see `frames.LARGEST`
Entries = list[tuple[int, bytes]]


def entry_key(owner: int, slot: int) -> int:
    """Return the key of a slot."""
    return owner * SLOTS + slot


def entry_key_set(devices: int, slots: Iterable[int]) -> int:
    """Return the keys of these slots of all devices, as a set.

    >>> entry_key_set(2, [0]) == 1 | 1 << SLOTS
    True
    """
    one = sum(1 << slot for slot in slots)
    return sum(one << owner * SLOTS for owner in range(devices))


def ascending_keys(keys: int) -> Iterator[int]:
    """Yield the keys of a set, ascending."""
    while keys:
        low = keys & -keys
        yield low.bit_length() - 1
        keys ^= low


def text_digest(key: int, text: bytes) -> int:
    """Return what a string adds to the digest of all, by exclusive or: they may arrive in any order."""
    return int.from_bytes(hashlib.blake2b(pack_number(key) + text, digest_size=RUN.size).digest(), "little")


def pack_entries(devices: int, keys: int, digest: int, entries: Entries) -> bytes:
    """Return the body of a frame."""
    parts = [keys.to_bytes((SLOTS * devices + 7) // 8, "little"), RUN.pack(digest)]
    for key, data in entries:
        parts += [pack_number(key), pack_number(len(data)), data]
    return b"".join(parts)


def unpack_entries(body: bytes, devices: int) -> tuple[int, int, Entries]:
    """Return the keys that the sender of a body has, the digest of its strings, and the entries.

    The body may be any bytes: every length is compared with the bytes that are there before it is used.
    """
    size, end = (SLOTS * devices + 7) // 8, len(body)
    at = size + RUN.size
    if end < at:
        raise FrameError(f"a body of entries has at least {at} bytes for {devices} devices, got {end}")
    keys = int.from_bytes(body[:size], "little")
    if keys >> SLOTS * devices:
        raise FrameError("entries of a device outside the roster")
    (digest,) = RUN.unpack_from(body, size)
    entries = []
    while at < end:
        key, at = unpack_number(body, at, end)
        if key >= SLOTS * devices or at >= end:
            raise FrameError("an entry of a device outside the roster, or without a length")
        size, at = unpack_number(body, at, end)
        if size > min(LONGEST, end - at):
            raise FrameError(f"an entry of {size} bytes, of which {end - at} are there")
        entries.append((key, body[at : at + size]))
        at += size
    return keys, digest, entries


class Seal(Protocol):
    """Signs entries and verifies signatures; on a mesh with the key of a certificate."""

    def sign(self, data: bytes) -> bytes:
        """Return this device's signature of these bytes."""

    def genuine(self, owner: int, data: bytes, proof: bytes) -> bool:
        """Return whether the device of a row has signed these bytes."""


def attach_signature(proof: bytes, text: bytes) -> bytes:
    """Return an entry with its signature in front."""
    return pack_number(len(proof)) + proof + text


def split_signature(entry: bytes) -> tuple[bytes, bytes]:
    """Return the signature and the text of an entry."""
    if not entry:
        raise FrameError("an entry without a signature")
    size, at = unpack_number(entry, 0, len(entry))
    if size > len(entry) - at:
        raise FrameError("an entry that ends inside its signature")
    return entry[at : at + size], entry[at + size :]
