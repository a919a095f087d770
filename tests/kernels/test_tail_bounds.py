"""Hoeffding-Bentkus p-values: exact arithmetic, and super-uniformity on tables of unlike devices, enumerated.

A table gives each device a law of losses with whole numerators and probabilities, and a number of items. The law of the
sum is a convolution of integers, so that P(S <= s) is a fraction, and the theorem says that it is at most the p-value
of s wherever the level is at most the mean risk. It is enough to look at attainable sums: p-values rise with s.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from conformesh import control
from conformesh.kernels import tail_bounds
from conformesh.kernels.family_wise import TESTINGS
from conformesh.kernels.tail_bounds import hoeffding_bentkus
from tests import libraries
from tests.campaigns import LONG

pytestmark = pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote")  # small tables certify nothing

# 40 digits of e, cut off: below e by less than 10^-40.
E_BELOW = Fraction(27182818284590452353602874713526624977572, 10**40)


def binomial_cdf(k, n, level):
    """P(B(n, level) <= k), exactly."""
    return sum(math.comb(n, j) * level**j * (1 - level) ** (n - j) for j in range(min(k, n) + 1))


def power_of_hoeffding(total, unit, n, level):
    """Hoeffding's bound to the power `unit`, which is a fraction."""
    rest = n * unit - total
    above = (n * unit * level / Fraction(max(total, 1))) ** total
    return above * (n * unit * (1 - level) / Fraction(max(rest, 1))) ** rest


# --- rounding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_p_value_is_never_below_the_exact_bound_and_hardly_above(seed):
    rng = np.random.default_rng(seed)
    n, unit = int(rng.integers(1, 60 if seed % 4 else 900)), int(rng.choice([1, 2, 3, 7]))
    level = Fraction(int(rng.integers(1, 40)), 40 + int(rng.integers(1, 20)))
    most = math.ceil(n * unit * level) - 1
    total = int(rng.integers(0, most + 1))
    p = Fraction(hoeffding_bentkus(total, unit, n, level))
    bentkus = E_BELOW * binomial_cdf(math.ceil(Fraction(total, unit)), n, level)
    hoeffding = power_of_hoeffding(total, unit, n, level)
    assert p == 1 or p >= bentkus or p**unit >= hoeffding
    near = 1 - Fraction(3, 10**16)  # two floats
    assert p * near <= bentkus * (1 + Fraction(1, 10**39))
    assert (p * near) ** unit <= hoeffding


@pytest.mark.parametrize("n", [301, 5_000, 10**6, 10**9])
def test_large_numbers_of_items_agree_with_scipy(n):
    """Beyond 300 factorials are a series; SciPy's error is below 10^-9, of logarithms of sums of this size."""
    from scipy.stats import binom

    level = Fraction(1, 20)
    sd = math.sqrt(n * 0.05 * 0.95)
    for far in (0.5, 2.0, 3.5):
        k = math.floor(n * 0.05 - far * sd)
        mean = k / n
        h = mean * math.log(mean / 0.05) + (1 - mean) * math.log((1 - mean) / 0.95)
        expected = min(1.0, math.exp(-n * h), math.e * binom.cdf(k, n, 0.05))
        assert hoeffding_bentkus(k, 1, n, level) == pytest.approx(expected, rel=1e-6)


def test_p_values_are_those_of_mapie():
    """Up to its rounding, at sums that are whole or not."""
    theirs = libraries.mapie("risk_control.methods").compute_hoeffding_bentkus_p_value
    sums = np.arange(0, 100.5, 0.25)
    found = theirs(sums / 1000, 1000, 0.1)[:, 0]
    ours = [hoeffding_bentkus(int(4 * s), 4, 1000, Fraction(1, 10)) for s in sums.tolist()]
    np.testing.assert_allclose(np.minimum(found, 1), ours, rtol=1e-9)


