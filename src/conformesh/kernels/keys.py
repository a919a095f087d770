"""Floats as ordered integers: the next float is the next integer, so any interval halves in at most 64 steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints

# Floats below zero have their sign bit set and grow in magnitude: subtracting their bits from the lowest int64 reverses
# their order and puts them below zero.
_SIGN = np.int64(-(2**63))


def to_keys(values: Any) -> Ints:
    """Return int64 keys in the order of the floats, from -inf to +inf; both zeros have the key 0.

    >>> to_keys(np.array([-1.0, -0.0, 0.0, 5e-324, np.inf])).argsort().tolist()
    [0, 1, 2, 3, 4]
    """
    bits = (np.asarray(values, dtype=np.float64) + 0.0).view(np.int64)  # + 0.0 turns -0.0 into 0.0
    return np.asarray(np.where(bits < 0, _SIGN - bits, bits))


def from_keys(keys: Any) -> NDArray[np.float64]:
    """Return the floats of keys.

    >>> from_keys(to_keys(np.array([-2.5, 0.0, 3.0]))).tolist()
    [-2.5, 0.0, 3.0]
    """
    keys = np.asarray(keys, dtype=np.int64)
    return np.asarray(np.where(keys < 0, _SIGN - keys, keys).view(np.float64))
