"""Exposure: who learns what from a run, in words and numbers, before the run or after it.

The field `reveals` of each entry of `METHODS` returns what the method discloses to whom. Here are the argument of these
functions (`ExposureContext`), what they return (`Disclosure`), and the two questions about graphs on which a
coalition's knowledge rests: into which parts a graph falls without some devices, and who stands alone in a tree of
sums.

Reports are about a mesh in rounds; a simulation in one process hides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from itertools import combinations
from typing import Any, Literal

import numpy as np

from conformesh.common.names import list_names
from conformesh.graph.network import Network, subtree_weights
from conformesh.kernels.ranks import OWN
from conformesh.privacy.gossip_attack import with_neighbours

_To = Literal["neighbours", "everybody", "a server", "the coalition", "readers of results", "readers of predictions"]
Edges = Iterable[tuple[int, int]]
EACH, ALL = "each device", "all devices together"
# Coalitions of one size that are all tried. Where there are more, a coalition grows device by device, each time by the
# worst of several, and the report says "as far as was tried".
_MOST_COALITIONS = 200
# Divided by the square of the number of devices: how many devices are tried in each step of growth, those with most
# neighbours. It limits the time of a report on large networks.
_GROWTH_WORK = 2_000_000


@dataclass(frozen=True)
class Disclosure:
    """One item that a participant learns.

    Attributes
    ----------
    to
        Who learns it: the neighbours of a device, everybody, a server (on a mesh, which has none, everybody), the
        coalition that was asked about, or whoever sees saved results or predictions.
    what
        What it is, in words.
    about
        Whom it is about: each device, all together, or how many, by name.
    numbers
        How many numbers there are about one device, or about all together; None where that depends on the scores.
    devices
        Rows of the devices whose own numbers the coalition learns by this, not only in a sum with others'.
    """

    to: _To
    what: str
    about: str = EACH
    numbers: int | None = 1
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class ExposureContext:
    """What the exposure of a method may depend on besides its options.

    Attributes
    ----------
    devices, network
        How many devices, and their map; None where only their number is known.
    coalition
        Rows of devices that tell each other all they hear.
    scores, alpha
        Of a run that was not made yet: how many scores each device has, and the level.
    facts
        Of a run that was made: what was chosen on the way (`Result.options`).
    masks
        Pairs of devices that share a mask, for sums that are masked; None: all pairs.
    adapt
        How scores adapt to the rows of a device (`scores.adapt`); None: they do not.
    mixture, mixture_bound
        Which mixture of devices is covered, or how far shares may be from it; see `guarantee.Mixture`.
    """

    devices: int
    network: Network | None = None
    coalition: tuple[int, ...] = ()
    scores: int = 50
    alpha: Fraction = Fraction(1, 10)
    facts: Mapping[str, Any] = field(default_factory=dict)
    masks: Edges | None = None
    adapt: Any = None
    mixture: str = "sizes"
    mixture_bound: Fraction | None = None

    @property
    def own(self) -> bool:
        """Whether each device is covered by itself, so that no score is searched for."""
        return self.mixture == OWN

    @property
    def everyone(self) -> tuple[int, ...]:
        """Rows of all devices."""
        return tuple(range(self.devices))

    @property
    def near(self) -> tuple[int, ...]:
        """Rows of the devices that somebody in the coalition has as a neighbour; none without a map."""
        if self.network is None:
            return ()
        return self.others(with_neighbours(self.network, self.coalition).tolist())

    def others(self, rows: Iterable[int]) -> tuple[int, ...]:
        """Return those of these devices that are not in the coalition."""
        return tuple(row for row in rows if row not in {*self.coalition})

    def named(self, rows: Sequence[int]) -> str:
        """Return how many devices these are, and who."""
        others = self.devices - len(self.coalition)
        names = [str(row) for row in rows] if self.network is None else [self.network.ids[row] for row in rows]
        return f"{len(rows)} of {others} others" + (f": {list_names(names)}" if 0 < len(names) < others else "")


Reveals = Callable[[ExposureContext, Any], list[Disclosure]]


# --- graphs -----------------------------------------------------------------------------------------------------------


def components_without(devices: int, edges: Edges, coalition: Iterable[int]) -> list[list[int]]:
    """Return the parts into which a graph falls without some of its devices, each ascending, by their first.

    Of masks that two devices each share, all but those of the coalition cancel in the sum over a part, and nothing
    less than a part can be told apart.

    >>> components_without(5, [(0, 1), (1, 2), (2, 3), (3, 4)], [1])
    [[0], [2, 3, 4]]
    """
    gone = {*coalition}
    part = list(range(devices))

    def root(row: int) -> int:
        while part[row] != row:
            part[row] = part[part[row]]
            row = part[row]
        return row

    for a, b in edges:
        if a not in gone and b not in gone:
            low, high = sorted((root(a), root(b)))
            part[high] = low
    found: dict[int, list[int]] = {}
    for row in range(devices):
        if row not in gone:
            found.setdefault(root(row), []).append(row)
    return [*found.values()]


def learned_tree_sums(network: Network, coalition: Sequence[int], total: bool = True) -> list[list[int]]:
    """Return over which devices a coalition learns the sum, where sums rise in the spanning tree from the centre.

    A device says the sum over all that are below it to all its neighbours alike, not to its parent alone. So the tree
    is cut at the devices of the coalition, and above each of their neighbours in the graph. The part of the root is
    known where the `total` comes down again, or the root is in the coalition.
    """
    parent, _ = subtree_weights(network, np.ones(network.devices, dtype=np.int64))
    heard = {*with_neighbours(network, coalition).tolist()}
    edges = [(row, above) for row, above in enumerate(parent.tolist()) if above >= 0 and row not in heard]
    parts = components_without(network.devices, edges, coalition)
    return parts if total else [part for part in parts if network.centre not in part]


# --- what a run reveals -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exposure:
    """Who learns what from a run of a method.

    Attributes
    ----------
    method, network, devices
        What is run, and where.
    rows
        What is learned.
    coalition
        Names of the devices that tell each other all they hear.
    bare
        Names of the others of whom the coalition learns numbers that are theirs alone, besides their number of scores.
    worst
        Whether the coalition was looked for: the one of its size that learns most, as far as was tried.
    facts
        What the run itself says that it revealed.
    ids
        Names of all devices, by row.
    """

    method: str
    network: str
    devices: int
    rows: tuple[Disclosure, ...]
    coalition: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    worst: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    ids: tuple[str, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        rows = [{**asdict(row), "devices": [self.ids[at] for at in row.devices]} for row in self.rows]
        return {
            "method": self.method,
            "network": self.network,
            "devices": self.devices,
            "reveals": rows,
            "coalition": [*self.coalition],
            "worst": self.worst,
            "bare": [*self.bare],
            **self.facts,
        }

    def summary(self) -> str:
        """Say in a sentence what the coalition has of others."""
        if not self.coalition:
            return "no coalition was asked about"
        who = list_names(self.coalition) + (
            " (of so many, those that learn most as far as was tried)" if self.worst else ""
        )
        others = self.devices - len(self.coalition)
        return f"a coalition of {who} has {len(self.bare)} of {others} other devices' own numbers"


def measure_exposure(
    method: str, reveals: Reveals, where: ExposureContext, options: Any, coalition: int | Sequence[Any]
) -> Exposure:
    """Say who learns what; `coalition` has names of devices, or a number: then those of that number that learn most."""
    network = where.network
    if network is None:
        rows: tuple[int, ...] = ()
    elif isinstance(coalition, int):
        rows = _worst_coalition(reveals, where, options, coalition)
    else:
        rows = tuple(sorted({network.row(name) for name in coalition}))
    where = replace(where, coalition=rows)
    found = reveals(where, options)
    names = tuple(map(str, where.everyone)) if network is None else network.ids
    return Exposure(
        method,
        f"{where.devices} devices" if network is None else network.name,
        where.devices,
        tuple(found),
        tuple(names[row] for row in rows),
        tuple(names[row] for row in _bare_devices(where, found)) if rows else (),
        isinstance(coalition, int) and bool(rows),
        ids=names,
    )


def _bare_devices(where: ExposureContext, found: Iterable[Disclosure]) -> tuple[int, ...]:
    """Return whose own numbers a coalition learns, of those who are not in it."""
    return where.others(sorted({row for one in found for row in one.devices}))


def _worst_coalition(reveals: Reveals, where: ExposureContext, options: Any, size: int) -> tuple[int, ...]:
    """Return the coalition of this size that learns most: of all, or, where these are many, grown one by one."""
    if not 0 <= size < where.devices:
        raise ValueError(f"a coalition must leave somebody out: 0 to {where.devices - 1} devices, got {size}")

    def learned(rows: tuple[int, ...]) -> int:
        joined = replace(where, coalition=rows)
        return len(_bare_devices(joined, reveals(joined, options)))

    def grown(rows: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        return (tuple(sorted((*rows, row))) for row in tried if row not in rows)

    most = min(max(_GROWTH_WORK // where.devices**2, 8), _MOST_COALITIONS)
    if math.comb(where.devices, size) <= most:
        return max(combinations(where.everyone, size), key=learned)
    assert where.network is not None
    tried = np.argsort(-where.network.degree, kind="stable")[: most + size].tolist()
    rows: tuple[int, ...] = ()
    for _ in range(size):
        rows = max(grown(rows), key=learned)
    return rows
