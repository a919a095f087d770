"""The loopback engine: devices in one process, over a fake network that does what real ones do, on virtual time.

Everything but the socket is the real thing: the same devices, in rounds or in asynchronous mode, the same frames, the
same journal. The network loses, repeats, delays and reorders frames, falls into parts that heal or do not, links come
and go, and devices freeze, crash and start again. All of it is drawn from one seed, so a schedule can be repeated.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from conformesh.common.random_streams import random_stream
from conformesh.graph.network import Network
from conformesh.peer.interface import EVERYBODY, Peer
from conformesh.peer.journal import MemoryJournal

RESTART_SECONDS = 0.5  # virtual time between the end of a device that failed and its next start, as in a serving node
Start = Callable[[int, MemoryJournal], Peer]
Delay = Callable[[np.random.Generator, int, int], float]  # how long a frame takes from one row to another


@dataclass(frozen=True)
class Cut:
    """From `start` to `stop` nothing passes between the devices in `part` and the others."""

    start: float
    stop: float
    part: frozenset[int]


@dataclass(frozen=True)
class Pause:
    """A device does nothing from `start` to `stop`; after a crash only its journal is left, less `tear` bytes."""

    device: int
    start: float
    stop: float
    crash: bool = False
    tear: int = 0


@dataclass(frozen=True)
class ChangingLinks:
    """Links that come and go: each is up with this probability, drawn anew every `period` seconds."""

    share: float
    period: float
    seed: int = 0

    def is_up(self, one: int, other: int, now: float) -> bool:
        """Return whether a link is up, both ways."""
        keys = int(now // self.period), min(one, other), max(one, other)
        return bool(random_stream(self.seed, "links", *keys).random() < self.share)


@dataclass(frozen=True)
class LinkFaults:
    """What goes wrong, in shares of frames and seconds of virtual time.

    `delay` is the shortest and the longest time that a frame takes, or a function that draws it.
    """

    loss: float = 0.0
    duplication: float = 0.0
    delay: tuple[float, float] | Delay = (0.001, 0.01)
    links: ChangingLinks | None = None
    cuts: tuple[Cut, ...] = ()
    pauses: tuple[Pause, ...] = ()
    late: dict[int, float] = field(default_factory=dict)
    requests: tuple[tuple[int, float], ...] = ()  # row of a device that asks for a new run, and when


@dataclass(frozen=True, eq=False)
class LoopbackRun:
    """How a schedule ended: every device as it was left, the virtual time, and a digest of all that was delivered."""

    devices: list[Peer]
    seconds: float
    trace: str
    frames: int


def run_loopback(
    network: Network,
    start: Start,
    faults: LinkFaults,
    rng: np.random.Generator,
    limit: float = 600.0,
    *,
    stay: bool = False,
    check: Callable[[list[Peer]], None] = lambda devices: None,
) -> LoopbackRun:
    """Run devices until all are over, or until virtual time is up; the caller judges the result.

    With `stay` devices that are done stay up until then, and those that failed start again, as in a node that serves.
    `check` gets the devices that are up after every event, and raises where a property is violated.
    """
    return _World(network, start, faults, rng, stay).run(limit, check)


class _World:
    """The queue of what happens next."""

    def __init__(
        self, network: Network, start: Start, faults: LinkFaults, rng: np.random.Generator, stay: bool = False
    ) -> None:
        self.stay = stay
        self.network, self.make, self.faults, self.rng = network, start, faults, rng
        self.journals = [MemoryJournal() for _ in range(network.devices)]
        self.devices: list[Peer | None] = [None] * network.devices
        self.alive_from = [faults.late.get(k, 0.0) for k in range(network.devices)]
        self.queue: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = itertools.count()
        self.trace = hashlib.sha256()
        self.delivered = 0
        self.last: list[Peer | None] = [None] * network.devices
        self.ticking = [0] * network.devices

    def run(self, limit: float, check: Callable[[list[Peer]], None]) -> LoopbackRun:
        for k in range(self.network.devices):
            self._at(self.alive_from[k], lambda now, k=k: self._boot(k, now))  # type: ignore[misc]
        for pause in self.faults.pauses:
            if pause.crash:
                self._at(pause.start, lambda now, pause=pause: self._crash(pause))  # type: ignore[misc]
                if pause.stop < limit:
                    self._at(pause.stop, lambda now, pause=pause: self._boot(pause.device, now))  # type: ignore[misc]
        for k, when in self.faults.requests:
            self._at(when, lambda now, k=k: self._request(k, now))  # type: ignore[misc]
        now = 0.0
        while self.queue and now <= limit:
            now, _, happen = heapq.heappop(self.queue)
            happen(now)
            check([device for device in self.devices if device is not None])
            if not self.stay and all(device is not None and device.over for device in self.devices):
                break
        latest = [device or last for device, last in zip(self.devices, self.last, strict=True)]
        devices = [device for device in latest if device is not None]
        return LoopbackRun(devices, now, self.trace.hexdigest(), self.delivered)

    def _at(self, when: float, happen: Callable[[float], None]) -> None:
        # The counter orders events of the same time as they were added: functions cannot be compared.
        heapq.heappush(self.queue, (when, next(self.order), happen))

    def _boot(self, k: int, now: float) -> None:
        device = self.make(k, self.journals[k])
        self.devices[k] = device
        device.start(now)
        self._flush(k, now)

    def _restart(self, k: int, failed: Peer, now: float) -> None:
        """Start a device again that has failed and is over, unless it has crashed in the meantime."""
        if self.devices[k] is failed:
            self._boot(k, now)

    def _crash(self, pause: Pause) -> None:
        k = pause.device
        self.last[k], self.devices[k] = self.devices[k], None
        self.journals[k].tear(pause.tear)

    def _request(self, k: int, now: float) -> None:
        device = self.devices[k]
        if device is not None:
            device.recalibrate(now)
            self._flush(k, now)

    def _frozen_until(self, k: int, now: float) -> float:
        ends = [p.stop for p in self.faults.pauses if p.device == k and not p.crash and p.start <= now < p.stop]
        return max(ends, default=now)

    def _deliver(self, sender: int, to: int, data: bytes, now: float) -> None:
        later = self._frozen_until(to, now)
        if later > now:  # it waits in the socket
            self._at(later, lambda then: self._deliver(sender, to, data, then))
            return
        device = self.devices[to]
        if device is None:
            return
        self.trace.update(f"{now:.9f} {sender} {to} ".encode() + data)
        self.delivered += 1
        device.receive(data, sender, now)
        self._flush(to, now)

    def _tick(self, k: int, ticket: int, now: float) -> None:
        device = self.devices[k]
        if device is None or ticket != self.ticking[k]:  # the device has asked for another time since
            return
        later = self._frozen_until(k, now)
        if later > now:
            self._at(later, lambda then: self._tick(k, ticket, then))
            return
        device.tick(now)
        self._flush(k, now)

    def _flush(self, k: int, now: float) -> None:
        """Send what is in a device's outbox, and call the device again when it asks for it."""
        device = self.devices[k]
        assert device is not None
        for to, data in device.outbox():
            for j in self.network.neighbours(k).tolist() if to == EVERYBODY else (to,):
                self._wire(k, j, data, now)
        if self.stay and device.phase == "failed" and device.over:
            self._at(now + RESTART_SECONDS, lambda then: self._restart(k, device, then))
        elif self.stay or not device.over:
            self.ticking[k] += 1
            ticket = self.ticking[k]
            # Later than now in any case: a device that asks for a time in the past must not stop virtual time.
            self._at(max(device.wake, now + 1e-6), lambda then: self._tick(k, ticket, then))

    def _wire(self, sender: int, to: int, data: bytes, now: float) -> None:
        cut = any(c.start <= now < c.stop and (sender in c.part) != (to in c.part) for c in self.faults.cuts)
        draws = self.rng.random(2)
        down = self.faults.links is not None and not self.faults.links.is_up(sender, to, now)
        if cut or down or draws[0] < self.faults.loss:
            return
        for _ in range(2 if draws[1] < self.faults.duplication else 1):
            self._at(now + self._delay(sender, to), lambda then: self._deliver(sender, to, data, then))

    def _delay(self, sender: int, to: int) -> float:
        if callable(self.faults.delay):
            return self.faults.delay(self.rng, sender, to)
        low, high = self.faults.delay  # the cube: most frames are fast and some slow, so that they overtake
        return low + (high - low) * float(self.rng.random()) ** 3


