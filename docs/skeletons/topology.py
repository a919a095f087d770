"""A topology: a function from a number of devices (and options) to a network."""

from __future__ import annotations

import numpy as np

from conformesh.graph.network import Network
from conformesh.graph.topologies import Topology


def wheel(devices: int, spokes: int = 1) -> Network:
    """A ring whose every `spokes`-th device is also joined to device 0 in the middle.

    A random topology takes a keyword `seed` as well, and redraws from it until the graph is connected.
    """
    if devices < 4:
        raise ValueError(f"wheel needs at least 4 devices, got {devices}")
    if spokes < 1:
        raise ValueError(f"wheel needs spokes of at least 1, got {spokes}")
    ring = np.arange(1, devices)
    around = np.column_stack([ring, np.roll(ring, -1)])
    joined = ring[::spokes]
    pairs = np.concatenate([around, np.column_stack([np.zeros_like(joined), joined])])
    return Network.from_pairs(devices, pairs, f"wheel {devices}")  # refuses a disconnected graph, finds the rest


# The line for TOPOLOGIES in topologies.py:
LINE = {"wheel": Topology(wheel, "a ring around a hub", {"spokes": "every how many devices one is joined to the hub"})}
