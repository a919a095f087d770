"""The simulator on large networks: the same bits in any memory order and on any number of threads, in linear memory."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from conformesh import METHODS, Network, calibrate
from conformesh.engines import ordering, simulator
from conformesh.engines.ordering import breadth_first_order, memory_order
from conformesh.kernels import threads
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws


def shuffled(network, seed=1):
    names = np.random.default_rng(seed).permutation(network.devices)
    return Network.from_pairs(network.devices, names[network._pairs()], "shuffled", known=network.known)


def ragged(devices, trials=2):
    rng = np.random.default_rng(devices)
    sizes = rng.integers(1, 9, devices * trials)
    return WeightedScores.from_flat(rng.normal(size=int(sizes.sum())), sizes, trials)


def assert_same_batch(one, other):
    assert one.outcome.thresholds.tobytes() == other.outcome.thresholds.tobytes()
    assert (one.outcome.estimates is None) == (other.outcome.estimates is None)
    if one.outcome.estimates is not None:
        assert one.outcome.estimates.tobytes() == other.outcome.estimates.tobytes()
    assert one.outcome.certificates == other.outcome.certificates
    assert one.cost.rounds == other.cost.rounds
    assert one.cost.numbers.tobytes() == other.cost.numbers.tobytes()
    assert one.cost.bits.tobytes() == other.cost.bits.tobytes()


OPTIONS = {"q-dcp": {"rounds": 30}, "h-dcp": {"rounds": 30, "bins": 20}, "e-dcp": {"aggregate": "tree"}}


@pytest.fixture
def large(monkeypatch):
    """Treat every network as a large one: routes and tallies are not remembered, maxima spread."""
    monkeypatch.setattr(simulator, "MOST_REMEMBERED_DEVICES", 0)
    monkeypatch.setattr("conformesh.protocols.ledger.MOST_REMEMBERED_DEVICES", 0)


@pytest.mark.parametrize("network", [Network.torus(20_000), Network.geometric(20_000)], ids=lambda n: n.name)
def test_the_exact_threshold_on_20_000_devices_is_the_pooled_one(network):
    scores = np.random.default_rng(3).normal(size=(20_000, 10))
    result = calibrate(scores, network, alpha=0.1)
    rank = result.certificate.required_rank
    assert (result.thresholds == np.partition(scores.ravel(), rank - 1)[rank - 1]).all()
    assert result.certificate.counted_rank == rank


def test_memory_order_changes_no_bit(method, large, monkeypatch):
    """Devices hosted in another order: every method ends with the same thresholds, certificates and bill, by row."""
    network, samples = shuffled(Network.geometric(60, seed=2)), ragged(60)
    plain = solve_draws(samples, network, [0.3, 0.5], method, **OPTIONS.get(method, {}))
    monkeypatch.setattr(simulator, "memory_order", breadth_first_order)
    assert (breadth_first_order(network) != np.arange(60)).any()
    assert_same_batch(solve_draws(samples, network, [0.3, 0.5], method, **OPTIONS.get(method, {})), plain)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("h-dcp", {"weights": "metropolis", "rounds": 20, "wire": 32}),
        ("h-dcp", {"consensus": "chebyshev", "rounds": 20}),
        ("h-dcp", {"spectrum": "estimated", "rounds": 20}),
        ("q-dcp", {"bound": "paper", "rounds": 20}),
        ("q-dcp", {"continuation": 2, "rounds": 20}),
        ("e-dcp", {"aggregate": "flood"}),
        ("e-dcp", {"schedule": "count", "aggregate": "flood"}),
    ],
    ids=str,
)
def test_memory_order_changes_no_bit_in_other_settings(method, options, large, monkeypatch):
    network, samples = shuffled(Network.torus(6, 5)), ragged(30)
    plain = solve_draws(samples, network, [0.4], method, **options)
    monkeypatch.setattr(simulator, "memory_order", breadth_first_order)
    assert_same_batch(solve_draws(samples, network, [0.4], method, **options), plain)


def test_threads_change_no_bit(method, large, monkeypatch):
    """One thread, two, and three with more to do than there is: the same bits from every method."""
    network, samples = Network.geometric(60, seed=2), ragged(60)
    runs = []
    for count in (1, 2, 3):
        monkeypatch.setattr(threads, "THREADS", count)
        monkeypatch.setattr(threads, "PARALLEL_ABOVE", 0)
        threads._pool.cache_clear()
        runs.append(solve_draws(samples, network, [0.3], method, **OPTIONS.get(method, {})))
        if count > 1:
            threads._pool().shutdown()
    threads._pool.cache_clear()
    assert_same_batch(runs[1], runs[0])
    assert_same_batch(runs[2], runs[0])


def test_a_large_network_is_simulated_as_a_small_one(method, monkeypatch):
    """What large networks take for speed (spreading maxima, no remembered routes) changes nothing on a small one."""
    network, samples = Network.torus(6, 5), ragged(30)
    small = solve_draws(samples, network, [0.3], method, **OPTIONS.get(method, {}))
    monkeypatch.setattr(simulator, "MOST_REMEMBERED_DEVICES", 0)
    monkeypatch.setattr("conformesh.protocols.ledger.MOST_REMEMBERED_DEVICES", 0)
    assert_same_batch(solve_draws(samples, network, [0.3], method, **OPTIONS.get(method, {})), small)


def test_only_far_neighbours_are_reordered(monkeypatch):
    """A torus lies in order, a random graph has none; a shuffled torus gets one."""
    assert memory_order(shuffled(Network.torus(2000))) is None  # small
    monkeypatch.setattr(ordering, "MOST_CACHED_DEVICES", 0)
    assert memory_order(Network.torus(2000)) is None
    assert memory_order(Network.geometric(2000)) is None
    assert memory_order(Network.random_regular(2000)) is None
    order = memory_order(shuffled(Network.torus(2000)))
    assert sorted(order) == list(range(2000))


def test_memory_grows_with_the_devices_and_not_with_their_square():
    """Four times the devices, at most five times the peak; a K x K table would be sixteen times."""
    calibrate(np.random.default_rng(0).normal(size=(100, 5)), Network.torus(100), 0.3)
    peaks = []
    for devices in (5_000, 20_000):
        network, scores = Network.torus(devices), np.random.default_rng(0).normal(size=(devices, 5))
        tracemalloc.start()
        calibrate(scores, network, 0.3, aggregate="tree", width=16)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 5 * peaks[0]


def test_a_worker_of_several_has_one_thread():
    """Joblib's workers share the cores; a pool of threads in each would be too many."""
    code = (
        "from joblib import Parallel, delayed, cpu_count\n"
        "def count():\n"
        "    from conformesh.kernels.threads import THREADS\n"
        "    return THREADS\n"
        "print(max(Parallel(n_jobs=cpu_count())([delayed(count)()] * 2)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "1"


LIMITS = (
    "million, torus",
    "million, geometric",
    "million, shuffled",
    "e-dcp",
    "h-dcp, torus",
    "h-dcp, geometric",
    "h-dcp to the exact count",
    "q-dcp, torus",
    "q-dcp, geometric",
    "q-dcp, random-regular",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_large_networks_stay_within_their_limits(name, bench):
    """In processor time, all threads together, so that a busy machine does not matter; a wrong threshold raises."""
    limits = bench("limits")
    limit = limits.LIMITS[name]
    found = limits.measured(limit)
    assert found["processor seconds"] < (limit.seconds or np.inf)
    assert found["peak GB"] < (limit.gigabytes or np.inf)


def test_every_limit_was_looked_at(bench):
    assert {*LIMITS} == {*bench("limits").LIMITS}


@pytest.mark.slow
def test_a_gossip_round_runs_at_the_speed_of_memory(bench):
    bandwidth = bench("bandwidth")
    judged, _ = bandwidth.measured(bandwidth.TOPOLOGIES[0], 100_000, 1000, 4)
    assert judged.ratio >= bandwidth.LEAST


@pytest.mark.slow
def test_time_grows_linearly(bench):
    growth = bench("growth")
    judged = [one for one in growth.SERIES if one.judged]
    assert {one.grows for one in judged} == {"devices K", "scores n", "edges"}
    for one in judged:
        assert growth.measured(one).exponent <= growth.MOST, one.what


def test_every_method_was_looked_at():
    assert set(OPTIONS) <= set(METHODS)
