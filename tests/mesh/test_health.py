"""Health: what a node says about itself, from the state alone. `test_faults.py` has the same on real nodes."""

import errno
import json
import os
import time
from dataclasses import replace

import pytest
from msgspec import to_builtins

from conformesh import Network
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.node.disk_watch import write_disk_probe
from conformesh.mesh.node.health import judge_health
from conformesh.mesh.node.heartbeat import share_status
from conformesh.mesh.node.heartbeat_table import StatusTable
from conformesh.mesh.node.node import Node
from conformesh.mesh.node.run_request import REQUEST_FILE, RunRequests
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import Gathering, Phase, Trouble
from tests.mesh.nodes import Clock, calibration, numbers, serving
from tests.mesh.nodes import ask as ask_service
from tests.mesh.real import make_mesh

PATIENCE = 30.0


@pytest.fixture
def clock():
    return Clock()


def made(clock, heartbeat=1.0):
    """A node with neighbours b and c that has a certified threshold."""
    node = NodeState(
        "a", ("b", "c"), patience=PATIENCE, heartbeat=heartbeat, clock=lambda: clock.now, wall=lambda: clock.wall
    )
    node.begin_run(3)
    node.certify(calibration())
    return node


def health(node):
    return judge_health(node.status())


def test_attempts_that_fail_again_and_again_never_look_healthy(clock):
    """A neighbour is dead for good: each attempt waits for the patience, fails, and is followed by the next at once.

    Sampled once a second for 300 s, as the audit did; it found 300 of 304 samples healthy.
    """
    node = made(clock)
    node.request_run()
    samples = []
    for run in range(4, 14):
        node.begin_run(run)
        node.enter_phase(Phase.WAITING)
        for _ in range(int(PATIENCE)):
            clock.pass_by(1.0)
            node.note_heartbeat("c", 1.0)
            samples.append(health(node).healthy)
        node.fail("b has not said hello within 30 s", "lost")
    assert samples[: int(PATIENCE)] == [True] * int(PATIENCE)  # in progress, within its patience
    assert not any(samples[int(PATIENCE) :])
    found = health(node)
    assert found.codes == ["lost"]
    assert found.links_down == ["b"]
    assert "the last calibration failed: b has not said hello within 30 s" in found.words
    assert "no message from {b}: the device or the link to it is down" in found.words
    node.note_heartbeat("b", 1.0)
    node.certify(calibration(), run=14)
    assert health(node) == (True, [], [], [])


def test_the_patience_counts_from_the_request_and_not_from_the_last_attempt(clock):
    """Greetings that begin anew before they fail, as under on_lost = "continue", do not begin a new patience."""
    node = made(clock)
    node.request_run()
    for run in range(4, 8):
        node.begin_run(run)
        clock.pass_by(PATIENCE / 2 + 1)
        node.enter_phase(Phase.WAITING)
    found = health(node)
    assert (found.healthy, found.codes) == (False, ["overdue"])
    assert "a run was requested 64 s ago and has not advanced for 30 s" in found.words


def test_a_long_run_that_advances_is_healthy_and_one_that_repeats_itself_is_not(clock):
    node = made(clock)
    node.begin_run(4)
    for number in range(1, 10):
        clock.pass_by(PATIENCE - 1)
        node.note_progress(number)
        assert health(node).healthy
    for number in (1, 2, 9):  # it has started over, and comes no further
        clock.pass_by(PATIENCE / 2)
        node.note_progress(number)
    assert health(node).codes == ["overdue"]


def test_an_asynchronous_run_that_hears_nothing_more_is_unhealthy_and_names_who_is_missing(clock):
    node = made(clock)
    node.begin_run(4)
    node.set_gathering(Gathering(["a", "c"], 3, ["b"], {}, {}, []))
    node.note_progress(2)
    node.certify(calibration(), run=4, final=False)  # a partial threshold does not end the run
    clock.pass_by(PATIENCE)
    assert health(node).healthy
    clock.pass_by(1.0)
    found = health(node)
    assert found.codes == ["overdue"]
    assert any("no report in this run from {b}" in words for words in found.words)
    node.certify(calibration(), run=4)
    node.note_heartbeat("b", 1.0)
    node.note_heartbeat("c", 1.0)
    assert health(node).healthy


