"""Curves written by hand, for checks whose answer is known beforehand."""

import polars as pl

from conformesh.lab.reproduction.curves import Curves
from conformesh.lab.reproduction.reproduction import point_rows
from conformesh.lab.sweeps.cells import compute_cell, row_types

CASE = {"experiment": "q-dcp-alpha", "variant": "as-written", "scores": "logits"}


def value(coverage=0.9, size=10.0, **more):
    """A point of a line: what it is not told is unremarkable."""
    usual = {"coverage_std": 0.0, "size_std": 0.0, "epsilon": None, "rank_short": 0.0, "certificate": "none"}
    cost = {"rounds": 1, "bits": 64.0, "gap": 0.5, "draws": 10, "alpha": 0.1, "classes": 100}
    return {"coverage": coverage, "size": size, **usual, **cost, **more}


def curves(lines, **case):
    """Curves from {line: {x: value(...)}}."""
    rows = [
        {**CASE, **case, "line": line, "x": float(x), **point}
        for line, points in lines.items()
        for x, point in points.items()
    ]
    return Curves(pl.DataFrame(rows, schema_overrides={"epsilon": pl.Float64}))


def sizes(**lines):
    """Curves that differ in their sizes alone, at x = 1, 2, ...; an underscore in a name stands for a hyphen."""
    return curves(
        {
            line.replace("_", "-"): {x: value(size=float(size)) for x, size in enumerate(given, 1)}
            for line, given in lines.items()
        }
    )


def rows_at(point):
    """The rows of a point, computed in this process."""
    facts = {"version": pl.lit("0"), "machine": pl.lit("here"), "made": pl.lit("now")}
    frame = pl.DataFrame(compute_cell(point.cell), schema_overrides=row_types())
    return point_rows(point, frame.with_columns(**facts)).to_dicts()
