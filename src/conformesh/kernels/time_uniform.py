r"""Confidence at all looks: a rank that holds however often a threshold is computed while scores arrive.

The rank of `pac_confidence` fails with probability :math:`\delta` for one calibration that was chosen in advance; over
many looks these chances add up. `time_uniform_rank` fails with probability :math:`\delta` for all looks together
(docs/guarantees.md). It is the smallest N with

.. math:: W_n(N) = \int_p^1 \frac{\theta^N (1 - \theta)^{n - N}}{p^N (1 - p)^{n - N}} d\nu(\theta) \ge 1 / \delta,
          \qquad p = 1 - \alpha,

:math:`\nu` a beta distribution conditioned on :math:`\theta > p`. W is then a ratio of incomplete beta functions, and
grows with N, since :math:`\theta > p`.

The proof needs looks at which devices have contributed scores in proportion to their shares of new examples. So a
device contributes its first :math:`m w_k` scores in the order of arrival, :math:`w_k` whole numbers in proportion to
the shares, and m the largest number for which every device has enough (`scores_per_step`, `steps_at_look`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from conformesh.common.array_types import Ints

# The mixing distribution is a beta distribution with mean p. Its parameters add up to what it is worth in scores: at
# most 50 of them, and at most 5 expected misses, 5 / alpha. Few misses keep the first useful look early where alpha is
# large, few scores where it is small: for alpha from 0.01 to 0.5 it needs 1.2 to 2.3 times as many scores as one
# calibration chosen in advance does. At alpha = 0.1 both bounds meet: Beta(45, 5).
_MOST_SCORES, _MOST_MISSES = 50, 5
# What float64 may get wrong in the logarithm of W, in nats: ten times what the logarithms of gamma functions of n can
# lose, and the error of the incomplete beta function. W must exceed 1 / delta by this much.
_ERROR, _ERROR_PER_SCORE = 1e-9, 1e-13


def mixing_parameters(alpha: Fraction) -> tuple[Fraction, Fraction]:
    """Return the parameters of the beta distribution that is mixed over, before it is conditioned on theta > p.

    >>> mixing_parameters(Fraction(1, 10))
    (Fraction(45, 1), Fraction(5, 1))
    """
    worth = min(Fraction(_MOST_SCORES), _MOST_MISSES / alpha)
    return worth * (1 - alpha), worth * alpha


def log_likelihood_ratio(n: int, count: int, alpha: Fraction) -> float:
    """Return the logarithm of W, the mixture of likelihood ratios of `count` among n scores below the quantile."""
    from scipy.special import betainc, betaln

    a, b = map(float, mixing_parameters(alpha))
    hits, misses = a + count, b + (n - count)
    # Both beta distributions are conditioned on theta > p; betainc(b, a, alpha) is what lies above p.
    prior = float(betaln(a, b)) + math.log(float(betainc(b, a, float(alpha))))
    above = float(betainc(misses, hits, float(alpha)))
    if not above:  # so far below p that float64 has no number for it
        return -math.inf
    posterior = float(betaln(hits, misses)) + math.log(above)
    # p from the fraction: for alpha near 1 the difference of two floats would lose its digits.
    return posterior - prior - count * math.log(float(1 - alpha)) - (n - count) * math.log(float(alpha))


@lru_cache(maxsize=1024)
def time_uniform_rank(n: int, alpha: Fraction, failure: Fraction) -> int:
    """Return the rank of n scores that holds at all looks but with probability `failure`; n + 1 where none will do.

    Rounding is towards the larger rank.

    >>> time_uniform_rank(1000, Fraction(1, 10), Fraction(1, 20))
    926
    """
    needed = math.log(1 / failure) + _ERROR + _ERROR_PER_SCORE * n
    low, high = math.floor((1 - alpha) * n), n + 1  # at most p n scores below the quantile are no evidence: W <= 1
    while high - low > 1:
        middle = (low + high) // 2
        if log_likelihood_ratio(n, middle, alpha) >= needed:
            high = middle
        else:
            low = middle
    return high


def least_scores(alpha: Fraction, failure: Fraction) -> int:
    """Return how many scores a look needs so that a threshold can be finite.

    >>> least_scores(Fraction(1, 10), Fraction(1, 20))
    64
    """
    high = 1
    # W of n out of n grows with n, so once enough is always so. Beyond 2^60 no scores can be counted anyway.
    while high < 2**60 and time_uniform_rank(high, alpha, failure) > high:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if time_uniform_rank(middle, alpha, failure) > middle:
            low = middle
        else:
            high = middle
    return high


def scores_per_step(shares: Sequence[Fraction]) -> list[int]:
    """Return the smallest whole numbers in proportion to the shares: what each device contributes in one step.

    >>> scores_per_step([Fraction(1, 2), Fraction(1, 3), Fraction(0)])
    [3, 2, 0]
    """
    common = math.lcm(*(share.denominator for share in shares))
    whole = [int(share * common) for share in shares]
    divisor = math.gcd(*whole)
    return [number // divisor for number in whole]


def steps_at_look(sizes: Ints, per_step: Sequence[int]) -> int:
    """Return the largest number of steps for which every device has enough scores.

    >>> import numpy as np
    >>> steps_at_look(np.array([10, 4, 7]), [3, 2, 0])
    2
    """
    return min(int(size) // step for size, step in zip(sizes.tolist(), per_step, strict=True) if step)
