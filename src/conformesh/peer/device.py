"""A device in rounds: drives one protocol with its neighbours' frames. No socket, no clock, no thread.

The same object runs over a real network and in the loopback engine, whose fake network does everything that real ones
do. It is composed of its links, the rounds of a run (`round_exchange`), the membership of the run (`membership`), and
the spreading of rosters. This module puts them together and handles failures, of neighbours and of the device itself.

Greeting    hello to every neighbour, with all that must match; then a roll call through the whole network. Data begins
            when everybody is known to agree: a difference anywhere ends everybody before any number is sent
Running     the protocol's rounds, and their memory
Finishing   another roll call: a result counts once all devices in the run have theirs
Loss        a neighbour that was silent for `patience` is lost. Either everybody ends with an error that names it, or
            (`on_lost="continue"`) the survivors greet each other again without it, if they are a quorum
            (`run_membership`)
Return      a lost device that is back takes part in the next run, and interrupts nothing (`presence`)
Failure     a device that fails sends the reason to everybody, again and again for a while, and ends without a result;
            a device whose protocol raises does so, too. Under `continue` it counts as lost, unless devices disagree

Frames that are malformed, of another run or round, or of a stranger are refused and counted; they change nothing.
"""

from __future__ import annotations

from typing import Any

from conformesh.graph.network import Network
from conformesh.peer import frames
from conformesh.peer.frames import DATA, FAILED, FINISHED, HELLO, READY, Frame, FrameError
from conformesh.peer.interface import Make, PeerSetup, Phase
from conformesh.peer.json_bodies import Hello, News, one_line_text
from conformesh.peer.links import Clock, Links
from conformesh.peer.membership import Membership
from conformesh.peer.memory import REPORTED, RunJournal
from conformesh.peer.roster_exchange import RosterExchange
from conformesh.peer.round_exchange import RoundExchange
from conformesh.peer.run_membership import RunMembership
from conformesh.peer.settings import Counts, Failure, PeerError, failure_of
from conformesh.protocols.ledger import Ledger
from conformesh.protocols.messages import Message
from conformesh.results.certificate import Cost


