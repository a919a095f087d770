"""From cells to rows: every finished cell is a Parquet file, so that a run can stop and go on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformesh import __version__
from conformesh.lab.sweeps.cells import SweepCell, compute, schema
from conformesh.lab.sweeps.parallel import in_parallel
from conformesh.lab.sweeps.provenance import machine

if TYPE_CHECKING:
    import polars as pl

OnPoint = Callable[[int, int, str], None]  # how many are done, of how many, and the name of the last one ("" at first)


def file_of(cell: SweepCell, folder: Path) -> Path:
    """Return where the rows of a cell are kept; the name says all that decides them."""
    return folder / f"{cell.key()}.parquet"


def run_cells(
    cells: Sequence[SweepCell],
    folder: Path,
    workers: int = 2,
    on_point: OnPoint | None = None,
    name_of: Callable[[SweepCell], str] = str,
) -> list[pl.DataFrame]:
    """Compute the cells that have no file in `folder` yet, and return the rows of every cell.

    `name_of` says what a progress bar calls a cell.
    """
    import polars as pl

    files = [file_of(cell, folder) for cell in cells]
    missing = [number for number, file in enumerate(files) if not file.exists()]
    done = len(cells) - len(missing)
    if on_point is not None:
        on_point(done, len(cells), "")
    for task, rows in in_parallel([partial(compute, cells[number]) for number in missing], workers):
        number = missing[task]
        _write(files[number], rows)
        done += 1
        if on_point is not None:
            on_point(done, len(cells), name_of(cells[number]))
    return [pl.read_parquet(file) for file in files]


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write a cell's rows with where they come from; a file is there whole or not at all."""
    import polars as pl

    made = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {"version": __version__, "machine": machine(), "made": made}
    frame = pl.DataFrame(rows, schema_overrides=schema()).with_columns(**{name: pl.lit(v) for name, v in facts.items()})
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}.part")
    frame.write_parquet(unfinished)
    unfinished.replace(file)
