"""What the schedules of E-DCP would send.

Where runs are cheap (`Terrain.runs`), the prediction is their mean; on known scores, the run itself. For larger
networks a law stands in, with what scores of one distribution send on average:

window, count  a device's sketch of M scores has 1 + `points_of(M)` numbers; a window of 2h ranks lists 2h M / n,
               M of n scores below the device; the root's word is said by all that have a child. How wide
               windows are, `waves.Root.half_width` says: here with means in place of what the root has heard
top-k          over a tree min(M, k) scores. By flooding, the news of a device at t hops that are among its k largest:
               k S / B where B scores are within t hops and S of them at t
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.graph.sketch import weights_below
from conformesh.kernels.replies import FINER, LEVELS, bits_in
from conformesh.protocols.aggregate import get_aggregator
from conformesh.protocols.aggregate.base import bits_of
from conformesh.protocols.e_dcp import EDCP, KEY_BITS, PATIENCE, Chosen, best_width, chosen, ways_to_add
from conformesh.protocols.predicting import Prediction, Run, Stretch, Terrain, balls_of, hops
from conformesh.protocols.site import Site
from conformesh.protocols.top_k import Wanted
from conformesh.protocols.waves import ENDS_FINE, FEWEST, half_width, noise_of
from conformesh.protocols.waves import PATIENCE as SKETCHES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OVER_TREE, OVER_FLOOD = frozenset({"hops", "tree", "degree"}), frozenset({"hops"})
MANTISSA = 53.0  # bits of a score that is drawn; of a file's float32 scores 24, and then these are too many
PADDING = 3.5  # bits that fill the last byte of a string, on average
BY_LAW = "by a law, which takes scores to be drawn alike: a window that misses costs a pass more"
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
        found = replace(found, notes=() if plan.schedule == "top-k" else (BY_LAW,))
    if plan.schedule == "top-k" and found.varies:
        return replace(found, most=_most_of_top_k(terrain, rank, plan))
    return replace(found, notes=(*found.notes, UNBOUNDED)) if found.varies else found


def _chosen(terrain: Terrain, alpha: Fraction, options: EDCP, rank: int) -> Chosen:
    """Return what a run would choose."""
    if terrain.built is None or terrain.sizes is None:
        return chosen(terrain.site, options, np.array([[rank]]), np.array([terrain.n]))
    site = replace(Site.everywhere(terrain.built, terrain.sizes[:, None]), promise=terrain.promise, alphas=(alpha,))
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
    return replace(found, varies=True, rounds=(float(np.quantile(rounds, 0.05)), float(np.quantile(rounds, 0.95))))


def _mean(runs: Sequence[tuple[Stretch, ...]]) -> tuple[Stretch, ...]:
    """Return stretches whose rounds, messages, numbers and bits are the means of those of the same name."""
    if len(runs) == 1:
        return runs[0]
    found = []
    for what in dict.fromkeys(one.what for run in runs for one in run):
        same = [one for run in runs for one in run if one.what == what]
        spoken = sum(one.said[0] for one in same)
        numbers = sum(one.said[0] * one.numbers for one in same)
        bits = sum(one.said[0] * one.numbers * one.bits for one in same)
        each, width = numbers / spoken if spoken else 0.0, bits / numbers if numbers else 0.0
        payload = each * width or 1.0  # bits of a message; of each run they differ
        found.append(
            replace(
                same[0],
                rounds=sum(one.rounds for one in same) / len(runs),
                numbers=each,
                bits=width,
                spoken=spoken / len(runs),
                most=sum(one.said[1] * one.numbers * one.bits for one in same) / payload / len(runs),
                copies=sum((one.copies or 0.0) * one.numbers * one.bits for one in same) / payload / len(runs),
            )
        )
    return tuple(found)


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

    Those with a child are spread over as many sizes as the mean logarithm of a subtree asks for.
    """
    tree, K, each = terrain.tree, terrain.devices, terrain.n / terrain.devices
    children = min(2 * terrain.map.edges / K, K - 1) if tree.depth > 1 else K - 1
    held, alike = np.array([(terrain.n - each) / max(children, 1.0)]), max(children, 1.0)
    inner = max(tree.parents * K - 1, 0.0)
    leaves = K - 1 - inner
    if inner <= 0:
        return Subtrees(np.array([each]), np.array([leaves]), held, alike)
    mean = max(((tree.mean_depth + 1) * K - K - leaves) / inner, 1.0) if tree.mean_depth else 1.0
    doublings = max(tree.doublings * K / inner, 0.5)  # of those with a child
    steps = np.linspace(0.05, 0.95, 10)
    spread = 2.0 ** (doublings * 2 * steps)
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
    k, below = min(n - rank + 1, rank), _subtrees(terrain)
    listed = np.minimum(below.scores, k)
    bits = _bits_listed(listed, MANTISSA + 9, KEY_BITS) + PADDING  # of both signs, over many powers of two
    replies = below.mean(listed, K), below.mean(bits, K), float(bits.max(initial=0.0))
    words = 1.0, KEY_BITS + 12.0
    rounds = 3.0 * terrain.tree.depth
    return replace(plain, stretches=_over_tree(terrain, 1, replies, words), varies=True, rounds=(rounds, rounds))