class Device:
    """One device of a mesh in rounds.

    Attributes
    ----------
    links, rounds, membership, run_journal
        Its parts.
    rosters
        The roster that it is under, and the newer one that it moves to.
    error
        Why it has failed.
    """

    def __init__(self, setup: PeerSetup) -> None:
        self.setup = setup
        self.clock = Clock()
        self.links = Links(setup, self.clock)
        self.rosters = setup.rosters_in_use()
        self.run_journal = RunJournal(setup.journal, setup.log, setup.private)
        self.rounds = RoundExchange(self.links, self.run_journal)
        self.membership = Membership(setup, self.links, self.rounds, self.run_journal, self.rosters, self._fail)
        self._roster_exchange = RosterExchange(self.rosters, self.links, self.membership.hello)
        self.error: PeerError | None = None
        self._news: News | None = None  # what neighbours are told of the failure
        self._is_local_fault = False  # whether the failure began here

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
    def phase(self) -> Phase:
        """How far it is in its run."""
        return self.membership.phase

    @property
    def number(self) -> int:
        """The number of its run."""
        return self.membership.number

    @property
    def run(self) -> int:
        """The digest that names its run in frames."""
        return self.membership.run

    @property
    def agreement(self) -> dict[str, str]:
        """All that must be the same on every device."""
        return self.membership.agreement

    @property
    def round(self) -> int:
        """The round of its run."""
        return self.rounds.round

    @property
    def idle(self) -> bool:
        """Whether it waits until somebody asks for a run."""
        return self.membership.idle

    @property
    def lost(self) -> frozenset[int]:
        """Rows of the devices that were left out of its run."""
        return self.membership.lost

    @property
    def survivors(self) -> tuple[int, ...]:
        """Rows of the devices that are in the run."""
        return tuple(sorted(self.membership.members))

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Rows of the neighbours that are in the run."""
        return tuple(self.membership.neighbours)

    @property
    def result(self) -> Any:
        """What the protocol has returned; None before, and after a failure."""
        return None if self.phase == "failed" else self.rounds.result

    @property
    def message(self) -> Message | None:
        """What the protocol sends in the open round; None where there is none."""
        return self.rounds.message

    @property
    def ledger(self) -> Ledger:
        """What the protocol has sent in its run."""
        return self.rounds.ledger

    @property
    def cost(self) -> Cost:
        """The same as a cost."""
        return self.rounds.ledger.cost()

    @property
    def counts(self) -> Counts:
        """The frames that it has sent and received."""
        return self.links.counts

    @property
    def handed(self) -> bool:
        """Whether it has handed a newer roster on: another device must be made in its place."""
        return self._roster_exchange.handed

    @property
    def wake(self) -> float:
        """When the device wants to be ticked again at the latest."""
        return self.clock.wake

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, also for the neighbours."""
        if self.rosters.moving:
            return self.handed
        phase = self.phase
        if phase not in ("finished", "failed") or (phase == "finished" and self.membership.run_requested):
            return False
        if self.clock.now >= self.membership.closed_at + self.setup.settings.linger:
            return True
        return phase == "finished" and self.membership.all_know

    @property
    def missing(self) -> int:
        """How many frames of data the device needs to go on; 1 where it waits for anything else."""
        if self.phase != "running":
            return 1
        return max(1, len(self.membership.neighbours) - len(self.rounds.received))

    def start(self, now: float) -> None:
        """Begin, or go on where the journal ends."""
        if self.phase == "failed":  # it has refused to take part
            return
        self.clock.now = now
        self.membership.presence.restart_silence()
        try:
            self.membership.recall()
            self._repeat()
            self.membership.call_ready()
            if self.phase == "finishing":  # the journal ends just before the end
                self.membership.call_done()
            self.membership.go_on()  # where all neighbours are quiet no frame will come that it could wait for
        except Exception as error:
            self._break(error)

    def tick(self, now: float) -> None:
        """Notice that time has passed: repeat lost frames, leave out silent neighbours, begin a requested run."""
        self.clock.advance(now)
        if self.clock.now < self.clock.wake or (self.phase == "failed" and self.over):
            return
        try:
            if self.rosters.moving:
                self._roster_exchange.hand_on()
                return
            if self.phase == "finished":
                self.membership.begin_requested()
            elif self.phase != "failed" and not self.idle:
                patience, silence_of = self.setup.settings.patience, self.membership.presence.silence_of
                self._lose([j for j in self.membership.neighbours if silence_of(j) > patience])
            self._repeat()
        except Exception as error:
            self._break(error)

    def receive(self, data: bytes, sender: int, now: float) -> None:
        """Take bytes that came from a neighbour; the transport knows which one."""
        self.clock.advance(now)
        self.links.receive(data, sender, self._take, self._break)

    def outbox(self) -> list[tuple[int, bytes]]:
        """Return what to send, as (row of a neighbour or EVERYBODY, bytes), and forget it."""
        return self.links.take_outbox()

    def offer(self, roster: bytes, now: float) -> None:
        """Take a roster that came by another way than from a neighbour; a newer one is handed to all of them.

        A `FrameError` says why one is refused.
        """
        self.clock.advance(now)
        self._roster_exchange.offer(roster)

    def recalibrate(self, now: float, make: Make | None = None, scores: str = "") -> None:
        """Ask everybody for one more run, of other scores if `make` and their digest are given.

        However often this is called, at most one run waits while one is under way: it begins when the result of that
        one has stood for `linger` seconds, here or at whichever device comes first, and has the lost devices that are
        back. A run that has not begun yet, because devices still greet each other, is the one that was asked for.
        """
        self.clock.advance(now)
        self.membership.request_run(make, scores)
        try:
            self.membership.begin_requested()
        except Exception as error:
            self._break(error)

    def refuse(self, reason: str, now: float) -> None:
        """End this device for a local reason, and tell it to every neighbour that waits for it.

        For a node that cannot take part, because its scores cannot be read, or its clock or its certificate is wrong:
        make the device as usual (its protocol is never made), call this before or instead of `start`, and drive it
        until it is `over`. Neighbours that wait for this device end with the reason, or go on without it, at once
        instead of after their patience; those that hold a result keep it. The journal stays as it is.
        """
        self.clock.advance(now)
        if self.phase == "failed":
            return
        words = one_line_text(f"{self.links.name(self.row)} cannot take part: {reason}")
        self._is_local_fault = True
        self._stop(PeerError(words), News(self.row, self._private_reason if self.setup.private else words))

    def note_reported(self) -> None:
        """Write into the journal that the finished result was reported: the next start asks for a new run."""
        self.run_journal.end(REPORTED)

    # --- frames -------------------------------------------------------------------------------------------------------

    def _take(self, frame: Frame, sender: int) -> None:
        if self._roster_exchange.take(frame, sender):
            return
        # The order of checks: rosters come first, because under another one the sender's row means another device. A
        # device that has failed takes nothing more. Then comes whether the sender is in the run at all.
        if self.phase == "failed":
            if frame.wants:  # two failed devices must not answer each other's answers for ever
                self._explain(frame.sender, self._run_to_answer(frame))
            return
        if frame.sender in self.lost and frame.kind != HELLO:
            if frame.kind == FAILED:
                self.membership.presence.forget_return(frame.sender)
            self.links.send(frame.sender, self.membership.hello())
            raise FrameError("a frame of a device that was left out")
        if frame.kind == DATA:
            self.membership.take_data(frame)
        elif frame.kind == HELLO:
            self.membership.take_hello(frame)
        elif frame.kind == READY:
            self.membership.take_ready(frame)
        elif frame.kind == FINISHED:
            self.membership.take_finished(frame)
        elif frame.kind == FAILED:
            self._take_failed(frame)
        else:
            raise FrameError(f"a frame of {frames.FRAME_KINDS[frame.kind]}, of which a device in rounds knows nothing")

    def _repeat(self) -> None:
        """Send again what a neighbour may have missed."""
        if self.phase == "failed":
            self.clock.wake = self.clock.now + self.setup.settings.retry
            for j in () if self.idle else self.membership.neighbours:
                self._explain(j, self.membership.run)
            return
        self.membership.repeat()

    # --- loss and failure ---------------------------------------------------------------------------------------------

    def _lose(self, gone: list[int]) -> None:
        """Go on without neighbours that were silent for too long, or end."""
        if not gone:
            return
        why = self._why_lost(gone)
        if self.setup.settings.on_lost == "fail":
            self._fail(f"{why}; start again what has stopped or check the link, or use --on-lost continue", code="lost")
            return
        self.links.log(f"{why}: going on without")
        self.membership.move(RunMembership(self.number, self.lost | frozenset(gone)), why)

    def _why_lost(self, gone: list[int]) -> str:
        name, patience = self.links.name, self.setup.settings.patience
        what = {"greeting": "said hello", "running": f"spoken in round {self.round}"}.get(self.phase, "finished")
        has = "has" if len(gone) == 1 else "have"
        why = f"{', '.join(name(j) for j in gone)} {has} not {what} within {patience:g} s"
        problems = {j: f"read: {problem}" for j, problem in self.links.unreadable.items()}
        problems |= {j: f"used: {problem}" for j, (_, problem) in self.rounds.unusable.items()}
        reasons = [f"what {name(j)} says cannot be {problems[j]}" for j in gone if j in problems]
        return why + (f" ({'; '.join(reasons)})" if reasons else "")

    def _take_failed(self, frame: Frame) -> None:
        if frame.run != self.membership.run:
            raise FrameError("a frame of another run")
        news = News.of(frame.body, self.network.devices)
        if self.phase == "finished":
            return
        # Links prove who sent a frame, and nothing proves where a reason began that was passed on.
        name = self.links.name
        by = "" if news.origin == frame.sender else f", as {name(frame.sender)} passes on, which is not verified"
        why = f"{news.why} ({name(news.origin)} says so{by}; no threshold was agreed on)"
        if self.setup.settings.on_lost == "fail" or news.ends:
            self._fail(why, news, code="disagreement" if news.ends else "refused")
            return
        self.links.log(f"{news.why}: going on without {name(frame.sender)}")
        self.membership.move(RunMembership(self.number, self.lost | {frame.sender}), why, news)

    def _break(self, error: Exception) -> None:
        """End because of an error in the protocol, in the journal or in this program; neighbours get the reason."""
        text = self._private_reason if self.setup.private else self.links.failure_text(error, for_neighbours=True)
        self._is_local_fault = True
        self._fail(self.links.failure_text(error), News(self.row, text), cause=error, code=failure_of(error))

    @property
    def _private_reason(self) -> str:
        """What a private device sends to neighbours for every local cause: error texts may depend on its scores."""
        return f"{self.links.name(self.row)} could not go on, for a reason that only its operator is told"

    def _fail(
        self, words: str, news: News | None = None, *, cause: Exception | None = None, code: Failure = "other"
    ) -> None:
        """End without a result, and send everybody the reason, now and for a while."""
        if self.phase == "failed":
            return
        # Before neighbours are told: after a crash this device must not go on with a run that they have given up. In a
        # greeting the journal may still be that of an earlier run, so it is begun anew with the heading of this one.
        self.run_journal.fail(self.membership.heading() if self.phase == "greeting" else None)
        error = PeerError(words, code)
        error.__cause__ = cause
        self._stop(error, news or News(self.row, words))

    def _stop(self, error: PeerError, news: News) -> None:
        self.membership.close("failed")
        self.error, self._news = error, news
        self.links.log(str(error))
        self._repeat()

    def _explain(self, to: int, run: int) -> None:
        """Send why this device has failed."""
        # The hello shows what differs, and moves a neighbour that is behind to this run, in which FAILED is valid. A
        # device whose own fault it is has no such run: it answers in whatever run it is asked.
        if not self._is_local_fault:
            self.links.send(to, self.membership.hello())
        assert self._news is not None
        self.links.send(to, Frame(FAILED, run, self.row, self.round, 0, self._news.pack()))

    def _run_to_answer(self, frame: Frame) -> int:
        """Return the run in which a failed device answers a frame.

        A device that cannot take part at all answers in any run; another failure must not end later runs of the others.
        """
        if frame.kind == HELLO:
            hello = Hello.of(frame.body, self.network.devices)
            if self._is_local_fault or hello.run == self.number:
                return hello.digest()  # of its run, which may leave out other devices than this one does
        return frame.run if self._is_local_fault else self.membership.run
