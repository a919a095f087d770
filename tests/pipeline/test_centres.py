"""Local coverage: weights at public centres, a threshold each, and draws that can be repeated."""

import itertools
import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest

from conformesh import Centres, Network, Result, calibrate, choose_centres, scores
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.results.evaluation import Coverage, Evaluation, coverage_by_centre
from conformesh.scores.centres import WEIGHT_UNITS
from tests.statistics import assert_coverage, power_against

pytestmark = pytest.mark.filterwarnings("ignore::conformesh.TooFewScores")
RNG = np.random.default_rng(0)
INPUTS = {name: RNG.random(60 + 5 * k) for k, name in enumerate("abcd")}
SCORES = {name: np.abs(RNG.normal(size=len(x))) * (0.2 + x) for name, x in INPUTS.items()}
NETWORK = Network.cycle(4).relabelled(tuple("abcd"))
CENTRES = choose_centres(RNG.random(400), 4)


def calibrated(**more):
    asked = {"inputs": INPUTS, "centres": CENTRES, "score": scores.AbsoluteResidual(), **more}
    return calibrate(SCORES, NETWORK, **asked)


def by_centre(result):
    """The thresholds of the centres, in their order."""
    assert result.parts == tuple((f"centre {c}",) for c in range(len(result.guarantee.centres)))
    return np.array([answer.threshold for answer in result.answers])


@pytest.mark.parametrize("features", [1, 3])
@pytest.mark.parametrize("bandwidth", [1e-3, 0.2, 5.0, 1e6])
def test_weights_are_whole_and_keep_their_caps_wherever_an_input_lies(features, bandwidth):
    """What the rank relies on, for any input: no float has the last word."""
    rng = np.random.default_rng(1)
    known = rng.normal(size=(300, features))
    centres = choose_centres(known, 7, bandwidth=bandwidth)
    far = [rng.normal(size=(200, features)) * 10.0**power for power in (-300, -3, 0, 3, 100, 307)]
    for inputs in (known, centres.points, *far):
        weights = centres.weights(inputs)
        assert weights.dtype == np.int64
        assert (weights >= 0).all()
        assert (weights <= centres.caps).all()
        assert (weights.sum(axis=1) == WEIGHT_UNITS).all()


def test_nearer_centres_weigh_more():
    centres = Centres.at([[0.0, 0.0], [1.0, 0.0], [0.0, 10.0]], 0.7, scales=[1.0, 10.0])
    weights = centres.weights([[0.1, 0.0], [0.9, 0.0], [0.0, 9.0]])
    assert (
        weights.argmax(axis=1).tolist() == [0, 1, 2] == centres.nearest([[0.1, 0.0], [0.9, 0.0], [0.0, 9.0]]).tolist()
    )


