import math
import warnings
from dataclasses import replace
from fractions import Fraction

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import CalibrationNote, Network, TooFewScores, calibrate
from conformesh.graph.weights import WEIGHTS
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import PAPER_REQUIREMENT
from conformesh.pipeline.solver import count_at_or_below, solve_draws
from conformesh.protocols.block import Block
from conformesh.protocols.bounds.histogram import (
    MixingRates,
    arithmetic_epsilon,
    h_dcp_cumulative_epsilon,
    h_dcp_paper_epsilon,
    h_dcp_row_epsilon,
    rounding_gain,
)
from conformesh.protocols.consensus import rate_at
from conformesh.protocols.h_dcp import (
    HDCP,
    MOST_AUTO_ROUNDS,
    _decide,
    _loose_bound_note,
    _surely_reaches,
    _whole_counts,
    consensus_rounds,
)
from conformesh.protocols.quantiser import Quantiser
from conformesh.protocols.wire_format import WireFormat
from conformesh.results.certificate import Certificate
from tests.reference import consensus_loop, pooled_threshold, weight_matrix
from tests.strategies import alphas, device_scores, networks, promised_rank


def run(scores, network, alpha, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationNote)
        warnings.simplefilter("ignore", TooFewScores)
        return calibrate(scores, network, alpha, "h-dcp", **options)


@st.composite
def cases(draw):
    network = draw(networks())
    scores = draw(device_scores(network.devices))
    options = {
        "rounds": draw(st.one_of(st.none(), st.integers(0, 60))),
        "bins": draw(st.integers(1, 40)),
        "range": draw(st.sampled_from([None, (0.0, 1.0), (-2.0, 0.5), (0.1, 0.2)])),
        "eta": draw(st.sampled_from([1.0, 0.7, 0.3])),
        "weights": draw(st.sampled_from(list(WEIGHTS))),
        "bound": draw(st.sampled_from(["cumulative", "paper", "row"])),
        "rounding": draw(st.booleans()),
        "wire": draw(st.sampled_from([16, 32, 64])),
    }
    way = draw(st.sampled_from(["gossip", "gossip", "chebyshev", "finite-time"]))
    if way != "gossip":
        options |= {"consensus": way, "eta": 1.0, "wire": 64, "bound": draw(st.sampled_from(["cumulative", "row"]))}
        options |= {"weights": draw(st.sampled_from(["best-constant", "max-degree"]))}
        options |= {"rounds": None} if way == "finite-time" else {}
    return scores, network, draw(alphas), options


@settings(max_examples=4 * settings.default.max_examples)
@given(cases())
def test_theorem_every_threshold_on_every_device_has_the_rank(case):
    """The certificate never lies: any graph, range, T, eta, W, bound and wire width, n_k unequal or zero."""
    scores, network, alpha, options = case
    try:
        result = run(scores, network, alpha, **options)
    except OverflowError as error:  # a score of 1e8 does not fit 16 bits: said, not rounded to infinity
        assert (options["wire"], "does not fit" in str(error)) == (16, True)  # noqa: PT017
        return
    n = sum(map(len, scores))
    rank = promised_rank(scores, alpha)
    assert result.certificate.required_rank == rank
    assert result.certificate.kind in ("counted", "bounded")
    if rank > n:
        assert np.isposinf(result.thresholds).all()
        return
    counts = count_at_or_below(WeightedScores.of(scores), result.thresholds)
    assert (counts >= rank).all(), (counts, rank, result)
    if result.certificate.kind == "counted":
        assert len(set(result.thresholds.tolist())) == 1
        assert result.certificate.counted_rank == counts[0]


@settings(max_examples=100)
@given(cases())
def test_counted_threshold_is_the_smallest_edge_with_the_rank(case):
    scores, network, alpha, options = case
    options |= {"rounds": None, "wire": 64, "rounding": True, "range": (-2.0, 2.0)}
    hypothesis.assume(options["weights"] != "max-degree" or network.devices <= 8)  # slow mixing meets the round limit
    result = run(scores, network, alpha, **options)
    n = sum(map(len, scores))
    rank = promised_rank(scores, alpha)
    if rank > n:
        return
    assert result.certificate.kind == "counted"
    exact = pooled_threshold(scores, rank)
    m = options["bins"]
    edges = [-2.0 * (1 - i / m) + 2.0 * (i / m) for i in range(1, m + 1)]
    expected = min((e for e in edges if e >= exact), default=np.inf)
    assert result.threshold == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("weights", list(WEIGHTS))
