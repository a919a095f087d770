"""Solver: all problems of a call in one run.

`solve` is the way of every public function: agree on what the weights depend on, weigh, run the method, return one
`Result`. `solve_on_device` is the same for one device of a mesh. `solve_draws` runs many draws of an experiment at
once, for comparisons and sweeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import ArrayLike, NDArray

from conformesh.common.notes import emit_note
from conformesh.common.quantities import pluralize
from conformesh.files.memberships import Atom
from conformesh.graph.network import Network
from conformesh.guarantee import Guarantee
from conformesh.kernels.ranks import (
    AUTO,
    DEFAULT_REQUIREMENT,
    DEVICE_MIXTURES,
    OWN,
    Alpha,
    Requirement,
    as_level_list,
    check_shares,
    exact_alpha,
)
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import get_method, make_options, refuse_faults, requirement_of, run_method
from conformesh.pipeline.assembly import add_answers_to_result, refuse_nan_thresholds
from conformesh.pipeline.problems import (
    LocalRows,
    ProblemColumns,
    PublicFacts,
    add_agreed_parts,
    agree_on_facts,
    configured_part_names,
    draw_hidden_scores,
    first_rows,
    gather_counts,
    guarantee_groups,
    has_parts,
    merge_sides,
    problem_columns,
)
from conformesh.protocols.block import Answers, Block, SearchProgress, merge_rows
from conformesh.protocols.faults import Faults, make_faults
from conformesh.protocols.messages import Protocol
from conformesh.protocols.size_agreement import exchange_counts, run_without_server
from conformesh.results.certificate import Cost
from conformesh.results.result import Result
from conformesh.scores import Score
from conformesh.table import Table

if TYPE_CHECKING:  # a device of a mesh has no engine, and need not hold what it does not use in memory
    from conformesh.engines import Engine
    from conformesh.engines.observers import Observer
    from conformesh.pipeline.adapted import AdaptedRun
    from conformesh.protocols.groups import Grouping
    from conformesh.protocols.masks import Secrets


class TooFewScores(ValueError, UserWarning):  # noqa: N818 - a warning by default, an error on request
    """The required rank exceeds the number of scores, so the threshold is +inf and every set is full."""


@dataclass(frozen=True, eq=False)
class MethodRun:
    """How a guarantee is computed.

    Attributes
    ----------
    method, options
        A name of `METHODS` and the options that were given for it.
    score
        The nonconformity score that the numbers come from, where it was named: it may suit other options better than
        the defaults.
    engine
        A name of `ENGINES`, or an engine made for the network.
    faults
        What goes wrong in a simulated network.
    observer
        Called after every round with (round, message, answer).
    progress
        Whether to show a bar of the rounds.
    strict
        Whether too few scores are an error instead of a warning.
    group_rule, group_order, group_atoms
        How overlapping groups are covered, in which order, and which combinations may occur, with the number of scores
        expected of each.
    seed
        Of the draw that regression over many groups makes, and of the rows that devices hide with adapted scores.
    testing
        How the lambdas of a grid are tested, a name of `TESTINGS`, where losses need not be monotone; else empty.
    mesh_mode
        On a mesh of nodes: "rounds" or "asynchronous".
    online
        Whether nodes of a mesh move the threshold as labels arrive.
    """

    method: str = "e-dcp"
    options: Mapping[str, Any] = field(default_factory=dict)
    score: Score | None = None
    engine: str | Engine = "simulator"
    faults: Faults | None = None
    observer: Observer | None = None
    progress: bool = False
    strict: bool = False
    group_rule: str | None = None
    group_order: Sequence[str] | None = None
    group_atoms: Mapping[Atom, int] = field(default_factory=dict)
    seed: int = 0
    testing: str = ""
    mesh_mode: str | None = None
    online: bool = False

    @cached_property
    def chosen_options(self) -> Any:
        """The options of the method in their types."""
        return make_options(self.method, self.options, self.score)


class _Refusal(NamedTuple):
    """A combination that is refused.

    Attributes
    ----------
    name
        What is combined, for the documentation: a row and a column of the matrix.
    applies
        Tells from guarantee, run and number of devices whether it is asked for.
    reason
        The mathematical reason.
    remedy
        What to do instead.
    """

    name: str
    applies: Callable[[Guarantee, MethodRun, int], bool]
    reason: str
    remedy: str


def _accepted_weights(guarantee: Guarantee, run: MethodRun) -> str:
    return get_method(run.method).weights(run.chosen_options)


def _has_epsilon(run: MethodRun) -> bool:
    return get_method(run.method).private and run.chosen_options.epsilon is not None


def _has_unequal_scores(guarantee: Guarantee, run: MethodRun) -> bool:
    weighted = guarantee.weighting is not None or guarantee.centres is not None
    return weighted or guarantee.pac_confidence is not None or run.group_rule is not None


def _adapts_with(guarantee: Guarantee, *others: Any) -> bool:
    return guarantee.adapt is not None and _any_given(*others)


def _any_given(*given: Any) -> bool:
    return any(one is not None for one in given)


def _has_unknown_mixture(guarantee: Guarantee) -> bool:
    return guarantee.mixture.kind in DEVICE_MIXTURES or guarantee.mixture.bound is not None


_STRATEGIES = ("seq", "regression")  # group rules that are more than a rank for each group

# Every combination that is refused, with its reason: documentation and one test derive from it. What depends on the
# options of one method alone is refused by that method.
REFUSALS: tuple[_Refusal, ...] = (
    _Refusal(
        "non-monotone losses x groups",
        lambda g, r, k: bool(r.testing) and (g.groups is not None or r.group_rule is not None),
        "groups do not go with monotone=False: which part of a group's new examples comes from which device is "
        "unknown, so the number of items of a group is random",
        "leave groups out, or call control once for each group, with its items alone and an equal part of "
        "1 - pac_confidence",
    ),
    _Refusal(
        "non-monotone losses x weights or centres",
        lambda g, r, k: bool(r.testing) and (g.weighting is not None or g.centres is not None),
        "weights and centres do not go with monotone=False: its p-values are proven for items that count as the "
        "mixture of devices says",
        "leave the weights or centres out, or use monotone=True for losses that never rise with lambda",
    ),
    _Refusal(
        "non-monotone losses x unknown mixtures",
        lambda g, r, k: bool(r.testing) and _has_unknown_mixture(g),
        "monotone=False tests the risk of one mixture: sums over all devices say nothing about each of them",
        "use mixture 'sizes', 'equal' or 'paper', or shares by device, or call control for each device alone",
    ),
    _Refusal(
        "non-monotone losses x ghost",
        lambda g, r, k: bool(r.testing) and g.rank_rule != AUTO,
        "rank_rule belongs to ranks, and monotone=False computes p-values of sums of losses",
        "leave rank_rule out",
    ),
    _Refusal(
        "non-monotone losses x methods",
        lambda g, r, k: bool(r.testing) and not get_method(r.method).scope.loss_sums,
        "monotone=False needs exact sums of losses over all devices, which only 'e-dcp' forms; p-values of masked or "
        "noisy sums are not available",
        "use method 'e-dcp'",
    ),
    _Refusal(
        "non-monotone losses x faults",
        lambda g, r, k: bool(r.testing) and r.faults is not None,
        "monotone=False needs exact sums of the losses of all devices",
        "leave faults out",
    ),
    _Refusal(
        "pac_confidence x groups",
        lambda g, r, k: g.pac_confidence is not None and g.groups is not None and k > 1,
        "pac_confidence and groups do not go together on several devices: which part of a group's new examples comes "
        "from which device is unknown, so how many scores of a group there are is itself a draw",
        "leave pac_confidence out, or calibrate each group on its own, for new examples that come from devices in "
        "proportion to their scores of this group",
    ),
    _Refusal(
        "pac_confidence x seq or regression",
        lambda g, r, k: g.pac_confidence is not None and r.group_rule in _STRATEGIES,
        "group rules seq and regression are proven on average over draws of the scores, not with pac_confidence: their "
        "ranks follow from thresholds of other groups, which have no binomial tail",
        "leave pac_confidence out, or use group_rule='atoms' or 'max'",
    ),
    _Refusal(
        "pac_confidence x weights",
        lambda g, r, k: g.pac_confidence is not None and g.weighting is not None,
        "pac_confidence (over the draw of the scores) is proven for scores that weigh alike, not with weights: the "
        "comparison with a binomial tail needs independent scores of equal weight",
        "leave pac_confidence out, or the weights",
    ),
    _Refusal(
        "pac_confidence x centres",
        lambda g, r, k: g.pac_confidence is not None and g.centres is not None,
        "pac_confidence is proven for scores that weigh alike, and near a centre they weigh by their distance",
        "leave pac_confidence out, or the centres",
    ),
    _Refusal(
        "pac_confidence x losses",
        lambda g, r, k: g.pac_confidence is not None and g.loss is not None and not r.testing,
        "pac_confidence is proven for coverage: the search for lambda adds up losses, which have no binomial tail",
        "leave pac_confidence out, or test a grid of lambdas with control(..., monotone=False)",
    ),
    _Refusal(
        "time_uniform x sizes or paper",
        lambda g, r, k: g.time_uniform and k > 1 and g.mixture.kind in ("sizes", "paper"),
        "time_uniform needs a mixture that is fixed in advance: with this mixture the shares follow the numbers of "
        "scores, so they change while scores arrive, and with them the quantile that the proof is about",
        "use mixture 'equal' or the share of each device, or leave time_uniform out for one calibration at a time "
        "chosen in advance",
    ),
    _Refusal(
        "time_uniform x groups",
        lambda g, r, k: g.time_uniform and (g.groups is not None or r.group_rule is not None),
        "time_uniform and groups do not go together: a device has a random number of rows of each group, so their "
        "numbers are not in proportion to fixed shares, and groups that appear later would change how the probability "
        "of failure is divided among them",
        "leave groups out, or calibrate each group on its own, with shares for new examples of this group",
    ),
    _Refusal(
        "time_uniform x asynchronous mode",
        lambda g, r, k: g.time_uniform and r.mesh_mode == "asynchronous",
        "time_uniform needs a mixture that is fixed in advance, and in asynchronous mode a result is about the devices "
        "that have reported so far",
        "use mode 'rounds', or leave time_uniform out for one calibration at a time chosen in advance",
    ),
    _Refusal(
        "time_uniform x private methods",
        lambda g, r, k: g.time_uniform and get_method(r.method).private,
        "with time_uniform the device with the fewest rows limits how many rows of the others count, and a private "
        "method must not reveal how many rows a device has",
        "use method 'e-dcp', or leave time_uniform out for one calibration at a time chosen in advance",
    ),
    _Refusal(
        "sides x losses",
        lambda g, r, k: g.sides is not None and g.loss is not None,
        "a loss has one lambda, and no interval with two sides",
        "use symmetric=True, or calibrate the two sides of scores",
    ),
    _Refusal(
        "seq or regression x weights",
        lambda g, r, k: r.group_rule in _STRATEGIES and g.weighting is not None,
        "group rules seq and regression are proven by an exchange of scores whose weight depends on their device "
        "alone, and a shift gives each score a weight",
        "use group_rule='atoms' or 'max', or leave the weights out",
    ),
    _Refusal(
        "seq or regression x centres",
        lambda g, r, k: r.group_rule in _STRATEGIES and g.centres is not None,
        "group rules seq and regression are proven by an exchange of scores whose weight depends on their device "
        "alone, and near a centre they weigh by their distance",
        "use group_rule='atoms' or 'max', or leave the centres out",
    ),
    _Refusal(
        "seq or regression x losses",
        lambda g, r, k: r.group_rule in _STRATEGIES and g.loss is not None,
        "group rules seq and regression are proven for coverage, not for losses",
        "use group_rule='atoms' or 'max'",
    ),
    _Refusal(
        "seq or regression x methods",
        lambda g, r, k: r.group_rule in _STRATEGIES and _accepted_weights(g, r) != "scores",
        "group rules seq and regression need exact counts of scores of any weight",
        "use method 'e-dcp', or group_rule='atoms' or 'max'",
    ),
    _Refusal(
        "losses x methods",
        lambda g, r, k: g.loss is not None and not r.testing and _accepted_weights(g, r) != "scores",
        "this method counts scores and cannot add up losses",
        "risk control needs method 'e-dcp'",
    ),
    _Refusal(
        "sides x epsilon",
        lambda g, r, k: g.sides is not None and _has_epsilon(r),
        "with epsilon every example is counted once, and both sides of an interval would count it twice, which costs "
        "twice the epsilon",
        "calibrate one score, or each side by itself with half of epsilon",
    ),
    _Refusal(
        "max x epsilon",
        lambda g, r, k: r.group_rule == "max" and _has_epsilon(r),
        "with epsilon every example is counted once, and group rule max counts it in each of its groups, which costs "
        "as many times the epsilon",
        "use group_rule='atoms', which counts every example once",
    ),
    _Refusal(
        "ghost x groups",
        lambda g, r, k: g.groups is not None and g.rank_rule == "ghost" and g.mixture.kind != "paper" and k > 1,
        "rank_rule='ghost' is proven for groups with mixture 'paper' only: which part of a group's new examples comes "
        "from which device is unknown",
        "use mixture='paper', or rank_rule='swap'",
    ),
    _Refusal(
        "ghost x weights, centres, pac_confidence or overlapping groups",
        lambda g, r, k: g.rank_rule == "ghost" and _has_unequal_scores(g, r),
        "rank_rule='ghost' counts scores that weigh alike, one imagined score per device, on average over draws of the "
        "scores",
        "with weights, or with pac_confidence, use rank_rule='auto'",
    ),
    _Refusal(
        "adapt x seq or regression",
        lambda g, r, k: g.adapt is not None and r.group_rule in _STRATEGIES,
        "group rules seq and regression are proven for scores that do not depend on other calibration examples",
        "use group_rule='atoms' or 'max'",
    ),
    _Refusal(
        "adapt x weights, centres or sides",
        lambda g, r, k: _adapts_with(g, g.weighting, g.centres, g.sides),
        "adapted scores are proven for one score per row, and for rows of a device that all have the same weight",
        "leave adapt out, or the weights, centres or sides",
    ),
    _Refusal(
        "adapt x pac_confidence",
        lambda g, r, k: _adapts_with(g, g.pac_confidence),
        "pac_confidence is proven for independent scores, and adapted scores of one device depend on each other",
        "leave pac_confidence out, or adapt",
    ),
    _Refusal(
        "adapt x losses",
        lambda g, r, k: _adapts_with(g, g.loss),
        "adapted scores are proven for coverage, not for losses",
        "leave adapt out",
    ),
    _Refusal(
        "adapt x ghost",
        lambda g, r, k: g.adapt is not None and g.rank_rule == "ghost",
        "adapted scores have their own required rank, without imagined scores",
        "use rank_rule='auto'",
    ),
    _Refusal(
        "adapt x epsilon",
        lambda g, r, k: g.adapt is not None and _has_epsilon(r),
        "one record changes up to as many adapted scores as its device has rows, so noise for one score does not "
        "hide it",
        "leave epsilon out, or adapt",
    ),
    _Refusal(
        "adapt x methods",
        lambda g, r, k: g.adapt is not None and not get_method(r.method).scope.windows,
        "a device needs the pooled scores around the threshold with exact counts, and this method does not find them",
        "use method 'e-dcp', or 'p-dcp' without epsilon",
    ),
    _Refusal(
        "adapt with a full window x p-dcp",
        lambda g, r, k: g.adapt is not None and get_method(r.method).private and g.adapt.has_full_window,
        "a full window is as wide as the number of rows of the largest device, which p-dcp hides",
        "give a number, such as adapt.Prior(window=16); with 8 more than twice the largest possible number of rows of "
        "a device a window decides as much as a full one",
    ),
    _Refusal(
        "adapt x faults",
        lambda g, r, k: g.adapt is not None and r.faults is not None,
        "adapted scores need the exact counts of all devices",
        "leave faults out",
    ),
    _Refusal(
        "adapt x asynchronous mode",
        lambda g, r, k: g.adapt is not None and r.mesh_mode == "asynchronous",
        "adapted scores need exact counts of all devices, and in asynchronous mode a result may be about the devices "
        "that have reported so far",
        "use mode 'rounds', or leave adapt out",
    ),
    _Refusal(
        "adapt x online",
        lambda g, r, k: g.adapt is not None and r.online,
        "online learning adjusts one threshold, and with adapted scores there is no common threshold",
        "leave [online] out, or adapt",
    ),
    _Refusal(
        "unknown mixtures x methods",
        lambda g, r, k: _has_unknown_mixture(g) and not get_method(r.method).scope.device_ranks,
        "a guarantee for mixtures that are not known needs ranks among the scores of each device, and this method "
        "counts the scores of all devices together",
        "use method 'e-dcp', or a mixture by name or by shares without mixture_bound",
    ),
    _Refusal(
        "unknown mixtures x rank_rule",
        lambda g, r, k: _has_unknown_mixture(g) and g.rank_rule != AUTO,
        "with mixture 'own' or 'any' each device has the rank of ordinary split conformal prediction, and with "
        "mixture_bound the swap rank of each mixture is the only one that is proven",
        "leave rank_rule out",
    ),
    _Refusal(
        "unknown mixtures x pac_confidence",
        lambda g, r, k: _has_unknown_mixture(g) and g.pac_confidence is not None,
        "pac_confidence (over the draw of the scores) is proven for the pooled scores of one mixture, and the "
        "guarantee for each device, or for many mixtures, is an average over draws of the scores",
        "leave pac_confidence out, or calibrate each device on its own",
    ),
    _Refusal(
        "unknown mixtures x weights, centres or losses",
        lambda g, r, k: _has_unknown_mixture(g) and _any_given(g.weighting, g.centres, g.loss),
        "a guarantee for mixtures that are not known is proven for scores of a device that all have the same weight, "
        "and with a shift, a centre or a loss they do not",
        "use a mixture by name or by shares, or calibrate each device on its own as a network of one device",
    ),
    _Refusal(
        "unknown mixtures x seq or regression",
        lambda g, r, k: _has_unknown_mixture(g) and r.group_rule in _STRATEGIES,
        "group rules seq and regression are proven for one mixture of devices",
        "use group_rule='atoms' or 'max'",
    ),
    _Refusal(
        "unknown mixtures x asynchronous mode or online",
        lambda g, r, k: _has_unknown_mixture(g) and (r.mesh_mode == "asynchronous" or r.online),
        "in asynchronous mode a result may be about the devices that have reported so far, and online learning moves "
        "one threshold for all: a guarantee for mixtures that are not known is about each device",
        "use mode 'rounds' without [online], or a mixture by name or by shares without mixture_bound",
    ),
    _Refusal(
        "mixture_bound x own or any",
        lambda g, r, k: g.mixture.bound is not None and g.mixture.kind in DEVICE_MIXTURES,
        "mixture_bound bounds the shares of devices relative to a mixture, and mixture 'own' or 'any' has no shares: "
        "each device is covered by itself, and so is every mixture of devices",
        "leave mixture_bound out, or name a mixture such as 'sizes'",
    ),
    _Refusal(
        "adapt x any or mixture_bound",
        lambda g, r, k: g.adapt is not None and _has_unknown_mixture(g) and g.mixture.kind != OWN,
        "a guarantee for many mixtures is proven for one threshold that all devices share, and with adapted scores "
        "there is none",
        "use mixture='own', which covers each device by itself and so every mixture of them",
    ),
    _Refusal(
        "weights x methods",
        lambda g, r, k: g.weighting is not None and _accepted_weights(g, r) != "scores",
        "this method counts every score of a device alike, and a shift gives each score a weight",
        "use method 'e-dcp'",
    ),
    _Refusal(
        "centres x methods",
        lambda g, r, k: g.centres is not None and _accepted_weights(g, r) != "scores",
        "this method counts every score of a device alike, and near a centre they weigh by their distance",
        "use method 'e-dcp'",
    ),
)


def refuse_unproven(guarantee: Guarantee, run: MethodRun, devices: int) -> None:
    """Refuse a combination that has no proof, with the reason and what to do."""
    for refusal in REFUSALS:
        if refusal.applies(guarantee, run, devices):
            raise ValueError(f"{refusal.reason} (method {run.method!r}); {refusal.remedy}")


def solve(
    table: Table,
    guarantee: Guarantee,
    network: Network,
    run: MethodRun,
    *,
    classes: tuple[Any, ...] | None = None,
    bound: float | None = None,
) -> Result:
    """Solve all problems of a guarantee in one run, and return them as one result."""
    from conformesh.engines import engine_on
    from conformesh.engines.observers import rounds_on_a_bar

    started, options = time.perf_counter(), run.chosen_options  # an unknown option is refused before anything else
    if run.faults is not None:
        refuse_faults(run.method, options, run.faults)
    refuse_unproven(guarantee, run, network.devices)  # before an engine starts processes or a round is sent
    asked, kept = _requirements(guarantee, run.method, network)
    with (
        rounds_on_a_bar(f"{run.method} on {network.name}", run.observer, run.progress) as observer,
        engine_on(network, run.engine, observer) as engine,
    ):
        local = table.ordered(network, engine.rows, "scores" if table.losses is None else "losses")
        rows = LocalRows(local, network.local_ids(engine.rows))
        if run.score is not None:
            local.check_range(run.score, rows.names)
        agreed, facts = agree_on_facts(engine, rows, bound, run.group_atoms), dict[str, Any]()
        if guarantee.time_uniform and not agreed.atoms:  # groups, known only now, are refused below
            rows, agreed, facts = first_rows(rows, agreed, guarantee.mixture, network.ids, engine.rows)
        if guarantee.adapt is not None:
            guarantee, outcome, cost = _run_adapted(engine, rows, guarantee, agreed, run, kept)
            problems = [*outcome.problems]
        else:
            guarantee, columns = _columns(rows, guarantee, agreed, run, asked, kept)
            outcome, cost = _run(engine, columns, rows, agreed, run)
            outcome, problems = replace(outcome, facts={**outcome.facts, **facts}), columns.problems
    refuse_nan_thresholds(outcome.thresholds, run.method)
    if guarantee.weighting is not None and guarantee.weighting.assumption:
        outcome = _with_assumption(outcome, guarantee.weighting.assumption)
    blank = Result(
        guarantee=guarantee,
        answers=(),
        cost=cost,
        method=run.method,
        options=_named_options(run.method, options),
        network=network.name,
        device_ids=network.ids,
        score=run.score,
        classes=classes,
        adapted=outcome.adapted,
        rows={} if guarantee.adapt is None else _rows_by_device(rows),
        seconds=time.perf_counter() - started,
    )
    return _with_warnings(add_answers_to_result(blank, outcome, problems), run.strict)


def solve_on_device(
    network: Network,
    row: int,
    table: Table,
    guarantee: Guarantee,
    run: MethodRun,
    *,
    progress: SearchProgress | None = None,
    secrets: Secrets | None = None,
) -> Protocol[Answers]:
    """Solve all problems of a guarantee on one device, which knows nothing of the others but the map.

    `table` has the rows of this device. Groups and the bound of losses are those that the guarantee names, the same on
    all devices. The outcome says which problem each of its thresholds answers, and what the method cost; that leaves
    out the exchange of numbers of rows. A private method is not told these numbers; `secrets` are what it keeps to
    itself. `progress` is where others can see how far the search is.
    """
    name, _ = network.ids[row], run.chosen_options  # an unknown option is refused before anything is sent
    if (shares := guarantee.mixture.shares) is not None:  # devices that were lost have none any more
        left = {device: share for device, share in shares.items() if device in network.ids}
        guarantee = structs.replace(guarantee, mixture=structs.replace(guarantee.mixture, shares=left))
    refuse_unproven(guarantee, run, network.devices)
    asked, kept = _requirements(guarantee, run.method, network)
    rows, names = LocalRows(table, (name,)), configured_part_names(guarantee, table, name)
    counts = rows.counts(names.atoms)
    private = get_method(run.method).private
    local_rows, nobody = np.array([row]), np.zeros((network.devices, counts.shape[1]), dtype=np.int64)
    blank = Block(network, local_rows, nobody, progress=progress or SearchProgress(), secrets=secrets)
    # Numbers of rows are exchanged first because device weights depend on all of them; a private method must not know.
    known = nobody if private else (yield from exchange_counts(blank, counts))
    agreed, facts = PublicFacts(names, known), dict[str, Any]()
    if guarantee.time_uniform:
        rows, agreed, facts = first_rows(rows, agreed, guarantee.mixture, network.ids, local_rows)
    if guarantee.groups is not None and guarantee.groups.rule:
        run = replace(run, group_rule=guarantee.groups.rule, group_order=guarantee.groups.names)
    if guarantee.adapt is not None:
        return (yield from _adapted_on_device(blank, rows, guarantee, agreed, run, kept))
    guarantee, columns = _columns(rows, guarantee, agreed, run, asked, kept)
    if columns.sizes is None:
        columns = replace(columns, sizes=((yield from exchange_counts(blank, columns.scores[0].sizes)),))
    block = _block_of(blank, columns, run)
    hidden = draw_hidden_scores(rows, local_rows, agreed, columns, run.seed)
    method = _protocol(block, columns, run, hidden, sealed=False)  # frames are not signed
    outcome = yield from run_without_server(block, method)
    sizes = block.sizes if outcome.sizes is None else outcome.sizes
    outcome, problems = replace(outcome, sizes=sizes, facts={**outcome.facts, **facts}), columns.problems
    if hidden:  # a device draws by itself: the draws of others need no agreement
        outcome = replace(outcome, facts={**outcome.facts, "group_seed": run.seed})
    if private:  # which has counted itself
        whole = sizes.sum(axis=0).tolist()
        problems = [problem._replace(examples=whole[problem.column]) for problem in problems]
    if guarantee.weighting is not None and guarantee.weighting.assumption:
        outcome = _with_assumption(outcome, guarantee.weighting.assumption)
    return replace(outcome, problems=tuple(problems))


def _requirements(guarantee: Guarantee, method: str, network: Network) -> tuple[Requirement, Requirement]:
    """Return the requirement that was asked for and the one that the method keeps."""
    asked = Requirement(
        guarantee.mixture.kind,
        guarantee.rank_rule,
        guarantee.mixture.shares,
        pac_confidence=guarantee.pac_confidence,
        mixture_bound=guarantee.mixture.bound,
        time_uniform=guarantee.time_uniform,
    )
    kept = requirement_of(method, asked)
    check_shares(kept, network.ids)
    return asked, kept


def _columns(
    rows: LocalRows, guarantee: Guarantee, agreed: PublicFacts, run: MethodRun, asked: Requirement, kept: Requirement
) -> tuple[Guarantee, ProblemColumns]:
    """Return the guarantee with the groups that all agreed on, and the columns that answer it."""
    guarantee, grouping, run = _with_agreed_parts(rows, guarantee, agreed, run)
    if has_parts(guarantee) and _weighs_parts(guarantee, asked, kept, grouping):
        kept = replace(kept, is_weighted=True)
    return guarantee, problem_columns(rows, guarantee, agreed, kept, grouping)


def _with_agreed_parts(
    rows: LocalRows, guarantee: Guarantee, agreed: PublicFacts, run: MethodRun
) -> tuple[Guarantee, Grouping | None, MethodRun]:
    """Return the guarantee with the groups that all agreed on, how these overlap, and the run with their rule."""
    grouping = None
    if rows.table.groups is not None and (run.group_rule is not None or agreed.names.overlapping):
        from conformesh.protocols.groups import Grouping

        grouping = Grouping.of(agreed.atoms, run.group_rule or AUTO, run.group_order, run.group_atoms)
        run = replace(run, group_rule=grouping.rule)
    if rows.table.groups is not None or guarantee.loss is not None:
        guarantee = add_agreed_parts(guarantee, guarantee_groups(rows.table, grouping, agreed), agreed)
    if run.group_rule is not None or guarantee.groups is not None:  # what `solve` could not know before
        refuse_unproven(guarantee, run, len(agreed.rows))
    return guarantee, grouping, run


def _run_adapted(
    engine: Engine, rows: LocalRows, guarantee: Guarantee, agreed: PublicFacts, run: MethodRun, kept: Requirement
) -> tuple[Guarantee, Answers, Cost]:
    """Run a calibration with adapted scores; return the guarantee with agreed groups, what was found, and its cost."""
    from conformesh.engines.observers import announce_run
    from conformesh.pipeline.adapted import adapted_answers, draw_hidden_rows  # which nodes without adapt do not need

    guarantee, asked = _adapted_run(rows, guarantee, agreed, run, kept)
    hidden = draw_hidden_rows(run.seed, engine.rows, rows.table.sizes)  # before any score is computed
    blank = Block(engine.network, engine.rows, agreed.rows)
    announce_run(engine.observer, blank, run.method, run.faults)
    part, cost = engine.run(adapted_answers(blank, asked, run), 1, run.faults)
    outcome = Answers.concatenate(engine.blocks, engine.share(part))
    shared = engine.share(_hidden_and_digests(rows, hidden))
    places, digests = ({name: one for part in shared for name, one in part[i].items()} for i in range(2))
    ids = engine.network.ids
    facts = structs.replace(
        outcome.adapted, hidden={name: places[name] for name in ids}, digests={name: digests[name] for name in ids}
    )
    return guarantee, replace(outcome, adapted=facts), cost


def _adapted_on_device(
    blank: Block, rows: LocalRows, guarantee: Guarantee, agreed: PublicFacts, run: MethodRun, kept: Requirement
) -> Protocol[Answers]:
    """Solve with adapted scores on one device; which row others hide, and the digests of theirs, stay with them."""
    from conformesh.pipeline.adapted import adapted_answers, draw_hidden_rows

    _, asked = _adapted_run(rows, guarantee, agreed, run, kept)
    hidden = draw_hidden_rows(run.seed, blank.rows, rows.table.sizes)  # before any score is computed
    block = replace(blank, sizes=agreed.rows)
    outcome = yield from run_without_server(block, adapted_answers(block, asked, run, sealed=False))
    places, digests = _hidden_and_digests(rows, hidden)
    facts = structs.replace(outcome.adapted, hidden=places, digests=digests)
    return replace(outcome, adapted=facts, device_rows=_rows_by_device(rows))


def _adapted_run(
    rows: LocalRows, guarantee: Guarantee, agreed: PublicFacts, run: MethodRun, kept: Requirement
) -> tuple[Guarantee, AdaptedRun]:
    """Return the guarantee with the groups that all agreed on, and what its run needs."""
    from conformesh.pipeline.adapted import AdaptedRun

    guarantee, grouping, run = _with_agreed_parts(rows, guarantee, agreed, run)
    requirement = replace(kept, hides_example=kept.mixture != OWN)
    return guarantee, AdaptedRun(rows, guarantee, agreed, grouping, requirement)


def _hidden_and_digests(rows: LocalRows, hidden: Sequence[int]) -> tuple[dict[str, int], dict[str, str]]:
    """Return the hidden row and the digest of each device here, by name."""
    own = _rows_by_device(rows)
    return dict(zip(own, hidden, strict=True)), {name: each.digest for name, each in own.items()}


def _rows_by_device(rows: LocalRows) -> dict[str, Any]:
    from conformesh.pipeline.adapted import device_rows

    return {name: device_rows(rows.table, k) for k, name in enumerate(rows.names)}


def _weighs_parts(guarantee: Guarantee, asked: Requirement, kept: Requirement, grouping: Grouping | None) -> bool:
    """Return whether columns hold a part of what devices have, so that device weights come from all their examples.

    A method that keeps the guarantee of its paper, and the ghost rule, treat each group as if it were alone. So does
    pac_confidence, which is allowed with groups on one device only, and a device that is covered by itself.
    """
    if guarantee.centres is not None or guarantee.weighting is not None:
        return True
    if kept != asked or guarantee.pac_confidence is not None or kept.mixture in DEVICE_MIXTURES:
        return False
    return grouping is not None or asked.rank_rule != "ghost"


def _run(
    engine: Engine, columns: ProblemColumns, rows: LocalRows, agreed: PublicFacts, run: MethodRun
) -> tuple[Answers, Cost]:
    """Run the method on all columns; return what all devices got, and what the run cost."""
    from conformesh.engines.observers import announce_run

    if columns.sizes is None:  # rows of weight 0 were left out, which only their device knows
        columns = replace(columns, sizes=(gather_counts(engine, columns.scores[0].sizes),))
    block = _block_of(Block(engine.network, engine.rows, agreed.rows), columns, run)
    announce_run(engine.observer, block, run.method, run.faults)
    hidden, facts = [], {}
    if columns.hides_scores:
        facts = {"group_seed": engine.share(run.seed)[0]}  # every rank has drawn its own: the first one's counts
        hidden = draw_hidden_scores(rows, engine.rows, agreed, columns, facts["group_seed"])
    part, cost = engine.run(_protocol(block, columns, run, hidden), 1, run.faults)
    outcome = Answers.concatenate(engine.blocks, engine.share(part))
    return (replace(outcome, facts={**outcome.facts, **facts}) if facts else outcome), cost


def _block_of(blank: Block, columns: ProblemColumns, run: MethodRun) -> Block:
    """Return what the devices here know before the first message of the method."""
    # E-DCP spends nothing on levels that nobody asked for; other methods compute a threshold for every cell.
    searched = columns.asked if get_method(run.method).weights(run.chosen_options) == "scores" else None
    assert columns.sizes is not None
    return replace(
        blank,
        sizes=columns.sizes[0],
        requirement=columns.requirement,
        items=columns.examples,
        alphas=columns.levels,
        asked=searched,
    )


def _protocol(
    block: Block, columns: ProblemColumns, run: MethodRun, hidden: Sequence[NDArray[np.float64]], *, sealed: bool = True
) -> Protocol[Answers]:
    """Return what the devices here say to each other: the method's protocol, or that of a rule of groups."""
    if columns.grouping is None:
        return run_method(run.method, block, columns.scores[0], run.chosen_options, run.faults, sealed=sealed)
    return _by_group_rule(block, columns, run.chosen_options, hidden)


