"""Guarantee: what a threshold is asked to guarantee, as plain data that files and certificates can hold.

A guarantee names the levels (`alphas`), the mixture of devices that new examples come from, the rule for the required
rank, and the *parts* that each get a threshold of their own: groups, the two sides of an interval, centres. It may
weigh examples (a shift) or bound a mean loss (risk control) instead of coverage. It holds no score. `problems` turns a
guarantee and a table into integer weights and required ranks.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from msgspec import Struct

from conformesh.scores.centres import Centres

LOWER, UPPER = "lower", "upper"  # the two sides of an interval


class Mixture(Struct, frozen=True, forbid_unknown_fields=True):
    """Which devices new examples come from.

    Attributes
    ----------
    kind
        A name of `MIXTURES`.
    shares
        For the kind `given`: how likely a new example comes from each device, up to a common factor.
    bound
        Where many mixtures are covered: shares may be up to this many times those that `kind` says; None: these alone.
    """

    kind: str = "sizes"
    shares: dict[str, Fraction] | None = None
    bound: Fraction | None = None


class Groups(Struct, frozen=True, forbid_unknown_fields=True):
    """Groups of examples; coverage holds within each of them (group-conditional, Mondrian).

    Attributes
    ----------
    names
        The groups, in the order of their thresholds; where they may overlap the last one is `everyone`.
    rule
        How overlapping groups are covered, a name of `GROUP_RULES`; empty where every example is in exactly one group.
    atoms
        The combinations of groups that occur, by name; empty where groups do not overlap.
    column
        The name of the column that the groups were read from, where there is one: ``result["sex=F"]`` then means the
        group ``F`` of the column ``sex``.
    """

    names: tuple[str, ...]
    rule: str = ""
    atoms: dict[str, tuple[str, ...]] = {}
    column: str = ""

    @property
    def has_threshold_per_atom(self) -> bool:
        """Whether thresholds belong to combinations of groups, not to groups."""
        return self.rule in ("atoms", "regression")

    @property
    def part_names(self) -> tuple[str, ...]:
        """What thresholds belong to: combinations of groups, or groups."""
        return tuple(self.atoms) if self.has_threshold_per_atom else self.names


class Sides(Struct, frozen=True, forbid_unknown_fields=True):
    """Intervals with one threshold below and one above.

    Attributes
    ----------
    lower_share
        Which part of alpha the lower side may miss; the upper side has the rest.
    """

    lower_share: Fraction = Fraction(1, 2)

    def levels(self, alpha: Fraction) -> dict[str, Fraction]:
        """Return the miscoverage level of each side."""
        return {LOWER: alpha * self.lower_share, UPPER: alpha * (1 - self.lower_share)}


class Weighting(Struct, frozen=True, forbid_unknown_fields=True):
    """New examples of another distribution than the calibration examples: covariate shift or label shift.

    Attributes
    ----------
    bound
        The largest weight that any example may have: how much likelier it is among new examples, up to a factor.
    test_weights
        The weights of new examples that have a threshold of their own, ascending; the last one is the bound.
    class_weights
        For label shift: the weight of every class, each with a threshold of its own.
    assumption
        What must hold because the weights were estimated; empty where they are known.
    """

    bound: float
    test_weights: tuple[float, ...] = ()
    class_weights: dict[str, float] = {}
    assumption: str = ""

    @property
    def names(self) -> dict[str, float]:
        """What has a threshold of its own, and the weight of the new examples that it is for; empty: one for all."""
        if self.class_weights:
            return self.class_weights
        return {weight_level_name(weight): weight for weight in self.test_weights}


class LossBound(Struct, frozen=True, forbid_unknown_fields=True):
    """Risk control: a mean loss is bounded instead of the miscoverage.

    Attributes
    ----------
    bound
        The largest possible loss.
    loss
        The `Loss` that was named, so that results can build sets; None where only its values are known.
    """

    bound: float = 1.0
    loss: Any = None


class Guarantee(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is asked of a calibration.

    Attributes
    ----------
    alphas
        The levels, as the decimals that were written: tolerated miscoverage, or the largest mean loss (`loss`).
    mixture
        Which devices new examples come from.
    rank_rule
        `swap`, `ghost`, or `auto`: the proven rule that requires the smaller rank.
    pac_confidence
        With which probability over the draw of the calibration scores the coverage holds; None: on average over it.
    time_uniform
        Whether this is the probability that it holds at all looks together, while scores arrive.
    groups, sides, centres
        The parts that have a threshold each; their product where several are given.
    weighting
        The shift of new examples, where there is one.
    loss
        The loss whose mean is bounded, where this is risk control.
    adapt
        How scores adapt to the examples of a device (`scores.adapt`); None: they do not.
    """

    alphas: tuple[Fraction, ...]
    mixture: Mixture = Mixture()
    rank_rule: str = "auto"
    pac_confidence: Fraction | None = None
    time_uniform: bool = False
    groups: Groups | None = None
    sides: Sides | None = None
    centres: Centres | None = None
    weighting: Weighting | None = None
    loss: LossBound | None = None
    adapt: Any = None


def weight_level_name(weight: float) -> str:
    """Return the name of the threshold for new examples of at most this weight.

    >>> weight_level_name(2.0)
    'weight at most 2.0'
    """
    return f"weight at most {weight!r}"
