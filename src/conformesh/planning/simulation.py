"""What simulating a method takes on this machine: memory and time, from the phases and a few constants.

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
from conformesh.planning.phases import Phase
from conformesh.planning.prediction import Prediction
from conformesh.planning.predictions import Way
from conformesh.planning.terrain import Terrain
from conformesh.protocols.aggregate.averaging import LARGEST_DENSE

BASE = 175e6  # bytes of the interpreter, the libraries and compiled code
REFERENCE = 0.46  # ns an edge and number took where the constants were measured
NS = 1e-9

# bytes
PER_DEVICE, PER_EDGE = 120.0, 8.0  # of a network: names and offsets; both directions of an edge
BUILD_DEVICE, BUILD_EDGE = 75.0, 100.0  # while it is being built
PER_SCORE, GIVEN = 8.0, 16.0  # a score, sorted; and while the scores as given are still there
SPEAKING = 100.0  # a device's part in the levels of a spanning tree
EIGENVALUES = 70e6  # the libraries that find them
COPIES = {
    "tree": 1.2,
    "flood": 4.2,
    "wfcp": 3.0,
    "fcp": 1.0,
    "cp": 1.0,
    "chebyshev": 7.1,
}  # arrays as large as all messages; others:
USUAL_COPIES = 6.1

# nanoseconds
PER_ROUND = 15_000.0
PER_EDGE_NUMBER, PER_DEVICE_NUMBER = 0.35, 1.5
FLOODED = 1.2  # an edge and number of a flood, whose tables are as wide as the network
CHEBYSHEV_NUMBER = 5.0  # a device and number, with two rounds remembered
PER_SPOKEN, PER_SUMMED = 20.0, 1.0  # a device's word in a spanning tree, and a number in it
PER_SORTED, PER_COUNT = 40.0, 40.0  # a score; a device and threshold
PER_ADMM = 100.0  # a device's own step of Q-DCP
ALONE = 15_000.0  # a device that calibrates alone
POOLED = 80.0  # a score at a server
CHOSEN = 5e8  # the two ranks of FedCP-QQ
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


def simulated(way: Way, found: Prediction, terrain: Terrain, speed: Speed) -> tuple[float, float]:
    """Return bytes and seconds of building the network, sorting the scores and running the method."""
    return BASE + _bytes(way, found, terrain), _nanoseconds(way, found, terrain) * NS * speed.factor


def _bytes(way: Way, found: Prediction, terrain: Terrain) -> float:
    K, edges = terrain.devices, terrain.map.edges
    kind = _kind(way, found)
    network = K * PER_DEVICE + edges * PER_EDGE
    row = max((phase.numbers for phase in found.phases), default=0.0)
    running = K * row * 8 * COPIES.get(kind, USUAL_COPIES)
    if kind == "tree":
        running += K * SPEAKING
    if _is_dense(found, terrain):
        running = max(running, 4 * 8.0 * K * K)
    if "spectrum" in found.uses and not terrain.knows_spectrum:
        running += EIGENVALUES
    building = K * BUILD_DEVICE + edges * BUILD_EDGE
    return max(building, network + terrain.n * GIVEN, network + terrain.n * PER_SCORE + running)


def _nanoseconds(way: Way, found: Prediction, terrain: Terrain) -> float:
    K, edges = terrain.devices, terrain.map.edges
    ns = edges * BUILD_EDGE_NS + K * BUILD_DEVICE_NS + terrain.n * PER_SORTED
    if "hops" in found.uses and not terrain.knows_diameter:
        ns += WALKS * 2 * edges * WALK if K > EXACT_DIAMETER_UP_TO else K * 2 * edges * WALK / 6
    if "spectrum" in found.uses and (_is_dense(found, terrain) or not terrain.knows_spectrum):
        ns += DENSE * K**3 if K <= LARGEST_DENSE else K * LANCZOS
    if way.method in ("h-dcp", "wfcp"):
        ns += K * max(phase.numbers for phase in found.phases) * PER_COUNT
    ns += {"local": K * ALONE, "cp": terrain.n * POOLED, "fcp": terrain.n * POOLED, "fedcp-qq": CHOSEN}.get(
        way.method, 0
    )
    if _kind(way, found) == "finite-time":  # all eigenvalues, and their order
        ns += 2 * DENSE * K**3
    return ns + sum(_phase(phase, _kind(way, found), K, edges) for phase in found.phases)


def _kind(way: Way, found: Prediction) -> str:
    """Return how sums or averages are formed, or the method itself."""
    return found.facts.get("sums_by", way.variant or way.method)


def _is_dense(found: Prediction, terrain: Terrain) -> bool:
    return "spectrum" in found.uses and terrain.devices <= LARGEST_DENSE and not terrain.knows_spectrum


def _phase(phase: Phase, kind: str, K: int, edges: int) -> float:
    """Return nanoseconds."""
    if phase.server:
        return K * phase.numbers * PER_DEVICE_NUMBER
    if phase.copies is not None:  # a spanning tree: a round touches only those who speak
        return phase.rounds * PER_ROUND + phase.said[0] * K * (PER_SPOKEN + phase.numbers * PER_SUMMED)
    along = FLOODED if kind == "flood" else PER_EDGE_NUMBER
    own = phase.numbers * (CHEBYSHEV_NUMBER if kind == "chebyshev" else PER_DEVICE_NUMBER)
    own += PER_ADMM if phase.what == "ADMM" else 0.0
    return phase.rounds * (PER_ROUND + 2 * edges * phase.numbers * along + K * own)
