"""The links of one device to its neighbours, over Eclipse Zenoh in peer mode. No broker, no server.

There is one link for each edge of the graph. With certificates (the default) both ends of a link authenticate, and a
neighbour may publish only under keys with the name in its certificate: the key of a frame therefore proves its sender.
Messages may get lost: `Device` repeats those that matter.

Side messages have keys of their own and a lower priority than frames. They carry heartbeats, and the counters of
devices that learn online.
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
from conformesh.mesh.sockets import LinkSockets
from conformesh.peer.frames import LARGEST_FRAME_BODY, MOST_AROUND, frame_can_wait
from conformesh.peer.interface import EVERYBODY, Peer

if TYPE_CHECKING:
    from conformesh.mesh.config.device_config import DeviceConfig

ROOT = "conformesh"
# Kinds of side messages, part of keys on the wire. "~" keeps them apart from device names, which cannot contain it.
HEARTBEAT, COUNTERS = "~pulse", "~counters"
# Bytes of one neighbour's unread messages; further ones are dropped, which the network may do as well: a neighbour that
# sends faster than this device reads must not fill its memory. Room for one frame of the largest size and small ones.
MOST_FRAMES = LARGEST_FRAME_BODY + MOST_AROUND + 2**20
MOST_SIDE_MESSAGES = 2**20  # bytes; eight heartbeats of the largest size
MESSAGE_OVERHEAD = 256  # bytes of memory that a message takes besides its content, so that empty messages count as well
# Bytes of a message with its key. Zenoh rejoins fragments only up to this size.
LARGEST_ZENOH_MESSAGE = LARGEST_FRAME_BODY + MOST_AROUND + 2**12
LONGEST_WAIT = 0.5  # seconds that a device waits for frames before its node looks at files and requests again
# One Zenoh thread per device is enough, and halves the thread switches on a machine with many devices.
_ZENOH_ROLES = ("acc", "tx", "net", "rx")
ZENOH_THREADS = "(app: (worker_threads: 1), " + ", ".join(f"{role}: (handover: app)" for role in _ZENOH_ROLES) + ")"


class _Inbox:
    """Unread messages, in order of arrival; at most `most` bytes of each sender.

    Zenoh's thread calls `put`, the reader's thread `pop_all`. No lock is needed, as each counter has only one writer.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: deque[tuple[Any, bytes, float]] = deque()
        self._bytes_in: Counter[Any] = Counter()
        self._bytes_out: Counter[Any] = Counter()

    def put(self, sender: Any, payload: Any) -> bytes:
        """Store a payload and return its bytes; empty if there is no room, which is decided before copying it."""
        size = len(payload) + MESSAGE_OVERHEAD
        if self._bytes_in[sender] - self._bytes_out[sender] + size > self._most:
            return b""
        data: bytes = payload.to_bytes()
        self._bytes_in[sender] += size
        self._items.append((sender, data, time.monotonic()))
        return data

    def pop_all(self) -> Iterator[tuple[Any, bytes, float]]:
        """Yield and remove all messages: sender, bytes, time of arrival."""
        while self._items:
            sender, data, received_at = self._items.popleft()
            self._bytes_out[sender] += len(data) + MESSAGE_OVERHEAD
            yield sender, data, received_at

    def __len__(self) -> int:
        return len(self._items)


