import json
import math
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from conformesh import Network, Result, TooFewScores, calibrate, scores
from conformesh.kernels.proportions import wilson_interval
from conformesh.results.certificate import CERTIFICATE_KINDS, Certificate, Cost, too_few_certificate

HELD = [np.random.default_rng(k).random(40) for k in range(5)]


@pytest.fixture
def classified():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(600, 4)) * 2
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(4, p=row) for row in p])
    devices = rng.integers(5, size=600)
    return p, labels, devices


@pytest.fixture
def result(classified):
    p, labels, devices = classified
    lac = scores.LAC()
    mine = [lac(p[:300][devices[:300] == k], labels[:300][devices[:300] == k]) for k in range(5)]
    return calibrate(mine, Network.cycle(5), 0.2, "h-dcp", score=lac)


def test_saved_and_loaded_results_are_equal(result, tmp_path):
    path = tmp_path / "threshold.json"
    result.save(path)
    again = Result.load(path)
    assert again.to_dict() == result.to_dict()
    assert again.score == result.score
    assert again.certificate == result.certificate
    assert list(tmp_path.iterdir()) == [path]


def test_infinity_is_a_word_in_json(tmp_path):
    with pytest.warns(TooFewScores):
        result = calibrate([[0.1], [0.2]], Network.chain(2), 0.1, "fcp")
    raw = json.loads(result.to_json())
    assert raw["answers"][0]["thresholds"] == ["inf", "inf"]
    result.save(tmp_path / "r.json")
    assert math.isinf(Result.load(tmp_path / "r.json").threshold)


