"""Saved results as `privacy` and `quantiles` read them: of `calibrate`, or of one device of a mesh."""

from __future__ import annotations

from typing import Any, NamedTuple

from conformesh.cli.predict import Result, result_of
from conformesh.io.schemas import checked
from conformesh.privacy.histogram import Release
from conformesh.result.calibration import Calibration
from conformesh.result.certificate import Noise
from conformesh.result.several import Calibrations
from conformesh.result.sides import Sides

NODE_RESULT = "conformesh-node-result/"  # of one device of a mesh


class Saved(NamedTuple):
    """A result, what to call it, and how many devices took part."""

    result: Result
    name: str
    devices: int

    @property
    def first(self) -> Calibration:
        """The first of several results of one run."""
        if isinstance(self.result, Calibrations):
            return next(iter(self.result.items.values()))
        first: Calibration = self.result.lower if isinstance(self.result, Sides) else self.result
        return first


class Private(NamedTuple):
    """The release of a result, and its noise."""

    release: Release
    noise: Noise


def saved_result(raw: Any, name: str) -> Saved:
    """Return the result that a JSON object is."""
    count = None
    if isinstance(raw, dict) and str(raw.get("format", "")).startswith(NODE_RESULT):
        count, raw = len(raw.get("roster", ())), raw.get("calibration")
    found = Saved(result_of(raw, name), name, 0)
    return found._replace(devices=count or found.first.devices)


def releases_in(saved: Saved) -> dict[str | None, Private]:
    """Return the release of every group of a result; of a run without epsilon none.

    All levels of a group are read from the same release.
    """
    found: dict[str | None, Private] = {}
    parts = saved.result.items if isinstance(saved.result, Calibrations) else {(None, 0.0): saved.first}
    for (group, _), one in parts.items():
        if one.certificate.noise is not None and "release" in one.options:
            release = checked(one.options["release"], Release, f"{saved.name}: release")
            found.setdefault(group, Private(release, one.certificate.noise))  # the noise of the first level
    return found
