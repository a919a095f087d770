"""``conformesh predict``: from a calibrated threshold and model outputs to prediction sets."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from conformesh.cli import console
from conformesh.cli.calibrate import named_score
from conformesh.cli.options import whole
from conformesh.cli.panels import RUNNING
from conformesh.cli.reading import Decimal, DeviceColumn, IdColumn, Keep, LabelColumn, OutputColumns, Separator, named
from conformesh.io.files import write_file
from conformesh.io.json_numbers import from_json, in_json
from conformesh.io.output_files import OutputFile, read_outputs
from conformesh.io.tables import Layout
from conformesh.io.writing import check_ending
from conformesh.kernels.ranks import exact_number
from conformesh.losses import Loss
from conformesh.result.calibration import Calibration
from conformesh.result.control import Control
from conformesh.result.files import SEVERAL, SIDES
from conformesh.result.several import Calibrations
from conformesh.result.sides import Sides, two_sided
from conformesh.scores import LAC, SCORES, RegressionScore, Score
from conformesh.scores.functions import FunctionScore, IntervalFunctionScore

STDIN = "-"
Result = Calibration | Calibrations | Sides


class _Format(StrEnum):
    """What can be written to standard output."""

    csv = "csv"
    jsonl = "jsonl"


class Ending(StrEnum):
    """What can be written."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"

    @classmethod
    def of(cls, out: Path | None, form: _Format) -> Ending:
        """Return what the name of the file says, or the format of standard output."""
        if out is None:
            return cls(form.value)
        check_ending(out, [f".{ending}" for ending in cls])
        return cls(out.suffix.lower().removeprefix("."))


@console.warnings_in_one_line()
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
    alpha: Annotated[
        str | None, typer.Option(metavar="<float>", help="Which of several levels to use.", show_default=False)
    ] = None,
    group_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="The columns that name each row's groups, as in calibrate --group; without it groups are labels "
            "(class-conditional sets).",
            show_default=False,
        ),
    ] = None,
    form: Annotated[_Format, typer.Option("--format", help="What goes to standard output.")] = _Format.csv,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write to this file instead: .csv, .jsonl or .parquet.", show_default=False),
    ] = None,
    labels: Annotated[bool, typer.Option("--labels/--indices", help="Write label names, or column numbers.")] = True,
    device_column: DeviceColumn = None,
    id_column: IdColumn = None,
    label_column: LabelColumn = None,
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
    """Write one prediction set per row of model outputs: row, size, set; or row, lower, upper for regression.

    Rows are counted from 0. A row's device, where the file names it, selects that device's own threshold; otherwise the
    threshold that is valid on every device is used. Where the result knows its classes, columns are matched by name;
    columns that are no classes are named, and follow behind the sets.
    """
    if result == STDIN == probabilities:
        raise ValueError("only one of RESULT and PROBABILITIES can come from standard input, got - for both")
    if device is not None and device_column is not None:
        raise ValueError("give --device or --device-column, not both")
    ending = Ending.of(out, form)
    calibration = load_result(result)
    named_one = named_score(score, score_option or [])
    kind: Score | Loss = _loss(calibration, named_one) or score_of(calibration, named_one, whole(seed, "seed", 0))
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
    outputs = read_outputs(probabilities, layout, **wanted_of(kind, calibration))
    values = values_for(kind, outputs)
    level = level_of(alpha)
    predicted = _predicted(calibration, kind, values, outputs, device, level)
    columns: dict[str, list[Any]] = {"row": [*range(len(predicted))]}
    if kind.task == "regression":
        columns |= {"lower": predicted[:, 0].tolist(), "upper": predicted[:, 1].tolist()}
    else:
        names: Sequence[str | int] = outputs.labels if labels else range(len(outputs.labels))
        columns["size"] = predicted.sum(axis=1).tolist()
        columns["set"] = [[names[i] for i in np.flatnonzero(inside).tolist()] for inside in predicted]
        if ending is Ending.csv and any(" " in str(name) for name in names):
            console.note("some labels contain spaces, which also separate them; --format jsonl keeps labels apart")
    taken = [name for name in outputs.kept if name in columns]
    if taken:
        raise ValueError(f"{outputs.name}: column {taken[0]!r} cannot pass through: the answer has its own; rename it")
    _write({**columns, **outputs.kept}, ending, out)


# --- what evaluate asks for as well -----------------------------------------------------------------------------------


def columns_in(given: list[str] | None) -> tuple[str, ...]:
    """Return the columns that a flag named, which may be repeated and hold several."""
    return tuple(name for one in given or [] for name in named(one))


def level_of(alpha: str | None) -> float | None:
    """Return which of several levels was asked for."""
    return None if alpha is None else float(exact_number(alpha, f"--alpha must be a number, got {alpha}"))


def wanted_of(kind: Score | Loss, calibration: Result) -> dict[str, Any]:
    """Return what outputs must hold for this score: its classes, or the columns of predictions."""
    if isinstance(kind, RegressionScore):
        return {"columns": kind.columns}
    return {"logits": kind.reads == "logits", "classes": names_of(calibration)}


