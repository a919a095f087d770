"""What every method reveals to whom: one function for each entry of `METHODS`, used as its field `reveals`.

On a mesh a device sends every message to all its neighbours, also where only one of them needs it. So a coalition knows
every message of the devices next to it. What it knows of the others follows from the map: sums over parts of a spanning
tree, linear combinations in gossip, everything in a flood.

`privacy.exposure` turns these lists into a report. Where a protocol changes what it sends, its function here must
follow; `tests/privacy/test_exposure.py` compares the two.

Adapted scores (`scores.adapt`) reveal more than a method does alone: `exposure_of_run` adds it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from conformesh.graph.network import subtree_weights
from conformesh.kernels.ranks import ANY
from conformesh.privacy.exposure import (
    ALL,
    EACH,
    Disclosure,
    ExposureContext,
    Reveals,
    components_without,
    learned_tree_sums,
)
from conformesh.privacy.gossip_attack import MOST_SOLVED_DEVICES, observable_devices
from conformesh.protocols.aggregate import AGGREGATORS
from conformesh.protocols.averaging_schemes import AVERAGING_SCHEMES
from conformesh.protocols.block import Block, WindowRequest
from conformesh.protocols.e_dcp import EDCP, SKETCH_POINTS, best_stage_width, choose_aggregator, choose_schedule
from conformesh.protocols.e_dcp_entries import ENTRY_POINTS as TOLD
from conformesh.protocols.fedcp_qq import FedCPQQ
from conformesh.protocols.h_dcp import HDCP
from conformesh.protocols.loss_tolerant_count import LADDER_SIZE
from conformesh.protocols.p_dcp import PDCP
from conformesh.protocols.q_dcp import QDCP
from conformesh.protocols.quantile_average import S0_RULES
from conformesh.protocols.r_dcp import RDCP
from conformesh.protocols.spectrum_estimation import known_weights
from conformesh.protocols.wfcp import WFCP

KNOWS_SIZE = Disclosure("everybody", "its number of scores")
_ENDS = "its smallest and its largest score, as they are"
_BELOW = "merged with all below it in the spanning tree: bare, if it is a leaf"
_QUANTILE = "the quantile of its own scores"
_A_SCORE = Disclosure("everybody", "the threshold: a true score of somebody", ALL)
_NO_SCORE = Disclosure("everybody", "the threshold: no true score", ALL)
_A_BIN = Disclosure("everybody", "the threshold: the upper end of a bin", ALL)
_SERVER = " (on a mesh, which has no server, everybody learns it)"


# --- how numbers travel -----------------------------------------------------------------------------------------------


def _own_value_shown(where: ExposureContext, what: str, numbers: int | None, more: str = "") -> list[Disclosure]:
    """What a device says of itself alone: its neighbours hear it."""
    rows = [Disclosure("neighbours", what + more, numbers=numbers)]
    return [*rows, *_known_to_coalition(where, what, numbers, where.near)]


def _merged_sketch(where: ExposureContext, what: str, numbers: int | None) -> list[Disclosure]:
    """What is merged over a spanning tree and cannot be taken apart again: of a leaf its own."""
    rows = [Disclosure("neighbours", f"{what}, {_BELOW}", numbers=numbers)]
    if where.network is None:
        return rows
    parents = {*subtree_weights(where.network, np.ones(where.devices, dtype=np.int64))[0].tolist()}
    return [*rows, *_known_to_coalition(where, what, numbers, [row for row in where.near if row not in parents])]


def _tree_sum(where: ExposureContext, what: str, numbers: int | None, total: bool) -> list[Disclosure]:
    """What is added up, or listed, over a spanning tree: who hears a device and all its children knows its own."""
    rows = [Disclosure("neighbours", f"{what}, {_BELOW}", numbers=numbers)]
    if where.network is None:
        return rows
    alone = [part[0] for part in learned_tree_sums(where.network, where.coalition, total) if len(part) == 1]
    return [*rows, *_known_to_coalition(where, what, numbers, tuple(alone))]


def _flooded(where: ExposureContext, what: str, numbers: int | None) -> list[Disclosure]:
    return [Disclosure("everybody", what, numbers=numbers, devices=where.everyone)]


def _averaged(
    where: ExposureContext, what: str, numbers: int | None, rounds: int | None = None, weights: Any = None
) -> list[Disclosure]:
    """What is averaged by gossip of any kind: bare in the first round, and later a known combination of everybody's."""
    rows = [Disclosure("neighbours", f"{what}, as it is, in its first frame", numbers=numbers)]
    if rounds == 0:  # nothing is said
        return []
    if where.network is None or not where.coalition:
        return rows
    if where.network.devices > MOST_SOLVED_DEVICES:
        return [
            *rows,
            *_known_to_coalition(
                where,
                f"{what}; of how many more is worked out up to {MOST_SOLVED_DEVICES} devices",
                numbers,
                where.near,
            ),
        ]
    return [
        *rows,
        *_known_to_coalition(
            where, what, numbers, observable_devices(where.network, where.coalition, rounds, weights)[0]
        ),
    ]


