"""`MeshRegressor`: any regressor, quantile models or a model with a scale, with intervals that devices certify."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_predict

from conformesh.api import calibrate
from conformesh.common.array_types import Floats
from conformesh.kernels.ranks import Alpha, exact_alpha, explain_confidence
from conformesh.pipeline.p_values import round_up_to_float
from conformesh.results.result import Result
from conformesh.scores import two_sided
from conformesh.scores.base import Task
from conformesh.sklearn.base import AUTO, MeshEstimator, is_fitted
from conformesh.sklearn.rows import count_estimator_rows, estimator_row_labels

_SCALED = "normalised-residual"
_BANDED = ("cqr",)  # scores of a lower and an upper quantile
# Folds for the model of the scale: residuals of rows that a model was trained on are too small, so that each fold is
# predicted by a model that has not seen it.
_FOLDS = 5
# The least scale that a model trained here may predict, as a part of the mean residual. Residuals are divided by it: a
# scale near 0 would make single scores huge.
_SMALLEST_SCALE = 0.01


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
        What the two clones predict; by default alpha / 2 and 1 - alpha / 2, where there is one alpha.
    scale_estimator
        For `normalised-residual`, a second model that predicts how far labels lie from predictions, above zero. `fit`
        trains a clone of it on the distances of rows predicted by models that have not seen them. None: the estimator's
        own ``predict(X, return_std=True)``, or a second column of its predictions.
    symmetric
        Whether intervals reach as far below as above. False: each side has a threshold of its own for half of alpha,
        found in one run (with `cqr`, asymmetric CQR): ``result_["lower"]`` and ``result_["upper"]``. With
        ``options={"lower_share": 0.9}`` the lower side may miss 90 % of alpha.
    adapt
        Scores that learn from a device's own rows: "scale", which learns its bias and scale of residuals, or an object
        such as ``conformesh.adapt.Scale()``. `predict_interval` then needs `devices`.
    alpha, confidence_level, method, network, mixture, mixture_bound, rank_rule, pac_confidence, time_uniform, \
    options, prefit, calibration_size, random_state
        As for `MeshClassifier`.

    Attributes
    ----------
    result_, estimator_, table_, network_
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
        alpha: Alpha | Sequence[Alpha] = 0.1,
        confidence_level: Alpha | Sequence[Alpha] | None = None,
        nonconformity: Any = "absolute-residual",
        quantiles: Sequence[float] | None = None,
        scale_estimator: Any = None,
        symmetric: bool = True,
        method: str = "e-dcp",
        network: Any = None,
        mixture: Any = "sizes",
        mixture_bound: Alpha | None = None,
        rank_rule: str = AUTO,
        pac_confidence: Alpha | None = None,
        time_uniform: bool = False,
        adapt: Any = None,
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
        self.mixture = mixture
        self.mixture_bound = mixture_bound
        self.rank_rule = rank_rule
        self.pac_confidence = pac_confidence
        self.time_uniform = time_uniform
        self.adapt = adapt
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
            return np.asarray(predicted[:, 0] if self._score("predict").name == _SCALED else predicted.mean(axis=1))
        return predicted

    @explain_confidence
    def predict_interval(
        self,
        X: Any,
        *,
        alpha: Alpha | None = None,
        devices: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        inputs: Any = None,
        rng: Any = None,
        keys: Any = None,
    ) -> Floats:
        """Return the prediction intervals, (rows, 2): lower and upper end, which both belong to them.

        Parameters
        ----------
        X
            Rows to predict.
        alpha
            Which level, where there are several. Any other one, too: that is one more run of the devices, on the
            scores they have.
        devices
            The device of every row, or the column that names it, for methods that end with a threshold per device.
        groups, sample_weight, inputs
            The groups, weights and inputs of every row, where `calibrate` was given `groups`, `test_weights` or
            `centres`; as in `MeshClassifier.predict_set`.
        rng, keys
            For centres, as in `Result.predict`.
        """
        columns = {"devices": devices, "groups": groups, "weight": sample_weight, "inputs": inputs}
        found: Floats = self._predicted("predict_interval", X, alpha, columns, rng=rng, keys=keys)
        return found

    def predict_p(self, X: Any, y: Any, *, groups: Any = None) -> Floats:
        """Return the conformal p-value of each label `y`, (rows,): small where it is unusually far from its prediction.

        A number has a p-value, not a row: an interval of `e-dcp` holds the numbers whose p-value is above alpha. With
        two sides it is the smaller one of both, each divided by the part of alpha that its side may miss: twice the
        smaller one for equal parts.
        """
        who = "MeshRegressor.predict_p"
        sides = self._fitted_result("predict_p").guarantee.sides
        self._check_groups(who, groups)
        rows = self._rows(who, X, groups=groups, is_labelled=False)
        outputs = self._outputs(rows, self.score_, "predict_p")
        labels = self._columns(estimator_row_labels(who, y, len(rows)), outputs, who)
        if sides is None:
            return self._p_values(who, self.score_(outputs, labels), rows.groups)
        scores = two_sided(self.score_).sides(outputs, labels)
        shares = sides.levels(Fraction(1)).values()  # the lower side first, as the columns of scores
        each = [
            _divided(self._p_values(who, np.ascontiguousarray(scores[:, side]), rows.groups, side), share)
            for side, share in enumerate(shares)
        ]
        return np.minimum(1.0, np.minimum(*each))

    # --- models -------------------------------------------------------------------------------------------------------

    def _train(self, X: Any, y: Any, fit_params: Mapping[str, Any]) -> None:
        score, models = self._score("MeshRegressor.fit"), self._all()
        banded = score.name in _BANDED
        if len(models) > 1 and not banded:
            raise ValueError(
                f"MeshRegressor.fit: {len(models)} estimators are quantile models, for nonconformity='cqr', got "
                f"'{score.name}'; give one"
            )
        if banded and len(models) == 1:
            models = _at_quantiles(self.estimator, self._quantiles())
        fitted = tuple(clone(model).fit(X, y, **fit_params) for model in models)
        if score.name == _SCALED and self.scale_estimator is not None:
            folds = max(2, min(_FOLDS, count_estimator_rows(X)))
            expected = cross_val_predict(clone(self.estimator), X, y, cv=folds, params=dict(fit_params))
            distances = np.abs(estimator_row_labels("MeshRegressor.fit", y, count_estimator_rows(X)) - expected)
            self.scale_estimator_ = clone(self.scale_estimator).fit(X, distances)
            self.scale_floor_ = max(_SMALLEST_SCALE * float(distances.mean()), float(np.finfo(np.float64).tiny))
        self.estimator_ = fitted if len(fitted) > 1 else fitted[0]

    def _quantiles(self) -> tuple[float, float]:
        """Return the two quantiles that models are trained for."""
        if self.quantiles is None:
            levels = self._levels()
            if len(levels) > 1:
                raise ValueError(
                    f"MeshRegressor.fit: {len(levels)} alphas have no one pair of quantiles; give quantiles="
                )
            half = exact_alpha(levels[0]) / 2
            return float(half), float(1 - half)
        low, high = (float(exact_alpha(q, "quantiles")) for q in self.quantiles)
        if not low < high:
            raise ValueError(f"quantiles must be a lower and a larger upper one, got {self.quantiles}")
        return low, high

    def _outputs_of(self, X: Any, score: Any, who: str) -> NDArray[Any]:
        """Return what the score reads: predictions, or pairs of them."""
        model = self._model(who)
        if isinstance(model, list | tuple):
            if score.name not in _BANDED or len(model) not in (2, 3):
                raise ValueError(
                    f"{len(model)} models are quantiles, lower and upper and perhaps a middle one, for "
                    f"nonconformity='cqr', got '{score.name}'"
                )
            return np.stack([np.asarray(one.predict(X)) for one in model[:2]], axis=1)
        if score.name == _SCALED:
            return self._scaled(model, X, who)
        predicted = np.asarray(model.predict(X))
        if score.name in _BANDED and (predicted.ndim != 2 or predicted.shape[1] != 2):
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
                f"score '{_SCALED}' needs a scale for each prediction, but {type(model).__name__} predicts none; give "
                "a second model as scale_estimator="
            )
        return np.stack([np.asarray(model.predict(X)), scale], axis=1)

    def _columns(self, labels: NDArray[Any], outputs: NDArray[Any], who: str) -> NDArray[Any]:
        return labels.astype(np.float64) if labels.dtype.kind == "O" else labels

    def _scored(self, outputs: NDArray[Any], labels: NDArray[Any]) -> dict[str, Any]:
        self._keywords["symmetric"] = self.symmetric
        make = self.score_ if self.symmetric else two_sided(self.score_).sides
        return {"score": make(outputs, labels)}

    def _run(self, levels: Sequence[float]) -> Result:
        score = None if "adapt" in self._keywords else self.score_  # adapted scores are scores of their own
        return calibrate(self.table_, self.network_, levels, score=score, **self._keywords)


def _divided(p: Floats, share: Fraction) -> Floats:
    """Return p-values divided by a fraction, rounded up so that none becomes smaller."""
    values, codes = np.unique(p, return_inverse=True)
    return np.array([round_up_to_float(Fraction(value) / share) for value in values.tolist()])[codes]


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
