"""Simulations equal slow ones, know of late labels, faults, joins and leaves, and say what is guaranteed."""

from itertools import product

import networkx as nx
import numpy as np
import polars as pl
import pytest

from conformesh import Network
from conformesh.engines.faulty import MessageLoss
from conformesh.graph.weights import metropolis
from conformesh.online import ACI, LEARNERS, Decaying, QuantileTracker, Rule, online, recommended_rule
from conformesh.online.arrivals import Arrivals
from conformesh.online.couplings import NetworkLinks
from conformesh.protocols.faults import Faults
from tests.online import reference
from tests.online.adversary import World

RNG = np.random.default_rng(5)
SCORES = RNG.random((6, 300)) * np.linspace(0.5, 1, 6)[:, None]
TORUS = Network.grid(3, 2)


def test_mixing_equals_the_slow_version():
    W = metropolis(TORUS).matrix(TORUS).toarray()
    result = online(SCORES, TORUS, learner=QuantileTracker(0.1, 0.05), coupling="mixed")
    slow = reference.mixed(SCORES, [W] * 300, 0.1, 0.05)
    np.testing.assert_allclose(result.thresholds, slow, atol=1e-12)
    np.testing.assert_array_equal(result.misses == 1, slow < SCORES)


def test_lost_messages_mix_over_links_that_worked_both_ways():
    """Weights of every step are doubly stochastic, and zero where one of the two directions was lost."""
    faults = Faults(loss=0.4, activation=0.8, links=0.9, seed=3)
    weather, links = MessageLoss(TORUS, faults), NetworkLinks(TORUS)
    matrices = []
    for t in range(300):
        arrives = weather.arriving(t) & weather.active(t)[links.sender]
        worked = {(a, b) for a, b, ok in zip(links.receiver, links.sender, arrives, strict=True) if ok}
        pairs = [(a, b) for a, b in worked if (b, a) in worked]
        degree = np.bincount([a for a, _ in pairs], minlength=6)
        W = np.eye(6)
        for a, b in pairs:
            w = 1 / (1 + max(degree[a], degree[b]))
            W[a, b] += w
            W[a, a] -= w
        np.testing.assert_allclose([W.sum(axis=0), W.sum(axis=1)], 1.0)
        matrices.append(W)
    result = online(SCORES, TORUS, learner=QuantileTracker(0.1, 0.05), coupling="mixed", faults=faults)
    np.testing.assert_allclose(result.thresholds, reference.mixed(SCORES, matrices, 0.1, 0.05), atol=1e-12)


TRACKER, LEVELS, FALLING = QuantileTracker(0.2, 0.1), ACI(0.2, 0.02, window=20), Decaying(0.2, 0.3)


@pytest.mark.parametrize(
    ("learner", "coupling"),
    [*product([TRACKER, LEVELS, FALLING], ["alone", "mixed"]), (TRACKER, "counted"), (LEVELS, "counted")],
)
def test_books_equal_those_of_a_slow_world(learner, coupling):
    """Delays, lost labels, joins and leaves: thresholds, misses and bounds as one by one."""
    rng = np.random.default_rng(8)
    scores, delays = rng.random((4, 60)), rng.integers(-1, 4, (4, 60))
    present = np.repeat(rng.random((4, 12)) < 0.75, 5, axis=1)
    present[:, 0] = True
    network = Network.cycle(4)
    result = online(scores, network, 0.2, learner, coupling, delays=delays, present=present)
    world = Replayed(Rule(learner, coupling), network, scores, delays, present)
    thresholds = world.played()
    np.testing.assert_allclose(result.thresholds[present], thresholds[present], rtol=1e-12)
    account, past = result.account(), world.past()
    assert (account.labels, account.misses) == (past.labels.sum(), sum(e.miss for e in world.examples if e.came))
    wanted = world.rule.gap(past)
    assert account.gap.up >= wanted.up - 1e-9  # the simulation counts what is late a little too carefully
    assert account.is_kept
    assert not world.broken()
    if coupling != "counted":
        assert account.gap.up == pytest.approx(wanted.up)


class Replayed(World):
    """A world whose scores, delays and members are given."""

    def __init__(self, rule, network, scores, delays, present):
        super().__init__(rule, network.devices, np.random.default_rng(0), network)
        self.scores, self.delays, self.present = scores, delays, present

    def _score(self, q, wanted):
        return self.scores[wanted, self.step]

    def played(self):
        found = np.empty(self.scores.shape)
        steps = self.scores.shape[1]
        for t in range(steps):
            if t and (self.present[:, t] != self.there).any():
                self.change(self.present[:, t].copy())
            found[:, t] = self.rule.threshold(self.state)
            late = np.where(t + self.delays[:, t] < steps, self.delays[:, t], -1)
            links = self.links
            self.predict(np.arange(len(found)), late, self.there[links.receiver] & self.there[links.sender])
        return found


