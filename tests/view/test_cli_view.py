"""``conformesh view``, and ``--view``, ``--trace`` and ``--report`` of devices."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

pytest.importorskip("uvicorn", reason="a view needs Starlette and uvicorn: pip install 'conformesh[view]'")
from conformesh import Network, calibrate
from conformesh.cli import app, mesh_up
from conformesh.cli import recording as viewing
from conformesh.mesh.config.folders import init_mesh
from conformesh.mesh.http.replies import NodeInterface
from conformesh.mesh.http.server import Service
from conformesh.view import Recorder, Trace
from tests.mesh.nodes import short_folder, state
from tests.mesh.real import make_mesh, wait_for
from tests.mesh.test_mesh_up import ended
from tests.view.served import recording, step


def run(*words):
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.fixture
def trace(tmp_path):
    """A file with a run of three devices."""
    recorder = Recorder()
    result = calibrate([[0.1, 0.5], [0.2], [0.7, 0.9]], Network.chain(3), alpha=0.5, observer=recorder)
    recorder.finish(result)
    return recorder.trace().save(tmp_path / "run.json.gz")


class Command:
    """A command that goes on, in a process of its own that is ended by its number."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "conformesh", *map(str, words)],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.said = []

    def url(self):
        """Where the page is, once it is there."""
        for line in self.process.stderr:
            self.said.append(line)
            if found := re.search(r"see it at (\S+)", line):
                return found[1]
        raise AssertionError("".join(self.said))

    def stop(self, number=signal.SIGINT):
        """The code, and all that was said on stderr."""
        self.process.send_signal(number)
        rest = self.process.stderr.read()
        return self.process.wait(timeout=60), "".join(self.said) + rest

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read()


def is_served(url):
    try:
        get(f"{url}health")
    except OSError:
        return False
    return True


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--view"], ["--view=127.0.0.1:8750"]),
        (["--view", "--json"], ["--view=127.0.0.1:8750", "--json"]),
        (["--view", "folder"], ["--view=127.0.0.1:8750", "folder"]),
        (["--view", "localhost:1"], ["--view", "localhost:1"]),
        (["--view", "[::1]:1"], ["--view", "[::1]:1"]),
        (["--view=:0", "x"], ["--view=:0", "x"]),
        (["view", "x"], ["view", "x"]),
    ],
)
def test_an_address_may_be_left_out(words, meant):
    assert viewing.with_default_address(words) == meant