def test_what_is_beyond_a_cap_goes_to_the_nearest_with_room():
    centres = Centres.at([0.0, 1.0, 2.0], 0.01, caps=[WEIGHT_UNITS // 2, WEIGHT_UNITS // 4, WEIGHT_UNITS // 4])
    assert centres.weights([0.0]).tolist() == [[WEIGHT_UNITS // 2, WEIGHT_UNITS // 4, WEIGHT_UNITS // 4]]
    assert Centres.at([0.0, 1.0, 2.0], 0.01, caps=[50_000, 50_000, 10]).weights([2.0]).tolist() == [
        [15_526, 50_000, 10]
    ]


def test_centres_are_drawn_by_their_weights():
    """False alarm 1e-6 for each centre: counts are binomial."""
    from scipy.stats import binom

    rows = 20_000
    drawn = CENTRES.draw(np.full(rows, 0.4), rng=5)
    for centre, weight in enumerate(CENTRES.weights([0.4])[0]):
        low, high = binom.ppf([5e-7, 1 - 5e-7], rows, weight / WEIGHT_UNITS)
        assert low <= (drawn == centre).sum() <= high


def test_a_centre_without_weight_is_never_drawn():
    centres = Centres.at([0.0, 1.0, 2.0], 1e-3)
    assert {*centres.draw(np.full(1000, 1.0), rng=0).tolist()} == {1}
    assert {*centres.draw(np.full(1000, 2.0), rng=0).tolist()} == {2}


def test_draws_are_repeated_by_seed_and_by_key():
    inputs = RNG.random(50)
    assert (CENTRES.draw(inputs, rng=3) == CENTRES.draw(inputs, rng=3)).all()
    assert (CENTRES.draw(inputs, rng=3) != CENTRES.draw(inputs, rng=4)).any()
    keys = [f"row {i}" for i in range(50)]
    whole = CENTRES.draw(inputs, keys=keys)
    assert (CENTRES.draw(inputs[::-1], keys=keys[::-1])[::-1] == whole).all()
    found = calibrated()
    outputs = np.zeros(50)
    np.testing.assert_array_equal(
        found.predict(outputs, inputs=inputs, rng=3), found.predict(outputs, inputs=inputs, rng=3)
    )
    np.testing.assert_array_equal(found.predict(outputs, inputs=inputs, keys=keys)[:, 1] > 0, np.ones(50, dtype=bool))
    with pytest.raises(ValueError, match="rng or keys"):
        CENTRES.draw(inputs, rng=3, keys=keys)


def test_a_seed_draws_centre_and_score_apart():
    """With one uniform for both, rows that draw the first centre would always have small APS draws."""
    centres = Centres.at([0.0, 1.0], 0.5)
    outputs = np.full((2000, 2), 0.5)
    held = [RNG.random(200) / 2, (1 + RNG.random(200)) / 2]
    found = calibrate(
        held, Network.chain(2), inputs=[np.zeros(200), np.ones(200)], centres=centres, score=scores.APS(randomised=True)
    )
    inputs = np.full(2000, 0.5)
    thresholds = found.thresholds_for(inputs=inputs, rng=7)
    assert len({*by_centre(found)}) == 2
    first = thresholds == by_centre(found)[0]
    draws = found.score.draws(outputs, rng=7)
    (uniforms,) = draws.values()
    assert 0.4 < uniforms[first].mean() < 0.6
    sets = found.predict(outputs, inputs=inputs, rng=7)  # by these very draws
    np.testing.assert_array_equal(sets, found.score.sets(outputs, thresholds, **draws))


def test_theorem_coverage_holds_near_every_centre():
    """Every way to hide an example of each device, in fractions, through the public call: risk given the centre."""
    rng = np.random.default_rng(2)
    worst = Fraction(0)
    for target in ("sizes", "paper", "equal"):
        for _ in range(3):
            sizes = rng.integers(0, 4, 3)
            table = [(rng.integers(0, 7, n + 1).astype(float), rng.random(n + 1)) for n in sizes]
            centres = choose_centres(rng.random(50), 2, bandwidth=float(rng.choice([0.1, 1.0, 3.0])))
            shares = {"sizes": sizes, "paper": sizes + 1, "equal": np.ones(3, dtype=int)}[target].tolist()
            alpha = Fraction(int(rng.integers(3, 8)), 10)
            lost, whole = [Fraction(0)] * 2, [Fraction(0)] * 2
            for way in itertools.product(*(range(n + 1) for n in sizes)):
                held, x = zip(*([np.delete(part, way[k]) for part in table[k]] for k in range(3)), strict=True)
                found = calibrate(held, Network.chain(3), alpha, inputs=x, centres=centres, mixture=target)
                for k, share in enumerate(shares):
                    value, at = (part[way[k]] for part in table[k])
                    for c, weight in enumerate(centres.weights([at])[0].tolist()):
                        whole[c] += share * weight
                        lost[c] += share * weight * bool(value > found[c].threshold)
            for missed, mass in zip(lost, whole, strict=True):
                if mass:
                    worst = max(worst, missed / mass / alpha)
    assert 0.3 < worst <= 1


def test_thresholds_are_those_of_a_shift_to_each_centre():
    found = calibrated()
    for c in range(len(CENTRES)):
        weights = {name: CENTRES.weights(x)[:, c] for name, x in INPUTS.items()}
        one = calibrate(SCORES, NETWORK, weight=weights, weight_bound=int(CENTRES.caps[c]))
        assert found[c].threshold == one.threshold == found[f"centre {c}"].threshold
        assert found[c].certificate.bound == CENTRES.caps[c]
        assert found[c].certificate.kind == "counted"
    assert (np.diff(by_centre(found)) > 0).all()


def test_inputs_come_in_all_forms():
    wanted = by_centre(calibrated())
    lists = {"inputs": [*INPUTS.values()], "centres": CENTRES}
    np.testing.assert_array_equal(by_centre(calibrate([*SCORES.values()], NETWORK, **lists)), wanted)
    names = np.repeat([*SCORES], [*map(len, SCORES.values())])
    columns = {"score": SCORES, "x": INPUTS}
    frame = pl.DataFrame({"device": names, **{key: np.concatenate([*own.values()]) for key, own in columns.items()}})
    for inputs in ("x", ["x"]):
        found = calibrate(frame, NETWORK, inputs=inputs, centres=CENTRES)
        np.testing.assert_array_equal(by_centre(found), wanted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": {**INPUTS, "b": INPUTS["b"][1:]}}, "device b has 65 scores but 64 inputs"),
        ({"inputs": {**INPUTS, "b": np.full(65, np.nan)}}, "device b: inputs must be finite"),
        (
            {"inputs": {**INPUTS, "b": np.ones((65, 2))}},
            "device b: inputs must have as many features as on other devices, 1, got 2",
        ),
        (
            {"inputs": {name: np.ones((len(x), 2)) for name, x in INPUTS.items()}},
            "device a: inputs must have 1 features",
        ),
        ({"inputs": [*INPUTS.values()]}, "both go by device name"),
        ({"inputs": "x"}, "names a column"),
        ({"method": "h-dcp"}, "near a centre they weigh by their distance .method 'h-dcp'.; use method 'e-dcp'"),
        ({"faults": {"loss": 0.1}}, "needs every message, .* the faults have loss=0.1"),
    ],
)
def test_errors_name_who_and_what(change, words):
    with pytest.raises((ValueError, TypeError), match=words):
        calibrated(**change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bandwidth": 0}, "bandwidth must be a number above 0"),
        ({"points": [math.nan]}, "centres must be finite"),
        ({"scales": [0.0]}, "scales must be 1 numbers above 0"),
        ({"caps": [5, 5]}, "add up to at least 65536"),
    ],
)
def test_centres_are_checked(change, words):
    given = {"points": [0.0, 1.0], "bandwidth": 1.0, **change}
    with pytest.raises(ValueError, match=words):
        Centres.at(given.pop("points"), given.pop("bandwidth"), **given)


def test_centres_are_at_most_as_many_as_inputs():
    with pytest.raises(ValueError, match="from 1 to 2, the number of different inputs, got 3"):
        choose_centres([1.0, 1.0, 2.0], 3)
    assert len(choose_centres([1.0, 1.0], 1)) == 1
    with pytest.raises(TypeError, match="got WeightedScores"):
        calibrate(WeightedScores.of([[1.0]]), Network.complete(1), inputs=[[1.0]], centres=CENTRES)


def test_a_result_is_kept(tmp_path):
    found = calibrated()
    found.save(tmp_path / "local.json")
    again = Result.load(tmp_path / "local.json")
    np.testing.assert_array_equal(by_centre(again), by_centre(found))
    x = RNG.random(30)
    np.testing.assert_array_equal(again.predict(x, inputs=x, rng=1), found.predict(x, inputs=x, rng=1))
    assert "4 centres" in again.title()
    assert all(f"centre {c} at (" in repr(again) for c in range(4))
    with pytest.raises(ValueError, match="inputs must be one for each of 30 rows, got 29"):
        again.predict(x, inputs=x[1:])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bandwidth": -1.0}, "bandwidth must be"),
        ({"points": [[0.0]]}, "caps must be 1 whole numbers"),
        ({"caps": [WEIGHT_UNITS] * 4}, "the cap of a centre must be the bound of its certificate"),
    ],
)
def test_a_damaged_file_is_refused(change, words):
    raw = calibrated().to_dict()
    raw["guarantee"]["centres"].update(change)
    with pytest.raises(ValueError, match=words):
        Result.from_dict(raw)


