"""Real processes, real links, mutual TLS: every device ends with the simulator's threshold, whatever happens."""

import signal

import numpy as np
import pytest

from conformesh import Network
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.peer.journal import pack_record, whole_records
from conformesh.peer.memory import REPORTED
from conformesh.pipeline.solver import solve_draws
from tests.mesh.nodes import threshold_in
from tests.mesh.real import finish, free_ports, make_mesh, round_of, start, wait_for

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.folders import init_mesh
from conformesh.mesh.config.signing import signed_document
from conformesh.mesh.http.address import SOCKET_NAME


@pytest.fixture
def mesh(tmp_path):
    def make(network, method="e-dcp", scores=None, **more):
        return make_mesh(tmp_path / "mesh", network, method, scores, **more)

    return make


@pytest.mark.parametrize(
    ("method", "options", "network"),
    [
        ("e-dcp", {}, Network.torus(2, 3)),
        ("h-dcp", {"rounds": 30}, Network.chain(3)),
        ("q-dcp", {"rounds": 50}, Network.chain(3)),
    ],
    ids=str,
)
def test_every_device_ends_with_the_simulators_threshold(mesh, method, options, network):
    folders, expected = mesh(network, method, options=options)
    processes = [start(folder) for folder in folders]
    found = [finish(process) for process in processes]
    assert [code for code, _, _ in found] == [0] * len(folders), found
    assert [threshold_in(result) for _, result, _ in found] == expected


def test_killed_and_started_again_devices_change_nothing(mesh):
    """Two of four devices are killed while the run is under way; they go on from their journals."""
    folders, expected = mesh(Network.cycle(4), "q-dcp", options={"rounds": 600})
    processes = [start(folder) for folder in folders]
    for k in (1, 2):
        size = round_of(folders[k])
        wait_for(lambda k=k, size=size: round_of(folders[k]) > size + 40)
        processes[k].send_signal(signal.SIGKILL)
        processes[k].communicate()
        processes[k] = start(folders[k])
    found = [finish(process) for process in processes]
    assert [code for code, _, _ in found] == [0] * 4, found
    assert [threshold_in(result) for _, result, _ in found] == expected
    assert "from the journal" in found[1][2] + found[2][2]


def forget_report(folder):
    """Leave a folder as if its process had been killed after its run had finished, before it reported the result."""
    path = folder / "journal.bin"
    *records, last = whole_records(path.read_bytes())
    assert last == REPORTED
    path.write_bytes(b"".join(map(pack_record, records)))


def test_a_device_that_starts_after_the_others_have_finished(mesh):
    """It reports a result that it has not reported yet, and otherwise names the neighbours that are gone."""
    folders, expected = mesh(Network.chain(3), patience=60.0)
    first = [finish(process) for process in [start(folder) for folder in folders]]
    assert [code for code, _, _ in first] == [0] * 3, first
    forget_report(folders[1])
    code, result, log = finish(start(folders[1]), timeout=30)  # half of its patience
    assert (code, result) == (0, first[1][1]), log
    assert threshold_in(result) == expected[1]
    assert "run 1: finished before this start" in log
    code, result, log = finish(start(folders[1], "--patience", "2"))  # a new request, and nobody else is there
    assert (code, result) == (1, None), log
    assert "device-00, device-02 have not said hello within 2 s" in log


def test_a_device_that_is_stopped_before_its_run_ends_reports_no_older_result(mesh):
    folders, _ = mesh(Network.chain(2))
    assert [finish(process)[0] for process in [start(folder) for folder in folders]] == [0, 0]
    alone = start(folders[0])
    wait_for((folders[0] / SOCKET_NAME).exists)
    alone.terminate()
    code, result, log = finish(alone)
    assert (code, result) == (1, None), log
    assert "stopped before the run was finished" in log


def test_a_device_that_never_comes_is_named(mesh):
    """How long that takes is tested on virtual time; here it is the patience that both name."""
    folders, _ = mesh(Network.chain(3), patience=12.0)
    processes = [start(folder) for folder in folders[:2]]
    found = [finish(process) for process in processes]
    assert [code for code, _, _ in found] == [1, 1], found
    assert all("device-02 has not said hello within 12 s" in log for _, _, log in found), found


def test_the_others_go_on_without_a_lost_device(mesh):
    folders, _ = mesh(Network.complete(4), patience=15.0, on_lost="continue")
    processes = [start(folder) for folder in folders[:3]]
    found = [finish(process) for process in processes]
    assert [code for code, _, _ in found] == [0] * 3, found
    rosters = {tuple(result["roster"]) for _, result, _ in found}
    assert rosters == {("device-00", "device-01", "device-02")}
    held = [np.loadtxt(folder / "scores.csv", skiprows=1, ndmin=1) for folder in folders[:3]]
    expected = solve_draws(WeightedScores.of(held), Network.complete(3), [0.1], "e-dcp").outcome.thresholds[0, 0, 0]
    assert {threshold_in(result) for _, result, _ in found} == {expected}


def test_devices_that_disagree_send_nothing(mesh):
    folders, _ = mesh(Network.chain(2))
    path = folders[1] / "device.toml"
    path.write_text(path.read_text().replace('alpha = "0.1"', 'alpha = "0.2"'))
    processes = [start(folder) for folder in folders]
    found = [finish(process) for process in processes]
    assert [code for code, _, _ in found] == [1, 1], found
    assert all("alpha" in log and "1/10" in log and "1/5" in log for _, _, log in found), found
    assert round_of(folders[0]) == round_of(folders[1]) == 0


def test_a_device_of_another_authority_gets_no_link(mesh, tmp_path):
    """It has a device's configuration but a certificate that somebody else signed: nobody hears it."""
    folders, _ = mesh(Network.chain(2), patience=4.0)
    strange = init_mesh(tmp_path / "strange", Network.chain(2), base_port=free_ports(2))
    for file in ("ca.pem", "device.pem", "device.key"):
        (folders[1] / file).write_bytes((strange[1] / file).read_bytes())
    forged = signed_document(read_device(folders[1]).roster, tmp_path / "strange", insecure=False)
    (folders[1] / "roster.json").write_bytes(forged.bytes())
    processes = [start(folder) for folder in folders]
    found = [finish(process) for process in processes]
    assert [code for code, _, _ in found] == [1, 1], found
    assert "device-01 has not said hello" in found[0][2]
