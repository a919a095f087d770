"""A device: drives one protocol with its neighbours' frames. No socket, no clock, no thread: those belong to engines.

An engine hands over what arrived (`receive`) and the time (`tick`), and sends what `outbox` holds. The same object runs
over a real network and in the loopback engine, whose fake network does everything that real ones do.

Greeting    hello to every neighbour, with all that must match; a difference ends the device before any number is sent
Running     say this round's message, wait for every neighbour's of the same round, answer the protocol, go on.
            A device that misses something repeats its own frame with WANT, and who hears WANT repeats what is missing.
            Nobody is ever more than one round ahead of a neighbour, so two frames of one's own are memory enough
Finishing   tell everybody that everybody has finished: a result counts once all devices have theirs
Recovery    what was heard is in the journal before anything that follows from it is said; a restarted device replays
Loss        a neighbour that was silent for `patience` is lost. Either everybody ends with an error that names it, or
            (`on_lost="continue"`) the survivors greet each other again without it

Frames that are malformed, of another run or round, or of a stranger are refused and counted; they change nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from conformesh.engines import frames
from conformesh.engines.answers import answer, question_of, said
from conformesh.engines.frames import DATA, FINISHED, HELLO, LOST, SILENT, WANT, Frame, FrameError
from conformesh.engines.journal import Journal
from conformesh.network import Network
from conformesh.protocols.messages import Each, Message

Array = NDArray[Any]
Make = Callable[[Network, int], Generator[Message, Any, Any]]
Phase = Literal["greeting", "running", "finishing", "finished", "failed"]
PROTOCOL_VERSION = 1
MOST_RUNS = 2**48
MOST_REASONS = 64  # a stranger must not fill the memory with reasons to refuse it
FINISHED_RECORD = b"finished"


class PeerError(RuntimeError):
    """A neighbour is missing, disagrees or misbehaves; the message names it."""


@dataclass(frozen=True)
class Settings:
    """How long a device waits, in seconds, and what it does about a neighbour that is lost."""

    retry: float = 0.2
    patience: float = 30.0
    linger: float = 2.0
    on_lost: Literal["fail", "continue"] = "fail"


@dataclass
class Counts:
    """What a device has sent and heard."""

    sent: int = 0
    sent_bytes: int = 0
    numbers: int = 0
    payload_bits: int = 0
    resent: int = 0
    heard: Counter[int] = field(default_factory=Counter)
    heard_bytes: Counter[int] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


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
        self._linked = [int(j) for j in network.neighbours(row)]
        self.settings, self.scores, self.log = settings or Settings(), scores, log
        self.agreement = {
            **agreement,
            "on lost": self.settings.on_lost,
            "protocol version": str(PROTOCOL_VERSION),
        }
        self.counts = Counts()
        self.phase: Phase = "greeting"
        self.error: PeerError | None = None
        self.result: Any = None
        self.number = 1
        self.lost: frozenset[int] = frozenset()
        self.round = 0
        self.now = 0.0
        self._out: list[tuple[int, bytes]] = []
        self._last_heard: dict[int, float] = {}
        self._stopped_at = 0.0
        self._bad_news: Frame | None = None
        self._on = {HELLO: self._on_hello, DATA: self._on_data, FINISHED: self._on_finished, LOST: self._on_lost}
        self._enter_greeting()

    # --- what an engine calls -----------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin, or go on where the journal ends."""
        self.now = now
        self._last_heard = dict.fromkeys(self._all_neighbours(), now)
        self._recall()
        self._repeat()
        if self.phase == "greeting" and not self._talking:  # nobody to wait for
            self._begin()

    def receive(self, data: bytes, sender: int, now: float) -> None:
        """Take bytes that came from a neighbour; the transport knows who that is."""
        self.now = max(self.now, now)
        try:
            frame = frames.decode(data)
            if sender not in self._all_neighbours():
                raise FrameError("a frame of a device that is no neighbour")
            if frame.sender != sender:
                raise FrameError("a frame that names another sender than its connection")
            self._take(frame)
        except FrameError as problem:
            self._refuse(sender, problem)
            return
        self.counts.heard[sender] += 1
        self.counts.heard_bytes[sender] += len(data)

    def _refuse(self, sender: int, problem: FrameError) -> None:
        reasons, words = self.counts.refused, str(problem)
        reasons[words if words in reasons or len(reasons) < MOST_REASONS else "other"] += 1
        self.log(f"refused from row {sender}: {problem}")

    def tick(self, now: float) -> None:
        """Notice that time has passed: repeat what may be lost, give up on who is."""
        self.now = max(self.now, now)
        if self.phase in ("finished", "failed"):
            return
        gone = [j for j in self._neighbours() if self.now - self._last_heard[j] > self.settings.patience]
        if gone:
            self._lose(gone)
        if self.phase in ("greeting", "running", "finishing") and self.now >= self._next:
            self._repeat()

    def outbox(self) -> list[tuple[int, bytes]]:
        """Return what to send, as (row of a neighbour, bytes), and forget it."""
        out, self._out = self._out, []
        return out

    @property
    def wake(self) -> float:
        """When the device wants to be ticked again at the latest."""
        return self._stopped_at + self.settings.linger if self.phase in ("finished", "failed") else self._next

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, also for the neighbours."""
        if self.phase == "failed":
            return self.now >= self._stopped_at + self.settings.linger
        if self.phase != "finished":
            return False
        done = all(self._knows.get(j) == self._everyone() for j in self._neighbours())
        return done or self.now >= self._stopped_at + self.settings.linger

    @property
    def survivors(self) -> tuple[int, ...]:
        """Rows of the devices that are in the run."""
        return tuple(k for k in range(self.full.devices) if k not in self.lost)

    def recalibrate(self, now: float) -> None:
        """Ask everybody for a new run."""
        self.now = now
        self._adopt(self.number + 1, self.lost)

    # --- greeting -----------------------------------------------------------------------------------------------------

    def _enter_greeting(self) -> None:
        self.phase, self.round = "greeting", 0
        self._talking = [j for j in self._linked if j not in self.lost]
        self._place = {k: at for at, k in enumerate(self.survivors)}  # rows in the network of the survivors
        self.run = self._digest()
        self._greeted: set[int] = set()
        self._protocol: Generator[Message, Any, Any] | None = None
        self._message: Message | None = None
        self._mine: dict[int, Frame] = {}
        self._heard: dict[int, Array | None] = {}
        self._bodies: dict[int, bytes] = {}
        self._early: dict[int, Frame] = {}
        self._knows: dict[int, frozenset[int]] = {}
        self._done: frozenset[int] = frozenset()
        self._next = self.now

    def _digest(self) -> int:
        words = frames.pack_words({"agreement": self.agreement, "run": self.number, "lost": sorted(self.lost)})
        return int.from_bytes(hashlib.sha256(words).digest()[:8], "little")

    def _hello(self, flags: int = 0) -> Frame:
        words = {"agreement": self.agreement, "run": self.number, "lost": sorted(self.lost)}
        return Frame(HELLO, 0, self.row, 0, flags, frames.pack_words(words))

    def _on_hello(self, frame: Frame) -> None:
        words = frames.unpack_words(frame.body)
        theirs, number, lost = words.get("agreement"), words.get("run"), words.get("lost")
        if not isinstance(theirs, dict) or type(number) is not int or not isinstance(lost, list):
            raise FrameError("a hello without agreement, run and lost")
        if not 0 < number < MOST_RUNS:
            raise FrameError("a hello with an impossible run")
        if not all(type(k) is int and 0 <= k < self.full.devices for k in lost):
            raise FrameError("a hello that names lost devices outside the roster")
        if theirs != self.agreement:
            self._disagree(frame.sender, theirs)
            return
        if lost and self.settings.on_lost == "fail":
            raise FrameError("a hello that leaves devices out, which this mesh does not allow")
        self._last_heard[frame.sender] = self.now
        if self.row in lost:
            self._fail(f"{self._name(self.row)} was declared lost by {self._name(frame.sender)} and left out")
            return
        if number > self.number or not set(lost) <= self.lost:
            self._adopt(max(number, self.number), self.lost | frozenset(lost))
        if number == self.number and frozenset(lost) == self.lost:
            self._greeted.add(frame.sender)
        if frame.wants or number < self.number or set(lost) < self.lost:
            self._send(frame.sender, self._hello())
        if self.phase == "greeting" and self._greeted >= set(self._neighbours()):
            self._begin()

    def _disagree(self, sender: int, theirs: Mapping[str, str]) -> None:
        self._send(sender, self._hello())
        names = sorted({*theirs, *self.agreement})
        differ = [
            f"{name}: {self.agreement.get(name, 'nothing')!r} here, {str(theirs.get(name, 'nothing'))!r} there"
            for name in names
            if theirs.get(name) != self.agreement.get(name)
        ]
        self._fail(
            f"{self._name(self.row)} and {self._name(sender)} do not agree; {'; '.join(differ)}. Nothing was sent; "
            "make both folders the same"
        )

    def _adopt(self, number: int, lost: frozenset[int]) -> None:
        """Leave the run as it is for a later one, or for one with fewer devices."""
        if self.phase == "failed":
            return
        self.number, self.lost, self.result = number, lost, None
        self._enter_greeting()
        if not self._connected():
            gone = ", ".join(self._name(k) for k in sorted(lost))
            self._fail(f"without {gone} the network falls into parts; no threshold can be agreed on")
            return
        self.log(f"run {number}: greeting {len(self._neighbours())} neighbours")
        self._repeat()
        if not self._talking:
            self._begin()

    # --- running ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the protocol; from here on the journal knows of this run."""
        self.journal.clear()
        self.journal.append(frames.pack_words(self._heading()))
        self._open_protocol()
        self._speak()

    def _heading(self) -> dict[str, Any]:
        return {"run": self.number, "lost": sorted(self.lost), "digest": f"{self.run:016x}", "scores": self.scores}

    def _open_protocol(self) -> None:
        network, row = self._network()
        self.phase = "running"
        self._protocol = self.make(network, row)
        self.counts.numbers = self.counts.payload_bits = 0
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
        value = said(message)
        flags = SILENT if value is None else 0
        if value is not None:  # as on the simulator's ledger: a broadcast counts once, repetitions do not
            self.counts.numbers += value.size
            self.counts.payload_bits += 8 * value.nbytes
        body = frames.pack_array(question_of(message), np.empty(0, np.uint8) if value is None else value)
        self._mine[self.round] = Frame(DATA, self.run, self.row, self.round, flags, body)
        self._mine.pop(self.round - 2, None)
        self._heard, self._bodies = {}, {}

    def _speak(self) -> None:
        """Say what this round is about, and use what came early."""
        self._next = self.now + self.settings.retry
        if self.phase == "finishing":
            self._on_progress()
            return
        data = frames.encode(self._mine[self.round])  # once for all neighbours
        for j in self._talking:
            self._post(j, data)
        early, self._early = self._early, {}
        for frame in early.values():
            try:
                self._hear(frame)
            except FrameError as problem:
                self._refuse(frame.sender, problem)

    def _on_data(self, frame: Frame) -> None:
        if frame.run != self.run:
            if frame.wants:  # it missed that there is another run
                self._send(frame.sender, self._hello(WANT))
            raise FrameError("a frame of another run")
        self._last_heard[frame.sender] = self.now
        if self.phase == "greeting":  # it heard our hello, we have not heard its
            self._send(frame.sender, self._hello(WANT))
            self._early[frame.sender] = frame
            return
        if frame.wants:
            self._help(frame)
        if self.phase != "running" or frame.round < self.round:
            return  # heard before: a repetition
        if frame.round == self.round + 1:
            self._early[frame.sender] = frame
            return
        if frame.round > self.round + 1:
            self._start_over()
            return
        self._hear(frame)

    def _help(self, frame: Frame) -> None:
        """Repeat what a neighbour misses, or what we say now: then it knows where we are, and that we are alive."""
        mine = self._mine.get(frame.round) or self._mine.get(self.round)
        if mine is not None:
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
        self._bodies[frame.sender] = bytes([frame.flags & SILENT]) + frame.body
        if len(self._heard) < len(self._neighbours()):
            return
        self._remember()
        self._answer()
        self._speak()

    def _value(self, frame: Frame) -> Array | None:
        assert self._message is not None
        question, values = frames.unpack_array(frame.body)
        expected = question_of(self._message)
        if question != expected:
            raise FrameError(f"a frame asks for the {question} where this device asks for the {expected}")
        if frame.silent:
            if not isinstance(self._message, Each):
                raise FrameError("a silent frame where everybody speaks")
            return None
        mine = self._message.values
        if values.dtype != mine.dtype or values.shape != mine.shape[1:]:
            raise FrameError(
                f"a frame holds {values.dtype} of shape {values.shape}, this device {mine.dtype} of {mine.shape[1:]}"
            )
        return values

    def _answer(self) -> None:
        assert self._message is not None
        heard = {self._place[j]: values for j, values in self._heard.items()}
        self._advance(answer(self._message, self._place[self.row], heard))

    # --- memory -------------------------------------------------------------------------------------------------------

    def _remember(self) -> None:
        parts = [len(self._bodies).to_bytes(4, "little")]
        for j in sorted(self._bodies):
            body = self._bodies[j]
            parts += [j.to_bytes(4, "little"), len(body).to_bytes(4, "little"), body]
        self.journal.append(b"".join(parts))

    def _recall(self) -> None:
        """Go on where the journal ends, if it is of this mesh and of these scores."""
        records = self.journal.records()
        if not records:
            return
        try:
            heading = frames.unpack_words(records[0])
            number, lost = int(heading["run"]), frozenset(map(int, heading["lost"]))
        except (FrameError, KeyError, TypeError, ValueError):
            self.log("the journal is not readable: starting anew")
            return
        self.number, self.lost = number, lost
        self._enter_greeting()
        if records[-1] == FINISHED_RECORD:
            self.number, self.lost = number + 1, frozenset()
            self._enter_greeting()
            return
        if heading != self._heading():
            self.log("the journal is of other scores or settings: asking for a new run")
            self.number, self.lost = number + 1, frozenset()
            self._enter_greeting()
            return
        self._open_protocol()
        for record in records[1:]:
            self._replay(record)
        self._greeted = set(self._neighbours())
        self.log(f"run {self.number}: back at round {self.round} after {len(records) - 1} from the journal")

    def _replay(self, record: bytes) -> None:
        at, count = 4, int.from_bytes(record[:4], "little")
        for _ in range(count):
            j, length = (int.from_bytes(record[at + k : at + k + 4], "little") for k in (0, 4))
            body = record[at + 8 : at + 8 + length]
            at += 8 + length
            frame = Frame(DATA, self.run, j, self.round, body[0], body[1:])
            self._heard[j] = self._value(frame)
        self._answer()

    # --- finishing ----------------------------------------------------------------------------------------------------

    def _everyone(self) -> frozenset[int]:
        return frozenset(self.survivors)

    def _finished_frame(self, flags: int = 0) -> Frame:
        return Frame(FINISHED, self.run, self.row, self.round, flags, frames.pack_words({"done": sorted(self._done)}))

    def _on_finished(self, frame: Frame) -> None:
        if frame.run != self.run:
            if frame.wants:
                self._send(frame.sender, self._hello(WANT))
            raise FrameError("a frame of another run")
        self._last_heard[frame.sender] = self.now
        done = frames.unpack_words(frame.body).get("done")
        if not isinstance(done, list) or not all(type(k) is int for k in done) or not {*done} <= self._everyone():
            raise FrameError("a finished frame that names devices outside the run")
        if self.phase == "running" and frame.round > self.round + 1:
            self._start_over()
            return
        if self.phase not in ("finishing", "finished"):
            if frame.wants:
                self._help(frame)
            return  # not so far yet: it will be repeated
        grown = self._done | frozenset(done)
        self._knows[frame.sender] = frozenset(done)
        if frame.wants or grown != self._done:
            changed, self._done = grown != self._done, grown
            self._send(frame.sender, self._finished_frame())
            if changed:
                self._on_progress()

    def _on_progress(self) -> None:
        for j in self._neighbours():
            self._send(j, self._finished_frame())
        if self.phase == "finishing" and self._done == self._everyone():
            self.phase, self._stopped_at = "finished", self.now
            self.journal.append(FINISHED_RECORD)
            self.log(f"run {self.number}: finished after {self.round} rounds")

    # --- loss ---------------------------------------------------------------------------------------------------------

    def _lose(self, gone: list[int]) -> None:
        names = ", ".join(self._name(k) for k in gone)
        if self.settings.on_lost == "continue":
            self.log(f"lost {names}: going on without")
            self._adopt(self.number, self.lost | frozenset(gone))
            return
        what = {"greeting": "said hello", "running": f"spoke in round {self.round}"}.get(self.phase, "finished")
        self._tell(gone)
        self._fail(
            f"{names} has not {what} within {self.settings.patience:g} s; start it again or check the link, "
            "or use --on-lost continue"
        )

    def _tell(self, gone: list[int]) -> None:
        self._bad_news = Frame(LOST, self.run, self.row, self.round, 0, frames.pack_words({"lost": sorted(gone)}))
        for j in self._neighbours():
            if j not in gone:
                self._send(j, self._bad_news)

    def _on_lost(self, frame: Frame) -> None:
        if frame.run != self.run:
            raise FrameError("a frame of another run")
        gone = frames.unpack_words(frame.body).get("lost")
        if not isinstance(gone, list) or not gone or not all(type(k) is int for k in gone):
            raise FrameError("a lost frame without a list of rows")
        if not {*gone} <= self._everyone():
            raise FrameError("a lost frame that names nobody of the run")
        if self.phase in ("finished", "failed") or self.settings.on_lost == "continue":
            return
        names = ", ".join(self._name(k) for k in gone)
        self._tell(gone)
        self._fail(f"{names} is lost, says {self._name(frame.sender)}; no threshold was agreed on")

    def _fail(self, words: str) -> None:
        if self.phase != "failed":
            self.phase, self.error, self._stopped_at = "failed", PeerError(words), self.now
            self.result = None
            self.log(words)

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        if frame.sender in self.lost and frame.kind != HELLO:
            self._send(frame.sender, self._hello())
            raise FrameError("a frame of a device that was left out")
        if self.phase == "failed":
            if self._bad_news is not None and frame.wants:
                self._send(frame.sender, self._bad_news)
            return
        self._on[frame.kind](frame)

    def _repeat(self) -> None:
        """Send again what a neighbour may have missed."""
        self._next = self.now + self.settings.retry
        for j in self._neighbours():
            if self.phase == "greeting":
                self._send(j, self._hello(0 if j in self._greeted else WANT))
            elif self.phase == "running" and j not in self._heard:
                mine = self._mine[self.round]
                self.counts.resent += 1
                self._send(j, Frame(DATA, mine.run, mine.sender, mine.round, mine.flags | WANT, mine.body))
            elif self.phase == "finishing":
                self._send(j, self._finished_frame(WANT))

    def _send(self, to: int, frame: Frame) -> None:
        self._post(to, frames.encode(frame))

    def _post(self, to: int, data: bytes) -> None:
        self.counts.sent += 1
        self.counts.sent_bytes += len(data)
        self._out.append((to, data))

    def _all_neighbours(self) -> list[int]:
        return self._linked

    def _neighbours(self) -> list[int]:
        return self._talking

    def _name(self, row: int) -> str:
        return self.full.ids[row]

    def _network(self) -> tuple[Network, int]:
        """Return the map of the survivors and this device's row in it."""
        if not self.lost:
            return self.full, self.row
        ids = self.full.ids
        kept = [k for k in range(self.full.devices) if k not in self.lost]
        pairs = [
            (ids[k], ids[j]) for k in kept for j in self.full.neighbours(k).tolist() if k < j and j not in self.lost
        ]
        return Network.from_pairs([ids[k] for k in kept], pairs), kept.index(self.row)

    def _connected(self) -> bool:
        seen, todo = {self.row}, [self.row]
        while todo:
            for j in self.full.neighbours(todo.pop()).tolist():
                if j not in seen and j not in self.lost:
                    seen.add(j)
                    todo.append(j)
        return len(seen) == len(self.survivors)
