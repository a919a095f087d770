"""The table and the recommendation: figures are those of real runs, and the plan says on which network."""

from __future__ import annotations

import json

import numpy as np
import pytest

from conformesh import METHODS, Network, calibrate
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.planning.link import Link
from conformesh.lab.planning.measurement import FEW_DRAWN_SCORES, PLAN_DRAWS, draw_scores
from conformesh.lab.planning.networks import simulated_network, simulated_topology
from conformesh.lab.planning.planner import plan
from conformesh.methods import MethodVariant

LINK = Link.parse("100ms,1Mbit")
TORUS = Network.torus(5, 4)


def torus(**options):
    return plan(TORUS, 50, 0.1, LINK, **options)


@pytest.fixture(scope="module")
def whole():
    """The table of all methods on a torus of 20."""
    return torus()


def row_of(found, method, variant=None):
    (row,) = [row for row in found.rows if row.way == MethodVariant(method, variant)]
    return row


def calibrated(row, scores, network, alpha=0.1, **options):
    devices = [scores.segment(device) for device in range(scores.devices)]
    return calibrate(devices, network, alpha, row.way.method, **row.way.options, **options)


# --- figures are those of runs ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # notes of methods, which a plan has in its rows
def test_figures_equal_those_of_calibrate_on_the_same_scores():
    """Every method and variant, bit for bit: rounds, numbers, bits, busiest device, kind of certificate."""
    rng = np.random.default_rng(1)
    network = Network.of("geometric", 12, seed=3)
    sizes = rng.integers(20, 60, 12)
    scores = WeightedScores.from_flat(rng.normal(size=int(sizes.sum())), sizes)
    found = plan(network, alpha=0.1, link=LINK, scores=scores)
    assert not found.refused
    assert found.draws == 0
    for row in found.rows:
        result = calibrated(row, scores, network)
        cost = result.cost
        assert (row.cost.rounds, row.cost.numbers) == (cost.rounds, cost.numbers_per_device), row.way
        assert (row.cost.bits, row.cost.largest_bits) == (cost.bits_per_device, cost.bits.max()), row.way
        assert (row.guarantee, row.assumption) == (result.certificate.kind, result.certificate.assumption)
        assert row.rounds_between == (cost.rounds, cost.rounds)


@pytest.mark.parametrize(
    "way",
    [
        MethodVariant("e-dcp", "window"),
        MethodVariant("p-dcp"),
        MethodVariant("h-dcp", "gossip"),
        MethodVariant("r-dcp"),
    ],
    ids=str,
)
def test_figures_are_means_of_runs_on_drawn_scores(whole, way):
    row = row_of(whole, *way)
    drawn = draw_scores(np.full(20, 50))
    assert len(drawn) == whole.draws == PLAN_DRAWS
    costs = [calibrated(row, scores, TORUS).cost for scores in drawn]
    assert row.cost.rounds == np.mean([cost.rounds for cost in costs])
    assert row.cost.numbers == pytest.approx(np.mean([cost.numbers_per_device for cost in costs]), rel=1e-14)
    assert row.cost.bits == pytest.approx(np.mean([cost.bits_per_device for cost in costs]), rel=1e-14)
    assert row.rounds_between == (min(cost.rounds for cost in costs), max(cost.rounds for cost in costs))


@pytest.mark.parametrize(
    "options",
    [{"schedule": "top-k"}, {"schedule": "count", "aggregate": "flood"}, {"prefer": "bits"}, {"width": 3}],
    ids=str,
)
def test_options_of_a_method_are_those_of_the_run(options):
    (scores,) = draw_scores(np.full(20, 50), "normal")[:1]
    found = plan(TORUS, alpha=0.2, link=LINK, scores=scores, methods=["e-dcp"], options=options)
    for row in found.rows:
        cost = calibrated(
            row, scores, TORUS, 0.2, **{key: value for key, value in options.items() if key != "schedule"}
        ).cost
        assert (row.cost.rounds, row.cost.bits) == (cost.rounds, cost.bits_per_device)


