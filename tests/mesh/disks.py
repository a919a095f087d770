"""Disks that take nothing: a fault that is put between this program and the system, in one place."""

import errno
import os
import socket
from contextlib import contextmanager
from pathlib import Path

from conformesh.mesh.http import server


@contextmanager
def unwritable(folder, code):
    """Make everything below a folder fail as a full (ENOSPC) or read-only (EROFS) disk does, in this process.

    All that the program writes goes through `os.open` and `os.write`, or is a socket or a link to be removed.
    """
    folder, handles = Path(folder).resolve(), set()
    real_open, real_write, real_unlink, real_listening = os.open, os.write, os.unlink, server._listening
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
        return real_listening(address)

    os.open, os.write, os.unlink, server._listening = opened, written, removed, listening
    try:
        yield
    finally:
        os.open, os.write, os.unlink, server._listening = real_open, real_write, real_unlink, real_listening


def free_port():
    """A port of the loopback interface that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]
