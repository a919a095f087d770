"""Scores and model outputs to files, which are whole or not there."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.io.files import write_file
from conformesh.io.model_outputs import SYNTHETIC, Kind, ModelOutputs
from conformesh.io.output_files import CLASSES, DEVICE

ENDINGS = (".csv", ".parquet", ".npz")


def write_scores(
    path: Path, devices: Sequence[str], scores: NDArray[np.float64], labels: Sequence[str] | None = None
) -> None:
    """Write a file of scores that `read_scores` reads: the columns `device`, `score` and, where given, `label`."""
    columns = {DEVICE: np.array(devices, dtype=str), "score": scores}
    write_columns(path, columns if labels is None else {**columns, "label": np.array(labels, dtype=str)})


def write_model_outputs(path: Path, outputs: ModelOutputs, also: Kind | None = None) -> None:
    """Write an NPZ that `read_model_outputs` reads; `also` adds what the outputs are as logits or probabilities."""
    check_ending(path, (".npz",))
    arrays: dict[str, NDArray[Any]] = {outputs.kind: outputs.values, "labels": outputs.labels}
    if also is not None:
        arrays[also] = outputs.logits() if also == "logits" else outputs.probabilities()
    if outputs.devices is not None:
        arrays[DEVICE] = np.array(outputs.devices, dtype=str)
    if outputs.classes != tuple(map(str, range(len(outputs.classes)))):
        arrays[CLASSES] = np.array(outputs.classes, dtype=str)
    if outputs.synthetic:
        arrays[SYNTHETIC] = np.array(True)
    write_columns(path, arrays)


def write_columns(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write named columns as CSV, Parquet or NPZ, by the ending of the name; numbers survive to the last bit."""
    check_ending(path)
    buffer = io.BytesIO()
    suffix = path.suffix.lower()
    if suffix == ".npz":
        np.savez(buffer, allow_pickle=False, **columns)
    else:
        import polars as pl

        frame = pl.DataFrame(dict(columns))
        _ = frame.write_csv(buffer) if suffix == ".csv" else frame.write_parquet(buffer)
    write_file(path, buffer.getbuffer())


def check_ending(path: Path, endings: Sequence[str] = ENDINGS) -> None:
    """Refuse a name whose ending says nothing about the format."""
    if path.suffix.lower() not in endings:
        raise ValueError(f"{path}: the name must end in {' or '.join(endings)}")
