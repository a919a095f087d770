"""Every schedule of E-DCP ends at the pooled sort, on every device, whatever the scores; planted mistakes are noticed.

The pooled sort is here in plain Python, with weights as they are; the rank that it is to have is the certificate's,
which `tests.strategies.promised_rank` and `tests.pipeline.test_weights` find in their own ways.
"""

import itertools
import math
import warnings
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import Network, TooFewScores, calibrate
from conformesh.engines import Simulator
from conformesh.kernels import compilation as compiling
from conformesh.kernels import replies
from conformesh.kernels.replies import COUNTED
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols import merged_scores as known
from conformesh.protocols import top_k, waves
from tests.campaigns import campaign_seeds
from tests.pipeline import test_weights
from tests.strategies import alphas, device_scores, networks, promised_rank

SCHEDULES = (
    {"schedule": "top-k", "aggregate": "flood"},
    {"schedule": "top-k", "aggregate": "tree"},
    {"schedule": "window"},
    {"schedule": "count"},
    {"prefer": "rounds"},
    {"prefer": "numbers"},
    {"prefer": "bits"},
    {"prefer": "balanced"},
)
FLOOD, TREE, WINDOW, COUNT = SCHEDULES[:4]
NAMES = ["-".join(options.values()) for options in SCHEDULES]
LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.9, 0.99)
each_schedule = pytest.mark.parametrize("options", SCHEDULES, ids=NAMES)