def test_the_promise_is_that_of_the_run():
    sizes = np.arange(1, 21) * 5
    scores = draw_scores(sizes, "uniform")[0]
    for asked in ({"mixture": "equal"}, {"pac_confidence": 0.9}, {"mixture": "paper", "rank_rule": "ghost"}):
        found = plan(TORUS, alpha=0.1, scores=scores, methods=["e-dcp"], **asked)
        result = calibrate([scores.segment(k) for k in range(20)], TORUS, 0.1, **asked)
        row = row_of(found, "e-dcp", "auto")
        assert (row.cost.rounds, row.cost.bits) == (result.cost.rounds, result.cost.bits_per_device)
        assert row.exact
    plain = plan(TORUS, sizes, 0.1, methods=["e-dcp"])
    assert (
        plain.required_rank == calibrate([scores.segment(k) for k in range(20)], TORUS, 0.1).certificate.required_rank
    )


def test_time_on_a_link_follows_from_rounds_and_the_slowest_device():
    """By hand: a chain of three that floods; to a server; and nothing at all."""
    scores = WeightedScores.from_flat(np.arange(9.0), [3, 3, 3])
    link = Link(latency=2.0, bandwidth=100.0)
    found = plan(Network.chain(3), alpha=0.3, link=link, scores=scores, methods=["fcp", "local"])
    assert row_of(found, "fcp").seconds == 2 * 2.0 + 3 * 64 / 100  # two latencies, three scores of 64 bits
    assert row_of(found, "local").seconds == 0.0
    options = {"bins": 4, "range": (0.0, 9.0), "rounds": 5, "consensus": "gossip"}
    found = plan(Network.chain(3), alpha=0.3, link=link, scores=scores, methods=["h-dcp"], options=options)
    row = row_of(found, "h-dcp", "gossip")
    assert row.cost.rounds == 5
    assert row.seconds == 5 * (2.0 + 4 * 64 * 2 / 100)  # the device in the middle has two neighbours


def test_the_slowest_device_of_a_round_is_among_those_that_speak():
    """On a star e-dcp's replies go up from the leaves, which have one neighbour; the centre's word has many."""
    star, chain = (plan(network, 50, methods=["e-dcp"]) for network in (Network.star(40), Network.chain(40)))
    for found in (star, chain):
        for row in found.rows:
            degree = found.where.network.largest_degree
            assert row.cost.bits <= row.cost.slowest_bits <= row.cost.rounds * degree * row.cost.largest_bits


# --- which network ----------------------------------------------------------------------------------------------------


def test_a_plan_says_that_it_ran_on_the_network_itself(whole):
    assert not whole.where.is_smaller
    assert whole.describe().startswith("figures from runs on the network itself, torus 5x4: 20 devices, 40 edges")
    assert "mean over 4 draws" in whole.describe()
    assert "That is on" not in whole.reason()
    assert whole.to_dict()["simulated"]["is_smaller"] is False


def test_a_large_network_is_planned_on_a_smaller_one_and_says_so():
    where = simulated_topology("torus", 10**9, 100)
    found = plan(where, 50, 0.1, LINK, methods=["e-dcp", "fcp"])
    small = plan(Network.torus(10, 10), 50, 0.1, LINK, methods=["e-dcp", "fcp"])
    assert [row.cost for row in found.rows] == [row.cost for row in small.rows]
    assert "a smaller network than asked for, torus 10x10: 100 devices" in found.describe()
    assert "asked for: torus 1000000000, 1,000,000,000 devices, where costs differ" in found.describe()
    assert "That is on torus 10x10" in found.reason()
    data = found.to_dict()
    assert (data["devices"], data["simulated"]["devices"], data["simulated"]["is_smaller"]) == (10**9, 100, True)
    assert "simulated: torus 10x10" in repr(found)


@pytest.mark.parametrize(
    ("topology", "options", "neighbours"),
    [
        ("geometric", {"radius": 0.05}, 10_000 * np.pi * 0.05**2),
        ("erdos-renyi", {"p": 0.002}, 20.0),
        ("random-regular", {"degree": 6}, 6.0),
        ("small-world", {"neighbours": 8}, 8.0),
    ],
)
def test_a_smaller_network_has_as_many_neighbours(topology, options, neighbours):
    """Of points in a square fewer, near its border."""
    small = simulated_topology(topology, 10_000, 400, options=options).network
    assert small.devices == 400
    assert 2 * small.edges / 400 == pytest.approx(neighbours, rel=0.25)


