"""Whether a device's folder can be written: noticed before a run needs it, and while nothing is calibrated.

A full or read-only disk otherwise shows only when a journal is written, which may be days later.
"""

from __future__ import annotations

import os
from pathlib import Path

from conformesh.files.atomic_writes import PRIVATE

PROBE_FILE = ".disk-probe.tmp"
PROBE_INTERVAL = 3.0  # seconds between two probes, within which a full disk is noticed
PROBE_SIZE = 4096  # bytes: one block, and a page where the disk is memory


class DiskWatch:
    """Tries now and then whether the folder of a device takes a small file.

    Attributes
    ----------
    problem
        Why it does not, in words; empty while it does.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._due = 0.0
        self.problem = ""

    def look(self, now: float) -> None:
        """Write a file and delete it, if the last time is long enough ago."""
        if now < self._due:
            return
        self._due = now + PROBE_INTERVAL
        try:
            write_disk_probe(self._folder / PROBE_FILE)
            self.problem = ""
        except OSError as error:
            self.fail(error)

    def fail(self, error: OSError) -> None:
        """Note that something could not be written; the next probe may find that it can."""
        why = os.strerror(error.errno) if error.errno else str(error)
        self.problem = f"{self._folder} cannot be written: {why}; free space or make it writable"


def write_disk_probe(path: Path) -> None:
    """Write a small file and delete it again.

    It is not flushed: file systems reserve the space when a file is written, and a file that is deleted at once never
    reaches the disk, so that probing wears nothing out.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), PRIVATE)
    try:
        try:
            if os.write(handle, bytes(PROBE_SIZE)) != PROBE_SIZE:
                raise OSError("only a part of a small file fits: the disk is nearly full")
        finally:
            os.close(handle)  # which fails on a file server whose disk is full
    finally:
        path.unlink()
