"""What a sum over all devices costs, by each aggregator: its own price, and who speaks."""

from __future__ import annotations

from collections.abc import Callable

from conformesh.planning.phases import Phase
from conformesh.planning.terrain import Terrain
from conformesh.protocols.aggregate import get_aggregator
from conformesh.protocols.aggregate.base import narrow_type

USES = {  # of the network; an aggregator that is not here is assumed to use everything
    "tree": frozenset({"hops", "tree", "degree"}),
    "flood": frozenset({"hops"}),
    "finite-time": frozenset({"hops", "spectrum"}),
    "chebyshev": frozenset({"hops", "spectrum", "degree"}),
    "gossip": frozenset({"hops", "spectrum", "degree"}),
}
EVERYTHING = frozenset({"hops", "tree", "degree", "spectrum"})
Sum = Callable[[str, int, int | None], list[Phase]]  # what, numbers, the largest possible sum -> phases


def setting_up(name: str, terrain: Terrain) -> list[Phase]:
    """Return what happens once before the first sum."""
    if name != "tree" or terrain.tree.depth == 0:
        return []
    tree = terrain.tree
    return [Phase("build the tree", tree.depth + 1, 1, 32, spoken=1, most=1, copies=tree.growing, dimensions=0)]


def sum_by(name: str, terrain: Terrain) -> Sum:
    """Return the function that says what a sum costs; refuses, as the aggregator does, where it cannot be exact."""
    price = get_aggregator(name).price(terrain.site)

    def tree(what: str, numbers: int, largest: int | None) -> list[Phase]:
        shape, bits, dims = terrain.tree, _bits(largest), _dimensions(largest)
        if shape.depth == 0:
            return []
        K = terrain.devices
        up = Phase(what, shape.depth, numbers, bits, (K - 1) / K, 1, shape.up, dims)
        down = Phase(what, shape.depth, numbers, bits, shape.parents, float(shape.depth > 1), shape.down, dims)
        return [up, down]

    def flood(what: str, numbers: int, largest: int | None) -> list[Phase]:
        whole = terrain.devices * numbers
        return [Phase(what, price.rounds, whole, _bits(largest), dimensions=_dimensions(largest) + 1)]

    def averaging(what: str, numbers: int, largest: int | None) -> list[Phase]:
        per_round = price.per_number / price.rounds if price.rounds else 0.0
        return [Phase(what, price.rounds, numbers * per_round, 64, dimensions=_dimensions(largest))]

    return {"tree": tree, "flood": flood}.get(name, averaging)


def _bits(largest: int | None) -> int:
    return 8 * narrow_type(largest).itemsize


def _dimensions(largest: int | None) -> int:
    return 1 if largest is None else 2  # the sum that gives n is a number per trial; counts are (width, problems)
