"""How far the simulator goes: a million devices, bandwidth of a gossip round, growth. Every function returns one row.

python benchmarks/scale.py                  # everything, about five minutes on two quiet cores
python benchmarks/scale.py bandwidth growth # some of it
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from conformesh import Network, Samples, calibrate_batch
from conformesh.engines import Simulator
from conformesh.kernels.graph import components
from conformesh.kernels.threads import THREADS, in_blocks
from conformesh.protocols.consensus import gossip
from conformesh.protocols.site import Site
from conformesh.weights import Weights

Row = dict[str, Any]


def network_of(topology: str, devices: int) -> Network:
    """Return a topology by name, with "shuffled torus" and "geometric of degree 6" (its largest part) besides."""
    if topology == "shuffled torus":
        plain = Network.of("torus", devices)
        names = np.random.default_rng(1).permutation(devices)
        return Network.from_pairs(devices, names[plain._pairs()], topology, known=plain.known)
    if topology == "geometric of degree 6":
        return connected_geometric(devices, math.sqrt(6 / (math.pi * devices)))
    return Network.of(topology, devices, seed=0)


def connected_geometric(devices: int, radius: float) -> Network:
    """Return the largest connected part of a random geometric graph, rows by strips as `Network.geometric` has them."""
    from scipy.spatial import KDTree

    points = np.random.default_rng(0).random((devices, 2))
    points = points[np.lexsort((points[:, 0], np.floor(points[:, 1] / radius)))]
    pairs = KDTree(points).query_pairs(radius, output_type="ndarray").astype(np.int64)
    both = np.concatenate([pairs, pairs[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(both[:, 0], minlength=devices))])
    labels = components(indptr, both[:, 1].astype(np.int32))
    inside = labels == np.bincount(labels).argmax()
    rows = np.cumsum(inside) - 1
    return Network.from_pairs(int(inside.sum()), rows[pairs[inside[pairs[:, 0]]]], "geometric of degree 6")


def calibration(method: str, topology: str, devices: int, scores: int = 50, **options: Any) -> Row:
    """Time one calibration from flat scores to thresholds, in this process: seconds, processor seconds, peak memory.

    For E-DCP the row also says whether every device's threshold is the pooled order statistic.
    """
    rng = np.random.default_rng(0)
    small = Samples.from_flat(rng.normal(size=300), np.full(30, 10))
    calibrate_batch(small, Network.torus(6, 5), [0.1], method, **options)  # compile, or load what was compiled
    start = time.perf_counter()
    network = network_of(topology, devices)
    built = time.perf_counter() - start
    values = rng.normal(size=scores * network.devices)
    start, busy = time.perf_counter(), time.process_time()
    samples = Samples.from_flat(values, np.full(network.devices, scores))
    batch = calibrate_batch(samples, network, [0.1], method, **options)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    row: Row = {
        "what": f"{method}, {topology}, K = {network.devices:,}, {scores} scores each",
        "seconds": round(seconds, 2),
        "processor seconds": round(busy, 2),
        "seconds to build the network": round(built, 2),
        "peak GB": peak_gigabytes(),
        "rounds": batch.cost.rounds,
    }
    if method == "e-dcp":
        rank = batch.outcome.certificates[0][0].required_rank
        assert isinstance(rank, int)
        values.partition(rank - 1)
        row["equal to the pooled sort"] = bool((batch.outcome.thresholds == values[rank - 1]).all())
    return row


def peak_gigabytes() -> float:
    """Return the most memory this process has held; `getrusage` would count in that of the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        found = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return round(int(found.split()[1]) / 1e6, 3)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6), 3)


def apart(method: str, topology: str, devices: int, scores: int = 50, **options: Any) -> Row:
    """Run `calibration` in a process of its own, whose peak memory is its alone."""
    call = json.dumps([method, topology, devices, scores, options])
    out = subprocess.run([sys.executable, __file__, "--one", call], capture_output=True, text=True, check=True)
    row: Row = json.loads(out.stdout.splitlines()[-1])
    return row


def bandwidth(devices: int = 100_000, numbers: int = 1000, rounds: int = 5) -> Row:
    """Compare a gossip round with STREAM's triad in the same run, in turn, on all threads; the quickest of each counts.

    Bytes are counted as STREAM counts them, for a kernel that touches everything once: the sum reads the message and
    writes the answer, the update reads both and writes the message, five times the message in all (a triad: three times
    its array). The graph, and neighbours read again from memory, are not counted in.
    """
    network = network_of("geometric of degree 6", devices)
    K = network.devices
    site = Site.everywhere(network, np.ones((K, 1), dtype=np.int64))
    weights = unmeasured(network)
    x = np.random.default_rng(0).random((K, numbers))
    a, b, c = (np.ones(x.size) for _ in range(3))
    simulator, moments = Simulator(network), [time.perf_counter()]

    def timed() -> Any:
        protocol = gossip(x, site, weights, rounds + 1)
        message = next(protocol)
        for _ in range(rounds):
            moments.append(time.perf_counter())
            message = protocol.send(simulator._sum(message))
        moments.append(time.perf_counter())

    triads, each = [], []
    for _ in range(4):  # in turn, so that a busy minute hits both
        triads += [_seconds(lambda: triad(a, b, c)) for _ in range(5)]
        moments.clear()
        timed()
        each += [late - early for early, late in pairwise(moments)]
    ours, best = 5 * x.nbytes / min(each) / 1e9, 3 * a.nbytes / min(triads) / 1e9
    return {
        "what": f"gossip round, K = {K:,}, M = {numbers}, mean degree {network.degree.mean():.1f}",
        "GB/s": round(ours, 1),
        "triad GB/s": round(best, 1),
        "share": round(ours / best, 3),
        "threads": THREADS,
    }


