"""Pieces of the waves and of the flood that a run of thousands of cases seldom needs, each by itself."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from conformesh import Network, control
from conformesh.kernels import replies
from conformesh.kernels.items import packets_of
from conformesh.kernels.keys import from_keys, to_keys
from conformesh.kernels.replies import (
    BEGIN,
    BELOW,
    BOTH,
    COUNTED,
    END,
    EVEN,
    HIGHEST,
    LOWEST,
    TRIAL,
    MergedReply,
    SourceKnots,
)
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols import e_dcp, top_k, waves
from conformesh.protocols.block import Block
from conformesh.protocols.merged_scores import MergedScores, ScoreReport, ScoreRuns
from tests.pipeline import test_risk_control as test_controlling


def site_of(network=None, n=50):
    network = network or Network.chain(4)
    return Block.everywhere(network, np.full((network.devices, 1), n))


def key(value):
    return int(to_keys([value])[0])


def ask(low=LOWEST, high=HIGHEST, counted=0, trial=0):
    row = np.zeros(EVEN + 1, np.int64)
    row[[TRIAL, BEGIN, END, COUNTED]] = trial, low, high, counted
    return row


def listed(values, below=0, above=0):
    """An exact reply, as `replies.combine_reports` has it."""
    keys, times = np.unique(to_keys(np.array(values, float)), return_counts=True)
    nothing = np.empty(0)
    no_knots = SourceKnots(nothing, nothing, nothing, np.zeros(1, np.int64), nothing)
    return MergedReply(below, len(values), len(keys), keys, times, no_knots, 0, above)


def root_of(problem, pace=None, block=None):
    around = SimpleNamespace(block=block or site_of(), curve=None)
    return waves.TreeRoot(around, pace or waves.Pace(7, 0, 12.0), [problem], 1.0)


# --- the root ---------------------------------------------------------------------------------------------------------


def test_what_all_scores_weigh_is_what_lies_in_a_bracket_and_beside_it():
    asked = waves.WaveQuestion(np.array([ask(trial=0), ask(trial=1), ask(trial=1)]), [0, 1, 2], [])
    block = Block.everywhere(Network.chain(2), np.array([[3, 0], [4, 0]]))
    heard = [listed([1.0, 2.0], below=4, above=1), listed([]), listed([9.0] * 9)]
    assert waves._read_totals(asked, heard, block) == [7, 0]
    with pytest.raises(ValueError, match="all scores of a trial weigh 8, which can be 0 to 7"):
        waves._read_totals(asked, [listed([1.0] * 8), *heard[1:]], block)


@pytest.mark.parametrize(
    ("rank", "bracket", "counts"),
    [(5, (LOWEST, key(1.0)), (0, 10)), (31, (key(2.0), HIGHEST), (13, 50))],
)
def test_a_window_that_missed_leaves_the_guess_it_came_from(rank, bracket, counts):
    guess = np.array([0.0, 1.0, 2.0, 3.0]), *[np.array([0.0, 10.0, 13.0, 50.0])] * 2, 0
    problem = waves.RankSearch(rank, 0, 50, guess=guess)
    question = ask(key(1.0), key(2.0), BELOW)
    root_of(problem)._decide(np.zeros(64, np.uint8), 0, question, problem, listed([1.5, 1.7, 2.0], below=10), False)
    assert (problem.low, problem.high) == bracket
    assert (problem.below, problem.upto, problem.missed) == (*counts, 1)
    assert problem.guess is guess


def test_an_exact_list_of_the_bracket_is_the_answer():
    problem = waves.RankSearch(12, 0, 50)
    out = np.zeros(64, np.uint8)
    asked = waves.WaveQuestion(np.array([ask(key(1.0), key(2.0), BELOW)]), [0], [waves.FoundScore()])
    end, numbers = root_of(problem)._decide(out, 0, asked.asks[0], problem, listed([1.5, 1.7, 1.7, 2.0], 10), False)
    assert numbers == 2  # the score, and by how much its ties exceed the rank
    assert waves.read_instruction(out, 0, asked, 12) == (end, 2)
    assert (asked.which, asked.found[0].answer, asked.found[0].counted) == ([], key(1.7), 1)
    assert asked.found[0].bracket == (key(1.35), key(1.85))


@pytest.mark.parametrize(
    ("below", "values", "words"),
    [
        (60, [], "60 lie at or below 1.0, and that must be 0 to 50"),
        (10, [1.5] * 41, "51 lie at or below 2.0, and that must be 0 to 50"),
    ],
)
def test_counts_that_cannot_be_are_not_believed(below, values, words):
    problem = waves.RankSearch(12, 0, 50)
    with pytest.raises(ValueError, match=words):
        root_of(problem)._decide(
            np.zeros(64, np.uint8), 0, ask(key(1.0), key(2.0), BELOW), problem, listed(values, below), False
        )


@pytest.mark.parametrize(("low", "high"), [(1.0, 2.0), (-3.0, 1e300), (-1e-300, 1e-300)])
def test_the_next_start_looks_half_as_far_around_the_answer(low, high):
    answer = low / 4 + 3 * high / 4
    found = waves._next_warm_bracket(ask(key(low), key(high)), key(answer))
    assert from_keys([*found]) == pytest.approx([low / 2 + answer / 2, answer / 2 + high / 2], abs=0)
    down, up = answer / 2 - low / 2, high / 2 - answer / 2  # a side that was open is as wide as the other
    assert waves._next_warm_bracket(ask(LOWEST, key(high)), key(answer)) == (key(answer - up), key(answer + up))
    assert waves._next_warm_bracket(ask(key(low)), key(answer)) == (key(answer - down), key(answer + down))
    assert waves._next_warm_bracket(ask(), key(answer)) == (LOWEST, HIGHEST)


@pytest.mark.parametrize(
    ("ends", "bracket", "numbers"),
    [
        ((key(1.25), key(1.5)), (LOWEST, HIGHEST), 2),
        ((LOWEST, key(1.5)), (LOWEST, HIGHEST), 1),
        ((key(1.25), HIGHEST), (LOWEST, HIGHEST), 1),
        ((key(1.0), key(1.5)), (LOWEST, HIGHEST), 1),
        ((key(2.0), HIGHEST), (key(2.0), HIGHEST), 0),
        ((key(0.3), key(1.0)), (key(0.3), key(1.0)), 1),
        ((key(1.25), key(1.25) + 1), (LOWEST, HIGHEST), 2),
        ((key(1.0), key(1.0) + 1), (LOWEST, HIGHEST), 1),
        ((LOWEST, HIGHEST), (LOWEST, HIGHEST), 0),
    ],
)
def test_ends_of_a_bracket_come_back(ends, bracket, numbers):
    """Those that are known, bit for bit; new ones are few bits, and these have no more."""
    question, out = ask(key(1.0), key(2.0)), np.zeros(64, np.uint8)
    at, said = waves._write_ends(out, 0, ends, question, bracket)
    assert waves._read_ends(out, 0, question) == ([*ends], numbers, at)
    assert said == numbers


@pytest.mark.parametrize(("focused", "level"), [(1, 1000), (0, 7)])
def test_a_question_for_a_sketch_says_where_its_points_are_to_be(focused, level):
    """Around a level that it names, or evenly; the level of before then stays, and is not used."""
    question, out = ask(), np.zeros(64, np.uint8)
    question[replies.LEVEL] = 7
    at = 0
    for _ in range(2):
        at = replies.put_bits(out, at, 0, 1)
        at, numbers = waves._write_ends(out, at, (key(1.0), key(2.0)), question, (LOWEST, HIGHEST))
        at = replies.put_bits(out, at, BOTH, 2)
        at = replies.put_bits(out, at, 0, 1)
        at = replies.put_bits(out, at, focused, 1)
        at = replies.put_bits(out, at, level, 16 * focused)
    asked = waves.WaveQuestion(np.array([question, question]), [0, 1], [waves.FoundScore(), waves.FoundScore()])
    assert waves.read_instruction(out, 0, asked, 12) == (at, 2 * (numbers + focused))
    for row in asked.asks:
        assert (row[EVEN], row[replies.LEVEL], row[replies.LIMIT]) == (1 - focused, level, 0)
        assert (row[BEGIN], row[END], row[COUNTED]) == (key(1.0), key(2.0), BELOW)
    assert (asked.passes, asked.sketches) == (1, 1)


@pytest.mark.parametrize("kind", [5, 6, 40])
def test_ends_of_no_kind_are_no_word(kind):
    out = np.zeros(64, np.uint8)
    replies.put_gamma(out, 0, kind)
    assert waves._read_ends(out, 0, ask())[2] == replies.NOWHERE


def test_a_start_around_one_threshold_has_a_width():
    assert waves._warm_bracket(1.0, 3.0) == (1.0, 3.0)
    low, high = waves._warm_bracket(4.0, 4.0)
    assert low < 4.0 < high
    assert high - low < 1e-10
    low, high = waves._warm_bracket(0.0, 0.0)
    assert low < 0.0 < high < 1e-290


@pytest.mark.parametrize("known", [True, False])
def test_a_first_question_from_an_old_bracket(known):
    """It counts what lies below, and what lies above where nobody knows the sum."""
    n, ranks = (np.array([200]), np.array([[150]])) if known else (None, None)
    block = SimpleNamespace(trials=1, alphas=(0.25,), most=400, devices=4, totals=np.array([100]), window=None)
    asked = waves._first_question(block, waves.Pace(7, 0, 12.0), 9, n, ranks, False, (1.0, 3.0))
    (row,) = asked.asks.tolist()
    assert (row[BEGIN], row[END], row[COUNTED]) == (key(1.0), key(3.0), BELOW if known else replies.OUTSIDE)
    assert row[replies.SIDE] == BOTH
    assert row[replies.LIMIT] == 9 * waves.MOST_LISTED
    assert (row[replies.USUAL], row[replies.EACH]) == ((50, 2) if known else (100, 4))
    assert row[replies.LEVEL] == 3 * replies.LEVEL_UNITS // 4
    cold = waves._first_question(block, waves.Pace(7, 0, 12.0), 9, n, ranks, False, (-math.inf, 3.0)).asks[0]
    assert (cold[BEGIN], cold[END], cold[COUNTED], cold[replies.LIMIT]) == (LOWEST, HIGHEST, 0, 0)


def test_replies_reach_the_parent_they_are_for_in_whatever_order_they_come():
    """Where devices lie in another order in memory, children of two parents may come the last one's first."""
    block, samples = site_of(n=2), WeightedScores.of([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    tree = waves.Waves(block, samples, 0)
    asks = np.array([ask()])
    asks[0, replies.LIMIT] = 9
    nobody = np.empty(0, np.int64)
    said, _ = tree._replies(asks, np.array([2, 3]), waves.NO_PACKETS, nobody, nobody)
    parents, senders = np.array([0, 1]), np.array([2, 3])
    right, numbers = tree._replies(asks, parents, said, parents, senders)
    assert numbers.tolist() == [4, 4]
    found, _ = tree._replies(asks, parents, said.take(np.array([1, 0])), parents[::-1], senders[::-1])
    assert [found[0], found[1]] == [right[0], right[1]]


# --- the flood --------------------------------------------------------------------------------------------------------


def known(keys, likely, k=3, times=None):
    """What one device knows of a list, device 0 of the network, after it has looked at its own scores."""
    each = np.ones(len(keys), np.int64) if times is None else np.array(times)
    runs = ScoreRuns(np.zeros(len(keys), np.int64), np.array(keys, np.int64), each)
    return MergedScores(k, False, np.array([0]), runs, np.array([min(likely, k)]))


def hear(one, *said):
    """Let the device hear these of its neighbours."""
    listeners, starts = (np.array([0]), np.array([0])) if said else (np.empty(0, np.int64), np.empty(0, np.int64))
    one.hear(listeners, starts, 1 + np.arange(len(said)), [*said])


def said_of(keys, owners, held_back=LOWEST):
    return ScoreReport(np.array(keys, np.int64), np.array(owners, np.int64), np.ones(len(keys), np.int64), held_back)


def test_who_has_only_heard_of_something_held_back_passes_that_on():
    one = known([1, 2, 3, 4], likely=1)
    assert (one.held_back[0], one.news_held_back[0]) == (3, True)
    hear(one, said_of([], [], 3))
    assert not one.has_news.any()
    hear(one, said_of([], [], 9))
    assert one.has_news.all()
    packet, offsets, numbers = packets_of([one.said(np.array([0]))], 2)
    assert (numbers.tolist(), offsets.tolist()) == ([1], [0, len(packet)])
    ((keys, owners, times, held_back),) = top_k._read_lists(replies.get_entries, packet.tobytes(), 1, 1, site_of())
    assert ([*keys], [*owners], [*times], held_back) == ([], [], [], 9)


def test_what_is_known_is_no_news():
    one = known([1, 2, 3], likely=9)
    hear(one, said_of([1, 2, 3], [0, 0, 0]), said_of([2], [5]))
    news = one.said(np.array([0]))
    assert (news.keys.tolist(), news.owners.tolist(), news.times.tolist()) == ([2], [5], [1])
    assert one.of_first.keys.tolist() == [2, 2, 3]


def test_nothing_is_held_back_that_does_not_count():
    """Where what was said is enough, or is all."""
    assert known([1, 2, 3, 4], likely=3).held_back[0] == LOWEST
    assert known([1, 2], likely=9).held_back[0] == LOWEST
    assert known([], likely=1).held_back[0] == LOWEST


@pytest.mark.parametrize(
    ("mine", "total", "scores", "k", "least"), [(10, 100, 100, 50, 5), (0, 100, 100, 50, 0), (20, 1000, 10, 500, 10)]
)
def test_a_device_says_its_share_and_some_more(mine, total, scores, k, least):
    said = top_k.WantedList(0, False, k).likely(mine, total, scores)
    assert said == top_k.LIKELY * least + top_k.SPARE * (total // scores)


def test_lists_are_of_the_smaller_side():
    lists, served = top_k.wanted_lists(np.array([[10, 95, 90], [200, 0, 50]]), np.array([100, 100]))
    assert [(one.trial, one.smallest, one.k) for one in lists] == [(0, True, 10), (0, False, 11), (1, True, 50)]
    assert served == {0: 0, 1: 1, 2: 1, 5: 2}


def test_a_flood_is_as_large_as_there_are_scores():
    block = site_of(n=50)
    ranks, n = np.array([[100]]), np.array([200])
    assert top_k._most_scores(block, top_k.wanted_lists(ranks, n)[0]) == 100
    heavy = top_k.wanted_lists(ranks * 10**9, n * 10**9)[0]
    assert top_k._most_scores(block, heavy) == 200
    assert top_k.can_flood(block, ranks * 10**9, n * 10**9)
    assert not top_k.can_flood(site_of(Network.chain(4), 2**28), ranks * 10**9, n * 10**9)


def test_scores_with_weights_are_two_numbers_each():
    one, heavy = known([1, 2], likely=9), known([1, 2], likely=99, k=9, times=[1, 3])
    nobody = np.array([0])
    assert packets_of([one.said(nobody)], 2)[2].tolist() == [2]
    assert packets_of([heavy.said(nobody), one.said(nobody)], 2)[2].tolist() == [4 + 2]


# --- what is chosen ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "flood", "plan"),
    [
        ({}, True, ("auto", "tree")),
        ({"prefer": "bits"}, True, ("auto", "tree")),
        ({"prefer": "rounds"}, True, ("top-k", "flood")),
        ({"prefer": "rounds"}, False, ("window", "tree")),
        ({"schedule": "top-k"}, True, ("top-k", "flood")),
        ({"schedule": "top-k"}, False, ("top-k", "tree")),
        ({"schedule": "window"}, True, ("window", "tree")),
        ({"schedule": "count"}, True, ("count", "tree")),
        ({"schedule": "count", "aggregate": "flood"}, True, ("count", "flood")),
        ({"aggregate": "flood"}, True, ("top-k", "flood")),
        ({"schedule": "top-k", "aggregate": "flood"}, False, ("top-k", "flood")),
    ],
    ids=str,
)
def test_the_schedule_follows_from_what_is_asked_and_from_how_much_a_flood_would_be(options, flood, plan):
    block = site_of(n=50 if flood else 2**27)
    n = block.totals
    found = e_dcp.choose_schedule(block, e_dcp.EDCP(**options), n[:, None] // 2, n)
    assert (found.schedule, found.over) == plan
    listed = {"window": math.inf, "count": e_dcp.COUNT_LISTED}.get(
        plan[0], e_dcp.PACES[options.get("prefer", "balanced")][0]
    )
    assert found.pace.fetched == listed


def test_a_guess_may_be_off_by_what_its_parts_are():
    right = 2 * (10 + waves.PIECE_SHARE * 20) + waves.COMMON_BIAS * 1e6 + waves.UNTRUSTED_CORRECTION * 8
    assert waves.half_width(2.0, 10.0, 20.0, 1e6, -8.0) == pytest.approx(max(right, 3.0))
    assert waves.half_width(1.0, 0.0, 0.0, 0.0, 0.0) == 3.0


def test_what_all_losses_weigh_is_asked_for_in_the_first_pass_and_not_before():
    network, steps = Network.chain(9), test_controlling.some_steps(40, 9)
    found = control(steps, network, 0.3, schedule="window")
    assert found.cost.rounds % network.centre_depth == 0  # a wave down, and then some up and down: no sum before
    assert found.cost.rounds <= 5 * network.centre_depth


@pytest.mark.parametrize(("rounding_loss", "lost"), [(np.array([1, 2]), 3), (None, 0)])
def test_what_rounding_took_from_weights_is_added_up_too(rounding_loss, lost):
    def total(values):
        yield from ()
        return values.sum(axis=0)[None]

    block = SimpleNamespace(knows_totals=False, rounds_weights=True)
    samples = SimpleNamespace(masses=np.array([[5], [6]]), rounding_loss=rounding_loss, example_mass=None)
    with pytest.raises(StopIteration) as end:
        next(e_dcp.sum_weights(block, samples, total))
    totals = end.value.value
    assert (totals[0].tolist(), totals[1].tolist()) == ([11], [lost])
