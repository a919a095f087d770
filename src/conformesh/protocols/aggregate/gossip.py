"""Sums by plain gossip: p = l^T, so that disagreement shrinks by rate^T ([XiaoBoyd2004]).

Assumes     graph connected, spectrum known; n known, to know when to stop
Guarantees  the integer nearest to K times a mean whose error is below a fifth of a count, or `InexactCount`
Message     one number per coordinate and round
"""

from __future__ import annotations

import numpy as np

from conformesh.graph.weights import constant_rate, constant_weights
from conformesh.protocols.aggregate.averaging import SAFE, room_for_roundoff, roundoff, shrink_needed, whole
from conformesh.protocols.aggregate.base import Ints, Price, Total
from conformesh.protocols.consensus import gossip, rounds_to_shrink
from conformesh.protocols.messages import Protocol
from conformesh.protocols.site import Site


def gossip_total(site: Site) -> Protocol[Total]:
    """Add up by plain gossip, for as many rounds as the bound asks."""
    yield from ()
    weights = constant_weights(site.network, site.network.spectrum)
    rounds = gossip_price(site).rounds

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        mean = yield from gossip(values.astype(np.float64), site, weights, rounds)
        return whole(mean, site, SAFE)

    return total


def gossip_price(site: Site) -> Price:
    """Rounds until K times the disagreement of at most n is below a fraction of a count."""
    rate = constant_rate(site.network.spectrum)
    rounds = rounds_to_shrink(rate, shrink_needed(site)) if site.devices > 1 else 0
    room_for_roundoff(site, rounds * roundoff(site.network))
    return Price(rounds, rounds)
