"""The same numbers as other libraries, bit for bit, where their definition is ours; where not, by how much and why.

`docs/scores.md` has the table that these tests stand for.
"""

import numpy as np
import pytest

from conformesh import Network, calibrate, scores
from tests import libraries

RNG = np.random.default_rng(0)
P, Y = RNG.dirichlet(np.ones(6), size=300), RNG.integers(0, 6, 300)
NEW = RNG.dirichlet(np.ones(6), size=200)
BAND = np.sort(RNG.normal(size=(300, 2)), axis=1)
MIDDLE, SCALE = BAND.mean(axis=1), 0.5 + np.abs(BAND[:, 0])
VALUES = MIDDLE + RNG.normal(size=300)
ALONE = Network.chain(1)
EXACT = {"rtol": 0, "atol": 0}
ROUNDED = {"rtol": 0, "atol": 2e-15}  # sums of six probabilities in another order


def assert_same(ours, theirs, close=EXACT):
    np.testing.assert_allclose(np.asarray(ours).ravel(), np.asarray(theirs).ravel(), **close)


# --- TorchCP ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "ours", "close"),
    [
        ("LAC", {}, scores.LAC(), EXACT),
        ("Margin", {}, scores.Margin(), EXACT),
        ("TOPK", {"randomized": False}, scores.Rank(), EXACT),
        ("APS", {"randomized": False}, scores.APS(), ROUNDED),
        ("RAPS", {"randomized": False, "penalty": 0.125, "kreg": 1}, scores.RAPS(penalty=0.125, k_reg=1), ROUNDED),
        ("SAPS", {"randomized": False, "weight": 0.125}, scores.SAPS(penalty=0.125), ROUNDED),
    ],
)
def test_scores_of_labels_are_those_of_torchcp(name, options, ours, close):
    """TorchCP has penalties in float32, which an eighth is a number of."""
    kinds = libraries.torchcp("classification.score")
    import torch

    theirs = getattr(kinds, name)(score_type="identity", **options)
    assert_same(ours.of_all_labels(P), theirs(torch.from_numpy(P.copy())), close)
    cut = theirs(torch.from_numpy(P.copy()), torch.from_numpy(Y)).numpy()
    first = P.argmax(axis=1) == Y
    if name == "SAPS":  # TorchCP 1.2 calibrates the most probable label with 0 and predicts it with its probability
        assert (cut[first] == 0).all()
        assert_same(ours(P, Y)[~first], cut[~first], EXACT)
    else:
        assert_same(ours(P, Y), cut, close)


@pytest.mark.parametrize(("name", "ours"), [("APS", "aps"), ("SAPS", "saps"), ("TOPK", "rank")])
def test_draws_of_torchcp_are_ours_from_the_other_end(name, ours):
    """TorchCP takes U of the label's own part away, we leave u: equal for u = 1 - U. It draws anew for every label."""
    kinds = libraries.torchcp("classification.score")
    import torch

    options = {"weight": 0.3} if name == "SAPS" else {}
    torch.manual_seed(4)
    theirs = getattr(kinds, name)(score_type="identity", **options)(torch.from_numpy(P.copy()))
    torch.manual_seed(4)
    drawn = torch.rand(P.shape).numpy().astype(np.float64)  # of each label, in the order of probability
    mine = scores.get_score(ours, randomised=True, **({"penalty": 0.3} if name == "SAPS" else {}))
    order = np.argsort(-P, axis=1)
    for place in range(6):
        labels = order[:, place]
        assert_same(mine(P, labels, 1 - drawn[:, place]), theirs.numpy()[np.arange(300), labels], ROUNDED)


