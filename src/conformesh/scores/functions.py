"""Scores as plain functions of outputs and labels, which must be pure: one row and one label have one number.

A threshold usually *is* the score of a calibration example. If the function gave the same row another number among
other rows, or on another day, sets would lose labels that the guarantee counts on. So every call asks again about some
of its rows, one at a time, and the answers must agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.common.array_types import Array, Bools, Floats
from conformesh.common.arrays import as_array
from conformesh.scores.base import (
    ClassificationScore,
    RegressionScore,
    Score,
    as_label_indices,
    as_output_table,
    as_real_array,
    as_row_values,
    check_label_count,
)

Function = Callable[[Any, Any], Any]
_CHECKED = 3  # rows of a call that are computed again alone, to check that rows do not influence each other
_END_ROUNDINGS = 4  # roundings by which ends of intervals move outwards


def score_from_function(function: Function, *, intervals: Function | None = None, name: str | None = None) -> Score:
    """Return a score from a function ``function(outputs, labels) -> numbers``, one for each row.

    Parameters
    ----------
    function
        Of labels: gets a table of outputs and column numbers, and sets hold every label whose number is at most the
        threshold. With `intervals`, of real numbers.
    intervals
        For regression: ``intervals(outputs, thresholds)`` returns the lower and the upper end of what scores at most
        the threshold, one for each row.
    name
        What saved results call it; by default the function's own name.

    Examples
    --------
    >>> import numpy as np
    >>> def surprise(p, y):
    ...     return -np.log(p[np.arange(len(y)), y])
    >>> score = score_from_function(surprise)
    >>> score([[0.5, 0.5], [0.2, 0.8]], [0, 1]).round(3)
    array([0.693, 0.223])
    >>> score.sets([[0.5, 0.5], [0.2, 0.8]], threshold=0.7)
    array([[ True,  True],
           [False,  True]])
    """
    for what, given in (("function", function), ("intervals", intervals)):
        if not callable(given) and not (given is None and what == "intervals"):
            raise TypeError(
                f"score_from_function: {what} must be a function of outputs and labels, got {type(given).__name__}"
            )
    called = name or _name_of(function)
    if intervals is None:
        return FunctionScore(called, function)
    return IntervalFunctionScore(called, function, intervals)


def saved_function_place(name: str, function: str) -> Score | None:
    """Return the place of a function that a saved result names, which must be given again; None for another name."""
    kinds = (FunctionScore, IntervalFunctionScore)
    return next((kind(function) for kind in kinds if kind.name == name), None)


@dataclass(frozen=True)
class FunctionScore(ClassificationScore):
    """A score of labels that is a function of the user; of a saved result only its name is known."""

    called: str
    function: Function | None = field(default=None, repr=False)

    name: ClassVar[str] = "function"
    reads: ClassVar[str] = "outputs"  # type: ignore[assignment]
    summary: ClassVar[str] = "a function of outputs and labels"

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> Floats:
        """Return what the function says of each row's own label."""
        table = self._table(outputs)
        return _asked(self.called, self.function, table, as_label_indices(self.called, table, labels, outputs))

    def sets(self, outputs: ArrayLike, threshold: ArrayLike) -> Bools:
        """Return the labels whose number is at most the threshold."""
        table = self._table(outputs)
        thresholds = as_row_values(self.called, "threshold", threshold, len(table))
        return np.less_equal(self.of_all_labels(table), thresholds[:, None])

    def of_all_labels(self, outputs: ArrayLike) -> Floats:
        """Return the number of every label: the function is called once for each."""
        table = self._table(outputs)
        scores = np.empty(table.shape)
        for label in range(table.shape[1]):
            scores[:, label] = _asked(self.called, self.function, table, np.full(len(table), label))
        return scores

    def options(self) -> dict[str, Any]:
        """Return the name of the function: what a saved result keeps of it."""
        return {"function": self.called}

    def _table(self, outputs: ArrayLike) -> Array:
        array = as_real_array(self.called, "outputs", outputs)
        if array.ndim == 1 and array.size:
            raise ValueError(
                f"score '{self.called}' is a function of labels and needs outputs of shape (rows, classes), got shape "
                f"{array.shape}; for regression say what lies within a threshold: "
                "scores.score_from_function(function, intervals=...)"
            )
        return as_output_table(self.called, array)


