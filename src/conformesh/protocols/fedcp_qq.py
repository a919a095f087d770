"""FedCP-QQ: the quantile of the devices' quantiles, at a server, in one shot ([Humbert2023]).

Assumes     a server; all devices draw from *one* distribution
Guarantees  expected coverage at least 1 - alpha under that assumption, the smallest such over all pairs of ranks
Message     one number up
Departures  ranks by the closed form of bounds.quantile_of_quantiles, also for unequal n_k
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.bounds.quantile_of_quantiles import best_ranks
from conformesh.protocols.messages import Pool, Protocol
from conformesh.protocols.options import option
from conformesh.protocols.wire_format import WireFormat
from conformesh.results.certificate import Certificate, too_few_certificate


@dataclass(frozen=True)
class FedCPQQ:
    """Options of FedCP-QQ."""

    wire: int = option(64, "bits per number on the wire: 16, 32 or 64")


def fedcp_qq(
    block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: FedCPQQ
) -> Protocol[Answers]:
    """Send one local order statistic up; take the best order statistic of what arrived."""
    wire = WireFormat(options.wire)
    ranks = np.zeros((block.devices, block.trials, len(alphas)), dtype=np.int64)
    choose = cache(lambda sizes, alpha: best_ranks(np.array(sizes), float(1 - alpha)))  # trials often share their sizes
    choices = [[choose(tuple(block.sizes[:, t].tolist()), a) for a in alphas] for t in range(block.trials)]
    for t, a in np.ndindex(block.trials, len(alphas)):
        if (choice := choices[t][a]) is not None:
            ranks[block.sizes[:, t] > 0, t, a] = choice.local
    mine = samples.at_rank(ranks[block.rows])
    sent = wire.outward(mine, np.inf)
    per_device = mine[0].size
    everyone = yield Pool(sent.ravel(), np.arange(len(block.rows) + 1) * per_device)
    received = everyone.values.astype(np.float64).reshape(block.devices, block.trials, len(alphas))

    thresholds = np.full(mine.shape, np.inf)
    certificates = []
    for t in range(block.trials):
        holders = block.sizes[:, t] > 0
        row = []
        for a, alpha in enumerate(alphas):
            choice = choices[t][a]
            if choice is None:
                n = int(block.totals[t])
                row.append(too_few_certificate(n + 1, n))
                continue
            thresholds[:, t, a] = np.sort(received[holders, t, a])[choice.server - 1]
            words = (
                f"all devices draw from one distribution, which nobody checked; then expected coverage is "
                f"{choice.coverage:.4f} (target {float(1 - alpha):g})"
            )
            row.append(Certificate("assumed", assumption=words))
        certificates.append(row)
    return Answers(thresholds, certificates)
