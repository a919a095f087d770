"""The two strings that a device sends in R-DCP, and their decoders, which accept nothing that is inconsistent.

Ends     a byte 1, then of each trial the smallest and the largest finite score
Report   a byte 2, then of each trial the ends of the grid that was used and the largest finite score, then in whole
         numbers: how many scores, bins and occupied bins there are, how many finite scores lie above the grid, gaps
         between the occupied bins, and how many scores each of these holds

A Byzantine device may send any bytes. A decoder raises `ValueError` for what no honest device could send: bins that do
not ascend, or more scores than the device claims to hold. What it accepts need not be true.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from conformesh.common.array_types import Floats, Ints
from conformesh.kernels.varints import decode_varints, encode_varints
from conformesh.protocols.quantiser import bin_edges

ENDS_CODE, _REPORT = 1, 2  # the first byte of a string: its kind
MOST_BINS = 2**16  # limits what a Byzantine device can make others allocate; 16 times the default
_NUMBERS = np.dtype("<f8")
_HEAD_NUMBERS = 4  # whole numbers of a trial before its bins: size, bins, occupied bins, scores above


@dataclass(frozen=True, eq=False)
class Report:
    """A histogram of a device's scores, on a grid of `bins` between `low` and `high`.

    Attributes
    ----------
    size
        How many scores it holds.
    places, counts
        The bins that hold any, ascending, and how many these hold. The first bin also holds all that lies below.
    above, top
        How many finite scores lie above the grid, and the largest finite score.
    """

    size: int
    low: float
    high: float
    bins: int
    places: Ints
    counts: Ints
    above: int
    top: float

    @classmethod
    def of(cls, scores: Floats, low: float, high: float, bins: int) -> Report:
        """Report sorted scores on a grid.

        >>> Report.of(np.array([0.1, 0.3, 7.0]), 0.0, 1.0, 4).counts.tolist()
        [1, 1]
        """
        at = np.searchsorted(grid_edges(low, high, bins), scores, side="left")
        places, counts = np.unique(at[at < bins], return_counts=True)
        above = scores[(at == bins) & np.isfinite(scores)]
        return cls(len(scores), low, high, bins, places, counts, len(above), float(above[-1]) if len(above) else high)

    @property
    def points(self) -> tuple[Floats, Ints]:
        """Thresholds, ascending, and how many scores more than at the one before lie at or below each of them."""
        where, many = grid_edges(self.low, self.high, self.bins)[self.places], self.counts
        return (np.append(where, self.top), np.append(many, self.above)) if self.above else (where, many)

    def problem(self, most: int) -> str:
        """Return why a report is impossible, or an empty string; `most` is the largest number of scores."""
        if not (math.isfinite(self.low) and math.isfinite(self.high) and math.isfinite(self.top)):
            return "the ends of a grid must be finite"
        if not (self.low <= self.high <= self.top and (self.top > self.high or not self.above)):
            return f"the ends of a grid must ascend, got {self.low} {self.high} {self.top}"
        if not 1 <= self.bins <= MOST_BINS or (len(self.places) and self.places[-1] >= self.bins):
            return f"a grid has 1 to {MOST_BINS} bins, and scores in these alone"
        if self.counts.min(initial=1) < 1 or sum(self.counts.tolist()) + self.above > self.size:
            return "occupied bins hold a score or more, and all of them no more than there are"
        return "" if self.size <= most else f"a device holds at most {most} scores, got {self.size}"


@lru_cache(maxsize=64)
def grid_edges(low: float, high: float, bins: int) -> Floats:
    """Return the upper edges of a grid, the same bits on the device that counts and on those that decode."""
    edges: Floats = bin_edges(np.array([low]), np.array([high]), bins)[0]
    edges.setflags(write=False)
    return edges


def encode_ends(low: Floats, high: Floats) -> bytes:
    """Return the string with the ends of a device's scores, each (trials,)."""
    return bytes([ENDS_CODE]) + np.stack([low, high], axis=1).astype(_NUMBERS).tobytes()


def decode_ends(said: bytes, trials: int) -> tuple[Floats, Floats]:
    """Return the ends from a string, each (trials,); a device without finite scores sends +inf and -inf."""
    if len(said) != 1 + 16 * trials or said[0] != ENDS_CODE:
        raise ValueError(f"{len(said)} bytes are no ends of {trials} trials")
    low, high = np.frombuffer(said, _NUMBERS, offset=1).astype(np.float64).reshape(trials, 2).T
    if np.isnan(low).any() or np.isnan(high).any():
        raise ValueError("an end must be a number, got NaN")
    return low, high


def encode_reports(reports: Sequence[Report]) -> bytes:
    """Return the string with a device's reports, one for each trial."""
    floats = np.array([[one.low, one.high, one.top] for one in reports], dtype=_NUMBERS)
    whole = [
        part
        for one in reports
        for part in (
            np.array([one.size, one.bins, len(one.places), one.above], dtype=np.int64),
            np.diff(one.places, prepend=-1) - 1,
            one.counts,
        )
    ]
    return bytes([_REPORT]) + floats.tobytes() + encode_varints(np.concatenate(whole).astype(np.int64)).tobytes()


def decode_reports(said: bytes, trials: int, most: int) -> list[Report]:
    """Return the reports from a string; raise `ValueError` if it is invalid. `most` is the largest size."""
    start = 1 + 24 * trials
    if len(said) < start or said[0] != _REPORT:
        raise ValueError(f"{len(said)} bytes are no reports of {trials} trials")
    floats = np.frombuffer(said[1:start], _NUMBERS).reshape(trials, 3).tolist()
    numbers, at, found = decode_varints(np.frombuffer(said, np.uint8, offset=start)), 0, []
    for low, high, top in floats:
        if len(numbers) < at + _HEAD_NUMBERS:
            raise ValueError("a report is cut off")
        size, bins, many, above = numbers[at : at + _HEAD_NUMBERS].tolist()
        at += _HEAD_NUMBERS
        if many > min(MOST_BINS, (len(numbers) - at) // 2):
            raise ValueError(f"a report says that {many} bins hold scores, and does not list them")
        gaps, counts = numbers[at : at + many], numbers[at + many : at + 2 * many]
        at += 2 * many
        if gaps.max(initial=0) > MOST_BINS:
            raise ValueError(f"a grid has 1 to {MOST_BINS} bins")
        report = Report(size, low, high, bins, np.cumsum(gaps + 1) - 1, counts, above, top)
        if problem := report.problem(most):
            raise ValueError(problem)
        found.append(report)
    if at != len(numbers):
        raise ValueError(f"a report says {len(numbers) - at} numbers that belong to nothing")
    return found
