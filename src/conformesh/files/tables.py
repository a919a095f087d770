"""Tables from files: CSV, Parquet and NPZ, with errors that name the line and what stands there.

CSV is read as text and turned into numbers here, so that ``abc`` in line 7 is reported as ``abc`` in line 7.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from conformesh.common.arrays import LARGEST_EXACT, note_duplicates, note_large_integers
from conformesh.common.names import closest_name
from conformesh.files.memberships import Memberships
from conformesh.files.text import SNIFFED, CellError, check_finite, parse_numbers, read_columns

STDIN = "-"
_DEVICES = ("device", "devices")  # what the column of devices is called
_ID = "id"  # the column that names each row, where there is one
CLASSES = "classes"  # the column or array in which a file names its classes
SCORE_FUNCTION = "score_function"  # the column or array in which a file of scores names the score that made them
GZIP, _PARQUET, NPY, _ZIP = b"\x1f\x8b", b"PAR1", b"\x93NUMPY", b"PK\x03\x04"
_FOREIGN = {  # first bytes of files that are often mistaken for tables, and what to do with them
    _ZIP: "a ZIP archive (an Excel workbook is one): save the sheet as CSV; arrays need the ending .npz",
    b"\xd0\xcf\x11\xe0": "an Excel workbook: save the sheet as CSV",
    b"BZh": "compressed by bzip2: give the output of `bzcat` to standard input",
    b"\xfd7zXZ": "compressed by xz: give the output of `xzcat` to standard input",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: give the output of `zstdcat` to standard input",
    b"\x89HDF": "an HDF5 file: save its table as CSV or Parquet",
    b"ARROW1": "an Arrow file: save its table as Parquet",
    b"SQLite format 3": "an SQLite database: save its table as CSV",
    b"%PDF": "a PDF: save its table as CSV",
    b"\x89PNG": "a picture",
    b"\x80\x04": "a pickle: save its table as CSV or Parquet",
    b"{": "JSON: write a table, CSV or Parquet",
    b"[": "JSON: write a table, CSV or Parquet",
}


@dataclass(frozen=True)
class FileLayout:
    """How a table is laid out, where the reader should not find out by itself.

    Attributes
    ----------
    device, score, label, id
        Names of columns; by default what they are called here.
    groups
        The columns of groups, if scores are to be told apart by them.
    keep
        Columns of model outputs that are no classes and pass through.
    separator, decimal
        What separates cells of CSV, as a character or its name (comma, semicolon, tab, pipe, space), and its decimal
        sign, "." or ",".
    weight
        The column of weights, if scores have some.
    inputs
        The columns of features, for thresholds near centres.
    sides
        Whether scores stand in two columns, `lower` and `upper`, one for each side of an interval.
    outputs
        The columns of predictions, for regression, where they are not called as a score calls them.
    share, time
        The columns of each device's share of new examples, and of the times of a stream.
    """

    device: str | None = None
    score: str | None = None
    label: str | None = None
    id: str | None = None
    groups: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    separator: str | None = None
    decimal: str | None = None
    weight: str | None = None
    outputs: tuple[str, ...] = ()
    share: str | None = None
    time: str | None = None
    inputs: tuple[str, ...] = ()
    sides: bool = False

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns beside device and score that are asked for."""
        return (*self.groups, *self.inputs, *(name for name in (self.weight, self.label) if name is not None))