def test_extremes():
    tenth = Fraction(1, 10)
    assert hoeffding_bentkus(0, 1, 0, tenth) == 1.0  # no item
    assert hoeffding_bentkus(100, 1, 1000, tenth) == 1.0  # the observed risk is the level
    assert Fraction(hoeffding_bentkus(0, 720720, 22, tenth)) >= Fraction(9, 10) ** 22
    assert hoeffding_bentkus(0, 1, 10**7, tenth) == 5e-324  # a number above 0, whatever the exact one is
    with pytest.raises(ValueError, match="must lie between 0 and 3, got 4/1"):
        hoeffding_bentkus(4, 1, 3, tenth)
    with pytest.raises(ValueError, match="strictly between 0 and 1, got 1"):
        hoeffding_bentkus(0, 1, 3, Fraction(1))


def test_p_values_rise_with_the_sum_and_fall_with_the_level():
    found = [hoeffding_bentkus(total, 7, 30, Fraction(1, 3)) for total in range(71)]
    assert found == sorted(found)
    levels = [hoeffding_bentkus(20, 7, 30, Fraction(i, 50)) for i in range(1, 50)]
    assert levels == sorted(levels, reverse=True)


# --- super-uniform ----------------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """Devices with their laws: how many items, and a whole weight for each loss 0, 1/grid, ..., 1."""

    grid: int
    devices: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def items(self):
        return sum(n for n, _ in self.devices)

    @property
    def mean(self):
        """The mean risk over items: the mixture `sizes`."""
        each = (n * Fraction(sum(j * w for j, w in enumerate(law)), self.grid * sum(law)) for n, law in self.devices)
        return sum(each) / self.items

    def cdf(self):
        """P(S <= s / grid) for s = 0, 1, ..., exactly."""
        sums, whole = [1], 1
        for n, law in self.devices:
            for _ in range(n):
                grown = [0] * (len(sums) + self.grid)
                for s, ways in enumerate(sums):
                    for j, w in enumerate(law):
                        grown[s + j] += ways * w
                sums, whole = grown, whole * sum(law)
        return [Fraction(int(c), whole) for c in np.cumsum(np.array(sums, dtype=object))]


def random_table(rng):
    """Devices that differ: laws with few or many values, some of them certain."""
    grid = int(rng.choice([1, 1, 2, 3, 4]))
    devices = []
    for _ in range(rng.integers(1, 5)):
        law = rng.integers(0, 6, grid + 1) * (rng.random(grid + 1) < 0.7)
        law[rng.integers(grid + 1)] += 1
        devices.append((int(rng.integers(1, 4)), tuple(law.tolist())))
    return Table(grid, tuple(devices))


def changed(rng, table):
    """Return a table that differs in one device."""
    devices, k = [*table.devices], int(rng.integers(len(table.devices)))
    n, law = devices[k]
    if rng.random() < 0.2:
        n = max(1, n + int(rng.choice([-1, 1])))
    law = [*law]
    j = int(rng.integers(len(law)))
    law[j] = max(0, law[j] + int(rng.choice([-2, -1, 1, 2, 5])))
    devices[k] = (n, tuple(law)) if any(law) else devices[k]
    return Table(table.grid, tuple(devices))


def worst_of(table, p_value, least=0):
    """The largest P(S <= s) / p(s) for s >= least, at the largest level that makes the hypothesis true: the mean."""
    level = table.mean
    if not 0 < level < 1:
        return Fraction(0)
    chances = [chance for s, chance in enumerate(table.cdf()) if s < table.items * table.grid * level]
    by_control = control_p_values(table, level, len(chances)) if p_value is control else None
    worst = Fraction(0)
    for s, chance in enumerate(chances):
        if chance and s >= least:
            p = p_value(s, table.grid, table.items, level) if by_control is None else by_control[s]
            worst = max(worst, chance / Fraction(p))
    return worst


def control_p_values(table, level, sums):
    """The p-values of all sums below a number, from one call: a lambda for each, at which items lose so much in all."""
    left = np.tile(np.arange(sums), (table.items, 1)) - table.grid * np.arange(table.items)[:, None]
    losses = np.clip(left, 0, table.grid) / table.grid  # the first items lose all, the next one the rest
    sizes = np.cumsum([n for n, _ in table.devices])[:-1]
    asked = {"monotone": False, "pac_confidence": 0.9, "testing": "holm", "grid": [*range(sums)]}
    return control(np.split(losses, sizes), None, level, **asked).p_values.tolist()


