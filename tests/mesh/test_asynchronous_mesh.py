"""Real processes without rounds: the simulator's threshold in the end, and a certificate about the heard before."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from conformesh import Network
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.mesh.http.client import Client, NodeError
from conformesh.pipeline.solver import solve_draws
from tests.mesh.nodes import threshold_in
from tests.mesh.real import finish, make_mesh, start, wait_for

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")


@pytest.mark.parametrize(
    ("method", "options"), [("e-dcp", {}), ("r-dcp", {"byzantine": 1, "grid": "own"})], ids=["e-dcp", "r-dcp"]
)
def test_every_device_ends_with_the_simulators_threshold(tmp_path, method, options):
    """Those of r-dcp are signed with the keys of the certificates."""
    folders, expected = make_mesh(tmp_path / "mesh", Network.cycle(5), method, mode="asynchronous", options=options)
    found = [finish(process) for process in [start(folder) for folder in folders]]
    assert [code for code, _, _ in found] == [0] * 5, found
    assert [threshold_in(result) for _, result, _ in found] == expected
    assert {result["answers"][0]["certificate"]["kind"] for _, result, _ in found} == {"counted"}
    assert {tuple(result["roster"]) for _, result, _ in found} == {tuple(f"device-0{k}" for k in range(5))}


def test_who_never_comes_is_left_out_by_name(tmp_path):
    """After as long as the patience without anything new, a device that calibrates once says what is certain."""
    folders, _ = make_mesh(tmp_path / "mesh", Network.complete(3), mode="asynchronous", patience=6.0)
    found = [finish(process) for process in [start(folder) for folder in folders[:2]]]
    assert [code for code, _, _ in found] == [0, 0], found
    assert {tuple(result["answers"][0]["certificate"]["heard"]) for _, result, _ in found} == {
        ("device-00", "device-01")
    }
    held = [np.loadtxt(folder / "scores.csv", skiprows=1, ndmin=1) for folder in folders[:2]]
    pooled = solve_draws(WeightedScores.of(held), Network.complete(2), [0.1], "e-dcp").outcome.thresholds[0, 0, 0]
    assert all(
        threshold_in(result) in ("inf", "Infinity") or float(threshold_in(result)) >= pooled for _, result, _ in found
    )


def serve(folder):
    command = [sys.executable, "-m", "conformesh", "node", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def asked(folder, path):
    try:
        return Client(folder)._ask(path)
    except (OSError, NodeError):
        return {}


def test_a_serving_node_says_about_whom_and_goes_on_when_the_others_come(tmp_path):
    """First alone, about itself; then with everybody, about everybody; also after it was killed."""
    folders, expected = make_mesh(tmp_path / "mesh", Network.complete(3), mode="asynchronous")
    processes = [serve(folders[0])]
    try:
        wait_for(lambda: asked(folders[0], "/threshold").get("about") == "reported")
        told = asked(folders[0], "/threshold")
        assert (told["reported"], told["everybody"]["threshold"]) == (["device-00"], "inf")
        assert asked(folders[0], "/status")["gathering"]["devices"] == 3
        processes += [serve(folder) for folder in folders[1:]]
        wait_for(lambda: all(asked(folder, "/threshold").get("about") == "everybody" for folder in folders))
        wait_for(lambda: all(asked(folder, "/threshold").get("threshold") == expected[0] for folder in folders))
        processes[1].send_signal(signal.SIGKILL)
        processes[1].wait()
        processes[1] = serve(folders[1])
        began = time.monotonic()
        wait_for(lambda: asked(folders[1], "/threshold").get("threshold") == expected[0])
        assert time.monotonic() - began < 40
    finally:
        for process in processes:
            process.terminate()
            process.wait()
