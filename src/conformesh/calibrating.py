"""`calibrate`: from the devices' scores to a certified threshold."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import ArrayLike, NDArray

from conformesh.engines import ENGINES, Engine, make_engine
from conformesh.engines.base import Observer, begin, held_here, ids_here
from conformesh.faults import Faults, as_faults
from conformesh.graph.network import Network
from conformesh.inputs import (
    as_classes,
    as_groups,
    as_held,
    as_network,
    as_target,
    check_rows,
    check_same_form,
    check_scores,
    in_rows_of,
)
from conformesh.io.arrays import as_array, note_alike
from conformesh.io.memberships import Atom, Memberships, name_of
from conformesh.kernels.ranks import (
    AUTO,
    DEFAULT,
    Alpha,
    Requirement,
    as_alphas,
    as_levels,
    check_alpha,
    check_shares,
    exact_alpha,
    make_requirement,
)
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import (
    check_keywords,
    get_method,
    make_options,
    run_method,
    refuse_faults,
    requirement_of,
    suited_options,
)
from conformesh.names import natural_order
from conformesh.notes import CalibrationNote
from conformesh.progress import rounds_on_a_bar
from conformesh.protocols.groups import Grouping, grouped
from conformesh.protocols.site import Outcome, Site, in_rows
from conformesh.quantities import several
from conformesh.result.calibration import Calibration, refuse_nan
from conformesh.result.certificate import Cost
from conformesh.result.several import Calibrations
from conformesh.scores import Function, Score, as_score
from conformesh.shifting import Shifted, as_several_shift, as_shift
from conformesh.streams import Rng, digest_of, recorded_seed, stream


class TooFewScores(ValueError, UserWarning):  # noqa: N818 - a warning by default, an error on request
    """The required rank exceeds the number of scores, so the threshold is +inf and every set is full."""


def calibrate(
    devices: Iterable[ArrayLike] | Mapping[Any, ArrayLike] | WeightedScores,
    network: Network | str | Any,
    alpha: Alpha = 0.1,
    method: str = "e-dcp",
    *,
    target: str | Mapping[Any, Any] = "sizes",
    rank: str = AUTO,
    pac_confidence: Alpha | None = None,
    weight: Any = None,
    weight_bound: float | None = None,
    inputs: Any = None,
    score: Score | str | Function | None = None,
    classes: Any = None,
    strict: bool = False,
    observer: Observer | None = None,
    progress: bool = False,
    engine: str | Engine = "simulator",
    faults: Faults | Mapping[str, Any] | None = None,
    **options: Any,
) -> Calibration:
    """Agree on a threshold whose prediction sets hold the truth with probability at least 1 - alpha.

    Parameters
    ----------
    devices
        One array of calibration scores per device, in the order of ``network.ids``; any of them may be empty. Safer is
        a dict by device name, or a frame with the columns `device` and `score`. Or a table with one row per device, or
        `WeightedScores`: a million devices are better kept in one flat array (`WeightedScores.from_flat`).
    network
        Who talks to whom: a `Network`, a NetworkX graph, or the name of a topology, of as many devices as have scores.
    alpha
        Tolerated miscoverage, strictly between 0 and 1, taken as the decimal written.
    method
        A name of `METHODS`.
    target
        Whom the promise is about: a new example comes from a device in proportion to its scores (`sizes`), to its
        scores plus one (`paper`), from all alike (`equal`), or with the shares that a dict gives by device name, or a
        column of the frame that the scores come in.
    rank
        The rule that says how many scores must be covered: `swap`, `ghost` (one imagined score per device, for the
        target `paper`), or `auto`, whichever proven one asks for less.
    pac_confidence
        By default coverage holds on average over draws of the calibration scores. With 0.95, coverage of at least
        1 - alpha holds with probability 0.95 over this draw (probably approximately correct, PAC). It is not 1 - alpha,
        which MAPIE and crepes call confidence. It holds for one calibration, chosen in advance. If you recalibrate
        after each new score and look each time, from 50 scores to 2,000, some of these thresholds covers too little in
        29 % of runs instead of 5 %.
    weight, weight_bound, inputs
        For new examples of another distribution: how much likelier an example is there than among the calibration
        examples, up to a common factor, and the most that this can be. One array of weights per device beside its
        scores, a dict by device name, the name of a column of a frame, or a function of `inputs`, which are given in
        the same forms (several columns as a list); or what `estimate_ratios` returns.
    score
        The nonconformity score the numbers come from, its name, or a function of outputs and labels
        (`scores.of_function`), so that the result can build prediction sets by itself.
    classes
        The classes, names or numbers, in the order of the columns of outputs, or a frame of outputs whose columns they
        are. The result then takes labels as classes, and puts the columns of other frames into this order.
    strict
        Raise `TooFewScores` instead of warning when only +inf keeps the promise.
    observer
        Called after every round with (round, message, answer).
    progress
        Show a bar of the rounds, in a terminal or a notebook.
    engine
        Who drives the devices: a name of `ENGINES` or an engine made for this network. With "mpi" every rank of the job
        calls `calibrate` and gets the whole result; `devices` may then hold one array for each device of this rank
        only, in the order of ``engine.here``.
    faults
        What goes wrong in the simulated network: a `Faults`, or a dict of its fields. A method that does not bear it
        refuses it.
    **options
        The method's own options, see `METHODS[method].options`.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, calibrate
    >>> rng = np.random.default_rng(0)
    >>> result = calibrate([rng.random(50) for _ in range(20)], Network.torus(5, 4), alpha=0.1)
    >>> result.certificate.kind, result.certificate.required_rank
    ('counted', 901)
    """
    started = time.perf_counter()
    check_keywords("calibrate", method, options)
    check_alpha(alpha)
    score, held = as_score(score), as_held(devices)
    options = suited_options(method, options, score)
    network = as_network(network, held)
    requirement = make_requirement(as_target(devices, target), rank, pac_confidence)
    shift = as_shift(weight, weight_bound, inputs, devices)
    with (
        rounds_on_a_bar(f"{method} on {network.name}", observer, progress) as watching,
        running(engine, network, watching) as host,
    ):
        if shift is None:
            mine = ids_here(host)
            rows = in_rows_of(held, network, mine)
            samples = rows if isinstance(rows, WeightedScores) else WeightedScores.of(held_here(host, rows), mine)
            shifted = Shifted(samples, requirement)
        else:
            shifted = shift.applied(host, held, requirement)
        check_scores(score, shifted.samples, held, ids_here(host))
        if shifted.samples.trials > 1:
            raise ValueError(f"calibrate takes one trial, got samples of {shifted.samples.trials}; use solve_draws")
        batch = solve_draws(
            shifted.samples,
            network,
            (alpha,),
            method,
            requirement=shifted.requirement,
            items=shifted.items,
            engine=host,
            faults=faults,
            **options,
        )
    if shift is not None:
        batch = _assuming(batch, shift.assumption)
    certificate = batch.outcome.certificates[0][0]
    n = int(batch.items.sum()) if certificate.noise is None else 0  # which noise is there to hide
    if certificate.is_short(n):
        required = certificate.required_rank
        have = f"{n} scores" if certificate.weight is None else f"scores that weigh {certificate.weight}"
        words = (
            f"alpha={alpha} needs rank {required} but there are only {have}: the threshold is +inf and every "
            "prediction set holds all labels; use more scores or a larger alpha"
        )
        if strict:
            raise TooFewScores(words)
        warnings.warn(words, TooFewScores, stacklevel=2)
    for note in batch.outcome.notes:
        warnings.warn(note, CalibrationNote, stacklevel=2)
    return Calibration.of(
        batch.outcome,
        batch.cost,
        method=method,
        alpha=alpha,
        device_ids=network.ids,
        scores=n,
        network=network.name,
        options=batch.options,
        score=score,
        classes=as_classes(classes),
        weight_bound=None if shift is None else shift.bound,
        seconds=time.perf_counter() - started,
    )


def calibrate_several(
    devices: Iterable[ArrayLike] | Mapping[Any, ArrayLike],
    network: Network | str | Any,
    alphas: Sequence[Alpha] = (0.1,),
    method: str = "e-dcp",
    *,
    target: str | Mapping[Any, Any] = "sizes",
    rank: str = AUTO,
    pac_confidence: Alpha | None = None,
    groups: Iterable[Any] | Mapping[Any, Any] | str | None = None,
    group_rule: str | None = None,
    group_order: Sequence[str] | None = None,
    group_atoms: Iterable[Iterable[Any]] | Mapping[Any, int] | None = None,
    rng: Rng | None = None,
    score: Score | str | Function | None = None,
    classes: Any = None,
    strict: bool = False,
    observer: Observer | None = None,
    progress: bool = False,
    engine: str | Engine = "simulator",
    faults: Faults | Mapping[str, Any] | None = None,
    **options: Any,
) -> Calibrations:
    """Agree on a threshold for every level and every group, in one run.

    Parameters
    ----------
    devices
        One array of scores per device, a dict by device name, or a frame, as in `calibrate`.
    groups
        One array of group labels per device, beside its scores: classes, sites, anything (Mondrian conformal
        prediction). A dict by device name where the scores are one, or the name of a column where they are a frame.
        Each group has its own rank, of its own scores; coverage then holds within each group.

        Groups may overlap: a list of labels for each score, a table of truth values (scores x groups), or the names of
        several columns of a frame. Coverage then holds within each group, and for everyone.
    group_rule
        What holds for a point that lies in several groups, a name of `GROUP_RULES`. `auto` is `atoms` where
        `group_atoms` expects enough scores of each, else `seq`. Groups that do not overlap need none.
    group_order
        The order of groups for `seq`, by default that of their names; everyone comes last. It must not depend on the
        calibration scores.
    group_atoms
        Combinations of groups that may occur, named beforehand: `regression` then has a threshold also for one that no
        calibration score has. Or a dict that says how many scores are expected of each, from which `auto` chooses.
    rng
        For `regression` with more than 50 combinations, where each device draws one of its scores at random: by default
        fresh entropy, since coverage is also an average over this draw. The results record it, and
        ``rng=result.options["group_seed"]`` of any of them repeats the run.
    alphas, network, method, target, rank, pac_confidence, score, classes, strict, observer, progress, engine, faults,
    **options
        As in `calibrate`. `pac_confidence` holds for all levels together, and cannot be combined with groups.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, calibrate_several
    >>> rng = np.random.default_rng(0)
    >>> several = calibrate_several([rng.random(50) for _ in range(8)], Network.cycle(8), alphas=(0.1, 0.2))
    >>> [several.get(a).certificate.required_rank for a in several.alphas]
    [361, 321]
    """
    started, seed = time.perf_counter(), recorded_seed(rng)
    check_keywords("calibrate_several", method, options)
    alphas = as_alphas(alphas)
    score, held = as_score(score), as_held(devices)
    options = suited_options(method, options, score)
    if isinstance(held, WeightedScores):
        raise TypeError("calibrate_several takes one array of scores per device, a dict or a frame, got WeightedScores")
    network = as_network(network, held)
    labels = None if groups is None else as_groups(devices, groups)
    if labels is not None:
        check_same_form(held, labels, "groups")
    requirement = make_requirement(as_target(devices, target), rank, pac_confidence)
    if labels is None and (group_rule or group_order or group_atoms):
        raise ValueError("group_rule, group_order and group_atoms say how groups are covered; name them with groups=")
    expected = _expected_atoms(group_atoms)
    with (
        rounds_on_a_bar(f"{method} on {network.name}", observer, progress) as watching,
        running(engine, network, watching) as host,
    ):
        mine = ids_here(host)
        own = held_here(host, in_rows_of(held, network, mine))
        of = None if labels is None else held_here(host, in_rows_of(labels, network, mine, "groups"), "groups")
        if of is not None:
            check_rows(own, of, mine, "groups")
        parts = _by_atom(host, own, of, mine, expected)
        samples = WeightedScores.of_trials(parts.scores, mine)
        check_scores(score, samples, own, mine)
        if group_rule is not None or parts.overlapping:
            if as_faults(faults) is not None:
                raise ValueError("groups that overlap are calibrated by e-dcp, which needs every message; no faults")
            grouping = Grouping.of(parts.atoms, group_rule or AUTO, group_order, expected)
            grouping, drawn = _with_hidden_scores(host, grouping, parts, own, seed)
            batch = _grouped_batch(host, samples, alphas, method, requirement, grouping, options)
            batch = replace(batch, options={**batch.options, **drawn})
        else:
            grouping, examples = None, None
            if of is not None and requirement_of(method, requirement) == requirement and rank != "ghost":
                _refuse_pac_confidence(requirement)
                requirement = replace(requirement, is_weighted=True)  # a group is a part of what every device holds
                examples = np.repeat(np.array([[len(mine)] for mine in own]), len(parts.atoms), axis=1)
            batch = solve_draws(
                samples,
                network,
                alphas,
                method,
                requirement=requirement,
                items=examples,
                joint=True,
                engine=host,
                faults=faults,
                **options,
            )
    names: tuple[str | None, ...] = (None,) if of is None else tuple(map(name_of, parts.atoms))
    totals, rule, members = batch.sizes.sum(axis=0), "", {}
    if grouping is not None:
        names, rule, members = grouping.parts, grouping.rule, {name_of(atom): atom for atom in grouping.atoms}
        totals = totals if grouping.by_atoms else grouping.members @ totals
    places = [
        Place(name, alpha, int(totals[t]), t, level)
        for t, name in enumerate(names)
        for level, alpha in enumerate(alphas)
    ]
    several = collected(batch, places, network, method, score, strict, started)
    named = as_classes(classes)
    items = {key: replace(item, classes=named) for key, item in several.items.items()}
    return replace(several, items=items, rule=rule, members=members)


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


def calibrate_shifted(
    devices: Iterable[ArrayLike] | Mapping[Any, ArrayLike],
    network: Network | str | Any,
    alphas: Sequence[Alpha] = (0.1,),
    method: str = "e-dcp",
    *,
    weight: Any = None,
    weight_bound: float | None = None,
    inputs: Any = None,
    test_weights: Iterable[float] | None = None,
    class_weights: Mapping[Any, float] | ArrayLike | None = None,
    labels: Iterable[ArrayLike] | Mapping[Any, ArrayLike] | str | None = None,
    target: str | Mapping[Any, Any] = "sizes",
    rank: str = AUTO,
    score: Score | str | Function | None = None,
    strict: bool = False,
    observer: Observer | None = None,
    engine: str | Engine = "simulator",
    faults: Faults | Mapping[str, Any] | None = None,
    **options: Any,
) -> Calibrations:
    """Agree on a threshold for every level and every weight of a new example, or every class, in one run.

    Parameters
    ----------
    devices
        One array of scores per device, a dict by device name, or a frame, as in `calibrate`.
    weight, weight_bound, inputs
        New examples of another distribution, as in `calibrate`.
    test_weights
        Weights of new examples that get a threshold of their own, beside the bound, which serves all: the smaller its
        weight, the smaller the threshold. ``predict(outputs, weight=...)`` picks the smallest that is enough.
    class_weights, labels
        New examples whose classes are more or less frequent (label shift): how much likelier each class is among them
        than among the calibration examples, as a dict by class or a list of those of 0, 1, ...; and one array of true
        labels per device beside its scores, a dict by device name, or the name of a column. Each class has a threshold.
    alphas, network, method, target, rank, score, strict, observer, engine, faults, **options
        As in `calibrate_several`.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, calibrate_shifted
    >>> rng = np.random.default_rng(0)
    >>> labels = [rng.integers(0, 2, 50) for _ in range(8)]
    >>> scores = [rng.random(50) + own for own in labels]
    >>> found = calibrate_shifted(scores, Network.cycle(8), class_weights={0: 1, 1: 3}, labels=labels)
    >>> found.groups, bool(found.get(group=0).threshold <= found.get(group=1).threshold)
    (('0', '1'), True)
    """
    started = time.perf_counter()
    check_keywords("calibrate_shifted", method, options)
    alphas = as_alphas(alphas)
    score, held = as_score(score), as_held(devices)
    options = suited_options(method, options, score)
    network = as_network(network, held)
    requirement = make_requirement(as_target(devices, target), rank)
    asked = as_several_shift(weight, weight_bound, inputs, test_weights, class_weights, labels, devices)
    levels = [(alpha, test) for alpha in alphas for test in asked.tests]
    with running(engine, network, observer) as host:
        shifted = asked.shift.applied(host, held, requirement, [test for _, test in levels])
        check_scores(score, shifted.samples, held, ids_here(host))
        batch = solve_draws(
            shifted.samples,
            network,
            [alpha for alpha, _ in levels],
            method,
            requirement=shifted.requirement,
            items=shifted.items,
            joint=True,
            engine=host,
            faults=faults,
            **options,
        )
    places = [
        Place(
            group=name,
            alpha=alpha,
            scores=int(batch.items.sum()),
            trial=0,
            level=levels.index((alpha, test)),
            weight_bound=asked.shift.bound,
            test_weight=None if name is None else test,
        )
        for name, test in asked.names.items()
        for alpha in alphas
    ]
    return collected(_assuming(batch, asked.shift.assumption), places, network, method, score, strict, started)


class Place(NamedTuple):
    """Where a result of several stands in a batch: its group and level, of how many scores it is, trial and level."""

    group: str | None
    alpha: Alpha
    scores: int
    trial: int
    level: int
    weight_bound: float | None = None
    test_weight: float | None = None


def collected(
    batch: Batch,
    places: Sequence[Place],
    network: Network,
    method: str,
    score: Score | None,
    strict: bool,
    started: float,
) -> Calibrations:
    """Return the results of a batch that stand in some places; warn, or with `strict` refuse, where some are +inf."""
    for note in batch.outcome.notes:
        warnings.warn(note, CalibrationNote, stacklevel=3)
    items: dict[tuple[str | None, float], Calibration] = {}
    short = []
    for place in places:
        noise = batch.outcome.certificates[place.trial][place.level].noise
        item = Calibration.of(
            batch.outcome,
            batch.cost,
            method=method,
            alpha=place.alpha,
            device_ids=network.ids,
            scores=place.scores if noise is None else 0,  # which noise is there to hide
            trial=place.trial,
            level=place.level,
            network=network.name,
            options=batch.options,
            score=score,
            weight_bound=place.weight_bound,
            test_weight=place.test_weight,
            seconds=time.perf_counter() - started,
        )
        items[place.group, item.alpha] = item
        endless = item.certificate.rule == "regression" and item.threshold == np.inf  # which has no rank to be short of
        if endless or item.certificate.is_short(item.scores):
            short.append(f"{'' if place.group is None else f'group {place.group}, '}alpha {item.alpha:g}")
    if short:
        words = f"too few scores, so that the threshold is +inf: {'; '.join(short[:5])}" + (
            ", ..." if short[5:] else ""
        )
        if strict:
            raise TooFewScores(words)
        warnings.warn(words, TooFewScores, stacklevel=3)
    return Calibrations(items, batch.cost)


def _assuming(batch: Batch, words: str) -> Batch:
    """Return results that say what they assume, where they assume anything."""
    if not words:
        return batch
    certificates = [
        [structs.replace(certificate, kind="assumed", assumption=words) for certificate in row]
        for row in batch.outcome.certificates
    ]
    return replace(batch, outcome=replace(batch.outcome, certificates=certificates))


@dataclass(frozen=True, eq=False)
class _Parts:
    """What the devices here hold of every atom, ``scores[atom][device]``, and which atom each of their scores is of."""

    atoms: tuple[Atom, ...]
    scores: list[list[NDArray[Any]]]
    codes: list[NDArray[np.int64]]
    overlapping: bool

    def hidden(self, devices: Sequence[Any], rows: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
        """Return one score of each device, drawn at random, in the column of its atom.

        The hash of the device's scores makes the place differ between data sets also where the seed is fixed: in
        sorted scores a fixed place is always the same rank.
        """
        table = np.full((len(rows), len(self.atoms)), np.inf)
        for k, (row, own, codes) in enumerate(zip(rows.tolist(), devices, self.codes, strict=True)):
            if len(codes):
                values = np.asarray(own)
                place = int(stream(seed, "hidden", row, digest_of(values)).integers(len(codes)))
                table[k, codes[place]] = values[place]
        return table


def _by_atom(
    engine: Engine, devices: Sequence[Any], groups: Sequence[Any] | None, here: Sequence[str], named: Iterable[Atom]
) -> _Parts:
    """Tell scores apart by the groups they lie in, as any device has them or as they were named beforehand."""
    held = [as_array(own, f"device {name}") for name, own in zip(here, devices, strict=True)]
    if groups is None:
        return _Parts(((),), [held], [], False)
    found = [Memberships.of(own, f"device {name}") for name, own in zip(here, groups, strict=True)]
    for name, own, of in zip(here, held, found, strict=True):
        if len(own) != len(of):
            raise ValueError(f"device {name} has {len(own)} scores but {len(of)} group labels; one each is needed")
    shared = engine.share(({atom for of in found for atom in of.atoms}, any(of.overlapping for of in found)))
    by_name = {name_of(atom): atom for atoms, _ in shared for atom in atoms}
    if not by_name:
        raise ValueError("groups were asked for, but no device has a score")
    by_name |= {name_of(atom): atom for atom in named}
    note_alike((group for atom in by_name.values() for group in atom), "groups")
    atoms = tuple(by_name[name] for name in natural_order(by_name))
    place = {atom: i for i, atom in enumerate(atoms)}
    codes = [np.array([place[atom] for atom in of.atoms], dtype=np.int64)[of.codes] for of in found]
    table = [[own[code == at] for own, code in zip(held, codes, strict=True)] for at in range(len(atoms))]
    return _Parts(atoms, table, codes, any(several for _, several in shared))


def _with_hidden_scores(
    host: Engine, grouping: Grouping, parts: _Parts, own: Sequence[Any], seed: int
) -> tuple[Grouping, dict[str, int]]:
    """Draw the scores that regression over many atoms hides; return also what the result records of the draw."""
    if not grouping.hides_drawn_scores:
        return grouping, {}
    seed = host.share(seed)[0]  # every rank has drawn its own
    return replace(grouping, hidden=parts.hidden(own, host.here, seed)), {"group_seed": seed}


def _grouped_batch(
    host: Engine,
    samples: WeightedScores,
    alphas: Sequence[Alpha],
    method: str,
    requirement: Requirement,
    grouping: Grouping,
    options: Mapping[str, Any],
) -> Batch:
    """Calibrate overlapping groups in one run: `samples` hold the scores of the devices here by atom."""
    chosen = make_options(method, options)
    if get_method(method).weights(chosen) != "scores":
        raise ValueError(f"overlapping groups need a method that counts scores of any weight, e-dcp, got {method!r}")
    _refuse_pac_confidence(requirement)
    levels = tuple(exact_alpha(alpha) for alpha in alphas)
    check_shares(requirement, host.network.ids)
    sizes = in_rows(host.blocks, host.share(samples.sizes))
    site = Site(host.network, host.here, sizes, requirement, None, levels)
    begin(host.observer, site, method, None)
    part, cost = host.run(grouped(site, samples, chosen, grouping), 1)
    outcome = Outcome.joined(host.blocks, host.share(part))
    return Batch(outcome, cost, _named_options(method, chosen), sizes)


def _refuse_pac_confidence(requirement: Requirement) -> None:
    if requirement.pac_confidence is not None:
        raise ValueError(
            "pac_confidence and groups do not go together: how many scores of a group there are is itself a draw; "
            "leave pac_confidence out, or calibrate each group on its own"
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Many calibrations from one run: every trial and every alpha, with the cost of one of them.

    `sizes` says how many scores every device held in each trial, (devices, trials), `items` how many examples.
    """

    outcome: Outcome
    cost: Cost
    options: dict[str, Any]
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 1), dtype=np.int64))
    items: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 1), dtype=np.int64))

    def __repr__(self) -> str:
        devices, trials, levels = self.outcome.thresholds.shape
        kinds = {certificate.kind for row in self.outcome.certificates for certificate in row}
        return (
            f"Batch({several(trials, 'trial')} at {several(levels, 'level')} on {several(devices, 'device')}, "
            f"{' or '.join(sorted(kinds))}; {self.cost} for one)"
        )

    def _repr_html_(self) -> str:
        from conformesh import cards

        largest = self.outcome.thresholds.max(axis=0)
        levels = [f"level {a}" for a in range(largest.shape[1])]
        rows = [[str(t), *(f"{value:.6g}" for value in row)] for t, row in enumerate(largest.tolist())]
        table = cards.table(["trial", *levels], rows, right=levels)
        return cards.card(repr(self)[6:-1], parts=[table])


