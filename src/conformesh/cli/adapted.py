"""Labelled outputs in files, for adapted scores: what devices calibrate with, and later predict with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.common.names import natural_order
from conformesh.files.input_forms import PREDICTION, SCALE
from conformesh.files.labelled import LABELLED_FILE, extract_labelled
from conformesh.files.output_files import OUTPUT_FILE, OutputFile, extract_outputs
from conformesh.files.score_files import find_column, order_by_device
from conformesh.files.tables import FileColumns, FileLayout, read_table
from conformesh.results.result import Result
from conformesh.scores.adapt import Adaptation, Even
from conformesh.table import Table


class LabelledOutputs(NamedTuple):
    """The labelled outputs of all devices in a file.

    Attributes
    ----------
    table
        The rows, with their groups.
    name
        Where they come from, for errors.
    adaptation
        How scores adapt, for the task of the file.
    """

    table: Table
    name: str
    adaptation: Adaptation

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that have rows."""
        return self.table.names or ()


def read_device_outputs(source: str, *, layout: FileLayout, adaptation: Adaptation) -> LabelledOutputs:
    """Read outputs, labels and devices for a calibration with adapted scores."""
    table = read_table(source, LABELLED_FILE, layout=layout)
    if isinstance(adaptation, Even):
        adaptation = adaptation.for_task(
            "regression" if layout.outputs or PREDICTION in table.columns else "classification"
        )
    aside = () if layout.share is None or layout.share not in table.columns else (layout.share,)
    layout = replace(layout, device=find_column(table, "device", layout.device), keep=(*layout.keep, *aside))
    found, truth = extract_labelled(table, None, layout, **_reading(adaptation, table, layout, None))
    names, places = _rows_by_device(found)
    values = _in_shape(adaptation, found)
    data = {name: (values[own], truth[own]) for name, own in zip(names, places, strict=True)}
    groups = None
    if found.groups is not None:
        groups = {name: found.groups.take(own) for name, own in zip(names, places, strict=True)}
    made = Table.of_outputs(data, adaptation, groups=groups)  # labels are column numbers already
    classes = found.labels if adaptation.task == "classification" else None
    return LabelledOutputs(replace(made, classes=classes), found.name, adaptation)


def read_new_outputs(
    source: str, result: Result, layout: FileLayout, device: str | None
) -> tuple[OutputFile, NDArray[Any]]:
    """Read outputs for predictions of a result with adapted scores; return them also in the shape that it wants."""
    table = read_table(source, OUTPUT_FILE, layout=layout)
    adapt = _adaptation(result)
    found = extract_outputs(table, layout, **_reading(adapt, table, layout, result))
    _check_devices(found, device)
    return found, _in_shape(adapt, found)


def read_labelled_outputs(
    source: str, labels: str | None, result: Result, layout: FileLayout, device: str | None
) -> tuple[OutputFile, NDArray[Any], NDArray[Any]]:
    """Read outputs and labels for an evaluation; return the outputs also in the shape that the result wants."""
    table = read_table(source, LABELLED_FILE, layout=layout)
    adapt = _adaptation(result)
    found, truth = extract_labelled(table, labels, layout, **_reading(adapt, table, layout, result))
    _check_devices(found, device)
    return found, _in_shape(adapt, found), _as_classes(result, truth)


def with_rows(result: Result, where: str, source: str | None, device: str | None, layout: FileLayout) -> Result:
    """Return a result with the rows that devices calibrated with, from a file; only `device` is needed, if it is given.

    A file of a result has no rows. `where` names it in errors.
    """
    if result.guarantee.adapt is None:
        if source is not None:
            raise ValueError(f"--rows {source} is for results with adapted scores (calibrate --adapt); leave it out")
        return result
    if source is None:
        raise ValueError(
            f"{where} has adapted scores, so predictions need the rows that the devices calibrated with; the result "
            "does not contain them, give their file with --rows FILE"
        )
    adapt, table = _adaptation(result), read_table(source, LABELLED_FILE, layout=layout)
    names = [name for name in layout.keep if name in table.columns]
    own = FileLayout(
        layout.device if layout.device in table.columns else None,
        label=layout.label,
        groups=layout.groups if result.guarantee.groups is not None else (),
        keep=tuple(names),
        outputs=layout.outputs,
    )
    if device is not None and device not in result.device_ids:
        result.on(device)  # says which devices there are
    found, truth = extract_labelled(table, None, own, **_reading(adapt, table, own, result))
    if found.devices is None and device is None:
        raise ValueError(
            f"{source}: has no column 'device' with the device of each row; name it with --device-column, or give "
            "--device NAME if all rows belong to one device"
        )
    owners = np.full(len(truth), device) if found.devices is None else np.array(found.devices, dtype=str)
    kept = np.flatnonzero(owners == device) if device is not None else np.arange(len(owners))
    if not len(kept):
        raise ValueError(
            f"{source}: has no row of device {device!r}; it has rows of {', '.join(sorted({*owners})[:8])}"
        )
    groups = None if found.groups is None else found.groups.take(kept)
    values, labels = _in_shape(adapt, found)[kept], _as_classes(result, truth)[kept]
    return result.with_rows(values, labels, device=owners[kept], groups=groups)


# --- parts ------------------------------------------------------------------------------------------------------------


def _check_devices(found: OutputFile, device: str | None) -> None:
    """Refuse rows that name no device, or another one than is to predict: nothing is guaranteed for them."""
    if found.devices is None and device is None:
        raise ValueError(
            f"{found.name}: predictions with adapted scores need the device of each row; give --device NAME, or name "
            "the column of devices with --device-column"
        )
    others = natural_order({*(found.devices or ())} - {device})
    if device is not None and others:
        raise ValueError(
            f"{found.name}: has rows of device {others[0]!r}, and --device {device} predicts for its own examples "
            "only; remove these rows, or leave --device out to predict each row by its own device"
        )


def _adaptation(result: Result) -> Adaptation:
    found: Adaptation = result.guarantee.adapt
    return found


def _reading(adaptation: Adaptation, table: FileColumns, layout: FileLayout, result: Result | None) -> dict[str, Any]:
    """Return which columns are outputs: classes, or predictions, and scales where there are some."""
    if adaptation.task == "classification":
        return {"classes": None if result is None or result.classes is None else tuple(map(str, result.classes))}
    many = len(layout.outputs) or (2 if SCALE in table.columns else 1)
    return {"columns": (PREDICTION, SCALE)[:many]}


def _in_shape(adaptation: Adaptation, found: OutputFile) -> NDArray[Any]:
    is_one = adaptation.task == "regression" and found.values.shape[1] == 1
    return found.values[:, 0] if is_one else found.values


def _as_classes(result: Result, truth: NDArray[Any]) -> NDArray[Any]:
    """Return labels as a result takes them: as classes where it knows these."""
    if result.classes is None:
        return truth
    return np.asarray(np.array([str(name) for name in result.classes])[truth])


def _rows_by_device(found: OutputFile) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    assert found.devices is not None
    each = tuple(dict.fromkeys(found.devices))
    place = {name: k for k, name in enumerate(each)}
    names, offsets, order = order_by_device(each, np.array([place[name] for name in found.devices], dtype=np.int64))
    return names, np.split(order, offsets[1:-1])
