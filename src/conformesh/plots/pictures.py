"""Pictures: a network that agrees on a threshold, and what each method's sets are worth.

Matplotlib is imported when a picture is drawn. Colours keep their order in grey, and networks differ in shape as well.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.layout import device_positions, edge_lines, is_lattice
from conformesh.graph.network import Network
from conformesh.methods import CONNECTIONS, METHODS

FilePath = str | os.PathLike[str] | None  # where a picture is written; None: nowhere
_PICTURES = (".png", ".pdf", ".svg")
GROUND, MUTED = "#f3f1ec", "#8c8c8c"  # of what needs a server: behind its rows, and its marks
_HUES = ("#d9822b", "#4b8b3b", "#8b5fa8", "#a33b3b")  # of methods, after the first colour of MARKER_STYLES
_NUMBERED = 40  # devices; up to this many a number fits into each disc
INK, FAINT = "#222222", "#b8b8b8"
MARKER_STYLES = (  # colour, marker and filling of the first, second, ... network
    ("#1f4e79", "o", True),
    ("#d9822b", "s", False),
    ("#4b8b3b", "^", True),
    ("#8b5fa8", "D", False),
)
FIGURE_STYLE: dict[Any, Any] = {
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
    if path.suffix.lower() not in _PICTURES:
        raise ValueError(f"{path}: the picture must end in {', '.join(_PICTURES)}, got {path.suffix!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@dataclass(frozen=True)
class MethodMeasurement:
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
    with mpl.rc_context(FIGURE_STYLE):
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

    lines = [*map(np.array, edge_lines(network, where))]
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
    where = device_positions(network)
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
    where = device_positions(network)
    _draw_edges(axes, network, where)
    area = _crowd(network) * (320 + 900 * sizes / sizes.max())
    axes.scatter(*where.T, s=area, c=colour.to_rgba(agreement.local), edgecolors=INK, linewidths=0.8, zorder=2)
    if network.devices <= _NUMBERED:
        for (x, y), size, own in zip(where, sizes, agreement.local, strict=True):
            ink = "white" if colour.norm(own) < 0.5 else INK
            axes.text(x, y, str(size), ha="center", va="center_baseline", fontsize=9, color=ink, zorder=3)
    shown = "numbers" if network.devices <= _NUMBERED else "area"
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


def draw_methods(path: Path, measured: Sequence[MethodMeasurement], alpha: float) -> None:
    """Draw coverage with its interval, and mean set size, one row per method and one mark per network."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    methods = [*dict.fromkeys(line.method for line in measured)]
    promise = {line.method: line.guarantee for line in measured}
    served = [line.method for line in measured if line.needs == "server"]
    networks = [*dict.fromkeys(line.network for line in measured)]
    with mpl.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(10, 1.6 + 0.52 * len(methods)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for index, network in enumerate(networks):
            ink, marker, filled = MARKER_STYLES[index % len(MARKER_STYLES)]
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
                axes.axhspan(at - 0.5, at + 0.5 + (at == len(methods) - 1), color=GROUND, linewidth=0, zorder=-1)
        handles, labels = right.get_legend_handles_labels()
        if served:
            handles.append(mpl.patches.Patch(color=GROUND))
            labels.append("needs a server")
        figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))
        figure.savefig(path, dpi=150)


def method_colours() -> dict[str, str]:
    """Return a colour for each method, the same in every picture; what needs a server is grey."""
    hues = itertools.cycle((MARKER_STYLES[0][0], *_HUES))
    ordered = sorted(METHODS, key=lambda name: CONNECTIONS.index(METHODS[name].description.needs))
    return {name: MUTED if METHODS[name].description.needs == "server" else next(hues) for name in ordered}
