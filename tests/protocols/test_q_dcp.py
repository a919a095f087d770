import math
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from conformesh import CalibrationNote, Network, TooFewScores, calibrate
from conformesh.engines import Simulator
from conformesh.graph.spectrum import Spectrum
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import PAPER_REQUIREMENT
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols.block import Block
from conformesh.protocols.bounds.quantile import admm_rate, bias_epsilon, convergence_epsilon, largest_distance
from conformesh.protocols.q_dcp import QDCP, AdmmParameters, _note_if_vacuous, admm, q_dcp, rounds_per_run
from conformesh.protocols.quantile_average import local_quantiles
from conformesh.protocols.wire_format import WireFormat
from conformesh.scores import APS, LAC, Logit
from tests.reference import admm_in_matrices, incidence, pooled_minimiser, pooled_threshold
from tests.strategies import alphas, device_scores, exact_rank, networks

# Scores between 0 and 1, for which epsilon0 = 0.1 is much.
pytestmark = pytest.mark.filterwarnings("ignore:q-dcp. the error terms:conformesh.CalibrationNote")


def run(scores, network, alpha=0.1, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TooFewScores)
        return calibrate(scores, network, alpha, "q-dcp", **{"mixture": "paper", "rank_rule": "ghost", **options})


def level(scores, devices, alpha):
    n = sum(map(len, scores))
    return exact_rank(n, alpha, devices) / n


@pytest.mark.parametrize("start", [0.0, 0.7])
def test_neighbour_sums_equal_the_printed_matrices(start):
    """Algorithm 1 with A, B, z and lambda, step by step, on graphs of every kind; both solve roots to about 1e-14."""
    rng = np.random.default_rng(4)
    for net in (Network.chain(5), Network.star(6), Network.complete(4), Network.torus(3, 3), Network.chain(2)):
        scores = [rng.normal(size=rng.integers(1, 9)) for _ in range(net.devices)]
        samples = WeightedScores.of(scores)
        block = Block.everywhere(net, samples.sizes)
        shape = (net.devices, 1, 1)
        protocol = admm(
            block,
            samples,
            np.full((1, 1), 0.8),
            np.full(shape, 0.7),
            np.full(shape, start),
            AdmmParameters(*(np.full((1, 1), x) for x in (3.0, 30.0, 4.0))),
            12,
            WireFormat(64),
        )
        s, cost = Simulator(net).run(protocol)
        expected = admm_in_matrices(scores, net, 0.8, 30.0, 4.0, 0.7, 3.0, 12, start)
        np.testing.assert_allclose(s.ravel(), expected, atol=1e-10)
        assert cost.rounds == cost.numbers_per_device == 12


def test_converged_estimate_is_the_pooled_minimiser(topology, twenty_devices):
    """On every topology, to 1e-6: run until the sound bound itself says so."""
    gamma = level(twenty_devices, 20, 0.1)
    kappa, mu = 200.0, 200.0
    result = run(twenty_devices, topology, kappa=kappa, mu=mu, s0="0.6", epsilon0=1.0, rounds=6000)
    expected = pooled_minimiser(twenty_devices, gamma, kappa, mu, 0.6)
    assert result.estimate == pytest.approx(expected, abs=1e-6)


@settings(max_examples=80)
@given(networks(least=1, most=10), alphas, st.data())
def test_theorem_sound_terms_bound_the_error(network, alpha, data):
    """|estimate - s_hat| <= epsilon_T at any T, and with a true epsilon0 the threshold reaches the quantile."""
    scores = data.draw(device_scores(network.devices, infinite=False).filter(lambda s: sum(map(len, s)) > 0))
    n = sum(map(len, scores))
    rank = exact_rank(n, alpha, network.devices)
    if rank > n:
        return
    kappa = data.draw(st.sampled_from([20.0, 500.0]))
    mu = data.draw(st.sampled_from([0.5, 20.0, 2000.0]))
    quantile = pooled_threshold(scores, rank)
    s0 = quantile + data.draw(st.floats(-1, 1))
    rounds = data.draw(st.sampled_from([1, 2, 10, 200]))
    start = data.draw(st.sampled_from(["s0", "zeros"]))
    epsilon0 = abs(s0 - quantile) * (1 + 1e-12)
    result = run(
        scores, network, alpha, kappa=kappa, mu=mu, s0=float(s0), epsilon0=epsilon0, rounds=rounds, start=start
    )
    s_hat = pooled_minimiser(scores, rank / n, kappa, mu, s0)
    certificate = result.certificate
    # the agreed estimate is the largest of nearly averaged ones: above the mean by at most the last disagreement
    slack = 1e-6 * (certificate.epsilon_T * math.sqrt(network.devices) + 1e-3) + 1e-9 * (1 + abs(s_hat))
    assert abs(result.estimate - s_hat) <= certificate.epsilon_T + slack
    assert abs(s_hat - quantile) <= certificate.epsilon_bias + 1e-9 * (1 + abs(quantile))
    assert result.threshold >= quantile - 1e-9 * (1 + abs(quantile))
    assert certificate.kind == "assumed"
    assert certificate.counted_rank is None


