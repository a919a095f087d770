"""Predictions that need no scores equal the ledger of a run, to the last bit."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

from conformesh import TOPOLOGIES, Network
from conformesh.kernels.ranks import exact_alpha
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import METHODS, Way, ways_of
from conformesh.planning.planner import certainty_of, predict
from conformesh.planning.sending import Sent
from conformesh.planning.terrain import Terrain
from conformesh.protocols.aggregate import AGGREGATORS
from conformesh.protocols.averages import WAYS
from conformesh.protocols.e_dcp import EDCP, PATIENCE
from conformesh.protocols.h_dcp import HDCP, predict_h_dcp
from conformesh.protocols.messages import Max, Min
from conformesh.protocols.predicting import COUNT_NS, Searches
from conformesh.protocols.q_dcp import QDCP, STEP_NS, predict_q_dcp
from conformesh.protocols.schedule_prices import predict_e_dcp
from conformesh.solver import solve_draws


def run(way, network, samples, alpha, options, spent=None):
    chosen = {name: value for name, value in options.items() if name in METHODS[way.method].option_names()}
    chosen |= way.options
    chosen |= {"observer": spent} if spent is not None else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return solve_draws(samples, network, (alpha,), way.method, **chosen)


class Maxima:
    """What maxima and minima cost, which depends on the values: everything else must be as predicted."""

    def __init__(self, devices):
        self.numbers, self.bits = np.zeros(devices), np.zeros(devices)
        self.silent = 0

    def __call__(self, round_, message, answer):
        if isinstance(message, Max | Min) and message.speakers is not None:
            self.numbers[message.places] += message.values[0].size
            self.bits[message.places] += message.values[0].nbytes * 8
            self.silent += len(message.values) - len(message.places)


def assert_equal_to_a_run(way, network, sizes, alpha="0.1", **options):
    """Rounds are equal; numbers and bits, which are means over devices, up to the rounding of a mean."""
    rng = np.random.default_rng(1)
    samples = WeightedScores.of([rng.random(size) for size in sizes])
    terrain = Terrain.of(network, sizes)
    try:
        found = predict(way, terrain, exact_alpha(alpha), options)
    except ValueError as refused:
        with pytest.raises(ValueError, match=re.escape(str(refused))):
            run(way, network, samples, alpha, options)
        return
    maxima = Maxima(network.devices)
    batch = run(way, network, samples, alpha, options, maxima)
    if found.varies:
        assert METHODS[way.method].guarantee != "none"
        if found.most is None:  # no bound is known, which is said
            assert any("no bound" in note for note in found.notes)
            return
        assert batch.cost.rounds <= Sent.of(found.most).rounds
        assert batch.cost.bits.mean() <= Sent.of(found.most).bits * (1 + 1e-12)
        return
    sure, guessed = (Sent.of([one for one in found.stretches if one.expected is kind]) for kind in (False, True))
    assert certainty_of(found, terrain) == ("exact" if guessed.rounds == 0 else "estimate")
    assert sure.rounds + guessed.rounds == batch.cost.rounds
    said = [one for one in found.stretches if one.expected]
    if not said:  # everybody says all: one hop, or no maximum
        maxima.numbers[:] = maxima.bits[:] = 0
    numbers, bits = batch.cost.numbers - maxima.numbers, batch.cost.bits - maxima.bits
    np.testing.assert_allclose(sure.numbers, numbers.mean(), rtol=1e-12)
    np.testing.assert_allclose(sure.bits, bits.mean(), rtol=1e-12)
    np.testing.assert_allclose(sure.most_bits, bits.max(), rtol=1e-12)
    most = sum(one.rounds * one.numbers * one.bits for one in said)
    assert (maxima.bits <= most).all()
    assert guessed.bits <= most
    if np.isfinite(batch.outcome.thresholds).all():
        assert found.guarantee == batch.outcome.certificates[0][0].kind
        assert bool(found.assumption) == bool(batch.outcome.certificates[0][0].assumption)


def test_every_method_and_every_way_to_add_up_is_predicted():
    assert all(method.predict is not None for method in METHODS.values())
    ways = ways_of()
    assert [way.variant for way in ways if way.method == "e-dcp"] == ["auto", "top-k", "window", "count"]
    assert [way.variant for way in ways if way.method == "h-dcp"] == [*WAYS]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_rounds_and_bits_equal_those_of_a_run(topology):
    network = Network.of(topology, 20)
    for way in ways_of():
        assert_equal_to_a_run(way, network, np.full(20, 50))


@pytest.mark.parametrize("devices", [1, 2, 6, 30])
def test_sizes_may_differ(devices):
    rng = np.random.default_rng(devices)
    network = Network.of("geometric", devices)
    sizes = rng.integers(3, 40, devices)
    for way in ways_of():
        assert_equal_to_a_run(way, network, sizes, alpha="0.2")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("h-dcp", {"bins": 17, "wire": 32, "consensus": "gossip"}),
        ("h-dcp", {"bins": 17, "bound": "paper", "consensus": "gossip"}),
        ("h-dcp", {"bins": 9, "weights": "metropolis", "eta": 0.8, "consensus": "gossip"}),
        ("h-dcp", {"bins": 9, "weights": "max-degree", "range": (0.0, 1.0)}),
        ("h-dcp", {"bins": 9, "spectrum": "estimated", "consensus": "chebyshev"}),
        ("h-dcp", {"bins": 9, "rounds": 7, "consensus": "gossip"}),
        ("q-dcp", {"rounds": 40, "s0": "min", "wire": 16}),
        ("q-dcp", {"rounds": 40, "s0": "0.9"}),
        ("q-dcp", {"rounds": 40, "bound": "paper", "averaging": 5, "spectrum": "estimated"}),
        ("average", {"wire": 32, "spectrum": "estimated"}),
        ("average", {"averaging": 3}),
        ("p-dcp", {"epsilon": 1.0}),
        ("p-dcp", {"epsilon": 1.0, "aggregate": "flood", "cells": 20}),
        ("p-dcp", {"epsilon": 1.0, "cells": 128, "coalition": 3}),
        ("wfcp", {"bins": 30, "range": (0.0, 1.0), "noise": 0.001}),
        ("fedcp-qq", {"wire": 16}),
    ],
)
def test_options_change_a_prediction_as_they_change_a_run(method, options):
    for way in ways_of([method], options):
        for network in (Network.torus(3, 4), Network.of("tree", 15)):
            assert_equal_to_a_run(way, network, np.full(network.devices, 30), **options)


SEARCHES = [("auto", {}), ("top-k", {}), ("top-k", {"aggregate": "tree"}), ("window", {}), ("count", {})]
BY_STAGES = [("count", {"aggregate": name}) for name in AGGREGATORS if name != "tree"]


@pytest.mark.parametrize(("schedule", "options"), SEARCHES + BY_STAGES)
@pytest.mark.parametrize("alpha", ["0.001", "0.0001", "0.95"])
def test_a_search_with_nothing_to_search_is_exact(schedule, options, alpha):
    """Rank n (alpha 0.001) is the largest score, rank above n is +inf; rank 1 would be the smallest score."""
    network, sizes = Network.torus(4, 5), np.full(20, 50 if alpha != "0.95" else 1)
    way = Way("e-dcp", schedule)
    found = predict(way, Terrain.of(network, sizes), exact_alpha(alpha), options)
    by_stages = (schedule, options) in BY_STAGES
    assert found.varies == (alpha == "0.95" if by_stages else alpha != "0.0001")
    assert by_stages or alpha != "0.0001" or found.stretches == ()
    assert_equal_to_a_run(way, network, sizes, alpha, **options)


@pytest.mark.parametrize("total", [20 * 50, 20 * 1700])
def test_integers_travel_as_narrow_as_in_a_run(total):
    """By a tree. At 34,000 scores counts take 32 bits, at 1000 they take 16: the first sum takes 64 in any case."""
    network = Network.star(20)
    for largest, width in ((total, 16 if total < 2**15 else 32), (None, 64)):
        found = AGGREGATORS["tree"].sent_for(Terrain.of(network, total // 20), "a stage", 1, largest)
        assert {one.bits for one in found} == {width}


# --- stretch by stretch -----------------------------------------------------------------------------------------------


class Searched(Terrain):
    """Three devices in a row with 20 scores each, where searches take what is given here."""

    found = Searches(np.array([4, 6]), np.array([0, 1]), np.array([1, 1]), np.array([0, 1]))

    def searches(self, rank, width):
        self.asked.append((rank, width))
        return self.found


def three(found=None, sizes=(20, 20, 20)):
    terrain = Searched.of(Network.chain(3), sizes)
    object.__setattr__(terrain, "asked", [])
    if found is not None:
        object.__setattr__(terrain, "found", found)
    return terrain


def lines(stretches):
    return [(one.what, one.rounds, one.numbers, round(one.bits, 9)) for one in stretches]


TENTH = exact_alpha("0.1")
RESULT = [("average the result", 7, 1, 64), ("average the result", 2, 1, 64)]


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, [("average s0", 7, 1, 64), ("average s0", 2, 1, 64), ("ADMM", 50, 1, 64), *RESULT]),
        ({"s0": 0.5}, [("ADMM", 50, 1, 64), *RESULT]),
        ({"s0": "min"}, [("agree on s0", 2, 1, 64), ("ADMM", 50, 1, 64), *RESULT]),
    ],
)
def test_q_dcp_stretch_by_stretch(options, sent):
    for wire, kind in ((64, "assumed"), (32, "none")):
        found = predict_q_dcp(three(), TENTH, QDCP(rounds=50, averaging=7, wire=wire, epsilon0=0.3, **options))
        assert lines(found.stretches) == [(*one[:3], wire) for one in sent]
        assert (found.guarantee, found.uses, found.varies) == (kind, {"hops", "spectrum"}, False)
        assert found.assumption == "|s0 - s*| <= epsilon0 = 0.3, which nobody checks"
        assert [one.device_ns for one in found.stretches if one.what == "ADMM"] == [STEP_NS]


def test_certified_q_dcp_counts_and_in_half_of_all_runs_goes_on():
    """The spread and the runs of a continuation, the count of the estimate, and half of a search of 5 stages."""
    terrain = three()
    options = QDCP(rounds=50, averaging=7, s0=0.5, continuation=4, aggregate="flood")
    found = predict_q_dcp(terrain, TENTH, options)
    runs = [("ADMM", 48, 1, 64), ("average the result", 28, 1, 64), ("average the result", 8, 1, 64)]
    search = [("agree on the ends", 1, 2, 64), ("name the answer", 1, 1, 64), ("a stage", 5, 7 / 6, 24)]
    assert lines(found.stretches) == [
        ("agree on the spread", 2, 2, 64),
        *runs,
        ("count the estimate", 2, 7 / 6, 24),
        *search,
    ]
    assert terrain.asked == [(55, 1)]  # 0.9 of 60 and one, one threshold a stage
    assert (found.guarantee, found.assumption, found.varies) == ("counted", "", True)
    assert found.facts == {"sums_by": "flood"}
    assert found.uses == {"hops", "spectrum"}
    assert found.arrays == AGGREGATORS["flood"].arrays
    few = predict_q_dcp(three(sizes=(1, 1, 1)), TENTH, replace(options, aggregate="tree"))
    assert lines(few.stretches) == [
        ("agree on the spread", 2, 2, 64),
        *runs,
        ("build the tree", 2, 1, 8),
    ]  # +inf: nothing to count
    assert (few.guarantee, few.varies) == ("counted", False)
    assert few.uses == {"hops", "spectrum", "tree", "degree"}


def test_e_dcp_stretch_by_stretch():
    """By flooding, 7 entries by 3 devices in 2 rounds; a search is a mean over draws, and at most 49 stages."""
    terrain = three()
    found = predict_e_dcp(terrain, TENTH, EDCP(schedule="count", aggregate="flood", width=3))
    always = [("agree on the ends", 2, 2, 64)]
    assert lines(found.stretches) == [
        *always,
        ("a stage", 10, 3.5, round(40 / 3, 9)),  # 5 of them on average, 2 rounds each
        ("draw the ends in", 1, 2, 64),  # in every second search
        ("name the answer", 2, 1, 64),
        ("count the answer", 1, 7 / 6, 24),
    ]
    assert terrain.asked == [(55, 3)]
    assert (found.guarantee, found.exact, found.varies) == ("counted", True, True)
    assert found.facts == {"schedule": "count", "over": "sums", "sums_by": "flood", "stage_width": "3"}
    assert (found.uses, found.arrays) == ({"hops"}, AGGREGATORS["flood"].arrays)
    # the two searches take 2 + 8 + 2 and 2 + 12 + 2 + 2 + 2 rounds; of these the quantiles 0.05 and 0.95
    assert found.rounds == pytest.approx((12 + 0.05 * 8, 12 + 0.95 * 8))
    longest = PATIENCE + 32 + 1  # 64 bits of keys, two a stage
    assert lines(found.most) == [
        *always,
        ("a stage", 2 * longest, 3.5, round(40 / 3, 9)),
        ("draw the ends in", 2 * (longest // 2 + 1), 2, 64),
        ("name the answer", 2, 1, 64),
        ("count the answer", 2, 7 / 6, 24),
    ]


def test_e_dcp_is_certain_where_the_scores_are_known_or_too_few():
    known = Searches(np.array([4]), np.array([0]), np.array([1]), np.array([0]), known=True)
    found = predict_e_dcp(three(known), TENTH, EDCP(schedule="count", aggregate="flood", width=1))
    assert [one.what for one in found.stretches] == ["agree on the ends", "a stage", "name the answer"]
    assert (found.varies, found.rounds, found.most) == (False, None, None)
    few = predict_e_dcp(three(sizes=(1, 1, 1)), TENTH, EDCP(aggregate="tree", width=2))
    assert few.stretches == ()  # everybody knows the sizes
    assert (few.guarantee, few.exact, few.facts) == ("counted", True, {"schedule": "window", "over": "tree"})
    assert few.uses == AGGREGATORS["tree"].uses


def test_h_dcp_stretch_by_stretch():
    found = predict_h_dcp(three(), TENTH, HDCP(rounds=9, bins=40, wire=32))
    assert lines(found.stretches) == [("agree on a range", 2, 2, 32), ("average the histogram", 9, 40, 32)]
    assert found.nanoseconds == 3 * 40 * COUNT_NS
    for way in ("gossip", "chebyshev"):
        given = predict_h_dcp(three(), TENTH, HDCP(rounds=9, bins=40, range=(0.0, 1.0), consensus=way))
        assert lines(given.stretches) == [("average the histogram", 9, 40, 64)]
        assert given.stretches[0].number_ns == WAYS[way].number_ns
        assert (given.arrays, given.uses) == (WAYS[way].arrays, WAYS[way].uses)
    estimated = predict_h_dcp(three(), TENTH, HDCP(spectrum="estimated"))
    assert (estimated.guarantee, "spectral gap estimated" in estimated.assumption) == ("assumed", True)


@pytest.mark.parametrize(
    ("options", "sizes", "kind", "loose"),
    [
        ({}, (20, 20, 20), "counted", False),  # as many rounds as make the counts exact
        ({"rounding": False}, (20, 20, 20), "bounded", False),
        ({"rounds": 1}, (20, 20, 20), "bounded", True),
        ({"rounds": 1}, (1, 1, 1), "counted", False),  # +inf, whatever the bound
        ({"rounds": 0}, (200, 200, 200), "bounded", True),
    ],
)
def test_h_dcp_says_whether_its_bound_says_anything(options, sizes, kind, loose):
    found = predict_h_dcp(three(sizes=sizes), TENTH, HDCP(**options))
    assert (found.guarantee, found.useful, bool(found.notes)) == (kind, not loose, loose)
    assert found.assumption == ""
