r"""`Scale`: residuals relative to the bias and the scale that a device has had.

With residuals :math:`e = (y - \hat\mu(x)) / \hat\sigma(x)` (:math:`\hat\sigma = 1` where the model has none), and n - 1
other examples on the device,

.. math:: m = \frac{\sum_j e_j}{n - 1 + b}, \quad
          s^2 = \frac{\sum_j (e_j - m)^2 + c \, s_0^2}{n - 1 + c}, \quad A = \frac{|e - m|}{s}.

b and c are how many examples without bias, and of the usual scale :math:`s_0`, are added: with infinity a device has no
bias, or no scale, of its own. Both are chosen by a leave-one-out interval score. The sums read residuals *rounded* to
`_LEVELS` steps on either side and clipped: then a candidate changes them in finitely many ways, so that the interval of
a device is computed exactly, and sums of integers do not depend on their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from conformesh.common.array_types import Array, Floats, Ints
from conformesh.common.notes import emit_note
from conformesh.scores.adapt.base import Adaptation, Bag, Setting, as_values, round_losses
from conformesh.scores.base import RegressionScore, Task
from conformesh.scores.regression import AbsoluteResidual, NormalisedResidual

_ADDED = (2.0, 10.0, 50.0, np.inf)  # choices of b and c
_LEVELS = 64  # steps on either side into which clipped residuals are rounded; this moves m and s by less than 1 %
# Usual scales at which residuals are clipped: beyond it a single one would decide the scale of a device. With 3 the
# coverage of the worst state of births was .836 instead of .880; with 6 the intervals of flights were .6 % wider.
_CLIP = 4.5
# Half octaves of |e| that are counted where the usual scale is not given: from 2^-40 to 2^40.
_BINS, _LOWEST_BIN = 160, -80
_LOSS_FACTOR = 8.0  # of losses in usual scales: residuals 1.5 usual scales beyond an interval reach the cap
_WIDEST_GAP = 3  # half octaves without a residual next to the median, whose scales are all prepared for
_LEAST_SCALE = 1e-9  # of the usual scale: identical residuals must not make a scale of 0


@dataclass(frozen=True)
class Scale(Adaptation):
    """Learns a device's own bias and scale of residuals, for regression: for sensors and sites that differ.

    Parameters
    ----------
    bias, scale
        How many examples without bias, and of the usual scale, are added to those of the device; infinity: the device
        has none of its own. Numbers, several to choose from, or "auto": 2, 10, 50 and infinity.
    usual
        The usual scale of residuals: a number, or an array of residuals of the training data. None: the devices agree
        on about the median of the absolute residuals, to within a factor of the square root of 2.
    sequence
        Whether rows are a sequence in time. The bias is then not adapted: adapting it to the latest rows covers too
        little when they drift.
    window
        As for `Prior`.
    """

    bias: Any = "auto"
    scale: Any = "auto"
    usual: float | Sequence[float] | None = None
    sequence: bool = False
    window: Any = 16

    name: ClassVar[str] = "scale"
    summary: ClassVar[str] = "corrects residuals by the bias and scale of each device"
    predictions_reveal: ClassVar[str] = (
        "the bias of its residuals (the middle of every interval) and their scale (the width)"
    )
    task: ClassVar[Task] = "regression"
    needs_new_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check_window()
        for name in ("bias", "scale"):
            given = getattr(self, name)
            if isinstance(given, list):
                object.__setattr__(self, name, tuple(given))
            as_values(getattr(self, name), name, _ADDED, -1.0)
        if self.usual is not None:
            residuals = np.abs(np.asarray(self.usual, dtype=np.float64)).ravel()
            if not len(residuals) or not np.isfinite(residuals).all() or not residuals.any():
                raise ValueError(
                    "usual must be a number above 0, or residuals of the training data, not all 0, got "
                    f"{self.usual!r:.60}"
                )
            # The 99 % quantile keeps single outliers of the training data from widening every interval.
            clipped = np.minimum(residuals, np.quantile(residuals, 0.99))
            object.__setattr__(self, "usual", float(np.sqrt(np.mean(clipped**2))))

    # --- settings -----------------------------------------------------------------------------------------------------

    def summary_counts(self, bag: Bag) -> Ints:
        """Return how many absolute residuals lie in each half octave, where the usual scale is not given."""
        if self.usual is not None:
            return np.zeros(0, dtype=np.int64)
        return np.bincount(_bins(residuals_of(bag)), minlength=_BINS)

    def settings(self, counts: Ints, columns: int) -> tuple[Setting, ...]:
        """Return every bias with every scale, for the usual scale."""
        return self._grid(self._usual(counts))

    def reachable_settings(self, counts: Ints, columns: int) -> tuple[Setting, ...]:
        """Return the settings of every usual scale that one replaced example can lead to."""
        found: dict[Setting, None] = dict.fromkeys(self.settings(counts, columns))
        if self.usual is None:
            for bin_ in _neighbouring_medians(counts):
                found |= dict.fromkeys(self._grid(_scale_of_bin(bin_)))
        return tuple(found)

    def describe_setting(self, setting: Setting) -> str:
        """Return bias, scale and the usual scale."""
        return "bias {:g}, scale {:g}, usual scale {:.4g}".format(*setting)

    def _usual(self, counts: Ints) -> float:
        return float(self.usual) if isinstance(self.usual, float) else _scale_of_bin(_median_bin(counts))

    def _grid(self, usual: float) -> tuple[Setting, ...]:
        biases = (np.inf,) if self.sequence else as_values(self.bias, "bias", _ADDED, -1.0)
        scales = as_values(self.scale, "scale", _ADDED, -1.0)
        return tuple((b, c, usual) for b in biases for c in scales)

    # --- scores -------------------------------------------------------------------------------------------------------

    def read(self, outputs: ArrayLike, labels: ArrayLike, who: str) -> Bag:
        """Return checked outputs, with signed residuals in the place of labels."""
        if np.ndim(outputs) == 2 and np.shape(outputs)[1] != 2:
            raise ValueError(
                f"{who}: adaptation 'scale' is for regression, with predictions or (predictions, scales) as outputs, "
                f"got shape {np.shape(outputs)}; for classes use 'prior'"
            )
        table = self.read_new(outputs)
        if self.sequence and len(table):
            emit_note(
                "adapted scores assume that the rows of a device come in no particular order; with drift they cover "
                "less than plain scores: use the online learners for streams"
            )
        return Bag(table, score_of(table).sides(table, labels)[:, 1])

    def read_new(self, outputs: ArrayLike) -> Array:
        """Return checked predictions, or predictions and scales."""
        table = np.asarray(outputs, dtype=np.float64)
        score_of(table).intervals(table, 0.0)  # raises an error for wrong shapes and values
        return table

    def columns(self, outputs: Array) -> int:
        """Return 1: a candidate is a number, and the pieces of the real line take the place of classes (`pieces`)."""
        return 1

    def leave_one_out(self, bag: Bag, setting: Setting) -> Floats:
        """Return the distance of each residual from the bias, in scales, of the other examples."""
        own, n = _levels(bag.labels, setting), len(bag)
        centre, scale = _centre_and_scale(n - 1, own.sum() - own, (own**2).sum() - own**2, setting)
        return _as_scores(bag.labels - centre, scale)

    def losses(self, bag: Bag, setting: Setting, level: float) -> Ints:
        """Return the interval score of each residual, from rounded residuals."""
        own, n = _levels(bag.labels, setting), len(bag)
        centre, scale = _centre_and_scale(n - 1, own.sum() - own, (own**2).sum() - own**2, setting)
        return _interval_losses(own * _unit(setting), centre, scale, setting, level)

    def pieces(self, settings: Sequence[Setting]) -> Floats:
        """Return ends of pieces of the real line within which a candidate changes nothing but its own distance."""
        halves = np.concatenate([np.arange(-_LEVELS, _LEVELS) + 0.5])
        ends = [halves * _unit(setting) for setting in {s[2]: s for s in settings}.values()]
        if self.usual is None:
            octaves = 2.0 ** ((np.arange(1, _BINS) + _LOWEST_BIN) / 2.0)
            ends += [octaves, -octaves]
        return np.unique(np.concatenate([[-np.inf], *ends, [np.inf]]))

    def other_scores(self, rest: Bag, setting: Setting, columns: int, new: Array) -> Floats:
        """Return the scores of `rest` with a residual like each of `new` among them, (1, len(new), examples)."""
        candidates, place = np.unique(_levels(new, setting), return_inverse=True)
        centre, scale = _centre_and_scale_with(_levels(rest.labels, setting), rest, candidates, setting)
        return _as_scores(rest.labels - centre, scale)[None, place]

    def other_losses(self, rest: Bag, setting: Setting, columns: int, level: float, new: Array) -> Ints:
        """Return the sum of the losses of `rest` with a residual like each of `new` among them, (1, len(new))."""
        # Losses depend on rounded residuals alone, which are few however many examples there are.
        candidates, place = np.unique(_levels(new, setting), return_inverse=True)
        own, times = np.unique(_levels(rest.labels, setting), return_counts=True)
        centre, scale = _centre_and_scale_with(own, rest, candidates, setting)
        losses = _interval_losses(own * _unit(setting), centre, scale, setting, level) @ times
        return np.asarray(losses, dtype=np.int64)[None, place]

    def candidate_scores(self, rest: Bag, setting: Setting, columns: int, new: Array) -> Floats:
        """Return the scores of residuals, computed from `rest`."""
        centre, scale = self.centre_and_scale(rest, setting)
        return _as_scores(new - centre, scale)[None]

    def candidate_losses(self, rest: Bag, setting: Setting, columns: int, level: float, new: Array) -> Ints:
        """Return the losses of residuals."""
        centre, scale = self.centre_and_scale(rest, setting)
        rounded = _levels(new, setting) * _unit(setting)
        return _interval_losses(rounded, np.asarray(centre), np.asarray(scale), setting, level)[None]

    def centre_and_scale(self, rest: Bag, setting: Setting) -> tuple[float, float]:
        """Return the bias and the scale of these examples."""
        own = _levels(rest.labels, setting)
        centre, scale = _centre_and_scale(len(rest), own.sum(), (own**2).sum(), setting)
        return float(centre), float(scale)

    def residual_limits(self, rest: Bag, setting: Setting, new: Array, limits: Floats) -> tuple[Floats, Floats]:
        """Return for each limit the ends between which every residual with at most this score lies, outwards."""
        centre, scale = self.centre_and_scale(rest, setting)
        with np.errstate(over="ignore"):
            # A score was rounded to float32, and the subtraction and the division each by half a unit of float64.
            above = np.nextafter(limits.astype(np.float32), np.float32(np.inf)).astype(np.float64)
            reach = above * scale * (1 + 1e-12) + 1e-12 * abs(centre)
        empty = limits < 0
        return np.where(empty, np.inf, centre - reach), np.where(empty, -np.inf, centre + reach)


def score_of(outputs: Array) -> RegressionScore:
    """Return the score that computes residuals: of predictions, or of predictions and scales."""
    return NormalisedResidual() if outputs.ndim == 2 else AbsoluteResidual()


def residuals_of(bag: Bag) -> Floats:
    """Return the signed residuals, which stand in the place of labels."""
    return np.asarray(bag.labels, dtype=np.float64)


def _bins(residuals: Floats) -> Ints:
    """Return the half octave of each absolute residual: exact, since numbers have exact exponents."""
    mantissas, exponents = np.frexp(np.abs(residuals))
    halves = 2 * exponents - (mantissas**2 < 0.5)
    halves = np.where(residuals == 0, _LOWEST_BIN, np.where(np.isinf(residuals), _BINS, halves))
    return np.asarray(np.clip(halves - _LOWEST_BIN - 1, 0, _BINS - 1), dtype=np.int64)


def _scale_of_bin(bin_: int) -> float:
    """Return the upper end of a half octave: close to the standard deviation where it holds the median of |e|."""
    return float(2.0 ** ((bin_ + 1 + _LOWEST_BIN) / 2.0))


def _median_bin(counts: Ints) -> int:
    """Return the half octave of the lower median."""
    sums = np.cumsum(counts)
    return int(np.searchsorted(sums, (int(sums[-1]) + 1) // 2)) if sums[-1] else -_LOWEST_BIN


def _neighbouring_medians(counts: Ints) -> list[int]:
    """Return the half octaves to which one replaced example can move the median.

    They are the next one on either side that contains an example, and those between, where the candidate itself may be
    the median. Of a wide gap only the end is returned: a candidate inside the gap selects a scale without a window, and
    stays in the set.
    """
    sums, median = np.cumsum(counts), _median_bin(counts)
    place, found = (int(sums[-1]) + 1) // 2, []
    held = np.flatnonzero(counts)
    for side, is_reached in (
        (-1, median > 0 and int(sums[median - 1]) + 1 >= place),
        (1, int(sums[median]) - 1 < place),
    ):
        if not sums[-1] or not is_reached:
            continue
        beyond = held[held < median][::-1] if side < 0 else held[held > median]
        end = int(beyond[0]) if len(beyond) else min(max(median + side, 0), _BINS - 1)
        between = [*range(median + side, end, side)]
        found += [*between, end] if len(between) <= _WIDEST_GAP else [end]
    return found


def _unit(setting: Setting) -> float:
    return _CLIP * setting[2] / _LEVELS


def _levels(residuals: Any, setting: Setting) -> Ints:
    """Return residuals clipped and rounded to whole units."""
    most = _CLIP * setting[2]
    return np.asarray(np.rint(np.clip(residuals, -most, most) / _unit(setting)), dtype=np.int64)


def _centre_and_scale(others: int, sums: Any, squares: Any, setting: Setting) -> tuple[Any, Any]:
    """Return bias and scale of so many other residuals, from sums of whole units and of their squares."""
    bias, added, usual = setting
    unit = _unit(setting)
    centre = np.zeros(np.shape(sums)) if np.isinf(bias) or others + bias == 0 else sums / (others + bias)
    if np.isinf(added) or others + added == 0:
        return centre * unit, np.full(np.shape(sums), usual)
    # A product, since NumPy squares a single number by another routine than an array, which may differ in the last bit.
    around = np.maximum(squares - 2 * centre * sums + others * (centre * centre), 0.0) * unit**2
    return centre * unit, np.sqrt((around + added * usual**2) / (others + added) + (_LEAST_SCALE * usual) ** 2)


def _centre_and_scale_with(own: Ints, rest: Bag, candidates: Ints, setting: Setting) -> tuple[Any, Any]:
    """Return bias and scale for examples of `rest` with these levels, (candidates, examples): of all but themselves."""
    every, candidate = _levels(rest.labels, setting), candidates[:, None]
    sums, squares = every.sum() + candidate - own, (every**2).sum() + candidate**2 - own**2
    return _centre_and_scale(len(rest), sums, squares, setting)


def _interval_losses(residuals: Any, centre: Any, scale: Any, setting: Setting, level: float) -> Ints:
    """Return interval scores: alpha times half the width, and the distance to the interval.

    Intervals reach to the normal quantile of 1 - alpha: a little short, which chose best among several on real sites.
    """
    from scipy.special import ndtri

    half = float(ndtri(1 - level)) * scale
    beyond = np.maximum(np.abs(residuals - centre) - half, 0.0)
    return round_losses(_LOSS_FACTOR * (level * half + beyond) / setting[2])


def _as_scores(distances: Floats, scale: Any) -> Floats:
    """Return distances in scales, rounded to float32: short to send."""
    with np.errstate(over="ignore"):
        return np.asarray(np.abs(distances) / scale).astype(np.float32).astype(np.float64)