def test_printed_epsilon_never_exceeds_the_sound_one(paper_network, twenty_devices):
    """Same start, same T: the oracle's distance is at most what devices can bound."""
    for start in ("zeros", "s0"):
        printed = run(twenty_devices, paper_network, bound="paper", start=start, rounds=300)
        sound = run(twenty_devices, paper_network, start=start, rounds=300)
        assert printed.certificate.epsilon_T <= sound.certificate.epsilon_T
        assert printed.cost.to_dict() == sound.cost.to_dict()  # the oracle is not part of the algorithm


def test_bias_is_printed_with_one_regulariser_and_sound_with_all():
    n, mu, kappa, e0 = 1000, 2000.0, 2000.0, 0.1
    assert bias_epsilon(n, mu, kappa, e0) == pytest.approx(math.sqrt(2 * n * math.log(2) / (mu * kappa) + 0.01))
    assert bias_epsilon(n, mu, kappa, e0, copies=20) == pytest.approx(
        math.sqrt(2 * n * math.log(2) / (20 * mu * kappa) + 0.01)
    )


def test_chosen_c_and_b_are_the_best(paper_network):
    smoothness, mu = 27_000.0, 2000.0
    best = admm_rate(paper_network.spectrum, smoothness, mu)
    for c in np.geomspace(best.c / 10, best.c * 10, 41):
        for b in 1 + np.geomspace((best.b - 1) / 10, (best.b - 1) * 10, 41):
            assert admm_rate(paper_network.spectrum, smoothness, mu, c, b).delta <= best.delta * (1 + 1e-9)


def test_incidence_matrices_have_the_spectrum_used(topology):
    a1, a2 = incidence(topology)
    plus, minus = np.linalg.svd(a1.T + a2.T, compute_uv=False), np.linalg.svd(a1.T - a2.T, compute_uv=False)
    spectrum = topology.spectrum
    assert plus.max() ** 2 == pytest.approx(spectrum.signless, rel=1e-9)
    assert minus[minus > 1e-8].min() ** 2 == pytest.approx(spectrum.smallest, rel=1e-6)


def test_convergence_term_by_hand():
    spectrum = Spectrum(largest=4.0, smallest=1.0, signless=4.0, source="dense")
    rate = admm_rate(spectrum, 10.0, 2.0, c=5.0, b=2.0)
    assert rate.delta == pytest.approx(min((2 - 1) * 1 / (2 * 4), 2 / (5 / 4 * 4 + 2 / 5 * 100)))
    distance = largest_distance(5.0, 3, spectrum, np.array([2, 4]), 0.75, 2.0, 0.5)
    reach = 6 * 0.75 / (2 * 2)
    gradient = np.array([2, 4]) * 0.75 + 2 * reach
    assert distance == pytest.approx(5 * 3 * (0.5 + reach) ** 2 + gradient @ gradient / 5)
    expected = math.sqrt(1 / (2 * 2.0) * (1 / (1 + rate.delta)) ** 9 * distance)
    assert convergence_epsilon(rate, 2, 2.0, 10, distance) == pytest.approx(expected)


def test_s0_is_the_average_of_interpolated_local_quantiles(twenty_devices):
    gamma = level(twenty_devices, 20, 0.1)
    mine = local_quantiles(WeightedScores.of(twenty_devices), np.full((1, 1), gamma)).ravel()
    np.testing.assert_allclose(mine, [np.quantile(s, gamma) for s in twenty_devices], rtol=1e-12)
    whole = local_quantiles(WeightedScores.of(twenty_devices), np.full((1, 1), gamma), interpolate=False).ravel()
    np.testing.assert_array_equal(whole, [np.quantile(s, gamma, method="inverted_cdf") for s in twenty_devices])


