"""Sums by flooding: everybody learns everybody's numbers, in as many rounds as the diameter, and adds them up.

Everybody passes on everybody's numbers once, see `protocols.flood`: K numbers for each number, not K in every round.

Assumes     graph connected, diameter known; numbers >= 0
Guarantees  exact, in the fewest rounds possible
Message     everybody's numbers once, in as few bytes as they need, less those from as far away as the diameter
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformesh.kernels.ranks import DEFAULT
from conformesh.kernels.varints import lengths
from conformesh.protocols.aggregate.base import CannotAggregate, Ints, Price, Total
from conformesh.protocols.flood import everybody, everybodys_numbers, flood_of
from conformesh.protocols.messages import Packets, Protocol
from conformesh.protocols.predicting import Stretch, Terrain, balls_of
from conformesh.protocols.site import Site

LARGEST_TABLE = 3000  # devices up to which a table of everybody's numbers is reasonable


def flood_total(site: Site) -> Protocol[Total]:
    """Return the function that floods and adds up."""
    yield from ()

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        if values.dtype == np.uint32:  # masked: uniform numbers are shortest as they are, and fixed width tells nothing
            words = np.ascontiguousarray(values.reshape(len(values), -1), dtype="<u4")
            strings = Packets.of([row.tobytes() for row in words])
            found = yield from everybody(site, strings, np.full(site.devices, words.shape[1]))
            everyone = _as_words(found, site, words.shape[1]).reshape(site.devices, *values.shape[1:])
        else:
            everyone = yield from everybodys_numbers(site, values)
        return np.repeat(everyone.sum(axis=0, dtype=np.int64)[None], len(values), axis=0)

    return total


def _as_words(found: Packets, site: Site, each: int) -> Ints:
    """Return everybody's words, if everybody sent as many."""
    wrong = np.flatnonzero(np.diff(found.offsets) != 4 * each)
    if len(wrong):
        raise ValueError(
            f"device {site.network.ids[int(wrong[0])]} sent another number of words than {each}; run the same version "
            "of conformesh on every device"
        )
    return found.values.view("<u4").astype(np.int64)


def flood_price(site: Site) -> Price:
    """The diameter in rounds, and everybody's number once, but for those that arrive in the last round."""
    if site.devices > LARGEST_TABLE:
        raise CannotAggregate(
            f"flooding tells everybody all devices' numbers, too much beyond {LARGEST_TABLE:,} devices"
        )
    rounds = site.network.diameter
    return Price(rounds, float(balls_of(site.network)[:, rounds - 1].mean()) if rounds else 0.0)


def flood_stretches(terrain: Terrain, what: str, numbers: int, largest: int | None) -> list[Stretch]:
    """Predict a sum of everybody's numbers: of how many scores it has, or of counts of them.

    Counts take one byte each where no device has more than 127 scores; otherwise about as many as half of its scores.
    """
    flood_price(terrain.site)
    own = terrain.own
    bound = terrain.n if largest is None else largest
    weighs = terrain.requirement != DEFAULT or bound > terrain.n  # then numbers are not counts of scores
    each = lengths(np.full_like(own, bound) if weighs else own if largest is None else -(-own // 2))
    sure = not weighs and (largest is None or int(own.max(initial=0)) < 128)
    return [replace(flood_of(terrain, what, np.full_like(own, numbers), numbers * each), expected=not sure)]
