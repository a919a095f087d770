"""The messages that a protocol may yield. Nothing else crosses the network.

A protocol is a generator. It yields one of these messages and receives what its neighbours' messages combine to. It
never opens a socket, reads a clock or draws a random number of its own, so the same body runs on every engine.

The first axis of `values` is always the devices hosted here. The *dtype* of `values` is what travels: float16, float32
and float64 cost 16, 32 and 64 bits a number, integers cost their own width. Engines add up in float64 (or int64),
neighbours in ascending id, so that every engine gives the same bits; maxima and minima come back in the type sent.

A device need not repeat itself. `Max` and `Min` may name `speakers`, as `Each` and `Tell` do: a silent device costs
nothing, and the answer, an `Extreme`, names the devices whose value changed. If only these send next, the values end as
if all had sent.

`Tell` is for messages without a common length: every speaker sends as many bytes as it needs, and pays for these.

A device that knows that it will send nothing for some rounds may announce it (`Silence`). This costs nothing and
changes no answer; on a mesh no neighbour then waits for it, and it sends no empty frames. Every engine checks that it
stays silent.

`Gather` asks for the strings of all devices, as far as they have arrived, and is the only message of asynchronous mode.
Engines never see it: in rounds it is answered by flooding (`gather`), in asynchronous mode at once.

A question may be `brief`: neither its values nor the answer are looked at once the next question is asked, and the
answer is not written to. An engine may then use the same memory for every round; none has to.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Array
from conformesh.kernels.segments import take_segments

T = TypeVar("T")

# Types of values that may be sent. The position is the code of the type in frames, so the order must not change.
WIRE_TYPES: tuple[str, ...] = ("<f2", "<f4", "<f8", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", "|b1")
MOST_DIMENSIONS = 8  # dimensions of a device's row: the header of a frame has room for this many lengths


def narrowest_integer(largest: int | None) -> np.dtype[Any]:
    """Return the smallest signed integers that hold up to `largest`, so that the wire carries no empty bits."""
    kinds = map(np.dtype, ("int8", "int16", "int32"))
    wide = np.dtype(np.int64)
    return wide if largest is None else next((kind for kind in kinds if largest <= np.iinfo(kind).max), wide)


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


class _Speaking:
    """A message in which devices may be silent: `speakers` is a mask over the local devices, or their positions."""

    __slots__ = ()
    values: Array
    speakers: Any

    @property
    def mask(self) -> NDArray[np.bool_]:
        """The speakers as a mask over the local devices."""
        if self.speakers is None:
            return np.ones(len(self.values), dtype=np.bool_)
        if self.speakers.dtype == np.bool_:
            return np.asarray(self.speakers)
        mask = np.zeros(len(self.values), dtype=np.bool_)
        mask[self.speakers] = True
        return mask

    @property
    def places(self) -> NDArray[np.int64]:
        """The speakers as ascending positions among the local devices."""
        if self.speakers is None:
            return np.arange(len(self.values))
        if self.speakers.dtype == np.bool_:
            return np.flatnonzero(self.speakers)
        return np.asarray(self.speakers.astype(np.int64, copy=False))


@dataclass(frozen=True, slots=True, eq=False)
class Max(_Speaking):
    """Ask for the elementwise largest of one's own values and the neighbours'.

    Without `speakers` all devices send and the answer is an array. Otherwise they are given as in `Each`, the largest
    is that of one's own values, spoken or not, and of the neighbours that spoke, and the answer is an `Extreme`.
    Where independent runs share a message and only some of them have news, `billed` says how many of its numbers each
    speaker would have said in runs of their own, and pays for.
    """

    values: Array
    shared: bool = False
    brief: bool = False
    speakers: NDArray[Any] | None = None
    billed: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Min(_Speaking):
    """Ask for the elementwise smallest, as with `Max`."""

    values: Array
    shared: bool = False
    brief: bool = False
    speakers: NDArray[Any] | None = None
    billed: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Extreme:
    """What `Max` and `Min` with speakers brought; not to be written to.

    Attributes
    ----------
    values
        The extremes, in the type and shape sent.
    changed
        Places of the devices here whose row is another now than the one asked with, ascending: who has news.
    """

    values: Array
    changed: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Silence:
    """Local devices that will send nothing in some rounds after this one.

    Attributes
    ----------
    places
        Their places among the devices here, ascending.
    rounds
        In how many rounds each of them says nothing, >= 0. Until then everybody asks what may be answered by silence.
    """

    places: NDArray[np.int64]
    rounds: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Each(_Speaking):
    """Ask for every speaking neighbour's own message, kept apart.

    `speakers` says something this round: a mask over the devices here or, where few of many speak, their places among
    these, ascending. A silent device costs nothing. The answer is `Deliveries`.
    """

    values: Array
    speakers: NDArray[Any]
    quiet: Silence | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Deliveries:
    """What `Each` brought: message i went from `sender[i]` to `receiver[i]` (rows of the network) and said `values[i]`.

    Messages stand by receiver, and of one receiver by sender. `round` is the round in which they came, for errors.
    """

    receiver: NDArray[np.int64]
    sender: NDArray[np.int64]
    values: Array
    round: int = 0

    def said_by(self, receivers: NDArray[np.int64], senders: NDArray[np.int64]) -> Array:
        """Return what each of these senders said to the receiver beside it (rows of the network).

        A receiver knows only what its neighbours said this round: asking for anything else is an error.
        """
        return self.values[self.places(receivers, senders)]

    def places(self, receivers: NDArray[np.int64], senders: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the messages from these senders to these receivers stand."""
        if receivers.shape != senders.shape:
            raise ValueError(f"said_by needs a receiver for each sender, got {receivers.shape} and {senders.shape}")
        span = max(int(self.sender.max(initial=0)), int(senders.max(initial=0))) + 1
        asked, known = receivers * span + senders, self.receiver * span + self.sender
        at = np.searchsorted(known, asked)
        strange = (senders < 0) | (at == len(known))
        strange[~strange] = known[at[~strange]] != asked[~strange]
        if strange.any():
            first = int(np.argmax(strange))
            raise missing_message_error(self.round, int(receivers[first]), int(senders[first]))
        return at


