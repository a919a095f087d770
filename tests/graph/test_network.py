"""Networks: what goes in comes out, rows are in the promised order, and wrong graphs are refused in words."""

import pickle
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh.common.names import natural_order
from conformesh.graph.network import Network
from conformesh.graph.topologies import TOPOLOGIES
from tests.strategies import networks


def edges_of(network):
    return {frozenset((network.ids[a], network.ids[b])) for a, b in network._pairs()}


def assert_is_network(network):
    """Symmetric, sorted compressed rows without self-loops, each edge once in each direction."""
    assert network.indptr.dtype == np.int64
    assert network.indices.dtype == np.int32
    assert len(network.indptr) == network.devices + 1
    directed = [(k, int(j)) for k in range(network.devices) for j in network.neighbours(k)]
    assert directed == sorted(set(directed))
    assert {(b, a) for a, b in directed} == set(directed)
    assert all(a != b for a, b in directed)
    assert network.edges * 2 == len(directed) == network.degree.sum()
    assert [(int(k), int(j)) for k, j in zip(network.receivers, network.indices, strict=True)] == directed


@given(networks())
def test_pairs_become_sorted_symmetric_rows(network):
    assert_is_network(network)


def test_repeated_and_reversed_edges_count_once():
    network = Network.from_pairs(3, [(0, 1), (1, 0), (0, 1), (2, 1)])
    assert_is_network(network)
    assert network.edges == 2


def test_matrices_are_those_of_networkx(topology):
    graph = topology.to_networkx()
    adjacency = nx.to_numpy_array(graph, nodelist=topology.ids)
    assert np.array_equal(topology.adjacency().toarray(), adjacency)
    assert np.array_equal(topology.laplacian().toarray(), np.diag(adjacency.sum(axis=1)) - adjacency)


def test_a_network_cannot_be_changed():
    network = Network.chain(3)
    with pytest.raises(AttributeError):
        network.name = "other"
    for array in (network.indptr, network.indices, network.degree, network.receivers, network.coordinates):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_one_device_is_a_network():
    network = Network.from_pairs(["alone"], [])
    assert (network.devices, network.edges, network.diameter) == (1, 0, 0)
    assert network.adjacency().toarray().tolist() == [[0.0]]


def test_a_network_survives_pickling(topology):
    topology.spectrum  # noqa: B018 - kept values travel along
    other = pickle.loads(pickle.dumps(topology))
    assert other.ids == topology.ids
    assert np.array_equal(other.indices, topology.indices)
    assert other.spectrum == topology.spectrum


# --- names and order ----------------------------------------------------------------------------------------------


def test_rows_are_in_natural_order():
    assert natural_order(["10", "9", "-1"]) == ("-1", "9", "10")
    assert natural_order(["device-10", "device-2", "a"]) == ("a", "device-2", "device-10")
    assert natural_order(["10", "9", "x"]) == ("9", "10", "x")
    assert natural_order(["a1", "a01"]) == ("a01", "a1")


@given(st.lists(st.text(max_size=6), unique=True))
def test_natural_order_takes_any_names(names):
    assert sorted(natural_order(names)) == sorted(names)


def test_the_callers_order_is_kept():
    network = Network.from_pairs(["b", 7, "a"], [("a", 7), ("b", "a")])
    assert network.ids == ("b", "7", "a")
    assert network.row(7) == 1
    assert network.neighbours(2).tolist() == [0, 1]


def test_relabelling_keeps_the_rows():
    network = Network.torus(5, 4)
    other = network.relabelled([f"d{k}" for k in reversed(range(20))])
    assert other.ids[0] == "d19"
    assert np.array_equal(other.indices, network.indices)
    assert other.spectrum == network.spectrum
    with pytest.raises(ValueError, match="needs 20 names, got 2"):
        network.relabelled(["a", "b"])


@pytest.mark.parametrize(
    ("devices", "pairs", "says"),
    [
        (0, [], "at least 1 device, got 0"),
        ([], [], "at least 1 device"),
        (["a", "b", "a"], [], "'a' is there 2 times"),
        ([1, "1"], [], "'1' is there 2 times"),
        (3, [(0, 1), (1, 3)], r"edge \(1, 3\) names a device outside 0..2"),
        (["a", "b"], [("a", "c")], "names 'c', which is none of the devices {a, b}"),
        (2, [(0, 1), (1, 1)], "device '1' has an edge to itself"),
        (5, [(0, 1), (1, 2), (3, 4)], r"2 components: {0, 1, 2} and {3, 4}; add an edge between them"),
        (2, [], r"2 components: \{0\} and \{1\}"),
        (9, [(0, 1), (1, 2)], r"7 components: \{0, 1, 2\}, \{3\}, \{4\} and 4 more"),
        (20, [(k, k + 1) for k in range(18)], r"\{0, 1, 2, 3, 4, ... 18\} \(19 devices\) and \{19\}"),
    ],
)
def test_wrong_graphs_are_refused(devices, pairs, says):
    with pytest.raises(ValueError, match=says):
        Network.from_pairs(devices, pairs)


