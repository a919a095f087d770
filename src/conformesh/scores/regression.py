r"""Scores for regression and the intervals they induce.

Intervals are rounded outwards with one lemma. Write :math:`t^+` for the next float64 above t. If the *computed*
difference of two floats a and y satisfies ``a - y <= t``, then the real difference is below :math:`t^+` (otherwise it
would have been rounded to :math:`t^+` or more, rounding being monotone). So :math:`y > a - t^+` in real numbers, and
since y is itself a float, rounding both sides gives ``y >= a - t+`` as computed. No label that was covered is lost.

Every score here is the larger of two sides: how far the label lies below the band, and how far above. One threshold for
both gives the same room on both sides; `calibrate(symmetric=False)` finds one for each.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from conformesh.common.array_types import Array, Floats
from conformesh.common.arrays import check_index, note_large_integers
from conformesh.common.notes import emit_note
from conformesh.scores.base import RegressionScore, as_real_array, as_row_values, check_label_count


class _Band(RegressionScore):
    """What all scores here share: a band around the prediction, and how far a label lies below and above it."""

    @abstractmethod
    def _band(self, outputs: ArrayLike) -> tuple[Floats, Floats, Floats | None]:
        """Return the lower and the upper end of the band, and the unit of distances where it is not 1."""

    def sides(self, outputs: ArrayLike, labels: ArrayLike) -> Floats:
        """Return how far each label lies below the band and how far above it; the larger one is its score."""
        lower, upper, unit = self._band(outputs)
        y = _values_of(self.name, lower, labels, outputs)
        with np.errstate(over="ignore"):  # a distance beyond the largest float is inf
            below, above = lower - y, y - upper
            return np.stack([below, above] if unit is None else [below / unit, above / unit], axis=1)

    def side_intervals(self, outputs: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> Floats:
        """Return the band, lower by one threshold and higher by the other."""
        low, high, unit = self._band(outputs)
        below, above = (as_row_values(self.name, "threshold", t, len(low)) for t in (lower, upper))
        empty = np.isneginf(below) | np.isneginf(above)
        if unit is not None:
            below, above = _scaled(below, unit), _scaled(above, unit)
        return _around(low, high, below, above, empty)


@dataclass(frozen=True)
class AbsoluteResidual(_Band):
    r"""Distance of the label from the prediction: intervals of equal width everywhere.

    .. math:: s(x, y) = |y - \hat\mu(x)|

    `outputs` has shape (n,). A negative threshold gives the empty interval (inf, -inf).

    Reference: [Lei2018], split conformal prediction.
    Departures: intervals are rounded outwards.

    Same as: `absolute` of MAPIE, `ABS` of TorchCP and `ConformalRegressor` of crepes: scores bit for bit, intervals up
    to that rounding.

    Examples
    --------
    >>> residual = AbsoluteResidual()
    >>> residual([1.0, 2.0], [1.5, 0.0])
    array([0.5, 2. ])
    >>> residual.intervals([1.0], threshold=0.5).round(6)
    array([[0.5, 1.5]])
    """

    name: ClassVar[str] = "absolute-residual"
    bounds: ClassVar[tuple[float, float]] = (0.0, np.inf)
    summary: ClassVar[str] = "distance of the label from the prediction"

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> Floats:
        """Return the distance of each label from its prediction."""
        prediction = _predictions_of(self.name, outputs)
        y = _values_of(self.name, prediction, labels, outputs)
        with np.errstate(over="ignore"):  # a distance beyond the largest float is inf
            return np.abs(y - prediction)

    def intervals(self, outputs: ArrayLike, threshold: ArrayLike) -> Floats:
        """Return prediction -/+ threshold."""
        prediction = _predictions_of(self.name, outputs)
        t = as_row_values(self.name, "threshold", threshold, len(prediction))
        return _around(prediction, prediction, t, t, empty=t < 0.0)

    def _band(self, outputs: ArrayLike) -> tuple[Floats, Floats, None]:
        prediction = _predictions_of(self.name, outputs)
        return prediction, prediction, None


@dataclass(frozen=True)
class NormalisedResidual(_Band):
    r"""Distance of the label from the prediction in units of a predicted scale: wider where the model is less sure.

    Also called the locally weighted or studentised residual.

    .. math:: s(x, y) = |y - \hat\mu(x)| / \hat\sigma(x)

    `outputs` has shape (n, 2): prediction and scale, the scale above zero. A negative threshold gives the empty
    interval (inf, -inf).

    Reference: [Lei2018], Section 5.2, locally weighted conformal inference.
    Departures: intervals are rounded outwards.

    Same as: `ConformalRegressor` of crepes with sigmas, and `ResidualNormalisedScore` of MAPIE with a fitted model of
    scales: scores bit for bit, intervals up to that rounding. TorchCP transforms the scale.

    Examples
    --------
    >>> residual = NormalisedResidual()
    >>> residual([[1.0, 0.5], [2.0, 4.0]], [1.5, 0.0])
    array([1. , 0.5])
    >>> residual.intervals([[1.0, 0.5], [2.0, 4.0]], threshold=1.0).round(6)
    array([[ 0.5,  1.5],
           [-2. ,  6. ]])
    """

    name: ClassVar[str] = "normalised-residual"
    bounds: ClassVar[tuple[float, float]] = (0.0, np.inf)
    summary: ClassVar[str] = "locally weighted: distance of the label from the prediction, in predicted scales"
    columns: ClassVar[tuple[str, ...]] = ("prediction", "scale")

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> Floats:
        """Return each label's distance from its prediction, divided by its scale."""
        prediction, scale = self._columns(outputs)
        y = _values_of(self.name, prediction, labels, outputs)
        with np.errstate(over="ignore"):
            return np.divide(np.abs(y - prediction), scale)

    def intervals(self, outputs: ArrayLike, threshold: ArrayLike) -> Floats:
        """Return prediction -/+ threshold times scale."""
        prediction, scale = self._columns(outputs)
        t = as_row_values(self.name, "threshold", threshold, len(prediction))
        distance = _scaled(t, scale)
        return _around(prediction, prediction, distance, distance, empty=t < 0.0)

    def _band(self, outputs: ArrayLike) -> tuple[Floats, Floats, Floats]:
        prediction, scale = self._columns(outputs)
        return prediction, prediction, scale

    def _columns(self, outputs: ArrayLike) -> tuple[Floats, Floats]:
        prediction, scale = _pairs_of(self.name, outputs, "prediction and scale")
        if scale.size and not scale.min() > 0.0:
            i = int(np.argmax(scale <= 0.0))
            raise ValueError(
                f"score 'normalised-residual' needs scales above 0, got {scale[i]:.6g} in row {i}; "
                "add a small constant to the predicted scales"
            )
        return prediction, scale


