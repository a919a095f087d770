"""Meshes that run, watched: services of nodes whose state is moved by hand, and at the end real processes."""

import io
import json
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from msgspec import structs, to_builtins

from conformesh import Network
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.folders import add_device, init_mesh
from conformesh.mesh.http.client import Client
from conformesh.mesh.http.replies import NodeInterface
from conformesh.mesh.http.server import Service
from conformesh.mesh.node.main import Start
from conformesh.mesh.node.online import OnlineLearning
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import DeviceStatus, Phase, SearchStatus
from conformesh.mesh.processes import DeviceProcess, _read_log
from conformesh.view import maps, mesh_watch
from conformesh.view.events import PRIVATE_FIELDS
from conformesh.view.maps import read_map
from conformesh.view.mesh_watch import MeshWatch
from conformesh.view.recording import recording_of_run
from conformesh.view.trace import Trace
from tests.mesh.nodes import calibration, short_folder
from tests.mesh.real import make_mesh, wait_for

QUICK = 0.05  # seconds between two questions
TWENTY = [pytest.mark.slow, pytest.mark.meshes]


class Mesh:
    """The folders of a chain of three, and a service in each, without a mesh behind them."""

    def __init__(self, root, stack, **more):
        self.folders = init_mesh(root, Network.chain(3), insecure=True, **more)
        self.root, self.stack = root, stack
        self.names = [folder.name for folder in self.folders]
        self.states, self.services = {}, {}
        for folder in self.folders:
            self.start(folder)

    def start(self, folder):
        config = read_device(folder)
        state = NodeState(config.name, [one.name for one in config.neighbours])
        state.set_roster(config.roster_number, 1)
        self.states[folder.name] = state
        self.services[folder.name] = self.stack.enter_context(Service(NodeInterface(state), folder))

    def __getitem__(self, row):
        return self.states[self.names[row]]


@pytest.fixture
def mesh():
    with short_folder() as folder, ExitStack() as stack:
        yield Mesh(folder / "m", stack)


@contextmanager
def watching(where, **more):
    with MeshWatch(where, every=QUICK, **more) as watch:
        yield watch


def now(watch, field, row=None):
    """What is known of a field, of one device or of all."""
    [recording] = watch.recordings()
    values = recording.known.fields.get(field, [None] * len(recording.heading.devices))
    return [*values] if row is None else values[row]


def steps(watch):
    return watch.recordings()[0].since(0)[0]


def test_the_heading_is_the_map(mesh):
    with watching(mesh.root) as watch:
        heading = watch.recordings()[0].heading
        assert (heading.devices, heading.edges) == (mesh.names, [(0, 1), (1, 2)])
        assert (heading.unit, heading.live, heading.private) == ("seconds", True, False)
        assert ("method", "e-dcp") in heading.facts


def test_what_changes_becomes_a_step_and_nothing_else_does(mesh):
    with watching(mesh.root) as watch:
        wait_for(lambda: now(watch, "phase") == ["starting"] * 3)
        before = len(steps(watch))
        mesh[1].begin_run(1)
        wait_for(lambda: now(watch, "phase", 1) == "calibrating")
        assert len(steps(watch)) == before + 1
        last = steps(watch)[-1]
        assert (last.devices["phase"].rows, last.devices["phase"].values) == ([1], ["calibrating"])
        assert last.log == [(1, "info", "calibrating, run 1")]
        mesh[0].certify(calibration(0.25))
        wait_for(lambda: now(watch, "threshold") == [0.25, None, None])
        assert now(watch, "health") == ["healthy", "unhealthy", "unhealthy"]


def test_bytes_that_arrive_flow_along_their_link(mesh):
    with watching(mesh.root) as watch:
        wait_for(lambda: now(watch, "phase") == ["starting"] * 3)
        mesh[1].count_received(mesh.names[0], size=100)
        mesh[1].count_received(mesh.names[2], size=7)
        mesh[0].count_received(mesh.names[1], size=20)

        def flows():
            return {
                link: size
                for step in steps(watch)
                if step.flow
                for link, size in zip(step.flow.links, step.flow.bytes, strict=True)
            }

        wait_for(lambda: len(flows()) == 3)
        assert flows() == {0: 100, 1: 20, 3: 7}  # 0 to 1, back, and 2 to 1


