"""How a device behaves, what it counts, and how it fails."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, cast

from conformesh.peer.frames import WIRE_VERSION

# Reasons for refusals that are counted apart. They may quote bytes of a neighbour, which must not fill the memory.
MOST_REFUSAL_REASONS = 64


FAILURES = {  # why a run ends without a threshold: one word for whoever counts, and what it stands for
    "lost": "a neighbour was silent for too long, or too few devices were left",
    "disagreement": "devices do not agree on what is run",
    "refused": "another device has said that it cannot take part, or cannot go on",
    "scores": "the file of scores of this device cannot be read",
    "certificate": "the certificate or the clock of this device is wrong",
    "roster": "too few devices of an earlier roster are in the run",
    "journal": "the journal of this device cannot be written",
    "links": "this device cannot listen at its endpoint",
    "privacy": "the run would tell more of this device's scores than it may",
    "protocol": "the method raised an error, or a neighbour said what it cannot have said",
    "other": "anything else",
}
Failure = Literal[
    "lost",
    "disagreement",
    "refused",
    "scores",
    "certificate",
    "roster",
    "journal",
    "links",
    "privacy",
    "protocol",
    "other",
]


class PeerError(RuntimeError):
    """A neighbour is missing, disagrees or misbehaves; the message names it.

    Attributes
    ----------
    code
        The same in one word, one of `FAILURES`.
    """

    def __init__(self, words: str, code: Failure = "other") -> None:
        super().__init__(words)
        self.code = code


class LocalError(ValueError):
    """A device cannot take part, for a local reason that its operator can remove; `code` as in `PeerError`."""

    def __init__(self, words: str, code: Failure) -> None:
        super().__init__(words)
        self.code = code


def failure_of(error: Exception) -> Failure:
    """Return in one word what kind of failure an error is; an OSError within a run is one of the journal.

    >>> failure_of(PeerError("device-02 has not said hello", "lost")), failure_of(OSError("disk full"))
    ('lost', 'journal')
    """
    code = getattr(error, "code", None)  # of `PeerError`, `LocalError` and `PrivacyRefused`
    if isinstance(code, str) and code in FAILURES:
        return cast(Failure, code)
    return "journal" if isinstance(error, OSError) else "protocol"


@dataclass(frozen=True)
class Settings:
    """How long a device waits, in seconds, and what it does about a neighbour that is lost.

    Attributes
    ----------
    retry
        After so much silence a device repeats what a neighbour may have missed.
    patience
        A neighbour that sends nothing for so long is lost.
    linger
        For so long a device that is done, or has failed, still answers its neighbours; and for so long a result stands
        before the next run begins, however often one is asked for.
    on_lost
        `fail`: nobody gets a threshold. `continue`: the survivors start again without the lost, if a quorum is left.
    quorum
        With `continue`, how many devices must be left; None is the smallest number above half of the roster.
    """

    retry: float = 0.2
    patience: float = 30.0
    linger: float = 2.0
    on_lost: Literal["fail", "continue"] = "fail"
    quorum: int | None = None

    def needed(self, devices: int) -> int:
        """Return how many of so many devices a run must have: more than half, so that any two runs share a device.

        >>> Settings(on_lost="continue").needed(4), Settings().needed(4)
        (3, 4)
        """
        least = devices // 2 + 1
        chosen = least if self.quorum is None else self.quorum
        if not least <= chosen <= devices:
            raise ValueError(
                f"quorum must be a whole number from {least}, more than half of the {devices} devices, to {devices}, "
                f"got {chosen}: fewer could agree on two thresholds at once"
            )
        return chosen if self.on_lost == "continue" else devices

    def agreement(self, devices: int) -> dict[str, str]:
        """Return what of this must be the same on every device, as short texts."""
        needed = f" with {self.needed(devices)} of {devices} devices" if self.on_lost == "continue" else ""
        return {"protocol": str(WIRE_VERSION), "on_lost": self.on_lost + needed}


@dataclass
class Counts:
    """What a device has sent and received, in frames and bytes; its messages are on its ledger."""

    sent: int = 0
    sent_bytes: int = 0
    resent: int = 0
    received: Counter[int] = field(default_factory=Counter)
    received_bytes: Counter[int] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def refuse(self, words: str) -> None:
        """Count a refused frame by its reason; once there are many reasons, further ones count as "other"."""
        self.refused[words if words in self.refused or len(self.refused) < MOST_REFUSAL_REASONS else "other"] += 1