def test_regression_scores_are_those_of_torchcp():
    kinds = libraries.torchcp("regression.score")
    import torch

    y = torch.from_numpy(VALUES)
    assert_same(scores.AbsoluteResidual()(MIDDLE, VALUES), kinds.ABS()(torch.from_numpy(MIDDLE)[:, None], y))
    assert_same(scores.CQR()(BAND, VALUES), kinds.CQR()(torch.from_numpy(BAND), y))
    q = torch.tensor([0.75], dtype=torch.float64)
    theirs = kinds.CQR().generate_intervals(torch.from_numpy(BAND), q)[:, 0]
    assert_same(scores.CQR().intervals(BAND, 0.75), theirs, ROUNDED)


# --- crepes -----------------------------------------------------------------------------------------------------------


def test_scores_of_labels_are_those_of_crepes():
    extras = libraries.crepes("extras")
    classes = np.arange(6)
    for ours, theirs in ((scores.LAC(), extras.hinge), (scores.Margin(), extras.margin)):
        assert_same(ours(P, Y), theirs(P, classes, Y))
        assert_same(ours.of_all_labels(P), theirs(P))


@pytest.mark.parametrize("scaled", [False, True])
def test_residuals_and_intervals_are_those_of_crepes(scaled):
    base = libraries.crepes("base")
    sigmas = SCALE if scaled else None
    theirs = base.ConformalRegressor().fit(residuals=VALUES - MIDDLE, sigmas=sigmas)
    ours = scores.NormalisedResidual() if scaled else scores.AbsoluteResidual()
    outputs = np.column_stack([MIDDLE, SCALE]) if scaled else MIDDLE
    held = ours(outputs, VALUES)
    assert_same(np.sort(held), np.sort(theirs.alphas))
    for alpha in (0.05, 0.1, 0.37):
        result = calibrate([held], ALONE, alpha, "cp", score=ours)
        found = theirs.predict_int(MIDDLE, sigmas=sigmas, confidence=1 - alpha)
        assert_same(result.predict(outputs), found, {"rtol": 1e-14, "atol": 1e-14})


# --- MAPIE ------------------------------------------------------------------------------------------------------------


def prefit():
    """Estimators that hand on what they are given, so that MAPIE sees our outputs."""
    base = pytest.importorskip("sklearn.base", reason="compares with MAPIE, which needs scikit-learn")

    class Classifier(base.ClassifierMixin, base.BaseEstimator):
        classes_, n_features_in_ = np.arange(6), 6

        def fit(self, X, y):
            return self

        def predict_proba(self, X):
            return np.asarray(X)

        def predict(self, X):
            return np.argmax(X, axis=1)

        def __sklearn_is_fitted__(self):
            return True

    class Column(base.RegressorMixin, base.BaseEstimator):
        n_features_in_ = 3

        def __init__(self, column=0):
            self.column = column

        def fit(self, X, y):
            return self

        def predict(self, X):
            return np.asarray(X)[:, self.column]

        def __sklearn_is_fitted__(self):
            return True

    return Classifier, Column


def sets_of_mapie(score, *, random_state=1, **options):
    conformal = libraries.mapie("classification").SplitConformalClassifier(
        prefit()[0](), confidence_level=0.9, conformity_score=score, prefit=True, random_state=random_state
    )
    conformal.conformalize(P, Y)
    _, found = conformal.predict_set(NEW, **({"conformity_score_params": options} if options else {}))
    return conformal, found[:, :, 0]


def test_lac_sets_are_those_of_mapie():
    conformal, theirs = sets_of_mapie("lac")
    held = scores.LAC()(P, Y)
    assert_same(held, conformal.conformity_scores)
    for method in ("cp", "e-dcp"):
        np.testing.assert_array_equal(calibrate([held], ALONE, 0.1, method, score="lac").predict(NEW), theirs)


def test_top_k_sets_are_those_of_mapie():
    """MAPIE counts ranks from 0."""
    conformal, theirs = sets_of_mapie("top_k")
    held = scores.Rank()(P, Y)
    assert_same(held - 1, conformal.conformity_scores)
    np.testing.assert_array_equal(calibrate([held], ALONE, 0.1, score="rank").predict(NEW), theirs)


