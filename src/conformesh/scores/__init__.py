"""Nonconformity scores and the sets they induce, losses, and centres: arrays in, arrays out.

A score turns a model's outputs and the true labels into one number each, large where the model was wrong; the devices
agree on a threshold for these numbers, and the score turns that threshold back into label sets or intervals. The table
of names is `SCORES`; `losses` has `LOSSES`, `draws` the random numbers of randomised scores, `functions` scores from
functions of the user, `base` the checks of outputs and labels. The numerical loops over outputs are in
`kernels.label_scores`. Imports `common` and `kernels`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from conformesh.common.names import unknown_name
from conformesh.scores.base import ClassificationScore, RegressionScore, Score
from conformesh.scores.classification import APS, LAC, RAPS, SAPS, Logit, Margin, OrdinalAPS, Rank
from conformesh.scores.functions import (
    Function,
    FunctionScore,
    IntervalFunctionScore,
    saved_function_place,
    score_from_function,
)
from conformesh.scores.regression import CQR, AbsoluteResidual, NormalisedResidual

__all__ = [
    "APS",
    "CQR",
    "LAC",
    "RAPS",
    "SAPS",
    "SCORES",
    "AbsoluteResidual",
    "ClassificationScore",
    "Function",
    "Logit",
    "Margin",
    "NormalisedResidual",
    "OrdinalAPS",
    "Rank",
    "RegressionScore",
    "Score",
    "as_score",
    "get_score",
    "score_from_function",
]

SCORES: dict[str, type[Score]] = {
    score.name: score
    for score in (LAC, Logit, Margin, APS, RAPS, SAPS, Rank, OrdinalAPS, AbsoluteResidual, NormalisedResidual, CQR)
}


def get_score(name: str, **options: Any) -> Score:
    """Return the score called `name` with these options.

    >>> get_score("raps", penalty=0.1)
    RAPS(penalty=0.1, k_reg=5, randomised=False, seed=None)
    """
    if name not in SCORES:
        raise ValueError(unknown_name("score", name, SCORES))
    known = [field.name for field in fields(SCORES[name])]
    for option in options:
        if option not in known:
            raise TypeError(unknown_name(f"option of score '{name}'", option, known))
    return SCORES[name](**options)


def saved_score(name: str, options: dict[str, Any]) -> Score:
    """Return the score that a file names; a function must be given again."""
    found = saved_function_place(name, str(options.get("function"))) if [*options] == ["function"] else None
    return get_score(name, **options) if found is None else found


def reconcile_score(
    name: str, options: dict[str, Any], named: Score | None, where: str, *, exact: bool = False
) -> Score:
    """Return the score that a file records, and refuse scores that are `named` otherwise.

    Options that were not named, and so have their defaults, are those of the file; with `exact` they must be the same,
    but for the seed of draws.
    """
    try:
        recorded = get_score(name, **options)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{where}: records a score that cannot be used: {problem}; make the scores again") from None
    if named is None:
        return recorded
    own, defaults = recorded.options(), {} if exact else type(recorded)().options()
    differ = type(named) is not type(recorded) or any(
        value not in (own[option], defaults.get(option, own[option]))
        for option, value in named.options().items()
        if option != "seed"
    )
    if differ:
        raise ValueError(
            f"{where}: holds scores of {recorded!r}, but {named!r} was named; leave the name out, or make the scores "
            f"again with score {named.name!r}"
        )
    return recorded


def as_score(score: Any) -> Score | None:
    """Return the score that was meant: itself, one of its class, of that name or by that function; None stays None.

    >>> as_score("lac"), as_score(LAC), as_score(None)
    (LAC(), LAC(), None)
    """
    if score is None or isinstance(score, Score):
        return score
    if isinstance(score, str):
        return get_score(score)
    if isinstance(score, type) and issubclass(score, Score):
        return score()
    if callable(score):
        return score_from_function(score)
    raise TypeError(
        f"score must be a Score, its name ({', '.join(SCORES)}) or a function of outputs and labels, got "
        f"{type(score).__name__} {score!r:.40}"
    )


def result_score(calibrated: Score | None, named: Any, example: str = "LAC") -> Score:
    """Return the score of a result: the one it was calibrated with, or the `named` one where it records none.

    Another score is refused, since its thresholds would not fit. The seed of draws may differ, and a name or a class
    alone says nothing of options. The function of a saved result is the one that is named.
    """
    score = calibrated if named is None else as_score(named)
    if score is None:
        raise ValueError(f"this calibration was not told its score: pass score=..., for instance scores.{example}()")
    if named is None or calibrated is None:
        return score
    if type(score) is not type(calibrated):
        same = False
    elif isinstance(named, str | type):
        return calibrated
    elif isinstance(calibrated, FunctionScore | IntervalFunctionScore):
        same = calibrated.function is None or _functions(score) == _functions(calibrated)
    else:
        same = _options_but_seed(score) == _options_but_seed(calibrated)
    if not same:
        raise ValueError(f"the result was calibrated with {calibrated!r}, got {score!r}; leave score out")
    return score


def _options_but_seed(score: Score) -> dict[str, Any]:
    return {name: value for name, value in score.options().items() if name != "seed"}


def _functions(score: Any) -> tuple[Any, Any]:
    return score.function, getattr(score, "inverse", None)


def two_sided(score: Score) -> RegressionScore:
    """Return a score that may have two sides, or say that this one has none."""
    if not isinstance(score, RegressionScore):
        raise TypeError(f"two sides are for regression, got score '{score.name}', which is for {score.task}")
    return score
