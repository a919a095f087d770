"""A model's outputs with the true labels: what scores are made from.

They come from an NPZ, from CSV or Parquet with a column of labels, or from a pair of NPY files. All is checked on the
way in, so that whoever holds `ModelOutputs` can rely on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.common.arrays import LARGEST_PROBABILITY, SUM_SLACK
from conformesh.files.labels import LABEL_COLUMNS, column_labels, file_labels, label_indices
from conformesh.files.output_files import (
    DEVICE_COLUMN,
    class_array,
    column_cells,
    holds_arrays,
    kept_columns,
    read_class_columns,
    row_devices,
)
from conformesh.files.tables import STDIN, FileColumns, FileLayout, note_ids, read_table

_NEEDED = "a row of model outputs and a label for every example"
SYNTHETIC = "synthetic"  # an array of an NPZ that says: no real model was here

OutputKind = Literal["logits", "probabilities"]
_Where = Callable[[int], str]

_KINDS: tuple[OutputKind, ...] = ("logits", "probabilities")  # best first: logits lose nothing


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """What a model says about labelled examples.

    Attributes
    ----------
    values
        Shape (rows, classes).
    labels
        The true class of each row, 0 to classes - 1.
    kind
        What `values` are, "logits" or "probabilities".
    name
        Where they come from, for errors and captions.
    classes
        The names of the classes.
    devices
        The device of each row, where the source names it.
    synthetic
        Whether no real model was involved.
    kept
        Columns that pass through as they are, by name.
    """

    values: Floats
    labels: Ints
    kind: OutputKind
    name: str
    classes: tuple[str, ...]
    devices: list[str] | None = None
    synthetic: bool = False
    kept: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", np.ascontiguousarray(self.values, np.float64))
        object.__setattr__(self, "labels", np.ascontiguousarray(self.labels, np.int64))
        _check(self.values, self.labels, self.kind, self.name, lambda row: f"{self.name}, row {row}")
        if len(self.classes) != self.values.shape[1]:
            raise ValueError(
                f"{self.name}: needs a name for each of {self.values.shape[1]} classes, got {len(self.classes)}"
            )
        if self.devices is not None and len(self.devices) != len(self.values):
            raise ValueError(
                f"{self.name}: needs a device for each of {len(self.values)} rows, got {len(self.devices)}"
            )

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def digest(self) -> str:
        """The first 16 hex digits of a SHA-256 over kind, shape, values and labels: the same on every machine."""
        sha = hashlib.sha256(f"{self.kind} {self.values.shape}".encode())
        sha.update(self.values.astype("<f8").tobytes())
        sha.update(self.labels.astype("<i8").tobytes())
        return sha.hexdigest()[:16]

    @property
    def accuracy(self) -> float:
        """How often the largest output is the true label's; of equal ones the first counts."""
        return float((self.values.argmax(axis=1) == self.labels).mean())

    def logits(self) -> Floats:
        """Return logits, or the logarithms of the probabilities: -inf where one is 0."""
        if self.kind == "logits":
            return self.values
        with np.errstate(divide="ignore"):
            return np.log(self.values)

    def probabilities(self) -> Floats:
        """Return probabilities, or the softmax of the logits."""
        if self.kind == "probabilities":
            return self.values
        powers = np.exp(self.values - self.values.max(axis=1, keepdims=True))
        probabilities: Floats = powers / powers.sum(axis=1, keepdims=True)
        return probabilities

    def take(self, rows: Ints) -> ModelOutputs:
        """Return these rows alone."""
        devices = None if self.devices is None else [self.devices[row] for row in rows.tolist()]
        kept = {name: [cells[row] for row in rows.tolist()] for name, cells in self.kept.items()}
        return replace(self, values=self.values[rows], labels=self.labels[rows], devices=devices, kept=kept)


