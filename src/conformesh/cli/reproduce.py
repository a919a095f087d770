"""``conformesh reproduce``: the paper's figures and tables again, beside the published points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from conformesh.cli import console, options
from conformesh.cli.command import RUNNING, SOURCE, Argument, Option, WholeNumber, command
from conformesh.common.progress import Progress
from conformesh.lab.reproduction.experiments import EXPERIMENTS, Experiment, get_experiment
from conformesh.lab.reproduction.paper_scores import paper_score_sources
from conformesh.lab.reproduction.reproduction import (
    COMPARED_DRAWS,
    DEFAULT_SEED,
    PAPER_DRAWS,
    Reproduction,
    ReproductionRequest,
)
from conformesh.lab.reproduction.reproduction import reproduce_experiments as run_all

ALL = "all"


@command(
    Argument("names", "[NAME]...", "Experiments, as q-dcp-alpha or figure-2; or all.", nargs=-1, type=str),
    Option(
        "--data FILE",
        "Model outputs with labels (NPZ, CSV, Parquet): 100 classes for the CIFAR-100 items, 9 for PathMNIST; "
        "or a folder of them; may be repeated. Without, synthetic.",
        type=SOURCE,
        multiple=True,
    ),
    options.out_option("Where results go; a stopped run goes on from there.", "DIR", default="conformesh-reproduction"),
    Option("--quick", "A smoke version of everything: two draws, coarse grids, fewer rounds."),
    Option(
        "--draws <int>",
        f"Draws of calibration data; by default {PAPER_DRAWS}, and {COMPARED_DRAWS} where published points are known.",
        type=WholeNumber(1),
    ),
    Option(
        "--scores",
        "1 - logit, 1 - confidence, or both.",
        type=click.Choice(["logits", "confidences", "both"]),
        default="both",
    ),
    Option("--seed <int>", "Seed of the draws.", type=WholeNumber(), default=DEFAULT_SEED, panel=RUNNING),
    options.jobs_option(),
    options.json_option("Print verdicts as JSON."),
    Option("--list", "Say what there is, and stop.", name="listing"),
)
def reproduce(
    names: tuple[str, ...],
    data: tuple[str, ...],
    out: Path,
    quick: bool,
    draws: int | None,
    scores: str,
    seed: int,
    jobs: int,
    as_json: bool,
    listing: bool,
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
    experiments = _chosen([*names])
    sources = paper_score_sources([*data])
    invented = sorted({e.data for e in experiments if sources[e.data].path is None})
    if invented:
        console.print_note(
            f"no --data for {' and '.join(invented)}: using synthetic outputs, and saying so in every picture"
        )
    which: Any = ("logits", "confidences") if scores == "both" else (scores,)
    request = ReproductionRequest(quick, draws, seed, which)
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
