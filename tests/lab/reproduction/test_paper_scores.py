"""Who calibrates with which rows, and what a threshold does on the others, each counted one by one."""

import re
from dataclasses import replace

import numpy as np
import pytest

from conformesh.files.model_outputs import ModelOutputs
from conformesh.lab.reproduction.paper_scores import (
    PAPER_DATA,
    OutputSource,
    PaperScores,
    _PartitionedOutputs,
    paper_score_sources,
)
from conformesh.lab.sweeps.sources import NetworkSpec

KINDS = ("logits", "confidences")


def outputs_of(rows=400, classes=6, seed=0, balanced=True):
    """Continuous outputs: no two true labels have the same score, so that a score tells its row."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(rows) % classes) if balanced else rng.integers(0, classes, rows)
    values = 3 * rng.standard_normal((rows, classes))
    values[np.arange(rows), labels] += 3
    return ModelOutputs(values, labels, "logits", "made up", tuple(map(str, range(classes))))


def label_scores(outputs, kind):
    """The score of every label of every row, with a plain softmax."""
    if kind == "logits":
        return 1 - outputs.values
    powers = np.exp(outputs.values)
    return 1 - powers / powers.sum(axis=1, keepdims=True)


def rows_of(draw, outputs, kind):
    """Find the rows of each device's calibration scores by their values."""
    true = label_scores(outputs, kind)[np.arange(len(outputs)), outputs.labels]
    found = []
    for mine in np.split(draw.values, np.cumsum(draw.sizes)[:-1]):
        gap = np.abs(mine[:, None] - true)
        assert (gap.min(axis=1) < 1e-12).all()
        found.append(gap.argmin(axis=1))
    return found


def draws_of(outputs, kind="logits", devices=3, shares="random", draws=2, seed=0):
    rows = _PartitionedOutputs(outputs, PaperScores(OutputSource("cifar100"), kind, shares), devices)
    return [rows.draw(seed, number) for number in range(draws)]


# --- which rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_equal_shares_are_equal_and_of_the_devices_own_classes(kind):
    outputs = outputs_of()  # a tenth is 40
    for devices, sizes in ((2, [20, 20]), (4, [10] * 4), (3, [14, 13, 13])):
        draws = draws_of(outputs, kind, devices, "equal")
        assert all(draw.sizes.tolist() == sizes for draw in draws)
        blocks = np.array_split(np.arange(6), devices) if 6 % devices == 0 else [[0], [1], [2, 3], [4, 5]]
        for draw in draws:
            for device, rows in enumerate(rows_of(draw, outputs, kind)):
                assert set(outputs.labels[rows]) <= set(blocks[device])
                assert len(set(rows)) == sizes[device]  # nobody twice


