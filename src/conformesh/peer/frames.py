"""Frames: what travels between two devices, as bytes. Small, versioned, checked, and never code.

All numbers are little-endian. A frame travels as a whole message, so it need not say how long it is::

    bytes    field
    1        0xC0 + version, 5. A hello begins with b"cfmh" and the version instead, as it always has: then devices of
             every version can tell which of them is the older one
    1        kind in the 3 low bits: 1 hello, 2 data, 3 ready, 4 finished, 5 failed, 6 entries, 7 roster; flags in the
             others: 8 the sender asks for the receiver's frame of this round (WANT), 16 no message in this round
             (SILENT), 32 nor in the next ones (QUIET)
    8        run: a digest of all that must match, of the run's number and of the lost devices
    1 to 5   sender: its row in the roster, 7 bits a byte, the lowest first; all bytes but the last have the high bit
    1 to 5   round, likewise
    1 to 3   with QUIET only, likewise: for how many rounds after this one the sender says nothing, and sends no frame
    ...      body
    4        CRC-32 of all before

A data body begins with the question in one byte: 1 sum, 2 max, 3 min, 4 each, 5 tell. A silent device sends nothing
more. The bytes of a tell follow unchanged. Everything else is one array: its type in one byte, a check of its shape in
two (the low half of the CRC-32 of its dimensions, 4 bytes each), and the numbers in the type that the protocol sends:
integers stay integers. A receiver sends an array of the same shape in the same round, so it knows the shape, and the
check finds a neighbour that expects another one. The other bodies are JSON (`json_bodies`). TLS protects frames in
transit; the CRC finds what a disk or a bug does to them.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.protocols.messages import MESSAGE_KINDS as KINDS_OF_MESSAGES
from conformesh.protocols.messages import WIRE_TYPES

MAGIC = b"cfmh"
WIRE_VERSION = 5  # of all messages between devices: raised when old and new ones could misunderstand each other
FAMILY = 0xC0  # the upper half of the first byte; the lower half is the version
MARK = bytes([FAMILY + WIRE_VERSION])
OPENING = MAGIC + bytes([WIRE_VERSION])
RUN = struct.Struct("<Q")
CHECK = struct.Struct("<I")
MOST, LONGEST = 2**32 - 1, 5  # the highest row and round, and how many bytes they take
# Rounds for which one frame may announce silence. A neighbour must keep its own frames of as many rounds: only the
# next frame shows whether they have arrived.
MOST_QUIET = 2**16 - 1
EMPTY_FRAME_SIZE = len(MARK) + 1 + RUN.size + 1 + 1 + CHECK.size  # of a frame without a body, up to row and round 127
MOST_AROUND = len(OPENING) + 1 + RUN.size + 3 * LONGEST + CHECK.size  # bytes of a frame that are not its body
ARRAY = struct.Struct("<BBH")  # before the numbers of an array: question, type, check of the shape
# Bytes of a body: 16 MiB, which is the largest entry (2 million scores) or a histogram of 2 million bins; and 64 KiB
# for what goes with an entry. A receiver needs a few times as much memory, so it is no larger.
LARGEST_FRAME_BODY = 2**24 + 2**16
# Bytes of a body of words: more than the rows of 400,000 devices. Parsing JSON can take 20 times as much memory.
LARGEST_WORDS = 2**17

HELLO, DATA, READY, FINISHED, FAILED, ENTRIES, ROSTER = range(1, 8)
WORD_KINDS = frozenset({HELLO, READY, FINISHED, FAILED})  # the kinds whose bodies are JSON
FRAME_KINDS = dict(zip(range(1, 8), ("hello", "data", "ready", "finished", "failed", "entries", "roster"), strict=True))
WANT, SILENT, QUIET = 1, 2, 4
KIND_BITS = 3  # the flags are in the bits above these
FLAGS = WANT | SILENT | QUIET
_URGENT = (WANT + 1 << KIND_BITS) - 1  # the bits that tell what a device must be woken for
QUESTIONS = {kind.name: kind.code for kind in KINDS_OF_MESSAGES.values() if kind.code is not None}
_NAMES = {code: name for name, code in QUESTIONS.items()}
CODES = {np.dtype(name): code for code, name in enumerate(WIRE_TYPES, start=1)}


class FrameError(ValueError):
    """Bytes that are not a frame of this version, or a frame that contradicts itself or the protocol."""


class Frame(NamedTuple):
    """One message between neighbours; `body` is still bytes, `quiet` the number of rounds that QUIET announces."""

    kind: int
    run: int
    sender: int
    round: int = 0
    flags: int = 0
    body: bytes = b""
    quiet: int = 0

    @property
    def wants(self) -> bool:
        """Whether the sender asks for the receiver's frame of this round."""
        return bool(self.flags & WANT)

    @property
    def silent(self) -> bool:
        """Whether the sender has no message in this round."""
        return bool(self.flags & SILENT)

    def __str__(self) -> str:
        return f"{FRAME_KINDS.get(self.kind, self.kind)} of row {self.sender}, run {self.run:016x}, round {self.round}"