@pytest.fixture(autouse=True, scope="module")
def written():
    """No compiler in this module: `tests.kernels.test_replies` compares the compiled loops with these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "_loaded", {})
        patch.setattr(compiling, "LOADING", math.inf)
        yield


class Case(NamedTuple):
    """Scores of several trials on one network, and the levels asked for."""

    network: Network
    trials: list[list[np.ndarray]]
    alphas: tuple[float, ...]

    def run(self, **options):
        samples = WeightedScores.of_trials(self.trials)
        return solve_draws(samples, self.network, self.alphas, "e-dcp", **options)


def shapes_of(rng):
    """Scores of many kinds: ties, gaps, tails, both ends of the floats, float32."""
    return (
        lambda n: rng.normal(size=n),
        lambda n: rng.normal(size=n).astype(np.float32),
        rng.standard_cauchy,
        lambda n: rng.random(n) ** 8,
        lambda n: rng.integers(0, 3, n) / 2,
        lambda n: np.full(n, 0.1),
        lambda n: np.where(rng.random(n) < 0.7, 0.0, rng.normal(size=n) * 1e-300),
        lambda n: rng.integers(-3000, 3000, n) * 5e-324,
        lambda n: 1 + rng.integers(0, 3000, n) * 2.0**-52,
        lambda n: (rng.random(n) * 2 - 1) * 1.7976931348623157e308,
        lambda n: 2.0 ** rng.integers(-1070, 1020, n),
        lambda n: rng.choice([np.inf, -np.inf, 1.0, 1e308, -1e308], n),
        lambda n: np.where(rng.random(n) < 0.2, rng.choice([np.inf, -np.inf]), rng.normal(size=n)),
    )


def drawn_case(rng, most_devices=200):
    """A connected graph of 1..200 devices, some without scores, some with many."""
    k = int(rng.integers(1, most_devices + 1 if rng.random() < 0.2 else 16))
    pairs = {(int(rng.integers(max(i - 3, 0) if k % 2 else 0, i)), i) for i in range(1, k)}  # long ones, and wide ones
    extra = rng.integers(0, k, size=(int(rng.integers(0, k + 1)), 2))
    pairs |= {(min(a, b), max(a, b)) for a, b in extra.tolist() if a != b}
    most = int(rng.choice([2, 12, 60]))
    trials = []
    for _ in range(int(rng.integers(1, 4))):
        shapes = shapes_of(rng)
        shape, other = shapes[rng.integers(len(shapes))], shapes[rng.integers(len(shapes))]
        sizes = rng.integers(0, most, k) * (rng.random(k) < 0.8)
        mixed = rng.random() < 0.2  # every device its own kind of scores
        held = [np.asarray((other if mixed and j % 2 else shape)(int(n)), float) for j, n in enumerate(sizes)]
        if rng.random() < 0.3:  # each device holds its part of the order
            held = np.split(np.sort(np.concatenate(held)), np.cumsum(sizes)[:-1])
        trials.append(held)
    levels = rng.choice(LEVELS, int(rng.integers(1, 4)), replace=False)
    return Case(Network.from_pairs(k, sorted(pairs), name="drawn"), trials, tuple(levels.tolist()))


def drawn_options(rng, options):
    """A width, and a start from somewhere: nonsense, one end open, an end among the scores."""
    more = dict(options)
    if options.get("aggregate") != "flood" and rng.random() < 0.5:
        more["width"] = int(rng.integers(1, 21))
    if rng.random() < 0.4:
        ends = rng.choice([-np.inf, -1e308, -5.0, -0.0, 1e-310, 0.1, 0.5, 1.0, 2.0, 1e300, np.inf], 2)
        more["warm"] = tuple(sorted(ends.tolist()))
    return more


def pooled(values, weights, rank):
    """The smallest score at which what lies at or below it weighs `rank`, and that weight."""
    reached = 0
    by_score = sorted(zip(np.concatenate(values).tolist(), np.concatenate(weights).tolist(), strict=True))
    for score, same in itertools.groupby(by_score, key=lambda pair: pair[0]):
        reached += sum(weight for _, weight in same)
        if reached >= rank:
            return score, reached
    return math.inf, reached


def assert_is_pooled_sort(batch, trials, weights=None):
    """Bit for bit but for the sign of zero, with its counted rank, on every device."""
    for t, values in enumerate(trials):
        whole = [np.ones(len(own), np.int64) for own in values] if weights is None else weights[t]
        for a, certificate in enumerate(batch.outcome.certificates[t]):
            found = batch.outcome.thresholds[:, t, a]
            expected, reached = pooled(values, whole, certificate.required_rank)
            assert (found == expected).all(), (found, expected, certificate)
            assert certificate.counted_rank == reached


def assert_is_right(case, batch):
    assert_is_pooled_sort(batch, case.trials)
    for trial, row in zip(case.trials, batch.outcome.certificates, strict=True):
        assert [one.required_rank for one in row] == [promised_rank(trial, alpha) for alpha in case.alphas]


def check(seeds, options, most_devices=40):
    for seed in seeds:
        rng = np.random.default_rng([12, *seed])
        case = drawn_case(rng, most_devices)
        more = drawn_options(rng, options)
        try:
            assert_is_right(case, case.run(**more))
        except Exception as error:
            error.add_note(f"seed {seed}, {case.network.devices} devices, {more}")
            raise


@each_schedule
def test_theorem_every_schedule_ends_at_the_pooled_sort(options):
    check([(0, i) for i in range(12)], options)


@pytest.mark.slow
@each_schedule
def test_many_cases_end_at_the_pooled_sort(options):
    check([(1, i) for i in campaign_seeds(125)], options, most_devices=200)


@settings(max_examples=3 * settings.default.max_examples // 2)
@given(networks(most=14), alphas, st.sampled_from(SCHEDULES), st.integers(1, 20), st.data())
def test_hypothesis_finds_no_case_that_ends_elsewhere(network, alpha, options, width, data):
    scores = data.draw(device_scores(network.devices))
    case = Case(network, [scores], (alpha,))
    assert_is_right(case, case.run(**options, width=width))


@each_schedule
def test_theorem_weighted_scores_end_at_the_weighted_sort(options):
    """Whole weights from 0 to a million, targets that give devices weights: in fractions, and in their integers."""
    rng = np.random.default_rng(31)
    for _ in range(5):
        case = test_weights.random_case(rng, 6)
        batch = test_weights.simulated(case, **options)
        test_weights.assert_is_pooled_sort(case, batch)
        if case.requirement.mixture == "sizes" and len({len(own) for trial in case.values for own in trial}) > 1:
            assert_is_pooled_sort(batch, case.values, case.weights)


@each_schedule
def test_groups_end_at_the_sorts_of_their_own_scores(options):
    rng = np.random.default_rng(32)
    for network in (Network.chain(9), Network.star(6), Network.torus(3, 3)):
        held = [rng.normal(size=rng.integers(30, 60)).round(2) for _ in range(network.devices)]
        labels = [rng.integers(0, 3, len(own)) for own in held]
        several = calibrate(held, network, (0.1, 0.3), groups=labels, **options)
        for group in range(3):
            own = [s[g == group] for s, g in zip(held, labels, strict=True)]
            for alpha in (0.1, 0.3):
                found = several[group, alpha]
                expected, reached = pooled(own, [np.ones(len(s), int) for s in own], found.certificate.required_rank)
                assert (found.thresholds == expected).all()
                assert found.certificate.counted_rank == reached


@each_schedule
def test_a_result_starts_the_next_one(options):
    """From the bracket of an old result, whose scores have changed a little, or altogether."""
    rng = np.random.default_rng(33)
    for network in (Network.chain(8), Network.torus(3, 4)):
        old = [rng.normal(size=50) for _ in range(network.devices)]
        before = calibrate(old, network, 0.1, **options)
        for new in (old, [np.append(own, rng.normal()) for own in old], [1e6 - own for own in old]):
            case = Case(network, [new], (0.1,))
            assert_is_right(case, case.run(**options, warm=before.bracket))


@each_schedule
def test_the_edges_of_what_can_be_asked(options):
    """One device, no scores, fewer than the rank asks for, all of them equal."""
    for scores in ([[]], [[], [], []], [[1.0]], [[0.5] * 40] * 3, [[math.inf] * 9, []], [[-math.inf] * 9] * 2):
        case = Case(Network.chain(len(scores)), [[np.array(own, float) for own in scores]], LEVELS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TooFewScores)
            assert_is_right(case, case.run(**options))


def test_ties_are_said_once_however_many_they_are():
    """Ten thousand equal scores are a run: searching for them ends, after few passes."""
    for kind in (np.full(500, 0.1), np.arange(500) % 2, np.repeat([-math.inf, 0.0, math.inf], 200)):
        case = Case(Network.chain(20), [[kind.astype(float)] * 20], (0.1, 0.5))
        for options in SCHEDULES[2:]:
            batch = case.run(**options)
            assert_is_right(case, batch)
            assert int(batch.outcome.facts.get("passes", 0)) <= 5


def test_scores_that_no_sketch_tells_apart_end_too():
    """Groups of neighbouring floats, each group far from the next: the search ends all the same."""
    rng = np.random.default_rng(34)
    far = np.array([-1e308, -1.0, 1e-300, 1.0, 1e308])
    scores = [rng.choice(far, 200) * (1 + rng.integers(0, 500, 200) * 2.0**-52) for _ in range(20)]
    case = Case(Network.chain(20), [scores], LEVELS)
    for options in SCHEDULES[3:]:
        batch = case.run(**options)
        assert_is_right(case, batch)
        assert int(batch.outcome.facts.get("passes", 0)) <= waves.PASSES_BEFORE_LISTING + 2


@each_schedule
def test_devices_in_another_order_of_memory_send_and_find_the_same(options):
    rng = np.random.default_rng(39)
    for seed in range(8):
        case = drawn_case(np.random.default_rng([40, seed]), 40)
        order = rng.permutation(case.network.devices)
        here = case.run(**options, engine=Simulator(case.network))
        there = case.run(**options, engine=Simulator(case.network, order=order))
        np.testing.assert_array_equal(here.outcome.thresholds, there.outcome.thresholds)
        assert here.outcome.certificates == there.outcome.certificates
        assert here.outcome.facts == there.outcome.facts
        assert here.cost.rounds == there.cost.rounds
        np.testing.assert_array_equal(here.cost.numbers, there.cost.numbers)
        np.testing.assert_array_equal(here.cost.bits, there.cost.bits)


# --- what sketches may decide -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["noise", "constant", "far", "infinite"])
@each_schedule
def test_theorem_sketches_decide_on_nothing(monkeypatch, options, kind):
    """Points of sketches are replaced by garbage: passes are lost, and the result stays right."""
    rng = np.random.default_rng(35)
    true = replies.sketch_points
    calls = []

    def garbage(ask, reply, many):
        calls.append(many)
        if rng.random() < 0.3:
            return true(ask, reply, many)
        points = {
            "noise": rng.normal(size=many) * 10.0 ** rng.integers(-300, 300),
            "constant": np.full(many, rng.normal()),
            "far": np.full(many, rng.choice([-1e308, 1e308])),
            "infinite": rng.choice([-math.inf, 0.5, math.inf], many),
        }
        return np.sort(points[kind])

    monkeypatch.setattr(replies, "sketch_points", garbage)
    for seed in range(6):
        case = drawn_case(np.random.default_rng([36, seed]), 40)
        assert_is_right(case, case.run(**options))
    assert calls or options.get("schedule") == "top-k" or options.get("prefer") == "rounds"


@pytest.fixture
def stingy(monkeypatch):
    """Devices that flood say almost nothing at first."""
    monkeypatch.setattr(top_k, "LIKELY", 1)
    monkeypatch.setattr(top_k, "SPARE", 0)


def test_theorem_nothing_among_the_largest_was_held_back(stingy):
    """If the k-th largest said is not below the largest held back; otherwise devices say more, and that is enough."""
    check([(2, i) for i in range(15)], FLOOD)
    drawn = np.random.default_rng(38).normal(size=600)
    for scores, rounds in ((drawn, {5, 10}), (np.sort(drawn), {10})):  # one device holds all of the largest
        case = Case(Network.chain(6), [np.split(scores, 6)], (0.1,))
        batch = case.run(**FLOOD)
        assert_is_right(case, batch)
        assert batch.cost.rounds in rounds


def test_ties_that_were_held_back_are_counted(stingy):
    """Of the smallest scores the last one's ties belong to its rank, whoever keeps them back."""
    for first, more in itertools.product((2.0, 3.0, 4.0), (1, 5)):
        case = Case(Network.chain(2), [[np.repeat(np.arange(1.0, 11), more), np.arange(first, first + 10)]], LEVELS)
        assert_is_right(case, case.run(**FLOOD))