def draw_link_faults(
    network: Network, rng: np.random.Generator, *, crashes: bool = True, loss: float = 0.3, changing: bool = False
) -> LinkFaults:
    """Draw a schedule: loss, duplication to 50 %, delays, cuts that heal, freezes, crashes, late starts.

    With `changing` some graphs change all the time, with a fifth of the links up or more.
    """
    K = network.devices
    span = 6.0
    cuts = tuple(
        Cut(start, start + float(rng.uniform(0.1, 2.0)), frozenset(np.flatnonzero(rng.random(K) < 0.5).tolist()))
        for start in rng.uniform(0, span, rng.integers(0, 3)).tolist()
    )
    pauses: list[Pause] = []
    for k in _some(rng, K, 3):
        start = float(rng.uniform(0, span))
        crash = crashes and bool(rng.random() < 0.6)
        tear = int(rng.integers(0, 40)) if crash and rng.random() < 0.3 else 0
        pauses.append(Pause(k, start, start + float(rng.uniform(0.05, 3.0)), crash, tear))
    return LinkFaults(
        loss=float(rng.uniform(0, loss)),
        duplication=float(rng.uniform(0, 0.5)),
        delay=(0.0005, float(rng.choice([0.005, 0.05, 0.5]))),
        cuts=cuts,
        pauses=tuple(pauses),
        late={k: float(rng.uniform(0, 3.0)) for k in _some(rng, K, 2)},
        links=_drawn_links(rng) if changing else None,
    )


