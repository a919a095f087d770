r"""Waves over a spanning tree: the root asks, replies rise and are merged on the way, and the answer comes down.

The root holds a bracket (low, high] for every problem, with the exact counts at its ends where they are known. In each
pass it asks about a bracket; every device replies for its whole subtree (`kernels.replies`): few scores as they are,
many as a sketch. From a sketch the root guesses a narrower bracket, whose replies then count what lies below it, so
that a wrong guess is found out, and costs a pass. From an exact list it reads the answer:

top-k    the first question is for the smaller side of the order: the n - r + 1 largest scores (or the r smallest)
window   a sketch of everything, then all scores in the window that should hold rank r
count    a sketch of everything, then sketches of ever narrower brackets until few scores are left

The tree is explored on the way: the wave that reaches the leaves is the first question, and who is deepest names its
parent together with its first reply.

Assumes     graph connected; the centre of the map and its eccentricity known
Guarantees  the score of rank r, bit for bit, and its counted rank, on every device; sketches decide on nothing
Message     strings of bits in `kernels.replies`; the root's words are passed on as they are
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
    LEVELS,
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
from conformesh.protocols.tree import PartialTree, SpeakingTurns, TreeLevel, explore_tree

_NEW, _LAST_LOW, _LAST_HIGH, _OPEN, _RAW = range(5)  # how an end of a bracket is written
_ENDS_FINE = (24, 5)  # bits of a bracket's only finite end, and from one end to the other: they are guesses
PIECES, BIAS, _BENT, _MOST_BENT, TRUSTED = 0.25, 1e-4, 0.22, 0.1, 0.5  # by which a guess may be off, see `half_width`
_ALIKE = 2.0**-40  # relative distance below which the ends of a guess are taken for ties
_NEXT = 1.3  # times the ranks by which a window missed: how many the next one should hold
PASSES_BEFORE_LISTING = 12  # passes; then one side is listed, which always ends
_FEWEST = 4.0  # scores that are always listed
MOST_LISTED = 8  # times as many scores as were expected: beyond, a subtree sketches what it should list
_REPLY = "reply to what was asked"
NO_PACKETS = Packets(np.empty(0, np.uint8), np.zeros(1, np.int64))


@dataclass(frozen=True)
class Pace:
    """How much to ask in one pass.

    Attributes
    ----------
    points, growth
        Points of a device's sketch, and how many more for each doubling of what its subtree weighs.
    fetched
        Scores that a device may list in one pass, on average: more of them are sketched again.
    slack
        How wide a window is drawn around a guess, see `Root.half_width`: narrower ones miss more often.
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
    each: float = 1.0  # what a score weighs on average
    low: int = LOWEST
    high: int = HIGHEST
    guess: Any = (
        None  # the distribution function of the last sketch: knots, values just below and at them, mass at -inf
    )
    missed: int = 0  # windows since then that did not hold the rank


@dataclass
class FoundScore:
    """What every device knows about a problem at the end.

    Attributes
    ----------
    answer, counted
        The key of the score, and what all scores up to it weigh.
    bracket
        The keys between which it was named, for a warm start.
    """

    answer: int = 0
    counted: int = 0
    bracket: tuple[int, int] = (LOWEST, HIGHEST)


