"""``conformesh calibrate``: from a file of scores to a certified threshold."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from conformesh import api
from conformesh.cli import options, pipeline
from conformesh.cli.command import PATH, RUNNING, Option, command
from conformesh.cli.options import GuaranteeOptions, NetworkOptions, Output, RunOptions, chosen_faults
from conformesh.cli.recording import recorded
from conformesh.cli.results import print_result, score_in_file
from conformesh.files.score_files import one_score
from conformesh.files.tables import ColumnNames
from conformesh.results.result import Result
from conformesh.scores import Score


@command(
    options.scores_file(),
    options.guarantee(*GuaranteeOptions._fields, levels=True),
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
    options.table("device", "score", "group", "weight", "label", "input", "share"),
)
def calibrate(
    scores: str,
    table: ColumnNames,
    guarantee: GuaranteeOptions,
    network: NetworkOptions,
    score: Score | None,
    run: RunOptions,
    output: Output,
) -> None:
    """Agree on a threshold whose prediction sets cover the true label with probability at least 1 - alpha.

    SCORES has columns `device` and `score`, or others that are named, one row per calibration point. The devices
    talk over the topology, or over the graph whose edges are given. Methods: see `conformesh methods`.
    """
    with pipeline.job(run.engine) as hosts, recorded(run.recording, sparing=True) as recorder:
        chosen = run.checked_options()
        if run.warm is not None:
            chosen["warm"] = Result.load(run.warm).bracket
        asked = guarantee.keywords(scores, table)
        layout = replace(table, sides=guarantee.sides)
        held, host = hosts.load(scores, layout, partial(network.connect, seed=run.seed or 0))
        data = pipeline.table_of(held, host.network.local_ids(host.rows))
        with pipeline.observed(host, run.method, recorder):
            result = api.calibrate(
                data,
                host.network,
                guarantee.alpha,
                run.method,
                weight=data.weight,
                inputs=data.inputs,
                labels=data.labels,
                score=score_in_file(one_score(host.share(held.made_by), held.name), score, held.name),
                classes=held.classes,
                engine=host,
                faults=chosen_faults(run.fault),
                rng=run.seed,
                **asked,
                **chosen,
            )
            if recorder is not None:
                recorder.finish(result)
        if hosts.first:
            output.show(result, print_result)
