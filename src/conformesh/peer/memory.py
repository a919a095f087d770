"""The records in a device's journal: which run it is in, and the messages that it received, round by round."""

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
    """The run that the records after it belong to; `scores` is a digest of the local scores, empty if it is private."""

    run: int
    lost: frozenset[int]
    digest: int
    scores: str

    def pack(self) -> bytes:
        """Return the first record of a run."""
        return pack_words({"run": self.run, "lost": sorted(self.lost), "digest": self.digest, "scores": self.scores})

    @classmethod
    def of(cls, record: bytes) -> Heading | None:
        """Read a first record; None if it cannot be read."""
        try:
            words: dict[str, Any] = unpack_words(record)
            lost = frozenset(map(int, words["lost"]))
            return cls(int(words["run"]), lost, int(words["digest"]), str(words["scores"]))
        except (FrameError, KeyError, TypeError, ValueError):
            return None


class SentMessages(NamedTuple):
    """The parts of a neighbour's frame of a round that a replay needs: see `Frame`."""

    flags: int
    body: bytes
    quiet: int = 0


def pack_round(messages: Mapping[int, SentMessages]) -> bytes:
    """Return the record of a round: the neighbours' messages by row, without neighbours in announced quiet rounds."""
    parts = [COUNT.pack(len(messages))]
    for j in sorted(messages):
        flags, body, quiet = messages[j]
        parts += [ENTRY.pack(j, flags, quiet, len(body)), body]
    return b"".join(parts)


def unpack_round(record: bytes) -> Iterator[tuple[int, SentMessages]]:
    """Yield row and message of each neighbour in the record of a round."""
    (count,) = COUNT.unpack_from(record)
    at = COUNT.size
    for _ in range(count):
        j, flags, quiet, length = ENTRY.unpack_from(record, at)
        at += ENTRY.size
        yield j, SentMessages(flags, record[at : at + length], quiet)
        at += length


class RunJournal:
    """The journal of a device in rounds: it writes every record before the device sends anything that rests on it.

    A device that sent first and crashed before writing would start without the record, might receive something else
    instead, and would contradict what its neighbours already have.

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
        # A private run is never replayed, so its messages need not be on a disk. Its empty record counts the round.
        self._journal.append(pack_round({} if self._private else messages))

    def sync(self) -> None:
        """Return when the records survive a power cut.

        Needed once in a run, before FINISHED: a device must send that only once for each number of a run.
        """
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
        """Write a record that the next start can do without: it would only replay a run that is over."""
        try:
            write(record)
        except OSError as problem:
            self._log(f"the journal cannot be written: {problem}")
