"""What the devices hosted here know before the first message, and what a method hands back after the last."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from conformesh.certificate import Certificate
from conformesh.network import Network
from conformesh.ranks import conformal_rank


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
        """Return where devices hosted here stand in `here`."""
        if len(self.here) < self.devices:
            return np.asarray(np.searchsorted(self.here, rows), dtype=np.int64)
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
        starts, degree = self.network.indptr[self.here], self.network.degree[self.here]
        shift: NDArray[np.int64] = np.repeat(starts - (np.cumsum(degree) - degree), degree)
        return np.arange(len(shift)) + shift

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
    """

    thresholds: NDArray[np.float64]
    certificates: list[list[Certificate]]
    estimates: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    brackets: NDArray[np.float64] | None = None
