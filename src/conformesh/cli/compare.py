"""``conformesh compare``: every method on every network with one's own scores, and which to use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformesh.cli import console, hosts, options
from conformesh.cli.command import FILES, PATH, SOURCE, ListOption, Option, command
from conformesh.cli.options import GuaranteeOptions, NetworkOptions, RunOptions
from conformesh.cli.recording import comparison_callbacks, record_runs
from conformesh.cli.results import check_stdin, outputs_for_score, settle_recorded_score
from conformesh.common.progress import Progress
from conformesh.common.quantities import pluralize
from conformesh.files.output_files import read_outputs
from conformesh.files.score_files import read_scores
from conformesh.files.tables import FileLayout
from conformesh.graph.network import Network as Graph
from conformesh.graph.topologies import TOPOLOGIES
from conformesh.lab.comparison import Comparison, ComparisonRow, build_networks, compared_ways, cost_fronts
from conformesh.lab.comparison import compare as measure
from conformesh.lab.comparison_plots import MOST_PANELS, draw_comparison, draw_cost_fronts
from conformesh.lab.comparison_table import (
    COMPARISON_NUMBER_COLUMNS,
    SIZE_COLUMN,
    recommendation,
    rests_on_assumption,
    table_columns,
    table_row,
)
from conformesh.methods import MethodVariant
from conformesh.plots.pictures import picture_file
from conformesh.scores import LAC, RegressionScore, Score

_PICTURE, _FRONT = Path("conformesh-compare.png"), Path("conformesh-front.png")


@command(
    options.scores_argument(text="CSV, Parquet or NPZ with device and score; - reads CSV from stdin."),
    options.guarantee_options("alpha", "mixture", "rank_rule", "pac_confidence"),
    options.methods_option(),
    ListOption(
        "--network NAME|FILE,...",
        f"Some of {', '.join(TOPOLOGIES)}, or a file of edges with two device names a line; by default all "
        "topologies that fit.",
    ),
    options.out_option("The picture, as .png, .pdf or .svg; a folder gets a .png.", default=str(_PICTURE)),
    options.picture_option(),
    Option(
        "--front FILE",
        "Also draw rounds against bits, by every schedule and preference of e-dcp, above their floors.",
        type=PATH,
    ),
    options.json_option("Print one JSON object instead of the table."),
    Option("--outputs FILE", "Model outputs to measure set sizes with, as for predict.", type=SOURCE, panel=FILES),
    options.score_options(),
    options.table_options("device", "score", "share"),
    options.run_options(
        options.seed_option("Seed of the topologies and methods that draw."), options.recording_options()
    ),
)
@console.warnings_in_one_line()
def compare(
    scores: str,
    guarantee: GuaranteeOptions,
    method: tuple[str, ...],
    network: tuple[str, ...],
    out: Path,
    picture: bool,
    front: Path | None,
    outputs: str | None,
    score: Score | None,
    table: FileLayout,
    run: RunOptions,
    as_json: bool,
) -> None:
    """Compare all methods, in every way they add up or average, on all topologies: slack, threshold, rounds, bits.

    SCORES is what calibrate reads. Every threshold is ranked among all scores, as only a simulation can; the diameter
    of a network is the floor for rounds. The last line says which to use, by what was measured.
    """
    alpha, ways = guarantee.one_alpha, compared_ways(method or None)
    picture_path = picture_file(out, _PICTURE.name) if picture else None
    front_path = None if front is None else picture_file(front, _FRONT.name)
    file = read_scores(scores, layout=table)
    kind = settle_recorded_score(file.made_by, score, file.name)
    sizing = _sizing(outputs, kind, score is not None, table, scores)
    seed = run.seed or 0
    networks, skipped = _networks(file.devices, file.name, network, seed)
    asked: dict[str, Any] = {
        "mixture": guarantee.shares(scores, table),
        "rank_rule": guarantee.rank_rule,
        "pac_confidence": guarantee.pac_confidence,
        "seed": seed,
        "progress": True,
    }
    rows = hosts.table_of_devices(file, networks[0].ids)
    with record_runs(run.recording) as recorder:
        watched = {} if recorder is None else comparison_callbacks(recorder, len(ways) * len(networks))
        found = replace(measure(rows, networks, alpha, ways, **asked, **sizing, **watched), skipped=skipped)
        if picture_path is not None:
            with Progress("drawing"):
                draw_comparison(picture_path, found)
        if front_path is not None:
            draw_cost_fronts(front_path, cost_fronts(rows, networks[:MOST_PANELS], alpha, **asked))
        data = _as_data(found, seed, picture_path, front_path)
        console.show_result(data, as_json, lambda: _report(found, picture_path, front_path))


def _sizing(outputs: str | None, kind: Score | None, named: bool, table: FileLayout, scores: str) -> dict[str, Any]:
    """Return what set sizes are measured with: nothing without model outputs."""
    if outputs is None:
        if named:
            raise ValueError("--score is about model outputs: give them with --outputs FILE")
        return {}
    check_stdin(**{"SCORES": scores, "--outputs": outputs})
    if kind is None:
        console.print_note("taking the scores for 'lac'; name them with --score")
        kind = LAC()
    columns = kind.columns if isinstance(kind, RegressionScore) else None
    read = read_outputs(outputs, FileLayout(table.device), logits=kind.reads == "logits", columns=columns)
    return {"score": kind, "outputs": outputs_for_score(kind, read), "rows_at": read.devices}


def _networks(
    devices: Sequence[str], where: str, chosen: tuple[str, ...], seed: int
) -> tuple[list[Graph], dict[str, str]]:
    """Return files of edges, the topologies that were named, or all; and those that cannot be built."""
    from_files = [
        NetworkOptions(name).connect(devices, where, seed) for name in chosen if NetworkOptions(name).file is not None
    ]
    names = [name for name in chosen if name in TOPOLOGIES] if chosen else [*TOPOLOGIES]
    built, skipped = build_networks(names, from_files[0].ids if from_files else devices, seed=seed)
    if not (from_files or built):
        raise ValueError("; ".join(skipped.values()))
    return from_files + built, skipped


# --- what is shown ----------------------------------------------------------------------------------------------------


def _report(found: Comparison, picture_path: Path | None, front_path: Path | None) -> None:
    print(
        f"{pluralize(found.scores, 'score')} on {pluralize(found.devices, 'device')}; alpha {found.alpha:g} requires a "
        f"threshold of rank {found.required_rank:,} or more.\n"
        "slack: rank of the threshold (of the smallest, where devices differ) minus the required rank; below 0\n"
        "is too low. numbers, bits: what each device sent. fewest: the least bits or rounds among those that\n"
        "count their rank, assume nothing and need no server."
    )
    rows = [[table_row(run, entry) for run in entry.runs] for entry in found.networks]
    columns, right = table_columns(found), COMPARISON_NUMBER_COLUMNS
    widths = [max(map(len, column)) for column in zip(columns, *(row for entry in rows for row in entry), strict=True)]
    padded = [name.rjust(w) if name in right else name.ljust(w) for name, w in zip(columns, widths, strict=True)]
    for entry, cells in zip(found.networks, rows, strict=True):
        floor = f"{entry.diameter:,}, the floor for rounds without a server"
        print(f"\n{entry.network}: diameter {floor if entry.diameter_is_exact else f'at most {entry.diameter:,}'}")
        console.print_table(padded, cells, right=[name for name in padded if name.strip() in right])
        for way, reason in entry.refused.items():
            print(f"not here: {way}, {reason}")
        for run in entry.runs:
            for note in run.notes:
                print(f"note: {note.removeprefix(f'{run.way.method}: ')} ({run.way})")
    print()
    for topology, reason in found.skipped.items():
        print(f"left out: {reason if reason.startswith(topology) else f'{topology}, {reason}'}")
    starred = {
        run.way.method: run.assumption for entry in found.networks for run in entry.runs if rests_on_assumption(run)
    }
    for method, words in starred.items():
        print(f"* {method}: {words}.")
    if SIZE_COLUMN not in columns:
        print("mean set size: give model outputs with --outputs FILE, and what the scores are with --score.")
    if picture_path is not None:
        print(f"picture: {picture_path}")
    if front_path is not None:
        print(f"rounds against bits: {front_path}")
    print(f"\nWhich should I use? {recommendation(found)}")


def _as_data(found: Comparison, seed: int, picture_path: Path | None, front_path: Path | None) -> dict[str, Any]:
    cheapest = found.winner("bits")
    way = None if cheapest is None else cheapest[0]
    return {
        "alpha": found.alpha,
        "seed": seed,
        "devices": found.devices,
        "scores": found.scores,
        "required_rank": found.required_rank,
        "networks": [
            {
                "network": entry.network,
                "diameter": entry.diameter,
                "diameter_is_exact": entry.diameter_is_exact,
                "results": [_result(run) for run in entry.runs],
                "refused": [{**_way(way), "reason": reason} for way, reason in entry.refused.items()],
            }
            for entry in found.networks
        ],
        "skipped": [{"topology": name, "reason": reason} for name, reason in found.skipped.items()],
        "answer": {**_way(way), "sentence": recommendation(found)},
        "picture": None if picture_path is None else str(picture_path),
        "front": None if front_path is None else str(front_path),
    }


def _way(way: MethodVariant | None) -> dict[str, Any]:
    return {"method": None, "variant": None} if way is None else {"method": way.method, "variant": way.variant}


def _result(run: ComparisonRow) -> dict[str, Any]:
    return {
        **_way(run.way),
        "needs": run.way.needs,
        "guarantee": run.guarantee,
        "assumption": run.assumption,
        "slack": run.slack if run.slack == math.inf else int(run.slack),
        "thresholds": [*run.thresholds],
        **({} if run.size is None else {"mean_size": run.size}),
        "rounds": run.rounds,
        "numbers_per_device": run.numbers,
        "bits_per_device": run.bits,
        "sound": run.is_sound,
        "notes": list(run.notes),
    }
