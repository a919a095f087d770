"""``conformesh node``: run one device of a mesh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

import conformesh.cli
from conformesh.cli import console, options
from conformesh.cli.command import PATH, Argument, Option, command
from conformesh.mesh.node.main import Start, result_line, run_node


@command(
    Argument("folder", "FOLDER", "The device's folder, made by mesh init.", type=PATH),
    Option("--once", "Calibrate once and stop; else stay up."),
    Option("--http HOST:PORT", "Answer local programs here; by default at FOLDER/node.sock."),
    Option(
        "--log",
        "The log on stderr: plain words, JSON lines, or these with how far it is.",
        type=click.Choice(["words", "json", "progress"]),
        default="words",
    ),
    options.overrides(heartbeat=True),
    Option("--telemetry", "Send traces to an OpenTelemetry collector; so does OTEL_EXPORTER_OTLP_ENDPOINT."),
    options.view_option(),
    options.json_option("With --once, print the result as JSON."),
)
def node(
    folder: Path,
    once: bool,
    http: str | None,
    log: str,
    overrides: dict[str, str],
    telemetry: bool,
    view: str | None,
    as_json: bool,
) -> None:
    """Run one device: talk to its neighbours, agree on a threshold, and answer local programs.

    Its file of scores stays with it. Killed and started again it goes on where it was.
    """
    start = Start(str(folder), once, http, log, overrides, telemetry, "--debug" in sys.argv)
    if view is not None:
        _show(folder, http, view)
    if not once and conformesh.cli.is_own_process and os.name == "posix":
        start.become()  # what stays up needs no command line in its memory
    config, certified = run_node(start)
    if not once or certified is None:
        return
    if as_json:
        print(result_line(config, certified))
        return
    result = certified.calibration
    facts = [
        ("device", config.name),
        ("threshold", f"{result.threshold:.6g}"),
        ("guarantee", str(result.certificate)),
        ("devices", f"{len(certified.roster)} of {len(config.devices)}{result.scores_in_words}"),
        ("cost", console.mesh_cost_in_words([result.cost])),
    ]
    if config.learner is not None:
        facts.append(("online", config.learner.words))
    console.print_facts("conformesh node", facts)


def _show(folder: Path, http: str | None, view: str) -> None:
    """Start a view of the device in a process of its own, so that the device is neither larger nor slower for it.

    It reads a pipe that is open for as long as this process is, also once it has become another: then it ends too.
    """
    from conformesh.view.server import parse_view_address

    host, port = parse_view_address(view)
    words = [sys.executable, "-m", "conformesh", "view", str(folder), "--host", host, "--port", str(port), "--attached"]
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    subprocess.Popen([*words, *(() if http is None else ("--http", http))], stdin=read_end)
    os.close(read_end)
