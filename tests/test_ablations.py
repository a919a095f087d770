"""Remove one load-bearing piece and see the matching test go red: this keeps the other tests honest."""

import numpy as np
import pytest

from conformesh import Network, conformal_rank
from conformesh.engines import Simulator
from conformesh.graph.weights import WEIGHTS
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols.block import Block
from conformesh.protocols.bounds import histogram
from conformesh.protocols.consensus import gossip
from conformesh.protocols.wire_format import WireFormat
from tests.statistics import assert_coverage


def test_without_the_plus_one_coverage_fails():
    """One device, 10 scores: rank ceil(0.9 * 10) = 9 covers 9/11 = 0.818; the coverage test notices."""
    trials, n, alpha = 20_000, 10, 0.1
    rng = np.random.default_rng(651978631)
    scores, test = np.sort(rng.random((trials, n)), axis=1), rng.random(trials)
    right = scores[:, conformal_rank(n, alpha) - 1]
    assert_coverage(int((test <= right).sum()), trials, 1 - alpha)
    wrong = scores[:, int(np.ceil((1 - alpha) * n)) - 1]
    with pytest.raises(AssertionError, match="if valid"):
        assert_coverage(int((test <= wrong).sum()), trials, 1 - alpha)


def test_the_naive_average_does_not_cover():
    """Unequal devices: the average of quantiles covers about 0.85 here, and the coverage test says so."""
    rng = np.random.default_rng(5)
    trials, k = 4_000, 8
    scale = np.array([4.0] * 3 + [0.1] * 5)
    scores = rng.standard_exponential((trials, k, 100)) * scale[None, :, None]
    device = rng.integers(k, size=trials)
    test = rng.standard_exponential(trials) * scale[device]
    samples, net = WeightedScores.of_trials(scores), Network.cycle(k)
    covered = {}
    for method in ("average", "fcp"):
        thresholds = solve_draws(samples, net, [0.1], method).outcome.thresholds
        covered[method] = int((test <= thresholds[device, np.arange(trials), 0]).sum())
    with pytest.raises(AssertionError, match="if valid"):
        assert_coverage(covered["average"], trials, 0.9)
    assert_coverage(covered["fcp"], trials, 0.9)


def test_without_the_correction_h_dcp_falls_short(monkeypatch):
    """Epsilon set to zero: an unfinished consensus then certifies ranks that are not there."""
    rng = np.random.default_rng(0)
    net = Network.chain(8)
    scores = [rng.random(10) + k for k in range(8)]
    samples = WeightedScores.of(scores)
    pooled = np.sort(np.concatenate(scores))
    rank = conformal_rank(80, 0.3, 8)

    def worst(**options):
        thresholds = solve_draws(samples, net, [0.3], "h-dcp", rounds=10, rounding=False, **options).outcome.thresholds
        return np.searchsorted(pooled, thresholds.min(), "right")

    assert worst() >= rank
    for name in ("h_dcp_cumulative_epsilon", "arithmetic_epsilon"):
        monkeypatch.setattr(f"conformesh.protocols.averaging_schemes.{name}", lambda *_: 0.0)
    assert worst() < rank


def test_without_the_sent_value_rounding_moves_the_mean():
    """A device that subtracts its exact value instead of the one it sent: 16 bits then shift the network's mean."""
    net = Network.cycle(6)
    rng = np.random.default_rng(1)
    x = rng.random((6, 1)) * 3
    weights, wire = WEIGHTS["best-constant"](net), WireFormat(16)
    block = Block.everywhere(net, np.ones((6, 1), dtype=np.int64))
    kept, _ = Simulator(net).run(gossip(x, block, weights, 200, wire=wire))
    assert kept.mean() == pytest.approx(x.mean(), abs=1e-13)

    def naive(x):
        from conformesh.protocols.messages import Sum

        for _ in range(200):
            total = yield Sum(wire(x))
            x = x + weights.edge * (total - net.degree[:, None] * x)
        return x

    moved, _ = Simulator(net).run(naive(x))
    assert abs(moved.mean() - x.mean()) > 1e-6


def test_without_double_stochasticity_the_mean_is_lost():
    net = Network.star(6)
    x = np.arange(6.0)[:, None]
    block = Block.everywhere(net, np.ones((6, 1), dtype=np.int64))
    honest = WEIGHTS["metropolis"](net)
    good, _ = Simulator(net).run(gossip(x, block, honest, 300))
    np.testing.assert_allclose(good, 2.5, atol=1e-9)
    from dataclasses import replace

    lopsided = replace(
        honest, edge=np.where(np.arange(len(net.indices)) < 5, 0.05, honest.edge), strength=honest.strength
    )
    lopsided = replace(lopsided, strength=np.array([0.25, *honest.strength[1:]]))
    bad, _ = Simulator(net).run(gossip(x, block, lopsided, 300))
    assert abs(bad.mean() - 2.5) > 0.1


def test_half_a_box_is_needed_for_the_half():
    """The cumulative bound is attained up to its factor: a quarter of it would be false on the chain."""
    net = Network.chain(2)
    weights = WEIGHTS["metropolis"](net)
    block = Block.everywhere(net, np.array([[1], [1]]))
    y, _ = Simulator(net).run(gossip(np.array([[1.0], [0.0]]), block, weights, 0))
    error = np.abs(y - 0.5).max()
    bound = histogram.h_dcp_cumulative_epsilon(np.array([1, 1]), weights.rate, 0)
    assert error <= bound < 2 * error
