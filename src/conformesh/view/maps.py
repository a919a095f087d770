"""Maps: devices, links and addresses of a mesh, from the folder of a mesh or of a device, or from a running node."""

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
from conformesh.mesh.http.address import SOCKET_NAME, find_address
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.file_watch import FileStamp, file_stamp
from conformesh.mesh.node.status import MeshStatus, NodeStatus
from conformesh.methods import get_method
from conformesh.view.trace import Fact, TraceHeading


@dataclass(frozen=True)
class WatchedMesh:
    """The devices of a mesh, under one roster.

    Attributes
    ----------
    name, facts
        Its name in one line, and facts as pairs of a name and a text.
    network
        The graph of the devices.
    addresses
        Addresses of the devices that run on this machine, by name.
    roster
        The number of the roster.
    private
        Whether single devices are hidden.
    source
        The file that changes with the map, if there is one.
    """

    name: str
    network: Network
    addresses: dict[str, str]
    roster: int = 0
    facts: tuple[Fact, ...] = ()
    private: bool = False
    source: Path | None = None

    def heading(self) -> TraceHeading:
        """Return the heading of what is recorded of it."""
        facts = [*self.facts, ("roster", str(self.roster))]
        return TraceHeading.of(self.name, self.network, unit="seconds", live=True, private=self.private, facts=[*facts])

    def stamp(self) -> FileStamp:
        """Return a stamp that changes with the map."""
        return None if self.source is None else file_stamp(self.source)

    def is_same_as(self, other: WatchedMesh) -> bool:
        """Whether both have the same roster, addresses and devices."""
        return (self.roster, self.addresses, self.network.ids) == (other.roster, other.addresses, other.network.ids)


def read_map(where: str | os.PathLike[str], http: str | None = None) -> WatchedMesh:
    """Return the map from the folder of a mesh or of a device, or from the node at an address.

    With `http` the device of that folder is asked there instead of at its socket.
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
        if {*config.devices} != {folder.name for folder in folders}:  # the roster changed while it was read
            raise ValueError(f"{path}: the mesh is just being changed; try again")
        return _of_config(config, {folder.name: folder for folder in folders}, path / ROSTER_FILE)
    return _of_node(os.fspath(where))


def _of_config(config: DeviceConfig, places: Mapping[str, str | Path], roster: Path) -> WatchedMesh:
    facts = (
        ("mesh", config.mesh),
        ("method", config.run.method),
        ("alpha", config.guarantee.alpha),
    )
    return WatchedMesh(
        f"{config.run.method} on a mesh of {len(config.devices)}",
        config.network,
        {name: str(find_address(place)) for name, place in places.items()},
        config.roster_number,
        facts,
        get_method(config.run.method).private,
        roster,
    )


def _of_node(address: str) -> WatchedMesh:
    """Return the map as a node knows it: all devices, or, if it cannot tell, itself and its neighbours."""
    client = Client(address, timeout=5.0)
    try:
        status = convert(client.status(), NodeStatus)
    except ValidationError as problem:
        raise ValueError(f"{address}: its status cannot be read; is the node of this version? ({problem})") from None
    except NodeError as problem:
        raise ValueError(
            f"{problem}; a view is of trace files, the folder of a mesh or of a device, or a node that runs"
        ) from None
    mesh = ask_mesh_status(client)
    if mesh is None:
        names = [status.device, *status.neighbours]
        edges = [(status.device, name) for name in status.neighbours]
    else:
        names = [device.name for device in mesh.devices]
        edges = [(first, second) for first, second in mesh.edges]
    network = Network.from_pairs(names, edges, name=f"mesh of {status.device}")
    places = {status.device: str(find_address(address))}
    return WatchedMesh(f"the mesh of {status.device}", network, places, status.roster.number)


def ask_mesh_status(client: Client) -> MeshStatus | None:
    """Return what a node knows about all devices; None if it does not answer, or in another version's format."""
    try:
        return convert(client.mesh(), MeshStatus)
    except (NodeError, ValidationError):
        return None
