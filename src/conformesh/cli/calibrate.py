"""``conformesh calibrate``: from a file of scores to a certified threshold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from conformesh.cli import console, options, pipeline
from conformesh.cli.command import PATH, RUNNING, Option, command
from conformesh.cli.options import Guarantee, Network, Output, Run, chosen_faults
from conformesh.cli.recording import recorded
from conformesh.cli.results import score_in_file
from conformesh.io.score_files import one_score
from conformesh.io.tables import Layout
from conformesh.kernels.ranks import GROUP_RULES, exact_alpha
from conformesh.methods import METHODS, get_method, make_options, refuse_faults
from conformesh.quantities import in_bits, in_count, several
from conformesh.result.calibration import Calibration
from conformesh.result.several import Calibrations
from conformesh.scores import Score

RANKS = ("required rank", "counted", "of scores")


@command(
    options.scores_file(),
    options.guarantee(*Guarantee._fields, levels=True),
    options.run(
        options.method(),
        options.seed(
            "Seed of the topology and, where it has one, of the method, both 0 by default; of the scores that "
            "--group-rule regression draws, by default fresh and recorded in the result.",
            default=None,
        ),
        options.engine(),
        options.fault(),
        Option("--warm RESULT", "Start from an earlier result, to save rounds.", type=PATH, panel=RUNNING),
        options.recording(),
        options.method_options(),
    ),
    options.network(),
    options.score(),
    options.output(),
    options.table("device", "score", "group", "weight", "share"),
)
def calibrate(
    scores: str,
    table: Layout,
    guarantee: Guarantee,
    network: Network,
    score: Score | None,
    run: Run,
    output: Output,
) -> None:
    """Agree on a threshold whose prediction sets cover the true label with probability at least 1 - alpha.

    SCORES has columns `device` and `score`, or others that are named, one row per calibration point. The devices
    talk over the topology, or over the graph whose edges are given. Methods: see `conformesh methods`.
    """
    with pipeline.job(run.engine) as hosts, recorded(run.recording, sparing=True) as recorder:
        for level in guarantee.alpha:
            exact_alpha(level)
        _check(guarantee, table)
        chosen, faults = run.checked_options(), chosen_faults(run.fault)
        refuse_faults(run.method, make_options(run.method, chosen), faults)
        if run.warm is not None:
            chosen["warm"] = _bracket(run.warm, run.method, several=len(guarantee.alpha) > 1 or bool(table.groups))
        mixture = guarantee.shares(scores, table)
        held, host, ids = pipeline.load(hosts, scores, table, lambda known: network.connect(known, run.seed or 0))
        kind = score_in_file(one_score(host.share(held.made_by), held.name), score, held.name)
        asked: dict[str, Any] = {"target": mixture, "rank": guarantee.rank_rule, "score": kind, "faults": faults}
        asked |= {"strict": guarantee.strict, **chosen}
        if guarantee.pac_confidence is not None:
            asked["pac_confidence"] = guarantee.pac_confidence
        if table.weight is not None:
            asked |= {"weight": held.weights_for(ids), "weight_bound": guarantee.weight_bound}
        if table.groups:
            asked |= {"groups": held.groups_for(ids), "group_rule": guarantee.group_rule, "rng": run.seed}
            asked["group_order"] = guarantee.group_order or None
        with pipeline.observed(host, run.method, recorder):
            result = pipeline.calibrate_scores(held.for_devices(ids), host, guarantee.alpha, run.method, **asked)
            if recorder is not None:
                recorder.finish(result)
        if hosts.first:
            output.show(result if held.classes is None else _with_classes(result, held.classes), _print)


def _check(guarantee: Guarantee, table: Layout) -> None:
    """Refuse options that do not go together."""
    if not guarantee.alpha:
        raise ValueError("--alpha needs a number between 0 and 1")
    if table.weight is not None and (table.groups or guarantee.pac_confidence is not None):
        raise ValueError(
            "--weight-column goes neither with --group-column nor with --pac-confidence; leave one of them out"
        )
    if (table.weight is None) != (guarantee.weight_bound is None):
        raise ValueError(
            "--weight-column and --weight-bound go together: a column of weights, and the largest that any example may "
            "have, which the largest one seen is not"
        )
    if not table.groups and (guarantee.group_rule or guarantee.group_order):
        raise ValueError("--group-rule and --group-order need --group-column, the columns that name the groups")


def _with_classes(result: Calibration | Calibrations, classes: tuple[str, ...]) -> Calibration | Calibrations:
    """Let the result know which classes its scores came from, so that `predict` can check them."""
    if isinstance(result, Calibration):
        return replace(result, classes=classes)
    return replace(result, items={key: replace(item, classes=classes) for key, item in result.items.items()})


def _print(result: Calibration | Calibrations) -> None:
    if isinstance(result, Calibrations):
        _print_several(result)
    else:
        console.print_facts(f"conformesh {result.method}", result.facts())


def _bracket(path: Path, method: str, several: bool) -> tuple[float, float] | None:
    if not get_method(method).starts_warm or several:
        names = [name for name, entry in METHODS.items() if entry.starts_warm]
        raise ValueError(f"--warm goes with --method {' or '.join(names)}, one alpha and no groups")
    return Calibration.load(path).bracket


def _print_several(results: Calibrations) -> None:
    grouped = results.groups != (None,)
    weighed = any(item.certificate.weight is not None for item in results.items.values())
    names = (*RANKS[:2], "of weight") if weighed else RANKS
    columns = (*(("group",) if grouped else ()), "alpha", "threshold", "guarantee", *names)
    rows = []
    for (group, alpha), item in results.items.items():
        whole = item.scores if item.certificate.noise is None else None
        whole = whole if item.certificate.weight is None else item.certificate.weight
        ranks = (item.certificate.required_rank, item.certificate.counted_rank, whole)
        shown = (f"{rank:,}" if isinstance(rank, int) else "" for rank in ranks)
        row = (f"{alpha:g}", f"{item.threshold:.6g}", item.certificate.kind, *shown)
        rows.append((*((str(group),) if grouped else ()), *row))
    console.print_table(columns, rows, right=("alpha", "threshold", *names))
    cost = results.cost
    if results.rule:
        print(f"\n{results.rule}: {GROUP_RULES[results.rule]}")
    print(
        f"\none run for all: {several(cost.rounds, 'round')}, each device sent "
        f"{in_count(cost.numbers_per_device)} numbers, {in_bits(cost.bits_per_device)}"
    )
