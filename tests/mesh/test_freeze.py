"""A device that stands still for a while in the middle of a run holds the others up, and changes nothing."""

import signal
import time

import pytest

from conformesh import Network
from tests.mesh.real import finish, make_mesh, round_of, start, wait_for

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")


@pytest.mark.parametrize("seconds", [3, pytest.param(15, marks=pytest.mark.slow)])
def test_a_frozen_device_goes_on_where_it_was(tmp_path, seconds):
    folders, expected = make_mesh(tmp_path / "m", Network.chain(3), "q-dcp", options={"rounds": 400}, patience=20.0)
    processes = [start(folder) for folder in folders]
    middle = processes[1]
    wait_for(lambda: round_of(folders[1]) > 20)
    middle.send_signal(signal.SIGSTOP)
    try:
        size, until = round_of(folders[1]), time.monotonic() + seconds
        while time.monotonic() < until:
            assert [process.poll() for process in processes] == [None] * 3  # it was frozen in mid-run
            time.sleep(0.05)
        assert round_of(folders[1]) == size
    finally:
        middle.send_signal(signal.SIGCONT)
    found = [finish(process) for process in processes]
    assert [code for code, _, _ in found] == [0] * 3, found
    assert [result["threshold"] for _, result, _ in found] == expected
