"""The interface between a device and whatever runs it: `PeerSetup` goes in, and a `Peer` is what comes out.

The engine passes in received bytes (`receive`) and the time (`tick`), and sends the bytes in `outbox`; it asks when the
device wants to be called again (`wake`) and whether anything is left to do (`over`). The loopback engine and the nodes
of a mesh use devices in rounds and in asynchronous mode through this one interface.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from conformesh.graph.network import Network
from conformesh.peer.journal import Journal
from conformesh.peer.rosters import FIELD, Rosters, roster_number_in
from conformesh.peer.settings import Counts, PeerError, Settings
from conformesh.results.certificate import Cost

Make = Callable[..., Generator[Any, Any, Any]]  # of a network and a row in it; see `private` in `PeerSetup`
Phase = Literal["greeting", "running", "finishing", "finished", "failed"]
EVERYBODY = -1  # in the outbox, instead of a row: to all neighbours alike


@dataclass(frozen=True, eq=False)
class PeerSetup:
    """What one device is made of.

    Attributes
    ----------
    row
        Its row in the roster.
    network
        The whole network; its ids are the roster.
    agreement
        All that must be the same on every device, as short texts by name.
    make
        Makes the protocol for a network and a row in it: the whole network, or that of the survivors.
    journal
        What survives a crash of the process.
    settings
        How long the device waits, and what it does about lost neighbours.
    scores
        A digest of the local scores: a journal that was written with other scores cannot be replayed.
    log
        Called with one line about each event that matters to an operator.
    rosters
        The roster that it is under, and how a newer one is accepted; None in a mesh without rosters.
    private
        Whether the protocol has secrets. They are drawn for one attempt and live in memory only: `make` is also given
        the digest that names the attempt, no attempt is resumed after a restart, and neighbours learn nothing about
        the local cause of a failure. In rounds only.
    stored_run
        Number of the run whose result the caller has on disk and wants to report; 0 if there is none. In rounds only.
    idle
        Whether it is silent after its start until a neighbour or its operator asks for a run. In rounds only.
    """

    row: int
    network: Network
    agreement: Mapping[str, str]
    make: Make
    journal: Journal
    settings: Settings = field(default_factory=Settings)
    scores: str = ""
    log: Callable[[str], None] = lambda words: None
    rosters: Rosters | None = None
    private: bool = False
    stored_run: int = 0
    idle: bool = False

    def full_agreement(self) -> dict[str, str]:
        """Return the agreement together with the settings that must be the same on every device."""
        return {**self.agreement, **self.settings.agreement(self.network.devices)}

    def rosters_in_use(self) -> Rosters:
        """Return `rosters`; without them, the roster that the agreement names, which no other one replaces."""
        return self.rosters or Rosters(roster_number_in(self.agreement.get(FIELD)) or 0)


class Peer(Protocol):
    """One device of a mesh, as an engine and a node see it."""

    @property
    def row(self) -> int:
        """Its row in the roster."""

    @property
    def network(self) -> Network:
        """The whole network."""

    @property
    def phase(self) -> Phase:
        """How far it is in its run."""

    @property
    def number(self) -> int:
        """The number of its run."""

    @property
    def round(self) -> int:
        """The round that it is in; 0 outside of rounds."""

    @property
    def idle(self) -> bool:
        """Whether it waits until somebody asks for a run."""

    @property
    def lost(self) -> frozenset[int]:
        """Rows of the devices that were left out of its run."""

    @property
    def survivors(self) -> tuple[int, ...]:
        """Rows of the devices that its result covers."""

    @property
    def result(self) -> Any:
        """What its protocol has returned; None before, and after a failure."""

    @property
    def cost(self) -> Cost:
        """What it has sent in its run, apart from repetitions."""

    @property
    def error(self) -> PeerError | None:
        """Why it has failed."""

    @property
    def counts(self) -> Counts:
        """The frames that it has sent and received."""

    @property
    def rosters(self) -> Rosters:
        """The roster that it is under, and the newer one that it moves to."""

    @property
    def handed(self) -> bool:
        """Whether it has handed a newer roster on: another device must be made in its place."""

    @property
    def wake(self) -> float:
        """When it wants to be ticked again at the latest."""

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, for itself and for its neighbours."""

    @property
    def missing(self) -> int:
        """How many frames of data it needs to go on; 1 where any frame matters. Its node need not wake it up before."""

    def start(self, now: float) -> None:
        """Begin, or go on where the journal ends."""

    def tick(self, now: float) -> None:
        """Notice that time has passed."""

    def receive(self, data: bytes, sender: int, now: float) -> None:
        """Take bytes that came from a neighbour; the transport knows which one."""

    def outbox(self) -> list[tuple[int, bytes]]:
        """Return what to send, as (row of a neighbour or EVERYBODY, bytes), and forget it."""

    def recalibrate(self, now: float, make: Make | None = None, scores: str = "") -> None:
        """Ask everybody for one more run, of other scores if `make` and their digest are given."""

    def refuse(self, reason: str, now: float) -> None:
        """Take no part, for a local reason that is sent to every neighbour."""

    def offer(self, roster: bytes, now: float) -> None:
        """Take a roster that did not come from a neighbour; a `FrameError` says why it is refused."""
