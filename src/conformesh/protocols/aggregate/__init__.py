"""AGGREGATORS: ways to add up an integer vector over all devices, one line each."""

from __future__ import annotations

from contextlib import suppress

from conformesh.kernels.ranks import AUTO
from conformesh.names import unknown
from conformesh.protocols.aggregate import chebyshev
from conformesh.protocols.aggregate.base import (
    Aggregator,
    CannotAggregate,
    InexactCount,
    Price,
    Total,
)
from conformesh.protocols.aggregate.chebyshev import chebyshev_price, chebyshev_total
from conformesh.protocols.aggregate.finite_time import finite_time_price, finite_time_total
from conformesh.protocols.aggregate.flood import flood_price, flood_stretches, flood_total
from conformesh.protocols.aggregate.gossip import gossip_price, gossip_total
from conformesh.protocols.aggregate.tree import tree_price, tree_setup, tree_stretches, tree_total
from conformesh.protocols.site import Site

__all__ = ["AGGREGATORS", "PREFERENCES", "Aggregator", "CannotAggregate", "InexactCount", "Price", "Total", "ranked"]

AGGREGATORS: dict[str, Aggregator] = {
    "tree": Aggregator(
        tree_total,
        tree_price,
        "spanning tree, up and down: fewest numbers",
        exact=True,
        stretches=tree_stretches,
        setup=tree_setup,
        uses=frozenset({"hops", "tree", "degree"}),
        arrays=1.2,
        schedules=(AUTO, "top-k", "window", "count"),
        masked=True,
        summands="below",
    ),
    "finite-time": Aggregator(
        finite_time_total,
        finite_time_price,
        "one round per distinct eigenvalue: near diameter",
        exact=True,
        uses=frozenset({"hops", "spectrum", "eigenvalues"}),
        summands="mixed",
    ),
    "flood": Aggregator(
        flood_total,
        flood_price,
        "everybody's numbers to everybody: fewest rounds, most numbers",
        exact=True,
        stretches=flood_stretches,
        uses=frozenset({"hops"}),
        arrays=4.2,
        schedules=("top-k", "count"),
        masked=True,
    ),
    "chebyshev": Aggregator(
        chebyshev_total,
        chebyshev_price,
        "accelerated gossip, to a computed error bound",
        uses=frozenset({"hops", "spectrum", "degree"}),
        arrays=chebyshev.ARRAYS,
        number_ns=chebyshev.NUMBER_NS,
        summands="mixed",
    ),
    "gossip": Aggregator(
        gossip_total,
        gossip_price,
        "the paper's consensus, to a computed error bound",
        uses=frozenset({"hops", "spectrum", "degree"}),
        summands="mixed",
    ),
}
PREFERENCES = {"rounds": (1.0, 0.0), "numbers": (0.0, 1.0), "bits": (0.0, 1.0), "balanced": (1.0, 1.0)}


def ranked(site: Site, prefer: str, width: int) -> list[tuple[str, Price]]:
    """Return the exact aggregators that can serve this network, best first, by rounds^a * numbers^b."""
    if prefer not in PREFERENCES:
        raise ValueError(f"prefer must be one of {', '.join(PREFERENCES)}, got {prefer!r}")
    return by_price(exact_prices(site), prefer, width)


def exact_prices(site: Site) -> dict[str, Price]:
    """Return what a sum costs by each way that is exact here; the tree always is, so gossip need not be asked."""
    prices = {}
    for name, aggregator in AGGREGATORS.items():
        if aggregator.exact:
            with suppress(CannotAggregate):
                prices[name] = aggregator.price(site)
    return prices


def by_price(prices: dict[str, Price], prefer: str, width: int) -> list[tuple[str, Price]]:
    """Sort ways to add up `width` numbers, best first."""
    a, b = PREFERENCES[prefer]
    cost = {name: (price.rounds, width * price.per_number) for name, price in prices.items()}
    weighed = {
        name: ((rounds + 1) ** a * (numbers + 1) ** b, rounds + numbers) for name, (rounds, numbers) in cost.items()
    }
    return sorted(prices.items(), key=lambda entry: weighed[entry[0]])


def get_aggregator(name: str) -> Aggregator:
    """Look an aggregator up, or say what there is."""
    if name not in AGGREGATORS:
        raise ValueError(unknown("aggregator", name, aggregate_choices()))
    return AGGREGATORS[name]


def aggregate_choices() -> tuple[str, ...]:
    """Return what an option `aggregate` may say."""
    return (AUTO, *AGGREGATORS)
