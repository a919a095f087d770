"""Whole numbers in as few bytes as they need: LEB128, seven bits a byte, low ones first, the last byte below 128.

>>> encode_varints(np.array([5, 300])).tolist(), decode_varints(encode_varints(np.array([5, 300]))).tolist()
([5, 172, 2], [5, 300])
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints

_Bytes = NDArray[np.uint8]
_LONGEST_VARINT = 9  # bytes of an int64 that is not negative: 63 bits, seven in each byte
# The least numbers that take 2, 3, .. bytes: each byte holds seven bits.
_LIMITS = 2 ** (7 * np.arange(1, _LONGEST_VARINT, dtype=np.int64))


def varint_lengths(numbers: Ints) -> Ints:
    """Return how many bytes each number takes."""
    return 1 + np.searchsorted(_LIMITS, numbers, side="right")


def encode_varints(numbers: Ints) -> _Bytes:
    """Return flat numbers >= 0 as bytes, one after the other."""
    if numbers.min(initial=0) < 0:
        raise ValueError(f"numbers must not be negative to be written in few bytes, got {int(numbers.min())}")
    sizes = varint_lengths(numbers)
    ends = np.cumsum(sizes)
    out = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    starts, left = ends - sizes, numbers
    for at in range(int(sizes.max(initial=0))):
        going = sizes > at
        out[starts[going] + at] = (left[going] >> 7 * at & 127) | np.where(sizes[going] > at + 1, 128, 0)
    return out


def decode_varints(data: _Bytes) -> Ints:
    """Return the numbers in some bytes, which must end with the last byte of one."""
    last = np.flatnonzero(data < 128)
    if not len(data):
        return np.empty(0, dtype=np.int64)
    starts = np.concatenate([[0], last + 1])
    sizes = np.diff(starts)
    if starts[-1] != len(data) or sizes.max(initial=0) > _LONGEST_VARINT:
        raise ValueError(
            f"{len(data)} bytes do not hold whole numbers: one is cut off or longer than {_LONGEST_VARINT} bytes"
        )
    place = np.arange(len(data)) - np.repeat(starts[:-1], sizes)
    parts = (data & 127).astype(np.int64) << 7 * place
    return np.asarray(np.add.reduceat(parts, starts[:-1]))


def decode_varints_at(data: _Bytes, at: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the numbers that begin at these places and the places behind them; each must end before `ends`."""
    numbers, at = np.zeros(len(at), dtype=np.int64), at.copy()
    going = np.arange(len(at))
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        if (at[going] >= ends[going]).any():
            break
        byte = data[at[going]]
        numbers[going] |= (byte & 127).astype(np.int64) << shift
        at[going] += 1
        going = going[byte >= 128]
        if not len(going):
            return numbers, at
    if len(going):
        raise ValueError(f"a whole number is cut off or longer than {_LONGEST_VARINT} bytes")
    return numbers, at
