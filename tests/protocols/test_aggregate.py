import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.graph.weights import constant_weights
from conformesh.planning.terrain import Terrain
from conformesh.protocols.aggregate import (
    AGGREGATORS,
    Aggregator,
    CannotAggregate,
    InexactCount,
    Price,
    averaging,
    base,
    by_price,
    get_aggregator,
    ranked,
)
from conformesh.protocols.aggregate import chebyshev as chebyshev_way
from conformesh.protocols.aggregate import finite_time as finite_time_way
from conformesh.protocols.aggregate import flood as flood_way
from conformesh.protocols.aggregate import gossip as gossip_way
from conformesh.protocols.aggregate.chebyshev import chebyshev, chebyshev_rounds
from conformesh.protocols.aggregate.finite_time import finite_time_plan, leja
from conformesh.protocols.messages import narrow_type
from conformesh.protocols.predicting import Stretch
from conformesh.protocols.site import Site
from tests.strategies import networks


def add_up(network, values, name, sizes=None):
    site = Site.everywhere(network, values.reshape(len(values), -1) if sizes is None else sizes)
    aggregator = AGGREGATORS[name]
    aggregator.price(site)  # refuses where it cannot promise

    def run():
        total = yield from aggregator.prepare(site)
        return (yield from total(values, int(values.sum(axis=0).max(initial=0))))

    return Simulator(network).run(run())


