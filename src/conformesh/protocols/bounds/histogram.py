r"""How far a device's view of the pooled histogram can be from the truth (H-DCP).

Notation: K devices hold n_k scores, n in all; ``c_k = K n_k / n``; ``W_eta = I + eta (W - I)`` is symmetric and doubly
stochastic with eigenvalues 1 = l_1 > l_2 >= ... >= l_K, ``rate = max(|l_2|, |l_K|)``. Device k starts with
``y_{m,k} = K * #{its scores <= edge m} / n``; the mean over devices is P_m, the pooled fraction.

All bounds are on ``|y_{m,k}(T) - P_m|``, for every bin m and every device k. Proofs: docs/guarantees.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformesh.protocols.wire_format import WireFormat

UNIT_ROUNDOFF = 2.0**-53  # unit round-off of float64


@dataclass(frozen=True)
class MixingRates:
    """What the bounds need of W_eta: its second and its smallest eigenvalue, and the longest sum a device forms."""

    second: float
    smallest: float
    degree: int
    strength: float

    @property
    def rate(self) -> float:
        """Return the factor by which a round shrinks disagreement."""
        return max(abs(self.second), abs(self.smallest))


def h_dcp_paper_epsilon(sizes: NDArray[np.int64], bins: int, gap: float, eta: float, rounds: int) -> float:
    r"""Return the correction as printed ([Wen2025] Theorem 5.2, Eq. (26)).

    .. math:: \epsilon = \frac{K \sqrt{2KM} (1 - \eta\varrho)^T}{n} \sqrt{\max_k n_k^2 + \tfrac1K \sum_j n_j^2}

    `gap` is 1 minus the second largest *magnitude* of the eigenvalues of W; the paper writes lambda_2.
    """
    sizes = sizes.astype(np.float64)
    k, n = len(sizes), sizes.sum()
    spread = math.sqrt(float((sizes**2).max() + (sizes**2).mean()))
    return float(k * math.sqrt(2 * k * bins) * _power(1 - eta * gap, rounds) / n * spread)


def h_dcp_cumulative_epsilon(sizes: NDArray[np.int64], rate: float, rounds: int) -> float:
    r"""Return the bound for cumulative counts, free of the number of bins.

    .. math:: \epsilon = \text{rate}^T \, \frac{\|c - 1\| + \|c\|}{2}

    Every coordinate starts in the box prod [0, c_j]; centring the box halves its radius.
    """
    return _power(rate, rounds) * start_radius(sizes)


def h_dcp_chebyshev_epsilon(sizes: NDArray[np.int64], rate: float, rounds: int) -> float:
    r"""Return the same bound for Chebyshev-accelerated gossip: ``1 / cosh(T arccosh(1 / rate))`` in place of rate^T."""
    if rounds == 0 or rate >= 1:
        return start_radius(sizes)
    shrink = 0.0 if rate <= 0 else 1 / math.cosh(min(rounds * math.acosh(1 / (rate + 1e-13)), 700.0))
    return shrink * start_radius(sizes)


def h_dcp_row_epsilon(sizes: NDArray[np.int64], rest: NDArray[np.float64]) -> float:
    r"""Return the largest error that any start in the box prod [0, c_j] can leave, for `rest` = p(W) - J in full.

    .. math:: \epsilon = \max_k \max\left( \sum_j [M_{kj}]_+ c_j, \sum_j [M_{kj}]_- c_j \right)

    The worst case is attained, so no bound from the same knowledge is smaller; it needs the K x K matrix.
    """
    c = sizes * (len(sizes) / float(sizes.sum()))
    worst = np.maximum(np.clip(rest, 0, None) @ c, np.clip(-rest, 0, None) @ c).max()
    return float(worst) + 1e-13 * float(np.linalg.norm(c))  # what computing the matrix itself may be off


def start_radius(sizes: NDArray[np.int64]) -> float:
    """Return (||c - 1|| + ||c||) / 2, how far from its mean a start in the box prod [0, c_j] can count."""
    c = sizes * (len(sizes) / float(sizes.sum()))
    return 0.5 * float(np.linalg.norm(c - 1) + np.linalg.norm(c))


def rounding_gain(mixing: MixingRates, rounds: int) -> float:
    r"""Return G = sum over s < T of max |l|^s |1 - l| over l_K <= l <= l_2: how far rounding errors add up.

    Devices subtract their own value as sent, so a rounding error d(t) enters as (W_eta - I) d(t): it moves no mean, and
    what it adds to the disagreement shrinks with the disagreement.
    """
    s = np.arange(rounds, dtype=np.float64)
    peak = np.minimum(s / (s + 1), max(mixing.second, 0.0))  # l^s (1 - l) rises up to l = s / (s + 1)
    positive = peak**s * (1 - peak)
    low = mixing.smallest
    at_low = abs(low) ** s * (1 - low)
    at_second = abs(mixing.second) ** s * (1 - mixing.second)
    return float(np.maximum(positive, np.maximum(at_low, at_second)).sum())


def arithmetic_epsilon(sizes: NDArray[np.int64], mixing: MixingRates, rounds: int, wire: WireFormat) -> float:
    r"""Return what finite precision adds: rounding on the wire, and float64 in the devices.

    With Y = max over rounds of ||y(t)||, wire errors obey ``||d(t)|| <= u Y + sqrt(K) v`` (u relative, v subnormal),
    and the float64 arithmetic of one round adds at most ``g Y`` with ``g = (degree + 6) (1 + 2 strength) 2^-53``. So

    .. math:: Y \le \frac{\|c\| + G \sqrt K v}{1 - G u - T g}, \qquad
              \epsilon = G (u Y + \sqrt K v) + (T + 2) g Y,

    and infinity when the denominator is not positive: precision is exhausted, nothing can be certified.
    """
    sizes = sizes.astype(np.float64)
    k = len(sizes)
    start = float(np.linalg.norm(sizes * (k / sizes.sum())))
    local = (mixing.degree + 6) * (1 + 2 * mixing.strength) * UNIT_ROUNDOFF
    gain = rounding_gain(mixing, rounds) if wire.roundoff else 0.0
    left = 1 - gain * wire.roundoff - rounds * local
    if left <= 0:
        return math.inf
    size = (start + gain * math.sqrt(k) * wire.underflow) / left
    return gain * (wire.roundoff * size + math.sqrt(k) * wire.underflow) + (rounds + 2) * local * size


def _power(rate: float, rounds: int) -> float:
    """Raise a rate that is itself only known to about 1e-15, so that round-off cannot make a bound too small."""
    return 1.0 if rounds == 0 else (max(rate, 0.0) + 1e-13) ** rounds
