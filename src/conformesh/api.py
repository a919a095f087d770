"""The entry points: `calibrate` for coverage, `control` for a risk, `update` for either again.

Each reads a table, states a guarantee and runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from msgspec import structs
from numpy.typing import ArrayLike

from conformesh.common.arrays import as_array, frame_columns
from conformesh.common.names import list_names, natural_order, unknown_name
from conformesh.common.notes import emit_note
from conformesh.common.random_streams import Rng, recorded_seed
from conformesh.engines import Engine, fail_together
from conformesh.engines.observers import Observer
from conformesh.files.input_forms import PREDICTION, ColumnRoles, as_frame
from conformesh.files.memberships import Atom
from conformesh.graph.network import Network
from conformesh.guarantee import Groups, Guarantee, LossBound, Mixture, Sides
from conformesh.kernels.ranks import (
    AUTO,
    CHOSEN_MIXTURES,
    Alpha,
    Requirement,
    check_alpha,
    check_mixture_bound,
    check_pac_confidence,
    exact_alpha,
    exact_number,
    make_requirement,
)
from conformesh.methods import METHODS, check_keywords
from conformesh.pipeline.networks import as_network, read_network
from conformesh.pipeline.shift import make_weighting
from conformesh.pipeline.solver import MethodRun, refuse_unproven, solve
from conformesh.protocols.faults import Faults, make_faults
from conformesh.results.result import Result
from conformesh.scores import Function, Score, as_score, two_sided
from conformesh.scores.centres import Centres
from conformesh.scores.losses import Loss, as_loss
from conformesh.table import Table, argument_or_own

if TYPE_CHECKING:
    from conformesh.results.lambda_tests import LambdaTests
    from conformesh.scores.adapt import Adaptation


@fail_together
def calibrate(
    data: Iterable[ArrayLike] | Mapping[Any, ArrayLike] | Table | Any,
    network: Network | str | Any = None,
    alpha: Alpha | Sequence[Alpha] = 0.1,
    method: str = "e-dcp",
    *,
    columns: Mapping[str, str] | None = None,
    mixture: str | Mapping[Any, Any] = "sizes",
    mixture_bound: Alpha | None = None,
    rank_rule: str = AUTO,
    pac_confidence: Alpha | None = None,
    time_uniform: bool = False,
    groups: Any = None,
    group_rule: str | None = None,
    group_order: Sequence[str] | None = None,
    group_atoms: Iterable[Iterable[Any]] | Mapping[Any, int] | None = None,
    weight: Any = None,
    weight_bound: float | None = None,
    test_weights: Iterable[float] | None = None,
    class_weights: Mapping[Any, float] | ArrayLike | None = None,
    labels: Any = None,
    centres: Centres | None = None,
    inputs: Any = None,
    symmetric: bool = True,
    lower_share: Alpha | None = None,
    adapt: Adaptation | str | None = None,
    score: Score | str | Function | None = None,
    classes: Any = None,
    strict: bool = False,
    observer: Observer | None = None,
    progress: bool = False,
    engine: str | Engine = "simulator",
    faults: Faults | Mapping[str, Any] | None = None,
    rng: Rng | None = None,
    **options: Any,
) -> Result:
    """Agree on thresholds whose prediction sets cover the true label with probability at least 1 - alpha.

    Parameters
    ----------
    data
        One array of calibration scores per device, in the order of ``network.ids``; any of them may be empty. Safer is
        a dict by device name, or a long frame with the columns `device` and `score`. Or a table with one row per
        device, or a `Table`: a million devices are better kept in one flat array (`Table.from_flat`).
    network
        Which devices talk to each other: a `Network`, the name of a topology, pairs of devices, an adjacency matrix or
        a NetworkX graph. By default a torus, or a cycle where the number of devices has no two factors.
    alpha
        Tolerated miscoverage, strictly between 0 and 1, taken as the decimal written; or several levels in a list,
        which share one run.
    method
        A name of `METHODS`.
    columns
        The names of the columns of a frame by role, such as ``{"device": "hospital", "score": "s"}``; roles are
        device, score, label, group, weight, share, id and time.
    mixture
        Which devices new examples come from: in proportion to their scores (`sizes`), to their scores plus one
        (`paper`), from all alike (`equal`), or with the shares that a dict gives by device name, or a column of the
        frame. With `own` every single device is covered, with its own threshold. With `any` every single device, and
        so every mixture, is covered with one threshold, the largest of these. Both need at least 1 / alpha - 1 scores
        on each device, otherwise sets are full.
    mixture_bound
        With 2, coverage holds for every fixed mixture whose shares are at most twice those of `mixture`; with 1 for
        `mixture` only. A larger number gives a larger threshold. Each device then sends some of its scores to all
        others.
    rank_rule
        The rule for the required rank: `swap`, `ghost` (one imagined score per device, for the mixture `paper`), or
        `auto`, the proven one that requires less.
    pac_confidence
        By default coverage holds on average over draws of the calibration scores. With 0.95, coverage of at least
        1 - alpha holds with probability 0.95 over this draw (probably approximately correct, PAC), for all levels and
        sides together. It is not 1 - alpha, which MAPIE and crepes call confidence. It holds for one calibration at a
        time chosen in advance. If you recalibrate after each score from the 50th to the 2,000th, some of these
        thresholds covers too little in 29 % of runs instead of 5 %: use `time_uniform`.
    time_uniform
        Whether `pac_confidence` holds for all calibrations together, however often you calibrate while scores arrive
        and whenever you stop (anytime-valid, based on a confidence sequence). Needs the mixture `equal` or fixed
        shares. Each device contributes its first scores in the order of `data`; the device with the fewest scores for
        its share limits how many. Append new scores at the end; their order must not depend on their values.
    groups
        Coverage within each group (group-conditional, Mondrian): one array of group labels per device beside its
        scores, a dict by device name, or the name of a column. With the labels themselves as groups coverage is
        class-conditional. Groups may overlap: a list of labels for each score, a boolean mask (scores x groups), or
        the names of several columns. Coverage then holds within each group, and for everyone.
    group_rule
        What holds for a point that lies in several groups, a name of `GROUP_RULES`. `auto` is `atoms` where
        `group_atoms` expects enough scores of each, else `seq`. Groups that do not overlap need none.
    group_order
        The order of groups for `seq`, by default that of their names; everyone comes last. It must not depend on the
        calibration scores.
    group_atoms
        Combinations of groups that may occur, named beforehand: `regression` then has a threshold also for one that no
        calibration score has. Or a dict that says how many scores are expected of each, from which `auto` chooses.
    weight, weight_bound
        For new examples of another distribution (covariate shift): how much likelier an example is there than among
        the calibration examples, up to a common factor, and the most that this can be. One array of weights per device
        beside its scores, a dict by device name, a column of the frame, a function of `inputs`, or what
        `estimate_ratios` returns.
    test_weights
        Weights of new examples that get a threshold of their own, beside the bound, which serves all: the smaller its
        weight, the smaller the threshold. ``predict(outputs, weight=...)`` picks the smallest that is enough.
    class_weights, labels
        New examples whose classes are more or less frequent (label shift): how much likelier each class is among them
        than among the calibration examples, as a dict by class or a list of those of 0, 1, ...; and the true labels
        beside the scores. Each class has a threshold.
    centres, inputs
        Coverage near each of some public points (local coverage): what `choose_centres` or `Centres.at` returns, and
        the features of every score in the form of `data`, or names of columns.
    symmetric, lower_share
        ``symmetric=False`` has one threshold below and one above for intervals (asymmetric CQR [Romano2019], Theorem
        2): `data` then has two columns for each row, what ``score.sides(outputs, labels)`` returns, or a frame the
        columns `lower` and `upper`. Each side may miss half of alpha, or the lower one the part `lower_share` of it.
    adapt
        Scores that learn from a device's own rows, for devices that differ: `prior` (classification: which labels a
        device has), `scale` (regression: its bias and scale), `even`, or an object such as ``adapt.Prior(strength=10)``
        (`conformesh.adapt`). `data` then holds a pair (outputs, labels) for each device, or is a frame with the columns
        `device`, `label` and one for each class (regression: `prediction`, and `scale` where there is one); `labels`
        may be given apart, in the form of `data`, or names their column. Predictions need the device of a new row:
        ``result.on(device).predict(outputs)``.
    score
        The nonconformity score the numbers come from, its name, or a function of outputs and labels
        (`scores.score_from_function`), so that the result can build prediction sets by itself.
    classes
        The classes, names or numbers, in the order of the columns of outputs, or a frame of outputs whose columns they
        are. The result then takes labels as classes, and puts the columns of other frames into this order.
    strict
        Raise `TooFewScores` instead of warning when only +inf keeps the guarantee.
    observer
        Called after every round with (round, message, answer).
    progress
        Show a bar of the rounds, in a terminal or a notebook.
    engine
        What drives the devices: a name of `ENGINES` or an engine made for this network. With "mpi" every rank of the
        job calls `calibrate` and gets the whole result; `data` may then hold one array for each device of this rank
        only, in the order of ``engine.rows``.
    faults
        What goes wrong in the simulated network: a `Faults`, or a dict of its fields. Methods that do not support
        these faults raise an error.
    rng
        For adapted scores, where each device draws a row that it hides, and for the group rule `regression` with more
        than 50 combinations, where it draws one of its scores: by default fresh entropy, since coverage is also an
        average over this draw; a number repeats a run. The result records which rows are hidden, and the draw of the
        group rule as ``options["group_seed"]``.
    **options
        The method's own options, see `METHODS[method].options`.

    Returns
    -------
    Result
        A threshold for every part (group, side, centre, weight) and level, each with its certificate; one cost.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, calibrate
    >>> rng = np.random.default_rng(0)
    >>> result = calibrate([rng.random(50) for _ in range(20)], Network.torus(5, 4), alpha=0.1)
    >>> result.certificate.kind, result.certificate.required_rank
    ('counted', 901)
    >>> levels = calibrate([rng.random(50) for _ in range(8)], "cycle", alpha=[0.1, 0.2])
    >>> [levels.at(alpha=one).certificate.required_rank for one in levels.alphas]
    [361, 321]
    """
    check_keywords("calibrate", method, options)
    kind, roles = None if score is None else as_score(score), ColumnRoles(columns)
    adaptation = _adaptation(adapt, data, roles)
    if adaptation is not None and kind is not None:
        raise ValueError(
            f"adapt={adaptation.name!r} and score={kind.name!r} do not go together, because adapted scores replace the "
            "score; leave one of them out"
        )
    weight = argument_or_own(roles, "weight", weight, data)
    if class_weights is not None:
        labels = argument_or_own(roles, "label", labels, data)
    if centres is not None or inputs is not None:
        inputs = _inputs(inputs, centres, weight, data)
    shift, source = make_weighting(
        weight, weight_bound, inputs, test_weights, class_weights, labels if adaptation is None else None
    )
    guarantee = Guarantee(
        alphas=_levels(alpha, "alpha", check_alpha),
        **_mixture(mixture, rank_rule, pac_confidence, time_uniform, mixture_bound),
        sides=None if symmetric and lower_share is None else _sides(symmetric, lower_share, kind),
        centres=centres,
        weighting=shift,
        adapt=adaptation,
    )
    if time_uniform and isinstance(data, Table) and data.in_place:
        raise ValueError(
            "time_uniform counts the first scores of each device, and Table.from_flat(..., copy=False) lets runs "
            "reorder them; leave copy=False out"
        )
    network, ids = read_network(network, engine)
    if adaptation is None:
        table = Table.of(
            data,
            columns=roles,
            sides=not symmetric,
            groups=groups,
            weight=source,
            inputs=None if centres is None else inputs,
            labels=labels if class_weights is not None else None,
            mixture=mixture,
            ids=ids,
            once=True,
        )
    else:
        refuse_unproven(guarantee, MethodRun(method, options, faults=make_faults(faults), group_rule=group_rule), 2)
        table = Table.of_outputs(
            data,
            adaptation,
            columns=roles,
            classes=None if classes is None else _classes(classes),
            labels=labels,
            ids=ids,
            groups=groups,
            mixture=mixture,
        )
    run = MethodRun(method, options, kind, engine, make_faults(faults), observer, progress, strict)
    if table.groups is not None or group_rule or group_order or group_atoms:
        run = _with_grouping(run, table, group_rule, group_order, group_atoms, rng)
    elif adaptation is not None:
        run = replace(run, seed=recorded_seed(rng))
    elif rng is not None:
        recorded_seed(rng)  # refuses what is neither a generator nor a whole number, also where nothing is drawn
    if table.shares is not None or guarantee.mixture.kind not in CHOSEN_MIXTURES:
        guarantee = _with_shares(guarantee, table)
    names = table.classes if classes is None else _classes(classes)
    return solve(table, guarantee, as_network(network, table), run, classes=names)


@overload
def control(
    losses: Any,
    network: Any = None,
    risk: Any = 0.1,
    method: str = "e-dcp",
    *,
    monotone: Literal[True] = True,
    **given: Any,
) -> Result: ...


@overload
def control(
    losses: Any,
    network: Any = None,
    risk: Any = 0.1,
    method: str = "e-dcp",
    *,
    monotone: Literal[False],
    **given: Any,
) -> LambdaTests: ...


@fail_together
def control(
    losses: Iterable[Any] | Mapping[Any, Any] | Any,
    network: Network | str | Any = None,
    risk: Alpha | Sequence[Alpha] | Mapping[str, Alpha] = 0.1,
    method: str = "e-dcp",
    *,
    monotone: bool = True,
    pac_confidence: Alpha | None = None,
    grid: Any = None,
    testing: str | None = None,
    objective: ArrayLike | None = None,
    loss: Loss | str | None = None,
    bound: float | Mapping[str, float] | None = None,
    columns: Mapping[str, str] | None = None,
    mixture: str | Mapping[Any, Any] = "sizes",
    rank_rule: str = AUTO,
    groups: Any = None,
    group_rule: str | None = None,
    weight: Any = None,
    weight_bound: float | None = None,
    test_weights: Iterable[float] | None = None,
    centres: Centres | None = None,
    inputs: Any = None,
    strict: bool = False,
    observer: Observer | None = None,
    progress: bool = False,
    engine: str | Engine = "simulator",
    faults: Faults | Mapping[str, Any] | None = None,
    **options: Any,
) -> Result | LambdaTests:
    r"""Agree on a lambda whose sets lose on average at most `risk` (conformal risk control, Learn-then-Test).

    A loss :math:`L_i(\lambda)` between 0 and B never rises as sets grow. The devices look for the smallest lambda with

    .. math:: \sum_k u_k \sum_{i \in k} L_i(\lambda) \le \rho - B \max_k u_k, \qquad u_k = \pi_k / n_k,

    which keeps the mean loss of a new example at most at the risk :math:`\rho` (docs/guarantees.md; with one device
    ordinary conformal risk control, [Angelopoulos2024]).

    Losses that are not monotone in lambda, several risks at once and several parameters need ``monotone=False``
    (Learn-then-Test, [Angelopoulos2025]). Every lambda of a grid is tested, and with probability `pac_confidence` over
    the calibration data all certified lambdas keep the risk. This needs independent items.

    Parameters
    ----------
    losses
        What every device holds, in the order of ``network.ids`` or as a dict by device name: `StepLosses`, which a loss
        makes from outputs and labels, or (breakpoints, values) for each item. Or a frame with the columns `device`,
        `item`, `lambda` and `loss`, a row for each item and lambda. With ``monotone=False`` also an array for each
        device with a row for each item and a column for each lambda of the grid.
    risk
        The largest mean loss of new examples, in the units of the loss, taken as the decimal written; or several in a
        list, which share one run. With ``monotone=False`` one number, or a dict with the level of each of several
        risks that must hold at the same lambda; `losses` is then a dict with the same keys, or a frame with a column
        for each.
    method
        `e-dcp`: no other adds up losses.
    monotone
        Whether losses never rise with lambda. If not, give `pac_confidence` and `grid`.
    pac_confidence
        With ``monotone=False``: the probability over the calibration data that all certified lambdas keep the risk.
    grid
        With ``monotone=False``: the lambdas, numbers or tuples of several parameters, in the order of testing. They and
        their order must be chosen without these losses: begin with the lambda most likely to keep the risk, and go on
        towards the most useful. For a frame also `descending` or `ascending`: all its lambdas in this order.
    testing
        With ``monotone=False``: `fixed-sequence` (default) tests lambdas in the order of the grid up to the first that
        fails; `holm` does not depend on the order, but requires smaller p-values. A name of `TESTINGS`.
    objective
        With ``monotone=False``: a number for each lambda, such as a mean size. The certified lambda with the smallest
        number is chosen; by default the last certified lambda of the grid. The numbers may come from any data,
        including these items, because all certified lambdas keep the risk simultaneously.
    loss
        The loss that the steps are of, or its name, so that the result can build sets by itself.
    bound
        The largest loss possible; by default what the steps say, and 1 for arrays and frames. Of several risks a dict.
    groups, group_rule, weight, weight_bound, test_weights, centres, inputs
        As in `calibrate`, with one entry for each item: the risk is then controlled within each group, for new
        examples of another distribution, or near each centre.
    network, columns, mixture, rank_rule, strict, observer, progress, engine, faults, **options
        As in `calibrate`.

    Returns
    -------
    Result
        Its `threshold` is lambda: -inf where the loss is small enough with nothing in the sets, +inf where only sets
        that hold everything keep the guarantee.
    LambdaTests
        With ``monotone=False``: mean loss and p-value of every lambda, which are certified, and the chosen one as
        `threshold`; None where none is certified.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, control, losses
    >>> rng, fnr = np.random.default_rng(0), losses.FalseNegativeRate()
    >>> devices = [(p := rng.random((50, 10)), rng.random((50, 10)) < p) for _ in range(20)]
    >>> result = control([fnr(p, y) for p, y in devices], Network.torus(5, 4), risk=0.1, loss=fnr)
    >>> result.certificate.kind, round(result.threshold, 4)
    ('counted', 0.6682)
    >>> kind, grid = losses.ErrorAmongAnswered(level=0.3), [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]
    >>> answers = [(p := rng.dirichlet([0.5] * 3, 100), [rng.choice(3, p=row) for row in p]) for _ in range(20)]
    >>> steps = [kind(p, y) for p, y in answers]
    >>> tests = control(steps, "torus", 0.3, monotone=False, pac_confidence=0.9, grid=grid, loss=kind)
    >>> tests.threshold, tests.certified.tolist()
    (0.5, [True, True, True, True, True, False, False])
    """
    check_keywords("control", method, options)
    roles = ColumnRoles(columns)
    weight = roles.argument("weight", weight)
    if centres is not None or inputs is not None:
        inputs = _inputs(inputs, centres, weight, losses)
    shift, source = make_weighting(weight, weight_bound, inputs, test_weights, None, None)
    words = "risk must be a number strictly between 0 and the largest possible loss, got {}"
    levels = _risks(risk, monotone, lambda one: exact_number(one, words.format(one)))
    largest = 1.0 if bound is None or isinstance(bound, Mapping) else float(bound)
    guarantee = Guarantee(
        alphas=tuple(dict.fromkeys(levels.values())),
        **_mixture(mixture, rank_rule, pac_confidence),
        centres=centres,
        weighting=shift,
        loss=LossBound(largest, as_loss(loss)),
    )
    run = MethodRun(method, options, None, engine, make_faults(faults), observer, progress, strict)
    if not monotone:
        run = replace(run, testing=testing or "fixed-sequence", group_rule=group_rule)
        refuse_unproven(guarantee if groups is None else structs.replace(guarantee, groups=Groups(())), run, 2)
        if pac_confidence is None:
            raise ValueError(
                "monotone=False needs pac_confidence=, the probability over the calibration data that all certified "
                "lambdas keep the risk, such as pac_confidence=0.9"
            )
        from conformesh.pipeline.lambda_tests import Grid, certify_lambdas  # which few programs need

        _refuse_other_level(guarantee.loss, guarantee.alphas)
        network, ids = read_network(network, engine)
        return certify_lambdas(
            losses,
            network,
            guarantee,
            run,
            risks=levels,
            is_named=isinstance(risk, Mapping),
            grid=Grid.of(grid),
            objective=objective,
            bound=bound,
            roles=roles,
            ids=ids,
        )
    for name, value in (("grid", grid), ("testing", testing), ("objective", objective)):
        if value is not None:
            raise ValueError(f"{name}= is for losses that may rise with lambda; use it with monotone=False")
    if guarantee.loss is not None and not getattr(guarantee.loss.loss, "monotone", True):
        raise ValueError(
            f"loss {guarantee.loss.loss.name!r} is not monotone in lambda: test a grid of lambdas with monotone=False"
        )
    if isinstance(bound, Mapping):
        raise TypeError("bound must be one number, the largest loss possible; a dict is for several risks")
    network, ids = read_network(network, engine)
    table = Table.of_losses(
        losses,
        bound,
        columns=roles,
        ids=ids,
        groups=groups,
        weight=source,
        inputs=None if centres is None else inputs,
        mixture=mixture,
    )
    if table.groups is not None or group_rule:
        run = _with_grouping(run, table, group_rule, None, None, None)
    return solve(table, _with_shares(guarantee, table), as_network(network, table), run, bound=bound)


def _risks(given: Any, monotone: bool, exact: Callable[[Any], Fraction]) -> dict[str, Fraction]:
    """Return the levels of several risks by name, or those of one risk, by what they are."""
    if isinstance(given, Mapping):
        if monotone:
            raise ValueError(
                "risk is a dict, for several risks that hold at the same lambda, which needs monotone=False; for "
                "several levels of one risk give a list"
            )
        if not given:
            raise ValueError("risk must name at least one risk, got an empty dict")
        return {str(name): exact(level) for name, level in given.items()}
    levels = _levels(given, "risk", exact)
    if monotone:
        return {str(level): level for level in levels}
    if len(levels) > 1:
        raise ValueError(
            f"monotone=False certifies lambdas for one level of a risk, got {len(levels)}; call control for each with "
            "an equal part of 1 - pac_confidence, or give a dict for several risks at once"
        )
    from conformesh.pipeline.lambda_tests import RISK

    return {RISK: levels[0]}


def _refuse_other_level(bounded: LossBound | None, levels: Sequence[Fraction]) -> None:
    """Refuse a loss that is the linear form of a ratio for another level than the risk."""
    level = getattr(None if bounded is None else bounded.loss, "level", None)
    if level is not None and exact_alpha(level, "level") not in levels:
        raise ValueError(
            f"loss {bounded.loss.name!r} was made for level={level}, and risk is {float(levels[0]):g}; give both the "  # type: ignore[union-attr]
            "same number"
        )


_SECOND_LOOK = (
    "pac_confidence of this result holds for one calibration; with updates the probabilities of failure add up. Use "
    "time_uniform=True from the first calibration on"
)


def update(result: Result | LambdaTests, data: Any, network: Network | str | Any, **options: Any) -> Result:
    """Calibrate again after devices gained or lost examples, starting from an earlier result.

    With `e-dcp` a few counts around the old threshold usually bracket the new one at once, which costs a fraction of a
    cold start; the result is exact either way. Other methods, and results with several answers, start anew. What
    belongs to the rows (`groups`, `weight`, `inputs`, `labels`) must be given again. `options` replace those of the
    earlier result. With `time_uniform` the devices, the mixture, levels, sides and pac_confidence must stay the same.
    """
    from conformesh.results.lambda_tests import LambdaTests

    if isinstance(result, LambdaTests):
        raise TypeError("tests of lambdas have no threshold to start from; call control(..., monotone=False) again")
    if result.method not in METHODS:  # a file is read without knowing which methods there are
        raise ValueError(f"{unknown_name('method', result.method, METHODS)}; written by version {result.version}")
    _require_rows(result.guarantee, options)
    entry, guarantee = METHODS[result.method], result.guarantee
    same = {name: result.options[name] for name in entry.option_names() if name in result.options}
    if entry.requirement is None:  # otherwise the method has a guarantee of its own, and takes no other
        same |= {"mixture": guarantee.mixture.shares or guarantee.mixture.kind, "rank_rule": guarantee.rank_rule}
    if guarantee.centres is not None:
        same["centres"] = guarantee.centres
    if entry.starts_warm and len(result.answers) == 1 and result.bracket is not None:
        same["warm"] = result.bracket
    each = [_as_written(alpha) for alpha in dict.fromkeys(answer.alpha for answer in result.answers)]
    levels = each[0] if len(each) == 1 else each
    if guarantee.loss is not None:
        same |= {"loss": guarantee.loss.loss, "bound": guarantee.loss.bound}
        return control(data, network, levels, result.method, monotone=True, **{**same, **options})
    if guarantee.mixture.bound is not None:
        same["mixture_bound"] = guarantee.mixture.bound
    if guarantee.pac_confidence is not None:
        same |= {"pac_confidence": guarantee.pac_confidence, "time_uniform": guarantee.time_uniform}
        if not {**same, **options}["time_uniform"]:
            emit_note(_SECOND_LOOK)
    if guarantee.sides is not None:
        same |= {"symmetric": False, "lower_share": guarantee.sides.lower_share}
    if guarantee.groups is not None and guarantee.groups.rule:
        same["group_rule"] = guarantee.groups.rule
    same |= {"score": result.score, "classes": result.classes}
    if guarantee.adapt is not None:
        same["adapt"] = guarantee.adapt
    found = calibrate(data, network, levels, result.method, **{**same, **options})
    _refuse_other_looks(result, found)
    return found


def _refuse_other_looks(first: Result, found: Result) -> None:
    """Refuse a calibration with another guarantee than the first one, if pac_confidence holds for all together."""
    if not (first.guarantee.time_uniform and found.guarantee.time_uniform):
        return
    if {*found.device_ids} != {*first.device_ids}:
        before, now = (list_names(natural_order(result.device_ids)) for result in (first, found))
        what = f"devices changed from {before} to {now}"
    elif found.guarantee != first.guarantee:
        what = "the mixture, levels, sides or pac_confidence changed"
    else:
        return
    raise ValueError(
        "time_uniform holds for calibrations with the same mixture of the same devices, the same levels, sides and "
        f"pac_confidence, and {what}; call calibrate, which starts a new series with a pac_confidence of its own"
    )


def _require_rows(guarantee: Guarantee, given: Mapping[str, Any]) -> None:
    """Refuse an update without what belongs to the rows: a result does not hold it."""
    weighting = guarantee.weighting
    needed: dict[str, str] = {}
    if guarantee.groups is not None:
        needed["groups"] = "groups"
    if weighting is not None and weighting.class_weights:
        needed |= {"class_weights": "weights of classes", "labels": "weights of classes"}
    elif weighting is not None:
        bound = f"weights of at most {weighting.bound:g}"
        needed |= {"weight": bound, "weight_bound": bound}
    if guarantee.centres is not None:
        needed["inputs"] = "centres"
    if missing := [name for name in needed if name not in given and not (name == "weight_bound" and "weight" in given)]:
        names = " and ".join(f"{name}=" for name in needed if needed[name] == needed[missing[0]])
        raise ValueError(f"this calibration had {needed[missing[0]]}: give {names} again")


def _as_written(alpha: Fraction) -> float | Fraction:
    """Return a level as it was written: a decimal, or a fraction that is no decimal of float64, such as 1/3."""
    return float(alpha) if Fraction(repr(float(alpha))) == alpha else alpha


def _levels(given: Any, what: str, exact: Callable[[Any], Fraction]) -> tuple[Fraction, ...]:
    """Return one level or several exactly, each once."""
    # A text may be one number; an array without dimensions has `__iter__` and cannot be iterated over.
    is_one = isinstance(given, str | bytes) or not hasattr(given, "__iter__") or np.ndim(given) == 0
    levels = dict.fromkeys(exact(level) for level in ([given] if is_one else given))
    if not levels:
        raise ValueError(f"calibration needs at least one {what}, got none")
    return tuple(levels)


def _mixture(
    mixture: Any,
    rank_rule: str,
    pac_confidence: Alpha | None,
    time_uniform: bool = False,
    mixture_bound: Alpha | None = None,
) -> dict[str, Any]:
    """Return the fields of a guarantee that say which devices new examples come from, and by which rule."""
    level = None if pac_confidence is None else check_pac_confidence(pac_confidence)
    bound = None if mixture_bound is None else check_mixture_bound(mixture_bound)
    if not isinstance(time_uniform, bool):
        raise TypeError(f"time_uniform must be True or False, got {time_uniform!r}")
    Requirement(pac_confidence=level, time_uniform=time_uniform)  # refuses time_uniform alone, before mixtures are read
    if isinstance(mixture, str):  # one of `MIXTURES` or a column, which only the table knows: see `_with_shares`
        found: dict[str, Any] = {"mixture": Mixture(mixture, bound=bound)}
    else:
        made = make_requirement(mixture, rank_rule)
        found = {"mixture": Mixture(made.mixture, {**(made.shares or {})}, bound)}
    return {**found, "rank_rule": rank_rule, "pac_confidence": level, "time_uniform": time_uniform}


def _with_shares(guarantee: Guarantee, table: Table) -> Guarantee:
    """Return the guarantee with the shares that a column of the frame gives."""
    if table.shares is not None:
        made = make_requirement(table.shares)
        found = Mixture(made.mixture, {**(made.shares or {})}, guarantee.mixture.bound)
        return structs.replace(guarantee, mixture=found)
    if guarantee.mixture.shares is None:
        make_requirement(guarantee.mixture.kind)  # says what is allowed
    return guarantee


def _sides(symmetric: bool, lower_share: Alpha | None, score: Score | None) -> Sides | None:
    if symmetric:
        if lower_share is not None:
            raise ValueError("lower_share says how two sides share alpha; use it with symmetric=False")
        return None
    if score is not None:
        two_sided(score)
    return Sides() if lower_share is None else Sides(exact_alpha(lower_share, "lower_share"))


def _inputs(inputs: Any, centres: Any, weight: Any, data: Any) -> Any:
    """Return the inputs that were given, or for centres those of a table; refuse one without the other."""
    if centres is None:
        if not callable(weight):
            raise ValueError("inputs go with a weight that is a function of them, or with centres=; neither was given")
        return inputs
    if inputs is None and isinstance(data, Table):
        inputs = data.inputs
    if not isinstance(centres, Centres):
        raise TypeError(
            "centres must come from choose_centres(inputs, number) or Centres.at(points, bandwidth), got "
            f"{type(centres).__name__} {str(centres)[:40]!r}"
        )
    if inputs is None:
        raise ValueError("centres need inputs=, the features of every score, beside the scores")
    return inputs


def _adaptation(given: Any, data: Any, roles: ColumnRoles) -> Adaptation | None:
    """Return how scores adapt; where an adaptation is for both tasks, the outputs say which one it is."""
    if given is None:
        return None
    from conformesh.scores.adapt import Even, as_adaptation  # which programs without adapt do not need

    found = as_adaptation(given)
    if not isinstance(found, Even):
        return found
    columns = frame_columns(as_frame(data, roles, "label", "data"))
    if isinstance(data, Table):
        is_number = data.truth is not None and data.truth.dtype.kind == "f"
    elif columns is not None:
        is_number = PREDICTION in columns
    else:
        some = next(iter(data.values() if isinstance(data, Mapping) else data), None)
        first: Any = some[0] if isinstance(some, tuple | list) and len(some) else some
        is_number = np.ndim(first) == 1
    return found.for_task("regression" if is_number else "classification")


def _with_grouping(
    run: MethodRun, table: Table, rule: str | None, order: Sequence[str] | None, atoms: Any, rng: Rng | None
) -> MethodRun:
    """Return the run with what it needs to know of overlapping groups."""
    if table.groups is None:
        raise ValueError("group_rule, group_order and group_atoms say how groups are covered; name them with groups=")
    return replace(run, group_rule=rule, group_order=order, group_atoms=_expected_atoms(atoms), seed=recorded_seed(rng))


def _expected_atoms(given: Any) -> dict[Atom, int]:
    """Return the combinations of groups that were named beforehand, with the number of scores expected of each."""
    if given is None:
        return {}
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise TypeError(
            "group_atoms must be combinations of groups such as [('a',), ('a', 'b')], or a dict with the number of "
            f"scores expected of each, got {type(given).__name__} {str(given)[:40]!r}"
        )
    counts = given if isinstance(given, Mapping) else dict.fromkeys(map(tuple, given), 0)
    return {natural_order({*map(str, atom)}): int(count) for atom, count in counts.items()}


def _classes(classes: Any) -> tuple[str | bool | int | float, ...]:
    """Return classes: names, numbers and booleans as given, all else as written; or the columns of a frame.

    >>> _classes(["cat", "dog"]), _classes(np.array([3, 5]))
    (('cat', 'dog'), (3, 5))
    """
    columns = frame_columns(classes)
    if isinstance(classes, str | bytes) or (columns is None and not hasattr(classes, "__iter__")):
        raise TypeError(
            f"classes must be the names of the columns of outputs, got {type(classes).__name__} {classes!r:.40}"
        )
    given = [*columns] if columns is not None else as_array(classes, "classes").tolist()
    names = tuple(name if isinstance(name, bool | int | float) else str(name) for name in given)
    if len({*names}) < max(2, len(names)):
        raise ValueError(f"classes must be at least 2 different names, got {', '.join(map(str, names[:8]))}")
    return names
