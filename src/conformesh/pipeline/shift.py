r"""Shift: calibration scores that stand for new examples of another distribution, by how much each of them weighs.

Covariate shift   a new example with inputs x is likelier than among the calibration examples by a factor proportional
                  to a known w(x), at most w_max
Label shift       the same with w(y) of its label; every class has its ratio, so that the largest is known

With :math:`v_k \propto \pi_k / n_k` of the mixture (see `ranks`), a new example of weight w_test is covered if the
threshold is the smallest with

.. math:: \sum_{S_i \le \tau} v_i w_i \ge (1 - \alpha) \sum_i v_i w_i
          + \max_k v_k \left[(1 - \alpha) w_\text{test} + \alpha w_\text{max}\right]

(docs/guarantees.md). Weights become integers: w is rounded down to a multiple of a power of two that all devices know
from w_max, the number of scores and the mixture; what was lost is added up and raises the required rank, so that
rounding never makes a threshold smaller than the fractions would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.common.arrays import as_array, as_input_rows
from conformesh.common.names import device_name, natural_order
from conformesh.common.random_streams import Rng, resolve_seed
from conformesh.guarantee import Weighting
from conformesh.kernels.ranks import LARGEST_SUM, WEIGHT_BITS, as_level_list

_Ratio = Callable[[Any], Any]
_Weigh = Callable[[Any, str], Any]
# Bits of a weight beyond those that the number of scores needs: rounding all weights down then costs less than 2^-12 of
# the weight of one score.
_SPARE_BITS = 12


class WeightUnit(NamedTuple):
    """Weights are counted in units of whole / 2^exponent: public, and no finer than their sums remain exact.

    `whole` is 1 where a power of two makes the bound a whole number, as all weights in few binary digits then are; else
    the bound itself, so that at least the weights that reach it are whole.
    """

    exponent: int
    whole: float = 1.0

    @classmethod
    def of(cls, bound: float, n: int, mixture: str, factor: int = 1) -> WeightUnit:
        """Return the unit for weights up to `bound` of n scores, which are then multiplied by up to `factor`."""
        room = LARGEST_SUM.bit_length() - 1 - max(n, 1).bit_length() - (factor - 1).bit_length()
        if mixture != "sizes":
            room //= 2  # bits: the other half is for the weights of devices
        if room < 1:
            raise ValueError(
                f"{n:,} scores with weights, centres and losses together add up to more than 2^52, beyond which sums "
                "are not exact; leave one of them out"
            )
        bits = min(WEIGHT_BITS, room, n.bit_length() + _SPARE_BITS)
        exponent = bits - math.frexp(bound)[1]
        exact = (Fraction(bound) * Fraction(2) ** exponent).denominator == 1
        return cls(exponent) if exact else cls(bits, bound)

    def round_down(self, weights: Floats) -> Ints:
        """Return weights in units, rounded down; products with powers of two are exact, quotients made smaller."""
        return np.asarray(np.floor(self._scaled(weights)), dtype=np.int64)

    def rounding_loss(self, weights: Floats) -> Ints:
        """Return how many units each weight lost at most: one by rounding down, one by a quotient that is not exact."""
        if self.whole != 1.0:
            return np.asarray(2 * ((weights > 0) & (weights != self.whole)), dtype=np.int64)
        scaled = self._scaled(weights)
        return np.asarray((scaled != np.floor(scaled)) | ((scaled == 0) & (weights > 0)), dtype=np.int64)

    def round_up(self, weight: float) -> int:
        """Return a weight in units, rounded up."""
        return math.ceil(Fraction(weight) / Fraction(self.whole) * Fraction(2) ** self.exponent)

    def _scaled(self, weights: Floats) -> Floats:
        part = weights / self.whole
        if self.whole != 1.0:
            part = np.where(weights == self.whole, 1.0, np.nextafter(part, 0.0))
        return np.ldexp(part, self.exponent)


def make_weighting(
    weight: Any, bound: Any, inputs: Any, test_weights: Any, class_weights: Any, labels: Any
) -> tuple[Weighting | None, Any]:
    """Return the shift that was asked for, and where `Table` reads the weights from: a column, arrays, a function.

    Arguments that do not go together are refused.
    """
    if class_weights is not None:
        return _label_shift(class_weights, labels, weight is not None or test_weights is not None), None
    if labels is not None:
        raise ValueError("labels go with class_weights=, the ratio of each class; for a threshold each use groups=")
    if weight is None:
        for name, value in (("weight_bound", bound), ("test_weights", test_weights)):
            if value is not None:
                raise ValueError(f"{name} goes with weight=, which was not given; say how much each score weighs")
        return None, None
    assumed = ""
    if isinstance(weight, LikelihoodRatios):
        bound, assumed = weight.bound if bound is None else bound, weight.assumption
        if inputs is None:
            weight = weight.weights
            if not isinstance(weight, Mapping | list):
                raise ValueError(
                    "weight=LikelihoodRatios of inputs in one table needs inputs=, the inputs of each device beside "
                    "its scores; or estimate the ratios from one table per device"
                )
    if bound is None:
        raise ValueError(
            "weight needs weight_bound=, the largest weight that any example may have, calibration or new; the largest "
            "one seen is not such a bound"
        )
    most = _positive(bound)
    levels = () if test_weights is None else weight_levels(test_weights, most)
    if callable(weight):
        if inputs is None:
            raise ValueError("weight is a function: give inputs=, what it takes for each device, beside the scores")
        return Weighting(most, levels, assumption=assumed), (weight, inputs)
    return Weighting(most, levels, assumption=assumed), weight


def _label_shift(class_weights: Any, labels: Any, has_weights: bool) -> Weighting:
    """Return the shift of classes that was asked for."""
    if labels is None:
        raise ValueError("class_weights needs labels=, the true label of every calibration score, beside the scores")
    if has_weights:
        raise ValueError(
            "class_weights shift the classes, weight and test_weights the inputs; give one of them, or weights that "
            "are the product of both"
        )
    ratios = class_ratios(class_weights)
    return Weighting(max(ratios.values()), class_weights=ratios)


def refuse_weights_above_bound(weights: Floats, bound: float, who: Callable[[int], tuple[str, int]]) -> None:
    """Refuse weights that are no number from 0 to the bound; `who` says whose a row is, and which of its rows."""
    wrong = np.flatnonzero(~((weights >= 0) & (weights <= bound)))
    if not len(wrong):
        return
    (device, item), got = who(int(wrong[0])), float(weights[wrong[0]])
    hint = "raise weight_bound, or clip the weights" if got > bound and math.isfinite(got) else "repair this weight"
    raise ValueError(
        f"{device}, item {item}: a weight must be a number from 0 to weight_bound {bound:g}, got {got:g}; {hint}"
    )


def label_weights(labels: NDArray[Any], ratios: Mapping[str, float], who: Callable[[int], tuple[str, int]]) -> Floats:
    """Return the ratio of every row's class."""
    names, codes = np.unique(labels, return_inverse=True)
    for code, name in enumerate(names.tolist()):
        if name not in ratios:
            _no_ratio(name, who(int((codes == code).argmax()))[0], ratios)
    each = np.array([ratios[name] for name in names.tolist()])
    return each[codes] if len(labels) else np.empty(0)


