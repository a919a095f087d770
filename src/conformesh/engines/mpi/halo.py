"""Halos: what a block of devices must hear from other ranks, and where its neighbours then stand.

Pure arrays, no message passing: every rank works out its own `Halo` from the map and from who hosts whom.

Columns 0 .. n-1 are the n devices hosted here, ascending; behind them stand the *ghosts*, the devices of other ranks
that have a neighbour here, by rank and then ascending. A row lists its neighbours in ascending *global* order whatever
their columns are, so a sum has the bits of the simulator's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.graph.network import Network
from conformesh.protocols.block import edge_positions

_Rows = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class _HaloSlice:
    """Some rows of a block, in compressed rows, and which of the block's directed edges are theirs."""

    indptr: Ints
    indices: _Rows
    edges: Ints


@dataclass(frozen=True, eq=False)
class Halo:
    """One rank's view of the graph.

    Attributes
    ----------
    rows
        Rows of the devices hosted here, ascending.
    peers
        The other ranks that host a neighbour, ascending.
    sends
        For each peer the columns of the devices it must hear of, ascending.
    ghosts, cuts
        Rows of the ghosts; those of peer i are ``ghosts[cuts[i]:cuts[i + 1]]``, in the order that it sends them.
    inner
        All rows; those with a ghost among their neighbours are empty here, so that a kernel can run on the block's own
        values before (and while) the others' arrive.
    border, outer, near
        The columns of the rows left out, these rows, and the table their `indices` point into: first the border's own
        values, then other values from here (`near` are the columns of both), then the ghosts'.
    hearers
        For each column, own or ghost, the devices here that hear it.
    """

    rows: Ints
    peers: list[int]
    sends: list[Ints]
    ghosts: Ints
    cuts: Ints
    inner: _HaloSlice
    border: Ints
    outer: _HaloSlice
    near: Ints
    hearers: _HaloSlice

    @classmethod
    def of(cls, network: Network, owners: Ints, rank: int) -> Halo:
        """Work out the halo of one rank."""
        here = np.flatnonzero(owners == rank)
        edges = edge_positions(network, here)
        degree = network.degree[here]
        receiver = np.repeat(np.arange(len(here)), degree)
        sender = network.indices[edges].astype(np.int64)
        host = owners[sender]
        outside = host != rank

        ghosts = np.unique(sender[outside])
        ghosts = ghosts[np.lexsort((ghosts, owners[ghosts]))]
        peers = np.unique(owners[ghosts])
        cuts = np.searchsorted(owners[ghosts], [*peers, np.iinfo(np.int64).max])
        sends = [np.unique(receiver[host == peer]) for peer in peers]

        column = np.full(network.devices, -1, dtype=np.int64)
        column[here] = np.arange(len(here))
        column[ghosts] = len(here) + np.arange(len(ghosts))
        columns = column[sender]

        border = np.unique(receiver[outside])
        at_border = np.zeros(len(here), dtype=bool)
        at_border[border] = True
        left_out = at_border[receiver]
        inner = _HaloSlice(
            _starts(np.where(at_border, 0, degree)), _compact(columns[~left_out]), np.flatnonzero(~left_out)
        )

        own = np.unique(columns[left_out & ~outside])
        near = np.concatenate([border, own[~at_border[own]]])
        place = np.full(len(here) + len(ghosts), -1, dtype=np.int64)
        place[near] = np.arange(len(near))
        place[len(here) :] = len(near) + np.arange(len(ghosts))
        outer = _HaloSlice(_starts(degree[border]), _compact(place[columns[left_out]]), np.flatnonzero(left_out))

        by_column = np.argsort(columns, kind="stable")  # stable: receivers stay ascending
        heard = np.bincount(columns, minlength=len(here) + len(ghosts))
        hearers = _HaloSlice(_starts(heard), _compact(receiver[by_column]), by_column)
        return cls(here, peers.tolist(), sends, ghosts, cuts, inner, border, outer, near, hearers)

    @cached_property
    def columns(self) -> Ints:
        """Rows of the devices by column: those here, then the ghosts."""
        return np.concatenate([self.rows, self.ghosts])

    @cached_property
    def _audience(self) -> Ints:
        """How many devices here hear each column."""
        return np.diff(self.hearers.indptr)

    def route(self, speakers: Ints) -> tuple[Ints, Ints]:
        """Return who here hears which of the speaking columns: receiver columns, and places in `speakers`.

        Sorted by receiver, then by the sender's global row; the work follows the speakers.
        """
        starts, counts = self.hearers.indptr[speakers], self._audience[speakers]
        which = np.repeat(np.arange(len(speakers)), counts)
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        receiver = self.hearers.indices[np.repeat(starts, counts) + within].astype(np.int64)
        order = np.lexsort((self.columns[speakers][which], receiver))
        return receiver[order], which[order]


def _starts(counts: Ints) -> Ints:
    indptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=indptr[1:])
    return indptr


def _compact(columns: Ints) -> _Rows:
    return np.ascontiguousarray(columns, dtype=np.int32)
