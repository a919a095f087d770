"""Halos: the devices of other ranks that a block of devices needs, and the graph of the block together with them.

A rank computes its own devices only, but their neighbours may be on other ranks. These neighbours are its *ghosts*, and
together they are its halo; in each round `Exchange` receives their rows and nothing more. The *border* are the local
devices with a ghost among their neighbours; all others can be computed before the ghosts' rows arrive.

Pure arrays, no message passing: every rank computes its own `Halo` from the graph and from the rank of every device.

Columns 0 .. n-1 are the n local devices, ascending; the ghosts follow, by rank and then ascending. A row lists its
neighbours in ascending *global* order, whatever their columns are, so a sum has the same bits as in the simulator.
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
    """Some rows of a block, in compressed sparse row form, and the places of their edges among the block's."""

    indptr: Ints
    indices: _Rows
    edges: Ints


@dataclass(frozen=True, eq=False)
class Halo:
    """One rank's view of the graph.

    Attributes
    ----------
    rows
        Rows of the local devices, ascending.
    peers
        The other ranks that have a neighbour of a local device, ascending.
    sends
        For each peer the columns of the devices whose rows it needs, ascending.
    ghosts, cuts
        Rows of the ghosts; those of peer i are ``ghosts[cuts[i]:cuts[i + 1]]``, in the order that it sends them.
    inner
        All rows; those at the border are empty in it, so that a kernel can run on the local values before the ghosts'
        values arrive.
    border, outer, near
        The columns of the border, its rows, and the table that their `indices` point into: first the border's own
        values, then other local values (`near` are the columns of both), then those of the ghosts.
    hearers
        For each column, local or ghost, the local devices that are its neighbours.
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
        """Return the halo of one rank."""
        here = np.flatnonzero(owners == rank)
        edges = edge_positions(network, here)
        degree = network.degree[here]
        receiver = np.repeat(np.arange(len(here)), degree)
        sender = network.indices[edges].astype(np.int64)
        host = owners[sender]
        outside = host != rank

        # By rank first: the rows of one peer arrive together and are copied in one piece.
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
        audience = np.bincount(columns, minlength=len(here) + len(ghosts))
        hearers = _HaloSlice(_starts(audience), _compact(receiver[by_column]), by_column)
        return cls(here, peers.tolist(), sends, ghosts, cuts, inner, border, outer, near, hearers)

    @cached_property
    def columns(self) -> Ints:
        """Rows of the devices by column: the local ones, then the ghosts."""
        return np.concatenate([self.rows, self.ghosts])

    @cached_property
    def _audience(self) -> Ints:
        """How many local neighbours each column has."""
        return np.diff(self.hearers.indptr)

    def route(self, speakers: Ints) -> tuple[Ints, Ints]:
        """Return the local receivers of these columns' messages: receiver columns, and places in `speakers`.

        Sorted by receiver, then by the sender's global row; the work grows with the speakers.
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
