"""A round over MPI beside the simulator's: ``mpiexec -n 2 python benchmarks/mpi_rounds.py [TOPOLOGY [DEVICES]]``.

Prints, for M numbers a device, the time of a round on the ranks, on one and on as many threads of the simulator, and of
the ranks' kernels alone without any exchange. The jobs take turns and each line shows a quantile over all rounds: on a
machine that others use, compare the low quantiles.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from mpi4py import MPI

from conformesh import Network
from conformesh.engines import Mpi, Simulator
from conformesh.kernels import neighbours
from conformesh.protocols.messages import Sum

COMM = MPI.COMM_WORLD
ROUNDS = {1: 60, 32: 15, 100: 6}
REPEATS = 12


def rounds(x, count):
    for _ in range(count):
        answer = yield Sum(x)
    return answer


def timed(engine, x, count):
    at = [time.perf_counter()]
    engine.observer = lambda *_: at.append(time.perf_counter())
    engine.run(rounds(x, count))
    return np.diff(at).tolist()


def meet():
    """Wait for the other ranks without keeping a core busy."""
    meeting = COMM.Ibarrier()
    while not meeting.Test():
        time.sleep(0.001)


def compare(network, engine, columns):
    x = np.random.default_rng(0).random((network.devices, columns))
    mine, halo, count = np.ascontiguousarray(x[engine.here]), engine.halo, ROUNDS[columns]
    found = {"1 thread": [], f"{COMM.size} threads": [], f"{COMM.size} ranks": [], "kernel alone": []}
    one, many, ranks, alone = found.values()
    for _ in range(REPEATS):
        for threads, times in ((1, one), (COMM.size, many)):
            neighbours.THREADS = threads
            if COMM.rank == 0:
                times.extend(timed(Simulator(network), x, count))
        neighbours.THREADS = 1
        meet()
        ranks += timed(engine, mine, count)
        meet()
        for _ in range(count):
            began = time.perf_counter()
            neighbours.neighbour_sum(halo.inner.indptr, halo.inner.indices, mine, np.empty_like(mine))
            alone.append(time.perf_counter() - began)
        meet()
    if COMM.rank == 0:
        for share in (0.0, 0.1, 0.5):
            shown = ", ".join(f"{what} {np.quantile(times, share) * 1e3:.2f} ms" for what, times in found.items())
            print(f"M={columns}, quantile {share}: {shown}", flush=True)


if __name__ == "__main__":
    topology, devices = (*sys.argv[1:], *("geometric", "100000")[len(sys.argv) - 1 :])
    graph = Network.of(topology, int(devices), seed=0)
    host = Mpi(graph)
    if COMM.rank == 0:
        here, ghosts = len(host.here), len(host.halo.ghosts)
        print(f"{graph}; rank 0 hosts {here:,} devices and hears {ghosts:,} ghosts", flush=True)
    for width in ROUNDS:
        compare(graph, host, width)
