"""The simulator: all devices in one process, messages as arrays, costs on a ledger.

It answers `Sum` with one sparse product (neighbours in ascending row), so a round costs O(edges x numbers). The cost of
`Each` grows with the speakers and their neighbours only, that of a maximum with the neighbours of what has changed.
Independent runs may be batched in trailing axes; `runs` is their number, so that the ledger shows the cost of one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.engines.base import drive_protocol
from conformesh.engines.faulty import Lossy
from conformesh.engines.observers import Observer, keeps_messages
from conformesh.engines.ordering import memory_order, reorder_graph
from conformesh.graph.network import Network
from conformesh.kernels.graph import match_senders, message_pairs
from conformesh.kernels.neighbours import (
    max_over_neighbours,
    min_over_neighbours,
    sum_over_neighbours,
)
from conformesh.kernels.segments import take_segments
from conformesh.kernels.spreading import Spreading
from conformesh.protocols.faults import Faults
from conformesh.protocols.ledger import MOST_REMEMBERED_DEVICES, Ledger
from conformesh.protocols.message_checks import MessageChecks
from conformesh.protocols.messages import (
    Deliveries,
    Each,
    Extreme,
    Max,
    Min,
    PacketDeliveries,
    Packets,
    Pool,
    Protocol,
    Sum,
    Tell,
    missing_message_error,
)
from conformesh.results.certificate import Cost

T = TypeVar("T")
__all__ = ["Observer", "Simulator"]


class Simulator:
    """Drive a protocol for every device of a network at once.

    Parameters
    ----------
    network
        The graph of the devices.
    observer
        Called after every round with (round, message, answer): for plots, progress bars and traces. Its arguments do
        not change later, unless it is a `RunObserver` that keeps no messages.
    order
        All rows in the order in which they lie in memory (`Block.rows`), or None for ascending; see `ordering`.
    """

    def __init__(self, network: Network, observer: Observer | None = None, order: Ints | None = None) -> None:
        self.network = network
        self.observer = observer
        self.order = order
        self._indptr: Any = network.indptr
        self._indices: Any = network.indices
        self.place: Ints | None = None  # where each row lies in memory, if not in its own place
        if order is not None:
            self._indptr, self._indices, self.place = reorder_graph(network, order)
        self._numbers = np.zeros(network.devices, dtype=np.int64)  # scratch, which takes no memory before it is used
        self._scratch = np.zeros((2, network.devices), dtype=bool)
        self._routes: dict[bytes, tuple[Ints, Ints]] = {}
        self._speakers: dict[bytes, Ints] = {}
        self._sums: NDArray[Any] | None = None  # memory of the last brief answer, which the next one overwrites
        self._spreading: Spreading | None = None
        self._rules = MessageChecks(network, np.arange(network.devices))
        self._answers: dict[type, Callable[[Any, int], Any]] = {
            Sum: self._sum,
            Max: self._extreme,
            Min: self._extreme,
            Each: self._each,
            Tell: self._tell,
            Pool: self._pool,
        }

    @classmethod
    def in_memory_order(cls, network: Network, observer: Observer | None = None) -> Simulator:
        """Return a simulator with the devices in the order that is fastest, or by row if an observer keeps answers."""
        # An observer expects rows of the network; translating every answer would cost more than the order gains.
        return cls(network, observer, None if keeps_messages(observer) else memory_order(network))

    @property
    def rows(self) -> Ints:
        """Rows of all devices, in the order in which they lie in memory."""
        return np.arange(self.network.devices) if self.order is None else self.order

    @property
    def blocks(self) -> list[NDArray[np.int64]]:
        """Rows of the devices in each block: one block holds them all."""
        return [self.rows]

    def share(self, value: T) -> list[T]:
        """Return the value of every block: there is one."""
        return [value]

    def together(self) -> AbstractContextManager[None]:
        """Guard work that must succeed on every block: nothing to guard."""
        return nullcontext()

    def close(self) -> None:
        """Free resources: there are none."""

    def run(self, protocol: Protocol[T], runs: int = 1, faults: Faults | None = None) -> tuple[T, Cost]:
        """Return the result of the protocol, and the cost of one of its `runs`; with `faults` messages get lost."""
        ledger = Ledger(self.network.devices, runs)
        if faults is None or not faults.loses:
            result = drive_protocol(protocol, self._rules, ledger, self._answers, self.observer)
        else:
            lossy = Lossy(self.network, faults, self.order, plain=keeps_messages(self.observer))
            result = drive_protocol(protocol, self._rules, ledger, lossy.answers, self.observer, lossy.sent_part)
        self._sums = self._spreading = None
        return result, ledger.cost(self.order)

    def _sum(self, message: Sum, round_: int) -> Any:
        if message.values.size <= MOST_REMEMBERED_DEVICES or not message.brief or keeps_messages(self.observer):
            return sum_over_neighbours(self._indptr, self._indices, message.values, message.weights)
        self._sums = sum_over_neighbours(self._indptr, self._indices, message.values, message.weights, self._sums)
        return self._sums

    def _extreme(self, message: Max | Min, round_: int) -> Any:
        values, upward, last = message.values, isinstance(message, Max), self._spreading
        if message.speakers is None:
            found = (max_over_neighbours if upward else min_over_neighbours)(self._indptr, self._indices, values)
            return found.astype(values.dtype, copy=False)  # exact: the extreme is one of them
        if last is None or values is not last.values or last.upward is not upward:
            last = Spreading(self._indptr, self._indices, values, upward, self.order)
        # The next round may go on in the same memory, but not where an observer may keep the answer.
        self._spreading = last if message.brief and not keeps_messages(self.observer) else None
        return Extreme(last.values, last.round(message.places))

    def _each(self, message: Each, round_: int) -> Deliveries | _Broadcast:
        """Deliver each speaker's row along its edges: work and memory follow the speakers, not the network."""
        sent = _Broadcast(self, message, round_)
        return Deliveries(sent.receiver, sent.sender, sent.values, round_) if keeps_messages(self.observer) else sent

    def _tell(self, message: Tell, round_: int) -> PacketDeliveries | _BroadcastBytes:
        """Deliver each speaker's bytes along its edges, as in `_each`."""
        sent = _BroadcastBytes(self, message, round_)
        if not keeps_messages(self.observer):
            return sent
        return PacketDeliveries(sent.receiver, sent.sender, sent.packets, round_)

    def route(self, places: Ints) -> tuple[Ints, Ints]:
        """Return receivers and senders of what these send, as rows of the network, by receiver and then by sender."""
        # Kept for small networks: the levels of a tree send in the same order for every sum, thousands of times.
        few = self.network.devices <= MOST_REMEMBERED_DEVICES
        key = places.tobytes() if few else b""
        if few and key in self._routes:
            return self._routes[key]
        speakers = places if self.order is None else np.sort(self.order[places])
        route = message_pairs(self.network.indptr, self.network.indices, speakers, *self._scratch)
        for rows in route:
            rows.flags.writeable = False  # later rounds get the same arrays
        if few:
            self._routes[key] = route
        return route

    def speaker_index(self, places: Ints, receivers: Ints, senders: Ints, round_: int) -> Ints:
        """Return the index among the speakers of each sender, which must be a neighbour of its receiver."""
        few = self.network.devices <= MOST_REMEMBERED_DEVICES  # as in `route`
        key = b"|".join((places.tobytes(), receivers.tobytes(), senders.tobytes())) if few else b""
        if few and key in self._speakers:
            return self._speakers[key]
        speakers = places if self.order is None else self.order[places]
        graph = self.network.indptr, self.network.indices
        which, strange = match_senders(*graph, speakers, receivers, senders, self._numbers)
        if strange >= 0:
            raise missing_message_error(round_, int(receivers[strange]), int(senders[strange]))
        if few:
            self._speakers[key] = which
        return which

    def _pool(self, message: Pool, round_: int) -> Pool:
        """Hand all values over by row: the block has all devices, so the server sees exactly this."""
        if self.place is None:
            values, offsets = message.values.view(), message.offsets.view()
            values.flags.writeable = offsets.flags.writeable = False  # no copy, so the server must not change scores
            return Pool(values, offsets, message.oracle)
        pieces = (len(message.offsets) - 1) // self.network.devices
        return Pool(*take_segments(message.values, message.offsets, self.place, pieces), message.oracle)


