"""Gossip rounds on MPI ranks, one thread each, beside the simulator with as many threads, in turn within one job.

A run's time is the mean of its rounds after the first, on the slowest rank; the quickest run of several counts, on both
sides. `mpiexec -n 2 python benchmarks/ranks.py '[100000, 32, 10, 12]'` is one such job: devices, numbers, rounds, runs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import Row, Series, in_own_process
from networks import gossiping, network_of

from conformesh.engines import Mpi, Simulator
from conformesh.kernels import threads
from conformesh.kernels.neighbours import neighbour_sum

LEAST = 0.9  # of the simulator's speed, with as many threads as ranks
JUDGED = 2  # ranks
NUMBERS = (32, 100)


def job(devices: int, numbers: int, rounds: int, runs: int) -> dict[str, float]:
    """Return seconds of a round on the ranks of this job, on the simulator, and of a rank's kernel without exchange."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    network = network_of("geometric", devices)
    engine = Mpi(network)
    on_ranks = gossiping(engine, numbers)
    on_threads = gossiping(Simulator.in_memory_order(network), numbers) if comm.rank == 0 else None
    found: dict[str, list[float]] = {"ranks": [], "threads": [], "kernel": []}
    for _ in range(runs):
        if on_threads is not None:
            threads.THREADS = comm.size
            found["threads"].append(statistics.mean(on_threads(rounds + 1)[1:]))
        threads.THREADS = 1
        _meet(comm)
        mine = statistics.mean(on_ranks(rounds + 1)[1:])
        found["ranks"].append(comm.allreduce(mine, MPI.MAX))
        found["kernel"].append(_kernel(engine, numbers))
    return {name: min(times) for name, times in found.items() if times}


def _meet(comm: Any) -> None:
    """Wait for the other ranks without keeping a core busy."""
    meeting = comm.Ibarrier()
    while not meeting.Test():
        time.sleep(0.001)


def _kernel(engine: Any, numbers: int) -> float:
    """Return the seconds of the sum over the neighbours that are on this rank, too."""
    x = np.ones((len(engine.rows), numbers))
    out, inner = np.zeros_like(x), engine.halo.inner
    start = time.perf_counter()
    neighbour_sum(inner.indptr, inner.indices, x, out)
    return time.perf_counter() - start


def absent() -> str | None:
    """Return why ranks cannot be measured here, or None."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install 'conformesh[mpi]'"
    if _mpiexec() is None:
        return "there is no mpiexec: pip install 'conformesh[mpi]'"
    return None


def _mpiexec() -> str | None:
    return shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def _row(count: int, devices: int, numbers: int, found: dict[str, float]) -> Row:
    ratio, judged = found["threads"] / found["ranks"], count == JUDGED
    crowded = "" if count <= (os.cpu_count() or 1) else "; more ranks than cores"
    return Row(
        f"gossip round, geometric, K={devices:,}, M={numbers}, {count} MPI rank{'s' * (count > 1)}",
        ours=found["ranks"],
        other=found["threads"],
        against=f"simulator, {count} thread{'s' * (count > 1)}",
        ratio=ratio,
        target=f"at least {LEAST} times as fast" if judged else "",
        met=ratio >= LEAST if judged else None,
        note=f"a rank's sums alone {found['kernel'] * 1e3:.3g} ms{crowded}",
    )


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Gossip rounds on 1, 2 and 4 MPI ranks, beside the simulator with as many threads."""
    why = absent()
    if why is not None:
        return [Row("gossip round on MPI ranks", note=f"not measured: {why}")], []
    devices, rounds, runs = (400, 2, 1) if quick else (100_000, 10, 12)
    counts = (1, 2) if quick else (1, 2, 4)
    rows, series = [], []
    for numbers in NUMBERS[:1] if quick else NUMBERS:
        found = []
        for count in counts:
            mpiexec = (_mpiexec() or "", "-n", str(count))
            try:
                found.append(in_own_process(__file__, [devices, numbers, rounds, runs], mpiexec))
            except RuntimeError as error:  # an MPI that does not start here
                return [*rows, Row(f"gossip round on {count} MPI ranks", note=f"not measured: {str(error)[:200]}")], []
            rows.append(_row(count, devices, numbers, found[-1]))
        what = f"gossip round, geometric, K={devices:,}, M={numbers}"
        series.append(Series.fitted(what, "MPI ranks", counts, [one["ranks"] for one in found]))
    return rows, series


if __name__ == "__main__":
    answer = job(*json.loads(sys.argv[1]))
    if "threads" in answer:  # the first rank
        print(json.dumps(answer))
