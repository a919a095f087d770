"""What a device loads and does before its first message: little, and the same as what the long way gives."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import Network
from conformesh.mesh.config import own_scores
from conformesh.mesh.config.own_scores import read_own_scores
from tests.mesh.meshes import config
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


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20), st.booleans())
def test_the_short_way_to_read_scores_gives_the_same_bits(tmp_path_factory, numbers, named):
    folder = tmp_path_factory.mktemp("own")
    one = config(folder=folder)
    head, before = ("device,score", f"{one.name},") if named else ("score", "")
    (folder / "scores.csv").write_text(f"{head}\n" + "".join(f"{before}{x!r}\n" for x in numbers))
    assert own_scores._plain_scores(folder / "scores.csv", one.name) is not None
    short = read_own_scores(one)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_scores, "_plain_scores", lambda *_: None)
        long = read_own_scores(one)
    assert short.tobytes() == long.tobytes() == np.array(numbers).tobytes()


@pytest.mark.parametrize(
    "text",
    [
        "score\n1\n\n2\n",
        "score\n1_0\n",
        "score\n 1\n",
        "score\nnan\n",
        "score\ninf\n",
        "score,more\n1,2\n",
        "device,score\ndevice-00,1\n",
        'device,score\n"device-01",1\n',
        "device,score\ndevice-01,\n",
        "\ufeffscore\n1\n",
    ],
)
def test_anything_unusual_goes_the_long_way(tmp_path, text):
    (tmp_path / "scores.csv").write_text(text, encoding="utf-8")
    assert own_scores._plain_scores(tmp_path / "scores.csv", "device-01") is None
