"""Faults of real nodes: that they are survived, and how soon `/health` and `mesh status` say so."""

import errno
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from conformesh import Network
from conformesh.cli import app
from conformesh.mesh.http.client import Client, NodeError
from tests.mesh.disks import Wires, free_port, unwritable
from tests.mesh.nodes import short_folder
from tests.mesh.real import drawn_scores, make_mesh, round_of, wait_for, write_scores
from tests.mesh.test_serving import HALF, after, certified, staying_up

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")


def healthy(client):
    """Whether a node says that it is healthy; None where it does not answer."""
    try:
        return client.health()["healthy"]
    except NodeError:
        return None


@pytest.mark.parametrize(
    "code", [errno.EROFS, pytest.param(errno.ENOSPC, marks=pytest.mark.slow)], ids=errno.errorcode.get
)
def test_a_restart_on_a_disk_that_takes_nothing_serves_the_last_threshold(code):
    """It is unhealthy with the reason, accepts no request, and goes on by itself when the disk can be written."""
    with short_folder() as root:
        folders, expected = make_mesh(root / "m", Network.chain(2), insecure=True, patience=3.0)
        clients = [Client(folder) for folder in folders]
        with staying_up(folders[0]), staying_up(folders[1]):
            run, _ = after(clients, 0)
        with ExitStack() as stack:
            with unwritable(folders[0], code):
                stack.enter_context(staying_up(folders[0]))
                wait_for(lambda: healthy(clients[0]) is False)
                assert clients[0].threshold() == expected[0]
                assert clients[0].health()["reasons"][0].startswith("disk: ")
                with pytest.raises(NodeError, match="the request cannot be stored") as refused:
                    clients[0].recalibrate()
                assert refused.value.status == 503
            stack.enter_context(staying_up(folders[1]))
            assert after(clients, run)[1] == expected
            wait_for(lambda: healthy(clients[0]))


def serve(stack, folder, *words):
    """A node in a process of its own, which is killed at the end."""
    command = [sys.executable, "-m", "conformesh", "node", str(folder), *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.send_signal, signal.SIGCONT)
    stack.callback(process.kill)
    return process


def kill(process):
    process.kill()
    process.wait()


def test_a_request_that_was_acknowledged_in_asynchronous_mode_survives_a_kill():
    """The run begins when the last result has stood for 2 s; the node is killed before that."""
    with short_folder() as root, ExitStack() as stack:
        folders, expected = make_mesh(root / "m", Network.chain(2), insecure=True, mode="asynchronous")
        clients = [Client(folder) for folder in folders]
        nodes = [serve(stack, folder) for folder in folders]
        run, _ = after(clients, 0)
        clients[0].recalibrate()
        run, _ = after(clients, run)  # a result that is young: the next run has to wait
        clients[0].recalibrate()
        kill(nodes[0])
        assert certified(clients[1])[0] == run
        serve(stack, folders[0])
        assert after(clients, run)[1] == expected


@pytest.mark.slow
def test_a_request_that_was_acknowledged_during_a_run_survives_a_kill():
    """In rounds: the neighbour is stopped within the run, so that the request waits for the end of it."""
    with short_folder() as root, ExitStack() as stack:
        options = {"rounds": 3000}
        folders, expected = make_mesh(root / "m", Network.chain(2), "q-dcp", insecure=True, options=options)
        clients = [Client(folder) for folder in folders]
        nodes = [serve(stack, folder) for folder in folders]
        wait_for(lambda: round_of(folders[0]) > 20)
        nodes[1].send_signal(signal.SIGSTOP)
        assert clients[0].recalibrate().startswith("waiting")
        kill(nodes[0])
        nodes[1].send_signal(signal.SIGCONT)
        serve(stack, folders[0])
        run, _ = after(clients, 0)
        assert run == 1  # the journal was resumed
        assert after(clients, run)[1] == expected


# --- how soon a fault is said -----------------------------------------------------------------------------------------

PATIENCE = 6.0
SLACK = 5.0  # seconds beyond the patience until `/health` and `mesh status` must have said it
# A disk of its own for one device, which the test can fill or make read-only: a tmpfs that only its process sees.
OWN_DISK = """
cp -a "$1" "$1.copy" && mount -t tmpfs -o size=2m none "$1" && cp -a "$1.copy/." "$1" && shift && exec "$@"
"""


def can_mount():
    """Whether this user may give a process a disk of its own."""
    if not (shutil.which("unshare") and shutil.which("nsenter")):
        return False
    probe = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


