"""``conformesh scores make``, ``import`` and ``synthetic``: from a model's outputs to scores, and outputs to try it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from conformesh.cli import console, options
from conformesh.cli.command import PATH, SOURCE, Argument, Number, Option, WholeNumber, command
from conformesh.cli.results import outputs_for_score
from conformesh.common.array_types import Floats, Ints
from conformesh.common.names import natural_order, unknown_name
from conformesh.common.random_streams import recorded_seed
from conformesh.files.labelled import read_labelled
from conformesh.files.model_outputs import ModelOutputs, read_model_outputs
from conformesh.files.score_files import RecordedScore
from conformesh.files.table_writers import (
    SCORE_COLUMNS,
    check_file_ending,
    write_columns,
    write_model_outputs,
    write_scores,
)
from conformesh.files.tables import STDIN, FileLayout
from conformesh.lab.datasets.partition import PARTITIONS, partition, split_calibration_rows
from conformesh.lab.datasets.synthetic import synthetic_outputs
from conformesh.scores import ClassificationScore, RegressionScore, Score

_BY_FILE = "device"  # the partition that the file itself names
_KINDS = (*PARTITIONS, _BY_FILE)
_DEVICES = 20  # devices that share the rows by default, the size of the demo's and the paper's networks


@command(
    Argument(
        "outputs",
        "OUTPUTS",
        "Model outputs: NPZ with logits or probabilities and labels; CSV or Parquet with a label column and a column "
        "per class, or with predictions of numbers; NPY, with --labels; - reads CSV.",
    ),
    options.out_option("Where the scores go: .csv, .parquet or .npz.", required=True),
    Option("--labels FILE", "True labels in a file of their own.", type=SOURCE),
    options.score_options("lac"),
    options.devices_option(f"How many devices share the rows; by default {_DEVICES}."),
    Option(
        f"--partition {'|'.join(_KINDS)}",
        "Who holds what: blocks of classes, uneven or equal random shares, or what the file says; by default "
        "what the file says, else class, and iid for regression, where classes are stretches of the label.",
        name="kind",
    ),
    Option("--concentration <float>", "Of --partition dirichlet; smaller is more uneven.", type=Number(), default=0.5),
    Option(
        "--calibration <float>|<int>",
        "How many rows to score: a fraction up to 1, or a number.",
        type=Number(),
        default=1.0,
    ),
    Option("--test-out FILE", "Where the other rows go, for predict: .npz.", type=PATH),
    options.json_option(),
    options.table_options("device", "label", "id", outputs=True),
    options.seed_option(
        "Seed of the partition and of the choice of rows, to repeat a run; by default a fresh one, which is printed: "
        "coverage averages over this choice.",
        default=None,
    ),
)
@console.warnings_in_one_line()
def make(
    outputs: str,
    out: Path,
    labels: str | None,
    score: Score,
    devices: int | None,
    kind: str | None,
    concentration: float,
    calibration: float,
    test_out: Path | None,
    table: FileLayout,
    seed: int | None,
    as_json: bool,
) -> None:
    """Score a model's outputs against the true labels, and write who holds which score.

    The file has the columns `device`, `score`, `label`, `classes` and `score_function`, which records the score with
    its options, and is what `conformesh calibrate` reads. Every device gives the same share of its rows to calibration,
    drawn at random. For regression OUTPUTS has the columns that the score reads: prediction (absolute-residual),
    prediction and scale (normalised-residual), lower and upper (cqr).
    """
    check_file_ending(out)
    number = recorded_seed(None) if seed is None else seed
    measure = score.seeded(number)
    if test_out is not None:
        check_file_ending(test_out, (".npz",))
    if isinstance(measure, RegressionScore):
        read = _numbers(measure, outputs, labels, table)
    else:
        assert isinstance(measure, ClassificationScore)
        read = _labels(measure, outputs, labels, table)
    taken = [name for name in read.kept if name in SCORE_COLUMNS]
    if taken:
        raise ValueError(f"column {taken[0]!r} of {read.name} cannot pass through: the score file has its own")
    kind = _partition(read, kind, devices, table.device)
    if kind == _BY_FILE:
        names, home = _named(read.devices or [])
    else:
        count = devices or _DEVICES
        names = tuple(map(str, range(count)))
        spread, many = read.spread(count)
        home = partition(spread, count, kind, seed=number, concentration=concentration, classes=many)
    rows = _rows(calibration, read.rows)
    if test_out is not None and rows == read.rows:
        raise ValueError(f"--test-out {test_out} has no rows left: give --calibration as a fraction below 1")
    chosen, others = split_calibration_rows(home, rows, seed=number)
    at, values, truth = [names[k] for k in home[chosen].tolist()], read.scores(chosen), read.truth(chosen)
    kept = {name: [cells[row] for row in chosen.tolist()] for name, cells in read.kept.items()}
    made_by = RecordedScore(measure.name, measure.options())
    write_scores(out, at, values, truth, classes=read.classes, kept=kept, made_by=made_by)
    if test_out is not None:
        read.write_rest(test_out, others, [names[k] for k in home[others].tolist()])
    elif len(others):
        console.print_note(f"{len(others):,} rows are not used; --test-out FILE keeps them for predict")
    facts = _facts(read.facts, measure, kind, np.bincount(home[chosen], minlength=len(names)))
    facts |= {"held_out": len(others), "seed": number, "out": str(out), "test_out": test_out and str(test_out)}
    console.show_result(facts, as_json, lambda: console.print_facts("conformesh scores make", _in_words(facts)))


@command(
    Argument(
        "files",
        "FILE...",
        "Saved objects of MAPIE, TorchCP or crepes, one per device: .pkl, .joblib or .pt; NAME=FILE names the device, "
        "by default the file does.",
        nargs=-1,
        required=True,
    ),
    options.out_option("Where the scores go: .csv, .parquet or .npz.", required=True),
    Option("--trust", "Read the files, which runs whatever program is in them."),
)
def import_(files: tuple[str, ...], out: Path, trust: bool) -> None:
    """Take the calibration scores out of saved objects of other libraries, one object per device.

    Reading such a file runs the program that is in it: give --trust only for files whose author you know.
    """
    from conformesh.files.imports import import_scores, read_calibrated

    check_file_ending(out)
    found = {}
    for word in files:
        name, _, path = word.rpartition("=")
        owner = name or Path(path).stem
        if owner in found:
            raise ValueError(f"two files are called {owner!r}; name their devices: NAME=FILE")
        found[owner] = import_scores(read_calibrated(path, trust=trust))
    kinds = {(one.score, tuple(one.options.items())) for one in found.values()}
    if len(kinds) > 1:
        names = ", ".join(sorted({str(score) for score, _ in kinds}))
        raise ValueError(f"all devices must have scores of one kind, got {names}")
    for note in dict.fromkeys(note for one in found.values() for note in one.notes):
        console.print_note(note)
    owners = [owner for owner, one in found.items() for _ in one.values]
    values = np.concatenate([one.values for one in found.values()])
    (score, options) = kinds.pop()
    made_by = None if score is None else RecordedScore(score, dict(options))
    write_scores(out, owners, values, made_by=made_by)
    words = ", ".join([str(score), *(f"{key}={value}" for key, value in options)])
    console.print_facts(
        "conformesh scores import",
        [
            ("devices", f"{len(found):,} with {len(values):,} scores in all"),
            ("score", "none of ours" if score is None else f"{words}, recorded in the file"),
            ("written", str(out)),
        ],
    )


@command(
    options.out_option("Where logits and labels go: .npz.", required=True),
    Option("--rows <int>", "How many examples.", type=WholeNumber(1), default=10_000),
    Option("--classes <int>", "How many classes.", type=WholeNumber(2), default=100),
    Option("--seed <int>", "Seed of the examples; the model stays the same.", type=WholeNumber(), default=0),
    options.json_option(),
)
def synthetic(out: Path, rows: int, classes: int, seed: int, as_json: bool) -> None:
    """Write logits and labels of a synthetic model, which is about as hard as a small network on CIFAR-100.

    With 9 classes it is about as hard as one on PathMNIST. The file is what `conformesh scores make` and `conformesh
    reproduce --data` read.
    """
    check_file_ending(out, (".npz",))
    found = synthetic_outputs(rows, classes, seed)
    write_model_outputs(out, found)
    facts = {**_outputs(found), "seed": seed, "out": str(out)}
    lines = [("outputs", _of_outputs(facts)), ("accuracy", f"{found.accuracy:.4f}"), ("written", str(out))]
    console.show_result(facts, as_json, lambda: console.print_facts("conformesh scores synthetic", lines))


# --- what was asked for -----------------------------------------------------------------------------------------------


class _Read(NamedTuple):
    """What was read, and how it is scored: labels or numbers.

    `spread` says for so many devices which class each row is, for a partition, and how many classes there are.
    """

    name: str
    rows: int
    devices: list[str] | None
    kept: dict[str, list[Any]]
    classes: tuple[str, ...] | None
    usual: str
    facts: dict[str, Any]
    spread: Callable[[int], tuple[Ints, int]]
    scores: Callable[[Ints], Floats]
    truth: Callable[[Ints], list[str] | Floats]
    write_rest: Callable[[Path, Ints, list[str]], None]


def _labels(measure: ClassificationScore, outputs: str, labels: str | None, layout: FileLayout) -> _Read:
    """Read outputs of classes; what is left for tests has what the score reads among its arrays."""
    found = read_model_outputs(outputs, labels, layout=layout)
    if found.kind != measure.reads:
        what = "softmax" if measure.reads == "probabilities" else "logarithm"
        console.print_note(
            f"{found.name} holds {found.kind}, score '{measure.name}' reads {measure.reads}: taking their {what}"
        )
    table = found.probabilities() if measure.reads == "probabilities" else found.logits()
    return _Read(
        name=found.name,
        rows=len(found),
        devices=found.devices,
        kept=found.kept,
        classes=found.classes,
        usual="class",
        facts=_outputs(found),
        spread=lambda devices: (found.labels, len(found.classes)),
        scores=lambda rows: measure(table[rows], found.labels[rows]),
        truth=lambda rows: [found.classes[label] for label in found.labels[rows].tolist()],
        write_rest=lambda path, rows, at: write_model_outputs(
            path, replace(found.take(rows), devices=at), also=measure.reads
        ),
    )


def _numbers(measure: RegressionScore, outputs: str, labels: str | None, layout: FileLayout) -> _Read:
    """Read predictions of numbers; as classes, for a partition, serve equal stretches of the sorted labels."""
    found, truth = read_labelled(outputs, labels, layout, columns=measure.columns)
    values, places = outputs_for_score(measure, found), np.argsort(np.argsort(truth, kind="stable"), kind="stable")

    def write_rest(path: Path, rows: Ints, at: list[str]) -> None:
        kept = {name: np.asarray([cells[row] for row in rows.tolist()]) for name, cells in found.kept.items()}
        arrays = {"outputs": values[rows], "label": truth[rows], "device": np.array(at, dtype=str)}
        write_columns(path, {**kept, **arrays})

    name = found.name if outputs == STDIN else Path(outputs).name
    return _Read(
        name=name,
        rows=len(truth),
        devices=found.devices,
        kept=found.kept,
        classes=None,
        usual="iid",
        facts={"outputs": name, "kind": "predictions", "rows": len(truth), "columns": [*found.labels]},
        spread=lambda devices: (places * devices // len(truth), devices),
        scores=lambda rows: measure(values[rows], truth[rows]),
        truth=lambda rows: truth[rows],
        write_rest=write_rest,
    )


def _partition(found: _Read, kind: str | None, devices: int | None, column: str | None) -> str:
    """Choose who holds what where nobody said it, and refuse what contradicts itself."""
    if kind is not None and kind not in _KINDS:
        raise ValueError(unknown_name("partition", kind, _KINDS))
    if kind is None:
        kind = _BY_FILE if found.devices is not None and devices is None else found.usual
        if kind == _BY_FILE and column is None:
            console.print_note(f"taking the devices that {found.name} names; choose with --partition")
    if kind == _BY_FILE and found.devices is None:
        raise ValueError(
            f"--partition {_BY_FILE} needs a column of devices in {found.name}; name it with --device-column"
        )
    if kind == _BY_FILE and devices is not None:
        raise ValueError(f"--devices {devices} has no meaning with --partition {_BY_FILE}: the file names its devices")
    if kind != _BY_FILE and column is not None:
        raise ValueError(f"--device-column {column} goes with --partition {_BY_FILE}, got --partition {kind}")
    return kind


def _named(held: list[str]) -> tuple[tuple[str, ...], Ints]:
    """The devices that the file names, and the index of each row's."""
    names = natural_order({*held})
    index = {name: k for k, name in enumerate(names)}
    return names, np.array([index[name] for name in held], np.int64)


