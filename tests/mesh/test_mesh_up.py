"""``conformesh mesh up``: what it shows while devices run and when they have ended, and what it hands to them."""

import io
import json
import logging
import signal
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console

from conformesh import Certificate, Network
from conformesh.cli import app, mesh_up
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.folders import init_mesh
from conformesh.mesh.node.main import override_settings
from conformesh.mesh.processes import DeviceProcess, _read_log
from conformesh.results.certificate import Noise
from tests.mesh.nodes import calibration, short_folder
from tests.mesh.real import drawn_scores, make_mesh


def ended(name, threshold=0.75, error="", **progress):
    """A device whose process has ended, with a result or without."""
    process = SimpleNamespace(poll=lambda: 1 if error else 0)
    result = {"device": name, "run": 1, "roster": ["a", "b", "c"], "lost": [], **calibration(threshold).to_dict()}
    return DeviceProcess(name, process, result=None if error else result, error=error, **progress)


def printed(capsys, *watched):
    mesh_up.print_agreement(watched, 1.5)
    return capsys.readouterr().out


def on_screen(watched, room):
    screen = Console(file=io.StringIO(), width=100)
    screen.print(mesh_up._live_table(watched, room))
    return screen.file.getvalue()


def test_one_threshold_is_said_once(capsys):
    out = printed(capsys, *(ended(name, 0.1 + 0.2, sent=1500, received=900) for name in "abc"))
    assert "threshold: 0.30000000000000004 (all 3 devices agree, bit for bit)\n" in out
    assert out.count("0.30000000000000004") == 1
    assert "guarantee: counted: the rank was counted exactly; required rank 57, counted rank 57\n" in out
    assert "devices: 3 of 3 with 60 scores in all\n" in out
    assert "cost: 12 rounds, 4.61 kbit sent in all\n" in out
    assert out.count("12  1.54 kbit  1.5 kB     900 B  done") == 3


def test_noise_hides_how_many_scores_there_are(capsys):
    noise = Noise(1.0, "score", 2, 3, 8, 5.5, 0.01)
    hidden = calibration(certificate=Certificate("counted with noise", noise=noise), examples=0)
    one = ended("a")
    one.result |= hidden.to_dict()
    out = printed(capsys, one)
    assert "devices: 3 of 1; how many scores they hold is not told\n" in out
    assert "0 scores" not in out


def test_different_thresholds_are_never_called_one(capsys):
    """The last bit counts."""
    out = printed(capsys, ended("a", 0.3), ended("b", 0.1 + 0.2), ended("c", 0.3))
    assert "agree" not in out
    assert "each device its own" in out
    assert out.startswith("threshold: 0.3 to 0.30000000000000004, ")
    assert [line.split()[1] for line in out.splitlines()[-3:]] == ["0.3", "0.30000000000000004", "0.3"]


def test_a_failed_device_is_named_with_its_reason(capsys):
    out = printed(capsys, ended("a"), ended("b"), ended("c", error="b is lost", round=3))
    assert "(2 of 3 devices agree, bit for bit)" in out
    assert out.splitlines()[-1].split(maxsplit=4) == ["c", "3", "0", "0", "b is lost"]
    assert "threshold:" not in printed(capsys, ended("a", error="x"))


def test_infinity_is_a_threshold_too(capsys):
    assert "threshold: inf (all 1 devices agree" in printed(capsys, ended("a", float("inf")))


def test_the_live_table_shows_who_waits_for_whom():
    running = DeviceProcess("b", SimpleNamespace(poll=lambda: None), "running", 7, 3, 4, 2048, 640)
    text = on_screen([ended("a"), running], 10)
    assert "7          3/4   2.05 kB      640 B   running" in text
    assert "1 of 2 devices are done" in text


def test_a_small_terminal_shows_those_that_are_not_done():
    some = [ended(f"done-{k}") for k in range(9)] + [ended("late", error="was lost")]
    text = on_screen(some, 2)
    assert [name for name in ("done-0", "done-1", "late") if name in text] == ["done-0", "late"]
    assert "9 of 10 devices are done, 8 are not shown" in text
    assert "late" in on_screen(some, -3)  # a terminal of two lines


def test_the_log_of_a_device_tells_how_far_it_is():
    said = {"message": "progress", "round": 5, "phase": "running", "heard": 1, "expected": 2, "sent": 9, "received": 8}
    lines = [{"message": "hello", "round": 99}, said]
    text = "".join(json.dumps(line) + "\n" for line in lines) + "Traceback of nothing\nerror: no link\n"
    one = DeviceProcess("a", SimpleNamespace(stderr=io.StringIO(text), poll=lambda: None))
    _read_log(one)
    assert (one.round, one.phase, one.heard, one.expected, one.sent, one.received) == (5, "running", 1, 2, 9, 8)
    assert one.state == one.error == "no link"


