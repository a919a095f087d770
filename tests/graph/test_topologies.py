"""Topologies: connected, of the promised shape, repeatable from their seed, and clear when they cannot be built."""

import math

import networkx as nx
import numpy as np
import pytest

from conformesh.graph.network import Network
from conformesh.graph.topologies import TOPOLOGIES, _chosen, _pair_of
from tests.graph.test_network import assert_is_network, edges_of

RANDOM = [name for name, entry in TOPOLOGIES.items() if entry.random]
SIZES = [1, 2, 3, 4, 6, 8, 20, 36, 100]


def as_edges(graph):
    return {frozenset(map(str, edge)) for edge in graph.edges()}


@pytest.mark.parametrize("devices", SIZES)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_topology_at_every_size(name, devices):
    """Connectivity is checked by the constructor itself; a torus or grid below 4 says what it needs."""
    if name in ("torus", "grid") and devices < 4:
        with pytest.raises(ValueError, match="nearest: 4"):
            Network.of(name, devices)
        return
    network = Network.of(name, devices, seed=1)
    assert network.devices == devices
    assert network.name.startswith(name)
    assert network.ids == tuple(map(str, range(devices)))
    assert_is_network(network)


@pytest.mark.parametrize("devices", [n for n in SIZES if n >= 4])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_diameters_in_closed_form_are_right(name, devices):
    network = Network.of(name, devices)
    assert network.diameter == nx.diameter(network.to_networkx())


@pytest.mark.parametrize(
    ("network", "graph"),
    [
        (Network.chain(7), nx.path_graph(7)),
        (Network.cycle(7), nx.cycle_graph(7)),
        (Network.star(7), nx.star_graph(6)),
        (Network.complete(7), nx.complete_graph(7)),
        (Network.tree(15, branching=2), nx.balanced_tree(2, 3)),
        (Network.small_world(20, rewire=0), nx.watts_strogatz_graph(20, 4, 0)),
    ],
)
def test_same_edges_as_networkx(network, graph):
    assert edges_of(network) == as_edges(graph)


@pytest.mark.parametrize("sides", [(5, 4), (2, 2), (4, 2), (2, 5), (3, 3)])
def test_torus_and_grid_equal_networkx(sides):
    for build, periodic in ((Network.torus, True), (Network.grid, False)):
        network = build(*sides)
        lattice = nx.grid_2d_graph(*sides, periodic=periodic)
        rows = nx.relabel_nodes(lattice, {(r, c): r * sides[1] + c for r, c in lattice})
        assert edges_of(network) == as_edges(nx.Graph([e for e in rows.edges() if e[0] != e[1]]))


