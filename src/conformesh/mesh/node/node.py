"""A node that stays up: calibrates again when its scores change or when anybody asks, and answers local programs.

A private node does not calibrate when its scores change, since that would tell when they do: the new ones count from
the next run on. Runs begin when it starts, when an operator asks, and when an epoch closes. It takes part also with a
score file that it cannot use, without scores then, and tells only its operator.

Whatever is wrong with its own files while it is up (a score file half written, a certificate that has expired, a clock
that is off) makes it unhealthy and never ends it: it says why, keeps its last threshold, and goes on when that is
mended. Meanwhile it tells its neighbours why, over whatever links there are. A single calibration (`once`) ends with
the reason instead. A newer roster is handed to the old neighbours; then the node opens the links of the new one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from conformesh.files.files import remove_drafts
from conformesh.kernels.compilation import compiled_beforehand
from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.config.device_toml import read_device, reload_config
from conformesh.mesh.http.replies import NodeInterface
from conformesh.mesh.http.server import Service
from conformesh.mesh.link import Transport, drive_device, open_links
from conformesh.mesh.node.calibration_run import JOURNAL, PrivatePart, calibration_of, make_device, protocol_of
from conformesh.mesh.node.certified_result import Certified
from conformesh.mesh.node.disk_watch import DiskWatch
from conformesh.mesh.node.file_watch import CertificateWatch, ScoreWatch
from conformesh.mesh.node.folder_lock import sole_process
from conformesh.mesh.node.heartbeat import Heartbeat
from conformesh.mesh.node.membership import Membership
from conformesh.mesh.node.online import OnlineLearning
from conformesh.mesh.node.privacy_watch import PrivacyWatch
from conformesh.mesh.node.result_store import ResultStore
from conformesh.mesh.node.run_request import PendingRun
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import Phase, Trouble, public_code
from conformesh.mesh.node.status_updates import StatusFeed
from conformesh.mesh.node.telemetry import Traces
from conformesh.methods import get_method
from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.device import Device
from conformesh.peer.frames import FrameError, is_roster
from conformesh.peer.journal import FileJournal, Journal, MemoryJournal
from conformesh.peer.settings import Failure, OwnError, PeerError, failure_of
from conformesh.protocols.block import SearchProgress
from conformesh.results.result import Result

log = logging.getLogger("conformesh.node")
LOOK = 1.0  # seconds between two looks at the files
WAIT = 0.1  # seconds between two looks at a file of scores that a start waits for
# Seconds between a failure and the next attempt: twice as long each time, unless one has waited for others long enough
SHORTEST, LONGEST = 0.5, 30.0
DRAFT_AGE = 60.0  # seconds after which a draft of scores or of a roster is one that a crash has left
TELL = 0.5  # seconds between two records of progress
# All that neighbours are told: what is in a file, and where it is, stays here.
UNREADABLE = "its file of scores cannot be read"
FULL = "its journal cannot be written"


class Node:
    """One device with its links, its local service and its last certified threshold."""

    def __init__(
        self,
        config: DeviceConfig,
        address: str | Path | None = None,
        traces: Traces | None = None,
        read_again: Callable[[], DeviceConfig] | None = None,
    ) -> None:
        self.config, self.traces = config, traces
        self._read_again = read_again or (lambda: read_device(config.folder))
        self._reloading = threading.Event()  # asked for by an operator
        self._reloaded = False  # with changes that need other links
        self.state = NodeState(
            config.name,
            [neighbour.name for neighbour in config.neighbours],
            patience=_total_patience(config),
            heartbeat=config.timing.heartbeat,
            private=config.is_private,
        )
        self.members = Membership(config)
        self.store = ResultStore(config)
        self.address = config.folder if address is None else address
        self.stopping = threading.Event()
        self.scores = ScoreWatch(config, beside=config.has_epsilon)
        self.certificate = CertificateWatch(config)
        self.disk = DiskWatch(config.folder)
        self.pending = PendingRun(config.folder)
        self.search_progress = SearchProgress()
        self.heartbeat = Heartbeat(config, self.state)
        self.online = None if config.learner is None else OnlineLearning(config, self.state)
        self.privacy = PrivacyWatch(config) if config.is_private else None
        self._asked = threading.Event()  # for a new run, by a local program
        self._asked_in = 0  # the run that was the last one when the device was told so
        self._links: Transport | None = None  # the last that were opened
        self._due = 0.0  # when to look at the files again
        self._other_scores = False
        self._new_epoch = False
        self._certified_run = 0
        self._has_result = False  # of the run that a process that calibrates once was started for
        self._started = time.perf_counter()
        self._timed: int | None = None  # the run that this is the start of, once it is known
        self._device: Device | AsyncDevice | None = None
        self._failure: Exception | None = None  # the last error of a device that the state was told
        self._unsaved: Certified | None = None  # a threshold that could not be written yet
        self._last_outcome: object = None  # the last outcome of an asynchronous device that was looked at
        self._told = ("", 0.0)  # phase and time of the last record of progress
        self.state.set_roster(config.roster_number, self.members.rosters.floor)

    def run(self, once: bool = False) -> None:
        """Calibrate, and unless `once` stay up until `stopping` is set. Raises what ended a single calibration."""
        with sole_process(self.config.folder):
            self._remove_drafts()
            self._look_at_privacy()
            if once or not self._refusal:
                self.state.request_run()  # whoever starts calibrates, so a threshold from before is not enough for long
            self.members.verify()
            old = self.store.load()
            if old is not None:
                self.state.restore(old)
            elif self.store.problem:
                self.state.note_error(self.store.problem)
            with (
                self._learning(),
                Service(
                    NodeInterface(self.state, self.recalibrate, self.members.hand, self.heartbeat, self.online),
                    self.address,
                    trace_reply=None if self.traces is None else self.traces.request,
                ),
            ):
                self._stay_up(once)
            # An older result on disk is not that of the run that this process was started for.
            if once and self.stopping.is_set() and not self._has_result:
                raise PeerError("stopped before the run was finished: there is no result")

    def _remove_drafts(self) -> None:
        """Delete what killed processes have left; programs that do not hold the lock write scores and rosters too."""
        remove_drafts(self.store.path)
        self.pending.remove_drafts()
        self.members.remove_drafts(DRAFT_AGE)
        remove_drafts(self.config.path("scores"), DRAFT_AGE)

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """Keep the journal of what is learnt online open, if there is one."""
        if self.online is None:
            yield
            return
        self.online.open()
        try:
            yield
        finally:
            self.online.close()

    @contextmanager
    def _side_messages(self, transport: Transport) -> Iterator[None]:
        """Tell neighbours what is told beside the runs."""
        with (
            self.heartbeat.running(transport),
            nullcontext() if self.online is None else self.online.running(transport),
        ):
            yield

    def stop(self) -> None:
        """End soon; also from a handler of signals."""
        self.stopping.set()
        if self._links is not None:
            self._links.wake()

    def reload(self) -> None:
        """Read the files again soon; also from a handler of signals."""
        self._due = 0.0
        self._reloading.set()
        if self._links is not None:
            self._links.wake()

    def _reload(self) -> None:
        """Read device.toml, the scores and the certificate again, and say what takes effect.

        What all devices have agreed on stays as it is until a restart: a device that changes it alone would disagree
        with its neighbours. So does a file that cannot be read. The links are opened again where something of this
        device has changed, and a run that is under way goes on from the journal.
        """
        self._reloading.clear()
        try:
            config, later = reload_config(self.config, self._read_again())
        except ValueError as problem:
            self.state.note_error(f"not reloaded: {problem}")
            log.warning("not reloaded: %s", problem)
            return
        self._reloaded |= config != self.config
        self.config = self.members.config = config
        self.state.set_patience(_total_patience(config))
        self.scores.under(config)
        self.certificate.under(config)
        wait = f"; {', '.join(later)} of device.toml count from the next start on" if later else ""
        log.info("reloaded: device.toml, scores, certificate%s", wait)

    def _stay_up(self, once: bool) -> None:
        """Open links and serve them, again and again: with another certificate, or under another roster."""
        pause = SHORTEST
        while not self.stopping.is_set():
            self._look_at_files(at_once=True)
            self._await_scores()
            self._move()
            hopeless = self.members.removed or (not self.certificate.late and self.certificate.problem)
            if hopeless:
                if once:
                    raise ValueError(hopeless)
                self.stopping.wait(LOOK)
                continue
            self.certificate.use()
            self._reloaded = False
            try:
                with self._compiled(), open_links(self.config) as transport, self._side_messages(transport):
                    self._links = transport
                    self._serve(transport, once)
                pause = SHORTEST
            except OSError as problem:  # another program has the port, say
                if once:
                    raise
                self._fail(str(problem), "links")
                log.warning("%s", problem)
                self.stopping.wait(pause)
                pause = min(2 * pause, LONGEST)
            if once and not self.members.moving:
                return

    def _await_scores(self) -> None:
        """Wait until the file of scores is complete, where nothing was read yet; `ScoreWatch` limits how long."""
        while self.scores.scores is None and self.scores.waiting and not self.scores.problem:
            if self.stopping.wait(WAIT):
                return
            self._look_at_files(at_once=True)

    def _move(self) -> None:
        """Go on under a newer roster, if there is one; this device may be out of it."""
        while (body := self.members.offered()) is not None:  # no links: there is nobody to hand it to
            try:
                self.members.accept(body)
            except ValueError as problem:
                self._refused_roster(str(problem))
        if not self.members.moving:
            return
        self.members.move()
        self.state.set_roster(self.members.rosters.number, self.members.rosters.floor)
        self.state.set_trouble(Trouble.ROSTER, self.members.removed)
        if self.members.removed:
            self.state.fail(self.members.removed)
            return
        self.config = self.members.config
        self.scores.config = self.config
        self.certificate.under(self.config)
        self.store = ResultStore(self.config)
        self.heartbeat.set_roster(self.config)
        if self.online is not None:
            self.online.set_roster(self.config)
        self.state.set_neighbours([neighbour.name for neighbour in self.config.neighbours])
        log.info("roster %d: %d devices", self.config.roster_number, len(self.config.devices))

    def _refused_roster(self, words: str) -> None:
        self.state.count_refused(None, "a roster that is refused")
        self.state.note_error(words)
        log.warning("%s", words)

    def recalibrate(self) -> str:
        """Ask for a new run, from any thread; say what becomes of it.

        OSError where the request cannot be stored, RuntimeError where the account would refuse the run.
        """
        if self.privacy is not None and (refusal := self.privacy.refusal_now()):
            raise RuntimeError(refusal)
        asked, phase, device = self._asked.is_set(), self.state.phase, self._device
        # The phase before the number: if the device moves on in between, a later run than needed is asked for.
        greeting = device is not None and device.phase == "greeting"
        number = self.state.status().run if device is None else device.number
        self.pending.ask(number if greeting else number + 1)
        self.state.request_run()
        self._asked.set()
        if phase is Phase.CERTIFIED:
            waiting = asked or (device is not None and self._asked_in == device.number)
            return "joined: one was asked for already and begins now" if waiting else "started"
        if phase is Phase.WAITING:
            return "joined: the devices greet each other for one"
        return "waiting: it begins after the one under way" if phase is Phase.CALIBRATING else "waiting"

    def _compiled(self) -> AbstractContextManager[None]:
        """Have what the method needs compiled before any neighbour waits for it, and nothing within a run."""
        # How long this takes must not tell how many scores a private device has.
        scores = 0 if self.config.is_private else len(self.scores.known)
        work = max(scores, len(self.config.devices))
        return compiled_beforehand(get_method(self.config.run.method).execution.kernels, work)

    def _serve(self, transport: Transport, once: bool) -> None:
        """Run one device after another over the same links, until the node stops or needs other links."""
        pause = SHORTEST
        while not self.stopping.is_set() and not self._needs_links:
            began = time.monotonic()
            try:
                error: Exception | None = self._live(transport, once)
            except OSError as problem:  # of the journal
                error = problem
            if self.members.moving:
                return
            if error is not None and error is not self._failure:
                self._fail(str(error), failure_of(error))
            if once:
                if error is not None:
                    raise error
                return
            if error is None or time.monotonic() - began >= self.config.timing.patience:
                pause = SHORTEST  # who pauses is not heard: parts that are healed would wait for each other
            if error is not None:
                self._pause(pause, transport)
                pause = min(2 * pause, LONGEST)

    def _fail(self, words: str, code: Failure | None) -> None:
        """Give up a run; with a code it counts as failed."""
        self.state.fail(words, code)
        if self.traces is not None and code is not None:
            self.traces.end("failed", reason=public_code(code) if self.config.is_private else code)
        if code == "privacy" and self.config.has_epsilon:
            # The account has refused the run, and only another epoch changes that: the request is answered.
            self.pending.done(self.pending.run)
            self._asked.clear()
            self.state.decline(words)

    @property
    def _needs_links(self) -> bool:
        """Whether other links must be opened: with another certificate, or to other neighbours."""
        return self.certificate.replaced or self.members.moving or self._reloaded

    def _pause(self, seconds: float, transport: Transport) -> None:
        """Wait before the next attempt, with an eye on the files; less long where there is a reason to try at once."""
        end, device, unwritable = time.monotonic() + seconds, self._device, bool(self.disk.problem)
        while (left := end - time.monotonic()) > 0 and not self.stopping.is_set():
            for sender, data in transport.receive(min(left, LOOK)):
                self.state.note_alive(self.config.devices[sender])
                if device is not None and is_roster(data):  # all else is repeated in time
                    device.receive(data, sender, time.monotonic())
            self._look_at_files()
            if device is not None:
                self._take_offered(device)
                if device.rosters.moving:
                    drive_device(device, transport, lambda: self.stopping.is_set() or device.handed)
            mended = unwritable and not self.disk.problem
            if self._asked.is_set() or self._other_scores or self._new_epoch or self._needs_links or mended:
                return

    def _live(self, transport: Transport, once: bool) -> Exception | None:
        """Run a device until it has failed, or nothing is left to do, or its files say that another must begin."""
        journal, full = self._journal()
        try:
            self._look_at_files(at_once=True)
            self._other_scores = False
            self._started, self._timed, self._certified_run = time.perf_counter(), None, 0
            self._asked_in = 0  # a new device has not been asked for anything
            self._new_epoch = False  # a device that starts asks for a run anyway, unless its account refuses it
            rosters, stored, private = self.members.rosters, self._stored(once), self._private_part(once)
            device = self._device = make_device(
                self.config, self.scores.known, journal, self._log, rosters, self.search_progress, stored, private
            )
            feed = StatusFeed(self.state, device, None if self.config.is_private else self.search_progress)
            if device.idle:
                self.state.decline()
            if self.certificate.late:
                late = self.certificate.late
                return self._stay_out(device, feed, transport, once, OwnError(late, "certificate"), late)
            if self.scores.scores is None and not self.config.has_epsilon:
                unreadable = OwnError(self.scores.problem, "scores")
                return self._stay_out(device, feed, transport, once, unreadable, UNREADABLE)
            if full is None and self.disk.problem:
                full = OSError(self.disk.problem)
            if full is not None:
                return self._stay_out(device, feed, transport, True, full, FULL)
            drive_device(
                device, transport, lambda: self._enough(device, once), lambda: self._attend(device, feed, once)
            )
            if once and isinstance(device, AsyncDevice) and not device.final:
                self._certify(device)  # nothing new came for long: what is certain of the heard
            if once and isinstance(device, Device) and device.phase == "finished":
                device.note_reported()
                self._has_result = True
            return device.error
        finally:
            if isinstance(journal, FileJournal):
                journal.close()

    def _private_part(self, once: bool) -> PrivatePart | None:
        """Return what a private device looks up; one that stays up is idle while its account refuses runs."""
        if self.privacy is None:
            return None
        return PrivatePart(lambda: self.scores.known, self.privacy.epochs, idle=bool(self._refusal) and not once)

    @property
    def _refusal(self) -> str:
        """Why a private device would refuse a run now, by its own account; empty where it would not."""
        return "" if self.privacy is None else self.privacy.refusal

    def _look_at_privacy(self) -> None:
        if self.privacy is not None:
            self._new_epoch |= self.privacy.look()

    def _stored(self, once: bool) -> int:
        """Return the run whose result was on disk at the start, for a process that calibrates once; else 0."""
        old = self.state.certified
        return old.run if once and old is not None and old.restored else 0

    def _journal(self) -> tuple[Journal, OSError | None]:
        """Return this device's journal; where it cannot be opened, one to say so with."""
        try:
            return FileJournal(self.config.folder / JOURNAL), None
        except OSError as problem:
            return MemoryJournal(), problem

    def _stay_out(
        self,
        device: Device | AsyncDevice,
        feed: StatusFeed,
        transport: Transport,
        once: bool,
        problem: Exception,
        told: str,
    ) -> Exception | None:
        """Tell the neighbours that this device cannot take part, for as long as it cannot, or `once` for a while."""
        self._fail(str(problem), None if once else failure_of(problem))  # else it counts when this ends
        device.refuse(told, time.monotonic())

        def enough() -> bool:
            self._look_at_files()
            if self.stopping.is_set() or self._needs_links:
                return device.handed or not device.rosters.moving
            # With epsilon a device takes part without scores too: whether it comes back must not tell that.
            has_part = self.config.has_epsilon or self.scores.scores is not None
            return device.over if once else not self.certificate.late and has_part

        def attend() -> None:
            self._take_offered(device)
            feed.look_at_counts(time.monotonic())

        drive_device(device, transport, enough, attend)
        return problem if once else None

    def _log(self, words: str) -> None:
        device = self._device
        log.info(words, extra={} if device is None else {"run": device.number, "round": device.round})

    def _enough(self, device: Device | AsyncDevice, once: bool) -> bool:
        if self.stopping.is_set():
            return True
        if device.rosters.moving:
            return device.handed
        if once:
            return device.over
        self._look_at_files()
        return self._needs_links or (device.phase == "failed" and device.over)

    def _look_at_files(self, at_once: bool = False) -> None:
        now = time.monotonic()
        if now < self._due and not at_once:
            return
        self._due = now + LOOK
        if self._reloading.is_set():
            self._reload()
        waited = self.scores.waiting
        if self.scores.look(now) and not self.config.is_private:
            self._other_scores = True
        self._look_at_privacy()
        if self.scores.waiting and not waited:
            log.info("%s", self.scores.waiting)
        self.certificate.look()
        self.disk.look(now)
        if self._unsaved is not None and not self.disk.problem:
            self._save(self._unsaved)
        self.members.look(now)
        if self.members.problem:
            self._refused_roster(self.members.problem)
            self.members.problem = ""
        unknown = "" if self.privacy is None else self.privacy.problem
        self.state.set_trouble(Trouble.SCORES, "; ".join(filter(None, [self.scores.problem, unknown])))
        self.state.set_trouble(Trouble.CERTIFICATE, self.certificate.problem)
        self.state.set_trouble(Trouble.DISK, self.disk.problem)
        self.state.set_file_status(self.certificate.expires, self.scores.failures, self.scores.waiting)

    def _attend(self, device: Device | AsyncDevice, feed: StatusFeed, once: bool) -> None:
        """Pass on what was asked for, tell the state where the device is, and keep a result that is new."""
        now = time.monotonic()
        self._time(device.number)
        if self.traces is not None and not device.idle:
            self.traces.at(device.number, device.phase, device.rosters.number)
        self._take_offered(device)
        self.state.set_roster(device.rosters.number, device.rosters.floor)
        if self._other_scores:
            self._other_scores = False
            log.info("the scores have changed: asking for a new run", extra={"run": device.number})
            self.state.request_run()
            scores = self.scores.known
            device.recalibrate(now, protocol_of(self.config, scores, self.search_progress), scores.digest)
        if self._new_epoch:
            self._new_epoch = False
            log.info("an epoch has closed: asking for a new run", extra={"run": device.number})
            self.state.request_run()
            device.recalibrate(now)
        if self._asked.is_set() or (self.pending.run > device.number and self._asked_in != device.number):
            self._asked_in = device.number
            self._asked.clear()
            self.pending.asked_in(device.number if device.phase == "greeting" else device.number + 1)
            device.recalibrate(now)
        if not feed.look(now):
            return
        if device.phase != self._told[0] or now - self._told[1] >= TELL:
            self._told = (device.phase, now)
            log.debug("progress", extra=vars(feed.progress(now)))
        if device.phase == "failed" and device.error is not None and device.error is not self._failure:
            # At once, and not when the device has told its neighbours for a while and ends.
            self._failure = device.error
            self._fail(str(device.error), device.error.code)
        elif device.phase == "finished" and self._certified_run != device.number:
            self._certified_run = device.number
            self._certify(device)
            if not once and isinstance(device, Device):
                device.note_reported()  # it is served from now on
        elif isinstance(device, AsyncDevice) and device.phase == "running":
            self._certify_so_far(device)

    def _time(self, run: int) -> None:
        """Take the time anew for each run but the first, which began with its device."""
        if self._timed not in (None, run):
            self._started = time.perf_counter()
        self._timed = run

    def _take_offered(self, device: Device | AsyncDevice) -> None:
        """Give the device a roster that was handed to this node by other ways than from a neighbour."""
        body = self.members.offered()
        if body is None:
            return
        try:
            device.offer(body, time.monotonic())
        except FrameError as problem:
            self._refused_roster(str(problem))

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
        took = time.perf_counter() - self._started
        result, rest = calibration_of(self.config, device, took), device.result.about_all
        about_all = None if rest is None else calibration_of(self.config, device, took, rest)
        roster = tuple(self.config.devices[k] for k in device.survivors)
        lost = () if isinstance(device, AsyncDevice) else [name for name in self.config.devices if name not in roster]
        made = self.state.certify(
            result,
            roster=roster,
            run=device.number,
            roster_number=device.rosters.number,
            about_all=about_all,
            final=not isinstance(device, AsyncDevice) or device.final,
            lost=lost,
        )
        self._has_result = True
        if not made.final:
            log.debug("%s so far, %s", *_in_words(result), extra={"run": device.number})
            return  # the journal knows the entries: nothing is lost with the process
        if self.traces is not None:
            self.traces.end("certified", rounds=device.round)
        self.pending.done(device.number)
        if self.pending.run:  # asked for during this run
            self.state.request_run()
        self._save(made)
        log.info("%s, %s", *_in_words(result), extra={"run": device.number})

    def _save(self, made: Certified) -> None:
        """Keep a threshold on the disk; where that fails it is tried again with every look at the files."""
        try:
            self.store.save(made)
            self._unsaved = None
        except OSError as problem:
            self._unsaved = made
            self.disk.fail(problem)
            self.state.set_trouble(Trouble.DISK, self.disk.problem)


def _in_words(result: Result) -> tuple[str, str]:
    """Return the threshold and why it may be trusted; of several the first, and how many there are."""
    first, many = result.answers[0], len(result.answers)
    return f"threshold {first.threshold!r}{'' if many == 1 else f', the first of {many}'}", str(first.certificate)


def _total_patience(config: DeviceConfig) -> float:
    """Return how long a requested run may take to advance: it begins when the last result is `linger` seconds old."""
    return config.timing.patience + config.peer_settings.linger
