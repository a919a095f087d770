r"""WFCP: histograms added up on the air, at a server ([Zhu2024]; [Wen2025] Section 3.2).

Assumes     a server that hears all devices at once (a star); noise Gaussian, independent of the scores, sigma known
Guarantees  without noise the counts are exact: *counted*. With noise of standard deviation sigma per bin of the
            average histogram, the running sum over M bins exceeds its true value by more than sigma sqrt(M) z with
            probability at most 2 P(N > z) = beta (Levy's inequality); asking for the level (1 - alpha)/(1 - beta)
            pays for that event
Message     the histogram, one number per bin, once, all devices at the same time
Departures  the channel is a sum plus Gaussian noise; fading and power control are left out
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from conformesh.common.random_streams import random_stream
from conformesh.kernels.ranks import conformal_rank
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.messages import Pool, Protocol
from conformesh.protocols.options import option
from conformesh.protocols.quantiser import agree_on_edges, check_quantiser, crowding_note
from conformesh.results.certificate import Certificate, too_few_certificate


@dataclass(frozen=True)
class WFCP:
    """Options of WFCP."""

    bins: int = option(1000, "quantisation levels M")
    range: tuple[float, float] | None = option(None, "score range LO HI of the quantiser; by default agreed on")
    noise: float = option(0.0, "standard deviation of the channel noise per bin of the average histogram")
    failure: float = option(0.01, "chance beta that noise exceeds its margin, paid for by a higher level")
    seed: int = option(0, "seed of the channel noise")

    def __post_init__(self) -> None:
        check_quantiser(self.bins, self.range)
        if not self.noise >= 0:
            raise ValueError(f"noise must be at least 0, got {self.noise}")
        if not 0 < self.failure < 1:
            raise ValueError(f"failure must lie strictly between 0 and 1, got {self.failure}")


def wfcp(block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: WFCP) -> Protocol[Answers]:
    """Add up all histograms in one shot, then read the quantile off the sum."""
    edges = (yield from agree_on_edges(block, samples, options.bins, options.range)).edges
    counts = samples.counts(edges)
    histograms = np.diff(counts, axis=1, prepend=0)  # overflow needs no message: n is known
    per_device = histograms[0].size
    everyone = yield Pool(histograms.ravel(), np.arange(len(block.rows) + 1) * per_device)
    total = everyone.values.reshape(block.devices, options.bins, block.trials).sum(axis=0)

    thresholds = np.full((len(block.rows), block.trials, len(alphas)), np.inf)
    certificates = []
    crowds: list[tuple[float, str]] = []
    for trial in range(block.trials):
        n, row = int(block.totals[trial]), []
        noise = options.noise * random_stream(options.seed, "channel", trial).standard_normal(options.bins)
        heard = total[:, trial] + n * noise  # sigma is per bin of the average histogram: n times that in counts
        beta = Fraction(str(options.failure)) if options.noise else Fraction(0)
        margin = n * options.noise * math.sqrt(options.bins) * _normal_quantile(1 - float(beta) / 2) if beta else 0.0
        for a, alpha in enumerate(alphas):
            level = (1 - alpha) / (1 - beta)
            rank = conformal_rank(n, 1 - level, block.devices) if level < 1 else n + 1
            if rank > n:
                row.append(too_few_certificate(conformal_rank(n, alpha, block.devices), n))
                continue
            sure = np.cumsum(heard) - margin
            holds = sure > rank - (1 if beta else 0.5)
            if holds.any():
                thresholds[:, trial, a] = edges[trial, holds.argmax()]
            row.append(_certificate(n, rank, total[:, trial], holds, options, margin))
            may_miss, counts = float(alpha * (n + block.devices)), np.floor(sure + 0.5)
            short = options.range is not None and counts[-1] + 2 * margin < rank  # whatever the noise was
            crowd = crowding_note("wfcp", edges[trial], counts, rank, may_miss, short)
            crowds += [] if crowd is None else [crowd]
        certificates.append(row)
    return Answers(thresholds, certificates, notes=(max(crowds)[1],) if crowds else ())


def _certificate(
    n: int, rank: int, total: NDArray[np.int64], holds: NDArray[np.bool_], options: WFCP, margin: float
) -> Certificate:
    if options.noise == 0:
        counted = int(total[: holds.argmax() + 1].sum()) if holds.any() else n
        return Certificate("counted", rank, counted)
    words = (
        f"the channel noise is Gaussian with standard deviation {options.noise:g} per bin and independent of the "
        "scores, which nobody checked"
    )
    return Certificate("assumed", rank, None, margin / n, assumption=words)


def _normal_quantile(level: float) -> float:
    from statistics import NormalDist  # a device that runs another method need not hold it in memory

    return NormalDist().inv_cdf(level)
