"""Randomness from one seed, keyed by purpose and device: an extra draw in one place leaves every other alone.

Functions take `rng` as SPEC 7 of Scientific Python names it. What happens without it depends on what the draw is for:

- A guarantee averages over the draw (`detect`, group regression, `scores make`): fresh entropy, by `recorded_seed`. A
  fixed seed would be one fixed draw, for which nothing is proved. The result records the seed: `rng=result.seed`
  repeats `detect`, and `rng=result.options["group_seed"]` group regression.
- No guarantee depends on the draw (topologies, layouts, k-means, generated data): the seed 0, by `seed_of`, so that
  devices that draw separately draw the same. These functions also take `seed`.
"""

from __future__ import annotations

import secrets
import zlib
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Rng: TypeAlias = "np.random.Generator | int"  # in quotes: random numbers load when they are first drawn
SEED_RANGE = 2**32  # what every library takes as a seed is below
_FRESH_BITS = 53  # of a fresh seed: the most that a JSON number keeps exactly in every language


def random_stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the generator of one purpose (and device, trial, ...).

    >>> bool(random_stream(0, "noise", 3).random() == random_stream(0, "noise", 3).random())
    True
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *keys])


def resolve_seed(rng: Rng | None, seed: int = 0) -> int:
    """Return the seed that was meant: `rng` itself, one drawn from it if it is a generator, or `seed` without it.

    >>> resolve_seed(3), resolve_seed(None, 4)
    (3, 4)
    >>> resolve_seed(np.random.default_rng(0)) == resolve_seed(np.random.default_rng(0))
    True
    """
    if rng is None:
        return seed
    if seed != 0:
        raise TypeError(f"give rng or seed, not both: got rng={rng!r:.40} and seed={seed!r:.40}")
    if isinstance(rng, np.random.Generator):
        return int(rng.integers(SEED_RANGE))
    if isinstance(rng, bool) or not isinstance(rng, int | np.integer):
        raise TypeError(f"rng must be a numpy.random.Generator or a whole number, got {type(rng).__name__} {rng!r:.40}")
    if rng < 0:
        raise ValueError(f"rng must be a numpy.random.Generator or a whole number from 0 on, got {rng}")
    return int(rng)


def recorded_seed(rng: Rng | None) -> int:
    """Return the seed of a draw that a guarantee averages over: fresh entropy, unless `rng` says otherwise.

    The caller shares it among the blocks of its engine and records it in the result.
    """
    return secrets.randbits(_FRESH_BITS) if rng is None else resolve_seed(rng)


def fresh_bytes(count: int) -> bytes:
    """Return so many bytes of fresh entropy: simulated secrets, which nothing may keep or repeat."""
    return secrets.token_bytes(count)


def hash_numbers(values: NDArray[Any]) -> int:
    """Return 64 bits of a hash of numbers: a key of `stream` for draws that must differ from data set to data set."""
    numbers = np.ascontiguousarray(values, dtype=np.float64) + 0.0  # -0.0 and 0.0 are one number
    return int.from_bytes(blake2b(numbers.tobytes(), digest_size=8).digest(), "little")
