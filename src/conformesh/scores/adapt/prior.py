r"""`Prior`: probabilities corrected by the labels that a device has had.

A model gives :math:`p(y \mid x)` as if labels were as frequent as in its training data, :math:`\pi_0`. On a device with
:math:`N_y` other examples of label y,

.. math:: q(y \mid x) \propto p(y \mid x)^{1/T} \, \frac{N_y + a \, \pi_0(y)}{\pi_0(y)}, \qquad A = 1 - q(y \mid x).

The strength a is how many examples the training data count for; with :math:`a = \infty` nothing is corrected (LAC at
temperature T). Strength and temperature are chosen by the leave-one-out log loss of all devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from conformesh.common.array_types import Array, Floats, Ints
from conformesh.common.arrays import LARGEST_PROBABILITY
from conformesh.scores.adapt.base import (
    LARGEST_LOSS,
    LOSS_UNIT,
    Adaptation,
    Bag,
    Setting,
    as_values,
    round_losses,
)
from conformesh.scores.base import as_true_labels, check_output_table, raise_bad_row

# Each four times the one before: on CIFAR-100 a grid twice as fine changed the size of sets by less than 2 %.
_STRENGTHS = (1.0, 4.0, 16.0, 64.0, 256.0, np.inf)
# Above 1 for models that are too sure of themselves, as most are; below for those that are not sure enough, such as
# random forests and strongly regularised ones.
_TEMPERATURES = (0.5, 1.0, 1.5)
# Scores are multiples of this: as fine as anyone needs, short to send, and the same whatever the last bit of a sum is.
_GRAIN = 2.0**-30
_HINT = "apply softmax"  # there is no adaptation of logits
_SUM_SLACK = 0.001  # by which rows of probabilities may miss 1, as for other scores
_CELLS_AT_ONCE = 2**16  # of calibration rows and classes: half a megabyte stays in the cache


@dataclass(frozen=True)
class Prior(Adaptation):
    """Learns which labels a device has: for sites that see different classes.

    Parameters
    ----------
    strength
        How many examples the training data count for, or several to choose from; "auto": 1 to 256, and infinity.
    temperature
        Divides the logarithms of the probabilities, or several to choose from; "auto": 0.5, 1 and 1.5.
    prior
        How frequent the classes are in the training data, in the order of the columns; None: all alike.
    window
        How many pooled scores around the threshold every device receives. "full" decides every query exactly; with
        fewer, labels that they leave undecided are included.
    """

    strength: Any = "auto"
    temperature: Any = "auto"
    prior: Sequence[float] | None = None
    window: Any = 16

    name: ClassVar[str] = "prior"
    summary: ClassVar[str] = "corrects probabilities by the label frequencies of each device"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    predictions_reveal: ClassVar[str] = (
        "which labels its rows have, and about how often: sets rarely hold labels that it never had"
    )
    needs_new_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check_window()
        for name in ("strength", "temperature"):
            given = getattr(self, name)
            if isinstance(given, list):
                object.__setattr__(self, name, tuple(given))
        self._grid()
        if self.prior is None:
            return
        if isinstance(self.prior, Mapping):
            raise TypeError(
                "prior must be a list of numbers in the order of the columns of outputs, got a dict; give "
                "[prior[name] for name in classes]"
            )
        shares = np.asarray(self.prior, dtype=np.float64)
        if shares.ndim != 1 or len(shares) < 2 or not np.isfinite(shares).all() or not (shares > 0).all():
            raise ValueError(
                "prior must be one number above 0 for each class, how frequent it is in the training data, got "
                f"{self.prior!r:.60}; add 1 to counts that are 0"
            )
        object.__setattr__(self, "prior", tuple((shares / shares.sum()).tolist()))

    def _grid(self) -> tuple[Setting, ...]:
        strengths = as_values(self.strength, "strength", _STRENGTHS, 0.0)
        temperatures = as_values(self.temperature, "temperature", _TEMPERATURES, 0.0)
        return tuple((a, t) for a in strengths for t in temperatures)

    def settings(self, counts: Ints, columns: int) -> tuple[Setting, ...]:
        """Return every strength with every temperature."""
        return self._grid()

    def describe_setting(self, setting: Setting) -> str:
        """Return strength and temperature."""
        return "strength {:g}, temperature {:g}".format(*setting)

    def read(self, outputs: ArrayLike, labels: ArrayLike, who: str) -> Bag:
        """Return checked probabilities and column numbers."""
        if np.ndim(outputs) == 1 and np.ndim(labels) == 1 and np.size(labels):
            raise ValueError(
                f"{who}: adaptation 'prior' needs a row of probabilities for each example, one for each class, got "
                f"outputs of shape {np.shape(outputs)}; for regression use 'scale'"
            )
        table = self.read_new(outputs)
        return Bag(table, as_true_labels(self.name, table, labels, outputs))

    def read_new(self, outputs: ArrayLike) -> Array:
        """Return checked probabilities."""
        table = check_output_table(self.name, outputs, 0.0, LARGEST_PROBABILITY, _HINT)
        if self.prior is not None and len(table) and table.shape[1] != len(self.prior):
            raise ValueError(f"prior has {len(self.prior)} classes, but outputs have {table.shape[1]} columns")
        wrong = np.abs(table.sum(axis=1) - 1) > _SUM_SLACK
        return raise_bad_row(self.name, table, int(wrong.argmax()), _HINT) if wrong.any() else table

    def leave_one_out(self, bag: Bag, setting: Setting) -> Floats:
        """Return 1 - q of each label, from the labels of the other examples."""
        return _as_scores(self._own(bag, setting))

    def losses(self, bag: Bag, setting: Setting, level: float) -> Ints:
        """Return the log loss of each label."""
        return _log_losses(self._own(bag, setting))

    def other_scores(self, rest: Bag, setting: Setting, columns: int, new: Array) -> Floats:
        """Return the scores of `rest` with each label once more."""
        scores = np.empty((1, columns, len(rest)))
        for some, q in self._with_each_label(rest, setting, columns):
            scores[0, :, some] = _as_scores(q)
        return scores

    def other_losses(self, rest: Bag, setting: Setting, columns: int, level: float, new: Array) -> Ints:
        """Return the sum of the losses of `rest` with each label once more."""
        losses = np.zeros((1, columns), dtype=np.int64)
        for _, q in self._with_each_label(rest, setting, columns):
            losses[0] += _log_losses(q).sum(axis=1)
        return losses

    def candidate_scores(self, rest: Bag, setting: Setting, columns: int, new: Array) -> Floats:
        """Return 1 - q of every label of every new example."""
        return _as_scores(self._all(rest, setting, columns, new))

    def candidate_losses(self, rest: Bag, setting: Setting, columns: int, level: float, new: Array) -> Ints:
        """Return the log loss of every label of every new example."""
        return _log_losses(self._all(rest, setting, columns, new))

    def _own(self, bag: Bag, setting: Setting) -> Floats:
        """Return q of the own label of each example."""
        powers, counts = _powers(bag.outputs, setting), np.bincount(bag.labels, minlength=bag.outputs.shape[1])
        products = self._products(powers, bag.labels, counts, setting)
        return np.asarray(products[np.arange(len(bag)), bag.labels] / _pairwise_sums(products.T)[-1][0])

    def _with_each_label(self, rest: Bag, setting: Setting, columns: int) -> Iterator[tuple[slice, Floats]]:
        """Yield some examples at a time with q of their own labels, (columns, examples), with each label once more."""
        counts = np.bincount(rest.labels, minlength=columns)
        step = max(1, _CELLS_AT_ONCE // columns)
        for start in range(0, len(rest), step):
            some = slice(start, start + step)
            powers, labels = _powers(rest.outputs[some], setting), rest.labels[some]
            before, after = (self._products(powers, labels, counts + more, setting) for more in (0, 1))
            rows = np.arange(len(labels))
            own = np.tile(before[rows, labels], (columns, 1))
            own[labels, rows] = after[rows, labels]
            yield some, own / _sums_with_one_changed(before.T, after.T)

    def _all(self, rest: Bag, setting: Setting, columns: int, new: Array) -> Floats:
        """Return q of all labels of new examples."""
        products = _powers(new, setting) * self._factors(np.bincount(rest.labels, minlength=columns), setting)
        return np.asarray(products / _pairwise_sums(products.T)[-1][0][:, None])

    def _products(self, powers: Floats, labels: Ints, counts: Ints, setting: Setting) -> Floats:
        """Return powers times their factors, where `counts` are those of all examples: each leaves itself out."""
        rows = np.arange(len(labels))
        products = powers * self._factors(counts, setting)
        products[rows, labels] = powers[rows, labels] * self._factors(counts - 1, setting)[labels]
        return np.asarray(products)

    def _factors(self, counts: Ints, setting: Setting) -> Floats:
        """Return what probabilities are multiplied by."""
        strength = setting[0]
        if np.isinf(strength):
            return np.ones(counts.shape)
        prior = 1.0 / counts.shape[-1] if self.prior is None else np.array(self.prior)
        return np.asarray(counts / prior + strength)


def _pairwise_sums(table: Floats) -> list[Floats]:
    """Return a table (columns, rows) and the sums of its columns, two by two, four by four, ..., up to one of all.

    A fixed order of additions: with one column changed a few of them are repeated, and a sum is the same to the last
    bit whether rows are predicted alone, in batches, or are calibration rows.
    """
    levels = [table]
    while len(levels[-1]) > 1:
        last = levels[-1]
        if len(last) % 2:
            last = levels[-1] = np.concatenate([last, np.zeros((1, last.shape[1]))])
        levels.append(last[::2] + last[1::2])
    return levels


def _sums_with_one_changed(before: Floats, after: Floats) -> Floats:
    """Return the sums over the columns of `before` with each column in turn taken from `after`, (columns, rows)."""
    sums, places = after.copy(), np.arange(len(after))
    for level in _pairwise_sums(before)[:-1]:
        sums += level[places ^ 1]
        places >>= 1
    return sums


def _powers(outputs: Array, setting: Setting) -> Floats:
    temperature = setting[1]
    if temperature == 1.0:
        return np.asarray(outputs, dtype=np.float64)
    # Relative to the largest one, since a small temperature makes all powers 0 otherwise.
    return np.asarray((outputs / outputs.max(axis=1, keepdims=True)) ** (1.0 / temperature), dtype=np.float64)


def _as_scores(q: Floats) -> Floats:
    return 1.0 - np.rint(q / _GRAIN) * _GRAIN


def _log_losses(q: Floats) -> Ints:
    return round_losses(-np.log(np.maximum(q, np.exp(-LARGEST_LOSS / LOSS_UNIT))))
