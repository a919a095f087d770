"""Projection gossip: bounds hold whatever was lost, the fixed point is the mean, and planted mistakes are caught."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import Faults, Network, calibrate
from conformesh.engines import Simulator
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols import projection_gossip
from conformesh.protocols.block import Block
from conformesh.protocols.bounds import tracked_weights
from conformesh.protocols.bounds.tracked_weights import (
    combine_rows,
    combined_noise,
    count_bounds,
    tracked_epsilon,
    whole_counts,
)
from conformesh.protocols.messages import PacketDeliveries
from conformesh.protocols.projection_gossip import ProjectionGossip
from conformesh.protocols.row_combination import WeightRows, best_combination
from tests.campaigns import campaign_seeds


def drawn(seed, devices=6, bins=12):
    """Return scores on few values, so that ties and empty devices occur, and a random connected network."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 9, devices)
    sizes[0] += 1
    scores = [rng.integers(0, 2 * bins, size) / (2 * bins) for size in sizes]
    return scores, Network.erdos_renyi(devices, p=0.5, seed=seed), bins, rng


def followed(scores, network, bins, faults, rounds, look, range_=(0.0, 1.0)):
    """Run projection gossip and look at the devices after every round."""
    samples = WeightedScores.of(scores)
    block = Block(network, np.arange(network.devices), samples.sizes, alphas=(Fraction(1, 10),))

    def protocol():
        devices = ProjectionGossip(block, samples, bins, range_)
        look(devices)
        for _ in range(rounds):
            devices.hear((yield devices.message()))
            look(devices)
        return devices

    return Simulator(network).run(protocol(), 1, faults)[0]


def wrong_counts(devices, scores):
    """Return how many counts lie outside what a device says it knows."""
    if devices.quantiser is None:
        return 0
    truth = np.searchsorted(np.sort(np.concatenate(scores)), devices.quantiser.edges[0], side="right")
    found = devices.counts(0)
    return int(((found.low > truth) | (found.high < truth)).sum())


def watched(scores):
    """Return how many counts are wrong after each round, and who looks at that."""
    seen = []
    return seen, lambda devices: seen.append(wrong_counts(devices, scores))


@pytest.mark.parametrize("range_", [(0.0, 1.0), None])
def test_theorem_tracked_weights(range_):
    """Bounds hold after every round of 40 random networks and fault plans: 40 x 26 x 6 x 12 intervals, none wrong."""
    exact = 0
    for seed in range(40):
        scores, network, bins, rng = drawn(seed)
        faults = Faults(*rng.uniform([0, 0.3, 0.3], [0.8, 1, 1]), seed=seed)
        seen, look = watched(scores)
        last = followed(scores, network, bins, faults, 25, look, range_)
        assert sum(seen) == 0
        exact += last.counts(0).exact.all()
    assert exact > 10  # not because nothing was claimed


@pytest.mark.slow
def test_bounds_hold_over_thousands_of_schedules():
    """1000 plans (times CONFORMESH_LONG), 20 rounds each."""
    for seed in campaign_seeds(1000):
        scores, network, bins, rng = drawn(10_000 + seed, int(rng_size(seed)))
        faults = Faults(*rng.uniform([0, 0.2, 0.2], [0.9, 1, 1]), seed=seed)
        seen, look = watched(scores)
        followed(scores, network, bins, faults, 20, look)
        assert sum(seen) == 0


def rng_size(seed):
    return np.random.default_rng(seed).integers(2, 12)


# --- bounds of any weights, and mistakes in them -------------------------------------------------------------------


def violations(bound, trials=400):
    """Return how often bounds of one row are wrong, for any weights, sizes and counts within them."""
    wrong = 0
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(0, 20, 5).astype(float)
        counts = np.sort([rng.integers(0, size + 1, 4) for size in sizes], axis=1).T  # (edges, devices), not falling
        weights = rng.normal(1, rng.choice([0.01, 0.3, 3]), 5)
        noise = float(rng.choice([0.0, 0.5]))
        x = counts @ weights + noise * rng.uniform(-1, 1, 4)
        low, high = bound((x, np.zeros(4)), (weights, np.zeros(5)), noise, sizes)
        truth = counts.sum(axis=1)
        wrong += int(((low > truth + 1e-9) | (high < truth - 1e-9)).any())
    return wrong


