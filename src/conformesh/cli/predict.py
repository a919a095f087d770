"""``conformesh predict``: from a calibrated threshold and model outputs to prediction sets."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from conformesh.cli import console, options
from conformesh.cli.command import SOURCE, Argument, Option, command
from conformesh.cli.results import (
    check_device,
    check_stdin,
    load_result_or_tests,
    outputs_for_score,
    reading_keywords,
    refuse_score,
    row_keywords,
    score_of_result,
)
from conformesh.files.json_numbers import as_json_value
from conformesh.files.output_files import OutputFile, read_outputs
from conformesh.files.tables import FileLayout
from conformesh.results.lambda_tests import LambdaTests
from conformesh.results.result import Result
from conformesh.scores import Score
from conformesh.scores.losses import Loss

_ENDINGS = (".csv", ".jsonl", ".parquet")
RESULT_ARGUMENT = Argument("result", "RESULT", "What calibrate --out or --json wrote; - reads it from stdin.")
DEVICE_OPTION = Option("--device NAME", "Use this device's own threshold.")
ROWS_OPTION = Option(
    "--rows FILE",
    "For a result with adapted scores: the labelled outputs that the devices calibrated with, in the form of calibrate "
    "--adapt. With --device only those of this device are needed.",
    type=SOURCE,
)
ALPHA_OPTION = Option("--alpha <float>", "Which of several levels to use.")


@command(
    RESULT_ARGUMENT,
    Argument(
        "probabilities",
        "PROBABILITIES",
        "Model outputs: CSV or Parquet with a column per class, NPZ, NPY; - reads CSV.",
    ),
    options.score_options(),
    DEVICE_OPTION,
    ROWS_OPTION,
    ALPHA_OPTION,
    Option(
        "--format", "What goes to standard output.", name="form", type=click.Choice(["csv", "jsonl"]), default="csv"
    ),
    options.out_option("Write to this file instead: .csv, .jsonl or .parquet."),
    Option("--labels/--indices", "Write label names, or column numbers.", default=True),
    options.table_options("device", "group", "weight", "input", "id", "label", outputs=True),
    options.seed_option(
        "Seed of a randomised score, such as APS, that has none of its own, and of the draws of centres."
    ),
)
@console.warnings_in_one_line()
def predict(
    result: str,
    probabilities: str,
    score: Score | None,
    device: str | None,
    rows: str | None,
    alpha: str | None,
    form: str,
    out: Path | None,
    labels: bool,
    table: FileLayout,
    seed: int,
) -> None:
    """Write one prediction set per row of model outputs: row, size, set; or row, lower, upper for regression.

    Rows are counted from 0. A row's device, where the file names it, selects that device's own threshold; otherwise the
    threshold that is valid on every device is used. Where the result knows its classes, columns are matched by name;
    columns that are no classes are named, and follow behind the sets.

    With adapted scores each device predicts for its own examples, and needs its calibration rows (--rows).
    """
    check_stdin(RESULT=result, PROBABILITIES=probabilities, **{"--rows": rows})
    check_device(device, table)
    ending = _ending(out, form)
    saved = load_result_or_tests(result)
    kind: Any
    how: dict[str, Any]
    if isinstance(saved, LambdaTests):
        given = {"--score": score, "--device": device, "--rows": rows, "--alpha": alpha}
        kind, outputs = _outputs_for_tests(saved, probabilities, table, given)
        values, how = outputs_for_score(kind, outputs), {}
    elif saved.guarantee.adapt is not None or rows is not None:
        from conformesh.cli.adapted import read_new_outputs, with_rows

        refuse_score(saved, score)
        saved = with_rows(saved, result, rows, device, table)
        kind = saved.guarantee.adapt
        outputs, values = read_new_outputs(probabilities, saved, table, device)
        how = {"alpha": alpha, **row_keywords(saved, outputs, device, seed)}
    else:
        kind = _loss(saved, score) or score_of_result(saved, score, seed)
        outputs = read_outputs(probabilities, table, **reading_keywords(kind, saved))
        values = outputs_for_score(kind, outputs)
        how = {"alpha": alpha, **row_keywords(saved, outputs, device, seed)}
        if isinstance(kind, Score):
            how |= {"score": kind, "labels": outputs.labels if kind.task == "classification" else None}
    predicted = saved.predict(values, **how)
    columns: dict[str, list[Any]] = {"row": [*range(len(predicted))]}
    if kind.task == "regression":
        columns |= {"lower": predicted[:, 0].tolist(), "upper": predicted[:, 1].tolist()}
    else:
        names: Sequence[str | int] = outputs.labels if labels else range(len(outputs.labels))
        columns["size"] = predicted.sum(axis=1).tolist()
        columns["set"] = [[names[i] for i in np.flatnonzero(inside).tolist()] for inside in predicted]
        if ending == ".csv" and any(" " in str(name) for name in names):
            console.print_note(
                "some labels contain spaces, which also separate them; --format jsonl keeps labels apart"
            )
    taken = [name for name in outputs.kept if name in columns]
    if taken:
        raise ValueError(f"{outputs.name}: column {taken[0]!r} cannot pass through: the answer has its own; rename it")
    _write({**columns, **outputs.kept}, ending, out)


def _ending(out: Path | None, form: str) -> str:
    """Return what the name of the file says, or the format of standard output."""
    if out is None:
        return f".{form}"
    from conformesh.files.table_writers import check_file_ending

    check_file_ending(out, _ENDINGS)
    return out.suffix.lower()


def _outputs_for_tests(
    tests: LambdaTests, source: str, layout: FileLayout, given: Mapping[str, Any]
) -> tuple[Loss, OutputFile]:
    """Return the loss of tests of lambdas, and outputs for it; there is one lambda for all rows."""
    if wrong := next((name for name, value in given.items() if value is not None), None):
        raise ValueError(f"{wrong} does not go with tests of lambdas, which have one lambda for all rows; leave it out")
    if tests.loss is None:
        raise ValueError("the tests do not name their loss; control again with --loss, or predict in Python")
    loss: Loss = tests.loss
    return loss, read_outputs(source, layout, logits=loss.reads == "logits", classes=None)


def _loss(result: Result, named: Score | None) -> Loss | None:
    """Return the loss of a result of risk control, which must know it; None where the result covers."""
    if result.guarantee.loss is None:
        return None
    if named is not None:
        raise ValueError("a result of `conformesh control` goes by its loss, not by a score; leave --score out")
    loss: Loss | None = result.guarantee.loss.loss
    if loss is None:
        raise ValueError("the result does not name its loss; control again with --loss, or predict in Python")
    return loss


def _write(columns: dict[str, list[Any]], ending: str, out: Path | None) -> None:
    """Write the answer, whole or not at all where it goes to a file."""
    from conformesh.files.atomic_writes import write_file

    if ending == ".parquet":
        import polars as pl

        assert out is not None
        buffer = io.BytesIO()
        pl.DataFrame(columns).write_parquet(buffer)
        write_file(out, buffer.getbuffer())
        return
    stream = sys.stdout if out is None else io.StringIO()
    rows = zip(*columns.values(), strict=True)
    if ending == ".jsonl":
        objects = (as_json_value(dict(zip(columns, row, strict=True))) for row in rows)
        stream.writelines(json.dumps(one, default=str) + "\n" for one in objects)
    else:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([" ".join(map(str, cell)) if isinstance(cell, list) else cell for cell in row] for row in rows)
    if isinstance(stream, io.StringIO) and out is not None:
        write_file(out, stream.getvalue())
