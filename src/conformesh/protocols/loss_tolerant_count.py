"""A count that tolerates lost messages: at a few thresholds, over a tree, by devices that repeat what may be missing.

The root, a centre of the map, chooses a *ladder*: thresholds around its estimate at distances that halve. The ladder
spreads to all devices. Each counts its own scores at these thresholds, adds the counts of its children in the tree, and
sends the sum. Once the root has all counts, the smallest threshold that reaches the rank spreads to all devices. No
device waits for a message: in every round every device sends all that its neighbours may still miss. Each of these
values is final when it is first sent, so it does not matter how often or in which round it arrives.

Assumes     graph connected, its map known; K and every n_k known
Guarantees  a device that received the answer holds a threshold with the counted number of scores at or below it; the
            others hold +inf. This is true whichever messages were lost
Message     three numbers (the ladder); with the counts of a subtree one more per threshold; at the end two (the answer)
Departures  not from a paper
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from conformesh.common.array_types import Bools, Floats, Ints
from conformesh.graph.network import Network
from conformesh.kernels.graph import breadth_first
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Block
from conformesh.protocols.messages import Packets, Protocol, Tell

# Thresholds on each side of the estimate, each at half the distance of the one before. The outermost ones enclose all
# local quantiles; the innermost are 1/8192 of that distance from the estimate.
_HALVINGS = 14
LADDER_SIZE = 2 * _HALVINGS + 2  # and the estimate itself, and the largest score
_ENDS_MESSAGE, _LADDER_MESSAGE, _COUNTS_MESSAGE, ANSWER_MESSAGE = range(4)  # kind of a message, its first number


def default_count_rounds(network: Network) -> int:
    """Return rounds in which ladder, counts and answer cross the tree even if two of three messages are lost.

    Each of the three must cross `centre_depth` links, and at that loss a link takes 3 rounds on average: 9 rounds for
    each level. One more for each level and 60 rounds are a margin for the slowest of many links.
    """
    return 10 * network.centre_depth + 60


@dataclass(frozen=True, eq=False)
class ShortestPathTree:
    """The spanning tree of shortest paths from the centre, which every device reads off the map.

    Attributes
    ----------
    root
        The place of the root among the devices here; -1 if it is elsewhere.
    children, parents
        Rows of all children of devices here, ascending by parent and child, and the place of each one's parent here.
    keys
        Parent and child as one number, ascending.
    """

    root: int
    children: Ints
    parents: Ints
    keys: Ints

    @classmethod
    def of(cls, block: Block) -> ShortestPathTree:
        """Walk the map from its centre."""
        network, K = block.network, block.devices
        levels, queue = np.empty(K, dtype=np.int64), np.empty(K, dtype=np.int64)
        breadth_first(network.indptr, network.indices, network.centre, levels, queue)
        up = np.flatnonzero(levels[network.indices] == levels[network.receivers] - 1)
        child, at = np.unique(
            network.receivers[up], return_index=True
        )  # of several possible parents the smallest row, as in `tree`
        parent = network.indices[up[at]].astype(np.int64)
        mine = np.isin(parent, block.rows)
        order = np.lexsort((child[mine], parent[mine]))
        child, parent = child[mine][order], parent[mine][order]
        root = np.flatnonzero(block.rows == network.centre)
        return cls(int(root[0]) if len(root) else -1, child, block.local(parent), parent * K + child)

    def which(self, receiver: Ints, sender: Ints, devices: int) -> Ints:
        """Return the index of each sender among the children; -1 where it is no child of the receiver."""
        if not len(self.keys):
            return np.full(len(receiver), -1)
        asked = receiver * devices + sender
        at = np.minimum(np.searchsorted(self.keys, asked), len(self.keys) - 1)
        return np.where(self.keys[at] == asked, at, -1)


class TreeSums:
    """Sums over subtrees: a device's own values and those of its children, complete once all children have reported."""

    def __init__(self, tree: ShortestPathTree, own: Floats, add: Any) -> None:
        self.tree, self.values, self._add = tree, own, add
        self.heard = np.zeros(len(tree.children), dtype=np.bool_)
        self.missing = np.bincount(tree.parents, minlength=len(own))

    @property
    def complete(self) -> Bools:
        """Mark the devices whose sum contains all devices below them."""
        return np.asarray(self.missing == 0)

    def news(self, which: Ints) -> Bools:
        """Mark the messages from children that have not reported before."""
        return np.asarray((which >= 0) & ~self.heard[which] if len(self.heard) else np.zeros(len(which), np.bool_))

    def take(self, which: Ints, values: Floats) -> None:
        """Add the reports of these children; `news` has excluded repeated ones, which would count twice."""
        self.heard[which] = True
        parents = self.tree.parents[which]
        self._add.at(self.values, parents, values)
        np.subtract.at(self.missing, parents, 1)


