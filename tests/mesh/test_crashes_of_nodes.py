"""Nodes are killed at every write: a run has one threshold, files are readable, and those that start again agree.

The loopback engine plays the network; journals, rosters and results are the real files. A kill raises what nothing
handles, and the next start knows only the folder. Scores change with every second start: a node that forgot what it
had said would say something else, and two thresholds of one run would differ.
"""

import ast
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from conformesh import Network
from conformesh.files import atomic_writes
from conformesh.files.atomic_writes import FAILPOINT, KILLED
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.folders import init_mesh, revoke_device
from conformesh.mesh.config.roster import read_roster_file
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node import membership, result_store
from conformesh.mesh.node.membership import NodeRoster
from conformesh.mesh.node.online import OnlineLearning
from conformesh.mesh.node.run_request import RunRequests
from conformesh.peer.device import Device
from conformesh.peer.interface import PeerSetup
from conformesh.peer.journal import FileJournal
from conformesh.peer.loopback import Cut, LinkFaults, run_loopback
from conformesh.peer.memory import RunJournal
from conformesh.privacy.account import Account, PrivacyRefused, read_account
from tests.mesh.crashes import APPEND, CUT, WRITE, at_failpoints, passed
from tests.mesh.folder_world import FolderWorld, Handed, Killed, Template, copy_folders, play_kills
from tests.mesh.meshes import config
from tests.mesh.nodes import short_folder, state
from tests.mesh.real import drawn_scores, make_mesh, simulated, wait_for, write_scores
from tests.peer.changing import TwoResultsError
from tests.peer.devices import in_device

MODES = {
    "rounds, continue": {"on_lost": "continue"},
    "rounds, fail": {"on_lost": "fail"},
    "asynchronous": {"mode": "asynchronous"},
}
WHOLE_FILES = ("journal.bin", "result.json", "roster.json", "roster.state")
POINTS = {f"{file}/{step}" for file in WHOLE_FILES for step in WRITE}
POINTS |= {f"journal.bin/{step}" for step in (*APPEND, *CUT)}


