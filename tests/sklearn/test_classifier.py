"""Sets of a classifier: which threshold, whose classes, whose rows, and what is refused."""

import networkx
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from conformesh import Network, Result, calibrate, p_values
from conformesh.scores import APS, LAC
from conformesh.sklearn import MeshClassifier
from tests.statistics import assert_coverage, power_against

X, Y = load_iris(return_X_y=True)
X = X + np.random.default_rng(1).normal(0, 0.8, X.shape)  # a model that is not always right
TRAIN, REST = slice(0, None, 3), np.arange(len(X)) % 3 > 0
SITES = np.array(["north", "south", "west", "east"])[np.arange(REST.sum()) % 4]


@pytest.fixture(scope="module")
def model():
    return LogisticRegression(max_iter=1000).fit(X[TRAIN], Y[TRAIN])


def scores_of(mesh):
    """The scores of every device, by name."""
    return {name: mesh.table_.score[mesh.table_.rows(k)] for k, name in enumerate(mesh.table_.names)}


def test_devices_agree_on_the_threshold_of_calibrate(model):
    mesh = MeshClassifier(model, alpha=0.2).calibrate(X[REST], Y[REST], devices=SITES)
    scores = LAC()(model.predict_proba(X[REST]), Y[REST])
    by_hand = calibrate({name: scores[name == SITES] for name in sorted({*SITES})}, "cycle", 0.2, score="lac")
    assert mesh.result_.threshold == by_hand.threshold
    assert str(mesh.result_.certificate) == str(by_hand.certificate)
    assert mesh.result_.device_ids == ("east", "north", "south", "west")
    assert np.array_equal(mesh.predict_set(X), by_hand.predict(model.predict_proba(X)))
    assert np.array_equal(mesh.predict(X), model.predict(X))
    assert np.array_equal(mesh.predict_proba(X), model.predict_proba(X))
    assert np.array_equal(mesh.decision_function(X), model.decision_function(X))
    assert mesh.score(X, Y) == model.score(X, Y)
    assert mesh.n_features_in_ == 4


def test_rows_by_device_come_in_many_forms(model):
    rows, labels = X[REST], Y[REST]
    names = ("north", "south", "west", "east")
    tables, truths = ({n: part[n == SITES] for n in names} for part in (rows, labels))
    wanted = scores_of(MeshClassifier(model).calibrate(rows, labels, devices=SITES))
    for given in (
        {"X": tables, "y": truths},
        {"X": {n: (tables[n], truths[n]) for n in names}},
        {"X": rows.tolist(), "y": labels.tolist(), "devices": SITES.tolist()},
    ):
        mesh = MeshClassifier(model).calibrate(**given)
        assert mesh.table_.names == tuple(sorted(names))
        for n in names:
            np.testing.assert_allclose(np.sort(scores_of(mesh)[n]), np.sort(wanted[n]), rtol=1e-12)
        assert mesh.evaluate(**given).coverage.rows == len(rows)
        assert {*mesh.evaluate(**given).per_device} == {*names}
    for given in (
        {"X": [(tables[n], truths[n]) for n in names]},
        {"X": [tables[n] for n in names], "y": [truths[n] for n in names]},
        {"X": rows, "y": labels, "devices": np.arange(len(rows)) % 4},
    ):
        assert MeshClassifier(model).calibrate(**given).table_.names == ("0", "1", "2", "3")


def test_a_device_may_have_no_rows(model):
    network = networkx.path_graph(["north", "south", "west", "east", "idle"])
    mesh = MeshClassifier(model).calibrate(X[REST], Y[REST], devices=SITES, network=network)
    assert len(scores_of(mesh)["idle"]) == 0
    assert mesh.result_.devices == 5
    by_dict = {"a": (X[REST], Y[REST]), "b": (X[:0], Y[:0])}
    mesh = MeshClassifier(model, network="chain").calibrate(by_dict)
    assert (mesh.network_.name, mesh.result_.examples) == ("chain 2", REST.sum())


