"""Empirical epsilon: what one neighbour sees of runs on neighbouring data, with lower confidence bounds.

Clopper and Pearson at 99 % for 20 events together (union bound), chosen on one half of the runs and judged on the
other. Where a mechanism attains its epsilon, as this one nearly does, a bound above epsilon is a false alarm with a
chance of at most 1 %; seeds are fixed. Power: with 50,000 runs a side an epsilon of 1.15 is found, with 6,000 one of
1.4; the planted leaks have 2 or more.
"""


import numpy as np
import pytest
from conformesh.privacy.histogram import HistogramPlan

from tests.campaigns import SEED
from tests.privacy.empirical import lower_bound
from tests.privacy.neighbour import Attempt, Neighbour

EPSILON = 1.0
FEW, MANY = 6_000, 50_000  # runs a side
ROWS = (0, 1, 2, 3)
SIZES = HistogramPlan("linear", 4, EPSILON, 4, 3, (0.0, 1.0))
EQUAL = HistogramPlan("linear", 4, EPSILON, 4, 3, (0.0, 1.0), mixture="equal", fill=4)
SCORES = ([0.2, 0.9], [0.1, 0.4, 0.6], [0.7], [0.05, 0.3])
# What the neighbour has: one score less, in the last cell or another one, so that a device is left empty; a NaN less;
# and, of a mixture of equal devices, one of a device that is padded. Names are those of the tests.
NEIGHBOURS = {
    "one score less": ([0.2, 0.9], [0.1, 0.4], [0.7], [0.05, 0.3]),
    "an empty device": ([0.2, 0.9], [0.1, 0.4, 0.6], [], [0.05, 0.3]),
    "a NaN more": ([0.2, 0.9], [0.1, 0.4, 0.6], [0.7, np.nan], [0.05, 0.3]),
}
STORIES = {
    "one attempt": (Attempt(ROWS),),
    "a device lost before the reveal": (Attempt(ROWS, "masked"), Attempt((0, 1, 2))),
    "all again before the reveal": (Attempt(ROWS, "masked"), Attempt(ROWS)),
    "a loss after the reveal": (Attempt(ROWS), Attempt(ROWS)),
}


def bound(neighbour, other, runs, seed=1):
    """Return the lower bound on epsilon for one pair of neighbouring data sets."""
    one, two = (
        neighbour.views([np.array(own, dtype=float) for own in scores], runs, np.random.default_rng([seed, SEED, side]))
        for side, scores in enumerate((SCORES, other))
    )
    return lower_bound(one, two)


@pytest.mark.parametrize("runs", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("data", NEIGHBOURS)
def test_no_event_of_a_neighbours_view_exceeds_epsilon(data, story, runs):
    found = bound(Neighbour(SIZES, STORIES[story]), NEIGHBOURS[data], runs)
    assert found.epsilon <= EPSILON, found


@pytest.mark.parametrize("runs", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("data", NEIGHBOURS)
def test_no_event_exceeds_epsilon_where_devices_are_padded(data, runs):
    """Mixture of equal devices: each of four copies of the score moves from a cell to the padding, or back."""
    found = bound(Neighbour(EQUAL, STORIES["one attempt"]), NEIGHBOURS[data], runs)
    assert found.epsilon <= EPSILON, found


PLANTED = {  # leak: plan, story, neighbouring data
    "no noise": (SIZES, "one attempt", "one score less"),
    "single noise": (EQUAL, "one attempt", "one score less"),
    "floor": (SIZES, "one attempt", "an empty device"),
    "no self-mask": (SIZES, "all again before the reveal", "one score less"),
    "charge after reveal": (SIZES, "a loss after the reveal", "one score less"),
    "sparse masks": (SIZES, "one attempt", "one score less"),
    "noise of a larger set": (SIZES, "one attempt", "one score less"),
}


@pytest.mark.parametrize("leak", PLANTED)
def test_a_planted_leak_exceeds_epsilon(leak):
    plan, story, data = PLANTED[leak]
    found = bound(Neighbour(plan, STORIES[story], frozenset({leak})), NEIGHBOURS[data], FEW)
    assert found.epsilon > EPSILON, found
