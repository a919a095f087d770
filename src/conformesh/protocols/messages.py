"""The questions a protocol may ask, and nothing else crosses the network.

A protocol is a generator. It yields one of these messages and receives what its neighbours' messages combine to. It
never opens a socket, reads a clock or draws a random number of its own, so the same body runs on every engine.

The first axis of `values` is always the devices hosted here. The *dtype* of `values` is what travels: float16, float32
and float64 cost 16, 32 and 64 bits a number, integers cost their own width. Engines add up in float64 (or int64),
neighbours in ascending id, so that every engine gives the same bits; maxima and minima come back in the type sent.

A question may be `brief`: neither its values nor the answer are looked at once the next question is asked, and the
answer is not written to. An engine may then use the same memory for every round; none has to.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """Ask for the sum of the neighbours' values: ``sum over j in N_k of w_kj x_j``.

    Attributes
    ----------
    values
        Shape (devices here, ...). Every device broadcasts its row to all its neighbours.
    weights
        None for plain sums, or one weight per directed edge of the devices here, in the order of
        `Network.indices`: the receiver knows its own weights, so they cost nothing on the wire.
    shared
        True if the values are the same for all independent runs that ride along, so that each of them pays in full.
    brief
        True if the answer may live in memory that the next question uses again.
    """

    values: Array
    weights: NDArray[np.float64] | None = None
    shared: bool = False
    brief: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Max:
    """Ask for the elementwise largest of the neighbours' values and one's own."""

    values: Array
    shared: bool = False
    brief: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Min:
    """Ask for the elementwise smallest of the neighbours' values and one's own."""

    values: Array
    shared: bool = False
    brief: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Each:
    """Ask for every speaking neighbour's own message, kept apart.

    `who` says something this round: a mask over the devices here or, where few of many speak, their places among these,
    ascending. A silent device costs nothing. The answer is a `Heard`.
    """

    values: Array
    who: NDArray[Any]

    @property
    def speakers(self) -> NDArray[np.bool_]:
        """Who speaks, as a mask over the devices here."""
        if self.who.dtype == np.bool_:
            return self.who
        mask = np.zeros(len(self.values), dtype=np.bool_)
        mask[self.who] = True
        return mask

    @property
    def places(self) -> NDArray[np.int64]:
        """Who speaks, as places among the devices here, ascending."""
        return np.flatnonzero(self.who) if self.who.dtype == np.bool_ else self.who


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """What `Each` brought: message i went from `sender[i]` to `receiver[i]` (global rows) and said `values[i]`."""

    receiver: NDArray[np.int64]
    sender: NDArray[np.int64]
    values: Array

    def said_by(self, senders: NDArray[np.int64]) -> Array:
        """Return what each of these senders (global rows) said; each of them was heard here."""
        order = np.argsort(self.sender, kind="stable")
        return self.values[order[np.searchsorted(self.sender, senders, sorter=order)]]


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Ask a server for everybody's values in one place: what the centralised baselines need and a mesh does not have.

    `values` is flat; device k here owns ``values[offsets[k]:offsets[k + 1]]``. The answer is a `Pool` over all devices.
    Each device pays for what it uploads; the server's answer is not counted as sent by any device. With `oracle` nobody
    pays: the answer is used to report what a formula needs and no device can know, and only simulators give it.
    """

    values: Array
    offsets: NDArray[np.int64]
    oracle: bool = False


Message = Sum | Max | Min | Each | Pool
Protocol = Generator[Message, Any, T]
