"""H-DCP: devices agree on the histogram of all scores by gossip ([Wen2025] Algorithm 2).

Assumes     graph connected; W symmetric and doubly stochastic; 0 < eta <= 1; K and every n_k known
Guarantees  at every device at least r of all scores lie at or below its threshold: *bounded* by a computable error,
            or *counted* once that error is below half a score
Message     the histogram, one number per bin and round; two more per round while the devices agree on a range
Departures  - the message is the *cumulative* histogram: by linearity the same consensus, and rounding on the wire does
              not add up over bins
            - scores above the range go to an overflow bin whose threshold is +inf; it needs no message: n is known
            - where the bound is too large for any level the paper takes level M, which is every label; here that is
              +inf over a given range, and over an agreed one the largest score: no score lies above it
            - counts are integers: rounded once the bound allows it, and a bound only has to exceed r - 1
            - what finite precision adds is part of epsilon (docs/guarantees.md)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.graph.weights import WEIGHTS, Weights
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.averaging_schemes import AVERAGING_SCHEMES, GossipScheme
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.h_dcp_projection import h_dcp_by_projection
from conformesh.protocols.messages import Protocol
from conformesh.protocols.options import check_option_choice, option
from conformesh.protocols.quantiser import Quantiser, agree_on_edges, check_quantiser, crowding_note
from conformesh.protocols.spectrum_estimation import agree_on_weights, check_consensus_weights
from conformesh.protocols.wire_format import WireFormat
from conformesh.results.certificate import Certificate, too_few_certificate

MOST_AUTO_ROUNDS = 10_000  # beyond this the library does not go on its own accord


@dataclass(frozen=True)
class HDCP:
    """Options of H-DCP; the defaults need no tuning."""

    rounds: int | None = option(None, "rounds of gossip T; by default enough to make the counts exact, at most 10,000")
    bins: int = option(1000, "quantisation levels M")
    range: tuple[float, float] | None = option(None, "score range LO HI of the quantiser; by default agreed on")
    eta: float = option(1.0, "update rate of the consensus, in (0, 1]")
    weights: str | Weights | Floats = option("best-constant", "consensus matrix W", lambda: WEIGHTS)
    consensus: str = option(
        "gossip",
        "how histograms are averaged: as in the paper, accelerated, in rounds that end, or whatever gets lost",
        lambda: AVERAGING_SCHEMES,
    )
    bound: Literal["cumulative", "row", "paper"] = option(
        "cumulative",
        "error bound: cumulative, row (tightest, up to 1,500 devices), or paper (as printed; where it reaches no level "
        "an agreed range still gives the largest score, the paper every label)",
    )
    rounding: bool = option(True, "round counts to integers once the bound allows it")
    spectrum: Literal["map", "estimated"] = option("map", "eigenvalues from the map, or estimated by message passing")
    wire: int = option(64, "bits per number on the wire: 16, 32 or 64")

    def __post_init__(self) -> None:
        check_quantiser(self.bins, self.range)
        if self.rounds is not None and self.rounds < 0:
            raise ValueError(f"rounds must be at least 0, got {self.rounds}")
        check_option_choice("bound", self.bound, ("cumulative", "row", "paper"))
        check_option_choice("consensus", self.consensus, AVERAGING_SCHEMES)
        if not AVERAGING_SCHEMES[self.consensus].as_printed and (
            self.bound == "paper" or self.wire != 64 or self.eta != 1
        ):
            raise ValueError(
                f"consensus={self.consensus!r} goes with 64 bits on the wire, eta=1 and a bound of its own (cumulative "
                "or row): the paper's bound, eta and the bound for rounded messages are for gossip"
            )
        usual = isinstance(self.weights, str) and self.weights == type(self).weights and self.spectrum == "map"
        if AVERAGING_SCHEMES[self.consensus].tracked and not usual:
            raise ValueError(
                f"consensus={self.consensus!r} knows no consensus matrix and no spectrum: every device tracks weights "
                "of its own; leave weights and spectrum out"
            )
        check_option_choice("spectrum", self.spectrum, ("map", "estimated"))
        check_consensus_weights(self.weights, self.spectrum)
        if not 0 < self.eta <= 1:
            raise ValueError(f"eta must lie in (0, 1], got {self.eta}")


def h_dcp(block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: HDCP) -> Protocol[Answers]:
    """Run [Wen2025] Algorithm 2, Eq. (20), Eq. (21), and read thresholds off every device's view of the histogram."""
    if AVERAGING_SCHEMES[options.consensus].tracked:
        return (yield from h_dcp_by_projection(block, samples, alphas, options))
    wire = WireFormat(options.wire)
    weights = yield from agree_on_weights(block, options.weights, options.spectrum)
    way = AVERAGING_SCHEMES[options.consensus](block, weights, options)
    quantiser = yield from agree_on_edges(block, samples, options.bins, options.range, wire)
    masses = block.masses  # of weights that are whole numbers; how many scores, where each weighs 1
    starts = [(way.start(mine), int(block.totals[t])) for t, mine in enumerate(masses.T) if mine.any()]
    rounds, chosen = consensus_rounds(way, options, starts)

    scale = block.devices / np.maximum(masses.sum(axis=0), 1)
    y = samples.counts(quantiser.edges) * scale  # y_mk = K n_k / n * cumulative histogram
    block.progress.estimates = _quantile_reader(quantiser.edges[0], int(block.ranks()[0, 0]), int(masses[:, 0].sum()))
    y = yield from way.run(y, rounds, wire)
    block.progress.estimates = None

    nothing = (0.0, 0.0)
    epsilons = [way.epsilon(mine, rounds, wire) if mine.any() else nothing for mine in masses.T]
    return _decide(block, y, quantiser, alphas, epsilons, options, weights, chosen)


