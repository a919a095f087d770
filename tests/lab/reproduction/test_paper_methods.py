"""The conventions of the published figures against slow, obvious twins: dense matrices, loops and plain sorting."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.graph.weights import constant_weights
from conformesh.kernels.ranks import exact_alpha
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.reproduction.paper_methods import (
    PaperInputs,
    _outputs_rounded_up,
    cp_released,
    fcp_released,
    fedcp_qq_published,
    h_dcp_printed,
    q_dcp_released,
)
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols.block import Block
from tests.reference import consensus_loop, loss_gradient, pooled_minimiser, weight_matrix
from tests.strategies import exact_rank

ALPHAS = (0.1, 0.3, 0.75)
NETWORKS = {
    "chain": Network.chain(5),
    "cycle": Network.cycle(6),
    "star": Network.star(6),
    "complete": Network.complete(4),
    "kite": Network.from_pairs(5, [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4)], name="kite"),
}


@pytest.fixture(params=NETWORKS)
def network(request):
    return NETWORKS[request.param]


def trials_of(network, seed=3, trials=2):
    """Unequal scores around different centres; every device has some."""
    rng = np.random.default_rng(seed)
    return [[rng.normal(k / 4, 1, size=rng.integers(9, 25)) for k in range(network.devices)] for _ in range(trials)]


def conditions(trials, alphas=ALPHAS, ranges=None):
    return PaperInputs(tuple(map(exact_alpha, alphas)), np.zeros((len(trials), 2)) if ranges is None else ranges)


def printed(method, trials, network, alphas=ALPHAS, ranges=None, **options):
    samples = WeightedScores.of_trials(trials)
    block = Block.everywhere(network, samples.sizes)
    found = method(block, samples, conditions(trials, alphas, ranges), **options)
    return found if hasattr(found, "thresholds") else Simulator(network).run(found)[0]


def levels(scores, network, alpha):
    """(1 - alpha)(1 + K/n), as the text has it, rounded nowhere."""
    return float((1 - Fraction(str(alpha))) * (1 + Fraction(network.devices, sum(map(len, scores)))))


def released_levels(scores, network, alpha):
    """ceil((1 - alpha)(n + K)) / n, as the code has it."""
    n = sum(map(len, scores))
    return math.ceil((1 - Fraction(str(alpha))) * (n + network.devices)) / n


# --- Q-DCP ------------------------------------------------------------------------------------------------------------


def looped_incidence(network):
    """M+ and M- of [Wen2025], a column per edge, when every device is its own neighbour: 2 and 0 at such a loop."""
    pairs = [(i, int(j)) for i in range(network.devices) for j in network.neighbours(i) if i < j]
    pairs += [(k, k) for k in range(network.devices)]
    plus, minus = np.zeros((2, network.devices, len(pairs)))
    for column, (i, j) in enumerate(pairs):
        plus[i, column] += 1
        plus[j, column] += 1
        minus[i, column] += 1
        minus[j, column] -= 1
    return plus, minus


def looped_rate(scores, network, kappa, mu):
    """Return c, half of the best, and delta, with b from 1/sqrt(b) = (sqrt(q^2 + 4) - q) / 2."""
    plus, minus = looped_incidence(network)
    top = np.linalg.svd(plus, compute_uv=False).max()
    every = np.linalg.svd(minus, compute_uv=False)
    bottom = every[every > 1e-8].min()
    smoothness = max(map(len, scores)) * kappa / 4 + mu
    q = (top / bottom) / (smoothness / mu)
    b = (2 / (math.sqrt(q * q + 4) - q)) ** 2
    c = math.sqrt(b) * smoothness / (top * bottom)
    slow = mu / (c / 4 * top**2 + b / c * smoothness**2 / bottom**2)
    return c, min((b - 1) * bottom**2 / (b * top**2), slow)


def looped_admm(scores, network, gamma, kappa, mu, s0, rounds):
    """ADMM from zeros in which every device also hears itself; each equation is solved by a bracketing root finder."""
    c, _ = looped_rate(scores, network, kappa, mu)
    K = network.devices
    s, dual = np.zeros(K), np.zeros(K)
    for _ in range(rounds):
        old, s = s, np.zeros(K)
        for k in range(K):
            d = len(network.neighbours(k))
            heard = sum(old[j] for j in network.neighbours(k)) + old[k]
            pull = c * ((d + 1) * old[k] + heard)

            def equation(x, k=k, d=d, pull=pull, dual=dual):
                return loss_gradient(x, scores[k], gamma, kappa, mu, s0) + dual[k] + 2 * c * (d + 1) * x - pull

            wide = (len(scores[k]) + abs(dual[k]) + abs(pull) + mu * abs(s0)) / (2 * c * (d + 1) + mu) + 1
            s[k] = brentq(equation, -wide, wide, xtol=1e-15, rtol=1e-15)
        dual = dual.copy()
        for k in range(K):
            d = len(network.neighbours(k))
            dual[k] += c * ((d + 1) * s[k] - sum(s[j] for j in network.neighbours(k)) - s[k])
    return s


def looped_epsilon(scores, network, gamma, kappa, mu, s0, rounds, s, epsilon0):
    """Take u from an iterate: z = M+' s / 2 and the smallest lambda with gradient + M- lambda = 0; exponent T - 2."""
    c, delta = looped_rate(scores, network, kappa, mu)
    plus, minus = looped_incidence(network)
    gradient = np.array([loss_gradient(s[k], scores[k], gamma, kappa, mu, s0) for k in range(network.devices)])
    z, dual = plus.T @ s / 2, -np.linalg.pinv(minus) @ gradient
    norm = math.sqrt(c * z @ z + dual @ dual / c)
    unfinished = math.sqrt(1 / (network.devices * mu) * (1 / (1 + delta)) ** (rounds - 2)) * norm
    return unfinished + math.sqrt(2 * sum(map(len, scores)) * math.log(2) / (mu * kappa) + epsilon0**2)


