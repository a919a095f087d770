"""Who is in a run: how devices greet each other, leave out, let in again, begin together and end together.

A device greets its neighbours with all that must match and with its view of the run (`run_membership`). Two roll
calls go through the whole network: data begins when everybody is known to agree, a result counts when everybody is
known to have one. A lost device that is heard again interrupts nothing: it takes part in the next run, for which its
neighbours ask once the last result has stood for a while; a device that is lost again waits twice as long the
next time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any

from conformesh.common.names import list_names
from conformesh.peer.frames import FINISHED, HELLO, READY, WANT, Frame, FrameError
from conformesh.peer.json_bodies import Hello, News, differences, pack_rows, unpack_rows
from conformesh.peer.links import Make
from conformesh.peer.memory import ENDED, REPORTED, Heading
from conformesh.peer.rounds import Rounds
from conformesh.peer.run_membership import RunMembership, part_of
from conformesh.peer.settings import Failure

MOST_LOST = 3  # journals in a row: then it is no lost journal that puts a neighbour ahead
MOST_WAITS = 10  # a device that is lost again and again waits at most 2 to the power of this times as long


class Members(Rounds):
    """What a device does before and after its rounds; the parameters are those of `Device`.

    `stored_run` is the number of the run whose result the caller has on disk and wants to report; 0 if there is none.
    An `idle` device does not ask for a run when it starts: it is silent until a neighbour or its operator does.
    """

    def __init__(self, *parts: Any, stored_run: int = 0, idle: bool = False, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._stored_run, self.idle = stored_run, idle
        self.needed = self.settings.needed(self.full.devices)
        self._last_heard: dict[int, float] = dict.fromkeys(self._linked, 0.0)
        self._stopped_at = 0.0
        self._asked = False  # for one more run
        self._new: tuple[Make, str] | None = None  # what that run is made of
        self._back: dict[int, float] = {}  # since when a lost neighbour is heard again
        self._highest = 0  # number that it said
        self._losses: Counter[int] = Counter()  # in a row, of each device
        self._started_over = 0  # times since the last result
        self._enter_greeting()

    @abstractmethod
    def _repeat(self) -> None:
        """Send again what a neighbour may have missed."""

    @abstractmethod
    def _fail(
        self, words: str, news: News | None = None, cause: Exception | None = None, code: Failure = "other"
    ) -> None:
        """End without a result, and tell everybody why."""

    # --- greeting -----------------------------------------------------------------------------------------------------

    def _enter_greeting(self) -> None:
        self._greeting = Hello(self.agreement, self.number, self.lost)
        self._clear_rounds(self._greeting.digest())
        self._greeted: set[int] = set()
        self._ready: frozenset[int] = frozenset()
        self._knows: dict[int, frozenset[int]] = {}

    def _context(self) -> bytes:
        return self._greeting.context()

    def _hello(self, flags: int = 0) -> Frame:
        return Frame(HELLO, 0, self.row, 0, flags, self._greeting.pack())

    def _on_hello(self, frame: Frame) -> None:
        theirs = Hello.of(frame.body, self.full.devices)
        if theirs.agreement != self.agreement:
            self._disagree(frame.sender, theirs.agreement)
            return
        if self.full.devices - len(theirs.lost) < self.needed:
            raise FrameError("a hello that leaves out more devices than was agreed on")
        before, self._last_heard[frame.sender] = self._last_heard[frame.sender], self.now
        if theirs.run >= self.number and self.row not in theirs.lost:
            self._wake()
        run = self._bounded(frame.sender, theirs.run)
        if theirs.run > self.number and not self._may_follow:
            return  # it repeats its greeting
        mine, view = RunMembership(self.number, self.lost), RunMembership(run, theirs.lost)
        if self.row in view.lost and (view.number > mine.number or frame.sender not in mine.lost):
            self._leave(frame.sender, view)
        elif frame.sender in mine.lost:
            self._welcome(frame.sender, view, before)
        else:
            self._move(mine.joined(view))
        if self.number > mine.number:
            self._followed_at = self.now
        if told := sorted((self.lost & theirs.lost) - mine.lost):  # so that it can be found out who chose who counts
            self.log(f"{self._name(frame.sender)} says that it has lost {list_names([self._name(k) for k in told])}")
        same = (theirs.run, theirs.lost) == (self.number, self.lost)  # not `view`, which may be bounded
        if self.phase != "failed" and (frame.wants or not (same or frame.sender in self.lost)):
            self._send(frame.sender, self._hello())
        if same:
            self._greeted.add(frame.sender)
            self._call_ready()

    def _wake(self) -> None:
        """Take part in the run that somebody asks for."""
        if self.idle:
            self.idle, self._since = False, self.now
            self._last_heard = dict.fromkeys(self._linked, self.now)
            self._repeat()

    def _leave(self, sender: int, view: RunMembership) -> None:
        """Note that the others go on without this device: a result stays, a run under way is of no use any more."""
        if self.phase == "finished" or view.number < self.number:
            return
        under_way = self.phase != "greeting"
        if under_way or view.number > self.number:
            self.log(f"left out of run {view.number} by {self._name(sender)}: waiting for the next")
            self._move(RunMembership(max(view.number, self.number + under_way)))

    def _welcome(self, sender: int, view: RunMembership, before: float) -> None:
        """Note that a lost device is back; when the last result has stood for a while, ask for one run with it.

        Also when devices greet each other for so long that they must wait for each other: two groups may each have left
        out one of the other in the same run, and none is a quorum. Nothing has begun that could be interrupted.
        """
        if sender not in self._back or self.now - before > self.settings.patience:
            self._back[sender] = self.now
            self.log(f"{self._name(sender)} is back: it takes part in the next run")
        self._highest = max(self._highest, view.number)
        wait = self.settings.linger * 2 ** min(max(self._losses[sender] - 1, 0), MOST_WAITS)
        # A private run may cost epsilon, so that only operators and clocks ask for one.
        if self.phase == "finished" and self.now >= self._back[sender] + wait and not self.private:
            self._asked = True
            self._renew()
        elif self.phase == "greeting" and self.now > self._since + self.settings.patience:
            self._begin_again()

    def _renew(self) -> None:
        """Begin the run that was asked for, with who is back, unless the last result is too young."""
        if self.phase == "finished" and self._asked and self.now >= self._stopped_at + self.settings.linger:
            self._begin_again()

    def _begin_again(self) -> None:
        back = {j for j in self._back if self.now - self._last_heard[j] <= self.settings.patience}
        self._move(RunMembership(max(self.number, self._highest) + 1, self.lost - back))

    def _disagree(self, sender: int, theirs: Mapping[str, str]) -> None:
        self._send(sender, self._hello())
        if self.phase == "finished" or sender in self.lost:  # who comes with other settings is told, and ends
            raise FrameError("a hello of a device that does not agree")
        differ = differences(self.agreement, theirs, self._name(self.row), self._name(sender))
        pair = f"{self._name(self.row)} and {self._name(sender)}"
        words = f"{pair} do not agree; {differ}. Nothing was sent; make all folders the same"
        self._fail(words, News(self.row, words, ends=True), code="disagreement")

    def _move(self, view: RunMembership, why: str = "", news: News | None = None) -> None:
        """Leave the run as it is for a later one, or for one with fewer devices, unless too few are left for it."""
        if self.phase == "failed" or view == (self.number, self.lost):
            return
        part = part_of(self.full, self.row, view.lost)
        if len(part) < self.needed:
            self._fail(why if news else self._too_few(part, why), news, code="refused" if news else "lost")
            return
        number, lost = view.number, frozenset(range(self.full.devices)) - part
        if number == self.number and self.phase in ("finishing", "finished"):
            number += 1  # it has said that it is done, which counts for one set of devices only
        self._losses.update(lost - self.lost)
        self.number, self.lost, self.result = number, lost, None
        self._back = {j: since for j, since in self._back.items() if j in lost}
        self._take_new()
        self._enter_greeting()
        self.log(f"run {number}: greeting {len(self._talking)} neighbours")
        self._repeat()
        self._call_ready()

    def _take_new(self) -> None:
        self._asked = False
        if self._new is not None:
            (self.make, self.scores), self._new = self._new, None

    # --- roll calls ---------------------------------------------------------------------------------------------------

    def _call_ready(self) -> None:
        """Say that all neighbours agree with this device, and pass on who else said so."""
        if self.phase == "greeting" and not self.idle and self._greeted.issuperset(self._talking):
            self._grow_ready(frozenset({self.row}))

    def _grow_ready(self, rows: frozenset[int]) -> None:
        if rows <= self._ready:
            return
        self._ready |= rows
        self._send_all(self._roll(READY, self._ready))
        if self._ready == self._everyone:  # from here on the journal knows of this run
            if lacking := self.rosters.lacks({self._name(k) for k in self._everyone}):
                words = f"{lacking}; start them, or have the authority say that it is out of use"
                self._fail(words, code="roster")
                return
            self._begin_journal()
            self._open_protocol()
            self._speak()

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
        if self.phase == "running" and frame.round > self._spoken_for + 1:
            self._start_over(frame)
            return
        if self.phase == "running" and frame.round < self.round:  # a run has as many rounds on every device
            raise self._not_understood(frame.sender, f"it has finished after round {frame.round}")
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
        """Say who has a result; when everybody in the run has, it counts."""
        self._send_all(self._roll(FINISHED, self._done))
        if self.phase == "finishing" and self._done == self._everyone:
            self._end_journal(ENDED)
            self.phase, self._stopped_at, self._started_over = "finished", self.now, 0
            self._losses = Counter({j: count for j, count in self._losses.items() if j in self.lost})
            self.rosters.raise_floor(self.rosters.number)
            self.log(f"run {self.number}: finished after {self.round} rounds")

    def _rows_in(self, frame: Frame) -> frozenset[int]:
        rows = unpack_rows(frame.body, self.full.devices)
        if not rows <= self._everyone:
            raise FrameError("a roll call that names devices outside the run")
        return rows

    def _roll(self, kind: int, rows: frozenset[int], flags: int = 0) -> Frame:
        return Frame(kind, self.run, self.row, self.round, flags, pack_rows(rows))

    def _start_over(self, frame: Frame) -> None:
        """Ask for a new run: a neighbour so far ahead has heard from us what we no longer know we said."""
        self._started_over += 1
        if self._started_over > MOST_LOST:
            self._fail(
                f"{self._name(frame.sender)} is in round {frame.round} of run {self.number}, and "
                f"{self._name(self.row)} is in round {self.round}, without which it cannot be there; look which of "
                "them can be trusted",
                code="protocol",
            )
            return
        self.log("the journal of this run is lost: asking for a new run")
        self._move(RunMembership(self.number + 1, self.lost))

    def _recall(self) -> None:
        """Go on where the journal ends, if it is of this mesh and of these scores, and the device is not private."""
        records = self.journal.records()
        heading = Heading.of(records[0]) if records else None
        if heading is None:
            if records:
                self.log("the journal is not readable: starting anew")
            return
        self.number, self.lost = heading.run, heading.lost
        self._enter_greeting()
        same = heading == self._heading()
        over = records[-1] in (ENDED, REPORTED) or self.private  # whose secrets are gone
        if same and records[-1] == ENDED and heading.run == self._stored_run:
            # Every device has its result. Neighbours that have not heard so yet may still ask.
            self.phase, self._stopped_at = "finished", self.now
            self.round, self._ready, self._done = len(records) - 2, self._everyone, self._everyone
            self.log(f"run {self.number}: finished before this start")
            return
        if not same:
            self.log("the journal is of other scores or settings: asking for a new run")
        if not same or over:
            self.number, self.lost = heading.run + 1, frozenset()
            self._enter_greeting()
            return
        self._ready = self._everyone
        self._replay(records[1:])

    def note_reported(self) -> None:
        """Write down that the result of the finished run has been reported: the next start asks for a new run."""
        self._write(self.journal.append, REPORTED)

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _same_run(self, frame: Frame) -> None:
        if frame.run != self.run:
            if frame.wants:  # it missed that there is another run
                self._send(frame.sender, self._hello(WANT))
            raise FrameError("a frame of another run")
        self._last_heard[frame.sender] = self.now

    def _too_few(self, part: frozenset[int], why: str) -> str:
        absent = [self._name(k) for k in range(self.full.devices) if k not in part]
        left = f"{len(part)} of {self.full.devices} devices {'is' if len(part) == 1 else 'are'} left"
        return (
            f"{why or 'the devices fall into parts'}; without {list_names(absent)} {left}, and {self.needed} are "
            "needed to go on; start again what has stopped or check the links"
        )
