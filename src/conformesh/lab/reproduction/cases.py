"""Cases and points: which cells a figure of the paper needs, in which version of it.

A case is one experiment in one variant (as the text says, or as the released code computes) with one kind of scores. A
grid lays out its points, each on a line of the figure with the cell that computes it. Quick looks take some of the
values and fewer rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from conformesh.lab.reproduction.curves import TOPOLOGIES, Variant
from conformesh.lab.reproduction.paper_methods import PAPER_METHODS, PaperMethodSpec
from conformesh.lab.reproduction.paper_scores import OutputSource, PaperScores, ScoreKind
from conformesh.lab.sweeps.cells import CellMethod, MethodSpec, SweepCell
from conformesh.lab.sweeps.sources import NetworkSpec, Options
from conformesh.methods import PAPER_REQUIREMENT, get_method

SCORE_KINDS: tuple[ScoreKind, ...] = ("logits", "confidences")  # what the released code uses, what the text says
ALPHA = 0.1  # the level of every item that is not a curve over levels
QUICK_DRAWS = 2  # the fewest with a standard deviation
# What the rows of a figure need; see `sweeps.config.RECORDABLE`.
RECORDED = ("threshold", "count", "certificate", "covered", "size", "rounds", "bits", "epsilon", "gap")


@dataclass(frozen=True)
class ExperimentRun:
    """One method of the paper on one graph; by default over all draws of the case, at alpha = 0.1."""

    method: str
    options: Mapping[str, Any]
    devices: int = 20
    topology: str = "torus"
    alphas: Sequence[float] = (ALPHA,)
    draw: int | None = None


@dataclass(frozen=True)
class Case:
    """One version of an experiment: its conventions, scores, draws and grid."""

    experiment: str
    variant: Variant
    scores: ScoreKind
    source: OutputSource
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
    ) -> FigurePoint:
        """Return a point of this case; with translate=False the method runs by the library's conventions."""
        method, options = run.method, run.options
        if translate:
            method, options = paper_method(self.variant, self.scores, method, options)
        cell = SweepCell(
            _network(run.topology, run.devices),
            _solver(method, options),
            PaperScores(self.source, self.scores, "equal" if self.variant == "as-written" else "random"),
            tuple(run.alphas),
            tuple(range(self.draws)) if run.draw is None else (run.draw,),
            self.seed,
            RECORDED,
            together=True,  # rows have the cost of one run over all draws and levels
        )
        return FigurePoint(self, line, cell, x)

    def references(self, devices: int, alphas: Sequence[float], x: float | None = None) -> list[FigurePoint]:
        """Return the lines every figure has: pooled CP, exact FCP at a server, and E-DCP, which needs none."""
        # Some sizes have no torus with rows of 4. The cycle serves as well: these thresholds are the same on every
        # graph.
        where = (devices, "cycle" if devices % 4 else "torus", alphas)
        return [
            self.point("CP", ExperimentRun("cp", {}, *where), x),
            self.point("FCP", ExperimentRun("fcp", {}, *where), x, translate=False),
            self.point("E-DCP", ExperimentRun("e-dcp", {}, *where), x, translate=False),
        ]


@dataclass(frozen=True)
class FigurePoint:
    """A place on a line of a figure, and the cell that computes it; figures may share a cell.

    Attributes
    ----------
    case
        The case of this point.
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


def paper_method(
    variant: Variant, scores: ScoreKind, method: str, options: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the method and options that a method of the paper becomes in the text's or the code's conventions."""
    if variant == "as-released":
        released = {convention.of: name for name, convention in PAPER_METHODS.items()}
        return released.get(method, method), {**options}
    if method == "q-dcp":
        return method, {"start": "zeros", "bound": "paper", **options}
    if method == "h-dcp":
        return "h-dcp-printed", {"over": "unit" if scores == "confidences" else "scores", **options}
    return method, {**options}