class Transport:
    """Moves bytes between this device and its neighbours.

    A message for all neighbours is published once, under the name of this device; a message for one neighbour under
    both names. In a round the last expected frame wakes the device, not each one: that halves the thread switches.
    """

    def __init__(self, session: Any, config: DeviceConfig) -> None:
        self._arrived = _Inbox(MOST_FRAMES)
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._enough = 1
        ports = [parse_endpoint(neighbour.endpoint).port for neighbour in config.neighbours]
        self._sockets = LinkSockets(parse_endpoint(config.listen).port, ports)
        row = {name: k for k, name in enumerate(config.devices)}
        names = [neighbour.name for neighbour in config.neighbours]
        self._subscribers = [
            session.declare_subscriber(key, self._frame_handler(row[name]))
            for name in names
            for key in _keys(config, name, config.name)
        ]
        self._publishers = {row[name]: _publisher(session, _keys(config, config.name, name)[1]) for name in names}
        self._publishers[EVERYBODY] = _publisher(session, _keys(config, config.name, config.name)[0])
        self._side_inboxes: dict[str, _Inbox] = {}
        self._side_publishers: dict[str, Any] = {}
        for kind in _side_kinds(config):
            self._side_inboxes[kind] = _Inbox(MOST_SIDE_MESSAGES)
            self._side_publishers[kind] = _publisher(session, _side_key(config, config.name, kind), is_side=True)
            self._subscribers += [
                session.declare_subscriber(_side_key(config, name, kind), self._side_handler(name, kind))
                for name in names
            ]

    def _frame_handler(self, sender: int) -> Callable[[Any], None]:
        """Return the callback for a neighbour's frames; Zenoh's thread runs it, so it only stores them."""

        def store(sample: Any) -> None:
            data = self._arrived.put(sender, sample.payload)
            if data and (len(self._arrived) >= self._enough or not frame_can_wait(data)):
                self._bell.put(None)

        return store

    def _side_handler(self, sender: str, kind: str) -> Callable[[Any], None]:
        """Return the callback for a neighbour's side messages; they do not wake the device."""
        arrived = self._side_inboxes[kind]

        def store(sample: Any) -> None:
            arrived.put(sender, sample.payload)

        return store

    def send_side_message(self, kind: str, payload: bytes) -> None:
        """Send a side message to all neighbours; it may get lost."""
        if kind in self._side_publishers:
            self._side_publishers[kind].put(payload)

    def receive_side_messages(self, kind: str) -> Iterator[tuple[str, bytes, float]]:
        """Yield the side messages that have arrived: name of the sender, bytes, time of arrival."""
        if kind in self._side_inboxes:
            yield from self._side_inboxes[kind].pop_all()

    def wake(self) -> None:
        """Wake the thread that waits in `receive`.

        Handlers of signals must call this: up to Python 3.12, a wait that a signal interrupts just before its timeout
        may never return.
        """
        self._bell.put(None)

    def send(self, to: int, data: bytes) -> None:
        """Send a frame to a neighbour or to `EVERYBODY`; it may get lost."""
        self._publishers[to].put(data)

    def receive(self, timeout: float, enough: int = 1) -> Iterator[tuple[int, bytes]]:
        """Wait for `enough` frames of data, any other frame, or the timeout; yield what has arrived."""
        self._sockets.look(time.monotonic())
        self._enough = enough  # before the check below: a frame that arrives in between rings the bell
        if len(self._arrived) < enough:
            with suppress(queue.Empty):
                self._bell.get(timeout=max(timeout, 0.0))
        for _ in range(self._bell.qsize()):
            self._bell.get()
        for sender, data, _ in self._arrived.pop_all():
            yield sender, data


@contextmanager
def open_links(config: DeviceConfig) -> Iterator[Transport]:
    """Open the links of a device for the duration of the context; an OSError says why it cannot listen."""
    os.environ.setdefault("ZENOH_RUNTIME", ZENOH_THREADS)  # Zenoh reads it once per process, at the first session
    zenoh = _import_zenoh()
    try:
        session = zenoh.open(_zenoh_config(zenoh, config))
    except zenoh.ZError as problem:
        why = re.sub(r" at /\S+:\d+\.", "", str(problem))  # without the line in Zenoh's sources
        raise OSError(f"{config.name} cannot listen at {config.listen}: {why}; is another program there?") from None
    try:
        yield Transport(session, config)
    finally:
        with suppress(zenoh.ZError):  # times out if a neighbour is unreachable
            session.close()


