"""Train with Flower, then agree on one certified threshold with conformesh: `python run.py`, `python run.py --mesh`."""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flwr
import numpy as np
from apps import CLIENTS, SCORE, client_app, probabilities, rows_of, scores_kept, server_app
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from conformesh import Network, Result, calibrate

ALPHA = 0.1
SERVER = 1  # Flower's id of the server; clients have others


@dataclass
class Federation(Grid):
    """Flower's grid in one process: messages from the server go to client apps, whose contexts nobody else sees.

    A simulation engine would do the same in more processes; here a run takes a second and needs nothing but Flower.
    `heard` is all that the server was ever told.
    """

    clients: dict[int, Context]
    heard: list[Message] = field(default_factory=list)

    def get_node_ids(self) -> Iterable[int]:
        """Return the clients."""
        return [*self.clients]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Let each client answer; what it answers is what the server hears."""
        replies = [client_app(message, self.clients[message.metadata.dst_node_id]) for message in messages]
        self.heard += replies
        return replies

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refuse: nothing here waits."""
        raise NotImplementedError("this grid answers at once; use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refuse: nothing here waits."""
        raise NotImplementedError("this grid answers at once; use send_and_receive")

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Refuse: messages make themselves."""
        raise NotImplementedError("make a message with flwr.app.Message")

    def set_run(self, run: Any) -> None:
        """There is one run."""

    @property
    def run(self) -> Any:
        """There is one run."""
        return None


def federate(folders: list[Path] | None = None) -> tuple[Federation, Context]:
    """Run the federation; clients that have a folder of a mesh put their scores there. Return it and the server."""
    where = [{} if folders is None else {"folder": str(folders[k])} for k in range(CLIENTS)]
    clients = {
        100 + k: Context(0, 100 + k, {"partition-id": k, **more}, RecordDict(), {}) for k, more in enumerate(where)
    }
    grid, server = Federation(clients), Context(0, SERVER, {}, RecordDict(), {})
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 0, SERVER, 1  # as Flower's own runtime does
    server_app(grid, server)
    return grid, server


def simulated(grid: Federation, network: Network) -> Result:
    """Agree in the simulator: the protocol of a mesh, every device with its own client's scores, in one process."""
    return calibrate([scores_kept(own) for own in grid.clients.values()], network, alpha=ALPHA, score=SCORE)


def meshed(folders: list[Path]) -> list[Result]:
    """Agree as a mesh: one process per client, which reads the file that its client wrote, on encrypted links."""
    from conformesh.cli.mesh_up import start_devices, wait_for_devices
    from conformesh.mesh.config.device_toml import read_device
    from conformesh.mesh.node.result_store import ResultStore

    watched = start_devices(folders, http="127.0.0.1:0")
    wait_for_devices(watched)
    failed = [f"{one.name}: {one.error}" for one in watched if one.result is None]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(watched)} devices have no threshold; {failed[0]}")
    found = [ResultStore(read_device(folder)).load() for folder in folders]  # each device's own file
    return [own.calibration for own in found if own is not None]


def main(argv: list[str] | None = None) -> tuple[Federation, Result]:
    """Train, agree, and show what the sets are worth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", action="store_true", help="agree as a real mesh too, one process per client")
    asked = parser.parse_args(argv)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    network = Network.cycle(CLIENTS)

    with tempfile.TemporaryDirectory(prefix="conformesh-flower-") as root:
        folders = make_mesh(Path(root) / "mesh", network) if asked.mesh else None
        grid, server = federate(folders)
        result = simulated(grid, network)
        on_mesh = [] if folders is None else meshed(folders)

    [weights] = server.state["model"].to_numpy_ndarrays()
    accuracy = server.state["accuracy"]["accuracy"]
    print(f"Flower {flwr.__version__}: {CLIENTS} clients, training accuracy {accuracy:.3f}")
    print(f"threshold {result.threshold:.4f} on every client; {result.certificate}")
    print(result.cost)
    if on_mesh:
        same = all(own.threshold == result.threshold for own in on_mesh)
        print(f"the mesh of {len(on_mesh)} processes found {'the same, bit for bit' if same else 'another threshold'}")
    images, labels = (np.concatenate(parts) for parts in zip(*(rows_of(k).test for k in range(CLIENTS)), strict=True))
    print(result.evaluate(probabilities(weights, images), labels))
    replies = [*{tuple(sorted(reply.content)) for reply in grid.heard}]
    print(f"the server heard {len(grid.heard)} replies, with {sorted({name for reply in replies for name in reply})}")
    return grid, result


def make_mesh(root: Path, network: Network) -> list[Path]:
    """Make a folder with certificate and configuration for every client, as `conformesh mesh init` does."""
    from conformesh.cli.demo_mesh import find_free_ports
    from conformesh.mesh.config.folders import init_mesh

    return init_mesh(root, network, base_port=find_free_ports(CLIENTS), alpha=str(ALPHA), score="lac", days=1)


if __name__ == "__main__":
    main()