@contextmanager
def running(engine: str | Engine, network: Network, observer: Observer | None = None) -> Iterator[Engine]:
    """Have an engine ready for this network: the one given, or a new one of that name for as long as it is needed."""
    if observer is not None and not callable(observer):
        raise TypeError(
            f"observer must be a function of round, message and answer, got {type(observer).__name__} {observer!r:.40}"
        )
    if not isinstance(engine, str):
        if not hasattr(engine, "network"):
            raise TypeError(
                f"engine must be the name of one ({', '.join(ENGINES)}) or an engine made for this network, got "
                f"{type(engine).__name__} {str(engine)[:40]!r}"
            )
        if observer is not None:
            raise ValueError("an engine that is made already has its own observer; give the observer to the engine")
        if engine.network is not network:
            raise ValueError(f"the engine was made for {engine.network!r}, not for {network!r}; make one for each")
        with engine.together():
            yield engine
        return
    made = make_engine(engine, network, observer)
    with made.together():
        yield made
    made.close()


def solve_draws(
    samples: WeightedScores,
    network: Network,
    alphas: Sequence[Alpha],
    method: str,
    *,
    requirement: Requirement = DEFAULT,
    items: NDArray[np.int64] | None = None,
    observer: Observer | None = None,
    joint: bool = False,
    engine: str | Engine = "simulator",
    faults: Faults | Mapping[str, Any] | None = None,
    **options: Any,
) -> Batch:
    """Calibrate every trial of `samples` at every alpha in one run of an engine.

    Returns thresholds of shape (devices, trials, alphas), ``certificates[trial][alpha]`` and the cost of a single run,
    as if each trial had been run alone; a search with stages counts those of the slowest. With `joint` the cost is that
    of the whole: the trials are groups of one network that are calibrated together. `samples` are those of all devices,
    by row, or only those of the devices that the engine hosts here. `items` says how many calibration examples these
    devices hold, (devices, trials), where trials hold a part of them or each example has several entries. `faults` as
    in `calibrate`.
    """
    if not isinstance(samples, WeightedScores):
        raise TypeError(
            f"samples must be WeightedScores, such as WeightedScores.of(arrays), got {type(samples).__name__}; calibrate takes "
            "arrays, dicts and frames"
        )
    if not isinstance(network, Network):
        raise TypeError(
            f"network must be a Network, got {type(network).__name__} {str(network)[:40]!r}; calibrate takes names of "
            "topologies and NetworkX graphs too"
        )
    # A risk (losses) may well be above 1/2 of the largest loss.
    levels = tuple(exact_alpha(alpha) for alpha in as_levels(alphas, "alphas"))
    if not levels:
        raise ValueError("calibration needs at least one alpha, got none")
    entry, chosen = get_method(method), make_options(method, options)
    wrong = as_faults(faults)
    refuse_faults(method, chosen, wrong)
    kept = requirement_of(method, requirement)
    check_shares(kept, network.ids)
    if joint and samples.trials > 1 and not kept.part and entry.private and chosen.epsilon is not None:
        raise ValueError(
            f"method {method!r} with epsilon counts every example once, and both sides of an interval would count it "
            "twice, which costs twice the epsilon; calibrate one score, or each side by itself with half of epsilon"
        )
    with running(engine, network, observer) as host:
        mine = samples_here(host, samples)
        sizes = in_rows(host.blocks, host.share(mine.sizes))
        held = None if items is None else in_rows(host.blocks, host.share(rows_here(host, items)))
        site = Site(network, host.here, sizes, kept, held, levels)
        begin(host.observer, site, method, wrong)
        runs = 1 if joint else samples.trials * (len(levels) if entry.per_alpha else 1)
        part, cost = host.run(run_method(method, site, mine, chosen, wrong), runs, wrong)
        outcome = Outcome.joined(host.blocks, host.share(part))
    refuse_nan(outcome.thresholds, method)
    return Batch(outcome, cost, _named_options(method, chosen), sizes, sizes if held is None else held)


