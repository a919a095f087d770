"""A network: which devices exchange messages.

A `Network` is a connected, undirected graph without self-loops, kept as compressed sparse rows with neighbours in
ascending row. It never holds a devices x devices matrix, so a million devices fit. What follows from the graph alone,
its diameter, its centre and the extremes of its spectrum, is computed when first asked for and then kept.

    Network.torus(5, 4)                      any line of `topologies.TOPOLOGIES` is a constructor
    Network.of("torus", 20, seed=0)          the same by name
    Network.from_edges("graph.txt")          two device names a line
    Network.from_networkx(graph)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.common.names import device_name, device_names, list_names, natural_order
from conformesh.common.notes import emit_note
from conformesh.common.random_streams import Rng, resolve_seed
from conformesh.files.atomic_writes import write_file
from conformesh.graph.edge_files import read_edges

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from conformesh.graph.spectrum import Spectrum

EXACT_DIAMETER_UP_TO = 3000  # devices; one walk from each of them takes a fraction of a second
_MOST_DRAWN = 1000  # devices that a notebook shows
SWEEPS = 4  # sweeps over larger networks, each one walk from a likely centre and one from the device farthest from it


class DisconnectedError(ValueError):
    """The graph falls into parts that no message can cross; `parts` names them, in words."""

    def __init__(self, parts: str) -> None:
        super().__init__(parts)
        self.parts = parts

    def __str__(self) -> str:
        return f"the network is not connected: {self.parts}; add an edge between them"


class ClosedForms(NamedTuple):
    """What a topology has in closed form; None is computed when asked for.

    `eigenvalues` are the smallest non-zero and the largest of the Laplacian, rounded outwards; `centre` is the smallest
    row of least eccentricity, and that eccentricity.
    """

    diameter: int | None = None
    eigenvalues: tuple[float, float] | None = None
    centre: tuple[int, int] | None = None


_NOTHING_KNOWN = ClosedForms()


class _Hops(NamedTuple):
    """How far devices are apart: `diameter`, which is the diameter itself or an upper bound, and a centre."""

    diameter: int
    exact: bool
    centre: int
    centre_depth: int


class _ByTopology(type):
    """Makes every line of `TOPOLOGIES` a constructor of `Network`: ``Network.random_regular(20)``."""

    def __getattr__(cls, name: str) -> Callable[..., Network]:
        if name.startswith("_") or name in cls.__annotations__:  # questions asked while the class is being made
            raise AttributeError(name)
        from conformesh.graph.topologies import TOPOLOGIES

        found = TOPOLOGIES.get(name.replace("_", "-"))
        if found is None:
            raise AttributeError(f"Network has no attribute {name!r}; topologies: {', '.join(TOPOLOGIES)}")
        return found.build

    def __dir__(cls) -> list[str]:
        from conformesh.graph.topologies import TOPOLOGIES

        return [*super().__dir__(), *(name.replace("-", "_") for name in TOPOLOGIES)]


@dataclass(frozen=True, eq=False, repr=False)
class Network(metaclass=_ByTopology):
    """A connected graph of devices. Build one with a topology or a ``from_...`` constructor, which check their input.

    Attributes
    ----------
    ids
        Device names in row order.
    indptr, indices
        The neighbours of row k are ``indices[indptr[k]:indptr[k + 1]]``, ascending; every edge is there in both
        directions and no device is its own neighbour. Shapes (devices + 1,) and (2 * edges,).
    name
        What tables and plots call the network: "torus 5x4", "graph.txt".
    coordinates
        Where to draw the devices, shape (devices, 2), or None to have `positions` lay them out.
    known
        What the topology has in closed form.
    node_order
        The order in which a NetworkX graph lists its nodes, where it is not the row order; else None. A list with an
        entry per device is then ambiguous, see `check_list`.

    >>> Network.torus(5, 4)
    Network(torus 5x4: 20 devices, 40 edges)
    """

    ids: tuple[str, ...]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    name: str = "graph"
    coordinates: NDArray[np.float64] | None = None
    known: ClosedForms = _NOTHING_KNOWN
    node_order: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for array in (self.indptr, self.indices, self.coordinates):
            if array is not None:
                array.setflags(write=False)
        _ = self._from_first  # raises now, not later, if the network is not connected

    def _repr_html_(self) -> str:
        from conformesh.graph.layout import device_positions, edge_lines
        from conformesh.plots import html as cards

        exact = "" if self.diameter_is_exact else "at most "
        low, high = (int(end) for end in (self.degree.min(), self.degree.max()))
        facts = [
            ("devices", f"{self.devices:,}"),
            ("edges", f"{self.edges:,}"),
            ("degree", f"{low:,}" if low == high else f"{low:,} to {high:,}"),
            ("diameter", f"{exact}{self.diameter:,}"),
        ]
        if self.devices > _MOST_DRAWN or self.edges > 3 * _MOST_DRAWN:
            return cards.html_card(
                f"Network {self.name}", rows=[*facts, ("picture", "too many devices or edges to draw")]
            )
        where = device_positions(self, quick=True)
        lines = [(tuple(a), tuple(b)) for a, b in edge_lines(self, where)]
        words = "lines that leave the picture come back on the other side" if self.name.startswith("torus") else ""
        picture = cards.network_drawing([*map(tuple, where.tolist())], lines, self.ids, words)
        return cards.html_card(f"Network {self.name}", rows=facts, parts=[picture])

    def __repr__(self) -> str:
        return f"Network({self.name}: {self.devices} devices, {self.edges} edges)"

    @property
    def devices(self) -> int:
        """How many devices there are, K."""
        return len(self.ids)

    @property
    def edges(self) -> int:
        """How many undirected edges there are, E."""
        return len(self.indices) // 2

    @cached_property
    def degree(self) -> NDArray[np.int64]:
        """Neighbours of each device, shape (devices,)."""
        degree = np.diff(self.indptr)
        degree.setflags(write=False)
        return degree

    @property
    def largest_degree(self) -> int:
        """The most neighbours that a device has."""
        return int(self.degree.max())

    @property
    def centre(self) -> int:
        """The row from which the farthest device is fewest hops away: the root of every spanning tree.

        Of several the smallest. Exact up to 3000 devices, on trees and where a topology has a closed form; of other
        networks, of a few devices near the middle the best. It follows from the map alone: all devices name the same.
        """
        return self._hops.centre if self.known.centre is None else self.known.centre[0]

    @property
    def centre_depth(self) -> int:
        """How many hops the farthest device is away from the centre."""
        return self._hops.centre_depth if self.known.centre is None else self.known.centre[1]

    @cached_property
    def _from_first(self) -> tuple[int, int]:
        """How many hops away from row 0 the farthest device is, and its row."""
        levels, farthest = _walk(self, 0)
        if farthest < 0:
            raise DisconnectedError(_parts_of(self))
        return int(levels[farthest]), farthest

    @cached_property
    def receivers(self) -> NDArray[np.int64]:
        """The row of each directed edge, beside `indices`: edge p carries messages ``indices[p] -> receivers[p]``."""
        receivers = np.repeat(np.arange(self.devices), self.degree)
        receivers.setflags(write=False)
        return receivers

    def neighbours(self, row: int) -> NDArray[np.int32]:
        """Return the rows of the neighbours of `row`, ascending."""
        return self.indices[self.indptr[row] : self.indptr[row + 1]]

    def row(self, device: Hashable) -> int:
        """Return the row of the device of that name."""
        try:
            return self._row_of[device_name(device)]
        except KeyError:
            raise ValueError(
                f"no device {device_name(device)!r} in {self.name}; it has {list_names(self.ids)}"
            ) from None

    def local_ids(self, rows: NDArray[np.int64]) -> Sequence[str]:
        """Return the names of the devices of these rows, in the order of the rows."""
        return self.ids if np.array_equal(rows, np.arange(len(self.ids))) else [self.ids[row] for row in rows.tolist()]

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    @property
    def diameter(self) -> int:
        """The most hops between two devices: exact up to 3000 devices, above that never too small.

        `diameter_is_exact` says which. A bound is twice the smallest eccentricity met in a few walks, at most twice the
        diameter; on trees and where a topology has a closed form the value is exact at any size.
        """
        return self._hops.diameter if self.known.diameter is None else self.known.diameter

    @property
    def diameter_is_exact(self) -> bool:
        """Whether `diameter` is the diameter itself, and not an upper bound."""
        return self.known.diameter is not None or self._hops.exact

    @cached_property
    def _hops(self) -> _Hops:
        if self.devices <= EXACT_DIAMETER_UP_TO and self.edges >= self.devices:  # a tree takes two walks only
            from conformesh.kernels.graph import eccentricities

            far = eccentricities(self.indptr, self.indices)
            return _Hops(int(far.max()), True, int(far.argmin()), int(far.min()))
        return _by_sweeps(self)

    @cached_property
    def spectrum(self) -> Spectrum:
        """The extreme eigenvalues of the Laplacian and the signless Laplacian."""
        from conformesh.graph.spectrum import spectrum_of

        return spectrum_of(self)

    def adjacency(self) -> csr_array[np.float64]:
        """Return the adjacency matrix A, sparse, ones at the edges."""
        from scipy.sparse import csr_array

        ones = np.ones(len(self.indices))
        return csr_array((ones, self.indices, self.indptr), shape=(self.devices, self.devices))

    def strength(self, edge: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Return the sum of each device's weights, one per directed edge; without weights, its degree."""
        return np.bincount(self.receivers, edge, self.devices).astype(np.float64)  # one after the other, in order

    def laplacian(self, edge: NDArray[np.float64] | None = None) -> csr_array[np.float64]:
        """Return the Laplacian D - A, sparse; with a weight for each directed edge, the weighted one."""
        from scipy.sparse import csr_array, diags_array

        ones = np.ones(len(self.indices)) if edge is None else edge
        off = csr_array((ones, self.indices, self.indptr), shape=(self.devices, self.devices))
        return csr_array(diags_array(self.strength(edge)) - off)

    def positions(self, seed: int = 0, springs: int = 1000, *, rng: Rng | None = None) -> NDArray[np.float64]:
        """Return where to draw the devices, shape (devices, 2); without stored coordinates, a spring layout.

        Above `springs` devices springs are slow; two slowly mixing directions of the random walk replace them.
        """
        if self.coordinates is not None:
            return self.coordinates
        seed = resolve_seed(rng, seed)
        if self.devices > springs:
            return _smooth_layout(self, seed)
        import networkx as nx

        return np.array([*nx.spring_layout(self.to_networkx(), seed=seed).values()]).reshape(self.devices, 2)

    def relabelled(self, ids: Sequence[Hashable]) -> Network:
        """Return the same graph, rows in the same order, under other device names."""
        names = device_names(ids)
        if len(names) != self.devices:
            raise ValueError(f"relabelling {self.name} needs {self.devices} names, got {len(names)}")
        return replace(self, ids=names, node_order=None)

    def check_list(self, what: str) -> None:
        """Refuse a list with an entry per device where the order of devices is ambiguous.

        Rows are sorted by name, while users of NetworkX expect the order of the nodes. Nodes that are called 0, 1, ...
        are found by number; where the graph lists them in another order, a note says so.
        """
        if self.node_order is None:
            return
        nodes, rows = list_names(self.node_order), list_names(self.ids)
        if self.ids != tuple(map(str, range(self.devices))):
            raise ValueError(
                f"{what} are a list, and the order of devices is ambiguous: the graph lists its nodes as {nodes}, "
                f"sorted by name they are {rows}; give a dict by device name, such as {{{self.ids[0]!r}: ...}}"
            )
        emit_note(
            f"{what} are a list, read as entry k for device k; the graph lists its nodes in another order, {nodes}; "
            "give a dict by device name if that order was meant"
        )

    def to_networkx(self) -> Any:
        """Return an undirected NetworkX graph over the device names, with ``pos`` where coordinates are known."""
        import networkx as nx

        graph = nx.Graph(name=self.name)
        graph.add_nodes_from(self.ids)
        if self.coordinates is not None:
            nx.set_node_attributes(graph, dict(zip(self.ids, self.coordinates.tolist(), strict=True)), "pos")
        graph.add_edges_from((self.ids[a], self.ids[b]) for a, b in self._pairs().tolist())
        return graph

    def to_edges(self, path: str | Path) -> None:
        """Write the text that `from_edges` reads: two device names a line."""
        for name in self.ids:
            if re.search(r"[\s,#]", name):
                raise ValueError(f"an edge list cannot hold the device name {name!r}: it contains a space, ',' or '#'")
        lines = [f"# {self.name}: {self.devices} devices, {self.edges} edges"]
        lines += [f"{self.ids[a]} {self.ids[b]}" for a, b in self._pairs().tolist()]
        write_file(path, "\n".join(lines) + "\n")

    def _pairs(self) -> NDArray[np.int64]:
        """Every undirected edge once, lower row first, shape (edges, 2)."""
        pairs = np.column_stack([self.receivers, self.indices])
        return pairs[pairs[:, 0] < pairs[:, 1]]

    @classmethod
    def of(cls, topology: str, devices: int, *, seed: int = 0, rng: Rng | None = None, **options: Any) -> Network:
        """Build a topology by name: ``Network.of("torus", 20, rows=10)``; `seed` or `rng` draw what is random."""
        from conformesh.graph.topologies import build_topology

        return build_topology(topology, devices, seed=seed, rng=rng, **options)

    @classmethod
    def from_pairs(
        cls,
        devices: int | Sequence[Hashable],
        pairs: ArrayLike | Iterable[tuple[Hashable, Hashable]],
        name: str = "graph",
        *,
        coordinates: NDArray[np.float64] | None = None,
        known: ClosedForms = _NOTHING_KNOWN,
    ) -> Network:
        """Build a network from its edges.

        Parameters
        ----------
        devices
            A number of devices, which are then called "0", "1", ..., or their names, whose order is the row order.
        pairs
            Edges as pairs of device names (rows, when `devices` is a number); repeated and reversed ones count once.
        name, coordinates, known
            As the attributes of `Network`.

        >>> Network.from_pairs(["a", "b", "c"], [("a", "b"), ("b", "c")]).degree
        array([1, 2, 1])
        """
        if isinstance(devices, int | np.integer):
            if devices < 1:
                raise ValueError(f"a network needs at least 1 device, got {devices}")
            ids = tuple(map(str, range(devices)))
            rows = np.asarray(pairs if isinstance(pairs, np.ndarray) else [*pairs]).reshape(-1, 2)  # type: ignore[misc]
            if len(rows) and not np.issubdtype(rows.dtype, np.integer):
                raise TypeError(f"edges of {devices} numbered devices must be pairs of integers, got {rows.dtype}")
            outside = np.flatnonzero(((rows < 0) | (rows >= devices)).any(axis=1))
            if len(outside):
                raise ValueError(f"edge {tuple(rows[outside[0]].tolist())} names a device outside 0..{devices - 1}")
        else:
            ids = device_names(devices)
            rows = _rows_of(ids, pairs)  # type: ignore[arg-type]
        loops = np.flatnonzero(rows[:, 0] == rows[:, 1])
        if len(loops):
            raise ValueError(f"device {ids[int(rows[loops[0], 0])]!r} has an edge to itself; leave self-loops out")
        indptr, indices = _compressed_rows(len(ids), rows.astype(np.int64))
        where = None if coordinates is None else np.array(coordinates, dtype=np.float64).reshape(len(ids), 2)
        return cls(ids, indptr, indices, name, where, known)

    @classmethod
    def from_networkx(
        cls, graph: Any, name: str | None = None, *, self_loops: Literal["error", "drop"] = "error"
    ) -> Network:
        """Build a network from an undirected NetworkX graph; rows in natural order of the node names.

        Parallel edges count once and edge weights are ignored. Node attributes ``pos`` become the coordinates. If the
        graph lists its nodes in another order, scores must be given as a dict by node name (`check_list`).
        """
        if graph.is_directed():
            raise ValueError("a network is undirected and the graph is directed: pass graph.to_undirected()")
        looped = [device_name(a) for a, b in graph.edges() if a == b]
        if looped and self_loops != "drop":
            raise ValueError(
                f"device {looped[0]!r} has an edge to itself; leave such edges out with "
                "Network.from_networkx(graph, self_loops='drop')"
            )
        node_of = {device_name(node): node for node in graph}
        if len(node_of) < len(graph):
            raise ValueError("two nodes of the graph have the same name once written as text; rename them")
        ids = natural_order(node_of)
        places = [graph.nodes[node_of[i]].get("pos") for i in ids]
        coordinates = None
        if ids and all(place is not None and len(place) == 2 for place in places):
            coordinates = np.array([tuple(place) for place in places], dtype=np.float64)
        pairs = [(a, b) for a, b in graph.edges() if a != b]
        network = cls.from_pairs(ids, pairs, name or graph.name or "graph", coordinates=coordinates)
        nodes = tuple(node_of)
        return network if nodes == network.ids else replace(network, node_order=nodes)

    @classmethod
    def from_edges(cls, path: str | Path, devices: Sequence[Hashable] | None = None) -> Network:
        """Read a network from text: two device names a line, separated by spaces or a comma; ``#`` starts a comment.

        With `devices` the network has exactly these, in this order; without, those in the file in natural order.
        """
        required = None if devices is None else device_names(devices)
        lines = read_edges(Path(path), required)
        mentioned = {name for edge in lines for name in edge}
        if required is None and not lines:
            raise ValueError(f"{path}: no edges found; a line names two devices, as in: device-1 device-2")
        ids = natural_order(mentioned) if required is None else required
        alone = [name for name in ids if name not in mentioned]
        if alone and len(ids) > 1:
            raise ValueError(f"{path}: no edge for {list_names(alone)}; every device needs a neighbour")
        return cls.from_pairs(ids, lines, Path(path).name)


