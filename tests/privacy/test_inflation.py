"""What noise costs: theorem A on fixed items without chance, its lemmas for every shape, and variants that fail."""

import math
from fractions import Fraction

import numpy as np
import pytest

from conformesh.privacy.inflation import SHARPNESS, Inflation, noise_inflation, omega
from conformesh.privacy.noise import noise_law
from tests.privacy.exact import Noise, Rule, above_of, answers, expected_above, first_accepted, noise_table, risk

TENTH = Fraction(1, 10)
EDGE = 1e-7  # round-off and what is cut off from exact chances, as a part of alpha
SHAPES = [Fraction(1, 19), Fraction(1, 2), Fraction(1), Fraction(20, 19), Fraction(3, 2), Fraction(4), Fraction(12)]


def split(epsilon):
    """Epsilon of the cells and of the number, as a release has them."""
    return Fraction(9, 10) * epsilon, Fraction(1, 10) * epsilon


def tails(epsilon, shape):
    """P(X >= x) and E(X - x)^+ for x = 0, 1, .."""
    known = noise_law(epsilon, shape)
    tail = np.cumsum(known.chances[::-1])[::-1][known.reach :]
    return tail, np.append(np.cumsum(tail[::-1])[::-1][1:], 0.0)


# --- theorem A --------------------------------------------------------------------------------------------------------


def stairs(rng, n, cells, near):
    """Items in cells, such that above(p) stays near `near` for many pivots, or anything at all."""
    kind = rng.integers(4)
    if kind == 0:
        return tuple(rng.multinomial(n, rng.dirichlet(np.ones(cells))).tolist())
    if kind == 1:  # all above all pivots
        return (*[0] * (cells - 1), n)
    above = min(max(int(near + rng.integers(-2, 3)), 0), n)
    if kind == 2:  # `near` above, the rest below
        return (n - above, *[0] * (cells - 2), above)
    return (n - above, *rng.multinomial(above, np.ones(cells - 1) / (cells - 1)).tolist())


def check_theorem_a(rng, alpha, epsilon, most_shape, n, cells):
    """Compare E D(answer) with the bound of the theorem, with noise of any shapes; return E above / (alpha n)."""
    cell, number = split(epsilon)
    cost = noise_inflation(alpha, cell, number, most_shape)
    of = [most_shape * Fraction(m, 4) for m in range(5)]
    shapes = tuple(of[i] for i in rng.integers(0, 5, cells - 1))
    noise = Noise(cell, shapes, number, of[rng.integers(0, 5)] if rng.random() < 0.7 else most_shape)
    counts = stairs(rng, n, cells, float(alpha * n - cost.value))
    above = expected_above(counts, Rule(alpha, cost.value, cost.number_needed), noise)
    x, chance = noise_table(number, noise.number_shape)
    noisy = n + x
    low = noisy < cost.number_needed
    bound = float(alpha) * float(chance[low] @ noisy[low])  # I is omega: the other term is 0
    assert float(alpha) * n - above >= bound - EDGE * n, (counts, noise)
    assert above <= float(alpha) * n * (1 + EDGE), (counts, noise)
    return above / (float(alpha) * n)


@pytest.mark.parametrize("epsilon", [Fraction(1), Fraction(3)])
@pytest.mark.parametrize("alpha", [TENTH, Fraction(2, 7), Fraction(3, 5)])
def test_theorem_a_on_fixed_items(alpha, epsilon):
    """E D(answer) >= alpha E[n~; n~ < n_0], and E above(answer) <= alpha n: every noise, by its exact chance."""
    rng = np.random.default_rng(1)
    numbers = [1, 2, 3, 5, 8, 13, 17, 20, 30, 50, 80, 150]
    worst = max(
        check_theorem_a(rng, alpha, epsilon, shape, n, cells)
        for n in numbers
        for shape in (Fraction(1), Fraction(5, 4), Fraction(4))
        for cells in (2, 4, 6)
    )
    assert worst > 0.5  # not because nothing is ever accepted


