"""What the terminal sees: answers on stdout, everything else on stderr, and plain text wherever nobody is looking."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from conformesh.common.notes import CalibrationNote
from conformesh.common.quantities import format_bits
from conformesh.files.json_numbers import dump_json

if TYPE_CHECKING:
    from conformesh.results.certificate import Cost


# What the library raises for a mistake of its caller: exit code 2. Anything else is an internal error, code 1.
_BAD_INPUT = (ValueError, TypeError, OverflowError, OSError, MemoryError)
_LONGEST_ERROR = 800  # characters of an error: a line that fills the screen hides what it says


@contextmanager
def errors_in_one_line(debug: bool = False) -> Iterator[None]:
    """Exit with 2 for a mistake of the caller and with 1 for an internal error, after one line that names it."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        _print_lines("error: interrupted")
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough: no complaint, and none when Python flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, click.UsageError):
            where = error.ctx.command_path if error.ctx is not None else "conformesh"
            message = error.format_message().replace("Value error, ", "")  # a prefix of validators that helps nobody
            if getattr(error, "option_name", "") == "--confidence":
                message = (
                    "--confidence is not an option: MAPIE and crepes call 1 - alpha the confidence; use --alpha for "
                    "that, or --pac-confidence for a confidence over the draw of the calibration scores"
                )
            _print_lines(f"error: {_one_line(message)}", f"try: {where} --help")
            sys.exit(2)
        _print_lines(f"error: {_error_text(error)}")
        sys.exit(2 if isinstance(error, _BAD_INPUT) else 1)


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        why = str(error.strerror)  # of our own writes this is a whole sentence, which names the file
        return _one_line(
            why if error.filename is None else f"{error.filename}: {why}; check the path and its permissions"
        )
    if isinstance(error, MemoryError):
        return _one_line(f"this needs more memory than there is: {error}; ask for less").replace(": ; ask", "; ask")
    if isinstance(error, _BAD_INPUT):
        return _one_line(str(error)) or type(error).__name__
    engine = sys.modules.get("conformesh.peer.device")  # loaded, if it is what has raised
    if engine is not None and isinstance(error, engine.PeerError):  # a neighbour is missing or disagrees: no bug
        return _one_line(str(error))
    return f"unexpected {type(error).__name__}: {_one_line(str(error))}; --debug shows the traceback"


def print_status(text: str) -> None:
    """Say on stderr how the work goes, one line at a time."""
    _print_lines(_one_line(text))


def print_note(text: str) -> None:
    """Say on stderr what was decided for the user."""
    _print_lines(f"note: {_one_line(text)}")


@contextmanager
def notes_in_one_line() -> Iterator[None]:
    """Print each `CalibrationNote` as one line on stderr as soon as it comes, and only once."""
    printed: set[str] = set()

    def show(message: Warning | str, *_: Any) -> None:
        if (text := _one_line(str(message))) not in printed:
            printed.add(text)
            _print_lines(f"warning: {text}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", CalibrationNote)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Print each warning as one line on stderr, once, after the work is done."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(_one_line(str(warning.message)) for warning in caught):
        _print_lines(f"warning: {text}")


