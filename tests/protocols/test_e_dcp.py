import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import Network, TooFewScores, calibrate
from conformesh.kernels.keys import from_keys, to_keys
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols.aggregate import AGGREGATORS
from conformesh.scores import Logit
from tests.campaigns import campaign_seeds
from tests.reference import pooled_threshold
from tests.strategies import alphas, device_scores, networks, promised_rank


def run(scores, network, alpha=0.1, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TooFewScores)
        return calibrate(scores, network, alpha, "e-dcp", **options)


def assert_is_the_pooled_sort(scores, network, alpha, result):
    n = sum(map(len, scores))
    rank = promised_rank(scores, alpha)
    expected = pooled_threshold(scores, rank)
    assert result.certificate.kind == "counted"
    assert result.certificate.required_rank == rank
    assert (result.thresholds == expected).all()
    counted = sum(int((np.asarray(s) <= expected).sum()) for s in scores)
    assert result.certificate.counted_rank == (counted if rank <= n else n)


@settings(max_examples=3 * settings.default.max_examples)
@given(networks(most=14), alphas, st.sampled_from([None, 1, 2, 5, 40]), st.data())
def test_theorem_the_search_ends_at_the_pooled_sort(network, alpha, width, data):
    """Bit for bit, with ties, infinities, heavy tails, unequal and empty devices, by any aggregator that can."""
    scores = data.draw(device_scores(network.devices))
    name = data.draw(st.sampled_from(["auto", *AGGREGATORS]))
    result = run(scores, network, alpha, aggregate=name, width=width)
    assert_is_the_pooled_sort(scores, network, alpha, result)


def random_case(seed):
    """A graph of 1..200 devices and scores of some shape: ties, heavy tails, unequal and empty devices."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 201)) if rng.random() < 0.5 else int(rng.integers(1, 20))
    pairs = {(int(rng.integers(i)), i) for i in range(1, k)}
    extra = rng.integers(0, k, size=(int(rng.integers(0, 2 * k + 1)), 2))
    pairs |= {(min(a, b), max(a, b)) for a, b in extra.tolist() if a != b}
    shapes = [
        lambda n: rng.normal(size=n),
        rng.standard_cauchy,
        lambda n: rng.integers(0, 3, n).astype(float),
        np.zeros,
        lambda n: 2.0 ** -rng.integers(0, 1070, n).astype(float),
        lambda n: np.where(rng.random(n) < 0.7, 0.0, rng.normal(size=n) * 1e-300),
        lambda n: rng.choice([np.inf, -np.inf, 1.0, 1e308, -1e308], n),
    ]
    shape = shapes[rng.integers(len(shapes))]
    sizes = rng.integers(0, 12, k) * (rng.random(k) < 0.8)
    alpha = float(rng.choice([0.01, 0.05, 0.1, 0.25, 0.5, 0.9]))
    return Network.from_pairs(k, sorted(pairs), name="drawn"), [shape(int(n)) for n in sizes], alpha, rng


def check_random_cases(seeds):
    for seed in seeds:
        network, scores, alpha, rng = random_case(seed)
        for name in AGGREGATORS:
            if name == "flood" and network.devices > 60:
                continue
            result = run(scores, network, alpha, aggregate=name, width=int(rng.choice([1, 2, 4, 16])))
            assert_is_the_pooled_sort(scores, network, alpha, result)


def test_pooled_sort_on_random_cases():
    check_random_cases(range(100))


@pytest.mark.slow
def test_pooled_sort_on_many_random_cases():
    check_random_cases(campaign_seeds(1000, 1000))


def test_a_thousand_ties_at_zero_cost_few_stages():
    """Halving real intervals towards 0.0 would take a thousand stages."""
    rng = np.random.default_rng(0)
    scores = [np.where(rng.random(100) < 0.8, 0.0, rng.normal(size=100)) for _ in range(20)]
    result = run(
        scores, Network.star(20), 0.4, width=1, schedule="count", aggregate="flood", mixture="paper", rank_rule="ghost"
    )
    assert result.threshold == 0.0
    assert result.cost.rounds <= 2 * 20


@pytest.mark.parametrize(
    "scores",
    [
        [[0.5] * 30] * 4,
        [[-np.inf] * 10, [np.inf] * 10, [0.0] * 3, []],
        [[5e-324, 0.0, -5e-324] * 5] * 4,
        [[1.7e308, -1.7e308] * 9] * 4,
        [[1.0], [], [], []],
    ],
    ids=["one value", "infinities", "denormals", "overflowing span", "one score"],
)
@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.9])
def test_odd_scores(scores, alpha):
    net = Network.cycle(4)
    assert_is_the_pooled_sort(scores, net, alpha, run(scores, net, alpha))


def test_the_worst_search_is_bounded_by_the_keys():
    """Scores 2^-i: no interpolation helps, so after 16 stages the keys are halved: at most 16 + 64 + a few."""
    scores = [2.0 ** -np.arange(1000.0)]
    stages = []
    calibrate(scores, Network.chain(1), 0.5, "e-dcp", width=1)
    net = Network.chain(2)
    result = calibrate([scores[0], []], net, 0.5, "e-dcp", width=1, aggregate="flood")
    stages.append(result.cost.rounds)
    assert result.threshold == np.sort(scores[0])[result.certificate.required_rank - 1]
    assert stages[0] <= 100


def test_shared_stages_equal_single_runs(twenty_devices):
    """Three levels and two trials in one run: same thresholds, fewer numbers than six runs."""
    rng = np.random.default_rng(3)
    other = [rng.normal(size=len(s)) for s in twenty_devices]
    net, levels = Network.torus(5, 4), (0.05, 0.1, 0.5)
    batch = solve_draws(WeightedScores.of_trials([twenty_devices, other]), net, levels, "e-dcp")
    singles = []
    for t, scores in enumerate((twenty_devices, other)):
        for a, alpha in enumerate(levels):
            single = run(scores, net, alpha)
            singles.append(single.cost)
            assert (batch.outcome.thresholds[:, t, a] == single.threshold).all()
            assert batch.outcome.certificates[t][a] == single.certificate
    assert batch.cost.rounds < sum(cost.rounds for cost in singles)


@pytest.mark.parametrize("prefer", ["rounds", "bits", "balanced"])
def test_a_window_lists_what_is_near_the_rank(prefer):
    """Of 40,000 scores 2,000 are a device's own, and the window a few hundred: two passes of the tree, exact."""
    rng, net = np.random.default_rng(4), Network.torus(5, 4)
    scores = [rng.normal(size=2000) for _ in range(20)]
    result = calibrate(scores, net, 0.1, "e-dcp", schedule="window", prefer=prefer)
    assert_is_the_pooled_sort(scores, net, 0.1, result)
    assert result.cost.rounds == 5 * net.centre_depth
    assert result.cost.numbers_per_device < 200


