"""Several levels and groups in one run, and warm starts from an earlier result."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest

from conformesh import Network, Result, TooFewScores, calibrate, scores, update
from tests.strategies import exact_rank


@pytest.fixture
def grouped():
    rng = np.random.default_rng(0)
    held = [rng.normal(size=60) for _ in range(9)]
    labels = [rng.integers(0, 3, 60) for _ in range(9)]
    return held, labels


def test_every_group_has_the_threshold_of_its_own_pooled_sort(grouped, method):
    held, labels = grouped
    net = Network.torus(3, 3)
    several = calibrate(held, net, (0.1, 0.3), method, groups=labels)
    assert several.groups == ("0", "1", "2")
    assert several.alphas == (0.1, 0.3)
    for group in range(3):
        own = [s[g == group] for s, g in zip(held, labels, strict=True)]
        for alpha in (0.1, 0.3):
            alone = calibrate(own, net, alpha, method)
            found = several[group, alpha]
            np.testing.assert_array_equal(found.thresholds, alone.thresholds)
            assert found.certificate == alone.certificate  # no group is as large on every device
            assert found.examples == sum(map(len, own))
            if method == "fcp":
                assert found.certificate.required_rank == exact_rank(found.examples, alpha, 9)
            if method == "e-dcp":
                assert found.certificate.required_rank == math.ceil((1 - Fraction(str(alpha))) * found.examples) + 1


def test_shared_stages_cost_less_than_separate_runs(grouped):
    held, labels = grouped
    net = Network.torus(3, 3)
    several = calibrate(held, net, (0.1, 0.3), groups=labels)
    alone = [
        calibrate([s[g == group] for s, g in zip(held, labels, strict=True)], net, alpha)
        for group in range(3)
        for alpha in (0.1, 0.3)
    ]
    assert several.cost.rounds < sum(one.cost.rounds for one in alone) / 2
    assert several.cost.numbers_per_device <= sum(one.cost.numbers_per_device for one in alone)


def test_class_conditional_sets_use_each_labels_own_threshold():
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(3), size=600)
    labels = np.array([rng.choice(3, p=row) for row in p])
    lac = scores.LAC()
    held = np.array_split(lac(p[:400], labels[:400]), 4)
    groups = np.array_split(labels[:400], 4)
    several = calibrate(held, Network.cycle(4), (0.1,), groups=groups, score=lac)
    sets = several.predict(p[400:])
    for label in range(3):
        np.testing.assert_array_equal(sets[:, label], (1 - p[400:, label]) <= several[label].threshold)
        own = labels[400:] == label
        assert sets[own, label].mean() > 0.8
    by_row = several.predict(p[400:], groups=labels[400:])
    thresholds = np.array([several[label].threshold for label in labels[400:]])
    np.testing.assert_array_equal(by_row, lac.sets(p[400:], thresholds))


def test_saved_and_loaded(grouped, tmp_path):
    held, labels = grouped
    several = calibrate(held, Network.torus(3, 3), (0.1, 0.2), groups=labels, score=scores.Logit())
    several.save(tmp_path / "several.json")
    again = Result.load(tmp_path / "several.json")
    assert again.to_dict() == several.to_dict()
    assert json.loads(several.to_json())["guarantee"]["groups"]["names"] == ["0", "1", "2"]


def test_mistakes_are_named(grouped):
    held, labels = grouped
    net = Network.torus(3, 3)
    with pytest.raises(ValueError, match="device 0 has 60 scores but 59 group labels"):
        calibrate(held, net, groups=[labels[0][:-1], *labels[1:]])
    several = calibrate(held, net, (0.1, 0.2), groups=labels, score=scores.Logit())
    with pytest.raises(ValueError, match=r"say which alpha: 0\.1, 0\.2"):
        several.at()
    with pytest.raises(ValueError, match="unknown part '7'; known: 0, 1, 2"):
        several[7, 0.1]
    with pytest.raises(
        ValueError, match=r"this result has 6 thresholds; choose with at\(alpha=\.\.\.\) .* and result\["
    ):
        several.threshold  # noqa: B018
    with pytest.raises(ValueError, match="no threshold for group '7'; known: 0, 1, 2"):
        several.threshold_for([7], 0.1)
    with pytest.raises(ValueError, match="groups named by label, 0 to 1"):
        several.predict(np.full((1, 2), 0.5), alpha=0.1)
    with pytest.warns(TooFewScores, match=r"group 9, alpha 0\.1"):
        calibrate([[0.1]] * 9, net, groups=[[9]] * 9)
    with pytest.raises(TooFewScores):
        calibrate([[0.1]] * 9, net, groups=[[9]] * 9, strict=True)


@pytest.mark.parametrize("network", [Network.torus(5, 4), Network.chain(20)], ids=lambda n: n.name)
def test_warm_starts_are_exact_and_cost_a_fraction(network):
    """Devices lose and gain up to three of about fifty scores; 20 draws: 0.4 to 0.7 of a cold start on average."""
    rng = np.random.default_rng(2)
    cold, warm = [], []
    for _ in range(20):
        held = [rng.normal(size=50) for _ in range(20)]
        first = calibrate(held, network)
        changed = [np.append(s[rng.integers(0, 4) :], rng.normal(size=rng.integers(0, 4))) for s in held]
        again = update(first, changed, network)
        anew = calibrate(changed, network)
        assert again.threshold == anew.threshold == np.sort(np.concatenate(changed))[anew.certificate.required_rank - 1]
        assert again.certificate == anew.certificate
        cold.append(anew.cost.numbers_per_device)
        warm.append(again.cost.numbers_per_device)
    assert np.mean(warm) < 0.75 * np.mean(cold)


@pytest.mark.parametrize(
    "change", [lambda s: s + 100, lambda s: s * 1e-6, lambda s: s[:0], lambda s: np.repeat(s[:1], 60)]
)
def test_a_warm_start_far_off_still_ends_at_the_truth(change):
    rng = np.random.default_rng(4)
    net = Network.cycle(6)
    held = [rng.normal(size=40) for _ in range(6)]
    first = calibrate(held, net, 0.2)
    changed = [*map(change, held[:-1]), held[-1]]
    again = update(first, changed, net)
    assert again.certificate == calibrate(changed, net, 0.2).certificate
    assert again.threshold == calibrate(changed, net, 0.2).threshold


def test_update_survives_a_file_and_other_methods(tmp_path):
    rng = np.random.default_rng(5)
    net = Network.cycle(6)
    held = [rng.normal(size=40) for _ in range(6)]
    for method in ("e-dcp", "h-dcp", "q-dcp"):
        calibrate(held, net, 0.2, method).save(tmp_path / "r.json")
        again = update(Result.load(tmp_path / "r.json"), held, net)
        assert again.threshold == calibrate(held, net, 0.2, method).threshold


def test_huge_scores_do_not_overflow_a_bracket():
    net = Network.cycle(4)
    held = [np.array([1.7e308, -1.7e308, 1.0, 2.0])] * 4
    first = calibrate(held, net, 0.3)
    assert update(first, held, net).threshold == first.threshold