def test_theorem_a_withstands_a_climb():
    """Hostile stairs, moved item by item to where more is missed: never above alpha n, and close for many items."""
    rng = np.random.default_rng(2)
    cell, number = split(Fraction(1))
    cost = noise_inflation(TENTH, cell, number, Fraction(1))
    noise, rule = Noise(cell, (Fraction(1),) * 6, number), Rule(TENTH, cost.value, cost.number_needed)
    reached = []
    for n in (1, 10, 18, 25, 40, 70, 150, 400):
        counts = [0] * 6 + [n]
        best = expected_above(tuple(counts), rule, noise)
        for _ in range(60):
            moved = list(counts)
            start, end = rng.integers(0, 7, 2)
            many = int(rng.integers(0, moved[start] + 1))
            moved[start] -= many
            moved[end] += many
            value = expected_above(tuple(moved), rule, noise)
            counts, best = (moved, value) if value >= best else (counts, best)
        reached.append(10 * best / n)
    assert max(reached) <= 1 + EDGE
    assert reached[-1] > 0.8


@pytest.mark.parametrize("alpha", [Fraction(1, 100), TENTH, Fraction(3, 10), Fraction(1, 2), Fraction(9, 10)])
@pytest.mark.parametrize("epsilon", [Fraction(1), TENTH])
def test_theorem_a_number_needed_serves_every_number_and_shape(alpha, epsilon):
    """For each n: P(n~ >= n_0) <= alpha or E[n~; n~ < n_0] >= 0, also with less noise, and alpha n_0 >= I."""
    cell, number = split(epsilon)
    most = Fraction(5, 4)
    cost = noise_inflation(alpha, cell, number, most)
    assert alpha * cost.number_needed >= cost.value
    n0 = cost.number_needed
    for shape in (most * Fraction(m, 10) for m in range(1, 11)):
        x, chance = noise_table(number, shape)
        for n in {*range(1, min(n0, 60)), *range(1, 3 * n0, max(n0 // 25, 1))}:
            noisy = n + x
            is_enough = noisy >= n0
            rare = chance[is_enough].sum() <= float(alpha) * (1 + EDGE)
            assert rare or chance[~is_enough] @ noisy[~is_enough] >= -EDGE, (shape, n)


def test_theorem_a_number_needed_is_the_smallest_that_the_proof_allows():
    """One less fails: alpha n_0 < I, or n_0 < omega', or some n has neither P(n~ >= n_0) <= alpha nor a mean >= 0."""
    for alpha, epsilon in [(Fraction(1, 100), 1), (TENTH, 1), (Fraction(3, 10), 1), (TENTH, Fraction(1, 5))]:
        cell, number = split(Fraction(epsilon))
        cost = noise_inflation(alpha, cell, number, Fraction(1))
        less = cost.number_needed - 1
        tail, excess = tails(number, Fraction(1))
        fails = [
            n
            for n in range(1, less)
            if tail[less - n] > alpha and less * tail[less - n] + excess[less - n] > n  # E[n~; n~ >= n_0] > n
        ]
        assert alpha * less < cost.value or less < omega(number, Fraction(1)) or fails


def test_price_and_number_needed_never_grow_with_alpha():
    """So a larger alpha never has a larger threshold."""
    alphas = [Fraction(i, 60) for i in range(1, 60)]
    for epsilon, shape in [
        (1, Fraction(1)),
        (Fraction(1, 2), Fraction(5, 4)),
        (TENTH, Fraction(20, 19)),
        (3, Fraction(8)),
    ]:
        found = [noise_inflation(alpha, *split(Fraction(epsilon)), shape) for alpha in alphas]
        assert {one.value for one in found} == {found[0].value}
        numbers = [one.number_needed for one in found]
        assert numbers == sorted(numbers, reverse=True)


def test_figures_of_epsilon_one():
    """I = 1.7 at epsilon 1 and alpha .1.

    A proof that averages over n~ first needs I >= omega + E(I - alpha n - alpha X')^+: with I one part in a hundred
    above omega that is n >= 51, and n_0 = 67 such that P(50 + X' >= n_0) <= alpha. Conditioned on n~ the margin is not
    needed, and n_0 = 20.
    """
    cell, number = split(Fraction(1))
    found = noise_inflation(TENTH, cell, number, Fraction(1))
    assert found == Inflation(Fraction(1686, 1000), 20)
    value = 1.01 / (1 - math.exp(-0.9))
    x, chance = noise_table(number, Fraction(1))
    margin = value - value / 1.01
    least = next(n for n in range(1, 200) if chance @ np.maximum(value - 0.1 * (n + x), 0) <= margin)
    assert least == 51
    assert next(n for n in range(least, 200) if chance[least - 1 + x >= n].sum() <= 0.1) == 67


def test_a_number_needed_for_shape_one_does_not_serve_more_noise():
    """At shape 1.25 P(50 + X' >= 68) = .108, above alpha."""
    x, chance = noise_table(TENTH, Fraction(5, 4))
    assert chance[50 + x >= 68].sum() == pytest.approx(0.108, abs=5e-4)
    assert noise_table(TENTH, Fraction(1))[1][50 + noise_table(TENTH, Fraction(1))[0] >= 68].sum() < 0.1


# --- lemmas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [Fraction(1, 20), Fraction(9, 10), Fraction(3), Fraction(12)])
def test_omega_bounds_every_shape(epsilon):
    """Against E[X - x | X > x] at every x and shapes m/24 up to R; and at most SHARP and .001 above it."""
    largest = 0.0
    for m in range(1, 24 * 5 + 1):
        shape = Fraction(m, 24)
        tail, excess = tails(epsilon, shape)
        known = np.flatnonzero(tail > 1e-9)[1:]  # x + 1 where P(X > x) is more than round-off
        lives = (excess[known - 1]) / tail[known]
        largest = max(largest, float(lives.max()))
        if m % 12 == 0:
            bound = float(omega(epsilon, shape))
            assert largest <= bound * (1 + EDGE)
            assert bound <= max(largest, 1 / (1 - math.exp(-epsilon))) * SHARPNESS * (1 + EDGE) + 0.001


@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(9, 10)])
def test_lemma_residual_life_is_longest_at_zero_from_shape_one_on(epsilon):
    """Log-concave noise: E[X - x | X > x] falls with x. Below shape 1 it is not, and grows up to 1/(1 - p)."""
    for shape in SHAPES:
        tail, excess = tails(epsilon, shape)
        known = np.flatnonzero(tail > 1e-8)[1:]
        lives = excess[known - 1] / tail[known]
        sign = 1 if shape >= 1 else -1
        assert (sign * np.diff(lives) <= 1e-6 * lives[:-1]).all()
        assert shape >= 1 or lives.max() <= 1 / (1 - math.exp(-epsilon)) * (1 + EDGE)


@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(9, 10), Fraction(4)])
def test_lemma_less_noise_has_smaller_tails_and_excess(epsilon):
    """P(X >= x) for x >= 1 (Anderson) and E(X - x)^+ (convexity) grow with the shape, so R is the worst for both."""
    before = None
    for shape in SHAPES:
        now = [part[1:200] for part in tails(epsilon, shape)]
        if before is not None:
            for less, more in zip(before, now, strict=True):
                size = min(len(less), len(more))
                assert (less[:size] <= more[:size] * (1 + 1e-9) + 1e-15).all()
        before = now


