"""The order of devices in memory: neighbours near each other, so that a round reads memory in sequence.

Only the simulator knows this order. A protocol gets its rows in this order (`Block.rows`), every row still adds up its
neighbours in ascending row of the network, and results come back in the network's rows: the bits are the same with and
without it.

Where it pays: a round over a million devices with shuffled names is several times slower than over the same devices in
order, and as slow as a random graph, which no order helps. So the mean distance |i - j| over the edges decides. Up to
`MOST_CACHED_DEVICES` everything fits into the cache. Below 1/32 of the devices (a torus or a grid by rows, a geometric
graph by strips, a chain: all spatial networks of this library) memory is read in sequence already. Otherwise a
breadth-first walk from a far end numbers the devices, as Cuthill and McKee do ([CuthillMcKee1969]) but for their
sorting by degree, which costs more than it gains here. The new order is taken if it reduces the mean distance to a
quarter; on a random graph it does not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.kernels.graph import breadth_first, mean_memory_distance, reorder_neighbours

MOST_CACHED_DEVICES = 65_536  # devices; so many numbers fit into a core's cache
_NEAR = 1 / 32  # share of the devices: a mean distance below it is near enough
_GAIN = 4  # factor by which an order must shorten the mean distance: it costs a copy of graph and scores


def memory_order(network: Network) -> NDArray[np.int64] | None:
    """Return the rows in the order in which they should lie in memory, or None to leave them as they are."""
    K = network.devices
    if K <= MOST_CACHED_DEVICES:
        return None
    span = mean_memory_distance(network.indptr, network.indices, np.arange(K))
    if span <= _NEAR * K:
        return None
    order = breadth_first_order(network)
    return (
        order if _GAIN * mean_memory_distance(network.indptr, network.indices, inverse_order(order)) <= span else None
    )


def breadth_first_order(network: Network) -> NDArray[np.int64]:
    """Return the rows by distance from a far end."""
    levels, order = np.empty(network.devices, np.int64), np.empty(network.devices, np.int64)
    # The last device of a walk is at a far end. From there the levels are small, and neighbours near each other.
    breadth_first(network.indptr, network.indices, 0, levels, order)
    breadth_first(network.indptr, network.indices, int(order[-1]), levels, order)
    return order


def inverse_order(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of every row in an order of all rows."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place


def reorder_graph(
    network: Network, order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Return the graph over places in `order`, each one's neighbours still by ascending row, and every row's place."""
    place = inverse_order(order)
    indptr = np.zeros(network.devices + 1, dtype=np.int64)
    np.cumsum(network.degree[order], out=indptr[1:])
    return indptr, reorder_neighbours(network.indptr, network.indices, order, place, indptr), place
