"""The entries that one device has in a run: which it accepts, and how it proves that a device has signed two.

Entries are added and never changed (`entries`). The store does no I/O: `EntryExchange` sends entries, and writes each
to the journal before it adds it here.
"""

from __future__ import annotations

from typing import Any

from conformesh.peer.entries import (
    LONGEST,
    PROOF,
    REASON,
    SLOTS,
    STAGES,
    Seal,
    attach_signature,
    entry_key,
    split_signature,
    text_digest,
)
from conformesh.peer.frames import FrameError, pack_number

# Bytes of all entries that a device keeps: 8 million scores. Where entries are not signed a neighbour may make them up.
MOST_KEPT = 1 << 26
LONGEST_REASON = 1 << 13  # bytes of a reason with its signature: 1000 characters in UTF-8, and room for any signature
# Bytes of a string with its signature: a report of r-dcp with the most bins has less than a quarter of that. Two of
# them are a proof, which must fit into a frame.
LONGEST_SIGNED = 1 << 22
LONGEST_PROOF = 2 * LONGEST_SIGNED + 8  # and the slot, and how long the first one is


class EntryStore:
    """Entries of the devices of a network, by key.

    Attributes
    ----------
    entries
        The bytes of each entry: its text, and its signature if entries are signed.
    keys, unusable
        The keys of the entries that are there, and of those that were refused for good, as sets (`entries`).
    digest
        Of the texts of all strings that are there.
    size
        Bytes of all entries.
    seal
        Signs this device's entries and verifies others; None if nobody signs.
    """

    def __init__(self, devices: int, seal: Seal | None) -> None:
        self._devices, self.seal = devices, seal
        self.clear(b"")

    def clear(self, context: bytes) -> None:
        """Forget all of an earlier run; `context` names the new one in signatures."""
        self.context = context
        self.entries: dict[int, bytes] = {}
        self.size = self.keys = self.unusable = self.digest = 0
        self._digests: dict[int, int] = {}  # of each string

    def is_usable(self, key: int) -> bool:
        """Return whether an entry is there and its owner is not proven to be Byzantine."""
        return key in self.entries and entry_key(key // SLOTS, PROOF) not in self.entries

    @property
    def byzantine(self) -> tuple[int, ...]:
        """Rows of devices that are proven to have signed two different strings."""
        return tuple(k for k in range(self._devices) if entry_key(k, PROOF) in self.entries)

    def text(self, key: int) -> Any:
        """Return an entry without its signature: bytes, or the words of a reason."""
        data = self.entries[key]
        text = data if self.seal is None else split_signature(data)[1]
        return text.decode("utf-8", "replace") if key % SLOTS == REASON else text

    # --- adding -------------------------------------------------------------------------------------------------------

    def put(self, key: int, data: bytes) -> None:
        """Add an entry that was accepted."""
        self.entries[key] = data
        self.size += len(data)
        self.keys |= 1 << key
        owner, slot = divmod(key, SLOTS)
        # The strings of a Byzantine device leave the digest: neighbours may have received different ones, and would
        # clash for ever about entries that do not count any more.
        if slot == PROOF:
            for stage in range(STAGES):
                self.digest ^= self._digests.pop(entry_key(owner, stage), 0)
        elif slot < STAGES and entry_key(owner, PROOF) not in self.entries:
            self._digests[key] = text_digest(key, self.text(key))
            self.digest ^= self._digests[key]

    def drop(self, key: int) -> None:
        """Remove an entry that no honest device can have sent, and never accept it again."""
        self.size -= len(self.entries.pop(key))
        self.keys, self.unusable = self.keys & ~(1 << key), self.unusable | 1 << key

    def make_entry(self, key: int, text: bytes) -> bytes:
        """Return a text of this device as an entry, signed where entries are."""
        return text if self.seal is None else attach_signature(self.seal.sign(self.signed_text(key, text)), text)

    def signed_text(self, key: int, text: bytes) -> bytes:
        """Return what is signed: the entry, its owner and slot, and the whole context of the run.

        The context is the SHA-256 of all that was agreed on (mesh, roster, method, options) and of the run's number.
        The 8 bytes that name a run in frames are too few: another context with the same ones can be searched for.
        """
        return b"conformesh entry" + self.context + pack_number(key) + text

    # --- checks -------------------------------------------------------------------------------------------------------

    def check(self, key: int, data: bytes) -> None:
        """Refuse an entry of another device that is too long, or that its owner has not signed."""
        owner, slot = divmod(key, SLOTS)
        self._check_size(slot, data)  # first: verifying a signature costs time in proportion to the size
        if slot == PROOF:
            self._check_proof(owner, data)
        elif self.seal is not None:
            self._check_signature(key, data)

    def _check_size(self, slot: int, data: bytes) -> None:
        if len(data) > (most := self.longest(slot)):
            what = {REASON: "a reason", PROOF: "a proof"}.get(slot, "an entry")
            raise FrameError(f"{what} of {len(data)} bytes, where {most} are the most")
        if len(data) + self.size > MOST_KEPT:
            raise FrameError(f"an entry for which there is no room: all together may have {MOST_KEPT} bytes")

    def longest(self, slot: int) -> int:
        """Return how many bytes an entry of a slot may have."""
        if slot < STAGES:
            return LONGEST if self.seal is None else LONGEST_SIGNED
        return LONGEST_REASON if slot == REASON else LONGEST_PROOF

    def _check_signature(self, key: int, data: bytes) -> None:
        assert self.seal is not None
        proof, text = split_signature(data)
        if not self.seal.genuine(key // SLOTS, self.signed_text(key, text), proof):
            raise FrameError("an entry that its owner has not signed")

    def _check_proof(self, owner: int, data: bytes) -> None:
        """Refuse what does not prove that a device has signed two different strings."""
        if self.seal is None or not data or data[0] >= STAGES:
            raise FrameError("a proof that proves nothing")
        first, second = split_signature(data[1:])
        key = entry_key(owner, data[0])
        for entry in (first, second):
            self._check_signature(key, entry)
        if split_signature(first)[1] == split_signature(second)[1]:
            raise FrameError("a proof of two entries that are the same")

    def differs(self, key: int, data: bytes) -> bool:
        """Return whether an entry has another text than the one that is there. A signed one must be genuine."""
        if self.seal is None:
            return self.entries[key] != data
        if split_signature(data)[1] == self.text(key):  # the same text, signed twice: some signatures are random
            return False
        # Another text that its owner has not signed proves nothing: the neighbour that sent it may have made it up.
        self._check_size(key % SLOTS, data)
        self._check_signature(key, data)
        return True

    def make_proof(self, key: int, data: bytes) -> bytes:
        """Return the proof that the owner has signed this entry and the one that is there."""
        pair = sorted((self.entries[key], data))  # in one order, so that two devices make the same proof
        proof = bytes([key % SLOTS]) + attach_signature(*pair)
        self._check_size(PROOF, proof)
        return proof
