"""What every method reveals to whom: the functions behind `Method.reveals`, each beside what its protocol sends.

A device on a mesh says everything to all its neighbours alike, whomever it is meant for. So of a device next to a
coalition these know every frame. What they know of the others follows from the map: sums over parts of a spanning tree,
linear combinations in gossip, everything in a flood.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from conformesh.graph.network import weights_below
from conformesh.privacy.exposure import ALL, EACH, Revealed, Where, parts_without, sums_in_tree
from conformesh.privacy.gossip_attack import LARGEST, observable
from conformesh.protocols.aggregate import AGGREGATORS
from conformesh.protocols.averaging_schemes import WAYS
from conformesh.protocols.block import Block
from conformesh.protocols.e_dcp import EDCP, POINTS, best_width, chosen, way_to_add
from conformesh.protocols.e_dcp_entries import POINTS as TOLD
from conformesh.protocols.fedcp_qq import FedCPQQ
from conformesh.protocols.h_dcp import HDCP
from conformesh.protocols.loss_tolerant_count import RUNGS
from conformesh.protocols.p_dcp import PDCP
from conformesh.protocols.q_dcp import QDCP
from conformesh.protocols.quantile_average import ANCHORS
from conformesh.protocols.r_dcp import RDCP
from conformesh.protocols.spectrum_estimation import known_weights
from conformesh.protocols.wfcp import WFCP

SIZE = Revealed("everybody", "its number of scores")
_ENDS = "its smallest and its largest score, as they are"
_BELOW = "merged with all below it in the spanning tree: bare, if it is a leaf"
_QUANTILE = "the quantile of its own scores"
_A_SCORE = Revealed("everybody", "the threshold: a true score of somebody", ALL)
_NO_SCORE = Revealed("everybody", "the threshold: no true score", ALL)
_A_BIN = Revealed("everybody", "the threshold: the upper end of a bin", ALL)
_SERVER = " (on a mesh, which has no server, everybody learns it)"


# --- how numbers travel -----------------------------------------------------------------------------------------------


def _said(where: Where, what: str, numbers: int | None, more: str = "") -> list[Revealed]:
    """What a device says of itself alone: its neighbours hear it."""
    rows = [Revealed("neighbours", what + more, numbers=numbers)]
    return [*rows, *_known(where, what, numbers, where.near)]


def _leaves(where: Where, what: str, numbers: int | None) -> list[Revealed]:
    """What is merged over a spanning tree and cannot be taken apart again: of a leaf its own."""
    rows = [Revealed("neighbours", f"{what}, {_BELOW}", numbers=numbers)]
    if where.network is None:
        return rows
    parents = {*weights_below(where.network, np.ones(where.devices, dtype=np.int64))[0].tolist()}
    return [*rows, *_known(where, what, numbers, [row for row in where.near if row not in parents])]


def _below(where: Where, what: str, numbers: int | None, total: bool) -> list[Revealed]:
    """What is added up, or listed, over a spanning tree: who hears a device and all its children knows its own."""
    rows = [Revealed("neighbours", f"{what}, {_BELOW}", numbers=numbers)]
    if where.network is None:
        return rows
    alone = [part[0] for part in sums_in_tree(where.network, where.coalition, total) if len(part) == 1]
    return [*rows, *_known(where, what, numbers, tuple(alone))]


def _everybody(where: Where, what: str, numbers: int | None) -> list[Revealed]:
    return [Revealed("everybody", what, numbers=numbers, devices=where.everyone)]


def _mixed(
    where: Where, what: str, numbers: int | None, rounds: int | None = None, weights: Any = None
) -> list[Revealed]:
    """What is averaged by gossip of any kind: bare in the first round, and later a known combination of everybody's."""
    rows = [Revealed("neighbours", f"{what}, as it is, in its first frame", numbers=numbers)]
    if rounds == 0:  # nothing is said
        return []
    if where.network is None or not where.coalition:
        return rows
    if where.network.devices > LARGEST:
        return [
            *rows,
            *_known(where, f"{what}; of how many more is worked out up to {LARGEST} devices", numbers, where.near),
        ]
    return [*rows, *_known(where, what, numbers, observable(where.network, where.coalition, rounds, weights)[0])]


def _known(where: Where, what: str, numbers: int | None, rows: Any) -> list[Revealed]:
    """What the coalition knows of these devices, each apart from all others."""
    others = where.others(int(row) for row in rows)
    if not where.coalition or not others:
        return []
    return [Revealed("the coalition", what, where.named(others), numbers, others)]


def _ends(where: Where) -> list[Revealed]:
    """The agreement on a range: a maximum that spreads."""
    whole = Revealed("everybody", "the smallest and the largest of all scores: true scores of somebody", ALL, 2)
    return [*_said(where, _ENDS, 2, ", in its first frame"), whole]


