"""A gossip round against the memory bandwidth of this machine, with the same threads.

The bandwidth is STREAM's triad, a[i] = b[i] + 3 c[i] over arrays as large as the message, 24 bytes an element. As
STREAM does, we take the quickest of several, of the triad and of the round, which take turns.

Bytes of a round are counted as STREAM counts them, for a kernel that touches everything once: the sum reads the message
and writes the answer, the update reads both and writes the message. That is five times the message, 40 bytes a number
(the triad: three times its array). Not counted are the graph, and neighbours that are read again from memory.
Neither count has the lines that a processor reads before it writes them, a third more for the triad and a fifth more
for the round: a round that wastes nothing shows a share of 1.11.

The strict count leaves the answer out, as if a round were one pass without memory in between: message read, state read
and written, 24 bytes a number. No engine that lets a protocol look at the answer can reach all of it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from harness import Row, Series
from networks import SPARSE, gossiping, network_of
from numba import njit

from conformesh.engines import Simulator
from conformesh.kernels import threads

LEAST = 0.6  # of the triad's bandwidth
TRIAD, ROUND, STRICT = 24, 40, 24  # bytes a number
TOPOLOGIES = (SPARSE, "torus", "random-regular")  # the first is judged


@njit(cache=True, nogil=True)
def _triad(a: Any, b: Any, c: Any) -> None:
    for i in range(len(a)):
        a[i] = b[i] + 3.0 * c[i]


def triad(a: Any, b: Any, c: Any) -> float:
    """Run STREAM's a = b + 3 c on all threads, and return the seconds."""
    start = time.perf_counter()
    threads.run_in_blocks(lambda i, j: _triad(a[i:j], b[i:j], c[i:j]), len(a), len(a))
    return time.perf_counter() - start


def measured(topology: str, devices: int, numbers: int, repeats: int) -> list[Row]:
    """Return the row of a topology, and the same by the strict count if it is the judged one."""
    network = network_of(topology, devices)
    K, size = network.devices, network.devices * numbers
    job = gossiping(Simulator.in_memory_order(network), numbers)
    a, b, c = (np.ones(size) for _ in range(3))
    triads, rounds = [], []
    for _ in range(repeats):  # in turn, so that a busy minute hits both
        triads += [triad(a, b, c) for _ in range(5)]
        rounds += job(6)[1:]  # the first meets fresh memory
    speed, seconds = TRIAD * size / min(triads) / 1e9, min(rounds)
    what = f"gossip round, K={K:,}, M={numbers:,}, {topology}"

    def row(name: str, count: int, judged: bool) -> Row:
        moved = count * size / seconds / 1e9
        return Row(
            name,
            ours=seconds,
            against=f"triad, {threads.THREADS} threads: {speed:.1f} GB/s",
            ratio=moved / speed,
            target=f"at least {LEAST:.0%} of the triad" if judged else "",
            met=moved / speed >= LEAST if judged else None,
            note=f"{moved:.1f} GB/s at {count} bytes a number, mean degree {network.degree.mean():.1f}",
        )

    if topology != TOPOLOGIES[0]:
        return [row(what, ROUND, False)]
    return [row(what, ROUND, True), row(f"{what}, strict count", STRICT, False)]


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Gossip rounds at K = 100,000 and M = 1000 as a share of the triad's bandwidth."""
    sizes = (400, 10, 1) if quick else (100_000, 1000, 4)
    return [row for topology in TOPOLOGIES for row in measured(topology, *sizes)], []
