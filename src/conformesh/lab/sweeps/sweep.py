"""`sweep`: run a configuration; write rows, a summary and their provenance."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformesh import __version__
from conformesh.common.progress import Progress
from conformesh.files.atomic_writes import write_file
from conformesh.lab.sweeps.cells import OnPoint, SweepCell, cell_file, digest_cell_code, run_cells
from conformesh.lab.sweeps.config import SweepConfig, read_sweep_config
from conformesh.lab.sweeps.parallel import joblib_backend
from conformesh.lab.sweeps.provenance import describe_machine
from conformesh.lab.sweeps.sources import build_cell_network, digest_source_file

if TYPE_CHECKING:
    import polars as pl

# Columns that identify a cell of the grid; the summary averages over what remains, the draws.
_GRID = ("network", "devices", "graph_seed", "redraw", "topology_options", "method", "options", "alpha")
_DIGITS = 6  # significant digits in the summary; rows keep all


def sweep(
    config: str | os.PathLike[str] | Mapping[str, Any] | SweepConfig,
    out: str | os.PathLike[str] | None = None,
    *,
    jobs: int | None = None,
    backend: str = "loky",
    address: str | None = None,
    on_point: OnPoint | None = None,
    progress: bool = False,
) -> pl.DataFrame:
    """Calibrate over many networks, methods, alphas and draws, and return a row for each combination.

    Parameters
    ----------
    config
        A TOML file, or the same as a dictionary: see the page on sweeps.
    out
        A folder for ``rows.parquet``, ``summary.csv``, ``provenance.json`` and finished cells: a stopped sweep goes on
        from there and loses at most the cells under way. Without a folder nothing is kept.
    jobs
        Cells that run at once; by default one for each core.
    backend, address
        ``loky`` for processes on this machine, ``dask`` or ``ray``; the address of a cluster that runs already.
    on_point
        Called with the number of finished cells, of all cells, and the name of the last one.
    progress
        Show a bar, in a terminal or a notebook.

    Examples
    --------
    >>> rows = sweep({
    ...     "scores": {"source": "synthetic", "per_device": 50},
    ...     "networks": [{"topology": "torus", "devices": 20}],
    ...     "methods": [{"name": "e-dcp"}],
    ... }, jobs=1)
    >>> rows["required_rank"].to_list(), rows["counted_rank"].to_list()
    ([901], [901])
    """
    import polars as pl

    request = config if isinstance(config, SweepConfig) else read_sweep_config(config)
    workers = (os.cpu_count() or 1) if jobs is None else jobs
    if workers < 1:
        raise ValueError(f"jobs must be at least 1, got {workers}")
    cells = check_and_lay_out(request)
    started, computed = time.perf_counter(), [0]

    def count(done: int, total: int, name: str) -> None:
        if not name:
            computed[0] = total - done
        bar.on_point(done, total, name)
        if on_point is not None:
            on_point(done, total, name)

    with ExitStack() as stack:
        bar = stack.enter_context(Progress("preparing", unit="cells", shown=progress))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()) if out is None else out)
        missing = sum(not cell_file(cell, folder / "cells").exists() for cell in cells)
        if (workers > 1 or backend != "loky") and missing > 1:
            workers = stack.enter_context(joblib_backend(backend, workers, address))
        rows = pl.concat(run_cells(cells, folder / "cells", workers, count))
        if out is not None:
            rows.write_parquet(folder / "rows.parquet")
            summarise_rows(rows).write_csv(folder / "summary.csv")
            facts = {"backend": backend, "seconds": str(round(time.perf_counter() - started, 1))}
            _write_provenance(folder, request, len(cells), computed[0], facts)
    return rows


def lay_out_cells(config: SweepConfig) -> list[SweepCell]:
    """Lay out the grid: networks, then methods, then draws, in blocks that share a run where results allow it."""
    cells = []
    for network in config.networks:
        for method in config.methods:
            together = method.can_share_run(config.record)
            size = config.batch if together and not network.redraw else 1
            for start in range(0, config.draws, size):
                block = tuple(range(config.draws))[start : start + size]
                common = (config.scores, config.alphas, block, config.seed, config.record)
                cells.append(SweepCell(network, method, *common, together))
    return cells


def check_and_lay_out(config: SweepConfig) -> list[SweepCell]:
    """Lay out the grid, and build every network once so that an impossible one raises an error before the run."""
    for spec in config.networks:
        try:
            build_cell_network(spec, config.scores, spec.seed)
        except (ValueError, TypeError) as problem:
            what = spec.graph or f"topology {spec.topology!r} with {spec.devices} devices"
            raise ValueError(f"networks: {what}: {problem}") from None
    return lay_out_cells(config)


def summarise_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return means over draws, and their standard deviations where rows vary, one line for each cell of the grid."""
    import polars as pl
    import polars.selectors as cs

    def mean(column: str) -> list[pl.Expr]:
        return [pl.col(column).mean(), pl.col(column).std(ddof=0).alias(f"{column}_std")]

    graph = pl.when(~pl.col("redraw")).then("graph_seed")  # null if every draw has its own graph
    slack = (pl.col("counted_rank") - pl.col("required_rank")).alias("slack")
    grouped = rows.with_columns(slack, graph.alias("graph_seed")).group_by(_GRID, maintain_order=True)
    found = grouped.agg(
        pl.len().alias("draws"),
        pl.col("refused").is_not_null().sum().alias("refused"),
        *(part for column in ("threshold", "slack", "covered", "size") for part in mean(column)),
        pl.col("slack").min().alias("slack_min"),
        *(pl.col(column).mean() for column in ("rounds", "bits", "seconds")),
        pl.col("certificate").unique().drop_nulls().sort().str.join(" or ").alias("certificate"),
    )
    return found.with_columns(cs.float().round_sig_figs(_DIGITS))


def _write_provenance(folder: Path, config: SweepConfig, cells: int, computed: int, facts: Mapping[str, str]) -> None:
    files = [*(spec.graph for spec in config.networks), *config.scores.files().values()]
    facts_written = {
        "version": __version__,
        "machine": describe_machine(),
        **facts,
        "code": digest_cell_code(),
        "cells": cells,
        "computed": computed,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": {Path(file).name: digest_source_file(file) for file in files if file is not None},
        "config": asdict(config),
    }
    write_file(folder / "provenance.json", json.dumps(facts_written, indent=2) + "\n")
