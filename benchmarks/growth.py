"""How time grows with the devices, the scores, the numbers a message holds, the degree, the edges and the rounds.

A power law is fitted by least squares in logarithms over all points, and once more over the upper half, where constant
costs no longer hide the slope. One is linear. Times are processor times, of all threads together: a busy machine
stretches the clock of long jobs more than that of short ones, which would look like growth.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from harness import REPEATS, Row, Series, processor_seconds

from conformesh import Network, Samples, calibrate_batch
from conformesh.engines import Simulator
from conformesh.protocols.consensus import gossip
from conformesh.protocols.site import Site
from conformesh.weights import Weights

ROUNDS = 4  # of a run whose rounds are measured
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
        "gossip round, torus, 16 numbers",
        "edges",
        (300, 3000, 30_000, 300_000, 3_000_000),
        lambda edges: gossiping(_torus(edges // 2), 16, ROUNDS),
        True,
    ),
    (
        "gossip round, random graph of degree 6, 16 numbers",
        "edges",
        (300, 3000, 30_000, 300_000, 3_000_000),
        lambda edges: gossiping(Network.of("random-regular", edges // 3, seed=0, degree=6), 16, ROUNDS),
        False,
    ),
    (
        "gossip round, torus of 1000 devices",
        "numbers M",
        (1, 10, 100, 1000, 10_000),
        lambda numbers: gossiping(Network.torus(40, 25), numbers, ROUNDS),
        False,
    ),
    (
        "gossip round, 2000 devices, 16 numbers",
        "degree",
        (2, 8, 32, 128, 512),
        lambda degree: gossiping(_ring(2000, degree), 16, ROUNDS),
        False,
    ),
    (
        "gossip, torus of 20 devices, 16 numbers",
        "rounds T",
        (10, 100, 1000, 10_000, 100_000),
        lambda rounds: gossiping(Network.torus(5, ROUNDS), 16, rounds),
        False,
    ),
)


def _torus(devices: int) -> Network:
    """Return a torus of so many devices, as square as they allow: neighbours are near in memory, too."""
    side = next(side for side in range(int(devices**0.5), 0, -1) if devices % side == 0)
    return Network.torus(side, devices // side)


def _ring(devices: int, degree: int) -> Network:
    """Return a circle on which everybody knows the `degree` / 2 devices to either side."""
    row = np.arange(devices)
    pairs = np.concatenate([np.column_stack([row, (row + d) % devices]) for d in range(1, degree // 2 + 1)])
    return Network.from_pairs(devices, pairs, f"ring of degree {degree}")


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Time against K, n, edges, M, degree and rounds, over four decades."""
    rows, series = [], []
    for what, grows, all_sizes, measure, judged in SERIES:
        per = ROUNDS if what.startswith("gossip round") else 1
        sizes = all_sizes[:2] if quick else all_sizes
        repeats = 1 if quick else REPEATS
        seconds = [processor_seconds(measure(size), repeats) / per for size in sizes]  # one network at a time
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
