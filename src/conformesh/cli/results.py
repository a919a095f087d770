"""Results and model outputs of commands: reading them, checking that they fit together, and printing results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from conformesh.cli import console
from conformesh.common.quantities import format_bits, format_count, pluralize
from conformesh.files.json_numbers import parse_json
from conformesh.files.tables import STDIN, FileLayout
from conformesh.results.certificate import Noise
from conformesh.results.lambda_tests import LambdaTests
from conformesh.results.lookup import GROUP, part_axes
from conformesh.results.result import Answer, Result
from conformesh.results.summaries import part_name
from conformesh.scores import LAC, RegressionScore, Score, reconcile_score

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from conformesh.files.output_files import OutputFile
    from conformesh.files.score_files import RecordedScore
    from conformesh.privacy.histogram import Release
    from conformesh.scores.losses import Loss

_NODE_RESULT = "conformesh-node-result/"  # of one device of a mesh
_RANKS = ("required rank", "counted")  # columns of the table of several answers


# --- what is read -----------------------------------------------------------------------------------------------------


def settle_recorded_score(made_by: RecordedScore | None, named: Score | None, where: str) -> Score | None:
    """Return the score that a file records, or the one that was named where it records none; they must not differ."""
    return named if made_by is None else reconcile_score(*made_by, named, where)


def load_result(source: str) -> Result:
    """Read what calibrate or control wrote; - reads it from standard input."""
    found = load_result_or_tests(source)
    if isinstance(found, LambdaTests):
        raise ValueError(
            f"{source} holds tests of lambdas, of `conformesh control --non-monotone`, which this command does not "
            "take; `conformesh predict` does"
        )
    return found


def load_result_or_tests(source: str) -> Result | LambdaTests:
    """Read what calibrate or control wrote, also tests of lambdas; - reads it from standard input."""
    raw, where = read_json(source)
    if isinstance(raw, dict) and raw.get("format") == LambdaTests.__struct_config__.tag:
        return LambdaTests.from_dict(raw, where)
    return Result.from_dict(raw, where)


def check_stdin(**sources: str | None) -> None:
    """Refuse two arguments that are both read from standard input."""
    names = [name for name, source in sources.items() if source == STDIN]
    if len(names) > 1:
        raise ValueError(f"only one of {' and '.join(names)} can come from standard input, got - for both")


def check_device(device: str | None, layout: FileLayout) -> None:
    """Refuse one device for all rows beside a column that names the device of each."""
    if device is not None and layout.device is not None:
        raise ValueError("give --device or --device-column, not both")


def read_json(source: str) -> tuple[Any, str]:
    """Read a JSON file, or standard input; return what it holds, and what to call it."""
    where = "standard input" if source == STDIN else source
    return parse_json(sys.stdin.read() if source == STDIN else Path(source).read_bytes(), where), where


def score_of_result(result: Result, named: Score | None, seed: int) -> Score:
    """Return the score of a result, or the one that was named where it has none; with a seed, where it draws."""
    if result.score is None:
        if named is None:
            console.print_note("the result does not name its score, taking 'lac'; name it with --score")
        return (named or LAC()).seeded(seed)
    from conformesh.scores.functions import FunctionScore, IntervalFunctionScore

    if isinstance(result.score, FunctionScore | IntervalFunctionScore):
        raise ValueError(
            f"the result was calibrated with the function {result.score.called!r}, which no file holds; load it "
            "in Python and give it the function: result.predict(outputs, score=function)"
        )
    if named is not None and named != result.score:
        raise ValueError(f"the result was calibrated with {result.score!r}, got {named!r}; leave --score out")
    return result.score.seeded(seed)


def refuse_score(result: Result, named: Score | None) -> None:
    """Refuse a score beside adapted ones."""
    if result.guarantee.adapt is not None and named is not None:
        raise ValueError(f"the result has adapted scores, {result.guarantee.adapt!r}; leave --score {named.name} out")


def reading_keywords(kind: Score | Loss, result: Result) -> dict[str, Any]:
    """Return what outputs must hold for this score: its classes, or the columns of predictions."""
    if isinstance(kind, RegressionScore):
        return {"columns": kind.columns}
    return {"logits": kind.reads == "logits", "classes": class_names(result)}


def class_names(result: Result) -> tuple[str, ...] | None:
    """Return the classes of a result as a file names them: as text."""
    return None if result.classes is None else tuple(map(str, result.classes))


def outputs_for_score(kind: Score | Loss, outputs: OutputFile) -> NDArray[np.float64]:
    """Return outputs in the shape that the score wants."""
    if isinstance(kind, RegressionScore):
        return outputs.values[:, 0] if len(kind.columns) == 1 else outputs.values
    if outputs.values.shape[1] < 2:
        raise ValueError(
            f"{outputs.name}: needs at least 2 classes, got only {outputs.labels[0]!r}; one column per class"
        )
    return outputs.values


def row_keywords(result: Result, outputs: OutputFile, device: str | None, seed: int) -> dict[str, Any]:
    """Return what thresholds of rows may depend on, as keywords of `Result.predict` and `Result.evaluate`."""
    return {
        "device": outputs.devices if device is None else device,
        "groups": outputs.groups,
        "weight": outputs.weight,
        "inputs": outputs.inputs,
        "rng": None if result.guarantee.centres is None else seed,  # a score has its seed itself
    }


# --- what is printed --------------------------------------------------------------------------------------------------


def print_result(result: Result) -> None:
    """Print a result in words: facts of a single answer, a table of several."""
    if len(result) == 1 or result.sides is not None:
        command = "control" if result.controlled else "calibrate"
        console.print_facts(f"conformesh {command}", result.facts())
    else:
        _print_answers(result)


def print_lambda_tests(found: LambdaTests) -> None:
    """Print tests of lambdas: facts, and a line for each lambda."""
    console.print_facts("conformesh control", found.facts())
    head, *rows = found.table_in_words()
    print()
    console.print_table(head, rows, right=head)


def _print_answers(result: Result) -> None:
    """Print a line for each part and level, what groups are covered by, and the cost of the one run."""
    axes = [axis.kind for axis in part_axes(result.guarantee)]
    part = () if not axes else (axes[0] if len(axes) == 1 else "part",)
    level = "risk" if result.controlled else "alpha"
    weighted = any(answer.certificate.weight is not None for answer in result.answers)
    whole = "items" if result.controlled else "of weight" if weighted else "of scores"
    ranks = ("mean loss", "allowed") if result.controlled else _RANKS
    rows = [
        (
            *((part_name(one.answer.part),) if part else ()),
            f"{one.alpha:g}",
            f"{one.threshold:.6g}",
            one.answer.certificate.kind,
            *(_loss_cells(one) if result.controlled else _rank_cells(one.answer)),
        )
        for one in result
    ]
    console.print_table(
        (*part, level, result.what, "guarantee", *ranks, whole), rows, right=(level, result.what, *ranks, whole)
    )
    facts = dict(result.facts())
    print("".join(f"\n{facts[name]}" for name in ("rule",) if name in facts))
    cost = result.cost
    print(
        f"one run for all: {pluralize(cost.rounds, 'round')}, each device sent "
        f"{format_count(cost.numbers_per_device)} numbers, {format_bits(cost.bits_per_device)}"
    )


def _rank_cells(answer: Answer) -> tuple[str, ...]:
    """Return the ranks of an answer, and of how many scores, or how much weight, they are; noise hides that."""
    certificate = answer.certificate
    examples = answer.examples if certificate.noise is None else None
    whole = examples if certificate.weight is None else certificate.weight
    return tuple(
        f"{rank:,}" if isinstance(rank, int) else ""
        for rank in (certificate.required_rank, certificate.counted_rank, whole)
    )


def _loss_cells(one: Result) -> tuple[str, ...]:
    """Return the mean loss of an answer, what is allowed, and the number of items."""
    left, allowed = one.mean_losses
    return (*(("", "") if allowed < 0 else (f"{left:.4g}", f"{allowed:.4g}")), f"{one.examples:,}")


# --- results that hold a release --------------------------------------------------------------------------------------


class SavedRun(NamedTuple):
    """A result, what to call it, and how many devices took part."""

    result: Result
    name: str
    devices: int


class PrivateRelease(NamedTuple):
    """The release of a result, and its noise."""

    release: Release
    noise: Noise


def parse_saved_run(raw: Any, name: str) -> SavedRun:
    """Return the result that a JSON object is, also one of a single device of a mesh."""
    count = None
    if isinstance(raw, dict) and str(raw.get("format", "")).startswith(_NODE_RESULT):
        count, raw = len(raw.get("roster", ())), raw.get("calibration")
    result = Result.from_dict(raw, name)
    return SavedRun(result, name, count or result.devices)


def releases_by_group(saved: SavedRun) -> dict[str | None, PrivateRelease]:
    """Return the release of every group of a result; of a run without epsilon none.

    All levels of a group are read from the same release.
    """
    from conformesh.files.schemas import validate
    from conformesh.privacy.histogram import Release

    found: dict[str | None, PrivateRelease] = {}
    grouped = GROUP in [axis.kind for axis in part_axes(saved.result.guarantee)]
    for answer in saved.result.answers:
        told = {**saved.result.options, **answer.facts}.get("release")
        if answer.certificate.noise is not None and told is not None:
            release = validate(told, Release, f"{saved.name}: release")
            # the noise of the first level
            found.setdefault(answer.part[0] if grouped else None, PrivateRelease(release, answer.certificate.noise))
    return found
