"""Checkpoints: everything a run needs to continue after an interruption with the same result."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformesh.files.atomic_writes import write_file
from conformesh.files.checkpoints import require_checkpoint_of_run, unreadable_checkpoint
from conformesh.lab.training.torch_extra import import_torch

_KIND = "conformesh checkpoint 1"  # format of the file, with its version


@dataclass(frozen=True)
class TrainingCheckpoint:
    """A model after some epochs.

    The learning rate and all randomness follow from the recipe and the epoch, so neither has a state to keep.

    Attributes
    ----------
    settings
        What makes runs comparable: the recipe, the data and the shape of the model.
    history
        For each epoch its number, loss, accuracy and seconds.
    layers, optimizer, scaler
        The states of the model, of its momentum, and of the scale of its half-precision gradients.
    """

    settings: dict[str, Any]
    history: list[dict[str, Any]]
    layers: dict[str, Any]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]

    def save(self, path: Path) -> None:
        """Write the file; if that is interrupted, the earlier file remains."""
        buffer = io.BytesIO()
        import_torch().save({"kind": _KIND, **vars(self)}, buffer)
        write_file(path, buffer.getbuffer())

    @classmethod
    def load(cls, path: Path, device: str, settings: dict[str, Any]) -> TrainingCheckpoint:
        """Read the file, which holds nothing but numbers and text, and which must be of a run with these settings."""
        data = io.BytesIO(path.read_bytes())
        try:
            found = import_torch().load(data, map_location=device, weights_only=True)
            if not isinstance(found, dict) or found.pop("kind", None) != _KIND:
                raise ValueError("it is not one of conformesh")
            checkpoint = cls(**found)
        except Exception as problem:  # a damaged file can fail in any way
            raise unreadable_checkpoint(path, problem) from None
        require_checkpoint_of_run(path, checkpoint.settings, settings)
        return checkpoint
