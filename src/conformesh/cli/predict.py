"""``conformesh predict``: from a calibrated threshold and model outputs to prediction sets."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from conformesh.cli import console
from conformesh.cli.calibrate import named_score
from conformesh.cli.options import whole
from conformesh.io.json_numbers import from_json
from conformesh.io.output_files import read_outputs
from conformesh.io.tables import Layout
from conformesh.promises import exact_alpha
from conformesh.result.calibration import Calibration
from conformesh.result.files import SEVERAL
from conformesh.result.several import Calibrations
from conformesh.scores import LAC, SCORES, Score

STDIN = "-"


class Format(StrEnum):
    """How the sets are written."""

    csv = "csv"
    jsonl = "jsonl"


def predict(
    result: Annotated[
        str, typer.Argument(metavar="RESULT", help="What calibrate --out or --json wrote; - reads it from stdin.")
    ],
    probabilities: Annotated[
        str,
        typer.Argument(
            metavar="PROBABILITIES",
            help="Model outputs: CSV or Parquet with a column per class, NPZ, NPY; - reads CSV.",
        ),
    ],
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
    device_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column that names each row's device; by default `device`, where there is one.",
            show_default=False,
        ),
    ] = None,
    alpha: Annotated[
        str | None, typer.Option(metavar="<float>", help="Which of several levels to use.", show_default=False)
    ] = None,
    group_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column that names each row's group; without it groups are labels (class-conditional sets).",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        str, typer.Option(metavar="<int>", help="Seed of a randomised score (APS, RAPS) that has none of its own.")
    ] = "0",
    form: Annotated[Format, typer.Option("--format", help="CSV or JSON lines.")] = Format.csv,
    labels: Annotated[bool, typer.Option("--labels/--indices", help="Write label names, or column numbers.")] = True,
) -> None:
    """Write one prediction set per row of model outputs: row, size, set; or row, lower, upper for regression.

    Rows are counted from 0. A row's device, where the file names it, selects that device's own threshold; otherwise the
    threshold that is valid on every device is used.
    """
    if result == STDIN == probabilities:
        raise ValueError("only one of RESULT and PROBABILITIES can come from standard input, got - for both")
    if device is not None and device_column is not None:
        raise ValueError("give --device or --device-column, not both")
    calibration = _load(result)
    kind = _score(calibration, named_score(score, score_option or [])).seeded(whole(seed, "seed", 0))
    several = isinstance(calibration, Calibrations)
    if several and (device is not None or device_column is not None):
        raise ValueError("several calibrations go by --group-column and --alpha, not by device")
    if not several and group_column is not None:
        raise ValueError("--group-column needs a result of `conformesh calibrate --group`")
    column = group_column if several else device_column
    outputs = read_outputs(probabilities, Layout(column), logits=kind.name == "logit")
    values = outputs.values
    if kind.task == "regression" and values.shape[1] == 1:
        values = values[:, 0]
    if isinstance(calibration, Calibrations):
        level = None if alpha is None else float(exact_alpha(alpha))
        rows = outputs.devices if group_column is not None else None
        predicted = calibration.predict(values, score=kind, groups=rows, alpha=level, labels=outputs.labels)
    else:
        predicted = calibration.predict(values, score=kind, device=device if device is not None else outputs.devices)
    if kind.task == "regression":
        _write(("row", "lower", "upper"), _intervals(predicted), form)
        return
    names: Sequence[str | int] = outputs.labels if labels else range(len(outputs.labels))
    if form is Format.csv and any(" " in str(name) for name in names):
        console.note("some labels contain spaces, which also separate them; --format jsonl keeps labels apart")
    _write(("row", "size", "set"), _sets(predicted, names, form), form)


def _load(source: str) -> Calibration | Calibrations:
    where = "standard input" if source == STDIN else source
    raw = from_json(sys.stdin.read() if source == STDIN else Path(source).read_bytes(), where)
    if isinstance(raw, dict) and raw.get("format") == SEVERAL:
        return Calibrations.from_dict(raw, where)
    return Calibration.from_dict(raw, where)


def _score(calibration: Calibration | Calibrations, named: Score | None) -> Score:
    if calibration.score is None:
        if named is None:
            console.note("the result does not name its score, taking 'lac'; name it with --score")
        return named or LAC()
    if named is not None and named != calibration.score:
        raise ValueError(f"the result was calibrated with {calibration.score!r}, got {named!r}; leave --score out")
    return calibration.score


def _sets(sets: NDArray[np.bool_], names: Sequence[str | int], form: Format) -> Iterator[tuple[Any, ...]]:
    for row, inside in enumerate(sets):
        members = [names[i] for i in np.flatnonzero(inside).tolist()]
        yield row, len(members), members if form is Format.jsonl else " ".join(map(str, members))


def _intervals(intervals: NDArray[np.float64]) -> Iterator[tuple[Any, ...]]:
    for row, (lower, upper) in enumerate(intervals.tolist()):
        yield row, *(value if np.isfinite(value) else str(value) for value in (lower, upper))


def _write(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]], form: Format) -> None:
    if form is Format.jsonl:
        sys.stdout.writelines(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
