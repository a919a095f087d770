"""What the schedules of E-DCP would send.

Where runs are cheap (`Terrain.runs`), the prediction is their mean; on known scores, the run itself. For larger
networks a law stands in, with what scores of one distribution send on average:

window, count  a device's sketch of M scores has 1 + `points_of(M)` numbers; a window of 2h ranks lists 2h M / n,
               M of n scores below the device; the root's word is said by all that have a child. How wide
               windows are, `waves.Root.half_width` says: here with means in place of what the root has heard
top-k          over a tree min(M, k) scores. By flooding, the news of a device at t hops that are among its k largest:
               k S / B where B scores are within t hops and S of them at t

Bits, and by how much a guess is corrected, depend on what scores look like. So the law is worked out for every shape
that they may have (`Terrain.looks`), and the mean is predicted; where shapes differ much, a note says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.graph.sketch import weights_below
from conformesh.kernels.keys import to_keys
from conformesh.kernels.replies import LEVELS, fill_levels, fineness, points_of, put_points
from conformesh.protocols.aggregate import get_aggregator
from conformesh.protocols.aggregate.base import bits_of
from conformesh.protocols.e_dcp import EDCP, KEY_BITS, PATIENCE, Chosen, best_width, chosen, ways_to_add
from conformesh.protocols.predicting import Look, Prediction, Run, Stretch, Terrain, balls_of, hops
from conformesh.protocols.site import Site
from conformesh.protocols.top_k import Wanted
from conformesh.protocols.waves import ENDS_FINE, FEWEST, bent_by, half_width, noise_of
from conformesh.protocols.waves import PATIENCE as SKETCHES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OVER_TREE, OVER_FLOOD = frozenset({"hops", "tree", "degree"}), frozenset({"hops"})
PADDING = 3.5  # bits that fill the last byte of a string, on average
RAW_FROM = 2.0**61  # half of the distance of keys from which all of them are written as they are, see `put_keys`
FEW_ENOUGH = 40  # values for which a law is worked out: it is straight between them
DRAWN, GROUPS = 400, 8  # windows that are drawn, and groups of them whose means are gone on from
ENOUGH = 2000  # scores that are drawn of a long list to see how far apart they are
FAR = 0.2  # by which a shape's bytes, or rounds, may be away from the mean before that is said
ENOUGH_EACH = 50  # scores of a device, on average, from which windows hardly ever miss
BY_LAW = "by a law, which takes scores to be drawn alike: a window that misses costs a pass more"
WIDE = (
    "now and then a window is {times:.1f} times as wide as most: this is the mean of many runs, and most send less, a "
    "few much more"
)
MISSES = (
    "devices with fewer than 50 scores each sketch them with a bias, and many of them together make windows miss: then "
    "a run takes a pass more, about {more:.0%} more rounds than this"
)
UNBOUNDED = "no bound is known for the worst scores: a window that misses the rank costs a pass more"


def predict_e_dcp(terrain: Terrain, alpha: Fraction, options: EDCP) -> Prediction:
    """Predict `e_dcp`, whichever schedule it takes."""
    rank, n = terrain.rank(alpha), terrain.n
    plan = _chosen(terrain, alpha, options, rank)
    if plan.schedule == "count" and plan.over != "tree":
        return predict_by_stages(terrain, alpha, options)
    plain = Prediction(
        (),
        "counted",
        uses=OVER_TREE if plan.over == "tree" else OVER_FLOOD,
        exact=True,
        facts={"schedule": _name(plan), "over": plan.over},
        arrays=1.2,
    )
    if not 0 < rank <= n:  # the threshold is infinite, as everybody knows who knows the sizes
        return plain
    measured = terrain.runs(alpha, options)
    if measured is not None:
        found = _from_runs(plain, *measured)
    elif plan.over == "flood":
        found = _by_flooding(plain, terrain, rank)
    else:
        found = _one_side(plain, terrain, rank) if plan.schedule == "top-k" else _by_windows(plain, terrain, rank, plan)
        if plan.schedule != "top-k":
            found = replace(found, notes=(BY_LAW, *_few_scores(terrain, found), *found.notes))
    if plan.schedule == "top-k" and found.varies:
        return replace(found, most=_most_of_top_k(terrain, rank, plan))
    return replace(found, notes=(*found.notes, UNBOUNDED)) if found.varies else found


def _few_scores(terrain: Terrain, found: Prediction) -> tuple[str, ...]:
    """Say where a law that knows of no misses is too low."""
    if terrain.n >= ENOUGH_EACH * terrain.devices:
        return ()
    return (MISSES.format(more=2 * terrain.tree.depth / max(_rounds(found.stretches), 1.0)),)


def _chosen(terrain: Terrain, alpha: Fraction, options: EDCP, rank: int) -> Chosen:
    """Return what a run would choose."""
    if terrain.built is None or terrain.sizes is None:
        return chosen(terrain.site, options, np.array([[rank]]), np.array([terrain.n]))
    site = replace(
        Site.everywhere(terrain.built, terrain.sizes[:, None]), requirement=terrain.requirement, alphas=(alpha,)
    )
    return chosen(site, options, site.ranks(), site.masses.sum(axis=0))


def _name(plan: Chosen) -> str:
    return "window" if plan.schedule == "auto" else plan.schedule


# --- from runs --------------------------------------------------------------------------------------------------------


def _from_runs(plain: Prediction, runs: Sequence[Run], known: bool) -> Prediction:
    """Return the mean of all runs, and between which rounds they end."""
    facts = Counter(run.facts["schedule"] for run in runs)
    found = replace(
        plain,
        stretches=_mean([run.stretches for run in runs]),
        facts={**runs[0].facts, "schedule": facts.most_common(1)[0][0]},
    )
    if known:
        return found
    rounds = [sum(one.rounds for one in run.stretches) for run in runs]
    shapes = [[run.stretches for run in runs if run.look == look] for look in dict.fromkeys(run.look for run in runs)]
    return replace(
        found,
        varies=True,
        rounds=(float(np.quantile(rounds, 0.05)), float(np.quantile(rounds, 0.95))),
        notes=_differing([_mean(shape) for shape in shapes], found.stretches),
    )


def _mean(runs: Sequence[tuple[Stretch, ...]], weights: Sequence[float] | None = None) -> tuple[Stretch, ...]:
    """Return stretches whose rounds, messages, numbers and bits are the means of those of the same name."""
    if len(runs) == 1:
        return runs[0]
    shares = np.array([1.0] * len(runs) if weights is None else weights) / (
        len(runs) if weights is None else sum(weights)
    )
    found = []
    for what in dict.fromkeys(one.what for run in runs for one in run):
        same = [
            (one, share) for run, share in zip(runs, shares.tolist(), strict=True) for one in run if one.what == what
        ]
        spoken = sum(share * one.said[0] for one, share in same)
        numbers = sum(share * one.said[0] * one.numbers for one, share in same)
        bits = sum(share * one.said[0] * one.numbers * one.bits for one, share in same)
        each, width = numbers / spoken if spoken else 0.0, bits / numbers if numbers else 0.0
        payload = each * width or 1.0  # bits of a message; of each run they differ
        found.append(
            replace(
                same[0][0],
                rounds=_even([one.rounds for one, _ in same], len(runs))
                or sum(share * one.rounds for one, share in same),
                numbers=each,
                bits=width,
                spoken=spoken,
                most=sum(share * one.said[1] * one.numbers * one.bits for one, share in same) / payload,
                copies=sum(share * (one.copies or 0.0) * one.numbers * one.bits for one, share in same) / payload,
            )
        )
    return tuple(found)


def _even(values: Sequence[float], many: int) -> float:
    """Return what so many values all are, to the last bit; 0 if they differ, or are fewer."""
    return values[0] if min(values) == max(values) and len(values) == many else 0.0


def _differing(shapes: Sequence[tuple[Stretch, ...]], mean: tuple[Stretch, ...]) -> tuple[str, ...]:
    """Say by how much what is sent depends on what scores look like, where that is much."""
    notes = []
    for what, of in (("rounds", _rounds), ("bytes", _bits)):
        parts = [of(one) / max(of(mean), 1e-9) for one in shapes]
        if max(abs(part - 1) for part in parts) > FAR:
            notes.append(
                f"{what} depend on what scores look like, {min(parts):.0%} to {max(parts):.0%} of this mean; say what "
                "they do (--shape), or plan with the scores"
            )
    return tuple(notes)


def _rounds(stretches: Sequence[Stretch]) -> float:
    return sum(one.rounds for one in stretches)


def _bits(stretches: Sequence[Stretch]) -> float:
    return sum(one.said[0] * one.numbers * one.bits for one in stretches)


# --- over a tree ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Subtrees:
    """What the subtrees of all devices hold, or of a few that stand for them.

    Attributes
    ----------
    scores, times
        Scores below a device, with its own, and how many devices are like that one; the root is left out.
    children, alike
        Scores below each child of the root, and how many children each of these stands for.
    """

    scores: Floats
    times: Floats
    children: Floats
    alike: float = 1.0

    def mean(self, each: Floats, devices: int) -> float:
        """Return the mean over all devices of what each of these has; the root has none."""
        return float((each * self.times).sum()) / devices


def _subtrees(terrain: Terrain) -> Subtrees:
    network, sizes = terrain.built, terrain.sizes
    if network is None or sizes is None:
        return _sketched(terrain)
    parent, below = weights_below(network, sizes)
    others = np.flatnonzero(parent >= 0)
    return Subtrees(below[others].astype(float), np.ones(len(others)), below[parent == network.centre].astype(float))


def _sketched(terrain: Terrain) -> Subtrees:
    """Return two kinds of devices, those with a child and those without, whose subtrees have the right mean.

    Those with a child are spread over as many sizes as the mean logarithm of a subtree asks for, evenly by their
    logarithms as in a tree that branches, or as on long paths.
    """
    tree, K, each = terrain.tree, terrain.devices, terrain.n / terrain.devices
    children = min(2 * terrain.map.edges / K, K - 1) if tree.depth > 1 else K - 1
    held, alike = np.array([(terrain.n - each) / max(children, 1.0)]), max(children, 1.0)
    if tree.branches:
        held, alike = terrain.n * np.array(tree.branches), 1.0
    inner = max(tree.parents * K - 1, 0.0)
    leaves = K - 1 - inner
    if inner <= 0:
        return Subtrees(np.array([each]), np.array([leaves]), held, alike)
    mean = max(((tree.mean_depth + 1) * K - K - leaves) / inner, 1.0) if tree.mean_depth else 1.0
    doublings = max(tree.doublings * K / inner, 0.5)  # of those with a child
    steps = np.linspace(0.05, 0.95, 10)
    spread = 2.0 ** (doublings * 2 * steps)
    if spread.mean() > mean:  # paths, on which sizes are even: 1, 2, ..., m, whose mean logarithm is that of m / e
        spread = np.maximum(2.0**doublings * math.e * steps, 1.0)
    spread[-1] = max(mean * 10 - spread[:-1].sum(), spread[-1])
    return Subtrees(each * np.append(spread, 1.0), np.append(np.full(10, inner / 10), leaves), held, alike)


def _explored(terrain: Terrain) -> Stretch:
    """Predict the wave that reaches the leaves: everybody speaks once, but for the deepest."""
    tree, K = terrain.tree, terrain.devices
    deepest = 1.0 / max(tree.depth, 1)
    if terrain.built is not None:
        deepest = float((_levels(terrain.built) == tree.depth).mean())
    elif terrain.map.tree.depth == 1:  # type: ignore[union-attr]
        deepest = (K - 1) / K
    degree = tree.growing / (tree.depth + 1)
    return Stretch(
        "explore the tree", tree.depth, 1, bits_of(K), spoken=1 - deepest, most=1, copies=tree.growing - degree
    )


def _levels(network: Network) -> Ints:
    from conformesh.kernels.graph import breadth_first

    levels = np.empty(network.devices, np.int64)
    breadth_first(network.indptr, network.indices, network.centre, levels, np.empty(network.devices, np.int64))
    return levels


def _over_tree(
    terrain: Terrain, passes: float, replies: tuple[float, float, float], words: tuple[float, float]
) -> tuple[Stretch, ...]:
    """Return stretches: numbers, bits and the largest bits of replies of a device, numbers and bits of words."""
    tree, K = terrain.tree, terrain.devices
    if not tree.depth:
        return ()
    named = 8.0 * -(-(K - 1).bit_length() // 8)
    explore = _explored(terrain)
    deepest = 1 - float(explore.spoken or 0.0)
    numbers, bits = replies[0] + deepest, replies[1] + deepest * named
    spoken = passes * (K - 1) / K
    up = Stretch(
        "replies", passes * tree.depth, numbers / spoken, bits / numbers, spoken, replies[2] / (bits / spoken),
        passes * tree.up, told=True, number_ns=300.0, device_ns=3000.0,
    )  # fmt: skip
    said = passes * tree.parents
    down = Stretch(
        "the root's word", passes * tree.depth, words[0] / passes, words[1] / max(words[0], 1e-9), said, passes,
        passes * tree.down, told=True, number_ns=1.0, device_ns=20.0,
    )  # fmt: skip
    return explore, up, down


def _one_side(plain: Prediction, terrain: Terrain, rank: int) -> Prediction:
    """Predict top-k over a tree: its numbers are exact where no scores are equal."""
    if terrain.built is None:
        raise ValueError(
            "what top-k sends over a tree depends on how many scores are below every device, which needs the network "
            "itself, and this one is only sketched"
        )
    n, K = terrain.n, terrain.devices
    largest = n - rank + 1 < rank
    k, below = min(n - rank + 1, rank), _subtrees(terrain)
    listed = np.minimum(below.scores, k)
    words = 1.0, KEY_BITS + 12.0
    found = []
    for look, often in terrain.looks:
        bits = _of_few(below.scores, partial(_bits_of_side, k=k, look=look, largest=largest)) + PADDING
        replies = below.mean(listed, K), below.mean(bits, K), float(bits.max(initial=0.0))
        found.append((_over_tree(terrain, 1, replies, words), often))
    rounds = 3.0 * terrain.tree.depth
    return _of_shapes(replace(plain, varies=True, rounds=(rounds, rounds)), found)


def _by_windows(plain: Prediction, terrain: Terrain, rank: int, plan: Chosen) -> Prediction:
    """Predict sketches and windows: one after the other, each as wide as the root would draw it on average."""
    below, tree = _subtrees(terrain), terrain.tree
    waves = [(_Search(terrain, below, rank, plan, look).run(), often) for look, often in terrain.looks]
    found = [(_over_tree(terrain, one.passes, *one.sent), often) for one, often in waves]
    fewest, most = min(one.fewest for one, _ in waves), max(one.most for one, _ in waves) + 1  # with a miss
    rounds = float(tree.depth * (1 + 2 * fewest)), float(tree.depth * (1 + 2 * most))
    named = "count" if sum(often for one, often in waves if one.passes > 2.5) > 0.5 else "window"
    facts = {**plain.facts, "schedule": named, "points": str(plan.pace.points)}
    widest = max(one.widest for one, _ in waves)
    notes = (WIDE.format(times=widest),) if widest > 1.5 else ()
    return _of_shapes(replace(plain, varies=True, rounds=rounds, facts=facts, notes=notes), found)


class _Search:
    """The passes of one search, for scores of one shape: what they send, on average over all devices."""

    def __init__(self, terrain: Terrain, below: Subtrees, rank: int, plan: Chosen, look: Look) -> None:
        self.terrain, self.below, self.rank, self.pace, self.look = terrain, below, rank, plan.pace, look
        self.n, self.K, self.depth = terrain.n, terrain.devices, terrain.tree.mean_depth
        self.usual, self.count_bits = max(self.n // self.K, 1), self.n.bit_length()
        self.passes, self.numbers, self.bits, self.largest = 0.0, 0.0, 0.0, 0.0
        self.fewest, self.most = 0, 0  # passes, of the windows that the root may draw
        self.words = [1.0, 0.0]  # numbers and bits
        self.widest = 1.0  # how many times as wide as most the widest of the first windows are

    @property
    def sent(self) -> tuple[tuple[float, float, float], tuple[float, float]]:
        """Replies and words, as `_over_tree` takes them."""
        return (self.numbers, self.bits, self.largest), (self.words[0], self.words[1])

    def run(self) -> _Search:
        """Sketch everything; then go on from each window that the root may draw."""
        self._sketch(float(self.n), False, 1.0)
        halves = self._first_halves()
        self.widest = max(halves) / float(np.median(halves))
        for half in halves:
            self._go_on(2 * half, 1 / len(halves))
        return self

    def _go_on(self, held: float, share: float) -> None:
        """Sketch the window until one is narrow enough, then list that."""
        self._ask(held, share)
        most_listed, passes = max(self.pace.fetched * self.K / (self.depth + 1), FEWEST), 2
        while held > most_listed and passes <= SKETCHES:
            self._sketch(held, True, share)
            held = 2 * min(self._half(held, 0.5, self._pieces(held)), held / 2)
            self._ask(held, share)
            passes += 1
        self._list(held, share)
        self.fewest, self.most = min(passes, self.fewest or passes), max(passes, self.most)

    def _ask(self, held: float, share: float) -> None:
        self.words[0] += 2 * share
        self.words[1] += share * (8.0 + _word_bits(self._ends(held)))

    def _add(self, numbers: Floats, bits: Floats, share: float) -> None:
        self.numbers += share * self.below.mean(numbers, self.K)
        self.bits += share * self.below.mean(bits + PADDING, self.K)
        self.largest += share * (float(bits.max(initial=0.0)) + PADDING)
        self.passes += share

    def _points(self, mass: float) -> int:
        return points_of(int(mass), self.pace.points, self.pace.growth, self.usual)

    def _sketch(self, held: float, even: bool, share: float) -> None:
        """Add a pass of sketches: of a narrower bracket, who has no score in it says so, and what lies below it."""
        inside = self.below.scores * (held / self.n)
        some = -np.expm1(-inside) if even else np.ones_like(inside)  # the chance to have any
        within = np.maximum(inside / some, 1.0)  # on average, of those who have
        points = _of_few(within, lambda mass: float(self._points(mass)), whole=True)
        bits = _of_few(within, lambda mass: self._bits_of_sketch(mass, held, even), whole=True)
        known = even * self.count_bits
        self._add(even + some * (points + 1), known + 1 + some * (self.count_bits + bits) + (1 - some), share)

    def _bits_of_sketch(self, mass: float, held: float, even: bool) -> float:
        """Return the bits of the points of a sketch, written where they should lie."""
        many, level = self._points(mass), self.rank * LEVELS // self.n
        levels = np.empty(many)
        fill_levels(mass, 1.0, level / LEVELS, int(even), many, levels)
        first, last = (self._level(-held / 2), self._level(held / 2)) if even else (0.0, 1.0)
        points = self.look(first + (last - first) * np.clip(levels / mass, 0.5 / mass, 1 - 0.5 / mass))
        fine = fineness(int(mass), level, int(even), many)
        return float(put_points(np.zeros(64 + 10 * many, np.uint8), 0, points, many, fine))

    def _half(self, held: float, part: float, pieces: float, bent: float = 0.0) -> float:
        """Return how wide the root draws its window: `Root.half_width`, with means."""
        return half_width(self.pace.slack, noise_of(part, held, self.depth), pieces, held, bent)

    def _pieces(self, held: float) -> float:
        """Return what lies between two points of the sketches of the root's children, where points are even."""
        near = self.below.children * (held / self.n)
        return float((near / _of_few(near, lambda mass: float(self._points(mass)))).sum()) * self.below.alike

    def _first_halves(self) -> list[float]:
        """Return how wide the first window may be, each as likely as the others.

        Where a child's own quantile lies differs from that of all by the noise of its scores and of the others': so
        the root's guess may fall beyond the innermost points of the child's sketch, where pieces are longer. With few
        children the window is now narrow and now wide.
        """
        part, bent = self.rank / self.n, self._bent()
        children, used = self.below.children, 0
        drawn = np.zeros(DRAWN)
        masses, many = np.unique(children, return_counts=True)
        for mass, often in zip(masses.tolist(), (many * self.below.alike).tolist(), strict=True):
            edges = self._edges(mass, part)
            spread = math.sqrt(part * (1 - part) * mass * max(1 - mass / self.n, 0.0))
            alike = min(round(often), 64)  # more of them are as their mean
            at = part * mass + spread * _normal(_scattered(DRAWN, used + np.arange(alike)))
            used += alike
            place = np.searchsorted(edges, at).clip(1, len(edges) - 1)
            drawn += np.diff(edges)[place - 1].mean(axis=1) * often
        groups = np.sort(drawn).reshape(GROUPS, -1).mean(axis=1)
        if np.ptp(groups) < 0.2 * groups.mean():
            groups = groups.mean(keepdims=True)
        return [min(self._half(self.n, part, one, bent), self.n / 2) for one in groups.tolist()]

    def _edges(self, mass: float, part: float) -> Floats:
        """Return between which masses the pieces of a child's sketch lie."""
        levels = np.empty(self._points(mass))
        fill_levels(mass, 1.0, part, 0, len(levels), levels)
        return np.concatenate([[0.0], np.clip(levels, 0.0, mass), [mass]])

    def _bent(self) -> float:
        """Return by how many ranks the first guess is corrected, see `Root._bent`: by the shape's own quantiles."""
        aim, n = self.rank - 0.5, self.n
        step = min(0.02 * n, aim / 2, (n - aim) / 2)
        return bent_by(self.look((aim + np.array([-1, 0, 1]) * step) / n), step, n, self.K)

    def _level(self, away: float) -> float:
        """Return the level so many ranks away from the one that is searched."""
        return min(max((self.rank + away) / self.n, 0.5 / self.n), 1 - 0.5 / self.n)

    def _ends(self, held: float) -> Floats:
        return self.look(np.array([self._level(-held / 2), self._level(held / 2)]))

    def _list(self, held: float, share: float) -> None:
        """Add the last pass: everything in the window, and what lies below it; then the answer."""
        low, high = to_keys(self._ends(held)).tolist()
        span = math.log2(max(high - low, 2))
        listed = self.below.scores * (held / self.n)
        bits = _of_few(listed, lambda mean: _bits_in_window(mean, span))
        self._add(listed + 1, self.count_bits + 1 + bits, share)
        self.words[1] += share * (1 + 3 + 6 + span + 0.5 + 1 + PADDING)


