"""A picture of streams: coverage and thresholds as they go, of all devices and of each, with what is guaranteed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from conformesh.online.result import OnlineResult
from conformesh.plots.pictures import FAINT, FIGURE_STYLE, INK, MARKER_STYLES

_BOUND_POINTS = 400  # steps at which the bound is drawn, close at the start, where it changes most
_LINES = 60  # devices with a line of their own; more lines hide each other


def draw_online(path: str | os.PathLike[str] | None, found: OnlineResult, window: int, title: str = "") -> Any:
    """Draw rolling coverage and mean thresholds of the last `window` steps, and the coverage so far with its bound."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    target, steps = 1 - found.alpha, np.arange(1, found.steps + 1)
    colour = MARKER_STYLES[0][0]
    with mpl.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(7.6, 7.2), layout="constrained")
        above, middle, below = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 3))
        for name in found.ids[:_LINES]:
            above.plot(steps, found.rolling_coverage(window, name), color=FAINT, linewidth=0.5, alpha=0.7)
        above.plot(
            [], [], color=FAINT, linewidth=0.8, label="each device" if len(found.ids) <= _LINES else "some devices"
        )
        above.plot(steps, found.rolling_coverage(window), color=colour, linewidth=1.5, label="all devices")
        above.axhline(target, color=INK, linewidth=0.8, linestyle="--")
        above.set_ylabel(f"coverage of the\nlast {window:,} steps")
        above.legend(loc="lower right", fontsize=9)
        _so_far(middle, found, colour)
        low, half, high = np.nanquantile(_averaged(found.thresholds, window), [0.0, 0.5, 1.0], axis=0)
        below.fill_between(steps, low, high, color=FAINT, alpha=0.5, linewidth=0, label="smallest to largest device")
        below.plot(steps, half, color=colour, linewidth=1.5, label="median device")
        settled = high[min(window, found.steps - 1) :]  # thresholds begin large, and would hide the rest
        if np.nanmax(settled, initial=0.0) > 0:
            below.set_ylim(0.0, 1.6 * float(np.nanmax(settled)))
        below.set_ylabel(f"threshold, mean of\nthe last {window:,} steps")
        below.set_xlabel("step")
        below.legend(loc="upper right", fontsize=9)
        if title:
            above.set_title(title)
        if path is not None:
            figure.savefig(path, dpi=150)
    return figure


def _so_far(axes: Any, found: OnlineResult, colour: str) -> None:
    """Draw the coverage since the first step, and between what it must lie."""
    at = np.unique(np.geomspace(1, found.steps, _BOUND_POINTS).astype(int))
    accounts = [found.account(after=int(done)) for done in at]
    axes.fill_between(
        at,
        [1 - one.highest for one in accounts],
        [1 - one.lowest for one in accounts],
        color=FAINT,
        alpha=0.4,
        linewidth=0,
        label="guaranteed, whatever the scores",
    )
    axes.plot(at, [1 - one.rate for one in accounts], color=colour, linewidth=1.5, label="all devices, so far")
    axes.axhline(1 - found.alpha, color=INK, linewidth=0.8, linestyle="--")
    axes.set_ylim(max(0.0, 1 - 3 * found.alpha), 1.0)
    axes.set_ylabel("coverage\nso far")
    axes.legend(loc="lower right", fontsize=9)


def _averaged(values: Any, window: int) -> Any:
    """Return means over the last `window` steps, of finite values alone, (devices, steps)."""
    finite = np.isfinite(values)
    sums = np.cumsum(np.where(finite, values, 0.0), axis=1)
    many = np.cumsum(finite, axis=1)
    sums[:, window:] -= sums[:, :-window].copy()
    many[:, window:] -= many[:, :-window].copy()
    return np.where(many > 0, sums / np.maximum(many, 1), np.nan)
