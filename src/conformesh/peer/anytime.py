"""A device without rounds: it says what it has, hears what there is, and holds a certified threshold at every moment.

Entries only grow (`shelf`). A device sends a neighbour what that one is not known to have, again and again until the
neighbour says that it has it; every frame says what its sender has. What arrives in any order, twice or late is kept or
known already, and a neighbour that is slow, away or gone holds nobody up.

Speaking    whenever something is new for a neighbour, at once; what was not answered again, after about the time that
            an answer takes, and more and more seldom while nothing comes back
Knowing     what a neighbour last said that it has counts, and no more: a device that has forgotten something says so by
            not naming it, and gets it again
Result      the protocol runs from the beginning on whatever was heard; its last answer is the result. When all entries
            were there it is the final one, the same everywhere
Runs        numbered. A greater number ends a smaller one. Who starts with other scores than the journal knows of asks
            for a greater one; so do two devices that have the same entries and not the same words in them, because
            somebody has lost its journal and its scores have changed
Reasons     a device that cannot take part says why, in an entry of its own, and passes on what the others say
Liars       with a seal, what a device has not signed is refused, and two different signed entries of one device are a
            proof that everybody gets: it counts as not heard from then on

Disagreement ends nothing here: a neighbour with other settings is told so, and is not listened to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.peer.frames import ENTRIES, HELLO, RUN, WANT, Frame, FrameError, pack_number, unpack_number
from conformesh.peer.linked import Linked, Make
from conformesh.peer.memory import Heading
from conformesh.peer.settings import PeerError
from conformesh.peer.shelf import (
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
from conformesh.peer.waiting import Waiting
from conformesh.peer.words import Hello, differences, in_a_line
from conformesh.protocols.messages import Gather, Gathered, Packets
from conformesh.result.certificate import Cost

MOST_CLASHES = 8  # runs that a device asks for because others have heard other words
AT_ONCE = 1 << 18  # bytes of entries in one frame: a slow link is not filled with what may be known by then


class Anytime(Linked):
    """One device of a mesh without rounds.

    Parameters
    ----------
    *parts, **named
        As in `Linked`; the protocol that `make` makes asks nothing but `Gather`.
    seal
        Signs this device's entries, and tells whether others were signed by their owners; None: nobody signs.
    """

    def __init__(self, *parts: Any, seal: Seal | None = None, **named: Any) -> None:
        super().__init__(*parts, **named)
        self.agreement["mode"] = "anytime"  # apart from devices in rounds
        self.seal = seal
        self.unlike: dict[int, str] = {}  # what neighbours do not agree on with this device, in words
        self._on = {HELLO: self._on_hello, ENTRIES: self._on_entries}
        self._waits = {j: Waiting(self.settings.retry, self.settings.linger) for j in self._linked}
        self._new: tuple[Make, str] | None = None
        self._asked, self._begun_at, self._clashes = False, 0.0, 0
        self._reason = ""
        self._numbers = self._bits = 0  # sent in entries, once for all neighbours as everywhere
        self._of_slot = keys_of(self.full.devices, [0])  # of the first; of others it is moved by as many bits
        self._compared = keys_of(self.full.devices, [*range(STAGES), PROOF])
        self._clear()

    def _clear(self) -> None:
        """Forget all of an earlier run."""
        self._greeting = Hello(self.agreement, self.number, frozenset(), self.rosters.floor)
        self.run = self._greeting.digest()
        self.phase = "running"
        self._entries: dict[int, bytes] = {}
        self._keys, self._bad, self._said = 0, 0, 0  # which are there; of no use; sent to anybody
        self._digest, self._digests = 0, dict[int, int]()  # of all strings that are there, and of each
        self._checked = 0  # which could be said
        self._stages = 1  # that the protocol is known to ask
        self._result: Any = None
        self._dirty, self._final = True, False
        self._news_at = self._evaluated = self._begun_at = self.now
        for wait in self._waits.values():
            wait.clear()

    # --- what an engine calls -----------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin, or go on where the journal ends."""
        self.now = now
        try:
            self._news_at = self._begun_at = now
            self._recall()
            self._begin()
            for wait in self._waits.values():
                wait.answer = True  # whoever is there hears that this device is, too
        except Exception as error:
            self._break(error)

    def tick(self, now: float) -> None:
        """Notice that time has passed: repeat what may be lost, begin a run that was asked for."""
        self.now = max(self.now, now)
        try:
            if self.rosters.moving:
                if self.now >= self._next:
                    self._hand_on()
                return
            if self._asked and self.now >= self._begun_at + self.settings.linger:
                self._move(self.number + 1)
            if self._dirty and self.phase != "failed" and self.now >= self._evaluated + self.settings.retry:
                self._evaluate()
        except Exception as error:
            self._break(error)

    def outbox(self) -> list[tuple[int, bytes]]:
        """Return what to send: to every neighbour what it is not known to have, and what this device has."""
        try:
            if self._dirty and self.phase != "failed" and self._has_stage and not self.rosters.moving:
                self._evaluate()
            for j, wait in self._waits.items():
                if self.rosters.moving or not wait.may_speak(self.now):
                    continue
                entries = self._due(wait)
                if entries or wait.answer or wait.pokes(self.now, self._final):
                    self._tell(j, wait, entries)
        except Exception as error:
            self._break(error)
        return super().outbox()

    @property
    def wake(self) -> float:
        """When the device wants to be ticked again at the latest."""
        if self.rosters.moving:
            return self._next
        waits = [wait.next(self._keys & ~wait.has, self._final) for wait in self._waits.values()]
        if self._asked:
            waits.append(self._begun_at + self.settings.linger)
        if self._dirty and self.phase != "failed":
            waits.append(self._evaluated + self.settings.retry)
        if not self.over:
            waits.append(self.now + self.settings.linger)
        return min(waits, default=self.now + self.settings.linger)

    @property
    def over(self) -> bool:
        """Whether nothing is left to do: all is known to all neighbours, or nothing new came for as long as patience.

        A device that goes on serving stays all the same, and goes on hearing.
        """
        if self.rosters.moving:
            return self.handed
        if self._asked:
            return False
        strings = self._all_strings
        if self._final and all(wait.has & strings == strings for wait in self._waits.values()):
            return self.now >= max((wait.rest for wait in self._waits.values()), default=0.0)
        return self.now >= self._news_at + self.settings.patience

    @property
    def result(self) -> Any:
        """What the protocol makes of all that was heard so far; None where it cannot take part."""
        if self._dirty and self.phase != "failed":
            try:
                self._evaluate()
            except Exception as error:
                self._break(error)
        return self._result

    @property
    def final(self) -> bool:
        """Whether everybody was heard, so that the result does not change any more."""
        return self._final

    @property
    def survivors(self) -> tuple[int, ...]:
        """Rows of the devices that were heard."""
        return tuple(k for k in range(self.full.devices) if self._usable(key_of(k, 0)))

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Rows of the neighbours."""
        return tuple(self._linked)

    @property
    def missing(self) -> int:
        """How many frames are worth waiting for: any."""
        return 1

    @property
    def reasons(self) -> dict[int, str]:
        """Why devices that were not heard cannot take part, by row, as far as they have said so."""
        keys = {k: key_of(k, REASON) for k in range(self.full.devices) if not self._usable(key_of(k, 0))}
        return {k: in_a_line(self._text(key)) for k, key in keys.items() if key in self._entries}

    @property
    def liars(self) -> tuple[int, ...]:
        """Rows of devices that are proven to have signed two different strings."""
        return tuple(k for k in range(self.full.devices) if key_of(k, PROOF) in self._entries)

    @property
    def cost(self) -> Cost:
        """What this device has sent in entries, each counted once, to however many neighbours it went."""
        return Cost(0, np.array([float(self._numbers)]), np.array([float(self._bits)]))

    def recalibrate(self, now: float, make: Make | None = None, scores: str = "") -> None:
        """Ask everybody for one more run, of other scores if `make` and their digest are given.

        However often this is called, a run begins at most every `linger` seconds.
        """
        self.now = max(self.now, now)
        if make is not None:
            self._new = make, scores
        self._asked = True
        self.tick(now)

    def refuse(self, reason: str, now: float) -> None:
        """Take no part for a reason of this device's own, tell it to everybody, and pass on what the others say."""
        self.now = max(self.now, now)
        self._reason = in_a_line(f"{self._name(self.row)} cannot take part: {reason}")
        self.error = PeerError(self._reason)
        self.log(self._reason)
        if self._entries:  # it has begun
            self._begin()

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
        if theirs.run > self.number:
            self._move(theirs.run)
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
        wait.answer |= frame.wants or bool(entries)
        for key, data in entries:
            self._learn(key, data, frame.sender)
            if frame.run != self.run:  # what was learnt has begun another run
                return
        if (keys ^ (self._keys | self._bad)) & self._compared == 0 and digest != self._digest:
            self._clash(frame.sender)

    def _hello(self, flags: int = 0) -> Frame:
        self._greeting = self._greeting._replace(floor=self.rosters.floor)
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
        """Return what a neighbour is not known to have and was not sent lately, as much as fits a frame."""
        entries, size = [], 0
        for key in in_order(self._keys & ~wait.has):
            if wait.is_due(key, self.now) and size < AT_ONCE:
                entries.append((key, self._entries[key]))
                size += len(self._entries[key])
        return entries

    # --- entries ------------------------------------------------------------------------------------------------------

    def _learn(self, key: int, data: bytes, sender: int) -> None:
        """Keep an entry that is new, and find out who has signed two."""
        owner, slot = divmod(key, SLOTS)
        if (self._keys | self._bad) >> key & 1:
            if slot < STAGES and self._entries.get(key, data) != data:
                self._conflict(key, data, sender)
            return
        if slot == PROOF:
            self._check_proof(owner, data)
        elif self.seal is not None:
            self._check_signature(key, data)
        self._keep(key, data)

    def _keep(self, key: int, data: bytes) -> None:
        """Add an entry; it is in the journal before anybody is told that it is known here."""
        self.journal.append(pack_number(key) + data)
        self._put(key, data)
        self._dirty, self._news_at = True, self.now
        for wait in self._waits.values():
            wait.news()

    def _put(self, key: int, data: bytes) -> None:
        self._entries[key] = data
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
        if not self._keys >> key & 1:
            data = text if self.seal is None else sealed(self.seal.sign(self._signed_text(key, text)), text)
            self._keep(key, data)

    def _text(self, key: int) -> Any:
        data = self._entries[key]
        text = data if self.seal is None else unsealed(data)[1]
        return text.decode("utf-8", "replace") if key % SLOTS == REASON else text

    def _signed_text(self, key: int, text: bytes) -> bytes:
        """Return what is signed: the entry with its place, of this run and no other."""
        return b"conformesh entry" + RUN.pack(self.run) + pack_number(key) + text

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
        self._check_signature(key, data)
        owner, slot = divmod(key, SLOTS)
        if owner == self.row:
            self._clash(sender)
        elif key_of(owner, PROOF) not in self._entries:
            first, second = sorted((self._entries[key], data))
            self._keep(key_of(owner, PROOF), bytes([slot]) + sealed(first, second))
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

    # --- the result ---------------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Run the protocol on what was heard, and say what it says."""
        protocol = self.make(self.full, self.row)
        self._dirty, self._evaluated, stage, complete, answer = False, self.now, 0, True, None
        while True:
            try:
                message = protocol.send(answer)
            except StopIteration as end:
                self._result = end.value
                break
            if not isinstance(message, Gather) or stage == STAGES:
                raise TypeError(f"a device without rounds asks up to {STAGES} questions of everybody and nothing else")
            if self.seal is None and message.sealed:
                raise ValueError("the method needs entries that are signed, and this device has no key to sign with")
            self._say(key_of(self.row, stage), message.packets[0])
            answer = self._gathered(stage, message)
            complete, stage = complete and answer.complete, stage + 1
        self._stages, self._final = stage, complete
        if complete and self.phase == "running":
            self.phase = "finished"
            if not self.rosters.lacks(self.full.ids):  # at least half of each earlier one has moved on for ever
                self.rosters.raise_floor(self.rosters.number)
            self.log(f"run {self.number}: everybody was heard")
        self._dirty = False  # what this device has just said is in the result

    def _gathered(self, stage: int, message: Gather) -> Gathered:
        """Return everybody's strings of a stage, as far as they are there and can be used."""
        devices, strings = self.full.devices, []
        heard: NDArray[np.bool_] = np.zeros(devices, dtype=np.bool_)
        disputed: NDArray[np.bool_] = np.zeros(devices, dtype=np.bool_)
        disputed[list(self.liars)] = True
        for k in range(devices):
            key = key_of(k, stage)
            heard[k] = self._usable(key) and self._passes(key, message)
            disputed[k] |= message.sealed and bool(self._bad >> key & 1)  # signed nonsense is proof enough
            strings.append(self._text(key) if heard[k] else b"")
        return Gathered(Packets.of(strings), heard, disputed, self.seal is not None)

    def _usable(self, key: int) -> bool:
        return key in self._entries and key_of(key // SLOTS, PROOF) not in self._entries

    def _passes(self, key: int, message: Gather) -> bool:
        """Return whether an entry is one that could be said; one that is not counts as never heard."""
        if message.check is None or key // SLOTS == self.row or self._checked >> key & 1:
            return True
        try:
            message.check(self._text(key), key // SLOTS)
        except ValueError as problem:
            self.counts.refuse(f"an entry that nobody could say: {problem}")
            self.log(f"refused an entry of {self._name(key // SLOTS)}: {problem}")
            del self._entries[key]
            self._digest ^= self._digests.pop(key, 0)
            self._keys, self._bad = self._keys & ~(1 << key), self._bad | 1 << key
            return False
        self._checked |= 1 << key
        return True

    @property
    def _has_stage(self) -> bool:
        """Whether the last question that is known to be asked can be answered in full."""
        wanted = self._of_slot << self._stages - 1
        return self._keys & wanted == wanted

    @property
    def _all_strings(self) -> int:
        """The keys of all strings that the protocol is known to ask for."""
        return self._of_slot * ((1 << self._stages) - 1)

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _move(self, number: int) -> None:
        """Leave the run for a later one."""
        self.number, self._asked = number, False
        if self._new is not None:
            (self.make, self.scores), self._new = self._new, None
        self._clear()
        self.journal.begin(self._heading().pack())
        self.log(f"run {number}")
        self._begin()

    def _begin(self) -> None:
        """Say the first of what this device has to say, or why it has nothing to."""
        if not self._reason:
            self._evaluate()
            return
        self.phase, self._result, self._final = "failed", None, False
        self._say(key_of(self.row, REASON), self._reason.encode())

    def _heading(self) -> Heading:
        return Heading(self.number, frozenset(), self.run, self.scores)

    def _recall(self) -> None:
        """Go on where the journal ends, if it is of this mesh and of these scores."""
        records = self.journal.records()
        heading = Heading.of(records[0]) if records else None
        if heading is not None:
            self.number = heading.run
            self._clear()
            if heading == self._heading():
                self._reload(records[1:])
                return
            self.log("the journal is of other scores or settings: asking for a new run")
            self.number = heading.run + 1
        self._clear()
        self.journal.begin(self._heading().pack())

    def _reload(self, records: list[bytes]) -> None:
        for record in records:
            key, at = unpack_number(record, 0, len(record))
            self._put(key, record[at:])
        self.log(f"run {self.number}: {len(records)} entries from the journal")

    def _break(self, error: Exception) -> None:
        """End because of an error in the protocol, in the journal or in this program."""
        try:
            said = str(error)
        except Exception:
            said = ""
        words = in_a_line(f"{self._name(self.row)} could not go on: {type(error).__name__}: {said}".rstrip(": "))
        self._reason, self.error = words, PeerError(words)
        self.error.__cause__ = error
        self.phase, self._result, self._final = "failed", None, False
        self.log(words)