def _word_bits(ends: Floats) -> float:
    """Return the bits of a window's two new ends, and of what is asked about it, with what fills the last byte."""
    return put_points(np.zeros(64, np.uint8), 0, ends, 2, ENDS_FINE[1]) + 2 + PADDING


def _of_few(values: Floats, of: Callable[[float], float], whole: bool = False) -> Floats:
    """Return a slowly growing function of many values: worked out for some of them, straight between these."""
    known = np.unique(np.rint(values) if whole else values)
    if len(known) > FEW_ENOUGH:
        places = np.geomspace(max(known[0], 1e-6), known[-1], FEW_ENOUGH)
        known = np.unique(known[np.searchsorted(known, places).clip(0, len(known) - 1)])
    return np.asarray(np.interp(values, known, [of(float(value)) for value in known]))


def _scattered(many: int, columns: Ints) -> Floats:
    """Return so many numbers between 0 and 1 in each column, as evenly as can be, in no order: nothing is random."""
    return np.asarray(np.outer(np.arange(many) + 0.5, np.sqrt(2 + np.pi * columns)) % 1.0)


def _normal(levels: Floats) -> Floats:
    from scipy.special import ndtri

    return np.asarray(ndtri(levels))


def _of_shapes(plain: Prediction, found: Sequence[tuple[tuple[Stretch, ...], float]]) -> Prediction:
    """Return the mean over all shapes that scores may have, and say so where one of them is far from it."""
    weights = [often for _, often in found]
    mean = _mean([stretches for stretches, _ in found], weights)
    return replace(plain, stretches=mean, notes=(*plain.notes, *_differing([one for one, _ in found], mean)))


