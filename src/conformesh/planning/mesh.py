"""What a real mesh sends besides: a table of sizes first, frames of the silent, and floods in place of a server."""

from __future__ import annotations

from collections.abc import Sequence

from conformesh.peer.frames import LARGEST
from conformesh.planning.phases import Phase
from conformesh.planning.prediction import hops
from conformesh.planning.terrain import Terrain


def phases_on_a_mesh(phases: Sequence[Phase], terrain: Terrain) -> list[Phase]:
    """Return what `protocols.joint` makes of a method: who has how many scores, and no server.

    What a method asks of a server floods the network: how many values everybody has, then their bytes.
    """
    K = terrain.devices
    found = [hops(terrain, "who has how many scores", K, 64, 2)]
    for phase in phases:
        if not phase.server:
            found.append(phase)
            continue
        longest = round(phase.payload * phase.said[1])
        found += [
            hops(terrain, "how many values everybody has", K, 64, 2),
            hops(terrain, "everybody's values", K * longest, 16, 2),
        ]
    return found


def fits_a_mesh(phases: Sequence[Phase]) -> bool:
    """Whether every frame is small enough to be sent."""
    return all(phase.payload <= LARGEST for phase in phases)
