"""Whole weights: E-DCP ends at the pooled weighted sort, bit for bit, on every engine; unit weights cost nothing.

The pooled sort is in fractions and knows nothing of integer weights: the smallest score at which what lies at or below
it reaches (1 - alpha) of all, plus what a new example and one exchanged for it may weigh.
"""

import statistics
import time
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from conformesh import METHODS, Centres, Network, calibrate, update
from conformesh.kernels.ranks import Requirement, make_requirement, weighted_threshold
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import make_options, run_method
from conformesh.peer.device import Device
from conformesh.peer.interface import PeerSetup
from conformesh.peer.loopback import LinkFaults, run_loopback
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols.block import Answers
from conformesh.protocols.size_agreement import run_with_shared_sizes
from tests.engines.mpi import job
from tests.reference import weighted_rule

ALPHAS = tuple(map(Fraction, ("0.05", "0.1", "0.25", "0.3", "0.5", "0.8")))
MIXTURES = ("sizes", "paper", "equal", "given")


class Case(NamedTuple):
    """Weighted scores of several trials on one network, and what is asked of them."""

    network: Network
    values: list[list[np.ndarray]]
    weights: list[list[np.ndarray]]
    requirement: Requirement
    alpha: Fraction
    shares: list[int] | None

    @property
    def samples(self) -> WeightedScores:
        return WeightedScores.weighted(self.values, self.weights)

    @property
    def items(self) -> np.ndarray:
        return np.array([[len(own) for own in trial] for trial in self.values]).T

    def wanted(self, trial: int) -> float:
        """The threshold of one trial, by sorting all of its scores."""
        return weighted_rule(
            self.values[trial],
            self.weights[trial],
            self.requirement.mixture,
            self.alpha,
            self.requirement.largest_weights[trial % len(self.requirement.largest_weights)],
            None if self.requirement.test_weights is None else self.requirement.test_weights[0][0],
            self.shares,
        )


def random_case(rng, trials, most=9, least=1):
    """Unequal devices, some without scores; ties, infinities, weights of zero, and one or two devices often."""
    devices = max(int(rng.choice([1, 2, 3, 5, 8], p=[0.15, 0.25, 0.2, 0.2, 0.2])), least)
    network = Network.of(str(rng.choice(["chain", "star", "complete"])), devices)
    pool = (
        rng.normal(size=6),
        np.array([-np.inf, -1.0, -0.0, 0.0, 1.0, np.inf]),
        np.array([0.5, 0.5, 0.5, np.inf]),
        rng.normal(size=500) * 10.0 ** rng.integers(-300, 300),
    )[rng.integers(4)]
    bounds = tuple(rng.choice([1, 2, 5, 1000, 2**20], trials).tolist())
    values, weights = [], []
    for trial in range(trials):
        sizes = np.where(rng.random(devices) < 0.2, 0, rng.integers(0, most, devices))
        values.append([rng.choice(pool, n) for n in sizes])
        weights.append([rng.integers(0, bounds[trial] + 1, n) * (rng.random(n) < 0.8) for n in sizes])
    target = str(rng.choice(MIXTURES))
    shares = None
    if target == "given":
        shares = (rng.integers(0, 6, devices) * (rng.random(devices) < 0.8)).tolist()
        shares[rng.integers(devices)] += 1
    asked = make_requirement(target if shares is None else dict(zip(network.ids, shares, strict=True)))
    tests = None if rng.random() < 0.5 else ((int(rng.integers(0, min(bounds) + 1)),),)
    requirement = replace(asked, is_weighted=True, largest_weights=bounds, test_weights=tests)
    return Case(network, values, weights, requirement, ALPHAS[rng.integers(len(ALPHAS))], shares)


def simulated(case, **options):
    return solve_draws(
        case.samples, case.network, (case.alpha,), "e-dcp", requirement=case.requirement, items=case.items, **options
    )


def assert_is_pooled_sort(case, batch):
    for trial, row in enumerate(batch.outcome.certificates):
        wanted = case.wanted(trial)
        found = batch.outcome.thresholds[:, trial, 0]
        assert (found == wanted).all()  # equal floats have equal bits, but for the sign of zero
        certificate = row[0]
        assert (certificate.counted_rank >= certificate.required_rank) or found[0] == np.inf


