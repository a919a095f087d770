"""Reproduction: run experiments and write rows, tables, pictures, verdicts and the report.

Cells run in parallel through joblib. The caller chooses the backend: ``with
conformesh.lab.sweeps.parallel.joblib_backend( "dask", 4) as jobs:`` around the call sends cells there; the workers must
find the data files under the same paths.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from conformesh import __version__
from conformesh.files.atomic_writes import write_file
from conformesh.kernels.ranks import conformal_rank, exact_alpha
from conformesh.lab.reproduction.cases import QUICK_DRAWS, SCORE_KINDS, Case, FigurePoint
from conformesh.lab.reproduction.curves import VARIANTS, Curves, published_points, select_curves, summarise_draws
from conformesh.lab.reproduction.experiments import EXPERIMENTS, Experiment
from conformesh.lab.reproduction.figures import draw_experiment
from conformesh.lab.reproduction.paper_methods import PAPER_METHODS
from conformesh.lab.reproduction.paper_scores import OutputSource, ScoreKind
from conformesh.lab.reproduction.report import ReportFacts, ReportSection, write_reproduction_report
from conformesh.lab.reproduction.verdicts import Verdict, judge_case
from conformesh.lab.sweeps.cells import OnPoint, run_cells
from conformesh.lab.sweeps.provenance import describe_machine

if TYPE_CHECKING:
    import polars as pl

PAPER_DRAWS = 10  # as in the paper
COMPARED_DRAWS = 40  # where points are published: enough that the verdict on them does not hang on the seed
DEFAULT_SEED = 0  # arbitrary: no other seed was tried
_DECIMALS = 1  # the code behind the figures rounds the mean set size of a draw to a tenth of a label
_DIGITS = 6  # significant digits of the tables, which are committed


@dataclass(frozen=True)
class ReproductionRequest:
    """Which versions of an experiment to run, with how many draws."""

    quick: bool = False
    draws: int | None = None
    seed: int = DEFAULT_SEED
    scores: tuple[ScoreKind, ...] = SCORE_KINDS

    def draws_of(self, experiment: Experiment) -> int:
        """Return how many draws an experiment has."""
        usual = COMPARED_DRAWS if published_points(experiment.name) else PAPER_DRAWS
        return self.draws or (QUICK_DRAWS if self.quick else usual)

    def cases(self, experiment: Experiment, sources: Mapping[str, OutputSource]) -> list[Case]:
        """Return the cases of an experiment: each variant with each kind of scores."""
        source, draws = sources[experiment.data], self.draws_of(experiment)
        return [
            Case(experiment.name, variant, scores, source, draws, self.seed, self.quick)
            for scores in self.scores
            for variant in VARIANTS
        ]


def compute_rows(
    experiments: Sequence[Experiment],
    sources: Mapping[str, OutputSource],
    request: ReproductionRequest,
    cache_folder: Path,
    jobs: int = 2,
    on_point: OnPoint | None = None,
) -> pl.DataFrame:
    """Compute the cells that are not in the cache yet, and return the rows of all points.

    A cell that several figures share runs once. `on_point` is called with the number of finished cells, of all cells,
    and the experiment of the last one.
    """
    import polars as pl

    points = [
        point
        for experiment in experiments
        for case in request.cases(experiment, sources)
        for point in experiment.grid(case)
    ]
    owners = {point.cell: point.case.experiment for point in reversed(points)}  # the first experiment with that cell
    cells = [*dict.fromkeys(point.cell for point in points)]
    frames = dict(zip(cells, run_cells(cells, cache_folder, jobs, on_point, owners.__getitem__), strict=True))
    return pl.concat([point_rows(point, frames[point.cell]) for point in points])


def point_rows(point: FigurePoint, found: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a point, one per draw and alpha, from those of its cell."""
    import polars as pl

    refused = found["refused"].drop_nulls()
    if len(refused):
        raise ValueError(f"{point.case.experiment}, line {point.line}: {refused[0]}")
    case, cell, outputs = point.case, point.cell, point.case.source.load()
    size = found["size"].to_numpy()
    if case.variant == "as-released" and cell.method.name in PAPER_METHODS:
        size = np.round(size, _DECIMALS)
    each = zip(found["scores"], found["alpha"], found["devices"], strict=True)
    required = pl.Series([conformal_rank(n, alpha, devices) for n, alpha, devices in each], dtype=pl.Int64)
    return found.select(
        pl.lit(point.line).alias("line"),
        _x_values(point, found).alias("x"),
        "alpha",
        "draw",
        pl.col("covered").alias("coverage"),
        pl.Series("size", size, pl.Float64),
        pl.lit(outputs.values.shape[1], pl.Int64).alias("classes"),
        "threshold",
        "epsilon",
        (pl.col("count") - required).alias("rank_margin"),  # ranks above the required one; negative if short
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


def _x_values(point: FigurePoint, found: pl.DataFrame) -> pl.Series:
    """Return the x of each row."""
    import polars as pl

    if point.x is None:
        return pl.Series([float(1 - exact_alpha(alpha)) for alpha in found["alpha"]], dtype=pl.Float64)
    return found["bits"] if point.x == "bits" else pl.Series([float(point.x)] * len(found), dtype=pl.Float64)


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The sections of the report, and the folder with all files."""

    sections: list[ReportSection]
    provenance: ReportFacts
    folder: Path

    @property
    def report(self) -> Path:
        """The HTML page."""
        return self.folder / "report.html"


def reproduce_experiments(
    experiments: Sequence[Experiment],
    sources: dict[str, OutputSource],
    folder: Path,
    request: ReproductionRequest | None = None,
    *,
    jobs: int = 2,
    on_point: Callable[[int, int, str], None] | None = None,
    on_drawing: Callable[[], None] | None = None,
) -> Reproduction:
    """Run experiments, and write rows (Parquet), tables (CSV), pictures (PDF, PNG), provenance (JSON) and a report.

    Finished cells are kept in `folder`/cache, so a run that was stopped continues where it was.
    """
    request = request or ReproductionRequest()
    started = time.perf_counter()
    counted: list[int] = []

    def count(done: int, total: int, name: str) -> None:
        counted[:] = [counted[0] if counted else done, total]  # finished at the start, and all
        if on_point is not None:
            on_point(done, total, name)

    folder.mkdir(parents=True, exist_ok=True)
    rows = compute_rows(experiments, sources, request, folder / "cache", jobs, count)
    rows.write_parquet(folder / "rows.parquet")
    summary = summarise_draws(rows)
    if on_drawing is not None:
        on_drawing()
    sections = [_section(experiment, summary, sources[experiment.data], request, folder) for experiment in experiments]
    _draw_all(sections, sources, jobs)
    used = {experiment.data for experiment in experiments}
    outputs = {name: sources[name].load() for name in sources if name in used}
    provenance = ReportFacts(
        command=_command(experiments, request),
        version=__version__,
        seed=request.seed,
        draws=_draws_in_words(experiments, request),
        machine=describe_machine(),
        seconds=round(time.perf_counter() - started, 1),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        data={n: f"{o.name}, sha256 {o.digest}{', synthetic' if o.synthetic else ''}" for n, o in outputs.items()},
        synthetic=any(o.synthetic for o in outputs.values()),
        computed=counted[1] - counted[0],
        points=counted[1],
    )
    write_file(folder / "provenance.json", json.dumps(asdict(provenance), indent=2) + "\n")
    found = Reproduction(sections, provenance, folder)
    write_reproduction_report(found.report, sections, provenance)
    return found


def _command(experiments: Sequence[Experiment], request: ReproductionRequest) -> str:
    """Return the command that gives these results, without file names."""
    names = [experiment.name for experiment in experiments]
    parts = ["conformesh reproduce", "all" if names == [*EXPERIMENTS] else " ".join(names)]
    parts += ["--quick"] if request.quick else []
    parts += [f"--draws {request.draws}"] if request.draws else []
    parts += [f"--scores {request.scores[0]}"] if len(request.scores) == 1 else []
    return " ".join([*parts, f"--seed {request.seed}"])


def _draws_in_words(experiments: Sequence[Experiment], request: ReproductionRequest) -> str:
    """Return how many draws each experiment has, as in "10; 40 for q-dcp-alpha, h-dcp-alpha"."""
    names: dict[int, list[str]] = {}
    for experiment in experiments:
        names.setdefault(request.draws_of(experiment), []).append(experiment.name)
    usual = max(names, key=lambda number: len(names[number]))
    others = [f"{number} for {', '.join(named)}" for number, named in names.items() if number != usual]
    return "; ".join([str(usual), *others])


def _section(
    experiment: Experiment, summary: pl.DataFrame, source: OutputSource, request: ReproductionRequest, folder: Path
) -> ReportSection:
    import polars as pl
    import polars.selectors as cs

    outputs = source.load()
    rows = summary.filter(pl.col("experiment") == experiment.name)
    rows.with_columns(cs.float().round_sig_figs(_DIGITS)).write_csv(folder / f"{experiment.name}.csv")
    pictures: dict[str, Path] = {scores: folder / f"{experiment.name}-{scores}.png" for scores in request.scores}
    curves: dict[tuple[str, str], Curves] = {}
    verdicts: dict[tuple[str, str], Verdict] = {}
    for scores in request.scores:
        for variant in VARIANTS:
            curves[scores, variant] = select_curves(summary, experiment.name, variant, scores)
        for variant in VARIANTS:
            verdicts[scores, variant] = judge_case(
                experiment,
                variant,
                scores,
                curves[scores, variant],
                not outputs.synthetic,
                released=curves[scores, "as-released"],
            )
    return ReportSection(experiment, outputs.name, pictures, curves, verdicts)


def _draw_all(sections: Sequence[ReportSection], sources: dict[str, OutputSource], jobs: int) -> None:
    """Draw every picture, several at once: a picture takes about a second."""
    from joblib import Parallel, delayed

    Parallel(n_jobs=jobs)(
        delayed(draw_experiment)(
            section.experiment,
            scores,
            {variant: section.curves[scores, variant] for variant in VARIANTS},
            section.data,
            sources[section.experiment.data].load().synthetic,
            picture.with_suffix(""),
        )
        for section in sections
        for scores, picture in section.pictures.items()
    )
