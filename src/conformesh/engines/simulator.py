"""The simulator: all devices in one process, messages as arrays, costs on a ledger.

Answers `Sum` with one sparse product (neighbours in ascending id), so a round costs O(edges x numbers). Independent
runs may ride along in trailing axes; `runs` says how many, so that the ledger shows the cost of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformesh.certificate import Cost
from conformesh.kernels.neighbours import max_over_neighbours, min_over_neighbours, sum_over_neighbours
from conformesh.network import Network
from conformesh.protocols.messages import Each, Heard, Max, Message, Min, Pool, Protocol, Sum

T = TypeVar("T")
REMEMBERED = 4096  # devices up to which routes are remembered: a tree speaks in the same order for every sum
Observer = Callable[[int, Message, Any], None]


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

    def run(self, protocol: Protocol[T], runs: int = 1) -> tuple[T, Cost]:
        """Return what the protocol returns, and what one of its `runs` cost."""
        ledger = _Ledger(self.network.devices, runs)
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


class _Ledger:
    """Adds up what each device sent: a broadcast to all neighbours counts once, as in the paper."""

    def __init__(self, devices: int, runs: int) -> None:
        self.rounds = 0
        self.runs = runs
        self.everyone = [0.0, 0.0]  # numbers and bits that every device sent alike: most rounds only touch these
        self.spoken: dict[bytes, tuple[float, float]] = {}  # the same for those who spoke, by who they were
        self.numbers = np.zeros(devices)
        self.bits = np.zeros(devices)

    def enter(self, message: Message) -> None:
        width = 8 * message.values.dtype.itemsize
        if isinstance(message, Sum | Max | Min):
            self.rounds += 1
            numbers = message.values[0].size / (1 if message.shared else self.runs)
            self.everyone[0] += numbers
            self.everyone[1] += numbers * width
            return
        if isinstance(message, Each):
            self.rounds += 1
            numbers = message.values[0].size / self.runs
            key = message.speakers.tobytes()
            tally = self.spoken.get(key) or (0.0, 0.0)
            self.spoken[key] = (tally[0] + numbers, tally[1] + numbers * width)
            if len(key) > REMEMBERED:
                self._settle()
        elif not message.oracle:
            self.rounds += 2  # up to the server, and back
            # the offsets may cut a device's values into trials: add them up per device
            per_device = np.diff(message.offsets).reshape(len(self.numbers), -1).sum(axis=1) / self.runs
            self.numbers += per_device
            self.bits += per_device * width

    def _settle(self) -> None:
        """Charge those who spoke."""
        for key, (numbers, bits) in self.spoken.items():
            speakers = np.flatnonzero(np.frombuffer(key, dtype=bool))
            self.numbers[speakers] += numbers
            self.bits[speakers] += bits
        self.spoken.clear()

    def cost(self) -> Cost:
        self._settle()
        return Cost(self.rounds, self.numbers + self.everyone[0], self.bits + self.everyone[1])
