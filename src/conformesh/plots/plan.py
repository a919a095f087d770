"""The picture of a plan: time against the latency of the link and against the number of devices, with crossings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from conformesh.kernels.ranks import AUTO
from conformesh.methods import METHODS, Way, ways_of
from conformesh.planning.link import Link
from conformesh.planning.planner import Plan, Row, plan
from conformesh.planning.sending import seconds_on
from conformesh.planning.simulation import Speed
from conformesh.planning.terrain import terrain_of
from conformesh.plots.pictures import INK, MUTED, STYLE, Where, hues_of_methods


class _Vertex(NamedTuple):
    """Of a line: latency or devices, the time there, and whether the guarantee is of the best kind there."""

    x: float
    seconds: float
    sound: bool


Lines = dict[Way, list[_Vertex]]
LATENCIES = np.geomspace(1e-5, 10, 241)
SIDES = (4, 6, 10, 18, 32, 56, 100, 178, 316, 562, 1000, 3162, 10_000, 31_622)  # of networks of side^2 devices
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 3)))
TICKS = {
    "latency of a link": ([1e-5, 1e-3, 1e-1, 10], ["10 us", "1 ms", "100 ms", "10 s"]),
    "devices": ([100, 1e4, 1e6, 1e8], ["100", "10,000", "1 million", "100 million"]),
    "time": ([1e-3, 1, 60, 3600, 86_400, 31_557_600], ["1 ms", "1 s", "1 min", "1 h", "1 day", "1 year"]),
}


def draw_plan(path: Where, found: Plan, topology: str | None, options: Mapping[str, Any]) -> Any:
    """Draw one line per way that has any guarantee and sends something; without a topology only the left panel."""
    import matplotlib as mpl

    from conformesh.plots.figures import Picture, kept

    bandwidth = str(found.link).split(",")[1]
    panels = [(_by_latency(found), "latency of a link", f"{found.terrain.map.name}, uplinks of {bandwidth}")]
    if topology is not None:
        lines = _by_devices(found, topology, options)
        panels.append((lines, "devices", f"{topology} of any size, link {found.link}"))
    styles = _styles([*dict.fromkeys(way for lines, _, _ in panels for way in lines)])
    with mpl.rc_context(STYLE):
        figure = Picture(figsize=(1.2 + 5.2 * len(panels), 5.9), layout="constrained")
        every = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (lines, what, title) in zip(every, panels, strict=True):
            _draw_lines(axes, lines, styles)
            axes.set_title(title)
            axes.set_xlabel(what)
            here = found.terrain.devices if what == "devices" else found.link.latency
            if here > 0:
                axes.axvline(here, color="#e4e4e4", linewidth=5, zorder=0)
            axes.set_xticks(*TICKS[what])
        every[0].set_yticks(*TICKS["time"])
        every[0].set_ylabel("time until every device has its threshold")
        handles = [mpl.lines.Line2D([], [], **style) for style in styles.values()]
        words = "circle: the lead changes, among those whose rank is counted without a server;  grey band: as asked for"
        names, many = [*map(str, styles)], -(-len(styles) // 2) if len(panels) > 1 else 3
        figure.legend(
            handles, names, loc="outside lower center", ncols=many, fontsize=9, title=words, title_fontsize=8.5
        )
        figure.suptitle(
            f"When is which way the fastest?   {found.terrain.n // found.terrain.devices:,} scores a device, alpha = "
            f"{found.alpha:g}",
            fontsize=12.5 if len(panels) > 1 else 11,
            fontweight="bold",
            x=0.012,
            ha="left",
        )
        return kept(figure, path)


def _is_drawn(row: Row) -> bool:
    return bool(row.rounds) and row.useful and row.guarantee != "none" and row.way.variant != AUTO


def _by_latency(found: Plan) -> Lines:
    degree = found.terrain.map.largest_degree
    at = [Link(float(latency), found.link.bandwidth) for latency in LATENCIES]
    return {
        row.way: [_Vertex(link.latency, seconds_on(link, row.stretches, degree), row.tier == 0) for link in at]
        for row in found.rows
        if _is_drawn(row)
    }


def _by_devices(found: Plan, topology: str, options: Mapping[str, Any]) -> Lines:
    """Plan networks of many sizes: small ones are built, large ones sketched."""
    scores = max(found.terrain.n // found.terrain.devices, 1)
    methods = [*dict.fromkeys(way.method for way in (*(row.way for row in found.rows), *found.refused))]
    lines: Lines = {}
    for side in SIDES:
        terrain = terrain_of(topology, side * side, scores, build=False)
        planned = plan(terrain, alpha=found.alpha, link=found.link, methods=methods, options=options, speed=Speed())
        for row in planned.rows:
            if _is_drawn(row):
                lines.setdefault(row.way, []).append(_Vertex(side * side, row.seconds, row.tier == 0))
    return lines


def _styles(ways: Sequence[Way]) -> dict[Way, dict[str, Any]]:
    """One colour per method, one dash per variant, the same in every picture; what needs a server is grey."""
    hues, found = hues_of_methods(), {}
    every = [way for way in ways_of() if way.variant != AUTO]
    for way in sorted(ways, key=lambda way: [*METHODS].index(way.method)):
        alike = [other for other in every if hues[other.method] == hues[way.method]]
        nth, grey = alike.index(way) if way in alike else 0, hues[way.method] == MUTED
        found[way] = {
            "color": hues[way.method],
            "linestyle": DASHES[nth % len(DASHES)],
            "linewidth": 1.0 if grey else 1.8,
        }
    return found


def _draw_lines(axes: Any, lines: Lines, styles: Mapping[Way, dict[str, Any]]) -> None:
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


def _leaders(lines: Lines) -> list[tuple[float, float, Way]]:
    """Return the fastest of the sound ways, first and wherever it changes: x, seconds and who."""
    best: dict[float, tuple[float, Way]] = {}
    for way, points in lines.items():
        for x, seconds, sound in points:
            if sound and (x not in best or seconds < best[x][0]):
                best[x] = seconds, way
    ordered = [(x, *best[x]) for x in sorted(best)]
    return ordered[:1] + [now for before, now in pairwise(ordered) if now[2] != before[2]]
