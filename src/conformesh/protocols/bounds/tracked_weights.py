r"""What a device knows of the pooled counts from one row of tracked weights (H-DCP by projection).

Notation: device j holds n_j scores (or weight), of which N_j lie at or below an edge, 0 <= N_j <= n_j; the pooled count
is ``P = sum_j N_j``. A device holds real weights a_j, a number x and an error bound delta with
``|x - sum_j a_j N_j| <= delta`` at every edge. The mean that is sought has a_j = 1 for all j: in the notation of the
paper these are K times the weights, and n times x.

For **any** real weights and any real lambda

.. math:: P \ge \lambda x - \sum_j [\lambda a_j - 1]_+ n_j - |\lambda| \delta, \qquad
          P \le \lambda x + \sum_j [1 - \lambda a_j]_+ n_j + |\lambda| \delta,

because P - lambda sum a_j N_j = sum (1 - lambda a_j) N_j and N_j lies in [0, n_j]. Proofs: docs/guarantees.md.

Every number is a pair of float64, high + low with |low| <= u |high|: extrapolation costs digits, and one has too few.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.protocols.bounds.histogram import UNIT_ROUNDOFF

_Pair = tuple[Floats, Floats]
_ROUNDOFF_FACTOR = 1 + 1e-6  # more than float64 loses in sums of up to 1e8 terms of one sign
_UNDERFLOW = 1e-250  # more than products lose below the smallest normal number
_ROWS = 24  # rows that are combined at a time, at most; projection gossip stays below
_SCALES = 64  # values of lambda that are tried; any of them gives a bound
_STEEPEST = 1e9  # largest value of lambda that is tried
_BEYOND_COUNTS = 2.0**60  # beyond any count, and still an int64


class CountInterval(NamedTuple):
    """Whole numbers between which counts lie, both (devices, edges)."""

    low: Ints
    high: Ints

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Where there is only one."""
        return np.asarray(self.low == self.high)


def combined_noise(coefficients: Floats, masses: Floats, noises: Floats) -> Floats:
    r"""Return the error bound of a combination of rows, over the last axis.

    .. math:: \delta' = \sum_i |c_i| \delta_i + g \sum_i |c_i| (2 S_i + \delta_i), \qquad
              S_i = \sum_j |a_{ij}| n_j, \quad g = 4 m (m + 3) u^2

    `combine_rows` is off by at most g times the sum of magnitudes: for x, where ``|x_i| <= S_i + delta_i``, and for
    each new weight, which counts at most n_j times. m is the most that rows can be, so that it is the same for all.
    """
    size = np.abs(coefficients)
    unit = 4 * _ROWS * (_ROWS + 3) * UNIT_ROUNDOFF**2
    return np.asarray(_ROUNDOFF_FACTOR * (size * (noises + unit * (2 * masses + noises))).sum(axis=-1) + _UNDERFLOW)


def combine_rows(coefficients: Floats, high: Floats, low: Floats) -> _Pair:
    r"""Return sum_i c_i (high_i + low_i) as a pair, for coefficients (problems, m) and rows (problems, m, ...).

    Products and sums of the high parts are split into a rounded number and its exact rest (Dekker, Knuth); what is
    rounded are the rests alone, 3 m terms of at most (m + 2) u sum |c_i high_i| together, in float64: an error of at
    most 3 m (m + 3) u^2 sum |c_i high_i|.
    """
    if high.shape[1] > _ROWS:
        raise ValueError(f"at most {_ROWS} rows can be combined with the error that is claimed, got {high.shape[1]}")
    total, rest = np.zeros_like(high[:, 0]), np.zeros_like(high[:, 0])
    for i in range(high.shape[1]):
        c = coefficients[:, i].reshape(-1, *[1] * (high.ndim - 2))
        product, error = _product(c, high[:, i])
        total, lost = _sum(total, product)
        rest += lost + (error + c * low[:, i])
    return _sum(total, rest)


def _sum(a: Floats, b: Floats) -> _Pair:
    """Return a + b, rounded, and exactly what is left of it."""
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


