"""Window: the pooled scores around a required rank, with exact counts. A device predicts with it and its own rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from conformesh.common.array_types import Floats, Ints

_Count = Annotated[int, Meta(ge=0)]


class Window(Struct, frozen=True, eq=False, forbid_unknown_fields=True):
    """The distinct pooled scores around a required rank, and the weight of all scores at or below each.

    Between the first and the last value the counts are known exactly: no score lies between two neighbouring values.
    There are no values where no score has the required rank. With `p-dcp` values are points of its grid, and scores
    between two of them count as the larger one: counts at the values are exact all the same.

    Attributes
    ----------
    values
        Scores, ascending, all different.
    counts
        The weight of all scores at or below each value.
    below
        The weight of all scores below the first value.
    total
        The weight of all scores.
    required
        The required rank.
    rounding_loss
        By how much the weights of all scores were rounded down in all; the required rank contains it.
    example_mass
        The weight of all examples, where that is not the weight of the scores.
    """

    values: Floats
    counts: Ints
    below: _Count
    total: _Count
    required: int
    rounding_loss: _Count = 0
    example_mass: _Count | None = None

    def __post_init__(self) -> None:
        if self.values.shape != self.counts.shape or self.values.ndim != 1:
            raise ValueError(
                f"a window has a count for every value, got {self.values.shape} values and {self.counts.shape} counts"
            )
        if np.isnan(self.values).any() or not (self.values[1:] > self.values[:-1]).all():
            raise ValueError("the values of a window must be numbers that ascend")
        counts = [self.below, *self.counts.tolist(), self.total]
        ascending = all(low < high for low, high in pairwise(counts[:-1]))
        if not ascending or counts[-2] > self.total:
            raise ValueError(
                f"the counts of a window must ascend from more than {self.below}, what lies below it, to at most "
                f"{self.total}, the weight of all scores"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Window):
            return NotImplemented
        rest = (name for name in self.__struct_fields__ if name not in ("values", "counts"))
        same = np.array_equal(self.values, other.values) and np.array_equal(self.counts, other.counts)
        return same and all(getattr(self, name) == getattr(other, name) for name in rest)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if not len(self.values):
            return f"Window(no values: required rank {self.required:,} of weight {self.total:,})"
        ends = f"{self.values[0]:.6g} to {self.values[-1]:.6g}, ranks {self.below + 1:,} to {int(self.counts[-1]):,}"
        return f"Window({len(self.values)} values from {ends} of weight {self.total:,}, required {self.required:,})"
