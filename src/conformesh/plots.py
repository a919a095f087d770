"""Pictures: a network that agrees on a threshold, and what each method's sets are worth.

Matplotlib is imported when a picture is drawn. Colours keep their order in grey, and networks differ in shape as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.network import Network

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


def _draw_network(axes: Any, agreement: Agreement, colour: Any) -> None:
    network, sizes = agreement.network, agreement.sizes
    where = _positions(network)
    for a, b in _segments(network, where):
        axes.plot([a[0], b[0]], [a[1], b[1]], color=FAINT, linewidth=1.6, zorder=1, solid_capstyle="round")
    crowd = min(1.0, 20 / network.devices)
    area = crowd * (320 + 900 * sizes / sizes.max())
    axes.scatter(*where.T, s=area, c=colour.to_rgba(agreement.local), edgecolors=INK, linewidths=0.8, zorder=2)
    if network.devices <= NUMBERED:
        for (x, y), size, own in zip(where, sizes, agreement.local, strict=True):
            ink = "white" if colour.norm(own) < 0.5 else INK
            axes.text(x, y, str(size), ha="center", va="center_baseline", fontsize=9, color=ink, zorder=3)
    shown = "numbers" if network.devices <= NUMBERED else "area"
    axes.set_title(f"{network.name}   ({shown}: scores a device holds)")
    axes.set_aspect("equal")
    low, high = where.min(axis=0) - 0.65, where.max(axis=0) + 0.65
    if _is_lattice(where):
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    else:
        axes.margins(0.15)
    axes.axis("off")
    if network.name.startswith("torus"):
        words = "lines that leave the picture come back on the other side"
        axes.text(0.5, -0.01, words, transform=axes.transAxes, ha="center", va="top", fontsize=8.5, color="#666666")


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


def _positions(network: Network) -> NDArray[np.float64]:
    """Return where to draw the devices: a line folded to and fro, and a grid lying rather than standing."""
    where = np.array(network.positions())
    if network.devices >= 6 and np.ptp(where[:, 1]) == 0:
        short = next((c for c in range(int(network.devices**0.5), 1, -1) if network.devices % c == 0), 5)
        row, column = np.divmod(np.arange(network.devices), short)
        where = np.column_stack([np.where(row % 2, short - 1 - column, column), -row]).astype(np.float64)
    standing = _is_lattice(where) and np.ptp(where[:, 1]) > np.ptp(where[:, 0])
    return -where[:, ::-1] if standing else where


def _is_lattice(where: NDArray[np.float64]) -> bool:
    return bool((where == where.round()).all())


def _segments(network: Network, where: NDArray[np.float64]) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return the lines to draw; an edge around a torus becomes two ends that leave the picture on opposite sides."""
    pairs = np.column_stack([network.receivers, network.indices])
    found = []
    for a, b in pairs[pairs[:, 0] < pairs[:, 1]]:
        step = where[b] - where[a]
        if network.name.startswith("torus") and np.abs(step).max() > 1.5:
            away = 0.6 * np.sign(step)
            found += [(where[a], where[a] - away), (where[b], where[b] + away)]
        else:
            found.append((where[a], where[b]))
    return found


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
