"""A prediction: phases, what they rest on, and what the result may claim."""

from __future__ import annotations

from dataclasses import dataclass, field

from conformesh.planning.phases import Certainty, Phase
from conformesh.planning.terrain import Terrain
from conformesh.result.certificate import Kind


@dataclass(frozen=True)
class Prediction:
    """What a method would send on a terrain.

    Attributes
    ----------
    phases
        What is sent; a mean over draws where that depends on the scores.
    guarantee, assumption
        The kind of its certificate, and what that rests on.
    uses
        What of the network the phases depend on: `hops`, `degree`, `spectrum`, `tree`.
    varies
        Whether they depend on the scores themselves, and not only on how many there are.
    rounds
        The rounds of one run in twenty are fewer than the first, of one in twenty more than the second.
    most
        The phases of the worst scores that there could be.
    useful
        False where the error bound would be too loose to say anything.
    notes
        What a user should know.
    facts
        What was chosen on the way.
    """

    phases: tuple[Phase, ...]
    guarantee: Kind
    assumption: str = ""
    uses: frozenset[str] = frozenset({"hops"})
    varies: bool = False
    rounds: tuple[float, float] | None = None
    most: tuple[Phase, ...] | None = None
    useful: bool = True
    notes: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)

    def certainty(self, terrain: Terrain) -> Certainty:
        """Say whether a run would cost exactly this."""
        return "estimate" if self.varies or self.uses & terrain.laws else "exact"


def hops(terrain: Terrain, what: str, numbers: int, bits: int, dimensions: int = 1) -> Phase:
    """Return the phase of a maximum over the network: as many rounds as the diameter."""
    return Phase(what, terrain.map.diameter, numbers, bits, dimensions=dimensions)