def _quantile_reader(edges: Floats, rank: int, n: int) -> Callable[[Floats], Floats]:
    """Return what reads the quantile off every device's view of the histogram, (devices here, bins, ...).

    Bins are skipped at first: a view of a thousand bins is read in two steps of about thirty.
    """
    level, bins = (rank - 0.5) / max(n, 1), len(edges)
    stride = max(int(bins**0.5), 1)
    ends = np.append(np.arange(stride - 1, bins - 1, stride), bins - 1)

    def read(views: Floats) -> Floats:
        held = views[:, :, 0]
        coarse = ends[(held[:, ends] >= level).argmax(axis=1)]
        near = np.maximum(coarse[:, None] + np.arange(1 - stride, 1), 0)
        fine = near[np.arange(len(held)), (np.take_along_axis(held, near, axis=1) >= level).argmax(axis=1)]
        return np.where(held[np.arange(len(held)), fine] >= level, edges[fine], np.inf)

    return read


def consensus_rounds(way: GossipScheme, options: HDCP, starts: Sequence[tuple[float, int]]) -> tuple[int, bool]:
    """Return how many rounds to run, and whether the library chose them.

    `starts` has the error bound before the first round and the number of scores n of every trial that has scores.
    """
    if options.rounds is not None:
        return options.rounds, False
    # half a score, less a fifth for finite precision; rounding on the wire leaves more: aim at its size instead
    coarse = WireFormat(options.wire).roundoff
    needed = [way.rounds_for(start, max(0.4 / float(n), coarse)) for start, n in starts]
    return min(max(needed, default=0), MOST_AUTO_ROUNDS), True