def test_the_default_is_that_of_the_server():
    from conformesh.view.server import DEFAULT_ADDRESS

    assert viewing.DEFAULT_ADDRESS == DEFAULT_ADDRESS


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "say what to look at: trace files"),
        (("nothing.json",), "no node answers at nothing.json"),
        (("run.json", "--port", "-1"), "port must be at least 0"),
        (("run.json", "--port", "70000"), "a view needs HOST:PORT"),
        (("run.json", "--token", "none"), "none: No such file or directory"),
        (("run.json", "--cert", "x"), "TLS needs both a certificate and its key"),
        (("wrong.json",), "wrong.json: needed a trace of the format conformesh-trace/1"),
    ],
)
def test_mistakes_are_said_in_one_line(tmp_path, monkeypatch, words, error):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONFORMESH_NODE", raising=False)
    Trace.of([]).save("run.json")
    (tmp_path / "wrong.json").write_text("{}")
    result = run("view", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert error in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_trace_becomes_a_report_without_a_server(trace, tmp_path, monkeypatch):
    monkeypatch.setattr("conformesh.view.server.ViewServer.start", lambda _: pytest.fail("started"))
    result = run("view", trace, trace, "--report", tmp_path / "r.html", "--trace", tmp_path / "both.json")
    assert result.exit_code == 0, result.output
    assert "</html>" in (tmp_path / "r.html").read_text()
    assert len(Trace.load(tmp_path / "both.json").runs) == 2


def test_what_is_written_is_written_however_it_ends(tmp_path, monkeypatch, capsys):
    with (
        pytest.raises(RuntimeError, match="no ink"),
        viewing.publish_recordings(lambda: [recording(steps=2)], viewing.RecordingOptions(trace=tmp_path / "t.json")),
    ):
        raise RuntimeError("no ink")
    assert len(Trace.load(tmp_path / "t.json").runs[0].steps) == 2


def test_a_page_stays_where_somebody_sits(monkeypatch):
    stayed = []
    put = {"get": lambda: stayed.append(True)}
    monkeypatch.setattr(viewing, "catch_interrupts", lambda: contextlib.nullcontext(SimpleNamespace(**put)))
    for terminal in (False, True):
        monkeypatch.setattr(viewing.sys.stderr, "isatty", lambda terminal=terminal: terminal, raising=False)
        with viewing.publish_recordings(lambda: [recording()], viewing.RecordingOptions("127.0.0.1:0")) as url:
            assert is_served(url)
        assert stayed == [True] * terminal


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("nodes")
def test_traces_side_by_side_until_it_is_interrupted(trace):
    with Command("view", trace, trace, "--port", "0") as command:
        url = command.url()
        runs = json.loads(get(f"{url}trace.json"))["runs"]
        assert [one["heading"]["name"] for one in runs] == ["e-dcp on chain 3"] * 2
        code, said = command.stop()
        assert code == 0
        assert "Traceback" not in said


@pytest.mark.xdist_group("nodes")
def test_a_mesh_is_watched_and_then_written(tmp_path):
    with short_folder() as root:
        folders = init_mesh(root / "m", Network.chain(2), insecure=True)
        node = state()
        with (
            Service(NodeInterface(node), folders[0]),
            Command("view", root / "m", "--port", "0", "--trace", tmp_path / "t.json") as command,
        ):
            url = command.url()

            def threshold():
                steps = json.loads(get(f"{url}trace.json"))["runs"][0]["steps"]
                return [
                    step["devices"]["threshold"]["values"] for step in steps if "threshold" in step.get("devices", {})
                ]

            wait_for(lambda: threshold() == [[0.75]])
            assert json.loads(get(f"{url}device/0/0"))["certificate"].startswith("counted")
            code, _ = command.stop(signal.SIGTERM)
            assert code == 0
    [found] = Trace.load(tmp_path / "t.json").runs
    assert found.heading.live


@pytest.mark.xdist_group("nodes")
def test_beyond_this_machine_a_token_is_printed_once(trace, tmp_path):
    with Command("view", trace, "--host", "0.0.0.0", "--port", "0") as command:
        url = command.url()
        assert re.search(r"/\?token=[\w-]{43}$", url)
        code, said = command.stop()
        assert (code, said.count("token=")) == (0, 1)
        assert "without TLS the token and all that is shown can be read on the way" in said


def test_mesh_up_hands_what_it_knows_to_the_view(tmp_path, monkeypatch):
    """Without processes: what they would have said, and how they ended."""
    root = tmp_path / "m"
    init_mesh(root, Network.chain(2), insecure=True)

    def launch(commands):
        good, bad = (ended(name, error=error) for name, error in zip(commands, ("", "b is lost"), strict=True))
        good.lines.append(("warning", "slow disk"))
        return [good, bad]

    monkeypatch.setattr(mesh_up, "launch_devices", launch)
    monkeypatch.setattr(mesh_up, "join_devices", lambda *_: None)
    result = run("mesh", "up", root, "--trace", tmp_path / "t.json", "--report", tmp_path / "r.html")
    assert result.exit_code == 1  # one has failed
    [found] = Trace.load(tmp_path / "t.json").runs
    assert dict(found.result)["devices"] == "3 of 2 with 60 scores in all"
    last = {
        name: dict(zip(column.rows, column.values, strict=True)) for name, column in found.steps[-1].devices.items()
    }
    assert last["phase"] == {0: "certified", 1: "failed"}
    assert last["threshold"] == {0: 0.75}
    assert (0, "warning", "slow disk") in found.steps[-1].log


@pytest.mark.xdist_group("nodes")
def test_mesh_up_with_a_page(tmp_path):
    pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
    with short_folder() as root:
        _, thresholds = make_mesh(root / "m", Network.chain(2), insecure=True)
        with Command("mesh", "up", root / "m", "--view", ":0", "--json", "--trace", tmp_path / "t.json") as command:
            url = command.url()
            assert json.loads(get(f"{url}trace.json"))["runs"][0]["heading"]["devices"] == ["device-00", "device-01"]
            out = command.process.stdout.read()
            assert command.process.wait(timeout=90) == 0
        assert [one["answers"][0]["thresholds"][0] for one in json.loads(out)] == thresholds
        [found] = Trace.load(tmp_path / "t.json").runs
        assert dict(found.result)["threshold"].endswith("(all 2 devices agree, bit for bit)")
        assert not is_served(url)


@pytest.mark.xdist_group("nodes")
@pytest.mark.parametrize("how", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_the_view_of_a_node_ends_with_it(how):
    pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
    with short_folder() as root:
        folders, _ = make_mesh(root / "m", Network.chain(2), insecure=True)
        with Command("node", folders[0], "--view", ":0") as command:
            url = command.url()
            assert is_served(url)
            command.process.send_signal(how)
            command.process.wait(timeout=60)
            wait_for(lambda: not is_served(url))


def test_a_step_is_shown_soon():
    """From the library: a run that goes on in this process."""
    running = recording()
    with viewing.publish_recordings(lambda: [running], viewing.RecordingOptions("127.0.0.1:0")) as url:
        running.add(step(1))
        begun = time.monotonic()
        assert b'"at":1.0' in get(f"{url}trace.json")
        assert time.monotonic() - begun < 5
