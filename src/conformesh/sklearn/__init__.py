"""Estimators for scikit-learn: any model, with sets and intervals that devices certify together.

`MeshClassifier` and `MeshRegressor` have `fit`, `calibrate` and `predict`; `base` is what they share, and `rows` reads
an estimator's rows of features, by device or with a device for each row. The calibration itself is
`conformesh.calibrate`, its result the attribute `result_`. Not here: scores and losses (`scores`), guarantees
(`guarantee`). Imports `api` and what is below it.
"""

from conformesh.sklearn.classifier import MeshClassifier
from conformesh.sklearn.regressor import MeshRegressor

__all__ = ["MeshClassifier", "MeshRegressor"]
