"""Outputs of a model with the truth beside them, for evaluation: the readers of `predict` and of labels, together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.files.labels import LABEL_COLUMNS, LabelColumn, column_labels, file_labels, label_indices
from conformesh.files.output_files import OUTPUT_FILE, OutputFile, extract_outputs
from conformesh.files.tables import FileColumns, FileLayout, read_table

LABELLED_FILE = f"{OUTPUT_FILE}, and its label"


def read_labelled(
    source: str,
    labels: str | None = None,
    layout: FileLayout | None = None,
    *,
    logits: bool = False,
    classes: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> tuple[OutputFile, NDArray[Any]]:
    """Read outputs as `read_outputs` does, and the true label of every row.

    Labels stand in the column that the layout names, by default `label`, or in a file of their own. They come back as
    indices into the columns of the outputs as these were put in order; with `columns`, for regression, as numbers.
    """
    layout = layout or FileLayout()
    table = read_table(source, LABELLED_FILE, layout=layout)
    return extract_labelled(table, labels, layout, logits=logits, classes=classes, columns=columns)


def extract_labelled(
    table: FileColumns,
    labels: str | None,
    layout: FileLayout,
    *,
    logits: bool = False,
    classes: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> tuple[OutputFile, NDArray[Any]]:
    """Return outputs and true labels of a table that was read, as `read_labelled` does."""
    label = layout.label or LABEL_COLUMNS[0]
    own = column_labels(table, label) if labels is None else file_labels(labels, label, layout)
    beside = layout if labels is None else replace(layout, label=None)  # which names a column of the other file
    truth = own.column if labels is None else None
    found = extract_outputs(table, beside, logits=logits, classes=classes, columns=columns, truth=truth)
    if len(own) != len(found.values):
        raise ValueError(
            f"{own.place}: needs a label for each of the {len(found.values)} rows of outputs in {table.name}, got "
            f"{len(own)}"
        )
    return found, _numbers(own) if columns is not None else _indices(own, found)


def _numbers(own: LabelColumn) -> NDArray[np.float64]:
    values = own.table.numbers(own.column)
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _indices(own: LabelColumn, found: OutputFile) -> NDArray[np.int64]:
    """Return labels as indices; numbers count the columns as the file has them."""
    order = np.arange(len(found.labels)) if found.order is None else np.array(found.order)
    back = np.argsort(order)
    indices = label_indices(own, [found.labels[place] for place in back])
    wrong = np.flatnonzero((indices < 0) | (indices >= len(back)))
    if len(wrong):
        raise ValueError(
            f"{own.table.where(int(wrong[0]))}: label must lie between 0 and {len(back) - 1}, one for each column of "
            f"outputs, got {indices[wrong[0]]}; repair or drop this row"
        )
    return np.asarray(back[indices], dtype=np.int64)
