"""A device without rounds: it says what it has, hears what there is, and holds a certified threshold at every moment.

Entries only grow (`e_dcp_entries`). A device sends a neighbour what that one is not known to have, again and again
until the neighbour says that it has it; every frame says what its sender has. What arrives in any order, twice
or late is kept or known already, and a neighbour that is slow, away or gone holds nobody up.

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
Byzantine   with a seal, what a device has not signed is refused, and two different signed entries of one device are a
            proof that everybody gets: it counts as not heard from then on
Memory      a device that has just started may have signed entries that its journal does not know of: the journal was
            deleted, or restored from a backup. Before it signs anything in a run that it cannot know, it asks every
            neighbour whether it has an entry of this device's. If one does, it asks for a new run, and asks them again

Disagreement ends nothing here: a neighbour with other settings is told so, and is not listened to.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.peer.entries import REASON, SLOTS, STAGES, key_of, keys_of
from conformesh.peer.entry_exchange import MOST_CLASHES, PeerSpreading
from conformesh.peer.frames import unpack_number
from conformesh.peer.json_bodies import in_a_line
from conformesh.peer.links import Make
from conformesh.peer.memory import Heading
from conformesh.peer.settings import PeerError, failure_of
from conformesh.protocols.messages import Gather, GatheredStrings, Packets


class AsyncDevice(PeerSpreading):
    """One device of a mesh without rounds.

    Parameters
    ----------
    *parts, **named
        As in `Linked`; the protocol that `make` makes asks nothing but `Gather`. And `seal`, which signs this device's
        entries and tells whether others were signed by their owners; None: nobody signs.
    """

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._of_slot = keys_of(self.full.devices, [0])  # of the first; of others it is moved by as many bits
        self._new: tuple[Make, str] | None = None
        self._asked, self._reason = False, ""
        self._has_joined = False  # a run of its neighbours' since it started
        self._unsure: set[int] = set()  # neighbours that may have entries of this device's that it does not know of
        self._sure_at = 0.0  # until when it waits for their answers
        self._claims: Counter[int] = Counter()  # in how many runs a neighbour said that it has such entries
        self._clear()

    def _clear(self) -> None:
        """Begin with nothing but what was agreed on."""
        self._clear_entries()
        self.phase = "running"
        self._checked = 0  # which strings could be said
        self._stages = 1  # that the protocol is known to ask
        self._result: Any = None
        self._final = False
        self._news_at = self._evaluated = self._begun_at = self.now

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
                self._move(self.number + 1, unsure=bool(self._unsure))
            if self._unsure and self.now >= self._sure_at:  # who does not answer may be gone for good
                self._begin_sure()
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
        if self._unsure:
            waits.append(self._sure_at)
        elif self._dirty and self.phase != "failed":
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
    def missing(self) -> int:
        """How many frames are worth waiting for: any."""
        return 1

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

    # --- the result ---------------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Run the protocol on what was heard, and say what it says."""
        if self._unsure:  # saying is signing
            return
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

    def _gathered(self, stage: int, message: Gather) -> GatheredStrings:
        """Return everybody's strings of a stage, as far as they are there and can be used."""
        devices, strings = self.full.devices, []
        heard: NDArray[np.bool_] = np.zeros(devices, dtype=np.bool_)
        disputed: NDArray[np.bool_] = np.zeros(devices, dtype=np.bool_)
        disputed[list(self.byzantine)] = True
        for k in range(devices):
            key = key_of(k, stage)
            heard[k] = self._usable(key) and self._passes(key, message)
            disputed[k] |= message.sealed and bool(self._bad >> key & 1)  # signed nonsense is proof enough
            strings.append(self._text(key) if heard[k] else b"")
        return GatheredStrings(Packets.of(strings), heard, disputed, self.seal is not None)

    def _passes(self, key: int, message: Gather) -> bool:
        """Return whether an entry is one that could be said; one that is not counts as never heard."""
        if message.check is None or key // SLOTS == self.row or self._checked >> key & 1:
            return True
        try:
            message.check(self._text(key), key // SLOTS)
        except ValueError as problem:
            self.counts.refuse(f"an entry that nobody could say: {problem}")
            self.log(f"refused an entry of {self._name(key // SLOTS)}: {problem}")
            self._size -= len(self._entries.pop(key))
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

    def _move(self, number: int, *, unsure: bool = False) -> None:
        """Leave the run for a later one; `unsure` if this device may have spoken in it and not know."""
        self.number, self._asked, self._unsure = number, False, set()
        if self._new is not None:
            (self.make, self.scores), self._new = self._new, None
        self._clear()
        self.journal.begin(self._heading().pack())
        self.log(f"run {number}")
        if unsure:
            self._doubt()
        self._begin()

    def _join(self, number: int) -> None:
        """Leave the run for a later one in which a neighbour is.

        The first one after a start may be one in which this device has spoken before, if its journal is an old one.
        """
        unsure, self._has_joined = bool(self._unsure) or not self._has_joined, True
        self._move(number, unsure=unsure and self.seal is not None)

    def _doubt(self) -> None:
        """Wait for all neighbours to say which entries they have, before anything is signed."""
        self._unsure, self._sure_at = set(self._linked), self.now + self.settings.linger

    def _heard_keys(self, sender: int, keys: int) -> None:
        """Note which entries of this run a neighbour has."""
        if not self._unsure:
            return
        if keys & self._own_strings and self._claims[sender] < MOST_CLASHES:  # one that always says so is not believed
            self._claims[sender] += 1
            self.log("neighbours have entries of this device's that its journal does not know of: asking for a new run")
            self._move(self.number + 1, unsure=True)  # it may have spoken in that one, too
            return
        self._unsure.discard(sender)
        if not self._unsure:
            self._begin_sure()

    def _begin_sure(self) -> None:
        self._unsure = set()
        self._begin()

    @property
    def _own_strings(self) -> int:
        return sum(1 << key_of(self.row, stage) for stage in range(STAGES))

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
        if self.seal is not None:  # the journal may be gone, or older than what was signed last
            self._doubt()

    def _reload(self, records: list[bytes]) -> None:
        for record in records:
            key, at = unpack_number(record, 0, len(record))
            self._put(key, record[at:])
        self.log(f"run {self.number}: {len(records)} entries from the journal")

    def _break(self, error: Exception) -> None:
        """End because of an error in the protocol, in the journal or in this program."""
        words, self._reason = self._in_words(error), self._in_words(error, travels=True)
        self.error = PeerError(words, failure_of(error))
        self.error.__cause__ = error
        self.phase, self._result, self._final = "failed", None, False
        self.log(words)
        with suppress(Exception):  # it is told as far as it can be, though it may not be remembered
            if key_of(self.row, REASON) not in self._entries:
                self._put(key_of(self.row, REASON), self._entry(key_of(self.row, REASON), self._reason.encode()))
