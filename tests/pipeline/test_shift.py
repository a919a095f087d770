"""Shift: weights of scores, of inputs or of classes, on every small table and in all forms that users have."""

import csv
import itertools
import math
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import conformesh.kernels.ranks
from conformesh import Network, Result, calibrate, estimate_ratios, scores, update
from conformesh.kernels.ranks import make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.shift import WeightUnit
from conformesh.pipeline.solver import solve_draws
from tests.statistics import assert_coverage, power_against

MIXTURES = ("sizes", "paper", "equal", "given")
ALPHAS = (Fraction(1, 5), Fraction(1, 2), Fraction(3, 4))


def shares_of(target, sizes, given):
    """How likely a new example comes from each device, up to a factor."""
    return {"sizes": sizes, "paper": [n + 1 for n in sizes], "equal": [1] * len(sizes), "given": given}[target]


def random_table(rng, devices, most=200):
    """Return n_k + 1 scores with weights for each device, often tied, from unlike devices, and few ways to hide one."""
    sizes = rng.integers(0, 5, devices)
    while math.prod(int(n) + 1 for n in sizes) > most:
        sizes = np.maximum(sizes - (rng.random(devices) < 0.4), 0)
    spread = rng.integers(1, 12)
    kind = rng.integers(3)
    table = []
    for n in sizes:
        values = rng.integers(0, spread, n + 1) + rng.integers(0, spread)
        weights = (
            rng.integers(0, 5, n + 1).astype(float),
            rng.random(n + 1) * rng.integers(1, 8),
            np.where(rng.random(n + 1) < 0.3, 4.0, 0.125),
        )[kind]
        table.append((values.astype(float), weights))
    return table


def risks(table, target, given, alphas, rank="auto", by_weight=False):
    """Return risk / alpha at every alpha, as fractions: every way to hide an item of each device, run together.

    The risk of a hidden item counts as it weighs; `by_weight` uses the threshold of its own weight.
    """
    devices = len(table)
    sizes = [len(values) - 1 for values, _ in table]
    shares = shares_of(target, sizes, given)
    weights = np.concatenate([own for _, own in table])
    bound = float(weights.max(initial=0.0)) or 1.0
    ways = [*itertools.product(*(range(n + 1) for n in sizes))]
    unit = WeightUnit.of(bound, sum(sizes), target)
    tests = sorted({*weights.tolist()}) if by_weight else [bound]
    asked = make_requirement(target if target != "given" else {str(k): given[k] for k in range(devices)}, rank)
    levels = [(alpha, test) for alpha in alphas for test in tests]
    requirement = replace(
        asked,
        is_weighted=True,
        largest_weights=(unit.round_up(bound),),
        test_weights=(tuple(unit.round_up(test) for _, test in levels),),
    )
    left = [[tuple(np.delete(part, way[k]) for part in table[k]) for k in range(devices)] for way in ways]
    rounding_loss = np.array(
        [[unit.rounding_loss(left[t][k][1]).sum() for t in range(len(ways))] for k in range(devices)]
    )
    samples = WeightedScores.weighted(
        [[values for values, _ in own] for own in left],
        [[unit.round_down(w) for _, w in own] for own in left],
        None,
        rounding_loss,
    )
    items = np.repeat(np.array(sizes)[:, None], len(ways), axis=1)
    batch = solve_draws(
        samples, Network.complete(devices), [a for a, _ in levels], "e-dcp", requirement=requirement, items=items
    )
    thresholds = batch.outcome.thresholds[0]  # (ways, levels)
    found = []
    for alpha in alphas:
        lost = whole = Fraction(0)
        for t, way in enumerate(ways):
            for k in range(devices):
                value, weight = (part[way[k]] for part in table[k])
                level = levels.index((alpha, float(weight) if by_weight else bound))
                mass = Fraction(shares[k]) * Fraction(float(weight))
                whole += mass
                lost += mass * bool(value > thresholds[t, level])
        found.append(lost / whole / alpha if whole else Fraction(0))
    return found


