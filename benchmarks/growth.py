"""How time grows with the devices, the scores, the numbers a message holds, the degree, the edges and the rounds.

A power law is fitted by least squares in logarithms over all points, and once more over the upper half, where constant
costs no longer hide the slope. One is linear. Times are processor times, of all threads together: a busy machine
stretches the clock of long jobs more than that of short ones, which would look like growth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from harness import REPEATS, Row, Series, processor_seconds
from networks import gossiping, ring_of

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws

ROUNDS = 4  # of a run whose rounds are measured
MOST = 1.1  # the fitted exponent of linear growth


def gossip_rounds(network: Network, numbers: int, rounds: int = ROUNDS) -> Callable[[], object]:
    """Return a job that runs so many rounds of messages with so many numbers."""
    job = gossiping(Simulator.in_memory_order(network), numbers)
    return lambda: job(rounds)


def devices_exact(devices: int) -> Callable[[], object]:
    """E-DCP, ten scores a device: from samples and a network that are there to every device's threshold."""
    network = Network.of("random-regular", devices, seed=0)
    values = np.random.default_rng(0).normal(size=10 * devices)
    samples = WeightedScores.from_flat(values, np.full(devices, 10))
    return lambda: solve_draws(samples, network, [0.1], "e-dcp")


def scores_exact(scores: int) -> Callable[[], object]:
    """E-DCP on 20 devices, sorting their scores included."""
    network = Network.torus(5, 4)
    values = np.random.default_rng(0).normal(size=scores)
    sizes = np.full(20, scores // 20)
    return lambda: solve_draws(WeightedScores.from_flat(values, sizes), network, [0.1], "e-dcp")


def scores_counted(scores: int) -> Callable[[], object]:
    """Sort the scores of 100 devices, and count 16 thresholds in them: what E-DCP does with n."""
    values, sizes = np.random.default_rng(0).random(scores), np.full(100, scores // 100)
    pivots, first = np.linspace(0.1, 0.9, 16)[None, :], np.zeros(1, dtype=np.int64)
    return lambda: WeightedScores.from_flat(values, sizes).counts_of(first, pivots)


def _torus(devices: int) -> Network:
    """Return a torus of so many devices, as square as they allow: neighbours are near in memory, too."""
    side = next(side for side in range(int(devices**0.5), 0, -1) if devices % side == 0)
    return Network.torus(side, devices // side)


@dataclass(frozen=True)
class Growing:
    """What is timed, what it grows with, and a job for each size; `per` is how many rounds a job has."""

    what: str
    grows: str
    sizes: tuple[int, ...]
    job: Callable[[int], Callable[[], object]]
    judged: bool = False
    per: int = 1


MILLION, EDGES = (100, 1000, 10_000, 100_000, 1_000_000), (300, 3000, 30_000, 300_000, 3_000_000)
SERIES = (
    Growing("E-DCP, 10 scores a device", "devices K", MILLION, devices_exact, True),
    Growing("E-DCP, 20 devices, with sorting", "scores n", MILLION, scores_exact, True),
    Growing("16 counts, 100 devices, with sorting", "scores n", tuple(10 * n for n in MILLION), scores_counted, True),
    Growing(
        "gossip round, torus, 16 numbers",
        "edges",
        EDGES,
        lambda edges: gossip_rounds(_torus(edges // 2), 16),
        True,
        ROUNDS,
    ),
    Growing(
        "gossip round, random graph of degree 6, 16 numbers",
        "edges",
        EDGES,
        lambda edges: gossip_rounds(Network.of("random-regular", edges // 3, seed=0, degree=6), 16),
        per=ROUNDS,
    ),
    Growing(
        "gossip round, torus of 1000 devices",
        "numbers M",
        (1, 10, 100, 1000, 10_000),
        lambda numbers: gossip_rounds(Network.torus(40, 25), numbers),
        per=ROUNDS,
    ),
    Growing(
        "gossip round, 2000 devices, 16 numbers",
        "degree",
        (2, 8, 32, 128, 512),
        lambda degree: gossip_rounds(ring_of(2000, degree), 16),
        per=ROUNDS,
    ),
    Growing(
        "gossip, torus of 20 devices, 16 numbers",
        "rounds T",
        (10, 100, 1000, 10_000, 100_000),
        lambda rounds: gossip_rounds(Network.torus(5, 4), 16, rounds),
    ),
)


def measured(one: Growing, quick: bool = False) -> Series:
    """Return the seconds of every size with their exponents; one network at a time is in memory."""
    sizes, repeats = (one.sizes[:2], 1) if quick else (one.sizes, REPEATS)
    return Series.fitted(
        one.what, one.grows, sizes, [processor_seconds(one.job(size), repeats) / one.per for size in sizes]
    )


def _rows(one: Growing, found: Series) -> list[Row]:
    """Return the row of all sizes, which may be judged, and the row of their upper half."""
    half = len(found.x) // 2
    rows = []
    for first, exponent, judged in ((0, found.exponent, one.judged), (half, found.upper, False)):
        rows.append(
            Row(
                f"{one.what}: {one.grows} {found.x[first]:,.0f} to {found.x[-1]:,.0f}",
                ours=found.seconds[-1],
                other=found.seconds[first],
                against=f"{one.grows} {found.x[first]:,.0f}",
                target=f"exponent in {one.grows} at most {MOST}" if judged else "",
                met=exponent <= MOST if judged else None,
                note=f"exponent {exponent:.2f}" + (", upper half" if first else ""),
            )
        )
    return rows


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Time against K, n, edges, M, degree and rounds, over four decades."""
    series = [measured(one, quick) for one in SERIES]
    return [row for one, found in zip(SERIES, series, strict=True) for row in _rows(one, found)], series
