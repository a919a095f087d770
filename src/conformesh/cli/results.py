"""Results and model outputs as commands read them: loading, the score of a result, and what outputs must hold."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from conformesh.cli import console
from conformesh.io.json_numbers import from_json
from conformesh.result.calibration import Calibration
from conformesh.result.certificate import Noise
from conformesh.result.several import Calibrations
from conformesh.result.sides import Sides
from conformesh.scores import LAC, RegressionScore, Score, settle_score

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from conformesh.io.output_files import OutputFile
    from conformesh.io.score_files import RecordedScore
    from conformesh.losses import Loss
    from conformesh.privacy.histogram import Release

STDIN = "-"
NODE_RESULT = "conformesh-node-result/"  # of one device of a mesh
Result = Calibration | Calibrations | Sides


def score_in_file(made_by: RecordedScore | None, named: Score | None, where: str) -> Score | None:
    """Return the score that a file records, or the one that was named where it records none; they must not differ."""
    return named if made_by is None else settle_score(*made_by, named, where)


def level_of(alpha: str | None) -> float | None:
    """Return which of several levels was asked for."""
    from conformesh.kernels.ranks import exact_number

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
        raise ValueError("--group-column needs a result of `conformesh calibrate --group-column`")
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
    from conformesh.result.files import SEVERAL, SIDES

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
    from conformesh.scores.functions import FunctionScore, IntervalFunctionScore

    if isinstance(calibration.score, FunctionScore | IntervalFunctionScore):
        raise ValueError(
            f"the result was calibrated with the function {calibration.score.called!r}, which no file holds; load it "
            "in Python and give it the function: result.predict(outputs, score=function)"
        )
    if named is not None and named != calibration.score:
        raise ValueError(f"the result was calibrated with {calibration.score!r}, got {named!r}; leave --score out")
    return calibration.score.seeded(seed)


class Saved(NamedTuple):
    """A result, what to call it, and how many devices took part."""

    result: Result
    name: str
    devices: int

    @property
    def first(self) -> Calibration:
        """The first of several results of one run."""
        if isinstance(self.result, Calibrations):
            return next(iter(self.result.items.values()))
        first: Calibration = self.result.lower if isinstance(self.result, Sides) else self.result
        return first


class Private(NamedTuple):
    """The release of a result, and its noise."""

    release: Release
    noise: Noise


def saved_result(raw: Any, name: str) -> Saved:
    """Return the result that a JSON object is."""
    count = None
    if isinstance(raw, dict) and str(raw.get("format", "")).startswith(NODE_RESULT):
        count, raw = len(raw.get("roster", ())), raw.get("calibration")
    found = Saved(result_of(raw, name), name, 0)
    return found._replace(devices=count or found.first.devices)


def releases_in(saved: Saved) -> dict[str | None, Private]:
    """Return the release of every group of a result; of a run without epsilon none.

    All levels of a group are read from the same release.
    """
    from conformesh.io.schemas import checked
    from conformesh.privacy.histogram import Release

    found: dict[str | None, Private] = {}
    parts = saved.result.items if isinstance(saved.result, Calibrations) else {(None, 0.0): saved.first}
    for (group, _), one in parts.items():
        if one.certificate.noise is not None and "release" in one.options:
            release = checked(one.options["release"], Release, f"{saved.name}: release")
            found.setdefault(group, Private(release, one.certificate.noise))  # the noise of the first level
    return found
