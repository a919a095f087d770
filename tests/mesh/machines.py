"""Meshes whose folders were copied away, as to machines: a change reaches them only where it is handed in."""

import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import numpy as np

from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.folders import add_device
from conformesh.mesh.http.client import Client, NodeError
from tests.mesh.nodes import short_folder
from tests.mesh.real import drawn_scores, free_ports, make_mesh, simulated, wait_for, write_scores

LOG = "node.log"


class Machines:
    """A mesh whose folders were copied away from the authority's, each with a process that stays up.

    Attributes
    ----------
    told
        Every threshold that a node has ever told: the roster's number, the run, whether it is final, the threshold,
        and the devices that it is about.
    """

    def __init__(self, root, network, **more):
        self.root, self.mesh = root, root / "m"
        self.scores = {}
        held = drawn_scores(network.devices, low=20)
        folders, _ = make_mesh(self.mesh, network, scores=held, **more)
        for folder, own in zip(folders, held, strict=True):
            self.scores[folder.name] = own
        self.processes, self.told = {}, set()

    def start(self, name):
        folder = self.root / name
        if not folder.exists():
            shutil.copytree(self.mesh / name, folder)
        command = [sys.executable, "-m", "conformesh", "node", str(folder), "--patience", "60"]
        with (folder / LOG).open("ab") as log:  # a pipe that nobody reads is full one day, and stops who writes
            self.processes[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def end(self, name):
        """Stop a process, and wait for it."""
        process = self.processes.pop(name)
        process.terminate()
        process.wait(timeout=30)

    def add(self, name, neighbours, **more):
        add_device(self.mesh, name, neighbours, f"127.0.0.1:{free_ports(1)}", **more)
        self.scores[name] = np.linspace(0.1, 0.9, 25) + len(self.scores)
        write_scores(self.mesh / name, self.scores[name])
        self.start(name)

    def hand(self, name):
        return Client(self.root / name).submit_roster((self.mesh / "roster.json").read_bytes())

    def agreed(self, names, roster):
        """Wait until these devices have certified one run under this roster; return their thresholds and the run."""
        found = []

        def all_have():
            found[:] = [self.certified(name) for name in names]
            return all(is_of(one, roster) for one in found) and len({one["run"] for one in found}) == 1

        wait_for(all_have, 60)
        assert all(one["survivors"] == list(read_device(self.mesh / names[0]).devices) for one in found)
        return {float(one["threshold"]) for one in found}, found[0]["run"]

    def certified(self, name):
        try:
            made = Client(self.root / name).status()["certified"]
        except NodeError:
            return None
        if made is not None:
            facts = [made[fact] for fact in ("roster_number", "run", "final")]
            self.told.add((*facts, float(made["threshold"]), tuple(made["survivors"])))
        return made

    def expected(self, names):
        return {*simulated(self.mesh / names[0], [self.scores[name] for name in names])}


def is_of(certified, roster):
    """Whether there is a final threshold under a roster."""
    return certified is not None and certified["roster_number"] == roster and certified["final"]


@contextmanager
def machines(network, **more):
    with short_folder() as root, ExitStack() as stack:
        mesh = Machines(root, network, **more)
        stack.callback(lambda: [process.wait(timeout=30) for process in mesh.processes.values()])
        stack.callback(lambda: [process.terminate() for process in mesh.processes.values()])
        names = list(read_device(mesh.mesh / "device-00").devices)
        for name in names:
            mesh.start(name)
        assert mesh.agreed(names, 1)[0] == mesh.expected(names)
        yield mesh, names
