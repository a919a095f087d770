"""The service for programs on the device: HTTP on a Unix socket or a loopback port, never on another address.

One thread waits for all connections at once and reads each as its bytes arrive, so a silent or slow program does not
delay the others. It answers GET requests itself, from `NodeState`; POST requests (predictions, labels, new runs) may
take longer and run in a few worker threads. The routes are in `replies`.

Limits are checked before memory is allocated: the number of connections (further ones get status 503, but monitoring
has a reserve), seconds for a head and for a whole request, and bytes of large bodies and replies over all connections.
A client that exceeds a limit gets a reply that says so. Clients are dropped without one only where the process has no
file handles left.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from conformesh.files.atomic_writes import UNWRITABLE
from conformesh.mesh.http.address import Address, fallback_paths, find_address, is_private
from conformesh.mesh.http.paths import LARGEST_BODY, MONITORING
from conformesh.mesh.http.replies import HttpReplies, HttpReply, NodeInterface, Refused, Reply
from conformesh.mesh.http.request import CONTINUE_REPLY, Request, encode_reply, refusal_reply

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

LOG = logging.getLogger("conformesh.node")
MOST_TASKS = 4  # threads for POST requests: a burst of large tables must not take memory and time from the runs
MONITORING_RESERVE = 32  # further connections, for programs that monitor the node; other requests there get 503
MOST_CLOSING = 128  # connections that have their reply and are not closed yet; the oldest is dropped for a new one
# Seconds of silence after which a connection is refused in favour of a new one, when all places are taken.
IDLE_BEFORE_REFUSAL = 1.0
SMALL_BODY = 2**16  # bytes of a body that needs no reserved memory: 256 connections with it take 16 MiB
MOST_BODY_BYTES = 2 * LARGEST_BODY  # bytes of larger bodies and of replies, over all connections: two of the largest
_READ_BYTES = 2**16  # bytes per call of `recv`; a larger body takes several calls
TraceReply = Callable[[str, str, int, int, int], None]
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


@dataclass(frozen=True)
class ServiceLimits:
    """How much work and time the clients of a service get.

    Attributes
    ----------
    tasks
        POST requests that a worker has, or that wait for one.
    connections
        Connections whose request is being read or worked on, besides the reserve for monitoring.
    silence
        Seconds of silence, or for the head of a request, after which a client is dropped.
    request
        Seconds for a whole request, however busily a client sends single bytes.
    """

    tasks: int = 32
    connections: int = 256
    silence: float = 10.0
    request: float = 60.0


class _Client:
    """One connection: its request is being read, worked on, or answered."""

    def __init__(self, link: socket.socket, request: Request, now: float) -> None:
        self.link, self.request = link, request
        self.stage_start = self.last_active = now  # monotonic; a stage is reading the request or sending the reply
        self.accepted_at = time.time_ns()
        self.unsent = memoryview(b"")
        self.is_working = False  # its request is in the queue of the workers, or in one of them
        self.is_answered = False  # the reply is in `unsent`, or was sent
        self.in_reserve = False  # in a place that only monitoring may use
        self.reserved_bytes = 0  # for its body or its reply, counted towards MOST_BODY_BYTES
        # Bytes that are still read and discarded after the reply; a client that sends more is dropped. Several times
        # the largest valid body, so that a refused client can finish sending and read why.
        self.discardable_bytes = 4 * LARGEST_BODY


class Service:
    """Answers local programs until it is stopped; also a context manager.

    Parameters
    ----------
    node
        The node that answers.
    address
        A folder (its `node.sock`), a socket's path, or "127.0.0.1:port"; port 0 asks for a free one.
    trace_reply
        Called for every reply: verb, path (empty if there is no such path), status, and the times at which its
        connection was accepted and it was answered, in nanoseconds since 1970.
    limits
        How much work and time clients get.
    """

    def __init__(
        self,
        node: NodeInterface,
        address: str | os.PathLike[str],
        *,
        trace_reply: TraceReply | None = None,
        limits: ServiceLimits | None = None,
    ) -> None:
        self.address = find_address(address)
        # Everybody on the machine can connect to a port; a socket's file has permissions.
        self._replies = HttpReplies(node, shared=self.address.path is None)
        self._trace_reply = trace_reply
        self._limits = limits or ServiceLimits()
        self._clients: set[_Client] = set()
        self._finished: queue.SimpleQueue[tuple[_Client, HttpReply]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._socket_identity: tuple[int, int] | None = None

    def start(self) -> Service:
        """Listen, and return once clients can connect."""
        if self._listener is not None:
            raise RuntimeError(f"the service at {self.address} has been started already; make a new one")
        try:
            self._listener = _open_listener(self.address)
        except OSError as problem:
            fallback = _open_fallback_listener(self.address, problem)
            if fallback is None:
                LOG.error("%s; the node runs, but local programs get no answers until it is started again", problem)
                return self
            self.address, self._listener = fallback
        if self.address.path is None:
            self.address = Address(host=self.address.host, port=self._listener.getsockname()[1])
        else:
            self._socket_identity = _file_identity(self.address.path)
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._wake_receiver.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, READ)
        self._selector.register(self._wake_receiver, READ)
        self._executor: ThreadPoolExecutor | None = None  # made for the first POST request; many nodes get none
        self._thread = threading.Thread(target=self._serve, args=(self._listener,), name="service", daemon=True)
        self._thread.start()
        LOG.info("answering local programs at %s", self.address)
        return self

    def stop(self) -> None:
        """Stop listening, drop the clients, and return when every thread has ended. Stopping twice is harmless."""
        if self._thread is None or self._stopping.is_set():
            return
        self._stopping.set()
        self._wake()
        self._thread.join()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        self._wake_sender.close()
        if self.address.path is not None and self._socket_identity == _file_identity(self.address.path):
            self.address.path.unlink(missing_ok=True)

    def __enter__(self) -> Service:
        return self.start()

    def __exit__(self, *reason: object) -> None:
        self.stop()

    # --- the one thread that waits for everything ---------------------------------------------------------------------

    def _serve(self, listener: socket.socket) -> None:
        tick = min(self._limits.silence, self._limits.request) / 4
        due = time.monotonic() + tick
        with listener, self._wake_receiver, self._selector:
            while not self._stopping.is_set():
                for key, _ in self._selector.select(max(due - time.monotonic(), 0.0)):
                    if key.fileobj is listener:
                        self._accept(listener)
                    elif key.fileobj is self._wake_receiver:
                        self._send_finished()
                    else:
                        self._handle_event(key.data)
                now = time.monotonic()
                if now >= due:
                    due = now + tick
                    self._drop_late(now)
            for client in [*self._clients]:
                self._drop(client)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except (BlockingIOError, ConnectionError):  # no connection is waiting any more, or it has closed again
                return
            except OSError as error:  # for example out of file handles
                LOG.warning("cannot accept a local program: %s", error)
                if not self._drop_silent():
                    # Seconds for running tasks to end; without a pause this loop would use a whole core.
                    self._stopping.wait(0.1)
                return
            link.setblocking(False)
            request = Request(self._replies, local_socket=self.address.path is not None)
            client = _Client(link, request, time.monotonic())
            client.in_reserve = not self._has_place(client.stage_start)
            self._clients.add(client)
            self._selector.register(link, READ, client)

    def _has_place(self, now: float) -> bool:
        """Return whether a new connection gets a regular place; if not, make room for it in the reserve."""
        asking = [client for client in self._clients if not client.is_answered]
        reserve = [client for client in asking if client.in_reserve]
        if len(asking) - len(reserve) < self._limits.connections:
            return True
        waiting = [client for client in asking if not client.is_working and not client.in_reserve]
        slowest = min(waiting, key=lambda client: client.last_active, default=None)
        if slowest is not None and now - slowest.last_active >= IDLE_BEFORE_REFUSAL:
            self._turn_away(slowest)
            return slowest.is_answered or slowest not in self._clients
        if len(reserve) >= MONITORING_RESERVE:
            self._turn_away(min(reserve, key=lambda client: client.stage_start))
        closing = [client for client in self._clients if client.is_answered]
        if len(closing) >= MOST_CLOSING:
            self._drop(min(closing, key=lambda client: client.stage_start))
        return False

    def _turn_away(self, client: _Client) -> None:
        """Refuse a client with 503, unless the bytes it has sent by now are a request that can be answered."""
        self._handle_event(client)
        if client in self._clients and not client.is_answered and not client.is_working:
            self._answer(client, refusal_reply(self._too_many_connections()))

    def _too_many_connections(self) -> Refused:
        return _try_later(f"the node has {self._limits.connections} connections already; try again in a moment")

    def _handle_event(self, client: _Client) -> None:
        """Read or write what is possible now; no error of a client may end the service."""
        if client not in self._clients:  # dropped while events of the same `select` were handled
            return
        try:
            if client.unsent:
                self._write(client)
            elif client.is_answered:
                self._discard_input(client)
            else:
                self._read(client)
        except BlockingIOError:
            return
        except OSError as error:  # the client closed the connection, which it may do at any time
            LOG.debug("a local program broke off: %s", error)
            self._drop(client)
        except Exception:
            LOG.exception("a local request failed unexpectedly")
            self._drop(client)

    def _read(self, client: _Client) -> None:
        data = client.link.recv(_READ_BYTES)
        if not data:  # closed in the middle of its request
            self._drop(client)
            return
        client.last_active = time.monotonic()
        request = client.request
        try:
            request.feed(data)
            self._reserve_memory(client)
        except Refused as refused:
            self._answer(client, refusal_reply(refused))
            return
        if request.is_complete:
            self._start_reply(client)
        elif request.expects_continue:
            request.expects_continue = False
            client.unsent = memoryview(CONTINUE_REPLY)
            self._write(client)

    def _reserve_memory(self, client: _Client) -> None:
        """Reserve memory for the body of a request whose head has arrived, or refuse it before the body is read."""
        request = client.request
        if request.reply is None or client.reserved_bytes:
            return
        if client.in_reserve and request.path not in MONITORING:
            raise self._too_many_connections()
        if request.length > SMALL_BODY:
            reserved = sum(one.reserved_bytes for one in self._clients)
            if reserved + request.length > MOST_BODY_BYTES:
                raise _try_later(f"the node reads {reserved:,} bytes of other requests already; try again in a moment")
            client.reserved_bytes = request.length

    def _start_reply(self, client: _Client) -> None:
        """Answer a complete request at once if it is a GET, or else in a worker thread, as it may take a while."""
        request = client.request
        assert request.reply is not None
        if request.verb == "GET":
            self._answer(client, _make_reply(request.reply, b""))
            return
        if sum(one.is_working for one in self._clients) >= self._limits.tasks:
            words = f"the node is at work for {self._limits.tasks} programs already; try again in a moment"
            self._answer(client, refusal_reply(_try_later(words)))
            return
        client.is_working = True
        self._selector.unregister(client.link)
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(MOST_TASKS, thread_name_prefix="service-task")
        self._executor.submit(self._run_task, client, request.reply, request.pop_body())

    def _run_task(self, client: _Client, reply: Reply, body: bytes) -> None:
        self._finished.put((client, _make_reply(reply, body)))
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the buffer is full, so the thread wakes anyway, or the socket is closed
            self._wake_sender.send(b"!")

    def _send_finished(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_receiver.recv(_READ_BYTES)
        while not self._finished.empty():
            client, reply = self._finished.get()
            client.is_working = False
            if client in self._clients:
                self._selector.register(client.link, WRITE, client)
                self._answer(client, reply)

    def _answer(self, client: _Client, reply: HttpReply) -> None:
        client.unsent, client.is_answered = memoryview(encode_reply(reply, client.request.verb)), True
        client.request.free()  # from now on only the reply counts towards MOST_BODY_BYTES
        client.reserved_bytes = len(client.unsent)
        client.stage_start = client.last_active = time.monotonic()  # limits of time begin again
        if self._trace_reply is not None:
            request = client.request
            self._trace_reply(request.verb, request.path, reply.status, client.accepted_at, time.time_ns())
        try:
            self._write(client)
        except BlockingIOError:
            self._selector.modify(client.link, WRITE, client)
        except OSError:
            self._drop(client)

    def _write(self, client: _Client) -> None:
        client.unsent = client.unsent[client.link.send(client.unsent) :]
        client.last_active = time.monotonic()
        if client.unsent:
            self._selector.modify(client.link, WRITE, client)
        elif not client.is_answered:  # "100 Continue" was sent
            self._selector.modify(client.link, READ, client)
        elif client.request.is_complete:
            self._drop(client)
        else:
            # Refused before all of it arrived. Closing now would reset the connection, and a client that is still
            # writing would never read why; so keep reading until it closes.
            client.link.shutdown(socket.SHUT_WR)
            self._selector.modify(client.link, READ, client)

    def _discard_input(self, client: _Client) -> None:
        data = client.link.recv(_READ_BYTES)
        client.discardable_bytes -= len(data)
        client.last_active = time.monotonic()
        if not data or client.discardable_bytes < 0:
            self._drop(client)

    def _drop_late(self, now: float) -> None:
        for client in [*self._clients]:
            head = client.request.reply is None and not client.is_answered
            limit = min(self._limits.silence, self._limits.request) if head else self._limits.request
            in_time = now - client.last_active < self._limits.silence and now - client.stage_start < limit
            if client.is_working or in_time:
                continue
            if client.is_answered:
                self._drop(client)
            else:
                words = f"the {'head' if head else 'body'} of the request did not arrive in time"
                self._answer(client, refusal_reply(Refused(HTTPStatus.REQUEST_TIMEOUT, words)))

    def _drop_silent(self) -> bool:
        """Drop the answered client, or else the waiting one, that was silent longest; return whether there was one."""
        waiting = [client for client in self._clients if not client.is_working]
        if waiting:
            self._drop(min(waiting, key=lambda client: (not client.is_answered, client.last_active)))
        return bool(waiting)

    def _drop(self, client: _Client) -> None:
        self._clients.discard(client)
        with contextlib.suppress(KeyError, ValueError):  # not registered while a worker has its request
            self._selector.unregister(client.link)
        client.link.close()


def _try_later(words: str) -> Refused:
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, words, (("Retry-After", "1"),))


def _make_reply(reply: Reply, body: bytes) -> HttpReply:
    try:
        return reply(body)
    except Refused as refused:
        return refusal_reply(refused)
    except Exception as error:
        LOG.exception("a local request failed unexpectedly")
        words = f"unexpected {type(error).__name__}; the node's log has the details"
        return refusal_reply(Refused(HTTPStatus.INTERNAL_SERVER_ERROR, words))


def _open_listener(address: Address) -> socket.socket:
    listener = address.new_socket()
    try:
        if address.path is not None:
            _remove_stale_socket(address)
        elif os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address.target())
        if address.path is not None:
            os.chmod(address.path, 0o600)  # before listen, because nobody can connect until then
        # Connections that wait to be accepted; beyond that, programs with a timeout fail to connect.
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE and not error.filename:
            raise OSError(error.errno, f"{address} is in use; stop what listens there or choose another port") from None
        raise OSError(error.errno, f"cannot listen at {address}: {error.strerror or error}") from None
    except ValueError:
        listener.close()
        raise
    return listener


def _open_fallback_listener(address: Address, problem: OSError) -> tuple[Address, socket.socket] | None:
    """Listen outside the folder if its disk is full or read-only, so that the last threshold is still served.

    Return None if no other place works either: the node must still take part in runs.
    """
    if address.path is None or problem.errno not in UNWRITABLE:
        raise problem
    for path in fallback_paths(address):
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if not is_private(path.parent):
                LOG.warning("%s is not used: it must belong to this user, with mode 0700", path.parent)
                continue
            listener = _open_listener(Address(path=path))
        except OSError as other:
            LOG.warning("%s", other)
            continue
        LOG.warning("%s; answering at %s instead", problem, path)
        return Address(path=path), listener
    return None


def _remove_stale_socket(address: Address) -> None:
    """Remove a socket that a crash left behind; raise if a node answers there, or if the file is not a socket."""
    assert address.path is not None
    try:
        mode = os.lstat(address.path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ValueError(f"{address} must be free for the node's socket, but another file is there; move it away")
    with address.new_socket() as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.target())
        except ConnectionRefusedError:
            address.path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # a node listens there but is busy
    raise ValueError(f"another node answers at {address}; stop it, or give this one a folder of its own")


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file: `stop` must not remove the socket of another node at the same path."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