@pytest.mark.parametrize("names", [(3, 5, 8), ("setosa", "versicolor", "virginica"), (1.0, 2.0, 4.0)])
def test_classes_are_those_of_the_model(names, tmp_path):
    labels = np.array(names)[Y]
    mesh = MeshClassifier(LogisticRegression(max_iter=1000), calibration_size=0.5, random_state=0).fit(X, labels)
    assert mesh.classes_.tolist() == [*names]
    assert mesh.result_.classes == names
    sets, named = mesh.predict_set(X), mesh.predict_set(X, as_names=True)
    assert [[*own] for own in named] == [[n for n, inside in zip(names, row, strict=True) if inside] for row in sets]
    evaluation = mesh.evaluate(X, labels)
    assert [*evaluation.per_class] == [*names]
    assert [*evaluation.parts["class"]] == [*map(str, names)]
    same = mesh.result_.evaluate(mesh.predict_proba(X), labels)
    assert same.parts == evaluation.parts
    assert evaluation.coverage.covered == sum(label in own for label, own in zip(labels, named, strict=True))
    mesh.result_.save(tmp_path / "found.json")
    again = Result.load(tmp_path / "found.json")
    assert again.classes == names
    assert again.evaluate(mesh.predict_proba(X), labels) == mesh.result_.evaluate(mesh.predict_proba(X), labels)


def test_truth_values_are_classes_too():
    labels = Y > 0
    mesh = MeshClassifier(LogisticRegression(), calibration_size=0.5, random_state=0).fit(X, labels)
    assert mesh.result_.classes == (False, True)
    assert mesh.evaluate(X, labels).coverage.rows == len(X)


def test_another_alpha_is_one_more_run(model):
    mesh = MeshClassifier(model, alpha=0.1).calibrate(X[REST], Y[REST], devices=SITES)
    other = MeshClassifier(model, confidence_level=0.6).calibrate(X[REST], Y[REST], devices=SITES)
    assert other.result_.alpha == 0.4
    assert np.array_equal(mesh.predict_set(X, alpha=0.4), other.predict_set(X))
    assert mesh.evaluate(X, Y, alpha=0.4) == other.evaluate(X, Y)
    assert mesh.result_.alpha == 0.1
    assert mesh.predict_set(X, alpha=0.4).sum() < mesh.predict_set(X).sum()


def test_confidence_level_is_the_decimal_written(model):
    """1 - 0.9 in floats is a little below one tenth, and would ask for one more score of ten."""
    mesh = MeshClassifier(model, confidence_level=0.9).calibrate(X[:9], Y[:9])
    assert mesh.result_.certificate.required_rank == 9
    with pytest.raises(ValueError, match=r"alpha=0.2 and confidence_level=0.9 disagree"):
        MeshClassifier(model, alpha=0.2, confidence_level=0.9).calibrate(X[REST], Y[REST])


@pytest.mark.parametrize("score", ["lac", "margin", "aps", "raps"])
def test_sets_are_the_classes_with_large_p_values(score, model):
    mesh = MeshClassifier(model, nonconformity=score).calibrate(X[REST], Y[REST], devices=SITES)
    p = mesh.predict_p(X)
    for alpha in (0.1, 0.25):
        assert np.array_equal(p > alpha, mesh.predict_set(X, alpha=alpha))
    assert np.array_equal(mesh.predict_p(X, Y), p[np.arange(len(Y)), Y])


def test_p_values_are_of_the_mixture_that_was_asked_for(model):
    """Devices of very different sizes: p-values of `mixture="equal"` or given shares are not those of `sizes`."""
    sites = np.where(np.arange(REST.sum()) < 8, "small", "large")
    shares = {"small": 3, "large": 1}
    found = {}
    for mixture in ("sizes", "equal", shares):
        mesh = MeshClassifier(model, mixture=mixture).calibrate(X[REST], Y[REST], devices=sites)
        found[str(mixture)] = mesh.predict_p(X)
        table = 1 - model.predict_proba(X)
        np.testing.assert_array_equal(
            mesh.predict_p(X), p_values(scores_of(mesh), "chain", table, mixture=mixture).values
        )
        np.testing.assert_array_equal(mesh.predict_p(X) > 0.1, mesh.predict_set(X))
    assert len({table.tobytes() for table in found.values()}) == 3