def _known_to_coalition(where: ExposureContext, what: str, numbers: int | None, rows: Any) -> list[Disclosure]:
    """What the coalition knows of these devices, each apart from all others."""
    others = where.others(int(row) for row in rows)
    if not where.coalition or not others:
        return []
    return [Disclosure("the coalition", what, where.named(others), numbers, others)]


def _agreed_range(where: ExposureContext) -> list[Disclosure]:
    """The agreement on a range: a maximum that spreads."""
    whole = Disclosure("everybody", "the smallest and the largest of all scores: true scores of somebody", ALL, 2)
    return [*_own_value_shown(where, _ENDS, 2, ", in its first frame"), whole]


def _aggregated(where: ExposureContext, what: str, numbers: int | None, by: str) -> list[Disclosure]:
    """What an aggregator adds up."""
    totals = Disclosure("everybody", f"{what}: the totals", ALL, numbers)
    summands = AGGREGATORS[by].summands
    if summands == "below":
        return [*_tree_sum(where, what, numbers, total=True), totals]
    return _flooded(where, what, numbers)


# --- E-DCP ------------------------------------------------------------------------------------------------------------


def exposure_of_e_dcp(where: ExposureContext, options: EDCP) -> list[Disclosure]:
    """Say what E-DCP reveals, by its schedule."""
    if where.mixture == ANY or where.mixture_bound is not None:
        return [KNOWS_SIZE, *_of_unknown_mixtures(where)]
    schedule, over = _schedule(where, options)
    if schedule == "entries":
        points, near = options.width or TOLD, "its scores in a window around the threshold, as they are"
        order = "some of its scores with their ranks, as they are"
        return [KNOWS_SIZE, *_flooded(where, order, points), *_flooded(where, near, None), _A_SCORE]
    if schedule == "count" and over != "tree":
        return [KNOWS_SIZE, *_search_stages(where, options.warm is None, over), _A_SCORE]
    if over == "flood":
        likely = "those of its scores that may be among the k largest (or smallest) of all, as they are"
        top = "which of its scores are among the k largest (or smallest) of all, as they are, with its name"
        return [KNOWS_SIZE, *_own_value_shown(where, likely, None), *_flooded(where, top, None), _A_SCORE]
    if schedule == "top-k":
        top = "those of its scores that may be among the k largest (or smallest) of all, as they are"
        return [KNOWS_SIZE, *_tree_sum(where, top, None, total=False), _A_SCORE]
    window = "counts of its scores at asked thresholds, and its scores in a window, as they are"
    return [
        KNOWS_SIZE,
        *_merged_sketch(where, "a sketch of its scores (rounded quantiles)", options.width or SKETCH_POINTS),
        *_tree_sum(where, window, None, total=False),
        Disclosure("everybody", "the brackets that are asked about, and the rank of the threshold", ALL, None),
        *(_window_of_scores(where, "true scores of somebody") if where.adapt is not None else [_A_SCORE]),
    ]


def _of_unknown_mixtures(where: ExposureContext) -> list[Disclosure]:
    """What a threshold for many mixtures reveals: what each device has by itself, or its counts by name."""
    if where.mixture == ANY:
        largest = Disclosure("everybody", "the largest threshold of a device by itself: a true score", ALL)
        own = "the threshold that it has by itself, one of its scores, as it is"
        return [*_own_value_shown(where, own, 1, ", in the first frame of a maximum"), largest]
    told = (
        "some of its scores, as they are, with how many of its scores lie at or below each; then more of them in "
        "smaller windows around the threshold"
    )
    return [*_flooded(where, told, None), _A_SCORE]


