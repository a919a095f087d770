"""A spanning tree of shortest paths, grown by messages. Sums and waves travel along it.

The root is a centre of the map: its farthest device is as near as possible, so no tree of shortest paths is less deep.
It sends first; a device that receives something for the first time takes the sender with the smallest row as its parent
and sends next, with its parent's row, so that parents learn their children.

Assumes     graph connected; its centre and the centre's eccentricity known (how many rounds to wait)
Guarantees  every device on one level, as many hops from the root as there are between them
Message     the parent's row once, in as few bits as hold K; -1 from the root
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.protocols.block import Block
from conformesh.protocols.messages import Each, Packets, Protocol, Silence, narrowest_integer


@dataclass(frozen=True, eq=False)
class TreeLevel:
    """The local devices of one level of the tree, and their parents and children.

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


@dataclass(eq=False)
class PartialTree:
    """A tree whose deepest devices have chosen a parent and have not told it yet.

    Attributes
    ----------
    depth
        Levels below the root.
    deepest
        Places of the devices of the last level.
    parent
        The parent (global row) of each device here; -1 for the root.
    """

    block: Block
    depth: int
    deepest: Ints
    parent: NDArray[Any]
    has_child: NDArray[np.bool_]
    grown: list[tuple[Ints, Ints, Ints]]

    @property
    def name_bytes(self) -> int:
        """Number of bytes for the row of a parent."""
        return -(-(self.block.devices - 1).bit_length() // 8)

    def named(self, packets: Packets) -> Packets:
        """Return the packets of the deepest devices, each behind the row of its parent."""
        size, count = self.name_bytes, len(packets)
        offsets = packets.offsets + size * np.arange(count + 1)
        values = np.empty(int(offsets[-1]), np.uint8)
        head = np.zeros(len(values), dtype=bool)
        names = self.parent[self.deepest].astype("<i8").view(np.uint8).reshape(count, 8)
        for byte in range(size):
            values[offsets[:-1] + byte] = names[:, byte]
            head[offsets[:-1] + byte] = True
        values[~head] = packets.values
        return Packets(values, offsets)

    def complete(self, receiver: Ints, sender: Ints, named: NDArray[Any]) -> list[TreeLevel]:
        """Return the levels, the root's first, once each of the deepest has named its parent to who hears it."""
        self._join(self.deepest, receiver, sender, named)
        return [
            TreeLevel(
                members,
                self.block.rows[members],
                self.parent[members].astype(np.int64),
                children,
                parents,
                self.block.rows[parents],
                members[self.has_child[members]],
            )
            for members, children, parents in self.grown
        ]

    def _join(self, members: Ints, receiver: Ints, sender: Ints, named: NDArray[Any]) -> None:
        """Record the devices of a level that name a local device as their parent."""
        mine = np.flatnonzero(named == receiver)
        parents = self.block.local(receiver[mine])
        self.has_child[parents] = True
        self.grown.append((members, sender[mine], parents))


class SpeakingTurns:
    """The rounds in which local devices send in a wave up to the root and down again, 1 to twice the depth.

    Level l sends in round depth - l + 1 and, where it has children, again in round depth + l + 1. All other rounds can
    be announced as silent, so that no device waits for them.
    """

    def __init__(self, levels: list[TreeLevel], devices: int) -> None:
        depth = len(levels) - 1
        self._everyone, self._over = np.arange(devices), 2 * depth + 1
        self._up = np.full(devices, self._over)
        self._down = self._up.copy()
        for at, level in enumerate(levels):
            self._up[level.members] = depth - at + 1
            self._down[level.speaking_down] = depth + at + 1

    def quiet(self, round_: int, speakers: Ints | None) -> Silence:
        """Return how long these speakers (None: all local devices) are silent after a round of the wave."""
        places = self._everyone if speakers is None else speakers
        up, down = self._up[places], self._down[places]
        after = np.where(up > round_, up, np.where(down > round_, down, self._over))
        return Silence(places, after - round_ - 1)


def explore_tree(block: Block) -> Protocol[PartialTree]:
    """Build the tree by messages, level by level; the last level has its parents still to name."""
    here, depth = len(block.rows), block.network.centre_depth
    found = block.rows == block.network.centre
    parent = np.full(here, -1, dtype=narrowest_integer(block.devices))
    sapling = PartialTree(block, depth, np.flatnonzero(found), parent, np.zeros(here, dtype=bool), [])
    for left in reversed(range(depth)):
        quiet = Silence(sapling.deepest, np.full(len(sapling.deepest), left + 1))  # until the last level has spoken
        heard = yield Each(parent, sapling.deepest, quiet)
        sapling._join(sapling.deepest, heard.receiver, heard.sender, heard.values)
        receiver = block.local(heard.receiver)
        first = np.flatnonzero(~found[receiver])
        new, at = np.unique(receiver[first], return_index=True)  # senders ascend, so the first is the smallest
        parent[new] = heard.sender[first][at]
        found[new] = True
        sapling.deepest = new
    return sapling


def grow_tree(block: Block) -> Protocol[list[TreeLevel]]:
    """Build the tree by messages and return its levels; the first holds the root."""
    sapling = yield from explore_tree(block)
    if not sapling.depth:
        return sapling.complete(*[np.empty(0, np.int64)] * 3)
    heard = yield Each(sapling.parent, sapling.deepest)
    return sapling.complete(heard.receiver, heard.sender, heard.values)