def _summed(where: Where, what: str, numbers: int | None, by: str) -> list[Revealed]:
    """What an aggregator adds up."""
    totals = Revealed("everybody", f"{what}: the totals", ALL, numbers)
    summands = AGGREGATORS[by].summands
    if summands == "below":
        return [*_below(where, what, numbers, total=True), totals]
    return _everybody(where, what, numbers)


# --- E-DCP ------------------------------------------------------------------------------------------------------------


def e_dcp(where: Where, options: EDCP) -> list[Revealed]:
    """Say what E-DCP reveals, by its schedule."""
    schedule, over = _schedule(where, options)
    if schedule == "entries":
        points, near = options.width or TOLD, "its scores in a window around the threshold, as they are"
        order = "some of its scores with their ranks, as they are"
        return [SIZE, *_everybody(where, order, points), *_everybody(where, near, None), _A_SCORE]
    if schedule == "count" and over != "tree":
        return [SIZE, *_stages(where, options.warm is None, over), _A_SCORE]
    if over == "flood":
        likely = "those of its scores that may be among the k largest (or smallest) of all, as they are"
        top = "which of its scores are among the k largest (or smallest) of all, as they are, with its name"
        return [SIZE, *_said(where, likely, None), *_everybody(where, top, None), _A_SCORE]
    if schedule == "top-k":
        top = "those of its scores that may be among the k largest (or smallest) of all, as they are"
        return [SIZE, *_below(where, top, None, total=False), _A_SCORE]
    window = "counts of its scores at asked thresholds, and its scores in a window, as they are"
    return [
        SIZE,
        *_leaves(where, "a sketch of its scores (rounded quantiles)", options.width or POINTS),
        *_below(where, window, None, total=False),
        Revealed("everybody", "the brackets that are asked about, and the rank of the threshold", ALL, None),
        _A_SCORE,
    ]


def _schedule(where: Where, options: EDCP) -> tuple[str, str]:
    """Return the schedule and over what it goes, or by what sums are formed: as it was, or as it would be."""
    facts = where.facts
    if "schedule" in facts:
        return str(facts["schedule"]), str(facts.get("sums_by", facts.get("over", "tree")))
    if options.entries:
        return "entries", "flood"
    if where.network is None:
        return "window" if options.schedule == "auto" else options.schedule, "tree"
    sizes = np.full((where.devices, 1), where.scores)
    block = replace(Block.everywhere(where.network, sizes), alphas=(where.alpha,))
    plan = chosen(block, options, block.ranks(), block.totals)
    if plan.schedule != "count" or plan.over == "tree":
        return plan.schedule, plan.over
    width = options.width or best_width(block, options.aggregate, options.prefer)
    return plan.schedule, way_to_add(block, options.aggregate, options.prefer, width)


def _stages(where: Where, ends: bool, by: str) -> list[Revealed]:
    """What a search by counts reveals: the ends of all scores, counts, and scores next to the answer."""
    last = "the largest of its scores up to the answer, or the smallest from there, as it is, at the end"
    return [
        *(_ends(where) if ends else []),
        *_summed(where, "counts of its scores at thresholds that are asked", None, by),
        *_said(where, last, 1),
    ]


# --- the paper's methods, and r-dcp -----------------------------------------------------------------------------------


def h_dcp(where: Where, options: HDCP) -> list[Revealed]:
    """Say what H-DCP reveals: to whoever can solve linear equations, everybody's histogram."""
    rows = [SIZE, *(_ends(where) if options.range is None else [])]
    histogram = "its exact histogram" + (f", rounded to {options.wire} bits" if options.wire < 64 else "")
    if WAYS[options.consensus].tracked:
        rows += _said(where, histogram, options.bins, ", in its first frame")
        words = "an equation for everybody's histogram, with its coefficients, in every later frame"
        rows.append(Revealed("neighbours", words, ALL, options.bins))
    elif where.network is None:
        rows += _mixed(where, histogram, options.bins)
    else:
        weights = known_weights(where.network, options.weights, None)
        rows += _mixed(where, histogram, options.bins, options.rounds, weights)
    return [*rows, Revealed("everybody", "the histogram of all scores", ALL, options.bins), _A_BIN]


def q_dcp(where: Where, options: QDCP) -> list[Revealed]:
    """Say what Q-DCP reveals: quantiles, then an estimate in every round, and counts where it certifies."""
    rows = [SIZE]
    if options.asynchronous:
        rows += _leaves(where, f"{_QUANTILE}, and its largest score", 2)
        rows += _estimates(where, options.rounds)
        counts = f"counts of its scores at {RUNGS} thresholds around the estimate"
        return [*rows, *_below(where, counts, RUNGS, total=False), _NO_SCORE]
    if str(options.s0) == "min":
        rows += _said(where, _QUANTILE, 1, ", in its first frame")
    elif str(options.s0) in ANCHORS:
        rows += _mixed(where, _QUANTILE, 1, options.averaging)
    if options.continuation:
        rows += _said(where, _QUANTILE, 1, ", in a maximum that spreads")
    rows += _estimates(where, options.rounds)
    if not (options.certify or options.continuation):
        return [*rows, _NO_SCORE]
    searched = Revealed("everybody", "the threshold: the estimate, or where its rank fell short a true score", ALL)
    by = str(where.facts.get("sums_by", "")) or _sums_by(where, options.aggregate)
    return [*rows, *_stages(where, True, by), searched]


