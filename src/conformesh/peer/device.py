"""A device: drives one protocol with its neighbours' frames. No socket, no clock, no thread: those belong to engines.

An engine hands over what arrived (`receive`) and the time (`tick`), and sends what `outbox` holds. The same object runs
over a real network and in the loopback engine, whose fake network does everything that real ones do.

Greeting    hello to every neighbour, with all that must match; then a roll call through the whole network. Data begins
            when everybody is known to agree: a difference anywhere ends everybody before any number is sent
Running     say this round's message, wait for every neighbour's of the same round, answer the protocol, go on.
            A device that misses something repeats its own frame with WANT, and who hears WANT repeats what is missing.
            Nobody is ever more than one round ahead of a neighbour, so two frames of one's own are memory enough
Finishing   another roll call: a result counts once all devices have theirs
Recovery    what was heard is in the journal before anything that follows from it is said; a restarted device replays
Loss        a neighbour that was silent for `patience` is lost. Either everybody ends with an error that names it, or
            (`on_lost="continue"`) the survivors greet each other again without it
Failure     who fails says why to everybody, again and again for a while, and ends without a result

Frames that are malformed, of another run or round, or of a stranger are refused and counted; they change nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import DisconnectedError, Network
from conformesh.peer import frames
from conformesh.peer.combine import answer, question_of, said
from conformesh.peer.frames import DATA, FAILED, FINISHED, HELLO, READY, SILENT, WANT, Frame, FrameError
from conformesh.peer.journal import Journal
from conformesh.peer.memory import ENDED, Heading, pack_round, unpack_round
from conformesh.peer.settings import Counts, PeerError, Settings
from conformesh.peer.words import Hello, News, pack_rows, unpack_rows
from conformesh.protocols.ledger import Ledger
from conformesh.protocols.messages import Each, Message

Array = NDArray[Any]
Make = Callable[[Network, int], Generator[Message, Any, Any]]
Phase = Literal["greeting", "running", "finishing", "finished", "failed"]
PROTOCOL_VERSION = 1
EVERYBODY = -1  # in the outbox: to all neighbours alike


class Device:
    """One device of a mesh.

    Parameters
    ----------
    row
        Its row in the roster.
    network
        The whole map; its ids are the roster.
    agreement
        All that must be the same everywhere, as short texts by name.
    make
        Makes the protocol for a network and a row in it: the whole network, or that of the survivors.
    journal
        What survives a crash of the process.
    scores
        A digest of this device's own scores: a journal that was written with others is of no use.
    """

    def __init__(
        self,
        row: int,
        network: Network,
        agreement: Mapping[str, str],
        make: Make,
        journal: Journal,
        settings: Settings | None = None,
        scores: str = "",
        log: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.row, self.full, self.make, self.journal = row, network, make, journal
        self.settings, self.scores, self.log = settings or Settings(), scores, log
        self.agreement = {
            **agreement,
            "on lost": self.settings.on_lost,
            "protocol version": str(PROTOCOL_VERSION),
        }
        self.counts = Counts()
        self.ledger = Ledger(1)
        self.phase: Phase = "greeting"
        self.error: PeerError | None = None
        self.result: Any = None
        self.number = 1
        self.lost: frozenset[int] = frozenset()
        self.round = 0
        self.now = 0.0
        self._linked = [int(j) for j in network.neighbours(row)]
        self._links = frozenset(self._linked)
        self._out: list[tuple[int, bytes]] = []
        self._last_heard: dict[int, float] = dict.fromkeys(self._linked, 0.0)
        self._stopped_at = 0.0
        self._news: News | None = None
        self._on = {
            HELLO: self._on_hello,
            DATA: self._on_data,
            READY: self._on_ready,
            FINISHED: self._on_finished,
            FAILED: self._on_failed,
        }
        self._enter_greeting()

    # --- what an engine calls -----------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin, or go on where the journal ends."""
        self.now = now
        self._last_heard = dict.fromkeys(self._linked, now)
        self._recall()
        self._repeat()
        self._call_ready()
        if self.phase == "finishing":  # the journal ends just before the end
            self._call_done()

    def receive(self, data: bytes, sender: int, now: float) -> None:
        """Take bytes that came from a neighbour; the transport knows who that is."""
        self.now = max(self.now, now)
        try:
            frame = frames.decode(data)
            if sender not in self._links:
                raise FrameError("a frame of a device that is no neighbour")
            if frame.sender != sender:
                raise FrameError("a frame that names another sender than its connection")
            self._take(frame)
        except FrameError as problem:
            self._refuse(sender, problem)
            return
        self.counts.heard[sender] += 1
        self.counts.heard_bytes[sender] += len(data)

    def tick(self, now: float) -> None:
        """Notice that time has passed: repeat what may be lost, give up on who is."""
        self.now = max(self.now, now)
        if self.now < self._next or self.over:
            return
        if self.phase not in ("finished", "failed"):
            gone = [j for j in self._talking if self._silence(j) > self.settings.patience]
            if gone:
                self._lose(gone)
        self._repeat()

    def outbox(self) -> list[tuple[int, bytes]]:
        """Return what to send, as (row of a neighbour or EVERYBODY, bytes), and forget it."""
        out, self._out = self._out, []
        return out

    @property
    def wake(self) -> float:
        """When the device wants to be ticked again at the latest."""
        return self._next

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, also for the neighbours."""
        if self.phase not in ("finished", "failed"):
            return False
        if self.now >= self._stopped_at + self.settings.linger:
            return True
        return self.phase == "finished" and all(self._knows.get(j) == self._everyone for j in self._talking)

    @property
    def survivors(self) -> tuple[int, ...]:
        """Rows of the devices that are in the run."""
        return tuple(sorted(self._everyone))

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Rows of the neighbours that are in the run."""
        return tuple(self._talking)

    @property
    def missing(self) -> int:
        """How many frames of data the device needs to go on; 1 where it waits for anything else."""
        return max(1, len(self._talking) - len(self._heard)) if self.phase == "running" else 1

    def recalibrate(self, now: float) -> None:
        """Ask everybody for a new run."""
        self.now = max(self.now, now)
        self._adopt(self.number + 1, self.lost)

    # --- greeting -----------------------------------------------------------------------------------------------------

    def _enter_greeting(self) -> None:
        self.phase, self.round = "greeting", 0
        self._everyone = frozenset(range(self.full.devices)) - self.lost
        self._talking = [j for j in self._linked if j not in self.lost]
        self._place = {k: at for at, k in enumerate(sorted(self._everyone))}  # rows in the network of the survivors
        self._greeting = Hello(self.agreement, self.number, self.lost).pack()
        self.run = self._digest()
        self._greeted: set[int] = set()
        self._ready: frozenset[int] = frozenset()
        self._done: frozenset[int] = frozenset()
        self._knows: dict[int, frozenset[int]] = {}
        self._protocol: Generator[Message, Any, Any] | None = None
        self._message: Message | None = None
        self._mine: dict[int, Frame] = {}
        self._heard: dict[int, Array | None] = {}
        self._bodies: dict[int, tuple[int, bytes]] = {}
        self._early: dict[int, Frame] = {}
        self._head, self._wire, self._length = b"", np.dtype(np.uint8), 0
        self._since = self._next = self.now  # since when this device waits for the others

    def _digest(self) -> int:
        return int.from_bytes(hashlib.sha256(self._greeting).digest()[:8], "little")

    def _hello(self, flags: int = 0) -> Frame:
        return Frame(HELLO, 0, self.row, 0, flags, self._greeting)

    def _on_hello(self, frame: Frame) -> None:
        theirs = Hello.of(frame.body, self.full.devices)
        if theirs.agreement != self.agreement:
            self._disagree(frame.sender, theirs.agreement)
            return
        if theirs.lost and self.settings.on_lost == "fail":
            raise FrameError("a hello that leaves devices out, which this mesh does not allow")
        self._last_heard[frame.sender] = self.now
        if self.row in theirs.lost:
            words = (
                f"{self._name(self.row)} was declared lost by {self._name(frame.sender)} and left out; start it again"
            )
            self._fail(words, tell=False)  # the others are well
            return
        if theirs.run > self.number or not theirs.lost <= self.lost:
            self._adopt(max(theirs.run, self.number), self.lost | theirs.lost)
        same = (theirs.run, theirs.lost) == (self.number, self.lost)
        if frame.wants or not same:
            self._send(frame.sender, self._hello())
        if same:
            self._greeted.add(frame.sender)
            self._call_ready()

    def _disagree(self, sender: int, theirs: Mapping[str, str]) -> None:
        self._send(sender, self._hello())
        if self.phase == "finished":  # the result stays; who comes with other settings is told, and ends
            raise FrameError("a hello of a device that does not agree")
        names = sorted({*theirs, *self.agreement})
        differ = [
            f"{name}: {self.agreement.get(name, 'nothing')!r} at {self._name(self.row)}, "
            f"{theirs.get(name, 'nothing')!r} at {self._name(sender)}"
            for name in names
            if theirs.get(name) != self.agreement.get(name)
        ]
        pair = f"{self._name(self.row)} and {self._name(sender)}"
        self._fail(f"{pair} do not agree; {'; '.join(differ)}. Nothing was sent; make all folders the same")

    def _adopt(self, number: int, lost: frozenset[int]) -> None:
        """Leave the run as it is for a later one, or for one with fewer devices."""
        if self.phase == "failed":
            return
        self.number, self.lost, self.result = number, lost, None
        self._enter_greeting()
        try:
            self._network()
        except DisconnectedError:
            gone = ", ".join(self._name(k) for k in sorted(lost))
            self._fail(f"without {gone} the network falls into parts; no threshold can be agreed on")
            return
        self.log(f"run {number}: greeting {len(self._talking)} neighbours")
        self._repeat()
        self._call_ready()

    # --- roll calls ---------------------------------------------------------------------------------------------------

    def _call_ready(self) -> None:
        """Say that all neighbours agree with this device, and pass on who else said so."""
        if self.phase == "greeting" and self._greeted.issuperset(self._talking):
            self._grow_ready(frozenset({self.row}))

    def _grow_ready(self, rows: frozenset[int]) -> None:
        if rows <= self._ready:
            return
        self._ready |= rows
        self._spread(READY, self._ready)
        if self._ready == self._everyone:
            self._begin()

    def _on_ready(self, frame: Frame) -> None:
        self._same_run(frame)
        rows = self._rows_in(frame)
        if self.phase == "greeting":
            self._grow_ready(rows)
        if frame.wants:
            self._send(frame.sender, self._roll(READY, self._ready))

    def _on_finished(self, frame: Frame) -> None:
        self._same_run(frame)
        rows = self._rows_in(frame)
        if self.phase == "running" and frame.round > self.round + 1:
            self._start_over()
            return
        if self.phase not in ("finishing", "finished"):
            if frame.wants:
                self._help(frame)
            return  # not so far yet: it will be repeated
        self._knows[frame.sender] = rows
        if not rows <= self._done:
            self._done |= rows
            self._call_done()
        elif frame.wants:
            self._send(frame.sender, self._roll(FINISHED, self._done))

    def _call_done(self) -> None:
        self._spread(FINISHED, self._done)
        if self.phase == "finishing" and self._done == self._everyone:
            self.phase, self._stopped_at = "finished", self.now
            self.journal.append(ENDED)
            self.log(f"run {self.number}: finished after {self.round} rounds")

    def _rows_in(self, frame: Frame) -> frozenset[int]:
        rows = unpack_rows(frame.body, self.full.devices)
        if not rows <= self._everyone:
            raise FrameError("a roll call that names devices outside the run")
        return rows

    def _roll(self, kind: int, rows: frozenset[int], flags: int = 0) -> Frame:
        return Frame(kind, self.run, self.row, self.round, flags, pack_rows(rows))

    def _spread(self, kind: int, rows: frozenset[int]) -> None:
        self._send_all(self._roll(kind, rows))

    # --- running ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the protocol; from here on the journal knows of this run."""
        self.journal.clear()
        self.journal.append(self._heading().pack())
        self._open_protocol()
        self._speak()

    def _heading(self) -> Heading:
        return Heading(self.number, self.lost, self.run, self.scores)

    def _open_protocol(self) -> None:
        network, row = self._network()
        self.phase, self._ready = "running", self._everyone
        self._protocol = self.make(network, row)
        self.ledger = Ledger(1)
        self.log(f"run {self.number}: {network.devices} devices")
        self._advance(None)

    def _advance(self, given: Any) -> None:
        """Hand the answer to the protocol and note what it says next, or its result."""
        assert self._protocol is not None
        try:
            message = self._protocol.send(given)
        except StopIteration as end:
            self.result, self._message, self.phase = end.value, None, "finishing"
            self._done = frozenset({self.row})
            return
        self.round += 1
        self._message = message
        value, row, question = said(message), message.values[0], question_of(message)
        self._head, self._wire = frames.array_head(question, row.dtype, row.shape), row.dtype.newbyteorder("<")
        self._length = len(self._head) + row.nbytes
        if value is None:
            flags, body = SILENT, frames.pack_array(question, np.empty(0, np.uint8))
        else:
            flags, body = 0, self._head + value.astype(self._wire, copy=False).tobytes()
        self.ledger.enter(message)  # as in every engine: a broadcast counts once, repetitions do not
        self._mine[self.round] = Frame(DATA, self.run, self.row, self.round, flags, body)
        self._mine.pop(self.round - 2, None)
        self._heard, self._bodies = {}, {}

    def _speak(self) -> None:
        """Say what this round is about, and use what came early."""
        self._since, self._next = self.now, self.now + self.settings.retry
        if self.phase == "finishing":
            self._call_done()
            return
        self._send_all(self._mine[self.round])
        if self._early:
            early, self._early = self._early, {}
            for frame in early.values():
                try:
                    self._hear(frame)
                except FrameError as problem:
                    self._refuse(frame.sender, problem)

    def _on_data(self, frame: Frame) -> None:
        self._same_run(frame)
        if self.phase == "greeting":  # it knows that all agree, and we do not yet
            self._send(frame.sender, self._hello(WANT))
            self._early[frame.sender] = frame
            return
        if frame.flags & WANT:
            self._help(frame)
        if self.phase != "running" or frame.round < self.round:
            return  # heard before: a repetition
        if frame.round == self.round:
            self._hear(frame)
        elif frame.round == self.round + 1:
            self._early[frame.sender] = frame
        else:
            self._start_over()

    def _help(self, frame: Frame) -> None:
        """Repeat what a neighbour misses, or what we say now: then it knows where we are, and that we are alive."""
        mine = self._mine.get(frame.round) or self._mine.get(self.round)
        if mine is None:  # still greeting
            mine = self._hello(WANT)
        self.counts.resent += 1
        self._send(frame.sender, mine)

    def _start_over(self) -> None:
        """Ask for a new run: a neighbour two rounds ahead has heard from us what we no longer know we said."""
        self.log("the journal of this run is lost: asking for a new run")
        self._adopt(self.number + 1, self.lost)

    def _hear(self, frame: Frame) -> None:
        """Take what a neighbour says in this round, and answer the protocol when all have spoken."""
        if self.phase != "running" or frame.round != self.round or frame.sender in self._heard:
            return
        self._heard[frame.sender] = self._value(frame)
        self._bodies[frame.sender] = (frame.flags & SILENT, frame.body)
        if len(self._heard) < len(self._talking):
            return
        self._remember()
        self._answer()
        self._speak()

    def _value(self, frame: Frame) -> Array | None:
        """Return the numbers in a frame, which must be of the kind that this device sends in this round."""
        assert self._message is not None
        mine, body = self._message.values, frame.body
        if len(body) == self._length and body.startswith(self._head) and not frame.flags & SILENT:
            return np.frombuffer(body, self._wire, offset=len(self._head)).reshape(mine.shape[1:])
        question, values = frames.unpack_array(body)  # slower, and knows what is wrong
        expected = question_of(self._message)
        if question != expected:
            raise FrameError(f"a frame asks for the {question} where this device asks for the {expected}")
        if frame.silent and isinstance(self._message, Each):
            return None
        if frame.silent:
            raise FrameError("a silent frame where everybody speaks")
        raise FrameError(
            f"a frame holds {values.dtype} of shape {values.shape}, this device {mine.dtype} of {mine.shape[1:]}"
        )

    def _answer(self) -> None:
        assert self._message is not None
        heard = {self._place[j]: values for j, values in self._heard.items()}
        self._advance(answer(self._message, self._place[self.row], heard))

    # --- memory -------------------------------------------------------------------------------------------------------

    def _remember(self) -> None:
        self.journal.append(pack_round(self._bodies))

    def _recall(self) -> None:
        """Go on where the journal ends, if it is of this mesh and of these scores."""
        records = self.journal.records()
        heading = Heading.of(records[0]) if records else None
        if heading is None:
            if records:
                self.log("the journal is not readable: starting anew")
            return
        self.number, self.lost = heading.run, heading.lost
        self._enter_greeting()
        same = heading == self._heading()
        if not same:
            self.log("the journal is of other scores or settings: asking for a new run")
        if not same or records[-1] == ENDED:
            self.number, self.lost = heading.run + 1, frozenset()
            self._enter_greeting()
            return
        self._open_protocol()
        for record in records[1:]:
            for j, flags, body in unpack_round(record):
                self._heard[j] = self._value(Frame(DATA, self.run, j, self.round, flags, body))
            self._answer()
        self.log(f"run {self.number}: back at round {self.round} after {len(records) - 1} from the journal")

    # --- loss and failure ---------------------------------------------------------------------------------------------

    def _silence(self, j: int) -> float:
        """Return for how long a neighbour has said nothing though this device waits for it."""
        if self.phase == "running" and j in self._heard:
            return 0.0
        return self.now - max(self._last_heard[j], self._since)

    def _lose(self, gone: list[int]) -> None:
        names = ", ".join(self._name(k) for k in gone)
        if self.settings.on_lost == "continue":
            self.log(f"lost {names}: going on without")
            self._adopt(self.number, self.lost | frozenset(gone))
            return
        what = {"greeting": "said hello", "running": f"spoken in round {self.round}"}.get(self.phase, "finished")
        has = "has" if len(gone) == 1 else "have"
        self._fail(
            f"{names} {has} not {what} within {self.settings.patience:g} s; start again what has stopped or check the "
            "link, or use --on-lost continue"
        )

    def _on_failed(self, frame: Frame) -> None:
        if frame.run != self.run:
            raise FrameError("a frame of another run")
        news = News.of(frame.body, self.full.devices)
        if self.phase == "finished":
            return
        self._fail(f"{news.why} ({self._name(news.origin)} says so; no threshold was agreed on)", news=news)

    def _fail(self, words: str, tell: bool = True, news: News | None = None) -> None:
        """End without a result, and unless it is nobody else's business tell everybody why, now and for a while."""
        if self.phase == "failed":
            return
        if self.phase == "greeting":  # the journal may know of an earlier run only
            self.journal.clear()
            self.journal.append(self._heading().pack())
        self.journal.append(ENDED)
        self.phase, self.error, self.result, self._stopped_at = "failed", PeerError(words), None, self.now
        self._news = news or (News(self.row, words) if tell else None)
        self.log(words)
        self._repeat()

    def _explain(self, to: int) -> None:
        """Say why this device has failed; the hello shows who was left out, or what differs."""
        if self._news is not None:
            self._send(to, self._hello())
            self._send(to, Frame(FAILED, self.run, self.row, self.round, 0, self._news.pack()))

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        if self.phase == "failed":
            if frame.wants:  # an answer never asks for an answer, or two devices would answer each other for ever
                self._explain(frame.sender)
            return
        if frame.sender in self.lost and frame.kind != HELLO:
            self._send(frame.sender, self._hello())
            raise FrameError("a frame of a device that was left out")
        self._on[frame.kind](frame)

    def _same_run(self, frame: Frame) -> None:
        if frame.run != self.run:
            if frame.wants:  # it missed that there is another run
                self._send(frame.sender, self._hello(WANT))
            raise FrameError("a frame of another run")
        self._last_heard[frame.sender] = self.now

    def _refuse(self, sender: int, problem: FrameError) -> None:
        self.counts.refuse(str(problem))
        self.log(f"refused from row {sender}: {problem}")

    def _repeat(self) -> None:
        """Send again what a neighbour may have missed."""
        self._next = self.now + self.settings.retry
        for j in self._talking:
            if self.phase == "failed":
                self._explain(j)
            elif self.phase == "greeting":
                self._send(j, self._hello(0 if j in self._greeted else WANT))
                if self.row in self._ready:
                    self._send(j, self._roll(READY, self._ready, WANT))
            elif self.phase == "running" and j not in self._heard:
                mine = self._mine[self.round]
                self.counts.resent += 1
                self._send(j, mine._replace(flags=mine.flags | WANT))
            elif self.phase == "finishing":
                self._send(j, self._roll(FINISHED, self._done, WANT))

    def _send(self, to: int, frame: Frame) -> None:
        data = frames.encode(frame)
        self.counts.sent += 1
        self.counts.sent_bytes += len(data)
        self._out.append((to, data))

    def _send_all(self, frame: Frame) -> None:
        """Send to every neighbour in the run; in one piece where that is every neighbour there is."""
        if self.lost:
            for j in self._talking:
                self._send(j, frame)
            return
        data = frames.encode(frame)
        self.counts.sent += len(self._talking)
        self.counts.sent_bytes += len(self._talking) * len(data)
        self._out.append((EVERYBODY, data))

    def _name(self, row: int) -> str:
        return self.full.ids[row]

    def _network(self) -> tuple[Network, int]:
        """Return the map of the survivors and this device's row in it; `DisconnectedError` if it is in parts."""
        if not self.lost:
            return self.full, self.row
        ids = self.full.ids
        kept = sorted(self._everyone)
        pairs = [(ids[k], ids[j]) for k in kept for j in self.full.neighbours(k).tolist() if k < j and j in self._place]
        return Network.from_pairs([ids[k] for k in kept], pairs), self._place[self.row]
