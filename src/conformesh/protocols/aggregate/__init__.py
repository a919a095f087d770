"""AGGREGATORS: ways to add up an integer vector over all devices, one line each."""

from __future__ import annotations

from conformesh.names import unknown
from conformesh.protocols.aggregate.averaging import (
    chebyshev_price,
    chebyshev_total,
    finite_time_price,
    finite_time_total,
    gossip_price,
    gossip_total,
)
from conformesh.protocols.aggregate.base import Aggregator, CannotAggregate, InexactCount, Price, Total
from conformesh.protocols.aggregate.flood import flood_price, flood_total
from conformesh.protocols.aggregate.tree import tree_price, tree_total
from conformesh.protocols.site import Site

__all__ = ["AGGREGATORS", "PREFERENCES", "Aggregator", "CannotAggregate", "InexactCount", "Price", "Total", "ranked"]

AGGREGATORS: dict[str, Aggregator] = {
    "tree": Aggregator(tree_total, tree_price, "spanning tree, up and down: fewest numbers"),
    "finite-time": Aggregator(finite_time_total, finite_time_price, "one round per distinct eigenvalue: near diameter"),
    "flood": Aggregator(flood_total, flood_price, "everybody's numbers to everybody: fewest rounds, most numbers"),
    "chebyshev": Aggregator(chebyshev_total, chebyshev_price, "accelerated gossip, to a computed error bound"),
    "gossip": Aggregator(gossip_total, gossip_price, "the paper's consensus, to a computed error bound"),
}
EXACT = ("tree", "finite-time", "flood")
PREFERENCES = {"rounds": (1.0, 0.0), "numbers": (0.0, 1.0), "balanced": (1.0, 1.0)}


def ranked(site: Site, prefer: str, width: int) -> list[tuple[str, Price]]:
    """Return the exact aggregators that can serve this network, best first, by rounds^a * numbers^b."""
    if prefer not in PREFERENCES:
        raise ValueError(f"prefer must be one of {', '.join(PREFERENCES)}, got {prefer!r}")
    a, b = PREFERENCES[prefer]
    possible = []
    for name in EXACT:  # the tree is exact on every connected network, so the others need not be asked
        try:
            price = AGGREGATORS[name].price(site)
        except CannotAggregate:
            continue
        rounds, numbers = price.of(width)
        possible.append((((rounds + 1) ** a * (numbers + 1) ** b, rounds + numbers), name, price))
    return [(name, price) for _, name, price in sorted(possible, key=lambda entry: entry[0])]


def get_aggregator(name: str) -> Aggregator:
    """Look an aggregator up, or say what there is."""
    if name not in AGGREGATORS:
        raise ValueError(unknown("aggregator", name, ("auto", *AGGREGATORS)))
    return AGGREGATORS[name]
