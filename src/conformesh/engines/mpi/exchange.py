"""Exchanges between ranks: the rows that other ranks need, along the edges of the rank graph and nowhere else.

A round is one neighbourhood collective (`Ineighbor_alltoallv`), which does not block: kernels work on the block's own
rows meanwhile, and MPI may send to all peers at once. Ranks that are not neighbours do not wait for each other.

Every message begins with a stamp of the round and the question. Each rank decides by itself which question comes next;
should two ever decide differently, the stamps differ and the job ends with an error, not with a wrong number.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Array, Ints
from conformesh.engines.mpi.halo import Halo
from conformesh.protocols.messages import Packets

_STAMP = 8  # bytes; segments are multiples of it, so that numbers of every type are aligned
_MOST_BUFFERS = 16  # shapes whose buffers are kept: a protocol has a few, and repeats them in every round


class DifferentQuestions(RuntimeError):  # noqa: N818 - reads as a sentence where it is raised
    """Two ranks are not in the same round of the same protocol."""


@dataclass(frozen=True, eq=False)
class _Buffers:
    """Room for one shape of message: a stamp and a table of rows for every peer, each way."""

    out: list[Any]  # as MPI wants it: bytes, counts, displacements, type
    into: list[Any]
    stamps_out: list[Array]
    stamps_in: list[Array]
    rows_out: list[Array]
    rows_in: list[Array]


class Exchange:
    """Moves rows between one rank and its peers.

    Parameters
    ----------
    mpi, comm
        The module ``mpi4py.MPI``, and the communicator of all ranks.
    halo
        The rows that this rank sends and receives.
    """

    def __init__(self, mpi: Any, comm: Any, halo: Halo) -> None:
        self.mpi, self.halo, self.rank = mpi, halo, comm.rank
        self.graph = comm.Create_dist_graph_adjacent(halo.peers, halo.peers, reorder=False)
        self._rows_out = [len(rows) for rows in halo.sends]
        self._rows_in = np.diff(halo.cuts).tolist()
        self._buffers: dict[tuple[str, int], _Buffers] = {}
        one = [1] * len(halo.peers)
        self._counts = self._new_buffers(np.dtype(np.int64), 1, one, one)

    def start(self, stamp: int, table: Array) -> _Pending:
        """Send the rows of a C-ordered table (devices here, columns) to the ranks that need them."""
        buffers = self._room(table.dtype, table.shape[1])
        for stamps, rows, sends in zip(buffers.stamps_out, buffers.rows_out, self.halo.sends, strict=True):
            stamps[0] = stamp
            np.take(table, sends, axis=0, out=rows, mode="clip")  # clip: raise would take a detour over a copy
        return _Pending(self, stamp, buffers, self.graph.Ineighbor_alltoallv(buffers.out, buffers.into))

    def agree(self, stamp: int) -> None:
        """Make sure that the peers are in the same round, without sending anything but the stamp."""
        self.start(stamp, np.empty((len(self.halo.rows), 0), dtype=np.uint8)).rows()

    def exchange_rows(self, stamp: int, speakers: Ints, rows: Array) -> tuple[Ints, Array]:
        """Send the speakers' rows, (speakers, columns); return the columns of ghosts that sent any, with their rows.

        The first message has the number of rows, the second the rows and their places: MPI must know the size of a
        message before it arrives, and both messages grow with the speakers and not with the halo.
        """
        chosen = self._speakers_by_peer(speakers)
        buffers = self._counts
        for stamps, counts_out, (places, _) in zip(buffers.stamps_out, buffers.rows_out, chosen, strict=True):
            stamps[0] = stamp
            counts_out[0, 0] = len(places)
        received = _Pending(self, stamp, buffers, self.graph.Ineighbor_alltoallv(buffers.out, buffers.into)).rows()
        counts = [int(counts_in[0, 0]) for counts_in in received]

        width = rows.shape[1] * rows.dtype.itemsize
        out = [
            np.concatenate([_bytes(places), _bytes(rows[which]), _padding(len(which) * width)])
            for places, which in chosen
        ]
        arriving = [_segment(count, width) for count in counts]
        into = self._exchange_bytes(out, arriving)

        columns, ghost_rows = [np.empty(0, dtype=np.int64)], [np.empty((0, rows.shape[1]), dtype=rows.dtype)]
        for peer, (start, count) in enumerate(zip(_starts(arriving), counts, strict=True)):
            middle = start + 8 * count  # behind the places, of 8 bytes each
            columns.append(len(self.halo.rows) + self.halo.cuts[peer] + into[start:middle].view(np.int64))
            values = into[middle : middle + count * width].view(rows.dtype)
            ghost_rows.append(values.reshape(count, rows.shape[1]))
        return np.concatenate(columns), np.concatenate(ghost_rows)

    def exchange_packets(self, stamp: int, speakers: Ints, packets: Packets) -> tuple[Ints, Packets]:
        """Send the speakers' strings of bytes; return the columns of the ghosts that sent some, and their strings.

        The lengths are exchanged first, as rows, so that every rank knows how many bytes come from each peer.
        """
        ghosts, lengths = self.exchange_rows(stamp, speakers, np.diff(packets.offsets)[:, None])
        out = [packets.take(which).values for _, which in self._speakers_by_peer(speakers)]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ends = offsets[np.searchsorted(ghosts, len(self.halo.rows) + self.halo.cuts)]  # ghosts are ordered by peer
        return ghosts, Packets(self._exchange_bytes(out, np.diff(ends).tolist()), offsets)

    def _speakers_by_peer(self, speakers: Ints) -> list[tuple[Ints, Ints]]:
        """Return for every peer the speakers among the rows it needs: places in these rows, and among the speakers."""
        speaks = np.zeros(len(self.halo.rows), dtype=np.bool_)
        speaks[speakers] = True
        chosen = [(sends, np.flatnonzero(speaks[sends])) for sends in self.halo.sends]
        return [(places, np.searchsorted(speakers, sends[places])) for sends, places in chosen]

    def _exchange_bytes(self, out: list[NDArray[np.uint8]], arriving: list[int]) -> NDArray[np.uint8]:
        """Send bytes to every peer; return their bytes, one peer after the other; `arriving` are their sizes."""
        into = np.empty(sum(arriving), dtype=np.uint8)
        sent = np.concatenate([*out, np.empty(0, dtype=np.uint8)])
        sizes = [len(piece) for piece in out]
        self._wait(self.graph.Ineighbor_alltoallv(self._spec(sent, sizes), self._spec(into, arriving)))
        return into

    def close(self) -> None:
        """Free the communicator; all ranks must do so."""
        self.graph.Free()

    def _room(self, dtype: np.dtype[Any], columns: int) -> _Buffers:
        """Return the buffers for rows of this shape; they are made once and used again."""
        key = (dtype.str, columns)
        if key not in self._buffers:
            if len(self._buffers) >= _MOST_BUFFERS:
                self._buffers.pop(next(iter(self._buffers)))
            self._buffers[key] = self._new_buffers(dtype, columns, self._rows_out, self._rows_in)
        return self._buffers[key]

    def _new_buffers(self, dtype: np.dtype[Any], columns: int, rows_out: list[int], rows_in: list[int]) -> _Buffers:
        out, stamps_out, tables_out = self._new_tables(dtype, columns, rows_out)
        into, stamps_in, tables_in = self._new_tables(dtype, columns, rows_in)
        return _Buffers(out, into, stamps_out, stamps_in, tables_out, tables_in)

    def _new_tables(
        self, dtype: np.dtype[Any], columns: int, rows: list[int]
    ) -> tuple[list[Any], list[Array], list[Array]]:
        width = columns * dtype.itemsize
        sizes = [_STAMP + _padded(count * width) for count in rows]
        room = np.zeros(sum(sizes), dtype=np.uint8)
        stamps, tables = [], []
        for start, count in zip(_starts(sizes), rows, strict=True):
            begin = start + _STAMP
            stamps.append(room[start:begin].view(np.int64))
            tables.append(room[begin : begin + count * width].view(dtype).reshape(count, columns))
        return self._spec(room, sizes), stamps, tables

    def _spec(self, data: Array, sizes: list[int]) -> list[Any]:
        return [data, sizes, _starts(sizes), self.mpi.BYTE]

    def _wait(self, request: Any) -> None:
        try:
            request.Wait()
        except self.mpi.Exception as problem:  # a longer message than this rank expects: another question
            raise DifferentQuestions(f"rank {self.rank} could not hear its neighbours: {problem}") from None


@dataclass(frozen=True, eq=False)
class _Pending:
    """Rows on their way."""

    exchange: Exchange
    stamp: int
    buffers: _Buffers
    request: Any

    def rows(self) -> list[Array]:
        """Wait, and return what each peer sent; it is overwritten by the next exchange of this shape."""
        self.exchange._wait(self.request)
        for peer, received in zip(self.exchange.halo.peers, self.buffers.stamps_in, strict=True):
            if received[0] != self.stamp:
                raise DifferentQuestions(
                    f"rank {self.exchange.rank} and rank {peer} ask different questions in round "
                    f"{self.stamp & 0x7FFFFFFF}: the protocol took different turns on them, and there is no result"
                )
        return self.buffers.rows_in


def question_stamp(round_: int, question: tuple[Any, ...]) -> int:
    """Return one number for a round and a question: what is asked, in which type and shape."""
    return zlib.crc32(repr(question).encode()) << 31 | (round_ & 0x7FFFFFFF)


def _bytes(values: Array) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _padded(size: int) -> int:
    return -(-size // _STAMP) * _STAMP


def _padding(size: int) -> NDArray[np.uint8]:
    return np.zeros(_padded(size) - size, dtype=np.uint8)


def _segment(count: int, width: int) -> int:
    """Return the bytes of so many rows with their places in front."""
    return 8 * count + _padded(count * width)


def _starts(sizes: list[int]) -> list[int]:
    return [0, *np.cumsum(sizes[:-1], dtype=np.int64).tolist()] if sizes else []
