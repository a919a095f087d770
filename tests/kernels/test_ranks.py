"""One formula for every required rank: compared with a formula of its own for each rule, and p-values with its inverse.

The reference has the rules as they are written in docs/guarantees.md, one after the other, in fractions.
"""

import math
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from conformesh.kernels.ranks import LARGEST_SUM, LOSS_UNITS, RankRule, Requirement, _ghost, _kinds, _swap
from tests.campaigns import LONG

KINDS = ("swap", "ghost", "ordinary", "parts", "parts-ordinary", "losses", "losses-ghost")
MIXTURES = ("sizes", "paper", "equal", "given")


class Case(NamedTuple):
    """What is required of devices, and what their scores weigh."""

    kind: str
    requirement: Requirement
    demand: object
    alpha: Fraction
    column: int
    level: int
    total: int
    lost: int


def reference_rank(case):
    """Return the required rank by the formula of the case's own rule."""
    requirement, demand, alpha = case.requirement, case.demand, case.alpha
    if requirement.loss_unit:
        room = alpha * demand.base - demand.missing - demand.largest
        return case.total - math.floor(requirement.loss_unit * room)
    if not requirement.is_weighted:
        return math.ceil((1 - alpha) * demand.base + demand.largest)
    largest = requirement.largest_weights[case.column]
    test = largest if requirement.test_weights is None else requirement.test_weights[case.column][case.level]
    swapped = 0 if demand.rule == "ordinary" else alpha * largest  # what the score that is exchanged may weigh
    slack = demand.largest * ((1 - alpha) * test + swapped) + (1 - alpha) * demand.missing * largest
    return math.ceil((1 - alpha) * (case.total + case.lost) + slack)


def reference_p_value(case, below):
    """Return the p-value of a new score above scores that weigh `below`, by a formula of its own."""
    requirement, demand = case.requirement, case.demand
    base, slack = demand.base, demand.largest
    if requirement.is_weighted:
        largest = requirement.largest_weights[case.column]
        base, slack = case.total + case.lost + demand.missing * largest, demand.largest * largest
        if demand.rule == "ordinary":  # nothing is exchanged: the new score counts among all
            base, slack = base + slack, Fraction(0)
    return min(Fraction(1), (base + slack - below) / base) if base else Fraction(1)


def draw(rng, kind):
    """Draw devices, a requirement and a level; some devices hold nothing."""
    devices = 1 if "ordinary" in kind else int(rng.integers(1, 7))
    held = rng.integers(0, 40, devices) * (rng.random(devices) < 0.85)
    mixture = "paper" if "ghost" in kind else MIXTURES[rng.integers(4)]
    shares = [Fraction(int(share)) for share in rng.integers(0, 5, devices)]
    shares[0] += 1  # somebody must be asked about
    kinds, places, counts = _kinds(held, shares, None, mixture)
    weighted, losses = kind.startswith("parts"), kind.startswith("losses")
    largest = tuple(rng.integers(1, 2**12, 3).tolist()) if weighted and rng.random() < 0.7 else (1, 1, 1)
    tests = None
    if weighted and rng.random() < 0.5:
        tests = tuple(tuple(rng.integers(0, most + 1, 2).tolist()) for most in largest)
    requirement = Requirement(
        mixture if weighted else "sizes",
        "auto",
        is_weighted=weighted,
        largest_weights=largest,
        test_weights=tests,
        loss_unit=LOSS_UNITS if losses else 0,
    )
    room = 2 ** int(rng.integers(8, 40)) if rng.random() < 0.3 else LARGEST_SUM  # little room: weights are rounded
    demand = _swap(kinds, places, counts, max(room, 64 * int(held.sum())), losses)
    if "ghost" in kind or kind == "ordinary":
        demand = _ghost(*(_kinds(held, None, None, "paper")[i] for i in (0, 2)))
    elif kind == "parts-ordinary":
        demand = replace(demand, rule="ordinary")
    most = max(demand.total, 1) * max(largest) * max(requirement.loss_unit, 1)
    return Case(
        kind,
        requirement,
        demand,
        Fraction(int(rng.integers(1, 400)), 400),
        int(rng.integers(3)),
        int(rng.integers(2)),
        int(rng.integers(most + 1)),
        int(rng.integers(100)) if weighted else 0,
    )


def check_ranks(number, seed):
    """Compare so many cases, a part of them of each kind; return how many p-values were inverted."""
    rng, inverted = np.random.default_rng(seed), 0
    for place in range(number):
        case = draw(rng, KINDS[place % len(KINDS)])
        requirement, demand, rest = case.requirement, case.demand, case[4:]
        got = demand.required(requirement, case.alpha, *rest)
        assert got == reference_rank(case), case
        if requirement.loss_unit:
            continue
        below = int(rng.integers(2 * max(case.total, 1)))
        [p] = demand.p_values(requirement, case.column, [below], case.total, case.lost)
        assert p == reference_p_value(case, below), case
        if requirement.test_weights is None and 0 < p < 1:
            # the smallest level at which a score above `below` is missed: where the required rank is at most `below`
            inverted += 1
            assert demand.required(requirement, p, *rest) <= below, case
            assert demand.required(requirement, p * (1 - Fraction(1, 10**12)), *rest) > below, case
    return inverted


def test_one_formula_is_every_rank_and_p_values_are_its_inverse():
    assert check_ranks(3_000, 20260101) > 400


@pytest.mark.slow
def test_one_formula_is_every_rank_in_very_many_cases():
    """30,000 cases (times CONFORMESH_LONG)."""
    assert check_ranks(30_000 * LONG, 7) > 4_000


def planted(**wrong):
    """Return the formula with some of its fields changed."""
    right = RankRule.required

    def required(self, total, mass):
        return right(self._replace(**{name: change(self) for name, change in wrong.items()}), total, mass)

    return required


@pytest.mark.parametrize(
    "wrong",
    [
        {"heaviest": lambda rule: Fraction(0)},
        {"missing": lambda rule: Fraction(0)},
        {"largest": lambda rule: rule.test},
        {"test": lambda rule: rule.largest},
        {"swapped": lambda rule: True},
        {"swapped": lambda rule: False},
        {"unit": lambda rule: 1},
    ],
)
def test_a_wrong_formula_is_noticed(wrong, monkeypatch):
    monkeypatch.setattr(RankRule, "required", planted(**wrong))
    with pytest.raises(AssertionError):
        check_ranks(700, 3)


def test_losses_with_parts_require_what_coverage_of_the_same_examples_does():
    """A loss of 1 that falls to 0 at once is miscoverage: the same threshold, with weights, rounding and losses."""
    rng = np.random.default_rng(5)
    for _ in range(500 * LONG):
        case = draw(rng, "parts")
        cover = case.requirement
        lose = replace(cover, loss_unit=LOSS_UNITS)
        rest = case.alpha, case.column, case.level
        rank = case.demand.required(cover, *rest, case.total, case.lost)
        units = case.demand.required(lose, *rest, LOSS_UNITS * case.total, case.lost, case.total)
        assert math.ceil(Fraction(units, LOSS_UNITS)) == rank
