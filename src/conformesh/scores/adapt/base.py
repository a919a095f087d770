r"""`Adaptation`: a leave-one-out score, and how a device computes it with a candidate among its examples.

An adapted score :math:`A(z; B)` of an example z may depend on the examples B of its device, but not on their order
(docs/guarantees.md). The score of z is computed from the other examples. A device that predicts replaces one hidden
example by the candidate (x, y), and computes the scores of its other examples again.

Some adaptations choose options (*settings*) from the calibration examples of all devices: by the smallest sum of
leave-one-out losses, whole numbers, so that every device chooses alike. The choice is repeated for each candidate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.common.array_types import Array, Floats, Ints
from conformesh.scores.base import Task

Setting = tuple[float, ...]  # values of the options that are chosen
LOSS_UNIT = 256  # losses are whole multiples of 1 / LOSS_UNIT: sums of them are exact, in whichever order
LARGEST_LOSS = 12 * LOSS_UNIT  # of one example: one outlier must not decide. A probability of exp(-12) loses as much
FULL = "full"  # the window that decides every query exactly


class Bag(NamedTuple):
    """Labelled examples of one device, whose order carries no meaning.

    Attributes
    ----------
    outputs
        The model's outputs, one row for each example.
    labels
        Column numbers for classification, true values for regression.
    """

    outputs: Array
    labels: Array

    def __len__(self) -> int:  # of a tuple it would be 2
        return len(self.labels)

    def take(self, rows: Any) -> Bag:
        """Return these examples."""
        return Bag(self.outputs[rows], self.labels[rows])

    def without(self, row: int) -> Bag:
        """Return the bag without one example; -1: all of it."""
        return self if row < 0 else self.take(np.delete(np.arange(len(self.labels)), row))


class Adaptation(ABC):
    """A score that learns from the examples of a device.

    A custom subclass for classification is a frozen dataclass with `leave_one_out`. Everything else has a default
    that refits for every candidate, which is correct for any score and slow.

    Attributes
    ----------
    name, summary
        The name of the adaptation, and one line about it.
    task
        "classification" or "regression".
    needs_new_rows
        Whether the scores of the other examples depend on the outputs of the candidate, not only on its label. So for
        `summary_counts`.
    window
        How many pooled scores around the threshold are shared, or "full"; see `calibrate`.
    bounds
        The smallest and the largest possible score, from which `p-dcp` makes its public grid.
    predictions_reveal
        What the predictions of a device reveal about its rows, for the report of `conformesh privacy`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    bounds: ClassVar[tuple[float, float]] = (-np.inf, np.inf)
    predictions_reveal: ClassVar[str] = "what its scores have learned from its rows"
    task: ClassVar[Task] = "classification"
    needs_new_rows: ClassVar[bool] = True
    window: Any = 16

    @abstractmethod
    def leave_one_out(self, bag: Bag, setting: Setting) -> Floats:
        """Return the score of each example, computed from the other examples of the bag; large for an unusual label.

        It must not depend on the order of the other examples.
        """

    # --- choosing settings --------------------------------------------------------------------------------------------

    def summary_counts(self, bag: Bag) -> Ints:
        """Return whole numbers that are added up over all devices before settings are known; none by default.

        Each is at most the number of examples in the bag.
        """
        return np.zeros(0, dtype=np.int64)

    def settings(self, counts: Ints, columns: int) -> tuple[Setting, ...]:
        """Return the settings to choose from, given the sums of `summary_counts` and the number of classes."""
        return ((),)

    def reachable_settings(self, counts: Ints, columns: int) -> tuple[Setting, ...]:
        """Return all settings that are possible after one example has been replaced."""
        return self.settings(counts, columns)

    def describe_setting(self, setting: Setting) -> str:
        """Return a setting in words, for summaries."""
        return ", ".join(f"{value:g}" for value in setting)

    def losses(self, bag: Bag, setting: Setting, level: float) -> Ints:
        """Return the leave-one-out loss of each example, from 0 to `LARGEST_LOSS`; `level` is the smallest alpha."""
        raise TypeError(f"adaptation {self.name!r} has several settings and no losses to choose by; define losses()")

    # --- candidates ---------------------------------------------------------------------------------------------------

    def read(self, outputs: ArrayLike, labels: ArrayLike, who: str) -> Bag:
        """Return checked outputs and labels."""
        from conformesh.scores.base import as_label_indices, check_output_table

        table = check_output_table(self.name, outputs, -np.inf, np.inf)
        return Bag(table, as_label_indices(self.name, table, labels, outputs))

    def read_new(self, outputs: ArrayLike) -> Array:
        """Return checked outputs of new examples."""
        from conformesh.scores.base import check_output_table

        return check_output_table(self.name, outputs, -np.inf, np.inf)

    def columns(self, outputs: Array) -> int:
        """Return how many candidates each new example has: the classes."""
        return int(outputs.shape[1])

    def other_scores(self, rest: Bag, setting: Setting, columns: int, new: Array) -> Floats:
        """Return the scores of the examples of `rest` with each candidate among them, (1 or rows, columns, examples).

        The first axis has one entry for all new rows unless `needs_new_rows`.
        """
        scores = np.empty((len(new), columns, len(rest)))
        for r, c, bag in _with_candidates(rest, new, columns):
            scores[r, c] = self.leave_one_out(bag, setting)[:-1]
        return scores

    def other_losses(self, rest: Bag, setting: Setting, columns: int, level: float, new: Array) -> Ints:
        """Return the sum of the losses of the examples of `rest` with each candidate among them, (1 or rows, columns).

        The first axis is that of `other_scores`.
        """
        losses = np.zeros((len(new), columns), dtype=np.int64)
        for r, c, bag in _with_candidates(rest, new, columns):
            losses[r, c] = int(self.losses(bag, setting, level)[:-1].sum())
        return losses

    def candidate_scores(self, rest: Bag, setting: Setting, columns: int, new: Array) -> Floats:
        """Return the scores of all candidates, (rows, columns), computed from `rest`."""
        scores = np.empty((len(new), columns))
        for r, c, bag in _with_candidates(rest, new, columns):
            scores[r, c] = self.leave_one_out(bag, setting)[-1]
        return scores

    def candidate_losses(self, rest: Bag, setting: Setting, columns: int, level: float, new: Array) -> Ints:
        """Return the losses of all candidates, (rows, columns)."""
        losses = np.empty((len(new), columns), dtype=np.int64)
        for r, c, bag in _with_candidates(rest, new, columns):
            losses[r, c] = self.losses(bag, setting, level)[-1]
        return losses

    def options(self) -> dict[str, Any]:
        """Return the options as plain values; ``get_adaptation(name, **options)`` returns the same adaptation."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    @property
    def has_full_window(self) -> bool:
        """Whether the window decides every query."""
        return bool(self.window == FULL)

    def check_window(self) -> None:
        """Refuse a window that is neither a number of scores nor "full"."""
        window = self.window
        if window != FULL and (isinstance(window, bool) or not isinstance(window, int) or window < 2):
            raise ValueError(f"window must be a number of pooled scores from 2 on, or {FULL!r}, got {window!r}")


def _with_candidates(rest: Bag, new: Array, columns: int) -> Any:
    """Yield the row, the column, and the bag with this candidate at its end."""
    outputs = np.concatenate([rest.outputs, np.zeros((1, *rest.outputs.shape[1:]), rest.outputs.dtype)])
    labels = np.append(rest.labels, 0)
    for r in range(len(new)):
        outputs[-1] = new[r]
        for c in range(columns):
            labels[-1] = c
            yield r, c, Bag(outputs, labels)


def as_values(given: Any, what: str, automatic: tuple[float, ...], smallest: float) -> tuple[float, ...]:
    """Return the values of an option to choose from: "auto", one number, or several.

    >>> as_values("auto", "strength", (1.0, 2.0), 0.0), as_values(3, "strength", (), 0.0)
    ((1.0, 2.0), (3.0,))
    """
    if isinstance(given, str) and given == "auto":
        return automatic
    several = given if isinstance(given, list | tuple) else [given]
    try:
        values = tuple(dict.fromkeys(float(value) for value in several))
    except (TypeError, ValueError):
        values = ()
    if not values or not all(value > smallest for value in values):
        raise ValueError(
            f"{what} must be 'auto', a number above {smallest:g}, or several to choose from, got {given!r}"
        )
    return values


def choice_level(alphas: Sequence[Fraction]) -> float:
    """Return the level at which settings are chosen, for all levels of a calibration: their order must not matter."""
    return float(min(alphas))


def round_losses(losses: NDArray[Any]) -> Ints:
    """Return losses as whole multiples of their unit, capped."""
    return np.asarray(np.minimum(np.rint(losses * LOSS_UNIT), LARGEST_LOSS), dtype=np.int64)