@dataclass(frozen=True)
class FileColumns:
    """Named columns of equal length, and what to call them in an error.

    Attributes
    ----------
    columns
        Lists of text, Polars series or NumPy arrays by name.
    name
        The file, or "standard input".
    lines
        The line of each row in a text file; None where a row has no line, and is counted from 0.
    separator
        What separates the cells of a text file.
    decimal
        The decimal sign of a text file, "." or ","; None where the numbers must tell.
    """

    columns: dict[str, Any]
    name: str
    lines: Sequence[int] | None = None
    separator: str | None = None
    decimal: str | None = None

    def where(self, row: int) -> str:
        """Return the place of a row, for an error."""
        return f"{self.name}, " + (f"row {row}" if self.lines is None else f"line {self.lines[row]}")

    def column(self, name: str) -> Any:
        """Return a column, or say which ones there are."""
        if name not in self.columns:
            titles = [*self.columns]
            close = closest_name(name, titles[:1000])
            hint = f"; did you mean {close!r}?" if close else ""
            between = [mark for mark in SNIFFED if self.lines is not None and len(titles) == 1 and mark in titles[0]]
            if between:
                hint = f"; its cells seem to be separated by {between[0]!r}"
            elif not hint and self.lines is not None and any(map(is_number, titles[:1000])):
                hint = "; the first line must name the columns"
            raise ValueError(f"{self.name}: needs a column {name!r}, found {quote_column_names(titles)}{hint}")
        return self.columns[name]

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column as float64; NaN stays NaN, but text and empty cells are errors."""
        column = self.column(name)
        if isinstance(column, np.ndarray):
            if column.dtype.kind not in "fiub":
                raise ValueError(f"{self.name}: {name!r} must hold numbers, got dtype {column.dtype}")
            note_large_integers(column, f"{self.name}, {name!r}")
            return column.astype(np.float64)
        return self.matrix([name])[:, 0]

    def matrix(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Return columns side by side as float64, (rows, columns); they agree on one decimal sign."""
        columns = [self.column(name) for name in names]
        if isinstance(columns[0], np.ndarray):
            return np.column_stack([self.numbers(name) for name in names])
        try:
            if isinstance(columns[0], list):
                cells = [cell for column in columns for cell in column]
                self._note_large(cells, names)
                return parse_numbers(cells, self.decimal, self.separator).reshape(len(columns), -1).T
            return self._parsed(names, columns)
        except CellError as problem:
            at, row = divmod(problem.cell, len(self))
            raise ValueError(
                f"{self.where(row)}: {names[at]} must be a number, {problem}; repair or drop this row"
            ) from None

    def _parsed(self, names: Sequence[str], columns: Sequence[Any]) -> NDArray[np.float64]:
        import polars as pl

        for name, column in zip(names, columns, strict=True):
            if not (column.dtype == pl.String or column.dtype.is_numeric() or column.dtype == pl.Boolean):
                raise ValueError(f"{self.name}: column {name!r} must hold numbers, got {column.dtype}")
        for name, column in zip(names, columns, strict=True):
            if column.dtype.is_integer():
                note_large_integers(column.drop_nulls().to_numpy(), f"{self.name}, {name}")
            elif column.dtype == pl.String:
                self._note_large(column.filter(column.str.contains(r"^\s*[+-]?[0-9]{16,}\s*$")).to_list(), [name])
        texts = [column.str.strip_chars() if column.dtype == pl.String else column for column in columns]
        values = [column.cast(pl.Float64, strict=False) for column in texts]
        odd = any(value.null_count() or value.is_infinite().any() for value in values)
        if odd or self.decimal == "," or self.separator == ";":  # seldom: for the reader that looks at every cell
            if all(column.dtype == pl.String for column in columns):
                cells = [cell or "" for column in texts for cell in column.to_list()]
                return parse_numbers(cells, self.decimal, self.separator).reshape(len(columns), -1).T
            for at, (text, value) in enumerate(zip(texts, values, strict=True)):
                self._refuse_gaps(at, text, value)
        return np.column_stack([value.to_numpy() for value in values])

    def _note_large(self, cells: Sequence[str], names: Sequence[str]) -> None:
        """Say so where a cell is an integer that float64 cannot hold."""
        digits = [int(cell) for cell in cells if len(cell) > 15 and cell.strip().lstrip("+-").isdecimal()]
        note_large_integers(np.array(digits, dtype=object), f"{self.name}, {', '.join(names)}")

    def _refuse_gaps(self, at: int, text: Any, value: Any) -> None:
        """Refuse empty cells, and text that is no number, in a column of a Parquet file."""
        if value.null_count():
            row = int(value.is_null().arg_max() or 0)
            got = text[row] if isinstance(text[row], str) else ""
            raise CellError(at * len(text) + row, f"got {got!r}" if got else "the cell is empty")
        if text.dtype.is_numeric():
            return
        check_finite(value.to_numpy(), text.cast(str).to_list())

    def names(self, name: str, gaps: bool = False) -> tuple[list[str], NDArray[np.int64]]:
        """Return the distinct names in a column, in order of appearance, and for each row the index of its name.

        An empty cell is an error, or with `gaps` a name without characters.
        """
        column = self.column(name)
        if isinstance(column, np.ndarray | list):
            cells = [cell.strip() for cell in (self._texts(name, column) if isinstance(column, np.ndarray) else column)]
            place: dict[str, int] = {}
            index = np.fromiter((place.setdefault(cell, len(place)) for cell in cells), np.int64, len(cells))
            names = [*place]
        else:
            names, index = self._names_in_series(name, column)
        for i, text in enumerate(names):
            if not text and not gaps:
                row = int((index == i).argmax())
                raise ValueError(
                    f"{self.where(row)}: the {name} is empty; name the {name} of every row, or drop this one"
                )
            if not text.isprintable():
                row = int((index == i).argmax())
                raise ValueError(f"{self.where(row)}: the {name} {text!r} must be one line of printable characters")
        return names, index

    def _texts(self, name: str, column: NDArray[Any]) -> list[str]:
        if column.dtype.kind == "f" and bool((column == np.rint(column)).all()):
            self._refuse_rounded(name, column)
            column = column.astype(np.int64)  # what 7 becomes in a column that once had gaps
        if column.dtype.kind not in "iuU":
            raise ValueError(f"{self.name}: column {name!r} must hold names or integers, got {column.dtype}")
        return [str(cell) for cell in column.tolist()]

    def _names_in_series(self, name: str, texts: Any) -> tuple[list[str], NDArray[np.int64]]:
        import polars as pl

        if texts.dtype.is_float() and bool((texts == texts.round()).all()):
            self._refuse_rounded(name, texts.drop_nulls().to_numpy())
            texts = texts.cast(pl.Int64)
        if not (texts.dtype.is_integer() or texts.dtype in (pl.String, pl.Categorical, pl.Enum)):
            raise ValueError(f"{self.name}: column {name!r} must hold names or integers, got {texts.dtype}")
        texts = texts.cast(pl.String).str.strip_chars().fill_null("")
        distinct = texts.unique(maintain_order=True)
        index = texts.replace_strict(distinct, pl.int_range(len(distinct), eager=True), return_dtype=pl.Int64)
        return distinct.to_list(), index.to_numpy()

    def _refuse_rounded(self, name: str, column: NDArray[Any]) -> None:
        """Refuse names that were integers and have lost their last digits: different devices may look the same."""
        large = column[np.abs(column) > LARGEST_EXACT]
        if large.size:
            raise ValueError(
                f"{self.name}: column {name!r} holds floats above 2^53, got {large[0]:.17g}, "
                "whose last digits are lost; store names as text or integers"
            )

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))


