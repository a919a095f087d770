"""Sets as tables of bits, such as which device knows which entry: rows of 64-bit words, 64 columns in each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints

Bits = NDArray[np.uint64]
CHUNK_WORDS = 2**22  # words that are combined at a time: 32 MB of temporaries
_FEW_ROWS = 32  # rows; unions of up to this many are formed for all places at once, one row after the other
_SPARSE = 4  # set bits per non-empty word on average; up to this they are found one by one


def words_for(columns: int) -> int:
    """Return how many words a row of `columns` columns takes."""
    return -(-columns // 64)


def bits_of(rows: Ints, columns: Ints, shape: tuple[int, int]) -> Bits:
    """Return a table of this shape (rows, words) in which these places are marked."""
    bits = np.zeros(shape, dtype="<u8")
    np.bitwise_or.at(bits.ravel(), rows * shape[1] + (columns >> 6), _bit_of(columns))
    return bits


def _bit_of(columns: Ints) -> Bits:
    """Return the word in which a column is marked, of those that begin with it or before it."""
    return np.uint64(1) << (columns & 63).astype(np.uint64)


def marked_columns(bits: Bits) -> Ints:
    """Return the columns that are marked, row after row."""
    flat, words = bits.ravel(), max(bits.shape[1], 1)
    some = np.flatnonzero(flat)
    left, base = flat[some], (some % words) << 6
    counts = np.bitwise_count(left)
    ends = np.cumsum(counts, dtype=np.int64)
    if len(some) and ends[-1] > _SPARSE * len(some):
        at = np.flatnonzero(np.unpackbits(left.view(np.uint8), bitorder="little").view(np.bool_))
        return np.asarray(base[at >> 6] + (at & 63))
    out, at = np.empty(int(counts.sum(dtype=np.int64)), np.int64), ends - counts
    while len(left):  # the lowest of each word, then the next ones
        below = left - np.uint64(1)
        out[at] = base + np.bitwise_count(below & ~left)
        left = left & below
        more = np.flatnonzero(left)
        left, base, at = left[more], base[more], at[more] + 1
    return out


def row_unions(table: Bits, rows: Ints, starts: Ints) -> Bits:
    """Return what rows of a table mark together: those from ``starts[i]`` up to the next start, one at least."""
    ends = np.append(starts[1:], len(rows))
    counts = ends - starts
    out = table[rows[starts]]
    few = np.flatnonzero(counts <= _FEW_ROWS)
    for j in range(1, int(counts[few].max(initial=0))):  # the second row of each, then the third: whole tables at once
        some = few[counts[few] > j]
        if len(some) == len(out):
            out |= table[rows[starts + j]]
        else:
            out[some] |= table[rows[starts[some] + j]]
    most = max(CHUNK_WORDS // max(table.shape[1], 1), 1)  # rows
    for i in np.flatnonzero(counts > _FEW_ROWS).tolist():
        for a in range(int(starts[i]), int(ends[i]), most):
            out[i] |= np.bitwise_or.reduce(table[rows[a : min(a + most, int(ends[i]))]], axis=0)
    return out


def rows_marked_from(first: Ints, words: int) -> Bits:
    """Return rows in which every column is marked from the first one on."""
    word, whole = np.arange(words), (first >> 6)[:, None]
    return np.where(word > whole, ~np.uint64(0), np.where(word == whole, -_bit_of(first)[:, None], np.uint64(0)))


def move_columns(bits: Bits, to: Ints, words: int) -> Bits:
    """Return a table of `words` words with column i moved to ``to[i]``, ascending; all other columns are empty."""
    out = np.zeros((len(bits), words), dtype="<u8")
    source = np.full(64 * words, 64 * bits.shape[1], dtype=np.int64)
    source[to] = np.arange(len(to))
    most = max(CHUNK_WORDS // max(words, 1), 1)  # rows; each of its bits is a byte for a moment
    for a in range(0, len(bits), most):
        some = np.ascontiguousarray(bits[a : a + most]).view(np.uint8)
        each = np.unpackbits(some, axis=1, bitorder="little")
        each = np.concatenate([each, np.zeros((len(each), 1), np.uint8)], axis=1)
        out[a : a + most] = np.packbits(each.take(source, axis=1), axis=1, bitorder="little").view("<u8")
    return out
