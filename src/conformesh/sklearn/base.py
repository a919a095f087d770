"""What both estimators share: training, calibrating on a mesh, one more run for another alpha, routing and tags."""

from __future__ import annotations

from collections.abc import Mapping
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

from conformesh.api import calibrate
from conformesh.io.arrays import check_index
from conformesh.kernels.ranks import Alpha, exact_alpha, explain_confidence
from conformesh.notes import note
from conformesh.pvalues import p_values
from conformesh.result.certificate import KINDS
from conformesh.result.evaluation import Evaluation
from conformesh.scores import SCORES, Score, as_score
from conformesh.scores.base import Task
from conformesh.sklearn.rows import Rows, held_back, labels_of, owners_of, parts_of, taken
from conformesh.table import as_network

Floats = NDArray[np.float64]
AUTO = "auto"
TRAINED = ("estimator_", "scale_estimator_", "scale_floor_", "_trained", "_training_digest")
AGREED = ("calibration_", "scores_", "network_", "score_")


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
    target: Any
    rank: str
    options: Any
    prefit: Any
    calibration_size: Any
    random_state: Any

    # --- training and calibrating -------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, *, devices: Any = None, **fit_params: Any) -> Self:
        """Train a clone of the estimator and, with `calibration_size`, calibrate on rows kept aside.

        Parameters
        ----------
        X, y
            Training rows, all in one place: this trains one model as scikit-learn does. With a model that is kept
            (`prefit=True`, or a `FrozenEstimator`) nothing is trained, and all rows calibrate.
        devices
            The device of every row, or the column of the frame that names it: each device keeps the same share of its
            rows for calibration.
        **fit_params
            For the estimator's own `fit`, such as `sample_weight`; of the rows that train. With metadata routing on,
            what the estimator requests.
        """
        who = f"{type(self).__name__}.fit"
        self._check_estimator()
        self._forget(*TRAINED, *AGREED)  # a threshold of the old model says nothing about the new one
        if self._keeps_model():
            return self.calibrate(X, y, devices=devices)
        if parts_of(who, X, y) is not None:
            raise ValueError(
                f"{who} trains one model on rows in one place, got rows by device; train the model elsewhere, and give "
                "it and these rows to calibrate"
            )
        check_index(X, y, "y", "X")
        X, owners = owners_of(who, X, devices)
        y = labels_of(who, y)
        if fit_params and get_config()["enable_metadata_routing"]:
            fit_params = process_routing(self, "fit", **fit_params).estimator.fit
        if self.calibration_size is None:
            self._train(X, y, fit_params)
            self._trained, self._training_digest = True, _digest(X)
            return self
        rows = Rows.of(who, X, y, owners)
        n = len(rows.labels)
        train, kept = held_back(rows.owners, self.calibration_size, check_random_state(self.random_state))
        if not len(train) or not len(kept):
            raise ValueError(
                f"{who}: n_samples = {n} on {len(rows.devices)} devices leave {len(train)} rows to train and "
                f"{len(kept)} to calibrate with calibration_size={self.calibration_size}; give more rows"
            )
        params = {name: taken(value, train, n) for name, value in fit_params.items()}
        self._train(taken(X, train, n), rows.labels[train], params)
        self._trained = True
        tables = [taken(X, kept, n)]
        self._calibrate(replace(rows, tables=tables, labels=rows.labels[kept], owners=rows.owners[kept]), None, who)
        return self

    def calibrate(self, X: Any, y: Any = None, *, devices: Any = None, network: Any = None) -> Self:
        """Let the devices agree on a threshold, from labelled rows that the model has not seen.

        Parameters
        ----------
        X, y
            Calibration rows and their labels. Or by device: a dict of (X, y), two dicts, a list of (X, y), two lists.
        devices
            The device of every row: an array, a Series, or the name of a column of the frame X, which is then no
            feature. None: one device has them all, as in plain split conformal prediction.
        network
            Who talks to whom, instead of the estimator's `network`: a `Network`, a NetworkX graph or the name of a
            topology. A device of the network that has no rows takes part without scores.
        """
        who = f"{type(self).__name__}.calibrate"
        self._check_estimator()
        self._forget(*AGREED)
        if not getattr(self, "_trained", False):
            self.estimator_ = self._given(who)
        rows = Rows.of(who, X, y, devices, self._features())
        digest = getattr(self, "_training_digest", None)  # only where something was trained here
        if digest is not None and len(rows.tables) == 1 and _digest(rows.tables[0]) == digest:
            note(
                f"{who}: the model was trained with these very rows; their scores are too small, and sets will cover "
                "less than 1 - alpha: calibrate with rows that it has not seen, or set calibration_size=0.25 and fit"
            )
        self._calibrate(rows, network, who)
        return self

    def _calibrate(self, rows: Rows, network: Any, who: str) -> None:
        """Score the rows, and agree."""
        score = self._score(who)
        outputs = self._outputs(rows, score, who)
        held = rows.by_device(self._scored(score, outputs, self._columns(rows.labels, outputs, who)))
        mesh = as_network(self.network if network is None else network, held)
        if not rows.named and mesh.devices > 1:
            raise ValueError(
                f"{who}: the network has {mesh.devices} devices but no row names its own; say with devices= whose row "
                "is whose, one name for each row"
            )
        nothing = held[rows.devices[0]][:0]
        if not rows.named:
            held = {mesh.ids[0]: held[rows.devices[0]]}
        self.score_, self.network_ = score, mesh
        self.scores_ = {**dict.fromkeys(mesh.ids, nothing), **held}
        self.calibration_ = self._agreed(self._alpha())

    def _agreed(self, alpha: Fraction) -> Any:
        """Run the protocol once for this alpha, with the scores that the devices hold."""
        self._check_options()
        more = {"target": self.target, "rank": self.rank, "score": self.score_, **(self.options or {})}
        return self._run(self.scores_, self.network_, float(alpha), self.method, **more)  # whose decimal is alpha

    def _calibration(self, who: str, alpha: Alpha | None) -> Any:
        """Return the calibration, or another of the same scores."""
        if not hasattr(self, "calibration_"):
            raise NotFittedError(
                f"{type(self).__name__}.{who} needs a calibration: call calibrate(X, y, devices=...) with rows that "
                "the model has not seen, or set calibration_size=0.25 and fit"
            )
        if alpha is None or exact_alpha(alpha) == exact_alpha(self.calibration_.alpha):
            return self.calibration_
        return self._agreed(exact_alpha(alpha))

    # --- what predicting has in common --------------------------------------------------------------------------------

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict as the model does; calibration does not change it."""
        return np.asarray(self._model("predict").predict(X))

    @explain_confidence
    def evaluate(
        self, X: Any, y: Any = None, *, devices: Any = None, alpha: Alpha | None = None, **draws: Any
    ) -> Evaluation:
        """Measure coverage and size on labelled rows: overall and, with `devices`, by device.

        Rows come in the forms of `calibrate`; `alpha` is as in `predict_set` and `predict_interval`, and so are `rng`
        and `keys` for randomised scores.
        """
        who = f"{type(self).__name__}.evaluate"
        calibration = self._calibration("evaluate", alpha)
        rows = Rows.of(who, X, y, devices, self._features())
        outputs = self._outputs(rows, self.score_, who)
        owners = rows.owners if rows.named else None
        found: Evaluation = calibration.evaluate(outputs, rows.labels, device=owners, **draws)
        return found

    def _predicted(self, who: str, X: Any, alpha: Alpha | None, devices: Any, **draws: Any) -> NDArray[Any]:
        """Return sets or intervals, with the thresholds of these devices where each has its own."""
        calibration = self._calibration(who, alpha)
        X, owners = owners_of(f"{type(self).__name__}.{who}", X, devices, self._features())
        sets: NDArray[Any] = calibration.predict(self._outputs_of(X, self.score_, who), device=owners, **draws)
        return sets

    def _p_values(self, scores: Floats) -> Floats:
        """Count every score beside those of all devices."""
        found = p_values(self.scores_, self.network_, scores, target=self.target, rank=self.rank)
        return np.asarray(found.values)

    def _outputs(self, rows: Rows, score: Score, who: str) -> NDArray[Any]:
        return np.concatenate([self._outputs_of(table, score, who) for table in rows.tables])

    # --- what differs -------------------------------------------------------------------------------------------------

    def _train(self, X: Any, y: Any, fit_params: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _outputs_of(self, X: Any, score: Score, who: str) -> NDArray[Any]:
        raise NotImplementedError

    def _columns(self, labels: NDArray[Any], outputs: NDArray[Any], who: str) -> NDArray[Any]:
        """Return labels as a score takes them."""
        return labels

    def _scored(self, score: Score, outputs: NDArray[Any], labels: NDArray[Any]) -> Floats:
        return score(outputs, labels)

    def _run(self, *given: Any, **options: Any) -> Any:
        """Calibrate, in whichever way this estimator does."""
        return calibrate(*given, **options)

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

    def _check_options(self) -> None:
        """Refuse options that are parameters of the estimator: there would be two values for one thing."""
        name = type(self).__name__
        if not isinstance(self.options, Mapping | None):
            raise TypeError(f"{name}: options must be a dict, got {type(self.options).__name__} {self.options!r:.40}")
        for key, value in (self.options or {}).items():
            own = {"score": "nonconformity", "classes": "estimator"}.get(key, key)
            if own in self.get_params(deep=False):
                raise TypeError(
                    f"{name}: options: {key!r} is a parameter of {name}; write {name}(..., {own}={value!r})"
                    if own == key
                    else f"{name}: options: {key!r} follows from the parameter {own!r}; leave it out"
                )

    def _alpha(self) -> Fraction:
        """Return the miscoverage that was asked for, as the decimal written."""
        if self.confidence_level is None:
            return exact_alpha(self.alpha)
        level = 1 - exact_alpha(self.confidence_level, "confidence_level")
        if exact_alpha(self.alpha) not in (level, Fraction(1, 10)):
            raise ValueError(
                f"give alpha or confidence_level, not both: alpha={self.alpha} and "
                f"confidence_level={self.confidence_level} disagree"
            )
        return level

    def _score(self, who: str) -> Score:
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

    def _features(self) -> tuple[str, ...]:
        """Return the names of the columns that the model was fitted with."""
        return tuple(getattr(self._first(), "feature_names_in_", ()))

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
        """Whether there is a model that predicts; `calibration_` says whether it is calibrated."""
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
        return str(super()._repr_html_inner()) + self._certified()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:  # unless scikit-learn was asked for text
            bundle["text/html"] += self._certified()
        return bundle

    def _certified(self) -> str:
        if not hasattr(self, "calibration_"):
            return ""
        from conformesh import cards

        found = self.calibration_
        kind, rows = found.certificate.kind, dict(found.facts())
        shown = [(name, rows[name]) for name in ("devices", "cost")]
        return cards.card(found.title(), kind=kind, claim=KINDS[kind], rows=[*shown, ("more", "in calibration_")])

    def get_metadata_routing(self) -> MetadataRouter:
        """Return who asks for what: this estimator for `devices` in `fit`, the model for its own."""
        router = MetadataRouter(owner=self).add_self_request(self)
        if isinstance(self.estimator, list | tuple):
            return router
        return router.add(estimator=self.estimator, method_mapping=MethodMapping().add(caller="fit", callee="fit"))


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
