"""What every score has in common: a name, a number for each example, and the question whether a threshold covers it.

A score must give the same float64 in calibration and in prediction, bit for bit, because a threshold usually *is* one
of the calibration scores: an answer one rounding apart would lose exactly the labels that the guarantee counts on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.common.array_types import Array, Bools, Floats
from conformesh.common.arrays import (
    LARGEST_PROBABILITY,
    SUM_SLACK,
    as_array,
    check_index,
    frame_columns,
    objects_as_numbers,
)
from conformesh.common.names import unknown_name
from conformesh.common.notes import emit_note
from conformesh.scores.draws import PREDICTION, Rng

Task = Literal["classification", "regression"]
Reads = Literal["probabilities", "logits"]

_HINT = "use score 'logit' or apply softmax"


@dataclass(frozen=True)
class Score(ABC):
    """A nonconformity score: how badly a label fits the model's output. The options are the dataclass fields.

    Attributes
    ----------
    name
        The key in `SCORES`, in kebab-case.
    task
        What it scores, "classification" or "regression".
    reads
        What `outputs` must be: "probabilities" or "logits" of labels, or "predictions" of numbers.
    summary
        One line for tables and help pages.
    bounds
        Between which numbers it lies, for outputs without rounding.
    """

    name: ClassVar[str]
    task: ClassVar[Task]
    reads: ClassVar[str]
    summary: ClassVar[str]
    bounds: ClassVar[tuple[float, float]] = (-np.inf, np.inf)

    @abstractmethod
    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> Floats:
        """Score each label against its row of outputs: what a device calibrates with, shape (n,)."""

    def covers(self, outputs: ArrayLike, labels: ArrayLike, threshold: ArrayLike) -> Bools:
        """Say for each row whether its label scores at most `threshold` (one number, or one per row)."""
        scores = self(outputs, labels)
        return np.less_equal(scores, as_row_values(self.name, "threshold", threshold, len(scores)))

    def sets(self, outputs: ArrayLike, threshold: ArrayLike) -> Bools:
        """Return the label sets of a classification score; a regression score has none and says so."""
        raise TypeError(
            f"score '{self.name}' is for regression and has no label sets; use intervals(outputs, threshold)"
        )

    def intervals(self, outputs: ArrayLike, threshold: ArrayLike) -> Floats:
        """Return the intervals of a regression score; a classification score has none and says so."""
        raise TypeError(f"score '{self.name}' is for classification and has no intervals; use sets(outputs, threshold)")

    def draws(
        self,
        outputs: ArrayLike,
        *,
        rng: Rng | None = None,
        keys: Iterable[Any] | None = None,
        purpose: str = PREDICTION,
    ) -> dict[str, Floats]:
        """Return what `sets` and `covers` take besides outputs and threshold: nothing, where a score does not draw."""
        return {}

    def outside(self, scores: Floats) -> Bools:
        """Mark the numbers that this score cannot give."""
        low, high = self.bounds
        # Only probabilities may be off by a rounding; a residual below 0 is a signed one, however small.
        slack = SUM_SLACK if self.task == "classification" else 0.0
        return (scores < low - slack) | (scores > high + slack)

    def check_range(self, scores: Floats, who: str) -> None:
        """Refuse numbers that this score cannot give: they come from another score, or are in another unit."""
        outside = self.outside(scores)
        if outside.any():
            (low, high), row = self.bounds, int(outside.argmax())
            allowed = f"between {low:g} and {high:g}" if np.isfinite(high) else f"at least {low:g}"
            remedy = "were they made with another score, or from outputs that are no probabilities?"
            if self.task == "regression":
                remedy = "take the absolute value of residuals, or name the score that was used"
            got = f"got {scores[row]:.6g}"
            raise ValueError(f"{who}, row {row}: scores of '{self.name}' are {allowed}, {got}; {remedy}")

    def seeded(self, seed: int) -> Self:
        """Return the score with this seed, if it draws and has none; so that a whole run can be repeated."""
        return self

    def options(self) -> dict[str, Any]:
        """Return the options as plain JSON values; ``get_score(score.name, **score.options())`` equals the score."""
        return asdict(self)


class ClassificationScore(Score):
    """A score of labels; `outputs` has one row per example and one column per class."""

    task: ClassVar[Task] = "classification"
    reads: ClassVar[Reads] = "probabilities"

    @abstractmethod
    def sets(self, outputs: ArrayLike, threshold: ArrayLike) -> Bools:
        """Return the prediction sets, shape (n, classes): which labels score at most `threshold`.

        Label y is in the set of row x exactly when ``score(x, y) <= threshold``, also when they are equal. The
        threshold is one number (+inf takes every label) or one per row, for rows that sit at different devices.
        """

    @abstractmethod
    def of_all_labels(self, outputs: ArrayLike) -> Floats:
        """Return the score of every label, shape (n, classes): for inspection, where `sets` would be faster."""


class RegressionScore(Score):
    """A score of real numbers; `outputs` is what the model predicts for each row.

    `columns` says what the columns of outputs are, in their order: what files call them.
    """

    task: ClassVar[Task] = "regression"
    reads: ClassVar[str] = "predictions"
    columns: ClassVar[tuple[str, ...]] = ("prediction",)

    @abstractmethod
    def intervals(self, outputs: ArrayLike, threshold: ArrayLike) -> Floats:
        """Return the prediction intervals, shape (n, 2): lower and upper end.

        Ends are rounded outwards: every float64 y with ``score(x, y) <= threshold`` lies inside, though a y beyond the
        exact end by about one rounding may as well. +inf gives (-inf, inf); an empty interval has its lower end above
        its upper end. The threshold is one number or one per row.
        """

    def sides(self, outputs: ArrayLike, labels: ArrayLike) -> Floats:
        """Return how far each label lies below the prediction and how far above it, shape (n, 2).

        The larger of both is the score. `calibrate(symmetric=False)` finds a threshold for each.
        """
        raise TypeError(f"score '{self.name}' does not tell two sides apart; use one threshold, with calibrate")

    def side_intervals(self, outputs: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> Floats:
        """Return the intervals of a threshold for each side, rounded outwards as those of `intervals`."""
        raise TypeError(f"score '{self.name}' does not tell two sides apart; use intervals(outputs, threshold)")


def as_real_array(who: str, what: str, values: ArrayLike) -> Array:
    """Return `values` as an array of real numbers, in the dtype it came in."""
    try:
        array = objects_as_numbers(as_array(values, f"score '{who}', {what}"))
    except ValueError as error:
        if "masked" in str(error):
            raise
        raise ValueError(f"score '{who}' needs {what} as one rectangular array, got rows of unequal length") from None
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"score '{who}' needs {what} as real numbers, got dtype {array.dtype}; convert them to float first"
        )
    return array


def as_row_values(who: str, what: str, values: ArrayLike, rows: int) -> Floats:
    """Return `values` as a contiguous float64 array with one entry for each row; a single number serves every row."""
    array = as_real_array(who, what, values).astype(np.float64)
    if array.ndim > 0 and array.shape != (rows,):
        raise ValueError(f"score '{who}' needs {what} as one number or shape ({rows},), got shape {array.shape}")
    if np.isnan(array).any():
        raise ValueError(f"score '{who}' needs a number for {what}, got NaN; use inf for 'no limit'")
    return np.full(rows, array) if array.ndim == 0 else array


def check_label_count(who: str, outputs: Array, labels: Array) -> None:
    """Refuse labels that are not one per row of outputs."""
    if labels.shape != outputs.shape[:1]:
        raise ValueError(
            f"score '{who}' needs one label for each row of outputs: "
            f"got {len(outputs)} rows and labels of shape {labels.shape}"
        )


def as_output_table(who: str, outputs: ArrayLike, *, contiguous: bool = False) -> Array:
    """Return outputs as a float32 or float64 table of shape (rows, classes); an empty list is a table of no rows."""
    table = as_real_array(who, "outputs", outputs)
    if table.shape == (0,):
        table = table.reshape(0, 0)
    if table.ndim != 2:
        advice = "; for a single row pass outputs[None, :]" if table.ndim == 1 else ""
        raise ValueError(f"score '{who}' needs outputs of shape (rows, classes), got shape {table.shape}{advice}")
    if len(table) and table.shape[1] == 0:
        raise ValueError(f"score '{who}' needs at least one class, got outputs of shape {table.shape}")
    if table.dtype not in (np.float32, np.float64):
        table = table.astype(np.float64)
    return np.ascontiguousarray(table) if contiguous else table


def as_label_indices(who: str, table: Array, labels: ArrayLike, outputs: Any = None) -> NDArray[np.int64]:
    """Return labels as int64 indices into the columns of the table, after checking that they are.

    Where `outputs` were a frame, labels may be the names of its columns.
    """
    array = objects_as_numbers(as_array(labels, f"score '{who}', labels"))
    columns = frame_columns(outputs)
    if columns is not None:
        array = label_positions(array, columns, f"score '{who}', labels")
    if array.dtype.kind in "OUST" and array.size:
        raise TypeError(
            f"score '{who}' needs labels as column numbers from 0, got {str(array.flat[0])!r}; look names up in the "
            "list of classes first: [classes.index(name) for name in labels]"
        )
    array = as_real_array(who, "labels", array)
    check_label_count(who, table, array)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError(
            f"score '{who}' needs a label for each row, got NaN in row {int(np.isnan(array).argmax())}; drop these rows"
        )
    if array.dtype.kind not in "iu":
        raise TypeError(f"score '{who}' needs integer labels, got dtype {array.dtype}; use labels.astype(int)")
    low, high, classes = array.min(), array.max(), table.shape[1]
    if low < 0 or high >= classes:
        raise ValueError(
            f"score '{who}' needs labels between 0 and {classes - 1}, one for each column of outputs, "
            f"got {low if low < 0 else high}"
        )
    return np.array(array, np.int64)


def as_true_labels(who: str, table: Array, labels: ArrayLike, outputs: Any) -> NDArray[np.int64]:
    """Return labels as `labels_of` does, with notes where they seem to be in the wrong order.

    A model that is right no more often than chance is not worth calibrating, and most often the labels are numbered
    otherwise than the columns, or belong to other rows. The first case is a hit rate below chance, which a model at
    chance has with probability below 1e-6 (Chernoff's bound); the second one at chance of a model that claims to be
    right half of the time or more.
    """
    check_index(outputs, labels, "labels", "outputs")
    indices = as_label_indices(who, table, labels, outputs)
    some = slice(None, None, max(1, len(table) // 400))  # some hundred rows tell enough, and cost little
    rows, truth = table[some], indices[some]
    n, classes = rows.shape
    if n < 2 or classes < 2 or (truth == truth[0]).all():  # a device with one class: the model may not know that one
        return indices
    chance, hits = 1 / classes, int((rows.argmax(axis=1) == truth).sum())
    rate = hits / n
    below = rate < chance and n * _divergence(rate, chance) > np.log(1e6)
    claimed = float(rows.max(axis=1).mean()) if rows.min() >= 0 and rows.max() <= LARGEST_PROBABILITY else 0.0
    at_chance = n >= 50 and hits <= n * chance + 2 * np.sqrt(n * chance) and claimed >= 0.5 + 0.6 / classes
    if below or (at_chance and hits < n * claimed / 2):
        claim = f", though the probabilities claim {claimed:.0%}" if at_chance else ""
        emit_note(
            f"score '{who}': the largest output is that of the true label in {hits} of {n} rows, where chance is "
            f"{n * chance:.0f}{claim}; are labels numbered in the order of the columns, and in the order of the rows?"
        )
    return indices


def _divergence(rate: float, chance: float) -> float:
    """Return the Kullback-Leibler divergence between two coins."""
    return float(sum(p * np.log(p / q) for p, q in ((rate, chance), (1 - rate, 1 - chance)) if p > 0))


def label_positions(labels: Array, columns: Sequence[str], what: str) -> Array:
    """Return the places of labels among named columns; whole numbers are places already, unless all names are such."""
    by_name = labels.dtype.kind in "OUST" or (labels.dtype.kind in "iu" and all(name.isdecimal() for name in columns))
    if not by_name:
        return labels
    place = {name: i for i, name in enumerate(columns)}
    names = [str(name) for name in labels.tolist()]
    if (strange := next((name for name in names if name not in place), None)) is not None:
        raise ValueError(f"{what}: {unknown_name('class', strange, columns)}")
    return np.array([place[name] for name in names], dtype=np.int64)


def check_output_table(who: str, outputs: ArrayLike, low: float, high: float, hint: str = _HINT) -> Floats:
    """Return outputs as a float64 table whose entries have been checked."""
    table = as_output_table(who, outputs).astype(np.float64)
    inside = ((table >= low) & (table <= high)).all(axis=1)
    return table if inside.all() else raise_bad_row(who, table, int(inside.argmin()), hint)


def raise_bad_row(who: str, table: Array, i: int, hint: str = _HINT) -> NoReturn:
    """Say what is wrong with a row; `hint` says what to do with logits."""
    row = table[i].astype(np.float64)
    if np.isnan(row).any():
        raise ValueError(f"score '{who}' cannot use NaN, found in row {i} of outputs; drop the row or repair the model")
    outside = row[(row < 0.0) | (row > LARGEST_PROBABILITY)]
    if outside.size and row.min() >= 0 and abs(row.sum() - 100) <= 1:  # percentages may be rounded
        raise ValueError(
            f"score '{who}' needs probabilities between 0 and 1, got {outside[0]:.6g} in row {i} of outputs, which "
            f"sums to {row.sum():.6g}; these look like percentages: divide them by 100"
        )
    if outside.size:
        raise ValueError(
            f"score '{who}' needs probabilities between 0 and 1, got {outside[0]:.6g} in row {i} of outputs; "
            f"these look like logits: {hint}"
        )
    raise ValueError(
        f"score '{who}' needs probabilities that sum to 1 (within 0.001), row {i} of outputs sums to {row.sum():.6g}; "
        f"these look like logits or unnormalised weights: {hint}"
    )
