"""What a protocol would send, said without running it: stretches of rounds, and what they rest on.

A stretch is a number of rounds in which everybody says messages of one size. Every prediction is a list of stretches,
so that rounds, bits, bytes on the wire and time follow from one place (`planning`). A method's prediction stands beside
its protocol and calls the functions with which the protocol chooses its rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING
from typing import Protocol as TypingProtocol

import numpy as np
from numpy.typing import NDArray

from conformesh.protocols.site import Site
from conformesh.result.certificate import Kind

if TYPE_CHECKING:
    from conformesh.graph.network import Network
    from conformesh.graph.sketch import Sketch, Tree
    from conformesh.graph.spectrum import Spectrum

Ints = NDArray[np.int64]
EVERYTHING = frozenset({"hops", "tree", "degree", "spectrum"})
AVERAGING = frozenset({"hops", "spectrum"})
NOTHING = frozenset[str]()
COUNT_NS = 40.0  # that a simulation takes to count a device's scores at one threshold


@dataclass(frozen=True)
class Stretch:
    """Rounds in which messages have one size.

    Attributes
    ----------
    what
        In a word or two.
    rounds
        How many; not whole where it is the mean of a prediction.
    numbers, bits
        Numbers in a message, and bits of each of them.
    spoken, most
        Messages that a device says on average, and that the busiest one says; None is one in every round.
    copies
        Over all rounds, neighbours of the slowest device that speaks; None is the largest degree in every round.
    told
        Whether the numbers travel as bytes of a `Tell`, of which a frame says less than of an array.
    server
        Whether it goes to a server instead of to neighbours.
    edge_ns, number_ns, device_ns
        Nanoseconds that a simulation takes for an edge and number, a device and number, and a device, in every round.
    """

    what: str
    rounds: float
    numbers: float
    bits: int
    spoken: float | None = None
    most: float | None = None
    copies: float | None = None
    told: bool = False
    server: bool = False
    edge_ns: float = 0.35
    number_ns: float = 1.5
    device_ns: float = 0.0

    def times(self, often: float) -> Stretch:
        """Return this stretch, so many times; a mean where that is not whole."""
        scaled = {
            name: value * often
            for name in ("rounds", "spoken", "most", "copies")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **scaled)

    @property
    def said(self) -> tuple[float, float]:
        """Messages that a device says: on average, and the busiest."""
        spoken = self.rounds if self.spoken is None else self.spoken
        return spoken, spoken if self.most is None else self.most

    @property
    def payload(self) -> float:
        """Bytes of the numbers in a message."""
        return self.numbers * self.bits / 8


@dataclass(frozen=True)
class Prediction:
    """What a method would send.

    Attributes
    ----------
    stretches
        What is sent; a mean over draws where that depends on the scores.
    guarantee, assumption
        The kind of its certificate, and what that rests on.
    uses
        What of the network this depends on: `hops`, `degree`, `spectrum` (its ends), `tree`, `eigenvalues` (all).
    varies
        Whether it depends on the scores themselves, and not only on how many there are.
    rounds
        The rounds of one run in twenty are fewer than the first, of one in twenty more than the second.
    most
        The stretches of the worst scores that there could be.
    exact
        Whether the threshold is the very score of the required rank.
    useful
        False where the error bound would be too loose to say anything.
    notes
        What a user should know.
    facts
        What was chosen on the way.
    arrays, nanoseconds
        Of a simulation: arrays as large as all messages of a round, and work besides that of the rounds.
    """

    stretches: tuple[Stretch, ...]
    guarantee: Kind
    assumption: str = ""
    uses: frozenset[str] = frozenset({"hops"})
    varies: bool = False
    rounds: tuple[float, float] | None = None
    most: tuple[Stretch, ...] | None = None
    exact: bool = False
    useful: bool = True
    notes: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    arrays: float = 6.1
    nanoseconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Searches:
    """What searches for a score of given rank took, one entry per draw of the scores.

    Attributes
    ----------
    stages, snaps
        Sums of counts, and brackets drawn in to the scores that they hold.
    named, recounts
        Whether the answer was named after the last stage, and then counted; ties may end a search with a snap.
    known
        Whether these are the stages of the scores themselves.
    """

    stages: Ints
    snaps: Ints
    named: Ints
    recounts: Ints
    known: bool = False

    @property
    def certain(self) -> bool:
        """Whether a run will take the same: the scores are known, or nothing has to be searched."""
        return self.known or bool((self.stages == 0).all() and np.ptp(self.recounts) == 0)


class Terrain(TypingProtocol):
    """All that a prediction may depend on; `planning.terrain.Terrain` has it."""

    @property
    def map(self) -> Network | Sketch:
        """The network, or a sketch of it."""

    @property
    def site(self) -> Site:
        """What prices and round numbers are computed from; a sketch has all that they read."""

    @property
    def devices(self) -> int:
        """K."""

    @property
    def n(self) -> int:
        """Scores in all."""

    @property
    def most(self) -> int:
        """Scores of the device that has the most."""

    @property
    def sizes(self) -> Ints | None:
        """Scores of every device, where there is a network."""

    @property
    def tree(self) -> Tree:
        """The spanning tree."""

    def rank(self, alpha: Fraction) -> int:
        """The required rank, of the scores."""

    def searches(self, rank: int, width: int) -> Searches:
        """What the search of E-DCP for that rank takes, with `width` thresholds a stage."""

    def spectrum(self, source: str) -> tuple[list[Stretch], Spectrum]:
        """The spectrum as the devices know it, from the map or estimated, and what they send for it."""


def hops(terrain: Terrain, what: str, numbers: int, bits: int) -> Stretch:
    """Return the stretch of a maximum over the network: as many rounds as the diameter."""
    return Stretch(what, terrain.map.diameter, numbers, bits)


def upload(what: str, numbers: float, most: float, bits: int) -> Stretch:
    """Return one message to the server, whose answer is not counted: sizes may differ from device to device."""
    return Stretch(what, 2, numbers, bits, 1, most / numbers if numbers else 1, server=True)
