"""Pictures of single results: what an evaluation measured, and what a calibration found.

Marks and lines differ in shape and in lightness, so that the pictures hold in grey. With `ax` one panel is drawn.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.quantities import pluralize
from conformesh.files.schemas import validate
from conformesh.graph.network import Network
from conformesh.kernels.proportions import FAMILY_WISE_ERROR
from conformesh.kernels.ranks import exact_alpha
from conformesh.plots.pictures import FAINT, FIGURE_STYLE, INK, MARKER_STYLES, FilePath, draw_map
from conformesh.privacy.histogram import Release
from conformesh.results.evaluation import under_covered
from conformesh.results.lookup import part_axes
from conformesh.results.sites import CALIBRATION

if TYPE_CHECKING:
    from conformesh.results.evaluation import Coverage, Evaluation
    from conformesh.results.lambda_tests import LambdaTests
    from conformesh.results.quantiles import Quantiles
    from conformesh.results.result import Result
    from conformesh.results.sites import Sites

_NAMED = 30  # devices, groups or classes; up to this many have their names at the axis, more would overlap
_MOST_SIZE_BARS = 25  # set sizes; up to this many have a bar each
_MOST_FLAGGED = 6  # flagged devices whose names stand below a picture of many
_ERROR = "chance of a false alarm at most"
_BLUE, _ORANGE = MARKER_STYLES[0][0], MARKER_STYLES[1][0]


def draw_evaluation(found: Evaluation, ax: Any = None, path: FilePath = None, by: str | None = None) -> Any:
    """Draw coverage by device, group and class with its intervals and the nominal coverage, and how large sets are.

    With `ax` or `by` only one panel: `device`, `group`, `class` or `size`, by default the first there is.
    """
    import matplotlib as mpl

    from conformesh.plots.figures import NotebookFigure, save_figure, whole_figure

    panels = [*found.parts, *(["size"] if found.sizes else [])] or ["all"]
    if by is not None and by not in panels:
        raise ValueError(f"by must be {' or '.join(map(repr, panels))}, what this evaluation knows, got {by!r}")
    with mpl.rc_context(FIGURE_STYLE):
        if ax is not None:
            _draw_panel(ax, found, by or panels[0])
            return save_figure(whole_figure(ax), path)
        shown = [by] if by else panels
        wide = [_width(found, what) for what in shown]
        figure = NotebookFigure(figsize=(max(sum(wide), 5.2), 3.7), layout="constrained")
        every = figure.subplots(1, len(shown), squeeze=False, width_ratios=wide)[0]
        for axes, what in zip(every, shown, strict=True):
            _draw_panel(axes, found, what)
        inches = figure.get_figwidth()  # of which one holds about 11 letters of the headline, 17 of the words below
        headline = textwrap.fill(_headline(found), int(11 * inches))
        figure.suptitle(headline, fontsize=11.5, fontweight="bold", x=0.012, ha="left")
        if found.nominal is not None and shown != ["size"]:
            words = ["lines: 95 % intervals", f"dashed: {found.nominal:.4g}, asked for"]
            if any(under_covered(found.parts.get(what, {}), found.nominal) for what in shown):
                words.append(f"hollow squares: below it, {_ERROR} {FAMILY_WISE_ERROR:g}")
            _add_key(figure, words, inches)
        return save_figure(figure, path)


def _headline(found: Evaluation) -> str:
    one = found.coverage
    asked = "" if found.nominal is None else f", asked for {found.nominal:.4g}"
    size = "width" if found.singleton is None else "size"
    return (
        f"coverage {one.rate:.3f} [{one.low:.3f}, {one.high:.3f}] on {one.rows:,} rows{asked}; mean {size} "
        f"{found.mean_size:.3g}"
    )


def _width(found: Evaluation, what: str) -> float:
    number = len(found.parts.get(what, found.sizes))
    return 1.8 + 0.14 * min(max(number, 8), _NAMED)


def _draw_panel(axes: Any, found: Evaluation, what: str) -> None:
    if what == "size":
        _draw_sizes(axes, found.sizes)
    else:
        parts = found.parts.get(what, {"all rows": found.coverage})
        _draw_coverages(axes, parts, found.nominal, what, under_covered(parts, found.nominal))


def draw_sites(found: Sites, ax: Any = None, path: FilePath = None) -> Any:
    """Draw the coverage of each device with its interval, what is asked for, and which devices are flagged."""
    import matplotlib as mpl

    from conformesh.plots.figures import NotebookFigure, save_figure, whole_figure

    parts = {name: found[name] for name in found if found[name].rows}
    with mpl.rc_context(FIGURE_STYLE):
        if ax is not None:
            _draw_coverages(ax, parts, found.nominal, "device", {*found.flagged})
            return save_figure(whole_figure(ax), path)
        wide = max(1.8 + 0.2 * min(max(len(parts), 8), _NAMED), 5.2)
        figure = NotebookFigure(figsize=(wide, 3.7), layout="constrained")
        axes = figure.subplots()
        _draw_coverages(axes, parts, found.nominal, "device", {*found.flagged})
        axes.set_title("")
        figure.suptitle(textwrap.fill(found.title(), int(13 * wide)), fontsize=10, x=0.012, ha="left")
        many, kind = len(parts) > _NAMED, "approximate" if found.source == CALIBRATION else "exact"
        words = [f"{'grey' if many else 'lines'}: {kind} 95 % intervals"]
        words += [] if found.nominal is None else [f"dashed: {found.nominal:.4g}, asked for"]
        # Of many devices the axis has no names.
        names = ", ".join(found.flagged[:_MOST_FLAGGED]) + (", ..." if len(found.flagged) > _MOST_FLAGGED else "")
        words += [f"hollow squares: flagged{f' ({names})' if many else ''}"] if found.flagged else []
        _add_key(figure, words, wide)
        return save_figure(figure, path)


def _add_key(figure: Any, words: list[str], inches: float) -> None:
    """Write below a figure of this width what its marks mean: in one line where they fit."""
    most, line = int(17 * inches), "     ".join(words)
    lines = [line] if len(line) <= most else [textwrap.fill(part, most) for part in words]
    figure.supxlabel("\n".join(lines), fontsize=8.5, x=0.012, ha="left")


def compare_sites(found: Mapping[str, Sites], path: FilePath = None) -> Any:
    """Draw the coverage of each device for several tables of sites by name, beside each other.

    Devices stand in the order of their coverage in the first table. Up to 30 of them have their names and intervals.
    """
    import matplotlib as mpl

    from conformesh.plots.figures import NotebookFigure, save_figure

    tables = [*found.values()]
    first = tables[0]
    names = sorted((name for name in first if first[name].rows), key=lambda name: first[name].rate)
    if other := next((key for key, table in found.items() if {*table} != {*first}), None):
        raise ValueError(f"the table {other!r} has other devices than {next(iter(found))!r}; give tables of the same")
    few = len(names) <= _NAMED  # the intervals of many would hide each other
    with mpl.rc_context(FIGURE_STYLE):
        wide = max(2.4 + 0.2 * len(tables) * min(len(names), _NAMED) / 2, 6.2)
        figure = NotebookFigure(figsize=(wide, 4.0), layout="constrained")
        axes = figure.subplots()
        for number, (key, table) in enumerate(found.items()):
            colour, marker, filled = MARKER_STYLES[number % len(MARKER_STYLES)]
            parts = [table[name] for name in names]
            rates = np.array([part.rate for part in parts])
            ends = np.array([[part.low, part.high] for part in parts])
            axes.errorbar(
                np.arange(len(names)) + 0.24 * (number - (len(tables) - 1) / 2) * few,
                rates,
                yerr=np.abs(ends.T - rates) if few else None,
                fmt=marker,
                color=colour,
                markerfacecolor=colour if filled else "white",
                markersize=4.5 if few else 2.5,
                elinewidth=1,
                label=_sites_label(key, table),
            )
        if first.nominal is not None:
            words = f"asked for: {first.nominal:g}"
            axes.axhline(first.nominal, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0, label=words)
        axes.set_ylabel("coverage")
        _name_places(axes, names, "device")
        if not few:
            axes.set_xlabel(f"{len(names):,} devices, by their coverage in the first table")
        axes.set_title("Coverage of each device" + ", with 95 % intervals" * few)
        figure.legend(loc="outside lower center", fontsize=9)
        return save_figure(figure, path)


def _sites_label(name: str, table: Sites) -> str:
    """Return the name with the coverage of all rows, that of the worst device, and the mean size."""
    parts = [part for part in table.per_device.values() if part.rows]
    rows = sum(part.rows for part in parts)
    words = f"{name}: all {sum(part.covered for part in parts) / rows:.3f}, worst {min(p.rate for p in parts):.3f}"
    if any(part.mean_size is None for part in parts):
        return words
    size = "size" if any(part.per_class for part in parts) else "width"
    return f"{words}, mean {size} {sum(part.rows * (part.mean_size or 0.0) for part in parts) / rows:.3g}"


def _draw_coverages(
    axes: Any, parts: Mapping[str, Coverage], nominal: float | None, what: str, below: set[str]
) -> None:
    """Draw rates with their intervals; many of them in ascending order and without names. Those `below` are marked."""
    names = [*parts]
    if len(names) > _NAMED:
        names.sort(key=lambda name: parts[name].rate)
    rates = np.array([parts[name].rate for name in names])
    ends = np.array([[parts[name].low, parts[name].high] for name in names]).reshape(-1, 2)
    places = np.arange(len(names))
    missed = np.array([name in below for name in names], dtype=bool)
    few = len(names) <= _NAMED
    if not few:
        axes.fill_between(places, *ends.T, color=FAINT, alpha=0.5, linewidth=0, step="mid")
    for chosen, colour, marker in ((~missed, _BLUE, "o"), (missed, _ORANGE, "s")):
        look: dict[str, Any] = {"fmt": marker, "color": colour, "linestyle": "none", "elinewidth": 1}
        look |= {"markersize": 5 if few else 2, "markerfacecolor": colour if marker == "o" else "white"}
        reach = np.abs(ends[chosen].T - rates[chosen])
        axes.errorbar(places[chosen], rates[chosen], yerr=reach if few else None, **look)
    if nominal is not None:
        axes.axhline(nominal, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    axes.set_ylabel("coverage")
    low = np.nanmin([*ends[:, 0], 1.0 if nominal is None else nominal], initial=1.0)
    axes.set_ylim(max(-0.02, low - 0.04 * (1.04 - low) - 0.01), 1.005)  # room for a mark at 0
    _name_places(axes, names, what)
    axes.set_title(f"by {what}" + (f", {missed.sum():,} of {len(names):,} below" if missed.any() else ""), fontsize=9.5)


def _draw_sizes(axes: Any, sizes: Mapping[int, int]) -> None:
    most = max(sizes)
    if most <= _MOST_SIZE_BARS:
        places = [*range(most + 1)]
        axes.bar(places, [sizes.get(size, 0) for size in places], color=_BLUE, width=0.7)
        axes.set_xticks([place for place in places if most <= 12 or place % 5 == 0])
    else:
        ends = np.linspace(0, most + 1, _MOST_SIZE_BARS + 1)
        counts, _ = np.histogram([*sizes], bins=ends, weights=[*sizes.values()])
        axes.bar(ends[:-1], counts, width=np.diff(ends) * 0.9, align="edge", color=_BLUE)
    axes.set_xlabel("labels in a set")
    axes.set_ylabel("sets")
    axes.set_title("how large sets are", fontsize=9.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _name_places(axes: Any, names: list[str], what: str) -> None:
    if len(names) > _NAMED:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(names):,} {what}{'es' if what.endswith('s') else 's'}, in ascending order")
        return
    # Long names often begin alike, so that their ends must show.
    short = [name if len(name) <= 18 else f"{name[:7]}…{name[-10:]}" for name in names]
    longest = max(map(len, short), default=0)
    slanted = longest > 2 and longest * len(short) > 40
    axes.set_xticks(range(len(names)), short, rotation=60 if slanted else 0, ha="right" if slanted else "center")
    axes.tick_params(axis="x", labelsize=8 if longest * len(short) > 30 else 10, length=0)
    if slanted:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
    axes.set_xlim(-0.7, len(names) - 0.3)
    axes.set_xlabel(what)


# --- what a calibration found -----------------------------------------------------------------------------------------


def draw_result(found: Result, network: Network | None = None, ax: Any = None, path: FilePath = None) -> Any:
    """Draw the threshold of every device of a single answer; of several the threshold of every part and level."""
    if len(found) == 1:
        return _draw_answer(found, network, ax, path)
    if network is not None:
        raise ValueError(
            f"a map shows the {found.what} of one answer, and this result has {len(found)}; choose a part and a level "
            "first, as in result['F', 0.1].plot(network)"
        )
    return _draw_parts(found, ax, path)


def _draw_answer(found: Result, network: Network | None, ax: Any, path: FilePath) -> Any:
    """Draw the threshold of every device, and what each sent; on the map of a network, where it is given.

    Of a private result the noisy histogram instead of the thresholds, which are all the same.

    With `ax` only the thresholds, or only the map.
    """
    import matplotlib as mpl

    from conformesh.plots.figures import NotebookFigure, save_figure, whole_figure

    if network is not None and network.ids != found.device_ids:
        raise ValueError(
            f"the network {network.name!r} has other devices than this result, {pluralize(network.devices, 'device')} "
            f"and {pluralize(found.devices, 'device')}; give the one it was calibrated on"
        )
    with mpl.rc_context(FIGURE_STYLE):
        if ax is not None:
            _draw_half(ax, found, network)
            return save_figure(whole_figure(ax), path)
        tall = 3.7 if network is None else 4.6
        spoke = bool(found.cost.bits.any())
        figure = NotebookFigure(figsize=(9.2 if spoke else 5.6, tall), layout="constrained")
        left, *right = figure.subplots(1, 1 + spoke, squeeze=False, width_ratios=(1.25, 1)[: 1 + spoke])[0]
        _draw_half(left, found, network)
        for axes in right:
            _draw_sent(axes, found)
        words = f"{found.title()}; {found.certificate}"
        figure.suptitle(textwrap.fill(words, 118 if spoke else 72), fontsize=10, x=0.012, ha="left")
        return save_figure(figure, path)


def _draw_half(axes: Any, found: Result, network: Network | None) -> None:
    facts: dict[str, Any] = getattr(found, "recorded", found.options)
    if network is None and "release" in facts:
        _draw_release(axes, found, facts["release"])
    elif network is None:
        _draw_thresholds(axes, found)
    elif np.ptp(found.thresholds) > 0 and np.isfinite(found.thresholds).all():
        draw_map(axes, network, found.thresholds, "threshold of a device")
    else:
        many = int(np.count_nonzero(found.thresholds == found.threshold))
        where = "everywhere" if many == found.devices else f"on {many} of {found.devices} devices"
        draw_map(axes, network, found.cost.bits, f"bits sent; threshold {found.threshold:.6g} {where}")


def _draw_thresholds(axes: Any, found: Result) -> None:
    values, names = found.thresholds, [*found.device_ids]
    if len(names) > _NAMED:
        order = np.argsort(values, kind="stable")
        values, names = values[order], [names[k] for k in order]
    finite = np.isfinite(values)
    axes.plot(np.flatnonzero(finite), values[finite], "o", color=_BLUE, markersize=5 if len(names) <= _NAMED else 2)
    if finite.any():
        axes.axhline(found.threshold, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    _name_places(axes, names, "device")
    axes.set_ylabel(found.what)
    same = "the same on every device" if finite.all() and np.ptp(values) == 0 else "dashed: valid on every device"
    axes.set_title(same if finite.any() else f"{found.what} is infinite", fontsize=9.5)
    axes.ticklabel_format(axis="y", useOffset=False)


def _draw_release(axes: Any, found: Result, raw: Any) -> None:
    """Draw how many scores lie above each pivot, with noise, and why the threshold is where it is."""
    release = validate(raw, Release, "release")
    alpha, n = _rank_level(found), max(release.number, 1)
    above = np.cumsum(release.totals[::-1][: release.cells - 1])[::-1] / n
    allowed = float(alpha - (release.slack + release.inflation(alpha).value) / n)
    pivots = release.pivots
    near = np.flatnonzero((above < 0.98) & (above > min(allowed, 0.02) / 4))  # the rest is flat
    if len(near):
        shown = slice(max(near[0] - 2, 0), near[-1] + 3)
        pivots, above = pivots[shown], above[shown]
    axes.plot(pivots, above, "o", color=_BLUE, markersize=3)
    axes.axhline(allowed, color=_ORANGE, linewidth=1.2)
    if np.isfinite(found.threshold):
        axes.axvline(found.threshold, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlabel("grid point; dashed: threshold, the one after the last above the line")
    axes.set_ylabel("part of the scores above")
    axes.set_title(f"noisy histogram; line: alpha {float(alpha):g} less the price of noise", fontsize=9.5)


def _rank_level(found: Any) -> Fraction:
    """Return the miscoverage that the rank is for."""
    level: Fraction = found.rank_level(found.answer) if hasattr(found, "rank_level") else exact_alpha(found.alpha)
    return level


def _draw_sent(axes: Any, found: Result) -> None:
    bits: NDArray[np.float64] = np.sort(found.cost.bits)[::-1]
    axes.bar(np.arange(len(bits)), bits, width=0.8 if len(bits) <= _NAMED else 1.0, color=_BLUE, edgecolor="none")
    axes.axhline(found.cost.bits_per_device, color=INK, linewidth=1, linestyle=(0, (1, 2)))
    axes.set_xticks([])
    axes.set_xlabel("devices, who sent most first; dotted: mean")
    axes.set_ylabel("bits sent")
    axes.set_title(f"{pluralize(found.cost.rounds, 'round')} of communication", fontsize=9.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_parts(found: Result, ax: Any, path: FilePath) -> Any:
    """Draw the threshold of every part, a mark for each level."""
    names, levels = [", ".join(part) or "all" for part in found.parts], len(found.alphas)
    table = np.array([answer.threshold for answer in found.answers]).reshape(-1, levels)
    axes = part_axes(found.guarantee)
    part, kind = axes[0].kind if len(axes) == 1 else "part", found.answers[0].certificate.kind
    words = (found.what, part, "risk" if found.controlled else "alpha", kind)
    return _draw_table(names, found.alphas, table, words, ax, path)


def _draw_table(
    names: list[str],
    levels: Sequence[float],
    table: NDArray[np.float64],
    words: tuple[str, str, str, str],
    ax: Any,
    path: FilePath,
) -> Any:
    """Draw thresholds, (parts, levels); `words` are what they, the parts and the levels are called, and the kind."""
    import matplotlib as mpl

    from conformesh.plots.figures import NotebookFigure, save_figure, whole_figure

    what, part, level_name, kind = words
    with mpl.rc_context(FIGURE_STYLE):
        axes = ax
        if ax is None:
            axes = NotebookFigure(figsize=(3.2 + 0.18 * min(len(names), 30), 3.7), layout="constrained").add_subplot()
        for index, (alpha, values) in enumerate(zip(levels, table.T, strict=True)):
            colour, marker, filled = MARKER_STYLES[index % len(MARKER_STYLES)]
            finite = np.isfinite(values)
            axes.plot(
                np.flatnonzero(finite) + 0.12 * (index - (len(levels) - 1) / 2),
                values[finite],
                marker,
                color=colour,
                markerfacecolor=colour if filled else "white",
                label=f"{alpha:g}",
            )
        _name_places(axes, names, part)
        axes.set_ylabel(what)
        axes.set_title(f"{what}s by {part}; {kind}", fontsize=9.5)
        if len(levels) > 1:
            axes.legend(title=level_name, fontsize=8.5, title_fontsize=8.5)
        return save_figure(whole_figure(axes), path)


def draw_quantiles(found: Quantiles, ax: Any = None, path: FilePath = None) -> Any:
    """Draw the values over q; horizontal bars are rank errors as parts of n."""
    import matplotlib as mpl

    from conformesh.plots.figures import NotebookFigure, save_figure, whole_figure

    with mpl.rc_context(FIGURE_STYLE):
        axes = NotebookFigure(figsize=(5.2, 3.7), layout="constrained").add_subplot() if ax is None else ax
        finite = np.isfinite(found.values)
        q, values = np.array(found.q)[finite], found.values[finite]
        if found.epsilon is not None:
            error = found.rank_error[finite] / max(found.n, 1)
            axes.errorbar(q, values, xerr=error, fmt="none", ecolor=FAINT, elinewidth=2, zorder=0)
        axes.plot(q, values, "o", color=_BLUE, markersize=5)
        axes.set_xlim(-0.03, 1.03)  # q lies from 0 to 1, however wide the bars are
        axes.set_xlabel("q, the part of the values at or below")
        axes.set_ylabel(found.column or "value")
        bars = "" if found.epsilon is None else f"; bars: rank error, confidence {found.confidence:g}"
        axes.set_title(f"{found.kind}{bars}", fontsize=9.5)
        return save_figure(whole_figure(axes), path)


def draw_lambda_tests(found: LambdaTests, ax: Any = None, path: FilePath = None) -> Any:
    """Draw the mean loss and the p-value of every lambda; filled marks are certified, a star is the chosen one.

    With `ax` the p-values alone. Lambdas of several parameters stand in the order of the grid.
    """
    import matplotlib as mpl

    from conformesh.plots.figures import NotebookFigure, save_figure, whole_figure

    with mpl.rc_context(FIGURE_STYLE):
        if ax is not None:
            _draw_p_values(ax, found)
            return save_figure(whole_figure(ax), path)
        figure = NotebookFigure(figsize=(9.2, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        for index, (name, risk) in enumerate(found.risks.items()):
            colour = MARKER_STYLES[index % len(MARKER_STYLES)][0]
            label = "mean loss" if len(found.risks) == 1 else name
            _draw_lambdas(left, found, found.mean_losses[name], colour, label)
            left.axhline(float(risk.level), color=colour, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        left.set_ylabel("mean loss of the items")
        left.set_ylim(0, 1.05 * max(left.get_ylim()[1], *(float(risk.level) for risk in found.risks.values())))
        left.set_title("dashed: risk allowed", fontsize=9.5)
        if len(found.risks) > 1:
            figure.legend(loc="outside lower left", ncols=4, fontsize=8.5)
        _draw_p_values(right, found)
        figure.suptitle(textwrap.fill(str(found), 118), fontsize=10, x=0.012, ha="left")
        return save_figure(figure, path)


def _draw_p_values(axes: Any, found: LambdaTests) -> None:
    delta = float(1 - found.pac_confidence)
    smallest = 10.0 ** np.floor(np.log10(delta) - 4)  # smaller ones stand at the lower edge
    _draw_lambdas(axes, found, np.maximum(found.p_values, smallest), _BLUE, "p-value")
    axes.axhline(delta, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    axes.set_yscale("log")
    axes.set_ylim(smallest / 2, 1.6)
    axes.set_ylabel("p-value" + f", those below {smallest:g} at the edge" * bool((found.p_values < smallest).any()))
    axes.set_title(f"filled: certified; star: chosen; dashed: level {delta:g}", fontsize=9.5)


def _draw_lambdas(axes: Any, found: LambdaTests, values: NDArray[np.float64], colour: str, label: str) -> None:
    """Draw a curve over the lambdas, with filled marks where they are certified."""
    is_line = found.lambdas.ndim == 1
    places = found.lambdas if is_line else np.arange(1, len(found) + 1)
    order, certified = np.argsort(places), found.certified
    size = 5 if len(found) <= _NAMED else 3
    axes.plot(places[order], values[order], color=colour, linewidth=0.9, alpha=0.6, label=label)
    look: dict[str, Any] = {"color": colour, "linestyle": "none", "marker": "o", "markersize": size}
    axes.plot(places[certified], values[certified], **look)
    axes.plot(places[~certified], values[~certified], **{**look, "markerfacecolor": "white"})
    if found.chosen is not None:
        chosen = slice(found.chosen, found.chosen + 1)
        axes.plot(places[chosen], values[chosen], "*", color=colour, markersize=14, markeredgecolor="white")
    axes.set_xlabel("lambda" if is_line else "place in the grid")
