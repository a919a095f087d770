"""The network that an argument means: a `Network`, a topology, pairs of devices, a matrix or a NetworkX graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from conformesh.common.arrays import as_array
from conformesh.common.names import device_name, natural_order, unknown_name
from conformesh.common.notes import emit_note
from conformesh.graph.network import Network
from conformesh.graph.topologies import shorter_side
from conformesh.table import Table


def read_network(network: Any, engine: Any = "simulator") -> tuple[Any, list[Sequence[str]]]:
    """Return the network with a NetworkX graph read, and the names that devices in an order have in errors.

    The data may be of all devices, or of those that an engine which exists hosts. A network that only has a name takes
    its devices from the data: then there is nothing to know.
    """
    if not isinstance(network, Network):
        if not _is_networkx(network):
            return network, []
        network = Network.from_networkx(network)
    local_rows = getattr(engine, "rows", None)  # an engine that is only named does not exist yet and hosts nothing
    return network, [network.ids, *([] if local_rows is None else [network.local_ids(local_rows)])]


def _is_networkx(network: Any) -> bool:
    return hasattr(network, "is_directed") and hasattr(network, "adj")  # without importing it


def as_network(network: Any, table: Table) -> Network:
    """Return the network that was meant.

    A `Network`, a NetworkX graph, pairs of devices, an adjacency matrix, or the name of a topology of as many devices
    as the table has. None is a torus, or a cycle where the number of devices has no two factors.
    """
    if isinstance(network, Network):
        return network
    if network is None:
        network = "cycle" if shorter_side(table.devices) is None else "torus"
    if isinstance(network, str):
        from conformesh.graph.topologies import TOPOLOGIES

        if network not in TOPOLOGIES:
            raise ValueError(unknown_name("topology", network, TOPOLOGIES))
        if table.is_wide and table.devices > len(table) / table.devices:
            each = len(table) // table.devices
            emit_note(
                f"a table of shape {(table.devices, each)} is read as {table.devices} devices with {each} scores each, "
                "a row per device; pass table.T if its columns are the devices"
            )
        built = Network.of(network, table.devices)
        return built if table.names is None else built.relabelled(natural_order(table.names))
    if _is_networkx(network):
        return Network.from_networkx(network)
    if hasattr(network, "shape") and len(network.shape) == 2 and network.shape[0] == network.shape[1] != 2:
        return _of_matrix(network, table)
    if isinstance(network, list | tuple | np.ndarray) and all(_is_pair(pair) for pair in network):
        return _of_pairs(network, table)
    raise TypeError(
        "network must be a Network, the name of a topology such as 'torus', pairs of devices, an adjacency matrix or a "
        f"NetworkX graph, got {type(network).__name__} {str(network)[:40]!r}"
    )


def _is_pair(pair: Any) -> bool:
    return not isinstance(pair, str) and hasattr(pair, "__len__") and len(pair) == 2


def _of_pairs(pairs: Any, table: Table) -> Network:
    """Return the network with these edges; devices are those of the table, by name or by number."""
    if table.names is None:
        return Network.from_pairs(table.devices, pairs)
    return Network.from_pairs(natural_order(table.names), [tuple(map(device_name, pair)) for pair in pairs])


def _of_matrix(matrix: Any, table: Table) -> Network:
    """Return the network of a symmetric matrix, whose entries other than 0 are edges."""
    dense = np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else as_array(matrix, "network"))
    if len(dense) != table.devices:
        raise ValueError(f"the adjacency matrix has {len(dense)} rows but scores came for {table.devices} devices")
    if table.names is not None and table.names != natural_order(table.names):
        emit_note(
            "an adjacency matrix does not name its devices: its rows are read in the order of their names, "
            f"{', '.join(natural_order(table.names)[:5])}, ...; give pairs of devices if another order is meant"
        )
    linked = dense != 0
    if (linked != linked.T).any():
        raise ValueError("the adjacency matrix must be symmetric: devices that are linked talk both ways")
    pairs = np.argwhere(np.triu(linked, 1))
    built = Network.from_pairs(table.devices, pairs)
    return built if table.names is None else built.relabelled(natural_order(table.names))
