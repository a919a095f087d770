"""A score of labels: how many labels the model holds more probable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from conformesh.scores.base import Bools, ClassificationScore, Floats, checked_table, labels_of, per_row


@dataclass(frozen=True)
class Rank(ClassificationScore):
    r"""The place of the label in the model's list, from 0: sets of the k most probable labels.

    .. math:: s(x, y) = \sum_j [\hat p_j(x) > \hat p_y(x)]

    Reference: none.
    Departures: none.

    Examples
    --------
    >>> rank = Rank()
    >>> rank([[0.5, 0.3, 0.2], [0.1, 0.7, 0.2]], [0, 0])
    array([0., 2.])
    >>> rank.sets([[0.5, 0.3, 0.2]], threshold=1)
    array([[ True,  True, False]])
    """

    name: ClassVar[str] = "rank"
    summary: ClassVar[str] = "how many labels are more probable"

    def __call__(self, outputs: ArrayLike, labels: ArrayLike) -> Floats:
        """Return the score of each row's own label."""
        table = self.of_all_labels(outputs)
        return table[np.arange(len(table)), labels_of(self.name, table, labels)]

    def sets(self, outputs: ArrayLike, threshold: ArrayLike) -> Bools:
        """Return the labels whose score is at most the threshold."""
        table = self.of_all_labels(outputs)
        return np.less_equal(table, per_row(self.name, "threshold", threshold, len(table))[:, None])

    def of_all_labels(self, outputs: ArrayLike) -> Floats:
        """Return the score of every label. The call and the sets both use it: they agree to the last bit."""
        p = checked_table(self.name, outputs, 0.0, 1.0)
        return (p[:, None, :] > p[:, :, None]).sum(axis=2).astype(np.float64)


# The entry for SCORES in scores/__init__.py: add the class to its list. The key is the class's own name.
LINE = {Rank.name: Rank}