def encode_frame(frame: Frame) -> bytes:
    """Return a frame as bytes."""
    if len(frame.body) > (most := _largest(frame.kind)):
        raise FrameError(
            f"the body of a {FRAME_KINDS[frame.kind]} frame may have {most} bytes, got {len(frame.body)}; "
            "use fewer bins"
        )
    first = OPENING if frame.kind == HELLO else MARK
    numbers, flags = pack_number(frame.sender) + pack_number(frame.round), frame.flags
    if frame.quiet:
        numbers, flags = numbers + pack_number(frame.quiet), flags | QUIET
    head = first + bytes([frame.kind | flags << KIND_BITS]) + RUN.pack(frame.run) + numbers
    return head + frame.body + CHECK.pack(zlib.crc32(frame.body, zlib.crc32(head)))


def decode_frame(data: bytes) -> Frame:
    """Return the frame in some bytes, which must hold exactly one."""
    # The version comes first: what follows may have another layout in another version, and the error must name it.
    at, end = _after_version(data), len(data) - CHECK.size
    if len(data) < EMPTY_FRAME_SIZE:
        raise FrameError(f"a frame has at least {EMPTY_FRAME_SIZE} bytes, got {len(data)}")
    kind, flags = data[at] & (1 << KIND_BITS) - 1, data[at] >> KIND_BITS
    if kind not in FRAME_KINDS:
        raise FrameError(f"unknown kind of frame {kind}")
    if (kind == HELLO) != (at == len(OPENING)):
        raise FrameError(f"a {FRAME_KINDS[kind]} frame that begins like {'another' if kind == HELLO else 'a hello'}")
    if flags & ~FLAGS:
        raise FrameError(f"unknown flags {flags & ~FLAGS} of a frame")
    if CHECK.unpack_from(data, end)[0] != zlib.crc32(memoryview(data)[:end]):
        raise FrameError("the checksum of a frame is wrong: it was cut short, or changed on its way")
    (run,), at = RUN.unpack_from(data, at + 1), at + 1 + RUN.size
    sender, at = unpack_number(data, at, end)
    round_, at = unpack_number(data, at, end)
    quiet = 0
    if flags & QUIET:
        quiet, at = unpack_number(data, at, end)
        if kind != DATA or not 0 < quiet <= MOST_QUIET:
            raise FrameError(f"a {FRAME_KINDS[kind]} frame that announces {quiet} quiet rounds")
    if end - at > (most := _largest(kind)):  # before it is copied or parsed
        raise FrameError(f"the body of a {FRAME_KINDS[kind]} frame may have {most} bytes, got {end - at}")
    return Frame(kind, run, sender, round_, flags & ~QUIET, bytes(data[at:end]), quiet)


def _largest(kind: int) -> int:
    """Return how many bytes the body of a frame of this kind may have."""
    return LARGEST_WORDS if kind in WORD_KINDS else LARGEST_FRAME_BODY


def _after_version(data: bytes) -> int:
    """Return where a frame goes on behind its version, which must be this one."""
    if data[: len(MAGIC)] == MAGIC and len(data) > len(MAGIC):
        version, at = data[len(MAGIC)], len(OPENING)
    elif data and data[0] & 0xF0 == FAMILY:
        version, at = data[0] & 0x0F, len(MARK)
    else:
        raise FrameError(f"these bytes are no frame: they begin with {data[:4].hex() or 'nothing'}")
    if version != WIRE_VERSION:
        raise FrameError(f"frame of version {version}, this device speaks {WIRE_VERSION}; update the older one")
    return at


