"""A threshold for each side: one run finds what two would, and each side keeps its guarantee."""

from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import Network, Result, TooFewScores, calibrate, scores
from conformesh.kernels.weighted_scores import WeightedScores
from tests.statistics import assert_coverage

RNG = np.random.default_rng(3)
NETWORK = Network.cycle(4).relabelled(("a", "b", "d2", "d10"))
BANDS = [np.sort(RNG.normal(size=(30 + 5 * k, 2)), axis=1) for k in range(4)]
TRUTH = [band.mean(axis=1) + RNG.exponential(size=len(band)) - 0.5 for band in BANDS]
CQR = scores.CQR()
HELD = [CQR.sides(band, y) for band, y in zip(BANDS, TRUTH, strict=True)]
EVERY = [scores.AbsoluteResidual(), scores.NormalisedResidual(), CQR]


def outputs_for(score, band):
    if score.name == "cqr":
        return band
    middle = band.mean(axis=1)
    return middle if score.name == "absolute-residual" else np.column_stack([middle, 0.1 + np.ptp(band, axis=1)])


@pytest.mark.parametrize("method", ["e-dcp", "local", "cp", "fcp"])
@pytest.mark.parametrize("share", [None, Fraction(1, 4), 0.5])
def test_one_run_finds_what_two_would(method, share):
    result = calibrate(HELD, NETWORK, 0.2, method, score="cqr", symmetric=False, lower_share=share)
    levels = (0.05, 0.15) if share == Fraction(1, 4) else (0.1, 0.1)
    assert result.alphas == (0.2,)
    assert result.parts == (("lower",), ("upper",))
    assert result.certificate.alphas == levels
    for side, (name, alpha) in enumerate(zip(("lower", "upper"), levels, strict=True)):
        own = result[name]
        assert own.alpha == 0.2  # of the whole interval
        alone = calibrate([table[:, side] for table in HELD], NETWORK, alpha, method)
        assert own.thresholds.tobytes() == alone.thresholds.tobytes()
        assert own.certificate == alone.certificate
        assert own.examples == result.examples == alone.examples
    np.testing.assert_array_equal(result.thresholds_for(), [result["lower"].threshold, result["upper"].threshold])
    assert "by the union bound" in str(result.certificate)
    assert result.certificate.kind == "counted"


def test_several_levels_share_one_run_of_both_sides():
    both = calibrate(HELD, NETWORK, [0.1, 0.4], symmetric=False, lower_share=0.25)
    assert both.alphas == (0.1, 0.4)
    for alpha in both.alphas:
        alone = calibrate(HELD, NETWORK, alpha, symmetric=False, lower_share=0.25)
        assert both.at(alpha).certificate == alone.certificate
        for side in ("lower", "upper"):
            assert both[side, alpha].thresholds.tobytes() == alone[side].thresholds.tobytes()


def test_groups_and_sides_have_a_threshold_for_each_pair():
    groups = [np.arange(len(own)) % 2 for own in HELD]
    result = calibrate(HELD, NETWORK, 0.4, symmetric=False, groups=groups, score=CQR)
    assert result.parts == (("0", "lower"), ("0", "upper"), ("1", "lower"), ("1", "upper"))
    for group in (0, 1):
        own = [table[labels == group] for table, labels in zip(HELD, groups, strict=True)]
        alone = calibrate(own, NETWORK, 0.4, symmetric=False, rank_rule="swap")
        assert result[group].certificate == alone.certificate
        np.testing.assert_array_equal(result[group].thresholds_for(), alone.thresholds_for())
    band, rows = BANDS[0], groups[0]
    each = np.stack([result.predict(band, groups=np.full(len(band), group)) for group in (0, 1)])
    np.testing.assert_array_equal(result.predict(band, groups=rows), each[rows, np.arange(len(rows))])


def test_sides_refuse_another_score_than_their_own():
    made = calibrate(HELD, NETWORK, 0.2, score="cqr", symmetric=False)
    with pytest.raises(ValueError, match=r"calibrated with CQR\(\), got AbsoluteResidual\(\); leave score out"):
        made.predict([0.0], score="absolute-residual")


def test_both_sides_cost_less_than_two_runs():
    both = calibrate(HELD, NETWORK, symmetric=False).cost
    alone = [calibrate([table[:, side] for table in HELD], NETWORK, 0.05).cost for side in (0, 1)]
    assert both.rounds <= max(cost.rounds for cost in alone) + 2
    assert both.rounds < sum(cost.rounds for cost in alone)


