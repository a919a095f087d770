"""`MeshClassifier`: any classifier, with prediction sets that devices certify together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, overload

import numpy as np
from msgspec import structs
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, clone
from sklearn.utils.metaestimators import available_if

from conformesh.kernels.ranks import Alpha, explain_confidence
from conformesh.result.calibration import Calibration, columns_among
from conformesh.result.evaluation import Evaluation
from conformesh.scores import Score
from conformesh.scores.base import Task
from conformesh.sklearn.base import AUTO, Floats, MeshEstimator
from conformesh.sklearn.rows import labels_of


def _model_has(method: str) -> Callable[[Any], bool]:
    """Whether the model has a method: `hasattr` of the estimator answers for it."""

    def check(self: Any) -> bool:
        getattr(self._first(), method)
        return True

    return check


class MeshClassifier(ClassifierMixin, MeshEstimator):  # type: ignore[misc] # scikit-learn has no types
    """A classifier with certified prediction sets, calibrated on data that its devices do not pool.

    Parameters
    ----------
    estimator
        Any classifier, fitted or not; a pipeline as well.
    alpha
        Tolerated miscoverage: sets hold the true class with probability at least 1 - alpha.
    confidence_level
        1 - alpha, for those who think in it; it takes the place of `alpha`.
    nonconformity
        The nonconformity score: a name of `SCORES`, a class, an object such as ``RAPS(penalty=0.1)``, or a function of
        outputs and column numbers. Scikit-learn keeps the word `score` for the accuracy. All but `logit` read
        `predict_proba`, that one `decision_function`.
    method
        How devices agree: a name of `METHODS`.
    network
        Who talks to whom, where `calibrate` is not told: a topology that suits any number of devices and gives each of
        them two neighbours. With the method `e-dcp` it decides what agreeing costs, never the threshold.
    target, rank
        Whom the promise is about and how many scores must be covered, as in `conformesh.calibrate`.
    options
        A dict with further arguments of `conformesh.calibrate`: the method's own options, or `pac_confidence`.
    prefit
        "auto": `calibrate` takes a fitted estimator as it is, and `fit` trains a clone, unless the estimator is a
        `FrozenEstimator`. True: `fit` trains nothing either, and all its rows calibrate. False: only what `fit` trained
        is calibrated.
    calibration_size
        The share of each device's rows that `fit` keeps from training and calibrates with, such as 0.25. None: `fit`
        trains with all rows, and `calibrate` follows with others.
    random_state
        Draws the rows that are kept, and seeds a randomised score.

    Attributes
    ----------
    calibration_
        The `Calibration`: threshold, certificate, cost. It holds no score.
    classes_
        The classes as the model has them, in the order of the columns of sets and p-values.
    estimator_
        The fitted model.
    scores_, network_
        The scores of every device, and who talked to whom: a simulation of the mesh on this machine, kept for p-values
        and for another alpha.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=1000).fit(X[::2], y[::2])
    >>> mesh = MeshClassifier(model, alpha=0.1).calibrate(X[1::2], y[1::2], devices=[k % 5 for k in range(75)])
    >>> mesh.predict_set(X[:1])
    array([[ True, False, False]])
    >>> mesh.calibration_.certificate.kind
    'counted'
    """

    task: ClassVar[Task] = "classification"
    reads: ClassVar[tuple[str, ...]] = ("predict_proba", "decision_function")

    @explain_confidence
    def __init__(
        self,
        estimator: Any,
        *,
        alpha: Alpha = 0.1,
        confidence_level: Alpha | None = None,
        nonconformity: Any = "lac",
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
        self.method = method
        self.network = network
        self.target = target
        self.rank = rank
        self.options = options
        self.prefit = prefit
        self.calibration_size = calibration_size
        self.random_state = random_state

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes as the model has them; column numbers where a model that is calibrated has none."""
        model = self._fitted_first("classes_")
        if not hasattr(model, "classes_") and hasattr(self, "_columns_seen"):
            return np.arange(self._columns_seen)
        return np.asarray(model.classes_)

    @available_if(_model_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the model's own probabilities."""
        return np.asarray(self._model("predict_proba").predict_proba(X))

    @available_if(_model_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return the model's own decision function."""
        return np.asarray(self._model("decision_function").decision_function(X))

    @overload
    def predict_set(
        self, X: Any, *, alpha: Alpha | None = ..., as_names: Literal[False] = ..., devices: Any = ..., rng: Any = ...,
        keys: Any = ...,
    ) -> NDArray[np.bool_]: ...  # fmt: skip

    @overload
    def predict_set(
        self, X: Any, *, alpha: Alpha | None = ..., as_names: bool, devices: Any = ..., rng: Any = ..., keys: Any = ...
    ) -> Any: ...

    @explain_confidence
    def predict_set(
        self,
        X: Any,
        *,
        alpha: Alpha | None = None,
        as_names: bool = False,
        devices: Any = None,
        rng: Any = None,
        keys: Any = None,
    ) -> Any:
        """Return the prediction sets: a table of truth values, (rows, classes).

        Parameters
        ----------
        X
            Rows to predict.
        alpha
            Another alpha than the one calibrated for: one more run of the devices, on the scores they hold.
        as_names
            Return the classes of each set instead, an array for each row.
        devices
            The device of every row, or the column that names it, for methods that end with a threshold per device
            (`local`, `q-dcp`). By default the threshold that is valid on every device.
        rng, keys
            For a randomised score, as in `Calibration.predict`.
        """
        sets: NDArray[np.bool_] = self._predicted("predict_set", X, alpha, devices, rng=rng, keys=keys)
        return [self.classes_[row] for row in sets] if as_names else sets

    def predict_p(self, X: Any, y: Any = None, *, rng: Any = None, keys: Any = None) -> Floats:
        """Return conformal p-values: of every class, (rows, classes), or with `y` of these labels, (rows,).

        They are counted by all devices beside their scores, whatever the method of the calibration. The classes with a
        p-value above alpha are the set that `e-dcp` gives, for every alpha at once. They are rounded up to floats:
        one that equals alpha may appear above it.
        """
        self._calibration("predict_p", None)
        outputs = self._outputs_of(X, self.score_, "predict_p")
        draws = self.score_.draws(outputs, rng=rng, keys=keys)
        of_all_labels: Any = self.score_.of_all_labels  # type: ignore[attr-defined] # it is one of classification
        table = self._p_values(of_all_labels(outputs, **draws))
        if y is None:
            return table
        labels = labels_of("MeshClassifier.predict_p", y, len(table))
        return np.asarray(table[np.arange(len(table)), columns_among(self.classes_.tolist(), labels)])

    def evaluate(self, X: Any, y: Any = None, **options: Any) -> Evaluation:
        """Measure coverage and size of sets on labelled rows: overall, by class and, with `devices`, by device.

        Rows come in the forms of `calibrate`, with `devices`; `alpha`, `rng` and `keys` are as in `predict_set`.
        """
        found = super().evaluate(X, y, **options)
        names = self.classes_.tolist()
        own = {names[column]: own for column, own in found.per_class.items()}
        return structs.replace(found, per_class=own, classes=None)  # which would name columns

    def _train(self, X: Any, y: Any, fit_params: Mapping[str, Any]) -> None:
        self.estimator_ = clone(self.estimator).fit(X, y, **fit_params)

    def _outputs_of(self, X: Any, score: Score, who: str) -> NDArray[Any]:
        """Return what the score reads: probabilities, or a decision function with a column per class."""
        model = self._model(who)
        if score.reads != "logits" and hasattr(model, "predict_proba"):
            return np.asarray(model.predict_proba(X))
        if score.reads == "probabilities":
            raise TypeError(
                f"score '{score.name}' reads probabilities, but {type(model).__name__} has no predict_proba; use "
                "nonconformity='logit', which reads decision_function, or scikit-learn's CalibratedClassifierCV"
            )
        if not hasattr(model, "decision_function"):
            raise TypeError(
                f"score '{score.name}' reads {score.reads}, but {type(model).__name__} has no decision_function; use a "
                "score that reads probabilities, such as 'lac'"
            )
        decision = np.asarray(model.decision_function(X))
        return np.stack([-decision, decision], axis=1) if decision.ndim == 1 else decision

    def _columns(self, labels: NDArray[Any], outputs: NDArray[Any], who: str) -> NDArray[Any]:
        self._columns_seen = outputs.shape[1]
        try:
            return columns_among(self.classes_.tolist(), labels)
        except ValueError as error:
            raise ValueError(
                f"{who}: {error}; the model was not trained with it, so that no set can hold it: train with all classes"
            ) from None

    def _run(self, *given: Any, **options: Any) -> Calibration:
        found: Calibration = super()._run(*given, classes=self.classes_, **options)
        return found
