"""What many devices say of lists is written at once: bit for bit as a slow twin writes it, one after the other."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh.kernels import replies
from conformesh.kernels.items import Lists, packets_of
from conformesh.kernels.keys import to_keys
from conformesh.kernels.replies import LOWEST
from tests.reference import packet_of_lists

OWNER_BITS = 7
values = st.one_of(
    st.floats(allow_nan=False),
    st.floats(allow_nan=False, width=32),
    st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf, 5e-324, -5e-324, 1.7976931348623157e308]),
    st.integers(0, 3).map(lambda i: 1 + i * 2.0**-52),
)
often = st.one_of(st.just(1), st.integers(1, 9), st.integers(1, 2**62))
item = st.tuples(values.map(lambda value: int(to_keys([value])[0])), st.integers(0, 2**OWNER_BITS - 1), often)
said = st.tuples(st.lists(item, max_size=12).map(sorted), st.none() | item.map(lambda one: one[0]))


def lists_of(table):
    """The columns of a table, each a list of what every speaker says of it."""
    found = []
    for column in zip(*table, strict=True):
        items = [one for own, _ in column for one in own]
        keys, owners, times = np.array(items, dtype=np.int64).reshape(-1, 3).T
        cuts = np.concatenate([[0], np.cumsum([len(own) for own, _ in column])])
        back = np.array([LOWEST if one is None else one for _, one in column])
        found.append(Lists(keys, owners, times, cuts, back))
    return found


def assert_is_written_as_by_the_twin(table):
    written, offsets, numbers = packets_of(lists_of(table), OWNER_BITS)
    expected = [packet_of_lists(row, OWNER_BITS) for row in table]
    cut = [written[a:b].tobytes() for a, b in itertools.pairwise(offsets)]
    assert cut == [packet for packet, _ in expected]
    assert numbers.tolist() == [number for _, number in expected]
    assert len(written) == offsets[-1]


@given(st.integers(1, 3).flatmap(lambda lists: st.lists(st.tuples(*[said] * lists), min_size=1, max_size=6)))
def test_all_packets_are_those_of_the_twin(table):
    assert_is_written_as_by_the_twin(table)


def test_differences_of_all_sizes():
    """Ones that fill a word to its last bit, or several; low bits from none to all."""
    for width in range(60):
        for far in (1, 2, 60, 61, 62, 63, 64, 65, 126, 127, 128, 200):
            keys = [0, *range(1, 2 * far), 2 * far + (1 << width) * far // 64]
            items = sorted((key, key % 5, 1) for key in keys)
            assert_is_written_as_by_the_twin([[(items, None)], [([], None)], [(items[:1], 5)]])


@pytest.mark.parametrize("least", [LOWEST + 1, -(2**61), -1, 0, 2**60])
def test_lists_are_read_as_they_were(least):
    keys = least + np.array([0, 0, 1, 2, 70, 2**40, 2**61 - 1])
    for several in (0, 3):
        owners, times = np.arange(7), 1 + several * np.arange(7)
        written, _, _ = packets_of([Lists(keys, owners, times, np.array([0, 7]), np.array([LOWEST]))], OWNER_BITS)
        read = np.zeros((3, 7), np.int64)
        count, _ = replies.get_entries(written, 0, *read, OWNER_BITS)
        assert count == 7
        assert read.tolist() == [keys.tolist(), owners.tolist(), times.tolist()]