@pytest.mark.parametrize("score", EVERY, ids=lambda score: score.name)
def test_a_score_is_the_larger_of_its_sides(score):
    table = outputs_for(score, BANDS[0])
    sides = score.sides(table, TRUTH[0])
    np.testing.assert_array_equal(sides.max(axis=1), score(table, TRUTH[0]))
    equal = score.side_intervals(table, 0.7, 0.7)
    np.testing.assert_array_equal(equal, score.intervals(table, 0.7))
    np.testing.assert_array_equal(score.side_intervals(table, np.inf, np.inf), [[-np.inf, np.inf]] * len(table))
    np.testing.assert_array_equal(score.side_intervals(table, -np.inf, 1.0), [[np.inf, -np.inf]] * len(table))


finite = st.one_of(st.floats(-1e6, 1e6), st.floats(-1.0, 1.0, width=32), st.integers(-3, 3).map(float))


@pytest.mark.parametrize("score", EVERY, ids=lambda score: score.name)
@settings(max_examples=60, deadline=None)
@given(a=finite, b=finite, y=finite, steps=st.tuples(st.integers(0, 2), st.integers(0, 2)))
def test_no_label_within_both_thresholds_is_lost(score, a, b, y, steps):
    """Thresholds are the label's own sides, or the next floats: the hardest case for the ends, also below zero."""
    table = outputs_for(score, np.array([[a, b]]))
    below, above = score.sides(table, [y])[0]
    for _ in range(steps[0]):
        below = np.nextafter(below, np.inf)
    for _ in range(steps[1]):
        above = np.nextafter(above, np.inf)
    low, high = score.side_intervals(table, below, above)[0]
    assert low <= y <= high


def test_predict_and_evaluate_agree(tmp_path):
    result = calibrate(HELD, NETWORK, 0.2, score=CQR, symmetric=False, lower_share="0.25")
    band, y = np.concatenate(BANDS), np.concatenate(TRUTH)
    owners = np.repeat(NETWORK.ids, [len(own) for own in TRUTH])
    intervals = result.predict(band)
    inside = (intervals[:, 0] <= y) & (y <= intervals[:, 1])
    told = result.evaluate(band, y, device=owners)
    assert told.coverage.covered == inside.sum()
    assert told.coverage.rate >= 0.8
    assert [*told.per_device] == [*NETWORK.ids]
    assert told.mean_size == pytest.approx(np.maximum(np.diff(intervals), 0).mean())
    assert (y < intervals[:, 0]).mean() <= 0.05
    result.save(tmp_path / "sides.json")
    again = Result.load(tmp_path / "sides.json")
    np.testing.assert_array_equal(again.predict(band, device="d2"), result.predict(band, device="d2"))
    assert again.certificate == result.certificate
    assert again["lower"].certificate == result["lower"].certificate
    assert repr(again) == repr(result)


def test_a_changed_file_is_refused(tmp_path):
    raw = calibrate(HELD, NETWORK, score=CQR, symmetric=False).to_dict()
    lower, upper = raw["answers"]
    for change, words in (
        ({"answers": [lower]}, "answers"),
        ({"answers": [upper, lower]}, "answers"),
        ({"answers": [{**lower, "part": ["below"]}, upper]}, "part"),
        ({"guarantee": {**raw["guarantee"], "sides": {"lower_share": "3/2"}}}, "lower_share"),
        ({"format": "conformesh-sides/1"}, "calibrate again"),
    ):
        with pytest.raises(ValueError, match=words):
            Result.from_dict({**raw, **change})


