"""What a device loads and does before its first message: little, and the same as what the long way gives."""

import subprocess
import sys

from conformesh import Network
from tests.mesh.real import drawn_scores, make_mesh

HEAVY = {"numba", "scipy", "polars", "pandas", "matplotlib", "networkx", "sklearn", "rich"}
ALONE = """
import sys, time
from conformesh.peer.journal import MemoryJournal
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.own_scores import read_own_scores
from conformesh.mesh.node.running import calibration_of, make_device
import conformesh.cli.node
import conformesh.mesh.node.serving
config = [read_device(folder) for folder in sys.argv[1:]]
devices = [make_device(one, read_own_scores(one), MemoryJournal()) for one in config]
now = 0.0
for one in devices:
    one.start(now)
while not all(one.over for one in devices):
    now += 0.05
    for one in devices:
        for to, data in one.outbox():
            devices[to].receive(data, one.row, now)
        one.tick(now)
print(calibration_of(config[0], devices[0], 0.0).threshold.hex())
print(*{name.split(".")[0] for name in sys.modules})
"""


def test_a_device_of_a_small_mesh_loads_nothing_heavy(tmp_path):
    """From the folder to the threshold, all devices of a ring in one process and without a network."""
    held = drawn_scores(5, low=10)
    folders, expected = make_mesh(tmp_path / "m", Network.cycle(5), scores=held, insecure=True)
    command = [sys.executable, "-c", ALONE, *map(str, folders)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert float.fromhex(out[0]) == expected[0]
    assert not {*out[1].split()} & HEAVY
