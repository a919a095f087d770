"""The service for programs on the device."""

import contextlib
import errno
import json
import math
import os
import socket
import stat
import threading

import pytest

from conformesh.mesh.http.address import SOCKET_NAME, fallback_paths, find_address
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.http.replies import NodeInterface
from conformesh.mesh.http.server import Service
from conformesh.mesh.node.result_store import ResultStore
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import Trouble

from .disks import unwritable
from .nodes import ask, asked, calibration, numbers, serving, short_folder, state
from .test_result_store import own


@pytest.fixture(params=["unix", "tcp"])
def where(request):
    return request.param


# --- answers ----------------------------------------------------------------------------------------------------------


def test_threshold_certificate_and_calibration(where):
    about = {"scores": 60, "devices": 3, "made": "2023-11-14T22:13:20.000Z", "run": 3, "restored": False}
    about |= {"roster_number": 0, "survivors": ["a", "b", "c"], "about": "everybody", "final": True, "lost": []}
    certificate = calibration().to_dict()["answers"][0]["certificate"]
    with serving(where=where) as service:
        status, answer = asked(service, "GET", "/threshold")
        assert status == 200
        one = {"threshold": 0.75, "alpha": 0.1, "certificate": certificate}
        assert answer == {**one, "method": "e-dcp", "answers": [{"part": [], **one}], **about}
        status, answer = asked(service, "GET", "/certificate?pretty=1")
        assert (status, answer["certificate"]) == (200, certificate)
        assert answer["words"].startswith("counted: ")
        assert asked(service, "GET", "/calibration") == (200, {"calibration": calibration().to_dict(), **about})


def test_infinity_is_the_text_inf():
    with serving(state(threshold=math.inf)) as service:
        assert asked(service, "GET", "/threshold")[1]["threshold"] == "inf"
        answer = asked(service, "POST", "/predict", json.dumps({"probabilities": [[0.5, 0.5]]}))[1]
        assert answer == {"sets": [[0, 1]], "sizes": [2], "threshold": "inf", "run": 3}
        assert numbers(ask(service, "GET", "/metrics")[2])["conformesh_threshold"] == math.inf


def test_nothing_certified_is_503_in_words():
    with serving(state(certified=False)) as service:
        for method, path, body in (
            ("GET", "/threshold", None),
            ("GET", "/certificate", None),
            ("GET", "/calibration", None),
            ("POST", "/predict", '{"probabilities": [[1.0]]}'),
        ):
            status, answer = asked(service, method, path, body)
            assert status == 503
            assert answer == {"error": "no threshold is certified yet (calibrating, run 3, round 0)"}
        assert asked(service, "GET", "/status")[0] == 200
        metrics = numbers(ask(service, "GET", "/metrics")[2])
        assert "conformesh_threshold" not in metrics
        assert metrics["conformesh_healthy"] == 0


def test_health_says_why():
    node = state(certified=False)
    with serving(node) as service:
        assert asked(service, "GET", "/health")[0] == 503
        node.certify(calibration())
        assert asked(service, "GET", "/health") == (
            200,
            {"healthy": True, "phase": "certified", "reasons": [], "links_down": []},
        )
        node.begin_run(4)
        node.note_error("b is late")
        status, answer = asked(service, "GET", "/health")
        assert (status, answer["phase"], answer["reasons"]) == (200, "calibrating", ["last error: b is late"])
        node.fail("b never came back")
        status, answer = asked(service, "GET", "/health")
        assert (status, answer["healthy"]) == (503, False)
        assert answer["reasons"] == ["the last calibration failed: b never came back"]