def test_bounds_hold_for_any_weights():
    assert violations(count_bounds) == 0


def test_the_best_scale_is_never_worse_and_often_better():
    """Of a device that has heard of half of the others only: x alone says nothing, the best lambda the half."""
    sizes, weights = np.full(10, 10.0), np.repeat([0.5, 0.0], 5)
    x = np.array([0.5 * 50])  # all scores of those heard lie below
    low, _ = count_bounds((x, np.zeros(1)), (weights, np.zeros(10)), 0.0, sizes)
    assert low[0] == pytest.approx(50)
    assert x[0] - np.maximum(weights - 1, 0) @ sizes == 25


def _without_positive_part(deviations, sizes):
    return (deviations * sizes).sum(axis=-1), (-deviations * sizes).sum(axis=-1)


def _sides_exchanged(deviations, sizes):
    return (np.maximum(-deviations, 0) * sizes).sum(axis=-1), (np.maximum(deviations, 0) * sizes).sum(axis=-1)


def _mean_size(deviations, sizes):
    return tuple((np.maximum(side, 0) * sizes.mean()).sum(axis=-1) for side in (deviations, -deviations))


@pytest.mark.parametrize("mistake", [_without_positive_part, _sides_exchanged, _mean_size])
def test_a_wrong_bound_is_caught(monkeypatch, mistake):
    monkeypatch.setattr(tracked_weights, "one_sided_sums", mistake)
    assert violations(count_bounds) > 0


def test_forgotten_noise_is_caught():
    assert violations(lambda x, weights, noise, sizes: count_bounds(x, weights, 0.0, sizes)) > 0


def test_rows_that_contradict_themselves_are_an_error_not_a_count():
    weights = np.ones((1, 4))
    for wrong in (10.5, 40.0, -3.0):  # no whole number, more than there are, fewer than none
        x = np.full((1, 3), wrong)
        with pytest.raises(ArithmeticError, match="no threshold can be certified"):
            whole_counts((x, 0 * x), (weights, 0 * weights), np.zeros(1), np.full(4, 5.0))


@pytest.mark.parametrize("mistake", ["weights only", "numbers only"])
def test_weights_and_numbers_that_part_ways_are_caught(monkeypatch, mistake):
    """An update of one half of a row without the other: counts outside of what is claimed, or claims that conflict."""

    def half(coefficients, high, low):
        new, rest = combine_rows(coefficients, high, low)
        part = slice(6, None) if mistake == "weights only" else slice(0, 6)
        new[..., part], rest[..., part] = high[:, 0, part], low[:, 0, part]
        return new, rest

    monkeypatch.setattr(projection_gossip, "combine_rows", half)
    caught = 0
    for seed in range(10):
        scores, network, bins, _ = drawn(seed)
        seen, look = watched(scores)
        try:
            followed(scores, network, bins, Faults(loss=0.3, seed=seed), 10, look)
        except ArithmeticError:
            caught += 1
        caught += sum(seen) > 0
    assert caught


# --- arithmetic ----------------------------------------------------------------------------------------------------


def _exactly(coefficients, high, low):
    pairs = zip(coefficients.tolist(), high.tolist(), low.tolist(), strict=True)
    return sum(Fraction(c) * (Fraction(h) + Fraction(r)) for c, h, r in pairs)


@given(st.integers(0, 10**6), st.integers(2, 20))
def test_a_combination_is_as_exact_as_it_says(seed, many):
    """Against fractions, with coefficients that cancel."""
    rng = np.random.default_rng(seed)
    high = rng.normal(size=(1, many, 3)) * 10.0 ** rng.integers(-3, 4)
    low = high * rng.uniform(-1, 1, high.shape) * 2.0**-54
    c = rng.normal(size=(1, many)) * 10.0 ** rng.integers(0, 3, (1, many))
    new, rest = combine_rows(c, high, low)
    for m in range(3):
        off = abs(Fraction(new[0, m]) + Fraction(rest[0, m]) - _exactly(c[0], high[0, :, m], low[0, :, m]))
        size = float((np.abs(c[0]) * np.abs(high[0, :, m])).sum())
        assert off <= 3 * many * (many + 3) * 2.0**-106 * size
        assert abs(rest[0, m]) <= 2.0**-53 * abs(new[0, m])


