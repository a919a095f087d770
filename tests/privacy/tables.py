"""Small tables of one to four devices, hostile and ordinary, and the settings in which they are calibrated."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from conformesh.privacy.histogram import HistogramPlan, copies_per_device
from tests.privacy.exact import Contribution, Noise, Rule, group_risks, risk, shares_by_size

KINDS = ("sizes", "equal", "given", "groups")
LEVELS = [Fraction(1, 10), Fraction(1, 5), Fraction(2, 7), Fraction(1, 2)]
CELLS, FEW_CELLS = 4, 3  # of mixture sizes; of equal and given, where items are spread in many ways
GROUPS = (range(3), range(3, 6))  # of a table with two groups: three cells each


class Case(NamedTuple):
    """A table, its plan and level, and which noise the devices leave out."""

    kind: str
    table: tuple[tuple[int, ...], ...]
    plan: HistogramPlan
    alpha: Fraction
    noise: Noise

    @property
    def rule(self):
        cost = self.plan.inflation(self.alpha)
        return Rule(self.alpha, self.plan.slack + cost.value, cost.number_needed, self.plan.items)

    @property
    def is_never_accepted(self):
        """Whether the answer is +infinity whatever the totals are: too few items."""
        return self.plan.items is not None and self.alpha * self.plan.items < self.plan.inflation(self.alpha).value

    def worst_ratio(self):
        """Return the exact risk as a part of alpha, of groups the largest of P(miss and in g) / (alpha P(g))."""
        if self.is_never_accepted:
            return 0.0
        if self.kind == "groups":
            risks = group_risks(self.table, GROUPS, self.rule, self.noise)
            return max(missed / float(self.alpha * chance) for missed, chance in risks if chance)
        shares = shares_by_size(self.table) if self.kind == "sizes" else self.plan.pi
        parts = [Contribution()] * len(self.table)
        if self.plan.copies is not None:
            parts = [Contribution(copies, self.plan.fill) for copies in self.plan.copies]
        return risk(self.table, shares, self.rule, self.noise, parts) / float(self.alpha)


def draw_case(rng, kind):
    """Draw a case: devices are empty, short, or full, and leave out noise in some cells."""
    devices = int(rng.integers(1, 5))
    alpha = LEVELS[rng.integers(len(LEVELS))]
    plan = _draw_plan(rng, kind, devices, int(rng.integers(max(devices - 1, 1), devices + 1)))
    cells, honest = plan.cells, plan.honest
    places = sum(map(len, GROUPS)) if kind == "groups" else cells
    is_full = bool(rng.random() < 0.6)  # no device is short
    table = tuple(_draw_device(rng, places, _draw_size(rng, plan, is_full)) for _ in range(devices))
    if sum(map(sum, table)) == devices:  # somebody must hold a score
        table = ((table[0][0] + 1, *table[0][1:]), *table[1:])
    shape = [Fraction(m, honest) for m in range(devices + 1)]
    if rng.random() < 0.5:  # all noise is there
        shape = [plan.shape]
    shapes = tuple(shape[rng.integers(len(shape))] for _ in range(cells - 1))
    cell, number = plan.epsilons
    return Case(kind, table, plan, alpha, Noise(cell, shapes, number, shape[rng.integers(len(shape))]))


def _draw_plan(rng, kind, devices, honest):
    epsilon = float(rng.choice([0.5, 1.0, 2.0, 4.0]))
    if kind in ("sizes", "groups"):
        return HistogramPlan("linear", CELLS if kind == "sizes" else len(GROUPS[0]), epsilon, devices, honest)
    shares = None
    if kind == "given":  # some devices may have no share
        parts = rng.integers(0, 5, devices) + (np.arange(devices) == 0)
        shares = tuple(Fraction(int(part), int(parts.sum())) for part in parts)
    fill = int(rng.choice([2, 8, 16, 24] if devices <= 2 else [1, 2, 4, 8]))
    copies = copies_per_device(shares or [Fraction(1)] * devices, int(rng.integers(1, 4)))
    more = {"mixture": kind, "copies": copies, "fill": fill, "shares": shares}
    return HistogramPlan("linear", FEW_CELLS, 8 * epsilon, devices, honest, **more)


def _draw_size(rng, plan, is_full):
    """Return how many scores a device holds."""
    if plan.fill is None:
        return int(rng.choice([5, 12, 25, 40] if is_full else [0, 1, 2, 5, 12, 25, 40]))
    enough = [plan.fill, plan.fill, plan.fill + 1, 2 * plan.fill]
    return int(rng.choice(enough if is_full else [0, 1, plan.fill - 1, *enough]))


def _draw_device(rng, places, size):
    """Return how many of size + 1 items lie in each place: anyhow, all high, mostly low, or in two places."""
    kind, items = rng.integers(4), size + 1
    if kind == 0:
        return tuple(rng.multinomial(items, rng.dirichlet(np.ones(places))).tolist())
    if kind == 1 and rng.random() < 0.5:
        return (*[0] * (places - 1), items)
    if kind <= 2:
        return tuple(rng.multinomial(items, [0.8, *[0.2 / (places - 1)] * (places - 1)]).tolist())
    two = rng.integers(0, places, 2)
    return tuple(np.bincount(two[(rng.random(items) < 0.15).astype(int)], minlength=places).tolist())