def read_table(
    source: str,
    needed: str,
    stdin: BinaryIO | None = None,
    layout: FileLayout | None = None,
    *,
    may_be_empty: bool = False,
    data: bytes | None = None,
) -> FileColumns:
    """Read CSV, Parquet or NPZ by the ending of the name, also compressed by gzip; "-" and any other ending are CSV.

    `needed` says what the file should hold, for errors; with `may_be_empty` a heading alone is a table without rows.
    `data` is the content of the source, for callers that have read it already.
    """
    layout = layout or FileLayout()
    name = "standard input" if source == STDIN else source
    data = read_bytes(source, stdin) if data is None else data
    suffix = Path(source).suffix.lower()
    if data.startswith(GZIP):
        data, suffix = _unpacked(data, name), Path(Path(source).stem).suffix.lower()
    if not data.strip():
        raise ValueError(f"{name} is empty; needed {needed}")
    if suffix == ".npz":
        table = FileColumns(_arrays(data, name), name)
    elif suffix == ".npy" or data.startswith(NPY):
        table = FileColumns({"outputs": _array(data, name)}, name)
    elif suffix in (".parquet", ".pq") or data.startswith(_PARQUET):
        table = _parquet(data, name)
    else:
        for mark, what in _FOREIGN.items():
            if data.startswith(mark):
                raise ValueError(f"{name}: is {what}; needed {needed}")
        titles, columns, lines, separator = read_columns(data, name, layout.separator)
        table = FileColumns(dict(zip(titles, columns, strict=True)), name, lines, separator, layout.decimal)
    if not table.columns or (not len(table) and not may_be_empty and suffix not in (".npz", ".npy")):
        raise ValueError(f"{name} has no rows; needed {needed}")
    return table


