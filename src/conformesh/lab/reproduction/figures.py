"""The pictures: coverage and set size of every line with its band, the text's conventions above the code's.

Published points, where they are known, stand on top as hollow marks in the colour of their line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from conformesh.lab.reproduction.curves import REFERENCES, VARIANTS, Curves, PublishedPoint, published_points
from conformesh.plots.pictures import FAINT, FIGURE_STYLE, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from conformesh.lab.reproduction.experiments import Experiment

_SCORES_IN_WORDS = {"logits": "scores 1 - logit", "confidences": "scores 1 - softmax confidence"}
_TITLES = {"coverage": "coverage", "excess": "coverage minus level", "size": "set size"}
_NEAR = 0.1  # how much of the coverage above and below its level the close-up shows
_CLOSE_TO_ZERO = 0.1  # labels: below this the size axis is linear, so that empty sets have a place


@dataclass(frozen=True)
class _Look:
    """How a line is drawn: the same in every figure, and distinct in grey too."""

    colour: str
    marker: str
    dash: Any = "-"
    filled: bool = True


LINE_LOOKS: dict[str, _Look] = {  # from dark to light along the connectivity, so that grey keeps the order
    "chain": _Look("#3b0f70", "s"),
    "cycle": _Look("#8c2981", "^", (0, (5, 1.5))),
    "star": _Look("#b5402f", "*", (0, (3, 1, 1, 1))),
    "torus": _Look("#1b8a8f", "o"),
    "complete": _Look("#e0a320", "D", (0, (1, 1))),
    "Q-DCP": _Look("#1b8a8f", "o"),
    "CP": _Look("#555555", "", (0, (6, 3))),
    "FCP": _Look("#111111", "", (0, (1.5, 1.5))),
    "E-DCP": _Look("#111111", "x", "none"),
    "swap rank": _Look("#111111", "P", "none"),  # E-DCP for the same promise, without imagined scores
}
_FAMILIES = {"Q-DCP 1": "#1b8a8f", "Q-DCP 2": "#b5402f", "H-DCP": "#3b0f70"}
_WIDTHS = {  # bits of a number -> marker and dash
    16: ("v", (0, (1, 1))),
    32: ("o", (0, (5, 1.5))),
    64: ("s", "-"),
}


def curve_style(line: str) -> _Look:
    """Return the look of a line: by its name, or by family and width as in "H-DCP, f = 16"."""
    if line in LINE_LOOKS:
        return LINE_LOOKS[line]
    family, _, width = line.partition(", f = ")
    if family in _FAMILIES and width:
        marker, dash = _WIDTHS[int(width)]
        return _Look(_FAMILIES[family], marker, dash)
    return _Look("#333333", "o")


def draw_experiment(
    experiment: Experiment, scores: str, cases: dict[str, Curves], data: str, synthetic: bool, stem: Path
) -> Path:
    """Draw one experiment with one kind of scores as PDF and PNG; return the PNG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**FIGURE_STYLE, "font.size": 9, "pdf.fonttype": 42}):
        measures = ("coverage", "excess", "size") if _over_levels(experiment) else ("coverage", "size")
        figure = Figure(figsize=(8.6 if len(measures) == 2 else 11.4, 6.6), layout="constrained")
        axes = figure.subplots(len(VARIANTS), len(measures), squeeze=False)
        theirs = published_points(experiment.name) if scores == "logits" and not synthetic else []
        for row, variant in zip(axes, VARIANTS, strict=True):
            curves = cases[variant]
            for axis, measure in zip(row, measures, strict=True):
                painter = _table if experiment.axis is None else _curves
                painter(axis, experiment, curves, measure, theirs)
                axis.set_title(f"{variant.replace('-', ' ')}: {_TITLES[measure]}")
        _legend(figure, axes[0, 0], bool(theirs))
        words = f"{experiment.item}. {experiment.title}"
        figure.suptitle(f"{words}\n{data}, {_SCORES_IN_WORDS[scores]}", x=0.01, ha="left", fontsize=10.5)
        if synthetic:
            _stamp(figure)
        # no date inside: the same numbers give the same file
        figure.savefig(stem.with_suffix(".pdf"), metadata={"CreationDate": None})
        return _save_png(figure, stem.with_suffix(".png"))


