"""TOPOLOGIES: the graphs that have a name, each built from edge arrays so that a million devices take seconds.

A topology is a function ``name(devices, ...) -> Network`` and one line in the table at the end of this file; it is then
a constructor (``Network.torus(5, 4)``), a choice of the command line and a case of every test over networks. Whatever
is random takes `seed` or `rng` and is redrawn from the same stream until it is connected.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.names import unknown_name
from conformesh.common.random_streams import Rng, resolve_seed
from conformesh.graph.network import ClosedForms, DisconnectedError, Network
from conformesh.kernels.graph import attach_by_degree

_Pairs = NDArray[np.int64]  # shape (edges, 2); repeated edges count once

_TRIES = 100  # draws before a random topology gives up on being connected
_MOST_EDGES = 300_000_000  # a few GB as compressed rows
_COMPARED_UP_TO = 1000  # points in the plane, each with every other; SciPy has a tree for more


@dataclass(frozen=True)
class Topology:
    """One line of `TOPOLOGIES`.

    Attributes
    ----------
    build
        From a number of devices and options to a network.
    summary
        What it is, in a sentence.
    options
        Each with its meaning.
    """

    build: Callable[..., Network]
    summary: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def random(self) -> bool:
        """Whether the graph depends on a seed."""
        return "seed" in inspect.signature(self.build).parameters


def build_topology(topology: str, devices: int, *, seed: int = 0, rng: Rng | None = None, **options: Any) -> Network:
    """Build the topology of that name; unknown names and options are errors that list the known ones."""
    chosen = _known(topology, options)
    return chosen.build(devices, **options, **({"seed": resolve_seed(rng, seed)} if chosen.random else {}))


def _known(topology: str, options: Mapping[str, Any]) -> Topology:
    if topology not in TOPOLOGIES:
        raise ValueError(unknown_name("topology", topology, TOPOLOGIES))
    chosen = TOPOLOGIES[topology]
    for option in options:
        if option not in chosen.options:
            known = ", ".join(chosen.options) or "none"
            raise ValueError(f"topology {topology!r} has no option {option!r}; its options: {known}")
    return chosen


# --- sizes and eigenvalues --------------------------------------------------------------------------------------------


def _at_least_one(devices: int) -> int:
    """Return a number of devices after checking it."""
    if isinstance(devices, bool) or not isinstance(devices, int | np.integer):
        raise TypeError(f"the number of devices must be an integer, got {devices!r}")
    if devices < 1:
        raise ValueError(f"a network needs at least 1 device, got {devices}")
    return int(devices)


def resolve_sides(
    kind: str, size: tuple[int, ...], rows: int | None, columns: int | None, shortest: int
) -> tuple[int, int]:
    """Rows and columns from what the caller said: a number of devices, both sides, or a number and one side."""
    match size:
        case (_, _) if rows is None and columns is None:
            r, c = size
        case () if rows is not None and columns is not None:
            r, c = rows, columns
        case (devices,):
            r, c = _sides_of(kind, _at_least_one(devices), rows, columns)
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
        columns = shorter_side(devices)
        if columns is None:
            raise ValueError(_no_rectangle(kind, devices))
    given = columns if rows is None else rows
    if given is None or given < 1 or devices % given:
        raise ValueError(f"{kind} of {devices} devices: a side of {given} does not divide {devices}")
    r, c = (devices // given, given) if rows is None else (given, devices // given)
    if columns is not None and columns != c:
        raise ValueError(f"{kind} needs rows * columns = {devices}, got {rows}x{columns}")
    return r, c


def shorter_side(n: int) -> int | None:
    """Return the largest divisor from 2 up to the square root, the shorter side of the squarest rectangle."""
    return next((d for d in range(math.isqrt(n), 1, -1) if n % d == 0), None)


def _no_rectangle(kind: str, devices: int) -> str:
    below = next((n for n in range(devices - 1, 3, -1) if shorter_side(n)), None)
    above = next(n for n in range(devices + 1, 2 * devices + 4) if shorter_side(n))
    sizes = " or ".join(str(n) for n in (below, above) if n is not None)
    return (
        f"{kind} needs a number of devices that is rows x columns with both at least 2, got {devices}; "
        f"nearest: {sizes}; or choose chain, cycle, geometric or random-regular"
    )


def _path_ends(n: int) -> tuple[float, float]:
    """Smallest non-zero and largest Laplacian eigenvalue of a path, 4 sin^2(pi i / 2n) at i = 1 and n - 1."""
    return 4 * math.sin(math.pi / (2 * n)) ** 2, 4 * math.sin(math.pi * (n - 1) / (2 * n)) ** 2


def _cycle_ends(n: int) -> tuple[float, float]:
    """The same of a cycle, 4 sin^2(pi i / n) at i = 1 and n // 2; a cycle of two is a path."""
    return (4 * math.sin(math.pi / n) ** 2, 4 * math.sin(math.pi * (n // 2) / n) ** 2) if n > 2 else _path_ends(n)


def _product_ends(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """The same of a Cartesian product, whose eigenvalues are all sums of one of each; of a path of one, only zero."""
    return _outwards(min(one[0], other[0]), one[1] + other[1])


def _outwards(smallest: float, largest: float) -> tuple[float, float]:
    """Leave room for the rounding of a few operations, so that bounds built on the values hold."""
    slack = 8 * float(np.finfo(np.float64).eps)
    return smallest * (1 - slack), largest * (1 + slack)


# --- without chance ---------------------------------------------------------------------------------------------------


def chain(devices: int) -> Network:
    """Devices in a line."""
    row = np.arange(_at_least_one(devices))
    line = np.column_stack([row, np.zeros(devices)]).astype(np.float64)
    pairs = np.column_stack([row[:-1], row[1:]])
    known = ClosedForms(devices - 1, _outwards(*_path_ends(devices)), ((devices - 1) // 2, devices // 2))
    return Network.from_pairs(devices, pairs, f"chain {devices}", coordinates=line, known=known)


def cycle(devices: int) -> Network:
    """Devices around a circle; two are joined by one edge."""
    pairs = _ring(_at_least_one(devices), 1)
    known = ClosedForms(devices // 2, _outwards(*_cycle_ends(devices)), (0, devices // 2))
    return Network.from_pairs(devices, pairs, f"cycle {devices}", coordinates=_circle(devices), known=known)


def star(devices: int) -> Network:
    """Device 0 in the middle, all others joined to it only."""
    leaves = np.arange(1, _at_least_one(devices))
    pairs = np.column_stack([np.zeros_like(leaves), leaves])
    around = np.concatenate([np.zeros((1, 2)), _circle(devices - 1)])
    ends = (1.0 if devices > 2 else float(devices), float(devices))
    known = ClosedForms(min(devices - 1, 2), ends, (0, min(devices - 1, 1)))
    return Network.from_pairs(devices, pairs, f"star {devices}", coordinates=around, known=known)


def complete(devices: int) -> Network:
    """Every device joined to every other."""
    _require_room("complete", _at_least_one(devices), devices * (devices - 1) / 2)
    pairs = np.column_stack(np.triu_indices(devices, 1)).astype(np.int64)
    hops = min(devices - 1, 1)
    known = ClosedForms(hops, (float(devices), float(devices)), (0, hops))
    return Network.from_pairs(devices, pairs, f"complete {devices}", coordinates=_circle(devices), known=known)


def torus(*size: int, rows: int | None = None, columns: int | None = None) -> Network:
    """A grid whose opposite borders are joined; ``torus(20)`` is as square as can be, ``torus(5, 4)`` is rows, columns.

    Along a side of length 2 the way round is the same edge, which counts once.
    """
    r, c = resolve_sides("torus", size, rows, columns, shortest=2)
    device = np.arange(r * c)
    row, column = np.divmod(device, c)
    down, right = (row + 1) % r * c + column, row * c + (column + 1) % c
    pairs = np.concatenate([np.column_stack([device, down]), np.column_stack([device, right])])
    hops = r // 2 + c // 2
    known = ClosedForms(hops, _product_ends(_cycle_ends(r), _cycle_ends(c)), (0, hops))
    return Network.from_pairs(r * c, pairs, f"torus {r}x{c}", coordinates=np.column_stack([column, -row]), known=known)


def grid(*size: int, rows: int | None = None, columns: int | None = None) -> Network:
    """A rectangular grid; ``grid(20)`` is as square as possible, ``grid(5, 4)`` is rows, columns."""
    r, c = resolve_sides("grid", size, rows, columns, shortest=1)
    device = np.arange(r * c)
    row, column = np.divmod(device, c)
    down, right = row < r - 1, column < c - 1
    pairs = np.concatenate(
        [np.column_stack([device[down], device[down] + c]), np.column_stack([device[right], device[right] + 1])]
    )
    middle = (r - 1) // 2 * c + (c - 1) // 2
    known = ClosedForms(r + c - 2, _product_ends(_path_ends(r), _path_ends(c)), (middle, r // 2 + c // 2))
    return Network.from_pairs(r * c, pairs, f"grid {r}x{c}", coordinates=np.column_stack([column, -row]), known=known)


# --- with chance ------------------------------------------------------------------------------------------------------


def erdos_renyi(
    devices: int, p: float | None = None, *, seed: int = 0, rng: np.random.Generator | int | None = None
) -> Network:
    """Every pair joined with probability `p`; by default 0.5 up to 100 devices and ``2 ln(K) / K`` beyond."""
    K = _at_least_one(devices)
    if p is None:
        p = 0.5 if K <= 100 else 2 * math.log(K) / K
    if not 0 < p <= 1:
        raise ValueError(f"erdos-renyi needs a probability p above 0 and at most 1, got {p}")
    _require_room("erdos-renyi", K, p * K * (K - 1) / 2)
    drawing = np.random.default_rng(resolve_seed(rng, seed))

    def draws() -> Iterator[_Pairs]:
        while True:
            yield _pair_of(_chosen(drawing, K * (K - 1) // 2, p))

    return _first_connected(K, draws(), f"erdos-renyi {K} p={p:.3g}", "raise p")


def _random_regular(
    devices: int, degree: int | None = None, *, seed: int = 0, rng: np.random.Generator | int | None = None
) -> Network:
    """A random graph in which every device has `degree` neighbours, by default 4 (fewer below 5 devices).

    Half-edges are paired at random and loops and repeated pairs exchanged with random others until none is left
    ([McKayWormald1990]); for fixed degree the result is uniform up to a vanishing error in the number of devices.
    """
    K = _at_least_one(devices)
    d = min(4, K - 1) if degree is None else degree
    if not min(1, K - 1) <= d < K or K * d % 2:
        raise ValueError(
            f"random-regular needs 1 <= degree < devices with an even product, got degree={d}, devices={K}"
        )
    _require_room("random-regular", K, K * d / 2)
    drawing = np.random.default_rng(resolve_seed(rng, seed))
    sparse = d <= (K - 1) / 2  # beyond half, draw the edges that are missing

    def draws() -> Iterator[_Pairs]:
        while True:
            drawn = _regular_pairs(drawing, K, d if sparse else K - 1 - d)
            yield drawn if sparse else _complement(K, drawn)

    return _first_connected(K, draws(), f"random-regular {K} degree={d}", "choose degree 3 or more")


def geometric(
    devices: int, radius: float | None = None, *, seed: int = 0, rng: np.random.Generator | int | None = None
) -> Network:
    """Points drawn in the unit square, joined when closer than `radius`, by default ``1.5 sqrt(ln(K) / (pi K))``."""
    K = _at_least_one(devices)
    r = 1.5 * math.sqrt(math.log(K) / (math.pi * K)) if radius is None else radius
    if not r >= 0:
        raise ValueError(f"geometric needs a radius of at least 0, got {radius}")
    _require_room("geometric", K, min(math.pi * r * r, 1) * K * K / 2)
    drawing = np.random.default_rng(resolve_seed(rng, seed))
    points = np.empty((0, 2))

    def draws() -> Iterator[_Pairs]:
        nonlocal points
        while True:
            points = drawing.random((K, 2))
            strip = np.floor(points[:, 1] / r) if r > 0 else np.zeros(K)
            points = points[np.lexsort((points[:, 0], strip))]  # neighbours get near rows: memory is walked in order
            yield _near_pairs(points, r)

    name = f"geometric {K} radius={r:.3g}"
    return _first_connected(K, draws(), name, "raise the radius", coordinates=lambda: points)


def _near_pairs(points: NDArray[np.float64], r: float) -> _Pairs:
    """Return the pairs of points at most `r` apart."""
    if len(points) <= _COMPARED_UP_TO:
        near = ((points[:, None] - points) ** 2).sum(axis=2) <= r * r
        return np.argwhere(np.triu(near, 1))
    from scipy.spatial import KDTree

    return np.asarray(KDTree(points).query_pairs(r, output_type="ndarray"), dtype=np.int64)


def _small_world(
    devices: int,
    neighbours: int | None = None,
    rewire: float = 0.1,
    *,
    seed: int = 0,
    rng: np.random.Generator | int | None = None,
) -> Network:
    """A ring in which each device knows its `neighbours` nearest, every edge re-aimed with probability `rewire`.

    [WattsStrogatz1998]; by default 4 neighbours (2 on rings below 5 devices). A re-aimed edge keeps one end and takes a
    uniformly random other one that makes no loop and no repeated edge.
    """
    K = _at_least_one(devices)
    near = (4 if K >= 5 else 2) if neighbours is None else neighbours
    if near < 2 or near % 2 or (neighbours is not None and near >= K):
        raise ValueError(f"small-world needs an even number of neighbours from 2 to devices - 1, got {near} of {K}")
    if not 0 <= rewire <= 1:
        raise ValueError(f"small-world needs a probability rewire from 0 to 1, got {rewire}")
    drawing = np.random.default_rng(resolve_seed(rng, seed))

    def draws() -> Iterator[_Pairs]:
        while True:
            yield _rewired(drawing, K, _ring(K, near // 2), rewire)

    name = f"small-world {K} neighbours={near} rewire={rewire:g}"
    return _first_connected(K, draws(), name, "raise neighbours", coordinates=lambda: _circle(K))


def tree(
    devices: int, branching: int | None = None, *, seed: int = 0, rng: np.random.Generator | int | None = None
) -> Network:
    """A tree: random recursive, each device joining an earlier one; or balanced, each with `branching` children."""
    K = _at_least_one(devices)
    child = np.arange(1, K)
    if branching is None:
        parent, name = np.random.default_rng(resolve_seed(rng, seed)).integers(0, child), f"tree {K}"
    elif branching < 1:
        raise ValueError(f"tree needs a branching of at least 1, got {branching}")
    else:
        parent, name = (child - 1) // branching, f"tree {K} branching={branching}"
    return Network.from_pairs(K, np.column_stack([parent, child]), name)


def _scale_free(
    devices: int, links: int | None = None, *, seed: int = 0, rng: np.random.Generator | int | None = None
) -> Network:
    """Devices come one by one, each joined to `links` earlier ones, by default 2, with chances as their degrees.

    [BarabasiAlbert1999]: few devices end with very many neighbours. The first to come joins the `links` that are there;
    whoever comes later joins as many different ones, so the network is connected.
    """
    K = _at_least_one(devices)
    each = min(2, K - 1) if links is None else links
    if not min(1, K - 1) <= each < K:
        raise ValueError(f"scale-free needs 1 <= links < devices, got links={each}, devices={K}")
    _require_room("scale-free", K, each * (K - each))
    ends = _by_degree(np.random.default_rng(resolve_seed(rng, seed)), K, each)
    return Network.from_pairs(K, ends.T, f"scale-free {K} links={each}")


# --- pieces -----------------------------------------------------------------------------------------------------------


def _require_room(topology: str, devices: int, edges: float) -> None:
    if edges > _MOST_EDGES:
        raise ValueError(
            f"{topology} with {devices} devices would have about {edges:.1e} edges, more than fit in memory"
        )


def _circle(K: int) -> NDArray[np.float64]:
    angle = 2 * np.pi * np.arange(K) / max(K, 1)
    return np.column_stack([np.cos(angle), np.sin(angle)])


def _ring(K: int, reach: int) -> _Pairs:
    """Edges between devices at most `reach` apart on a ring, each once, none from a device to itself."""
    device = np.arange(K)
    around = np.concatenate([np.column_stack([device, (device + hop) % K]) for hop in range(1, reach + 1)])
    low, high = around.min(axis=1), around.max(axis=1)
    _, first = np.unique(low * K + high, return_index=True)
    first.sort()
    return np.asarray(around[first][low[first] != high[first]], dtype=np.int64)


def _chosen(rng: np.random.Generator, n: int, p: float) -> NDArray[np.int64]:
    """Each of 0..n-1 with probability p, ascending: the gaps between chosen numbers are geometric."""
    found: list[NDArray[np.int64]] = []
    last = -1
    while last < n - 1:
        expected = (n - 1 - last) * p
        steps = rng.geometric(p, size=int(expected + 4 * math.sqrt(expected) + 8))
        block = last + np.cumsum(np.minimum(steps, n + 1))
        found.append(block[block < n])
        last = int(block[-1])
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _pair_of(index: NDArray[np.int64]) -> _Pairs:
    """Number all pairs (1,0), (2,0), (2,1), (3,0), ...: pair (i, j) has number i (i - 1) / 2 + j."""
    i = ((1 + np.sqrt(1 + 8 * index.astype(np.float64))) / 2).astype(np.int64)
    i -= i * (i - 1) // 2 > index  # the square root may be off by one for huge numbers
    i += i * (i + 1) // 2 <= index
    return np.column_stack([i, index - i * (i - 1) // 2])


def _regular_pairs(rng: np.random.Generator, K: int, d: int) -> _Pairs:
    """Pair K * d half-edges; exchange ends of bad pairs (loops, repeats) with random others; start over if stuck."""
    if d == 0:
        return np.empty((0, 2), np.int64)
    while True:
        pairs = rng.permutation(np.repeat(np.arange(K), d)).reshape(-1, 2)
        for _ in range(200):
            bad = _bad_pairs(K, pairs)
            if not len(bad):
                return pairs
            for a, b in zip(bad, rng.integers(0, len(pairs), len(bad)), strict=True):
                pairs[a, 1], pairs[b, 1] = pairs[b, 1], pairs[a, 1]


def _bad_pairs(K: int, pairs: _Pairs) -> NDArray[np.int64]:
    """Rows that are loops or repeat an earlier pair in either direction."""
    key = pairs.min(axis=1) * K + pairs.max(axis=1)
    _, first = np.unique(key, return_index=True)
    good = np.zeros(len(pairs), np.bool_)
    good[first] = True
    return np.flatnonzero(~good | (pairs[:, 0] == pairs[:, 1]))


def _complement(K: int, pairs: _Pairs) -> _Pairs:
    missing = np.ones((K, K), np.bool_)
    missing[pairs[:, 0], pairs[:, 1]] = missing[pairs[:, 1], pairs[:, 0]] = False
    return np.column_stack(np.nonzero(np.triu(missing, 1))).astype(np.int64)


def _by_degree(rng: np.random.Generator, K: int, links: int) -> NDArray[np.int64]:
    """Return both ends, (2, edges), of the edges that devices bring who choose others by their degrees."""
    if not links:
        return np.empty((2, 0), np.int64)
    ends = np.empty((K - links) * 2 * links, np.int64)
    ends[:links], ends[links : 2 * links] = np.arange(links), links
    device, chances = links + 1, np.empty(0)
    while device < K:
        more = rng.random(links * (K - device) + 100)  # a few tries find whom the device knows already
        chances = np.concatenate([chances, more])
        device, used = attach_by_degree(ends, links, device, chances)
        chances = chances[used:]
    return ends.reshape(-1, 2, links).transpose(1, 0, 2).reshape(2, -1)


def _rewired(rng: np.random.Generator, K: int, pairs: _Pairs, probability: float) -> _Pairs:
    """Re-aim chosen edges; loops and repeats draw again, and after many draws (a full ring) go back where they were."""
    chosen = rng.random(len(pairs)) < probability
    before = np.concatenate([pairs[~chosen], pairs[chosen]])  # of two equal edges the later, a re-aimed one, is bad
    after = before.copy()
    moving = np.arange(len(pairs) - np.count_nonzero(chosen), len(pairs))
    for _ in range(200):
        if not len(moving):
            break
        after[moving, 1] = rng.integers(0, K, len(moving))
        moving = _bad_pairs(K, after)
    after[moving] = before[moving]
    return after


def _first_connected(
    K: int,
    draws: Iterator[_Pairs],
    name: str,
    advice: str,
    coordinates: Callable[[], NDArray[np.float64]] | None = None,
) -> Network:
    for _ in range(_TRIES):
        pairs = next(draws)
        try:
            return Network.from_pairs(K, pairs, name, coordinates=None if coordinates is None else coordinates())
        except DisconnectedError:
            continue
    raise ValueError(f"{name}: none of {_TRIES} draws was connected; {advice}")


_SHAPE = {"rows": "length of one side", "columns": "length of the other side"}

TOPOLOGIES: dict[str, Topology] = {
    "chain": Topology(chain, "a line"),
    "cycle": Topology(cycle, "a ring"),
    "star": Topology(star, "one device in the middle"),
    "torus": Topology(torus, "a grid with opposite borders joined", _SHAPE),
    "grid": Topology(grid, "a rectangular grid", _SHAPE),
    "complete": Topology(complete, "everyone with everyone"),
    "erdos-renyi": Topology(erdos_renyi, "every pair with probability p", {"p": "chance of an edge"}),
    "random-regular": Topology(_random_regular, "random, equal degrees", {"degree": "neighbours of every device"}),
    "geometric": Topology(
        geometric,
        "random points, joined when near",
        {"radius": "longest edge in the unit square"},
    ),
    "small-world": Topology(
        _small_world,
        "a ring with some edges re-aimed",
        {"neighbours": "nearest devices on the ring", "rewire": "chance that an edge is re-aimed"},
    ),
    "tree": Topology(
        tree,
        "a random or balanced tree",
        {"branching": "children of a device; random when left out"},
    ),
    "scale-free": Topology(
        _scale_free,
        "devices join others by their degrees",
        {"links": "edges that a new device brings"},
    ),
}
