"""Which network the command line means: a topology with its options, or a file of edges."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from conformesh.cli import console
from conformesh.cli.options import key_values
from conformesh.graph.network import Network
from conformesh.graph.topologies import TOPOLOGIES
from conformesh.io.score_files import ScoreFile

Topology = Annotated[
    str | None, typer.Option(help=f"One of {', '.join(TOPOLOGIES)}; by default a torus.", show_default=False)
]
TopologyOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the topology, as p=0.3; may be repeated.")
]
Graph = Annotated[
    Path | None, typer.Option(metavar="EDGES", help="Instead of a topology: a file with two device names a line.")
]


def chosen_network(held: ScoreFile, topology: str | None, pairs: list[str], graph: Path | None, seed: int) -> Network:
    """Return the network of devices that have names: a topology with its options, or a file of edges.

    Without either it is a torus, and a cycle where their number has no two factors.
    """
    if graph is not None:
        if topology is not None or pairs:
            raise ValueError(f"give a topology or --graph, not both: got --graph {graph} and a topology")
        return network_of_graph(graph, held)
    devices = len(held.devices)
    if topology is None:
        topology = "torus"
        if not pairs and not _factors(devices):
            topology = "cycle"
            if devices > 1:
                console.note(f"{devices} devices form no torus, they talk around a cycle; choose with --topology")
    known = TOPOLOGIES.get(topology)
    hints = {} if known is None else _hints_of(known.build)
    found = Network.of(topology, devices, seed=seed, **key_values(pairs, "topology option", hints))
    return found.relabelled(held.devices)


def network_of_graph(graph: Path, held: ScoreFile) -> Network:
    """Read the graph, which must know every device that has scores."""
    network = Network.from_edges(graph)
    known = {*network.ids}
    strange = [device for device in held.devices if device not in known]
    if strange:
        more = f" (and {len(strange) - 1} more)" if len(strange) > 1 else ""
        raise ValueError(
            f"unknown device {strange[0]!r}{more}: it has scores in {held.name} but no edge in {graph}; "
            "add its edges or drop its rows"
        )
    return network


def _factors(devices: int) -> bool:
    return any(devices % side == 0 for side in range(2, int(devices**0.5) + 1))


def _hints_of(build: Any) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(build).items() if name in inspect.signature(build).parameters}
