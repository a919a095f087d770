r"""The conformal rank, in integers: the one place where coverage turns into a number of scores.

A threshold keeps the promise ``P(covered) >= 1 - alpha`` as soon as at least

.. math:: r = \lceil (1 - \alpha)(n + K) \rceil

of the n pooled calibration scores are at or below it, for a test point from the mixture of the K devices'
distributions with weights proportional to ``n_k + 1`` ([Lu2023] Theorem 4.3; [Wen2025] Section 3.2, Eq. (1), Eq. (2),
Eq. (3)). ``K = 1`` is
ordinary split conformal prediction.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Alpha = float | str | Decimal | Fraction


def exact_alpha(alpha: Alpha) -> Fraction:
    """Return alpha as the decimal the user wrote: 0.1 means one tenth, not the nearest binary fraction.

    >>> exact_alpha(0.1)
    Fraction(1, 10)
    """
    try:
        value = alpha if isinstance(alpha, Fraction) else Fraction(str(float(alpha) if _is_number(alpha) else alpha))
    except (ValueError, TypeError, ZeroDivisionError):
        raise ValueError(f"alpha must be a number strictly between 0 and 1, got {alpha!r}") from None
    if not 0 < value < 1:
        raise ValueError(f"alpha must lie strictly between 0 and 1, got {alpha}")
    return value


def _is_number(alpha: object) -> bool:
    return not isinstance(alpha, str | Decimal | Fraction)


def conformal_rank(n: int, alpha: Alpha, devices: int = 1) -> int:
    """Return ``ceil((1 - alpha) (n + devices))``: how many of the n scores must lie at or below a valid threshold.

    A rank above n means that no score is large enough: the threshold is +inf and the prediction set holds every label.
    In floats the same formula is sometimes one too high; here it never is.

    >>> conformal_rank(149, 0.18)          # ceil(150 * (1 - 0.18)) in floats gives 124
    123
    >>> conformal_rank(1000, 0.1, devices=20)
    918
    """
    if n < 0 or devices < 1:
        raise ValueError(f"a rank needs n >= 0 scores on at least 1 device, got n={n}, devices={devices}")
    return math.ceil((1 - exact_alpha(alpha)) * (int(n) + int(devices)))


def conformal_threshold(scores: ArrayLike, alpha: Alpha, devices: int = 1) -> float:
    """Return the threshold of scores that are all in hand: the smallest one of conformal rank, +inf if there is none.

    What `calibrate` finds without pooling; for checks, and for data that may be pooled. The scores are partitioned, not
    sorted, and left as they are.

    >>> conformal_threshold([0.1, 0.4, 0.2, 0.3], alpha=0.4)
    0.3
    """
    import numpy as np

    values = np.array(scores, dtype=np.float64).ravel()
    rank = conformal_rank(len(values), alpha, devices)
    enough = rank <= len(values)
    if enough:
        values.partition(rank - 1)  # in place, as `values` is a copy; NaN goes to the end
        values = values[rank - 1 :]
    if np.isnan(values).any():
        raise ValueError("scores must be numbers, got NaN; drop or repair these rows first")
    return float(values[0]) if enough else math.inf
