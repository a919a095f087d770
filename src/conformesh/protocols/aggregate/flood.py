"""Sums by flooding: everybody learns everybody's numbers, in as many rounds as the diameter, and adds them up.

It is max-consensus of a (devices x numbers) table with -1 for unknown: idempotent, so a message that arrives twice or
late does no harm.

Assumes     graph connected, diameter known; numbers >= 0
Guarantees  exact, in the fewest rounds possible
Message     K numbers per number and round
"""

from __future__ import annotations

import numpy as np

from conformesh.protocols.aggregate.base import CannotAggregate, Ints, Price, Total, bits_of
from conformesh.protocols.flood import everybodys_numbers
from conformesh.protocols.messages import Protocol
from conformesh.protocols.predicting import Stretch, Terrain
from conformesh.protocols.site import Site

EDGE_NS = 1.2  # of a simulation, whose tables are as wide as the network
LARGEST_TABLE = 3000  # devices up to which a table of everybody's numbers is reasonable


def flood_total(site: Site) -> Protocol[Total]:
    """Return the function that floods and adds up."""
    yield from ()

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        everyone = yield from everybodys_numbers(site, values)
        return np.repeat(everyone.sum(axis=0, dtype=np.int64)[None], len(values), axis=0)

    return total


def flood_price(site: Site) -> Price:
    """The diameter in rounds, K numbers each."""
    if site.devices > LARGEST_TABLE:
        raise CannotAggregate(
            f"flooding sends all devices' numbers in every message, too much beyond {LARGEST_TABLE:,} devices"
        )
    rounds = site.network.diameter
    return Price(rounds, float(rounds * site.devices))


def flood_stretches(terrain: Terrain, what: str, numbers: int, largest: int | None) -> list[Stretch]:
    """Predict a sum: everybody's numbers in every message."""
    rounds = flood_price(terrain.site).rounds
    table = terrain.devices * numbers
    return [Stretch(what, rounds, table, bits_of(largest), edge_ns=EDGE_NS)]