def test_a_node_that_starts_again_must_succeed_within_its_patience(clock):
    """The threshold from before the start is served, and is not enough."""
    node = NodeState("a", ("b",), patience=PATIENCE, clock=lambda: clock.now)
    node.request_run()
    node.restore(replace(made(clock).certified, restored=True))
    assert health(node).healthy
    clock.pass_by(PATIENCE + 1)
    assert health(node).codes == ["overdue"]


@pytest.mark.parametrize("heartbeat", [0.0, 1.0, 20.0])
def test_a_link_is_down_after_the_patience_or_three_heartbeats(clock, heartbeat):
    """Without heartbeats silence means nothing, unless a run is requested."""
    node, limit = made(clock, heartbeat), max(PATIENCE, 3 * heartbeat)
    if not heartbeat:
        clock.pass_by(1000.0)
        assert health(node).links_down == []
        node.request_run()
    clock.pass_by(limit)
    assert health(node).links_down == []
    node.count_received("c", size=10)
    clock.pass_by(1.0)
    found = health(node)
    assert found.links_down == ["b"]
    assert found.healthy is bool(heartbeat)  # by itself a link makes no node unhealthy
    with serving(node) as service:
        metrics = numbers(ask_service(service, "GET", "/metrics")[2])
        assert metrics['conformesh_link_up{neighbour="b"}'] == 0
        assert metrics['conformesh_link_up{neighbour="c"}'] == 1
        status = json.loads(ask_service(service, "GET", "/status")[2])
        assert [status["neighbours"][name]["up"] for name in "bc"] == [False, True]
        assert json.loads(ask_service(service, "GET", "/health")[2])["links_down"] == ["b"]


def test_a_neighbour_is_judged_by_the_interval_of_its_own_heartbeats(clock):
    node = made(clock)
    interval = 2 * PATIENCE
    for _ in range(3):
        node.note_heartbeat("b", interval)
        node.note_heartbeat("c", interval)
        clock.pass_by(interval)
        assert health(node).links_down == []
    node.note_heartbeat("c", 1.0)  # it was started again with another interval
    clock.pass_by(PATIENCE + 1)
    assert health(node).links_down == ["c"]
    clock.pass_by(3 * interval)
    assert health(node).links_down == ["b", "c"]


def test_a_neighbour_without_heartbeats_is_judged_by_runs_only(clock):
    """Also one that was started again without them."""
    node = made(clock)
    node.note_heartbeat("c", 1.0)
    clock.pass_by(PATIENCE + 1)
    node.count_received("b", size=10)
    node.count_received("c", size=10)
    clock.pass_by(100 * PATIENCE)
    assert health(node).links_down == []
    node.request_run()
    clock.pass_by(PATIENCE + 1)
    node.count_received("c", size=10)
    assert health(node).links_down == ["b"]


def test_a_refusal_for_the_sake_of_privacy_says_its_reason(clock):
    node = made(clock)
    node.begin_run(4)
    node.fail("the privacy budget of 3 is spent", "privacy")
    node.begin_run(5)
    found = health(node)
    assert found.codes == ["privacy"]
    assert found.words == ["the last calibration failed: the privacy budget of 3 is spent"]


# --- disks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path):
    folders, _ = make_mesh(tmp_path / "m", Network.chain(2), insecure=True)
    return Node(read_device(folders[0]))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_takes_nothing_is_noticed_without_a_run(node, monkeypatch, code):
    node.state.certify(calibration())

    def refuse(path):
        raise OSError(code, "no")

    node.files.look(at_once=True)
    assert health(node.state).healthy
    monkeypatch.setattr("conformesh.mesh.node.disk_watch.write_disk_probe", refuse)
    node.files.disk._due = 0.0
    node.files.look(at_once=True)
    found = health(node.state)
    assert found.codes == ["disk"]
    assert found.words[0].startswith(f"disk: {node.config.folder} cannot be written: ")
    monkeypatch.undo()
    node.files.disk._due = 0.0
    node.files.look(at_once=True)
    assert health(node.state).healthy
    assert not (node.config.folder / ".disk-probe.tmp").exists()


