"""P-values: valid on every table in exact fractions, dual to thresholds, ordinary for one device, on every engine."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import conformesh.kernels.ranks
from conformesh import Network, PValues, calibrate, p_values, scores
from conformesh.kernels.ranks import Requirement, make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.peer.device import Device
from conformesh.peer.interface import PeerSetup
from conformesh.peer.loopback import LinkFaults, run_loopback
from conformesh.peer.settings import Settings
from conformesh.pipeline.p_values import p_values_batch, round_up_to_float
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols.e_dcp import EDCP
from conformesh.protocols.rank_counts import CountQuestion, count_below
from conformesh.protocols.size_agreement import run_with_shared_sizes
from tests.pipeline.test_enumeration import as_trials, hidden_choices, random_case, random_table

MIXTURES = ("sizes", "paper", "equal", "given")


def hidden_p_values(tables, case):
    """Return for every table how often each device's hidden item has which exact p-value: rows of (device, p)."""
    samples, hidden, starts = as_trials(tables)
    devices = hidden.shape[1]
    trials = np.repeat(np.arange(len(hidden)), devices)
    batch = p_values_batch(
        samples, Network.complete(devices), trials, hidden.ravel(), requirement=case.requirement(devices)
    )
    return np.split(batch.fractions.reshape(hidden.shape), starts[1:])


def assert_valid(found, chances):
    """P(p <= t) <= t at every t that occurs; return the largest P(p <= t) / t."""
    total, worst = Fraction(0), Fraction(0)
    mass = {}
    for k, chance in enumerate(chances):
        for p in found[:, k]:
            mass[p] = mass.get(p, Fraction(0)) + chance / len(found)
    for p in sorted(mass):
        total += mass[p]
        assert total <= p, f"P(p <= {p}) is {float(total):.4f}, proven to be at most {float(p):.4f}"
        worst = max(worst, total / p)
    return worst


def check_tables(target, rank, seed, tables, limit=40, devices=range(1, 7)):
    rng = np.random.default_rng(seed)
    worst = Fraction(0)
    for k in devices:
        case = random_case(rng, target, rank)
        drawn = [random_table(rng, k, limit) for _ in range(tables)]
        for table, found in zip(drawn, hidden_p_values(drawn, case), strict=True):
            chances = case.chances([len(items) - 1 for items in table])
            if chances is not None:
                worst = max(worst, assert_valid(found, chances))
    return worst


@pytest.mark.parametrize("target", MIXTURES)
def test_theorem_p_values_are_valid_on_every_table(target):
    """120 tables a target, every choice of hidden items, every level that occurs, in fractions."""
    assert check_tables(target, "auto", 3, 20) > Fraction(9, 10)


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["auto", "swap"])
@pytest.mark.parametrize("target", MIXTURES)
def test_theorem_p_values_are_valid_on_very_many_tables(target, rank):
    """800 tables a case, 6,400 in all."""
    assert check_tables(target, rank, 4, 100, 60, range(1, 9)) > Fraction(9, 10)


def test_p_values_without_the_heaviest_score_are_caught(monkeypatch):
    """sum over S_i >= s of v_i / T: the swapped score is left out."""
    proven = conformesh.kernels.ranks._swap
    monkeypatch.setattr("conformesh.kernels.ranks._swap", lambda *asked: replace(proven(*asked), largest=Fraction(0)))
    with pytest.raises(AssertionError, match="proven to be at most"):
        check_tables("paper", "swap", 3, 20)


def labelled_tables(rng, devices, tables):
    """Return tables with a class, 0 or 1, for every item."""
    drawn = [random_table(rng, devices, 40) for _ in range(tables)]
    return drawn, [[rng.integers(0, 2, len(items)) for items in table] for table in drawn]


def classwise(tables, labels, case):
    """Return, for every table, hidden labels and hidden p-values, each as if of class 1: (choices, devices)."""
    _, hidden, starts = as_trials(tables)
    _, marks, _ = as_trials(labels)
    seen, held = [], []
    for table, label in zip(tables, labels, strict=True):
        for places in hidden_choices(table):
            seen.append([np.delete(x, i)[np.delete(y, i) == 1] for x, y, i in zip(table, label, places, strict=True)])
            held.append([len(items) - 1 for items in table])
    trials, devices = hidden.shape
    batch = p_values_batch(
        WeightedScores.of_trials(seen),
        Network.complete(devices),
        np.repeat(np.arange(trials), devices),
        hidden.ravel(),
        requirement=replace(case.requirement(devices), is_weighted=True),
        items=np.array(held).T,
    )
    found = batch.fractions.reshape(hidden.shape)
    return zip(np.split(marks, starts[1:]), np.split(found, starts[1:]), strict=True)


