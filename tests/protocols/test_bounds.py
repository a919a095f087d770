"""Bounds against slow twins: exact fractions, grids and every choice. A bound must hold, and must not be idle."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh.protocols.bounds.histogram import (
    UNIT,
    Mixing,
    arithmetic_epsilon,
    chebyshev_epsilon,
    cumulative_epsilon,
    paper_epsilon,
    radius,
    rounding_gain,
    row_epsilon,
)
from conformesh.protocols.bounds.quantile import (
    Rate,
    admm_rate,
    bias_epsilon,
    convergence_epsilon,
    largest_distance,
    optimal_distance,
    regulariser_reach,
)
from conformesh.protocols.bounds.quantile_of_quantiles import best_ranks, expected_coverage
from conformesh.protocols.wire import Wire

SIZES = np.array([3, 1, 4, 0, 5, 9, 2])
RATES = st.floats(0.0, 0.999, allow_subnormal=False)


def norm(values):
    return math.sqrt(math.fsum(value * value for value in values))


def box_radius(sizes):
    """(||c - 1|| + ||c||) / 2 with c in exact fractions."""
    c = [Fraction(int(n) * len(sizes), int(sizes.sum())) for n in sizes]
    return (norm([float(x - 1) for x in c]) + norm([float(x) for x in c])) / 2


# --- the histogram ----------------------------------------------------------------------------------------------------


def test_radius_by_hand():
    assert radius(SIZES) == pytest.approx(box_radius(SIZES), rel=1e-14)
    assert radius(np.array([5, 5])) == pytest.approx(math.sqrt(2) / 2)  # c = 1: half the diagonal of a unit square


@given(RATES, st.integers(0, 400))
def test_theorem_a_rate_that_is_off_in_its_last_digits_does_not_break_the_bound(rate, rounds):
    """Eigenvalues are known to about 1e-15, the largest being 1: the bound holds for the true rate, and is tight."""
    true = Fraction(rate) + Fraction(1, 10**15)
    needed = float(true**rounds) * box_radius(SIZES)
    bound = cumulative_epsilon(SIZES, rate, rounds)
    assert bound >= needed * (1 - 1e-12)
    assert bound <= float((Fraction(rate) + Fraction(2, 10**13)) ** rounds) * box_radius(SIZES) * (1 + 1e-12)


def test_no_rounds_shrink_nothing():
    for rate in (0.0, 0.3, 1.0):
        assert cumulative_epsilon(SIZES, rate, 0) == radius(SIZES)
        assert chebyshev_epsilon(SIZES, rate, 0) == radius(SIZES)
    assert paper_epsilon(np.array([1, 1]), 2, 1.0, 1.0, 0) == pytest.approx(2 * math.sqrt(8) / 2 * math.sqrt(2))


def test_a_rate_below_zero_by_round_off_counts_as_zero():
    assert cumulative_epsilon(SIZES, -1e-17, 1) == pytest.approx(1e-13 * radius(SIZES), rel=1e-3, abs=0)
    assert chebyshev_epsilon(SIZES, -1e-17, 3) == 0.0


@given(st.floats(0.01, 0.999), st.integers(1, 60))
def test_theorem_chebyshev_bound_is_the_polynomial(rate, rounds):
    """1 / T_T(1 / rate), the polynomial by its recursion in exact fractions."""
    x = 1 / Fraction(rate)
    before, now = Fraction(1), x
    for _ in range(rounds - 1):
        before, now = now, 2 * x * now - before
    needed = float(1 / now) * box_radius(SIZES)
    assert needed * (1 - 1e-12) <= chebyshev_epsilon(SIZES, rate, rounds) <= needed * (1 + 1e-6) + 1e-300


def test_chebyshev_without_a_gap_promises_nothing():
    assert chebyshev_epsilon(SIZES, 1.0, 50) == chebyshev_epsilon(SIZES, 1.5, 50) == radius(SIZES)
    assert 0 < chebyshev_epsilon(SIZES, 0.5, 10**6) < 1e-300  # not an overflow of cosh


def test_paper_epsilon_by_hand():
    sizes = [int(n) for n in SIZES]
    spread = math.sqrt(max(sizes) ** 2 + sum(n * n for n in sizes) / 7)
    expected = 7 * math.sqrt(2 * 7 * 10) * (1 - 0.5 * 0.3) ** 4 / sum(sizes) * spread
    assert paper_epsilon(SIZES, 10, 0.3, 0.5, 4) == pytest.approx(expected, rel=1e-11)


def test_the_row_bound_leaves_room_for_its_own_matrix():
    c = SIZES * (7 / SIZES.sum())
    rest = np.zeros((7, 7))
    assert row_epsilon(SIZES, rest) == pytest.approx(1e-13 * norm(c), rel=1e-12, abs=0)
    rest[2] = [0.5, -1, 0.25, 3, 0, -0.5, 1]
    up = 0.5 * c[0] + 0.25 * c[2] + 3 * c[3] + c[6]
    down = c[1] + 0.5 * c[5]
    assert row_epsilon(SIZES, rest) == pytest.approx(max(up, down), abs=2e-12)
    assert row_epsilon(SIZES, -rest) == row_epsilon(SIZES, rest) > max(up, down)


@pytest.mark.parametrize(
    ("low", "second"), [(-0.9, 0.95), (-0.2, 0.5), (0.1, 0.99), (-0.99, -0.3), (0.0, 0.0), (-0.5, 0.2)]
)
def test_the_gain_is_the_largest_over_the_eigenvalues_and_no_more(low, second):
    """The interval is [low, second] and, where second is positive, everything from 0 to it."""
    grid = np.union1d(np.linspace(low, second, 2001), np.linspace(0, max(second, 0.0), 2001))
    for rounds in (0, 1, 2, 7, 40):
        gain = rounding_gain(Mixing(second, low, 4, 1.0), rounds)
        largest = sum(float((np.abs(grid) ** s * (1 - grid)).max()) for s in range(rounds))
        assert largest * (1 - 1e-12) <= gain <= largest * (1 + 1e-5) + 1e-12


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("rounds", [0, 1, 30])
def test_finite_precision_by_hand(bits, rounds):
    """Y = (||c|| + G sqrt(K) v) / (1 - G u - T g), epsilon = G (u Y + sqrt(K) v) + (T + 2) g Y."""
    mixing, wire, k = Mixing(0.6, -0.4, 3, 0.75), Wire(bits), 7
    u = {16: Fraction(1, 2**11), 32: Fraction(1, 2**24), 64: Fraction(0)}[bits]
    v = {16: Fraction(1, 2**25), 32: Fraction(1, 2**150), 64: Fraction(0)}[bits]
    g = (3 + 6) * (1 + 2 * Fraction(3, 4)) * Fraction(1, 2**53)
    gain = Fraction(rounding_gain(mixing, rounds)) if u else Fraction(0)
    root, start = Fraction(math.sqrt(k)), Fraction(norm(SIZES * (k / SIZES.sum())))
    size = (start + gain * root * v) / (1 - gain * u - rounds * g)
    expected = gain * (u * size + root * v) + (rounds + 2) * g * size
    assert arithmetic_epsilon(SIZES, mixing, rounds, wire) == pytest.approx(float(expected), rel=1e-9, abs=0)
    assert float(np.finfo(np.float64).eps) / 2 == UNIT


def test_exhausted_precision_certifies_nothing():
    slow = Mixing(0.0, -0.999999, 3, 1.0)  # errors of 16 bits add up to more than there is
    assert arithmetic_epsilon(SIZES, slow, 10**4, Wire(16)) == math.inf
    assert math.isfinite(arithmetic_epsilon(SIZES, slow, 500, Wire(16)))
    assert math.isfinite(arithmetic_epsilon(SIZES, slow, 10**4, Wire(64)))
    assert arithmetic_epsilon(SIZES, slow, 10**15, Wire(64)) == math.inf


def test_the_rate_is_the_larger_magnitude():
    assert Mixing(0.5, -0.75, 1, 1.0).rate == 0.75
    assert Mixing(0.5, -0.25, 1, 1.0).rate == 0.5
    assert Mixing(-0.5, -0.75, 1, 1.0).rate == 0.75


# --- quantile regression ----------------------------------------------------------------------------------------------


class Eigenvalues:
    """What `admm_rate` reads of a spectrum: sigma_max(M+)^2 and sigma_min(M-)^2."""

    signless, smallest = 7.0, 0.5


@pytest.mark.parametrize(("smoothness", "mu"), [(500.0, 2.0), (3.0, 2.0), (10_000.0, 0.01)])
def test_theorem_c_and_b_make_delta_as_large_as_it_gets(smoothness, mu):
    """Delta of Eq. (18), written out; no c and b on a grid around the chosen ones gives more."""
    top, bottom = 7.0, 0.5

    def delta(c, b):
        return min((b - 1) * bottom / (b * top), mu / (c / 4 * top + b / c * smoothness**2 / bottom))

    best = admm_rate(Eigenvalues, smoothness, mu)
    assert best.delta == pytest.approx(delta(best.c, best.b), rel=1e-12)
    for c in best.c * np.geomspace(0.5, 2, 41):
        for b in 1 + (best.b - 1) * np.geomspace(0.5, 2, 41):
            assert delta(c, b) <= best.delta * (1 + 1e-9)


def test_given_c_and_b_are_taken():
    rate = admm_rate(Eigenvalues, 5.0, 2.0, c=3.0, b=4.0)
    assert (rate.c, rate.b) == (3.0, 4.0)
    assert rate.delta == pytest.approx(min(3 * 0.5 / (4 * 7), 2 / (0.75 * 7 + 4 / 3 * 25 / 0.5)))
    barely = admm_rate(Eigenvalues, 5.0, 2.0, c=0.5, b=1.05)  # so small a b that the first term decides
    assert barely.delta == pytest.approx(0.05 * 0.5 / (1.05 * 7))
    wrong = [("c", 0.0, "c must be larger than 0"), ("b", 1.0, "b must be larger than 1"), ("c", math.nan, "c must")]
    for name, value, words in wrong:
        with pytest.raises(ValueError, match=f"^{words}"):
            admm_rate(Eigenvalues, 5.0, 2.0, **{name: value})


def test_convergence_begins_with_the_distance_and_shrinks_by_delta():
    rate = Rate(1.0, 2.0, 0.21)
    assert convergence_epsilon(rate, 4, 2.0, 0, 8.0) == math.inf
    assert convergence_epsilon(rate, 4, 2.0, 1, 8.0) == pytest.approx(1.0)
    assert convergence_epsilon(rate, 4, 2.0, 3, 8.0) == pytest.approx(1 / 1.21)


def test_distances_and_bias_by_hand():
    assert optimal_distance(2.0, 5, 0.5, 3.0) == pytest.approx(2 * 5 * 0.25 + 1.5)
    sizes = np.array([4, 6])
    reach = regulariser_reach(sizes, 0.7, 2.0)
    assert reach == pytest.approx(10 * 0.7 / 4)
    assert regulariser_reach(sizes, 0.2, 2.0) == pytest.approx(10 * 0.8 / 4)
    gradient = [4 * 0.7 + 2 * reach, 6 * 0.7 + 2 * reach]
    expected = 3.0 * 5 * (0.5 + reach) ** 2 + (gradient[0] ** 2 + gradient[1] ** 2) / (3.0 * 0.5)
    assert largest_distance(3.0, 5, Eigenvalues, sizes, 0.7, 2.0, 0.5) == pytest.approx(expected)
    assert bias_epsilon(100, 2.0, 50.0, 0.1, 4) == pytest.approx(math.sqrt(200 * math.log(2) / 400 + 0.01))
    assert bias_epsilon(100, 2.0, 50.0, 0.1) == pytest.approx(math.sqrt(200 * math.log(2) / 100 + 0.01))


# --- a quantile of quantiles ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1,), (9,), (3, 8), (5, 5, 2), (4, 0, 7, 1)])
@pytest.mark.parametrize("target", [0.5, 0.8, 0.9])
def test_best_ranks_are_the_best_of_every_level(sizes, target):
    """Every level at which some device's own rank changes, every rank of the server, by exact ceilings."""
    kept = [n for n in sizes if n]
    choices = {}
    for level in {Fraction(i, n + 1) for n in kept for i in range(1, n + 1)}:
        local = tuple(min(max(math.ceil(level * (n + 1)), 1), n) for n in kept)
        for server, covered in enumerate(expected_coverage(np.array(local), np.array(kept)), start=1):
            choices[local, server] = float(covered)
    enough = {choice: covered for choice, covered in choices.items() if covered >= target}
    found = best_ranks(np.array(sizes), target)
    if not enough:
        assert found is None
        return
    assert found.coverage == min(enough.values())
    assert enough[found.local, found.server] == found.coverage


def test_nobody_with_scores_has_no_ranks():
    assert best_ranks(np.array([0, 0]), 0.5) is None
    assert best_ranks(np.array([], dtype=np.int64), 0.5) is None


def test_with_many_devices_the_levels_nearest_to_the_target_are_tried(monkeypatch):
    """Work for four levels of 31: those around 0.9, which still keep the promise, and nearly as well as all of them."""
    module = "conformesh.protocols.bounds.quantile_of_quantiles"
    tried = []

    def counting(local, sizes):
        tried.append(int(local[0]))
        return expected_coverage(local, sizes)

    monkeypatch.setattr(f"{module}.expected_coverage", counting)
    sizes = np.full(20, 30)
    every = best_ranks(sizes, 0.9)
    assert tried == [*range(1, 31)]
    tried.clear()
    monkeypatch.setattr(f"{module}.WORK", 96 * 20**2 * 5)
    few = best_ranks(sizes, 0.9)
    assert tried == [26, 27, 28, 29, 30]
    assert 0.9 <= every.coverage <= few.coverage < 0.91
    tried.clear()
    monkeypatch.setattr(f"{module}.WORK", 1.0)
    assert best_ranks(sizes, 0.9).coverage >= 0.9
    assert len(tried) == 4  # never fewer
