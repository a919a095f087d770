"""``conformesh node``: run one device of a mesh."""

from __future__ import annotations

import json
import logging
import signal
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from conformesh.cli import console
from conformesh.cli.options import as_type, whole
from conformesh.mesh.config.device_config import ON_LOST, DeviceConfig
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.node.logs import set_up
from conformesh.mesh.node.serving import Node


class LogForm(StrEnum):
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


def with_changes(
    config: DeviceConfig, patience: str | None, on_lost: str | None, quorum: str | None = None
) -> DeviceConfig:
    """Return the configuration with what the command line says instead; but for patience the same on all devices."""
    changes: dict[str, Any] = {}
    if patience is not None:
        changes["patience"] = as_type(patience, float, "patience")
    if on_lost is not None:
        changes["on_lost"] = on_lost
    if quorum is not None:
        changes["quorum"] = whole(quorum, "quorum", 1)
    return replace(config, **changes)


def node(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The device's folder, made by mesh init.")],
    once: Annotated[bool, typer.Option("--once", help="Calibrate once and stop; else stay up.")] = False,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Answer local programs here; by default at FOLDER/node.sock."),
    ] = None,
    log: Annotated[
        LogForm, typer.Option(help="The log on stderr: plain words, JSON lines, or these with how far it is.")
    ] = LogForm.words,
    patience: Patience = None,
    on_lost: OnLost = None,
    quorum: Quorum = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --once, print the result as JSON.")] = False,
) -> None:
    """Run one device: talk to its neighbours, agree on a threshold, and answer local programs.

    Its file of scores stays with it. Killed and started again it goes on where it was.
    """
    config = with_changes(read_device(folder), patience, on_lost, quorum)
    if log is LogForm.words:
        set_up(config.name, "words")
    else:
        set_up(config.name, "json", level=logging.DEBUG if log is LogForm.progress else logging.INFO)
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
        ("cost", console.in_cost([result.cost])),
    ]
    console.print_facts("conformesh node", facts)
