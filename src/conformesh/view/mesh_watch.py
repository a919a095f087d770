"""Watch a running mesh: ask its nodes a few times a second, and record what has changed as a step.

Questions never change a node. A node that does not answer delays no other: nodes are asked in a few threads, and a step
has what is known by then.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from msgspec import ValidationError, convert

from conformesh.mesh.http.client import NodeError
from conformesh.mesh.node.status import MeshStatus, NodeStatus, Phase
from conformesh.mesh.processes import DeviceProcess as Launched
from conformesh.view.events import PRIVATE_FIELDS
from conformesh.view.learning import LearningHistory, online_learning_details, reported_online_counts
from conformesh.view.maps import MeshMap, ask_mesh_status, read_map
from conformesh.view.recording import Recording
from conformesh.view.statuses import LogLine, bytes_received, byzantine_reasons, device_details, search_bracket
from conformesh.view.trace import FIELDS, CoverageOfAll, Fact, FieldValue, Flow, Step, TracedRun
from conformesh.view.watched_device import Answer, WatchedDevice, problem_details

LOG = logging.getLogger("conformesh.view")
_ASK_INTERVAL = 0.25  # seconds between two questions to a node
ANSWER_TIMEOUT = 1.0  # seconds; a local node answers in milliseconds
_STEP_WAIT = 0.15  # seconds that a step waits for answers, less than the interval; later answers go to the next step
_SLOW_INTERVAL = 1.0  # seconds between two questions about devices on other machines, and two looks at the map
THREADS = 16  # at most; half of them may wait for nodes that have been slow, so that the others stay current
_EARLIER_RUNS = 8  # runs under earlier rosters that are kept, which bounds memory


class MeshWatch:
    """Watches the nodes of a mesh on this machine, and what they know of others; also a context manager.

    Parameters
    ----------
    where
        The folder of a mesh or of a device, a node's socket or "127.0.0.1:port".
    http
        Address of the device of that folder, if not its socket.
    every
        Seconds between two questions to a node.
    """

    def __init__(self, where: str | os.PathLike[str], *, http: str | None = None, every: float = _ASK_INTERVAL) -> None:
        self.where, self.http, self.every = where, http, every
        self._lock = threading.Lock()  # guards devices and their logs against other threads
        self._stopping = threading.Event()
        self._earlier: deque[Recording] = deque(maxlen=_EARLIER_RUNS)
        self._log: list[tuple[int, str, str]] = []
        self._flow: Counter[int] = Counter()
        self._threads: ThreadPoolExecutor | None = None
        self._devices: dict[str, WatchedDevice] = {}
        self._learning = LearningHistory()
        self._others: Future[MeshStatus | None] | None = None  # a question about devices that do not answer here
        self._due = self._map_due = 0.0
        self._use_map(read_map(where, http))

    def _use_map(self, found: MeshMap) -> None:
        """Start another run in the view, with another map."""
        before, self._map, self._stamp = self._devices, found, found.stamp()
        self._devices = {}
        for name in found.network.ids:
            old, address = before.get(name), found.addresses.get(name)
            made = WatchedDevice(name, address, ANSWER_TIMEOUT, found.private)
            self._devices[name] = old if old and old.address == address else made
        self._rows = {name: row for row, name in enumerate(found.network.ids)}
        heading = found.heading()
        self._links: dict[tuple[str, str], int] = {}
        for number, (a, b) in enumerate(heading.edges):
            one, other = heading.devices[a], heading.devices[b]
            self._links |= {(one, other): 2 * number, (other, one): 2 * number + 1}
        self._bracket: Any = None
        self._newest = found.roster
        self._flow.clear()
        self._began = time.monotonic()
        self._recording = Recording(heading)

    def recordings(self) -> Sequence[Recording]:
        """Return the run to show, that under the roster in force."""
        return [self._recording]

    def runs(self) -> list[TracedRun]:
        """Return all recorded runs, including those under earlier rosters."""
        return [recording.run() for recording in (*self._earlier, self._recording)]

    def start(self) -> MeshWatch:
        """Start to watch, in background threads."""
        self._threads = ThreadPoolExecutor(min(THREADS, 2 + len(self._devices)), thread_name_prefix="view-watch")
        self._thread = threading.Thread(target=self._watch, name="view-watch", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop watching, and return when the threads have ended. Stopping twice is harmless."""
        self._stopping.set()
        if self._threads is not None:
            self._thread.join()
            self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> MeshWatch:
        return self.start()

    def __exit__(self, *reason: object) -> None:
        self.stop()

    # --- processes that were started here --------------------------------------------------------------------------

    def follow_processes(self, processes: Sequence[Launched]) -> None:
        """Follow the processes of devices too: their logs, and how they end."""
        with self._lock:
            for one in processes:
                self._devices[one.name].process = one

    def end(self, result: Sequence[Fact]) -> None:
        """Stop, and record how the run ended."""
        self.stop()
        self._record()
        self._recording.end(result)

    # --- what a page asks for -----------------------------------------------------------------------------------------

    def details(self, run: int, row: int) -> dict[str, Any] | None:
        """Ask a device for details that are not recorded; None if it cannot be asked."""
        device = self._devices[self._map.network.ids[row]]
        if device.client is None or device.over:
            return None
        with self._lock:
            log = [*device.log]
        try:
            status = convert(device.client.status(), NodeStatus)
            certificate = None if status.certified is None else str(device.client.certificate())
        except NodeError:
            return problem_details("it does not answer", log)
        except ValidationError:
            return problem_details("its answer is not understood", log)
        details = {**device_details(status, self._rows), "log": log, "certificate": certificate}
        if device.learnt is not None:
            details["facts"] += online_learning_details(device.learnt)
        return details

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            try:
                self._ask_all()
                self._ask_about_others()
                self._record()
                self._follow_map()
            except Exception:  # the page would silently show an old state
                LOG.exception("the mesh cannot be watched for a moment")
            due = max(due + self.every, time.monotonic())
            self._stopping.wait(due - time.monotonic())

    def _ask_all(self) -> None:
        """Ask all devices that are not being asked, and take the answers that arrive in time."""
        assert self._threads is not None
        until = time.monotonic() + _STEP_WAIT
        room = THREADS // 2 - sum(device.pending is not None for device in self._devices.values())
        for device in self._devices.values():
            if device.client is None or device.over or device.pending is not None or (device.slow and room <= 0):
                continue
            room -= device.slow
            device.pending = self._threads.submit(device.ask)
        pending = {device.pending: device for device in self._devices.values() if device.pending is not None}
        wait(pending, max(until - time.monotonic(), 0.0))
        for future, device in pending.items():
            if future.done():
                device.pending = None
                with self._lock:
                    self._take(device, future)

    def _take(self, device: WatchedDevice, future: Future[Answer]) -> None:
        """Take the answer of a device, or that there was none."""
        if device.over:
            return
        problem = future.exception()
        if problem is None:
            before = device.status
            self._add_lines(device, device.answered(future.result()))
            self._count(device, before)
        elif isinstance(problem, NodeError):
            self._add_lines(device, device.unanswered(problem))
        else:
            raise problem

    def _add_lines(self, device: WatchedDevice, lines: Iterable[LogLine]) -> None:
        """Add lines to the log of a device."""
        for level, words in lines:
            self._log.append((self._rows[device.name], level, words))
            device.log.append((time.time(), level, words))

    def _count(self, device: WatchedDevice, before: NodeStatus | None) -> None:
        """Add the bytes that arrived on links since the last answer; after a restart a node counts from 0."""
        if device.status is None or before is None or device.status is before:
            return
        earlier = bytes_received(before)
        for sender, now in bytes_received(device.status).items():
            link, then = self._links.get((sender, device.name)), earlier.get(sender, 0)
            if link is not None and now != then:
                self._flow[link] += now - then if now > then else now

    def _ask_about_others(self) -> None:
        """Ask one node about the devices that have never answered here."""
        assert self._threads is not None
        if self._others is not None and self._others.done():
            mesh = self._others.result()
            for status in [] if mesh is None else mesh.devices:
                if device := self._devices.get(status.name):
                    device.take_relayed(status)
            self._others = None
        now = time.monotonic()
        unknown = any(device.status is None for device in self._devices.values())
        if self._others is not None or now < self._due or not unknown:
            return
        self._due = now + _SLOW_INTERVAL
        clients = [device.client for device in self._devices.values() if device.status and not device.slow]
        if clients and clients[0] is not None:
            self._others = self._threads.submit(ask_mesh_status, clients[0])

    def _record(self) -> None:
        """Record what has changed, if anything has."""
        with self._lock:
            for device in self._devices.values():
                lines = device.follow_process()
                self._add_lines(device, () if self._map.private else lines)  # log lines may contain thresholds
            log, self._log = self._log, []
            table = [device.fields for device in self._devices.values()]
        statuses = {name: device.status for name, device in self._devices.items() if device.status is not None}
        byzantine = byzantine_reasons(statuses)
        table = [
            {**fields, "byzantine": byzantine.get(name)} for name, fields in zip(self._devices, table, strict=True)
        ]
        everybody = None if self._map.private else self._add_learning(table)
        shown = [name for name in FIELDS if not (self._map.private and name in PRIVATE_FIELDS)]
        columns = {name: [fields.get(name) for fields in table] for name in shown}
        changes = self._recording.known.changes(columns)
        flow = Flow([*self._flow], [*self._flow.values()]) if self._flow else None
        self._flow.clear()
        running = [
            one.status
            for one in self._devices.values()
            if one.status and one.fields["phase"] == Phase.CALIBRATING.value
        ]
        bracket = None if self._map.private else search_bracket(running)
        bracket, self._bracket = None if bracket == self._bracket else bracket, bracket
        everybody = None if everybody == self._recording.known.everybody else everybody
        if changes or flow or bracket or log or everybody:
            at = round(time.monotonic() - self._began, 3)
            step = Step(at=at, devices=changes, flow=flow, bracket=bracket, log=log, everybody=everybody)
            self._recording.add(step)

    def _add_learning(self, table: list[dict[str, FieldValue]]) -> CoverageOfAll | None:
        """Add what devices have learnt to their fields, and return the coverage of all."""
        answers = [device.learnt for device in self._devices.values() if device.learnt is not None]
        if not answers:
            return None
        for device, fields in zip(self._devices.values(), table, strict=True):
            certified = fields.get("threshold")
            fields.update(
                self._learning.fields(device.name, device.learnt, reported_online_counts(device.name, answers))
            )
            if device.learnt is not None:
                fields["certified"] = certified
        return self._learning.of_all(answers, [fields.get("lately") for fields in table])

    def _follow_map(self) -> None:
        """Start another run in the view if another roster is in force; retry later if the map cannot be read."""
        now = time.monotonic()
        rosters = [device.fields.get("roster") for device in self._devices.values()]
        newest = max((number for number in rosters if isinstance(number, int)), default=0)
        stamp = self._map.stamp()
        if now < self._map_due or (newest <= self._newest and stamp == self._stamp):
            return
        self._map_due = now + _SLOW_INTERVAL
        try:
            found = read_map(self.where, self.http)
        except (ValueError, OSError):  # it is being changed at this moment
            return
        self._stamp, self._newest = stamp, newest
        if not found.is_same_as(self._map):
            self._recording.end([("ended", f"roster {found.roster} is in force")])
            self._earlier.append(self._recording)
            with self._lock:
                self._use_map(found)