@dataclass(frozen=True, slots=True, eq=False)
class Packets:
    """Strings of bytes: number i is ``values[offsets[i]:offsets[i + 1]]``."""

    values: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> Packets:
        """Put strings one after the other."""
        offsets = np.zeros(len(strings) + 1, dtype=np.int64)
        np.cumsum([len(string) for string in strings], out=offsets[1:])
        return cls(np.frombuffer(b"".join(strings), dtype=np.uint8), offsets)

    @classmethod
    def concatenate(cls, parts: Sequence[Packets]) -> Packets:
        """Put the strings of one after those of the other."""
        if len(parts) == 1:
            return parts[0]
        sizes = np.concatenate([np.diff(part.offsets) for part in parts])
        return cls(np.concatenate([part.values for part in parts]), np.concatenate([[0], np.cumsum(sizes)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> bytes:
        return self.values[self.offsets[i] : self.offsets[i + 1]].tobytes()

    def take(self, which: NDArray[np.int64]) -> Packets:
        """Return these of the strings, in this order."""
        if len(which) == len(self) and (which == np.arange(len(self))).all():
            return self
        return Packets(*take_segments(self.values, self.offsets, which))

    def floats(self, which: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return numbers of each of these strings, which hold nothing but float64: those in its (row of) places."""
        first = (self.offsets[which] // 8).reshape(-1, *[1] * (places.ndim - 1))
        return np.asarray(self.values.view("<f8")[first + places])


@dataclass(frozen=True, slots=True, eq=False)
class Tell:
    """Ask for what every speaking neighbour tells, in as many bytes as it takes.

    Attributes
    ----------
    packets
        What the speakers say, one string of bytes each, in their order.
    speakers
        Their places among the devices here, ascending. A silent device costs nothing. `PacketDeliveries` is the answer.
    numbers
        How many numbers each string stands for, (speakers,): what the ledger charges besides the bits.
    check
        Raises `ValueError` for bytes that nobody could tell here: a device refuses such a frame before it counts.
    quiet
        Who will say nothing for a while.
    """

    packets: Packets
    speakers: NDArray[np.int64]
    numbers: NDArray[np.int64]
    check: Callable[[bytes], object] | None = None
    quiet: Silence | None = None

    @property
    def values(self) -> NDArray[np.uint8]:
        """All that is said, byte by byte."""
        return self.packets.values

    @property
    def places(self) -> NDArray[np.int64]:
        """Who speaks, as in `Each`."""
        return self.speakers


@dataclass(frozen=True, slots=True, eq=False)
class PacketDeliveries:
    """What `Tell` brought: message i went from `sender[i]` to `receiver[i]` (rows of the network).

    Messages stand by receiver, and of one receiver by sender. `round` is the round in which they came, for errors.
    """

    receiver: NDArray[np.int64]
    sender: NDArray[np.int64]
    packets: Packets
    round: int = 0

    def floats(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return numbers of each message, those in its (row of) places, where messages are nothing but float64."""
        return self.packets.floats(np.arange(len(places)), places)

    def said_by(self, receivers: NDArray[np.int64], senders: NDArray[np.int64]) -> Packets:
        """Return what each of these senders said to the receiver beside it (rows of the network), as in `Heard`."""
        return self.packets.take(
            Deliveries(self.receiver, self.sender, self.sender, self.round).places(receivers, senders)
        )


def missing_message_error(round_: int, receiver: int, sender: int) -> ValueError:
    """Return the error for a device that asks for a message that it did not receive."""
    return ValueError(
        f"round {round_}: device {receiver} asks what device {sender} said, but has heard nothing from it: it is "
        "silent in this round, or no neighbour; check whom the protocol lets speak (Each.speakers) and asks (said_by)"
    )


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


@dataclass(frozen=True, slots=True, eq=False)
class Gather:
    """Ask for everybody's string of bytes, as far as they were heard.

    Who talks in rounds floods the strings, so that all are heard (`gather.flooded`). A device without rounds answers
    at once with what has reached it, and runs its protocol again from the beginning when there is more: so a protocol
    that asks this says the same for the same answers, and has something to hand back whoever was heard.

    Attributes
    ----------
    packets
        What the devices here say, one string each. It never changes within a run.
    check
        Raises `ValueError` for a string that nobody could say here; it gets the string and the row of its owner.
    sealed
        Whether strings must be signed by their owners, so that nobody can speak for another.
    """

    packets: Packets
    check: Callable[[bytes, int], object] | None = None
    sealed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class GatheredStrings:
    """What `Gather` brought, the same for all devices here.

    Attributes
    ----------
    packets
        The strings by row, all devices; empty where nothing was heard.
    heard
        Whose string is there, (devices,).
    disputed
        Who is proven to have signed two different strings, or one that nobody could say, (devices,). Its string is not
        there.
    sealed
        Whether strings were signed by their owners, or nobody who passes them on changes them.
    """

    packets: Packets
    heard: NDArray[np.bool_]
    disputed: NDArray[np.bool_]
    sealed: bool = False

    @property
    def complete(self) -> bool:
        """Whether everybody was heard."""
        return bool(self.heard.all())


@dataclass(frozen=True)
class MessageKind:
    """One kind of message, and what engines, frames and the ledger must know of it.

    Attributes
    ----------
    name
        In frames, stamps and errors.
    code
        Its number in the frames between neighbours; None where only a server can answer.
    payers
        Who pays, see `Ledger`: `everyone` for its row, the `speakers` (if none are named: all) for theirs, `tellers`
        for their bytes, `uploaders` for what they hand over.
    rounds
        How many rounds it takes.
    silence
        Whether a device may have nothing to say where speakers are named.
    """

    name: str
    code: int | None
    payers: Literal["everyone", "speakers", "tellers", "uploaders"]
    rounds: int = 1
    silence: bool = False


# All there are: a test looks whether engines, peers and the ledger know each of them.
MESSAGE_KINDS: dict[type, MessageKind] = {
    Sum: MessageKind("sum", 1, "everyone"),
    Max: MessageKind("max", 2, "speakers", silence=True),
    Min: MessageKind("min", 3, "speakers", silence=True),
    Each: MessageKind("each", 4, "speakers", silence=True),
    Tell: MessageKind("tell", 5, "tellers", silence=True),
    Pool: MessageKind("pool", None, "uploaders", rounds=2),  # up to the server, and back
}

Message = Sum | Max | Min | Each | Tell | Pool
Protocol = Generator[Message, Any, T]
GatheringProtocol = Generator[Message | Gather, Any, T]  # a protocol that may ask everybody, too


def kind_of(message: Message) -> MessageKind:
    """Return what kind of message this is, if it is one."""
    kind = MESSAGE_KINDS.get(type(message))
    if kind is None:
        known = ", ".join(each.__name__ for each in MESSAGE_KINDS)
        raise TypeError(f"a protocol yields messages, of the kinds {known}, got {type(message).__name__}")
    return kind


def may_be_silent(message: Message) -> bool:
    """Return whether a device may have nothing to say to this question."""
    return kind_of(message).silence and getattr(message, "speakers", None) is not None


def silent_rounds(message: Message) -> int:
    """Return for how many rounds after this one a device that is alone here says nothing."""
    quiet = message.quiet if isinstance(message, Each | Tell) else None
    return 0 if quiet is None or not len(quiet.rounds) else int(quiet.rounds[0])
