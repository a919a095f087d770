"""Scores for classification and the label sets they induce.

All but `Logit` read probabilities. Calibration checks what it reads: LAC and logit the labels' own entries, the others
whole rows; `sets` checks the whole table while it fills the sets. float32 entries become float64 before any arithmetic.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from conformesh.common.array_types import Array, Bools, Floats, Ints
from conformesh.common.arrays import LARGEST_PROBABILITY
from conformesh.scores.base import (
    ClassificationScore,
    Reads,
    as_output_table,
    as_row_values,
    as_true_labels,
    check_output_table,
    raise_bad_row,
)
from conformesh.scores.draws import CALIBRATION, PREDICTION, Rng, draw_uniforms, uniforms_by_key, uniforms_by_row


class _OneMinus(ClassificationScore):
    """What LAC and logit share: one minus the label's own entry, which must lie in [low, high]."""

    low: ClassVar[float]
    high: ClassVar[float]

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> Floats:
        """Return one minus each label's own entry, checking these alone: a scan of the table costs ten times more."""
        from conformesh.kernels import label_scores

        table = as_output_table(self.name, outputs)
        indices = as_true_labels(self.name, table, labels, outputs)
        scores = np.empty(len(table))
        bad = label_scores.one_minus_scores(table, indices, self.low, self.high, scores)
        if bad >= 0:
            raise_bad_row(self.name, table, bad)
        return scores

    def sets(self, outputs: ArrayLike, threshold: ArrayLike) -> Bools:
        """Return the labels whose entry is large enough, checking the whole table in the same pass."""
        from conformesh.kernels import label_scores

        table = as_output_table(self.name, outputs, contiguous=True)
        sets = np.empty(table.shape, np.bool_)
        thresholds = as_row_values(self.name, "threshold", threshold, len(table))
        bad = label_scores.one_minus_sets(table, thresholds, self.low, self.high, sets)
        return raise_bad_row(self.name, table, bad) if bad >= 0 else sets

    def of_all_labels(self, outputs: ArrayLike) -> Floats:
        """Return one minus every entry."""
        return 1.0 - check_output_table(self.name, outputs, self.low, self.high)


@dataclass(frozen=True)
class LAC(_OneMinus):
    r"""One minus the label's probability: the smallest sets on average when the probabilities are right.

    .. math:: s(x, y) = 1 - \hat p_y(x)

    Reference: [Sadinle2019], least ambiguous set-valued classifier.
    Departures: none.

    Same as: `lac` of MAPIE, `LAC` of TorchCP and `hinge` of crepes, bit for bit.

    Examples
    --------
    >>> lac = LAC()
    >>> lac([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]], [0, 2])
    array([0.5  , 0.875])
    >>> lac.sets([[0.5, 0.25, 0.25]], threshold=0.5)
    array([[ True, False, False]])
    """

    name: ClassVar[str] = "lac"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    summary: ClassVar[str] = "one minus the label's probability"
    low: ClassVar[float] = 0.0
    high: ClassVar[float] = LARGEST_PROBABILITY


@dataclass(frozen=True)
class Logit(_OneMinus):
    r"""One minus the label's raw logit, for networks without a softmax; any number but NaN is welcome.

    .. math:: s(x, y) = 1 - z_y(x)

    Reference: the score behind the figures of [Wen2025], whose text says confidence.
    Departures: none.

    Examples
    --------
    >>> Logit()([[2.0, -1.0], [0.5, 4.0]], [0, 0])
    array([-1. ,  0.5])
    """

    name: ClassVar[str] = "logit"
    summary: ClassVar[str] = "one minus the label's raw logit"
    reads: ClassVar[Reads] = "logits"
    low: ClassVar[float] = -np.inf
    high: ClassVar[float] = np.inf