@pytest.mark.parametrize("name", ["chain", "star", "torus"])
def test_a_flood_hears_of_what_was_held_back(name):
    """The largest scores are on few devices, which said too few of them at first: it takes as many rounds again."""
    rng, net = np.random.default_rng(4), Network.of(name, 20)
    scores = [rng.normal(loc=k / 5, size=200) for k in range(20)]
    result = calibrate(scores, net, 0.1, "e-dcp", prefer="rounds")
    assert_is_the_pooled_sort(scores, net, 0.1, result)
    assert result.cost.rounds == 2 * net.diameter


@pytest.mark.shared_data
def test_numbers_sent_on_real_logits(real_data):
    """CIFAR-100 logits, K = 20, alpha = 0.1, 20 draws: at most 25 over a tree."""
    data = real_data("cifar100_logits.npz")
    logits, labels = data["logits"], data["labels"].astype(int)
    for name in ("chain", "cycle", "star", "torus", "complete"):
        net, sent = Network.of(name, 20), []
        for seed in range(20):
            rows = np.random.default_rng(seed).permutation(10_000)[:1000]
            scores = Logit()(logits[rows], labels[rows])
            devices = [scores[labels[rows] // 5 == k] for k in range(20)]
            result = calibrate(devices, net, 0.1, "e-dcp", aggregate="tree")
            assert result.threshold == np.sort(scores)[900]
            sent.append(result.cost.numbers_per_device)
        assert np.mean(sent) <= 25


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=20))
def test_keys_are_in_order_and_come_back(values):
    x = np.sort(np.array(values))
    keys = to_keys(x)
    assert (np.diff(keys.astype(object)) >= 0).all()
    np.testing.assert_array_equal(from_keys(keys), x)
    finite = x[np.isfinite(x)]
    with np.errstate(over="ignore"):  # the next one after the largest is inf
        after = np.nextafter(finite, np.inf)
    np.testing.assert_array_equal(from_keys(to_keys(finite) + 1), after)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be at least 1"),
        ({"aggregate": "trees"}, "did you mean 'tree'"),
        ({"prefer": "speed"}, "prefer must be"),
        ({"bins": 4}, "belongs to h-dcp, r-dcp, wfcp"),
    ],
)
def test_bad_options_say_what_was_needed(options, message):
    with pytest.raises(ValueError, match=message):
        calibrate([[0.1], [0.2]], Network.chain(2), 0.5, "e-dcp", **options)
