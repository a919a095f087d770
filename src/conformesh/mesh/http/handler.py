"""One HTTP request of a local program, within limits of size and time; every answer closes its connection."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from conformesh._version import __version__
from conformesh.mesh.http.address import is_loopback
from conformesh.mesh.http.routes import Answer, Answers, Refused, Reply

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LOG = logging.getLogger("conformesh.node")
LARGEST_BODY = 16 * 2**20  # bytes
PATIENCE = 10.0  # seconds of silence after which a client is dropped
WHOLE_REQUEST = 60.0  # seconds for a whole request, however busily a client drips bytes


class Deadline(io.RawIOBase):
    """Reads from a socket until a moment has passed, so that a slow client cannot keep its place for ever."""

    def __init__(self, connection: socket.socket, patience: float, whole: float) -> None:
        self._connection, self._patience = connection, patience
        self._end = time.monotonic() + whole

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read what is there, waiting for some of it no longer than allowed."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(min(self._patience, left))
        return self._connection.recv_into(buffer)


class Handler(BaseHTTPRequestHandler):
    """Reads one request, asks `answers`, writes one answer.

    Parameters
    ----------
    connection
        The accepted socket.
    answers
        What the node says.
    local_socket
        True on a Unix socket, where file permissions decide who may ask.
    patience, whole
        Seconds of silence, and for the whole request, after which the client is dropped.
    """

    protocol_version = "HTTP/1.1"  # so that a client may ask before it sends a large body
    server_version = f"conformesh/{__version__}"

    def __init__(
        self,
        connection: socket.socket,
        answers: Answers,
        *,
        local_socket: bool,
        patience: float = PATIENCE,
        whole: float = WHOLE_REQUEST,
    ) -> None:
        self.answers, self.local_socket = answers, local_socket
        self.patience, self.whole = patience, whole
        super().__init__(connection, ("local", 0), None)  # type: ignore[arg-type]  # it never asks its server

    def setup(self) -> None:
        """Open the streams, the reading one with a deadline."""
        super().setup()
        self.connection.settimeout(self.patience)
        self.rfile.close()
        self.rfile: io.BufferedReader = io.BufferedReader(Deadline(self.connection, self.patience, self.whole))

    def _answer(self) -> None:
        try:
            self._refuse_browsers()
            reply = self.answers.route(self.command, self.path.partition("?")[0])
            self._send(self._reply(reply, self._body()))
        except Refused as refused:
            self._send(_error(refused.status, str(refused)), allow=refused.allow)
            self._linger()

    def _reply(self, reply: Reply, body: bytes) -> Answer:
        try:
            return reply(body)
        except Refused:
            raise
        except Exception as error:
            LOG.exception("a local request failed unexpectedly: %s %s", self.command, self.path)
            words = f"unexpected {type(error).__name__}; the node's log has the details"
            raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, words) from None

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_HEAD = _answer  # noqa: N815 - http.server's names

    def _refuse_browsers(self) -> None:
        """Keep web pages out: any page may make a browser send requests to a loopback port."""
        if self.local_socket:
            return
        host = re.fullmatch(r"\[?([^\[\]]*?)\]?(?::\d+)?", self.headers.get("Host", "localhost"))
        if "Origin" in self.headers or host is None or not is_loopback(host[1]):
            raise Refused(HTTPStatus.FORBIDDEN, "this service is for programs on the device, not for web pages")

    def _length(self) -> int:
        if "Transfer-Encoding" in self.headers:
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "send the body whole, with a Content-Length")
        text = self.headers.get("Content-Length", "0").strip()
        if not (text.isascii() and text.isdecimal()):
            raise Refused(HTTPStatus.BAD_REQUEST, f"Content-Length must be a number of bytes, got {text[:40]!r}")
        return int(text[:20])

    def _body(self) -> bytes:
        length = self._length()
        if length > LARGEST_BODY:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"a request may have {LARGEST_BODY:,} bytes, got {length:,}; send fewer rows at a time",
            )
        if length and self.headers.get_content_type() != "application/json":
            got = self.headers.get("Content-Type", "none")[:80]
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body must be application/json, got {got}")
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError("the client left in the middle of its request")
        return body

    def _linger(self) -> None:
        """Read on, within reason, until the client closes: otherwise one that is still writing would not hear why."""
        self.connection.shutdown(socket.SHUT_WR)
        left = 4 * LARGEST_BODY
        while left > 0 and (piece := self.rfile.read1(2**16)):
            left -= len(piece)

    def _send(self, answer: Answer, allow: str = "") -> None:
        self.connection.settimeout(self.patience)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        if allow:
            self.send_header("Allow", allow)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request that is not even HTTP, in the same words-in-JSON as every other refusal."""
        status = HTTPStatus(code)
        self._send(_error(status, message or explain or status.phrase))
        self.close_connection = True
        self._linger()

    def version_string(self) -> str:
        """Say who answers."""
        return self.server_version

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests where somebody looks for them."""
        LOG.debug("local request: " + format, *args)


def _error(status: HTTPStatus, words: str) -> Answer:
    return Answer.of({"error": " ".join(words.split())}, status)


def busy(places: int) -> bytes:
    """Return the whole answer for a client that finds every place taken."""
    words = json.dumps({"error": f"the node is answering {places} programs already; try again in a moment"}).encode()
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(words)}\r\n"
    return head.encode() + b"Connection: close\r\nRetry-After: 1\r\n\r\n" + words


def attend(connection: socket.socket, serve: Callable[[socket.socket], object]) -> None:
    """Serve one client; whatever happens, the node goes on."""
    try:
        with connection:
            serve(connection)
    except OSError as error:  # it left, or was too slow: its affair
        LOG.debug("a local program broke off: %s", error)
    except Exception:
        LOG.exception("a local request failed unexpectedly")
