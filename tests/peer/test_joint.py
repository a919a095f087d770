import re

import numpy as np
import pytest

from conformesh import METHODS, Network
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.peer.interface import PeerSetup
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.loopback import LinkFaults, Pause, run_loopback
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols.block import Answers
from conformesh.protocols.size_agreement import run_with_shared_sizes
from tests.peer.devices import expected, starter, thresholds
from tests.reference import distances

SHORT = {"q-dcp": {"rounds": 20}, "h-dcp": {"rounds": 20}}


def ragged(network):
    """Unequal scores; every fourth device has none."""
    rng = np.random.default_rng(5)
    return [rng.normal(k / 4, size=0 if k % 4 == 1 else rng.integers(3, 50)) for k in range(network.devices)]


@pytest.mark.parametrize(
    "network",
    [
        Network.torus(3, 3),
        pytest.param(Network.torus(5, 4), marks=pytest.mark.slow),
        Network.chain(7),
        Network.star(5),
    ],
)
def test_devices_that_know_only_the_map_end_with_the_simulators_threshold(method, network):
    scores, options = ragged(network), SHORT.get(method, {})
    played = run_loopback(network, starter(network, scores, method, **options), LinkFaults(), np.random.default_rng(1))
    assert thresholds(played.devices) == expected(network, scores, method, **options)
    assert len({device.round for device in played.devices}) == 1


@pytest.mark.parametrize("network", [Network.cycle(8), Network.star(5)])
def test_a_method_costs_what_it_costs_in_the_simulator_and_the_table_of_sizes_is_counted_apart(method, network):
    """On a cycle of 8 e-dcp with the tree takes 28 rounds, the sizes 4 more: everybody passes on 7 of them."""
    scores, options = ragged(network), SHORT.get(method, {})
    right = solve_draws(WeightedScores.of(scores), network, (0.1,), method, **options).cost
    played = run_loopback(network, starter(network, scores, method, **options), LinkFaults(), np.random.default_rng(1))
    for k, device in enumerate(played.devices):
        cost, sent = device.result.cost, device.ledger.cost()
        assert (cost.rounds, cost.numbers.tolist(), cost.bits.tolist()) == (
            right.rounds,
            [right.numbers[k]],
            [right.bits[k]],
        )
        assert sent.rounds == device.round
        if METHODS[method].private:  # nobody is told sizes
            assert (sent.rounds, sent.numbers[0], sent.bits[0]) == (cost.rounds, cost.numbers[0], cost.bits[0])
        elif METHODS[method].description.needs != "server":
            far = next(distances(network, np.array([k]))) < network.diameter
            assert sent.rounds == cost.rounds + network.diameter
            assert sent.numbers[0] == cost.numbers[0] + far.sum()
            assert sent.bits[0] == cost.bits[0] + 8 * 3 * far.sum()  # owner, length and size: a byte each


def test_a_crash_changes_nothing_on_the_ledger():
    network = Network.cycle(8)
    scores, costs = ragged(network), []
    for pauses in ((), (Pause(3, 0.02, 0.3, crash=True), Pause(5, 0.05, 0.4, crash=True))):
        faults = LinkFaults(pauses=pauses, delay=(0.001, 0.002))
        played = run_loopback(network, starter(network, scores), faults, np.random.default_rng(1))
        costs.append([device.ledger.cost().to_dict() for device in played.devices])
    assert costs[0] == costs[1]


def test_an_oracle_is_refused_by_name():
    network = Network.chain(2)
    start = starter(network, ragged(network), "q-dcp", rounds=5, bound="paper")
    for device in run_loopback(network, start, LinkFaults(), np.random.default_rng(0)).devices:
        assert re.search("could not go on: ValueError: .*oracle.*bound='sound'", str(device.error))


def test_every_device_learns_how_many_scores_the_others_have():
    network = Network.chain(5)
    seen = {}

    def method(block, samples):
        seen[int(block.rows[0])] = block.sizes.ravel().tolist()
        return Answers(np.zeros((1, 1, 1)), [])
        yield  # a protocol that asks nothing

    scores = [np.zeros(k) for k in range(5)]

    def start(k, journal):
        from conformesh.peer.device import Device

        return Device(
            PeerSetup(
                k,
                network,
                {},
                lambda net, row: run_with_shared_sizes(net, row, WeightedScores.of([scores[k]]), method),
                journal,
            )
        )

    played = run_loopback(network, start, LinkFaults(), np.random.default_rng(0))
    assert seen == {key: [0, 1, 2, 3, 4] for key in range(5)}
    assert {device.round for device in played.devices} == {4}


def test_a_single_device_needs_nobody():
    network = Network.from_pairs(1, [])
    scores = [np.random.default_rng(0).normal(size=30)]
    device = starter(network, scores)(0, MemoryJournal())
    device.start(0.0)
    device.tick(1.0)
    assert device.phase == "finished"
    assert thresholds([device]) == expected(network, scores)
