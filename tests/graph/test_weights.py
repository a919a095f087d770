"""Consensus weights: doubly stochastic, eigenvalues as the dense solver has them, and one's own matrices checked."""

import numpy as np
import pytest
from hypothesis import given
from scipy import sparse

from conformesh.graph.network import Network
from conformesh.graph.spectrum import Spectrum
from conformesh.graph.weights import WEIGHTS, constant_weights, weights_from_matrix
from tests.strategies import networks


def assert_is_consensus_matrix(weights, network):
    """Symmetric, rows sum to one, nothing off the edges, eigenvalues as stated."""
    w = weights.matrix(network).toarray()
    assert np.allclose(w, w.T, atol=1e-15)
    assert np.allclose(w.sum(axis=1), 1, atol=1e-12)
    assert not w[(network.adjacency().toarray() == 0) & ~np.eye(network.devices, dtype=bool)].any()
    if network.devices == 1:
        assert (weights.rate, weights.gap) == (0, 1)
        return
    values = np.linalg.eigvalsh(w - 1 / network.devices)  # the constant vector's eigenvalue moves from 1 to 0
    rate = np.abs(values).max()
    assert weights.rate == pytest.approx(rate, abs=1e-12)
    assert weights.rate >= rate - 1e-14
    assert weights.gap == 1 - weights.rate
    rest = np.sort(np.linalg.eigvalsh(w))[:-1]
    assert (weights.second, weights.smallest) == pytest.approx((rest[-1], rest[0]), abs=1e-12)


@pytest.mark.parametrize("name", WEIGHTS)
@given(network=networks())
def test_weights_are_what_they_say(name, network):
    weights = WEIGHTS[name](network)
    assert weights.name == name
    assert_is_consensus_matrix(weights, network)
    assert weights.strength.shape == (network.devices,)


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_on_every_topology(name, topology):
    assert_is_consensus_matrix(WEIGHTS[name](topology), topology)


@given(networks(least=2))
def test_best_constant_is_the_best_constant(network):
    best = WEIGHTS["best-constant"](network)
    for factor in (0.9, 0.99, 1.01, 1.1):
        values = 1 - factor * best.edge * np.linalg.eigvalsh(network.laplacian().toarray())[1:]
        assert np.abs(values).max() >= best.rate - 1e-12
    assert best.rate <= WEIGHTS["max-degree"](network).rate + 1e-12


def test_the_formulas():
    network = Network.star(4)
    assert WEIGHTS["max-degree"](network).edge == 1 / 4
    assert WEIGHTS["metropolis"](network).edge.tolist() == [1 / 4] * 6
    assert WEIGHTS["best-constant"](network).edge == pytest.approx(2 / (4 + 1))
    mixed = Network.chain(4)
    assert WEIGHTS["metropolis"](mixed).edge.tolist() == [1 / 3] * 6
    assert WEIGHTS["metropolis"](Network.from_pairs(4, [(0, 1), (1, 2), (2, 3), (1, 3)])).edge.tolist() == [
        1 / 4, 1 / 4, 1 / 4, 1 / 4, 1 / 4, 1 / 3, 1 / 4, 1 / 3,
    ]  # fmt: skip


@pytest.mark.parametrize("devices", [2, 3, 20, 49])
def test_consensus_on_a_complete_graph_takes_one_round(devices):
    for name in ("best-constant", "metropolis", "max-degree"):
        assert WEIGHTS[name](Network.complete(devices)).rate < 1e-15


def test_metropolis_by_lanczos_agrees_with_the_dense_solver():
    for network in (Network.geometric(1600, seed=3), Network.erdos_renyi(1600, seed=3), Network.tree(1600, seed=3)):
        weights = WEIGHTS["metropolis"](network)
        values = np.linalg.eigvalsh(weights.matrix(network).toarray())
        assert weights.source == "lanczos"
        assert weights.second == pytest.approx(values[-2], rel=1e-8)
        assert weights.smallest == pytest.approx(values[0], rel=1e-8)


def test_spectral_gaps_of_erdos_renyi_are_those_of_the_paper():
    """[Wen2025] Appendix: the average gap grows from 0.44 to 0.68 between 20 and 80 devices.

    Over 40 graphs the standard error is below 0.01; 0.46 and 0.67 were found over 200.
    """
    gap = {
        devices: np.mean([WEIGHTS["best-constant"](Network.erdos_renyi(devices, p=0.5, seed=s)).gap for s in range(40)])
        for devices in (20, 40, 80)
    }
    assert gap[20] == pytest.approx(0.44, abs=0.05)
    assert gap[80] == pytest.approx(0.68, abs=0.03)
    assert gap[20] < gap[40] < gap[80]


