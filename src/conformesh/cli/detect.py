"""``conformesh detect``: which test points, spread over the devices, are unlike what the devices know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from conformesh.cli import console
from conformesh.cli.hosting import job
from conformesh.cli.networks import Graph, Topology, TopologyOption, chosen_network
from conformesh.cli.options import whole
from conformesh.cli.panels import PROMISE, RUNNING
from conformesh.cli.promising import Target, chosen_target
from conformesh.cli.reading import Decimal, DeviceColumn, ScoreColumn, Separator
from conformesh.detecting import RULES, THINNED
from conformesh.detecting import detect as find
from conformesh.engines import ENGINES
from conformesh.engines.base import ids_here
from conformesh.io.score_files import ScoreFile, one_score, read_scores
from conformesh.io.tables import STDIN, Layout
from conformesh.io.writing import ENDINGS, check_ending
from conformesh.kernels.ranks import exact_alpha
from conformesh.names import natural_order
from conformesh.progress import rounds_on_a_bar
from conformesh.protocols.aggregate import aggregate_choices
from conformesh.quantities import in_bits, in_count, several
from conformesh.result.detection import Detection

MOST = 20  # flagged test points that are printed


def detect(
    scores: Annotated[
        str,
        typer.Argument(
            metavar="SCORES",
            help="Scores of ordinary examples: CSV, Parquet or NPZ with device and score, or a folder.",
        ),
    ],
    tests: Annotated[
        str, typer.Argument(metavar="TESTS", help="Scores of the test points, in the same form; high is suspicious.")
    ],
    fdr: Annotated[
        str, typer.Option(metavar="<float>", help="Tolerated part of wrong ones among the flagged, on average.")
    ] = "0.1",
    topology: Topology = None,
    topology_option: TopologyOption = None,
    graph: Graph = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also save: .json, or a table of test points as .csv, .parquet or .npz."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    target: Target = "sizes",
    rule: Annotated[
        str,
        typer.Option(
            metavar="|".join(RULES),
            help="; ".join(f"{name}, {words}" for name, words in RULES.items()) + ".",
            rich_help_panel=PROMISE,
        ),
    ] = THINNED,
    sample_size: Annotated[
        str | None,
        typer.Option(
            metavar="<int>",
            help="How many scores the thinned rule uses; by default from their numbers.",
            show_default=False,
            rich_help_panel=PROMISE,
        ),
    ] = None,
    p_values: Annotated[
        bool,
        typer.Option(
            "--p-values/--no-p-values",
            help="Count p-values, which tells all devices the test scores.",
            rich_help_panel=PROMISE,
        ),
    ] = True,
    device_column: DeviceColumn = None,
    score_column: ScoreColumn = None,
    separator: Separator = None,
    decimal: Decimal = None,
    seed: Annotated[
        str | None,
        typer.Option(
            metavar="<int>",
            help="Repeat the random choice of scores of an earlier run, whose result names it; by default a fresh one. "
            "Also the seed of the topology.",
            show_default=False,
            rich_help_panel=RUNNING,
        ),
    ] = None,
    aggregate: Annotated[
        str, typer.Option(metavar="|".join(aggregate_choices()), help="How sums are formed.", rich_help_panel=RUNNING)
    ] = "auto",
    engine: Annotated[
        str, typer.Option(metavar="|".join(ENGINES), help="Who runs the devices.", rich_help_panel=RUNNING)
    ] = "simulator",
) -> None:
    """Flag test points that score higher than ordinary ones, of which on average at most a part --fdr wrongly.

    SCORES and TESTS have columns `device` and `score`, one row per example. Test points stay on their devices, and
    ordinary ones are taken to come from devices as --target says.
    """
    exact_alpha(fdr, "fdr")
    if STDIN == scores == tests:
        raise ValueError("only one of SCORES and TESTS can come from standard input, got - for both")
    if out is not None:
        check_ending(out, (".json", *ENDINGS))
    with job(engine) as hosts:
        layout = Layout(device_column, score_column, separator=separator, decimal=decimal)
        whom, start = chosen_target(target, scores, layout), None if seed is None else whole(seed, "seed", 0)
        with console.warnings_in_one_line():
            judged = read_scores(tests, layout=layout)
            held, host = hosts.load(
                scores,
                layout,
                lambda known: chosen_network(
                    _with_tests(known, judged), topology, topology_option or [], graph, start or 0
                ),
            )
        one_score([*host.share(held.made_by), judged.made_by], f"{scores} and {tests}")
        mine = tuple(ids_here(host))
        with rounds_on_a_bar(f"detect on {host.network.name}") as observer, console.warnings_in_one_line():
            host.observer = observer
            result = find(
                held.for_devices(mine),
                host.network,
                judged.for_devices(mine),
                fdr,
                target=whom,
                rule=rule,
                sample_size=None if sample_size is None else whole(sample_size, "sample_size", 1),
                rng=start,
                p_values=p_values,
                engine=host,
                aggregate=aggregate,
            )
        if hosts.first:
            _show(result, out, as_json)


def _with_tests(held: ScoreFile, tests: ScoreFile) -> ScoreFile:
    """Return who takes part: devices with scores, and those that have only test points."""
    names = natural_order({*held.devices, *tests.devices})
    return ScoreFile(tuple(names), tuple(held.for_devices(tuple(names))) if held.scores else (), held.name)


def _show(result: Detection, out: Path | None, as_json: bool) -> None:
    """Save and print what was found."""
    if out is not None:
        result.save(out)
    if as_json:
        print(result.to_json())
        return
    sent = f"{in_count(result.cost.numbers_per_device)} numbers, {in_bits(result.cost.bits_per_device)}"
    facts = [
        ("flagged", f"{result.flags:,} of {several(result.tests, 'test point')}"),
        ("above", f"{result.threshold:.6g}"),
        ("guarantee", result.certificate),
        ("cost", f"{result.cost.rounds:,} rounds, each device sent {sent}"),
        ("network", result.network),
        ("seconds", f"{result.seconds:.3f}"),
    ]
    console.print_facts("conformesh detect", facts)
    _print_flagged(result)


def _print_flagged(result: Detection) -> None:
    table = result.columns()
    which = table["flagged"].nonzero()[0][:MOST].tolist()
    if not which:
        return
    columns = tuple(name for name in table if name != "flagged")
    shown: dict[str, Callable[[Any], str]] = {"device": str, "row": str, "score": "{:.6g}".format, "p": "{:.6g}".format}
    rows = [tuple(shown[name](table[name][i].item()) for name in columns) for i in which]
    print()
    console.print_table(columns, rows, right=("row", "score", "p"))
    if result.flags > MOST:
        print(f"... and {result.flags - MOST:,} more; --out keeps them all")
