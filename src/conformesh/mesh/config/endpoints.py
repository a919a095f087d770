"""Endpoints, ``host:port``, at which devices are reached, and the file with the hosts of all devices."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from conformesh.common.names import list_names, unknown_name

LOCALHOST = "127.0.0.1"
BASE_PORT = 7600  # the first port of a mesh; any that is free would do
# Linux takes ports from 32768 on for outgoing connections, other systems higher ones: such a port may be busy at times.
HIGHEST_PORT = 32767
# Labels of up to 63 characters, the limit of DNS; underscores are accepted too.
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*")


class Endpoint(NamedTuple):
    """A host and a port; as text an IPv6 address stands in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str, what: str = "endpoint", port: int | None = None) -> Endpoint:
    """Read ``host:port``; with `port` given, ``host`` alone will do.

    >>> parse_endpoint("[::1]:7600"), parse_endpoint("pi.local", port=7600)
    (Endpoint(host='::1', port=7600), Endpoint(host='pi.local', port=7600))
    """
    found = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?", text)
    number = port if found is None or found[3] is None else int(found[3])
    if found is None or number is None:
        raise ValueError(f"{what} must be host:port, as 127.0.0.1:7600 or [::1]:7600, got {text!r}")
    if not 1 <= number <= 65535:
        raise ValueError(f"{what} {text!r}: a port lies between 1 and 65535, got {number}")
    host = found[1] or found[2]
    if not is_address(host, 6 if found[1] else 4) and (found[1] or not _is_host_name(host)):
        raise ValueError(f"{what} {text!r}: {host!r} is neither an IP address nor a host name")
    return Endpoint(host, number)


def is_address(host: str, version: int | None = None) -> bool:
    """Whether the host is an IP address (of that version) and not a name."""
    try:
        return version in (None, ipaddress.ip_address(host).version)
    except ValueError:
        return False


def _is_host_name(host: str) -> bool:
    # At most 253 characters (DNS). Digits and dots alone are a mistyped address, not a name.
    return len(host) <= 253 and bool(_HOST_NAME.fullmatch(host)) and not re.fullmatch(r"[0-9.]+", host)


def listening_endpoint(reached: Endpoint) -> Endpoint:
    """Return where a device listens that others reach there.

    A machine often takes its own name for a loopback address, so under a name it listens on every interface.
    """
    by_address = is_address(reached.host) or reached.host == "localhost"
    return reached if by_address else Endpoint("0.0.0.0", reached.port)


def local_endpoints(devices: Sequence[str], base_port: int = BASE_PORT) -> dict[str, Endpoint]:
    """Return consecutive ports on this machine."""
    last = base_port + len(devices) - 1
    if base_port < 1 or last > HIGHEST_PORT:
        raise ValueError(
            f"{len(devices)} devices from port {base_port} on need ports up to {last}; they must lie between 1 and "
            f"{HIGHEST_PORT}: choose another base port"
        )
    return {name: Endpoint(LOCALHOST, base_port + row) for row, name in enumerate(devices)}


def next_port(taken: Sequence[Endpoint], host: str, base_port: int = BASE_PORT) -> int:
    """Return the port after those that devices have on that host."""
    ports = [endpoint.port for endpoint in taken if endpoint.host == host]
    port = max(ports) + 1 if ports else base_port
    if port > HIGHEST_PORT:
        raise ValueError(f"host {host}: no port below {HIGHEST_PORT + 1} is left after {port - 1}; give host:port")
    return port


def read_hosts(path: Path, devices: Sequence[str], base_port: int = BASE_PORT) -> dict[str, Endpoint]:
    """Read a hosts file, ``device host[:port]`` a line; ``#`` starts a comment.

    Every device stands there once. Without a port, the devices of one host get consecutive ones from `base_port` on.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise ValueError(f"{path}: cannot read the hosts file: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path}: a hosts file must be UTF-8 text, byte {problem.start} is not") from problem
    found: dict[str, Endpoint] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields, where = line.split("#", 1)[0].split(), f"{path}, line {number}"
        if not fields:
            continue
        if len(fields) != 2:
            raise ValueError(f"{where}: needed a device and its host[:port], got {line.strip()!r}")
        name = find_device_name(fields[0], devices)
        if name is None:
            raise ValueError(f"{where}: {unknown_name('device', fields[0], devices)}")
        if name in found:
            raise ValueError(f"{where}: device {name!r} already has {found[name]}; name every device once")
        bare = parse_endpoint(fields[1], f"{where}: host", port=1)
        endpoint = parse_endpoint(fields[1], f"{where}: host", next_port([*found.values()], bare.host, base_port))
        owner = next((other for other, taken in found.items() if taken == endpoint), None)
        if owner is not None:
            raise ValueError(f"{where}: {endpoint} belongs to {owner!r} already; give {name!r} another port")
        found[name] = endpoint
    missing = [name for name in devices if name not in found]
    if missing:
        raise ValueError(
            f"{path}: no host for {list_names(missing)}; every device needs a line: {missing[0]} HOST:PORT"
        )
    return {name: found[name] for name in devices}


def roster_names(ids: Sequence[str]) -> tuple[str, ...]:
    """Return the devices' names in a mesh: plain numbers become ``device-00``, ``device-01``, ...

    >>> roster_names(["0", "1"]), roster_names(["hospital", "7"])
    (('device-00', 'device-01'), ('hospital', '7'))
    """
    if not all(re.fullmatch(r"[0-9]+", name) for name in ids):
        return tuple(ids)
    width = max(2, *(len(str(int(name))) for name in ids))
    return tuple(f"device-{int(name):0{width}d}" for name in ids)


def find_device_name(name: str, devices: Sequence[str]) -> str | None:
    """Return the device that is meant, by its name or by its number; None where there is none."""
    if name in devices:
        return name
    if re.fullmatch(r"[0-9]+", name):
        same = [d for d in devices if re.fullmatch(rf"device-0*{int(name)}", d)]
        return same[0] if len(same) == 1 else None
    return None
