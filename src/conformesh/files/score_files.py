"""Scores from files: one row per calibration point, with its device and its score.

Columns are called `device` and `score`, or what the caller says; where neither is there, a name that can mean nothing
else is taken. A file that `conformesh scores make` wrote also says which classes its model knows: an NPZ in an array
`classes`, CSV and Parquet in a column `classes` with a JSON list in one of its cells. So it stays a plain table, which
survives sorting and spreadsheets, and needs no second file. Every row records the score that made it, in the column
`score_function`, so that the record survives when rows are split by device: a threshold for LAC scores says nothing
about APS. The column `epoch` says in which epoch a record's score first existed, for private calibration; without it
all records are of epoch 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.common.arrays import LARGEST_EXACT, note_similar_names
from conformesh.common.names import natural_order
from conformesh.files.memberships import Memberships
from conformesh.files.tables import (
    CLASSES,
    SCORE_FUNCTION,
    STDIN,
    FileColumns,
    FileLayout,
    check_equal_lengths,
    note_ids,
    quote_column_names,
    read_table,
    row_groups,
)

SCORE_FILE = "columns 'device' and 'score', one row per score"
COLUMN_SYNONYMS = {  # what these columns are called elsewhere, in small letters
    "device": ("devices", "node", "client", "site"),
    "score": ("scores", "nonconformity"),
}

SIDE_COLUMNS = ("lower", "upper")  # the columns of scores with two sides, as a frame has them
EPOCH_COLUMN = "epoch"


class RecordedScore(NamedTuple):
    """The score that a file of scores was made with: its name in `SCORES`, and its options."""

    name: str
    options: dict[str, Any]

    def __str__(self) -> str:
        """Return the text of a cell: the name, and the options as JSON where there are some."""
        options = {name: value for name, value in self.options.items() if value is not None}
        return f"{self.name} {json.dumps(options, separators=(',', ':'))}" if options else self.name


@dataclass(frozen=True, eq=False)
class ScoreRows:
    """Rows grouped by device, in natural order of names. The fields are those of `conformesh.table.Table`."""

    names: tuple[str, ...]
    offsets: NDArray[np.int64]
    score: NDArray[np.float64]
    groups: Memberships | None = None
    group_column: str = ""
    weight: NDArray[np.float64] | None = None
    inputs: NDArray[np.float64] | None = None
    labels: NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class ScoreFile:
    """The scores of every device that has some.

    Attributes
    ----------
    rows
        Scores, and the columns that were asked for.
    name
        Where they come from, for errors.
    classes
        The classes of the model whose outputs were scored, where the file names them.
    made_by
        The score that made these numbers, where the file records it.
    epoch
        The epoch of each row, where the file has a column `epoch`; 0 where a cell is no whole number above 0. Only
        private calibration asks for it, so that other files may have a column of this name.
    """

    rows: ScoreRows
    name: str
    classes: tuple[str, ...] | None = None
    made_by: RecordedScore | None = None
    epoch: NDArray[np.int64] | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """Device names in natural order."""
        return self.rows.names

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """One array of scores per device."""
        return tuple(np.split(self.rows.score, self.rows.offsets[1:-1])) if self.devices else ()

    @property
    def epochs(self) -> tuple[NDArray[np.int64], ...] | None:
        """One array of epochs per device, where the file has them."""
        return None if self.epoch is None else tuple(np.split(self.epoch, self.rows.offsets[1:-1]))


def read_scores(
    source: str, stdin: BinaryIO | None = None, group: str | None = None, layout: FileLayout | None = None
) -> ScoreFile:
    """Read scores from CSV, Parquet or NPZ, or a folder of such; "-" reads CSV from standard input.

    `group` names a column of groups; `layout` says what else is known about the table.
    """
    layout = layout or FileLayout(groups=() if group is None else (group,))
    if source != STDIN and Path(source).is_dir():
        from conformesh.files.score_folders import ScoreFolder

        return ScoreFolder.open(source).read(layout=layout)
    return extract_scores(read_table(source, SCORE_FILE, stdin, layout), layout)


def extract_scores(table: FileColumns, layout: FileLayout | None = None) -> ScoreFile:
    """Sort the rows of a table by device."""
    layout = layout or FileLayout()
    device = find_column(table, "device", layout.device)
    held = SIDE_COLUMNS if layout.sides else (find_column(table, "score", layout.score),)
    if device in held:
        raise ValueError(f"{table.name}: column {device!r} cannot be both the device and the score")
    columns = (device, *held, *layout.beside)
    for column in columns:
        if np.ndim(table.column(column)) != 1:
            raise ValueError(
                f"{table.name}: {column!r} must be one-dimensional, got shape {table.column(column).shape}"
            )
    if table.lines is None:
        check_equal_lengths(table, columns)
    if not len(table.column(held[0])):
        raise ValueError(f"{table.name} has no rows; needed {SCORE_FILE}")
    names, index = table.names(device)
    values = table.numbers(held[0]) if len(held) == 1 else table.matrix(held)
    if np.isnan(values).any():
        row = int(np.isnan(values).reshape(len(values), -1).any(axis=1).argmax())
        raise ValueError(
            f"{table.where(row)}: score must be a number, got NaN for device {names[index[row]]!r}; "
            "repair or drop this row"
        )
    note_similar_names(names, f"{table.name}: devices")
    note_ids(table, layout)
    devices, offsets, order = order_by_device(names, index)
    beside = extra_columns(table, layout, order) if layout.beside else {}
    rows = ScoreRows(devices, offsets, values[order], **beside)
    classes = _classes(table, table.columns[CLASSES]) if CLASSES in table.columns else None
    made_by = _made_by(table, table.columns[SCORE_FUNCTION]) if SCORE_FUNCTION in table.columns else None
    epochs = row_epochs(table)
    return ScoreFile(rows, table.name, classes, made_by, None if epochs is None else epochs[order])


def order_by_device(
    names: Sequence[str], index: NDArray[np.int64]
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64]]:
    """Return devices in natural order, where the rows of each begin, and the order of rows that groups them so.

    `index` says which of the names each row has.
    """
    devices = natural_order(names)
    place = {name: k for k, name in enumerate(devices)}
    owner = np.array([place[name] for name in names], dtype=np.int64)[index]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(devices)))])
    return devices, offsets, np.argsort(owner, kind="stable")


def extra_columns(table: FileColumns, layout: FileLayout, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return the columns of these rows that were asked for: groups, weights, inputs and labels."""
    found: dict[str, Any] = {}
    if layout.groups:
        found["groups"] = row_groups(table, layout.groups).take(rows)
        found["group_column"] = layout.groups[0] if len(layout.groups) == 1 else ""
    if layout.weight is not None:
        found["weight"] = table.numbers(layout.weight)[rows]
    if layout.inputs:
        found["inputs"] = table.matrix(layout.inputs)[rows]
    if layout.label is not None:
        kinds, which = table.names(layout.label)
        found["labels"] = np.array(kinds)[which[rows]]
    return found


