"""The fleet's drift alarm: what it assumes of the devices' streams, and how much sooner than a lone device it is."""

from itertools import pairwise
from math import log

import numpy as np
import pytest

from conformesh.online.alarm import FLEET_RULES, Alarm, FleetAlarm, fleet_evidence
from tests.online.test_alarm import SHIFT, assert_same, median_delay
from tests.statistics import assert_coverage, power_against


def raised_at(rule, fleets, rng, window=500):
    """The steps at which fleets raise the alarm, 0 if they do not, from scores of shape (fleets, steps, devices)."""
    fleet = FleetAlarm(Alarm(window=window), rule)
    starts = (fleet.begin(scores.shape[1]) for scores in fleets)
    return np.array(
        [fleet.follow(s, one, rng.random(one.shape)).raised_at for s, one in zip(starts, fleets, strict=True)]
    )


# What may be put together


def test_the_average_of_devices_evidence_has_no_promise():
    """Two devices double or lose all, twice, each by fair coins of its own. The average reaches 2 in 3 of 4 cases."""
    first = [[1, 2, 4], [1, 2, 0], [1, 0, 0], [1, 0, 0]]  # four equally likely cases, three times
    second = [[1, 0, 0], [1, 2, 0], [1, 2, 4], [1, 0, 0]]
    for evidence in (first, second):  # each is a martingale, as has_label by its own device
        assert_is_martingale(evidence)
    average = (np.array(first) + second) / 2
    assert np.mean(average.max(axis=1) >= 2) == 0.75  # Ville's inequality would allow 0.5
    largest = np.maximum(np.max(first, axis=1), np.max(second, axis=1)) / 2
    assert np.mean(largest >= 2) <= 0.5


def assert_is_martingale(cases):
    """Given what a device has has_label, the mean of what comes next is what it has."""
    for now in range(2):
        for has_label in {tuple(case[: now + 1]) for case in cases}:
            assert np.mean([case[now + 1] for case in cases if tuple(case[: now + 1]) == has_label]) == has_label[-1]


def copies(rng, fleets, steps, devices):
    """All devices see the same stream: they depend on each other as much as can be."""
    return np.repeat(rng.random((fleets, steps, 1)), devices, axis=2)


def independent(rng, fleets, steps, devices):
    return rng.random((fleets, steps, devices))


VALID = [("largest", copies), ("largest", independent), ("product", independent)]


@pytest.mark.parametrize(("rule", "draw"), VALID)
def test_false_alarms_of_a_fleet_are_rare(rule, draw):
    """False alarm < 1e-6. The product of copies is caught (below)."""
    rng = np.random.default_rng(11)
    raised = np.count_nonzero(raised_at(rule, draw(rng, 30, 200, 8), rng, window=100))
    assert_coverage(30 - raised, 30, target=0.95)


def test_the_product_of_streams_that_depend_on_each_other_raises_false_alarms():
    rng = np.random.default_rng(12)
    raised = np.count_nonzero(raised_at("product", copies(rng, 30, 200, 8), rng, window=100))
    with pytest.raises(AssertionError, match="chance"):
        assert_coverage(30 - raised, 30, target=0.95)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "draw"), VALID)
def test_false_alarms_of_many_fleets_are_rare(rule, draw):
    """False alarm < 1e-6. Power above 0.99 against a chance of 0.15."""
    assert power_against(500, 0.95, 0.85) > 0.99
    rng = np.random.default_rng(13)
    raised = np.count_nonzero(raised_at(rule, draw(rng, 500, 300, 8), rng, window=100))
    assert_coverage(500 - raised, 500, target=0.95)


# How soon


@pytest.mark.parametrize("rule", FLEET_RULES)
def test_a_fleet_is_sooner_than_a_lone_device(rule):
    """Coverage falls from .9 to .8 at all of 20 devices after 300 steps."""
    rng, change = np.random.default_rng(14), 300
    fleets = rng.normal(size=(12, 600, 20))
    fleets[:, change:] += SHIFT
    lone = Alarm(window=500)
    streams = fleets[:, :, :10].transpose(1, 0, 2).reshape(600, -1)
    alone = lone.follow(lone.begin(120), streams, rng.random(streams.shape)).raised_at
    fleet = raised_at(rule, fleets[:, : change + 100], rng)
    assert median_delay(fleet, change) < 0.9 * median_delay(alone, change)


def test_a_device_that_watches_the_mean_score_of_each_step_needs_no_independence():
    """The rows of a fleet that steps together: exchangeable while nothing drifts, however devices depend in a step."""
    rng, change, alarm = np.random.default_rng(15), 300, Alarm(window=500)
    common = rng.normal(size=(400, 100, 1))  # a weather that all share
    rows = (0.3 * common + rng.normal(size=(400, 100, 20))).mean(axis=2)
    usual = alarm.follow(alarm.begin(100), rows, rng.random(rows.shape))
    assert_coverage(100 - np.count_nonzero(usual.raised_at), 100, target=0.95)
    rows[change:] += SHIFT
    drifted = alarm.follow(alarm.begin(100), rows, rng.random(rows.shape))
    assert median_delay(drifted.raised_at, change) < 50


# The state machine


@pytest.mark.parametrize("rule", FLEET_RULES)
def test_a_fleet_knows_what_its_devices_know_and_steps_add_up(rule):
    rng, alarm = np.random.default_rng(16), Alarm(window=9)
    fleet = FleetAlarm(alarm, rule)
    scores, u, has_label = rng.random((40, 3)), rng.random((40, 3)), rng.random((40, 3)) < 0.6
    has_label[7] = False  # nobody's label arrived: no step
    state = fleet.follow(fleet.begin(3), scores, u, has_label)
    assert_same(state.devices, alarm.follow(alarm.begin(3), scores, u, has_label))
    assert state.steps == has_label.any(axis=1).sum()
    parts = fleet.begin(3)
    for a, b in pairwise([0, 11, 12, 40]):
        parts = fleet.follow(parts, scores[a:b], u[a:b], has_label[a:b])
    assert_same(parts.devices, state.devices)
    np.testing.assert_array_equal(parts.capital, state.capital)
    assert (parts.steps, parts.largest, parts.raised_at) == (state.steps, state.largest, state.raised_at)


def test_a_fleet_of_one_is_its_device():
    """Both ways to put evidence together then say what the device says."""
    rng = np.random.default_rng(17)
    scores, u = rng.normal(size=(200, 1)), rng.random((200, 1))
    scores[100:] += 2
    for rule in FLEET_RULES:
        state = (fleet := FleetAlarm(Alarm(window=150), rule)).follow(fleet.begin(1), scores, u)
        assert state.raised_at == state.devices.raised_at[0] > 100
        assert state.largest == pytest.approx(state.devices.largest[0])


def test_evidence_of_devices_heard_of_is_never_too_much():
    values = np.array([0.5, 6.0, 2.0])
    assert fleet_evidence(values, 3) == 6 - log(3)
    assert fleet_evidence(values[:1], 3) < fleet_evidence(values, 3)
    assert fleet_evidence([], 3) == -log(3)


def test_mistakes_are_refused():
    with pytest.raises(ValueError, match="unknown rule of a fleet 'produkt', did you mean 'product'"):
        FleetAlarm(rule="produkt")
    with pytest.raises(ValueError, match="a fleet of 2 devices has no evidence of 3"):
        fleet_evidence([1.0, 2.0, 3.0], 2)