def read_model_outputs(
    source: str, labels: str | None = None, *, kind: OutputKind | None = None, layout: FileLayout | None = None
) -> ModelOutputs:
    """Read a model's outputs and the true labels.

    Parameters
    ----------
    source
        NPZ with `logits`, `probabilities` or `outputs`, and `labels`; NPY with outputs; CSV or Parquet in which every
        column is a class unless it is the label, the device or the id of a row or one to keep. "-" reads CSV from
        standard input.
    labels
        A file of labels, for outputs that have none beside them.
    kind
        What the outputs are. By default their name says it; where it does not, rows between 0 and 1 that sum to 1 are
        probabilities.
    layout
        What columns or arrays are called: by default labels are `label`, in an NPZ also `labels` or `y`, and devices
        are `device` or `devices`, where there are some. Labels are numbers from 0 or the names of classes.
    """
    layout = layout or FileLayout()
    table = read_table(source, _NEEDED, layout=layout)
    device = layout.device or next(
        (name for name in (DEVICE_COLUMN, f"{DEVICE_COLUMN}s") if name in table.columns), DEVICE_COLUMN
    )
    if layout.device is not None:
        table.column(layout.device)
    note_ids(table, layout)
    label = layout.label or LABEL_COLUMNS[0]
    own = column_labels(table, label) if labels is None else file_labels(labels, label, layout)
    beside = layout if labels is None else replace(layout, label=None)  # which names a column of the other file
    kept = tuple(name for name in kept_columns(table, beside) if labels is not None or name != own.column)
    if holds_arrays(table):
        array, values, classes = class_array(table, _arrays(table, kind))
        kind = next((known for known in _KINDS if known == array), kind)
    else:
        values, classes = read_class_columns(table, (device, label, *kept))
    if len(own) != len(values):
        raise ValueError(
            f"{own.place}: needs a label for each of the {len(values)} rows of outputs in {table.name}, got {len(own)}"
        )
    indices = label_indices(own, classes)
    kind = kind or _kind_of(values)
    _check(values, indices, kind, table.name, table.where)
    return ModelOutputs(
        values=values,
        labels=indices,
        kind=kind,
        name="standard input" if source == STDIN else Path(source).name,
        classes=classes,
        devices=row_devices(table, device, len(values)),
        synthetic=SYNTHETIC in table.columns and holds_arrays(table) and bool(np.all(table.columns[SYNTHETIC])),
        kept={name: column_cells(table, name, len(values)) for name in kept},
    )


def _arrays(table: FileColumns, kind: OutputKind | None) -> tuple[str, ...]:
    """The names that outputs may have in an NPZ, best first."""
    if kind is None:
        return (*_KINDS, "outputs")
    found = [name for name in (*_KINDS, "outputs") if name in table.columns]
    if found and kind not in found and "outputs" not in found:
        raise ValueError(f"{table.name}: was asked for {kind}, but holds {found[0]!r}; leave the kind out")
    return (kind, "outputs")


def _kind_of(values: Floats) -> OutputKind:
    return "probabilities" if values.size and _probable(values).all() else "logits"


def _probable(values: Floats) -> NDArray[np.bool_]:
    """Say which rows are probabilities; NaN is not."""
    inside = ((values >= 0.0) & (values <= LARGEST_PROBABILITY)).all(axis=1)
    probable: NDArray[np.bool_] = inside & (np.abs(values.sum(axis=1) - 1.0) <= SUM_SLACK)
    return probable


def _check(values: Floats, labels: Ints, kind: OutputKind, name: str, where: _Where) -> None:
    """Refuse what no score could use, and say where it is."""
    if values.ndim != 2 or labels.shape != values.shape[:1]:
        raise ValueError(
            f"{name}: needs outputs of shape (rows, classes) and labels of shape (rows,), "
            f"got {values.shape} and {labels.shape}"
        )
    if not len(values):
        raise ValueError(f"{name} has no rows; needed {_NEEDED}")
    if values.shape[1] < 2:
        raise ValueError(f"{name}: needs at least 2 classes, got {values.shape[1]}; one column per class")
    if kind not in _KINDS:
        raise ValueError(f"{name}: outputs are logits or probabilities, got {kind!r}")
    wrong = (labels < 0) | (labels >= values.shape[1])
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"{where(row)}: label must lie between 0 and {values.shape[1] - 1}, one for each column of outputs, "
            f"got {labels[row]}; repair or drop this row"
        )
    missing = np.isnan(values).any(axis=1)
    if missing.any():
        raise ValueError(f"{where(int(missing.argmax()))}: outputs must be numbers, got NaN; repair or drop this row")
    if kind == "probabilities":
        _check_probabilities(values, where)
    else:
        _check_logits(values, where)


def _check_probabilities(values: Floats, where: _Where) -> None:
    bad = ~_probable(values)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"{where(row)}: probabilities must lie between 0 and 1 and sum to 1, got {values[row].min():.6g} to "
            f"{values[row].max():.6g} with sum {values[row].sum():.6g}; are these logits?"
        )


def _check_logits(values: Floats, where: _Where) -> None:
    highest = values.max(axis=1)
    bad = np.isinf(highest)  # +inf somewhere, or -inf everywhere: neither has a softmax
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"{where(row)}: logits need a finite maximum, got {highest[row]:g}; repair or drop this row")
