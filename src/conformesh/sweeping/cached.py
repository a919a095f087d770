"""From points to rows: every finished point is a Parquet file, so that a run can stop and go on.

Experiments and sweeps share this: they say what a point is, where its rows belong and which facts stand beside them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformesh.sweeping.parallel import in_parallel

if TYPE_CHECKING:
    import polars as pl

Rows = list[dict[str, Any]]
OnPoint = Callable[[int, int, str], None]  # how many are done, of how many, and the name of the last one ("" at first)


@dataclass(frozen=True)
class Job:
    """One point to compute.

    Attributes
    ----------
    file
        Where its rows are kept; the name says all that decides them.
    name
        What a progress bar calls it.
    work
        Computes the rows, in any process.
    facts
        Columns that are the same in every row.
    """

    file: Path
    name: str
    work: Callable[[], Rows]
    facts: Mapping[str, Any] = field(default_factory=dict)


def run_jobs(
    jobs: Sequence[Job], schema: Mapping[str, Any], workers: int = 2, on_point: OnPoint | None = None
) -> pl.DataFrame:
    """Compute what has no file yet, and return all rows in the order of the jobs.

    `schema` gives the types of columns whose values may be missing.
    """
    import polars as pl

    missing = [job for job in jobs if not job.file.exists()]
    done = len(jobs) - len(missing)
    if on_point is not None:
        on_point(done, len(jobs), "")
    for number, rows in in_parallel([job.work for job in missing], workers):
        _write(missing[number], rows, schema)
        done += 1
        if on_point is not None:
            on_point(done, len(jobs), missing[number].name)
    return pl.concat([pl.read_parquet(job.file) for job in jobs])


def _write(job: Job, rows: Rows, schema: Mapping[str, Any]) -> None:
    """Write a point's rows with where they come from; a file is there whole or not at all."""
    import polars as pl

    made = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {name: pl.lit(value) for name, value in (*job.facts.items(), ("made", made))}
    frame = pl.DataFrame(rows, schema_overrides=schema).with_columns(**facts)
    job.file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = job.file.with_suffix(f".{os.getpid()}.part")
    frame.write_parquet(unfinished)
    unfinished.replace(job.file)
