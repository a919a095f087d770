import numpy as np
import pytest

from conformesh import Network
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.loopback import Faults, play
from conformesh.protocols.joint import joint
from conformesh.protocols.site import Outcome
from conformesh.samples import Samples
from tests.peer.devices import expected, starter, thresholds

SHORT = {"q-dcp": {"rounds": 60}, "h-dcp": {"rounds": 60}}


def ragged(network):
    """Unequal scores; every fourth device has none."""
    rng = np.random.default_rng(5)
    return [rng.normal(k / 4, size=0 if k % 4 == 1 else rng.integers(3, 50)) for k in range(network.devices)]


@pytest.mark.parametrize("network", [Network.torus(5, 4), Network.chain(7), Network.star(5)])
def test_devices_that_know_only_the_map_end_with_the_simulators_threshold(method, network):
    scores, options = ragged(network), SHORT.get(method, {})
    played = play(network, starter(network, scores, method, **options), Faults(), np.random.default_rng(1))
    assert thresholds(played.devices) == expected(network, scores, method, **options)
    assert len({device.round for device in played.devices}) == 1


def test_an_oracle_is_refused_by_name():
    network = Network.chain(2)
    start = starter(network, ragged(network), "q-dcp", rounds=5, bound="paper")
    with pytest.raises(ValueError, match="oracle.*bound='sound'"):  # noqa: RUF043
        play(network, start, Faults(), np.random.default_rng(0))


def test_every_device_learns_how_many_scores_the_others_have():
    network = Network.chain(5)
    seen = {}

    def method(site, samples):
        seen[int(site.here[0])] = site.sizes.ravel().tolist()
        return Outcome(np.zeros((1, 1, 1)), [])
        yield  # a protocol that asks nothing

    scores = [np.zeros(k) for k in range(5)]

    def start(k, journal):
        from conformesh.peer.device import Device

        return Device(k, network, {}, lambda net, row: joint(net, row, Samples.of([scores[k]]), method), journal)

    played = play(network, start, Faults(), np.random.default_rng(0))
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
