"""What a device writes into its journal: which run it is in, and what it heard, round by round."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from conformesh.peer.frames import FrameError, pack_words, unpack_words

COUNT = struct.Struct("<I")
ENTRY = struct.Struct("<III")
ENDED = b"ended"  # the run is over, well or not: a device that starts now asks for the next


class Heading(NamedTuple):
    """Which run the records that follow belong to; `scores` is a digest of the device's own."""

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
            return cls(
                int(words["run"]), frozenset(map(int, words["lost"])), int(words["digest"]), str(words["scores"])
            )
        except (FrameError, KeyError, TypeError, ValueError):
            return None


def pack_round(heard: Mapping[int, tuple[int, bytes]]) -> bytes:
    """Return the record of a round: by row, the flags and the body of what a neighbour said."""
    parts = [COUNT.pack(len(heard))]
    for j in sorted(heard):
        flags, body = heard[j]
        parts += [ENTRY.pack(j, flags, len(body)), body]
    return b"".join(parts)


def unpack_round(record: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield row, flags and body of everything in the record of a round."""
    (count,) = COUNT.unpack_from(record)
    at = COUNT.size
    for _ in range(count):
        j, flags, length = ENTRY.unpack_from(record, at)
        at += ENTRY.size
        yield j, flags, record[at : at + length]
        at += length