def _named_options(method: str, chosen: Any) -> dict[str, Any]:
    """Return a method's options as they may stand in a result."""
    return {name: _plain(getattr(chosen, name)) for name in get_method(method).option_names()}


def samples_here(host: Engine, samples: WeightedScores) -> WeightedScores:
    """Return the samples of the devices hosted here, in their order, of all in the order of rows, or as they are."""
    K = host.network.devices
    if samples.devices == K:
        rows = host.here
        return samples if np.array_equal(rows, np.arange(K)) else samples.taken(rows)
    if samples.devices != len(host.here):
        raise ValueError(
            f"the network {host.network.name!r} has {K} devices but scores came for {samples.devices}; pass one array "
            "per device (empty where a device has none)"
        )
    return samples


def rows_here(host: Engine, table: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of the devices hosted here, of all or as they are."""
    return table[host.here] if len(table) == host.network.devices else table


def _plain(option: Any) -> Any:
    """Return an option as it may stand in a JSON file: one's own matrix or weights by name only."""
    if option is None or isinstance(option, str | bool | int | float | tuple):
        return option
    return getattr(option, "name", "matrix")


def counted_ranks(
    samples: WeightedScores, thresholds: ArrayLike, trial: int = 0
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Count all scores at or below each threshold: the truth a certificate speaks of, for checks and reports."""
    return np.searchsorted(np.sort(samples.pooled(trial)), np.asarray(thresholds), side="right")