@pytest.mark.parametrize("eta", [1.0, 0.5])
def test_consensus_equals_the_printed_loop(topology, weights, eta):
    """Tolerance: 40 rounds of sums of at most 19 terms in float64 differ by less than 1e-13 relative."""
    from conformesh.engines import Simulator
    from conformesh.protocols.block import Block
    from conformesh.protocols.consensus import gossip

    x = np.random.default_rng(0).random((20, 7))
    w = WEIGHTS[weights](topology)
    block = Block.everywhere(topology, np.ones((20, 1), dtype=np.int64))
    ours, cost = Simulator(topology).run(gossip(x, block, w, 40, eta))
    np.testing.assert_allclose(ours, consensus_loop(x, weight_matrix(topology, w), eta, 40), rtol=1e-12, atol=1e-13)
    assert (cost.rounds, cost.numbers_per_device, cost.bits_per_device) == (40, 280, 280 * 64)


@settings(max_examples=150)
@given(networks(least=2), st.data())
def test_theorem_epsilon_bounds_the_error_at_any_precision(network, data):
    """|y - P| <= cumulative + arithmetic at every bin and device, for 16, 32 and 64 bits on the wire."""
    from conformesh.engines import Simulator
    from conformesh.protocols.block import Block
    from conformesh.protocols.consensus import gossip

    scores = data.draw(device_scores(network.devices, infinite=False))
    samples = WeightedScores.of(scores)
    n = int(samples.sizes.sum())
    if n == 0:
        return
    rounds, wire = data.draw(st.integers(0, 80)), WireFormat(data.draw(st.sampled_from([16, 32, 64])))
    weights = WEIGHTS[data.draw(st.sampled_from(list(WEIGHTS)))](network)
    eta = data.draw(st.sampled_from([1.0, 0.4]))
    edges = np.quantile(np.concatenate(scores), np.linspace(0, 1, 9))[None, :]
    counts = samples.counts(edges)
    block = Block.everywhere(network, samples.sizes)
    y, _ = Simulator(network).run(gossip(counts * (network.devices / n), block, weights, rounds, eta, wire))
    mixing = MixingRates(
        1 - eta * (1 - weights.second),
        1 - eta * (1 - weights.smallest),
        int(network.degree.max()),
        eta * float(weights.strength.max()),
    )
    sizes = samples.sizes[:, 0]
    epsilon = h_dcp_cumulative_epsilon(sizes, rate_at(weights, eta), rounds) + arithmetic_epsilon(
        sizes, mixing, rounds, wire
    )
    truth = counts.sum(axis=0) / n
    assert (np.abs(y - truth) <= epsilon).all()
    np.testing.assert_allclose(y.mean(axis=0), truth, rtol=0, atol=1e-12 * network.devices)  # rounding moves no mean
    assert (
        h_dcp_cumulative_epsilon(sizes, rate_at(weights, eta), rounds)
        <= h_dcp_paper_epsilon(sizes, 9, weights.gap, eta, rounds) * (1 + 1e-9) + 1e-300
    )


def test_rounding_gain_dominates_every_eigenvalue():
    """G is a maximum over the whole interval of eigenvalues, so it dominates the sum of powers of each."""
    for low, second in [(-0.9, 0.95), (-0.2, 0.5), (0.1, 0.99), (-0.99, -0.3), (0.0, 0.0)]:
        gain = rounding_gain(MixingRates(second, low, 4, 1.0), 50)
        for eigenvalue in np.linspace(low, second, 101):
            total = sum(abs(eigenvalue) ** s * (1 - eigenvalue) for s in range(50))
            assert total <= gain * (1 + 1e-12)


