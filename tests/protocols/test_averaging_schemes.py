"""Averaging schemes of H-DCP: Chebyshev-accelerated gossip, and averaging that ends."""

from __future__ import annotations

import numpy as np
import pytest

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.graph.weights import constant_weights
from conformesh.protocols import averaging_schemes
from conformesh.protocols.averaging_schemes import (
    chebyshev,
    chebyshev_rounds,
    finite_time,
    finite_time_plan,
    leja_order,
)
from conformesh.protocols.block import Block


@pytest.mark.parametrize(
    ("network", "rounds"),
    [
        (Network.chain(20), 19),
        (Network.cycle(20), 10),
        (Network.star(20), 2),
        (Network.torus(5, 4), 8),
        (Network.complete(20), 1),
        (Network.chain(100), 99),
        (Network.chain(1), 0),
    ],
    ids=lambda x: x.name if isinstance(x, Network) else "",
)
def test_theorem_finite_time_ends_after_the_distinct_eigenvalues(network, rounds):
    """At the diameter on chain, cycle, star and complete; the error is below the bound of the plan."""
    values = np.arange(network.devices, dtype=np.float64)[:, None]
    block = Block.everywhere(network, np.ones((network.devices, 1), dtype=np.int64))
    roots, bound = finite_time_plan(network)
    found, cost = Simulator(network).run(finite_time(values, block, roots))
    assert cost.rounds == rounds
    assert np.abs(found - values.mean()).max() <= bound * np.linalg.norm(values)


def test_all_eigenvalues_are_computed_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(averaging_schemes, "LARGEST_DENSE", 5)
    with pytest.raises(ValueError, match="finite-time needs all eigenvalues, computed up to 5 devices only"):
        finite_time_plan(Network.chain(6))


def test_theorem_chebyshev_shrinks_as_computed(topology):
    """The disagreement after T rounds is at most 1 / cosh(T arccosh(1 / rate)) of what it was, up to 1e-12."""
    weights = constant_weights(topology, topology.spectrum)
    block = Block.everywhere(topology, np.ones((20, 1), dtype=np.int64))
    x = np.random.default_rng(0).random((20, 1))
    for rounds in (1, 2, 5, 20):
        y, cost = Simulator(topology).run(chebyshev(x, block, float(weights.edge), weights.rate, rounds))
        assert cost.rounds == rounds
        factor = 1 / np.cosh(rounds * np.arccosh(1 / weights.rate)) if weights.rate > 1e-12 else 0.0
        assert np.linalg.norm(y - x.mean()) <= factor * np.linalg.norm(x - x.mean()) + 1e-12
        np.testing.assert_allclose(y.mean(), x.mean(), rtol=1e-12)
        if 0 < factor < 1:
            assert chebyshev_rounds(weights.rate, factor * (1 + 1e-9)) == rounds


def test_leja_order_keeps_round_off_small():
    """Ascending order on a chain of 60 loses the sum; Leja order does not."""
    net = Network.chain(60)
    roots, bound = finite_time_plan(net)
    assert sorted(roots) == pytest.approx(np.linalg.eigvalsh(net.laplacian().toarray())[1:])
    assert bound < 1e-9
    np.testing.assert_array_equal(leja_order(np.array([1.0, 2.0, 9.0, 10.0])), [10.0, 1.0, 2.0, 9.0])
    x = np.random.default_rng(1).integers(0, 100, 60).astype(float)
    laplacian = net.laplacian().toarray()

    def run(order):
        y = x.copy()
        for root in order:
            y = y - laplacian @ y / root
        return np.abs(y - x.mean()).max()

    assert run(roots) < 1e-9
    assert run(np.sort(roots)[::-1]) > 1.0


@pytest.mark.parametrize(
    ("rate", "factor", "rounds"),
    [(0.5, 1.0, 0), (0.5, 2.0, 0), (0.0, 0.1, 1), (1e-12, 0.1, 1), (0.5, 0.9999, 1), (0.5, 0.5, 1), (0.5, 0.499, 2)],
)
def test_chebyshev_takes_the_fewest_rounds(rate, factor, rounds):
    assert chebyshev_rounds(rate, factor) == rounds
