import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import Network, TooFewScores, calibrate, update
from conformesh.common.notes import CalibrationNote
from conformesh.kernels.ranks import as_level_list, conformal_rank, conformal_threshold, exact_alpha, make_requirement


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
    found = calibrate(twenty_devices, Network.torus(5, 4), 0.1, mixture="paper", rank_rule="ghost").threshold
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


# --- whom a threshold is about ----------------------------------------------------------------------------------------

RNG = np.random.default_rng(5)
HELD = {name: RNG.normal(size=n).tolist() for name, n in zip("abcde", (12, 7, 30, 1, 25), strict=True)}
CYCLE = Network.cycle(5).relabelled([*"abcde"])
SHARES = {"a": 1, "b": "0.5", "c": 2.25, "d": 0, "e": 1}


def pooled(shares, alpha):
    """The swap rank by fractions, from its definition: which score, of all."""
    total, a = sum(shares.values()), Fraction(str(alpha))
    each = {name: share / total / len(HELD[name]) for name, share in shares.items()}
    need = 1 - a + max(each.values())
    pairs = sorted((score, each[name]) for name, own in HELD.items() for score in own)
    sums = np.cumsum([weight for _, weight in pairs])
    return next((score for (score, _), weight in zip(pairs, sums, strict=True) if weight >= need), math.inf)


@pytest.mark.filterwarnings("ignore::conformesh.TooFewScores")
@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("method", ["e-dcp", "h-dcp"])
@pytest.mark.parametrize("target", ["sizes", "paper", "equal", SHARES], ids=str)
def test_every_target_has_the_threshold_of_its_own_weights(target, method, alpha):
    shares = {
        "sizes": lambda: {name: Fraction(len(own)) for name, own in HELD.items()},
        "paper": lambda: {name: Fraction(len(own) + 1) for name, own in HELD.items()},
        "equal": lambda: dict.fromkeys(HELD, Fraction(1)),
    }.get(str(target), lambda: {name: Fraction(str(share)) for name, share in SHARES.items()})()
    options = {} if method == "e-dcp" else {"bins": 4000}
    result = calibrate(HELD, CYCLE, alpha, method, mixture=target, rank_rule="swap", **options)
    exact = pooled(shares, alpha)
    assert result.certificate.mixture == ("given" if isinstance(target, dict) else target)
    assert result.certificate.rule == "swap"
    if method == "e-dcp":
        assert result.threshold == exact
        assert result.certificate.kind == "counted"
    else:  # the next edge, or with a bound one of the next scores
        assert (result.thresholds >= exact).all()
        assert result.threshold < exact + 1.0 or exact == math.inf


def test_a_share_may_stand_in_a_column():
    rows = [(name, score, 2.0 if name == "a" else 1.0) for name, own in HELD.items() for score in own]
    frame = pl.DataFrame(rows, schema=["device", "score", "share"], orient="row")
    by_column = calibrate(frame, CYCLE, 0.2, mixture="share")
    assert by_column.threshold == calibrate(HELD, CYCLE, 0.2, mixture={**dict.fromkeys(HELD, 1), "a": 2}).threshold
    frame = frame.with_columns(share=pl.col("score"))
    with pytest.raises(ValueError, match="device a must have the same share in all its rows"):
        calibrate(frame, CYCLE, 0.2, mixture="share")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"mixture": "size"}, "unknown mixture 'size', did you mean 'sizes'"),
        ({"mixture": "exchangeable"}, "unknown mixture 'exchangeable'"),
        ({"mixture": 3}, "or a dict with a share for every device, got int"),
        ({"mixture": {"a": 1}}, "no share is given for device 'b' of the network; give 0 if it has none"),
        ({"mixture": {**SHARES, "x": 1}}, "a share is given for device 'x', which the network does not have"),
        ({"mixture": {**SHARES, "a": -1}}, "the share of device a must be at least 0, got -1"),
        ({"mixture": {**SHARES, "a": "much"}}, "the share of device a must be a number, got 'much'"),
        ({"mixture": {**SHARES, "a": math.nan}}, "the share of device a must be a number, got nan"),
        ({"mixture": {**SHARES, "a": math.inf}}, "the share of device a must be a number, got inf"),
        ({"mixture": dict.fromkeys("abcde", 0)}, "some device must have a share above 0"),
        ({"rank_rule": "swop"}, "unknown rank rule 'swop', did you mean 'swap'"),
        ({"rank_rule": "ghost"}, "proven for mixture='paper'"),
        ({"rank_rule": "ghost", "pac_confidence": 0.9}, "with weights, or with pac_confidence, use rank_rule='auto'"),
        ({"pac_confidence": 1.5}, "pac_confidence must lie strictly between 0 and 1, got 1.5"),
        (
            {"mixture": "equal", "method": "q-dcp"},
            "counts every score alike, and the mixture 'equal' gives them weights",
        ),
        ({"mixture": "equal", "method": "fcp"}, "'fcp' keeps the guarantee it was published with"),
    ],
    ids=str,
)
def test_a_guarantee_that_cannot_be_kept_is_refused_in_words(asked, words):
    with pytest.raises((ValueError, TypeError), match=words):
        calibrate(HELD, CYCLE, 0.2, **asked)


