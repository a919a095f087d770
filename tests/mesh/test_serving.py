"""Devices that stay up: they certify, calibrate again when asked or when scores change, and stop cleanly."""

import gzip
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec import to_builtins

from conformesh import Network
from conformesh.cli import app
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.file_watch import CertificateWatch, ScoreWatch
from conformesh.mesh.node.node import Node
from conformesh.mesh.node.result_store import ResultStore
from conformesh.mesh.node.status import Phase
from conformesh.peer.frames import EMPTY_FRAME_SIZE
from conformesh.peer.settings import PeerError
from tests.mesh.nodes import numbers, short_folder, threshold_in
from tests.mesh.real import drawn_scores, finish, long_ago, make_mesh, simulated, start, wait_for, write_scores

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")
from conformesh.mesh.config.folders import renew_device


@contextmanager
def staying_up(folder, clock=None):
    """A node in a thread of its own; what ends it early is raised here."""
    node, ended = Node(read_device(folder)), []
    if clock is not None:
        node.files.certificate.clock = clock

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


class Quiet:
    """Links on which nothing arrives."""

    def receive(self, timeout):
        threading.Event().wait(min(timeout, 0.2))
        return ()


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
                assert EMPTY_FRAME_SIZE * heard["frames_received"] <= heard["bytes_received"] <= other["sent"]["bytes"]
                assert 0 <= heard["last_heard_seconds_ago"] < 30
                assert own["sent"]["frames"] > own["round"]
            received = 'conformesh_frames_received_total{neighbour="device-01"}'
            assert numbers(clients[0].metrics())[received] >= _frames(shown[0])

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

        kept = [ResultStore(read_device(folder)).load() for folder in folders]
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


HALF = "score\n0.5\nabc"


def spoil(folder, trouble):
    """Make a device's scores unreadable, as a writer in the middle of its work does."""
    path = folder / "scores.csv"
    path.unlink()
    if trouble != "missing":
        path.write_text(HALF)
        long_ago(path)


def shows_trouble(client):
    """Whether a node is up, unhealthy because of its scores, and says so everywhere."""
    try:
        health, status, metrics = client.health(), client.status(), client.metrics()
    except NodeError:
        return False
    said = any(reason.startswith("scores: ") for reason in health["reasons"])
    return not health["healthy"] and said and "scores" in status["troubles"] and 'what="scores"} 1' in metrics


@pytest.mark.parametrize("trouble", [pytest.param("missing", marks=pytest.mark.slow), "half-written"])
@pytest.mark.parametrize("when", ["at the start", "while up", "before a retry"])
def test_scores_that_cannot_be_read_for_a_while_do_not_end_a_node(trouble, when):
    """It is unhealthy and says why, keeps its last threshold if it has one, and uses the scores once they are whole."""
    held = drawn_scores(2, low=20)
    with short_folder() as root:
        folders, _ = make_mesh(root / "m", Network.chain(2), scores=held, patience=3.0, insecure=True)
        clients = [Client(folder) for folder in folders]
        run = 0
        with ExitStack() as stack:
            if when == "at the start":
                spoil(folders[1], trouble)
            nodes = [stack.enter_context(staying_up(folders[1]))]
            if when == "before a retry":  # alone it fails, and the file is spoiled when it tries again
                wait_for(lambda: _phase(clients[1]) == "failed")
            else:
                nodes.append(stack.enter_context(staying_up(folders[0])))
                if when == "while up":
                    run, _ = after(clients, 0)
            if when != "at the start":
                spoil(folders[1], trouble)
            wait_for(lambda: not nodes[0].thread.is_alive() or shows_trouble(clients[1]))
            assert nodes[0].thread.is_alive()
            if when == "while up":
                assert clients[1].threshold() is not None
            if when == "before a retry":
                nodes.append(stack.enter_context(staying_up(folders[0])))
            held[1] = held[1] + 5.0
            write_scores(folders[1], held[1])
            expected = simulated(folders[0], held)  # until then a node takes part with the last scores it could read
            wait_for(lambda: after(clients, run)[1] == expected)
            wait_for(lambda: all(client.health()["healthy"] for client in clients))
            assert 'what="scores"} 0' in clients[1].metrics()