@dataclass(eq=False)
class WaveQuestion:
    """What the devices of one block know of the run: the questions that are open, and the answers so far."""

    asks: Ints  # a row for each open problem, columns as in `kernels.replies`
    which: list[int]  # the problem of each row
    found: list[FoundScore]
    passes: int = 0
    sketches: int = 0  # questions that were replied to by sketches, after the first

    def copy(self) -> WaveQuestion:
        """Return the same once more, to see what a word would say."""
        return replace(self, asks=self.asks.copy(), which=[*self.which], found=[*self.found])

    def keep(self, marked: NDArray[np.bool_]) -> None:
        """Ask on about these problems only, of all there are."""
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
        self._first = 1  # the round of a pass in which everybody knows when it speaks next
        at = np.flatnonzero(block.rows == block.network.centre)
        self.root = int(at[0]) if len(at) else -1  # the root's place here, if it is here
        self._bits = samples.values.view(np.int64)
        self._weights = np.empty(0, np.int64) if samples.weights is None else samples.weights

    def explore(self) -> Protocol[None]:
        """Grow the tree, but for the deepest devices, who name their parents with their first reply."""
        self._sapling = yield from explore_tree(self.block)

    def rise(self, asks: Ints) -> Protocol[tuple[Packets, Ints]]:
        """Let the replies to the questions rise; return what the root's children said, and who they are."""
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
            self._check(np.diff(told.packets.offsets) >= size, told.sender, told.packets, "name its parent")
            names = np.zeros((len(told.receiver), 8), np.uint8)
            starts = told.packets.offsets[:-1]
            for byte in range(size):
                names[:, byte] = told.packets.values[starts + byte]
            self.levels = sapling.complete(told.receiver, told.sender, names.view("<i8")[:, 0])
            deepest = self.levels[-1]
            arrived = _without_head(told.said_by(deepest.parent_rows, deepest.children), size)
            owners, senders = deepest.parents, deepest.children
            rest = self.levels[1:-1]
            self._turns, self._first = SpeakingTurns(self.levels, len(self.block.rows)), 2
        else:
            rest, self._first = self.levels[1:], 1
        for at, level in enumerate(reversed(rest), self._first):
            packets, numbers = self._replies(asks, level.members, arrived, owners, senders)
            told = yield Tell(packets, level.members, numbers, quiet=self._quiet(at, level.members))
            arrived = told.said_by(level.parent_rows, level.children)
            owners, senders = level.parents, level.children
        return arrived, senders

    def _check(self, right: NDArray[np.bool_], senders: Ints, packets: Packets, what: str) -> None:
        """Refuse what a neighbour says if it is nothing that it can mean."""
        if not right.all():
            wrong = int(np.argmin(right))
            raise ValueError(
                f"device {self.block.network.ids[senders[wrong]]} says {len(packets[wrong])} bytes that do not {what}; "
                "run the same version of conformesh on every device, and look whether this one can be trusted"
            )

    def fall(self, word: bytes, numbers_in: Callable[[bytes], int]) -> Protocol[bytes]:
        """Let the root's word come down; return it. Who passes it on counts the numbers in it, as the root does."""
        numbers = None
        for at, (level, below) in enumerate(pairwise(self.levels), len(self.levels)):
            speakers = level.speaking_down
            if len(speakers) and numbers is None:
                numbers = numbers_in(word)
            offsets = np.arange(len(speakers) + 1) * len(word)
            said = Packets(np.tile(np.frombuffer(word, np.uint8), len(speakers)), offsets)
            told = yield Tell(said, speakers, np.full(len(speakers), numbers or 0), quiet=self._quiet(at, speakers))
            if len(below.members):  # everybody must have heard it, also where the block knows it already
                heard = told.said_by(below.rows, below.above)
                word = word or heard[0]
        return word

    def _quiet(self, at: int, speakers: Ints) -> Silence | None:
        return None if self._turns is None else self._turns.quiet(at, speakers if at > self._first else None)

    def _replies(
        self, asks: Ints, members: Ints, arrived: Packets, owners: Ints, senders: Ints
    ) -> tuple[Packets, Ints]:
        """Return what these devices reply, with what their children said.

        Packet i went from the device of row ``senders[i]`` to the one at the place ``owners[i]``.
        """
        if not len(members):
            return NO_PACKETS, np.empty(0, np.int64)
        if len(owners) > 1 and (owners[1:] < owners[:-1]).any():  # by row of the parent, which may lie elsewhere
            order = np.argsort(owners, kind="stable")
            arrived, owners, senders = arrived.taken(order), owners[order], senders[order]
        child_cuts = np.searchsorted(owners, np.append(members, np.iinfo(np.int64).max))
        scores = float(len(self.samples.values)) / max(self.samples.devices, 1)
        work = len(members) * len(asks) * (20 + scores) + 8.0 * len(arrived.values)
        chosen = compiled_loops("replies", work) or written
        parts: list[Any] = []

        def chunk(a: int, b: int) -> None:
            made = chosen.replies(
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
            self._check(np.arange(len(senders)) != wrong, senders, arrived, _REPLY)
            ends.append(cuts[1:] + ends[-1][-1])
            numbers.append(many)
        return Packets(np.concatenate([part[1] for part in parts]), np.concatenate(ends)), np.concatenate(numbers)

    def heard(self, asks: Ints, arrived: Packets, senders: Ints) -> list[Any]:
        """Return what the root knows about each question, see `kernels.replies.heard`."""
        work = 8.0 * len(arrived.values) + len(self.samples.values) / self.samples.devices
        chosen = compiled_loops("replies", work) or written
        places = 8 * arrived.offsets[:-1]
        found = []
        for ask in asks:
            segment = self.root * self.samples.trials + int(ask[TRIAL])
            first, last = self.samples.offsets[segment : segment + 2].tolist()
            room = last - first + 8 * len(arrived.values)
            found.append(
                chosen.heard(ask, self._bits, self._weights, first, last, arrived.values, places, room, self.count_bits)
            )
        self._check((places + 7) >> 3 == arrived.offsets[1:], senders, arrived, _REPLY)
        return found

    def curve(self, heard: Any) -> tuple[Floats, Floats, Floats, int]:
        """Return the distribution function of a sketch: knots, values just below and at them, and the mass at -inf."""
        chosen = compiled_loops("replies", 20.0 * len(heard[5])) or written
        return *chosen.curve(*heard[5:10]), heard[10]


def _without_head(packets: Packets, size: int) -> Packets:
    """Return packets without their first so many bytes."""
    keep = np.ones(len(packets.values), dtype=bool)
    for byte in range(size):
        keep[packets.offsets[:-1] + byte] = False
    return Packets(packets.values[keep], packets.offsets - size * np.arange(len(packets) + 1))


# --- the root ---------------------------------------------------------------------------------------------------------


class TreeRoot:
    """Decides what is asked next. Only the block that hosts the root has one."""

    def __init__(self, waves: Waves, pace: Pace, problems: list[RankSearch], depth: float) -> None:
        self.waves, self.pace, self.problems, self.depth = waves, pace, problems, depth

    def word(self, asked: WaveQuestion, heard: list[Any], totals: Sequence[int] | None) -> tuple[bytes, int]:
        """Return what to say after the open questions were replied to, and how many numbers that is."""
        out, at, numbers = np.zeros(64 + 64 * len(asked.which) + 16 * len(totals or ()), np.uint8), 0, 0
        for total in totals or ():
            at = written.put_gamma(out, at, total)
            numbers += 1
        for ask, which, reply in zip(asked.asks, asked.which, heard, strict=True):
            problem = self.problems[which]
            if 0 < problem.rank <= problem.upto:  # known only now where nobody knew n
                at, more = self._next(out, at, ask, problem, reply, asked.passes >= PASSES_BEFORE_LISTING)
                numbers += more
        return out[: (at + 7) >> 3].tobytes(), numbers

    def _next(self, out: Any, at: int, ask: Ints, problem: RankSearch, reply: Any, late: bool) -> tuple[int, int]:
        """Write the answer to a problem, or its next question, the last one if it is late."""
        begin, end, side = int(ask[BEGIN]), int(ask[END]), int(ask[SIDE])
        exact = reply[2] >= 0
        if side != BOTH:
            return self._answer(out, at, ask, problem, *_from_side(problem, reply, side))
        below = int(reply[0]) if ask[COUNTED] else problem.below
        upto = below + int(reply[1])
        _believe(problem, (begin, below), (end, upto))
        if below < problem.rank <= upto:
            problem.low, problem.below, problem.high, problem.upto = begin, below, end, upto
            if exact:
                return self._answer(out, at, ask, problem, *_from_list(problem, reply))
        elif problem.rank <= below:
            problem.high, problem.upto = begin, below
            problem.missed += 1
        else:
            problem.low, problem.below = end, upto
            problem.missed += 1
        held = self._same(ask, problem.low, problem.high)
        return self._ask(out, at, ask, problem, reply if held and not exact else None, late)

    def _answer(self, out: Any, at: int, ask: Ints, problem: RankSearch, key: int, counted: int) -> tuple[int, int]:
        at = written.put(out, at, 1, 1)
        at = written.put_keys(out, at, [key], 1, int(ask[BEGIN]), int(ask[END]), 1)
        at = written.put_gamma(out, at, counted - problem.rank)
        return at, 1 + (counted > problem.rank)

    def _ask(self, out: Any, at: int, ask: Ints, problem: RankSearch, reply: Any, late: bool) -> tuple[int, int]:
        """Write the next question: a window where the rank should be, one side of the bracket, or a sketch of either.

        `reply` is the sketch of this bracket, if there is one.
        """
        held = problem.upto - problem.below
        near = min(problem.rank - problem.below, problem.upto - problem.rank + 1)
        most = self.listed * problem.each  # what a bracket may weigh for all its scores to be listed
        few = most if self.pace.fetched < math.inf else 0.0  # without a limit a window is listed, never all
        low, high, side, listed, level = problem.low, problem.high, BOTH, held <= few, 0
        if not listed and near <= min(self.pace.fetched * problem.each, 2 * most):
            side = LOW if problem.rank - problem.below == near else HIGH
        if listed:
            pass
        elif reply is not None:
            problem.guess, problem.missed = self.waves.curve(reply), 0
            half = self.half_width(problem, reply)
            if self.pace.points > 2 and self._flat(problem, half):  # ties: few runs, and no end lies between them
                side = LOW if problem.rank - problem.below == near else HIGH
            elif side == BOTH or 2 * half * self.share < near:
                low, high = self._window(problem, half)
                side, listed = BOTH, 2 * half <= most
        elif problem.missed == 1 and _NEXT * near <= most and problem.guess is not None and len(problem.guess[0]):
            low, high = self._beside(problem, near)
            side, listed = BOTH, True
        elif side == BOTH:
            level = min(max((problem.rank - problem.below) * LEVELS // held, 1), LEVELS - 1)
        low, high = _kept_inside((low, high), ask, problem)
        nothing_new = reply is not None and not listed and self._same(ask, low, high)
        if held > few and side == BOTH and (late or nothing_new):
            side = LOW if problem.rank - problem.below == near else HIGH  # whatever it costs, this ends the search
            low, high = problem.low, problem.high
        at = written.put(out, at, 0, 1)
        at, numbers = _put_ends(out, at, (low, high), ask, (problem.low, problem.high))
        at = written.put(out, at, side, 2)
        if side != BOTH:
            return written.put_gamma(out, at, near), numbers + 1
        at = written.put(out, at, 1 if listed else 0, 1)
        if not listed:
            at = written.put(out, at, 1 if level else 0, 1)
            at = written.put(out, at, level, 16 if level else 0)
        return at, numbers + (level > 0)

    @staticmethod
    def _same(ask: Ints, low: int, high: int) -> bool:
        """Return whether a bracket is that of the last question: sketching it again would say nothing new."""
        return low == int(ask[BEGIN]) and high == int(ask[END])

    @property
    def share(self) -> float:
        """Which part of all scores of a bracket an average device lists, its subtree's: they travel its depth."""
        return (self.depth + 1) / self.waves.block.devices

    @property
    def listed(self) -> float:
        """How many scores may be in a bracket for all of them to be listed."""
        return max(self.pace.fetched / self.share, _FEWEST)

    def half_width(self, problem: RankSearch, reply: Any) -> float:
        """Return by how many ranks a guess may be off, see the function of this name."""
        held = problem.upto - problem.below
        knots, left, right, bottom = problem.guess
        level = (problem.rank - problem.below) / max(held, 1)
        noise = _noise_of(level, held / problem.each, self.depth)
        x, c, ends, masses = reply[5], reply[6], reply[8], reply[9]
        at = written.value_at(problem.rank - problem.below - 0.5 - bottom, knots, left, right, len(knots))
        pieces = 0.0
        for s in range(len(masses)):
            own, upto = x[ends[s] : ends[s + 1]], c[ends[s] : ends[s + 1]]
            place = int(np.searchsorted(own, at))
            pieces += float((upto[place] if place < len(own) else masses[s]) - (upto[place - 1] if place else 0.0))
        each = problem.each
        return each * half_width(self.pace.slack, noise, pieces / each, held / each, self._bent(problem) / each)

    def _bent(self, problem: RankSearch) -> float:
        """Return by how many ranks, or how much weight, a guess from everybody's sketches is too high: `_bent_by`."""
        knots, left, right, bottom = problem.guess
        held, each = problem.upto - problem.below, problem.each
        if problem.low != LOWEST or problem.high != HIGHEST or not len(knots):
            return 0.0
        aim = problem.rank - problem.below - 0.5 - bottom
        step = min(0.02 * held, aim / 2, (held - aim) / 2)
        three = [written.value_at(aim + i * step, knots, left, right, len(knots)) for i in (-1, 0, 1)]
        if step <= 0 or not (np.isfinite(three).all() and three[0] < three[2]):
            return 0.0
        return each * _bent_by(three, step / each, held / each, self.waves.block.devices)

    @staticmethod
    def _flat(problem: RankSearch, half: float) -> bool:
        """Return whether everything around the rank looks alike."""
        knots, left, right, bottom = problem.guess
        target = problem.rank - problem.below - 0.5 - bottom
        ends = [written.value_at(max(target + far, 0.0), knots, left, right, len(knots)) for far in (-half, half)]
        return bool(ends[1] - ends[0] <= _ALIKE * abs(ends[1])) if math.isfinite(ends[1]) else ends[0] == ends[1]

    def _window(self, problem: RankSearch, half: float) -> tuple[int, int]:
        """Return the keys between which the rank should be, give or take `half`, inside the bracket."""
        knots, left, right, bottom = problem.guess
        target = problem.rank - problem.below - 0.5 - bottom - self._bent(problem)
        ends = [
            written.value_at(max(target - half, 0.0), knots, left, right, len(knots)),
            written.value_at(target + half, knots, left, right, len(knots)),
        ]
        low, high = (int(key) for key in to_keys(ends))
        low = problem.low if target - half <= 0 or low <= problem.low or low >= problem.high else low
        high = problem.high if high >= problem.high or high <= low else high
        return low, high

    def _beside(self, problem: RankSearch, near: int) -> tuple[int, int]:
        """Return the keys of the next window after one that missed by `near` ranks: how dense scores are is known."""
        knots, left, right, _ = problem.guess
        upward = problem.rank - problem.below == near
        edge = from_keys(problem.low if upward else problem.high)
        there = float(np.interp(edge, knots, right))
        far = _NEXT * near + 4 * problem.each
        aim = there + far if upward else there - far
        key = int(to_keys([written.value_at(aim, knots, left, right, len(knots))])[0]) if aim > 0 else LOWEST
        if upward:
            return problem.low, key if problem.low < key < problem.high else problem.high
        return (key if problem.low < key < problem.high else problem.low), problem.high


def half_width(slack: float, noise: float, pieces: float, held: float, bent: float) -> float:
    """Return by how many ranks a guess may be off, that was corrected by `bent`.

    Noise, as of independent errors on the way to the root, and the pieces between two points in which the guess falls,
    both times `slack`. And what does not average out: a part of the correction, and a little of everything, since
    straight and cubic pieces have the same bias everywhere. The factors were measured on drawn scores of several
    shapes, in trees of 20 to 100,000 devices; a guess that is farther off costs a pass.
    """
    return float(max(3.0, slack * (noise + PIECES * pieces) + BIAS * held + TRUSTED * abs(bent)))


def _bent_by(three: Sequence[float] | Floats, step: float, scores: float, devices: int) -> float:
    """Return by how many ranks a guess from everybody's sketches is too high, by quantiles a step of ranks apart.

    Between two of its scores a device's distribution function is taken for straight. Where scores get rarer, a
    given threshold lies nearer to the lower one of them, by a part of their distance that grows with f' / f^2:
    a few hundredths of a score for each device, but the same for all. With the quantile function Q,
    f' / f^2 = -Q'' / Q'. BENT was measured on normal and lognormal scores; uniform ones have no such bias. Of very
    few scores that is no longer true: nowhere was it more than about a tenth of a score for each device.
    """
    twice, bend = three[2] - three[0], three[2] - 2 * three[1] + three[0]  # the smallest floats have no half
    each = _BENT * (devices / scores) * (2 * (bend / twice)) * (scores / step)
    return float(devices * each / (1 + abs(each) / _MOST_BENT))


def _noise_of(level: float, held: float, depth: float) -> float:
    """Return how far off independent errors make a guess, of `held` scores in a tree of that mean depth."""
    return math.sqrt(level * (1 - level) * held) * (1 + math.log2(depth + 1) / 4)


def _kept_inside(ends: tuple[int, int], ask: Ints, problem: RankSearch) -> tuple[int, int]:
    """Return a window whose ends lie in the bracket as everybody reads them: rounded out of it, they are the bracket's.

    Where that is one of them, the other one is rounded alone from then on, and looked at again.
    """
    low, high = ends
    for _ in range(3):
        out = np.zeros(64, np.uint8)
        _put_ends(out, 0, (low, high), ask, (problem.low, problem.high))
        (begin, end), _, at = _get_ends(out, 0, ask)
        before = low, high
        low = low if problem.low < begin < problem.high else problem.low
        high = high if problem.low < end < problem.high else problem.high
        if (low, high) == before:
            break
    return (low, high) if at != written.NOWHERE else (problem.low, problem.high)


def _believe(problem: RankSearch, *counts: tuple[int, int]) -> None:
    """Refuse counts that cannot be true beside those that are known: then somebody's replies are wrong."""
    known = (problem.low, problem.below), (problem.high, problem.upto)
    for key, count in counts:
        least = max((at for low, at in known if low <= key), default=0)
        most = min((at for high, at in known if high >= key), default=count)
        if not least <= count <= most:
            raise _contradiction(f"{count} lie at or below {from_keys(key)}, and that must be {least} to {most}")


def _contradiction(what: str) -> ValueError:
    return ValueError(
        f"replies of this tree contradict each other: {what}; a device says what is not so, or its scores have changed "
        "during the run"
    )


def _put_ends(out: Any, at: int, ends: tuple[int, int], ask: Ints, bracket: tuple[int, int]) -> tuple[int, int]:
    """Write the ends of the next question's bracket: new guesses rounded, and those known to everybody by name."""
    kinds = []
    for key, infinite in zip(ends, (LOWEST, HIGHEST), strict=True):
        known = {int(ask[BEGIN]): _LAST_LOW, int(ask[END]): _LAST_HIGH, infinite: _OPEN}
        kinds.append(known.get(key, _RAW if key in bracket else _NEW))
    if _NEW in kinds and not _fits(ends, kinds):  # too close together to be rounded
        kinds = [_RAW if kind == _NEW else kind for kind in kinds]
    for key, kind in zip(ends, kinds, strict=True):
        at = written.put_gamma(out, at, kind)
        if kind == _RAW:
            at = written.put_raw(out, at, key)
    if _NEW in kinds:
        finite = [key for key, kind in zip(ends, kinds, strict=True) if kind != _OPEN]
        at = written.put_points(out, at, from_keys(finite), len(finite), _ENDS_FINE[len(finite) - 1])
    return at, sum(kind in (_NEW, _RAW) for kind in kinds)


def _fits(ends: tuple[int, int], kinds: list[int]) -> bool:
    """Return whether the bracket is still one, and holds its old ends, when its new ends are rounded."""
    finite = [i for i in range(2) if kinds[i] != _OPEN]
    buffer = np.zeros(64, np.uint8)
    points = [0.0] * len(finite)
    fine = _ENDS_FINE[len(finite) - 1]
    written.put_points(buffer, 0, from_keys([ends[i] for i in finite]), len(finite), fine)
    written.get_points(buffer, 0, len(finite), fine, points)
    rounded = [*ends]
    for i, key in zip(finite, to_keys(points).tolist(), strict=True):
        rounded[i] = key if kinds[i] == _NEW else ends[i]
    return rounded[0] < rounded[1]


def _get_ends(data: Any, at: int, ask: Ints) -> tuple[list[int], int, int]:
    """Read them; how many of them are numbers, and the place."""
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
        at = written.get_points(data, at, len(finite), _ENDS_FINE[len(finite) - 1], points)
        for i, key in zip(finite, to_keys(points).tolist(), strict=True):
            ends[i] = key if kinds[i] == _NEW else ends[i]
    in_order = LOWEST <= ends[0] <= ends[1] <= HIGHEST
    return ends, sum(kind in (_NEW, _RAW) for kind in kinds), at if in_order else written.NOWHERE


def _from_list(problem: RankSearch, reply: Any) -> tuple[int, int]:
    """Return the key of the answer in an exact list of the bracket, and its rank."""
    keys, times = reply[3][: reply[2]], reply[4][: reply[2]]
    ranks = problem.below + np.cumsum(times)
    at = int(np.searchsorted(ranks, problem.rank))
    if at == len(keys):
        raise _contradiction(f"rank {problem.rank} is not among the {len(keys)} scores of a list that should hold it")
    return int(keys[at]), int(ranks[at])


def _from_side(problem: RankSearch, reply: Any, side: int) -> tuple[int, int]:
    """Return the key of the answer among the smallest, or the largest, scores of the bracket, and its rank."""
    keys, times = reply[3][: reply[2]], reply[4][: reply[2]]
    if side == LOW:
        return _from_list(problem, reply)
    ranks = problem.upto - (np.cumsum(times[::-1])[::-1] - times)  # of the last of each run
    at = int(np.searchsorted(ranks, problem.rank))
    if at == len(keys):
        raise _contradiction(f"rank {problem.rank} is not among the {len(keys)} scores of a list that should hold it")
    return int(keys[at]), int(ranks[at])


# --- everybody --------------------------------------------------------------------------------------------------------


def read_instruction(data: NDArray[np.uint8], at: int, asked: WaveQuestion, limit: int) -> tuple[int, int]:
    """Take the root's word, from some bit on: answers close their problems, and the others are asked about anew.

    Returned are the place where it ends, and how many numbers it holds.
    """
    rows, which, numbers = [], [], 0
    for ask, problem in zip(asked.asks, asked.which, strict=True):
        done, at = written.get(data, at, 1)
        if done:
            key = [0]
            _, at = written.get_keys(data, at, int(ask[BEGIN]), int(ask[END]), key, 1)
            more, at = written.get_gamma(data, at)
            numbers += 1 + (more > 0)
            asked.found[problem] = FoundScore(key[0], more, _halfway(ask, key[0]))  # the rank is added later
            continue
        ends, new, at = _get_ends(data, at, ask)
        numbers += new
        side, at = written.get(data, at, 2)
        if side not in (BOTH, LOW, HIGH):
            at = written.NOWHERE
        row = ask.copy()
        row[BEGIN], row[END], row[SIDE], row[EVEN] = *ends, side, 1
        row[COUNTED], row[LIMIT] = BELOW if ends[0] != LOWEST and side == BOTH else 0, 0
        if side != BOTH:
            row[LIMIT], at = written.get_gamma(data, at)
            numbers += 1
        else:
            listed, at = written.get(data, at, 1)
            row[LIMIT] = MOST_LISTED * limit if listed else 0
            if not listed:
                focused, at = written.get(data, at, 1)
                level, at = written.get(data, at, 16 if focused else 0)
                numbers += focused
                row[EVEN], row[LEVEL] = not focused, level if focused else row[LEVEL]
        rows.append(row)
        which.append(problem)
    asked.asks = np.array(rows, dtype=np.int64).reshape(-1, asked.asks.shape[1])
    asked.which, asked.passes = which, asked.passes + 1
    asked.sketches += sum(row[SIDE] == BOTH and row[LIMIT] == 0 for row in rows) > 0
    return (
        at if asked.passes <= PASSES_BEFORE_LISTING + 1 or not which else written.NOWHERE
    ), numbers  # no root asks on


def _halfway(ask: Ints, answer: int) -> tuple[int, int]:
    """Return where to look for the answer the next time: half as far around it as in the last question.

    A side that was open is taken for as wide as the other one.
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
    limit = int(min(max(pace.fetched * block.devices / (depth + 1), _FEWEST), 2**40))
    asked = _first(block, pace, limit, n, ranks, one_side, warm)
    if not asked.which:
        assert n is not None
        assert ranks is not None
        return ranks, n, asked
    waves = Waves(block, samples, 0 if n is None else int(n.max()).bit_length())
    if ranks is not None:
        _show(block, asked, ranks, None)
    expect_work("replies", 3.0 * len(asked.which) * (20 * len(block.rows) + len(samples.values) / samples.trials))
    yield from waves.explore()
    root: TreeRoot | None = None
    while asked.which:
        arrived, senders = yield from waves.rise(asked.asks)
        word = b""
        if waves.root >= 0:
            heard = waves.heard(asked.asks, arrived, senders)
            said = None if n is not None else _totals(asked, heard, block)
            if root is None:
                held = np.array(said, dtype=np.int64) if n is None else n
                known = block.ranks(held) if ranks is None else ranks
                root = TreeRoot(waves, pace, _problems(known, held, block.totals), depth)
            word, _ = root.word(asked, heard, said)
        before = asked.copy(), n, ranks
        word = yield from waves.fall(word, lambda word: _taken(word, block, limit, *before)[-1])  # noqa: B023
        n, ranks, _ = _taken(word, block, limit, asked, n, ranks)
        _show(block, asked, ranks, None if root is None else root.problems[0])
        waves.count_bits = int(n.max()).bit_length()
    assert n is not None
    assert ranks is not None
    for one, rank in zip(asked.found, ranks.ravel().tolist(), strict=True):
        one.counted += rank
    return ranks, n, asked


def _show(block: Block, asked: WaveQuestion, ranks: Ints, problem: RankSearch | None) -> None:
    """Show where the first problem is looked for, with the counts that the root knows; or its answer."""
    if 0 in asked.which:
        ends = asked.asks[asked.which.index(0), [BEGIN, END]]
        known = {} if problem is None else {problem.low: problem.below, problem.high: problem.upto}
    else:
        one = asked.found[0]
        ends = np.array([one.answer, one.answer])
        known = {one.answer: int(ranks[0, 0]) + one.counted}
    low, high = np.nan_to_num(from_keys(ends), nan=-np.inf, posinf=np.inf, neginf=-np.inf).tolist()  # below -inf is NaN
    block.progress.bracket = low, high, *(known.get(int(key)) for key in ends)


def _taken(
    word: bytes, block: Block, limit: int, asked: WaveQuestion, n: Ints | None, ranks: Ints | None
) -> tuple[Ints, Ints, int]:
    """Take the root's word; return what all scores weigh, the ranks, and how many numbers the word holds."""
    data, at, numbers = np.frombuffer(word + bytes(16), np.uint8), 0, 0
    if n is None or ranks is None:
        totals = []
        for _ in range(block.trials):
            total, at = written.get_gamma(data, at)
            totals.append(total)
        n = np.array(totals, dtype=np.int64)
        ranks, numbers = block.ranks(n), len(totals)
        asked.keep(needs_search(ranks, n))
        asked.asks[:, USUAL], asked.asks[:, EACH] = _usual(block, n, asked.asks[:, TRIAL])  # now it is known
    at, more = read_instruction(data, at, asked, limit)
    if (at + 7) >> 3 != len(word):
        raise ValueError(
            f"the root {block.network.ids[block.network.centre]}, or a device on the way from it, says {len(word)} "
            "bytes that are neither an answer nor a question; run the same version of conformesh on every device, and "
            "look whether these can be trusted"
        )
    return n, ranks, numbers + more


def _first(
    block: Block,
    pace: Pace,
    limit: int,
    n: Ints | None,
    ranks: Ints | None,
    one_side: bool,
    warm: tuple[float, float] | None,
) -> WaveQuestion:
    """Return the first question about every problem, which everybody knows without being told."""
    trials, levels = block.trials, len(block.alphas)
    if warm is not None and not np.isfinite(warm).all():
        warm = None  # as good as nothing
    asks = np.zeros((trials * levels, EACH + 1), dtype=np.int64)
    asks[:, TRIAL] = np.repeat(np.arange(trials), levels)
    asks[:, BEGIN], asks[:, END], asks[:, SIDE] = LOWEST, HIGHEST, BOTH
    asks[:, POINTS], asks[:, GROWTH] = pace.points, pace.growth
    if n is None or ranks is None:
        parts = [int((1 - alpha) * LEVELS) for alpha in block.alphas] * trials
        weigh = np.full(trials, block.most)
    else:
        weigh = n
        parts = [int(r) * LEVELS // max(int(total), 1) for row, total in zip(ranks, n, strict=True) for r in row]
        if one_side and warm is None:
            few = np.repeat(n, levels) - ranks.ravel() + 1
            asks[:, SIDE] = np.where(ranks.ravel() <= few, LOW, HIGH)
            asks[:, LIMIT] = np.minimum(ranks.ravel(), few)
    asks[:, USUAL], asks[:, EACH] = _usual(block, weigh, asks[:, TRIAL])
    asks[:, LEVEL] = np.clip(parts, 1, LEVELS - 1)
    if warm is not None:
        low, high = (int(key) for key in to_keys(_around(*warm)))
        asks[:, BEGIN], asks[:, END] = (LOWEST if low <= LOWEST + 1 else low), high
        asks[:, LIMIT], asks[:, COUNTED] = MOST_LISTED * limit, BELOW if low > LOWEST + 1 else 0
        if n is None:
            asks[:, COUNTED] = OUTSIDE
    asked = WaveQuestion(asks, [*range(len(asks))], [FoundScore() for _ in range(len(asks))])
    if n is not None and ranks is not None:
        asked.keep(needs_search(ranks, n))
    return asked


def _usual(block: Block, n: Ints, trials: Ints) -> tuple[Ints, Ints]:
    """Return what a device, and a score, of these trials usually weighs; `n` what all of each trial do."""
    return np.maximum(n // block.devices, 1)[trials], np.maximum(n // np.maximum(block.totals, 1), 1)[trials]


def _around(low: float, high: float) -> tuple[float, float]:
    """Return the bracket in which to look first: the old one, or a little around an old threshold."""
    step = max(abs(high) * 1e-12, 1e-300) if low == high else 0.0
    return low - step, high + step


def needs_search(ranks: Ints, n: Ints) -> NDArray[np.bool_]:
    """Mark the problems that need a search: a rank of none, or beyond all scores, has its answer already."""
    return np.asarray((ranks > 0) & (ranks <= n[:, None])).ravel()


def _problems(ranks: Ints, n: Ints, scores: Ints) -> list[RankSearch]:
    levels = ranks.shape[1]
    each = np.maximum(n / np.maximum(scores, 1), 1.0)
    return [RankSearch(int(r), 0, int(n[i // levels]), float(each[i // levels])) for i, r in enumerate(ranks.ravel())]


def _totals(asked: WaveQuestion, heard: list[Any], block: Block) -> list[int]:
    """Return what all scores of each trial weigh, from replies that say what lies in a bracket and on its sides."""
    first = [heard[asked.asks[:, TRIAL].tolist().index(trial)] for trial in range(block.trials)]
    totals = [int(reply[0]) + int(reply[1]) + int(reply[11]) for reply in first]
    if not 0 <= min(totals) <= max(totals) <= block.most:
        raise _contradiction(f"all scores of a trial weigh {max(totals)}, which can be 0 to {block.most}")
    return totals


def mean_depth(block: Block) -> float:
    """Return how many hops a device is from the root, on average, as the map has it."""
    from conformesh.kernels.graph import breadth_first

    network = block.network
    levels, queue = np.empty((2, network.devices), dtype=np.int64)
    breadth_first(network.indptr, network.indices, network.centre, levels, queue)
    return float(levels.mean())
