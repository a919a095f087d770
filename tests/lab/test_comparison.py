"""`compare`: what is measured equals what a plain count says, and the winner follows from the table."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from conformesh import METHODS, TOPOLOGIES, Network, calibrate
from conformesh.lab.comparison import (
    Comparison,
    ComparisonRow,
    NetworkComparison,
    build_networks,
    compare,
    compared_ways,
)
from conformesh.methods import MethodVariant
from conformesh.protocols.averaging_schemes import AVERAGING_SCHEMES
from conformesh.scores import LAC, AbsoluteResidual
from tests.strategies import exact_rank, promised_rank

NAMES = tuple("abcdefg")
ALPHA = 0.2


@pytest.fixture(scope="module")
def held():
    rng = np.random.default_rng(3)
    return [rng.beta(2, 2 + k / 3, size=rng.integers(10, 30)) for k in range(len(NAMES))]


@pytest.fixture(scope="module")
def found(held):
    networks = [Network.of(name, len(NAMES)).relabelled(NAMES) for name in ("chain", "star", "complete")]
    return compare(held, networks, ALPHA)


def test_every_way_on_every_network(found):
    ways = compared_ways()
    assert {way.method for way in ways} == {*METHODS}
    assert [way.variant for way in ways if way.method == "e-dcp"] == ["top-k", "window", "count"]
    assert [way.variant for way in ways if way.method == "h-dcp"] == [*AVERAGING_SCHEMES]
    assert [entry.network for entry in found.networks] == ["chain 7", "star 7", "complete 7"]
    assert [entry.diameter for entry in found.networks] == [6, 2, 1]
    for entry in found.networks:
        assert [run.way for run in entry.runs] == [way for way in ways if way not in entry.refused]
    assert found.ways() == ways
    needs = [way.needs for way in ways]
    assert needs == sorted(needs, key=["neighbours", "nothing", "server"].index)


def test_slack_is_the_counted_rank_minus_the_required(found, held):
    everyone = np.concatenate(held)
    rank = promised_rank(held, ALPHA)
    assert (found.required_rank, found.scores, found.devices, found.alpha) == (rank, len(everyone), 7, ALPHA)
    for entry in found.networks:
        for run in entry.runs:
            assert run.slack == np.count_nonzero(everyone <= run.thresholds[0]) - rank


def test_exact_ways_share_the_pooled_threshold(found, held):
    """Without ties the rank of an exact threshold is the required one: no slack, but in the paper's rank of fcp."""
    pooled = np.sort(np.concatenate(held))
    threshold = pooled[found.required_rank - 1]
    published = exact_rank(len(pooled), ALPHA, len(NAMES))
    for run in found.runs_of(MethodVariant("fcp")):
        assert run.thresholds == (pooled[published - 1],) * 2
        assert run.slack == published - found.required_rank > 0
    exact = [way for way in found.ways() if way.method == "e-dcp"]
    assert len(exact) == 3
    for way in exact:
        for run in found.runs_of(way):
            assert run.thresholds == (threshold, threshold)
            assert run.slack == 0
            assert run.guarantee == "counted"


def test_runs_are_those_of_calibrate(found, held):
    network = Network.star(len(NAMES)).relabelled(NAMES)
    for run in found.networks[1].runs:
        result = calibrate(held, network, ALPHA, run.way.method, **run.way.options)
        assert run.thresholds == (result.thresholds.min(), result.threshold)
        assert (run.guarantee, run.assumption) == (result.certificate.kind, result.certificate.assumption)
        cost = result.cost
        assert (run.rounds, run.numbers, run.bits) == (cost.rounds, cost.numbers_per_device, cost.bits_per_device)


@pytest.mark.parametrize("rows", ["named", "anywhere"])
def test_sizes_are_those_of_the_library(held, rows):
    rng = np.random.default_rng(4)
    probabilities = rng.dirichlet(np.ones(8), size=60)
    at = rng.choice(NAMES, size=60).tolist() if rows == "named" else None
    network = Network.cycle(len(NAMES)).relabelled(NAMES)
    found = compare(
        held, [network], ALPHA, compared_ways(["local", "fcp"]), score=LAC(), outputs=probabilities, rows_at=at
    )
    for run in found.networks[0].runs:
        result = calibrate(held, network, ALPHA, run.way.method, score=LAC())
        assert run.size == result.predict(probabilities, device=at).sum(axis=1).mean()


def test_sizes_of_intervals_are_widths(held):
    network = Network.cycle(len(NAMES)).relabelled(NAMES)
    found = compare(held, [network], ALPHA, [MethodVariant("fcp")], score=AbsoluteResidual(), outputs=np.zeros(5))
    (run,) = found.networks[0].runs
    assert run.size == pytest.approx(2 * run.thresholds[1])


