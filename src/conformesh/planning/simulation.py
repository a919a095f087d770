"""What simulating a method takes on this machine: memory and time, from what it says of itself and a few constants.

Constants were measured, see docs/planning.md; times scale with a short measurement of this machine (`Speed.here`):
sums over the neighbours of a small network. A rough model: memory to about 30 %, time to a factor of two or three.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from conformesh.graph.network import EXACT_DIAMETER_UP_TO
from conformesh.kernels.neighbours import sum_over_neighbours
from conformesh.planning.terrain import Terrain
from conformesh.protocols.aggregate.finite_time import LARGEST_DENSE
from conformesh.protocols.predicting import Prediction, Stretch

# Bytes of the interpreter, the libraries and compiled code. Whether a run is long enough to load Numba is not known:
# one that does not takes about 80 MB less.
BASE = 175e6
REFERENCE = 0.46  # ns an edge and number took where the constants were measured
NS = 1e-9

# bytes
PER_DEVICE, PER_EDGE = 120.0, 8.0  # of a network: names and offsets; both directions of an edge
BUILD_DEVICE, BUILD_EDGE = 75.0, 100.0  # while it is being built
PER_SCORE, GIVEN = 8.0, 16.0  # a score, sorted; and while the scores as given are still there
SPEAKING = 100.0  # a device's part in the levels of a spanning tree
EIGENVALUES = 70e6  # the libraries that find them

# nanoseconds
PER_ROUND = 15_000.0
PER_SPOKEN, PER_SUMMED = 20.0, 1.0  # a device's word in a spanning tree, and a number in it
PER_SORTED = 20.0  # a score
BUILD_EDGE_NS, BUILD_DEVICE_NS = 300.0, 1000.0
WALK, WALKS = 5.0, 13  # an edge of a walk that bounds the diameter, and how many walks
LANCZOS, DENSE = 35_000.0, 1.2  # eigenvalues: a device; a device cubed


@dataclass(frozen=True)
class Speed:
    """How much slower this machine is than the one that the constants come from; 1 is the same."""

    factor: float = 1.0

    @classmethod
    @lru_cache(maxsize=1)
    def here(cls) -> Speed:
        """Measure: the best of a few sums over neighbours, about a tenth of a second."""
        K, d = 20_000, 6
        indptr = np.arange(K + 1, dtype=np.int64) * d
        indices = ((np.arange(K)[:, None] + np.array([1, 2, 3, -1, -2, -3])) % K).astype(np.int32).ravel()
        x = np.ones((K, 8))
        sum_over_neighbours(indptr, indices, x)  # compiles, or loads what was compiled
        best = min(_seconds(lambda: sum_over_neighbours(indptr, indices, x)) for _ in range(7))
        return cls(best / (K * d * 8 * REFERENCE * NS))


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def simulated(found: Prediction, terrain: Terrain, speed: Speed) -> tuple[float, float]:
    """Return bytes and seconds of building the network, sorting the scores and running the method."""
    return BASE + _bytes(found, terrain), _nanoseconds(found, terrain) * NS * speed.factor


def _bytes(found: Prediction, terrain: Terrain) -> float:
    K, edges = terrain.devices, terrain.map.edges
    network = K * PER_DEVICE + edges * PER_EDGE
    row = max((one.numbers for one in found.stretches), default=0.0)
    running = K * row * 8 * found.arrays
    if any(one.copies is not None for one in found.stretches):
        running += K * SPEAKING
    if _is_dense(found, terrain):
        running = max(running, 4 * 8.0 * K * K)
    if "spectrum" in found.uses and not terrain.knows_spectrum:
        running += EIGENVALUES
    building = K * BUILD_DEVICE + edges * BUILD_EDGE
    return max(building, network + terrain.n * GIVEN, network + terrain.n * PER_SCORE + running)


def _nanoseconds(found: Prediction, terrain: Terrain) -> float:
    K, edges = terrain.devices, terrain.map.edges
    ns = edges * BUILD_EDGE_NS + K * BUILD_DEVICE_NS + terrain.n * PER_SORTED
    if "hops" in found.uses and not terrain.knows_diameter:
        ns += WALKS * 2 * edges * WALK if K > EXACT_DIAMETER_UP_TO else K * 2 * edges * WALK / 6
    if "spectrum" in found.uses and (_is_dense(found, terrain) or not terrain.knows_spectrum):
        ns += DENSE * K**3 if K <= LARGEST_DENSE else K * LANCZOS
    if "eigenvalues" in found.uses:  # all of them, and their order
        ns += 2 * DENSE * K**3
    return ns + found.nanoseconds + sum(_of_rounds(one, K, edges) for one in found.stretches)


def _is_dense(found: Prediction, terrain: Terrain) -> bool:
    return "spectrum" in found.uses and terrain.devices <= LARGEST_DENSE and not terrain.knows_spectrum


def _of_rounds(stretch: Stretch, K: int, edges: int) -> float:
    """Return nanoseconds."""
    if stretch.server:
        return K * stretch.numbers * stretch.number_ns
    if stretch.told:  # strings of bits, put together one by one
        return stretch.rounds * PER_ROUND + stretch.said[0] * K * (
            stretch.device_ns + stretch.numbers * stretch.number_ns
        )
    if stretch.copies is not None:  # a spanning tree: a round touches only those who speak
        return stretch.rounds * PER_ROUND + stretch.said[0] * K * (PER_SPOKEN + stretch.numbers * PER_SUMMED)
    along, own = stretch.edge_ns * stretch.numbers, stretch.number_ns * stretch.numbers + stretch.device_ns
    return stretch.rounds * (PER_ROUND + 2 * edges * along + K * own)
