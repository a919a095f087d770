"""Calibration: a threshold, why it may be trusted, and what it cost. Holds no score.

`Calibration.save` writes the same JSON object that `conformesh calibrate --json` prints.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh._version import __version__
from conformesh.io.files import write_file
from conformesh.promises import exact_alpha
from conformesh.result.certificate import Certificate, Cost
from conformesh.result.evaluation import Evaluation, evaluate_intervals, evaluate_sets
from conformesh.scores import Score, get_score

if TYPE_CHECKING:
    from conformesh.graph.network import Network

FORMAT = "conformesh-calibration/1"
SEVERAL = "conformesh-calibrations/1"


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

    @property
    def threshold(self) -> float:
        """One number that is valid on every device: the largest of the devices' thresholds."""
        return float(self.thresholds.max())

    @property
    def devices(self) -> int:
        """How many devices took part."""
        return len(self.device_ids)

    def threshold_of(self, device: str | int) -> float:
        """Return the threshold of one device, by name."""
        try:
            return float(self.thresholds[self.device_ids.index(str(device))])
        except ValueError:
            known = ", ".join(self.device_ids[:10]) + (", ..." if self.devices > 10 else "")
            raise ValueError(f"unknown device {device!r}; known: {known}") from None

    def predict(
        self, outputs: ArrayLike, *, score: Score | None = None, device: str | int | ArrayLike | None = None
    ) -> NDArray[Any]:
        """Return prediction sets (rows x labels, boolean) or intervals (rows x 2) for model outputs.

        Parameters
        ----------
        outputs
            What the score expects: probabilities, logits, predictions.
        score
            The nonconformity score; by default the one the calibration was told of.
        device
            Whose threshold to use: a name, or one name per row. By default the one valid on every device.
        """
        score = self._score(score)
        threshold = self._thresholds_for(device)
        table = np.asarray(outputs)
        if score.task == "regression":
            return score.intervals(table, threshold)
        return score.sets(table, threshold)

    def evaluate(
        self,
        outputs: ArrayLike,
        labels: ArrayLike,
        *,
        score: Score | None = None,
        device: str | int | ArrayLike | None = None,
    ) -> Evaluation:
        """Measure coverage and size on labelled data, per class and per device, with Wilson intervals."""
        score = self._score(score)
        threshold = self._thresholds_for(device)
        rows = device if device is not None and np.ndim(device) == 1 else None
        if score.task == "regression":
            return evaluate_intervals(score, np.asarray(outputs), np.asarray(labels), threshold, rows)
        return evaluate_sets(score, np.asarray(outputs), np.asarray(labels), threshold, rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; infinity is the string "inf"."""
        certificate = asdict(self.certificate)
        for key in ("required_rank", "counted_rank"):
            if isinstance(certificate[key], tuple):
                certificate[key] = list(certificate[key])
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
            "certificate": certificate,
            "cost": self.cost.to_dict(),
            "seconds": self.seconds,
            "network": self.network,
            "options": self.options,
            "score": None if self.score is None else {"name": self.score.name, **self.score.options()},
            "device_ids": list(self.device_ids),
            "notes": list(self.notes),
            "bracket": None if self.bracket is None else list(self.bracket),
        }
        clean: dict[str, Any] = _infinities_as_text(result)
        return clean

    def to_json(self) -> str:
        """Return the JSON object on one line."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON, whole or not at all. It holds no score."""
        write_file(path, json.dumps(self.to_dict(), allow_nan=False, indent=2) + "\n")

    def update(self, devices: Iterable[ArrayLike], network: Network, **options: Any) -> Calibration:
        """Calibrate again after devices gained or lost scores, starting from this result.

        With `e-dcp` a few counts around the old threshold usually bracket the new one at once, which costs a fraction
        of a cold start; the result is exact either way. Other methods start anew.
        """
        from conformesh.calibrating import calibrate
        from conformesh.methods import METHODS

        mine = {name: self.options[name] for name in METHODS[self.method].option_names() if name in self.options}
        if self.method == "e-dcp" and self.bracket is not None:
            mine["warm"] = self.bracket
        return calibrate(devices, network, self.alpha, self.method, score=self.score, **{**mine, **options})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Read what `save` wrote."""
        try:
            raw = json.loads(Path(path).read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}: a calibration is a JSON file, but it does not parse: {error}") from None
        return cls.from_dict(raw, str(path))

    @classmethod
    def from_dict(cls, raw: Any, where: str = "calibration") -> Calibration:
        """Rebuild a result from its JSON object."""
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            got = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
            raise ValueError(f"{where}: needed a result of `conformesh calibrate` ({FORMAT}), got {got!r}")
        raw = _text_as_infinities(raw)
        certificate = dict(raw["certificate"])
        for key in ("required_rank", "counted_rank"):
            if isinstance(certificate[key], list):
                certificate[key] = tuple(certificate[key])
        score = dict(raw["score"]) if raw.get("score") else None
        cost, k = raw["cost"], len(raw["device_ids"])
        return cls(
            method=raw["method"],
            alpha=raw["alpha"],
            thresholds=np.array(raw["thresholds"], dtype=np.float64),
            device_ids=tuple(raw["device_ids"]),
            scores=raw["scores"],
            certificate=Certificate(**certificate),
            cost=Cost(cost["rounds"], np.full(k, cost["numbers_per_device"]), np.full(k, cost["bits_per_device"])),
            estimate=raw["estimate"],
            seconds=raw["seconds"],
            network=raw["network"],
            options=raw["options"],
            score=None if score is None else get_score(score.pop("name"), **score),
            notes=tuple(raw["notes"]),
            bracket=tuple(raw["bracket"]) if raw.get("bracket") else None,
        )

    def __repr__(self) -> str:
        return (
            f"Calibration({self.method}, alpha={self.alpha:g}: threshold {self.threshold:.6g} on {self.devices} "
            f"devices, {self.certificate.kind}; {self.cost})"
        )

    def _score(self, score: Score | None) -> Score:
        found = self.score if score is None else score
        if found is None:
            raise ValueError("this calibration was not told its score: pass score=..., for instance scores.LAC()")
        return found

    def _thresholds_for(self, device: Any) -> float | NDArray[np.float64]:
        if device is None:
            return self.threshold
        if np.ndim(device) == 0:
            return self.threshold_of(device)
        rows = {name: i for i, name in enumerate(self.device_ids)}
        try:
            return self.thresholds[[rows[str(name)] for name in np.asarray(device).tolist()]]
        except KeyError as missing:
            raise ValueError(f"unknown device {missing.args[0]!r} among the rows' devices") from None


@dataclass(frozen=True, eq=False)
class Calibrations:
    """Thresholds by group and level, each with its own rank and certificate; one shared cost.

    Attributes
    ----------
    items
        ``items[group, alpha]``; the group is None where there are none.
    cost
        What the whole run cost.
    """

    items: dict[tuple[str | None, float], Calibration]
    cost: Cost

    @property
    def groups(self) -> tuple[str | None, ...]:
        """The groups, in natural order."""
        return tuple(dict.fromkeys(group for group, _ in self.items))

    @property
    def alphas(self) -> tuple[float, ...]:
        """The levels, as given."""
        return tuple(dict.fromkeys(alpha for _, alpha in self.items))

    def get(self, alpha: float | None = None, group: object = None) -> Calibration:
        """Return one of the results; alpha may be left out if there is one only."""
        level = self._alpha(alpha)
        key = (None if group is None else str(group), level)
        if key not in self.items:
            raise ValueError(f"no threshold for group {group!r}; known: {', '.join(map(str, self.groups))}")
        return self.items[key]

    def predict(
        self,
        outputs: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        alpha: float | None = None,
        score: Score | None = None,
        labels: Sequence[object] | None = None,
    ) -> NDArray[Any]:
        """Return prediction sets or intervals, each row by the threshold of its group.

        Without `groups` the groups must be labels (0, 1, ..., or the names in `labels`, one per column): then label y
        is in a set exactly if its own score is at most the threshold of class y (class-conditional sets). A class
        without calibration scores is always in.
        """
        table = np.asarray(outputs)
        kind = self.score if score is None else score
        if kind is None:
            raise ValueError("this calibration was not told its score: pass score=..., for instance scores.LAC()")
        level = self._alpha(alpha)
        if groups is not None:
            names = [str(name) for name in np.asarray(groups).tolist()]
            thresholds = np.array([self.get(level, name).threshold for name in names])
            return kind.intervals(table, thresholds) if kind.task == "regression" else kind.sets(table, thresholds)
        if kind.task == "regression" or None in self.groups:
            raise ValueError("predict needs groups=, one per row: thresholds differ by group")
        known = {group: self.items[group, level].threshold for group in self.groups}
        columns = [str(label) for label in (range(table.shape[1]) if labels is None else labels)]
        strange = [group for group in known if group not in columns]
        if strange:
            raise ValueError(
                f"class-conditional sets need groups named by label, {columns[0]} to {columns[-1]}, got "
                f"{strange[0]!r}; or pass groups=, one per row"
            )
        by_label = np.array([known.get(label, np.inf) for label in columns])
        return np.asarray(kind.of_all_labels(table) <= by_label)  # type: ignore[attr-defined]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: shared facts, and one calibration per group and level."""
        first = next(iter(self.items.values()))
        return {
            "format": SEVERAL,
            "method": first.method,
            "alphas": list(self.alphas),
            "groups": list(self.groups),
            "cost": self.cost.to_dict(),
            "calibrations": [{"group": group, **item.to_dict()} for (group, _), item in self.items.items()],
        }

    def to_json(self) -> str:
        """Return the JSON object on one line."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the results as JSON, whole or not at all. They hold no score."""
        write_file(path, json.dumps(self.to_dict(), allow_nan=False, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibrations:
        """Read what `save` wrote."""
        return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")), str(path))

    @classmethod
    def from_dict(cls, raw: Any, where: str = "calibrations") -> Calibrations:
        """Rebuild the results from their JSON object."""
        if not isinstance(raw, dict) or raw.get("format") != SEVERAL:
            raise ValueError(f"{where}: needed several calibrations ({SEVERAL})")
        entries = raw["calibrations"]
        items = {(entry["group"], entry["alpha"]): Calibration.from_dict(entry, where) for entry in entries}
        return cls(items, next(iter(items.values())).cost)

    @property
    def score(self) -> Score | None:
        """The score the thresholds belong to, where it was named."""
        return next(iter(self.items.values())).score

    def _alpha(self, alpha: float | None) -> float:
        if alpha is None and len(self.alphas) == 1:
            return self.alphas[0]
        if alpha is None or float(exact_alpha(alpha)) not in self.alphas:
            raise ValueError(f"say which alpha: {', '.join(f'{a:g}' for a in self.alphas)}, got {alpha}")
        return float(exact_alpha(alpha))


def _infinities_as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _infinities_as_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_infinities_as_text(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _text_as_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _text_as_infinities(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_text_as_infinities(item) for item in value]
    return float(value) if isinstance(value, str) and value in ("inf", "-inf") else value
