"""Answers `Gather` by flooding, so that a protocol written for asynchronous mode also runs in rounds on every engine.

Assumes     graph connected, diameter known
Guarantees  the strings of all devices on every device; a device that signs two different ones is found out
Message     that of `flood`
Departures  none
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np

from conformesh.protocols.block import Answers, Block
from conformesh.protocols.flood import flood_strings
from conformesh.protocols.messages import Gather, GatheredStrings, GatheringProtocol, Packets, Protocol


class Claims(NamedTuple):
    """What devices send where some are Byzantine: one string each, and whether they send two different ones."""

    packets: Packets
    twice: np.ndarray[Any, np.dtype[np.bool_]]


# Turns the honest strings of all devices into what is sent. Only a simulator has one: it hosts all devices.
ClaimedStrings = Callable[[Gather, Block], Claims]


def gather_by_flooding(
    protocol: GatheringProtocol[Answers], block: Block, attack: ClaimedStrings | None = None, sealed: bool = True
) -> Protocol[Answers]:
    """Run a protocol: answer `Gather` by flooding, and pass all other messages to the engine.

    `sealed` says that no device can change the strings of others, as where one process hosts all devices.
    """
    return (yield from answer_locally(protocol, lambda message: _answer_gather(message, block, attack, sealed)))


def answer_locally(
    protocol: Generator[Any, Any, Answers], own: Callable[[Any], Protocol[Any] | None]
) -> Protocol[Answers]:
    """Run a protocol: messages for which `own` returns a protocol are answered by it, all others by the engine."""
    answer: Any = None
    while True:
        try:
            message = protocol.send(answer)
        except StopIteration as end:
            outcome: Answers = end.value
            return outcome
        others = own(message)
        answer = (yield message) if others is None else (yield from others)


def _answer_gather(
    message: Any, block: Block, attack: ClaimedStrings | None, sealed: bool
) -> Protocol[GatheredStrings] | None:
    return _flood_strings(message, block, attack, sealed) if isinstance(message, Gather) else None


def _flood_strings(
    message: Gather, block: Block, attack: ClaimedStrings | None, sealed: bool
) -> Protocol[GatheredStrings]:
    said, twice = message.packets, np.zeros(len(block.rows), dtype=np.bool_)
    if attack is not None:
        said, twice = attack(message, block)
    found = yield from flood_strings(block, said)
    disputed = np.zeros(block.devices, dtype=np.bool_)
    disputed[block.rows] = twice  # both signed strings reach all devices, which proves it
    check = message.check or (lambda said, row: None)
    for row in np.flatnonzero(~disputed).tolist():
        try:
            check(found[row], row)
        except ValueError:
            if not message.sealed:
                raise
            disputed[row] = True  # a signed invalid string is proof, and must not stop the others
    if disputed.any():
        kept = [b"" if disputed[row] else found[row] for row in range(block.devices)]
        found = Packets.of(kept)
    return GatheredStrings(found, ~disputed, disputed, sealed)
