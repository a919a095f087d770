"""Regression scores: known values, and intervals that never lose a label the score accepts."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conformesh.scores import CQR, AbsoluteResidual, NormalisedResidual, regression

FAST = settings(max_examples=150, deadline=None)
EVERY = [AbsoluteResidual(), NormalisedResidual(), CQR()]
numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-10.0, 10.0),
    st.integers(-3, 3).map(float),
    st.floats(-1.0, 1.0, width=32),
)
scales = st.one_of(st.floats(0.0, allow_infinity=False, exclude_min=True), st.floats(0.1, 10.0))
neighbour = st.sampled_from([0, 0, 1, -1, 2, -2])


def step(x, by):
    """The float `by` places after x."""
    for _ in range(abs(by)):
        x = math.nextafter(x, math.copysign(math.inf, by))
    return x


def outputs_of(score, a, b, scale):
    if isinstance(score, AbsoluteResidual):
        return np.array([a])
    return np.array([[a, scale if isinstance(score, NormalisedResidual) else b]])


@pytest.mark.parametrize("score", EVERY, ids=repr)
@FAST
@given(a=numbers, b=numbers, scale=scales, at=st.tuples(numbers, neighbour))
@example(a=1.0, b=1.0, scale=3.0, at=(1.1, 0))
@example(a=1e20, b=1e20, scale=1.0, at=(3.0, 0))
@example(a=0.0, b=0.0, scale=5e-324, at=(5e-324, 0))
@example(a=0.0, b=0.0, scale=1e10, at=(3e-320, 0))
@example(a=-1.7e308, b=1.7e308, scale=0.5, at=(1.7e308, 0))
@example(a=0.0, b=-1.7976931348623157e308, scale=1.0, at=(0.0, 0))
def test_every_label_within_the_threshold_lies_in_the_interval(score, a, b, scale, at):
    """The threshold is the label's own score, or a float close to it: the hardest case for the ends."""
    y, by = at
    outputs = outputs_of(score, a, b, scale)
    tau = step(float(score(outputs, [y])[0]), by)
    low, high = score.intervals(outputs, tau)[0]
    if score(outputs, [y])[0] <= tau:
        assert low <= y <= high
        assert score.covers(outputs, [y], tau).all()
    else:
        assert not score.covers(outputs, [y], tau).any()


@pytest.mark.parametrize("score", EVERY, ids=repr)
@FAST
@given(a=st.floats(-10, 10), b=st.floats(-10, 10), scale=st.floats(0.1, 10), tau=st.floats(0, 100))
def test_intervals_are_wider_by_roundings_only(score, a, b, scale, tau):
    """Each of at most four roundings is half a unit in the last place of a number below 1100, or one step of tau."""
    low, high = score.intervals(outputs_of(score, a, b, scale), tau)[0]
    reach = tau * (scale if isinstance(score, NormalisedResidual) else 1.0)
    end = b if isinstance(score, CQR) else a
    np.testing.assert_allclose([low, high], [a - reach, end + reach], rtol=0, atol=8 * np.spacing(1100.0))


def test_known_values():
    np.testing.assert_array_equal(AbsoluteResidual()([1.0, 2.0], [3, 0]), [2.0, 2.0])
    np.testing.assert_array_equal(NormalisedResidual()([[1.0, 0.5], [2.0, 4.0]], [3, 0]), [4.0, 0.5])
    np.testing.assert_array_equal(CQR()([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], [-2.0, 0.25, 1.5]), [2.0, -0.25, 0.5])


def test_float32_is_widened_first():
    a, y = np.float32(0.1), np.float32(1e-9)
    assert AbsoluteResidual()([a], [y])[0] == abs(float(y) - float(a))
    assert CQR()(np.array([[a, a]]), np.array([y]))[0] == float(a) - float(y)


@pytest.mark.parametrize("score", EVERY, ids=repr)
def test_infinite_thresholds(score):
    outputs = np.array([1.0, 2.0]) if isinstance(score, AbsoluteResidual) else np.array([[1.0, 2.0], [-1.0, 3.0]])
    np.testing.assert_array_equal(score.intervals(outputs, np.inf), [[-np.inf, np.inf]] * 2)
    np.testing.assert_array_equal(score.intervals(outputs, -np.inf), [[np.inf, -np.inf]] * 2)
    np.testing.assert_array_equal(score.intervals(outputs, [np.inf, -np.inf]), [[-np.inf, np.inf], [np.inf, -np.inf]])


