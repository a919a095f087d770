"""What a device writes into its journal: which run it is in, and what it heard, round by round."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from conformesh.peer.frames import FrameError, pack_words, unpack_words
from conformesh.peer.journal import Journal

COUNT = struct.Struct("<I")
ENTRY = struct.Struct("<IIII")
ENDED = b"ended"  # the run is over and every device has its result
# Nothing is left to report: after ENDED, because whoever asked for the run has its result; instead of it, because the
# run failed or was left. If the last record is ENDED, a process that calibrates once was killed between the end of its
# run and its own end, and the next process reports that result instead of asking for another run.
REPORTED = b"reported"


class Heading(NamedTuple):
    """Which run the records that follow belong to; `scores` is a digest of the device's own, empty if it is private."""

    run: int
    lost: frozenset[int]
    digest: int
    scores: str

    def pack(self) -> bytes:
        """Return the first record of a run."""
        return pack_words({"run": self.run, "lost": sorted(self.lost), "digest": self.digest, "scores": self.scores})

    @classmethod
    def of(cls, record: bytes) -> Heading | None:
        """Read a first record; None if it is none."""
        try:
            words: dict[str, Any] = unpack_words(record)
            lost = frozenset(map(int, words["lost"]))
            return cls(int(words["run"]), lost, int(words["digest"]), str(words["scores"]))
        except (FrameError, KeyError, TypeError, ValueError):
            return None


class SentMessages(NamedTuple):
    """What a neighbour said in a round, as far as it matters later: see `Frame`."""

    flags: int
    body: bytes
    quiet: int = 0


def pack_round(heard: Mapping[int, SentMessages]) -> bytes:
    """Return the record of a round: by row, what neighbours said in it; who was quiet since an earlier one is not."""
    parts = [COUNT.pack(len(heard))]
    for j in sorted(heard):
        flags, body, quiet = heard[j]
        parts += [ENTRY.pack(j, flags, quiet, len(body)), body]
    return b"".join(parts)


def unpack_round(record: bytes) -> Iterator[tuple[int, SentMessages]]:
    """Yield row and what it said, of all in the record of a round."""
    (count,) = COUNT.unpack_from(record)
    at = COUNT.size
    for _ in range(count):
        j, flags, quiet, length = ENTRY.unpack_from(record, at)
        at += ENTRY.size
        yield j, SentMessages(flags, record[at : at + length], quiet)
        at += length


class RunJournal:
    """The journal of a device in rounds: it writes every record before the device sends anything that rests on it.

    Parameters
    ----------
    journal
        Where the records go.
    log
        Gets a line where a record that can be missed cannot be written.
    private
        Whether messages are left out: a private run is never replayed.
    """

    def __init__(self, journal: Journal, log: Callable[[str], None], private: bool) -> None:
        self._journal, self._log, self._private = journal, log, private

    def records(self) -> list[bytes]:
        """Return all records."""
        return self._journal.records()

    def begin(self, heading: Heading) -> None:
        """Begin a run. Nothing may be sent in it before."""
        self._journal.begin(heading.pack())

    def write_round(self, messages: Mapping[int, SentMessages]) -> None:
        """Write what the neighbours have sent in a round. Nothing that follows from it may be sent before."""
        self._journal.append(pack_round({} if self._private else messages))

    def sync(self) -> None:
        """Return when the records survive a power cut: for each number of a run a device says once that it is done."""
        self._journal.sync()

    def fail(self, heading: Heading | None) -> None:
        """Write that a run has ended without a result; with a heading where it had not begun."""
        if heading is not None:
            self._try(self._journal.begin, heading.pack())
        self.end(REPORTED)

    def end(self, last: bytes) -> None:
        """Write that the run is over: ENDED or REPORTED."""
        self._try(self._journal.append, last)

    def _try(self, write: Callable[[bytes], None], record: bytes) -> None:
        """Write what the next start should know but can do without."""
        try:
            write(record)
        except OSError as problem:
            self._log(f"the journal cannot be written: {problem}")
