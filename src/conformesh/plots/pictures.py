"""Pictures: a network that agrees on a threshold, and what each method's sets are worth.

Matplotlib is imported when a picture is drawn. Colours keep their order in grey, and networks differ in shape as well.
"""

from __future__ import annotations

import itertools
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.layout import drawn_lines, drawn_places, is_lattice
from conformesh.graph.network import Network

if TYPE_CHECKING:
    from conformesh.lab.comparison import Comparison, ComparisonRow, NetworkComparison
    from conformesh.methods import Way

Where = str | os.PathLike[str] | None  # a picture is written to, if anywhere
PICTURES = (".png", ".pdf", ".svg")
NUMBERED = 40  # devices up to which a number fits into each
INK, FAINT = "#222222", "#b8b8b8"
MARKS = (  # colour, marker and filling of the first, second, ... network
    ("#1f4e79", "o", True),
    ("#d9822b", "s", False),
    ("#4b8b3b", "^", True),
    ("#8b5fa8", "D", False),
)
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": False,
    "legend.frameon": False,
}


def picture_file(out: str | os.PathLike[str], usual: str | None = None) -> Path:
    """Return the file to draw to, whose folder is made now: a bad path is an error before the work, not after.

    A folder gets a picture of the name `usual`.
    """
    path = Path(out)
    if usual is not None and (path.is_dir() or not path.suffix):
        path = path / usual
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"{path}: the picture must end in {', '.join(PICTURES)}, got {path.suffix!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@dataclass(frozen=True)
class Measured:
    """What one method's sets are worth on one network: coverage with its interval, and mean size.

    `guarantee` is the kind of its certificate, `needs` whom a device must reach: `neighbours`, `nothing` or `server`.
    """

    method: str
    network: str
    guarantee: str
    needs: str
    coverage: float
    low: float
    high: float
    size: float


@dataclass(frozen=True, eq=False)
class Agreement:
    """How a network came to its threshold.

    Attributes
    ----------
    network
        Who talked to whom.
    sizes
        Scores each device holds, shape (devices,).
    views
        The threshold as each device sees it before each round, shape (rounds, devices): at first from its own scores.
    threshold
        What they agreed on.
    """

    network: Network
    sizes: NDArray[np.int64]
    views: NDArray[np.float64]
    threshold: float

    @property
    def local(self) -> NDArray[np.float64]:
        """Each device's own threshold, before anybody spoke."""
        return np.asarray(self.views[0])


