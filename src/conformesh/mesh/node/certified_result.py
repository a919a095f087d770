"""A certified calibration with where it comes from, and how a moment looks in JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from msgspec import to_builtins

from conformesh.files.json_numbers import in_json
from conformesh.mesh.node.status import ThresholdForAll
from conformesh.results.certificate import Certificate
from conformesh.results.result import Result


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

    calibration: Result
    run: int
    roster: tuple[str, ...]
    made: float
    restored: bool = False
    roster_number: int = 0
    about_all: Result | None = None
    final: bool = True
    lost: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether it is about everybody who takes part, and not only about those who were heard so far."""
        return not any(answer.certificate.heard for answer in self.calibration.answers)

    def facts(self) -> dict[str, Any]:
        """Return the fields of `CertifiedFacts`, which every reply about it contains besides the numbers."""
        return {
            "scores": self._scores(),
            "devices": len(self.roster),
            "made": in_utc(self.made),
            "run": self.run,
            "restored": self.restored,
            "final": self.final,
            "about": "reported" if not self.whole else "survivors" if self.lost else "everybody",
            **({} if self.whole else {"reported": list(self.roster), "everybody": self._everybody()}),
            "roster_number": self.roster_number,
            "survivors": list(self.roster),
            "lost": list(self.lost),
        }

    def answers(self) -> list[dict[str, Any]]:
        """Return the threshold of every part and level with its certificate, as JSON."""
        return [
            {
                "part": list(answer.part),
                "alpha": float(answer.alpha),
                "threshold": in_json(answer.threshold),
                "certificate": _plain(answer.certificate),
            }
            for answer in self.calibration.answers
        ]

    def _scores(self) -> int | None:
        """Return how many scores are behind the thresholds, on all devices; None where noise hides it."""
        result = self.calibration
        if any(answer.certificate.noise is not None for answer in result.answers):
            return None
        if result.guarantee.groups is None:  # sides and levels are about the same examples
            return result.answers[0].examples
        return sum({answer.part[0]: answer.examples for answer in result.answers}.values())

    def _everybody(self) -> ThresholdForAll:
        if self.about_all is None:
            return ThresholdForAll("inf", None)
        answer = self.about_all.answer
        return ThresholdForAll(in_json(answer.threshold), _plain(answer.certificate))


def _plain(certificate: Certificate) -> dict[str, Any]:
    made: dict[str, Any] = in_json(to_builtins(certificate))
    return made


def in_utc(seconds: float) -> str:
    """Return a moment as text.

    >>> in_utc(0.5)
    '1970-01-01T00:00:00.500Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def refuse_nan(calibration: Result) -> None:
    """Refuse a result without a number: whatever is compared with NaN is false, and every set would be empty."""
    if any(math.isnan(answer.threshold) for answer in calibration.answers):
        raise ValueError(f"a certified threshold must be a number or inf, got NaN from method {calibration.method!r}")
