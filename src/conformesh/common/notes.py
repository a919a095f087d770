"""Notes: warnings about results and inputs that are valid as they stand but may not be what was meant."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])  # folder of conformesh, one level up: stack frames inside it are skipped


class CalibrationNote(UserWarning):
    """Something a user should know about a result that is valid as it stands."""


def emit_note(text: str, kind: type[Warning] = CalibrationNote) -> None:
    """Warn, by default with a `CalibrationNote`, at the line of the user's code, however deep the call."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, kind, stacklevel=depth + 1)
