"""Files that are whole or not there, that outlast a power cut, and private ones that nobody else could ever read."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

PRIVATE, PUBLIC = 0o600, 0o644
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # errors of a disk that is full or read-only


def write_file(path: str | os.PathLike[str], content: str | bytes | memoryview, mode: int = PUBLIC) -> None:
    """Write a file so that a reader, also after a crash or a power cut, finds the old one or the new one, whole.

    The draft is created with its final permissions, so a private file is at no moment readable by others, and it is on
    the disk before it gets its name: otherwise a power cut may leave the new name with no content. A pipe or a device
    is written to as it is.
    """
    target = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    if not target.name:
        raise ValueError(f"{str(path)!r} cannot be the name of a file")
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)  # a pipe or a device: a new file in its place would be one no longer
            return
        draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(draft, flags, mode), "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(target)
        _flush_folder(target.parent)
    except OSError as problem:
        with suppress(OSError):
            draft.unlink()
        why = problem.strerror or type(problem).__name__
        raise OSError(
            problem.errno, f"{target}: cannot write the file: {why}; check the folder and its permissions"
        ) from problem


def _flush_folder(folder: Path) -> None:
    """Make a new name survive a power cut, where folders can be flushed."""
    if os.name != "posix":
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
    """Whether somebody else than the owner may read or write the file; unknown, so False, where there are no modes."""
    return os.name == "posix" and bool(path.stat().st_mode & 0o077)
