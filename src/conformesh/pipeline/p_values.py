"""`p_values`: how unusual new scores are beside the scores of all devices, counted without pooling them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.common.arrays import as_array
from conformesh.common.names import natural_order, unknown_name
from conformesh.common.notes import emit_note
from conformesh.engines import Engine, engine_on, fail_together
from conformesh.engines.observers import Observer
from conformesh.files.input_forms import ColumnRoles
from conformesh.files.memberships import Memberships
from conformesh.graph.network import Network
from conformesh.guarantee import Guarantee, Mixture
from conformesh.kernels.ranks import (
    AUTO,
    DEFAULT_REQUIREMENT,
    POOLED_MIXTURES,
    Demand,
    Requirement,
    check_shares,
    make_requirement,
)
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import check_keywords, make_options
from conformesh.pipeline.networks import as_network, read_network
from conformesh.pipeline.problems import LocalRows, add_agreed_parts, agree_on_facts, guarantee_groups, problem_columns
from conformesh.pipeline.shift import make_weighting
from conformesh.pipeline.solver import local_rows_of, local_scores
from conformesh.protocols.block import Block, merge_rows
from conformesh.protocols.e_dcp import EDCP
from conformesh.protocols.rank_counts import CountQuestion, RankCounts, count_below
from conformesh.results.certificate import Cost
from conformesh.results.p_values import PValues
from conformesh.scores import Function, Score, as_score
from conformesh.table import Table, argument_or_own


@fail_together
def p_values(
    data: Iterable[ArrayLike] | Mapping[Any, ArrayLike] | Table | Any,
    network: Network | str | Any = None,
    test_scores: ArrayLike | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    mixture: str | Mapping[Any, Any] = "sizes",
    rank_rule: str = AUTO,
    labels: Iterable[ArrayLike] | Mapping[Any, ArrayLike] | str | None = None,
    test_labels: ArrayLike | None = None,
    weight: Any = None,
    weight_bound: float | None = None,
    inputs: Any = None,
    score: Score | str | Function | None = None,
    classes: Sequence[Any] | None = None,
    draws: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    engine: str | Engine = "simulator",
    **options: Any,
) -> PValues:
    """Return a p-value for every test score: a new score of the mixture has p <= t with probability at most t.

    Parameters
    ----------
    data
        One array of calibration scores per device, a dict by device name, or a frame, as in `calibrate`.
    network, columns
        As in `calibrate`.
    test_scores
        Scores to be judged, known to all devices: one number each, or a table (rows, classes) with the score of every
        class. With `score`, the model's outputs, from which such a table is made. A million of them are one run.
    mixture, rank_rule
        Which devices new examples come from, and by which rule, as in `calibrate`; `auto` takes the smaller proven
        p-value.
    labels
        The class of every calibration score, in the form of `data` (or a column of the frame). Then p-values are
        class-wise: valid given that the class is y, each compared with the scores of class y alone.
    test_labels
        With `labels`, the class that each of a list of test scores is to be judged as; a table has a column for each.
    weight, weight_bound, inputs
        New examples of another distribution, as in `calibrate`: p-values then hold for new examples of any weight up
        to the bound.
    score
        The nonconformity score of the calibration scores, or its name: test scores are then model outputs.
    classes
        The names of the columns of a table; by default 0, 1, ...
    draws
        For a randomised score, what ``score.draws`` takes: `rng` or `keys`.
    observer, engine
        As in `calibrate`.
    **options
        `aggregate` and `prefer`, how sums are formed, as for the method `e-dcp`.

    Examples
    --------
    >>> from conformesh import Network, p_values
    >>> found = p_values([[0.1, 0.4], [0.2, 0.3, 0.5]], Network.chain(2), [0.0, 0.35, 0.9])
    >>> found.values.round(6).tolist()
    [1.0, 0.6, 0.2]
    """
    started = time.perf_counter()
    check_keywords("p_values", "e-dcp", options)
    if test_scores is None:
        raise TypeError("p_values needs test_scores=, the scores to be judged")
    kind = as_score(score)
    if draws is not None and not isinstance(draws, Mapping):
        raise TypeError(
            f"draws must be a dict such as {{'rng': 7}} or {{'keys': ids}}, got {type(draws).__name__} {draws!r}"
        )
    scores = _test_scores(test_scores, kind, draws or {})
    names = None if scores.ndim == 1 else _class_names(classes, scores.shape[1])
    roles = ColumnRoles(columns)
    labels, weight = roles.argument("label", labels), argument_or_own(roles, "weight", weight, data)
    if labels is None and test_labels is not None:
        raise ValueError("test_labels say which class a test score is judged as; they need labels= as well")
    if inputs is not None and not callable(weight):
        raise ValueError("inputs go with a weight that is a function of them, which was not given")
    shift, source = make_weighting(weight, weight_bound, inputs, None, None, None)
    network, ids = read_network(network, engine)
    table = Table.of(data, columns=roles, weight=source, labels=labels, mixture=mixture, ids=ids, once=True)
    requirement = make_requirement(mixture if table.shares is None else table.shares, rank_rule, known=POOLED_MIXTURES)
    network = as_network(network, table)
    asked = Guarantee(alphas=(), mixture=Mixture(requirement.mixture), rank_rule=rank_rule, weighting=shift)
    with engine_on(network, engine, observer) as host:
        local, here = table.ordered(host.network, host.rows), host.network.local_ids(host.rows)
        local.check_range(kind, here)
        trials = np.zeros(scores.size, dtype=np.int64)
        known: tuple[str, ...] = ()
        if labels is not None:
            assert local.labels is not None
            seen = natural_order(set().union(*host.share({*local.labels.tolist()})))
            known, judged = _judged_as(scores, names, test_labels, seen)
            local = replace(local, groups=Memberships.of(local.labels, "labels"))
        rows = LocalRows(local, here)
        agreed = agree_on_facts(host, rows, None, [(name,) for name in known])
        guarantee = add_agreed_parts(asked, guarantee_groups(local, None, agreed), agreed)
        if labels is not None:
            place = {atom[0]: column for column, atom in enumerate(agreed.atoms)}
            trials = np.array([place[name] for name in known], dtype=np.int64)[judged]
        if labels is not None or shift is not None:
            requirement = replace(requirement, is_weighted=True)
        made = problem_columns(rows, guarantee, agreed, requirement, None)
        question, chosen = (trials, scores.ravel()), make_options("e-dcp", options)
        batch = _p_values_on(host, made.scores[0], made.examples, made.requirement, question, chosen)
    for text in batch.counts.notes:
        emit_note(text)
    return PValues(
        values=batch.values.reshape(scores.shape),
        mixture=requirement.mixture,
        rule=batch.rule,
        scores=agreed.total,
        devices=network.devices,
        cost=batch.cost,
        classwise=labels is not None,
        classes=names,
        exact=batch.exact,
        network=network.name,
        seconds=time.perf_counter() - started,
        options=batch.counts.facts,
    )


@dataclass(frozen=True, eq=False)
class _PValueBatch:
    """P-values from one run of sums, with what they were made from.

    Attributes
    ----------
    values
        The p-values of the asked scores, rounded up to floats.
    fractions
        The same, exactly, as an array of `Fraction`.
    exact
        The largest of the fractions that each float stands for.
    rule
        The rule that was used, of `ranks.RANK_RULES`, or `auto` where each p-value is the smaller of two.
    counts, cost, sizes
        The counts, what they cost, and how many scores every device held in each trial.
    """

    values: Floats
    fractions: NDArray[Any]
    exact: dict[float, Fraction]
    rule: str
    counts: RankCounts
    cost: Cost
    sizes: Ints


def p_values_batch(
    samples: WeightedScores,
    network: Network,
    trials: ArrayLike,
    scores: ArrayLike,
    *,
    requirement: Requirement = DEFAULT_REQUIREMENT,
    items: Ints | None = None,
    observer: Observer | None = None,
    engine: str | Engine = "simulator",
    **options: Any,
) -> _PValueBatch:
    """Return the p-value of ``scores[i]`` beside the scores of trial ``trials[i]``, for all i in one run of sums.

    `samples`, `promise` and `items` are as in `solve_draws`.
    """
    chosen = make_options("e-dcp", options)
    question = np.asarray(trials, dtype=np.int64), _numbers(scores, "test scores")
    with engine_on(network, engine, observer) as host:
        held = None if items is None else merge_rows(host.blocks, host.share(local_rows_of(host, items)))
        return _p_values_on(host, local_scores(host, samples), held, requirement, question, chosen)


def _p_values_on(
    host: Engine,
    samples: WeightedScores,
    examples: Ints | None,
    requirement: Requirement,
    question: tuple[Ints, Floats],
    options: EDCP,
) -> _PValueBatch:
    """Return p-values on an engine: `samples` are those of its devices, `examples` has a row for every device.

    `question` has the trial and the score that each p-value is for.
    """
    _refuse_other_requirements(requirement)
    check_shares(requirement, host.network.ids)
    asked, places = CountQuestion.of(*question)
    sizes = merge_rows(host.blocks, host.share(samples.sizes))
    block = Block(host.network, host.rows, sizes, requirement, examples)
    counted, cost = host.run(count_below(block, samples, asked, options))
    fractions, runs = exact_p_values(block, asked, counted)
    floats = np.array([round_up_to_float(p) for p in fractions])
    exact: dict[float, Fraction] = {}
    for p, value in zip(fractions, floats.tolist(), strict=True):
        exact[value] = max(p, exact.get(value, p))
    where = runs[places]
    rules = {_rule_of(demand) for demand in block.demands}
    return _PValueBatch(
        floats[where] if len(floats) else np.empty(0),
        np.array(fractions, dtype=object)[where],
        exact,
        rules.pop() if len(rules) == 1 else AUTO,
        counted,
        cost,
        sizes,
    )


def round_up_to_float(p: Fraction) -> float:
    """Return the smallest float at or above a fraction, so that a p-value never becomes smaller.

    >>> round_up_to_float(Fraction(3, 10)) > 0.3
    True
    """
    nearest = float(p)
    return nearest if Fraction(nearest) >= p else math.nextafter(nearest, math.inf)


def exact_p_values(block: Block, asked: CountQuestion, counted: RankCounts) -> tuple[list[Fraction], Ints]:
    """Return the p-values that occur, and which of them each asked threshold has; many thresholds share a count."""
    if not len(asked.trials):
        return [], np.empty(0, dtype=np.int64)
    new = np.ones(len(asked.trials), dtype=bool)
    new[1:] = (np.diff(counted.below) != 0) | (np.diff(asked.trials) != 0)
    demands, totals, rounding_loss = block.demands, counted.totals.tolist(), counted.rounding_loss.tolist()
    trials, below = asked.trials[new], counted.below[new]
    found: list[Fraction] = []
    for t in np.unique(trials).tolist():  # thresholds are asked in the order of trials
        found += demands[t].p_values(block.requirement, t, below[trials == t].tolist(), totals[t], rounding_loss[t])
    return found, np.cumsum(new) - 1


def _rule_of(demand: Demand) -> str:
    return AUTO if hasattr(demand, "other") else demand.rule


def _refuse_other_requirements(requirement: Requirement) -> None:
    if requirement.pac_confidence is not None or requirement.loss_unit or requirement.test_weights is not None:
        raise ValueError(f"p-values hold on average over the draws of scores, for plain coverage, got {requirement}")


def _numbers(values: ArrayLike, what: str) -> Floats:
    array = as_array(values, what)
    try:
        array = np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be numbers, got {type(values).__name__} {str(values)[:40]!r}") from None
    if np.isnan(array).any():
        raise ValueError(f"{what} must be numbers, got NaN; drop or repair these rows first")
    return array


def _test_scores(given: ArrayLike, score: Score | None, draws: Mapping[str, Any]) -> Floats:
    """Return test scores, one each or a table with a column per class."""
    if score is not None:
        if score.task == "regression":
            raise ValueError(
                f"score '{score.name}' is for regression, where a p-value belongs to a number: score your candidates, "
                "score(outputs, numbers), and pass these scores without score="
            )
        table = as_array(given, "outputs")
        return np.asarray(score.of_all_labels(table, **score.draws(table, **draws)))  # type: ignore[attr-defined]
    scores = _numbers(given, "test scores")
    if scores.ndim not in (1, 2):
        raise ValueError(
            f"test scores must be a list, or a table with a row each and a column per class, got shape {scores.shape}"
        )
    return scores


def _class_names(classes: Sequence[Any] | None, columns: int) -> tuple[str, ...]:
    if isinstance(classes, str | bytes) or not (classes is None or hasattr(classes, "__iter__")):
        raise TypeError(f"classes must be the names of the columns, got {type(classes).__name__} {classes!r:.40}")
    names = tuple(str(name) for name in (range(columns) if classes is None else classes))
    if len(names) != columns:
        raise ValueError(f"classes must name every column of the test scores, {columns}, got {len(names)} names")
    return names


def _judged_as(
    scores: Floats, names: tuple[str, ...] | None, test_labels: ArrayLike | None, seen: tuple[str, ...]
) -> tuple[tuple[str, ...], Ints]:
    """Return the classes, and which of them every test score is judged as."""
    if names is not None:
        if test_labels is not None:
            raise ValueError("a table of test scores has a column for each class; leave test_labels out")
        if strange := [name for name in seen if name not in names]:
            raise ValueError(f"labels: {unknown_name('class', strange[0], names)}")
        return names, np.tile(np.arange(len(names)), len(scores))
    if test_labels is None:
        raise ValueError("class-wise p-values need test_labels=, a class for every test score, or a table of scores")
    asked = as_array(test_labels, "test_labels").astype(str)
    if asked.shape != scores.shape:
        raise ValueError(f"test_labels must be one for each of {len(scores)} test scores, got shape {asked.shape}")
    known = tuple(natural_order({*asked.tolist(), *seen}))
    place = {name: i for i, name in enumerate(known)}
    return known, np.array([place[name] for name in asked.tolist()], dtype=np.int64)
