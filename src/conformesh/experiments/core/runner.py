"""The runner: from points to rows. Every finished point is a Parquet file, so that a run can stop and go on.

Points run in parallel through joblib. Its backend is the caller's choice: ``with joblib.parallel_config("dask"):`` (or
ray) around `run` sends points there; the workers must then find the data files under the same paths.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformesh._version import __version__
from conformesh.experiments.core.experiment import QUICK_DRAWS, Case, Experiment
from conformesh.experiments.core.points import VARIANTS, Point, compute
from conformesh.experiments.core.settings import Scores, Source

if TYPE_CHECKING:
    import polars as pl

SCORES: tuple[Scores, ...] = ("logits", "confidences")
FULL_DRAWS = 10
AT_ONCE = 4  # points per worker between two writes, where a backend returns nothing before all are done
SEED = 9  # ten draws are noisy: see docs/reproduction.md for how other seeds compare with the published points


@dataclass(frozen=True)
class Request:
    """What to run: which versions of an experiment, with how many draws."""

    quick: bool = False
    draws: int | None = None
    seed: int = SEED
    scores: tuple[Scores, ...] = SCORES

    def cases(self, experiment: Experiment) -> list[Case]:
        """Return the cases of an experiment: each variant with each kind of scores."""
        draws = self.draws or (QUICK_DRAWS if self.quick else FULL_DRAWS)
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
    on_point: Callable[[int, int, str], None] | None = None,
) -> pl.DataFrame:
    """Compute what is not in the cache yet, and return all rows.

    `on_point` hears how many points are done, of how many, and the last one's experiment.
    """
    import polars as pl

    points = [p for experiment in experiments for case in request.cases(experiment) for p in experiment.points(case)]
    files = [cache_folder / p.experiment / f"{p.key(sources[p.setting.data].load().digest)}.parquet" for p in points]
    missing = [i for i, file in enumerate(files) if not file.exists()]
    done = len(files) - len(missing)
    if on_point is not None:
        on_point(done, len(files), "")
    for i, rows in _computed(points, missing, sources, jobs):
        _write(files[i], points[i], rows, sources[points[i].setting.data])
        done += 1
        if on_point is not None:
            on_point(done, len(files), points[i].experiment)
    return pl.concat([pl.read_parquet(file) for file in files])


def _computed(
    points: Sequence[Point], missing: Sequence[int], sources: dict[str, Source], jobs: int
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the number of each missing point with its rows as soon as it is done, in any order."""
    from joblib import Parallel, delayed

    if jobs == 1 or len(missing) < 2:
        yield from (_numbered(i, points[i], sources[points[i].setting.data]) for i in missing)
        return
    tasks = [delayed(_numbered)(i, points[i], sources[points[i].setting.data]) for i in missing]
    try:
        parallel = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
    except ValueError:  # a backend that hands results back all at once, as ray's: give it a few points at a time
        for start in range(0, len(tasks), AT_ONCE * jobs):
            yield from Parallel(n_jobs=jobs, batch_size=1)(tasks[start : start + AT_ONCE * jobs])
        return
    yield from parallel(tasks)


def _numbered(number: int, point: Point, source: Source) -> tuple[int, list[dict[str, Any]]]:
    return number, compute(point, source)


def _write(file: Path, point: Point, rows: list[dict[str, Any]], source: Source) -> None:
    """Write a point's rows with where they come from; a file is there whole or not at all."""
    import polars as pl

    outputs = source.load()
    frame = pl.DataFrame(rows, schema_overrides={"epsilon": pl.Float64}).with_columns(
        experiment=pl.lit(point.experiment),
        variant=pl.lit(point.variant),
        scores=pl.lit(point.setting.scores),
        method=pl.lit(point.method),
        topology=pl.lit(point.topology),
        devices=pl.lit(point.setting.devices),
        seed=pl.lit(point.setting.seed),
        data=pl.lit(outputs.name),
        data_digest=pl.lit(outputs.digest),
        synthetic=pl.lit(outputs.synthetic),
        version=pl.lit(__version__),
        machine=pl.lit(machine()),
        made=pl.lit(datetime.now(UTC).isoformat(timespec="seconds")),
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}.part")
    frame.write_parquet(unfinished)
    unfinished.replace(file)


@cache
def machine() -> str:
    """Return what computed the results: system, processor, cores and Python."""
    return (
        f"{platform.system()} {platform.machine()}, {_processor()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}"
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"