def test_random_shares_sum_to_a_tenth_and_vary():
    outputs = outputs_of(rows=999, balanced=False)
    draws = draws_of(outputs, draws=6)
    assert all(draw.sizes.sum() == 100 for draw in draws)
    assert len(np.unique([draw.sizes for draw in draws])) > 3
    for draw in draws:
        for device, rows in enumerate(rows_of(draw, outputs, "logits")):
            assert (outputs.labels[rows] // 2 == device).all()


@pytest.mark.parametrize("shares", ["equal", "random"])
def test_rows_do_not_depend_on_the_kind_of_scores(shares):
    outputs = outputs_of()
    for both in zip(*(draws_of(outputs, kind, shares=shares) for kind in KINDS), strict=True):
        one, other = (rows_of(draw, outputs, kind) for draw, kind in zip(both, KINDS, strict=True))
        for mine, theirs in zip(one, other, strict=True):
            assert set(mine) == set(theirs)


def test_a_uniform_draw_is_the_same_for_any_number_of_devices():
    outputs = outputs_of()
    found = [np.concatenate(rows_of(draws_of(outputs, devices=K)[1], outputs, "logits")) for K in (1, 2, 6)]
    assert set(found[0]) == set(found[1]) == set(found[2])


@pytest.mark.parametrize("shares", ["equal", "random"])
def test_seeds_and_draws_differ_and_more_draws_keep_the_first(shares):
    outputs = outputs_of()

    def chosen(**more):
        draws = draws_of(outputs, shares=shares, **more)
        return [frozenset(np.concatenate(rows_of(draw, outputs, "logits")).tolist()) for draw in draws]

    assert chosen() == chosen()
    assert chosen(draws=4)[:2] == chosen()
    assert len({*chosen(draws=4), *chosen(draws=4, seed=1)}) == 8


def test_too_few_rows_of_a_class_say_whose_and_how_many():
    outputs = outputs_of(rows=100)
    labels = np.where(np.arange(100) < 3, 1, 0)
    lopsided = ModelOutputs(outputs.values[:, :2], labels, "logits", "lopsided", ("a", "b"))
    with pytest.raises(ValueError, match="lopsided: device 1 needs 5 calibration rows of its classes, there are 3"):
        draws_of(lopsided, devices=2, shares="equal")


# --- what a threshold does --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shares", ["equal", "random"])
def test_measures_equal_sets_built_row_by_row(kind, shares):
    """Thresholds of their own on each device, some exactly at a score, +inf and -inf among them.

    With random shares all test rows count alike; with equal ones those of device k weigh n_k + 1 together, the mixture
    of [Wen2025] Eq. (3). Devices have unequally many rows and 5, 4 and 4 of them calibrate, so that all these differ.
    """
    outputs = outputs_of(rows=130, balanced=False)
    draws = draws_of(outputs, kind, 3, shares, draws=3, seed=5)
    table = 1 - (outputs.logits() if kind == "logits" else outputs.probabilities())
    np.testing.assert_allclose(table, label_scores(outputs, kind), atol=1e-12)
    thresholds = np.random.default_rng(1).choice(table.ravel(), size=(3, 3, 5))
    thresholds[0, :, 1], thresholds[1, 0, 4] = -np.inf, np.inf
    thresholds[:, 1, 2], thresholds[:, 2, 3] = np.inf, -np.inf
    found = np.array([[draw.measure(thresholds[:, t, a], True) for a in range(5)] for t, draw in enumerate(draws)])
    coverage, size = np.moveaxis(found, 2, 0)
    for t, draw in enumerate(draws):
        mine = rows_of(draw, outputs, kind)
        calibration = {*np.concatenate(mine).tolist()}
        tests = [row for row in range(130) if row not in calibration]
        homes = [int(outputs.labels[row]) // 2 for row in tests]
        assert len(tests) == 117
        if shares == "random":
            weights = [1 / 117 for _ in tests]
        else:
            weights = [(len(mine[home]) + 1) / (13 + 3) / homes.count(home) for home in homes]
        assert sum(weights) == pytest.approx(1, abs=1e-12)
        for a in range(5):
            hits = labels = 0.0
            for row, weight in zip(tests, weights, strict=True):
                for threshold in thresholds[:, t, a]:
                    chosen = [label for label in range(6) if table[row, label] <= threshold]
                    hits += weight / 3 * (int(outputs.labels[row]) in chosen)
                    labels += weight / 3 * len(chosen)
            assert coverage[t, a] == pytest.approx(hits, abs=1e-12)
            assert size[t, a] == pytest.approx(labels, abs=1e-12)
    assert (coverage[1, 2], size[1, 2]) == pytest.approx((1, 6), abs=1e-12)
    assert (coverage[2, 3], size[2, 3]) == (0, 0)


def test_a_device_may_have_no_test_row_left():
    """With a uniform draw every test row counts the same; here the only row of the last class calibrates."""
    outputs = outputs_of(rows=40, classes=4)
    labels = np.arange(40) % 3
    labels[7] = 3
    rare = replace(outputs, labels=labels)
    (draw,) = draws_of(rare, devices=4, draws=1, seed=4)
    assert draw.sizes[3] == 1
    calibration = np.concatenate(rows_of(draw, rare, "logits"))
    tests = np.setdiff1d(np.arange(40), calibration)
    coverage, size = draw.measure(np.zeros(4), True)
    table = label_scores(rare, "logits")[tests]
    assert coverage == pytest.approx((table[np.arange(36), labels[tests]] <= 0).mean())
    assert size == pytest.approx((table <= 0).sum() / 36)


def test_coverage_is_at_most_one():
    outputs = outputs_of(rows=2000, classes=100)
    (draw,) = draws_of(outputs, devices=20, shares="equal", draws=1)
    assert draw.measure(np.full(20, np.inf), True)[0] <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_range_is_that_of_all_outputs_of_the_calibration_rows(kind):
    outputs = outputs_of()
    values = 1 - label_scores(outputs, kind)
    for draw in draws_of(outputs, kind):
        mine = values[np.concatenate(rows_of(draw, outputs, kind))]
        assert draw.output_range == pytest.approx((mine.min(), mine.max()), abs=1e-12)


def test_probabilities_of_zero_do_not_make_the_range_infinite():
    """Their logarithm is -inf; levels cannot span that."""
    outputs = outputs_of()
    own = np.eye(outputs.values.shape[1], dtype=bool)[outputs.labels]
    values = np.where((outputs.probabilities() < 1e-3) & ~own, 0.0, outputs.probabilities())
    rare = replace(outputs, values=values / values.sum(axis=1, keepdims=True), kind="probabilities")
    assert np.isneginf(rare.logits()).any()
    ranges = np.array([draw.output_range for draw in draws_of(rare)])
    assert np.isfinite(ranges).all()
    assert (ranges[:, 0] < ranges[:, 1]).all()


def test_a_true_label_of_probability_zero_has_no_logit():
    outputs = outputs_of()
    values = outputs.probabilities().copy()
    values[7, outputs.labels[7]] = 0.0
    never = replace(outputs, values=values / values.sum(axis=1, keepdims=True), kind="probabilities")
    with pytest.raises(ValueError, match=r"row 7: the true label has probability 0.*--scores confidences"):
        draws_of(never)
    assert draws_of(never, "confidences")[0].classes == outputs.values.shape[1]


# --- where outputs come from ------------------------------------------------------------------------------------------


def test_without_files_everything_is_synthetic():
    sources = paper_score_sources([])
    assert sources == {name: OutputSource(name) for name in PAPER_DATA}
    outputs = sources["pathmnist"].load()
    assert outputs.synthetic
    assert outputs.values.shape == PAPER_DATA["pathmnist"]
    assert outputs is OutputSource("pathmnist").load()  # read once


def test_files_and_folders_are_told_apart_by_their_classes(small_files):
    files = [str(small_files / "nine.npz"), str(small_files / "hundred.npz")]
    by_file, by_folder = paper_score_sources(files), paper_score_sources([str(small_files)])
    assert by_file == by_folder
    assert [*by_file] == [*PAPER_DATA]
    assert by_file["pathmnist"] == OutputSource("pathmnist", files[0])
    assert by_file["cifar100"].load().values.shape == (2000, 100)
    assert not by_file["cifar100"].load().synthetic
    alone = paper_score_sources(files[:1])
    assert alone["pathmnist"].path == files[0]
    assert alone["cifar100"].path is None


def test_files_that_do_not_fit_are_refused_with_their_names_and_numbers(small_files, tmp_path):
    odd = tmp_path / "odd.npz"
    np.savez(odd, logits=np.zeros((4, 7)), labels=np.arange(4))
    with pytest.raises(ValueError, match=rf"{re.escape(str(odd))}: .* 100 \(cifar100\) or 9 \(pathmnist\).*, got 7"):
        paper_score_sources([str(odd)])
    nine = str(small_files / "nine.npz")
    with pytest.raises(ValueError, match=rf"{re.escape(nine)}: outputs for 9 classes were given already by .*nine"):
        paper_score_sources([nine, str(small_files)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: needs at least one \.npz .* found none"):
        paper_score_sources([str(tmp_path / "empty")])
    with pytest.raises((ValueError, OSError), match=r"nowhere\.npz"):
        paper_score_sources([str(tmp_path / "nowhere.npz")])


def test_draws_are_prepared_once_and_those_of_their_own_seed(cifar):
    """[Wen2025] Section 6.1: a tenth of the rows calibrates."""
    scores, chain = PaperScores(cifar, "logits", "equal"), NetworkSpec("chain", None, 20, 0, False, ())
    first = scores.draw(chain, 20, 0, 0)
    assert scores.draw(chain, 20, 0, 0) is first
    assert first.sizes.sum() == 200
    for other in (scores.draw(chain, 20, 0, 1), scores.draw(chain, 20, 1, 0)):
        assert (other.values != first.values).any()
