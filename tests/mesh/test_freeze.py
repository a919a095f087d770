"""A device that stands still for a while in the middle of a run holds the others up, and changes nothing."""

import signal

import pytest

from conformesh import Network
from tests.mesh.nodes import threshold_in
from tests.mesh.real import finish, make_mesh, missed_for, round_of, start, wait_for

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")


@pytest.mark.parametrize("seconds", [2, pytest.param(12, marks=pytest.mark.slow)])  # Zenoh closes a link after 10
def test_a_frozen_device_goes_on_where_it_was(tmp_path, seconds):
    folders, expected = make_mesh(tmp_path / "m", Network.chain(3), "q-dcp", options={"rounds": 400}, patience=40.0)
    processes = [start(folder) for folder in folders]
    middle = processes[1]
    wait_for(lambda: round_of(folders[1]) > 20)
    middle.send_signal(signal.SIGSTOP)
    try:
        size = round_of(folders[1])
        wait_for(lambda: min(missed_for(folder, "device-01") for folder in folders[::2]) > seconds)
        assert [process.poll() for process in processes] == [None] * 3  # it was frozen in mid-run
        assert round_of(folders[1]) == size
    finally:
        middle.send_signal(signal.SIGCONT)
    found = [finish(process) for process in processes]
    assert [code for code, _, _ in found] == [0] * 3, found
    assert [threshold_in(result) for _, result, _ in found] == expected
