"""``conformesh sweep``: many networks, methods, alphas and draws from one configuration."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from conformesh.cli import console
from conformesh.cli.panels import RUNNING
from conformesh.quantities import in_bits
from conformesh.sweeping.config import Config, read_config
from conformesh.sweeping.parallel import BACKENDS
from conformesh.sweeping.running import cells_of, checked_cells, summary
from conformesh.sweeping.running import sweep as run_all

SHOWN = 40  # lines of a summary on the screen; the file has all


def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The sweep, as TOML; see examples/sweep.toml.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where rows go; a stopped sweep goes on from there.")] = Path(
        "conformesh-sweep"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the grid, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Points that run at once.", rich_help_panel=RUNNING)] = os.cpu_count()
    or 1,
    backend: Annotated[
        str,
        typer.Option(
            help="Who runs them: loky for processes on this machine, dask or ray.",
            metavar="|".join(BACKENDS),
            rich_help_panel=RUNNING,
        ),
    ] = BACKENDS[0],
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="A dask scheduler or ray cluster that runs already.",
            show_default=False,
            rich_help_panel=RUNNING,
        ),
    ] = None,
) -> None:
    """Calibrate over many networks, methods, alphas and draws; finished cells are kept.

    Writes rows.parquet (a row per network, method, alpha and draw), summary.csv and provenance.json.
    """
    asked = read_config(config)
    if dry_run:
        checked_cells(asked)
        _show_grid(asked)
        return
    rows = run_all(asked, out, jobs=jobs, backend=backend, address=address, progress=True)
    found = summary(rows)
    if as_json:
        print(found.write_json())
        return
    _show(found.to_dicts())
    refused = rows.filter(rows["refused"].is_not_null())
    if len(refused):
        console.note(f"{len(refused)} of {len(rows)} rows were refused, the first because {refused['refused'][0]}")
    print(f"{len(rows):,} rows: {out / 'rows.parquet'}")


def _show_grid(config: Config) -> None:
    cells = cells_of(config)
    runs = [(p.network, p.method) for p in cells]
    rows = []
    for network in config.networks:
        where = network.topology or Path(network.graph or "").name
        devices = "from the file" if network.devices is None else f"{network.devices:,}"
        options = ", ".join(f"{name}={value}" for name, value in network.options)
        for method in config.methods:
            chosen = ", ".join(f"{name}={value}" for name, value in method.options)
            seed = f"{network.seed}, then +1 a draw" if network.redraw else str(network.seed)
            rows.append((where, devices, options, seed, method.name, chosen, f"{runs.count((network, method)):,}"))
    console.print_table(
        ("network", "devices", "options", "graph seed", "method", "its options", "cells"), rows, right=("cells",)
    )
    levels = ", ".join(f"{alpha:g}" for alpha in config.alphas)
    total = len(config.networks) * len(config.methods) * len(config.alphas) * config.draws
    print(f"\n{config.draws:,} draws, alpha {levels}: {total:,} rows from {len(cells):,} cells")
    print(f"scores: {config.scores.source}; seed {config.seed}; recorded: {', '.join(config.record)}")


def _show(lines: list[dict[str, Any]]) -> None:
    wanted = (
        "network",
        "method",
        "options",
        "alpha",
        "draws",
        "threshold",
        "slack_min",
        "covered",
        "size",
        "rounds",
        "bits",
    )
    cells = {name: [_cell(name, line[name]) for line in lines[:SHOWN]] for name in wanted}
    columns = [name for name, column in cells.items() if any(column)]
    shown = [*zip(*(cells[name] for name in columns), strict=True)]
    console.print_table(columns, shown, right=[c for c in columns if c not in ("network", "method", "options")])
    if len(lines) > SHOWN:
        print(f"and {len(lines) - SHOWN} more lines in summary.csv")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "bits":
        return in_bits(value)
    if name == "options":
        return ", ".join(f"{option}={chosen}" for option, chosen in json.loads(value).items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)
