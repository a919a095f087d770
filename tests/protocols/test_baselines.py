import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import CalibrationNote, Network, TooFewScores, calibrate
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import count_at_or_below
from conformesh.protocols.bounds.quantile_of_quantiles import best_ranks, expected_coverage
from tests.reference import expected_coverage_exactly, pooled_threshold
from tests.strategies import alphas, device_scores, exact_rank, networks


def run(scores, network, alpha, method, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TooFewScores)
        warnings.simplefilter("ignore", CalibrationNote)
        return calibrate(scores, network, alpha, method, **options)


@settings(max_examples=3 * settings.default.max_examples)
@given(networks(), alphas, st.data())
def test_cp_and_fcp_equal_a_plain_sort_bit_for_bit(network, alpha, data):
    scores = data.draw(device_scores(network.devices))
    n = sum(map(len, scores))
    for method, groups in (("cp", 1), ("fcp", network.devices)):
        result = run(scores, network, alpha, method)
        rank = exact_rank(n, alpha, groups)
        assert result.threshold == pooled_threshold(scores, rank)
        assert result.certificate.kind == "counted"
        assert result.certificate.required_rank == rank
        if rank <= n:
            assert (
                result.certificate.counted_rank
                == count_at_or_below(WeightedScores.of(scores), [result.threshold])[0]
                >= rank
            )
        assert result.cost.numbers_per_device == pytest.approx(n / network.devices)


@given(networks(), alphas, st.data())
def test_local_is_split_conformal_on_every_device(network, alpha, data):
    scores = data.draw(device_scores(network.devices))
    result = run(scores, network, alpha, "local")
    for k, mine in enumerate(scores):
        rank = exact_rank(len(mine), alpha, 1)
        assert result.thresholds[k] == pooled_threshold([mine], rank)
        assert result.certificate.required_rank[k] == rank
        assert result.certificate.counted_rank[k] == sum(s <= result.thresholds[k] for s in mine)
    assert result.cost.rounds == result.cost.bits_per_device == 0


def test_average_is_the_mean_of_local_quantiles_and_promises_nothing(twenty_devices, topology):
    result = calibrate(twenty_devices, topology, 0.1, "average")
    n = sum(map(len, twenty_devices))
    level = exact_rank(n, 0.1, 20) / n
    expected = np.mean([np.quantile(s, level) for s in twenty_devices])
    assert expected <= result.threshold <= expected + 1e-5
    assert result.certificate.kind == "none"


@pytest.mark.parametrize(
    ("local", "sizes"),
    [((3,), (5,)), ((2, 2), (4, 4)), ((3, 2, 4), (3, 2, 5)), ((1, 1, 1, 1), (3, 3, 3, 3)), ((5, 1), (5, 6))],
)
def test_theorem_expected_coverage_in_closed_form(local, sizes):
    """Against rational arithmetic on the same integral: equal to 1e-13."""
    ours = expected_coverage(np.array(local), np.array(sizes))
    exact = [float(x) for x in expected_coverage_exactly(local, sizes)]
    np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-13)


def test_expected_coverage_by_simulation():
    """20 devices of 35..68 scores; 20,000 draws of the server's value: six standard errors, false alarm 2e-9."""
    rng = np.random.default_rng(8)
    sizes = rng.integers(35, 69, size=20)
    choice = best_ranks(sizes, 0.9)
    local = np.array(choice.local)
    covered = np.sort(rng.beta(local, sizes - local + 1, size=(20_000, 20)), axis=1)[:, choice.server - 1]
    assert abs(covered.mean() - choice.coverage) < 6 * covered.std() / np.sqrt(20_000)


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 8), st.sampled_from([0.05, 0.2, 0.5]))
def test_best_ranks_are_the_best_of_all_pairs_when_sizes_are_equal(devices, n, alpha):
    sizes = np.full(devices, n)
    table = {
        (rank, server + 1): value
        for rank in range(1, n + 1)
        for server, value in enumerate(expected_coverage(np.full(devices, rank), sizes))
    }
    valid = [value for value in table.values() if value >= 1 - alpha]
    choice = best_ranks(sizes, 1 - alpha)
    if not valid:
        assert choice is None
        return
    assert choice.coverage == min(valid)
    assert table[choice.local[0], choice.server] == choice.coverage


