"""Recordings of runs: shown on a page while they last, and written as a trace or a report at their end.

Nothing of `view` is loaded unless one of the three is asked for. Names of files are checked before the work begins.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from conformesh.cli import console

if TYPE_CHECKING:
    from conformesh.graph.network import Network
    from conformesh.methods import MethodVariant
    from conformesh.pipeline.solver import CalibrationBatch
    from conformesh.view.online import OnlineRecorder
    from conformesh.view.recording import Recorder, Recording
    from conformesh.view.routes import AskDetails
    from conformesh.view.trace import Trace, TracedRun

VIEW_FLAG = "--view"
DEFAULT_ADDRESS = "127.0.0.1:8750"  # as `conformesh.view.server` has it, which loads when it is needed
_ADDRESS = re.compile(r"(\[[^\]/]*\]|[\w.-]*):\d{1,5}")
_MOST_RUNS = 24  # side by side; a choice: with more the pictures are too small to read


class RecordingOptions(NamedTuple):
    """Where a recorded run goes: to a page, a trace file, a report."""

    view: str | None = None
    trace: Path | None = None
    report: Path | None = None


def with_default_address(words: Iterable[str]) -> list[str]:
    """Return the words of a command line, with the default address behind a --view that has none.

    click cannot tell ``--view mesh`` (a flag and an argument) from an option with its value; an address has a port.

    >>> with_default_address(["up", "--view", "mesh"]), with_default_address(["--view", ":0"])
    (['up', '--view=127.0.0.1:8750', 'mesh'], ['--view', ':0'])
    """
    found, rest = [], [*words]
    for number, word in enumerate(rest):
        after = rest[number + 1] if number + 1 < len(rest) else ""
        found.append(f"{VIEW_FLAG}={DEFAULT_ADDRESS}" if word == VIEW_FLAG and not _ADDRESS.fullmatch(after) else word)
    return found


@contextmanager
def record_runs(outlets: RecordingOptions, *, sparing: bool = False) -> Iterator[Recorder | None]:
    """Record the runs inside the block, which says how they ended, and show and write what was asked for.

    None is given where nothing was. A page alone may be `sparing` and take little of a run's time; what is written has
    all there is.
    """
    if not any(outlets):
        yield None
        return
    from conformesh.view.recording import LIVE_SHARE, Recorder

    recorder = Recorder(LIVE_SHARE if sparing and outlets.trace is None and outlets.report is None else None)
    with _publish_recorder(recorder, outlets):
        yield recorder


@contextmanager
def record_stream(
    outlets: RecordingOptions, network: Network, name: str, window: int
) -> Iterator[OnlineRecorder | None]:
    """Record the run over streams inside the block, which says how it ended, and show and write what was asked for."""
    if not any(outlets):
        yield None
        return
    from conformesh.view.online import OnlineRecorder

    recorder = OnlineRecorder(network, name, window)
    with _publish_recorder(recorder, outlets):
        yield recorder


@contextmanager
def _publish_recorder(recorder: Recorder | OnlineRecorder, outlets: RecordingOptions) -> Iterator[None]:
    with publish_recordings(lambda: recorder.recordings, outlets):
        try:
            yield
        except Exception as problem:
            recorder.fail(str(problem))
            raise


def comparison_callbacks(recorder: Recorder, runs: int) -> dict[str, Any]:
    """Return what makes a comparison of so many runs tell the recorder about each of them."""
    if runs > _MOST_RUNS:
        raise ValueError(
            f"a view shows at most {_MOST_RUNS} runs side by side, and this comparison has {runs}; name some with "
            "--method and --network"
        )

    def begin(way: MethodVariant, network: Network) -> None:
        recorder.label = str(way)

    def ended(way: MethodVariant, network: Network, found: CalibrationBatch | str) -> None:
        if isinstance(found, str):
            recorder.fail(found)
            return
        thresholds, certificate = found.outcome.thresholds[:, 0, 0], found.outcome.certificates[0][0]
        low, high = float(thresholds.min()), float(thresholds.max())
        facts = [
            ("threshold", f"{high:.6g}" if low == high else f"{low:.6g} to {high:.6g}"),
            ("guarantee", str(certificate)),
            ("cost", str(found.cost)),
        ]
        recorder.conclude(thresholds, certificate.kind, facts, rounds=found.cost.rounds)

    return {"begin": begin, "ended": ended, "observer": recorder}


@contextmanager
def publish_recordings(
    recordings: Callable[[], Sequence[Recording]],
    outlets: RecordingOptions,
    *,
    runs: Callable[[], Iterable[TracedRun]] | None = None,
    details: AskDetails | None = None,
) -> Iterator[str]:
    """Show recordings inside the block and write them after it, however it ends; yield the page's address.

    Where somebody sits at the terminal the page stays, after a block that has ended well, until it is interrupted.
    `runs` gives what is written, by default what is shown.
    """
    from conformesh.view.server import serving_view

    _check_files(outlets)
    with serving_view(recordings, outlets.view, say=console.print_status, details=details) as url:
        try:
            yield url
        finally:
            if outlets.trace is not None or outlets.report is not None:
                write_recordings(
                    runs() if runs is not None else [recording.run() for recording in recordings()], outlets
                )
        if url and sys.stderr.isatty():
            with catch_interrupts() as over:
                console.print_status("the page stays until Ctrl-C")
                over.get()


def _check_files(outlets: RecordingOptions) -> None:
    """Refuse names that cannot be what was meant, before any work is done."""
    _, trace, report = outlets
    if trace is not None and not trace.name.endswith((".json", ".json.gz")):
        raise ValueError(f"--trace needs a name that ends in .json or .json.gz, got {str(trace)!r}")
    if report is not None and report.suffix not in (".html", ".htm"):
        raise ValueError(f"--report needs a name that ends in .html, got {str(report)!r}")
    for path in (trace, report):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent}; make it first")


def write_recordings(runs: Iterable[TracedRun], outlets: RecordingOptions) -> Trace:
    """Write some runs to the files that were asked for."""
    from conformesh.view.trace import Trace

    _, trace, report = outlets
    found = Trace.of(runs)
    if trace is not None:
        found.save(trace)
        console.print_status(f"wrote {trace}: look at it with conformesh view {trace}")
    if report is not None:
        found.report(report)
        console.print_status(f"wrote {report}: open it in a browser")
    return found


@contextmanager
def catch_interrupts() -> Iterator[SimpleQueue[None]]:
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