class Fleet:
    """Nodes in processes of their own, each with a port for its service; the last has a disk of its own, if it can.

    Links go through `Wires`, so that they can be cut while the nodes live.
    """

    def __init__(self, root, stack, count=3, **more):
        self.root, self.stack = root, stack
        self.held = drawn_scores(count, low=20)
        self.folders, _ = make_mesh(
            root / "m", Network.complete(count), scores=self.held, patience=PATIENCE, **{"insecure": True} | more
        )
        self.wires = stack.enter_context(Wires())
        for folder in self.folders:
            self._through_wires(folder)
        self.ports = [free_port() for _ in self.folders]
        self.clients = [Client(f"127.0.0.1:{port}", timeout=3.0) for port in self.ports]
        self.own_disk = can_mount()
        self.processes = [None] * count
        for k in range(count):
            self.start(k)
        self.wait_until_well()

    def _through_wires(self, folder):
        """Let a device listen elsewhere than where its neighbours look for it."""
        path = folder / "device.toml"
        text = path.read_text()
        host, port = re.search(r'^listen = "(.+):(\d+)"$', text, re.M).groups()
        behind = free_port()
        path.write_text(text.replace(f'listen = "{host}:{port}"', f'listen = "{host}:{behind}"'))
        self.wires.add(int(port), behind)

    def start(self, k):
        folder = self.folders[k]
        command = [sys.executable, "-m", "conformesh", "node", str(folder), "--http", f"127.0.0.1:{self.ports[k]}"]
        if self.own_disk and k == len(self.folders) - 1:
            shutil.rmtree(f"{folder}.copy", ignore_errors=True)
            command = ["unshare", "-m", "sh", "-c", OWN_DISK, "sh", str(folder), *command]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes[k] = process
        self.stack.callback(process.wait)
        self.stack.callback(process.send_signal, signal.SIGCONT)
        self.stack.callback(process.kill)

    def within(self, k, script):
        """Run a script where it sees the disk of a node."""
        command = ["nsenter", "-t", str(self.processes[k].pid), "-m", "sh", "-c", script, "sh", str(self.folders[k])]
        return subprocess.run(command, capture_output=True, check=False)

    def health(self, k):
        """What a node says; None where it does not answer."""
        try:
            return self.clients[k].health()
        except NodeError:
            return None

    def status(self, k):
        return CliRunner().invoke(app, ["mesh", "status", f"127.0.0.1:{self.ports[k]}"])

    def is_well(self):
        known = [self.health(k) for k in range(len(self.folders))]
        well = all(one and one["healthy"] and not one["links_down"] and not one["reasons"] for one in known)
        return well and all(self.status(k).exit_code == 0 for k in range(len(self.folders)))

    def wait_until_well(self):
        wait_for(self.is_well, 90)


@pytest.fixture(scope="module")
def fleet():
    with short_folder() as root, ExitStack() as stack:
        yield Fleet(root, stack)


@contextmanager
def killed(fleet):
    kill(fleet.processes[1])
    yield
    fleet.start(1)


@contextmanager
def stopped(fleet):
    fleet.processes[1].send_signal(signal.SIGSTOP)
    yield
    fleet.processes[1].send_signal(signal.SIGCONT)


@contextmanager
def all_links_cut(fleet):
    fleet.wires.cut = True
    yield
    fleet.wires.cut = False


@contextmanager
def half_written_scores(fleet):
    (fleet.folders[0] / "scores.csv").write_text(HALF)
    yield
    write_scores(fleet.folders[0], fleet.held[0])


def needs_own_disk(fleet):
    if not fleet.own_disk:
        pytest.skip("a disk that can be filled needs the right to mount one (root)")


@contextmanager
def full_disk(fleet):
    needs_own_disk(fleet)
    fleet.within(2, 'dd if=/dev/zero of="$1/filler" bs=4096; true')
    yield
    fleet.within(2, 'rm "$1/filler"')


