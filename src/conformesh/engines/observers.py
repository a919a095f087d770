"""Observers of a run: they get its rounds, for plots, progress bars, recordings and traces.

A plain function of round, message and answer is enough. A subclass of `RunObserver` also gets the run before its first
round, and may declare that it keeps no message: then the simulator is as fast as without an observer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from conformesh.common.progress import Progress, progress_output

if TYPE_CHECKING:
    from conformesh.protocols.block import Block
    from conformesh.protocols.faults import Faults
    from conformesh.protocols.messages import Message

Observer = Callable[[int, "Message", Any], None]


class RunObserver:
    """An observer that also gets the run before its first round. Methods that a subclass does not define do nothing.

    Attributes
    ----------
    keeps_messages
        Whether it may keep the messages and answers of a round. Then they must not change any more, and the simulator
        cannot reuse their memory in the next round.
    """

    keeps_messages = True

    def begin(self, block: Block, method: str, faults: Faults | None) -> None:
        """Look at the run before its first round."""

    def __call__(self, round_: int, message: Message, answer: Any) -> None:
        """Look at a round after it is over."""


class ObserverGroup(RunObserver):
    """Several observers as one, called in their order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self.keeps_messages = any(map(keeps_messages, observers))

    def begin(self, block: Block, method: str, faults: Faults | None) -> None:
        """Tell all of them."""
        for observer in self._observers:
            announce_run(observer, block, method, faults)

    def __call__(self, round_: int, message: Message, answer: Any) -> None:
        """Show all of them the round."""
        for observer in self._observers:
            observer(round_, message, answer)


class _RoundCounter(RunObserver):
    """Counts rounds on a bar."""

    keeps_messages = False

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, round_: int, message: Message, answer: Any) -> None:
        """Count the round."""
        self._progress.step()


def keeps_messages(observer: Observer | None) -> bool:
    """Return whether messages must not change later: a plain function may keep them."""
    return observer.keeps_messages if isinstance(observer, RunObserver) else observer is not None


def announce_run(observer: Observer | None, block: Block, method: str, faults: Faults | None) -> None:
    """Show an observer the run before its first round, if it is a `RunObserver`."""
    if isinstance(observer, RunObserver):
        observer.begin(block, method, faults)


@contextmanager
def rounds_on_a_bar(what: str, observer: Observer | None = None, shown: bool = True) -> Iterator[Observer | None]:
    """Enter with an observer that shows rounds on a progress bar and calls the given one.

    Where no bar is shown it is the given one, perhaps None: without an observer a simulator may reuse memory.
    """
    if not shown or progress_output() is None:
        yield observer
        return
    with Progress(what, unit="rounds") as progress:
        counter = _RoundCounter(progress)
        yield counter if observer is None else ObserverGroup(counter, observer)
