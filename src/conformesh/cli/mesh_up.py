"""``conformesh mesh up``: all devices of a mesh on this machine, watched until they agree."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conformesh.cli import console, options
from conformesh.cli.command import PATH, SOURCE, Argument, Option, command
from conformesh.cli.recording import RecordingOptions, publish_recordings
from conformesh.common.quantities import format_bits, format_bytes
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.folders import device_folders, scatter_scores
from conformesh.mesh.node.main import Start, override_settings
from conformesh.mesh.processes import DeviceProcess, join_devices, launch_devices
from conformesh.results.result import Result

if TYPE_CHECKING:
    from conformesh.view.mesh_watch import MeshWatch

_AROUND = 6  # lines of the live table besides those of devices: header, footer and prompt
_COLUMNS = ("device", "round", "neighbours", "sent", "received", "state")
_RIGHT = ("round", "rounds", "neighbours", "payload", "sent", "received")


@command(
    Argument("root", "DIR", "The folder that mesh init made.", type=PATH),
    Option("--scores FILE", "Scatter this score file over the devices first.", type=SOURCE),
    options.overrides(),
    options.recording_options(),
    options.json_option("Print every device's result as JSON."),
)
def up(root: Path, scores: str | None, overrides: dict[str, str], recording: RecordingOptions, as_json: bool) -> None:
    """Start all devices on this machine, one process each, and show how they agree.

    In a terminal a live table shows how far each device is. Ends with 1 if a device has failed. With --view the page
    stays after the end, in a terminal, until Ctrl-C.
    """
    folders = device_folders(root)
    override_settings(read_device(folders[0]), overrides)  # a mistake is reported once, not by every device
    if scores is not None:
        scatter_scores(root, scores)
    with _recorded(root, recording) as watch:
        started = time.perf_counter()
        watched = start_devices(folders, settings=overrides)
        if watch is not None:
            watch.follow_processes(watched)
        join_devices(watched)
        if watch is not None:
            finished = [one for one in watched if one.result is not None]
            watch.end(_facts(finished, len(watched)) if finished else [("failed", "no device has a result")])
        seconds = time.perf_counter() - started
        results = [one.result or {"device": one.name, "error": one.error or "failed"} for one in watched]
        console.show_result(results, as_json, lambda: print_agreement(watched, seconds))
    if any(one.result is None for one in watched):
        click.get_current_context().exit(1)


def start_devices(folders: Sequence[Path], **how: Any) -> list[DeviceProcess]:
    """Start a process for each folder that calibrates once, and says twice a second how far it is."""
    starts = [Start(str(folder), once=True, log="progress", **how) for folder in folders]
    return launch_devices({folder.name: start.command() for folder, start in zip(folders, starts, strict=True)})


@contextmanager
def _recorded(root: Path, outlets: RecordingOptions) -> Iterator[MeshWatch | None]:
    """Show and record the mesh inside the block, if that is asked for."""
    if not any(outlets):
        yield None
        return
    from conformesh.view.mesh_watch import MeshWatch

    with (
        MeshWatch(root) as watch,
        publish_recordings(watch.recordings, outlets, runs=watch.runs, details=watch.details),
    ):
        yield watch


def wait_for_devices(watched: Sequence[DeviceProcess]) -> None:
    """Wait for all devices, under a live table where stderr is a terminal, and in silence elsewhere."""
    if not sys.stderr.isatty():
        join_devices(watched)
        return
    from rich.console import Console
    from rich.live import Live

    screen = Console(stderr=True)
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        join_devices(watched, lambda: live.update(_live_table(watched, screen.height - _AROUND), refresh=True))


def _live_table(watched: Sequence[DeviceProcess], room: int) -> Any:
    """Every device; where there is no room, as many as fit, first those that are not done."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    done = sum(one.state == "done" for one in watched)
    shown = [*watched]
    if len(shown) > room:
        shown = sorted(watched, key=lambda one: one.state == "done")[: max(room, 1)]
    hidden = len(watched) - len(shown)
    foot = f"{done} of {len(watched)} devices are done" + (f", {hidden} are not shown" if hidden else "")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=foot, caption_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in _RIGHT else "left", no_wrap=True)
    for one in shown:
        heard = f"{one.heard}/{one.expected}" if one.expected else ""
        sent, received = format_bytes(one.sent), format_bytes(one.received)
        table.add_row(*map(Text, (one.name, str(one.round), heard, sent, received, one.state)))
    return table


def print_agreement(watched: Sequence[DeviceProcess], seconds: float) -> None:
    """Print what the devices agreed on, once, and a line for each."""
    finished = [one for one in watched if one.result is not None]
    if finished:
        console.print_facts("conformesh mesh", [*_facts(finished, len(watched)), ("seconds", f"{seconds:.1f}")])
        print()
    same = len({_thresholds(one) for one in finished}) == 1
    columns = ("device", *(() if same else ("threshold",)), "rounds", "payload", "sent", "received", "state")
    console.print_table(columns, [_line(one, same) for one in watched], right=_RIGHT)


def _thresholds(one: DeviceProcess) -> tuple[float, ...]:
    """Return the thresholds of a device, one for each part and level."""
    return tuple(answer.threshold for answer in one.calibration.answers)


def _agreement(thresholds: Sequence[float], devices: int) -> str:
    """Say what devices found for one part and level, and whether they agree."""
    if len({value.hex() for value in thresholds}) > 1:
        return f"{min(thresholds)!r} to {max(thresholds)!r}, each device its own"
    who = f"all {devices}" if len(thresholds) == devices else f"{len(thresholds)} of {devices}"
    return f"{thresholds[0]!r} ({who} devices agree, bit for bit)"


def _facts(finished: Sequence[DeviceProcess], devices: int) -> list[tuple[str, str]]:
    results = [one.calibration for one in finished]
    answers, has_several = results[0].answers, len(results[0]) > 1
    thresholds = [
        (
            f"{', '.join((*answer.part, f'alpha {float(answer.alpha):g}'))}" if has_several else "threshold",
            _agreement([result.answers[i].threshold for result in results], devices),
        )
        for i, answer in enumerate(answers)
    ]
    rosters = {tuple((one.result or {})["roster"]) for one in finished}
    counts = sorted({len(roster) for roster in rosters})
    return [
        *thresholds,
        *((("guarantee", words),) if (words := _guarantee(results)) else ()),
        ("devices", f"{' or '.join(map(str, counts))} of {devices}{results[0].scores_in_words}"),
        ("cost", console.mesh_cost_in_words([result.cost for result in results], " in all")),
    ]


def _guarantee(results: Sequence[Result]) -> str:
    """What all certificates say; where they differ, their kinds."""
    certificates = [answer.certificate for result in results for answer in result.answers]
    words = dict.fromkeys(map(str, certificates))
    if len(words) == 1:
        return next(iter(words))
    whose = "each device its own" if len(results[0]) == 1 else "one for each threshold"
    return f"{', '.join(dict.fromkeys(certificate.kind for certificate in certificates))}, {whose}"


def _line(one: DeviceProcess, same: bool) -> tuple[str, ...]:
    sent, received = format_bytes(one.sent), format_bytes(one.received)
    if one.result is None:
        return one.name, *(() if same else ("",)), str(one.round), "", sent, received, one.state
    cost = one.result["cost"]
    payload = format_bits(float(cost["bits_per_device"]))
    threshold = () if same else (", ".join(map(str, _thresholds(one))),)
    return one.name, *threshold, str(cost["rounds"]), payload, sent, received, "done"
