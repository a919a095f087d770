"""Pictures are drawn, whatever the network and however good the methods."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.image import imread

from conformesh import TOPOLOGIES, Network
from conformesh.graph.layout import device_positions, edge_lines
from conformesh.plots.pictures import Agreement, MethodMeasurement, draw_agreement, draw_methods


def agreement(network: Network, threshold: float = 0.5) -> Agreement:
    rng = np.random.default_rng(0)
    decay = 0.7 ** np.arange(40)[:, None]
    return Agreement(
        network, rng.integers(1, 60, network.devices), 0.5 + decay * (rng.random(network.devices) - 0.5), threshold
    )


def drawn(path) -> np.ndarray:
    image = imread(path)[:, :, :3]
    assert image.std() > 0.03
    return image


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_any_network(tmp_path, name):
    draw_agreement(tmp_path / "a.png", [agreement(Network.of(name, 12))])
    drawn(tmp_path / "a.png")


@pytest.mark.parametrize("devices", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (6, 20)), 100])
def test_any_number_of_devices(tmp_path, devices):
    draw_agreement(tmp_path / "a.png", [agreement(Network.torus(devices)), agreement(Network.chain(devices), np.inf)])
    drawn(tmp_path / "a.png")


def test_no_two_devices_share_a_place():
    for name in TOPOLOGIES:
        where = device_positions(Network.of(name, 20))
        assert len(np.unique(where.round(6), axis=0)) == 20


def test_a_folded_chain_has_edges_of_length_one():
    network = Network.chain(20)
    lengths = [np.linalg.norm(b - a) for a, b in edge_lines(network, device_positions(network))]
    assert lengths == [1.0] * 19


def test_edges_around_a_torus_leave_the_picture():
    network = Network.torus(5, 4)
    segments = edge_lines(network, device_positions(network))
    assert len(segments) == 40 + 9  # each of 9 edges around is drawn as two ends
    assert max(np.linalg.norm(b - a) for a, b in segments) == 1.0


def test_methods_with_extreme_values(tmp_path):
    measured = [
        MethodMeasurement(method, network, guarantee, needs, coverage, low, high, size)
        for network in ("torus 5x4", "chain 20", "star 20")
        for method, guarantee, needs, coverage, low, high, size in (
            ("one", "counted", "neighbours", 1.0, 0.99, 1.0, 100.0),
            ("two", "none", "nothing", 0.0, 0.0, 0.01, 0.0),
            ("three", "assumed", "server", 0.9, 0.9, 0.9, 1.0),
        )
    ]
    draw_methods(tmp_path / "m.png", measured, 0.1)
    drawn(tmp_path / "m.png")