@pytest.mark.parametrize("name", AGGREGATORS)
@settings(max_examples=60)
@given(network=networks(most=25), seed=st.integers(0, 2**32 - 1), top=st.sampled_from([1, 100, 10**6]))
def test_theorem_sums_are_exact_everywhere(name, network, seed, top):
    """Any connected graph, any shape of integers: every device ends with the sum, in int64."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, top + 1, size=(network.devices, 3, 2))
    try:
        found, _ = add_up(network, values, name)
    except CannotAggregate:
        assert name in ("finite-time", "gossip", "chebyshev")
        return
    np.testing.assert_array_equal(found, np.broadcast_to(values.sum(axis=0), values.shape))


@pytest.mark.parametrize(
    ("network", "rounds"),
    [
        (Network.chain(20), {"finite-time": 19, "flood": 19}),
        (Network.cycle(20), {"finite-time": 10, "flood": 10}),
        (Network.star(20), {"finite-time": 2, "flood": 2}),
        (Network.torus(5, 4), {"finite-time": 8, "flood": 4}),
        (Network.complete(20), {"finite-time": 1, "flood": 1}),
        (Network.chain(100), {"finite-time": 99, "flood": 99}),
    ],
    ids=lambda x: x.name if isinstance(x, Network) else "",
)
def test_theorem_finite_time_ends_after_the_distinct_eigenvalues(network, rounds):
    """At the diameter on chain, cycle, star and complete; a chain of 100 needs 99 rounds."""
    values = np.arange(network.devices)[:, None]
    for name, expected in rounds.items():
        found, cost = add_up(network, values, name)
        assert cost.rounds == expected
        assert (found == values.sum()).all()


def test_a_tree_sends_two_numbers_a_device(topology):
    values = np.ones((20, 7), dtype=np.int64)
    _, cost = add_up(topology, values, "tree")
    assert cost.numbers.max() <= 1 + 2 * 7  # one to build
    assert cost.rounds == AGGREGATORS["tree"].price(Site.everywhere(topology, values)).rounds + (
        AGGREGATORS["tree"].price(Site.everywhere(topology, values)).setup
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
        try:
            price = aggregator.price(Site.everywhere(topology, values))
        except CannotAggregate:
            continue
        _, cost = add_up(topology, values, name)
        assert cost.rounds == price.rounds + price.setup
        if name != "tree":
            assert cost.numbers_per_device == 5 * price.per_number


def test_theorem_chebyshev_shrinks_as_computed(topology):
    """The disagreement after T rounds is at most 1 / cosh(T arccosh(1 / rate)) of what it was, up to 1e-12."""
    weights = constant_weights(topology, topology.spectrum)
    site = Site.everywhere(topology, np.ones((20, 1), dtype=np.int64))
    x = np.random.default_rng(0).random((20, 1))
    for rounds in (1, 2, 5, 20):
        y, cost = Simulator(topology).run(chebyshev(x, site, float(weights.edge), weights.rate, rounds))
        assert cost.rounds == rounds
        factor = 1 / np.cosh(rounds * np.arccosh(1 / weights.rate)) if weights.rate > 1e-12 else 0.0
        assert np.linalg.norm(y - x.mean()) <= factor * np.linalg.norm(x - x.mean()) + 1e-12
        np.testing.assert_allclose(y.mean(), x.mean(), rtol=1e-12)
        if 0 < factor < 1:
            assert chebyshev_rounds(weights.rate, factor * (1 + 1e-9)) == rounds


def test_leja_order_keeps_round_off_small():
    """Ascending order on a chain of 60 loses the sum; Leja order does not."""
    net = Network.chain(60)
    roots, bound = finite_time_plan(net)
    assert sorted(roots) == pytest.approx(np.linalg.eigvalsh(net.laplacian().toarray())[1:])
    assert bound < 1e-9
    np.testing.assert_array_equal(leja(np.array([1.0, 2.0, 9.0, 10.0])), [10.0, 1.0, 2.0, 9.0])
    x = np.random.default_rng(1).integers(0, 100, 60).astype(float)
    laplacian = net.laplacian().toarray()

    def run(order):
        y = x.copy()
        for root in order:
            y = y - laplacian @ y / root
        return np.abs(y - x.mean()).max()

    assert run(roots) < 1e-9
    assert run(np.sort(roots)[::-1]) > 1.0


def test_a_spoilt_spectrum_is_caught_by_the_integer_check(monkeypatch):
    """Ablation: eigenvalues a tenth of a percent off leave the counts off integers; no count is returned."""
    from conformesh.protocols.aggregate import finite_time

    honest = finite_time.finite_time_plan
    monkeypatch.setattr(finite_time, "finite_time_plan", lambda net: (honest(net)[0] * 1.001, honest(net)[1]))
    values = np.random.default_rng(0).integers(0, 1000, (20, 40))
    with pytest.raises(InexactCount, match="away from an integer"):
        add_up(Network.chain(20), values, "finite-time")


@pytest.mark.parametrize("prefer", ["rounds", "numbers", "balanced"])
def test_auto_puts_an_exact_way_first(topology, prefer):
    site = Site.everywhere(topology, np.ones((20, 1), dtype=np.int64))
    names = [name for name, _ in ranked(site, prefer, 4)]
    assert AGGREGATORS[names[0]].exact
    prices = {name: (price.rounds, 4 * price.per_number) for name, price in ranked(site, prefer, 4)}
    if prefer == "rounds":
        assert prices[names[0]][0] == min(rounds for rounds, _ in prices.values())
    if prefer == "numbers":
        assert prices[names[0]][1] == min(numbers for _, numbers in prices.values())


def test_unknown_names_suggest():
    with pytest.raises(ValueError, match="did you mean 'finite-time'"):
        get_aggregator("finite_time")
    with pytest.raises(ValueError, match="prefer must be one of"):
        ranked(Site.everywhere(Network.chain(2), np.ones((2, 1), dtype=np.int64)), "speed", 1)


# --- prices, error bounds and what a sum would send -------------------------------------------------------------------


def held(network, each=5, trials=1):
    return Site.everywhere(network, np.full((network.devices, trials), each))


def test_disagreement_must_shrink_until_a_sum_is_off_by_less_than_a_tenth():
    """K times what is left of at most n, twice over, is SAFE = 0.2; with no scores at all n counts as 1."""
    assert averaging.shrink_needed(held(Network.chain(4), 3)) == pytest.approx(0.2 / (2 * 4 * 12), rel=1e-15)
    assert averaging.shrink_needed(held(Network.chain(4), 0)) == pytest.approx(0.2 / (2 * 4), rel=1e-15)
    uneven = Site.everywhere(Network.chain(2), np.array([[1, 30], [2, 40]]))
    assert averaging.shrink_needed(uneven) == pytest.approx(0.2 / (2 * 2 * 70), rel=1e-15)  # the trial with the most


def test_round_off_of_a_round_grows_with_the_largest_degree():
    """(degree + 6) sums and products, weights below 5 in all, twice: of 2^-53 each."""
    assert averaging.roundoff(Network.star(5)) == (4 + 6) * 5 * 2 * 2.0**-53
    assert averaging.roundoff(Network.cycle(5)) == (2 + 6) * 5 * 2 * 2.0**-53


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
        assert "".join(name for name, _ in by_price(given, prefer, width)) == order


def test_there_is_room_for_half_of_what_is_safe():
    for site, one in ((held(Network.chain(1), 1), 1), (held(Network.chain(2), 5), 20), (held(Network.chain(2), 0), 2)):
        averaging.room_for_roundoff(site, 0.0999 / one)
        with pytest.raises(CannotAggregate, match="float64 round-off"):
            averaging.room_for_roundoff(site, 0.1001 / one)
    with pytest.raises(CannotAggregate):
        averaging.room_for_roundoff(held(Network.chain(1), 1), 0.1)


def test_means_are_sums_only_where_both_bounds_hold():
    site = held(Network.chain(4))
    np.testing.assert_array_equal(averaging.whole(np.array([[2.5], [0.3]]), site, 0.2), [[10], [1]])
    assert averaging.whole(np.array([[0.0625]]), site, 0.2499).tolist() == [[0]]  # a quarter away, which is allowed
    assert averaging.whole(np.zeros((4, 0)), site, 0.1).shape == (4, 0)
    for mean, error in ((0.064, 0.2), (0.5, 0.25), (0.5, np.inf), (0.5, np.nan)):
        with pytest.raises(InexactCount, match="away from an integer"):
            averaging.whole(np.array([[mean]]), site, error)


def rooms(monkeypatch, module, price, site):
    asked = []
    monkeypatch.setattr(module, "room_for_roundoff", lambda site, relative: asked.append(relative))
    return price(site), asked


def test_gossip_has_room_for_the_round_off_of_its_rounds(monkeypatch):
    """One unit a round for gossip; Chebyshev's polynomials grow linearly, so that its units add up to a square."""
    network = Network.cycle(7)
    site = held(network)
    price, (relative,) = rooms(monkeypatch, gossip_way, gossip_way.gossip_price, site)
    assert price.rounds == price.per_number > 10
    assert relative == price.rounds * averaging.roundoff(network)
    price, (relative,) = rooms(monkeypatch, chebyshev_way, chebyshev_way.chebyshev_price, site)
    assert price.rounds == price.per_number > 5
    assert relative == (price.rounds + 2) ** 2 * averaging.roundoff(network)
    for module, of in ((gossip_way, gossip_way.gossip_price), (chebyshev_way, chebyshev_way.chebyshev_price)):
        assert rooms(monkeypatch, module, of, held(Network.chain(1)))[0].rounds == 0  # nobody to talk to


