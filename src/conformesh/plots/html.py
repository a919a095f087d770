"""HTML forms of results, for notebooks: an object says its rows, this module draws them.

Loaded when a notebook asks for HTML, and by nothing else. Text is escaped here and only here; colours are those of the
page, so that light and dark notebooks both read well; nothing is fetched. Pictures are small SVG texts: up to `_EACH`
marks have one of their own, more are summed up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

_EACH = 200  # marks; up to this many are drawn one by one, more as a band, which stays small in a notebook
_IN_ORDER = 40  # marks; up to this many keep the order of their names, which can be read; more are sorted by value
_MOST_PRINTED = 20  # rows of a table that are shown
_WIDE, _HIGH, _LETTER = 440, 130, 6.3  # pixels: of a chart, and the mean width of a letter of 11 pixels in it
_STYLE = (
    ".cfm{font:13px/1.5 system-ui,sans-serif;color:inherit;border:1px solid rgba(128,128,128,.5);border-radius:6px;"
    "padding:.6em .9em;margin:.2em 0;max-width:62em;box-sizing:border-box;overflow-wrap:anywhere}"
    ".cfm .h{font-size:1.1em;margin-bottom:.15em}"
    ".cfm .k{border:1.5px solid;border-radius:1em;padding:0 .6em;margin-left:.5em;font-size:.8em;white-space:nowrap}"
    ".cfm .k.assumed{border-style:dashed}.cfm .k.none{border-style:dotted}"
    ".cfm p{margin:.15em 0 .35em}"
    ".cfm table{border-collapse:collapse;border:0;margin:.3em 0;color:inherit;font-size:1em;background:none}"
    ".cfm tr,.cfm tr:hover{background:none!important}"
    ".cfm th,.cfm td{border:0;padding:.05em 1em .05em 0;text-align:left!important;vertical-align:top;background:none;"
    "max-width:none;white-space:normal;line-height:1.45}"
    ".cfm th{font-weight:400;opacity:.72;white-space:nowrap;overflow-wrap:normal}"
    ".cfm .t{overflow-x:auto}.cfm .t td{white-space:nowrap}"
    ".cfm .t thead th{border-bottom:1px solid rgba(128,128,128,.5)}"
    ".cfm th.r,.cfm td.r{text-align:right!important;font-variant-numeric:tabular-nums}"
    ".cfm figure{display:inline-block;margin:.3em 1.4em .1em 0;max-width:100%;vertical-align:top}"
    ".cfm figcaption{font-size:.85em;opacity:.8}.cfm svg{display:block;max-width:100%;height:auto}"
    ".cfm summary{cursor:pointer;opacity:.8}"
)
_SIGNS = {"counted": "●", "bounded": "◐", "assumed": "○", "none": "✕"}  # so that kinds differ without colour

_Rows = Iterable[tuple[str, str]]
_Place = Callable[[float], float]  # from a value to where it stands in a drawing


class IntervalMark(NamedTuple):
    """A value with its interval, and whether the whole of it is below what was asked for."""

    value: float
    low: float
    high: float
    missed: bool = False


def html_card(title: str, *, kind: str = "", claim: str = "", rows: _Rows = (), parts: Iterable[str] = ()) -> str:
    """Return the HTML of a result: a heading, the kind of its certificate, what it claims, rows, and finished parts."""
    badge = f'<span class="k {escape(kind)}">{_SIGNS.get(kind, "")} {escape(kind)}</span>' if kind else ""
    words = f"<p>{escape(claim)}</p>" if claim else ""
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    facts = f"<table>{lines}</table>" if lines else ""
    head = f'<div class="h"><b>{escape(title)}</b>{badge}</div>'
    return f'<div class="cfm"><style>{_STYLE}</style>{head}{words}{facts}{"".join(parts)}</div>'


def html_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Iterable[str] = (),
    most: int | None = _MOST_PRINTED,
    more: int = 0,
) -> str:
    """Return a table; of many rows the first are shown, and how many more there are, `more` not counted in rows."""
    ends = [' class="r"' if column in {*right} else "" for column in columns]

    def line(tag: str, cells: Sequence[str]) -> str:
        shown = (f"<{tag}{end}>{escape(cell)}</{tag}>" for end, cell in zip(ends, cells, strict=True))
        return f"<tr>{''.join(shown)}</tr>"

    body = "".join(line("td", row) for row in rows[:most])
    left = more + (0 if most is None else max(0, len(rows) - most))
    last = f"<p>and {left:,} more</p>" if left else ""
    return f'<div class="t"><table><thead>{line("th", columns)}</thead><tbody>{body}</tbody></table></div>{last}'


def collapsible(summary: str, body: str, shown: bool = False) -> str:
    """Return a finished part that opens when it is clicked at."""
    opened = ' open="open"' if shown else ""
    return f"<details{opened}><summary>{escape(summary)}</summary>{body}</details>"


# --- pictures ---------------------------------------------------------------------------------------------------------


def interval_chart(
    parts: Mapping[str, IntervalMark], value: str, what: str, line: float | None = None, top: float | None = None
) -> str:
    """Return a chart of a value with its interval by what has a name, and a dashed line; `top` ends the axis."""
    names = [*parts]
    sorted_up = len(names) > _IN_ORDER
    if sorted_up:
        names.sort(key=lambda name: parts[name].value)
    every = [parts[name] for name in names]
    reach = [end for mark in every for end in (mark.low, mark.high) if math.isfinite(end)]
    reach += [] if line is None else [line]
    if not reach:
        return ""
    low, high = min(reach), max(reach) if top is None else top
    high = high if high > low else low + 1e-9
    longest = max(map(len, names))
    step = min(max(12.0, _LETTER * longest + 4 if longest <= 8 else 12.0), 44.0)
    if step * len(names) > _WIDE:
        step = _WIDE / len(names)
    wide, left = max(step * len(names), 90.0), 44

    def x(place: float) -> float:
        return left + (place + 0.5) * step

    def y(value: float) -> float:
        return 8 + (_HIGH - 16) * (high - min(max(value, low), high)) / (high - low)

    found = [_axis(low, high, line, left, wide, y)]
    if len(names) > _EACH:
        found.append(_band(every, x, y))
    else:
        label = _HIGH + 6 if not sorted_up and _LETTER * longest + 2 <= step else 0
        found += [
            _mark(name, parts[name], x(place), y, label, min(2.6, 0.4 * step)) for place, name in enumerate(names)
        ]
    order = f", {len(names):,} in ascending order" if sorted_up else ""
    below = sum(mark.missed for mark in every)
    missed = f"; {below:,} below the line" if below else ""
    return _figure(found, left + wide + 6, _HIGH + 12, f"{value} by {what}{order}{missed}")


def _axis(low: float, high: float, line: float | None, left: float, wide: float, y: _Place) -> str:
    ticks = {low: f"{low:.3g}", high: f"{high:.3g}"}
    if line is not None:
        ticks = {tick: text for tick, text in ticks.items() if abs(y(tick) - y(line)) > 11}
        ticks[line] = min(f"{line:.4g}", f"{line:.3g}", key=lambda text: len(text) > 6)
    texts = "".join(f'<text x="{left - 6}" y="{y(tick) + 4:.0f}">{text}</text>' for tick, text in ticks.items())
    dashed = "" if line is None else f'<path d="M{left} {y(line):.1f}h{wide:.0f}" stroke-dasharray="4 3" opacity=".8"/>'
    frame = f'<path d="M{left} 6V{_HIGH - 4}" opacity=".4"/>'
    return f'<g text-anchor="end" stroke="none" fill="currentColor">{texts}</g>{frame}{dashed}'


def _mark(name: str, mark: IntervalMark, x: float, y: _Place, label: float, radius: float) -> str:
    """A line with a disc on it, or with a hollow square where the whole interval is below the line."""
    if not math.isfinite(mark.value):
        return ""
    words = f"{name}: {mark.value:.4g}"
    words += f" [{mark.low:.4g}, {mark.high:.4g}]" if mark.low < mark.high else ""
    at = y(mark.value)
    if mark.missed:
        top, end = y(mark.high), y(mark.low)
        shape = f'<path d="M{x:.1f} {top:.1f}V{at - 3:.1f}m-3 0h6v6h-6zm3 6V{end:.1f}"/>'
    else:
        shape = f'<path d="M{x:.1f} {y(mark.high):.1f}V{y(mark.low):.1f}"/>' if mark.low < mark.high else ""
        shape += f'<circle cx="{x:.1f}" cy="{at:.1f}" r="{radius:.1f}" fill="currentColor" stroke="none"/>'
    text = ""
    if label:
        look = 'text-anchor="middle" stroke="none" fill="currentColor"'
        text = f'<text x="{x:.1f}" y="{label:.0f}" {look}>{escape(name)}</text>'
    return f"<g><title>{escape(words)}</title>{shape}{text}</g>"


def _band(every: Sequence[IntervalMark], x: _Place, y: _Place) -> str:
    """Many marks as a band of intervals and a line of values, each a mean over neighbours in the order."""
    bins = 100
    ends = [round(i * len(every) / bins) for i in range(bins + 1)]
    upper: list[str] = []
    lower: list[str] = []
    middle: list[str] = []
    for start, end in pairwise(ends):
        block = every[start:end]
        at = x((start + end - 1) / 2)
        for line, pick in ((upper, "high"), (lower, "low"), (middle, "value")):
            line.append(f"{at:.0f} {y(sum(getattr(mark, pick) for mark in block) / len(block)):.0f}")
    outline = "L".join([*upper, *reversed(lower)])
    return (
        f'<path d="M{outline}z" fill="currentColor" opacity=".22" stroke="none"/>'
        f'<path d="M{"L".join(middle)}" stroke-width="1.8" fill="none"/>'
    )


def bar_chart(counts: Mapping[int, int], what: str) -> str:
    """Return a chart of how many there are of each whole number; beyond thirty, of each stretch of them."""
    most = max(counts)
    stretch = -(-(most + 1) // 30)
    heights = [0] * (most // stretch + 1)
    for number, count in counts.items():
        heights[number // stretch] += count
    wide, tallest = max(12.0, min(26.0, 260 / len(heights))), max(heights)
    found = []
    for place, count in enumerate(heights):
        high = (_HIGH - 22) * count / tallest
        first, last = place * stretch, place * stretch + stretch - 1
        at = f"{first}" if stretch == 1 else f"{first} to {last}"
        size = f'width="{wide * 0.75:.1f}" height="{high:.1f}"'
        bar = f'<rect x="{8 + place * wide:.1f}" y="{_HIGH - 4 - high:.1f}" {size}/>'
        found.append(f"<g><title>{at}: {count:,}</title>{bar}</g>")
        if len(heights) <= 12 or place % 5 == 0:
            middle = 8 + (place + 0.375) * wide
            found.append(f'<text x="{middle:.1f}" y="{_HIGH + 8}" text-anchor="middle" opacity="1">{first}</text>')
    body = f'<g fill="currentColor" stroke="none" opacity=".75">{"".join(found)}</g>'
    return _figure([body], 16 + wide * len(heights), _HIGH + 12, what)


def network_drawing(
    where: Sequence[tuple[float, float]],
    lines: Sequence[tuple[tuple[float, float], tuple[float, float]]],
    names: Sequence[str],
    words: str,
) -> str:
    """Return a drawing of a graph from places and lines in any units."""
    points = [*where, *(end for line in lines for end in line)]
    low = [min(point[axis] for point in points) for axis in (0, 1)]
    span = [max(point[axis] for point in points) - low[axis] or 1e-9 for axis in (0, 1)]
    scale = min(340 / span[0], 240 / span[1], 60.0 / _apart(where) if len(where) > 1 else 60.0)
    radius = max(1.2, min(7.0, 0.24 * scale * _apart(where))) if len(where) > 1 else 7.0

    def at(point: tuple[float, float]) -> tuple[int, int]:
        return round(10 + (point[0] - low[0]) * scale), round(10 + (span[1] - point[1] + low[1]) * scale)

    edges = _trails([(at(a), at(b)) for a, b in lines])
    body = [f'<path d="{edges}" fill="none" opacity=".45" stroke-width="{min(1.5, radius / 2):.2g}"/>'] if edges else []
    spots = [at(point) for point in where]
    if len(where) <= _EACH:
        body += [
            f'<circle cx="{x}" cy="{y}" r="{radius:.1f}" fill="currentColor" stroke="none">'
            f"<title>{escape(name)}</title></circle>"
            for (x, y), name in zip(spots, names, strict=True)
        ]
    else:
        dots = "".join(f"M{x} {y}h0" for x, y in spots)
        body.append(f'<path d="{dots}" stroke-width="{2 * radius:.1f}" stroke-linecap="round"/>')
    return _figure(body, span[0] * scale + 20, span[1] * scale + 20, words)


def _apart(where: Sequence[tuple[float, float]]) -> float:
    """Return about how far neighbours in a drawing are apart: the side of the square that each of them has."""
    spans = [max(p[axis] for p in where) - min(p[axis] for p in where) for axis in (0, 1)]
    if min(spans) <= 1e-9:
        return max(spans) / max(len(where) - 1, 1) or 1.0
    return math.sqrt(spans[0] * spans[1] / len(where))


def _trails(lines: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> str:
    """Return lines as the text of one path that goes on where it can, which takes a third of the room."""
    onward: dict[tuple[int, int], list[int]] = {}
    for number, line in enumerate(lines):
        for end in line:
            onward.setdefault(end, []).append(number)
    used, text = [False] * len(lines), []

    def unused(here: tuple[int, int]) -> int:
        """Return a line from here that was not drawn yet; -1 where none is left."""
        while onward[here]:
            number = onward[here].pop()
            if not used[number]:
                used[number] = True
                return number
        return -1

    for start in onward:
        while (first := unused(start)) >= 0:
            text.append(f"M{start[0]} {start[1]}")
            here, number = start, first
            while number >= 0:
                a, b = lines[number]
                there = b if a == here else a
                right, down = there[0] - here[0], there[1] - here[1]
                step = f"h{right}" if not down else f"v{down}" if not right else f"l{right} {down}".replace(" -", "-")
                text.append(step)
                here = there
                number = unused(here)
    return "".join(text)


def _figure(body: Sequence[str], wide: float, high: float, words: str) -> str:
    """Return a picture with its words below; lines have the colour of the text."""
    size = f'width="{wide:.0f}" height="{high:.0f}" viewBox="0 0 {wide:.0f} {high:.0f}"'
    look = f'fill="none" stroke="currentColor" font-size="11" role="img" aria-label="{escape(words)}"'
    return f"<figure><svg {size} {look}>{''.join(body)}</svg><figcaption>{escape(words)}</figcaption></figure>"