def _by_group_rule(
    block: Block, columns: ProblemColumns, options: Any, hidden: Sequence[NDArray[np.float64]]
) -> Protocol[Answers]:
    """Run a rule of overlapping groups, for one side after the other."""
    from conformesh.protocols.groups import group_thresholds

    assert columns.grouping is not None
    assert columns.sizes is not None
    outcomes, levels = [], []
    for side, (scores, sizes) in enumerate(zip(columns.scores, columns.sizes, strict=True)):
        own = [*range(len(columns.levels))]
        if columns.asked is not None:
            own = np.flatnonzero(columns.asked[side]).tolist()
        one_side = replace(
            block, sizes=sizes, items=None, asked=None, alphas=tuple(columns.levels[level] for level in own)
        )
        grouping = replace(columns.grouping, hidden=hidden[side] if hidden else None)
        outcomes.append((yield from group_thresholds(one_side, scores, options, grouping)))
        levels.append(own)
    if len(outcomes) == 1:
        return outcomes[0]
    return merge_sides(outcomes, len(columns.grouping.parts), levels, len(columns.levels))


def _with_assumption(outcome: Answers, words: str) -> Answers:
    """Return an outcome whose certificates say what they assume."""
    certificates = [
        [structs.replace(certificate, kind="assumed", assumption=words) for certificate in row]
        for row in outcome.certificates
    ]
    return replace(outcome, certificates=certificates)


