"""ATTACKS: what devices that lie may say, in the simulator, one line each."""

from __future__ import annotations

from collections.abc import Callable

from conformesh.faults import Faults
from conformesh.names import unknown
from conformesh.protocols.gathering import Attack

ATTACKS: dict[str, Callable[[Faults], Attack]] = {}


def make_attack(faults: Faults) -> Attack:
    """Return what the liars of these faults do."""
    if faults.attack not in ATTACKS:
        raise ValueError(unknown("attack", faults.attack, ATTACKS))
    return ATTACKS[faults.attack](faults)