def test_an_integer_rng_draws_for_each_row_also_in_separate_calls(model):
    mesh = MeshClassifier(model, nonconformity=APS(randomised=True)).calibrate(X[REST], Y[REST])
    rows = np.unique(X, axis=0)[:40]
    for predict in (mesh.predict_set, mesh.predict_p):
        whole = predict(rows, rng=82)
        np.testing.assert_array_equal(np.concatenate([predict(rows[i : i + 1], rng=82) for i in range(40)]), whole)
    u = mesh.score_.draws(model.predict_proba(rows), rng=82)["u"]
    assert len({*u.tolist()}) == 40


def test_a_score_is_a_name_a_class_or_an_object(model):
    each = [MeshClassifier(model, nonconformity=one).calibrate(X[REST], Y[REST]) for one in ("aps", APS, APS())]
    assert len({mesh.result_.threshold for mesh in each}) == 1
    drawn = MeshClassifier(model, nonconformity=APS(randomised=True), random_state=3)
    sets = [clone(drawn).set_params(estimator=model).calibrate(X[REST], Y[REST]).predict_set(X) for _ in range(2)]
    assert np.array_equal(*sets)
    mesh = drawn.set_params(random_state=None).calibrate(X[REST], Y[REST])
    assert np.array_equal(mesh.predict_set(X, rng=1), mesh.predict_set(X, rng=1))


def surprise(p, y):
    return -np.log(p[np.arange(len(y)), y])


def test_a_score_may_be_a_function(model):
    mesh = clone(MeshClassifier(FrozenEstimator(model), nonconformity=surprise)).calibrate(X[REST], Y[REST])
    wanted = MeshClassifier(model).calibrate(X[REST], Y[REST])  # the same order of labels
    assert np.array_equal(mesh.predict_set(X), wanted.predict_set(X))
    assert np.array_equal(mesh.predict_p(X), wanted.predict_p(X))


def test_logits_are_the_decision_function(model):
    svc = LinearSVC().fit(X[TRAIN], Y[TRAIN])
    mesh = MeshClassifier(svc, nonconformity="logit").calibrate(X[REST], Y[REST], devices=SITES)
    assert mesh.evaluate(X, Y).coverage.rate > 0.8
    assert not hasattr(mesh, "predict_proba")
    assert not hasattr(MeshClassifier(svc).estimator, "predict_proba")
    two = MeshClassifier(LinearSVC().fit(X[TRAIN], Y[TRAIN] > 0), nonconformity="logit").calibrate(X[REST], Y[REST] > 0)
    assert two.predict_set(X).shape == (len(X), 2)
    with pytest.raises(TypeError, match=r"LinearSVC has no predict_proba; use nonconformity='logit'"):
        MeshClassifier(svc).calibrate(X[REST], Y[REST])


def test_thresholds_of_their_own(model):
    mesh = MeshClassifier(model, method="local").calibrate(X[REST], Y[REST], devices=SITES)
    own = mesh.predict_set(X[REST], devices=SITES)
    proba = model.predict_proba(X[REST])
    for name in ("north", "east"):
        t = mesh.result_.threshold_of(name)
        assert np.array_equal(own[name == SITES], LAC().sets(proba[name == SITES], t))


class Foreign:
    """A model that is no estimator of scikit-learn and has no names for its classes."""

    def __init__(self, model):
        self.model = model

    def predict_proba(self, rows):
        return self.model.predict_proba(rows)


def test_any_model_with_probabilities_will_do(model):
    mesh = MeshClassifier(Foreign(model)).calibrate(X[REST], Y[REST], devices=SITES)
    assert mesh.classes_.tolist() == [0, 1, 2]
    wanted = MeshClassifier(model).calibrate(X[REST], Y[REST], devices=SITES)
    assert np.array_equal(mesh.predict_set(X), wanted.predict_set(X))


