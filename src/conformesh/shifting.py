r"""Shift: calibration scores that stand for new examples of another distribution, by how much each of them weighs.

Covariate shift   a new example with inputs x is likelier than among the calibration examples by a factor proportional
                  to a known w(x), at most w_max
Label shift       the same with w(y) of its label; every class has its ratio, so that the largest is known

With :math:`v_k \propto \pi_k / n_k` of the target (see `promises`), a new example of weight w_test is covered if the
threshold is the smallest with

.. math:: \sum_{S_i \le \tau} v_i w_i \ge (1 - \alpha) \sum_i v_i w_i
          + \max_k v_k \left[(1 - \alpha) w_\text{test} + \alpha w_\text{max}\right]

(docs/guarantees.md). Weights become integers: w is rounded down to a multiple of a power of two that all devices know
from w_max, the number of scores and the target; what was lost is added up and raises the required rank, so that
rounding never makes a threshold smaller than the fractions would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.engines import Engine
from conformesh.engines.base import held_here, ids_here
from conformesh.inputs import Held, as_held, check_rows, check_same_form, held_column, in_rows_of
from conformesh.io.arrays import as_array, as_rows
from conformesh.kernels.ranks import WEIGHT_BITS, LARGEST_SUM, Requirement, as_levels
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.names import device_name, natural_order
from conformesh.result.several import at_most
from conformesh.streams import Rng, seed_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Ratio = Callable[[Any], Any]
Weigh = Callable[[Any, str], Any]
SPARE_BITS = 12  # of a weight beyond those that the number of scores needs: rounding costs 2^-12 of one score in all


class Shifted(NamedTuple):
    """What a calibration with weights runs on: weighted scores, a promise about them, and how many examples there are.

    `items` has shape (devices here, 1); None where they are as many as scores.
    """

    samples: WeightedScores
    requirement: Requirement
    items: Ints | None = None


class Unit(NamedTuple):
    """Weights are counted in units of whole / 2^exponent: public, and no finer than their sums remain exact.

    `whole` is 1 where a power of two makes the bound a whole number, as all weights in few binary digits then are; else
    the bound itself, so that at least the weights that reach it are whole.
    """

    exponent: int
    whole: float = 1.0

    @classmethod
    def of(cls, bound: float, n: int, target: str) -> Unit:
        """Return the unit for weights up to `bound` of n scores."""
        room = LARGEST_SUM.bit_length() - 1 - max(n, 1).bit_length()
        if target != "sizes":
            room //= 2  # the other half is for the weights of devices
        bits = min(WEIGHT_BITS, room, n.bit_length() + SPARE_BITS)
        exponent = bits - math.frexp(bound)[1]
        exact = (Fraction(bound) * Fraction(2) ** exponent).denominator == 1
        return cls(exponent) if exact else cls(bits, bound)

    def down(self, weights: Floats) -> Ints:
        """Return weights in units, rounded down; products with powers of two are exact, quotients made smaller."""
        return np.asarray(np.floor(self._scaled(weights)), dtype=np.int64)

    def lost(self, weights: Floats) -> int:
        """Return how many units were lost at most: one by rounding down, and one by a quotient that is not exact."""
        if self.whole != 1.0:
            return 2 * int(((weights > 0) & (weights != self.whole)).sum())
        scaled = self._scaled(weights)
        return int(((scaled != np.floor(scaled)) | ((scaled == 0) & (weights > 0))).sum())

    def up(self, weight: float) -> int:
        """Return a weight in units, rounded up."""
        return math.ceil(Fraction(weight) / Fraction(self.whole) * Fraction(2) ** self.exponent)

    def _scaled(self, weights: Floats) -> Floats:
        part = weights / self.whole
        if self.whole != 1.0:
            part = np.where(weights == self.whole, 1.0, np.nextafter(part, 0.0))
        return np.ldexp(part, self.exponent)


@dataclass(frozen=True, eq=False)
class Shift:
    """Weights as they were given, one for each score.

    Attributes
    ----------
    given
        The weights by device, or what `function` makes them of: inputs, labels.
    bound
        The largest weight that an example may have.
    function
        Makes the weights of a device of what is given for it, and its name.
    assumption
        What must hold for the promise, in words, where the weights are not known but estimated.
    what
        What is given, for errors.
    """

    given: Held
    bound: float
    function: Weigh | None = None
    assumption: str = ""
    what: str = "weights"

    def applied(
        self, host: Engine, held: Held, requirement: Requirement, tests: Sequence[float] | None = None
    ) -> Shifted:
        """Return the scores of the devices here with whole weights, and the promise about them.

        `tests` are the weights of new examples, one for each level of the run; by default every level serves all.
        """
        if requirement.pac_confidence is not None:
            raise ValueError(
                "pac_confidence (over the draw of the scores) is proven for scores that weigh alike, not with weights; "
                "leave pac_confidence out, or the weights"
            )
        names = ids_here(host)
        scores, weights = self._here(host, held, names)
        n = sum(host.share(sum(map(len, scores))))
        unit = Unit.of(self.bound, n, requirement.mixture)
        about = replace(
            requirement,
            part=True,
            bounds=(unit.up(self.bound),),
            tests=None if tests is None else tuple(unit.up(test) for test in tests),
        )
        whole = [unit.down(own) for own in weights]
        lost = np.array([[unit.lost(own)] for own in weights], dtype=np.int64)
        items = np.array([[len(own)] for own in scores], dtype=np.int64)
        return Shifted(WeightedScores.weighted([scores], [whole], names, lost), about, items)

    def _here(self, host: Engine, held: Held, names: Sequence[str]) -> tuple[list[Any], list[Floats]]:
        """Return scores and weights of the devices here, one for each other."""
        if isinstance(held, WeightedScores):
            raise TypeError(
                f"{self.what} go with one array of scores per device, a dict or a frame, got WeightedScores; give these "
                "weights of their own with WeightedScores.weighing, for solve_draws"
            )
        check_same_form(held, self.given, self.what)
        raw = held_here(host, in_rows_of(held, host.network, names))
        scores = [as_array(own, f"device {name}") for name, own in zip(names, raw, strict=True)]
        given = held_here(host, in_rows_of(self.given, host.network, names, self.what), self.what)
        check_rows(raw, given, names, self.what)
        weights = []
        for name, own, mine in zip(names, scores, given, strict=True):
            many = len(as_array(mine, f"device {name}, {self.what}")) if np.ndim(mine) else -1
            if many != len(own):
                got = "one value" if many < 0 else f"{many} {self.what}"
                raise ValueError(f"device {name} has {len(own)} scores but {got}; one each is needed")
            weights.append(self._checked(mine, name))
        return scores, weights

    def _checked(self, given: Any, name: str) -> Floats:
        """Return the weights of a device, each a number from 0 to the bound."""
        values = as_array(given, f"device {name}, {self.what}")
        if self.function is not None and len(values):
            made = as_array(self.function(given, name), f"device {name}, weights")
            if made.shape != (len(values),):
                raise ValueError(
                    f"device {name}: the weight function must return one weight for each of {len(values)} inputs, got "
                    f"shape {made.shape}"
                )
            values = made
        if not len(values):
            return np.empty(0)
        try:
            weights = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise TypeError(f"device {name}: weights must be numbers, got {str(values[:1])[:40]}") from None
        if weights.ndim != 1:
            raise ValueError(f"device {name}: weights must be one-dimensional, got shape {weights.shape}")
        wrong = np.flatnonzero(~((weights >= 0) & (weights <= self.bound)))
        if len(wrong):
            item, got = int(wrong[0]), float(weights[wrong[0]])
            above = got > self.bound and math.isfinite(got)
            hint = "raise weight_bound, or clip the weights" if above else "repair this weight"
            raise ValueError(
                f"device {name}, item {item}: a weight must be a number from 0 to weight_bound {self.bound:g}, got "
                f"{got:g}; {hint}"
            )
        return weights


def as_shift(weight: Any, bound: Any, inputs: Any, devices: Any) -> Shift | None:
    """Return the shift that a user asked for by `weight`, `weight_bound` and `inputs`; None where there is none."""
    if weight is None:
        for name, value in (("weight_bound", bound), ("inputs", inputs)):
            if value is not None:
                raise ValueError(f"{name} goes with weight=, which was not given; say how much each score weighs")
        return None
    assumed = ""
    if isinstance(weight, Ratios):
        bound = weight.bound if bound is None else bound
        assumed = weight.assumption
        if inputs is None:
            weight = weight.weights
            if not isinstance(weight, Mapping | list):
                raise ValueError(
                    "weight=Ratios of inputs in one table needs inputs=, the inputs of each device beside its scores; "
                    "or estimate the ratios from one table per device"
                )
    if bound is None:
        raise ValueError(
            "weight needs weight_bound=, the largest weight that any example may have, calibration or new; the largest "
            "one seen is not such a bound"
        )
    most = _positive(bound)
    if callable(weight):
        if inputs is None:
            raise ValueError("weight is a function: give inputs=, what it takes for each device, beside the scores")
        return Shift(inputs_of(devices, inputs), most, lambda own, _: weight(own), assumed, "inputs")
    if inputs is not None:
        raise ValueError(f"inputs go with a weight that is a function of them, got {type(weight).__name__}")
    given = held_column(devices, weight, "weight") if isinstance(weight, str) else as_held(weight, what="weight")
    return Shift(given, most, assumption=assumed)


def as_label_shift(class_weights: Any, labels: Any, devices: Any) -> tuple[Shift, dict[str, float]] | None:
    """Return the shift of classes that a user asked for and the ratio of each class; None where there is none."""
    if class_weights is None:
        if labels is not None:
            raise ValueError("labels go with class_weights=, the ratio of each class; for a threshold each use groups=")
        return None
    if labels is None:
        raise ValueError("class_weights needs labels=, the true label of every calibration score, beside the scores")
    ratios = _ratios(class_weights)
    given = held_column(devices, labels, "labels") if isinstance(labels, str) else as_held(labels, what="labels")

    def ratio_of(own: Any, device: str) -> list[float]:
        names = as_array(own, f"device {device}, labels").astype(str).tolist()
        return [ratios[label] if label in ratios else _no_ratio(label, device, ratios) for label in names]

    return Shift(given, max(ratios.values()), ratio_of, what="labels"), ratios


class Several(NamedTuple):
    """Thresholds for several weights of new examples: `tests` in ascending order, and that of every name.

    The name None is for all: whatever their weight.
    """

    shift: Shift
    tests: tuple[float, ...]
    names: Mapping[str | None, float]


def as_several_shift(
    weight: Any, bound: Any, inputs: Any, tests: Iterable[Any] | None, class_weights: Any, labels: Any, devices: Any
) -> Several:
    """Return the shift that was asked for, of inputs or of classes, and who gets a threshold."""
    shift, classes = as_shift(weight, bound, inputs, devices), as_label_shift(class_weights, labels, devices)
    if classes is not None:
        if shift is not None or tests is not None:
            raise ValueError(
                "class_weights shift the classes, weight and test_weights the inputs; give one of them, or weights "
                "that are the product of both"
            )
        by_class, ratios = classes
        return Several(
            by_class, tuple(sorted({*ratios.values()})), {name: ratios[name] for name in natural_order(ratios)}
        )
    if shift is None:
        raise ValueError("a shift needs weight=, how much each score weighs, or class_weights=; neither was given")
    if tests is None:
        return Several(shift, (shift.bound,), {None: shift.bound})
    levels = weight_levels(tests, shift.bound)
    return Several(shift, levels, {at_most(level): level for level in levels})


def weight_levels(tests: Iterable[Any], bound: float) -> tuple[float, ...]:
    """Return the weights of new examples that get a threshold of their own, ascending; the bound is always one."""
    levels = {bound}
    for number, test in enumerate(as_levels(tests, "test_weights")):
        value = float(test)
        if not 0 <= value <= bound:
            raise ValueError(f"test_weights: number {number} must be from 0 to weight_bound {bound:g}, got {value:g}")
        levels.add(value)
    return tuple(sorted(levels))


@dataclass(frozen=True, eq=False)
class Ratios:
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

    function: Ratio = field(repr=False)
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
) -> Ratios:
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
    parts = [as_rows(own, "source inputs") for own in tables]
    before, after = np.concatenate([own for own in parts if len(own)]), as_rows(target, "target inputs")
    if not len(before) or not len(after) or before.shape[1] != after.shape[1]:
        raise ValueError(
            f"source and target inputs must be rows with equally many numbers, got shapes {before.shape} and "
            f"{after.shape}"
        )
    model = _default_classifier(seed_of(rng, seed)) if classifier is None else classifier
    model.fit(np.concatenate([before, after]), np.repeat([0, 1], [len(before), len(after)]))
    share = len(before) / len(after)

    def ratio(inputs: Any) -> Floats:
        rows = as_rows(inputs, "inputs")
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
    return Ratios(clipped, weights, most, float((found > most).mean()))


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


def inputs_of(devices: Any, inputs: Any) -> Held:
    """Return the inputs of each device: as given, or the columns of a frame that are named."""
    if isinstance(inputs, str):
        return held_column(devices, inputs, "inputs")
    if isinstance(inputs, list | tuple) and inputs and all(isinstance(column, str) for column in inputs):
        tables = [held_column(devices, column, "inputs") for column in inputs]
        return {name: np.stack([table[name] for table in tables], axis=1) for name in tables[0]}
    return as_held(inputs, what="inputs")


def _ratios(class_weights: Any) -> dict[str, float]:
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
        f"class_weights: no ratio is given for class {label!r}, which device {device} has; known: "
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