def _bits_listed(listed: Floats, span: float, first: float) -> Floats:
    """Return the bits of so many keys, on average, that lie 2^span apart from end to end: the first, and gaps."""
    some = -np.expm1(-listed)
    more = np.maximum(listed - some, 0.0)
    gap = np.maximum(span - np.log2(np.maximum(listed, 1.0)), 0.0) + 2.1
    return np.asarray(2 * np.log2(listed + 1) + 1 + some * (13 + first) - 6 * np.exp(-listed) * listed + more * gap)


def _bits_sketched(mass: Floats, points: Floats, level: int, even: bool, count_bits: int) -> Floats:
    """Return the bits of a sketch: its mass, its first point and the gaps between points, on average."""
    many = 2.0 ** np.floor(np.log2(points) + 1)  # the power of two above
    if even:
        fine = np.log2(many) + FINER
    else:
        inside = np.floor(np.log2(np.maximum(mass, 1)) + 1)
        fine = np.minimum((inside + 32 - bits_in(level * (LEVELS - level))) // 2 + FINER, 30)
    short = np.maximum(fine - 1 - np.log2(many), 0)
    gaps = (points - 1) * (short + 0.5) + 0.75 * 2.0 ** (fine - short)
    return np.asarray(1 + count_bits + 2 + 9 + 6 + fine + 1 + gaps)


def _by_windows(plain: Prediction, terrain: Terrain, rank: int, plan: Chosen) -> Prediction:
    """Predict sketches and windows: one after the other, each as wide as the root would draw it on average."""
    n, K, pace, tree = terrain.n, terrain.devices, plan.pace, terrain.tree
    below, count_bits = _subtrees(terrain), n.bit_length()
    level, share = rank * LEVELS // n, (tree.mean_depth + 1) / K
    most_listed = max(pace.fetched / share, FEWEST)
    held, even, passes = float(n), False, 0.0
    numbers, bits, largest = 0.0, 0.0, 0.0
    words = [1.0, MANTISSA - math.log2(n) + 18.0]  # numbers and bits of the answer
    while True:
        inside = below.scores * (held / n)
        doubled = np.floor(np.log2(np.maximum(inside, 1)) + 1) - bits_in(max(n // K, 1))
        points = pace.points + pace.growth * np.maximum(doubled, 0)
        each = _bits_sketched(inside, points, level, even, count_bits) + even * count_bits + PADDING
        numbers += below.mean(points + 1 + even, K)
        bits += below.mean(each, K)
        largest += float(each.max(initial=0.0))
        passes += 1
        part = rank / n if not even else 0.5
        noise = noise_of(part, held, tree.mean_depth)
        near = below.children * (held / n)
        top = pace.points + pace.growth * np.maximum(np.log2(np.maximum(near, 1)) + 1 - bits_in(max(n // K, 1)), 0)
        pieces = float((near / top if even else 1.3 * np.sqrt(part * (1 - part) * near)).sum()) * below.alike
        half = min(half_width(pace.slack, noise, pieces, held, 0.0), held / 2)
        words[0] += 2
        words[1] += 34.0 + ENDS_FINE[1] + math.log2(n / (2 * half))
        held, even = 2 * half, True
        if held <= most_listed or passes > SKETCHES:
            break
    listed = below.scores * (held / n)
    span = MANTISSA - math.log2(n / held)
    each = count_bits + 1 + _bits_listed(listed, span, span) + PADDING
    numbers += below.mean(listed + 1, K)
    bits += below.mean(each, K)
    largest += float(each.max(initial=0.0))
    passes += 1
    stretches = _over_tree(terrain, passes, (numbers, bits, largest), (words[0], words[1]))
    rounds = (tree.depth * (1 + 2 * passes), tree.depth * (3 + 2 * passes))  # the upper one with a window that misses
    facts = {**plain.facts, "schedule": "count" if passes > 2 else "window", "points": str(pace.points)}
    return replace(plain, stretches=stretches, varies=True, rounds=rounds, facts=facts)


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
    inside = balls_of(terrain.map)[:, :D] * each_has
    at = np.diff(inside, axis=1, prepend=0.0)
    said = np.minimum(at, k * at / np.maximum(inside, k))
    said[:, 0] += float((own > likely).mean())
    numbers = float(said.sum(axis=1).mean())
    spoken = float((said > 0.5).sum(axis=1).mean())
    owner_bits = max(K - 1, 1).bit_length()
    each = numbers / max(spoken, 1e-9)
    bits = float(_bits_listed(np.array([each]), MANTISSA, KEY_BITS)[0]) + each * owner_bits + 1 + PADDING
    busiest = float(said.sum(axis=1).max()) / max(each, 1e-9)
    news_stretch = Stretch(
        "pass on scores", D, each, bits / max(each, 1e-9), spoken, busiest, spoken * terrain.map.largest_degree,
        told=True, number_ns=6500.0, device_ns=3000.0,
    )  # fmt: skip
    return replace(plain, stretches=(news_stretch,), varies=True, rounds=(float(D), float(D)))


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
