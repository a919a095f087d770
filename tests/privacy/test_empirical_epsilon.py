"""Empirical epsilon: what one neighbour sees of runs on neighbouring data, with lower confidence bounds.

Clopper and Pearson at 99 % for 20 events together (union bound), chosen on one half of the runs and judged on the
other. Where a mechanism attains its epsilon, as this one does, a bound above epsilon is a false alarm with a chance of
at most 1 % in each test; seeds are fixed. Power: with 50,000 runs a side an epsilon of 1.15 is found, with 3,000 one of
1.5. The planted leaks have 2 or more.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="masks need the extra mesh")

from conformesh.kernels.ranks import DEFAULT_REQUIREMENT
from conformesh.privacy.histogram import HistogramPlan
from conformesh.protocols import p_dcp
from conformesh.protocols.masks import MaskedSums, Masks
from tests.campaigns import SEED
from tests.privacy.empirical import lower_bound
from tests.privacy.neighbour import Attempt, Neighbour

EPSILON = 1.0
FEW, MANY = 3_000, 50_000  # runs a side
ALL = (0, 1, 2, 3)
OPTIONS = {"epsilon": EPSILON, "cells": 4, "grid": "linear", "range": (0.0, 1.0)}
EQUAL = {**OPTIONS, "cells": 5, "fill": 4}  # without the number of scores: four cells, so four numbers as well
STORIES = {
    "one attempt": (Attempt(ALL),),
    "a device lost before the reveal": (Attempt(ALL, "masked"), Attempt((0, 1, 2))),
    "all again before the reveal": (Attempt(ALL, "masked"), Attempt(ALL)),
    "a loss after the reveal": (Attempt(ALL), Attempt(ALL)),
}
SCORES = ([0.2, 0.9], [0.1, 0.4, 0.6], [0.7], [0.05, 0.3])
NEIGHBOURS = {  # one score more or less on one device
    "one score less": ([0.2, 0.9], [0.1, 0.4], [0.7], [0.05, 0.3]),
    "an empty device": ([0.2, 0.9], [0.1, 0.4, 0.6], [], [0.05, 0.3]),
    "one beyond the grid more": ([0.2, 0.9], [0.1, 0.4, 0.6], [0.7, np.inf], [0.05, 0.3]),
}
LONG = pytest.mark.slow
QUICK = dict(
    zip(STORIES, ["one score less", "an empty device", "one beyond the grid more", "one score less"], strict=True)
)
CASES = [(QUICK[story], story, FEW) for story in STORIES]
CASES += [pytest.param(data, story, MANY, marks=LONG) for data in NEIGHBOURS for story in STORIES]


@pytest.fixture
def bound(tmp_path):
    """Return the lower bound on epsilon for SCORES and neighbouring data."""
    folders = (tmp_path / f"{number}" for number in itertools.count())

    def found(neighbour, other, runs):
        views = [
            neighbour.views(scores, runs, f"{SEED} {side}", next(folders))
            for side, scores in enumerate((SCORES, other))
        ]
        return lower_bound(*views)

    return found


@pytest.mark.parametrize(("data", "story", "runs"), CASES)
def test_no_event_of_a_neighbours_view_exceeds_epsilon(bound, data, story, runs):
    found = bound(Neighbour(STORIES[story], OPTIONS), NEIGHBOURS[data], runs)
    assert found.epsilon <= EPSILON, found


@pytest.mark.parametrize(
    ("data", "runs"), [("one score less", FEW), *(pytest.param(data, MANY, marks=LONG) for data in NEIGHBOURS)]
)
def test_no_event_exceeds_epsilon_where_devices_are_padded(bound, data, runs):
    """Mixture of equal devices: all copies of a score move from a cell to the padding, or back."""
    found = bound(
        Neighbour(STORIES["one attempt"], EQUAL, replace(DEFAULT_REQUIREMENT, mixture="equal")), NEIGHBOURS[data], runs
    )
    assert found.epsilon <= EPSILON, found


@pytest.mark.parametrize(("runs", "least"), [(FEW, 0.5), pytest.param(MANY, 0.8, marks=LONG)])
def test_the_bounds_come_near_to_epsilon(bound, runs, least):
    """A bound far below would mean that the events are badly chosen, and that leaks could hide."""
    found = bound(Neighbour(STORIES["one attempt"], OPTIONS), NEIGHBOURS["one score less"], runs)
    assert found.epsilon > least, found


# --- planted leaks ----------------------------------------------------------------------------------------------------


def no_noise(monkeypatch):
    """All devices leave out their noise."""
    monkeypatch.setattr(
        p_dcp, "_draw_noise", lambda plan, trials, stream: np.zeros(trials * plan.numbers, dtype=np.int64)
    )


def single_noise(monkeypatch):
    """Noise as if a score changed one cell by its copies, and the padding not at all."""
    monkeypatch.setattr(HistogramPlan, "change", property(lambda plan: plan.slack))


def floor(monkeypatch):
    """A device without scores refuses, and everybody is told."""
    count = p_dcp._local_counts

    def refusing(plan, block, samples, secrets):
        if not samples.sizes.all():
            raise ValueError("fewer scores than the floor")
        return count(plan, block, samples, secrets)

    monkeypatch.setattr(p_dcp, "_local_counts", refusing)


def no_self_mask(monkeypatch):
    """The total is readable before anybody has charged its account."""
    masks = Masks.self_masks
    monkeypatch.setattr(Masks, "self_masks", lambda self, numbers: 0 * masks(self, numbers))


def charge_after_reveal(monkeypatch):
    """A device that is lost in between has nothing on its account."""
    release = MaskedSums.release

    def late(self, counts, noise, charge):
        totals = yield from release(self, counts, noise, lambda: None)
        charge()
        return totals

    monkeypatch.setattr(MaskedSums, "release", late)


def sparse_masks(monkeypatch):
    """Device 1 shares masks with the hub alone."""
    agree = p_dcp.agree_on_masks

    def sparse(block, secrets, claim):
        agreed = yield from agree(block, secrets, claim)
        row = int(block.rows[0])
        others = [other for other in range(block.devices) if other != row]
        kept = [
            pair
            for other, pair in zip(others, agreed.masks.pairs, strict=True)
            if 1 not in (row, other) or 0 in (row, other)
        ]
        return agreed._replace(masks=replace(agreed.masks, pairs=tuple(kept)))

    monkeypatch.setattr(p_dcp, "agree_on_masks", sparse)


def noise_of_a_larger_set(monkeypatch):
    """Shares as if more devices added them than do."""
    plan_of = p_dcp.PDCP.plan

    def larger(self, devices, requirement, ids=None):
        plan = plan_of(self, devices, requirement, ids)
        return replace(plan, devices=2 * plan.devices, honest=2 * plan.honest, copies=None)

    monkeypatch.setattr(p_dcp.PDCP, "plan", larger)


PLANTED = {  # leak: options, story, neighbouring data
    no_noise: (OPTIONS, "one attempt", "one score less"),
    single_noise: (EQUAL, "one attempt", "one score less"),
    floor: (OPTIONS, "one attempt", "an empty device"),
    no_self_mask: (OPTIONS, "all again before the reveal", "one score less"),
    charge_after_reveal: (OPTIONS, "a loss after the reveal", "one score less"),
    sparse_masks: (OPTIONS, "one attempt", "one score less"),
    noise_of_a_larger_set: (OPTIONS, "one attempt", "one score less"),
}


@pytest.mark.parametrize("runs", [FEW, pytest.param(MANY, marks=LONG)])
@pytest.mark.parametrize("leak", PLANTED)
def test_a_planted_leak_exceeds_epsilon(bound, monkeypatch, leak, runs):
    options, story, data = PLANTED[leak]
    leak(monkeypatch)
    requirement = DEFAULT_REQUIREMENT if options is OPTIONS else replace(DEFAULT_REQUIREMENT, mixture="equal")
    found = bound(Neighbour(STORIES[story], options, requirement), NEIGHBOURS[data], runs)
    assert found.epsilon > EPSILON, found
