"""Loops: an engine that answers every device by a loop over its neighbours. Slow, and nothing to misunderstand."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformesh.engines import Driver
from conformesh.engines.base import drive_protocol, refuse_lost_messages
from conformesh.engines.observers import Observer
from conformesh.graph.network import Network
from conformesh.protocols.faults import Faults
from conformesh.protocols.ledger import Ledger
from conformesh.protocols.message_checks import MessageChecks
from conformesh.protocols.messages import (
    Deliveries,
    Each,
    Extreme,
    Max,
    Min,
    PacketDeliveries,
    Pool,
    Protocol,
    Sum,
    Tell,
)
from conformesh.results.certificate import Cost

T = TypeVar("T")


class Loops:
    """Hosts every device in this process. See `engines.base.Engine` for what each part is asked for."""

    def __init__(self, network: Network, observer: Observer | None = None) -> None:
        self.network, self.observer = network, observer
        self.rows = np.arange(network.devices)  # an engine of many processes hosts some rows in each
        self.blocks = [self.rows]

    def run(self, protocol: Protocol[T], runs: int = 1, faults: Faults | None = None) -> tuple[T, Cost]:
        """Answer question after question; the ledger has charged everybody by the end."""
        refuse_lost_messages("loops", faults)
        ledger = Ledger(self.network.devices, runs)
        answers = {
            Sum: self._sum,
            Max: self._extreme,
            Min: self._extreme,
            Each: self._each,
            Tell: self._tell,
            Pool: self._pool,
        }
        return drive_protocol(
            protocol, MessageChecks(self.network, self.rows), ledger, answers, self.observer
        ), ledger.cost()

    def share(self, mine: T) -> list[T]:
        """Return what every block has: there is one."""
        return [mine]

    def together(self) -> AbstractContextManager[None]:
        """Guard what must succeed on every block: there is one."""
        return nullcontext()

    def close(self) -> None:
        """Give back what the engine holds: nothing."""

    def _sum(self, message: Sum, round_: int) -> NDArray[Any]:
        """Add up in float64 or int64, neighbours in ascending id: then every engine gives the same bits."""
        whole = message.weights is None and message.values.dtype.kind in "iu"
        answer = np.zeros(message.values.shape, dtype=np.int64 if whole else np.float64)
        for k in self.rows:
            for j, edge in zip(self.network.neighbours(k), range(*self.network.indptr[k : k + 2]), strict=True):
                weight = 1 if message.weights is None else message.weights[edge]
                answer[k] += weight * message.values[j].astype(answer.dtype)
        return answer

    def _extreme(self, message: Max | Min, round_: int) -> NDArray[Any] | Extreme:
        best = np.maximum if isinstance(message, Max) else np.minimum
        answer = message.values.copy()
        for k, j in self._pairs(message).T:
            answer[k] = best(answer[k], message.values[j])
        if message.speakers is None:  # everybody spoke
            return answer
        changed = [k for k in self.rows if answer[k].tobytes() != message.values[k].tobytes()]
        return Extreme(answer, np.array(changed, dtype=np.int64))

    def _each(self, message: Each, round_: int) -> Deliveries:
        receiver, sender = self._pairs(message)
        return Deliveries(receiver, sender, message.values[sender], round_)

    def _tell(self, message: Tell, round_: int) -> PacketDeliveries:
        receiver, sender = self._pairs(message)
        return PacketDeliveries(receiver, sender, message.packets.take(np.searchsorted(message.places, sender)), round_)

    def _pairs(self, message: Each | Max | Min | Tell) -> NDArray[np.int64]:
        """List who hears whom, by receiver and then by sender."""
        speaks = {*message.places.tolist()}
        pairs = [(k, j) for k in self.rows for j in self.network.neighbours(k) if j in speaks]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2).T

    def _pool(self, message: Pool, round_: int) -> Pool:
        return message  # the devices here are all there are, so a server would see exactly this


# The line for ENGINES in engines/__init__.py:
LINE = {"loops": Driver(Loops, "one process for all devices, in plain loops")}
