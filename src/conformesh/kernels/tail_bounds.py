r"""Hoeffding-Bentkus p-values: how likely a mean loss as small as the observed one is, if the risk exceeds its level.

n independent losses between 0 and 1, which need not be alike, have means with average r. Both bounds hold for their sum
S and a binomial number B(n, r) ([Hoeffding1963], [Bentkus2004]; docs/guarantees.md has a proof of both):

.. math:: P(S \le s) \le e^{-n h(s/n, r)} \text{ for } s \le n r, \qquad
          P(S \le s) \le e\, P(B(n, r) \le \lceil s \rceil),

with :math:`h(a, b) = a \ln(a/b) + (1 - a) \ln((1 - a)/(1 - b))`. Both fall as r grows, so that the smaller of them at
the level is a p-value for "the risk is at least the level".

Every step rounds up: logarithms have 50 decimal digits and a margin, ratios of binomial chances are whole numbers
rounded up. A p-value is the exact bound or above it, by less than one part in 10^15.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

_DIGITS = 50
# Logarithms of at most 10^12 terms are summed; each has a relative error of 10^-49. The margin is far above that.
_MARGIN = Decimal("1e-30")
_FIXED = 2**160  # units of sums of ratios
_NEGLIGIBLE = 2**80  # a term this small, in these units, ends a sum: the rest is bounded by a geometric series
_EXACT_FACTORIALS = 300  # up to here factorials are exact; beyond, the terms below leave an error of less than 10^-40
_HALF_LOG_2PI = Decimal("0.91893853320467274178032973640561763986139747363778")
# B_2i / (2i (2i - 1)): coefficients of Stirling's series, whose error is less than its first term left out.
_STIRLING = [
    Fraction(1, 12),
    Fraction(-1, 360),
    Fraction(1, 1260),
    Fraction(-1, 1680),
    Fraction(1, 1188),
    Fraction(-691, 360360),
    Fraction(1, 156),
    Fraction(-3617, 122400),
]


def hoeffding_bentkus(total: int, unit: int, n: int, level: Fraction) -> float:
    """Return the p-value of "the mean of n losses is at least `level`", whose observed sum is ``total / unit``.

    Losses lie between 0 and 1. The answer is rounded up to a float.

    >>> hoeffding_bentkus(total=50, unit=1, n=1000, level=Fraction(1, 10)) < 1e-7
    True
    >>> hoeffding_bentkus(total=100, unit=1, n=1000, level=Fraction(1, 10))
    1.0
    """
    if not 0 <= total <= n * unit:
        raise ValueError(f"a sum of {n} losses between 0 and 1 must lie between 0 and {n}, got {total}/{unit}")
    if not 0 < level < 1:
        raise ValueError(f"the level of a p-value must lie strictly between 0 and 1, got {level}")
    if not n or total >= n * unit * level:
        return 1.0
    with localcontext(Context(prec=_DIGITS, Emin=-(10**15), Emax=10**15)):
        log_p = min(
            _log_hoeffding(total, unit, n, level),
            1 + _log_binomial_cdf(math.ceil(Fraction(total, unit)), n, level),
        )
        return _exp_up(log_p + _MARGIN)


def _log_hoeffding(total: int, unit: int, n: int, level: Fraction) -> Decimal:
    """Return -n h(s / n, level) for the sum s = total / unit below n times the level."""
    s = Fraction(total, unit)
    rest = n - s
    # s ln(n level / s) + (n - s) ln(n (1 - level) / (n - s)), whose first term is 0 for s = 0
    return _times_log(s, n * level) + _times_log(rest, n * (1 - level))


def _times_log(number: Fraction, other: Fraction) -> Decimal:
    """Return number * ln(other / number), up; 0 where the number is 0."""
    if not number:
        return Decimal(0)
    product = _decimal(number) * (_log(other) - _log(number))
    return product + _MARGIN * (1 + _decimal(number)) * Decimal("1e-10")


def _log(number: Fraction | int) -> Decimal:
    part = Fraction(number)
    return Decimal(part.numerator).ln() - Decimal(part.denominator).ln()


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / Decimal(number.denominator)


@lru_cache(maxsize=4096)  # a grid asks for the same counts again and again
def _log_binomial_cdf(k: int, n: int, level: Fraction) -> Decimal:
    """Return the logarithm of P(B(n, level) <= k), up."""
    if k >= n:
        return Decimal(0)
    chance = (
        _log_factorial(n)
        - _log_factorial(k)
        - _log_factorial(n - k)
        + k * _log(level)
        + (n - k) * _log(1 - level)
        + _MARGIN / 2
    )
    # P(j - 1) / P(j) = j (1 - level) / ((n - j + 1) level), from j = k down: all in units of P(k) / _FIXED
    below, above = (1 - level).numerator * level.denominator, level.numerator * (1 - level).denominator
    whole = term = _FIXED
    for j in range(k, 0, -1):
        top, bottom = j * below, (n - j + 1) * above
        term = -(-term * top // bottom)
        whole += term
        if term < _NEGLIGIBLE and top < bottom:  # later ratios are smaller still
            whole += -(-term * top // (bottom - top))
            break
    return min(Decimal(0), chance + (Decimal(whole) / Decimal(_FIXED)).ln())


def _log_factorial(x: int) -> Decimal:
    """Return ln x! with an error far below the margin."""
    if x <= _EXACT_FACTORIALS:
        return Decimal(math.factorial(x)).ln()
    number = Decimal(x)
    series = sum((_decimal(c) / number ** (2 * i + 1) for i, c in enumerate(_STIRLING)), Decimal(0))
    return number * number.ln() - number + _HALF_LOG_2PI + number.ln() / 2 + series


def _exp_up(log_p: Decimal) -> float:
    """Return e to this power, rounded up to a float, at most 1."""
    if log_p >= 0:
        return 1.0
    # The smallest float above 0 stands for everything below it.
    exact = max(log_p, Decimal(-800)).exp() * (1 + _MARGIN)
    nearest = float(exact)
    return min(1.0, nearest if Decimal(nearest) >= exact else math.nextafter(nearest, 1.0))