def test_trouble_is_unhealthy_whatever_is_certified():
    node = state()
    with serving(node) as service:
        assert numbers(ask(service, "GET", "/metrics")[2])['conformesh_trouble{what="scores"}'] == 0
        node.set_trouble(Trouble.SCORES, "scores.csv, line 3: score must be a number,\ngot 'abc'")
        status, answer = asked(service, "GET", "/health")
        assert (status, answer["healthy"], answer["phase"]) == (503, False, "certified")
        assert answer["reasons"] == ["scores: scores.csv, line 3: score must be a number, got 'abc'"]
        assert asked(service, "GET", "/status")[1]["troubles"]["scores"].startswith("scores.csv, line 3")
        metrics = numbers(ask(service, "GET", "/metrics")[2])
        assert metrics['conformesh_trouble{what="scores"}'] == metrics["conformesh_scores_unreadable"] == 1
        assert metrics['conformesh_trouble{what="certificate"}'] == 0
        assert metrics["conformesh_healthy"] == 0
        assert asked(service, "GET", "/threshold")[0] == 200  # the last one stays
        node.set_trouble(Trouble.SCORES, "")
        assert asked(service, "GET", "/health")[1]["healthy"]


def test_a_restarted_node_answers_from_disk_and_says_so(tmp_path):
    store = ResultStore(own(tmp_path))
    store.save(state().certified)
    node = NodeState("a")
    node.restore(store.load())
    with serving(node) as service:
        assert asked(service, "GET", "/threshold")[1]["restored"] is True
        status, answer = asked(service, "GET", "/health")
        assert status == 200
        assert "run 3, from before the last start" in answer["reasons"][0]


def test_recalibrate_calls_back():
    called = threading.Event()
    with serving(recalibrate=called.set) as service:
        assert asked(service, "POST", "/recalibrate") == (202, {"accepted": True})
        assert called.is_set()
    with serving(recalibrate=lambda: "started") as service:
        assert asked(service, "POST", "/recalibrate") == (202, {"accepted": True, "run": "started"})
        assert Client(str(service.address)).recalibrate() == "started"
    with serving() as service:
        assert asked(service, "POST", "/recalibrate")[0] == 501


def test_recalibrate_may_be_refused_or_fail(caplog):
    def busy():
        raise RuntimeError("run 3 is not over")

    def broken():
        raise KeyError("secret")

    def full():
        raise OSError(errno.ENOSPC, "recalibrate.json: no space left")

    with serving(recalibrate=busy) as service:
        assert asked(service, "POST", "/recalibrate") == (409, {"error": "no new run: run 3 is not over"})
    with serving(recalibrate=broken) as service:
        assert asked(service, "POST", "/recalibrate")[0] == 500
        assert asked(service, "GET", "/health")[0] == 200
    with serving(recalibrate=full) as service:
        status, answer = asked(service, "POST", "/recalibrate")
        assert (status, "the request cannot be stored" in answer["error"]) == (503, True)
    assert "failed unexpectedly" in caplog.text


# --- starting and stopping --------------------------------------------------------------------------------------------


def test_the_socket_is_the_owners_and_goes_away():
    with short_folder() as folder:
        with Service(NodeInterface(state()), folder) as service:
            path = folder / SOCKET_NAME
            assert service.address.path == path
            assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        assert not path.exists()
        service.stop()  # twice is harmless
        with pytest.raises(RuntimeError, match="make a new one"):
            service.start()


def test_stopping_drops_clients_and_ends_every_thread():
    with serving(tasks=2) as service:
        idle = [service.address.new_socket() for _ in range(3)]  # two inside, one waits for a place
        for connection in idle:
            connection.connect(service.address.target())
    for connection in idle:
        connection.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert b"200" not in connection.recv(1000)
        connection.close()
    left = [thread for thread in threading.enumerate() if thread.name.startswith("service")]
    for thread in left:  # one may be in its last instruction
        thread.join(5)
    assert not any(thread.is_alive() for thread in left)
    with pytest.raises(NodeError, match="no node answers"):
        Client(str(service.address)).threshold()