# --- planted mistakes -------------------------------------------------------------------------------------------------


def forget_what_lies_below(patch):
    """The root takes a window's reply without the count below it."""
    true = waves.read_instruction

    def wrong(data, at, asked, limit):
        at = true(data, at, asked, limit)
        asked.asks[:, COUNTED] = 0
        return at

    patch.setattr(waves, "read_instruction", wrong)


def drop_ties(patch):
    """Runs lose how often they are there."""
    true = replies.append_local_runs

    def wrong(bits, weights, first, last, keys, times, at):
        end = true(bits, weights, first, last, keys, times, at)
        times[at:end] = 1
        return end

    patch.setattr(replies, "append_local_runs", wrong)


def take_the_wrong_side(patch):
    """The smallest scores where the largest are asked for."""
    true = replies.runs_of_one_side
    patch.setattr(
        replies, "runs_of_one_side", lambda keys, times, count, side, k: true(keys, times, count, 3 - side, k)
    )


def keep_one_less(patch):
    """A list that ends one run too early."""
    true = replies.runs_of_one_side
    patch.setattr(
        replies, "runs_of_one_side", lambda keys, times, count, side, k: true(keys, times, count, side, k - 1)
    )


def start_a_bracket_too_late(patch):
    """The score just above the lower end is left out."""
    true = replies.first_above
    patch.setattr(replies, "first_above", lambda bits, first, last, key: min(true(bits, first, last, key) + 1, last))