@pytest.mark.parametrize(
    ("rate", "factor", "rounds"),
    [(0.5, 1.0, 0), (0.5, 2.0, 0), (0.0, 0.1, 1), (1e-12, 0.1, 1), (0.5, 0.9999, 1), (0.5, 0.5, 1), (0.5, 0.499, 2)],
)
def test_chebyshev_takes_the_fewest_rounds(rate, factor, rounds):
    assert chebyshev_rounds(rate, factor) == rounds


def test_finite_time_trusts_a_sum_as_far_as_its_eigenvalues(monkeypatch):
    """An error of `relative` of the sum on each of K devices, and the sum as found may be short by that much."""
    network, seen = Network.chain(4), []
    roots = finite_time_plan(network)[0]
    monkeypatch.setattr(finite_time_way, "whole", lambda x, site, error: seen.append(error) or x)

    def run():
        total = yield from finite_time_way.finite_time_total(held(network))
        return (yield from total(np.array([[1], [2], [3], [4]])))

    for relative, expected in ((0.0, 0.0), (0.05, 0.2 * 10 / 0.8), (0.25, np.inf), (1.0, np.inf)):
        monkeypatch.setattr(finite_time_way, "finite_time_plan", lambda net, r=relative: (roots, r))
        Simulator(network).run(run())
        assert seen.pop() == pytest.approx(expected, rel=1e-9)


