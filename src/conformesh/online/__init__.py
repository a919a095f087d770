"""Online conformal prediction: thresholds that follow their streams, device by device and for the network.

Names are loaded when they are first used: a device of a mesh needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformesh.online.accounts import DeviceAccount
    from conformesh.online.alarm import Alarm
    from conformesh.online.bounds import Gap
    from conformesh.online.couplings import COUPLINGS
    from conformesh.online.fleet import FleetAlarm
    from conformesh.online.integrators import ACI, Decaying, QuantileTracker
    from conformesh.online.learners import LEARNERS
    from conformesh.online.links import Links
    from conformesh.online.result import OnlineResult
    from conformesh.online.rules import Rule
    from conformesh.online.simulation import online, recommended
    from conformesh.online.single_stream import PID, SFOGD, DtACI, Smoothing

_PLACES = {
    "ACI": "integrators",
    "COUPLINGS": "couplings",
    "LEARNERS": "learners",
    "PID": "single_stream",
    "SFOGD": "single_stream",
    "DeviceAccount": "accounts",
    "Alarm": "alarm",
    "Decaying": "integrators",
    "DtACI": "single_stream",
    "FleetAlarm": "fleet",
    "Gap": "bounds",
    "Links": "links",
    "OnlineResult": "result",
    "QuantileTracker": "integrators",
    "Rule": "rules",
    "Smoothing": "single_stream",
    "online": "simulation",
    "recommended": "simulation",
}

__all__ = [
    "ACI",
    "COUPLINGS",
    "LEARNERS",
    "PID",
    "SFOGD",
    "Alarm",
    "Decaying",
    "DeviceAccount",
    "DtACI",
    "FleetAlarm",
    "Gap",
    "Links",
    "OnlineResult",
    "QuantileTracker",
    "Rule",
    "Smoothing",
    "online",
    "recommended",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