def random_given(rng):
    return (rng.integers(0, 5, 7) + np.eye(7, dtype=int)[0]).tolist()


@pytest.mark.parametrize("by_weight", [False, True], ids=["one-threshold", "by-test-weight"])
@pytest.mark.parametrize("target", MIXTURES)
def test_theorem_shifted_examples_are_covered(target, by_weight):
    """Every way to hide a new example, in fractions: the weighted risk is at most alpha, on every table."""
    rng = np.random.default_rng([3, MIXTURES.index(target), by_weight])
    worst = Fraction(0)
    for _ in range(6 if by_weight else 12):
        table, given = random_table(rng, int(rng.integers(1, 6)), 100), random_given(rng)
        worst = max(worst, *risks(table, target, given, ALPHAS, by_weight=by_weight))
    assert 0.4 < worst <= 1


@pytest.mark.slow
@pytest.mark.parametrize("by_weight", [False, True], ids=["one-threshold", "by-test-weight"])
@pytest.mark.parametrize("target", MIXTURES)
def test_theorem_shifted_examples_are_covered_on_climbed_tables(target, by_weight):
    """The same on a hundred tables, and on the worst ones to which changing one item at a time leads."""
    rng = np.random.default_rng([4, MIXTURES.index(target), by_weight])
    tables = [(random_table(rng, int(rng.integers(1, 7))), random_given(rng)) for _ in range(100)]
    ratios = [max(risks(table, target, given, ALPHAS, by_weight=by_weight)) for table, given in tables]
    assert max(ratios) <= 1
    for place in np.argsort([-float(ratio) for ratio in ratios])[:4]:
        (table, given), best = tables[place], ratios[place]
        for _ in range(40):
            other = [(values.copy(), weights.copy()) for values, weights in table]
            values, weights = other[rng.integers(len(other))]
            at = rng.integers(len(values))
            values[at], weights[at] = rng.integers(0, 24), rng.choice([0.0, 0.125, 1.0, 3.0, rng.random() * 4])
            ratio = max(risks(other, target, given, ALPHAS, by_weight=by_weight))
            assert ratio <= 1, (other, target, given)
            if ratio >= best:
                table, best = other, ratio


def test_scores_of_devices_that_nobody_asks_about_count_for_nothing():
    """All new examples come from a device without scores: only +inf covers them, whatever others hold."""
    table = [(np.array([5.0]), np.ones(1)), (np.arange(4.0), np.array([1.0, 3.0, 0.0, 2.0]))]
    for by_weight in (False, True):
        assert max(risks(table, "given", [2, 0], ALPHAS, by_weight=by_weight)) == 0


def wrong(slack):
    """The required rank with another slack."""

    def required(self, requirement, alpha, column, level, total, lost, mass=0):
        return math.ceil(
            (1 - alpha) * total + slack(self, alpha, requirement.test_weights[0][level], requirement.largest_weights[0])
        )

    return required


WEIGHED = [(np.array([1.0, 2, 3, 9]), np.array([1.0, 1, 1, 4])), (np.array([4.0, 8]), np.array([1.0, 4]))]
UNLIKE = [(np.arange(6.0), np.ones(6)), (np.array([9.0, 9]), np.ones(2)), (np.array([9.0, 9]), np.ones(2))]
EMPTY = [(np.arange(6.0), np.ones(6)), (np.array([9.0]), np.ones(1))]
ABLATIONS = {  # what the proof needs, left out, and a table that shows it
    "no slack": (lambda d, a, test, bound: 0, WEIGHED, "sizes", Fraction(1, 5)),
    "the new example weighs nothing": (
        lambda d, a, test, bound: d.largest * a * bound,
        WEIGHED,
        "sizes",
        Fraction(1, 5),
    ),
    "a device without scores is forgotten": (
        lambda d, a, test, bound: d.largest * ((1 - a) * test + a * bound),
        EMPTY,
        "equal",
        Fraction(2, 5),
    ),
}