def test_a_file_of_another_format_is_refused():
    with pytest.raises(ValueError, match="calibrate again"):
        Result.from_dict({**calibrated().to_dict(), "format": "conformesh-local/1"})


def test_evaluation_says_where_coverage_fails():
    """Plain sets cover where noise is small and fail where it is large; local ones stay near 0.9 in every cell."""
    rng = np.random.default_rng(3)
    x = rng.random((8, 250))
    held = np.abs(rng.normal(size=x.shape)) * (0.2 + x)
    centres = choose_centres(rng.random(1000), 10)
    network = Network.cycle(8)
    local = calibrate([*held], network, inputs=[*x], centres=centres, score=scores.AbsoluteResidual())
    new = rng.random(20_000)
    truth = rng.normal(size=len(new)) * (0.2 + new)
    found = local.evaluate(np.zeros(len(new)), truth, inputs=new, rng=0)
    hits = np.abs(truth) <= calibrate([*held], network).threshold
    plain = coverage_by_centre(hits, new, centres)
    gap = sum(cell.rows * abs(cell.rate - 0.9) for cell in plain.values()) / len(new)
    assert found.gap < 0.035
    assert gap > 0.06
    assert sum(cell.rows for cell in found.per_centre.values()) == found.coverage.rows == len(new)
    assert "mean |coverage near a centre - 0.9|" in dict(found.facts())


