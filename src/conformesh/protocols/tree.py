"""A spanning tree, grown by messages: what sums and schedules travel along.

The root is a centre of the map: nobody has a shorter way to the farthest device, so that no tree of shortest paths is
less deep. It speaks; whoever hears for the first time takes the smallest speaker as parent and speaks next, naming its
parent, so that parents learn their children.

Assumes     graph connected; its centre and the centre's eccentricity known (how many rounds to wait)
Guarantees  every device on one level, as many hops from the root as there are between them
Message     the parent's row once, in as few bits as hold K; -1 from the root
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformesh.protocols.messages import Each, Protocol, narrow_type
from conformesh.protocols.site import Site

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Level:
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


def grow(site: Site) -> Protocol[list[Level]]:
    """Build the tree by messages, level by level, and return its levels; the first holds the root."""
    depth = site.network.centre_depth
    parent = np.full(len(site.here), -1, dtype=narrow_type(site.devices))
    found = site.here == site.network.centre
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
        Level(
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
