import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import Network, calibrate
from conformesh.promises import conformal_rank, conformal_threshold, exact_alpha


@pytest.mark.parametrize(
    ("n", "alpha", "devices", "rank"),
    [(149, 0.18, 1, 123), (1000, 0.1, 20, 918), (9, 0.1, 1, 9), (8, 0.1, 1, 9), (0, 0.5, 1, 1), (10, 0.9, 5, 2)],
)
def test_known_ranks(n, alpha, devices, rank):
    assert conformal_rank(n, alpha, devices) == rank


def test_the_float_formula_is_wrong_where_ours_is_right():
    assert math.ceil((149 + 1) * (1 - 0.18)) == 124
    assert conformal_rank(149, 0.18) == 123


@given(st.integers(0, 10**6), st.integers(1, 9999), st.integers(1, 1000))
def test_rank_is_the_smallest_integer_at_or_above(n, ten_thousandths, devices):
    alpha = Fraction(ten_thousandths, 10000)
    r = conformal_rank(n, float(alpha), devices)
    exact = (1 - alpha) * (n + devices)
    assert r >= exact > r - 1


@pytest.mark.parametrize(("n", "devices"), [(-1, 1), (0, 0), (5, 0), (5, -1), (-1, 0)])
def test_a_rank_needs_a_device_and_no_negative_number_of_scores(n, devices):
    assert conformal_rank(0, 0.5, 1) == 1
    with pytest.raises(ValueError, match=f"got n={n}, devices={devices}"):
        conformal_rank(n, 0.5, devices)


@pytest.mark.parametrize("alpha", [0.1, "0.1", Decimal("0.1"), Fraction(1, 10), np.float64(0.1)])
def test_alpha_is_the_decimal_written(alpha):
    assert exact_alpha(alpha) == Fraction(1, 10)


def test_alpha_in_single_precision_is_what_it_prints():
    assert exact_alpha(float(str(np.float32(0.1)))) == Fraction(1, 10)


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.2, "1.5", float("nan"), float("inf"), "ten percent", None])
def test_alpha_outside_is_refused(alpha):
    with pytest.raises(ValueError, match="alpha must"):
        exact_alpha(alpha)


@given(st.lists(st.floats(allow_nan=False), max_size=40), st.integers(1, 99), st.integers(1, 9))
def test_the_threshold_is_the_order_statistic_of_the_rank(scores, hundredths, devices):
    before = [*scores]
    rank = conformal_rank(len(scores), Fraction(hundredths, 100), devices)
    expected = sorted(scores)[rank - 1] if rank <= len(scores) else math.inf
    assert conformal_threshold(scores, Fraction(hundredths, 100), devices) == expected
    assert scores == before


def test_the_threshold_of_a_thousand_scores_is_the_one_of_the_rank():
    """Few scores happen to be sorted when one is put into its place, so that a wrong place would not show."""
    scores = np.random.default_rng(0).permutation(1000) + 1
    for percent in range(1, 100):
        assert conformal_threshold(scores, Fraction(percent, 100)) == conformal_rank(1000, Fraction(percent, 100))


def test_the_threshold_is_what_the_devices_agree_on(twenty_devices):
    found = calibrate(twenty_devices, Network.torus(5, 4), 0.1, target="paper", rank="ghost").threshold
    assert conformal_threshold(np.concatenate(twenty_devices), 0.1, devices=20) == found


@pytest.mark.parametrize("scores", [[math.nan], [1.0, math.nan, 2.0], [math.nan] + [0.0] * 50])
def test_a_threshold_of_nan_is_refused(scores):
    with pytest.raises(ValueError, match="scores must be numbers, got NaN"):
        conformal_threshold(scores, 0.5)


@pytest.mark.parametrize("kind", [int, float, Fraction, Decimal, np.float32])
def test_scores_may_be_numbers_of_any_kind_in_any_shape(kind):
    """The threshold is a float64, whatever held the scores."""
    scores = [[kind(3), kind(1)], [kind(2), kind(4)]]
    found = conformal_threshold(scores, 0.4)
    assert (type(found), found) == (float, 3.0)


def test_scores_in_an_array_are_left_as_they_are():
    scores = np.random.default_rng(0).random(100)
    before = scores.copy()
    conformal_threshold(scores, 0.1)
    np.testing.assert_array_equal(scores, before)


@pytest.mark.parametrize(
    ("alpha", "exact"),
    [
        (0.1, Fraction(1, 10)),
        ("0.1000000000000000000001", Fraction("0.1000000000000000000001")),  # text and decimals are not made floats,
        (Decimal("0.1000000000000000000001"), Fraction("0.1000000000000000000001")),  # which would lose their digits
        (Fraction(1, 3), Fraction(1, 3)),
        ("1/3", Fraction(1, 3)),
        (np.float64(0.1), Fraction(1, 10)),
        (np.float32(0.1), Fraction("0.10000000149011612")),  # as the float64 that it is
    ],
)
def test_alpha_is_the_decimal_that_was_written(alpha, exact):
    assert exact_alpha(alpha) == exact


@pytest.mark.parametrize(
    "alpha", [0, 1, 0.0, 1.0, -0.1, "1/0", "x", None, [], float("nan"), "nan", Decimal("NaN"), True]
)
def test_what_is_no_alpha_is_refused(alpha):
    with pytest.raises(ValueError, match="alpha must"):
        exact_alpha(alpha)
