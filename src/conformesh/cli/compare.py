"""``conformesh compare``: every method on every network with one's own scores, and which of them to use."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from conformesh.cli import console
from conformesh.cli.calibrate import named_score, score_in_file
from conformesh.cli.networks import network_of_graph
from conformesh.cli.options import whole
from conformesh.cli.panels import FILES, RUNNING
from conformesh.cli.predict import values_for
from conformesh.cli.promising import PacConfidence, Rank, Target, chosen_target
from conformesh.cli.recording import recorded, watching
from conformesh.cli.viewing import ReportFile, TraceFile, ViewAddress
from conformesh.compared import NUMBERS, SIZE, answer, cells_of, columns_of, is_starred
from conformesh.comparing import Comparison, Run, fronts, networks_of, ways_of
from conformesh.comparing import compare as measure
from conformesh.graph.network import Network
from conformesh.graph.topologies import TOPOLOGIES
from conformesh.io.output_files import read_outputs
from conformesh.io.score_files import ScoreFile, read_scores
from conformesh.io.tables import Layout
from conformesh.kernels.ranks import AUTO, exact_alpha
from conformesh.methods import METHODS, Way
from conformesh.plots.front import draw_front
from conformesh.plots.pictures import PANELS, draw_comparison, picture_file
from conformesh.progress import Progress
from conformesh.quantities import several
from conformesh.scores import LAC, SCORES, RegressionScore, Score

PICTURE, FRONT = Path("conformesh-compare.png"), Path("conformesh-front.png")


@console.warnings_in_one_line()
def compare(
    scores: Annotated[
        str, typer.Argument(metavar="SCORES", help="CSV, Parquet or NPZ with device and score; - reads CSV from stdin.")
    ],
    alpha: Annotated[str, typer.Option(metavar="<float>", help="Tolerated miscoverage.")] = "0.1",
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help=f"By default all: {', '.join(METHODS)}.", show_default=False),
    ] = None,
    topologies: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help=f"By default all that fit: {', '.join(TOPOLOGIES)}.", show_default=False),
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(metavar="EDGES", help="A network of one's own: a file with two device names a line."),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The picture, as .png, .pdf or .svg; a folder gets a .png.")
    ] = PICTURE,
    picture: Annotated[bool, typer.Option("--picture/--no-picture", help="Draw the picture.")] = True,
    front: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also draw rounds against bits, by every schedule and preference of e-dcp, above their floors.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
    target: Target = "sizes",
    rank: Rank = AUTO,
    pac_confidence: PacConfidence = None,
    outputs: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Model outputs to measure set sizes with, as for predict.",
            show_default=False,
            rich_help_panel=FILES,
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help=f"What the scores are, for --outputs: {', '.join(SCORES)}; by default lac.",
            show_default=False,
            rich_help_panel=FILES,
        ),
    ] = None,
    score_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="An option of the score, as k_reg=2; may be repeated.", rich_help_panel=FILES
        ),
    ] = None,
    device_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column of --outputs that names each row's device; by default `device`, where there is one.",
            show_default=False,
            rich_help_panel=FILES,
        ),
    ] = None,
    seed: Annotated[
        str,
        typer.Option(metavar="<int>", help="Seed of the topologies and methods that draw.", rich_help_panel=RUNNING),
    ] = "0",
    view: ViewAddress = None,
    trace: TraceFile = None,
    report: ReportFile = None,
) -> None:
    """Compare all methods, in every way they add up or average, on all topologies: slack, threshold, rounds, bits.

    SCORES is what calibrate reads. Every threshold is ranked among all scores, as only a simulation can; the diameter
    of a network is the floor for rounds. The last line says which to use, by what was measured.
    """
    exact_alpha(alpha)
    key = whole(seed, "seed", 0)
    ways = ways_of(None if methods is None else _names(methods, "methods"))
    drawn = picture_file(out, PICTURE.name) if picture else None
    traded = None if front is None else picture_file(front, FRONT.name)
    held = read_scores(scores)
    kind = score_in_file(held.made_by, named_score(score, score_option or []), held.name)
    sizing = _sizing(outputs, kind, score is not None, device_column, scores)
    networks, skipped = _networks(held, topologies, graph, key)
    asked: dict[str, Any] = {
        "target": chosen_target(target, scores),
        "rank": rank,
        "pac_confidence": pac_confidence,
        "seed": key,
        "progress": True,
    }
    own = held.for_devices(networks[0].ids)
    with recorded(view, trace, report) as recorder:
        watched = {} if recorder is None else watching(recorder, len(ways) * len(networks))
        found = replace(measure(own, networks, alpha, ways, **asked, **sizing, **watched), skipped=skipped)
        if drawn is not None:
            with Progress("drawing"):
                draw_comparison(drawn, found)
        if traded is not None:
            draw_front(traded, fronts(own, networks[:PANELS], alpha, **asked))
        if as_json:
            print(json.dumps(_object(found, key, drawn, traded), allow_nan=False))
        else:
            _report(found, drawn, traded)


def _names(text: str, what: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"--{what} needs names with commas between them, got {text!r}")
    return names


def _sizing(
    outputs: str | None, kind: Score | None, named: bool, device_column: str | None, scores: str
) -> dict[str, Any]:
    """Return what set sizes are measured with: nothing without model outputs."""
    if outputs is None:
        given = "--score" if named else "--device-column" if device_column is not None else None
        if given is not None:
            raise ValueError(f"{given} is about model outputs: give them with --outputs FILE")
        return {}
    if outputs == scores == "-":
        raise ValueError("only one of SCORES and --outputs can come from standard input, got - for both")
    if kind is None:
        console.note("taking the scores for 'lac'; name them with --score")
        kind = LAC()
    columns = kind.columns if isinstance(kind, RegressionScore) else None
    read = read_outputs(outputs, Layout(device_column), logits=kind.reads == "logits", columns=columns)
    return {"score": kind, "outputs": values_for(kind, read), "rows_at": read.devices}


def _networks(
    held: ScoreFile, topologies: str | None, graph: Path | None, seed: int
) -> tuple[list[Network], dict[str, str]]:
    """Return the user's own graph and the topologies that were named, or all; and those that cannot be built."""
    own = [] if graph is None else [network_of_graph(graph, held)]
    names = _names(topologies, "topologies") if topologies is not None else [] if own else [*TOPOLOGIES]
    built, skipped = networks_of(names, own[0].ids if own else held.devices, seed=seed)
    if not (own or built):
        raise ValueError("; ".join(skipped.values()))
    return own + built, skipped