class LossTolerantCount:
    """State of the local devices during the count, for all problems (trial, alpha) at once."""

    def __init__(self, block: Block, samples: WeightedScores, quantiles: Floats, ranks: Ints) -> None:
        self.block, self.samples, self.many = block, samples, ranks.size
        self.tree, self.ranks = ShortestPathTree.of(block), ranks.ravel()
        here = len(block.rows)
        finite = np.isfinite(quantiles.reshape(here, -1)) & np.repeat(samples.sizes > 0, ranks.shape[1], axis=1)
        mine = quantiles.reshape(here, -1)
        top = np.repeat(samples.extremes()[1], ranks.shape[1], axis=1)
        own = [np.where(finite, mine, -np.inf), np.where(finite, -mine, -np.inf), top]
        self.ends = TreeSums(self.tree, np.concatenate(own, axis=1), np.maximum)
        self.ladder: Floats | None = None  # centre, reach and top, (3 problems,): the same for all who know it
        self.counts: TreeSums | None = None
        self.knows = np.zeros(here, dtype=np.bool_)  # who knows the ladder
        self.answer: Floats | None = None  # threshold and count, (2 problems,)
        self.answered = np.zeros(here, dtype=np.bool_)

    @property
    def width(self) -> int:
        """Number of values that describe the ends of the range, and also of those of a ladder."""
        return 3 * self.many

    # --- before the estimate is ready: the ends -------------------------------------------------------------------

    def ends_said(self) -> Floats:
        """Return the ends of the range that each device sends: NaN until all devices below it have reported."""
        return np.where(self.ends.complete[:, None], self.ends.values, np.nan)

    def hear_ends(self, told: Any, about: Bools | None = None, first: int = 0) -> None:
        """Add the ends that children report, in the marked messages (by default all) from number `first` on."""
        receiver, sender = np.asarray(told.receiver), np.asarray(told.sender)
        which = self.tree.which(receiver, sender, self.block.devices)
        fresh = self.ends.news(which)
        if about is not None:
            fresh = fresh & about
        if fresh.any():
            values = _read_numbers(told, fresh, first + np.arange(self.width))
            said = ~np.isnan(values).any(axis=1)
            self.ends.take(which[fresh][said], values[said])

    # --- the count ------------------------------------------------------------------------------------------------

    def run(self, estimates: Floats, rounds: int) -> Protocol[None]:
        """Count at thresholds around the root's estimate, of (devices here, problems), for `rounds` rounds."""
        for _ in range(rounds):
            self._lead(estimates)
            self._hear((yield self._message()))
        self._lead(estimates)

    def _lead(self, estimates: Floats) -> None:
        """At the root: choose the ladder once the ends are known, and the answer once all counts are there."""
        root = self.tree.root
        if root < 0:
            return
        if not self.knows[root] and self.ends.complete[root]:
            high, low, top = self.ends.values[root].reshape(3, -1)
            x = estimates[root]
            up, down = (np.maximum(np.where(np.isfinite(end), end, own), own) for end, own in ((high, x), (low, -x)))
            self._learn(np.array([root]), np.concatenate([x, up + down, top]))
        if self.counts is not None and not self.answered[root] and self.knows[root] and self.counts.complete[root]:
            counts = self.counts.values[root].reshape(LADDER_SIZE, self.many)
            reached = counts >= self.ranks
            at, each = reached.argmax(axis=0), np.arange(self.many)
            tau = np.where(reached.any(axis=0), ladder_thresholds(self._known).T[at, each], np.inf)
            count = np.where(reached.any(axis=0), counts[at, each], self.block.masses.sum(axis=0).repeat(self._levels))
            self._know(np.array([root]), np.concatenate([tau, count]))

    @property
    def _levels(self) -> int:
        return self.many // self.block.trials

    @property
    def _known(self) -> Floats:
        assert self.ladder is not None
        return self.ladder

    def _learn(self, places: Ints, ladder: Floats) -> None:
        """Store the ladder on these devices, and count their own scores at its thresholds."""
        if self.ladder is None:
            self.ladder = ladder
            trials = np.repeat(np.arange(self.block.trials), self._levels)
            own = self.samples.counts_of(trials, ladder_thresholds(ladder))  # (devices, rungs, problems)
            # float64 counts exactly: promises keep sums below 2^52
            self.counts = TreeSums(self.tree, own.reshape(len(own), -1).astype(np.float64), np.add)
        self.knows[places] = True

    def _know(self, places: Ints, answer: Floats) -> None:
        self.answer = answer
        self.answered[places] = True

    def _message(self) -> Tell:
        """Return the message of each device: the latest that it knows, with all that its receivers may still miss."""
        counted = self.knows & self.counts.complete if self.counts is not None else self.knows
        ends = self.ends.complete & ~self.knows
        kinds = np.select(
            [self.answered, counted, self.knows, ends],
            [ANSWER_MESSAGE, _COUNTS_MESSAGE, _LADDER_MESSAGE, _ENDS_MESSAGE],
            -1,
        )
        size = {
            _ENDS_MESSAGE: self.width,
            _LADDER_MESSAGE: self.width,
            _COUNTS_MESSAGE: self.width + LADDER_SIZE * self.many,
            ANSWER_MESSAGE: 2 * self.many,
        }
        speakers = np.flatnonzero(kinds >= 0)
        lengths = 1 + np.array([size[kind] for kind in range(4)])[kinds[speakers]]
        flat, starts = np.empty(int(lengths.sum())), np.cumsum(lengths) - lengths
        flat[starts] = kinds[speakers]
        for kind in range(4):
            some = kinds[speakers] == kind
            if some.any():
                flat[starts[some][:, None] + 1 + np.arange(size[kind])] = self._said(kind, speakers[some])
        offsets = np.concatenate([[0], 8 * np.cumsum(lengths)])
        return Tell(Packets(flat.view(np.uint8), offsets), speakers, lengths, _check_message)

    def _said(self, kind: int, places: Ints) -> Any:
        """Return the numbers of such messages of these devices."""
        if kind == _ENDS_MESSAGE:
            return self.ends.values[places]
        if kind == ANSWER_MESSAGE:
            return self.answer
        if kind == _LADDER_MESSAGE:
            return self.ladder
        assert self.counts is not None
        return np.concatenate([np.tile(self._known, (len(places), 1)), self.counts.values[places]], axis=1)

    def _hear(self, told: Any) -> None:
        receiver, sender = np.asarray(told.receiver), np.asarray(told.sender)
        kinds = told.floats(np.zeros(len(receiver), dtype=np.int64)).astype(np.int64)
        local = self.block.local(receiver)
        self.hear_ends(told, kinds == _ENDS_MESSAGE, 1)
        about = ((kinds == _LADDER_MESSAGE) | (kinds == _COUNTS_MESSAGE)) & ~self.knows[local]
        if about.any():
            said = _read_numbers(told, _only_first(about), 1 + np.arange(self.width))[0]
            self._learn(np.unique(local[about]), said)
        which = self.tree.which(receiver, sender, self.block.devices)
        if self.counts is not None:
            fresh = (kinds == _COUNTS_MESSAGE) & self.counts.news(which)
            if fresh.any():
                values = _read_numbers(told, fresh, 1 + self.width + np.arange(LADDER_SIZE * self.many))
                self.counts.take(which[fresh], values)
        about = (kinds == ANSWER_MESSAGE) & ~self.answered[local]
        if about.any():
            self._know(
                np.unique(local[about]), _read_numbers(told, _only_first(about), 1 + np.arange(2 * self.many))[0]
            )