def test_where_weights_are_not_taken_the_published_rule_may_do():
    """Q-DCP counts scores alike: for the paper's target that is proven by imagined scores, and certified by weights."""
    options = {"rounds": 20}
    assert calibrate(HELD, CYCLE, 0.3, "q-dcp", mixture="paper", **options).certificate.rule == "ghost"
    counted = calibrate(HELD, CYCLE, 0.3, "q-dcp", mixture="equal", certify=True, **options)
    assert (counted.certificate.kind, counted.certificate.rule) == ("counted", "swap")
    assert counted.threshold >= calibrate(HELD, CYCLE, 0.3, mixture="equal").threshold


def test_an_update_keeps_the_guarantee():
    shares = {"a": 1, "b": 0, "c": 2, "d": 0, "e": 1}
    at_all_looks = {"mixture": shares, "pac_confidence": 0.9, "time_uniform": True}
    for asked in ({"mixture": "paper", "rank_rule": "ghost"}, {"mixture": "equal"}, at_all_looks, {}):
        first = calibrate(HELD, CYCLE, 0.3, **asked)
        again = update(first, HELD, CYCLE)
        assert again.threshold == first.threshold
        assert again.certificate == first.certificate


def test_an_update_says_that_a_second_look_needs_a_confidence_at_all_looks():
    first = calibrate(HELD, CYCLE, 0.3, pac_confidence=0.9)
    with pytest.warns(CalibrationNote, match="holds for one calibration; with updates .* Use time_uniform=True"):
        again = update(first, HELD, CYCLE)
    assert (again.threshold, again.certificate) == (first.threshold, first.certificate)


def test_one_device_is_ordinary_split_conformal_prediction():
    scores = RNG.normal(size=30)
    for target in ("sizes", "paper", "equal"):
        result = calibrate([scores], Network.chain(1), 0.1, mixture=target)
        assert result.threshold == conformal_threshold(scores, 0.1)
        assert result.certificate.rule == "ordinary"


def test_a_device_without_scores_has_no_share_or_is_always_missed():
    held = [*(RNG.normal(size=20) for _ in range(4)), []]
    sizes, equal = (calibrate(held, "cycle", 0.3, mixture=target).certificate for target in ("sizes", "equal"))
    assert (sizes.required_rank, sizes.weight) == (57, None)
    assert (equal.required_rank, equal.weight) == (71, None)  # (1 - 0.3) of 100 and one, of which 80 are there
    with pytest.warns(TooFewScores):
        assert calibrate(held, "cycle", 0.1, mixture="equal").threshold == math.inf


def test_many_sizes_without_a_small_common_multiple_are_rounded_to_the_safe_side():
    """Weights in fixed point ask for at least what fractions do, and for one score more at most."""
    sizes = np.arange(37, 137)
    requirement = make_requirement("paper", "swap")
    for alpha in (Fraction(1, 10), Fraction(1, 3)):
        demand = requirement.demand(sizes, (alpha,))
        assert demand.rounded
        assert int(demand.weights @ sizes) == demand.total <= 2**52
        need = ((1 - alpha) * (sizes.sum() + 100) + 1 + Fraction(1, 37)) / (sizes.sum() + 100)
        given = Fraction(demand.required(requirement, alpha, 0, 0, demand.total, 0), demand.total)
        assert need <= given < need + Fraction(1, 2**24)


@pytest.mark.parametrize("levels", [{0.1}, {0.1: "a"}.keys(), {"a": 0.1}.values(), (0.1,), np.array([0.1])], ids=str)
def test_levels_may_be_any_collection(levels):
    assert as_level_list(levels, "alphas") == [0.1]
    with pytest.raises(TypeError, match="alphas must be a list of numbers"):
        as_level_list(np.array(0.1), "alphas")


def test_the_binomial_rank_of_a_million_scores_does_not_fail_by_an_error_of_the_library():
    """SciPy's bdtrc is 1.7e-9 too small here, so that it allows a rank that fails 5e-10 more often than allowed."""
    n, rank = 10**6, 500_823
    above = np.arange(1, 8000)  # sixteen standard deviations
    chances = np.cumprod((n / 2 - above + 1) / (n / 2 + above))  # relative to that of n / 2
    tail = chances[rank - n // 2 - 1 :].sum() / (1 + 2 * chances.sum())
    half = Fraction(1, 2)
    for failure, expected in ((tail * (1 - 5e-10), rank + 1), (tail * (1 + 5e-9), rank)):
        requirement = make_requirement(pac_confidence=1 - Fraction(failure))
        found = requirement.demand(np.array([n]), (half,)).required(requirement, half, 0, 0, n, 0)
        assert found == expected
