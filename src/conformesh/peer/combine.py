"""What neighbours' messages combine to, for one device: the same bits as in the simulator.

Neighbours are combined in ascending row, in float64 or int64, whatever order their messages came in.
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
Value = Array | bytes  # what one neighbour said: a row of numbers, or what it told
Said = list[tuple[int, Any]]  # by ascending row: who spoke, and what


def question_name(message: Message) -> str:
    """Return the name of a question that neighbours can answer."""
    kind = kind_of(message)
    if kind.code is None:
        raise TypeError(f"a mesh has no server to answer {kind.name!r}")
    if type(message) not in COMBINERS:
        raise TypeError(f"a device has no answer to {kind.name!r}; add it to the table of answers in peer/combine.py")
    return kind.name


def combine_messages(message: Message, row: int, heard: Mapping[int, Value | None], round_: int = 0) -> Any:
    """Combine what the neighbours said, by row of the neighbour; None where it was silent."""
    spoken = [(j, x) for j in sorted(heard) if (x := heard[j]) is not None]
    return COMBINERS[type(message)](message, spoken, row, round_)


def _sum(message: Sum, spoken: Said, row: int, round_: int) -> Array:
    whole = message.weights is None and message.values.dtype.kind in "iu"
    total: Array = np.zeros(message.values.shape, dtype=np.int64 if whole else np.float64)
    for at, (_, x) in enumerate(spoken):
        term = np.asarray(x, dtype=total.dtype)
        total += term if message.weights is None else message.weights[at] * term
    return total


def _extreme(message: Max | Min, spoken: Said, row: int, round_: int) -> Array | Extreme:
    better = np.greater if isinstance(message, Max) else np.less
    extreme = message.values.copy()
    for _, x in spoken:
        np.copyto(extreme, x, where=better(x, extreme) | (np.isnan(x) & ~np.isnan(extreme)))  # of equals the first
    if message.speakers is None:
        return extreme
    same = (extreme == message.values) | np.isnan(message.values)
    return Extreme(extreme, np.flatnonzero([not same.all()]))


def _each(message: Each, spoken: Said, row: int, round_: int) -> Deliveries:
    values = np.array([x for _, x in spoken], dtype=message.values.dtype)
    values = values.reshape(len(spoken), *message.values.shape[1:])
    return Deliveries(np.full(len(spoken), row), _senders(spoken), values, round_)


def _tell(message: Tell, spoken: Said, row: int, round_: int) -> PacketDeliveries:
    return PacketDeliveries(
        np.full(len(spoken), row), _senders(spoken), Packets.of([told for _, told in spoken]), round_
    )


def _senders(spoken: Said) -> NDArray[np.int64]:
    return np.array([j for j, _ in spoken], dtype=np.int64)


COMBINERS: dict[type, Callable[[Any, Said, int, int], Any]] = {
    Sum: _sum,
    Max: _extreme,
    Min: _extreme,
    Each: _each,
    Tell: _tell,
}
