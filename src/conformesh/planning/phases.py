"""What a method is predicted to send, phase by phase, and what that adds up to on a link.

A phase is a stretch of rounds in which everybody says messages of one size. All predictions are lists of phases, so
that rounds, bits, bytes on the wire and time follow from one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from conformesh.peer.frames import SIZE
from conformesh.planning.link import Link

Certainty = Literal["exact", "estimate", "at most"]
BODY, DIMENSION = 4, 4  # bytes before the numbers of a data frame, see engines.frames
SILENT = SIZE + BODY + DIMENSION  # a frame that says nothing: an empty array
TRANSPORT = 100  # bytes around a frame: about 40 of TCP/IP, 22 of a TLS 1.3 record, and Zenoh's key and framing


@dataclass(frozen=True)
class Phase:
    """Rounds in which messages have one size.

    Attributes
    ----------
    what
        In a word or two.
    rounds
        How many; not whole where it is the mean of a prediction.
    numbers, bits
        Numbers in a message, and bits of each of them.
    spoken, most
        Messages that a device says on average, and that the busiest one says; None is one in every round.
    copies
        Over all rounds, neighbours of the slowest device that speaks; None is the largest degree in every round.
    dimensions
        Of the array in a frame: each takes some bytes on the wire.
    server
        Whether it goes to a server instead of to neighbours.
    """

    what: str
    rounds: float
    numbers: float
    bits: int
    spoken: float | None = None
    most: float | None = None
    copies: float | None = None
    dimensions: int = 1
    server: bool = False

    def times(self, often: float) -> Phase:
        """Return this phase, so many times; a mean where that is not whole."""
        scaled = {
            name: value * often
            for name in ("rounds", "spoken", "most", "copies")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **scaled)

    @property
    def said(self) -> tuple[float, float]:
        """Messages that a device says: on average, and the busiest."""
        spoken = self.rounds if self.spoken is None else self.spoken
        return spoken, spoken if self.most is None else self.most

    @property
    def payload(self) -> float:
        """Bytes of the numbers in a message."""
        return self.numbers * self.bits / 8

    @property
    def frame(self) -> float:
        """Bytes of a message as a frame between two devices of a mesh."""
        return SIZE + BODY + DIMENSION * self.dimensions + self.payload


@dataclass(frozen=True)
class Sent:
    """What phases add up to, for each device: a broadcast counts once, as on the simulator's ledger."""

    rounds: float
    numbers: float
    bits: float
    most_bits: float

    @classmethod
    def of(cls, phases: Sequence[Phase]) -> Sent:
        """Add up."""
        rounds = sum(phase.rounds for phase in phases)
        numbers = sum(phase.said[0] * phase.numbers for phase in phases)
        bits = sum(phase.said[0] * phase.numbers * phase.bits for phase in phases)
        most = sum(phase.said[1] * phase.numbers * phase.bits for phase in phases)
        return cls(rounds, numbers, bits, most)


def seconds_on(link: Link, phases: Sequence[Phase], largest_degree: int) -> float:
    """Return the time of the numbers alone: every round waits for the latency and for the slowest device.

    A device sends one copy to each neighbour over its own uplink, so a round takes
    ``latency + bits x degree / bandwidth``; to a server it sends one copy, and the answer takes another latency.
    """
    total = 0.0
    for phase in phases:
        copies = _copies(phase, largest_degree)
        total += phase.rounds * link.latency + copies * phase.payload * 8 / link.bandwidth
    return total


def mesh_seconds_on(link: Link, phases: Sequence[Phase], largest_degree: int) -> float:
    """Return the same for a real mesh: headers, transport, and a frame to every neighbour in every round.

    Who has nothing to say in a round says so, in a frame without numbers.
    """
    total = 0.0
    for phase in phases:
        copies = _copies(phase, largest_degree)
        whole = copies * (phase.frame + TRANSPORT)
        if phase.copies is not None:  # silent devices may have more neighbours than those that speak
            whole = max(whole, phase.rounds * largest_degree * (SILENT + TRANSPORT))
        total += phase.rounds * link.latency + whole * 8 / link.bandwidth
    return total


def bytes_on_the_wire(phases: Sequence[Phase], mean_degree: float) -> float:
    """Return what a device of average degree sends on a mesh: all copies, with headers and transport."""
    total = 0.0
    for phase in phases:
        spoken = phase.said[0]
        if phase.server:
            total += spoken * (phase.frame + TRANSPORT)
            continue
        silent = phase.rounds - spoken
        total += mean_degree * (spoken * (phase.frame + TRANSPORT) + silent * (SILENT + TRANSPORT))
    return total


def _copies(phase: Phase, largest_degree: int) -> float:
    if phase.server:
        return phase.said[1]
    return phase.rounds * largest_degree if phase.copies is None else phase.copies
