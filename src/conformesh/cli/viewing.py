"""What commands share that can be looked at: the page while they run, and what was recorded, as a trace or a report."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conformesh.cli import console

if TYPE_CHECKING:
    from conformesh.view.app import Details
    from conformesh.view.recording import Recording
    from conformesh.view.trace import Run, Trace

VIEW = "See it"  # the panel of these options
FLAG = "--view"
DEFAULT = "127.0.0.1:8750"  # as `conformesh.view.server` has it, which loads when it is needed
ADDRESS = re.compile(r"(\[[^\]/]*\]|[\w.-]*):\d{1,5}")

ViewAddress = Annotated[
    str | None,
    typer.Option(
        FLAG,
        metavar="[HOST:PORT]",
        help=f"Show it in a browser meanwhile, by default at {DEFAULT}.",
        show_default=False,
        rich_help_panel=VIEW,
    ),
]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Write what could be seen, for conformesh view; .gz packs it.",
        show_default=False,
        rich_help_panel=VIEW,
    ),
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write it as one HTML page that needs no server.",
        show_default=False,
        rich_help_panel=VIEW,
    ),
]


def spelled_out(words: Iterable[str]) -> list[str]:
    """Return the words of a command line, with the address that a --view without one means.

    >>> spelled_out(["up", "--view", "mesh"]), spelled_out(["--view", ":0"])
    (['up', '--view=127.0.0.1:8750', 'mesh'], ['--view', ':0'])
    """
    found, rest = [], [*words]
    for number, word in enumerate(rest):
        after = rest[number + 1] if number + 1 < len(rest) else ""
        found.append(f"{FLAG}={DEFAULT}" if word == FLAG and not ADDRESS.fullmatch(after) else word)
    return found


@contextmanager
def seen(
    recordings: Callable[[], Sequence[Recording]] | Sequence[Recording],
    view: str | None,
    trace: Path | None = None,
    report: Path | None = None,
    *,
    runs: Callable[[], Iterable[Run]] | None = None,
    details: Details | None = None,
    **tls: Any,
) -> Iterator[str]:
    """Show recordings inside the block and write them after it, however it ends; yield the page's address.

    Where somebody sits at the terminal the page stays, after a block that has ended well, until it is interrupted.
    `runs` gives what is written, by default what is shown.
    """
    from conformesh.view.server import shown

    check_files(trace, report)
    given = recordings if callable(recordings) else lambda: recordings
    with shown(given, view, say=console.say, details=details, **tls) as url:
        try:
            yield url
        finally:
            if trace is not None or report is not None:
                write(runs() if runs is not None else [recording.run() for recording in given()], trace, report)
        if url and sys.stderr.isatty():
            with interruptible() as over:
                console.say("the page stays until Ctrl-C")
                over.get()


def check_files(trace: Path | None, report: Path | None) -> None:
    """Refuse names that cannot be what was meant, before any work is done."""
    if trace is not None and not trace.name.endswith((".json", ".json.gz")):
        raise ValueError(f"--trace needs a name that ends in .json or .json.gz, got {str(trace)!r}")
    if report is not None and report.suffix not in (".html", ".htm"):
        raise ValueError(f"--report needs a name that ends in .html, got {str(report)!r}")
    for path in (trace, report):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent}; make it first")


def write(runs: Iterable[Run], trace: Path | None, report: Path | None) -> Trace:
    """Write some runs to the files that were asked for."""
    from conformesh.view.trace import Trace

    found = Trace.of(runs)
    if trace is not None:
        found.save(trace)
        console.say(f"wrote {trace}: look at it with conformesh view {trace}")
    if report is not None:
        found.report(report)
        console.say(f"wrote {report}: open it in a browser")
    return found


@contextmanager
def interruptible() -> Iterator[SimpleQueue[None]]:
    """Yield what something is put into when the process is interrupted, which is no error inside the block.

    A queue, since it may be put into at any moment: an event that is just being waited for may not.
    """
    over: SimpleQueue[None] = SimpleQueue()
    before = {number: signal.signal(number, lambda *_: over.put(None)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
