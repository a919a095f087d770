"""Proportions of independent hits: exact intervals, exact tests, and tests of many at once.

SciPy is loaded when a function is called: a device that only calibrates does not need it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from conformesh.common.array_types import Bools, Floats

CONFIDENCE = 0.95
FAMILY_WISE_ERROR = 0.05  # chance that there is any false alarm among many tests


def exact_intervals(hits: ArrayLike, rows: ArrayLike, confidence: float = CONFIDENCE) -> tuple[Floats, Floats]:
    """Return the Clopper-Pearson intervals of proportions: each holds the truth with at least this probability.

    >>> low, high = exact_intervals([90], [100])
    >>> low.round(4), high.round(4)
    (array([0.8238]), array([0.951]))
    """
    from scipy.special import betaincinv

    k, n = np.asarray(hits, dtype=np.float64), np.asarray(rows, dtype=np.float64)
    tail = (1 - confidence) / 2
    # Without hits, and with nothing but hits, an end is known; the function has no value there.
    low = np.where(k > 0, betaincinv(np.maximum(k, 1), n - k + 1, tail), 0.0)
    high = np.where(k < n, betaincinv(k + 1, np.maximum(n - k, 1), 1 - tail), 1.0)
    return low, high


def wilson_interval(hits: int, rows: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion: approximate, for rows that are only about independent.

    >>> low, high = wilson_interval(90, 100)
    >>> round(low, 4), round(high, 4)
    (0.8256, 0.9448)
    """
    if rows == 0:  # no rows say nothing about the rate
        return 0.0, 1.0
    from statistics import NormalDist

    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = hits / rows
    centre = (p + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z / (1 + z * z / rows) * np.sqrt(p * (1 - p) / rows + z * z / (4 * rows * rows))
    low = 0.0 if hits == 0 else float(centre - half)  # exact ends, where round-off would leave 1e-17
    high = 1.0 if hits == rows else float(centre + half)
    return low, high


def shortfall_p_values(hits: ArrayLike, rows: ArrayLike, nominal: float) -> Floats:
    """Return the exact one-sided p-values of "the rate is at least `nominal`", the chance of so few hits.

    Without rows it is 1.

    >>> shortfall_p_values([80, 90, 0], [100, 100, 0], 0.9).round(4)
    array([0.002 , 0.5487, 1.    ])
    """
    from scipy.special import betaincc

    # betaincc is exact to 12 digits; SciPy's bdtr loses all but three for ten million rows.
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(rows, dtype=np.float64)
    return np.where(k < n, betaincc(k + 1, np.maximum(n - k, 1), nominal), 1.0)


def rejected_by_holm(p_values: ArrayLike, error: float = FAMILY_WISE_ERROR) -> Bools:
    """Return which hypotheses Holm's procedure rejects: one that is true with at most the chance `error`.

    This holds however the tests depend on each other. The smallest p-value is compared with error / m, the next one
    with error / (m - 1), and so on up to the first that is larger.

    >>> rejected_by_holm([0.01, 0.04, 0.03])
    array([ True, False, False])
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    fails = values[order] * np.arange(len(values), 0, -1) > error
    first = int(fails.argmax()) if fails.any() else len(values)
    rejected = np.zeros(len(values), dtype=np.bool_)
    rejected[order[:first]] = True
    return rejected
