"""What is kept of a simulated run besides its result: a trace, a report, a page while it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conformesh.cli import console
from conformesh.cli.panels import FILES

if TYPE_CHECKING:
    from conformesh.calibrating import Batch
    from conformesh.graph.network import Network
    from conformesh.methods import Way
    from conformesh.view.recording import Recorder

MOST_RUNS = 24  # side by side

TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Write what could be seen of the run, round by round, as .json or .json.gz; conformesh view shows it.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the same as a page of its own, .html, which shows the run in any browser without a server.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]


@contextmanager
def recorded(trace: Path | None, report: Path | None) -> Iterator[Recorder | None]:
    """Record the runs inside the block, which says how they ended, and write what was asked for; None: nothing was."""
    if trace is None and report is None:
        yield None
        return
    from conformesh.view.recording import Recorder

    check_files(trace, report)
    recorder = Recorder()
    yield recorder
    found = recorder.trace()
    if trace is not None:
        console.note(f"trace: {found.save(trace)}")
    if report is not None:
        console.note(f"report: {found.report(report)}")


def watching(recorder: Recorder, runs: int) -> dict[str, Any]:
    """Return what makes a comparison of so many runs tell the recorder about each of them."""
    if runs > MOST_RUNS:
        raise ValueError(
            f"a view shows at most {MOST_RUNS} runs side by side, and this comparison has {runs}; name some with "
            "--methods and --topologies"
        )

    def begin(way: Way, network: Network) -> None:
        recorder.label = str(way)

    def ended(way: Way, network: Network, found: Batch | str) -> None:
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


def check_files(trace: Path | None, report: Path | None) -> None:
    """Refuse names that cannot be what was meant, before any work is done."""
    if trace is not None and not trace.name.endswith((".json", ".json.gz")):
        raise ValueError(f"--trace needs a name that ends in .json or .json.gz, got {str(trace)!r}")
    if report is not None and report.suffix not in (".html", ".htm"):
        raise ValueError(f"--report needs a name that ends in .html, got {str(report)!r}")
    for path in (trace, report):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent}; make it first")