def test_lemma_noise_is_symmetric_and_falls_on_either_side():
    for epsilon in (Fraction(1, 10), Fraction(2)):
        for shape in SHAPES:
            known = noise_law(epsilon, shape)
            assert np.allclose(known.chances, known.chances[::-1], rtol=1e-9, atol=1e-18)
            side = known.chances[known.reach :]
            side = side[side > 1e-15]
            assert (np.diff(side) <= 1e-9 * side[:-1]).all()
            if shape <= 1:  # each at most p times the one before it
                assert (side[1:] <= math.exp(-epsilon) * side[:-1] * (1 + 1e-9)).all()


# --- variants that fail -----------------------------------------------------------------------------------------------


def ratio(table, rule, noise):
    """Risk of a table of one device, as a part of alpha."""
    return risk([table], [Fraction(1)], rule, noise) / float(rule.alpha)


def test_without_slack_and_price_is_refuted():
    """21 scores, five pivots, epsilon 1: 1.15 alpha. With slack and I the same table is covered."""
    cell, number = split(Fraction(1))
    cost = noise_inflation(TENTH, cell, number, Fraction(1))
    noise, table = Noise(cell, (Fraction(1),) * 5, number), (13, 3, 2, 1, 2, 0)
    assert ratio(table, Rule(TENTH, Fraction(0)), noise) > 1.13
    assert ratio(table, Rule(TENTH, 1 + cost.value, cost.number_needed), noise) <= 1


def test_without_number_needed_is_refuted():
    """One score above all pivots, epsilon .1: n~ alone makes up for everything, 1.9 alpha."""
    cell, number = split(TENTH)
    cost = noise_inflation(TENTH, cell, number, Fraction(1))
    noise, table = Noise(cell, (Fraction(1),) * 3, number), (0, 0, 0, 2)
    assert ratio(table, Rule(TENTH, 1 + cost.value), noise) > 1.8
    assert ratio(table, Rule(TENTH, 1 + cost.value, cost.number_needed), noise) <= 1


