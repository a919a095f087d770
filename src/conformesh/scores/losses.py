r"""Losses for risk control: how bad a set is for an example, as a step function of the threshold lambda.

As lambda grows sets grow, and a loss that can be controlled never rises: it starts at some value, falls at breakpoints,
and ends at 0 where the set holds everything. `StepLosses` are such functions, one per example; a `Loss` makes them from
a model's outputs and the truth, and turns the lambda that the devices agree on back into sets.

Two wishes do not fit, because they rise somewhere as sets grow: miscoverage plus a price for the size of a set, and the
error rate *among answered* examples (`WrongAndAnswered` is the one that fits). Such losses can be tested on a grid of
lambdas instead, ``control(..., monotone=False)``: `ErrorAmongAnswered` and `ratio_losses`, for precision and F1, make
losses of that kind.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.common.array_types import Bools, Floats, Ints
from conformesh.common.arrays import as_array
from conformesh.common.names import unknown_name
from conformesh.kernels.ranks import exact_alpha
from conformesh.scores import LAC, as_score, get_score
from conformesh.scores.base import (
    ClassificationScore,
    Task,
    as_label_indices,
    as_real_array,
    as_row_values,
    check_output_table,
)

_NOISE = 1e-12  # share of the loss bound: a rise, or a step out of range, that is only round-off
_NOT_MONOTONE = (
    "risk control needs losses that never rise as lambda grows. A price for the size of the set, and an error rate "
    "among answered examples only, do rise: control the loss without the price, or 'wrong and answered' instead, or "
    "test a grid of lambdas with monotone=False"
)


@dataclass(frozen=True, eq=False)
class StepLosses:
    """Losses of some examples (items), each a step function of lambda that never rises.

    Attributes
    ----------
    lambdas
        All breakpoints, flat; those of item i are ``lambdas[offsets[i]:offsets[i + 1]]``, ascending.
    values
        The loss from each breakpoint on, until the next.
    offsets
        Shape (items + 1,).
    starts
        The loss of each item below its first breakpoint; inf: all that it can lose, the bound.
    bound
        No loss is larger.
    names
        What the items are called in errors; by default their numbers, from 0.
    """

    lambdas: Floats
    values: Floats
    offsets: Ints
    starts: Floats
    bound: float = 1.0
    names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, items: Iterable[tuple[ArrayLike, ArrayLike]], bound: float = 1.0) -> StepLosses:
        """Build from (breakpoints, values) of each item: the loss from each breakpoint on, until the next.

        Below its first breakpoint an item's loss is taken as `bound`, unless that breakpoint is -inf.

        >>> StepLosses.of([([0.2, 0.7], [0.5, 0.0]), ([-np.inf, 0.4], [0.3, 0.0])]).at(0.3).tolist()
        [0.5, 0.3]
        """
        pairs = [(_flat(points, "breakpoints"), _flat(values, "values")) for points, values in items]
        for i, (points, values) in enumerate(pairs):
            if len(points) != len(values):
                raise ValueError(f"item {i}: needs one value for each breakpoint, got {len(values)} for {len(points)}")
        offsets = np.concatenate([[0], np.cumsum([len(points) for points, _ in pairs], dtype=np.int64)])
        points, values = (np.concatenate([np.empty(0), *(pair[side] for pair in pairs)]) for side in (0, 1))
        return cls(points, values, offsets, np.full(len(pairs), np.inf), bound)

    @classmethod
    def on_grid(cls, lambdas: ArrayLike, table: ArrayLike, bound: float = 1.0) -> StepLosses:
        """Build from the losses of every item at the same lambdas, ascending: `table` (items, lambdas).

        >>> StepLosses.on_grid([0.0, 0.5, 1.0], [[1.0, 0.5, 0.0]]).at(0.7).tolist()
        [0.5]
        """
        grid, values = _flat(lambdas, "lambdas"), np.asarray(as_array(table, "losses"), dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != len(grid):
            raise ValueError(f"losses on a grid must have shape (items, {len(grid)}), got {values.shape}")
        offsets = np.arange(len(values) + 1) * len(grid)
        return cls(np.tile(grid, len(values)), values.ravel(), offsets, np.full(len(values), np.inf), bound)

    @classmethod
    def of_table(cls, items: ArrayLike, lambdas: ArrayLike, losses: ArrayLike, bound: float = 1.0) -> StepLosses:
        """Build from a long table, one row for each item and lambda, in any order."""
        owners = as_array(items, "items")
        points, values = _flat(lambdas, "lambda"), _flat(losses, "loss")
        if not len(owners) == len(points) == len(values):
            raise ValueError(
                f"a table of losses needs an item, a lambda and a loss in each row, got {len(owners)}, {len(points)} "
                f"and {len(values)}"
            )
        names, index = np.unique(owners.astype(str), return_inverse=True)
        order = np.lexsort((points, index))
        index, points, values = index[order], points[order], values[order]
        twice = np.flatnonzero((np.diff(index) == 0) & (np.diff(points) == 0) & (np.diff(values) != 0))
        if len(twice):
            at = twice[0]
            raise ValueError(
                f"item {names[index[at]]} has two losses at lambda {points[at]:g}: {values[at]:g} and "
                f"{values[at + 1]:g}; keep one"
            )
        offsets = np.concatenate([[0], np.cumsum(np.bincount(index, minlength=len(names)))])
        return cls(points, values, offsets, np.full(len(names), np.inf), bound, tuple(names.tolist()))

    @classmethod
    def none(cls, bound: float = 1.0) -> StepLosses:
        """Return the losses of a device without items."""
        return cls(np.empty(0), np.empty(0), np.zeros(1, np.int64), np.empty(0), bound)

    def __len__(self) -> int:
        return len(self.starts)

    def name(self, item: int) -> str:
        """Return what an item is called."""
        return str(item) if self.names is None else self.names[item]

    def at(self, lam: ArrayLike) -> Floats:
        """Return the loss of each item at a lambda, one for all or one each."""
        threshold = as_row_values("loss", "lambda", lam, len(self))
        owner = self._owner
        passed = np.bincount(owner, self.lambdas <= threshold[owner], len(self)).astype(np.int64)
        last = self.offsets[:-1] + passed - 1
        first = np.where(np.isposinf(self.starts), self.bound, self.starts)
        return np.where(passed > 0, self.values[np.maximum(last, 0)] if len(self.values) else 0.0, first)

    def first_missing(self, grid: Floats) -> tuple[int, int] | None:
        """Return an item and the place of a lambda of the grid at which it has no breakpoint; None if there is none.

        >>> StepLosses.of([([0.2, 0.7], [0.5, 0.0])]).first_missing(np.array([0.7, 0.3]))
        (0, 1)
        """
        order = np.argsort(grid)
        place = np.minimum(np.searchsorted(grid[order], self.lambdas), len(grid) - 1)
        is_there = grid[order][place] == self.lambdas
        present = np.zeros((len(self), len(grid)), dtype=np.bool_)
        present[self._owner[is_there], order[place[is_there]]] = True
        if present.all():
            return None
        item, at = np.argwhere(~present)[0].tolist()
        return item, at

    def sums(self, grid: Floats, scale: int, who: str) -> Ints:
        """Return the sum of the losses of all items at each lambda, in whole parts of the bound, rounded up.

        Losses may rise and fall. A loss that is out of range, or breakpoints that do not ascend, are refused; `who` is
        the name of the device.

        >>> losses = StepLosses.of([([0.2, 0.7], [0.5, 1.0]), ([0.1], [0.0])])
        >>> losses.sums(np.array([0.8, 0.3]), 10, "device 1").tolist()
        [10, 5]
        """
        self._refuse_disorder(who)
        starts, values = self._in_range(who)
        whole, start = (_rounded_up(losses / self.bound, scale) for losses in (values, starts))
        order = np.argsort(grid)
        # What each breakpoint changes counts from the first lambda of the grid at or above it.
        first = np.searchsorted(grid[order], self.lambdas)
        changes = np.zeros(len(grid) + 1, dtype=np.int64)
        np.add.at(changes, first, whole - self._before(start, whole))
        found = np.empty(len(grid), dtype=np.int64)
        found[order] = start.sum() + np.cumsum(changes[:-1])
        return found

    def take(self, items: Ints) -> StepLosses:
        """Return the losses of these items, in this order."""
        sizes = np.diff(self.offsets)[items]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        points = np.repeat(self.offsets[:-1][items] - offsets[:-1], sizes) + np.arange(int(offsets[-1]))
        names = None if self.names is None else tuple(self.names[item] for item in items.tolist())
        return StepLosses(self.lambdas[points], self.values[points], offsets, self.starts[items], self.bound, names)

    def rows(self) -> Iterator[tuple[str, float, float]]:
        """Yield item, lambda and loss of every step: the rows of a table, which `of_table` reads back.

        The loss below an item's first breakpoint stands at -inf, where it is not the bound.
        """
        for item, start in enumerate(self.starts.tolist()):
            own = slice(self.offsets[item], self.offsets[item + 1])
            if start not in (self.bound, math.inf):
                yield self.name(item), -math.inf, start
            for point, value in zip(self.lambdas[own].tolist(), self.values[own].tolist(), strict=True):
                yield self.name(item), point, value

    def checked(self, who: str) -> StepLosses:
        """Return the same losses, in range and never rising, or say which item of `who` is not so.

        What leaves the range or rises by round-off alone is put right, a rise to the larger side.
        """
        self._refuse_disorder(who)
        owner = self._owner
        starts, values = self._in_range(who)
        before = self._before(starts, values)
        rises = np.flatnonzero(values > before)
        for at in rises[values[rises] > before[rises] + _NOISE * self.bound].tolist():
            raise ValueError(
                f"{who}, item {self.name(owner[at])}: the loss rises from {before[at]:g} to {values[at]:g} "
                f"at lambda {self.lambdas[at]:g}; {_NOT_MONOTONE}"
            )
        for item in {*owner[rises].tolist()}:  # seldom: round-off
            own = slice(self.offsets[item], self.offsets[item + 1])
            values[own] = np.maximum.accumulate(values[own][::-1])[::-1]
            starts[item] = max(starts[item], values[self.offsets[item]])
        return replace(self, starts=starts, values=values)

    def _refuse_disorder(self, who: str) -> None:
        """Refuse an impossible bound, and breakpoints that are NaN or do not ascend."""
        if not (self.bound > 0 and math.isfinite(self.bound)):
            raise ValueError(f"the bound of a loss must be a finite number above 0, got {self.bound}")
        owner = self._owner
        for at in np.flatnonzero(np.isnan(self.lambdas)).tolist():
            raise ValueError(f"{who}, item {self.name(owner[at])}: lambda must be a number, got NaN; repair or drop it")
        for at in np.flatnonzero((self.lambdas[1:] < self.lambdas[:-1]) & (np.diff(owner) == 0)).tolist():
            raise ValueError(
                f"{who}, item {self.name(owner[at])}: breakpoints must ascend, got {self.lambdas[at]:g} before "
                f"{self.lambdas[at + 1]:g}; sort them, each with its loss"
            )

    def _in_range(self, who: str) -> tuple[Floats, Floats]:
        """Return starts and values within [0, bound]; a breakpoint at -inf is a start."""
        starts = np.where(np.isposinf(self.starts), self.bound, self.starts)
        first, some = self.offsets[:-1], np.diff(self.offsets) > 0
        low = np.zeros(len(self), dtype=bool)
        low[some] = np.isneginf(self.lambdas[first[some]])
        starts[low] = self.values[first[low]]
        every, slack = np.concatenate([starts, self.values]), _NOISE * self.bound
        outside = np.flatnonzero(~((every >= -slack) & (every <= self.bound + slack)))
        if len(outside):
            item = int(np.concatenate([np.arange(len(self)), self._owner])[outside[0]])
            step = int(outside[0]) - len(self)
            where = f", lambda {self.lambdas[step]:g}" if step >= 0 else ""
            raise ValueError(
                f"{who}, item {self.name(item)}{where}: losses must lie between 0 and {self.bound:g}, got "
                f"{every[outside[0]]:g}; say the largest possible loss with bound=, or repair the item"
            )
        return np.clip(starts, 0.0, self.bound), np.clip(self.values, 0.0, self.bound)

    def drops(self, scale: int) -> tuple[Floats, Ints, Ints]:
        r"""Return breakpoints, how much the loss falls at each in whole parts of the bound, `scale` of them, and items.

        For losses that were `checked`.

        The loss itself is rounded up, :math:`l = \lceil \mathrm{scale} \cdot L / B \rceil`, and the falls are the
        differences of these whole numbers: what was rounded up once is never rounded again. What is left behind the
        last breakpoint falls at +inf, where a set holds everything. A quotient that as a float equals r / scale is
        r / scale.
        """
        whole, start = (_rounded_up(losses / self.bound, scale) for losses in (self.values, self.starts))
        left = start.copy()
        some = np.diff(self.offsets) > 0
        left[some] = whole[self.offsets[1:][some] - 1]
        falls = np.concatenate([self._before(start, whole) - whole, left])
        points = np.concatenate([self.lambdas, np.full(len(self), np.inf)])
        items = np.concatenate([self._owner, np.arange(len(self))])
        return points[falls > 0], falls[falls > 0], items[falls > 0]

    def _before(self, starts: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
        """Return what an item's loss is just below each of its breakpoints."""
        before = np.roll(values, 1)
        some = np.diff(self.offsets) > 0
        before[self.offsets[:-1][some]] = starts[some]
        return before

    @property
    def _owner(self) -> Ints:
        """The item of each breakpoint."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))


def _rounded_up(parts: Floats, scale: int) -> Ints:
    """Return the smallest whole r for which r / scale, as a float, is at least the part."""
    near = np.ceil(parts * scale)
    near = np.where((near - 1) / scale >= parts, near - 1, near)
    return np.where(near / scale < parts, near + 1, near).astype(np.int64)


_BLOCK = 2**16  # losses of a table that are rounded at a time: they and what is computed from them stay in the cache


def sums_of_table(table: NDArray[Any], bound: float, scale: int, who: str) -> Ints:
    """Return the sum of each column of losses (items, lambdas), in whole parts of the bound, rounded up.

    A loss outside [0, bound] by more than round-off is refused; `who` is the name of the device.

    >>> sums_of_table(np.array([[0.5, 2.0], [1.0, 0.1]]), 2.0, 10, "device 1").tolist()
    [8, 11]
    """
    found, slack = np.zeros(table.shape[1], dtype=np.int64), _NOISE * bound
    rows = max(_BLOCK // max(table.shape[1], 1), 1)
    for start in range(0, len(table), rows):
        part = table[start : start + rows].astype(np.float64)
        if not (part.min() >= -slack and part.max() <= bound + slack):  # also where it is NaN
            item, place = np.argwhere(~((part >= -slack) & (part <= bound + slack)))[0].tolist()
            raise ValueError(
                f"{who}, item {start + item}, lambda number {place} of the grid: losses must lie between 0 and "
                f"{bound:g}, got {part[item, place]:g}; say the largest possible loss with bound=, or repair the item"
            )
        found += _rounded_up(np.clip(part, 0.0, bound) / bound, scale).sum(axis=0)
    return found


def ratio_losses(numerator: ArrayLike, denominator: ArrayLike, level: float, largest: float = 1.0) -> Floats:
    r"""Return losses whose mean is at most `level` exactly if E[numerator] / E[denominator] is at most `level`.

    .. math:: L = \rho + \frac{N - \rho D}{D_\text{max}} \in [0, 1]

    for :math:`0 \le N \le D \le D_\text{max}`: :math:`E L \le \rho` exactly if :math:`E N \le \rho\, E D`. A
    ratio of means is no mean loss, but this *linear form* of it is. It rises and falls, so that it is tested on a grid:
    ``control(..., monotone=False, risk=level)``.

    Parameters
    ----------
    numerator, denominator
        For each item and each lambda of the grid. For the part that is wrong among what is kept (one minus the
        precision): how many are kept and wrong, and how many are kept. For one minus F1: false positives plus false
        negatives, and these plus twice the true positives.
    level
        The largest ratio allowed, which is also the risk to ask for.
    largest
        The largest denominator possible; it must be known without the data.

    Examples
    --------
    >>> wrong, kept = [[2, 1, 0], [0, 0, 0]], [[4, 3, 0], [4, 2, 1]]
    >>> ratio_losses(wrong, kept, level=0.2, largest=4).round(3).tolist()
    [[0.5, 0.3, 0.2], [0.0, 0.1, 0.15]]
    """
    above, below = (
        np.asarray(as_array(given, what), dtype=np.float64)
        for given, what in ((numerator, "numerator"), (denominator, "denominator"))
    )
    rho = float(exact_alpha(level, "level"))
    if above.shape != below.shape:
        raise ValueError(f"numerator and denominator must have one shape, got {above.shape} and {below.shape}")
    if not (largest > 0 and math.isfinite(largest)):
        raise ValueError(f"largest must be a finite number above 0, the largest denominator possible, got {largest}")
    if not ((above >= 0) & (above <= below) & (below <= largest)).all():
        raise ValueError(
            f"each numerator must be from 0 to its denominator, and each denominator at most largest={largest:g}, got "
            f"numerators {above.min():g} to {above.max():g} and denominators {below.min():g} to {below.max():g}"
        )
    return np.clip(rho + (above - rho * below) / largest, 0.0, 1.0)


def _flat(values: ArrayLike, what: str) -> Floats:
    array = as_array(values, what)
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        raise ValueError(f"{what} must be one row of numbers, got shape {array.shape} of {array.dtype}")
    return array.astype(np.float64)


@dataclass(frozen=True)
class Loss(ABC):
    """How bad a set is for an example; the options are the dataclass fields.

    Attributes
    ----------
    name
        The key in `LOSSES`, in kebab-case.
    task, reads
        As of a `Score`: what is predicted, and whether outputs are probabilities or any numbers ("logits").
    summary
        One line for tables and help pages.
    monotone
        Whether it never rises with lambda; if not, ``control(..., monotone=False)`` tests it on a grid.
    """

    name: ClassVar[str]
    task: ClassVar[Task] = "classification"
    summary: ClassVar[str]
    monotone: ClassVar[bool] = True

    @property
    def reads(self) -> str:
        """What outputs must be; by default any numbers."""
        return "logits"

    @abstractmethod
    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> StepLosses:
        """Return the losses of all rows as functions of lambda: what a device hands to `control`."""

    @abstractmethod
    def sets(self, outputs: ArrayLike, lam: ArrayLike) -> Bools:
        """Return the sets at a lambda, one for all rows or one each; of the shape of `outputs`."""

    def options(self) -> dict[str, Any]:
        """Return the options as plain JSON values; ``get_loss(loss.name, **loss.options())`` equals the loss."""
        return asdict(self)


@dataclass(frozen=True)
class _OfScore(Loss):
    """What losses of label sets share: label y is in the set exactly if its score is at most lambda."""

    score: ClassificationScore = field(default_factory=LAC, kw_only=True)

    def __post_init__(self) -> None:
        given: Any = self.score
        kind = get_score(**given) if isinstance(given, Mapping) else as_score(given)
        if not isinstance(kind, ClassificationScore) or getattr(kind, "randomised", False):
            raise TypeError(f"loss {self.name!r} needs a score of labels that draws nothing, got {given!r}")
        object.__setattr__(self, "score", kind)

    @property
    def reads(self) -> str:
        """What the score reads."""
        return self.score.reads

    def sets(self, outputs: ArrayLike, lam: ArrayLike) -> Bools:
        """Return which labels score at most lambda."""
        table = self._table(outputs)
        return np.asarray(table <= as_row_values(self.name, "lambda", lam, len(table))[:, None])

    def options(self) -> dict[str, Any]:
        """Return the options, the score as its name and its own options."""
        return {**asdict(self), "score": {"name": self.score.name, **self.score.options()}}

    def _table(self, outputs: ArrayLike) -> Floats:
        return self.score.of_all_labels(outputs)


@dataclass(frozen=True)
class FalseNegativeRate(_OfScore):
    r"""The part of the true labels, or of the true pixels, that the set misses.

    .. math:: L(\lambda) = \frac{|\{y \in Y : s(x, y) > \lambda\}|}{|Y|}

    `outputs` has a row for each example and a number for each label (several labels may be true), or for each pixel
    of an image, in as many axes as there are; `labels` has the same shape and says which are true. An example without
    a true label has no loss.

    Reference: [Angelopoulos2024], conformal risk control, Section 3.

    Examples
    --------
    >>> fnr = FalseNegativeRate()
    >>> steps = fnr([[0.75, 0.5, 0.25]], [[True, False, True]])
    >>> steps.at(0.5), fnr.sets([[0.75, 0.5, 0.25]], 0.5)
    (array([0.5]), array([[ True,  True, False]]))
    """

    name: ClassVar[str] = "false-negative-rate"
    summary: ClassVar[str] = "part of the true labels, or pixels, that the set misses"

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> StepLosses:
        """Return for each row the part of its true labels that score above lambda."""
        given, truth = as_real_array(self.name, "outputs", outputs), as_real_array(self.name, "labels", labels)
        if truth.shape != given.shape or not np.isin(truth, (0, 1)).all():
            raise ValueError(
                f"loss {self.name!r} needs labels of true and false, one for each output, shape {given.shape}, got "
                f"{truth.dtype} of shape {truth.shape}"
            )
        table, true = self._table(given), truth.reshape(len(truth), -1).astype(bool)
        owner, points = np.nonzero(true)[0], table[true]
        points = points[np.lexsort((points, owner))]
        many = true.sum(axis=1)
        offsets = np.concatenate([[0], np.cumsum(many)])
        missed = np.repeat(offsets[1:], many) - np.arange(1, len(points) + 1)
        return StepLosses(points, missed / np.repeat(many, many), offsets, (many > 0).astype(np.float64))

    def sets(self, outputs: ArrayLike, lam: ArrayLike) -> Bools:
        """Return which labels, or pixels, score at most lambda."""
        return super().sets(outputs, lam).reshape(np.shape(outputs))

    def _table(self, outputs: ArrayLike) -> Floats:
        given = as_real_array(self.name, "outputs", outputs)
        return super()._table(given.reshape(len(given), -1) if given.ndim > 2 else given)


@dataclass(frozen=True)
class _Distance(_OfScore):
    """What distances share: the least distance of the true label to a label in the set, the largest if it is empty."""

    @abstractmethod
    def _between(self, classes: int) -> Floats:
        """Return the distance of every label (row) to every other."""

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> StepLosses:
        """Return for each row the distance of its label to the nearest label that scores at most lambda."""
        table = self._table(outputs)
        rows, classes = table.shape
        distances, truth = self._between(classes), as_label_indices(self.name, table, labels)
        order = np.argsort(table, axis=1, kind="stable")
        points = np.take_along_axis(table, order, axis=1)
        near = np.minimum.accumulate(distances[truth[:, None], order], axis=1)
        bound = float(distances.max(initial=0.0)) or 1.0
        offsets = np.arange(rows + 1) * classes
        return StepLosses(points.ravel(), near.ravel(), offsets, np.full(rows, bound), bound)


@dataclass(frozen=True)
class OrdinalDistance(_Distance):
    r"""How far the set is from the true label where labels are in order: grades, stages, ages.

    .. math:: L(\lambda) = \min_{y' : s(x, y') \le \lambda} |y - y'|, \quad B = \text{classes} - 1

    An empty set is as far away as possible.

    Examples
    --------
    >>> OrdinalDistance()([[0.5, 0.25, 0.125, 0.125]], [3]).at(0.75).tolist()
    [2.0]
    """

    name: ClassVar[str] = "ordinal-distance"
    summary: ClassVar[str] = "distance of the true label to the set, where labels are in order"

    def _between(self, classes: int) -> Floats:
        places = np.arange(classes, dtype=np.float64)
        return np.abs(places[:, None] - places)


@dataclass(frozen=True)
class GraphDistance(_Distance):
    r"""How far the set is from the true label where labels are nodes of a graph: a taxonomy, a map.

    .. math:: L(\lambda) = \min_{y' : s(x, y') \le \lambda} D_{y y'}, \quad B = \max D

    Parameters
    ----------
    distances
        D, a row and a column for each label, 0 on the diagonal; `of_edges` counts hops.

    Examples
    --------
    >>> chain = GraphDistance.of_edges([(0, 1), (1, 2)], classes=3)
    >>> chain([[0.5, 0.25, 0.25]], [2]).at(0.5).tolist()
    [2.0]
    """

    distances: tuple[tuple[float, ...], ...] = ()

    name: ClassVar[str] = "graph-distance"
    summary: ClassVar[str] = "distance of the true label to the set, in a graph of labels"

    def __post_init__(self) -> None:
        super().__post_init__()
        table = as_real_array(self.name, "distances", self.distances).astype(np.float64)
        if table.ndim != 2 or table.shape[0] != table.shape[1] or not len(table):
            raise ValueError(
                f"loss {self.name!r} needs distances with a row and a column for each label, got shape {table.shape}; "
                "or use GraphDistance.of_edges"
            )
        if not (np.isfinite(table).all() and (table >= 0).all() and (np.diag(table) == 0).all()):
            raise ValueError(f"loss {self.name!r} needs finite distances of at least 0, and 0 from a label to itself")
        object.__setattr__(self, "distances", tuple(map(tuple, table.tolist())))

    @classmethod
    def of_edges(cls, edges: Iterable[Sequence[int]], classes: int, score: Any = "lac") -> Self:
        """Count hops in the graph of these edges between labels 0, 1, ...; every label must be reached."""
        hops = np.full((classes, classes), np.inf)
        np.fill_diagonal(hops, 0.0)
        for a, b in (tuple(edge)[:2] for edge in edges):
            hops[a, b] = hops[b, a] = min(1.0, hops[a, b])
        for middle in range(classes):
            hops = np.minimum(hops, hops[:, middle, None] + hops[None, middle])
        if not np.isfinite(hops).all():
            lost = np.argwhere(~np.isfinite(hops))[0]
            raise ValueError(f"loss {cls.name!r}: no path leads from label {lost[0]} to label {lost[1]}; add an edge")
        return cls(hops, score=score)  # type: ignore[arg-type]

    def _between(self, classes: int) -> Floats:
        if classes != len(self.distances):
            raise ValueError(
                f"loss {self.name!r} knows {len(self.distances)} labels, got outputs with {classes} columns"
            )
        return np.array(self.distances)


@dataclass(frozen=True)
class ClassCost(_OfScore):
    r"""The price of missing the true label, class by class; with equal prices it is miscoverage.

    .. math:: L(\lambda) = c_y \, 1\{s(x, y) > \lambda\}, \quad B = \max_y c_y

    Parameters
    ----------
    costs
        One for each label, at least 0; by default 1 for all.

    Examples
    --------
    >>> ClassCost(costs=[1.0, 5.0])([[0.75, 0.25]], [1]).at(0.5).tolist()
    [5.0]
    """

    costs: tuple[float, ...] = ()

    name: ClassVar[str] = "class-cost"
    summary: ClassVar[str] = "the true label's own price, where the set misses it"

    def __post_init__(self) -> None:
        super().__post_init__()
        costs = as_real_array(self.name, "costs", self.costs).astype(np.float64)
        if costs.ndim != 1 or not (np.isfinite(costs).all() and (costs >= 0).all() and (costs.any() or not len(costs))):
            raise ValueError(f"loss {self.name!r} needs a cost of at least 0 for each label, got {self.costs!r:.60}")
        object.__setattr__(self, "costs", tuple(costs.tolist()))

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> StepLosses:
        """Return for each row the cost of its label, until lambda reaches its score."""
        points = self.score(outputs, labels)
        truth = np.asarray(as_array(labels, "labels"), dtype=np.int64)
        costs = np.ones(int(truth.max(initial=0)) + 1) if not self.costs else np.array(self.costs)
        if len(truth) and int(truth.max()) >= len(costs):
            raise ValueError(f"loss {self.name!r} has {len(costs)} costs, got label {int(truth.max())}; give one more")
        return StepLosses(points, np.zeros(len(points)), np.arange(len(points) + 1), costs[truth], float(costs.max()))


@dataclass(frozen=True)
class WrongAndAnswered(Loss):
    r"""A wrong answer that was given: the model answers where it is surer than lambda, and else says nothing.

    .. math:: L(\lambda) = 1\{\hat y(x) \ne y,\; \max_j z_j(x) > \lambda\}

    The set is the one label that is answered, or every label where the model says nothing. `outputs` are probabilities
    or logits. This is an error rate among *all* examples; the one among answered examples is not monotone.

    Examples
    --------
    >>> wrong = WrongAndAnswered()
    >>> wrong([[0.75, 0.25], [0.5, 0.25]], [1, 1]).at(0.5).tolist()
    [1.0, 0.0]
    >>> wrong.sets([[0.75, 0.25], [0.5, 0.25]], 0.5).tolist()
    [[True, False], [True, True]]
    """

    name: ClassVar[str] = "wrong-and-answered"
    summary: ClassVar[str] = "a wrong answer, where the model is sure enough to give one"

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> StepLosses:
        """Return for each row 1 if its answer is wrong, until lambda reaches the largest output."""
        table = self._table(outputs)
        wrong = table.argmax(axis=1) != as_label_indices(self.name, table, labels)
        return StepLosses(table.max(axis=1), np.zeros(len(table)), np.arange(len(table) + 1), wrong.astype(np.float64))

    def sets(self, outputs: ArrayLike, lam: ArrayLike) -> Bools:
        """Return the answer where the largest output is above lambda, else every label."""
        table = self._table(outputs)
        silent = table.max(axis=1) <= as_row_values(self.name, "lambda", lam, len(table))
        return np.asarray(silent[:, None] | (np.arange(table.shape[1]) == table.argmax(axis=1)[:, None]))

    def _table(self, outputs: ArrayLike) -> Floats:
        return check_output_table(self.name, outputs, -np.inf, np.inf)


@dataclass(frozen=True)
class ErrorAmongAnswered(WrongAndAnswered):
    r"""The error rate among answered examples (selective risk): the model answers where it is surer than lambda.

    .. math:: L(\lambda) = \rho + 1\{\max_j z_j(x) > \lambda\}\,(1\{\hat y(x) \ne y\} - \rho)

    Its mean is at most the level :math:`\rho` exactly if at most this part of the answers is wrong: the linear form of
    the ratio, as in `ratio_losses`. It rises and falls with lambda, so that it needs ``control(..., monotone=False)``.

    Parameters
    ----------
    level
        The largest error rate among answers, which is also the risk to ask for.

    Examples
    --------
    >>> ErrorAmongAnswered(level=0.1)([[0.75, 0.25], [0.6, 0.4], [0.5, 0.25]], [0, 1, 1]).at(0.55).tolist()
    [0.0, 1.0, 0.1]
    """

    level: float = 0.1

    name: ClassVar[str] = "error-among-answered"
    summary: ClassVar[str] = "error rate among the answers given (selective risk); needs `monotone=False`"
    monotone: ClassVar[bool] = False

    def __post_init__(self) -> None:
        exact_alpha(self.level, "level")

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> StepLosses:
        """Return for each row 1 or 0, whether its answer is wrong, until lambda reaches the largest output."""
        steps = super().__call__(outputs, labels)
        return replace(steps, values=np.full(len(steps), float(self.level)))


LOSSES: dict[str, type[Loss]] = {
    loss.name: loss
    for loss in (
        FalseNegativeRate,
        OrdinalDistance,
        GraphDistance,
        ClassCost,
        WrongAndAnswered,
        ErrorAmongAnswered,
    )
}


def get_loss(name: str, **options: Any) -> Loss:
    """Return the loss called `name` with these options.

    >>> get_loss("class-cost", costs=[1.0, 5.0])
    ClassCost(score=LAC(), costs=(1.0, 5.0))
    """
    if name not in LOSSES:
        raise ValueError(unknown_name("loss", name, LOSSES))
    known = [option.name for option in fields(LOSSES[name])]
    for option in options:
        if option not in known:
            raise TypeError(unknown_name(f"option of loss '{name}'", option, known))
    return LOSSES[name](**options)


def as_loss(loss: Any) -> Loss | None:
    """Return the loss that was meant: itself, one of its class, or the one of that name; None stays None."""
    if loss is None or isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        return get_loss(loss)
    if isinstance(loss, type) and issubclass(loss, Loss):
        return loss()
    raise TypeError(f"loss must be a Loss or its name ({', '.join(LOSSES)}), got {type(loss).__name__} {loss!r:.40}")