@pytest.mark.parametrize(("kind", "combine"), [("average", np.mean), ("min", np.min)])
def test_the_regulariser_holds_the_estimate_at_s0(kind, combine, twenty_devices):
    """The published hyper-parameters return s0, whatever the scores say; the certificate says so in numbers."""
    gamma = level(twenty_devices, 20, 0.1)
    result = run(twenty_devices, Network.torus(5, 4), s0=kind)
    s0 = combine([np.quantile(s, gamma) for s in twenty_devices])
    reach = sum(map(len, twenty_devices)) * gamma / (20 * 2000)
    assert abs(result.estimate - s0) <= reach + 1e-5
    assert f"within {reach:.3g} of s0" in result.certificate.assumption


def test_every_device_ends_with_the_same_bits(topology, twenty_devices):
    result = run(twenty_devices, topology, rounds=20)
    assert len(set(result.thresholds.tolist())) == 1


def test_empty_devices_stay_out_of_s0(twenty_devices):
    scores = [*twenty_devices[:10], *[[]] * 10]
    gamma = level(scores, 20, 0.1)
    result = run(scores, Network.cycle(20))
    assert result.estimate == pytest.approx(np.mean([np.quantile(s, gamma) for s in scores[:10]]), abs=0.03)


@pytest.mark.parametrize("wire", [16, 32])
def test_rounded_messages_are_not_certified(wire, twenty_devices):
    result = run(twenty_devices, Network.torus(5, 4), wire=wire)
    assert result.certificate.kind == "none"
    assert f"{wire} bits" in result.certificate.assumption
    assert result.cost.bits_per_device == wire * result.cost.numbers_per_device
    exact = run(twenty_devices, Network.torus(5, 4))
    assert result.estimate == pytest.approx(exact.estimate, abs={16: 2e-3, 32: 1e-5}[wire])


@settings(max_examples=60)
@given(networks(most=10), alphas, st.data())
def test_theorem_certified_q_dcp_has_the_rank(network, alpha, data):
    """Whatever s0, mu and kappa: the rank is counted, and an estimate that falls short ends at the exact quantile."""
    scores = data.draw(device_scores(network.devices, infinite=False).filter(lambda s: sum(map(len, s)) > 0))
    options = data.draw(
        st.sampled_from([{"s0": -3.0}, {"s0": 9.0}, {"continuation": 3}, {"mu": 1.0, "kappa": 5.0}, {"s0": "min"}])
    )
    result = run(scores, network, alpha, rounds=20, certify=True, **options)
    n = sum(map(len, scores))
    rank = exact_rank(n, alpha, network.devices)
    assert result.certificate.kind == "counted"
    if rank > n:
        assert result.threshold == np.inf
        return
    counted = sum(int((np.asarray(s) <= result.threshold).sum()) for s in scores)
    assert result.certificate.counted_rank == counted >= rank
    assert result.threshold == max(result.estimate, pooled_threshold(scores, rank))


def test_continuation_reaches_the_quantile_where_the_paper_stays_at_s0(topology, twenty_devices):
    """Five runs share 1500 rounds; the estimate comes within a few scores of the quantile instead of staying at s0."""
    n = sum(map(len, twenty_devices))
    pooled = np.sort(np.concatenate(twenty_devices))
    rank = exact_rank(n, 0.1, 20)
    paper = run(twenty_devices, topology, s0="min")
    freed = run(twenty_devices, topology, s0="min", continuation=5)
    off = [abs(np.searchsorted(pooled, result.estimate) - rank) for result in (paper, freed)]
    assert off[0] > 50
    assert off[1] <= 10
    assert freed.certificate.kind == "counted"


def continued(monkeypatch, scores, network, alpha, **options):
    """Return the knobs, centres and rounds of every run of a continuation in which ADMM stays where it starts."""
    runs = []

    def still(block, samples, gamma, s0, start, knobs, rounds, wire):
        yield from ()
        runs.append((knobs, s0[0, 0, 0], start[0, 0, 0], rounds))
        return s0 + 1.0

    monkeypatch.setattr("conformesh.protocols.q_dcp.admm", still)
    samples = WeightedScores.of(scores)
    block = replace(
        Block.everywhere(network, samples.sizes), requirement=PAPER_REQUIREMENT, alphas=(Fraction(str(alpha)),)
    )
    protocol = q_dcp(block, samples, block.alphas, QDCP(**options))
    Simulator(network).run(protocol)
    return runs