def test_torus_is_as_square_as_possible():
    assert Network.torus(20).name == Network.torus(5, 4).name == "torus 5x4"
    assert Network.torus(8).name == "torus 4x2"
    assert Network.of("torus", 20, rows=10).name == Network.of("torus", 20, columns=2).name == "torus 10x2"
    assert Network.torus(rows=3, columns=7).name == "torus 3x7"
    assert Network.torus(20).degree.tolist() == [4] * 20
    assert Network.torus(8).degree.tolist() == [3] * 8
    assert Network.grid(1, 5).diameter == 4


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: Network.torus(23), ValueError, "nearest: 22 or 24; or choose chain"),
        (lambda: Network.grid(5), ValueError, "nearest: 4 or 6"),
        (lambda: Network.torus(1, 5), ValueError, "sides of at least 2, got 1x5"),
        (lambda: Network.of("torus", 20, rows=3), ValueError, "a side of 3 does not divide 20"),
        (lambda: Network.of("torus", 20, rows=5, columns=5), ValueError, r"rows \* columns = 20, got 5x5"),
        (Network.torus, TypeError, "number of devices, or rows and columns"),
        (lambda: Network.torus(2, 3, 4), TypeError, "number of devices, or rows and columns"),
        (lambda: Network.chain(0), ValueError, "at least 1 device, got 0"),
        (lambda: Network.chain(2.5), TypeError, "must be an integer, got 2.5"),
        (lambda: Network.complete(100_000), ValueError, "more than fit in memory"),
        (lambda: Network.erdos_renyi(20, p=0), ValueError, "got 0"),
        (lambda: Network.erdos_renyi(50, p=0.01), ValueError, "none of 100 draws was connected; raise p"),
        (lambda: Network.geometric(20, radius=0.05), ValueError, "raise the radius"),
        (lambda: Network.geometric(20, radius=float("nan")), ValueError, "got nan"),
        (lambda: Network.random_regular(5, degree=3), ValueError, "even product, got degree=3, devices=5"),
        (lambda: Network.random_regular(4, degree=4), ValueError, "degree < devices"),
        (lambda: Network.random_regular(40, degree=1), ValueError, "degree 3 or more"),
        (lambda: Network.small_world(20, neighbours=3), ValueError, "even number of neighbours"),
        (lambda: Network.small_world(4, neighbours=4), ValueError, "got 4 of 4"),
        (lambda: Network.small_world(20, rewire=1.5), ValueError, "got 1.5"),
        (lambda: Network.scale_free(5, links=0), ValueError, "1 <= links < devices, got links=0, devices=5"),
        (lambda: Network.scale_free(5, links=5), ValueError, "got links=5, devices=5"),
        (lambda: Network.tree(5, branching=0), ValueError, "at least 1, got 0"),
        (lambda: Network.of("torsu", 20), ValueError, "unknown topology 'torsu', did you mean 'torus'"),
        (lambda: Network.of("xyz", 20), ValueError, "unknown topology 'xyz'; known: chain, cycle"),
        (lambda: Network.of("torus", 20, p=1), ValueError, "has no option 'p'; its options: rows, columns"),
        (lambda: Network.of("chain", 20, p=1), ValueError, "its options: none"),
        (lambda: Network.rngi(3), AttributeError, "no attribute 'rngi'; topologies: chain"),
    ],
)
def test_what_cannot_be_built_says_why(call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize("name", RANDOM)
def test_a_seed_gives_one_graph(name):
    one, again, other = (Network.of(name, 60, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(one.indices, again.indices)
    assert edges_of(one) != edges_of(other)


def test_constructors_are_listed():
    assert {"torus", "erdos_renyi", "from_pairs"} <= {*dir(Network)}
    assert all(entry.summary for entry in TOPOLOGIES.values())


def test_erdos_renyi_has_the_right_number_of_edges():
    """False alarm below 1e-6: each count lies within five standard deviations of its binomial mean."""
    for devices, p in ((100, 0.5), (1000, 2 * math.log(1000) / 1000)):
        pairs = devices * (devices - 1) / 2
        network = Network.erdos_renyi(devices, seed=9)
        assert abs(network.edges - p * pairs) < 5 * math.sqrt(pairs * p * (1 - p))
    assert Network.erdos_renyi(10, p=1).edges == 45


def test_numbers_are_chosen_independently():
    """False alarm below 1e-5: each of 40 numbers is chosen 4000 p times give or take five standard deviations."""
    rng = np.random.default_rng(1)
    for p in (0.03, 0.5, 0.9):
        counts = np.bincount(np.concatenate([_chosen(rng, 40, p) for _ in range(4000)]), minlength=40)
        assert np.abs(counts - 4000 * p).max() < 5 * math.sqrt(4000 * p * (1 - p))


def test_pairs_are_numbered_without_gaps():
    assert _pair_of(np.arange(6)).tolist() == [[1, 0], [2, 0], [2, 1], [3, 0], [3, 1], [3, 2]]
    huge = 94_906_267  # where the square root of 8 n starts to round
    first = huge * (huge - 1) // 2
    assert _pair_of(np.array([first - 1, first, first + huge - 1])).tolist() == [
        [huge - 1, huge - 2],
        [huge, 0],
        [huge, huge - 1],
    ]


@pytest.mark.parametrize(
    ("devices", "degree"), [(5, 4), (6, 4), (9, 4), (10, 3), (12, 7), (200, 4), (200, 9), (2000, 20)]
)
def test_random_regular_has_equal_degrees(devices, degree):
    assert (Network.random_regular(devices, degree=degree, seed=2).degree == degree).all()


def test_geometric_joins_exactly_what_is_near():
    network = Network.geometric(200, seed=4)
    radius = 1.5 * math.sqrt(math.log(200) / (math.pi * 200))
    gap = np.linalg.norm(network.coordinates[:, None] - network.coordinates[None], axis=2)
    assert np.array_equal(network.adjacency().toarray() > 0, (gap <= radius) & ~np.eye(200, dtype=bool))


def test_small_world_keeps_the_number_of_edges():
    ring = edges_of(Network.small_world(500, rewire=0))
    for rewire in (0.1, 1.0):
        network = Network.small_world(500, rewire=rewire, seed=3)
        assert network.edges == 1000
        moved = len(edges_of(network) - ring) / 1000  # binomial but for the rare edge that lands on an old place
        assert abs(moved - rewire) < 0.06


def test_trees_have_one_edge_less_than_devices():
    assert Network.tree(50, seed=1).edges == 49
    assert Network.tree(50, branching=3).degree.max() == 4
    assert Network.tree(5, branching=1).diameter == 4


@pytest.mark.parametrize(("devices", "links"), [(2, 1), (7, 6), (50, 1), (300, 2), (300, 7)])
def test_scale_free_brings_so_many_different_links(devices, links):
    """Whoever comes joins `links` different earlier devices; the first ones are only joined."""
    network = Network.scale_free(devices, links=links, seed=2)
    assert network.edges == links * (devices - links)
    earlier = [sum(int(j) < k for j in network.indices[slice(*network.indptr[k : k + 2])]) for k in range(devices)]
    assert earlier == [0] * links + [links] * (devices - links)


def test_scale_free_chooses_by_degree():
    """Of the first three, with degrees 1, 1 and 2, the fourth device leaves out the last in one of six draws.

    Its first draw is device 0 or 1 with chance 1/4 each, the second then the other one with 1 of the 3 other ends.
    False alarm below 1e-6: within five standard deviations of 4000 draws.
    """
    left_out = sum(2 not in Network.scale_free(4, seed=seed).neighbours(3) for seed in range(4000))
    assert abs(left_out - 4000 / 6) < 5 * math.sqrt(4000 * (1 / 6) * (5 / 6))


def test_scale_free_has_a_few_devices_that_know_many():
    """In the limit 6 / (d (d + 1)) of the devices have d or more neighbours; within five standard deviations."""
    K = 20_000
    degree = Network.scale_free(K, seed=4).degree
    for d in (3, 4, 8, 16, 32):
        share = 6 / (d * (d + 1))
        assert abs((degree >= d).sum() - K * share) < 5 * math.sqrt(K * share * (1 - share))


@pytest.mark.parametrize("name", [name for name in TOPOLOGIES if name != "complete"])
def test_large_networks_are_built_from_arrays(name):
    network = Network.of(name, 20_000)
    assert network.devices == 20_000
    assert network.diameter >= 1
