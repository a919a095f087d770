"""Checkpoints of `online`: everything a run needs to continue after an interruption with the same result.

A file holds the state after some steps, which is a tree of arrays, the results so far, and the settings of the run.
Lost messages follow from their seed and the step, so there is no random state to keep.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.files.atomic_writes import write_file
from conformesh.files.checkpoints import require_checkpoint_of_run, unreadable_checkpoint

_KIND = "conformesh online checkpoint 1"  # format of the file, with its version
SAVE_INTERVAL = 10.0  # seconds between two saves, at least: what an interruption may cost
SAVE_SHARE = 20  # saving takes at most 1 / SAVE_SHARE of the time, also where states are large


class CheckpointState(NamedTuple):
    """Content of a checkpoint: the number of finished steps, the state after them, and the results so far, by name."""

    done: int
    state: Any
    written: dict[str, NDArray[Any]]


class Checkpoint:
    """A file that is replaced from time to time.

    Parameters
    ----------
    path
        The file.
    settings
        What identifies a run; a file with other settings raises an error.
    """

    def __init__(self, path: Path, settings: Mapping[str, str]) -> None:
        self.path, self.settings = path, dict(settings)
        self._next = time.monotonic() + SAVE_INTERVAL

    @property
    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() >= self._next

    def require_storable(self, state: Any) -> None:
        """Raise an error if states like this cannot be stored."""
        for _ in _leaves(state):
            pass

    def save(self, kept: CheckpointState) -> None:
        """Write the file; if that is interrupted, the earlier file remains."""
        began = time.monotonic()
        facts = np.array(json.dumps({"kind": _KIND, "done": kept.done, "settings": self.settings}))
        leaves = {f"state {i}": leaf for i, leaf in enumerate(_leaves(kept.state))}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, facts=facts, **leaves, **kept.written)
        write_file(self.path, buffer.getbuffer())
        ended = time.monotonic()
        self._next = ended + max(SAVE_INTERVAL, SAVE_SHARE * (ended - began))

    def load(self, like: Any) -> CheckpointState:
        """Read the file of this run; the state has the structure of `like`."""
        data = self.path.read_bytes()
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            facts = json.loads(str(arrays.pop("facts")))
            if facts["kind"] != _KIND:
                raise ValueError("it is of another kind")
            done, settings = int(facts["done"]), dict(facts["settings"])
        except Exception as problem:  # a damaged file can fail in any way
            raise unreadable_checkpoint(self.path, problem) from None
        require_checkpoint_of_run(self.path, settings, self.settings)
        leaves = (arrays.pop(f"state {i}") for i in range(len(arrays)))
        return CheckpointState(done, _rebuild(like, leaves), arrays)


def digest_arrays(*arrays: NDArray[Any] | None) -> str:
    """Return a short digest of the content of arrays."""
    hasher = hashlib.sha256()
    for array in arrays:
        if array is None:
            hasher.update(b"none")
        else:
            hasher.update(f"{array.dtype} {array.shape}".encode())
            hasher.update(array.tobytes())
    return hasher.hexdigest()[:12]


def _leaves(state: Any) -> Iterator[NDArray[Any]]:
    """Yield the arrays of a state, which consists of arrays, tuples and None."""
    if isinstance(state, tuple):
        for part in state:
            yield from _leaves(part)
    elif isinstance(state, np.ndarray):
        yield state
    elif state is not None:
        raise TypeError(f"a checkpoint keeps states of arrays, got {type(state).__name__}; run without a checkpoint")


def _rebuild(like: Any, leaves: Iterator[NDArray[Any]]) -> Any:
    """Return a state of the same structure with other arrays."""
    if isinstance(like, tuple):
        parts = [_rebuild(part, leaves) for part in like]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    return None if like is None else next(leaves)
