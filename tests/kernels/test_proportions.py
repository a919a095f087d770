"""Exact intervals, exact tests and Holm's procedure, beside SciPy, exact fractions and closed testing."""

from fractions import Fraction
from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from conformesh.kernels.proportions import exact_intervals, rejected_by_holm, shortfall_p_values


def test_intervals_are_those_of_scipy():
    counts = np.array([(k, n) for n in (1, 2, 7, 30, 500) for k in range(n + 1)])
    low, high = exact_intervals(*counts.T)
    for (k, n), *ends in zip(counts.tolist(), low, high, strict=True):
        expected = binomtest(k, n).proportion_ci(0.95, "exact")
        assert ends == pytest.approx([expected.low, expected.high], abs=1e-12)
    assert [end.tolist() for end in exact_intervals([0], [0])] == [[0.0], [1.0]]


@pytest.mark.parametrize("nominal", [Fraction(1, 2), Fraction(9, 10), Fraction(99, 100)])
def test_p_values_are_exact(nominal):
    for n in (0, 1, 5, 40):
        below = Fraction(0)
        for k in range(n + 1):
            below += comb(n, k) * nominal**k * (1 - nominal) ** (n - k)
            assert shortfall_p_values([k], [n], float(nominal))[0] == pytest.approx(float(below), rel=1e-9)


def test_p_values_of_very_many_rows_keep_their_digits():
    """Ten million rows, in the middle and far out, beside SciPy's distribution (Boost)."""
    for n in (10**5, 10**7):
        for deviations in (0, -2, -5):
            k = int(n * 0.9 + deviations * (n * 0.09) ** 0.5)
            assert shortfall_p_values([k], [n], 0.9)[0] == pytest.approx(binom.cdf(k, n, 0.9), rel=1e-9)


def test_holm_is_closed_testing_with_bonferroni():
    """A hypothesis falls if every set that contains it has a p-value of at most error / size."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        m = int(rng.integers(1, 6))
        p = np.round(rng.random(m) ** 3, 2)  # with ties
        subsets = [s for size in range(1, m + 1) for s in combinations(range(m), size)]
        fallen = {s for s in subsets if min(p[[*s]]) * len(s) <= 0.05}
        expected = [all(s in fallen for s in subsets if i in s) for i in range(m)]
        assert rejected_by_holm(p, 0.05).tolist() == expected
    assert rejected_by_holm([]).tolist() == []


def false_alarm_rate(rates, rows, nominal, reject):
    """The exact chance that a device whose rate is at least nominal is rejected: over all counts of hits."""
    chances = [binom.pmf(np.arange(n + 1), n, rate) for n, rate in zip(rows, rates, strict=True)]
    innocent = np.array([rate >= nominal for rate in rates])
    total = 0.0
    for hits in product(*(range(n + 1) for n in rows)):
        if (reject(shortfall_p_values(hits, rows, nominal)) & innocent).any():
            total += float(np.prod([chance[k] for chance, k in zip(chances, hits, strict=True)]))
    return total


@pytest.mark.parametrize(
    ("rates", "rows"),
    [((0.9, 0.9, 0.9), (27, 27, 34)), ((0.9, 0.9, 0.3), (27, 34, 12)), ((0.9, 0.5, 0.4), (27, 9, 9)), ((0.9,), (45,))],
)
def test_flags_keep_the_family_wise_error(rates, rows):
    """Exactly, over all counts; also where some devices are covered too little."""
    assert false_alarm_rate(rates, rows, 0.9, rejected_by_holm) <= 0.05


def test_uncorrected_tests_do_not_keep_it():
    """The planted bug that the test above would find: each device tested at .05 by itself."""
    assert false_alarm_rate((0.9, 0.9, 0.9), (27, 27, 34), 0.9, lambda p: p <= 0.05) > 0.1
