"""The error terms of certificates against exact rational arithmetic: a wrong sign or size of any term shows."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conformesh import Network
from conformesh.graph.weights import WEIGHTS
from conformesh.protocols.averaging_schemes import AVERAGING_SCHEMES
from conformesh.protocols.block import Block
from conformesh.protocols.bounds import histogram, quantile
from conformesh.protocols.h_dcp import HDCP
from conformesh.protocols.wire_format import WireFormat

rates = st.floats(0.01, 0.999)
sizes_of = st.lists(st.integers(0, 60), min_size=2, max_size=12).filter(any).map(np.array)


def root(x: Fraction) -> Fraction:
    """A square root to 40 digits."""
    return Fraction(math.isqrt(x.numerator * 10**80 // x.denominator), 10**40)


def shares(sizes):
    """c_k = K n_k / n, exactly."""
    return [Fraction(len(sizes) * int(n), int(sizes.sum())) for n in sizes]


def norm(values):
    return root(sum(v * v for v in values))


@given(rates, st.integers(1, 400))
def test_a_rate_that_is_off_by_a_rounding_cannot_make_the_power_too_small(rate, rounds):
    """Eigenvalues are known to about 1e-15: the bound holds for a rate that much larger, and gives away little."""
    assume(rate**rounds > 1e-290)  # below, floats themselves lose digits, far under what precision adds
    found = Fraction(histogram.h_dcp_cumulative_epsilon(np.array([1, 1]), rate, rounds)) / Fraction(0.5 * math.sqrt(2))
    assert found * (1 + Fraction(1, 10**12)) >= (Fraction(rate) + Fraction(1, 10**15)) ** rounds
    assert found <= Fraction(rate) ** rounds * (1 + Fraction(3, 10**13) / Fraction(rate)) ** rounds * (
        1 + Fraction(1, 10**9)
    )


def test_no_round_shrinks_nothing():
    for epsilon in (histogram.h_dcp_cumulative_epsilon, histogram.h_dcp_chebyshev_epsilon):
        assert epsilon(np.array([1, 1]), 0.5, 0) == histogram.start_radius(np.array([1, 1])) == 0.5 * math.sqrt(2)
    assert histogram.h_dcp_chebyshev_epsilon(np.array([1, 1]), 1.0, 9) == 0.5 * math.sqrt(2)
    assert histogram.h_dcp_chebyshev_epsilon(np.array([1, 1]), 0.0, 9) == 0.0
    least = 0.5 * math.sqrt(2) / math.cosh(700)  # where cosh would soon overflow more rounds claim no more
    assert histogram.h_dcp_chebyshev_epsilon(np.array([1, 1]), 0.5, 10**6) == pytest.approx(least, rel=1e-9, abs=0.0)
    assert histogram.h_dcp_cumulative_epsilon(np.array([1, 1]), -0.1, 2) < 1e-25


@given(rates, st.integers(1, 60))
def test_chebyshev_shrinks_by_its_polynomial(rate, rounds):
    """1 / T_T(1 / rate) by the recurrence in fractions; never below it, and above it by the safety 1e-13 only."""
    x = 1 / Fraction(rate)
    before, now = Fraction(1), x
    for _ in range(rounds - 1):
        before, now = now, 2 * x * now - before
    found = histogram.h_dcp_chebyshev_epsilon(np.array([1, 1]), rate, rounds) / (0.5 * math.sqrt(2))
    assert found >= float(1 / now) * (1 - 1e-12)
    assert found <= float(1 / now) * (1 + 1e-9 + 4e-13 * rounds / (1 - rate) / rate)
    assert found > float(1 / now) or rounds * 1e-13 < 1e-11  # the safety is added, not taken away


@given(sizes_of)
def test_radius_is_the_half_diagonal_of_the_box(sizes):
    c = shares(sizes)
    assert histogram.start_radius(sizes) == pytest.approx(
        float((norm([v - 1 for v in c]) + norm(c)) / 2), rel=1e-13, abs=0.0
    )


@settings(max_examples=60)
@given(sizes_of, st.data())
def test_row_epsilon_is_the_worst_corner_and_its_safety(sizes, data):
    """Every corner of the box in fractions; the safety 1e-13 ||c|| comes on top."""
    K = min(len(sizes), 6)
    sizes = sizes[:K] + 1
    rest = (
        np.array(data.draw(st.lists(st.lists(st.integers(-8, 8), min_size=K, max_size=K), min_size=K, max_size=K))) / 8
    )
    c = shares(sizes)
    worst = max(
        abs(sum(Fraction(rest[k, j]) * c[j] for j in range(K) if corner >> j & 1))
        for k in range(K)
        for corner in range(2**K)
    )
    extra = Fraction(histogram.h_dcp_row_epsilon(sizes, rest)) - worst
    assert float(extra) == pytest.approx(1e-13 * float(norm(c)), abs=4e-15 * float(norm(c)) + 1e-15)


@given(st.floats(-0.95, 0.99), st.floats(0.0, 1.0), st.integers(0, 40))
def test_rounding_gain_is_the_largest_over_the_spectrum(second, down, rounds):
    """Against a fine grid of eigenvalues between the smallest and the second; the formula is never below it."""
    smallest = -0.99 + down * (second + 0.99)
    grid = np.linspace(smallest, second, 20_001)[:, None]
    s = np.arange(rounds)[None, :]
    slow = (np.abs(grid) ** s * (1 - grid)).max(axis=0).sum()
    found = histogram.rounding_gain(histogram.MixingRates(second, smallest, 4, 1.0), rounds)
    assert found >= slow * (1 - 1e-12)
    if smallest <= 0 <= second:  # else the peak s / (s + 1), cut at the second, may lie below the smallest
        assert found <= slow * (1 + 1e-6) + 1e-12


@given(sizes_of, st.integers(0, 300), st.sampled_from([16, 32, 64]), st.integers(1, 30), st.floats(0.0, 2.0))
def test_arithmetic_epsilon_is_the_printed_sum(sizes, rounds, bits, degree, strength):
    """Y = (||c|| + G sqrt(K) v) / (1 - G u - T g), epsilon = G (u Y + sqrt(K) v) + (T + 2) g Y, in fractions."""
    mixing, wire = histogram.MixingRates(0.9, -0.5, degree, strength), WireFormat(bits)
    u = {16: Fraction(1, 2**11), 32: Fraction(1, 2**24), 64: Fraction(0)}[bits]
    v = {16: Fraction(1, 2**25), 32: Fraction(1, 2**150), 64: Fraction(0)}[bits]
    G = Fraction(histogram.rounding_gain(mixing, rounds)) if bits < 64 else Fraction(0)
    g = (degree + 6) * (1 + 2 * Fraction(strength)) / 2**53
    K = root(Fraction(len(sizes)))
    left = 1 - G * u - rounds * g
    found = histogram.arithmetic_epsilon(sizes, mixing, rounds, wire)
    if left <= 0:
        assert found == math.inf
        return
    Y = (norm(shares(sizes)) + G * K * v) / left
    assert found == pytest.approx(float(G * (u * Y + K * v) + (rounds + 2) * g * Y), rel=1e-9, abs=0.0)


def test_precision_runs_out():
    """Where T g reaches 1 nothing can be certified: the bound is infinite, never negative."""
    mixing = histogram.MixingRates(0.9, -0.5, 2**40, 1.0)  # g is about 3.7e-4
    assert histogram.arithmetic_epsilon(np.array([1, 1]), mixing, 2000, WireFormat(64)) < math.inf
    assert histogram.arithmetic_epsilon(np.array([1, 1]), mixing, 4000, WireFormat(64)) == math.inf
    half = histogram.MixingRates(0.9, -0.5, 2**51 - 6, 0.5)  # g is one half
    assert 0 < histogram.arithmetic_epsilon(np.array([1, 1]), half, 1, WireFormat(64)) < math.inf
    assert histogram.arithmetic_epsilon(np.array([1, 1]), half, 2, WireFormat(64)) == math.inf


@pytest.mark.parametrize("rounds", [1, 7, 40])
def test_every_way_pays_for_its_own_precision(rounds):
    """Chebyshev's round-off enters through polynomials that grow linearly; finite time pays 4 and 8 units."""
    network = Network.torus(3, 3)
    sizes = np.array([5, 0, 9, 1, 1, 1, 7, 2, 4])
    block = Block.everywhere(network, sizes[:, None])
    weights = WEIGHTS["best-constant"](network)
    length = float(norm(shares(sizes)))
    gossip = AVERAGING_SCHEMES["gossip"](block, weights, HDCP()).epsilon(sizes, rounds, WireFormat(64))
    chebyshev = AVERAGING_SCHEMES["chebyshev"](block, weights, HDCP(consensus="chebyshev")).epsilon(
        sizes, rounds, WireFormat(64)
    )
    assert gossip[1] > 0
    assert chebyshev[1] == pytest.approx(2 * (rounds + 2) * gossip[1], rel=1e-12, abs=0.0)
    finite = AVERAGING_SCHEMES["finite-time"](block, weights, HDCP(consensus="finite-time"))
    left, precision = finite.epsilon(sizes, len(finite.roots), WireFormat(64))
    assert left == pytest.approx(finite.relative * length + 8 * 2.0**-53, rel=1e-9, abs=0.0)
    assert precision == pytest.approx(4 * 2.0**-53 * length, rel=1e-12, abs=0.0)


