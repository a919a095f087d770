"""The job that the ranks are in: how they reach each other, and how it ends when one of them fails."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

ERROR_SPREAD_SECONDS = 2.0  # seconds in which an error that all ranks share has reached them all


def needs_mpi() -> Any:
    """Return the module ``mpi4py.MPI``, or say how to get it."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as problem:  # not installed, or without an MPI library
        raise ValueError(f"engine 'mpi' needs mpi4py and MPI: pip install 'conformesh[mpi]' ({problem})") from None
    return MPI


class _Channels(NamedTuple):
    """Communicators of our own with the ranks of a given one, and how many of these share this machine.

    Failures have one to themselves: the others' next message may be anything.
    """

    data: Any
    failures: Any
    on_host: int


_KEYS: dict[str, int] = {}


def own_channels(mpi: Any, comm: Any) -> _Channels:
    """Return our communicators for these ranks, made when first asked for; all ranks must ask."""
    if "channels" not in _KEYS:
        _KEYS["channels"] = mpi.Comm.Create_keyval()
    found: _Channels | None = comm.Get_attr(_KEYS["channels"])
    if found is None:
        host = comm.Split_type(mpi.COMM_TYPE_SHARED)
        found = _Channels(comm.Dup(), comm.Dup(), host.size)
        host.Free()
        comm.Set_attr(_KEYS["channels"], found)
    return found


@contextmanager
def world() -> Iterator[Any]:
    """Have the communicator of all ranks that mpiexec started; an error of one of them ends them all."""
    mpi = needs_mpi()
    with stops_the_job(own_channels(mpi, mpi.COMM_WORLD)):
        yield mpi.COMM_WORLD


@contextmanager
def stops_the_job(channels: _Channels) -> Iterator[None]:
    """Let an error that all ranks meet pass; print one that others do not meet, and stop the job with exit code 1."""
    try:
        yield
    except Exception as error:
        if not getattr(error, "on_all_ranks", False):
            if not _all_failed(channels.failures):
                _say_once(error, channels.failures)
                channels.failures.Abort(1)
            error.on_all_ranks = True  # type: ignore[attr-defined]
        raise


def _all_failed(failures: Any) -> bool:
    """Wait a little for the other ranks to fail too."""
    meeting, deadline = failures.Ibarrier(), time.monotonic() + ERROR_SPREAD_SECONDS
    while not meeting.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _say_once(error: Exception, comm: Any) -> None:
    stream = sys.__stderr__ or sys.stderr  # a rank that is to be quiet says this nevertheless
    if not isinstance(error, ValueError | TypeError | OSError):
        traceback.print_exception(error, file=stream)
    words = " ".join(str(error).split()) or type(error).__name__
    print(f"error: rank {comm.rank} of {comm.size}: {words}", file=stream, flush=True)
