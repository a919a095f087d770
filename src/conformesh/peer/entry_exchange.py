"""What devices without rounds do with entries: say them, repeat them, keep them, and find out who has signed two.

`AsyncDevice` adds what follows from the entries, and the runs. Every frame says which entries its sender has; what a
neighbour last said counts, and a neighbour is sent what it does not have.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformesh.peer.entries import (
    LONGEST,
    PROOF,
    REASON,
    SLOTS,
    STAGES,
    Entries,
    Seal,
    in_order,
    key_of,
    keys_of,
    pack_shelf,
    sealed,
    text_digest,
    unpack_shelf,
    unsealed,
)
from conformesh.peer.frames import ENTRIES, HELLO, WANT, Frame, FrameError, pack_number
from conformesh.peer.json_bodies import Hello, differences, in_a_line
from conformesh.peer.links import Linked
from conformesh.peer.timers import Waiting
from conformesh.results.certificate import Cost

MOST_CLASHES = 8  # runs that a device asks for because others have heard other words
# Bytes of all entries that a device keeps: 8 million scores. Where entries are not signed a neighbour may make them up.
MOST_KEPT = 1 << 26
LONGEST_REASON = 1 << 13  # bytes of a reason with its signature
# Bytes of a string with its signature: a report of r-dcp with the most bins has less than a quarter of that. Two of
# them are a proof, which must fit into a frame.
LONGEST_SIGNED = 1 << 22
LONGEST_PROOF = 2 * LONGEST_SIGNED + 8  # and the slot, and how long the first one is
AT_ONCE = 1 << 18  # bytes of entries in one frame: a slow link is not filled with what may be known by then


class PeerSpreading(Linked):
    """The entries of a device and of its neighbours; the parameters are those of `AsyncDevice`."""

    def __init__(self, *parts: Any, seal: Seal | None = None, **named: Any) -> None:
        super().__init__(*parts, **named)
        self.agreement["mode"] = "anytime"  # apart from devices in rounds
        self.seal = seal
        self.unlike: dict[int, str] = {}  # what neighbours do not agree on with this device, in words
        self._on = {HELLO: self._on_hello, ENTRIES: self._on_entries}
        self._waits = {j: Waiting(self.settings.retry, self.settings.linger) for j in self._linked}
        self._clashes = 0
        self._numbers = self._bits = 0  # sent in entries, once for all neighbours as everywhere
        self._compared = keys_of(self.full.devices, [*range(STAGES), PROOF])
        self._news_at = 0.0
        self._clear_entries()

    def _clear_entries(self) -> None:
        """Forget all of an earlier run."""
        self._greeting = Hello(self.agreement, self.number, frozenset())
        self.run = self._greeting.digest()
        self._entries: dict[int, bytes] = {}
        self._size = 0  # bytes of all of them
        self._keys, self._bad, self._said = 0, 0, 0  # which are there; of no use; sent to anybody
        self._digest, self._digests = 0, dict[int, int]()  # of all strings that are there, and of each
        self._dirty = True  # whether there is more than the last result knows of
        for wait in self._waits.values():
            wait.clear()

    @abstractmethod
    def _move(self, number: int) -> None:
        """Leave the run for a later one."""

    @abstractmethod
    def _join(self, number: int) -> None:
        """Leave the run for a later one in which a neighbour is."""

    @abstractmethod
    def _heard_keys(self, sender: int, keys: int) -> None:
        """Note which entries of this run a neighbour has."""

    # --- what is known of the others ----------------------------------------------------------------------------------

    @property
    def survivors(self) -> tuple[int, ...]:
        """Rows of the devices that were heard."""
        return tuple(k for k in range(self.full.devices) if self._usable(key_of(k, 0)))

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Rows of the neighbours."""
        return tuple(self._linked)

    @property
    def reasons(self) -> dict[int, str]:
        """Why devices that were not heard cannot take part, by row, as far as they have said so."""
        keys = {k: key_of(k, REASON) for k in range(self.full.devices) if not self._usable(key_of(k, 0))}
        return {k: in_a_line(self._text(key)) for k, key in keys.items() if key in self._entries}

    @property
    def byzantine(self) -> tuple[int, ...]:
        """Rows of devices that are proven to have signed two different strings."""
        return tuple(k for k in range(self.full.devices) if key_of(k, PROOF) in self._entries)

    @property
    def cost(self) -> Cost:
        """What this device has sent in entries, each counted once, to however many neighbours it went."""
        return Cost(0, np.array([float(self._numbers)]), np.array([float(self._bits)]))

    def _usable(self, key: int) -> bool:
        return key in self._entries and key_of(key // SLOTS, PROOF) not in self._entries

    # --- frames -------------------------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        if frame.kind not in self._on:
            raise FrameError("a frame of a device in rounds, and this one has none")
        self._on[frame.kind](frame)

    def _on_hello(self, frame: Frame) -> None:
        theirs = Hello.of(frame.body, self.full.devices)
        if theirs.agreement != self.agreement:
            self._differ(frame, theirs.agreement)
            return
        self.unlike.pop(frame.sender, None)
        run = self._bounded(frame.sender, theirs.run)
        if theirs.run > self.number:
            if not self._may_follow:
                return  # its next frame is of another run for this device, which then greets it
            self._followed_at = self.now
            self._join(run)
        elif theirs.run < self.number:
            self._send(frame.sender, self._hello())
            return
        self._waits[frame.sender].answer = True

    def _differ(self, frame: Frame, theirs: Mapping[str, str]) -> None:
        if frame.wants:
            self._send(frame.sender, self._hello())
        words = differences(self.agreement, theirs, self._name(self.row), self._name(frame.sender))
        if self.unlike.get(frame.sender) != words:
            self.unlike[frame.sender] = words
            self.log(f"{self._name(frame.sender)} does not agree: {words}; it is not listened to")
        raise FrameError("a hello of a device that does not agree")

    def _on_entries(self, frame: Frame) -> None:
        wait = self._waits[frame.sender]
        if frame.run != self.run:
            if wait.may_greet(self.now):
                self._send(frame.sender, self._hello(WANT))
            raise FrameError("a frame of another run")
        keys, digest, entries = unpack_shelf(frame.body, self.full.devices)
        wait.heard(keys, self.now)
        self._heard_keys(frame.sender, keys)
        if frame.run != self.run:
            return
        wait.answer |= frame.wants or bool(entries)
        for key, data in entries:
            self._learn(key, data, frame.sender)
            if frame.run != self.run:  # what was learnt has begun another run
                return
        if (keys ^ (self._keys | self._bad)) & self._compared == 0 and digest != self._digest:
            self._clash(frame.sender)

    def _hello(self, flags: int = 0) -> Frame:
        return Frame(HELLO, 0, self.row, 0, flags, self._greeting.pack())

    def _tell(self, j: int, wait: Waiting, entries: Entries) -> None:
        wants = 0 if entries or wait.answer else WANT  # entries are answered anyway, and an answer never is
        body = pack_shelf(self.full.devices, self._keys | self._bad, self._digest, entries)
        for key, data in entries:
            if not self._said >> key & 1:
                self._said |= 1 << key
                self._numbers += -(-len(data) // 8)
                self._bits += 8 * len(data)
        self._send(j, Frame(ENTRIES, self.run, self.row, 0, wants, body))
        self.counts.resent += wait.sent([key for key, _ in entries], self.now)

    def _due(self, wait: Waiting) -> Entries:
        """Return what a neighbour lacks and was not sent lately: up to `AT_ONCE` bytes, or one larger entry."""
        entries: Entries = []
        size = 0
        for key in in_order(self._keys & ~wait.has):
            length = len(self._entries[key])
            if wait.is_due(key, self.now) and (not entries or size + length <= AT_ONCE):
                entries.append((key, self._entries[key]))
                size += length
        return entries

    # --- entries ------------------------------------------------------------------------------------------------------

    def _learn(self, key: int, data: bytes, sender: int) -> None:
        """Keep an entry that is new, and find out who has signed two."""
        owner, slot = divmod(key, SLOTS)
        if (self._keys | self._bad) >> key & 1:
            if slot < STAGES and self._entries.get(key, data) != data:
                self._conflict(key, data, sender)
            return
        self._check_size(slot, data)
        if slot == PROOF:
            self._check_proof(owner, data)
        elif self.seal is not None:
            self._check_signature(key, data)
        self._keep(key, data)

    def _check_size(self, slot: int, data: bytes) -> None:
        """Refuse an entry that would take too much memory, before it is looked at."""
        if len(data) > (most := self._longest(slot)):
            what = {REASON: "a reason", PROOF: "a proof"}.get(slot, "an entry")
            raise FrameError(f"{what} of {len(data)} bytes, where {most} are the most")
        if len(data) + self._size > MOST_KEPT:
            raise FrameError(f"an entry for which there is no room: all together may have {MOST_KEPT} bytes")

    def _longest(self, slot: int) -> int:
        """Return how many bytes an entry of a slot may have."""
        if slot < STAGES:
            return LONGEST if self.seal is None else LONGEST_SIGNED
        return LONGEST_REASON if slot == REASON else LONGEST_PROOF

    def _keep(self, key: int, data: bytes) -> None:
        """Add an entry; it is in the journal before anybody is told that it is known here."""
        self.journal.append(pack_number(key) + data)
        self._put(key, data)
        self._dirty, self._news_at = True, self.now
        for wait in self._waits.values():
            wait.news()

    def _put(self, key: int, data: bytes) -> None:
        self._entries[key] = data
        self._size += len(data)
        self._keys |= 1 << key
        owner, slot = divmod(key, SLOTS)
        if slot == PROOF:  # what it said is not compared any more
            for stage in range(STAGES):
                self._digest ^= self._digests.pop(key_of(owner, stage), 0)
        elif slot < STAGES and key_of(owner, PROOF) not in self._entries:
            self._digests[key] = text_digest(key, self._text(key))
            self._digest ^= self._digests[key]

    def _say(self, key: int, text: bytes) -> None:
        """Add an entry of this device's own."""
        if self._keys >> key & 1:
            return
        entry = self._entry(key, text)
        if len(entry) > (most := self._longest(key % SLOTS)):
            raise ValueError(
                f"the entry of this device would have {len(entry):,} bytes, and the others accept at most {most:,}; "
                "use fewer scores or fewer bins"
            )
        self._keep(key, entry)

    def _entry(self, key: int, text: bytes) -> bytes:
        """Return a text as an entry, signed where entries are."""
        return text if self.seal is None else sealed(self.seal.sign(self._signed_text(key, text)), text)

    def _text(self, key: int) -> Any:
        data = self._entries[key]
        text = data if self.seal is None else unsealed(data)[1]
        return text.decode("utf-8", "replace") if key % SLOTS == REASON else text

    def _signed_text(self, key: int, text: bytes) -> bytes:
        """Return what is signed: the entry, its owner and slot, and the whole context of the run.

        The context is the SHA-256 of all that was agreed on (mesh, roster, method, options) and of the run's number.
        The 8 bytes that name a run in frames are too few: another context with the same ones can be searched for.
        """
        return b"conformesh entry" + self._greeting.context() + pack_number(key) + text

    def _check_signature(self, key: int, data: bytes) -> None:
        assert self.seal is not None
        proof, text = unsealed(data)
        if not self.seal.genuine(key // SLOTS, self._signed_text(key, text), proof):
            raise FrameError("an entry that its owner has not signed")

    def _conflict(self, key: int, data: bytes, sender: int) -> None:
        """Note that there are two entries where one can be: a proof, where they are signed."""
        if self.seal is None:
            self._clash(sender)
            return
        if unsealed(data)[1] == self._text(key):  # signed twice
            return
        owner, slot = divmod(key, SLOTS)
        self._check_size(slot, data)
        self._check_signature(key, data)
        if owner == self.row:
            self._clash(sender)
        elif key_of(owner, PROOF) not in self._entries:
            first, second = sorted((self._entries[key], data))
            proof = bytes([slot]) + sealed(first, second)
            self._check_size(PROOF, proof)
            self._keep(key_of(owner, PROOF), proof)
            self.log(f"{self._name(owner)} has signed two different entries: it is proven to lie")

    def _clash(self, sender: int) -> None:
        """Note that a neighbour has other words in the same entries: ask for a new run, or find out who lies."""
        if self.seal is not None:
            self._waits[sender].forget(self.now)  # all is sent again, and who signed two entries is found
            return
        self._clashes += 1
        if self._clashes > MOST_CLASHES:
            raise FrameError("entries that say something else than was heard before, in run after run")
        self.log(f"{self._name(sender)} has heard other words in the same entries: asking for a new run")
        self._move(self.number + 1)

    def _check_proof(self, owner: int, data: bytes) -> None:
        """Refuse what does not prove that a device has signed two different strings."""
        if self.seal is None or not data or data[0] >= STAGES:
            raise FrameError("a proof that proves nothing")
        first, second = unsealed(data[1:])
        key = key_of(owner, data[0])
        for entry in (first, second):
            self._check_signature(key, entry)
        if unsealed(first)[1] == unsealed(second)[1]:
            raise FrameError("a proof of two entries that are the same")