def miss_a_rank(patch):
    """The answer is read one rank too low."""
    true = waves._answer_in_list

    def wrong(problem, reply):
        lower = waves.RankSearch(max(problem.rank - 1, problem.below + 1), problem.below, problem.upto)
        return true(lower, reply)

    patch.setattr(waves, "_answer_in_list", wrong)


def never_ask_again(patch):
    """Whoever floods believes at once that nothing is missing."""
    patch.setattr(top_k, "LIKELY", 1)
    patch.setattr(top_k, "SPARE", 0)
    patch.setattr(known.MergedScores, "answered", True)


def cut_ties(patch):
    """Who passes on scores keeps k of them, of equal ones just some."""
    patch.setattr(known.MergedScores, "_first_equal", lambda self, columns: columns)


def forget_owners(patch):
    """Equal scores of two devices are taken for one."""
    true = known.MergedScores.__init__

    def wrong(self, k, counts_ties, rows, *others):
        true(self, k, counts_ties, 0 * rows, *others)

    patch.setattr(known.MergedScores, "__init__", wrong)


def say_it_once(patch):
    """What one device here has heard is no news to the others."""
    true = known.MergedScores._take

    def wrong(self, heard):
        everybody = np.bitwise_or.reduce(self._known, axis=0)
        true(self, heard & ~everybody)

    patch.setattr(known.MergedScores, "_take", wrong)


MISTAKES = [
    (forget_what_lies_below, WINDOW),
    (forget_what_lies_below, COUNT),
    (drop_ties, TREE),
    (drop_ties, WINDOW),
    (drop_ties, COUNT),
    (take_the_wrong_side, TREE),
    (keep_one_less, TREE),
    (start_a_bracket_too_late, TREE),
    (start_a_bracket_too_late, WINDOW),
    (start_a_bracket_too_late, COUNT),
    (miss_a_rank, WINDOW),
    (miss_a_rank, COUNT),
    (never_ask_again, FLOOD),
    (cut_ties, FLOOD),
    (forget_owners, FLOOD),
    (say_it_once, FLOOD),
]


@pytest.mark.parametrize(("mistake", "options"), MISTAKES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_planted_mistake_is_noticed(monkeypatch, mistake, options):
    """By a wrong result, or because the counts contradict each other."""
    mistake(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        check([(0, i) for i in range(40)], options)
