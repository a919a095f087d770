"""Online conformal prediction: thresholds that follow streams of scores, per device and for the network.

`simulation.online` runs many devices; `learners` and `couplings` move the thresholds, and `bounds` says what is then
guaranteed. `counters` and `alarm` are what a real device uses as well. Nothing here opens a socket: a node that learns
online is in `mesh.node.online`, the recording of a run in `view.online`, its picture in `plots.online`. May import
the layers up to `table` and `engines`, but neither `plots` nor `mesh`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformesh.online.alarm import Alarm, FleetAlarm
    from conformesh.online.bounds import MissAccount, MissGap
    from conformesh.online.couplings import COUPLINGS, NetworkLinks, Rule
    from conformesh.online.integrators import ACI, Decaying, QuantileTracker
    from conformesh.online.learners import LEARNERS, PID, SFOGD, DtACI, Smoothing
    from conformesh.online.result import OnlineResult
    from conformesh.online.simulation import online, recommended_rule

# Loaded when first used: a node needs `counters`, `bounds` and `alarm` only, and the simulation would add the engines
# to its start and its memory.
_HOMES = {
    "ACI": "integrators",
    "COUPLINGS": "couplings",
    "LEARNERS": "learners",
    "PID": "learners",
    "SFOGD": "learners",
    "Alarm": "alarm",
    "Decaying": "integrators",
    "MissAccount": "bounds",
    "DtACI": "learners",
    "FleetAlarm": "alarm",
    "MissGap": "bounds",
    "NetworkLinks": "couplings",
    "OnlineResult": "result",
    "QuantileTracker": "integrators",
    "Rule": "couplings",
    "Smoothing": "learners",
    "online": "simulation",
    "recommended_rule": "simulation",
}

__all__ = [
    "ACI",
    "COUPLINGS",
    "LEARNERS",
    "PID",
    "SFOGD",
    "Alarm",
    "Decaying",
    "DtACI",
    "FleetAlarm",
    "MissAccount",
    "MissGap",
    "NetworkLinks",
    "OnlineResult",
    "QuantileTracker",
    "Rule",
    "Smoothing",
    "online",
    "recommended_rule",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
