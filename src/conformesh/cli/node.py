"""``conformesh node``: run one device of a mesh."""

from __future__ import annotations

import json
import signal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from conformesh.cli import console
from conformesh.mesh.config import read_device
from conformesh.mesh.logs import set_up
from conformesh.mesh.serving import Node


class LogForm(StrEnum):
    """How the log is written."""

    words = "words"
    json = "json"


def node(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The device's folder, made by mesh init.")],
    once: Annotated[bool, typer.Option("--once", help="Calibrate once and stop; else stay up.")] = False,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Answer local programs here; by default at FOLDER/node.sock."),
    ] = None,
    log: Annotated[LogForm, typer.Option(help="The log on stderr: plain words or JSON lines.")] = LogForm.words,
    as_json: Annotated[bool, typer.Option("--json", help="With --once, print the result as JSON.")] = False,
) -> None:
    """Run one device: talk to its neighbours, agree on a threshold, and answer local programs.

    Its file of scores stays with it. Killed and started again it goes on where it was.
    """
    config = read_device(folder)
    set_up(config.name, log.value)
    running = Node(config, http)

    def stop(*_: Any) -> None:
        running.stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    running.run(once)
    found = running.state.certified
    if not once or found is None:
        return
    result = found.calibration
    if as_json:
        print(json.dumps({"device": config.name, "run": found.run, "roster": found.roster, **result.to_dict()}))
        return
    facts = [
        ("device", config.name),
        ("threshold", console.in_digits(result.threshold)),
        ("guarantee", str(result.certificate)),
        ("devices", f"{len(found.roster)} of {len(config.devices)} with {result.scores:,} scores in all"),
        ("cost", f"{result.cost.rounds:,} rounds, {console.in_bits(result.cost.bits_per_device)} sent"),
    ]
    console.print_facts("conformesh node", facts)
