"""The rows of experiments: which cases to run, and what the rows of cells say about points of figures.

Cells run in parallel through joblib. Its backend is the caller's choice: ``with conformesh.lab.sweeps.parallel.backend(
"dask", 4) as jobs:`` around `run` sends cells there; the workers must then find the data files under the same paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from conformesh.kernels.ranks import conformal_rank, exact_alpha
from conformesh.lab.reproduction.conventions import CONVENTIONS
from conformesh.lab.reproduction.experiment import KINDS, QUICK_DRAWS, VARIANTS, Case, Experiment, Point
from conformesh.lab.reproduction.published import published
from conformesh.lab.reproduction.settings import Kind, ScoreSource
from conformesh.lab.sweeps.cache import OnPoint, run_cells

if TYPE_CHECKING:
    import polars as pl

FULL_DRAWS = 10  # as in the paper
COMPARED_DRAWS = 40  # where points are published: enough that the verdict on them does not hang on the seed
SEED = 0  # unchosen
_DECIMALS = 1  # the code behind the figures rounds the mean set size of a draw to a tenth of a label


@dataclass(frozen=True)
class RowRequest:
    """What to run: which versions of an experiment, with how many draws."""

    quick: bool = False
    draws: int | None = None
    seed: int = SEED
    scores: tuple[Kind, ...] = KINDS

    def draws_of(self, experiment: Experiment) -> int:
        """Return how many draws an experiment has."""
        usual = COMPARED_DRAWS if published(experiment.name) else FULL_DRAWS
        return self.draws or (QUICK_DRAWS if self.quick else usual)

    def cases(self, experiment: Experiment, sources: Mapping[str, ScoreSource]) -> list[Case]:
        """Return the cases of an experiment: each variant with each kind of scores."""
        source, draws = sources[experiment.data], self.draws_of(experiment)
        return [
            Case(experiment.name, variant, scores, source, draws, self.seed, self.quick)
            for scores in self.scores
            for variant in VARIANTS
        ]


def run(
    experiments: Sequence[Experiment],
    sources: Mapping[str, ScoreSource],
    request: RowRequest,
    cache_folder: Path,
    jobs: int = 2,
    on_point: OnPoint | None = None,
) -> pl.DataFrame:
    """Compute the cells that are not in the cache yet, and return the rows of all points.

    A cell that several figures have runs once. `on_point` hears how many cells are done, of how many, and the last
    one's experiment.
    """
    import polars as pl

    points = [
        point
        for experiment in experiments
        for case in request.cases(experiment, sources)
        for point in experiment.grid(case)
    ]
    owners = {point.cell: point.case.experiment for point in reversed(points)}  # the first that has the cell
    cells = [*dict.fromkeys(point.cell for point in points)]
    frames = dict(zip(cells, run_cells(cells, cache_folder, jobs, on_point, owners.__getitem__), strict=True))
    return pl.concat([rows_of(point, frames[point.cell]) for point in points])


def rows_of(point: Point, found: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a point, one per draw and alpha, from those of its cell."""
    import polars as pl

    refused = found["refused"].drop_nulls()
    if len(refused):
        raise ValueError(f"{point.case.experiment}, line {point.line}: {refused[0]}")
    case, cell, outputs = point.case, point.cell, point.case.source.load()
    size = found["size"].to_numpy()
    if case.variant == "as-released" and cell.method.name in CONVENTIONS:
        size = np.round(size, _DECIMALS)
    each = zip(found["scores"], found["alpha"], found["devices"], strict=True)
    required = pl.Series([conformal_rank(n, alpha, devices) for n, alpha, devices in each], dtype=pl.Int64)
    return found.select(
        pl.lit(point.line).alias("line"),
        _places(point, found).alias("x"),
        "alpha",
        "draw",
        pl.col("covered").alias("coverage"),
        pl.Series("size", size, pl.Float64),
        pl.lit(outputs.values.shape[1], pl.Int64).alias("classes"),
        "threshold",
        "epsilon",
        (pl.col("count") - required).alias("rank_margin"),  # by how much the lowest threshold's rank suffices
        *("certificate", "rounds", "bits", "gap"),
        pl.lit(case.experiment).alias("experiment"),
        pl.lit(case.variant).alias("variant"),
        pl.lit(case.scores).alias("scores"),
        "method",
        pl.lit(cell.network.topology).alias("topology"),
        "devices",
        pl.lit(case.seed, pl.Int64).alias("seed"),
        pl.lit(outputs.name).alias("data"),
        pl.lit(outputs.digest).alias("data_digest"),
        pl.lit(outputs.synthetic).alias("synthetic"),
        *("version", "machine", "made"),
    )


def _places(point: Point, found: pl.DataFrame) -> pl.Series:
    """Return where the rows stand on the axis."""
    import polars as pl

    if point.x is None:
        return pl.Series([float(1 - exact_alpha(alpha)) for alpha in found["alpha"]], dtype=pl.Float64)
    return found["bits"] if point.x == "bits" else pl.Series([float(point.x)] * len(found), dtype=pl.Float64)
