"""How time grows with the devices, the scores, the numbers a message holds, the degree, the edges and the rounds.

A power law is fitted by least squares in logarithms over all points, and once more over the upper half, where constant
costs no longer hide the slope. One is linear.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from harness import Row, Series, times_of

from conformesh import Network, Samples, calibrate_batch
from conformesh.engines import Simulator
from conformesh.protocols.consensus import gossip
from conformesh.protocols.site import Site
from conformesh.weights import Weights

LONG = 5.0  # seconds
MOST = 1.1  # the fitted exponent of linear growth
Measure = Callable[[int], Callable[[], object]]


def unmeasured(network: Network) -> Weights:
    """Return maximum-degree weights whose eigenvalues nobody needs here."""
    a = 1.0 / (int(network.degree.max()) + 1)
    return Weights("max-degree", a, a * network.degree.astype(float), 1.0, 0.0, "estimated")


def gossiping(network: Network, numbers: int, rounds: int) -> Callable[[], object]:
    """Return a job that runs so many rounds of messages with so many numbers."""
    site = Site.everywhere(network, np.ones((network.devices, 1), dtype=np.int64))
    x = np.random.default_rng(0).random((network.devices, numbers))
    weights = unmeasured(network)
    return lambda: Simulator(network).run(gossip(x, site, weights, rounds))


def devices_exact(devices: int) -> Callable[[], object]:
    """E-DCP, ten scores a device: from samples and a network that are there to every device's threshold."""
    network = Network.of("random-regular", devices, seed=0)
    values = np.random.default_rng(0).normal(size=10 * devices)
    samples = Samples.from_flat(values, np.full(devices, 10))
    return lambda: calibrate_batch(samples, network, [0.1], "e-dcp")


def scores_exact(scores: int) -> Callable[[], object]:
    """E-DCP on 20 devices, sorting their scores included."""
    network = Network.torus(5, 4)
    values = np.random.default_rng(0).normal(size=scores)
    sizes = np.full(20, scores // 20)
    return lambda: calibrate_batch(Samples.from_flat(values, sizes), network, [0.1], "e-dcp")


SERIES: tuple[tuple[str, str, tuple[int, ...], Measure, bool], ...] = (  # what, grows with, sizes, job, judged
    ("E-DCP, 10 scores a device", "devices K", (100, 1000, 10_000, 100_000, 1_000_000), devices_exact, True),
    ("E-DCP, 20 devices, with sorting", "scores n", (100, 1000, 10_000, 100_000, 1_000_000), scores_exact, True),
    (
        "gossip round, 16 numbers, degree 6",
        "edges",
        (300, 3000, 30_000, 300_000, 3_000_000),
        lambda edges: gossiping(Network.of("random-regular", edges // 3, seed=0, degree=6), 16, 4),
        True,
    ),
    (
        "gossip round, torus of 1000 devices",
        "numbers M",
        (1, 10, 100, 1000, 10_000),
        lambda numbers: gossiping(Network.torus(40, 25), numbers, 4),
        False,
    ),
    (
        "gossip round, 2000 devices, 16 numbers",
        "degree",
        (2, 8, 32, 128, 512),
        lambda degree: gossiping(_ring(2000, degree), 16, 4),
        False,
    ),
    (
        "gossip, torus of 20 devices, 16 numbers",
        "rounds T",
        (10, 100, 1000, 10_000, 100_000),
        lambda rounds: gossiping(Network.torus(5, 4), 16, rounds),
        False,
    ),
)


def _ring(devices: int, degree: int) -> Network:
    """Return a circle on which everybody knows the `degree` / 2 devices to either side."""
    row = np.arange(devices)
    pairs = np.concatenate([np.column_stack([row, (row + d) % devices]) for d in range(1, degree // 2 + 1)])
    return Network.from_pairs(devices, pairs, f"ring of degree {degree}")


def _median(job: Callable[[], object], quick: bool) -> float:
    """Return the median seconds of five runs after a warm-up, or of three where one takes long."""
    start = time.perf_counter()
    job()
    repeats = 1 if quick else 5 if time.perf_counter() - start < LONG else 3
    return statistics.median(times_of({"": job}, repeats, warm=True)[""])


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Time against K, n, edges, M, degree and rounds, over four decades."""
    rows, series = [], []
    for what, grows, all_sizes, measure, judged in SERIES:
        sizes = all_sizes[:2] if quick else all_sizes
        seconds = [_median(measure(size), quick) for size in sizes]  # in turn: a million devices need their memory
        found = Series.fitted(what, grows, sizes, seconds)
        series.append(found)
        target = f"exponent in {grows} at most {MOST}" if judged else ""
        rows.append(
            Row(
                f"{what}: {grows} {sizes[0]:,} to {sizes[-1]:,}",
                ours=seconds[-1],
                other=seconds[0],
                against=f"{grows} {sizes[0]:,}",
                target=target,
                met=found.exponent <= MOST if judged else None,
                note=f"exponent {found.exponent:.2f}, upper half {found.upper:.2f}",
            )
        )
    return rows, series