def _with_warnings(result: Result, strict: bool) -> Result:
    """Warn of what a user should know; with `strict` too few scores are an error."""
    if words := result.shortage:
        if strict:
            raise TooFewScores(words)
        emit_note(words, TooFewScores)
    for text in result.notes:
        if text not in words:  # said already
            emit_note(text)
    return result


@dataclass(frozen=True, eq=False)
class CalibrationBatch:
    """Many calibrations from one run: every draw and every alpha, with the cost of one of them.

    `sizes` says how many scores every device held in each draw, (devices, draws), `items` how many examples.
    """

    outcome: Answers
    cost: Cost
    options: dict[str, Any]
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 1), dtype=np.int64))
    items: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 1), dtype=np.int64))

    def __repr__(self) -> str:
        devices, trials, levels = self.outcome.thresholds.shape
        kinds = {certificate.kind for row in self.outcome.certificates for certificate in row}
        return (
            f"Batch({pluralize(trials, 'trial')} at {pluralize(levels, 'level')} on {pluralize(devices, 'device')}, "
            f"{' or '.join(sorted(kinds))}; {self.cost} for one)"
        )

    def _repr_html_(self) -> str:
        from conformesh.plots import html

        largest = self.outcome.thresholds.max(axis=0)
        levels = [f"level {a}" for a in range(largest.shape[1])]
        rows = [[str(t), *(f"{value:.6g}" for value in row)] for t, row in enumerate(largest.tolist())]
        table = html.html_table(["trial", *levels], rows, right=levels)
        return html.html_card(repr(self)[6:-1], parts=[table])