@pytest.mark.parametrize("name", ABLATIONS)
def test_what_the_proof_needs_is_needed(monkeypatch, name):
    slack, table, target, alpha = ABLATIONS[name]
    (kept,) = risks(table, target, None, (alpha,))
    monkeypatch.setattr(conformesh.kernels.ranks.Demand, "required", wrong(slack))
    (broken,) = risks(table, target, None, (alpha,))
    assert kept <= 1 < broken


@pytest.mark.filterwarnings("ignore::conformesh.TooFewScores")
def test_a_bound_that_is_none_covers_less():
    """The largest weight seen is no bound: whoever is heaviest is then covered as if it were light."""
    values, weights = np.array([1.0, 2, 3, 9]), np.array([1.0, 1, 1, 64])
    missed = []
    for hidden in range(4):
        rest = np.delete(np.arange(4), hidden)
        found = [
            calibrate([values[rest]], Network.complete(1), 0.4, weight=[weights[rest]], weight_bound=bound).threshold
            for bound in (64, weights[rest].max())
        ]
        missed.append([weights[hidden] * (values[hidden] > threshold) for threshold in found])
    proper, seen = np.sum(missed, axis=0) / weights.sum()
    assert proper <= 0.4 < seen


def tables_by_class(rng):
    """Three devices with scores, labels and class ratios, and few ways to hide one of each."""
    ratios = {"cat": 0.5, "dog": 2.0, "eel": 0.0}
    sizes = rng.integers(0, 4, 3)
    return ratios, [(rng.integers(0, 9, n + 1).astype(float), rng.choice([*ratios], n + 1)) for n in sizes]


@pytest.mark.filterwarnings("ignore::conformesh.TooFewScores")
@pytest.mark.parametrize("target", ["sizes", "paper", "equal"])
def test_theorem_shifted_classes_are_covered(target):
    """Every way to hide an example through the public call: each label has the threshold of its own ratio."""
    rng = np.random.default_rng(11)
    for _ in range(4):
        ratios, table = tables_by_class(rng)
        sizes = [len(values) - 1 for values, _ in table]
        lost, whole = Fraction(0), Fraction(0)
        for way in itertools.product(*(range(n + 1) for n in sizes)):
            own, labels = zip(*([np.delete(part, way[k]) for part in table[k]] for k in range(3)), strict=True)
            found = calibrate(
                own, Network.chain(3), (0.5,), class_weights=ratios, labels=labels, mixture=target, aggregate="tree"
            )
            for k, share in enumerate(shares_of(target, sizes, None)):
                value, label = (part[way[k]] for part in table[k])
                mass = Fraction(share) * Fraction(ratios[label])
                whole += mass
                lost += mass * bool(value > found[label, 0.5].threshold)
        assert lost <= whole / 2


RNG = np.random.default_rng(0)
INPUTS = {name: RNG.random(30 + 5 * k) for k, name in enumerate("abcd")}
SCORES = {name: np.abs(RNG.normal(size=len(x))) * (1 + x) for name, x in INPUTS.items()}
WEIGHTS = {name: 4 * x for name, x in INPUTS.items()}
NETWORK = Network.cycle(4).relabelled(tuple("abcd"))


def frame(**more):
    columns = {"score": SCORES, "w": WEIGHTS, "x": INPUTS, **more}
    table = {"device": np.repeat([*SCORES], [*map(len, SCORES.values())])}
    return pl.DataFrame({**table, **{name: np.concatenate([*held.values()]) for name, held in columns.items()}})


def twice(x):
    return 4 * np.asarray(x)


