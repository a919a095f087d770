"""Results from what a method returned: one answer for each problem, in the order of the guarantee."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from conformesh.common.array_types import Floats
from conformesh.pipeline.problems import Problem
from conformesh.protocols.block import Answers
from conformesh.results.lookup import part_axes
from conformesh.results.result import Answer, Result
from conformesh.results.summaries import lambda_notes
from conformesh.results.window import Window


def add_answers_to_result(blank: Result, outcome: Answers, problems: Sequence[Problem]) -> Result:
    """Return a result, so far without answers, with the answers to problems in the order of its parts and levels.

    The outcome has the thresholds of the devices that `blank` names: all of a simulation, or one on a real device.
    The examples of a problem are those of all devices that took part.
    """
    guarantee = blank.guarantee
    places = [{name: i for i, name in enumerate(axis.names)} for axis in part_axes(guarantee)]

    def order(problem: Problem) -> tuple[list[int], int]:
        if problem.alpha not in guarantee.alphas:
            raise ValueError(
                "a problem's alpha must be a level of the guarantee, of both sides together or the risk itself, "
                f"got {problem.alpha}"
            )
        part = [place[name] for place, name in zip(places, problem.part, strict=True)]
        return part, guarantee.alphas.index(problem.alpha)

    result = structs.replace(
        blank,
        answers=tuple(_answer(outcome, problem, blank.method) for problem in sorted(problems, key=order)),
        options={**blank.options, **outcome.facts},
        notes=(*outcome.notes, *blank.notes),
    )
    return structs.replace(result, notes=(*result.notes, *lambda_notes(result)))


def refuse_nan_thresholds(thresholds: Floats, method: str) -> None:
    """Refuse a threshold that is no number, whatever brought it about: compared with NaN every set is empty."""
    if np.isnan(thresholds).any():
        raise OverflowError(
            f"method {method!r} ended without a number as its threshold: its arithmetic left the range of float64; "
            "divide all scores by one number, calibrate, and multiply the threshold by it, or use e-dcp"
        )


def _answer(outcome: Answers, problem: Problem, method: str) -> Answer:
    """Take one (column, level) out of what a method handed back."""
    column, level = problem.column, problem.level
    thresholds = np.ascontiguousarray(outcome.thresholds[:, column, level])
    refuse_nan_thresholds(thresholds, method)  # a mesh device gets here without `solve`
    certificate = outcome.certificates[column][level]
    return Answer(
        part=tuple(problem.part),
        alpha=problem.alpha,
        thresholds=thresholds,
        certificate=certificate,
        estimate=None if outcome.estimates is None else float(outcome.estimates[:, column, level].max()),
        bracket=None if outcome.brackets is None else _widened_bracket(thresholds, outcome.brackets[:, column, level]),
        examples=problem.examples if certificate.noise is None else 0,  # which noise is there to hide
        facts=dict(outcome.trial_facts[column]) if outcome.trial_facts else {},
        windows=_windows(outcome, column, level),
    )


def _windows(outcome: Answers, column: int, level: int) -> tuple[Window, ...]:
    """Return the windows of all shared settings, whose columns follow that of the best one."""
    if outcome.adapted is None or outcome.windows is None:
        return ()
    return tuple(outcome.windows[column + s][level] for s in range(len(outcome.adapted.shared)))


def _widened_bracket(thresholds: Floats, ends: Floats) -> tuple[float, float] | None:
    """Return a bracket around the threshold, wider than what a search ended with, so that no end of it is a score."""
    if not np.isfinite(thresholds).all():
        return None
    middle = float(thresholds[0])
    with np.errstate(over="ignore"):
        # Half as wide again as the search left it, so that no end is the score of some device.
        reach = 1.5 * float(np.abs(ends - middle).max())
        around = (middle - reach, middle + reach)
    return around if np.isfinite(around).all() else None