def solve_draws(
    samples: WeightedScores,
    network: Network,
    alphas: Sequence[Alpha],
    method: str,
    *,
    requirement: Requirement = DEFAULT_REQUIREMENT,
    items: NDArray[np.int64] | None = None,
    observer: Observer | None = None,
    joint: bool = False,
    engine: str | Engine = "simulator",
    faults: Faults | Mapping[str, Any] | None = None,
    **options: Any,
) -> CalibrationBatch:
    """Calibrate every draw (column) of `samples` at every alpha in one run of an engine.

    Returns thresholds of shape (devices, draws, alphas), ``certificates[draw][alpha]`` and the cost of a single run,
    as if each draw had been run alone; a search with stages counts those of the slowest. With `joint` the cost is that
    of the whole: the draws are groups of one network that are calibrated together. `samples` are those of all devices,
    by row, or only those of the devices that the engine hosts here. `items` says how many calibration examples these
    devices hold, (devices, draws), where draws hold a part of them or each example has several entries. `faults` as
    in `calibrate`.
    """
    if not isinstance(samples, WeightedScores):
        raise TypeError(
            f"samples must be WeightedScores, such as WeightedScores.of(arrays), got {type(samples).__name__}; "
            "calibrate takes arrays, dicts and frames"
        )
    if not isinstance(network, Network):
        raise TypeError(
            f"network must be a Network, got {type(network).__name__} {str(network)[:40]!r}; calibrate takes names of "
            "topologies and NetworkX graphs too"
        )
    # A risk (losses) may well be above 1/2 of the largest loss.
    levels = tuple(exact_alpha(alpha) for alpha in as_level_list(alphas, "alphas"))
    if not levels:
        raise ValueError("calibration needs at least one alpha, got none")
    entry, chosen = get_method(method), make_options(method, options)
    if (wrong := make_faults(faults)) is not None:
        refuse_faults(method, chosen, wrong)
    kept = requirement_of(method, requirement)
    check_shares(kept, network.ids)
    from conformesh.engines import engine_on
    from conformesh.engines.observers import announce_run

    with engine_on(network, engine, observer) as host:
        mine = local_scores(host, samples)
        sizes = merge_rows(host.blocks, host.share(mine.sizes))
        held = None if items is None else merge_rows(host.blocks, host.share(local_rows_of(host, items)))
        block = Block(network, host.rows, sizes, kept, held, levels)
        announce_run(host.observer, block, method, wrong)
        runs = 1 if joint else samples.trials * (len(levels) if entry.execution.per_alpha else 1)
        part, cost = host.run(run_method(method, block, mine, chosen, wrong), runs, wrong)
        outcome = Answers.concatenate(host.blocks, host.share(part))
    refuse_nan_thresholds(outcome.thresholds, method)
    return CalibrationBatch(outcome, cost, _named_options(method, chosen), sizes, sizes if held is None else held)