@pytest.mark.parametrize(
    "seeds", [range(10), pytest.param(range(10, 100), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_theorem_weighted_search_ends_at_the_pooled_sort(seeds):
    """A hundred cases for each seed: ten thousand with the long tests."""
    for seed in seeds:
        rng = np.random.default_rng([1, seed])
        for _ in range(4):
            case = random_case(rng, 25)
            assert_is_pooled_sort(case, simulated(case))


@pytest.mark.parametrize("aggregate", ["tree", "flood"])
def test_every_way_to_add_up_adds_weights(aggregate):
    rng = np.random.default_rng(2)
    for _ in range(6):
        case = random_case(rng, 6)
        small = replace(case.requirement, largest_weights=(5,), test_weights=None)
        weights = [[np.minimum(own, 5) for own in trial] for trial in case.weights]
        case = case._replace(requirement=small, weights=weights, network=Network.complete(case.network.devices))
        assert_is_pooled_sort(case, simulated(case, aggregate=aggregate))


def over_loopback(case):
    """The same by devices of their own on a fake network, one trial at a time."""
    chosen = make_options("e-dcp", {})
    samples, alphas = case.samples, (case.alpha,)

    def start(k, journal):
        def make(network, row):
            return run_with_shared_sizes(
                network,
                row,
                samples.take(np.array([k])),
                lambda block, own: run_method("e-dcp", block, own, chosen),
                case.requirement,
                alphas,
                case.items[[k]],
            )

        return Device(PeerSetup(k, case.network, {}, make, journal))

    devices = run_loopback(case.network, start, LinkFaults(), np.random.default_rng(0)).devices
    for device in devices:
        if device.error is not None:
            raise device.error
    return Answers.concatenate([np.array([k]) for k in range(case.network.devices)], [each.result for each in devices])


def test_devices_on_a_network_end_there_too():
    rng = np.random.default_rng(3)
    for _ in range(12):
        case = random_case(rng, 3)
        found, right = over_loopback(case), simulated(case).outcome
        np.testing.assert_array_equal(found.thresholds, right.thresholds)
        assert found.certificates == right.certificates


@pytest.mark.xdist_group("mpi")
def test_two_ranks_end_there_too():
    rng = np.random.default_rng(4)
    answers = job(2, "weighted")["cases"]
    assert len(answers) == 40
    for answer in answers:
        batch = simulated(random_case(rng, 5, least=2))
        assert answer["thresholds"] == batch.outcome.thresholds.tolist()
        assert answer["ranks"] == [row[0].required_rank for row in batch.outcome.certificates]


@pytest.mark.parametrize("options", [{}, {"schedule": "window"}, {"schedule": "count"}], ids=str)
def test_a_result_with_weights_starts_the_next_one(options):
    """In fewer rounds where little has changed, and at the same threshold where everything has."""
    rng, network = np.random.default_rng(8), Network.chain(15)
    held, weights = [rng.normal(size=50) for _ in range(15)], [rng.uniform(0, 3, 50) for _ in range(15)]
    given = {"weight": weights, "weight_bound": 3.0}
    old = calibrate(held, network, 0.1, **given, **options)
    nearly = [np.append(own[1:], rng.normal()) for own in held]
    for new in (nearly, [1e6 - own for own in held]):
        cold, warm = calibrate(new, network, 0.1, **given, **options), update(old, new, network, **given)
        assert (warm.threshold, warm.certificate) == (cold.threshold, cold.certificate)
        assert warm.cost.rounds < cold.cost.rounds or new is not nearly


def shifted_calls(engine):
    """Thresholds of every public call that gives scores weights."""
    rng = np.random.default_rng(7)
    network, x = Network.cycle(6), [rng.random(20 + 3 * k) for k in range(6)]
    held = [np.abs(rng.normal(size=len(own))) * (0.3 + own) for own in x]
    labels = [rng.integers(0, 3, len(own)) for own in x]
    common = {"engine": engine, "mixture": "equal"}
    one = calibrate(held, network, 0.2, weight=lambda own: 3 * own, inputs=x, weight_bound=3, **common)
    each = calibrate(held, network, (0.2,), class_weights=[0.5, 1, 3], labels=labels, **common)
    local = calibrate(held, network, 0.2, inputs=x, centres=Centres.at([0.2, 0.8], 0.3), **common)
    return [answer.threshold for result in (one, each, local) for answer in result.answers]


@pytest.mark.xdist_group("mpi")
def test_calls_with_weights_give_the_same_on_two_ranks():
    assert job(2, "weighted")["calls"] == shifted_calls("simulator")


def test_the_integers_say_what_the_pooled_sort_of_them_finds():
    """`weighted_threshold` of the integer weights and the certificate's rank: two ways to one number."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        case = random_case(rng, 1)
        if case.requirement.mixture != "sizes":
            continue
        batch = simulated(case)
        pooled = [np.concatenate(parts[0]) for parts in (case.values, case.weights)]
        rank = batch.outcome.certificates[0][0].required_rank
        assert weighted_threshold(*pooled, rank) == batch.outcome.thresholds[0, 0, 0]


def unit_and_none(devices, n):
    """The same scores with explicit unit weights, which are looked up as any others, and with none."""
    samples = WeightedScores.of(np.random.default_rng(6).normal(size=(devices, n)))
    return replace(samples, weights=np.ones(len(samples.values), dtype=np.int64)), samples


@pytest.mark.parametrize("options", [{}, {"aggregate": "flood"}, {"width": 1}, {"prefer": "rounds"}])
def test_unit_weights_cost_not_one_number_more(options):
    network = Network.torus(5, 4)
    unit, plain = (solve_draws(samples, network, (0.1, 0.2), "e-dcp", **options) for samples in unit_and_none(20, 50))
    np.testing.assert_array_equal(unit.outcome.thresholds, plain.outcome.thresholds)
    assert unit.outcome.certificates == plain.outcome.certificates
    assert unit.cost.rounds == plain.cost.rounds
    np.testing.assert_array_equal(unit.cost.numbers, plain.cost.numbers)
    np.testing.assert_array_equal(unit.cost.bits, plain.cost.bits)


def test_unit_weights_are_none():
    samples = WeightedScores.of([[3.0, 1.0], [2.0]])
    assert samples.with_weights(np.ones(3, dtype=np.int64)).weights is None
    assert samples.with_weights(np.array([1, 1, 2])).weights.tolist() == [1, 1, 2]


@pytest.mark.slow
def test_unit_weights_take_no_time():
    """At most 2 % more, looked up as any others: the median ratio of runs in turn, in the best of five attempts.

    Attempts are for other work on the machine, which moves a median of 25 ratios by a few per cent.
    """
    network, both = Network.torus(20, 20), unit_and_none(400, 250)

    def seconds(samples):
        start = time.process_time()
        solve_draws(samples, network, (0.1,), "e-dcp", aggregate="tree")
        return time.process_time() - start

    for samples in both:
        seconds(samples)
    ratios = []
    for _ in range(5):
        times = [[seconds(samples) for samples in both] for _ in range(25)]
        ratios.append(statistics.median(unit / plain for unit, plain in times))
        if ratios[-1] <= 1.02:
            return
    pytest.fail(f"unit weights took {min(ratios):.3f} times as long as none: {ratios}")


def test_a_changed_weight_changes_the_answer():
    """The comparison itself: the sort sees weights."""
    values, weights = [[np.array([1.0, 2.0, 3.0])]], [[np.array([1, 1, 9])]]
    case = Case(
        Network.complete(1),
        values,
        weights,
        replace(make_requirement(), is_weighted=True, largest_weights=(9,)),
        ALPHAS[5],
        None,
    )
    light = case._replace(weights=[[np.array([9, 1, 1])]])
    assert case.wanted(0) != light.wanted(0)
    assert_is_pooled_sort(light, simulated(light))
    with pytest.raises(AssertionError):
        assert_is_pooled_sort(case, simulated(light))


def test_every_method_that_takes_weights_of_scores_is_here():
    takes = {name for name, entry in METHODS.items() if entry.weights(make_options(name, {})) == "scores"}
    assert takes == {"e-dcp"}
