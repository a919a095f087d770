"""What every aggregator offers: the sum of an integer vector over all devices, known to every device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from typing import Protocol as TypingProtocol

import numpy as np
from numpy.typing import NDArray

from conformesh.protocols.flood import flood_of
from conformesh.protocols.messages import Protocol, narrow_type
from conformesh.protocols.predicting import EVERYTHING, Stretch, Terrain
from conformesh.protocols.site import Site

Ints = NDArray[np.int64]


class Total(TypingProtocol):
    """Adds up: integers >= 0 of shape (devices here, ...) in, the same shape out, every row the sum over all.

    The answer's integers are as wide as `largest` asks for, not always int64, and may take the memory of `values`.
    """

    def __call__(self, values: Ints, largest: int | None = None) -> Protocol[Ints]:
        """Return the protocol; `largest` is a known upper bound of any sum, so that integers travel in few bits."""


class CannotAggregate(ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """Exact sums cannot be promised in this way on this network; another aggregator may."""


class InexactCount(ArithmeticError):  # noqa: N818
    """A sum that should be an integer is not near one: never returned as a count."""


@dataclass(frozen=True)
class Price:
    """What a sum of M numbers costs each device: rounds, and M * `per_number` numbers; `setup` rounds once before."""

    rounds: int
    per_number: float
    setup: int = 0


Stretches = Callable[[Terrain, str, int, int | None], list[Stretch]]  # terrain, what, numbers, the largest possible sum


@dataclass(frozen=True)
class Aggregator:
    """One way to add up over all devices.

    Attributes
    ----------
    prepare
        Protocol that sets it up (a spanning tree is built by messages) and returns the function that adds up.
    price
        What a sum costs on this network; raises `CannotAggregate`, with the reason, where it cannot be exact.
    summary
        One sentence.
    exact
        Whether it ends with the sum itself, not only near it: then it has a place in `auto`.
    stretches, setup
        What a sum, and what setting it up, would send, for plans. By default the price in 64 bits a number, spread
        evenly over its rounds.
    uses
        What of the network these depend on, see `Prediction`.
    arrays, number_ns
        Of a simulation: arrays as large as all messages of a round, and nanoseconds for a device and number in a round
        where `stretches` does not say it.
    schedules
        Of E-DCP, those that can go this way; first what is done unless one is asked for.
    masked
        Whether masked numbers (uint32) can be added up this way: modulo 2^32, in words of fixed width.
    summands
        How a device's own numbers travel, for what is said of privacy: `below`, with those of all below it in a tree;
        `everybody`, as they are, to everybody, which is taken for so where nobody has said; `mixed`, as they are to
        neighbours in the first round, and in averages afterwards.
    """

    prepare: Callable[[Site], Protocol[Total]]
    price: Callable[[Site], Price]
    summary: str
    exact: bool = False
    stretches: Stretches | None = None
    setup: Callable[[Terrain], list[Stretch]] | None = None
    uses: frozenset[str] = EVERYTHING
    arrays: float = 6.1
    number_ns: float = 1.5
    schedules: tuple[str, ...] = ("count",)
    masked: bool = False
    summands: Literal["below", "everybody", "mixed"] = "everybody"

    def sent_before(self, terrain: Terrain) -> list[Stretch]:
        """Predict what happens once before the first sum."""
        if self.setup is not None:
            return self.setup(terrain)
        rounds = self.price(terrain.site).setup
        return [Stretch("prepare sums", rounds, 1, 64)] if rounds else []

    def sent_for(self, terrain: Terrain, what: str, numbers: int, largest: int | None) -> list[Stretch]:
        """Predict a sum of so many numbers."""
        if self.stretches is not None:
            return self.stretches(terrain, what, numbers, largest)
        cost = self.price(terrain.site)
        each = cost.per_number / cost.rounds if cost.rounds else 0.0
        return [Stretch(what, cost.rounds, numbers * each, 64, number_ns=self.number_ns)]

    def sent_for_masked(self, terrain: Terrain, what: str, numbers: int) -> list[Stretch]:
        """Predict a sum of so many masked numbers, of 32 bits each."""
        if self.summands == "below":
            return self.sent_for(terrain, what, numbers, 2**31 - 1)
        each = np.full(terrain.devices, numbers)
        return [flood_of(terrain, what, each, 4 * each)]


def bits_of(largest: int | None) -> int:
    """Return the width of such an integer."""
    return 8 * narrow_type(largest).itemsize