def _named_options(method: str, chosen: Any) -> dict[str, Any]:
    """Return a method's options as they may stand in a result."""
    return {name: _json_option(getattr(chosen, name)) for name in get_method(method).option_names()}


def _json_option(option: Any) -> Any:
    """Return an option as it may stand in a JSON file: one's own matrix or weights by name only."""
    if option is None or isinstance(option, str | bool | int | float | tuple):
        return option
    return getattr(option, "name", "matrix")


def local_scores(host: Engine, samples: WeightedScores) -> WeightedScores:
    """Return the scores of the devices hosted here, in their order, of all in the order of rows, or as they are."""
    K = host.network.devices
    if samples.devices == K:
        rows = host.rows
        return samples if np.array_equal(rows, np.arange(K)) else samples.take(rows)
    if samples.devices != len(host.rows):
        raise ValueError(
            f"the network {host.network.name!r} has {K} devices but scores came for {samples.devices}; pass one array "
            "per device (empty where a device has none)"
        )
    return samples


def local_rows_of(host: Engine, table: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of the devices hosted here, of all or as they are."""
    return table[host.rows] if len(table) == host.network.devices else table


def count_at_or_below(samples: WeightedScores, thresholds: ArrayLike, trial: int = 0) -> NDArray[np.int64]:
    """Count all scores at or below each threshold: the truth a certificate speaks of, for checks and reports."""
    return np.searchsorted(np.sort(samples.pooled(trial)), np.asarray(thresholds), side="right")
