"""The Flower example: clients agree on a certified threshold, and no score is in anything that the server hears."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the Flower example needs flwr: pip install 'conformesh[flower]', or make test-all")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Flower's dependencies may warn
FOLDER = Path(__file__).parents[2] / "examples" / "flower"


@pytest.fixture
def run(monkeypatch):
    """The example, imported as `python run.py` finds it."""
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("run")
    for name in ("run", "apps"):
        del sys.modules[name]


def numbers_in(message):
    """Every number of a message to the server."""
    for record in message.content.values():
        if hasattr(record, "to_numpy_ndarrays"):
            yield from (array.ravel() for array in record.to_numpy_ndarrays())
        else:
            yield from (np.ravel(value).astype(float) for value in record.values())


def test_clients_agree_and_the_server_hears_no_score(run, capsys):
    grid, result = run.main([])
    held = [run.scores_kept(context) for context in grid.clients.values()]
    assert result.certificate.kind == "counted"
    assert result.threshold == np.sort(np.concatenate(held))[result.certificate.required_rank - 1]
    heard = np.concatenate([each for message in grid.heard for each in numbers_in(message)])
    assert not np.isin(np.concatenate(held), heard).any()
    asked = [message for message in grid.heard if message.metadata.message_type == "query.score"]
    assert len(asked) == run.CLIENTS
    assert all({name: dict(record) for name, record in m.content.items()} == {"done": {"ready": True}} for m in asked)
    said = capsys.readouterr().out
    assert "counted: the rank was counted exactly" in said
    assert "coverage 0.9" in said


def test_the_check_would_notice_a_score(run):
    """The check itself: a client that answers with its scores is found out."""
    grid, _ = run.federate()
    one = next(iter(grid.clients.values()))
    told = run.Message(run.RecordDict({"scores": one.state["scores"]}), reply_to=grid.heard[0])
    assert np.isin(run.scores_kept(one), np.concatenate([*numbers_in(told)])).all()


@pytest.mark.xdist_group("mesh")
def test_the_mesh_finds_the_simulators_threshold(run, capsys):
    pytest.importorskip("zenoh", reason="a mesh needs zenoh: pip install 'conformesh[mesh]'")
    run.main(["--mesh"])
    said = capsys.readouterr().out
    assert f"the mesh of {run.CLIENTS} processes found the same, bit for bit" in said
    shown = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert said.strip() in shown, "the README shows another run"
