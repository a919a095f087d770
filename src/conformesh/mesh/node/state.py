"""What a node knows about itself: its phase, its run, its neighbours, its last certified threshold.

The engine's thread updates it, the service's threads read it; every method takes one short lock and none waits for
anything else. Both clocks are arguments, so that a test moves time by hand.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from conformesh.files.json_numbers import in_json
from conformesh.mesh.node.certified import Certified, in_utc, refuse_nan
from conformesh.mesh.node.history import StatusHistory
from conformesh.peer.settings import Failure
from conformesh.results.result import Result

LOG = logging.getLogger("conformesh.node")
MOST_REASONS = 32  # different reasons counted apart; what comes later counts as OTHER, so that memory stays bounded
OTHER: Final = "other"
UNSAID = "only the operator of this device is told"
# Failures whose cause every device can see: silence, and what devices say to each other. Others may depend on scores.
_PUBLIC_FAILURES = ("lost", "disagreement", "refused", "roster")


def public_code(code: Failure) -> Failure:
    """Return the kind of a failure as others may know it of a private device: one for all local causes."""
    return code if code in _PUBLIC_FAILURES else OTHER


def shared(now: dict[str, Any]) -> dict[str, Any]:
    """Return what of a private node's snapshot others than its owner may know: nothing about its own files.

    Words of failures stay with the owner too: they may quote anything. The threshold is public, and so are counts of
    frames, whose number and size do not depend on scores.
    """
    request = now["request"] and {**now["request"], "failed": now["request"]["failed"] and UNSAID}
    hidden = {"last_error": None, "scores_read_failures": 0, "scores_waiting": None, "request": request}
    troubles = {what: UNSAID for what in now["troubles"] if what != Trouble.SCORES.value}
    failed = dict.fromkeys(now["runs"]["failed"], 0)
    for code, count in now["runs"]["failed"].items():
        failed[public_code(code)] += count
    failure = now["failure"] and public_code(now["failure"])
    return now | hidden | {"troubles": troubles, "failure": failure, "runs": now["runs"] | {"failed": failed}}


class Phase(Enum):
    """What the node is doing; the value is the word for it."""

    STARTING = "starting"
    WAITING = "waiting for neighbours"
    CALIBRATING = "calibrating"
    CERTIFIED = "certified"
    FAILED = "failed"


class Trouble(Enum):
    """What may be wrong on this device itself, for as long as it is; the value is the word for it."""

    SCORES = "scores"
    CERTIFICATE = "certificate"
    ROSTER = "roster"
    DISK = "disk"


@dataclass
class NeighbourStatus:
    """What arrived from one neighbour."""

    last_heard: float | None = None  # a frame, on the monotonic clock
    alive: float | None = None  # a frame or a heartbeat
    last_heartbeat: float = 0.0
    interval: float | None = None  # seconds between two heartbeats, as it says itself; None while it sends none
    round: int | None = None
    frames: int = 0
    bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter)


@dataclass
class NodeRequest:
    """A run that was requested and has not succeeded yet; attempts that fail do not begin a new one.

    Attributes
    ----------
    since
        When it was requested, on the monotonic clock.
    reached, advanced
        The furthest that any attempt has come (rounds, or devices heard in asynchronous mode), and when it got there. A
        long run that advances is not late; an attempt that only repeats what an earlier one did is no advance.
    failed
        Whether an attempt has failed.
    """

    since: float
    reached: int
    advanced: float
    failed: bool = False


@dataclass
class Sent:
    """What this node sent; resent frames count in `frames` and `bytes` too."""

    frames: int = 0
    bytes: int = 0
    resent_frames: int = 0


class NodeState:
    """The state of one node, safe to use from any thread.

    Parameters
    ----------
    device
        The node's own name.
    neighbours
        The names it expects to hear from; others join when they are first heard.
    patience
        Seconds that a requested run may take without any advance, and a neighbour may be silent.
    heartbeat
        Seconds between two heartbeats of this node; 0 if it neither sends nor reads them. Each neighbour is judged by
        the interval in its own heartbeats. The silence of a neighbour that sends none, or whose are not read, means
        nothing while no run is requested.
    clock, wall
        Seconds that only move forward, and seconds since 1970.
    private
        Whether others than the owner may know nothing that depends on the scores of this device.
    """

    def __init__(
        self,
        device: str,
        neighbours: Iterable[str] = (),
        *,
        patience: float = 30.0,
        heartbeat: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        private: bool = False,
    ) -> None:
        self.device, self.private = device, private
        self._clock, self._wall = clock, wall
        self._patience, self._heartbeat = patience, heartbeat
        self._request: NodeRequest | None = None
        self._expected = clock()  # since when neighbours are expected to be heard
        self._lock = threading.Lock()
        self._phase, self._since, self._since_wall = Phase.STARTING, clock(), wall()
        self._run, self._round = 0, 0
        self._neighbours = {name: NeighbourStatus() for name in neighbours}
        self._refused: Counter[str] = Counter()
        self._sent = Sent()
        self._certified: Certified | None = None
        self._error = ""
        self._failed = ""  # why the last attempt failed, in words
        self._code: Failure | None = None  # why the last run failed, if it did
        self._roster = (0, 0)
        self._troubles: dict[Trouble, str] = {}
        self._gathering: dict[str, Any] | None = None
        self._search: dict[str, Any] | None = None
        self._alarm: dict[str, Any] | None = None
        self._history = StatusHistory()
        # When the certificate ends; how often the scores were refused; why they are not read yet.
        self._files: tuple[float | None, int, str] = (None, 0, "")

    # --- what the engine says -----------------------------------------------------------------------------------------

    def enter(self, phase: Phase) -> None:
        """Go to another phase; staying in one keeps its start."""
        with self._lock:
            self._enter(phase)

    def begin(self, run: int) -> None:
        """Start calibrating in this run, at round 0; whoever asked for it, it is a requested run."""
        with self._lock:
            self._enter(Phase.CALIBRATING)
            self._requested()
            self._run, self._round = run, 0
            for neighbour in self._neighbours.values():
                neighbour.round = None

    def request(self) -> None:
        """Note that a run is requested, unless an earlier request has not been met yet."""
        with self._lock:
            self._requested()

    def advance(self, reached: int) -> None:
        """Note how far the run under way has come: rounds, or devices heard in asynchronous mode."""
        with self._lock:
            if self._request is not None and reached > self._request.reached:
                self._request.reached, self._request.advanced = reached, self._clock()

    def heartbeat(self, neighbour: str, interval: float | None) -> None:
        """Note that a neighbour's heartbeat has arrived, and the seconds between two of them, if that is known."""
        with self._lock:
            found = self._neighbours.get(neighbour)
            if found is not None:
                found.alive = found.last_heartbeat = self._clock()
                found.interval = interval

    def note_alive(self, neighbour: str) -> None:
        """Note that a neighbour has sent something that is not counted, since nobody reads it."""
        with self._lock:
            if neighbour in self._neighbours:
                self._neighbours[neighbour].alive = self._clock()

    def set_patience(self, seconds: float) -> None:
        """Judge silence and overdue runs by another patience from now on."""
        with self._lock:
            self._patience = seconds

    def under(self, roster: int, floor: int) -> None:
        """Say which roster is in force, and that all before the floor are out of use."""
        with self._lock:
            self._roster = roster, floor

    def expect(self, neighbours: Iterable[str]) -> None:
        """Have other neighbours; what was counted of those that stay is kept."""
        with self._lock:
            self._neighbours = {name: self._neighbours.get(name, NeighbourStatus()) for name in neighbours}
            self._expected = self._clock()

    def at_round(self, number: int) -> None:
        """Say which round is open."""
        with self._lock:
            self._round = number

    def heard(self, neighbour: str, *, size: int, round: int | None = None, frames: int = 1) -> None:
        """Count what arrived from a neighbour: `size` bytes in so many frames, the last of this round."""
        with self._lock:
            found = self._neighbours.setdefault(neighbour, NeighbourStatus())
            found.last_heard = found.alive = now = self._clock()
            if found.interval is not None and now - found.last_heartbeat > self._longest_silence(found.interval):
                found.interval = None  # it is up and sends no heartbeats any more: started again without them
            found.frames += frames
            found.bytes += size
            if round is not None:
                found.round = round

    def refused(self, neighbour: str | None, reason: str, frames: int = 1) -> None:
        """Count refused frames; those of nobody in particular, or of a name nobody expects, are counted together."""
        with self._lock:
            found = None if neighbour is None else self._neighbours.get(neighbour)
            reasons = self._refused if found is None else found.refused
            reasons[reason if reason in reasons or len(reasons) < MOST_REASONS else OTHER] += frames

    def sent(self, *, size: int, frames: int = 1, again: int = 0) -> None:
        """Count what this node sent: `size` bytes in so many frames, `again` of which repeat earlier ones."""
        with self._lock:
            self._sent.frames += frames
            self._sent.bytes += size
            self._sent.resent_frames += again

    def gathered(self, what: dict[str, Any]) -> None:
        """Say what is known of the others, where devices talk without rounds."""
        with self._lock:
            self._gathering = what

    def searches(self, where: dict[str, Any] | None) -> None:
        """Say where the threshold is looked for, in a run under way; None where there is nothing to say."""
        with self._lock:
            self._search = where

    def drifts(self, alarm: dict[str, Any] | None) -> None:
        """Say how the drift alarm is, None where there is none; that it is raised is logged."""
        with self._lock:
            before = {} if self._alarm is None else self._alarm["raised"]
            self._alarm = alarm
        for whose, raised in ({} if alarm is None else alarm["raised"]).items():
            if raised and not before.get(whose):
                LOG.warning("drift alarm of the %s: scores have changed", whose)

    def certify(
        self,
        calibration: Result,
        *,
        roster: Iterable[str] | None = None,
        run: int | None = None,
        about_all: Result | None = None,
        roster_number: int = 0,
        final: bool = True,
        lost: Iterable[str] = (),
    ) -> Certified:
        """Hold a new certified calibration, forget the last error, and return what `ResultStore.save` keeps.

        One that is not final leaves the phase as it is: more may be heard.
        """
        refuse_nan(calibration)
        names = calibration.device_ids if roster is None else tuple(roster)
        with self._lock:
            self._run = self._run if run is None else run
            self._certified = Certified(
                calibration,
                self._run,
                names,
                self._wall(),
                roster_number=roster_number,
                about_all=about_all,
                final=final,
                lost=tuple(lost),
            )
            self._error = ""
            if final:
                self._request = self._code = None
                self._enter(Phase.CERTIFIED)
                self._history.succeed(calibration.seconds or 0.0, self._round)
            return self._certified

    def restore(self, certified: Certified) -> None:
        """Hold what `ResultStore.load` found until a run makes a new one; the phase stays."""
        refuse_nan(certified.calibration)
        with self._lock:
            self._certified = certified
            self._run = max(self._run, certified.run)

    def note_error(self, words: str) -> None:
        """Remember what went wrong without giving up."""
        with self._lock:
            self._error = " ".join(words.split())

    def judge(self, what: Trouble, words: str) -> None:
        """Say what is wrong with something now, or nothing where it is well; a change of it is logged."""
        words = " ".join(words.split())
        with self._lock:
            before = self._troubles.pop(what, "")
            if words:
                self._troubles[what] = words
        if words and words != before:
            LOG.warning("%s", words)
        elif before and not words:
            LOG.info("the trouble is over: %s", before)

    def inspected(self, expires: float | None, unreadable: int, waiting: str = "") -> None:
        """Take over what was seen of the files.

        When the certificate ends, in seconds since 1970; how often the scores could not be used so far; and why a
        changed file of scores is not read yet, which is no trouble.
        """
        with self._lock:
            self._files = expires, unreadable, waiting

    def fail(self, words: str, code: Failure | None = None) -> None:
        """Give up this run, saying why; with the word for it, it counts as failed. The last threshold stays."""
        with self._lock:
            if code is not None:
                self._history.fail(code)
                self._code = code
            self._error = self._failed = " ".join(words.split())
            self._requested().failed = True
            self._enter(Phase.FAILED)

    def decline(self, words: str = "") -> None:
        """Drop the request for a run, because the account of a private device refuses it; the last threshold stays."""
        with self._lock:
            self._request, self._error = None, " ".join(words.split()) or self._error
            self._enter(Phase.FAILED if self._certified is None else Phase.CERTIFIED)

    # --- what the service shows ---------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """What the node is doing."""
        with self._lock:
            return self._phase

    @property
    def certified(self) -> Certified | None:
        """The last certified calibration, whole: it is replaced, never changed."""
        with self._lock:
            return self._certified

    def snapshot(self) -> dict[str, Any]:
        """Return everything as one JSON object, taken at one moment; infinity is the string "inf"."""
        with self._lock:
            now, certified = self._clock(), self._certified
            return {
                "device": self.device,
                "phase": self._phase.value,
                "since": in_utc(self._since_wall),
                "seconds_in_phase": now - self._since,
                "run": self._run,
                "round": self._round,
                "roster": {"number": self._roster[0], "floor": self._roster[1]},
                "request": self._shown_request(now),
                "neighbours": {
                    name: _shown(one, now) | {"up": self._is_up(one, now)} for name, one in self._neighbours.items()
                },
                "refused": dict(self._refused),
                "sent": dict(vars(self._sent)),
                "certified": None if certified is None else _summary(certified),
                "troubles": {what.value: words for what, words in self._troubles.items()},
                "last_error": self._error or None,
                "failure": self._code if self._request is not None and self._request.failed else None,
                "runs": self._history.shown(),
                "certificate_expires": self._files[0],
                "scores_read_failures": self._files[1],
                "scores_waiting": self._files[2] or None,
                **({} if self._gathering is None else {"gathering": self._gathering}),
                **({} if self._search is None else {"search": in_json(self._search)}),
                **({} if self._alarm is None else {"alarm": in_json(self._alarm)}),
            }

    def shared_snapshot(self) -> dict[str, Any]:
        """Return what others than the owner may know of this node: all of it, unless it is private."""
        now = self.snapshot()
        return shared(now) if self.private else now

    def _requested(self) -> NodeRequest:
        if self._request is None:
            now = self._clock()
            self._request = NodeRequest(now, 0, now)
        return self._request

    def _shown_request(self, now: float) -> dict[str, Any] | None:
        request = self._request
        if request is None:
            return None
        return {
            "seconds_ago": now - request.since,
            "failed": self._failed if request.failed else None,
            "overdue": now - request.advanced > self._patience,
            "patience": self._patience,
        }

    def _is_up(self, neighbour: NeighbourStatus, now: float) -> bool:
        """Whether the link to a neighbour is up, as far as its silence tells."""
        since = max(self._expected, neighbour.alive or 0.0)
        if neighbour.interval is not None:
            return now - since <= self._longest_silence(neighbour.interval)
        if neighbour.alive is not None or not self._heartbeat:
            # Without heartbeats a neighbour has nothing to say while no run is requested.
            if self._request is None:
                return True
            return now - max(since, self._request.since) <= self._patience
        return now - since <= self._longest_silence(self._heartbeat)

    def _longest_silence(self, interval: float) -> float:
        """Return how long a neighbour with such heartbeats may be silent: one may be late, or two be lost."""
        return max(self._patience, 3 * interval)

    def _enter(self, phase: Phase) -> None:
        if phase is not self._phase:
            self._phase, self._since, self._since_wall = phase, self._clock(), self._wall()


def _shown(neighbour: NeighbourStatus, now: float) -> dict[str, Any]:
    return {
        "last_heard_seconds_ago": None if neighbour.last_heard is None else now - neighbour.last_heard,
        "round": neighbour.round,
        "frames_received": neighbour.frames,
        "bytes_received": neighbour.bytes,
        "refused": dict(neighbour.refused),
    }


def _summary(certified: Certified) -> dict[str, Any]:
    """Return what a status says; of several answers it shows the first, and how many there are."""
    first = certified.calibration.answers[0]
    return {
        "threshold": in_json(first.threshold),
        "alpha": float(first.alpha),
        "part": list(first.part),
        "answers": len(certified.calibration.answers),
        "method": certified.calibration.method,
        "kind": first.certificate.kind,
        **certified.facts(),
        "made_seconds": certified.made,
    }
