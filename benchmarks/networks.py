"""Networks that more than one benchmark measures on, by name, and gossip on them, timed round by round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.spatial import KDTree

from conformesh import Network
from conformesh.engines.base import Engine
from conformesh.graph.weights import Weights
from conformesh.kernels.graph import components
from conformesh.protocols.block import Block
from conformesh.protocols.consensus import gossip
from conformesh.protocols.messages import Protocol

SHUFFLED, SPARSE = "torus with shuffled names", "geometric of degree 6"


def network_of(topology: str, devices: int) -> Network:
    """Return a topology of the library by its name, or one of the two above."""
    if topology == SHUFFLED:
        plain = Network.of("torus", devices)
        names = np.random.default_rng(1).permutation(devices)
        return Network.from_pairs(devices, names[plain._pairs()], topology, known=plain.known)
    if topology == SPARSE:
        return _connected_geometric(devices, math.sqrt(6 / (math.pi * devices)))
    return Network.of(topology, devices, seed=0)


def _connected_geometric(devices: int, radius: float) -> Network:
    """Return the largest connected part of a random geometric graph, rows by strips as `Network.geometric` has them."""
    points = np.random.default_rng(0).random((devices, 2))
    points = points[np.lexsort((points[:, 0], np.floor(points[:, 1] / radius)))]
    pairs = KDTree(points).query_pairs(radius, output_type="ndarray").astype(np.int64)
    both = np.concatenate([pairs, pairs[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(both[:, 0], minlength=devices))])
    labels = components(indptr, both[:, 1].astype(np.int32))
    inside = labels == np.bincount(labels).argmax()
    rows = np.cumsum(inside) - 1
    return Network.from_pairs(int(inside.sum()), rows[pairs[inside[pairs[:, 0]]]], SPARSE)


def ring_of(devices: int, degree: int) -> Network:
    """Return a circle on which everybody knows the `degree` / 2 devices to either side."""
    row = np.arange(devices)
    pairs = np.concatenate([np.column_stack([row, (row + d) % devices]) for d in range(1, degree // 2 + 1)])
    return Network.from_pairs(devices, pairs, f"ring of degree {degree}")


def gossiping(engine: Engine, numbers: int) -> Callable[[int], list[float]]:
    """Return a job that gossips so many rounds and gives the seconds of each, on the devices that the engine hosts."""
    network = engine.network
    block = Block(network, engine.rows, np.ones((network.devices, 1), dtype=np.int64))
    x = np.random.default_rng(0).random((network.devices, numbers))[engine.rows]
    a = 1.0 / (int(network.degree.max()) + 1)
    weights = Weights("max-degree", a, a * network.degree.astype(float), 1.0, 0.0, "estimated")  # nobody asks for more

    def run(rounds: int) -> list[float]:
        moments: list[float] = []
        engine.run(_stamped(gossip(x, block, weights, rounds), moments))
        return [late - early for early, late in pairwise(moments)]

    return run


def _stamped(protocol: Protocol[Any], moments: list[float]) -> Protocol[Any]:
    """Note when a protocol has its next message ready, and when it ends: an observer would keep memory from reuse."""
    answer = None
    while True:
        try:
            message = protocol.send(answer)
        except StopIteration as end:
            moments.append(time.perf_counter())
            return end.value
        moments.append(time.perf_counter())
        answer = yield message
