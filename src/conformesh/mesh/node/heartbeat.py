"""A node's pulse: tells the neighbours how it is, beside its runs, and keeps what is heard of everybody.

A thread of its own, some times a second, over whatever links are open; a run never waits for it, and none of its bytes
are counted as frames.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.link import PULSE, Transport, beside
from conformesh.mesh.node.health import CODES, judge_health
from conformesh.mesh.node.heartbeat_table import ALARMS, HEALTH, PHASES, Pulses, Vitals
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import NodeStatus
from conformesh.methods import get_method

LOG = logging.getLogger("conformesh.node")


class Beating:
    """The pulse of one node, safe to ask from any thread."""

    def __init__(self, config: DeviceConfig, state: NodeState) -> None:
        self._state, self._interval = state, config.timing.heartbeat
        self._lock = threading.Lock()
        self._pulses = Pulses(config.name, config.timing.heartbeat or 1.0, int(time.time()))
        self._complained = False
        self.under(config)

    def under(self, config: DeviceConfig) -> None:
        """Go on under another roster."""
        with self._lock:
            names = [neighbour.name for neighbour in config.neighbours]
            self._pulses.under(config.devices, names, config.roster_number)
            self._edges = [[*edge] for edge in config.edges]

    def mesh(self) -> dict[str, Any]:
        """Return what is known of everybody, as JSON."""
        own = self._vitals()
        with self._lock:
            rows, edges = self._pulses.shown(own, time.monotonic()), self._edges
        return {
            "device": self._state.device,
            "devices": rows,
            "edges": edges,
            "links_down": self._state.shared_status().links_down(),
        }

    def measured(self) -> dict[str, Any]:
        """Return what metrics say of it: devices by health, and what was sent, heard and refused."""
        rows = self.mesh()["devices"]
        with self._lock:
            counts, refused = dict(self._pulses.counts), dict(self._pulses.refused)
        by_health = Counter(dict.fromkeys(HEALTH, 0))
        by_health.update(row["health"] for row in rows)
        return {"health": dict(by_health), "refused": refused, **counts}

    @contextmanager
    def over(self, transport: Transport) -> Iterator[None]:
        """Beat over these links for as long as they are open."""
        if not self._interval:
            yield
            return
        with beside("pulse", lambda stopping: self._go_on(transport, stopping)):
            yield

    def _go_on(self, transport: Transport, stopping: threading.Event) -> None:
        while True:
            try:
                self._once(transport)
            except Exception:  # whatever it is, it is no reason to end, and one complaint is enough
                LOG.log(logging.DEBUG if self._complained else logging.WARNING, "a pulse failed", exc_info=True)
                self._complained = True
            if stopping.wait(self._pulses.window):
                return

    def _once(self, transport: Transport) -> None:
        own = self._vitals()
        with self._lock:
            for sender, data, came in transport.asides(PULSE):
                self._pulses.hear(sender, data, came)
                self._state.heartbeat(sender, self._pulses.interval_of(sender))
            said = self._pulses.say(own, time.monotonic())
        if said is not None:
            transport.send_aside(PULSE, said)

    def _vitals(self) -> Vitals:
        return vitals_of(self._state.shared_status(), self._interval or 1.0)


def vitals_of(status: NodeStatus, interval: float) -> Vitals:
    """Return what others may know of a node, from its status.

    A threshold is told where devices have found it together: one that a device has from its own scores alone is its
    own affair.
    """
    health, certified = judge_health(status), status.certified
    base: dict[str, Any] = {
        "phase": PHASES.index(status.phase),
        "healthy": health.healthy,
        "codes": sum(1 << CODES.index(code) for code in health.codes),
        "run": status.run,
        "round": status.round,
        "roster": status.roster.number,
        "interval": max(round(interval * 10), 1),
        "alarms": sum(1 << ALARMS.index(whose) for whose in status.raised_alarms()),
    }
    if certified is None:
        return Vitals(**base)
    together = get_method(certified.method).description.needs != "nothing"
    return Vitals(
        **base,
        certified=certified.run,
        threshold=float(certified.threshold) if together else None,
        about=certified.devices,
        common=together and certified.final and certified.kind.startswith("counted"),  # with noise or without
    )
