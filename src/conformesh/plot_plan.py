"""The picture of a plan: time against the latency of the link, and against the number of devices, with the crossings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.planning.link import Link
from conformesh.planning.phases import mesh_seconds_on
from conformesh.planning.planner import Plan, Row, plan
from conformesh.planning.predictions import Way
from conformesh.planning.simulation import Speed
from conformesh.planning.terrain import terrain_of
from conformesh.plots import HUES, INK, MARKS, MUTED, STYLE

Floats = NDArray[np.float64]
Lines = dict[Way, tuple[Floats, Floats]]  # x and seconds
LATENCIES = np.geomspace(1e-5, 10, 241)
SIDES = (4, 6, 10, 18, 32, 56, 100, 178, 316, 562, 1000, 3162, 10_000, 31_622)  # of networks of side^2 devices
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 3)))
OTHERS = {"e-dcp": MARKS[0][0], "h-dcp": HUES[0], "q-dcp": HUES[1], "average": HUES[2]}


def draw_plan(path: Path, found: Plan, topology: str | None, options: Mapping[str, Any]) -> None:
    """Draw one line per way that has any guarantee and sends something; without a topology only the left panel."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawn = [row for row in found.rows if row.rounds and row.guarantee != "none" and row.way.variant != "auto"]
    panels: list[tuple[Lines, str, str]] = [
        (
            _by_latency(drawn, found),
            "latency of a link",
            f"{found.terrain.map.name}, uplinks of {str(found.link).split(',')[1]}",
        )
    ]
    if topology is not None:
        grown = _by_devices(found, topology, [row.way for row in drawn], options)
        panels.append((grown, "devices", f"{topology}, link {found.link}"))
    styles = _styles([row.way for row in drawn])
    sound = {row.way for row in drawn if row.tier == min(one.tier for one in drawn)} if drawn else set()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 5.2 * len(panels), 5.6), layout="constrained")
        every = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (lines, what, title) in zip(every, panels, strict=True):
            _draw_lines(axes, lines, styles, sound)
            axes.set_title(title)
            axes.set_xlabel(what)
            if what == "devices":
                axes.set_xticks(*_ticks([100, 1e4, 1e6, 1e8], ["100", "10,000", "1 million", "100 million"]))
                axes.axvline(found.terrain.devices, color="#dddddd", linewidth=5, zorder=0)
            else:
                axes.set_xticks(*_ticks([1e-5, 1e-3, 1e-1, 10], ["10 us", "1 ms", "100 ms", "10 s"]))
                if found.link.latency > 0:
                    axes.axvline(found.link.latency, color="#dddddd", linewidth=5, zorder=0)
        ticks = [1e-3, 1, 60, 3600, 86_400, 31_557_600]
        names = ["1 ms", "1 s", "1 min", "1 h", "1 day", "1 year"]
        every[0].set_yticks(*_ticks(ticks, names))
        every[0].set_ylabel("time until every device has its threshold")
        handles, labels = every[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5 if len(panels) > 1 else 3, fontsize=9)
        figure.suptitle(
            f"When is which way the fastest?   {found.terrain.n // found.terrain.devices:,} scores a device, alpha = "
            f"{found.alpha:g};  circles: the lead changes among those whose rank is counted",
            fontsize=11.5,
            fontweight="bold",
            x=0.012,
            ha="left",
        )
        figure.savefig(path, dpi=150)


def _by_latency(rows: Sequence[Row], found: Plan) -> Lines:
    degree = found.terrain.map.largest_degree
    at = [Link(float(latency), found.link.bandwidth) for latency in LATENCIES]
    return {
        row.way: (LATENCIES, np.array([mesh_seconds_on(link, row.phases, degree) for link in at])) for row in rows
    }


def _by_devices(found: Plan, topology: str, ways: Sequence[Way], options: Mapping[str, Any]) -> Lines:
    """Plan networks of many sizes: small ones are built, large ones sketched."""
    scores = max(found.terrain.n // found.terrain.devices, 1)
    points: dict[Way, list[tuple[float, float]]] = {way: [] for way in ways}
    for side in SIDES:
        try:
            terrain = terrain_of(topology, side * side, scores, build=False)
        except ValueError:  # a complete graph of a billion devices has a price, but some options do not grow
            continue
        methods = [*dict.fromkeys(way.method for way in ways)]
        planned = plan(terrain, alpha=found.alpha, link=found.link, methods=methods, options=options, speed=Speed())
        for row in planned.rows:
            if row.way in points:
                points[row.way].append((side * side, row.mesh_seconds))
    return {way: (np.array([p[0] for p in at]), np.array([p[1] for p in at])) for way, at in points.items() if at}


def _styles(ways: Sequence[Way]) -> dict[Way, dict[str, Any]]:
    """One colour per method, one dash per variant; what needs a server is grey."""
    seen: dict[str, int] = {}
    found = {}
    for way in ways:
        nth = seen[way.method] = seen.get(way.method, -1) + 1
        hue = OTHERS.get(way.method, MUTED)
        nth = [*seen].index(way.method) if hue == MUTED else nth
        found[way] = {"color": hue, "linestyle": DASHES[nth % len(DASHES)], "linewidth": 1.0 if hue == MUTED else 1.8}
    return found


def _draw_lines(axes: Any, lines: Lines, styles: Mapping[Way, dict[str, Any]], sound: set[Way]) -> None:
    for way, (x, seconds) in lines.items():
        axes.plot(x, np.maximum(seconds, 1e-4), label=str(way), **styles[way])
    for x, seconds, winner in crossings({way: line for way, line in lines.items() if way in sound}):
        axes.plot(x, seconds, "o", markersize=9, markerfacecolor="white", markeredgecolor=INK, zorder=4)
        words = f"{winner}\nfrom here on"
        axes.annotate(words, (x, seconds), (6, -9), textcoords="offset points", fontsize=8, va="top", zorder=5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.grid(color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)


def crossings(lines: Lines) -> list[tuple[float, float, Way]]:
    """Return where another way becomes the fastest: x, seconds and who, over the points that the lines share."""
    every = sorted({float(x) for xs, _ in lines.values() for x in xs})
    found = []
    fastest: list[tuple[float, float, Way]] = []
    for x in every:
        here = {way: float(t[xs == x][0]) for way, (xs, t) in lines.items() if (xs == x).any()}
        best = min(here, key=lambda way: here[way])
        fastest.append((x, here[best], best))
    for (_, _, before), (x, seconds, now) in pairwise(fastest):
        if now != before:
            found.append((x, seconds, now))
    return found


def _ticks(at: Sequence[float], names: Sequence[str]) -> tuple[list[float], list[str]]:
    return [*at], [*names]


