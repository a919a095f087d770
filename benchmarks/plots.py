"""The pictures of README.md, from results.json: growth with its exponents, peers and bandwidth as bars."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"NumPy": "#555555", "MAPIE": "#8c2981", "TorchCP": "#b5402f", "puncc": "#1b8a8f", "crepes": "#e0a320"}
OURS = "#3b0f70"
DPI = 110


def growth(series: list[dict[str, Any]], file: Path) -> None:
    """Draw seconds against what grows, log-log, with the fitted power laws and a line of slope one."""
    across = 4
    down = -(-len(series) // across)
    figure, axes = plt.subplots(down, across, figsize=(10.6, 2.8 * down), squeeze=False, layout="constrained")
    for axis, one in zip(axes.flat, series, strict=False):
        x, y = one["x"], one["seconds"]
        axis.loglog(x, y, "o-", color=OURS, markersize=4, linewidth=1.2)
        linear = [y[-1] * value / x[-1] for value in x]
        axis.loglog(x, linear, ":", color="#999999", linewidth=1)
        words = f"exponent {one['exponent']:.2f}\nupper half {one['upper']:.2f}"
        axis.text(0.05, 0.95, words, transform=axis.transAxes, va="top", fontsize=8)
        axis.set_title(textwrap.fill(one["what"], 28), fontsize=8.5)
        axis.set_xlabel(one["grows"], fontsize=8.5)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25, linewidth=0.5)
        axis.set_ylim(min(y) / 4, max(y) * 8)
    for axis in list(axes.flat)[len(series) :]:
        axis.set_visible(False)
    for row in axes:
        row[0].set_ylabel("processor seconds", fontsize=8.5)
    figure.suptitle("Growth; dotted: linear, through the last point", fontsize=10)
    _save(figure, file)


def peers(rows: list[dict[str, Any]], file: Path) -> None:
    """Draw how many times longer each peer takes, by task."""
    measured = [row for row in rows if row["ratio"] is not None]
    tasks = list(dict.fromkeys(row["what"] for row in measured))
    figure, axes = plt.subplots(1, len(tasks), figsize=(9.6, 2.9), sharex=False, layout="constrained", squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        mine = [row for row in measured if row["what"] == task][::-1]
        names = [row["against"] for row in mine]
        values = [row["ratio"] for row in mine]
        axis.barh(names, values, color=[COLOURS.get(name, "#333333") for name in names], height=0.65)
        axis.set_xscale("log")
        axis.set_xlim(0.5, max(values) * 6)
        axis.axvline(1, color="black", linewidth=1)
        for place, value in enumerate(values):
            axis.text(max(value, 1) * 1.12, place, f"{value:.3g}x", va="center", fontsize=8)
        axis.set_title(task, fontsize=9)
        axis.tick_params(labelsize=8)
    figure.suptitle("Time of a peer as a multiple of ours; the line at 1 is conformesh", fontsize=10)
    _save(figure, file)


def bandwidth(rows: list[dict[str, Any]], file: Path) -> None:
    """Draw the share of the triad's bandwidth that gossip rounds reach."""
    figure, axis = plt.subplots(figsize=(6.4, 1.1 + 0.5 * len(rows)), layout="constrained")
    names = [textwrap.fill(row["what"].removeprefix("gossip round, "), 26) for row in rows][::-1]
    shares = [row["ratio"] for row in rows][::-1]
    axis.barh(names, shares, color=OURS, height=0.55)
    axis.axvline(0.6, color="#b5402f", linewidth=1, linestyle="--", label="target 60 %")
    for place, share in enumerate(shares):
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # readable where the target's line passes
        axis.text(share + 0.01, place, f"{share:.0%}", va="center", fontsize=8, bbox=behind)
    axis.set_xlim(0, max(1.0, *shares) * 1.2)
    axis.set_xlabel("share of the triad's bandwidth", fontsize=8.5)
    axis.tick_params(labelsize=8)
    axis.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    _save(figure, file)


def _save(figure: Any, file: Path) -> None:
    figure.savefig(file, dpi=DPI, metadata={"Software": None})
    plt.close(figure)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draw what the results hold, and return the files."""
    benches, drawn = results["benchmarks"], []
    if "growth" in benches:
        growth(benches["growth"]["series"], folder / "growth.png")
        drawn.append(folder / "growth.png")
    if "peers" in benches and any(row["ratio"] is not None for row in benches["peers"]["rows"]):
        peers(benches["peers"]["rows"], folder / "peers.png")
        drawn.append(folder / "peers.png")
    if "bandwidth" in benches:
        bandwidth(benches["bandwidth"]["rows"], folder / "bandwidth.png")
        drawn.append(folder / "bandwidth.png")
    return drawn
