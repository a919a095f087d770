"""What a protocol would send, said without running it: stretches of rounds, and what they rest on.

A stretch is a number of rounds in which everybody says messages of one size. Every prediction is a list of stretches,
so that rounds, bits, bytes on the wire and time follow from one place (`planning`). A method's prediction stands beside
its protocol and calls the functions with which the protocol chooses its rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from typing import Protocol as TypingProtocol

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.sketch import Sketch
from conformesh.kernels.graph import breadth_first
from conformesh.kernels.ranks import Requirement
from conformesh.protocols.site import Site
from conformesh.result.certificate import Kind

if TYPE_CHECKING:
    from conformesh.graph.network import Network
    from conformesh.graph.sketch import Tree
    from conformesh.graph.spectrum import Spectrum

Ints = NDArray[np.int64]
Look = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # what scores look like: their quantiles, by level
EVERYTHING = frozenset({"hops", "tree", "degree", "spectrum"})
AVERAGING = frozenset({"hops", "spectrum"})
NOTHING = frozenset[str]()
ALL_BALLS, SOME_BALLS = 512, 16  # devices up to which rings are counted around all, and around how many beyond
LONGEST = 1_000_000  # rounds of a sketch that are looked at: later ones bring little
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
        Numbers in a message, and bits of each of them; means where messages are of different lengths.
    spoken, most
        Messages that a device says on average, and that the busiest one says; None is one in every round.
    silent, announced
        Frames that a device sends on a mesh, on average, in rounds in which it says nothing (None is one in each), and
        the bytes in which it announces quiet ones, one for each announcement up to 127 rounds.
    copies
        Over all rounds, neighbours of the slowest device that speaks; None is the largest degree in every round.
    told
        Whether the numbers travel as bytes of a `Tell`, of which a frame says less than of an array.
    expected
        Whether what is said depends on the values, and this is what to expect of values in no order.
    longest
        Bytes of the longest message, where they differ.
    server
        Whether it goes to a server instead of to neighbours.
    edge_ns, number_ns, device_ns
        Nanoseconds that a simulation takes for an edge and number, a device and number, and a device, in every round.
    """

    what: str
    rounds: float
    numbers: float
    bits: float
    spoken: float | None = None
    most: float | None = None
    copies: float | None = None
    told: bool = False
    expected: bool = False
    longest: float = 0.0
    server: bool = False
    edge_ns: float = 0.35
    number_ns: float = 1.5
    device_ns: float = 0.0
    silent: float | None = None
    announced: float = 0.0

    def times(self, often: float) -> Stretch:
        """Return this stretch, so many times; a mean where that is not whole."""
        scaled = {
            name: value * often
            for name in ("rounds", "spoken", "most", "copies", "silent", "announced")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **scaled)

    @property
    def said(self) -> tuple[float, float]:
        """Messages that a device says: on average, and the busiest."""
        spoken = self.rounds if self.spoken is None else self.spoken
        return spoken, spoken if self.most is None else self.most

    @property
    def frames(self) -> tuple[float, float]:
        """Frames that a device sends on a mesh, on average: in which it speaks, and in which it is silent."""
        spoken = self.said[0]
        return spoken, self.rounds - spoken if self.silent is None else self.silent

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


@dataclass(frozen=True, eq=False)
class Run:
    """What one run of a schedule sent, what it says it did, and what its scores looked like, if they were drawn."""

    stretches: tuple[Stretch, ...]
    facts: dict[str, str]
    look: str = ""


