"""Gossip rounds on MPI ranks: the same devices in blocks, one block a rank, threads kept at one each."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness import Row, Series

JOB = """
import statistics, sys, time, numpy as np
from mpi4py import MPI
from conformesh import Network
from conformesh.engines.mpi import Mpi
from conformesh.protocols.consensus import gossip
from conformesh.protocols.site import Site
from conformesh.weights import Weights
side, numbers, rounds, repeats = map(int, sys.argv[1:])
network = Network.torus(side, side)
a = 1.0 / (int(network.degree.max()) + 1)
weights = Weights("max-degree", a, a * network.degree.astype(float), 1.0, 0.0, "estimated")
engine = Mpi(network)
sizes = np.ones((network.devices, 1), dtype=np.int64)
site = Site(network, engine.here, sizes)
x = np.random.default_rng(0).random((network.devices, numbers))[engine.here]
times = []
for _ in range(repeats + 1):
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    engine.run(gossip(x, site, weights, rounds))
    MPI.COMM_WORLD.Barrier()
    times.append(time.perf_counter() - start)
if MPI.COMM_WORLD.Get_rank() == 0:
    print(statistics.median(times[1:]) / rounds)
"""


def absent() -> str | None:
    """Return why ranks cannot be measured here, or None."""
    if importlib.util.find_spec("conformesh.engines.mpi") is None:
        return "this version has no engine conformesh.engines.mpi"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install mpi4py mpich"
    if _mpiexec() is None:
        return "there is no mpiexec: pip install mpich"
    return None


def _mpiexec() -> str | None:
    return shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Gossip rounds of a torus of a million devices on 1, 2 and 4 MPI ranks."""
    why = absent()
    if why is not None:
        return [Row("gossip round on MPI ranks", note=f"not measured: {why}")], []
    side, numbers, rounds, repeats = (20, 2, 2, 1) if quick else (1000, 16, 10, 5)
    counts, seconds = (1, 2) if quick else (1, 2, 4), []
    for count in counts:
        command = [_mpiexec() or "", "-n", str(count), sys.executable, "-c", JOB]
        command += map(str, (side, numbers, rounds, repeats))
        environment = {**os.environ, "NUMBA_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["mpiexec failed"]
            return [Row("gossip round on MPI ranks", note=f"not measured: {lines[-1][:200]}")], []
        seconds.append(float(done.stdout.split()[-1]))
    rows = [
        Row(f"gossip round, torus of {side * side:,}, {count} MPI ranks", t, seconds[0], "1 rank", seconds[0] / t)
        for count, t in zip(counts[1:], seconds[1:], strict=True)
    ]
    return rows, [Series.fitted(f"gossip round, torus of {side * side:,}", "MPI ranks", counts, seconds)]
