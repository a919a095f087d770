"""What E-DCP's search tries and what that costs: the answer is right whatever it tries, so only this shows it."""

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from conformesh import Network, calibrate, update
from conformesh.kernels.keys import from_keys, to_keys
from conformesh.protocols.aggregate import AGGREGATORS, PREFERENCES, CannotAggregate, Price
from conformesh.protocols.block import Block
from conformesh.protocols.e_dcp import (
    EDCP,
    STAGE_WIDTHS,
    STAGES_BY_VALUE,
    Brackets,
    _warm_thresholds,
    best_stage_width,
    choose_aggregator,
)


def site_of(name, devices=20):
    return Block.everywhere(Network.of(name, devices), np.full((devices, 1), 50))


def brackets(rank, n, low, high, at_low=0, at_high=None):
    """One problem, whose bracket has these ends and counts."""
    state = Brackets(np.array([rank]), np.array([n]), np.array([0]))
    state.low, state.high = to_keys(np.array([low])), to_keys(np.array([high]))
    state.at_low[:], state.at_high[:] = at_low, n if at_high is None else at_high
    return state


FIRST = np.array([0])


# --- what a run costs -------------------------------------------------------------------------------------------------

PUBLISHED = {"mixture": "paper", "rank_rule": "ghost"}
# for the rank of the paper: rounds, and numbers sent by all twenty devices: by tree and flood, each with
# 1 and 3 thresholds, or points of a sketch
COSTS = {
    "chain": [(110, 968), (70, 394), (114, 1864), (114, 4257)],
    "cycle": [(130, 500), (70, 354), (60, 1778), (60, 4057)],
    "star": [(17, 354), (7, 218), (12, 348), (12, 684)],
    "torus": [(52, 610), (28, 286), (24, 1631), (24, 3788)],
    "complete": [(17, 354), (7, 218), (6, 140), (6, 259)],
}


@pytest.mark.parametrize("name", COSTS)
def test_rounds_and_numbers_of_a_run(name):
    """A change of any of these is a changed number, to be told in the changelog."""
    rng = np.random.default_rng(20)
    scores = [rng.normal(size=int(n)) for n in rng.integers(35, 69, 20)]
    spent = []
    for aggregate in ("tree", "flood"):
        for width in (1, 3):
            asked = {"schedule": "count", "aggregate": aggregate, "width": width, **PUBLISHED}
            cost = calibrate(scores, Network.of(name, 20), 0.1, **asked).cost
            spent.append((cost.rounds, round(20 * cost.numbers_per_device)))
    assert spent == COSTS[name]


def test_a_warm_start_costs_half():
    """The old bracket holds the new threshold: nobody asks for the smallest and the largest score; few stages."""
    rng = np.random.default_rng(4)
    scores = [rng.random(50) for _ in range(20)]
    net = Network.complete(20)
    cold = calibrate(scores, net, 0.1, schedule="count", aggregate="flood", width=1, **PUBLISHED)
    warm = update(cold, scores, net)
    assert warm.threshold == cold.threshold
    assert (warm.cost.rounds, cold.cost.rounds) == (4, 9)


@pytest.mark.parametrize(
    ("low", "high", "ladder"),
    [
        (1.0, 3.0, [-11.0, 1.0, 3.0, 15.0]),
        (2.0, 2.0, [2.0 - 12e-12, 2.0, 2.0, 2.0 + 12e-12]),
        (-2.0, -2.0, [-2.0 - 12e-12, -2.0, -2.0, -2.0 + 12e-12]),
        (0.0, 0.0, [-6e-300, 0.0, 0.0, 6e-300]),
        (-1e308, 1e308, [-1e308 - 6e307, -1e308, 1e308, 1e308 + 6e307]),
        (-math.inf, 5.0, [5.0]),
        (1.0, math.inf, [math.inf]),
    ],
)
def test_the_ladder_reaches_six_steps_beyond_an_old_bracket(low, high, ladder):
    rungs = _warm_thresholds(low, high, 3)
    assert rungs.shape == (3, len(ladder))
    np.testing.assert_allclose(rungs[2], ladder, rtol=1e-15)


# --- how wide a stage is ----------------------------------------------------------------------------------------------


def predicted(block, prices, prefer, width):
    """The prediction as its docstring has it: log(n) / log(M + 1) sums after the one for n, and two maxima."""
    a, b = PREFERENCES[prefer]
    price = min(prices, key=lambda one: (one.rounds + 1) ** a * (width * one.per_number + 1) ** b)
    stages = math.log(1000) / math.log(3 if width == 1 else width + 1)
    diameter = block.network.diameter
    rounds = price.setup + price.rounds + stages * price.rounds + diameter + diameter
    numbers = price.per_number + stages * width * price.per_number + 3 * diameter
    return (rounds + 1) ** a * (numbers + 1) ** b


