"""The MPI engine: a block of devices per rank, the simulator's protocols and the simulator's bits.

A rank has its devices' scores and the graph. It answers a protocol's questions from its own rows and from the rows of
neighbours on other ranks (the halo), which `Exchange` receives; nothing else is sent while a protocol runs. Results are
gathered after the last round, and that is not on the ledger.

    mpiexec -n 8 conformesh calibrate scores/ --engine mpi

A rank that fails alone prints why and stops the job with exit code 1, so that nobody waits for it. What fails on every
rank alike (an option that does not exist) is an ordinary error on each.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np

from conformesh.common.array_types import Array, Ints
from conformesh.engines.base import drive_protocol, refuse_lost_messages
from conformesh.engines.mpi.exchange import Exchange, question_stamp
from conformesh.engines.mpi.halo import Halo
from conformesh.engines.mpi.job import channels_for, job_guard, load_mpi
from conformesh.engines.mpi.partition import partition_devices
from conformesh.engines.observers import Observer, keeps_messages
from conformesh.graph.network import Network
from conformesh.kernels.neighbours import neighbour_extreme, neighbour_sum
from conformesh.kernels.spreading import Spreading
from conformesh.kernels.threads import limit_threads
from conformesh.protocols.block import merge_rows
from conformesh.protocols.faults import Faults
from conformesh.protocols.ledger import MOST_REMEMBERED_DEVICES, Ledger
from conformesh.protocols.message_checks import MessageChecks
from conformesh.protocols.messages import (
    Deliveries,
    Each,
    Extreme,
    Max,
    Message,
    Min,
    PacketDeliveries,
    Packets,
    Pool,
    Protocol,
    Sum,
    Tell,
    kind_of,
    may_be_silent,
)
from conformesh.results.certificate import Cost

T = TypeVar("T")
_MOST_TABLES = 64  # shapes whose tables are kept: a protocol has a few; the oldest is forgotten first


class Mpi:
    """Drive a protocol for the devices hosted by this rank; every rank of `comm` must do the same.

    Parameters
    ----------
    network
        The graph of the devices, the same on every rank.
    comm
        An mpi4py communicator; by default all ranks of the job.
    owners
        The rank of every device, (devices,); by default chosen by `partition`, see `PARTITIONS`.
    observer
        Called after every round with (round, message, answer) of this rank's block.
    """

    def __init__(
        self,
        network: Network,
        comm: Any = None,
        *,
        owners: Ints | None = None,
        partition: str = "auto",
        observer: Observer | None = None,
    ) -> None:
        self.mpi = load_mpi()
        self.network, self.observer = network, observer
        self.channels = channels_for(self.mpi, self.mpi.COMM_WORLD if comm is None else comm)
        self.comm = self.channels.data
        self.rank, self.ranks = self.comm.rank, self.comm.size
        limit_threads(max((os.cpu_count() or 1) // self.channels.on_host, 1))  # ranks of one machine share its cores
        self.owners = self._agreed_owners(owners, partition)
        self.blocks: list[Ints] = [np.flatnonzero(self.owners == rank) for rank in range(self.ranks)]
        self.halo = Halo.of(network, self.owners, self.rank)
        self.exchange = Exchange(self.mpi, self.comm, self.halo)
        self._round = 0
        self._tables: dict[tuple[str, int], tuple[Array, Array]] = {}
        self._weights: tuple[Any, Array, Array] | None = None
        self._last: Array | None = None  # memory of the last brief answer
        self._spreading: Spreading | None = None
        self._routes: dict[bytes, tuple[Ints, Ints]] = {}
        self._rules = MessageChecks(network, self.rows)
        self._answers: dict[type, Callable[[Any, int], Any]] = {
            Sum: self._sum,
            Max: self._extreme,
            Min: self._extreme,
            Each: self._each,
            Tell: self._tell,
            Pool: self._pool,
        }

    @property
    def rows(self) -> Ints:
        """Rows of the devices hosted by this rank, ascending."""
        return self.halo.rows

    def run(self, protocol: Protocol[T], runs: int = 1, faults: Faults | None = None) -> tuple[T, Cost]:
        """Return what the protocol returns for the devices here, and what one of its `runs` cost every device."""
        refuse_lost_messages("mpi", faults)
        with self.together():
            ledger = Ledger(len(self.rows), runs)
            result = drive_protocol(protocol, self._rules, ledger, self._answers, self.observer)
            self._spreading = None
            self.exchange.agree(self._stamp("the end"))
            cost = ledger.cost()
            parts = self.share((cost.numbers, cost.bits))
            numbers, bits = (merge_rows(self.blocks, [part[i] for part in parts]) for i in (0, 1))
            return result, Cost(cost.rounds, numbers, bits)

    def share(self, value: T) -> list[T]:
        """Return the value of every rank, in the order of ranks: for results, outside the protocol and its cost."""
        values: list[T] = self.comm.allgather(value)
        return values

    @contextmanager
    def together(self) -> Iterator[None]:
        """Guard work that must succeed on every rank: what fails on one of them only ends the job."""
        with job_guard(self.channels):
            yield

    def close(self) -> None:
        """Free the communicator of the exchanges; every rank must, and none may use the engine after that."""
        self.exchange.close()

    # --- answers ------------------------------------------------------------------------------------------------------

    def _sum(self, message: Sum, round_: int) -> Array:
        if message.weights is None:
            return self._combined(message, neighbour_sum, neighbour_sum)
        inner, outer = (partial(neighbour_sum, weights=weights) for weights in self._split(message.weights))
        return self._combined(message, inner, outer, real=True)

    def _extreme(self, message: Max | Min, round_: int) -> Array | Extreme:
        if message.speakers is not None:
            return self._spread(message)
        kernel = partial(neighbour_extreme, upward=isinstance(message, Max))
        found = self._combined(message, kernel, kernel)
        return found.astype(message.values.dtype, copy=False)  # exact: the largest is one of them

    def _spread(self, message: Max | Min) -> Extreme:
        """Spread the values of the speakers: work, memory and messages grow with their number."""
        upward, last, speakers = isinstance(message, Max), self._spreading, message.places
        if last is None or message.values is not last.values or last.upward is not upward:
            last = Spreading(self.halo.hearers.indptr, self.halo.hearers.indices, message.values, upward)
        # The next round may go on in the same memory, but not where an observer may keep the answer.
        self._spreading = last if message.brief and not keeps_messages(self.observer) else None
        rows = _table(message.values)[speakers]
        ghosts, ghost_rows = self.exchange.exchange_rows(self._stamp_of(message), speakers, rows)
        columns = np.concatenate([speakers, ghosts])
        order = np.argsort(self.halo.columns[columns])  # of equal values that of the first row counts, as everywhere
        return Extreme(last.values, last.receive(np.concatenate([rows, ghost_rows])[order], columns[order]))

    def _combined(
        self, message: Sum | Max | Min, inner: Callable[..., None], outer: Callable[..., None], real: bool = False
    ) -> Array:
        """Send, combine the block's inner rows meanwhile, then the rows at its border.

        The answer to a row is computed in one go from all its neighbours in ascending row: adding ghosts to a sum of
        the local neighbours would be simpler, and would have other bits than the simulator.
        """
        halo, sent = self.halo, _table(message.values)
        pending = self.exchange.start(self._stamp_of(message), sent)
        kind = np.dtype(np.float64 if real or sent.dtype.kind == "f" else np.int64)
        x = np.ascontiguousarray(sent, dtype=kind)
        out = self._space(x) if message.brief and not keeps_messages(self.observer) else np.empty(x.shape, dtype=kind)
        inner(halo.inner.indptr, halo.inner.indices, x, out)
        received = pending.rows()
        if halo.peers:
            near, border = self._room(kind, x.shape[1])
            np.take(x, halo.near, axis=0, out=near[: len(halo.near)], mode="clip")  # clip: raise would take a copy
            ghosts = near[len(halo.near) :]
            for rows, start, stop in zip(received, halo.cuts[:-1], halo.cuts[1:], strict=True):
                ghosts[start:stop] = rows
            outer(halo.outer.indptr, halo.outer.indices, near, border)
            out[halo.border] = border
        return out.reshape(message.values.shape)

    def _each(self, message: Each, round_: int) -> Deliveries:
        """Deliver each speaker's row along its edges: work, memory and messages grow with the speakers."""
        speakers, shape = message.places, message.values.shape[1:]
        rows = _table(message.values)[speakers]
        ghosts, ghost_rows = self.exchange.exchange_rows(self._stamp_of(message), speakers, rows)
        receiver, sender, which = self._route(np.concatenate([speakers, ghosts]))
        values = np.concatenate([rows, ghost_rows])[which]
        return Deliveries(receiver, sender, values.reshape(len(which), *shape), round_)

    def _tell(self, message: Tell, round_: int) -> PacketDeliveries:
        """Deliver each speaker's bytes along its edges, as in `_each`."""
        speakers, sent = message.speakers, message.packets
        ghosts, received = self.exchange.exchange_packets(self._stamp_of(message), speakers, sent)
        receiver, sender, which = self._route(np.concatenate([speakers, ghosts]))
        offsets = np.concatenate([sent.offsets, sent.offsets[-1] + received.offsets[1:]])
        packets = Packets(np.concatenate([sent.values, received.values]), offsets)
        return PacketDeliveries(receiver, sender, packets.take(which), round_)

    def _route(self, speakers: Ints) -> tuple[Ints, Ints, Ints]:
        """Return receivers and senders of the messages of these columns, as rows, and the index of each speaker."""
        key = speakers.tobytes() if len(speakers) <= MOST_REMEMBERED_DEVICES // 8 else None
        route = self._routes.get(key) if key is not None else None
        if route is None:
            route = self.halo.route(speakers)
            if key is not None and len(self._routes) < MOST_REMEMBERED_DEVICES:
                self._routes[key] = route
        receiver, which = route
        return self.rows[receiver], self.halo.columns[speakers[which]], which

    def _pool(self, message: Pool, round_: int) -> Pool:
        """Give every rank all values, in the order of the devices: each rank plays the server for its block."""
        self.exchange.agree(self._stamp_of(message))
        pieces = (len(message.offsets) - 1) // len(self.rows)  # a device's values may be cut into trials
        lengths = np.ascontiguousarray(np.diff(message.offsets), dtype=np.int64)
        by_rank = self._gathered(lengths, [len(block) * pieces for block in self.blocks]).reshape(-1, pieces)
        cuts = np.cumsum([len(block) for block in self.blocks])[:-1]
        totals = [int(part.sum()) for part in np.split(by_rank, cuts)]
        values = self._gathered(np.ascontiguousarray(message.values), totals)
        begins = (np.cumsum(by_rank) - by_rank.ravel()).reshape(by_rank.shape)
        sizes = merge_rows(self.blocks, np.split(by_rank, cuts)).ravel()  # from here on in the order of the devices
        starts = merge_rows(self.blocks, np.split(begins, cuts)).ravel()
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        within = np.arange(len(values)) - np.repeat(offsets[:-1], sizes)
        return Pool(values[np.repeat(starts, sizes) + within], offsets, message.oracle)

    def _gathered(self, values: Array, counts: list[int]) -> Array:
        """Return a flat array of every rank's values, by rank."""
        gathered = np.empty(sum(counts), dtype=values.dtype)
        size = values.dtype.itemsize
        starts = (np.cumsum(counts) - counts) * size
        spec = [gathered.view(np.uint8), [count * size for count in counts], starts.tolist(), self.mpi.BYTE]
        self.comm.Allgatherv([values.view(np.uint8), self.mpi.BYTE], spec)  # bytes: not every NumPy type is one of MPI
        return gathered

    # --- what is kept between rounds ----------------------------------------------------------------------------------

    def _room(self, kind: np.dtype[Any], columns: int) -> tuple[Array, Array]:
        """Return the table of values near the border, and one for its answers; the same ones in every round."""
        key = (kind.str, columns)
        if key not in self._tables:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.pop(next(iter(self._tables)))
            near = np.empty((len(self.halo.near) + len(self.halo.ghosts), columns), dtype=kind)
            self._tables[key] = (near, np.empty((len(self.halo.border), columns), dtype=kind))
        return self._tables[key]

    def _space(self, x: Array) -> Array:
        """Return room for the answer to a brief question, the same in every round."""
        # Not the memory of the question, which the protocol may have taken from the last answer: the kernels read
        # the one while they write the other.
        last = self._last
        if last is None or last.shape != x.shape or last.dtype != x.dtype or np.may_share_memory(last, x):
            self._last = last = np.empty(x.shape, dtype=x.dtype)
        return last

    def _split(self, weights: Array) -> tuple[Array, Array]:
        """Return the weights of the inner rows' edges and of the border's; a protocol uses the same in every round."""
        if self._weights is None or self._weights[0] is not weights:
            self._weights = (weights, weights[self.halo.inner.edges], weights[self.halo.outer.edges])
        return self._weights[1], self._weights[2]

    def _stamp_of(self, message: Message) -> int:
        """Return the stamp of a question: what is asked, in which type and shape; flat values may have any size."""
        shape = () if isinstance(message, Pool | Tell) else message.values.shape[1:]
        return self._stamp(kind_of(message).name, message.values.dtype.str, shape, may_be_silent(message))

    def _stamp(self, *question: Any) -> int:
        self._round += 1
        return question_stamp(self._round, question)

    def _agreed_owners(self, owners: Ints | None, by: str) -> Ints:
        """Return the rank of every device, the same on every rank."""
        # The first rank decides: METIS need not be installed everywhere, nor in the same version.
        chosen: Ints | Exception | None = None
        if self.rank == 0:
            try:
                chosen = partition_devices(self.network, self.ranks, by) if owners is None else np.asarray(owners)
            except Exception as error:  # raised on every rank: the others would wait for the broadcast for ever
                chosen = error
        chosen = self.comm.bcast(chosen)
        if isinstance(chosen, Exception):
            raise chosen
        found = np.asarray(chosen, dtype=np.int64)
        if found.shape != (self.network.devices,) or set(found.tolist()) != set(range(self.ranks)):
            raise ValueError(
                f"owners must name a rank from 0 to {self.ranks - 1} for each of the {self.network.devices} devices, "
                "and every rank must host one"
            )
        return found


def _table(values: Array) -> Array:
    """View messages as a C-ordered table (devices here, columns), in the type that travels."""
    return np.ascontiguousarray(values).reshape(len(values), math.prod(values.shape[1:]))
