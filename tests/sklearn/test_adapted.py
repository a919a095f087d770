"""Estimators with adapted scores predict as the functions do, need the devices, and say what does not go along."""

import pickle

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression

from conformesh import adapt, calibrate
from conformesh.sklearn import MeshClassifier, MeshRegressor

pytestmark = pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote")
NAMES = np.array(["a", "b", "c", "d"])
RNG = np.random.default_rng(0)
DEVICES = RNG.integers(0, 6, 1200)
LABELS = NAMES[np.where(RNG.random(1200) < 0.8, DEVICES % 4, RNG.integers(0, 4, 1200))]
ROWS = RNG.normal(size=(1200, 4)) + 1.5 * (LABELS[:, None] == NAMES)
NUMBERS = ROWS[:, 0] + 2 * DEVICES + RNG.normal(size=1200)
TRAIN, KEPT, NEW = slice(0, 300), slice(300, 800), slice(800, 1200)
MODEL = LogisticRegression().fit(ROWS[TRAIN], LABELS[TRAIN])
LINE = LinearRegression().fit(ROWS[TRAIN], ROWS[TRAIN, 0])


def classifier(**given):
    mesh = MeshClassifier(MODEL, random_state=0, **{"adapt": "prior", **given})
    return mesh.calibrate(ROWS[KEPT], LABELS[KEPT], devices=DEVICES[KEPT])


def regressor(**given):
    mesh = MeshRegressor(LINE, random_state=0, **{"adapt": "scale", **given})
    return mesh.calibrate(ROWS[KEPT], NUMBERS[KEPT], devices=DEVICES[KEPT])


def test_sets_are_those_of_the_function():
    mesh = classifier()
    outputs, columns = MODEL.predict_proba(ROWS), np.searchsorted(NAMES, LABELS)
    data = {str(k): (outputs[KEPT][DEVICES[KEPT] == k], columns[KEPT][DEVICES[KEPT] == k]) for k in range(6)}
    places = mesh.result_.adapted.hidden
    result = calibrate(data, mesh.network_, 0.1, adapt="prior", rng=mesh._keywords["rng"])
    assert result.adapted == mesh.result_.adapted
    assert places == result.adapted.hidden
    found = mesh.predict_set(ROWS[NEW], devices=DEVICES[NEW])
    assert np.array_equal(found, result.predict(outputs[NEW], device=DEVICES[NEW].astype(str)))
    assert mesh.predict_set(ROWS[NEW], devices=DEVICES[NEW], as_names=True)[0] == tuple(NAMES[found[0]].tolist())
    assert mesh.result_.score is None  # which is not used


def test_adapted_sets_and_intervals_are_smaller_where_devices_differ():
    """Fixed seeds: sets of 1.1 instead of 1.9 classes, intervals of 3.3 instead of 20, all at .9."""
    for make, labels in ((classifier, LABELS), (regressor, NUMBERS)):
        evaluations = [
            mesh.evaluate(ROWS[NEW], labels[NEW], devices=DEVICES[NEW]) for mesh in (make(adapt=None), make())
        ]
        assert evaluations[1].mean_size < 0.85 * evaluations[0].mean_size
        assert all(each.coverage.rate > 0.86 for each in evaluations)


def test_rows_need_their_device():
    for mesh, words in ((classifier(), "predict_set"), (regressor(), "predict_interval")):
        predict = getattr(mesh, words)
        with pytest.raises(ValueError, match=f"{words} needs devices=, the device of each row"):
            predict(ROWS[NEW])
        with pytest.raises(ValueError, match="evaluate needs devices="):
            mesh.evaluate(ROWS[NEW], LABELS[NEW])
        with pytest.raises(ValueError, match="device '9' took no part"):
            predict(ROWS[:2], devices=[0, 9])
        with pytest.raises(ValueError, match="adapted scores have no p-values"):
            mesh.predict_p(ROWS[NEW], LABELS[NEW] if words == "predict_set" else NUMBERS[NEW])
    alone = MeshClassifier(MODEL, adapt="prior").calibrate(ROWS[KEPT], LABELS[KEPT])
    assert alone.predict_set(ROWS[:3]).shape == (3, 4)  # one device has all rows


def test_forms_of_rows():
    mesh = classifier()
    expected = mesh.predict_set(ROWS[NEW], devices=DEVICES[NEW])
    by_device = {k: (ROWS[KEPT][DEVICES[KEPT] == k], LABELS[KEPT][DEVICES[KEPT] == k]) for k in range(6)}
    other = MeshClassifier(MODEL, adapt=adapt.Prior, random_state=0).calibrate(by_device)
    assert np.array_equal(other.predict_set(ROWS[NEW], devices=DEVICES[NEW]), expected)
    names = [f"x{i}" for i in range(4)]
    frame = pl.DataFrame(ROWS, schema=names).with_columns(site=pl.Series(DEVICES))
    model = LogisticRegression().fit(frame[TRAIN].select(names), LABELS[TRAIN])
    column = MeshClassifier(model, adapt="prior", random_state=0).calibrate(frame[KEPT], LABELS[KEPT], devices="site")
    assert np.array_equal(column.predict_set(frame[NEW], devices="site"), expected)


