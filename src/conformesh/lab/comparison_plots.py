"""How rounds and bits are traded: every schedule of E-DCP, the paper's methods, and the two floors.

Shapes say what a certificate is worth, so that the picture holds in grey.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from conformesh.lab.comparison import compared_ways
from conformesh.methods import MethodVariant
from conformesh.plots.pictures import FAINT, FIGURE_STYLE, GROUND, INK, FilePath, method_colours

if TYPE_CHECKING:
    from conformesh.lab.comparison import Comparison, ComparisonRow, CostFront, FrontPoint, NetworkComparison

_SHAPES: dict[str, dict[str, Any]] = {  # by the kind of a certificate
    "counted": {"marker": "o", "fillstyle": "full"},
    "bounded": {"marker": "s", "fillstyle": "bottom"},
    "assumed": {"marker": "^", "fillstyle": "none"},
    "none": {"marker": "x", "fillstyle": "none"},
}
_FLOOR = (
    "Bits are means over the devices. The floor holds for every exact method, on some scores of these sizes, where "
    "when and how long a device speaks says nothing: log2(m + 1) bits by a device of whose scores any number up to m "
    "may lie below the answer."
)
_FONT_SIZE = 7.5  # font size of names, in points
# Width of a letter and height of a line, in points: proportions of the default font, a little generous.
_ROOM = 0.62 * _FONT_SIZE, 1.25 * _FONT_SIZE
_Box = tuple[float, float, float, float]  # left, bottom, right, top, in points
MOST_PANELS = 6  # networks that are drawn, so that panels stay legible; the table lists all
# More ways than shapes reuse a shape in another colour.
_WAY_SHAPES = ("o", "s", "^", "D", "v", "P", "X", "p", "*", "<", ">", "h", "d", "8", "H")
_FILLING = {"counted": "full", "bounded": "bottom"}  # anything less is hollow


def draw_cost_fronts(path: FilePath, fronts: Sequence[CostFront]) -> Any:
    """Draw bits against rounds, one panel per network, with the front, the diameter and the floor for bits."""
    import matplotlib as mpl

    from conformesh.plots.figures import NotebookFigure, save_figure

    shown = fronts[:MOST_PANELS]
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    with mpl.rc_context(FIGURE_STYLE):
        figure = NotebookFigure(figsize=(0.6 + 5.2 * columns, 1.2 + 4.2 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes in panels.flat[len(shown) :]:
            axes.axis("off")
        panels[0, 0].set(xscale="log", yscale="log", **_limits(shown))
        for place, (axes, front) in enumerate(zip(panels.flat, shown, strict=False)):
            _draw_panel(axes, front)
            if place + columns >= len(shown):
                axes.tick_params(labelbottom=True)
                axes.set_xlabel("rounds of communication")
        figure.supylabel("bits sent by each device", fontsize=10)
        figure.suptitle("Rounds against bits", fontsize=12.5, fontweight="bold", x=0.012, ha="left")
        _draw_legend(figure, columns)
        figure.draw_without_rendering()  # names are placed in pixels, which need the final layout
        for axes, front in zip(panels.flat, shown, strict=False):
            _write_names(axes, front)
        figure.set_layout_engine("none")
        return save_figure(figure, path)


def _draw_panel(axes: Any, front: CostFront) -> None:
    points = _points_to_draw(front)
    axes.grid(color="#ececec", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    hues = method_colours()
    for point in points:
        mark = _SHAPES[point.guarantee]
        edge = {"markeredgewidth": 1.3, "markerfacecoloralt": "white"}
        axes.plot(point.rounds, point.bits, color=hues[point.method], markersize=8, zorder=3, **mark, **edge)
    axes.yaxis.set_major_formatter(lambda value, _: f"{_in_thousands(value)}bit")
    axes.xaxis.set_major_formatter(lambda value, _: _in_thousands(value).replace(" ", ""))
    if corners := _corners(axes, front):
        axes.plot(*zip(*corners, strict=True), color=INK, linewidth=1.4, zorder=2)
    if front.diameter:
        axes.axvspan(axes.get_xlim()[0], front.diameter, color=GROUND, linewidth=0, zorder=0)
        axes.axvline(front.diameter, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    if front.floor:
        axes.axhspan(axes.get_ylim()[0], front.floor, color=GROUND, linewidth=0, zorder=0)
        axes.axhline(front.floor, color=INK, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
    floor = f", at least {front.floor:.2g} bits" if front.floor else ""
    axes.set_title(f"{front.network}: diameter {front.diameter:,}{floor}", fontsize=10)


def _limits(fronts: Sequence[CostFront]) -> dict[str, tuple[float, float]]:
    """Return the ends of both axes, with room for names."""
    points = [point for front in fronts for point in _points_to_draw(front)]
    rounds = [*(point.rounds for point in points), *(max(front.diameter, 1) for front in fronts)]
    bits = [*(point.bits for point in points), *(front.floor for front in fronts if front.floor)] or [1.0]
    return {"xlim": (min(rounds) / 1.6, max(rounds) * 4), "ylim": (min(bits) / 1.6, max(bits) * 2)}


def _corners(axes: Any, front: CostFront) -> list[tuple[float, float]]:
    """Return the line along the front, from the upper border to the right one."""
    best = [point for point in front.best() if point in _points_to_draw(front)]
    if not best:
        return []
    corners = [(float(best[0].rounds), axes.get_ylim()[1]), (best[0].rounds, best[0].bits)]
    for point in best[1:]:
        corners += [(point.rounds, corners[-1][1]), (point.rounds, point.bits)]
    return [*corners, (axes.get_xlim()[1], corners[-1][1])]


def _points_to_draw(front: CostFront) -> list[FrontPoint]:
    """Return the points that logarithmic axes can show."""
    return [point for point in front.points if point.rounds > 0 and point.bits > 0]


def _write_names(axes: Any, front: CostFront) -> None:
    """Write names beside their marks, where they cover neither a mark nor another name; equal points share a place."""
    together: dict[tuple[int, float], list[str]] = {}
    for point in _points_to_draw(front):
        names = together.setdefault((point.rounds, round(point.bits, 1)), [])
        names.append(point.name)
    scale = 72 / axes.figure.dpi
    places = {at: tuple(scale * axes.transData.transform(at)) for at in together}
    taken: list[_Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y in places.values()]
    if front.diameter:
        across = scale * axes.transData.transform((front.diameter, 1))[0]
        taken.append((across - 1, 0, across + 1, scale * axes.transData.transform((1, axes.get_ylim()[1]))[1]))
    corners = [scale * axes.transData.transform(corner) for corner in _corners(axes, front)]
    for (x, y), (u, v) in pairwise(corners):
        taken.append((min(x, u) - 1, min(y, v) - 1, max(x, u) + 1, max(y, v) + 1))
    frame = axes.get_window_extent()
    inside = scale * frame.x0, scale * frame.y0, scale * frame.x1, scale * frame.y1
    for at, names in sorted(together.items(), key=lambda item: -item[0][1]):
        text = "\n".join(names)
        wide, high = _ROOM[0] * max(map(len, names)), _ROOM[1] * len(names)
        box = _free((places[at][0], places[at][1]), wide, high, taken, inside)
        taken.append(box)
        x, y = places[at]
        where = ((box[0] - x), (box[1] + box[3]) / 2 - y)
        far = abs((box[1] + box[3]) / 2 - y) > high / 2 + 8 or box[0] - x > 12 or x - box[2] > 12
        axes.annotate(
            text,
            at,
            where,
            textcoords="offset points",
            fontsize=_FONT_SIZE,
            va="center",
            ha="left",
            linespacing=1.05,
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.7, "shrinkB": 3} if far else None,
        )


def _free(at: tuple[float, float], wide: float, high: float, taken: Sequence[_Box], inside: _Box) -> _Box:
    """Return the nearest place for a name of that size, to the right or left, above or below."""
    x, y = at
    boxes = []
    for rise in range(0, 160, 4):
        for up in (rise, -rise):
            for left in (x + 8, x - 8 - wide, x - wide / 2):
                if left != x - wide / 2 or rise >= high / 2 + 7:
                    boxes.append((left, y + up - high / 2, left + wide, y + up + high / 2))
    for box in boxes:
        within = inside[0] <= box[0] and box[2] <= inside[2] and inside[1] <= box[1] and box[3] <= inside[3]
        if within and not any(_overlap(box, other) for other in taken):
            return box
    return boxes[0]


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _draw_legend(figure: Any, columns: int) -> None:
    """Say what shapes and lines mean."""
    from matplotlib.lines import Line2D

    def line(**look: Any) -> Any:
        return Line2D([], [], color=INK, **look)

    handles = {
        kind: line(linestyle="none", markersize=7, markeredgewidth=1.3, markerfacecoloralt="white", **mark)
        for kind, mark in _SHAPES.items()
    }
    handles |= {
        "front of what is counted": line(linewidth=1.4),
        "diameter: news takes as many rounds": line(linewidth=1, linestyle=(0, (4, 3))),
        "floor: some scores take as many bits": line(linewidth=1, linestyle=(0, (1, 2))),
    }
    figure.legend(
        [*handles.values()],
        [*handles],
        loc="outside lower left",
        ncols=2 * columns,
        fontsize=8.5,
        title=textwrap.fill(_FLOOR, 70 * columns),
        title_fontsize=8.5,
        alignment="left",
    )


# --- what each way of calibrating costs -------------------------------------------------------------------------------


def draw_comparison(path: FilePath, comparison: Comparison) -> Any:
    """Draw bits against rounds, one panel per network, and at the right each way's name, certificate and slack.

    Both axes are logarithmic, so ways that send nothing are not drawn. Marks that would cover each other are drawn side
    by side. The dashed line is the diameter: only ways with a server can lie to its left. Returns the figure.
    """
    import matplotlib as mpl

    from conformesh.plots.figures import NotebookFigure, save_figure

    entries, ways = comparison.networks[:MOST_PANELS], comparison.ways()
    marks = _marks(compared_ways())  # for all ways, so that a mark means the same in every picture
    columns = min(3, len(entries))
    rows = -(-len(entries) // columns)
    with mpl.rc_context(FIGURE_STYLE):
        sized = any(run.size is not None for entry in entries for run in entry.runs)
        widths = 2.75 * columns + 0.5, 4.8 + sized
        height = max(2.9 * rows, 1.6 + 0.29 * len(ways)) + 0.6
        figure = NotebookFigure(figsize=(sum(widths), height), layout="constrained")
        sides: Any = figure.subfigures(1, 2, width_ratios=widths)
        left, right = sides
        panels = left.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        limits = _cost_limits([run for entry in entries for run in entry.runs], entries)
        for place, axes in enumerate(panels.flat):
            if place < len(entries):
                _draw_costs(axes, entries[place], marks, limits)
                axes.tick_params(labelbottom=place + columns >= len(entries))
            else:
                axes.axis("off")
        left.supxlabel("rounds of communication", fontsize=10)
        left.supylabel("bits sent by each device", fontsize=10)
        _draw_slack(right.subplots(), comparison, ways, marks)
        more = len(comparison.networks) - len(entries)
        figure.suptitle(
            f"What a threshold costs {comparison.devices:,} devices with {comparison.scores:,} scores, alpha = "
            f"{comparison.alpha:g}" + (f"   ({more} more networks in the table)" if more else ""),
            fontsize=12.5,
            fontweight="bold",
            x=0.012,
            ha="left",
        )
        figure.supxlabel(
            "filled: rank counted (* under an assumption)     half: bounded     hollow: assumed, or no guarantee"
            + ("     " if columns > 1 else "\n")
            + "dashed: the diameter, or slack 0     shaded: only with a server",
            fontsize=8.5,
            x=0.012,
            ha="left",
        )
        return save_figure(figure, path)


def _marks(ways: Sequence[MethodVariant]) -> dict[MethodVariant, dict[str, Any]]:
    """Give each way a shape of its own; the ways of one method share a colour, servers are grey."""
    hues = method_colours()
    marks: dict[MethodVariant, dict[str, Any]] = {}
    for index, way in enumerate(ways):
        size = 6.5 if way.needs == "server" else 8.0
        marks[way] = {"marker": _WAY_SHAPES[index % len(_WAY_SHAPES)], "color": hues[way.method], "markersize": size}
    return marks


def _mark_of_run(run: ComparisonRow, mark: dict[str, Any]) -> dict[str, Any]:
    """Return the mark with the filling that the certificate earns."""
    style = _FILLING.get(run.guarantee, "none")
    edge: dict[str, Any] = {"markeredgewidth": 1.3}
    if style == "full":  # a white edge separates neighbours; the larger mark makes up for it
        edge = {"markeredgewidth": 0.7, "markeredgecolor": "white", "markersize": 1.2 * mark["markersize"]}
    return {**mark, **edge, "fillstyle": style, "markerfacecoloralt": "white", "linestyle": "none", "clip_on": False}


def _cost_limits(
    runs: Sequence[ComparisonRow], entries: Sequence[NetworkComparison]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ends of both axes, with room for a mark at each."""

    def around(values: Sequence[float]) -> tuple[float, float]:
        shown = [value for value in values if value > 0] or [1.0]
        low, high = min(shown), max(shown)
        room = max(high / low, 10.0) ** 0.07
        return low / room, high * room

    return around([*(run.rounds for run in runs), *(entry.diameter for entry in entries)]), around(
        [run.bits for run in runs]
    )