def weight_levels(tests: Iterable[Any], bound: float) -> tuple[float, ...]:
    """Return the weights of new examples that get a threshold of their own, ascending; the bound is always one."""
    levels = {bound}
    for number, test in enumerate(as_level_list(tests, "test_weights")):
        value = float(test)
        if not 0 <= value <= bound:
            raise ValueError(f"test_weights: number {number} must be from 0 to weight_bound {bound:g}, got {value:g}")
        levels.add(value)
    return tuple(sorted(levels))


@dataclass(frozen=True, eq=False)
class LikelihoodRatios:
    """Estimated likelihood ratios of new to calibration inputs: weights, a function and a bound.

    Give it as ``weight=`` to `calibrate`, whose certificate then says what is assumed.

    Attributes
    ----------
    weights
        Of the source inputs, in the form in which these were given.
    bound
        The largest weight: larger ones were clipped.
    clipped
        Which part of the source inputs that concerns.
    """

    function: _Ratio = field(repr=False)
    weights: Any = field(repr=False)
    bound: float
    clipped: float

    @property
    def assumption(self) -> str:
        """What a certificate with these weights rests on."""
        return (
            f"the weights are the likelihood ratios of new to calibration inputs, and these are at most "
            f"{self.bound:.4g}: they were estimated by a classifier and clipped"
        )

    def __call__(self, inputs: Any) -> Floats:
        """Return the weights of inputs, one row each."""
        return np.asarray(self.function(inputs))


