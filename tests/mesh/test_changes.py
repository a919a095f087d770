"""Eight real processes serve while their mesh changes, time and again: devices are added and taken out at random.

Every roster is handed to one device that runs, whichever. Every answer of every node is kept: none may be wrong, none
may keep the others waiting, and no process of a device that stays is ever started again.
"""

import random
import time

import pytest

from conformesh import Network, calibrate

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")
from conformesh.mesh.config.folders import revoke_device
from conformesh.mesh.http.client import Client
from tests.campaigns import LONG
from tests.mesh.machines import machines
from tests.mesh.real import wait_for

DEVICES = 8
FEWEST, MOST = 6, 10


class Changes:
    """A mesh that is changed at random, what it should say under each roster, and how many seconds each change took."""

    def __init__(self, mesh, names, seed):
        self.mesh, self.names, self.draws = mesh, names, random.Random(seed)
        self.number, self.run = 1, 1
        self.right = {1: mesh.expected(names)}
        self.seconds = []

    def make(self):
        """Change the mesh, hand its new roster to one device, and wait until all have agreed under it."""
        before, settled = self.names, self.number
        self.number += 1
        if self.draws.randint(FEWEST + 1, MOST) > len(before):
            self._add(settled)
        else:
            self._take_out(settled)
        self.right[self.number] = self.mesh.expected(self.names)
        began = time.monotonic()
        self.mesh.hand(self.draws.choice([name for name in self.names if name in before]))
        found, run = self.mesh.agreed(self.names, self.number)
        self.seconds.append(time.monotonic() - began)
        assert found == self.right[self.number]
        assert run > self.run
        self.run = run
        for gone in {*before} - {*self.names}:
            self._say_goodbye(gone)

    def _add(self, settled):
        name = f"new-{self.number}"
        self.mesh.add(name, self.draws.sample(self.names, 3), settled=settled)
        self.names = [*self.names, name]

    def _take_out(self, settled):
        for name in self.draws.sample(self.names, len(self.names)):
            try:
                revoke_device(self.mesh.mesh, name, settled=settled)
            except ValueError as problem:
                if "falls into" in str(problem):  # others hang on it
                    continue
                raise
            self.names = [other for other in self.names if other != name]
            return

    def _say_goodbye(self, name):
        """Who was taken out knows it, and serves what it had; only then its process ends."""
        node = Client(self.mesh.root / name)
        wait_for(lambda: f"{name} was removed" in node.status()["troubles"].get("roster", ""), 10)
        assert {node.threshold()} == self.right[self.number - 1]
        self.mesh.end(name)

    def wrong(self):
        """Return every answer that is wrong: final and not the simulator's, or lower than that of whom it is about.

        An answer that is not final is that of a device that has just joined: the others have a final one to show.
        """
        return [one for one in self.mesh.told if not self._is_right(*one)]

    def _is_right(self, number, run, final, threshold, about):
        if final:
            return {threshold} == self.right[number]
        scores = [self.mesh.scores[name] for name in about]
        return threshold >= calibrate(scores, Network.complete(len(about))).threshold


def change(mode, changes, seed):
    with machines(Network.torus(4, DEVICES // 4), mode=mode) as (mesh, names):
        changing, first = Changes(mesh, names, seed), dict(mesh.processes)
        for _ in range(changes):
            changing.make()
        assert not changing.wrong()
        assert all(process.poll() is None for process in mesh.processes.values())
        assert all(mesh.processes[name] is first[name] for name in changing.names if name in first)
    spent = sorted(changing.seconds)
    print(f"{changes} changes: {spent[len(spent) // 2]:.1f} s in the median, {spent[-1]:.1f} s at most")


@pytest.mark.slow
@pytest.mark.meshes
@pytest.mark.parametrize("mode", ["rounds", "asynchronous"])
def test_many_changes_while_eight_devices_serve(mode):
    """Twenty, or a hundred with CONFORMESH_LONG=5."""
    change(mode, 20 * LONG, seed=100)
