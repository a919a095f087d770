"""A device: drives one protocol with its neighbours' frames. No socket, no clock, no thread: those belong to engines.

An engine hands over what arrived (`receive`) and the time (`tick`), and sends what `outbox` holds. The same object runs
over a real network and in the loopback engine, whose fake network does everything that real ones do.

Greeting    hello to every neighbour, with all that must match; then a roll call through the whole network. Data begins
            when everybody is known to agree: a difference anywhere ends everybody before any number is sent
Running     the protocol's rounds, and their memory (`rounds`)
Finishing   another roll call: a result counts once all devices in the run have theirs
Loss        a neighbour that was silent for `patience` is lost. Either everybody ends with an error that names it, or
            (`on_lost="continue"`) the survivors greet each other again without it, if they are a quorum (`view`)
Return      a lost device that is heard again takes part in the next run. It interrupts nothing: when a result has stood
            for a while, one new run begins, and a device that is lost again waits twice as long the next time
Failure     who fails says why to everybody, again and again for a while, and ends without a result. So does a device
            whose protocol raises. Under `continue` it counts as lost, unless the devices do not agree

Frames that are malformed, of another run or round, or of a stranger are refused and counted; they change nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from conformesh.graph.network import Network
from conformesh.names import listed
from conformesh.peer import frames
from conformesh.peer.frames import DATA, FAILED, FINISHED, HELLO, READY, WANT, Frame, FrameError
from conformesh.peer.journal import Journal
from conformesh.peer.memory import ENDED, Heading
from conformesh.peer.rounds import EVERYBODY, Make, Phase, Rounds
from conformesh.peer.settings import PeerError, Settings
from conformesh.peer.view import View, part_of
from conformesh.peer.words import Hello, News, in_a_line, pack_rows, unpack_rows

__all__ = ["EVERYBODY", "Device", "Phase"]

MOST_WAITS = 10  # a device that is lost again and again waits at most 2 to the power of this times as long


class Device(Rounds):
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
        super().__init__(row, network, make, journal, settings or Settings(), scores, log)
        self.agreement = {**agreement, **self.settings.agreement(network.devices)}
        self.needed = self.settings.needed(network.devices)
        self.error: PeerError | None = None
        self._last_heard: dict[int, float] = dict.fromkeys(self._linked, 0.0)
        self._unread: dict[int, str] = {}  # why a neighbour's bytes were no frame
        self._stopped_at = 0.0
        self._news: News | None = None
        self._own_fault = False
        self._asked = False  # for one more run
        self._new: tuple[Make, str] | None = None  # what that run is made of
        self._back: dict[int, float] = {}  # since when a lost neighbour is heard again
        self._highest = 0  # number that it said
        self._losses: Counter[int] = Counter()  # in a row, of each device
        self._probe_at = 0.0
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
        except Exception as error:
            self._break(error)

    def receive(self, data: bytes, sender: int, now: float) -> None:
        """Take bytes that came from a neighbour; the transport knows who that is."""
        self.now = max(self.now, now)
        try:
            if sender not in self._links:
                raise FrameError("a frame of a device that is no neighbour")
            frame = self._read(data, sender)
            if frame.sender != sender:
                raise FrameError("a frame that names another sender than its connection")
            self._take(frame)
        except FrameError as problem:
            self._refuse(sender, problem)
            return
        except Exception as error:
            self._break(error)
        self.counts.heard[sender] += 1
        self.counts.heard_bytes[sender] += len(data)

    def tick(self, now: float) -> None:
        """Notice that time has passed: repeat what may be lost, give up on who is, begin a run that was asked for."""
        self.now = max(self.now, now)
        if self.now < self._next or (self.phase == "failed" and self.over):
            return
        try:
            if self.phase == "finished":
                self._renew()
            elif self.phase != "failed":
                self._lose([j for j in self._talking if self._silence(j) > self.settings.patience])
            self._repeat()
        except Exception as error:
            self._break(error)

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
        self._stop(PeerError(words), News(self.row, words))

    # --- greeting -----------------------------------------------------------------------------------------------------

    def _enter_greeting(self) -> None:
        self._greeting = Hello(self.agreement, self.number, self.lost).pack()
        self._clear_rounds(self._digest())
        self._greeted: set[int] = set()
        self._ready: frozenset[int] = frozenset()
        self._knows: dict[int, frozenset[int]] = {}

    def _digest(self) -> int:
        return _short_digest(self._greeting)

    def _hello(self, flags: int = 0) -> Frame:
        return Frame(HELLO, 0, self.row, 0, flags, self._greeting)

    def _on_hello(self, frame: Frame) -> None:
        theirs = Hello.of(frame.body, self.full.devices)
        if theirs.agreement != self.agreement:
            self._disagree(frame.sender, theirs.agreement)
            return
        if self.full.devices - len(theirs.lost) < self.needed:
            raise FrameError("a hello that leaves out more devices than was agreed on")
        before, self._last_heard[frame.sender] = self._last_heard[frame.sender], self.now
        mine, view = View(self.number, self.lost), View(theirs.run, theirs.lost)
        if self.row in view.lost and (view.number > mine.number or frame.sender not in mine.lost):
            self._leave(frame.sender, view)
        elif frame.sender in mine.lost:
            self._welcome(frame.sender, view, before)
        else:
            self._move(mine.joined(view))
        same = view == (self.number, self.lost)
        if self.phase != "failed" and (frame.wants or not (same or frame.sender in self.lost)):
            self._send(frame.sender, self._hello())
        if same:
            self._greeted.add(frame.sender)
            self._call_ready()

    def _leave(self, sender: int, view: View) -> None:
        """Note that the others go on without this device: a result stays, a run under way is of no use any more."""
        if self.phase == "finished" or view.number < self.number:
            return
        under_way = self.phase != "greeting"
        if under_way or view.number > self.number:
            self.log(f"left out of run {view.number} by {self._name(sender)}: waiting for the next")
            self._move(View(max(view.number, self.number + under_way)))

    def _welcome(self, sender: int, view: View, before: float) -> None:
        """Note that a lost device is back; when the last result has stood for a while, ask for one run with it."""
        if sender not in self._back or self.now - before > self.settings.patience:
            self._back[sender] = self.now
            self.log(f"{self._name(sender)} is back: it takes part in the next run")
        self._highest = max(self._highest, view.number)
        wait = self.settings.linger * 2 ** min(max(self._losses[sender] - 1, 0), MOST_WAITS)
        if self.phase == "finished" and self.now >= self._back[sender] + wait:
            self._asked = True
            self._renew()

    def _renew(self) -> None:
        """Begin the run that was asked for, with who is back, unless the last result is too young."""
        if self.phase != "finished" or not self._asked or self.now < self._stopped_at + self.settings.linger:
            return
        back = {j for j in self._back if self.now - self._last_heard[j] <= self.settings.patience}
        self._move(View(max(self.number, self._highest) + 1, self.lost - back))

    def _disagree(self, sender: int, theirs: Mapping[str, str]) -> None:
        self._send(sender, self._hello())
        if self.phase == "finished" or sender in self.lost:  # who comes with other settings is told, and ends
            raise FrameError("a hello of a device that does not agree")
        names = sorted({*theirs, *self.agreement})
        differ = [
            f"{name}: {self.agreement.get(name, 'nothing')!r} at {self._name(self.row)}, "
            f"{theirs.get(name, 'nothing')!r} at {self._name(sender)}"
            for name in names
            if theirs.get(name) != self.agreement.get(name)
        ]
        pair = f"{self._name(self.row)} and {self._name(sender)}"
        words = f"{pair} do not agree; {'; '.join(differ)}. Nothing was sent; make all folders the same"
        self._fail(words, News(self.row, words, ends=True))

    def _move(self, view: View, why: str = "", news: News | None = None) -> None:
        """Leave the run as it is for a later one, or for one with fewer devices, unless too few are left for it."""
        if self.phase == "failed" or view == (self.number, self.lost):
            return
        part = part_of(self.full, self.row, view.lost)
        if len(part) < self.needed:
            self._fail(why if news else self._too_few(part, why), news)
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
        if self.phase == "greeting" and self._greeted.issuperset(self._talking):
            self._grow_ready(frozenset({self.row}))

    def _grow_ready(self, rows: frozenset[int]) -> None:
        if rows <= self._ready:
            return
        self._ready |= rows
        self._send_all(self._roll(READY, self._ready))
        if self._ready == self._everyone:  # from here on the journal knows of this run
            self.journal.begin(self._heading().pack())
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
        """Say who has a result; when everybody in the run has, it counts."""
        self._send_all(self._roll(FINISHED, self._done))
        if self.phase == "finishing" and self._done == self._everyone:
            self._write_end()
            self.phase, self._stopped_at = "finished", self.now
            self._losses = Counter({j: count for j, count in self._losses.items() if j in self.lost})
            self.log(f"run {self.number}: finished after {self.round} rounds")

    def _rows_in(self, frame: Frame) -> frozenset[int]:
        rows = unpack_rows(frame.body, self.full.devices)
        if not rows <= self._everyone:
            raise FrameError("a roll call that names devices outside the run")
        return rows

    def _roll(self, kind: int, rows: frozenset[int], flags: int = 0) -> Frame:
        return Frame(kind, self.run, self.row, self.round, flags, pack_rows(rows))

    def _start_over(self) -> None:
        """Ask for a new run: a neighbour two rounds ahead has heard from us what we no longer know we said."""
        self.log("the journal of this run is lost: asking for a new run")
        self._move(View(self.number + 1, self.lost))

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
        self._ready = self._everyone
        self._replay(records[1:])

    # --- loss and failure ---------------------------------------------------------------------------------------------

    def _silence(self, j: int) -> float:
        """Return for how long a neighbour has said nothing though this device waits for it."""
        if self.phase == "running" and j in self._heard:
            return 0.0
        return self.now - max(self._last_heard[j], self._since)

    def _lose(self, gone: list[int]) -> None:
        """Go on without neighbours that were silent for too long, or end."""
        if not gone:
            return
        what = {"greeting": "said hello", "running": f"spoken in round {self.round}"}.get(self.phase, "finished")
        has = "has" if len(gone) == 1 else "have"
        why = f"{self._names(gone)} {has} not {what} within {self.settings.patience:g} s"
        unread = [f"what {self._name(j)} says cannot be read: {self._unread[j]}" for j in gone if j in self._unread]
        why += f" ({'; '.join(unread)})" if unread else ""
        if self.settings.on_lost == "fail":
            self._fail(f"{why}; start again what has stopped or check the link, or use --on-lost continue")
            return
        self.log(f"{why}: going on without")
        self._move(View(self.number, self.lost | frozenset(gone)), why)

    def _too_few(self, part: frozenset[int], why: str) -> str:
        absent = [self._name(k) for k in range(self.full.devices) if k not in part]
        left = f"{len(part)} of {self.full.devices} devices {'is' if len(part) == 1 else 'are'} left"
        return (
            f"{why or 'the devices fall into parts'}; without {listed(absent)} {left}, and {self.needed} are needed "
            "to go on; start again what has stopped or check the links"
        )

    def _on_failed(self, frame: Frame) -> None:
        if frame.run != self.run:
            raise FrameError("a frame of another run")
        news = News.of(frame.body, self.full.devices)
        if self.phase == "finished":
            return
        why = f"{news.why} ({self._name(news.origin)} says so; no threshold was agreed on)"
        if self.settings.on_lost == "fail" or news.ends:
            self._fail(why, news)
            return
        self.log(f"{news.why}: going on without {self._name(frame.sender)}")
        self._move(View(self.number, self.lost | {frame.sender, news.origin} - {self.row}), why, news)

    def _break(self, error: Exception) -> None:
        """End because of an error in the protocol, in the journal or in this program: it is told like any other."""
        try:
            said = str(error)
        except Exception:
            said = ""
        words = in_a_line(f"{self._name(self.row)} could not go on: {type(error).__name__}: {said}".rstrip(": "))
        self._own_fault = True
        self._fail(words, cause=error)

    def _fail(self, words: str, news: News | None = None, cause: Exception | None = None) -> None:
        """End without a result, and tell everybody why, now and for a while."""
        if self.phase == "failed":
            return
        if self.phase == "greeting":  # the journal may know of an earlier run only
            self._write(self.journal.begin, self._heading().pack())
        self._write_end()
        error = PeerError(words)
        error.__cause__ = cause
        self._stop(error, news or News(self.row, words))

    def _stop(self, error: PeerError, news: News) -> None:
        self.phase, self.error, self.result, self._stopped_at = "failed", error, None, self.now
        self._news = news
        self.log(str(error))
        self._repeat()

    def _write_end(self) -> None:
        self._write(self.journal.append, ENDED)

    def _write(self, how: Callable[[bytes], None], record: bytes) -> None:
        """Write what the next start had better know, but can do without."""
        try:
            how(record)
        except OSError as problem:
            self.log(f"the journal cannot be written: {problem}")

    def _explain(self, to: int, run: int) -> None:
        """Say why this device has failed; the hello shows what differs, and brings who is behind to this run."""
        if not self._own_fault:
            self._send(to, self._hello())
        assert self._news is not None
        self._send(to, Frame(FAILED, run, self.row, self.round, 0, self._news.pack()))

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _read(self, data: bytes, sender: int) -> Frame:
        try:
            return frames.decode(data)
        except FrameError as problem:  # as of another version: not to be blamed on silence
            self._unread[sender] = str(problem)
            raise

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
        self._on[frame.kind](frame)

    def _run_of(self, frame: Frame) -> int:
        """Return in which run a device that has failed answers: news must not end a later attempt of the others."""
        if frame.kind == HELLO and (self._own_fault or Hello.of(frame.body, self.full.devices).run == self.number):
            return _short_digest(frame.body)  # it may leave out others than this device does
        return frame.run if self._own_fault else self.run

    def _same_run(self, frame: Frame) -> None:
        if frame.run != self.run:
            if frame.wants:  # it missed that there is another run
                self._send(frame.sender, self._hello(WANT))
            raise FrameError("a frame of another run")
        self._last_heard[frame.sender] = self.now

    def _repeat(self) -> None:
        """Send again what a neighbour may have missed."""
        self._next = self.now + self.settings.retry
        for j in self._talking:
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

    def _names(self, rows: Iterable[int]) -> str:
        return ", ".join(self._name(k) for k in rows)


def _short_digest(body: bytes) -> int:
    return int.from_bytes(hashlib.sha256(body).digest()[:8], "little")
