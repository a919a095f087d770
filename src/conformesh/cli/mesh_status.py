"""``conformesh mesh status``: how every device of a mesh is, as seen from here."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from conformesh.cli import console, options
from conformesh.cli.command import Argument, Option, command
from conformesh.mesh.node.status import DeviceStatus
from conformesh.mesh.overview import Overview, ask_mesh

_COLUMNS = ("device", "health", "phase", "run", "threshold", "about", "heard", "via", "because")
_EVERY = 1.0  # seconds between two looks: as often as devices send heartbeats by default


@command(
    Argument(
        "where",
        "[FOLDER|ADDRESS]",
        "A device's folder, a mesh's folder, a socket, or 127.0.0.1:PORT.",
        required=False,
        default=".",
    ),
    options.json_option(),
    Option("--watch", "Look again every second, until interrupted."),
)
def status(where: str, as_json: bool, watch: bool) -> None:
    """Show how every device is, as the nodes that run on this machine have heard: one table.

    Ends with 0 if all devices are healthy, hear their neighbours and have one threshold in each run, with 1 if not, and
    with 3 if nobody could be asked. With a folder, the endpoints of devices that are silent or unknown are tried from
    here.
    """
    found = ask_mesh(where)
    _print(found, as_json)
    try:
        while watch:
            time.sleep(_EVERY)
            found = ask_mesh(where)
            _separate(as_json)
            _print(found, as_json)
    except KeyboardInterrupt:  # the usual end of watching
        pass
    if found.code:
        click.get_current_context().exit(found.code)


def _print(found: Overview, as_json: bool) -> None:
    console.show_result(found.to_dict(), as_json, lambda: _print_words(found))


def _print_words(found: Overview) -> None:
    if found.devices:
        console.print_table(_COLUMNS, [_line(device) for device in found.devices], right=("run", "heard"))
        print()
    print(found.words, flush=True)


def _separate(as_json: bool) -> None:
    """Begin anew: on a cleared screen, or after an empty line in a pipe."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().clear()
    elif not as_json:
        print()


def _line(device: DeviceStatus) -> Sequence[str]:
    ago, about, threshold = device.heard_seconds_ago, device.about, device.threshold
    return (
        device.name,
        device.health,
        "" if device.phase is None else device.phase.value,
        "" if device.run is None else str(device.run),
        "" if threshold is None else f"{float(threshold):.6g}",
        "" if about is None else f"{about} of {device.devices}",
        "" if ago is None else f"{ago:.1f} s ago",
        "" if device.via == "nobody" else device.via,
        "; ".join(filter(None, [*device.reasons, "drift" if device.alarms else "", device.probe])),
    )
