"""Nonconformity scores and the sets they induce: arrays in, arrays out.

A score turns a model's outputs and the true labels into one number each, large where the model was wrong; the devices
agree on a threshold for these numbers, and the score turns that threshold back into label sets or intervals.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from conformesh.names import unknown
from conformesh.scores.base import ClassificationScore, RegressionScore, Score
from conformesh.scores.classification import APS, LAC, RAPS, Logit, Margin
from conformesh.scores.regression import CQR, AbsoluteResidual, NormalisedResidual

__all__ = [
    "APS",
    "CQR",
    "LAC",
    "RAPS",
    "SCORES",
    "AbsoluteResidual",
    "ClassificationScore",
    "Logit",
    "Margin",
    "NormalisedResidual",
    "RegressionScore",
    "Score",
    "get_score",
]

SCORES: dict[str, type[Score]] = {
    score.name: score for score in (LAC, Logit, Margin, APS, RAPS, AbsoluteResidual, NormalisedResidual, CQR)
}


def get_score(name: str, **options: Any) -> Score:
    """Return the score called `name` with these options.

    >>> get_score("raps", penalty=0.1)
    RAPS(penalty=0.1, k_reg=5, randomised=False, seed=None)
    """
    if name not in SCORES:
        raise ValueError(unknown("score", name, SCORES))
    known = [field.name for field in fields(SCORES[name])]
    for option in options:
        if option not in known:
            raise TypeError(unknown(f"option of score '{name}'", option, known))
    return SCORES[name](**options)
