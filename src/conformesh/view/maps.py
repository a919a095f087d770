"""Who is in a mesh and where they answer: from the folder of a mesh, of one device, or from a node that runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec import ValidationError, convert

from conformesh.graph.network import Network
from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.config.device_toml import DEVICE_FILE, read_device
from conformesh.mesh.config.folders import device_folders
from conformesh.mesh.config.roster import ROSTER_FILE
from conformesh.mesh.http.address import SOCKET_NAME, find
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.file_watch import Stamp, stamp_of
from conformesh.mesh.node.status import MeshStatus, NodeStatus
from conformesh.methods import get_method
from conformesh.view.trace import Pair, TraceHeading


@dataclass(frozen=True)
class Map:
    """The devices of a mesh, under one roster.

    Attributes
    ----------
    name, facts
        What it is, in a line, and in pairs of a name and words.
    network
        Who talks to whom.
    addresses
        Where those answer that run on this machine, by name.
    roster
        The number of the roster.
    private
        Whether nothing is shown of single devices.
    source
        The file that changes with the map; None where there is none.
    """

    name: str
    network: Network
    addresses: dict[str, str]
    roster: int = 0
    facts: tuple[Pair, ...] = ()
    private: bool = False
    source: Path | None = None

    def heading(self) -> TraceHeading:
        """Return the heading of what is recorded of it."""
        facts = [*self.facts, ("roster", str(self.roster))]
        return TraceHeading.of(self.name, self.network, unit="seconds", live=True, private=self.private, facts=[*facts])

    def stamp(self) -> Stamp:
        """Return what changes when the map does."""
        return None if self.source is None else stamp_of(self.source)

    def same(self, other: Map) -> bool:
        """Whether nobody would notice a difference."""
        return (self.roster, self.addresses, self.network.ids) == (other.roster, other.addresses, other.network.ids)


def read_map(where: str | os.PathLike[str], http: str | None = None) -> Map:
    """Return the map of the folder of a mesh or of a device, or of who answers at an address.

    With `http` the device whose folder it is answers there, and not at its socket.
    """
    path = Path(where)
    if path.name == SOCKET_NAME and (path.parent / DEVICE_FILE).is_file():
        path = path.parent
    if (path / DEVICE_FILE).is_file():
        config = read_device(path)
        return _of_config(config, {config.name: http or path}, path / ROSTER_FILE)
    if http is not None:
        raise ValueError(f"--http goes with the folder of one device, and {path} is none")
    if path.is_dir() and any(path.glob(f"*/{DEVICE_FILE}")):
        folders = device_folders(path)
        config = read_device(folders[0])
        if {*config.devices} != {folder.name for folder in folders}:  # another roster came in between
            raise ValueError(f"{path}: the mesh is just being changed; try again")
        return _of_config(config, {folder.name: folder for folder in folders}, path / ROSTER_FILE)
    return _of_node(os.fspath(where))


def _of_config(config: DeviceConfig, places: Mapping[str, str | Path], roster: Path) -> Map:
    facts = (
        ("mesh", config.mesh),
        ("method", config.run.method),
        ("alpha", config.guarantee.alpha),
    )
    return Map(
        f"{config.run.method} on a mesh of {len(config.devices)}",
        config.network,
        {name: str(find(place)) for name, place in places.items()},
        config.roster_number,
        facts,
        get_method(config.run.method).private,
        roster,
    )


def _of_node(address: str) -> Map:
    """Return what a node tells of the map: all of it, or where it cannot itself and its neighbours."""
    client = Client(address, timeout=5.0)
    try:
        status = convert(client.status(), NodeStatus)
    except (NodeError, ValidationError) as problem:
        raise ValueError(
            f"{problem}; a view is of trace files, the folder of a mesh or of a device, or a node that runs"
        ) from None
    own, mesh = status.device, hearsay(client)
    names = [own, *status.neighbours] if mesh is None else [device.name for device in mesh.devices]
    edges = [(own, name) for name in names[1:]] if mesh is None else [(a, b) for a, b in mesh.edges]
    network = Network.from_pairs(names, edges, name=f"mesh of {own}")
    return Map(f"the mesh of {own}", network, {own: str(find(address))}, status.roster.number)


def hearsay(client: Client) -> MeshStatus | None:
    """Return what a node knows about all devices; None if it does not answer or was started alone."""
    try:
        return convert(client.mesh(), MeshStatus)
    except (NodeError, ValidationError):
        return None
