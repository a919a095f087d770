"""Where a node's local service listens: a Unix socket, or a port of the loopback interface.

A socket is a file, and a read-only or full disk may take none. A node that starts on such a disk answers at a second
path outside its folder, which the client tries where nobody answers in the folder itself (`fallback_paths`).

Light on purpose: the client imports it too.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

SOCKET_NAME = "node.sock"
ADDRESS_VARIABLE = "CONFORMESH_NODE"
RUNTIME_VARIABLE = "RUNTIME_DIRECTORY"  # set by systemd; folders are separated by colons
LONGEST_PATH = 103  # bytes; macOS allows 104 with the final zero, Linux 108


@dataclass(frozen=True)
class Address:
    """A Unix socket's path, or a loopback host and port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path)
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def new_socket(self) -> socket.socket:
        """Return a fresh socket of the right kind."""
        if self.path is not None:
            return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        return socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)

    def target(self) -> str | tuple[str, int]:
        """Return what `socket.bind` and `socket.connect` take."""
        return str(self.path) if self.path is not None else (self.host, self.port)


def find_address(address: str | os.PathLike[str] | None = None) -> Address:
    """Return the address that is meant: a folder's `node.sock`, a socket's path, or "127.0.0.1:port".

    Without one, the environment variable CONFORMESH_NODE decides, and without that `node.sock` here.
    """
    if address is None:
        address = os.environ.get(ADDRESS_VARIABLE) or SOCKET_NAME
    text = os.fspath(address)
    match = re.fullmatch(r"(\[[^\]/]*\]|[^:/\\]*):(\d+)", text)
    if match:
        return _loopback(match[1].strip("[]"), int(match[2]), text)
    path = Path(text)
    if path.is_dir():
        path /= SOCKET_NAME
    if not hasattr(socket, "AF_UNIX"):
        raise ValueError(f"this system has no Unix sockets, got {text!r}; use 127.0.0.1:PORT")
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ValueError(
            f"the path of a Unix socket must have at most {LONGEST_PATH} bytes, {path} has {len(os.fsencode(path))}; "
            "use a shorter folder or 127.0.0.1:PORT"
        )
    return Address(path=path)


def _loopback(host: str, port: int, text: str) -> Address:
    host = "127.0.0.1" if host.lower() == "localhost" else host
    if not is_loopback(host):
        raise ValueError(
            f"a node answers only programs on its own device: needed 127.0.0.1:PORT or a socket's path, got {text!r}"
        )
    if port > 65535:
        raise ValueError(f"a port lies between 0 and 65535, got {text!r}")
    return Address(host=host, port=port)


def fallback_paths(address: Address) -> list[Path]:
    """Return where a node answers whose folder can take no socket, in the order they are tried; none for a port.

    The names follow from the path of the folder, so that node and client need not tell each other. A path counts only
    if `is_private` holds for its folder. The first folder is that of systemd's RuntimeDirectory=, if there is one.
    """
    if address.path is None or not hasattr(os, "getuid"):
        return []
    import hashlib
    import tempfile

    place = os.path.join(os.path.realpath(address.path.parent), address.path.name)
    name = f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:32]}.sock"
    folders = [Path(one) for one in os.environ.get(RUNTIME_VARIABLE, "").split(":") if one]
    with suppress(OSError):  # there is no temporary folder
        folders.append(Path(tempfile.gettempdir()) / f"conformesh-{os.getuid()}")
    return [folder / name for folder in folders]


def is_private(folder: Path) -> bool:
    """Whether a folder belongs to this user and nobody else may enter it; others may make folders where it lies."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine itself, by number or as localhost."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