def test_wrong_kinds_are_refused():
    with pytest.raises(TypeError, match="pairs of integers"):
        Network.from_pairs(2, [(0.0, 1.0)])
    with pytest.raises(TypeError, match="single text 'ab'"):
        Network.from_pairs("ab", [("a", "b")])
    with pytest.raises(ValueError, match=r"no device 'x' in chain 2; it has {0, 1}"):
        Network.chain(2).row("x")


# --- NetworkX -----------------------------------------------------------------------------------------------------


def test_networkx_round_trip(topology):
    other = Network.from_networkx(topology.to_networkx())
    assert other.ids == topology.ids
    assert other.name == topology.name
    assert np.array_equal(other.indices, topology.indices)
    if topology.coordinates is not None:
        assert np.array_equal(other.coordinates, topology.coordinates)


def test_networkx_nodes_of_any_kind():
    network = Network.from_networkx(nx.grid_2d_graph(2, 11), name="rows")
    assert network.ids[:3] == ("(0, 0)", "(0, 1)", "(0, 2)")
    assert network.ids[-1] == "(1, 10)"
    assert network.name == "rows"


def test_networkx_multigraph_collapses():
    assert Network.from_networkx(nx.MultiGraph([(0, 1), (0, 1), (1, 2)])).edges == 2


def test_networkx_self_loops_are_refused_or_dropped():
    graph = nx.Graph([(0, 1), (1, 1)])
    with pytest.raises(ValueError, match="self_loops='drop'"):
        Network.from_networkx(graph)
    assert Network.from_networkx(graph, self_loops="drop").edges == 1


def test_networkx_wrong_graphs_are_refused():
    with pytest.raises(ValueError, match=r"to_undirected\(\)"):
        Network.from_networkx(nx.DiGraph([(0, 1)]))
    with pytest.raises(ValueError, match="same name once written as text"):
        Network.from_networkx(nx.Graph([(1, "1")]))
    with pytest.raises(ValueError, match="at least 1 device"):
        Network.from_networkx(nx.Graph())


# --- edge files ---------------------------------------------------------------------------------------------------


def test_edge_file_round_trip(topology, tmp_path):
    topology.to_edges(tmp_path / "graph.txt")
    other = Network.from_edges(tmp_path / "graph.txt")
    assert other.name == "graph.txt"
    assert other.ids == topology.ids
    assert np.array_equal(other.indices, topology.indices)


def test_edge_files_may_look_different(tmp_path):
    path = tmp_path / "graph.csv"
    path.write_text("\ufeff# all links\n\n b10, b2 # cable\nb2\tb1\nb1 b2\n", encoding="utf-8")
    network = Network.from_edges(path)
    assert network.ids == ("b1", "b2", "b10")
    assert edges_of(network) == {frozenset(("b1", "b2")), frozenset(("b2", "b10"))}
    assert Network.from_edges(path, devices=["b10", "b1", "b2"]).ids == ("b10", "b1", "b2")


def test_a_single_device_needs_no_edges(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text("# nobody else\n")
    assert Network.from_edges(path, devices=["a"]).devices == 1
    with pytest.raises(ValueError, match="no edges found"):
        Network.from_edges(path)


@pytest.mark.parametrize(
    ("text", "devices", "says"),
    [
        (b"a b\nc\n", None, r"graph.txt, line 2: an edge needs two device names, got 1: 'c'"),
        (b"a b\n\na b 0.5\n", None, r"graph.txt, line 3: an edge needs two device names, got 3"),
        (b"a b\nb b\n", None, r"graph.txt, line 2: device 'b' has an edge to itself"),
        (b"a b\nb c\n", ["a", "b"], r"graph.txt, line 2: 'c' is none of the devices {a, b}"),
        (b"a b\n", ["a", "b", "c"], r"graph.txt: no edge for {c}"),
        (b"a b\nc d\n", None, r"2 components: {a, b} and {c, d}"),
        (b"a b\n\xff\xfe\n", None, r"graph.txt: an edge list must be UTF-8 text, byte 4 is not"),
        (None, None, r"graph.txt: cannot read the edge list: No such file"),
    ],
)
def test_wrong_edge_files_are_refused(text, devices, says, tmp_path):
    path = tmp_path / "graph.txt"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ValueError, match=says):
        Network.from_edges(path, devices)


def test_names_that_an_edge_file_cannot_hold(tmp_path):
    with pytest.raises(ValueError, match="'a b'"):
        Network.from_pairs(["a b", "c"], [("a b", "c")]).to_edges(tmp_path / "graph.txt")


# --- what follows from the graph ----------------------------------------------------------------------------------


