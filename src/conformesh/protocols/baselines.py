"""What Q-DCP and H-DCP are compared with: pooled data, a server, each device alone, a naive average.

cp      all scores in one place, as if they were exchangeable: rank ceil((1 - alpha)(n + 1))     [Vovk2005]
fcp     all scores at a server, for a mixture of K distributions: rank ceil((1 - alpha)(n + K))  [Lu2023]
local   each device alone with its own n_k scores: rank ceil((1 - alpha)(n_k + 1)), no message at all
average the mean of the devices' own quantiles, by consensus: what one might try first; no guarantee
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.messages import Pool, Protocol
from conformesh.protocols.options import option
from conformesh.protocols.quantile_average import agree_on_s0
from conformesh.protocols.spectrum_estimation import estimate_spectrum
from conformesh.protocols.wire_format import WireFormat
from conformesh.results.certificate import Certificate, too_few_certificate

_EXCHANGEABLE = "all scores are exchangeable with the test point, whichever device they come from"


@dataclass(frozen=True)
class Pooled:
    """Options of the pooled baselines: none."""


def cp(block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: Pooled) -> Protocol[Answers]:
    """Ordinary split conformal prediction on the pooled scores ([Wen2025] Eq. (4))."""
    return (yield from _pooled(block, samples, alphas, _EXCHANGEABLE))


def fcp(block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: Pooled) -> Protocol[Answers]:
    """Federated conformal prediction: the exact quantile of all scores for a mixture of K distributions."""
    return (yield from _pooled(block, samples, alphas, ""))


def _pooled(block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], assumption: str) -> Protocol[Answers]:
    everyone = yield Pool(samples.values, samples.offsets)
    pooled = WeightedScores(everyone.values, everyone.offsets, block.trials)
    ranks = block.ranks()
    thresholds = np.full((len(block.rows), block.trials, len(alphas)), np.inf)
    certificates = []
    for trial in range(block.trials):
        scores = pooled.pooled(trial)
        n, row = len(scores), []
        inside = sorted({int(r) - 1 for r in ranks[trial] if r <= n})
        if inside:
            scores.partition(inside)
        for a, rank in enumerate(ranks[trial].tolist()):
            if rank > n:
                row.append(too_few_certificate(rank, n))
                continue
            threshold = scores[rank - 1]
            thresholds[:, trial, a] = threshold
            counted = int(np.count_nonzero(scores <= threshold))
            row.append(Certificate("counted", rank, counted, assumption=assumption))
        certificates.append(row)
    return Answers(thresholds, certificates)


@dataclass(frozen=True)
class LocalOptions:
    """Options of `local`: none."""


def local(
    block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: LocalOptions
) -> Protocol[Answers]:
    """Calibrate every device alone; a device with few scores ends at +inf."""
    yield from ()  # a protocol that never asks is still a generator
    from conformesh.protocols.unknown_mixtures import own_thresholds  # loaded only where it is used

    return own_thresholds(block, samples)


@dataclass(frozen=True)
class Averaged:
    """Options of the naive average."""

    averaging: int | None = option(None, "rounds of averaging; by default to a relative 1e-6")
    spectrum: Literal["map", "estimated"] = option("map", "eigenvalues from the map, or estimated by message passing")
    wire: int = option(64, "bits per number on the wire: 16, 32 or 64")


def average(
    block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: Averaged
) -> Protocol[Answers]:
    """Average the devices' own quantiles at the pooled level r / n, by consensus."""
    spectrum = block.network.spectrum if options.spectrum == "map" else (yield from estimate_spectrum(block))
    ranks = block.ranks()
    n = block.totals
    gamma = np.minimum(ranks / np.maximum(n, 1)[:, None], 1.0)
    mean = yield from agree_on_s0(
        block, samples, gamma, spectrum, "average", options.averaging, WireFormat(options.wire)
    )
    thresholds = np.where(ranks > n[:, None], np.inf, mean)
    nothing = Certificate("none", assumption="no guarantee at all: an average of quantiles is not a quantile")
    certificates = [
        [too_few_certificate(int(r), int(n[t])) if r > n[t] else nothing for r in ranks[t]] for t in range(block.trials)
    ]
    return Answers(thresholds, certificates)
