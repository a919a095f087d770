"""The published points, where they are known: Figures 2 and 4, read off their vector graphics, and Table 1.

Set sizes are per class, as printed in the figures; the standard deviations are those behind the bands, which are
mean +- 1.96 std / sqrt(10).
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from conformesh.lab.reproduction.results import BAND

_DRAWS = 10


@dataclass(frozen=True)
class Published:
    """One published point, a mean over draws; sizes are shares of all classes."""

    line: str
    x: float
    coverage: float
    coverage_std: float
    size: float
    size_std: float
    draws: int = _DRAWS

    @property
    def coverage_half(self) -> float:
        """Half the width of the published band around the coverage."""
        return BAND * self.coverage_std / math.sqrt(self.draws)

    @property
    def size_half(self) -> float:
        """Half the width of the published band around the size."""
        return BAND * self.size_std / math.sqrt(self.draws)


def published(experiment: str) -> list[Published]:
    """Return the published points of an experiment; none where only the picture was printed."""
    return _table().get(experiment, [])


def known_points() -> int:
    """Return how many published points are known, over all experiments."""
    return sum(len(points) for points in _table().values())


@cache
def _table() -> dict[str, list[Published]]:
    text = files("conformesh.lab.reproduction").joinpath("published.csv").read_text(encoding="utf-8")
    found: dict[str, list[Published]] = {}
    for row in csv.DictReader(text.splitlines()):
        names = ("x", "coverage", "coverage_std", "size_per_class", "size_per_class_std")
        x, coverage, coverage_std, size, size_std = (float(row[name]) for name in names)
        point = Published(row["line"], x, coverage, coverage_std, size, size_std)
        found.setdefault(row["experiment"], []).append(point)
    return found
