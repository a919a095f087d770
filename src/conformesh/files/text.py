"""Tables in text files of any origin: encodings, separators, quotes, decimal commas.

What is unambiguous is read. What could be meant in two ways is an error that names the option which settles it. A small
file is read by the standard library, so that a command which needs a thousand scores does not load Polars; a large one
by Polars. Both give the same result: `tests/files/test_text.py` reads everything in both ways.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from conformesh.common.array_types import Floats

SMALL_FILE = 2_000_000  # bytes: up to here loading Polars takes longer than it saves
_WIDE_TABLE = 50_000  # columns: beyond, Polars takes minutes

_SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " "}
SNIFFED = ",;\t|"  # separators that are recognised; others must be given
_UNSEPARATED = "\x1f"  # a separator that no text has: every line is one field
_BYTE_ORDER_MARKS = {  # longest first: the mark of UTF-32 begins with that of UTF-16
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
# ``sep=;`` in a line before the table, as spreadsheets write it.
_DECLARATION = re.compile(rb'"?sep=([^\w"])"?[^\S\n]*\n')
# Control characters other than tab, line feed, form feed and carriage return, as in binary files.
_NOT_IN_TEXT = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")

_WITH_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?")
_BY_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}([,.][0-9]{3})+")  # 1,234 or 1.234: also 1234, for many people
_DIGIT = re.compile(r"[0-9]")


csv.field_size_limit(2**30)  # a cell may hold the names of many thousand classes


class CellError(ValueError):
    """A cell that is no number: its place among the cells, and why."""

    def __init__(self, cell: int, why: str) -> None:
        super().__init__(why)
        self.cell = cell


# --- from bytes to columns --------------------------------------------------------------------------------------------


def read_columns(
    data: bytes, name: str, separator: str | None = None
) -> tuple[list[str], list[Any], Sequence[int], str]:
    """Return names, columns (lists of text, or Polars series where the file is large), lines of rows, and separator."""
    data, first = _as_utf8(data, name), 1
    declared = _DECLARATION.match(data)
    if declared:
        data, first = data[declared.end() :], 2  # lines of errors still count from the first one of the file
        separator = declared.group(1).decode() if separator is None else separator
    separator = _sniffed(data, name) if separator is None else _as_separator(separator)
    large = len(data) > SMALL_FILE and data.count(separator.encode(), 0, data.find(b"\n")) < _WIDE_TABLE
    read = _by_polars if large else _by_csv
    header, columns, lines = read(data, name, separator, first)
    header = [title.strip() for title in header]
    twice = next((title for title, times in Counter(header).items() if title and times > 1), None)
    if twice is not None:
        raise ValueError(f"{name}: has two columns {twice!r}; rename or drop one")
    named = [bool(title) or _any_cell(column) for title, column in zip(header, columns, strict=True)]
    header = [title for title, kept in zip(header, named, strict=True) if kept]
    # Columns without name and content come from a separator at the end of every line.
    columns = [column for column, kept in zip(columns, named, strict=True) if kept]
    return header, columns, lines, separator


def _as_separator(word: str) -> str:
    """Return the character that separates cells: itself, or its name."""
    character = _SEPARATORS.get(word.strip().lower(), "\t" if word == r"\t" else word)
    if len(character) != 1 or character.isalnum() or character in "\"\n\r.+-'":
        raise ValueError(f"separator must be one character or one of {', '.join(_SEPARATORS)}, got {word!r}")
    return character


def _as_utf8(data: bytes, name: str) -> bytes:
    """Return text as UTF-8 with lines that end in a newline, or say why it is no text."""
    encoding = next((known for mark, known in _BYTE_ORDER_MARKS.items() if data.startswith(mark)), None)
    if encoding is None and b"\0" in data[:4]:  # the first characters are ASCII: UTF-16 shows in its zeros
        encoding = "utf-16-be" if data[:1] == b"\0" else "utf-16-le"
    if encoding is not None:
        try:
            data = data.decode(encoding).encode()
        except UnicodeDecodeError:
            raise ValueError(f"{name}: begins as {encoding.upper()} but is not: save it as UTF-8") from None
    strange = _NOT_IN_TEXT.search(data)
    if strange:
        raise ValueError(
            f"{name}: is no text file: byte 0x{strange.group()[0]:02x} in line {_line_of(data, strange.start())}; "
            "scores and outputs are CSV, Parquet (.parquet) or NumPy files (.npz, .npy)"
        )
    try:
        data.decode()
    except UnicodeDecodeError as problem:
        raise ValueError(
            f"{name}: is not in UTF-8: byte 0x{data[problem.start]:02x} in line {_line_of(data, problem.start)}; "
            "save it as UTF-8, for instance by `iconv -f latin1 -t utf-8`"
        ) from None
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data


def _line_of(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1


def _rows(data: bytes, separator: str, name: str, first: int) -> Iterator[tuple[int, list[str]]]:
    """Go through the rows of a text, each with its line; an unreadable one is an error that says where."""
    reader = csv.reader(io.StringIO(data.decode(), newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            yield reader.line_num + first - 1, row
    except csv.Error as problem:
        why = "a quote is opened and not closed" if "end of data" in str(problem) else f"{problem}"
        line = reader.line_num + first - 1
        raise ValueError(f"{name}, line {line}: cannot be read as CSV: {why}; check its quotes") from None


def _sniffed(data: bytes, name: str) -> str:
    """Return what separates the names in the first line; with several candidates, the one that also parts the rows."""
    end = data.find(b"\n", 100_000)  # bytes: enough for twenty usual rows; whole lines, and at least the first
    whole = data if end < 0 else data[:end]
    several, fits = [], []
    for mark in SNIFFED:
        rows = csv.reader(io.StringIO(whole.decode(errors="ignore"), newline=""), delimiter=mark)
        widths = []
        with suppress(csv.Error):
            widths = [len(row) for row in islice(rows, 20) if row]
        if widths and widths[0] > 1:
            several.append(mark)
            fits += [mark] * (len({*widths}) == 1)
    if len(several) <= 1:
        return several[0] if several else _UNSEPARATED
    if len(fits) != 1:
        shown = " or ".join(map(repr, several))
        raise ValueError(
            f"{name}: cells may be separated by {shown}: say which, with separator= (--separator on the command line)"
        )
    return fits[0]


def _odd(name: str, line: int, got: int, needed: int) -> ValueError:
    return ValueError(
        f"{name}: cannot be read as CSV: line {line} has {got} fields, the header {needed}; repair or drop this line"
    )


def _by_csv(data: bytes, name: str, separator: str, first: int) -> tuple[list[str], list[Any], Sequence[int]]:
    rows = _rows(data, separator, name, first)
    header = next((row for _, row in rows if row), [])
    cells, lines = [], []
    for line, row in rows:
        if any(row):
            if len(row) != len(header):
                raise _odd(name, line, len(row), len(header))
            cells.append(row)
            lines.append(line)
    columns = [[*column] for column in zip(*cells, strict=True)] if cells else [[] for _ in header]
    return header, columns, lines


def _by_polars(data: bytes, name: str, separator: str, first: int) -> tuple[list[str], list[Any], Sequence[int]]:
    import polars as pl

    header = next((row for _, row in _rows(data, separator, name, first) if row), [])
    quoted = b'"' in data
    if quoted:
        _check_rows(data, name, separator, first, len(header))
    try:
        frame = pl.read_csv(
            io.BytesIO(data), infer_schema=False, separator=separator, quote_char='"' if quoted else None
        )
    except pl.exceptions.PolarsError as problem:
        _check_rows(data, name, separator, first, len(header))
        raise ValueError(f"{name}: cannot be read as CSV: {str(problem).splitlines()[0]}") from None
    blank = frame.select(pl.all_horizontal(pl.all().is_null())).to_series() if frame.width else None
    lines: Sequence[int] = range(first + 1, first + 1 + len(frame))
    if blank is not None and blank.any():  # empty lines count as lines, not as rows
        lines = (np.flatnonzero(~blank.to_numpy()) + first + 1).tolist()
        frame = frame.filter(~blank)
    if not quoted and data.count(separator.encode()) != (len(frame) + 1) * (len(header) - 1):
        _check_rows(data, name, separator, first, len(header))  # Polars fills a short row with empty cells
    return header, frame.get_columns(), lines


def _check_rows(data: bytes, name: str, separator: str, first: int, width: int) -> None:
    for line, row in _rows(data, separator, name, first):
        if any(row) and len(row) != width:
            raise _odd(name, line, len(row), width)


def _any_cell(column: Any) -> bool:
    return any(column) if isinstance(column, list) else column.null_count() < len(column)


# --- from text to numbers ---------------------------------------------------------------------------------------------


def parse_numbers(cells: Sequence[str], decimal: str | None = None, separator: str | None = None) -> Floats:
    """Return cells as float64; NaN stays NaN. Cells of one table have one decimal sign, a point or a comma.

    A comma is taken for a decimal sign only where nothing else can be meant: ``1,234`` alone may be a thousand and
    more, and so may ``1.234`` in a file of semicolons.
    """
    if decimal not in (None, ".", ","):
        raise ValueError(f"decimal must be '.' or ',', got {decimal!r}")
    if decimal == ",":
        cells = _with_points(cells)
    together = "".join(cells)
    try:
        if not together.isascii() or "_" in together:  # float would take 1_000 and the digits of every script
            raise ValueError
        values = np.array([*map(float, cells)], dtype=np.float64)
    except ValueError:
        problem = next(_unreadable(cells))
        if decimal is None and "," in cells[problem.cell]:
            return parse_numbers(_unambiguous(cells), ",")
        raise problem from None
    if np.isinf(values).any():
        check_finite(values, cells)
    if decimal is None and separator == ";":  # files of locales with a decimal comma, where 1.234 may be a thousand
        _refuse_thousands(cells, ".")
    return values


def _unreadable(cells: Sequence[str]) -> Iterator[CellError]:
    for i, cell in enumerate(cells):
        text = cell.strip()
        try:
            if not text.isascii() or "_" in text:
                raise ValueError
            float(text)
        except ValueError:
            yield CellError(i, f"got {text!r}" if text else "the cell is empty")


def check_finite(values: Floats, cells: Sequence[str]) -> None:
    """Refuse numbers that became infinite because they are too large."""
    for i in np.flatnonzero(np.isinf(values)).tolist():
        if _DIGIT.search(cells[i]):
            raise CellError(i, f"got {cells[i].strip()!r}, which is beyond the largest number of 64 bits")


def _with_points(cells: Sequence[str]) -> Sequence[str]:
    pointed = next((i for i, cell in enumerate(cells) if "." in cell), None)
    if pointed is not None:
        raise CellError(pointed, f"got {cells[pointed].strip()!r} where the decimal sign is a comma")
    return [cell.replace(",", ".") for cell in cells]


def _unambiguous(cells: Sequence[str]) -> Sequence[str]:
    """Return the cells if their commas can only be decimal signs."""
    pointed = next((cell.strip() for cell in cells if "." in cell), None)
    for i, cell in enumerate(cells):
        text = cell.strip()
        if "," not in text:
            continue
        if not _WITH_COMMA.fullmatch(text):
            why = ": leave out thousands separators" if _DIGIT.search(text) else ""
            raise CellError(i, f"got {text!r}{why}")
        if pointed is not None:
            raise CellError(i, f"got {text!r} beside {pointed!r}: one decimal sign for all, please")
    _refuse_thousands(cells, ",")
    return cells


def _refuse_thousands(cells: Sequence[str], sign: str) -> None:
    marked = [i for i, cell in enumerate(cells) if sign in cell]
    if marked and all(_BY_THOUSANDS.fullmatch(cells[i].strip()) for i in marked):
        text = cells[marked[0]].strip()
        raise CellError(
            marked[0],
            f"got {text!r}, which may mean {text.replace(sign, '')} or {text.replace(sign, '.', 1)}: "
            "say decimal=',' or decimal='.' (--decimal on the command line)",
        )
