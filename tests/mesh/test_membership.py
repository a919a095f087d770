"""Real processes whose mesh changes while they run: devices come and go, certificates change, a thief stays out."""

import shutil

import pytest

from conformesh import Network
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.http.client import Client
from tests.mesh.real import wait_for

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")
from conformesh.mesh.config.folders import reissue_device, renew_device, revoke_device
from tests.mesh.machines import machines


def changed(mesh, names, k):
    """Add a device, or take one out, and hand the roster to one of those that stay; return who is in now."""
    if k % 2 == 0:
        mesh.add(f"new-{k}", [names[0], names[-1]])
        names = [*names, f"new-{k}"]
    else:
        gone = names[1]
        revoke_device(mesh.mesh, gone, settled=k + 1)  # of which all have seen a result
        names = [name for name in names if name != gone]
    mesh.hand(names[k % (len(names) - 1)])
    return names


@pytest.mark.parametrize("mode", ["rounds", "asynchronous"])
def test_devices_come_and_go_while_others_serve(mode):
    """No process is started again; a device that was taken out says so and keeps its last threshold."""
    with machines(Network.complete(4), mode=mode) as (mesh, first):
        pids = {name: process.pid for name, process in mesh.processes.items()}
        larger = changed(mesh, first, 0)
        two, run = mesh.agreed(larger, 2)
        assert two == mesh.expected(larger)
        assert run > 1
        smaller = changed(mesh, larger, 1)
        three, later = mesh.agreed(smaller, 3)
        assert three == mesh.expected(smaller)
        assert later > run
        gone = Client(mesh.root / "device-01")
        wait_for(lambda: gone.health()["phase"] == "failed")
        reasons = gone.health()["reasons"]
        assert "roster: device-01 was removed: roster 3 has" in reasons[0]
        assert "the threshold is of roster 2, and roster 3 is in force" in reasons
        assert gone.status()["roster"]["number"] == 3
        assert {gone.threshold()} == two
        assert {name: mesh.processes[name].pid for name in pids} == pids
        assert all(process.poll() is None for process in mesh.processes.values())


@pytest.mark.slow
def test_twenty_changes_without_a_restart():
    with machines(Network.complete(4)) as (mesh, first):
        names, run = first, 1
        for k in range(20):
            names = changed(mesh, names, k)
            found, later = mesh.agreed(names, k + 2)
            assert found == mesh.expected(names)
            assert later > run
            run = later
        assert all(process.poll() is None for process in mesh.processes.values())


def say(mesh, thief, seconds=1.0):
    """Speak to device-00 with the files in a folder, as if it were device-01, for some seconds once there is a link."""
    import json
    import time

    import zenoh

    config = read_device(mesh.root / "device-00")
    settings = {
        "mode": "peer",
        "listen/endpoints": [],
        "connect/endpoints": [f"tls/{config.endpoints['device-00']}"],
        "connect/timeout_ms": -1,
        "connect/exit_on_failure": False,
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "transport/link/tls": {
            "root_ca_certificate": str(thief / "ca.pem"),
            "enable_mtls": True,
            "connect_private_key": str(thief / "device.key"),
            "connect_certificate": str(thief / "device.pem"),
        },
    }
    chosen = zenoh.Config()
    for key, value in settings.items():
        chosen.insert_json5(key, json.dumps(value))
    with zenoh.open(chosen) as session:
        wait_for(lambda: len([*session.info.peers_zid()]) > 0)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            session.put(f"conformesh/{config.mesh}/device-01/device-00", b"a lie")
            time.sleep(0.05)


def refused(mesh, at):
    """How many frames a device has refused that are none."""
    counted = Client(mesh.root / at).status()["refused"]
    return sum(count for reason, count in counted.items() if "no frame" in reason or "61206c69" in reason)


def test_a_stolen_key_is_of_no_use_once_the_roster_is_there():
    """Before, the thief is heard as device-01; afterwards it has a link and no word on it, and device-01 goes on."""
    with machines(Network.complete(3)) as (mesh, names):
        thief = mesh.root / "thief"
        shutil.copytree(mesh.root / "device-01", thief, ignore=shutil.ignore_patterns("node.sock"))
        say(mesh, thief)
        wait_for(lambda: refused(mesh, "device-00") > 0)
        identity = reissue_device(mesh.mesh, "device-01")
        assert identity.name == "device-01~2"
        for file in ("device.key", "device.pem"):
            shutil.copy(mesh.mesh / "device-01" / file, mesh.root / "device-01" / file)
        mesh.hand("device-02")
        found, run = mesh.agreed(names, 2)
        assert found == mesh.expected(names)
        before = refused(mesh, "device-00")
        say(mesh, thief)  # over a link, since its certificate is still good to the authority
        assert refused(mesh, "device-00") == before
        Client(mesh.root / "device-00").recalibrate()
        wait_for(lambda: mesh.certified("device-01")["run"] > run)
        renew_device(mesh.mesh, "device-01")
        for file in ("device.key", "device.pem"):
            shutil.copy(mesh.mesh / "device-01" / file, mesh.root / "device-01" / file)
        run = mesh.agreed(names, 2)[1]
        Client(mesh.root / "device-01").recalibrate()
        wait_for(lambda: mesh.certified("device-00")["run"] > run)
