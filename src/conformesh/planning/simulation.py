"""What simulating a method takes on this machine: memory and time, from the phases and a few constants.

Constants were measured, see docs/planning.md; times scale with a short measurement of this machine (`Speed.here`):
sums over the neighbours of a small network. A rough model: memory to about 30 %, time to a factor of two or three.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from conformesh.kernels.neighbours import sum_over_neighbours
from conformesh.planning.phases import Phase
from conformesh.planning.prediction import Prediction
from conformesh.planning.predictions import Way
from conformesh.planning.terrain import Terrain

BASE = 165e6  # bytes of the interpreter, the libraries and compiled code
REFERENCE = 1.3  # ns an edge and number took where the constants were measured
NS = 1e-9

# bytes
PER_DEVICE, PER_EDGE = 100.0, 8.0  # of a network: names and offsets; both directions of an edge
BUILD_DEVICE, BUILD_EDGE = 75.0, 100.0  # while it is being built
PER_SCORE = 16.0  # the scores as given, and sorted
SPEAKING = 250.0  # a device's part in routes and tallies of a spanning tree
COPIES = {"tree": 4.0, "flood": 3.0, "q-dcp": 30.0}  # arrays of the size of a message, at the same time; others:
USUAL_COPIES = 5.0

# nanoseconds
PER_ROUND = 30_000.0
PER_EDGE_NUMBER, PER_DEVICE_NUMBER = 1.3, 4.0
PER_HEARD, PER_SILENT = 120.0, 4.0  # a message of a tree, sorted by receiver; a device that is passed over in a round
PER_SORTED, PER_COUNT = 25.0, 60.0  # a score; a device and threshold
PER_ADMM = 400.0  # a device's own step of Q-DCP
BUILD_NS = 600.0  # an edge


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


def _seconds(work: object) -> float:
    began = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - began


def simulated(way: Way, found: Prediction, terrain: Terrain, speed: Speed) -> tuple[float, float]:
    """Return bytes and seconds of building the network, sorting the scores and running the method."""
    K, edges = terrain.devices, terrain.map.edges
    kind = found.facts.get("sums_by", way.method)
    network = K * PER_DEVICE + edges * PER_EDGE
    building = K * BUILD_DEVICE + edges * BUILD_EDGE
    scores = terrain.n * PER_SCORE
    row = max((phase.numbers for phase in found.phases), default=0.0)
    running = K * row * 8 * COPIES.get(kind, USUAL_COPIES) + (K * SPEAKING if kind == "tree" else 0.0)
    memory = BASE + max(building, network + scores + running)
    seconds = edges * BUILD_NS + terrain.n * PER_SORTED
    seconds += sum(_phase(phase, kind, K, edges) for phase in found.phases)
    return memory, seconds * NS * speed.factor


def _phase(phase: Phase, kind: str, K: int, edges: int) -> float:
    """Return nanoseconds."""
    if phase.server:
        return K * phase.numbers * PER_DEVICE_NUMBER
    if phase.copies is not None:  # a spanning tree: who speaks is heard by all its neighbours
        heard = phase.said[0] * 2 * edges
        return phase.rounds * (PER_ROUND + K * PER_SILENT) + heard * (PER_HEARD + phase.numbers * PER_EDGE_NUMBER)
    own = PER_ADMM if phase.what == "ADMM" else phase.numbers * PER_DEVICE_NUMBER
    return phase.rounds * (PER_ROUND + 2 * edges * phase.numbers * PER_EDGE_NUMBER + K * own)
