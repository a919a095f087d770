"""The last certified threshold on disk, so that a node that restarts can answer at once.

One small JSON file with a checksum over all it says. It is replaced in one step and flushed to the disk first: after a
crash or a power cut there is the old file or the new one. A file that is not exactly what was written is never used,
and neither is one of another device, mesh, method, level, score or model: it says what it is bound to. One of an
earlier roster is used: it says which one, and whose scores it is about.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from conformesh.files.atomic_writes import PRIVATE, write_file
from conformesh.files.json_numbers import dump_json, parse_json
from conformesh.files.schemas import validate
from conformesh.mesh.config.device_config import DeviceConfig, score_in_words
from conformesh.mesh.node.certified_result import CertifiedResult, require_numbers
from conformesh.peer.rosters import FIELD
from conformesh.results.result import Result

RESULT_FORMAT = "conformesh-node-result/4"
RESULT_FILE = "result.json"
LOG = logging.getLogger("conformesh.node")
NOT_BOUND = (
    "protocol",
    "on_lost",
    "links",
    "mode",
    "online",
    FIELD,
)  # how devices talk, and to whom: the result says that itself


class _ResultFields(Struct, forbid_unknown_fields=True):
    """What is in the file."""

    format: str
    bound: dict[str, str]
    run: int
    roster: list[str]
    roster_number: int
    lost: list[str]
    made: float
    calibration: dict[str, Any]
    sha256: str


class ResultStore:
    """Keeps one result in a device's folder, which must exist. It holds no score.

    Attributes
    ----------
    path
        The file.
    problem
        Why the last `load` found nothing, in words; empty where there was no file or all went well.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self.config = config
        self.path = config.folder / RESULT_FILE
        self.problem = ""

    def save(self, certified: CertifiedResult) -> None:
        """Replace the result on disk, whole or not at all."""
        body = {
            "format": RESULT_FORMAT,
            "bound": _bound_to(self.config),
            "run": certified.run,
            "roster": list(certified.roster),
            "roster_number": certified.roster_number,
            "lost": list(certified.lost),
            "made": certified.made,
            "calibration": certified.calibration.to_dict(),
        }
        write_file(self.path, dump_json({**body, "sha256": _digest(body)}, indent=2), PRIVATE)

    def load(self) -> CertifiedResult | None:
        """Return the result on disk; None where there is none, or none that can be trusted, which is logged."""
        self.problem = ""
        try:
            return self._read()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            words = error.strerror if isinstance(error, OSError) else str(error)
            why = " ".join((words or "").split()).removeprefix(f"{self.path}: ")
            self.problem = f"{self.path}: the last result cannot be used ({why}); it is ignored until the next run"
            LOG.warning("%s", self.problem)
            return None

    def _read(self) -> CertifiedResult:
        where = str(self.path)
        raw = parse_json(self.path.read_bytes(), where)
        if not isinstance(raw, dict) or raw.get("format") != RESULT_FORMAT:
            got = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
            raise ValueError(f"needed format {RESULT_FORMAT}, got {got!r}")
        file = validate(raw, _ResultFields, where)
        del raw["sha256"]
        if file.sha256 != _digest(raw):
            raise ValueError("its checksum does not match what it says")
        calibration = Result.from_dict(file.calibration, where)
        require_numbers(calibration)
        differing = [*_differences(file.bound, _bound_to(self.config)), *self._contradictions(file, calibration)]
        if differing:
            raise ValueError(f"it is of another device or of other settings: {'; '.join(differing)}")
        return CertifiedResult(
            calibration, file.run, tuple(file.roster), file.made, True, file.roster_number, lost=tuple(file.lost)
        )

    def _contradictions(self, file: _ResultFields, calibration: Result) -> Iterator[str]:
        """Go through what the result itself says against what this device is."""
        config = self.config
        if config.name not in calibration.device_ids:
            yield f"its threshold is that of {', '.join(calibration.device_ids[:3])}, not of {config.name}"
        same = file.roster_number == config.roster_number
        if config.name not in file.roster or (same and not {*file.roster} <= {*config.devices}):
            yield f"its roster {', '.join(file.roster[:3])}... is not of devices of this mesh with {config.name}"
        if file.roster_number > config.roster_number:
            yield f"it is of roster {file.roster_number}, and this device is under {config.roster_number}"
        if (calibration.method, calibration.guarantee) != (config.run.method, config.chosen_guarantee):
            levels = ", ".join(f"{alpha:g}" for alpha in calibration.alphas)
            yield f"it was found by {calibration.method} at alpha {levels}, or for another guarantee"
        if score_in_words(calibration.score) != score_in_words(config.chosen_score):
            yield f"its score is {score_in_words(calibration.score)}"


def _bound_to(config: DeviceConfig) -> dict[str, str]:
    """Return what a result belongs to: the device, and all that was agreed on about what is calculated."""
    return {"device": config.name} | {name: text for name, text in config.agreement().items() if name not in NOT_BOUND}


def _differences(theirs: Mapping[str, str], mine: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*theirs, *mine}):
        if theirs.get(name) != mine.get(name):
            yield f"{name} is {theirs.get(name, 'not said')!r} there and {mine.get(name, 'not said')!r} here"


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
