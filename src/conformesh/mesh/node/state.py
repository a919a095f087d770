"""The state of a node: phase, run, neighbours, last certified threshold.

The thread that runs devices updates it; the threads of service, heartbeat and online learning read and update it too.
Lock order: this lock is always the last. Every method holds it briefly and calls nothing that takes another lock, so
a method may be called while any other lock is held. Both clocks are arguments, so that tests control time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from conformesh.files.json_numbers import as_json_value
from conformesh.mesh.node.certified_result import CertifiedResult, require_numbers, utc_text
from conformesh.mesh.node.neighbour_table import NeighbourTable
from conformesh.mesh.node.status import (
    AlarmStatus,
    CalibrationCoverage,
    CertifiedStatus,
    CoverageStatus,
    Gathering,
    NodeStatus,
    Phase,
    RequestStatus,
    RosterStatus,
    RunCounts,
    SearchStatus,
    SentStatus,
    Trouble,
    hide_private,
)
from conformesh.peer.settings import Failure
from conformesh.results.result import Result

LOG = logging.getLogger("conformesh.node")


@dataclass
class _Request:
    """A run that was requested and has not succeeded yet; attempts that fail do not begin a new one.

    Attributes
    ----------
    since
        When it was requested, on the monotonic clock.
    reached, advanced
        The furthest that any attempt has come (rounds, or devices that reported in asynchronous mode), and when it got
        there. A long run that advances is not late; an attempt that only repeats an earlier one does not advance.
    failed
        Whether an attempt has failed.
    """

    since: float
    reached: int
    advanced: float
    failed: bool = False


class _FileState(NamedTuple):
    """State of the node's files, see `NodeState.set_file_status`."""

    expires: float | None = None
    unreadable: int = 0
    waiting: str = ""


