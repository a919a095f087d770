"""The service for programs on the device: HTTP on a Unix socket, or on a loopback port, and never beyond.

One thread waits for all connections at once and reads each as its bytes come, so that a program that is silent or slow
keeps nobody waiting. It answers questions itself, from `NodeState`; predictions and requests for a new run, which may
take a while, have a few threads of their own. See `interface` for the routes.

Limits, all of which act before memory is spent: connections (who comes when all places are taken is told 503, and what
monitors the node has a reserve of places), seconds for a head and for a whole request, and bytes of large bodies and
answers over all connections. Nobody is dropped without an answer, unless it does not read it.
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
WORKERS = 4  # tasks at a time: a burst of large tables must not starve the runs of memory and time
MONITORING_RESERVE = 32  # connections kept for programs that monitor the node; others there are told to come back
MOST_CLOSING = 128  # connections that were refused and have not closed yet; the oldest is dropped for a new one
GIVES_WAY = 1.0  # seconds of silence after which a connection makes room for another when all places are taken
SMALL_BODY = 2**16  # bytes of a body that needs no reserved memory: 256 connections with it take 16 MiB
MOST_BODY_BYTES = 2 * LARGEST_BODY  # bytes of larger bodies and of replies, over all connections: two of the largest
CHUNK = 2**16  # bytes read at a time
TraceReply = Callable[[str, str, int, int, int], None]
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


@dataclass(frozen=True)
class ServiceLimits:
    """How much work and time the clients of a service get.

    Attributes
    ----------
    tasks
        Tasks at work or waiting for their turn.
    connections
        Connections whose request is read or answered, besides the reserve for monitoring.
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
    """One connection: a request that is being read, at work, or answered."""

    def __init__(self, link: socket.socket, request: Request, now: float) -> None:
        self.link, self.request = link, request
        self.since = self.heard = now
        self.began = time.time_ns()
        self.out = memoryview(b"")  # what is still to be sent
        self.at_work = False
        self.answered = False  # the answer is in `out`, or sent
        self.reserve = False  # in a place that only monitoring may use
        self.room = 0  # bytes that are kept for its body or its answer
        self.spare = 4 * LARGEST_BODY  # bytes that may still be read and thrown away after a refusal


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
        # A port is for everybody on the machine; a socket's file has permissions.
        self._replies = HttpReplies(node, shared=self.address.path is None)
        self._trace_reply = trace_reply
        self._limits = limits or ServiceLimits()
        self._clients: set[_Client] = set()
        self._done: queue.SimpleQueue[tuple[_Client, HttpReply]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._mark: tuple[int, int] | None = None

    def start(self) -> Service:
        """Listen, and return once clients can connect."""
        if self._listener is not None:
            raise RuntimeError(f"the service at {self.address} has been started already; make a new one")
        try:
            self._listener = _listening(self.address)
        except OSError as problem:
            found = _listening_elsewhere(self.address, problem)
            if found is None:
                LOG.error("%s; the node runs, but local programs get no answers until it is started again", problem)
                return self
            self.address, self._listener = found
        if self.address.path is None:
            self.address = Address(host=self.address.host, port=self._listener.getsockname()[1])
        else:
            self._mark = _mark(self.address.path)
        self._bell, self._wakened = socket.socketpair()
        self._bell.setblocking(False)
        self._wakened.setblocking(False)
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._listener, READ)
        self._ready.register(self._wakened, READ)
        self._tasks: ThreadPoolExecutor | None = None  # made for the first task: most nodes are only asked
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
        if self._tasks is not None:
            self._tasks.shutdown(cancel_futures=True)
        self._bell.close()
        if self.address.path is not None and self._mark == _mark(self.address.path):
            self.address.path.unlink(missing_ok=True)

    def __enter__(self) -> Service:
        return self.start()

    def __exit__(self, *reason: object) -> None:
        self.stop()

    # --- the one thread that waits for everything ---------------------------------------------------------------------

    def _serve(self, listener: socket.socket) -> None:
        tick = min(self._limits.silence, self._limits.request) / 4
        due = time.monotonic() + tick
        with listener, self._wakened, self._ready:
            while not self._stopping.is_set():
                for key, _ in self._ready.select(max(due - time.monotonic(), 0.0)):
                    if key.fileobj is listener:
                        self._accept(listener)
                    elif key.fileobj is self._wakened:
                        self._deliver()
                    else:
                        self._attend(key.data)
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
            except (BlockingIOError, ConnectionError):  # nobody waits any more
                return
            except OSError as error:  # out of file handles, say
                LOG.warning("cannot accept a local program: %s", error)
                if not self._drop_silent():
                    self._stopping.wait(0.1)  # give those at work time to finish
                return
            link.setblocking(False)
            request = Request(self._replies, local_socket=self.address.path is not None)
            client = _Client(link, request, time.monotonic())
            client.reserve = not self._has_place(client.since)
            self._clients.add(client)
            self._ready.register(link, READ, client)

    def _has_place(self, now: float) -> bool:
        """Whether one more connection has a place of its own; if not, make room for it in the reserve."""
        asking = [client for client in self._clients if not client.answered]
        reserve = [client for client in asking if client.reserve]
        if len(asking) - len(reserve) < self._limits.connections:
            return True
        waiting = [client for client in asking if not client.at_work and not client.reserve]
        slowest = min(waiting, key=lambda client: client.heard, default=None)
        if slowest is not None and now - slowest.heard >= GIVES_WAY:
            self._turn_away(slowest)
            return slowest.answered or slowest not in self._clients
        if len(reserve) >= MONITORING_RESERVE:
            self._turn_away(min(reserve, key=lambda client: client.since))
        closing = [client for client in self._clients if client.answered]
        if len(closing) >= MOST_CLOSING:
            self._drop(min(closing, key=lambda client: client.since))
        return False

    def _turn_away(self, client: _Client) -> None:
        """Tell a client to come back later, unless what it has sent by now can be answered."""
        self._attend(client)
        if client in self._clients and not client.answered and not client.at_work:
            self._answer(client, refusal_reply(self._busy()))

    def _busy(self) -> Refused:
        return _come_back(f"the node has {self._limits.connections} connections already; try again in a moment")

    def _attend(self, client: _Client) -> None:
        """Read or write what can be read or written now; whatever a client does, the service goes on."""
        if client not in self._clients:  # dropped a moment ago
            return
        try:
            if client.out:
                self._write(client)
            elif client.answered:
                self._throw_away(client)
            else:
                self._read(client)
        except BlockingIOError:
            return
        except OSError as error:  # it left: its affair
            LOG.debug("a local program broke off: %s", error)
            self._drop(client)
        except Exception:
            LOG.exception("a local request failed unexpectedly")
            self._drop(client)

    def _read(self, client: _Client) -> None:
        data = client.link.recv(CHUNK)
        if not data:  # left in the middle of its request
            self._drop(client)
            return
        client.heard = time.monotonic()
        request = client.request
        try:
            request.take(data)
            self._give_room(client)
        except Refused as refused:
            self._answer(client, refusal_reply(refused))
            return
        if request.whole:
            self._begin(client)
        elif request.expects:
            request.expects = False
            client.out = memoryview(CONTINUE_REPLY)
            self._write(client)

    def _give_room(self, client: _Client) -> None:
        """Keep room for the body of a request whose head is known, or refuse it before its bytes are read."""
        request = client.request
        if request.reply is None or client.room:
            return
        if client.reserve and request.path not in MONITORING:
            raise self._busy()
        if request.length > SMALL_BODY:
            taken = sum(one.room for one in self._clients)
            if taken + request.length > MOST_BODY_BYTES:
                raise _come_back(f"the node reads {taken:,} bytes of other requests already; try again in a moment")
            client.room = request.length

    def _begin(self, client: _Client) -> None:
        """Answer a whole request here, or give it to a thread of its own where that may take a while."""
        request = client.request
        assert request.reply is not None
        if request.verb == "GET":
            self._answer(client, _replied(request.reply, b""))
            return
        if sum(one.at_work for one in self._clients) >= self._limits.tasks:
            words = f"the node is at work for {self._limits.tasks} programs already; try again in a moment"
            self._answer(client, refusal_reply(_come_back(words)))
            return
        client.at_work = True
        self._ready.unregister(client.link)
        if self._tasks is None:
            from concurrent.futures import ThreadPoolExecutor

            self._tasks = ThreadPoolExecutor(WORKERS, thread_name_prefix="service-task")
        self._tasks.submit(self._task, client, request.reply, request.take_body())

    def _task(self, client: _Client, reply: Reply, body: bytes) -> None:
        self._done.put((client, _replied(reply, body)))
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full, so it will wake, or closed
            self._bell.send(b"!")

    def _deliver(self) -> None:
        with contextlib.suppress(OSError):
            self._wakened.recv(CHUNK)
        while not self._done.empty():
            client, answer = self._done.get()
            client.at_work = False
            if client in self._clients:
                self._ready.register(client.link, WRITE, client)
                self._answer(client, answer)

    def _answer(self, client: _Client, answer: HttpReply) -> None:
        client.out, client.answered = memoryview(encode_reply(answer, client.request.verb)), True
        client.request.forget()  # from now on only the answer is counted
        client.room = len(client.out)
        client.since = client.heard = time.monotonic()  # the time it takes to read an answer counts anew
        if self._trace_reply is not None:
            self._trace_reply(client.request.verb, client.request.path, answer.status, client.began, time.time_ns())
        try:
            self._write(client)
        except BlockingIOError:
            self._ready.modify(client.link, WRITE, client)
        except OSError:
            self._drop(client)

    def _write(self, client: _Client) -> None:
        client.out = client.out[client.link.send(client.out) :]
        client.heard = time.monotonic()
        if client.out:
            self._ready.modify(client.link, WRITE, client)
        elif not client.answered:  # it was told to go on
            self._ready.modify(client.link, READ, client)
        elif client.request.whole:
            self._drop(client)
        else:  # read on until it closes: otherwise one that is still writing would not hear why it was refused
            client.link.shutdown(socket.SHUT_WR)
            self._ready.modify(client.link, READ, client)

    def _throw_away(self, client: _Client) -> None:
        data = client.link.recv(CHUNK)
        client.spare -= len(data)
        client.heard = time.monotonic()
        if not data or client.spare < 0:
            self._drop(client)

    def _drop_late(self, now: float) -> None:
        for client in [*self._clients]:
            head = client.request.reply is None and not client.answered
            limit = min(self._limits.silence, self._limits.request) if head else self._limits.request
            if client.at_work or (now - client.heard < self._limits.silence and now - client.since < limit):
                continue
            if client.answered:
                self._drop(client)
            else:
                words = f"the {'head' if head else 'body'} of the request did not arrive in time"
                self._answer(client, refusal_reply(Refused(HTTPStatus.REQUEST_TIMEOUT, words)))

    def _drop_silent(self) -> bool:
        """Drop a client that was answered, or else the one that has said nothing for longest, if any may be dropped."""
        waiting = [client for client in self._clients if not client.at_work]
        if waiting:
            self._drop(min(waiting, key=lambda client: (not client.answered, client.heard)))
        return bool(waiting)

    def _drop(self, client: _Client) -> None:
        self._clients.discard(client)
        with contextlib.suppress(KeyError, ValueError):  # not registered while it is at work
            self._ready.unregister(client.link)
        client.link.close()


def _come_back(words: str) -> Refused:
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, words, (("Retry-After", "1"),))


def _replied(reply: Reply, body: bytes) -> HttpReply:
    try:
        return reply(body)
    except Refused as refused:
        return refusal_reply(refused)
    except Exception as error:
        LOG.exception("a local request failed unexpectedly")
        words = f"unexpected {type(error).__name__}; the node's log has the details"
        return refusal_reply(Refused(HTTPStatus.INTERNAL_SERVER_ERROR, words))


def _listening(address: Address) -> socket.socket:
    listener = address.new_socket()
    try:
        if address.path is not None:
            _clear(address)
        elif os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address.target())
        if address.path is not None:
            os.chmod(address.path, 0o600)  # before listen: until then nobody can connect
        listener.listen(1024)  # a program with a timeout is turned away where more wait to be accepted
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


def _listening_elsewhere(address: Address, problem: OSError) -> tuple[Address, socket.socket] | None:
    """Listen outside the folder if its disk is full or read-only: the last threshold must be served all the same.

    None if there is no other place either; the node must take part in runs all the same.
    """
    if address.path is None or problem.errno not in UNWRITABLE:
        raise problem
    for path in fallback_paths(address):
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if not is_private(path.parent):
                LOG.warning("%s is not used: it must belong to this user, with mode 0700", path.parent)
                continue
            listener = _listening(Address(path=path))
        except OSError as other:
            LOG.warning("%s", other)
            continue
        LOG.warning("%s; answering at %s instead", problem, path)
        return Address(path=path), listener
    return None


def _clear(address: Address) -> None:
    """Remove a socket that a crash left behind; refuse where somebody answers, or where it is not a socket."""
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
            pass  # it listens but is busy
    raise ValueError(f"another node answers at {address}; stop it, or give this one a folder of its own")


def _mark(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
