r"""What noise costs: how much more evidence a noisy histogram needs before it accepts a threshold.

Public pivots :math:`p_1 < \dots < p_w`; pivot j is accepted iff :math:`\alpha \tilde n - \widetilde{above}_j \ge
slack + I`, and the answer is the pivot after the last rejected one (`histogram`): +infinity if the last pivot is
rejected, the first pivot if none is. It is +infinity as well unless :math:`\tilde n \ge n_0`. This module computes the
inflation I and :math:`n_0` from public numbers.

**Noise.** X is the noise of one cell and X' that of the number n: each the difference of two independent NB(r, p)
numbers, with p = exp(-epsilon) of its own and any shape r from 0 to R. H of the K devices make the noise private, so
shares of all K have shape R = K/H, and less where devices leave out their share (they may do so cell by cell, but not
depending on its value). Everything below holds for all these shapes at once.

**Theorem A.** Let :math:`\omega = \sup_{x \ge 0} E[X - x \mid X > x]`, over all shapes. On fixed items with slack 0,
:math:`D(p) = \alpha n - above(p)`, :math:`I \ge \omega` and :math:`\alpha n_0 \ge I`,

.. math:: E\,D(answer) \ge \alpha\, E[\tilde n;\ \tilde n < n_0] + (I - \omega)\, P(\tilde n \ge n_0).

*Proof.* If n~ < n_0 the answer is +infinity and D = alpha n. Otherwise fix X'. The needs t_j = I - D(p_j) fall with j,
and t_{w+1} = I - alpha n belongs to +infinity. Walk from the right: Z_{w+1} = alpha X', Z_j = Z_{j+1} - X_{j+1};
pivot j is rejected iff Z_j < t_j. Let tau be the first rejection on the way, so that the answer is tau + 1. Then
t_{tau+1} <= t_tau, and t_{tau+1} <= Z_{tau+1}: pivot tau + 1 was accepted, and t_{w+1} <= alpha X' because alpha n~ >=
alpha n_0 >= I. With s = t_tau - Z_{tau+1}, rejection means X_{tau+1} > -s. If s <= 0, then t_{tau+1} - Z_tau <=
t_tau - Z_tau = s + X, whose mean on {X > -s} is at most omega P(X > -s). If s > 0, then t_{tau+1} - Z_tau <=
Z_{tau+1} - Z_tau = X, and E[X; X > -s] <= E[X; X > 0] <= omega P(X > -s). Without a rejection the answer is p_1 and
t_1 <= Z_1. Z is a martingale, so E[Z | X'] = alpha X' where it stops, and E[t_answer | X'] <= alpha X' + omega. Hence
E D(answer) >= alpha n P(n~ < n_0) + E[I - omega - alpha X'; n~ >= n_0]; insert E X' = 0. QED

Each step uses the law of its own cell alone: shapes may differ from cell to cell.

**Coverage** follows if for every n >= 1 either E[n~; n~ < n_0] >= 0, so that E above(answer) <= alpha n, or
P(n~ >= n_0) <= alpha, so that E above(answer) <= n P(the answer is finite) <= alpha n. `HistogramPlan` says how this
carries over from fixed items to calibration scores and a new example. For all shapes up to R it is enough that

1. alpha n_0 >= I,
2. n_0 >= omega' (the omega of X'): for n >= n_0 and y = n - n_0, E[n~; n~ < n_0] =
   P(X' > y) (n_0 - E[X' - y | X' > y]), by the symmetry of X',
3. for each x = n_0 - n from 1 to n_0 - 1: P(X' >= x) <= alpha, or n_0 P(X' < x) >= x + E(X' - x)^+, which is
   E[n~; n~ < n_0] >= 0 rewritten. Both are hardest at shape R: E(X' - x)^+ grows with the shape (adding independent
   noise of mean 0 to a convex function), and so does P(X' >= x) (Anderson's inequality: the law of X' is symmetric and
   unimodal).

Where the number of items is public (mixtures *equal* and *given*) there is no X', I = omega, and the theorem holds if
alpha times the number of items is at least I; otherwise the answer is +infinity.

**Omega.** For shapes r <= 1 it is at most 1/(1 - p): NB(r, p) has f(k + 1)/f(k) = p (k + r)/(k + 1) <= p, so
P(X = k + 1) = sum_j f(j) f(j + k + 1) <= p P(X = k) for k >= 0, and P(X > x + m | X > x) <= p^m. For r >= 1 NB(r, p) is
log-concave, and so is X; its mean residual life falls, and omega = E[X | X > 0] = E X^+ / P(X > 0). E X^+ grows with r
(convexity) and so does P(X > 0) (Anderson), so on [r, s] it is at most E X_s^+ / P(X_r > 0): a bound without a proof
that omega is monotone, made sharp by cutting [1, R] where needed.

**Arithmetic.** Floats, by sums of products of positive numbers, rounded to the safe side by far more than their
round-off. I follows from a correctly rounded p by sequential sums and products: all machines compute the same bits. The
convolution behind n_0 may differ in its last bits, which matters only if a bound is within 1e-13 of a whole number.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from conformesh.common.array_types import Floats
from conformesh.privacy.noise import FOURIER_ERROR, ROUNDOFF_FACTOR, negative_binomial, noise_law, rounded_exp

# I is rounded up to a multiple of 1/1000 score: too little to matter, and the same number on all machines.
_INFLATION_STEPS = 1000
# The bound over [1, R] exceeds the largest omega at the ends of its pieces by at most this factor: less than 1 % of I.
SHARPNESS = 1.005
_SMALLEST_ALPHA = 1e-9  # tails of the noise are known to within FOURIER_ERROR


class Inflation(NamedTuple):
    """The price of noise, in scores (or items).

    Attributes
    ----------
    value
        I: evidence needed beyond the slack.
    number_needed
        n_0: the answer is +infinity unless the noisy number of scores reaches it; 0 where the number is public.
    """

    value: Fraction
    number_needed: int


@lru_cache(maxsize=512)
def noise_inflation(
    alpha: Fraction, cell_epsilon: Fraction, number_epsilon: Fraction | None, shape: Fraction
) -> Inflation:
    """Return I and the smallest n_0 that satisfy the three conditions above; neither grows with alpha.

    Parameters
    ----------
    alpha
        Tolerated miscoverage, in (0, 1).
    cell_epsilon
        Each cell has noise with p = exp(-cell_epsilon).
    number_epsilon
        The same for the number of scores; None where the number of items is public.
    shape
        R = K/H, added up over the releases of a window.

    Examples
    --------
    >>> noise_inflation(Fraction(1, 10), Fraction(9, 10), Fraction(1, 10), Fraction(1))
    Inflation(value=Fraction(843, 500), number_needed=20)
    """
    if not _SMALLEST_ALPHA <= alpha < 1:
        raise ValueError(f"with noise alpha must be below 1 and at least {_SMALLEST_ALPHA:g}, got {float(alpha):g}")
    value = omega(cell_epsilon, shape)
    if number_epsilon is None:
        return Inflation(value, 0)
    return Inflation(value, _number_needed(alpha, value, number_epsilon, shape))


def _number_needed(alpha: Fraction, value: Fraction, epsilon: Fraction, shape: Fraction) -> int:
    """Return the smallest n_0 that satisfies the three conditions.

    The conditions only get easier as alpha grows (x stops earlier), so n_0 falls with alpha.
    """
    noise = noise_law(epsilon, shape)
    # P(X' >= x) for x >= 0; what lies beyond the table, and round-off of the Fourier transform, is added to every tail
    tails = np.cumsum(noise.chances[::-1])[::-1][noise.reach :] * ROUNDOFF_FACTOR + noise.cut + FOURIER_ERROR
    excess = _sums_beyond(tails)  # E(X' - x)^+ = sum of P(X' >= y) over y > x
    x = np.arange(1, int(np.argmax(tails <= float(alpha))) or 1)  # 0: alpha is above 1/2, and no x is left
    needed = np.ceil((x + excess[x] * ROUNDOFF_FACTOR) / (1 - tails[x]))  # n_0 must reach it where n_0 > x
    number = max(math.ceil(value / alpha), math.ceil(omega(epsilon, shape)), 1)
    # a larger n_0 has more x to satisfy, so everything below the worst of today's x fails
    while len(now := needed[: number - 1]) and now.max() > number:
        number = int(now.max())
    return number


def _sums_beyond(numbers: Floats) -> Floats:
    """Return for each number the sum of those after it; not a difference of sums, which would lose digits."""
    return np.append(np.cumsum(numbers[::-1])[::-1][1:], 0.0)


@lru_cache(maxsize=512)
def omega(epsilon: Fraction, shape: Fraction) -> Fraction:
    """Return a bound on sup E[X - x | X > x] over x >= 0 and all shapes in [0, shape], a multiple of 1/1000.

    >>> float(omega(Fraction(1), Fraction(1)))  # 1/(1 - exp(-1)) = 1.58198
    1.582
    """
    if shape <= 0:
        raise ValueError(f"the shape of noise must be positive, got {float(shape):g}")
    bound = 1 / (1 - rounded_exp(epsilon))
    if shape > 1:
        bound = max(bound, _largest_mean_excess(epsilon, Fraction(1), shape))
    return Fraction(math.ceil(Fraction(bound * ROUNDOFF_FACTOR) * _INFLATION_STEPS), _INFLATION_STEPS)


def _largest_mean_excess(epsilon: Fraction, low: Fraction, high: Fraction) -> float:
    """Return an upper bound of E[X | X > 0] over shapes from `low` to `high`, at least 1.

    Pieces are halved until their bound is within a factor SHARPNESS of the largest value known at an end.
    """
    known = {shape: _positive_moments(epsilon, shape) for shape in (low, high)}
    best = max(mean / chance for mean, chance in known.values())
    pieces, bound = [(low, high)], 0.0
    while pieces:
        start, end = pieces.pop()
        piece = known[end][0] / known[start][1]
        if piece <= best * SHARPNESS:
            bound = max(bound, piece)
            continue
        # a short fraction near the middle: those of exact middles grow without end
        middle = Fraction((start + end) / 2).limit_denominator(10**6)
        known[middle] = _positive_moments(epsilon, middle)
        best = max(best, known[middle][0] / known[middle][1])
        pieces += [(start, middle), (middle, end)]
    return bound


def _positive_moments(epsilon: Fraction, shape: Fraction) -> tuple[float, float]:
    """Return E X^+, or slightly more, and P(X > 0), or slightly less.

    With X = N - M, both of cumulative chances F: X^+ counts the k with M <= k < N, so E X^+ = sum F(k) (1 - F(k)), and
    P(X > 0) = sum f(k) P(N > k).
    """
    known = negative_binomial(epsilon, shape)
    f = known.chances
    below, above = np.cumsum(f), _sums_beyond(f)
    mean = float(np.cumsum(below * (above + known.cut))[-1]) * ROUNDOFF_FACTOR + known.spill
    return mean, float(np.cumsum(f * above)[-1]) / ROUNDOFF_FACTOR
