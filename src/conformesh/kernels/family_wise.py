"""TESTINGS: which of several hypotheses to reject, a true one among them with probability at most delta.

Each returns a mask of the rejected ones, from p-values in the order in which hypotheses were given. Comparisons are in
fractions: p-values are floats that were rounded up, and delta is the decimal that was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from conformesh.common.array_types import Bools


def _fixed_sequence(p_values: Sequence[float], delta: Fraction) -> Bools:
    """Reject one after the other, each at delta, up to the first that cannot be rejected."""
    rejected = np.zeros(len(p_values), dtype=np.bool_)
    for i, p in enumerate(p_values):
        if Fraction(p) > delta:
            break
        rejected[i] = True
    return rejected


def _holm(p_values: Sequence[float], delta: Fraction) -> Bools:
    """Reject in ascending order of p-values, the i-th of m at delta / (m - i + 1), up to the first that is larger."""
    rejected = np.zeros(len(p_values), dtype=np.bool_)
    left = len(p_values)
    for i in np.argsort(np.asarray(p_values), kind="stable").tolist():
        if Fraction(p_values[i]) > delta / left:
            break
        rejected[i] = True
        left -= 1
    return rejected


@dataclass(frozen=True)
class Testing:
    """A way to test several hypotheses.

    Attributes
    ----------
    reject
        From p-values and delta to the rejected hypotheses.
    first_level
        At which level the first hypothesis is tested, of so many: a smaller p-value is needed for anything at all.
    summary
        One sentence.
    """

    __test__ = False  # no class of tests, whatever its name looks like

    reject: Callable[[Sequence[float], Fraction], Bools]
    first_level: Callable[[Fraction, int], Fraction]
    summary: str


TESTINGS: dict[str, Testing] = {
    "fixed-sequence": Testing(
        _fixed_sequence,
        lambda delta, many: delta,
        "lambdas in the order of the grid, each at the full level, up to the first that fails",
    ),
    "holm": Testing(
        _holm,
        lambda delta, many: delta / many,
        "by ascending p-values, whatever the order of the grid; the i-th of m must be at most delta / (m - i + 1) "
        "([Holm1979])",
    ),
}