@contextmanager
def background_thread(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in a thread until the context ends; the event it gets tells it to stop."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def drive_device(
    device: Peer,
    transport: Transport,
    until: Callable[[], bool],
    each: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Move frames between a device and its neighbours until `until` returns True; call `each` after every step."""
    device.start(clock())
    while True:
        for to, data in device.outbox():
            transport.send(to, data)
        each()  # before `until`: the last step of a device is reported as well
        if until():
            return
        wait = LONGEST_WAIT if device.over else min(device.wake - clock(), LONGEST_WAIT)
        for sender, data in transport.receive(wait, device.missing):
            device.receive(data, sender, clock())
        device.tick(clock())


def _keys(config: DeviceConfig, sender: str, receiver: str) -> tuple[str, str]:
    """Return the keys under which a device sends: to all its neighbours, and to one of them."""
    prefix = f"{ROOT}/{config.mesh}/{sender}"
    return prefix, f"{prefix}/{receiver}"


def _side_kinds(config: DeviceConfig) -> list[str]:
    """Return the kinds of side messages that a device sends and receives."""
    return [kind for kind, on in ((HEARTBEAT, config.timing.heartbeat), (COUNTERS, config.learner)) if on]


def _side_key(config: DeviceConfig, sender: str, kind: str) -> str:
    return f"{ROOT}/{config.mesh}/{sender}/{kind}"


def _publisher(session: Any, key: str, *, is_side: bool = False) -> Any:
    import zenoh

    # express: a round waits for its slowest frame, so frames must not wait until a batch is full.
    # DROP: lost frames are repeated by the device, while with BLOCK a frozen neighbour would freeze this device too.
    # BACKGROUND: side messages have a separate queue, which is sent after all frames.
    priority = zenoh.Priority.BACKGROUND if is_side else zenoh.Priority.DATA
    drop = zenoh.CongestionControl.DROP
    return session.declare_publisher(key, express=not is_side, congestion_control=drop, priority=priority)


def _import_zenoh() -> Any:
    """Return the zenoh module; a ValueError says how to install it."""
    try:
        import zenoh
    except ImportError:
        raise ValueError("a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'") from None
    return zenoh


def _zenoh_config(zenoh: Any, config: DeviceConfig) -> Any:
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
        "scouting/gossip/enabled": False,  # with gossip every device would link to every other
        "transport/shared_memory/enabled": False,
        "transport/link/protocols": [kind],
        "transport/link/rx/max_message_size": LARGEST_ZENOH_MESSAGE,
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
        settings["access_control"] = _access_rules(config)
    zenoh_config = zenoh.Config()
    for key, value in settings.items():
        zenoh_config.insert_json5(key, json.dumps(value))  # raises for an unknown key; from_json5 would ignore it
    return zenoh_config


def _access_rules(config: DeviceConfig) -> dict[str, Any]:
    """Return rules by which each neighbour, named by its certificate, exchanges only its messages with this device.

    A certificate with a lower number than the roster accepts can open a link, but no message passes over it.
    """
    rules, policies, subjects = [], [], []
    for neighbour in config.neighbours:
        name = neighbour.name
        sent, received = [*_keys(config, name, config.name)], [*_keys(config, config.name, name)]
        sent += [_side_key(config, name, kind) for kind in _side_kinds(config)]
        received += [_side_key(config, config.name, kind) for kind in _side_kinds(config)]
        allowed = {
            "publishes": ("put", "ingress", sent),
            "receives": ("put", "egress", received),
            "subscribes": ("declare_subscriber", "ingress", received),
            "is-subscribed": ("declare_subscriber", "egress", sent),
        }
        for action, (message, flow, keys) in allowed.items():
            rules.append(
                {
                    "id": f"{action} {name}",
                    "permission": "allow",
                    "messages": [message],
                    "flows": [flow],
                    "key_exprs": keys,
                }
            )
        subjects.append({"id": name, "cert_common_names": accepted_names(name, config.lowest_certificate(name))})
        policies.append({"rules": [f"{action} {name}" for action in allowed], "subjects": [name]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }
