"""The service for programs on the device: HTTP on a Unix socket, or on a loopback port, and never beyond.

GET /threshold, /certificate, /calibration, /health, /status, /metrics; POST /predict, /recalibrate. See `answers`.
One thread accepts, one thread serves each client, at most 32 of them; the engine only shares `NodeState` with them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from conformesh.mesh.http.address import Address, find
from conformesh.mesh.http.handler import PATIENCE, WHOLE_REQUEST, Handler, attend, busy
from conformesh.mesh.http.routes import Answers
from conformesh.mesh.node.state import NodeState

LOG = logging.getLogger("conformesh.node")
PLACES = 32
WAIT_FOR_A_PLACE = 1.0  # seconds until a client is told to come back


class Service:
    """Answers local programs until it is stopped; also a context manager.

    Parameters
    ----------
    state
        What to tell them.
    address
        A folder (its `node.sock`), a socket's path, or "127.0.0.1:port"; port 0 asks for a free one.
    recalibrate
        Asks the engine for a new run and returns at once; without it POST /recalibrate answers 501.
    places
        How many clients are served at a time.
    patience, whole
        Seconds of silence, and for a whole request, after which a client is dropped.
    """

    def __init__(
        self,
        state: NodeState,
        address: str | os.PathLike[str],
        *,
        recalibrate: Callable[[], object] | None = None,
        places: int = PLACES,
        patience: float = PATIENCE,
        whole: float = WHOLE_REQUEST,
    ) -> None:
        self.address = find(address)
        self._answers = Answers(state, recalibrate)
        self._patience, self._whole = patience, whole
        self._count, self._places = places, threading.BoundedSemaphore(places)
        self._open: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._mark: tuple[int, int] | None = None

    def start(self) -> Service:
        """Listen, and return once clients can connect."""
        if self._listener is not None:
            raise RuntimeError(f"the service at {self.address} has been started already; make a new one")
        self._listener = _listening(self.address)
        if self.address.path is None:
            self.address = Address(host=self.address.host, port=self._listener.getsockname()[1])
        else:
            self._mark = _mark(self.address.path)
        self._wake, wakened = socket.socketpair()
        self._accepting = threading.Thread(
            target=self._accept, args=(self._listener, wakened), name="service", daemon=True
        )
        self._accepting.start()
        LOG.info("answering local programs at %s", self.address)
        return self

    def stop(self) -> None:
        """Stop listening, drop the clients, and return when every thread has ended. Stopping twice is harmless."""
        if self._accepting is None or self._stopping.is_set():
            return
        self._stopping.set()
        self._wake.close()  # which the selector notices at once
        self._drop_clients()  # before the join: the accepting thread may be waiting for a place
        self._accepting.join()
        for thread in self._drop_clients():
            thread.join(timeout=5.0)
        if self.address.path is not None and self._mark == _mark(self.address.path):
            self.address.path.unlink(missing_ok=True)

    def _drop_clients(self) -> list[threading.Thread]:
        with self._lock:
            for connection in self._open.values():
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            return [*self._open]

    def __enter__(self) -> Service:
        return self.start()

    def __exit__(self, *reason: object) -> None:
        self.stop()

    def _accept(self, listener: socket.socket, wakened: socket.socket) -> None:
        with listener, wakened, selectors.DefaultSelector() as ready:
            ready.register(listener, selectors.EVENT_READ)
            ready.register(wakened, selectors.EVENT_READ)
            while True:
                ready.select()
                if self._stopping.is_set():
                    return
                try:
                    connection, _ = listener.accept()
                except (BlockingIOError, ConnectionError):  # the client has gone again
                    continue
                except OSError as error:  # out of file handles, say: give the others time to finish
                    LOG.warning("cannot accept a local program: %s", error)
                    self._stopping.wait(0.1)
                    continue
                self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        if not self._places.acquire(timeout=WAIT_FOR_A_PLACE):
            with contextlib.suppress(OSError), connection:
                connection.setblocking(False)
                connection.send(busy(self._count))
            return
        thread = threading.Thread(target=self._serve, args=(connection,), name="service-client", daemon=True)
        with self._lock:
            self._open[thread] = connection
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            LOG.warning("cannot serve a local program: %s", error)
            self._leave(thread)
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        def handle(accepted: socket.socket) -> None:
            local = self.address.path is not None
            Handler(accepted, self._answers, local_socket=local, patience=self._patience, whole=self._whole)

        try:
            attend(connection, handle)
        finally:
            self._leave(threading.current_thread())

    def _leave(self, thread: threading.Thread) -> None:
        with self._lock:
            self._open.pop(thread, None)
        self._places.release()


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
        listener.listen(128)
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
