"""Randomness from one seed, keyed by purpose and device: an extra draw in one place leaves every other alone.

Functions that draw take `rng` as SPEC 7 of Scientific Python names it, and `seed`, as they always did. One thing is
ours: without either the seed is 0 and not fresh entropy, because what is drawn apart, at every device, must be alike.
"""

from __future__ import annotations

import zlib
from typing import TypeAlias

import numpy as np

Rng: TypeAlias = "np.random.Generator | int"  # in quotes: random numbers load when they are first drawn
SEEDS = 2**32  # what every library takes as a seed is below


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the generator of one purpose (and device, trial, ...).

    >>> bool(stream(0, "noise", 3).random() == stream(0, "noise", 3).random())
    True
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *keys])


def seed_of(rng: Rng | None, seed: int = 0) -> int:
    """Return the seed that was meant: `rng` itself, one drawn from it if it is a generator, or `seed` without it.

    >>> seed_of(3), seed_of(None, 4), seed_of(np.random.default_rng(0)) == seed_of(np.random.default_rng(0))
    (3, 4, True)
    """
    if rng is None:
        return seed
    if seed != 0:
        raise TypeError(f"give rng or seed, not both: got rng={rng!r:.40} and seed={seed!r:.40}")
    if isinstance(rng, np.random.Generator):
        return int(rng.integers(SEEDS))
    if isinstance(rng, bool) or not isinstance(rng, int | np.integer):
        raise TypeError(f"rng must be a numpy.random.Generator or a whole number, got {type(rng).__name__} {rng!r:.40}")
    if rng < 0:
        raise ValueError(f"rng must be a numpy.random.Generator or a whole number from 0 on, got {rng}")
    return int(rng)
