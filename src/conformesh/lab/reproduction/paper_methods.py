"""Q-DCP, H-DCP and other methods as the paper's text prints them or its released code computes them.

The published curves come from code whose conventions differ from the paper's text; the curves can be met only with
these (docs/reproduction.md tells what each of them does):

- every device is its own neighbour. The self-loop is one more edge of M+ (entry 2) and M- (entry 0), so that
  sigma_max^2 is the largest eigenvalue of D + A + 4 I and E grows by K, and the updates run with 2 c (d_k + 1);
- c = sqrt(b) L / (sigma_max sigma_min), half of the best; epsilon^(T) has the exponent T - 2, and u* is taken from
  the last iterate;
- Q-DCP and H-DCP ask for the level ceil((1 - alpha)(n + K)) / n, which is above the text's (1 - alpha)(1 + K/n) where
  that is no whole number of scores; s0 averages interpolated local quantiles at it, devices end with the plain mean;
- H-DCP's levels span the range of the calibration *outputs* and are used for 1 - output; test outputs are rounded up
  to a level;
- pooled CP takes one order statistic more, FCP rounds its level to a whole percent, FedCP-QQ ran with other ranks
  than its own.

`PaperMethodSpec` is what a cell runs instead of a method.

Assumes     all devices in one process: these are measurements of a convention, not methods for devices
Guarantees  nothing; the methods to use are in `conformesh.METHODS`
Message     as in `protocols.q_dcp` and `protocols.h_dcp`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from conformesh.common.array_types import Floats
from conformesh.engines.simulator import Simulator
from conformesh.graph.network import Network
from conformesh.graph.weights import constant_weights
from conformesh.kernels.ranks import conformal_rank, exact_alpha
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.reproduction.paper_scores import PaperDraw
from conformesh.lab.sweeps.sources import Options, ScoreDraw
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.bounds.histogram import h_dcp_paper_epsilon
from conformesh.protocols.bounds.quantile import bias_epsilon
from conformesh.protocols.consensus import gossip
from conformesh.protocols.messages import Protocol
from conformesh.protocols.q_dcp import AdmmParameters, admm
from conformesh.protocols.quantile_average import local_quantiles
from conformesh.protocols.wire_format import WireFormat
from conformesh.results.certificate import Certificate, Cost

_TIE = 1e-9  # a level that is met up to round-off counts as met


@dataclass(frozen=True, eq=False)
class _PaperOutcome:
    """Thresholds (devices, draws, alphas) and the error term that went into them, (draws, alphas), if there is one."""

    thresholds: Floats
    epsilon: Floats | None = None


@dataclass(frozen=True)
class PaperInputs:
    """Input of a paper method besides its options: the alphas and the range of the calibration outputs."""

    alphas: tuple[Fraction, ...]
    output_ranges: Floats = field(repr=False)

    def levels(self, block: Block) -> Floats:
        """Return (1 - alpha)(1 + K/n), real-valued, (draws, alphas)."""
        n = block.totals.astype(np.float64)
        return np.array([float(1 - alpha) for alpha in self.alphas]) * (1 + block.devices / n)[:, None]

    def released_levels(self, block: Block) -> Floats:
        """Return ceil((1 - alpha)(n + K)) / n, the level of a whole number of scores, (draws, alphas)."""
        return _ranks(block, self.alphas, block.devices) / block.totals.astype(np.float64)[:, None]


def _ranks(block: Block, alphas: tuple[Fraction, ...], devices: int) -> NDArray[np.int64]:
    """Return ceil((1 - alpha)(n + devices)), (draws, alphas)."""
    return np.array([[conformal_rank(int(n), alpha, devices) for alpha in alphas] for n in block.totals])


def q_dcp_released(
    block: Block,
    samples: WeightedScores,
    given: PaperInputs,
    *,
    rounds: int = 1500,
    kappa: float = 2000.0,
    mu: float = 2000.0,
    s0: float | str = "average",
    epsilon0: float = 0.1,
    wire: int = 64,
) -> Protocol[_PaperOutcome]:
    """Run Q-DCP with self-loops, half the best c, and epsilon^(T) from the last iterate."""
    levels = given.released_levels(block)
    gamma = np.minimum(levels, 1.0)
    local = local_quantiles(samples, gamma)
    known = np.where(samples.sizes[:, :, None] > 0, local, np.nan)  # devices without scores stay out
    if isinstance(s0, str):
        centre = np.nanmin(known, axis=0) if s0 == "min" else np.nanmean(known, axis=0)
    else:
        centre = np.full_like(gamma, s0)
    graph = _Looped.of(block)
    rates = [graph.rate(float(block.sizes[:, trial].max()) * kappa / 4 + mu, mu) for trial in range(block.trials)]
    c = np.array([[rate[0]] for rate in rates]) * np.ones_like(gamma)
    knobs = AdmmParameters(2 * c, np.full_like(gamma, kappa), np.full_like(gamma, mu))
    local_s0 = np.broadcast_to(centre, local.shape).copy()
    s = yield from admm(block, samples, gamma, local_s0, np.zeros_like(local), knobs, rounds, WireFormat(wire), loops=1)

    epsilon = np.empty_like(gamma)
    for trial, a in np.ndindex(gamma.shape):
        n = int(block.totals[trial])
        gradient = mu * (s[:, trial, a] - centre[trial, a]) - gamma[trial, a] * block.sizes[:, trial]
        for k in range(block.devices):
            gradient[k] += expit(kappa * (s[k, trial, a] - samples.segment(k, trial))).sum()
        distance = graph.distance(float(c[trial, a]), s[:, trial, a], gradient)
        decay = math.exp(-0.5 * (rounds - 2) * math.log1p(rates[trial][1]))
        epsilon[trial, a] = math.sqrt(distance / (block.devices * mu)) * decay + bias_epsilon(n, mu, kappa, epsilon0)
    thresholds = np.broadcast_to(s.mean(axis=0) + epsilon, local.shape)
    return _PaperOutcome(np.where(levels > 1, np.inf, thresholds), epsilon)


@dataclass(frozen=True, eq=False)
class _Looped:
    """The constants of a graph in which every device has a self-loop."""

    top: float
    bottom: float
    edges: NDArray[np.int64]
    inverse: Floats

    @classmethod
    def of(cls, block: Block) -> _Looped:
        adjacency = block.network.adjacency().toarray()
        degree = np.diag(adjacency.sum(axis=0))
        looped = degree + adjacency + 4 * np.eye(block.devices)
        laplacian = degree - adjacency
        edges = np.argwhere(np.triu(adjacency + np.eye(block.devices)) > 0)
        bottom = np.sort(np.linalg.eigvalsh(laplacian))[1]
        top = np.linalg.eigvalsh(looped)[-1]
        return cls(math.sqrt(top), math.sqrt(bottom), edges, np.linalg.pinv(laplacian))

    def rate(self, smoothness: float, mu: float) -> tuple[float, float]:
        """Return c and delta."""
        q = (self.top / self.bottom) / (smoothness / mu)
        b = 1 / (1 + q * q / 2 - q / 2 * math.sqrt(q * q + 4))
        c = math.sqrt(b) * smoothness / (self.top * self.bottom)
        first = (b - 1) * self.bottom**2 / (b * self.top**2)
        return c, min(first, mu / (c / 4 * self.top**2 + b / c * smoothness**2 / self.bottom**2))

    def distance(self, c: float, s: Floats, gradient: Floats) -> float:
        """Return ||u0 - u||_G^2 from zeros to an iterate: an edge's z is the mean of its ends."""
        z = s[self.edges].mean(axis=1)
        return float(c * (z @ z) + gradient @ self.inverse @ gradient / c)


