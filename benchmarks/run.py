"""Run all benchmarks: ratios measured in one run, median of five after a warm-up, written into README.md.

make bench                 # everything, about three minutes on two cores
python benchmarks/run.py scores growth     # some of them
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.reference import consensus_loop, q_dcp_by_fsolve, weight_matrix

from conformesh import Network, Samples, __version__, calibrate, calibrate_batch, scores
from conformesh.engines import Simulator
from conformesh.protocols.consensus import gossip
from conformesh.protocols.site import Site
from conformesh.weights import WEIGHTS

HERE = Path(__file__).parent
Row = dict[str, str]


def medians(*jobs: Callable[[], object], repeats: int = 5) -> list[float]:
    """Time several jobs in turn, so that a noisy minute hits all of them alike."""
    for job in jobs:
        job()
    times: list[list[float]] = [[] for _ in jobs]
    for _ in range(repeats):
        for i, job in enumerate(jobs):
            start = time.perf_counter()
            job()
            times[i].append(time.perf_counter() - start)
    return [statistics.median(t) for t in times]


def often(job: Callable[[], object], times: int = 5) -> Callable[[], None]:
    """Run a short job several times in a row: a long one in between would leave it with cold caches."""

    def several() -> None:
        for _ in range(times):
            job()

    return several


def seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def row(what: str, ours: float, other: float, against: str, target: str, met: bool, ratio: float | None = None) -> Row:
    ratio = other / ours if ratio is None else ratio
    return {
        "what": what,
        "ours": seconds(ours),
        "compared with": f"{against}: {seconds(other)}",
        "ratio": f"{ratio:.3g}",
        "target": target,
        "met": "yes" if met else "no",
    }


def bench_scores() -> list[Row]:
    """Scores on 100,000 rows of 100 classes, against what one writes in NumPy."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(100, 0.1), size=100_000)
    y = rng.integers(100, size=100_000)
    rows = np.arange(len(y))
    lac, aps = scores.LAC(), scores.APS()

    def aps_by_sorting() -> object:
        order = np.argsort(-p, axis=1)
        ranks = np.argsort(order, axis=1)[rows, y]
        return np.take_along_axis(p, order, axis=1).cumsum(axis=1)[rows, ranks]

    ours, numpy_ = medians(lambda: lac(p, y), lambda: 1 - p[rows, y])
    sets, numpy_sets = medians(lambda: lac.sets(p, 0.9), lambda: (1 - p) <= 0.9)
    adaptive, sorted_ = medians(lambda: aps(p, y), aps_by_sorting, repeats=3)
    return [
        row("LAC calibrate, 1e5 x 100", ours, numpy_, "NumPy", "at most 2x NumPy's time", ours <= 2 * numpy_),
        row("LAC sets, 1e5 x 100", sets, numpy_sets, "NumPy", "at most 2x NumPy's time", sets <= 2 * numpy_sets),
        row("APS calibrate, 1e5 x 100", adaptive, sorted_, "NumPy, full sort", "no full sort", adaptive < sorted_),
    ]


def bench_methods() -> list[Row]:
    """The paper's two methods against slow twins that follow the formulas device by device."""
    rng = np.random.default_rng(1)
    net = Network.torus(5, 4)
    mine = [3 * rng.normal(size=50) for _ in range(20)]
    q_options = {"s0": 3.8, "start": "zeros", "averaging": 0}
    (q,) = medians(lambda: calibrate(mine, net, 0.1, "q-dcp", **q_options))
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fsolve complains about staircases now and then, and arrives all the same
        slow = q_dcp_by_fsolve(mine, net, 0.918, 2000.0, 2000.0, 3.8, 1500)
    twin = time.perf_counter() - start
    ours = calibrate(mine, net, 0.1, "q-dcp", **q_options)
    if abs(slow.mean() - ours.estimate) > 1e-6:
        raise AssertionError(f"the twin ends at {slow.mean()}, we at {ours.estimate}")

    weights = WEIGHTS["best-constant"](net)
    matrix = weight_matrix(net, weights)
    x = np.array([np.histogram(m, 1000, (-12, 12))[0] * 20 / 1000 for m in mine])
    options = {"rounds": 150, "bins": 1000, "range": (-12.0, 12.0)}
    h, loop = medians(
        often(lambda: calibrate(mine, net, 0.1, "h-dcp", **options)), lambda: consensus_loop(x, matrix, 1.0, 150)
    )
    h /= 5
    return [
        row("Q-DCP, K=20, n=1000, T=1500", q, twin, "SciPy fsolve per device", "at least 100", twin / q >= 100),
        row("H-DCP, K=20, M=1000, T=150", h, loop, "Python loop per device", "at least 30", loop / h >= 30),
    ]