def test_paper_epsilon_has_the_published_values():
    """K = 20, n_k = 50, M = 1000, T = 150: 44.1 on the chain, .183 on the cycle, 8.5e-5 on the star."""
    sizes = np.full(20, 50)
    for name, expected in [("chain", 44.1), ("cycle", 0.183), ("star", 8.5e-5)]:
        gap = WEIGHTS["best-constant"](Network.of(name, 20)).gap
        assert h_dcp_paper_epsilon(sizes, 1000, gap, 1.0, 150) == pytest.approx(expected, rel=6e-3)


def test_row_bound_has_the_measured_values():
    """Worst case from the rows of W^T - J, K = 20, n_k = 50, T = 150: .099 on the chain, 4.7e-4 cycle, 2.9e-7 star."""
    scores = [np.linspace(k, k + 1, 50) for k in range(20)]
    for name, expected in [("chain", 0.099), ("cycle", 4.7e-4), ("star", 2.9e-7)]:
        result = run(scores, Network.of(name, 20), 0.1, rounds=150, bound="row", rounding=False)
        assert result.certificate.epsilon == pytest.approx(expected, rel=0.02)


def test_the_row_bound_is_attained():
    """Some start in the box leaves exactly this error: no smaller bound can be true."""
    net = Network.chain(7)
    sizes = np.array([3, 1, 4, 1, 5, 9, 2])
    w = np.linalg.matrix_power(weight_matrix(net, WEIGHTS["metropolis"](net)), 9) - 1 / 7
    c = sizes * 7 / sizes.sum()
    bound = h_dcp_row_epsilon(sizes, w)
    worst = max(abs((w @ (c * (sign * w[k] > 0)))[k]) for k in range(7) for sign in (1, -1))
    assert worst <= bound <= worst + 1e-12


@pytest.mark.parametrize(
    ("way", "rounds"),
    [
        ("chebyshev", {"chain": 61, "cycle": 31, "star": 22, "torus": 12, "complete": 1}),
        ("finite-time", {"chain": 19, "cycle": 10, "star": 2, "torus": 8, "complete": 1}),
    ],
)
def test_faster_consensus_counts_in_fewer_rounds(way, rounds, paper_network):
    """n = 1000: where gossip needs up to 700 rounds; the same threshold, counted."""
    rng = np.random.default_rng(0)
    scores = [rng.random(50) for _ in range(20)]
    plain = calibrate(scores, paper_network, 0.1, "h-dcp")
    fast = calibrate(scores, paper_network, 0.1, "h-dcp", consensus=way)
    assert fast.threshold == plain.threshold
    assert fast.certificate.kind == "counted"
    assert fast.cost.rounds - paper_network.diameter <= rounds[paper_network.name.split()[0]]


def test_cumulative_epsilon_is_126_times_smaller_with_a_thousand_bins():
    sizes = np.full(20, 50)
    ratio = h_dcp_paper_epsilon(sizes, 1000, 0.3, 1.0, 10) / h_dcp_cumulative_epsilon(sizes, 0.7, 10)
    assert ratio == pytest.approx(126.5, rel=0.02)


def test_scores_above_the_range_give_infinity_never_the_last_edge():
    scores = [[0.2, 5.0, 6.0], [7.0, 8.0]]
    result = run(scores, Network.chain(2), 0.3, range=(0.0, 1.0), bins=10)
    assert result.certificate.kind == "counted"
    assert result.threshold == np.inf
    assert result.certificate.counted_rank == 5


def test_an_agreed_range_bounds_a_hopeless_run_by_the_largest_score():
    """With too few rounds nothing is known of the histogram, but everybody knows the maximum."""
    rng = np.random.default_rng(1)
    scores = [rng.random(20) for _ in range(20)]
    with pytest.warns(CalibrationNote, match="error bound is still"):
        result = calibrate(scores, Network.chain(20), 0.1, "h-dcp", rounds=1)
    assert result.certificate.kind == "bounded"
    assert result.threshold == max(s.max() for s in scores)


def test_the_papers_bound_over_an_agreed_range_says_that_it_is_not_level_m():
    """The paper's level M is every label. A given range gives that, an agreed one the largest score, with a note."""
    rng = np.random.default_rng(1)
    scores = [rng.random(20) for _ in range(20)]

    def hopeless(**options):
        with pytest.warns(CalibrationNote) as notes:
            result = calibrate(scores, Network.chain(20), 0.1, "h-dcp", rounds=1, **options)
        return result.threshold, any("takes level M, which is every label" in str(note.message) for note in notes)

    largest = max(mine.max() for mine in scores)
    assert hopeless(bound="paper") == (largest, True)
    assert hopeless(bound="paper", range=(0.0, 1.0)) == (np.inf, False)
    assert hopeless() == (largest, False)