# --- fitting ----------------------------------------------------------------------------------------------------------


def test_fit_keeps_the_same_share_of_every_device():
    devices = np.array(["a"] * 100 + ["b"] * 40 + ["c"] * 10)
    mesh = MeshClassifier(LogisticRegression(max_iter=1000), calibration_size=0.2, random_state=0)
    mesh.fit(X, Y, devices=devices)
    assert {name: len(own) for name, own in scores_of(mesh).items()} == {"a": 20, "b": 8, "c": 2}
    again = clone(mesh).fit(X, Y, devices=devices)
    assert again.result_.threshold == mesh.result_.threshold


def test_a_new_model_forgets_the_old_threshold(model):
    mesh = MeshClassifier(LogisticRegression(max_iter=1000), calibration_size=0.5).fit(X, Y)
    mesh.set_params(calibration_size=None).fit(X, Y)
    with pytest.raises(NotFittedError, match=r"predict_set needs a calibration: call calibrate"):
        mesh.predict_set(X)
    assert mesh.predict(X).shape == Y.shape


def test_a_threshold_belongs_to_its_model(model):
    other = LogisticRegression(C=0.01).fit(X[TRAIN], Y[TRAIN])
    mesh = MeshClassifier(model).calibrate(X[REST], Y[REST])
    sets = mesh.predict_set(X)
    mesh.set_params(estimator=other)
    assert np.array_equal(mesh.predict_set(X), sets)  # until it is calibrated anew
    wanted = MeshClassifier(other).calibrate(X[REST], Y[REST])
    assert np.array_equal(mesh.calibrate(X[REST], Y[REST]).predict_set(X), wanted.predict_set(X))
    with pytest.raises(ValueError, match="labels"):
        mesh.calibrate(X[REST], Y[1:])
    with pytest.raises(NotFittedError, match="needs a calibration"):
        mesh.predict_set(X)


def test_one_device_has_the_name_that_its_network_gives(model):
    network = Network.chain(1).relabelled(["alone"])
    assert MeshClassifier(model, network=network).calibrate(X[REST], Y[REST]).result_.device_ids == ("alone",)


def test_a_fitted_model_is_kept_only_where_that_was_asked_for(model):
    assert MeshClassifier(model).fit(X, Y).estimator_ is not model
    kept = MeshClassifier(model, prefit=True).fit(X[REST], Y[REST], devices=SITES)
    assert kept.estimator_ is model
    assert kept.result_.examples == REST.sum()
    frozen = clone(MeshClassifier(FrozenEstimator(model))).fit(X[REST], Y[REST], devices=SITES)
    assert frozen.result_.threshold == kept.result_.threshold
    with pytest.raises(NotFittedError, match=r"FrozenEstimator, which clones keep"):
        clone(MeshClassifier(model, prefit=True)).fit(X, Y)
    with pytest.raises(NotFittedError, match=r"is not fitted yet, so MeshClassifier.calibrate has no model"):
        MeshClassifier(model, prefit=False).calibrate(X, Y)
    with pytest.raises(NotFittedError, match=r"call fit\(X, y\), or give a fitted estimator"):
        MeshClassifier(LogisticRegression()).calibrate(X, Y)


