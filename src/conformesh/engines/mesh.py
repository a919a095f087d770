"""The mesh engine: one device of a real network, over Eclipse Zenoh in peer mode. No broker, no server.

A link exists for each edge of the graph and for nothing else. With certificates (the default) both ends of a link prove
who they are, and what a neighbour may say is bound to the name in its certificate: a frame counts as that neighbour's
only if it came under that neighbour's key. `Device` does the rest; plain publications may get lost, it repeats them.
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from conformesh.engines.device import Device

if TYPE_CHECKING:
    from conformesh.mesh.device import DeviceConfig

ROOT = "conformesh"
LONGEST_WAIT = 0.5  # seconds between two looks at what else is to be done


class Transport:
    """Moves bytes between this device and its neighbours."""

    def __init__(self, session: Any, config: DeviceConfig) -> None:
        import zenoh

        self.arrived: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._row = {name: k for k, name in enumerate(config.devices)}
        here = f"{ROOT}/{config.mesh}"
        self._subscriber = session.declare_subscriber(f"{here}/*/{config.name}", self._receive)
        self._publishers = {
            self._row[neighbour.name]: session.declare_publisher(
                f"{here}/{config.name}/{neighbour.name}",
                express=True,  # a round waits for its slowest frame: never wait to fill a batch
                congestion_control=zenoh.CongestionControl.DROP,  # the device repeats; blocking freezes with a peer
            )
            for neighbour in config.neighbours
        }

    def _receive(self, sample: Any) -> None:
        """Take a sample, in a thread of Zenoh's: it may only be put aside."""
        sender = str(sample.key_expr).split("/")[-2]
        self.arrived.put((self._row.get(sender, -1), sample.payload.to_bytes()))

    def send(self, to: int, data: bytes) -> None:
        """Send bytes to a neighbour, which may get lost."""
        self._publishers[to].put(data)

    def receive(self, timeout: float) -> Iterator[tuple[int, bytes]]:
        """Yield what has arrived, waiting for the first."""
        try:
            yield self.arrived.get(timeout=max(timeout, 0.0))
            while True:
                yield self.arrived.get_nowait()
        except queue.Empty:
            return


@contextmanager
def opened(config: DeviceConfig) -> Iterator[Transport]:
    """Open the links of a device, and close them at the end."""
    zenoh = needs_zenoh()
    with zenoh.open(_settings(zenoh, config)) as session:
        yield Transport(session, config)


def drive(
    device: Device,
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
        for sender, data in transport.receive(wait):
            device.receive(data, sender, clock())
        device.tick(clock())


def needs_zenoh() -> Any:
    """Return the zenoh module, or say how to get it."""
    try:
        import zenoh
    except ImportError:
        raise ValueError("a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'") from None
    return zenoh


def _settings(zenoh: Any, config: DeviceConfig) -> Any:
    """Return Zenoh's configuration: links along the graph, no discovery, certificates, access by name."""
    kind = "tcp" if config.insecure else "tls"
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
    }
    if not config.insecure:
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
    """Let each neighbour, by the name in its certificate, say and hear what is between it and this device only."""
    here, rules, policies, subjects = f"{ROOT}/{config.mesh}", [], [], []
    for neighbour in config.neighbours:
        name = neighbour.name
        allowed = {
            "says": (["put"], ["ingress"], f"{here}/{name}/{config.name}"),
            "hears": (["put"], ["egress"], f"{here}/{config.name}/{name}"),
            "asks": (["declare_subscriber"], ["ingress"], f"{here}/*/{name}"),
            "is-asked": (["declare_subscriber"], ["egress"], f"{here}/*/{config.name}"),
        }
        for what, (messages, flows, key) in allowed.items():
            rules.append(
                {
                    "id": f"{what} {name}",
                    "permission": "allow",
                    "messages": messages,
                    "flows": flows,
                    "key_exprs": [key],
                }
            )
        subjects.append({"id": name, "cert_common_names": [name]})
        policies.append({"rules": [f"{what} {name}" for what in allowed], "subjects": [name]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }
