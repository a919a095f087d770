"""Files that are whole or not there, and private ones that nobody else could ever read."""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE, PUBLIC = 0o600, 0o644


def write_file(path: Path, content: str | bytes, mode: int = PUBLIC) -> None:
    """Write a file so that a reader sees the old or the new one, never half of it.

    The draft is created with its final permissions, so a private file is at no moment readable by others.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(draft, flags, mode), "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    except OSError as problem:
        draft.unlink(missing_ok=True) if draft.parent.is_dir() else None
        why = problem.strerror or type(problem).__name__
        raise ValueError(f"{path}: cannot write the file: {why}; check the folder and its permissions") from problem


def make_folder(path: Path, mode: int = 0o755) -> None:
    """Make a folder that may be there already."""
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as problem:
        raise ValueError(f"{path}: cannot make the folder: {problem.strerror}; check the path") from problem


def readable_by_others(path: Path) -> bool:
    """Whether somebody else than the owner may read or write the file; unknown, so False, where there are no modes."""
    return os.name == "posix" and bool(path.stat().st_mode & 0o077)
