"""Curves of a figure: ours, as means over draws with their bands, and the published points where they are known.

The published points are Figures 2 and 4, read off their vector graphics, and Table 1. Set sizes are per class, as
printed in the figures; the standard deviations are those behind the bands, which are mean +- 1.96 std / sqrt(10).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import polars as pl

Variant = Literal["as-written", "as-released"]
VARIANTS: tuple[Variant, ...] = ("as-written", "as-released")
CURVE_TOPOLOGIES = ("chain", "cycle", "star", "torus", "complete")  # graphs of the figures, the densest last
REFERENCES = ("CP", "FCP", "E-DCP")  # lines that every figure has, besides those of the paper
BAND = 1.96  # the published bands are mean +- 1.96 std / sqrt(draws)


@dataclass(frozen=True)
class DrawMeans:
    """The mean over draws, and the standard deviation behind it, of one point of a curve."""

    coverage: float
    coverage_std: float
    size: float
    size_std: float
    draws: int

    @property
    def coverage_half(self) -> float:
        """Half the width of the band around the coverage."""
        return BAND * self.coverage_std / math.sqrt(self.draws)

    @property
    def size_half(self) -> float:
        """Half the width of the band around the size."""
        return BAND * self.size_std / math.sqrt(self.draws)


class Curves:
    """The summary of one experiment in one variant with one kind of scores."""

    def __init__(self, summary: pl.DataFrame) -> None:
        self.summary = summary
        self._at: dict[tuple[str, float], dict[str, Any]] = {
            (row["line"], row["x"]): row for row in summary.iter_rows(named=True)
        }

    def lines(self) -> list[str]:
        """Return the lines, in order."""
        return list(dict.fromkeys(line for line, _ in self._at))

    def xs(self, line: str) -> list[float]:
        """Return where a line has points, ascending."""
        return sorted(x for name, x in self._at if name == line)

    def at(self, line: str, x: float | None = None) -> DrawMeans:
        """Return a point of a line; without x the last one."""
        row = self.row(line, x)
        return DrawMeans(row["coverage"], row["coverage_std"], row["size"], row["size_std"], row["draws"])

    def row(self, line: str, x: float | None = None) -> dict[str, Any]:
        """Return a point with everything known about it."""
        where = self.xs(line)[-1] if x is None else x
        return self._at[line, where]

    def values(self, line: str) -> list[DrawMeans]:
        """Return a line's points, x ascending."""
        return [self.at(line, x) for x in self.xs(line)]

    def __iter__(self) -> Iterator[tuple[str, float, DrawMeans]]:
        for line, x in self._at:
            yield line, x, self.at(line, x)


# Columns that identify a case in the summary.
_CASE = ("experiment", "variant", "scores")


def summarise_draws(rows: pl.DataFrame) -> pl.DataFrame:
    """Return means and standard deviations over draws, a row per point of each line, in the order of the rows."""
    import polars as pl

    def spread(column: str) -> pl.Expr:
        return pl.col(column).std(ddof=0).fill_null(0.0).alias(f"{column}_std")

    return rows.group_by([*_CASE, "line", "x"], maintain_order=True).agg(
        pl.col("coverage").mean(),
        spread("coverage"),
        pl.col("size").mean(),
        spread("size"),
        pl.col("epsilon").mean(),
        (pl.col("rank_margin") < 0).mean().alias("rank_short"),
        pl.col("certificate").first(),
        pl.col("rounds").first(),
        pl.col("bits").mean(),
        pl.col("gap").mean(),
        pl.len().alias("draws"),
        pl.col("alpha").first(),
        pl.col("classes").first(),
    )


def select_curves(summary: pl.DataFrame, experiment: str, variant: str, scores: str) -> Curves:
    """Return the curves of one case."""
    import polars as pl

    return Curves(
        summary.filter(
            (pl.col("experiment") == experiment) & (pl.col("variant") == variant) & (pl.col("scores") == scores)
        )
    )


_DRAWS = 10  # draws behind every published point, as in the paper


@dataclass(frozen=True, kw_only=True)
class PublishedPoint(DrawMeans):
    """One published point; sizes are shares of all classes."""

    line: str
    x: float
    draws: int = _DRAWS


def published_points(experiment: str) -> list[PublishedPoint]:
    """Return the published points of an experiment; none where only the picture was printed."""
    return _table().get(experiment, [])


def count_published_points() -> int:
    """Return how many published points are known, over all experiments."""
    return sum(len(points) for points in _table().values())


@cache
def _table() -> dict[str, list[PublishedPoint]]:
    text = files("conformesh.lab.reproduction").joinpath("published.csv").read_text(encoding="utf-8")
    found: dict[str, list[PublishedPoint]] = {}
    for row in csv.DictReader(text.splitlines()):
        names = ("x", "coverage", "coverage_std", "size_per_class", "size_per_class_std")
        x, coverage, coverage_std, size, size_std = (float(row[name]) for name in names)
        point = PublishedPoint(coverage, coverage_std, size, size_std, line=row["line"], x=x)
        found.setdefault(row["experiment"], []).append(point)
    return found
