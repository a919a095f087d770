"""One HTTP request of a local program, parsed from bytes as they arrive, without I/O.

It supports only what a local program needs: one request per connection, a body with a Content-Length, no chunks. Limits
of size are checked here, limits of time by the server that reads the bytes.
"""

from __future__ import annotations

import re
from http import HTTPStatus

from conformesh import __version__
from conformesh.mesh.http.address import is_loopback
from conformesh.mesh.http.paths import JSON, LARGEST_BODY
from conformesh.mesh.http.replies import HttpReplies, HttpReply, Refused, Reply

LARGEST_HEAD = 2**16  # bytes; requests of local programs have some hundred
MOST_HEADERS = 100  # as many as the HTTP library of Python takes
_HEAD_ENDS = (b"\r\n\r\n", b"\n\n")  # RFC 9112, 2.2: a recipient may take a single LF as a line end
# Verbs that exist: a wrong one gets 405 (not for this path) and not 501 (not implemented).
KNOWN_VERBS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "QUERY")
CONTINUE_REPLY = b"HTTP/1.1 100 Continue\r\n\r\n"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Request:
    """Collects one request.

    Parameters
    ----------
    replies
        The routes of the service.
    local_socket
        True on a Unix socket, where file permissions decide who may ask.

    Attributes
    ----------
    verb, path
        Method and path; empty until the head has arrived. The path also stays empty if there is no such route.
    reply
        Function that computes the reply; None until a valid head has arrived.
    length
        Bytes of the body; 0 until the head has arrived.
    expects_continue
        Whether the program waits for "100 Continue" before it sends the body.
    """

    def __init__(self, replies: HttpReplies, *, local_socket: bool) -> None:
        self.replies, self.local_socket = replies, local_socket
        self.verb = self.path = ""
        self.reply: Reply | None = None
        self.expects_continue = False
        self.length = 0
        self._data = bytearray()
        self._headers: dict[str, str] = {}

    def feed(self, data: bytes) -> None:
        """Add bytes that have arrived; raise `Refused` as soon as they show that the request is invalid."""
        searched = max(len(self._data) - 3, 0)  # the end of the head may be split between two reads
        self._data += data
        if self.reply is None:
            self._look_for_head(searched)

    @property
    def is_complete(self) -> bool:
        """Whether the whole request has arrived."""
        return self.reply is not None and len(self._data) >= self.length

    def pop_body(self) -> bytes:
        """Return the body of a complete request and free its memory: it may be large."""
        with memoryview(self._data) as data:
            body = bytes(data[: self.length])
        self.free()
        return body

    def free(self) -> None:
        """Free the bytes of a request that was answered or refused; `is_complete` stays as it is."""
        if self.is_complete:
            self.length = 0
        self._data = bytearray()

    def _look_for_head(self, start: int) -> None:
        ends = [(at, len(end)) for end in _HEAD_ENDS if (at := self._data.find(end, start)) >= 0]
        if not ends:
            if len(self._data) > LARGEST_HEAD:
                raise Refused(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head may have {LARGEST_HEAD:,} bytes, got more"
                )
            return
        at, length = min(ends)
        lines = bytes(self._data[:at]).decode("latin-1").split("\n")
        del self._data[: at + length]
        path = self._read_first(lines[0].rstrip("\r"))
        self._read_headers(lines[1:])
        self._refuse_browsers()
        reply = self.replies.route(self.verb, path, self._headers.get("accept", ""))
        self.path = path
        self.length = self._body_length()
        self.expects_continue = self._headers.get("expect", "").lower() == "100-continue" and not self._data
        self.reply = reply

    def _read_first(self, line: str) -> str:
        words = line.split()
        if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not re.fullmatch(r"HTTP/\d\.\d", words[2]):
            raise Refused(HTTPStatus.BAD_REQUEST, f"needed a line like 'GET /health HTTP/1.1', got {line[:60]!r}")
        self.verb, path, version = words
        if not version.startswith("HTTP/1."):
            raise Refused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, f"this service speaks HTTP/1.1, got {version}")
        if self.verb not in KNOWN_VERBS:
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, f"unknown method {self.verb[:20]}")
        return path.partition("?")[0]

    def _read_headers(self, lines: list[str]) -> None:
        if len(lines) > MOST_HEADERS:
            raise Refused(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request may have {MOST_HEADERS} headers, got more"
            )
        for line in lines:
            name, colon, value = line.partition(":")
            if not (colon and _TOKEN.fullmatch(name)) or "\r" in value.rstrip("\r"):  # which may end a line elsewhere
                raise Refused(HTTPStatus.BAD_REQUEST, f"needed a header like 'Host: localhost', got {line[:60]!r}")
            name, value = name.lower(), value.strip()
            if self._headers.setdefault(name, value) != value and name in ("content-length", "host"):
                raise Refused(HTTPStatus.BAD_REQUEST, f"header {name} came twice, as two values")

    def _refuse_browsers(self) -> None:
        """Refuse requests of web pages: any page can make a browser send requests to a loopback port."""
        if self.local_socket:
            return
        host = re.fullmatch(r"\[?([^\[\]]*?)\]?(?::\d+)?", self._headers.get("host", "localhost"))
        if "origin" in self._headers or host is None or not is_loopback(host[1]):
            raise Refused(HTTPStatus.FORBIDDEN, "this service is for programs on the device, not for web pages")

    def _body_length(self) -> int:
        if "transfer-encoding" in self._headers:
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "send the body whole, with a Content-Length, not in chunks")
        text = self._headers.get("content-length", "0")
        if not (text.isascii() and text.isdecimal()):
            raise Refused(HTTPStatus.BAD_REQUEST, f"Content-Length must be a number of bytes, got {text[:40]!r}")
        length = int(text[:20])  # a longer text is too large in any case
        if length > LARGEST_BODY:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"a request may have {LARGEST_BODY:,} bytes, got {length:,}; send fewer rows at a time",
            )
        kind = self._headers.get("content-type", "none")
        if length and kind.partition(";")[0].strip().lower() != JSON:
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body must be {JSON}, got {kind[:80]}")
        return length


def encode_reply(reply: HttpReply, verb: str = "GET") -> bytes:
    """Return the bytes of a reply; the connection is closed after every reply."""
    status = HTTPStatus(reply.status)
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Server: conformesh/{__version__}",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {len(reply.body)}",
        "Cache-Control: no-store",
        "Connection: close",
        *(f"{name}: {value}" for name, value in reply.headers),
    ]
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return head if verb == "HEAD" else head + reply.body


def refusal_reply(refused: Refused) -> HttpReply:
    """Return the reply to a refused request: its status, and the reason as one line in a JSON object."""
    return HttpReply.of({"error": str(refused)}, refused.status, refused.headers)