def test_the_error_bound_covers_what_round_off_does():
    """Rows are followed in fractions through 25 rounds: |x - sum a N| never exceeds the bound, which is not idle."""
    scores, network, bins, _ = drawn(3)
    samples = WeightedScores.of(scores)
    largest = []

    def look(devices):
        counts = devices.own.high[:, 0, 6:]
        for k in range(6):
            row = [
                Fraction(h) + Fraction(r) for h, r in zip(devices.view.high[k, 0], devices.view.low[k, 0], strict=True)
            ]
            for m in range(bins):
                off = abs(row[6 + m] - sum(a * int(count) for a, count in zip(row[:6], counts[:, m], strict=True)))
                assert off <= Fraction(devices.view.noises[k, 0])
                largest.append(float(off))

    followed(scores, network, bins, Faults(loss=0.3, seed=1), 25, look)
    assert max(largest) > 0
    assert samples.devices == 6


def test_float64_alone_would_not_do():
    c, high = np.array([[1.0, -1.0]]), np.array([[[1.0], [1.0]]])
    low = np.array([[[2.0**-60], [0.0]]])
    new, rest = combine_rows(c, high, low)
    assert new[0, 0] + rest[0, 0] == 2.0**-60
    assert combined_noise(c, np.ones((1, 2)), np.zeros((1, 2)))[0] < 2.0**-60


# --- the step ------------------------------------------------------------------------------------------------------


def test_a_step_never_goes_away_from_the_aim():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        weights, sizes = rng.normal(0.5, 0.6, (3, 5, 7)), rng.integers(0, 9, (3, 7)).astype(float) + 0.0
        weights[:, -1] = np.eye(7)[:3]
        sizes[:, :2] += 1
        coefficients, noises = best_combination(WeightRows(weights, np.full((3, 5), 1e-20), sizes))
        new = (coefficients[:, :, None] * weights).sum(axis=1)

        def distance(a, sizes=sizes):
            return ((1 - a) ** 2 * sizes).sum(axis=1)

        assert (distance(new) <= distance(weights[:, 0]) * (1 + 1e-9)).all()
        assert (noises <= 0.1).all()


def test_theorem_the_fixed_point_of_projection_gossip():
    """On connected graphs whose links speak often enough all weights end at one: the exact counts everywhere."""
    for seed, network in enumerate([Network.chain(6), Network.cycle(7), Network.star(5), Network.complete(4)]):
        scores = [np.random.default_rng([seed, k]).random(5) for k in range(network.devices)]
        devices = followed(scores, network, 10, Faults(loss=0.4, seed=seed), 80, lambda devices: None)
        assert devices.epsilons(0).max() < 1e-6
        assert devices.counts(0).exact.all()


def test_without_oneself_the_fixed_point_is_not_the_mean(monkeypatch):
    """Leave out what a device knows of itself: rows agree on something else, and say honestly that they do not know."""

    def without(rows):
        others = rows.weights.copy()
        others[:, -1 - projection_gossip.ROWS_REMEMBERED :] = (
            0  # neither the unit vector nor the first row, which was the same
        )
        return best_combination(rows._replace(weights=others))

    monkeypatch.setattr(projection_gossip, "best_combination", without)
    scores = [np.random.default_rng(k).random(5) for k in range(6)]
    devices = followed(scores, Network.chain(6), 10, Faults(loss=0.4), 80, lambda devices: None)
    assert devices.epsilons(0).max() > 0.01
    assert wrong_counts(devices, scores) == 0


def test_a_network_that_falls_apart_stays_valid_and_says_so():
    """One of two halves hears nothing of the other: bounds are wide and true."""
    scores = [np.random.default_rng(k).random(20) for k in range(6)]
    network = Network.chain(6)
    samples = WeightedScores.of(scores)
    block = Block(network, np.arange(6), samples.sizes, alphas=(Fraction(1, 10),))
    devices = ProjectionGossip(block, samples, 20, (0.0, 1.0))
    for _ in range(10):
        message = devices.message()
        pairs = [(k, j) for k in range(6) for j in (k - 1, k + 1) if 0 <= j < 6 and (k < 3) == (j < 3)]
        receiver, sender = np.array(pairs).T
        devices.hear(_told(message, receiver, sender))
    assert wrong_counts(devices, scores) == 0
    assert devices.epsilons(0).min() > 0.4
    low = devices.counts(0).low[:, -1]
    assert low.tolist() == [60] * 6  # all of its own half, surely