@pytest.mark.parametrize("target", MIXTURES)
def test_theorem_classwise_p_values_are_valid_given_the_class(target):
    """P(p <= t, Y = y) <= t P(Y = y) at every t that occurs, whether devices hold the class, or anything, or not."""
    rng = np.random.default_rng(6)
    worst = Fraction(0)
    for devices in range(1, 6):
        case = random_case(rng, target, "auto")
        drawn, labels = labelled_tables(rng, devices, 20)
        for table, (marks, found) in zip(drawn, classwise(drawn, labels, case), strict=True):
            chances = case.chances([len(items) - 1 for items in table])
            if chances is None:
                continue
            mass, share = {}, Fraction(0)
            for k, chance in enumerate(chances):
                for mark, p in zip(marks[:, k], found[:, k], strict=True):
                    if mark == 1 and chance:
                        share += chance / len(marks)
                        mass[p] = mass.get(p, Fraction(0)) + chance / len(marks)
            total = Fraction(0)
            for p in sorted(mass):
                total += mass[p]
                assert total <= p * share, f"{case} {table}: P(p <= {p} | class) is {float(total / share):.4f}"
                worst = max(worst, total / (p * share))
    assert worst > Fraction(4, 5)


@pytest.mark.parametrize("target", ["sizes", "paper", "equal", {"0": 3, "1": 0, "2": 5, "3": 1, "4": "0.25"}])
def test_a_p_value_is_at_most_alpha_exactly_where_the_threshold_does_not_cover(target):
    rng = np.random.default_rng(1)
    net = Network.cycle(5)
    for _ in range(6):
        held = [rng.integers(0, 30, rng.integers(0, 12)) for _ in range(5)]
        tests = np.arange(-1, 31.0)
        for rank in ("auto", "swap"):
            requirement = make_requirement(target, rank)
            batch = p_values_batch(WeightedScores.of(held), net, np.zeros(len(tests)), tests, requirement=requirement)
            for alpha in (Fraction(1, 10), Fraction(1, 3), Fraction(int(rng.integers(1, 50)), 53)):
                if rank == "auto" and requirement.demand(
                    np.array([len(own) for own in held]), (), shares=_shares(target)
                ).rule_at(alpha) != _name(requirement, held, alpha, target):
                    continue  # with weights, a p-value has one rule for all levels
                tau = solve_draws(
                    WeightedScores.of(held), net, [alpha], "e-dcp", requirement=requirement
                ).outcome.thresholds
                assert ((batch.fractions <= alpha) == (tests > tau[0, 0, 0])).all()


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("target", ["sizes", "paper", "equal"])
def test_a_p_value_is_the_smallest_level_of_its_rank(target, part):
    """For every promise that has p-values, also of a part of what devices hold, with large weights and rounded ones."""
    rng = np.random.default_rng(4)
    for _ in range(300):
        sizes = rng.integers(0, 9, rng.integers(1, 5))
        requirement = replace(
            make_requirement(target), is_weighted=part, largest_weights=(int(rng.integers(1, 4)),) if part else (1,)
        )
        demand = requirement.demand(sizes, ())
        total = int(rng.integers(0, demand.total + 1)) if part else demand.total
        spare, below = int(rng.integers(0, 3)) if part else 0, int(rng.integers(0, total + 1))
        [p] = demand.p_values(requirement, 0, [below], total, spare)
        for alpha in (p, p - Fraction(1, 10**6), p + Fraction(1, 10**6), Fraction(1, 7)):
            if 0 < alpha < 1:
                assert (p <= alpha) == (below >= demand.required(requirement, alpha, 0, 0, total, spare))


def _shares(target):
    return [Fraction(str(share)) for share in target.values()] if isinstance(target, dict) else None


def _name(requirement, held, alpha, target):
    return requirement.demand(np.array([len(own) for own in held]), (alpha,), shares=_shares(target)).rule_at(alpha)


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=30),
    st.lists(st.one_of(st.integers(-1, 9), st.just(math.inf), st.just(-math.inf)), min_size=1, max_size=9),
)
def test_one_device_has_the_ordinary_p_values(held, tests):
    found = p_values([held], "complete", tests)
    expected = [Fraction(1 + sum(s >= t for s in held), len(held) + 1) for t in tests]
    assert [found.exact[p] for p in found.values.tolist()] == expected
    assert found.rule == "ordinary"


