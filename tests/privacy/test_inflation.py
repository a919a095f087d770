"""What noise costs: coverage of small tables without chance, hostile tables, and what goes wrong with less."""

import itertools
import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest

from conformesh.privacy import inflation as module
from conformesh.privacy.inflation import Noise, inflation
from conformesh.privacy.noise import law
from tests.privacy.exact import Search

TENTH = Fraction(1, 10)
EDGE = 1e-9  # what is cut off from exact chances
SEARCHES = [  # alpha, cells, stages, epsilon, K/H
    (TENTH, 3, 2, Fraction(2), Fraction(4, 3)),
    (TENTH, 4, 1, Fraction(1), Fraction(1)),
    (Fraction(1, 4), 2, 3, Fraction(4), Fraction(3)),
    (Fraction(3, 5), 3, 2, Fraction(3), Fraction(2)),
]


@lru_cache(maxsize=16)
def search_of(*settings):
    return Search(*settings)


def tables(rng, grid, count):
    """Tables of one to four devices: random, all above every pivot, all in two cells, and stairs."""
    for kind in itertools.islice(itertools.cycle(range(5)), count):
        sizes = rng.integers(1, 6, rng.integers(1, 5))
        if kind == 0:
            table = [rng.integers(0, grid, size) for size in sizes]
        elif kind == 1:
            table = [np.full(size, grid - 1) for size in sizes]
        elif kind == 2:
            two = rng.integers(0, grid, 2)
            table = [two[(rng.random(size) < 0.2).astype(int)] for size in sizes]
        elif kind == 3:  # the last device is all above; the others all below
            table = [np.full(size, (grid - 1) * (k == len(sizes) - 1)) for k, size in enumerate(sizes)]
        else:
            table = [np.sort(rng.integers(0, grid, size))[::-1] // 2 for size in sizes]
        if sum(map(len, table)) > len(table):
            yield [items.tolist() for items in table]


def check_tables(target, settings, seed, count):
    """Check so many tables; return the lowest coverage without inflation, less what is promised."""
    search = search_of(*settings)
    alpha, cells, stages, epsilon, ratio = settings
    bare = 1.0
    for table in tables(np.random.default_rng(seed), search.grid, count):
        scores = sum(map(len, table)) - len(table) * (target == "sizes")
        extra = inflation(alpha, cells, stages, epsilon, ratio, alpha * scores).value
        covered = search.coverage(table, target, extra)
        assert covered >= 1 - alpha - EDGE, f"{table} is covered with {covered:.4f} only: {settings}, {extra}"
        bare = min(bare, search.coverage(table, target, 0) - (1 - float(alpha)))
    return bare


@pytest.mark.parametrize("settings", SEARCHES)
def test_noisy_swap_rank_covers(settings):
    """Every way to hide an example and all noise, weighed; without inflation the same tables are missed too often."""
    bare = check_tables("sizes", settings, 1, 25)
    assert bare < 0 or settings[0] > TENTH


@pytest.mark.parametrize("settings", SEARCHES)
def test_noisy_ghost_rank_covers(settings):
    bare = check_tables("paper", settings, 2, 25)
    assert bare < 0 or settings[0] > TENTH


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sizes", "paper"])
@pytest.mark.parametrize("settings", SEARCHES)
def test_noisy_ranks_cover_on_many_tables(settings, target):
    check_tables(target, settings, 3, 1000)


# --- hostile tables ---------------------------------------------------------------------------------------------------

NEEDS = (7, 5, 4, 3, 2, 2, 2, 1, 1, 1, 1, 0, 0, -1, -3)  # found by a climb over stairs, for one stage of 16 cells
ONE = (TENTH, 16, 1, Fraction(1), Fraction(20, 19))


def hostile(needs, scores, empty):
    """One device with all scores, in stairs with D = -need at each pivot, and devices with one item each, far above."""
    total = scores + 1 + empty
    below = [(9 * total) // 10 - need for need in needs]
    counts = np.diff([0, *below, scores + 1])
    assert counts.min() >= 0
    return [np.repeat(np.arange(len(counts)), counts).tolist(), *[[len(needs)]] * empty]


@pytest.mark.parametrize("target", ["sizes", "paper"])
def test_without_inflation_a_hostile_table_falls_below(target):
    """Twenty devices and 220 scores, or one and 99: stairs on which the first accepted pivot is too low on average."""
    search = search_of(*ONE)
    table = hostile(NEEDS, 220, 19) if target == "paper" else hostile(NEEDS, 99, 0)
    bare = search.coverage(table, target, 0)
    assert bare < (0.899 if target == "paper" else 0.893)
    scores = sum(map(len, table)) - len(table) * (target == "sizes")
    extra = inflation(*ONE, TENTH * scores)
    assert search.coverage(table, target, extra.value) >= 0.9


def expected_maximum(settings):
    """E[M]: what is enough where scores are without end."""
    return inflation(*settings, Fraction(10**6)).value


@pytest.mark.parametrize("target", ["sizes", "paper"])
def test_expected_maximum_alone_is_not_enough_with_few_scores(target):
    """All scores above every pivot: what is accepted misses all, and noise often exceeds the mean of its maximum."""
    search, settings = search_of(TENTH, 16, 1, Fraction(1), Fraction(1)), (TENTH, 16, 1, Fraction(1), Fraction(1))
    table = [[15, 15]]
    assert search.coverage(table, target, expected_maximum(settings)) < 0.8
    scores = 1 + (target == "paper")
    assert search.coverage(table, target, inflation(*settings, TENTH * scores).value) >= 0.9


def test_without_slack_the_swap_rank_misses_too_often():
    """Hardly any noise, ten scores of which one is high: D = 0 at the pivot, and the slack of 1 is what was missing."""
    settings = (TENTH, 2, 1, Fraction(20), Fraction(1))
    extra = inflation(*settings, TENTH * 10).value
    assert extra <= TENTH
    table = [[0] * 9 + [1] * 2]
    assert Search(*settings).coverage(table, "sizes", Fraction(0), slack=0) < 0.9
    assert Search(*settings).coverage(table, "sizes", extra) >= 0.9


def test_without_ghosts_of_all_devices_the_ghost_rank_misses_too_often():
    settings = (TENTH, 2, 1, Fraction(20), Fraction(1))
    table = [[0] * 10, [1], [1], [1]]
    assert Search(*settings).coverage(table, "paper", Fraction(0), slack=Fraction(9, 10)) < 0.9
    assert Search(*settings).coverage(table, "paper", inflation(*settings, TENTH).value) >= 0.9


def test_noise_of_more_shares_than_planned_misses_too_often():
    """Inflation for H = K, but H = K/6 was said to the devices: six times the noise, and nobody paid for it."""
    table = [[3, 3]]
    planned = inflation(TENTH, 4, 1, Fraction(1), Fraction(1), TENTH).value
    assert Search(TENTH, 4, 1, Fraction(1), Fraction(1)).coverage(table, "sizes", planned) >= 0.9
    assert Search(TENTH, 4, 1, Fraction(1), Fraction(6)).coverage(table, "sizes", planned) < 0.9
    paid = inflation(TENTH, 4, 1, Fraction(1), Fraction(6), TENTH).value
    assert Search(TENTH, 4, 1, Fraction(1), Fraction(6)).coverage(table, "sizes", paid) >= 0.9


@pytest.mark.parametrize("shape", [Fraction(1, 4), Fraction(3, 4), Fraction(5, 4)])
def test_less_noise_than_planned_keeps_coverage(shape):
    """Inflation for shape 4/3, less added."""
    alpha, cells, stages, epsilon, ratio = SEARCHES[0]
    search = search_of(alpha, cells, stages, epsilon, shape)
    for table in tables(np.random.default_rng(4), search.grid, 12):
        scores = sum(map(len, table)) - len(table)
        extra = inflation(alpha, cells, stages, epsilon, ratio, alpha * scores).value
        assert search.coverage(table, "sizes", extra) >= 1 - alpha - EDGE


# --- the number itself ------------------------------------------------------------------------------------------------


def brute(alpha, cells, stages, epsilon, shape, reach):
    """The law of M from every combination of noises: values, and the chance of each."""
    known = law(epsilon / stages, shape)
    side = np.arange(-reach, reach + 1)
    each = known.chances[known.reach + side]
    noises = np.stack([axis.ravel() for axis in np.meshgrid(*[side] * cells, indexing="ij")], axis=1)
    chance = math.prod(np.meshgrid(*[each] * cells, indexing="ij")).ravel()
    walk = np.cumsum(noises, axis=1)
    a, q = alpha.numerator, alpha.denominator
    largest = q * walk[:, :-1].max(axis=1) - (q - a) * walk[:, -1]
    low = int(largest.min())
    one = np.cumsum(np.bincount(largest - low, weights=chance))
    return (np.arange(len(one)) + low) / q, np.diff(one**stages, prepend=0.0)


@pytest.mark.parametrize("least", [Fraction(1, 20), Fraction(1), Fraction(30)])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(("alpha", "cells", "epsilon"), [(TENTH, 3, 2), (Fraction(2, 7), 2, 1), (Fraction(3, 5), 4, 4)])
def test_the_maximum_is_that_of_all_noise(alpha, cells, epsilon, stages, least):
    """E min(A, I - M) >= 0 at I, and not at the next smaller one."""
    reach = min(60, math.ceil(30 * stages / epsilon)) if cells < 4 else 17 * stages // 2
    values, chance = brute(alpha, cells, stages, Fraction(epsilon), Fraction(4, 3), reach)
    found = inflation(alpha, cells, stages, Fraction(epsilon), Fraction(4, 3), least)
    assert found.how == "maximum"

    def spare(extra):
        return float(chance @ np.minimum(float(least), float(extra) - values))

    step = Fraction(1, alpha.denominator)
    assert spare(found.value) >= -1e-6
    assert spare(found.value - step) < 1e-4 * min(1, least) + 1e-6


@pytest.mark.parametrize(("cells", "stages", "epsilon", "least"), [(8, 2, 2, 2), (8, 2, 2, 20), (4, 3, 3, 5)])
def test_no_climb_over_stairs_of_several_stages_gains_too_much(cells, stages, epsilon, least):
    """Exact gains over the whole grid: never above A with what is asked for; above it with a quarter of that."""
    search = Search(TENTH, cells, stages, Fraction(epsilon), Fraction(20, 19))
    asked = float(inflation(TENTH, cells, stages, epsilon, Fraction(20, 19), Fraction(least)).value)
    rng = np.random.default_rng(6)

    def climb(c):
        best, at = 0.0, np.linspace(6, -3, search.grid - 1) / epsilon
        for step in range(200):
            moved = at.copy()
            start, end = sorted(rng.integers(0, search.grid, 2))
            moved[start : end if step % 2 else None] += rng.normal(0, 2 / epsilon)
            tenths = np.maximum(np.minimum.accumulate(np.round(10 * moved)), math.ceil(10 * c))
            chance = search.answers([Fraction(-int(t), 10) for t in tenths] + [0], 0)[:-1]
            value = float(chance @ (tenths / 10 - c))
            if value > best:
                best, at = value, tenths / 10
        return best

    assert climb(asked - least) <= least
    assert climb(asked / 4 - least) > least


@pytest.mark.parametrize("least", [TENTH, Fraction(2), Fraction(20)])
@pytest.mark.parametrize("stages", [1, 2])
def test_the_sharper_proof_asks_for_less(stages, least):
    found = inflation(TENTH, 8, stages, Fraction(2), Fraction(20, 19), least)
    closed = module._closed(TENTH, Noise(Fraction(2) / stages, Fraction(20, 19), 8, stages), least)
    assert found.how == "maximum"
    assert 0 <= found.value < closed


def test_many_cells_are_bounded_in_closed_form():
    found = inflation(TENTH, 1000, 1, Fraction(1), Fraction(1), Fraction(20))
    assert found.how == "closed"
    assert found.value > inflation(TENTH, 64, 1, Fraction(1), Fraction(1), Fraction(20)).value


def test_a_coarse_lattice_only_asks_for_more(monkeypatch):
    settings = (TENTH, 8, 2, Fraction(1), Fraction(20, 19), Fraction(5))
    fine = inflation(*settings).value
    inflation.cache_clear()
    monkeypatch.setattr(module, "POINTS", 30)
    coarse = inflation(*settings).value
    inflation.cache_clear()
    assert fine < coarse < fine * Fraction(11, 10)


def test_more_scores_or_privacy_spent_ask_for_less():
    def asked(epsilon, least):
        return inflation(TENTH, 6, 1, epsilon, Fraction(1), least).value

    rows = [[asked(epsilon, least) for least in (TENTH, Fraction(1), Fraction(10))] for epsilon in (1, 2, 4)]
    assert all(row == sorted(row, reverse=True) for row in rows)
    assert all(list(column) == sorted(column, reverse=True) for column in zip(*rows, strict=True))
    assert len({value for row in rows for value in row}) > 6


def test_small_epsilons_are_served():
    found = inflation(TENTH, 8, 2, 0.05, Fraction(20, 19), Fraction(200))
    assert found.how == "maximum"
    ratio = found.value / inflation(TENTH, 8, 2, 0.5, Fraction(20, 19), Fraction(20)).value
    assert float(ratio) == pytest.approx(10, rel=0.03)  # noise is ten times as wide, and so is everything


@pytest.mark.parametrize(
    "wrong",
    [{"cells": 1}, {"stages": 0}, {"alpha": Fraction(1)}, {"least": Fraction(0)}, {"ratio": Fraction(0)}],
)
def test_what_makes_no_sense_is_refused(wrong):
    right = {"alpha": TENTH, "cells": 4, "stages": 1, "epsilon": 1.0, "ratio": Fraction(1), "least": Fraction(1)}
    with pytest.raises(ValueError, match="got"):
        inflation(**(right | wrong))