def h_dcp_printed(
    block: Block,
    samples: WeightedScores,
    given: PaperInputs,
    *,
    rounds: int = 150,
    bins: int = 1000,
    over: str = "outputs",
    wire: int = 64,
) -> Protocol[_PaperOutcome]:
    """Run H-DCP by the printed rule alone: its bound, nothing for rounding, full sets where no bin reaches the level.

    The levels span the range of the calibration `outputs`, as released (then the share asked for is that of a whole
    number of scores), or that of the `scores`, or the `unit` interval as the text has it for confidences. Messages are
    histograms, as printed, not cumulative ones.
    """
    weights = constant_weights(block.network, block.network.spectrum)
    ends = _score_range(samples, given, over)
    low, width = ends[:, :1], (ends[:, 1:] - ends[:, :1]) / bins
    edges = low + width * np.arange(1, bins + 1)
    counts = samples.counts(edges)
    counts[:, -1] = block.sizes  # what lies above the last level is put there
    x = np.diff(counts, axis=1, prepend=0) * (block.devices / np.maximum(block.totals, 1))
    x = yield from gossip(x, block, weights, rounds, wire=WireFormat(wire))
    cumulative = np.cumsum(x, axis=1)

    epsilon = np.array([h_dcp_paper_epsilon(sizes, bins, weights.gap, 1.0, rounds) for sizes in block.sizes.T])
    levels = given.released_levels(block) if over == "outputs" else given.levels(block)
    thresholds = np.full((block.devices, block.trials, levels.shape[1]), np.inf)
    for trial, a in np.ndindex(levels.shape):
        enough = cumulative[:, :, trial] >= levels[trial, a] + epsilon[trial] - _TIE
        found = enough.any(axis=1)
        at = edges[trial, enough.argmax(axis=1)]
        if over == "outputs":
            at = _outputs_rounded_up(at, float(low[trial, 0]), float(width[trial, 0]))
        thresholds[found, trial, a] = at[found]
    return _PaperOutcome(thresholds, np.repeat(epsilon[:, None], levels.shape[1], axis=1))


