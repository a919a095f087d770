"""Windows of pooled scores: equal to those of a pooled sort, whatever the scores, the weights and the schedule."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.kernels import compilation as compiling
from conformesh.kernels.ranks import Requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import make_options, run_method
from conformesh.protocols.block import Block, WindowRequest
from tests.protocols.test_schedules import SCHEDULES, drawn_case, drawn_options

TREES = [options for options in SCHEDULES if options.get("aggregate") != "flood"]
CASES, CHUNKS = 1000, 4


@pytest.fixture(autouse=True, scope="module")
def written():
    """No compiler in this module: `tests.kernels.test_replies` compares the compiled loops with these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "_loaded", {})
        patch.setattr(compiling, "LOADING", math.inf)
        yield


def pooled_window(values, weights, rank, request, column=0):
    """The window by a pooled sort: values, counts, and the weight below the first value."""
    values, weights = np.concatenate(values) + 0.0, np.concatenate(weights)
    total, each = int(weights.sum()), max(int(weights.sum()) // max(len(values), 1), 1)
    distinct, place = np.unique(values, return_inverse=True)
    counts = np.cumsum([int(weights[place == i].sum()) for i in range(len(distinct))], dtype=np.int64)
    if not 0 < rank <= total:
        return [], [], 0
    if request.values is None:
        low, high = rank - request.reach[column], rank + request.reach[column]
    else:
        half = request.values // 2
        low, high = rank - max(half - 2, 0) * each, rank + max(request.values - half - 1, 0) * each
    inside = [i for i, count in enumerate(counts.tolist()) if low <= count <= high]
    # One more on each side, if there is one. No count may lie inside: then these two enclose the rank.
    first = inside[0] - 1 if inside else int(np.sum(counts < low)) - 1
    last = inside[-1] + 1 if inside else int(np.sum(counts <= high))
    first, last = max(first, 0), min(last, len(distinct) - 1)
    below = int(counts[first - 1]) if first else 0
    return distinct[first : last + 1].tolist(), counts[first : last + 1].tolist(), below


def drawn_run(rng):
    """A block with a request, its scores and its options: ties, infinities, weights, devices without scores."""
    case = drawn_case(rng, 30)
    options = drawn_options(rng, TREES[rng.integers(len(TREES))])
    samples, requirement = WeightedScores.of_trials(case.trials), Requirement()
    if (kind := rng.random()) < 0.3:
        largest = int(rng.choice([2, 50, 10**6]))
        weights = [[rng.integers(1, largest + 1, len(own)) for own in trial] for trial in case.trials]
        samples = WeightedScores.weighted(case.trials, weights)
        requirement = Requirement(is_weighted=True, largest_weights=(largest,))
    elif kind < 0.5:
        requirement = Requirement("equal")
    if rng.random() < 0.6:
        request = WindowRequest(int(rng.integers(2, 24)))
    else:
        request = WindowRequest(None, rng.integers(0, 80, len(case.trials)))
    levels = tuple(Fraction(str(alpha)) for alpha in case.alphas)
    block = Block.everywhere(case.network, samples.sizes)
    return replace(block, alphas=levels, window=request, requirement=requirement), samples, options


def run(block, samples, method="e-dcp", **options):
    return Simulator(block.network).run(run_method(method, block, samples, make_options(method, options)))


def assert_is_pooled(outcome, block, samples):
    """Every window equals the pooled one, and holds the threshold with its counted rank."""
    weighed = block.weighed(samples)
    each = np.ones(len(weighed.values), np.int64) if weighed.weights is None else weighed.weights
    for t, row in enumerate(outcome.windows):
        values = [weighed.segment(device, t) for device in range(weighed.devices)]
        weights = WeightedScores(each, weighed.offsets, weighed.trials)
        weights = [weights.segment(device, t) for device in range(weighed.devices)]
        for a, window in enumerate(row):
            certificate = outcome.certificates[t][a]
            expected = pooled_window(values, weights, certificate.required_rank, block.window, t)
            assert (window.values.tolist(), window.counts.tolist(), window.below) == expected
            assert (window.total, window.required) == (sum(map(sum, weights)), certificate.required_rank)
            if expected[0]:
                at = expected[0].index(outcome.thresholds[0, t, a])
                assert expected[1][at] == certificate.counted_rank
                assert (expected[1][at - 1] if at else expected[2]) < certificate.required_rank


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_windows_are_those_of_a_pooled_sort(chunk):
    for seed in range(chunk, CASES, CHUNKS):
        block, samples, options = drawn_run(np.random.default_rng([77, seed]))
        outcome, _ = run(block, samples, **options)
        assert_is_pooled(outcome, block, samples)


@pytest.mark.parametrize("bits", [52, 30])
def test_a_window_of_sixteen_values_takes_25_rounds_and_1500_bits(bits):
    """On the torus with 20 devices of 50 scores: means over 20 draws, and no draw needs more than one pass more."""
    network, rounds, sent = Network.torus(5, 4), [], []
    for seed in range(20):
        rng = np.random.default_rng([5, seed])
        samples = WeightedScores.of(np.floor(rng.random((20, 50)) * 2**bits) / 2**bits)
        block = replace(Block.everywhere(network, samples.sizes), alphas=(Fraction(1, 10),), window=WindowRequest(16))
        outcome, cost = run(block, samples)
        window = outcome.windows[0][0]
        assert window.counts.tolist() == [*range(window.required - 7, window.required + 9)]
        rounds.append(cost.rounds)
        sent.append(float(np.mean(cost.bits)))
    assert np.mean(rounds) <= 25
    assert max(rounds) <= 28
    assert max(sent) <= 1500
