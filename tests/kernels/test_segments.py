"""Counting, ends and copies of ragged segments: what the obvious loops over them give, with the same bits."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conformesh.kernels import segments
from tests.kernels.conftest import assert_same_bits

pytestmark = pytest.mark.usefixtures("way")

SCORES = st.one_of(st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 0.5, np.inf]), st.floats(allow_nan=False))


@st.composite
def ragged(draw, most=6):
    """Sorted segments of 1 to 3 trials, any of them empty; now and then more than are searched one by one."""
    trials = draw(st.integers(1, 3))
    parts = draw(st.lists(st.lists(SCORES, max_size=8), min_size=trials, max_size=most * trials))
    parts = parts[: len(parts) // trials * trials] * draw(st.sampled_from([1, 1, segments.FEW_SEGMENTS]))
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return np.array([x for part in parts for x in sorted(part)], dtype=np.float64), offsets, trials


def pieces(values, offsets):
    return [values[a:b] for a, b in itertools.pairwise(offsets)]


@given(ragged(), st.lists(SCORES, min_size=1, max_size=40))
def test_counts_equal_the_obvious_loop(case, asked):
    values, offsets, trials = case
    thresholds = np.tile(np.sort(np.array(asked)), (trials, 1))
    expected = [[(part <= x).sum() for part in pieces(values, offsets)] for x in thresholds[0]]
    expected = np.array(expected, dtype=np.int64).reshape(thresholds.shape[1], -1, trials).swapaxes(0, 1)
    assert_same_bits(segments.count_at_most(values, offsets, thresholds, trials), np.ascontiguousarray(expected))


@given(ragged(), st.data())
@example((np.array([-np.inf, -0.13]), np.array([0, 0, 2]), 1), None)
def test_problems_ask_their_own_trial_in_any_order(case, data):
    """NaN, below every score, is what a bracket under -inf begins with."""
    values, offsets, trials = case
    if data is None:
        asked, trial_of = np.array([[np.nan, -np.inf, 0.0]]), np.zeros(1, np.int64)
    else:
        width = data.draw(st.integers(1, 5))
        rows = st.lists(st.one_of(SCORES, st.just(np.nan)), min_size=width, max_size=width)
        asked = np.array(data.draw(st.lists(rows, min_size=1, max_size=4)))
        trial_of = np.array([data.draw(st.integers(0, trials - 1)) for _ in asked], dtype=np.int64)
    held = pieces(values, offsets)
    devices = len(held) // trials
    expected = np.zeros((devices, asked.shape[1], len(asked)), np.int32)
    for device, m, p in np.ndindex(expected.shape):
        expected[device, m, p] = (held[device * trials + trial_of[p]] <= asked[p, m]).sum()
    assert_same_bits(segments.count_per_problem(values, offsets, trials, trial_of, asked), expected)

    low, high = asked[:, 0], asked[:, -1]
    above, below = np.full((devices, len(asked)), np.inf), np.full((devices, len(asked)), -np.inf)
    for device, p in np.ndindex(above.shape):
        mine = held[device * trials + trial_of[p]]
        above[device, p] = next((x for x in mine if not x <= low[p]), np.inf)
        below[device, p] = next((x for x in mine[::-1] if x <= high[p]), -np.inf)
    for found, right in zip(
        segments.bracket_extremes(values, offsets, trials, trial_of, low, high), (above, below), strict=True
    ):
        np.testing.assert_array_equal(found, right)


@given(ragged(), st.booleans())
def test_ends_equal_the_obvious_loop(case, finite):
    values, offsets, _ = case
    held = [part[np.isfinite(part)] if finite else part for part in pieces(values, offsets)]
    low, high = segments.segment_extremes(values, offsets, finite)
    np.testing.assert_array_equal(low, [part[0] if len(part) else np.inf for part in held])
    np.testing.assert_array_equal(high, [part[-1] if len(part) else -np.inf for part in held])


@given(ragged(), st.randoms())
def test_segments_are_taken_whole_and_in_order(case, random):
    values, offsets, trials = case
    held = pieces(values, offsets)
    devices = np.array(random.choices(range(len(held) // trials), k=4), dtype=np.int64)
    taken, ends = segments.take_segments(values, offsets, devices, trials)
    expected = [held[device * trials + trial] for device in devices for trial in range(trials)]
    assert_same_bits(taken, np.concatenate(expected))
    assert ends.tolist() == [0, *np.cumsum([len(part) for part in expected]).tolist()]


@given(st.integers(1, 5), st.lists(st.integers(0, 3), max_size=9), st.sampled_from([np.int16, np.int32, np.int64]))
def test_rows_are_added_one_after_the_other(columns, rows, dtype):
    """Integers wrap around, as int16 does here."""
    x = np.full((4, columns), np.iinfo(dtype).max - 2, dtype)
    values = np.arange(len(rows) * columns, dtype=dtype).reshape(len(rows), columns)
    expected = x.copy()
    with np.errstate(over="ignore"):
        for row, value in zip(rows, values, strict=True):
            expected[row] = expected[row] + value
    segments.add_rows(x, np.array(rows, dtype=np.int64), values)
    assert_same_bits(x, expected)