def _schedule(where: ExposureContext, options: EDCP) -> tuple[str, str]:
    """Return the schedule and over what it goes, or by what sums are formed: as it was, or as it would be."""
    facts = where.facts
    if "schedule" in facts:
        return str(facts["schedule"]), str(facts.get("sums_by", facts.get("over", "tree")))
    if options.entries:
        return "entries", "flood"
    if where.network is None:
        return "window" if options.schedule == "auto" else options.schedule, "tree"
    sizes = np.full((where.devices, 1), where.scores)
    window = None if where.adapt is None else WindowRequest()
    block = replace(Block.everywhere(where.network, sizes), alphas=(where.alpha,), window=window)
    plan = choose_schedule(block, options, block.ranks(), block.totals)
    if plan.schedule != "count" or plan.over == "tree":
        return plan.schedule, plan.over
    width = options.width or best_stage_width(block, options.aggregate, options.prefer)
    return plan.schedule, choose_aggregator(block, options.aggregate, options.prefer, width)


def _search_stages(where: ExposureContext, ends: bool, by: str) -> list[Disclosure]:
    """What a search by counts reveals: the ends of all scores, counts, and scores next to the answer."""
    last = "the largest of its scores up to the answer, or the smallest from there, as it is, at the end"
    return [
        *(_agreed_range(where) if ends else []),
        *_aggregated(where, "counts of its scores at thresholds that are asked", None, by),
        *_own_value_shown(where, last, 1),
    ]


# --- the paper's methods, and r-dcp -----------------------------------------------------------------------------------


def exposure_of_h_dcp(where: ExposureContext, options: HDCP) -> list[Disclosure]:
    """Say what H-DCP reveals: to whoever can solve linear equations, everybody's histogram."""
    rows = [KNOWS_SIZE, *(_agreed_range(where) if options.range is None else [])]
    histogram = "its exact histogram" + (f", rounded to {options.wire} bits" if options.wire < 64 else "")
    if AVERAGING_SCHEMES[options.consensus].tracked:
        rows += _own_value_shown(where, histogram, options.bins, ", in its first frame")
        words = "an equation for everybody's histogram, with its coefficients, in every later frame"
        rows.append(Disclosure("neighbours", words, ALL, options.bins))
    elif where.network is None:
        rows += _averaged(where, histogram, options.bins)
    else:
        weights = known_weights(where.network, options.weights, None)
        rows += _averaged(where, histogram, options.bins, options.rounds, weights)
    return [*rows, Disclosure("everybody", "the histogram of all scores", ALL, options.bins), _A_BIN]


def exposure_of_q_dcp(where: ExposureContext, options: QDCP) -> list[Disclosure]:
    """Say what Q-DCP reveals: quantiles, then an estimate in every round, and counts where it certifies."""
    rows = [KNOWS_SIZE]
    if options.asynchronous:
        rows += _merged_sketch(where, f"{_QUANTILE}, and its largest score", 2)
        rows += _admm_estimates(where, options.rounds)
        counts = f"counts of its scores at {LADDER_SIZE} thresholds around the estimate"
        return [*rows, *_tree_sum(where, counts, LADDER_SIZE, total=False), _NO_SCORE]
    if str(options.s0) == "min":
        rows += _own_value_shown(where, _QUANTILE, 1, ", in its first frame")
    elif str(options.s0) in S0_RULES:
        rows += _averaged(where, _QUANTILE, 1, options.averaging)
    if options.continuation:
        rows += _own_value_shown(where, _QUANTILE, 1, ", in a maximum that spreads")
    rows += _admm_estimates(where, options.rounds)
    if not (options.certify or options.continuation):
        return [*rows, _NO_SCORE]
    searched = Disclosure("everybody", "the threshold: the estimate, or where its rank fell short a true score", ALL)
    by = str(where.facts.get("sums_by", "")) or _sums_by(where, options.aggregate)
    return [*rows, *_search_stages(where, True, by), searched]


