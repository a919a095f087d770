"""The rank of a confidence at all looks: against exact integrals, where float64 is hard, and how useful it is."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from conformesh.kernels.ranks import make_requirement
from conformesh.kernels.time_uniform import (
    least_scores,
    log_likelihood_ratio,
    mixing_parameters,
    scores_per_step,
    steps_at_look,
    time_uniform_rank,
)

DELTA = Fraction(1, 20)


def upper_mass(a, b, p):
    """Return the integral of x^(a - 1) (1 - x)^(b - 1) from p to 1 exactly: whole parameters have a binomial sum."""
    trials, hit, miss = a + b - 1, p.numerator, p.denominator - p.numerator
    term, total = miss**trials, 0
    for k in range(a):
        total += term
        term = term * (trials - k) * hit // ((k + 1) * miss)
    return Fraction(total, p.denominator**trials * (trials * math.comb(trials - 1, a - 1)))


def exact_ratio(n, count, alpha):
    """Return the mixture of likelihood ratios as a fraction."""
    (a, b), p = mixing_parameters(alpha), 1 - alpha
    assert a.denominator == b.denominator == 1
    mixed = upper_mass(int(a) + count, int(b) + n - count, p) / upper_mass(int(a), int(b), p)
    return mixed / (p**count * alpha ** (n - count))


def fixed_rank(n, alpha, confidence="0.95"):
    """Return the rank of one calibration that was chosen in advance."""
    requirement = make_requirement(pac_confidence=confidence)
    return requirement.demand(np.array([n]), (alpha,)).required(requirement, alpha, 0, 0, n, 0)


@pytest.mark.parametrize(("n", "rank", "fixed"), [(1000, 926, 916), (10_000, 9094, 9050)])
def test_known_ranks(n, rank, fixed):
    alpha = Fraction(1, 10)
    assert (time_uniform_rank(n, alpha, DELTA), fixed_rank(n, alpha)) == (rank, fixed)


@pytest.mark.parametrize("alpha", [Fraction(1, 10), Fraction(1, 50), Fraction(1, 5), Fraction(1, 2)])
@pytest.mark.parametrize("failure", [DELTA, Fraction(1, 1000)])
def test_the_rank_is_the_smallest_whose_exact_ratio_suffices(alpha, failure):
    for n in [*range(1, 80), 150, 300, 999]:
        rank = time_uniform_rank(n, alpha, failure)
        if rank <= n:
            assert exact_ratio(n, rank, alpha) >= 1 / failure
        assert exact_ratio(n, rank - 1, alpha) < 1 / failure


def test_a_ratio_just_below_the_limit_does_not_suffice():
    """Rounding goes towards the larger rank: 1 / failure one part in 10^12 above an exact ratio is not reached."""
    alpha = Fraction(1, 10)
    ratio = exact_ratio(500, 470, alpha)
    assert time_uniform_rank(500, alpha, 1 / (ratio * (1 + Fraction(1, 10**12)))) == 471
    assert time_uniform_rank(500, alpha, 1 / (ratio * (1 - Fraction(1, 10**8)))) == 470


@pytest.mark.parametrize("alpha", [Fraction(1, 10), Fraction(1, 100), Fraction(3, 10)])
@pytest.mark.parametrize("n", [10**6, 10**9])
def test_large_numbers_of_scores_have_the_ratio_of_a_quadrature(n, alpha):
    """Far from where the terms can be added up: the integral by Simpson's rule around the observed rate."""
    a, b = map(float, mixing_parameters(alpha))
    p, spread = float(1 - alpha), math.sqrt(alpha * (1 - alpha) / n)
    count = int(n * p + 4 * spread * n)
    theta = np.linspace(p, p + 16 * spread, 200_001)
    # log1p of the small difference: the logarithms themselves would lose their digits.
    ratio = count * np.log1p((theta - p) / p) + (n - count) * np.log1p(-(theta - p) / (1 - p))
    prior = stats.beta(a, b)
    values = np.exp(ratio) * prior.pdf(theta) / prior.sf(p)
    weights = np.ones(len(theta))
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    expected = math.log(float(values @ weights) * (theta[1] - theta[0]) / 3)
    assert log_likelihood_ratio(n, count, alpha) == pytest.approx(expected, abs=1e-6 + 1e-13 * n)


@pytest.mark.parametrize("n", [10**10, 10**12])
def test_ranks_of_very_many_scores_are_a_few_standard_deviations_above_the_mean(n):
    alpha = Fraction(1, 10)
    excess = time_uniform_rank(n, alpha, DELTA) - n * (1 - alpha)
    assert 4 < excess / math.sqrt(n * 0.09) < 8


@pytest.mark.parametrize(
    ("alpha", "least", "fixed"),
    [("0.01", 367, 299), ("0.02", 208, 149), ("0.05", 104, 59), ("0.1", 64, 29), ("0.2", 31, 14), ("0.5", 10, 5)],
)
def test_the_mixing_distribution_is_useful_from_one_percent_to_one_half(alpha, least, fixed):
    """The first finite threshold comes after 1.2 to 2.3 times as many scores; later the excess is 1.3 to 2.1 times."""
    level = Fraction(alpha)
    assert least_scores(level, DELTA) == least
    assert time_uniform_rank(least, level, DELTA) == least
    assert time_uniform_rank(least - 1, level, DELTA) == least  # n + 1: no rank of so few scores will do
    assert (fixed_rank(fixed, level), fixed_rank(fixed - 1, level)) == (fixed, fixed)
    for n in (1000, 10_000):
        mean = n * (1 - level)
        excess = (time_uniform_rank(n, level, DELTA) - mean) / (fixed_rank(n, level) - mean)
        assert 1.3 < excess < 2.1


def test_alphas_at_the_ends_have_ranks():
    for alpha in ("0.000001", "0.0001", "0.9", "0.999999"):
        least = least_scores(Fraction(alpha), DELTA)
        assert 1 <= least < 4e6
        assert time_uniform_rank(least, Fraction(alpha), DELTA) == least


def test_steps_are_in_proportion_to_shares():
    assert scores_per_step([Fraction(1, 2), Fraction(1, 3), Fraction(0)]) == [3, 2, 0]
    assert scores_per_step([Fraction(4), Fraction(2)]) == [2, 1]
    assert steps_at_look(np.array([10, 4, 7]), [3, 2, 0]) == 2
    assert steps_at_look(np.array([10, 0]), [1, 1]) == 0


def test_numbers_out_of_proportion_are_refused():
    """The proof is about looks in proportion to the shares: nothing else may reach the rank."""
    equal = make_requirement("equal", pac_confidence="0.95", time_uniform=True)
    assert equal.demand(np.array([50] * 20), (Fraction(1, 10),)).total == 1000
    for sizes in ([50, 51], [50, 0]):
        with pytest.raises(ValueError, match="in proportion to the shares of the devices among new examples, got"):
            equal.demand(np.array(sizes), (Fraction(1, 10),))
    shares = make_requirement({"a": 1, "b": 0}, pac_confidence="0.95", time_uniform=True)
    with pytest.raises(ValueError, match="in proportion"):
        shares.demand(np.array([64, 1]), (Fraction(1, 10),), shares=(Fraction(1), Fraction(0)))


def test_a_requirement_at_all_looks_needs_a_confidence():
    with pytest.raises(ValueError, match=r"time_uniform=True needs pac_confidence, .* such as pac_confidence=0\.95"):
        make_requirement("equal", time_uniform=True)
