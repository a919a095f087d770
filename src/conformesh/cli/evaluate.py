"""``conformesh evaluate``: what a result's sets or intervals are worth on labelled data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from conformesh.cli import console, options
from conformesh.cli.command import PATH, SOURCE, Argument, Option, command
from conformesh.cli.predict import ALPHA_OPTION, DEVICE_OPTION, RESULT_ARGUMENT
from conformesh.cli.results import (
    check_device,
    check_stdin,
    class_names,
    load_result,
    outputs_for_score,
    reading_keywords,
    row_keywords,
    score_of_result,
)
from conformesh.files.labelled import read_labelled
from conformesh.files.tables import FileLayout
from conformesh.results.evaluation import Coverage, Evaluation, under_covered
from conformesh.scores import Score

_MOST_PRINTED = 20  # devices, groups or classes on the screen: those that are covered least; --json has all
_LABELS = Option("--labels FILE", "True labels in a file of their own.", type=SOURCE)


@command(
    RESULT_ARGUMENT,
    Argument(
        "outputs",
        "OUTPUTS",
        "Labelled model outputs: CSV or Parquet with a label and a column per class, NPZ, NPY with --labels; - reads "
        "CSV.",
    ),
    _LABELS,
    options.score_options(),
    DEVICE_OPTION,
    ALPHA_OPTION,
    Option("--plot FILE", "Draw coverage and sizes: .png, .pdf or .svg.", type=PATH),
    options.json_option(),
    options.table_options("device", "group", "weight", "input", "label", "id", outputs=True),
    options.seed_option(
        "Seed of a randomised score, such as APS, that has none of its own, and of the draws of centres."
    ),
)
@console.warnings_in_one_line()
def evaluate(
    result: str,
    outputs: str,
    labels: str | None,
    score: Score | None,
    device: str | None,
    alpha: str | None,
    plot: Path | None,
    table: FileLayout,
    seed: int,
    as_json: bool,
) -> None:
    """Measure how often the sets of a result cover the true label, and how large they are.

    OUTPUTS is what predict reads, with the labels beside: names of classes, or numbers from 0. Coverage comes with 95 %
    Wilson intervals: in all, by device where the file names devices, by group and by class. Use rows that were neither
    trained on nor calibrated with.
    """
    check_stdin(RESULT=result, OUTPUTS=outputs)
    check_device(device, table)
    picture = None
    if plot is not None:
        from conformesh.plots.pictures import picture_file

        picture = picture_file(plot)
    saved = load_result(result)
    if saved.controlled:
        raise ValueError(
            f"{result} is of `conformesh control`, whose losses need more than one label a row; evaluate it in Python: "
            "Result.load(file).evaluate(outputs, labels)"
        )
    kind = score_of_result(saved, score, seed)
    read, truth = read_labelled(outputs, labels, table, **reading_keywords(kind, saved))
    values, classes = outputs_for_score(kind, read), None if kind.task == "regression" else read.labels
    if (known := class_names(saved)) is not None and classes is not None:
        truth = np.array(known)[truth]  # which a result takes for classes, where these are numbers
    rows = row_keywords(saved, read, device, seed)
    found = saved.evaluate(values, truth, alpha=alpha, score=kind, classes=classes, **rows)
    assert isinstance(found, Evaluation)
    found = found.named(classes)
    if picture is not None:
        found.plot(path=picture)
    data = {**found.report(), "picture": picture and str(picture)}
    console.show_result(data, as_json, lambda: _report(found, picture))


def _report(found: Evaluation, picture: Path | None) -> None:
    lines = found.facts() + ([] if picture is None else [("picture", str(picture))])
    console.print_facts("conformesh evaluate", lines)
    for what, parts in found.parts.items():
        print()
        least = sorted(parts, key=lambda name: parts[name].rate)[:_MOST_PRINTED]
        below = under_covered(parts, found.nominal)
        rows = [(name, f"{parts[name].rows:,}", *_cells(parts[name], name in below)) for name in least]
        columns = (what, "rows", "coverage", "95 % interval", "")
        console.print_table(columns, rows, right=columns[1:4])
        if len(parts) > _MOST_PRINTED:
            print(f"and {len(parts) - _MOST_PRINTED:,} more that are covered as much or more: --json has all")


def _cells(part: Coverage, is_below: bool) -> tuple[str, str, str]:
    return f"{part.rate:.4f}", f"{part.low:.4f} to {part.high:.4f}", "below" if is_below else ""