def _admm_estimates(where: ExposureContext, rounds: int) -> list[Disclosure]:
    """ADMM: who hears a device and all its neighbours works out the derivative of its loss, a smoothed count."""
    rows = [Disclosure("neighbours", "its estimate in every round, which its scores pull", numbers=rounds)]
    if where.network is None:
        return rows
    heard = {*where.near, *where.coalition}
    around = [row for row in where.near if heard.issuperset(where.network.neighbours(row).tolist())]
    return [*rows, *_known_to_coalition(where, "smoothed counts of its scores at its estimates", rounds, around)]


def _sums_by(where: ExposureContext, aggregate: str) -> str:
    if where.network is None:
        return "tree" if aggregate not in AGGREGATORS else aggregate
    block = Block.everywhere(where.network, np.full((where.devices, 1), where.scores))
    return choose_aggregator(replace(block, alphas=(where.alpha,)), aggregate, "balanced", 1)


def exposure_of_r_dcp(where: ExposureContext, options: RDCP) -> list[Disclosure]:
    """Say what R-DCP reveals: everything is signed, and goes to everybody."""
    ends = options.range is None and options.grid == "agreed"
    rows = _flooded(where, "its smallest and its largest finite score, as they are, signed", 2) if ends else []
    histogram = "its exact histogram and its largest finite score, signed"
    return [KNOWS_SIZE, *rows, *_flooded(where, histogram, options.bins + 1), _A_BIN]


def exposure_of_average(where: ExposureContext, options: Any) -> list[Disclosure]:
    """Say what averaging quantiles reveals."""
    return [KNOWS_SIZE, *_averaged(where, _QUANTILE, 1, options.averaging), _NO_SCORE]


# --- with a server, and alone -----------------------------------------------------------------------------------------


def exposure_of_pooled(where: ExposureContext, options: Any) -> list[Disclosure]:
    """Say what pooling reveals: everything."""
    return [KNOWS_SIZE, _uploaded(where, "all its scores, as they are", None), _A_SCORE]


def exposure_of_fedcp_qq(where: ExposureContext, options: FedCPQQ) -> list[Disclosure]:
    """Say what FedCP-QQ reveals."""
    rounded = "" if options.wire == 64 else f", rounded up to {options.wire} bits"
    return [KNOWS_SIZE, _uploaded(where, f"one of its scores, of a rank that all know{rounded}", 1), _A_SCORE]


def exposure_of_wfcp(where: ExposureContext, options: WFCP) -> list[Disclosure]:
    """Say what WFCP reveals; on the air the server hears the sum of all histograms, and noise."""
    rows = [KNOWS_SIZE, *(_agreed_range(where) if options.range is None else [])]
    return [
        *rows,
        _uploaded(where, "its exact histogram; on the air, only its sum with all others'", options.bins),
        _A_BIN,
    ]


def _uploaded(where: ExposureContext, what: str, numbers: int | None) -> Disclosure:
    return Disclosure("a server", what + _SERVER, numbers=numbers, devices=where.everyone)


def exposure_of_local(where: ExposureContext, options: Any) -> list[Disclosure]:
    """Say what a device alone reveals: what a mesh asks of it before any method."""
    return [KNOWS_SIZE]


# --- masked sums ------------------------------------------------------------------------------------------------------


def exposure_of_p_dcp(where: ExposureContext, options: PDCP) -> list[Disclosure]:
    """Say what masked sums reveal: exact totals at thresholds, or with `epsilon` one noisy histogram.

    A coalition learns the sum over each component of the mask graph without it. The mask graph is complete, so that
    this is one sum over all others; `where.masks` asks about another graph.
    """
    if options.epsilon is None:
        counts = "counts of all scores at grid points that are asked"
        rows = [Disclosure("everybody", "the number of all scores", ALL), Disclosure("everybody", counts, ALL, None)]
    else:
        cells = options.chosen_cells(where.devices)
        counts = f"how many of all scores lie in each of {cells:,} cells of a public grid, with noise"
        rows = [
            Disclosure("everybody", "the number of all scores, with noise (with mixture sizes)", ALL),
            Disclosure("everybody", counts, ALL, cells - 1),
            Disclosure(
                "everybody", "its account: epochs and how often each was released, whatever its scores", EACH, None
            ),
        ]
    if where.adapt is None:
        rows.append(Disclosure("everybody", "the threshold: a point of the grid, no true score", ALL))
    else:
        rows += _window_of_scores(where, "points of the grid, no true scores")
    if not where.coalition or where.masks is None:
        return rows
    parts = components_without(where.devices, where.masks, where.coalition)
    if len(parts) > 1:
        smallest = min(map(len, parts))
        words = f"the same sums over each of {len(parts)} parts of the graph of masks, of {smallest} devices or more"
        rows.append(Disclosure("the coalition", words, where.named(where.others(where.everyone)), None))
    alone = tuple(part[0] for part in parts if len(part) == 1)
    return [*rows, *_known_to_coalition(where, counts.replace("all scores", "its scores"), None, alone)]


