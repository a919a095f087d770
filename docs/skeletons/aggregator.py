"""Sums through a hub: where one device is a neighbour of all others, it adds up and tells the sum.

Assumes     graph connected; a device that is everybody's neighbour (a star, a wheel, a complete graph)
Guarantees  integers added as integers: exact, at any size
Message     one number per number and sum; the hub is silent in the first round, the others in the second
"""

from __future__ import annotations

import numpy as np

from conformesh.common.array_types import Ints
from conformesh.protocols.aggregate import Aggregator, CannotAggregate, NetworkSum, Price
from conformesh.protocols.block import Block
from conformesh.protocols.messages import Each, Protocol, narrowest_integer


def hub_total(block: Block) -> Protocol[NetworkSum]:
    """Return the function that adds up; a way that has to prepare by messages yields them here."""
    yield from ()
    hub = int(np.argmax(block.network.degree))
    middle, others = np.flatnonzero(block.rows == hub), np.flatnonzero(block.rows != hub)  # one of them may be empty

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        x = np.ascontiguousarray(values, narrowest_integer(largest))  # few bits; no partial sum exceeds `largest`
        heard = yield Each(x, others)
        if len(middle):
            x[middle] += heard.values[heard.receiver == hub].sum(axis=0, dtype=x.dtype)
        heard = yield Each(x, middle)
        if len(others):
            x[others] = heard.said_by(block.rows[others], np.full(len(others), hub))
        return x

    return total


def hub_price(block: Block) -> Price:
    """Two rounds, a number a device; refuses, saying why, where sums cannot be formed so."""
    if block.network.largest_degree < block.devices - 1:
        raise CannotAggregate("no device is a neighbour of all others")
    return Price(rounds=2, per_number=1.0)


# The line for AGGREGATORS in protocols/aggregate.py; there it has its place in `auto`:
LINE = {
    "hub": Aggregator(hub_total, hub_price, "through a device that is everybody's neighbour: two rounds"),
}
