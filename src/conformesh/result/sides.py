"""Sides: a threshold for each side of intervals, both from one run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import ArrayLike, NDArray

from conformesh.io.arrays import as_array, check_index
from conformesh.io.files import write_file
from conformesh.io.json_numbers import from_json, to_json
from conformesh.kernels.ranks import exact_alpha
from conformesh.quantities import several
from conformesh.result.calibration import Calibration
from conformesh.result.certificate import KINDS, Cost, SidesCertificate
from conformesh.result.evaluation import Evaluation, of_intervals
from conformesh.result.files import SIDES, checked_sides
from conformesh.scores import RegressionScore, Score, result_score


@dataclass(frozen=True, eq=False, repr=False)
class Sides:
    """The result of `calibrate_sides`: two thresholds, two certificates, one run.

    Attributes
    ----------
    lower, upper
        A `Calibration` for each side, with its own alpha, thresholds and certificate. The cost of either is that of the
        whole run, which found both.
    """

    lower: Calibration
    upper: Calibration

    @property
    def thresholds(self) -> tuple[float, float]:
        """How far below and above the band intervals reach: valid on every device."""
        return self.lower.threshold, self.upper.threshold

    @property
    def alphas(self) -> tuple[float, float]:
        """How often the truth may lie below and above."""
        return self.lower.alpha, self.upper.alpha

    @property
    def alpha(self) -> float:
        """How often intervals may miss: the sum of both sides."""
        return _sum(self.alphas)

    @property
    def level(self) -> float:
        """What was asked for: alpha."""
        return self.alpha

    @property
    def certificate(self) -> SidesCertificate:
        """Why intervals may be trusted."""
        return SidesCertificate(self.lower.certificate, self.upper.certificate, self.alphas)

    @property
    def cost(self) -> Cost:
        """What the run that found both cost."""
        return self.lower.cost

    @property
    def score(self) -> Score | None:
        """The score the thresholds belong to, where it was named."""
        return self.lower.score

    def predict(
        self,
        outputs: ArrayLike,
        *,
        score: RegressionScore | str | None = None,
        device: str | int | ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """Return intervals (rows x 2) for model outputs; the rest is as in `Calibration.predict`."""
        lower, upper = (side.thresholds_for(device) for side in (self.lower, self.upper))
        return self._score(score).side_intervals(as_array(outputs, "outputs"), lower, upper)

    def evaluate(
        self,
        outputs: ArrayLike,
        labels: ArrayLike,
        *,
        score: RegressionScore | str | None = None,
        device: str | int | ArrayLike | None = None,
    ) -> Evaluation:
        """Measure coverage and width on labelled data, also per device where rows name theirs."""
        kind = self._score(score)
        check_index(outputs, labels, "labels", "outputs")
        table, truth = as_array(outputs, "outputs"), as_array(labels, "labels")
        rows = device if device is not None and np.ndim(device) == 1 else None
        below, above = kind.sides(table, truth).T
        lower, upper = (side.thresholds_for(device) for side in (self.lower, self.upper))
        hits = np.less_equal(below, lower) & np.less_equal(above, upper)
        found = of_intervals(hits, kind.side_intervals(table, lower, upper), rows)
        return structs.replace(found, nominal=1 - self.alpha)

    def title(self) -> str:
        """Say in a few words what was found, for a heading."""
        below, above = self.thresholds
        return f"thresholds {below:.6g} below and {above:.6g} above, {self.lower.method} at alpha {self.alpha:g}"

    def facts(self) -> list[tuple[str, str]]:
        """Return names and words of what a person wants to know first: the certificate, then what one side says."""
        shared = ("cost", "devices", "network", "seconds")
        method = f"{self.lower.method}, alpha {self.alphas[0]:g} below and {self.alphas[1]:g} above"
        return [
            *self.certificate.facts(self.lower.scores),
            ("method", method),
            *((name, words) for name, words in self.lower.facts() if name in shared),
        ]

    def _repr_html_(self) -> str:
        from conformesh import cards

        rows = [(name, words) for name, words in self.facts() if words]
        rows += [] if self.score is None else [("score", repr(self.score))]
        rows += [("note", note) for note in dict.fromkeys((*self.lower.notes, *self.upper.notes))]
        kind = self.certificate.kind
        return cards.card(self.title(), kind=kind, claim=KINDS[kind], rows=rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: a calibration for each side."""
        return {"format": SIDES, "lower": self.lower.to_dict(), "upper": self.upper.to_dict()}

    def to_json(self) -> str:
        """Return the JSON object on one line."""
        return to_json(self.to_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON, whole or not at all. It holds no score."""
        write_file(path, to_json(self.to_dict(), indent=2))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sides:
        """Read what `save` wrote, and check that it fits together."""
        return cls.from_dict(from_json(Path(path).read_bytes(), str(path)), str(path))

    @classmethod
    def from_dict(cls, raw: Any, where: str = "sides") -> Sides:
        """Rebuild a result from its JSON object; `where` names it in an error."""
        file = checked_sides(raw, where)
        return cls(
            Calibration.from_dict(file.lower, f"{where}, lower"), Calibration.from_dict(file.upper, f"{where}, upper")
        )

    def __repr__(self) -> str:
        each = [
            f"{name} threshold {side.threshold:.6g} for alpha {side.alpha:g}"
            for name, side in (("lower", self.lower), ("upper", self.upper))
        ]
        where = f"on {several(self.lower.devices, 'device')}, {self.certificate.kind}; {self.cost}"
        return f"Sides({self.lower.method}, alpha={self.alpha:g}: {', '.join(each)} {where})"

    def _score(self, score: RegressionScore | str | None) -> RegressionScore:
        return two_sided(result_score(self.score, score, "CQR"))


def two_sided(score: Score) -> RegressionScore:
    """Return a score that may have two sides, or say that this one has none."""
    if not isinstance(score, RegressionScore):
        raise TypeError(f"two sides are for regression, got score '{score.name}', which is for {score.task}")
    return score


def _sum(alphas: tuple[float, float]) -> float:
    return float(sum(exact_alpha(alpha) for alpha in alphas))