def test_thresholds_per_row():
    both = AbsoluteResidual().intervals([1.0, 1.0], [0.5, 2.0])
    np.testing.assert_array_equal(both[0], AbsoluteResidual().intervals([1.0], 0.5)[0])
    np.testing.assert_array_equal(both[1], AbsoluteResidual().intervals([1.0], 2.0)[0])


def test_empty_intervals_have_their_lower_end_above():
    np.testing.assert_array_equal(AbsoluteResidual().intervals([1.0], -1e-300), [[np.inf, -np.inf]])
    np.testing.assert_array_equal(NormalisedResidual().intervals([[1.0, 2.0]], -1e-300), [[np.inf, -np.inf]])
    low, high = CQR().intervals([[0.0, 2.0]], -1.5)[0]
    assert low > high
    low, high = CQR().intervals([[3.0, 2.0]], 0.25)[0]  # crossed quantiles, not mended by so small a threshold
    assert low > high
    low, high = CQR().intervals([[0.0, 2.0]], -0.5)[0]
    assert low <= 0.5
    assert high >= 1.5


@pytest.mark.parametrize("score", EVERY, ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_rows_give_no_scores(score, dtype):
    empties = (
        [np.empty(0, dtype)] if isinstance(score, AbsoluteResidual) else [np.empty(0, dtype), np.empty((0, 2), dtype)]
    )
    for empty in empties:
        assert score(empty, []).shape == (0,)
        assert score.covers(empty, [], 0.5).shape == (0,)
        assert score.intervals(empty, 0.5).shape == (0, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: AbsoluteResidual()([[1.0]], [1.0]),
            ValueError,
            r"outputs of shape \(rows,\), one prediction each, got shape \(1, 1\); pass outputs\[:, 0\]",
        ),
        (lambda: AbsoluteResidual()([[1.0, 2.0]], [1.0]), ValueError, r"one prediction each, got shape \(1, 2\)$"),
        (
            lambda: AbsoluteResidual()([1.0], [1.0, 2.0]),
            ValueError,
            r"'absolute-residual' needs one label for each row of outputs: got 1 rows and labels of shape \(2,\)",
        ),
        (
            lambda: AbsoluteResidual()([1.0, np.inf], [1.0, 2.0]),
            ValueError,
            "needs finite outputs, got inf in row 1; drop the row or repair the model",
        ),
        (lambda: AbsoluteResidual()([1.0], [np.nan]), ValueError, "needs finite labels, got nan in row 0"),
        (lambda: AbsoluteResidual()([1j], [1.0]), TypeError, "outputs as real numbers, got dtype complex128"),
        (lambda: AbsoluteResidual()([1.0], ["a"]), TypeError, "labels as real numbers"),
        (lambda: AbsoluteResidual().intervals([1.0], np.nan), ValueError, "needs a number for threshold, got NaN"),
        (
            lambda: AbsoluteResidual().intervals([1.0], [1.0, 2.0]),
            ValueError,
            r"threshold as one number or shape \(1,\), got shape \(2,\)",
        ),
        (
            lambda: AbsoluteResidual().sets([1.0], 0.5),
            TypeError,
            r"'absolute-residual' is for regression and has no label sets; use intervals\(",
        ),
        (
            lambda: NormalisedResidual()([1.0, 2.0], [1.0, 2.0]),
            ValueError,
            r"'normalised-residual' needs outputs of shape \(rows, 2\), prediction and scale, got shape \(2,\)",
        ),
        (
            lambda: NormalisedResidual()([[1.0, 2.0], [1.0, 0.0]], [1.0, 2.0]),
            ValueError,
            "scales above 0, got 0 in row 1; add a small constant",
        ),
        (lambda: NormalisedResidual().intervals([[1.0, -2.0]], 0.5), ValueError, "scales above 0, got -2 in row 0"),
        (
            lambda: NormalisedResidual()([[1.0, np.nan]], [1.0]),
            ValueError,
            r"'normalised-residual' needs finite outputs, got nan in row 0",
        ),
        (
            lambda: CQR()([[1.0, 2.0, 3.0]], [1.0]),
            ValueError,
            r"'cqr' needs outputs of shape \(rows, 2\), lower and upper quantile, got shape \(1, 3\)",
        ),
        (lambda: CQR()([[1.0, -np.inf]], [1.0]), ValueError, r"'cqr' needs finite outputs, got -inf in row 0"),
    ],
)
def test_errors_say_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_examples_run():
    assert doctest.testmod(regression).failed == 0
