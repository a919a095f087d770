"""The bodies of frames that hold words, as JSON: what they may say, and what is refused.

hello      {"agreement": {name: text}, "run": number, "lost": rows, "floor": number}     all that must match, before any
           number is sent, and which rosters are out of use: all before the floor, which is left out where it is 0
ready      {"rows": rows, "floor": number}     who is known to agree with all its neighbours: data begins when everybody
           does; the floor as in a hello
finished   {"rows": rows}      who is known to have its result: it counts when everybody does
failed     {"from": row, "why": text, "ends": bool}     why a device has ended, and whether everybody must end with it

Rows of devices are a hexadecimal number whose bit k stands for row k.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from conformesh.peer.frames import FrameError, pack_words, unpack_words
from conformesh.peer.rosters import FIELD, number_in

MOST_RUNS = 2**48
LONGEST = 1000  # characters of a reason


class Hello(NamedTuple):
    """What a device says of itself before it sends any number."""

    agreement: Mapping[str, str]
    run: int
    lost: frozenset[int]
    floor: int = 0

    def pack(self) -> bytes:
        """Return the body of a frame."""
        words = {"agreement": dict(self.agreement), "run": self.run, "lost": _in_hex(self.lost)}
        return pack_words(words | _said_floor(self.floor))

    def digest(self) -> int:
        """Return what names a run in a frame: a digest of the hello that begins it, whatever floor that knows of."""
        return int.from_bytes(self.context()[:8], "little")

    def context(self) -> bytes:
        """Return the whole digest, for what must not be the same in two runs by chance or by intent."""
        return hashlib.sha256(self._replace(floor=0).pack()).digest()

    @classmethod
    def of(cls, body: bytes, devices: int) -> Hello:
        """Read a body, which may be anything."""
        words = unpack_words(body)
        agreement, run = words.get("agreement"), words.get("run")
        if not isinstance(agreement, dict) or not all(isinstance(text, str) for text in agreement.values()):
            raise FrameError("a hello without an agreement of texts")
        if type(run) is not int or not 0 < run < MOST_RUNS:
            raise FrameError("a hello with an impossible run")
        return cls(agreement, run, rows_in(words.get("lost"), devices), _floor_in(words))


class News(NamedTuple):
    """Why a device has ended, in its own words; `ends` if nobody may go on without it either."""

    origin: int
    why: str
    ends: bool = False

    def pack(self) -> bytes:
        """Return the body of a frame."""
        return pack_words({"from": self.origin, "why": in_a_line(self.why), "ends": self.ends})

    @classmethod
    def of(cls, body: bytes, devices: int) -> News:
        """Read a body, which may be anything; the reason ends in logs and must not break their lines."""
        words = unpack_words(body)
        origin, why, ends = words.get("from"), words.get("why"), words.get("ends")
        if type(origin) is not int or not 0 <= origin < devices:
            raise FrameError("a failure of a device outside the roster")
        if not isinstance(why, str) or not 0 < len(why) <= LONGEST or not why.isprintable():
            raise FrameError("a failure without a reason in words")
        if not isinstance(ends, bool):
            raise FrameError("a failure that does not say for whom")
        return cls(origin, why, ends)


def differences(mine: Mapping[str, str], theirs: Mapping[str, str], me: str, other: str) -> str:
    """Return in words what two devices, of these names, do not agree on."""
    differing = [name for name in sorted({*theirs, *mine}) if theirs.get(name) != mine.get(name)]
    found = [
        f"{name}: {mine.get(name, 'nothing')!r} at {me}, {theirs.get(name, 'nothing')!r} at {other}"
        for name in differing
    ]
    number = number_in(mine.get(FIELD))
    if FIELD in differing and number is not None and number == number_in(theirs.get(FIELD)):
        found.append(
            f"there are two rosters with number {number}; have the authority sign a newer one, and hand it out"
        )
    return "; ".join(found)


def in_a_line(text: str) -> str:
    r"""Return a reason as one printable line that is not too long.

    >>> in_a_line("no\tsuch\nfile")
    'no such file'
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split()) or "no reason was given"
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def pack_rows(rows: Iterable[int], floor: int = 0) -> bytes:
    """Return the body of a ready or finished frame."""
    return pack_words({"rows": _in_hex(rows)} | _said_floor(floor))


def unpack_rows(body: bytes, devices: int) -> frozenset[int]:
    """Return the rows in the body of a ready or finished frame."""
    return rows_in(unpack_words(body).get("rows"), devices)


def floor_in(body: bytes) -> int:
    """Return the floor in the body of a ready frame."""
    return _floor_in(unpack_words(body))


def _said_floor(floor: int) -> dict[str, Any]:
    return {"floor": floor} if floor else {}


def _floor_in(words: Mapping[str, Any]) -> int:
    floor = words.get("floor", 0)
    if type(floor) is not int or not 0 <= floor < MOST_RUNS:
        raise FrameError("a floor that is no number of a roster")
    return floor


def _in_hex(rows: Iterable[int]) -> str:
    """Return rows as text.

    >>> _in_hex({0, 1, 4})
    '13'
    """
    return f"{sum(1 << k for k in rows):x}"


def rows_in(text: Any, devices: int) -> frozenset[int]:
    """Return the rows in a text that may be anything.

    >>> sorted(rows_in("13", 5))
    [0, 1, 4]
    """
    if not isinstance(text, str) or len(text) > devices // 4 + 1 or not re.fullmatch("[0-9a-f]+", text):
        raise FrameError("rows that are no hexadecimal number")
    number = int(text, 16)
    if number >> devices:
        raise FrameError("rows outside the roster")
    return frozenset(k for k in range(devices) if number >> k & 1)
