"""The journal: the records from which a device goes on after a crash as if nothing had happened.

A protocol is deterministic given the answers, so the neighbours' messages of each round are enough. A record is its
length and a CRC-32, 4 bytes each, and its bytes. Reading stops at the first record that is not whole: a crash while
writing loses that record, and no frame that was sent rests on it, because a device writes before it sends. The run that
a device is in, and that it has sent FINISHED, survive a power cut too (`begin`, `sync`). Other records are
flushed to the disk only if the journal is `durable`, since that costs a disk access in every round.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from conformesh.files.atomic_writes import PRIVATE, append_bytes, cut_file, remove_drafts, write_file

RECORD = struct.Struct("<II")


class Journal(Protocol):
    """Where records go and come from."""

    def records(self) -> list[bytes]:
        """Return all whole records, oldest first."""

    def append(self, record: bytes) -> None:
        """Add a record; when this returns it survives the process."""

    def begin(self, record: bytes) -> None:
        """Forget everything but this record, which survives a power cut; at no moment is there neither."""

    def sync(self) -> None:
        """Return when all records survive a power cut."""


class MemoryJournal:
    """A journal in memory, for tests and the loopback engine: it outlives its device."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._safe = 0

    def tear(self, size: int) -> None:
        """Lose bytes at the end, as a power cut may: none that were synced."""
        del self.data[max(self._safe, len(self.data) - size) :]

    def records(self) -> list[bytes]:
        """Return all whole records, and cut off what is not."""
        found = [*whole_records(bytes(self.data))]
        del self.data[sum(RECORD.size + len(record) for record in found) :]
        return found

    def append(self, record: bytes) -> None:
        """Add a record, behind what is whole."""
        self.data += pack_record(record)

    def begin(self, record: bytes) -> None:
        """Forget everything but this record."""
        self.data[:] = pack_record(record)
        self.sync()

    def sync(self) -> None:
        """Let nothing of this be torn off."""
        self._safe = len(self.data)


class FileJournal:
    """A journal in a file that only its owner can read. With `durable` records survive a power cut too."""

    def __init__(self, path: Path, durable: bool = False) -> None:
        self.path, self.durable = path, durable
        remove_drafts(path)  # left by a crash in `begin`
        self._file = self._open()

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE)

    def records(self) -> list[bytes]:
        """Return all whole records, and cut off what is not."""
        data = self.path.read_bytes()
        found = [*whole_records(data)]
        whole = sum(RECORD.size + len(record) for record in found)
        if whole < len(data):
            cut_file(self._file, self.path.name, whole)
        return found

    def append(self, record: bytes) -> None:
        """Add a record."""
        append_bytes(self._file, self.path.name, pack_record(record), self.durable)

    def begin(self, record: bytes) -> None:
        """Replace the file by one with this record alone."""
        write_file(self.path, pack_record(record), PRIVATE)
        self.close()  # the open file is the old one, which the new one has replaced under the same name
        self._file = self._open()

    def sync(self) -> None:
        """Flush the file to the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def pack_record(record: bytes) -> bytes:
    """Return a record as it stands in a journal."""
    return RECORD.pack(len(record), zlib.crc32(record)) + record


def whole_records(data: bytes) -> Iterator[bytes]:
    """Yield records up to the first that is not whole."""
    start = 0
    while start + RECORD.size <= len(data):
        length, check = RECORD.unpack_from(data, start)
        record = data[start + RECORD.size : start + RECORD.size + length]
        if len(record) != length or zlib.crc32(record) != check:
            return
        yield record
        start += RECORD.size + length