def ladder_thresholds(ladder: Floats) -> Floats:
    """Return the thresholds that are counted, (problems, RUNGS), ascending: around a centre, and the largest score."""
    centre, reach, top = ladder.reshape(3, -1, 1)
    steps = reach * 0.5 ** np.arange(_HALVINGS)
    inner = np.concatenate([centre - steps, centre, centre + steps[:, ::-1]], axis=1)
    return np.sort(np.concatenate([np.minimum(inner, top), top], axis=1), axis=1)


def _only_first(mask: Bools) -> Bools:
    """Return a mask of the first true entry: all of these messages have the same content."""
    out = np.zeros_like(mask)
    out[int(np.argmax(mask))] = True
    return out


def _read_numbers(told: Any, which: Bools, places: Ints) -> Floats:
    """Return some numbers of some messages, (messages, places)."""
    part = told.said_by(np.asarray(told.receiver)[which], np.asarray(told.sender)[which])
    numbers: Floats = part.floats(np.arange(int(which.sum())), np.tile(places, (int(which.sum()), 1)))
    return numbers


def _check_message(said: bytes) -> None:
    """Raise `ValueError` for bytes that cannot be a message of this protocol."""
    if len(said) % 8 or not said or np.frombuffer(said[:8])[0] not in range(4):
        raise ValueError(f"a message must be float64 numbers, the first of them from 0 to 3, got {len(said)} bytes")
