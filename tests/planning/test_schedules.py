"""What is planned of every schedule of E-DCP comes within 20 % of the mean of runs, by runs or by a law."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from conformesh import Network
from conformesh.graph.sketch import walked
from conformesh.graph.topologies import sketch
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import Way
from conformesh.planning.planner import plan, predict
from conformesh.planning.search import SHAPES
from conformesh.planning.sending import Sent
from conformesh.planning.terrain import terrain_of
from conformesh.protocols.e_dcp import EDCP
from conformesh.protocols.predicting import Stretch
from conformesh.protocols.schedule_prices import BY_LAW, _bits_in_window, _differing
from conformesh.solver import solve_draws
from tests.planning.test_planner import SAME

WAYS = {
    "top-k flood": {"schedule": "top-k", "aggregate": "flood"},
    "top-k tree": {"schedule": "top-k", "aggregate": "tree"},
    "window": {"schedule": "window"},
    "count": {"schedule": "count"},
    **{f"prefer {one}": {"schedule": "auto", "prefer": one} for one in ("rounds", "numbers", "bits", "balanced")},
}
OVER_TREE = [way for way in WAYS if way not in ("top-k flood", "prefer rounds")]
DRAW = {"normal": np.random.Generator.normal, "uniform": np.random.Generator.random}
DRAW["lognormal"] = np.random.Generator.lognormal


def runs(network, each, alpha, way, shape, draws):
    """Mean rounds, numbers and bits of runs, each on scores of its own."""
    rng, sizes = np.random.default_rng(90), np.full(network.devices, each)
    costs = []
    for _ in range(draws):
        scores = WeightedScores.from_flat(DRAW[shape](rng, size=network.devices * each), sizes)
        cost = solve_draws(scores, network, (alpha,), "e-dcp", **WAYS[way]).cost
        costs.append((cost.rounds, cost.numbers_per_device, cost.bits_per_device))
    return np.mean(costs, axis=0)


def planned(terrain, alpha, way):
    found = predict(Way("e-dcp", WAYS[way]["schedule"]), terrain, Fraction(alpha), WAYS[way])
    sent = Sent.of(found.stretches)
    return np.array([sent.rounds, sent.numbers, sent.bits]), found


def assert_close(terrain, network, each, alpha, way, draws, shapes=DRAW):
    """Of top-k the bits depend on what scores look like; there the planner is told, where it knows the shape."""
    for shape in shapes:
        told = shape if way.startswith("top-k") and shape in SHAPES else "any"
        found, _ = planned(replace(terrain, shape=told), alpha, way)
        real = runs(network, each, alpha, way, shape, draws)
        assert found == pytest.approx(real, rel=0.2), (way, shape)
        if way.startswith("top-k"):  # no score changes how many rounds or numbers these take, but for a few of a flood
            assert found[0] == real[0]
            assert found[1] == pytest.approx(real[1], rel=1e-9 if way == "top-k tree" else 0.05)


@pytest.mark.parametrize("way", WAYS)
def test_few_scores_on_few_devices(way):
    assert_close(terrain_of("torus", 20, 50), Network.torus(5, 4), 50, "0.1", way, 6)


@pytest.mark.parametrize("way", OVER_TREE)
def test_many_scores_on_few_devices_by_a_law(way):
    """Beyond 20,000 scores nothing is run."""
    terrain = terrain_of("star", 20, 1500)
    assert terrain.runs(Fraction("0.1"), EDCP(**WAYS[way])) is None
    assert_close(terrain, Network.star(20), 1500, "0.1", way, 6)


@pytest.mark.parametrize("alpha", ["0.05", "0.3"])
def test_a_flood_by_a_law(alpha):
    """Normal scores of both signs are written as they are, 64 bits each; others are not."""
    network = Network.complete(20)
    assert_close(terrain_of("complete", 20, 60), network, 60, alpha, "top-k flood", 2, ["uniform", "normal"])


@pytest.mark.parametrize("way", ["window", "count"])
def test_a_network_that_is_only_sketched(way):
    """And of the same network, built, by the same law."""
    network, drawn = Network.torus(50, 40), terrain_of("torus", 2000, 50, build=False)
    assert drawn.built is None
    assert_close(drawn, network, 50, "0.1", way, 1, ["normal"])
    assert planned(drawn, "0.1", way)[0] == pytest.approx(
        planned(terrain_of("torus", 2000, 50), "0.1", way)[0], rel=0.1
    )


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["torus", "geometric", "random-regular", "scale-free"])
@pytest.mark.parametrize("alpha", ["0.05", "0.1", "0.3"])
def test_a_thousand_devices(topology, alpha):
    network = Network.of(topology, 1000)
    for way in OVER_TREE:
        assert_close(terrain_of(topology, 1000, 50), network, 50, alpha, way, 2)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["torus", "geometric"])
def test_twenty_thousand_devices_built_and_sketched(topology):
    network = Network.of(topology, 20_000)
    for build in (True, False):
        for way in ("window", "count", "prefer numbers"):
            assert_close(
                terrain_of(topology, 20_000, 50, build=build), network, 50, "0.1", way, 1, ["uniform", "normal"]
            )


@pytest.mark.parametrize("topology", ["torus", "grid", "chain", "cycle"])
@pytest.mark.parametrize("devices", [90, 105, 462, 1000])
def test_branches_of_a_sketch_are_those_of_the_network(topology, devices):
    tree = walked(Network.of(topology, devices))
    assert sorted(sketch(topology, devices).tree.branches) == pytest.approx(sorted(tree.branches))
    assert sum(tree.branches) == pytest.approx(1 - 1 / devices)


def test_bits_of_a_list_are_those_of_its_keys():
    """Means over lists of Poisson length, of keys without order in a window of 2^40, as they are written."""
    from conformesh.kernels.replies import put_keys

    rng, span, low = np.random.default_rng(4), 40, 5 << 58
    for mean in (0.3, 3.0, 80.0):
        written = []
        for many in rng.poisson(mean, 2000 if mean < 50 else 50).tolist():
            keys = np.sort(low + 1 + rng.integers(0, 1 << span, many)).tolist()
            at = put_keys(np.zeros(64 + 16 * many, np.uint8), 0, keys, many, low, low + (1 << span), 1)
            written.append(at + (many > 0))  # and a bit: each is there once
        assert _bits_in_window(mean, span) == pytest.approx(np.mean(written), rel=0.05, abs=1)


def test_it_says_where_a_law_is_too_low():
    """Sketches of few scores are biased, and the windows of many devices miss: 40 % more rounds."""
    few, enough = terrain_of("torus", 2000, 5, build=False), terrain_of("torus", 2000, 50, build=False)
    notes = [planned(terrain, "0.1", "window")[1].notes for terrain in (few, enough)]
    assert BY_LAW in notes[0]
    assert BY_LAW in notes[1]
    assert any("40% more rounds than this" in note for note in notes[0])
    assert not any("fewer than 50 scores" in note for note in notes[1])
    [row] = plan(few, alpha="0.1", methods=["e-dcp"], options={"schedule": "window"}, speed=SAME).rows
    assert row.notes == notes[0]
    real = runs(Network.torus(50, 40), 5, "0.1", "window", "normal", 1)
    assert row.likely[0] <= real[0] <= row.likely[1]


def test_it_says_where_shapes_differ():
    def sending(rounds, bits):
        return (Stretch("replies", rounds, 1, bits, spoken=1),)

    mean = sending(10, 100)
    assert _differing([sending(10, 90), sending(10, 110)], mean) == ()
    [note] = _differing([sending(10, 70), sending(10, 130)], mean)
    assert note.startswith("bytes depend on what scores look like, 70% to 130% of this mean")
    [note] = _differing([sending(7, 100), sending(13, 100)], mean)
    assert note.startswith("rounds depend on")