# --- bits of lists ----------------------------------------------------------------------------------------------------


def _bits_in_window(mean: float, span: float) -> float:
    """Return the bits of the keys in a window that is 2^span wide, of which a device has so many on average.

    How many it has is Poisson. Their number, the zeros that they drop, the first, and whether each is there once; from
    the second on the low bits of gaps, and the gaps, in Rice codes: how many ones such a gap has on average follows
    from its being exponential.
    """
    top = int(mean + 8 * math.sqrt(mean) + 8)
    many = np.arange(top + 1) if mean < 50 else np.array([mean])
    chances = np.ones(1)
    if mean < 50:
        from scipy.special import gammaln

        chances = np.exp(many * math.log(mean) - mean - gammaln(many + 1.0)) if mean > 0 else (many == 0).astype(float)
    gap = np.maximum(2.0**span / (many + 1), 1.0)
    bits = 2 * np.floor(np.log2(many + 1)) + 1 + (many > 0) * (6 + span + 0.5 + 1)
    bits = bits + (many > 1) * 6 + np.maximum(many - 1, 0) * _rice(gap)
    return float(chances @ bits)


def _rice(gap: Any) -> Any:
    """Return the bits of a gap, of which this is the mean."""
    low = np.floor(np.log2(gap))
    return 1 + low + 1 / np.expm1(2.0**low / gap)


