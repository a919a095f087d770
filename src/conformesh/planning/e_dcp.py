"""What E-DCP would send: all but the number of stages is known beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from conformesh.planning.phases import Phase
from conformesh.planning.prediction import Prediction, hops
from conformesh.planning.search import SHAPES, Stages, stages_in, stages_of
from conformesh.planning.sums import EVERYTHING, USES, Sum, setting_up, sum_by
from conformesh.planning.terrain import Terrain
from conformesh.promises import conformal_rank
from conformesh.protocols.e_dcp import EDCP, PATIENCE, best_width, ways_to_add

KEY_BITS = 64  # no bracket holds more floats than 2 to this


def predict_e_dcp(terrain: Terrain, alpha: Fraction, options: EDCP, shape: str = "any") -> Prediction:
    """Predict the phases of `protocols.e_dcp.e_dcp`, as a mean over draws of scores."""
    width = options.width or best_width(terrain.site, options.aggregate, options.prefer)
    name = ways_to_add(terrain.site, options.aggregate, options.prefer, width)[0]
    total, n = sum_by(name, terrain), terrain.n
    rank = conformal_rank(n, alpha, terrain.devices)
    always = [*setting_up(name, terrain), *total("add up n", 1, None)]
    facts = {"sums_by": name, "stage_width": str(width)}
    uses = USES.get(name, EVERYTHING)
    if rank > n:  # the threshold is +inf, and nothing is searched
        return Prediction(tuple(always), "counted", uses=uses, facts=facts)
    always.append(hops(terrain, "agree on the ends", 2, 64, 2))
    return searched(terrain, always, total, rank, width, uses, facts, shape)


def searched(
    terrain: Terrain,
    always: Sequence[Phase],
    total: Sum,
    rank: int,
    width: int,
    uses: frozenset[str],
    facts: dict[str, str],
    shape: str,
) -> Prediction:
    """Add the stages of the search to what is sent in any case."""
    n = terrain.n
    found = mixed_stages(terrain, rank, width, shape)
    stage, recount = total("a stage", width, n), total("count the answer", 1, n)
    snap, name = hops(terrain, "draw the ends in", 2, 64, 2), hops(terrain, "name the answer", 1, 64)

    def phases(stages: float, snaps: float, named: float, recounts: float) -> tuple[Phase, ...]:
        parts = [(stage, stages), ([snap], snaps), ([name], named), (recount, recounts)]
        return (*always, *(phase.times(often) for which, often in parts if often for phase in which))

    each = sum(phase.rounds for phase in always) + (
        found.stages * sum(phase.rounds for phase in stage)
        + found.snaps * snap.rounds
        + found.named * name.rounds
        + found.recounts * sum(phase.rounds for phase in recount)
    )
    longest = PATIENCE + math.ceil(KEY_BITS / math.log2(width + 1)) + 1
    return Prediction(
        phases(*(float(part.mean()) for part in (found.stages, found.snaps, found.named, found.recounts))),
        "counted",
        uses=uses,
        varies=not found.certain,
        rounds=None if found.certain else (float(np.quantile(each, 0.05)), float(np.quantile(each, 0.95))),
        most=None if found.certain else phases(longest, longest // 2 + 1, 1, 1),
        facts=facts,
    )


def mixed_stages(terrain: Terrain, rank: int, width: int, shape: str) -> Stages:
    """Return the stages for the scores themselves; or for one shape; or for any, the even ones twice as likely."""
    if terrain.pooled is not None:
        return stages_in(terrain.pooled, rank, width)
    n = terrain.n
    names = [*SHAPES, "uniform", "normal"] if shape == "any" else [shape]
    drawn = [stages_of(n, rank, width, name) for name in names]

    def joined(part: str) -> NDArray[np.int64]:
        return np.concatenate([getattr(one, part) for one in drawn])

    return Stages(joined("stages"), joined("snaps"), joined("named"), joined("recounts"))
