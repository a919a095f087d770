"""LEARNERS: rules that move a threshold as labels come, each a small pure state machine.

A learner is a frozen dataclass of options. ``begin(devices)`` returns a state, a named tuple of arrays whose first axis
is the device; ``threshold(state)`` the thresholds to predict with; ``observe(state, score, seen, miss)`` the next
state. No learner draws, waits or knows of a network.
"""

from __future__ import annotations

from typing import Any, Protocol

from conformesh.online.integrators import ACI, Bools, Decaying, Floats, QuantileTracker
from conformesh.online.single_stream import PID, SFOGD, DtACI


class Learner(Protocol):
    """What every learner has."""

    @property
    def alpha(self) -> float:
        """The tolerated share of misses."""

    @property
    def linear(self) -> bool:
        """Whether it is an integrator, so that a network can share it."""

    def begin(self, devices: int) -> Any:
        """Return the state of so many devices before the first example."""

    def threshold(self, state: Any) -> Floats:
        """Return the thresholds for the next examples."""

    def observe(self, state: Any, score: Floats, seen: Bools, miss: Bools | None = None) -> Any:
        """Return the state after labels of the devices in `seen`."""


LEARNERS: dict[str, Any] = {
    "tracker": QuantileTracker,
    "decaying": Decaying,
    "aci": ACI,
    "dtaci": DtACI,
    "pid": PID,
    "sf-ogd": SFOGD,
}