def _product(a: Floats, b: Floats) -> _Pair:
    """Return a b, rounded, and exactly what is left of it."""
    product = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return product, a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


def _halves(a: Floats) -> _Pair:
    """Return a as a sum of two numbers of 26 bits."""
    scaled = 134217729.0 * a  # 2^27 + 1
    high = scaled - (scaled - a)
    return high, a - high


def one_sided_sums(deviations: Floats, sizes: Floats) -> _Pair:
    """Return sum [d_j]_+ n_j and sum [-d_j]_+ n_j over the last axis, rounded up, of deviations d_j = a_j - 1."""
    over, under = ((np.maximum(side, 0) * sizes).sum(axis=-1) for side in (deviations, -deviations))
    return _ROUNDOFF_FACTOR * over, _ROUNDOFF_FACTOR * under


def tracked_epsilon(high: Floats, low: Floats, noises: Floats, sizes: Floats) -> Floats:
    """Return the largest error of x / n on either side, with what round-off adds, of rows of weights."""
    worst = np.maximum(*one_sided_sums((high - 1) + low, sizes))
    return np.asarray(_ROUNDOFF_FACTOR * (worst + noises) / sizes.sum(axis=-1))


def count_bounds(x: _Pair, weights: _Pair, noise: float, sizes: Floats) -> _Pair:
    """Return bounds of the counts at one device's edges, from its (edges,) numbers and (devices,) weights.

    Counts do not fall from edge to edge, so that a lower bound holds at all later edges, and an upper one at all
    earlier ones.
    """
    near = one_sided_sums((weights[0] - 1) + weights[1], sizes)
    scales = _scales(weights[0])[:, None]
    rounding = 4 * UNIT_ROUNDOFF * ((np.abs(scales * weights[0]) + 1) * sizes).sum(axis=1)
    over, under = (side + rounding for side in one_sided_sums(scales * weights[0] - 1, sizes))
    scales = np.append(scales, [[1.0]], axis=0)
    over, under = np.append(over, near[0])[:, None], np.append(under, near[1])[:, None]
    middle = scales * x[0] + scales * x[1]
    rest = _ROUNDOFF_FACTOR * scales * noise + 8 * UNIT_ROUNDOFF * (scales * np.abs(x[0]) + over + under)
    low, high = (middle - over - rest).max(axis=0), (middle + under + rest).min(axis=0)
    return np.maximum.accumulate(low), np.minimum.accumulate(high[::-1])[::-1]


def _scales(weights: Floats) -> Floats:
    """Return values of lambda worth trying besides 1: where the bound as a function of lambda bends."""
    positive = np.sort(weights[weights > 1 / _STEEPEST])
    if len(positive) > _SCALES:
        positive = positive[np.linspace(0, len(positive) - 1, _SCALES).astype(np.int64)]
    return 1 / positive


def whole_counts(x: _Pair, weights: _Pair, noises: Floats, sizes: Floats) -> CountInterval:
    """Return between which whole numbers the counts lie, at every device (rows) and edge.

    Bounds that exclude each other are an error, never a count: somebody said something that is not so.
    """
    low, high = np.zeros(x[0].shape, dtype=np.int64), np.zeros(x[0].shape, dtype=np.int64)
    total = int(sizes.sum())
    for k in range(len(noises)):
        below, above = count_bounds((x[0][k], x[1][k]), (weights[0][k], weights[1][k]), float(noises[k]), sizes)
        low[k] = np.ceil(np.clip(below, 0, _BEYOND_COUNTS))
        high[k] = np.floor(np.clip(above, -1, total))
    if (low > high).any():
        k, m = (int(at) for at in np.argwhere(low > high)[0])
        raise ArithmeticError(
            f"at edge {m} a device can have counted neither {low[k, m]} scores or more nor {high[k, m]} or fewer, and "
            "it must be one of them: what it was told does not belong together, and no threshold can be certified"
        )
    return CountInterval(low, high)