def test_a_smaller_network_has_a_number_of_devices_that_is_possible():
    assert simulated_topology("torus", 10_000, 97).network.name == "torus 12x8"
    assert simulated_topology("torus", 10_000, 97, options={"rows": 5}).network.name == "torus 5x19"
    assert simulated_topology("torus", 10_000, 97, options={"rows": 50, "columns": 200}).network.name == "torus 12x8"
    with pytest.raises(ValueError, match="did you mean 'torus'"):
        simulated_topology("torsu", 10_000)
    with pytest.raises(ValueError, match="has no option 'p'"):
        simulated_topology("torus", 10_000, options={"p": 0.1})


def test_of_a_network_of_ones_own_the_centre_is_taken():
    network = Network.chain(101).relabelled([f"d{k}" for k in range(101)])
    where = simulated_network(network, 11)
    assert where.network.ids == tuple(f"d{k}" for k in range(45, 56))
    assert (where.network.edges, where.network.diameter) == (10, 10)
    assert "11 devices nearest to its centre" in where.describe()
    scores = WeightedScores.from_flat(np.arange(202.0), np.full(101, 2))
    found = plan(where, alpha=0.1, scores=scores, methods=["fcp"])
    assert found.scores == 22
    assert simulated_network(network, 101).network is network


def test_sizes_follow_the_devices_that_are_simulated():
    found = plan(simulated_network(Network.chain(9), 3), [*range(1, 10)], 0.3, methods=["local"])
    assert found.sizes.tolist() == [4, 5, 6]
    spread = plan(simulated_topology("chain", 9, 3), [*range(1, 10)], 0.3, methods=["local"])
    assert spread.sizes.tolist() == [1, 5, 9]


# --- the table --------------------------------------------------------------------------------------------------------


def test_every_method_is_in_the_table_once_per_way(whole):
    ways = [row.way for row in whole.rows]
    assert {way.method for way in ways} == {*METHODS}
    assert len(ways) == len({*ways}) == 4 + 4 + 9
    assert not whole.refused


def test_nothing_with_less_of_a_guarantee_is_recommended_over_more():
    """`local` and servers are cheaper by far, `average` has no guarantee at all."""
    for sort in ("time", "bytes", "rounds"):
        found = torus(sort=sort, methods=["e-dcp", "r-dcp", "fcp", "local", "average"])
        best = found.recommended
        assert (best.guarantee, best.needs, best.assumption) == ("counted", "neighbours", "")
        assert best.price(sort) == min(row.price(sort) for row in found.rows if row.tier == 0)
        assert [row.tier for row in found.rows] == sorted(row.tier for row in found.rows)
    assert torus(methods=["average", "local", "fcp"]).recommended.way == MethodVariant("fcp")
    assert torus(methods=["average", "q-dcp"]).recommended.way == MethodVariant("q-dcp")
    assert torus(methods=["average"]).recommended.way == MethodVariant("average")


def test_the_recommendation_depends_on_the_link():
    """Rounds decide where latency is long, bytes where bandwidth is narrow."""
    long = plan(TORUS, 50, 0.1, "1s,1Gbit", methods=["e-dcp"]).recommended
    narrow = plan(TORUS, 50, 0.1, "1us,1kbit", methods=["e-dcp"]).recommended
    assert long.cost.rounds < narrow.cost.rounds
    assert narrow.cost.bits < long.cost.bits


def test_exact_thresholds_are_told_from_bins(whole):
    assert all(row.exact for row in whole.rows if row.way.method == "e-dcp")
    assert not any(row.exact for row in whole.rows if row.way.method in ("h-dcp", "r-dcp", "wfcp"))
    only = torus(methods=["e-dcp", "r-dcp"], sort="rounds", options={"schedule": "window"})
    assert only.recommended.way == MethodVariant("r-dcp")
    assert "Its threshold is rounded up to a bin; e-dcp --schedule window gives the exact one" in only.reason()


def test_a_bound_that_says_nothing_is_not_recommended():
    """After two rounds of gossip on a chain the error bound covers every score."""
    given = {"rounds": 2, "consensus": "gossip"}
    found = plan(Network.chain(20), 50, methods=["h-dcp", "fcp"], options=given)
    row = row_of(found, "h-dcp", "gossip")
    assert (row.useful, row.tier) == (False, 3)
    assert row.notes
    assert found.recommended.way == MethodVariant("fcp")


def test_noise_is_a_kind_of_guarantee():
    found = plan(Network.complete(20), 500, methods=["p-dcp"], options={"epsilon": 2.0}, shape="normal")
    assert not found.refused
    assert [(row.guarantee, row.tier) for row in found.rows] == [("counted with noise", 1)]