def _save_png(figure: Figure, path: Path) -> Path:
    """Save a PNG with a palette of 160 colours: a third of the size, without a visible difference."""
    from PIL import Image

    buffer = BytesIO()
    figure.savefig(buffer, dpi=120, format="png", metadata={"Software": None})
    with Image.open(buffer) as image:
        image.convert("RGB").quantize(colors=160, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def _curves(axis: Axes, experiment: Experiment, curves: Curves, measure: str, theirs: Sequence[PublishedPoint]) -> None:
    levels, floor = _over_levels(experiment), _smallest_tick(curves) if measure == "size" else -1.0
    for line in curves.lines():
        look, xs = curve_style(line), curves.xs(line)
        middle, half = _series(curves, line, measure)
        fill = look.colour if look.filled else "white"
        if len(xs) == 1 and line in REFERENCES and not levels and xs[0] < 1:  # at 1 - alpha: it has no x of its own
            _horizontal(axis, line, float(middle[0]))
            continue
        axis.fill_between(
            xs, np.maximum(middle - half, floor), middle + half, color=look.colour, alpha=0.16, linewidth=0
        )
        axis.plot(
            xs,
            middle,
            color=look.colour,
            linestyle=look.dash,
            marker=look.marker or None,
            markersize=8 if len(xs) == 1 else 4.5 if line in REFERENCES else 3.5,
            markeredgewidth=2 if len(xs) == 1 else 1,
            markerfacecolor=fill,
            linewidth=1.3,
            label=line,
            zorder=4 if line in REFERENCES else 3,
        )
    for line in dict.fromkeys(point.line for point in theirs):
        if line in curves.lines():
            _published(axis, [point for point in theirs if point.line == line], curves, measure)
    _scales(axis, experiment, curves, measure)


def _horizontal(axis: Axes, line: str, value: float) -> None:
    """Draw a reference that does not depend on x across the whole axis."""
    look = curve_style(line)
    if look.dash == "none":  # marks only: spread over the axis
        axis.plot(
            np.linspace(0.04, 0.96, 9),
            [value] * 9,
            transform=axis.get_yaxis_transform(),
            color=look.colour,
            marker=look.marker,
            linestyle="none",
            markersize=4.5,
            label=line,
            zorder=4,
        )
        return
    axis.axhline(value, color=look.colour, linestyle=look.dash, linewidth=1.2, label=line, zorder=2)


def _published(axis: Axes, points: Sequence[PublishedPoint], curves: Curves, measure: str) -> None:
    look = curve_style(points[0].line)
    classes = int(curves.row(points[0].line)["classes"]) if measure == "size" else 1
    values = [
        point.coverage - point.x if measure == "excess" else getattr(point, measure) * classes for point in points
    ]
    axis.plot(
        [point.x for point in points],
        values,
        linestyle="none",
        marker=look.marker or "P",
        markersize=8,
        markerfacecolor="none",
        markeredgecolor=look.colour,
        markeredgewidth=0.9,
        zorder=5,
    )


def _scales(axis: Axes, experiment: Experiment, curves: Curves, measure: str) -> None:
    assert experiment.axis is not None  # tables have their own painter
    axis.set_xlabel(experiment.axis.label)
    if experiment.axis.log:
        axis.set_xscale("log")
    levels = _over_levels(experiment)
    if measure == "excess":
        axis.set_ylabel("coverage - (1 - α)")
        axis.axhline(0, color=FAINT, linewidth=1, zorder=1)
        axis.set_xlim(0.05, 0.95)
        axis.set_ylim(-_NEAR, _NEAR)
        return
    if measure == "coverage":
        axis.set_ylabel("coverage on test rows")
        if levels:
            axis.axline((0, 0), slope=1, color=FAINT, linewidth=1, zorder=1)
            axis.set_xlim(0.05, 0.95)
            axis.set_ylim(-0.03, 1.04)
        else:
            target = 1 - float(curves.row(curves.lines()[0])["alpha"])
            axis.axhline(target, color=FAINT, linewidth=1, zorder=1)
            low, _ = axis.get_ylim()
            axis.set_ylim(min(low, target - 0.02), 1.006)
        return
    _size_scale(axis, curves)
    if levels:
        axis.set_xlim(0.05, 0.95)


def _size_scale(axis: Axes, curves: Curves, upright: bool = True) -> None:
    classes = int(curves.row(curves.lines()[0])["classes"])
    low = _smallest_tick(curves)
    decades = (0, 0.1, 1, 10, 100) if low < 1 else (1, 2, 5, 10, 20, 50, 100)
    ticks = [tick for tick in decades if low <= tick <= classes]
    ticks = [*ticks, classes] if classes not in ticks else ticks
    scale, limits, set_ticks, label = (
        (axis.set_yscale, axis.set_ylim, axis.set_yticks, axis.set_ylabel)
        if upright
        else (axis.set_xscale, axis.set_xlim, axis.set_xticks, axis.set_xlabel)
    )
    if low > 0:
        limits(low * 0.9, classes * 1.25)  # first: the limits found so far may be out of a logarithm's reach
        scale("log")
    else:
        scale("symlog", linthresh=_CLOSE_TO_ZERO, linscale=0.3)
        limits(-0.02, classes * 1.25)
    set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    set_ticks([], [], minor=True)
    label(f"labels in a set, of {classes}")


def _smallest_tick(curves: Curves) -> float:
    """Return where the size axis starts: the decade below the smallest mean, or 0 where sets are nearly empty."""
    classes = int(curves.row(curves.lines()[0])["classes"])
    smallest = min(value.size for _, _, value in curves)
    return next((decade for decade in (10.0, 1.0, 0.1) if decade <= smallest and 2 * decade <= classes), 0.0)


def _over_levels(experiment: Experiment) -> bool:
    return experiment.axis is not None and experiment.axis.label.startswith("coverage level")


def _table(axis: Axes, experiment: Experiment, curves: Curves, measure: str, theirs: Sequence[PublishedPoint]) -> None:
    """Draw a table as marks in rows, one per method."""
    lines = curves.lines()
    middle, half = (
        np.array([getattr(curves.at(line), name) for line in lines]) for name in (measure, f"{measure}_half")
    )
    rows = np.arange(len(lines))[::-1]
    axis.errorbar(
        middle, rows, xerr=half, fmt="o", color="#1b8a8f", markersize=5, capsize=3, linewidth=1.3, label="here"
    )
    for value, row in zip(middle, rows, strict=True):
        words = f"{value:.3f}" if measure == "coverage" else f"{value:.2f}"
        axis.annotate(words, (value, row), (0, 6), textcoords="offset points", ha="center", fontsize=7.5)
    classes = int(curves.row(lines[0])["classes"]) if measure == "size" else 1
    known = [point for point in theirs if point.line in lines]
    axis.plot(
        [getattr(point, measure) * classes for point in known],
        [rows[lines.index(point.line)] for point in known],
        linestyle="none",
        marker="s",
        markersize=9,
        markerfacecolor="none",
        markeredgecolor="#b5402f",
        label="published" if known else "_nothing",
    )
    axis.set_yticks(rows, lines)
    axis.set_ylim(-0.6, len(lines) - 0.4)
    if measure == "coverage":
        axis.axvline(1 - float(curves.row(lines[0])["alpha"]), color=FAINT, linewidth=1, zorder=1)
        axis.set_xlabel("coverage on test rows")
    else:
        _size_scale(axis, curves, upright=False)


def _series(curves: Curves, line: str, measure: str) -> tuple[Any, Any]:
    """Return the means of a line and half the width of its band."""
    what = "size" if measure == "size" else "coverage"
    values = curves.values(line)
    middle = np.array([getattr(value, what) for value in values])
    half = np.array([getattr(value, f"{what}_half") for value in values])
    return middle - (curves.xs(line) if measure == "excess" else 0), half


def _legend(figure: Figure, axis: Axes, with_published: bool) -> None:
    handles, labels = axis.get_legend_handles_labels()
    if with_published and "published" not in labels:
        from matplotlib.lines import Line2D

        handles.append(
            Line2D([], [], linestyle="none", marker="o", markersize=9, markerfacecolor="none", markeredgecolor=INK)
        )
        labels.append("published")
    columns = min(len(labels), 9 if len(labels) <= 9 else 6)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8.5, handlelength=2.6)


def _stamp(figure: Figure) -> None:
    """Say across the picture that no real model was involved."""
    figure.text(
        0.5, 0.5, "SYNTHETIC DATA", ha="center", va="center", rotation=28, fontsize=44, color="#000000", alpha=0.06
    )
