"""What neighbours' messages combine to, for one device: the same bits as in the simulator.

Neighbours are combined in ascending row, in float64 or int64, whatever order their messages came in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.protocols.messages import Each, Heard, Max, Message, Min, Sum

Array = NDArray[Any]
NAMES: dict[type, str] = {Sum: "sum", Max: "max", Min: "min", Each: "each"}


def question_of(message: Message) -> str:
    """Return the name of a question that neighbours can answer."""
    name = NAMES.get(type(message))
    if name is None:
        raise TypeError(f"a mesh has no server to answer {type(message).__name__}")
    return name


def said(message: Message) -> Array | None:
    """Return what a device says this round, its row of the message; None if it is silent."""
    if isinstance(message, Each) and not message.speakers[0]:
        return None
    return np.asarray(message.values[0])


def answer(message: Message, row: int, heard: Mapping[int, Array | None]) -> Any:
    """Combine what the neighbours said, by row of the neighbour; None where it was silent."""
    rows = sorted(heard)
    if isinstance(message, Each):
        speaking = [(j, x) for j in rows if (x := heard[j]) is not None]
        values = np.array([x for _, x in speaking], dtype=message.values.dtype)
        values = values.reshape(len(speaking), *message.values.shape[1:])
        return Heard(np.full(len(speaking), row), np.array([j for j, _ in speaking], dtype=np.int64), values)
    if isinstance(message, Sum):
        return _sum(message, [heard[j] for j in rows])
    best = np.maximum if isinstance(message, Max) else np.minimum
    found = message.values
    for j in rows:
        found = best(found, heard[j])  # type: ignore[arg-type]  # only Each lets a device be silent
    return found


def _sum(message: Sum, values: list[Array | None]) -> Array:
    dtype = np.int64 if message.values.dtype.kind in "iu" else np.float64
    total: Array = np.zeros(message.values.shape, dtype=dtype)
    for at, x in enumerate(values):
        term = np.asarray(x, dtype=dtype)
        total += term if message.weights is None else message.weights[at] * term
    return total