def test_classes_are_evaluated_too():
    rng = np.random.default_rng(4)
    x = [rng.random(100) for _ in range(3)]
    outputs = [rng.dirichlet(np.ones(3), 100) for _ in range(3)]
    labels = [np.array([rng.choice(3, p=p) for p in own]) for own in outputs]
    lac = scores.LAC()
    held = [lac(p, y) for p, y in zip(outputs, labels, strict=True)]
    found = calibrate(held, Network.complete(3), 0.2, inputs=x, centres=CENTRES, score=lac)
    result = found.evaluate(outputs[0], labels[0], inputs=x[0], rng=0)
    sets = found.predict(outputs[0], inputs=x[0], rng=0)
    assert result.coverage.covered == sets[np.arange(100), labels[0]].sum()
    assert result.mean_size == sets.sum(axis=1).mean()


@pytest.mark.slow
def test_local_coverage_holds_by_chance():
    """Given the centre drawn, over fresh calibrations. False alarm < 1e-6 each; power above 0.99 against 0.8."""
    rng, trials = np.random.default_rng(6), 1500
    centres = choose_centres(rng.random(500), 2, bandwidth=0.6)
    hits = {0: [], 1: []}
    for _ in range(trials):
        x = rng.random((3, 40))
        held = np.abs(rng.normal(size=x.shape)) * (0.05 + x)
        found = calibrate([*held], Network.complete(3), inputs=[*x], centres=centres)
        new = float(rng.random())
        (centre,) = centres.draw([new], rng=rng)
        hits[int(centre)].append(abs(rng.normal()) * (0.05 + new) <= found[int(centre)].threshold)
    for one in hits.values():
        assert power_against(len(one), 0.9, 0.8) > 0.99
        assert_coverage(sum(one), len(one), 0.9)


@pytest.mark.parametrize("features", [1, 3])
def test_a_picture_of_coverage_by_centre(tmp_path, features):
    from matplotlib.image import imread

    from conformesh.plots.local import draw_local

    rng = np.random.default_rng(9)
    inputs = rng.random((400, features))
    cells = choose_centres(inputs, 5)
    found = {}
    for name, chance in {"plain": inputs[:, 0], "local": np.full(400, 0.9)}.items():
        hits = rng.random(400) < chance
        near = coverage_by_centre(hits, inputs, cells)
        found[name] = Evaluation(Coverage.of(hits), 2.5, 0.0, nominal=0.9, per_centre=near)
    draw_local(tmp_path / "local.png", found, cells)
    assert imread(tmp_path / "local.png")[:, :, :3].std() > 0.03


def test_local_coverage_is_said_for_every_input():
    with pytest.raises(ValueError, match="for each of 3 inputs"):
        coverage_by_centre([True, False], [0.1, 0.2, 0.3], CENTRES)


def test_the_gap_of_local_coverage_weighs_cells_by_their_rows():
    """300 rows covered entirely and 100 covered by half, at 0.9: (300 * 0.1 + 100 * 0.4) / 400, not (0.1 + 0.4) / 2."""
    hits = np.repeat([True, False], [350, 50])
    cells = coverage_by_centre(hits, np.repeat([0.0, 1.0], [300, 100]), Centres.at([0.0, 1.0], 0.5))
    assert [cells[k].rows for k in (0, 1)] == [300, 100]
    assert Evaluation(Coverage.of(hits), 1.0, 0.0, nominal=0.9, per_centre=cells).gap == pytest.approx(0.175)


def test_an_integer_draws_a_centre_for_each_row_also_in_separate_calls():
    """Inputs near the middle of two centres, one at a time: each centre in about half. Draws come from a seed."""
    centres, inputs = Centres.at([0.0, 1.0], 0.5), np.linspace(0.49, 0.51, 200)
    drawn = [int(centres.draw([x], rng=7)[0]) for x in inputs]
    assert 60 < sum(drawn) < 140
    assert drawn == centres.draw(inputs, rng=7).tolist()
