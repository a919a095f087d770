"""Public functions in a job of several processes (MPI): an error that one of them meets alone ends them all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from conformesh.engines import ENGINES

P = ParamSpec("P")
R = TypeVar("R")


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Let an error that only one process of a job meets end all of them: the others would wait for it forever.

    For public functions with the keyword `engine`. Each process reads data of its own, so reading may fail on one.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        engine: Any = kwargs.get("engine", "simulator")
        if isinstance(engine, str):
            job = ENGINES[engine].job if engine in ENGINES else None  # an unknown name is refused later, in words
            with nullcontext() if job is None else job():
                return function(*args, **kwargs)
        with engine.together() if hasattr(engine, "together") else nullcontext():
            return function(*args, **kwargs)

    return run