def draw_agreement(path: Path, agreements: Sequence[Agreement]) -> None:
    """Draw each network, its devices coloured by their own threshold, and below how their views come together."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    many = len(agreements)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(0.8 + 5.0 * many, 7.4), layout=ConstrainedLayoutEngine(h_pad=0.12))
        grid = figure.add_gridspec(2, many + 1, height_ratios=(1.1, 1), width_ratios=[1] * many + [0.035])
        every = np.concatenate([agreement.local for agreement in agreements])
        colour = mpl.cm.ScalarMappable(mpl.colors.Normalize(every.min(), every.max()), "cividis")
        longest = max(len(agreement.views) for agreement in agreements)
        left = None
        for column, agreement in enumerate(agreements):
            _draw_network(figure.add_subplot(grid[0, column]), agreement, colour)
            below = figure.add_subplot(grid[1, column], sharey=left)
            _draw_views(below, agreement, colour, longest)
            if left is None:
                left = below
                below.set_ylabel("threshold in each device's view")
            else:
                below.tick_params(labelleft=False)
        bar = figure.colorbar(colour, cax=figure.add_subplot(grid[0, many]))
        bar.set_label("threshold from a device's own scores")
        bar.outline.set_visible(False)
        figure.suptitle(
            f"{len(agreements[0].sizes)} devices, each with a threshold of its own, talk until they agree on one",
            fontsize=13,
            fontweight="bold",
            x=0.012,
            ha="left",
        )
        figure.savefig(path, dpi=150)


def _draw_edges(axes: Any, network: Network, where: NDArray[np.float64]) -> None:
    """Draw the lines between devices, and give the axes their frame."""
    from matplotlib.collections import LineCollection

    lines = [*map(np.array, drawn_lines(network, where))]
    look: dict[str, Any] = {
        "colors": FAINT,
        "linewidths": max(0.4, 1.6 * _crowd(network)),
        "capstyle": "round",
        "zorder": 1,
    }
    axes.add_collection(LineCollection(lines, **look), autolim=False)
    axes.set_aspect("equal")
    low, high = where.min(axis=0) - 0.65, where.max(axis=0) + 0.65
    if is_lattice(where):
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    else:
        axes.margins(0.15)
    axes.axis("off")
    if network.name.startswith("torus"):
        words = "lines that leave the picture come back on the other side"
        axes.text(0.5, -0.01, words, transform=axes.transAxes, ha="center", va="top", fontsize=8.5, color="#666666")


def draw_map(axes: Any, network: Network, values: NDArray[np.float64], what: str) -> None:
    """Draw a network, its devices coloured by a value, with a bar that says what the colours mean."""
    where = drawn_places(network)
    _draw_edges(axes, network, where)
    area = 260 * _crowd(network)
    look: dict[str, Any] = {"cmap": "cividis", "edgecolors": INK, "linewidths": 0.8 * _crowd(network), "zorder": 2}
    marks = axes.scatter(*where.T, s=area, c=values, **look)
    bar = axes.get_figure().colorbar(marks, ax=axes, location="left", shrink=0.8)
    bar.set_label(what)
    bar.outline.set_visible(False)
    axes.set_title(network.name)


def _crowd(network: Network) -> float:
    """Return by how much marks shrink where many devices must fit."""
    return min(1.0, 20 / network.devices)


def _draw_network(axes: Any, agreement: Agreement, colour: Any) -> None:
    network, sizes = agreement.network, agreement.sizes
    where = drawn_places(network)
    _draw_edges(axes, network, where)
    area = _crowd(network) * (320 + 900 * sizes / sizes.max())
    axes.scatter(*where.T, s=area, c=colour.to_rgba(agreement.local), edgecolors=INK, linewidths=0.8, zorder=2)
    if network.devices <= NUMBERED:
        for (x, y), size, own in zip(where, sizes, agreement.local, strict=True):
            ink = "white" if colour.norm(own) < 0.5 else INK
            axes.text(x, y, str(size), ha="center", va="center_baseline", fontsize=9, color=ink, zorder=3)
    shown = "numbers" if network.devices <= NUMBERED else "area"
    axes.set_title(f"{network.name}   ({shown}: scores a device holds)")


def _draw_views(axes: Any, agreement: Agreement, colour: Any, longest: int) -> None:
    # Even rounds only: on a chain the views swing to and fro from one round to the next, around the same course.
    last = len(agreement.views) - 1
    rounds = np.unique(2 * (np.geomspace(1, max(last, 1) + 1, 60).astype(np.int64) // 2))
    rounds = rounds[rounds <= last]
    for device, own in enumerate(agreement.local):
        axes.plot(rounds, agreement.views[rounds, device], color=colour.to_rgba(own), linewidth=1.4)
        axes.plot(0, own, marker="o", markersize=4.5, color=colour.to_rgba(own), clip_on=False, zorder=3)
    axes.set_xscale("symlog", linthresh=2, linscale=0.6)
    axes.set_xlim(0, longest)
    ticks = [0, 2, *(10**power for power in range(1, 8) if 10**power <= longest)]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("rounds of talking (only even ones are drawn)")
    if np.isfinite(agreement.threshold):
        axes.axhline(agreement.threshold, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        axes.set_title(f"certain after {len(agreement.views):,} rounds: threshold {agreement.threshold:.4g}")
    else:
        axes.set_title("they hold too few scores for a finite threshold")


def draw_methods(path: Path, measured: Sequence[Measured], alpha: float) -> None:
    """Draw coverage with its interval, and mean set size, one row per method and one mark per network."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    methods = [*dict.fromkeys(line.method for line in measured)]
    promise = {line.method: line.guarantee for line in measured}
    served = [line.method for line in measured if line.needs == "server"]
    networks = [*dict.fromkeys(line.network for line in measured)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 1.6 + 0.52 * len(methods)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for index, network in enumerate(networks):
            ink, marker, filled = MARKS[index % len(MARKS)]
            lines = [line for line in measured if line.network == network]
            rows = np.array([methods.index(line.method) for line in lines]) + 0.3 * (index - (len(networks) - 1) / 2)
            mark: dict[str, Any] = {
                "marker": marker,
                "color": ink,
                "markerfacecolor": ink if filled else "white",
                "markersize": 6.5,
            }
            coverage = np.array([line.coverage for line in lines])
            reach = np.array([[line.coverage - line.low, line.high - line.coverage] for line in lines]).T
            mark |= {"linestyle": "none", "label": network}
            left.errorbar(coverage, rows, xerr=np.maximum(reach, 0), capsize=2.5, **mark)
            right.plot([line.size for line in lines], rows, **mark)
        left.axvline(1 - alpha, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        left.set_title("How often a set holds the truth")
        left.set_xlabel(f"coverage, with 95 % interval; dashed: the target {1 - alpha:.4g}")
        right.set_title("How many labels it names")
        right.set_xlabel("mean set size")
        left.set_yticks(range(len(methods)), [f"{method}  ({promise[method]})" for method in methods])
        left.set_ylim(len(methods) - 0.45, -0.55)
        for axes in (left, right):
            axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
            axes.set_axisbelow(True)
            axes.tick_params(axis="y", length=0)
            axes.margins(x=0.08)
            for method in {*served}:
                at = methods.index(method)
                axes.axhspan(at - 0.5, at + 0.5 + (at == len(methods) - 1), color="#f3f1ec", linewidth=0, zorder=-1)
        handles, labels = right.get_legend_handles_labels()
        if served:
            handles.append(mpl.patches.Patch(color="#f3f1ec"))
            labels.append("needs a server")
        figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))
        figure.savefig(path, dpi=150)