def _solver(method: str, options: Mapping[str, Any]) -> CellMethod:
    if method in PAPER_METHODS:
        return PaperMethodSpec(method, _sorted(options))
    if get_method(method).requirement is None:  # use the guarantee of the paper's methods, so that lines compare
        options = {"mixture": PAPER_REQUIREMENT.mixture, "rank_rule": PAPER_REQUIREMENT.rank_rule, **options}
    return MethodSpec(method, _sorted(options))


def _network(topology: str, devices: int) -> NetworkSpec:
    """Return the paper's graph: a torus has rows of 4, an Erdos-Renyi graph p = 0.5 and is drawn anew in every draw."""
    options = {"torus": (("columns", 4),), "erdos-renyi": (("p", 0.5),)}.get(topology, ())
    return NetworkSpec(topology, None, devices, 0, topology == "erdos-renyi", options)


def _sorted(options: Mapping[str, Any]) -> Options:
    return tuple(sorted(options.items()))


# --- grids that experiments share -----------------------------------------------------------------------

Grid = Callable[[Case], list[FigurePoint]]
LEVELS = (  # coverage 1 - alpha, as on the axis of the figures
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
)
_SIZES = (20, 30, 40, 50, 60, 70, 80)  # devices of the random graphs


def case_alphas(case: Case) -> tuple[float, ...]:
    """Return the alphas of the coverage levels."""
    return tuple(round(1 - level, 2) for level in case.thinned(LEVELS))


def cells_over_levels(devices: int, method: str, options: Mapping[str, Any]) -> Grid:
    """Lay out a run per topology with all coverage levels in it, and the reference lines."""

    def grid(case: Case) -> list[FigurePoint]:
        shortened, alphas = _shortened(case, options), case_alphas(case)
        lines = [
            case.point(topology, ExperimentRun(method, shortened, devices, topology, alphas)) for topology in TOPOLOGIES
        ]
        return lines + case.references(devices, alphas)

    return grid


def cells_over_values(
    method: str,
    options: Mapping[str, Any],
    knob: str,
    values: Sequence[float],
    topologies: Sequence[str] = TOPOLOGIES,
    devices: int = 20,
) -> Grid:
    """Lay out a run per topology and value of one option at alpha = 0.1, and the reference lines."""

    def grid(case: Case) -> list[FigurePoint]:
        places = case.thinned(values, keep=4)
        if knob == "rounds":
            places = tuple(sorted({case.rounds(number) for number in places}))  # shortened, two may be the same
        lines = [
            case.point(topology, ExperimentRun(method, {**options, knob: value}, devices, topology), value)
            for topology in topologies
            for value in places
        ]
        return lines + case.references(devices, (ALPHA,))

    return grid


def cells_over_random_graphs(options: Mapping[str, Any]) -> Grid:
    """Lay out a run of Q-DCP per number of devices and draw, each on its own graph, and the reference lines."""

    def grid(case: Case) -> list[FigurePoint]:
        shortened, points = _shortened(case, options), []
        for devices in case.thinned(_SIZES):
            for draw in range(case.draws):
                run = ExperimentRun("q-dcp", shortened, devices, "erdos-renyi", draw=draw)
                points.append(case.point("Q-DCP", run, devices))
            points += case.references(devices, (ALPHA,), x=devices)
        return points

    return grid


def _shortened(case: Case, options: Mapping[str, Any]) -> dict[str, Any]:
    return {**options, "rounds": case.rounds(options["rounds"])} if "rounds" in options else {**options}


def powers_of_ten(first: int, last: int) -> tuple[int, ...]:
    """Return whole numbers from a power of ten to another, six a decade, for a logarithmic axis."""
    values = [first]
    while values[-1] < last:
        ten = values[-1]
        values += [int(step * ten) for step in (1.5, 2.0, 3.0, 5.0, 7.0, 10.0) if (step * ten).is_integer()]
    return tuple(values)