def _score_range(samples: WeightedScores, given: PaperInputs, over: str) -> Floats:
    if over == "outputs":
        return given.output_ranges
    if over == "unit":
        return np.tile([0.0, 1.0], (samples.trials, 1))
    low, high = samples.extremes()
    return np.stack([low.min(axis=0), high.max(axis=0)], axis=1)


def _outputs_rounded_up(thresholds: Floats, low: float, width: float) -> Floats:
    """Return the thresholds that give, for plain outputs, the sets of outputs rounded up to a level.

    With f rounded up to low + j width, 1 - f <= t holds from the first whole j >= (1 - t - low) / width on, that is
    for all f above the level before it.
    """
    first = np.ceil((1 - thresholds - low) / width - _TIE)
    return np.nextafter(1 - (low + width * (first - 1)), -np.inf)


def cp_released(block: Block, samples: WeightedScores, given: PaperInputs) -> _PaperOutcome:
    """Take the order statistic after the one of split conformal prediction."""
    ranks = _ranks(block, given.alphas, 1) + 1
    thresholds = np.full(ranks.shape, np.inf)
    for trial, a in np.ndindex(ranks.shape):
        if ranks[trial, a] <= block.totals[trial]:
            thresholds[trial, a] = np.sort(samples.pooled(trial))[ranks[trial, a] - 1]
    return _same_on_all_devices(block, thresholds)


def fcp_released(block: Block, samples: WeightedScores, given: PaperInputs) -> _PaperOutcome:
    """Interpolate the pooled scores at a level rounded to a whole percent, as a t-digest's percentiles do."""
    levels = np.minimum(np.round(given.levels(block), 2), 1.0)
    found = [[np.quantile(samples.pooled(t), level) for level in row] for t, row in enumerate(levels)]
    return _same_on_all_devices(block, np.array(found))


def fedcp_qq_published(block: Block, samples: WeightedScores, given: PaperInputs, *, server: int = 17) -> _PaperOutcome:
    """Take the 17th smallest of the devices' largest scores: the ranks that give the published row."""
    tops = np.sort(samples.extremes()[1], axis=0)[server - 1]
    return _same_on_all_devices(block, np.repeat(tops[:, None], len(given.alphas), axis=1))


def _same_on_all_devices(block: Block, thresholds: Floats) -> _PaperOutcome:
    return _PaperOutcome(np.broadcast_to(thresholds, (block.devices, *thresholds.shape)))


@dataclass(frozen=True)
class _PaperMethod:
    """A method of the paper in another convention than the text's.

    Attributes
    ----------
    of
        The method of the library that it stands in for when an experiment runs as released.
    run
        A protocol if it talks, otherwise a function of all scores.
    talks
        Whether devices send messages.
    each_alpha
        Whether every alpha is a run of its own, with its own messages.
    """

    of: str
    run: Callable[..., Any]
    talks: bool = False
    each_alpha: bool = False


PAPER_METHODS: dict[str, _PaperMethod] = {
    "q-dcp-released": _PaperMethod("q-dcp", q_dcp_released, talks=True, each_alpha=True),
    "h-dcp-printed": _PaperMethod("h-dcp", h_dcp_printed, talks=True),
    "cp-released": _PaperMethod("cp", cp_released),
    "fcp-released": _PaperMethod("fcp", fcp_released),
    "fedcp-qq-published": _PaperMethod("fedcp-qq", fedcp_qq_published),
}


@dataclass(frozen=True)
class PaperMethodSpec:
    """A convention with its options, in the place that a method of the library has in a cell."""

    name: str
    options: Options

    def solve(
        self,
        samples: WeightedScores,
        draws: Sequence[ScoreDraw],
        network: Network,
        alphas: tuple[float, ...],
        seed: int,
    ) -> tuple[Answers, Cost]:
        """Return the thresholds of every draw and alpha, without a guarantee, and the cost of one run."""
        convention = PAPER_METHODS[self.name]
        block = Block.everywhere(network, samples.sizes)
        given = PaperInputs(tuple(map(exact_alpha, alphas)), np.array([_output_range(draw) for draw in draws]))
        found = convention.run(block, samples, given, **dict(self.options))
        if convention.talks:
            runs = samples.trials * (len(alphas) if convention.each_alpha else 1)
            printed, cost = Simulator(network).run(found, runs)
        else:
            printed, cost = found, Cost(0, np.zeros(network.devices), np.zeros(network.devices))
        certificates = [
            [
                Certificate("none", epsilon=None if printed.epsilon is None else float(printed.epsilon[t, a]))
                for a in range(len(alphas))
            ]
            for t in range(samples.trials)
        ]
        return Answers(printed.thresholds, certificates), cost


def _output_range(draw: ScoreDraw) -> tuple[float, float]:
    if not isinstance(draw, PaperDraw):
        raise TypeError(f"a convention needs the draws of PaperScores, got {type(draw).__name__}")
    return draw.output_range
