"""One look per line, the same in every figure: colour, marker and dash, told apart in grey too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Look:
    """How a line is drawn."""

    colour: str
    marker: str
    dash: Any = "-"
    filled: bool = True


LOOKS: dict[str, _Look] = {  # from dark to light along the connectivity, so that grey keeps the order
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
_WIDTHS = {16: ("v", (0, (1, 1))), 32: ("o", (0, (5, 1.5))), 64: ("s", "-")}
REFERENCES = ("CP", "FCP", "E-DCP")


def look_of(line: str) -> _Look:
    """Return the look of a line: by its name, or by family and width as in "H-DCP, f = 16"."""
    if line in LOOKS:
        return LOOKS[line]
    family, _, width = line.partition(", f = ")
    if family in _FAMILIES and width:
        marker, dash = _WIDTHS[int(width)]
        return _Look(_FAMILIES[family], marker, dash)
    return _Look("#333333", "o")
