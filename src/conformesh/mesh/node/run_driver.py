"""Runs the devices of a node over open links, one after another, and certifies their results.

A device (`peer`) is the protocol without I/O. It ends when it has failed, when it has calibrated `once`, or when the
node needs other links; after a failure the driver waits a while and starts another one, which continues from the
journal. A single calibration (`once`) ends with the reason instead.

A device that cannot take part, because its scores, its certificate or its journal cannot be used, tells its neighbours
so: otherwise they would wait for it.
"""

from __future__ import annotations

import logging
import threading
import time

from conformesh.mesh.link import Transport, drive_device
from conformesh.mesh.node.calibration_run import (
    JOURNAL,
    PrivatePart,
    RunContext,
    calibration_coverage,
    device_result,
    local_protocol,
    make_device,
)
from conformesh.mesh.node.node_files import FILE_LOOK_INTERVAL, NodeFiles
from conformesh.mesh.node.run_request import RunRequests
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import Phase, public_code
from conformesh.mesh.node.status_updates import StatusFeed
from conformesh.mesh.node.telemetry import Traces
from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.device import Device
from conformesh.peer.frames import FrameError, is_roster
from conformesh.peer.journal import FileJournal, Journal, MemoryJournal
from conformesh.peer.settings import Failure, LocalError, failure_of
from conformesh.protocols.block import SearchProgress
from conformesh.results.result import Result

log = logging.getLogger("conformesh.node")
# Seconds between a failure and the next attempt: twice as long each time, so that a device that fails at once does not
# burn a core, and at most so long that a mended mesh runs again within a minute.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
PROGRESS_INTERVAL = 0.5  # seconds between two log records of progress, which `mesh up` reads for its display
# All that neighbours are told: the content of a file, and its path, stay here.
UNREADABLE = "its file of scores cannot be read"
_UNWRITABLE_JOURNAL = "its journal cannot be written"


