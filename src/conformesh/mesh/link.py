"""The mesh engine: one device of a real network, over Eclipse Zenoh in peer mode. No broker, no server.

A link exists for each edge of the graph and for nothing else. With certificates (the default) both ends of a link prove
who they are, and what a neighbour may say is bound to the name in its certificate: a frame counts as that neighbour's
only if it came under that neighbour's key. `Device` does the rest; plain publications may get lost, it repeats them.
Beside the frames, under keys of their own and with less priority, go pulses, how each node is, and counters of those
that learn online.
"""

from __future__ import annotations

import json
import os
import queue
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from conformesh.mesh.config.certificate_names import accepted_names
from conformesh.mesh.config.endpoints import parse_endpoint
from conformesh.mesh.sockets import Sockets
from conformesh.peer.frames import LARGEST, MOST_AROUND, can_wait
from conformesh.peer.interface import EVERYBODY, Peer

if TYPE_CHECKING:
    from conformesh.mesh.config.device_config import DeviceConfig

ROOT = "conformesh"
PULSE, COUNTERS = "~pulse", "~counters"  # what goes beside the frames; no device may be called so
# Bytes of one neighbour's messages that wait to be looked at; more is dropped, as the network may do. A frame of the
# largest size fits, and some small ones: a neighbour that sends faster than this device reads must not fill its memory.
MOST_FRAMES = LARGEST + MOST_AROUND + 2**20
MOST_ASIDES = 2**20
EACH = 256  # bytes of memory that a message takes beside its own
# Bytes of a message as Zenoh sees it, with its key. Zenoh joins fragments up to this size and no further.
LARGEST_MESSAGE = LARGEST + MOST_AROUND + 2**12
LONGEST_WAIT = 0.5  # seconds between two looks at what else is to be done
# One thread of Zenoh's per device is plenty, and spares a machine with many devices half of its switches of threads.
ROLES = ("acc", "tx", "net", "rx")
THREADS = "(app: (worker_threads: 1), " + ", ".join(f"{role}: (handover: app)" for role in ROLES) + ")"


class _Inbox:
    """What has arrived and was not looked at yet: at most so many bytes of each sender, whose messages come in order.

    Zenoh's threads put, one thread takes. Each counter has one writer, so that no lock is needed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: deque[tuple[Any, bytes, float]] = deque()
        self._came: Counter[Any] = Counter()
        self._gone: Counter[Any] = Counter()

    def put(self, sender: Any, payload: Any) -> bytes:
        """Keep a payload of Zenoh's and return its bytes; nothing if there is no room, before it is copied."""
        size = len(payload) + EACH
        if self._came[sender] - self._gone[sender] + size > self._most:
            return b""
        data: bytes = payload.to_bytes()
        self._came[sender] += size
        self._items.append((sender, data, time.monotonic()))
        return data

    def take(self) -> Iterator[tuple[Any, bytes, float]]:
        """Yield sender, bytes and time of arrival, and forget them."""
        while self._items:
            sender, data, came = self._items.popleft()
            self._gone[sender] += len(data) + EACH
            yield sender, data, came

    def __len__(self) -> int:
        return len(self._items)


