"""A device: drives one protocol with its neighbours' frames. No socket, no clock, no thread: those belong to engines.

An engine hands over what arrived (`receive`) and the time (`tick`), and sends what `outbox` holds. The same object runs
over a real network and in the loopback engine, whose fake network does everything that real ones do.

Greeting    hello to every neighbour, with all that must match; then a roll call through the whole network. Data begins
            when everybody is known to agree: a difference anywhere ends everybody before any number is sent (`members`)
Running     the protocol's rounds, and their memory (`rounds`)
Finishing   another roll call: a result counts once all devices in the run have theirs
Loss        a neighbour that was silent for `patience` is lost. Either everybody ends with an error that names it, or
            (`on_lost="continue"`) the survivors greet each other again without it, if they are a quorum
            (`run_membership`)
Return      a lost device that is heard again takes part in the next run, and interrupts nothing
Failure     who fails says why to everybody, again and again for a while, and ends without a result. So does a device
            whose protocol raises. Under `continue` it counts as lost, unless the devices do not agree

Frames that are malformed, of another run or round, or of a stranger are refused and counted; they change nothing.
"""

from __future__ import annotations

from typing import Any

from conformesh.peer import frames
from conformesh.peer.frames import DATA, FAILED, FINISHED, HELLO, READY, WANT, Frame, FrameError
from conformesh.peer.json_bodies import Hello, News, in_a_line
from conformesh.peer.links import EVERYBODY, Make, Phase
from conformesh.peer.members import Members
from conformesh.peer.run_membership import RunMembership
from conformesh.peer.settings import Failure, PeerError, failure_of

__all__ = ["EVERYBODY", "Device", "Phase"]


