"""A certified result of a node: the calibration, the run and the roster that it comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from conformesh.files.json_numbers import as_json_value
from conformesh.mesh.node.status import CertifiedFacts, ThresholdForAll
from conformesh.results.certificate import Certificate
from conformesh.results.result import Result

if TYPE_CHECKING:
    from conformesh.results.adapted_facts import DeviceRows


@dataclass(frozen=True, eq=False)
class CertifiedResult:
    """A certified result, and where it comes from.

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
        If it is about the devices that have reported so far: what is certain about all devices, as another calibration;
        None if nothing is.
    roster_number
        The number of the roster that the run was under.
    lost
        Devices of the roster that it is not about: the others continued without them (`on_lost = "continue"`).
    final
        Whether it is the result of its run, the same on all its devices. In asynchronous mode there may be a result
        before all reports have arrived: its guarantee holds, but another device may have another threshold.
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
        """Whether it is about all devices that take part, and not only about those that have reported so far."""
        return not any(answer.certificate.heard for answer in self.calibration.answers)

    def facts(self) -> CertifiedFacts:
        """Return what every reply about it contains besides its numbers."""
        return CertifiedFacts(
            scores=self._scores(),
            devices=len(self.roster),
            made=utc_text(self.made),
            run=self.run,
            restored=self.restored,
            final=self.final,
            about="reported" if not self.whole else "survivors" if self.lost else "everybody",
            reported=None if self.whole else list(self.roster),
            everybody=None if self.whole else self._everybody(),
            roster_number=self.roster_number,
            survivors=list(self.roster),
            lost=list(self.lost),
            adapt=None if (adapt := self.calibration.guarantee.adapt) is None else adapt.name,
        )

    def explain_other_rows(self, device: str, rows: DeviceRows) -> str:
        """Return why a device cannot predict with these rows; nothing if adapted scores were calibrated with them."""
        facts = self.calibration.adapted
        if facts is None or device not in facts.digests or rows.digest == facts.digests[device]:
            return ""
        return (
            f"the labelled outputs of this device are not those that it calibrated with in run {self.run} (their "
            f"digest is {rows.digest[:12]}..., and was {facts.digests[device][:12]}...), so that it cannot predict: "
            "put the file of that run back, in the same order, or wait for the next run"
        )

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
        return ThresholdForAll(as_json_value(answer.threshold), certificate_fields(answer.certificate))


def certificate_fields(certificate: Certificate) -> dict[str, Any]:
    """Return a certificate as JSON has it."""
    fields: dict[str, Any] = as_json_value(to_builtins(certificate))
    return fields


def utc_text(seconds: float) -> str:
    """Return a moment as text.

    >>> utc_text(0.5)
    '1970-01-01T00:00:00.500Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def require_numbers(calibration: Result) -> None:
    """Raise an error for a threshold that is NaN: every comparison with NaN is false, so every set would be empty."""
    if any(math.isnan(answer.threshold) for answer in calibration.answers):
        raise ValueError(f"a certified threshold must be a number or inf, got NaN from method {calibration.method!r}")