def test_who_refuses_is_listed_with_the_reason(held, monkeypatch):
    def refuse(block, *given):
        raise ValueError(f"not on {block.network.name}")

    monkeypatch.setattr("conformesh.protocols.e_dcp.search_by_flooding", refuse)
    found = compare(held, [Network.chain(7)], ALPHA, compared_ways(["e-dcp"]))
    assert found.networks[0].refused == {MethodVariant("e-dcp", "top-k"): "not on chain 7"}
    assert MethodVariant("e-dcp", "top-k") not in found.ways()


def test_scores_that_a_method_cannot_use(held):
    spoilt = [np.full(3, np.inf), *held[1:]]
    found = compare(spoilt, [Network.chain(7)], ALPHA, compared_ways(["e-dcp", "average"]))
    assert "infinite" in found.networks[0].refused[MethodVariant("average")]
    assert all(run.way.method == "e-dcp" for run in found.networks[0].runs)


def test_too_few_scores_are_inf_and_nobody_wins():
    """No warning either: warnings are errors here."""
    found = compare([[1.0, 2.0], [3.0]], [Network.chain(2)], 0.1)
    assert found.required_rank == 4
    assert all(run.slack == math.inf and run.thresholds[0] == math.inf for run in found.networks[0].runs)
    assert found.winner("bits") is None


def test_topologies_that_do_not_fit_are_named():
    built, skipped = build_networks(TOPOLOGIES, NAMES)
    assert {*skipped} == {"torus", "grid"}
    assert "rows x columns" in skipped["torus"]
    assert [network.name.split()[0] for network in built] == [name for name in TOPOLOGIES if name not in skipped]
    assert all(network.ids == NAMES for network in built)
    with pytest.raises(ValueError, match="unknown topology 'rign'"):
        build_networks(["chain", "rign"], NAMES)


# --- who wins ---------------------------------------------------------------------------------------------------------

GOOD = ComparisonRow(MethodVariant("e-dcp", "tree"), "counted", "", (1.0, 1.0), 0.0, None, 10, 5.0, 100.0)


def table(*groups: list[ComparisonRow]) -> Comparison:
    made = (NetworkComparison(f"net {i}", 3, True, tuple(runs), {}) for i, runs in enumerate(groups))
    return Comparison(0.1, 4, 100, 94, tuple(made))


@pytest.mark.parametrize(
    "less",
    [
        {"guarantee": "bounded"},
        {"guarantee": "assumed"},
        {"assumption": "all is well"},
        {"slack": -1.0},
        {"slack": math.inf},
        {"way": MethodVariant("fcp")},
    ],
)
def test_only_what_is_sound_can_win(less):
    cheap = replace(GOOD, **{"way": MethodVariant("h-dcp"), "bits": 1.0, "rounds": 1, **less})
    assert GOOD.is_sound
    assert not cheap.is_sound
    assert table([cheap, GOOD]).winner("bits") == (GOOD.way, 1)
    assert table([cheap]).winner("rounds") is None


def test_the_winner_is_cheapest_on_most_networks():
    other = replace(GOOD, way=MethodVariant("e-dcp", "flood"), bits=50.0, rounds=99)
    dear = replace(other, bits=1000.0)
    found = table([GOOD, other], [GOOD, dear], [GOOD, dear])
    assert found.winner("bits") == (GOOD.way, 2)
    assert found.winner("rounds") == (GOOD.way, 3)
    assert found.networks[0].fewest("bits") == [other.way]


def test_ties_count_for_both_and_the_other_cost_decides():
    other = replace(GOOD, way=MethodVariant("e-dcp", "flood"), rounds=9)
    found = table([GOOD, other])
    assert found.networks[0].fewest("bits") == [GOOD.way, other.way]
    assert found.winner("bits") == (other.way, 1)


def test_the_measured_winner_is_the_cheapest(found):
    way, won = found.winner("bits")
    sound = [[run for run in entry.runs if run.is_sound] for entry in found.networks]
    cheapest = [min(runs, key=lambda run: run.bits).way for runs in sound]
    assert won == cheapest.count(way) == max(map(cheapest.count, cheapest))


# --- errors -----------------------------------------------------------------------------------------------------------


def test_bad_questions(held):
    chain = Network.chain(7).relabelled(NAMES)
    with pytest.raises(ValueError, match="at least one network"):
        compare(held, [])
    with pytest.raises(ValueError, match="same devices: chain 7 and star 7 differ"):
        compare(held, [chain, Network.star(7)])
    with pytest.raises(ValueError, match="both a score and model outputs"):
        compare(held, [chain], score=LAC())
    with pytest.raises(ValueError, match="unknown device 'z'"):
        compare(held, [chain], score=LAC(), outputs=np.eye(2), rows_at=["a", "z"])
    with pytest.raises(ValueError, match="unknown method 'edcp'"):
        compared_ways(["edcp"])


def test_outputs_that_do_not_fit_are_refused_before_the_work(held):
    begun = []
    with pytest.raises(ValueError, match="these look like logits"):
        compare(held, [Network.chain(7)], score=LAC(), outputs=[[3.0, -1.0]], begin=lambda *run: begun.append(run))
    assert begun == []
