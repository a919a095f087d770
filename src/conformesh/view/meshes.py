"""A mesh that runs, watched: its nodes are asked a few times a second, and what has changed becomes a step.

Nothing that is asked changes a node. One that does not answer keeps nobody waiting: each is asked in a thread of a few,
and a step has what is known by then.
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
from conformesh.mesh.node.status import MeshStatus, NodeStatus, OnlineStatus
from conformesh.mesh.processes import Watched as Launched
from conformesh.view.events import HIDDEN
from conformesh.view.learning import Lessons, details_of_learning, reported_counts
from conformesh.view.maps import Map, hearsay, read_map
from conformesh.view.recording import Recording
from conformesh.view.statuses import CALIBRATING, Words, bracket_of, byzantine_of, details_of, received
from conformesh.view.trace import FIELDS, Everybody, Flow, Pair, Step, TracedRun, Value
from conformesh.view.watched import WatchedDevice, details_in_words

LOG = logging.getLogger("conformesh.view")
EVERY = 0.25  # seconds between two questions to a node
ANSWER = 1.0  # seconds for an answer
SOON = 0.15  # seconds that a step waits for answers; who takes longer is in the next one
SELDOM = 1.0  # seconds between two questions about those who do not answer here, and between two looks at the map
THREADS = 16  # at most; half of them may wait for nodes that have been slow
EARLIER = 8  # runs under earlier rosters that are kept


class MeshWatch:
    """Watches the nodes of a mesh on this machine, and what they have heard of others; also a context manager.

    Parameters
    ----------
    where
        The folder of a mesh or of a device, a node's socket or "127.0.0.1:port".
    http
        Where the device answers whose folder it is, if not at its socket.
    every
        Seconds between two questions to a node.
    """

    def __init__(self, where: str | os.PathLike[str], *, http: str | None = None, every: float = EVERY) -> None:
        self.where, self.http, self.every = where, http, every
        self._lock = threading.Lock()  # over what other threads say
        self._stopping = threading.Event()
        self._earlier: deque[Recording] = deque(maxlen=EARLIER)
        self._said: list[tuple[int, str, str]] = []
        self._flow: Counter[int] = Counter()
        self._threads: ThreadPoolExecutor | None = None
        self._devices: dict[str, WatchedDevice] = {}
        self._lessons = Lessons()
        self._others: Future[MeshStatus | None] | None = (
            None  # what a node has heard of devices that do not answer here
        )
        self._due = self._map_due = 0.0
        self._under(read_map(where, http))

    def _under(self, found: Map) -> None:
        """Begin another run in the view, under another map."""
        before, self._map, self._stamp = self._devices, found, found.stamp()
        self._devices = {}
        for name in found.network.ids:
            old, address = before.get(name), found.addresses.get(name)
            made = WatchedDevice(name, address, ANSWER, found.private)
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
        """Return what to show: the run under the roster that is in force."""
        return [self._recording]

    def runs(self) -> list[TracedRun]:
        """Return all that was recorded, also under earlier rosters."""
        return [recording.run() for recording in (*self._earlier, self._recording)]

    def start(self) -> MeshWatch:
        """Watch, in threads of its own."""
        self._threads = ThreadPoolExecutor(min(THREADS, 2 + len(self._devices)), thread_name_prefix="view-watch")
        self._thread = threading.Thread(target=self._watch, name="view-watch", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Watch no longer, and return when the threads have ended. Stopping twice is harmless."""
        self._stopping.set()
        if self._threads is not None:
            self._thread.join()
            self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> MeshWatch:
        return self.start()

    def __exit__(self, *reason: object) -> None:
        self.stop()

    # --- what is known of processes that were started here -----------------------------------------------------------

    def attend(self, processes: Sequence[Launched]) -> None:
        """Follow the processes of devices as well: what they log, and how they end."""
        with self._lock:
            for one in processes:
                self._devices[one.name].process = one

    def end(self, result: Sequence[Pair]) -> None:
        """Stop, and say how it ended."""
        self.stop()
        self._note()
        self._recording.end(result)

    # --- what a page asks for -----------------------------------------------------------------------------------------

    def details(self, run: int, row: int) -> dict[str, Any] | None:
        """Ask a device for what is not recorded; None where it cannot be asked."""
        device = self._devices[self._map.network.ids[row]]
        if device.client is None or device.over:
            return None
        with self._lock:
            log = [*device.log]
        try:
            status = convert(device.client.status(), NodeStatus)
            words = None if status.certified is None else str(device.client.certificate())
        except (NodeError, ValidationError):
            return details_in_words("it does not answer", log)
        found = {**details_of(status, self._rows), "log": log, "certificate": words}
        if device.learnt is not None:
            found["facts"] += details_of_learning(device.learnt)
        return found

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            try:
                self._ask_all()
                self._ask_about_others()
                self._note()
                self._follow_map()
            except Exception:  # what is shown would grow old without a word
                LOG.exception("the mesh cannot be watched for a moment")
            due = max(due + self.every, time.monotonic())
            self._stopping.wait(due - time.monotonic())

    def _ask_all(self) -> None:
        """Ask everybody who is not being asked, and take the answers that come soon."""
        assert self._threads is not None
        until = time.monotonic() + SOON
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

    def _take(self, device: WatchedDevice, future: Future[tuple[NodeStatus, OnlineStatus | None]]) -> None:
        """Note what a device has answered, or that it has not."""
        if device.over:
            return
        problem = future.exception()
        if problem is None:
            before, (status, learnt) = device.status, future.result()
            self._say(device, device.answered(status, learnt))
            self._count(device, before)
        elif isinstance(problem, NodeError):
            self._say(device, device.unanswered(problem))
        elif isinstance(problem, ValidationError):
            device.misunderstood()
        else:
            raise problem

    def _say(self, device: WatchedDevice, news: Iterable[Words]) -> None:
        """Add lines to the log of a device."""
        for level, words in news:
            self._said.append((self._rows[device.name], level, words))
            device.log.append((time.time(), level, words))

    def _count(self, device: WatchedDevice, before: NodeStatus | None) -> None:
        """Note what has come along the links since the last answer; a node that began anew counts from nothing."""
        if device.status is None or before is None or device.status is before:
            return
        earlier = received(before)
        for sender, now in received(device.status).items():
            link, then = self._links.get((sender, device.name)), earlier.get(sender, 0)
            if link is not None and now != then:
                self._flow[link] += now - then if now > then else now

    def _ask_about_others(self) -> None:
        """Ask a node that answers what it has heard of devices that have never answered here."""
        assert self._threads is not None
        if self._others is not None and self._others.done():
            others = self._others.result()
            for record in [] if others is None else others.devices:
                if device := self._devices.get(record.name):
                    device.heard_of(record)
            self._others = None
        now = time.monotonic()
        strangers = any(device.status is None for device in self._devices.values())
        if self._others is not None or now < self._due or not strangers:
            return
        self._due = now + SELDOM
        clients = [device.client for device in self._devices.values() if device.status and not device.slow]
        if clients and clients[0] is not None:
            self._others = self._threads.submit(hearsay, clients[0])

    def _note(self) -> None:
        """Record what has changed, if anything has."""
        with self._lock:
            for device in self._devices.values():
                news = device.attend()
                self._say(device, () if self._map.private else news)  # they may name what was found
            log, self._said = self._said, []
            table = [device.fields for device in self._devices.values()]
        statuses = {name: device.status for name, device in self._devices.items() if device.status is not None}
        byzantine = byzantine_of(statuses)
        table = [
            {**fields, "byzantine": byzantine.get(name)} for name, fields in zip(self._devices, table, strict=True)
        ]
        everybody = None if self._map.private else self._learn(table)
        shown = [name for name in FIELDS if not (self._map.private and name in HIDDEN)]
        columns = {name: [fields.get(name) for fields in table] for name in shown}
        changes = self._recording.known.changes(columns)
        flow = Flow([*self._flow], [*self._flow.values()]) if self._flow else None
        self._flow.clear()
        running = [one.status for one in self._devices.values() if one.status and one.fields["phase"] == CALIBRATING]
        bracket = None if self._map.private else bracket_of(running)
        bracket, self._bracket = None if bracket == self._bracket else bracket, bracket
        everybody = None if everybody == self._recording.known.everybody else everybody
        if changes or flow or bracket or log or everybody:
            at = round(time.monotonic() - self._began, 3)
            step = Step(at=at, devices=changes, flow=flow, bracket=bracket, log=log, everybody=everybody)
            self._recording.add(step)

    def _learn(self, table: list[dict[str, Value]]) -> Everybody | None:
        """Add what devices have learnt to their fields, and return what all together have."""
        answers = [device.learnt for device in self._devices.values() if device.learnt is not None]
        if not answers:
            return None
        for device, fields in zip(self._devices.values(), table, strict=True):
            certified = fields.get("threshold")
            fields.update(self._lessons.fields(device.name, device.learnt, reported_counts(device.name, answers)))
            if device.learnt is not None:
                fields["certified"] = certified
        return self._lessons.everybody(answers, [fields.get("lately") for fields in table])

    def _follow_map(self) -> None:
        """Begin another run in the view where another roster is in force; a map that cannot be read is tried again."""
        now = time.monotonic()
        rosters = [device.fields.get("roster") for device in self._devices.values()]
        newest = max((number for number in rosters if isinstance(number, int)), default=0)
        stamp = self._map.stamp()
        if now < self._map_due or (newest <= self._newest and stamp == self._stamp):
            return
        self._map_due = now + SELDOM
        try:
            found = read_map(self.where, self.http)
        except (ValueError, OSError):  # it is just being changed
            return
        self._stamp, self._newest = stamp, newest
        if not found.same(self._map):
            self._recording.end([("ended", f"roster {found.roster} is in force")])
            self._earlier.append(self._recording)
            with self._lock:
                self._under(found)
