"""Links that work: averaging over them keeps sums, because weights are the same in both directions."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.graph.weights import metropolis
from conformesh.online.integrators import Bools, Floats

Ints = NDArray[np.int64]


class Links:
    """Who may talk to whom, and whose messages got through.

    Parameters
    ----------
    network
        The graph.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.receiver, self.sender = network.receivers, network.indices.astype(np.int64)

    @cached_property
    def _back(self) -> Ints:
        """Where the other direction of every edge stands."""
        K = self.network.devices
        return np.searchsorted(self.receiver * K + self.sender, self.sender * K + self.receiver)

    @cached_property
    def _whole(self) -> Any:
        return metropolis(self.network).matrix(self.network)

    def both(self, arrives: Bools) -> Bools:
        """Return along which edges something got through both ways."""
        return arrives & arrives[self._back]

    def averaged(self, x: Floats, arrives: Bools | None) -> Floats:
        """Return x averaged over these edges with Metropolis weights, which are doubly stochastic; None means all."""
        if arrives is None:
            return np.asarray(self._whole @ x)
        to, of = self.receiver[arrives], self.sender[arrives]
        degree = np.bincount(to, minlength=len(x))
        move = (x[of] - x[to]) / (1 + np.maximum(degree[to], degree[of]))
        return x + np.bincount(to, move, minlength=len(x))
