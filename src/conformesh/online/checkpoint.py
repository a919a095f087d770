"""Checkpoints of `online`: all that a run needs to go on as if it had not been interrupted.

A file holds the state after some steps, which is a tree of arrays, what was written down so far, and of which run it
is. Losses of messages follow from their seed and the step, so there is nothing random to keep.
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

from conformesh.files.checkpoints import require_same_run, unreadable_checkpoint
from conformesh.files.files import write_file

_KIND = "conformesh online checkpoint 1"
SECONDS = 10.0  # between two saves, at least
SHARE = 20  # and of so much time a save may take one part


class CheckpointState(NamedTuple):
    """What a file holds: steps that are done, the state after them, and what was written down, by name."""

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
        What makes a run this one.
    """

    def __init__(self, path: Path, settings: Mapping[str, str]) -> None:
        self.path, self.settings = path, dict(settings)
        self._next = time.monotonic() + SECONDS

    @property
    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() >= self._next

    def check(self, state: Any) -> None:
        """Raise where states like this cannot be kept."""
        for _ in _leaves(state):
            pass

    def save(self, kept: CheckpointState) -> None:
        """Write the file so that an interruption leaves the earlier one."""
        began = time.monotonic()
        facts = np.array(json.dumps({"kind": _KIND, "done": kept.done, "settings": self.settings}))
        leaves = {f"state {i}": leaf for i, leaf in enumerate(_leaves(kept.state))}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, facts=facts, **leaves, **kept.written)
        write_file(self.path, buffer.getbuffer())
        ended = time.monotonic()
        self._next = ended + max(SECONDS, SHARE * (ended - began))

    def load(self, like: Any) -> CheckpointState:
        """Read the file, which must be of this run; the state has the shape of `like`."""
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
        require_same_run(self.path, settings, self.settings)
        leaves = (arrays.pop(f"state {i}") for i in range(len(arrays)))
        return CheckpointState(done, _grown(like, leaves), arrays)


def digest(*arrays: NDArray[Any] | None) -> str:
    """Return a short name of what arrays hold."""
    found = hashlib.sha256()
    for array in arrays:
        if array is None:
            found.update(b"none")
        else:
            found.update(f"{array.dtype} {array.shape}".encode())
            found.update(array.tobytes())
    return found.hexdigest()[:12]


def _leaves(state: Any) -> Iterator[NDArray[Any]]:
    """Yield the arrays of a state, which is made of them, of tuples and of None."""
    if isinstance(state, tuple):
        for part in state:
            yield from _leaves(part)
    elif isinstance(state, np.ndarray):
        yield state
    elif state is not None:
        raise TypeError(f"a checkpoint keeps states of arrays, got {type(state).__name__}; run without a checkpoint")


def _grown(like: Any, leaves: Iterator[NDArray[Any]]) -> Any:
    """Return a state of the same shape with other arrays."""
    if isinstance(like, tuple):
        parts = [_grown(part, leaves) for part in like]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    return None if like is None else next(leaves)
