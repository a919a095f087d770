"""Predictions that depend on scores, or on laws of growth, come within 20 % of runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformesh import TOPOLOGIES, Network
from conformesh.graph.sketch import Growth, Sketch, Tree
from conformesh.graph.topologies import sketch
from conformesh.kernels.ranks import conformal_rank, exact_alpha
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import Way
from conformesh.planning.planner import certainty_of, predict
from conformesh.planning.search import SHAPES, stages_of
from conformesh.planning.sending import Sent
from conformesh.planning.terrain import Terrain
from conformesh.solver import solve_draws

GROWTH = [name for name, topology in TOPOLOGIES.items() if isinstance(topology.sketch, Growth)]
CLOSED = [name for name in TOPOLOGIES if name not in GROWTH]
DRAW = {
    "uniform": lambda rng, many: rng.random(many),
    "normal": lambda rng, many: rng.standard_normal(many),
    "exponential": lambda rng, many: rng.standard_exponential(many),
    "skewed": lambda rng, many: rng.random(many) ** 3,
}


def ledgers(network, scores, alpha, shape, runs, **options):
    """Rounds and bits of several runs, each with scores of its own."""
    rng = np.random.default_rng(20)
    found = []
    for _ in range(runs):
        samples = WeightedScores.of([DRAW[shape](rng, scores) for _ in range(network.devices)])
        cost = solve_draws(samples, network, (alpha,), "e-dcp", **options).cost
        found.append((cost.rounds, cost.bits.mean()))
    return np.array(found, dtype=float)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("width", "scores", "alpha"), [(1, 50, "0.1"), (6, 200, "0.05"), (24, 5, "0.5")])
def test_the_virtual_search_is_distributed_as_the_real_one(shape, width, scores, alpha):
    """On a complete graph by flooding rounds are 2 + stages + snaps + recounts.

    Means of 60 runs and of 200 virtual searches differ by more than 5 standard errors with chance below 1e-5.
    """
    real = ledgers(Network.complete(6), scores, alpha, shape, 60, schedule="count", aggregate="flood", width=width)[
        :, 0
    ]
    n = 6 * scores
    found = stages_of(n, conformal_rank(n, alpha, 6), width, shape)
    virtual = 2 + found.stages + found.snaps + found.recounts
    error = np.sqrt(real.var() / len(real) + virtual.var() / len(virtual))
    assert abs(real.mean() - virtual.mean()) < 5 * error + 1e-9
    assert 0.5 < (real.std() + 0.1) / (virtual.std() + 0.1) < 2


NETWORKS = {
    "torus": (Network.torus(5, 4), 50, "0.1"),
    "chain": (Network.chain(12), 30, "0.1"),
    "star": (Network.star(30), 20, "0.2"),
    "complete": (Network.complete(15), 100, "0.05"),
    "geometric": (Network.of("geometric", 60), 25, "0.1"),
    "random-regular": (Network.of("random-regular", 40), 10, "0.3"),
}


@pytest.mark.parametrize(("place", "shape"), [*zip(NETWORKS, [*SHAPES, "uniform", "normal"], strict=True)])
def test_e_dcp_by_default_costs_within_20_percent_of_the_prediction(place, shape):
    """Of the mean over 30 runs, whether or not it was said what the scores look like."""
    network, scores, alpha = NETWORKS[place]
    real = ledgers(network, scores, alpha, shape, 30)
    terrain = Terrain.of(network, scores)
    for told in (shape, "any"):
        found = predict(Way("e-dcp", "auto"), replace(terrain, shape=told), exact_alpha(alpha), {})
        sent = Sent.of(found.stretches)
        assert certainty_of(found, terrain) == "estimate"
        assert sent.rounds == pytest.approx(real[:, 0].mean(), rel=0.2)
        assert sent.bits == pytest.approx(real[:, 1].mean(), rel=0.2)
        assert found.most is None
        low, high = found.rounds
        assert low <= np.median(real[:, 0]) <= high


def test_the_search_of_many_scores_costs_no_memory():
    found = stages_of(10**12, 9 * 10**11, 4)
    assert 10 < found.stages.mean() < 25


@pytest.mark.parametrize("topology", CLOSED)
@pytest.mark.parametrize("devices", [20, 90, 105, 462])
def test_closed_forms_are_those_of_the_network(topology, devices):
    found, network = sketch(topology, devices), Network.of(topology, devices)
    tree = Tree.of(network)
    for what in ("name", "devices", "edges", "largest_degree", "diameter", "centre_depth"):
        assert getattr(found, what) == getattr(network, what), what
    assert found.spectrum.smallest == pytest.approx(network.spectrum.smallest, rel=1e-12)
    assert found.spectrum.largest == pytest.approx(network.spectrum.largest, rel=1e-12)
    assert found.tree.parents == pytest.approx(tree.parents, abs=0 if not found.laws else 0.15)
    assert found.tree.mean_depth == pytest.approx(tree.mean_depth, rel=1e-12)
    if not found.laws:
        assert found.tree == tree


# The smallest eigenvalue hangs on the longest stretch without a shortcut, or on the smallest degree: with another seed
# the same topology has another (erdos-renyi of 50,000: 3.7 to 6.4 in four draws), and no law can say which.
DIFFERS = ("small-world", "erdos-renyi")


@pytest.mark.parametrize(
    ("topology", "devices"),
    [("geometric", 4000), ("tree", 4000), ("scale-free", 4000)]
    + [pytest.param(name, 50_000, marks=pytest.mark.slow) for name in GROWTH],
)
def test_laws_of_growth_come_within_20_percent(topology, devices):
    network = Network.of(topology, devices)
    found, tree = sketch(topology, devices), Tree.of(network)
    assert found.laws
    assert found.edges == pytest.approx(network.edges, rel=0.02)
    assert found.centre_depth == pytest.approx(network.centre_depth, rel=0.2, abs=1)
    assert found.diameter == pytest.approx(network.diameter, rel=0.2, abs=2)
    assert found.largest_degree == pytest.approx(network.largest_degree, rel=0.2, abs=2)
    assert found.tree.parents == pytest.approx(tree.parents, rel=0.15)
    assert found.tree.mean_depth == pytest.approx(tree.mean_depth, rel=0.2)
    assert found.spectrum.largest == pytest.approx(network.spectrum.largest, rel=0.2)
    factor = found.spectrum.smallest / network.spectrum.smallest
    if topology in DIFFERS:
        assert 0.4 < factor < 2.5
    else:
        assert 0.8 < factor < 1.25


def test_scale_free_with_one_link_grows_like_a_tree():
    network, found = Network.scale_free(4000, links=1), sketch("scale-free", 4000, links=1)
    assert found.edges == network.edges
    assert found.centre_depth == pytest.approx(network.centre_depth, rel=0.2, abs=1)
    assert found.spectrum.smallest == pytest.approx(network.spectrum.smallest, rel=0.25)


def test_a_sketch_refuses_what_no_law_covers():
    with pytest.raises(ValueError, match="leave it out, or plan fewer devices"):
        sketch("geometric", 10**9, radius=0.1)
    with pytest.raises(ValueError, match="did you mean 'torus'"):
        sketch("torsu", 10**9)
    with pytest.raises(ValueError, match="at least 1 device"):
        sketch("chain", 0)
    blind = Sketch("graph.txt", 10**6, 10**6, 4, 30, Tree.like(20, 13.0, 0.5, 4.0), None)
    with pytest.raises(ValueError, match="eigenvalues of a network of one's own"):
        _ = blind.spectrum