def test_a_guarantee_can_be_asked_for():
    few = ["e-dcp", "fedcp-qq", "average"]
    assert {row.guarantee for row in torus(guarantee="counted", methods=few).rows} == {"counted"}
    assert {row.guarantee for row in torus(guarantee="assumed", methods=few).rows} == {"counted", "assumed"}
    with pytest.raises(ValueError, match="did you mean 'counted'"):
        torus(guarantee="conted")
    with pytest.raises(ValueError, match="sort must be one of"):
        torus(sort="beauty")
    with pytest.raises(ValueError, match="did you mean 'normal'"):
        torus(shape="norml")
    with pytest.raises(ValueError, match="time_limit must be more than 0"):
        torus(time_limit=0)


def test_options_go_to_the_methods_that_have_them():
    found = torus(options={"aggregate": "tree", "bins": 10, "range": (0.0, 1.0)}, methods=["e-dcp", "h-dcp", "fcp"])
    assert {row.way for row in found.rows if row.way.method == "e-dcp"} == {
        MethodVariant("e-dcp", schedule) for schedule in ("top-k", "auto", "window", "count")
    }
    assert row_of(found, "h-dcp", "finite-time").cost.numbers == 8 * 10  # eight distinct eigenvalues


def test_too_few_scores_is_said_and_nothing_recommended():
    found = plan(TORUS, 4, 0.01, LINK, methods=["e-dcp", "fcp"])
    assert found.required_rank > found.scores
    assert found.reason().startswith("None yet")


def test_what_cannot_run_has_its_reason():
    """Projection gossip takes seconds on some hundred devices; a run that takes too long is stopped, with its round."""
    large = simulated_network(Network.of("random-regular", 3200), 3200)
    flood = {"schedule": "count", "aggregate": "flood"}
    found = plan(large, 2, methods=["e-dcp", "p-dcp"], options=flood)
    assert "3,000 devices" in found.refused[MethodVariant("e-dcp", "count")]
    assert "up to 2,000 devices" in found.refused[MethodVariant("p-dcp")]
    slow = plan(Network.torus(20, 15), 5, methods=["h-dcp"], options={"consensus": "projection"}, time_limit=0.2)
    (reason,) = slow.refused.values()
    assert "stopped in round" in reason
    assert "longer than the limit of 0.2 s a run" in reason
    assert slow.reason() == "Nothing can be recommended: none of these methods can run here."


def test_drawn_scores_are_the_same_for_every_plan_and_of_every_shape():
    one, again = (draw_scores(np.full(4, 100)) for _ in range(2))
    assert [a.values.tolist() for a in one] == [b.values.tolist() for b in again]
    assert len({a.values.tobytes() for a in one}) == PLAN_DRAWS
    assert len(draw_scores(np.full(2, FEW_DRAWN_SCORES))) == 1
    normal = draw_scores(np.full(4, 1000), "normal")
    assert [float(drawn.values.std()) for drawn in normal] == pytest.approx([1.0] * PLAN_DRAWS, rel=0.1)
    with pytest.raises(ValueError, match="at most 5,000,000 scores, got 6,000,000 on 2 devices"):
        draw_scores(np.full(2, 3_000_000))


def test_a_plan_is_json(whole):
    again = json.loads(json.dumps(whole.to_dict(), allow_nan=False))
    assert again["recommended"]["method"] == whole.recommended.way.method
    server = next(row for row in again["rows"] if row["method"] == "fcp")
    assert (server["rounds"], server["bytes_per_device"], server["numbers_per_device"]) == (2, 400, 50)
    flood = next(row for row in again["rows"] if row["variant"] == "top-k")
    assert flood["rounds_between"] == [4, 4]


def test_a_plan_refuses_impossible_scores():
    with pytest.raises(ValueError, match="at least 1 score"):
        plan(TORUS, 0)
    with pytest.raises(ValueError, match="at least 1 score"):
        plan(TORUS, [-1] * 20)
    with pytest.raises(ValueError, match="one for each of 20 devices"):
        plan(TORUS, [5] * 19)
    with pytest.raises(ValueError, match="one trial of scores of 20 devices, got 1 of 19"):
        plan(TORUS, scores=WeightedScores.of([[1.0]] * 19))
    with pytest.raises(TypeError, match="scores must be WeightedScores"):
        plan(TORUS, scores=[[1.0]] * 20)