class Terrain(TypingProtocol):
    """All that a prediction may depend on; `planning.terrain.Terrain` has it."""

    @property
    def map(self) -> Network | Sketch:
        """The network, or a sketch of it."""

    @property
    def built(self) -> Network | None:
        """The network itself, where it was built."""

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
    def own(self) -> Ints:
        """The same, or of a sketch one entry for all."""

    @property
    def requirement(self) -> Requirement:
        """Whom the thresholds are to be about."""

    @property
    def tree(self) -> Tree:
        """The spanning tree."""

    @property
    def looks(self) -> Sequence[tuple[Look, float]]:
        """What scores may look like, and how likely each is."""

    def rank(self, alpha: Fraction) -> int:
        """The required rank, of the scores."""

    def searches(self, rank: int, width: int) -> Searches:
        """What the search of E-DCP for that rank takes, with `width` thresholds a stage."""

    def runs(self, alpha: Fraction, options: Any) -> tuple[Sequence[Run], bool] | None:
        """Runs of E-DCP's schedule, and whether on the scores themselves; None where they would take long."""

    def spectrum(self, source: str) -> tuple[list[Stretch], Spectrum]:
        """The spectrum as the devices know it, from the map or estimated, and what they send for it."""


def hops(terrain: Terrain, what: str, numbers: int, bits: int, holders: float | None = None) -> Stretch:
    r"""Return the stretch of a maximum over the network: as many rounds as the diameter, in which news are said.

    Everybody speaks in the first round, and then whoever has changed. Of values in no order, the largest of the ball of
    radius t around a device, which holds b(t) devices, lies in its outermost ring with probability 1 - b(t-1)/b(t):

    .. math:: E[\text{messages}] = 1 + \sum_{t=1}^{D-1} 1 - (b(t-1) / b(t))^M

    where M numbers rise independently. Where only `holders` devices have any value, a ball must also hold one of them.
    """
    D, K = terrain.map.diameter, terrain.devices
    if D == 0:
        return Stretch(what, 0, numbers, bits)
    some = 1.0 if holders is None else min(holders / K, 1.0)
    balls = balls_of(terrain.map)[:, :D]
    new = (1 - (balls[:, :-1] / balls[:, 1:]) ** numbers) * (1 - (1 - some) ** balls[:, 1:])
    spoken = some + new.sum(axis=1)
    return Stretch(what, D, numbers, bits, float(spoken.mean()), float(spoken.max()), expected=D > 1 or some < 1)


@lru_cache(maxsize=16)
def balls_of(where: Network | Sketch) -> NDArray[np.float64]:
    """Return how many devices are at most 0, 1, ... hops away, up to the diameter: a row for each of some devices.

    Of all devices in a network of a few hundred, of some in a larger one; by a law of growth where there is no network.
    """
    D, K = where.diameter, where.devices
    if isinstance(where, Sketch):
        steps = np.arange(min(D, LONGEST) + 1) / max(D, 1)
        rate = math.log((K - 1) / (2 * where.edges / K)) / math.log(D) if D > 1 else 1.0
        return np.asarray(1 + (K - 1) * steps**rate)[None]
    rows = np.arange(K) if K <= ALL_BALLS else np.linspace(0, K - 1, SOME_BALLS).astype(np.int64)
    rings = np.stack([np.bincount(levels, minlength=D + 1)[: D + 1] for levels in distances(where, rows)])
    return np.cumsum(rings, axis=1).astype(np.float64)


def farthest(where: Network | Sketch) -> NDArray[np.float64]:
    """Return how many hops the farthest device is away, for every device; of large networks for some of them."""
    if isinstance(where, Sketch):
        return np.array([float(where.diameter)])
    rows = np.arange(where.devices)
    rows = rows if len(rows) <= ALL_BALLS else np.linspace(0, len(rows) - 1, SOME_BALLS).astype(np.int64)
    return np.array([float(levels.max()) for levels in distances(where, rows)])


def distances(network: Network, rows: Ints) -> Iterator[Ints]:
    """Return, for each of these devices, the hops to all."""
    levels, queue = np.empty((2, network.devices), dtype=np.int64)
    for row in rows.tolist():
        breadth_first(network.indptr, network.indices, row, levels, queue)
        yield levels


def upload(what: str, numbers: float, most: float, bits: int) -> Stretch:
    """Return one message to the server, whose answer is not counted: sizes may differ from device to device."""
    return Stretch(what, 2, numbers, bits, 1, most / numbers if numbers else 1, server=True)
