"""``conformesh quantiles``: quantiles of any column of data that stays on its devices, exact or private."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from conformesh.cli import console
from conformesh.cli.hosting import job
from conformesh.cli.networks import Graph, Topology, TopologyOption, chosen_network
from conformesh.cli.options import whole
from conformesh.cli.panels import RUNNING
from conformesh.cli.reading import Decimal, DeviceColumn, Separator
from conformesh.engines import ENGINES
from conformesh.engines.base import ids_here
from conformesh.inputs import SCORE
from conformesh.io.tables import Layout
from conformesh.io.writing import ENDINGS, check_ending
from conformesh.progress import rounds_on_a_bar
from conformesh.protocols.aggregate import aggregate_choices
from conformesh.quantile import QUARTILES, as_parts
from conformesh.quantile import quantiles as find
from conformesh.result.quantiles import Quantiles


def quantiles(
    data: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="CSV, Parquet or NPZ with a device and a value in each row, or a folder; - reads CSV from stdin.",
        ),
    ],
    q: Annotated[
        list[str] | None,
        typer.Option(
            "--quantile",
            "-q",
            metavar="<float>",
            help="A part of the data from 0 to 1, 0.5 for the median; may be repeated, or several as 0.25,0.5,0.75, "
            "which is the default.",
            show_default=False,
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            "--column",
            "--score-column",  # as other commands call it
            metavar="COLUMN",
            help="The column of values; by default `score`.",
            show_default=False,
        ),
    ] = None,
    topology: Topology = None,
    topology_option: TopologyOption = None,
    graph: Graph = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also save: .json, or a table as .csv, .parquet or .npz.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    device_column: DeviceColumn = None,
    separator: Separator = None,
    decimal: Decimal = None,
    seed: Annotated[
        str, typer.Option(metavar="<int>", help="Seed of topologies that draw.", rich_help_panel=RUNNING)
    ] = "0",
    aggregate: Annotated[
        str, typer.Option(metavar="|".join(aggregate_choices()), help="How sums are formed.", rich_help_panel=RUNNING)
    ] = "auto",
    engine: Annotated[
        str, typer.Option(metavar="|".join(ENGINES), help="Who runs the devices.", rich_help_panel=RUNNING)
    ] = "simulator",
) -> None:
    """Return quantiles of a column over all devices, without pooling it."""
    parts = as_parts([one.strip() for text in q or () for one in text.split(",")] or QUARTILES)
    if out is not None:
        check_ending(out, (".json", *ENDINGS))
    with job(engine) as hosts:
        layout = Layout(device_column, column, separator=separator, decimal=decimal)
        with console.warnings_in_one_line():
            held, host = hosts.load(
                data,
                layout,
                lambda known: chosen_network(known, topology, topology_option or [], graph, whole(seed, "seed", 0)),
            )
        mine = tuple(ids_here(host))
        with rounds_on_a_bar(f"quantiles on {host.network.name}") as observer, console.warnings_in_one_line():
            host.observer = observer
            result = find(held.for_devices(mine), host.network, parts, engine=host, aggregate=aggregate)
        if hosts.first:
            _show(replace(result, column=column or SCORE), out, as_json)


def _show(result: Quantiles, out: Path | None, as_json: bool) -> None:
    """Save and print the quantiles."""
    if out is not None:
        result.save(out)
    if as_json:
        print(result.to_json())
        return
    head, *rows = result.lines()
    console.print_table(head, rows, right=head)
    print()
    console.print_facts("conformesh quantiles", result.facts())