class _Broadcast:
    """`Deliveries` that are computed on demand: a protocol that takes values by sender needs no list of messages."""

    def __init__(self, simulator: Simulator, message: Each | Tell, round_: int) -> None:
        self._simulator, self._round, self._places = simulator, round_, message.places
        self._sent = self._copy(message)

    def _copy(self, message: Any) -> Any:
        # Now and not when asked for: the protocol may change its array before it reads the answer.
        return message.values.take(self._places, axis=0)

    @cached_property
    def _route(self) -> tuple[Ints, Ints]:
        return self._simulator.route(self._places)

    @property
    def receiver(self) -> Ints:
        return self._route[0]

    @property
    def sender(self) -> Ints:
        return self._route[1]

    @cached_property
    def _which(self) -> Ints:
        """The index of the speaker of each message."""
        place = self._simulator.place
        return np.searchsorted(self._places, self.sender if place is None else place[self.sender])

    @property
    def values(self) -> NDArray[Any]:
        return np.asarray(self._sent[self._which])

    def said_by(self, receivers: Ints, senders: Ints) -> Any:
        return self._sent.take(self._simulator.speaker_index(self._places, receivers, senders, self._round), axis=0)


class _BroadcastBytes(_Broadcast):
    """The same for bytes, as `PacketDeliveries`."""

    def _copy(self, message: Any) -> Any:
        return Packets(message.packets.values.copy(), message.packets.offsets.copy())

    @property
    def packets(self) -> Packets:
        return self._sent.take(self._which)  # type: ignore[no-any-return]

    def floats(self, places: Ints) -> NDArray[np.float64]:
        return self._sent.floats(self._which, places)  # type: ignore[no-any-return]

    def said_by(self, receivers: Ints, senders: Ints) -> Any:
        return self._sent.take(self._simulator.speaker_index(self._places, receivers, senders, self._round))
