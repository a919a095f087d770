"""``conformesh scores make`` and ``synthetic``: from a model's outputs to scores, and outputs to try it on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from conformesh.cli import console
from conformesh.cli.calibrate import named_score
from conformesh.cli.options import as_type, whole
from conformesh.cli.panels import RUNNING
from conformesh.cli.reading import Decimal, DeviceColumn, IdColumn, Keep, LabelColumn, Separator, named
from conformesh.data.partition import PARTITIONS, partition, split_rows
from conformesh.data.synthetic import synthetic_outputs
from conformesh.io.model_outputs import ModelOutputs, read_model_outputs
from conformesh.io.tables import Layout
from conformesh.io.writing import COLUMNS, check_ending, write_model_outputs, write_scores
from conformesh.names import natural_order, unknown
from conformesh.scores import SCORES, ClassificationScore

BY_FILE = "device"  # the partition that the file itself names
KINDS = (*PARTITIONS, BY_FILE)
DEVICES = 20
OF_LABELS = [name for name, kind in SCORES.items() if kind.task == "classification"]

Ints = NDArray[np.int64]


def make(
    outputs: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUTS",
            help="Model outputs: NPZ with logits or probabilities and labels; CSV or Parquet with a label column and "
            "a column per class; NPY, with --labels; - reads CSV.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the scores go: .csv, .parquet or .npz.")],
    labels: Annotated[
        str | None, typer.Option(metavar="FILE", help="True labels in a file of their own.", show_default=False)
    ] = None,
    score: Annotated[str, typer.Option(help=f"One of {', '.join(OF_LABELS)}.")] = "lac",
    score_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the score, as k_reg=2; may be repeated.")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="<int>", help=f"How many devices share the rows; by default {DEVICES}.", show_default=False
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--partition",
            metavar="|".join(KINDS),
            help="Who holds what: blocks of classes, uneven or equal random shares, or what the file says; by default "
            "what the file says, else class.",
            show_default=False,
        ),
    ] = None,
    concentration: Annotated[
        str, typer.Option(metavar="<float>", help="Of --partition dirichlet; smaller is more uneven.")
    ] = "0.5",
    calibration: Annotated[
        str, typer.Option(metavar="<float>|<int>", help="How many rows to score: a fraction up to 1, or a number.")
    ] = "1.0",
    test_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the other rows go, for predict: .npz.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    device_column: DeviceColumn = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    keep: Keep = None,
    separator: Separator = None,
    decimal: Decimal = None,
    seed: Annotated[
        str,
        typer.Option(metavar="<int>", help="Seed of the partition and of the choice of rows.", rich_help_panel=RUNNING),
    ] = "0",
) -> None:
    """Score a model's outputs against the true labels, and write who holds which score.

    The file has the columns `device`, `score`, `label` and `classes`, and is what `conformesh calibrate` reads. Every
    device gives the same share of its rows to calibration, drawn at random.
    """
    check_ending(out)
    number = whole(seed, "seed", 0)
    measure = _score(score, score_option or []).seeded(number)
    if test_out is not None:
        check_ending(test_out, (".npz",))
    layout = Layout(device_column, None, label_column, id_column, (), named(keep), separator, decimal)
    found = read_model_outputs(outputs, labels, layout=layout)
    taken = [name for name in found.kept if name in COLUMNS]
    if taken:
        raise ValueError(f"column {taken[0]!r} of {found.name} cannot pass through: the score file has its own")
    kind = _partition(found, kind, devices, device_column)
    if kind == BY_FILE:
        names, home = _named(found)
    else:
        count = whole(devices or str(DEVICES), "devices", 1)
        even = as_type(concentration, float, "concentration")
        names = tuple(map(str, range(count)))
        home = partition(found.labels, count, kind, seed=number, concentration=even, classes=len(found.classes))
    rows = _rows(calibration, len(found))
    if test_out is not None and rows == len(found):
        raise ValueError(f"--test-out {test_out} has no rows left: give --calibration as a fraction below 1")
    chosen, others = split_rows(home, rows, seed=number)
    if found.kind != measure.reads:
        what = "softmax" if measure.reads == "probabilities" else "logarithm"
        console.note(f"{found.name} holds {found.kind}, score '{score}' reads {measure.reads}: taking their {what}")
    table = found.probabilities() if measure.reads == "probabilities" else found.logits()
    values = measure(table[chosen], found.labels[chosen])
    at = [names[k] for k in home[chosen].tolist()]
    own = found.take(chosen)
    truth = [found.classes[label] for label in own.labels.tolist()]
    write_scores(out, at, values, truth, classes=found.classes, kept=own.kept)
    if test_out is not None:
        _write_rest(test_out, found, others, [names[k] for k in home[others].tolist()], measure)
    elif len(others):
        console.note(f"{len(others):,} rows are not used; --test-out FILE keeps them for predict")
    facts = _facts(found, measure, kind, np.bincount(home[chosen], minlength=len(names)))
    facts |= {"held_out": len(others), "seed": number, "out": str(out), "test_out": test_out and str(test_out)}
    if as_json:
        print(json.dumps(facts))
    else:
        console.print_facts("conformesh scores make", _in_words(facts))


def synthetic(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where logits and labels go: .npz.")],
    rows: Annotated[str, typer.Option(metavar="<int>", help="How many examples.")] = "10000",
    classes: Annotated[str, typer.Option(metavar="<int>", help="How many classes.")] = "100",
    seed: Annotated[str, typer.Option(metavar="<int>", help="Seed of the examples; the model stays the same.")] = "0",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Write logits and labels of a synthetic model, which is about as hard as a small network on CIFAR-100.

    With 9 classes it is about as hard as one on PathMNIST. The file is what `conformesh scores make` and `conformesh
    reproduce --data` read.
    """
    check_ending(out, (".npz",))
    found = synthetic_outputs(whole(rows, "rows", 1), whole(classes, "classes", 2), whole(seed, "seed", 0))
    write_model_outputs(out, found)
    facts = {**_outputs(found), "seed": int(seed), "out": str(out)}
    if as_json:
        print(json.dumps(facts))
    else:
        lines = [("outputs", _of_outputs(facts)), ("accuracy", f"{found.accuracy:.4f}"), ("written", str(out))]
        console.print_facts("conformesh scores synthetic", lines)


