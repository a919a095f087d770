import numpy as np
import pytest

from conformesh import Network, calibrate
from conformesh.engines import Simulator
from conformesh.protocols.block import Block
from conformesh.protocols.spectrum_estimation import estimate_spectrum


def estimate(network, **options):
    block = Block.everywhere(network, np.ones((network.devices, 1), dtype=np.int64))
    return Simulator(network).run(estimate_spectrum(block, **options))


def test_estimates_are_close_on_every_topology(topology):
    """Within 2 %: 1e-3 over a doubling, four times that in the careful direction, and what a slow tail hides."""
    truth = topology.spectrum
    found, cost = estimate(topology)
    assert found.source == "estimated"
    assert found.smallest == pytest.approx(truth.smallest, rel=0.02)
    assert found.largest == pytest.approx(truth.largest, rel=0.02)
    assert truth.signless * (1 - 1e-12) <= found.signless <= truth.signless * 1.02
    assert cost.rounds > 2 * (topology.devices - 1)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_tiny_networks(devices):
    found, _ = estimate(Network.chain(devices))
    truth = Network.chain(devices).spectrum
    assert found.smallest == pytest.approx(truth.smallest, rel=0.02)
    assert found.largest == pytest.approx(truth.largest, rel=0.02)


def test_a_longer_chain_takes_longer_but_arrives():
    short, long = estimate(Network.chain(20)), estimate(Network.chain(60))
    assert long[0].smallest == pytest.approx(Network.chain(60).spectrum.smallest, rel=0.02)
    assert long[1].rounds > short[1].rounds


@pytest.mark.parametrize("method", ["h-dcp", "q-dcp"])
def test_what_rests_on_an_estimate_says_so(method, twenty_devices):
    net = Network.torus(5, 4)
    by_map = calibrate(twenty_devices, net, 0.1, method)
    by_talk = calibrate(twenty_devices, net, 0.1, method, spectrum="estimated")
    assert by_talk.certificate.kind == "assumed"
    assert "estimated by message passing" in by_talk.certificate.assumption
    assert by_talk.cost.rounds > by_map.cost.rounds
    assert by_talk.threshold == pytest.approx(by_map.threshold, abs=1e-3)


def test_estimates_go_with_constant_weights_only(twenty_devices):
    with pytest.raises(ValueError, match="goes with weights='best-constant'"):
        calibrate(twenty_devices, Network.torus(5, 4), 0.1, "h-dcp", spectrum="estimated", weights="metropolis")
