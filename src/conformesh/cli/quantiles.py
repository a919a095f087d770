"""``conformesh quantiles``: quantiles of any column of data that stays on its devices, exact or private."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import structs

from conformesh.cli import console
from conformesh.cli.hosting import job
from conformesh.cli.networks import Graph, Topology, TopologyOption, chosen_network
from conformesh.cli.options import checked_options, whole
from conformesh.cli.panels import RUNNING
from conformesh.cli.predict import read_json
from conformesh.cli.reading import Decimal, DeviceColumn, Separator
from conformesh.cli.saved_results import releases_in, saved_result
from conformesh.engines import ENGINES
from conformesh.engines.base import ids_here
from conformesh.inputs import SCORE
from conformesh.io.tables import Layout
from conformesh.io.writing import ENDINGS, check_ending
from conformesh.kernels.ranks import exact_alpha
from conformesh.progress import rounds_on_a_bar
from conformesh.protocols.aggregate import aggregate_choices
from conformesh.quantile import QUARTILES, as_parts, quantiles_of
from conformesh.quantile import quantiles as find
from conformesh.result.quantiles import FORMAT, Quantiles

PRIVATE = "Private quantiles"  # a panel of the help


def quantiles(
    data: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="CSV, Parquet or NPZ with a device and a value in each row, or a folder; - reads CSV from stdin. Or "
            "the .json result of a run with epsilon, whose noisy histogram is read again at no further cost.",
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
    epsilon: Annotated[
        str | None,
        typer.Option(
            metavar="<float>",
            help="Differential privacy: quantiles from one noisy histogram, with a rank error; by default exact.",
            show_default=False,
        ),
    ] = None,
    ends: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--range",
            metavar="LO HI",
            help="With --epsilon: public bounds of the values, as 0 120 for ages, known without the data (the smallest "
            "and the largest value would reveal two of them); by default cells are powers of two, which is coarse.",
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
    confidence: Annotated[
        str,
        typer.Option(
            metavar="<float>",
            help="With --epsilon: the probability with which all rank errors hold together.",
            rich_help_panel=PRIVATE,
        ),
    ] = "0.95",
    cells: Annotated[
        str | None,
        typer.Option(
            metavar="<int>",
            help="With --epsilon: cells of the histogram; by default chosen from the expected values and epsilon.",
            show_default=False,
            rich_help_panel=PRIVATE,
        ),
    ] = None,
    expected_scores: Annotated[
        str | None,
        typer.Option(
            metavar="<int>",
            help="With --epsilon: values that a device is expected to hold, to choose cells; by default 100.",
            show_default=False,
            rich_help_panel=PRIVATE,
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            metavar="score|device",
            help="With --epsilon: protect each value (score, the default), or a device with all its values.",
            show_default=False,
            rich_help_panel=PRIVATE,
        ),
    ] = None,
    cap: Annotated[
        str | None,
        typer.Option(
            metavar="<int>",
            help="With --unit device: the most values of a device that count.",
            show_default=False,
            rich_help_panel=PRIVATE,
        ),
    ] = None,
    device_column: DeviceColumn = None,
    separator: Separator = None,
    decimal: Decimal = None,
    seed: Annotated[
        str, typer.Option(metavar="<int>", help="Seed of topologies that draw.", rich_help_panel=RUNNING)
    ] = "0",
    aggregate: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(aggregate_choices()),
            help="How sums are formed; with --epsilon tree or flood.",
            show_default=False,
            rich_help_panel=RUNNING,
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="|".join(ENGINES), help="Who runs the devices.", rich_help_panel=RUNNING)
    ] = "simulator",
) -> None:
    """Return quantiles of a column over all devices, without pooling it.

    Exact by default; with --epsilon differentially private, each with a rank error: how many values its rank may be
    off. The command simulates all devices in one program, which protects nothing; devices of a mesh are separate.
    """
    parts = as_parts([one.strip() for text in q or () for one in text.split(",")] or QUARTILES)
    sure = exact_alpha(confidence, "confidence")
    if out is not None:
        check_ending(out, (".json", *ENDINGS))
    texts: dict[str, Any] = {
        "epsilon": epsilon,
        "cells": cells,
        "expected_scores": expected_scores,
        "unit": unit,
        "cap": cap,
    }
    texts |= {"range": ends, "aggregate": aggregate}
    given = {name: text for name, text in texts.items() if text is not None}
    if Path(data).suffix.lower() == ".json":
        if name := next(iter({**given, **({} if column is None else {"column": column})}), None):
            raise ValueError(
                f"--{name.replace('_', '-')} is for a file of values, and {data} is a result; leave it out"
            )
        _show(_of_result(data, parts, sure), out, as_json)
        return
    if epsilon is None and (name := next((name for name in given if name != "aggregate"), None)):
        raise ValueError(f"--{name.replace('_', '-')} is for private quantiles; give --epsilon too")
    options = checked_options("e-dcp" if epsilon is None else "p-dcp", _with_grid(given))
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
            result = find(held.for_devices(mine), host.network, parts, confidence=sure, engine=host, **options)
        if hosts.first:
            _show(structs.replace(result, column=column or SCORE), out, as_json)


def _with_grid(given: dict[str, Any]) -> dict[str, Any]:
    """Name the grid of a range, which the method checks together."""
    return {**given, "grid": "linear"} if "range" in given else given


def _of_result(source: str, parts: tuple[Fraction, ...], confidence: Fraction) -> Quantiles:
    """Read quantiles from the release that a result holds."""
    raw, name = read_json(source)
    if isinstance(raw, dict) and raw.get("format") == FORMAT:
        return Quantiles.from_dict(raw, name).with_q(parts, confidence)
    saved = saved_result(raw, name)
    releases = releases_in(saved)
    if not releases:
        raise ValueError(f"{name} holds no noisy histogram: it comes from a run without epsilon")
    if len(releases) > 1:
        raise ValueError(
            f"{name} holds a histogram for each of {len(releases)} groups; quantiles need one of all values"
        )
    (one,) = releases.values()
    return structs.replace(
        quantiles_of(one.release, parts, confidence, one.noise), column=SCORE, network=saved.first.network
    )


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
