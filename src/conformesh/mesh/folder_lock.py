"""A lock on a folder, so that only one process uses it at a time.

A node locks its device's folder, because two nodes would write to one journal and send under one name; a command that
changes a mesh locks the folder of the authority. On a full or read-only disk a node must still be able to start and
serve its last threshold: the lock needs no disk space, only an existing file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conformesh.files.atomic_writes import PRIVATE, UNWRITABLE

LOCK_FILE = "node.lock"
RUNS_ALREADY = "runs this device already; stop it first, or give this one another folder"


@contextmanager
def hold_folder(folder: Path, file: str = LOCK_FILE, busy: str = RUNS_ALREADY, needed: bool = False) -> Iterator[None]:
    """Hold the lock of a folder inside the context; a ValueError says which process holds it and is `busy` with what.

    The operating system releases the lock when the process ends, so a crash leaves a file but no lock. Outside POSIX
    there are no such locks, and every process may enter. On a disk that is full or read-only and has no lock file, a
    process continues without a lock, unless it is `needed`.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    path = folder / file
    try:
        handle = _open_lock_file(path, needed)
    except OSError as problem:
        words = f"{path}: cannot be written: {problem.strerror}; this needs a folder that it may write to"
        raise OSError(problem.errno, words) from None
    if handle is None:
        yield
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            other = os.read(handle, 20).decode("ascii", "replace").strip() or "of unknown number"
            raise ValueError(f"{folder}: process {other} {busy}") from None
        with suppress(OSError):  # the number is only for the message above
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)


def _open_lock_file(path: Path, needed: bool) -> int | None:
    """Return the open lock file; None on a disk that is full or read-only and has none, unless it is needed."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    except OSError as problem:
        if problem.errno not in UNWRITABLE or (needed and not path.exists()):
            raise
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # which can be locked as well
    except FileNotFoundError:
        if needed:
            raise
        return None