@contextmanager
def read_only_disk(fleet):
    """A mount on top: the file system below has files open for writing, and cannot be made read-only."""
    needs_own_disk(fleet)
    done = fleet.within(2, 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"')
    assert done.returncode == 0, done
    yield
    fleet.within(2, 'umount "$1"')


# Each fault: whose /health and status say it, whether a run is requested there, and what is said.
FAULTS = {
    "neighbour dead for good": (killed, 0, True, "failed"),
    "neighbour stopped (SIGSTOP)": (stopped, 0, True, "failed"),
    "neighbour dead, no run requested": (killed, 0, False, "device-01"),
    "all links down": (all_links_cut, 0, True, "failed"),
    "all links down, no run requested": (all_links_cut, 0, False, "device-01"),
    "node killed": (killed, 1, False, None),
    "score file half written": (half_written_scores, 0, False, "scores: "),
    "full disk": (full_disk, 2, False, "disk: "),
    "full disk, run requested elsewhere": (full_disk, 0, True, "failed"),
    "read-only disk": (read_only_disk, 2, False, "disk: "),
}


def says(health, words):
    """Whether a node says what is wrong: in words while it is unhealthy, or by naming a link."""
    if words is None or health is None:
        return words is health
    if words.startswith("device-"):
        return words in health["links_down"]
    return not health["healthy"] and any(words in reason for reason in health["reasons"])


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_said_within_the_patience_and_5_s(fleet, fault):
    """By /health, and by `mesh status`, which is asked at a node that lives; then all is well again by itself."""
    inject, who, requested, words = FAULTS[fault]
    asked = who if words is not None else 0
    fleet.wait_until_well()
    took = {}
    with inject(fleet):
        if requested:
            fleet.clients[0].recalibrate()
        began = time.monotonic()
        while len(took) < 2 and time.monotonic() - began < PATIENCE + 3 * SLACK:
            if "health" not in took and says(fleet.health(who), words):
                took["health"] = time.monotonic() - began
            if "status" not in took and fleet.status(asked).exit_code == 1:
                took["status"] = time.monotonic() - began
            time.sleep(0.1)
        last = fleet.health(who), fleet.status(asked).stdout
        if "health" in took and requested:  # it goes on saying so, however often it is tried again
            until = time.monotonic() + 4.0
            while time.monotonic() < until:
                assert not fleet.health(who)["healthy"]
                time.sleep(0.05)
    mended = time.monotonic()
    fleet.wait_until_well()
    took["well again"] = time.monotonic() - mended
    print(f"\n{fault}: {', '.join(f'{what} {seconds:.1f} s' for what, seconds in took.items())}")
    assert took.keys() >= {"health", "status"}, last
    assert max(took["health"], took["status"]) <= PATIENCE + SLACK, took


@pytest.mark.slow
def test_nothing_wrong_is_said_when_all_is_well(fleet):
    """For a minute, with a recalibration every few seconds: all nodes are healthy, and `mesh status` ends with 0."""
    fleet.wait_until_well()
    until, due, polls, runs = time.monotonic() + 60.0, 0.0, 0, 0
    while time.monotonic() < until:
        if time.monotonic() >= due:
            fleet.clients[runs % 3].recalibrate()
            due, runs = time.monotonic() + 7.0, runs + 1
        for k in range(3):
            health, status = fleet.health(k), fleet.status(k)
            assert health == {"healthy": True, "phase": health["phase"], "reasons": [], "links_down": []}
            assert status.exit_code == 0, status.stdout
            polls += 1
        time.sleep(0.1)
    print(f"\n{polls} polls, {runs} recalibrations")
    assert runs >= 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "code"),
    [({"on_lost": "fail"}, "lost"), ({"on_lost": "continue"}, None), ({"mode": "asynchronous"}, "overdue")],
    ids=["fail", "continue", "asynchronous"],
)
def test_a_dead_neighbour_in_every_mode(more, code):
    """Under `continue` the others get their threshold and stay healthy; the link is named all the same."""
    with short_folder() as root, ExitStack() as stack:
        fleet = Fleet(root, stack, **more)
        kill(fleet.processes[1])
        before = fleet.clients[0].status()["run"]
        fleet.clients[0].recalibrate()
        began = time.monotonic()

        def said():
            health, row = fleet.health(0), fleet.clients[0].mesh()["devices"][0]
            certified = fleet.clients[0].status()["certified"]
            named = "device-01" in health["links_down"] and fleet.status(0).exit_code == 1
            if code is None:
                return named and health["healthy"] and certified["run"] > before and certified["devices"] == 2
            return named and not health["healthy"] and row["reasons"] == [code]

        wait_for(said, 60)
        print(f"\n{more}: {time.monotonic() - began:.1f} s")
        assert time.monotonic() - began <= PATIENCE + SLACK
        fleet.start(1)
        fleet.wait_until_well()


@pytest.mark.slow
def test_a_certificate_that_has_expired_is_said_by_the_device_and_by_its_neighbour():
    with short_folder() as root, ExitStack() as stack:
        folders, _ = make_mesh(root / "m", Network.chain(2), patience=PATIENCE)
        clients = [Client(folder) for folder in folders]
        nodes = [stack.enter_context(staying_up(folder)) for folder in folders]
        after(clients, 0)
        wait_for(lambda: CliRunner().invoke(app, ["mesh", "status", str(folders[0])]).exit_code == 0)
        began, took = time.monotonic(), {}
        nodes[1].files.certificate.clock = lambda: datetime.now(UTC) + timedelta(days=400)
        while len(took) < 2 and time.monotonic() - began < PATIENCE + 3 * SLACK:
            if says(clients[1].health(), "certificate: "):
                took.setdefault("health", time.monotonic() - began)
            if CliRunner().invoke(app, ["mesh", "status", str(folders[0])]).exit_code == 1:
                took.setdefault("status of the neighbour", time.monotonic() - began)
            time.sleep(0.1)
        print(f"\ncertificate expired: {took}")
        assert len(took) == 2
        assert max(took.values()) <= PATIENCE + SLACK
