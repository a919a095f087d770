import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.protocols import aggregate
from conformesh.protocols.aggregate import (
    AGGREGATORS,
    CannotAggregate,
    Price,
    flood_price,
    get_aggregator,
    rank_aggregators,
    sort_by_price,
)
from conformesh.protocols.block import Block
from conformesh.protocols.messages import narrowest_integer
from tests.strategies import networks


def add_up(network, values, name, sizes=None):
    block = Block.everywhere(network, values.reshape(len(values), -1) if sizes is None else sizes)
    aggregator = AGGREGATORS[name]
    aggregator.price(block)  # refuses where it cannot be used

    def run():
        total = yield from aggregator.prepare(block)
        return (yield from total(values, int(values.sum(axis=0).max(initial=0))))

    return Simulator(network).run(run())


@pytest.mark.parametrize("name", AGGREGATORS)
@settings(max_examples=60)
@given(network=networks(most=25), seed=st.integers(0, 2**32 - 1), top=st.sampled_from([1, 100, 10**6]))
def test_theorem_sums_are_exact_everywhere(name, network, seed, top):
    """Any connected graph, any shape of integers: every device ends with the sum, in int64."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, top + 1, size=(network.devices, 3, 2))
    found, _ = add_up(network, values, name)
    np.testing.assert_array_equal(found, np.broadcast_to(values.sum(axis=0), values.shape))


def test_a_tree_sends_two_numbers_a_device(topology):
    values = np.ones((20, 7), dtype=np.int64)
    _, cost = add_up(topology, values, "tree")
    assert cost.numbers.max() <= 1 + 2 * 7  # one to build
    assert cost.rounds == AGGREGATORS["tree"].price(Block.everywhere(topology, values)).rounds + (
        AGGREGATORS["tree"].price(Block.everywhere(topology, values)).setup
    )


def test_integers_travel_in_as_few_bits_as_hold_the_sum():
    net, values = Network.chain(3), np.array([[1], [2], [3]])
    _, cost = add_up(net, values, "flood")  # the ends pass on two entries of 3 bytes each, the middle all three
    assert cost.bits.tolist() == [8 * 6, 8 * 9, 8 * 6]
    assert cost.numbers.tolist() == [2, 3, 2]
    _, cost = add_up(net, values * 100, "flood")  # 100 takes one byte, 200 and 300 take two
    assert cost.bits.tolist() == [8 * 7, 8 * 11, 8 * 8]


def test_prices_are_what_runs_cost(topology):
    values = np.ones((20, 5), dtype=np.int64)
    for name, aggregator in AGGREGATORS.items():
        price = aggregator.price(Block.everywhere(topology, values))
        _, cost = add_up(topology, values, name)
        assert cost.rounds == price.rounds + price.setup
        if name != "tree":
            assert cost.numbers_per_device == 5 * price.per_number


@pytest.mark.parametrize("prefer", ["rounds", "numbers", "balanced"])
def test_auto_puts_the_cheapest_way_first(topology, prefer):
    block = Block.everywhere(topology, np.ones((20, 1), dtype=np.int64))
    names = [name for name, _ in rank_aggregators(block, prefer, 4)]
    assert {*names} == {"tree", "flood"}
    prices = {name: (price.rounds, 4 * price.per_number) for name, price in rank_aggregators(block, prefer, 4)}
    if prefer == "rounds":
        assert prices[names[0]][0] == min(rounds for rounds, _ in prices.values())
    if prefer == "numbers":
        assert prices[names[0]][1] == min(numbers for _, numbers in prices.values())


def test_unknown_names_suggest():
    with pytest.raises(ValueError, match="did you mean 'flood'"):
        get_aggregator("flod")
    with pytest.raises(ValueError, match="known: auto, tree, flood"):
        get_aggregator("finite-time")
    with pytest.raises(ValueError, match="prefer must be one of"):
        rank_aggregators(Block.everywhere(Network.chain(2), np.ones((2, 1), dtype=np.int64)), "speed", 1)


# --- prices -------------------------------------------------------------------


def held(network, each=5, trials=1):
    return Block.everywhere(network, np.full((network.devices, trials), each))


@pytest.mark.parametrize(
    ("prefer", "prices", "order"),
    [
        ("balanced", {"b": (4, 1), "a": (0, 8)}, "ab"),  # 5 * 2 and 1 * 9
        ("balanced", {"b": (1, 4), "a": (8, 0)}, "ab"),
        ("balanced", {"b": (1, 3), "a": (2, 1)}, "ab"),  # 2 * 4 and 3 * 2
        ("balanced", {"b": (3, 1), "a": (1, 2)}, "ab"),
        ("balanced", {"b": (1, 5), "a": (2, 3)}, "ab"),  # 12 both, and then what is less in all
        ("rounds", {"b": (2, 0), "a": (1, 9)}, "ab"),
        ("rounds", {"b": (1, 9), "a": (1, 8)}, "ab"),
        ("numbers", {"b": (0, 2), "a": (9, 1)}, "ab"),
    ],
)
def test_ways_are_ordered_by_the_product_of_what_is_preferred(prefer, prices, order):
    """(rounds + 1)^a (numbers + 1)^b, with numbers for as many as are added up at once."""
    for width in (1, 2):
        given = {name: Price(rounds, numbers / width) for name, (rounds, numbers) in prices.items()}
        assert "".join(name for name, _ in sort_by_price(given, prefer, width)) == order


def test_flooding_ends_where_tables_grow_too_large(monkeypatch):
    monkeypatch.setattr(aggregate, "MOST_FLOODING_DEVICES", 5)
    assert flood_price(held(Network.cycle(5))) == Price(2, 3.0)
    with pytest.raises(CannotAggregate, match="beyond 5 devices"):
        flood_price(held(Network.cycle(6)))


@pytest.mark.parametrize(
    ("largest", "kind"),
    [
        (None, np.int64),
        (0, np.int8),
        (127, np.int8),
        (128, np.int16),
        (2**15 - 1, np.int16),
        (2**15, np.int32),
        (2**31 - 1, np.int32),
        (2**31, np.int64),
    ],
)
def test_integers_are_as_wide_as_the_largest_sum(largest, kind):
    assert narrowest_integer(largest) == kind
