"""Windows of pooled scores: which ranks a window must cover, what the root knows of it, and how it is encoded.

A window holds the distinct scores around a required rank with the weight at or below each (`results.window`). It
contains every score whose count lies between two bounds around the rank, and one score beyond on each side, if there is
one. So it depends on the pooled scores and the request alone: every engine and every schedule returns the same.

`protocols.waves` finds windows: a list of all scores in a bracket is accepted when it covers the window. Where it ends
too early, the next question asks for the scores next to it, on one side (`KnownScores.missing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from conformesh.common.array_types import Ints
from conformesh.kernels import replies as written
from conformesh.kernels.keys import from_keys
from conformesh.kernels.replies import HIGH, HIGHEST, LOW, LOWEST
from conformesh.protocols.block import WindowRequest
from conformesh.results.window import Window

# Questions that a window may take after its first list: the lower side is asked at most twice, because ties or weights
# may leave the list one score short of "one beyond"; the upper side once.
SIDE_QUESTIONS = 3


class WindowAim(NamedTuple):
    """What a window must cover: a score whose count is at most `bottom`, one with at least `top`, and all between.

    Attributes
    ----------
    rank
        The required rank.
    bottom, top
        The counts; `bottom` 0 stands for the first of all scores, and `top` is at most `total`.
    total
        The weight of all scores.
    scores
        About how many scores that are, for the choice between lists and sketches.
    """

    rank: int
    bottom: int
    top: int
    total: int
    scores: int

    @property
    def most_keys(self) -> int:
        """Upper bound of the number of distinct scores in the window: each weighs 1 at least."""
        return min(self.top - self.bottom + 1, self.total)


def window_aims(request: WindowRequest, ranks: Ints, n: Ints, scores: Ints) -> list[WindowAim]:
    """Return the aim of every problem; ranks (columns, levels), weight and number of all scores (columns,)."""
    check_request(request, len(n))
    aims = []
    for column, row in enumerate(ranks.tolist()):
        total, each = int(n[column]), max(int(n[column]) // max(int(scores[column]), 1), 1)
        if request.values is not None:
            # Together with one score beyond on each side: half of the values at or below the rank, half above it.
            down, up = (request.values // 2 - 2) * each, (request.values - request.values // 2 - 1) * each
        else:
            assert request.reach is not None
            down = up = int(request.reach[column])
        for rank in row:
            bottom, top = max(rank - max(down, 0) - 1, 0), min(rank + max(up, 0) + 1, max(total, rank))
            aims.append(WindowAim(rank, bottom, top, total, (top - bottom) // each + 2))
    return aims


def check_request(request: WindowRequest, columns: int) -> None:
    """Raise `ValueError` for a window that means nothing."""
    if (request.values is None) == (request.reach is None):
        raise ValueError(
            f"a window has a number of values or a reach for each column, one of the two, got {request.values} values "
            f"and reach {request.reach}"
        )
    if request.values is not None and request.values < 2:
        raise ValueError(f"a window needs at least 2 values, one on each side, got {request.values}")
    if request.reach is not None and (request.reach.shape != (columns,) or (request.reach < 0).any()):
        raise ValueError(f"reach must be {columns} numbers >= 0, one for each column, got {request.reach}")


class FoundWindow(NamedTuple):
    """A window as keys: the scores, the weight at or below each, and the weight below the first."""

    keys: Ints
    counts: Ints
    below: int


@dataclass(frozen=True, eq=False)
class KnownScores:
    """All scores in a bracket (low, high], as keys with weights, with the exact weight at or below either end."""

    low: int
    below: int
    high: int
    upto: int
    keys: Ints
    times: Ints

    @property
    def counts(self) -> Ints:
        """The weight of all scores at or below each key."""
        return np.asarray(self.below + np.cumsum(self.times))

    def joined(self, other: KnownScores) -> KnownScores:
        """Return this list with one that ends where it begins, or begins where it ends."""
        first, last = (other, self) if other.high == self.low else (self, other)
        assert first.high == last.low
        keys, times = np.concatenate([first.keys, last.keys]), np.concatenate([first.times, last.times])
        return KnownScores(first.low, first.below, last.high, last.upto, keys, times)

    def window(self, aim: WindowAim) -> FoundWindow | None:
        """Return the window if this list covers it."""
        if self.missing(aim) is not None:
            return None
        counts = self.counts
        first = max(int(np.searchsorted(counts, aim.bottom, "right")) - 1, 0)
        last = int(np.searchsorted(counts, aim.top))
        below = int(counts[first - 1]) if first else self.below
        return FoundWindow(self.keys[first : last + 1], counts[first : last + 1], below)

    def missing(self, aim: WindowAim) -> tuple[tuple[int, int], int, int] | None:
        """Return what to ask for next: a bracket, its side, and the weight to list; None if nothing is missing."""
        counts = self.counts
        if self.below and not (len(counts) and counts[0] <= aim.bottom):
            # Down to a score whose count is at most `bottom`: that of the last one listed is, unless it is tied or
            # heavy; then the next one's is.
            return (LOWEST, self.low), HIGH, max(self.below - max(aim.bottom, 1) + 1, 1)
        if self.upto < aim.top:
            return (self.high, HIGHEST), LOW, aim.top - self.upto
        return None


def listed_scores(reply: written.MergedReply, ends: tuple[int, int], side: int, limit: int, base: int) -> KnownScores:
    """Return what a complete list tells of a bracket, where one side was listed until it weighed `limit`.

    `base` is the weight at or below that end of the bracket at which the list begins. Beyond the key at which the list
    reaches the limit it may be incomplete: every device stops there by itself.
    """
    keys, times = reply.keys[: reply.run_count], reply.times[: reply.run_count]
    if side == HIGH:
        keys, times = keys[::-1], times[::-1]
    reached = np.cumsum(times)
    kept = min(int(np.searchsorted(reached, limit)) + 1, len(keys))
    whole = not len(keys) or reached[-1] < limit
    keys, times, weight = keys[:kept], times[:kept], int(reached[kept - 1]) if kept else 0
    if side == LOW:
        return KnownScores(ends[0], base, ends[1] if whole else int(keys[-1]), base + weight, keys, times)
    return KnownScores(ends[0] if whole else int(keys[-1]) - 1, base - weight, ends[1], base, keys[::-1], times[::-1])


# --- the message ------------------------------------------------------------------------------------------------------


def write_window(out: Any, at: int, found: FoundWindow, rank: int) -> tuple[int, int]:
    """Write a window: its keys, their weights, and how far below the rank it begins. Return place and numbers."""
    count, times = len(found.keys), np.diff(found.counts, prepend=found.below)
    at = written.put_keys(out, at, found.keys, count, LOWEST, HIGHEST, 1)
    at = written.put_times(out, at, times, count)
    at = written.put_gamma(out, at, rank - 1 - found.below)
    return at, 1 + count * (2 if (times != 1).any() else 1)


def read_window(data: Any, at: int, aim: WindowAim) -> tuple[FoundWindow, int, int]:
    """Read a window of `write_window`; return it with the numbers it took and the place, `NOWHERE` if it cannot be one.

    Memory is bounded by what was asked for, and by the message: a key takes a bit or more.
    """
    room = min(aim.most_keys, 8 * len(data))
    keys, times = np.zeros(room, np.int64), np.zeros(room, np.int64)
    count, at = written.get_keys(data, at, LOWEST, HIGHEST, keys, 1)
    several, at = written.get_times(data, at, times, count)
    distance, at = written.get_gamma(data, at)
    nothing = FoundWindow(np.empty(0, np.int64), np.empty(0, np.int64), 0)
    below = aim.rank - 1 - distance
    # Sums as Python integers: weights that were made up may exceed an int64.
    if not count or below < 0 or not aim.rank <= below + sum(times[:count].tolist()) <= aim.total:
        return nothing, 0, written.NOWHERE
    return FoundWindow(keys[:count], below + np.cumsum(times[:count]), below), 1 + count + several, at


def windows_of(
    found: dict[int, FoundWindow], ranks: Ints, n: Ints, rounding_loss: Ints | None, examples: Ints | None
) -> list[list[Window]]:
    """Return the window of every column and level; one without values where no score has the rank."""
    nothing = FoundWindow(np.empty(0, np.int64), np.empty(0, np.int64), 0)
    levels = ranks.shape[1]

    def one(column: int, level: int) -> Window:
        window = found.get(column * levels + level, nothing)
        return Window(
            from_keys(window.keys),
            window.counts,
            window.below,
            int(n[column]),
            int(ranks[column, level]),
            0 if rounding_loss is None else int(rounding_loss[column]),
            None if examples is None else int(examples[column]),
        )

    return [[one(column, level) for level in range(levels)] for column in range(len(n))]