# --- what each way of calibrating costs -------------------------------------------------------------------------------

PANELS = 6  # networks that are drawn; the others stand in the table only
GROUND, MUTED = "#f3f1ec", "#8c8c8c"  # what needs a server: behind its rows, and its marks
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "p", "*", "<", ">", "h", "d", "8", "H")
HUES = ("#d9822b", "#4b8b3b", "#8b5fa8", "#a33b3b")
FILLING = {"counted": "full", "bounded": "bottom"}  # anything less is hollow


def draw_comparison(path: Where, comparison: Comparison) -> Any:
    """Draw bits against rounds, one panel per network, and at the right each way's name, certificate and slack.

    Both axes are logarithmic; what sends nothing has no place on them. Marks that would cover each other stand side by
    side. The dashed line is the diameter: to its left only a server can be. Returns the figure.
    """
    import matplotlib as mpl

    from conformesh.lab.comparison import ways_of
    from conformesh.plots.figures import Picture, kept

    groups, ways = comparison.groups[:PANELS], comparison.ways()
    marks = _marks(ways_of())  # of all there are, so that a mark means the same in every picture
    columns = min(3, len(groups))
    rows = -(-len(groups) // columns)
    with mpl.rc_context(STYLE):
        sized = any(run.size is not None for group in groups for run in group.runs)
        widths = 2.75 * columns + 0.5, 4.8 + sized
        height = max(2.9 * rows, 1.6 + 0.29 * len(ways)) + 0.6
        figure = Picture(figsize=(sum(widths), height), layout="constrained")
        sides: Any = figure.subfigures(1, 2, width_ratios=widths)
        left, right = sides
        panels = left.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        limits = _limits([run for group in groups for run in group.runs], groups)
        for place, axes in enumerate(panels.flat):
            if place < len(groups):
                _draw_costs(axes, groups[place], marks, limits)
                axes.tick_params(labelbottom=place + columns >= len(groups))
            else:
                axes.axis("off")
        left.supxlabel("rounds of communication", fontsize=10)
        left.supylabel("bits sent by each device", fontsize=10)
        _draw_slack(right.subplots(), comparison, ways, marks)
        more = len(comparison.groups) - len(groups)
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
        return kept(figure, path)


def hues_of_methods() -> dict[str, str]:
    """Return a colour for each method, the same in every picture; what needs a server is grey."""
    from conformesh.methods import METHODS, REACH

    hues = itertools.cycle((MARKS[0][0], *HUES))
    ordered = sorted(METHODS, key=lambda name: REACH.index(METHODS[name].needs))
    return {name: MUTED if METHODS[name].needs == "server" else next(hues) for name in ordered}


def _marks(ways: Sequence[Way]) -> dict[Way, dict[str, Any]]:
    """Give each way a shape of its own; the ways of one method share a colour, servers are grey."""
    hues = hues_of_methods()
    found: dict[Way, dict[str, Any]] = {}
    for index, way in enumerate(ways):
        size = 6.5 if way.needs == "server" else 8.0
        found[way] = {"marker": SHAPES[index % len(SHAPES)], "color": hues[way.method], "markersize": size}
    return found


def _filled(run: ComparisonRow, mark: dict[str, Any]) -> dict[str, Any]:
    """Return the mark with the filling that the certificate earns."""
    style = FILLING.get(run.guarantee, "none")
    edge: dict[str, Any] = {"markeredgewidth": 1.3}
    if style == "full":  # a white edge keeps neighbours apart, and takes some of the mark
        edge = {"markeredgewidth": 0.7, "markeredgecolor": "white", "markersize": 1.2 * mark["markersize"]}
    return {**mark, **edge, "fillstyle": style, "markerfacecoloralt": "white", "linestyle": "none", "clip_on": False}


def _limits(
    runs: Sequence[ComparisonRow], groups: Sequence[NetworkComparison]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ends of both axes, with room for a mark at each."""

    def around(values: Sequence[float]) -> tuple[float, float]:
        shown = [value for value in values if value > 0] or [1.0]
        low, high = min(shown), max(shown)
        room = max(high / low, 10.0) ** 0.07
        return low / room, high * room

    return around([*(run.rounds for run in runs), *(group.diameter for group in groups)]), around(
        [run.bits for run in runs]
    )


def _draw_costs(
    axes: Any,
    group: NetworkComparison,
    marks: dict[Way, dict[str, Any]],
    limits: tuple[tuple[float, float], tuple[float, float]],
) -> None:
    (first, last), _ = limits
    axes.set(xscale="log", yscale="log", xlim=limits[0], ylim=limits[1])
    axes.grid(color="#ececec", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{_in_thousands(value)}bit")
    axes.xaxis.set_major_formatter(lambda value, _: _in_thousands(value).replace(" ", ""))
    if group.diameter:
        axes.axvspan(first, group.diameter, color=GROUND, linewidth=0, zorder=0)
        axes.axvline(group.diameter, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.set_title(textwrap.fill(f"{group.network}, diameter {group.diameter:,}", 32), fontsize=10)
    together: dict[tuple[float, float], list[ComparisonRow]] = {}
    for run in group.runs:
        if run.rounds > 0 and run.bits > 0:
            together.setdefault((run.rounds, run.bits), []).append(run)
    step = (last / first) ** 0.055  # about the width of a mark
    for (rounds, bits), runs in together.items():
        for index, run in enumerate(runs):
            at = rounds * step ** (index - (len(runs) - 1) / 2)
            axes.plot(at, bits, zorder=3, **_filled(run, marks[run.way]))


def _in_thousands(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} "


def _draw_slack(axes: Any, comparison: Comparison, ways: Sequence[Way], marks: dict[Way, dict[str, Any]]) -> None:
    """Draw the slack of every way, in rows that are the legend as well, with slack and mean size in numbers beside."""
    every = [comparison.runs_of(way) for way in ways]
    reach = max([abs(run.slack) for runs in every for run in runs if np.isfinite(run.slack)], default=1.0)
    for row, (way, runs) in enumerate(zip(ways, every, strict=True)):
        slacks = [run.slack for run in runs if np.isfinite(run.slack)]
        if way.needs == "server":
            axes.axhspan(row - 0.5, row + 0.5, color=GROUND, linewidth=0, zorder=0)
        if slacks:
            axes.plot([min(slacks), max(slacks)], [row, row], color=marks[way]["color"], linewidth=2, zorder=2)
            axes.plot(np.median(slacks), row, zorder=3, **_filled(runs[0], marks[way]))
        else:  # at the edge, and "inf" beside it
            axes.plot(0.96, row, transform=axes.get_yaxis_transform(), **_filled(runs[0], marks[way]))
    axes.set_yticks(range(len(ways)), [_described(way, runs) for way, runs in zip(ways, every, strict=True)])
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


def _described(way: Way, runs: Sequence[ComparisonRow]) -> str:
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