def test_a_node_that_is_gone_is_shown_and_so_is_its_return(mesh):
    with watching(mesh.root) as watch:
        mesh[2].certify(calibration(0.5))
        wait_for(lambda: now(watch, "health", 2) == "healthy")
        mesh.services[mesh.names[2]].stop()
        begun = time.monotonic()
        wait_for(lambda: now(watch, "health", 2) == "silent")
        assert time.monotonic() - begun < 2
        assert (now(watch, "phase", 2), now(watch, "threshold", 2)) == ("down", 0.5)
        assert steps(watch)[-1].log == [(2, "error", "nobody answers at its address: it is not running")]
        assert now(watch, "health")[:2] == ["unhealthy"] * 2
        mesh.start(mesh.folders[2])
        wait_for(lambda: now(watch, "phase", 2) == "starting")
        assert now(watch, "problem", 2) is None


def test_a_node_that_listens_and_never_answers_holds_up_nobody(mesh, monkeypatch):
    monkeypatch.setattr(mesh_watch, "ANSWER_TIMEOUT", 0.3)
    mesh.services[mesh.names[1]].stop()
    with socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(str(mesh.folders[1] / "node.sock"))
        frozen.listen(1024)
        with watching(mesh.root) as watch:
            wait_for(lambda: now(watch, "phase", 1) == "silent")
            assert now(watch, "problem", 1) == "it is running, and does not answer"
            mesh[0].begin_run(1)
            begun = time.monotonic()
            wait_for(lambda: now(watch, "phase", 0) == "calibrating")
            assert time.monotonic() - begun < 2


def test_an_answer_that_nobody_understands_is_said(mesh, monkeypatch):
    mesh[0].begin_run(1)
    with watching(mesh.root) as watch:
        wait_for(lambda: now(watch, "phase", 0) == "calibrating")
        status = NodeState.status
        monkeypatch.setattr(NodeState, "status", lambda own: structs.replace(status(own), certified="yes"))
        wait_for(lambda: now(watch, "health") == ["unknown"] * 3)
        assert now(watch, "problem", 0).startswith("what it answers is not understood")
        monkeypatch.undo()
        wait_for(lambda: now(watch, "health") == ["unhealthy"] * 3)


def test_a_watch_goes_on_after_a_mistake(mesh, monkeypatch, caplog):
    broken = []
    monkeypatch.setattr(mesh_watch, "byzantine_reasons", lambda _: broken.append(1) or {}[0] if len(broken) < 2 else {})
    with watching(mesh.root) as watch:
        wait_for(lambda: now(watch, "phase") == ["starting"] * 3)
    assert "the mesh cannot be watched for a moment" in caplog.text


def test_nodes_are_only_asked_what_changes_nothing(mesh, monkeypatch):
    asked = []
    exchange = Client._exchange
    monkeypatch.setattr(Client, "_exchange", lambda own, *what: asked.append(what) or exchange(own, *what))
    mesh[0].certify(calibration())
    with watching(mesh.root) as watch:
        wait_for(lambda: now(watch, "threshold", 0) == 0.75)
        watch.details(0, 0)
    assert {*asked} == {("/status", None), ("/online", None), ("/calibration", None)}


def test_details_of_a_node(mesh):
    with watching(mesh.root) as watch:
        mesh[0].certify(calibration())
        wait_for(lambda: now(watch, "threshold", 0) == 0.75)
        found = watch.details(0, 0)
        assert found["certificate"].startswith("counted: the rank was counted exactly")
        assert [one["row"] for one in found["neighbours"]] == [1]
        assert [line[1:] for line in found["log"]] == [("info", "starting, run 0"), ("info", "certified, run 0")][
            -len(found["log"]) :
        ]
        assert watch.details(0, 1)["certificate"] is None
        mesh.services[mesh.names[1]].stop()
        assert watch.details(0, 1)["facts"] == [("problem", "it does not answer")]
        json.dumps(found)


