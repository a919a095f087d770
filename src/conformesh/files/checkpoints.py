"""Errors of checkpoints: a file that cannot be read, or belongs to a run with other settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def unreadable_checkpoint(path: Path, problem: Exception) -> ValueError:
    """Return the error for a file that is damaged or no checkpoint at all."""
    why = (str(problem).strip() or type(problem).__name__).splitlines()[0]
    return ValueError(f"{path}: cannot be read as a checkpoint: {why}; {_advice(path)}")


def require_checkpoint_of_run(path: Path, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise unless the checkpoint is of a run with these settings."""
    for name, wanted in asked.items():
        if kept.get(name) != wanted:
            raise ValueError(
                f"{path}: is a checkpoint of a run with {name} {kept.get(name)}, now it is {wanted}; {_advice(path)}"
            )


def _advice(path: Path) -> str:
    return f"use another checkpoint file, or do not resume (--no-resume), which replaces {path}"
