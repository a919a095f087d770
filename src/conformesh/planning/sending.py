"""What stretches of rounds add up to: on the ledger, on a link, and on the wire of a real mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from conformesh.kernels.varints import lengths
from conformesh.peer.frames import ARRAY, LARGEST, LONGEST, SIZE
from conformesh.planning.link import Link
from conformesh.protocols.flood import flood_of
from conformesh.protocols.predicting import Stretch, Terrain

SILENT = SIZE + 1  # a frame that says nothing but which question it was asked, see peer.frames
TRANSPORT = 100  # bytes around a frame: about 40 of TCP/IP, 22 of a TLS 1.3 record, and Zenoh's key and framing


@dataclass(frozen=True)
class Sent:
    """What stretches add up to, for each device: a broadcast counts once, as on the simulator's ledger."""

    rounds: float
    numbers: float
    bits: float
    most_bits: float

    @classmethod
    def of(cls, stretches: Sequence[Stretch]) -> Sent:
        """Add up."""
        rounds = sum(one.rounds for one in stretches)
        numbers = sum(one.said[0] * one.numbers for one in stretches)
        bits = sum(one.said[0] * one.numbers * one.bits for one in stretches)
        most = sum(one.said[1] * one.numbers * one.bits for one in stretches)
        return cls(rounds, numbers, bits, most)


def seconds_on(link: Link, stretches: Sequence[Stretch], largest_degree: int) -> float:
    """Return the time of the numbers alone: every round waits for the latency and for the slowest device.

    A device sends one copy to each neighbour over its own uplink, so a round takes
    ``latency + bits x degree / bandwidth``; to a server it sends one copy, and the answer takes another latency.
    """
    total = 0.0
    for one in stretches:
        total += one.rounds * link.latency + _copies(one, largest_degree) * one.payload * 8 / link.bandwidth
    return total


def _copies(stretch: Stretch, largest_degree: int) -> float:
    if stretch.server:
        return stretch.said[1]
    return stretch.rounds * largest_degree if stretch.copies is None else stretch.copies


# --- a real mesh ------------------------------------------------------------------------------------------------------


def on_a_mesh(stretches: Sequence[Stretch], terrain: Terrain) -> list[Stretch]:
    """Return what `protocols.joint` makes of a method: first who has how many scores, and no server.

    What a method asks of a server floods the network: how many values everybody has, then their bytes.
    """
    own = terrain.own
    sent = [flood_of(terrain, "who has how many scores", np.ones_like(own), lengths(own))]
    for one in stretches:
        if not one.server:
            sent.append(one)
            continue
        each = np.full_like(own, round(one.numbers)) if one.said[1] == one.said[0] else own  # of all alike, or scores
        sent += [
            flood_of(terrain, "how many values everybody has", np.ones_like(own), lengths(each)),
            flood_of(terrain, "everybody's values", each, each * round(one.bits) // 8),
        ]
    return sent


def fits_a_mesh(stretches: Sequence[Stretch]) -> bool:
    """Whether every frame is small enough to be sent."""
    return all(max(one.payload, one.longest) <= LARGEST for one in stretches)


def frame_bytes(stretch: Stretch) -> float:
    """Return the bytes of a message as a frame between two devices, while row and round take a byte each."""
    return SIZE + (1 if stretch.told else ARRAY.size) + stretch.payload


def longer_by(count: float) -> float:
    """Return how many bytes the numbers 0 .. count - 1, rows or rounds, take in frames besides one for each."""
    return sum(max(0.0, count - 128.0**size) for size in range(1, LONGEST))


def _longer_in(stretches: Sequence[Stretch]) -> list[float]:
    """Return by how many bytes a frame of each stretch is longer because of its round, on average."""
    ends = np.cumsum([0.0, *(one.rounds for one in stretches)])
    return [
        (longer_by(end + 1) - longer_by(start + 1)) / (end - start) if end > start else 0.0
        for start, end in pairwise(ends.tolist())
    ]


def mesh_seconds_on(link: Link, stretches: Sequence[Stretch], largest_degree: int, devices: int) -> float:
    """Return the time on a real mesh: headers, transport, and a frame to every neighbour in every round.

    Who has nothing to say in a round says so, in a frame without numbers, unless it has announced it.
    """
    total, row = 0.0, longer_by(devices) - longer_by(devices - 1)  # of the last device
    for one, longer in zip(stretches, _longer_in(stretches), strict=True):
        around = TRANSPORT + row + longer
        whole = _copies(one, largest_degree) * (frame_bytes(one) + around)
        if one.copies is not None:  # silent devices may have more neighbours than those that speak
            silent = one.rounds if one.silent is None else one.silent
            whole = max(whole, silent * largest_degree * (SILENT + around))
        total += one.rounds * link.latency + whole * 8 / link.bandwidth
    return total


def bytes_on_the_wire(stretches: Sequence[Stretch], mean_degree: float, devices: int) -> float:
    """Return what a device of average degree sends on a mesh: all copies, with headers and transport."""
    total, row = 0.0, longer_by(devices) / devices
    for one, longer in zip(stretches, _longer_in(stretches), strict=True):
        around, (spoken, silent) = TRANSPORT + row + longer, one.frames
        if one.server:
            total += spoken * (frame_bytes(one) + around)
            continue
        total += mean_degree * (spoken * (frame_bytes(one) + around) + silent * (SILENT + around) + one.announced)
    return total
