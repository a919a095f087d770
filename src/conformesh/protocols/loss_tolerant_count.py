"""A count that bears lost messages: a few thresholds, counted over a tree by devices that repeat themselves.

The root, a centre of the map, draws up a ladder of thresholds around its estimate. The ladder spreads to everybody;
each device counts its own scores at the rungs, waits for the counts of its children in the tree, and says the sum; the
root then knows the counts of all, and the smallest rung that reaches the rank spreads to everybody. Nobody waits for a
message: every round every device says all that its neighbours may still miss. What is said of one thing never changes,
so that it does not matter how often it arrives, nor in which round.

Assumes     graph connected, its map known; K and every n_k known
Guarantees  who has heard the answer holds a threshold with the counted number of scores at or below it; who has not
            holds +inf. Nobody holds anything else, whichever messages were lost
Message     three numbers, then as many as rungs from those whose part is counted, then two; who has nothing to say is
            silent
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

_HALVINGS = 14  # rungs on each side of the estimate, each half as far away as the one before
LADDER_SIZE = 2 * _HALVINGS + 2
_ENDS_MESSAGE, _LADDER_MESSAGE, _COUNTS_MESSAGE, ANSWER_MESSAGE = range(4)  # what a message is about; its first number


def default_count_rounds(network: Network) -> int:
    """Return rounds in which ladder, counts and answer cross the tree even where two of three messages get lost."""
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
        child, at = np.unique(network.receivers[up], return_index=True)  # of several the smallest, as `tree` has it
        parent = network.indices[up[at]].astype(np.int64)
        mine = np.isin(parent, block.rows)
        order = np.lexsort((child[mine], parent[mine]))
        child, parent = child[mine][order], parent[mine][order]
        root = np.flatnonzero(block.rows == network.centre)
        return cls(int(root[0]) if len(root) else -1, child, block.local(parent), parent * K + child)

    def which(self, receiver: Ints, sender: Ints, devices: int) -> Ints:
        """Return which child of its receiver each sender is; -1 where it is none."""
        if not len(self.keys):
            return np.full(len(receiver), -1)
        asked = receiver * devices + sender
        at = np.minimum(np.searchsorted(self.keys, asked), len(self.keys) - 1)
        return np.where(self.keys[at] == asked, at, -1)


class TreeSums:
    """What devices add up over the tree, each with its children: complete once all children's are there."""

    def __init__(self, tree: ShortestPathTree, own: Floats, add: Any) -> None:
        self.tree, self.values, self._add = tree, own, add
        self.heard = np.zeros(len(tree.children), dtype=np.bool_)
        self.missing = np.bincount(tree.parents, minlength=len(own))

    @property
    def complete(self) -> Bools:
        """Whose sum holds all devices below it."""
        return np.asarray(self.missing == 0)

    def news(self, which: Ints) -> Bools:
        """Return which messages are from children that were not heard before."""
        return np.asarray((which >= 0) & ~self.heard[which] if len(self.heard) else np.zeros(len(which), np.bool_))

    def take(self, which: Ints, values: Floats) -> None:
        """Add what these children say, each once."""
        self.heard[which] = True
        parents = self.tree.parents[which]
        self._add.at(self.values, parents, values)
        np.subtract.at(self.missing, parents, 1)


class LossTolerantCount:
    """The devices here while they count, for all problems (trial, alpha) at once."""

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
        """How many numbers the ends of the range take."""
        return 3 * self.many

    # --- before the estimate is ready: the ends -------------------------------------------------------------------

    def ends_said(self) -> Floats:
        """Return what each device says of the ends: NaN until it has heard of them from all below it."""
        return np.where(self.ends.complete[:, None], self.ends.values, np.nan)

    def hear_ends(self, told: Any, about: Bools | None = None, first: int = 0) -> None:
        """Take the ends from children, in these messages (by default all) from their number `first` on."""
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
        """Count at rungs around the root's estimate (devices here, problems), for some rounds."""
        for _ in range(rounds):
            self._lead(estimates)
            self._hear((yield self._message()))
        self._lead(estimates)

    def _lead(self, estimates: Floats) -> None:
        """Let the root draw up the ladder once it knows the ends, and say the answer once it knows the counts."""
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
        """Let these devices know the ladder, and count their own scores at its rungs."""
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
        """Return what each device says: the latest that it knows, and what those before it in turn may miss."""
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
    """Return a mask of the first that is true: all of them say the same."""
    out = np.zeros_like(mask)
    out[int(np.argmax(mask))] = True
    return out


def _read_numbers(told: Any, which: Bools, places: Ints) -> Floats:
    """Return some numbers of some messages, (messages, places)."""
    part = told.said_by(np.asarray(told.receiver)[which], np.asarray(told.sender)[which])
    numbers: Floats = part.floats(np.arange(int(which.sum())), np.tile(places, (int(which.sum()), 1)))
    return numbers


def _check_message(said: bytes) -> None:
    """Refuse what nobody could say here."""
    if len(said) % 8 or not said or np.frombuffer(said[:8])[0] not in range(4):
        raise ValueError(f"a message must be float64 numbers, the first of them from 0 to 3, got {len(said)} bytes")