def test_weights_come_in_all_forms():
    wanted = calibrate(SCORES, NETWORK, weight=WEIGHTS, weight_bound=4).threshold
    lists = [[*held.values()] for held in (SCORES, WEIGHTS, INPUTS)]
    ratio = {"weight": lambda x: 4 * x[:, 0], "weight_bound": 4}
    for found in (
        calibrate(lists[0], NETWORK, weight=lists[1], weight_bound=4),
        calibrate(SCORES, NETWORK, weight=twice, inputs=INPUTS, weight_bound=4),
        calibrate(lists[0], NETWORK, weight=twice, inputs=lists[2], weight_bound=4),
        calibrate(frame(), NETWORK, weight="w", weight_bound=4),
        calibrate(frame(), NETWORK, weight=twice, inputs="x", weight_bound=4),
        calibrate(frame(), NETWORK, inputs=["x", "w"], **ratio),
    ):
        assert found.threshold == wanted
        assert found.examples == sum(map(len, SCORES.values()))
        assert found.guarantee.weighting.bound == 4


def test_only_ratios_of_weights_count():
    wanted = calibrate(SCORES, NETWORK, weight=WEIGHTS, weight_bound=4).threshold
    for factor in (2.0**-900, 3.0, 1e200):
        scaled = {name: factor * own for name, own in WEIGHTS.items()}
        assert calibrate(SCORES, NETWORK, weight=scaled, weight_bound=4 * factor).threshold == wanted


def test_equal_weights_are_no_weights():
    for target in ("sizes", "paper", "equal", {"a": 1, "b": 2, "c": 0, "d": 1}):
        for weight in (1.0, 0.3):
            ones = {name: np.full(len(own), weight) for name, own in SCORES.items()}
            plain = calibrate(SCORES, NETWORK, 0.2, mixture=target, rank_rule="swap")
            found = calibrate(SCORES, NETWORK, 0.2, mixture=target, rank_rule="swap", weight=ones, weight_bound=weight)
            assert found.threshold == plain.threshold


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight_bound": None}, "weight needs weight_bound="),
        ({"weight_bound": 0}, "weight_bound must be a number above 0"),
        ({"weight_bound": math.inf}, "weight_bound must be a number above 0"),
        ({"weight_bound": "many"}, "weight_bound must be a number above 0"),
        ({"weight": None}, "weight_bound goes with weight="),
        ({"weight": twice}, "give inputs="),
        ({"inputs": INPUTS}, "inputs go with a weight that is a function"),
        (
            {"weight": {**WEIGHTS, "c": np.full(40, 5.0)}},
            "device c, item 0: a weight must be .* got 5; raise weight_bound",
        ),
        ({"weight": {**WEIGHTS, "c": -WEIGHTS["c"]}}, "device c, item 0: a weight must be a number from 0"),
        ({"weight": {**WEIGHTS, "b": np.r_[1, np.nan, np.ones(33)]}}, "device b, item 1: .* got nan; repair"),
        ({"weight": {**WEIGHTS, "b": np.r_[1, 1, np.inf, np.ones(32)]}}, "device b, item 2: .* got inf; repair"),
        ({"weight": {**WEIGHTS, "b": WEIGHTS["b"][1:]}}, "device b has 35 scores but 34 weights"),
        ({"weight": {**WEIGHTS, "b": 1.0}}, "device b has 35 scores but one value"),
        ({"weight": {**WEIGHTS, "b": ["much"] * 35}}, "device b: weights must be numbers"),
        ({"weight": {"a": WEIGHTS["a"]}}, "no weights are given for device 'b'"),
        ({"weight": [*WEIGHTS.values()]}, "both go by device name"),
        ({"weight": "w"}, "names a column"),
        (
            {"weight": lambda x: x[:3], "inputs": INPUTS},
            "device a: the weight function must return one weight for each",
        ),
        ({"pac_confidence": 0.9}, "pac_confidence .* not with weights"),
        ({"rank_rule": "ghost"}, "rank_rule='ghost' counts scores that weigh alike"),
        ({"method": "h-dcp"}, "method 'h-dcp'.*use method 'e-dcp'"),
        ({"method": "fcp"}, "method 'fcp'.*use method 'e-dcp'"),
    ],
)
def test_errors_name_who_and_what(change, words):
    with pytest.raises((ValueError, TypeError), match=words):
        calibrate(SCORES, NETWORK, **{"weight": WEIGHTS, "weight_bound": 4, **change})


