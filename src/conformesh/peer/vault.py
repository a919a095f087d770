"""What a device keeps to itself in a run, from when it begins until it is over.

A secret is drawn when everybody is known to agree, and is in the journal, flushed to the disk, before anything that
follows from it is said. So a device that crashes says the same again, byte by byte, and one whose journal is lost, or
whose scores have changed, has another secret. When the run is over the journal forgets it: who takes the disk later
cannot lift the masks of frames that he has written down before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

SIZE = 32  # bytes of a secret


@dataclass(eq=False)
class Vault:
    """The secret of the run that a device is in, for the protocol that it makes.

    Attributes
    ----------
    draw
        Returns a fresh secret that nobody can guess.
    secret
        That of this run.
    context
        What names this run, the same on all devices: a digest of all that was agreed on, its number and who is in.
    """

    draw: Callable[[], bytes]
    secret: bytes = field(default=b"", repr=False)  # no log or traceback shows it
    context: bytes = b""