def _bits_of_side(held: float, k: int, look: Look, largest: bool) -> float:
    """Return the bits of the k largest, or smallest, of so many scores."""
    return _bits_drawn(min(held, k), min(k / max(held, 1.0), 1.0), look, largest) + 1


def _bits_drawn(many: float, part: float, look: Look, largest: bool) -> float:
    """Return the bits of so many keys of scores that are drawn from the largest, or smallest, part of all."""
    count = max(round(many), 1)
    drawn = []
    for place in range(max(1, min(12, 200 // count))):
        steps = np.cumsum(-np.log(_scattered(min(count, ENOUGH) + 1, np.array([place]))[:, 0]))
        levels = part * steps[:-1] / steps[-1]  # exponential gaps, as between scores in no order
        keys = np.sort(to_keys(look(np.clip(1 - levels if largest else levels, 1e-15, 1 - 1e-15))))
        gaps = np.diff(keys.astype(float)) * (len(keys) - 1) / max(count - 1, 1)  # of a longer list, as many between
        bits = float(2 * math.floor(math.log2(count + 1)) + 1 + 6 + KEY_BITS + 6 * (count > 1))
        if keys[-1] / 2 - keys[0] / 2 >= RAW_FROM:
            bits += KEY_BITS * (count - 1)
        elif count > 1:
            low = math.floor(math.log2(max(gaps.mean(), 1.0)))
            bits += (count - 1) * (1 + low + float(np.floor(gaps / 2.0**low).mean()))
        drawn.append(bits)
    return float(np.mean(drawn)) * many / count if many >= 1 else float(np.mean(drawn))


# --- flooding ---------------------------------------------------------------------------------------------------------


def _by_flooding(plain: Prediction, terrain: Terrain, rank: int) -> Prediction:
    """Predict what a device says of what it hears, from how many devices are within how many hops of it."""
    n, K, D = terrain.n, terrain.devices, terrain.map.diameter
    if not D:
        return plain
    k = min(n - rank + 1, rank)
    own = np.asarray(terrain.own, dtype=float)
    likely = np.array([Wanted(0, False, k).likely(int(size), n, n) for size in own])
    each_has = float(np.minimum(np.minimum(own, likely), k).mean())  # what a device says at first
    balls = balls_of(terrain.map)[:, :D]
    inside = balls * each_has
    at = np.diff(inside, axis=1, prepend=0.0)
    said = np.minimum(at, k * at / np.maximum(inside, k))
    parts = np.minimum(inside, k) / np.maximum(balls * own.mean(), 1.0)  # which part of those within t hops this is
    kept_back = float((own > likely).mean())
    spoken, numbers = float((said > 0.5).sum(axis=1).mean()), float(said.sum(axis=1).mean()) + kept_back
    found = []
    for look, often in terrain.looks:
        bits = sum(_bits_of_news(said[:, t], parts[:, t], look, n - rank + 1 < rank) for t in range(D))
        bits += numbers * max(K - 1, 1).bit_length() + spoken * (1 + 1 + PADDING) + kept_back * KEY_BITS
        found.append(((_news(terrain, numbers, bits, spoken, float(said.sum(axis=1).max())),), often))
    return _of_shapes(replace(plain, varies=True, rounds=(float(D), float(D))), found)


def _bits_of_news(said: Floats, parts: Floats, look: Look, largest: bool) -> float:
    """Return the bits of the scores that a device says in one round, on average: of the largest part of those near."""
    speaking = said > 0.5
    if not speaking.any():
        return 0.0
    drawn = _bits_drawn(float(said[speaking].mean()), min(float(parts[speaking].mean()), 1.0), look, largest)
    return float(speaking.mean()) * drawn


def _news(terrain: Terrain, numbers: float, bits: float, spoken: float, most: float) -> Stretch:
    each = numbers / max(spoken, 1e-9)
    return Stretch(
        "pass on scores", terrain.map.diameter, each, bits / max(numbers, 1e-9), spoken, most / max(each, 1e-9),
        spoken * terrain.map.largest_degree, told=True, number_ns=60.0, device_ns=3000.0,
    )  # fmt: skip


# --- the worst --------------------------------------------------------------------------------------------------------


def _most_of_top_k(terrain: Terrain, rank: int, plan: Chosen) -> tuple[Stretch, ...]:
    """Return what no scores exceed: every score its key, its weight and, in a flood, its owner and a second phase.

    A gap takes at most 3 ones and a zero besides its 62 low bits, and a number up to n 2 log2(n) + 1 bits.
    """
    n, K = terrain.n, terrain.devices
    times = 2 * n.bit_length() + 1
    if plan.over == "flood":
        rounds = 2 * terrain.map.diameter
        width = (66 + times + max(K - 1, 1).bit_length()) / 2
        return (Stretch("pass on scores", rounds, 2 * n / max(rounds, 1) + 8, width, told=True),) if rounds else ()
    listed = float(min(n - rank + 1, rank, n))
    replies = 2 * listed, listed * (66 + times) + 240.0, listed * (66 + times) + 240.0
    explore, up, down = _over_tree(terrain, 1, replies, (2.0, 240.0)) or (None, None, None)
    return () if explore is None or up is None or down is None else (explore, up, down)


# --- by stages --------------------------------------------------------------------------------------------------------


def predict_by_stages(terrain: Terrain, alpha: Fraction, options: EDCP) -> Prediction:
    """Predict `by_stages`: all but the number of stages is known beforehand; that is a mean over draws of scores."""
    width = options.width or best_width(terrain.site, options.aggregate, options.prefer)
    name = ways_to_add(terrain.site, options.aggregate, options.prefer, width)[0]
    way, n = get_aggregator(name), terrain.n
    rank = terrain.rank(alpha)
    always = [*way.sent_before(terrain)]  # n follows from the sizes
    plain = Prediction(
        tuple(always),
        "counted",
        uses=way.uses,
        exact=True,
        facts={"schedule": "count", "over": "sums", "sums_by": name, "stage_width": str(width)},
        arrays=way.arrays,
    )
    if rank > n:  # the threshold is +inf, and nothing is searched
        return plain
    always.append(hops(terrain, "agree on the ends", 2, 64))
    stage, recount = way.sent_for(terrain, "a stage", width, n), way.sent_for(terrain, "count the answer", 1, n)
    snap, answer = [hops(terrain, "draw the ends in", 2, 64)], [hops(terrain, "name the answer", 1, 64)]
    parts = (stage, snap, answer, recount)

    def stretches(*often: float) -> tuple[Stretch, ...]:
        several = [one.times(times) for part, times in zip(parts, often, strict=True) if times for one in part]
        return (*always, *several)

    found = terrain.searches(rank, width)
    counts = (found.stages, found.snaps, found.named, found.recounts)
    mean = replace(plain, stretches=stretches(*(float(count.mean()) for count in counts)))
    if found.certain:
        return mean
    lengths = [sum(one.rounds for one in part) for part in (always, *parts)]
    each = lengths[0] + sum(count * length for count, length in zip(counts, lengths[1:], strict=True))
    longest = PATIENCE + math.ceil(KEY_BITS / math.log2(width + 1)) + 1
    return replace(
        mean,
        varies=True,
        rounds=(float(np.quantile(each, 0.05)), float(np.quantile(each, 0.95))),
        most=stretches(longest, longest // 2 + 1, 1, 1),
    )
