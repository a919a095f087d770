"""Everybody's words in rounds: a protocol that asks `Gather` runs on every engine that knows no such question.

Assumes     graph connected, diameter known
Guarantees  everybody's string on every device; who signs two different ones, and relays do not lie, is found out
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
    """What devices say where some lie: one string for each device, and whether it says two different ones."""

    packets: Packets
    twice: np.ndarray[Any, np.dtype[np.bool_]]


# From what the devices here would say to what they do; only a simulator, which hosts all of them, has one.
ClaimedStrings = Callable[[Gather, Block], Claims]


def gather_by_flooding(
    protocol: GatheringProtocol[Answers], block: Block, attack: ClaimedStrings | None = None, sealed: bool = True
) -> Protocol[Answers]:
    """Drive a protocol, and answer by flooding what it asks of everybody; all else goes to the engine.

    `sealed` says whether nobody can change what others say: so it is where one process hosts all of them.
    """
    return (yield from answer_locally(protocol, lambda message: _answer_gather(message, block, attack, sealed)))


def answer_locally(
    protocol: Generator[Any, Any, Answers], own: Callable[[Any], Protocol[Any] | None]
) -> Protocol[Answers]:
    """Drive a protocol: what `own` has a protocol for is answered by that, all else by the engine."""
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
    disputed[block.rows] = twice  # both strings reach everybody: what relays pass on is signed
    check = message.check or (lambda said, row: None)
    for row in np.flatnonzero(~disputed).tolist():
        try:
            check(found[row], row)
        except ValueError:
            if not message.sealed:
                raise
            disputed[row] = True  # signed nonsense is proof enough, and must not stop the others
    if disputed.any():
        kept = [b"" if disputed[row] else found[row] for row in range(block.devices)]
        found = Packets.of(kept)
    return GatheredStrings(found, ~disputed, disputed, sealed)
