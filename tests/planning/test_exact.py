"""Predictions that need no scores equal the ledger of a run, to the last bit."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from conformesh import TOPOLOGIES, Network, Samples, calibrate_batch
from conformesh.methods import METHODS, Way, ways_of
from conformesh.planning.planner import certainty_of, predict
from conformesh.planning.sending import Sent
from conformesh.planning.terrain import Terrain
from conformesh.promises import exact_alpha
from conformesh.protocols.aggregate import AGGREGATORS


def run(way, network, samples, alpha, options):
    chosen = {name: value for name, value in options.items() if name in METHODS[way.method].option_names()}
    chosen |= way.options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return calibrate_batch(samples, network, (alpha,), way.method, **chosen)


def assert_equal_to_a_run(way, network, sizes, alpha="0.1", **options):
    """Rounds are equal; numbers and bits, which are means over devices, up to the rounding of a mean."""
    rng = np.random.default_rng(1)
    samples = Samples.of([rng.random(size) for size in sizes])
    terrain = Terrain.of(network, sizes)
    try:
        found = predict(way, terrain, exact_alpha(alpha), options)
    except ValueError as refused:
        with pytest.raises(ValueError, match=re.escape(str(refused))):
            run(way, network, samples, alpha, options)
        return
    batch = run(way, network, samples, alpha, options)
    if found.varies:
        assert METHODS[way.method].guarantee != "none"
        assert batch.cost.rounds <= Sent.of(found.most).rounds
        assert batch.cost.bits.mean() <= Sent.of(found.most).bits * (1 + 1e-12)
        return
    sent = Sent.of(found.stretches)
    assert certainty_of(found, terrain) == "exact"
    assert sent.rounds == batch.cost.rounds
    np.testing.assert_allclose(sent.numbers, batch.cost.numbers.mean(), rtol=1e-12)
    np.testing.assert_allclose(sent.bits, batch.cost.bits.mean(), rtol=1e-12)
    np.testing.assert_allclose(sent.most_bits, batch.cost.bits.max(), rtol=1e-12)
    if np.isfinite(batch.outcome.thresholds).all():
        assert found.guarantee == batch.outcome.certificates[0][0].kind
        assert bool(found.assumption) == bool(batch.outcome.certificates[0][0].assumption)


def test_every_method_and_every_way_to_add_up_is_predicted():
    assert all(method.predict is not None for method in METHODS.values())
    ways = ways_of()
    assert [way.variant for way in ways if way.method == "e-dcp"] == ["auto", *AGGREGATORS]
    assert [way.variant for way in ways if way.method == "h-dcp"] == ["gossip", "chebyshev", "finite-time"]


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
        ("wfcp", {"bins": 30, "range": (0.0, 1.0), "noise": 0.001}),
        ("fedcp-qq", {"wire": 16}),
    ],
)
def test_options_change_a_prediction_as_they_change_a_run(method, options):
    for way in ways_of([method], options):
        for network in (Network.torus(3, 4), Network.of("tree", 15)):
            assert_equal_to_a_run(way, network, np.full(network.devices, 30), **options)


@pytest.mark.parametrize("aggregate", ["auto", *AGGREGATORS])
@pytest.mark.parametrize("alpha", ["0.02", "0.001", "0.95"])
def test_a_search_with_nothing_to_search_is_exact(aggregate, alpha):
    """Rank n (alpha 0.02) is the largest score, rank above n is +inf; rank 1 would be the smallest score."""
    network, sizes = Network.torus(4, 5), np.full(20, 50 if alpha != "0.95" else 1)
    way = Way("e-dcp", aggregate)
    found = predict(way, Terrain.of(network, sizes), exact_alpha(alpha), {})
    assert not found.varies or alpha == "0.95"
    assert_equal_to_a_run(way, network, sizes, alpha)


@pytest.mark.parametrize("total", [20 * 50, 20 * 1700])
def test_integers_travel_as_narrow_as_in_a_run(total):
    """At 34,000 scores counts take 32 bits, at 1000 they take 16: the first sum takes 64 in any case."""
    network = Network.star(20)
    for aggregate in ("tree", "flood"):
        found = predict(Way("e-dcp", aggregate), Terrain.of(network, total // 20), exact_alpha("0.1"), {})
        widths = {one.bits for one in found.stretches if one.what == "a stage"}
        assert widths == {16 if total < 2**15 else 32}
