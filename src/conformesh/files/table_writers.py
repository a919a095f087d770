"""Writers of scores and model outputs, as CSV, Parquet or NPZ by the ending of the name; writes are atomic."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.files.atomic_writes import PUBLIC, write_file
from conformesh.files.model_outputs import SYNTHETIC, ModelOutputs, OutputKind
from conformesh.files.output_files import DEVICE_COLUMN, are_only_numbered
from conformesh.files.score_files import RecordedScore, classes_column
from conformesh.files.tables import CLASSES, SCORE_FUNCTION

TABLE_ENDINGS = (".csv", ".parquet", ".npz")
SCORE_COLUMNS = (DEVICE_COLUMN, "score", "label", CLASSES, SCORE_FUNCTION)  # of a file of scores


def write_scores(
    path: Path,
    devices: Sequence[str],
    scores: NDArray[np.float64],
    labels: Sequence[str] | NDArray[np.float64] | None = None,
    *,
    classes: Sequence[str] | None = None,
    kept: Mapping[str, Sequence[Any]] | None = None,
    made_by: RecordedScore | None = None,
    mode: int = PUBLIC,
) -> None:
    """Write a file of scores that `read_scores` reads.

    It has the columns `device`, `score` and, where given, `label`, what else is kept of every row, and `classes`: in an
    NPZ an array of their names, else a JSON list in the column's first cell. `made_by` is recorded in every row of
    `score_function`: the score and its options. `mode` says who may read it.
    """
    columns: dict[str, NDArray[Any]] = {DEVICE_COLUMN: np.array(devices, dtype=str), "score": scores}
    if labels is not None:
        columns["label"] = labels if isinstance(labels, np.ndarray) else np.array(labels, dtype=str)
    columns |= {name: np.asarray(cells) for name, cells in (kept or {}).items()}
    if classes is not None:
        arrays = path.suffix.lower() == ".npz"
        columns[CLASSES] = np.array(classes if arrays else classes_column(classes, len(scores)), dtype=str)
    if made_by is not None:
        columns[SCORE_FUNCTION] = np.full(len(scores), str(made_by))
    write_columns(path, columns, mode)


def write_model_outputs(path: Path, outputs: ModelOutputs, also: OutputKind | None = None) -> None:
    """Write an NPZ that `read_model_outputs` reads; `also` adds what the outputs are as logits or probabilities."""
    check_file_ending(path, (".npz",))
    arrays: dict[str, NDArray[Any]] = {outputs.kind: outputs.values, "labels": outputs.labels}
    if also is not None:
        arrays[also] = outputs.logits() if also == "logits" else outputs.probabilities()
    if outputs.devices is not None:
        arrays[DEVICE_COLUMN] = np.array(outputs.devices, dtype=str)
    if not are_only_numbered(outputs.classes):
        arrays[CLASSES] = np.array(outputs.classes, dtype=str)
    if outputs.synthetic:
        arrays[SYNTHETIC] = np.array(True)
    arrays |= {name: np.asarray(cells) for name, cells in outputs.kept.items() if name not in arrays}
    write_columns(path, arrays)


def write_columns(path: Path, columns: Mapping[str, NDArray[Any]], mode: int = PUBLIC) -> None:
    """Write named columns as CSV, Parquet or NPZ, by the ending of the name; numbers survive to the last bit."""
    check_file_ending(path)
    buffer = io.BytesIO()
    suffix = path.suffix.lower()
    if suffix == ".npz":
        np.savez(buffer, allow_pickle=False, **columns)  # no pickles: loading one runs code
    else:
        import polars as pl

        frame = pl.DataFrame(dict(columns))
        _ = frame.write_csv(buffer) if suffix == ".csv" else frame.write_parquet(buffer)
    write_file(path, buffer.getbuffer(), mode)


def check_file_ending(path: Path, endings: Sequence[str] = TABLE_ENDINGS) -> None:
    """Raise if the ending of a name is not one of these formats."""
    if path.suffix.lower() not in endings:
        raise ValueError(f"{path}: the name must end in {' or '.join(endings)}")
