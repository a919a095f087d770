"""In which order devices lie in memory: neighbours near each other, so that a round walks memory in order.

The order is the simulator's own affair. A protocol is told which rows it hosts and in which order (`Block.rows`), every
row still adds up its neighbours in ascending row of the network, and results come back in the network's rows: the same
bits with and without.

Where it pays: a round over a million devices with shuffled names is several times slower than over the same devices in
order, and as slow as a random graph, which no order helps. So the mean distance |i - j| over the edges decides. Up to
`SMALL_NETWORK` devices everything fits into the cache. Below 1/32 of the devices (a torus or a grid by rows, a
geometric graph by strips, a chain: all that this library builds in space) memory is walked in order already. Otherwise
a breadth-first walk from a far end numbers the devices, as Cuthill and McKee do ([CuthillMcKee1969]) but for their
sorting by degree, which costs more than it gains here. The new order is taken if it brings the mean distance to a
quarter; on a random graph it does not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.kernels.graph import breadth_first, mean_memory_distance, reorder_neighbours

SMALL_NETWORK = 65_536  # devices; one float64 for each (512 KB) fits into the cache of a core
_NEAR_SHARE = 1 / 32  # share of the devices; nearer neighbours on average need no reordering
_GAIN = 4  # factor by which an order must shorten the mean distance to be worth copying all data


def memory_order(network: Network) -> NDArray[np.int64] | None:
    """Return the rows in the order in which they should lie in memory, or None to leave them as they are."""
    K = network.devices
    if K <= SMALL_NETWORK:
        return None
    span = mean_memory_distance(network.indptr, network.indices, np.arange(K))
    if span <= _NEAR_SHARE * K:
        return None
    order = breadth_first_order(network)
    return (
        order if _GAIN * mean_memory_distance(network.indptr, network.indices, inverse_order(order)) <= span else None
    )


def breadth_first_order(network: Network) -> NDArray[np.int64]:
    """Return the rows by distance from a far end."""
    levels, order = np.empty(network.devices, np.int64), np.empty(network.devices, np.int64)
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
