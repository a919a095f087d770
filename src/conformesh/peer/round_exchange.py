"""The rounds of a run at one device: send, receive from all neighbours, answer the protocol; and replay after a crash.

`Membership` decides who is in the run and when it begins and ends. A device that misses a message repeats its own frame
with WANT, and a device that receives WANT repeats its frame without. What was received is in the journal before
anything that follows from it is sent, and a protocol is deterministic given the answers: a device that starts again
replays its journal and sends the same bits.

A frame stands for its round and, where the protocol announces it (`Silence`), for a number of quiet rounds after it, in
which its sender sends nothing and nobody waits for it. So no device is ever more than one round ahead of the last round
that a neighbour's frames stand for: a device further ahead has received a frame that the neighbour does not know it
sent. A neighbour whose last frame came in round s has received everything before s, and perhaps nothing since: a device
keeps its own frames from the smallest such s on. Without quiet rounds these are two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator
from typing import Any

import numpy as np

from conformesh.graph.network import Network
from conformesh.peer import frames
from conformesh.peer.combine import Value, combine_neighbour_messages, question_name
from conformesh.peer.frames import DATA, MOST_QUIET, SILENT, Frame, FrameError
from conformesh.peer.links import Links
from conformesh.peer.memory import RunJournal, SentMessages, unpack_round
from conformesh.protocols.ledger import Ledger
from conformesh.protocols.message_checks import MessageChecks
from conformesh.protocols.messages import Each, Max, Message, Min, Tell, may_be_silent, silent_rounds


class RoundExchange:
    """Drives the protocol of one run after the other with the messages of the neighbours.

    A run is begun (`begin`, `open`, then `start` or `replay`), `speak` sends its messages, `receive` takes those of the
    neighbours, and after `close_round` comes the next round, until the protocol ends.

    Attributes
    ----------
    round
        The round of the run; 0 before the first.
    is_running, has_ended
        Whether the protocol waits for neighbours; whether it has returned its `result`.
    message
        What the protocol sends in the open round; None where there is none.
    received
        By row of a neighbour, its value in this round; None where it is silent.
    unusable
        By row of a neighbour, since when and why its message of this round cannot be used.
    early
        Frames of later rounds, by sender and round.
    ledger
        What the protocol has sent.
    """

    def __init__(self, links: Links, journal: RunJournal) -> None:
        self._links, self._journal, self._clock = links, journal, links.clock
        self.ledger = Ledger(1)
        self.begin(0, frozenset(), ())

    def begin(self, run: int, members: frozenset[int], neighbours: Collection[int]) -> None:
        """Forget all of an earlier run; `run` is the digest that names this one, `neighbours` are those in it."""
        self.run, self.round, self.neighbours = run, 0, neighbours
        self.is_running = self.has_ended = False
        self.result: Any = None
        self.message: Message | None = None
        self.received: dict[int, Value | None] = {}
        self.unusable: dict[int, tuple[float, str]] = {}
        self.early: dict[tuple[int, int], Frame] = {}
        self._protocol: Generator[Message, Any, Any] | None = None
        self._place = {k: at for at, k in enumerate(sorted(members))}  # rows in the network of the survivors
        self._sent: dict[int, Frame] = {}  # this device's own frames, by round
        self._messages: dict[int, SentMessages] = {}  # what the neighbours have sent in this round, for the journal
        self.spoken_for = 0  # the last round that this device has spoken for
        self._speaks = True  # whether it sends a frame in this round
        self._last_spoke = dict.fromkeys(neighbours, 0)  # in which round each neighbour last did
        self._quiet_until: dict[int, int] = {}  # the last round in which a neighbour has announced to be quiet
        self._head, self._wire, self._length = b"", np.dtype(np.uint8), 0  # how arrays of neighbours will look
        self._clock.wait(0.0)

    # --- the protocol -------------------------------------------------------------------------------------------------

    def open(self, make: Callable[[], Generator[Message, Any, Any]], network: Network, row: int) -> None:
        """Make the protocol of this run, for a row of the network of the survivors."""
        self.is_running = True  # before `make`: a protocol that cannot be made fails as one that runs
        self._protocol = make()
        self._checks = MessageChecks(network, np.array([row]))
        self.ledger = Ledger(1)

    def start(self) -> None:
        """Go to the first round."""
        self._advance(None)

    def _advance(self, given: Any) -> None:
        """Hand the answer to the protocol and keep the message that it sends next, or its result."""
        assert self._protocol is not None
        try:
            message = self._protocol.send(given)
        except StopIteration as end:
            # Before FINISHED is sent: a power cut must not let this device be done again under this number, with
            # other answers. See point 2 in `run_membership`.
            self._journal.sync()
            self.result, self.message, self.is_running, self.has_ended = end.value, None, False, True
            return
        self.round += 1
        self.message = message
        self._checks.check(message, self.round)
        flags, body = self._encode(message)
        self.ledger.enter(message)  # as in every engine: a broadcast counts once, repetitions do not
        self._speaks = self.round > self.spoken_for
        if self._speaks:
            self.spoken_for = self.round + min(silent_rounds(message), MOST_QUIET)
        rest = self.spoken_for - self.round
        self._sent[self.round] = Frame(DATA, self.run, self._links.row, self.round, flags, body, rest)
        self._forget_sent(min(self._last_spoke.values(), default=self.round))
        self._messages, self.received, self.unusable = {}, {}, {}
        if self._quiet_until:
            self._quiet_until = {j: until for j, until in self._quiet_until.items() if until >= self.round}
            self.received = dict.fromkeys(self._quiet_until if may_be_silent(message) else ())

    def _forget_sent(self, oldest: int) -> None:
        """Forget this device's own frames before a round: every neighbour has received them."""
        for round_ in [*self._sent]:
            if round_ >= oldest:  # rounds were added in ascending order
                return
            del self._sent[round_]

    def _encode(self, message: Message) -> tuple[int, bytes]:
        """Return flags and body of this device's frame, and note how the arrays of the neighbours will look."""
        name = question_name(message)
        question, self._length = bytes([frames.QUESTIONS[name]]), -1  # no array is that long
        silent = isinstance(message, Each | Max | Min | Tell) and not len(message.places)
        if isinstance(message, Tell):
            return (SILENT, question) if silent else (0, question + message.packets[0])
        row = message.values[0]
        self._head, self._wire = frames.array_head(name, row.dtype, row.shape), row.dtype.newbyteorder("<")
        self._length = len(self._head) + row.nbytes
        return (SILENT, question) if silent else (0, self._head + row.astype(self._wire, copy=False).tobytes())

    # --- rounds -------------------------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether the messages of all neighbours in this round are there."""
        return self.is_running and len(self.received) >= len(self.neighbours)

    def speak(self) -> None:
        """Send the message of this round, and go on until a neighbour's message is missing or the protocol has ended.

        A message that was announced as quiet is not sent.
        """
        while True:
            self._clock.wait(self._links.settings.retry)
            if self.has_ended:
                return
            if self._speaks:
                self._links.send_to_all(self.neighbours, self._sent[self.round])
            self._use_early()
            if not self.is_complete:
                return
            self.close_round()

    def close_round(self) -> None:
        """Answer the protocol when the messages of all neighbours are there."""
        # The journal first. A crash between the two lines: the replay makes this very step. The other way round, this
        # device could have sent a message that rests on answers it no longer has, and send another one after its start.
        self._journal.write_round(self._messages)
        self._answer()

    def _answer(self) -> None:
        assert self.message is not None
        received = {self._place[j]: values for j, values in self.received.items()}
        self._advance(combine_neighbour_messages(self.message, self._place[self._links.row], received, self.round))

    def keep_early(self, frame: Frame) -> None:
        """Keep a frame of a later round; of each neighbour no more bytes than the largest frame has.

        While this device is quiet for many rounds a neighbour may go on through all of them, so there may be a frame
        for each. The limit keeps a Byzantine neighbour from filling the memory.
        """
        waiting = sum(len(one.body) for (j, at), one in self.early.items() if j == frame.sender and at != frame.round)
        if waiting + len(frame.body) > frames.LARGEST_FRAME_BODY:
            raise FrameError("a frame of a later round, of which more wait already than fit")
        self.early[frame.sender, frame.round] = frame

    def _use_early(self) -> None:
        due = [key for key in self.early if key[1] <= self.round]
        for key in due:
            frame = self.early.pop(key)
            try:
                self.receive(frame)
            except FrameError as problem:
                self._links.refuse(frame.sender, problem)

    def sent_in(self, round_: int) -> Frame | None:
        """Return this device's frame of a round, else of the present round; None where there is neither."""
        return self._sent.get(round_) or self._sent.get(self.round)

    def receive(self, frame: Frame) -> None:
        """Take what a neighbour sends in this round. The first message counts; repetitions change nothing."""
        j = frame.sender
        if not self.is_running or frame.round != self.round:
            return
        # Quiet rounds are in `received` without a message. Silence again is harmless; anything else contradicts what
        # the neighbour has announced, and some devices may have gone on without it.
        if j in self.received:
            if not frame.silent and j not in self._messages:
                raise FrameError("a frame that speaks in a round for which its sender has announced to be quiet")
            return
        try:
            self._take(j, SentMessages(frame.flags & SILENT, frame.body, frame.quiet))
        except FrameError as problem:
            raise self.mark_unusable(j, str(problem)) from None

    def mark_unusable(self, sender: int, problem: str) -> FrameError:
        """Note that the message of a neighbour in this round cannot be used, and return the error to raise.

        The neighbour will repeat the message, so frames of it are no sign of life any more: see `Presence.silence_of`.
        """
        self.unusable.setdefault(sender, (self._clock.now, problem))  # since the first, however often it is repeated
        return FrameError(problem)

    def _take(self, j: int, sent: SentMessages) -> None:
        """Take a neighbour's message of this round, and note for how long it is quiet afterwards."""
        self.received[j] = self._value(Frame(DATA, self.run, j, self.round, sent.flags, sent.body))
        self._messages[j] = sent
        self._last_spoke[j] = self.round
        if sent.quiet:
            self._quiet_until[j] = self.round + sent.quiet

    def _value(self, frame: Frame) -> Value | None:
        """Return the value in a frame, which must be of the kind that this device sends in this round."""
        assert self.message is not None
        own, body = self.message.values, frame.body
        # Nearly every frame is an array of the shape that this device sends, and comparing the head with the expected
        # bytes checks all of it at once. What follows is slower and finds out what is wrong with the others.
        if len(body) == self._length and body.startswith(self._head) and not frame.silent:
            return np.frombuffer(body, self._wire, offset=len(self._head)).reshape(own.shape[1:])
        question, expected = frames.unpack_question(body), question_name(self.message)
        if question != expected:
            raise FrameError(f"a frame asks for the {question} where this device asks for the {expected}")
        if frame.silent:
            if not may_be_silent(self.message):
                raise FrameError("a silent frame where everybody speaks")
            if len(body) > 1:
                raise FrameError(f"a silent frame that says {len(body) - 1} bytes")
            return None
        if isinstance(self.message, Tell):
            try:
                if self.message.check is not None:
                    self.message.check(body[1:])
            except ValueError as problem:
                raise FrameError(f"a frame tells what nobody could: {problem}") from None
            return body[1:]
        values, shape = frames.unpack_array(body), own.shape[1:]
        other = " in another shape" if values.size == math.prod(shape) and values.dtype == own.dtype else ""
        raise FrameError(f"a frame holds {values.size} {values.dtype}{other}, this device {own.dtype} of shape {shape}")

    def replay(self, records: list[bytes]) -> None:
        """Go to the round where the journal ends: take the messages in it again, round by round.

        Nothing is sent meanwhile, and nothing is written. Neighbours that miss a message of this device ask for it.
        """
        self.start()
        for record in records:
            for j, sent in unpack_round(record):
                self._take(j, sent)
            self._answer()
