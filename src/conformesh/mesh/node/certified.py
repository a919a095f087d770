"""A certified calibration with where it comes from, and how a moment looks in JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from conformesh.result.calibration import Calibration


@dataclass(frozen=True, eq=False)
class Certified:
    """A certified calibration, and where it comes from.

    Attributes
    ----------
    run
        The number of the run that made it.
    roster
        The devices that took part.
    made
        When, in seconds since 1970 (UTC).
    restored
        True where it was read from disk after a start rather than made since.
    roster_number
        The number of the roster that the run was under.
    """

    calibration: Calibration
    run: int
    roster: tuple[str, ...]
    made: float
    restored: bool = False
    roster_number: int = 0

    def facts(self) -> dict[str, Any]:
        """Return what every answer about it says besides the numbers."""
        return {
            "scores": self.calibration.scores,
            "devices": len(self.roster),
            "made": in_utc(self.made),
            "run": self.run,
            "restored": self.restored,
            "roster_number": self.roster_number,
            "survivors": list(self.roster),
        }


def in_utc(seconds: float) -> str:
    """Return a moment as text.

    >>> in_utc(0.5)
    '1970-01-01T00:00:00.500Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def refuse_nan(calibration: Calibration) -> None:
    """Refuse a result without a number: whatever is compared with NaN is false, and every set would be empty."""
    if math.isnan(calibration.threshold):
        raise ValueError(f"a certified threshold must be a number or inf, got NaN from method {calibration.method!r}")
