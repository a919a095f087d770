"""What devices know of a list of scores, for all devices here at once: a table of bits, see `top_k`.

All scores of which anybody here has heard stand in order, each with its owner, once for all devices; a device knows
some of them, a bit each. What its neighbours tell it is then the union of rows, and the k largest that it knows begin
where the bits from the end of its row weigh k. Below that nothing matters to it any more, and what matters to nobody
here is dropped.

A score is known by its column to those who share the table, and by its key and owner to everybody else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.kernels.bits import Bits, bits_of, marked_columns, move_columns, row_unions, rows_marked_from, words_for
from conformesh.kernels.items import Lists
from conformesh.kernels.replies import LOWEST

WEIGHTS_AT_ONCE = 2**22  # weights that are added up at a time: int64 temporaries of 32 MB


class ScoreRuns(NamedTuple):
    """The devices' own scores: whose, by its place here; as keys, of each device ascending; and how often it has it."""

    places: Ints
    keys: Ints
    times: Ints


class ScoreReport(NamedTuple):
    """What a device from elsewhere says of a list: scores as keys, with owner and weight, and the largest held back."""

    keys: Ints
    owners: Ints
    times: Ints
    held_back: int


class _LargestScores(NamedTuple):
    """The k largest scores that one device knows, ascending, with ties of the last one; or all, if they are fewer."""

    keys: Ints
    times: Ints

    @property
    def weight(self) -> int:
        """What they weigh together."""
        return int(self.times.sum())

    def answer(self, k: int) -> tuple[int, int]:
        """Return the key at which the largest scores reach a weight, and what those above it weigh."""
        upward = np.cumsum(self.times[::-1])
        key = int(self.keys[max(len(self.keys) - int(np.searchsorted(upward, k)) - 1, 0)])
        return key, int(self.times[self.keys > key].sum())


