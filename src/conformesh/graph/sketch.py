"""A network too large to build: what follows from its topology in closed form, or by a law of growth.

A line of `TOPOLOGIES` names its closed form, or its law: then a network of `PROXY` devices is built, and what it shows
grows as theory says: hops of a geometric graph as 1/radius, of an expander as the logarithm of K. Laws are estimates
and say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.graph.spectrum import Spectrum

PROXY = 10_000  # devices; built and measured in about a second


@dataclass(frozen=True)
class Tree:
    """The spanning tree that devices grow from the centre.

    Attributes
    ----------
    depth
        Levels below the root.
    mean_depth
        Hops from the root to a device, on average; below a device, and with it, there are on average one more devices.
    parents
        Share of the devices that have a child.
    growing, up, down
        The largest degree among those who speak in a round, added up over the rounds.
    ends
        Shares of the devices that are on the last level, on the one before, and there have a child; none where unknown.
    doublings
        The mean binary logarithm of how many devices are below one, with itself; only of a tree that was not walked.
    branches
        Which part of all devices is below each child of the root, the same; none where these are alike.
    """

    depth: int
    mean_depth: float
    parents: float
    growing: float
    up: float
    down: float
    ends: tuple[float, float, float] = (0.0, 0.0, 0.0)
    doublings: float = field(default=0.0, compare=False)
    branches: tuple[float, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, network: Network) -> Tree:
        """Walk the tree that the devices would build."""
        from conformesh.kernels.graph import breadth_first, spanning_tree

        K = network.devices
        levels = np.empty(K, np.int64)
        breadth_first(network.indptr, network.indices, network.centre, levels, np.empty(K, np.int64))
        has_child = spanning_tree(network.indptr, network.indices, levels)
        busiest, parents = np.zeros(int(levels.max()) + 1), np.zeros(int(levels.max()) + 1)
        np.maximum.at(busiest, levels, network.degree)
        np.maximum.at(parents, levels[has_child], network.degree[has_child])
        growing, up, down = (float(rounds.sum()) for rounds in (busiest, busiest[1:], parents[:-1]))
        depth = len(busiest) - 1
        above = levels == depth - 1
        ends = (float((levels == depth).mean()), float(above.mean()), float((above & has_child).mean()))
        return cls(depth, float(levels.mean()), float(has_child.mean()), growing, up, down, ends)

    @classmethod
    def like(
        cls,
        depth: int,
        mean_depth: float,
        parents: float,
        degree: float,
        ends: tuple[float, float, float] = (0.0, 0.0, 0.0),
        doublings: float = 0.0,
        branches: tuple[float, ...] = (),
    ) -> Tree:
        """Return a tree in which every round has a speaker of that degree."""
        spoken = (depth + 1) * degree, depth * degree, depth * degree
        return cls(depth, mean_depth, parents, *spoken, ends, doublings, branches)


def weights_below(network: Network, own: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return every device's parent in the tree from the centre, -1 for the root, and what it weighs with all below."""
    from conformesh.kernels.graph import breadth_first

    K = network.devices
    levels = np.empty(K, np.int64)
    breadth_first(network.indptr, network.indices, network.centre, levels, np.empty(K, np.int64))
    receivers = np.repeat(np.arange(K), network.degree)
    upward = np.flatnonzero(levels[network.indices] == levels[receivers] - 1)
    rows, first = np.unique(receivers[upward], return_index=True)
    parent = np.full(K, -1, dtype=np.int64)
    parent[rows] = network.indices[upward[first]]
    below, order = own.astype(np.int64), np.argsort(-levels, kind="stable")
    cuts = np.flatnonzero(np.diff(levels[order], prepend=-1))
    for a, b in pairwise((*cuts.tolist(), K)):
        members = order[a:b]
        members = members[parent[members] >= 0]
        np.add.at(below, parent[members], below[members])
    return parent, below


