"""Intervals of a regressor: residuals, quantile models, models with a scale, and a threshold for each side."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression, QuantileRegressor, Ridge, SGDRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from conformesh import calibrate, scores
from conformesh.sklearn import MeshRegressor
from conformesh.sklearn.regressor import _at_quantiles

X, Y = load_diabetes(return_X_y=True)
TRAIN, KEPT, TEST = slice(0, 200), slice(200, 340), slice(340, None)
DEVICES = np.arange(140) % 7
LINEAR = QuantileRegressor(alpha=0.0)


@pytest.fixture(scope="module")
def model():
    return Ridge().fit(X[TRAIN], Y[TRAIN])


@pytest.fixture(scope="module")
def pair():
    return tuple(QuantileRegressor(quantile=q, alpha=0.0).fit(X[TRAIN], Y[TRAIN]) for q in (0.05, 0.95))


def test_devices_agree_on_the_threshold_of_calibrate(model):
    mesh = MeshRegressor(model).calibrate(X[KEPT], Y[KEPT], devices=DEVICES)
    far = np.abs(model.predict(X[KEPT]) - Y[KEPT])
    by_hand = calibrate([far[k == DEVICES] for k in range(7)], "cycle", score="absolute-residual")
    assert mesh.result_.threshold == by_hand.threshold
    assert np.array_equal(mesh.predict_interval(X[TEST]), by_hand.predict(model.predict(X[TEST])))
    assert np.array_equal(mesh.predict(X), model.predict(X))
    assert mesh.score(X[TEST], Y[TEST]) == model.score(X[TEST], Y[TEST])
    inside = mesh.predict_p(X[TEST], Y[TEST]) > 0.1
    low, high = mesh.predict_interval(X[TEST]).T
    assert np.array_equal(inside, (low <= Y[TEST]) & (Y[TEST] <= high))
    found = mesh.evaluate(X[KEPT], Y[KEPT], devices=DEVICES)
    assert found.coverage.covered == by_hand.certificate.counted_rank
    assert len(found.per_device) == 7


def test_a_pair_of_quantile_models(pair):
    mesh = MeshRegressor(pair, nonconformity="cqr").calibrate(X[KEPT], Y[KEPT], devices=DEVICES)
    bands = np.stack([one.predict(X[KEPT]) for one in pair], axis=1)
    assert mesh.result_.threshold == np.sort(scores.CQR()(bands, Y[KEPT]))[126]  # the rank of 0.9 * 141
    assert np.array_equal(mesh.predict(X), np.mean([one.predict(X) for one in pair], axis=0))
    middle = QuantileRegressor(quantile=0.5, alpha=0.0).fit(X[TRAIN], Y[TRAIN])
    three = MeshRegressor([*pair, middle], nonconformity="cqr").calibrate(X[KEPT], Y[KEPT], devices=DEVICES)
    assert np.array_equal(three.predict_interval(X), mesh.predict_interval(X))
    assert np.array_equal(three.predict(X), middle.predict(X))
    trained = MeshRegressor(pair, nonconformity="cqr", prefit=False).fit(X[TRAIN], Y[TRAIN])
    assert np.array_equal(trained.predict(X), mesh.predict(X))


class Banded:
    """A model whose predictions are two columns."""

    def __init__(self, models):
        self.models = models

    def predict(self, rows):
        return np.stack([one.predict(rows) for one in self.models], axis=1)


def test_one_model_with_two_columns(pair, model):
    both = MeshRegressor(pair, nonconformity="cqr").calibrate(X[KEPT], Y[KEPT])
    one = MeshRegressor(Banded(pair), nonconformity="cqr").calibrate(X[KEPT], Y[KEPT])
    assert np.array_equal(one.predict_interval(X), both.predict_interval(X))
    assert np.array_equal(one.predict(X), both.predict(X))


@pytest.mark.parametrize(
    ("estimator", "wanted"),
    [
        (QuantileRegressor(), {"quantile": 0.1}),
        (HistGradientBoostingRegressor(), {"quantile": 0.1, "loss": "quantile"}),
        (GradientBoostingRegressor(loss="quantile"), {"alpha": 0.1, "loss": "quantile"}),
        (make_pipeline(StandardScaler(), QuantileRegressor()), {"quantileregressor__quantile": 0.1}),
        (SGDRegressor(), None),
        (Ridge(), None),
    ],
)
def test_regressors_that_know_quantiles(estimator, wanted):
    found = _at_quantiles(estimator, (0.1, 0.9))
    if wanted is None:  # an alpha that is no quantile
        assert found == (estimator,)
        return
    assert wanted.items() <= found[0].get_params().items()
    assert {name: 0.9 if value == 0.1 else value for name, value in wanted.items()}.items() <= found[
        1
    ].get_params().items()
    assert len(found) == 2


def test_fit_trains_both_quantiles():
    mesh = MeshRegressor(LINEAR, alpha=0.2, nonconformity="cqr", calibration_size=0.4, random_state=0).fit(X, Y)
    assert [one.quantile for one in mesh.estimator_] == [0.1, 0.9]
    assert mesh.n_features_in_ == 10
    assert 0.7 < mesh.evaluate(X, Y).coverage.rate < 0.95
    mesh.set_params(quantiles=(0.25, 0.75)).fit(X, Y)
    assert [one.quantile for one in mesh.estimator_] == [0.25, 0.75]
    with pytest.raises(ValueError, match=r"quantiles must be a lower and a larger upper one, got \(0.9, 0.1\)"):
        mesh.set_params(quantiles=(0.9, 0.1)).fit(X, Y)


def test_each_side_has_its_own_threshold(pair):
    mesh = MeshRegressor(pair, nonconformity="cqr", symmetric=False).calibrate(X[KEPT], Y[KEPT], devices=DEVICES)
    assert mesh.result_.parts == (("lower",), ("upper",))
    assert mesh.result_.alphas == (0.1,)
    assert mesh.result_.certificate.alphas == (0.05, 0.05)
    low, high = mesh.predict_interval(X[TEST]).T
    found = mesh.evaluate(X[TEST], Y[TEST])
    assert found.coverage.covered == ((low <= Y[TEST]) & (Y[TEST] <= high)).sum()
    assert (mesh.predict_interval(X[TEST], alpha=0.3)[:, 0] >= low).all()
    plain = MeshRegressor(Ridge(), symmetric=False, calibration_size=0.5, random_state=0).fit(X, Y)
    assert plain.result_["lower"].threshold != plain.result_["upper"].threshold


def test_scales_of_a_second_model(model):
    mesh = MeshRegressor(
        Ridge(), nonconformity="normalised-residual", scale_estimator=LinearRegression(), calibration_size=0.5
    ).fit(X, Y)
    widths = np.diff(mesh.predict_interval(X), axis=1)
    assert widths.min() < 0.8 * widths.max()
    assert (mesh._outputs_of(X, mesh.score_, "here")[:, 1] >= mesh.scale_floor_).all()
    assert mesh.evaluate(X, Y).coverage.rate > 0.8
    with pytest.raises(NotFittedError, match=r"scale_estimator is not fitted"):
        MeshRegressor(model, nonconformity="normalised-residual", scale_estimator=Ridge()).calibrate(X[KEPT], Y[KEPT])
    with pytest.raises(ValueError, match=r"needs a scale for each prediction, but Ridge predicts none"):
        MeshRegressor(model, nonconformity="normalised-residual").calibrate(X[KEPT], Y[KEPT])


@pytest.mark.parametrize("known", [BayesianRidge(), GaussianProcessRegressor(alpha=1.0, normalize_y=True)])
def test_scales_of_the_model_itself(known):
    known.fit(X[TRAIN], Y[TRAIN])
    mesh = MeshRegressor(known, nonconformity="normalised-residual").calibrate(X[KEPT], Y[KEPT], devices=DEVICES)
    mean, std = known.predict(X[KEPT], return_std=True)
    assert mesh.result_.threshold == np.sort(np.abs(Y[KEPT] - mean) / std)[126]


def test_mistakes_are_told_in_words(model, pair):
    with pytest.raises(ValueError, match=r"score 'cqr' needs a lower and an upper quantile .* Ridge predicts shape"):
        MeshRegressor(model, nonconformity="cqr").calibrate(X[KEPT], Y[KEPT])
    with pytest.raises(ValueError, match=r"2 models are quantiles, .* got 'absolute-residual'"):
        MeshRegressor(pair).calibrate(X[KEPT], Y[KEPT])
    with pytest.raises(ValueError, match=r"2 estimators are quantile models, .* got 'absolute-residual'; give one"):
        MeshRegressor(pair).fit(X[KEPT], Y[KEPT])
    with pytest.raises(ValueError, match=r"needs a score for regression: 'absolute-residual', .* got 'lac'"):
        MeshRegressor(model, nonconformity="lac").calibrate(X[KEPT], Y[KEPT])
    with pytest.raises(NotFittedError, match=r"MeshRegressor.predict_interval needs a calibration"):
        MeshRegressor(model).predict_interval(X)
    assert MeshRegressor(model).predict(X).shape == Y.shape  # a fitted model predicts without one