def test_a_probe_that_cannot_be_closed_is_deleted(tmp_path, monkeypatch):
    """A file server may say only then that its disk is full."""
    close = os.close

    def refuse(handle):
        close(handle)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", refuse)
        with pytest.raises(OSError, match="No space left"):
            write_disk_probe(tmp_path / "probe")
    assert not [*tmp_path.iterdir()]


def test_health_is_judged_by_the_patience_that_was_reloaded(node):
    toml = node.config.folder / "device.toml"
    before = node.config.timing.patience
    toml.write_text(toml.read_text().replace(f"patience = {before}", "patience = 300.0"))
    node.reload()
    node.files.look(at_once=True)
    node.state.request_run()
    assert node.config.timing.patience == 300.0 != before
    assert to_builtins(node.state.status())["request"]["patience"] == 300.0 + node.config.peer_settings.linger


def test_the_interval_of_a_neighbour_is_read_from_its_heartbeat(node):
    own, other = node.config.devices
    sender = StatusTable(other, 300.0, 1)
    sender.set_roster(node.config.devices, [own], node.config.roster_number)
    data = sender.encode_if_due(share_status(NodeState(other).status(), 300.0), 0.0)

    class Links:
        def receive_side_messages(self, kind):
            return [(other, data, time.monotonic())]

        def send_side_message(self, kind, data):
            pass

    node.heartbeat._exchange(Links())
    assert node.state._neighbours.entries[other].interval == 300.0


def test_a_threshold_that_cannot_be_written_is_written_later(node, monkeypatch):
    """Until then the node is unhealthy: after a restart it would serve an older threshold."""
    made = node.state.certify(calibration())

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("conformesh.mesh.node.result_store.write_file", refuse)
        node.files.save(made)
        node.files.disk._due = 0.0
        node.files.look(at_once=True)
        assert health(node.state).codes == ["disk"]
        assert not node.files.store.path.exists()
    node.files.disk._due = 0.0
    node.files.look(at_once=True)
    assert node.files.store.path.exists()
    assert Trouble.DISK.value not in to_builtins(node.state.status())["troubles"]


# --- requests that outlast the process --------------------------------------------------------------------------------


def test_a_start_removes_the_drafts_of_processes_that_were_killed(node, monkeypatch):
    """Programs that do not hold the lock write scores and rosters too: their drafts stay while they are young."""
    folder = node.config.folder
    names = ["result.json", "recalibrate.json", "roster.state", "roster.refused.json", "roster.json", "scores.csv"]
    for name in names:
        (folder / f".{name}.1.tmp").write_text("{")
        (folder / f".{name}.2.tmp").write_text("{")
        os.utime(folder / f".{name}.2.tmp", (1e9, 1e9))
    (folder / ".other.1.tmp").write_text("{")

    def end():
        raise RuntimeError("far enough")

    monkeypatch.setattr(node.files.members, "verify", end)
    with pytest.raises(RuntimeError, match="far enough"):
        node.run()
    left = {path.name for path in folder.glob(".*.tmp")}
    assert left == {".roster.json.1.tmp", ".scores.csv.1.tmp", ".other.1.tmp"}


def test_a_request_is_on_the_disk_until_a_run_has_met_it(tmp_path):
    pending = RunRequests(tmp_path)
    assert pending.run == 0
    pending.ask(5)
    pending.ask(4)  # an earlier run cannot meet it
    assert RunRequests(tmp_path).run == 5
    pending.meet(4)
    assert RunRequests(tmp_path).run == pending.run == 5
    pending.meet(5)
    assert (pending.run, (tmp_path / REQUEST_FILE).exists()) == (0, False)


def test_numbers_that_begin_anew_do_not_keep_a_request_for_ever(tmp_path):
    """A device that has lost its journal is in run 1 again."""
    RunRequests(tmp_path).ask(40)
    pending = RunRequests(tmp_path)
    pending.pass_on(1, met_by=2)
    pending.meet(2)
    assert (pending.run, (tmp_path / REQUEST_FILE).exists()) == (0, False)


def test_a_request_that_cannot_be_stored_is_not_accepted(node, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("conformesh.mesh.node.run_request.write_file", refuse)
    with pytest.raises(OSError, match="No space"):
        node.driver.recalibrate()
    assert not node.requests.is_new
    assert node.requests.run == 0
