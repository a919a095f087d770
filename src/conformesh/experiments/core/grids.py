"""The grids that experiments share: against the level, against one option, against the size of random graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformesh.experiments.core.experiment import LEVELS, TOPOLOGIES, Case
from conformesh.experiments.core.points import Point

SIZES = (20, 30, 40, 50, 60, 70, 80)  # devices of the random graphs
ALPHA = 0.1
STEPS = tuple(float(step * decade) for decade in (10, 100, 1000, 10_000) for step in (1, 2, 5))  # of kappa and mu


def decades(first: int, last: int) -> tuple[int, ...]:
    """Return whole numbers from a power of ten to another, six a decade, for a logarithmic axis."""
    values = [first]
    while values[-1] < last:
        ten = values[-1]
        values += [int(step * ten) for step in (1.5, 2.0, 3.0, 5.0, 7.0, 10.0) if (step * ten).is_integer()]
    return tuple(values)


def over_levels(case: Case, data: str, devices: int, method: str, options: dict[str, Any]) -> list[Point]:
    """Lay out a run per topology with all coverage levels in it, and the reference lines."""
    setting = case.setting(data, devices)
    alphas = tuple(round(1 - level, 2) for level in case.thinned(LEVELS))
    grid = [case.point(setting, topology, method, options, topology=topology, alphas=alphas) for topology in TOPOLOGIES]
    return grid + case.references(setting, alphas)


def over_values(
    case: Case,
    data: str,
    devices: int,
    method: str,
    options: dict[str, Any],
    knob: str,
    values: Sequence[float],
    topologies: Sequence[str] = TOPOLOGIES,
) -> list[Point]:
    """Lay out a run per topology and value of one option at alpha = 0.1, and the reference lines."""
    setting = case.setting(data, devices)
    grid = [
        case.point(setting, topology, method, {**options, knob: value}, topology=topology, x=value)
        for topology in topologies
        for value in values
    ]
    return grid + case.references(setting, (ALPHA,))


def over_random_graphs(case: Case, data: str, options: dict[str, Any]) -> list[Point]:
    """Lay out a run per number of devices and draw, each on its own Erdos-Renyi graph, and the reference lines."""
    grid = []
    for devices in case.thinned(SIZES):
        setting = case.setting(data, devices)
        for draw in range(case.draws):
            graph: dict[str, Any] = {"topology": "erdos-renyi", "graph_seed": draw, "draws": (draw,)}
            grid.append(case.point(setting, "Q-DCP", "q-dcp", options, x=devices, **graph))
        grid += case.references(setting, (ALPHA,), x=devices)
    return grid
