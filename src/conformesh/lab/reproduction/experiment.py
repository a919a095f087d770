"""An experiment: one published figure or table, as a grid of cells with what the paper says about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from conformesh.lab.reproduction.conventions import CONVENTIONS, ConventionSpec
from conformesh.lab.reproduction.results import Curves
from conformesh.lab.reproduction.settings import Kind, PaperScores, ScoreSource
from conformesh.lab.sweeps.cells import MethodSpec, Solver, SweepCell
from conformesh.lab.sweeps.sources import NetworkSpec, Options
from conformesh.methods import PAPER_REQUIREMENT, get_method

_Variant = Literal["as-written", "as-released"]
VARIANTS: tuple[_Variant, ...] = ("as-written", "as-released")
KINDS: tuple[Kind, ...] = ("logits", "confidences")
ALPHA = 0.1
QUICK_DRAWS = 2
RECORD = ("threshold", "count", "certificate", "covered", "size", "rounds", "bits", "epsilon", "gap")


@dataclass(frozen=True)
class ExperimentRun:
    """What a line runs: a method of the paper on a graph; by default over all draws of the case, at alpha = 0.1."""

    method: str
    options: Mapping[str, Any]
    devices: int = 20
    topology: str = "torus"
    alphas: Sequence[float] = (ALPHA,)
    draw: int | None = None


@dataclass(frozen=True)
class Case:
    """Which version of an experiment to lay out: whose conventions, which scores, how many draws, how fine a grid."""

    experiment: str
    variant: _Variant
    scores: Kind
    source: ScoreSource
    draws: int = 10
    seed: int = 0
    quick: bool = False

    def thinned(self, values: Sequence[Any], keep: int = 3) -> tuple[Any, ...]:
        """Return all values, or for a quick look `keep` of them, spread evenly, ends included."""
        if not self.quick or len(values) <= keep:
            return tuple(values)
        return tuple(values[round(i * (len(values) - 1) / (keep - 1))] for i in range(keep))

    def rounds(self, full: int) -> int:
        """Return the rounds of a run; a quick look takes a tenth of two thousand or more."""
        return full // 10 if self.quick and full >= 2000 else full

    def point(
        self, line: str, run: ExperimentRun, x: float | Literal["bits"] | None = None, *, translate: bool = True
    ) -> Point:
        """Return a point of this case; without `translate` the method of the run is not put into its conventions."""
        method, options = run.method, run.options
        if translate:
            method, options = in_convention(self.variant, self.scores, method, options)
        cell = SweepCell(
            _network(run.topology, run.devices),
            _solver(method, options),
            PaperScores(self.source, self.scores, "equal" if self.variant == "as-written" else "random"),
            tuple(run.alphas),
            tuple(range(self.draws)) if run.draw is None else (run.draw,),
            self.seed,
            RECORD,
            together=True,  # rows have the cost of one run over all draws and levels
        )
        return Point(self, line, cell, x)

    def references(self, devices: int, alphas: Sequence[float], x: float | None = None) -> list[Point]:
        """Return the lines every figure has: pooled CP, exact FCP at a server, and E-DCP, which needs none."""
        # Where no torus has this size: the threshold is the same on every graph.
        where = (devices, "cycle" if devices % 4 else "torus", alphas)
        return [
            self.point("CP", ExperimentRun("cp", {}, *where), x),
            self.point("FCP", ExperimentRun("fcp", {}, *where), x, translate=False),
            self.point("E-DCP", ExperimentRun("e-dcp", {}, *where), x, translate=False),
        ]


@dataclass(frozen=True)
class Point:
    """A place on a line of a figure, and the cell that computes it; figures may share a cell.

    Attributes
    ----------
    case
        What it belongs to.
    line
        The line of the figure, as in its legend.
    cell
        What to run; its alphas are several points where x is the coverage level.
    x
        Where it stands on the axis: "bits" for what each device sent, None for the coverage level 1 - alpha.
    """

    case: Case
    line: str
    cell: SweepCell
    x: float | Literal["bits"] | None = None


def in_convention(
    variant: _Variant, scores: Kind, method: str, options: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the method and options that a method of the paper becomes in the text's or the code's conventions."""
    if variant == "as-released":
        released = {convention.of: name for name, convention in CONVENTIONS.items()}
        return released.get(method, method), {**options}
    if method == "q-dcp":
        return method, {"start": "zeros", "bound": "paper", **options}
    if method == "h-dcp":
        return "h-dcp-printed", {"over": "unit" if scores == "confidences" else "scores", **options}
    return method, {**options}


def _solver(method: str, options: Mapping[str, Any]) -> Solver:
    if method in CONVENTIONS:
        return ConventionSpec(method, _sorted(options))
    if get_method(method).requirement is None:  # it would keep another promise than the paper's methods
        options = {"mixture": PAPER_REQUIREMENT.mixture, "rank_rule": PAPER_REQUIREMENT.rank_rule, **options}
    return MethodSpec(method, _sorted(options))


def _network(topology: str, devices: int) -> NetworkSpec:
    """Return the paper's graph: a torus has rows of 4, an Erdos-Renyi graph p = 0.5 and is drawn anew in every draw."""
    options = {"torus": (("columns", 4),), "erdos-renyi": (("p", 0.5),)}.get(topology, ())
    return NetworkSpec(topology, None, devices, 0, topology == "erdos-renyi", options)


def _sorted(options: Mapping[str, Any]) -> Options:
    return tuple(sorted(options.items()))


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


Grid = Callable[[Case], list[Point]]


@dataclass(frozen=True)
class Experiment:
    """One published figure or table.

    Attributes
    ----------
    name, item, title
        How it is called here, in the paper, and in words.
    about
        The settings, in a sentence or two, for captions and the report.
    grid
        Lays out the points of a case.
    findings
        What the paper says about it.
    remarks
        What a reader should know about differences, by variant; shown in the report.
    axis
        None for a table.
    data
        A key of `DATA`.
    """

    name: str
    item: str
    title: str
    about: str
    grid: Grid
    findings: tuple[Finding, ...]
    remarks: Mapping[str, str] = field(default_factory=dict)
    axis: Axis | None = Axis("coverage level 1 - α")
    data: str = "cifar100"
