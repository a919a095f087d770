"""The simulator: all devices in one process, messages as arrays, costs on a ledger.

Answers `Sum` with one sparse product (neighbours in ascending id), so a round costs O(edges x numbers). Independent
runs may ride along in trailing axes; `runs` says how many, so that the ledger shows the cost of one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformesh.certificate import Cost
from conformesh.engines.base import Observer
from conformesh.engines.ledger import REMEMBERED, Ledger
from conformesh.kernels.neighbours import max_over_neighbours, min_over_neighbours, sum_over_neighbours
from conformesh.network import Network
from conformesh.protocols.messages import Each, Heard, Max, Min, Pool, Protocol, Sum

T = TypeVar("T")
__all__ = ["Observer", "Simulator"]


class Simulator:
    """Drive a protocol for every device of a network at once.

    Parameters
    ----------
    network
        Who may talk to whom.
    observer
        Called after every round with (round, message, answer): for plots, progress bars and traces.
    """

    def __init__(self, network: Network, observer: Observer | None = None) -> None:
        self.network = network
        self.observer = observer
        self._routes: dict[bytes, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._answers: dict[type, Callable[[Any], Any]] = {
            Sum: self._sum,
            Max: self._max,
            Min: self._min,
            Each: self._each,
            Pool: self._pool,
        }

    @property
    def here(self) -> NDArray[np.int64]:
        """Rows of the devices hosted here: all of them."""
        return np.arange(self.network.devices)

    @property
    def blocks(self) -> list[NDArray[np.int64]]:
        """Rows of the devices in each block: one block holds them all."""
        return [self.here]

    def share(self, mine: T) -> list[T]:
        """Return what every block has: there is one."""
        return [mine]

    def together(self) -> AbstractContextManager[None]:
        """Guard work that must succeed on every block: nothing to guard."""
        return nullcontext()

    def close(self) -> None:
        """Give back what the engine holds: nothing."""

    def run(self, protocol: Protocol[T], runs: int = 1) -> tuple[T, Cost]:
        """Return what the protocol returns, and what one of its `runs` cost."""
        ledger = Ledger(self.network.devices, runs)
        answer: Any = None
        while True:
            try:
                message = protocol.send(answer)
            except StopIteration as end:
                return end.value, ledger.cost()
            answer = self._answers[type(message)](message)
            ledger.enter(message)
            if self.observer is not None:
                self.observer(ledger.rounds, message, answer)

    def _sum(self, message: Sum) -> Any:
        return sum_over_neighbours(self.network.indptr, self.network.indices, message.values, message.weights)

    def _max(self, message: Max) -> Any:
        found = max_over_neighbours(self.network.indptr, self.network.indices, message.values)
        return found.astype(message.values.dtype, copy=False)  # exact: the largest is one of them

    def _min(self, message: Min) -> Any:
        found = min_over_neighbours(self.network.indptr, self.network.indices, message.values)
        return found.astype(message.values.dtype, copy=False)

    def _each(self, message: Each) -> Heard:
        """Deliver each speaker's row along its edges: work and memory follow the speakers, not the network."""
        key = message.speakers.tobytes() if len(message.speakers) <= REMEMBERED else None
        route = self._routes.get(key) if key is not None else None
        if route is None:
            route = self._route(np.flatnonzero(message.speakers))
            if key is not None:
                self._routes[key] = route
        receiver, sender = route
        return Heard(receiver, sender, message.values[sender])

    def _route(self, speakers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return who hears whom when these speak, by receiver and then by sender."""
        starts, degrees = self.network.indptr[speakers], self.network.degree[speakers]
        sender = np.repeat(speakers, degrees)
        within = np.arange(len(sender)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
        receiver = self.network.indices[np.repeat(starts, degrees) + within].astype(np.int64)
        order = np.lexsort((sender, receiver))
        return receiver[order], sender[order]

    def _pool(self, message: Pool) -> Pool:
        return message  # the block is everybody: the server sees exactly this
