"""How a device behaves, what it counts, and how it fails."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

MOST_REASONS = 64  # a stranger must not fill the memory with reasons to refuse it


class PeerError(RuntimeError):
    """A neighbour is missing, disagrees or misbehaves; the message names it."""


@dataclass(frozen=True)
class Settings:
    """How long a device waits, in seconds, and what it does about a neighbour that is lost.

    Attributes
    ----------
    retry
        After so much silence a device repeats what a neighbour may have missed.
    patience
        A neighbour that said nothing for so long is lost.
    linger
        So long a device that is done, or has failed, still answers those who are not.
    on_lost
        `fail`: nobody gets a threshold. `continue`: the survivors start again without the lost, if still connected.
    """

    retry: float = 0.2
    patience: float = 30.0
    linger: float = 2.0
    on_lost: Literal["fail", "continue"] = "fail"


@dataclass
class Counts:
    """What a device has sent and heard, in frames and bytes; its messages are on its ledger."""

    sent: int = 0
    sent_bytes: int = 0
    resent: int = 0
    heard: Counter[int] = field(default_factory=Counter)
    heard_bytes: Counter[int] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def refuse(self, words: str) -> None:
        """Count a refused frame by its reason, of which not too many are kept apart."""
        self.refused[words if words in self.refused or len(self.refused) < MOST_REASONS else "other"] += 1