# --- tests of lambdas -------------------------------------------------------------------------------------------------


def exposure_of_sums(where: ExposureContext, aggregate: str, numbers: int) -> list[Disclosure]:
    """Say what `control(..., monotone=False)` reveals: one sum of losses for each lambda and risk, and nothing else."""
    what = "the sum of the losses of its items, for each lambda"
    own = _flooded(where, what, numbers) if aggregate == "flood" else _tree_sum(where, what, numbers, total=True)
    total = Disclosure("everybody", "the sum of the losses of all items, for each lambda", ALL, numbers)
    return [KNOWS_SIZE, *own, total]


# --- adapted scores ---------------------------------------------------------------------------------------------------


def exposure_of_run(where: ExposureContext, options: Any, reveals: Reveals, is_private: bool) -> list[Disclosure]:
    """Say what a method reveals, and what scores that adapt add to it.

    Sums of losses come before the search: the search is that of the method, among the adapted scores of each setting
    that may be chosen. With mixture `own` nothing is searched for.
    """
    alone = [] if is_private else [KNOWS_SIZE]
    rows = alone if where.own else [*reveals(where, options)]
    if where.adapt is None:
        return rows
    chosen = [
        (what, total, numbers)
        for what, total, numbers in (
            (
                "counts that settings depend on",
                "counts that settings depend on, of all devices",
                _summary_numbers(where),
            ),
            (
                "the sum of the losses of its rows, for each setting",
                "the sum of the losses of all rows, for each setting",
                _setting_numbers(where),
            ),
        )
        if numbers != 0
    ]
    for what, total, numbers in chosen:
        if not is_private:
            rows += _tree_sum(where, what, numbers, total=True)
        rows.append(Disclosure("everybody", total, ALL, numbers))
    places = "" if where.own else "the place of the row that it hides, drawn before any score, and "
    digest = "a digest of its rows, which confirms a right guess of all of them"
    return [
        *rows,
        Disclosure("readers of results", places + digest, EACH, 1 if where.own else 2),
        Disclosure("readers of predictions", where.adapt.predictions_reveal, EACH, None),
    ]


def _window_of_scores(where: ExposureContext, which: str) -> list[Disclosure]:
    """What all devices need for predictions, in place of a threshold."""
    many = where.adapt.window
    words = (
        "the pooled scores around the threshold"
        if where.adapt.has_full_window
        else f"about {many} pooled scores around the threshold"
    )
    what = f"{words}, with exact counts, for each setting that may be chosen: {which}"
    return [Disclosure("everybody", what, ALL, None)]


def _summary_numbers(where: ExposureContext) -> int:
    """Return how many counts are added up before settings are known."""
    from conformesh.scores.adapt import Bag

    nothing = Bag(
        np.zeros((0, 2)) if where.adapt.task == "classification" else np.zeros(0), np.zeros(0, dtype=np.int64)
    )
    return len(where.adapt.summary_counts(nothing))


def _setting_numbers(where: ExposureContext) -> int | None:
    """Return how many settings there are to choose from; 0 if there is no choice, None if that depends on the rows."""
    if counted := _summary_numbers(where):
        several = len(where.adapt.settings(np.zeros(counted, dtype=np.int64), 1)) > 1
        return None if several else 0
    settings = len(where.adapt.settings(np.zeros(0, dtype=np.int64), 2))
    return settings if settings > 1 else 0