def _draw_costs(
    axes: Any,
    entry: NetworkComparison,
    marks: dict[MethodVariant, dict[str, Any]],
    limits: tuple[tuple[float, float], tuple[float, float]],
) -> None:
    (first, last), _ = limits
    axes.set(xscale="log", yscale="log", xlim=limits[0], ylim=limits[1])
    axes.grid(color="#ececec", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{_in_thousands(value)}bit")
    axes.xaxis.set_major_formatter(lambda value, _: _in_thousands(value).replace(" ", ""))
    if entry.diameter:
        axes.axvspan(first, entry.diameter, color=GROUND, linewidth=0, zorder=0)
        axes.axvline(entry.diameter, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.set_title(textwrap.fill(f"{entry.network}, diameter {entry.diameter:,}", 32), fontsize=10)
    together: dict[tuple[float, float], list[ComparisonRow]] = {}
    for run in entry.runs:
        if run.rounds > 0 and run.bits > 0:
            together.setdefault((run.rounds, run.bits), []).append(run)
    step = (last / first) ** 0.055  # about the width of a mark
    for (rounds, bits), runs in together.items():
        for index, run in enumerate(runs):
            at = rounds * step ** (index - (len(runs) - 1) / 2)
            axes.plot(at, bits, zorder=3, **_mark_of_run(run, marks[run.way]))


def _in_thousands(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} "


def _draw_slack(
    axes: Any, comparison: Comparison, ways: Sequence[MethodVariant], marks: dict[MethodVariant, dict[str, Any]]
) -> None:
    """Draw the slack of every way, in rows that are the legend as well, with slack and mean size in numbers beside."""
    every = [comparison.runs_of(way) for way in ways]
    reach = max([abs(run.slack) for runs in every for run in runs if np.isfinite(run.slack)], default=1.0)
    for row, (way, runs) in enumerate(zip(ways, every, strict=True)):
        slacks = [run.slack for run in runs if np.isfinite(run.slack)]
        if way.needs == "server":
            axes.axhspan(row - 0.5, row + 0.5, color=GROUND, linewidth=0, zorder=0)
        if slacks:
            axes.plot([min(slacks), max(slacks)], [row, row], color=marks[way]["color"], linewidth=2, zorder=2)
            axes.plot(np.median(slacks), row, zorder=3, **_mark_of_run(runs[0], marks[way]))
        else:  # at the edge, and "inf" beside it
            axes.plot(0.96, row, transform=axes.get_yaxis_transform(), **_mark_of_run(runs[0], marks[way]))
    axes.set_yticks(range(len(ways)), [_way_label(way, runs) for way, runs in zip(ways, every, strict=True)])
    axes.set_ylim(len(ways) - 0.5, -1)
    axes.tick_params(axis="y", length=0, labelsize=9)
    axes.set_xscale("symlog", linthresh=1, linscale=0.5)
    power = 10 ** int(np.log10(max(reach, 1.0)))
    axes.set_xlim(-2 * max(reach, 1.0), 2 * max(reach, 1.0))
    axes.set_xticks([-power, 0, power], [f"{-power:,}", "0", f"+{power:,}"])
    axes.minorticks_off()
    axes.axvline(0, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.set_title(f"rank above the required {comparison.required_rank:,}", fontsize=10)
    axes.set_xlabel("slack in rank")
    _write_beside(axes, 0, ["slack", *(_span([run.slack for run in runs], "+,.0f") for runs in every)])
    sizes = [[run.size for run in runs if run.size is not None] for runs in every]
    if all(sizes):
        _write_beside(axes, 68, ["mean size", *(_span(of_way, ".2f") for of_way in sizes)])


def _way_label(way: MethodVariant, runs: Sequence[ComparisonRow]) -> str:
    """Return a way's name with what its certificate says, and whether it sends anything at all."""
    kinds = dict.fromkeys(run.guarantee + "*" * (run.guarantee == "counted" and run.assumption != "") for run in runs)
    silent = "" if any(run.bits for run in runs) else ", sends nothing"
    return f"{way}  ({' or '.join(kinds)}{silent})"


def _write_beside(axes: Any, outward: float, texts: Sequence[str]) -> None:
    """Write a column of text at the right of the rows, as the labels of an axis, for which the layout makes room."""
    column = axes.twinx()
    column.set_ylim(axes.get_ylim())
    column.set_yticks([row - 1 + 0.25 * (row == 0) for row in range(len(texts))], texts)
    column.tick_params(axis="y", length=0, labelsize=9)
    column.spines["right"].set_position(("outward", outward))
    for spine in column.spines.values():
        spine.set_visible(False)


def _span(values: Sequence[float], digits: str) -> str:
    """Return the smallest and the largest of some numbers in words."""
    low, high = (format(value, digits).replace("+inf", "inf") for value in (min(values), max(values)))
    low, high = ("0" if text in ("+0", "-0") else text for text in (low, high))
    return low if low == high else f"{low} to {high}"
