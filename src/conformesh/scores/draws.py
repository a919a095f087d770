"""Uniforms for randomised scores: one per row, shared by all labels of the row.

anew     by default every call draws anew, so that no two rows ever share a draw, however they come in calls
rng      from a generator, which goes on from call to call, or from the seed of one
keys     from a hash of (seed, purpose, key): the row of that key has this draw in whichever call it comes. Calibration
         and prediction are two purposes, so that their draws are independent though both may count rows from 0
outputs  from a hash of (seed, the row's own outputs), for a score with a seed. The score is then a function of the
         row and its label, the same in calibration and in prediction, and coverage needs nothing but exchangeability
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.names import device_name
from conformesh.streams import Rng as Rng  # noqa: PLC0414 - as scores take it, and found here

Floats = NDArray[np.float64]
CALIBRATION, PREDICTION = "calibration", "prediction"


def drawn_anew(rows: int, rng: Rng | None = None) -> Floats:
    """Return one uniform per row: anew, from a generator, or from the seed of one."""
    return generator_of(rng).random(rows)


def generator_of(rng: Rng | None) -> np.random.Generator:
    """Return the generator that was meant: itself, that of a seed, or a new one."""
    if rng is not None and (isinstance(rng, bool) or not isinstance(rng, np.random.Generator | int | np.integer)):
        raise TypeError(f"rng must be a numpy.random.Generator or a whole number, got {type(rng).__name__} {rng!r:.40}")
    return np.random.default_rng(rng)


def drawn_by_key(seed: int, purpose: str, keys: Iterable[Any], rows: int) -> Floats:
    """Return the uniform of each key: 3, np.int64(3) and "3" are one key."""
    if isinstance(keys, str | bytes):
        raise TypeError(f"keys must be one key for each row, got the single text {keys!r:.40}")
    names = [device_name(key) for key in keys]
    if len(names) != rows:
        raise ValueError(f"keys must be one for each row: got {len(names)} keys for {rows} rows")
    return _hashed([f"{seed} {purpose} {name}".encode() for name in names])


def drawn_by_row(seed: int, table: NDArray[Any]) -> Floats:
    """Return the uniform of each row of outputs; equal rows share it, whether they are float32 or float64."""
    values = np.ascontiguousarray(table, dtype=np.float64) + 0.0  # -0.0 and 0.0 are one number
    start = f"{seed} outputs ".encode()
    return _hashed([start + row.tobytes() for row in values])


def _hashed(texts: Sequence[bytes]) -> Floats:
    """Return 53 bits of each text's hash as a uniform in [0, 1)."""
    words = np.frombuffer(b"".join(blake2b(text, digest_size=8).digest() for text in texts), dtype="<u8")
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
