"""Which network the command line means: a topology with its options, or a file of edges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_type_hints

import typer

from conformesh.cli import console
from conformesh.cli.options import key_values
from conformesh.graph.network import Network
from conformesh.graph.topologies import TOPOLOGIES, build, divisor
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
        if not pairs and divisor(devices) is None:
            topology = "cycle"
            if devices > 1:
                console.note(f"{devices} devices form no torus, they talk around a cycle; choose with --topology")
    options = {}
    if pairs:
        known = TOPOLOGIES.get(topology)
        options = key_values(pairs, "topology option", {} if known is None else get_type_hints(known.build))
    return build(topology, devices, seed=seed, **options).relabelled(held.devices)


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