@dataclass(frozen=True)
class Margin(ClassificationScore):
    r"""By how much the best other label beats this one; negative for the most probable label.

    .. math:: s(x, y) = \max_{j \ne y} \hat p_j(x) - \hat p_y(x)

    Reference: [Johansson2017], margin error function.
    Departures: without its map to [0, 1], which is 1/2 + s/2 and keeps the order.

    Same as: `Margin` of TorchCP and `margin` of crepes, bit for bit.

    Examples
    --------
    >>> margin = Margin()
    >>> margin([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]], [0, 2])
    array([-0.25 ,  0.625])
    >>> margin.sets([[0.5, 0.25, 0.25]], threshold=0.0)
    array([[ True, False, False]])
    """

    name: ClassVar[str] = "margin"
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    summary: ClassVar[str] = "the best other probability minus the label's"

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> Floats:
        """Return the margin by which each label is beaten."""
        from conformesh.kernels import label_scores

        table = self._table(outputs)
        scores = np.empty(len(table))
        bad = label_scores.margin_scores(table, as_true_labels(self.name, table, labels, outputs), scores)
        return raise_bad_row(self.name, table, bad) if bad >= 0 else scores

    def sets(self, outputs: ArrayLike, threshold: ArrayLike) -> Bools:
        """Return the labels that are beaten by at most the threshold."""
        from conformesh.kernels import label_scores

        table = self._table(outputs)
        sets = np.empty(table.shape, np.bool_)
        bad = label_scores.margin_sets(table, as_row_values(self.name, "threshold", threshold, len(table)), sets)
        return raise_bad_row(self.name, table, bad) if bad >= 0 else sets

    def of_all_labels(self, outputs: ArrayLike) -> Floats:
        """Return the margin of every label."""
        p = check_output_table(self.name, self._table(outputs), 0.0, LARGEST_PROBABILITY)
        if p.size == 0:
            return p
        second, top = np.partition(p, -2, axis=1)[:, -2:].T[:, :, None]
        rival: Floats = np.where(p == top, second, top)
        return rival - p

    def _table(self, outputs: ArrayLike) -> Array:
        table = as_output_table(self.name, outputs, contiguous=True)
        if len(table) and table.shape[1] < 2:
            raise ValueError(
                "score 'margin' needs at least 2 classes to compare, got 1; "
                "for one probability p of 'yes' pass both columns, 1 - p and p"
            )
        return table


