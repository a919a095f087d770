"""Loops cut into blocks of rows for a pool of threads; the compiled loops release the interpreter lock.

Numba's own ``parallel=True`` is not used: its OpenMP layer kills a forked child and its workqueue layer aborts when two
Python threads call it at once, and the engines do both. Every row is computed on its own, so the bits do not depend on
the number of threads. ``NUMBA_NUM_THREADS=1`` keeps everything on the calling thread; joblib's workers set it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_GIVEN_THREADS = os.environ.get("NUMBA_NUM_THREADS", "")
# Cores that this process may use: in a container or a batch job fewer than the machine has.
_USABLE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
# Threads that a large exchange may use: as many as Numba's variable says, else one for each core.
THREADS = int(_GIVEN_THREADS) if _GIVEN_THREADS.isdigit() and int(_GIVEN_THREADS) else _USABLE
PARALLEL_ABOVE = 400_000  # additions; they take about 0.1 ms, as long as handing work to a thread


def limit_threads(most: int) -> None:
    """Use at most so many threads from now on: several processes on one machine share its cores."""
    global THREADS  # noqa: PLW0603 - one setting for the process, like the variable it starts from
    THREADS = max(1, min(THREADS, most))


@cache
def _pool() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(THREADS - 1, thread_name_prefix="conformesh")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a fork takes the pool object along but not its threads


def fits_one_thread(work: int) -> bool:
    """Say whether so much work (additions) is better done on the calling thread."""
    return THREADS == 1 or work <= PARALLEL_ABOVE


def run_in_blocks(job: Callable[[int, int], Any], rows: int, work: int, ends: NDArray[np.int64] | None = None) -> None:
    """Call ``job(first, last)`` for blocks that together are all rows, at the same time when there is enough to do.

    Parameters
    ----------
    job
        Works on the rows first, ..., last - 1 and on nothing that another block writes; must not call `run_in_blocks`.
    rows
        How many rows there are.
    work
        About how many additions all of them take.
    ends
        Where each row's share of the work begins and ends, shape (rows + 1,), ascending; None for equal shares.
    """
    if fits_one_thread(work):
        job(0, rows)
        return
    if ends is None:
        cuts = np.linspace(0, rows, THREADS + 1).astype(np.int64)
    else:
        cuts = np.searchsorted(ends, np.linspace(ends[0], ends[-1], THREADS + 1).astype(ends.dtype))
        cuts[0], cuts[-1] = 0, rows  # rows without work at either end
    first, *others = [(a, b) for a, b in pairwise(cuts.tolist()) if a < b] or [(0, rows)]
    waiting = [_pool().submit(job, a, b) for a, b in others]
    try:
        job(*first)
    finally:
        for block in waiting:
            block.result()