class RunDriver:
    """Runs one device after another, and passes on requests for runs.

    Attributes
    ----------
    device
        The device that runs now, or ran last; None before the first.
    has_result
        Whether a device has a result that this process has made, or that it was started to report.
    """

    def __init__(
        self,
        files: NodeFiles,
        state: NodeState,
        requests: RunRequests,
        stopping: threading.Event,
        traces: Traces | None = None,
    ) -> None:
        self.files, self.state, self.requests = files, state, requests
        self.stopping, self.traces = stopping, traces
        self.search_progress = SearchProgress()
        self.device: Device | AsyncDevice | None = None
        self.has_result = False
        self._timer = _RunTimer()
        self._certified_run = 0
        self._failure: Exception | None = None  # the last error of a device that the state was told
        self._last_outcome: object = None  # the last outcome of an asynchronous device that was looked at
        self._logged = ("", 0.0)  # phase and time of the last record of progress

    # --- one device after another -------------------------------------------------------------------------------------

    def serve(self, transport: Transport, once: bool) -> None:
        """Run devices over these links until the node stops or needs other links. With `once`, raise what failed."""
        pause = SHORTEST_PAUSE
        while not self.stopping.is_set() and not self.files.needs_links:
            began = time.monotonic()
            try:
                error: Exception | None = self._run_device(transport, once)
            except OSError as problem:  # of the journal
                error = problem
            if self.files.members.has_newer_roster:
                return
            if error is not None and error is not self._failure:
                self.fail(str(error), failure_of(error))
            if once:
                if error is not None:
                    raise error
                return
            if error is None or time.monotonic() - began >= self.files.config.timing.patience:
                # A device that pauses is not heard. After waiting for others for its whole patience it must not pause
                # long: parts of a mesh that was split and is whole again would wait for each other.
                pause = SHORTEST_PAUSE
            if error is not None:
                self._pause(pause, transport)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _run_device(self, transport: Transport, once: bool) -> Exception | None:
        """Run a device until it has failed, or nothing is left to do, or its files say that another must begin."""
        journal, full = self._open_journal()
        try:
            device = self._make_device(journal, once)
            feed = StatusFeed(self.state, device, None if self.files.config.is_private else self.search_progress)
            if device.idle:
                self.state.decline()
            excluded = self._reason_to_stay_out(full)
            if excluded is not None:
                # Nothing is waited for where the journal cannot be written: the next attempt opens it again.
                return self._stay_out(device, feed, transport, once or excluded[1] == _UNWRITABLE_JOURNAL, excluded)
            drive_device(
                device, transport, lambda: self._is_done(device, once), lambda: self._attend(device, feed, once)
            )
            if once and isinstance(device, AsyncDevice) and not device.final:
                self._certify(device)  # nothing new has arrived for long: certify what is certain about those heard
            if once and isinstance(device, Device) and device.phase == "finished":
                device.note_reported()
                self.has_result = True
            return device.error
        finally:
            if isinstance(journal, FileJournal):
                journal.close()

    def _make_device(self, journal: Journal, once: bool) -> Device | AsyncDevice:
        files = self.files
        files.look(at_once=True)
        # A device that starts asks for a run anyway, with the latest scores, unless its account refuses it.
        files.scores_changed = files.epoch_closed = False
        self.requests.renew()
        self._timer.start()
        self._certified_run = 0
        old = self.state.certified
        # With `once`, the result of a run that is already on the disk is reported instead of asking for another run.
        stored = old.run if once and old is not None and old.restored else 0
        options = RunContext(self._log, files.members.rosters, self.search_progress, stored)
        self.device = make_device(files.config, files.scores.known, journal, options, self._private_part(once))
        return self.device

    def _private_part(self, once: bool) -> PrivatePart | None:
        """Return what a private device looks up; one that stays up is idle while its account refuses runs."""
        files = self.files
        if files.privacy is None:
            return None
        return PrivatePart(lambda: files.scores.known, files.privacy.epochs, idle=bool(files.refusal) and not once)

    def _open_journal(self) -> tuple[Journal, OSError | None]:
        """Return this device's journal; if it cannot be opened, one in memory to tell the neighbours so."""
        try:
            return FileJournal(self.files.config.folder / JOURNAL), None
        except OSError as problem:
            return MemoryJournal(), problem

    def _reason_to_stay_out(self, full: OSError | None) -> tuple[Exception, str] | None:
        """Return why the device cannot take part, and what its neighbours are told; None if it can."""
        files = self.files
        if files.certificate.late:
            return LocalError(files.certificate.late, "certificate"), files.certificate.late
        if files.scores.scores is None and not files.config.has_epsilon:
            return LocalError(files.scores.problem, "scores"), UNREADABLE
        if full is None and files.disk.problem:
            full = OSError(files.disk.problem)
        return None if full is None else (full, _UNWRITABLE_JOURNAL)

    def _stay_out(
        self,
        device: Device | AsyncDevice,
        feed: StatusFeed,
        transport: Transport,
        once: bool,
        excluded: tuple[Exception, str],
    ) -> Exception | None:
        """Tell the neighbours that this device cannot take part, for as long as it cannot, or `once` for a while."""
        problem, told = excluded
        self.fail(str(problem), None if once else failure_of(problem))  # with `once` it is counted when this ends
        device.refuse(told, time.monotonic())

        def is_done() -> bool:
            self.files.look()
            if self.stopping.is_set() or self.files.needs_links:
                return device.handed or not device.rosters.moving
            # With epsilon a device takes part without scores too: whether it comes back must not tell that.
            has_part = self.files.config.has_epsilon or self.files.scores.scores is not None
            return device.over if once else not self.files.certificate.late and has_part

        def attend() -> None:
            self._take_offered_roster(device)
            feed.update_counts(time.monotonic())

        drive_device(device, transport, is_done, attend)
        return problem if once else None

    def _pause(self, seconds: float, transport: Transport) -> None:
        """Wait before the next attempt, with an eye on the files; less long if there is a reason to try at once."""
        end, device, was_full = time.monotonic() + seconds, self.device, bool(self.files.disk.problem)
        while (left := end - time.monotonic()) > 0 and not self.stopping.is_set():
            for sender, data in transport.receive(min(left, FILE_LOOK_INTERVAL)):
                self.state.note_alive(self.files.config.devices[sender])
                if device is not None and is_roster(data):  # all else is repeated in time
                    device.receive(data, sender, time.monotonic())
            self.files.look()
            if device is not None:
                self._take_offered_roster(device)
                if device.rosters.moving:
                    drive_device(device, transport, lambda: self.stopping.is_set() or device.handed)
            is_mended = was_full and not self.files.disk.problem
            has_news = self.files.scores_changed or self.files.epoch_closed or self.files.needs_links
            if self.requests.is_new or has_news or is_mended:
                return

    def _is_done(self, device: Device | AsyncDevice, once: bool) -> bool:
        if self.stopping.is_set():
            return True
        if device.rosters.moving:  # it hands the newer roster to its neighbours first
            return device.handed
        if once:
            return device.over
        self.files.look()
        return self.files.needs_links or (device.phase == "failed" and device.over)

    # --- while a device runs ------------------------------------------------------------------------------------------

    def _attend(self, device: Device | AsyncDevice, feed: StatusFeed, once: bool) -> None:
        """Pass on requests, tell the state where the device is, and keep a result that is new."""
        now = time.monotonic()
        self._timer.follow(device.number)
        if self.traces is not None and not device.idle:
            self.traces.enter_phase(device.number, device.phase, device.rosters.number)
        self._take_offered_roster(device)
        self.state.set_roster(device.rosters.number, device.rosters.floor)
        self._pass_on_requests(device, now)
        if not feed.update(now):
            return
        if device.phase != self._logged[0] or now - self._logged[1] >= PROGRESS_INTERVAL:
            self._logged = (device.phase, now)
            log.debug("progress", extra=vars(feed.progress(now)))
        if device.phase == "failed" and device.error is not None and device.error is not self._failure:
            # At once, and not when the device has told its neighbours for a while and ends.
            self._failure = device.error
            self.fail(str(device.error), device.error.code)
        elif device.phase == "finished" and self._certified_run != device.number:
            self._certified_run = device.number
            self._certify(device)
            if not once and isinstance(device, Device):
                device.note_reported()  # it is served from now on
        elif isinstance(device, AsyncDevice) and device.phase == "running":
            self._certify_so_far(device)

    def _pass_on_requests(self, device: Device | AsyncDevice, now: float) -> None:
        """Ask the device for a run if the scores have changed, an epoch has closed, or a program has asked."""
        files = self.files
        if files.scores_changed:
            files.scores_changed = False
            log.info("the scores have changed: asking for a new run", extra={"run": device.number})
            self.state.request_run()
            scores = files.scores.known
            device.recalibrate(now, local_protocol(files.config, scores, self.search_progress), scores.digest)
        if files.epoch_closed:
            files.epoch_closed = False
            log.info("an epoch has closed: asking for a new run", extra={"run": device.number})
            self.state.request_run()
            device.recalibrate(now)
        if self.requests.is_due(device.number):
            # The run that the devices greet each other for has not begun: it meets the request.
            self.requests.pass_on(device.number, device.number if device.phase == "greeting" else device.number + 1)
            device.recalibrate(now)

    def _take_offered_roster(self, device: Device | AsyncDevice) -> None:
        """Give the device a roster that reached this node in other ways than from a neighbour."""
        body = self.files.members.next_submitted()
        if body is None:
            return
        try:
            device.offer(body, time.monotonic())
        except FrameError as problem:
            self.files.note_refused_roster(str(problem))

    def _log(self, words: str) -> None:
        device = self.device
        log.info(words, extra={} if device is None else {"run": device.number, "round": device.round})

    # --- requests and results -----------------------------------------------------------------------------------------

    def recalibrate(self) -> str:
        """Ask for a new run, from any thread; say what becomes of it.

        OSError if the request cannot be stored, RuntimeError if the account would refuse the run.
        """
        privacy = self.files.privacy
        if privacy is not None and (refusal := privacy.refusal_now()):
            raise RuntimeError(refusal)
        was_new, phase, device = self.requests.is_new, self.state.phase, self.device
        # The phase before the number: if the device moves on in between, a later run than needed is asked for.
        is_greeting = device is not None and device.phase == "greeting"
        number = self.state.status().run if device is None else device.number
        self.requests.ask(number if is_greeting else number + 1)
        self.state.request_run()
        self.requests.announce()
        if phase is Phase.CERTIFIED:
            is_asked = was_new or (device is not None and self.requests.is_passed_on(device.number))
            return "joined: one was asked for already and begins now" if is_asked else "started"
        if phase is Phase.WAITING:
            return "joined: the devices greet each other for one"
        return "waiting: it begins after the one under way" if phase is Phase.CALIBRATING else "waiting"

    def fail(self, words: str, code: Failure | None) -> None:
        """Give up a run; with a code it counts as failed."""
        config = self.files.config
        self.state.fail(words, code)
        if self.traces is not None and code is not None:
            self.traces.end_run("failed", reason=public_code(code) if config.is_private else code)
        if code == "privacy" and config.has_epsilon:
            # The account has refused the run, and only another epoch changes that: the request is answered.
            self.requests.withdraw()
            self.state.decline(words)

    def _certify_so_far(self, device: AsyncDevice) -> None:
        """Show what is certain by now, unless there is a final result, which is the same on all devices."""
        outcome, certified = device.result, self.state.certified
        if outcome is None or outcome is self._last_outcome:
            return
        self._last_outcome = outcome
        if certified is None or not certified.final:
            self._certify(device)

    def _certify(self, device: Device | AsyncDevice) -> None:
        if device.result is None:
            return
        config, seconds = self.files.config, self._timer.seconds()
        result, rest = device_result(config, device, seconds), device.result.about_all
        roster = tuple(config.devices[row] for row in device.survivors)
        made = self.state.certify(
            result,
            roster=roster,
            run=device.number,
            roster_number=device.rosters.number,
            about_all=None if rest is None else device_result(config, device, seconds, rest),
            final=not isinstance(device, AsyncDevice) or device.final,
            lost=() if isinstance(device, AsyncDevice) else [name for name in config.devices if name not in roster],
        )
        self.has_result = True
        if result.adapted is not None and not config.is_private:
            self.state.set_calibration_coverage(calibration_coverage(config, made))
        if not made.final:
            log.debug("%s so far, %s", *_in_words(result), extra={"run": device.number})
            return  # the journal has the entries: nothing is lost with the process
        if self.traces is not None:
            self.traces.end_run("certified", rounds=device.round)
        self.requests.meet(device.number)
        if self.requests.run:  # requested during this run
            self.state.request_run()
        self.files.save(made)
        log.info("%s, %s", *_in_words(result), extra={"run": device.number})


class _RunTimer:
    """Measures how long runs take: the first from the start of its device, others from the end of the one before."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._started = time.perf_counter()
        self._run: int | None = None  # the run that this is the start of, once it is known

    def follow(self, run: int) -> None:
        if self._run not in (None, run):
            self._started = time.perf_counter()
        self._run = run

    def seconds(self) -> float:
        return time.perf_counter() - self._started


def _in_words(result: Result) -> tuple[str, str]:
    """Return the threshold and why it may be trusted; of several the first, and how many there are."""
    first, many = result.answers[0], len(result.answers)
    return f"threshold {first.threshold!r}{'' if many == 1 else f', the first of {many}'}", str(first.certificate)
