"""Faults of a machine, for the tests: disks that take nothing, and wires that can be cut."""

import contextlib
import errno
import os
import selectors
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

from conformesh.mesh.http import server


@contextmanager
def unwritable(folder, code):
    """Make everything below a folder fail as a full (ENOSPC) or read-only (EROFS) disk does, in this process.

    All that the program writes goes through `os.open` and `os.write`, or is a socket or a link to be removed.
    """
    folder, handles = Path(folder).resolve(), set()
    real_open, real_write, real_unlink, real_open_listener = os.open, os.write, os.unlink, server._open_listener
    read_only = code == errno.EROFS

    def inside(path):
        return isinstance(path, str | os.PathLike) and Path(os.path.abspath(path)).is_relative_to(folder)

    def opened(path, flags, *more, **named):
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and inside(path) and (read_only or not os.path.exists(path)):
            raise OSError(code, os.strerror(code), str(path))
        handle = real_open(path, flags, *more, **named)
        (handles.add if writes and inside(path) else handles.discard)(handle)
        return handle

    def written(handle, data):
        if handle in handles:
            raise OSError(code, os.strerror(code))
        return real_write(handle, data)

    def removed(path, *more, **named):
        if read_only and inside(path):
            raise OSError(code, os.strerror(code), str(path))
        real_unlink(path, *more, **named)

    def listening(address):
        if address.path is not None and inside(address.path):
            raise OSError(code, f"cannot listen at {address}: {os.strerror(code)}")
        return real_open_listener(address)

    os.open, os.write, os.unlink, server._open_listener = opened, written, removed, listening
    try:
        yield
    finally:
        os.open, os.write, os.unlink, server._open_listener = real_open, real_write, real_unlink, real_open_listener


def free_port():
    """A port of the loopback interface that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


class Wires:
    """Carries TCP connections to the ports behind it; a thread moves all bytes, until the wires are cut."""

    def __init__(self):
        self.cut = False
        self._over = threading.Event()
        self._ready = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def add(self, port, behind):
        """Listen at a port, and connect whoever comes to the port behind it."""
        listener = socket.create_server(("127.0.0.1", port))
        listener.setblocking(False)
        self._ready.register(listener, selectors.EVENT_READ, behind)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *reason):
        self._over.set()
        self._thread.join()
        for key in [*self._ready.get_map().values()]:
            key.fileobj.close()
        self._ready.close()

    def _carry(self):
        while not self._over.is_set():
            if self.cut:
                for key in [*self._ready.get_map().values()]:
                    if isinstance(key.data, socket.socket):
                        self._end(key.fileobj)
            for key, _ in self._ready.select(0.05):
                if isinstance(key.data, socket.socket):
                    self._move(key.fileobj, key.data)
                else:
                    self._accept(key.fileobj, key.data)

    def _accept(self, listener, behind):
        near, _ = listener.accept()
        try:
            if self.cut:
                raise OSError("cut")
            far = socket.create_connection(("127.0.0.1", behind), timeout=1.0)
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.settimeout(5.0)  # a node that is stopped reads nothing: its buffers fill, and its wire ends
            self._ready.register(one, selectors.EVENT_READ, other)

    def _move(self, one, other):
        if one.fileno() < 0:
            return
        try:
            data = one.recv(2**16)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        self._end(one)

    def _end(self, one):
        key = self._ready.get_map().get(one.fileno()) if one.fileno() >= 0 else None
        for end in () if key is None else (one, key.data):
            with contextlib.suppress(KeyError, ValueError):
                self._ready.unregister(end)
            end.close()
