"""A network too large to build: what follows from its topology in closed form, or by a law of growth.

Chain, cycle, star, complete, torus and grid have closed forms. A random topology is built with `PROXY` devices, and
what it shows there grows as theory says: hops of a geometric graph as 1/radius, of an expander as the logarithm of K.
Laws are estimates and say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from conformesh.graph.network import Network
from conformesh.graph.spectrum import Spectrum
from conformesh.graph.topologies import TOPOLOGIES, cycle_ends, outwards, path_ends, product_ends, sides
from conformesh.kernels.graph import breadth_first, spanning_tree
from conformesh.names import unknown

PROXY = 10_000  # devices; built and measured in about a second


@dataclass(frozen=True)
class Tree:
    """The spanning tree of the aggregator `tree`.

    Attributes
    ----------
    depth
        Levels below the root.
    parents
        Share of the devices that have a child.
    growing, up, down
        The largest degree among those who speak in a round, added up over the rounds.
    """

    depth: int
    parents: float
    growing: float
    up: float
    down: float

    @classmethod
    def of(cls, network: Network) -> Tree:
        """Walk the tree that the devices would build."""
        K = network.devices
        levels = np.empty(K, np.int64)
        breadth_first(network.indptr, network.indices, 0, levels, np.empty(K, np.int64))
        has_child = spanning_tree(network.indptr, network.indices, levels)
        busiest, parents = np.zeros(int(levels.max()) + 1), np.zeros(int(levels.max()) + 1)
        np.maximum.at(busiest, levels, network.degree)
        np.maximum.at(parents, levels[has_child], network.degree[has_child])
        loads = (float(rounds.sum()) for rounds in (busiest, busiest[1:], parents[:-1]))
        return cls(len(busiest) - 1, float(has_child.mean()), *loads)

    @classmethod
    def like(cls, depth: int, parents: float, degree: float) -> Tree:
        """Return a tree in which every round has a speaker of that degree."""
        return cls(depth, parents, (depth + 1) * degree, depth * degree, depth * degree)


@dataclass(frozen=True)
class Sketch:
    """What predictions read of a `Network`, without the network; `laws` names what is an estimate.

    Attributes are those of `Network`; `eigenvalues` are the ends of the Laplacian's spectrum, None where unknown.
    """

    name: str
    devices: int
    edges: int
    largest_degree: int
    diameter: int
    tree: Tree
    eigenvalues: tuple[float, float] | None
    laws: frozenset[str] = frozenset()

    @property
    def root_depth(self) -> int:
        """How many hops the farthest device is away from the first."""
        return self.tree.depth

    @property
    def spectrum(self) -> Spectrum:
        """The ends of the spectrum; the signless end is the crude bound, which no number of rounds depends on."""
        if self.eigenvalues is None:
            raise ValueError(
                f"the eigenvalues of a network of one's own are computed up to a limit, got {self.devices:,} devices"
            )
        source = "law" if "spectrum" in self.laws else "closed-form"
        return Spectrum(self.eigenvalues[1], self.eigenvalues[0], 2.0 * self.largest_degree, source)


def sketch(topology: str, devices: int, **options: Any) -> Sketch:
    """Return what is known of a topology of any size."""
    if topology not in TOPOLOGIES:
        raise ValueError(unknown("topology", topology, TOPOLOGIES))
    if devices < 1:
        raise ValueError(f"a network needs at least 1 device, got {devices}")
    if topology in CLOSED:
        return CLOSED[topology](devices, **options)
    if topology not in GROWTH:
        raise ValueError(f"no law of growth is known for {topology!r}; plan with fewer devices, so that it is built")
    return _grown(topology, devices, **options)


# --- closed forms -----------------------------------------------------------------------------------------------------


def _chain(K: int) -> Sketch:
    tree = Tree(K - 1, (K - 1) / K, 2.0 * K - 2, 2.0 * K - 3, 2.0 * K - 3)
    return Sketch(f"chain {K}", K, K - 1, 2, K - 1, tree, outwards(*path_ends(K)))


def _cycle(K: int) -> Sketch:
    tree = Tree.like(K // 2, (K - 2) / K, 2.0)
    return Sketch(f"cycle {K}", K, K, 2, K // 2, tree, outwards(*cycle_ends(K)))


def _star(K: int) -> Sketch:
    return Sketch(f"star {K}", K, K - 1, K - 1, 2, Tree(1, 1 / K, float(K), 1.0, K - 1.0), (1.0, float(K)))


def _complete(K: int) -> Sketch:
    tree = Tree.like(1, 1 / K, K - 1.0)
    return Sketch(f"complete {K}", K, K * (K - 1) // 2, K - 1, 1, tree, (float(K), float(K)))


def _torus(K: int, rows: int | None = None, columns: int | None = None) -> Sketch:
    r, c = sides("torus", (K,), rows, columns, shortest=2)
    hops = r // 2 + c // 2
    ends = product_ends(cycle_ends(r), cycle_ends(c))
    # a row hangs on one column: all but the ends of rows have a child, and in each row one or two are ends
    return Sketch(f"torus {r}x{c}", K, 2 * K, 4, hops, Tree.like(hops, 1 - 2 / c, 4.0), ends, frozenset({"tree"}))


def _grid(K: int, rows: int | None = None, columns: int | None = None) -> Sketch:
    r, c = sides("grid", (K,), rows, columns, shortest=1)
    hops = r + c - 2
    ends = product_ends(path_ends(r), path_ends(c))
    tree = Tree.like(hops, 1 - 1 / c, 4.0)
    return Sketch(f"grid {r}x{c}", K, 2 * K - r - c, 4, hops, tree, ends, frozenset({"tree"}))


CLOSED: dict[str, Callable[..., Sketch]] = {
    "chain": _chain,
    "cycle": _cycle,
    "star": _star,
    "complete": _complete,
    "torus": _torus,
    "grid": _grid,
}


# --- laws of growth ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """How hops, degrees and the smallest eigenvalue grow with K, each up to a factor that the proxy shows."""

    hops: Callable[[int], float]
    degree: Callable[[int], float]
    gap: Callable[[int], float]
    fixed: tuple[str, ...] = ()  # options that keep their meaning at any size
    draws: int = 1  # how many proxies; the smallest eigenvalue may hang on a few devices, and differ from draw to draw


def _radius(K: int) -> float:
    return 1.5 * math.sqrt(math.log(K) / (math.pi * K))


def _geometric_gap(K: int) -> float:
    """K r^4, as of the Laplace operator on the square, less what borders and the randomness of points take."""
    r = _radius(K)
    return K * r**4 * (1 - 3.3 / (math.pi * r * r * K) - 2.4 * r)


GROWTH: dict[str, Growth] = {
    "geometric": Growth(lambda K: 1 / _radius(K), math.log, _geometric_gap),
    "random-regular": Growth(math.log, lambda K: 1.0, lambda K: 1.0, ("degree",)),
    "erdos-renyi": Growth(lambda K: math.log(K) / math.log(2 * math.log(K)) + 1, math.log, math.log, (), 3),
    "small-world": Growth(math.log, lambda K: 1.0, lambda K: math.log(K) ** -2, ("neighbours", "rewire"), 3),
    "tree": Growth(math.log, math.log, lambda K: 1 / K, ("branching",)),
}


def _grown(topology: str, K: int, **options: Any) -> Sketch:
    law = GROWTH[topology]
    strange = next((name for name in options if name not in law.fixed), None)
    if strange is not None:
        raise ValueError(
            f"no law says how {topology} grows with {strange!r} given; leave it out, or plan fewer devices"
        )
    proxy = _proxy(topology, **options)
    K0 = proxy.devices

    def grown(what: Callable[[int], float]) -> float:
        return what(K) / what(K0)

    mean = 2 * proxy.edges / K0 * (1.0 if topology == "tree" else grown(law.degree))
    assert proxy.eigenvalues is not None
    hops, degree = grown(law.hops), grown(law.degree)
    tree = Tree.like(round(proxy.tree.depth * hops), proxy.tree.parents, proxy.tree.up / proxy.tree.depth * degree)
    return Sketch(
        f"{topology} {K}",
        K,
        K - 1 if topology == "tree" else round(mean * K / 2),
        round(proxy.largest_degree * degree),
        round(proxy.diameter * hops),
        tree,
        (proxy.eigenvalues[0] * grown(law.gap), proxy.eigenvalues[1] * degree),
        frozenset({"hops", "degree", "spectrum", "tree"}),
    )


@lru_cache(maxsize=16)
def _proxy(topology: str, **options: Any) -> Sketch:
    """Build a smaller one, and measure it."""
    network = Network.of(topology, PROXY, **options)
    others = [Network.of(topology, PROXY, seed=seed, **options) for seed in range(1, GROWTH[topology].draws)]
    smallest = float(np.median([one.spectrum.smallest for one in (network, *others)]))
    return Sketch(
        network.name,
        PROXY,
        network.edges,
        network.largest_degree,
        network.diameter,
        Tree.of(network),
        (smallest, network.spectrum.largest),
    )