class _Drawn(ClassificationScore):
    """What all scores share that go through labels in some order and may be randomised by a uniform for each row."""

    randomised: bool
    seed: int | None

    @abstractmethod
    def _fill_scores(self, table: Array, labels: Ints, u: Floats, scores: Floats) -> int:
        """Fill the scores of labels, and return the first row that cannot be used, or -1."""

    @abstractmethod
    def _fill_sets(self, table: Array, thresholds: Floats, u: Floats, sets: Bools) -> int:
        """Fill the sets, and return the first row that cannot be used, or -1."""

    @abstractmethod
    def _all(self, p: Floats, u: Floats) -> tuple[Ints, Floats]:
        """Return the order of every row's labels, and their scores in this order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "randomised", bool(self.randomised))
        if self.seed is None:
            return
        try:
            object.__setattr__(self, "seed", operator.index(self.seed))
        except TypeError:
            raise TypeError(f"score '{self.name}' needs an integer seed, got {self.seed!r}") from None
        if self.seed < 0:
            raise ValueError(f"score '{self.name}' needs a seed of 0 or more, got {self.seed}")

    def __call__(self, outputs: ArrayLike, labels: ArrayLike, u: ArrayLike | None = None, **draw: Any) -> Floats:
        """Score each label without sorting; `u` are the uniforms of a randomised score, else as in `draws`."""
        return self._scores(outputs, labels, u, {"purpose": CALIBRATION, **draw})

    def covers(
        self, outputs: ArrayLike, labels: ArrayLike, threshold: ArrayLike, u: ArrayLike | None = None, **draw: Any
    ) -> Bools:
        """Say for each row whether its label is in ``sets(outputs, threshold, u)``."""
        scores = self._scores(outputs, labels, u, draw)
        return np.less_equal(scores, as_row_values(self.name, "threshold", threshold, len(scores)))

    def sets(self, outputs: ArrayLike, threshold: ArrayLike, u: ArrayLike | None = None, **draw: Any) -> Bools:
        """Return the first labels up to the threshold; `u` as in the call, drawn independently of it."""
        table = as_output_table(self.name, outputs, contiguous=True)
        sets = np.empty(table.shape, np.bool_)
        thresholds = as_row_values(self.name, "threshold", threshold, len(table))
        bad = self._fill_sets(table, thresholds, self._uniforms(table, u, draw), sets)
        return raise_bad_row(self.name, table, bad) if bad >= 0 else sets

    def of_all_labels(self, outputs: ArrayLike, u: ArrayLike | None = None, **draw: Any) -> Floats:
        """Return the score of every label, with uniforms as in `sets`."""
        p = check_output_table(self.name, outputs, 0.0, LARGEST_PROBABILITY)
        order, in_order = self._all(p, self._uniforms(p, u, draw)[:, None])
        scores = np.empty_like(p)
        np.put_along_axis(scores, order, np.broadcast_to(in_order, p.shape), axis=1)
        return scores

    def draws(
        self,
        outputs: ArrayLike,
        *,
        rng: Rng | None = None,
        keys: Iterable[Any] | None = None,
        purpose: str = PREDICTION,
    ) -> dict[str, Floats]:
        """Return ``{"u": ...}``, the uniforms of these rows: by key, by `rng`, by the seed and the row, or anew."""
        if not self.randomised:
            return {}
        table = as_output_table(self.name, outputs)
        if keys is not None:
            return {"u": uniforms_by_key(self.seed or 0, purpose, keys, len(table))}
        if rng is None and self.seed is not None:
            return {"u": uniforms_by_row(self.seed, table)}
        return {"u": draw_uniforms(rng, purpose, table)}

    def seeded(self, seed: int) -> Self:
        """Return the score with this seed, if it draws and has none."""
        return replace(self, seed=seed) if self.randomised and self.seed is None else self  # type: ignore[call-arg]

    def _scores(self, outputs: ArrayLike, labels: ArrayLike, u: ArrayLike | None, draw: dict[str, Any]) -> Floats:
        table = as_output_table(self.name, outputs, contiguous=True)
        scores = np.empty(len(table))
        uniforms = self._uniforms(table, u, draw)
        bad = self._fill_scores(table, as_true_labels(self.name, table, labels, outputs), uniforms, scores)
        return raise_bad_row(self.name, table, bad) if bad >= 0 else scores

    def _uniforms(self, table: Array, u: ArrayLike | None, draw: dict[str, Any]) -> Floats:
        """One uniform per row, shared by all its labels; without randomisation u = 1 counts the label in full."""
        if not self.randomised:
            if u is not None:
                raise ValueError(f"score '{self.name}' takes uniforms u only with randomised=True")
            return np.ones(len(table))
        if u is None:
            return self.draws(table, **draw)["u"]
        uniforms = as_row_values(self.name, "u", u, len(table))
        if len(table) and not (uniforms.min() >= 0.0 and uniforms.max() <= 1.0):
            worst = uniforms[(uniforms < 0.0) | (uniforms > 1.0)][0]
            raise ValueError(f"score '{self.name}' needs uniforms u between 0 and 1, got {worst}")
        return uniforms

    def _units(self, p: Floats) -> Ints:
        """Return probabilities as whole numbers, refusing a row that does not sum to one."""
        from conformesh.kernels.label_scores import ONE_IN_UNITS, SLACK_IN_UNITS

        units = np.rint(p * ONE_IN_UNITS).astype(np.int64)
        unsummed = np.abs(units.sum(axis=1) - ONE_IN_UNITS) > SLACK_IN_UNITS
        if unsummed.any():
            raise_bad_row(self.name, p, int(unsummed.argmax()))
        return units


class _Adaptive(_Drawn):
    """What APS and RAPS share: probabilities added up from the most probable label down to this one."""

    def _penalty(self) -> tuple[float, int]:
        """Return the penalty per rank and the first rank that is free of it."""
        return 0.0, 0

    def _fill_scores(self, table: Array, labels: Ints, u: Floats, scores: Floats) -> int:
        from conformesh.kernels import label_scores

        return label_scores.adaptive_scores(table, labels, u, self._penalty(), scores)

    def _fill_sets(self, table: Array, thresholds: Floats, u: Floats, sets: Bools) -> int:
        from conformesh.kernels import label_scores

        return label_scores.adaptive_sets(table, thresholds, u, self._penalty(), sets)

    def _all(self, p: Floats, u: Floats) -> tuple[Ints, Floats]:
        from conformesh.kernels.label_scores import PROBABILITY_UNIT

        order = np.argsort(-p, axis=1, kind="stable")
        own = np.take_along_axis(self._units(p), order, axis=1)
        above = np.cumsum(own, axis=1) - own
        penalty, k_reg = self._penalty()
        excess = np.maximum(0, np.arange(1, p.shape[1] + 1) - k_reg)
        return order, above * PROBABILITY_UNIT + u * (own * PROBABILITY_UNIT) + penalty * excess


@dataclass(frozen=True, kw_only=True)
class APS(_Adaptive):
    r"""Adaptive prediction sets: the probability of all labels at least as likely as this one.

    .. math:: s(x, y) = \sum_{j \text{ before } y} \hat p_j(x) + u\, \hat p_y(x), \quad
              u = 1 \text{ or, randomised, } u \sim U(0, 1)

    Labels come in order of decreasing probability, equal ones by smaller class index.

    Parameters
    ----------
    randomised
        Whether the label's own probability counts only in part. Coverage then meets its target rather than exceeding
        it; sets are smaller and may be empty.
    seed
        None draws anew in every call; `rng=` or `keys=` (one per row) in the call make it repeatable. With a number a
        row's draw follows from the seed and the row's own outputs: repeatable whatever the calls, and one seed serves
        all devices. Equal rows share a draw, in calibration and prediction alike, so that coverage is not touched.

    Notes
    -----
    Each probability is rounded to a multiple of 2**-50 and the sum is formed in integers. A float sum depends on its
    order, and calibration, which does not sort, would then disagree with the sets, which do, in the last bit: enough to
    drop the very label whose score became the threshold. Integer sums have no order, and stay exact as a float64.

    Reference: [Romano2020], Algorithm 1, whose uniform is 1 - u.
    Departures: the fixed-point sum above, within classes * 2**-51 of the real one.

    Same as: `APS` of TorchCP and `aps` of MAPIE, which sum in floats, up to roundings; their uniform is 1 - u. MAPIE
    always draws in calibration, and adds the label that crosses the threshold unless told ``include_last_label``.

    Examples
    --------
    >>> aps = APS()
    >>> aps([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]], [0, 2])
    array([0.5, 1. ])
    >>> aps.sets([[0.5, 0.25, 0.25]], threshold=0.75)
    array([[ True,  True, False]])
    """

    randomised: bool = False
    seed: int | None = None

    name: ClassVar[str] = "aps"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    summary: ClassVar[str] = "adaptive: probability of the labels at least as likely"


@dataclass(frozen=True, kw_only=True)
class RAPS(_Adaptive):
    r"""Regularised adaptive prediction sets: APS plus a price for labels far down the list.

    .. math:: s(x, y) = s_{\mathrm{APS}}(x, y) + \lambda \max(0, \mathrm{rank}(y) - k_{\mathrm{reg}})

    Ranks start at 1 for the most probable label. The price keeps sets small where the tail of the model is noise.

    Parameters
    ----------
    penalty
        The price of each rank beyond `k_reg`, lambda above.
    k_reg
        How many labels are free of charge.
    randomised, seed
        As for `APS`.

    Reference: [Angelopoulos2021], Algorithms 2 and 3.
    Departures: probabilities are added in fixed point, as for `APS` and for the same reason.

    Same as: `RAPS` of TorchCP, and of MAPIE for the penalty and k_reg that it chose by itself, up to roundings.

    Examples
    --------
    >>> RAPS(penalty=0.5, k_reg=1)([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]], [0, 2])
    array([0.5, 2. ])
    """

    penalty: float = 0.01
    k_reg: int = 5
    randomised: bool = False
    seed: int | None = None

    name: ClassVar[str] = "raps"
    bounds: ClassVar[tuple[float, float]] = (0.0, np.inf)
    summary: ClassVar[str] = "regularised adaptive: APS plus a price for each rank beyond k_reg"

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            penalty = float(self.penalty)
            object.__setattr__(self, "k_reg", operator.index(self.k_reg))
        except (TypeError, ValueError):
            raise TypeError(
                "score 'raps' needs a number for penalty and an integer for k_reg, "
                f"got {self.penalty!r} and {self.k_reg!r}"
            ) from None
        object.__setattr__(self, "penalty", _finite_penalty(self.name, penalty))
        if self.k_reg < 0:
            raise ValueError(f"score 'raps' needs a k_reg of 0 or more, got {self.k_reg}")

    def _penalty(self) -> tuple[float, int]:
        return self.penalty, self.k_reg


class _Ranked(_Drawn):
    """What SAPS and rank share: only the place of the label counts, and the largest probability or one."""

    by_rank: ClassVar[bool]

    @abstractmethod
    def _penalty(self) -> float:
        """Return the price of each rank after the first."""

    def _fill_scores(self, table: Array, labels: Ints, u: Floats, scores: Floats) -> int:
        from conformesh.kernels import label_scores

        return label_scores.ranked_scores(table, labels, u, self._penalty(), self.by_rank, scores)

    def _fill_sets(self, table: Array, thresholds: Floats, u: Floats, sets: Bools) -> int:
        from conformesh.kernels import label_scores

        return label_scores.ranked_sets(table, thresholds, u, self._penalty(), self.by_rank, sets)

    def _all(self, p: Floats, u: Floats) -> tuple[Ints, Floats]:
        from conformesh.kernels.label_scores import ranked_score

        top = np.ones((len(p), 1)) if self.by_rank else p.max(axis=1, keepdims=True, initial=0.0)
        return np.argsort(-p, axis=1, kind="stable"), ranked_score(np.arange(p.shape[1]), top, u, self._penalty())


@dataclass(frozen=True, kw_only=True)
class SAPS(_Ranked):
    r"""Sorted adaptive prediction sets: of all probabilities only the largest counts, then ranks.

    .. math:: s(x, y) = \hat p_{\max}(x) + \lambda\, (\mathrm{rank}(y) - 2 + u), \quad
              u = 1 \text{ or, randomised, } u \sim U(0, 1)

    and :math:`u\, \hat p_{\max}(x)` for the most probable label.
    Ranks start at 1, equal probabilities by smaller class index. The small probabilities of a long tail, which are
    mostly noise, do not count: sets are smaller than those of `APS` and still differ in size from row to row.

    Parameters
    ----------
    penalty
        The price of each rank, lambda above, which the paper calls weight.
    randomised, seed
        As for `APS`.

    Reference: [Huang2024], whose u is this one.
    Departures: none; not randomised, u is 1.

    Same as: `SAPS` of TorchCP, up to roundings, with weight for penalty; not randomised, TorchCP 1.2 calibrates the
    most probable label with 0.

    Examples
    --------
    >>> SAPS(penalty=0.25)([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]], [0, 2])
    array([0.5 , 1.25])
    """

    penalty: float = 0.1
    randomised: bool = False
    seed: int | None = None

    name: ClassVar[str] = "saps"
    bounds: ClassVar[tuple[float, float]] = (0.0, np.inf)
    summary: ClassVar[str] = "sorted adaptive: the largest probability plus a price for each rank"
    by_rank: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            penalty = float(self.penalty)
        except (TypeError, ValueError):
            raise TypeError(f"score 'saps' needs a number for penalty, got {self.penalty!r}") from None
        object.__setattr__(self, "penalty", _finite_penalty(self.name, penalty))

    def _penalty(self) -> float:
        return self.penalty


@dataclass(frozen=True, kw_only=True)
class Rank(_Ranked):
    r"""The place of the label in the model's list, from 1: sets of the k most probable labels, k being the threshold.

    .. math:: s(x, y) = \mathrm{rank}(y) - 1 + u, \quad u = 1 \text{ or, randomised, } u \sim U(0, 1)

    Equal probabilities are ranked by smaller class index. Without randomisation every set has the same size, and
    coverage exceeds its target by as much as whole labels make it; randomised, sets have one of two sizes and meet it.

    Parameters
    ----------
    randomised, seed
        As for `APS`.

    Reference: [Angelopoulos2021], sets of fixed size.
    Departures: none.

    Same as: `TOPK` of TorchCP, bit for bit, and `top_k` of MAPIE, which counts from 0.

    Examples
    --------
    >>> rank = Rank()
    >>> rank([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]], [0, 2])
    array([1., 3.])
    >>> rank.sets([[0.5, 0.25, 0.25]], threshold=2)
    array([[ True,  True, False]])
    """

    randomised: bool = False
    seed: int | None = None

    name: ClassVar[str] = "rank"
    bounds: ClassVar[tuple[float, float]] = (0.0, np.inf)
    summary: ClassVar[str] = "the label's place in the model's list: sets of the top k"
    by_rank: ClassVar[bool] = True

    def _penalty(self) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class OrdinalAPS(_Drawn):
    r"""Adaptive prediction sets of ordered classes, such as grades: every set is a run of neighbours.

    .. math:: s(x, y) = \sum_{j \text{ before } y} \hat p_j(x) + u\, \hat p_y(x), \quad
              u = 1 \text{ or, randomised, } u \sim U(0, 1)

    Labels come in the order in which a run grows: it begins with the most probable class and takes the more probable of
    its two neighbours, the left one of equals. Columns of outputs must be in the order of the classes.

    Parameters
    ----------
    randomised, seed
        As for `APS`.

    Reference: [Lu2022], Ordinal APS.
    Departures: probabilities are added in fixed point, as for `APS` and for the same reason; randomised on request.

    Examples
    --------
    >>> ordinal = OrdinalAPS()
    >>> ordinal.of_all_labels([[0.25, 0.125, 0.5, 0.125]])
    array([[0.875, 0.625, 0.5  , 1.   ]])
    >>> ordinal.sets([[0.25, 0.125, 0.5, 0.125]], threshold=0.875)
    array([[ True,  True,  True, False]])
    """

    randomised: bool = False
    seed: int | None = None

    name: ClassVar[str] = "ordinal-aps"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    summary: ClassVar[str] = "adaptive for ordered classes: sets are runs of neighbours"

    def _fill_scores(self, table: Array, labels: Ints, u: Floats, scores: Floats) -> int:
        from conformesh.kernels import label_scores

        return label_scores.ordinal_scores(table, labels, u, scores)

    def _fill_sets(self, table: Array, thresholds: Floats, u: Floats, sets: Bools) -> int:
        from conformesh.kernels import label_scores

        return label_scores.ordinal_sets(table, thresholds, u, sets)

    def _all(self, p: Floats, u: Floats) -> tuple[Ints, Floats]:
        from conformesh.kernels.label_scores import PROBABILITY_UNIT, growth_order

        order = growth_order(p)
        own = np.take_along_axis(self._units(p), order, axis=1)
        above = np.cumsum(own, axis=1) - own
        return order, np.asarray(above * PROBABILITY_UNIT + u * (own * PROBABILITY_UNIT), np.float64)


def _finite_penalty(who: str, penalty: float) -> float:
    if not 0.0 <= penalty < np.inf:
        raise ValueError(f"score '{who}' needs a finite penalty of 0 or more, got {penalty}")
    return penalty