def test_thresholds_grow_with_the_weight_of_the_new_example(tmp_path):
    levels = (0.0, 1.0, 2.5)
    several = calibrate(
        SCORES,
        NETWORK,
        (0.1, 0.2),
        weight=WEIGHTS,
        weight_bound=4,
        test_weights=levels,
        score=scores.AbsoluteResidual(),
    )
    assert several.guarantee.weighting.test_weights == (*levels, 4.0)
    assert several.parts == tuple((f"weight at most {level!r}",) for level in (*levels, 4.0))
    for alpha in (0.1, 0.2):
        found = [several[(*part, alpha)].threshold for part in several.parts]
        assert found == sorted(found)
        assert found[-1] == calibrate(SCORES, NETWORK, alpha, weight=WEIGHTS, weight_bound=4).threshold
    several.save(tmp_path / "several.json")
    again = Result.load(tmp_path / "several.json")
    rows = np.array([0.0, 0.1, 1.0, 2.6, 4.0])
    wanted = [several[f"weight at most {level!r}", 0.1].threshold for level in (0.0, 1.0, 1.0, 4.0, 4.0)]
    for one in (several, again):
        np.testing.assert_allclose(one.predict(np.zeros(5), weight=rows, alpha=0.1)[:, 1], wanted, rtol=1e-15)
    with pytest.raises(ValueError, match=r"weight: row 1 must be from 0 to weight_bound 4, got 4\.5"):
        several.predict(np.zeros(2), weight=[1.0, 4.5], alpha=0.1)
    with pytest.raises(ValueError, match=r"row 0 .* got nan"):
        several.predict(np.zeros(2), weight=[math.nan, 1.0], alpha=0.1)
    with pytest.raises(ValueError, match="predict needs weight="):
        several.predict(np.zeros(2), alpha=0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight": None, "weight_bound": None}, "test_weights goes with weight="),
        ({"test_weights": [5]}, "number 0 must be from 0 to weight_bound 4, got 5"),
        ({"class_weights": [1, 2], "labels": WEIGHTS}, "give one of them"),
        ({"labels": WEIGHTS}, "labels go with class_weights="),
        ({"class_weights": [1, 2]}, "class_weights needs labels="),
    ],
)
def test_several_name_what_does_not_go_together(change, words):
    asked = {"weight": WEIGHTS, "weight_bound": 4, "test_weights": [1.0], **change}
    with pytest.raises((TypeError, ValueError), match=words):
        calibrate(SCORES, NETWORK, **asked)


LABELS = {name: RNG.choice(["cat", "dog"], len(own)) for name, own in SCORES.items()}


def test_classes_have_thresholds_by_their_ratio(tmp_path):
    ratios = {"cat": 0.5, "dog": 3, "eel": 3}
    found = calibrate(SCORES, NETWORK, (0.2,), class_weights=ratios, labels=LABELS, score=scores.Logit())
    assert found.parts == (("cat",), ("dog",), ("eel",))
    assert found["cat"].threshold <= found["dog"].threshold == found["eel"].threshold
    weights = {name: np.where(own == "cat", 0.5, 3.0) for name, own in LABELS.items()}
    one = calibrate(SCORES, NETWORK, 0.2, weight=weights, weight_bound=3)
    assert found["dog"].threshold == one.threshold
    assert (
        calibrate(frame(y=LABELS), NETWORK, (0.2,), class_weights=ratios, labels="y")["dog"].threshold == one.threshold
    )
    found.save(tmp_path / "classes.json")
    again = Result.load(tmp_path / "classes.json")
    outputs = RNG.dirichlet(np.ones(3), 20)
    sets = found.predict(outputs, labels=["cat", "dog", "eel"])
    np.testing.assert_array_equal(again.predict(outputs, labels=["cat", "dog", "eel"]), sets)
    by_class = [found[name].threshold for name in ratios]
    np.testing.assert_array_equal(sets, 1 - outputs <= by_class)


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ({"cat": 1}, "no ratio is given for class 'dog', which device a has; known: cat"),
        ({"cat": -1, "dog": 1}, "ratio of class cat must be a number from 0 on, got -1"),
        ({"cat": math.nan, "dog": 1}, "ratio of class cat must be a number"),
        ({"cat": 0, "dog": 0}, "some class must have a ratio above 0"),
    ],
)
def test_ratios_of_classes_are_checked(ratios, words):
    with pytest.raises(ValueError, match=words):
        calibrate(SCORES, NETWORK, class_weights=ratios, labels=LABELS)


