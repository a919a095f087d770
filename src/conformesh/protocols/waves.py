r"""Search for ranks by waves over a spanning tree: replies are merged on the way up, instructions come down.

The root holds a bracket (low, high] for every problem, with exact counts at its ends where they are known. One pass:

1. Every device replies to the open question for its whole subtree (`Waves.collect_replies`): few scores are listed,
   many are summarised by a sketch (`kernels.replies`).
2. The root decides (`TreeRoot.instruct`): from an exact list it reads the answer; from a sketch it guesses a narrower
   bracket, which is the next question. Replies to it count what lies below the bracket too, so a wrong guess is
   noticed and costs one more pass, never a wrong answer.
3. The instruction is relayed down the tree unchanged (`Waves.pass_on`), and every device reads it (`read_instruction`).

What the first question is:

top-k    the first question is for the smaller side of the order: the n - r + 1 largest scores (or the r smallest)
window   a sketch of everything, then all scores in the window that should hold rank r
count    a sketch of everything, then sketches of ever narrower brackets until few scores are left

The tree is grown by the same messages: the first question travels with the wave that explores it, and the deepest
devices name their parents together with their first reply. This saves a wave down and up.

Assumes     graph connected; the centre of the map and its eccentricity known
Guarantees  the score of rank r, bit for bit, and its counted rank, on every device. Sketches only decide where to look
Message     bit strings (`kernels.replies`); the instructions of the root are relayed as they are
Departures  not from a paper
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.kernels import replies as written
from conformesh.kernels.compilation import compiled_loops, expect_work
from conformesh.kernels.keys import from_keys, to_keys
from conformesh.kernels.replies import (
    BEGIN,
    BELOW,
    BOTH,
    COUNTED,
    EACH,
    END,
    EVEN,
    GROWTH,
    HIGH,
    HIGHEST,
    LEVEL,
    LEVEL_UNITS,
    LIMIT,
    LOW,
    LOWEST,
    OUTSIDE,
    POINTS,
    SIDE,
    TRIAL,
    USUAL,
)
from conformesh.kernels.threads import run_in_blocks
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Block
from conformesh.protocols.messages import Packets, Protocol, Silence, Tell
from conformesh.protocols.score_windows import (
    SIDE_QUESTIONS,
    FoundWindow,
    KnownScores,
    WindowAim,
    listed_scores,
    read_window,
    window_aims,
    write_window,
)
from conformesh.protocols.tree import PartialTree, SpeakingTurns, TreeLevel, explore_tree

# How an end of a bracket is encoded: a new rounded guess, the low or high end of the last question, an infinite end,
# or all 64 bits of a key. The numbers are part of the message format; the most frequent kinds have the shortest codes.
_NEW, _LAST_LOW, _LAST_HIGH, _OPEN, _RAW = range(5)
# Bits of precision of a new end: of one that stands alone, and of two relative to their distance. They are guesses, so
# few bits are enough: rounding moves a window a little, and replies count what it left out.
_END_BITS = (24, 5)
# How far a guess may be off (`half_width`, `_sketch_bias`): measured on drawn scores of several shapes, in trees of 20
# to 100,000 devices. Too small values cost passes, too large ones list more scores; none changes a result.
PIECE_SHARE = 0.25  # share of the pieces of sketches around the guess that counts as error
COMMON_BIAS = 1e-4  # of all scores in the bracket: interpolation errors that are the same on all devices
_BIAS_FACTOR = 0.22  # of f'/f^2: ranks by which linear interpolation is too high, per device
_LARGEST_BIAS = 0.1  # ranks per device: no larger bias was seen, so the correction saturates there
UNTRUSTED_CORRECTION = 0.5  # share of the bias correction that counts as error
_SMALLEST_HALF_WIDTH = 3.0  # ranks: however good the estimate, ties and rounded ends need some room
_TIE_DISTANCE = 2.0**-40  # relative distance below which the ends of a guess count as tied scores
_NEXT_WINDOW_FACTOR = 1.3  # size of the window after one that missed, as a multiple of the ranks it missed by
# Passes after which one side of the bracket is listed completely. This ends every search, also where Byzantine or
# changing scores make guesses miss for ever. Usually two passes are enough.
PASSES_BEFORE_LISTING = 12
_ALWAYS_LISTED = 4.0  # scores; a sketch of so few would be longer than the list
# A subtree that holds more than this multiple of the expected number of scores sends a sketch in place of the list. So
# a bad guess cannot make one device send a large part of all scores.
MOST_LISTED = 8
_REPLY_TO_QUESTION = "reply to what was asked"
NO_PACKETS = Packets(np.empty(0, np.uint8), np.zeros(1, np.int64))  # no byte, and the offset 0 that begins every list


@dataclass(frozen=True)
class Pace:
    """How much to ask in one pass.

    Attributes
    ----------
    points, growth
        Points of a device's sketch, and additional points for each doubling of the weight of its subtree.
    fetched
        Scores that a device may list in one pass, on average; where there are more, a sketch is sent again.
    slack
        Factor on the width of the window around a guess (`half_width`): a narrower one misses more often.
    """

    points: int
    growth: int
    fetched: float
    slack: float = 1.0


@dataclass
class RankSearch:
    """One rank to be found, as the root sees it: count(low) = below < rank <= upto = count(high)."""

    rank: int
    below: int
    upto: int
    each: float = 1.0  # average weight of a score
    low: int = LOWEST
    high: int = HIGHEST
    # The distribution function of the last sketch: knots, values just below and at them, mass at -inf.
    guess: Any = None
    missed: int = 0  # windows since that sketch that did not hold the rank
    aim: WindowAim | None = None  # with a window of scores: what it must cover
    known: KnownScores | None = None  # and what part of it the replies have listed so far

    @property
    def bottom(self) -> int:
        """The lowest rank that is needed."""
        return self.rank if self.aim is None else max(self.aim.bottom, 1)

    @property
    def top(self) -> int:
        """The highest rank that is needed."""
        return self.rank if self.aim is None else self.aim.top


@dataclass
class FoundScore:
    """The answer to a problem, as every device knows it at the end.

    Attributes
    ----------
    answer, counted
        The key of the score, and the weight of all scores up to it.
    bracket
        The keys between which it was found, for a warm start of a later run.
    window
        The scores around it, where they were asked for.
    """

    answer: int = 0
    counted: int = 0
    bracket: tuple[int, int] = (LOWEST, HIGHEST)
    window: FoundWindow | None = None


@dataclass(eq=False)
class WaveQuestion:
    """State of the run on the devices of one block: the open questions, and the answers so far."""

    asks: Ints  # one row for each open problem, with the columns of `kernels.replies`
    which: list[int]  # the problem of each row
    found: list[FoundScore]
    passes: int = 0
    sketches: int = 0  # questions that were replied to by sketches, after the first
    aims: list[WindowAim] | None = None  # of every problem, with windows of scores

    def copy(self) -> WaveQuestion:
        """Return a copy: who relays an instruction reads it once to count its numbers, before it is applied."""
        return replace(self, asks=self.asks.copy(), which=[*self.which], found=[*self.found])

    def keep(self, marked: NDArray[np.bool_]) -> None:
        """Keep only the questions about the marked problems."""
        rows = [i for i, problem in enumerate(self.which) if marked[problem]]
        self.asks, self.which = self.asks[rows], [self.which[i] for i in rows]


# --- waves ------------------------------------------------------------------------------------------------------------


class Waves:
    """The spanning tree of a run, as the devices of one block know it, with their scores."""

    def __init__(self, block: Block, samples: WeightedScores, count_bits: int) -> None:
        self.block, self.samples, self.count_bits = block, samples, count_bits
        self.levels: list[TreeLevel] = []
        self._sapling: PartialTree | None = None
        self._turns: SpeakingTurns | None = None
        # The round of a pass after which a device knows when it speaks next. The first pass still grows the tree, so
        # its first round announces no silence.
        self._first = 1
        at = np.flatnonzero(block.rows == block.network.centre)
        self.root = int(at[0]) if len(at) else -1  # place of the root among the local devices; -1 if it is elsewhere
        self._bits = samples.values.view(np.int64)
        self._weights = np.empty(0, np.int64) if samples.weights is None else samples.weights

    def explore(self) -> Protocol[None]:
        """Grow the tree, except that the deepest devices name their parents together with their first reply."""
        self._sapling = yield from explore_tree(self.block)

    def collect_replies(self, asks: Ints) -> Protocol[tuple[Packets, Ints]]:
        """Merge replies level by level up the tree; return those of the root's children, and their rows."""
        arrived, owners, senders = NO_PACKETS, np.empty(0, np.int64), np.empty(0, np.int64)
        if self._sapling is not None:
            sapling, self._sapling = self._sapling, None
            if not sapling.depth:
                self.levels = sapling.complete(*[np.empty(0, np.int64)] * 3)
                return arrived, senders
            packets, numbers = self._replies(asks, sapling.deepest, arrived, owners, senders)
            named = sapling.named(packets)
            quiet = Silence(sapling.deepest, np.full(len(sapling.deepest), 2 * sapling.depth - 1))
            told = yield Tell(named, sapling.deepest, numbers + 1, quiet=quiet)
            size = sapling.name_bytes
            self._refuse_unless(np.diff(told.packets.offsets) >= size, told.sender, told.packets, "name its parent")
            names = np.zeros((len(told.receiver), 8), np.uint8)
            starts = told.packets.offsets[:-1]
            for byte in range(size):
                names[:, byte] = told.packets.values[starts + byte]
            self.levels = sapling.complete(told.receiver, told.sender, names.view("<i8")[:, 0])
            deepest = self.levels[-1]
            arrived = _drop_heads(told.said_by(deepest.parent_rows, deepest.children), size)
            owners, senders = deepest.parents, deepest.children
            rest = self.levels[1:-1]
            self._turns, self._first = SpeakingTurns(self.levels, len(self.block.rows)), 2
        else:
            rest, self._first = self.levels[1:], 1
        for at, level in enumerate(reversed(rest), self._first):
            packets, numbers = self._replies(asks, level.members, arrived, owners, senders)
            told = yield Tell(packets, level.members, numbers, quiet=self._silence(at, level.members))
            arrived = told.said_by(level.parent_rows, level.children)
            owners, senders = level.parents, level.children
        return arrived, senders

    def _refuse_unless(self, right: NDArray[np.bool_], senders: Ints, packets: Packets, what: str) -> None:
        """Raise `ValueError` for the first sender whose message is not right: its bytes have no valid meaning."""
        if not right.all():
            wrong = int(np.argmin(right))
            raise ValueError(
                f"device {self.block.network.ids[senders[wrong]]} says {len(packets[wrong])} bytes that do not {what}; "
                "run the same version of conformesh on every device, and look whether this one can be trusted"
            )

    def pass_on(self, word: bytes, numbers_in: Callable[[bytes], int]) -> Protocol[bytes]:
        """Relay the instruction of the root down the tree and return it.

        `numbers_in` counts the numbers in it: every device that relays it pays for them, as the root does.
        """
        numbers = None
        for at, (level, below) in enumerate(pairwise(self.levels), len(self.levels)):
            speakers = level.speaking_down
            if len(speakers) and numbers is None:
                numbers = numbers_in(word)
            offsets = np.arange(len(speakers) + 1) * len(word)
            said = Packets(np.tile(np.frombuffer(word, np.uint8), len(speakers)), offsets)
            told = yield Tell(said, speakers, np.full(len(speakers), numbers or 0), quiet=self._silence(at, speakers))
            # `said_by` fails if a parent was silent. It is asked even where this block hosts the root and knows the
            # instruction: otherwise the simulator would accept a run in which some device never receives it.
            if len(below.members):
                heard = told.said_by(below.rows, below.above)
                word = word or heard[0]
        return word

    def _silence(self, at: int, speakers: Ints) -> Silence | None:
        return None if self._turns is None else self._turns.quiet(at, speakers if at > self._first else None)

    def _replies(
        self, asks: Ints, members: Ints, arrived: Packets, owners: Ints, senders: Ints
    ) -> tuple[Packets, Ints]:
        """Return the replies of these devices, each merged with those of its children.

        Packet i came from the device of row ``senders[i]`` to the one at the place ``owners[i]``.
        """
        if not len(members):
            return NO_PACKETS, np.empty(0, np.int64)
        if len(owners) > 1 and (owners[1:] < owners[:-1]).any():
            # Messages stand by row of the parent; a block may hold its devices in another order.
            order = np.argsort(owners, kind="stable")
            arrived, owners, senders = arrived.take(order), owners[order], senders[order]
        child_cuts = np.searchsorted(owners, np.append(members, np.iinfo(np.int64).max))
        scores = float(len(self.samples.values)) / max(self.samples.devices, 1)
        work = len(members) * len(asks) * (20 + scores) + 8.0 * len(arrived.values)
        chosen = compiled_loops("replies", work) or written
        parts: list[Any] = []

        def chunk(a: int, b: int) -> None:
            made = chosen.encode_replies(
                asks,
                self._bits,
                self._weights,
                self.samples.offsets,
                self.samples.trials,
                members[a:b],
                arrived.values,
                arrived.offsets,
                child_cuts[a : b + 1],
                self.count_bits,
            )
            parts.append((a, *made))

        if chosen is written:
            chunk(0, len(members))
        else:
            run_in_blocks(chunk, len(members), len(members) * len(asks) * 2000)
        parts.sort(key=lambda part: part[0])
        ends, numbers = [np.zeros(1, np.int64)], []
        for _, _data, cuts, many, wrong in parts:
            self._refuse_unless(np.arange(len(senders)) != wrong, senders, arrived, _REPLY_TO_QUESTION)
            ends.append(cuts[1:] + ends[-1][-1])
            numbers.append(many)
        return Packets(np.concatenate([part[1] for part in parts]), np.concatenate(ends)), np.concatenate(numbers)

    def merge_replies(self, asks: Ints, arrived: Packets, senders: Ints) -> list[written.MergedReply]:
        """Return the root's merged reply to each question."""
        work = 8.0 * len(arrived.values) + len(self.samples.values) / self.samples.devices
        chosen = compiled_loops("replies", work) or written
        places = 8 * arrived.offsets[:-1]
        found = []
        for ask in asks:
            segment = self.root * self.samples.trials + int(ask[TRIAL])
            first, last = self.samples.offsets[segment : segment + 2].tolist()
            room = last - first + 8 * len(arrived.values)
            found.append(
                chosen.combine_reports(
                    ask, self._bits, self._weights, first, last, arrived.values, places, room, self.count_bits
                )
            )
        self._refuse_unless((places + 7) >> 3 == arrived.offsets[1:], senders, arrived, _REPLY_TO_QUESTION)
        return found

    def distribution(self, reply: written.MergedReply) -> tuple[Floats, Floats, Floats, int]:
        """Return the distribution function of a sketch: knots, values just below and at them, and the mass at -inf."""
        chosen = compiled_loops("replies", 20.0 * len(reply.sources.x)) or written
        return *chosen.distribution_function(*reply.sources), reply.bottom