def test_one_device_has_the_p_values_of_other_packages():
    """(1 + #) / (n + 1), not smoothed: what crepes computes, where it is installed."""
    crepes = pytest.importorskip("crepes")
    rng = np.random.default_rng(0)
    held, tests = rng.integers(0, 40, 60) / 8, rng.integers(0, 40, (50, 3)) / 8
    theirs = crepes.ConformalClassifier().fit(held).predict_p(tests, all_classes=True, smoothing=False)
    np.testing.assert_allclose(p_values([held], "complete", tests).values, theirs, rtol=1e-12)


@pytest.mark.parametrize("n", range(1, 60))
def test_p_values_are_rounded_up(n):
    for k in range(1, n + 1):
        value = round_up_to_float(Fraction(k, n))
        assert Fraction(value) >= Fraction(k, n) > Fraction(math.nextafter(value, 0))


def test_sets_are_those_of_the_threshold():
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(300, 6)) * 2
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(6, p=row) for row in probabilities])
    lac = scores.LAC()
    held = lac(probabilities[:200], labels[:200]).reshape(8, 25)
    net = Network.cycle(8)
    found = p_values(held, net, probabilities[200:], score="lac")
    for alpha in (0.05, 0.1, 0.3, "0.295"):
        sets = calibrate(held, net, alpha, score=lac).predict(probabilities[200:])
        np.testing.assert_array_equal(found.sets(alpha), sets)
    top = np.sort(found.values, axis=1)
    np.testing.assert_array_equal(found.credibility, top[:, -1])
    np.testing.assert_array_equal(found.confidence, 1 - top[:, -2])
    assert (found.values[np.arange(100), found.predicted] == found.credibility).all()


def test_classwise_p_values_by_hand():
    """Class a: scores 1 and 3 of the first device, 2 of the second; five scores in all, each of weight 1."""
    held, labels = {"x": [1.0, 3.0, 9.0], "y": [2.0, 0.0]}, {"x": ["a", "a", "b"], "y": ["a", "b"]}
    found = p_values(held, "chain", [2.5, 2.5, 2.5], labels=labels, test_labels=["a", "b", "c"])
    assert [found.exact[p] for p in found.values.tolist()] == [Fraction(2, 3), 1, 1]
    alone = p_values([[1.0, 3.0, 9.0]], "complete", [2.5, 2.5], labels=[["a", "a", "b"]], test_labels=["a", "c"])
    assert [alone.exact[p] for p in alone.values.tolist()] == [Fraction(2, 3), 1]
    table = p_values(held, "chain", [[4.0, 0.0]], labels=labels, classes=["a", "b"])
    assert [table.exact[p] for p in table.values[0].tolist()] == [Fraction(1, 3), 1]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"test_scores": [math.nan]}, "test scores must be numbers, got NaN"),
        ({"test_scores": ["high"]}, "test scores must be numbers"),
        ({"test_scores": np.zeros((2, 2, 2))}, "got shape"),
        ({"test_scores": [1.0], "test_labels": ["a"]}, "they need labels= as well"),
        ({"test_scores": [1.0], "labels": [["a"], ["b"]]}, "need test_labels="),
        ({"test_scores": [[1.0]], "labels": [["a"], ["b"]]}, "unknown class 'a'"),
        ({"test_scores": [1.0], "labels": [["a", "b"], ["b"]], "test_labels": ["a"]}, "1 scores but 2 labels"),
        ({"test_scores": [[1.0, 2.0]], "classes": ["a"]}, "classes must name every column"),
        ({"test_scores": [1.0], "score": "absolute-residual"}, "is for regression"),
        ({"test_scores": [1.0], "rounds": 3}, "has no option 'rounds'"),
        (
            {"test_scores": [1.0], "rank_rule": "ghost", "labels": [["a"], ["b"]], "test_labels": ["a"]},
            "rank_rule='ghost'",
        ),
    ],
)
def test_what_cannot_be_judged_is_refused(asked, words):
    with pytest.raises((ValueError, TypeError), match=words):
        p_values([[1.0], [2.0]], "chain", **asked)


def test_no_test_scores_are_no_p_values():
    assert p_values([[1.0], [2.0]], "chain", []).values.shape == (0,)
    assert p_values([[], []], "chain", [3.0]).values.tolist() == [1.0]


