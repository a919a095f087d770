"""``conformesh evaluate``: what a result's sets or intervals are worth on labelled data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from conformesh.cli import console, options
from conformesh.cli.command import PATH, SOURCE, Argument, Number, Option, command
from conformesh.cli.predict import ALPHA_OPTION, DEVICE_OPTION, RESULT_ARGUMENT, ROWS_OPTION
from conformesh.cli.results import (
    check_device,
    check_stdin,
    class_names,
    load_result,
    outputs_for_score,
    reading_keywords,
    refuse_score,
    row_keywords,
    score_of_result,
)
from conformesh.common.names import unknown_name
from conformesh.files.labelled import read_labelled
from conformesh.files.tables import FileLayout
from conformesh.kernels.proportions import FAMILY_WISE_ERROR
from conformesh.results.evaluation import Coverage, Evaluation, under_covered
from conformesh.results.result import Result
from conformesh.results.sites import Sites
from conformesh.scores import Score

_MOST_PRINTED = 20  # devices, groups or classes on the screen: those that are covered least; --json has all
_MISSING = {  # why there is no coverage by these
    "device": "the rows name no device; name their column with --device-column, or give --device NAME",
    "group": "the rows name no groups; name their column with --group-column",
    "class": "intervals have no classes",
    "centre": "the result has no centres, or the rows no features; name their columns with --input-column",
}
_BY = (*_MISSING,)
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
    ROWS_OPTION,
    ALPHA_OPTION,
    Option(
        f"--by {'|'.join(_BY)}",
        "Show coverage by this only. With device also sizes, the class with the lowest coverage, and which devices are "
        "under-covered.",
    ),
    Option(
        "--family-wise-error <float>",
        "With --by device: the largest probability that any device is flagged wrongly as under-covered.",
        type=Number(),
        default=FAMILY_WISE_ERROR,
    ),
    Option("--nominal <float>", "With --by device: the coverage to test against; by default 1 - alpha.", type=Number()),
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
    rows: str | None,
    alpha: str | None,
    by: str | None,
    family_wise_error: float,
    nominal: float | None,
    plot: Path | None,
    table: FileLayout,
    seed: int,
    as_json: bool,
) -> None:
    """Measure how often the sets of a result cover the true label, and how large they are.

    OUTPUTS is what predict reads, with the labels beside: names of classes, or numbers from 0. Coverage comes with
    exact 95 % intervals: in all, by device where the file names devices, by group and by class. Use rows that were
    neither trained on nor calibrated with.

    --by device flags under-covered devices: those for which an exact test rejects "the coverage of this device, given
    this calibration, is at least 1 - alpha". Holm's method bounds the probability of any false alarm. Adapted scores
    need the calibration rows of the devices (--rows).
    """
    check_stdin(RESULT=result, OUTPUTS=outputs, **{"--rows": rows})
    check_device(device, table)
    _check_by(by, family_wise_error, nominal)
    picture = _picture(plot)
    saved = _load(result)
    if saved.guarantee.adapt is not None or rows is not None:
        from conformesh.cli.adapted import read_labelled_outputs, with_rows

        refuse_score(saved, score)
        saved = with_rows(saved, result, rows, device, table)
        read, values, truth = read_labelled_outputs(outputs, labels, saved, table, device)
        classes = read.labels if saved.guarantee.adapt.task == "classification" else None
        how: dict[str, Any] = {}
    else:
        kind = score_of_result(saved, score, seed)
        read, truth = read_labelled(outputs, labels, table, **reading_keywords(kind, saved))
        values, classes = outputs_for_score(kind, read), None if kind.task == "regression" else read.labels
        if (known := class_names(saved)) is not None and classes is not None:
            truth = np.array(known)[truth]  # which a result takes for classes, where these are numbers
        how = {"score": kind, "classes": classes}
    how |= row_keywords(saved, read, device, seed)
    if device is not None and by == "device":
        how["device"] = np.full(len(truth), device)
    found = saved.evaluate(values, truth, alpha=alpha, **how)
    assert isinstance(found, Evaluation)
    found = found.named(classes)
    if by is not None and by not in found.parts:
        raise ValueError(f"--by {by}: {_MISSING[by]}")
    if by == "device":
        sites = found.sites(family_wise_error, nominal)
        if picture is not None:
            sites.plot(path=picture)
        data = {**sites.report(), "picture": picture and str(picture)}
        console.show_result(data, as_json, lambda: _report_sites(found, sites, picture))
        return
    if picture is not None:
        found.plot(path=picture, by=by)
    data = {**found.report(), "picture": picture and str(picture)}
    if by is not None:
        data = {name: value for name, value in data.items() if not name.startswith("per_") or name == f"per_{by}"}
    console.show_result(data, as_json, lambda: _report(found, picture, by))


def _picture(plot: Path | None) -> Path | None:
    """Return the file of the picture, checked before anything is computed."""
    if plot is None:
        return None
    from conformesh.plots.pictures import picture_file

    return picture_file(plot)


def _load(source: str) -> Result:
    saved = load_result(source)
    if saved.controlled:
        raise ValueError(
            f"{source} is a result of `conformesh control`, whose losses need more than a label per row; use Python: "
            "Result.load(file).evaluate(outputs, labels)"
        )
    return saved


def _check_by(by: str | None, family_wise_error: float, nominal: float | None) -> None:
    if by is not None and by not in _BY:
        raise ValueError(unknown_name("--by", by, _BY))
    if by != "device" and (nominal is not None or family_wise_error != FAMILY_WISE_ERROR):
        raise ValueError("--nominal and --family-wise-error go with --by device")


def _report_sites(found: Evaluation, sites: Sites, picture: Path | None) -> None:
    lines = [("coverage", dict(found.facts())["coverage"]), ("devices", sites.title())]
    lines += [] if picture is None else [("picture", str(picture))]
    console.print_facts("conformesh evaluate", lines)
    print()
    head, *rows = sites.lines(_MOST_PRINTED)
    console.print_table(head, rows, right=head[1:-1])
    if len(sites) > _MOST_PRINTED:
        print(f"and {len(sites) - _MOST_PRINTED:,} more that are covered as much or more: --json has all")


def _report(found: Evaluation, picture: Path | None, by: str | None) -> None:
    lines = found.facts() + ([] if picture is None else [("picture", str(picture))])
    console.print_facts("conformesh evaluate", lines)
    for what, parts in found.parts.items():
        if by not in (None, what):
            continue
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
