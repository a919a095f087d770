"""Heartbeat: a node periodically sends its neighbours its status and relays what it knows about the others.

Runs in a thread of its own beside the calibration runs. A run never waits for a heartbeat, and heartbeat bytes are not
part of a run's cost. `heartbeat_table` decides what counts and what is sent; this module adds the clock and the links.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.link import HEARTBEAT, Transport, background_thread
from conformesh.mesh.node.health import HEALTH_CODES, judge_health
from conformesh.mesh.node.heartbeat_table import ALARM_SCOPES, PHASES, HeartbeatCounts, SharedStatus, StatusTable
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import MeshStatus, NodeStatus
from conformesh.methods import get_method

LOG = logging.getLogger("conformesh.node")
# Seconds that a node without heartbeats reports as its interval: it sends none, but GET /mesh still shows its own row.
_DEFAULT_INTERVAL = 1.0


class Heartbeat:
    """Sends and receives status over the open links. Thread-safe."""

    def __init__(self, config: DeviceConfig, state: NodeState) -> None:
        self._state = state
        self._is_on = config.timing.heartbeat > 0
        self._interval = config.timing.heartbeat or _DEFAULT_INTERVAL
        self._lock = threading.Lock()
        # The start time tells a restarted node from an old message that arrives late.
        self._table = StatusTable(config.name, self._interval, started=int(time.time()))
        self.set_roster(config)

    def set_roster(self, config: DeviceConfig) -> None:
        """Forget devices that are no longer in the roster."""
        with self._lock:
            neighbours = [neighbour.name for neighbour in config.neighbours]
            self._table.set_roster(config.devices, neighbours, config.roster_number)
            self._edges = [[*edge] for edge in config.edges]

    def mesh_status(self) -> MeshStatus:
        """Return the latest known status of every device, this one included."""
        status = self._state.shared_status()  # before taking our lock: it has a lock of its own
        shared = share_status(status, self._interval)
        with self._lock:
            devices, edges = self._table.snapshot(shared, time.monotonic()), self._edges
        return MeshStatus(status.device, devices, edges, status.links_down())

    def counts(self) -> HeartbeatCounts:
        """Return how many heartbeats were sent, received and refused."""
        with self._lock:
            return self._table.counts.copy()

    @contextmanager
    def running(self, transport: Transport) -> Iterator[None]:
        """Send heartbeats over these links until the context ends."""
        if not self._is_on:
            yield
            return
        with background_thread("heartbeat", lambda stop: self._loop(transport, stop)):
            yield

    def _loop(self, transport: Transport, stop: threading.Event) -> None:
        warned = False
        while True:
            try:
                self._exchange(transport)
            except Exception:
                # A failing heartbeat must not end the node. Warn once, then log at debug level: it repeats every time.
                LOG.log(logging.DEBUG if warned else logging.WARNING, "heartbeat failed", exc_info=True)
                warned = True
            if stop.wait(self._table.window):
                return

    def _exchange(self, transport: Transport) -> None:
        status = share_status(self._state.shared_status(), self._interval)
        with self._lock:
            for sender, payload, received_at in transport.receive_side_messages(HEARTBEAT):
                self._table.update(sender, payload, received_at)
                self._state.note_heartbeat(sender, self._table.interval_of(sender))
            message = self._table.encode_if_due(status, time.monotonic())
        if message is not None:
            transport.send_side_message(HEARTBEAT, message)


def share_status(status: NodeStatus, interval: float) -> SharedStatus:
    """Return the part of a status that heartbeats carry.

    A threshold is shared only if the devices found it together: one that a device computed from its local scores alone
    would tell others about these scores.
    """
    health, certified = judge_health(status), status.certified
    shared = SharedStatus(
        phase=PHASES.index(status.phase),
        healthy=health.healthy,
        codes=sum(1 << HEALTH_CODES.index(code) for code in health.codes),
        run=status.run,
        round=status.round,
        roster=status.roster.number,
        interval=max(round(interval * 10), 1),
        alarms=sum(1 << ALARM_SCOPES.index(scope) for scope in status.raised_alarms()),
    )
    if certified is None:
        return shared
    is_joint = get_method(certified.method).description.needs != "nothing"
    return msgspec.structs.replace(
        shared,
        certified=certified.run,
        threshold=float(certified.threshold) if is_joint else None,
        about=certified.devices,
        # Only a count fixes the threshold exactly (kinds "counted...", with noise or without); estimates may differ.
        common=is_joint and certified.final and certified.kind.startswith("counted"),
    )