def estimate_ratios(
    source: Any,
    target: Any,
    *,
    bound: float | None = None,
    classifier: Any = None,
    seed: int = 0,
    rng: Rng | None = None,
) -> LikelihoodRatios:
    """Estimate how much likelier inputs are among new examples than among calibration examples.

    A classifier tells both kinds of inputs apart; where it says p, the ratio is p / (1 - p) times the ratio of their
    numbers. Coverage is then *assumed*, not proven: it is off by at most the total variation between the new
    distribution and the one that these weights stand for.

    Parameters
    ----------
    source
        Inputs of calibration examples, or better of others from the same devices: a table with a row each, one table
        per device, or a dict of them.
    target
        Inputs of new examples, without labels: a table with a row each.
    bound
        The largest weight; by default the 0.99 quantile of those of the source. Larger ones are clipped.
    classifier
        Anything with `fit` and `predict_proba`; by default a logistic regression on standardised inputs.
    seed, rng
        Of the default classifier: a seed, or a generator to draw it from.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import estimate_ratios
    >>> rng = np.random.default_rng(0)
    >>> ratios = estimate_ratios(rng.normal(0, 1, 500), rng.normal(1, 1, 500), bound=5)
    >>> bool(ratios([2.0])[0] > 1 > ratios([-1.0])[0]), ratios.bound
    (True, 5.0)
    """
    tables = source.values() if isinstance(source, Mapping) else source if _is_several(source) else [source]
    parts = [as_input_rows(own, "source inputs") for own in tables]
    before, after = np.concatenate([own for own in parts if len(own)]), as_input_rows(target, "target inputs")
    if not len(before) or not len(after) or before.shape[1] != after.shape[1]:
        raise ValueError(
            f"source and target inputs must be rows with equally many numbers, got shapes {before.shape} and "
            f"{after.shape}"
        )
    model = _default_classifier(resolve_seed(rng, seed)) if classifier is None else classifier
    model.fit(np.concatenate([before, after]), np.repeat([0, 1], [len(before), len(after)]))
    share = len(before) / len(after)

    def ratio(inputs: Any) -> Floats:
        rows = as_input_rows(inputs, "inputs")
        p = np.clip(model.predict_proba(rows)[:, 1], 0.0, 1.0) if len(rows) else np.empty(0)
        with np.errstate(divide="ignore"):
            return np.asarray(p / (1 - p) * share)

    found = ratio(before)
    most = _positive(float(np.quantile(found, 0.99)) if bound is None else bound)

    def clipped(inputs: Any) -> Floats:
        return np.minimum(ratio(inputs), most)

    weights: Any = [clipped(own) for own in parts]
    if isinstance(source, Mapping):
        weights = dict(zip(source, weights, strict=True))
    elif not _is_several(source):
        weights = weights[0]
    return LikelihoodRatios(clipped, weights, most, float((found > most).mean()))


def _default_classifier(seed: int) -> Any:
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        raise ImportError(
            "estimating ratios needs scikit-learn: pip install scikit-learn, or give classifier=, anything with fit "
            "and predict_proba"
        ) from None
    return make_pipeline(StandardScaler(), LogisticRegression(random_state=seed))


def _is_several(source: Any) -> bool:
    """Return whether inputs are a table per device, and not one."""
    return isinstance(source, list | tuple) and len(source) > 0 and all(np.ndim(own) >= 1 for own in source)


def class_ratios(class_weights: Any) -> dict[str, float]:
    """Return the ratio of each class by its name; a list says those of 0, 1, ..."""
    if isinstance(class_weights, str) or (np.ndim(class_weights) == 0 and not isinstance(class_weights, Mapping)):
        raise TypeError(
            "class_weights must be a dict by class, or a list with the ratios of classes 0, 1, ..., got "
            f"{type(class_weights).__name__} {class_weights!r:.40}"
        )
    given = (
        class_weights.items()
        if isinstance(class_weights, Mapping)
        else enumerate(as_array(class_weights, "class_weights"))
    )
    ratios = {}
    for label, ratio in given:
        try:
            value = float(ratio)
        except (TypeError, ValueError):
            value = math.nan
        if not 0 <= value < math.inf:
            raise ValueError(f"class_weights: the ratio of class {label} must be a number from 0 on, got {ratio!r}")
        ratios[device_name(label)] = value
    if not any(ratios.values()):
        raise ValueError("class_weights: some class must have a ratio above 0, got none")
    return ratios


def _no_ratio(label: str, device: str, ratios: Mapping[str, float]) -> float:
    known = natural_order(ratios)
    raise ValueError(
        f"class_weights: no ratio is given for class {label!r}, which {device} has; known: "
        f"{', '.join(known[:8])}{', ...' if known[8:] else ''}; give 0 if new examples never have it"
    )


def _positive(bound: Any) -> float:
    try:
        value = float(bound)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"weight_bound must be a number above 0, the largest weight of any example, got {bound!r}")
    return value
