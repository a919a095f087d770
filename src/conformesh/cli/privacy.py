"""``conformesh privacy``: who learns what from a run, what noise protects and costs, and what an account allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from conformesh.cli import console
from conformesh.cli.networks import Graph, Topology, TopologyOption
from conformesh.cli.options import checked_options, key_values, whole, with_flags
from conformesh.cli.panels import FILES, RUNNING
from conformesh.cli.predict import read_json
from conformesh.cli.private_runs import Explanation, explain_account, explain_plan, explain_result
from conformesh.cli.saved_results import Saved, saved_result
from conformesh.graph.network import Network
from conformesh.graph.topologies import TOPOLOGIES, divisor
from conformesh.io.json_numbers import in_json
from conformesh.kernels.ranks import exact_alpha
from conformesh.methods import METHODS, get_method
from conformesh.privacy.exposure import Exposure, exposure_of, exposure_of_result

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
    account: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Instead of a result: a device's folder of a mesh, or its privacy.json. Tells what was released, what "
            "may still be, and what will be refused.",
            show_default=False,
        ),
    ] = None,
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
        str | None,
        typer.Option(
            metavar="<float>",
            help="With --plan: tolerated miscoverage, by default 0.1. With a RESULT of a run with epsilon: read the "
            "threshold at another level, or several as 0.05,0.2, from the same release at no further cost.",
            show_default=False,
        ),
    ] = None,
    scores_per_device: Annotated[
        str, typer.Option(metavar="<int>", help="With --plan: scores that a device holds.", rich_help_panel=FILES)
    ] = "50",
    seed: Annotated[
        str, typer.Option(metavar="<int>", help="Seed of topologies that draw.", rich_help_panel=RUNNING)
    ] = "0",
    **options: Any,
) -> None:
    """Tell who learns what from a run on a mesh: neighbours, everybody, a server, and a coalition of devices.

    Of a run with epsilon also what its noise protects, what it costs, and thresholds at other levels. A result does
    not hold its map: name it with --topology or --graph to see what a coalition of devices has learned.
    """
    if [result is not None, plan, account is not None].count(True) != 1:
        raise ValueError("give a RESULT, or --plan with --method and a network, or --account; one of the three")
    if account is not None:
        explanation = explain_account(account)
        if as_json:
            print(json.dumps(explanation.to_dict(), allow_nan=False))
        else:
            explanation.show()
        return
    who = _coalition(coalition)
    private: Explanation | None = None
    if result is not None:
        asked = {"method": method, "devices": devices, **options}
        if given := next((name for name, value in asked.items() if value is not None), None):
            raise ValueError(f"--{given.replace('_', '-')} is for a run to come, and {result} is of one that was made")
        saved = saved_result(*read_json(result))
        private = explain_result(saved, [exact_alpha(level.strip()) for level in (alpha or "").split(",") if level])
        found = _of_result(saved, who, topology, topology_option or [], graph, whole(seed, "seed", 0))
    else:
        if method is None:
            raise ValueError(f"say with --method what is to run: {', '.join(METHODS)}")
        network = _network(devices, topology, topology_option or [], graph, whole(seed, "seed", 0))
        held, level = whole(scores_per_device, "scores per device", 1), exact_alpha(alpha or "0.1")
        chosen = checked_options(method, options)
        if get_method(method).private and chosen.get("epsilon") is not None:
            private = explain_plan(network, level, chosen)
        found = exposure_of(method, network, coalition=who, scores=held, alpha=alpha or "0.1", **chosen)
    if as_json:
        everything = {**found.to_dict(), **({} if private is None else {"private": private.to_dict()})}
        print(json.dumps(in_json(everything), allow_nan=False))
        return
    if private is not None:
        private.show()
        print()
    _report(found)


def _coalition(text: str) -> int | list[str]:
    """Read how many devices, or their names."""
    if text.strip().isdigit():
        return int(text)
    return [name.strip() for name in text.split(",") if name.strip()]


def _of_result(
    saved: Saved, who: int | list[str], topology: str | None, pairs: list[str], graph: Path | None, seed: int
) -> Exposure:
    """Say what a run revealed whose result was saved, with its map where that was named."""
    one = saved.first
    if one is not saved.result:
        console.note(f"{saved.name} has several thresholds of one run: what is said of counts and scores is of each")
    network = None
    if topology is not None or graph is not None or pairs:
        network = _network(str(saved.devices) if graph is None else None, topology, pairs, graph, seed)
        if graph is None and saved.devices == one.devices:
            network = network.relabelled(one.device_ids)
    return exposure_of_result(one, network, coalition=who, devices=saved.devices)


def _network(devices: str | None, topology: str | None, pairs: list[str], graph: Path | None, seed: int) -> Network:
    if graph is not None:
        if topology is not None or pairs or devices is not None:
            raise ValueError(f"give --devices and a topology, or --graph, not both: got --graph {graph} and more")
        return Network.from_edges(graph)
    if devices is None:
        raise ValueError("say how many devices there are with --devices, or give a network with --graph")
    count = whole(devices, "devices", 1)
    name = topology or ("torus" if pairs or divisor(count) is not None else "cycle")
    if topology is None and name == "cycle" and count > 1:
        console.note(f"{count} devices form no torus, they talk around a cycle; choose with --topology")
    hints = get_type_hints(TOPOLOGIES[name].build) if name in TOPOLOGIES else {}
    return Network.of(name, count, seed=seed, **key_values(pairs, "topology option", hints))


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