def _told(message, receiver, sender):
    return PacketDeliveries(receiver, sender, message.packets.take(sender))


# --- the method ----------------------------------------------------------------------------------------------------


def test_counted_where_exact_and_equal_to_the_other_ways():
    scores = [np.random.default_rng(k).random(40) for k in range(8)]
    usual = calibrate(scores, Network.cycle(8), 0.1, "h-dcp", bins=100)
    for faults in (None, {"loss": 0.3, "seed": 1}, {"activation": 0.5}, {"links": 0.5}):
        found = calibrate(scores, Network.cycle(8), 0.1, "h-dcp", bins=100, consensus="projection", faults=faults)
        assert found.certificate.kind == "counted"
        assert found.threshold == usual.threshold
        assert found.certificate.counted_rank == usual.certificate.counted_rank


@pytest.mark.filterwarnings("ignore:h-dcp")
def test_too_few_rounds_are_bounded_and_valid():
    scores = [np.random.default_rng(k).random(40) for k in range(12)]
    pooled = np.concatenate(scores)
    options = {"bins": 100, "consensus": "projection"}
    for rounds in range(0, 14, 2):
        faults = {"loss": 0.2, "seed": rounds}
        found = calibrate(scores, Network.chain(12), 0.1, "h-dcp", rounds=rounds, faults=faults, **options)
        assert found.certificate.kind == "bounded"
        assert 0 < found.certificate.epsilon <= 1
        for threshold in found.thresholds:
            assert (pooled <= threshold).sum() >= found.certificate.required_rank
    with pytest.warns(UserWarning, match="12 of 12 devices here know too little"):
        calibrate(scores, Network.chain(12), 0.1, "h-dcp", rounds=2, **options)


def test_infinite_scores_ties_and_empty_devices():
    scores = [[0.5, 0.5, np.inf], [], [0.5], [-1.0, 2.0, 2.0], [0.1] * 10]
    network = Network.cycle(5)
    usual = calibrate(scores, network, 0.3, "h-dcp", bins=50)
    found = calibrate(scores, network, 0.3, "h-dcp", bins=50, consensus="projection", faults={"loss": 0.3})
    assert found.threshold == usual.threshold


def test_trials_do_not_disturb_each_other():
    trials = [[np.random.default_rng([t, k]).random(5 + t + k) for k in range(5)] for t in range(3)]
    options = {"consensus": "projection", "bins": 30, "range": (0.0, 1.0), "rounds": 12, "faults": Faults(loss=0.3)}
    together = solve_draws(WeightedScores.of_trials(trials), Network.cycle(5), [0.2], "h-dcp", **options)
    for t, trial in enumerate(trials):
        alone = solve_draws(WeightedScores.of(trial), Network.cycle(5), [0.2], "h-dcp", **options)
        assert together.outcome.thresholds[:, t].tolist() == alone.outcome.thresholds[:, 0].tolist()
        assert together.cost.numbers.tolist() == alone.cost.numbers.tolist()


def test_what_does_not_fit_is_refused_with_what_it_would_take():
    with pytest.raises(ValueError, match=r"1,778 GB here.*q-dcp with asynchronous=True"):
        calibrate(np.zeros((100_000, 1)), Network.cycle(100_000), 0.1, "h-dcp", consensus="projection")


def test_it_knows_no_matrix():
    for option in ({"weights": "metropolis"}, {"spectrum": "estimated"}):
        with pytest.raises(ValueError, match="knows no consensus matrix"):
            calibrate([[1.0]] * 3, Network.chain(3), 0.5, "h-dcp", consensus="projection", **option)


def test_epsilon_is_that_of_the_row_bound():
    """Against the worst start in the box, corner by corner."""
    rng = np.random.default_rng(0)
    weights, sizes = rng.normal(1, 0.2, 5), rng.integers(1, 9, 5).astype(float)
    corners = np.array(np.meshgrid(*[[0, size] for size in sizes])).reshape(5, -1).T
    worst = np.abs(corners @ (weights - 1)).max() / sizes.sum()
    assert tracked_epsilon(weights, np.zeros(5), np.zeros(()), sizes) == pytest.approx(worst, rel=1e-5)