def _drawn_links(rng: np.random.Generator) -> ChangingLinks | None:
    if rng.random() < 0.5:
        return None
    return ChangingLinks(float(rng.uniform(0.2, 0.9)), float(rng.uniform(0.05, 1.0)), int(rng.integers(2**31)))


def draw_partitions(network: Network, rng: np.random.Generator, patience: float, *, heal: bool = False) -> LinkFaults:
    """Draw a schedule in which the network falls into parts, some for longer than the patience or for ever.

    Half of the cuts come so early that they meet the first run, some of them in its last rounds. With `heal` all cuts
    are over, and all devices up, after 8 times the patience.
    """
    K = network.devices
    cuts = []
    for _ in range(int(rng.integers(1, 4))):
        start = float(rng.uniform(0, 0.15)) if rng.random() < 0.5 else float(rng.uniform(0, 4 * patience))
        lasts = float(rng.uniform(0.5, 4)) * patience if heal or rng.random() < 0.6 else np.inf
        cuts.append(Cut(start, start + lasts, frozenset(np.flatnonzero(rng.random(K) < 0.5).tolist())))
    pauses = []
    for k in _some(rng, K, 2):
        start = float(rng.uniform(0, 3 * patience))
        pauses.append(Pause(k, start, start + float(rng.uniform(0.1, 3)) * patience, bool(rng.random() < 0.6), 40))
    return LinkFaults(
        loss=float(rng.choice([0.0, 0.1])),
        duplication=float(rng.choice([0.0, 0.3])),
        delay=(0.0005, float(rng.choice([0.005, 0.05]))),
        cuts=tuple(cuts),
        pauses=tuple(pauses),
        late={k: float(rng.uniform(0, 2 * patience)) for k in _some(rng, K, 1)},
        requests=tuple((int(rng.integers(K)), float(rng.uniform(0, 6 * patience))) for _ in range(rng.integers(4))),
    )


def _some(rng: np.random.Generator, K: int, most: int) -> Sequence[int]:
    chosen: list[int] = rng.choice(K, size=int(rng.integers(0, min(most, K) + 1)), replace=False).tolist()
    return chosen