class Device(Members):
    """One device of a mesh in rounds; the parameters are those of `Linked`."""

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._news: News | None = None
        self._own_fault = False
        self._probe_at = 0.0
        self._on = {
            HELLO: self._on_hello,
            DATA: self._on_data,
            READY: self._on_ready,
            FINISHED: self._on_finished,
            FAILED: self._on_failed,
        }

    # --- what an engine calls -----------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin, or go on where the journal ends."""
        if self.phase == "failed":  # it has refused to take part
            return
        self.now = now
        self._last_heard = dict.fromkeys(self._linked, now)
        try:
            self._recall()
            self._repeat()
            self._call_ready()
            if self.phase == "finishing":  # the journal ends just before the end
                self._call_done()
            self._go_on()  # where all neighbours are quiet nobody will say anything that it could wait for
        except Exception as error:
            self._break(error)

    def tick(self, now: float) -> None:
        """Notice that time has passed: repeat what may be lost, give up on who is, begin a run that was asked for."""
        self.now = max(self.now, now)
        if self.now < self._next or (self.phase == "failed" and self.over):
            return
        try:
            if self.rosters.moving:
                self._hand_on()
                return
            if self.phase == "finished":
                self._renew()
            elif self.phase != "failed" and not self.idle:
                self._lose([j for j in self._talking if self._silence(j) > self.settings.patience])
            self._repeat()
        except Exception as error:
            self._break(error)

    @property
    def wake(self) -> float:
        """When the device wants to be ticked again at the latest."""
        return self._next

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, also for the neighbours."""
        if self.rosters.moving:
            return self.handed
        if self.phase not in ("finished", "failed") or (self.phase == "finished" and self._asked):
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

    def recalibrate(self, now: float, make: Make | None = None, scores: str = "") -> None:
        """Ask everybody for one more run, of other scores if `make` and their digest are given.

        However often this is called, at most one run waits while one is under way: it begins when the result of that
        one has stood for `linger` seconds, here or at whichever device comes first, and has the lost devices that are
        back. A run that has not begun yet, because devices still greet each other, is the one that was asked for.
        """
        self.now = max(self.now, now)
        if make is not None:
            self._new = make, scores
        if self.phase == "greeting":
            self._take_new()
            self._wake()
            return
        self._asked = True
        try:
            self._renew()
        except Exception as error:
            self._break(error)

    def refuse(self, reason: str, now: float) -> None:
        """End this device for a reason of its own, and tell it to every neighbour that waits for it.

        For a node that cannot take part, because its scores cannot be read, or its clock or its certificate is wrong:
        make the device as usual (its protocol is never made), call this before or instead of `start`, and drive it
        until it is `over`. Who waits for this device ends with the reason, or goes on without it, at once instead of
        after its patience; who holds a result is left alone. The journal stays as it is.
        """
        self.now = max(self.now, now)
        if self.phase == "failed":
            return
        words = in_a_line(f"{self._name(self.row)} cannot take part: {reason}")
        self._own_fault = True
        self._stop(PeerError(words), News(self.row, self._unsaid if self.private else words))

    # --- loss and failure ---------------------------------------------------------------------------------------------

    def _silence(self, j: int) -> float:
        """Return for how long a neighbour has said nothing though this device waits for it."""
        if self.phase == "running" and j in self._heard:
            return 0.0
        if j in self._misread:  # however often it repeats itself
            return self.now - self._misread[j][0]
        return self.now - max(self._last_heard[j], self._since)

    def _lose(self, gone: list[int]) -> None:
        """Go on without neighbours that were silent for too long, or end."""
        if not gone:
            return
        what = {"greeting": "said hello", "running": f"spoken in round {self.round}"}.get(self.phase, "finished")
        has = "has" if len(gone) == 1 else "have"
        names = ", ".join(self._name(j) for j in gone)
        why = f"{names} {has} not {what} within {self.settings.patience:g} s"
        unheard = {j: f"read: {problem}" for j, problem in self._unread.items()}
        unheard |= {j: f"used: {problem}" for j, (_, problem) in self._misread.items()}
        reasons = [f"what {self._name(j)} says cannot be {unheard[j]}" for j in gone if j in unheard]
        why += f" ({'; '.join(reasons)})" if reasons else ""
        if self.settings.on_lost == "fail":
            self._fail(f"{why}; start again what has stopped or check the link, or use --on-lost continue", code="lost")
            return
        self.log(f"{why}: going on without")
        self._move(RunMembership(self.number, self.lost | frozenset(gone)), why)

    def _on_failed(self, frame: Frame) -> None:
        if frame.run != self.run:
            raise FrameError("a frame of another run")
        news = News.of(frame.body, self.full.devices)
        if self.phase == "finished":
            return
        # Links prove who sent a frame, and nothing proves where a reason began that was passed on.
        by = "" if news.origin == frame.sender else f", as {self._name(frame.sender)} passes on, which is not verified"
        why = f"{news.why} ({self._name(news.origin)} says so{by}; no threshold was agreed on)"
        if self.settings.on_lost == "fail" or news.ends:
            self._fail(why, news, code="disagreement" if news.ends else "refused")
            return
        self.log(f"{news.why}: going on without {self._name(frame.sender)}")
        self._move(RunMembership(self.number, self.lost | {frame.sender}), why, news)

    def _break(self, error: Exception) -> None:
        """End because of an error in the protocol, in the journal or in this program: it is told like any other."""
        told = self._unsaid if self.private else self._in_words(error, travels=True)
        self._own_fault = True
        self._fail(self._in_words(error), News(self.row, told), cause=error, code=failure_of(error))

    @property
    def _unsaid(self) -> str:
        """What a private device tells neighbours of every local cause: words and kinds may depend on its scores."""
        return f"{self._name(self.row)} could not go on, for a reason that only its operator is told"

    def _fail(
        self, words: str, news: News | None = None, cause: Exception | None = None, code: Failure = "other"
    ) -> None:
        """End without a result, and tell everybody why, now and for a while."""
        if self.phase == "failed":
            return
        if self.phase == "greeting":  # the journal may know of an earlier run only
            self._write(self.journal.begin, self._heading().pack())
        self._end_journal()
        error = PeerError(words, code)
        error.__cause__ = cause
        self._stop(error, news or News(self.row, words))

    def _stop(self, error: PeerError, news: News) -> None:
        self.phase, self.error, self.result, self._stopped_at = "failed", error, None, self.now
        self._news = news
        self.log(str(error))
        self._repeat()

    def _explain(self, to: int, run: int) -> None:
        """Say why this device has failed; the hello shows what differs, and brings who is behind to this run."""
        if not self._own_fault:
            self._send(to, self._hello())
        assert self._news is not None
        self._send(to, Frame(FAILED, run, self.row, self.round, 0, self._news.pack()))

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        if self.phase == "failed":
            if frame.wants:  # an answer never asks for an answer, or two devices would answer each other for ever
                self._explain(frame.sender, self._run_of(frame))
            return
        if frame.sender in self.lost and frame.kind != HELLO:
            if frame.kind == FAILED:
                self._back.pop(frame.sender, None)
            self._send(frame.sender, self._hello())
            raise FrameError("a frame of a device that was left out")
        if frame.kind not in self._on:
            raise FrameError(f"a frame of {frames.KINDS[frame.kind]}, of which a device in rounds knows nothing")
        self._on[frame.kind](frame)

    def _run_of(self, frame: Frame) -> int:
        """Return in which run a device that has failed answers: news must not end a later attempt of the others."""
        if frame.kind == HELLO:
            hello = Hello.of(frame.body, self.full.devices)
            if self._own_fault or hello.run == self.number:
                return hello.digest()  # it may leave out others than this device does
        return frame.run if self._own_fault else self.run

    def _repeat(self) -> None:
        """Send again what a neighbour may have missed."""
        self._next = self.now + self.settings.retry
        for j in () if self.idle else self._talking:
            if self.phase == "failed":
                self._explain(j, self.run)
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
        if self.lost and self.phase != "failed" and self.now >= self._probe_at:  # who was cut off may hear us again
            self._probe_at = self.now + self.settings.linger
            for j in self._links & self.lost:
                self._send(j, self._hello(WANT))
