"""H-DCP by projection: gossip for some rounds, then a threshold from what each device knows for sure.

Assumes     as `projection_gossip`
Guarantees  as `projection_gossip`: each device's own threshold, with the error bound of the worst of them
Message     that of `projection_gossip`
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from conformesh.common.quantities import pluralize
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.bounds.tracked_weights import CountInterval
from conformesh.protocols.messages import Protocol
from conformesh.protocols.projection_gossip import ProjectionGossip, check_memory, default_gossip_rounds
from conformesh.protocols.quantiser import crowding_note
from conformesh.results.certificate import Certificate, too_few_certificate

if TYPE_CHECKING:
    from conformesh.protocols.h_dcp import HDCP


def h_dcp_by_projection(
    block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: HDCP
) -> Protocol[Answers]:
    """Gossip for some rounds, and read thresholds off every device's view."""
    check_memory(block.devices, len(block.rows), options.bins, block.trials)
    devices = ProjectionGossip(block, samples, options.bins, options.range)
    for _ in range(default_gossip_rounds(block) if options.rounds is None else options.rounds):
        devices.hear((yield devices.message()))
    return _decide(devices, alphas, options.rounding, options.range is not None)


def _decide(devices: ProjectionGossip, alphas: tuple[Fraction, ...], rounding: bool, given: bool) -> Answers:
    """Take the smallest edge that surely reaches the rank, at every device; +inf where none does."""
    block = devices.block
    ranks = block.ranks()
    thresholds = np.full((len(block.rows), block.trials, len(alphas)), np.inf)
    certificates: list[list[Certificate]] = []
    notes: set[str] = set()
    crowds: list[tuple[float, str]] = []
    for trial in range(block.trials):
        n, row = int(devices.sizes[trial].sum()), []
        counts, worst = devices.counts(trial), float(devices.epsilons(trial).max(initial=0.0))
        for a, alpha in enumerate(alphas):
            rank = int(ranks[trial, a])
            if rank > n:
                row.append(too_few_certificate(rank, n))
                continue
            holds = counts.low >= rank
            found, bin_ = np.asarray(holds.any(axis=1)), holds.argmax(axis=1)
            if devices.quantiser is not None:
                thresholds[found, trial, a] = devices.quantiser.edges[trial, bin_[found]]
                short = given and int(counts.high[:, -1].min()) < rank
                edges, base = devices.quantiser.edges[trial], float(alpha * block.demands[trial].base)
                crowd = crowding_note("h-dcp", edges, counts.low[0], rank, base, short)
                crowds += [] if crowd is None else [crowd]
            counted = _exact_count(counts, rank) if rounding else None
            row.append(Certificate("bounded" if counted is None else "counted", rank, counted, worst))
            if counted is None and not found.all():
                notes.add(_unheard_note(int((~found).sum()), len(found), worst))
        certificates.append(row)
    notes |= {max(crowds)[1]} if crowds else set()
    return Answers(thresholds, certificates, notes=tuple(sorted(notes)))


def _exact_count(counts: CountInterval, rank: int) -> int | None:
    """Return the count at the threshold if every device here knows the smallest edge that reaches the rank.

    That is so where the count at it is exact, and that at the edge before certainly short of the rank. A rank that no
    edge reaches is known to be so, too, and then all scores lie at or below the threshold, +inf.
    """
    holds, may = counts.low >= rank, counts.high >= rank
    if not (holds == may).all():
        return None
    each, at = np.arange(len(holds)), holds.argmax(axis=1)
    reached = holds.any(axis=1)
    if not reached.all():
        return None
    return int(counts.low[0, at[0]]) if counts.exact[each, at].all() else None


def _unheard_note(short: int, here: int, worst: float) -> str:
    return (
        f"h-dcp: {short} of {pluralize(here, 'device')} here know too little of the others to say more than +inf after "
        f"these rounds (the largest error bound is {worst:.3g}); set more rounds"
    )