def test_another_roster_begins_another_run(mesh):
    with watching(mesh.root) as watch:
        wait_for(lambda: now(watch, "phase") == ["starting"] * 3)
        first = watch.recordings()[0]
        add_device(mesh.root, "device-3", [mesh.names[2]])
        wait_for(lambda: len(watch.recordings()[0].heading.devices) == 4)
        wait_for(lambda: now(watch, "phase") == ["starting"] * 3 + ["down"])
        assert first.result == [("ended", "roster 2 is in force")]
        before, after = watch.runs()
        assert (len(before.heading.devices), len(after.heading.devices)) == (3, 4)


def test_a_map_that_changes_while_it_is_read_is_read_again(mesh, monkeypatch):
    """A roster that comes between the folders and what they say: a device would be there that nobody ever asks."""
    folders = maps.device_folders(mesh.root)
    monkeypatch.setattr(maps, "device_folders", lambda root: folders)
    assert len(read_map(mesh.root).addresses) == 3
    add_device(mesh.root, "device-3", [mesh.names[2]])
    with pytest.raises(ValueError, match="just being changed"):
        read_map(mesh.root)


def hearsay_of(**devices):
    """What a node answers about these devices, for `Client.mesh`."""
    rows = [to_builtins(structs.replace(DeviceStatus.unknown(name, 3), **known)) for name, known in devices.items()]
    return lambda own: {"device": "a", "devices": rows, "edges": [], "links_down": []}


def test_the_folder_of_one_device_shows_the_others_by_hearsay(mesh, monkeypatch):
    known = {
        mesh.names[0]: {"health": "unhealthy", "phase": Phase.STARTING, "run": 0},  # it answers itself
        mesh.names[2]: {"health": "silent", "phase": Phase.CERTIFIED, "run": 2, "threshold": 0.5, "about": 3},
        "stranger": {"health": "healthy"},
    }
    monkeypatch.setattr(Client, "mesh", hearsay_of(**known))
    mesh[0].certify(calibration(0.5))
    with watching(mesh.folders[0]) as watch:
        wait_for(lambda: now(watch, "health") == ["healthy", "unknown", "silent"])
        assert now(watch, "threshold") == [0.5, None, 0.5]
        assert watch.details(0, 1) is None


def test_devices_of_a_mesh_that_run_on_other_machines_are_shown_by_hearsay_too(mesh, monkeypatch):
    known = {"health": "healthy", "phase": Phase.CERTIFIED, "threshold": 0.5}
    monkeypatch.setattr(Client, "mesh", hearsay_of(**{mesh.names[2]: known}))
    mesh.services[mesh.names[2]].stop()
    mesh[1].begin_run(1)
    with watching(mesh.root) as watch:
        wait_for(lambda: now(watch, "health") == ["unhealthy", "unhealthy", "healthy"])
        mesh.services[mesh.names[1]].stop()  # it has answered here: what others have heard is older
        wait_for(lambda: now(watch, "health", 1) == "silent")


def test_the_bracket_of_who_runs_is_noted_once(mesh, monkeypatch):
    search = SearchStatus(low=0.25, high="inf", below=3, estimate=0.5)
    status = NodeState.status
    monkeypatch.setattr(NodeState, "status", lambda own: structs.replace(status(own), search=search))
    with watching(mesh.root) as watch:
        wait_for(lambda: now(watch, "phase") == ["starting"] * 3)
        mesh[1].begin_run(1)
        wait_for(lambda: now(watch, "phase", 1) == "calibrating")
        mesh[1].set_round(2)
        wait_for(lambda: now(watch, "round", 1) == 2)
        assert [step.bracket for step in steps(watch) if step.bracket] == [(0.25, "inf", 3, None)]


def test_a_node_without_a_folder_tells_of_itself_and_its_neighbours(mesh):
    (mesh.folders[1] / "device.toml").unlink()
    with watching(mesh.folders[1] / "node.sock") as watch:
        heading = watch.recordings()[0].heading
        assert heading.devices[0] == mesh.names[1]
        assert sorted(heading.devices) == mesh.names
        wait_for(lambda: now(watch, "phase", 0) == "starting")
        assert now(watch, "health") == ["unhealthy", "unknown", "unknown"]