def _decide(
    block: Block,
    y: Floats,
    quantiser: Quantiser,
    alphas: tuple[Fraction, ...],
    epsilons: list[tuple[float, float]],
    options: HDCP,
    weights: Weights,
    chosen: bool,
) -> Answers:
    """Turn every device's view into a threshold with its reason ([Wen2025] Eq. (22), Eq. (24), Eq. (25))."""
    ranks, totals = block.ranks(), block.masses.sum(axis=0)
    thresholds = np.full((len(y), block.trials, len(alphas)), np.inf)
    certificates: list[list[Certificate]] = []
    notes: set[str] = set()
    crowds: list[tuple[float, str]] = []
    for trial in range(block.trials):
        n, demand = int(totals[trial]), block.demands[trial]
        consensus, precision = epsilons[trial]
        counted = options.rounding and n * (consensus + precision) < 0.5
        counts = _whole_counts(n * y[:, :, trial], n * (consensus + precision)) if counted else None
        row = []
        for a, alpha in enumerate(alphas):
            rank = int(ranks[trial, a])
            if rank > n:
                row.append(too_few_certificate(rank, n))
                continue
            holds: NDArray[np.bool_]
            if counts is not None:
                holds = np.greater_equal(counts, rank)
            else:
                level = (1 - alpha) * demand.base if demand.rule_at(alpha) == "ghost" else Fraction(rank)
                holds = _surely_reaches(y[:, :, trial], n, rank, level, consensus, precision, options.bound)
                if quantiser.complete[trial]:
                    holds[:, -1] = True  # the range was agreed on: all n scores lie at or below its upper end
            found: NDArray[np.bool_] = np.asarray(holds.any(axis=1))
            bin_ = holds.argmax(axis=1)
            thresholds[found, trial, a] = quantiser.edges[trial, bin_[found]]
            rank_here = None if counts is None else int(counts[0, bin_[0]]) if found[0] else n
            row.append(_certificate(rank, rank_here, consensus + precision, weights))
            error = 0.0 if counts is not None else n * (consensus + precision)
            sure = n * y[0, :, trial] - error if counts is None else counts[0]
            short = options.range is not None and float(sure[-1]) + 2 * error < rank  # whatever the error is
            crowd = crowding_note("h-dcp", quantiser.edges[trial], sure, rank, float(alpha * demand.base), short)
            if crowd is not None:
                crowds.append(crowd)
            elif counts is None and (not found.all() or bin_[found].max(initial=0) == options.bins - 1):
                notes.add(_loose_bound_note(consensus, precision, chosen))
                if options.bound == "paper" and quantiser.complete[trial]:
                    notes.add(_NOT_LEVEL_M)
        certificates.append(row)
    notes |= {max(crowds)[1]} if crowds else set()  # the worst of all trials and levels
    return Answers(thresholds, certificates, notes=tuple(sorted(notes)))


def _whole_counts(values: Floats, error: float) -> Ints:
    """Round to the integers they must be near to; farther away than the bound allows is an error, never a count."""
    counts = np.rint(values)
    worst = float(np.abs(values - counts).max(initial=0.0))
    if worst > error:
        raise ArithmeticError(
            f"a count is {worst:.3g} away from an integer where the bound allows {error:.3g}: the consensus matrix or "
            "its eigenvalues are wrong, and no threshold can be certified from it"
        )
    return counts.astype(np.int64)


def _surely_reaches(
    y: Floats, n: int, rank: int, level: Fraction, consensus: float, precision: float, bound: str
) -> NDArray[np.bool_]:
    """Mark where the pooled count is certainly at least `rank`.

    The count is an integer, so it is enough that its lower bound exceeds rank - 1. As printed the paper asks for
    y >= (1 - alpha)(1 + K/n) + epsilon, here n y >= level + n epsilon; at exact ties float64 noise would decide, so the
    comparison gives way by that noise where this cannot cost a rank.
    """
    if bound != "paper":
        return np.greater(n * (y - (consensus + precision)), rank - 1)
    slack = n * precision if 2 * n * precision < level - (rank - 1) else -n * precision
    return np.greater_equal(n * (y - consensus), float(level) - slack)


def _certificate(rank: int, counted: int | None, epsilon: float, weights: Weights) -> Certificate:
    if weights.source == "estimated":
        words = "the spectral gap estimated by message passing is not larger than the true one, which nobody checked"
        return Certificate("assumed", rank, None, epsilon, assumption=words)
    if counted is not None:
        return Certificate("counted", rank, counted, epsilon)
    return Certificate("bounded", rank, None, epsilon)


_NOT_LEVEL_M = (
    "h-dcp: where the paper's bound reaches no level the paper takes level M, which is every label; over the agreed "
    "range the threshold is the largest score instead, which is valid and smaller; set range for the paper's"
)


def _loose_bound_note(consensus: float, precision: float, chosen: bool) -> str:
    if not math.isfinite(precision) or precision > consensus:
        return (
            f"h-dcp: rounding on the wire leaves an error of {precision:.3g}, too large for a finite or useful "
            "threshold; use a wider wire (32 or 64 bits)"
        )
    more = "set more rounds than the automatic limit" if chosen else "set more rounds, or none to have them chosen"
    return f"h-dcp: after these rounds the error bound is still {consensus:.3g}, too large to say much; {more}"
