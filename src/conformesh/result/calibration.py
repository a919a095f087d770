"""Calibration: a threshold, why it may be trusted, and what it cost. Holds no score.

`Calibration.save` writes the same JSON object that `conformesh calibrate --json` prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs, to_builtins
from numpy.typing import ArrayLike, NDArray

from conformesh._version import __version__
from conformesh.io.arrays import as_array, check_index, columns_of
from conformesh.io.files import write_file
from conformesh.io.json_numbers import from_json, in_json, number, to_json, with_infinities
from conformesh.kernels.ranks import AUTO, Alpha, exact_alpha
from conformesh.names import natural_order, unknown
from conformesh.quantities import in_bits, in_count
from conformesh.result.certificate import KINDS, Certificate, Cost, Noise
from conformesh.result.evaluation import Evaluation, evaluate_intervals, evaluate_sets
from conformesh.result.files import FORMAT, CostFields, checked_calibration
from conformesh.scores import Function, Score, result_score, saved_score
from conformesh.scores.base import places_of
from conformesh.scores.draws import Rng

if TYPE_CHECKING:
    from conformesh.graph.network import Network
    from conformesh.protocols.site import Outcome

# the certificate's facts
PROMISED = ("rank", "mean loss", "private", "about", "of", "liars", "weights", "epsilon", "assuming")


@dataclass(frozen=True, eq=False)
class Calibration:
    """The result of `calibrate`.

    Attributes
    ----------
    method, alpha
        What was run, for which miscoverage level.
    threshold
        One number that is valid on every device: the largest of `thresholds`.
    thresholds
        Each device's own threshold, in the order of `device_ids`.
    device_ids
        The devices' names.
    scores
        How many calibration scores there were in all.
    certificate, cost
        Why the threshold may be trusted; rounds, numbers and bits each device sent.
    estimate
        The method's estimate before its correction, where it has one.
    score
        The nonconformity score the threshold belongs to, where it was named: then `predict` needs no more.
    notes
        Sentences for the user.
    bracket
        Two numbers around the threshold between which a search ended: where `update` starts.
    classes
        The classes, in the order of the columns of outputs, where they are known: names, or numbers or truth values
        where a model has these.
    weight_bound
        The largest weight of an example, where scores had weights: the promise is about examples that are as much
        likelier than the calibration examples as they weigh.
    test_weight
        Where the threshold is for new examples of at most this weight; None: for all.
    """

    method: str
    alpha: float
    thresholds: NDArray[np.float64]
    device_ids: tuple[str, ...]
    scores: int
    certificate: Certificate
    cost: Cost
    estimate: float | None = None
    seconds: float = 0.0
    network: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    score: Score | None = None
    notes: tuple[str, ...] = ()
    bracket: tuple[float, float] | None = None
    classes: tuple[Any, ...] | None = None
    weight_bound: float | None = None
    test_weight: float | None = None

    @classmethod
    def of(
        cls,
        outcome: Outcome,
        cost: Cost,
        *,
        method: str,
        alpha: Alpha,
        device_ids: Sequence[str],
        scores: int,
        trial: int = 0,
        level: int = 0,
        network: str = "",
        options: Mapping[str, Any] | None = None,
        score: Score | None = None,
        classes: Sequence[Any] | None = None,
        weight_bound: float | None = None,
        test_weight: float | None = None,
        seconds: float = 0.0,
    ) -> Calibration:
        """Take one (trial, level) out of what a method handed back; the rest are attributes of the result.

        `device_ids` name the devices whose thresholds the outcome has, all of a simulation or one on a real device;
        `scores` counts those of all devices that took part.
        """
        thresholds = outcome.thresholds[:, trial, level]
        refuse_nan(thresholds, method)
        return cls(
            method=method,
            alpha=float(exact_alpha(alpha)),
            thresholds=thresholds,
            device_ids=tuple(device_ids),
            scores=scores,
            certificate=outcome.certificates[trial][level],
            cost=cost,
            estimate=None if outcome.estimates is None else float(outcome.estimates[:, trial, level].max()),
            seconds=seconds,
            network=network,
            options={**(options or {}), **outcome.facts, **(outcome.trial_facts[trial] if outcome.trial_facts else {})},
            score=score,
            notes=outcome.notes,
            bracket=None if outcome.brackets is None else _around(thresholds, outcome.brackets[:, trial, level]),
            classes=None if classes is None else tuple(classes),
            weight_bound=weight_bound,
            test_weight=test_weight,
        )

    @property
    def threshold(self) -> float:
        """One number that is valid on every device: the largest of the devices' thresholds."""
        return float(self.thresholds.max())

    @property
    def level(self) -> float:
        """What was asked for: alpha, or the risk."""
        return self.alpha

    @property
    def devices(self) -> int:
        """How many devices took part."""
        return len(self.device_ids)

    @property
    def scores_in_words(self) -> str:
        """What to say of the scores behind a number of devices: noise is there to hide how many they are."""
        if self.certificate.noise is not None:
            return "; how many scores they hold is not told"
        return f" with {self.scores:,} scores in all"

    def threshold_of(self, device: str | int) -> float:
        """Return the threshold of one device, by name."""
        try:
            return float(self.thresholds[self.device_ids.index(str(device))])
        except ValueError:
            raise ValueError(f"unknown device {device!r}; known: {_some(self.device_ids)}") from None

    def predict(
        self,
        outputs: ArrayLike,
        *,
        score: Score | str | Function | None = None,
        device: str | int | ArrayLike | None = None,
        rng: Rng | None = None,
        keys: Iterable[Any] | None = None,
    ) -> NDArray[Any]:
        """Return prediction sets (rows x labels, boolean) or intervals (rows x 2) for model outputs.

        Parameters
        ----------
        outputs
            What the score expects: probabilities, logits, predictions.
        score
            The nonconformity score or its name; by default the one the calibration was told of.
        device
            Whose threshold to use: a name, or one name per row. By default the one valid on every device.
        rng, keys
            For a randomised score (APS, RAPS), which otherwise draws anew for every row of every call. A generator; an
            integer, with which the draw of a row follows from the integer and the row's outputs; or one key per row,
            so that a row has the same draw in any call. Coverage holds with each of them, also for rows predicted one
            at a time, unless rows share a draw: with an integer, rows with equal outputs in separate calls do; with a
            new generator of the same seed for every call, rows at the same place of each call do, so make one
            generator and use it for all calls; and with keys that repeat in separate calls, rows of equal keys do.
            Keys that repeat within a call are refused.
        """
        kind = self._score(score)
        threshold = self.thresholds_for(device)
        table = self.table_of(outputs)
        if kind.task == "regression":
            return kind.intervals(table, threshold)
        return kind.sets(table, threshold, **kind.draws(table, rng=rng, keys=keys))

    def evaluate(
        self,
        outputs: ArrayLike,
        labels: ArrayLike,
        *,
        score: Score | str | Function | None = None,
        device: str | int | ArrayLike | None = None,
        rng: Rng | None = None,
        keys: Iterable[Any] | None = None,
    ) -> Evaluation:
        """Measure coverage and size on labelled data, per class and per device, with Wilson intervals.

        Labels are column numbers of the outputs, or classes where the calibration knows them; the rest is as in
        `predict`, whose sets are the ones measured.
        """
        kind = self._score(score)
        threshold = self.thresholds_for(device)
        rows = device if device is not None and np.ndim(device) == 1 else None
        check_index(outputs, labels, "labels", "outputs")
        table, truth = self.table_of(outputs), as_array(labels, "labels")
        if kind.task == "regression":
            found = evaluate_intervals(kind, table, truth, threshold, rows)
        else:
            draws = kind.draws(table, rng=rng, keys=keys)
            found = evaluate_sets(kind, table, self.columns_of(truth, outputs), threshold, rows, draws)
            found = found.named(self.classes or columns_of(outputs))
        return structs.replace(found, nominal=1 - self.alpha)

    def plot(self, network: Network | None = None, ax: Any = None, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the threshold of every device and what each sent, under the certificate; returns the figure.

        With `network` on its map; with `ax` one panel alone; `path` also writes .png, .pdf or .svg.
        """
        from conformesh.plots.results import draw_answer

        return draw_answer(self, network, ax, path)

    what = "threshold"

    def title(self) -> str:
        """Say in a few words what was found, for a heading."""
        return f"{self.what} {self.threshold:.6g}, {self.method} at alpha {self.alpha:g}"

    def facts(self) -> list[tuple[str, str]]:
        """Return names and words of what a person wants to know first: what the command line prints."""
        low, high = float(self.thresholds.min()), self.threshold
        same = "the same on every device" if low == high else f"valid on every device; the smallest is {low:.6g}"
        certificate, cost = self.certificate, self.cost
        said = dict(certificate.facts(self.scores))
        lines = [
            ("threshold", f"{high:.6g} ({same})"),
            ("guarantee", f"{certificate.kind}: {KINDS[certificate.kind]}"),
        ]
        if {"rank", "mean loss", "private"} & {*said}:
            lines += [(name, said[name]) for name in ("rank", "private", "about", "of", "liars") if name in said]
        if self.weight_bound is not None:
            lines.append(
                ("weights", f"at most {self.weight_bound:g}: how much likelier a new example is, up to a factor")
            )
        if certificate.epsilon is not None:
            lines.append(("epsilon", self._epsilon()))
        if certificate.assumption:
            lines.append(("note" if certificate.kind == "none" else "assuming", certificate.assumption))
        if "sums_by" in self.options:
            lines.append(("sums", f"by {self.options['sums_by']}, {self.options['sums_why']}"))
        if "privacy" in self.options:
            lines.append(("privacy", self.options["privacy"]))
        if "revealed" in self.options:
            lines.append(("everybody knows", self.options["revealed"]))
        sent = f"{in_count(cost.numbers_per_device)} numbers, {in_bits(cost.bits_per_device)}"
        return [
            *lines,
            ("cost", f"{cost.rounds:,} rounds, each device sent {sent}"),
            ("devices", f"{self.devices:,}{self.scores_in_words}"),
            ("network", self.network),
            ("method", f"{self.method}, alpha {self.alpha:g}"),
            ("seconds", f"{self.seconds:.3f}"),
        ]

    def _epsilon(self) -> str:
        c = self.certificate
        if c.epsilon_T is None or c.epsilon_bias is None:
            return f"{c.epsilon:.3g} of the scores"
        return f"{c.epsilon:.3g} added to the estimate (convergence {c.epsilon_T:.3g}, bias {c.epsilon_bias:.3g})"

    def _repr_html_(self) -> str:
        from conformesh import cards

        rows = [(name, words) for name, words in self.facts() if words and name != "guarantee"]
        rows.sort(key=lambda row: row[0] not in PROMISED)  # the certificate first, the rest as it was
        if self.score is not None:
            rows.insert(-1, ("score", repr(self.score)))
        rows += [("note", note) for note in self.notes]
        each = {name: cards.Mark(t, t, t) for name, t in zip(self.device_ids, self.thresholds.tolist(), strict=True)}
        parts = [cards.marks(each, self.what, "device")] if len({*each.values()}) > 1 else []
        return cards.card(
            self.title(),
            kind=self.certificate.kind,
            claim=KINDS[self.certificate.kind],
            rows=rows,
            parts=parts,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; infinity is the string "inf"."""
        result = {
            "format": FORMAT,
            "version": __version__,
            "method": self.method,
            "alpha": self.alpha,
            "devices": self.devices,
            "scores": self.scores,
            "threshold": self.threshold,
            "thresholds": self.thresholds.tolist(),
            "estimate": self.estimate,
            "certificate": to_builtins(self.certificate),
            "cost": self.cost.to_dict(),
            "seconds": self.seconds,
            "network": self.network,
            "options": self.options,
            "score": None if self.score is None else {"name": self.score.name, **self.score.options()},
            "device_ids": list(self.device_ids),
            "notes": list(self.notes),
            "bracket": self.bracket,
            "classes": self.classes,
            "weight_bound": self.weight_bound,
            "test_weight": self.test_weight,
        }
        clean: dict[str, Any] = in_json(result)
        return clean

    def to_json(self) -> str:
        """Return the JSON object on one line."""
        return to_json(self.to_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON, whole or not at all. It holds no score."""
        write_file(path, to_json(self.to_dict(), indent=2))

    def update(self, devices: Iterable[ArrayLike], network: Network, **options: Any) -> Calibration:
        """Calibrate again after devices gained or lost scores, starting from this result.

        With `e-dcp` a few counts around the old threshold usually bracket the new one at once, which costs a fraction
        of a cold start; the result is exact either way. Other methods start anew.
        """
        from conformesh.api import calibrate
        from conformesh.methods import METHODS

        if self.weight_bound is not None and "weight" not in options:
            raise ValueError(
                f"this calibration had weights of at most {self.weight_bound:g}: give weight= and weight_bound= again"
            )
        mine = {name: self.options[name] for name in METHODS[self.method].option_names() if name in self.options}
        if METHODS[self.method].starts_warm and self.bracket is not None:
            mine["warm"] = self.bracket
        return calibrate(
            devices, network, self.alpha, self.method, score=self.score, **{**self._asked, **mine, **options}
        )

    @property
    def _asked(self) -> dict[str, Any]:
        """The promise that was asked for, as far as the certificate tells; shares by device must be given again."""
        from conformesh.methods import METHODS

        if METHODS[self.method].requirement is not None or not self.certificate.mixture:
            return {}
        told = self.certificate
        return {
            "target": told.mixture,
            "rank": "ghost" if told.rule == "ghost" else AUTO,
            "pac_confidence": told.pac_confidence,
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Read what `save` wrote, and check that it fits together. Of the cost it knows the means over the devices."""
        return cls.from_dict(from_json(Path(path).read_bytes(), str(path)), str(path))

    @classmethod
    def from_dict(cls, raw: Any, where: str = "calibration") -> Calibration:
        """Rebuild a result from its JSON object, and check that it fits together; `where` names it in an error."""
        file = checked_calibration(raw, where)
        kind, more = cls, {}
        if file.risk is not None:
            from conformesh.result.control import Control, risk_of

            kind, more = Control, risk_of(file.risk, where)
        elif cls is not Calibration:
            raise ValueError(f"{where}: needed a result of risk control, got one that covers; use Calibration.load")
        certificate = structs.asdict(file.certificate)
        for key, value in certificate.items():
            if isinstance(value, list):
                certificate[key] = tuple(value)
            elif key.startswith("epsilon") and value is not None:
                certificate[key] = number(value, key)
        if file.certificate.noise is not None:
            noise = structs.asdict(file.certificate.noise)
            certificate["noise"] = Noise(**{**noise, "epochs": tuple(noise["epochs"])})
        return kind(
            method=file.method,
            alpha=file.alpha,
            thresholds=np.array([number(value) for value in file.thresholds]),
            device_ids=tuple(file.device_ids),
            scores=file.scores,
            certificate=Certificate(**certificate),
            cost=cost_of(file.cost, file.devices),
            estimate=None if file.estimate is None else number(file.estimate, "estimate"),
            seconds=file.seconds,
            network=file.network,
            options={name: with_infinities(value) for name, value in file.options.items()},
            score=None if file.score is None else _score_of(file.score, where),
            notes=tuple(file.notes),
            bracket=file.bracket,
            classes=None if file.classes is None else tuple(file.classes),
            weight_bound=file.weight_bound,
            test_weight=file.test_weight,
            **more,
        )

    def __repr__(self) -> str:
        return (
            f"Calibration({self.method}, alpha={self.alpha:g}: threshold {self.threshold:.6g} on {self.devices} "
            f"devices, {self.certificate.kind}; {self.cost})"
        )

    def _score(self, score: Score | str | Function | None) -> Score:
        return result_score(self.score, score)

    def columns_of(self, labels: NDArray[Any], outputs: Any = None) -> NDArray[Any]:
        """Return labels as column numbers, where they are classes or names of the columns of outputs."""
        if self.classes is not None and not isinstance(self.classes[0], str):
            return columns_among(self.classes, labels)
        columns = columns_of(outputs)
        if columns is not None:
            return places_of(labels, self.classes or columns, "labels")
        if self.classes is None or labels.dtype.kind not in "OUST":
            return labels
        return places_of(labels, self.classes, "labels")

    def table_of(self, outputs: Any) -> NDArray[Any]:
        """Return outputs as an array, the columns of a frame in the order of the classes where these are known."""
        columns, classes = columns_of(outputs), [*map(str, self.classes or ())]
        if columns is None or not classes or columns == classes:
            return as_array(outputs, "outputs")
        if sorted(columns) != sorted(classes):
            wrong = natural_order({*columns} ^ {*classes})
            odd = f"; {wrong[0]!r} is {'missing' if wrong[0] in classes else 'none of them'}" if wrong else ""
            raise ValueError(
                f"outputs must have a column for each class, {_some(classes)}, got {_some(columns)}{odd}; rename the "
                "columns, or pass an array with the columns in this order"
            )
        return as_array(outputs, "outputs")[:, [columns.index(name) for name in classes]]

    def thresholds_for(self, device: Any) -> float | NDArray[np.float64]:
        """Return the threshold of a device, or of each row's device; by default the one valid on every device."""
        if device is None:
            return self.threshold
        if np.ndim(device) == 0:
            return self.threshold_of(device)
        rows = {name: i for i, name in enumerate(self.device_ids)}
        try:
            return self.thresholds[[rows[str(name)] for name in np.asarray(device).tolist()]]
        except KeyError as missing:
            raise ValueError(f"unknown device {missing.args[0]!r} among the rows' devices") from None


def columns_among(classes: Sequence[Any], labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of every label among the classes: by value, or else as written.

    >>> columns_among((3, 5, 7), np.array([7, 3])), columns_among(("a", "b"), np.array(["b"]))
    (array([2, 0]), array([1]))
    """
    column: dict[Any, int] = {str(name): i for i, name in enumerate(classes)}
    column |= {name: i for i, name in enumerate(classes)}
    values = labels.tolist()
    found = [column.get(value, column.get(str(value), -1)) for value in values]
    if -1 in found:
        raise ValueError(f"labels: {unknown('class', values[found.index(-1)], map(str, classes))}")
    return np.array(found, dtype=np.int64)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def cost_of(fields: CostFields, devices: int) -> Cost:
    """Rebuild a cost from its means over the devices."""
    numbers, bits = np.full(devices, float(fields.numbers_per_device)), np.full(devices, float(fields.bits_per_device))
    return Cost(fields.rounds, numbers, bits, None if fields.sent is None else cost_of(fields.sent, devices))


def refuse_nan(thresholds: NDArray[np.float64], method: str) -> None:
    """Refuse a threshold that is no number, whatever brought it about: compared with NaN every set is empty."""
    if np.isnan(thresholds).any():
        raise OverflowError(
            f"method {method!r} ended without a number as its threshold: its arithmetic left the range of float64; "
            "divide all scores by one number, calibrate, and multiply the threshold by it, or use e-dcp"
        )


def _score_of(raw: Mapping[str, Any], where: str) -> Score:
    options = {**raw}
    name = options.pop("name", None)
    try:
        return saved_score(str(name), options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: score: {error}") from None


def _around(thresholds: NDArray[np.float64], ends: NDArray[np.float64]) -> tuple[float, float] | None:
    """Return a bracket around the threshold, wider than what a search ended with, so that no end of it is a score."""
    if not np.isfinite(thresholds).all():
        return None
    middle = float(thresholds[0])
    with np.errstate(over="ignore"):
        reach = 1.5 * float(np.abs(ends - middle).max())
        around = (middle - reach, middle + reach)
    return around if np.isfinite(around).all() else None
