"""From a request to results on disk: rows, tables, pictures, verdicts and the report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from conformesh import __version__
from conformesh.files.files import write_file
from conformesh.lab.reproduction import EXPERIMENTS
from conformesh.lab.reproduction.experiment import VARIANTS, Experiment
from conformesh.lab.reproduction.figures import draw
from conformesh.lab.reproduction.report import Provenance, Section, write_report
from conformesh.lab.reproduction.results import Curves, curves_of, summarise
from conformesh.lab.reproduction.rows import RowRequest, run
from conformesh.lab.reproduction.settings import ScoreSource
from conformesh.lab.reproduction.verdicts import Verdict, judge
from conformesh.lab.sweeps.provenance import machine

if TYPE_CHECKING:
    import polars as pl

_DIGITS = 6  # of the committed tables


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What came out: the sections of the report, and where everything is."""

    sections: list[Section]
    provenance: Provenance
    folder: Path

    @property
    def report(self) -> Path:
        """The HTML page."""
        return self.folder / "report.html"


def reproduce(
    experiments: Sequence[Experiment],
    sources: dict[str, ScoreSource],
    folder: Path,
    request: RowRequest | None = None,
    *,
    jobs: int = 2,
    on_point: Callable[[int, int, str], None] | None = None,
    on_drawing: Callable[[], None] | None = None,
) -> Reproduction:
    """Run experiments, and write rows (Parquet), tables (CSV), pictures (PDF, PNG), provenance (JSON) and a report.

    Finished cells are kept in `folder`/cache: a run that was stopped goes on where it was.
    """
    request = request or RowRequest()
    started = time.perf_counter()
    seen: list[int] = []

    def count(done: int, total: int, name: str) -> None:
        seen[:] = [seen[0] if seen else done, total]
        if on_point is not None:
            on_point(done, total, name)

    folder.mkdir(parents=True, exist_ok=True)
    rows = run(experiments, sources, request, folder / "cache", jobs, count)
    rows.write_parquet(folder / "rows.parquet")
    summary = summarise(rows)
    if on_drawing is not None:
        on_drawing()
    sections = [_section(experiment, summary, sources[experiment.data], request, folder) for experiment in experiments]
    _draw_all(sections, sources, jobs)
    used = {experiment.data for experiment in experiments}
    outputs = {name: sources[name].load() for name in sources if name in used}
    provenance = Provenance(
        command=_command(experiments, request),
        version=__version__,
        seed=request.seed,
        draws=_draws_in_words(experiments, request),
        machine=machine(),
        seconds=round(time.perf_counter() - started, 1),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        data={n: f"{o.name}, sha256 {o.digest}{', synthetic' if o.synthetic else ''}" for n, o in outputs.items()},
        synthetic=any(o.synthetic for o in outputs.values()),
        computed=seen[1] - seen[0],
        points=seen[1],
    )
    write_file(folder / "provenance.json", json.dumps(asdict(provenance), indent=2) + "\n")
    found = Reproduction(sections, provenance, folder)
    write_report(found.report, sections, provenance)
    return found


def _command(experiments: Sequence[Experiment], request: RowRequest) -> str:
    """Return the command that gives these results, but for where files are."""
    names = [experiment.name for experiment in experiments]
    parts = ["conformesh reproduce", "all" if names == [*EXPERIMENTS] else " ".join(names)]
    parts += ["--quick"] if request.quick else []
    parts += [f"--draws {request.draws}"] if request.draws else []
    parts += [f"--scores {request.scores[0]}"] if len(request.scores) == 1 else []
    return " ".join([*parts, f"--seed {request.seed}"])


def _draws_in_words(experiments: Sequence[Experiment], request: RowRequest) -> str:
    """Return how many draws each experiment has, as in "10; 40 for q-dcp-alpha, h-dcp-alpha"."""
    names: dict[int, list[str]] = {}
    for experiment in experiments:
        names.setdefault(request.draws_of(experiment), []).append(experiment.name)
    usual = max(names, key=lambda number: len(names[number]))
    others = [f"{number} for {', '.join(mine)}" for number, mine in names.items() if number != usual]
    return "; ".join([str(usual), *others])


def _section(
    experiment: Experiment, summary: pl.DataFrame, source: ScoreSource, request: RowRequest, folder: Path
) -> Section:
    import polars as pl
    import polars.selectors as cs

    outputs = source.load()
    mine = summary.filter(pl.col("experiment") == experiment.name)
    mine.with_columns(cs.float().round_sig_figs(_DIGITS)).write_csv(folder / f"{experiment.name}.csv")
    pictures: dict[str, Path] = {scores: folder / f"{experiment.name}-{scores}.png" for scores in request.scores}
    curves: dict[tuple[str, str], Curves] = {}
    verdicts: dict[tuple[str, str], Verdict] = {}
    for scores in request.scores:
        for variant in VARIANTS:
            curves[scores, variant] = curves_of(summary, experiment.name, variant, scores)
        for variant in VARIANTS:
            verdicts[scores, variant] = judge(
                experiment,
                variant,
                scores,
                curves[scores, variant],
                not outputs.synthetic,
                released=curves[scores, "as-released"],
            )
    return Section(experiment, outputs.name, pictures, curves, verdicts)


def _draw_all(sections: Sequence[Section], sources: dict[str, ScoreSource], jobs: int) -> None:
    """Draw every picture, several at once: a picture takes about a second."""
    from joblib import Parallel, delayed

    Parallel(n_jobs=jobs)(
        delayed(draw)(
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