def test_a_socket_left_by_a_crash_is_replaced_and_a_living_one_is_not():
    with short_folder() as folder:
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(str(folder / SOCKET_NAME))
        dead.close()
        with Service(NodeInterface(state()), folder) as service:
            with pytest.raises(ValueError, match="another node answers"):
                Service(NodeInterface(state()), folder).start()
            assert asked(service, "GET", "/threshold")[0] == 200


@pytest.fixture
def temporary(monkeypatch):
    """A temporary folder of the system, in which no node has listened yet."""
    with short_folder() as folder:
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
        yield folder


def test_the_second_path_is_the_same_through_a_link(temporary):
    (temporary / "dev").mkdir()
    (temporary / "link").symlink_to(temporary / "dev")
    paths = [fallback_paths(find_address(temporary / name)) for name in ("dev", "link", "link/../dev")]
    assert len(paths[0]) == 1
    assert paths[0] == paths[1] == paths[2]


def test_on_a_read_only_disk_the_runtime_directory_comes_first(temporary, monkeypatch):
    for name, mode in (("dev", 0o755), ("open", 0o755), ("run", 0o700)):
        (temporary / name).mkdir(mode=mode)
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{temporary / 'open'}:{temporary / 'run'}")
    with unwritable(temporary / "dev", errno.EROFS), Service(NodeInterface(state()), temporary / "dev") as service:
        assert service.address.path.parent == temporary / "run"
        assert Client(temporary / "dev").threshold() == 0.75


def test_a_node_goes_on_where_no_place_takes_its_socket(temporary, caplog):
    (temporary / "dev").mkdir()
    (temporary / f"conformesh-{os.getuid()}").mkdir()
    os.chmod(temporary / f"conformesh-{os.getuid()}", 0o777)  # as if another user had made it
    with unwritable(temporary / "dev", errno.EROFS), Service(NodeInterface(state()), temporary / "dev"):
        assert "local programs get no answers" in caplog.text
        with pytest.raises(NodeError):
            Client(temporary / "dev").threshold()


def test_another_file_is_not_removed():
    with short_folder() as folder:
        (folder / SOCKET_NAME).write_text("mine")
        with pytest.raises(ValueError, match="another file is there"):
            Service(NodeInterface(state()), folder).start()
        assert (folder / SOCKET_NAME).read_text() == "mine"


def test_a_socket_that_another_took_over_is_not_removed():
    with short_folder() as folder, Service(NodeInterface(state()), folder):
        (folder / SOCKET_NAME).unlink()
        with Service(NodeInterface(state()), folder) as second:
            assert asked(second, "GET", "/threshold")[0] == 200


def test_a_taken_port_and_a_missing_folder_are_said_in_words():
    with serving(where="tcp") as service, pytest.raises(OSError, match="is in use"):
        Service(NodeInterface(state()), str(service.address)).start()
    with pytest.raises(OSError, match="cannot listen at"):
        Service(NodeInterface(state()), "no-such-folder/node.sock").start()


@pytest.mark.parametrize(
    "address", ["0.0.0.0:80", "192.168.1.5:80", ":80", "[::]:80", "example.org:80", "127.0.0.1.example.org:80"]
)
def test_nothing_but_loopback_is_bound(address):
    with pytest.raises(ValueError, match="only programs on its own device"):
        Service(NodeInterface(state()), address)


def test_addresses(tmp_path, monkeypatch):
    monkeypatch.delenv("CONFORMESH_NODE", raising=False)
    assert str(find_address()) == "node.sock"
    monkeypatch.setenv("CONFORMESH_NODE", "127.0.0.1:7000")
    assert find_address().target() == ("127.0.0.1", 7000)
    assert str(find_address("localhost:1")) == "127.0.0.1:1"
    assert str(find_address("[::1]:1")) == "[::1]:1"
    with short_folder() as folder:
        assert find_address(folder).path == folder / SOCKET_NAME
    with pytest.raises(ValueError, match="at most 103 bytes"):
        find_address(tmp_path / ("x" * 120))
    with pytest.raises(ValueError, match="between 0 and 65535"):
        find_address("127.0.0.1:70000")