def test_neighbours_are_told_why_a_device_cannot_take_part():
    """Not what is in its file; and at once, long before their patience ends."""
    with short_folder() as root:
        folders, _ = make_mesh(root / "m", Network.chain(2), patience=300.0, insecure=True)
        spoil(folders[1], "half-written")
        processes = [start(folder) for folder in folders]
        (code, _, log), (own_code, _, own_log) = [finish(process) for process in processes]
        assert (code, own_code) == (1, 2)
        assert "device-01 cannot take part: its file of scores cannot be read" in log
        assert "abc" not in log
        assert "line 3: score must be a number, got 'abc'" in own_log


def test_under_continue_a_threshold_names_the_survivors():
    """In every answer, in /health and after a restart."""
    with short_folder() as root:
        more = {"on_lost": "continue", "patience": 1.0, "insecure": True}
        folders, _ = make_mesh(root / "m", Network.complete(3), **more)
        clients = [Client(folder) for folder in folders[:2]]
        expected = {"about": "survivors", "survivors": ["device-00", "device-01"], "lost": ["device-02"]}
        with ExitStack() as stack:
            for folder in folders[:2]:
                stack.enter_context(staying_up(folder))
            after(clients, 0)
            for client in clients:
                certified = client.status()["certified"]
                assert {name: certified[name] for name in expected} == expected
                assert "the threshold is about 2 of 3 devices, without {device-02}" in client.health()["reasons"]
        kept = ResultStore(read_device(folders[0])).load().facts()
        assert {name: getattr(kept, name) for name in expected} == expected


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
def test_sighup_reads_the_files_again_and_ends_nothing():
    """Also one right after the start; what all devices have agreed on is left for a restart."""
    held = drawn_scores(2, low=20)
    with short_folder() as root, ExitStack() as stack:
        folders, _ = make_mesh(root / "m", Network.chain(2), scores=held, insecure=True)
        clients = [Client(folder) for folder in folders]
        log = stack.enter_context((root / "log").open("w"))
        command = [sys.executable, "-m", "conformesh", "node", str(folders[0])]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        stack.enter_context(staying_up(folders[1]))
        run, _ = after(clients, 0)

        def logged(words):
            return words in (root / "log").read_text()

        toml = folders[0] / "device.toml"
        good = toml.read_text()
        toml.write_text(good + "colour = 7\n")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: logged("not reloaded: ") and logged("colour"))
        held[0] = held[0] + 5.0
        write_scores(folders[0], held[0])
        (folders[0] / "scores.csv").rename(folders[0] / "other.csv")
        for old, new in (("scores.csv", "other.csv"), ('alpha = "0.1"', 'alpha = "0.2"')):
            good = good.replace(old, new)
        toml.write_text(good)
        process.send_signal(signal.SIGHUP)
        wait_for(
            lambda: logged(
                "reloaded: device.toml, scores, certificate; guarantee.alpha of device.toml count from the next"
            )
        )
        expected = simulated(folders[1], held)
        wait_for(lambda: after(clients, run)[1] == expected)
        assert process.poll() is None
        assert clients[0].health()["healthy"]


@pytest.mark.skipif(os.name != "posix", reason="limits of processes are those of POSIX")
def test_neighbours_are_told_that_a_disk_is_full():
    """No file of the second device may grow beyond 68 kB, as the node's probe does not: its journal ends in the run."""
    small = ("sh", "-c", 'ulimit -f 136; exec "$@"', "sh")
    with short_folder() as root:
        options = {"bins": 2000, "rounds": 40}
        folders, _ = make_mesh(root / "m", Network.chain(2), "h-dcp", patience=300.0, insecure=True, options=options)
        processes = [start(folders[0]), start(folders[1], within=small)]
        (code, result, log), (own_code, own_result, own_log) = [finish(process) for process in processes]
        assert (code, own_code, result, own_result) == (1, 1, None, None)
        assert "device-01 could not go on: OSError" in log
        assert "device-01 could not go on: OSError" in own_log


