"""An experiment: one published figure or table, as a grid of points with what the paper says about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from conformesh.experiments.core.conventions import CONVENTIONS
from conformesh.experiments.core.points import Point, Variant
from conformesh.experiments.core.results import Curves
from conformesh.experiments.core.settings import Scores, Setting

TOPOLOGIES = ("chain", "cycle", "star", "torus", "complete")
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
QUICK_DRAWS = 2


@dataclass(frozen=True)
class Case:
    """Which version of an experiment to lay out: whose conventions, which scores, how many draws, how fine a grid."""

    experiment: str
    variant: Variant
    scores: Scores
    draws: int = 10
    seed: int = 0
    quick: bool = False

    def setting(self, data: str, devices: int) -> Setting:
        """Return the setting of this case: equal shares as written, whatever a uniform draw gives as released."""
        shares: Literal["equal", "random"] = "equal" if self.variant == "as-written" else "random"
        return Setting(data, self.scores, devices, shares, self.draws, self.seed)

    def thinned(self, values: Sequence[Any], keep: int = 3) -> tuple[Any, ...]:
        """Return all values, or for a quick look `keep` of them, spread evenly, ends included."""
        if not self.quick or len(values) <= keep:
            return tuple(values)
        return tuple(values[round(i * (len(values) - 1) / (keep - 1))] for i in range(keep))

    def rounds(self, full: int) -> int:
        """Return the rounds of a run; a quick look takes a tenth of more than a thousand."""
        return full // 10 if self.quick and full >= 2000 else full

    def grid_of_rounds(self, full: Sequence[int]) -> tuple[int, ...]:
        """Return all numbers of rounds, or for a quick look four of them, none of them many."""
        return tuple(sorted({self.rounds(number) for number in self.thinned(full, keep=4)}))

    def point(self, setting: Setting, line: str, method: str, options: dict[str, Any], **more: Any) -> Point:
        """Return a point of this case, its method and options in the case's conventions."""
        method, options = in_convention(self.variant, self.scores, method, options)
        return Point(self.experiment, self.variant, setting, line, method, options, **more)

    def references(self, setting: Setting, alphas: Sequence[float], x: float | None = None, **more: Any) -> list[Point]:
        """Return the lines every figure has: pooled CP, exact FCP at a server, and E-DCP, which needs none."""
        kept = {"alphas": tuple(alphas), "x": x, **more}
        exact: Any = {"experiment": self.experiment, "variant": self.variant, "setting": setting, **kept}
        if setting.devices % 4:
            exact["topology"] = "cycle"  # no torus of this size; the threshold is the same on every graph
            kept["topology"] = "cycle"
        return [
            self.point(setting, "CP", "cp", {}, **kept),
            Point(line="FCP", method="fcp", **exact),
            Point(line="E-DCP", method="e-dcp", **exact),
        ]


def in_convention(variant: Variant, scores: Scores, method: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the method and options that a method of the paper becomes in the text's or the code's conventions."""
    if variant == "as-released":
        released = {convention.of: name for name, convention in CONVENTIONS.items()}
        return released.get(method, method), options
    if method == "q-dcp":
        return method, {"start": "zeros", "bound": "paper", **options}
    if method == "h-dcp":
        return "h-dcp-printed", {"over": "unit" if scores == "confidences" else "scores", **options}
    return method, options


@dataclass(frozen=True)
class Axis:
    """The horizontal axis of a figure."""

    label: str
    log: bool = False


@dataclass(frozen=True)
class Finding:
    """A sentence of the paper about an item, and how to see in the numbers whether it holds.

    `holds` returns whether it does and the figures it was judged by; None where the case cannot tell.
    """

    says: str
    holds: Callable[[Curves], tuple[bool, str] | None]


@dataclass(frozen=True)
class Experiment:
    """One published figure or table.

    Attributes
    ----------
    name, item, title
        How it is called here, in the paper, and in words.
    data
        A key of `DATA`.
    about
        The settings, in a sentence or two, for captions and the report.
    points
        Lays out the points of a case.
    axis
        None for a table.
    findings
        What the paper says about it.
    remarks
        What a reader should know about differences, by variant; shown in the report.
    """

    name: str
    item: str
    title: str
    data: str
    about: str
    points: Callable[[Case], list[Point]]
    axis: Axis | None = Axis("coverage level 1 - α")
    findings: tuple[Finding, ...] = ()
    remarks: dict[str, str] = field(default_factory=dict)
