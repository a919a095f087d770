"""What can be seen of simulated runs: a page while they last, a trace, a report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformesh.cli.viewing import seen

if TYPE_CHECKING:
    from conformesh.graph.network import Network
    from conformesh.methods import Way
    from conformesh.solver import Batch
    from conformesh.view.online import OnlineRecorder
    from conformesh.view.recording import Recorder

MOST_RUNS = 24  # side by side


@contextmanager
def recorded(
    view: str | None, trace: Path | None, report: Path | None, *, sparing: bool = False
) -> Iterator[Recorder | None]:
    """Record the runs inside the block, which says how they ended, and show and write what was asked for.

    None is given where nothing was. A page alone may be `sparing` and take little of a run's time; what is written has
    all there is.
    """
    if view is None and trace is None and report is None:
        yield None
        return
    from conformesh.view.recording import SHARE, Recorder

    recorder = Recorder(SHARE if sparing and trace is None and report is None else None)
    with _shown(recorder, view, trace, report):
        yield recorder


@contextmanager
def followed(
    view: str | None, trace: Path | None, report: Path | None, network: Network, name: str, window: int
) -> Iterator[OnlineRecorder | None]:
    """Record the run over streams inside the block, which says how it ended, and show and write what was asked for."""
    if view is None and trace is None and report is None:
        yield None
        return
    from conformesh.view.online import OnlineRecorder

    recorder = OnlineRecorder(network, name, window)
    with _shown(recorder, view, trace, report):
        yield recorder


@contextmanager
def _shown(
    recorder: Recorder | OnlineRecorder, view: str | None, trace: Path | None, report: Path | None
) -> Iterator[None]:
    with seen(lambda: recorder.recordings, view, trace, report):
        try:
            yield
        except Exception as problem:
            recorder.fail(str(problem))
            raise


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
