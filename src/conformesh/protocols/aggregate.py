"""AGGREGATORS: ways to add up an integer vector over all devices, so that every device knows the sum.

tree   up a spanning tree to its root and back. The tree is grown once, from a centre (`protocols.tree`); then each sum
       goes up the levels and the total comes down. In a round only one level speaks.
flood  every device learns the numbers of all devices, in as many rounds as the diameter (`protocols.flood`), and adds
       them up itself.

Assumes     graph connected, its centre or diameter known; numbers >= 0
Guarantees  integers added as integers: exact, at any size
Message     tree: one number once to build it; then at most two per number and sum. flood: the numbers of all devices
            once, in as few bytes as they need, except those from as far away as the diameter
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal
from typing import Protocol as TypingProtocol

import numpy as np

from conformesh.common.array_types import Ints
from conformesh.common.names import unknown_name
from conformesh.graph.network import Network
from conformesh.kernels.graph import breadth_first
from conformesh.kernels.ranks import AUTO
from conformesh.kernels.segments import add_rows
from conformesh.protocols.block import Block
from conformesh.protocols.flood import flood_numbers, flood_strings
from conformesh.protocols.messages import Each, Packets, Protocol, narrowest_integer
from conformesh.protocols.tree import SpeakingTurns, grow_tree

# Devices up to which flooding is offered: each holds a table of the numbers of all devices, in a simulation K^2 rows.
MOST_FLOODING_DEVICES = 3000
# Price of flooding: on up to `_ALL_BALLS` devices the neighbourhoods of all devices are counted, on more those of
# `_SOME_BALLS` devices. The choice of `auto` depends on these numbers, so they must be the same on all devices.
_ALL_BALLS, _SOME_BALLS = 512, 16


class NetworkSum(TypingProtocol):
    """A function that sums integers >= 0 over all devices: shape (devices here, ...) in and out, each row the sum.

    The integers of the answer are as wide as `largest` needs, and may reuse the memory of `values`.
    """

    def __call__(self, values: Ints, largest: int | None = None) -> Protocol[Ints]:
        """Return the protocol; `largest` is a known upper bound of any sum, so that integers travel in few bits."""


class CannotAggregate(ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """An aggregator cannot add up on this network; another may."""


@dataclass(frozen=True)
class Price:
    """Cost of a sum of M numbers for each device: rounds, and M * `per_number` numbers; `setup` rounds once before."""

    rounds: int
    per_number: float
    setup: int = 0


@dataclass(frozen=True)
class Aggregator:
    """One way to add up over all devices.

    Attributes
    ----------
    prepare
        Protocol that sets it up (a spanning tree is built by messages) and returns the function that adds up.
    price
        What a sum costs on this network; raises `CannotAggregate`, with the reason, where it cannot be used.
    summary
        One sentence.
    schedules
        The schedules of E-DCP that can use it, the default first.
    masked
        Whether it can sum masked numbers (uint32): modulo 2^32, in words of fixed width.
    summands
        How a device's own numbers travel, for the privacy report: `below`, added to those of all devices below it in a
        tree; `everybody`, unchanged, to all devices.
    """

    prepare: Callable[[Block], Protocol[NetworkSum]]
    price: Callable[[Block], Price]
    summary: str
    schedules: tuple[str, ...] = ("count",)
    masked: bool = False
    summands: Literal["below", "everybody"] = "everybody"


# --- tree -------------------------------------------------------------------------------------------------------------


def _tree_total(block: Block) -> Protocol[NetworkSum]:
    """Build the tree by messages, then add up over it."""
    levels = yield from grow_tree(block)
    turns, depth = SpeakingTurns(levels, len(block.rows)), len(levels) - 1

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        x = np.ascontiguousarray(values, narrowest_integer(largest))  # no partial sum exceeds `largest`
        table = x.reshape(len(x), -1)
        for at, level in enumerate(reversed(levels[1:]), 1):  # up: children of one level speak at the same time
            heard = yield Each(x, level.members, turns.quiet(at, level.members if at > 1 else None))
            if len(level.children):
                said = heard.said_by(level.parent_rows, level.children)
                add_rows(table, level.parents, said.reshape(-1, table.shape[1]))
        for at, (level, below) in enumerate(pairwise(levels), depth + 1):  # down: who has heard the total passes it on
            heard = yield Each(x, level.speaking_down, turns.quiet(at, level.speaking_down))
            if len(below.members):
                x[below.members] = heard.said_by(below.rows, below.above)
        return x

    return total


def _tree_price(block: Block) -> Price:
    """Twice the depth in rounds, two numbers a device."""
    depth = block.network.centre_depth
    return Price(2 * depth, 2.0 * min(depth, 1), depth + 1)


# --- flood ------------------------------------------------------------------------------------------------------------


def _flood_total(block: Block) -> Protocol[NetworkSum]:
    """Return the function that floods and adds up."""
    yield from ()

    def total(values: Ints, largest: int | None = None) -> Protocol[Ints]:
        if values.dtype == np.uint32:
            # Masked numbers are uniform: no encoding is shorter, and a fixed width reveals nothing about them.
            words = np.ascontiguousarray(values.reshape(len(values), -1), dtype="<u4")
            strings = Packets.of([row.tobytes() for row in words])
            found = yield from flood_strings(block, strings, np.full(block.devices, words.shape[1]))
            everyone = _as_words(found, block, words.shape[1]).reshape(block.devices, *values.shape[1:])
        else:
            everyone = yield from flood_numbers(block, values)
        return np.repeat(everyone.sum(axis=0, dtype=np.int64)[None], len(values), axis=0)

    return total


def _as_words(found: Packets, block: Block, each: int) -> Ints:
    """Return the words of all devices; raise `ValueError` if one sent another number of words."""
    wrong = np.flatnonzero(np.diff(found.offsets) != 4 * each)
    if len(wrong):
        raise ValueError(
            f"device {block.network.ids[int(wrong[0])]} sent another number of words than {each}; run the same version "
            "of conformesh on every device"
        )
    return found.values.view("<u4").astype(np.int64)


def flood_price(block: Block) -> Price:
    """The diameter in rounds, and the number of every device once, except those that arrive in the last round."""
    if block.devices > MOST_FLOODING_DEVICES:
        raise CannotAggregate(
            f"flooding tells everybody all devices' numbers, too much beyond {MOST_FLOODING_DEVICES:,} devices"
        )
    rounds = block.network.diameter
    return Price(rounds, _within(block.network, rounds - 1) if rounds else 0.0)


@lru_cache(maxsize=16)  # networks are immutable and compared by identity; a search asks for prices several times
def _within(network: Network, hops: int) -> float:
    """Return the average number of devices within `hops` of a device, itself included."""
    rows = np.arange(network.devices)
    if network.devices > _ALL_BALLS:
        rows = np.linspace(0, network.devices - 1, _SOME_BALLS).astype(np.int64)
    levels, queue = np.empty((2, network.devices), dtype=np.int64)
    near = []
    for row in rows.tolist():
        breadth_first(network.indptr, network.indices, row, levels, queue)
        near.append(float((levels <= hops).sum()))
    return float(np.mean(near))


# --- the table, and the choice ----------------------------------------------------------------------------------------


AGGREGATORS: dict[str, Aggregator] = {
    "tree": Aggregator(
        _tree_total,
        _tree_price,
        "spanning tree, up and down: fewest numbers",
        schedules=(AUTO, "top-k", "window", "count"),
        masked=True,
        summands="below",
    ),
    "flood": Aggregator(
        _flood_total,
        flood_price,
        "everybody's numbers to everybody: fewest rounds, most numbers",
        schedules=("top-k", "count"),
        masked=True,
    ),
}
# Exponents of rounds and of numbers in the product that `auto` minimises. Bits follow numbers closely, so they share
# one.
PREFERENCES = {"rounds": (1.0, 0.0), "numbers": (0.0, 1.0), "bits": (0.0, 1.0), "balanced": (1.0, 1.0)}


def rank_aggregators(block: Block, prefer: str, width: int) -> list[tuple[str, Price]]:
    """Return the aggregators that can serve this network, best first, by rounds^a * numbers^b."""
    if prefer not in PREFERENCES:
        raise ValueError(f"prefer must be one of {', '.join(PREFERENCES)}, got {prefer!r}")
    return sort_by_price(aggregator_prices(block), prefer, width)


def aggregator_prices(block: Block) -> dict[str, Price]:
    """Return what a sum costs by each aggregator that can be used here; the tree always can."""
    prices = {}
    for name, aggregator in AGGREGATORS.items():
        with suppress(CannotAggregate):
            prices[name] = aggregator.price(block)
    return prices


def sort_by_price(prices: dict[str, Price], prefer: str, width: int) -> list[tuple[str, Price]]:
    """Sort ways to add up `width` numbers, best first."""
    a, b = PREFERENCES[prefer]
    cost = {name: (price.rounds, width * price.per_number) for name, price in prices.items()}
    weighed = {
        name: ((rounds + 1) ** a * (numbers + 1) ** b, rounds + numbers) for name, (rounds, numbers) in cost.items()
    }
    return sorted(prices.items(), key=lambda entry: weighed[entry[0]])


def get_aggregator(name: str) -> Aggregator:
    """Return an aggregator; an unknown name raises an error that lists the known ones."""
    if name not in AGGREGATORS:
        raise ValueError(unknown_name("aggregator", name, aggregate_choices()))
    return AGGREGATORS[name]


def sum_over_devices(block: Block, numbers: Ints, largest: int, aggregate: str = AUTO) -> Protocol[Ints]:
    """Return the sum of a vector of whole numbers over all devices, (numbers,); `auto` is the tree."""
    total = yield from get_aggregator("tree" if aggregate == AUTO else aggregate).prepare(block)
    found = yield from total(numbers, largest)
    return np.asarray(found[0], dtype=np.int64)


def aggregate_choices() -> tuple[str, ...]:
    """Return the values of an option `aggregate`."""
    return (AUTO, *AGGREGATORS)