def test_the_file_holds_no_score(result, classified, method):
    """No calibration score appears in the JSON, but for the threshold itself where it is one of them."""
    rng = np.random.default_rng(3)
    mine = [rng.random(40) for _ in range(5)]
    found = calibrate(mine, Network.cycle(5), 0.2, method)

    def numbers(value):
        if isinstance(value, dict):
            return {x for v in value.values() for x in numbers(v)}
        if isinstance(value, list):
            return {x for v in value for x in numbers(v)}
        return {value} if isinstance(value, float) else set()

    shown = numbers(json.loads(found.to_json())) - set(found.thresholds.tolist())
    assert not shown & set(np.concatenate(mine).tolist())


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}", '{"format": "other/1"}', "not json"])
def test_other_files_are_refused(text, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.json"):
        Result.load(path)


def test_sets_and_evaluation_agree(result, classified):
    p, labels, devices = classified
    p, labels, devices = p[300:], labels[300:], devices[300:]
    sets = result.predict(p)
    report = result.evaluate(p, labels, device=devices)
    np.testing.assert_array_equal(sets, scores.LAC().sets(p, result.threshold))
    assert report.coverage.rate == np.mean(sets[np.arange(300), labels])
    assert report.mean_size == sets.sum(1).mean()
    assert report.empty == np.mean(sets.sum(1) == 0)
    assert report.singleton == np.mean(sets.sum(1) == 1)
    assert sum(c.rows for c in report.per_class.values()) == 300
    assert sum(c.rows for c in report.per_device.values()) == 300
    assert set(report.per_device) == {str(d) for d in devices}
    assert "coverage" in str(report)


def test_rows_use_their_own_devices_threshold(classified):
    p, labels, devices = classified
    lac = scores.LAC()
    mine = [lac(p[devices == k], labels[devices == k]) for k in range(5)]
    alone = calibrate(mine, Network.cycle(5), 0.2, "local", score=lac)
    assert len(set(alone.thresholds.tolist())) > 1
    np.testing.assert_array_equal(alone.predict(p, device=devices), lac.sets(p, alone.thresholds[devices]))
    np.testing.assert_array_equal(alone.predict(p, device=3), lac.sets(p, alone.thresholds[3]))


def test_regression_gives_intervals():
    rng = np.random.default_rng(1)
    score = scores.AbsoluteResidual()
    prediction, truth = rng.normal(size=200), rng.normal(size=200)
    result = calibrate(np.split(score(prediction, truth), 4), Network.cycle(4), 0.2, "fcp", score=score)
    intervals = result.predict(prediction)
    assert intervals.shape == (200, 2)
    report = result.evaluate(prediction, truth)
    assert report.coverage.rate >= 0.8
    assert report.singleton is None
    assert report.mean_size == pytest.approx(2 * result.threshold, rel=1e-9)


def test_unknown_devices_and_scores_are_named(result):
    with pytest.raises(ValueError, match="unknown device 'mars'"):
        result.threshold_of("mars")
    with pytest.raises(ValueError, match="unknown device"):
        result.predict(np.full((2, 4), 0.25), device=["0", "mars"])
    anonymous = calibrate([[0.1, 0.2]] * 3, Network.cycle(3), 0.5)
    with pytest.raises(ValueError, match="was not told its score"):
        anonymous.predict(np.full((2, 4), 0.25))


def test_wilson_matches_the_quadratic():
    """The ends solve |p - q| = z sqrt(q (1 - q) / n)."""
    for hits, rows in [(90, 100), (0, 10), (10, 10), (1, 3)]:
        low, high = wilson_interval(hits, rows)
        for q in (low, high):
            if 0 < q < 1:
                assert abs(hits / rows - q) == pytest.approx(
                    1.959963984540054 * math.sqrt(q * (1 - q) / rows), rel=1e-9
                )
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("name", "message"),
    [("h-dpc", "did you mean 'h-dcp'"), ("zzz", "known: e-dcp, q-dcp, h-dcp")],
)
def test_unknown_methods_suggest(name, message):
    with pytest.raises(ValueError, match=message):
        calibrate([[0.1]], Network.chain(1), 0.5, name)


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        (Certificate("none"), ""),
        (Certificate("counted", 18, 19), "; required rank 18, counted rank 19"),
        (Certificate("counted", 18, 0), "; required rank 18, counted rank 0"),
        (Certificate("bounded", 18), "; required rank 18"),
        (Certificate("bounded", 18, epsilon=0.0), "; required rank 18; epsilon 0"),
        (Certificate("counted", (3, 4), (4, 4)), ""),  # everybody for itself: too many for a line
        (Certificate("assumed", 9, assumption="it rains"), "; required rank 9; assuming it rains"),
        (Certificate("none", assumption="nothing was counted"), "; nothing was counted"),
    ],
)
def test_a_certificate_reads_as_a_line(certificate, words):
    """What it claims, then only what is known."""
    assert str(certificate) == f"{certificate.kind}: {CERTIFICATE_KINDS[certificate.kind]}{words}"


def test_too_few_scores_are_all_counted():
    """Only +inf keeps the promise then, and all n scores lie at or below it."""
    assert too_few_certificate(12, 10) == Certificate("counted", 12, 10)


@pytest.mark.parametrize(
    ("numbers", "mean", "kind"), [([], 0, int), ([2.0, 4.0], 3, int), ([2.0, 3.0], 2.5, float), ([0.0], 0, int)]
)
def test_a_mean_that_is_whole_is_shown_as_whole(numbers, mean, kind):
    """Nothing was sent where there is nobody."""
    cost = Cost(3, np.array(numbers), 8 * np.array(numbers))
    assert (cost.numbers_per_device, type(cost.numbers_per_device)) == (mean, kind)
    assert cost.bits_per_device == 8 * mean
    assert cost.to_dict() == {"rounds": 3, "numbers_per_device": mean, "bits_per_device": 8 * mean}