@pytest.mark.parametrize("shape", [Fraction(6), Fraction(20)])
def test_price_of_less_noise_than_there_is_is_refuted(shape):
    """Six times as many shares as planned, or a window of six whose shapes were not added up: 1.5 alpha."""
    cell, number = split(Fraction(1))
    noise, table = Noise(cell, (shape,), number, shape), (0, 2)
    planned, right = (noise_inflation(TENTH, cell, number, r) for r in (Fraction(1), shape))
    assert ratio(table, Rule(TENTH, 1 + planned.value, planned.number_needed), noise) > 1.5
    assert ratio(table, Rule(TENTH, 1 + right.value, right.number_needed), noise) <= 1


def test_first_accepted_pivot_is_refuted():
    """32 pivots on stairs: the first accepted one misses 1.14 alpha n, the one after the last rejected one does not."""
    epsilon, n = Fraction(1, 4), 300
    counts = (n - 74, *[2] * 31, 12)
    rule, noise = Rule(TENTH, omega(epsilon, Fraction(1)), 0, n), Noise(epsilon, (Fraction(1),) * 32)
    above = np.array(above_of(counts))
    assert first_accepted(tuple(above), rule, noise)[:-1] @ above > 1.1 * 0.1 * n
    assert expected_above(counts, rule, noise) <= 0.1 * n


def test_pivots_before_and_after_agree_with_every_noise():
    """The walk against all combinations of noise of three cells and n, each weighed."""
    noise = Noise(Fraction(3), (Fraction(1), Fraction(1, 2), Fraction(2)), Fraction(2), Fraction(3, 2))
    rule, above, n = Rule(Fraction(1, 4), Fraction(3, 2), 4), (5, 3, 1), 9
    sides = [noise_table(noise.cell_epsilon, shape) for shape in noise.cell_shapes]
    sides = [(side[abs(side) <= 4], each[abs(side) <= 4]) for side, each in sides]
    number, weights = noise_table(noise.number_epsilon, noise.number_shape)
    found = np.zeros(4)
    for x, chance in zip(number.tolist(), weights.tolist(), strict=True):
        for a, p in zip(*sides[0], strict=True):
            for b, q in zip(*sides[1], strict=True):
                for c, r in zip(*sides[2], strict=True):
                    noisy = [above[0] + a + b + c, above[1] + b + c, above[2] + c]
                    rejected = [j for j in range(3) if rule.alpha * (n + x) - int(noisy[j]) < rule.need]
                    answer = 3 if n + x < rule.number_needed else max(rejected, default=-1) + 1
                    found[answer] += chance * p * q * r
    walked, lost = answers(above, n, rule, noise)
    assert lost < 1e-9
    np.testing.assert_allclose(walked, found, atol=5 * (1 - found.sum()))


# --- arithmetic -------------------------------------------------------------------------------------------------------


def test_omega_of_shapes_up_to_one_is_the_geometric_mean_life():
    """1/(1 - p), rounded up to a thousandth."""
    for epsilon in (Fraction(1, 1000), TENTH, Fraction(9, 10), Fraction(50)):
        exact = 1 / -math.expm1(-float(epsilon))
        for shape in (Fraction(1, 5), Fraction(1)):
            assert exact < omega(epsilon, shape) <= exact + 0.00101 + 2e-9 * exact


PINNED = [
    (1.711, 35),
    (3.82, 77),
    (2.823, 57),
    (7.467, 150),
    (11.99, 254),
    (36.296, 726),
    (1.711, 20),
    (3.82, 61),
    (2.823, 40),
    (7.467, 120),
    (11.99, 196),
    (36.296, 597),
]


def test_price_is_the_same_on_every_machine():
    """I by sequential sums and products of a correctly rounded p; n_0 rounds by far more than machines differ."""
    found = [
        noise_inflation(alpha, *split(Fraction(epsilon)), shape)
        for alpha in (Fraction(1, 20), TENTH)
        for epsilon in (1, Fraction(1, 2), TENTH)
        for shape in (Fraction(20, 19), Fraction(160, 19))
    ]
    assert [(float(one.value), one.number_needed) for one in found] == PINNED


@pytest.mark.parametrize("alpha", [Fraction(0), Fraction(1), Fraction(-1, 2), Fraction(1, 10**10)])
def test_a_level_out_of_range_is_refused(alpha):
    with pytest.raises(ValueError, match=r"alpha must be below 1 and at least 1e-09"):
        noise_inflation(alpha, Fraction(1), None, Fraction(1))


def test_a_shape_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"shape of noise must be positive, got 0"):
        omega(Fraction(1), Fraction(0))