def _phase(client):
    try:
        return client.status()["phase"]
    except NodeError:
        return None


def test_scores_are_read_once_for_each_change(tmp_path):
    """Opened once at the start, not again while nothing changes, and once more when they have changed."""
    folders, _ = make_mesh(tmp_path / "m", Network.chain(2), insecure=True)
    path, opened = folders[0] / "scores.csv", []

    def note(event, args):
        if event == "open" and args[0] == str(path) and "r" in args[1]:
            opened.append(args[0])

    sys.addaudithook(note)
    watch = ScoreWatch(read_device(folders[0]))
    assert watch.look(0.0)
    assert len(opened) == 1
    for moment in (1.0, 2.0, 3.0):
        assert not watch.look(moment)
    assert len(opened) == 1
    write_scores(folders[0], [1.0, 2.0])
    assert not watch.look(3.0)
    assert watch.look(5.0)
    assert len(opened) == 2
    assert watch.known.values.tolist() == [1.0, 2.0]
    path.write_text("score\n2.0\n1.0\n")  # the same scores in another order are no change
    assert not watch.look(6.0)
    assert not watch.look(8.0)
    assert len(opened) == 3
    path.write_text("score\n2.0\n1.0\nabc")
    for moment in (9.0, 10.0, 11.0, 12.0):
        assert not watch.look(moment)
    assert len(opened) == 4
    assert "got 'abc'" in watch.problem
    assert watch.known.values.tolist() == [2.0, 1.0]


@pytest.fixture
def score_file(tmp_path):
    """A file with three scores that a watch has read, at time 0; the wall clock stands still."""
    folders, _ = make_mesh(tmp_path / "m", Network.chain(2), insecure=True)
    path, written = folders[0] / "scores.csv", time.time()
    write_scores(folders[0], [1.0, 2.0, 3.0])
    watch = ScoreWatch(read_device(folders[0]), wall=lambda: written)
    assert watch.look(0.0)
    return path, watch


def test_a_file_is_read_once_nothing_was_written_to_it_for_two_seconds(score_file):
    """Cut after any score, and in the middle of a number, a text file reads well."""
    path, watch = score_file
    for moment, text in ((1.0, "score\n1.0\n2.0\n3.0\n4"), (2.5, "score\n1.0\n2.0\n3.0\n4.25\n5"), (4.4, None)):
        if text is not None:
            path.write_text(text)
        assert not watch.look(moment)
        assert watch.known.values.tolist() == [1.0, 2.0, 3.0]
        assert "it has just changed, and is read once nothing was written to it for 2 s" in watch.waiting
        assert watch.problem == ""
    assert watch.look(4.6)  # without a newline at its end it is complete all the same
    assert watch.known.values.tolist() == [1.0, 2.0, 3.0, 4.25, 5.0]
    assert (watch.waiting, watch.problem) == ("", "")


def test_a_file_that_has_just_been_written_is_waited_for_at_the_start_too(score_file):
    path, _ = score_file
    path.write_text("score\n1.0\n2")
    fresh = ScoreWatch(read_device(path.parent))
    assert not fresh.look(0.0)
    assert fresh.scores is None
    assert fresh.waiting
    path.write_text("score\n1.0\n2.5\n")
    assert not fresh.look(1.0)
    assert fresh.look(3.0)
    assert fresh.known.values.tolist() == [1.0, 2.5]


