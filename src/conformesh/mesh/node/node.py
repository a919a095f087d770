"""A node that stays up: calibrates again when its scores change or when anybody asks, and answers local programs.

`Node.run` is the life of a node: it takes the lock of its folder, restores the last result, starts the local service,
and then opens links again and again, over which `RunDriver` runs devices. Links are opened again with another
certificate, after a reload, and under another roster; a newer roster is handed to the old neighbours first.

Whatever is wrong with the files of a node while it is up (a score file half written, an expired certificate, a wrong
clock) makes it unhealthy and never ends it: it says why, keeps its last threshold, and continues when that is mended.

A private node does not calibrate when its scores change, since that would tell when they do: new scores count from the
next run on. Runs begin when it starts, when an operator asks, and when an epoch closes. It takes part also with a score
file that it cannot use, without scores then, and tells only its operator.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from conformesh.kernels.compilation import compiled_beforehand
from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.folder_lock import hold_folder
from conformesh.mesh.http.replies import NodeInterface
from conformesh.mesh.http.server import Service
from conformesh.mesh.link import Transport, open_links
from conformesh.mesh.node.heartbeat import Heartbeat
from conformesh.mesh.node.node_files import FILE_LOOK_INTERVAL, NodeFiles, total_patience
from conformesh.mesh.node.run_driver import LONGEST_PAUSE, SHORTEST_PAUSE, RunDriver
from conformesh.mesh.node.run_request import RunRequests
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import Trouble
from conformesh.mesh.node.telemetry import Traces
from conformesh.methods import get_method
from conformesh.peer.settings import PeerError

if TYPE_CHECKING:
    from conformesh.mesh.node.online import OnlineLearning

log = logging.getLogger("conformesh.node")
_SCORES_WAIT = 0.1  # seconds between two looks at a score file that a start waits for: a start should not seem to hang


class Node:
    """One device with its links, its local service and its last certified threshold."""

    def __init__(
        self,
        config: DeviceConfig,
        address: str | Path | None = None,
        traces: Traces | None = None,
        read_config: Callable[[], DeviceConfig] | None = None,
    ) -> None:
        self.state = NodeState(
            config.name,
            [neighbour.name for neighbour in config.neighbours],
            patience=total_patience(config),
            heartbeat=config.timing.heartbeat,
            private=config.is_private,
        )
        self.address = config.folder if address is None else address
        self.traces = traces
        self.stopping = threading.Event()
        self.files = NodeFiles(config, self.state, read_config or (lambda: read_device(config.folder)))
        self.requests = RunRequests(config.folder)
        self.driver = RunDriver(self.files, self.state, self.requests, self.stopping, traces)
        self.heartbeat = Heartbeat(config, self.state)
        self.online = _online_learning(config, self.state)
        self._links: Transport | None = None  # the last that were opened
        rosters = self.files.members.rosters
        self.state.set_roster(config.roster_number, rosters.floor)

    @property
    def config(self) -> DeviceConfig:
        """The configuration in force, which a reload or another roster replaces."""
        return self.files.config

    def run(self, once: bool = False) -> None:
        """Calibrate, and unless `once` stay up until `stopping` is set. Raises what ended a single calibration."""
        with hold_folder(self.config.folder):
            self.files.remove_drafts()
            self.requests.remove_drafts()
            self.files.look_at_privacy()
            if once or not self.files.refusal:
                self.state.request_run()  # a start calibrates: a threshold from before is not enough for long
            self.files.members.verify()
            self._restore()
            with self._learning(), self._service():
                self._stay_up(once)
            # An older result on disk is not that of the run that this process was started for.
            if once and self.stopping.is_set() and not self.driver.has_result:
                raise PeerError("stopped before the run was finished: there is no result")

    def stop(self) -> None:
        """End soon; also from a handler of signals."""
        self.stopping.set()
        if self._links is not None:
            self._links.wake()

    def reload(self) -> None:
        """Read the files again soon; also from a handler of signals."""
        self.files.request_reload()
        if self._links is not None:
            self._links.wake()

    def _restore(self) -> None:
        old = self.files.store.load()
        if old is not None:
            self.state.restore(old)
        elif self.files.store.problem:
            self.state.note_error(self.files.store.problem)

    def _service(self) -> Service:
        submit = self.files.members.submit
        read_rows = None if self.config.guarantee.adapt is None else (lambda: self.files.scores.known.rows)
        interface = NodeInterface(self.state, self.driver.recalibrate, submit, self.heartbeat, self.online, read_rows)
        trace_reply = None if self.traces is None else self.traces.record_request
        return Service(interface, self.address, trace_reply=trace_reply)

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
        """Exchange heartbeats and online counters over these links, beside the runs."""
        online = nullcontext() if self.online is None else self.online.running(transport)
        with self.heartbeat.running(transport), online:
            yield

    def _stay_up(self, once: bool) -> None:
        """Open links and serve them, again and again: with another certificate, or under another roster."""
        pause = SHORTEST_PAUSE
        while not self.stopping.is_set():
            self.files.look(at_once=True)
            self._await_scores()
            self._move()
            members, certificate = self.files.members, self.files.certificate
            # A certificate that is only outside its time is another matter: the neighbours must be told so over links.
            hopeless = members.removed or (not certificate.late and certificate.problem)
            if hopeless:
                if once:
                    raise ValueError(hopeless)
                self.stopping.wait(FILE_LOOK_INTERVAL)
                continue
            certificate.use()
            self.files.is_reloaded = False
            try:
                self._serve(once)
                pause = SHORTEST_PAUSE
            except OSError as problem:  # another program has the port, say
                if once:
                    raise
                self.driver.fail(str(problem), "links")
                log.warning("%s", problem)
                self.stopping.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            if once and not members.has_newer_roster:
                return

    def _serve(self, once: bool) -> None:
        """Open the links and run devices over them."""
        with self._compiled(), open_links(self.config) as transport, self._side_messages(transport):
            self._links = transport
            self.driver.serve(transport, once)

    def _compiled(self) -> AbstractContextManager[None]:
        """Have what the method needs compiled before any neighbour waits for it, and nothing within a run."""
        # How long this takes must not tell how many scores a private device has.
        scores = 0 if self.config.is_private else len(self.files.scores.known)
        work = max(scores, len(self.config.devices))
        return compiled_beforehand(get_method(self.config.run.method).execution.kernels, work)

    def _await_scores(self) -> None:
        """Wait until the file of scores is complete, if nothing was read yet; `ScoreWatch` limits how long."""
        scores = self.files.scores
        while scores.scores is None and scores.waiting and not scores.problem:
            if self.stopping.wait(_SCORES_WAIT):
                return
            self.files.look(at_once=True)

    def _move(self) -> None:
        """Continue under a newer roster, if there is one; this device may be out of it."""
        members = self.files.members
        while (body := members.next_submitted()) is not None:  # without links it cannot be sent to neighbours
            try:
                members.accept(body)
            except ValueError as problem:
                self.files.note_refused_roster(str(problem))
        if not members.has_newer_roster:
            return
        members.adopt_newer_roster()
        self.state.set_roster(members.rosters.number, members.rosters.floor)
        self.state.set_trouble(Trouble.ROSTER, members.removed)
        if members.removed:
            self.state.fail(members.removed)
            return
        self.files.adopt_roster()
        self.heartbeat.set_roster(self.config)
        if self.online is not None:
            self.online.set_roster(self.config)
        self.state.set_neighbours([neighbour.name for neighbour in self.config.neighbours])
        log.info("roster %d: %d devices", self.config.roster_number, len(self.config.devices))


def _online_learning(config: DeviceConfig, state: NodeState) -> OnlineLearning | None:
    """Return the online learner of this device; None where its settings have none."""
    if config.learner is None:
        return None
    # Imported on demand: nodes that do not learn online save the memory of six modules.
    from conformesh.mesh.node.online import OnlineLearning

    return OnlineLearning(config, state)
