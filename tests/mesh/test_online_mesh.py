"""Devices that learn online, in processes that are killed at random moments: nothing is lost or counted twice."""

import math
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict
from fractions import Fraction

import msgspec
import pytest
from click.testing import CliRunner

from conformesh import Network
from conformesh.cli import app
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.folders import add_device, revoke_device
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.online import JOURNAL_FILE
from conformesh.mesh.node.online_records import StateRecord
from conformesh.online.counters import Counters, CountingLearner, CoverageCounts, Life
from conformesh.peer.journal import whole_records
from tests.mesh.nodes import short_folder
from tests.mesh.real import free_ports, make_mesh, wait_for
from tests.mesh.test_drift import fed
from tests.mesh.test_heartbeat import speaking
from tests.mesh.test_serving import staying_up

zenoh = pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")
pytestmark = pytest.mark.xdist_group("online")

LEARNING = {"learning": 0.05, "local": 0.05, "bound": 1.0, "alarm": 0.05}
RULE = CountingLearner(Fraction(1, 10), **LEARNING)
PATIENCE = 120.0  # seconds, for a machine that is busy


class Running:
    """A device in a process that can be killed and started again; its log is at hand when something goes wrong."""

    def __init__(self, folder):
        self.folder, self.client, self.kills = folder, Client(folder), 0
        self.process = None
        self.start()

    def start(self):
        command = [sys.executable, "-m", "conformesh", "node", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1

    def end(self):
        self.process.kill()
        self.process.wait()


def insisting(ask):
    """Ask until there is an answer: a device may be killed before it answers, and after it has counted."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except NodeError as problem:
            if problem.status is not None or time.monotonic() > until:  # it may be gone or break off, and never refuse
                raise
            time.sleep(0.02)


def stream(device, seed, steps, counted):
    """A program on a device: scores drift, labels come late and in any order; what is acknowledged is in `counted`."""
    rng, waiting = random.Random(f"{seed} {device.folder.name}"), []
    for step in range(steps):
        example = insisting(device.client.predict_next)
        waiting.append((example["example"], example["threshold"], rng.random() * (0.5 if step < steps / 2 else 1.0)))
        while len(waiting) > (rng.choice([0, 0, 2]) if step < steps - 1 else 0):
            id, threshold, score = waiting.pop(rng.randrange(len(waiting)))
            answer = insisting(lambda id=id, score=score: device.client.observe(score, example=id))
            assert (answer["threshold"], answer["score"], answer["missed"]) == (threshold, score, score > threshold)
            counted[id] = score > threshold, score


def played(stack, root, devices, steps, kills, seed):
    """Programs on all devices, which are killed at random moments and started again; return who counted what."""
    folders, _ = make_mesh(root / "m", Network.of("cycle", devices), insecure=True, **LEARNING)
    running = [Running(folder) for folder in folders]
    for device in running:
        stack.callback(device.end)
    counted = [{} for _ in running]
    failed = []

    def work(device, mine):
        try:
            stream(device, seed, steps, mine)
        except BaseException as problem:
            failed.append(problem)

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in zip(running, counted, strict=True)]
    for thread in threads:
        thread.start()
    rng = random.Random(seed)
    moments = sorted(rng.uniform(0.05, 0.9) for _ in range(kills))
    for moment in moments:  # by how far the programs are, so that a slow machine kills as often
        wait_for(lambda moment=moment: failed or _progress(counted, steps) >= moment, PATIENCE)
        device = rng.choice(running)
        device.kill()
        device.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a program never came to its end"
    assert not failed, failed
    return running, counted


def _progress(counted, steps):
    return sum(map(len, counted)) / (steps * len(counted))


def assert_all_counted_once(running, counted):
    """Every device knows of every other exactly what its program was told, and all keep their bound."""
    steps = {device.folder.name: len(mine) for device, mine in zip(running, counted, strict=True)}
    misses = {
        device.folder.name: sum(missed for missed, _ in mine.values())
        for device, mine in zip(running, counted, strict=True)
    }

    def known(device):
        heard = insisting(device.client.online)["reported"]
        return {name: (one["steps"], one["misses"], one["lives"]) for name, one in heard.items()}

    expected = {name: (steps[name], misses[name], 1) for name in steps}
    wait_for(lambda: all(known(device) == expected for device in running), PATIENCE)
    for device, mine in zip(running, counted, strict=True):
        shown = device.client.online()
        for account in (shown["device"], shown["everybody"]):
            assert abs(account["rate"] - account["alpha"]) <= account["within"] < 0.9
        assert shown["everybody"]["steps"] == sum(steps.values())
        first, *_ = whole_records((device.folder / JOURNAL_FILE).read_bytes())
        (largest,) = fed(
            msgspec.msgpack.decode(first, type=StateRecord).seed, [score for _, score in mine.values()]
        ).largest
        assert shown["alarm"]["evidence"]["device"] == math.exp(largest)  # as if it had never been killed
        assert (shown["alarm"]["steps"], shown["alarm"]["counted"]) == (steps[device.folder.name], len(running))
    alarms = [device.client.online()["alarm"]["evidence"] for device in running]
    largest = max(one["device"] for one in alarms)  # what anybody says of the fleet follows from all that were told
    assert [one["fleet"] for one in alarms] == pytest.approx([largest / len(running)] * len(running))


def test_three_devices_that_are_killed_count_everything_once():
    with short_folder() as root, ExitStack() as stack:
        running, counted = played(stack, root, 3, steps=60, kills=3, seed=16)
        assert sum(device.kills for device in running) == 3
        assert_all_counted_once(running, counted)


@pytest.mark.slow
@pytest.mark.meshes
def test_eight_devices_that_are_killed_count_everything_once():
    with short_folder() as root, ExitStack() as stack:
        running, counted = played(stack, root, 8, steps=400, kills=40, seed=17)
        assert_all_counted_once(running, counted)
        for device in running:  # and all at once
            device.kill()
        for device in running:
            device.start()
        assert_all_counted_once(running, counted)


def test_who_joins_starts_from_the_network_and_who_leaves_stays_in_the_bound():
    with short_folder() as root, ExitStack() as stack:
        folders, thresholds = make_mesh(
            root / "m", Network.chain(2), **LEARNING, insecure=True, scores=[[0.2, 0.4] * 10] * 2
        )
        nodes = [stack.enter_context(staying_up(folder)) for folder in folders]
        clients = [Client(folder) for folder in folders]
        wait_for(lambda: all(node.state.certified is not None for node in nodes), PATIENCE)
        assert clients[0].predict_next()["threshold"] == thresholds[0]
        for _ in range(30):
            clients[0].observe(1.0)
        wait_for(lambda: clients[1].online()["reported"].get("device-00", {}).get("steps") == 30, PATIENCE)
        fleets = [client.online()["alarm"]["evidence"]["fleet"] for client in clients]
        assert (
            fleets[0]
            == pytest.approx(fleets[1])
            == pytest.approx(clients[0].online()["alarm"]["evidence"]["device"] / 2)
        )
        owed = clients[0].online()["device"]["misses"] - 0.1 * 30
        assert clients[1].online()["threshold"] == pytest.approx(thresholds[0] + LEARNING["learning"] * owed)
        newcomer = add_device(root / "m", "late", ["device-01"], f"127.0.0.1:{free_ports(1)}")
        clients[0].submit_roster((root / "m" / "roster.json").read_bytes())
        (newcomer / "scores.csv").write_text("score\n0.2\n")
        stack.enter_context(staying_up(newcomer))
        late = Client(newcomer)
        wait_for(lambda: _steps(late, "device-00") == 30, PATIENCE)
        assert late.online()["threshold"] == clients[1].online()["threshold"]
        late.observe(0.0)
        wait_for(lambda: _steps(clients[0], "late") == 1, PATIENCE)
        before = clients[0].online()["everybody"]
        revoke_device(root / "m", "late")
        clients[0].submit_roster((root / "m" / "roster.json").read_bytes())
        wait_for(lambda: all(client.status()["roster"]["number"] == 3 for client in clients), PATIENCE)
        assert clients[0].online()["everybody"] == before  # what it counted is a part of the bound for good


def _steps(client, name):
    try:
        return client.online()["reported"].get(name, {}).get("steps")
    except NodeError:
        return None


def test_counters_count_only_under_the_certificate_of_a_neighbour():
    """device-02 speaks on its own link, as itself and as device-00: only the first is heard."""
    with short_folder() as root, ExitStack() as stack:
        folders, _ = make_mesh(root / "m", Network.chain(3), **LEARNING)
        config, client = read_device(folders[1]), Client(folders[1])
        stack.enter_context(staying_up(folders[1]))
        insisting(client.online)
        said = {f"conformesh/{config.mesh}/{name}/~counters": name for name in ("device-00", "device-02")}
        stack.enter_context(counting(config, folders[2], said))
        wait_for(lambda: (_steps(client, "device-02") or 0) >= 5, PATIENCE)  # so the others were said as often
        assert _steps(client, "device-00") is None


class counting(speaking):  # noqa: N801 - reads as what it does
    """A session with a device's certificate and no rules, which publishes ever larger counters under any keys."""

    def _speak(self):
        steps = 0
        with zenoh.open(self.config) as session:
            while not self.done.wait(0.05):
                steps += 1
                for key, name in self.lies.items():
                    session.put(key, Counters({Life(name, 1): CoverageCounts(steps, 0)}).encode(RULE))


def test_it_is_switched_on_when_a_mesh_is_made(tmp_path):
    words = ["mesh", "init", str(tmp_path / "m"), "--devices", "2", "--insecure"]
    pairs = [word for name, value in LEARNING.items() for word in ("--set", f"online.{name}={value}")]
    found = CliRunner().invoke(app, [*words, *pairs])
    assert found.exit_code == 0, found.output
    config = read_device(tmp_path / "m" / "device-01")
    assert asdict(config.online) == {"scale": 0.0, **LEARNING}
    assert config.agreement()["online"] == "alpha 1/10, learning 0.05, local 0.05, bound 1.0"  # each may have its alarm
    assert "alpha 1/10" in found.stdout
    assert "alarm 0.05" in found.stdout
    for pairs, said in (
        (["online.learning=1"], "lacks local, bound"),
        (["online.lerning=1"], "did you mean 'online.learning'"),
    ):
        more = [word for pair in pairs for word in ("--set", pair)]
        found = CliRunner().invoke(app, [*words[:2], str(tmp_path / "n"), *words[3:], *more])
        assert found.exit_code == 2
        assert said in " ".join(found.output.split())
