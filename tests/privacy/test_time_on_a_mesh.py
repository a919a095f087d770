"""What privacy costs in time: runs of p-dcp and e-dcp on two real meshes of ten nodes, in turn."""

import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

import numpy as np
import pytest

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")

from conformesh import Network
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.result_store import RESULT_FILE as RESULT
from tests.mesh.nodes import short_folder
from tests.mesh.real import make_mesh, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.meshes]

DEVICES = 10
PAIRS = 15
MOST = 2.0  # times as long as e-dcp
LINGER = 2.0  # seconds that a result stands before the next run begins (`Settings.linger`)
METHODS = {
    "e-dcp": {},
    "p-dcp": {"epsilon": 1.0, "cells": 128, "grid": "linear", "range": (-4.0, 4.0), "releases": 1000},
}


class Nodes:
    """The nodes of one mesh in processes of their own, which end with the stack."""

    def __init__(self, root, method, stack):
        scores = [np.random.default_rng(k).normal(size=100) for k in range(DEVICES)]
        network = Network.of("erdos-renyi", DEVICES, seed=1, p=0.5)
        self.folders, _ = make_mesh(root, network, method, options=METHODS[method], scores=scores)
        self.clients = [Client(folder, timeout=5.0) for folder in self.folders]
        for folder in self.folders:
            command = [sys.executable, "-m", "conformesh", "node", str(folder)]
            node = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(node.wait)
            stack.callback(node.kill)

    def results(self):
        """Return run and seconds of the last result of every node."""
        found = []
        for folder in self.folders:
            with suppress(FileNotFoundError):
                file = json.loads((folder / RESULT).read_bytes())
                found.append((file["run"], file["calibration"]["seconds"]))
        return found

    def after(self, run):
        """Wait for a later run of all nodes; return its number, and how long it took the slowest of them."""
        wait_for(lambda: len(self.results()) == DEVICES and min(self.results())[0] > run, seconds=60)
        return max(self.results())[0], max(seconds for _, seconds in self.results())

    def again(self, run):
        """Ask for another run when the last result has stood for long enough."""
        time.sleep(LINGER)
        with suppress(NodeError):
            self.clients[0].recalibrate()
        return self.after(run)


def test_a_private_run_takes_at_most_twice_as_long(record_property):
    """The ratio of medians of 15 runs each, in turn: a noisy minute hits both."""
    with short_folder() as root, ExitStack() as stack:
        meshes = {method: Nodes(root / method, method, stack) for method in METHODS}
        runs = {method: mesh.after(0)[0] for method, mesh in meshes.items()}
        times = {method: [] for method in METHODS}
        for _ in range(PAIRS):
            for method, mesh in meshes.items():
                runs[method], seconds = mesh.again(runs[method])
                times[method].append(seconds)
    medians = {method: statistics.median(each) for method, each in times.items()}
    for method, seconds in medians.items():
        record_property(method, seconds)
    print(medians, medians["p-dcp"] / medians["e-dcp"])
    assert medians["p-dcp"] <= MOST * medians["e-dcp"], times