@dataclass(frozen=True)
class IntervalFunctionScore(RegressionScore):
    """A score of real numbers that is a function of the user, with its inverse."""

    called: str
    function: Function | None = field(default=None, repr=False)
    inverse: Function | None = field(default=None, repr=False)

    name: ClassVar[str] = "interval-function"
    reads: ClassVar[str] = "outputs"
    summary: ClassVar[str] = "a function of outputs and labels, with its intervals"

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> Floats:
        """Return what the function says of each row's label, and see that its own interval holds the label."""
        table, y = (
            as_real_array(self.called, "outputs", outputs),
            as_real_array(self.called, "labels", labels).astype(np.float64),
        )
        check_label_count(self.called, table, y)
        scores = _asked(self.called, self.function, table, y)
        ends = self.intervals(table, scores)
        reach = 1e-9 * np.maximum(np.abs(y), np.where(np.isfinite(ends), np.abs(ends), 0.0).max(axis=1, initial=0.0))
        lost = np.flatnonzero((y < ends[:, 0] - reach) | (y > ends[:, 1] + reach))
        if len(lost):
            i = lost[0]
            raise ValueError(
                f"intervals of score '{self.called}' must hold every label that scores at most the threshold: label "
                f"{y[i]:.6g} of row {i} scores {scores[i]:.6g}, and the interval of this threshold is "
                f"{ends[i, 0]:.6g} to {ends[i, 1]:.6g}"
            )
        return scores

    def intervals(self, outputs: ArrayLike, threshold: ArrayLike) -> Floats:
        """Return what the function's inverse says, its ends moved outwards by a few roundings."""
        table = as_real_array(self.called, "outputs", outputs)
        thresholds = as_row_values(self.called, "threshold", threshold, len(table))
        if self.inverse is None:
            raise ValueError(_given_again(self.called))
        if not len(table):
            return np.empty((0, 2))
        answer = self.inverse(table.copy(), thresholds.copy())
        ends = np.stack([as_array(end, "ends") for end in answer], 1) if isinstance(answer, tuple) else answer
        ends = np.array(as_array(ends, f"intervals of score '{self.called}'"), np.float64)
        if ends.shape != (len(table), 2) or np.isnan(ends).any():
            raise ValueError(
                f"intervals of score '{self.called}' must be a lower and an upper end for each of {len(table)} rows, "
                f"got {'NaN' if ends.shape == (len(table), 2) else f'shape {ends.shape}'}"
            )
        room = np.zeros(len(ends))
        known = np.isfinite(ends).all(axis=1)
        room[known] = _END_ROUNDINGS * np.spacing(np.abs(ends[known]).max(axis=1))
        return ends + np.stack([-room, room], axis=1)

    def options(self) -> dict[str, Any]:
        """Return the name of the function: what a saved result keeps of it."""
        return {"function": self.called}


def _asked(called: str, function: Function | None, table: Array, labels: NDArray[Any]) -> Floats:
    """Return the function's numbers, having asked about some rows again."""
    if function is None:
        raise ValueError(_given_again(called))
    if not len(table):
        return np.empty(0)
    scores = _answer(called, function, table, labels)
    for i in sorted({0, len(table) // 2, len(table) - 1})[:_CHECKED]:
        alone = _answer(called, function, table[i : i + 1], labels[i : i + 1])[0]
        if alone == scores[i]:
            continue
        again = _answer(called, function, table, labels)
        if (again != scores).any():
            raise ValueError(
                f"score '{called}' must be a pure function, but gave two answers to the same question: "
                f"{scores[again != scores][0]!r} and {again[again != scores][0]!r}; draw random numbers from a hash of "
                "the row, and keep nothing between calls"
            )
        raise ValueError(
            f"score '{called}' must give a row the same number whatever rows are beside it: row {i} has {scores[i]!r} "
            f"among {len(table)} rows and {alone!r} alone; do not sum, sort or normalise over rows"
        )
    return scores


def _answer(called: str, function: Function, table: Array, labels: NDArray[Any]) -> Floats:
    """Ask once, and check the form of the answer and that nothing was changed."""
    given = table.copy(), labels.copy()
    array = as_array(function(*given), f"score '{called}'")
    if given[0].tobytes() != table.tobytes() or given[1].tobytes() != labels.tobytes():
        raise ValueError(f"score '{called}' must leave its inputs as they are, but changed them; let it work on copies")
    if array.dtype.kind not in "fiub" or array.shape != labels.shape:
        raise ValueError(
            f"score '{called}' must return one number for each of {len(labels)} rows, got "
            f"{array.dtype} of shape {array.shape}"
        )
    scores = array.astype(np.float64)
    if np.isnan(scores).any():
        raise ValueError(f"score '{called}' must return numbers, got NaN in row {int(np.isnan(scores).argmax())}")
    return scores


def _given_again(called: str) -> str:
    return (
        f"this result was calibrated with your own score, the function '{called}', which no file can hold: give it "
        "again, as in predict(outputs, score=function)"
    )


def _name_of(function: Function) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