def _print_lines(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _one_line(text: str) -> str:
    """Return a text on one line that a terminal can show, without its middle where it is very long."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))
    half = _LONGEST_ERROR // 2 - 3
    return line if len(line) <= _LONGEST_ERROR else f"{line[:half]} ... {line[-half:]}"


# --- results ----------------------------------------------------------------------------------------------------------


def show_result(data: Any, as_json: bool, print_words: Callable[[], None]) -> None:
    """Print the result of a command: as one line of JSON for programs, in which infinity is "inf", or in words."""
    if as_json:
        print(dump_json(data), flush=True)  # flushed: a program may read while the command goes on, as of mesh status
    else:
        print_words()


def print_facts(title: str, facts: Sequence[tuple[str, str]]) -> None:
    """Print names with values: a panel on a terminal, ``name: value`` lines in a pipe."""
    if not sys.stdout.isatty():
        for name, value in facts:
            print(f"{name}: {value}")
        return
    from rich import box
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(value))
    Console().print(Panel(table, title=title, title_align="left", box=box.ROUNDED, expand=False))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), group_by: str | None = None
) -> None:
    """Print a table: ruled on a terminal, aligned text in a pipe; numbers in the columns `right` end at the right.

    With `group_by` a line separates rows that differ in that column.
    """
    where = None if group_by is None else [*columns].index(group_by)
    ends = [where is not None and i + 1 < len(rows) and rows[i + 1][where] != row[where] for i, row in enumerate(rows)]
    if not sys.stdout.isatty():
        _print_aligned(columns, rows, right, ends)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    screen = Console()
    widths = _widths(columns, rows, right, screen.width)
    if widths is None:
        _print_stacked(columns, rows, screen.width)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, width in zip(columns, widths, strict=True):
        table.add_column(column, justify="right" if column in right else "left", overflow="fold", width=width)
    for row, end in zip(rows, ends, strict=True):
        table.add_row(*map(Text, row), end_section=end)
    screen.print(table)


def _widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], screen: int
) -> list[int] | None:
    """Return widths that break lines between words only, and numbers never; None where the screen is too narrow."""
    cells = [*zip(columns, *rows, strict=True)]
    widths = [max(map(len, column)) for column in cells]
    least = [
        width if column in right else max(len(word) for cell in texts for word in cell.split() or [""])
        for column, texts, width in zip(columns, cells, widths, strict=True)
    ]
    room = screen - 3 * (len(columns) - 1) - 2  # what stands between columns, and at both ends
    if sum(least) > room:
        return None
    while sum(widths) > room:
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


def _print_stacked(columns: Sequence[str], rows: Sequence[Sequence[str]], screen: int) -> None:
    """Print a table that is wider than the screen: every row as lines of ``column  value``."""
    from textwrap import TextWrapper

    name = max(map(len, columns))
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            if cell:
                start, after = f"{column:{name}}  ", " " * (name + 2)
                wide = max(screen, name + 12)  # below that nothing reads well
                wrapped = TextWrapper(wide, start, after, break_long_words=False, break_on_hyphens=False)
                print(wrapped.fill(cell))
        print()


def _print_aligned(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], ends: Sequence[bool]
) -> None:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    pad: list[Callable[[str, int], str]] = [str.rjust if column in right else str.ljust for column in columns]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(p(cell, width) for p, cell, width in zip(pad, cells, widths, strict=True)).rstrip()

    print(line(columns))
    print(line(["-" * width for width in widths]))
    for row, end in zip(rows, ends, strict=True):
        print(line(row))
        if end:
            print()


def mesh_cost_in_words(costs: Sequence[Cost], where: str = "") -> str:
    """Return what devices of a mesh sent: for the method, as in a simulation, and with all that a mesh adds to it.

    >>> import numpy as np
    >>> from conformesh.results.certificate import Cost
    >>> two, more = (Cost(rounds, np.array([1.0]), np.array([64.0 * rounds])) for rounds in (2, 5))
    >>> mesh_cost_in_words([two, two], " in all")
    '2 rounds, 256 bit sent in all'
    >>> mesh_cost_in_words([Cost(2, two.numbers, two.bits, more)])
    '2 rounds, 128 bit sent; 5 rounds, 320 bit with what only a mesh must send'
    """

    def words(costs: Sequence[Cost]) -> str:
        return (
            f"{max(cost.rounds for cost in costs):,} rounds, {format_bits(sum(cost.bits_per_device for cost in costs))}"
        )

    mesh = [cost.sent for cost in costs if cost.sent is not None]
    return f"{words(costs)} sent{where}" + (f"; {words(mesh)} with what only a mesh must send" if mesh else "")