class NodeState:
    """The state of one node, safe to use from any thread.

    Parameters
    ----------
    device
        The node's own name.
    neighbours
        The names of its neighbours; other senders are added with their first frame.
    patience
        Seconds that a requested run may take without progress, and a neighbour may be silent.
    heartbeat
        Seconds between two heartbeats of this node; 0 if it neither sends nor reads them. Each neighbour is judged by
        the interval that its heartbeats state. A neighbour without heartbeats counts as up while no run is requested.
    clock, wall
        Seconds that only move forward, and seconds since 1970.
    private
        Whether only the owner may learn what depends on the scores of this device.
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
        self._patience = patience
        self._request: _Request | None = None
        self._lock = threading.Lock()
        self._phase, self._since, self._since_wall = Phase.STARTING, clock(), wall()
        self._run, self._round = 0, 0
        self._neighbours = NeighbourTable(neighbours, heartbeat, clock())
        self._sent = SentStatus()
        self._certified: CertifiedResult | None = None
        self._error = ""
        self._failed = ""  # why the last attempt failed, in words
        self._code: Failure | None = None  # why the last run failed, if it did
        self._roster = (0, 0)
        self._troubles: dict[Trouble, str] = {}
        self._gathering: Gathering | None = None
        self._search: SearchStatus | None = None
        self._alarm: AlarmStatus | None = None
        self._runs = RunCounts()
        self._coverage: dict[float, CoverageStatus] = {}
        self._calibration_coverage: list[CalibrationCoverage] = []
        self._files = _FileState()

    # --- updates ------------------------------------------------------------------------------------------------------

    def enter_phase(self, phase: Phase) -> None:
        """Go to another phase; staying in one keeps its start."""
        with self._lock:
            self._enter(phase)

    def begin_run(self, run: int) -> None:
        """Start calibrating in this run, at round 0. It counts as requested, also if another device started it."""
        with self._lock:
            self._enter(Phase.CALIBRATING)
            self._requested()
            self._run, self._round = run, 0
            self._neighbours.forget_rounds()

    def request_run(self) -> None:
        """Note that a run is requested, unless an earlier request is still open."""
        with self._lock:
            self._requested()

    def note_progress(self, reached: int) -> None:
        """Note the progress of the run: its round, or in asynchronous mode the number of devices that reported."""
        with self._lock:
            if self._request is not None and reached > self._request.reached:
                self._request.reached, self._request.advanced = reached, self._clock()

    def note_heartbeat(self, neighbour: str, interval: float | None) -> None:
        """Note that a neighbour's heartbeat has arrived, and the seconds between two of them, if that is known."""
        with self._lock:
            self._neighbours.note_heartbeat(neighbour, interval, self._clock())

    def note_alive(self, neighbour: str) -> None:
        """Note that a neighbour has sent something that this node does not read, and so does not count."""
        with self._lock:
            self._neighbours.note_alive(neighbour, self._clock())

    def set_patience(self, seconds: float) -> None:
        """Set the patience by which silence and overdue runs are judged."""
        with self._lock:
            self._patience = seconds

    def set_roster(self, roster: int, floor: int) -> None:
        """Set the number of the roster in force, and the floor: rosters below it are no longer used."""
        with self._lock:
            self._roster = roster, floor

    def set_neighbours(self, neighbours: Iterable[str]) -> None:
        """Replace the neighbours; those that stay keep their counts."""
        with self._lock:
            self._neighbours.set_names(neighbours, self._clock())

    def set_round(self, number: int) -> None:
        """Set the number of the open round."""
        with self._lock:
            self._round = number

    def count_received(self, neighbour: str, *, size: int, round: int | None = None, frames: int = 1) -> None:
        """Count `size` bytes that arrived from a neighbour in so many frames, the last of them of this round."""
        with self._lock:
            self._neighbours.count_received(neighbour, size, frames, round, self._clock(), self._patience)

    def count_refused(self, neighbour: str | None, reason: str, frames: int = 1) -> None:
        """Count refused frames, by neighbour; those without a sender or of an unknown one are counted together."""
        with self._lock:
            self._neighbours.count_refused(neighbour, reason, frames)

    def count_sent(self, *, size: int, frames: int = 1, again: int = 0) -> None:
        """Count what this node sent: `size` bytes in so many frames, `again` of which repeat earlier ones."""
        with self._lock:
            self._sent.frames += frames
            self._sent.bytes += size
            self._sent.resent_frames += again

    def set_gathering(self, gathering: Gathering) -> None:
        """Note which devices have reported, in asynchronous mode."""
        with self._lock:
            self._gathering = gathering

    def set_search(self, search: SearchStatus | None) -> None:
        """Note which thresholds are still possible in a run under way; None if nothing is known."""
        with self._lock:
            self._search = search

    def set_alarm(self, alarm: AlarmStatus | None) -> None:
        """Note the drift alarm, None if there is none; log an alarm that was raised since the last time."""
        with self._lock:
            before = [] if self._alarm is None else self._alarm.raised.raised()
            self._alarm = alarm
        for scope in [] if alarm is None else alarm.raised.raised():
            if scope not in before:
                LOG.warning("drift alarm of the %s: scores have changed", scope)

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
    ) -> CertifiedResult:
        """Set a new result, clear the last error, and return what `ResultStore.save` stores.

        A result that is not final leaves the phase unchanged: more reports may arrive.
        """
        require_numbers(calibration)
        names = calibration.device_ids if roster is None else tuple(roster)
        with self._lock:
            self._run = self._run if run is None else run
            self._coverage, self._calibration_coverage = {}, []
            self._certified = CertifiedResult(
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
                self._runs.count_success(calibration.seconds or 0.0, self._round)
            return self._certified

    def restore(self, certified: CertifiedResult) -> None:
        """Set the result that `ResultStore.load` has read; the phase stays the same."""
        require_numbers(certified.calibration)
        with self._lock:
            self._certified = certified
            self._run = max(self._run, certified.run)

    def set_calibration_coverage(self, found: Iterable[CalibrationCoverage]) -> None:
        """Set how many of the calibration rows of this device the last certified result covers."""
        with self._lock:
            self._calibration_coverage = [*found]

    def count_coverage(self, found: CertifiedResult, batch: CoverageStatus) -> CoverageStatus | None:
        """Add labelled examples to those so far, and return all; None if another result was certified meanwhile."""
        with self._lock:
            if self._certified is not found:
                return None
            before = self._coverage.get(batch.alpha)
            after = batch if before is None else before.merge(batch)
            self._coverage[batch.alpha] = after
            return after

    def note_error(self, words: str) -> None:
        """Set the last error of a node that continues."""
        with self._lock:
            self._error = " ".join(words.split())

    def set_trouble(self, what: Trouble, words: str) -> None:
        """Set or, with an empty message, clear a trouble of the node; log every change."""
        words = " ".join(words.split())
        with self._lock:
            before = self._troubles.pop(what, "")
            if words:
                self._troubles[what] = words
        if words and words != before:
            LOG.warning("%s", words)
        elif before and not words:
            LOG.info("the trouble is over: %s", before)

    def set_file_status(self, expires: float | None, unreadable: int, waiting: str = "") -> None:
        """Set the state of the files.

        Parameters
        ----------
        expires
            When the certificate ends, in seconds since 1970.
        unreadable
            How often the scores could not be used so far.
        waiting
            Why a changed file of scores is not read yet, which is not a trouble.
        """
        with self._lock:
            self._files = _FileState(expires, unreadable, waiting)

    def fail(self, words: str, code: Failure | None = None) -> None:
        """End this run with an error; with a `code` it counts as failed. The last threshold stays valid."""
        with self._lock:
            if code is not None:
                self._runs.count_failure(code)
                self._code = code
            self._error = self._failed = " ".join(words.split())
            self._requested().failed = True
            self._enter(Phase.FAILED)

    def decline(self, words: str = "") -> None:
        """Drop the request for a run that the privacy budget does not allow; the last threshold stays valid."""
        with self._lock:
            self._request, self._error = None, " ".join(words.split()) or self._error
            self._enter(Phase.FAILED if self._certified is None else Phase.CERTIFIED)

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """What the node is doing."""
        with self._lock:
            return self._phase

    @property
    def certified(self) -> CertifiedResult | None:
        """The last certified result. It is replaced and never changed, so readers may keep it."""
        with self._lock:
            return self._certified

    def status(self) -> NodeStatus:
        """Return everything that the node reports about itself, all from one moment."""
        with self._lock:
            now, request = self._clock(), self._request
            requested_at = None if request is None else request.since
            return NodeStatus(
                device=self.device,
                phase=self._phase,
                since=utc_text(self._since_wall),
                seconds_in_phase=now - self._since,
                run=self._run,
                round=self._round,
                roster=RosterStatus(*self._roster),
                request=self._request_status(now),
                neighbours=self._neighbours.status(now, self._patience, requested_at),
                refused=dict(self._neighbours.refused),
                sent=msgspec.structs.replace(self._sent),
                certified=None if self._certified is None else _summarise(self._certified),
                troubles=dict(self._troubles),
                last_error=self._error or None,
                failure=self._code if request is not None and request.failed else None,
                runs=self._runs.copy(),
                certificate_expires=self._files.expires,
                scores_read_failures=self._files.unreadable,
                scores_waiting=self._files.waiting or None,
                gathering=self._gathering,
                search=self._search,
                alarm=self._alarm,
                coverage=[*self._coverage.values()],
                calibration_coverage=self._calibration_coverage,
            )

    def shared_status(self) -> NodeStatus:
        """Return what readers other than the owner may see: everything, unless the node is private."""
        status = self.status()
        return hide_private(status) if self.private else status

    def _requested(self) -> _Request:
        if self._request is None:
            now = self._clock()
            self._request = _Request(now, 0, now)
        return self._request

    def _request_status(self, now: float) -> RequestStatus | None:
        request = self._request
        if request is None:
            return None
        return RequestStatus(
            seconds_ago=now - request.since,
            failed=self._failed if request.failed else None,
            overdue=now - request.advanced > self._patience,
            patience=self._patience,
        )

    def _enter(self, phase: Phase) -> None:
        if phase is not self._phase:
            self._phase, self._since, self._since_wall = phase, self._clock(), self._wall()


def _summarise(certified: CertifiedResult) -> CertifiedStatus:
    """Return the certified result as a status contains it: its first answer, and how many there are."""
    first = certified.calibration.answers[0]
    return CertifiedStatus(
        threshold=as_json_value(first.threshold),
        alpha=float(first.alpha),
        part=list(first.part),
        answers=len(certified.calibration.answers),
        method=certified.calibration.method,
        kind=first.certificate.kind,
        made_seconds=certified.made,
        **msgspec.structs.asdict(certified.facts()),
    )