def row_epochs(table: FileColumns) -> NDArray[np.int64] | None:
    """Return the epoch of every row, 0 where the cell is no whole number above 0; None where there is no column."""
    if EPOCH_COLUMN not in table.columns or np.ndim(table.columns[EPOCH_COLUMN]) != 1:
        return None
    return np.array([_epoch(cell) for cell in table.columns[EPOCH_COLUMN]], dtype=np.int64)


def _epoch(cell: Any) -> int:
    try:
        number = float(cell)
    except (TypeError, ValueError):
        return 0
    return int(number) if 1 <= number < LARGEST_EXACT and number.is_integer() else 0


def find_column(table: FileColumns, word: str, given: str | None = None) -> str:
    """Return the name of the column of devices or scores: as given, as usual, or as only one column could be meant."""
    if given is not None:
        table.column(given)
        return given
    if word in table.columns:
        return word
    meant = (word, *COLUMN_SYNONYMS[word])
    found = [name for name in table.columns if name.lower() in meant]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"{table.name}: the {word} of a row may stand in {quote_column_names(found)}: "
            f"say which, with --{word}-column"
        )
    try:
        table.column(word)
    except ValueError as problem:
        raise ValueError(f"{problem}; another name is given with --{word}-column") from None
    raise AssertionError


def _classes(table: FileColumns, column: Any) -> tuple[str, ...] | None:
    """Return the classes that a file names; None where its column `classes` means something else."""
    if isinstance(column, np.ndarray):
        return tuple(map(str, column.tolist())) if column.ndim == 1 and column.dtype.kind == "U" else None
    cells = {cell.strip() for cell in column if isinstance(cell, str)} - {""}
    if not cells or not all(cell.startswith("[") for cell in cells):
        return None
    if len(cells) > 1:
        raise ValueError(f"{table.name}: the column {CLASSES!r} names two sets of classes; keep scores of one model")
    text = cells.pop()
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len({*names}) < len(names):
        raise ValueError(
            f"{table.name}: the column {CLASSES!r} holds the names of classes as a JSON list, got {text[:60]!r}; "
            "drop the column, or make the scores again"
        )
    return tuple(names)


def _made_by(table: FileColumns, column: Any) -> RecordedScore | None:
    """Return the score that the rows of a file record; rows without a record go with the others."""
    given = column.ravel().tolist() if isinstance(column, np.ndarray) else column
    texts = {str(cell).strip() for cell in given if cell is not None} - {""}
    return common_score((parse_recorded_score(text, table.name) for text in sorted(texts)), table.name)


def parse_recorded_score(text: str, where: str) -> RecordedScore:
    """Return the score that a cell of the column `score_function` records; `where` names the file in an error."""
    name, _, options = text.partition(" ")
    try:
        read = json.loads(options or "{}")
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise ValueError(
            f'{where}: the column {SCORE_FUNCTION!r} names a score and its options, as raps {{"k_reg":2}}, got '
            f"{text[:60]!r}; drop the column, or make the scores again"
        )
    return RecordedScore(name, read)


def common_score(recorded: Iterable[RecordedScore | None], where: str) -> RecordedScore | None:
    """Return the score that several records agree on, None where there is no record.

    Devices that make randomised scores draw a seed each: these are scores of one kind, and the record has no seed then.
    """
    known: list[RecordedScore] = []
    known += (one for one in recorded if one is not None and one not in known)
    kinds: list[RecordedScore] = []
    kinds += (kind for kind in map(_without_seed, known) if kind not in kinds)
    if len(kinds) > 1:
        two = " and ".join(map(str, kinds[:2]))
        raise ValueError(f"{where}: holds scores of two kinds, {two}; make all scores with one, and keep them apart")
    return known[0] if len(known) == 1 else kinds[0] if kinds else None


def _without_seed(made_by: RecordedScore) -> RecordedScore:
    return RecordedScore(made_by.name, {name: value for name, value in made_by.options.items() if name != "seed"})


def classes_column(classes: Sequence[str], rows: int) -> list[str]:
    """Return what `_classes` reads: the list in the first cell, and nothing in the others."""
    return [json.dumps([*classes], ensure_ascii=False, separators=(",", ":")), *[""] * (rows - 1)][:rows]
