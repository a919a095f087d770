"""Estimators for scikit-learn: any model, with sets and intervals that a mesh of devices certifies."""

from conformesh.sklearn.classifier import MeshClassifier
from conformesh.sklearn.regressor import MeshRegressor

__all__ = ["MeshClassifier", "MeshRegressor"]