@dataclass(frozen=True)
class CQR(_Band):
    r"""Conformalised quantile regression: how far the label lies outside a predicted band, negative inside.

    .. math:: s(x, y) = \max(\hat q_{\mathrm{lo}}(x) - y,\; y - \hat q_{\mathrm{hi}}(x))

    `outputs` has shape (n, 2): lower and upper quantile, which may cross. A threshold below minus half the width of a
    band leaves nothing of it: the interval is empty and its lower end is returned above its upper end.

    Reference: [Romano2019], Algorithm 1.
    Departures: intervals are rounded outwards.

    Same as: `ConformalizedQuantileRegressor` of MAPIE, with ``symmetric_correction=True`` or, with ``symmetric=False``,
    False, and `CQR` of TorchCP: scores bit for bit, intervals up to that rounding.

    Examples
    --------
    >>> cqr = CQR()
    >>> cqr([[0.0, 2.0], [0.0, 2.0]], [1.5, 3.0])
    array([-0.5,  1. ])
    >>> cqr.intervals([[0.0, 2.0]], threshold=0.5).round(6)
    array([[-0.5,  2.5]])
    """

    name: ClassVar[str] = "cqr"
    summary: ClassVar[str] = "how far the label lies outside the predicted quantiles"
    columns: ClassVar[tuple[str, ...]] = ("lower", "upper")

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> Floats:
        """Return how far each label lies outside its band."""
        lower, upper, _ = self._band(outputs)
        y = _values_of(self.name, lower, labels, outputs)
        with np.errstate(over="ignore"):
            return np.maximum(lower - y, y - upper)

    def intervals(self, outputs: ArrayLike, threshold: ArrayLike) -> Floats:
        """Return lower quantile - threshold, upper quantile + threshold."""
        lower, upper, _ = self._band(outputs)
        t = as_row_values(self.name, "threshold", threshold, len(lower))
        return _around(lower, upper, t, t, empty=np.isneginf(t))

    def _band(self, outputs: ArrayLike) -> tuple[Floats, Floats, None]:
        lower, upper = _pairs_of(self.name, outputs, "lower and upper quantile")
        crossed = int((lower > upper).sum())
        if crossed > max(1, len(lower) // 2):  # a single row may cross, but not most of them
            emit_note(
                f"score 'cqr': the lower quantile is above the upper one in {crossed} of {len(lower)} rows; are the "
                "columns, or the two models, swapped? outputs are lower and upper quantile, in this order"
            )
        return lower, upper, None


def _around(lower: Floats, upper: Floats, below: Floats, above: Floats, empty: Array) -> Floats:
    """Return the interval of every float y with computed ``lower - y <= below`` and ``y - upper <= above``.

    By the module's lemma the float after a distance moves its end outwards far enough.
    """
    ends = np.empty((len(lower), 2))
    with np.errstate(over="ignore"):
        ends[:, 0] = lower - np.nextafter(below, np.inf)
        ends[:, 1] = upper + np.nextafter(above, np.inf)
    ends[empty] = np.inf, -np.inf
    return ends


def _scaled(threshold: Floats, scale: Floats) -> Floats:
    """Return the lemma for a quotient: computed d / scale <= t means d < t+ * scale, hence d <= t+ * scale computed."""
    with np.errstate(over="ignore"):
        return np.nextafter(threshold, np.inf) * scale


def as_finite_array(who: str, what: str, array: Array) -> Floats:
    """Return the array as float64 if every number in it is finite."""
    note_large_integers(array, f"score '{who}', {what}")
    values = np.asarray(array, np.float64)
    if not np.isfinite(values).all():
        place = tuple(np.argwhere(~np.isfinite(values))[0])
        raise ValueError(
            f"score '{who}' needs finite {what}, got {values[place]} in row {place[0]}; "
            "drop the row or repair the model"
        )
    return values


def _predictions_of(who: str, outputs: ArrayLike) -> Floats:
    """Return outputs as one prediction per row."""
    array = as_real_array(who, "outputs", outputs)
    if array.ndim != 1:
        advice = "; pass outputs[:, 0]" if array.ndim == 2 and array.shape[1] == 1 else ""
        raise ValueError(
            f"score '{who}' needs outputs of shape (rows,), one prediction each, got shape {array.shape}{advice}"
        )
    return as_finite_array(who, "outputs", array)


def _pairs_of(who: str, outputs: ArrayLike, what: str) -> tuple[Floats, Floats]:
    """Return the two columns of outputs; an empty list has no rows."""
    array = as_real_array(who, "outputs", outputs)
    if array.shape == (0,):
        array = array.reshape(0, 2)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(f"score '{who}' needs outputs of shape (rows, 2), {what}, got shape {array.shape}")
    pairs = as_finite_array(who, "outputs", array)
    return pairs[:, 0], pairs[:, 1]


def _values_of(who: str, predictions: Floats, labels: ArrayLike, outputs: ArrayLike) -> Floats:
    """Return labels as one finite float64 per row."""
    check_index(outputs, labels, "labels", "outputs")
    array = as_real_array(who, "labels", labels)
    check_label_count(who, predictions, array)
    return as_finite_array(who, "labels", array)
