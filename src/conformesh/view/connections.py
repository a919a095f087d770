"""Connections to a view: uvicorn's, with limits for clients that are silent, slow or many.

Every connection serves one request. A client that is slow to send its request, or to read the answer, is dropped. If
there are too many connections, the one that was silent for longest is closed. A stream of events lasts while it is
read.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from conformesh.view.guard import SECURITY_HEADERS
from conformesh.view.server import ServerLimits

# Malformed requests come from anybody who reaches the port; they would only fill the log of the user.
_CLIENT_LOG = logging.getLogger("conformesh.view.strangers")
_CLIENT_LOG.setLevel(logging.CRITICAL)
_EVENTS_PATH = "/events"  # the only response that does not end
MAX_REQUEST_BYTES = 2**14  # bytes of a request with its headers; the page itself needs less than a tenth


class Connection(H11Protocol):
    """One client."""

    def __init__(self, *, limits: ServerLimits, **more: Any) -> None:
        super().__init__(**more)
        self.limits, self.logger = limits, _CLIENT_LOG
        self.last_read = time.monotonic()
        self._due: asyncio.TimerHandle | None = None  # for a whole request, then for the answer
        self._stalled: asyncio.TimerHandle | None = None
        self._bytes_read = 0

    @property
    def lasts(self) -> bool:
        """Whether it streams events, which may last."""
        return self.cycle is not None and self.scope["path"] == _EVENTS_PATH

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the most silent connection if there are too many, and wait for the request."""
        crowd = [one for one in self.connections if isinstance(one, Connection) and not one.lasts]
        if len(self.connections) >= self.limits.connections and crowd:
            min(crowd, key=lambda one: one.last_read).drop()
        super().connection_made(transport)
        self._due = self.loop.call_later(self.limits.request, self.drop)

    def data_received(self, data: bytes) -> None:
        """Read. Once the request is complete, the client must read the answer in time."""
        self.last_read = time.monotonic()
        first = self.cycle is None
        self._bytes_read += len(data)
        if (
            first and self._bytes_read > MAX_REQUEST_BYTES
        ):  # h11 checks the limit only for requests that arrive in parts
            self.send_400_response("")
            return
        super().data_received(data)
        if first and self.cycle is not None and self._due is not None:
            self._due.cancel()
            if not self.lasts:
                self._due = self.loop.call_later(self.limits.answer, self.drop)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        for timer in (self._due, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timer of a client that does not read."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.limits.stalled, self.drop)

    def resume_writing(self) -> None:
        """Stop the timer: the client reads again."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        """Answer that this is no valid request; if an answer has begun already, close the connection."""
        begun: Any = self.cycle
        if begun is not None:
            self.drop()
            return
        body = b'{"error":"needed a request like GET / HTTP/1.1, in at most %d bytes"}' % MAX_REQUEST_BYTES
        headers = [*SECURITY_HEADERS.items(), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        for part in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()

    def shutdown(self) -> None:
        """Close after the answer that has begun."""
        with suppress(h11.LocalProtocolError):  # the client has sent garbage; the connection closes anyway
            super().shutdown()

    def drop(self) -> None:
        """Close it now. It no longer counts, though the event loop closes it a little later."""
        self.connections.discard(self)
        self.transport.abort()


class LimitedServer(Server):
    """uvicorn's server with an event for when it listens, and a stop without delay.

    It also ends TLS handshakes that take too long.
    """

    def __init__(self, config: Config, limits: ServerLimits, stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self.limits, self._stopping = limits, stopping
        self.listening = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        """Listen on the sockets."""
        await self.lifespan.startup()
        config, self._loop = self.config, asyncio.get_running_loop()
        self._stop_requested = asyncio.Event()

        def connection() -> asyncio.Protocol:
            state, more = self.server_state, self.lifespan.state
            return Connection(limits=self.limits, config=config, server_state=state, app_state=more)

        handshake = self.limits.handshake if config.ssl else None
        self.servers = [
            await self._loop.create_server(
                connection, sock=one, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=handshake
            )
            for one in sockets
        ]
        self.started = True
        self.listening.set()

    def request_stop(self) -> None:
        """Stop soon. Can be called from any thread."""
        self.should_exit = True
        with suppress(RuntimeError):  # it has stopped already
            self._loop.call_soon_threadsafe(self._stop_requested.set)

    async def main_loop(self) -> None:
        """Update the date of the headers every second until the server stops."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop_requested.wait(), 1.0)

    async def shutdown(self, sockets: Any = None) -> None:
        """Close all connections, after a short time to send what remains."""
        self._stopping()
        for server in self.servers:
            server.close()
        state = self.server_state
        for connection in [*state.connections]:
            connection.shutdown()
        until = self._loop.time() + self.limits.goodbye
        while (state.connections or state.tasks) and self._loop.time() < until:
            await asyncio.sleep(0.01)
        for connection in [*state.connections]:
            connection.transport.abort()
        for task in [*state.tasks]:
            task.cancel()