class Transport:
    """Moves bytes between this device and its neighbours.

    What a device says to all its neighbours is published once, under its own name; the rest under both names. A device
    is not woken for each of its neighbours' frames of a round, only for the last: that halves the switches of threads.
    """

    def __init__(self, session: Any, config: DeviceConfig) -> None:
        self._arrived = _Inbox(MOST_FRAMES)
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._enough = 1
        ports = [parse_endpoint(neighbour.endpoint).port for neighbour in config.neighbours]
        self._sockets = Sockets(parse_endpoint(config.listen).port, ports)
        row = {name: k for k, name in enumerate(config.devices)}
        names = [neighbour.name for neighbour in config.neighbours]
        self._subscribers = [
            session.declare_subscriber(key, self._hears(row[name]))
            for name in names
            for key in _keys(config, name, config.name)
        ]
        self._publishers = {row[name]: _publisher(session, _keys(config, config.name, name)[1]) for name in names}
        self._publishers[EVERYBODY] = _publisher(session, _keys(config, config.name, config.name)[0])
        self._asides: dict[str, _Inbox] = {}
        self._tellers: dict[str, Any] = {}
        for what in _beside(config):
            self._asides[what] = _Inbox(MOST_ASIDES)
            self._tellers[what] = _publisher(session, _aside_key(config, config.name, what), aside=True)
            self._subscribers += [
                session.declare_subscriber(_aside_key(config, name, what), self._overhears(name, what))
                for name in names
            ]

    def _hears(self, sender: int) -> Callable[[Any], None]:
        """Return what takes a neighbour's samples, in a thread of Zenoh's: they may only be put aside."""

        def take(sample: Any) -> None:
            data = self._arrived.put(sender, sample.payload)
            if data and (len(self._arrived) >= self._enough or not can_wait(data)):
                self._bell.put(None)

        return take

    def _overhears(self, sender: str, what: str) -> Callable[[Any], None]:
        """Return what takes what a neighbour says beside its frames; nobody is woken for it."""
        arrived = self._asides[what]

        def take(sample: Any) -> None:
            arrived.put(sender, sample.payload)

        return take

    def send_aside(self, what: str, data: bytes) -> None:
        """Tell all neighbours something beside the frames, which may get lost."""
        if what in self._tellers:
            self._tellers[what].put(data)

    def asides(self, what: str) -> Iterator[tuple[str, bytes, float]]:
        """Yield what has arrived beside the frames, each with the name of its sender and when it came."""
        if what in self._asides:
            yield from self._asides[what].take()

    def ring(self) -> None:
        """Wake who waits in `receive`.

        A signal must do so: up to Python 3.12 a wait that it interrupts just before its end may go on without end.
        """
        self._bell.put(None)

    def send(self, to: int, data: bytes) -> None:
        """Send bytes to a neighbour or to everybody, which may get lost."""
        self._publishers[to].put(data)

    def receive(self, timeout: float, enough: int = 1) -> Iterator[tuple[int, bytes]]:
        """Yield what has arrived, after waiting for `enough` frames of data or for anything else."""
        self._sockets.look(time.monotonic())
        self._enough = enough  # before looking: what arrives in between rings the bell
        if len(self._arrived) < enough:
            with suppress(queue.Empty):
                self._bell.get(timeout=max(timeout, 0.0))
        for _ in range(self._bell.qsize()):
            self._bell.get()
        for sender, data, _ in self._arrived.take():
            yield sender, data


@contextmanager
def opened(config: DeviceConfig) -> Iterator[Transport]:
    """Open the links of a device, and close them at the end; `OSError` in words where it cannot listen."""
    os.environ.setdefault("ZENOH_RUNTIME", THREADS)  # read once, by the first session of a process
    zenoh = _needs_zenoh()
    try:
        links = zenoh.open(_settings(zenoh, config))
    except zenoh.ZError as problem:
        why = re.sub(r" at /\S+:\d+\.", "", str(problem))  # where in Zenoh's sources
        raise OSError(f"{config.name} cannot listen at {config.listen}: {why}; is another program there?") from None
    try:
        yield Transport(links, config)
    finally:
        with suppress(zenoh.ZError):  # neighbours that cannot be reached do not answer in time; all was said by then
            links.close()


