"""Sums over a spanning tree: up to the root and back, two numbers a device for each number added up.

The root is the first device of the roster (the smallest id). It speaks; whoever hears for the first time takes the
smallest speaker as parent and speaks next, naming its parent, so that parents learn their children. Then each sum goes
up the levels and the total comes down.

Assumes     graph connected; the root's eccentricity known (how many rounds to wait)
Guarantees  integers added as integers: exact, at any size
Message     one number once to build; then at most two per number and sum. Silent devices cost nothing
"""

from __future__ import annotations

import numpy as np

from conformesh.protocols.aggregate.base import Ints, Price, Total, narrow
from conformesh.protocols.messages import Each, Protocol
from conformesh.protocols.site import Site


def tree_total(site: Site) -> Protocol[Total]:
    """Build the tree by messages, then add up over it."""
    depth = site.network.root_depth
    parent, level, children = yield from _grow(site, depth)
    has_child = np.zeros(len(site.here), dtype=bool)
    for _, parents in children.values():
        has_child[parents] = True
    up = {at: level == at for at in range(1, depth + 1)}
    down = {at: (level == at) & has_child for at in range(depth)}
    taken: _Routes = {}

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        x = narrow(values, largest)  # a copy; no partial sum exceeds `largest`
        for at in range(depth, 0, -1):  # up: children of one level speak at the same time
            heard = yield Each(x, up[at])
            mine, parents = children[at]
            np.add.at(x, parents, heard.values[mine])
        for at in range(depth):  # down: a device that has heard the total passes it on
            heard = yield Each(x, down[at])
            if at not in taken:  # who takes what from whom is the same for every sum
                receiver = site.local(heard.receiver)
                mine = np.flatnonzero((parent[receiver] == heard.sender) & (level[receiver] == at + 1))
                taken[at] = (mine, receiver[mine])
            mine, receiver = taken[at]
            x[receiver] = heard.values[mine]
        return x.astype(np.int64)

    return total


def tree_price(site: Site) -> Price:
    """Twice the depth in rounds, two numbers a device."""
    depth = site.network.root_depth
    return Price(2 * depth, 2.0 * min(depth, 1), depth + 1)


_Routes = dict[int, tuple[Ints, Ints]]  # by level: which of the messages heard, and for which device here


def _grow(site: Site, depth: int) -> Protocol[tuple[Ints, Ints, _Routes]]:
    """Return each device's parent and level, and for each level which of the messages heard come from a child."""
    parent = np.full(len(site.here), -1, dtype=np.int64)
    level = np.where(site.here == 0, 0, -1)
    children: _Routes = {}
    for at in range(depth + 1 if depth else 0):
        heard = yield Each(parent.astype(np.int32), level == at)
        receiver = site.local(heard.receiver)
        mine = np.flatnonzero(heard.values == heard.receiver)
        children[at] = (mine, receiver[mine])
        new, first = np.unique(receiver[level[receiver] < 0], return_index=True)  # sorted by receiver, then sender
        parent[new] = heard.sender[level[receiver] < 0][first]
        level[new] = at + 1
    return parent, level, children