def test_range_agreement_is_paid_for():
    scores = [[0.1, 0.2], [0.3], [0.4, 0.9]]
    net = Network.chain(3)
    given_range = run(scores, net, 0.5, rounds=10, bins=5, range=(0.0, 1.0))
    agreed = run(scores, net, 0.5, rounds=10, bins=5)
    assert given_range.cost.rounds == 10
    assert agreed.cost.rounds == 10 + net.diameter
    assert agreed.cost.numbers_per_device == 10 * 5 + 2 * net.diameter


@pytest.mark.parametrize("wire", [16, 32, 64])
def test_bits_follow_the_wire(wire):
    result = run([[0.1, 0.2], [0.3], [0.4, 0.9]], Network.chain(3), 0.5, rounds=10, bins=5, range=(0.0, 1.0), wire=wire)
    assert result.cost.bits_per_device == 10 * 5 * wire


def test_automatic_rounds_make_the_count_exact(paper_network, twenty_devices):
    result = calibrate(twenty_devices, paper_network, 0.1, "h-dcp")
    assert result.certificate.kind == "counted"
    gossip = result.cost.rounds - paper_network.diameter
    assert run(twenty_devices, paper_network, 0.1, rounds=gossip * 4 // 5).certificate.kind == "bounded"


class OneOverTheError:
    """A way to average whose error after T rounds is that of the start over T."""

    def rounds_for(self, start, target):
        return round(start / target)


@pytest.mark.parametrize(
    ("options", "starts", "rounds"),
    [
        ({}, [(1.0, 10)], 25),  # down to 0.4 of a score: half of one, less what finite precision may add
        ({}, [(1.0, 10), (3.0, 10), (2.0, 10)], 75),  # as the worst trial needs
        ({}, [], 0),  # nobody has scores: nothing to average
        ({}, [(1e6, 10)], MOST_AUTO_ROUNDS),
        ({"wire": 16}, [(1.0, 10**6)], 2048),  # messages are off by 2^-11, so that more rounds gain nothing
        ({"wire": 16}, [(1.0, 10)], 25),
    ],
)
def test_rounds_are_as_many_as_the_worst_trial_needs_up_to_a_limit(options, starts, rounds):
    assert consensus_rounds(OneOverTheError(), HDCP(**options), starts) == (rounds, True)
    assert consensus_rounds(OneOverTheError(), HDCP(**options, rounds=7), starts) == (7, False)


def test_rounds_that_the_library_cuts_short_are_told_apart_from_given_ones(monkeypatch, twenty_devices):
    monkeypatch.setattr("conformesh.protocols.h_dcp.MOST_AUTO_ROUNDS", 2)
    for options, words in (
        ({}, "more rounds than the automatic limit"),
        ({"rounds": 2}, "or none to have them chosen"),
    ):
        with pytest.warns(CalibrationNote, match=words):
            calibrate(twenty_devices, Network.chain(20), 0.1, "h-dcp", **options)


def test_an_estimated_spectrum_keeps_the_rank_and_the_bound(twenty_devices):
    net, options = Network.torus(5, 4), {"rounds": 60, "rounding": False}
    by_map = run(twenty_devices, net, 0.1, **options).certificate
    by_talk = run(twenty_devices, net, 0.1, spectrum="estimated", **options).certificate
    assert (by_map.kind, by_talk.kind) == ("bounded", "assumed")
    assert by_talk.required_rank == by_map.required_rank == promised_rank(twenty_devices, 0.1)
    assert (by_talk.counted_rank, by_map.counted_rank) == (None, None)
    assert by_talk.epsilon == pytest.approx(by_map.epsilon, rel=0.5)


def test_a_counted_threshold_in_the_last_bin_deserves_no_note():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = calibrate([[0.1, 0.95], [0.2, 0.3]], Network.chain(2), 0.35, "h-dcp", range=(0.0, 1.0), bins=10)
    assert (result.certificate.kind, result.certificate.required_rank, result.threshold) == ("counted", 4, 1.0)


def test_without_scores_nothing_is_averaged():
    assert run([[], [], []], Network.chain(3), 0.5, range=(0.0, 1.0)).cost.rounds == 0


@pytest.mark.parametrize(
    ("consensus", "precision", "blames"),
    [
        (0.1, 0.2, "wire"),
        (0.1, 0.1, "rounds"),
        (0.2, 0.1, "rounds"),
        (0.1, math.inf, "wire"),
        (math.inf, 0.1, "rounds"),
    ],
)
def test_a_loose_bound_is_blamed_on_its_larger_part(consensus, precision, blames):
    for chosen in (True, False):
        words = _loose_bound_note(consensus, precision, chosen)
        assert ("use a wider wire" in words, "set more rounds" in words) == (blames == "wire", blames == "rounds")
        if blames == "rounds":
            assert ("than the automatic limit" in words, "or none to have them chosen" in words) == (chosen, not chosen)


@pytest.mark.parametrize("bound", ["cumulative", "row"])
def test_a_count_that_exceeds_the_rank_less_one_reaches_it(bound):
    """Counts are whole: 4.01 of 10 scores for sure are 5; 4 exactly are not."""
    y = np.array([[0.401, 0.4, 0.601, 0.6, 0.801]])
    for consensus, precision, certain in (
        (0.0, 0.0, [True, False, True, True, True]),
        (0.1, 0.1, [False, False, True, False, True]),
        (0.4, 0.0, [False, False, False, False, True]),
    ):
        found = _surely_reaches(y, 10, 5, Fraction(5), consensus, precision, bound)
        assert found.tolist() == [certain]


def test_the_papers_level_gives_way_by_noise_where_that_costs_no_rank():
    """Level 5 of 9 scores: a view of 5 that noise has moved counts; with noise of half a score nothing is given."""

    def holds(count, precision, consensus=0.0):
        return bool(_surely_reaches(np.array([[count / 9]]), 9, 5, Fraction(5), consensus, precision, "paper")[0, 0])

    tiny = 1e-12
    assert holds(5 - 8 * tiny, tiny)
    assert not holds(5 - 10 * tiny, tiny)
    assert holds(5.9 - 8 * tiny, tiny, consensus=0.1)
    assert not holds(5.9 - 10 * tiny, tiny, consensus=0.1)
    for precision, less in ((0.05, True), (0.06, False)):  # 2 * 9 * precision below 1: the whole step from rank to rank
        assert holds(5 - 8.9 * precision, precision) == less
        assert holds(5 + 8.9 * precision, precision) == less
        assert holds(5 + 9.1 * precision, precision)


def decided(monkeypatch, y, epsilon, alphas=("0.3",), complete=False, crowds=None, **options):
    """Decide for two devices with five scores each, from their views; return the outcome and what crowding saw."""
    network, asked = Network.chain(2), []

    def crowding(*given):
        asked.append(given)
        return None if crowds is None else crowds[len(asked) - 1]

    monkeypatch.setattr("conformesh.protocols.h_dcp.crowding_note", crowding)
    y = np.array(y)[:, :, None]
    bins = y.shape[1]
    quantiser = Quantiser(np.arange(1.0, bins + 1)[None, :], np.array([complete]))
    levels = tuple(map(Fraction, alphas))
    block = replace(Block.everywhere(network, np.array([[5], [5]])), requirement=PAPER_REQUIREMENT, alphas=levels)
    weights = WEIGHTS["best-constant"](network)
    outcome = _decide(block, y, quantiser, levels, [epsilon], HDCP(bins=bins, **options), weights, False)
    return outcome, asked


GIVEN = {"range": (0.0, 4.0)}


def test_a_view_counts_as_far_as_its_error_allows(monkeypatch):
    """Rank 9 of 10: half a score of error is too much to round; the views less that error are what is certain."""
    y = [[0.2, 0.5, 0.9, 1.0], [0.1, 0.4, 0.8, 0.91]]
    outcome, ((method, edges, sure, rank, may_miss, short),) = decided(monkeypatch, y, (0.03, 0.02), **GIVEN)
    assert (method, edges.tolist(), rank, may_miss, short) == ("h-dcp", [1.0, 2.0, 3.0, 4.0], 9, 3.6, False)
    np.testing.assert_allclose(sure, [1.5, 4.5, 8.5, 9.5], rtol=1e-12)
    assert outcome.thresholds[:, 0, 0].tolist() == [3.0, 4.0]
    assert outcome.certificates == [[Certificate("bounded", 9, None, 0.05)]]
    assert len(outcome.notes) == 1  # somebody ends in the last bin
    y = [[0.2, 0.5, 0.9, 1.0], [0.201, 0.499, 0.9, 1.0]]
    outcome, ((_, _, sure, *_),) = decided(monkeypatch, y, (0.03, 0.0199), **GIVEN)
    assert (sure.tolist(), sure.dtype) == ([2, 5, 9, 10], np.int64)
    assert outcome.thresholds[:, 0, 0].tolist() == [3.0, 3.0]
    assert outcome.certificates == [[Certificate("counted", 9, 9, 0.0499)]]
    assert outcome.notes == ()
    outcome, ((_, _, sure, *_),) = decided(monkeypatch, y, (0.03, 0.0199), rounding=False, **GIVEN)
    assert outcome.certificates[0][0].kind == "bounded"


@pytest.mark.parametrize(
    ("last", "options", "short"),
    [(0.82, GIVEN, True), (0.85, GIVEN, False), (0.86, GIVEN, False), (0.7, {}, False), (0.7, GIVEN, True)],
)
def test_a_range_is_short_where_no_error_could_make_up_for_it(monkeypatch, last, options, short):
    """The last view may be off by half a score either way: 8.5 could be the required 9, and 8.2 could not."""
    _, ((*_, found),) = decided(monkeypatch, [[0.1, 0.3, 0.5, last]] * 2, (0.05, 0.0), **options)
    assert found == short


def test_a_counted_range_is_short_where_it_holds_fewer_than_the_rank(monkeypatch):
    for last, short in ((0.8, True), (0.9, False)):
        _, ((*_, found),) = decided(monkeypatch, [[0.1, 0.3, 0.5, last]] * 2, (0.0, 0.0), **GIVEN)
        assert found == short


def test_a_loose_bound_is_noted_where_a_device_has_the_last_bin_or_none(monkeypatch):
    for y, noted in (
        ([[0.97, 1.0], [0.97, 1.0]], 0),
        ([[0.97, 1.0], [0.5, 0.97]], 1),
        ([[0.97, 1.0], [0.5, 0.6]], 1),
        ([[0.5, 0.6], [0.5, 0.6]], 1),
    ):
        assert len(decided(monkeypatch, y, (0.1, 0.0), **GIVEN)[0].notes) == noted
        crowded, _ = decided(monkeypatch, y, (0.1, 0.0), crowds=[(0.5, "crowded")], **GIVEN)
        assert crowded.notes == ("crowded",)  # the better reason
    assert (
        decided(monkeypatch, [[0.5, 0.6]] * 2, (0.1, 0.0), complete=True)[0].thresholds[:, 0, 0].tolist() == [2.0] * 2
    )


def test_of_several_crowded_levels_the_worst_is_noted(monkeypatch):
    crowds = [(0.5, "some"), (2.0, "most"), None]
    outcome, asked = decided(monkeypatch, [[0.97, 1.0]] * 2, (0.1, 0.0), ("0.3", "0.4", "0.5"), crowds=crowds, **GIVEN)
    assert outcome.notes == ("most",)
    assert [given[3] for given in asked] == [9, 8, 6]
    outcome, asked = decided(monkeypatch, [[0.97, 1.0]] * 2, (0.1, 0.0), ("0.01", "0.5"), **GIVEN)
    assert outcome.certificates[0] == [Certificate("counted", 12, 10), Certificate("bounded", 6, None, 0.1)]
    assert outcome.thresholds[:, 0].tolist() == [[np.inf, 1.0]] * 2
    assert len(asked) == 1  # with too few scores nobody looks


def test_counts_must_be_as_near_to_integers_as_the_bound_says():
    assert _whole_counts(np.array([[1.0, 2.25, 2.75]]), 0.25).tolist() == [[1, 2, 3]]
    assert _whole_counts(np.zeros((2, 0)), 0.1).shape == (2, 0)
    with pytest.raises(ArithmeticError, match=r"is 0\.25 away from an integer where the bound allows 0\.2"):
        _whole_counts(np.array([[1.0, 2.25]]), 0.2)


def test_a_wrong_consensus_matrix_is_caught_not_believed(twenty_devices):
    """Ablation: a W that claims a gap it does not have fails the integer check instead of certifying."""
    from dataclasses import replace

    net = Network.chain(20)
    honest = WEIGHTS["best-constant"](net)
    byzantine = replace(honest, second=0.1, smallest=-0.1)
    with pytest.raises(ArithmeticError, match="away from an integer"):
        calibrate(twenty_devices, net, 0.1, "h-dcp", weights=byzantine)


def test_any_doubly_stochastic_matrix_will_do(twenty_devices):
    """One's own W, here a lazy one with a negative weight thrown in, certifies the same threshold."""
    net = Network.torus(5, 4)
    named = calibrate(twenty_devices, net, 0.1, "h-dcp")
    w = weight_matrix(net, WEIGHTS["metropolis"](net)) * 0.6 + 0.4 * np.eye(20)
    w[0, 1] = w[1, 0] = -0.01
    for k in (0, 1):
        w[k, k] = 1 - (w[k].sum() - w[k, k])
    own = calibrate(twenty_devices, net, 0.1, "h-dcp", weights=w)
    assert own.threshold == named.threshold
    assert own.certificate.kind == "counted"
    assert own.options["weights"] == "matrix"
    w[0, 0] += 0.1
    with pytest.raises(ValueError, match="doubly stochastic"):
        calibrate(twenty_devices, net, 0.1, "h-dcp", weights=w)


def test_batched_trials_and_alphas_equal_single_runs(twenty_devices):
    rng = np.random.default_rng(3)
    other = [rng.normal(size=len(s) + 3) for s in twenty_devices]
    net = Network.torus(5, 4)
    levels = (0.05, 0.1, 0.5)
    batch = solve_draws(WeightedScores.of_trials([twenty_devices, other]), net, levels, "h-dcp", rounds=60)
    costs = []
    for t, scores in enumerate((twenty_devices, other)):
        for a, alpha in enumerate(levels):
            single = run(scores, net, alpha, rounds=60)
            np.testing.assert_array_equal(single.thresholds, batch.outcome.thresholds[:, t, a])
            assert single.certificate == batch.outcome.certificates[t][a]
            assert single.cost.rounds == batch.cost.rounds
            costs.append(single.cost.bits)
    np.testing.assert_allclose(np.mean(costs, axis=0), batch.cost.bits, rtol=1e-12)  # who has news depends on scores


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 0}, "bins must be at least 1"),
        ({"rounds": -1}, "rounds must be at least 0"),
        ({"eta": 1.5}, "eta must lie in"),
        ({"eta": 0.0}, "eta must lie in"),
        ({"range": (1.0, 1.0)}, "range must be two finite numbers"),
        ({"range": (0.0, float("inf"))}, "range must be two finite numbers"),
        ({"wire": 8}, "16, 32 or 64"),
        ({"weights": "best"}, "unknown weights"),
        ({"spectrum": "guess"}, "spectrum must be"),
        ({"bound": "loose"}, "bound must be"),
        ({"kappa": 3.0}, "belongs to q-dcp"),
        ({"consensus": "chebyshev", "bound": "paper"}, "goes with 64 bits"),
        ({"consensus": "finite-time", "wire": 16}, "goes with 64 bits"),
        ({"consensus": "chebyshev", "eta": 0.5}, "goes with 64 bits"),
        ({"consensus": "finite-time", "rounds": 5}, "takes 1 rounds on this network"),
        ({"consensus": "tree"}, "consensus must be"),
    ],
)
def test_bad_options_say_what_was_needed(options, message):
    with pytest.raises(ValueError, match=message):
        calibrate([[0.1], [0.2]], Network.chain(2), 0.5, "h-dcp", **options)
