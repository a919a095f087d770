"""One file and one line: a method, aggregator, engine, score or topology from docs/skeletons is then everywhere."""

import doctest
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import conformesh
from conformesh import TOPOLOGIES, Network, calibrate
from conformesh.engines import ENGINES
from conformesh.scores import get_score
from tests.with_skeletons import FOLDER, TABLES, add_all, skeleton

ROOT = Path(__file__).parents[1]


@pytest.fixture
def skeletons():
    """Add every skeleton for one test."""
    before = {kind: dict(table) for kind, table in TABLES.items()}
    add_all()
    yield
    for kind, table in TABLES.items():
        table.clear()
        table.update(before[kind])


@pytest.fixture
def scores(tmp_path):
    """A file of unequal scores on six devices."""
    rng = np.random.default_rng(1)
    lines = [f"{k},{x!r}" for k in range(6) for x in rng.random(int(rng.integers(20, 40))).tolist()]
    (tmp_path / "scores.csv").write_text("device,score\n" + "\n".join(lines) + "\n")
    return tmp_path / "scores.csv"


def typed(*words):
    """What a command prints in a process where the skeletons are in their tables."""
    paths = [str(Path(conformesh.__file__).parents[1]), str(ROOT)]
    plain = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200", "TERM": "dumb"}
    command = [sys.executable, "-m", "tests.with_skeletons", *map(str, words)]
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_skeleton_is_tried_here():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*TABLES}


def test_examples_of_skeletons_hold():
    for kind in TABLES:
        assert doctest.testmod(skeleton(kind)).failed == 0


# --- a method, a score, a topology ------------------------------------------------------------------------------------


def test_the_method_runs(skeletons, topology, twenty_devices):
    for wire in (16, 32, 64):
        result = calibrate(twenty_devices, topology, 0.1, "largest", wire=wire)
        pooled = np.concatenate(twenty_devices)
        assert result.threshold >= pooled.max()
        assert len(set(result.thresholds.tolist())) == 1
        assert result.certificate.counted_rank == len(pooled)
        assert result.cost.rounds == topology.diameter
        assert result.cost.bits_per_device == wire * topology.diameter


def test_the_score_runs(skeletons):
    score = get_score("rank")
    p = np.random.default_rng(0).dirichlet(np.ones(5), size=200)
    labels = np.arange(200) % 5
    own = score(p, labels)
    np.testing.assert_array_equal(own, score.of_all_labels(p)[np.arange(200), labels])
    for threshold in (-1.0, 0.0, 2.0, 4.0, np.inf):
        sets = score.sets(p, threshold)
        np.testing.assert_array_equal(sets[np.arange(200), labels], own <= threshold)
        np.testing.assert_array_equal(score.covers(p, labels, threshold), own <= threshold)
    result = calibrate(np.split(own, 4), Network.cycle(4), 0.2, score=score)
    assert result.evaluate(p, labels).coverage.rate >= 0.8


def test_the_topology_runs(skeletons):
    network = Network.of("wheel", 20, spokes=3)
    assert network.devices == 20
    assert network.degree[0] == 7
    assert Network.wheel(20).diameter == 2
    assert not TOPOLOGIES["wheel"].random
    with pytest.raises(ValueError, match="wheel needs at least 4 devices"):
        Network.of("wheel", 3)


# --- an engine --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("network", [Network.torus(3, 4), Network.star(5)], ids=str)
def test_the_engine_runs_every_method_as_the_simulator_does(skeletons, network, method):
    rng = np.random.default_rng(0)
    scores = [rng.normal(size=rng.integers(5, 40)) for _ in range(network.devices)]
    options = {"rounds": 20} if method == "q-dcp" else {"bins": 20} if method == "h-dcp" else {}
    mine, theirs = (calibrate(scores, network, 0.2, method, engine=name, **options) for name in ("loops", "simulator"))
    assert mine.thresholds.tobytes() == theirs.thresholds.tobytes()
    assert mine.certificate == theirs.certificate
    assert mine.cost.rounds == theirs.cost.rounds
    np.testing.assert_array_equal(mine.cost.bits, theirs.cost.bits)


def test_the_engine_that_was_chosen_runs(skeletons, scores, monkeypatch, capsys):
    """Before, any engine but mpi was accepted by `--engine`, and the simulator ran."""
    from conformesh.cli import app

    ran = []
    engine = ENGINES["loops"].make
    monkeypatch.setattr(engine, "run", lambda self, *given, run=engine.run: ran.append(self) or run(self, *given))
    with pytest.raises(SystemExit) as end:
        app(["calibrate", str(scores), "--engine", "loops", "--json"])
    assert end.value.code == 0
    assert len(ran) == 1
    assert json.loads(capsys.readouterr().out)["certificate"]["kind"] == "counted"


def test_the_command_line_knows_the_engine(scores):
    assert "--engine simulator|mpi|loops" in " ".join(typed("calibrate", "--help").split())
    assert "loops, one process for all devices, in plain loops" in " ".join(typed("calibrate", "--help").split())
    mine, theirs = (
        json.loads(typed("calibrate", scores, "--json", "--engine", name)) for name in ("loops", "simulator")
    )
    assert mine["thresholds"] == theirs["thresholds"]