# --- what is shown ----------------------------------------------------------------------------------------------------


def _report(found: Comparison, target: Path | None, traded: Path | None) -> None:
    print(
        f"{several(found.scores, 'score')} on {several(found.devices, 'device')}; alpha {found.alpha:g} requires a "
        f"threshold of rank {found.required_rank:,} or more.\n"
        "slack: rank of the threshold (of the smallest, where devices differ) minus the required rank; below 0\n"
        "is too low. numbers, bits: what each device sent. fewest: the least bits or rounds among those that\n"
        "count their rank, assume nothing and need no server.",
    )
    rows = [[cells_of(run, group) for run in group.runs] for group in found.groups]
    columns, right = columns_of(found), NUMBERS
    widths = [max(map(len, column)) for column in zip(columns, *(row for group in rows for row in group), strict=True)]
    padded = [name.rjust(w) if name in right else name.ljust(w) for name, w in zip(columns, widths, strict=True)]
    for group, cells in zip(found.groups, rows, strict=True):
        floor = f"{group.diameter:,}, the floor for rounds without a server"
        print(f"\n{group.network}: diameter {floor if group.diameter_is_exact else f'at most {group.diameter:,}'}")
        console.print_table(padded, cells, right=[name for name in padded if name.strip() in right])
        for way, reason in group.refused.items():
            print(f"not here: {way}, {reason}")
        for run in group.runs:
            for note in run.notes:
                print(f"note: {note.removeprefix(f'{run.way.method}: ')} ({run.way})")
    print()
    for topology, reason in found.skipped.items():
        print(f"left out: {reason if reason.startswith(topology) else f'{topology}, {reason}'}")
    starred = {run.way.method: run.assumption for group in found.groups for run in group.runs if is_starred(run)}
    for method, words in starred.items():
        print(f"* {method}: {words}.")
    if SIZE not in columns:
        print("mean set size: give model outputs with --outputs FILE, and what the scores are with --score.")
    if target is not None:
        print(f"picture: {target}")
    if traded is not None:
        print(f"rounds against bits: {traded}")
    print(f"\nWhich should I use? {answer(found)}")


def _object(found: Comparison, seed: int, target: Path | None, traded: Path | None) -> dict[str, Any]:
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
                "network": group.network,
                "diameter": group.diameter,
                "diameter_is_exact": group.diameter_is_exact,
                "results": [_result(run) for run in group.runs],
                "refused": [{**_way(way), "reason": reason} for way, reason in group.refused.items()],
            }
            for group in found.groups
        ],
        "skipped": [{"topology": name, "reason": reason} for name, reason in found.skipped.items()],
        "answer": {**_way(way), "sentence": answer(found)},
        "picture": None if target is None else str(target),
        "front": None if traded is None else str(traded),
    }


def _way(way: Way | None) -> dict[str, Any]:
    return {"method": None, "variant": None} if way is None else {"method": way.method, "variant": way.variant}


def _result(run: Run) -> dict[str, Any]:
    return {
        **_way(run.way),
        "needs": run.way.needs,
        "guarantee": run.guarantee,
        "assumption": run.assumption,
        "slack": "inf" if run.slack == math.inf else int(run.slack),
        "thresholds": [_plain(value) for value in run.thresholds],
        **({} if run.size is None else {"mean_size": _plain(run.size)}),
        "rounds": run.rounds,
        "numbers_per_device": run.numbers,
        "bits_per_device": run.bits,
        "sound": run.is_sound,
        "notes": list(run.notes),
    }


def _plain(value: float) -> float | str:
    return str(value) if math.isinf(value) else value
