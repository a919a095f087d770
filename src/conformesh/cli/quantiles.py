"""``conformesh quantiles``: quantiles of any column of data that stays on its devices, exact or private."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from conformesh.cli import console, hosts, options
from conformesh.cli.command import Argument, ListOption, Option, command
from conformesh.cli.options import NetworkOptions, OutputOptions, RunOptions, read_method_options
from conformesh.cli.results import parse_saved_run, read_json, releases_by_group
from conformesh.files.table_writers import TABLE_ENDINGS, check_file_ending
from conformesh.files.tables import FileLayout
from conformesh.kernels.ranks import exact_alpha
from conformesh.pipeline.quantiles import QUARTILES
from conformesh.pipeline.quantiles import quantiles as find
from conformesh.results.quantiles import QUANTILES_FORMAT, Quantiles, exact_parts, quantiles_from_release

_SCORE = "score"  # the column that is read by default
PRIVATE = "Private quantiles"  # a panel of the help


@command(
    Argument(
        "data",
        "FILE",
        "CSV, Parquet or NPZ with a device and a value in each row, or a folder; - reads CSV from stdin. Or the .json "
        "result of a run with epsilon, whose noisy histogram is read again at no further cost.",
    ),
    ListOption(
        "--quantile,-q <float>",
        "A part of the data from 0 to 1, 0.5 for the median; may be repeated, or several as 0.25,0.5,0.75, which "
        "is the default.",
        name="q",
    ),
    Option(
        "--epsilon <float>",
        "Differential privacy: quantiles from one noisy histogram, with a rank error; by default exact.",
    ),
    Option(
        "--range LO HI",
        "With --epsilon: public bounds of the values, as 0 120 for ages, known without the data (the smallest and "
        "the largest value would reveal two of them); by default cells are powers of two, which is coarse.",
        nargs=2,
    ),
    options.network_options(),
    options.output_options("Also save: .json, or a table as .csv, .parquet or .npz."),
    Option(
        "--confidence <float>",
        "With --epsilon: the probability with which all rank errors hold together.",
        default="0.95",
        panel=PRIVATE,
    ),
    Option(
        "--cells <int>",
        "With --epsilon: cells of the histogram; by default chosen from the expected values and epsilon.",
        panel=PRIVATE,
    ),
    Option(
        "--expected-scores <int>",
        "With --epsilon: values that a device is expected to hold, to choose cells; by default 100.",
        panel=PRIVATE,
    ),
    Option(
        "--unit score|device",
        "With --epsilon: protect each value (score, the default), or a device with all its values.",
        panel=PRIVATE,
    ),
    Option("--cap <int>", "With --unit device: the most values of a device that count.", panel=PRIVATE),
    options.table_options("device", "score"),
    options.run_options(options.seed_option(), options.engine_option()),
    options.aggregate_option(None, "; with --epsilon tree or flood"),
)
def quantiles(
    data: str,
    q: tuple[str, ...],
    network: NetworkOptions,
    confidence: str,
    table: FileLayout,
    run: RunOptions,
    output: OutputOptions,
    **texts: Any,
) -> None:
    """Return quantiles of a column over all devices, without pooling it; --score-column names the column.

    Exact by default; with --epsilon differentially private, each with a rank error: how many values its rank may be
    off. The command simulates all devices in one program, which protects nothing; devices of a mesh are separate.
    """
    parts = exact_parts(q or QUARTILES)
    sure = exact_alpha(confidence, "confidence")
    if output.out is not None:
        check_file_ending(output.out, (".json", *TABLE_ENDINGS))
    given = {name: text for name, text in texts.items() if text is not None}
    if Path(data).suffix.lower() == ".json":
        if name := next(iter({**given, **({} if table.score is None else {"score_column": table.score})}), None):
            raise ValueError(
                f"--{name.replace('_', '-')} is for a file of values, and {data} is a result; leave it out"
            )
        output.show(_of_result(data, parts, sure), _print)
        return
    if given.get("epsilon") is None and (name := next((name for name in given if name != "aggregate"), None)):
        raise ValueError(f"--{name.replace('_', '-')} is for private quantiles; give --epsilon too")
    chosen = read_method_options("p-dcp" if "epsilon" in given else "e-dcp", _with_grid(given))
    with hosts.start_job(run.engine) as job:
        file, engine = job.load(data, table, partial(network.connect, seed=run.seed or 0))
        with hosts.show_progress(engine, "quantiles"):
            result = find(
                hosts.table_of_devices(file, engine.network.local_ids(engine.rows)),
                engine.network,
                parts,
                confidence=sure,
                engine=engine,
                **chosen,
            )
        if job.first:
            output.show(structs.replace(result, column=table.score or _SCORE), _print)


def _with_grid(given: dict[str, Any]) -> dict[str, Any]:
    """Name the grid of a range, which the method checks together."""
    return {**given, "grid": "linear"} if "range" in given else given


def _of_result(source: str, parts: tuple[Fraction, ...], confidence: Fraction) -> Quantiles:
    """Read quantiles from the release that a result holds."""
    raw, name = read_json(source)
    if isinstance(raw, dict) and raw.get("format") == QUANTILES_FORMAT:
        return Quantiles.from_dict(raw, name).with_q(parts, confidence)
    saved = parse_saved_run(raw, name)
    releases = releases_by_group(saved)
    if not releases:
        raise ValueError(f"{name} holds no noisy histogram: it comes from a run without epsilon")
    if len(releases) > 1:
        raise ValueError(
            f"{name} holds a histogram for each of {len(releases)} groups; quantiles need one of all values"
        )
    (one,) = releases.values()
    found = quantiles_from_release(one.release, parts, confidence, one.noise)
    return structs.replace(found, column=_SCORE, network=saved.result.network)


def _print(result: Quantiles) -> None:
    head, *rows = result.lines()
    console.print_table(head, rows, right=head)
    print()
    console.print_facts("conformesh quantiles", result.facts())
