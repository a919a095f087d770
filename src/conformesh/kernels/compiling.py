"""Loops that Numba compiles, loaded when the first of them is worth it.

Numba takes most of a second to load, which a small device pays at every start, and few of its loops are long. So Numba
is loaded by the first loop that needs it. Until then, loops over whole numbers and comparisons, which have the same
bits either way, are interpreted while they are short.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
INTERPRETED = ("conformesh.kernels.graph", "conformesh.kernels.segments")
SMALL = 4000  # entries of all arrays together
BUDGET = 0.1  # seconds of interpreting after which loading pays


class Loop:
    """A function that is compiled at its first call, or later where that is no loss."""

    spent = 0.0  # seconds of a processor that all loops together were interpreted
    _lock = threading.RLock()

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func, self._options = function, options
        self._compiled: Callable[..., Any] | None = None
        self._exact = function.__module__ in INTERPRETED

    def __call__(self, *args: Any) -> Any:
        """Run it, interpreted or compiled."""
        if self._compiled is not None:
            return self._compiled(*args)
        if not self._exact or Loop.spent > BUDGET or "numba" in sys.modules or _entries(args) > SMALL:
            return self.compiled()(*args)
        began = time.thread_time()
        try:
            return self.py_func(*args)
        finally:
            Loop.spent += time.thread_time() - began

    def compiled(self) -> Callable[..., Any]:
        """Return the compiled function; what it calls is compiled with it."""
        with self._lock:
            if self._compiled is None:
                compiled = _compiled(self.py_func, self._options)
                known = self.py_func.__globals__
                for name in self.py_func.__code__.co_names:
                    if isinstance(known.get(name), Loop):  # Numba calls only what is its own
                        known[name] = compiled if known[name] is self else known[name].compiled()
                self._compiled = compiled
            return self._compiled


def _compiled(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    from numba import njit as compile_with

    try:
        return compile_with(**options)(function)
    except RuntimeError:  # nowhere to keep what is compiled, as on a system that is read-only: compile at every start
        return compile_with(**{**options, "cache": False})(function)


def njit(**options: Any) -> Callable[[F], F]:
    """Mark a loop for Numba's compiler, with the options of ``numba.njit``."""

    def mark(function: F) -> F:
        return cast(F, Loop(function, options))  # called as before

    return mark


def threads() -> int:
    """Return how many threads a large exchange may use: NUMBA_NUM_THREADS, or the processors this process may use."""
    given = os.environ.get("NUMBA_NUM_THREADS", "")
    if given.isdigit() and int(given):
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _entries(args: tuple[Any, ...]) -> int:
    return sum(getattr(arg, "size", 1) for arg in args)
