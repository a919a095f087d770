"""Which network a plan simulates: the one asked for, or a smaller one of the same kind where that is too large.

A smaller network of a topology has the same options; those that depend on the number of devices are changed so that
devices have as many neighbours on average as before. Of a network without a topology (a file of edges, a `Network`) the
devices nearest to its centre are taken, with the edges between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformesh.common.array_types import Ints
from conformesh.common.names import unknown_name
from conformesh.graph.network import Network
from conformesh.graph.topologies import TOPOLOGIES, build_topology

# Devices. Measured on 2 cores with 50 scores on each device of a torus: on 1,000 devices all ways but one end within
# the time limit of a run, and the whole table takes about 15 seconds; on 4,000 devices four of them are stopped.
MOST_SIMULATED_DEVICES = 1_000


@dataclass(frozen=True, eq=False)
class SimulatedNetwork:
    """The network that was asked for, in words, and the one that stands for it.

    Attributes
    ----------
    asked, asked_devices
        Name and number of devices of the network that was asked for.
    network
        The network on which methods run.
    rows
        Which device of the network asked for each device of this one stands for, (devices,).
    how
        How the smaller network was chosen; empty where `network` is the one that was asked for.
    """

    asked: str
    asked_devices: int
    network: Network
    rows: Ints
    how: str = ""

    @property
    def is_smaller(self) -> bool:
        """Whether the figures come from a smaller network than the one asked for."""
        return self.network.devices < self.asked_devices

    def describe(self) -> str:
        """Say in a sentence where the figures come from."""
        one = self.network
        size = f"{one.devices:,} devices, {one.edges:,} edges, diameter {one.diameter:,}"
        if not self.is_smaller:
            return f"figures from runs on the network itself, {one.name}: {size}"
        return (
            f"figures from runs on a smaller network than asked for, {one.name}: {size} ({self.how}); asked for: "
            f"{self.asked}, {self.asked_devices:,} devices, where costs differ"
        )


def simulated_topology(
    topology: str,
    devices: int,
    most: int = MOST_SIMULATED_DEVICES,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> SimulatedNetwork:
    """Build the topology with so many devices, or with fewer than `most` where there are more."""
    if topology not in TOPOLOGIES:
        raise ValueError(unknown_name("topology", topology, TOPOLOGIES))
    given = dict(options or {})
    if devices <= most:
        network = build_topology(topology, devices, seed=seed, **given)
        return SimulatedNetwork(network.name, devices, network, np.arange(devices))
    network = _smaller(topology, devices, most, seed, given)
    rows = np.linspace(0, devices - 1, network.devices).astype(np.int64)
    return SimulatedNetwork(
        f"{topology} {devices}", devices, network, rows, f"the same topology, at most {most:,} devices"
    )


def _smaller(topology: str, devices: int, most: int, seed: int, options: dict[str, Any]) -> Network:
    """Build the largest network of the topology with at most so many devices."""
    reason = ValueError(f"a plan needs at least 1 device to simulate, got {most}")
    # Some sizes do not work, such as a prime number of devices for a torus. Take the largest that does.
    for fewer in range(most, most // 2, -1):
        try:
            return build_topology(topology, fewer, seed=seed, **_scaled(options, devices, fewer))
        except ValueError as error:
            reason = error
    raise reason


def _scaled(options: Mapping[str, Any], devices: int, fewer: int) -> dict[str, Any]:
    """Return options of a topology for fewer devices, with as many neighbours on average."""
    found = dict(options)
    if "radius" in found:  # neighbours grow with K r^2
        found["radius"] = found["radius"] * math.sqrt(devices / fewer)
    if "p" in found:  # neighbours grow with K p
        found["p"] = min(found["p"] * devices / fewer, 1.0)
    if "rows" in found and "columns" in found:  # their product is the number of devices
        del found["rows"], found["columns"]
    return found


def simulated_network(network: Network, most: int = MOST_SIMULATED_DEVICES) -> SimulatedNetwork:
    """Take the network, or the devices nearest to its centre where it has more than `most` devices."""
    if network.devices <= most:
        return SimulatedNetwork(network.name, network.devices, network, np.arange(network.devices))
    rows = _nearest(network, most)
    place = np.full(network.devices, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    ends = place[network.receivers], place[network.indices]
    kept = (ends[0] >= 0) & (ends[0] < ends[1])  # each edge appears in both directions; keep one
    part = Network.from_pairs(len(rows), np.stack([ends[0][kept], ends[1][kept]], axis=1), f"centre of {network.name}")
    part = part.relabelled([network.ids[row] for row in rows])
    return SimulatedNetwork(
        network.name, network.devices, part, rows, f"the {most:,} devices nearest to its centre, with their edges"
    )


def _nearest(network: Network, most: int) -> Ints:
    """Return the rows of the devices nearest to the centre, ascending; as a ball they are connected."""
    from conformesh.kernels.graph import breadth_first

    levels, queue = np.empty((2, network.devices), dtype=np.int64)
    breadth_first(network.indptr, network.indices, network.centre, levels, queue)
    return np.sort(queue[:most])
