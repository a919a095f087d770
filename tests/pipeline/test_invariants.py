"""Sentences that hold for every method on every network."""

import warnings

import numpy as np
import pytest

from conformesh import METHODS, Network, TooFewScores, calibrate


def run(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TooFewScores)
        return calibrate(*args, **options)


def test_relabelling_the_devices_relabels_the_answer(method, topology, twenty_devices):
    """Thresholds move with their devices; sums in another order may move the last digits (1e-9 relative)."""
    order = np.random.default_rng(2).permutation(20)
    pairs = [(int(order[i]), int(order[j])) for i in range(20) for j in topology.neighbours(i) if i < j]
    moved = Network.from_pairs(20, pairs, name="relabelled")
    shuffled = [None] * 20
    for i in range(20):
        shuffled[order[i]] = twenty_devices[i]
    here = run(twenty_devices, topology, 0.1, method)
    there = run(shuffled, moved, 0.1, method)
    np.testing.assert_allclose(there.thresholds[order], here.thresholds, rtol=1e-9)
    assert here.certificate.kind == there.certificate.kind


def test_a_smaller_alpha_gives_a_threshold_at_least_as_large(method, twenty_devices):
    net = Network.torus(5, 4)
    if method == "fedcp-qq":
        pytest.skip("each alpha has ranks of its own, of which the k-th smallest l-th smallest need not be ordered")
    levels = (0.05, 0.1, 0.2, 0.5, 0.8)
    found = [run(twenty_devices, net, a, method).threshold for a in levels]
    assert found == sorted(found, reverse=True)


def test_the_same_call_gives_the_same_bits(method, twenty_devices):
    net = Network.torus(5, 4)
    first, second = (run(twenty_devices, net, 0.1, method) for _ in range(2))
    np.testing.assert_array_equal(first.thresholds, second.thresholds)
    assert first.certificate == second.certificate
    assert first.cost.to_dict() == second.cost.to_dict()


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_tiny_networks_work(method, devices):
    rng = np.random.default_rng(devices)
    scores = [rng.random(30) for _ in range(devices)]
    if METHODS[method].private and devices == 2:  # each would learn the other's by taking its own away
        with pytest.raises(ValueError, match="2 devices cannot hide"):
            run(scores, Network.chain(devices), 0.2, method)
        return
    result = run(scores, Network.chain(devices), 0.2, method)
    assert np.isfinite(result.threshold)


def test_no_scores_at_all_give_infinity(method):
    result = run([[], [], []], Network.chain(3), 0.1, method)
    assert result.threshold == np.inf


@pytest.mark.filterwarnings("ignore:p-dcp. .* more than required:conformesh.CalibrationNote")
def test_one_repeated_value(method):
    result = run([[0.25] * 12] * 4, Network.cycle(4), 0.2, method)
    assert result.threshold == pytest.approx(0.25, abs=0.2 if method == "q-dcp" else 1e-9)


def test_the_wrong_number_of_devices_is_an_error(method):
    with pytest.raises(ValueError, match="has 4 devices but scores came for 3"):
        calibrate([[0.1]] * 3, Network.cycle(4), 0.2, method)


def test_costs_are_those_of_the_guarantee_table(method, twenty_devices):
    """Who needs no server asks only neighbours; who needs nothing sends nothing."""
    result = run(twenty_devices, Network.torus(5, 4), 0.1, method)
    needs = METHODS[method].description.needs
    assert (result.cost.rounds == 0) == (needs == "nothing")
    assert needs in ("neighbours", "server", "nothing")
    assert result.certificate.kind in METHODS[method].description.guarantee
