"""What a device loads and does before its first message, and what it needs while it is idle: little."""

import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from conformesh import Network
from conformesh.kernels import compilation as compiling
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node import node as node_module
from tests.mesh.nodes import short_folder
from tests.mesh.real import drawn_scores, make_mesh, wait_for

HEAVY = {"numba", "scipy", "polars", "pandas", "matplotlib", "networkx", "sklearn", "rich"}
HEAVY |= {"click", "pydantic", "cryptography", "asyncio", "email"}
ALONE = """
import sys, time
from conformesh.peer.journal import MemoryJournal
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.local_scores import read_local_scores
from conformesh.mesh.node.calibration_run import device_result, make_device
import conformesh.mesh.node.main
import conformesh.mesh.node.node
config = [read_device(folder) for folder in sys.argv[1:]]
devices = [make_device(one, read_local_scores(one), MemoryJournal()) for one in config]
now = 0.0
for one in devices:
    one.start(now)
while not all(one.over for one in devices):
    now += 0.05
    for one in devices:
        for to, data in one.outbox():
            devices[to].receive(data, one.row, now)
        one.tick(now)
print(device_result(config[0], devices[0], 0.0).threshold.hex())
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


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_an_idle_node_is_small():
    """Three devices of a chain with certificates, as the shell starts them, after they have agreed: 80 MB each.

    Of these, up to 45.2 MB are pages of libraries, which all devices of a machine share. The kernel decides how many of
    them it maps: between two environments with the same versions they differed by 1.4 MB. The rest belongs to the node:
    35.2 MB, of which `cryptography` and OpenSSL take 4.
    """
    pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
    pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")
    with short_folder() as root, ExitStack() as stack:
        folders, _ = make_mesh(root / "m", Network.chain(3), scores=drawn_scores(3, low=20))
        processes = []
        for folder in folders:
            command = [sys.executable, "-m", "conformesh", "node", str(folder)]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            stack.callback(processes[-1].wait)
            stack.callback(processes[-1].terminate)
        wait_for(lambda: all(certified(folder) for folder in folders))
        for process in processes:
            status = Path(f"/proc/{process.pid}/status").read_text()
            own, shared = (int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) for name in ("RssAnon", "RssFile"))
            assert own < 35_000, status  # /proc counts in KiB: 35.8 MB
            assert shared < 46_000, status
            # As docs/operations.md says, for up to two neighbours, and a few for the questions of this test.
            assert len([*Path(f"/proc/{process.pid}/fd").iterdir()]) <= 14 + 2 * 2 + 4
            assert int(re.search(r"Threads:\s+(\d+)", status)[1]) <= 6 + 4 * 2 + 4


def certified(folder):
    try:
        return Client(folder).health()["healthy"]
    except NodeError:
        return False


@pytest.mark.parametrize(("scores", "compiled"), [(20, []), (200_000, ["pinball"])])
def test_what_a_run_needs_is_compiled_before_any_neighbour_waits(tmp_path, monkeypatch, scores, compiled):
    """And only where the run is long enough to pay for it; within a run nothing is compiled."""
    folders, _ = make_mesh(
        tmp_path / "m", Network.chain(2), "q-dcp", scores=[np.arange(float(scores))] * 2, insecure=True
    )
    said = []

    @contextmanager
    def opened(config):
        said.append("links")
        assert compiling._in_a_run.get()
        yield None

    monkeypatch.setattr(compiling, "compile_kernel", said.append)
    monkeypatch.setattr(node_module, "open_links", opened)
    monkeypatch.setattr(node_module.RunDriver, "serve", lambda *_: None)
    node_module.Node(read_device(folders[0]), "127.0.0.1:0").run(once=True)
    assert said == [*compiled, "links"]
    assert not compiling._in_a_run.get()


WAITING = """
import queue, signal, time
from types import SimpleNamespace
from conformesh.mesh.link import Transport, _Inbox

links = Transport.__new__(Transport)
links._arrived, links._bell, links._sockets = _Inbox(1), queue.SimpleQueue(), SimpleNamespace(look=lambda now: None)

def handle(*_):
    time.sleep(0.6)  # past the end of the wait that it interrupts
    links.wake()

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.2)
print([*links.receive(0.5)])
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers that send signals")
def test_a_wait_that_a_signal_interrupts_ends_when_the_bell_rings():
    """Without the bell such a wait goes on for ever, up to Python 3.12: a node was deaf to SIGTERM."""
    command = [sys.executable, "-c", WAITING]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "[]\n"
