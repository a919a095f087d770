r"""Learn-then-Test: which lambdas of a grid keep a risk, where the loss may rise and fall with lambda.

Every device adds up the losses of its items at each lambda. One sum over all devices gives every device the same
totals, from which it computes the same p-values (`kernels.tail_bounds`) and tests the lambdas so that, with probability
`pac_confidence`, all certified ones keep the risk (`kernels.family_wise`; docs/guarantees.md).

A loss is rounded up to a whole number of parts of its bound, so that sums do not depend on the order of addition and
are never too small.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.common.arrays import as_array, frame_columns
from conformesh.common.names import unknown_name
from conformesh.common.notes import emit_note
from conformesh.engines import Engine, engine_on
from conformesh.engines.observers import announce_run, rounds_on_a_bar
from conformesh.files.input_forms import ColumnRoles, DeviceArrays, FrameRows, LongFrame, RowReader, as_frame
from conformesh.graph.network import Network
from conformesh.guarantee import Guarantee, Mixture
from conformesh.kernels.family_wise import TESTINGS
from conformesh.kernels.ranks import LOSS_UNITS, POOLED_MIXTURES, Requirement, check_shares, make_requirement
from conformesh.pipeline.detection import mixture_shares
from conformesh.pipeline.networks import as_network
from conformesh.pipeline.problems import gather_counts
from conformesh.pipeline.solver import MethodRun, TooFewScores
from conformesh.protocols.aggregate import sum_over_devices
from conformesh.protocols.block import Block
from conformesh.protocols.messages import Protocol
from conformesh.results.lambda_tests import ItemWeights, LambdaTests, RiskTest, p_values_of_totals
from conformesh.scores.losses import StepLosses, sums_of_table
from conformesh.table import Table

RISK = "risk"  # the name of a single risk
ASCENDING, DESCENDING = "ascending", "descending"  # words for the lambdas of a frame, in this order
_ITEM, _LAMBDA, _LOSS = "item", "lambda", "loss"  # columns of a long frame of losses
# Bits of the largest weight where weights of devices have no small common factor; all others are rounded up.
_WEIGHT_BITS = 20
_LARGEST_WEIGHT = 2**_WEIGHT_BITS


class Grid(NamedTuple):
    """The lambdas that are tested, in their order; before a frame was read perhaps only their order.

    Attributes
    ----------
    values
        Numbers, or a row of parameters for each lambda; None where they are those of the frame.
    order
        `ascending` or `descending`, for those of the frame.
    """

    values: Floats | None
    order: str = ""

    @classmethod
    def of(cls, given: Any) -> Grid:
        """Read what a user gave as `grid`."""
        if given is None:
            raise ValueError(
                "monotone=False needs grid=, the lambdas to test in the order of testing; begin with the one that is "
                "most likely to keep the risk. For a frame also grid='descending' or 'ascending', all its lambdas"
            )
        if isinstance(given, str):
            if given not in (ASCENDING, DESCENDING):
                raise ValueError(unknown_name("grid", given, (ASCENDING, DESCENDING)))
            return cls(None, given)
        try:
            values = np.array(as_array(given, "grid"), dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"grid must be numbers, or tuples of equally many numbers for several parameters, got {str(given)[:60]}"
            ) from None
        if values.ndim not in (1, 2) or not values.size or not np.isfinite(values).all():
            raise ValueError(
                "grid must be at least one finite number, or tuples of equally many, got "
                f"{'an infinite number or NaN' if values.size else 'none'} in shape {values.shape}"
            )
        if len(np.unique(values, axis=0)) < len(values):
            raise ValueError("grid must hold each lambda once; remove the repeated ones")
        return cls(values)


class _DeviceSums(NamedTuple):
    """What the devices of this process add to the sums of one risk.

    Attributes
    ----------
    names
        The devices, or None: those of the network, in its order.
    numbers
        A row for each device: the number of its items, and the sum of their losses at each lambda, in whole parts of
        the bound.
    """

    names: tuple[str, ...] | None
    numbers: Ints


def certify_lambdas(
    losses: Any,
    network: Any,
    guarantee: Guarantee,
    run: MethodRun,
    *,
    risks: Mapping[str, Fraction],
    is_named: bool,
    grid: Grid,
    objective: Any,
    bound: Any,
    roles: ColumnRoles,
    ids: Sequence[Sequence[str]],
) -> LambdaTests:
    """Test every lambda of a grid in one run; see `api.control`. `risks` has the level of each risk by name."""
    started = time.perf_counter()
    options = run.chosen_options
    if idle := [name for name in run.options if name != "aggregate"]:
        raise ValueError(
            f"option {idle[0]!r} is for the search of a threshold, and monotone=False only adds up; leave it out "
            "(aggregate= may be given)"
        )
    if run.testing not in TESTINGS:
        raise ValueError(unknown_name("testing", run.testing, TESTINGS))
    given = _by_risk(losses, risks, is_named, roles)
    forms = {name: _read_form(own, roles, name if is_named else _LOSS, ids) for name, own in given.items()}
    first = next(iter(forms.values()))
    guarantee = _with_shares(guarantee, first, roles)
    network = as_network(network, first.table)
    with (
        rounds_on_a_bar(f"tests on {network.name}", run.observer, run.progress) as observer,
        engine_on(network, run.engine, observer) as engine,
    ):
        _check_agreement(engine, grid, risks, guarantee, run)
        values = _agreed_grid(engine, forms, grid)
        bounds = _agreed_bounds(engine, {name: form.largest(_bound_of(bound, name)) for name, form in forms.items()})
        for name, level in risks.items():
            if not 0 < level < Fraction(str(bounds[name])):
                raise ValueError(
                    f"risk must be a number strictly between 0 and the largest possible loss, {bounds[name]:g}, got "
                    f"{float(level):g}"
                )
        local = {name: form.sums(values, bounds[name]) for name, form in forms.items()}
        sums, counts = _sums_and_counts(engine, local)
        sizes = gather_counts(engine, counts[:, None])[:, 0]
        weights, each = _weigh(guarantee, network, sizes)
        largest = LOSS_UNITS * weights.heaviest * max(weights.items, 1)
        block = Block(network, engine.rows, sizes[:, None])
        announce_run(engine.observer, block, run.method, run.faults)
        totals, cost = engine.run(_totals(block, sums * each[engine.rows][:, None], largest, options.aggregate))
    named = dict(zip(risks, np.split(totals, len(risks)), strict=True))
    confidence = guarantee.pac_confidence
    assert confidence is not None
    found = LambdaTests(
        lambdas=values,
        risks={
            name: RiskTest(
                level,
                bounds[name],
                tuple(named[name].tolist()),
                p_values_of_totals(weights, named[name], level / Fraction(str(bounds[name]))),
            )
            for name, level in risks.items()
        },
        pac_confidence=confidence,
        testing=run.testing,
        mixture=guarantee.mixture,
        weights=weights,
        objective=_objective(objective, len(values)),
        loss=None if guarantee.loss is None else guarantee.loss.loss,
        method=run.method,
        options={"aggregate": options.aggregate},
        network=network.name,
        device_ids=network.ids,
        cost=cost,
        seconds=time.perf_counter() - started,
    )
    return _with_notes(found, run.strict)


def _totals(block: Block, numbers: Ints, largest: int, aggregate: str) -> Protocol[Ints]:
    """Return the sum of each number over all devices."""
    return (yield from sum_over_devices(block, numbers, largest, aggregate))


def _with_notes(found: LambdaTests, strict: bool) -> LambdaTests:
    """Say, or with `strict` raise, that nothing is certified."""
    if not (words := found.failure):
        return found
    if strict:
        raise TooFewScores(words)
    emit_note(words)
    return structs.replace(found, notes=(words,))


# --- weights of devices -----------------------------------------------------------------------------------------------


def _with_shares(guarantee: Guarantee, form: _Form, roles: ColumnRoles) -> Guarantee:
    """Return the guarantee with the shares that a column of the frame gives, where one was named."""
    kind = guarantee.mixture.kind
    column = roles.given.get("share") if kind == POOLED_MIXTURES[0] else kind if kind not in POOLED_MIXTURES else None
    if guarantee.mixture.shares is not None or column is None:
        return guarantee
    if not isinstance(form, _FrameForm):
        raise ValueError(
            f"{unknown_name('mixture', column, POOLED_MIXTURES)}; a column of shares needs losses in a frame, and "
            "arrays a dict of shares by device"
        )
    made = make_requirement(form.shares(column))
    return structs.replace(guarantee, mixture=Mixture(made.mixture, {**(made.shares or {})}))


def _weigh(guarantee: Guarantee, network: Network, sizes: Ints) -> tuple[ItemWeights, Ints]:
    """Return what items weigh in all, and a whole weight for the items of each device."""
    n, mixture = int(sizes.sum()), guarantee.mixture
    if not n:  # an empty device is fine, all of them empty are not
        raise ValueError("control needs at least one item, got none on any device")
    if mixture.kind == "sizes":
        return ItemWeights(n, 1, Fraction(n)), np.ones(len(sizes), dtype=np.int64)
    requirement = Requirement(mixture.kind, shares=mixture.shares)
    check_shares(requirement, network.ids)
    shares = mixture_shares(requirement, sizes, network.ids)
    each = [share / size if size else Fraction(0) for share, size in zip(shares, sizes.tolist(), strict=True)]
    missing = sum((share for share, size in zip(shares, sizes.tolist(), strict=True) if not size), Fraction(0))
    if not any(each):
        raise ValueError("the mixture gives no share to any device that has items")
    common = math.lcm(*(u.denominator for u in each))
    factor = Fraction(common, math.gcd(*(int(u * common) for u in each)))
    if max(each) * factor > _LARGEST_WEIGHT:
        factor = Fraction(_LARGEST_WEIGHT) / max(each)
    # Up: a loss may count for more than its share, never for less.
    weights = [math.ceil(u * factor) for u in each]
    n = int(sizes[np.array(weights) > 0].sum())  # items of devices without a share say nothing
    facts = ItemWeights(n, max(weights), factor, missing * factor)
    if facts.heaviest * n > 2**62 // LOSS_UNITS:
        raise ValueError(f"{n:,} items with weights this fine add up to more than 2^62; use mixture='sizes'")
    return facts, np.array(weights, dtype=np.int64)


# --- what all devices must agree on -----------------------------------------------------------------------------------


def _agreed_grid(engine: Engine, forms: Mapping[str, _Form], grid: Grid) -> Floats:
    """Return the lambdas; those of frames are the ones that occur on any device."""
    if grid.values is not None:
        return grid.values
    if not all(isinstance(form, _FrameForm) for form in forms.values()):
        raise ValueError(f"grid={grid.order!r} is for frames with a column 'lambda'; give the lambdas as numbers")
    own = [form.lambdas for form in forms.values() if isinstance(form, _FrameForm)]
    found = np.unique(np.concatenate(engine.share(np.concatenate(own))))
    if not np.isfinite(found).all():
        raise ValueError("column 'lambda' must hold finite numbers where monotone=False")
    return found if grid.order == ASCENDING else found[::-1].copy()


def _agreed_bounds(engine: Engine, largest: Mapping[str, float | None]) -> dict[str, float]:
    """Return the largest loss of each risk, the same on all devices; processes without items know none."""
    bounds = {}
    for name, own in largest.items():
        each = {one for one in engine.share(own) if one is not None}
        if len(each) > 1:
            raise ValueError(
                f"all devices must know the same largest loss, got {min(each):g} and {max(each):g}; say it with bound="
            )
        bounds[name] = each.pop() if each else 1.0
    return bounds


def _check_agreement(
    engine: Engine, grid: Grid, risks: Mapping[str, Fraction], guarantee: Guarantee, run: MethodRun
) -> None:
    """Refuse processes of a job that were asked for different grids or risks."""
    asked = (None if grid.values is None else grid.values.tolist(), grid.order, [*risks.items()])
    how = (guarantee.pac_confidence, guarantee.mixture.kind, run.testing, run.chosen_options.aggregate)
    if len({*engine.share(sha256(repr((asked, how)).encode()).hexdigest())}) > 1:
        raise ValueError("all processes must give the same grid, risks, pac_confidence, mixture, testing and aggregate")


# --- reading losses ---------------------------------------------------------------------------------------------------


def _by_risk(losses: Any, risks: Mapping[str, Fraction], is_named: bool, roles: ColumnRoles) -> dict[str, Any]:
    """Return the losses of each risk; a frame has a column for each of several risks."""
    if not is_named:
        return {RISK: losses}
    data = as_frame(losses, roles, _ITEM, "losses")
    if frame_columns(data) is not None:
        return dict.fromkeys(risks, data)
    if not isinstance(losses, Mapping) or {*losses} != {*risks}:
        got = ", ".join(map(repr, losses)) if isinstance(losses, Mapping) else type(losses).__name__
        raise ValueError(
            f"several risks need losses for each of them: a dict with the keys {', '.join(map(repr, risks))}, or a "
            f"frame with a column for each, got {got}"
        )
    return {name: losses[name] for name in risks}


class _ArrayForm:
    """Losses given as an array (items, lambdas) or as `StepLosses` for each device."""

    def __init__(self, losses: Any, ids: Sequence[Sequence[str]]) -> None:
        self.arrays = DeviceArrays(losses, "losses")
        if not len(self.arrays.arrays):
            raise ValueError("calibration needs at least one device, got none")
        self.who = RowReader(self.arrays, np.zeros(0, np.int64), ids).who
        self.table = Table(self.arrays.names, np.arange(self.arrays.devices + 1))

    def largest(self, bound: float | None) -> float | None:
        """Return the largest loss possible: what the user gave, or what the steps say; None without items."""
        if bound is not None:
            return bound
        steps = [own for own in self.arrays.arrays if isinstance(own, StepLosses)]
        known = {own.bound for own in steps if len(own)}
        if len(known) > 1:
            raise ValueError(
                f"all devices must know the same largest loss, got {sorted(known)[:5]}; say it with bound="
            )
        has_arrays = any(np.size(own) for own in self.arrays.arrays if not isinstance(own, StepLosses))
        return known.pop() if known else 1.0 if has_arrays else None

    def sums(self, grid: Floats, bound: float) -> _DeviceSums:
        """Return the sums of the losses at each lambda."""
        rows = [self._row(own, grid, bound, self.who(k)) for k, own in enumerate(self.arrays.arrays)]
        return _DeviceSums(self.arrays.names, np.array(rows, dtype=np.int64).reshape(-1, len(grid) + 1))

    def _row(self, own: Any, grid: Floats, bound: float, who: str) -> list[int]:
        if isinstance(own, StepLosses):
            if grid.ndim != 1:
                raise ValueError(f"{who}: StepLosses have one lambda, and the grid has {grid.shape[1]} parameters")
            return [len(own), *replace(own, bound=bound).sums(grid, LOSS_UNITS, who)]
        table = np.asarray(as_array(own, f"{who}, losses"))
        if table.shape[0:1] == (0,):
            return [0] * (len(grid) + 1)
        if table.ndim != 2 or table.shape[1] != len(grid) or table.dtype.kind not in "fiub":
            raise ValueError(
                f"{who}: losses must be numbers with a row for each item and a column for each lambda of the grid, "
                f"{len(grid)}, got shape {table.shape} of {table.dtype}"
            )
        return [len(table), *sums_of_table(table, bound, LOSS_UNITS, who)]


class _FrameForm:
    """A long frame with a row for each item and lambda, or a `Table` that was read from one."""

    def __init__(
        self, names: tuple[str, ...], steps: Sequence[StepLosses], column: str, rows: FrameRows | None = None
    ) -> None:
        self.names, self.steps, self.column, self.rows = names, steps, column, rows
        self.lambdas = np.unique(np.concatenate([own.lambdas for own in steps]))
        self.table = Table(names, np.arange(len(names) + 1))

    @classmethod
    def of(cls, data: Any, roles: ColumnRoles, column: str) -> _FrameForm:
        """Read a frame."""
        frame = LongFrame(data, roles, (_ITEM, _LAMBDA, column))
        rows, empty = FrameRows(frame), np.zeros(0, np.int64)
        parts = [rows.column(name, "losses", empty) for name in (_ITEM, _LAMBDA, column)]
        steps = []
        for name, items, lambdas, values in zip(frame.names, *parts, strict=True):
            try:
                steps.append(StepLosses.of_table(items, lambdas, values))
            except ValueError as problem:
                raise ValueError(f"device {name}, {problem}") from None
        return cls(frame.names, steps, column, rows)

    def shares(self, column: str) -> dict[str, Any]:
        """Return the share of every device, from a column that repeats it in each of its rows."""
        if self.rows is None or not self.rows.has_column(column):
            known = (*POOLED_MIXTURES, *(() if self.rows is None else self.rows.frame.columns))
            raise ValueError(unknown_name("mixture", column, known))
        return RowReader(self.rows, self.rows.frame.sizes).shares(column)

    def largest(self, bound: float | None) -> float:
        """Return the largest loss possible; a frame does not say it."""
        return 1.0 if bound is None else bound

    def sums(self, grid: Floats, bound: float) -> _DeviceSums:
        """Return the sums of the losses at each lambda, at which every item must have one."""
        if grid.ndim != 1:
            raise ValueError("a frame has one column 'lambda'; give arrays for a grid of several parameters")
        rows = []
        for name, own in zip(self.names, self.steps, strict=True):
            if (missing := own.first_missing(grid)) is not None:
                item, place = missing
                raise ValueError(
                    f"device {name}, item {own.name(item)}: column {self.column!r} has no row for lambda "
                    f"{grid[place]:g}; every item needs one for each lambda of the grid"
                )
            rows.append([len(own), *replace(own, bound=bound).sums(grid, LOSS_UNITS, f"device {name}")])
        return _DeviceSums(self.names, np.array(rows, dtype=np.int64).reshape(-1, len(grid) + 1))


_Form = _ArrayForm | _FrameForm


def _read_form(losses: Any, roles: ColumnRoles, column: str, ids: Sequence[Sequence[str]]) -> _Form:
    """Return losses in the form that was given."""
    if isinstance(losses, StepLosses):
        raise TypeError(
            "losses are the StepLosses of one device; give a list with those of each device, or a dict by name"
        )
    if isinstance(losses, Table):
        if losses.losses is None:
            raise TypeError("losses must be arrays or StepLosses of each device, got a Table of scores")
        steps = [*losses.losses]
        if losses.names is not None and all(own.names is not None for own in steps if len(own)):
            return _FrameForm(losses.names, steps, column)  # items with names come from a long table
        return _ArrayForm(steps if losses.names is None else dict(zip(losses.names, steps, strict=True)), ids)
    data = as_frame(losses, roles, column, "losses")
    if frame_columns(data) is not None:
        return _FrameForm.of(data, roles, column)
    return _ArrayForm(data, ids)


def _bound_of(bound: Any, name: str) -> float | None:
    """Return the bound of a risk: one for all, or by name."""
    given = bound.get(name) if isinstance(bound, Mapping) else bound
    if given is None:
        return None
    if not 0 < float(given) < math.inf:
        raise ValueError(f"bound must be a finite number above 0, the largest loss possible, got {given}")
    return float(given)


def _sums_and_counts(engine: Engine, local: Mapping[str, _DeviceSums]) -> tuple[Ints, Ints]:
    """Return the sums of the local devices, (local devices, risks * lambdas), and their numbers of items."""
    counts: dict[str, Ints] = {}
    sums = []
    for name, (names, numbers) in local.items():
        table = Table(names, np.arange(len(numbers) + 1), outputs=numbers)
        placed = table.ordered(engine.network, engine.rows, "losses")
        assert placed.outputs is not None
        counts[name] = np.asarray(placed.outputs[:, 0])
        sums.append(placed.outputs[:, 1:])
    first, *others = counts
    for name in others:
        if len(wrong := np.flatnonzero(counts[name] != counts[first])):
            device = engine.network.local_ids(engine.rows)[int(wrong[0])]
            raise ValueError(
                f"device {device}: all risks must have the same items, got {counts[first][wrong[0]]} for {first!r} and "
                f"{counts[name][wrong[0]]} for {name!r}"
            )
    return np.concatenate(sums, axis=1), counts[first]


def _objective(given: Any, many: int) -> NDArray[np.float64] | None:
    """Return what is minimised over the certified lambdas."""
    if given is None:
        return None
    values = np.asarray(as_array(given, "objective"), dtype=np.float64)
    if values.shape != (many,) or np.isnan(values).any():
        raise ValueError(
            f"objective must have one number for each of the {many} lambdas of the grid, got shape {values.shape}"
            + (" with NaN" if values.shape == (many,) else "")
        )
    return values
