"""What every engine does: compute a block of devices, run a protocol for them, and share results between blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformesh.engines.observers import Observer
from conformesh.graph.network import Network
from conformesh.protocols.faults import Faults
from conformesh.protocols.ledger import Ledger
from conformesh.protocols.message_checks import MessageChecks
from conformesh.protocols.messages import Message
from conformesh.protocols.messages import Protocol as Messages
from conformesh.results.certificate import Cost

T = TypeVar("T")


class Engine(Protocol):
    """Drives protocols for a block of the devices of one network.

    Attributes
    ----------
    network
        Who may talk to whom.
    observer
        Called after every round with (round, message, answer) of the devices here.
    blocks
        Which rows each block hosts; all blocks together are the network.
    rows
        The rows hosted here: one of the blocks.
    """

    network: Network
    observer: Observer | None

    @property
    def blocks(self) -> Sequence[NDArray[np.int64]]: ...  # noqa: D102 - described above

    @property
    def rows(self) -> NDArray[np.int64]: ...  # noqa: D102

    def run(self, protocol: Messages[T], runs: int = 1, faults: Faults | None = None) -> tuple[T, Cost]:
        """Return what the protocol returns for this block, and what one of its `runs` cost every device.

        With `faults` messages get lost as they say, where the engine can do that; else it refuses.
        """

    def share(self, value: T) -> list[T]:
        """Return the value of every block, in the order of `blocks`: for results, outside the protocol and its cost."""

    def together(self) -> AbstractContextManager[None]:
        """Guard work that must succeed on every block: what fails on one of them only ends them all."""

    def close(self) -> None:
        """Give back what the engine holds."""


def drive_protocol(
    protocol: Messages[T],
    rules: MessageChecks,
    ledger: Ledger,
    answers: Mapping[type, Callable[[Any, int], Any]],
    observer: Observer | None = None,
    sent_part: Callable[[Message, int], Message] | None = None,
) -> T:
    """Run a protocol to its end: check each message, answer it, charge it, show it; return what the protocol returns.

    `answers` has a function for every kind of message, which gets the message and the number of its round. `sent_part`
    returns the part of a message that is really sent, where some devices may be inactive.
    """
    answer: Any = None
    rules.begin()
    while True:
        try:
            message = protocol.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        kind = rules.check(message, ledger.rounds + 1)
        if type(message) not in answers:
            raise TypeError(f"this engine has no answer to {kind.name!r}; add it to its table of answers")
        # Checked as the protocol wrote it, but answered and charged as it is sent: inactive devices pay nothing. The
        # ledger counts the round, so it comes after the answer and before the observer, who is given that number.
        if sent_part is not None:
            message = sent_part(message, ledger.rounds + 1)
        answer = answers[type(message)](message, ledger.rounds + 1)
        ledger.enter(message)
        if observer is not None:
            observer(ledger.rounds, message, answer)


def refuse_lost_messages(engine: str, faults: Faults | None) -> None:
    """Refuse to lose messages, for an engine that delivers all of them."""
    if faults is not None and faults.loses:
        raise ValueError(
            f"engine {engine!r} delivers every message, and the faults have {', '.join(sorted(faults.names))}; a "
            "network that loses messages is simulated in one process: use the engine 'simulator'"
        )
