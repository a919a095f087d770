"""The picture of a plan: time against the latency of the link and against the number of devices, with crossings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from conformesh.kernels.ranks import AUTO
from conformesh.lab.planning.link import Link
from conformesh.lab.planning.networks import simulated_topology
from conformesh.lab.planning.planner import Plan, PlanRow, plan
from conformesh.methods import METHODS, MethodVariant, method_variants
from conformesh.plots.pictures import FIGURE_STYLE, INK, MUTED, FilePath, method_colours


class _Vertex(NamedTuple):
    """A point of a line: latency or devices, the time, and whether the guarantee is of the best kind there."""

    x: float
    seconds: float
    sound: bool


_Lines = dict[MethodVariant, list[_Vertex]]
_LATENCIES = np.geomspace(1e-5, 10, 241)  # seconds, 40 a decade
_SIDES = (4, 6, 10, 16, 24)  # networks of side^2 devices are simulated besides that of the plan: squares fit a torus
_POINT_LIMIT = 2.0  # seconds that one run for a point of a line may take, so that a picture takes less than a minute
# Line styles as Matplotlib has them: an offset, then lengths of dashes and gaps in widths of the line.
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 3)))
# By axis: places (seconds, or devices) and labels of its ticks, round numbers of a unit that people use.
_TICKS: dict[str, tuple[list[float], list[str]]] = {
    "latency of a link": ([1e-5, 1e-3, 1e-1, 10], ["10 us", "1 ms", "100 ms", "10 s"]),
    "devices": ([10, 30, 100, 300, 1000], ["10", "30", "100", "300", "1,000"]),
    "time": ([1e-3, 1, 60, 3600, 86_400, 31_557_600], ["1 ms", "1 s", "1 min", "1 h", "1 day", "1 year"]),
}


def draw_plan(path: FilePath, base: Plan, topology: str | None, options: Mapping[str, Any]) -> Any:
    """Draw one line per way that has any guarantee and sends something; without a topology only the left panel."""
    import matplotlib as mpl

    from conformesh.plots.figures import NotebookFigure, save_figure

    bandwidth = str(base.link).split(",")[1]
    panels = [(_by_latency(base), "latency of a link", f"{base.where.network.name}, uplinks of {bandwidth}")]
    if topology is not None:
        lines = _by_devices(base, topology, options)
        panels.append((lines, "devices", f"{topology} of other sizes, link {base.link}"))
    styles = _styles([*dict.fromkeys(way for lines, _, _ in panels for way in lines)])
    with mpl.rc_context(FIGURE_STYLE):
        figure = NotebookFigure(figsize=(1.2 + 5.2 * len(panels), 5.9), layout="constrained")
        every = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (lines, what, title) in zip(every, panels, strict=True):
            _draw_lines(axes, lines, styles)
            axes.set_title(title)
            axes.set_xlabel(what)
            here = base.where.network.devices if what == "devices" else base.link.latency
            if here > 0:
                axes.axvline(here, color="#e4e4e4", linewidth=5, zorder=0)
            axes.set_xticks(*_TICKS[what])
        longest = max((p.seconds for lines, _, _ in panels for points in lines.values() for p in points), default=1.0)
        below = sum(
            at <= max(longest, 1.0) for at in _TICKS["time"][0]
        )  # a tick above all lines would stretch the axis
        every[0].set_yticks(*(marks[:below] for marks in _TICKS["time"]))
        every[0].set_ylabel("time until every device has its threshold")
        handles = [mpl.lines.Line2D([], [], **style) for style in styles.values()]
        words = (
            "circle: the lead changes, among those whose rank is counted without a server;  grey band: as in the table"
        )
        names, many = [*map(str, styles)], -(-len(styles) // 2) if len(panels) > 1 else 3
        figure.legend(
            handles, names, loc="outside lower center", ncols=many, fontsize=9, title=words, title_fontsize=8.5
        )
        figure.suptitle(
            f"When is which way the fastest?   {_scores_each(base):,} scores a device, alpha = {base.alpha:g}",
            fontsize=12.5 if len(panels) > 1 else 11,
            fontweight="bold",
            x=0.012,
            ha="left",
        )
        return save_figure(figure, path)


def _is_drawn(row: PlanRow) -> bool:
    return bool(row.cost.rounds) and row.useful and row.guarantee != "none" and row.way.variant != AUTO


def _scores_each(found: Plan) -> int:
    return max(found.scores // found.where.network.devices, 1)


def _by_latency(found: Plan) -> _Lines:
    at = [Link(float(latency), found.link.bandwidth) for latency in _LATENCIES]
    return {
        row.way: [_Vertex(link.latency, row.cost.seconds(link), row.tier == 0) for link in at]
        for row in found.rows
        if _is_drawn(row)
    }


def _by_devices(found: Plan, topology: str, options: Mapping[str, Any]) -> _Lines:
    """Simulate networks of several sizes; the one of the plan is among them."""
    methods = [*dict.fromkeys(way.method for way in (*(row.way for row in found.rows), *found.refused))]
    plans = {found.where.network.devices: found}
    for side in _SIDES:
        if side * side not in plans:
            plans[side * side] = plan(
                simulated_topology(topology, side * side),
                _scores_each(found),
                found.alpha,
                found.link,
                methods=methods,
                options=options,
                time_limit=_POINT_LIMIT,
            )
    lines: _Lines = {}
    for devices in sorted(plans):
        for row in plans[devices].rows:
            if _is_drawn(row):
                lines.setdefault(row.way, []).append(_Vertex(devices, row.seconds, row.tier == 0))
    return lines


def _styles(ways: Sequence[MethodVariant]) -> dict[MethodVariant, dict[str, Any]]:
    """One colour per method, one dash per variant, the same in every picture; what needs a server is grey."""
    hues, found = method_colours(), {}
    every = [way for way in method_variants() if way.variant != AUTO]
    for way in sorted(ways, key=lambda way: [*METHODS].index(way.method)):
        alike = [other for other in every if hues[other.method] == hues[way.method]]
        nth, grey = alike.index(way) if way in alike else 0, hues[way.method] == MUTED
        found[way] = {
            "color": hues[way.method],
            "linestyle": _DASHES[nth % len(_DASHES)],
            "linewidth": 1.0 if grey else 1.8,
        }
    return found


def _draw_lines(axes: Any, lines: _Lines, styles: Mapping[MethodVariant, dict[str, Any]]) -> None:
    for way, points in lines.items():
        axes.plot([p.x for p in points], [p.seconds for p in points], **styles[way])
    for nth, (x, seconds, winner) in enumerate(_leaders(lines)):
        if nth:
            axes.plot(x, seconds, "o", markersize=8, markerfacecolor="white", markeredgecolor=INK, zorder=4)
        back = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8}
        near: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8.5, "va": "top", "zorder": 5, "bbox": back}
        axes.annotate(f"{winner}", (x, seconds), (8, -8), **near)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.grid(color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)


def _leaders(lines: _Lines) -> list[tuple[float, float, MethodVariant]]:
    """Return the fastest of the sound ways, first and wherever it changes: x, seconds and who."""
    best: dict[float, tuple[float, MethodVariant]] = {}
    for way, points in lines.items():
        for x, seconds, sound in points:
            if sound and (x not in best or seconds < best[x][0]):
                best[x] = seconds, way
    ordered = [(x, *best[x]) for x in sorted(best)]
    return ordered[:1] + [now for before, now in pairwise(ordered) if now[2] != before[2]]
