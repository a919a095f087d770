"""Largest score: the devices agree on the largest score of all, by max-consensus.

Assumes     graph connected; K and every n_k known
Guarantees  all n scores lie at or below the threshold, so its rank is n: *counted*
Message     one number per round, for as many rounds as the diameter
Departures  none
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import Description, Method
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.consensus import agreed_maximum
from conformesh.protocols.messages import Protocol
from conformesh.protocols.options import option
from conformesh.protocols.wire_format import WireFormat
from conformesh.results.certificate import Certificate, too_few_certificate


@dataclass(frozen=True)
class LargestScore:
    """Options; each field with its help becomes a keyword of `calibrate` and a flag of the command line."""

    wire: int = option(64, "bits per number on the wire: 16, 32 or 64")


def largest_score(
    block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: LargestScore
) -> Protocol[Answers]:
    """Ask for the maximum; thresholds have the shape (devices here, trials, alphas)."""
    wire = WireFormat(options.wire)
    _, mine = samples.extremes()  # (devices here, trials); -inf where a device has no score
    agreed = yield from agreed_maximum(wire.outward(mine, np.inf), block)  # rounded up: never below the true maximum
    ranks = block.ranks()  # (trials, alphas), what the guarantee requires
    thresholds = np.where(ranks > block.totals[:, None], np.inf, agreed.astype(np.float64)[:, :, None])
    certificates = [
        [too_few_certificate(int(r), int(n)) if r > n else Certificate("counted", int(r), int(n)) for r in row]
        for n, row in zip(block.totals, ranks, strict=True)
    ]
    return Answers(thresholds, certificates)


# The line for METHODS in methods.py:
LINE = {
    "largest": Method(
        largest_score,
        LargestScore,
        Description(
            guarantee="counted",
            needs="neighbours",
            sends="1 number, and again when it rises",
            paper="",
            summary="the largest score",
        ),
    )
}