def walked(network: Network) -> Tree:
    """Return the tree with what else a larger one is drawn after: its `doublings` and `branches`."""
    parent, below = weights_below(network, np.ones(network.devices, dtype=np.int64))
    branches = below[parent == network.centre] / network.devices
    return replace(Tree.of(network), doublings=float(np.log2(below).mean()), branches=tuple(branches.tolist()))


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
    def centre_depth(self) -> int:
        """How many hops the farthest device is away from the centre."""
        return self.tree.depth

    @property
    def degree(self) -> NDArray[np.int64]:
        """Nobody's own degree is known."""
        raise ValueError(f"every device's own degree needs the network itself, and {self.name} is only sketched")

    @property
    def spectrum(self) -> Spectrum:
        """The ends of the spectrum; the signless end is the crude bound, which no number of rounds depends on."""
        if self.eigenvalues is None:
            raise ValueError(
                f"the eigenvalues of a network of one's own are computed up to a limit, got {self.devices:,} devices"
            )
        source = "law" if "spectrum" in self.laws else "closed-form"
        return Spectrum(self.eigenvalues[1], self.eigenvalues[0], 2.0 * self.largest_degree, source)


# --- sizes and eigenvalues --------------------------------------------------------------------------------------------


def at_least_one(devices: int) -> int:
    """Return a number of devices after checking it."""
    if isinstance(devices, bool) or not isinstance(devices, int | np.integer):
        raise TypeError(f"the number of devices must be an integer, got {devices!r}")
    if devices < 1:
        raise ValueError(f"a network needs at least 1 device, got {devices}")
    return int(devices)


def sides(kind: str, size: tuple[int, ...], rows: int | None, columns: int | None, shortest: int) -> tuple[int, int]:
    """Rows and columns from what the caller said: a number of devices, both sides, or a number and one side."""
    match size:
        case (_, _) if rows is None and columns is None:
            r, c = size
        case () if rows is not None and columns is not None:
            r, c = rows, columns
        case (devices,):
            r, c = _sides_of(kind, at_least_one(devices), rows, columns)
        case ():
            raise TypeError(f"{kind} needs a number of devices, or rows and columns")
        case _:
            raise TypeError(f"{kind} takes a number of devices, or rows and columns, got {size}")
    if min(r, c) < shortest:
        raise ValueError(f"{kind} needs sides of at least {shortest}, got {r}x{c}")
    return r, c


