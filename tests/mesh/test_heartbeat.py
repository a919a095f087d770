"""Heartbeats between real processes: a stopped device is noticed, a wrong one refused, no run is changed."""

import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import msgspec
import pytest
from click.testing import CliRunner

from conformesh import Network
from conformesh.cli import app
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.heartbeat_table import HeartbeatMessage, HeartbeatRecord
from tests.mesh.heartbeats import CALM
from tests.mesh.nodes import numbers, short_folder
from tests.mesh.real import make_mesh, wait_for
from tests.mesh.test_serving import after, staying_up

zenoh = pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")
pytestmark = pytest.mark.xdist_group("heartbeats")


def rows(client):
    """What a node knows of everybody, by name; nothing before it answers."""
    try:
        return {row["name"]: row for row in client.mesh()["devices"]}
    except NodeError:
        return {}


def healths(client):
    return [row["health"] for row in rows(client).values()]


def processes(stack, folders, *words):
    """Devices that stay up, each in a process; those that still run at the end are ended."""
    found = []
    for folder in folders:
        command = [sys.executable, "-m", "conformesh", "node", str(folder), *words]
        found.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        stack.callback(found[-1].wait)
        stack.callback(found[-1].kill)
    return found


def status(*words):
    return CliRunner().invoke(app, ["mesh", "status", *map(str, words)])


def test_who_is_killed_is_silent_to_all_and_mesh_status_says_so():
    with short_folder() as root, ExitStack() as stack:
        folders, thresholds = make_mesh(root / "m", Network.of("cycle", 4))
        clients = [Client(folder) for folder in folders]
        running = processes(stack, folders)
        wait_for(lambda: all(healths(client) == ["healthy"] * 4 for client in clients), 90)
        far = rows(clients[0])["device-02"]
        assert (far["via"], far["threshold"], far["about"], far["common"]) == ("hearsay", thresholds[0], 4, True)
        found = status(root / "m")
        assert found.exit_code == 0, found.output
        assert "4 devices, all healthy; threshold " in found.stdout
        running[2].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        others = [clients[k] for k in (0, 1, 3)]
        wait_for(lambda: all(rows(client)["device-02"]["health"] == "silent" for client in others))
        took = time.monotonic() - killed
        assert 0.5 < took < 3.0 * SLOWER, took
        for where in (root / "m", folders[0], folders[0] / "node.sock"):
            found = status(where, "--json")
            answer = json.loads(found.stdout)
            assert found.exit_code == answer["code"] == 1
            health = {row["name"]: row["health"] for row in answer["devices"]}
            assert health == {"device-02": "silent"} | dict.fromkeys(("device-00", "device-01", "device-03"), "healthy")
        quiet = {row["name"]: row for row in json.loads(status(root / "m", "--json").stdout)["devices"]}["device-02"]
        assert "nobody listens" in quiet["probe"]
        (running[2],) = processes(stack, folders[2:3])
        wait_for(lambda: all(healths(client) == ["healthy"] * 4 for client in clients), 60)


SLOWER = 5  # how much slower than here a machine may be


def test_a_heartbeat_changes_no_run_and_none_of_its_bytes_is_counted_as_a_frame():
    """The same results, with the same ledgers, with a heartbeat ten times a second and without any."""
    results = []
    for heartbeat in (0.0, 0.1):
        with short_folder() as root, ExitStack() as stack:
            folders, _ = make_mesh(root / "m", Network.chain(2), insecure=True, heartbeat=heartbeat)
            clients = [Client(folder) for folder in folders]
            for folder in folders:
                stack.enter_context(staying_up(folder))
            after(clients, 0)
            results.append([client.calibration().to_dict() | {"seconds": None, "network": None} for client in clients])
            if heartbeat:
                wait_for(lambda clients=clients: _are_quiet(clients))  # a run that is over says nothing more
                assert all(healths(client) == ["healthy"] * 2 for client in clients)
            else:
                assert [_said(client) for client in clients] == [0, 0]
                assert [rows(clients[0])[name]["health"] for name in ("device-00", "device-01")] == [
                    "healthy",
                    "unknown",
                ]
    assert results[0] == results[1]


def _are_quiet(clients):
    """Whether no frame was sent while each device had said some more heartbeats."""
    sent, said = [_sent(client) for client in clients], [_said(client) for client in clients]
    for client, count in zip(clients, said, strict=True):
        wait_for(lambda client=client, count=count: _said(client) > count + 5)
    return [_sent(client) for client in clients] == sent


def _sent(client):
    return client.status()["sent"]["bytes"]


def _said(client):
    return numbers(client.metrics())["conformesh_heartbeats_sent_total"]


def test_a_heartbeat_counts_only_under_the_certificate_of_its_device():
    """device-02 has a link to device-01, with its own certificate: it is heard for itself, and not as device-00."""
    with short_folder() as root, ExitStack() as stack:
        folders, _ = make_mesh(root / "m", Network.chain(3))
        config = read_device(folders[1])
        client = Client(folders[1])
        stack.enter_context(staying_up(folders[1]))
        wait_for(lambda: rows(client))
        lies = {
            f"conformesh/{config.mesh}/{name}/~pulse": HeartbeatMessage(1, 1, HeartbeatRecord(row, 1, 1, 0, CALM), [])
            for row, name in ((0, "device-00"), (2, "device-02"))
        }
        stack.enter_context(speaking(config, folders[2], lies))
        wait_for(lambda: rows(client)["device-02"]["via"] == "neighbour")
        said = numbers(client.metrics())["conformesh_heartbeats_received_total"]
        wait_for(lambda: numbers(client.metrics())["conformesh_heartbeats_received_total"] > said + 5)
        assert rows(client)["device-00"]["health"] == "unknown"
        assert not any("heartbeats_refused" in name for name in numbers(client.metrics()))  # none came as far as that


class speaking:  # noqa: N801 - reads as what it does
    """A session with a device's certificate and no rules, which publishes heartbeats under any keys, repeatedly."""

    def __init__(self, config, identity, lies):
        settings = {
            "mode": "peer",
            "listen/endpoints": [],
            "connect/endpoints": [f"tls/{config.endpoints[config.name]}"],
            "scouting/multicast/enabled": False,
            "scouting/gossip/enabled": False,
            "transport/link/tls": {
                "root_ca_certificate": str(identity / "ca.pem"),
                "enable_mtls": True,
                "connect_private_key": str(identity / "device.key"),
                "connect_certificate": str(identity / "device.pem"),
            },
        }
        self.config, self.lies, self.done = zenoh.Config(), lies, threading.Event()
        for key, value in settings.items():
            self.config.insert_json5(key, json.dumps(value))
        self.thread = threading.Thread(target=self._speak)

    def _speak(self):
        beat = 0
        with zenoh.open(self.config) as session:
            while not self.done.wait(0.05):
                beat += 1
                for key, heartbeat in self.lies.items():
                    own = msgspec.structs.replace(heartbeat.own, beat=beat)
                    session.put(key, msgspec.msgpack.encode(msgspec.structs.replace(heartbeat, own=own)))

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *reason):
        self.done.set()
        self.thread.join()
