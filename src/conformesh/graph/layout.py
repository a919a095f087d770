"""Where to draw the devices of a network, and the lines between them."""

from __future__ import annotations

import numpy as np

from conformesh.common.array_types import Floats
from conformesh.graph.network import Network

_SPRINGS = 150  # devices for which a spring layout takes a small part of a second


def device_positions(network: Network, quick: bool = False) -> Floats:
    """Return where to draw the devices: a line folded to and fro, and a grid lying rather than standing.

    With `quick` springs, where nobody knows coordinates, are for small networks only.
    """
    where = np.array(network.positions(springs=_SPRINGS) if quick else network.positions())
    if network.devices >= 6 and np.ptp(where[:, 1]) == 0:
        short = next((c for c in range(int(network.devices**0.5), 1, -1) if network.devices % c == 0), 5)
        row, column = np.divmod(np.arange(network.devices), short)
        where = np.column_stack([np.where(row % 2, short - 1 - column, column), -row]).astype(np.float64)
    standing = is_lattice(where) and np.ptp(where[:, 1]) > np.ptp(where[:, 0])
    return -where[:, ::-1] if standing else where


def is_lattice(where: Floats) -> bool:
    """Say whether devices stand on whole numbers."""
    return bool((where == where.round()).all())


def edge_lines(network: Network, where: Floats) -> list[tuple[Floats, Floats]]:
    """Return the lines to draw; an edge around a torus becomes two ends that leave the picture on opposite sides."""
    pairs = np.column_stack([network.receivers, network.indices])
    found = []
    for a, b in pairs[pairs[:, 0] < pairs[:, 1]]:
        step = where[b] - where[a]
        if network.name.startswith("torus") and np.abs(step).max() > 1.5:
            away = 0.6 * np.sign(step)
            found += [(where[a], where[a] - away), (where[b], where[b] + away)]
        else:
            found.append((where[a], where[b]))
    return found