@given(st.integers(1, 10**6), st.floats(1.0, 1e5), st.floats(1.0, 1e5), st.floats(0.0, 10.0), st.integers(1, 100))
def test_bias_is_smoothing_and_the_assumed_distance(n, mu, kappa, epsilon0, copies):
    log2 = Fraction(6931471805599453094172321214581765680755, 10**40)
    inside = 2 * n * log2 / (copies * Fraction(mu) * Fraction(kappa)) + Fraction(epsilon0) ** 2
    assert quantile.bias_epsilon(n, mu, kappa, epsilon0, copies) == pytest.approx(
        float(root(inside)), rel=1e-12, abs=0.0
    )


@given(st.floats(1e-6, 0.5), st.integers(1, 50), st.floats(0.1, 1e4), st.integers(1, 200), st.floats(0.0, 1e6))
def test_unfinished_convergence_shrinks_by_one_plus_delta_a_round(delta, devices, mu, rounds, distance):
    shrunk = Fraction(distance) / (devices * Fraction(mu)) / (1 + Fraction(delta)) ** (rounds - 1)
    found = quantile.convergence_epsilon(quantile.AdmmRate(1.0, 2.0, delta), devices, mu, rounds, distance)
    assert found == pytest.approx(float(root(shrunk)), rel=1e-10, abs=1e-30)
    assert quantile.convergence_epsilon(quantile.AdmmRate(1.0, 2.0, delta), devices, mu, 0, distance) == math.inf


