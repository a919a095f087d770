"""``conformesh demo --mesh``: a mesh from nothing, as exact as the simulator, and nothing left behind."""

import json
import socket
import stat

import pytest
from click.testing import CliRunner

from conformesh.cli import app
from conformesh.cli.demo_mesh import _is_free, find_free_ports


def run(*words):
    return CliRunner().invoke(app, ["demo", "--mesh", *map(str, words)])


@pytest.fixture
def needs_the_extra():
    for module in ("zenoh", "cryptography"):
        pytest.importorskip(module, reason="a mesh needs the extra `mesh`")


@pytest.mark.usefixtures("needs_the_extra")
def test_a_mesh_from_nothing_equals_the_simulator(tmp_path):
    result = run("--out", tmp_path / "out", "--devices", "4", "--alpha", "0.2")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert result.stdout.count("  done") == 4
    assert "the same bit for bit" in result.stdout
    assert [*tmp_path.iterdir()] == []  # no keys, and no folder that was not there


@pytest.mark.usefixtures("needs_the_extra")
def test_it_can_be_kept_and_read_by_programs(tmp_path):
    (tmp_path / "mine").write_text("stays")
    result = run("--out", tmp_path, "--devices", "4", "--keep", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["equal"]
    simulated = {*found["simulated"]["answers"][0]["thresholds"]}
    assert all({*one["answers"][0]["thresholds"]} == simulated for one in found["results"])
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert found["folder"] == str(folder)
    assert stat.S_IMODE((folder / "device-00" / "device.key").stat().st_mode) == 0o600
    assert (tmp_path / "mine").read_text() == "stays"


@pytest.mark.usefixtures("needs_the_extra")
def test_devices_that_fail_end_with_1_and_leaves_no_keys(tmp_path, monkeypatch):
    from conformesh.cli import demo_mesh

    def without_scores(folders, **how):
        for folder in folders:  # all of them: none has to wait for another
            (folder / "scores.csv").unlink()
        return launch(folders, **how)

    launch = demo_mesh.start_devices
    monkeypatch.setattr(demo_mesh, "start_devices", without_scores)
    result = run("--out", tmp_path, "--devices", "4")
    assert result.exit_code == 1
    assert "needs a file with its scores" in result.stdout
    assert "on 0 of 4 devices only" in result.stdout
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("missing", ["zenoh", "cryptography"])
def test_what_is_missing_is_said_in_one_line(tmp_path, monkeypatch, missing):
    def find(name, *rest):
        if name == missing:
            raise ImportError(name)
        return object()

    monkeypatch.setattr("conformesh.cli.demo_mesh.import_module", find)
    result = run("--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr == f"error: demo --mesh needs {missing}: pip install 'conformesh[mesh]'\n"
    assert not (tmp_path / "out").exists()


def test_ports_are_free():
    first = find_free_ports(3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 1))
        assert not _is_free(first + 1)
        assert not first <= find_free_ports(3) <= first + 1