@given(networks())
def test_diameter_equals_networkx(network):
    assert network.diameter == nx.diameter(network.to_networkx())
    assert network.diameter_is_exact


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_large_diameters_are_never_too_small(name, monkeypatch):
    network = Network.of(name, 300, seed=2)
    exact = nx.diameter(network.to_networkx())
    monkeypatch.setattr("conformesh.graph.network.EXACT_DIAMETER_UP_TO", 10)
    bare = Network.from_pairs(300, network._pairs())
    assert exact <= bare.diameter <= 2 * exact
    assert not bare.diameter_is_exact or bare.diameter == exact
    if bare.edges == 299:
        assert bare.diameter_is_exact


@given(networks(least=2))
def test_sweeps_bound_the_diameter(network):
    from conformesh.graph.network import _by_sweeps

    found = _by_sweeps(network)
    assert network.diameter <= found.diameter <= 2 * network.diameter
    assert not found.exact or found.diameter == network.diameter
    assert found.centre_depth == nx.eccentricity(network.to_networkx(), network.ids[found.centre])


def assert_is_the_centre(network):
    """The smallest row of those that networkx finds in the centre, and how far it is from the farthest device."""
    graph = network.to_networkx()
    assert network.centre == min(map(network.row, nx.center(graph)))
    assert network.centre_depth == nx.radius(graph)


@settings(max_examples=300)
@given(networks(most=30))
def test_theorem_the_root_has_least_eccentricity(network):
    assert_is_the_centre(network)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("devices", [4, 6, 9, 20, 35, 64, 150])
def test_the_centre_of_every_topology(name, devices):
    """In closed form, by walks from everywhere, and by two walks on trees."""
    for seed in range(3 if TOPOLOGIES[name].random else 1):
        network = Network.of(name, devices, seed=seed)
        assert_is_the_centre(network)
        assert_is_the_centre(Network.from_pairs(devices, network._pairs()))


@pytest.mark.parametrize(("name", "most"), [("chain", 3), ("cycle", 3), ("star", 3), ("complete", 3)])
def test_the_centre_of_the_smallest_networks(name, most):
    for devices in range(1, most + 1):
        assert_is_the_centre(Network.of(name, devices))


@pytest.mark.parametrize("size", [(2, 2), (2, 5), (5, 2), (3, 4), (4, 3), (1, 6), (6, 1), (5, 5)])
def test_the_centre_of_a_rectangle(size):
    assert_is_the_centre(Network.grid(*size))
    if min(size) > 1:
        assert_is_the_centre(Network.torus(*size))


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_large_networks_have_a_root_near_the_centre(name, seed, monkeypatch):
    """A handful of walks: what is far from alike is met exactly, random graphs of many short ways to a hop."""
    network = Network.of(name, 500, seed=seed)
    least = nx.radius(network.to_networkx())
    monkeypatch.setattr("conformesh.graph.network.EXACT_DIAMETER_UP_TO", 10)
    bare = Network.from_pairs(500, network._pairs())
    assert bare.centre_depth == nx.eccentricity(bare.to_networkx(), bare.ids[bare.centre])
    slack = 1 if name in ("erdos-renyi", "random-regular", "small-world") else 0
    assert least <= bare.centre_depth <= least + slack


def test_a_large_network_takes_a_handful_of_walks(monkeypatch):
    """One to see that it is connected, two from far ends, then two a sweep; and those are shared with the diameter."""
    from conformesh.graph import network as module

    walks, walk = [], module._walk
    monkeypatch.setattr(module, "_walk", lambda *given: walks.append(given) or walk(*given))
    for built, most in (
        (Network.torus(60, 60), 1),
        (Network.tree(4000), 3),
        (Network.geometric(4000), 3 + 2 * module.SWEEPS),
        (Network.random_regular(4000), 3 + 2 * module.SWEEPS),
    ):
        walks.clear()
        network = Network(built.ids, built.indptr, built.indices, built.name, None, built.known)
        assert len(walks) == 1
        _ = network.centre, network.centre_depth, network.diameter, network.diameter_is_exact
        assert len(walks) <= most


def test_positions_are_finite_and_distinct(topology):
    places = topology.positions()
    assert places.shape == (20, 2)
    assert np.isfinite(places).all()
    assert len(np.unique(places.round(9), axis=0)) == 20
    assert np.array_equal(places, topology.positions())


def test_positions_of_a_large_unnamed_graph():
    pairs = Network.random_regular(1200)._pairs()
    places = Network.from_pairs(1200, pairs).positions(seed=1)
    assert places.shape == (1200, 2)
    assert np.abs(places).max() == 1
    assert abs(float(places[:, 0] @ places[:, 1])) < 1e-9


def test_importing_networks_is_light():
    code = "import sys; from conformesh.graph import network, topologies, weights; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"networkx", "matplotlib"} & {*loaded}
