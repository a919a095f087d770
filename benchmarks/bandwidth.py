"""A gossip round against the memory bandwidth of this machine, with the same threads.

The bandwidth is STREAM's triad, a[i] = b[i] + s c[i] over arrays far larger than the caches, 24 bytes an element, in
compiled loops on the thread pool that the neighbour kernels use.

A round is charged the least it must move: every number of the message array read once, and every number of the state
read and written once, 24 bytes for each of K x M numbers. Nothing is charged for a message row that several neighbours
read and a cache no longer holds, for the sums in between, or for the graph. So the share is a lower bound of how busy
the memory was, and all of it cannot be had on a graph without locality. (In 64 bits the message is the state. Who
counts that once has 16 bytes; that share is in the notes.)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from growth import unmeasured
from harness import REPEATS, Row, Series
from numba import njit

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.kernels import neighbours
from conformesh.protocols.consensus import gossip
from conformesh.protocols.site import Site

LEAST = 0.6  # of the triad's bandwidth
BYTES = 24  # per number and round: message read, state read, state written
ROUNDS = 4  # of a run; the first is left out, it meets fresh memory


@njit(cache=True, nogil=True)
def _triad(a: Any, b: Any, c: Any, s: float) -> None:
    for i in range(len(a)):
        a[i] = b[i] + s * c[i]


def triad_of(size: int) -> Any:
    """Return a job that runs the triad once over `size` elements, on all threads."""
    a, b, c = np.zeros(size), np.ones(size), np.full(size, 2.0)
    cuts = [*pairwise(np.linspace(0, size, neighbours.THREADS + 1).astype(int))]

    def run() -> None:
        jobs = [neighbours._pool().submit(_triad, a[i:j], b[i:j], c[i:j], 3.0) for i, j in cuts[1:]]
        i, j = cuts[0]
        _triad(a[i:j], b[i:j], c[i:j], 3.0)
        for job in jobs:
            job.result()

    return run


def rounds_of(network: Network, numbers: int) -> Callable[[], float]:
    """Return a job that gossips and gives the median seconds of a round, from the end of one to the end of the next."""
    site = Site.everywhere(network, np.ones((network.devices, 1), dtype=np.int64))
    x = np.random.default_rng(0).random((network.devices, numbers))
    weights = unmeasured(network)

    def run() -> float:
        ends: list[float] = []
        Simulator(network, lambda *_: ends.append(time.perf_counter())).run(gossip(x, site, weights, ROUNDS))
        return statistics.median(b - a for a, b in pairwise(ends))

    return run


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Gossip rounds at K = 100,000 and M = 1000 as a share of the triad's bandwidth."""
    K, M, size = (400, 10, 10_000) if quick else (100_000, 1000, 40_000_000)
    side = {400: 20, 100_000: 250}[K]
    networks = {
        f"torus {side} x {K // side}": (lambda: Network.torus(side, K // side), True),
        "random-regular, degree 6": (lambda: Network.of("random-regular", K, seed=0, degree=6), False),
    }
    rows = []
    for name, (build, judged) in networks.items():
        triad, gossiped = triad_of(size), rounds_of(build(), M)
        triad()
        found = []
        for _ in range(2 if quick else REPEATS):
            start = time.perf_counter()
            triad()
            found.append((24 * size / (time.perf_counter() - start) / 1e9, gossiped()))
        speeds, seconds = zip(*found, strict=True)
        moved = [BYTES * K * M / t / 1e9 for t in seconds]
        share = statistics.median(m / s for m, s in zip(moved, speeds, strict=True))
        rows.append(
            Row(
                f"gossip round, K={K:,}, M={M:,}, {name}",
                ours=statistics.median(seconds),
                against=f"triad, {neighbours.THREADS} threads: {statistics.median(speeds):.1f} GB/s",
                ratio=share,
                target=f"at least {LEAST:.0%} of the triad" if judged else "",
                met=share >= LEAST if judged else None,
                note=f"{statistics.median(moved):.1f} GB/s at 24 bytes a number; share at 16 bytes {share * 2 / 3:.2f}",
            )
        )
    return rows, []
