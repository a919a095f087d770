"""Import of calibration scores from calibrated objects of MAPIE, TorchCP and crepes.

The module of an object's class tells its library; no library is imported here. A *file* with such an object is a
pickle, and reading a pickle can run any program, so `read_calibrated` requires ``trust=True``.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from conformesh.common.array_types import Floats
from conformesh.common.arrays import as_array

_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth")
_OUT_OF_FOLD = (
    "scores of out-of-fold predictions come from several models, none of which predicts alone: the guarantee is for a "
    "new score of such a model, not for one of a model fitted to everything"
)
_OTHER_DRAWS = "scores were randomised by the library's own draws, prediction draws by ours"


@dataclass(frozen=True, eq=False)
class _ImportedScores:
    """Calibration scores of a calibrated object.

    Attributes
    ----------
    values
        The scores, as `calibrate` takes them: one device's.
    score, options
        The name and options of the same score in this library; None if there is none: then there are only thresholds.
    sides
        Of quantile regression how far labels lay below and above, (rows, 2), as `calibrate(symmetric=False)` takes it.
    notes
        What to know before relying on them.
    """

    values: Floats
    score: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    sides: Floats | None = None
    notes: tuple[str, ...] = ()


def import_scores(calibrated: Any) -> _ImportedScores:
    """Return the calibration scores that an object of MAPIE, TorchCP or crepes keeps.

    Parameters
    ----------
    calibrated
        Of MAPIE what was conformalised: `SplitConformalClassifier`, `SplitConformalRegressor`, their `Cross` kin,
        `ConformalizedQuantileRegressor`. Of TorchCP a calibrated `SplitPredictor`. Of crepes a fitted
        `ConformalRegressor` or `ConformalClassifier`.
    """
    library = type(calibrated).__module__.partition(".")[0]
    if library not in _LIBRARIES:
        raise TypeError(
            f"import_scores takes calibrated objects of {', '.join(_LIBRARIES)}, got "
            f"{type(calibrated).__module__}.{type(calibrated).__name__}; give the scores it keeps to calibrate"
        )
    return _LIBRARIES[library](calibrated)


def read_calibrated(path: str | os.PathLike[str], *, trust: bool = False) -> Any:
    """Read a calibrated object from a pickle (also of joblib or torch), if the file is trusted.

    Without `trust` it raises an error: reading a pickle runs the program in it.
    """
    file = Path(path)
    if file.suffix.lower() not in _PICKLES:
        raise ValueError(f"{file}: needed a saved object, {', '.join(_PICKLES)}, got {file.suffix or 'no ending'!r}")
    if not trust:
        raise ValueError(
            f"{file}: reading a saved object runs whatever program is in the file; if you know who wrote it, pass "
            "trust=True (on the command line --trust)"
        )
    if file.suffix.lower() in (".pt", ".pth"):
        import torch

        return torch.load(file, map_location="cpu", weights_only=False)
    if file.suffix.lower() == ".joblib":
        import joblib

        return joblib.load(file)
    with file.open("rb") as stream:
        return pickle.load(stream)


def _scores_of_mapie(calibrated: Any) -> _ImportedScores:
    held = _as_floats(_stored(calibrated, "conformity_scores", "conformalize"), calibrated)
    notes = (_OUT_OF_FOLD,) if type(calibrated).__name__.startswith(("Cross", "Jackknife")) else ()
    if held.ndim == 2 and held.shape[0] == 3:  # of quantile regression: below, above, and the larger
        return _ImportedScores(held[2], "cqr", sides=held[:2].T.copy(), notes=notes)
    values = held.ravel()
    kind = _mapie_score_class(calibrated)
    if kind == "RAPSConformityScore":
        raise ValueError(
            "MAPIE keeps RAPS scores without their penalty, which it chooses when it predicts; score the outputs with "
            "scores.RAPS(penalty=..., k_reg=...) instead"
        )
    if kind == "APSConformityScore":
        return _ImportedScores(values, "aps", {"randomised": True}, notes=(*notes, _OTHER_DRAWS))
    if kind == "TopKConformityScore":
        return _ImportedScores(values + 1.0, "rank", notes=notes)  # which MAPIE counts from 0
    ours = {"LACConformityScore": "lac", "AbsoluteConformityScore": "absolute-residual"}.get(kind)
    return _ImportedScores(values, ours, notes=notes if ours else (*notes, _unknown_score_note(kind)))


def _mapie_score_class(calibrated: Any) -> str:
    """Return the class of the score that an object of MAPIE uses; empty where it does not say."""
    for inner in ("_mapie_classifier", "_mapie_regressor"):
        function = getattr(getattr(calibrated, inner, None), "conformity_score_function_", None)
        if function is not None:
            return type(function).__name__
    return type(getattr(calibrated, "_conformity_score", None)).__name__.replace("NoneType", "")


def _scores_of_torchcp(calibrated: Any) -> _ImportedScores:
    name = "cal_scores" if hasattr(calibrated, "cal_scores") else "scores"
    values = _as_floats(_stored(calibrated, name, "calibrate"), calibrated)
    if values.ndim > 1 and values.shape[1:] != (1,) * (values.ndim - 1):
        raise ValueError(f"needed one score per row, got an array of shape {values.shape} in {name}")
    values = values.ravel()
    if np.isinf(values).any():
        raise ValueError(
            f"{type(calibrated).__name__} keeps an infinite score for new examples of another distribution; score the "
            "outputs with conformesh.scores and give weights to calibrate"
        )
    function = getattr(calibrated, "score_function", None)
    kind, drawn = type(function).__name__, bool(getattr(function, "randomized", False))
    if kind in ("RAPS", "SAPS"):
        return _ImportedScores(values, None, notes=(f"give the penalty again: score=scores.{kind}(penalty=...)",))
    ours = {"LAC": "lac", "Margin": "margin", "TOPK": "rank", "APS": "aps", "ABS": "absolute-residual", "CQR": "cqr"}
    drawn = drawn and kind in ("APS", "TOPK")
    return _ImportedScores(
        values,
        ours.get(kind),
        {"randomised": True} if drawn else {},
        notes=((_OTHER_DRAWS,) if drawn else ()) if kind in ours else (_unknown_score_note(kind),),
    )


def _scores_of_crepes(calibrated: Any) -> _ImportedScores:
    values = _as_floats(_stored(calibrated, "alphas", "fit"), calibrated).ravel()
    if type(calibrated).__name__ != "ConformalRegressor":
        return _ImportedScores(values, None, notes=("say which score they are: hinge is 'lac', margin is 'margin'",))
    return _ImportedScores(
        values, "normalised-residual" if getattr(calibrated, "normalized", False) else "absolute-residual"
    )


_LIBRARIES: dict[str, Callable[[Any], _ImportedScores]] = {
    "mapie": _scores_of_mapie,
    "torchcp": _scores_of_torchcp,
    "crepes": _scores_of_crepes,
}


def _stored(calibrated: Any, name: str, before: str) -> Any:
    """Return an attribute of a calibrated object; the error names the method to call `before` it exists."""
    try:
        held = getattr(calibrated, name, None)
    except Exception as error:  # properties of these libraries raise errors of several types
        raise ValueError(f"{type(calibrated).__name__} keeps no scores yet ({error}); call {before} first") from None
    if held is None:
        raise ValueError(f"{type(calibrated).__name__} keeps no scores in {name!r}; call {before} first")
    return held


def _as_floats(held: Any, calibrated: Any) -> Floats:
    if isinstance(held, dict):
        raise ValueError(f"{type(calibrated).__name__} keeps scores by bin; give those of one bin to calibrate")
    return np.array(as_array(held, f"scores of {type(calibrated).__name__}"), dtype=np.float64)


def _unknown_score_note(kind: str) -> str:
    return f"{kind or 'its score'} is none of ours: thresholds can be found, sets only where they came from"