def _rows(number: float, rows: int) -> int:
    """Return how many rows a fraction up to 1, or a number of rows, stands for."""
    if 0.0 < number <= 1.0:
        return max(1, round(number * rows))
    if not (1.0 < number <= rows and number == int(number)):
        raise ValueError(f"calibration must be a fraction up to 1 or a number of rows up to {rows}, got {number:g}")
    return int(number)


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


def _facts(read: dict[str, Any], measure: Score, kind: str, sizes: Ints) -> dict[str, Any]:
    return {
        **read,
        "score": measure.name,
        "score_options": measure.options(),
        "partition": kind,
        "devices": len(sizes),
        "scores": int(sizes.sum()),
        "scores_per_device": {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())},
    }


def _in_words(facts: dict[str, Any]) -> list[tuple[str, str]]:
    each = facts["scores_per_device"]
    lines = [
        ("outputs", _of_outputs(facts)),
        *([("accuracy", f"{facts['accuracy']:.4f}")] if "accuracy" in facts else []),
        ("score", ", ".join([facts["score"], *(f"{key}={value}" for key, value in facts["score_options"].items())])),
        ("devices", f"{facts['devices']:,}, by {facts['partition']}"),
        ("scores", f"{facts['scores']:,}; a device has {each['min']:,} to {each['max']:,}, median {each['median']:,g}"),
        ("seed", f"{facts['seed']}"),
        ("written", facts["out"]),
    ]
    if facts["test_out"]:
        lines.append(("held out", f"{facts['held_out']:,} rows in {facts['test_out']}"))
    return lines


def _of_outputs(facts: dict[str, Any]) -> str:
    if "columns" in facts:
        return f"{facts['outputs']}: {facts['kind']} ({', '.join(facts['columns'])}), {facts['rows']:,} rows"
    made = " (synthetic)" if facts["synthetic"] and "synthetic" not in facts["outputs"] else ""
    return f"{facts['outputs']}{made}: {facts['kind']}, {facts['rows']:,} rows, {facts['classes']:,} classes"