def test_weights_from_an_estimated_spectrum():
    network = Network.torus(5, 4)
    exact = network.spectrum
    estimate = Spectrum(exact.largest * 1.01, exact.smallest * 0.99, exact.signless, "estimated")
    weights = constant_weights(network, estimate)
    assert weights.source == "estimated"
    assert WEIGHTS["best-constant"](network).rate < weights.rate < 1
    with pytest.raises(ValueError, match=r"0 < smallest <= largest eigenvalue, got 0.0 and 3.0"):
        constant_weights(network, Spectrum(3.0, 0.0, 3.0, "estimated"))


# --- one's own matrix ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, sparse.coo_matrix, sparse.csc_array, np.ndarray.tolist])
def test_own_matrices_in_any_form(form, topology):
    expected = WEIGHTS["metropolis"](topology)
    found = weights_from_matrix(topology, form(expected.matrix(topology).toarray()))
    assert found.name == "matrix"
    assert np.allclose(np.broadcast_to(expected.edge, topology.indices.shape), found.edge, atol=1e-15)
    assert found.rate == pytest.approx(expected.rate, abs=1e-12)
    assert_is_consensus_matrix(found, topology)


def test_own_matrix_of_one_device():
    assert weights_from_matrix(Network.chain(1), [[1.0]]).rate == 0


def test_own_matrix_may_have_zero_and_negative_weights():
    network = Network.complete(4)
    w = np.full((4, 4), 0.3)
    w[0, 1] = w[1, 0] = -0.05
    w[2, 3] = w[3, 2] = 0.0
    np.fill_diagonal(w, 0)
    np.fill_diagonal(w, 1 - w.sum(axis=1))
    assert_is_consensus_matrix(weights_from_matrix(network, w), network)


def test_large_own_matrix_with_negative_weights():
    network = Network.random_regular(1600, degree=8)
    edge = np.where((network.receivers + network.indices) % 7 == 0, -0.01, 0.1)
    w = sparse.csr_array((edge, network.indices, network.indptr), shape=(1600, 1600))
    w = w + sparse.diags_array(1 - w.sum(axis=1))
    found = weights_from_matrix(network, w)
    values = np.linalg.eigvalsh(w.toarray())
    assert found.source == "lanczos"
    assert (found.second, found.smallest) == pytest.approx((values[-2], values[0]), abs=1e-8)


def changed(at, value):
    """Weights 1/3 on a path of four devices, with one entry set."""
    w = WEIGHTS["metropolis"](Network.chain(4)).matrix(Network.chain(4)).toarray()
    w[at] = value
    return w


def balanced(changes):
    w = np.zeros((4, 4))
    for (a, b), value in changes.items():
        w[a, b] = w[b, a] = value
    return w + np.diag(1 - w.sum(axis=1))


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        (np.eye(3), r"a 4 x 4 matrix, got shape \(3, 3\)"),
        (changed((3, 3), 0.64), r"doubly stochastic: row 3 \(device 3\) sums to 0.97"),
        (changed((0, 0), np.nan), "finite"),
        (balanced({(0, 1): 0.3, (1, 2): 0.3, (2, 3): 0.3, (0, 3): 0.1}), "0 and 3 are not neighbours, got 0.1"),
        (balanced({(0, 1): 0.3, (2, 3): 0.3}), "cut the network into 2 parts"),
        (balanced({(0, 1): 0.9, (1, 2): 0.9, (2, 3): 0.9}), "strictly between -1 and 1"),
        (balanced({(0, 1): -0.3, (1, 2): 0.3, (2, 3): 0.3}), "strictly between -1 and 1"),
        (np.array([[0.6, 0.4, 0, 0], [0.3, 0.4, 0.3, 0], [0, 0.3, 0.4, 0.3], [0, 0, 0.3, 0.7]]), "must be symmetric"),
    ],
)
def test_wrong_matrices_are_refused(matrix, says):
    with pytest.raises(ValueError, match=says):
        weights_from_matrix(Network.chain(4), matrix)