def names_of(calibration: Result) -> tuple[str, ...] | None:
    """Return the classes of a result as a file names them: as text."""
    known = None if isinstance(calibration, Sides) else calibration.classes
    return None if known is None else tuple(map(str, known))


def values_for(kind: Score | Loss, outputs: OutputFile) -> NDArray[np.float64]:
    """Return outputs in the shape that the score wants."""
    if isinstance(kind, RegressionScore):
        return outputs.values[:, 0] if len(kind.columns) == 1 else outputs.values
    if outputs.values.shape[1] < 2:
        raise ValueError(
            f"{outputs.name}: needs at least 2 classes, got only {outputs.labels[0]!r}; one column per class"
        )
    return outputs.values


def check_fit(calibration: Result, device: str | None, groups: tuple[str, ...], alpha: str | None) -> None:
    """Refuse what was asked for and is not in the result."""
    if isinstance(calibration, Calibrations):
        if device is not None:
            raise ValueError("several calibrations go by --group-column and --alpha, not by device")
        return
    if groups:
        raise ValueError("--group-column needs a result of `conformesh calibrate --group`")
    if alpha is not None and level_of(alpha) != calibration.level:
        raise ValueError(f"the result was calibrated with alpha {calibration.level:g}, got --alpha {alpha}")


def load_result(source: str) -> Result:
    """Read what calibrate or control wrote; - reads it from standard input."""
    return result_of(*read_json(source))


def read_json(source: str) -> tuple[Any, str]:
    """Read a JSON file, or standard input; return what it holds, and what to call it."""
    where = "standard input" if source == STDIN else source
    return from_json(sys.stdin.read() if source == STDIN else Path(source).read_bytes(), where), where


def result_of(raw: Any, where: str) -> Result:
    """Return the result that a JSON object is."""
    if isinstance(raw, dict) and raw.get("format") == SEVERAL:
        return Calibrations.from_dict(raw, where)
    if isinstance(raw, dict) and raw.get("format") == SIDES:
        return Sides.from_dict(raw, where)
    return Calibration.from_dict(raw, where)


def score_of(calibration: Result, named: Score | None, seed: int) -> Score:
    """Return the score of a result, or the one that was named where it has none; with a seed, where it draws."""
    if calibration.score is None:
        if named is None:
            console.note("the result does not name its score, taking 'lac'; name it with --score")
        return (named or LAC()).seeded(seed)
    if isinstance(calibration.score, FunctionScore | IntervalFunctionScore):
        raise ValueError(
            f"the result was calibrated with the function {calibration.score.called!r}, which no file holds; load it "
            "in Python and give it the function: result.predict(outputs, score=function)"
        )
    if named is not None and named != calibration.score:
        raise ValueError(f"the result was calibrated with {calibration.score!r}, got {named!r}; leave --score out")
    return calibration.score.seeded(seed)


# --- predict alone ----------------------------------------------------------------------------------------------------


def _predicted(
    calibration: Result,
    kind: Score | Loss,
    values: NDArray[Any],
    outputs: OutputFile,
    device: str | None,
    level: float | None,
) -> NDArray[Any]:
    """Return sets or intervals, by whatever the result goes by."""
    whose = device if device is not None else outputs.devices
    if isinstance(kind, Loss):
        one = calibration.get(level) if isinstance(calibration, Calibrations) else calibration
        return one.predict(values, device=whose)
    if isinstance(calibration, Calibrations):
        return calibration.predict(values, score=kind, groups=outputs.groups, alpha=level, labels=outputs.labels)
    if isinstance(calibration, Sides):
        return calibration.predict(values, score=two_sided(kind), device=whose)
    return calibration.predict(values, score=kind, device=whose)


def _loss(calibration: Result, named: Score | None) -> Loss | None:
    """Return the loss of a result of risk control, which must know it; None where the result covers."""
    first = next(iter(calibration.items.values())) if isinstance(calibration, Calibrations) else calibration
    if not isinstance(first, Control):
        return None
    if named is not None:
        raise ValueError("a result of `conformesh control` goes by its loss, not by a score; leave --score out")
    if first.loss is None:
        raise ValueError("the result does not name its loss; control again with --loss, or predict in Python")
    return first.loss


def _write(columns: dict[str, list[Any]], ending: Ending, out: Path | None) -> None:
    """Write the answer, whole or not at all where it goes to a file."""
    if ending is Ending.parquet:
        import polars as pl

        assert out is not None
        buffer = io.BytesIO()
        pl.DataFrame(columns).write_parquet(buffer)
        write_file(out, buffer.getbuffer())
        return
    stream = sys.stdout if out is None else io.StringIO()
    rows = zip(*columns.values(), strict=True)
    if ending is Ending.jsonl:
        objects = (in_json(dict(zip(columns, row, strict=True))) for row in rows)
        stream.writelines(json.dumps(one, default=str) + "\n" for one in objects)
    else:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([" ".join(map(str, cell)) if isinstance(cell, list) else cell for cell in row] for row in rows)
    if isinstance(stream, io.StringIO) and out is not None:
        write_file(out, stream.getvalue())
