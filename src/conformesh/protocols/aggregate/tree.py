"""Sums over a spanning tree: up to the root and back, two numbers a device for each number added up.

The root is the first device of the roster (the smallest id). It speaks; whoever hears for the first time takes the
smallest speaker as parent and speaks next, naming its parent, so that parents learn their children. Then each sum goes
up the levels and the total comes down. Every round touches only those who speak and those who listen to them.

Assumes     graph connected; the root's eccentricity known (how many rounds to wait)
Guarantees  integers added as integers: exact, at any size
Message     one number once to build; then at most two per number and sum. Silent devices cost nothing
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from conformesh.kernels.segments import add_rows
from conformesh.protocols.aggregate.base import Ints, Price, Total, bits_of, narrow_type
from conformesh.protocols.messages import Each, Protocol
from conformesh.protocols.predicting import Stretch, Terrain
from conformesh.protocols.site import Site


@dataclass(frozen=True, eq=False)
class _Level:
    """The devices of one level of the tree and those just above it, as far as they are here.

    Attributes
    ----------
    members
        Their places among the devices here, ascending.
    rows
        Their global rows.
    above
        The parent (global row) of each member.
    children
        Global rows of this level's devices whose parent is here.
    parents
        The place here of each child's parent.
    parent_rows
        The global row of each child's parent.
    speaking_down
        Places of the members that have a child.
    """

    members: Ints
    rows: Ints
    above: Ints
    children: Ints
    parents: Ints
    parent_rows: Ints
    speaking_down: Ints


def tree_total(site: Site) -> Protocol[Total]:
    """Build the tree by messages, then add up over it."""
    levels = yield from _grow(site, site.network.root_depth)

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        x = np.ascontiguousarray(values, narrow_type(largest))  # no partial sum exceeds `largest`
        table = x.reshape(len(x), -1)
        for level in reversed(levels[1:]):  # up: children of one level speak at the same time
            heard = yield Each(x, level.members)
            if len(level.children):
                said = heard.said_by(level.parent_rows, level.children)
                add_rows(table, level.parents, said.reshape(-1, table.shape[1]))
        for level, below in pairwise(levels):  # down: who has heard the total passes it on
            heard = yield Each(x, level.speaking_down)
            if len(below.members):
                x[below.members] = heard.said_by(below.rows, below.above)
        return x

    return total


def tree_price(site: Site) -> Price:
    """Twice the depth in rounds, two numbers a device."""
    depth = site.network.root_depth
    return Price(2 * depth, 2.0 * min(depth, 1), depth + 1)


def tree_setup(terrain: Terrain) -> list[Stretch]:
    """Predict the building of the tree: everybody speaks once."""
    tree = terrain.tree
    if tree.depth == 0:
        return []
    return [Stretch("build the tree", tree.depth + 1, 1, 32, spoken=1, most=1, copies=tree.growing)]


def tree_stretches(terrain: Terrain, what: str, numbers: int, largest: int | None) -> list[Stretch]:
    """Predict a sum: all but the root speak on the way up, all that have a child on the way down."""
    tree, bits, K = terrain.tree, bits_of(largest), terrain.devices
    if tree.depth == 0:
        return []
    deep = float(tree.depth > 1)
    up = Stretch(what, tree.depth, numbers, bits, (K - 1) / K, 1, tree.up)
    return [up, Stretch(what, tree.depth, numbers, bits, tree.parents, deep, tree.down)]


def _grow(site: Site, depth: int) -> Protocol[list[_Level]]:
    """Build the tree, level by level, and return its levels."""
    parent = np.full(len(site.here), -1, dtype=np.int32)
    found = site.here == 0
    has_child = np.zeros(len(site.here), dtype=bool)
    members = np.flatnonzero(found)
    grown: list[tuple[Ints, Ints, Ints]] = []
    for _ in range(depth + 1 if depth else 0):
        heard = yield Each(parent, members)
        mine = np.flatnonzero(heard.values == heard.receiver)  # who names me as its parent
        parents = site.local(heard.receiver[mine])
        has_child[parents] = True
        grown.append((members, heard.sender[mine], parents))
        receiver = site.local(heard.receiver)
        first = np.flatnonzero(~found[receiver])
        new, at = np.unique(receiver[first], return_index=True)  # of a receiver's speakers the smallest comes first
        parent[new] = heard.sender[first][at]
        found[new] = True
        members = new
    return [
        _Level(
            members,
            site.here[members],
            parent[members].astype(np.int64),
            children,
            parents,
            site.here[parents],
            members[has_child[members]],
        )
        for members, children, parents in grown
    ]
