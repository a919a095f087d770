"""A device in asynchronous mode: it sends what it has, takes what comes, and has a certified threshold at every moment.

It is composed of its links, the exchange of entries (`entry_exchange`) and the spreading of rosters. This module runs
the protocol on the entries and decides which run the device is in. The set of entries only grows (`entries`), so they
may arrive in any order, twice or late, and a neighbour that is slow, away or gone delays nobody.

Sending     at once when there is something new for a neighbour; again when its answer is late, and more and more rarely
            while nothing comes back (`timers`)
Result      the protocol runs from the beginning on the entries that are there, and what it returns is the result. With
            all entries it is final and the same everywhere
Runs        are numbered, and a greater number ends a smaller one. A device that starts with other scores than those in
            its journal asks for a greater one. So do two devices that have the same entries with different texts: some
            device has lost its journal, and its scores have changed
Reasons     a device that cannot take part sends the reason in an entry of its own, and passes on other entries
Byzantine   with a seal, an entry that its owner has not signed is refused. Two different signed entries of one device
            are a proof that goes to everybody: its reports do not count from then on
Doubt       a device that has just started may have signed entries that its journal does not have: the journal was
            deleted, or restored from a backup. Before it signs anything in a run that it may have been in, it asks
            every neighbour for entries of its own. If one has some, it asks for a new run, and asks again there

Disagreement ends nothing here: a neighbour with other settings is told so, and its entries are not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.peer.entries import REASON, SLOTS, STAGES, Seal, entry_key, entry_key_set, unpack_entries
from conformesh.peer.entry_exchange import MOST_CLASHES, EntryExchange
from conformesh.peer.entry_store import EntryStore
from conformesh.peer.frames import ENTRIES, HELLO, WANT, Frame, FrameError, unpack_number
from conformesh.peer.interface import Make, PeerSetup, Phase
from conformesh.peer.json_bodies import Hello, agreement_differences, one_line_text
from conformesh.peer.links import Clock, Links
from conformesh.peer.memory import Heading
from conformesh.peer.roster_exchange import RosterExchange
from conformesh.peer.run_membership import RunLimit
from conformesh.peer.settings import Counts, PeerError, failure_of
from conformesh.protocols.messages import Gather, GatheredStrings, Packets
from conformesh.results.certificate import Cost


class SigningDoubt:
    """Whether a device may have signed entries that its journal does not have; as long as it may, it signs nothing.

    It waits until every neighbour has named its entries, or until it has waited for `linger` seconds: the neighbours
    that do not answer may be gone for good.
    """

    def __init__(self, local_keys: int) -> None:
        self._local_keys = local_keys  # of the strings that the device signs
        self._claims: Counter[int] = Counter()  # by neighbour, in how many runs it has named such entries
        self._unanswered: set[int] = set()
        self.until = 0.0

    def is_open(self) -> bool:
        """Return whether answers are missing."""
        return bool(self._unanswered)

    def open(self, neighbours: tuple[int, ...], until: float) -> None:
        """Wait for the answers of these neighbours."""
        self._unanswered, self.until = set(neighbours), until

    def close(self) -> None:
        """Wait no more."""
        self._unanswered = set()

    def is_confirmed(self, sender: int, keys: int) -> bool:
        """Take the entries that a neighbour has; return whether one of them is this device's own.

        A neighbour that names one in run after run is not believed: it may be Byzantine, and each time costs a run.
        """
        if keys & self._local_keys and self._claims[sender] < MOST_CLASHES:
            self._claims[sender] += 1
            return True
        self._unanswered.discard(sender)
        return False


class AsyncDevice:
    """One device of a mesh in asynchronous mode; its protocol yields `Gather` and nothing else.

    Parameters
    ----------
    setup
        What it is made of.
    seal
        Signs its entries and verifies those of others; None if nobody signs.

    Attributes
    ----------
    links, exchange, store
        Its parts: the exchange of entries, and the entries that are there.
    rosters
        The roster that it is under, and the newer one that it moves to.
    disagreements
        By row of a neighbour, what it does not agree on with this device, in words.
    """

    idle = False  # it takes part from its start on
    lost: frozenset[int] = frozenset()  # nobody is left out: a neighbour that is away delays nobody
    round = 0
    missing = 1  # any frame is worth waking up for

    def __init__(self, setup: PeerSetup, seal: Seal | None = None) -> None:
        self.setup = setup
        self.agreement = setup.full_agreement() | {"mode": "asynchronous"}  # never together with devices in rounds
        self.clock = Clock()
        self.links = Links(setup, self.clock)
        self.rosters = setup.rosters_in_use()
        self.exchange = EntryExchange(self.links, setup.journal, seal, self._begin_next)
        self._roster_exchange = RosterExchange(self.rosters, self.links, self.hello)
        self._limit = RunLimit(len(self.links.neighbours), setup.settings.retry)
        self._make, self._scores = setup.make, setup.scores
        self._next_protocol: tuple[Make, str] | None = None  # what the next run is made of, if of other scores
        self._first_slots = entry_key_set(setup.network.devices, [0])  # shifted by s bits these are the slots s
        local_keys = [entry_key(setup.row, stage) for stage in range(STAGES)]
        self._doubt = SigningDoubt(sum(1 << key for key in local_keys))
        self._has_joined = False  # whether it has joined a run of its neighbours since it started
        self._run_requested = False
        self._reason = ""  # why it takes no part
        self.error: PeerError | None = None
        self.disagreements: dict[int, str] = {}
        self.number = 1
        self._clear()

    def _clear(self) -> None:
        """Begin a run of this number without any entries."""
        self.greeting = Hello(self.agreement, self.number, frozenset())
        self.run = self.greeting.digest()
        self.exchange.begin(self.run, self.greeting.context())
        self.phase: Phase = "running"
        self._checked = 0  # keys of strings that passed the protocol's check
        self._stages = 1  # questions that the protocol is known to ask
        self._result: Any = None
        self._final = False
        self._evaluated_at = self._begun_at = self.clock.now

    # --- what an engine sees ------------------------------------------------------------------------------------------

    @property
    def row(self) -> int:
        """Its row in the roster."""
        return self.setup.row

    @property
    def network(self) -> Network:
        """The whole network."""
        return self.setup.network

    @property
    def store(self) -> EntryStore:
        """The entries that are there."""
        return self.exchange.store

    @property
    def counts(self) -> Counts:
        """The frames that it has sent and received."""
        return self.links.counts

    @property
    def cost(self) -> Cost:
        """What it has sent in entries."""
        return self.exchange.cost

    @property
    def survivors(self) -> tuple[int, ...]:
        """Rows of the devices that have reported."""
        return tuple(k for k in range(self.network.devices) if self.store.is_usable(entry_key(k, 0)))

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Rows of the neighbours."""
        return self.links.neighbours

    @property
    def reasons(self) -> dict[int, str]:
        """Why devices that have not reported cannot take part, by row, where they have sent a reason."""
        keys = {
            k: entry_key(k, REASON) for k in range(self.network.devices) if not self.store.is_usable(entry_key(k, 0))
        }
        return {k: one_line_text(self.store.text(key)) for k, key in keys.items() if key in self.store.entries}

    @property
    def byzantine(self) -> tuple[int, ...]:
        """Rows of devices that are proven to have signed two different strings."""
        return self.store.byzantine

    @property
    def handed(self) -> bool:
        """Whether it has handed a newer roster on: another device must be made in its place."""
        return self._roster_exchange.handed

    def start(self, now: float) -> None:
        """Begin, or go on where the journal ends."""
        self.clock.now = now
        try:
            self.exchange.news_at = self._begun_at = now
            self._recall()
            self._begin()
            self.exchange.answer_all()
        except Exception as error:
            self._break(error)

    def tick(self, now: float) -> None:
        """Notice that time has passed: repeat what may be lost, begin a run that was asked for."""
        self.clock.advance(now)
        try:
            if self.rosters.moving:
                if self.clock.now >= self.clock.wake:
                    self._roster_exchange.hand_on()
                return
            if self._run_requested and self.clock.now >= self._requested_from:
                self._move(self.number + 1, unsure=self._doubt.is_open())
            if self._doubt.is_open() and self.clock.now >= self._doubt.until:
                self._begin_sure()
            if self._has_news and self.clock.now >= self._evaluated_at + self.setup.settings.retry:
                self._evaluate()
        except Exception as error:
            self._break(error)

    def receive(self, data: bytes, sender: int, now: float) -> None:
        """Take bytes that came from a neighbour; the transport knows which one."""
        self.clock.advance(now)
        self.links.receive(data, sender, self._take, self._break)

    def outbox(self) -> list[tuple[int, bytes]]:
        """Return what to send: to every neighbour what it is not known to have, and which entries this device has."""
        try:
            if not self.rosters.moving:
                # With all answers at once, since neighbours wait for this device's next entry. With some of them
                # `tick` evaluates, at most once in `retry` seconds: each evaluation runs the whole protocol.
                if self._has_news and self._has_stage:
                    self._evaluate()
                self.exchange.send_due(complete=self._final)
        except Exception as error:
            self._break(error)
        return self.links.take_outbox()

    def offer(self, roster: bytes, now: float) -> None:
        """Take a roster that came by another way than from a neighbour; a newer one is handed to all of them.

        A `FrameError` says why one is refused.
        """
        self.clock.advance(now)
        self._roster_exchange.offer(roster)

    @property
    def wake(self) -> float:
        """When the device wants to be ticked again at the latest."""
        if self.rosters.moving:
            return self.clock.wake
        settings, now = self.setup.settings, self.clock.now
        times = self.exchange.wake_times(complete=self._final)
        if self._run_requested:
            times.append(self._requested_from)
        if self._doubt.is_open():
            times.append(self._doubt.until)
        elif self._has_news:
            times.append(self._evaluated_at + settings.retry)
        if not self.over:
            times.append(now + settings.linger)
        return min(times, default=now + settings.linger)

    @property
    def over(self) -> bool:
        """Whether nothing is left to do: all neighbours have all entries, or nothing new came for `patience` seconds.

        A device that goes on serving stays all the same, and goes on receiving.
        """
        if self.rosters.moving:
            return self.handed
        if self._run_requested:
            return False
        if self._final and self.exchange.all_have(self._all_strings):
            return self.clock.now >= self.exchange.quiet_from
        return self.clock.now >= self.exchange.news_at + self.setup.settings.patience

    @property
    def result(self) -> Any:
        """What the protocol makes of all entries so far; None where this device cannot take part."""
        if self._has_news:
            try:
                self._evaluate()
            except Exception as error:
                self._break(error)
        return self._result

    @property
    def final(self) -> bool:
        """Whether all devices have reported, so that the result does not change any more."""
        return self._final

    def recalibrate(self, now: float, make: Make | None = None, scores: str = "") -> None:
        """Ask everybody for one more run, of other scores if `make` and their digest are given.

        However often this is called, a run begins at most every `linger` seconds.
        """
        self.clock.advance(now)
        if make is not None:
            self._next_protocol = make, scores
        self._run_requested = True
        self.tick(now)

    def refuse(self, reason: str, now: float) -> None:
        """Take no part for a local reason, send it to everybody, and pass on the entries of others."""
        self.clock.advance(now)
        self._reason = one_line_text(f"{self.links.name(self.row)} cannot take part: {reason}")
        self.error = PeerError(self._reason)
        self.links.log(self._reason)
        if self.store.entries:  # it has begun
            self._begin()

    # --- frames -------------------------------------------------------------------------------------------------------

    def hello(self, flags: int = 0) -> Frame:
        """Return the greeting of this device."""
        return Frame(HELLO, 0, self.row, 0, flags, self.greeting.pack())

    def _take(self, frame: Frame, sender: int) -> None:
        if self._roster_exchange.take(frame, sender):
            return
        if frame.kind == ENTRIES:
            self._take_entries(frame)
        elif frame.kind == HELLO:
            self._take_hello(frame)
        else:
            raise FrameError("a frame of a device in rounds, and this one has none")

    def _take_hello(self, frame: Frame) -> None:
        theirs = Hello.of(frame.body, self.network.devices)
        if theirs.agreement != self.agreement:
            self._disagree(frame, theirs.agreement)
            return
        self.disagreements.pop(frame.sender, None)
        run = self._limit.bound(frame.sender, theirs.run, self.number)
        if theirs.run > self.number:
            if not self._limit.may_move(self.clock.now):
                return  # its next frame is of another run for this device, which then greets it
            self._limit.note_move(self.clock.now)
            self._join(run)
        elif theirs.run < self.number:
            self.links.send(frame.sender, self.hello())
            return
        self.exchange.timers[frame.sender].owes_answer = True

    def _disagree(self, frame: Frame, theirs: Mapping[str, str]) -> None:
        if frame.wants:
            self.links.send(frame.sender, self.hello())
        name = self.links.name(frame.sender)
        words = agreement_differences(self.agreement, theirs, self.links.name(self.row), name)
        if self.disagreements.get(frame.sender) != words:
            self.disagreements[frame.sender] = words
            self.links.log(f"{name} does not agree: {words}; it is not listened to")
        raise FrameError("a hello of a device that does not agree")

    def _take_entries(self, frame: Frame) -> None:
        # The order of checks: frames of other runs first: their keys mean other entries. Then the doubt: a neighbour
        # that has an entry of this device may end the run, and its entries are of no use in the next one.
        timer = self.exchange.timers[frame.sender]
        if frame.run != self.run:
            if timer.may_greet(self.clock.now):
                self.links.send(frame.sender, self.hello(WANT))
            raise FrameError("a frame of another run")
        keys, digest, entries = unpack_entries(frame.body, self.network.devices)
        timer.note_received(keys, self.clock.now)
        self._settle_doubt(frame.sender, keys)
        if frame.run == self.run:  # settling may have begun another run
            self.exchange.take(frame, keys, digest, entries)

    # --- the result ---------------------------------------------------------------------------------------------------

    @property
    def _has_news(self) -> bool:
        """Whether there are entries that the last result does not use, and this device takes part."""
        return self.exchange.has_news and self.phase != "failed"

    def _evaluate(self) -> None:
        """Run the protocol from its beginning on the entries that are there, and add the entries that it sends.

        From the beginning each time: it is deterministic, so earlier answers with more entries need no other code.
        """
        if self._doubt.is_open():  # an entry that was signed cannot be taken back
            return
        protocol = self._make(self.network, self.row)
        self.exchange.has_news, self._evaluated_at = False, self.clock.now
        stage, complete, answer = 0, True, None
        while True:
            try:
                message = protocol.send(answer)
            except StopIteration as end:
                self._result = end.value
                break
            if not isinstance(message, Gather) or stage == STAGES:
                raise TypeError(f"a device without rounds asks up to {STAGES} questions of everybody and nothing else")
            if self.store.seal is None and message.sealed:
                raise ValueError("the method needs entries that are signed, and this device has no key to sign with")
            self.exchange.add_local(entry_key(self.row, stage), message.packets[0])
            answer = self._gathered_strings(stage, message)
            complete, stage = complete and answer.complete, stage + 1
        self._stages, self._final = stage, complete
        if complete and self.phase == "running":
            self.phase = "finished"
            if not self.rosters.lacks(self.network.ids):  # at least half of each earlier one has moved on for ever
                self.rosters.raise_floor(self.rosters.number)
            self.links.log(f"run {self.number}: everybody was heard")
        self.exchange.has_news = False  # what this device has just added is in the result

    def _gathered_strings(self, stage: int, message: Gather) -> GatheredStrings:
        """Return the strings of all devices for a stage, where they are there and can be used."""
        devices, strings = self.network.devices, []
        usable: NDArray[np.bool_] = np.zeros(devices, dtype=np.bool_)
        disputed: NDArray[np.bool_] = np.zeros(devices, dtype=np.bool_)
        disputed[list(self.byzantine)] = True
        for k in range(devices):
            key = entry_key(k, stage)
            usable[k] = self.store.is_usable(key) and self._passes_check(key, message)
            # A signed string that no honest device can send is a proof as good as two different ones.
            disputed[k] |= message.sealed and bool(self.store.unusable >> key & 1)
            strings.append(self.store.text(key) if usable[k] else b"")
        return GatheredStrings(Packets.of(strings), usable, disputed, self.store.seal is not None)

    def _passes_check(self, key: int, message: Gather) -> bool:
        """Return whether an entry passes the protocol's check; one that does not counts as never received."""
        owner = key // SLOTS
        if message.check is None or owner == self.row or self._checked >> key & 1:
            return True
        try:
            message.check(self.store.text(key), owner)
        except ValueError as problem:
            self.counts.refuse(f"an entry that nobody could say: {problem}")
            self.links.log(f"refused an entry of {self.links.name(owner)}: {problem}")
            self.store.drop(key)
            return False
        self._checked |= 1 << key
        return True

    @property
    def _has_stage(self) -> bool:
        """Whether the last question that the protocol is known to ask can be answered in full."""
        wanted = self._first_slots << self._stages - 1
        return self.store.keys & wanted == wanted

    @property
    def _all_strings(self) -> int:
        """The keys of all strings that the protocol is known to ask for."""
        return self._first_slots * ((1 << self._stages) - 1)  # the slots of a device are adjacent bits

    # --- runs ---------------------------------------------------------------------------------------------------------

    @property
    def _requested_from(self) -> float:
        """From when on a run that was asked for may begin."""
        return self._begun_at + self.setup.settings.linger

    def _begin_next(self) -> None:
        self._move(self.number + 1)

    def _move(self, number: int, *, unsure: bool = False) -> None:
        """Leave the run for a later one; `unsure` if this device may have sent entries in it and not know."""
        self.number, self._run_requested = number, False
        self._doubt.close()
        if self._next_protocol is not None:
            (self._make, self._scores), self._next_protocol = self._next_protocol, None
        self._clear()
        # Before any entry of the run is signed. A crash earlier leaves the device in the last run, from which a
        # neighbour's greeting moves it again.
        self.setup.journal.begin(self._heading().pack())
        self.links.log(f"run {number}")
        if unsure:
            self._open_doubt()
        self._begin()

    def _join(self, number: int) -> None:
        """Leave the run for a later one in which a neighbour is.

        In the first one after a start this device may have sent entries before, if its journal is an old one.
        """
        unsure, self._has_joined = self._doubt.is_open() or not self._has_joined, True
        self._move(number, unsure=unsure and self.store.seal is not None)

    def _open_doubt(self) -> None:
        """Wait until all neighbours have named their entries, before anything is signed."""
        self._doubt.open(self.links.neighbours, self.clock.now + self.setup.settings.linger)

    def _settle_doubt(self, sender: int, keys: int) -> None:
        """Take which entries of this run a neighbour has, while this device is in doubt."""
        if not self._doubt.is_open():
            return
        if self._doubt.is_confirmed(sender, keys):
            self.links.log(
                "neighbours have entries of this device's that its journal does not know of: asking for a new run"
            )
            self._move(self.number + 1, unsure=True)  # it may have sent entries in that one, too
        elif not self._doubt.is_open():
            self._begin_sure()

    def _begin_sure(self) -> None:
        self._doubt.close()
        self._begin()

    def _begin(self) -> None:
        """Add the first entry of this device, or why it takes no part."""
        if not self._reason:
            self._evaluate()
            return
        self.phase, self._result, self._final = "failed", None, False
        self.exchange.add_local(entry_key(self.row, REASON), self._reason.encode())

    # --- memory -------------------------------------------------------------------------------------------------------

    def _heading(self) -> Heading:
        return Heading(self.number, frozenset(), self.run, self._scores)

    def _recall(self) -> None:
        """Go on where the journal ends, if it is of this mesh and of these scores."""
        journal = self.setup.journal
        records = journal.records()
        heading = Heading.of(records[0]) if records else None
        if heading is not None:
            self.number = heading.run
            self._clear()
            if heading == self._heading():
                self._reload(records[1:])
                return
            self.links.log("the journal is of other scores or settings: asking for a new run")
            self.number = heading.run + 1
        self._clear()
        journal.begin(self._heading().pack())
        if self.store.seal is not None:  # the journal may be gone, or older than what was signed last
            self._open_doubt()

    def _reload(self, records: list[bytes]) -> None:
        for record in records:
            key, at = unpack_number(record, 0, len(record))
            self.store.put(key, record[at:])
        self.links.log(f"run {self.number}: {len(records)} entries from the journal")

    def _break(self, error: Exception) -> None:
        """End because of an error in the protocol, in the journal or in this program."""
        words, self._reason = self.links.failure_text(error), self.links.failure_text(error, for_neighbours=True)
        self.error = PeerError(words, failure_of(error))
        self.error.__cause__ = error
        self.phase, self._result, self._final = "failed", None, False
        self.links.log(words)
        key = entry_key(self.row, REASON)
        # Without the journal, which may be what has failed, and without raising again: neighbours get the reason if it
        # can be signed, and it is forgotten at the next start.
        with suppress(Exception):
            if key not in self.store.entries:
                self.store.put(key, self.store.make_entry(key, self._reason.encode()))