def test_labels_that_come_at_once_are_not_late():
    zero = online(SCORES, TORUS, delays=0)
    none = online(SCORES, TORUS)
    np.testing.assert_array_equal(zero.thresholds, none.thresholds)
    assert zero.arrivals.at_once


def test_late_labels_move_thresholds_later():
    """With a delay of 2, nothing is learned in the first three steps."""
    result = online(SCORES, TORUS, learner="tracker", coupling="alone", delays=2)
    assert np.unique(result.thresholds[:, :3]).tolist() == [0.0]
    assert (result.thresholds[:, 3] > 0).all()
    assert result.account().labels == 6 * 298
    assert result.account(after=3).labels == 6
    assert str(result.account(after=2)) == "no labels so far"
    assert result.trail.late[-1] == 2


def test_without_labels_or_examples_nothing_is_counted():
    scores = SCORES.copy()
    scores[0, :150] = np.nan
    delays = np.zeros(SCORES.shape, dtype=int)
    delays[1, 100:] = -1
    result = online(scores, TORUS, delays=delays)
    assert result.account("0").labels == 150
    assert result.account("1").labels == 100
    assert (result.misses[1, 100:] == -1).all()
    assert (result.misses[0, :150] == -1).all()
    assert result.account().labels == 150 + 100 + 4 * 300


def test_who_joins_starts_from_the_network():
    present = np.ones(SCORES.shape, dtype=bool)
    present[2, :200] = False
    result = online(SCORES, TORUS, learner=QuantileTracker(0.1, 0.05), coupling="mixed", present=present)
    neighbours = TORUS.neighbours(2)
    assert result.thresholds[2, 200] == pytest.approx(result.thresholds[neighbours, 200].mean())
    assert result.account("2").labels == 100
    assert np.isnan(result.thresholds[2, :200]).all()
    assert len(result.columns()["step"]) == 6 * 300 - 200
    alone = online(SCORES, TORUS, learner="tracker", coupling="alone", present=present)
    assert alone.thresholds[2, 200] == 0


def test_whoever_leaves_is_in_the_bound():
    """Each time that a device comes adds at most (high + step) / step to what the misses of all may be off."""
    learner = QuantileTracker(0.1, 0.05)
    present = np.ones(SCORES.shape, dtype=bool)
    present[2, 100:200] = False
    stayed = online(SCORES, TORUS, learner=learner, coupling="mixed").account().gap
    left = online(SCORES, TORUS, learner=learner, coupling="mixed", present=present).account().gap
    assert 0 <= left.up - stayed.up <= 1.05 / 0.05
    assert 0 <= left.down - stayed.down <= 1.05 / 0.05
    assert left.up + left.down - stayed.up - stayed.down == pytest.approx(1.05 / 0.05)


REFUSED = [(name, coupling) for name in ("dtaci", "pid", "sf-ogd") for coupling in ("mixed", "counted")]
REFUSED += [("decaying", "counted")]


@pytest.mark.parametrize(("name", "coupling"), REFUSED)
def test_pairs_without_a_bound_are_refused(name, coupling):
    with pytest.raises(ValueError, match=f"cannot be {coupling}: .* run it alone"):
        online(SCORES, TORUS, learner=name, coupling=coupling)


@pytest.mark.parametrize(
    ("name", "coupling"), [pair for pair in product(sorted(LEARNERS), ["mixed", "counted"]) if pair not in REFUSED]
)
def test_every_other_pair_states_its_bound(name, coupling):
    result = online(SCORES, TORUS, learner=name, coupling=coupling)
    assert result.account().is_kept
    assert "guaranteed within" in str(result)
    assert "nothing is guaranteed without a local integrator" in str(result.account("0"))


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_alone_states_a_bound_but_where_none_is_known(name):
    account = online(SCORES, TORUS, learner=name, coupling="alone").account("3")
    assert ("no bound is known for DtACI" in str(account)) == (name == "dtaci")
    assert account.is_kept


def test_the_recommended_rule_guarantees_every_device():
    result = online(SCORES, TORUS, faults={"loss": 0.3})
    assert result.rule == recommended_rule()
    for device in result.ids:
        for after in (1, 50, 300):
            account = result.account(device, after)
            assert account.is_kept
            assert account.gap.up == pytest.approx(10 / 0.1 + 0.9)


def test_scales_are_each_devices_own():
    """Scores in other units give the same misses, once a device has has_label a score of its own."""
    units = np.array([1, 0.1, 0.5, 1e-3, 1e-6, 0.2])[:, None]
    rule = {"learner": QuantileTracker(0.1, 0.1, high=10.0, start=3.0), "scale": 0.02}
    plain = online(SCORES, TORUS, coupling="alone", **rule)
    other = online(SCORES * units, TORUS, coupling="alone", **rule)
    np.testing.assert_array_equal(plain.misses[:, 1:], other.misses[:, 1:])
    np.testing.assert_allclose(plain.thresholds[:, 1:] * units, other.thresholds[:, 1:])


