"""A picture of local coverage: where sets cover too much or too little, beside others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from conformesh.plots.pictures import FAINT, FIGURE_STYLE, INK, MARKER_STYLES
from conformesh.results.evaluation import Evaluation
from conformesh.scores.centres import Centres


def draw_local(path: str | Path, evaluations: Mapping[str, Evaluation], cells: Centres, what: str = "inputs") -> None:
    """Draw the coverage of each cell with its interval, for every evaluation by name, and what was asked for.

    Evaluations have coverages by centre (`per_centre`) and a nominal one, as `Result.evaluate` with `inputs` returns.

    With one feature cells stand where their centres are, and `what` names it; else by number, those first that the
    first evaluation covers least.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    first = next(iter(evaluations.values()))
    places = _places(first, cells)
    step = np.diff(np.sort([*places.values()])).min(initial=1.0) * 0.18
    with mpl.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        nominal = 1.0 if first.nominal is None else first.nominal
        axes.axhline(nominal, color=FAINT, linewidth=1.2, zorder=0, label=f"asked for: {nominal:g}")
        for number, (name, found) in enumerate(evaluations.items()):
            colour, marker, filled = MARKER_STYLES[number % len(MARKER_STYLES)]
            shown = [cell for cell in places if cell in found.per_centre]
            x = np.array([places[cell] for cell in shown]) + (number - (len(evaluations) - 1) / 2) * step
            rates = np.array([found.per_centre[cell].rate for cell in shown])
            ends = np.array([[found.per_centre[cell].low, found.per_centre[cell].high] for cell in shown]).reshape(
                -1, 2
            )
            axes.errorbar(
                x,
                rates,
                yerr=np.abs(ends.T - rates),
                fmt=marker,
                color=colour,
                markerfacecolor=colour if filled else "white",
                markersize=5,
                elinewidth=1,
                label=f"{name}: mean |coverage - {nominal:g}| {found.gap:.3f}, mean size {found.mean_size:.3g}",
            )
        one = cells.points.shape[1] == 1
        axes.set_xlabel(what if one else f"cells of the {what}, by coverage of {next(iter(evaluations))}", color=INK)
        if not one:
            axes.set_xticks([])
        axes.set_ylabel("coverage nearby")
        axes.set_title("Coverage where an example is, with 95 % intervals")
        figure.legend(loc="outside lower center", fontsize=9)
        figure.savefig(path, dpi=150)


def _places(first: Evaluation, cells: Centres) -> dict[int, float]:
    """Return where each cell stands."""
    if cells.points.shape[1] == 1:
        return {cell: float(cells.points[cell, 0]) for cell in range(len(cells))}
    rates = {cell: first.per_centre[cell].rate if cell in first.per_centre else 1.0 for cell in range(len(cells))}
    return {cell: float(place) for place, cell in enumerate(sorted(rates, key=lambda cell: rates[cell]))}