def test_continuation_starts_at_the_spread_of_the_quantiles_and_narrows(monkeypatch):
    """w is the spread, then 2.5 times less; kappa = 4/w, h = (n/K)(1-gamma)/w, c = h/degree, mu = h/(10 K)."""
    scores = [np.arange(10.0), [], np.arange(20.0) + 5.0]  # without scores no quantile, and nothing of the spread
    network = Network.chain(3)  # two edges: a mean degree of 4/3
    gamma = level(scores, 3, 0.25)
    quantiles = [np.quantile(mine, gamma) for mine in scores if len(mine)]
    runs = continued(monkeypatch, scores, network, 0.25, continuation=3, rounds=100)
    assert [rounds for *_, rounds in runs] == [33] * 3
    for stage, (knobs, centre, start, _) in enumerate(runs):
        w = (quantiles[1] - quantiles[0]) / 2.5**stage
        h = 30 / 3 * (1 - gamma) / w
        found = (knobs.kappa.item(), knobs.c.item(), knobs.mu.item())
        assert found == pytest.approx((4 / w, h / (4 / 3), h / 30), rel=1e-12)
        assert centre == start == pytest.approx(np.mean(quantiles) + stage, abs=1e-4)  # the last estimate


def test_continuation_is_never_sharper_than_scores_can_be_told_apart(monkeypatch):
    """Equal quantiles spread over nothing: w is 1e-9 of s0 or of 1; and 1 - gamma = 0 counts as 0.001."""
    for value, floor in ((500.0, 5e-7), (0.25, 1e-9), (-500.0, 5e-7)):
        ((knobs, *_),) = continued(monkeypatch, [[value] * 9, [value] * 9], Network.chain(2), 0.1, continuation=1)
        assert knobs.kappa.item() == pytest.approx(4 / floor, rel=1e-4)
        assert knobs.c.item() == pytest.approx(18 / 2 * 1e-3 / floor, rel=1e-4)  # rank 18 of 18
    infinite = [[-np.inf] * 5 + [1.0] * 4, [2.0] * 9]
    ((knobs, *_),) = continued(monkeypatch, infinite, Network.chain(2), 0.6, continuation=1, s0=0.0)
    assert knobs.kappa.item() == pytest.approx(4e9, rel=1e-6)  # no spread to speak of


@pytest.mark.parametrize(
    ("rounds", "continuation", "share"), [(100, 0, 100), (100, 1, 100), (100, 3, 33), (2, 5, 1), (10, 5, 2)]
)
def test_runs_share_the_rounds(rounds, continuation, share):
    assert rounds_per_run(QDCP(rounds=rounds, continuation=continuation)) == share


def test_the_printed_distance_is_that_of_the_optimum(twenty_devices):
    """c E (s_hat - z0)^2 + g' (D-A)^+ g / c, with the pooled minimiser and a dense pseudo-inverse."""
    network, kappa, mu, s0 = Network.grid(5, 4), 50.0, 20.0, 0.4
    gamma = level(twenty_devices, 20, 0.1)
    s_hat = pooled_minimiser(twenty_devices, gamma, kappa, mu, s0)
    gradient = np.array([(1 / (1 + np.exp(-kappa * (s_hat - s)))).sum() - gamma * len(s) for s in twenty_devices])
    gradient += mu * (s_hat - s0)
    assert gradient.sum() == pytest.approx(0.0, abs=1e-6)
    energy = gradient @ np.linalg.pinv(network.laplacian().toarray()) @ gradient
    largest = max(map(len, twenty_devices))
    rate = admm_rate(network.spectrum, largest * kappa / 4 + mu, mu)
    for start, z0 in (("zeros", 0.0), ("s0", s0)):
        result = run(twenty_devices, network, kappa=kappa, mu=mu, s0=s0, start=start, bound="paper", rounds=7)
        distance = rate.c * network.edges * (s_hat - z0) ** 2 + energy / rate.c
        assert result.certificate.epsilon_T == pytest.approx(convergence_epsilon(rate, 20, mu, 7, distance), rel=1e-6)
        n = sum(map(len, twenty_devices))
        assert result.certificate.epsilon_bias == pytest.approx(bias_epsilon(n, mu, kappa, 0.1), rel=1e-12)
        assert result.threshold == pytest.approx(
            result.estimate + result.certificate.epsilon_T + result.certificate.epsilon_bias, rel=1e-12
        )
        assert result.certificate.epsilon == result.certificate.epsilon_T + result.certificate.epsilon_bias