@pytest.mark.parametrize("rounds", [2, 9])
@pytest.mark.parametrize("s0", ["average", "min", 0.4])
def test_q_dcp_equals_dense_admm_with_self_loops(network, rounds, s0):
    """Estimates and error terms, to 1e-9: both sides solve their roots to about 1e-14 and few rounds add little."""
    trials = trials_of(network)
    kappa, mu, epsilon0 = 30.0, 4.0, 0.2
    found = printed(q_dcp_released, trials, network, rounds=rounds, kappa=kappa, mu=mu, s0=s0, epsilon0=epsilon0)
    for t, scores in enumerate(trials):
        for a, alpha in enumerate(ALPHAS):
            gamma = min(released_levels(scores, network, alpha), 1.0)
            own = [np.quantile(mine, gamma) for mine in scores]
            centre = {"average": np.mean(own), "min": min(own)}.get(s0, s0)
            s = looped_admm(scores, network, gamma, kappa, mu, centre, rounds)
            epsilon = looped_epsilon(scores, network, gamma, kappa, mu, centre, rounds, s, epsilon0)
            assert found.epsilon[t, a] == pytest.approx(epsilon, rel=1e-9)
            if released_levels(scores, network, alpha) > 1:
                assert np.isposinf(found.thresholds[:, t, a]).all()
                continue
            np.testing.assert_allclose(found.thresholds[:, t, a] - found.epsilon[t, a], s.mean(), atol=1e-9)


def test_q_dcp_converges_to_the_pooled_minimiser(network):
    """Self-loops and half the penalty change the way, not the end."""
    trials = trials_of(network)
    found = printed(q_dcp_released, trials, network, alphas=(0.3,), rounds=3000, kappa=30.0, mu=4.0, s0=0.4)
    for t, scores in enumerate(trials):
        expected = pooled_minimiser(scores, released_levels(scores, network, 0.3), 30.0, 4.0, 0.4)
        np.testing.assert_allclose(found.thresholds[:, t, 0] - found.epsilon[t, 0], expected, atol=1e-6)


def test_q_dcp_needs_more_scores_for_more_than_all(network):
    trials = [[np.full(2, float(k)) for k in range(network.devices)]]
    found = printed(q_dcp_released, trials, network, alphas=(0.1, 0.9), rounds=3)
    assert np.isposinf(found.thresholds[..., 0]).all()
    assert np.isfinite(found.thresholds[..., 1]).all()


def test_q_dcp_leaves_devices_without_scores_out_of_s0(network):
    """With 70 and more devices and a uniform draw some have none: on CIFAR-100 it happens with seed 38."""
    (scores,) = trials_of(network, trials=1)
    found = printed(q_dcp_released, [[*scores[:-1], []]], network, (0.3,), rounds=5)
    assert np.isfinite(found.thresholds).all()
    assert np.isfinite(found.epsilon).all()


