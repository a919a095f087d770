"""``conformesh calibrate``: from a file of scores to a certified threshold."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from conformesh import api
from conformesh.cli import hosts, options
from conformesh.cli.command import PATH, RUNNING, Option, command
from conformesh.cli.options import (
    AdaptOptions,
    GuaranteeOptions,
    NetworkOptions,
    OutputOptions,
    RunOptions,
    read_faults,
)
from conformesh.cli.recording import record_runs
from conformesh.cli.results import print_result, settle_recorded_score
from conformesh.files.score_files import common_score
from conformesh.files.tables import FileLayout
from conformesh.results.result import Result
from conformesh.scores import Score


@command(
    options.scores_argument(),
    options.guarantee_options(*GuaranteeOptions._fields, levels=True),
    options.run_options(
        options.method_option(),
        options.seed_option(
            "Seed of the topology and of methods that draw, 0 by default. Also of the draws of --group-rule regression "
            "and of --adapt (hidden rows), by default fresh and recorded in the result.",
            default=None,
        ),
        options.engine_option(),
        options.fault_option(),
        Option("--warm RESULT", "Start from an earlier result, to save rounds.", type=PATH, panel=RUNNING),
        options.recording_options(),
        options.method_options(),
    ),
    options.network_options(),
    options.score_options(),
    options.adapt_options(),
    options.output_options(),
    options.table_options("device", "score", "group", "weight", "label", "input", "share", "id", outputs=True),
)
def calibrate(
    scores: str,
    table: FileLayout,
    guarantee: GuaranteeOptions,
    network: NetworkOptions,
    score: Score | None,
    adapt: AdaptOptions,
    run: RunOptions,
    output: OutputOptions,
) -> None:
    """Agree on a threshold whose prediction sets cover the true label with probability at least 1 - alpha.

    SCORES has columns `device` and `score`, or others that are named, one row per calibration point. With --adapt it
    has labelled outputs instead: `device`, `label` and a column for each class (for regression `prediction`, and
    optionally `scale`). The devices talk over the topology, or over the graph whose edges are given. Methods: see
    `conformesh methods`, ways to adapt: `conformesh adaptations`.
    """
    adaptation = adapt.chosen
    if adaptation is not None and score is not None:
        raise ValueError(f"--adapt {adapt.name} replaces the score; leave --score {score.name} out")
    with hosts.start_job(run.engine) as job, record_runs(run.recording, sparing=True) as recorder:
        chosen = run.checked_options()
        if run.warm is not None:
            chosen["warm"] = Result.load(run.warm).bracket
        asked = guarantee.keywords(scores, table)
        connect = partial(network.connect, seed=run.seed or 0)
        if adaptation is None:
            file, engine = job.load(scores, replace(table, sides=guarantee.sides), connect)
            data = hosts.table_of_devices(file, engine.network.local_ids(engine.rows))
            score = settle_recorded_score(common_score(engine.share(file.made_by), file.name), score, file.name)
            more = {"weight": data.weight, "inputs": data.inputs, "labels": data.labels, "classes": file.classes}
        else:
            from conformesh.cli.adapted import read_device_outputs

            read = partial(read_device_outputs, adaptation=adaptation)
            file, engine = job.load(scores, table, connect, read)
            data = hosts.select_devices(file.table, engine.network.local_ids(engine.rows))
            more = {"weight": table.weight, "adapt": file.adaptation}
        with hosts.show_progress(engine, run.method, recorder):
            result = api.calibrate(
                data,
                engine.network,
                guarantee.alpha,
                run.method,
                score=score,
                engine=engine,
                faults=read_faults(run.fault),
                rng=run.seed,
                **more,
                **asked,
                **chosen,
            )
            if recorder is not None:
                recorder.finish(result)
        if job.first:
            output.show(result, print_result)
