"""What a device writes into its journal: which run it is in, and what it heard, round by round."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from conformesh.peer.frames import FrameError, pack_words, unpack_words

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
