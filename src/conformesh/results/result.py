"""Result: thresholds with their certificates, and what they cost. Holds no score.

A result has an `Answer` for each part (a group, a side, a centre, a weight of new examples) and each level, all from
one run. Views (`result["F"]`, `result.at(alpha=0.05)`) are results with fewer answers; `threshold`, `certificate` and
the like need exactly one. `save` writes the JSON object that `conformesh calibrate --json` prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta, Struct, field, structs
from numpy.typing import ArrayLike, NDArray

from conformesh import __version__
from conformesh.common.array_types import Floats
from conformesh.common.arrays import as_array, check_index, columns_in_order, frame_columns
from conformesh.common.names import unknown_name
from conformesh.files.input_forms import PREDICTION
from conformesh.files.json_numbers import as_number
from conformesh.files.memberships import EVERYONE, Memberships
from conformesh.files.schemas import Number
from conformesh.guarantee import LOWER, UPPER, Guarantee
from conformesh.kernels.proportions import FAMILY_WISE_ERROR
from conformesh.kernels.ranks import OWN, Alpha, exact_number
from conformesh.results import consistency, summaries
from conformesh.results.adapted_facts import AdaptedFacts, DeviceRows, check_digest, unknown_device_error
from conformesh.results.certificate import Amount, Certificate, Count, SidesCertificate
from conformesh.results.encoding import SavedCost, SavedResult, SavedScore
from conformesh.results.evaluation import (
    DeviceCoverage,
    Evaluation,
    RiskEvaluation,
    coverage_by_centre,
    evaluate_intervals,
    evaluate_label_sets,
    evaluate_risk,
)
from conformesh.results.lookup import CENTRE, GROUP, SIDE, LookupRows, PredictionLimits, part_axes, prediction_limits
from conformesh.results.window import Window
from conformesh.scores import Function, RegressionScore, Score, result_score
from conformesh.scores.base import label_positions
from conformesh.scores.centres import Centres, centre_name
from conformesh.scores.draws import Rng
from conformesh.scores.losses import Loss, as_loss

if TYPE_CHECKING:
    from conformesh.graph.network import Network
    from conformesh.results.adapted import DevicePredictor
    from conformesh.results.sites import Sites


class UnknownPart(ValueError, KeyError):  # noqa: N818 - what it is, not that it is an error
    """No part of a result has this name."""

    __str__ = Exception.__str__  # a KeyError would print its message in quotes


class Answer(Struct, frozen=True, eq=False, forbid_unknown_fields=True):
    """The thresholds of one part at one level.

    Attributes
    ----------
    part
        What the thresholds are for: one name each of a group, a side, a centre, a weight or class of new examples, as
        far as the guarantee has these; empty where there are no parts.
    alpha
        The level asked for: tolerated miscoverage, of an interval with two sides that of both together; or the risk.
    thresholds
        Each device's own threshold.
    certificate
        Why they may be trusted.
    estimate
        The method's estimate before its correction, where it has one.
    bracket
        Two numbers around the threshold between which a search ended: where `update` starts.
    examples
        How many calibration examples of this part there were in all; 0 where noise hides it.
    facts
        What the method records of this part.
    windows
        With adapted scores: the pooled scores around the threshold, for each of the settings that are shared.
    """

    part: tuple[str, ...]
    alpha: Fraction
    thresholds: Floats
    certificate: Certificate
    estimate: Number | None = None
    bracket: tuple[float, float] | None = None
    examples: Count = 0
    facts: dict[str, Any] = {}
    windows: tuple[Window, ...] = ()

    def __post_init__(self) -> None:
        estimate: Any = self.estimate
        if isinstance(estimate, str):  # a file has words for infinities
            structs.force_setattr(self, "estimate", as_number(estimate, "estimate"))

    @property
    def threshold(self) -> float:
        """One number that is valid on every device: the largest of the devices' thresholds."""
        return float(self.thresholds.max())

    @property
    def is_short(self) -> bool:
        """Whether there are too few examples, so that only the threshold +inf keeps the guarantee."""
        endless = self.certificate.rule == "regression" and self.threshold == np.inf  # which has no rank to be short of
        return endless or self.certificate.is_short(self.examples)

    def __repr__(self) -> str:
        part = f"{', '.join(self.part)}: " if self.part else ""
        return f"Answer({part}threshold {self.threshold:.6g} at {float(self.alpha):g}, {self.certificate.kind})"


