"""The rounds of a run at one device: say, hear everybody, answer the protocol, go on; and the memory to do it again.

`Device` adds who is in the run and how it begins and ends. A device that misses something repeats its own frame with
WANT, and who hears WANT repeats what is missing. What was heard is in the journal before anything that follows from it
is said, and a protocol is deterministic given the answers: a device that starts again replays its journal.

A frame speaks for its round and, where the protocol knows so (`Silence`), for a number of silent ones after it, in
which its sender sends nothing and nobody waits for it. So nobody is ever more than one round ahead of the last round
that a neighbour has spoken for: who is further ahead has heard what the neighbour no longer knows it said. And a
neighbour whose last frame came in round s has heard all before s and maybe nothing since: one's own frames from the
earliest such s on are memory enough, which without quiet rounds are two.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator
from typing import Any

import numpy as np

from conformesh.graph.network import Network
from conformesh.peer import frames
from conformesh.peer.combine import Value, answer, question_of
from conformesh.peer.frames import DATA, MOST_QUIET, SILENT, WANT, Frame, FrameError
from conformesh.peer.links import EVERYBODY, Linked
from conformesh.peer.memory import REPORTED, Heading, SentMessages, pack_round, unpack_round
from conformesh.protocols.ledger import Ledger
from conformesh.protocols.message_checks import MessageChecks
from conformesh.protocols.messages import Each, Max, Message, Min, Tell, may_be_silent, silent_rounds


class Rounds(Linked):
    """What a device does between two roll calls; the parameters are those of `Device`."""

    result: Any = None

    def _clear_rounds(self, run: int) -> None:
        """Forget all of an earlier run; `run` is the digest that names this one."""
        self.phase, self.round, self.run = "greeting", 0, run
        self._everyone = frozenset(range(self.full.devices)) - self.lost
        self._talking = [j for j in self._linked if j not in self.lost]
        self._place = {k: at for at, k in enumerate(sorted(self._everyone))}  # rows in the network of the survivors
        self._done: frozenset[int] = frozenset()
        self._protocol: Generator[Message, Any, Any] | None = None
        self._message: Message | None = None
        self._mine: dict[int, Frame] = {}
        self._heard: dict[int, Value | None] = {}
        self._said_now: dict[int, SentMessages] = {}
        self._misread: dict[int, tuple[float, str]] = {}  # since when, and why, what one says in this round is no use
        self._early: dict[tuple[int, int], Frame] = {}  # by sender and round
        self._spoken_for, self._aloud = 0, True  # the last round that this device has spoken for; whether it does now
        self._spoke = dict.fromkeys(self._talking, 0)  # in which round a neighbour last did
        self._quiet: dict[int, int] = {}  # until which round one says nothing that has announced it
        self._head, self._wire, self._length = b"", np.dtype(np.uint8), 0
        self._since = self._next = self.now  # since when this device waits for the others, and when it acts again

    @property
    def message(self) -> Message | None:
        """What the protocol says in the open round; None where there is none."""
        return self._message

    # --- what a device adds -------------------------------------------------------------------------------------------

    @abstractmethod
    def _same_run(self, frame: Frame) -> None:
        """Refuse a frame of another run."""

    @abstractmethod
    def _context(self) -> bytes:
        """Return what names this run beyond doubt."""

    @abstractmethod
    def _call_done(self) -> None:
        """Say that this device has its result."""

    @abstractmethod
    def _start_over(self, frame: Frame) -> None:
        """Ask for a new run: this one cannot be finished."""

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _open_protocol(self) -> None:
        network, row = self._survivors() if self.lost else (self.full, self.row)
        self.phase = "running"
        self._protocol = self.make(network, row, self._context()) if self.private else self.make(network, row)
        self._rules = MessageChecks(network, np.array([row]))
        self.ledger = Ledger(1)
        self.log(f"run {self.number}: {network.devices} devices")
        self._advance(None)

    def _advance(self, given: Any) -> None:
        """Hand the answer to the protocol and note what it says next, or its result."""
        assert self._protocol is not None
        try:
            message = self._protocol.send(given)
        except StopIteration as end:
            self.journal.sync()  # a device says once for each number of a run that it is done, also after a power cut
            self.result, self._message, self.phase = end.value, None, "finishing"
            self._done = frozenset({self.row})
            return
        self.round += 1
        self._message = message
        self._rules.check(message, self.round)
        flags, body = self._said(message)
        self.ledger.enter(message)  # as in every engine: a broadcast counts once, repetitions do not
        self._aloud = self.round > self._spoken_for
        if self._aloud:
            self._spoken_for = self.round + min(silent_rounds(message), MOST_QUIET)
        rest = self._spoken_for - self.round
        self._mine[self.round] = Frame(DATA, self.run, self.row, self.round, flags, body, rest)
        self._forget(min(self._spoke.values(), default=self.round))
        self._said_now, self._heard, self._misread = {}, {}, {}
        if self._quiet:
            self._quiet = {j: until for j, until in self._quiet.items() if until >= self.round}
            self._heard = dict.fromkeys(self._quiet if may_be_silent(message) else ())

    def _forget(self, oldest: int) -> None:
        """Forget one's own frames before a round: every neighbour has heard them."""
        for round_ in [*self._mine]:
            if round_ >= oldest:  # they stand in their order
                return
            del self._mine[round_]

    def _said(self, message: Message) -> tuple[int, bytes]:
        """Return the flags and the body of what this device says, and note how the arrays of the others will look."""
        name = question_of(message)
        question, self._length = bytes([frames.QUESTIONS[name]]), -1  # no array is that long
        silent = isinstance(message, Each | Max | Min | Tell) and not len(message.places)
        if isinstance(message, Tell):
            return (SILENT, question) if silent else (0, question + message.packets[0])
        row = message.values[0]
        self._head, self._wire = frames.array_head(name, row.dtype, row.shape), row.dtype.newbyteorder("<")
        self._length = len(self._head) + row.nbytes
        return (SILENT, question) if silent else (0, self._head + row.astype(self._wire, copy=False).tobytes())

    def _speak(self) -> None:
        """Say what this round is about, unless that was announced, use what came early, and go on if that is all."""
        while True:
            self._since, self._next = self.now, self.now + self.settings.retry
            if self.phase == "finishing":
                self._call_done()
                return
            if self._aloud:
                self._send_all(self._mine[self.round])
            self._use_early()
            if not self._complete:
                return
            self._remember()
            self._answer()

    def _keep_early(self, frame: Frame) -> None:
        """Keep a frame of a later round; of one neighbour no more bytes than the largest frame has."""
        waiting = sum(len(one.body) for (j, at), one in self._early.items() if j == frame.sender and at != frame.round)
        if waiting + len(frame.body) > frames.LARGEST:
            raise FrameError("a frame of a later round, of which more wait already than fit")
        self._early[frame.sender, frame.round] = frame

    def _use_early(self) -> None:
        now = [key for key in self._early if key[1] <= self.round]
        for key in now:
            frame = self._early.pop(key)
            try:
                self._hear(frame)
            except FrameError as problem:
                self._refuse(frame.sender, problem)

    @property
    def _complete(self) -> bool:
        """Whether all neighbours have spoken in this round."""
        return self.phase == "running" and len(self._heard) >= len(self._talking)

    def _go_on(self) -> None:
        """Answer the protocol when all have spoken."""
        if self._complete:
            self._remember()
            self._answer()
            self._speak()

    def _on_data(self, frame: Frame) -> None:
        self._same_run(frame)
        if self.phase == "greeting":  # it knows that all agree, and we do not yet
            self._send(frame.sender, self._hello(WANT))
            if frame.round == 1:
                self._keep_early(frame)
            return
        if frame.flags & WANT:
            self._help(frame)
        if self.phase != "running" or frame.round < self.round:
            return  # heard before: a repetition
        if frame.round == self.round:
            self._hear(frame)
            self._go_on()
        elif frame.round <= self._spoken_for + 1:
            self._keep_early(frame)
        else:
            self._start_over(frame)

    def _help(self, frame: Frame) -> None:
        """Repeat what a neighbour misses, or what we say now: then it knows where we are, and that we are alive."""
        mine = self._mine.get(frame.round) or self._mine.get(self.round)
        if mine is None:  # still greeting
            mine = self._hello(WANT)
        self.counts.resent += 1
        self._send(frame.sender, mine)

    def _hear(self, frame: Frame) -> None:
        """Take what a neighbour says in this round."""
        j = frame.sender
        if self.phase != "running" or frame.round != self.round:
            return
        if j in self._heard:
            if not frame.silent and j not in self._said_now:
                raise FrameError("a frame that speaks in a round for which its sender has announced to be quiet")
            return
        try:
            self._take_said(j, SentMessages(frame.flags & SILENT, frame.body, frame.quiet))
        except FrameError as problem:
            raise self._not_understood(j, str(problem)) from None

    def _not_understood(self, sender: int, problem: str) -> FrameError:
        """Note that what a neighbour says in this round is of no use: it will say so again and again, as if alive."""
        self._misread.setdefault(sender, (self.now, problem))
        return FrameError(problem)

    def _take_said(self, j: int, said: SentMessages) -> None:
        """Note what a neighbour says in this round, and for how long it says nothing afterwards."""
        self._heard[j] = self._value(Frame(DATA, self.run, j, self.round, said.flags, said.body))
        self._said_now[j] = said
        self._spoke[j] = self.round
        if said.quiet:
            self._quiet[j] = self.round + said.quiet

    def _value(self, frame: Frame) -> Value | None:
        """Return what a frame says, which must be of the kind that this device sends in this round."""
        assert self._message is not None
        mine, body = self._message.values, frame.body
        if len(body) == self._length and body.startswith(self._head) and not frame.flags & SILENT:
            return np.frombuffer(body, self._wire, offset=len(self._head)).reshape(mine.shape[1:])
        question, expected = frames.unpack_question(body), question_of(self._message)  # slower, and knows what is wrong
        if question != expected:
            raise FrameError(f"a frame asks for the {question} where this device asks for the {expected}")
        if frame.silent:
            if not may_be_silent(self._message):
                raise FrameError("a silent frame where everybody speaks")
            if len(body) > 1:
                raise FrameError(f"a silent frame that says {len(body) - 1} bytes")
            return None
        if isinstance(self._message, Tell):
            try:
                if self._message.check is not None:
                    self._message.check(body[1:])
            except ValueError as problem:
                raise FrameError(f"a frame tells what nobody could: {problem}") from None
            return body[1:]
        values, shape = frames.unpack_array(body), mine.shape[1:]
        other = " in another shape" if values.size == math.prod(shape) and values.dtype == mine.dtype else ""
        raise FrameError(
            f"a frame holds {values.size} {values.dtype}{other}, this device {mine.dtype} of shape {shape}"
        )

    def _answer(self) -> None:
        assert self._message is not None
        heard = {self._place[j]: values for j, values in self._heard.items()}
        self._advance(answer(self._message, self._place[self.row], heard, self.round))

    # --- memory -------------------------------------------------------------------------------------------------------

    def _heading(self) -> Heading:
        return Heading(self.number, self.lost, self.run, self.scores)

    def _begin_journal(self) -> None:
        """Let the journal know of this run, before anything is said in it."""
        self.journal.begin(self._heading().pack())

    def _end_journal(self, last: bytes = REPORTED) -> None:
        """Let the journal know that this run is over; `last` is ENDED if it has a result."""
        self._write(self.journal.append, last)

    def _remember(self) -> None:
        """Write down what was heard in this round; of a private run, which is never replayed, only that it was."""
        self.journal.append(pack_round({} if self.private else self._said_now))

    def _replay(self, records: list[bytes]) -> None:
        """Hear again what the journal holds, round by round."""
        self._open_protocol()
        for record in records:
            for j, said in unpack_round(record):
                self._take_said(j, said)
            self._answer()
        self.log(f"run {self.number}: back at round {self.round} after {len(records)} from the journal")

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _send_all(self, frame: Frame) -> None:
        """Send to every neighbour in the run; in one piece where that is every neighbour there is."""
        if len(self._talking) < len(self._linked):
            for j in self._talking:
                self._send(j, frame)
            return
        data = frames.encode(frame)
        self.counts.sent += len(self._talking)
        self.counts.sent_bytes += len(self._talking) * len(data)
        self._out.append((EVERYBODY, data))

    def _survivors(self) -> tuple[Network, int]:
        """Return the map of the devices that are left, and this device's row in it."""
        ids = self.full.ids
        kept = sorted(self._everyone)
        pairs = [(ids[k], ids[j]) for k in kept for j in self.full.neighbours(k).tolist() if k < j and j in self._place]
        return Network.from_pairs([ids[k] for k in kept], pairs), self._place[self.row]