def test_nothing_of_single_devices_of_a_private_mesh(mesh, monkeypatch):
    monkeypatch.setattr(mesh_watch, "read_map", lambda *given: replace(read_map(*given), private=True))
    mesh[0].certify(calibration())
    with watching(mesh.root) as watch:
        wait_for(lambda: now(watch, "health", 0) == "healthy")
        assert {"threshold", "kind", "about", "heard"}.isdisjoint(watch.recordings()[0].known.fields)
        assert watch.recordings()[0].heading.private


@pytest.mark.parametrize("what", ["nothing.json", "127.0.0.1:1"])
def test_what_is_no_mesh_is_said_in_words(tmp_path, what, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"no node answers at .*; a view is of trace files, the folder of a mesh"):
        MeshWatch(what)
    with pytest.raises(ValueError, match="--http goes with the folder of one device"):
        MeshWatch(tmp_path, http="127.0.0.1:1")


def process(name, log="", result=None, code=None):
    """A process that was started here, which ends when its code is there."""
    own = SimpleNamespace(stderr=io.StringIO(log), code=code)
    own.poll = lambda: own.code
    one = DeviceProcess(name, own, result=result)
    _read_log(one)
    return one


def test_processes_that_were_started_here_are_known_at_once(mesh):
    for service in mesh.services.values():
        service.stop()
    result = {"device": mesh.names[0], "run": 1, "roster": mesh.names, "lost": [], **calibration(0.5).to_dict()}
    line = json.dumps({"level": "warning", "message": "a frame was refused", "round": 2})
    started = [
        process(mesh.names[0], result=result),
        process(mesh.names[1], "error: no link\n"),
        process(mesh.names[2], line + "\n"),
    ]
    with watching(mesh.root) as watch:
        watch.follow_processes(started)
        wait_for(lambda: now(watch, "phase") == ["starting"] * 3)  # and not down
        assert [entry for step in steps(watch) for entry in step.log] == [(2, "warning", "a frame was refused")]
        started[0].process.code, started[1].process.code = 0, 1
        wait_for(lambda: now(watch, "phase")[:2] == ["certified", "failed"])
        assert now(watch, "threshold") == [0.5, None, None]
        assert now(watch, "problem", 1) == "no link"
        assert watch.details(0, 0) is None
        watch.end([("threshold", "0.5")])
        assert watch.runs()[0].result == [("threshold", "0.5")]


def test_a_recorded_mesh_is_a_trace(mesh, tmp_path):
    with watching(mesh.root) as watch:
        mesh[0].certify(calibration(float("inf")))
        wait_for(lambda: now(watch, "threshold", 0) == "inf")
        Trace.of(watch.runs()).save(tmp_path / "t.json.gz")
    again = recording_of_run(Trace.load(tmp_path / "t.json.gz").runs[0])
    assert again.known.fields == watch.recordings()[0].known.fields
    assert (again.heading.live, again.result) == (False, [])


# --- nodes that learn online -----------------------------------------------------------------------------------------


