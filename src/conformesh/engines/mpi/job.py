"""The job that the ranks are in: how they reach each other, and how it ends when one of them fails."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

# Seconds in which an error that all ranks share (an option that does not exist) has reached them all. A rank that waits
# longer takes its error for one that the others do not have, and stops the job.
ERROR_SPREAD_SECONDS = 2.0


def load_mpi() -> Any:
    """Return the module ``mpi4py.MPI``; the error says how to install it."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as problem:  # not installed, or without an MPI library
        raise ValueError(f"engine 'mpi' needs mpi4py and MPI: pip install 'conformesh[mpi]' ({problem})") from None
    return MPI


class _Channels(NamedTuple):
    """Private communicators with the ranks of a given one, and how many of these share this machine.

    Private, so that messages of the calling program cannot be taken for ours. Failures have one of their own: a rank
    that fails cannot know which message the others send next on the first one.
    """

    data: Any
    failures: Any
    on_host: int


_KEYS: dict[str, int] = {}


def channels_for(mpi: Any, comm: Any) -> _Channels:
    """Return the private communicators for these ranks, made at the first call; all ranks must call it."""
    # Kept as an attribute of the communicator: MPI libraries have a limited number, and programs make many engines.
    if "channels" not in _KEYS:
        _KEYS["channels"] = mpi.Comm.Create_keyval()
    channels: _Channels | None = comm.Get_attr(_KEYS["channels"])
    if channels is None:
        host = comm.Split_type(mpi.COMM_TYPE_SHARED)
        channels = _Channels(comm.Dup(), comm.Dup(), host.size)
        host.Free()
        comm.Set_attr(_KEYS["channels"], channels)
    return channels


@contextmanager
def mpi_world() -> Iterator[Any]:
    """Enter with the communicator of all ranks that mpiexec started; an error of one of them ends them all."""
    mpi = load_mpi()
    with job_guard(channels_for(mpi, mpi.COMM_WORLD)):
        yield mpi.COMM_WORLD


@contextmanager
def job_guard(channels: _Channels) -> Iterator[None]:
    """Let an error that all ranks meet pass; print one that others do not meet, and stop the job with exit code 1."""
    try:
        yield
    except Exception as error:
        if not getattr(error, "on_all_ranks", False):  # marked by an inner guard, which has met the other ranks already
            if not _all_failed(channels.failures):
                _print_error(error, channels.failures)
                channels.failures.Abort(1)
            error.on_all_ranks = True  # type: ignore[attr-defined]
        raise


def _all_failed(failures: Any) -> bool:
    """Return whether all other ranks fail, too, within a short time.

    A barrier that does not block: the ranks that go on never enter it, and waiting for them would take for ever.
    """
    meeting, deadline = failures.Ibarrier(), time.monotonic() + ERROR_SPREAD_SECONDS
    while not meeting.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _print_error(error: Exception, comm: Any) -> None:
    stream = sys.__stderr__ or sys.stderr  # the original one: a rank that is to be quiet prints this nevertheless
    if not isinstance(error, ValueError | TypeError | OSError):
        traceback.print_exception(error, file=stream)
    words = " ".join(str(error).split()) or type(error).__name__
    print(f"error: rank {comm.rank} of {comm.size}: {words}", file=stream, flush=True)
