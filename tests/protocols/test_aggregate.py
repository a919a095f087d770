import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.graph.weights import constant_weights
from conformesh.protocols.aggregate import AGGREGATORS, CannotAggregate, InexactCount, get_aggregator, ranked
from conformesh.protocols.aggregate.chebyshev import chebyshev, chebyshev_rounds
from conformesh.protocols.aggregate.finite_time import finite_time_plan, leja
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
    _, cost = add_up(net, values, "flood")
    assert cost.bits_per_device == 2 * 3 * 16
    _, cost = add_up(net, values * 10**6, "flood")
    assert cost.bits_per_device == 2 * 3 * 32


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
    prices = {name: price.of(4) for name, price in ranked(site, prefer, 4)}
    if prefer == "rounds":
        assert prices[names[0]][0] == min(rounds for rounds, _ in prices.values())
    if prefer == "numbers":
        assert prices[names[0]][1] == min(numbers for _, numbers in prices.values())


def test_unknown_names_suggest():
    with pytest.raises(ValueError, match="did you mean 'finite-time'"):
        get_aggregator("finite_time")
    with pytest.raises(ValueError, match="prefer must be one of"):
        ranked(Site.everywhere(Network.chain(2), np.ones((2, 1), dtype=np.int64)), "speed", 1)
