"""``conformesh sweep``: many networks, methods, alphas and draws from one configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conformesh.cli import console, options
from conformesh.cli.command import PATH, RUNNING, Argument, Option, command
from conformesh.common.quantities import format_bits
from conformesh.lab.sweeps.config import SweepConfig, read_sweep_config
from conformesh.lab.sweeps.parallel import BACKENDS
from conformesh.lab.sweeps.sweep import check_and_lay_out, lay_out_cells, summarise_rows
from conformesh.lab.sweeps.sweep import sweep as run_all

_MOST_PRINTED = 40  # lines of a summary on the screen; the file has all


@command(
    Argument("config", "CONFIG", "The sweep, as TOML; see examples/sweep.toml.", type=PATH),
    options.out_option("Where rows go; a stopped sweep goes on from there.", "DIR", default="conformesh-sweep"),
    Option("--dry-run", "Show the grid, and stop."),
    options.json_option("Print the summary as JSON."),
    options.jobs_option(),
    Option(
        f"--backend {'|'.join(BACKENDS)}",
        "Who runs them: loky for processes on this machine, dask or ray.",
        default=BACKENDS[0],
        panel=RUNNING,
    ),
    Option("--address ADDRESS", "A dask scheduler or ray cluster that runs already.", panel=RUNNING),
)
def sweep(config: Path, out: Path, dry_run: bool, as_json: bool, jobs: int, backend: str, address: str | None) -> None:
    """Calibrate over many networks, methods, alphas and draws; finished cells are kept.

    Writes rows.parquet (a row per network, method, alpha and draw), summary.csv and provenance.json.
    """
    asked = read_sweep_config(config)
    if dry_run:
        check_and_lay_out(asked)
        _show_grid(asked)
        return
    rows = run_all(asked, out, jobs=jobs, backend=backend, address=address, progress=True)
    found = summarise_rows(rows)
    if as_json:
        print(found.write_json())
        return
    _show(found.to_dicts())
    refused = rows.filter(rows["refused"].is_not_null())
    if len(refused):
        console.print_note(
            f"{len(refused)} of {len(rows)} rows were refused, the first because {refused['refused'][0]}"
        )
    print(f"{len(rows):,} rows: {out / 'rows.parquet'}")


def _show_grid(config: SweepConfig) -> None:
    cells = lay_out_cells(config)
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
    cells = {name: [_cell(name, line[name]) for line in lines[:_MOST_PRINTED]] for name in wanted}
    columns = [name for name, column in cells.items() if any(column)]
    shown = [*zip(*(cells[name] for name in columns), strict=True)]
    console.print_table(columns, shown, right=[c for c in columns if c not in ("network", "method", "options")])
    if len(lines) > _MOST_PRINTED:
        print(f"and {len(lines) - _MOST_PRINTED} more lines in summary.csv")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "bits":
        return format_bits(value)
    if name == "options":
        return ", ".join(f"{option}={chosen}" for option, chosen in json.loads(value).items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)