def _rows_of(ids: tuple[str, ...], pairs: Iterable[tuple[Hashable, Hashable]]) -> NDArray[np.int64]:
    row_of = {name: row for row, name in enumerate(ids)}
    pairs = [*pairs]
    try:
        rows = [(row_of[device_name(a)], row_of[device_name(b)]) for a, b in pairs]
    except KeyError as missing:
        raise ValueError(f"an edge names {missing.args[0]!r}, which is none of the devices {list_names(ids)}") from None
    except (TypeError, ValueError):
        each: list[Any] = [*pairs]
        wrong = next((pair for pair in each if not hasattr(pair, "__len__") or len(pair) != 2), each)
        raise TypeError(f"edges must be pairs of devices, such as {ids[:2]}, got {wrong!r}") from None
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def _compressed_rows(K: int, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Both directions of every edge, sorted by row then neighbour, each once."""
    keys = np.sort(np.concatenate([rows[:, 0] * K + rows[:, 1], rows[:, 1] * K + rows[:, 0]]))
    first = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    receiver, sender = np.divmod(keys[first], max(K, 1))
    indptr = np.zeros(K + 1, dtype=np.int64)
    np.cumsum(np.bincount(receiver, minlength=K), out=indptr[1:])
    return indptr, sender.astype(np.int32)


def subtree_weights(network: Network, own: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return every device's parent in the tree from the centre, -1 for the root, and what it weighs with all below."""
    K, levels = network.devices, _walk(network, network.centre)[0]
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


def _parts_of(network: Network) -> str:
    from conformesh.kernels.graph import components

    labels = components(network.indptr, network.indices)
    count = int(labels.max()) + 1
    shown = [list_names([network.ids[k] for k in np.flatnonzero(labels == part)]) for part in range(min(count, 3))]
    *first, last = shown + ([f"{count - 3} more"] if count > 3 else [])
    return f"{count} components: {', '.join(first)} and {last}"


def _walk(network: Network, source: int) -> tuple[NDArray[np.int64], int]:
    """Return the hops from `source` to every device, and the farthest device, or -1 if the network is not connected."""
    from conformesh.kernels.graph import breadth_first

    levels, queue = np.empty(network.devices, np.int64), np.empty(network.devices, np.int64)
    reached = breadth_first(network.indptr, network.indices, source, levels, queue)
    return levels, int(queue[-1]) if reached == network.devices else -1


def _by_sweeps(network: Network) -> _Hops:
    """Find a centre, and bound the diameter from both sides, by walks from far ends and from the middle between them.

    A walk from one device bounds the eccentricity of every other from below ([TakesKosters2013]): it is at least the
    distance d to that device, and at least the eccentricity of that device minus d. The next walk begins at the device
    with the lowest bound (of several the one with most neighbours), then at the device farthest from it, which improves
    bounds most. A device whose eccentricity is the lowest bound is a centre. On a tree two walks from the ends of a
    longest path are enough.

    The longest distance met is a lower bound of the diameter, and exact on a tree; twice the smallest eccentricity is
    an upper bound.
    """
    K = network.devices
    bounds = np.zeros(K, np.int64)

    def walk(source: int) -> tuple[int, int]:
        levels, farthest = _walk(network, source)
        far = int(levels[farthest])
        np.maximum(bounds, levels, out=bounds)
        np.maximum(bounds, np.subtract(far, levels, out=levels), out=bounds)
        return far, farthest

    depth, end = network._from_first
    centre = 0
    longest, other_end = walk(end)
    walk(other_end)
    if network.edges == K - 1:
        centre = int(bounds.argmin())
        return _Hops(longest, True, centre, int(bounds[centre]))
    for _ in range(SWEEPS):
        nearest = np.flatnonzero(bounds == bounds.min())
        middle = int(nearest[network.degree[nearest].argmax()])
        if bounds[middle] == depth:  # no device can have a smaller eccentricity
            break
        far, end = walk(middle)
        depth, centre = min((depth, centre), (far, middle))
        if bounds.min() < depth:
            longest = max(longest, walk(end)[0])
    return _Hops(2 * depth, 2 * depth == longest, centre, depth)


def _smooth_layout(network: Network, seed: int) -> NDArray[np.float64]:
    """Coordinates that change little along edges: a random start, averaged over neighbours and kept orthogonal."""
    from conformesh.kernels.neighbours import sum_over_neighbours

    x = np.random.default_rng(seed).standard_normal((network.devices, 2))
    degree = network.degree[:, None]
    for _ in range(300):
        x = (x + sum_over_neighbours(network.indptr, network.indices, x) / degree) / 2
        x, _ = np.linalg.qr(x - np.average(x, axis=0, weights=network.degree))
    return np.asarray(x / np.abs(x).max(), dtype=np.float64)
