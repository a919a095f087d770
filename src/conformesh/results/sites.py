"""Sites: which devices are covered too little, from labelled rows of each device."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Array
from conformesh.common.arrays import as_array, frame_columns
from conformesh.common.names import natural_order, unknown_name
from conformesh.common.quantities import pluralize
from conformesh.files.input_forms import SCALE, ColumnRoles, LongFrame, as_devices, as_frame
from conformesh.files.json_numbers import as_json_value
from conformesh.kernels.proportions import FAMILY_WISE_ERROR, shortfall_p_values
from conformesh.results.encoding import SavedResult, align_columns
from conformesh.results.evaluation import Coverage, DeviceCoverage, coverage_contradictions, under_covered
from conformesh.scores.base import label_positions

if TYPE_CHECKING:
    from conformesh.results.result import Result

LABELLED, CALIBRATION = "labelled rows", "calibration rows"
_MOST_PRINTED = 20  # devices in the text; those that are flagged and those that cover least come first


class Sites(SavedResult, frozen=True, eq=False, tag_field="format", tag="conformesh-sites/1"):
    """Coverage of each device, and which devices are covered too little.

    A device is flagged by an exact one-sided binomial test of the hypothesis that *the coverage of this device, given
    this calibration, is at least 1 - alpha*; Holm's procedure keeps the chance of any false flag at
    `family_wise_error`, however many devices there are. It assumes that the rows of a device are independent, and that
    they were neither trained on nor calibrated with.

    The hypothesis is about this calibration. A guarantee for the mixture of devices, or on average over calibration
    sets, allows a device to cover somewhat less: with n calibration scores coverage scatters by about
    sqrt(alpha (1 - alpha) / n) around what is asked for, also where all devices are alike. With many test rows the
    tests find such small shortfalls; give `nominal` (0.88 instead of 0.9) to flag only larger ones.

    Attributes
    ----------
    per_device
        A `DeviceCoverage` for each device: rows, coverage with its exact (Clopper-Pearson) 95 % interval, mean size,
        share of empty sets, coverage by class.
    nominal
        The coverage that is tested against, by default 1 - alpha; None: nothing is tested.
    family_wise_error
        The chance that any device is flagged whose coverage is not below `nominal`.
    source
        "labelled rows"; or "calibration rows": the leave-one-out coverage on the rows of the calibration. These have
        set the threshold themselves, so that no device is flagged by them, and sizes are not known.
    classes
        The classes of the columns, where they are known.
    """

    per_device: dict[str, DeviceCoverage]
    nominal: float | None = None
    family_wise_error: float = FAMILY_WISE_ERROR
    source: str = LABELLED
    classes: tuple[str | bool | int | float, ...] | None = None

    noun: ClassVar[str] = "a table of sites"
    derived: ClassVar[tuple[str, ...]] = ("flagged",)

    def __post_init__(self) -> None:
        for name, value in (("family_wise_error", self.family_wise_error), ("nominal", self.nominal)):
            if value is not None and not 0 < value < 1:
                raise ValueError(f"{name} must lie strictly between 0 and 1, got {value}")

    def __len__(self) -> int:
        return len(self.per_device)

    def __iter__(self) -> Iterator[str]:
        return iter(self.devices)

    def __getitem__(self, device: object) -> DeviceCoverage:
        if str(device) not in self.per_device:
            raise KeyError(unknown_name("device", str(device), self.devices))
        return self.per_device[str(device)]

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices, in the order of their names."""
        return tuple(natural_order(self.per_device))

    @property
    def flagged(self) -> tuple[str, ...]:
        """The devices that are covered too little."""
        found = under_covered(self.per_device, self._tested, self.family_wise_error)
        return tuple(name for name in self.devices if name in found)

    @property
    def p_values(self) -> dict[str, float]:
        """The p-value of each device's test; 1 without rows, empty where nothing is tested."""
        if self._tested is None:
            return {}
        parts = [self.per_device[name] for name in self.devices]
        values = shortfall_p_values([p.covered for p in parts], [p.rows for p in parts], self._tested)
        return dict(zip(self.devices, values.tolist(), strict=True))

    @property
    def _tested(self) -> float | None:
        return None if self.source == CALIBRATION else self.nominal

    def lowest_class(self, device: object) -> tuple[str, Coverage] | None:
        """Return the class that a device covers least, and its coverage; None where classes are not known."""
        named = self._named(self[device])
        return min(named.items(), key=lambda one: one[1].rate, default=None)

    def _named(self, part: DeviceCoverage) -> dict[str, Coverage]:
        names: dict[Any, Any] = dict(enumerate(self.classes or ()))
        return {str(names.get(label, label)): own for label, own in part.per_class.items()}

    def contradictions(self) -> Iterator[str]:
        """Yield what cannot be so."""
        if self.source not in (LABELLED, CALIBRATION):
            yield f"source must be {LABELLED!r} or {CALIBRATION!r}, got {self.source!r:.60}"
        yield from coverage_contradictions({f"device {name}": part for name, part in self.per_device.items()})

    # --- tables -------------------------------------------------------------------------------------------------------

    def columns(self, by_class: bool = False) -> dict[str, NDArray[Any]]:
        """Return a table with a row for each device; with `by_class` one for each device and class that it has."""
        if by_class:
            lines = [(name, *own) for name in self.devices for own in self._named(self[name]).items()]
            return {
                "device": np.array([name for name, _, _ in lines], dtype=str),
                "class": np.array([label for _, label, _ in lines], dtype=str),
                **_coverage_columns([part for _, _, part in lines]),
            }
        parts, p_values, flagged = [self[name] for name in self.devices], self.p_values, {*self.flagged}
        found = {"device": np.array(self.devices, dtype=str), **_coverage_columns(parts)}
        if self.source != CALIBRATION:
            for name in ("mean_size", "empty"):
                values = [getattr(part, name) for part in parts]
                found[name] = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        if any(part.per_class for part in parts):
            lowest = [self.lowest_class(name) for name in self.devices]
            found["lowest_class"] = np.array(["" if one is None else one[0] for one in lowest], dtype=str)
            found["lowest_class_coverage"] = np.array([np.nan if one is None else one[1].rate for one in lowest])
        if p_values:
            found["p_value"] = np.array([p_values[name] for name in self.devices])
            found["flagged"] = np.array([name in flagged for name in self.devices], dtype=np.bool_)
        return found

    def to_frame(self, by_class: bool = False) -> Any:
        """Return the table as a Polars frame; see `columns`."""
        import polars as pl

        return pl.DataFrame(self.columns(by_class))

    def report(self) -> dict[str, Any]:
        """Return a JSON object for people: each device with its classes by name."""
        p_values, flagged = self.p_values, {*self.flagged}
        clean: dict[str, Any] = as_json_value(
            {
                "nominal": self.nominal,
                "family_wise_error": self.family_wise_error,
                "source": self.source,
                "flagged": [*self.flagged],
                "per_device": {
                    name: {
                        **self[name].report(),
                        **({"p_value": p_values[name], "flagged": name in flagged} if p_values else {}),
                        "per_class": {label: part.report() for label, part in self._named(self[name]).items()},
                    }
                    for name in self.devices
                },
            }
        )
        return clean

    def plot(self, ax: Any = None, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the coverage of each device with its interval and what is asked for; returns the figure.

        Flagged devices are hollow squares. `path` also writes .png, .pdf or .svg.
        """
        from conformesh.plots.results import draw_sites

        return draw_sites(self, ax, path)

    # --- text ---------------------------------------------------------------------------------------------------------

    def title(self) -> str:
        """Return one sentence: how many devices are flagged, and by what."""
        many = pluralize(len(self), "device")
        if self.source == CALIBRATION:
            words = f"{many}: leave-one-out coverage on the calibration rows, which set the threshold themselves"
            return f"{words}; give labelled rows of other examples to test devices"
        if self.nominal is None:
            return f"{many}; what was asked for is not known, so that nothing is tested"
        below = f"{len(self.flagged):,} of {many} cover less than {self.nominal:.6g}"
        return f"{below} (exact binomial tests; chance of a false alarm at most {self.family_wise_error:g})"

    def lines(self, most: int | None = None) -> list[tuple[str, ...]]:
        """Return a table as text, its head first: flagged devices, then by coverage."""
        p_values, flagged = self.p_values, {*self.flagged}
        names = sorted(self.devices, key=lambda name: (name not in flagged, _rate_or_one(self[name])))
        with_size = any(part.mean_size is not None for part in self.per_device.values())
        with_class = any(part.per_class for part in self.per_device.values())
        size = "mean size" if with_class else "mean width"
        interval = "about 95 %" if self.source == CALIBRATION else "95 % interval"
        head = ("device", "rows", "coverage", interval, *((size, "empty") if with_size else ()))
        found = [head + (("lowest class",) if with_class else ()) + (("p-value", "") if p_values else ())]
        for name in names[:most]:
            part, lowest = self[name], self.lowest_class(name)
            cells = [name, f"{part.rows:,}"]
            cells += [f"{part.rate:.4f}", f"{part.low:.4f} to {part.high:.4f}"] if part.rows else ["", ""]
            if with_size:
                cells += ["", ""] if part.mean_size is None else [f"{part.mean_size:.4g}", f"{part.empty:.1%}"]
            if with_class:
                cells.append("" if lowest is None else f"{lowest[0]}: {lowest[1].covered} of {lowest[1].rows}")
            if p_values:
                cells += [f"{p_values[name]:.2g}" if part.rows else "", "below" if name in flagged else ""]
            found.append(tuple(cells))
        return found

    def _repr_html_(self) -> str:
        from conformesh.plots import html

        flagged = {*self.flagged}
        marks = {
            name: html.IntervalMark(part.rate, part.low, part.high, name in flagged)
            for name in self.devices
            if (part := self[name]).rows
        }
        chart = [html.interval_chart(marks, "coverage", "device", self.nominal, top=1.0)] if marks else []
        head, *rows = self.lines()
        return html.html_card(
            "Sites", claim=self.title(), parts=[*chart, html.html_table(head, rows, right=head[1:-1])]
        )

    def __repr__(self) -> str:
        left = len(self) - _MOST_PRINTED
        more = [f"and {left:,} more: to_frame() has all"] if left > 0 else []
        return "\n".join([f"Sites: {self.title()}", *align_columns(self.lines(_MOST_PRINTED), left=1), *more])

    __str__ = __repr__


def _coverage_columns(parts: Sequence[Coverage]) -> dict[str, NDArray[Any]]:
    return {
        "rows": np.array([part.rows for part in parts], dtype=np.int64),
        "covered": np.array([part.covered for part in parts], dtype=np.int64),
        "coverage": np.array([part.rate for part in parts], dtype=np.float64),
        "low": np.array([part.low for part in parts], dtype=np.float64),
        "high": np.array([part.high for part in parts], dtype=np.float64),
    }


def _rate_or_one(part: Coverage) -> float:
    return part.rate if part.rows else 2.0  # devices without rows come last


# --- rows in the forms that users have --------------------------------------------------------------------------------


class LabelledRows(NamedTuple):
    """Model outputs with the label and the device of each row, and the names of the columns where a frame has them."""

    outputs: Array
    labels: Array
    device: Array
    classes: tuple[str, ...] | None = None
    groups: Any = None


def labelled_rows(
    data: Any,
    result: Result,
    predictions: Sequence[str] | None,
    *,
    columns: Mapping[str, str] | None = None,
    label: str | None = None,
    groups: Any = None,
) -> LabelledRows:
    """Read a pair (outputs, labels) for each device, or a long frame with the columns `device` and `label`.

    A frame has one column for each class, or those named in `predictions`, for regression. Its rows keep their order;
    `groups` may name a column, or have one entry for each row. Beside pairs they are a dict by device.
    """
    roles = ColumnRoles(columns)
    label = label or roles.given.get("label", "label")
    data = as_frame(data, roles, label, "data")
    known = frame_columns(data)
    if known is None:
        return _rows_of_pairs(data, result, groups)
    column = groups if isinstance(groups, str) else None
    taken = {roles.device, label, roles.id, *roles.given.values(), column}
    wanted = [*predictions] if predictions is not None else [*map(str, result.classes or ())]
    wanted = wanted or [name for name in known if name not in taken]
    wanted += [SCALE] if result.guarantee.adapt is not None and predictions is not None and SCALE in known else []
    frame = LongFrame(data, roles, (label, *wanted))
    back = np.argsort(frame.order)

    def in_order(name: str) -> Array:
        return np.concatenate(frame.split(name, name))[back]

    truth, each = in_order(label), [in_order(name) for name in wanted]
    outputs = each[0] if predictions is not None and len(wanted) == 1 else np.stack(each, axis=1)
    if predictions is None and all(isinstance(name, str) for name in result.classes or ()):
        truth = label_positions(truth, wanted, "labels")
    devices = np.repeat(np.array(frame.names, dtype=str), frame.sizes)[back]
    row_groups = groups if column is None else in_order(column)
    return LabelledRows(outputs, truth, devices, None if predictions is not None else tuple(wanted), row_groups)


def _rows_of_pairs(data: Any, result: Result, groups: Any) -> LabelledRows:
    if groups is not None and not isinstance(groups, Mapping):
        raise TypeError(
            "groups must be a dict of device -> groups of its rows where data has a pair (outputs, labels) for each "
            f"device, got {type(groups).__name__}; or give outputs, labels, device= and groups= apart, one for each row"
        )
    devices = as_devices(data, "data")
    pairs: list[Any] = [*devices.values()] if isinstance(devices, dict) else [*devices]
    owners = [*devices] if isinstance(devices, dict) else [*result.device_ids]
    if len(owners) != len(pairs):
        raise ValueError(
            f"data must have a pair (outputs, labels) for each of {pluralize(len(owners), 'device')}, got "
            f"{len(pairs)}; or give a dict of device -> (outputs, labels), a frame with the columns 'device' and "
            "'label', or outputs, labels and device= apart"
        )
    found = []
    for owner, pair in zip(owners, pairs, strict=True):
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise ValueError(
                f"device {owner} must have a pair (outputs, labels), got {type(pair).__name__}; where outputs are one "
                "array, give labels and device=, one for each row"
            )
        outputs, labels = result.table_of(pair[0]), as_array(pair[1], "labels")
        if len(outputs) != len(labels):
            raise ValueError(f"device {owner} has {len(outputs)} rows of outputs but {len(labels)} labels")
        beside = [] if groups is None else [*groups.get(owner, ())]
        if groups is not None and len(beside) != len(labels):
            raise ValueError(f"device {owner} has {len(labels)} labels but groups of {len(beside)} rows")
        if len(labels):
            found.append((owner, outputs, labels, beside))
    if not found:
        raise ValueError("no device has labelled rows; give outputs and labels of at least one")
    each = [np.concatenate([one[column] for one in found]) for column in (1, 2)]
    device = np.repeat(np.array([owner for owner, *_ in found], dtype=str), [len(one[2]) for one in found])
    row_groups = None if groups is None else [group for one in found for group in one[3]]
    return LabelledRows(each[0], each[1], device, None, row_groups)
