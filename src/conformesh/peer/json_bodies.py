"""The bodies of frames that contain text, as JSON: their fields, and the values that are refused.

hello      {"agreement": {name: text}, "run": number, "lost": rows}     all that must match, before any number is sent
ready      {"rows": rows}      devices known to agree with all their neighbours: data begins when these are all devices
finished   {"rows": rows}      devices known to have their result: it counts when these are all devices
failed     {"from": row, "why": text, "ends": bool}     why a device has ended, and whether everybody must end with it

Rows of devices are a hexadecimal number whose bit k stands for row k.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from conformesh.peer.frames import FrameError, pack_words, unpack_words
from conformesh.peer.rosters import FIELD, roster_number_in

# Run numbers never fall, so one that is near the end would end all later runs. A device follows a neighbour by at most
# MOST_AHEAD numbers at a time, and not more often than once in `Settings.retry` seconds (0.2): one member needs about
# 2**43 steps, 50,000 years, to use them up. A device with two or more neighbours goes at once to where all of them are.
MOST_RUNS = 2**63
MOST_AHEAD = 2**20
LONGEST = 1000  # characters of a reason
# An absolute path of POSIX or Windows: up to the closing quote or bracket, so that it may have spaces, else one word.
_START = r"(?:~?/|[A-Za-z]:[\\/]|\\\\)"
_PATH = re.compile(
    rf"\({_START}[^)\n]+\)|'{_START}[^'\n]+'|\"{_START}[^\"\n]+\"|(?<![\w/.:]){_START}[\w.~%+@-][^\s'\",;:()]*"
)
LONGEST_VALUE = 100  # characters that are shown of a text that another device has sent


class Hello(NamedTuple):
    """The greeting of a device: what it runs and with whom, before it sends any number."""

    agreement: Mapping[str, str]
    run: int
    lost: frozenset[int]

    def pack(self) -> bytes:
        """Return the body of a frame."""
        return pack_words({"agreement": dict(self.agreement), "run": self.run, "lost": _in_hex(self.lost)})

    def digest(self) -> int:
        """Return what names a run in a frame: a digest of the hello that begins it."""
        return int.from_bytes(self.context()[:8], "little")

    def context(self) -> bytes:
        """Return the whole digest, for signatures and keys: nobody can make two runs with the same one."""
        return hashlib.sha256(self.pack()).digest()

    @classmethod
    def of(cls, body: bytes, devices: int) -> Hello:
        """Read a body, which may be anything."""
        words = unpack_words(body)
        agreement, run = words.get("agreement"), words.get("run")
        if not isinstance(agreement, dict) or not all(isinstance(text, str) for text in agreement.values()):
            raise FrameError("a hello without an agreement of texts")
        if type(run) is not int or not 0 < run < MOST_RUNS:
            raise FrameError("a hello with an impossible run")
        return cls(agreement, run, parse_rows(words.get("lost"), devices))


class News(NamedTuple):
    """Why a device has ended; `ends` if the others may not go on without it either."""

    origin: int
    why: str
    ends: bool = False

    def pack(self) -> bytes:
        """Return the body of a frame."""
        return pack_words({"from": self.origin, "why": one_line_text(self.why), "ends": self.ends})

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


def agreement_differences(local: Mapping[str, str], remote: Mapping[str, str], name: str, other: str) -> str:
    """Return as a text where the agreements of this device and another one, of these names, differ."""
    differing = [field for field in sorted({*remote, *local}) if remote.get(field) != local.get(field)]
    parts = [
        f"{_shorten(field)}: {local.get(field, 'nothing')!r} at {name}, "
        f"{_shorten(remote.get(field, 'nothing'))!r} at {other}"
        for field in differing
    ]
    number = roster_number_in(local.get(FIELD))
    if FIELD in differing and number is not None and number == roster_number_in(remote.get(FIELD)):
        parts.insert(  # in front: the rest may be cut
            0, f"there are two rosters with number {number}; have the authority sign a newer one, and hand it out"
        )
    return one_line_text("; ".join(parts))


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}... ({len(text)} characters)"


def one_line_text(text: str) -> str:
    r"""Return a reason as one printable line that is not too long.

    >>> one_line_text("no\tsuch\nfile")
    'no such file'
    """
    text = text[: 10 * LONGEST]  # before it is worked on character by character: a neighbour may send 128 KiB
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split()) or "no reason was given"
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def error_text(error: Exception) -> str:
    """Return the message of an error, or nothing if it has none that can be read."""
    try:
        return str(error)
    except Exception:  # an error may be of any class
        return ""


def error_text_for_neighbours(error: Exception) -> str:
    """Return the message of an error without names of files, which neighbours need not know.

    An error of the system is named by its number, since its text may quote any path, also a relative one. In other
    texts absolute paths are replaced.

    >>> error_text_for_neighbours(OSError(28, "No space left on device", "device-07/journal.bin"))
    '[Errno 28] No space left on device'
    >>> error_text_for_neighbours(ImportError("cannot import x (/usr/lib/x.py)"))
    'cannot import x [path]'
    """
    if isinstance(error, OSError):
        return "" if error.errno is None else f"[Errno {error.errno}] {os.strerror(error.errno)}"
    return _PATH.sub("[path]", error_text(error))


def pack_rows(rows: Iterable[int]) -> bytes:
    """Return the body of a ready or finished frame."""
    return pack_words({"rows": _in_hex(rows)})


def unpack_rows(body: bytes, devices: int) -> frozenset[int]:
    """Return the rows in the body of a ready or finished frame."""
    return parse_rows(unpack_words(body).get("rows"), devices)


def _in_hex(rows: Iterable[int]) -> str:
    """Return rows as text.

    >>> _in_hex({0, 1, 4})
    '13'
    """
    return f"{sum(1 << k for k in rows):x}"


def parse_rows(text: Any, devices: int) -> frozenset[int]:
    """Return the rows in a text that may be anything.

    >>> sorted(parse_rows("13", 5))
    [0, 1, 4]
    """
    if not isinstance(text, str) or len(text) > devices // 4 + 1 or not re.fullmatch("[0-9a-f]+", text):
        raise FrameError("rows that are no hexadecimal number")
    number = int(text, 16)
    if number >> devices:
        raise FrameError("rows outside the roster")
    return frozenset(k for k in range(devices) if number >> k & 1)