def test_many_devices_try_fewer_levels_and_still_meet_the_target_closely():
    """1000 devices: the server's rank alone resolves coverage to about 1e-4."""
    sizes = np.random.default_rng(0).integers(20, 80, size=1000)
    choice = best_ranks(sizes, 0.9)
    assert 0.9 <= choice.coverage < 0.9005


def test_fedcp_qq_takes_the_order_statistic_it_says(twenty_devices):
    result = calibrate(twenty_devices, Network.star(20), 0.1, "fedcp-qq")
    choice = best_ranks(np.array([len(s) for s in twenty_devices]), 0.9)
    sent = sorted(np.sort(s)[rank - 1] for s, rank in zip(twenty_devices, choice.local, strict=True))
    assert result.threshold == sent[choice.server - 1]
    assert result.certificate.kind == "assumed"
    assert "one distribution" in result.certificate.assumption
    assert result.cost.numbers_per_device == 1


def test_fedcp_qq_leaves_empty_devices_out_and_gives_infinity_when_hopeless():
    assert run([[0.1, 0.2, 0.3], [], [0.2]], Network.chain(3), 0.5, "fedcp-qq").threshold in (0.1, 0.2, 0.3)
    assert run([[0.1], [], [0.2]], Network.chain(3), 0.01, "fedcp-qq").threshold == np.inf
    assert best_ranks(np.array([0, 0]), 0.9) is None


def test_wfcp_without_noise_is_counted_and_equals_h_dcp(twenty_devices, paper_network):
    wfcp = calibrate(twenty_devices, paper_network, 0.1, "wfcp", bins=200)
    h_dcp = calibrate(twenty_devices, paper_network, 0.1, "h-dcp", mixture="paper", rank_rule="ghost", bins=200)
    assert wfcp.threshold == h_dcp.threshold
    assert wfcp.certificate.kind == "counted"
    assert wfcp.certificate.counted_rank == h_dcp.certificate.counted_rank


@pytest.mark.parametrize("noise", [1e-5, 1e-3])
def test_wfcp_with_noise_keeps_the_rank_outside_its_failure_event(noise, twenty_devices):
    """300 noisy runs at beta = 0.01: more than 12 short of the rank has probability 1e-5 if Levy's bound holds."""
    n = sum(map(len, twenty_devices))
    rank = exact_rank(n, 0.1, 20)
    short = 0
    for seed in range(300):
        result = run(twenty_devices, Network.star(20), 0.1, "wfcp", noise=noise, seed=seed, bins=50, range=(0.0, 1.0))
        assert result.certificate.kind == "assumed"
        short += count_at_or_below(WeightedScores.of(twenty_devices), [result.threshold])[0] < rank
    assert short <= 12
    assert run(twenty_devices, Network.star(20), 0.1, "wfcp", noise=noise).certificate.required_rank > rank


@settings(max_examples=100)
@given(networks(), alphas, st.data())
def test_wfcp_without_noise_has_the_rank(network, alpha, data):
    scores = data.draw(device_scores(network.devices))
    n = sum(map(len, scores))
    rank = exact_rank(n, alpha, network.devices)
    result = run(scores, network, alpha, "wfcp", bins=data.draw(st.integers(1, 20)))
    if rank <= n:
        assert (
            result.certificate.counted_rank
            == count_at_or_below(WeightedScores.of(scores), [result.threshold])[0]
            >= rank
        )
    else:
        assert result.threshold == np.inf


@pytest.mark.parametrize(
    ("options", "message"),
    [({"noise": -1.0}, "noise must be"), ({"failure": 0.0}, "failure must lie"), ({"bins": 0}, "bins")],
)
def test_wfcp_refuses_nonsense(options, message):
    with pytest.raises(ValueError, match=message):
        calibrate([[0.1], [0.2]], Network.chain(2), 0.5, "wfcp", **options)
