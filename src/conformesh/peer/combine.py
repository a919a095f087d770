"""Combine the neighbours' messages for one device, with the same bits as in the simulator.

Neighbours are combined in ascending row, in float64 or int64, whatever order their messages came in: sums of floats
depend on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.protocols.messages import (
    Deliveries,
    Each,
    Extreme,
    Max,
    Message,
    Min,
    PacketDeliveries,
    Packets,
    Sum,
    Tell,
    kind_of,
)

Array = NDArray[Any]
Value = Array | bytes  # the message of one neighbour: a row of numbers, or bytes
_RowMessages = list[tuple[int, Any]]  # row and message of each neighbour that is not silent, by ascending row


def question_name(message: Message) -> str:
    """Return the name of a question that neighbours can answer."""
    kind = kind_of(message)
    if kind.code is None:
        raise TypeError(f"a mesh has no server to answer {kind.name!r}")
    if type(message) not in COMBINERS:
        raise TypeError(f"a device has no answer to {kind.name!r}; add it to the table of answers in peer/combine.py")
    return kind.name


def combine_neighbour_messages(
    message: Message, row: int, received: Mapping[int, Value | None], round_: int = 0
) -> Any:
    """Combine the messages of the neighbours, by row of the neighbour; None where it was silent."""
    messages = [(j, x) for j in sorted(received) if (x := received[j]) is not None]
    return COMBINERS[type(message)](message, messages, row, round_)


def _sum(message: Sum, messages: _RowMessages, row: int, round_: int) -> Array:
    exact = message.weights is None and message.values.dtype.kind in "iu"  # sums of integers stay integers
    total: Array = np.zeros(message.values.shape, dtype=np.int64 if exact else np.float64)
    for at, (_, x) in enumerate(messages):
        term = np.asarray(x, dtype=total.dtype)
        total += term if message.weights is None else message.weights[at] * term
    return total


def _extreme(message: Max | Min, messages: _RowMessages, row: int, round_: int) -> Array | Extreme:
    better = np.greater if isinstance(message, Max) else np.less
    extreme = message.values.copy()
    for _, x in messages:
        # NaN wins, as in NumPy. Of equal values the first is kept, which matters for the bits of 0.0 and -0.0.
        np.copyto(extreme, x, where=better(x, extreme) | (np.isnan(x) & ~np.isnan(extreme)))
    if message.speakers is None:
        return extreme
    same = (extreme == message.values) | np.isnan(message.values)
    return Extreme(extreme, np.flatnonzero([not same.all()]))


def _each(message: Each, messages: _RowMessages, row: int, round_: int) -> Deliveries:
    values = np.array([x for _, x in messages], dtype=message.values.dtype)
    values = values.reshape(len(messages), *message.values.shape[1:])
    return Deliveries(np.full(len(messages), row), _senders(messages), values, round_)


def _tell(message: Tell, messages: _RowMessages, row: int, round_: int) -> PacketDeliveries:
    return PacketDeliveries(
        np.full(len(messages), row), _senders(messages), Packets.of([data for _, data in messages]), round_
    )


def _senders(messages: _RowMessages) -> NDArray[np.int64]:
    return np.array([j for j, _ in messages], dtype=np.int64)


COMBINERS: dict[type, Callable[[Any, _RowMessages, int, int], Any]] = {
    Sum: _sum,
    Max: _extreme,
    Min: _extreme,
    Each: _each,
    Tell: _tell,
}
