"""What the devices hosted here know before the first message, and what a method hands back after the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.promises import conformal_rank
from conformesh.result.certificate import Certificate, Cost


def edges_of(network: Network, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the directed edges to some devices stand in the network's CSR order."""
    counts = network.degree[rows]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(network.indptr[rows], counts) + within)


@dataclass(frozen=True, eq=False)
class Site:
    """A block of devices: all of them in the simulator, one on a real device.

    The paper takes the graph, K and every n_k as known to all devices; so does this library, and nothing else.

    Attributes
    ----------
    network
        The map. Methods that must do without it estimate what they need by message passing.
    here
        Rows of the devices hosted here: ascending or, where all of them are, in the order in which they lie in memory.
        What is "here" below stands in this order.
    sizes
        How many scores every device of the network holds, shape (devices, trials).
    """

    network: Network
    here: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def everywhere(cls, network: Network, sizes: NDArray[np.int64]) -> Site:
        """Return the block that hosts every device."""
        return cls(network, np.arange(network.devices), sizes)

    @property
    def devices(self) -> int:
        """K, the number of devices in the whole network."""
        return self.network.devices

    @property
    def trials(self) -> int:
        """How many independent draws ride along."""
        return int(self.sizes.shape[1])

    @property
    def totals(self) -> NDArray[np.int64]:
        """n, the number of scores in the whole network, shape (trials,)."""
        return np.asarray(self.sizes.sum(axis=0), dtype=np.int64)

    @property
    def degree(self) -> NDArray[np.float64]:
        """Number of neighbours of each device here."""
        return self.network.degree[self.here].astype(np.float64)

    def local(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where devices hosted here stand in `here`; others have no place."""
        if len(self.here) < self.devices:
            places = np.asarray(np.searchsorted(self.here, rows), dtype=np.int64)
            if len(rows) and not np.array_equal(self.here[np.minimum(places, len(self.here) - 1)], rows):
                raise ValueError(f"devices {rows[:5].tolist()} are not all hosted here: a block knows only its own")
            return places
        place: NDArray[np.int64] | None = self._place
        if place is None:
            return rows
        found: NDArray[np.int64] = place[rows]
        return found

    @cached_property
    def _place(self) -> NDArray[np.int64] | None:
        """Where every row stands, if not in its own place; for a site that hosts everybody."""
        if (self.here == np.arange(self.devices)).all():
            return None
        place = np.empty(self.devices, dtype=np.int64)
        place[self.here] = np.arange(self.devices)
        return place

    @property
    def edge_rows(self) -> NDArray[np.int64]:
        """Where the directed edges of the devices here stand in the network's CSR order."""
        return edges_of(self.network, self.here)

    def ranks(self, alphas: tuple[Fraction, ...], devices: int | None = None) -> NDArray[np.int64]:
        """Return the required rank of every (trial, alpha)."""
        k = self.devices if devices is None else devices
        return np.array([[conformal_rank(int(n), a, k) for a in alphas] for n in self.totals], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a method hands back: thresholds with their reasons, for every trial and alpha at once.

    Attributes
    ----------
    thresholds
        Shape (devices here, trials, alphas).
    certificates
        ``certificates[trial][alpha]``.
    estimates
        The method's estimate before any correction, shape of `thresholds`, where it has one.
    notes
        Sentences for the user that deserve a warning: what to change. One list for the run.
    facts
        What was chosen on the way, for the record: words by name.
    brackets
        Lower and upper threshold between which a search ended, (2, trials, alphas): where a later one may start.
    sizes, cost
        How many scores every device holds, (devices, trials), and what the method cost the devices here, where nobody
        but the protocol knows: on a mesh, see `joint`.
    """

    thresholds: NDArray[np.float64]
    certificates: list[list[Certificate]]
    estimates: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    brackets: NDArray[np.float64] | None = None
    sizes: NDArray[np.int64] | None = None
    cost: Cost | None = None

    @classmethod
    def joined(cls, blocks: Sequence[NDArray[np.int64]], parts: Sequence[Outcome]) -> Outcome:
        """Return the outcome of all devices from those of blocks of them, `blocks` naming the rows of each."""
        first = parts[0]
        if len(parts) == 1 and np.array_equal(blocks[0], np.arange(len(blocks[0]))):
            return first
        estimates = [part.estimates for part in parts if part.estimates is not None]
        return replace(
            first,
            thresholds=in_rows(blocks, [part.thresholds for part in parts]),
            estimates=in_rows(blocks, estimates) if estimates else None,
            certificates=[
                [_joined_certificate(blocks, [part.certificates[t][a] for part in parts]) for a in range(len(row))]
                for t, row in enumerate(first.certificates)
            ],
            notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        )


def in_rows(blocks: Sequence[NDArray[np.int64]], parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return one table for all devices from each block's rows of it."""
    whole = np.empty((sum(map(len, blocks)), *parts[0].shape[1:]), dtype=parts[0].dtype)
    for rows, part in zip(blocks, parts, strict=True):
        whole[rows] = part
    return whole


def _joined_certificate(blocks: Sequence[NDArray[np.int64]], parts: Sequence[Certificate]) -> Certificate:
    """Return the certificate of all: the same everywhere, but for ranks that each device counts for itself."""

    def whole(name: str) -> Any:
        ranks = [getattr(part, name) for part in parts]
        return tuple(in_rows(blocks, [*map(np.array, ranks)]).tolist()) if isinstance(ranks[0], tuple) else ranks[0]

    return replace(parts[0], required_rank=whole("required_rank"), counted_rank=whole("counted_rank"))
