"""``conformesh reproduce``: the paper's figures and tables again, beside the published points."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from conformesh.cli import console
from conformesh.cli.panels import RUNNING
from conformesh.experiments import EXPERIMENTS, get_experiment
from conformesh.experiments.experiment import Experiment
from conformesh.experiments.reproduction import Reproduction
from conformesh.experiments.reproduction import reproduce as run_all
from conformesh.experiments.rows import COMPARED_DRAWS, FULL_DRAWS, SEED, Request
from conformesh.experiments.settings import sources_from
from conformesh.progress import Progress

ALL = "all"


class _WhichScores(StrEnum):
    """Which scores to run."""

    logits = "logits"
    confidences = "confidences"
    both = "both"


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Experiments, as q-dcp-alpha or figure-2; or all.", show_default=False),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Model outputs with labels (NPZ, CSV, Parquet): 100 classes for the CIFAR-100 items, 9 for PathMNIST; "
            "or a folder of them; may be repeated. Without, synthetic.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where results go; a stopped run goes on from there.")
    ] = Path("conformesh-reproduction"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A smoke version of everything: two draws, coarse grids, fewer rounds.")
    ] = False,
    draws: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Draws of calibration data; by default {FULL_DRAWS}, and {COMPARED_DRAWS} where published points are "
            "known.",
            show_default=False,
        ),
    ] = None,
    scores: Annotated[_WhichScores, typer.Option(help="1 - logit, 1 - confidence, or both.")] = _WhichScores.both,
    seed: Annotated[int, typer.Option(help="Seed of the draws.", rich_help_panel=RUNNING)] = SEED,
    jobs: Annotated[int, typer.Option(min=1, help="Points that run at once.", rich_help_panel=RUNNING)] = os.cpu_count()
    or 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print verdicts as JSON.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="Say what there is, and stop.")] = False,
) -> None:
    """Redo the paper's figures and tables: as its text says, as its code does, and with E-DCP beside them.

    Writes pictures (PDF, PNG), tables (CSV), all rows (Parquet) and report.html.
    """
    if listing:
        rows = [(e.name, e.item, e.title) for e in map(get_experiment, EXPERIMENTS)]
        console.print_table(("name", "item", "what"), rows)
        return
    if not names:
        raise ValueError(f"reproduce needs a name, or all; known: {', '.join(EXPERIMENTS)}")
    experiments = _chosen(names)
    sources = sources_from(data or [])
    invented = sorted({e.data for e in experiments if sources[e.data].path is None})
    if invented:
        console.note(f"no --data for {' and '.join(invented)}: using synthetic outputs, and saying so in every picture")
    which: Any = ("logits", "confidences") if scores is _WhichScores.both else (scores.value,)
    request = Request(quick, draws, seed, which)
    with Progress("preparing", unit="points") as bar:
        found = run_all(
            experiments,
            sources,
            out,
            request,
            jobs=jobs,
            on_point=bar.on_point,
            on_drawing=lambda: bar.begin(None, 0, "drawing"),
        )
    _show(found, as_json)


def _chosen(names: list[str]) -> list[Experiment]:
    wanted = [*EXPERIMENTS] if ALL in names else names
    return [*{experiment.name: experiment for experiment in map(get_experiment, wanted)}.values()]


def _show(found: Reproduction, as_json: bool) -> None:
    verdicts = [
        (section.experiment, scores, variant, verdict)
        for section in found.sections
        for (scores, variant), verdict in section.verdicts.items()
    ]
    if as_json:
        rows = [
            {
                "experiment": experiment.name,
                "item": experiment.item,
                "scores": scores,
                "variant": variant,
                "agrees": verdict.agrees,
                "verdict": str(verdict),
                "findings": [{"says": j.says, "holds": j.holds, "figures": j.figures} for j in verdict.judged],
            }
            for experiment, scores, variant, verdict in verdicts
        ]
        print(json.dumps({"report": str(found.report), "verdicts": rows}, indent=2))
        return
    console.print_table(
        ("item", "experiment", "scores", "variant", "verdict"),
        [(e.item, e.name, scores, variant, v.summary) for e, scores, variant, v in verdicts],
        group_by="experiment",
    )
    p = found.provenance
    print(f"{p.computed} of {p.points} points computed in {p.seconds:.0f} s; the rest was there from before")
    print(f"report: {found.report}")