def test_the_sound_terms_are_those_of_what_devices_know(twenty_devices):
    """The bias with a regulariser for each device; the distance by the regulariser's reach and where ADMM starts."""
    network, mu, kappa, s0 = Network.grid(5, 4), 20.0, 50.0, 0.4
    sizes = np.array([len(s) for s in twenty_devices])
    gamma = level(twenty_devices, 20, 0.1)
    rate = admm_rate(network.spectrum, sizes.max() * kappa / 4 + mu, mu)
    for start, offset in (("zeros", s0), ("s0", 0.0)):
        certificate = run(twenty_devices, network, kappa=kappa, mu=mu, s0=s0, start=start, rounds=7).certificate
        distance = largest_distance(rate.c, network.edges, network.spectrum, sizes, gamma, mu, offset)
        assert certificate.epsilon_T == pytest.approx(convergence_epsilon(rate, 20, mu, 7, distance), rel=1e-12)
        assert certificate.epsilon_bias == pytest.approx(
            bias_epsilon(sizes.sum(), mu, kappa, 0.1, copies=20), rel=1e-12
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, []),
        ({"bound": "paper"}, ["epsilon_T uses the optimum"]),
        ({"spectrum": "estimated"}, ["eigenvalues estimated by message passing are right"]),
        ({"wire": 32}, ["rounding messages to 32 bits"]),
        ({"bound": "paper", "wire": 16}, ["epsilon_T uses the optimum", "rounding messages to 16 bits"]),
    ],
)
def test_every_assumption_is_named_and_no_other(options, words, twenty_devices):
    said = run(twenty_devices, Network.torus(5, 4), epsilon0=0.3, rounds=5, **options).certificate.assumption.split(
        "; "
    )
    assert said[0].startswith("|s0 - s*| <= epsilon0 = 0.3 (s0 is within 0.3 of the required quantile)")
    assert "the regulariser keeps the estimate within" in said[1]
    assert len(said) == 2 + len(words)
    assert all(word in sentence for word, sentence in zip(words, said[2:], strict=True))