def _estimates(where: Where, rounds: int) -> list[Revealed]:
    """ADMM: who hears a device and all its neighbours works out the derivative of its loss, a smoothed count."""
    rows = [Revealed("neighbours", "its estimate in every round, which its scores pull", numbers=rounds)]
    if where.network is None:
        return rows
    heard = {*where.near, *where.coalition}
    around = [row for row in where.near if heard.issuperset(where.network.neighbours(row).tolist())]
    return [*rows, *_known(where, "smoothed counts of its scores at its estimates", rounds, around)]


def _sums_by(where: Where, aggregate: str) -> str:
    if where.network is None:
        return "tree" if aggregate not in AGGREGATORS else aggregate
    block = Block.everywhere(where.network, np.full((where.devices, 1), where.scores))
    return way_to_add(replace(block, alphas=(where.alpha,)), aggregate, "balanced", 1)


def r_dcp(where: Where, options: RDCP) -> list[Revealed]:
    """Say what R-DCP reveals: everything is signed, and goes to everybody."""
    ends = options.range is None and options.grid == "agreed"
    rows = _everybody(where, "its smallest and its largest finite score, as they are, signed", 2) if ends else []
    histogram = "its exact histogram and its largest finite score, signed"
    return [SIZE, *rows, *_everybody(where, histogram, options.bins + 1), _A_BIN]


def average(where: Where, options: Any) -> list[Revealed]:
    """Say what averaging quantiles reveals."""
    return [SIZE, *_mixed(where, _QUANTILE, 1, options.averaging), _NO_SCORE]


# --- with a server, and alone -----------------------------------------------------------------------------------------


def pooled(where: Where, options: Any) -> list[Revealed]:
    """Say what pooling reveals: everything."""
    return [SIZE, _uploaded(where, "all its scores, as they are", None), _A_SCORE]


def fedcp_qq(where: Where, options: FedCPQQ) -> list[Revealed]:
    """Say what FedCP-QQ reveals."""
    rounded = "" if options.wire == 64 else f", rounded up to {options.wire} bits"
    return [SIZE, _uploaded(where, f"one of its scores, of a rank that all know{rounded}", 1), _A_SCORE]


def wfcp(where: Where, options: WFCP) -> list[Revealed]:
    """Say what WFCP reveals; on the air the server hears the sum of all histograms, and noise."""
    rows = [SIZE, *(_ends(where) if options.range is None else [])]
    return [
        *rows,
        _uploaded(where, "its exact histogram; on the air, only its sum with all others'", options.bins),
        _A_BIN,
    ]


def _uploaded(where: Where, what: str, numbers: int | None) -> Revealed:
    return Revealed("a server", what + _SERVER, numbers=numbers, devices=where.everyone)


def local(where: Where, options: Any) -> list[Revealed]:
    """Say what a device alone reveals: what a mesh asks of it before any method."""
    return [SIZE]


# --- masked sums ------------------------------------------------------------------------------------------------------


def p_dcp(where: Where, options: PDCP) -> list[Revealed]:
    """Say what masked sums reveal: exact totals at thresholds, or with `epsilon` one noisy histogram.

    A coalition learns the sum over each component of the mask graph without it. The mask graph is complete, so that
    this is one sum over all others; `where.masks` asks about another graph.
    """
    if options.epsilon is None:
        counts = "counts of all scores at grid points that are asked"
        rows = [Revealed("everybody", "the number of all scores", ALL), Revealed("everybody", counts, ALL, None)]
    else:
        cells = options.chosen_cells(where.devices)
        counts = f"how many of all scores lie in each of {cells:,} cells of a public grid, with noise"
        rows = [
            Revealed("everybody", "the number of all scores, with noise (with mixture sizes)", ALL),
            Revealed("everybody", counts, ALL, cells - 1),
            Revealed(
                "everybody", "its account: epochs and how often each was released, whatever its scores", EACH, None
            ),
        ]
    rows.append(Revealed("everybody", "the threshold: a point of the grid, no true score", ALL))
    if not where.coalition or where.masks is None:
        return rows
    parts = parts_without(where.devices, where.masks, where.coalition)
    if len(parts) > 1:
        smallest = min(map(len, parts))
        words = f"the same sums over each of {len(parts)} parts of the graph of masks, of {smallest} devices or more"
        rows.append(Revealed("the coalition", words, where.named(where.others(where.everyone)), None))
    alone = tuple(part[0] for part in parts if len(part) == 1)
    return [*rows, *_known(where, counts.replace("all scores", "its scores"), None, alone)]