class MergedScores:
    """What the devices here know of one list: scores as keys, ascending; negated for the smallest.

    Parameters
    ----------
    k
        What the scores weigh together that everybody is to know.
    counts_ties
        Whether those that equal the last of them must all be known, too.
    rows
        The devices here.
    runs
        Their own scores.
    likely
        What each says of them at first, (devices,).
    """

    def __init__(self, k: int, counts_ties: bool, rows: Ints, runs: ScoreRuns, likely: Ints) -> None:
        self.k, self.counts_ties = k, counts_ties
        self._rows, self._runs = rows, runs
        nobody = np.empty(0, np.int64)
        self.keys, self.owners, self.times = nobody, nobody, nobody
        self._floor = LOWEST  # nothing below it matters to anybody here
        self._known = self.news = np.zeros((len(rows), 0), dtype="<u8")
        self._starts = np.zeros(len(rows), np.int64)  # columns from which on scores are among the k largest
        above = _weights_above(runs)
        said = above < likely[runs.places]
        self.held_back = np.full(len(rows), LOWEST, np.int64)
        np.maximum.at(self.held_back, runs.places[~said], runs.keys[~said])
        weigh = np.zeros(len(rows), np.int64)
        np.add.at(weigh, runs.places[said], runs.times[said])
        self.held_back[weigh >= k] = LOWEST
        self._say_own(said)
        self.news_held_back = self.held_back > LOWEST

    @property
    def known_of_each(self) -> Ints:
        """How many of the scores that still matter each device knows."""
        return np.asarray(np.bitwise_count(self._known).sum(axis=1, dtype=np.int64))

    @property
    def has_news(self) -> NDArray[np.bool_]:
        """Who has something to say."""
        return np.asarray((self.counts > 0) | self.news_held_back)

    def said(self, places: Ints) -> Lists:
        """Return what these have to say."""
        columns, counts = marked_columns(self.news[places]), self.counts[places]
        held_back = np.where(self.news_held_back, self.held_back, LOWEST)[places]
        cuts = np.concatenate([[0], np.cumsum(counts)])
        return Lists(self.keys[columns], self.owners[columns], self.times[columns], cuts, held_back)

    def hear(self, listeners: Ints, starts: Ints, senders: Ints, others: list[ScoreReport]) -> None:
        """Take what neighbours say; what is new and among the k largest is news.

        Listener i hears ``senders[starts[i]:starts[i + 1]]``: places of devices here and, after these, `others`.
        """
        each = np.repeat(np.arange(len(others)), [len(said.keys) for said in others])
        from_others = self._marks(each, len(others), *_join_reports(others))
        back = np.where(self.news_held_back, self.held_back, LOWEST)
        back = np.append(back, np.array([said.held_back for said in others], np.int64))
        heard, heard_back = np.zeros_like(self._known), np.full(len(self._rows), LOWEST, np.int64)
        if len(listeners):
            heard[listeners] = row_unions(np.concatenate([self.news, from_others]), senders, starts)
            heard_back[listeners] = np.maximum.reduceat(back[senders], starts)
        self.news_held_back = heard_back > self.held_back
        self.held_back = np.maximum(self.held_back, heard_back)
        self._take(heard)

    def say_rest(self) -> None:
        """Say what was held back and lies above a key that everybody knows, or at it where ties count; if it matters.

        Where all is answered there are no more news.
        """
        if self.answered:
            self._take(np.zeros_like(self._known))
            return
        top = self.of_first
        above = top.answer(self.k)[0] if len(top.keys) else LOWEST
        rest = (self._runs.keys > above - self.counts_ties) & (self._runs.keys <= self.held_back[self._runs.places])
        self.held_back, self.news_held_back = np.full_like(self.held_back, LOWEST), np.zeros_like(self.news_held_back)
        self._say_own(rest)

    @property
    def of_first(self) -> _LargestScores:
        """What the first device here knows: in the end all know the same."""
        columns = marked_columns(self._known[:1])
        columns = columns[columns >= self._starts[0]]
        return _LargestScores(self.keys[columns], self.times[columns])

    @property
    def answered(self) -> bool:
        """Whether nothing among the k largest can have been held back, nor one of their ties where these count.

        The rank of the k-th largest is counted from above it, that of the r-th smallest from those up to it.
        """
        if self.held_back[0] == LOWEST:
            return True
        top = self.of_first
        return len(top.keys) > 0 and bool(top.answer(self.k)[0] - self.counts_ties >= self.held_back[0])

    def _say_own(self, which: NDArray[np.bool_]) -> None:
        """Let the devices know these of their own scores, and have them to say."""
        places, keys, times = (part[which] for part in self._runs)
        self._take(self._marks(places, len(self._rows), keys, self._rows[places], times))

    def _take(self, heard: Bits) -> None:
        """Know what was heard; what is new and among the k largest is news."""
        fresh = heard & ~self._known
        changed = np.flatnonzero(fresh.any(axis=1))
        self._known[changed] |= fresh[changed]
        self._starts[changed] = self._first_of_largest(self._known[changed])
        self.news = fresh
        self.news[changed] &= rows_marked_from(self._starts[changed], fresh.shape[1])
        self.counts = np.bitwise_count(self.news).sum(axis=1, dtype=np.int64)
        self._drop()

    def _first_of_largest(self, bits: Bits) -> Ints:
        """Return the column from which on a row weighs k, with its ties; 0 where all of it weighs less."""
        out = np.zeros(len(bits), np.int64)
        if not bits.size:
            return out
        upward = np.zeros((len(bits), bits.shape[1] + 1), np.int64)  # what each word weighs, and those after it
        upward[:, :-1] = np.cumsum(self._weights(bits)[:, ::-1], axis=1)[:, ::-1]
        rows = np.flatnonzero(upward[:, 0] >= self.k)
        word = np.count_nonzero(upward[rows] >= self.k, axis=1) - 1  # the last from which on it is enough
        more = self.k - upward[rows, word + 1]
        inside = np.unpackbits(bits[rows, word][:, None].view(np.uint8), axis=1, bitorder="little")
        each = np.cumsum((inside * self._by_words()[word])[:, ::-1], axis=1)[:, ::-1]
        column = 64 * word + np.count_nonzero(each >= more[:, None], axis=1) - 1
        column = np.minimum(column, len(self.keys) - 1)  # who lies may say weights that are too large to add up
        out[rows] = self._first_equal(column)
        return out

    def _first_equal(self, columns: Ints) -> Ints:
        """Return where scores begin that equal those of these columns: ties stay."""
        return np.searchsorted(self.keys, self.keys[columns])

    def _by_words(self) -> Ints:
        """Return what every column weighs, (words, 64)."""
        out = np.zeros((self._known.shape[1], 64), np.int64)
        out.ravel()[: len(self.times)] = self.times
        return out

    def _weights(self, bits: Bits) -> Ints:
        """Return what the columns of each word weigh that are marked in it."""
        if (self.times == 1).all():
            return np.bitwise_count(bits).astype(np.int64)
        out, each = np.empty(bits.shape, np.int64), self._by_words()
        most = max(WEIGHTS_AT_ONCE // (64 * bits.shape[1]), 1)
        for a in range(0, len(bits), most):
            some = np.ascontiguousarray(bits[a : a + most])
            inside = np.unpackbits(some.view(np.uint8), axis=1, bitorder="little").reshape(*some.shape, 64)
            out[a : a + most] = np.where(inside, each, 0).sum(axis=2)
        return out

    def _drop(self) -> None:
        """Forget words of columns that are among nobody's k largest, and of such scores all that will be heard."""
        first = int(self._starts.min())
        if not first:
            return
        self._floor = max(self._floor, int(self.keys[first]))
        if words := first >> 6:
            self.keys, self.owners, self.times = (part[64 * words :] for part in (self.keys, self.owners, self.times))
            self._known, self.news = self._known[:, words:].copy(), self.news[:, words:].copy()
            self._starts -= 64 * words

    def _marks(self, rows: Ints, many: int, keys: Ints, owners: Ints, times: Ints) -> Bits:
        """Return so many rows in which some scores are marked; those not heard of before get a column.

        A score that is there already keeps its weight, whatever is said of it now.
        """
        matters = keys >= self._floor
        rows, keys, owners, times = rows[matters], keys[matters], owners[matters], times[matters]
        columns = self._columns(keys, owners, times) if len(keys) else keys
        return bits_of(rows, columns, (many, self._known.shape[1]))

    def _columns(self, keys: Ints, owners: Ints, times: Ints) -> Ints:
        """Return where scores stand, after those that do not yet have been put where they belong."""
        old = len(self.keys)
        keys, owners = np.append(self.keys, keys), np.append(self.owners, owners)
        order = np.lexsort((owners, keys))  # stable: of the same score what is known comes first
        first = np.ones(len(order), np.bool_)
        same = (np.diff(keys[order]) == 0) & (np.diff(owners[order]) == 0)
        first[1:] = ~same
        columns = np.empty(len(order), np.int64)
        columns[order] = np.cumsum(first) - 1
        chosen = order[first]
        if len(chosen) > old:
            self.keys, self.owners = keys[chosen], owners[chosen]
            self.times = np.append(self.times, times)[chosen]
            words = words_for(len(chosen))
            self._known, self.news = (move_columns(bits, columns[:old], words) for bits in (self._known, self.news))
            self._starts = np.where(self._starts > 0, np.append(columns[:old], 0)[self._starts], 0)
        return columns[old:]


def _join_reports(said: list[ScoreReport]) -> tuple[Ints, Ints, Ints]:
    """Return all scores that were said, with owners and weights."""
    nobody = np.empty(0, np.int64)
    keys, owners, times = (np.concatenate([nobody, *(part[i] for part in said)]) for i in range(3))
    return keys, owners, times


def _weights_above(runs: ScoreRuns) -> Ints:
    """Return what the scores of the same device weigh that are larger."""
    ends = np.flatnonzero(np.diff(runs.places, append=-1))
    upto = np.cumsum(runs.times)
    return np.asarray(np.repeat(upto[ends], np.diff(ends, prepend=-1)) - upto)