def test_aps_sets_are_those_of_mapie_if_randomised():
    """MAPIE always draws in calibration, U of the label's own part being taken away: ours is 1 - U."""
    conformal, theirs = sets_of_mapie("aps", include_last_label="randomized")
    aps = scores.APS(randomised=True)
    held = aps(P, Y, 1 - np.random.RandomState(1).uniform(size=300))
    assert_same(held, conformal.conformity_scores, ROUNDED)
    u = 1 - np.random.RandomState(1).uniform(size=200)
    ours = aps.sets(NEW, calibrate([held], ALONE, 0.1).threshold, u)
    np.testing.assert_array_equal(ours, theirs)


def test_aps_sets_of_mapie_with_the_last_label_are_larger():
    """By default MAPIE adds the label that crosses the threshold, which its scores do not ask for."""
    conformal, theirs = sets_of_mapie("aps", include_last_label=True)
    threshold = calibrate([conformal.conformity_scores.ravel()], ALONE, 0.1).threshold
    ours = scores.APS().sets(NEW, threshold)
    assert (ours <= theirs).all()
    assert set((theirs.sum(axis=1) - ours.sum(axis=1)).tolist()) <= {0, 1}


def test_raps_is_that_of_mapie_for_the_constants_it_chose():
    """MAPIE chooses penalty and k_reg on a part of the data, and adds the price to its APS scores."""
    kind = libraries.mapie("conformity_scores").RAPSConformityScore
    conformal, _ = sets_of_mapie("aps")
    ranks = scores.Rank()(P, Y).astype(int)
    theirs = kind._regularize_conformity_score(np.array([2]), 0.125, conformal.conformity_scores, ranks)
    u = 1 - np.random.RandomState(1).uniform(size=300)
    assert_same(scores.RAPS(penalty=0.125, k_reg=2, randomised=True)(P, Y, u), theirs, ROUNDED)


def test_absolute_residuals_are_those_of_mapie():
    kind = libraries.mapie("regression").SplitConformalRegressor
    conformal = kind(prefit()[1](), confidence_level=0.9, prefit=True).conformalize(MIDDLE[:, None], VALUES)
    held = scores.AbsoluteResidual()(MIDDLE, VALUES)
    assert_same(held, conformal.conformity_scores)
    _, theirs = conformal.predict_interval(MIDDLE[:, None])
    assert_same(calibrate([held], ALONE, 0.1, score="absolute-residual").predict(MIDDLE), theirs, ROUNDED)


def test_cqr_is_that_of_mapie_symmetric_and_not():
    kind, column = libraries.mapie("regression").ConformalizedQuantileRegressor, prefit()[1]
    X = np.column_stack([BAND, MIDDLE])
    conformal = kind([column(0), column(1), column(2)], confidence_level=0.9, prefit=True).conformalize(X, VALUES)
    cqr = scores.CQR()
    held, sides = cqr(BAND, VALUES), cqr.sides(BAND, VALUES)
    assert_same(np.column_stack([sides, held]).T, conformal.conformity_scores)
    for symmetric, ours in (
        (True, calibrate([held], ALONE, 0.1, score=cqr)),
        (False, calibrate([sides], ALONE, 0.1, score=cqr, symmetric=False)),
    ):
        _, theirs = conformal.predict_interval(X, symmetric_correction=symmetric)
        assert_same(ours.predict(BAND), theirs, ROUNDED)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # means of sizes that no set has
def test_size_stratified_coverage_is_that_of_mapie():
    metrics = libraries.mapie("metrics.classification")
    result = calibrate([scores.APS()(P, Y)], ALONE, 0.3, score="aps")
    sets, labels = result.predict(NEW), RNG.integers(0, 6, 200)
    told = result.evaluate(NEW, labels)
    theirs = metrics.classification_ssc(labels, sets[:, :, None])[0]  # a stratum for each size from 0
    ours = told.by_size([0, 1, 2, 3, 4, 5])
    assert sorted(part.rate for part in ours.values()) == sorted(rate for rate in theirs.tolist() if rate == rate)  # noqa: PLR0124
