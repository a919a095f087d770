"""The server of a view: Starlette and uvicorn in a background thread, on this machine only by default."""

from __future__ import annotations

import errno
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from conformesh.mesh.http.address import is_loopback
from conformesh.view.recording import Recording

if TYPE_CHECKING:
    from conformesh.view.routes import AskDetails

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8750
DEFAULT_ADDRESS = f"{DEFAULT_HOST}:{DEFAULT_PORT}"
_MIN_TOKEN_LENGTH = 32  # characters of a token from a file: 128 bits, if they are random hexadecimal digits
_START_STOP_TIMEOUT = 10.0  # seconds; usually it takes milliseconds


@dataclass(frozen=True)
class ServerLimits:
    """Limits for clients.

    Attributes
    ----------
    connections, streams
        Largest number of connections, and of those that follow events.
    request, answer, stalled, handshake, goodbye
        Seconds for a whole request, to read an answer, for a pause in reading events, for a TLS handshake, and to read
        the rest when the server stops.
    """

    connections: int = 256
    streams: int = 32
    request: float = 10.0
    answer: float = 120.0
    stalled: float = 20.0
    handshake: float = 5.0
    goodbye: float = 1.0


def new_token() -> str:
    """Return a random token of 32 bytes."""
    return secrets.token_urlsafe(32)