@given(sizes_of, st.floats(0.01, 0.99), st.floats(0.5, 1e4), st.floats(0.01, 100.0), st.floats(0.0, 5.0))
def test_the_distance_that_devices_know_is_the_printed_sum(sizes, gamma, mu, c, offset):
    network = Network.torus(3, 3)
    steep = max(Fraction(gamma), 1 - Fraction(gamma))
    reach = int(sizes.sum()) * steep / (len(sizes) * Fraction(mu))
    gradients = [int(n) * steep + Fraction(mu) * reach for n in sizes]
    smallest = Fraction(network.spectrum.smallest)
    printed = Fraction(c) * network.edges * (Fraction(offset) + reach) ** 2 + sum(g * g for g in gradients) / (
        Fraction(c) * smallest
    )
    found = quantile.largest_distance(c, network.edges, network.spectrum, sizes, gamma, mu, offset)
    assert found == pytest.approx(float(printed), rel=1e-10, abs=0.0)
    assert quantile.regulariser_reach(sizes, gamma, mu) == pytest.approx(float(reach), rel=1e-12, abs=0.0)


@given(st.floats(10.0, 1e7), st.floats(1.0, 1e4), st.floats(0.6, 1.6), st.floats(0.6, 1.6))
def test_no_other_penalty_has_a_better_rate(smoothness, mu, more_c, more_b):
    """The chosen c and b give the printed delta, and moving either of them gives no larger one."""
    spectrum = Network.grid(4, 3).spectrum
    smoothness = max(smoothness, mu)
    top, bottom = Fraction(spectrum.signless), Fraction(spectrum.smallest)

    def delta(c, b):
        c, b, L = Fraction(c), Fraction(b), Fraction(smoothness)
        return float(min((b - 1) * bottom / (b * top), Fraction(mu) / (c / 4 * top + b / c * L * L / bottom)))

    best = quantile.admm_rate(spectrum, smoothness, mu)
    assert best.b > 1
    assert best.delta == pytest.approx(delta(best.c, best.b), rel=1e-9, abs=0.0)
    b = max(best.b * more_b, 1 + 1e-9)
    assert delta(best.c * more_c, b) <= best.delta * (1 + 1e-9)
    given = quantile.admm_rate(spectrum, smoothness, mu, best.c * more_c, b)
    assert given.delta == pytest.approx(delta(given.c, given.b), rel=1e-9, abs=0.0)