@pytest.fixture
def learning(monkeypatch):
    """Three devices, of which the first two learn; the disk is quick."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    with short_folder() as root, ExitStack() as stack:
        found = Mesh(root / "m", stack, learning=0.05, local=0.05, bound=1.0)
        found.learners = []
        for folder in found.folders[:2]:
            found.services[folder.name].stop()
            learner = OnlineLearning(read_device(folder), found.states[folder.name])
            learner.open()
            stack.callback(learner.close)
            found.services[folder.name] = stack.enter_context(
                Service(NodeInterface(found.states[folder.name], online=learner), folder)
            )
            found.learners.append(learner)
        yield found


def test_what_nodes_learn_is_shown(learning):
    one, two = learning.learners
    learning[0].certify(calibration(0.75))
    with watching(learning.root) as watch:
        for number in range(300):
            judged = one.observe(0.95 if number % 5 == 0 else 0.05)
        two.merge_counters(one._observations.counters.encode(one.rule))
        assert not judged.repeated
        wait_for(lambda: now(watch, "labels") == [300, 0, None])
        told = to_builtins(one.status())
        assert now(watch, "misses", 0) == told["device"]["misses"]
        assert now(watch, "threshold", 0) == told["threshold"] != now(watch, "certified", 0)
        assert now(watch, "certified", 0) == 0.75
        assert now(watch, "within", 0) == pytest.approx(told["device"]["within"], abs=1e-4)
        assert told["device"]["within"] <= now(watch, "within", 0) < 0.9
        known = watch.recordings()[0].known
        assert (known.everybody.labels, known.everybody.alpha) == (300, 0.1)
        assert known.everybody.within == pytest.approx([0.9 - told["everybody"]["within"], 1.0], abs=1e-9) or (
            known.everybody.within[0] == pytest.approx(0.9 - told["everybody"]["within"])
        )
        facts = dict(watch.details(0, 0)["facts"])
        assert facts["misses"] == told["device"]["words"]
        assert now(watch, "labels", 2) is None  # it does not learn


def test_who_has_no_node_here_is_counted_by_who_has_heard_of_it(learning):
    one, two = learning.learners
    for _ in range(10):
        two.observe(0.2)
    one.merge_counters(two._observations.counters.encode(two.rule))
    learning.services[learning.names[1]].stop()
    with watching(learning.root) as watch:
        wait_for(lambda: now(watch, "labels")[:2] == [0, 10])
        assert now(watch, "within", 1) is None


def test_a_node_that_does_not_learn_is_seldom_asked(learning, monkeypatch):
    asked = []
    told = Client.online
    monkeypatch.setattr(Client, "online", lambda own: asked.append(str(own)) or told(own))
    with watching(learning.root) as watch:
        wait_for(lambda: sum(learning.names[0] in one for one in asked) > 5)
        assert sum(learning.names[2] in one for one in asked) == 1
        assert watch.recordings()[0].known.everybody.labels == 0


def test_what_a_node_says_of_its_learning_may_be_anything(learning, monkeypatch):
    with watching(learning.root) as watch:
        wait_for(lambda: now(watch, "labels", 0) == 0)
        monkeypatch.setattr(Client, "online", lambda own: {"device": "yes"})
        wait_for(lambda: now(watch, "health", 0) == "unknown")
        assert now(watch, "problem", 0).startswith("what it answers is not understood")


def test_nothing_of_what_a_private_mesh_learns(learning, monkeypatch):
    monkeypatch.setattr(mesh_watch, "read_map", lambda *given: replace(read_map(*given), private=True))
    learning.learners[0].observe(0.2)
    with watching(learning.root) as watch:
        wait_for(lambda: watch._devices[learning.names[0]].learnt is not None)
        wait_for(lambda: len(steps(watch)) > 0)
        known = watch.recordings()[0].known
        assert PRIVATE_FIELDS.isdisjoint(known.fields)
        assert known.everybody is None


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.fixture
def real(request):
    """Nodes that stay up, each a process; ended by their numbers, whatever happens."""
    pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
    with short_folder() as root:
        folders, thresholds = make_mesh(root / "m", Network.cycle(request.param), insecure=True)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes = [subprocess.Popen(Start(str(folder)).command(), **quiet) for folder in folders]
        try:
            yield root / "m", thresholds, processes
        finally:
            for one in processes:
                one.kill()
            for one in processes:
                one.wait()


@pytest.mark.xdist_group("nodes")
@pytest.mark.parametrize("real", [3, pytest.param(20, marks=TWENTY)], indirect=True)
def test_a_killed_node_is_shown_within_two_seconds(real):
    root, thresholds, processes = real
    with MeshWatch(root) as watch:
        wait_for(lambda: now(watch, "phase") == ["certified"] * len(processes), 120)
        assert now(watch, "threshold") == thresholds
        assert now(watch, "about") == ["everybody"] * len(processes)
        assert any(step.flow for step in steps(watch))
        begun = time.monotonic()
        os.kill(processes[1].pid, signal.SIGKILL)
        wait_for(lambda: now(watch, "health", 1) == "silent")
        took = time.monotonic() - begun
        print(f"a killed node of {len(processes)} was shown after {took:.3f} s")
        assert took < 2
        assert now(watch, "health").count("healthy") == len(processes) - 1


def test_threads_of_a_watch_end_with_it(mesh):
    with watching(mesh.root) as watch:
        wait_for(lambda: now(watch, "phase") == ["starting"] * 3)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("view-watch")]
    watch.stop()
