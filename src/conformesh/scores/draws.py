"""Uniforms for randomised scores: one per row, shared by all labels of the row.

anew     by default every call draws anew, so that no two rows ever share a draw, however they come in calls
rng      from a generator, which continues from call to call; or, with an integer, from a hash of (integer, purpose, the
         row's values), so that rows that are predicted in separate calls do not share one draw. Rows of equal values
         have draws of their own within a call; in separate calls they share one: use a generator or keys then
keys     from a hash of (seed, purpose, key): the row of that key has this draw in whichever call it comes. Calibration
         and prediction are two purposes, so that their draws are independent though both may count rows from 0
outputs  from a hash of (seed, the row's own outputs), for a score with a seed. The score is then a function of the
         row and its label, the same in calibration and in prediction, and coverage needs nothing but exchangeability
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats
from conformesh.common.names import device_name
from conformesh.common.random_streams import Rng as Rng  # noqa: PLC0414 - as scores take it, and found here
from conformesh.common.random_streams import resolve_seed

CALIBRATION, PREDICTION = "calibration", "prediction"


def draw_uniforms(rng: Rng | None, purpose: str, table: NDArray[Any]) -> Floats:
    """Return one uniform per row of the table: anew, from a generator, or with an integer by the values of the row."""
    if rng is None or isinstance(rng, np.random.Generator):
        return as_generator(rng).random(len(table))
    rows, copies = _row_bytes(f"{resolve_seed(rng)} {purpose} ", table), Counter[bytes]()
    texts = []
    for row in rows:
        texts.append(row + str(copies[row] or "").encode())  # the first copy as if it were alone in its call
        copies[row] += 1
    return _hashed(texts)


def as_generator(rng: Rng | None) -> np.random.Generator:
    """Return the generator that was meant: itself, that of a seed, or a new one."""
    return (
        rng
        if isinstance(rng, np.random.Generator)
        else np.random.default_rng(None if rng is None else resolve_seed(rng))
    )


def uniforms_by_key(seed: int, purpose: str, keys: Iterable[Any], rows: int) -> Floats:
    """Return the uniform of each key: 3, np.int64(3) and "3" are one key."""
    if isinstance(keys, str | bytes):
        raise TypeError(f"keys must be one key for each row, got the single text {keys!r:.40}")
    names = [device_name(key) for key in keys]
    if len(names) != rows:
        raise ValueError(f"keys must be one for each row: got {len(names)} keys for {rows} rows")
    if len({*names}) < rows:
        name, times = Counter(names).most_common(1)[0]
        raise ValueError(f"keys must differ, since rows of one key share a draw: got key {name!r} {times} times")
    return _hashed([f"{seed} {purpose} {name}".encode() for name in names])


def uniforms_by_row(seed: int, table: NDArray[Any]) -> Floats:
    """Return the uniform of each row of outputs; equal rows share it, whether they are float32 or float64."""
    return _hashed(_row_bytes(f"{seed} outputs ", table))


def _row_bytes(start: str, table: NDArray[Any]) -> list[bytes]:
    # Rounded to 32 bits: a model's outputs differ in the last few bits between a batch and a single row.
    mantissas, exponents = np.frexp(np.asarray(table, dtype=np.float64))
    values = np.ldexp(np.rint(mantissas * 2.0**32), exponents - 32) + 0.0  # -0.0 and 0.0 are one number
    return [start.encode() + row.tobytes() for row in np.ascontiguousarray(values)]


def _hashed(texts: Sequence[bytes]) -> Floats:
    """Return 53 bits of each text's hash as a uniform in [0, 1)."""
    words = np.frombuffer(b"".join(blake2b(text, digest_size=8).digest() for text in texts), dtype="<u8")
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
