"""Online conformal prediction: thresholds that follow their streams, device by device and for the network."""

from conformesh.online.accounts import Account
from conformesh.online.bounds import Gap
from conformesh.online.couplings import COUPLINGS
from conformesh.online.integrators import ACI, Decaying, QuantileTracker
from conformesh.online.learners import LEARNERS
from conformesh.online.links import Links
from conformesh.online.lone import PID, SFOGD, DtACI, Smoothing
from conformesh.online.outcome import Online
from conformesh.online.rules import Rule
from conformesh.online.simulating import online, recommended

__all__ = [
    "ACI",
    "COUPLINGS",
    "LEARNERS",
    "PID",
    "SFOGD",
    "Account",
    "Decaying",
    "DtACI",
    "Gap",
    "Links",
    "Online",
    "QuantileTracker",
    "Rule",
    "Smoothing",
    "online",
    "recommended",
]