# --- what was asked for -----------------------------------------------------------------------------------------------


def _score(name: str, pairs: list[str]) -> ClassificationScore:
    found = named_score(name, pairs)
    if not isinstance(found, ClassificationScore):
        raise ValueError(f"score '{name}' is for regression, these are labels; use {', '.join(OF_LABELS)}")
    return found


def _partition(found: ModelOutputs, kind: str | None, devices: str | None, column: str | None) -> str:
    """Choose who holds what where nobody said it, and refuse what contradicts itself."""
    if kind is not None and kind not in KINDS:
        raise ValueError(unknown("partition", kind, KINDS))
    if kind is None:
        kind = BY_FILE if found.devices is not None and devices is None else "class"
        if kind == BY_FILE and column is None:
            console.note(f"taking the devices that {found.name} names; choose with --partition")
    if kind == BY_FILE and found.devices is None:
        raise ValueError(
            f"--partition {BY_FILE} needs a column of devices in {found.name}; name it with --device-column"
        )
    if kind == BY_FILE and devices is not None:
        raise ValueError(f"--devices {devices} has no meaning with --partition {BY_FILE}: the file names its devices")
    if kind != BY_FILE and column is not None:
        raise ValueError(f"--device-column {column} goes with --partition {BY_FILE}, got --partition {kind}")
    return kind


def _named(found: ModelOutputs) -> tuple[tuple[str, ...], Ints]:
    """The devices that the file names, and the index of each row's."""
    held = found.devices or []
    names = natural_order({*held})
    index = {name: k for k, name in enumerate(names)}
    return names, np.array([index[name] for name in held], np.int64)


def _rows(text: str, rows: int) -> int:
    """Read a fraction up to 1 or a number of rows."""
    number: float = as_type(text, float, "calibration")
    if 0.0 < number <= 1.0:
        return max(1, round(number * rows))
    if not (1.0 < number <= rows and number == int(number)):
        raise ValueError(f"calibration must be a fraction up to 1 or a number of rows up to {rows}, got {text}")
    return int(number)


def _write_rest(path: Path, found: ModelOutputs, rows: Ints, at: list[str], measure: ClassificationScore) -> None:
    """Write the rows that were not scored, with what the score reads among their arrays, so that predict finds it."""
    rest = found.take(rows)
    write_model_outputs(path, replace(rest, devices=at), also=measure.reads)


# --- what was done ----------------------------------------------------------------------------------------------------


def _outputs(found: ModelOutputs) -> dict[str, Any]:
    return {
        "outputs": found.name,
        "kind": found.kind,
        "rows": len(found),
        "classes": len(found.classes),
        "accuracy": found.accuracy,
        "synthetic": found.synthetic,
        "digest": found.digest,
    }


def _facts(found: ModelOutputs, measure: ClassificationScore, kind: str, sizes: Ints) -> dict[str, Any]:
    return {
        **_outputs(found),
        "score": measure.name,
        "score_options": measure.options(),
        "partition": kind,
        "devices": len(sizes),
        "scores": int(sizes.sum()),
        "scores_per_device": {
            "min": int(sizes.min()),
            "median": float(np.median(sizes)),
            "max": int(sizes.max()),
        },
    }


def _in_words(facts: dict[str, Any]) -> list[tuple[str, str]]:
    each = facts["scores_per_device"]
    lines = [
        ("outputs", _of_outputs(facts)),
        ("accuracy", f"{facts['accuracy']:.4f}"),
        ("score", ", ".join([facts["score"], *(f"{key}={value}" for key, value in facts["score_options"].items())])),
        ("devices", f"{facts['devices']:,}, by {facts['partition']}"),
        ("scores", f"{facts['scores']:,}; a device has {each['min']:,} to {each['max']:,}, median {each['median']:,g}"),
        ("written", facts["out"]),
    ]
    if facts["test_out"]:
        lines.append(("held out", f"{facts['held_out']:,} rows in {facts['test_out']}"))
    return lines


def _of_outputs(facts: dict[str, Any]) -> str:
    made = " (synthetic)" if facts["synthetic"] and "synthetic" not in facts["outputs"] else ""
    return f"{facts['outputs']}{made}: {facts['kind']}, {facts['rows']:,} rows, {facts['classes']:,} classes"