def _drop_heads(packets: Packets, size: int) -> Packets:
    """Return packets without their first `size` bytes."""
    keep = np.ones(len(packets.values), dtype=bool)
    for byte in range(size):
        keep[packets.offsets[:-1] + byte] = False
    return Packets(packets.values[keep], packets.offsets - size * np.arange(len(packets) + 1))


# --- the root ---------------------------------------------------------------------------------------------------------


class TreeRoot:
    """Decides what is asked next. Only the block that hosts the root of the tree has one."""

    def __init__(self, waves: Waves, pace: Pace, problems: list[RankSearch], depth: float) -> None:
        self.waves, self.pace, self.problems, self.depth = waves, pace, problems, depth

    def instruct(self, asked: WaveQuestion, heard: list[Any], totals: Sequence[int] | None) -> tuple[bytes, int]:
        """Return the instruction that follows from the replies, and how many numbers it holds."""
        room = sum(
            self._room_for_window(self.problems[which], reply) for which, reply in zip(asked.which, heard, strict=True)
        )
        out = np.zeros(64 + 64 * len(asked.which) + 16 * len(totals or ()) + room, np.uint8)
        at, numbers = 0, 0
        for total in totals or ():
            at = written.put_gamma(out, at, total)
            numbers += 1
        for ask, which, reply in zip(asked.asks, asked.which, heard, strict=True):
            problem = self.problems[which]
            # Other ranks need no search. Without n this is known only after the first replies, so it is checked here.
            if 0 < problem.rank <= problem.upto:
                at, more = self._decide(out, at, ask, problem, reply, asked.passes >= PASSES_BEFORE_LISTING)
                numbers += more
        return out[: (at + 7) >> 3].tobytes(), numbers

    @staticmethod
    def _room_for_window(problem: RankSearch, reply: written.MergedReply) -> int:
        """Return how many bytes the instruction may need for the window of a problem."""
        if problem.aim is None or reply.run_count < 0:
            return 0
        return written.room_for_keys(reply.run_count + (0 if problem.known is None else len(problem.known.keys)))

    def _decide(
        self, out: Any, at: int, ask: Ints, problem: RankSearch, reply: written.MergedReply, late: bool
    ) -> tuple[int, int]:
        """Write the answer to a problem if the reply holds it, else the next question; if `late`, the last one."""
        if problem.aim is not None:
            return self._decide_window(out, at, ask, problem, reply, late)
        begin, end, side = int(ask[BEGIN]), int(ask[END]), int(ask[SIDE])
        exact = reply.run_count >= 0
        if side != BOTH:
            return self._write_answer(out, at, ask, problem, *_answer_on_side(problem, reply, side))
        below = int(reply.below) if ask[COUNTED] else problem.below
        upto = below + int(reply.inside)
        _check_consistent(problem, (begin, below), (end, upto))
        if below < problem.rank <= upto:
            problem.low, problem.below, problem.high, problem.upto = begin, below, end, upto
            if exact:
                return self._write_answer(out, at, ask, problem, *_answer_in_list(problem, reply))
        elif problem.rank <= below:
            problem.high, problem.upto = begin, below
            problem.missed += 1
        else:
            problem.low, problem.below = end, upto
            problem.missed += 1
        held = self._is_asked_bracket(ask, problem.low, problem.high)
        return self._write_question(out, at, ask, problem, reply if held and not exact else None, late)

    def _decide_window(
        self, out: Any, at: int, ask: Ints, problem: RankSearch, reply: written.MergedReply, late: bool
    ) -> tuple[int, int]:
        """Do the same for a problem with a window of scores: a list must cover the window, or a side of it is missing.

        A bracket holds all ranks of the window. A list that holds some of them is kept, and joined with the lists of
        its sides.
        """
        assert problem.aim is not None
        aim, listed = problem.aim, None
        begin, end, side = int(ask[BEGIN]), int(ask[END]), int(ask[SIDE])
        if side != BOTH:
            listed = _listed_on_side(problem, aim, reply, (begin, end), side, int(ask[LIMIT]))
        else:
            below = int(reply.below) if ask[COUNTED] else problem.below
            upto = below + int(reply.inside)
            _check_consistent(problem, (begin, below), (end, upto))
            if upto < problem.bottom:
                problem.low, problem.below = end, upto
                problem.missed += 1
            elif below >= problem.top:
                problem.high, problem.upto = begin, below
                problem.missed += 1
            elif reply.run_count >= 0:
                count = reply.run_count
                listed = KnownScores(begin, below, end, upto, reply.keys[:count], reply.times[:count])
            else:
                if below < problem.bottom:
                    problem.low, problem.below = begin, below
                if upto >= problem.top:
                    problem.high, problem.upto = end, upto
        if listed is None:
            held = self._is_asked_bracket(ask, problem.low, problem.high)
            return self._write_question(out, at, ask, problem, reply if held and reply.run_count < 0 else None, late)
        problem.known = listed if problem.known is None else problem.known.joined(listed)
        missing = problem.known.missing(aim)
        if missing is None:
            window = problem.known.window(aim)
            assert window is not None
            at = written.put_bits(out, at, 1, 1)
            return write_window(out, at, window, problem.rank)
        ends, side, weight = missing
        at = written.put_bits(out, at, 0, 1)
        at, numbers = _write_ends(out, at, ends, ask, ends)
        at = written.put_bits(out, at, side, 2)
        return written.put_gamma(out, at, weight), numbers + 1

    def _write_answer(
        self, out: Any, at: int, ask: Ints, problem: RankSearch, key: int, counted: int
    ) -> tuple[int, int]:
        at = written.put_bits(out, at, 1, 1)
        at = written.put_keys(out, at, [key], 1, int(ask[BEGIN]), int(ask[END]), 1)
        at = written.put_gamma(out, at, counted - problem.rank)
        return at, 1 + (counted > problem.rank)

    def _write_question(
        self, out: Any, at: int, ask: Ints, problem: RankSearch, reply: written.MergedReply | None, late: bool
    ) -> tuple[int, int]:
        """Write the next question. `reply` is a new sketch of this bracket, if there is one.

        In this order: list the whole bracket if it is small; list one side if the rank is near an end; from a new
        sketch list or sketch a window around the guess; after a window that missed, the window next to it; else sketch
        the bracket again, finer around the rank.
        """
        held = problem.upto - problem.below
        near = min(problem.top - problem.below, problem.upto - problem.bottom + 1)
        nearest = LOW if problem.top - problem.below == near else HIGH
        # Weight up to which all scores of a bracket are listed.
        most = self.listed * problem.each + problem.top - problem.bottom
        # Without a limit on listed scores a narrow window is always cheaper than the whole bracket.
        few = most if self.pace.fetched < math.inf else 0.0
        low, high, side, listed, level = problem.low, problem.high, BOTH, held <= few, 0
        if not listed and near <= min(self.pace.fetched * problem.each, 2 * most):
            side = nearest
        if listed:
            pass
        elif reply is not None:
            problem.guess, problem.missed = self.waves.distribution(reply), 0
            half = self.half_width(problem, reply)
            # Weight from the guess to the ends of the window: a list must hold all ranks that are needed.
            down, up = half + problem.rank - problem.bottom, half + problem.top - problem.rank
            if self.pace.points > 2 and self._is_tied(problem, down, up):
                # Tied scores: no bracket end lies between them, but a side of few different scores is short to list.
                side = nearest
            elif side == BOTH or (down + up) * self.share < near:
                low, high = self._window(problem, down, up)
                side, listed = BOTH, down + up <= most
        elif (
            problem.missed == 1
            and _NEXT_WINDOW_FACTOR * near <= most
            and problem.guess is not None
            and len(problem.guess[0])
        ):
            low, high = self._adjacent_window(problem, near)
            side, listed = BOTH, True
        elif side == BOTH:
            level = min(max((problem.rank - problem.below) * LEVEL_UNITS // held, 1), LEVEL_UNITS - 1)
        low, high = _clip_window((low, high), ask, problem)
        nothing_new = reply is not None and not listed and self._is_asked_bracket(ask, low, high)
        if (held > few or (late and problem.aim is not None)) and side == BOTH and (late or nothing_new):
            # Expensive, but it ends the search: the list of one side holds the rank whatever the scores are.
            side = nearest
            low, high = problem.low, problem.high
        at = written.put_bits(out, at, 0, 1)
        at, numbers = _write_ends(out, at, (low, high), ask, (problem.low, problem.high))
        at = written.put_bits(out, at, side, 2)
        if side != BOTH:
            return written.put_gamma(out, at, near), numbers + 1
        at = written.put_bits(out, at, 1 if listed else 0, 1)
        if not listed:
            at = written.put_bits(out, at, 1 if level else 0, 1)
            at = written.put_bits(out, at, level, 16 if level else 0)
        return at, numbers + (level > 0)

    @staticmethod
    def _is_asked_bracket(ask: Ints, low: int, high: int) -> bool:
        """Return whether a bracket is that of the last question: the same sketch again would tell nothing new."""
        return low == int(ask[BEGIN]) and high == int(ask[END])

    @property
    def share(self) -> float:
        """Share of the listed scores that an average device sends: each is relayed once per level above it."""
        return (self.depth + 1) / self.waves.block.devices

    @property
    def listed(self) -> float:
        """Number of scores in a bracket up to which all of them are listed."""
        return max(self.pace.fetched / self.share, _ALWAYS_LISTED)

    def half_width(self, problem: RankSearch, reply: written.MergedReply) -> float:
        """Return by how much weight a guess may be off, see the function `half_width`."""
        held = problem.upto - problem.below
        knots, left, right, bottom = problem.guess
        level = (problem.rank - problem.below) / max(held, 1)
        noise = _rank_noise(level, held / problem.each, self.depth)
        x, c, _, ends, masses = reply.sources
        at = written.quantile_at(problem.rank - problem.below - 0.5 - bottom, knots, left, right, len(knots))
        pieces = 0.0
        for s in range(len(masses)):
            own, upto = x[ends[s] : ends[s + 1]], c[ends[s] : ends[s + 1]]
            place = int(np.searchsorted(own, at))
            pieces += float((upto[place] if place < len(own) else masses[s]) - (upto[place - 1] if place else 0.0))
        each = problem.each
        return each * half_width(self.pace.slack, noise, pieces / each, held / each, self._sketch_bias(problem) / each)

    def _sketch_bias(self, problem: RankSearch) -> float:
        """Return by how much weight a guess from the sketches of all devices is too high, see `_sketch_bias`."""
        knots, left, right, bottom = problem.guess
        held, each = problem.upto - problem.below, problem.each
        if problem.low != LOWEST or problem.high != HIGHEST or not len(knots):
            return 0.0  # measured for sketches of all scores only
        aim = problem.rank - problem.below - 0.5 - bottom
        step = min(0.02 * held, aim / 2, (held - aim) / 2)
        three = [written.quantile_at(aim + i * step, knots, left, right, len(knots)) for i in (-1, 0, 1)]
        if step <= 0 or not (np.isfinite(three).all() and three[0] < three[2]):
            return 0.0
        return each * _sketch_bias(three, step / each, held / each, self.waves.block.devices)

    @staticmethod
    def _is_tied(problem: RankSearch, down: float, up: float) -> bool:
        """Return whether all scores around the rank seem to be tied."""
        knots, left, right, bottom = problem.guess
        target = problem.rank - problem.below - 0.5 - bottom
        ends = [written.quantile_at(max(target + far, 0.0), knots, left, right, len(knots)) for far in (-down, up)]
        return bool(ends[1] - ends[0] <= _TIE_DISTANCE * abs(ends[1])) if math.isfinite(ends[1]) else ends[0] == ends[1]

    def _window(self, problem: RankSearch, down: float, up: float) -> tuple[int, int]:
        """Return the keys of the window around the guessed rank, `down` and `up` from it, inside the bracket."""
        knots, left, right, bottom = problem.guess
        target = problem.rank - problem.below - 0.5 - bottom - self._sketch_bias(problem)
        ends = [
            written.quantile_at(max(target - down, 0.0), knots, left, right, len(knots)),
            written.quantile_at(target + up, knots, left, right, len(knots)),
        ]
        low, high = (int(key) for key in to_keys(ends))
        low = problem.low if target - down <= 0 or low <= problem.low or low >= problem.high else low
        high = problem.high if high >= problem.high or high <= low else high
        return low, high

    def _adjacent_window(self, problem: RankSearch, near: int) -> tuple[int, int]:
        """Return the next window after one that missed by `near` ranks, from the density of the last sketch."""
        knots, left, right, _ = problem.guess
        upward = problem.top - problem.below == near
        edge = from_keys(problem.low if upward else problem.high)
        there = float(np.interp(edge, knots, right))
        far = _NEXT_WINDOW_FACTOR * near + 4 * problem.each
        aim = there + far if upward else there - far
        key = int(to_keys([written.quantile_at(aim, knots, left, right, len(knots))])[0]) if aim > 0 else LOWEST
        if upward:
            return problem.low, key if problem.low < key < problem.high else problem.high
        return (key if problem.low < key < problem.high else problem.low), problem.high


def half_width(slack: float, noise: float, pieces: float, held: float, bent: float) -> float:
    """Return by how many ranks a guess may be off after a correction by `bent`.

    Two parts average out over devices and are scaled by `slack`: `noise` of independent errors on the way to the root,
    and the `pieces` of sketches in which the guess falls. Two do not: a share of the correction, and a small share of
    all `held` scores, since interpolation has the same bias everywhere. A guess that is farther off costs a pass.
    """
    return float(
        max(
            _SMALLEST_HALF_WIDTH,
            slack * (noise + PIECE_SHARE * pieces) + COMMON_BIAS * held + UNTRUSTED_CORRECTION * abs(bent),
        )
    )


def _sketch_bias(three: Sequence[float] | Floats, step: float, scores: float, devices: int) -> float:
    """Return by how many ranks a guess from all sketches is too high, from three quantiles `step` ranks apart.

    A sketch interpolates linearly between two scores of a device. Where scores get rarer, a given threshold lies nearer
    to the lower of the two, by a part of their distance that grows with f' / f^2: a few hundredths of a score per
    device, but in the same direction on all. With the quantile function Q, f' / f^2 = -Q'' / Q'. The factor was
    measured on normal and lognormal scores; uniform ones have no such bias. With very few scores per device the rule
    breaks down, but nowhere was the bias more than about a tenth of a score per device.
    """
    # Twice the first difference: halves of the smallest floats would underflow.
    twice, bend = three[2] - three[0], three[2] - 2 * three[1] + three[0]
    each = _BIAS_FACTOR * (devices / scores) * (2 * (bend / twice)) * (scores / step)
    return float(devices * each / (1 + abs(each) / _LARGEST_BIAS))


def _rank_noise(level: float, held: float, depth: float) -> float:
    """Return the standard deviation, in ranks, of a guess among `held` scores; merging on the way up adds to it."""
    return math.sqrt(level * (1 - level) * held) * (1 + math.log2(depth + 1) / 4)


def _clip_window(ends: tuple[int, int], ask: Ints, problem: RankSearch) -> tuple[int, int]:
    """Return a window whose ends lie inside the bracket after rounding; an end that does not becomes the bracket's.

    An end that is replaced needs no bits, which changes the precision of the other one: so the result is encoded again,
    until nothing changes. Two ends can be replaced at most, hence three tries.
    """
    low, high = ends
    for _ in range(3):
        out = np.zeros(64, np.uint8)
        _write_ends(out, 0, (low, high), ask, (problem.low, problem.high))
        (begin, end), _, at = _read_ends(out, 0, ask)
        before = low, high
        low = low if problem.low < begin < problem.high else problem.low
        high = high if problem.low < end < problem.high else problem.high
        if (low, high) == before:
            break
    return (low, high) if at != written.NOWHERE else (problem.low, problem.high)


def _check_consistent(problem: RankSearch, *counts: tuple[int, int]) -> None:
    """Raise `ValueError` for counts that contradict those at other thresholds: counts never fall."""
    known = (problem.low, problem.below), (problem.high, problem.upto)
    for key, count in counts:
        least = max((at for low, at in known if low <= key), default=0)
        most = min((at for high, at in known if high >= key), default=count)
        if not least <= count <= most:
            raise contradiction(f"{count} lie at or below {from_keys(key)}, and that must be {least} to {most}")


def contradiction(what: str) -> ValueError:
    """Return the error for messages that cannot all be true."""
    return ValueError(
        f"replies of this tree contradict each other: {what}; a device sent wrong numbers, or its scores have changed "
        "during the run"
    )


def _write_ends(out: Any, at: int, ends: tuple[int, int], ask: Ints, bracket: tuple[int, int]) -> tuple[int, int]:
    """Write the ends of the next bracket: new ones rounded, ends that all devices know by their kind alone."""
    kinds = []
    for key, infinite in zip(ends, (LOWEST, HIGHEST), strict=True):
        known = {int(ask[BEGIN]): _LAST_LOW, int(ask[END]): _LAST_HIGH, infinite: _OPEN}
        kinds.append(known.get(key, _RAW if key in bracket else _NEW))
    if _NEW in kinds and not _survives_rounding(ends, kinds):  # rounding would swap or merge them
        kinds = [_RAW if kind == _NEW else kind for kind in kinds]
    for key, kind in zip(ends, kinds, strict=True):
        at = written.put_gamma(out, at, kind)
        if kind == _RAW:
            at = written.put_raw(out, at, key)
    if _NEW in kinds:
        finite = [key for key, kind in zip(ends, kinds, strict=True) if kind != _OPEN]
        at = written.put_points(out, at, from_keys(finite), len(finite), _END_BITS[len(finite) - 1])
    return at, sum(kind in (_NEW, _RAW) for kind in kinds)


def _survives_rounding(ends: tuple[int, int], kinds: list[int]) -> bool:
    """Return whether the low end is still below the high one after new ends are rounded."""
    finite = [i for i in range(2) if kinds[i] != _OPEN]
    buffer = np.zeros(64, np.uint8)
    points = [0.0] * len(finite)
    fine = _END_BITS[len(finite) - 1]
    written.put_points(buffer, 0, from_keys([ends[i] for i in finite]), len(finite), fine)
    written.get_points(buffer, 0, len(finite), fine, points)
    rounded = [*ends]
    for i, key in zip(finite, to_keys(points).tolist(), strict=True):
        rounded[i] = key if kinds[i] == _NEW else ends[i]
    return rounded[0] < rounded[1]


def _read_ends(data: Any, at: int, ask: Ints) -> tuple[list[int], int, int]:
    """Return the ends of a bracket, how many numbers they took, and the place behind them."""
    ends, kinds = [LOWEST, HIGHEST], []
    for i in range(2):
        kind, at = written.get_gamma(data, at)
        if kind > _RAW:
            return ends, 0, written.NOWHERE
        kinds.append(kind)
        if kind == _RAW:
            ends[i], at = written.get_raw(data, at)
        elif kind in (_LAST_LOW, _LAST_HIGH):
            ends[i] = int(ask[BEGIN if kind == _LAST_LOW else END])
    if _NEW in kinds:
        finite = [i for i in range(2) if kinds[i] != _OPEN]
        points = [0.0] * len(finite)
        at = written.get_points(data, at, len(finite), _END_BITS[len(finite) - 1], points)
        for i, key in zip(finite, to_keys(points).tolist(), strict=True):
            ends[i] = key if kinds[i] == _NEW else ends[i]
    in_order = LOWEST <= ends[0] <= ends[1] <= HIGHEST
    return ends, sum(kind in (_NEW, _RAW) for kind in kinds), at if in_order else written.NOWHERE


def _answer_in_list(problem: RankSearch, reply: written.MergedReply) -> tuple[int, int]:
    """Return the key of the answer in a complete list of the bracket, and its counted rank."""
    keys, times = reply.keys[: reply.run_count], reply.times[: reply.run_count]
    ranks = problem.below + np.cumsum(times)
    at = int(np.searchsorted(ranks, problem.rank))
    if at == len(keys):
        raise contradiction(f"rank {problem.rank} is not among the {len(keys)} scores of a list that should hold it")
    return int(keys[at]), int(ranks[at])


def _answer_on_side(problem: RankSearch, reply: written.MergedReply, side: int) -> tuple[int, int]:
    """Return the key of the answer in a list of the smallest or largest scores of the bracket, and its rank."""
    keys, times = reply.keys[: reply.run_count], reply.times[: reply.run_count]
    if side == LOW:
        return _answer_in_list(problem, reply)
    ranks = problem.upto - (
        np.cumsum(times[::-1])[::-1] - times
    )  # of the last of each run of ties, counted from the top
    at = int(np.searchsorted(ranks, problem.rank))
    if at == len(keys):
        raise contradiction(f"rank {problem.rank} is not among the {len(keys)} scores of a list that should hold it")
    return int(keys[at]), int(ranks[at])


def _listed_on_side(
    problem: RankSearch, aim: WindowAim, reply: written.MergedReply, ends: tuple[int, int], side: int, limit: int
) -> KnownScores:
    """Return what a list of one side of a bracket tells; the weight at the end where it begins is known."""
    known = {problem.low: problem.below, problem.high: problem.upto, LOWEST: 0, HIGHEST: aim.total}
    if problem.known is not None:
        known |= {problem.known.low: problem.known.below, problem.known.high: problem.known.upto}
    low, high = (known[end] for end in ends)
    weight = sum(reply.times[: reply.run_count].tolist())  # as Python integers: made up weights may exceed an int64
    if not min(limit, high - low) <= weight <= high - low:
        raise contradiction(f"a list of weight {min(limit, high - low)} to {high - low} weighs {weight}")
    return listed_scores(reply, ends, side, limit, low if side == LOW else high)


# --- every device -----------------------------------------------------------------------------------------------------


def read_instruction(data: NDArray[np.uint8], at: int, asked: WaveQuestion, limit: int) -> tuple[int, int]:
    """Apply an instruction of the root from bit `at` on: an answer closes its problem, the others get a new question.

    Return the place where it ends, and how many numbers it holds.
    """
    rows, which, numbers = [], [], 0
    for ask, problem in zip(asked.asks, asked.which, strict=True):
        done, at = written.get_bits(data, at, 1)
        if done and asked.aims is not None:
            window, more, at = read_window(data, at, asked.aims[problem])
            numbers += more
            asked.found[problem] = _found_in_window(ask, window, asked.aims[problem].rank)
            continue
        if done:
            key = [0]
            _, at = written.get_keys(data, at, int(ask[BEGIN]), int(ask[END]), key, 1)
            more, at = written.get_gamma(data, at)
            numbers += 1 + (more > 0)
            asked.found[problem] = FoundScore(
                key[0], more, _next_warm_bracket(ask, key[0])
            )  # `search_by_waves` adds the required rank
            continue
        ends, new, at = _read_ends(data, at, ask)
        numbers += new
        side, at = written.get_bits(data, at, 2)
        if side not in (BOTH, LOW, HIGH):
            at = written.NOWHERE
        row = ask.copy()
        row[BEGIN], row[END], row[SIDE], row[EVEN] = *ends, side, 1
        row[COUNTED], row[LIMIT] = BELOW if ends[0] != LOWEST and side == BOTH else 0, 0
        if side != BOTH:
            row[LIMIT], at = written.get_gamma(data, at)
            numbers += 1
        else:
            listed, at = written.get_bits(data, at, 1)
            row[LIMIT] = MOST_LISTED * limit + _window_scores(asked, problem) if listed else 0
            if not listed:
                focused, at = written.get_bits(data, at, 1)
                level, at = written.get_bits(data, at, 16 if focused else 0)
                numbers += focused
                row[EVEN], row[LEVEL] = not focused, level if focused else row[LEVEL]
        rows.append(row)
        which.append(problem)
    asked.asks = np.array(rows, dtype=np.int64).reshape(-1, asked.asks.shape[1])
    asked.which, asked.passes = which, asked.passes + 1
    asked.sketches += sum(row[SIDE] == BOTH and row[LIMIT] == 0 for row in rows) > 0
    # An honest root lists one side after so many passes, which answers everything. A root that still asks is refused,
    # or it could keep all devices busy for ever.
    most = PASSES_BEFORE_LISTING + 1 + (SIDE_QUESTIONS if asked.aims is not None else 0)
    is_honest = asked.passes <= most or not which
    return at if is_honest else written.NOWHERE, numbers


def _window_scores(asked: WaveQuestion, problem: int) -> int:
    """Return about how many scores the window of a problem holds; 0 without one."""
    return asked.aims[problem].scores if asked.aims is not None else 0


def _found_in_window(ask: Ints, window: FoundWindow, rank: int) -> FoundScore:
    """Return the answer as the score of the window that reaches the rank; `search_by_waves` adds the rank."""
    at = int(np.searchsorted(window.counts, rank))
    if at == len(window.counts):  # no window, and the place says so
        return FoundScore()
    key = int(window.keys[at])
    return FoundScore(key, int(window.counts[at]) - rank, _next_warm_bracket(ask, key), window)


def _next_warm_bracket(ask: Ints, answer: int) -> tuple[int, int]:
    """Return the bracket for a warm start: around the answer, half as wide on each side as the last question.

    A side that was open is taken to be as wide as the other one.
    """
    low, here, high = from_keys([int(ask[BEGIN]), answer, int(ask[END])]).tolist()
    far = [distance / 2 for distance in (here - low, high - here)]
    known = [distance for distance in far if np.isfinite(distance)]
    if not known or not np.isfinite(here):
        return LOWEST, HIGHEST
    down, up = (distance if np.isfinite(distance) else known[0] for distance in far)
    ends = to_keys([here - down, here + up])
    return int(ends[0]), int(ends[1])


def search_by_waves(
    block: Block,
    samples: WeightedScores,
    pace: Pace,
    n: Ints | None = None,
    ranks: Ints | None = None,
    one_side: bool = False,
    warm: tuple[float, float] | None = None,
) -> Protocol[tuple[Ints, Ints, WaveQuestion]]:
    """Find the score of every rank; return the ranks (trials, alphas), what all scores weigh, and what was found.

    Where `n` (what all scores of each trial weigh) and `ranks` are not known, the first replies say so. With `one_side`
    the first question is for one side of the order; with `warm`, for all scores between two thresholds, and, where `n`
    is not known, for what lies on either side of them.
    """
    depth = mean_depth(block)
    limit = int(min(max(pace.fetched * block.devices / (depth + 1), _ALWAYS_LISTED), 2**40))
    asked = _first_question(block, pace, limit, n, ranks, one_side, warm)
    if not asked.which:
        assert n is not None
        assert ranks is not None
        return ranks, n, asked
    waves = Waves(block, samples, 0 if n is None else int(n.max()).bit_length())
    if ranks is not None:
        _update_progress(block, asked, ranks, None)
    expect_work("replies", 3.0 * len(asked.which) * (20 * len(block.rows) + len(samples.values) / samples.trials))
    yield from waves.explore()
    root: TreeRoot | None = None
    while asked.which:
        arrived, senders = yield from waves.collect_replies(asked.asks)
        word = b""
        if waves.root >= 0:
            heard = waves.merge_replies(asked.asks, arrived, senders)
            said = None if n is not None else _read_totals(asked, heard, block)
            if root is None:
                held = np.array(said, dtype=np.int64) if n is None else n
                known = block.ranks(held) if ranks is None else ranks
                root = TreeRoot(waves, pace, _rank_searches(known, held, block), depth)
            word, _ = root.instruct(asked, heard, said)
        before = asked.copy(), n, ranks
        word = yield from waves.pass_on(word, lambda word: _apply_instruction(word, block, limit, *before)[-1])  # noqa: B023
        n, ranks, _ = _apply_instruction(word, block, limit, asked, n, ranks)
        _update_progress(block, asked, ranks, None if root is None else root.problems[0])
        waves.count_bits = int(n.max()).bit_length()
    assert n is not None
    assert ranks is not None
    for one, rank in zip(asked.found, ranks.ravel().tolist(), strict=True):
        one.counted += rank
    return ranks, n, asked


def _update_progress(block: Block, asked: WaveQuestion, ranks: Ints, problem: RankSearch | None) -> None:
    """Publish the bracket of the first problem with the counts that are known here, or its answer."""
    if 0 in asked.which:
        ends = asked.asks[asked.which.index(0), [BEGIN, END]]
        known = {} if problem is None else {problem.low: problem.below, problem.high: problem.upto}
    else:
        one = asked.found[0]
        ends = np.array([one.answer, one.answer])
        known = {one.answer: int(ranks[0, 0]) + one.counted}
    low, high = np.nan_to_num(
        from_keys(ends), nan=-np.inf, posinf=np.inf, neginf=-np.inf
    ).tolist()  # the key below -inf is NaN
    block.progress.bracket = low, high, *(known.get(int(key)) for key in ends)


def _apply_instruction(
    word: bytes, block: Block, limit: int, asked: WaveQuestion, n: Ints | None, ranks: Ints | None
) -> tuple[Ints, Ints, int]:
    """Apply the root's instruction; return the total weights, the ranks, and how many numbers the instruction holds."""
    data, at, numbers = np.frombuffer(word + bytes(16), np.uint8), 0, 0
    if n is None or ranks is None:
        totals = []
        for _ in range(block.trials):
            total, at = written.get_gamma(data, at)
            totals.append(total)
        n = np.array(totals, dtype=np.int64)
        ranks, numbers = block.ranks(n), len(totals)
        asked.keep(needs_search(ranks, n))
        asked.asks[:, USUAL], asked.asks[:, EACH] = _usual_weights(block, n, asked.asks[:, TRIAL])  # now it is known
        asked.aims = _aims(block, ranks, n)
    at, more = read_instruction(data, at, asked, limit)
    if (at + 7) >> 3 != len(word):
        raise ValueError(
            f"the root {block.network.ids[block.network.centre]}, or a device on the way from it, says {len(word)} "
            "bytes that are neither an answer nor a question; run the same version of conformesh on every device, and "
            "look whether these can be trusted"
        )
    return n, ranks, numbers + more


def _first_question(
    block: Block,
    pace: Pace,
    limit: int,
    n: Ints | None,
    ranks: Ints | None,
    one_side: bool,
    warm: tuple[float, float] | None,
) -> WaveQuestion:
    """Return the first question about every problem: it follows from public numbers, so it needs no message."""
    trials, levels = block.trials, len(block.alphas)
    if warm is not None and not np.isfinite(warm).all():
        warm = None  # an open bracket excludes nothing
    asks = np.zeros((trials * levels, EACH + 1), dtype=np.int64)
    asks[:, TRIAL] = np.repeat(np.arange(trials), levels)
    asks[:, BEGIN], asks[:, END], asks[:, SIDE] = LOWEST, HIGHEST, BOTH
    asks[:, POINTS], asks[:, GROWTH] = pace.points, pace.growth
    aims: list[WindowAim] | None = None
    if n is None or ranks is None:
        parts = [int((1 - alpha) * LEVEL_UNITS) for alpha in block.alphas] * trials
        weigh = np.full(trials, block.most)
    else:
        weigh = n
        parts = [int(r) * LEVEL_UNITS // max(int(total), 1) for row, total in zip(ranks, n, strict=True) for r in row]
        aims = _aims(block, ranks, n)
        if one_side and warm is None:
            tops = ranks.ravel() if aims is None else np.array([aim.top for aim in aims])
            bottoms = ranks.ravel() if aims is None else np.array([max(aim.bottom, 1) for aim in aims])
            few = np.repeat(n, levels) - bottoms + 1
            asks[:, SIDE] = np.where(tops <= few, LOW, HIGH)
            asks[:, LIMIT] = np.minimum(tops, few)
    asks[:, USUAL], asks[:, EACH] = _usual_weights(block, weigh, asks[:, TRIAL])
    asks[:, LEVEL] = np.clip(parts, 1, LEVEL_UNITS - 1)
    if warm is not None:
        low, high = (int(key) for key in to_keys(_warm_bracket(*warm)))
        asks[:, BEGIN], asks[:, END] = (LOWEST if low <= LOWEST + 1 else low), high
        asks[:, LIMIT], asks[:, COUNTED] = MOST_LISTED * limit, BELOW if low > LOWEST + 1 else 0
        if n is None:
            asks[:, COUNTED] = OUTSIDE
    asked = WaveQuestion(asks, [*range(len(asks))], [FoundScore() for _ in range(len(asks))], aims=aims)
    if n is not None and ranks is not None:
        asked.keep(needs_search(ranks, n))
    return asked


def _usual_weights(block: Block, n: Ints, trials: Ints) -> tuple[Ints, Ints]:
    """Return the average weight of a device, and of a score, in these trials; `n` is the total weight of each trial."""
    return np.maximum(n // block.devices, 1)[trials], np.maximum(n // np.maximum(block.totals, 1), 1)[trials]


def _warm_bracket(low: float, high: float) -> tuple[float, float]:
    """Return the bracket in which to look first: the old one, or a little around an old threshold."""
    # A bracket (x, x] would be empty. 1e-12 is far above float64 round-off and below any distance that matters.
    step = max(abs(high) * 1e-12, 1e-300) if low == high else 0.0
    return low - step, high + step


def needs_search(ranks: Ints, n: Ints) -> NDArray[np.bool_]:
    """Mark the problems that need a search: the answer to rank 0 is -inf, beyond all scores it is +inf."""
    return np.asarray((ranks > 0) & (ranks <= n[:, None])).ravel()


def _rank_searches(ranks: Ints, n: Ints, block: Block) -> list[RankSearch]:
    levels, aims = ranks.shape[1], _aims(block, ranks, n)
    each = np.maximum(n / np.maximum(block.totals, 1), 1.0)
    return [
        RankSearch(int(r), 0, int(n[i // levels]), float(each[i // levels]), aim=None if aims is None else aims[i])
        for i, r in enumerate(ranks.ravel())
    ]


def _aims(block: Block, ranks: Ints, n: Ints) -> list[WindowAim] | None:
    """Return which scores around each rank are needed, if any are."""
    return None if block.window is None else window_aims(block.window, ranks, n, block.totals)


def _read_totals(asked: WaveQuestion, heard: list[Any], block: Block) -> list[int]:
    """Return the total weight of each trial: what lies below, inside and above the bracket of the first question."""
    first = [heard[asked.asks[:, TRIAL].tolist().index(trial)] for trial in range(block.trials)]
    totals = [int(reply.below) + int(reply.inside) + int(reply.above) for reply in first]
    if not 0 <= min(totals) <= max(totals) <= block.most:
        raise contradiction(f"all scores of a trial weigh {max(totals)}, which can be 0 to {block.most}")
    return totals


def mean_depth(block: Block) -> float:
    """Return the average number of hops from a device to the root, by the map."""
    from conformesh.kernels.graph import breadth_first

    network = block.network
    levels, queue = np.empty((2, network.devices), dtype=np.int64)
    breadth_first(network.indptr, network.indices, network.centre, levels, queue)
    return float(levels.mean())
