"""The runner: from the points of experiments to rows. Finished points are kept, so that a run can stop and go on.

Points run in parallel through joblib. Its backend is the caller's choice: ``with conformesh.sweeping.parallel.backend(
"dask", 4) as jobs:`` around `run` sends points there; the workers must then find the data files under the same paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformesh._version import __version__
from conformesh.experiments.core.experiment import QUICK_DRAWS, Case, Experiment
from conformesh.experiments.core.points import VARIANTS, Point, compute
from conformesh.experiments.core.published import published
from conformesh.experiments.core.settings import Scores, Source
from conformesh.sweeping.cached import Job, OnPoint, run_jobs
from conformesh.sweeping.provenance import machine

if TYPE_CHECKING:
    import polars as pl

SCORES: tuple[Scores, ...] = ("logits", "confidences")
FULL_DRAWS = 10  # as in the paper
COMPARED_DRAWS = 40  # where points are published: enough that the verdict on them does not hang on the seed
SEED = 0  # unchosen


@dataclass(frozen=True)
class Request:
    """What to run: which versions of an experiment, with how many draws."""

    quick: bool = False
    draws: int | None = None
    seed: int = SEED
    scores: tuple[Scores, ...] = SCORES

    def cases(self, experiment: Experiment) -> list[Case]:
        """Return the cases of an experiment: each variant with each kind of scores."""
        usual = COMPARED_DRAWS if published(experiment.name) else FULL_DRAWS
        draws = self.draws or (QUICK_DRAWS if self.quick else usual)
        return [
            Case(experiment.name, variant, scores, draws, self.seed, self.quick)
            for scores in self.scores
            for variant in VARIANTS
        ]


def run(
    experiments: Sequence[Experiment],
    sources: dict[str, Source],
    request: Request,
    cache_folder: Path,
    jobs: int = 2,
    on_point: OnPoint | None = None,
) -> pl.DataFrame:
    """Compute what is not in the cache yet, and return all rows.

    `on_point` hears how many points are done, of how many, and the last one's experiment.
    """
    import polars as pl

    points = [p for experiment in experiments for case in request.cases(experiment) for p in experiment.points(case)]
    work = [_job(point, sources[point.setting.data], cache_folder) for point in points]
    return run_jobs(work, {"epsilon": pl.Float64}, jobs, on_point)


def _job(point: Point, source: Source, cache_folder: Path) -> Job:
    outputs = source.load()
    facts: dict[str, Any] = {
        "experiment": point.experiment,
        "variant": point.variant,
        "scores": point.setting.scores,
        "method": point.method,
        "topology": point.topology,
        "devices": point.setting.devices,
        "seed": point.setting.seed,
        "data": outputs.name,
        "data_digest": outputs.digest,
        "synthetic": outputs.synthetic,
        "version": __version__,
        "machine": machine(),
    }
    file = cache_folder / point.experiment / f"{point.key(outputs.digest)}.parquet"
    return Job(file, point.experiment, partial(compute, point, source), facts)
