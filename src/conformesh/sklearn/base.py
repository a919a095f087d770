"""What both estimators share: training, calibrating on a mesh, one more run for another level, routing and tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pickle import PicklingError
from typing import Any, ClassVar, Self

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.validation import check_is_fitted

from conformesh.common.array_types import Floats
from conformesh.common.names import unknown_name
from conformesh.common.notes import emit_note
from conformesh.files.memberships import Memberships
from conformesh.kernels.ranks import DEVICE_MIXTURES, Alpha, exact_alpha, explain_confidence
from conformesh.pipeline.networks import as_network
from conformesh.pipeline.p_values import p_values
from conformesh.results.evaluation import Evaluation, RiskEvaluation
from conformesh.results.result import Result
from conformesh.scores import LAC, SCORES, AbsoluteResidual, NormalisedResidual, Score, as_score
from conformesh.scores.adapt import Adaptation, Even, as_adaptation
from conformesh.scores.base import Task
from conformesh.scores.losses import Loss
from conformesh.sklearn.rows import (
    ONLY_DEVICE,
    EstimatorRows,
    estimator_rows_by_device,
    split_training_rows,
    take_estimator_rows,
)
from conformesh.table import Table

AUTO = "auto"
_ADAPTS = {"classification": "prior", "regression": "scale"}  # the adaptation for each task
# What `nonconformity` may be beside `adapt`: it then says only which outputs of the model are read.
_READ_BY_ADAPTED = {"classification": (LAC.name,), "regression": (AbsoluteResidual.name, NormalisedResidual.name)}
# What `fit` sets and a new calibration keeps, and what every calibration sets anew.
_TRAINED = ("estimator_", "scale_estimator_", "scale_floor_", "_trained", "_training_digest")
_AGREED = ("result_", "table_", "network_", "score_", "_keywords", "_is_by_class")
_ROW_ARGUMENTS = (
    "groups",
    "inputs",
    "centres",
    "weight_bound",
    "test_weights",
    "columns",
)  # no options of an estimator
# Arguments of `conformesh.calibrate` that have another name here, because scikit-learn has a word for them.
_RENAMED = {"score": "nonconformity", "weight": "sample_weight", "labels": "y", "classes": "estimator"}


class MeshEstimator(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """A model with a calibration: what `MeshClassifier` and `MeshRegressor` have in common."""

    task: ClassVar[Task]
    reads: ClassVar[tuple[str, ...]]  # methods of the model, any of which is enough
    estimator: Any
    alpha: Any
    confidence_level: Any
    nonconformity: Any
    method: str
    network: Any
    mixture: Any
    mixture_bound: Any
    rank_rule: str
    pac_confidence: Any
    time_uniform: bool
    adapt: Any
    options: Any
    prefit: Any
    calibration_size: Any
    random_state: Any
    score_: Any  # a Score or a Loss
    _is_by_class: bool = False  # whether the groups of the calibration are the classes
    # Only a classifier has these as parameters.
    loss: Any = None
    risk: Any = None
    class_conditional: Any = False

    # --- training and calibrating -------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, *, devices: Any = None, groups: Any = None, **fit_params: Any) -> Self:
        """Train a clone of the estimator and, with `calibration_size`, calibrate on rows kept aside.

        Parameters
        ----------
        X, y
            Training rows, all in one place: this trains one model as scikit-learn does. With a model that is kept
            (`prefit=True`, or a `FrozenEstimator`) nothing is trained, and all rows calibrate.
        devices
            The device of every row, or the column of the frame that names it: each device keeps the same share of its
            rows for calibration. The column is no feature.
        groups
            The groups of every row, as in `calibrate`, for the rows that calibrate. A column of the frame that names
            them stays a feature.
        **fit_params
            For the estimator's own `fit`, such as `sample_weight`; of the rows that train. With metadata routing on,
            what the estimator requests.
        """
        who = f"{type(self).__name__}.fit"
        self._check_estimator()
        self._forget(*_TRAINED, *_AGREED)  # a threshold of the old model says nothing about the new one
        if self._keeps_model():
            return self.calibrate(X, y, devices=devices, groups=groups)
        if estimator_rows_by_device(who, X, y, self.loss is not None) is not None:
            raise ValueError(
                f"{who} trains one model on rows in one place, got rows by device; train the model elsewhere, and give "
                "it and these rows to calibrate"
            )
        rows = self._rows(who, X, y, devices=devices, groups=groups, features=None)
        if fit_params and get_config()["enable_metadata_routing"]:
            fit_params = process_routing(self, "fit", **fit_params).estimator.fit
        table = rows.tables[0]
        if self.calibration_size is None:
            if groups is not None:
                raise ValueError(f"{who}: groups are for calibration; set calibration_size, or give them to calibrate")
            self._train(table, rows.labels, fit_params)
            self._trained, self._training_digest = True, _digest(table)
            return self
        owners = np.full(len(rows), ONLY_DEVICE) if rows.owners is None else rows.owners
        train, kept = split_training_rows(owners, self.calibration_size, check_random_state(self.random_state))
        if not len(train) or not len(kept):
            raise ValueError(
                f"{who}: n_samples = {len(rows)} on {len(rows.names)} devices leave {len(train)} rows to train and "
                f"{len(kept)} to calibrate with calibration_size={self.calibration_size}; give more rows"
            )
        part = rows.take(train)
        params = {name: take_estimator_rows(value, train, len(rows)) for name, value in fit_params.items()}
        self._train(part.tables[0], part.labels, params)
        self._trained = True
        self._calibrate(who, rows.take(kept), self.network, self._asked({}))
        return self

    def calibrate(
        self,
        X: Any,
        y: Any = None,
        *,
        devices: Any = None,
        network: Any = None,
        mixture: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        weight_bound: float | None = None,
        test_weights: Any = None,
        centres: Any = None,
        inputs: Any = None,
        **options: Any,
    ) -> Self:
        """Let the devices agree on thresholds, from labelled rows that the model has not seen.

        Parameters
        ----------
        X, y
            Calibration rows and their labels. Or by device: a dict of (X, y), two dicts, a list of (X, y), two lists;
            then the arguments below that have a value for each row come by device, too. Where these arguments name a
            column of the frame X, the column is no feature, unless the model was trained with it.
        devices
            The device of every row: an array, a Series, or the name of a column. None: one device has them all, as in
            plain split conformal prediction.
        network, mixture
            Instead of the estimator's own. A device of the network that has no rows takes part without scores.
        groups
            Coverage within each group (group-conditional, Mondrian): a label for each row or the name of a column. Or
            groups that overlap: a list of labels for each row, a boolean mask (rows x groups), or names of columns.
        sample_weight, weight_bound
            For new rows of another distribution (covariate shift): how much likelier a row is there than among the
            calibration rows, up to a common factor, and the most that this can be. One number for each row, the name
            of a column, a function of `inputs`, or what `conformesh.estimate_ratios` returns. These are no training
            weights; `fit(X, y, sample_weight=...)` passes those to the model.
        test_weights
            Weights of new rows that get a threshold of their own; `sample_weight` then picks one for each new row.
        centres, inputs
            Coverage near each of some public points (local coverage), what `conformesh.choose_centres` returns. Inputs
            are the features for distances and weights: by default X, else rows of numbers or names of columns.
        **options
            Further arguments of `conformesh.calibrate` (with a loss those of `conformesh.control`): `class_weights`,
            `group_rule`, `lower_share`, `strict`, `progress`, `faults`, ..., and options of the method.
        """
        who = f"{type(self).__name__}.calibrate"
        self._check_estimator()
        self._forget(*_AGREED)
        if not getattr(self, "_trained", False):
            self.estimator_ = self._given(who)
        if sample_weight is None and not (weight_bound is None and test_weights is None):
            raise ValueError(f"{who}: weight_bound and test_weights go with sample_weight=, which was not given")
        is_near = centres is not None or callable(sample_weight)
        columns = {"devices": devices, "groups": groups, "weight": sample_weight, "inputs": inputs}
        rows = self._rows(who, X, y, **columns, needs_inputs=is_near)
        digest = getattr(self, "_training_digest", None)  # only where something was trained here
        if digest is not None and len(rows.tables) == 1 and _digest(rows.tables[0]) == digest:
            emit_note(
                f"{who}: the model was trained with these very rows; their scores are too small, and sets will cover "
                "less than 1 - alpha: calibrate with rows that it has not seen, or set calibration_size=0.25 and fit"
            )
        keywords = self._asked(options)
        if sample_weight is not None:
            weight = sample_weight if callable(sample_weight) else "weight"
            keywords |= {"weight": weight, "weight_bound": weight_bound, "test_weights": test_weights}
        if rows.inputs is not None:
            keywords |= {"inputs": "inputs", "centres": centres}
        if mixture is not None:
            keywords["mixture"] = mixture
        self._calibrate(who, rows, self.network if network is None else network, keywords)
        return self

    def _calibrate(self, who: str, rows: EstimatorRows, network: Any, keywords: dict[str, Any]) -> None:
        """Score the rows, and let the devices agree."""
        mesh = as_network(network, Table(rows.names, np.zeros(len(rows.names) + 1, dtype=np.int64)))
        if rows.owners is None and mesh.devices > 1:
            raise ValueError(
                f"{who}: the network has {mesh.devices} devices but no row names its own; say with devices= whose row "
                "is whose, one name for each row"
            )
        if rows.groups is not None and self.class_conditional:
            raise ValueError(
                f"{who}: class_conditional=True has the classes as groups; leave groups= out, or set it to False"
            )
        levels = self._levels()
        adaptation = self._adaptation(who)
        if adaptation is not None:
            keywords["adapt"] = adaptation
            if self.random_state is not None:  # of the draw of hidden rows
                keywords.setdefault("rng", int(check_random_state(self.random_state).randint(2**31)))
        self.score_, self.network_, self._keywords = self._score(who), mesh, keywords
        outputs = self._outputs(rows, self.score_, who)
        assert rows.labels is not None
        labels = self._columns(rows.labels, outputs, who)
        if adaptation is None:
            columns = self._scored(outputs, labels)
        else:
            bag = adaptation.read(outputs, labels, who)
            columns = {"outputs": bag.outputs, "truth": bag.labels}
            if self.class_conditional:  # of a classifier
                names = np.array([*map(str, self.classes_)])[labels]
                columns["groups"], self._is_by_class = Memberships.of(names, "classes"), True
        self.table_ = rows.table(mesh.ids, **columns)
        self.result_ = self._run(levels)

    def _adaptation(self, who: str) -> Adaptation | None:
        """Return how scores adapt, with what training knows of the labels; None where they do not."""
        found = as_adaptation(self.adapt)
        if found is None:
            return None
        if isinstance(found, Even):
            found = found.for_task(self.task)
        if found.task != self.task:
            raise ValueError(f"{who}: adapt={found.name!r} is for {found.task}; use {_ADAPTS[self.task]!r}")
        if self.loss is not None or not getattr(self, "symmetric", True):
            raise ValueError(
                f"{who}: adapt is for coverage, with one score for each row; leave loss and symmetric=False out"
            )
        named = as_score(self.nonconformity)
        if named is not None and named.name not in (fitting := _READ_BY_ADAPTED[self.task]):
            raise ValueError(
                f"{who}: adapted scores replace the score; leave nonconformity={self.nonconformity!r} out"
                + ("" if len(fitting) == 1 else f", or set {fitting[1]!r}, whose scales are used")
            )
        return found

    def _asked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the estimator's parameters and further options say to `conformesh.calibrate`."""
        name = type(self).__name__
        if not isinstance(self.options, Mapping | None):
            raise TypeError(f"{name}: options must be a dict, got {type(self.options).__name__} {self.options!r:.40}")
        asked = {**(self.options or {}), **options}
        for key, value in asked.items():  # otherwise there would be two values for one thing
            own = _RENAMED.get(key, key)
            if own == key and key in self.get_params(deep=False):
                raise TypeError(
                    f"{name}: options: {key!r} is a parameter of {name}; write {name}(..., {own}={value!r})"
                )
            if own != key:
                raise TypeError(f"{name}: options: {key!r} follows from {own!r}; leave it out")
            if key in _ROW_ARGUMENTS:
                raise TypeError(f"{name}: options: {key!r} belongs to rows; give it to calibrate(X, y, ...)")
        # All of it is kept, so that another level is found in the same way even if parameters have changed since.
        asked |= {"method": self.method, "mixture": self.mixture, "rank_rule": self.rank_rule}
        given = {
            "mixture_bound": self.mixture_bound,
            "pac_confidence": self.pac_confidence,
            "time_uniform": self.time_uniform,
        }
        return asked | {name: value for name, value in given.items() if value not in (None, False)}

    def _fitted_result(self, who: str) -> Result:
        """Return the result, or say that there is none."""
        if not hasattr(self, "result_"):
            raise NotFittedError(
                f"{type(self).__name__}.{who} needs a calibration: call calibrate(X, y, devices=...) with rows that "
                "the model has not seen, or set calibration_size=0.25 and fit"
            )
        return self.result_

    def _result(self, who: str, alpha: Alpha | None) -> Result:
        """Return the result of one level; of a level that was not asked for, by one more run with the same scores."""
        result = self._fitted_result(who)
        if alpha is None:
            return result.at()
        level = float(alpha if result.controlled else exact_alpha(alpha))
        return result.at(level) if level in result.alphas else self._run([level])

    # --- what predicting has in common --------------------------------------------------------------------------------

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict as the model does; calibration does not change it."""
        return np.asarray(self._model("predict").predict(X))

    @explain_confidence
    def evaluate(
        self,
        X: Any,
        y: Any = None,
        *,
        devices: Any = None,
        alpha: Alpha | None = None,
        groups: Any = None,
        sample_weight: Any = None,
        inputs: Any = None,
        rng: Any = None,
        keys: Any = None,
    ) -> Evaluation | RiskEvaluation:
        """Measure coverage and size on labelled rows: overall and, with `devices` and `groups`, by device and group.

        Rows come in the forms of `calibrate`; the other arguments are as in `predict_set` and `predict_interval`. With
        a loss, its mean is measured.
        """
        result = self._result("evaluate", alpha)
        columns = {"devices": devices, "groups": groups, "weight": sample_weight, "inputs": inputs}
        rows, outputs, given = self._read_new("evaluate", result, X, y, **columns)
        labels: Any = rows.labels
        if result.controlled:  # other results know the classes
            labels = self._columns(labels, outputs, f"{type(self).__name__}.evaluate")
        return result.evaluate(outputs, labels, **given, rng=rng, keys=keys)

    def _predicted(self, who: str, X: Any, alpha: Alpha | None, columns: Mapping[str, Any], **more: Any) -> Any:
        """Return sets or intervals, with the thresholds that the rows' devices, groups, weights and inputs have."""
        result = self._result(who, alpha)
        _, outputs, given = self._read_new(who, result, X, **columns, is_labelled=False)
        return result.predict(outputs, **given, **more)

    def _read_new(
        self, who: str, result: Result, X: Any, y: Any = None, **columns: Any
    ) -> tuple[EstimatorRows, NDArray[Any], dict[str, Any]]:
        """Return new rows, the model's outputs for them, and what decides which threshold each of them has."""
        name, is_local = f"{type(self).__name__}.{who}", result.guarantee.centres is not None
        self._check_groups(name, columns["groups"])
        shift = result.guarantee.weighting
        if shift is not None and shift.test_weights and columns["weight"] is None:
            raise ValueError(f"{name} needs sample_weight=, one per row: thresholds are for weights of new rows")
        rows = self._rows(name, X, y, **columns, needs_inputs=is_local or callable(columns["weight"]))
        if result.guarantee.adapt is not None and rows.owners is None and result.devices > 1:
            raise ValueError(f"{name} needs devices=, the device of each row, because scores adapt to the device")
        weight = rows.weight(rows.inputs) if callable(rows.weight) else rows.weight
        inputs = rows.inputs if is_local or not callable(rows.weight) else None
        given = {"device": rows.owners, "groups": rows.groups, "weight": weight, "inputs": inputs}
        return rows, self._outputs(rows, self.score_, who), given

    def _check_groups(self, who: str, groups: Any) -> None:
        """Refuse new rows without groups where thresholds differ by group, and groups where they do not.

        A group may be called as a class is; without this check its threshold would be taken for that of the class.
        """
        has_groups = self.result_.guarantee.groups is not None and not self._is_by_class
        if has_groups and groups is None:
            raise ValueError(f"{who} needs groups=, those of each row: the calibration has groups")
        if groups is not None and not has_groups:
            raise ValueError(
                f"{who}: groups= is for a calibration with groups, which calibrate(X, y, groups=...) makes"
            )

    def _p_values(self, who: str, scores: Floats, groups: Memberships | None, side: int | None = None) -> Floats:
        """Count every score beside those of all devices: of the same group, with the weights of the calibration."""
        guarantee, table = self.result_.guarantee, self.table_
        shift = guarantee.weighting
        if guarantee.adapt is not None:
            raise ValueError(f"{who}: adapted scores have no p-values; calibrate without adapt=, or use predict_set")
        if guarantee.centres is not None or (shift is not None and shift.class_weights):
            what = "class_weights" if guarantee.centres is None else "centres"
            raise ValueError(f"{who}: there are no p-values with {what}; calibrate without, or use predict_set")
        if guarantee.mixture.bound is not None or guarantee.mixture.kind in DEVICE_MIXTURES:
            raise ValueError(
                f"{who}: p-values are for one mixture of devices, and this calibration is for mixtures that are not "
                "known; calibrate with a mixture by name or by shares, or use predict_set"
            )
        shared = ("mixture", "rank_rule", "weight", "weight_bound", "inputs", "aggregate", "prefer")
        given = {key: self._keywords[key] for key in shared if key in self._keywords}
        if side is not None:
            assert table.score is not None
            table = replace(table, score=np.ascontiguousarray(table.score[:, side]))
        if guarantee.groups is None:
            return np.asarray(p_values(table, self.network_, scores, **given).values)
        if guarantee.groups.rule:
            raise ValueError(f"{who}: there are no p-values of groups that overlap; calibrate with one group per row")
        assert table.groups is not None
        table = replace(table, groups=None, labels=_group_names(table.groups))
        if groups is None:  # groups are classes
            names = [*map(str, self.result_.classes or ())]
            return np.asarray(p_values(table, self.network_, scores, labels="labels", classes=names, **given).values)
        names_of_rows = _group_names(groups)
        if strange := next((name for name in names_of_rows.tolist() if name not in guarantee.groups.names), None):
            raise ValueError(f"{who}: {unknown_name('group', strange, guarantee.groups.names)}")
        each = np.repeat(names_of_rows, scores.size // max(len(scores), 1))
        found = p_values(table, self.network_, scores.ravel(), labels="labels", test_labels=each, **given)
        return np.asarray(found.values).reshape(scores.shape)

    def _rows(self, who: str, X: Any, y: Any = None, **columns: Any) -> EstimatorRows:
        """Read rows; columns that the model was trained with stay, whatever names them."""
        if "features" not in columns:
            columns["features"] = tuple(getattr(self._first(), "feature_names_in_", ()))
        return EstimatorRows.of(who, X, y, **columns, is_multilabel=self.loss is not None)

    def _outputs(self, rows: EstimatorRows, score: Score | Loss, who: str) -> NDArray[Any]:
        return np.concatenate([self._outputs_of(table, score, who) for table in rows.tables])

    # --- what differs -------------------------------------------------------------------------------------------------

    def _train(self, X: Any, y: Any, fit_params: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _outputs_of(self, X: Any, score: Score | Loss, who: str) -> NDArray[Any]:
        raise NotImplementedError

    def _columns(self, labels: NDArray[Any], outputs: NDArray[Any], who: str) -> NDArray[Any]:
        """Return labels as a score takes them."""
        raise NotImplementedError

    def _scored(self, outputs: NDArray[Any], labels: NDArray[Any]) -> dict[str, Any]:
        """Return the columns of the table that the devices calibrate with: scores or losses, and groups by class."""
        raise NotImplementedError

    def _run(self, levels: Sequence[float]) -> Result:
        """Run the protocol once for these levels, with the scores or losses that the devices have."""
        raise NotImplementedError

    # --- parameters ---------------------------------------------------------------------------------------------------

    def _check_estimator(self) -> None:
        """Refuse an estimator of the other task, a class, or what does not predict."""
        name, kind, other = type(self).__name__, "regressor", "MeshClassifier"
        if self.task == "classification":
            kind, other = "classifier", "MeshRegressor"
        for model in self._all():
            if isinstance(model, type):
                raise TypeError(
                    f"{name}: estimator must be an estimator, got the class {model.__name__}; write {model.__name__}()"
                )
            try:
                own = get_tags(model).estimator_type
            except (AttributeError, TypeError):  # a model that is no estimator of scikit-learn
                own = None
            if {own, kind} == {"classifier", "regressor"}:
                raise TypeError(f"{name} needs a {kind}, got {type(model).__name__}, which is a {own}; use {other}")
            if not any(hasattr(model, method) for method in self.reads):
                raise TypeError(f"{name}: estimator must have {' or '.join(self.reads)}, got {type(model).__name__}")

    def _levels(self) -> list[float]:
        """Return the levels that were asked for, as the decimals written: miscoverage, or risk."""
        if self.confidence_level is None:
            return [float(exact_alpha(alpha)) for alpha in _as_list(self.alpha)]
        levels = [1 - exact_alpha(level, "confidence_level") for level in _as_list(self.confidence_level)]
        if [exact_alpha(alpha) for alpha in _as_list(self.alpha)] not in (levels, [Fraction(1, 10)]):
            raise ValueError(
                f"give alpha or confidence_level, not both: alpha={self.alpha} and "
                f"confidence_level={self.confidence_level} disagree"
            )
        return [*map(float, levels)]

    def _score(self, who: str) -> Score | Loss:
        """Return the score that was named, for this task, with a seed where `random_state` gives one."""
        score = as_score(self.nonconformity)
        if score is None or score.task != self.task:
            fitting = ", ".join(repr(name) for name, known in SCORES.items() if known.task == self.task)
            raise ValueError(f"{who} needs a score for {self.task}: {fitting}, got {self.nonconformity!r}")
        if self.random_state is None:
            return score
        return score.seeded(int(check_random_state(self.random_state).randint(2**31)))

    def _keeps_model(self) -> bool:
        """Whether `fit` leaves the model as it is."""
        if self.prefit not in (True, False, AUTO):
            raise ValueError(f"prefit must be True, False or 'auto', got {self.prefit!r}")
        return self.prefit is True or (self.prefit == AUTO and all(isinstance(m, FrozenEstimator) for m in self._all()))

    def _all(self) -> tuple[Any, ...]:
        """Return the estimators that were given, of which there may be a pair."""
        return tuple(self.estimator) if isinstance(self.estimator, list | tuple) else (self.estimator,)

    def _model(self, who: str) -> Any:
        """Return the fitted model, or several: what `fit` made or `calibrate` took, else what was given."""
        return self.estimator_ if hasattr(self, "estimator_") else self._given(who)

    def _given(self, who: str) -> Any:
        """Return the estimator that was given, if it is fitted."""
        if not self._keeps_model():
            if self.prefit is False or not all(map(is_fitted, self._all())):
                raise NotFittedError(
                    f"This {type(self).__name__} instance is not fitted yet, so {who} has no model: call fit(X, y), or "
                    "give a fitted estimator"
                )
        elif not all(map(is_fitted, self._all())):
            raise NotFittedError(
                f"{who}: prefit=True, but the estimator is not fitted; a clone is not: wrap a fitted model in "
                "sklearn.frozen.FrozenEstimator, which clones keep"
            )
        return self.estimator

    def _forget(self, *learnt: str) -> None:
        for name in learnt:
            self.__dict__.pop(name, None)

    def _first(self) -> Any:
        found = getattr(self, "estimator_", self.estimator)
        return found[0] if isinstance(found, list | tuple) else found

    # --- what scikit-learn asks ---------------------------------------------------------------------------------------

    @property
    def n_features_in_(self) -> int:
        """How many features the model was fitted with."""
        return int(self._fitted_first("n_features_in_").n_features_in_)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """The names of the features, where the model was fitted with a frame."""
        return np.asarray(self._fitted_first("feature_names_in_").feature_names_in_)

    def _fitted_first(self, wanted: str) -> Any:
        """Return the model, or say as an attribute does that there is none."""
        try:
            self._model(wanted)
        except NotFittedError as error:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {wanted!r}") from error
        return self._first()

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is a model that predicts; it is calibrated where there is a `result_`."""
        try:
            self._model("predict")
        except NotFittedError:
            return False
        return True

    def __sklearn_tags__(self) -> Any:
        """Return the model's own tags about its input; what is trained here is the model."""
        tags = super().__sklearn_tags__()
        try:
            own = get_tags(self._all()[0])
        except (AttributeError, TypeError, IndexError):  # a model that is no estimator of scikit-learn
            return tags
        tags.input_tags = own.input_tags
        tags.non_deterministic = own.non_deterministic
        tags.array_api_support = False
        if tags.classifier_tags is not None and own.classifier_tags is not None:
            tags.classifier_tags = own.classifier_tags
        if tags.regressor_tags is not None and own.regressor_tags is not None:
            tags.regressor_tags = own.regressor_tags
        return tags

    def _repr_html_inner(self) -> str:
        """Return the diagram that scikit-learn draws and, once there is a calibration, its certificate below."""
        return str(super()._repr_html_inner()) + self._result_html()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:  # unless scikit-learn was asked for text
            bundle["text/html"] += self._result_html()
        return bundle

    def _result_html(self) -> str:
        return self.result_._repr_html_() if hasattr(self, "result_") else ""

    def get_metadata_routing(self) -> MetadataRouter:
        """Return who asks for what: this estimator for `devices` and `groups` in `fit`, the model for its own."""
        router = MetadataRouter(owner=self).add_self_request(self)
        if isinstance(self.estimator, list | tuple):
            return router
        return router.add(estimator=self.estimator, method_mapping=MethodMapping().add(caller="fit", callee="fit"))


def _as_list(level: Any) -> list[Any]:
    """Return one level, or several, as a list."""
    return [level] if isinstance(level, str) or np.ndim(level) == 0 else [*level]


def _group_names(groups: Memberships) -> NDArray[np.str_]:
    """Return the name of each row's one group."""
    return np.array([" & ".join(atom) for atom in groups.atoms], dtype=str)[groups.codes]


def _digest(X: Any) -> str | None:
    """Return a hash of rows, None where they cannot be pickled."""
    try:
        return str(joblib.hash(X))
    except (PicklingError, TypeError, AttributeError):
        return None


def is_fitted(model: Any) -> bool:
    """Whether a model can predict, as far as it tells; who is no estimator of scikit-learn is believed."""
    if not isinstance(model, BaseEstimator):
        return True
    try:
        check_is_fitted(model)
    except NotFittedError:
        return False
    return True
