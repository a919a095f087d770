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

INK, FAINT = "#222222", "#b8b8b8"
MARKS = (  # colour, marker and filling of the first, second, ... network
    ("#1f4e79", "o", True),
    ("#d9822b", "s", False),
    ("#4b8b3b", "^", True),
    ("#8b5fa8", "D", False),
)
STYLE = {
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
    """What one method's sets are worth on one network: coverage with its interval, and mean size."""

    method: str
    network: str
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
        The quantile as each device sees it before each round, shape (rounds, devices): at first that of its own scores.
    threshold
        What they agreed on.
    """

    network: Network
    sizes: NDArray[np.int64]
    views: NDArray[np.float64]
    threshold: float

    @property
    def local(self) -> NDArray[np.float64]:
        """Each device's own quantile, before anybody spoke."""
        return self.views[0]


def draw_agreement(path: Path, agreements: Sequence[Agreement], alpha: float) -> None:
    """Draw each network, its devices coloured by their own quantile, and below how their views come together."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 4.6 * len(agreements), 7.6), layout="constrained")
        grid = figure.subplots(2, len(agreements), height_ratios=(1.15, 1), squeeze=False)
        every = np.concatenate([a.local for a in agreements])
        colour = mpl.cm.ScalarMappable(mpl.colors.Normalize(every.min(), every.max()), "cividis")
        longest = max(len(a.views) for a in agreements)
        for (top, bottom), agreement in zip(grid.T, agreements, strict=True):
            _draw_network(top, agreement, colour)
            _draw_views(bottom, agreement, colour, longest)
        grid[1, 0].set_ylabel(f"{1 - alpha:.4g}-quantile as a device sees it")
        for right in grid[1, 1:]:
            right.sharey(grid[1, 0])
            right.tick_params(labelleft=False)
        bar = figure.colorbar(colour, ax=[*grid[0]], shrink=0.75, aspect=25, pad=0.02)
        bar.set_label(f"a device's own {1 - alpha:.4g}-quantile")
        bar.outline.set_visible(False)
        if np.isfinite(agreements[0].threshold) and every.min() <= agreements[0].threshold <= every.max():
            bar.ax.axhline(agreements[0].threshold, color="white", linewidth=2.4)
            bar.ax.axhline(agreements[0].threshold, color=INK, linewidth=1)
        figure.suptitle(
            f"{len(agreements[0].sizes)} devices disagree about the {1 - alpha:.4g}-quantile until they have talked",
            fontsize=13,
            fontweight="bold",
            x=0.01,
            ha="left",
        )
        figure.savefig(path, dpi=150)


def _draw_network(axes: Any, agreement: Agreement, colour: Any) -> None:
    network = agreement.network
    where = _positions(network)
    for a, b in _segments(network, where):
        axes.plot([a[0], b[0]], [a[1], b[1]], color=FAINT, linewidth=1.6, zorder=1, solid_capstyle="round")
    area = 90 + 900 * agreement.sizes / agreement.sizes.max()
    axes.scatter(*where.T, s=area, c=colour.to_rgba(agreement.local), edgecolors=INK, linewidths=0.8, zorder=2)
    if network.devices <= 60:
        for (x, y), size, own in zip(where, agreement.sizes, agreement.local, strict=True):
            dark = colour.norm(own) < 0.55
            small = 90 + 900 * size / agreement.sizes.max() < 220
            offset = (0, -14) if small else (0, 0)
            axes.annotate(
                str(size),
                (x, y),
                offset,
                textcoords="offset points",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if dark and not small else INK,
                zorder=3,
            )
    axes.set_title(f"{network.name}: the number is how many scores a device holds")
    axes.set_aspect("equal")
    axes.margins(0.12)
    axes.axis("off")


def _draw_views(axes: Any, agreement: Agreement, colour: Any, longest: int) -> None:
    rounds = np.arange(len(agreement.views))
    for device, own in enumerate(agreement.local):
        axes.plot(rounds, agreement.views[:, device], color=colour.to_rgba(own), linewidth=1.3)
    axes.set_xscale("symlog", linthresh=1, linscale=0.5)
    axes.set_xlim(0, longest)
    ticks = [0, *(10**power for power in range(8) if 10**power <= longest)]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("rounds of talking")
    if np.isfinite(agreement.threshold):
        axes.axhline(agreement.threshold, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        axes.set_title(f"exact after {len(agreement.views):,} rounds: threshold {agreement.threshold:.4g}")


def _positions(network: Network) -> NDArray[np.float64]:
    """Fold a line into rows that run back and forth, so that it fits a picture; other networks say where they are."""
    where = network.positions()
    if network.devices < 8 or np.ptp(where[:, 1]) > 0:
        return where
    columns = next((c for c in range(int(network.devices**0.5), 2, -1) if network.devices % c == 0), 5)
    row, column = np.divmod(np.arange(network.devices), columns)
    return np.column_stack([np.where(row % 2, columns - 1 - column, column), -row]).astype(np.float64)


def _segments(network: Network, where: NDArray[np.float64]) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return the lines to draw; an edge around a torus becomes two ends that leave the picture on opposite sides."""
    pairs = np.column_stack([network.receivers, network.indices])
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    found = []
    for a, b in pairs:
        step = where[b] - where[a]
        if network.name.startswith("torus") and np.abs(step).max() > 1.5:
            away = 0.45 * np.sign(step)
            found += [(where[a], where[a] - away), (where[b], where[b] + away)]
        else:
            found.append((where[a], where[b]))
    return found


def draw_methods(path: Path, measured: Sequence[Measured], alpha: float) -> None:
    """Draw coverage with its interval, and mean set size, one row per method and one mark per network."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    methods = [*dict.fromkeys(line.method for line in measured)]
    networks = [*dict.fromkeys(line.network for line in measured)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 1.6 + 0.52 * len(methods)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for index, network in enumerate(networks):
            ink, marker, filled = MARKS[index % len(MARKS)]
            lines = [line for line in measured if line.network == network]
            rows = np.array([methods.index(line.method) for line in lines]) + 0.3 * (index - (len(networks) - 1) / 2)
            mark = {"marker": marker, "color": ink, "markerfacecolor": ink if filled else "white", "markersize": 6.5}
            coverage = np.array([line.coverage for line in lines])
            reach = np.array([[line.coverage - line.low, line.high - line.coverage] for line in lines]).T
            left.errorbar(coverage, rows, xerr=np.maximum(reach, 0), linestyle="none", capsize=2.5, label=network, **mark)
            right.plot([line.size for line in lines], rows, linestyle="none", label=network, **mark)
        left.axvline(1 - alpha, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        left.set_title(f"How often the set holds the truth (promised: {1 - alpha:.4g})")
        left.set_xlabel("coverage, with 95 % interval")
        right.set_title("How many labels it names (fewer is better)")
        right.set_xlabel("mean set size")
        left.set_yticks(range(len(methods)), methods)
        left.invert_yaxis()
        for axes in (left, right):
            axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
            axes.set_axisbelow(True)
            axes.tick_params(axis="y", length=0)
            axes.margins(x=0.08)
        handles, labels = right.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(networks))
        figure.savefig(path, dpi=150)