@pytest.mark.shared_data
def test_certified_q_dcp_covers_pathmnist_where_the_published_one_does_not(real_data):
    """PathMNIST, 8 devices, 60 draws: FCP covers .908; published Q-DCP .858; certified Q-DCP and E-DCP are with FCP.

    The three share their draws, so differences are tiny against the 0.002 standard error of each mean.
    """
    data = real_data("pathmnist_logits.npz")
    logits, labels = data["logits"], data["labels"].astype(int)
    score, trials, tests = Logit(), [], []
    for seed in range(60):
        rows = np.random.default_rng(seed).permutation(len(labels))
        chosen, rest = rows[: len(labels) // 10], rows[len(labels) // 10 :]
        device = np.minimum(labels[chosen], 7)
        trials.append([score(logits[chosen[device == k]], labels[chosen[device == k]]) for k in range(8)])
        tests.append(score(logits[rest], labels[rest]))
    samples, net = WeightedScores.of_trials(trials), Network.torus(4, 2)

    def coverage(method, **options):
        batch = solve_draws(samples, net, [0.1], method, requirement=PAPER_REQUIREMENT, **options)
        thresholds = batch.outcome.thresholds[0, :, 0]
        return np.mean([(test <= t).mean() for test, t in zip(tests, thresholds, strict=True)])

    fcp = coverage("fcp")
    assert fcp == pytest.approx(0.908, abs=0.01)
    assert coverage("e-dcp") == fcp
    assert coverage("q-dcp", certify=True) == pytest.approx(fcp, abs=0.005)
    assert coverage("q-dcp", continuation=5) == pytest.approx(fcp, abs=0.005)
    assert coverage("q-dcp", start="zeros", bound="paper", rounds=8000) == pytest.approx(0.858, abs=0.015)


def test_too_few_scores_give_infinity_not_a_root():
    with pytest.warns(TooFewScores, match="needs rank 6 but there are only 4"):
        result = calibrate([[0.1, 0.2], [0.3, 0.4]], Network.chain(2), 0.1, "q-dcp", rank_rule="ghost")
    assert result.threshold == np.inf
    with pytest.raises(TooFewScores):
        calibrate([[0.1, 0.2], [0.3, 0.4]], Network.chain(2), 0.1, "q-dcp", strict=True)


def test_one_device_needs_no_message():
    rng = np.random.default_rng(0)
    scores = [rng.random(200)]
    result = run(scores, Network.chain(1), s0="0.9", rounds=1)
    assert result.estimate == pytest.approx(
        pooled_minimiser(scores, level(scores, 1, 0.1), 2000.0, 2000.0, 0.9), abs=1e-9
    )
    assert result.certificate.epsilon_T == 0


def test_batched_trials_and_alphas_equal_single_runs(twenty_devices):
    """Bit for bit: riding along changes no arithmetic."""
    rng = np.random.default_rng(3)
    other = [rng.normal(size=len(s) + 3) for s in twenty_devices]
    net, levels = Network.star(20), (0.1, 0.5)
    samples, options = WeightedScores.of_trials([twenty_devices, other]), {"rounds": 50, "bound": "paper"}
    batch = solve_draws(samples, net, levels, "q-dcp", requirement=PAPER_REQUIREMENT, **options)
    costs = []
    for t, scores in enumerate((twenty_devices, other)):
        for a, alpha in enumerate(levels):
            single = run(scores, net, alpha, **options)
            np.testing.assert_array_equal(single.thresholds, batch.outcome.thresholds[:, t, a])
            assert single.certificate == batch.outcome.certificates[t][a]
            assert single.cost.rounds == batch.cost.rounds
            costs.append(single.cost.bits)
    np.testing.assert_allclose(np.mean(costs, axis=0), batch.cost.bits, rtol=1e-12)  # who has news depends on scores


@pytest.mark.shared_data
def test_paper_literal_set_sizes(real_data):
    """CIFAR-100 logits, n_k = 50, T = 1500, zeros, as printed: 29.92 / 10.66 / 10.53 / 10.53 / 10.53 labels.

    Both figures are means over 10 draws whose standard error is about 0.25 (0.15 on the chain); five of their combined
    standard errors give a false alarm below 1e-6 per graph, and self-loops (52.33, 11.64 on chain and cycle), a
    start at s0 (10.58 on the chain) or a level one percent off would be seen.
    """
    data = real_data("cifar100_logits.npz")
    logits, labels = data["logits"], data["labels"].astype(int)
    score, trials, tests = Logit(), [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        chosen = [rng.choice(np.flatnonzero(labels // 5 == k), 50, replace=False) for k in range(20)]
        trials.append([score(logits[rows], labels[rows]) for rows in chosen])
        tests.append(np.setdiff1d(np.arange(len(labels)), np.concatenate(chosen)))
    samples = WeightedScores.of_trials(trials)
    sizes = {}
    for name in ("chain", "cycle", "star", "torus", "complete"):
        batch = solve_draws(samples, Network.of(name, 20), [0.1], "q-dcp", start="zeros", bound="paper")
        thresholds = batch.outcome.thresholds[0, :, 0]
        sizes[name] = [score.sets(logits[rows], t).sum(1).mean() for rows, t in zip(tests, thresholds, strict=True)]
    expected = {"chain": 29.92, "cycle": 10.66, "star": 10.53, "torus": 10.53, "complete": 10.53}
    for name, value in expected.items():
        error = np.std(sizes[name], ddof=1) / math.sqrt(10)
        assert abs(np.mean(sizes[name]) - value) < 5 * math.sqrt(2) * error, (name, np.mean(sizes[name]), error)
    # what all graphs share (the draw) cancels in differences: the cycle's extra 0.13 labels are seen sharply
    extra = np.array(sizes["cycle"]) - np.array(sizes["complete"])
    assert extra.mean() == pytest.approx(0.13, abs=0.03)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"kappa": 0.0}, "kappa must be positive"),
        ({"kappa": math.inf}, "kappa must be positive and finite"),
        ({"mu": -1.0}, "mu must be positive"),
        ({"mu": math.inf}, "mu must be positive and finite"),
        ({"continuation": -1}, "continuation must be at least 0"),
        ({"aggregate": "forest"}, "unknown aggregator 'forest'"),
        ({"spectrum": "guessed"}, "spectrum must be"),
        ({"epsilon0": -0.1}, "epsilon0 must be"),
        ({"s0": "median"}, "s0 must be a finite number or one of"),
        ({"s0": "inf"}, "s0 must be a finite number or one of"),
        ({"start": "ones"}, "start must be"),
        ({"bound": "cumulative"}, "bound must be"),
        ({"c": 0.0}, "c must be larger than 0"),
        ({"b": 1.0}, "b must be larger than 1"),
        ({"bins": 3}, "belongs to h-dcp, r-dcp, wfcp"),
    ],
)
def test_bad_options_say_what_was_needed(options, message):
    with pytest.raises(ValueError, match=message):
        calibrate([[0.1] * 9, [0.2] * 9], Network.chain(2), 0.5, "q-dcp", **options)


def test_infinite_local_quantiles_ask_for_a_number():
    scores = [[0.1] * 9 + [np.inf] * 9, [0.2] * 9]
    with pytest.raises(ValueError, match="give s0 as a number"):
        calibrate(scores, Network.chain(2), 0.3, "q-dcp")


# --- thresholds that say nothing --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    """Probabilities of a good and of a weak model of handwritten digits, for rows that they were not trained with."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    train, rest = order[:500], order[500:]
    models = {"good": LogisticRegression(max_iter=2000), "weak": LogisticRegression(C=1e-5)}
    return {name: model.fit(X[train], y[train]).predict_proba(X[rest]) for name, model in models.items()}, y[rest]


def vacuous(found):
    return [note for note in found.notes if "prediction sets hold nearly every label" in note]


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize(
    ("model", "score", "options", "full"),
    [
        ("good", LAC(), {}, False),
        ("weak", LAC(), {}, True),
        ("good", APS(seed=0), {}, True),
        ("weak", APS(seed=0), {}, False),
        ("weak", LAC(), {"certify": True}, False),
    ],
)
def test_a_note_says_where_sets_hold_every_label(digits, model, score, options, full, alike):
    """At the required quantile the largest score of LAC is .01 away, of APS 1e-6: less than epsilon0 = .1."""
    outputs, labels = digits[0][model], digits[1]
    rows = np.arange(480) if alike else np.argsort(labels[:480], kind="stable")
    held = np.split(score(outputs[rows], labels[rows]), 8)
    found = calibrate(held, Network.torus(4, 2), 0.1, "q-dcp", score=score, **options)
    size = found.predict(outputs[480:]).sum(axis=1).mean()
    assert (size == 10) == full == (len(vacuous(found)) == 1)
    if full:
        with pytest.warns(CalibrationNote, match=r"none of 480 scores here lie above it.*epsilon0=0.1 is large"):
            calibrate(held, Network.torus(4, 2), 0.1, "q-dcp", score=score, **options)


def test_too_few_rounds_are_named_as_the_cause():
    held = np.random.default_rng(0).normal(size=(20, 50))
    [note] = vacuous(calibrate(held, Network.chain(20), 0.1, "q-dcp", rounds=20, mu=1.0))
    assert "set more rounds" in note
    assert vacuous(calibrate(held, Network.chain(20), 0.1, "q-dcp")) == []


@pytest.mark.parametrize("held", [[[0.25] * 30] * 4, [[0.25, 0.5, 1.0, 1.0, 1.0] * 6] * 4])
def test_equal_scores_leave_none_above_any_threshold(held):
    assert vacuous(calibrate(held, Network.cycle(4), 0.2, "q-dcp")) == []


def test_one_device_sees_it_by_its_own_scores():
    """At the exact quantile of 50 exponential scores: a false alarm has probability .9^50 = .005.

    20 or more in 2,000 draws have probability below .004. Five units above it no score lies in .97 of draws.
    """
    rng, options = np.random.default_rng(0), QDCP()

    def noted(raised):
        samples = WeightedScores.of([rng.exponential(size=50)])
        return bool(_note_if_vacuous(samples, np.array([math.log(10) + raised]), 0, 0.9, 0.0, raised, options))

    assert sum(noted(0.0) for _ in range(2000)) < 20
    assert sum(noted(5.0) for _ in range(200)) > 180
    few = WeightedScores.of([rng.exponential(size=20)])  # which may all lie below the right threshold
    assert not _note_if_vacuous(few, np.array([99.0]), 0, 0.9, 0.0, 1.0, options)