def bench_growth() -> list[Row]:
    """What happens when a device holds a thousand times more scores, and when there are more edges."""
    rng = np.random.default_rng(2)
    net = Network.torus(5, 4)
    few, many = ([3 * rng.normal(size=n) for _ in range(20)] for n in (50, 50_000))
    held = [Samples.of(few), Samples.of(many)]
    small, large = medians(*(lambda s=s: calibrate_batch(s, net, [0.1], "q-dcp") for s in held))
    rows = [row("Q-DCP rounds, n_k = 50,000", large, small, "n_k = 50", "at most 2", large <= 2 * small, large / small)]
    small, large = medians(*(lambda s=s: calibrate(s, net, 0.1, "q-dcp") for s in (few, many)))
    what = "Q-DCP with sorting the scores, n_k = 50,000"
    rows.append(row(what, large, small, "n_k = 50", "(reported)", True, large / small))

    edges, times = [], []
    for devices in (1_000, 10_000, 100_000):
        network = Network.of("geometric", devices, seed=0)
        site = Site.everywhere(network, np.ones((devices, 1), dtype=np.int64))
        weights = WEIGHTS["max-degree"](network) if devices <= 1_000 else _unmeasured(network)
        x = rng.random((devices, 16))
        rounds = max(5, 2_000_000 // network.edges)
        (t,) = medians(
            lambda n=network, s=site, w=weights, x=x, r=rounds: Simulator(n).run(gossip(x, s, w, r)), repeats=3
        )
        edges.append(network.edges)
        times.append(t / rounds)
    exponent = float(np.polyfit(np.log(edges), np.log(times), 1)[0])
    rows.append(
        row(
            f"gossip round, {edges[-1]:,} edges x 16 numbers",
            times[-1],
            times[0],
            f"{edges[0]:,} edges",
            "exponent in edges at most 1.1",
            exponent <= 1.1,
            exponent,
        )
    )
    return rows


def _unmeasured(network: Network) -> object:
    """Maximum-degree weights whose eigenvalues nobody needs here."""
    from conformesh.weights import Weights

    a = 1.0 / (int(network.degree.max()) + 1)
    return Weights("max-degree", a, a * network.degree.astype(float), 1.0, 0.0, "estimated")


LARGE = """
import resource, time, numpy as np
from conformesh import Network, Samples, calibrate_batch
K = 100_000
network = Network.of("geometric", K, seed=0)
scores = np.random.default_rng(0).normal(size=10 * K)
start = time.perf_counter()
batch = calibrate_batch(Samples.from_flat(scores, np.full(K, 10)), network, [0.1], "e-dcp")
seconds = time.perf_counter() - start
rank = batch.outcome.certificates[0][0].required_rank
assert batch.outcome.thresholds[0, 0, 0] == np.partition(scores, rank - 1)[rank - 1]
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


def bench_exact() -> list[Row]:
    """E-DCP, small and large, with the pooled sort it must equal."""
    rng = np.random.default_rng(3)
    net = Network.torus(5, 4)
    mine = [3 * rng.normal(size=50) for _ in range(20)]
    ours, pooled = medians(
        often(lambda: calibrate(mine, net, 0.1, "e-dcp")), lambda: np.sort(np.concatenate(mine))[917]
    )
    ours /= 5
    if calibrate(mine, net, 0.1, "e-dcp").threshold != np.sort(np.concatenate(mine))[917]:
        raise AssertionError("E-DCP differs from the pooled sort")
    out = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True).stdout
    time_, gigabytes = map(float, out.split())
    return [
        row("E-DCP, K=20, n=1000, torus", ours, pooled, "pooled sort", "under 5 ms", ours < 5e-3),
        {
            "what": "E-DCP, K=100,000 geometric, n=1e6, by tree",
            "ours": f"{seconds(time_)}, {gigabytes:.2f} GB",
            "compared with": "equal to the pooled sort",
            "ratio": "",
            "target": "under 60 s and 2 GB",
            "met": "yes" if time_ < 60 and gigabytes < 2 else "no",
        },
    ]


MEMORY = """
import resource, numpy as np
from conformesh import Network, Samples, calibrate_batch
K = 100_000
network = Network.of("random-regular", K, seed=0)
samples = Samples.from_flat(np.random.default_rng(0).random(10 * K), np.full(K, 10))
batch = calibrate_batch(samples, network, [0.1], "h-dcp", bins=100)
assert batch.outcome.certificates[0][0].kind == "counted"
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


def bench_limits() -> list[Row]:
    """Memory of a large run, and the time a warm command line takes to answer."""
    out = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout
    gigabytes = float(out)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.csv"
        rng = np.random.default_rng(0)
        lines = [f"{k},{s}" for k in range(20) for s in rng.random(50)]
        path.write_text("device,score\n" + "\n".join(lines) + "\n")
        command = [sys.executable, "-m", "conformesh.cli", "calibrate", str(path), "--json"]
        (answer,) = medians(lambda: subprocess.run(command, capture_output=True, check=True))
    memory: Row = {
        "what": "H-DCP to the exact count, K=100,000, M=100",
        "ours": f"{gigabytes:.2f} GB",
        "compared with": "the whole process at its peak",
        "ratio": "",
        "target": "under 1 GB",
        "met": "yes" if gigabytes < 1 else "no",
    }
    warm: Row = {
        "what": "`conformesh calibrate`, warm cache",
        "ours": seconds(answer),
        "compared with": "from the shell and back",
        "ratio": "",
        "target": "within 2 s",
        "met": "yes" if answer <= 2 else "no",
    }
    return [memory, warm]


BENCHMARKS = {
    "scores": bench_scores,
    "methods": bench_methods,
    "exact": bench_exact,
    "growth": bench_growth,
    "limits": bench_limits,
}


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    import os

    return f"{os.cpu_count()} cores, {cpu}, Python {platform.python_version()}, NumPy {np.__version__}"


def main() -> None:
    chosen = sys.argv[1:] or list(BENCHMARKS)
    table: list[Row] = []
    for name in chosen:
        print(f"{name}: {BENCHMARKS[name].__doc__}", flush=True)
        for found in BENCHMARKS[name]():
            table.append(found)
            print("  " + " | ".join(found.values()), flush=True)
    if chosen != list(BENCHMARKS):
        return
    (HERE / "results.json").write_text(
        json.dumps({"version": __version__, "machine": machine(), "rows": table}, indent=2) + "\n"
    )
    keys = list(table[0])
    lines = ["| " + " | ".join(keys) + " |", "|" + " --- |" * len(keys)]
    lines += ["| " + " | ".join(r[k] for k in keys) + " |" for r in table]
    readme = HERE / "README.md"
    text = readme.read_text()
    start, end = "<!-- results -->", "<!-- end of results -->"
    before, rest = text.split(start)
    after = rest.split(end)[1]
    readme.write_text(before + start + "\n" + f"Measured on {machine()}.\n\n" + "\n".join(lines) + "\n" + end + after)


if __name__ == "__main__":
    main()