def pack_number(value: int) -> bytes:
    """Return a number in as few bytes as hold it, 7 bits in each, the lowest first.

    >>> pack_number(5).hex(), pack_number(300).hex()
    ('05', 'ac02')
    """
    if not 0 <= value <= MOST:
        raise FrameError(f"rows and rounds of frames go from 0 to {MOST}, got {value}")
    low = bytearray()
    while value > 0x7F:
        low.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*low, value])


def unpack_number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number that begins at a byte, and where it ends; it must be written in as few bytes as hold it."""
    value = data[at]
    if value < 0x80 and at < end:  # nearly always
        return value, at + 1
    value, longest = 0, at + LONGEST
    for i in range(at, min(longest, end)):
        value |= (data[i] & 0x7F) << 7 * (i - at)
        if data[i] >= 0x80:
            continue
        if not data[i] or value > MOST:
            raise FrameError(f"a number in a frame takes more bytes than it needs, or is beyond {MOST}")
        return value, i + 1
    raise FrameError(f"a frame ends inside a number, or one takes more than {LONGEST} bytes")


def frame_can_wait(data: bytes) -> bool:
    """Whether bytes look like data without WANT: a device that needs several such frames can wait for all of them."""
    return len(data) > EMPTY_FRAME_SIZE and data[0] == MARK[0] and data[1] & _URGENT == DATA


def is_roster(data: bytes) -> bool:
    """Whether bytes look like a frame about rosters."""
    return len(data) > EMPTY_FRAME_SIZE and data[0] == MARK[0] and data[1] & (1 << KIND_BITS) - 1 == ROSTER


def pack_array(question: str, values: NDArray[Any]) -> bytes:
    """Return the body of a data frame: one device's row of a message."""
    values = np.asarray(values, order="C")  # ascontiguousarray would make a row of a single number
    head = array_head(question, values.dtype, values.shape)
    return head + values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def array_head(question: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return how the body of every array of this kind begins."""
    code = CODES.get(dtype.newbyteorder("<"))
    if code is None:
        raise TypeError(f"messages hold numbers of 8 to 64 bits, got {dtype}")
    return ARRAY.pack(QUESTIONS[question], code, zlib.crc32(struct.pack(f"<{len(shape)}I", *shape)) & 0xFFFF)


def unpack_question(body: bytes) -> str:
    """Return the question with which the body of a data frame begins."""
    if not body or body[0] not in _NAMES:
        raise FrameError(f"a data body begins with {body[:1].hex() or 'nothing'}, which is no question")
    return _NAMES[body[0]]


def unpack_array(body: bytes) -> NDArray[Any]:
    """Return the numbers of the array in the body of a data frame, one after the other."""
    if len(body) < ARRAY.size:
        raise FrameError(f"an array takes at least {ARRAY.size} bytes, got {len(body)}")
    code = body[1]
    if not 1 <= code <= len(WIRE_TYPES):
        raise FrameError(f"an array of the unknown type {code}")
    dtype = np.dtype(WIRE_TYPES[code - 1])
    if (len(body) - ARRAY.size) % dtype.itemsize:
        raise FrameError(f"an array of {dtype} ends inside a number, after {len(body)} bytes")
    return np.frombuffer(body, dtype, offset=ARRAY.size).astype(dtype.newbyteorder("="))


def pack_words(words: dict[str, Any]) -> bytes:
    """Return the body of a frame that holds words: JSON with sorted keys."""
    return json.dumps(words, sort_keys=True, separators=(",", ":")).encode()


def unpack_words(body: bytes) -> dict[str, Any]:
    """Return the words in a body."""
    try:
        words = json.loads(body)
    except (ValueError, RecursionError):
        raise FrameError("a body should be JSON, and is not") from None
    if not isinstance(words, dict):
        raise FrameError(f"a body should be a JSON object, got {type(words).__name__}")
    return words
