"""Atomic, durable writes: after a crash or a power cut a file has its old content or its new one, never a part.

Everything that a node or an authority must find again after a crash is written by a function of this module. Private
files are created with their final permissions, so they are never readable by other users. Each step is a failpoint: a
place where a test kills the process, to show that the next process recovers.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import NoReturn

PRIVATE, PUBLIC = 0o600, 0o644  # permissions: the owner alone, or everybody to read
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # errors of a disk that is full or read-only
FAILPOINT = "CONFORMESH_FAILPOINT"  # "FILE/STEP:COUNT" ends the process there; see `failpoint`
KILLED = 137  # exit code at a failpoint: 128 + 9, as a shell reports a process killed by SIGKILL


def kill_at_failpoint(text: str) -> Callable[[str], None]:
    """Return a function for `on_failpoint` that ends this process, for ``journal.bin/torn:3`` at the third visit."""
    wanted, _, count = text.rpartition(":")
    if not wanted or not count.isdecimal() or not int(count):
        raise ValueError(f"{FAILPOINT} must be FILE/STEP:COUNT, for example journal.bin/torn:3, got {text!r}")
    left = int(count)

    def visit(name: str) -> None:
        nonlocal left
        left -= name == wanted
        if name == wanted and left == 0:
            _die(name)

    return visit


def _die(name: str) -> NoReturn:
    os.write(2, f"killed at failpoint {name}, as {FAILPOINT} says\n".encode())
    os._exit(KILLED)  # no handler, no buffer and no other thread gets a chance, as with SIGKILL


# Called at every failpoint. None unless the variable is set when the process starts, or a test puts something here.
on_failpoint: Callable[[str], None] | None = (
    kill_at_failpoint(os.environ[FAILPOINT]) if os.environ.get(FAILPOINT) else None
)


def failpoint(name: str) -> None:
    """Mark a place where a crash must do no harm; does nothing outside of tests."""
    if on_failpoint is not None:
        on_failpoint(name)


def write_file(
    path: str | os.PathLike[str],
    content: str | bytes | memoryview,
    mode: int = PUBLIC,
    owner: tuple[int, int] | None = None,
) -> None:
    """Write a file so that a reader, also after a crash or a power cut, finds the old one or the new one, whole.

    The draft is created with its final permissions, so a private file is at no moment readable by others, and it is on
    the disk before it gets its name: otherwise a power cut may leave the new name with no content. A pipe or a device
    is written to as it is.

    With `owner` (user and group numbers) the draft gets this owner and exactly `mode`, whatever the umask is, before it
    gets its name, and a pipe or a device is replaced as well. No link is followed: the folder may belong to somebody
    else.
    """
    target = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    if not target.name:
        raise ValueError(f"{str(path)!r} cannot be the name of a file")
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if owner is None and target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)  # a pipe or a device: a new file in its place would be one no longer
            return
        # O_EXCL and O_NOFOLLOW: nobody can have put a link or a file of theirs in the draft's place.
        draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        failpoint(f"{target.name}/begin")
        handle = os.open(draft, flags, mode if owner is None else PRIVATE)  # private until it has its owner
        try:
            if owner is not None:
                _set_owner(handle, owner, mode)
            _write_all(handle, data, f"{target.name}/torn")
            failpoint(f"{target.name}/written")
            os.fsync(handle)  # before the rename, or a power cut may leave the new name without content
        finally:
            os.close(handle)
        failpoint(f"{target.name}/synced")
        draft.replace(target)
        failpoint(f"{target.name}/renamed")
        _flush_folder(target.parent)  # a name is part of its folder, which is flushed on its own
        failpoint(f"{target.name}/done")
    except OSError as problem:
        with suppress(OSError):
            draft.unlink()
        why = problem.strerror or type(problem).__name__
        raise OSError(
            problem.errno, f"{target}: cannot write the file: {why}; check the folder and its permissions"
        ) from problem


def _set_owner(handle: int, owner: tuple[int, int], mode: int) -> None:
    """Give an open file its owner, group and permissions; only the group where this user may give nothing away."""
    if os.name != "posix":
        return
    try:
        os.fchown(handle, *owner)
    except PermissionError:
        if os.geteuid() == 0:  # root may give files away, so something else is wrong
            raise
        try:
            os.fchown(handle, -1, owner[1])
        except PermissionError:
            mode &= 0o700  # the group that could read the old file is not the group of the new one
    os.fchmod(handle, mode)


def append_bytes(handle: int, name: str, data: bytes, durable: bool = False) -> None:
    """Add bytes to the end of an open file called `name`; with `durable` they survive a power cut when this returns."""
    failpoint(f"{name}/before append")
    _write_all(handle, data, f"{name}/torn append")
    failpoint(f"{name}/appended")
    if durable:
        os.fsync(handle)
        failpoint(f"{name}/append synced")


def cut_file(handle: int, name: str, size: int) -> None:
    """Cut off the end of an open file called `name`, as half a record that a crash has left."""
    failpoint(f"{name}/before cut")
    os.ftruncate(handle, size)
    failpoint(f"{name}/cut")


def move_path(source: Path, target: Path) -> None:
    """Rename a file or a folder, so that the new name survives a power cut."""
    failpoint(f"{source.name}/before move")
    try:
        source.replace(target)
        failpoint(f"{source.name}/moved")
        for folder in {source.parent, target.parent}:
            _flush_folder(folder)
    except OSError as problem:
        raise OSError(problem.errno, f"{source}: cannot move it to {target}: {problem.strerror}") from problem
    failpoint(f"{source.name}/move done")


def remove_drafts(target: Path, min_age: float = 0.0) -> None:
    """Delete drafts that crashes of `write_file` have left.

    Drafts are never read, but they may hold keys and secrets that should be gone. If another process may be writing the
    file, give a `min_age` in seconds: younger drafts stay.
    """
    for draft in target.parent.glob(f".{escape(target.name)}.*.tmp"):
        with suppress(OSError):
            if min_age <= 0 or time.time() - draft.lstat().st_mtime >= min_age:
                draft.unlink()


def _write_all(handle: int, data: bytes | memoryview, torn: str) -> None:
    rest = memoryview(data).cast("B")
    if on_failpoint is not None:  # in tests two halves, with a failpoint between them
        half = os.write(handle, rest[: len(rest) // 2])
        failpoint(torn)
        rest = rest[half:]
    while rest:  # the system may write less than it is given
        rest = rest[os.write(handle, rest) :]


def _flush_folder(folder: Path) -> None:
    """Make a new name survive a power cut, where folders can be flushed."""
    if os.name != "posix":  # Windows cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path, mode: int = 0o755) -> None:
    """Make a folder that may be there already."""
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as problem:
        raise OSError(problem.errno, f"{path}: cannot make the folder: {problem.strerror}; check the path") from problem


def readable_by_others(path: Path) -> bool:
    """Whether other users may read or write the file; False on systems without POSIX permissions."""
    return os.name == "posix" and bool(path.stat().st_mode & 0o077)