def climb(seed, tables, steps, p_value=hoeffding_bentkus, least=0):
    """Return the worst ratio of random tables; each is changed in steps, and those that lower it are taken back."""
    rng, worst = np.random.default_rng([7, seed]), Fraction(0)
    for _ in range(tables):
        table = random_table(rng)
        best = worst_of(table, p_value, least)
        for _ in range(steps):
            other = changed(rng, table)
            if other.items <= 12 and (ratio := worst_of(other, p_value, least)) >= best:
                table, best = other, ratio
        worst = max(worst, best)
    return worst


def test_theorem_p_values_of_unlike_devices_are_super_uniform():
    assert 0 < climb(0, 40, 3) <= 1
    assert 0 < climb(1, 12, 3, control) <= 1  # through the public function


@pytest.mark.slow
def test_theorem_p_values_of_twenty_thousand_tables_are_super_uniform():
    """4,000 climbs of five tables each, times CONFORMESH_LONG, through the public function; about 70 s.

    Without any loss the bound is (1 - r)^n, which devices that are alike attain; so half of the climbs look at other
    sums only.
    """
    assert 0.99 < max(climb(seed, 250 * LONG, 4, control) for seed in range(1, 9)) <= 1
    assert 0.5 < max(climb(seed, 250 * LONG, 4, control, least=1) for seed in range(9, 17)) <= 1


def test_a_lower_level_is_a_smaller_claim():
    """Where the risk is above the level, p-values are super-uniform as well."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        table = random_table(rng)
        level = table.mean * Fraction(3, 4)
        for s, chance in enumerate(table.cdf()):
            if level > 0 and s < table.items * table.grid * level:
                assert chance <= Fraction(hoeffding_bentkus(s, table.grid, table.items, level))


def without_e(total, unit, n, level):
    """An ablation: the binomial tail itself, which holds for losses that are alike and 0 or 1."""
    tail = binomial_cdf(math.ceil(Fraction(total, unit)), n, level)
    return min(Fraction(hoeffding_bentkus(total, unit, n, level)), tail)


def test_without_the_factor_e_tables_have_p_values_that_are_too_small():
    """Two devices with one item each that lose 1 always and never: the sum is 1, and a binomial one is often 2."""
    certain = Table(1, ((1, (0, 1)), (2, (4, 1))))
    assert worst_of(certain, without_e) > 1
    assert climb(0, 60, 3, without_e) > Fraction(11, 10)


def test_rounding_sums_down_makes_p_values_too_small():
    """An ablation: the binomial tail at floor(s) instead of ceil(s)."""

    def rounded_down(total, unit, n, level):
        return E_BELOW * binomial_cdf(total // unit, n, level) if total < n * unit * level else 1

    rarely = Table(5, ((2, (0, 0, 0, 0, 1, 19)),))  # 0.8 with probability 1/20, else 1
    assert worst_of(rarely, rounded_down) > Fraction(3, 2)
    assert worst_of(rarely, hoeffding_bentkus) <= 1


def test_a_tail_that_is_cut_off_early_is_still_an_upper_bound(monkeypatch):
    """The rest of a sum counts as a geometric series; with a coarse cut that is visibly more than the rest."""
    exact = E_BELOW * binomial_cdf(40, 900, Fraction(1, 15))
    assert Fraction(hoeffding_bentkus(40, 1, 900, Fraction(1, 15))) >= exact
    tail_bounds._log_binomial_cdf.cache_clear()
    monkeypatch.setattr(tail_bounds, "_NEGLIGIBLE", tail_bounds._FIXED)
    cut = Fraction(hoeffding_bentkus(40, 1, 900, Fraction(1, 15)))
    tail_bounds._log_binomial_cdf.cache_clear()
    assert cut > exact * (1 + Fraction(1, 100))


# --- several hypotheses -----------------------------------------------------------------------------------------------


def joint_law(grid, devices):
    """Return P(sums = vector): the losses of an item at all lambdas are drawn together, by its device's law."""
    found = {(0,) * len(next(iter(devices[0][1]))): Fraction(1)}
    for n, law in devices:
        whole = sum(law.values())
        for _ in range(n):
            grown = {}
            for sums, chance in found.items():
                for vector, weight in law.items():
                    key = tuple(a + b for a, b in zip(sums, vector, strict=True))
                    grown[key] = grown.get(key, 0) + chance * Fraction(weight, whole)
            found = grown
    return found


