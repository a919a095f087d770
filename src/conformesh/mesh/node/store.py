"""The last certified threshold on disk, so that a node that restarts can answer at once.

One small JSON file with a checksum over all it says. It is replaced in one step and flushed to the disk first: after a
crash or a power cut there is the old file or the new one. A file that is not exactly what was written is never used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from conformesh.io.files import PRIVATE, write_file
from conformesh.mesh.node.certified import Certified, refuse_nan
from conformesh.result.calibration import Calibration

FORMAT = "conformesh-node-result/1"
NAME = "result.json"
LOG = logging.getLogger("conformesh.node")


class ResultStore:
    """Keeps one result in a folder, which must exist. It holds no score.

    Attributes
    ----------
    path
        The file.
    problem
        Why the last `load` found nothing, in words; empty where there was no file or all went well.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / NAME
        self.problem = ""

    def save(self, calibration: Calibration, *, run: int, roster: Iterable[str], made: float) -> None:
        """Replace the result on disk, whole or not at all."""
        body = {
            "format": FORMAT,
            "run": run,
            "roster": list(roster),
            "made": made,
            "calibration": calibration.to_dict(),
        }
        text = json.dumps({**body, "sha256": _digest(body)}, allow_nan=False, indent=2) + "\n"
        write_file(self.path, text, PRIVATE)

    def load(self) -> Certified | None:
        """Return the result on disk; None where there is none, or none that can be trusted, which is logged."""
        self.problem = ""
        try:
            return _read(self.path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            words = (error.strerror or str(error)) if isinstance(error, OSError) else _in_words(error)
            self.problem = f"{self.path}: the last result cannot be used ({words}); it is ignored until the next run"
            LOG.warning("%s", self.problem)
            return None


def _read(path: Path) -> Certified:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not text
        raise ValueError(f"it does not parse: {error}") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        got = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
        raise ValueError(f"needed format {FORMAT}, got {got!r}")
    if raw.pop("sha256", None) != _digest(raw):
        raise ValueError("its checksum does not match what it says")
    calibration = Calibration.from_dict(raw["calibration"])
    refuse_nan(calibration)
    return Certified(calibration, int(raw["run"]), tuple(raw["roster"]), float(raw["made"]), restored=True)


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _in_words(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
