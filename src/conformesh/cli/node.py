"""``conformesh node``: run one device of a mesh."""

from __future__ import annotations

import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import conformesh.cli
from conformesh.cli import console
from conformesh.cli.viewing import ViewAddress
from conformesh.mesh.config import MODES, ON_LOST
from conformesh.mesh.node.process import Start, in_json, run


class _LogForm(StrEnum):
    """How the log is written."""

    words = "words"
    json = "json"
    progress = "progress"


# For this start only, instead of what device.toml says.
Patience = Annotated[
    str | None,
    typer.Option(metavar="<float>", help="Seconds to wait for a neighbour, this time.", show_default=False),
]
OnLost = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(ON_LOST), help="What a lost neighbour means, this time, on all devices.", show_default=False
    ),
]
Quorum = Annotated[
    str | None,
    typer.Option(
        metavar="<int>",
        help="How many devices must be left to continue, more than half, this time, on all devices.",
        show_default=False,
    ),
]


Mode = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(MODES),
        help="Talk in rounds, or at any time without waiting for anybody, this time, on all devices.",
        show_default=False,
    ),
]
Pulse = Annotated[
    str | None,
    typer.Option(metavar="<float>", help="Seconds between two pulses, this time; 0 for none.", show_default=False),
]


def node(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The device's folder, made by mesh init.")],
    once: Annotated[bool, typer.Option("--once", help="Calibrate once and stop; else stay up.")] = False,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Answer local programs here; by default at FOLDER/node.sock."),
    ] = None,
    log: Annotated[
        _LogForm, typer.Option(help="The log on stderr: plain words, JSON lines, or these with how far it is.")
    ] = _LogForm.words,
    patience: Patience = None,
    on_lost: OnLost = None,
    quorum: Quorum = None,
    mode: Mode = None,
    pulse: Pulse = None,
    telemetry: Annotated[
        bool,
        typer.Option(
            "--telemetry", help="Send traces to an OpenTelemetry collector; so does OTEL_EXPORTER_OTLP_ENDPOINT."
        ),
    ] = False,
    view: ViewAddress = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --once, print the result as JSON.")] = False,
) -> None:
    """Run one device: talk to its neighbours, agree on a threshold, and answer local programs.

    Its file of scores stays with it. Killed and started again it goes on where it was.
    """
    start = Start(
        str(folder), once, http, log.value, patience, on_lost, quorum, mode, pulse, telemetry, "--debug" in sys.argv
    )
    if view is not None:
        _show(folder, http, view)
    if not once and conformesh.cli.own_process and os.name == "posix":
        start.become()  # what stays up needs no command line in its memory
    config, certified = run(start)
    if not once or certified is None:
        return
    if as_json:
        print(in_json(config, certified))
        return
    result = certified.calibration
    facts = [
        ("device", config.name),
        ("threshold", f"{result.threshold:.6g}"),
        ("guarantee", str(result.certificate)),
        ("devices", f"{len(certified.roster)} of {len(config.devices)}{result.scores_in_words}"),
        ("cost", console.in_cost([result.cost])),
    ]
    if config.rule is not None:
        facts.append(("online", config.rule.words))
    console.print_facts("conformesh node", facts)


def _show(folder: Path, http: str | None, view: str) -> None:
    """Start a view of the device in a process of its own, so that the device is neither larger nor slower for it.

    It reads a pipe that is open for as long as this process is, also once it has become another: then it ends too.
    """
    from conformesh.view.server import parse_view

    host, port = parse_view(view)
    words = [sys.executable, "-m", "conformesh", "view", str(folder), "--host", host, "--port", str(port), "--attached"]
    ends, held = os.pipe()
    os.set_inheritable(held, True)
    subprocess.Popen([*words, *(() if http is None else ("--http", http))], stdin=ends)
    os.close(ends)
