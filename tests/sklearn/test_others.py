"""With one device, the sets of MAPIE and crepes: the same model, the same rows, the same alpha.

Sets of labels are equal. Ends of intervals may differ by a rounding, because ours are rounded outwards.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits
from sklearn.linear_model import LinearRegression, LogisticRegression, QuantileRegressor
from sklearn.model_selection import StratifiedShuffleSplit

from conformesh.scores import APS, RAPS
from conformesh.sklearn import MeshClassifier, MeshRegressor

ALPHAS = (0.05, 0.1, 0.2, 0.25)
ROUNDING = 1e-12  # relative to labels of about 100


@pytest.fixture(scope="module")
def mapie():
    return pytest.importorskip("mapie", reason="compares with MAPIE: pip install 'conformesh[test]'")


@pytest.fixture(scope="module")
def crepes():
    return pytest.importorskip("crepes", reason="compares with crepes: pip install 'conformesh[test]'")


@pytest.fixture(scope="module")
def digits():
    """A model that is often wrong, calibration rows and test rows."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(X))
    X, y = X[order] / 16 + rng.normal(0, 0.5, X.shape), y[order]
    model = LogisticRegression(max_iter=500).fit(X[:500], y[:500])
    return model, (X[500:900], y[500:900]), X[900:1500]


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return (X[:200], y[:200]), (X[200:320], y[200:320]), (X[320:], y[320:])


def mapie_sets(model, calibration, rows, alpha, score, **params):
    from mapie.classification import SplitConformalClassifier

    theirs = SplitConformalClassifier(
        model, confidence_level=1 - alpha, conformity_score=score, prefit=True, random_state=0
    )
    sets = theirs.conformalize(*calibration).predict_set(rows, conformity_score_params=params)[1][:, :, 0]
    return sets, theirs._mapie_classifier.conformity_score_function_


@pytest.mark.parametrize("alpha", ALPHAS)
def test_lac_gives_the_sets_of_mapie_and_crepes(alpha, digits, mapie, crepes):
    model, calibration, rows = digits
    ours = MeshClassifier(model, alpha=alpha).calibrate(*calibration).predict_set(rows)
    assert np.array_equal(ours, mapie_sets(model, calibration, rows, alpha, "lac")[0])
    theirs = crepes.WrapClassifier(model)
    theirs.calibrate(*calibration)
    named = theirs.predict_set(rows, confidence=1 - alpha, smoothing=False)
    assert np.array_equal(ours, [np.isin(model.classes_, own) for own in named])


def test_p_values_are_those_of_crepes(digits, diabetes, crepes):
    model, calibration, rows = digits
    theirs = crepes.WrapClassifier(model)
    theirs.calibrate(*calibration)
    ours = MeshClassifier(model).calibrate(*calibration).predict_p(rows)
    np.testing.assert_allclose(ours, theirs.predict_p(rows, smoothing=False), rtol=1e-15)
    train, calibration, (rows, y) = diabetes
    model = LinearRegression().fit(*train)
    theirs = crepes.WrapRegressor(model)
    theirs.calibrate(*calibration)
    ours = MeshRegressor(model).calibrate(*calibration).predict_p(rows, y)
    np.testing.assert_allclose(ours, theirs.predict_p(rows, y, smoothing=False), rtol=1e-15)


@dataclass(frozen=True, kw_only=True)
class _LikeMapie(APS):
    """APS with the draws of MAPIE, which begins anew for calibration and for prediction, and whose u is our 1 - u."""

    randomised: bool = True

    def draws(self, outputs, **_):
        return {"u": 1.0 - np.random.RandomState(0).uniform(size=len(outputs))}


@pytest.mark.parametrize("alpha", ALPHAS)
def test_randomised_aps_gives_the_sets_of_mapie(alpha, digits, mapie):
    """MAPIE scores the calibration rows with draws always; so its other two rules for the last label are not ours.

    `include_last_label=True` compares randomised scores of calibration with the plain ones of prediction. Our plain APS
    calibrates and predicts with the same score, and so gives other sets.
    """
    model, calibration, rows = digits
    ours = MeshClassifier(model, alpha=alpha, nonconformity=_LikeMapie()).calibrate(*calibration).predict_set(rows)
    assert np.array_equal(ours, mapie_sets(model, calibration, rows, alpha, "aps", include_last_label="randomized")[0])
    plain = MeshClassifier(model, alpha=alpha, nonconformity="aps").calibrate(*calibration).predict_set(rows)
    theirs = mapie_sets(model, calibration, rows, alpha, "aps", include_last_label=True)[0]
    assert not np.array_equal(plain, theirs)


