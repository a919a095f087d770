"""PARTITIONS: the rank of every device, chosen so that few edges cross ranks and all ranks have about the same work.

The choice decides only how fast a round is, never its bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.names import unknown_name
from conformesh.graph.network import Network

_Owners = NDArray[np.int64]


def partition_devices(network: Network, ranks: int, by: str = "auto") -> _Owners:
    """Return the rank of every device, (devices,); every rank has at least one.

    `by` is a name of `PARTITIONS`, or "auto": METIS where it is installed, else RCM.
    """
    if ranks > network.devices:
        raise ValueError(
            f"{ranks} ranks are too many for the {network.devices} devices of {network.name}: "
            f"each needs at least one; start at most {network.devices}"
        )
    if by not in ("auto", *PARTITIONS):
        raise ValueError(unknown_name("partition", by, ("auto", *PARTITIONS)))
    if ranks == 1:
        return np.zeros(network.devices, dtype=np.int64)
    if by == "auto":
        by = "rcm" if _pymetis() is None else "metis"
    owners = PARTITIONS[by](network, ranks)
    if len(np.unique(owners)) < ranks:  # METIS may leave a part empty where there are few devices, RCM never does
        owners = _by_rcm(network, ranks)
    return owners


def _by_metis(network: Network, ranks: int) -> _Owners:
    """Cut few edges, by METIS: parts of about equally many devices and edges together."""
    pymetis = _pymetis()
    if pymetis is None:
        raise ValueError("partition 'metis' needs pymetis: pip install 'conformesh[metis]'; or use 'rcm'")
    graph = pymetis.CSRAdjacency(network.indptr, network.indices)
    options = pymetis.Options(seed=0)  # the same parts in every run of a command
    _, parts = pymetis.part_graph(ranks, graph, vweights=_work(network), options=options)
    return np.asarray(parts, dtype=np.int64)


def _by_rcm(network: Network, ranks: int) -> _Owners:
    """Number the devices so that neighbours are near (reverse Cuthill-McKee), and cut the row into equal parts."""
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    order = reverse_cuthill_mckee(network.adjacency().astype(np.int8), symmetric_mode=True)
    done = np.cumsum(_work(network)[order])
    cuts = np.searchsorted(done, done[-1] * np.arange(1, ranks) / ranks)
    for at in range(ranks - 1):  # a hub must not swallow the part of its neighbour
        low = (cuts[at - 1] if at else 0) + 1
        cuts[at] = min(max(cuts[at], low), network.devices - (ranks - 1 - at))
    owners = np.empty(network.devices, dtype=np.int64)
    owners[order] = np.searchsorted(cuts, np.arange(network.devices), side="right")
    return owners


PARTITIONS: dict[str, Callable[[Network, int], _Owners]] = {"metis": _by_metis, "rcm": _by_rcm}


def assign_missing_devices(owners: _Owners, network: Network) -> _Owners:
    """Return owners in which devices without a rank (-1: no file has their scores) have that of a neighbour.

    A device without such a neighbour goes to the rank with the fewest devices.
    """
    owners = owners.copy()
    for device in np.flatnonzero(owners < 0):
        near = owners[network.neighbours(int(device))]
        near = near[near >= 0]
        owners[device] = near.min() if len(near) else np.bincount(owners[owners >= 0]).argmin()
    return owners


def _work(network: Network) -> NDArray[np.int64]:
    """Return what a device costs in a round: its own row, and one addition for each neighbour."""
    return np.asarray(network.degree + 1)


def _pymetis() -> Any:
    try:
        import pymetis
    except ImportError:
        return None
    return pymetis
