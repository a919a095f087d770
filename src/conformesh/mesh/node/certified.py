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
    about_all
        Where it is about the devices that were heard so far: what is certain about all of them, as another calibration;
        None where nothing is.
    roster_number
        The number of the roster that the run was under.
    lost
        Devices of the roster that it is not about: the others went on without them (`on_lost = "continue"`).
    final
        Whether it is the result of its run, the same on all its devices. Without rounds there may be one before all was
        heard, also about everybody: it holds, and another device may hold another one.
    """

    calibration: Calibration
    run: int
    roster: tuple[str, ...]
    made: float
    restored: bool = False
    roster_number: int = 0
    about_all: Calibration | None = None
    final: bool = True
    lost: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether it is about everybody who takes part, and not only about those who were heard so far."""
        return not self.calibration.certificate.heard

    def facts(self) -> dict[str, Any]:
        """Return what every answer about it says besides the numbers."""
        return {
            "scores": self.calibration.scores if self.calibration.certificate.noise is None else None,
            "devices": len(self.roster),
            "made": in_utc(self.made),
            "run": self.run,
            "restored": self.restored,
            "final": self.final,
            "about": "the heard" if not self.whole else "the survivors" if self.lost else "everybody",
            **({} if self.whole else {"heard": list(self.roster), "everybody": self._everybody()}),
            "roster_number": self.roster_number,
            "survivors": list(self.roster),
            "lost": list(self.lost),
        }

    def _everybody(self) -> dict[str, Any]:
        """Return what is certain about everybody meanwhile: +inf where nothing is."""
        if self.about_all is None:
            return {"threshold": "inf", "certificate": None}
        raw = self.about_all.to_dict()
        return {"threshold": raw["threshold"], "certificate": raw["certificate"]}


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
