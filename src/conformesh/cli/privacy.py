"""``conformesh privacy``: who learns what from a run, of a saved result or of a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from conformesh.cli import console
from conformesh.cli.networks import Graph, Topology, TopologyOption
from conformesh.cli.options import checked_options, key_values, whole, with_flags
from conformesh.cli.panels import FILES, RUNNING
from conformesh.cli.predict import read_json, result_of
from conformesh.graph.network import Network
from conformesh.graph.topologies import TOPOLOGIES
from conformesh.io.json_numbers import in_json
from conformesh.methods import METHODS
from conformesh.privacy.exposure import Exposure, exposure_of, exposure_of_result
from conformesh.result.calibration import Calibration
from conformesh.result.several import Calibrations
from conformesh.result.sides import Sides

NODE_RESULT = "conformesh-node-result/"  # which only a mesh loads more for
COLUMNS = ("who learns", "what", "about", "numbers")


@with_flags
def privacy(
    result: Annotated[
        str | None,
        typer.Argument(
            metavar="RESULT",
            help="What calibrate --out or --json wrote, or a device's result.json; - reads it from stdin.",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Instead of a result: a run that was not made yet.")] = False,
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"With --plan: {', '.join(METHODS)}.", show_default=False)
    ] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="<int>", help="With --plan: how many devices, K.", show_default=False)
    ] = None,
    coalition: Annotated[
        str,
        typer.Option(
            metavar="<int>|NAME,...",
            help="Devices that tell each other all they hear: by name, one alone with a comma behind it; or how many, "
            "and then those that learn most.",
        ),
    ] = "1",
    topology: Topology = None,
    topology_option: TopologyOption = None,
    graph: Graph = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
    alpha: Annotated[
        str, typer.Option(metavar="<float>", help="With --plan: tolerated miscoverage.", rich_help_panel=FILES)
    ] = "0.1",
    scores_per_device: Annotated[
        str, typer.Option(metavar="<int>", help="With --plan: scores that a device holds.", rich_help_panel=FILES)
    ] = "50",
    seed: Annotated[
        str, typer.Option(metavar="<int>", help="Seed of topologies that draw.", rich_help_panel=RUNNING)
    ] = "0",
    **options: Any,
) -> None:
    """Tell who learns what from a run on a mesh: neighbours, everybody, a server, and a coalition of devices.

    A result does not hold its map: name it with --topology or --graph to see what a coalition of devices has learned.
    """
    if (result is None) != plan:
        raise ValueError("give a RESULT, or --plan with --method and a network; one of the two")
    who = _coalition(coalition)
    if result is not None:
        asked = {"method": method, "devices": devices, **options}
        if given := next((name for name, value in asked.items() if value is not None), None):
            raise ValueError(f"--{given.replace('_', '-')} is for a run to come, and {result} is of one that was made")
        found = _of_result(result, who, topology, topology_option or [], graph, whole(seed, "seed", 0))
    else:
        if method is None:
            raise ValueError(f"say with --method what is to run: {', '.join(METHODS)}")
        network = _network(devices, topology, topology_option or [], graph, whole(seed, "seed", 0))
        held = whole(scores_per_device, "scores per device", 1)
        chosen = checked_options(method, options)
        found = exposure_of(method, network, coalition=who, scores=held, alpha=alpha, **chosen)
    if as_json:
        print(json.dumps(in_json(found.to_dict()), allow_nan=False))
    else:
        _report(found)


def _coalition(text: str) -> int | list[str]:
    """Read how many devices, or their names."""
    if text.strip().isdigit():
        return int(text)
    return [name.strip() for name in text.split(",") if name.strip()]


def _of_result(
    source: str, who: int | list[str], topology: str | None, pairs: list[str], graph: Path | None, seed: int
) -> Exposure:
    """Say what a run revealed whose result was saved, with its map where that was named."""
    raw, name = read_json(source)
    count = None
    if isinstance(raw, dict) and str(raw.get("format", "")).startswith(NODE_RESULT):  # of one device of a mesh
        count, raw = len(raw.get("roster", ())), raw.get("calibration")
    saved = result_of(raw, name)
    one = _first(saved)
    if one is not saved:
        console.note(f"{name} has several thresholds of one run: what is said of counts and scores is of each")
    K = count or one.devices
    network = None
    if topology is not None or graph is not None or pairs:
        network = _network(str(K) if graph is None else None, topology, pairs, graph, seed)
        if graph is None and count is None:
            network = network.relabelled(one.device_ids)
    return exposure_of_result(one, network, coalition=who, devices=K)


def _first(saved: Any) -> Calibration:
    """Return the first of several results of one run."""
    if isinstance(saved, Calibrations):
        return next(iter(saved.items.values()))
    first: Calibration = saved.lower if isinstance(saved, Sides) else saved
    return first


def _network(devices: str | None, topology: str | None, pairs: list[str], graph: Path | None, seed: int) -> Network:
    if graph is not None:
        if topology is not None or pairs or devices is not None:
            raise ValueError(f"give --devices and a topology, or --graph, not both: got --graph {graph} and more")
        return Network.from_edges(graph)
    if devices is None:
        raise ValueError("say how many devices there are with --devices, or give a network with --graph")
    name = "torus" if topology is None else topology
    hints = get_type_hints(TOPOLOGIES[name].build) if name in TOPOLOGIES else {}
    return Network.of(name, whole(devices, "devices", 1), seed=seed, **key_values(pairs, "topology option", hints))


def _report(found: Exposure) -> None:
    print(f"{found.method} on {found.network}: what a run on a mesh reveals\n")
    rows = [
        (row.to, row.what, row.about, "varies" if row.numbers is None else f"{row.numbers:,}") for row in found.rows
    ]
    console.print_table(COLUMNS, rows, right=("numbers",))
    print()
    for name, value in found.facts.items():
        print(f"{name}: {value}")
    if found.coalition:
        print(f"{found.summary()}")
    else:
        print("Name the map with --topology or --graph to see what a coalition of devices learns.")