@pytest.fixture
def root(tmp_path):
    init_mesh(tmp_path / "m", Network.chain(2), insecure=True)
    return tmp_path / "m"


@pytest.mark.parametrize(
    ("words", "handed"),
    [
        ((), {}),
        (("--on-lost", "continue"), {"on_lost": "continue"}),
        (("--on-lost", "continue", "--quorum", "2"), {"on_lost": "continue", "quorum": "2"}),
        (("--patience", "2.5", "--on-lost", "fail"), {"patience": "2.5", "on_lost": "fail"}),
    ],
)
def test_what_a_lost_neighbour_means_is_handed_to_all(root, monkeypatch, words, handed):
    got = []

    def launch(commands):
        got.extend((name, json.loads(command[-1])) for name, command in commands.items())
        return [ended(name) for name in commands]

    monkeypatch.setattr(mesh_up, "launch_devices", launch)
    monkeypatch.setattr(mesh_up, "join_devices", lambda *_: None)
    result = CliRunner().invoke(app, ["mesh", "up", str(root), *words, "--json"])
    assert result.exit_code == 0, result.output
    assert [one["device"] for one in json.loads(result.stdout)] == ["device-00", "device-01"]
    assert result.stderr == ""
    about = {"once": True, "log": "progress"} | ({"settings": handed} if handed else {})
    assert got == [(name, {"folder": str(root / name), **about}) for name in ("device-00", "device-01")]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--on-lost", "hope"), "on_lost must be 'fail' or 'continue'"),
        (("--patience", "0"), "patience must be"),
        (("--on-lost", "continue", "--quorum", "1"), "quorum must be a whole number from 2, more than half of the 2"),
        (("--quorum", "3"), "quorum must be a whole number from 2, more than half of the 2 devices, to 2, got 3"),
        (("--quorum", "most"), "quorum must be"),
    ],
)
def test_a_mistake_is_said_before_anything_starts(root, monkeypatch, words, error):
    monkeypatch.setattr(mesh_up, "launch_devices", lambda *_: pytest.fail("started"))
    result = CliRunner().invoke(app, ["mesh", "up", str(root), *words])
    assert result.exit_code == 2
    assert error in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_what_a_lost_neighbour_means_is_part_of_the_agreement(root):
    config = read_device(root / "device-00")
    changed = override_settings(config, {"patience": "7", "on_lost": "continue"})
    assert (changed.timing.patience, changed.folder) == (7.0, config.folder)
    assert changed.agreement()["on_lost"] == "continue with 2 of 2 devices"
    assert override_settings(config, {"on_lost": "continue", "quorum": "2"}) == config.with_settings(
        on_lost="continue", quorum=2
    )
    assert override_settings(config, {}) == config


@pytest.fixture
def node():
    """``conformesh node`` in this process, without the price of a start; signals and log are as before afterwards."""
    pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    log = logging.getLogger("conformesh.node")
    state = [*log.handlers], log.level, log.propagate
    yield lambda *words: CliRunner().invoke(app, ["node", *map(str, words)])
    for number, handler in before.items():
        signal.signal(number, handler)
    log.handlers[:], log.propagate = state[0], state[2]
    log.setLevel(state[1])


def test_alone_a_device_fails_in_plain_words(node):
    """Also where it may go on without others: one of two is no quorum, or each of them would have its own threshold."""
    with short_folder() as root:
        folders, _ = make_mesh(root / "m", Network.chain(2), scores=drawn_scores(2, low=20), insecure=True)
        words = (folders[0], "--once", "--json", "--patience", "0.3")
        result = node(*words)
        assert (result.exit_code, result.stdout) == (1, "")
        wanted = "error: device-01 has not said hello within 0.3 s; start again"
        assert result.stderr.splitlines()[-1].startswith(wanted)
        assert "unexpected" not in result.stderr
        result = node(*words, "--on-lost", "continue", "--log", "progress")
        assert (result.exit_code, result.stdout) == (1, "")
        *lines, last = result.stderr.splitlines()
        assert last.startswith(
            "error: device-01 has not said hello within 0.3 s; without {device-01} 1 of 2 devices is"
        )
        said = [json.loads(line) for line in lines]
        progress = [one for one in said if one["message"] == "progress"]
        assert (progress[0]["phase"], progress[0]["heard"], progress[0]["expected"]) == ("greeting", 0, 1)
        assert progress[-1]["phase"] == "failed"