def family_wise_error(grid, devices, level, delta, reject):
    """P(some lambda is rejected whose risk is at least the level), exactly."""
    items, law = sum(n for n, _ in devices), joint_law(grid, devices)
    many = len(next(iter(law)))
    risks = [sum(chance * sums[i] for sums, chance in law.items()) / (grid * items) for i in range(many)]
    wrong = np.array([risk >= level for risk in risks])
    p = {s: hoeffding_bentkus(s, grid, items, level) for s in {s for sums in law for s in sums}}
    return sum(
        chance for sums, chance in law.items() if (np.asarray(reject([p[s] for s in sums], delta)) & wrong).any()
    )


def uncorrected(p_values, delta):
    """An ablation: every lambda at the full level, of which somebody takes the best."""
    return [Fraction(p) <= delta for p in p_values]


@pytest.mark.parametrize("testing", TESTINGS)
def test_theorem_no_family_has_a_larger_error(testing):
    """Losses at three lambdas drawn together, on unlike devices; half of all lambdas keep the risk."""
    rng, largest = np.random.default_rng(5), Fraction(0)
    for _ in range(25):
        grid = int(rng.choice([1, 2]))
        devices = [
            (
                int(rng.integers(1, 3)),
                {tuple(rng.integers(0, grid + 1, 3).tolist()): int(rng.integers(1, 5)) for _ in range(4)},
            )
            for _ in range(3)
        ]
        level, delta = Fraction(int(rng.integers(2, 8)), 10), Fraction(int(rng.integers(5, 60)), 100)
        error = family_wise_error(grid, devices, level, delta, TESTINGS[testing].reject)
        assert error <= delta
        largest = max(largest, error / delta)
    assert largest > Fraction(1, 10)  # some reject what is wrong: the bound is put to the test


def test_the_best_lambda_without_correction_errs_more_often():
    """Eight items, three lambdas with losses 0 or 1 drawn apart and risk 1/2: P(no loss) = 1/256 for each."""
    law = {(a, b, c): 1 for a in (0, 1) for b in (0, 1) for c in (0, 1)}
    devices, half = [(5, law), (3, law)], Fraction(1, 2)
    delta = Fraction(6, 1000)
    assert family_wise_error(1, devices, half, delta, uncorrected) > Fraction(18, 10) * delta
    for testing in TESTINGS.values():
        assert family_wise_error(1, devices, half, delta, testing.reject) <= delta
    enough = Fraction(1172, 100000)  # three times 1/256, and a little: Holm rejects, and uses nearly all of it
    assert 0.99 * enough < family_wise_error(1, devices, half, enough, TESTINGS["holm"].reject) <= enough


def test_testing_by_hand():
    sequence, holm = TESTINGS["fixed-sequence"].reject, TESTINGS["holm"].reject
    delta = Fraction(1, 10)
    assert sequence([0.05, 0.1 - 2**-50, 0.2, 0.01], delta).tolist() == [True, True, False, False]
    assert sequence([0.1 + 2**-50, 0.0], delta).tolist() == [False, False]
    assert not sequence([0.1], delta).any()  # the float 0.1 is above one tenth
    assert holm([0.04, 0.2, 0.03, 0.01], delta).tolist() == [True, False, True, True]
    assert holm([0.06, 0.2, 0.04, 0.01], delta).tolist() == [False, False, False, True]