def read_token(path: Path) -> str:
    """Read a token from the first line of a file."""
    lines = path.read_text("utf-8").splitlines()
    token = lines[0].strip() if lines else ""
    if len(token) < _MIN_TOKEN_LENGTH or not re.fullmatch(r"[!-~]+", token):
        raise ValueError(
            f"{path}: a token needs at least {_MIN_TOKEN_LENGTH} letters, digits or signs without spaces in the first "
            f"line, got {len(token)}; make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token


def parse_view_address(text: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT", "HOST" or ":PORT".

    >>> parse_view_address("127.0.0.1:9000"), parse_view_address("[::1]"), parse_view_address(":0")
    (('127.0.0.1', 9000), ('::1', 8750), ('127.0.0.1', 0))
    """
    match = re.fullmatch(r"(\[[^\]/]*\]|[^:/\\\s]*)(?::(\d{1,5}))?", text)
    if match is None or int(match[2] or 0) > 65535:
        raise ValueError(f"a view needs HOST:PORT, as {DEFAULT_ADDRESS}, got {text!r}")
    return match[1].strip("[]") or DEFAULT_HOST, DEFAULT_PORT if match[2] is None else int(match[2])


class ViewServer:
    """Shows recordings to browsers until it is stopped; also a context manager.

    Parameters
    ----------
    recordings
        The runs to show, or a function that returns them. Runs that are added later are shown too; one that replaces
        another starts again.
    host, port
        Where it listens. Port 0 asks for a free one.
    token
        A secret that browsers must send; required if the host is not local.
    cert, key
        Files of a certificate and its key, for TLS.
    details
        Asks a device, by the number of its run and its row, for what is not recorded.
    limits
        Limits for clients.
    """

    def __init__(
        self,
        recordings: Callable[[], Sequence[Recording]] | Sequence[Recording],
        *,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        token: str | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        details: AskDetails | None = None,
        limits: ServerLimits = ServerLimits(),  # noqa: B008 - frozen
    ) -> None:
        _require_extra()
        if not is_loopback(host) and token is None:
            raise ValueError(
                f"beyond this machine a view needs a token, and {host} can be reached from elsewhere; give one, or "
                f"listen at {DEFAULT_HOST}"
            )
        if (cert is None) != (key is None):
            raise ValueError("TLS needs both a certificate and its key; give --cert and --key, or neither")
        self.host, self.port, self.token = host, port, token
        self._recordings = recordings if callable(recordings) else lambda: recordings
        self._cert, self._key, self._details, self._limits = cert, key, details, limits
        self._thread: threading.Thread | None = None

    @property
    def secure(self) -> bool:
        """Whether traffic is encrypted, or does not leave this machine."""
        return self._cert is not None or is_loopback(self.host)

    @property
    def url(self) -> str:
        """The address to open in a browser, with the token if one is needed."""
        host = socket.gethostname() if _is_wildcard(self.host) else self.host
        scheme = "http" if self._cert is None else "https"
        at = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}/"
        return at if self.token is None else f"{at}?token={self.token}"

    def start(self) -> ViewServer:
        """Listen, and return once browsers can connect."""
        import uvicorn

        from conformesh.view.connections import MAX_REQUEST_BYTES, LimitedServer
        from conformesh.view.guard import Guard
        from conformesh.view.routes import ViewRoutes

        if self._thread is not None:
            raise RuntimeError(f"the view at {self.url} has been started already; make a new one")
        self._view = view = ViewRoutes(self._recordings, self._details, self._limits.streams)
        listener = _open_listener(self.host, self.port)
        self.port = listener.getsockname()[1]
        name = socket.gethostname() if _is_wildcard(self.host) else self.host
        config = uvicorn.Config(
            Guard(view.router(), [name], self.port, self.token),
            h11_max_incomplete_event_size=MAX_REQUEST_BYTES,
            ssl_certfile=self._cert,
            ssl_keyfile=self._key,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=1024,  # connections that wait to be accepted are not refused
        )
        try:
            config.load()  # in this thread, so that a bad certificate raises an error here
        except OSError as problem:
            listener.close()
            raise ValueError(
                f"{self._cert} with {self._key} cannot be used as certificate and key: {problem}"
            ) from None
        self._server = LimitedServer(config, self._limits, view.stop)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="view", daemon=True)
        self._thread.start()
        if not self._server.listening.wait(_START_STOP_TIMEOUT):
            raise RuntimeError(f"the view at {self.url} has not started within {_START_STOP_TIMEOUT:g} s")
        return self

    def stop(self) -> None:
        """Close all connections, and return when the thread has ended. Stopping twice is harmless."""
        if self._thread is not None:
            self._server.request_stop()
            self._thread.join(_START_STOP_TIMEOUT)
            self._view.close()

    def __enter__(self) -> ViewServer:
        return self.start()

    def __exit__(self, *reason: object) -> None:
        self.stop()


@contextmanager
def serving_view(
    recordings: Callable[[], Sequence[Recording]] | Sequence[Recording],
    view: str | None = DEFAULT_ADDRESS,
    *,
    say: Callable[[str], None] = lambda _: None,
    token: str | None = None,
    cert: Path | None = None,
    key: Path | None = None,
    details: AskDetails | None = None,
) -> Iterator[str]:
    """Show recordings at "HOST:PORT" inside the block, and yield the address to open; without `view` nothing is served.

    For other addresses than local ones a token is made if none is given. `say` receives notes for the user.
    """
    if view is None:
        yield ""
        return
    host, port = parse_view_address(view)
    if token is None and not is_loopback(host):
        token = new_token()
    server = ViewServer(recordings, host=host, port=port, token=token, cert=cert, key=key, details=details)
    with server:
        say(f"see it at {server.url}")
        if not server.secure:
            say("warning: without TLS the token and all that is shown can be read on the way; use --cert and --key")
        yield server.url


def _require_extra() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ValueError("a view needs Starlette and uvicorn: pip install 'conformesh[view]'") from None


def _is_wildcard(host: str) -> bool:
    """Whether a host means every address of this machine."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _open_listener(host: str, port: int) -> socket.socket:
    try:
        kind, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(target[:2], family=kind, backlog=1024)
    except socket.gaierror as problem:
        raise ValueError(
            f"a view cannot listen at {host!r}: {problem.strerror}; give an address of this machine"
        ) from None
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            words = f"{host}:{port} is in use; stop what listens there, or choose another port, as --view {host}:0"
        else:
            words = f"cannot listen at {host}:{port}: {problem.strerror or problem}"
        raise OSError(problem.errno, words) from None