@contextmanager
def beside(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Let a thread work beside the frames inside the block; it ends soon after it is told to stop."""
    stopping = threading.Event()
    thread = threading.Thread(target=work, args=(stopping,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def drive(
    device: Peer,
    transport: Transport,
    until: Callable[[], bool],
    each: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Let a device and its neighbours talk until `until` says so; `each` is called whenever something happened."""
    device.start(clock())
    while True:
        for to, data in device.outbox():
            transport.send(to, data)
        each()
        if until():
            return
        wait = LONGEST_WAIT if device.over else min(device.wake - clock(), LONGEST_WAIT)
        for sender, data in transport.receive(wait, device.missing):
            device.receive(data, sender, clock())
        device.tick(clock())


def _keys(config: DeviceConfig, sender: str, receiver: str) -> tuple[str, str]:
    """Return under which keys a device speaks: to all its neighbours, and to one of them."""
    here = f"{ROOT}/{config.mesh}/{sender}"
    return here, f"{here}/{receiver}"


def _beside(config: DeviceConfig) -> list[str]:
    """Return what a device says beside its frames."""
    return [what for what, on in ((PULSE, config.timing.heartbeat), (COUNTERS, config.learner)) if on]


def _aside_key(config: DeviceConfig, sender: str, what: str) -> str:
    return f"{ROOT}/{config.mesh}/{sender}/{what}"


def _publisher(session: Any, key: str, *, aside: bool = False) -> Any:
    import zenoh

    # express: a round waits for its slowest frame, so never wait to fill a batch.
    # DROP: the device repeats what is lost, while a blocked one would freeze together with its peer
    # What is said aside has a queue of its own, behind all frames.
    priority = zenoh.Priority.BACKGROUND if aside else zenoh.Priority.DATA
    drop = zenoh.CongestionControl.DROP
    return session.declare_publisher(key, express=not aside, congestion_control=drop, priority=priority)


def _needs_zenoh() -> Any:
    """Return the zenoh module, or say how to get it."""
    try:
        import zenoh
    except ImportError:
        raise ValueError("a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'") from None
    return zenoh


def _settings(zenoh: Any, config: DeviceConfig) -> Any:
    """Return Zenoh's configuration: links along the graph, no discovery, certificates, access by name."""
    kind = "tcp" if config.security.insecure else "tls"
    settings: dict[str, Any] = {
        "mode": "peer",
        "listen/endpoints": [f"{kind}/{config.listen}"],
        "connect/endpoints": [f"{kind}/{neighbour.endpoint}" for neighbour in config.neighbours],
        "connect/timeout_ms": -1,
        "connect/exit_on_failure": False,
        "connect/retry": {"period_init_ms": 100, "period_max_ms": 1000, "period_increase_factor": 2},
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,  # with gossip everybody would link to everybody
        "transport/shared_memory/enabled": False,
        "transport/link/protocols": [kind],
        "transport/link/rx/max_message_size": LARGEST_MESSAGE,
    }
    if not config.security.insecure:
        settings["transport/link/tls"] = {
            "root_ca_certificate": str(config.path("ca").resolve()),
            "enable_mtls": True,
            "verify_name_on_connect": True,
            "listen_private_key": str(config.path("key").resolve()),
            "listen_certificate": str(config.path("cert").resolve()),
            "connect_private_key": str(config.path("key").resolve()),
            "connect_certificate": str(config.path("cert").resolve()),
            "close_link_on_expiration": True,
        }
        settings["access_control"] = _access(config)
    found = zenoh.Config()
    for key, value in settings.items():
        found.insert_json5(key, json.dumps(value))  # raises on an unknown key, which from_json5 does not
    return found


def _access(config: DeviceConfig) -> dict[str, Any]:
    """Let each neighbour, by the name in its certificate, say and hear what is between it and this device only.

    A certificate with a lower number than the roster accepts may open a link, and is neither heard nor told anything.
    """
    rules, policies, subjects = [], [], []
    for neighbour in config.neighbours:
        name = neighbour.name
        spoken, heard = [*_keys(config, name, config.name)], [*_keys(config, config.name, name)]
        spoken += [_aside_key(config, name, what) for what in _beside(config)]
        heard += [_aside_key(config, config.name, what) for what in _beside(config)]
        allowed = {
            "says": ("put", "ingress", spoken),
            "hears": ("put", "egress", heard),
            "asks": ("declare_subscriber", "ingress", heard),
            "is-asked": ("declare_subscriber", "egress", spoken),
        }
        for what, (message, flow, keys) in allowed.items():
            rules.append(
                {
                    "id": f"{what} {name}",
                    "permission": "allow",
                    "messages": [message],
                    "flows": [flow],
                    "key_exprs": keys,
                }
            )
        subjects.append({"id": name, "cert_common_names": accepted_names(name, config.lowest(name))})
        policies.append({"rules": [f"{what} {name}" for what in allowed], "subjects": [name]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }
