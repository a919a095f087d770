"""``conformesh evaluate``: what a result's sets or intervals are worth on labelled data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from conformesh.cli import console
from conformesh.cli.calibrate import named_score
from conformesh.cli.options import whole
from conformesh.cli.panels import FILES, RUNNING
from conformesh.cli.predict import (
    STDIN,
    check_fit,
    columns_in,
    level_of,
    load_result,
    names_of,
    score_of,
    values_for,
    wanted_of,
)
from conformesh.cli.reading import Decimal, DeviceColumn, IdColumn, Keep, LabelColumn, OutputColumns, Separator, named
from conformesh.io.labelled import read_labelled
from conformesh.io.tables import Layout
from conformesh.plots.pictures import picture_file
from conformesh.result.calibration import Calibration
from conformesh.result.control import Control
from conformesh.result.evaluation import Coverage, Evaluation
from conformesh.result.several import Calibrations
from conformesh.result.sides import Sides, two_sided
from conformesh.scores import SCORES

SHOWN = 20  # devices, groups or classes on the screen: those that are covered least; --json has all


@console.warnings_in_one_line()
def evaluate(
    result: Annotated[
        str, typer.Argument(metavar="RESULT", help="What calibrate --out or --json wrote; - reads it from stdin.")
    ],
    outputs: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUTS",
            help="Labelled model outputs: CSV or Parquet with a label and a column per class, NPZ, NPY with --labels; "
            "- reads CSV.",
        ),
    ],
    labels: Annotated[
        str | None, typer.Option(metavar="FILE", help="True labels in a file of their own.", show_default=False)
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(help=f"Where RESULT does not name it: {', '.join(SCORES)}.", show_default=False),
    ] = None,
    score_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the score, as k_reg=2; may be repeated.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use this device's own threshold.", show_default=False)
    ] = None,
    alpha: Annotated[
        str | None, typer.Option(metavar="<float>", help="Which of several levels to use.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw coverage and sizes: .png, .pdf or .svg.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    device_column: DeviceColumn = None,
    group_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="The columns that name each row's groups, as in calibrate --group; without it groups are labels.",
            show_default=False,
            rich_help_panel=FILES,
        ),
    ] = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    output_columns: OutputColumns = None,
    keep: Keep = None,
    separator: Separator = None,
    decimal: Decimal = None,
    seed: Annotated[
        str,
        typer.Option(
            metavar="<int>",
            help="Seed of a randomised score, such as APS, that has none of its own.",
            rich_help_panel=RUNNING,
        ),
    ] = "0",
) -> None:
    """Measure how often the sets of a result hold the true label, and how large they are.

    OUTPUTS is what predict reads, with the labels beside: names of classes, or numbers from 0. Coverage comes with 95 %
    Wilson intervals: in all, by device where the file names devices, by group and by class. Use rows that were neither
    trained on nor calibrated with.
    """
    if result == STDIN == outputs:
        raise ValueError("only one of RESULT and OUTPUTS can come from standard input, got - for both")
    if device is not None and device_column is not None:
        raise ValueError("give --device or --device-column, not both")
    picture = None if plot is None else picture_file(plot)
    calibration = load_result(result)
    first = next(iter(calibration.items.values())) if isinstance(calibration, Calibrations) else calibration
    if isinstance(first, Control):
        raise ValueError(
            f"{result} is of `conformesh control`, whose losses need more than one label a row; evaluate it in Python: "
            "Calibration.load(file).evaluate(outputs, labels)"
        )
    kind = score_of(calibration, named_score(score, score_option or []), whole(seed, "seed", 0))
    groups = columns_in(group_column)
    check_fit(calibration, device or device_column, groups, alpha)
    layout = Layout(
        device_column,
        None,
        label_column,
        id_column,
        groups,
        named(keep),
        separator,
        decimal,
        outputs=named(output_columns),
    )
    read, truth = read_labelled(outputs, labels, layout, **wanted_of(kind, calibration))
    values = values_for(kind, read)
    if isinstance(calibration, Calibrations) and calibration.groups == (None,):
        calibration = calibration.get(level_of(alpha))
    if (known := names_of(calibration)) is not None and kind.task != "regression":
        truth = np.array(known)[truth]  # which a result takes for classes, where these are numbers
    whose = read.devices if device is None else device
    if isinstance(calibration, Calibration):
        found = calibration.evaluate(values, truth, score=kind, device=whose)
    elif isinstance(calibration, Sides):
        found = calibration.evaluate(values, truth, score=two_sided(kind), device=whose)
    else:
        found = calibration.evaluate(
            values, truth, score=kind, groups=read.groups, alpha=level_of(alpha), classes=read.labels
        )
    found = found.named(None if kind.task == "regression" else read.labels)
    if picture is not None:
        found.plot(path=picture)
    if as_json:
        print(json.dumps({**found.report(), "picture": None if picture is None else str(picture)}, allow_nan=False))
    else:
        _report(found, picture)


def _report(found: Evaluation, picture: Path | None) -> None:
    lines = found.facts() + ([] if picture is None else [("picture", str(picture))])
    console.print_facts("conformesh evaluate", lines)
    for what, parts in found.parts.items():
        print()
        least = sorted(parts, key=lambda name: parts[name].rate)[:SHOWN]
        rows = [(name, f"{parts[name].rows:,}", *_cells(parts[name], found.nominal)) for name in least]
        columns = (what, "rows", "coverage", "95 % interval", "")
        console.print_table(columns, rows, right=columns[1:4])
        if len(parts) > SHOWN:
            print(f"and {len(parts) - SHOWN:,} more that are covered as much or more: --json has all")


def _cells(part: Coverage, nominal: float | None) -> tuple[str, str, str]:
    return f"{part.rate:.4f}", f"{part.low:.4f} to {part.high:.4f}", "below" if part.misses(nominal) else ""