def test_counts_equal_one_level_for_all_where_everybody_hears_everybody():
    result = online(SCORES, Network.complete(6), learner=QuantileTracker(0.1, 0.3), coupling="counted")
    excess = np.concatenate([[0], np.cumsum((result.misses - 0.1).sum(axis=0))[:-1]])
    np.testing.assert_allclose(result.thresholds, np.broadcast_to(0.3 / 6 * excess, (6, 300)), atol=1e-12)
    assert result.trail.unheard[-1] == 5


def test_rolling_coverage():
    result = online(SCORES, TORUS, learner="tracker", coupling="alone")
    rolling = result.rolling_coverage(50)
    assert rolling.shape == (300,)
    assert rolling[99] == pytest.approx((result.misses[:, 50:100] == 0).mean())
    assert rolling[9] == pytest.approx((result.misses[:, :10] == 0).mean())
    assert result.rolling_coverage(300, "4")[-1] == pytest.approx(1 - result.rates[4])


def test_rows_are_all_there(tmp_path):
    scores = SCORES.copy()
    scores[3, 7] = np.nan
    result = online(scores, TORUS, learner="tracker", coupling="mixed")
    frame = result.to_frame()
    assert frame.columns == ["step", "device", "score", "threshold", "miss"]
    assert len(frame) == 6 * 300 - 1
    assert frame.filter(pl.col("device") == "3")["miss"].sum() == result.account("3").misses
    result.save(tmp_path / "rows.parquet")
    assert pl.read_parquet(tmp_path / "rows.parquet").equals(frame)


def test_infinite_thresholds_are_cut_to_a_known_bound():
    learner = QuantileTracker(0.1, 0.5, high=0.6, start=0.6)
    free = online(SCORES, TORUS, learner=learner, coupling="alone")
    cut = online(SCORES, TORUS, learner=learner, coupling="alone", largest=1.0)
    assert np.isinf(free.thresholds[:, 0]).all()
    np.testing.assert_array_equal(cut.thresholds, np.minimum(free.thresholds, 1.0))
    np.testing.assert_array_equal(cut.misses, free.misses)


def test_progress_is_told():
    told = []
    online(np.random.default_rng(0).random((2, 2500)), Network.cycle(2), observer=told.append)
    assert told == [1024, 2048, 2500]


def test_labels_queue_in_the_order_of_examples():
    scores = np.zeros((2, 5))
    arrivals = Arrivals.of(scores, np.array([[3, 2, 1, 0, 0], [0, 0, 0, 0, -1]]), None)
    assert [(d.tolist(), e.tolist()) for d, e in arrivals.labels_after(3)] == [
        ([0, 1], [0, 3]),
        ([0], [1]),
        ([0], [2]),
        ([0], [3]),
    ]
    assert [(d.tolist(), e.tolist()) for d, e in arrivals.labels_after(0)] == [([1], [0])]
    assert arrivals.most_awaited().tolist() == [0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"streams": SCORES[:5]}, "a row for each of 6 devices"),
        ({"streams": -SCORES}, "finite and at least 0"),
        ({"learner": "trakcer"}, "unknown learner 'trakcer', did you mean 'tracker'"),
        ({"coupling": "mixt"}, "unknown coupling 'mixt', did you mean 'mixed'"),
        ({"learner": "sf-ogd", "coupling": "alone", "local": 0.1}, "local integrator needs levels"),
        ({"learner": QuantileTracker(0.2)}, "alpha is 0.1, and that of the learner 0.2"),
        ({"scale": 0.0}, "without a scale a learner must be named"),
        ({"largest": 0.5}, "largest must be a bound"),
        ({"faults": Faults(byzantine=(1,), attack="silent")}, "no Byzantine devices"),
        ({"local": -1.0}, "local must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused_in_words(wrong, words):
    given = {"streams": SCORES, "network": TORUS} | wrong
    with pytest.raises(ValueError, match=words):
        online(**given)


def test_delays_are_whole_numbers():
    with pytest.raises(TypeError, match="delays must be whole numbers of steps, got float64"):
        online(SCORES, TORUS, delays=0.5)


def test_an_account_is_of_somebody_and_some_time():
    result = online(SCORES, TORUS)
    with pytest.raises(ValueError, match="no device 'x'; there are 6"):
        result.account("x")
    with pytest.raises(ValueError, match="after must lie between 1 and 300 steps, got 301"):
        result.account(after=301)


@pytest.mark.parametrize("what", ["present", "delays"])
def test_tables_beside_streams_go_by_name_where_the_graph_lists_its_nodes_otherwise(what):
    graph = nx.path_graph(["c", "a", "b"])
    streams = {name: np.linspace(0.1, 0.9, 5) for name in "abc"}
    table = np.ones((3, 5), dtype=bool if what == "present" else int)
    with pytest.raises(ValueError, match=f"{what} are a list, and the order of devices is ambiguous"):
        online(streams, graph, 0.2, **{what: table})
    online(streams, graph, 0.2, **{what: dict(zip("abc", table, strict=True))})