class Result(
    SavedResult,
    frozen=True,
    eq=False,
    kw_only=True,
    repr_omit_defaults=True,
    tag_field="format",
    tag="conformesh-result/1",
):
    """The result of `calibrate` and of `control`.

    Attributes
    ----------
    guarantee
        What was asked for.
    answers
        One for each part and level, levels of a part side by side.
    method, options
        What was run, and with which options; also what the method records of the run.
    network, device_ids
        The network's name and the devices' names.
    cost
        Rounds, numbers and bits each device sent, in the one run that found all answers.
    score
        The nonconformity score the thresholds belong to, where it was named: then `predict` needs no more.
    classes
        The classes, in the order of the columns of outputs, where they are known: names, or numbers or truth values
        where a model has these.
    notes
        Sentences for the user.
    seconds, version
        How long the run took, and by which version of this library.
    selected
        Of a view, what was chosen from each kind of part; None where nothing was.
    adapted
        With adapted scores: what predictions need besides windows.
    rows
        With adapted scores: the calibration rows of the devices of this process, by name. No file has them.
    """

    guarantee: Guarantee
    answers: Annotated[tuple[Answer, ...], Meta(min_length=1)]
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    network: str = ""
    device_ids: Annotated[tuple[str, ...], Meta(min_length=1)]
    cost: SavedCost
    score: SavedScore | None = None
    classes: tuple[str | bool | int | float, ...] | None = None
    notes: tuple[str, ...] = ()
    seconds: Amount = 0.0
    version: str = __version__
    selected: tuple[str | None, ...] = ()
    adapted: AdaptedFacts | None = None
    rows: dict[str, Any] = field(default_factory=dict)

    unsaved: ClassVar[tuple[str, ...]] = ("rows",)
    noun: ClassVar[str] = "a result of `conformesh calibrate` or `conformesh control`"

    # --- views --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.answers)

    def __iter__(self) -> Iterator[Result]:
        for answer in self.answers:
            yield structs.replace(self, answers=(answer,), selected=answer.part)

    def __contains__(self, key: object) -> bool:
        try:
            self[key]
        except (TypeError, ValueError):
            return False
        return True

    def __getitem__(self, key: Any) -> Result:
        """Return the result of a part, of a level, or of both: ``result["F"]``, ``result["F", "lower", 0.1]``."""
        view = self
        for one in key if isinstance(key, tuple) else (key,):
            is_level = isinstance(one, Real) and not isinstance(one, Integral)
            view = view.at(one) if is_level else view._select(one)
        return view

    def at(self, alpha: Alpha | None = None) -> Result:
        """Return the result of one level; it may be left out if there is one only."""
        levels = self.alphas
        if alpha is None and len(levels) == 1:
            return self
        complaint = f"say which {self._level_name}: {', '.join(f'{a:g}' for a in levels)}, got {alpha}"
        level = float(exact_number(alpha, complaint))
        if level not in levels:
            raise ValueError(complaint)
        return structs.replace(self, answers=tuple(a for a in self.answers if float(a.alpha) == level))

    def _select(self, key: object) -> Result:
        """Return the result of one name among the parts."""
        axes, name = part_axes(self.guarantee), str(key)
        for i, axis in enumerate(axes):
            if self.is_settled(i):
                continue
            wanted = self._alias(axis.kind, axis.names, name)
            if wanted is not None:
                kept = tuple(answer for answer in self.answers if answer.part[i] == wanted)
                chosen = [*(self.selected or (None,) * len(axes))]
                chosen[i] = wanted
                return structs.replace(self, answers=kept, selected=tuple(chosen))
        groups = self.guarantee.groups
        if groups is not None and groups.has_threshold_per_atom and name in groups.names:
            raise UnknownPart(
                f"group {name!r} has a threshold for each combination of groups, not one of its own; use "
                f"threshold_for(groups) or certificate_of({name!r})"
            )
        known = [name for i, axis in enumerate(axes) if not self.is_settled(i) for name in axis.names]
        if not known:
            raise UnknownPart(
                f"this result has no parts to choose from, got {key!r}; levels are chosen with at(alpha=...)"
            )
        raise UnknownPart(unknown_name("part", name, known[:20]))

    def _alias(self, kind: str, names: Sequence[str], name: str) -> str | None:
        """Return the part that a name means: itself, the value of a named column, or the number of a centre."""
        if name in names:
            return name
        column = "" if self.guarantee.groups is None else self.guarantee.groups.column
        if kind == GROUP and column and name.startswith(f"{column}="):
            name = name.removeprefix(f"{column}=")
            return name if name in names else None
        return centre_name(int(name)) if kind == CENTRE and name in map(str, range(len(names))) else None

    def is_settled(self, axis: int) -> bool:
        """Return whether this is a view of one name along an axis of parts."""
        return bool(self.selected) and self.selected[axis] is not None

    @property
    def alphas(self) -> tuple[float, ...]:
        """The levels, as given: alphas, or risks."""
        return tuple(float(alpha) for alpha in dict.fromkeys(answer.alpha for answer in self.answers))

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """What has a threshold of its own; one empty part where there is one threshold for all."""
        return tuple(dict.fromkeys(answer.part for answer in self.answers))

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups; where they may overlap, everyone is the last. Empty where there are none."""
        if self.guarantee.groups is None:
            return ()
        settled = self.selected[0] if self.selected else None
        return self.guarantee.groups.names if settled is None else (settled,)

    @property
    def devices(self) -> int:
        """How many devices took part."""
        return len(self.device_ids)

    @property
    def controlled(self) -> bool:
        """Whether a mean loss is bounded (risk control) instead of miscoverage."""
        return self.guarantee.loss is not None

    @property
    def what(self) -> str:
        """What a threshold is called."""
        return "lambda" if self.controlled else "threshold"

    @property
    def _level_name(self) -> str:
        return "risk" if self.controlled else "alpha"

    # --- the one answer -----------------------------------------------------------------------------------------------

    @property
    def answer(self) -> Answer:
        """The answer of a result that has only one."""
        if len(self.answers) == 1:
            return self.answers[0]
        choices = []
        if len(self.alphas) > 1:
            choices.append(f"at(alpha=...) for the {self._level_name} {_some(self.alphas)}")
        if len(self.parts) > 1:
            choices.append(f"result[...] for the part {_some([summaries.part_name(part) for part in self.parts])}")
        raise ValueError(f"this result has {len(self.answers)} {self.what}s; choose with {' and '.join(choices)}")

    @property
    def sides(self) -> tuple[Answer, Answer] | None:
        """The answers of the lower and the upper side, where these are all there are."""
        axes = part_axes(self.guarantee)
        place = next((i for i, axis in enumerate(axes) if axis.kind == SIDE), None)
        if place is None or len(self.answers) != 2 or self.is_settled(place) or len(self.alphas) > 1:
            return None
        return self.answers[0], self.answers[1]

    @property
    def threshold(self) -> float:
        """One number that is valid on every device: the largest of the devices' thresholds.

        With adapted scores it is a threshold of the scores of calibration rows, and does not decide on new rows.
        """
        return self.answer.threshold

    @property
    def thresholds(self) -> Floats:
        """Each device's own threshold, in the order of `device_ids`."""
        return self.answer.thresholds

    @property
    def certificate(self) -> Certificate | SidesCertificate:
        """Why the threshold may be trusted; of intervals with two sides, why both together may be."""
        if (both := self.sides) is not None:
            lower, upper = both
            levels = float(self.rank_level(lower)), float(self.rank_level(upper))
            return SidesCertificate(lower.certificate, upper.certificate, levels)
        return self.answer.certificate

    @property
    def alpha(self) -> float:
        """The level that was asked for: tolerated miscoverage, or the risk."""
        if len(self.alphas) > 1:
            self.answer  # noqa: B018 - says in words that there are several
        return self.alphas[0]

    @property
    def level(self) -> float:
        """What was asked for: alpha, or the risk."""
        return self.alpha

    @property
    def estimate(self) -> float | None:
        """The method's estimate before its correction, where it has one."""
        return self.answer.estimate

    @property
    def bracket(self) -> tuple[float, float] | None:
        """Two numbers around the threshold between which a search ended."""
        return self.answer.bracket

    @property
    def examples(self) -> int:
        """How many calibration examples there were in all; 0 where noise hides it."""
        return (self.sides or (self.answer,))[0].examples

    @property
    def mean_losses(self) -> tuple[float, float]:
        """The mean loss of the calibration items at lambda, and the largest allowed, in the units of the loss.

        What is allowed is less than the risk by what the new example might change.
        """
        left, allowed = self.answer.certificate.mean_losses or (float("nan"), float("nan"))
        bound = 1.0 if self.guarantee.loss is None else self.guarantee.loss.bound
        return left * bound, allowed * bound

    @property
    def recorded(self) -> dict[str, Any]:
        """The options, and what the method records of the run; of a single answer also what it records of that."""
        return {**self.options, **(self.answers[0].facts if len(self.answers) == 1 else {})}

    def rank_level(self, answer: Answer) -> Fraction:
        """Return the miscoverage that an answer's rank is for: a side has a part of alpha, a risk one of its bound."""
        if self.guarantee.loss is not None:
            return answer.alpha / Fraction(str(self.guarantee.loss.bound))
        if self.guarantee.sides is not None:
            return self.guarantee.sides.levels(answer.alpha)[self._side_of(answer)]
        return answer.alpha

    def _side_of(self, answer: Answer) -> str:
        return answer.part[int(self.guarantee.groups is not None)]

    def certificate_of(self, group: object = EVERYONE, alpha: Alpha | None = None) -> Certificate | SidesCertificate:
        """Return why a group is covered; a union of combinations of groups is, because each of them is.

        Of such a union it says how many of its calibration scores lie at or below their thresholds, and no rank.
        """
        view, groups, name = self.at(alpha), self.guarantee.groups, str(group)
        if groups is None or not groups.has_threshold_per_atom:
            return view.certificate if groups is None and name == EVERYONE else view[name].certificate
        if name not in groups.names:
            raise ValueError(f"no threshold for group {group!r}; known: {', '.join(groups.names)}")
        if self.is_settled(0):
            raise ValueError(
                f"a view of one combination of groups says nothing about all of {name!r}; ask the whole result"
            )
        # One certificate for each of the other parts: there may be two sides, and otherwise one must be chosen.
        found: dict[tuple[str, ...], Certificate] = {}
        for answer in view.answers:
            if name == EVERYONE or name in groups.atoms[answer.part[0]]:
                own, before = answer.certificate, found.get(answer.part[1:])
                counted = [c.counted_rank for c in (own, before) if c is not None and isinstance(c.counted_rank, int)]
                found[answer.part[1:]] = structs.replace(
                    own, required_rank=None, counted_rank=sum(counted), weight=None
                )
        unions = [*found.values()]
        if [*found] == [(LOWER,), (UPPER,)] and view.guarantee.sides is not None:
            levels = view.guarantee.sides.levels(view.answers[0].alpha)
            return SidesCertificate(unions[0], unions[1], (float(levels[LOWER]), float(levels[UPPER])))
        if len(unions) > 1:
            raise ValueError(f"choose a part first, as in result[{next(iter(found))[-1]!r}].certificate_of({name!r})")
        return unions[0]

    # --- thresholds of devices and rows -------------------------------------------------------------------------------

    def place_of(self, device: object) -> int:
        """Return where a device stands among `device_ids`."""
        try:
            return self.device_ids.index(str(device))
        except ValueError:
            raise ValueError(f"unknown device {device!r}; known: {_some(self.device_ids)}") from None

    def places_of(self, devices: ArrayLike) -> NDArray[np.int64]:
        """Return where the device of each row stands among `device_ids`."""
        given = as_array(devices, "device")
        if given.ndim != 1:
            raise ValueError(f"device must be one name, or one for each row, got shape {given.shape}")
        place = {name: i for i, name in enumerate(self.device_ids)}
        try:  # mapped, since sorting a million names takes five times as long
            return np.fromiter(map(place.__getitem__, map(str, given.tolist())), np.int64, len(given))
        except KeyError as missing:
            raise ValueError(f"unknown device {missing.args[0]!r} among the rows' devices") from None

    def threshold_of(self, device: str | int) -> float:
        """Return the threshold of one device, by name."""
        return float(self.thresholds[self.place_of(device)])

    def thresholds_for(
        self,
        device: str | int | ArrayLike | None = None,
        *,
        alpha: Alpha | None = None,
        groups: Any = None,
        weight: ArrayLike | None = None,
        inputs: ArrayLike | None = None,
        labels: Sequence[object] | None = None,
        rng: Rng | None = None,
        keys: Iterable[Any] | None = None,
    ) -> float | Floats:
        """Return the threshold of a device, or of each row by its device, groups, weight and inputs.

        The arguments are as in `predict`. Of intervals with two sides there are two columns, for class-conditional sets
        as many as `labels`.
        """
        self._refuse_one_threshold()
        columns = None if labels is None else [*map(str, labels)]
        limits = prediction_limits(self.at(alpha), LookupRows(device, groups, weight, inputs, rng, keys, None, columns))
        if limits.by_side or limits.by_label:
            return limits.values[0] if len(limits.values) == 1 else limits.values
        one = all(given is None or _is_single(given) for given in (device, groups, weight, inputs))
        return limits.per_row if one else limits.values[:, 0]

    def threshold_for(
        self, groups: Iterable[object] = (), alpha: Alpha | None = None, device: str | int | None = None
    ) -> float:
        """Return the threshold of a point that lies in these groups, however many.

        Where groups may overlap, a combination that no calibration score had is always covered by `max` and `seq`, and
        has the threshold +inf with `atoms` and `regression`.
        """
        self._refuse_one_threshold()
        names = [*groups]
        known = names or (self.guarantee.groups is not None and not self.is_settled(0))
        given = Memberships.of_lists([names], "groups") if known else None
        limits = prediction_limits(self.at(alpha), LookupRows(device, given))
        if limits.by_side:
            raise ValueError("a point has a threshold for each side; choose result['lower'] or result['upper'] first")
        return float(limits.per_row)

    # --- adapted scores -----------------------------------------------------------------------------------------------

    def on(self, device: object, data: Any = None, *, groups: Any = None) -> DevicePredictor:
        """Return the predictor of one device, which answers alone: for results with adapted scores.

        Keep it for many predictions: the first one computes what all of them need, with 1,000 rows and 1,000 classes
        in about a second, and `predict(outputs, device=...)` repeats this in every call.

        Parameters
        ----------
        device
            Its name.
        data
            The rows that the device calibrated with, in the same order: (outputs, labels), or a frame (`with_rows`).
            A file has no rows, so that they must be given for a result that was loaded; a digest in the result says
            whether they are the same.
        groups
            Their groups, where the calibration had groups.

        Examples
        --------
        >>> import numpy as np
        >>> from conformesh import calibrate
        >>> rng = np.random.default_rng(0)
        >>> clinic = lambda often: (rng.dirichlet(np.ones(4), 40), rng.choice([0, 1, 2, 3, often, often], 40))
        >>> result = calibrate({"north": clinic(0), "south": clinic(3)}, adapt="prior", rng=0)
        >>> result.on("north").predict([[0.4, 0.3, 0.2, 0.1]]).shape
        (1, 4)
        """
        if self.guarantee.adapt is None or self.adapted is None:
            raise ValueError("on() is for adapted scores, calibrate(..., adapt=...); use predict(outputs, device=...)")
        from conformesh.results.adapted import DevicePredictor

        name, adapt = str(device), self.guarantee.adapt
        if name not in self.adapted.hidden:
            raise unknown_device_error(device, self.adapted)
        if data is None:
            if name not in self.rows:
                raise ValueError(
                    f"this result contains no rows of device {name}; give its calibration rows in the same order, "
                    f"on({name!r}, (outputs, labels))"
                )
            return DevicePredictor(self, name, self.rows[name])
        if frame_columns(data) is not None:
            return self.with_rows(data, groups=groups).on(name)
        if not (isinstance(data, tuple | list) and len(data) == 2):
            raise TypeError(f"on({name!r}, data) takes a pair (outputs, labels) or a frame, got {type(data).__name__}")
        outputs, labels = data
        truth = as_array(labels, "labels")
        truth = self.columns_of(truth, outputs) if adapt.task == "classification" else truth
        bag = adapt.read(self.table_of(outputs), truth, f"device {name}")
        rows = DeviceRows(bag, None if groups is None else Memberships.of(groups, f"device {name}"))
        check_digest(self.adapted, name, rows)
        return DevicePredictor(self, name, rows)

    def _refuse_one_threshold(self) -> None:
        if self.guarantee.adapt is not None:
            raise ValueError(
                "adapted scores have no common threshold: the largest score that belongs to a set depends on the rows "
                "of the device; use on(device).predict(outputs)"
            )

    def with_rows(
        self,
        outputs: Any,
        labels: ArrayLike | str | None = None,
        *,
        device: str | int | ArrayLike | None = None,
        groups: Any = None,
        columns: Mapping[str, str] | None = None,
    ) -> Result:
        """Return this result with the rows that devices calibrated with, to predict for several of them after `load`.

        Outputs and labels with the device of each row, or a dict of pairs by device, or a frame, as in `sites`. Of each
        device all rows are needed, in the order in which it calibrated with them; a digest says whether they are the
        same. Devices may be left out: they do not predict then.
        """
        if self.guarantee.adapt is None:
            raise ValueError("with_rows() is for adapted scores, calibrate(..., adapt=...); other results need no rows")
        from conformesh.results.sites import labelled_rows

        if device is None:
            predictions = self._prediction_columns(None)
            label = labels if isinstance(labels, str) else None
            if labels is not None and label is None:
                raise ValueError(
                    "with_rows() needs the device of each row: device=, a name for each row, or one for all"
                )
            read = labelled_rows(outputs, self, predictions, columns=columns, label=label, groups=groups)
            outputs, labels, device, groups = read.outputs, read.labels, read.device, read.groups
        table, truth = self.table_of(outputs), as_array(labels, "labels")
        names = np.broadcast_to(as_array(device, "device").astype(str), (len(truth),))
        given = None if groups is None else Memberships.of(groups, "groups")
        found = {}
        for name in np.unique(names).tolist():
            own = np.flatnonzero(names == name)
            found[name] = self.on(
                name, (table[own], truth[own]), groups=None if given is None else given.take(own)
            ).rows
        return structs.replace(self, rows={**self.rows, **found})

    def _adapted_sets(self, outputs: Any, rows: LookupRows) -> NDArray[Any]:
        """Return sets or intervals of rows, by the predictor of the device of each."""
        table, device = self.table_of(outputs), rows.device
        if device is None and self.devices == 1:
            device = self.device_ids[0]
        if device is None:
            raise ValueError(
                "predictions with adapted scores need the device of each row; give device=, a name or one for each "
                "row, or use result.on(name).predict(outputs)"
            )
        for name, value in (("weight", rows.weight), ("inputs", rows.inputs)):
            if value is not None:
                raise ValueError(f"{name}= does not go with adapted scores; leave it out")
        if np.ndim(device) == 0:
            return np.asarray(self.on(device).predict(table, groups=rows.groups))
        names = as_array(device, "device").astype(str)
        if names.shape != (len(table),):
            raise ValueError(f"device must be one name, or one for each of {len(table)} rows, got shape {names.shape}")
        groups = None if rows.groups is None else Memberships.of(rows.groups, "groups")
        places = {name: np.flatnonzero(names == name) for name in np.unique(names).tolist()}
        rows_of = {n: (table[own], None if groups is None else groups.take(own)) for n, own in places.items()}
        from conformesh.results.adapted import predict_on_devices

        found: Any = None
        parts = predict_on_devices({name: self.on(name) for name in places}, rows_of)
        for own, part in zip(places.values(), parts, strict=True):
            found = np.empty((len(table), *part.shape[1:]), dtype=part.dtype) if found is None else found
            found[own] = part
        if found is None:
            columns = self.adapted.columns if self.adapted is not None else 0
            return np.empty((0, columns), np.bool_) if self._is_labelled else np.empty((0, 2))
        return np.asarray(found)

    @property
    def _is_labelled(self) -> bool:
        return self.guarantee.adapt is not None and self.guarantee.adapt.task == "classification"

    # --- new outputs --------------------------------------------------------------------------------------------------

    def predict(
        self,
        outputs: ArrayLike,
        *,
        alpha: Alpha | None = None,
        device: str | int | ArrayLike | None = None,
        groups: Any = None,
        weight: ArrayLike | None = None,
        inputs: ArrayLike | None = None,
        score: Score | str | Function | None = None,
        loss: Loss | str | None = None,
        labels: Sequence[object] | None = None,
        as_names: bool = False,
        rng: Rng | None = None,
        keys: Iterable[Any] | None = None,
    ) -> Any:
        """Return prediction sets (rows x labels, boolean) or intervals (rows x 2) for model outputs.

        Parameters
        ----------
        outputs
            What the score or the loss expects: probabilities, logits, predictions.
        alpha
            Which level; may be left out if there is one only.
        device
            Whose threshold to use: a name, or one name per row. By default the one valid on every device.
        groups
            The groups of each row, in any form that `calibrate` takes. Without it groups must be named by label (0, 1,
            ..., the classes, or what `labels` says, one per column): then label y is in a set exactly if its own score
            is at most the threshold of class y (class-conditional sets). A class without calibration scores is always
            in. The same holds for the classes of a label shift.
        weight
            Where thresholds are for weights of new examples, that of each row: the smallest computed one at or above
            it counts.
        inputs
            Where thresholds are for centres, the inputs of each row, by which it draws a centre.
        score, loss
            The score or the loss, or its name; by default the one the result was told of.
        as_names
            Return a list of tuples of class names instead of a boolean mask.
        rng, keys
            For a randomised score (APS, RAPS) and for centres, which otherwise draw anew for every row of every call. A
            generator; an integer, with which the draw of a row follows from the integer and the row's values; or one
            key per row, so that a row has the same draw in any call. Coverage holds with each of them, also for rows
            predicted one at a time, unless rows share a draw: with an integer, rows with equal outputs in separate
            calls do; with a new generator of the same seed for every call, rows at the same place of each call do, so
            make one generator and use it for all calls; and with keys that repeat in separate calls, rows of equal keys
            do. Keys that repeat within a call are refused.
        """
        rows = LookupRows(device, groups, weight, inputs, rng, None if keys is None else [*keys])
        found = self._sets(outputs, alpha, rows, score, loss, labels)[-1]
        if not as_names:
            return found
        names = self.classes or frame_columns(outputs)
        if names is None or found.dtype != np.bool_ or found.ndim != 2:
            raise ValueError(
                "as_names=True is for label sets whose classes are known: give classes= to calibrate, or outputs as a "
                "frame with a column for each class"
            )
        return [tuple(names[column] for column in np.flatnonzero(row)) for row in found]

    def interval(self, outputs: ArrayLike, **rows: Any) -> Floats:
        """Return prediction intervals (rows x 2); the arguments are those of `predict`. Not for classification."""
        if self.controlled:
            raise TypeError("a loss has sets and no intervals; use predict(outputs)")
        kind = self.guarantee.adapt or self._score(rows.get("score"))
        if kind.task != "regression":
            raise TypeError(f"score '{kind.name}' is for classification and has no intervals; use predict(outputs)")
        found: Floats = self.predict(outputs, **rows)
        return found

    def evaluate(
        self,
        outputs: ArrayLike,
        labels: ArrayLike,
        *,
        alpha: Alpha | None = None,
        device: str | int | ArrayLike | None = None,
        groups: Any = None,
        weight: ArrayLike | None = None,
        inputs: ArrayLike | None = None,
        cells: Centres | None = None,
        score: Score | str | Function | None = None,
        loss: Loss | str | None = None,
        classes: Sequence[object] | None = None,
        rng: Rng | None = None,
        keys: Iterable[Any] | None = None,
    ) -> Evaluation | RiskEvaluation:
        """Measure coverage and size on labelled data: overall, by class, device, group, and nearest centre.

        Labels are column numbers of the outputs, or classes where the result knows them. `cells` are centres by whose
        nearest one coverage is told apart, by default those of the result; `classes` names the columns, as `labels` in
        `predict`. The rest is as in `predict`, whose sets are the ones measured. Of risk control the mean loss is
        measured instead of coverage.
        """
        view = self.at(alpha)
        near, kinds = cells or view.guarantee.centres, [axis.kind for axis in part_axes(view.guarantee)]
        # What a view has settled does not choose thresholds, but coverage is still told apart by it.
        drawn = inputs if CENTRE in kinds and not view.is_settled(kinds.index(CENTRE)) else None
        chosen = None if GROUP in kinds and view.is_settled(0) else groups
        rows = LookupRows(device, chosen, weight, drawn, rng, None if keys is None else [*keys])
        check_index(outputs, labels, "labels", "outputs")
        kind, table, limits, found = view._sets(outputs, None, rows, score, loss, classes)
        by_device = None if device is None or np.ndim(device) == 0 else as_array(device, "device").astype(str)
        within = view._members(groups, len(table))
        if view.guarantee.loss is not None:
            losses = kind(table, labels).at(limits.per_row)
            return evaluate_risk(losses, found, view.guarantee.loss.bound, view.alpha, by_device, within)
        truth = as_array(labels, "labels")
        if kind.task == "regression":
            made = evaluate_intervals(view._hits(kind, table, truth, limits, found), found, by_device, within)
        else:
            made = evaluate_label_sets(found, view.columns_of(truth, outputs), kind.name, by_device, within)
            made = made.named(view.classes or frame_columns(outputs))
        centres = {} if near is None or inputs is None else coverage_by_centre(made.row_hits, inputs, near)
        level = view.alpha if limits.by_side else float(view.rank_level(view.answers[0]))
        return structs.replace(made, nominal=1 - level, per_centre=centres)

    def sites(
        self,
        outputs: Any = None,
        labels: ArrayLike | str | None = None,
        *,
        device: str | int | ArrayLike | None = None,
        alpha: Alpha | None = None,
        groups: Any = None,
        columns: Mapping[str, str] | None = None,
        family_wise_error: float = FAMILY_WISE_ERROR,
        nominal: float | None = None,
        **rows: Any,
    ) -> Sites:
        """Return which devices are covered too little: a row for each device, and a flag with few false alarms.

        Parameters
        ----------
        outputs, labels, device
            Labelled rows that were neither trained on nor calibrated with: outputs and labels as in `evaluate`, with
            the device of each row. Or in the forms of `calibrate(adapt=...)`: a dict of pairs (outputs, labels) by
            device, or a long frame with the columns `device`, `label` and one for each class (regression: the columns
            that the score reads).

            Without them, and with adapted scores, the leave-one-out coverage of the rows that the devices of this
            process calibrated with: these have set the threshold themselves, so that it says less, and no device is
            flagged.
        columns
            The names of the columns of a frame by role, such as ``{"device": "hospital"}``.
        family_wise_error
            The chance that any device is flagged whose coverage, given this calibration, is at least 1 - alpha.
        nominal
            The coverage to test against, by default 1 - alpha.
        alpha, groups, **rows
            As in `evaluate`, with one entry for each row; `groups` may name a column of a frame, and is a dict by
            device beside a dict of pairs.

        Returns
        -------
        Sites
            Devices without rows are listed, and not tested.

        Examples
        --------
        >>> import numpy as np
        >>> from conformesh import calibrate, scores
        >>> rng = np.random.default_rng(0)
        >>> p, y = rng.dirichlet(np.ones(4), 900), rng.integers(4, size=900)
        >>> lac = scores.LAC()
        >>> result = calibrate({"north": lac(p[:300], y[:300]), "south": lac(p[300:600], y[300:600])}, score=lac)
        >>> sites = result.sites(p[600:], y[600:], device=["north", "south"] * 150)
        >>> sites.flagged, sites["north"].rows
        ((), 150)
        """
        from conformesh.results import sites

        view = self.at(alpha)
        if self.controlled:
            raise ValueError("sites() tests coverage; with a loss use evaluate(..., device=...).per_device")
        if outputs is None:
            return view._calibration_sites(family_wise_error)
        if device is None and (labels is None or isinstance(labels, str)):
            predictions = view._prediction_columns(rows.get("score"))
            read = sites.labelled_rows(outputs, view, predictions, columns=columns, label=labels, groups=groups)
            outputs, labels, device, groups = read.outputs, read.labels, read.device, read.groups
            if view.classes is None and read.classes is not None:
                view = structs.replace(view, classes=read.classes)
        if labels is None:
            raise ValueError("sites() needs the true label of each row; give labels, or a pair for each device")
        if device is None and self.devices > 1:
            raise ValueError("sites() needs the device of each row: device=, a name for each row, or one for all")
        owner = self.device_ids[0] if device is None else device
        if np.ndim(owner) == 0:
            owner = np.full(len(as_array(labels, "labels")), str(owner))
        found = view.evaluate(outputs, labels, device=owner, groups=groups, **rows)
        assert isinstance(found, Evaluation)
        nobody = dict.fromkeys(self.device_ids, DeviceCoverage(0, 0, 0.0, 1.0))
        return structs.replace(found.sites(family_wise_error, nominal), per_device=nobody | found.per_device)

    def _prediction_columns(self, score: Any) -> tuple[str, ...] | None:
        """Return the columns of a frame that hold predictions; None for classification."""
        if self.guarantee.adapt is not None:
            return None if self._is_labelled else (PREDICTION,)
        kind = self._score(score)
        return kind.columns if isinstance(kind, RegressionScore) else None

    def _calibration_sites(self, family_wise_error: float) -> Sites:
        """Return the leave-one-out coverage of the calibration rows of each device here."""
        from conformesh.results import sites

        if "epsilon" in self.options:  # which every private method has, and no other
            raise ValueError(
                "a private run shows nothing of single devices' calibration rows; give labelled rows of other "
                "examples: sites(outputs, labels, device=...)"
            )
        if self.guarantee.mixture.kind == OWN:
            raise ValueError(
                "with mixture='own' the calibration rows of each device reach 1 - alpha by construction; give labelled "
                "rows of other examples: sites(outputs, labels, device=...)"
            )
        if not self.rows:
            why = "a file has none" if self.guarantee.adapt is not None else "scores are not kept"
            raise ValueError(
                f"this result holds no calibration rows ({why}): give labelled rows with the device of each, "
                "sites(outputs, labels, device=...), a dict of device -> (outputs, labels), or a frame"
            )
        found = {name: self.on(name).calibration_coverage(self) for name in self.rows}
        level = 1 - float(self.rank_level(self.answers[0]))
        return sites.Sites(found, level, family_wise_error, sites.CALIBRATION, self.classes)

    def _members(self, groups: Any, rows: int) -> dict[str, NDArray[np.bool_]]:
        """Return which rows lie in each group, or are of each class of a label shift."""
        if groups is None:
            return {}
        given = Memberships.of(groups, "groups")
        if len(given) != rows:
            raise ValueError(f"groups must be one for each of {rows} rows, got {len(given)}")
        weighting = self.guarantee.weighting
        names = () if weighting is None else (*weighting.names,)
        names = names if self.guarantee.groups is None else self.guarantee.groups.names
        return {name: given.is_in(name) for name in names if name != EVERYONE}

    def _sets(
        self, outputs: Any, alpha: Any, rows: LookupRows, score: Any, loss: Any, labels: Sequence[object] | None
    ) -> tuple[Any, NDArray[Any], PredictionLimits, NDArray[Any]]:
        """Return the score or loss, its outputs, the thresholds of the rows, and their sets or intervals."""
        view, table = self.at(alpha), self.table_of(outputs)
        if self.guarantee.adapt is not None:
            no_limits = PredictionLimits(np.full((1, 1), np.nan), False, False)
            return self.guarantee.adapt, table, no_limits, view._adapted_sets(outputs, rows)
        kind: Any = self._loss(loss) if self.controlled else self._score(score)
        columns = None
        if not self.controlled and kind.task == "classification" and table.ndim == 2:
            names = labels if labels is not None else self.classes or range(table.shape[1])
            columns = [str(label) for label in names]
        limits = prediction_limits(view, rows._replace(total=len(table), columns=columns))
        if self.controlled:
            return kind, table, limits, kind.sets(table, limits.per_row)
        if self.guarantee.sides is not None:
            return kind, table, limits, kind.side_intervals(table, *view._ends(limits))
        if kind.task == "regression":
            return kind, table, limits, kind.intervals(table, limits.per_row)
        draws = kind.draws(table, rng=rows.rng, keys=rows.keys)
        if limits.by_label:
            return kind, table, limits, np.asarray(kind.of_all_labels(table, **draws) <= limits.values)
        return kind, table, limits, kind.sets(table, limits.per_row, **draws)

    def _ends(self, limits: PredictionLimits) -> tuple[float | Floats, float | Floats]:
        """Return how far intervals reach below and above; a view of one side has intervals without another end."""
        if limits.by_side:
            return limits.side(0), limits.side(1)
        is_lower = self._side_of(self.answers[0]) == LOWER
        return (limits.per_row, np.inf) if is_lower else (np.inf, limits.per_row)

    def _hits(
        self, kind: Any, table: NDArray[Any], truth: NDArray[Any], limits: PredictionLimits, found: NDArray[Any]
    ) -> NDArray[np.bool_]:
        """Return which labels are covered, by the score itself: ends of intervals are rounded."""
        if len(table) != len(truth):
            raise ValueError(f"evaluate needs one label per row, got {len(table)} rows and {len(truth)} labels")
        if self.guarantee.adapt is not None:
            return np.asarray((found[:, 0] <= truth) & (truth <= found[:, 1]))
        if self.guarantee.sides is not None:
            below, above = kind.sides(table, truth).T
            lower, upper = self._ends(limits)
            return np.asarray(np.less_equal(below, lower) & np.less_equal(above, upper))
        return np.asarray(kind.covers(table, truth, limits.per_row))

    def _score(self, score: Score | str | Function | None) -> Score:
        sided = self.guarantee.sides is not None
        kind = result_score(self.score, score, "CQR" if sided else "LAC")
        if sided and not isinstance(kind, RegressionScore):
            raise TypeError(f"two sides are for regression, got score '{kind.name}', which is for {kind.task}")
        return kind

    def _loss(self, loss: Loss | str | None) -> Loss:
        assert self.guarantee.loss is not None
        found: Loss | None = self.guarantee.loss.loss if loss is None else as_loss(loss)
        if found is None:
            raise ValueError("this result was not told its loss: pass loss=..., for instance FalseNegativeRate()")
        return found

    def columns_of(self, labels: NDArray[Any], outputs: Any = None) -> NDArray[Any]:
        """Return labels as column numbers, where they are classes or names of the columns of outputs."""
        if self.classes is not None and not isinstance(self.classes[0], str):
            return class_indices(self.classes, labels)
        columns = frame_columns(outputs)
        names = self.classes if self.classes is not None else columns
        if names is None or (columns is None and labels.dtype.kind not in "OUST"):
            return labels
        return label_positions(labels, [*map(str, names)], "labels")

    def table_of(self, outputs: Any) -> NDArray[Any]:
        """Return outputs as an array, the columns of a frame in the order of the classes where these are known."""
        return columns_in_order(outputs, [*map(str, self.classes or ())], "outputs")

    # --- summaries, tables and pictures -------------------------------------------------------------------------------

    @property
    def shortage(self) -> str:
        """Which answers have too few examples, so that their threshold is +inf, in words; empty where none has."""
        return summaries.shortage_warning(self)

    @property
    def scores_in_words(self) -> str:
        """What to say of the examples behind a number of devices: noise is there to hide how many they are."""
        return summaries.examples_in_words(self)

    def contradictions(self) -> Iterator[str]:
        """Yield what in this result cannot be so; a file is refused by the first of these."""
        return consistency.result_contradictions(self)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return a table with a row for each answer and device; ranks are left out where no answer has one."""
        each = self.devices
        ranks = {
            name: [getattr(answer.certificate, name) for answer in self.answers]
            for name in ("required_rank", "counted_rank")
        }
        found: dict[str, NDArray[Any]] = {
            "part": np.repeat([", ".join(answer.part) for answer in self.answers], each),
            "alpha": np.repeat([float(answer.alpha) for answer in self.answers], each),
            "device": np.tile(np.array(self.device_ids), len(self.answers)),
            "threshold": np.concatenate([answer.thresholds for answer in self.answers]),
            "kind": np.repeat([answer.certificate.kind for answer in self.answers], each),
        }
        for name, given in ranks.items():
            if any(rank is not None for rank in given):
                missing = [np.nan if rank is None else rank for rank in given]
                found[name] = np.concatenate([np.broadcast_to(rank, (each,)) for rank in missing])
        return found | {"examples": np.repeat([answer.examples for answer in self.answers], each)}

    def plot(self, network: Network | None = None, ax: Any = None, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the threshold of every device and what each sent, under the certificate; returns the figure.

        With `network` on its map; with `ax` one panel alone; `path` also writes .png, .pdf or .svg. Of several answers
        the threshold of every part at every level.
        """
        from conformesh.plots.results import draw_result

        return draw_result(self, network, ax, path)

    def title(self) -> str:
        """Say in a few words what was found, for a heading."""
        return summaries.result_title(self)

    def facts(self) -> list[tuple[str, str]]:
        """Return names and words of what a person wants to know first: what the command line prints."""
        return summaries.result_facts(self)

    def _repr_html_(self) -> str:
        return summaries.result_card(self)

    def __repr__(self) -> str:
        return summaries.result_summary(self)


def class_indices(classes: Sequence[Any], labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of every label among the classes: by value, or else as written.

    >>> class_indices((3, 5, 7), np.array([7, 3])), class_indices(("a", "b"), np.array(["b"]))
    (array([2, 0]), array([1]))
    """
    column: dict[Any, int] = {str(name): i for i, name in enumerate(classes)}
    column |= {name: i for i, name in enumerate(classes)}
    values = labels.tolist()
    found = [column.get(value, column.get(str(value), -1)) for value in values]
    if -1 in found:
        raise ValueError(f"labels: {unknown_name('class', values[found.index(-1)], map(str, classes))}")
    return np.array(found, dtype=np.int64)


def _is_single(given: Any) -> bool:
    """Return whether an argument is about one row; lists of lists, as of groups, have no number of dimensions."""
    return not isinstance(given, list | tuple) and np.ndim(given) == 0


def _some(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names[:8])) + (", ..." if len(names) > 8 else "")