def test_mistakes_are_told_in_words(model):
    mesh = MeshClassifier(model)
    rows, labels = X[REST], Y[REST]
    for words, given in {
        r"needs one device for each of 100 rows, got devices of shape \(3,\)": {"devices": ["a", "b", "c"]},
        r"row 1 names no device \(None\)": {"devices": ["a", None] * 50},
        r"the network has 3 devices but no row names its own": {"network": Network.chain(3)},
        r"scores are given for device 'east', which the network does not have": {
            "devices": SITES, "network": Network.chain(4),
        },
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=words):
            mesh.calibrate(rows, labels, **given)
    with pytest.raises(TypeError, match=r"devices='site' names a column, so X must be a frame"):
        mesh.calibrate(rows, labels, devices="site")
    with pytest.raises(ValueError, match=r"unknown class 7; known: 0, 1, 2; the model was not trained with it"):
        mesh.calibrate(rows, np.where(labels == 0, 7, labels))
    with pytest.raises(ValueError, match=r"got 100 rows and 99 labels"):
        mesh.calibrate(rows, labels[1:])
    with pytest.raises(ValueError, match=r"X is a dict by device, so y must be one of the same devices, got ndarray"):
        mesh.calibrate({"a": rows}, labels)
    with pytest.raises(ValueError, match=r"device a must have a pair \(X, y\), got ndarray"):
        mesh.calibrate({"a": rows})
    with pytest.raises(ValueError, match=r"rows came by device already"):
        mesh.calibrate({"a": (rows, labels)}, devices=SITES)
    with pytest.raises(ValueError, match=r"trains one model on rows in one place, got rows by device"):
        MeshClassifier(LogisticRegression()).fit({"a": rows}, {"a": labels})
    with pytest.raises(ValueError, match=r"calibration_size must be the share .* got 25"):
        MeshClassifier(LogisticRegression(), calibration_size=25).fit(rows, labels)
    with pytest.raises(ValueError, match=r"needs a score for classification: 'lac', .* got 'cqr'"):
        MeshClassifier(model, nonconformity="cqr").calibrate(rows, labels)
    with pytest.raises(ValueError, match=r"prefit must be True, False or 'auto', got 'yes'"):
        MeshClassifier(model, prefit="yes").calibrate(rows, labels)


# --- coverage ---------------------------------------------------------------------------------------------------------

PER_DEVICE = (3, 1, 7)


def test_sets_cover_new_rows():
    """False alarm < 1e-6. Power 0.98 against coverage 0.75; calibrating with the rows that trained goes red.

    Each trial trains, calibrates on three devices and predicts one row of its own: the number of hits is binomial.
    """
    assert power_against(280, 0.9, 0.75) > 0.98
    assert_coverage(covered(280, seed=651978631), 280, target=0.9)
    with pytest.raises(AssertionError, match="covered"):
        assert_coverage(covered(30, seed=1, fresh=False), 30, target=0.9)


@pytest.mark.slow
def test_sets_cover_new_rows_over_many_draws():
    """False alarm < 1e-6. Power 0.98 against coverage 0.85."""
    assert power_against(2_000, 0.9, 0.85) > 0.98
    assert_coverage(covered(2_000, seed=9), 2_000, target=0.9)


def covered(trials, seed, *, fresh=True):
    """Count new rows whose class is in their set, calibrated with fresh rows or with those that trained."""
    rng = np.random.default_rng(seed)
    devices = np.repeat(np.arange(3), PER_DEVICE)
    n, hits = len(devices), 0
    for _ in range(trials):
        rows = rng.normal(size=(2 * n + 1, 1))
        noise = rng.random(2 * n + 1) < 0.6
        labels = np.where(noise, rng.integers(0, 2, 2 * n + 1), rows[:, 0] > 0)
        kept = slice(n, 2 * n) if fresh else slice(0, n)
        mesh = MeshClassifier(Nearest().fit(rows[:n], labels[:n]))
        mesh.calibrate(rows[kept], labels[kept], devices=devices)
        hits += int(mesh.predict_set(rows[-1:])[0, labels[-1]])
    return hits


class Nearest:
    """A model that remembers its rows, and so is always right about them."""

    classes_ = np.array([0, 1])

    def fit(self, rows, labels):
        self.rows, self.labels = rows, labels
        return self

    def predict_proba(self, rows):
        distance = np.abs(rows - self.rows.T)
        nearest = distance.argmin(axis=1)
        sure = 1.0 / (1.0 + np.exp(-5.0 * np.exp(-distance.min(axis=1))))
        p = np.where(self.labels[nearest] == 1, sure, 1.0 - sure)
        return np.stack([1.0 - p, p], axis=1)
