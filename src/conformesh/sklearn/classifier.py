"""`MeshClassifier`: any classifier, with prediction sets that devices certify together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, overload

import numpy as np
from msgspec import structs
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, clone
from sklearn.utils.metaestimators import available_if

from conformesh.api import calibrate, control
from conformesh.common.array_types import Floats
from conformesh.files.memberships import Memberships
from conformesh.kernels.ranks import Alpha, explain_confidence
from conformesh.results.evaluation import Coverage, Evaluation, RiskEvaluation
from conformesh.results.result import Result, class_indices
from conformesh.scores import Score
from conformesh.scores.adapt import Adaptation, Even, Prior
from conformesh.scores.base import Task
from conformesh.scores.losses import Loss, as_loss
from conformesh.sklearn.base import AUTO, MeshEstimator, _as_list
from conformesh.sklearn.rows import estimator_row_labels


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
        Tolerated miscoverage: sets hold the true class with probability at least 1 - alpha. Or several levels in a
        list, found in one run; `predict_set(X, alpha=...)` then says which.
    confidence_level
        1 - alpha, for those who think in it; it takes the place of `alpha`.
    nonconformity
        The nonconformity score: a name of `SCORES`, a class, an object such as ``RAPS(penalty=0.1)``, or a function of
        outputs and column numbers. Scikit-learn keeps the word `score` for the accuracy. All but `logit` read
        `predict_proba`, that one `decision_function`.
    loss, risk
        Risk control instead of coverage: a loss of `scores.losses`, its class or its name, and the largest mean
        loss (by default 0.1; or several in a list). With "false-negative-rate" several classes may be true: `y` has a
        boolean for each row and class, and sets miss on average at most this part of the true ones. `alpha` and
        `nonconformity` are not used; a loss has a score of its own, ``FalseNegativeRate(score="lac")``.
    class_conditional
        Whether sets cover the true class with probability at least 1 - alpha within each class. A class without
        calibration rows is in every set.
    method
        How devices agree: a name of `METHODS`.
    network
        Who talks to whom, where `calibrate` is not told: a `Network`, a NetworkX graph or the name of a topology. None:
        a torus, or a cycle where the number of devices has no two factors. With the method `e-dcp` it decides what
        agreeing costs, never the threshold.
    mixture, mixture_bound, rank_rule, pac_confidence, time_uniform
        Which devices new rows come from, by how much that may differ, how many scores must be covered, whether coverage
        holds for this draw of the calibration rows with some probability, and whether it does so however often
        `calibrate` is called while rows arrive; as in `conformesh.calibrate`.
    adapt
        Scores that learn from a device's own rows: "prior", which learns which classes a device has, or an object such
        as ``conformesh.adapt.Prior(strength=10)``. `predict_set` then needs `devices`. A model that `fit` trains tells
        how frequent classes are in training. Instead of `nonconformity`.
    options
        A dict with further arguments of `conformesh.calibrate`, such as the method's own options.
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
    result_
        The `Result`: thresholds, certificates, cost. It holds no score.
    classes_
        The classes as the model has them, in the order of the columns of sets and p-values.
    estimator_
        The fitted model.
    table_, network_
        The `Table` of the scores (or losses) of every device, and who talked to whom: a simulation of the mesh on this
        machine, kept for p-values and for another alpha.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=1000).fit(X[::2], y[::2])
    >>> mesh = MeshClassifier(model, alpha=0.1).calibrate(X[1::2], y[1::2], devices=[k % 5 for k in range(75)])
    >>> mesh.predict_set(X[:1])
    array([[ True, False, False]])
    >>> mesh.result_.certificate.kind
    'counted'
    """

    task: ClassVar[Task] = "classification"
    reads: ClassVar[tuple[str, ...]] = ("predict_proba", "decision_function")

    @explain_confidence
    def __init__(
        self,
        estimator: Any,
        *,
        alpha: Alpha | Sequence[Alpha] = 0.1,
        confidence_level: Alpha | Sequence[Alpha] | None = None,
        nonconformity: Any = "lac",
        loss: Any = None,
        risk: Any = None,
        class_conditional: bool = False,
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
        self.loss = loss
        self.risk = risk
        self.class_conditional = class_conditional
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

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes as the model has them; column numbers where a model that is calibrated has none."""
        model = self._fitted_first("classes_")
        known = getattr(model, "classes_", None)
        if hasattr(self, "_columns_seen") and (known is None or len(known) != self._columns_seen or np.ndim(known[0])):
            return np.arange(self._columns_seen)  # of a multi-label model, the classes of each label
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
        self, X: Any, *, alpha: Alpha | None = ..., as_names: Literal[False] = ..., devices: Any = ...,
        groups: Any = ..., sample_weight: Any = ..., inputs: Any = ..., rng: Any = ..., keys: Any = ...,
    ) -> NDArray[np.bool_]: ...  # fmt: skip

    @overload
    def predict_set(
        self, X: Any, *, alpha: Alpha | None = ..., as_names: bool, devices: Any = ..., groups: Any = ...,
        sample_weight: Any = ..., inputs: Any = ..., rng: Any = ..., keys: Any = ...,
    ) -> Any: ...  # fmt: skip

    @explain_confidence
    def predict_set(
        self,
        X: Any,
        *,
        alpha: Alpha | None = None,
        as_names: bool = False,
        devices: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        inputs: Any = None,
        rng: Any = None,
        keys: Any = None,
    ) -> Any:
        """Return the prediction sets: a boolean mask, (rows, classes).

        Parameters
        ----------
        X
            Rows to predict.
        alpha
            Which level, where there are several. Any other one, too: that is one more run of the devices, on the
            scores they have. With a loss it is the risk.
        as_names
            Return the classes of each set instead, a tuple for each row.
        devices
            The device of every row, or the column that names it, for methods that end with a threshold per device
            (`local`, `q-dcp`), or mixture "own". By default the threshold that is valid on every device.
        groups
            The groups of every row, or the column that names them, where `calibrate` was given groups.
        sample_weight
            The weight of every row, the column, or a function of `inputs`, where `calibrate` was given `test_weights`.
        inputs
            Where `calibrate` was given centres: the features of every row, by default X.
        rng, keys
            For a randomised score and for centres, as in `Result.predict`.
        """
        columns = {"devices": devices, "groups": groups, "weight": sample_weight, "inputs": inputs}
        return self._predicted("predict_set", X, alpha, columns, as_names=as_names, rng=rng, keys=keys)

    def predict_p(self, X: Any, y: Any = None, *, groups: Any = None, rng: Any = None, keys: Any = None) -> Floats:
        """Return conformal p-values: of every class, (rows, classes), or with `y` of these labels, (rows,).

        They are counted by all devices beside their scores, whatever the method of the calibration; with `groups`, or
        with `class_conditional`, beside the scores of the same group or class. The classes with a p-value above alpha
        are the set that `e-dcp` gives, for every alpha at once. They are rounded up to floats: one that equals alpha
        may appear above it.
        """
        who = "MeshClassifier.predict_p"
        self._fitted_result("predict_p")
        if isinstance(self.score_, Loss):
            raise ValueError(f"{who}: a loss has no p-values; calibrate with a nonconformity score, without loss=")
        self._check_groups(who, groups)
        rows = self._rows(who, X, groups=groups, is_labelled=False)
        outputs = self._outputs(rows, self.score_, "predict_p")
        draws = self.score_.draws(outputs, rng=rng, keys=keys)
        of_all_labels: Any = self.score_.of_all_labels
        table = self._p_values(who, of_all_labels(outputs, **draws), rows.groups)
        if y is None:
            return table
        labels = estimator_row_labels(who, y, len(table))
        return np.asarray(table[np.arange(len(table)), class_indices(self.classes_.tolist(), labels)])

    def evaluate(self, X: Any, y: Any = None, **options: Any) -> Evaluation | RiskEvaluation:
        """Measure coverage and size of sets on labelled rows: overall, by class, and by device and group where given.

        Rows come in the forms of `calibrate`, with `devices` and `groups`; the other arguments are as in `predict_set`.
        With a loss, its mean is measured.
        """
        found = super().evaluate(X, y, **options)
        if isinstance(found, RiskEvaluation):
            return found
        names = self.classes_.tolist()

        def by_name(per_class: Mapping[Any, Coverage]) -> dict[Any, Coverage]:
            return {names[column]: coverage for column, coverage in per_class.items()}

        devices = {n: structs.replace(one, per_class=by_name(one.per_class)) for n, one in found.per_device.items()}
        # `classes` would name columns
        return structs.replace(found, per_class=by_name(found.per_class), per_device=devices, classes=None)

    def _train(self, X: Any, y: Any, fit_params: Mapping[str, Any]) -> None:
        self.estimator_ = clone(self.estimator).fit(X, y, **fit_params)
        if self.adapt is not None and np.ndim(y) == 1:
            counts = np.bincount(class_indices(self.classes_.tolist(), np.asarray(y)), minlength=len(self.classes_))
            self.training_counts_ = counts

    def _adaptation(self, who: str) -> Adaptation | None:
        found: Adaptation | None = super()._adaptation(who)
        base = found.base if isinstance(found, Even) else found
        if isinstance(base, Prior) and base.prior is None and hasattr(self, "training_counts_"):
            base = replace(base, prior=tuple((self.training_counts_ + 1).tolist()))  # no class may have a share of 0
            found = replace(found, base=base) if isinstance(found, Even) else base
        return found

    def _outputs_of(self, X: Any, score: Score | Loss, who: str) -> NDArray[Any]:
        """Return what the score or loss reads: probabilities, or a decision function with a column per class."""
        model = self._model(who)
        what = "loss" if isinstance(score, Loss) else "score"
        is_any = what == "loss" and not hasattr(score, "score")  # any numbers will do
        if (score.reads != "logits" or is_any) and hasattr(model, "predict_proba"):
            return _as_one_table(model.predict_proba(X), model)
        if score.reads == "probabilities":
            raise TypeError(
                f"{what} '{score.name}' reads probabilities, but {type(model).__name__} has no predict_proba; use "
                "nonconformity='logit', which reads decision_function, or scikit-learn's CalibratedClassifierCV"
            )
        if not hasattr(model, "decision_function"):
            raise TypeError(
                f"{what} '{score.name}' reads {score.reads}, but {type(model).__name__} has no decision_function; use "
                "a score that reads probabilities, such as 'lac'"
            )
        decision = np.asarray(model.decision_function(X))
        return np.stack([-decision, decision], axis=1) if decision.ndim == 1 else decision

    def _columns(self, labels: NDArray[Any], outputs: NDArray[Any], who: str) -> NDArray[Any]:
        self._columns_seen = outputs.shape[1]
        if labels.ndim > 1:  # several may be true
            return labels
        try:
            return class_indices(self.classes_.tolist(), labels)
        except ValueError as error:
            raise ValueError(
                f"{who}: {error}; the model was not trained with it, so that no set can hold it: train with all classes"
            ) from None

    def _scored(self, outputs: NDArray[Any], labels: NDArray[Any]) -> dict[str, Any]:
        classes, keywords = self.classes_.tolist(), self._keywords
        columns: dict[str, Any] = {"losses" if isinstance(self.score_, Loss) else "score": self.score_(outputs, labels)}
        weights = keywords.get("class_weights")
        if not self.class_conditional and weights is None:
            return columns
        if labels.ndim > 1:
            raise ValueError("class_conditional and class_weights need one class for each row, got several")
        names = np.array([*map(str, classes)])[labels]
        if weights is not None:
            keywords["labels"], columns["labels"] = "labels", names
            if not isinstance(weights, Mapping):  # in the order of the classes
                keywords["class_weights"] = dict(zip(classes, weights, strict=True))
        if self.class_conditional:
            columns["groups"], self._is_by_class = Memberships.of(names, "classes"), True
        return columns

    def _run(self, levels: Sequence[float]) -> Result:
        if not isinstance(self.score_, Loss):
            score = None if "adapt" in self._keywords else self.score_  # adapted scores are scores of their own
            given = {"score": score, "classes": self.classes_, **self._keywords}
            return calibrate(self.table_, self.network_, levels, **given)
        found = control(self.table_, self.network_, levels, monotone=True, loss=self.score_, **self._keywords)
        return structs.replace(found, classes=tuple(self.classes_.tolist()))

    def _levels(self) -> list[float]:
        if self.loss is None:
            if self.risk is not None:
                raise ValueError("risk is the largest mean loss: give loss=, such as loss='false-negative-rate'")
            levels: list[float] = super()._levels()
            return levels
        if self.confidence_level is not None or _as_list(self.alpha) != [0.1]:
            raise ValueError(f"with a loss, give risk= instead of alpha or confidence_level, got alpha={self.alpha!r}")
        return [0.1] if self.risk is None else [float(risk) for risk in _as_list(self.risk)]

    def _score(self, who: str) -> Score | Loss:
        if self.loss is None:
            return super()._score(who)
        if self.nonconformity != "lac":
            raise ValueError(
                f"{who}: a loss has a score of its own, such as losses.FalseNegativeRate(score='logit'); leave "
                f"nonconformity={self.nonconformity!r} out"
            )
        loss = as_loss(self.loss)
        assert loss is not None
        return loss


def _as_one_table(probabilities: Any, model: Any) -> NDArray[Any]:
    """Return probabilities, (rows, classes); of a model with a table for each label, those that the label is true."""
    if not isinstance(probabilities, list):
        return np.asarray(probabilities)
    # A label that was always false in training has no column for true.
    each = zip(probabilities, model.classes_, strict=True)
    columns = [p[:, [*classes].index(1)] if 1 in classes else np.zeros(len(p)) for p, classes in each]
    return np.stack(columns, axis=1)
