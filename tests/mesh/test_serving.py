"""Devices that stay up: they certify, calibrate again when asked or when scores change, and stop cleanly."""

import threading
from contextlib import ExitStack, contextmanager

import pytest

from conformesh import Network
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.serving import Node
from conformesh.mesh.node.store import ResultStore
from tests.mesh.nodes import short_folder
from tests.mesh.real import drawn_scores, make_mesh, simulated, wait_for, write_scores

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")


@contextmanager
def staying_up(folder):
    """A node in a thread of its own; what ends it early is raised here."""
    node, ended = Node(read_device(folder)), []

    def run():
        try:
            node.run()
        except BaseException as problem:
            ended.append(problem)

    node.thread = threading.Thread(target=run, daemon=True)
    node.thread.start()
    try:
        yield node
    finally:
        node.stopping.set()
        node.thread.join(timeout=20)
    assert not node.thread.is_alive(), "the node does not stop"
    assert not ended, ended


def certified(client):
    """The run and the threshold that a node shows; run 0 before it has one of its own."""
    try:
        status = client.status()
    except NodeError:
        return 0, None
    if status["phase"] != "certified":
        return 0, None
    return status["certified"]["run"], client.threshold()


def after(clients, run):
    """Wait until all have certified a later run than this, the same one; return it and their thresholds."""
    found = []

    def agreed():
        found[:] = [certified(client) for client in clients]
        runs = {number for number, _ in found}
        return len(runs) == 1 and runs.pop() > run

    wait_for(agreed)
    return found[0][0], [threshold for _, threshold in found]


def test_devices_that_stay_up_calibrate_again():
    held = drawn_scores(2, low=20)
    with short_folder() as root:
        folders, expected = make_mesh(root / "m", Network.chain(2), scores=held)
        clients = [Client(folder) for folder in folders]
        with ExitStack() as stack:
            nodes = [stack.enter_context(staying_up(folder)) for folder in folders]
            run, found = after(clients, 0)
            assert found == expected
            assert all(client.health()["healthy"] for client in clients)
            shown = [client.status() for client in clients]
            assert [one["run"] for one in shown] == [run, run]
            for own, other, name in zip(shown, reversed(shown), ("device-01", "device-00"), strict=True):
                heard = own["neighbours"][name]
                assert own["round"] == heard["round"] > 0
                assert 32 * heard["frames_received"] <= heard["bytes_received"] <= other["sent"]["bytes"]
                assert 0 <= heard["last_heard_seconds_ago"] < 30
                assert own["sent"]["frames"] > own["round"]
            assert f'frames_received_total{{neighbour="device-01"}} {_frames(shown[0])}' in clients[0].metrics()

            clients[0].recalibrate()
            run, found = after(clients, run)
            assert found == expected

            held[1] = held[1] + 5.0
            write_scores(folders[1], held[1])
            run, found = after(clients, run)
            changed = simulated(folders[0], held)
            assert found == changed != expected
            for node in nodes:
                node.stopping.set()
            for node in nodes:
                node.thread.join(timeout=20)
        assert not any((folder / "node.sock").exists() for folder in folders)

        kept = [ResultStore(folder).load() for folder in folders]
        assert [(one.run, one.calibration.threshold) for one in kept] == [(run, x) for x in changed]
        assert all(one.roster == ("device-00", "device-01") for one in kept)

        with staying_up(folders[0]):  # alone it can certify nothing new, and still answers with what it had
            wait_for((folders[0] / "node.sock").exists)
            wait_for(lambda: _threshold(clients[0]) == changed[0])
            with staying_up(folders[1]):
                assert after(clients, run)[1] == changed


def _frames(status):
    return status["neighbours"]["device-01"]["frames_received"]


def _threshold(client):
    try:
        return client.threshold()
    except NodeError:
        return None


@pytest.mark.parametrize("trouble", ["missing", "half-written"])
def test_scores_that_cannot_be_read_for_a_while_do_not_end_a_node(trouble):
    """The last threshold stays, the error is shown, and repaired scores are used."""
    held = drawn_scores(2, low=20)
    with short_folder() as root:
        folders, _ = make_mesh(root / "m", Network.chain(2), scores=held)
        clients = [Client(folder) for folder in folders]
        with ExitStack() as stack:
            nodes = [stack.enter_context(staying_up(folder)) for folder in folders]
            run, _ = after(clients, 0)
            if trouble == "missing":
                (folders[1] / "scores.csv").unlink()
            else:
                (folders[1] / "scores.csv").write_text("score\n0.5\nabc")
            wait_for(lambda: not nodes[1].thread.is_alive() or clients[1].status()["last_error"], 10)
            assert nodes[1].thread.is_alive()
            held[1] = held[1] + 5.0
            write_scores(folders[1], held[1])
            assert after(clients, run)[1] == simulated(folders[0], held)
