"""Generated parts about the reproduced paper, from the tables in results/: what there is, what came out, verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import polars as pl

from conformesh.lab.reproduction.curves import VARIANTS, Curves, published_points, select_curves
from conformesh.lab.reproduction.experiments import EXPERIMENTS, get_experiment
from conformesh.lab.reproduction.verdicts import Verdict, judge_case

RESULTS = Path(__file__).parents[1] / "results"
Rows = list[Sequence[str]]


def experiments() -> tuple[Sequence[str], Rows]:
    """Every experiment: name, item and title."""
    rows: Rows = [(f"`{e.name}`", e.item, e.title) for e in map(get_experiment, EXPERIMENTS)]
    return ("name", "in the paper", "what"), rows


def verdicts() -> tuple[Sequence[str], Rows]:
    """The verdict on every item, logits and confidences, in the text's and the code's conventions."""
    rows: Rows = []
    for experiment in map(get_experiment, EXPERIMENTS):
        for scores in ("logits", "confidences"):
            words = [_verdict(experiment.name, variant, scores).summary for variant in VARIANTS]
            rows.append((f"[{experiment.item}](#{experiment.name})", scores, *words))
    return ("item", "scores", *(variant.replace("-", " ") for variant in VARIANTS)), rows


def findings(name: str, scores: str = "logits") -> tuple[Sequence[str], Rows]:
    """The paper's sentences about an item, and what the numbers say of each."""
    judged = [_verdict(name, variant, scores).judged for variant in VARIANTS]
    rows: Rows = []
    for both in zip(*judged, strict=True):
        rows.append((both[0].says, *(f"{'holds' if j.holds else '**does not hold**'}: {j.figures}" for j in both)))
    return ("the paper says", *(variant.replace("-", " ") for variant in VARIANTS)), rows


def reasons(name: str) -> str:
    """Why cases of an item differ from what was published: one line for each reason."""
    why: dict[str, list[str]] = {}
    for scores in ("logits", "confidences"):
        for variant in VARIANTS:
            verdict = _verdict(name, variant, scores)
            if not verdict.agrees and verdict.remark:
                why.setdefault(verdict.remark, []).append(f"{variant.replace('-', ' ')}, {scores}")
    return "\n".join(f"- Differs ({'; '.join(cases)}), because {remark}." for remark, cases in why.items())


def at(name: str, x: str, scores: str = "logits") -> tuple[Sequence[str], Rows]:
    """Coverage and labels of every line at one x: published, as released, as written."""
    theirs = (
        {point.line: point for point in published_points(name) if point.x == float(x)} if scores == "logits" else {}
    )
    both = {variant: _curves(name, variant, scores) for variant in VARIANTS}
    lines = list(dict.fromkeys(line for curves in both.values() for line in curves.lines()))
    rows: Rows = []
    for line in lines:
        known = theirs.get(line)
        classes = int(both[VARIANTS[0]].row(line)["classes"])
        cell = f"{known.coverage:.3f} / {known.size * classes:.2f}" if known else "—"
        rows.append((line, cell, *(_cell(both[variant], line, float(x)) for variant in reversed(VARIANTS))))
    return ("line", "published", "as released", "as written"), rows


def provenance() -> tuple[Sequence[str], Rows]:
    """Where the results come from."""
    facts = json.loads((RESULTS / "provenance.json").read_text(encoding="utf-8"))
    rows: Rows = [
        (key, str(facts[key])) for key in ("command", "version", "seed", "draws", "machine", "seconds", "made")
    ]
    rows += [(f"data: {name}", words) for name, words in facts["data"].items()]
    return ("what", "value"), rows


def _cell(curves: Curves, line: str, x: float) -> str:
    found = x if x in curves.xs(line) else next((each for each in curves.xs(line) if each < 1), None)
    if found is None:
        return "—"
    value = curves.at(line, found)
    return f"{value.coverage:.3f} / {value.size:.2f}"


@cache
def _verdict(name: str, variant: str, scores: str) -> Verdict:
    curves, released = (_curves(name, which, scores) for which in (variant, "as-released"))
    return judge_case(get_experiment(name), variant, scores, curves, on_their_data=True, released=released)


@cache
def _curves(name: str, variant: str, scores: str) -> Curves:
    return select_curves(pl.read_csv(RESULTS / f"{name}.csv"), name, variant, scores)