def test_a_file_that_became_shorter_without_being_replaced_is_not_used(score_file):
    """A program that writes a file anew empties it first, and may pause or crash for any time."""
    path, watch = score_file
    path.write_text("score\n7.0\n")
    for moment in (1.0, 3.0, 100.0):
        assert not watch.look(moment)
    assert "became shorter without being replaced, so it may be half written and is not used" in watch.problem
    assert "mesh put-scores" in watch.problem
    assert (watch.known.values.tolist(), watch.failures) == ([1.0, 2.0, 3.0], 1)
    write_scores(path.parent, [7.0])
    assert not watch.look(101.0)
    assert watch.look(103.0)
    assert (watch.known.values.tolist(), watch.problem) == ([7.0], "")


def test_a_shorter_file_after_one_that_was_deleted_is_used(score_file):
    """It may have the same inode."""
    path, watch = score_file
    path.unlink()
    watch.look(1.0)
    write_scores(path.parent, [7.0])
    watch._used = None if watch._used is None else (*watch._used[:2], path.stat().st_ino, watch._used[3])
    assert not watch.look(2.0)
    assert watch.look(4.0)


def test_a_shorter_file_after_two_replacements_is_used(score_file):
    """File systems give the inode of a deleted file to the next one."""
    path, watch = score_file
    kept = path.with_name("kept")
    os.link(path, kept)  # so that its inode can be given again
    write_scores(path.parent, [5.0, 6.0])
    assert not watch.look(1.0)
    kept.write_text("score\n7.0\n")
    kept.replace(path)
    watch.look(2.0)
    assert watch.look(4.0)
    assert (watch.known.values.tolist(), watch.problem) == ([7.0], "")