def test_sides_come_by_name_or_in_a_frame():
    wanted = calibrate(HELD, NETWORK, symmetric=False)
    by_name = dict(zip(NETWORK.ids, HELD, strict=True))
    owners = np.repeat([*by_name], [len(own) for own in HELD])
    below, above = np.concatenate(HELD).T
    frame = pl.DataFrame({"device": owners, "lower": below, "upper": above}).sample(fraction=1.0, shuffle=True, seed=1)
    for held in (by_name, frame, [own.tolist() for own in HELD]):
        found = calibrate(held, NETWORK, symmetric=False)
        np.testing.assert_array_equal(found.thresholds_for(), wanted.thresholds_for())
        assert found.certificate == wanted.certificate
    assert calibrate(by_name, "cycle", symmetric=False).device_ids == NETWORK.ids


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"lower_share": 0}, ValueError, "lower_share must lie strictly between 0 and 1, got 0"),
        ({"lower_share": 1.2}, ValueError, "lower_share must lie strictly between 0 and 1, got 1.2"),
        ({"lower_share": "half"}, ValueError, "lower_share must be a number strictly between 0 and 1, got 'half'"),
        ({"alpha": 1.1}, ValueError, "alpha must lie strictly between 0 and 1, got 1.1"),
        ({"score": "lac"}, TypeError, "two sides are for regression, got score 'lac'"),
        ({"data": [[1.0, 2.0]] * 4}, ValueError, r"device a: sides must have two columns.* got shape \(2,\)"),
        (
            {"data": pl.DataFrame({"device": ["a"], "lower": [0.0]})},
            ValueError,
            "columns 'device', 'lower' and 'upper', .* got device, lower; rename",
        ),
        ({"data": WeightedScores.of([[1.0]] * 4)}, TypeError, "got WeightedScores"),
    ],
)
def test_what_cannot_have_two_sides_is_refused(change, error, words):
    with pytest.raises(error, match=words):
        calibrate(**{"data": HELD, "network": NETWORK, **change}, symmetric=False)


def test_a_confidence_holds_for_both_together():
    """Each side may fail with half of what both may: the rank is that of the binomial at 1 - 0.05 / 2."""
    held = [RNG.normal(size=(100, 2)) for _ in range(4)]
    both = calibrate(held, NETWORK, 0.2, pac_confidence=0.95, symmetric=False)
    alone = calibrate([own[:, 0] for own in held], NETWORK, 0.1, pac_confidence=Fraction(39, 40))
    share = Fraction("0.1") / Fraction("0.200001")
    unequal = calibrate(held, NETWORK, "0.200001", pac_confidence=0.95, symmetric=False, lower_share=share)
    assert both["lower"].threshold == alone.threshold == unequal["lower"].threshold
    assert both["lower"].certificate.pac_confidence == both["upper"].certificate.pac_confidence == 0.95


def test_too_few_scores_are_said():
    with pytest.warns(TooFewScores, match=r"side lower, alpha 0\.005; side upper, alpha 0\.005"):
        result = calibrate([own[:5] for own in HELD], NETWORK, 0.01, score=CQR, symmetric=False)
    np.testing.assert_array_equal(result.predict([[0.0, 1.0]]), [[-np.inf, np.inf]])
    with pytest.raises(TooFewScores):
        calibrate([own[:5] for own in HELD], NETWORK, 0.01, strict=True, symmetric=False)


def test_a_score_without_sides_says_so():
    class Plain(scores.RegressionScore):
        name = "plain"

        def __call__(self, outputs, labels):
            return np.abs(outputs - labels)

        def intervals(self, outputs, threshold):
            return np.stack([outputs - threshold, outputs + threshold], axis=1)

    with pytest.raises(TypeError, match="'plain' does not tell two sides apart; use one threshold"):
        Plain().sides([0.0], [0.0])
    result = calibrate(HELD, NETWORK, symmetric=False)
    with pytest.raises(TypeError, match="'plain' does not tell two sides apart"):
        result.predict([0.0], score=Plain())
    with pytest.raises(ValueError, match="was not told its score"):
        result.predict([0.0])


@pytest.mark.slow
def test_asymmetric_intervals_cover_on_each_side():
    """[Romano2019], Theorem 2. False alarm < 3e-6. A side at 0.1 in place of 0.05 has power above 0.99."""
    rng = np.random.default_rng(5)
    trials, low, high, both = 2000, 0, 0, 0
    for _ in range(trials):
        y = rng.exponential(size=(5, 40))
        held = [CQR.sides(np.tile([0.5, 1.5], (40, 1)), own) for own in y]
        result = calibrate(held, "star", 0.1, score=CQR, symmetric=False)
        ((a, b),) = result.predict([[0.5, 1.5]])
        new = rng.exponential()
        low, high, both = low + (new >= a), high + (new <= b), both + (a <= new <= b)
    assert_coverage(low, trials, 0.95)
    assert_coverage(high, trials, 0.95)
    assert_coverage(both, trials, 0.9)