def test_gradient_of_the_twin_is_that_of_the_smoothed_loss():
    """One formula, written in two ways: sum of sigmoids minus the level's share, plus the regulariser."""
    scores = np.random.default_rng(0).normal(size=9)
    direct = expit(30 * (0.3 - scores)).sum() - 0.8 * 9 + 4 * (0.3 - 0.1)
    assert loss_gradient(0.3, scores, 0.8, 30.0, 4.0, 0.1) == pytest.approx(direct, rel=1e-12)


# --- H-DCP ------------------------------------------------------------------------------------------------------------


def edges_of(scores, over, output_range, bins):
    pooled = np.concatenate(scores)
    ends = {"outputs": output_range, "unit": (0.0, 1.0), "scores": (pooled.min(), pooled.max())}[over]
    return [ends[0] + (ends[1] - ends[0]) * m / bins for m in range(1, bins + 1)]


def cumulative_of(scores, edges):
    """Share of the scores at or below each level; the last level takes all that is above."""
    pooled = np.concatenate(scores)
    return [sum(pooled <= edge) / len(pooled) for edge in edges[:-1]] + [1.0]


def first_reaching(cumulative, edges, level):
    return next((edge for share, edge in zip(cumulative, edges, strict=True) if share >= level - 1e-9), np.inf)