def test_finite_time_is_offered_where_ten_million_can_be_added_up(monkeypatch):
    network = Network.chain(4)
    roots = finite_time_plan(network)[0]
    for relative, refused in ((0.0, False), (0.2 / 4e7 * 0.999, False), (0.2 / 4e7 * 1.001, True)):
        monkeypatch.setattr(finite_time_way, "finite_time_plan", lambda net, r=relative: (roots, r))
        if refused:
            with pytest.raises(CannotAggregate, match="10,000,000"):
                finite_time_way.finite_time_price(held(network))
        else:
            assert finite_time_way.finite_time_price(held(network)) == Price(3, 3)


def test_flooding_ends_where_tables_grow_too_large(monkeypatch):
    monkeypatch.setattr(flood_way, "LARGEST_TABLE", 5)
    assert flood_way.flood_price(held(Network.cycle(5))) == Price(2, 3.0)
    with pytest.raises(CannotAggregate, match="beyond 5 devices"):
        flood_way.flood_price(held(Network.cycle(6)))


@pytest.mark.parametrize(
    ("largest", "kind", "bits"),
    [
        (None, np.int64, 64),
        (0, np.int8, 8),
        (127, np.int8, 8),
        (128, np.int16, 16),
        (2**15 - 1, np.int16, 16),
        (2**15, np.int32, 32),
        (2**31 - 1, np.int32, 32),
        (2**31, np.int64, 64),
    ],
)
def test_integers_are_as_wide_as_the_largest_sum(largest, kind, bits):
    assert (narrow_type(largest), base.bits_of(largest)) == (kind, bits)


def test_a_sum_without_a_plan_of_its_own_is_planned_by_its_price():
    """Floats of 64 bits, as many numbers a round as make up the price; setting up is one number a round."""
    terrain = Terrain.of(Network.chain(3), [5, 5, 5])
    way = Aggregator(None, lambda site: Price(4, 10.0, 3), "ten numbers in four rounds")
    assert way.sent_before(terrain) == [Stretch("prepare sums", 3, 1, 64)]
    assert way.sent_for(terrain, "a stage", 6, 100) == [Stretch("a stage", 4, 15.0, 64, number_ns=1.5)]
    assert way.sent_for(terrain, "add up n", 1, None) == [Stretch("add up n", 4, 2.5, 64, number_ns=1.5)]
    alone = Aggregator(None, lambda site: Price(site.devices - 3, 0.0), "nobody else")
    assert alone.sent_before(terrain) == []
    assert alone.sent_for(terrain, "a stage", 6, 100) == [Stretch("a stage", 0, 0.0, 64, number_ns=1.5)]
    slow = Aggregator(None, lambda site: Price(2, 2.0), "slow to simulate", number_ns=5.0)
    assert slow.sent_for(terrain, "a stage", 1, 100) == [Stretch("a stage", 2, 1.0, 64, number_ns=5.0)]


def test_a_tree_is_planned_by_who_speaks():
    """On a star all but the root speak on the way up, the root alone on the way down; a chain has all but its ends."""
    star, chain, alone = (
        Terrain.of(Network.of(name, k), [5] * k) for name, k in (("star", 5), ("chain", 4), ("chain", 1))
    )
    tree = AGGREGATORS["tree"]
    (built,) = tree.sent_before(star)
    assert (built.what, built.rounds, built.numbers, built.bits, built.said) == ("build the tree", 2, 1, 8, (1, 1))
    up, down = tree.sent_for(star, "a stage", 3, 100)
    assert [(one.what, one.rounds, one.numbers, one.bits) for one in (up, down)] == [("a stage", 1, 3, 8)] * 2
    assert (up.said, down.said) == ((4 / 5, 1), (1 / 5, 0.0))
    up, down = tree.sent_for(chain, "a stage", 3, 100)
    assert (up.rounds, up.said, down.rounds, down.said) == (2, (3 / 4, 1), 2, (2 / 4, 1.0))
    assert tree.sent_before(alone) == tree.sent_for(alone, "a stage", 3, 100) == []
    wide = Terrain.of(Network.chain(128), [5] * 128)  # rows up to 127 fit into a byte, and 128 devices do not
    assert [one.bits for one in tree.sent_before(wide)] == [16]
