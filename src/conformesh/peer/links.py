"""A device and its links: what every device does with frames, whether it talks in rounds or not.

An engine hands over what arrived (`receive`) and the time (`tick`), and sends what `outbox` holds; it asks when the
device wants to be called again (`wake`) and whether anything is left to do (`over`). Frames that are malformed, of
another run, or of a stranger are refused and counted; they change nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from typing import Any, Literal

from conformesh.graph.network import Network
from conformesh.peer import frames
from conformesh.peer.frames import HELLO, ROSTER, Frame, FrameError
from conformesh.peer.journal import Journal
from conformesh.peer.json_bodies import MOST_AHEAD, in_a_line, words_for_neighbours, words_of
from conformesh.peer.rosters import FIELD, Rosters, number_in
from conformesh.peer.settings import Counts, PeerError, Settings
from conformesh.protocols.ledger import Ledger

Make = Callable[..., Generator[Any, Any, Any]]  # of a network and a row in it; see `private` in `Linked`
Phase = Literal["greeting", "running", "finishing", "finished", "failed"]
EVERYBODY = -1  # in the outbox: to all neighbours alike


class Linked(ABC):
    """One device of a mesh, as an engine sees it.

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
    rosters
        Under which roster it speaks, and what becomes of a newer one; a mesh without rosters needs none.
    private
        Whether the protocol has secrets. They are drawn for one attempt and live in memory only: `make` is also given
        the digest that names the attempt, no attempt is resumed after a restart, and neighbours are told nothing about
        the local cause of a failure.
    """

    error: PeerError | None = None
    idle = False  # whether it waits for somebody to ask for a run

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
        rosters: Rosters | None = None,
        private: bool = False,
    ) -> None:
        self.private = private
        self.row, self.full, self.make, self.journal = row, network, make, journal
        self.settings, self.scores, self.log = settings or Settings(), scores, log
        self.agreement = {**agreement, **self.settings.agreement(network.devices)}
        self.rosters = rosters or Rosters(number_in(agreement.get(FIELD)) or 0)
        self.counts = Counts()
        self.ledger = Ledger(1)
        self.phase: Phase = "greeting"
        self.number, self.round = 1, 0
        self.lost: frozenset[int] = frozenset()
        self.now = self._next = 0.0  # and when the device acts again by itself
        self._linked = [int(j) for j in network.neighbours(row)]
        self._links = frozenset(self._linked)
        self._out: list[tuple[int, bytes]] = []
        self._unread: dict[int, str] = {}  # why a neighbour's bytes were no frame
        self._runs_said: dict[int, int] = {}  # the run in which each neighbour last said it is
        self._followed_at = -math.inf  # when this device last followed a neighbour into a later run

    # --- what an engine calls -----------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, now: float) -> None:
        """Begin, or go on where the journal ends."""

    @abstractmethod
    def tick(self, now: float) -> None:
        """Notice that time has passed."""

    @property
    @abstractmethod
    def wake(self) -> float:
        """When the device wants to be ticked again at the latest."""

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether nothing is left to do, also for the neighbours."""

    @property
    @abstractmethod
    def survivors(self) -> tuple[int, ...]:
        """Rows of the devices that the result is about."""

    @property
    @abstractmethod
    def missing(self) -> int:
        """How many frames of data the device needs to go on; 1 where it waits for anything."""

    @abstractmethod
    def recalibrate(self, now: float, make: Make | None = None, scores: str = "") -> None:
        """Ask everybody for one more run, of other scores if `make` and their digest are given."""

    @abstractmethod
    def refuse(self, reason: str, now: float) -> None:
        """End this device for a reason of its own, and tell it to every neighbour that waits for it."""

    def receive(self, data: bytes, sender: int, now: float) -> None:
        """Take bytes that came from a neighbour; the transport knows who that is."""
        self.now = max(self.now, now)
        frame = None
        try:
            if sender not in self._links:
                raise FrameError("a frame of a device that is no neighbour")
            frame = frames.decode(data)
            if not self._about_rosters(frame, sender):
                self._own_name(frame, sender)
                self._take(frame)
        except FrameError as problem:
            if frame is None and sender in self._links:  # as of another version: not to be blamed on silence
                self._unread[sender] = in_a_line(str(problem))
            self._refuse(sender, problem)
            return
        except Exception as error:
            self._break(error)
        self.counts.heard[sender] += 1
        self.counts.heard_bytes[sender] += len(data)

    def outbox(self) -> list[tuple[int, bytes]]:
        """Return what to send, as (row of a neighbour or EVERYBODY, bytes), and forget it."""
        out, self._out = self._out, []
        return out

    # --- rosters ------------------------------------------------------------------------------------------------------

    @property
    def handed(self) -> bool:
        """Whether this device moves to a newer roster and has handed it on: another must be made in its place."""
        return self.rosters.handed(self._linked, self.now, self.settings.linger)

    def offer(self, roster: bytes, now: float) -> None:
        """Take a roster that came by another way than from a neighbour; a newer one is handed to all of them.

        A `FrameError` says why one is refused.
        """
        self.now = max(self.now, now)
        if self.rosters.offer(roster, self.now):
            self._hand_on()

    def _about_rosters(self, frame: Frame, sender: int) -> bool:
        """Take a frame that is about rosters, or that comes while this device moves to another one."""
        if frame.kind not in (HELLO, ROSTER) and not self.rosters.moving:  # nearly always
            return False
        before = self.rosters.latest
        answers = self.rosters.heard(frame, sender, self.now, self._hello())
        for answer in answers or ():
            self._send(sender, answer)
        if self.rosters.latest > before:
            self._hand_on()
        return answers is not None

    def _hand_on(self) -> None:
        self._next = self.now + self.settings.retry
        for to, frame in self.rosters.hand_on(self.row, self._linked):
            self._send(to, frame)

    def _own_name(self, frame: Frame, sender: int) -> None:
        if frame.sender == sender:
            return
        if frame.wants and frame.kind != HELLO:  # it may be under another roster, and have another row there
            self._send(sender, self._hello())
        raise FrameError("a frame that names another sender than its connection")

    # --- pieces -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _hello(self, flags: int = 0) -> Frame:
        """Return what greets a neighbour."""

    @abstractmethod
    def _take(self, frame: Frame) -> None:
        """Do what a neighbour's frame asks for; `FrameError` where it is refused."""

    @abstractmethod
    def _break(self, error: Exception) -> None:
        """End because of an error in the protocol, in the journal or in this program."""

    @property
    def _may_follow(self) -> bool:
        """Whether a neighbour's greeting may move this device to a later run now: see `json_bodies.MOST_AHEAD`.

        Each move costs frames, log lines and, without rounds, a new journal; a neighbour could ask for thousands.
        """
        return self.now >= self._followed_at + self.settings.retry

    def _bounded(self, sender: int, run: int) -> int:
        """Return up to which run a neighbour's greeting with this number may move this device.

        One neighbour alone moves it by `MOST_AHEAD`. If there are two or more it may go at once to where all of them
        are: a device that was away while the others moved far ahead would hold them up otherwise.
        """
        self._runs_said[sender] = run
        most = self.number + MOST_AHEAD
        if 1 < len(self._linked) == len(self._runs_said):
            most = max(most, min(self._runs_said.values()))
        return min(run, most)

    def _refuse(self, sender: int, problem: FrameError) -> None:
        words = in_a_line(str(problem))  # which may quote what the neighbour has sent
        self.counts.refuse(words)
        self.log(f"refused from row {sender}: {words}")

    def _send(self, to: int, frame: Frame) -> None:
        data = frames.encode(frame)
        self.counts.sent += 1
        self.counts.sent_bytes += len(data)
        self._out.append((to, data))

    def _in_words(self, error: Exception, travels: bool = False) -> str:
        """Return why this device has ended, in one line, whatever the error is like.

        What `travels` to neighbours names no file of this device; the local log and status do.
        """
        said = words_for_neighbours(error) if travels else words_of(error)
        return in_a_line(f"{self._name(self.row)} could not go on: {type(error).__name__}: {said}".rstrip(": "))

    def _name(self, row: int) -> str:
        return self.full.ids[row]

    def _write(self, how: Callable[[bytes], None], record: bytes) -> None:
        """Write what the next start had better know, but can do without."""
        try:
            how(record)
        except OSError as problem:
            self.log(f"the journal cannot be written: {problem}")
