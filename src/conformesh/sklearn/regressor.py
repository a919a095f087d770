"""`MeshRegressor`: any regressor, quantile models or a model with a scale, with intervals that devices certify."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_predict

from conformesh.api import calibrate
from conformesh.kernels.ranks import Alpha, exact_alpha, explain_confidence
from conformesh.result.calibration import Calibration
from conformesh.result.sides import Sides, two_sided
from conformesh.scores import Score
from conformesh.scores.base import Task
from conformesh.siding import calibrate_sides
from conformesh.sklearn.base import AUTO, Floats, MeshEstimator, is_fitted
from conformesh.sklearn.rows import labels_of, rows_in

SCALED = "normalised-residual"
BANDED = ("cqr",)  # scores of a lower and an upper quantile
FOLDS = 5  # in which residuals are predicted, by models that have not seen them, for the model of their scale
FLOOR = 0.01  # of the mean residual: the least scale that a model trained here may predict


class MeshRegressor(RegressorMixin, MeshEstimator):  # type: ignore[misc] # scikit-learn has no types
    """A regressor with certified prediction intervals, calibrated on data that its devices do not pool.

    Parameters
    ----------
    estimator
        Any regressor, fitted or not. For quantiles (`cqr`): a regressor with a parameter `quantile`, or `alpha` beside
        ``loss="quantile"``, of which `fit` trains two clones; a pair of models for the lower and the upper quantile,
        with a third for `predict` if there is one; or a fitted model whose `predict` returns two columns.
    nonconformity
        The nonconformity score: "absolute-residual", "cqr", "normalised-residual", a class or an object.
    quantiles
        What the two clones predict; by default alpha / 2 and 1 - alpha / 2.
    scale_estimator
        For `normalised-residual`, a second model that predicts how far labels lie from predictions, above zero. `fit`
        trains a clone of it on the distances of rows predicted by models that have not seen them. None: the estimator's
        own ``predict(X, return_std=True)``, or a second column of its predictions.
    symmetric
        Whether intervals reach as far below as above. False: each side has a threshold of its own for half of alpha,
        found in one run (`calibrate_sides`; with `cqr`, asymmetric CQR), and `calibration_` is a `Sides`.
    alpha, confidence_level, method, network, target, rank, options, prefit, calibration_size, random_state
        As for `MeshClassifier`.

    Attributes
    ----------
    calibration_, estimator_, scores_, network_
        As for `MeshClassifier`; of quantile models `estimator_` is a tuple.
    scale_estimator_
        The fitted model of the scale.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> X = np.arange(200.0)[:, None]
    >>> y = X[:, 0] + np.tile([-1.0, 1.0, 0.5, -0.5], 50)
    >>> mesh = MeshRegressor(LinearRegression().fit(X[:100], y[:100]), alpha=0.1)
    >>> mesh.calibrate(X[100:], y[100:], devices=[k % 4 for k in range(100)]).predict_interval(X[:1]).round(1)
    array([[-1.,  1.]])
    """

    task: ClassVar[Task] = "regression"
    reads: ClassVar[tuple[str, ...]] = ("predict",)

    @explain_confidence
    def __init__(
        self,
        estimator: Any,
        *,
        alpha: Alpha = 0.1,
        confidence_level: Alpha | None = None,
        nonconformity: Any = "absolute-residual",
        quantiles: Sequence[float] | None = None,
        scale_estimator: Any = None,
        symmetric: bool = True,
        method: str = "e-dcp",
        network: Any = "cycle",
        target: Any = "sizes",
        rank: str = AUTO,
        options: Mapping[str, Any] | None = None,
        prefit: bool | Literal["auto"] = "auto",
        calibration_size: float | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.alpha = alpha
        self.confidence_level = confidence_level
        self.nonconformity = nonconformity
        self.quantiles = quantiles
        self.scale_estimator = scale_estimator
        self.symmetric = symmetric
        self.method = method
        self.network = network
        self.target = target
        self.rank = rank
        self.options = options
        self.prefit = prefit
        self.calibration_size = calibration_size
        self.random_state = random_state

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict as the model does; of quantile models their third, or the middle between the two."""
        model = self._model("predict")
        if isinstance(model, list | tuple):
            each = [np.asarray(one.predict(X)) for one in (model[2:] or model)]
            return np.asarray(np.mean(each, axis=0))
        predicted = np.asarray(model.predict(X))
        if predicted.ndim == 2 and predicted.shape[1] == 2:
            return np.asarray(predicted[:, 0] if self._score("predict").name == SCALED else predicted.mean(axis=1))
        return predicted

    @explain_confidence
    def predict_interval(self, X: Any, *, alpha: Alpha | None = None, devices: Any = None) -> Floats:
        """Return the prediction intervals, (rows, 2): lower and upper end, which both belong to them.

        Parameters
        ----------
        X
            Rows to predict.
        alpha
            Another alpha than the one calibrated for: one more run of the devices, on the scores they hold.
        devices
            The device of every row, or the column that names it, for methods that end with a threshold per device.
        """
        return self._predicted("predict_interval", X, alpha, devices)

    def predict_p(self, X: Any, y: Any) -> Floats:
        """Return the conformal p-value of each label `y`, (rows,): small where it is unusually far from its prediction.

        A number has a p-value, not a row: an interval of `e-dcp` holds the numbers whose p-value is above alpha.
        """
        if isinstance(self._calibration("predict_p", None), Sides):
            raise ValueError(
                "MeshRegressor.predict_p needs one score for each label, got two sides; set symmetric=True"
            )
        labels = labels_of("MeshRegressor.predict_p", y, rows_in(X))
        return self._p_values(self.score_(self._outputs_of(X, self.score_, "predict_p"), labels))

    # --- models -------------------------------------------------------------------------------------------------------

    def _train(self, X: Any, y: Any, fit_params: Mapping[str, Any]) -> None:
        score, models = self._score("MeshRegressor.fit"), self._all()
        banded = score.name in BANDED
        if len(models) > 1 and not banded:
            raise ValueError(
                f"MeshRegressor.fit: {len(models)} estimators are quantile models, for nonconformity='cqr', got "
                f"'{score.name}'; give one"
            )
        if banded and len(models) == 1:
            models = _at_quantiles(self.estimator, self._quantiles())
        fitted = tuple(clone(model).fit(X, y, **fit_params) for model in models)
        if score.name == SCALED and self.scale_estimator is not None:
            folds = max(2, min(FOLDS, rows_in(X)))
            expected = cross_val_predict(clone(self.estimator), X, y, cv=folds, params=dict(fit_params))
            distances = np.abs(labels_of("MeshRegressor.fit", y, rows_in(X)) - expected)
            self.scale_estimator_ = clone(self.scale_estimator).fit(X, distances)
            self.scale_floor_ = max(FLOOR * float(distances.mean()), float(np.finfo(np.float64).tiny))
        self.estimator_ = fitted if len(fitted) > 1 else fitted[0]

    def _quantiles(self) -> tuple[float, float]:
        """Return the two quantiles that models are trained for."""
        if self.quantiles is None:
            half = self._alpha() / 2
            return float(half), float(1 - half)
        low, high = (float(exact_alpha(q, "quantiles")) for q in self.quantiles)
        if not low < high:
            raise ValueError(f"quantiles must be a lower and a larger upper one, got {self.quantiles}")
        return low, high

    def _outputs_of(self, X: Any, score: Score, who: str) -> NDArray[Any]:
        """Return what the score reads: predictions, or pairs of them."""
        model = self._model(who)
        if isinstance(model, list | tuple):
            if score.name not in BANDED or len(model) not in (2, 3):
                raise ValueError(
                    f"{len(model)} models are quantiles, lower and upper and perhaps a middle one, for "
                    f"nonconformity='cqr', got '{score.name}'"
                )
            return np.stack([np.asarray(one.predict(X)) for one in model[:2]], axis=1)
        if score.name == SCALED:
            return self._scaled(model, X, who)
        predicted = np.asarray(model.predict(X))
        if score.name in BANDED and (predicted.ndim != 2 or predicted.shape[1] != 2):
            raise ValueError(
                f"score '{score.name}' needs a lower and an upper quantile for each row, but {type(model).__name__} "
                f"predicts shape {predicted.shape}; give a pair of fitted quantile models, or let fit train one such "
                "as HistGradientBoostingRegressor(loss='quantile') at both"
            )
        return predicted[:, 0] if predicted.ndim == 2 and predicted.shape[1] == 1 else predicted

    def _scaled(self, model: Any, X: Any, who: str) -> Floats:
        """Return predictions beside their scales."""
        if hasattr(self, "scale_estimator_"):
            scale = np.maximum(np.asarray(self.scale_estimator_.predict(X)), self.scale_floor_)
        elif self.scale_estimator is not None:
            if not is_fitted(self.scale_estimator):
                raise NotFittedError(f"{who}: scale_estimator is not fitted; fit it as well, or let fit train both")
            scale = np.asarray(self.scale_estimator.predict(X))
        elif "return_std" in inspect.signature(model.predict).parameters:
            prediction, scale = model.predict(X, return_std=True)
            return np.stack([prediction, scale], axis=1)
        else:
            predicted = np.asarray(model.predict(X))
            if predicted.ndim == 2 and predicted.shape[1] == 2:
                return predicted
            raise ValueError(
                f"score '{SCALED}' needs a scale for each prediction, but {type(model).__name__} predicts none; give a "
                "second model as scale_estimator="
            )
        return np.stack([np.asarray(model.predict(X)), scale], axis=1)

    def _scored(self, score: Score, outputs: NDArray[Any], labels: NDArray[Any]) -> Floats:
        return score(outputs, labels) if self.symmetric else two_sided(score).sides(outputs, labels)

    def _run(self, *given: Any, **options: Any) -> Calibration | Sides:
        found: Calibration | Sides = (calibrate if self.symmetric else calibrate_sides)(*given, **options)
        return found

    def _columns(self, labels: NDArray[Any], outputs: NDArray[Any], who: str) -> NDArray[Any]:
        return labels.astype(np.float64) if labels.dtype.kind == "O" else labels


def _at_quantiles(estimator: Any, quantiles: tuple[float, float]) -> tuple[Any, ...]:
    """Return two clones of a regressor that predict these quantiles, or itself where it has no parameter for one.

    >>> from sklearn.linear_model import QuantileRegressor
    >>> [model.quantile for model in _at_quantiles(QuantileRegressor(), (0.05, 0.95))]
    [0.05, 0.95]
    """
    known = estimator.get_params(deep=True) if hasattr(estimator, "get_params") else {}
    for name in known:  # of the regressor itself, or of the last step of a pipeline
        place, _, last = name.rpartition("__")
        at = f"{place}__" if place else ""
        loss = next((key for key in (f"{at}loss", f"{at}objective") if key in known), None)
        if last == "quantile" or (last == "alpha" and loss is not None and known[loss] == "quantile"):
            fixed = {} if loss is None else {loss: "quantile"}
            return tuple(clone(estimator).set_params(**fixed, **{name: q}) for q in quantiles)
    return (estimator,)
