"""A score of labels: by how much the most probable label beats it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from conformesh.common.array_types import Bools, Floats
from conformesh.scores.base import ClassificationScore, as_label_indices, as_row_values, check_output_table


@dataclass(frozen=True)
class Shortfall(ClassificationScore):
    r"""By how much the most probable label beats this one; 0 for the most probable label itself.

    .. math:: s(x, y) = \max_j \hat p_j(x) - \hat p_y(x)

    Reference: none.
    Departures: none.

    Examples
    --------
    >>> shortfall = Shortfall()
    >>> shortfall([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]], [0, 0])
    array([0.   , 0.625])
    >>> shortfall.sets([[0.5, 0.25, 0.25]], threshold=0.25)
    array([[ True,  True,  True]])
    """

    name: ClassVar[str] = "shortfall"
    summary: ClassVar[str] = "by how much the most probable label beats it"

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> Floats:
        """Return the score of each row's own label."""
        table = self.of_all_labels(outputs)
        return table[np.arange(len(table)), as_label_indices(self.name, table, labels)]

    def sets(self, outputs: ArrayLike, threshold: ArrayLike) -> Bools:
        """Return the labels whose score is at most the threshold."""
        table = self.of_all_labels(outputs)
        return np.less_equal(table, as_row_values(self.name, "threshold", threshold, len(table))[:, None])

    def of_all_labels(self, outputs: ArrayLike) -> Floats:
        """Return the score of every label. The call and the sets both use it: they agree to the last bit."""
        p = check_output_table(self.name, outputs, 0.0, 1.0)
        return np.max(p, axis=1, keepdims=True, initial=0.0) - p


# The entry for SCORES in scores/__init__.py: add the class to its list. The key is the class's own name.
LINE = {Shortfall.name: Shortfall}