def test_a_result_knows_its_weights(tmp_path):
    found = calibrate(SCORES, NETWORK, weight=WEIGHTS, weight_bound=4)
    certificate = found.certificate
    assert certificate.kind == "counted"
    assert certificate.test == certificate.bound <= certificate.weight < certificate.bound * found.examples
    assert "times their weight" in str(certificate)
    found.save(tmp_path / "result.json")
    again = Result.load(tmp_path / "result.json")
    assert (again.guarantee.weighting.bound, again.certificate) == (4.0, certificate)
    with pytest.raises(ValueError, match="had weights of at most 4: give weight="):
        update(again, SCORES, NETWORK)
    assert update(again, SCORES, NETWORK, weight=WEIGHTS, weight_bound=4).threshold == found.threshold


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"required_rank": 1}, "required_rank must be at least"),
        ({"bound": None, "test": None}, "must say the bound"),
        ({"test": 2**40}, "a test of at most"),
        ({"weight": None}, "must have a weight"),
    ],
)
def test_a_damaged_certificate_with_weights_is_refused(change, words):
    raw = calibrate(SCORES, NETWORK, weight=WEIGHTS, weight_bound=4).to_dict()
    raw["answers"][0]["certificate"].update(change)
    with pytest.raises(ValueError, match=words):
        Result.from_dict(raw)


def test_estimated_ratios_are_assumed():
    rng = np.random.default_rng(1)
    ratios = estimate_ratios(INPUTS, rng.beta(2, 1, 2000), bound=3)
    assert {*ratios.weights} == {*INPUTS}
    assert ratios.bound == 3
    for name, x in INPUTS.items():
        np.testing.assert_array_equal(ratios(x), ratios.weights[name])
    found = calibrate(SCORES, NETWORK, weight=ratios)
    assert found.certificate.kind == "assumed"
    assert "estimated by a classifier and clipped" in found.certificate.assumption
    assert calibrate(SCORES, NETWORK, weight=ratios, inputs=INPUTS).threshold == found.threshold
    several = calibrate(SCORES, NETWORK, weight=ratios, test_weights=[1.0])
    assert {answer.certificate.kind for answer in several.answers} == {"assumed"}


