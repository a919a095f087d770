"""``conformesh detect``: which test points, spread over the devices, are unlike what the devices know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from conformesh.cli import console, hosts, options
from conformesh.cli.command import GUARANTEE, Argument, Option, WholeNumber, command
from conformesh.cli.options import GuaranteeOptions, NetworkOptions, OutputOptions, RunOptions
from conformesh.cli.results import check_stdin
from conformesh.common.names import natural_order
from conformesh.common.quantities import format_bits, format_count, pluralize
from conformesh.files.score_files import common_score, read_scores
from conformesh.files.table_writers import TABLE_ENDINGS, check_file_ending
from conformesh.files.tables import FileLayout
from conformesh.graph.network import Network as Graph
from conformesh.kernels.ranks import exact_alpha
from conformesh.pipeline.detection import FDR_RULES, THINNED
from conformesh.pipeline.detection import detect as find
from conformesh.results.detection import Detection

_MOST_PRINTED = 20  # flagged test points that are printed


@command(
    options.scores_argument(
        text="Scores of ordinary examples: CSV, Parquet or NPZ with device and score, or a folder."
    ),
    Argument("tests", "TESTS", "Scores of the test points, in the same form; high is suspicious."),
    Option("--fdr <float>", "Tolerated false discovery rate among the flagged points.", default="0.1"),
    options.network_options(),
    options.output_options("Also save: .json, or a table of test points as .csv, .parquet or .npz."),
    options.guarantee_options("mixture"),
    Option(
        f"--rule {'|'.join(FDR_RULES)}",
        "; ".join(f"{name}, {words}" for name, words in FDR_RULES.items()) + ".",
        default=THINNED,
        panel=GUARANTEE,
    ),
    Option(
        "--sample-size <int>",
        "How many scores the thinned rule uses; by default from their numbers.",
        type=WholeNumber(1),
        panel=GUARANTEE,
    ),
    Option(
        "--p-values/--no-p-values",
        "Count p-values, which tells all devices the test scores.",
        default=True,
        panel=GUARANTEE,
    ),
    options.table_options("device", "score", "share"),
    options.run_options(
        options.seed_option(
            "Repeat the random choice of scores of an earlier run, whose result names it; by default a fresh one. Also "
            "the seed of the topology.",
            default=None,
        ),
        options.engine_option(),
    ),
    options.aggregate_option(),
)
def detect(
    scores: str,
    tests: str,
    fdr: str,
    network: NetworkOptions,
    guarantee: GuaranteeOptions,
    table: FileLayout,
    run: RunOptions,
    output: OutputOptions,
    **asked: Any,
) -> None:
    """Flag anomalies: test points that score higher than ordinary ones, with a bound on the false discovery rate.

    SCORES and TESTS have columns `device` and `score`, one row per example. Test points stay on their devices, and
    ordinary ones are taken to come from devices as --mixture says.
    """
    exact_alpha(fdr, "fdr")
    check_stdin(SCORES=scores, TESTS=tests)
    if output.out is not None:
        check_file_ending(output.out, (".json", *TABLE_ENDINGS))
    with hosts.start_job(run.engine) as job:
        mixture = guarantee.shares(scores, table)
        with console.warnings_in_one_line():
            test_file = read_scores(tests, layout=table)

        def connect(devices: Sequence[str], where: str) -> Graph:
            """Connect the devices with scores and those that have only test points."""
            return network.connect(natural_order({*devices, *test_file.devices}), where, run.seed or 0)

        file, engine = job.load(scores, table, connect)
        common_score([*engine.share(file.made_by), test_file.made_by], f"{scores} and {tests}")
        with hosts.show_progress(engine, "detect"):
            ids = engine.network.local_ids(engine.rows)
            data, points = hosts.table_of_devices(file, ids), hosts.table_of_devices(test_file, ids)
            result = find(data, engine.network, points, fdr, mixture=mixture, rng=run.seed, engine=engine, **asked)
        if job.first:
            output.show(result, _print)


def _print(result: Detection) -> None:
    sent = f"{format_count(result.cost.numbers_per_device)} numbers, {format_bits(result.cost.bits_per_device)}"
    facts = [
        ("flagged", f"{result.flags:,} of {pluralize(result.tests, 'test point')}"),
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
    which = table["flagged"].nonzero()[0][:_MOST_PRINTED].tolist()
    if not which:
        return
    columns = tuple(name for name in table if name != "flagged")
    shown: dict[str, Callable[[Any], str]] = {"device": str, "row": str, "score": "{:.6g}".format, "p": "{:.6g}".format}
    rows = [tuple(shown[name](table[name][i].item()) for name in columns) for i in which]
    print()
    console.print_table(columns, rows, right=("row", "score", "p"))
    if result.flags > _MOST_PRINTED:
        print(f"... and {result.flags - _MOST_PRINTED:,} more; --out keeps them all")
