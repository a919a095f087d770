"""The members of a run: how devices greet each other, leave out, let in again, begin together and end together.

A device greets its neighbours with all that must match and with its view of the run (`run_membership`). Two roll
calls go through the whole network: data begins when everybody is known to agree, a result counts when everybody is
known to have one. A lost device that is back (`presence`) interrupts nothing: it takes part in the next run, for which
its neighbours ask once the last result has stood for a while.

Retries: every greeting, roll call and message is repeated every `Settings.retry` seconds until its answer has come, so
any frame may be lost. The repetition asks for an answer (WANT), and the answer does not: else two devices would answer
each other for ever. A lost answer is asked for again by the device that misses it. The one exception is a greeting that
answers a frame of another run: it asks for a greeting, which is answered by one that does not ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal, Protocol

from conformesh.common.names import list_names
from conformesh.graph.network import Network
from conformesh.peer.frames import FINISHED, HELLO, READY, WANT, Frame, FrameError
from conformesh.peer.interface import Make, PeerSetup, Phase
from conformesh.peer.json_bodies import Hello, News, agreement_differences, pack_rows, unpack_rows
from conformesh.peer.links import Links
from conformesh.peer.memory import ENDED, REPORTED, Heading, RunJournal
from conformesh.peer.presence import Presence
from conformesh.peer.rosters import Rosters
from conformesh.peer.round_exchange import RoundExchange
from conformesh.peer.run_membership import RunLimit, RunMembership, reachable_rows
from conformesh.peer.settings import Failure

# New runs in a row that a device asks for because a neighbour is further ahead than can be. One lost journal explains
# one of them. After more the neighbour is faulty or Byzantine, and new runs would go on for ever: an operator must act.
MOST_LOST = 3


class Fail(Protocol):
    """Ends a device without a result and tells everybody why; `news` is sent to neighbours instead of `words`."""

    def __call__(self, words: str, news: News | None = None, *, code: Failure) -> None: ...  # noqa: D102


class Membership:
    """Takes part in greetings and roll calls, and moves the device from run to run.

    Parameters
    ----------
    setup, links, rounds, journal, rosters
        The parts of the device.
    fail
        Called where the device cannot go on.

    Attributes
    ----------
    number, lost
        The run that the device is in, and the rows that were left out of it.
    members, neighbours
        Rows in the run, and those of them that this device is linked to.
    run
        The digest that names the run in frames.
    closed
        Whether the run is over, and how; while it is None the greeting and the rounds tell the phase.
    closed_at
        When that was.
    presence
        Which neighbours are silent, and which lost ones are back.
    make, scores
        What makes the protocol of the run, and the digest of its scores.
    run_requested
        Whether one more run was asked for, which begins after the present one.
    """

    def __init__(
        self,
        setup: PeerSetup,
        links: Links,
        rounds: RoundExchange,
        journal: RunJournal,
        rosters: Rosters,
        fail: Fail,
    ) -> None:
        self._links, self._clock = links, links.clock
        self._rounds, self._journal, self._rosters, self._fail = rounds, journal, rosters, fail
        self.row, self.network, self.settings = setup.row, setup.network, setup.settings
        self.agreement = setup.full_agreement()
        self.idle, self._private, self._stored_run = setup.idle, setup.private, setup.stored_run
        self.needed = self.settings.needed(self.network.devices)  # devices in a run
        self.number, self.lost = 1, frozenset[int]()
        self.closed: Literal["finished", "failed"] | None = None
        self.closed_at = 0.0
        self.run_requested = False
        self.make, self.scores = setup.make, setup.scores
        self._next_protocol: tuple[Make, str] | None = None  # what the next run is made of, if of other scores
        self._limit = RunLimit(len(links.neighbours), self.settings.retry)
        self.presence = Presence(links, rounds)
        self._started_over = 0  # times since the last result
        self.enter_greeting()

    @property
    def phase(self) -> Phase:
        """How far the device is in its run."""
        if self.closed is not None:
            return self.closed
        if self._rounds.has_ended:
            return "finishing"
        return "running" if self._rounds.is_running else "greeting"

    def close(self, how: Literal["finished", "failed"]) -> None:
        """End the run."""
        self.closed, self.closed_at = how, self._clock.now

    # --- greeting -----------------------------------------------------------------------------------------------------

    def enter_greeting(self) -> None:
        """Begin the run of this number without the lost devices."""
        self.greeting = Hello(self.agreement, self.number, self.lost)
        self.run = self.greeting.digest()
        self.members = frozenset(range(self.network.devices)) - self.lost
        self.neighbours = [j for j in self._links.neighbours if j not in self.lost]
        self._rounds.begin(self.run, self.members, self.neighbours)
        self.closed = None
        self._greeted: set[int] = set()
        self._ready: frozenset[int] = frozenset()
        self._done = frozenset({self.row})  # sent, and compared with `members`, only once this device has its result
        self._known_done: dict[int, frozenset[int]] = {}  # by neighbour, the devices that it knows to have a result

    def hello(self, flags: int = 0) -> Frame:
        """Return the greeting of this device."""
        return Frame(HELLO, 0, self.row, 0, flags, self.greeting.pack())

    def take_hello(self, frame: Frame) -> None:
        """Take the greeting of a neighbour."""
        # The order of checks: a device with other settings must not change anything here, and a greeting that breaks
        # the agreement must not count as a sign of life.
        theirs = Hello.of(frame.body, self.network.devices)
        if theirs.agreement != self.agreement:
            self._disagree(frame.sender, theirs.agreement)
            return
        if self.network.devices - len(theirs.lost) < self.needed:
            raise FrameError("a hello that leaves out more devices than was agreed on")
        silence = self.presence.note_frame(frame.sender)
        if theirs.run >= self.number and self.row not in theirs.lost:
            self.wake_up()
        run = self._limit.bound(frame.sender, theirs.run, self.number)
        if theirs.run > self.number and not self._limit.may_move(self._clock.now):
            return  # it repeats its greeting, so the move is only postponed
        before, view = RunMembership(self.number, self.lost), RunMembership(run, theirs.lost)
        if self.row in view.lost and (view.number > before.number or frame.sender not in before.lost):
            self._leave(frame.sender, view)
        elif frame.sender in before.lost:
            self._welcome(frame.sender, view, silence)
        else:
            self.move(before.joined(view))
        if self.number > before.number:
            self._limit.note_move(self._clock.now)
        # A member can leave out as many others as the quorum allows: operators must see whose word that was.
        if left_out := sorted((self.lost & theirs.lost) - before.lost):
            names = list_names([self._links.name(k) for k in left_out])
            self._links.log(f"{self._links.name(frame.sender)} says that it has lost {names}")
        same = (theirs.run, theirs.lost) == (self.number, self.lost)  # not `view`, which may be bounded
        # A neighbour in another run is answered unasked, since it may not know of this one; a lost one only if it asks,
        # because both would answer each other's different views without end.
        if self.phase != "failed" and (frame.wants or not (same or frame.sender in self.lost)):
            self._links.send(frame.sender, self.hello())
        if same:
            self._greeted.add(frame.sender)
            self.call_ready()

    def wake_up(self) -> None:
        """Take part in the run that somebody asks for."""
        if self.idle:
            self.idle, self._clock.waiting_since = False, self._clock.now
            self.presence.restart_silence()  # neighbours had no reason to speak while this device was idle
            self.repeat()

    def _leave(self, sender: int, view: RunMembership) -> None:
        """Note that the others go on without this device: a result stays, a run under way is given up."""
        if self.phase == "finished" or view.number < self.number:
            return
        # A run that is under way needs everybody in it, so it cannot end any more; a greeting can wait where it is.
        under_way = self.phase != "greeting"
        if under_way or view.number > self.number:
            self._links.log(f"left out of run {view.number} by {self._links.name(sender)}: waiting for the next")
            self.move(RunMembership(max(view.number, self.number + under_way)))

    def _welcome(self, sender: int, view: RunMembership, silence: float) -> None:
        """Note that a lost device is back; when the last result has stood for a while, ask for one run with it.

        Also after greeting for longer than the patience: two groups may each have left out a device of the other in the
        same run, so that neither is a quorum and each waits for the other. Nothing has begun that could be interrupted.
        """
        self.presence.note_return(sender, view.number, silence)
        # A private run may spend epsilon, so only operators and schedules ask for one.
        if self.phase == "finished" and self.presence.may_cause_run(sender) and not self._private:
            self.run_requested = True
            self.begin_requested()
        elif self.phase == "greeting" and self._clock.now > self._clock.waiting_since + self.settings.patience:
            self._begin_again()

    # --- moving to another run ----------------------------------------------------------------------------------------

    def request_run(self, make: Make | None, scores: str) -> None:
        """Ask for one more run, of other scores if `make` and their digest are given; it begins when it may."""
        if make is not None:
            self._next_protocol = make, scores
        if self.phase == "greeting":  # the run that has not begun is the one that was asked for
            self._use_next_protocol()
            self.wake_up()
            return
        self.run_requested = True

    def begin_requested(self) -> None:
        """Begin the run that was asked for, with the lost devices that are back, once the last result has stood."""
        has_stood = self._clock.now >= self.closed_at + self.settings.linger
        if self.phase == "finished" and self.run_requested and has_stood:
            self._begin_again()

    def _begin_again(self) -> None:
        number = max(self.number, self.presence.highest_run) + 1
        self.move(RunMembership(number, self.lost - self.presence.returned_rows()))

    def _disagree(self, sender: int, theirs: Mapping[str, str]) -> None:
        self._links.send(sender, self.hello())  # so that the other device sees the difference and ends, too
        if self.phase == "finished" or sender in self.lost:  # it is not in this run, and must not end it
            raise FrameError("a hello of a device that does not agree")
        names = self._links.name(self.row), self._links.name(sender)
        differ = agreement_differences(self.agreement, theirs, *names)
        words = f"{' and '.join(names)} do not agree; {differ}. Nothing was sent; make all folders the same"
        self._fail(words, News(self.row, words, ends=True), code="disagreement")

    def move(self, view: RunMembership, why: str = "", news: News | None = None) -> None:
        """Leave the run as it is for a later one, or for one with fewer devices, unless too few are left for it."""
        if self.phase == "failed" or view == (self.number, self.lost):
            return
        # A device that can be reached only through a lost one could take no part in the roll calls.
        reachable = reachable_rows(self.network, self.row, view.lost)
        if len(reachable) < self.needed:
            self._fail(why if news else self._too_few(reachable, why), news, code="refused" if news else "lost")
            return
        number, lost = view.number, frozenset(range(self.network.devices)) - reachable
        # FINISHED was sent for one set of devices: with another set under the same number a number could have two
        # results, see point 2 in `run_membership`.
        if number == self.number and self.phase in ("finishing", "finished"):
            number += 1
        self.presence.note_losses(lost - self.lost, lost)
        self.number, self.lost = number, lost
        self._use_next_protocol()
        self.enter_greeting()
        self._links.log(f"run {number}: greeting {len(self.neighbours)} neighbours")
        self.repeat()
        self.call_ready()

    def _use_next_protocol(self) -> None:
        self.run_requested = False
        if self._next_protocol is not None:
            (self.make, self.scores), self._next_protocol = self._next_protocol, None

    def start_over(self, frame: Frame) -> None:
        """Ask for a new run: a neighbour so far ahead has received frames that this device does not know it sent.

        Its journal must be lost or torn. The frames cannot be made again with the same bits, so the run cannot go on.
        """
        self._started_over += 1
        if self._started_over > MOST_LOST:
            other, own = self._links.name(frame.sender), self._links.name(self.row)
            self._fail(
                f"{other} is in round {frame.round} of run {self.number}, and {own} is in round {self._rounds.round}, "
                "without which it cannot be there; look which of them can be trusted",
                code="protocol",
            )
            return
        self._links.log("the journal of this run is lost: asking for a new run")
        self.move(RunMembership(self.number + 1, self.lost))

    # --- roll calls ---------------------------------------------------------------------------------------------------

    def call_ready(self) -> None:
        """Send that all neighbours agree with this device, once they do."""
        if self.phase == "greeting" and not self.idle and self._greeted.issuperset(self.neighbours):
            self._grow_ready(frozenset({self.row}))

    def _grow_ready(self, rows: frozenset[int]) -> None:
        if rows <= self._ready:
            return
        self._ready |= rows
        self._links.send_to_all(self.neighbours, self._roll(READY, self._ready))
        if self._ready == self.members:
            if lacking := self._rosters.lacks({self._links.name(k) for k in self.members}):
                words = f"{lacking}; start them, or have the authority say that it is out of use"
                self._fail(words, code="roster")
                return
            # Before the first message: a device that crashed after it and knew nothing of the run could send another.
            # A crash before this line costs nothing, since the greeting is simply repeated.
            self._journal.begin(self.heading())
            self._open_protocol()
            self._rounds.start()
            self._speak()

    def _open_protocol(self) -> None:
        network, row = self._survivors() if self.lost else (self.network, self.row)
        context = (self.greeting.context(),) if self._private else ()
        self._rounds.open(partial(self.make, network, row, *context), network, row)
        self._links.log(f"run {self.number}: {network.devices} devices")

    def _survivors(self) -> tuple[Network, int]:
        """Return the network of the devices that are left, and this device's row in it."""
        ids, kept = self.network.ids, sorted(self.members)
        pairs = [
            (ids[k], ids[j]) for k in kept for j in self.network.neighbours(k).tolist() if k < j and j in self.members
        ]
        return Network.from_pairs([ids[k] for k in kept], pairs), kept.index(self.row)

    def take_ready(self, frame: Frame) -> None:
        """Take a neighbour's roll call of those who agree."""
        self.check_run(frame)
        rows = self._rows_in(frame)
        if self.phase == "greeting":
            self._grow_ready(rows)
        if frame.wants:
            self._links.send(frame.sender, self._roll(READY, self._ready))

    def take_data(self, frame: Frame) -> None:
        """Take a neighbour's message of a round.

        The request for a frame is answered before anything else: also a neighbour that is behind, or one whose message
        is refused below, must be able to go on.
        """
        self.check_run(frame)
        rounds = self._rounds
        # The neighbour knows that all agree, and this device does not yet. Only round 1 can be meant here: nobody gets
        # beyond that round without its first message.
        if self.phase == "greeting":
            self._links.send(frame.sender, self.hello(WANT))
            if frame.round == 1:
                rounds.keep_early(frame)
            return
        if frame.wants:
            self._resend(frame)
        if not rounds.is_running or frame.round < rounds.round:
            return  # received before: a repetition
        if frame.round == rounds.round:
            rounds.receive(frame)
            self.go_on()
        elif frame.round <= rounds.spoken_for + 1:
            rounds.keep_early(frame)
        else:
            self.start_over(frame)

    def _resend(self, frame: Frame) -> None:
        """Repeat what a neighbour misses, without WANT; or what this device sends now, which shows that it is alive."""
        answer = self._rounds.sent_in(frame.round) or self.hello(WANT)  # without a round it is still greeting
        self._links.counts.resent += 1
        self._links.send(frame.sender, answer)

    def go_on(self) -> None:
        """Go to the next round if the messages of all neighbours are there."""
        if self._rounds.is_complete:
            self._rounds.close_round()
            self._speak()

    def _speak(self) -> None:
        self._rounds.speak()
        if self._rounds.has_ended:
            self.call_done()

    def take_finished(self, frame: Frame) -> None:
        """Take a neighbour's roll call of those who have a result."""
        self.check_run(frame)
        rows, rounds = self._rows_in(frame), self._rounds
        if rounds.is_running and frame.round > rounds.spoken_for + 1:
            self.start_over(frame)
            return
        if rounds.is_running and frame.round < rounds.round:  # impossible: a run has as many rounds on every device
            raise rounds.mark_unusable(frame.sender, f"it has finished after round {frame.round}")
        if self.phase not in ("finishing", "finished"):
            if frame.wants:
                self._resend(frame)
            return  # this device has no result yet; the neighbour repeats its roll call
        self._known_done[frame.sender] = rows
        if not rows <= self._done:
            self._done |= rows
            self.call_done()
        elif frame.wants:
            self._links.send(frame.sender, self._roll(FINISHED, self._done))

    def call_done(self) -> None:
        """Send which devices have a result; when everybody in the run has one, it counts."""
        self._links.send_to_all(self.neighbours, self._roll(FINISHED, self._done))
        if self.phase == "finishing" and self._done == self.members:
            # A crash before this record: the device replays its rounds and asks for the roll call again, which its
            # neighbours still answer. A crash after it: the next start finds ENDED, see `recall`.
            self._journal.end(ENDED)
            self.close("finished")
            self._started_over = 0
            self.presence.note_result(self.lost)
            self._rosters.raise_floor(self._rosters.number)
            self._links.log(f"run {self.number}: finished after {self._rounds.round} rounds")

    @property
    def all_know(self) -> bool:
        """Whether all neighbours know that everybody has a result."""
        return all(self._known_done.get(j) == self.members for j in self.neighbours)

    def _rows_in(self, frame: Frame) -> frozenset[int]:
        rows = unpack_rows(frame.body, self.network.devices)
        if not rows <= self.members:
            raise FrameError("a roll call that names devices outside the run")
        return rows

    def _roll(self, kind: int, rows: frozenset[int], flags: int = 0) -> Frame:
        return Frame(kind, self.run, self.row, self._rounds.round, flags, pack_rows(rows))

    def repeat(self) -> None:
        """Send again what a neighbour may have missed, while no failure has ended the run."""
        phase, links = self.phase, self._links
        self._clock.wake = self._clock.now + self.settings.retry
        for j in () if self.idle else self.neighbours:
            if phase == "greeting":
                links.send(j, self.hello(0 if j in self._greeted else WANT))
                if self.row in self._ready:
                    links.send(j, self._roll(READY, self._ready, WANT))
            elif phase == "running" and j not in self._rounds.received:
                # One frame repeats this device's message and asks for the neighbour's: either may be the lost one.
                frame = self._rounds.sent_in(self._rounds.round)
                assert frame is not None
                links.counts.resent += 1
                links.send(j, frame._replace(flags=frame.flags | WANT))
            elif phase == "finishing":
                links.send(j, self._roll(FINISHED, self._done, WANT))
        if self.lost and self.presence.is_probe_due():
            for j in frozenset(links.neighbours) & self.lost:
                links.send(j, self.hello(WANT))

    # --- memory -------------------------------------------------------------------------------------------------------

    def heading(self) -> Heading:
        """Return what names this run in the journal."""
        return Heading(self.number, self.lost, self.run, self.scores)

    def recall(self) -> None:
        """Go on where the journal ends, if it is of this mesh and of these scores, and the device is not private."""
        records = self._journal.records()
        heading = Heading.of(records[0]) if records else None
        if heading is None:
            if records:
                self._links.log("the journal is not readable: starting anew")
            return
        self.number, self.lost = heading.run, heading.lost
        self.enter_greeting()
        same = heading == self.heading()
        over = records[-1] in (ENDED, REPORTED) or self._private  # its secrets were in memory only and are gone
        if same and records[-1] == ENDED and heading.run == self._stored_run:
            # Every device has its result, but neighbours may not know that yet: this device still answers them.
            self.close("finished")
            self._rounds.round = len(records) - 2  # without the heading and ENDED
            self._ready = self._done = self.members
            self._links.log(f"run {self.number}: finished before this start")
            return
        if not same:
            self._links.log("the journal is of other scores or settings: asking for a new run")
        # A greater number: a run that is over has one result for good, and in a run that is not this device may have
        # sent messages that it could not repeat with other scores.
        if not same or over:
            self.number, self.lost = heading.run + 1, frozenset()
            self.enter_greeting()
            return
        self._ready = self.members
        self._open_protocol()
        self._rounds.replay(records[1:])
        replayed = f"after {len(records) - 1} from the journal"
        self._links.log(f"run {self.number}: back at round {self._rounds.round} {replayed}")

    # --- pieces -------------------------------------------------------------------------------------------------------

    def check_run(self, frame: Frame) -> None:
        """Refuse a frame of another run."""
        # Answered only on request: repetitions that were delayed would cause as many greetings. This hello asks for one
        # in return, since either side may be the one that is behind.
        if frame.run != self.run:
            if frame.wants:
                self._links.send(frame.sender, self.hello(WANT))
            raise FrameError("a frame of another run")
        self.presence.note_frame(frame.sender)

    def _too_few(self, reachable: frozenset[int], why: str) -> str:
        absent = [self._links.name(k) for k in range(self.network.devices) if k not in reachable]
        left = f"{len(reachable)} of {self.network.devices} devices {'is' if len(reachable) == 1 else 'are'} left"
        return (
            f"{why or 'the devices fall into parts'}; without {list_names(absent)} {left}, and {self.needed} are "
            "needed to go on; start again what has stopped or check the links"
        )