def test_ratios_are_near_the_truth():
    """Of beta(2, 1) to uniform inputs the ratio is 2x, whose logarithm is linear in log x."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    rng = np.random.default_rng(2)
    source, target = rng.random((4000, 1)), rng.beta(2, 1, (4000, 1))
    model = make_pipeline(FunctionTransformer(np.log), LogisticRegression())
    ratios = estimate_ratios([source[:1000], source[1000:]], target, bound=4, classifier=model)
    x = np.linspace(0.1, 0.9, 81)
    assert np.abs(ratios(x) - 2 * x).max() < 0.15
    assert [len(own) for own in ratios.weights] == [1000, 3000]


class Frequencies:
    """A classifier of the inputs 0 and 1 that is exactly right about the rows it was fitted with."""

    def fit(self, rows, kinds):
        self.p = np.array([kinds[rows[:, 0] == value].mean() for value in (0, 1)])
        return self

    def predict_proba(self, rows):
        p = self.p[rows[:, 0].astype(int)]
        return np.stack([1 - p, p], axis=1)


@pytest.mark.parametrize("times", [1, 5], ids=["as many", "five times as many"])
def test_ratios_do_not_depend_on_how_many_inputs_each_side_has(times):
    """Three of four new inputs are 1, and one of four calibration inputs: ratios 1/3 and 3, whatever their numbers."""
    source, target = np.repeat([0.0, 1.0], [300, 100]), np.repeat([0.0, 1.0], [20 * times, 60 * times])
    ratios = estimate_ratios(source, target, bound=10, classifier=Frequencies())
    np.testing.assert_allclose(ratios([0.0, 1.0]), [1 / 3, 3])


def test_ratios_say_which_part_of_the_source_was_clipped():
    """A quarter of the source inputs has the ratio 3, the others 1/3; weights at the bound itself are not clipped."""
    source, target = np.repeat([0.0, 1.0], [300, 100]), np.repeat([0.0, 1.0], [50, 150])
    for bound, clipped in ((2, 0.25), (4, 0.0), (0.25, 1.0)):
        ratios = estimate_ratios(source, target, bound=bound, classifier=Frequencies())
        assert ratios.clipped == clipped
        assert ratios.weights.max() == pytest.approx(min(bound, 3))


def test_estimating_needs_rows_of_one_width():
    with pytest.raises(ValueError, match="equally many numbers"):
        estimate_ratios(np.ones((5, 2)), np.ones((5, 3)))
    with pytest.raises(ValueError, match="target inputs must be finite"):
        estimate_ratios(np.ones((5, 2)), np.full((5, 2), np.nan))


def test_shifted_examples_are_covered_by_chance():
    """False alarm < 1e-6. Power above 0.99 against 0.85, which is what unweighted scores cover here, or less."""
    rng, trials, devices, n = np.random.default_rng(5), 2500, 4, 60
    x = rng.random((trials, devices, n))
    values = np.abs(rng.normal(size=x.shape)) * (0.2 + x)
    unit = WeightUnit.of(4.0, devices * n, "sizes")
    samples = WeightedScores.weighted(values, unit.round_down(4 * x), None, np.full((devices, trials), n))
    requirement = replace(make_requirement(), is_weighted=True, largest_weights=(unit.round_up(4.0),))
    items = np.full((devices, trials), n)
    network = Network.complete(devices)
    new = rng.beta(2, 1, trials)  # density 2x on [0, 1]: the uniform one times a weight proportional to x
    truth = np.abs(rng.normal(size=trials)) * (0.2 + new)
    weighed = solve_draws(samples, network, (0.1,), "e-dcp", requirement=requirement, items=items).outcome.thresholds[0]
    plain = solve_draws(WeightedScores.of_trials(values), network, (0.1,), "e-dcp").outcome.thresholds[0]
    assert power_against(trials, 0.9, 0.85) > 0.99
    assert_coverage(int((truth <= weighed[:, 0]).sum()), trials, 0.9)
    with pytest.raises(AssertionError):
        assert_coverage(int((truth <= plain[:, 0]).sum()), trials, 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shift", "local"])
def test_what_is_measured_can_be_measured_again(name):
    """The scripts behind the figures run, and say them in the columns of the table that is kept."""
    folder = Path(__file__).parents[2] / "benchmarks" / "promises"
    source = str(Path(conformesh.kernels.ranks.__file__).parents[1])
    command = [sys.executable, folder / f"{name}.py", "--draws", "2"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, check=True, timeout=300
    )
    kept = [row[:2] for row in csv.reader((folder / f"{name}.csv").read_text().splitlines())][1:]
    assert [line.split("\t")[:2] for line in done.stdout.splitlines()] == kept