def test_what_a_mesh_has_sent_besides_is_kept():
    result = calibrate([[0.1, 0.2], [0.3, 0.4, 0.5]], Network.chain(2), 0.5)
    sent = Cost(9, np.full(2, 20.0), np.full(2, 1280.0))
    cost = replace(result.cost, sent=sent)
    back = Result.from_dict(structs.replace(result, cost=cost).to_dict()).cost
    assert back.to_dict() == cost.to_dict() == {**result.cost.to_dict(), "sent": sent.to_dict()}
    assert str(back).endswith("; with what only a mesh must send 9 rounds, 20 numbers and 1,280 bits per device")
    assert Result.from_dict(result.to_dict()).cost.sent is None


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("h-dcp", {"rounds": "10"}, "rounds must be a whole number or None, got '10'"),
        ("h-dcp", {"bins": 10.5}, "bins must be a whole number, got 10.5"),
        ("h-dcp", {"bins": True}, "bins must be a whole number, got True"),
        ("h-dcp", {"range": (0.0, "1")}, "range must be 2 values, a number each or None"),
        ("h-dcp", {"weights": 3}, "weights must be text or Weights or ndarray, got 3"),
        ("q-dcp", {"kappa": "steep"}, "kappa must be a number, got 'steep'"),
        ("q-dcp", {"certify": 1}, "certify must be true or false, got 1"),
        (
            "e-dcp",
            {"prefer": "speed"},
            "prefer must be 'rounds' or 'numbers' or 'bits' or 'balanced', got 'speed'",
        ),
    ],
)
def test_an_option_of_the_wrong_type_is_refused_where_it_is_given(method, options, words):
    with pytest.raises(ValueError) as caught:
        calibrate([[0.1, 0.2], [0.3]], Network.chain(2), method=method, **options)
    assert words in str(caught.value)


def test_numbers_of_numpy_are_options_like_any_other():
    held, network = [np.arange(30.0), np.arange(20.0)], Network.chain(2)
    plain = calibrate(held, network, method="h-dcp", rounds=5, bins=16, range=(0.0, 40.0))
    given = {"rounds": np.int64(5), "bins": np.int32(16), "range": np.array([0, 40])}
    other = calibrate(held, network, method="h-dcp", **given)
    assert {**other.to_dict(), "seconds": 0} == {**plain.to_dict(), "seconds": 0}


@pytest.mark.filterwarnings("ignore:p-dcp. .* more than required:conformesh.CalibrationNote")
@pytest.mark.parametrize("sign", [1, -1, 0])
@pytest.mark.parametrize("size", [1e306, 1.7e308])
def test_no_threshold_is_nan(method, size, sign):
    """Finite scores near the ends of float64: a number, +inf, or an error in words; never NaN."""
    rng = np.random.default_rng(0)
    held = [size * rng.random(30) * (sign or rng.choice([-1, 1], 30)) for _ in range(6)]
    try:
        result = calibrate(held, Network.cycle(6), 0.1, method)
    except OverflowError as error:
        assert method in ("q-dcp", "average")
        assert "divide all scores by one number" in str(error)  # noqa: PT017
        return
    assert not np.isnan(result.thresholds).any()
    assert result.thresholds.min() > -np.inf
    assert result.estimate is None or np.isfinite(result.estimate)


def test_whatever_a_method_returns_nan_is_refused(monkeypatch):
    from dataclasses import replace

    from conformesh import METHODS
    from conformesh.kernels.weighted_scores import WeightedScores
    from conformesh.pipeline.solver import solve_draws
    from conformesh.protocols.baselines import fcp

    def broken(block, samples, alphas, options):
        outcome = yield from fcp(block, samples, alphas, options)
        outcome.thresholds[1] = np.nan
        return outcome

    monkeypatch.setitem(METHODS, "fcp", replace(METHODS["fcp"], protocol=broken))
    with pytest.raises(OverflowError, match="'fcp' ended without a number"):
        calibrate(HELD, Network.cycle(5), 0.1, "fcp")
    with pytest.raises(OverflowError, match="'fcp' ended without a number"):
        solve_draws(WeightedScores.of(HELD), Network.cycle(5), (0.1,), "fcp")
