"""Loops for Numba's compiler: importing a module of this folder loads Numba, so only `kernels.compiling` does.

Each has a twin in NumPy with the same bits, in the module of the same name one folder up, and a slow, obvious one in
the tests. Loops call each other as plain functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def loop(function: F) -> F:
    """Compile a loop at its first call, without the interpreter's lock, and keep what was compiled on disk."""
    try:
        return cast(F, njit(cache=True, nogil=True)(function))
    except RuntimeError:  # nowhere to keep it, as on a system that is read-only: compile at every start
        return cast(F, njit(nogil=True)(function))
