"""Sums over a spanning tree: up to the root and back, two numbers a device for each number added up.

The tree is grown once, from a centre (`protocols.tree`). Then each sum goes up the levels and the total comes down.
Every round touches only those who speak and those who listen to them.

Assumes     graph connected, its centre known
Guarantees  integers added as integers: exact, at any size
Message     one number once to build; then at most two per number and sum. Silent devices cost nothing
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from conformesh.kernels.segments import add_rows
from conformesh.protocols.aggregate.base import Ints, Price, Total, bits_of
from conformesh.protocols.messages import Each, Protocol, narrow_type
from conformesh.protocols.predicting import Stretch, Terrain
from conformesh.protocols.site import Site
from conformesh.protocols.tree import Turns, grow


def tree_total(site: Site) -> Protocol[Total]:
    """Build the tree by messages, then add up over it."""
    levels = yield from grow(site)
    turns, depth = Turns(levels, len(site.here)), len(levels) - 1

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        x = np.ascontiguousarray(values, narrow_type(largest))  # no partial sum exceeds `largest`
        table = x.reshape(len(x), -1)
        for at, level in enumerate(reversed(levels[1:]), 1):  # up: children of one level speak at the same time
            heard = yield Each(x, level.members, turns.quiet(at, level.members if at > 1 else None))
            if len(level.children):
                said = heard.said_by(level.parent_rows, level.children)
                add_rows(table, level.parents, said.reshape(-1, table.shape[1]))
        for at, (level, below) in enumerate(pairwise(levels), depth + 1):  # down: who has heard the total passes it on
            heard = yield Each(x, level.speaking_down, turns.quiet(at, level.speaking_down))
            if len(below.members):
                x[below.members] = heard.said_by(below.rows, below.above)
        return x

    return total


def tree_price(site: Site) -> Price:
    """Twice the depth in rounds, two numbers a device."""
    depth = site.network.centre_depth
    return Price(2 * depth, 2.0 * min(depth, 1), depth + 1)


def tree_setup(terrain: Terrain) -> list[Stretch]:
    """Predict the building of the tree: everybody speaks once, and sends frames until then."""
    tree, bits = terrain.tree, bits_of(terrain.devices)
    if tree.depth == 0:
        return []
    built = Stretch("build the tree", tree.depth + 1, 1, bits, spoken=1, most=1, copies=tree.growing)
    return [replace(built, silent=tree.mean_depth, announced=1 - tree.ends[0])]


def tree_stretches(terrain: Terrain, what: str, numbers: int, largest: int | None) -> list[Stretch]:
    """Predict a sum: all but the root speak on the way up, all that have a child on the way down.

    Who does not speak in the first round says in it until when it is silent, and everybody does when it speaks, unless
    its next turn, or the end, comes in the next round (`Turns`).
    """
    tree, bits, K = terrain.tree, bits_of(largest), terrain.devices
    if tree.depth == 0:
        return []
    deep, (last, above, parents) = float(tree.depth > 1), tree.ends
    up = Stretch(what, tree.depth, numbers, bits, (K - 1) / K, 1, tree.up)
    down = Stretch(what, tree.depth, numbers, bits, tree.parents, deep, tree.down)
    return [
        replace(up, silent=1 - last, announced=(1 - last - above) + (1 - 1 / K)),
        replace(down, silent=0.0, announced=tree.parents - parents),
    ]
