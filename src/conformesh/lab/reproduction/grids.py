"""The grids that experiments share: against the level, against one option, against the size of random graphs.

Each function returns a `Grid`: from a case to its points. Quick looks take some of the values and fewer rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conformesh.lab.reproduction.experiment import ALPHA, Case, ExperimentRun, Grid, Point

TOPOLOGIES = ("chain", "cycle", "star", "torus", "complete")
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_SIZES = (20, 30, 40, 50, 60, 70, 80)  # devices of the random graphs


def alphas_of(case: Case) -> tuple[float, ...]:
    """Return the alphas of the coverage levels."""
    return tuple(round(1 - level, 2) for level in case.thinned(LEVELS))


def over_levels(devices: int, method: str, options: Mapping[str, Any]) -> Grid:
    """Lay out a run per topology with all coverage levels in it, and the reference lines."""

    def grid(case: Case) -> list[Point]:
        shortened, alphas = _shortened(case, options), alphas_of(case)
        lines = [
            case.point(topology, ExperimentRun(method, shortened, devices, topology, alphas)) for topology in TOPOLOGIES
        ]
        return lines + case.references(devices, alphas)

    return grid


def over_values(
    method: str,
    options: Mapping[str, Any],
    knob: str,
    values: Sequence[float],
    topologies: Sequence[str] = TOPOLOGIES,
    devices: int = 20,
) -> Grid:
    """Lay out a run per topology and value of one option at alpha = 0.1, and the reference lines."""

    def grid(case: Case) -> list[Point]:
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


def over_random_graphs(options: Mapping[str, Any]) -> Grid:
    """Lay out a run of Q-DCP per number of devices and draw, each on its own graph, and the reference lines."""

    def grid(case: Case) -> list[Point]:
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


def decades(first: int, last: int) -> tuple[int, ...]:
    """Return whole numbers from a power of ten to another, six a decade, for a logarithmic axis."""
    values = [first]
    while values[-1] < last:
        ten = values[-1]
        values += [int(step * ten) for step in (1.5, 2.0, 3.0, 5.0, 7.0, 10.0) if (step * ten).is_integer()]
    return tuple(values)
