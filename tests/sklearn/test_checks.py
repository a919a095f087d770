"""scikit-learn's own checks of what an estimator must do."""

import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, QuantileRegressor, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from conformesh.sklearn import MeshClassifier, MeshRegressor

EXPECTED_FAILURES: dict[str, str] = {}  # name of the check: why it cannot pass

QUICK = (
    MeshClassifier(LogisticRegression()),
    MeshClassifier(LogisticRegression(), calibration_size=0.25, random_state=0),
    MeshRegressor(Ridge()),
    MeshRegressor(Ridge(), calibration_size=0.25, random_state=0),
)
SLOW = (  # with a seed: of the few rows of a check, a random half may have none of a class
    MeshClassifier(
        make_pipeline(StandardScaler(), LogisticRegression()),
        nonconformity="aps",
        calibration_size=0.25,
        random_state=0,
    ),
    MeshClassifier(LinearSVC(), nonconformity="logit", method="h-dcp", calibration_size=0.5, random_state=0),
    MeshClassifier(
        RandomForestClassifier(10, random_state=0), nonconformity="raps", calibration_size=0.5, random_state=0
    ),
    MeshRegressor(QuantileRegressor(alpha=0.0), nonconformity="cqr", calibration_size=0.25, random_state=0),
    MeshRegressor(LinearRegression(), nonconformity="normalised-residual", scale_estimator=Ridge(), random_state=0),
    MeshRegressor(LinearRegression(), symmetric=False, calibration_size=0.5, random_state=0),
)


@pytest.mark.filterwarnings("ignore")  # many checks calibrate with a handful of rows
@parametrize_with_checks([*QUICK], expected_failed_checks=lambda _: EXPECTED_FAILURES)
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([*SLOW], expected_failed_checks=lambda _: EXPECTED_FAILURES)
def test_scikit_learn_checks_pass_around_other_models(estimator, check):
    check(estimator)