def _sides_of(kind: str, devices: int, rows: int | None, columns: int | None) -> tuple[int, int]:
    """Rows and columns of so many devices: as given, as one given side leaves, or as square as can be."""
    if rows is None and columns is None:
        columns = divisor(devices)
        if columns is None:
            raise ValueError(_no_rectangle(kind, devices))
    given = columns if rows is None else rows
    if given is None or given < 1 or devices % given:
        raise ValueError(f"{kind} of {devices} devices: a side of {given} does not divide {devices}")
    r, c = (devices // given, given) if rows is None else (given, devices // given)
    if columns is not None and columns != c:
        raise ValueError(f"{kind} needs rows * columns = {devices}, got {rows}x{columns}")
    return r, c


def divisor(n: int) -> int | None:
    """Return the largest divisor from 2 up to the square root, the shorter side of the squarest rectangle."""
    return next((d for d in range(math.isqrt(n), 1, -1) if n % d == 0), None)


def _no_rectangle(kind: str, devices: int) -> str:
    below = next((n for n in range(devices - 1, 3, -1) if divisor(n)), None)
    above = next(n for n in range(devices + 1, 2 * devices + 4) if divisor(n))
    sizes = " or ".join(str(n) for n in (below, above) if n is not None)
    return (
        f"{kind} needs a number of devices that is rows x columns with both at least 2, got {devices}; "
        f"nearest: {sizes}; or choose chain, cycle, geometric or random-regular"
    )


def path_ends(n: int) -> tuple[float, float]:
    """Smallest non-zero and largest Laplacian eigenvalue of a path, 4 sin^2(pi i / 2n) at i = 1 and n - 1."""
    return 4 * math.sin(math.pi / (2 * n)) ** 2, 4 * math.sin(math.pi * (n - 1) / (2 * n)) ** 2


def cycle_ends(n: int) -> tuple[float, float]:
    """The same of a cycle, 4 sin^2(pi i / n) at i = 1 and n // 2; a cycle of two is a path."""
    return (4 * math.sin(math.pi / n) ** 2, 4 * math.sin(math.pi * (n // 2) / n) ** 2) if n > 2 else path_ends(n)


def product_ends(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """The same of a Cartesian product, whose eigenvalues are all sums of one of each; of a path of one, only zero."""
    return outwards(min(one[0], other[0]), one[1] + other[1])


def outwards(smallest: float, largest: float) -> tuple[float, float]:
    """Leave room for the rounding of a few operations, so that bounds built on the values hold."""
    slack = 8 * float(np.finfo(np.float64).eps)
    return smallest * (1 - slack), largest * (1 + slack)


# --- closed forms -----------------------------------------------------------------------------------------------------


def chain(K: int) -> Sketch:
    """Devices in a line."""
    hops = K // 2
    speaking = 2.0 * hops + 1, 2.0 * hops - 1, 2.0 * hops
    tree = Tree(hops, _mean_hops(K), (K - 2) / K, *speaking, _ends(K), _halves(K), _parts(K, K // 2, (K - 1) // 2))
    return Sketch(f"chain {K}", K, K - 1, 2, K - 1, tree, outwards(*path_ends(K)))


def cycle(K: int) -> Sketch:
    """Devices around a circle."""
    tree = Tree.like(K // 2, _mean_hops(K), (K - 2) / K, 2.0, _ends(K), _halves(K), _parts(K, K // 2, (K - 1) // 2))
    return Sketch(f"cycle {K}", K, K, 2, K // 2, tree, outwards(*cycle_ends(K)))


def star(K: int) -> Sketch:
    """One device in the middle."""
    tree = Tree(1, (K - 1) / K, 1 / K, float(K), 1.0, K - 1.0, (1 - 1 / K, 1 / K, 1 / K))
    return Sketch(f"star {K}", K, K - 1, K - 1, 2, tree, (1.0, float(K)))


def complete(K: int) -> Sketch:
    """Everyone with everyone."""
    tree = Tree.like(1, (K - 1) / K, 1 / K, K - 1.0, (1 - 1 / K, 1 / K, 1 / K))
    return Sketch(f"complete {K}", K, K * (K - 1) // 2, K - 1, 1, tree, (float(K), float(K)))


def torus(K: int, rows: int | None = None, columns: int | None = None) -> Sketch:
    """A grid with opposite borders joined; its tree is an estimate."""
    r, c = sides("torus", (K,), rows, columns, shortest=2)
    hops = r // 2 + c // 2
    ends = product_ends(cycle_ends(r), cycle_ends(c))
    # of two ways the one over the smaller row is taken: columns hang on the root's row, down to the farthest one, and
    # so does the last row, next to it; of the rows between each hangs on the root's column, with two ends
    between = max((r - 1) // 2 - 1, 0)
    leaves = 2 * c - 1 + 2 * between
    arms = ((c // 2) * (r // 2 + 2), ((c - 1) // 2) * (r // 2 + 2))
    tree = Tree.like(
        hops,
        _mean_hops(r) + _mean_hops(c),
        1 - leaves / K,
        4.0,
        doublings=(_halves(r) + _halves(c)) / 2,
        branches=_parts(K, *arms, between * c + 1, r // 2),
    )
    return Sketch(f"torus {r}x{c}", K, 2 * K, 4, hops, tree, ends, frozenset({"tree"}))


def grid(K: int, rows: int | None = None, columns: int | None = None) -> Sketch:
    """A rectangular grid; its tree is an estimate."""
    r, c = sides("grid", (K,), rows, columns, shortest=1)
    ends = product_ends(path_ends(r), path_ends(c))
    # below the centre columns hang on its row, with one end each; above it rows hang on its column, with two ends each
    leaves = c + (r - 1) // 2 * min(c - 1, 2)
    arms = ((c // 2) * (r // 2 + 1), ((c - 1) // 2) * (r // 2 + 1))
    tree = Tree.like(
        r // 2 + c // 2,
        _mean_hops(r) + _mean_hops(c),
        1 - leaves / K,
        4.0,
        doublings=(_halves(r) + _halves(c)) / 2,
        branches=_parts(K, *arms, (r - 1) // 2 * c, r // 2),
    )
    return Sketch(f"grid {r}x{c}", K, 2 * K - r - c, 4, r + c - 2, tree, ends, frozenset({"tree"}))


def _parts(K: int, *below: int) -> tuple[float, ...]:
    """Return which part of all devices is on each branch, of those that there are."""
    return tuple(devices / K for devices in below if devices)


def _halves(K: int) -> float:
    """Return the mean binary logarithm of 1, 2, ..., K / 2: as many devices are below those of half a path."""
    return max(math.log2(max(K, 1) / 2) - 1 / math.log(2), 0.0)


def _mean_hops(n: int) -> float:
    """Return the mean hops to the centre, of a path and of a cycle: 0, 1, 1, 2, 2, ... add up to floor(n^2 / 4)."""
    return n * n // 4 / n


def _ends(n: int) -> tuple[float, float, float]:
    """Return the ends of the tree of a path and of a cycle: two branches, of which one is shorter where n is even."""
    last, above = 1 + n % 2, 2 if n > 3 else 1
    return last / n, above / n, min(last, above) / n


# --- laws of growth ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """How hops, degrees and the smallest eigenvalue grow with K, each up to a factor that the proxy shows.

    Attributes
    ----------
    hops, degree, gap
        The laws: of path lengths, of degrees, of the smallest non-zero eigenvalue.
    fixed
        Options that keep their meaning at any size.
    draws
        How many proxies; the smallest eigenvalue may hang on a few devices, and differ from draw to draw.
    edges
        Their number where it is known, from K and the options; by default it grows as K times the degree.
    """

    hops: Callable[[int], float]
    degree: Callable[[int], float]
    gap: Callable[[int], float]
    fixed: tuple[str, ...] = ()
    draws: int = 1
    edges: Callable[..., int] | None = None

    def sketch(self, topology: str, K: int, **options: Any) -> Sketch:
        """Build a smaller one of that topology, and let it grow."""
        strange = next((name for name in options if name not in self.fixed), None)
        if strange is not None:
            raise ValueError(
                f"no law says how {topology} grows with {strange!r} given; leave it out, or plan fewer devices"
            )
        proxy = _proxy(topology, self.draws, **options)

        def grown(what: Callable[[int], float]) -> float:
            return what(K) / what(proxy.devices)

        assert proxy.eigenvalues is not None
        hops, degree = grown(self.hops), grown(self.degree)
        up = proxy.tree.up / proxy.tree.depth * degree
        return Sketch(
            f"{topology} {K}",
            K,
            round(proxy.edges / proxy.devices * degree * K) if self.edges is None else self.edges(K, **options),
            round(proxy.largest_degree * degree),
            round(proxy.diameter * hops),
            Tree.like(
                round(proxy.tree.depth * hops),
                proxy.tree.mean_depth * hops,
                proxy.tree.parents,
                up,
                doublings=proxy.tree.doublings,
                branches=proxy.tree.branches,
            ),
            (proxy.eigenvalues[0] * grown(self.gap), proxy.eigenvalues[1] * degree),
            frozenset({"hops", "degree", "spectrum", "tree"}),
        )


@lru_cache(maxsize=16)
def _proxy(topology: str, draws: int, **options: Any) -> Sketch:
    """Build a smaller one, and measure it."""
    built = [Network.of(topology, PROXY, seed=seed, **options) for seed in range(draws)]
    network, smallest = built[0], float(np.median([one.spectrum.smallest for one in built]))
    return Sketch(
        network.name,
        PROXY,
        network.edges,
        network.largest_degree,
        network.diameter,
        walked(network),
        (smallest, network.spectrum.largest),
    )


def _radius(K: int) -> float:
    return 1.5 * math.sqrt(math.log(K) / (math.pi * K))


def _geometric_gap(K: int) -> float:
    """K r^4, as of the Laplace operator on the square, less what borders and the randomness of points take."""
    r = _radius(K)
    return K * r**4 * (1 - 3.3 / (math.pi * r * r * K) - 2.4 * r)


def _constant(K: int) -> float:
    return 1.0


class ByDegree(Growth):
    """Devices that join others by their degrees: with one link each they are a tree, which is deeper."""

    def sketch(self, topology: str, K: int, **options: Any) -> Sketch:
        """Let a smaller one grow, by the laws of a tree if it is one."""
        laws = replace(self, hops=math.log, gap=lambda K: 1 / K) if options.get("links") == 1 else self
        return Growth.sketch(laws, topology, K, **options)


GEOMETRIC = Growth(lambda K: 1 / _radius(K), math.log, _geometric_gap)
EXPANDER = Growth(math.log, _constant, _constant, ("degree",))
ERDOS_RENYI = Growth(lambda K: math.log(K) / math.log(2 * math.log(K)) + 1, math.log, math.log, draws=3)
SMALL_WORLD = Growth(math.log, _constant, lambda K: math.log(K) ** -2, ("neighbours", "rewire"), 3)
TREE = Growth(math.log, math.log, lambda K: 1 / K, ("branching",), edges=lambda K, **_: K - 1)
SCALE_FREE = ByDegree(
    lambda K: math.log(K) / math.log(math.log(K)),
    math.sqrt,
    _constant,
    ("links",),
    edges=lambda K, links=2: links * (K - links),
)
