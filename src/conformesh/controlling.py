r"""`control`: from losses that devices hold to a certified lambda that keeps the mean loss small.

A loss :math:`L_i(\lambda)` between 0 and B never rises as sets grow. The devices look for the smallest lambda with

.. math:: \sum_k u_k \sum_{i \in k} L_i(\lambda) \le \rho - B \max_k u_k, \qquad u_k = \pi_k / n_k,

which keeps the mean loss of a new example at most at the risk :math:`\rho` (docs/guarantees.md; with one device
ordinary conformal risk control, [Angelopoulos2024]). In whole numbers it is a weighted rank like every other promise
here: an item's loss, cut into parts and rounded up, falls at its breakpoints, and the falls at or below lambda are what
is counted. So every engine runs it, by `e-dcp`, with the same certificate.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from conformesh.calibrating import TooFewScores, running, solve_draws
from conformesh.engines import Engine
from conformesh.engines.base import Observer, held_here, ids_here
from conformesh.graph.network import Network
from conformesh.inputs import DEVICE, as_held, as_network, as_target, held_column, in_rows_of
from conformesh.io.arrays import columns_of
from conformesh.kernels.ranks import AUTO, LOSS_UNITS, Alpha, Requirement, as_levels, exact_number, make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.losses import Loss, Steps, as_loss
from conformesh.methods import METHODS, check_keywords, get_method, make_options
from conformesh.notes import CalibrationNote
from conformesh.protocols.site import in_rows
from conformesh.result.calibration import Calibration
from conformesh.result.control import Control
from conformesh.result.several import Calibrations

ITEM, LAMBDA, LOSS = "item", "lambda", "loss"  # the columns of a long frame, beside `device`


def control(
    losses: Iterable[Any] | Mapping[Any, Any],
    network: Network | str | Any,
    risk: Alpha = 0.1,
    method: str = "e-dcp",
    *,
    loss: Loss | str | None = None,
    bound: float | None = None,
    target: str | Mapping[Any, Any] = "sizes",
    rank: str = AUTO,
    strict: bool = False,
    observer: Observer | None = None,
    engine: str | Engine = "simulator",
    **options: Any,
) -> Control:
    """Agree on a lambda whose sets lose on average at most `risk`.

    Parameters
    ----------
    losses
        What every device holds, in the order of ``network.ids`` or as a dict by device name: `Steps`, which a loss
        makes from outputs and labels, or (breakpoints, values) for each item. Or a frame with the columns `device`,
        `item`, `lambda` and `loss`, a row for each item and lambda.
    network, target, rank, strict, observer, engine, **options
        As in `calibrate`.
    risk
        The largest mean loss of new examples, in the units of the loss, taken as the decimal written.
    method
        `e-dcp`: no other adds up losses.
    loss
        The loss that the steps are of, or its name, so that the result can build sets by itself.
    bound
        The largest loss possible; by default what the steps say, and 1 for a frame.

    Returns
    -------
    Control
        Its `threshold` is lambda: -inf where the loss is small enough with nothing in the sets, +inf where only sets
        that hold everything keep the promise.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, control, losses
    >>> rng, fnr = np.random.default_rng(0), losses.FalseNegativeRate()
    >>> devices = [(p := rng.random((50, 10)), rng.random((50, 10)) < p) for _ in range(20)]
    >>> result = control([fnr(p, y) for p, y in devices], Network.torus(5, 4), risk=0.1, loss=fnr)
    >>> result.certificate.kind, round(result.threshold, 4)
    ('counted', 0.6682)
    """
    check_keywords("control", method, options)
    requirement = make_requirement(as_target(losses, target), rank)
    return _controlled(losses, network, [risk], method, loss, bound, requirement, strict, observer, engine, options)[0]


def control_several(
    losses: Iterable[Any] | Mapping[Any, Any],
    network: Network | str | Any,
    risks: Sequence[Alpha] = (0.1,),
    method: str = "e-dcp",
    *,
    loss: Loss | str | None = None,
    bound: float | None = None,
    target: str | Mapping[Any, Any] = "sizes",
    rank: str = AUTO,
    strict: bool = False,
    observer: Observer | None = None,
    engine: str | Engine = "simulator",
    **options: Any,
) -> Calibrations:
    """Agree on a lambda for every risk in one run; the parameters are those of `control`.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, control_several, losses
    >>> rng = np.random.default_rng(0)
    >>> steps = [losses.Steps.on_grid([0, 1, 2], rng.random((50, 1)) * [1, 0.1, 0]) for _ in range(8)]
    >>> several = control_several(steps, Network.cycle(8), risks=(0.02, 0.2))
    >>> [several.get(risk).threshold for risk in several.alphas]
    [2.0, 1.0]
    """
    check_keywords("control_several", method, options)
    risks = as_levels(risks, "risks")
    requirement = make_requirement(as_target(losses, target), rank)
    results = _controlled(losses, network, risks, method, loss, bound, requirement, strict, observer, engine, options)
    return Calibrations({(None, result.risk): result for result in results}, results[0].cost)


def _controlled(
    losses: Any,
    network: Any,
    risks: list[Alpha],
    method: str,
    loss: Loss | str | None,
    bound: float | None,
    requirement: Requirement,
    strict: bool,
    observer: Observer | None,
    engine: str | Engine,
    options: dict[str, Any],
) -> list[Control]:
    """Return a result for every risk, all from one run."""
    started = time.perf_counter()
    kind, held = as_loss(loss), _as_steps(losses, bound)
    if isinstance(held, WeightedScores):
        raise TypeError(
            "control takes losses of every device, as Steps or a frame, got WeightedScores, which are scores"
        )
    network = as_network(network, held)
    _require_losses(method, options)
    with running(engine, network, observer) as host:
        mine = ids_here(host)
        rows = held_here(host, in_rows_of(held, network, mine, "losses"), "losses")
        own = [_checked(steps, name, bound) for name, steps in zip(mine, rows, strict=True)]
        largest = _agreed_bound(host.share(_bounds(own, mine)), bound)
        amounts = [_as_alpha(risk, largest) for risk in risks]
        falls = [steps.weighed(LOSS_UNITS) for steps in own]
        items = np.array([len(steps) for steps in own], dtype=np.int64)[:, None]
        n = int(in_rows(host.blocks, host.share(items)).sum())
        batch = solve_draws(
            WeightedScores.weighted([[points for points, _ in falls]], [[weights for _, weights in falls]], mine),
            network,
            amounts,
            method,
            requirement=replace(requirement, loss_unit=LOSS_UNITS),
            items=items,
            engine=host,
            **options,
        )
    for note in batch.outcome.notes:
        warnings.warn(note, CalibrationNote, stacklevel=3)
    results = []
    for level, (risk, alpha) in enumerate(zip(risks, amounts, strict=True)):
        one = Calibration.of(
            batch.outcome,
            batch.cost,
            method=method,
            alpha=alpha,
            device_ids=network.ids,
            scores=n,
            level=level,
            network=network.name,
            options=batch.options,
            seconds=time.perf_counter() - started,
        )
        amount = float(exact_number(risk, ""))
        notes = (*one.notes, *_in_words(one, amount, strict))
        results.append(Control(**{**vars(one), "notes": notes}, risk=amount, bound=largest, loss=kind))
    return results


def _in_words(result: Calibration, risk: float, strict: bool) -> tuple[str, ...]:
    """Say what an infinite lambda means; the sentence is also a warning, or an error if only that was asked for."""
    n, certificate = result.scores, result.certificate
    if certificate.is_short(n):
        words = (
            f"risk={risk:g} is too small for {n} items on {result.devices} devices: what the new example may lose is "
            "more than all that may be lost, so lambda is +inf and every set holds everything; use more items or a "
            "larger risk"
        )
        if strict:
            raise TooFewScores(words)
        warnings.warn(words, TooFewScores, stacklevel=4)
    elif np.isposinf(result.threshold):
        words = (
            f"no lambda that was given brings the mean loss down to risk={risk:g}: lambda is +inf, where every set "
            "must hold everything and lose nothing"
        )
        warnings.warn(words, CalibrationNote, stacklevel=4)
    elif np.isneginf(result.threshold):
        words = f"the mean loss is below risk={risk:g} with nothing in the sets: lambda is -inf, and no set is needed"
        warnings.warn(words, CalibrationNote, stacklevel=4)
    else:
        return ()
    return (words,)


def _require_losses(method: str, options: Mapping[str, Any]) -> None:
    """Refuse a method that counts scores, where losses are to be added up."""
    if get_method(method).weights(make_options(method, options)) != "scores":
        able = [name for name, entry in METHODS.items() if entry.weights(entry.options()) == "scores"]
        raise ValueError(
            f"method {method!r} counts scores and cannot add up losses; risk control needs {' or '.join(able)}"
        )


def _as_alpha(risk: Alpha, bound: float) -> Fraction:
    """Return a risk as a part of the largest possible loss."""
    words = f"risk must be a number strictly between 0 and the largest possible loss, {bound:g}, got {risk}"
    part = exact_number(risk, words) / exact_number(bound, f"bound must be a number, got {bound!r}")
    if not 0 < part < 1:
        raise ValueError(words)
    return part


def _as_steps(losses: Any, bound: float | None) -> Any:
    """Return what devices hold, each as `Steps` or what makes them."""
    if isinstance(losses, Steps):
        raise TypeError("losses are the Steps of one device; give a list with those of each device, or a dict by name")
    columns = columns_of(losses)
    if columns is None:
        return as_held(losses, what="losses")
    needed = (DEVICE, ITEM, LAMBDA, LOSS)
    if missing := [name for name in needed if name not in columns]:
        raise ValueError(
            f"a frame of losses must have the columns {', '.join(map(repr, needed))}, a row for each item and lambda; "
            f"{missing[0]!r} is missing among {', '.join(columns[:8])}; rename its columns"
        )
    items, lambdas, values = (held_column(losses, name, "losses") for name in needed[1:])
    found = {}
    for name, own in items.items():
        try:
            found[name] = Steps.of_table(own, lambdas[name], values[name], 1.0 if bound is None else bound)
        except ValueError as problem:
            raise ValueError(f"device {name}, {problem}") from None
    return found


def _checked(held: Any, name: str, bound: float | None) -> Steps:
    """Return a device's losses as steps that may be controlled, or say what is wrong with them."""
    who = f"device {name}"
    if isinstance(held, Steps):
        steps = held if bound is None else replace(held, bound=bound)
    else:
        try:
            steps = Steps.of(held, 1.0 if bound is None else bound)
        except (TypeError, ValueError) as problem:
            shape = getattr(held, "shape", None)
            given = f"{type(held).__name__}: {problem}" if shape is None else f"an array of shape {tuple(shape)}"
            raise ValueError(
                f"{who}: losses must be Steps, or (breakpoints, values) for each item, got {given}; a loss makes Steps "
                "of outputs and labels, such as losses.FalseNegativeRate()(outputs, labels), and "
                "losses.Steps.on_grid(lambdas, table) of a table of losses, items x lambdas"
            ) from None
    return steps.checked(who)


def _bounds(own: Sequence[Steps], names: Sequence[str]) -> dict[str, float]:
    """Return the bound of every device here that has items."""
    return {name: steps.bound for name, steps in zip(names, own, strict=True) if len(steps)}


def _agreed_bound(parts: Sequence[Mapping[str, float]], given: float | None) -> float:
    """Return the one bound of all devices."""
    if given is not None:
        return float(given)
    bounds = {name: bound for part in parts for name, bound in part.items()}
    if len({*bounds.values()}) > 1:
        low, high = min(bounds, key=bounds.__getitem__), max(bounds, key=bounds.__getitem__)
        raise ValueError(
            f"all devices must know the same largest loss, got {bounds[low]:g} on device {low} and {bounds[high]:g} on "
            f"device {high}; say it with bound="
        )
    return next(iter(bounds.values()), 1.0)
