"""Frames: what travels between two devices, as bytes. Small, versioned, checked, and never code.

All numbers are little-endian. Every frame is a header of 32 bytes and a body::

    offset  bytes  field
    0       4      magic, b"cfmh"
    4       1      version, 3
    5       1      kind: 1 hello, 2 data, 3 ready, 4 finished, 5 failed
    6       2      flags: 1 please send me yours of this round; 2 nothing to say this round
    8       8      run: a digest of all that must match, of the run's number and of who was lost
    16      4      sender: its row in the roster
    20      4      round
    24      4      length of the body
    28      4      CRC-32 of the 28 bytes before and of the body

A data body begins with the question in one byte: 1 sum, 2 max, 3 min, 4 each, 5 tell. Who has nothing to say this round
says no more than that. What is told follows as it is, byte by byte; everything else is one array: its type in one byte,
a check of its shape in two (the low half of the CRC-32 of its dimensions, 4 bytes each), and the numbers themselves in
the type that the protocol sends: integers stay integers. A receiver sends an array of the same shape in the same round,
so it knows the shape, and the check finds a neighbour that thinks of another. The other bodies are JSON (`words`). TLS
protects frames in transit; the CRC finds what a disk or a bug does to them.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.protocols.messages import KINDS as KINDS_OF_MESSAGES
from conformesh.protocols.messages import TYPES

MAGIC = b"cfmh"
VERSION = 3  # of all that devices say to each other: raised when old and new ones could misunderstand each other
HEADER = struct.Struct("<4sBBHQIII")
CHECK = struct.Struct("<I")
WHOLE = struct.Struct(HEADER.format + "I")  # both at once
SIZE = WHOLE.size
ARRAY = struct.Struct("<BBH")  # before the numbers of an array: question, type, check of the shape
LARGEST = 64 * 1024 * 1024  # bytes of a body: a histogram of a million bins for eight levels, and no more

HELLO, DATA, READY, FINISHED, FAILED = 1, 2, 3, 4, 5
KINDS = {HELLO: "hello", DATA: "data", READY: "ready", FINISHED: "finished", FAILED: "failed"}
WANT, SILENT = 1, 2
PLAIN_DATA = bytes([VERSION, DATA, 0])
QUESTIONS = {kind.name: kind.code for kind in KINDS_OF_MESSAGES.values() if kind.code is not None}
_NAMES = {code: name for name, code in QUESTIONS.items()}
CODES = {np.dtype(name): code for code, name in enumerate(TYPES, start=1)}


class FrameError(ValueError):
    """Bytes that are no frame of this version, or a frame that lies about itself."""


class Frame(NamedTuple):
    """One message between neighbours; `body` is still bytes."""

    kind: int
    run: int
    sender: int
    round: int = 0
    flags: int = 0
    body: bytes = b""

    @property
    def wants(self) -> bool:
        """Whether the sender misses our frame of this round."""
        return bool(self.flags & WANT)

    @property
    def silent(self) -> bool:
        """Whether the sender has nothing to say this round."""
        return bool(self.flags & SILENT)

    def __str__(self) -> str:
        return f"{KINDS.get(self.kind, self.kind)} of row {self.sender}, run {self.run:016x}, round {self.round}"


def encode(frame: Frame) -> bytes:
    """Return a frame as bytes."""
    if len(frame.body) > LARGEST:
        raise FrameError(f"a body may have {LARGEST} bytes, got {len(frame.body)}; send fewer bins or levels at once")
    head = HEADER.pack(MAGIC, VERSION, frame.kind, frame.flags, frame.run, frame.sender, frame.round, len(frame.body))
    return head + CHECK.pack(zlib.crc32(frame.body, zlib.crc32(head))) + frame.body


def decode(data: bytes) -> Frame:
    """Return the frame in some bytes, which must hold exactly one."""
    if len(data) < SIZE:
        raise FrameError(f"a frame has at least {SIZE} bytes, got {len(data)}")
    magic, version, kind, flags, run, sender, round_, length, check = WHOLE.unpack_from(data)
    if magic != MAGIC:
        raise FrameError("these bytes are no frame: wrong magic")
    if version != VERSION:
        raise FrameError(f"frame of version {version}, this device speaks {VERSION}; update the older one")
    if kind not in KINDS:
        raise FrameError(f"unknown kind of frame {kind}")
    if length > LARGEST or len(data) != SIZE + length:
        raise FrameError(f"a body of {length} bytes was announced, got {len(data) - SIZE}")
    body = bytes(data[SIZE:])
    if check != zlib.crc32(body, zlib.crc32(data[: HEADER.size])):
        raise FrameError("the checksum of a frame is wrong")
    return Frame(kind, run, sender, round_, flags, body)


def can_wait(data: bytes) -> bool:
    """Whether bytes look like plain data, of which a device needs nothing before it has heard all its neighbours."""
    return len(data) > SIZE and data[4:7] == PLAIN_DATA


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
    if not 1 <= code <= len(TYPES):
        raise FrameError(f"an array of the unknown type {code}")
    dtype = np.dtype(TYPES[code - 1])
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
