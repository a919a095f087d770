"""Tables of bits: as tables of true and false, which are plain to see."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh.kernels import bits

seeds = st.integers(0, 2**32 - 1)


def drawn(seed, rows=None):
    """A table of true and false, and the same as bits."""
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 8)) if rows is None else rows, int(rng.integers(1, 200)))
    table = rng.random(shape) < rng.choice([0.0, 0.01, 0.1, 0.6, 1.0])
    return rng, table, bits.bits_of(*map(np.int64, np.nonzero(table)), (shape[0], bits.words_for(shape[1])))


def as_bools(words, columns):
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :columns].astype(bool)


@given(seeds)
def test_marks_are_found_again(seed):
    _, table, words = drawn(seed)
    assert (as_bools(words, table.shape[1]) == table).all()
    assert bits.marked_columns(words).tolist() == np.nonzero(table)[1].tolist()
    assert bits.marked_columns(words[:, :0]).tolist() == []


@pytest.mark.parametrize("at_once", [1, 7, 2**22])
@given(seed=seeds)
def test_unions_are_those_of_the_rows(at_once, seed):
    rng, table, words = drawn(seed)
    rows = rng.integers(0, len(table), int(rng.integers(1, 150)))
    starts = np.unique(np.append(0, rng.integers(0, len(rows), 5)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bits, "CHUNK_WORDS", at_once)
        found = bits.row_unions(words, rows, starts)
    expected = [table[some].any(axis=0) for some in np.split(rows, starts[1:])]
    assert (as_bools(found, table.shape[1]) == expected).all()


@given(seeds)
def test_columns_from_one_on(seed):
    rng, table, words = drawn(seed)
    first = rng.integers(0, table.shape[1], len(table))
    found = words & bits.rows_marked_from(first, words.shape[1])
    assert (as_bools(found, table.shape[1]) == table & (np.arange(table.shape[1]) >= first[:, None])).all()


@pytest.mark.parametrize("at_once", [1, 2**22])
@given(seed=seeds)
def test_columns_move_apart(at_once, seed):
    rng, table, words = drawn(seed)
    columns = table.shape[1] + int(rng.integers(0, 200))
    to = np.sort(rng.permutation(columns)[: table.shape[1]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bits, "CHUNK_WORDS", at_once)
        found = bits.move_columns(words, to, bits.words_for(columns))
    expected = np.zeros((len(table), columns), bool)
    expected[:, to] = table
    assert (as_bools(found, columns) == expected).all()
