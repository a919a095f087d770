"""A network that loses messages: what arrives in every round, drawn from one seed, for the simulator.

A round draws once for all devices and all edges, also for silent ones, so that losses do not depend on the messages. An
inactive device sends nothing and pays nothing; a device that sends pays, even if nothing arrives.

Only `Each` and `Tell` may lose messages: their answers name the senders. A sum or maximum over "all neighbours" is
wrong without notice once a message is lost, so these questions are refused here, for every protocol.
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
    """Draws which devices send in each round, and along which edges their messages arrive.

    Parameters
    ----------
    network
        The graph of the devices.
    faults
        The chances of loss, of a link being down, and of a device being active.
    """

    def __init__(self, network: Network, faults: Faults) -> None:
        self.network, self.faults = network, faults
        self.receiver = network.receivers
        self.sender = network.indices.astype(np.int64)

    def active(self, round_: int) -> Bools:
        """Return which devices may send in a round, (devices,)."""
        return self._uniform("activation", round_, self.network.devices) < self.faults.activation

    def arriving(self, round_: int) -> Bools:
        """Return along which directed edges, in the order of `Network.indices`, a message of a round arrives."""
        arrives = np.ones(len(self.sender), dtype=np.bool_)
        if self.faults.loss > 0:
            arrives &= self._uniform("loss", round_, len(arrives)) >= self.faults.loss
        if self.faults.links < 1:
            arrives &= (self._uniform("links", round_, len(arrives)) < self.faults.links)[self._link]
        return arrives

    @cached_property
    def _link(self) -> Ints:
        """For every directed edge, the place of the one that leads to the smaller row: both directions share a link."""
        K = self.network.devices
        smaller, larger = np.minimum(self.receiver, self.sender), np.maximum(self.receiver, self.sender)
        return np.searchsorted(self.receiver * K + self.sender, smaller * K + larger)

    def _uniform(self, purpose: str, round_: int, size: int) -> NDArray[np.float64]:
        # A stream for each purpose and round: a change of the loss rate does not change which links are up.
        return random_stream(self.faults.seed, purpose, round_).random(size)


class Lossy:
    """Answers of a simulator whose network loses messages.

    Parameters
    ----------
    network, faults
        See `MessageLoss`.
    order
        All rows in the order in which they lie in memory; None for ascending.
    plain
        Whether answers are to be plain arrays, because an observer keeps them.
    """

    def __init__(self, network: Network, faults: Faults, order: Ints | None, plain: bool) -> None:
        self.losses, self.plain = MessageLoss(network, faults), plain
        self.rows = np.arange(network.devices) if order is None else order
        self.answers: dict[type, Callable[[Any, int], Any]] = {Each: self._each, Tell: self._tell}
        self.answers |= dict.fromkeys((Sum, Max, Min, Pool), _refuse)

    def sent_part(self, message: Message, round_: int) -> Message:
        """Return the message without its inactive devices."""
        if not isinstance(message, Each | Tell):
            return message
        active = self.losses.active(round_)[self.rows]
        if isinstance(message, Each):
            return replace(message, speakers=message.mask & active)
        kept = np.flatnonzero(active[message.speakers])
        packets, numbers = message.packets.take(kept), message.numbers[kept]
        return replace(message, packets=packets, speakers=message.speakers[kept], numbers=numbers)

    def _each(self, message: Each, round_: int) -> Any:
        # A copy, here and below: the protocol may reuse the array of its message before it reads the answer.
        sent = message.values.take(message.places, axis=0)
        arrived = _Arrived(*self._messages(message.places, round_), sent, round_)
        return Deliveries(arrived.receiver, arrived.sender, arrived.values, round_) if self.plain else arrived

    def _tell(self, message: Tell, round_: int) -> Any:
        sent = Packets(message.packets.values.copy(), message.packets.offsets.copy())
        arrived = _ArrivedBytes(*self._messages(message.places, round_), sent, round_)
        return PacketDeliveries(arrived.receiver, arrived.sender, arrived.packets, round_) if self.plain else arrived

    def _messages(self, places: Ints, round_: int) -> tuple[Ints, Ints, Ints]:
        """Return receiver and sender of the messages that arrive, as rows, and which of the speakers sent each."""
        speaker_at = np.full(len(self.rows), -1)
        speaker_at[self.rows[places]] = np.arange(len(places))
        which = speaker_at[self.losses.sender]
        arrives = (which >= 0) & self.losses.arriving(round_)
        return self.losses.receiver[arrives], self.losses.sender[arrives], which[arrives]


class _Arrived:
    """`Deliveries` of the messages that arrive, whose values are taken only where the protocol asks for them."""

    def __init__(self, receiver: Ints, sender: Ints, which: Ints, sent: Any, round_: int) -> None:
        self.receiver, self.sender, self.round = receiver, sender, round_
        self._which, self._sent = which, sent

    @property
    def values(self) -> NDArray[Any]:
        """The content of each message."""
        return np.asarray(self._sent[self._which])

    def said_by(self, receivers: Ints, senders: Ints) -> Any:
        """Return the message of each of these senders to the receiver beside it, as in `Deliveries`."""
        return self._sent.take(self._asked(receivers, senders), axis=0)

    def _asked(self, receivers: Ints, senders: Ints) -> Ints:
        return self._which[Deliveries(self.receiver, self.sender, self.sender, self.round).places(receivers, senders)]


class _ArrivedBytes(_Arrived):
    """The same for bytes, as `PacketDeliveries`."""

    @property
    def packets(self) -> Packets:
        """The content of each message."""
        taken: Packets = self._sent.take(self._which)
        return taken

    def floats(self, places: Ints) -> NDArray[np.float64]:
        """Return numbers of each message, as in `PacketDeliveries`."""
        numbers: NDArray[np.float64] = self._sent.floats(self._which, places)
        return numbers

    def said_by(self, receivers: Ints, senders: Ints) -> Any:
        """Return the message of each of these senders to the receiver beside it, as in `PacketDeliveries`."""
        return self._sent.take(self._asked(receivers, senders))


def _refuse(message: Message, round_: int) -> Any:
    raise ValueError(
        f"round {round_}: a network that loses messages cannot answer {kind_of(message).name!r}, which needs every "
        "neighbour's; a protocol that bears faults asks Each or Tell, whose answers say who was heard"
    )