@pytest.mark.skipif(os.name != "posix", reason="there a change of permissions has a time")
def test_a_file_whose_permissions_are_repaired_is_read(score_file, monkeypatch):
    """A chmod changes neither content, size nor time of modification."""
    path, watch = score_file
    write_scores(path.parent, [7.0])

    def refuse(_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:  # root may read every file
        patch.setattr("conformesh.mesh.node.file_watch.read_local_scores", refuse)
        assert not any(watch.look(moment) for moment in (1.0, 3.0))
    assert "Permission denied" in watch.problem
    assert not watch.look(10.0)
    path.chmod(0o640)
    assert any(watch.look(moment) for moment in (11.0, 13.0))
    assert (watch.known.values.tolist(), watch.problem) == ([7.0], "")


@pytest.mark.skipif(os.name != "posix", reason="there a change of permissions has a time")
def test_a_certificate_whose_permissions_change_is_not_another_one(tmp_path):
    folders, _ = make_mesh(tmp_path / "m", Network.chain(2))
    watch = CertificateWatch(read_device(folders[0]))
    watch.look()
    watch.use()
    watch.config.path("cert").chmod(0o640)
    watch.look()
    assert (watch.problem, watch.replaced) == ("", False)


def test_a_file_that_comes_back_after_one_that_never_became_quiet_is_used_again(score_file, monkeypatch):
    _, watch = score_file
    monkeypatch.setattr("conformesh.mesh.node.file_watch.file_stamp", lambda _: stamp)
    old = watch._judged
    for step in range(1, 14):
        stamp = (*old[:2], old[2] + step, old[3])
        watch.look(float(step))
    assert "it has been changing for more than 10 s" in watch.problem
    stamp = old
    for step in (14.0, 15.0, 16.0):
        assert not watch.look(step)  # these scores are in use
    assert (watch.problem, watch.waiting, watch.failures) == ("", "", 1)


def test_a_file_server_whose_clock_is_behind_does_not_hurry_the_node(score_file):
    path, watch = score_file
    with path.open("a") as file:
        file.write("4")
    long_ago(path)
    assert not watch.look(1.0)
    assert watch.waiting
    with path.open("a") as file:
        file.write(".5\n")
    long_ago(path)
    assert not watch.look(2.0)
    assert watch.look(4.0)
    assert watch.known.values.tolist() == [1.0, 2.0, 3.0, 4.5]


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "npz", "parquet"])
def test_a_file_whose_last_record_is_incomplete_is_not_used(tmp_path, ending):
    """Cut at every byte of its end; CSV from its last record on, up to the first digit of the last score."""
    from conformesh.files.table_writers import write_scores as write

    folders, _ = make_mesh(tmp_path / "m", Network.chain(2), insecure=True)
    whole = tmp_path / f"scores.{ending.removesuffix('.gz')}"
    write(whole, ["device-00"] * 7, np.arange(7.0) + 0.25)
    data = gzip.compress(whole.read_bytes()) if ending == "csv.gz" else whole.read_bytes()
    cuts = range(len(data) - 14, len(data) - 4) if ending == "csv" else range(len(data) * 4 // 5, len(data))
    config = read_device(folders[0]).with_settings(file=f"scores.{ending}")
    for size in (*cuts, len(data)):
        config.path("scores").write_bytes(data[:size])
        watch = ScoreWatch(config)
        watch.look(0.0)
        watch.look(2.0)
        assert (watch.scores is None) == bool(watch.problem) == (size < len(data)), data[:size]


def test_a_file_that_never_becomes_quiet_is_reported(score_file):
    path, watch = score_file
    for step in range(1, 14):
        with path.open("a") as file:
            file.write("4.0\n")
        assert not watch.look(float(step))
        assert bool(watch.problem) == (step > 10), step
    assert "it has been changing for more than 10 s" in watch.problem
    assert (watch.known.values.tolist(), watch.failures) == ([1.0, 2.0, 3.0], 1)
    assert watch.look(16.0)
    assert (len(watch.known), watch.problem, watch.waiting) == (16, "", "")


def test_a_file_with_a_time_in_the_future_is_read_once_it_was_seen_to_be_quiet(score_file):
    path, watch = score_file
    path.write_text("score\n1.0\n2.0\n3.0\n4.0\n")
    os.utime(path, (2**32, 2**32))
    assert not watch.look(1.0)
    assert watch.look(3.0)


def test_a_node_waits_for_the_writer_of_its_scores_and_uses_all_of_them():
    """Whose program is still at work when the devices start."""
    held = drawn_scores(2, low=20)
    with short_folder() as root:
        folders, expected = make_mesh(root / "m", Network.chain(2), scores=held, insecure=True)
        path = folders[1] / "scores.csv"
        text = path.read_text()
        path.write_text(text[: len(text) // 2])
        processes = [start(folder) for folder in folders]
        try:
            # It writes now and then, however long a start takes on a busy machine.
            wait_for(lambda: os.utime(path) or (folders[1] / "node.sock").exists())
            time.sleep(0.5)
            with path.open("a") as file:
                file.write(text[len(text) // 2 :])
        finally:
            done = [finish(process) for process in processes]
        assert [(code, threshold_in(result)) for code, result, _ in done] == [(0, x) for x in expected]
        assert "it has just changed, and is read once nothing was written to it for 2 s" in done[1][2]


def test_status_and_health_say_why_scores_are_not_used():
    with short_folder() as root:
        folders, _ = make_mesh(root / "m", Network.chain(2), insecure=True)
        clients = [Client(folder) for folder in folders]
        with ExitStack() as stack:
            for folder in folders:
                stack.enter_context(staying_up(folder))
            after(clients, 0)
            (folders[0] / "scores.csv").write_text("score\n0.5\n")
            wait_for(lambda: clients[0].status()["scores_waiting"] is not None)
            assert clients[0].health()["healthy"]  # that a file is replaced is no trouble
            wait_for(lambda: not clients[0].health()["healthy"])
            assert "scores: " in clients[0].health()["reasons"][0]
            assert "became shorter without being replaced" in clients[0].status()["troubles"]["scores"]
            done = CliRunner().invoke(app, ["mesh", "put-scores", "-", str(folders[0])], input="score\n0.5\n")
            assert "the device runs and uses them within 3 s" in done.stdout
            expected = simulated(folders[0], [np.array([0.5]), *drawn_scores(2)[1:]])
            wait_for(lambda: after(clients, 1)[1] == expected)
            assert clients[0].health()["healthy"]


def test_a_change_that_keeps_size_and_second_is_seen(tmp_path):
    folders, _ = make_mesh(tmp_path / "m", Network.chain(2), insecure=True)
    path = folders[0] / "scores.csv"
    path.write_text("score\n0.5\n")
    os.utime(path, ns=(10**18, 10**18))
    watch = ScoreWatch(read_device(folders[0]))
    watch.look(0.0)
    path.write_text("score\n0.7\n")
    os.utime(path, ns=(10**18, 10**18 + 1))
    assert not watch.look(1.0)
    assert watch.look(3.0)


def test_requests_for_a_new_run_coalesce():
    """However many programs ask, one run is under way and one waits; each is told which."""
    with short_folder() as root:
        folders, expected = make_mesh(root / "m", Network.chain(2), insecure=True)
        clients = [Client(folder) for folder in folders]
        with ExitStack() as stack:
            for folder in folders:
                stack.enter_context(staying_up(folder))
            run, _ = after(clients, 0)
            answers = [client.recalibrate() for _ in range(100) for client in clients]
            assert {answer.split(":")[0] for answer in answers} <= {"started", "joined", "waiting"}
            assert answers[0] == "started"
            last, found = after(clients, run)
            assert found == expected
            assert last <= run + 3


@pytest.mark.parametrize("reason", ["a program asks", "the scores have changed", "it stops"])
def test_a_pause_after_a_failure_ends_where_there_is_a_reason_to_try_at_once(tmp_path, reason):
    folders, _ = make_mesh(tmp_path / "m", Network.chain(2), insecure=True)
    node = Node(read_device(folders[0]))
    node.files.look()
    node.files.scores_changed = False
    pausing = threading.Thread(target=node.driver._pause, args=(600.0, Quiet()))
    pausing.start()
    if reason == "a program asks":
        node.driver.recalibrate()
    elif reason == "the scores have changed":
        write_scores(folders[0], [1.0, 2.0])
    else:
        node.stopping.set()
    pausing.join(30)
    assert not pausing.is_alive()


class Talking:
    """Links on which device-01 sends these frames; then the node is stopped."""

    def __init__(self, node, frames):
        self.node, self.frames, self.sent = node, list(frames), []

    def receive(self, timeout, enough=1):
        time.sleep(0.1)
        if not self.frames:
            self.node.stopping.set()
            return ()
        return [(1, self.frames.pop())]

    def send(self, to, data):
        self.sent.append(data)


def test_links_are_up_while_frames_arrive_in_a_pause(tmp_path):
    folders, _ = make_mesh(tmp_path / "m", Network.chain(2), insecure=True)
    node = Node(read_device(folders[0]))
    node.driver._pause(600.0, Talking(node, [b"?"]))
    assert node.state._neighbours.entries["device-01"].alive is not None


def test_links_are_up_while_frames_arrive_at_a_node_that_stays_out(tmp_path):
    folders, _ = make_mesh(tmp_path / "m", Network.chain(2), insecure=True)
    node, other = (Node(read_device(folder)) for folder in folders)
    greeting = Talking(other, [])
    other.files.look(at_once=True)
    other.driver._run_device(greeting, once=False)
    (folders[0] / "scores.csv").write_text("no number\n")
    node.driver._run_device(Talking(node, greeting.sent[:1] * 4), once=False)
    assert node.state.phase is Phase.FAILED
    assert to_builtins(node.state.status())["neighbours"]["device-01"]["frames_received"] > 0


def test_a_folder_has_one_process_and_a_crash_leaves_none():
    with short_folder() as root:
        folders, _ = make_mesh(root / "m", Network.chain(2), insecure=True, patience=300.0)
        first = start(folders[0], "--http", "127.0.0.1:0")
        try:
            wait_for(lambda: (folders[0] / "node.lock").exists() and (folders[0] / "node.lock").read_text())
            for words in (("--http", "127.0.0.1:0"), ()):
                code, _, log = finish(start(folders[0], *words))
                assert code == 2
                assert f"process {first.pid} runs this device already; stop it first" in log
        finally:
            first.kill()
            first.communicate()
        assert (folders[0] / "node.lock").exists()
        code, _, log = finish(start(folders[0], "--patience", "0.3"))
        assert (code, "has not said hello" in log) == (1, True)


def test_a_certificate_that_expires_makes_a_node_unhealthy_until_it_is_renewed():
    held = drawn_scores(2, low=20)
    with short_folder() as root:
        folders, expected = make_mesh(root / "m", Network.chain(2), scores=held)
        clients = [Client(folder) for folder in folders]
        with ExitStack() as stack:
            nodes = [stack.enter_context(staying_up(folder)) for folder in folders]
            run, found = after(clients, 0)
            assert found == expected
            nodes[1].files.certificate.clock = lambda: datetime.now(UTC) + timedelta(days=400)
            wait_for(lambda: not clients[1].health()["healthy"])
            assert "certificate: device.pem expired on" in clients[1].health()["reasons"][0]
            assert clients[1].threshold() == expected[1]
            assert 'what="certificate"} 1' in clients[1].metrics()
            renew_device(root / "m", "device-01", days=800)
            wait_for(lambda: clients[1].health()["healthy"])
            clients[0].recalibrate()
            assert after(clients, run)[1] == expected  # over links that were opened with the new one


def test_a_clock_that_is_wrong_at_the_start_is_waited_for():
    with short_folder() as root:
        folders, expected = make_mesh(root / "m", Network.chain(2))
        clients = [Client(folder) for folder in folders]
        with staying_up(folders[0]), staying_up(folders[1], clock=lambda: datetime(2001, 1, 1, tzinfo=UTC)) as late:
            wait_for(lambda: any("certificate: device.pem is not valid before" in why for why in _reasons(clients[1])))
            assert "set the clock" in _reasons(clients[1])[0]
            told = "device-01 cannot take part: device.pem is not valid before"
            wait_for(lambda: any(told in why for why in _reasons(clients[0])))
            late.files.certificate.clock = lambda: datetime.now(UTC)
            assert after(clients, 0)[1] == expected


def _reasons(client):
    try:
        return client.health()["reasons"]
    except NodeError:
        return []


def test_a_port_that_another_program_has_is_waited_for():
    with short_folder() as root:
        folders, expected = make_mesh(root / "m", Network.chain(2), insecure=True)
        host, port = read_device(folders[0]).listen.split(":")
        clients = [Client(folder) for folder in folders]
        with ExitStack() as stack:
            with socket.create_server((host, int(port))):
                code, _, log = finish(start(folders[0]))
                assert (code, log.count("error: ")) == (2, 1)
                assert f"device-00 cannot listen at {host}:{port}: " in log
                assert "Address already in use" in log
                stack.enter_context(staying_up(folders[0]))
                wait_for(lambda: any("cannot listen at" in why for why in _reasons(clients[0])))
            stack.enter_context(staying_up(folders[1]))
            assert after(clients, 0)[1] == expected


def test_pauses_grow_only_while_devices_fail_sooner_than_their_patience(tmp_path, monkeypatch):
    """Who pauses is not heard: one that has waited for others for its patience tries again after the shortest pause."""
    folders, _ = make_mesh(tmp_path / "m", Network.chain(2), patience=0.2)
    node, pauses, waits = Node(read_device(folders[0])), [], iter([0.0, 0.0, 0.0, 0.25, 0.25, 0.0])

    def fail(*_):
        time.sleep(next(waits))
        return PeerError("nobody is there")

    def pause(seconds, transport):
        pauses.append(seconds)
        if len(pauses) == 6:
            node.stopping.set()

    monkeypatch.setattr(node.driver, "_run_device", fail)
    monkeypatch.setattr(node.driver, "_pause", pause)
    node.driver.serve(transport=None, once=False)
    assert pauses == [0.5, 1.0, 2.0, 0.5, 0.5, 1.0]