def triad(a: Any, b: Any, c: Any) -> None:
    """STREAM's a = b + 3 c, on all threads."""
    in_blocks(lambda i, j: _triad(a[i:j], b[i:j], c[i:j]), len(a), len(a))


@njit(cache=True, nogil=True)
def _triad(a: Any, b: Any, c: Any) -> None:
    for i in range(len(a)):
        a[i] = b[i] + 3.0 * c[i]


def unmeasured(network: Network) -> Weights:
    """Maximum-degree weights whose eigenvalues nobody needs here."""
    a = 1.0 / (int(network.degree.max()) + 1)
    return Weights("max-degree", a, a * network.degree.astype(float), 1.0, 0.0, "estimated")


def growth(decades: tuple[int, ...] = (2, 3, 4, 5, 6), repeats: int = 3) -> Row:
    """Fit the exponent of processor time in K, in n and in edges, from the first decade to the last.

    In K: ten gossip rounds of sixteen numbers on a torus. In edges: the same over random regular graphs of 1000
    devices and growing degree (so that memory stays the same). In n: counting 16 thresholds by E-DCP's kernel, 100
    devices with ever more scores, sorting included.
    """
    rng = np.random.default_rng(0)

    def fit(sizes: list[int], times: list[float]) -> float:
        return round(float(np.polyfit(np.log(sizes), np.log(times), 1)[0]), 3)

    def quickest(job: Callable[[], Any], at_least: float = 0.02) -> float:
        job()
        once = max(_busy(job), 1e-6)
        times = max(1, int(at_least / once))
        return min(_busy(lambda: [job() for _ in range(times)]) / times for _ in range(repeats))

    def rounds(network: Network) -> Callable[[], Any]:
        site = Site.everywhere(network, np.ones((network.devices, 1), dtype=np.int64))
        x, weights = rng.random((network.devices, 16)), unmeasured(network)
        return lambda: Simulator(network).run(gossip(x, site, weights, 10))

    sizes = [10**d for d in decades]
    in_k = [quickest(rounds(Network.of("torus", k))) for k in sizes]
    graphs = [Network.of("random-regular", 1000, degree=d) for d in (6, 20, 60, 200, 600)]
    in_edges = [quickest(rounds(graph)) for graph in graphs]
    per_device = [10 ** (d - 1) for d in decades]
    in_n = []
    pivots, first = np.linspace(0.1, 0.9, 16)[None, :], np.zeros(1, dtype=np.int64)
    for n in per_device:
        values = rng.random(100 * n)
        in_n.append(quickest(lambda v=values, n=n: Samples.from_flat(v, np.full(100, n)).counts_of(first, pivots)))
    return {
        "what": "growth of time",
        "exponent in K": fit(sizes, in_k),
        "exponent in edges": fit([graph.edges for graph in graphs], in_edges),
        "exponent in n": fit(per_device, in_n),
        "seconds in K": dict(zip(map(str, sizes), in_k, strict=True)),
    }


def _seconds(job: Callable[[], Any]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def _busy(job: Callable[[], Any]) -> float:
    start = time.process_time()
    job()
    return time.process_time() - start


MEASUREMENTS: dict[str, Callable[[], Row]] = {
    "torus": lambda: apart("e-dcp", "torus", 1_000_000),
    "geometric": lambda: apart("e-dcp", "geometric", 1_000_000),
    "shuffled": lambda: apart("e-dcp", "shuffled torus", 1_000_000),
    "h-dcp-torus": lambda: apart("h-dcp", "torus", 100_000, rounds=50, bins=100),
    "h-dcp": lambda: apart("h-dcp", "geometric", 100_000, rounds=50, bins=100),
    "q-dcp-torus": lambda: apart("q-dcp", "torus", 100_000, rounds=200, averaging=200),
    "q-dcp": lambda: apart("q-dcp", "geometric", 100_000, rounds=200, averaging=200),
    "q-dcp-regular": lambda: apart("q-dcp", "random-regular", 100_000, rounds=200),
    "bandwidth": bandwidth,
    "growth": growth,
}


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        method, topology, devices, scores, options = json.loads(sys.argv[2])
        print(json.dumps(calibration(method, topology, devices, scores, **options)))
        return
    for name in sys.argv[1:] or MEASUREMENTS:
        print(json.dumps(MEASUREMENTS[name]()), flush=True)


if __name__ == "__main__":
    main()