def test_every_way_to_add_up_gives_the_same():
    rng = np.random.default_rng(3)
    held, tests = [rng.normal(size=rng.integers(0, 9)) for _ in range(9)], rng.normal(size=40)
    right = p_values(held, Network.torus(3, 3), tests, mixture="equal").values
    for way in ("tree", "flood"):
        found = p_values(held, Network.torus(3, 3), tests, mixture="equal", aggregate=way)
        np.testing.assert_array_equal(found.values, right)
        assert found.options["sums_by"] == way


def test_thresholds_go_in_parts_where_memory_ends(monkeypatch):
    rng = np.random.default_rng(3)
    held, tests = [rng.normal(size=9) for _ in range(4)], rng.normal(size=50)
    whole = p_values(held, "cycle", tests)
    monkeypatch.setattr("conformesh.protocols.rank_counts.COUNTS_AT_ONCE", 4 * 7)
    parts = p_values(held, "cycle", tests)
    np.testing.assert_array_equal(parts.values, whole.values)
    assert parts.cost.rounds > whole.cost.rounds


def test_devices_that_know_only_the_map_count_the_same():
    """On the loopback engine, each device by itself, with delays."""
    network = Network.torus(3, 3)
    rng = np.random.default_rng(5)
    held, tests = [rng.normal(size=rng.integers(0, 9)) for _ in range(9)], rng.normal(size=12)
    asked, places = CountQuestion.of(np.zeros(12, dtype=np.int64), tests)

    def start(k, journal):
        def make(net, row):
            def method(block, mine):
                return count_below(block, mine, asked, EDCP())

            return run_with_shared_sizes(net, row, WeightedScores.of([held[k]]), method, Requirement("paper", "swap"))

        return Device(PeerSetup(k, network, {"method": "tally"}, make, journal, Settings(), scores=str(k)))

    played = run_loopback(network, start, LinkFaults(), np.random.default_rng(1))
    right = p_values_batch(
        WeightedScores.of(held), network, np.zeros(12), tests, requirement=Requirement("paper", "swap")
    )
    for device in played.devices:
        assert device.phase == "finished"
        np.testing.assert_array_equal(device.result.below[places], right.counts.below[places])
    numbers = [float(device.result.cost.numbers[0]) for device in played.devices]
    assert numbers == right.cost.numbers.tolist()


def test_a_result_is_saved_as_json_or_as_a_table(tmp_path):
    found = p_values([[1.0, 2.0], [3.0]], "chain", [[0.0, 2.5], [9.0, 1.0]], classes=["cat", "dog"])
    for ending in ("json", "csv", "parquet", "npz"):
        found.save(tmp_path / f"p.{ending}")
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == "row,predicted,credibility,confidence,p_cat,p_dog"
    assert '"classwise": false' in (tmp_path / "p.json").read_text()
    assert "credibility" in repr(found)
    assert "in proportion to its scores" in str(found)
    again = PValues.load(tmp_path / "p.json")
    assert again.to_dict() == found.to_dict()
    assert again.exact == found.exact
    assert np.array_equal(np.asarray(again), found.values)
    assert (len(again), [*again], again[0, 1]) == (2, found.values.tolist(), found.values[0, 1])
    assert again.to_frame().columns[:2] == ["row", "predicted"]
    with pytest.raises(ValueError, match="classes must be one for each of 2 columns, got 1"):
        PValues.from_dict({**found.to_dict(), "classes": ["cat"]}, "p.json")
    with pytest.raises(ValueError, match="must end in"):
        found.save(tmp_path / "p.txt")
    with pytest.raises(ValueError, match="every class"):
        p_values([[1.0]], "complete", [1.0]).credibility  # noqa: B018


@pytest.mark.slow
def test_a_million_test_scores_are_one_run():
    rng = np.random.default_rng(0)
    held, tests = rng.random((20, 50)), rng.random(10**6)
    found = p_values(held, Network.torus(5, 4), tests)
    pooled = np.sort(held.ravel())
    counts = 1000 - np.searchsorted(pooled, tests, "left")
    swap, ghost = (1 + counts) / 1000, (20 + counts) / 1020  # equally many scores each: both are proven
    np.testing.assert_allclose(found.values, np.minimum(swap, ghost), rtol=1e-15)
    assert isinstance(found, PValues)
    assert found.rule == "auto"
