"""A network that loses messages: what arrives in every round, drawn from one seed, for the simulator.

A round draws once for all devices and all edges, whoever speaks, so that what gets lost in it does not depend on what
is said. Who is inactive says nothing and pays nothing; who speaks pays, though nobody may hear it.

Only `Each` and `Tell` can lose something and still mean something: their answers say who was heard. Sums and maxima of
"all neighbours" are not what they say they are once a message is lost, so they are refused here, whatever runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Bools, Ints
from conformesh.common.random_streams import random_stream
from conformesh.graph.network import Network
from conformesh.protocols.faults import Faults
from conformesh.protocols.messages import (
    Deliveries,
    Each,
    Max,
    Message,
    Min,
    PacketDeliveries,
    Packets,
    Pool,
    Sum,
    Tell,
    kind_of,
)


class MessageLoss:
    """What arrives in each round: of whom, and along which edges.

    Parameters
    ----------
    network
        Who may talk to whom.
    faults
        How often what goes wrong.
    """

    def __init__(self, network: Network, faults: Faults) -> None:
        self.network, self.faults = network, faults
        self.receiver = network.receivers
        self.sender = network.indices.astype(np.int64)

    def active(self, round_: int) -> Bools:
        """Return who may speak in a round, (devices,)."""
        return self._drawn("activation", round_, self.network.devices) < self.faults.activation

    def arriving(self, round_: int) -> Bools:
        """Return along which directed edges, in the order of `Network.indices`, what is said in a round arrives."""
        arrives = np.ones(len(self.sender), dtype=np.bool_)
        if self.faults.loss > 0:
            arrives &= self._drawn("loss", round_, len(arrives)) >= self.faults.loss
        if self.faults.links < 1:
            arrives &= (self._drawn("links", round_, len(arrives)) < self.faults.links)[self._link]
        return arrives

    @cached_property
    def _link(self) -> Ints:
        """Of every directed edge, where the one of the two that leads to the smaller row stands: both share a link."""
        K = self.network.devices
        smaller, larger = np.minimum(self.receiver, self.sender), np.maximum(self.receiver, self.sender)
        return np.searchsorted(self.receiver * K + self.sender, smaller * K + larger)

    def _drawn(self, purpose: str, round_: int, many: int) -> NDArray[np.float64]:
        return random_stream(self.faults.seed, purpose, round_).random(many)


class Lossy:
    """Answers of a simulator whose network loses messages.

    Parameters
    ----------
    network, faults
        See `MessageLoss`.
    order
        All rows in the order in which the protocol hosts them.
    plain
        Whether answers are to be plain arrays, because somebody keeps them.
    """

    def __init__(self, network: Network, faults: Faults, order: Ints | None, plain: bool) -> None:
        self.weather, self.plain = MessageLoss(network, faults), plain
        self.rows = np.arange(network.devices) if order is None else order
        self.answers: dict[type, Callable[[Any, int], Any]] = {Each: self._each, Tell: self._tell}
        self.answers |= dict.fromkeys((Sum, Max, Min, Pool), _refuse)

    def said(self, message: Message, round_: int) -> Message:
        """Return what is really said: nothing by those who are not active."""
        if not isinstance(message, Each | Tell):
            return message
        active = self.weather.active(round_)[self.rows]
        if isinstance(message, Each):
            return replace(message, speakers=message.mask & active)
        kept = np.flatnonzero(active[message.speakers])
        packets, numbers = message.packets.take(kept), message.numbers[kept]
        return replace(message, packets=packets, speakers=message.speakers[kept], numbers=numbers)

    def _each(self, message: Each, round_: int) -> Any:
        heard = _Arrived(*self._messages(message.places, round_), message.values.take(message.places, axis=0), round_)
        return Deliveries(heard.receiver, heard.sender, heard.values, round_) if self.plain else heard

    def _tell(self, message: Tell, round_: int) -> Any:
        said = Packets(message.packets.values.copy(), message.packets.offsets.copy())
        told = _ArrivedBytes(*self._messages(message.places, round_), said, round_)
        return PacketDeliveries(told.receiver, told.sender, told.packets, round_) if self.plain else told

    def _messages(self, places: Ints, round_: int) -> tuple[Ints, Ints, Ints]:
        """Return receiver and sender of what arrives, as rows, and which of the speakers each message is from."""
        spoken = np.full(len(self.rows), -1)
        spoken[self.rows[places]] = np.arange(len(places))
        which = spoken[self.weather.sender]
        arrives = (which >= 0) & self.weather.arriving(round_)
        return self.weather.receiver[arrives], self.weather.sender[arrives], which[arrives]


class _Arrived:
    """A `Heard` of what was not lost; values are taken when they are asked for, by who needs them."""

    def __init__(self, receiver: Ints, sender: Ints, which: Ints, said: Any, round_: int) -> None:
        self.receiver, self.sender, self.round = receiver, sender, round_
        self._which, self._said = which, said

    @property
    def values(self) -> NDArray[Any]:
        """What each message says."""
        return np.asarray(self._said[self._which])

    def said_by(self, receivers: Ints, senders: Ints) -> Any:
        """Return what each of these senders said to the receiver beside it, as in `Heard`."""
        return self._said.take(self._asked(receivers, senders), axis=0)

    def _asked(self, receivers: Ints, senders: Ints) -> Ints:
        return self._which[Deliveries(self.receiver, self.sender, self.sender, self.round).places(receivers, senders)]


class _ArrivedBytes(_Arrived):
    """The same for bytes: a `PacketDeliveries`."""

    @property
    def packets(self) -> Packets:
        """What each message says."""
        taken: Packets = self._said.take(self._which)
        return taken

    def floats(self, places: Ints) -> NDArray[np.float64]:
        """Return numbers of each message, as in `PacketDeliveries`."""
        numbers: NDArray[np.float64] = self._said.floats(self._which, places)
        return numbers

    def said_by(self, receivers: Ints, senders: Ints) -> Any:
        """Return what each of these senders said to the receiver beside it, as in `PacketDeliveries`."""
        return self._said.take(self._asked(receivers, senders))


def _refuse(message: Message, round_: int) -> Any:
    raise ValueError(
        f"round {round_}: a network that loses messages cannot answer {kind_of(message).name!r}, which needs every "
        "neighbour's; a protocol that bears faults asks Each or Tell, whose answers say who was heard"
    )