def test_random_state_draws_the_hidden_rows():
    assert classifier().result_.adapted == classifier().result_.adapted
    drawn = [
        MeshClassifier(MODEL, adapt="prior").calibrate(ROWS[KEPT], LABELS[KEPT], devices=DEVICES[KEPT])
        for _ in range(3)
    ]
    assert len({tuple(mesh.result_.adapted.hidden.values()) for mesh in drawn}) > 1


def test_training_tells_how_frequent_classes_are():
    mesh = MeshClassifier(LogisticRegression(), adapt="prior", calibration_size=0.5, random_state=0)
    mesh.fit(ROWS, LABELS, devices=DEVICES)
    made = mesh.result_.guarantee.adapt
    assert made.prior is not None
    assert np.allclose(made.prior, (mesh.training_counts_ + 1) / (mesh.training_counts_ + 1).sum())
    frozen = MeshClassifier(FrozenEstimator(MODEL), adapt="prior").fit(ROWS[KEPT], LABELS[KEPT], devices=DEVICES[KEPT])
    assert frozen.result_.guarantee.adapt.prior is None
    given = classifier(adapt=adapt.Prior(prior=[1, 2, 3, 4])).result_.guarantee.adapt
    assert given.prior == (0.1, 0.2, 0.3, 0.4)


def test_other_levels_groups_and_mixtures():
    mesh = classifier()
    small = mesh.predict_set(ROWS[NEW], devices=DEVICES[NEW], alpha=0.4)
    assert small.sum() < mesh.predict_set(ROWS[NEW], devices=DEVICES[NEW]).sum()
    several = classifier(alpha=[0.1, 0.4])
    assert several.predict_set(ROWS[NEW], devices=DEVICES[NEW], alpha=0.4).sum() <= small.sum() * 1.2
    groups = np.where(ROWS[:, 0] > 0, "high", "low")
    grouped = MeshClassifier(MODEL, adapt="prior", random_state=0)
    grouped.calibrate(ROWS[KEPT], LABELS[KEPT], devices=DEVICES[KEPT], groups=groups[KEPT])
    found = grouped.evaluate(ROWS[NEW], LABELS[NEW], devices=DEVICES[NEW], groups=groups[NEW])
    assert {*found.per_group} == {"high", "low"}
    assert classifier(mixture="own").predict_set(ROWS[NEW], devices=DEVICES[NEW]).shape == (400, 4)
    assert classifier(adapt="even").predict_set(ROWS[NEW], devices=DEVICES[NEW]).shape == (400, 4)


def test_coverage_within_classes():
    """400 rows, about 100 a class: each is covered at .9, but for chance (3.5 standard deviations)."""
    mesh = classifier(class_conditional=True)
    found = mesh.evaluate(ROWS[NEW], LABELS[NEW], devices=DEVICES[NEW])
    assert {*found.per_class} == {*NAMES}
    assert all(each.rate > 0.79 for each in found.per_class.values())
    own = {name: MODEL.predict_proba(ROWS[KEPT])[DEVICES[KEPT] == k] for k, name in enumerate("012345")}
    labels = {name: np.searchsorted(NAMES, LABELS[KEPT])[DEVICES[KEPT] == k] for k, name in enumerate("012345")}
    groups = {name: [*map(str, NAMES[columns])] for name, columns in labels.items()}
    given = {"groups": groups, "classes": NAMES, "rng": mesh._keywords["rng"]}
    result = calibrate({k: (own[k], labels[k]) for k in own}, mesh.network_, 0.1, adapt="prior", **given)
    expected = result.predict(MODEL.predict_proba(ROWS[NEW]), device=DEVICES[NEW].astype(str))
    assert np.array_equal(mesh.predict_set(ROWS[NEW], devices=DEVICES[NEW]), expected)


def test_scales_of_predictions_are_adapted_to():
    mesh = MeshRegressor(
        LinearRegression(), scale_estimator=LinearRegression(), nonconformity="normalised-residual", adapt="scale"
    ).fit(ROWS[TRAIN], NUMBERS[TRAIN])
    mesh.calibrate(ROWS[KEPT], NUMBERS[KEPT], devices=DEVICES[KEPT])
    intervals = mesh.predict_interval(ROWS[NEW], devices=DEVICES[NEW])
    assert len({*np.diff(intervals, axis=1).round(6).ravel().tolist()}) > 10


def test_estimators_are_pickled_and_cloned():
    mesh = classifier()
    again = pickle.loads(pickle.dumps(mesh))
    expected = mesh.predict_set(ROWS[NEW], devices=DEVICES[NEW])
    assert np.array_equal(again.predict_set(ROWS[NEW], devices=DEVICES[NEW]), expected)
    assert clone(mesh).adapt == "prior"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: classifier(adapt="scale"), "adapt='scale' is for regression; use 'prior'"),
        (lambda: regressor(adapt="prior"), "adapt='prior' is for classification; use 'scale'"),
        (lambda: classifier(nonconformity="aps"), "leave nonconformity='aps' out"),
        (lambda: regressor(nonconformity="cqr"), "or set 'normalised-residual'"),
        (lambda: classifier(loss="false-negative-rate"), "leave loss and symmetric=False out"),
        (lambda: regressor(symmetric=False), "leave loss and symmetric=False out"),
        (lambda: classifier(pac_confidence=0.9), "leave pac_confidence out, or adapt"),
        (lambda: classifier(method="h-dcp"), "use method 'e-dcp'"),
        (lambda: classifier(adapt="priors"), "did you mean 'prior'"),
    ],
)
def test_what_does_not_go_along_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