@pytest.mark.parametrize(
    ("name", "devices", "balanced"),
    [
        ("chain", 20, 1),
        ("chain", 100, 16),
        ("chain", 400, 48),
        ("cycle", 20, 1),
        ("cycle", 100, 12),
        ("cycle", 400, 32),
        ("grid", 100, 1),
        ("torus", 100, 1),
        ("torus", 400, 6),
        ("star", 400, 1),
        ("complete", 20, 1),
    ],
)
def test_the_width_is_the_best_for_what_is_preferred(name, devices, balanced):
    block = site_of(name, devices)
    assert [best_stage_width(block, "tree", prefer) for prefer in ("rounds", "numbers", "balanced")] == [
        64,
        1,
        balanced,
    ]
    tree = AGGREGATORS["tree"].price(block)
    for prefer in PREFERENCES:
        costs = {width: predicted(block, [tree], prefer, width) for width in STAGE_WIDTHS}
        assert costs[best_stage_width(block, "tree", prefer)] == pytest.approx(min(costs.values()), rel=1e-12)


def test_the_width_is_the_best_at_any_price(monkeypatch):
    """Not only on networks that we have: prices and diameters from 1 to 1000, of any proportion."""
    rng = np.random.default_rng(0)
    for rounds, each, setup, diameter in (10 ** rng.uniform(0, 3, (400, 4))).astype(int).tolist():
        price = Price(rounds, float(each), setup)
        monkeypatch.setitem(AGGREGATORS, "given", SimpleNamespace(price=lambda block, price=price: price))
        block = SimpleNamespace(network=SimpleNamespace(diameter=diameter))
        for prefer in PREFERENCES:
            costs = {width: predicted(block, [price], prefer, width) for width in STAGE_WIDTHS}
            assert costs[best_stage_width(block, "given", prefer)] <= min(costs.values()) * (1 + 1e-12)


def test_the_way_to_add_up_is_what_was_asked_for_or_the_best_one():
    block = site_of("torus")
    assert choose_aggregator(block, "flood", "numbers", 1) == "flood"
    assert choose_aggregator(block, "auto", "rounds", 1) == "flood"
    assert choose_aggregator(block, "auto", "numbers", 1) == "tree"
    assert (
        choose_aggregator(site_of("random-regular", 4000), "auto", "rounds", 1) == "tree"
    )  # too many devices for a flood
    with pytest.raises(CannotAggregate, match="beyond 3,000 devices"):
        choose_aggregator(site_of("random-regular", 4000), "flood", "rounds", 1)


@pytest.mark.parametrize("warm", [(1.0, 1.0), (-math.inf, math.inf), (0.0, 2.0)])
def test_a_bracket_may_be_a_point(warm):
    assert EDCP(warm=warm).warm == warm
    with pytest.raises(ValueError, match=r"warm must be LOW <= HIGH, got 2\.0 1\.0"):
        EDCP(warm=(2.0, 1.0))


# --- one stage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "share"), [(50, 0.495), (10, 0.25), (90, 0.75), (26, 0.255), (75, 0.745)])
def test_one_threshold_interpolates_within_the_middle_half(rank, share):
    """Rank 50 of 100 between 0 and 1: 0.495, as the counts at the ends say; never in the outer quarters."""
    assert from_keys(brackets(rank, 100, 0.0, 1.0).pivots(FIRST, 1)).item() == pytest.approx(share)
    shifted = brackets(rank + 7, 107, 10.0, 14.0, at_low=7)
    assert from_keys(shifted.pivots(FIRST, 1)).item() == pytest.approx(10 + 4 * share)


def test_several_thresholds_cut_equal_parts():
    np.testing.assert_allclose(from_keys(brackets(50, 100, 0.0, 1.0).pivots(FIRST, 3))[0], [0.25, 0.5, 0.75])