@pytest.mark.parametrize("over", ["outputs", "scores", "unit"])
def test_h_dcp_equals_exact_averages_after_many_rounds(network, over):
    """After 600 rounds disagreement is below 1e-12 on all of these graphs, and so is the bound."""
    trials = trials_of(network)
    bins, ranges = 37, np.array([[-1.5, 2.5], [-3.0, 2.0]])
    found = printed(h_dcp_printed, trials, network, ranges=ranges, rounds=600, bins=bins, over=over)
    assert (found.epsilon < 1e-10).all()
    for t, scores in enumerate(trials):
        edges = edges_of(scores, over, ranges[t], bins)
        for a, alpha in enumerate(ALPHAS):
            level = (released_levels if over == "outputs" else levels)(scores, network, alpha)
            expected = first_reaching(cumulative_of(scores, edges), edges, level)
            if over == "outputs" and np.isfinite(expected):
                low, width = ranges[t, 0], (ranges[t, 1] - ranges[t, 0]) / bins
                at = int(np.searchsorted(edges, expected - 1e-9))
                assert edges[at] == expected
                # f in the set from the first level j with 1 - level <= threshold on; all above level j - 1 round up
                j = math.ceil((1 - expected - low) / width - 1e-9)
                expected = 1 - (low + (j - 1) * width)
            np.testing.assert_allclose(found.thresholds[:, t, a], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("over", ["scores", "outputs"])
@pytest.mark.parametrize("rounds", [8, 25, 60])
def test_h_dcp_equals_the_printed_loop_after_few_rounds(network, rounds, over):
    """Histograms are averaged as printed, bin by bin; the printed bound decides where no bin is high enough.

    As released the level is that of a whole number of scores: with a bound of some tenths of a score on top this asks
    for one score more than the text's.
    """
    trials = trials_of(network)
    bins, weights, ranges = 20, constant_weights(network, network.spectrum), np.array([[-1.5, 2.5], [-3.0, 2.0]])
    found = printed(h_dcp_printed, trials, network, (0.5, 0.9), ranges, rounds=rounds, bins=bins, over=over)
    matrix = weight_matrix(network, weights)
    rate = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[-2]
    for t, scores in enumerate(trials):
        K, sizes = network.devices, np.array([len(mine) for mine in scores])
        n, edges = sizes.sum(), edges_of(scores, over, ranges[t], bins)
        shares = [np.diff([0, *(len(m) / n * K * np.array(cumulative_of([m], edges)))]) for m in scores]
        x = np.cumsum(consensus_loop(shares, matrix, 1.0, rounds), axis=1)
        spread = math.sqrt(sizes.max() ** 2 + (sizes**2).mean())
        epsilon = K * math.sqrt(2 * K * bins) * rate**rounds / n * spread
        assert found.epsilon[t, 0] == pytest.approx(epsilon, rel=1e-6, abs=1e-12)
        for a, alpha in enumerate((0.5, 0.9)):
            level = (released_levels if over == "outputs" else levels)(scores, network, alpha)
            for k in range(K):
                expected = first_reaching(x[k], edges, level + epsilon)
                if over == "outputs" and np.isfinite(expected):
                    low, width = ranges[t, 0], (ranges[t, 1] - ranges[t, 0]) / bins
                    expected = _outputs_rounded_up(np.array([expected]), low, width)[0]
                assert found.thresholds[k, t, a] == pytest.approx(expected, rel=1e-12)


def test_h_dcp_gives_full_sets_where_the_bound_is_too_large():
    network = NETWORKS["chain"]
    found = printed(h_dcp_printed, trials_of(network), network, rounds=1, bins=10, over="scores")
    assert (found.epsilon > 1).all()
    assert np.isposinf(found.thresholds).all()


sixty_fourths = st.integers(-640, 640).map(lambda whole: whole / 64)


@given(
    low=sixty_fourths,
    width=st.integers(1, 64).map(lambda whole: whole / 64),
    threshold=sixty_fourths,
    outputs=st.lists(sixty_fourths, max_size=20),
)
def test_thresholds_for_plain_outputs_give_the_sets_of_rounded_ones(low, width, threshold, outputs):
    """Sixty-fourths are exact, so that ties are: a rounded output at the threshold belongs to the set.

    The outputs that matter are tried as well: the levels around the threshold, and what is just above or below them.
    """
    plain = _outputs_rounded_up(np.array([threshold]), low, width)[0]
    nearest = math.floor((1 - threshold - low) / width)
    around = [low + width * j + offset for j in range(nearest - 2, nearest + 3) for offset in (-1 / 64, 0.0, 1 / 64)]
    for f in [*outputs, *around]:
        levels_below = math.ceil((Fraction(f) - Fraction(low)) / Fraction(width))
        rounded = Fraction(low) + levels_below * Fraction(width)
        assert (1 - f <= plain) == (1 - rounded <= Fraction(threshold))


# --- pooled -----------------------------------------------------------------------------------------------------------


def test_cp_is_one_order_statistic_above_split_conformal(network):
    trials = trials_of(network)
    alphas = (0.1, 0.3, 0.001)
    found = printed(cp_released, trials, network, alphas)
    library = solve_draws(WeightedScores.of_trials(trials), network, alphas[:2], "cp").outcome.thresholds
    for t, scores in enumerate(trials):
        ordered = np.sort(np.concatenate(scores))
        for a, alpha in enumerate(alphas[:2]):
            rank = exact_rank(len(ordered), alpha, 1)
            assert library[0, t, a] == ordered[rank - 1]
            assert (found.thresholds[:, t, a] == ordered[rank]).all()
    assert np.isposinf(found.thresholds[..., 2]).all()
    assert found.epsilon is None


def test_cp_has_no_order_statistic_above_the_last():
    """Nine scores at alpha = 0.1: split conformal prediction takes the largest, and above it there is none."""
    trials = [[np.arange(5.0), np.arange(4.0)]]
    found = printed(cp_released, trials, Network.chain(2), (0.1, 0.2))
    assert found.thresholds[:, 0].tolist() == [[np.inf, 4.0]] * 2


def test_fcp_interpolates_at_a_whole_percent(network):
    trials = trials_of(network)
    alphas = (0.1, 0.3, 0.76)
    found = printed(fcp_released, trials, network, alphas)
    for t, scores in enumerate(trials):
        for a, alpha in enumerate(alphas):
            level = min(round(levels(scores, network, alpha), 2), 1.0)
            assert found.thresholds[:, t, a] == pytest.approx(np.quantile(np.concatenate(scores), level), rel=1e-12)


def test_fedcp_qq_is_the_17th_of_the_largest_scores():
    rng = np.random.default_rng(1)
    trials = [[rng.random(rng.integers(3, 9)) for _ in range(20)] for _ in range(3)]
    found = printed(fedcp_qq_published, trials, Network.star(20), ALPHAS)
    other = printed(fedcp_qq_published, trials, Network.star(20), ALPHAS, server=20)
    for t, scores in enumerate(trials):
        tops = sorted(max(mine) for mine in scores)
        assert (found.thresholds[:, t] == tops[16]).all()
        assert (other.thresholds[:, t] == tops[-1]).all()
    assert found.thresholds.shape == (20, 3, 3)
