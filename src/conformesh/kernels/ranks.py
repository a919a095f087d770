r"""Ranks: from a mixture of devices and a level to integer weights and a required rank.

Every guarantee of this library is one sentence: *the smallest threshold at which an integer weighted count reaches a
required rank*. This module is the one place where coverage, or a risk, turns into these integers.

Device k holds n_k scores that are exchangeable with a new one of its own; the new one comes from device k with
probability :math:`\pi_k` (the *mixture*). With :math:`v_k \propto \pi_k / n_k` and :math:`T = \sum_k n_k v_k`, devices
without scores included, these rules keep :math:`P(\text{covered}) \ge 1 - \alpha`:

swap    weight of the scores at or below the threshold :math:`\ge (1 - \alpha) T + \max_k v_k` (docs/guarantees.md)
ghost   number of scores at or below it :math:`\ge (1 - \alpha)(n + K)`: one imagined score per device, for
        :math:`\pi_k \propto n_k + 1` only ([Lu2023] Theorem 4.3; [Wen2025] Section 3.2, Eq. (1), Eq. (2), Eq. (3)).
        With K = 1 it is ordinary split conformal prediction

All of them, with weights of single scores and with losses, are one formula: `RankRule`. The ranks of `pac_confidence`
are the only ones that are not: the binomial one, and the one that holds at all looks (`time_uniform`).

The weights are fractions; they become integers by a common factor where that is small, else by a power of two, rounded
to the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.common.names import device_name, natural_order, unknown_name
from conformesh.common.notes import emit_note
from conformesh.kernels.time_uniform import time_uniform_rank

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Alpha = float | str | Decimal | Fraction
_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")

AUTO = "auto"  # the word for "as the library chooses": what it then does has a name of its own
GIVEN, OWN, ANY = "given", "own", "any"
MIXTURES: dict[str, str] = {
    "sizes": "a new example comes from a device in proportion to its scores",
    "paper": "a new example comes from device k with probability (n_k + 1) / (n + K)",
    "equal": "a new example is as likely from any device",
    GIVEN: "a new example comes from a device with the share that was given for it",
    "exchangeable": "a new example is exchangeable with the scores of all devices, whichever it comes from",
    OWN: "a new example comes from the device whose threshold is used",
    ANY: "new examples come from the devices in any proportions",
}
RANK_RULES: dict[str, str] = {
    "swap": "the swap rank",
    "ghost": "one imagined score per device",
    "ordinary": "ordinary split conformal prediction",
    "binomial": "a binomial tail",
    "bounded": "the swap rank of every mixture that the bound allows",
    "time-uniform": "a mixture of likelihood ratios",
    "hidden": "one hidden example of each device, whose place the new one takes",
    "seq": "the swap rank of groups in a public order, each after those before it",
    "regression": "quantile regression over groups, its optimality counted",
}
GROUP_RULES: dict[str, str] = {  # where groups overlap: what holds for a point that lies in several of them
    "atoms": "each combination of groups has the threshold of its own swap rank",
    "max": "the largest threshold of the groups that hold the point",
    "seq": "groups in a public order, each raised only as far as those before it leave to do",
    "regression": "quantile regression over the groups: thresholds that add up over them",
}
POOLED_MIXTURES = ("sizes", "paper", "equal")  # that users may name; they may also give shares by device
DEVICE_MIXTURES = (OWN, ANY)  # for which every device is covered by itself, by a rank among its own scores
CHOSEN_MIXTURES = (*POOLED_MIXTURES, *DEVICE_MIXTURES)
CHOSEN_RANK_RULES = (AUTO, "swap", "ghost")  # that users may name
# The largest sum of all weights. Float64 holds every integer up to 2^53, so sums are exact in whichever order they are
# formed; with rounded sums a threshold could fall one score short of its rank.
LARGEST_SUM = 2**52
# Bits of the largest weight where weights have no small common factor. All others are rounded to units of 2^-32 of it,
# down for coverage (the loss is added to the required rank) and up for losses; `_factor` takes fewer bits where the sum
# would exceed `LARGEST_SUM`.
WEIGHT_BITS = 32
LOCAL_LOSS_UNITS = 5040  # the same near a centre, whose weights take 16 bits: halves to tenths and twelfths are whole
LOSS_UNITS = 720720  # into which a loss is cut: thirds to sixteenths are whole, and 2^32 is left for weights of devices


def exact_alpha(alpha: Alpha, what: str = "alpha") -> Fraction:
    """Return alpha as the decimal the user wrote: 0.1 means one tenth, not the nearest binary fraction.

    >>> exact_alpha(0.1)
    Fraction(1, 10)
    """
    value = exact_number(alpha, f"{what} must be a number strictly between 0 and 1, got {alpha!r}")
    if not 0 < value < 1:
        raise ValueError(f"{what} must lie strictly between 0 and 1, got {alpha}")
    return value


def check_alpha(alpha: Alpha) -> Fraction:
    """Return alpha exactly, with a note where it is above 1/2: most likely the coverage was given instead.

    Public functions that take alpha from a user call this; what only calculates with alpha calls `exact_alpha`.
    """
    value = exact_alpha(alpha)
    if value > Fraction(1, 2):
        coverage = float(1 - value)
        emit_note(f"alpha={alpha} asks for a coverage of only {100 * coverage:g} %; did you mean alpha={coverage:g}?")
    return value


def check_pac_confidence(pac_confidence: Alpha) -> Fraction:
    """Return pac_confidence exactly, with a note where it is below 1/2: most likely delta was given instead."""
    value = exact_alpha(pac_confidence, "pac_confidence")
    if value < Fraction(1, 2):
        emit_note(
            f"pac_confidence={pac_confidence} lets {100 * float(1 - value):g} % of calibrations miss their coverage; "
            f"did you mean pac_confidence={float(1 - value):g}?"
        )
    return value


def as_level_list(given: Any, what: str) -> list[Any]:
    """Return several levels as a list; one number, or a text, is refused."""
    scalar = isinstance(given, np.ndarray) and given.ndim == 0
    if isinstance(given, str | bytes) or not hasattr(given, "__iter__") or scalar:
        raise TypeError(f"{what} must be a list of numbers, got {given!r}; for one level write {what}=[{given}]")
    return [*given]


def _as_alphas(given: Any) -> list[Any]:
    """Return several alphas of a user as a list, each checked by `check_alpha`."""
    alphas = as_level_list(given, "alphas")
    for alpha in alphas:
        check_alpha(alpha)
    return alphas


def exact_number(number: Any, complaint: str) -> Fraction:
    """Return a number as the decimal the user wrote, or complain."""
    try:
        if isinstance(number, Fraction):
            return number
        return Fraction(str(number if isinstance(number, str | Decimal) else float(number)))
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        raise ValueError(complaint) from None


def refuse_confidence(given: Mapping[str, Any]) -> None:
    """Raise an error that explains the two meanings of `confidence`, if this keyword was given."""
    if "confidence" not in given:
        return
    value = given["confidence"]
    try:
        level = exact_alpha(value, "confidence")
        instead = f"alpha={float(1 - level):g} for that, or pac_confidence={float(level):g}"
    except ValueError:
        instead = "alpha for that, or pac_confidence"
    raise TypeError(
        f"confidence={value!r} is not an argument: MAPIE and crepes call 1 - alpha the confidence; use {instead} for a "
        "confidence over the draw of the calibration scores"
    )


def explain_confidence(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """Let a function with a fixed signature explain the keyword `confidence` instead of calling it unexpected."""

    @wraps(function)
    def explained(*args: _Given.args, **kwargs: _Given.kwargs) -> _Returned:
        refuse_confidence(kwargs)
        return function(*args, **kwargs)

    return explained


def conformal_rank(n: int, alpha: Alpha, devices: int = 1) -> int:
    """Return ``ceil((1 - alpha) (n + devices))``: the ghost rank, and with one device that of ordinary prediction.

    A rank above n means that no score is large enough: the threshold is +inf and the prediction set holds every label.
    In floats the same formula is sometimes one too high; here it never is.

    >>> conformal_rank(149, 0.18)          # ceil(150 * (1 - 0.18)) in floats gives 124
    123
    >>> conformal_rank(1000, 0.1, devices=20)
    918
    """
    if n < 0 or devices < 1:
        raise ValueError(f"a rank needs n >= 0 scores on at least 1 device, got n={n}, devices={devices}")
    # Up: a count is whole, and one score fewer could cover less than 1 - alpha. With one device n + 1 instead of n: the
    # new score is as likely to have any of the n + 1 ranks among the calibration scores and itself.
    return math.ceil((1 - exact_alpha(alpha)) * (int(n) + int(devices)))


def scores_needed(alpha: Fraction) -> int:
    """Return the smallest number of scores of one device with which its threshold is finite.

    >>> scores_needed(Fraction(1, 10))
    9
    """
    return math.ceil(1 / alpha) - 1


def kept_anyway(n: int, alpha: Fraction) -> Fraction:
    """Return how likely a label that none of a device's n examples has must be in its set, by any rule.

    That is for a rule that covers this device with probability 1 - alpha, whatever its distribution, and for examples
    that all have one other label (docs/guarantees.md). From n = 4 on it is 0 for alpha = 0.1.

    >>> [float(round(kept_anyway(n, Fraction(1, 10)), 3)) for n in range(5)]
    [0.9, 0.6, 0.325, 0.052, 0.0]
    """
    # e (1 - e)^n is largest at e = 1 / (n + 1).
    return max(Fraction(0), 1 - alpha * Fraction((n + 1) ** (n + 1), n**n))


def conformal_threshold(scores: ArrayLike, alpha: Alpha, devices: int = 1) -> float:
    """Return the threshold of pooled scores: the smallest one of conformal rank, +inf if there is none.

    This is what the method `fcp` computes, and with one device every method; for checks, and for data that may be
    pooled. The argument is not changed.

    >>> conformal_threshold([0.1, 0.4, 0.2, 0.3], alpha=0.4)
    0.3
    """
    values = np.array(scores, dtype=np.float64).ravel()
    rank = conformal_rank(len(values), check_alpha(alpha), devices)
    enough = rank <= len(values)
    if enough:
        # In place, as `values` is a copy. Ranks count from 1, places from 0; NaN goes to the end.
        values.partition(rank - 1)
        values = values[rank - 1 :]
    if np.isnan(values).any():
        raise ValueError("scores must be numbers, got NaN; drop or repair these rows first")
    return float(values[0]) if enough else math.inf


def weighted_threshold(values: ArrayLike, weights: ArrayLike | None, required: int) -> float:
    """Return the smallest value at which the weights of the values at or below it add up to `required`.

    The pooled form of every guarantee of this library, for checks: -inf where nothing is required, +inf where all
    values together weigh less.

    >>> weighted_threshold([0.3, 0.1, 0.2], [5, 1, 2], 3)
    0.2
    """
    given = np.asarray(values, dtype=np.float64)
    each = np.ones(len(given), dtype=np.int64) if weights is None else np.asarray(weights, dtype=np.int64)
    order = np.argsort(given, kind="stable")
    sums = np.cumsum(each[order])
    if required <= 0:
        return -math.inf
    place = int(np.searchsorted(sums, required))  # the first place whose sum is at least `required`
    return float(given[order][place]) if place < len(given) else math.inf


class RankRule(NamedTuple):
    r"""The required rank of one problem, as a function of what its scores weigh: one formula for every rule.

    .. math:: \left\lceil W - u \left(\alpha (M + A) - A
              - v \left[(1 - \alpha) w_\text{test} + \alpha w_\text{max}\right]\right) \right\rceil

    W is the weight of the scores (of losses: of their drops, in units), M that of the examples, and
    :math:`A = \text{missing} \cdot w_\text{max}` what devices without scores may weigh: they count as missed.

    Attributes
    ----------
    alpha
        The level: tolerated miscoverage, or the risk as a part of the largest possible loss.
    heaviest
        v, the largest weight of a score that its device gives it, before rounding; 0 for the ghost rule.
    missing
        What the devices without scores would weigh; for the ghost rule the number of devices.
    largest, test
        The largest weight of an example of its own (:math:`w_\text{max}`), and that of the new one.
    unit
        u, what a loss of 1 weighs; 1 for coverage.
    swapped
        Whether the proof exchanges the new example for another one, which may weigh `largest`; not so with one device.
    """

    alpha: Fraction
    heaviest: Fraction
    missing: Fraction
    largest: int = 1
    test: int = 1
    unit: int = 1
    swapped: bool = True

    def required(self, total: int | Fraction, mass: int | Fraction) -> int:
        """Return the required rank of scores that weigh `total`, of examples that weigh `mass`."""
        absent = self.missing * self.largest
        slack = self.heaviest * ((1 - self.alpha) * self.test + self.swapped * self.alpha * self.largest)
        # Up: counts are integers, so they reach the bound if and only if they reach the next integer.
        return math.ceil(total - self.unit * (self.alpha * (mass + absent) - absent - slack))

    @property
    def p_value_slack(self) -> tuple[Fraction, Fraction]:
        """What a p-value adds to the weight of all scores, and to that of the scores at or above the new one.

        The inverse of `required` in alpha, for a new example that may weigh `largest`.
        """
        absent, slack = self.missing * self.largest, self.heaviest * self.largest
        return (absent, absent + slack) if self.swapped else (absent + slack, absent + slack)


@dataclass(frozen=True)
class Requirement:
    """What is required of the columns of one run, before it is known how many scores each device holds.

    Attributes
    ----------
    mixture
        A name of `MIXTURES`: which devices new examples come from.
    rank_rule
        `swap`, `ghost`, or `auto`: the proven rule that requires less, chosen from the numbers of scores and alpha.
    shares
        By device name, for `given`: how likely a new example comes from it, up to a common factor.
    is_weighted
        True where columns hold a part of the examples (a group) or examples have weights of their own (near a centre,
        after a shift). What a device without scores in a column would hold of it is then unknown.
    largest_weights
        The largest weight of an example in each column, in the units of the columns' weights; one for all, or each.
    test_weights
        The weight of the new example, for each column (one for all, or each) and level; by default the largest weight.
    loss_unit
        What a loss of 1 weighs, where weights are drops of losses and alpha is a risk; 0 where thresholds cover.
    pac_confidence
        With which probability over the draw of the scores the coverage holds; None: on average over these draws.
    pac_problems
        How many problems share the probability that remains; 0: as many as there are levels.
    time_uniform
        Whether `pac_confidence` is that of all looks together while scores arrive. Devices then contribute scores in
        proportion to their shares.
    hides_example
        Whether each device hides one of its examples, whose place the new one takes (adapted scores): no slack then.
    mixture_bound
        The guarantee holds for every mixture whose shares are at most this many times those of `mixture`; None: for
        that one.
    """

    mixture: str = "sizes"
    rank_rule: str = AUTO
    shares: Mapping[str, Fraction] | None = None
    is_weighted: bool = False
    largest_weights: tuple[int, ...] = (1,)
    test_weights: tuple[tuple[int, ...], ...] | None = None
    loss_unit: int = 0
    pac_confidence: Fraction | None = None
    pac_problems: int = 0
    time_uniform: bool = False
    hides_example: bool = False
    mixture_bound: Fraction | None = None

    def __post_init__(self) -> None:
        if self.time_uniform and self.pac_confidence is None:
            raise ValueError(
                "time_uniform=True needs pac_confidence, which it makes anytime-valid; give one, such as "
                "pac_confidence=0.95, or leave time_uniform out"
            )
        if self.mixture not in MIXTURES:
            raise ValueError(unknown_name("mixture", self.mixture, MIXTURES))
        if self.rank_rule not in CHOSEN_RANK_RULES:
            raise ValueError(unknown_name("rank rule", self.rank_rule, CHOSEN_RANK_RULES))
        if self.rank_rule == "ghost" and (self.is_weighted or self.pac_confidence is not None):
            raise ValueError(
                "rank_rule='ghost' counts scores that weigh alike, one imagined score per device; with weights, or "
                "with pac_confidence, use rank_rule='auto'"
            )

    def __str__(self) -> str:
        """Say in a few words what is required; shares by device stand elsewhere."""
        sure = "" if self.pac_confidence is None else f", pac_confidence {float(self.pac_confidence):g}"
        bound = "" if self.mixture_bound is None else f", mixture_bound {float(self.mixture_bound):g}"
        always = ", time_uniform" * self.time_uniform
        return f"mixture {self.mixture}{bound}, rank_rule {self.rank_rule}{sure}{always}"

    @property
    def is_for_unknown_mixtures(self) -> bool:
        """Whether the guarantee holds for more mixtures of devices than one."""
        return self.mixture in DEVICE_MIXTURES or self.mixture_bound is not None

    @property
    def has_equal_weights(self) -> bool:
        """Whether examples have no weights of their own, and nothing is a loss."""
        return {*self.largest_weights} == {1} and not self.loss_unit

    @property
    def largest_factor(self) -> int:
        """The most by which a score's own weight multiplies that of its device."""
        return max(self.largest_weights) * max(self.loss_unit, 1)

    def largest_weight(self, column: int) -> int:
        """Return the largest weight of an example in a column."""
        return self.largest_weights[column % len(self.largest_weights)]

    def test_weight(self, column: int, level: int) -> int:
        """Return the weight of the new example that a column and level are for."""
        if self.test_weights is None:
            return self.largest_weight(column)
        return self.test_weights[column % len(self.test_weights)][level]

    def demand(  # noqa: PLR0911 - one return for each rule
        self,
        sizes: Ints,
        alphas: Sequence[Fraction],
        *,
        shares: Sequence[Fraction] | None = None,
        copies: Ints | None = None,
    ) -> Demand:
        """Return what is required of devices with these numbers of scores, `copies` of each."""
        kinds, places, counts = _kinds(sizes, shares, copies, self.mixture)
        if self.pac_confidence is not None:
            # Union bound: the chance of failure is divided among all problems that must hold at once.
            rule = _TimeUniform if self.time_uniform else _Binomial
            return rule.of(kinds, counts, (1 - self.pac_confidence) / max(self.pac_problems or len(alphas), 1))
        # Losses of plain examples are rounded up. Where examples have weights, these are rounded down, and what was
        # lost is added to the required rank.
        round_up = self.loss_unit > 0 and not self.is_weighted
        swap = _swap(kinds, places, counts, LARGEST_SUM // self.largest_factor, round_up)
        if self.mixture_bound is not None:  # devices count their scores alike; `BoundedMixtures` weighs them
            return replace(swap, rule="bounded", weights=None, rounded=False)
        if self.hides_example:
            # Counts of the examples, the new one among them, need no room for an exchange. A device without examples
            # has full sets, which miss nothing: no part of alpha is put aside for it, unless all devices are such.
            absent = swap.missing if swap.missing < swap.base else Fraction(0)
            return replace(
                swap, rule="hidden", largest=Fraction(0), base=swap.base - absent, missing=swap.missing - absent
            )
        if self.is_weighted and self.rank_rule == AUTO and swap.devices == 1:
            return replace(swap, rule="ordinary")  # one device: weighted split conformal prediction
        ghost = None if self.is_weighted else _ghost(kinds, counts)
        if self.rank_rule == "ghost":
            if ghost is None:
                raise ValueError(
                    f"rank_rule='ghost' is proven for mixture='paper' (or devices with equally many scores), not for "
                    f"mixture={self.mixture!r} with these; use rank_rule='swap'"
                )
            return ghost
        if self.rank_rule == AUTO and ghost is not None:
            if swap.weights is None:  # both count scores: the smaller rank, level by level
                return ghost if ghost.devices == 1 else _Smaller(**vars(swap), other=ghost)
            whole = not self.loss_unit
            smaller = all(ghost.required_share(alpha, whole) <= swap.required_share(alpha, whole) for alpha in alphas)
            if not alphas:  # p-values: the rule that can give smaller ones
                smaller = ghost.smallest_p_value <= swap.smallest_p_value
            if smaller:
                return ghost
        return swap

    def device_ranks(
        self, sizes: Ints, shares: Sequence[Fraction] | None = None, silent: NDArray[np.bool_] | None = None
    ) -> DeviceRanks:
        """Return what is required of each device, for guarantees about sets of devices that are not known in advance.

        The rule follows from the requirement alone, `auto` being the swap rank: if it were chosen by how many scores
        devices claim to hold, a Byzantine device could choose. Of `silent` devices `sizes` is an upper bound.
        """
        mixture, ghost = self.mixture, self.rank_rule == "ghost"
        refused = [
            (self.pac_confidence is not None, "pac_confidence: its rank does not add up over devices"),
            (not self.has_equal_weights, "losses, or weights of single scores"),
            (self.is_weighted and mixture != "sizes", f"groups with mixture {mixture!r}; use mixture 'sizes'"),
            (ghost and mixture != "paper", f"rank_rule 'ghost' with mixture {mixture!r}; use 'paper'"),
        ]
        for applies, words in refused:
            if applies:
                raise ValueError(f"a guarantee about unknown devices has no proof for {words}")
        kinds, places, counts = _kinds(sizes, shares, None, mixture)
        each = [share for _, share in kinds]
        if ghost:
            return DeviceRanks("ghost", np.ones(len(sizes), np.int64), [each[i] for i in places.tolist()], Fraction(0))
        swap = _swap(kinds, places, counts, LARGEST_SUM, False)
        whole = sum((each[i] for i in places.tolist()), Fraction(0))
        factor = swap.base / whole if whole else Fraction(1)
        weights = np.ones(len(sizes), np.int64) if swap.weights is None else swap.weights
        # A score weighs its device's share by the number of its scores, which is most where a device holds a single
        # one. Silent devices may be such, so the slack covers that.
        single_weights = [share if mixture == GIVEN else Fraction(SHARE_BY_SIZE[mixture](1)) for share in each]
        silent_kinds = [] if silent is None else places[silent].tolist()
        slack = max([swap.largest, *(factor * single_weights[kind] for kind in silent_kinds)])
        return DeviceRanks("swap", weights, [factor * each[i] for i in places.tolist()], slack)


DEFAULT_REQUIREMENT = Requirement()


class BoundedMixtures:
    r"""All mixtures whose shares are at most a bound times given ones, of one column and level.

    A threshold with :math:`c_k` scores at or below it, of the :math:`m_k` scores that device k has in the column (a
    group) and its :math:`n_k` examples, covers all of them if

    .. math:: \min_w \sum_k w_k (c_k - (1 - \alpha) m_k) / n_k \ge \max_k \min(1, c \pi_k) / n_k

    over all shares :math:`0 \le w_k \le c \pi_k` that add up to 1. The minimum gives the devices with the smallest
    terms as much as they may have. All in whole numbers. A device without examples counts as missed.
    """

    def __init__(
        self, bound: Fraction, shares: Sequence[Fraction], sizes: Sequence[int], items: Sequence[int], alpha: Fraction
    ) -> None:
        self.alpha, self.sizes = alpha, [*sizes]
        whole = sum(shares, Fraction(0))
        caps = [min(Fraction(1), bound * share / whole) if whole else Fraction(0) for share in shares]
        # Shares are in units of 1 / parts, and terms in units of 1 / (q multiple), where alpha = p / q.
        self._parts = math.lcm(*(cap.denominator for cap in caps))
        self._multiple = math.lcm(*(n for n in items if n))
        self._caps = [int(cap * self._parts) for cap in caps]
        self._scale = [self._multiple // n if n else 0 for n in items]
        self._of_part = any(m != n for m, n in zip(sizes, items, strict=True))
        self._slack = max((cap / n for cap, n in zip(caps, items, strict=True) if n), default=Fraction(0))
        self._needed = self._slack * self._parts * self._multiple * alpha.denominator

    def counts_device(self, row: int) -> bool:
        """Return whether new examples may come from a device."""
        return self._caps[row] > 0

    @property
    def is_reachable(self) -> bool:
        """Whether some score is large enough: all scores together are."""
        return self._slack > 0 and self.is_reached(self.sizes)

    def is_reached(self, counts: Sequence[int]) -> bool:
        """Return whether a threshold with so many scores of each device at or below it covers every mixture."""
        return self._smallest(counts) >= self._needed

    def _smallest(self, counts: Sequence[int]) -> int:
        """Return the minimum in units of 1 / (parts q multiple)."""
        p, q = self.alpha.numerator, self.alpha.denominator
        absent = (p - q) * self._multiple
        terms = [
            (count * q - (q - p) * size) * scale if scale else absent
            for count, size, scale in zip(counts, self.sizes, self._scale, strict=True)
        ]
        total, left = 0, self._parts
        for term, cap in sorted(zip(terms, self._caps, strict=True)):
            share = min(cap, left)
            total += share * term
            left -= share
        return total

    @property
    def unit(self) -> int:
        """What all scores weigh together in certificates: ranks are whole numbers then, unless they were too large."""
        exact = self._parts * self._multiple * (self.alpha.denominator if self._of_part else 1)
        return min(exact, LARGEST_SUM)

    @property
    def required(self) -> Fraction:
        """Which part of the scores must lie at or below the threshold in the worst of the mixtures."""
        return 1 - self.alpha + self._slack if self._slack else Fraction(2)  # without a score nothing is enough

    def covered(self, counts: Sequence[int]) -> Fraction:
        """Return which part of the scores lies at or below a threshold in the worst of the mixtures."""
        unit = self._parts * self._multiple * self.alpha.denominator
        return 1 - self.alpha + Fraction(self._smallest(counts), unit)


@dataclass(frozen=True, eq=False)
class DeviceRanks:
    r"""What is required of devices one by one.

    A set H of devices, with c_j scores at or below the threshold, has the rank if

    .. math:: \sum_{j \in H} v_j c_j \ge (1 - \alpha) \sum_{j \in H} s_j + \text{slack}

    Attributes
    ----------
    rule
        A name of `RANK_RULES`.
    weights
        How much a score of each device weighs, v_j, rounded down.
    bases
        What all scores of each device would weigh, s_j, also where it holds none.
    slack
        At least the largest weight of a score of any device, before rounding; 0 for the ghost rule.
    """

    rule: str
    weights: Ints
    bases: list[Fraction]
    slack: Fraction


@dataclass(frozen=True)
class Demand:
    """What is required of devices with known numbers of scores, in the units of its integer weights.

    Attributes
    ----------
    rule
        A name of `RANK_RULES`.
    weights
        How much a score of each device weighs; None: 1, everywhere.
    base
        What all scores weigh, with those that devices without scores would have had.
    missing
        The part of `base` that belongs to devices without scores.
    largest
        The largest weight of a score, before rounding.
    rounded
        Whether weights were rounded down (up for losses).
    total
        What the scores that are there weigh, as integers.
    devices
        How many devices a new example may come from.
    """

    rule: str
    weights: Ints | None
    base: Fraction
    missing: Fraction
    largest: Fraction
    rounded: bool
    total: int
    devices: int

    def rank_rule(self, requirement: Requirement, alpha: Fraction, column: int = 0, level: int = 0) -> RankRule:
        """Return the formula of the required rank of one column and level."""
        weighted, swapped = requirement.is_weighted, self.rule != "ordinary" or not requirement.is_weighted
        return RankRule(
            alpha,
            self.largest,
            self.missing,
            requirement.largest_weight(column) if weighted else 1,
            requirement.test_weight(column, level) if weighted else 1,
            requirement.loss_unit or 1,
            swapped,
        )

    def required(
        self,
        requirement: Requirement,
        alpha: Fraction,
        column: int,
        level: int,
        total: int,
        rounding_loss: int,
        mass: int = 0,
    ) -> int:
        """Return the required rank.

        `total` is what the scores of this column weigh, `rounding_loss` how much more their examples might have weighed
        before rounding, `mass` what the examples weigh where that is not the total: with losses. The loss is added, so
        that the rank suffices for all exact weights that round to these.
        """
        rule = self.rank_rule(requirement, alpha, column, level)
        if not requirement.is_weighted:  # the weight of all examples is known exactly, before rounding
            exact = self.base - self.missing
            return rule.required(total if requirement.loss_unit else exact, exact)
        return rule.required(
            total + rule.unit * rounding_loss, (mass if requirement.loss_unit else total) + rounding_loss
        )

    def p_values(
        self, requirement: Requirement, column: int, below: Sequence[int], total: int, rounding_loss: int
    ) -> list[Fraction]:
        """Return for each of `below` the smallest level at which it is the required rank: p-values, at most 1.

        `below` is what the scores strictly below a new one weigh, the others as in `required`.
        """
        whole = total + rounding_loss if requirement.is_weighted else self.base - self.missing
        more, above = self.rank_rule(requirement, Fraction(1, 2), column).p_value_slack
        top, base, one = whole + above, whole + more, Fraction(1)
        return [min(one, (top - rank) / base) for rank in below] if base else [one] * len(below)

    @property
    def smallest_p_value(self) -> Fraction:
        """The smallest p-value that a new score can have."""
        return self.p_values(DEFAULT_REQUIREMENT, 0, [self.total], self.total, 0)[0]

    def grain(self, requirement: Requirement) -> int:
        """Return a lower bound of the weight of every score that all devices know; 1 where scores have own weights."""
        if self.weights is None or requirement.is_weighted or requirement.loss_unit:
            return 1
        return int(min(self.weights[self.weights > 0], default=1))

    def required_share(self, alpha: Fraction, whole: bool = False) -> Fraction:
        """Return which part of all scores must lie at or below the threshold; in `whole` scores, as they are counted.

        Of losses it is one minus the part of the largest possible loss that may be left.
        """
        needed = (1 - alpha) * self.base + self.largest
        # `required` rounds up, so two rules that count scores are compared after rounding: they may need equally many.
        return Fraction(math.ceil(needed) if whole else needed) / max(self.total, 1)

    def rule_at(self, alpha: Fraction) -> str:
        """Return which rule is used at this level."""
        return self.rule


@dataclass(frozen=True)
class _Smaller(Demand):
    """Two rules that count scores: at each level the one that asks for less."""

    other: Demand

    def required(
        self,
        requirement: Requirement,
        alpha: Fraction,
        column: int,
        level: int,
        total: int,
        rounding_loss: int,
        mass: int = 0,
    ) -> int:
        """Return the smaller of both."""
        return min(
            super().required(requirement, alpha, column, level, total, rounding_loss, mass),
            self.other.required(requirement, alpha, column, level, total, rounding_loss, mass),
        )

    def p_values(
        self, requirement: Requirement, column: int, below: Sequence[int], total: int, rounding_loss: int
    ) -> list[Fraction]:
        """Return the smaller of both: at every level one of them is used, and which does not depend on scores."""
        ours = super().p_values(requirement, column, below, total, rounding_loss)
        return [*map(min, ours, self.other.p_values(requirement, column, below, total, rounding_loss))]

    def rule_at(self, alpha: Fraction) -> str:
        """Return which rule asks for less."""
        return self.other.rule if self.other.required_share(alpha) < self.required_share(alpha) else self.rule


# Shares of new examples by how many scores a device holds. n + 1 for `paper`: its scores and one imagined score, which
# stands for the new example.
SHARE_BY_SIZE: dict[str, Callable[[int], int]] = {"sizes": lambda n: n, "paper": lambda n: n + 1, "equal": lambda n: 1}
_Kind = tuple[int, Fraction]  # how many scores a device holds, and its share of new examples


def make_requirement(
    mixture: str | Mapping[Any, Any] = "sizes",
    rank_rule: str = AUTO,
    pac_confidence: Alpha | None = None,
    known: Sequence[str] = CHOSEN_MIXTURES,
    *,
    time_uniform: bool = False,
    mixture_bound: Alpha | None = None,
) -> Requirement:
    """Return the requirement of plain coverage: a mixture by name or as shares by device, a rule, pac_confidence.

    `known` are the mixtures that may be named, `mixture_bound` how far shares may differ from it.
    """
    level = None if pac_confidence is None else check_pac_confidence(pac_confidence)
    if mixture_bound is not None:
        asked = make_requirement(mixture, rank_rule, pac_confidence, known, time_uniform=time_uniform)
        return replace(asked, mixture_bound=check_mixture_bound(mixture_bound))
    if isinstance(mixture, str):
        if mixture not in known and mixture in CHOSEN_MIXTURES:
            raise ValueError(
                f"mixture {mixture!r} is for thresholds of calibrate: here new examples come from one mixture of "
                f"devices, {', '.join(known)}, or shares by device"
            )
        if mixture not in known:
            raise ValueError(unknown_name("mixture", mixture, known))
        return Requirement(mixture, rank_rule, pac_confidence=level, time_uniform=time_uniform)
    if not isinstance(mixture, Mapping):
        raise TypeError(
            f"mixture must be {', '.join(known)}, or a dict with a share for every device, got {type(mixture).__name__}"
        )
    shares = {
        device_name(name): exact_number(share, f"mixture: the share of device {name} must be a number, got {share!r}")
        for name, share in mixture.items()
    }
    for name, share in shares.items():
        if share < 0:
            raise ValueError(f"mixture: the share of device {name} must be at least 0, got {float(share):g}")
    if not any(shares.values()):
        raise ValueError("mixture: some device must have a share above 0, got none")
    return Requirement(GIVEN, rank_rule, shares, pac_confidence=level, time_uniform=time_uniform)


def check_mixture_bound(given: Alpha) -> Fraction:
    """Return by which factor shares of devices may be larger, as the decimal the user wrote; at least 1."""
    words = (
        f"mixture_bound must be a finite number of at least 1, by which factor shares may be larger, got {given!r}; "
        "for every mixture use mixture='any'"
    )
    bound = exact_number(given, words)
    if bound < 1 or isinstance(given, bool):
        raise ValueError(words)
    return bound


def split_requirement(
    options: Mapping[str, Any], otherwise: Requirement = DEFAULT_REQUIREMENT
) -> tuple[Requirement, dict[str, Any]]:
    """Take `mixture` and `rank_rule` out of the options of a method; return the requirement, and the other options."""
    rest = {**options}
    asked = {name: rest.pop(name) for name in ("mixture", "rank_rule", "mixture_bound") if name in rest}
    return make_requirement(**asked) if asked else otherwise, rest


def check_shares(requirement: Requirement, ids: Sequence[str]) -> None:
    """Refuse shares that leave out a device, or name another."""
    if requirement.shares is None:
        return
    if strange := natural_order({*requirement.shares} - {*ids}):
        raise ValueError(f"mixture: a share is given for device {strange[0]!r}, which the network does not have")
    if missing := natural_order({*ids} - {*requirement.shares}):
        raise ValueError(f"mixture: no share is given for device {missing[0]!r} of the network; give 0 if it has none")


def _kinds(
    sizes: Ints, shares: Sequence[Fraction] | None, copies: Ints | None, mixture: str
) -> tuple[list[_Kind], Ints, list[int]]:
    """Return the kinds of devices, which of them each device is, and how many there are of each."""
    many = np.ones(len(sizes), dtype=np.int64) if copies is None else copies
    if mixture in ("exchangeable", *DEVICE_MIXTURES):  # as if one device held everything; its share cancels
        return [(n := int(sizes @ many), Fraction(n + 1))], np.zeros(len(sizes), dtype=np.int64), [1]
    if mixture == GIVEN:
        assert shares is not None
        pairs = [*zip(sizes.tolist(), shares, strict=True)]
        kinds = sorted({*pairs})
        place = {kind: i for i, kind in enumerate(kinds)}
        places = np.array([place[pair] for pair in pairs], dtype=np.int64)
    else:
        distinct, places = np.unique(sizes, return_inverse=True)
        kinds = [(n, Fraction(SHARE_BY_SIZE[mixture](n))) for n in distinct.tolist()]
    counts = np.zeros(len(kinds), dtype=np.int64)
    np.add.at(counts, places, many)
    return kinds, places, counts.tolist()


def _swap(kinds: list[_Kind], places: Ints, counts: list[int], most: int, up: bool) -> Demand:
    """Return the swap rule, in the smallest integers that say it exactly, or in fixed point."""
    base = sum((share * count for (_, share), count in zip(kinds, counts, strict=True)), Fraction(0))
    missing = sum((share * count for (n, share), count in zip(kinds, counts, strict=True) if not n), Fraction(0))
    exact = [share / n if n else Fraction(0) for n, share in kinds]
    some = [v for v, (n, _) in zip(exact, kinds, strict=True) if n]
    largest = max(some, default=Fraction(0))
    devices = sum(count for (_, share), count in zip(kinds, counts, strict=True) if share)
    sizes = [n * count for (n, _), count in zip(kinds, counts, strict=True)]
    if not largest:  # no device of the mixture holds a score, and scores of other devices say nothing about it
        nothing = np.zeros(len(places), dtype=np.int64) if any(sizes) else None
        return Demand("swap", nothing, base, missing, Fraction(1), False, 0, devices)
    factor, rounded = _factor(some, exact, sizes, most)
    # Down for coverage: a score that counts for less can only raise the threshold. `up` is for losses, see `demand`.
    scaled = [v * factor for v in exact]
    whole = [math.ceil(v) if up else math.floor(v) for v in scaled]
    total = sum(w * n for w, n in zip(whole, sizes, strict=True))
    weights = None if {*(w for w, n in zip(whole, sizes, strict=True) if n)} == {1} else np.array(whole)[places]
    return Demand("swap", weights, base * factor, missing * factor, largest * factor, rounded, total, devices)


def _factor(some: list[Fraction], exact: list[Fraction], sizes: list[int], most: int) -> tuple[Fraction, bool]:
    """Return by what to multiply weights, which may add up to `most`, and whether they must then be rounded."""
    common = math.lcm(*(v.denominator for v in some))
    factor = Fraction(common, math.gcd(*(int(v * common) for v in some)))
    weight = sum((v * n for v, n in zip(exact, sizes, strict=True)), Fraction(0))
    if weight * factor <= most:
        return factor, False
    # No small common factor: a power of two, with as many bits as keep the sum exact.
    bits = WEIGHT_BITS
    while bits and weight / max(some) * 2**bits > most:
        bits -= 1
    if weight / max(some) * 2**bits > most:
        raise ValueError(
            f"{sum(sizes):,} scores with weights this fine add up to more than 2^52, beyond which sums are not exact; "
            "give weights in fewer digits"
        )
    return Fraction(2**bits) / max(some), True  # the largest weight is exact, the others lose less than one part


def _ghost(kinds: list[_Kind], counts: list[int]) -> Demand | None:
    """Return the ghost rule where it is proven: shares proportional to n_k + 1, no score of a device without share."""
    asked = [(n, share, count) for (n, share), count in zip(kinds, counts, strict=True) if share]
    if any(n and not share for n, share in kinds) or len({share / (n + 1) for n, share, _ in asked}) != 1:
        return None
    n, devices = sum(n * count for n, _, count in asked), sum(count for _, _, count in asked)
    rule = "ordinary" if devices == 1 else "ghost"
    # n + devices: one imagined score per device, also for devices without scores, which are `missing` as a whole.
    return Demand(rule, None, Fraction(n + devices), Fraction(devices), Fraction(0), False, n, devices)


@dataclass(frozen=True)
class _Binomial(Demand):
    """The smallest rank that independent scores reach below the true quantile with probability at most `failure`."""

    kinds: list[tuple[int, Fraction, int]]
    failure: Fraction

    @classmethod
    def of(cls, kinds: list[_Kind], counts: list[int], failure: Fraction) -> _Binomial:
        """Return the rule for devices of these kinds."""
        asked = [(n, share, count) for (n, share), count in zip(kinds, counts, strict=True)]
        base = sum((share * count for _, share, count in asked), Fraction(0))
        n, devices = sum(n * count for n, _, count in asked), sum(count for _, share, count in asked if share)
        return cls("binomial", None, base, Fraction(0), Fraction(0), False, n, devices, asked, failure)

    def required(
        self,
        requirement: Requirement,
        alpha: Fraction,
        column: int,
        level: int,
        total: int,
        rounding_loss: int,
        mass: int = 0,
    ) -> int:
        """Return the rank; n + 1 where no rank of n scores will do.

        If the threshold fell short, at least as many scores as the rank would lie below the true quantile; the number
        of those is a sum of independent coins with mean at most `mean`, and among all such sums a binomial one has the
        heaviest tail beyond its mean + 1 (Hoeffding 1956).
        """
        n, mean = self.total, self._mean(1 - alpha)
        first = math.ceil(mean + 1)  # Hoeffding's comparison holds from mean + 1 on, so no smaller rank is tried
        if first > n:
            return n + 1
        from scipy.special import betainc

        chance = math.nextafter(float(mean / n), 2.0)
        ranks = np.arange(first, n + 1)
        # Every rounding is towards a larger rank: the chance up to the next float, the tail up by more than the error
        # of the library's function, and the allowed failure down. The incomplete beta function is the chance of at
        # least the rank, exact to 1e-12 for ten million scores; SciPy's bdtrc is wrong by up to 1e-8 there.
        tails = betainc(ranks, n - ranks + 1.0, min(chance, 1.0)) * (1 + 1e-9)
        enough = np.flatnonzero(tails <= float(self.failure) * (1 - 1e-12))
        return int(ranks[enough[0]]) if len(enough) else n + 1

    def _mean(self, level: Fraction) -> Fraction:
        """Return how many scores can lie on average below a threshold that covers less than `level` of the mixture."""
        left, mean = level * self.base, Fraction(0)
        for n, share, count in sorted(self.kinds, key=lambda kind: Fraction(kind[1], max(kind[0], 1))):
            if not n:
                continue
            part = Fraction(1) if not share else min(Fraction(1), left / (share * count))
            mean += part * n * count
            left -= part * share * count
        return mean


@dataclass(frozen=True)
class _TimeUniform(Demand):
    """The rank of independent scores that holds at all looks together but with probability `failure`."""

    failure: Fraction

    @classmethod
    def of(cls, kinds: list[_Kind], counts: list[int], failure: Fraction) -> _TimeUniform:
        """Return the rule for devices of these kinds; refuse numbers of scores that are not in proportion to shares."""
        extra = any(n and not share for n, share in kinds)
        if extra or len({n / share for n, share in kinds if share}) > 1:
            raise ValueError(
                "time_uniform needs numbers of scores in proportion to the shares of the devices among new examples, "
                f"got {', '.join(str(n) for n, _ in kinds)} scores"
            )
        base = sum((share * count for (_, share), count in zip(kinds, counts, strict=True)), Fraction(0))
        n = sum(n * count for (n, _), count in zip(kinds, counts, strict=True))
        devices = sum(count for (_, share), count in zip(kinds, counts, strict=True) if share)
        return cls("time-uniform", None, base, Fraction(0), Fraction(0), False, n, devices, failure)

    def required(
        self,
        requirement: Requirement,
        alpha: Fraction,
        column: int,
        level: int,
        total: int,
        rounding_loss: int,
        mass: int = 0,
    ) -> int:
        """Return the rank; n + 1 where no rank of n scores will do."""
        return time_uniform_rank(self.total, alpha, self.failure)