def check_equal_lengths(table: FileColumns, names: Iterable[str]) -> None:
    """Refuse columns of unequal length, which only NPZ can have."""
    lengths = {name: len(table.column(name)) for name in names}
    if len({*lengths.values()}) > 1:
        each = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"{table.name}: arrays must have one entry per row each, got lengths {each}")


def note_ids(table: FileColumns, layout: FileLayout) -> None:
    """Warn if the column of ids, where there is one, names a row of a device twice."""
    name = layout.id or _ID
    device = layout.device or next((each for each in _DEVICES if each in table.columns), None)
    if name in table.columns and np.ndim(table.columns[name]) == 1:
        owners = None if device is None else table.columns.get(device)
        known = owners is not None and np.ndim(owners) == 1
        note_duplicates(_cells(table.columns[name]), table.name, _cells(owners) if known else None)


def _cells(column: Any) -> list[Any]:
    return column.tolist() if isinstance(column, np.ndarray) else [*column]


def row_groups(table: FileColumns, columns: tuple[str, ...]) -> Memberships:
    """Return the groups of every row: one label each, several columns, or cells that list several."""
    cells = {}
    for column in columns:
        kinds, which = table.names(column, gaps=True)
        cells[column] = np.array(kinds, dtype=object)[which].tolist()
    found = Memberships.of_cells(cells)
    if not found.overlapping:
        table.names(columns[0])  # raises for an empty cell: where each row has one group, it is a mistake
    return found


def read_bytes(source: str, stdin: BinaryIO | None = None) -> bytes:
    """Return the content of a file, or of standard input where the source is "-"."""
    if source == STDIN:
        return (stdin or sys.stdin.buffer).read()
    try:
        return Path(source).read_bytes()
    except OSError as problem:
        raise ValueError(f"{source}: cannot read the file: {problem.strerror}; check the path") from problem
    except ValueError as problem:  # a name with a NUL
        raise ValueError(f"{source!r}: cannot be the name of a file: {problem}") from None


def _unpacked(data: bytes, name: str) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as problem:
        raise ValueError(f"{name}: cannot be unpacked by gzip: {problem}; is the file whole?") from None


def _parquet(data: bytes, name: str) -> FileColumns:
    import polars as pl

    if not data.startswith(_PARQUET):
        raise ValueError(f"{name}: cannot be read as Parquet: it does not begin as Parquet does; CSV is named .csv")
    try:
        frame = pl.read_parquet(io.BytesIO(data))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as problem:
        why = (str(problem).splitlines() or ["it is damaged"])[0]
        raise ValueError(f"{name}: cannot be read as Parquet: {why}; is the file whole?") from None
    return FileColumns({column.name.strip(): column for column in frame.get_columns()}, name)


def _arrays(data: bytes, name: str) -> dict[str, NDArray[Any]]:
    if not data.startswith(_ZIP[:2]):
        raise ValueError(f"{name}: cannot be read as NPZ: it does not begin as NPZ does; write it by numpy.savez")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
            twice = len(archive.files) - len(arrays)
    # Any exception: a damaged archive fails in zipfile, zlib, the header parser or NumPy, each with errors of its own.
    except Exception as problem:
        raise ValueError(f"{name}: cannot be read as NPZ: {_numpy_says(problem)}; write it by numpy.savez") from None
    if twice:
        raise ValueError(f"{name}: holds two arrays of one name; rename or drop one")
    return arrays


def _array(data: bytes, name: str) -> NDArray[Any]:
    if not data.startswith(NPY):
        raise ValueError(f"{name}: cannot be read as NPY: it does not begin as NPY does; write it by numpy.save")
    try:
        return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))
    except Exception as problem:
        raise ValueError(f"{name}: cannot be read as NPY: {_numpy_says(problem)}; write it by numpy.save") from None


def _numpy_says(problem: Exception) -> str:
    text = (str(problem).splitlines() or ["it is damaged"])[0]
    return "it holds Python objects, which could run anything" if "pickle" in text else text


def is_number(text: str) -> bool:
    """Say whether a text reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def quote_column_names(names: Sequence[str], most: int = 8) -> str:
    """Return names in quotes, the first few where there are many."""
    shown = ", ".join(map(repr, names[:most])) or "none"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
