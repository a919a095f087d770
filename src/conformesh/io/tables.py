"""Tables from files: CSV, Parquet and NPZ, with errors that name the line and what stands there.

CSV is read as text and turned into numbers here, so that ``abc`` in line 7 is reported as ``abc`` in line 7.
"""

from __future__ import annotations

import csv
import io
import sys
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import polars as pl

STDIN = "-"


@dataclass(frozen=True)
class Table:
    """Named columns of equal length, and what to call them in an error.

    Attributes
    ----------
    columns
        Polars series or NumPy arrays by name.
    name
        The file, or "standard input".
    lines
        The line of each row in a text file; None where a row has no line, and is counted from 0.
    """

    columns: dict[str, Any]
    name: str
    lines: Sequence[int] | None = None

    def where(self, row: int) -> str:
        """Return the place of a row, for an error."""
        return f"{self.name}, " + (f"row {row}" if self.lines is None else f"line {self.lines[row]}")

    def column(self, name: str) -> Any:
        """Return a column, or say which ones there are."""
        if name not in self.columns:
            found = [*self.columns]
            close = get_close_matches(name, found, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{self.name}: needs a column {name!r}, found {listed(found)}{hint}")
        return self.columns[name]

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column as float64; NaN stays NaN, but text and empty cells are errors."""
        column = self.column(name)
        if isinstance(column, np.ndarray):
            if column.dtype.kind not in "fiub":
                raise ValueError(f"{self.name}: {name!r} must hold numbers, got dtype {column.dtype}")
            return column.astype(np.float64)
        return self._parsed(name, column)

    def _parsed(self, name: str, column: pl.Series) -> NDArray[np.float64]:
        import polars as pl

        is_text = column.dtype == pl.String
        if not (is_text or column.dtype.is_numeric() or column.dtype == pl.Boolean):
            raise ValueError(f"{self.name}: column {name!r} must hold numbers, got {column.dtype}")
        values = (column.str.strip_chars() if is_text else column).cast(pl.Float64, strict=False)
        if values.null_count():
            row = int(values.is_null().arg_max() or 0)
            text = (column[row] or "").strip() if is_text else ""
            got = f"got {text!r}" if text else "the cell is empty"
            raise ValueError(f"{self.where(row)}: {name} must be a number, {got}; repair or drop this row")
        return np.asarray(values.to_numpy(), dtype=np.float64)

    def names(self, name: str) -> tuple[list[str], NDArray[np.int64]]:
        """Return the distinct names in a column, in order of appearance, and for each row the index of its name."""
        import polars as pl

        column = self.column(name)
        texts = pl.Series(name, column) if isinstance(column, np.ndarray) else column
        if texts.dtype.is_float() and bool((texts == texts.round()).all()):
            texts = texts.cast(pl.Int64)  # what 7 becomes in a column that once had gaps
        if not (texts.dtype.is_integer() or texts.dtype in (pl.String, pl.Categorical, pl.Enum)):
            raise ValueError(f"{self.name}: column {name!r} must hold names or integers, got {texts.dtype}")
        texts = texts.cast(pl.String).str.strip_chars()
        empty = (texts.is_null() | (texts == "")).fill_null(True)
        if empty.any():
            row = int(empty.arg_max() or 0)
            raise ValueError(f"{self.where(row)}: the {name} is empty; name the {name} of every row, or drop this one")
        distinct = texts.unique(maintain_order=True)
        index = texts.replace_strict(distinct, pl.int_range(len(distinct), eager=True), return_dtype=pl.Int64)
        return distinct.to_list(), index.to_numpy()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))


def read_table(source: str, needed: str, stdin: BinaryIO | None = None) -> Table:
    """Read CSV, Parquet or NPZ by the ending of the name; "-" and any other ending are CSV.

    `needed` says what the file should hold, for errors.
    """
    name = "standard input" if source == STDIN else source
    data = _bytes_of(source, stdin)
    if not data.strip():
        raise ValueError(f"{name} is empty; needed {needed}")
    suffix = Path(source).suffix.lower()
    if suffix == ".npz":
        table = Table(_arrays(data, name), name)
    elif suffix == ".npy":
        table = Table({"outputs": _array(data, name)}, name)
    elif suffix in (".parquet", ".pq"):
        table = _frame(data, name, parquet=True)
    else:
        table = _frame(data, name, parquet=False)
    if not table.columns or (not len(table) and suffix not in (".npz", ".npy")):
        raise ValueError(f"{name} has no rows; needed {needed}")
    return table


def same_length(table: Table, names: Iterable[str]) -> None:
    """Refuse columns of unequal length, which only NPZ can have."""
    lengths = {name: len(table.column(name)) for name in names}
    if len({*lengths.values()}) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"{table.name}: arrays must have one entry per row each, got lengths {found}")


def _bytes_of(source: str, stdin: BinaryIO | None) -> bytes:
    if source == STDIN:
        return (stdin or sys.stdin.buffer).read()
    try:
        return Path(source).read_bytes()
    except OSError as problem:
        raise ValueError(f"{source}: cannot read the file: {problem.strerror}; check the path") from problem


def _frame(data: bytes, name: str, parquet: bool) -> Table:
    import polars as pl

    try:
        frame = pl.read_parquet(io.BytesIO(data)) if parquet else pl.read_csv(io.BytesIO(data), infer_schema=False)
    except pl.exceptions.PolarsError as problem:
        kind = "Parquet" if parquet else "CSV in UTF-8"
        why = (None if parquet else _odd_line(data)) or str(problem).splitlines()[0]
        raise ValueError(f"{name}: cannot be read as {kind}: {why}") from None
    lines: Sequence[int] | None = None if parquet else range(2, len(frame) + 2)
    blank = frame.select(pl.all_horizontal(pl.all().is_null())).to_series() if lines and frame.width else None
    if blank is not None and blank.any():  # empty lines count as lines, not as rows
        lines = (np.flatnonzero(~blank.to_numpy()) + 2).tolist()
        frame = frame.filter(~blank)
    return Table({column.name.strip(): column for column in frame.get_columns()}, name, lines)


def _odd_line(data: bytes) -> str | None:
    """Find the line that made a CSV unreadable: the first with more fields than the header."""
    rows = csv.reader(io.StringIO(data.decode("utf-8-sig", errors="replace")))
    header = next(rows, [])
    for row in rows:
        if len(row) > len(header):
            return f"line {rows.line_num} has {len(row)} fields, the header {len(header)}"
    return None


def _arrays(data: bytes, name: str) -> dict[str, NDArray[Any]]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, KeyError, AttributeError, TypeError, zipfile.BadZipFile) as problem:
        raise ValueError(f"{name}: cannot be read as NPZ without Python objects: {problem}") from None


def _array(data: bytes, name: str) -> NDArray[Any]:
    try:
        return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))
    except (ValueError, OSError, EOFError) as problem:
        raise ValueError(f"{name}: cannot be read as NPY without Python objects: {problem}") from None


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names in quotes, the first few where there are many."""
    shown = ", ".join(map(repr, names[:most])) or "none"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