@pytest.mark.parametrize("alpha", [0.1, 0.25])
def test_raps_has_the_threshold_of_mapie(alpha, digits, mapie):
    """MAPIE chooses penalty and k_reg on a part of the calibration rows; given these, thresholds are equal.

    Sets are equal too, but where a set ends more than one label beyond k_reg: MAPIE then divides by the last label's
    probability less penalties ([Angelopoulos2021], Appendix), where our set is all labels whose score is at most the
    threshold.
    """
    model, (X, y), rows = digits
    theirs, inside = mapie_sets(model, (X, y), rows, alpha, "raps", include_last_label="randomized")
    penalty, k_reg = float(np.ravel(inside.lambda_star)[0]), int(inside.k_star[0])
    chose = len(inside.X_raps)
    kept, _ = next(StratifiedShuffleSplit(n_splits=1, test_size=chose, random_state=0).split(X, y))
    raps = type("LikeMapie", (RAPS,), {"draws": _LikeMapie.draws})(penalty=penalty, k_reg=k_reg, randomised=True)
    mesh = MeshClassifier(model, alpha=alpha, nonconformity=raps).calibrate(X[kept], y[kept])
    assert mesh.result_.threshold == pytest.approx(float(inside.quantiles_[0]), rel=1e-12)
    ours = mesh.predict_set(rows)
    near = (ours | theirs).sum(axis=1) <= k_reg + 1
    assert np.array_equal(ours[near], theirs[near])
    assert near.mean() > 0.9


@pytest.mark.parametrize("alpha", ALPHAS)
def test_absolute_residuals_give_the_intervals_of_mapie_and_crepes(alpha, diabetes, mapie, crepes):
    from mapie.regression import SplitConformalRegressor

    train, calibration, (rows, _) = diabetes
    model = LinearRegression().fit(*train)
    ours = MeshRegressor(model, alpha=alpha).calibrate(*calibration).predict_interval(rows)
    theirs = SplitConformalRegressor(model, confidence_level=1 - alpha, prefit=True).conformalize(*calibration)
    np.testing.assert_allclose(ours, theirs.predict_interval(rows)[1][:, :, 0], rtol=ROUNDING, atol=ROUNDING)
    theirs = crepes.WrapRegressor(model)
    theirs.calibrate(*calibration)
    np.testing.assert_allclose(ours, theirs.predict_int(rows, confidence=1 - alpha), rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_cqr_gives_the_intervals_of_mapie(alpha, symmetric, diabetes, mapie):
    from mapie.regression import ConformalizedQuantileRegressor

    train, calibration, (rows, _) = diabetes
    models = [QuantileRegressor(quantile=q, alpha=0.0).fit(*train) for q in (alpha / 2, 1 - alpha / 2, 0.5)]
    ours = MeshRegressor(tuple(models), alpha=alpha, nonconformity="cqr", symmetric=symmetric).calibrate(*calibration)
    theirs = ConformalizedQuantileRegressor(models, confidence_level=1 - alpha, prefit=True).conformalize(*calibration)
    predicted, intervals = theirs.predict_interval(rows, symmetric_correction=symmetric)
    np.testing.assert_allclose(ours.predict_interval(rows), intervals[:, :, 0], rtol=ROUNDING, atol=ROUNDING)
    np.testing.assert_array_equal(ours.predict(rows), predicted)


def test_normalised_residuals_give_the_intervals_of_mapie_and_crepes(diabetes, mapie, crepes):
    """MAPIE's with a fitted model of scales; by default it fits one of logarithms on a part of the calibration rows."""
    from mapie.conformity_scores import ResidualNormalisedScore
    from mapie.regression import SplitConformalRegressor

    train, calibration, (rows, _) = diabetes
    model = LinearRegression().fit(*train)
    scale = LinearRegression().fit(train[0], 20.0 + np.abs(train[1] - model.predict(train[0])))
    ours = MeshRegressor(model, nonconformity="normalised-residual", scale_estimator=scale).calibrate(*calibration)
    X, y = calibration
    theirs = crepes.ConformalRegressor().fit(np.abs(y - model.predict(X)), sigmas=scale.predict(X))
    intervals = theirs.predict_int(model.predict(rows), sigmas=scale.predict(rows), confidence=0.9)
    np.testing.assert_allclose(ours.predict_interval(rows), intervals, rtol=ROUNDING, atol=ROUNDING)
    known = ResidualNormalisedScore(scale, prefit=True)
    theirs = SplitConformalRegressor(model, confidence_level=0.9, conformity_score=known, prefit=True)
    intervals = theirs.conformalize(*calibration).predict_interval(rows)[1][:, :, 0]
    np.testing.assert_allclose(ours.predict_interval(rows), intervals, rtol=ROUNDING, atol=ROUNDING)