@pytest.fixture(autouse=True)
def _no_flush(monkeypatch):
    """A killed process leaves what it wrote to the system, flushed or not: flushing here only takes time."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    return {
        name: Template(tmp_path_factory.mktemp("mesh"), patience=1.0, **settings) for name, settings in MODES.items()
    }


def kills_of(template, root, seed, **more):
    """Play a schedule; return where nodes were killed, after making sure that all have agreed in the end."""
    world = play_kills(template, root, seed, **more)
    roster, _ = world.agreed() or (None, None)
    assert roster == (3 if seed % 2 else 1)
    assert world.certified
    return world.kills


@pytest.mark.parametrize("mode", MODES)
def test_nodes_that_are_killed_agree_on_one_threshold(templates, tmp_path, mode):
    assert sum(len(kills_of(templates[mode], tmp_path / "m", seed)) for seed in range(2)) >= 15


@pytest.mark.slow
def test_a_thousand_kills_of_nodes(templates, tmp_path):
    killed = Counter()
    for seed, mode in enumerate(itertools.islice(itertools.cycle(MODES), 90)):
        killed.update(kills_of(templates[mode], tmp_path / "m", 1000 + seed))
    for file, seed in itertools.product(("result.json", "roster.json"), range(2001, 2021, 2)):  # seldom written
        killed.update(kills_of(templates["rounds, continue"], tmp_path / "m", seed, only=file, between=(1, 9)))
    assert sum(killed.values()) >= 1000
    assert {*killed} == POINTS
    print(f"{sum(killed.values())} kills of nodes, at least {min(killed.values())} at each of {len(killed)} failpoints")


# --- bugs on purpose --------------------------------------------------------------------------------------------------


@in_device("run_journal")
class SpeaksBeforeItWrites(RunJournal):
    """That a run has begun is written down with the first round that was heard, after this device has spoken in it."""

    _heading = None

    def begin(self, heading):
        self._heading = heading

    def write_round(self, messages):
        if self._heading is not None:
            super().begin(self._heading)
            self._heading = None
        super().write_round(messages)


@in_device("run_journal")
class ForgetsItsRun(RunJournal):
    def begin(self, heading):
        pass

    def write_round(self, messages):
        pass

    def end(self, last):
        pass


def overwrite(path, content, mode=0o600):
    """Write a file in place."""
    with open(path, "wb", buffering=0) as out:
        data = content.encode() if isinstance(content, str) else content
        out.write(data[: len(data) // 2])
        atomic_writes.failpoint(f"{path.name}/torn")
        out.write(data[len(data) // 2 :])


def notices(template, root, seeds, **more):
    """Whether one of the schedules goes wrong in any way."""
    for seed in seeds:
        try:
            kills_of(template, root, seed, **more)
        except (AssertionError, ValueError):
            return True
    return False


@pytest.mark.parametrize("bug", [SpeaksBeforeItWrites, ForgetsItsRun])
def test_kills_notice_what_a_device_does_not_write_down(templates, tmp_path, bug):
    where = {"only": "roster.state/done" if bug is ForgetsItsRun else "journal.bin/begin", "between": (1, 4)}
    assert notices(templates["rounds, continue"], tmp_path / "m", range(40), device=bug, **where)
    assert not notices(templates["rounds, continue"], tmp_path / "m", range(2), device=Device, **where)


@pytest.mark.parametrize(("module", "file"), [(result_store, "result.json"), (membership, "roster")])
def test_kills_notice_files_that_are_written_in_place(templates, tmp_path, monkeypatch, module, file):
    where = {"only": f"{file}", "between": (1, 8)}
    assert not notices(templates["rounds, continue"], tmp_path / "m", range(2), **where)
    monkeypatch.setattr(module, "write_file", overwrite)
    assert notices(templates["rounds, continue"], tmp_path / "m", range(20), **where)


# --- two rosters with one number --------------------------------------------------------------------------------------


def test_two_rosters_with_one_number_lead_to_two_thresholds_of_one_run(tmp_path):
    """What a crash of the authority led to, made by hand: the reason why it must never sign one number twice.

    While two parts cannot hear each other, each moves to a roster 2 of its own and certifies a threshold of run 2.
    """
    template = Template(tmp_path / "template", patience=1.0, on_lost="continue")
    other = tmp_path / "other"
    shutil.copytree(template.root / "folders", other, ignore=shutil.ignore_patterns("late"))
    revoke_device(other, "device-00")
    second = Handed((other / "roster.json").read_bytes())
    assert (read_roster_file(other).roster.number, len(second.devices), len(template.second.devices)) == (2, 3, 5)
    hand = [(0.5, name, template.second) for name in ("device-00", "device-01")]
    hand += [(0.5, name, second) for name in ("device-02", "device-03")]
    faults = LinkFaults(cuts=(Cut(0.4, 30.0, frozenset({0, 1, 4})),))
    root = copy_folders(template, tmp_path / "m")
    with pytest.raises(TwoResultsError, match=r"run \d under roster 2"):
        FolderWorld(template, root, np.random.default_rng(26), hand, faults, only="nowhere").run()


def test_devices_that_meet_under_two_rosters_with_one_number_say_so():
    """They never calculate together, and the words name the way out."""

    def start(k, journal):
        agreement = {"roster": f"2, {'ab' * 8 if k else 'cd' * 8}"}
        return Device(PeerSetup(k, Network.chain(2), agreement, lambda net, row: iter(()), journal))

    ended = run_loopback(Network.chain(2), start, LinkFaults(), np.random.default_rng(0)).devices
    for device in ended:
        assert device.phase == "failed"
        words = "there are two rosters with number 2; have the authority sign a newer one, and hand it out"
        assert words in str(device.error)


# --- what else a node writes ------------------------------------------------------------------------------------------


def test_a_refused_roster_is_put_aside_whenever_a_node_is_killed(tmp_path):
    """A folder without a roster could not start: at no moment is there none."""
    init_mesh(tmp_path / "m", Network.chain(2), insecure=True)
    folder = tmp_path / "m" / "device-00"
    good = (folder / "roster.json").read_bytes()

    def look():
        members = NodeRoster(read_device(folder))
        (folder / "roster.json").write_text("half of a ros")
        members.look(1.0)
        members.look(2.0)

    names = passed(look)
    assert {f"roster.refused.json/{step}" for step in WRITE} <= {*names}
    for number in range(1, 1 + len(names)):
        with pytest.raises(Killed), at_failpoints(killing(number)):
            look()
        assert (folder / "roster.json").read_bytes() in (good, b"half of a ros")
        (folder / "roster.json").write_bytes(good)


def killing(number):
    """Return what kills at the failpoint of this number."""
    left = iter(range(number - 1, -1, -1))

    def visit(name):
        if next(left) == 0:
            raise Killed

    return visit


def test_no_label_that_was_acknowledged_is_lost_and_none_is_counted_twice(monkeypatch):
    learning = {"learning": 0.1, "local": 0.05, "bound": 1.0}
    hit = set()
    with short_folder() as folder:

        def opened():
            found = OnlineLearning(config(folder=folder, online=learning), state(certified=False))
            found.open()
            return found

        acknowledged = 0
        for number in range(1, 41):
            node = None
            visit = killing(number)
            try:
                with at_failpoints(lambda name, visit=visit: (hit.add(name), visit(name))):
                    node = opened()
                    for _ in range(20):
                        node.observe(0.5)
                        acknowledged += 1
            except Killed:
                pass
            if node is not None:
                node._close_journal()
            with at_failpoints(hit.add):
                again = opened()
            counted = again.status().device.steps
            assert counted in (acknowledged, acknowledged + 1)  # one may have been on the disk and not acknowledged
            acknowledged = counted
            again._close_journal()
    assert {f"online.bin/{step}" for step in (*WRITE, *APPEND, "append synced", *CUT)} <= hit


def test_a_charge_of_the_account_is_whole_wherever_a_node_is_killed(tmp_path):
    for number in range(1, 1 + len(WRITE)):
        path = tmp_path / f"{number}.json"
        Account(path, releases=2).charge(1, "abc", b"one")
        with pytest.raises(Killed), at_failpoints(killing(number)):
            Account(path, releases=2).charge(1, "abc", b"two")
        charged = number > WRITE.index("renamed")
        assert read_account(path).releases(1) == 1 + charged
        if charged:  # before the kill or after it: never more than agreed on
            with pytest.raises(PrivacyRefused):
                Account(path, releases=2).charge(1, "abc", b"three")


def test_a_requested_run_is_whole_wherever_a_node_is_killed(tmp_path):
    for number, step in enumerate(WRITE, 1):
        RunRequests(tmp_path).ask(2 * number)
        with pytest.raises(Killed), at_failpoints(killing(number)):
            RunRequests(tmp_path).ask(2 * number + 1)
        assert RunRequests(tmp_path).run == 2 * number + (step in ("renamed", "done"))


def test_a_draft_that_a_crash_has_left_is_removed(tmp_path):
    journal = FileJournal(tmp_path / "journal.bin")
    with pytest.raises(Killed), at_failpoints(killing(4)):
        journal.begin(b"secret")
    assert len([*tmp_path.iterdir()]) == 2
    journal.close()
    FileJournal(tmp_path / "journal.bin").close()
    assert [path.name for path in tmp_path.iterdir()] == ["journal.bin"]


# --- real processes ---------------------------------------------------------------------------------------------------

REAL = [f"{file}/{step}:1" for file in ("roster.state", "journal.bin", "result.json") for step in WRITE]
REAL += [f"journal.bin/{step}:{count}" for count in (1, 2, 3) for step in APPEND]
REAL += [f"journal.bin/{step}:1" for step in ("torn append", "before cut", "cut")]  # what is torn is cut off


@pytest.mark.slow
def test_thirty_kills_of_a_real_node():
    """Two nodes stay up, the third is killed and started again, with other scores every time, over real links."""
    pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
    held = drawn_scores(3, low=20)
    told = {}
    with short_folder() as root:
        folders, _ = make_mesh(root / "m", Network.complete(3), scores=held, patience=60.0)

        def certified(folder):
            """What a node says that it has; one run has one threshold, whoever says it and whenever."""
            try:
                made = Client(folder).status()["certified"]
            except NodeError:
                return None
            if made is not None and made["final"]:
                key = made["roster_number"], made["run"]
                assert told.setdefault(key, made["threshold"]) == made["threshold"], key
            return made

        def start(folder, failpoint=""):
            command = [sys.executable, "-m", "conformesh", "node", str(folder)]
            env = {**os.environ, FAILPOINT: failpoint}
            with (folder / "node.log").open("ab") as log:
                return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=log)

        processes = [start(folder) for folder in folders[:2]]
        try:
            for number, failpoint in enumerate(REAL):
                write_scores(folders[2], held[2] + number)
                victim = start(folders[2], failpoint)
                processes.append(victim)
                assert victim.wait(timeout=90) == KILLED, failpoint
                for folder in folders[:2]:
                    certified(folder)
            processes.append(start(folders[2]))

            def all_agree():
                found = [certified(folder) for folder in folders]
                runs = {None if one is None or one["restored"] else one["run"] for one in found}
                return len(runs) == 1 and None not in runs

            wait_for(all_agree, 90)
            last = [*held[:2], held[2] + len(REAL) - 1]
            assert {float(certified(folder)["threshold"]) for folder in folders} == {*simulated(folders[0], last)}
        finally:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                process.wait(timeout=30)
    assert len(REAL) == 30


# --- by construction --------------------------------------------------------------------------------------------------

WRITES = {"write_text", "write_bytes", "rename", "truncate", "ftruncate"}
ALLOWED = {
    ("mesh/node/disk_watch.py", "os.write"),  # whether there is space: deleted at once
    ("mesh/folder_lock.py", "os.ftruncate"),  # the number of a process, for an error message
    ("mesh/folder_lock.py", "os.write"),
    ("mesh/node/online.py", "os.truncate"),  # after a write that failed, which a crash would leave as it is
}


def test_nodes_and_authority_write_through_functions_with_failpoints_alone():
    """A write outside of `files.atomic_writes` has no failpoint, so no test would show that it recovers."""
    source = Path(atomic_writes.__file__).parents[1]
    found = set()
    for path in itertools.chain.from_iterable((source / room).rglob("*.py") for room in ("mesh", "peer", "privacy")):
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called.rpartition(".")[2] in WRITES or called in ("os.write", "os.replace", "open"):
                found.add((path.relative_to(source).as_posix(), called))
    assert found == ALLOWED