def test_impatience_halves_keys_not_values():
    state = brackets(50, 100, 1e-300, 1e300)
    by_value = state.pivots(FIRST, 1)
    state.stage[:] = STAGES_BY_VALUE - 1
    assert state.pivots(FIRST, 1) == by_value
    state.stage[:] = STAGES_BY_VALUE
    low, high = int(state.low[0]), int(state.high[0])
    assert state.pivots(FIRST, 1).item() == (low + high) // 2
    assert state.pivots(FIRST, 3).tolist() == [[low + (high - low) * i // 4 for i in (1, 2, 3)]]


@pytest.mark.parametrize(("low", "high"), [(-math.inf, 0.0), (0.0, math.inf), (-math.inf, math.inf)])
def test_infinite_ends_are_halved_by_keys_at_once(low, high):
    state = brackets(50, 100, low, high)
    assert state.pivots(FIRST, 1).item() == (int(state.low[0]) + int(state.high[0])) // 2


def test_an_overflowing_span_and_a_narrow_bracket_stay_strictly_inside():
    wide = brackets(50, 100, -1.7e308, 1.7e308).pivots(FIRST, 3)
    np.testing.assert_allclose(from_keys(wide)[0], [-0.85e308, 0.0, 0.85e308], atol=1e293)
    tight = brackets(50, 100, 1.0, 1.0)
    tight.high = tight.low + 2
    assert (tight.pivots(FIRST, 4) == tight.low + 1).all()


@pytest.mark.parametrize(
    ("counts", "low", "high", "at"),
    [
        ([10, 20, 30], 0.0, 1.0, (0, 10)),  # all three at or above the rank: only the top moves
        ([1, 5, 30], 1.0, 2.0, (1, 5)),  # rank 5 is reached at the second
        ([1, 2, 4], 3.0, 9.0, (4, 40)),  # none reaches it: only the bottom moves
    ],
)
def test_a_stage_keeps_the_narrowest_bracket(counts, low, high, at):
    state = brackets(5, 40, 0.0, 9.0)
    state.shrink(FIRST, to_keys(np.array([[1.0, 2.0, 3.0]])), np.array([counts]))
    assert (from_keys(state.low).item(), from_keys(state.high).item()) == (low, high)
    assert (state.at_low.item(), state.at_high.item()) == at
    assert (bool(state.below[0]), bool(state.above[0])) == (low > 0, high < 9)
    assert (state.stage.item(), state.quiet.item()) == (1, 0)


def test_stages_that_exclude_nobody_are_counted_until_one_does():
    state = brackets(5, 40, 0.0, 9.0)
    pivot = to_keys(np.array([[8.0]]))
    for quiet in (1, 2):
        assert not state.stuck().any()
        state.shrink(FIRST, pivot, np.array([[40]]))
        assert state.quiet.item() == quiet
    assert state.stuck().all()
    state.shrink(FIRST, pivot - 1, np.array([[39]]))
    assert state.quiet.item() == 0
    assert not state.stuck().any()


@pytest.mark.parametrize("counts", [[10, 9, 30], [10, 20, 41], [-1, 5, 6]])
def test_counts_that_fall_are_no_counts(counts):
    with pytest.raises(ValueError, match="contradict each other: more scores lie below a threshold than below a high"):
        brackets(5, 40, 0.0, 9.0).shrink(FIRST, to_keys(np.array([[1.0, 2.0, 3.0]])), np.array([counts]))


def test_ready_and_stuck():
    assert brackets(5, 40, 0.0, 9.0, at_high=5).ready().all()  # the largest score below the top
    assert brackets(5, 40, 0.0, 9.0, at_low=4).ready().all()  # the smallest above the bottom
    assert not brackets(5, 40, 0.0, 9.0, at_low=3, at_high=6).ready().any()
    no_float_left = brackets(5, 40, 1.0, 1.0, at_low=3, at_high=6)
    no_float_left.high = no_float_left.low + 1
    assert no_float_left.stuck().all()
    no_float_left.at_low[:] = 4
    assert not no_float_left.stuck().any()  # it is ready, which comes first
    assert not brackets(41, 40, 0.0, 9.0, at_low=40).ready().any()  # too few scores: nothing is open


def test_known_ends_are_kept_when_a_search_begins():
    state = Brackets(np.array([5, 5, 5]), np.full(3, 40), np.array([0, 0, 1]))
    state.low[:], state.high[:] = to_keys(np.array([2.0] * 3)), to_keys(np.array([3.0] * 3))
    state.below[:], state.above[:] = [True, False, False], [False, True, False]
    assert state.closed_in.tolist() == [False] * 3
    state.begin(np.array([[0.0, -7.0], [9.0, 8.0]]))
    assert (from_keys(state.low[:1]).item(), from_keys(state.high).tolist()) == (2.0, [9.0, 3.0, 8.0])
    assert (state.low[1:] == to_keys(np.array([0.0, -7.0])) - 1).all()  # one float below the smallest score
    assert state.closed_in.all()


def test_an_answer_keeps_the_bracket_it_was_read_from():
    state = brackets(5, 40, 1.0, 9.0)
    state.close(FIRST, to_keys(np.array([4.0])), np.array([6]))
    assert state.last[:, 0].tolist() == [1.0, 9.0]
    assert (from_keys(state.high).item(), state.at_high.item(), state.open.item()) == (4.0, 6, False)
    below = brackets(5, 40, -math.inf, 9.0)
    below.low -= 1  # one key below -inf is no float
    below.close(FIRST, to_keys(np.array([4.0])), np.array([6]))
    assert below.last[:, 0].tolist() == [-math.inf, 9.0]


def test_what_was_chosen_is_on_record():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        auto = calibrate([[0.1], [0.2], [0.3]], Network.chain(3), 0.5)
        given = {"schedule": "count", "aggregate": "flood", "width": 2}
        asked = calibrate([[0.1], [0.2], [0.3]], Network.chain(3), 0.5, **given)
        fastest = calibrate([[0.1], [0.2], [0.3]], Network.chain(3), 0.5, prefer="rounds")
    assert (auto.options["schedule"], auto.options["over"], auto.options["points"]) == ("window", "tree", "7")
    assert (fastest.options["schedule"], fastest.options["over"]) == ("top-k", "flood")
    assert asked.options["sums_why"] == "as asked for"
    assert (asked.options["sums_by"], asked.options["stage_width"]) == ("flood", "2")
