"""`conformesh scores import`: saved objects become a file of scores, if they are trusted."""

import pickle
import sys
import types

import numpy as np
import pytest

from conformesh import Result
from conformesh.files.score_files import read_scores
from conformesh.scores import AbsoluteResidual


@pytest.fixture
def saved(monkeypatch, tmp_path):
    """Two files as crepes would make them, one per device."""
    kind = type("ConformalRegressor", (), {"__module__": "crepes"})
    library = types.ModuleType("crepes")
    library.ConformalRegressor = kind
    monkeypatch.setitem(sys.modules, "crepes", library)
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        made = kind()
        made.alphas, made.normalized = rng.random(30), name == "odd"
        (tmp_path / f"{name}.pkl").write_bytes(pickle.dumps(made))
    return tmp_path


def test_saved_objects_become_a_file_of_scores(saved, run):
    done = run("scores", "import", "north.pkl", "far=south.pkl", "--out", "scores.csv", "--trust")
    assert done.exit_code == 0, done.stderr
    assert "2 with 60 scores in all" in done.stdout
    assert "score: absolute-residual, recorded in the file" in done.stdout
    assert read_scores(str(saved / "scores.csv")).devices == ("far", "north")
    assert run("calibrate", "scores.csv", "--out", "r.json").exit_code == 0
    assert Result.load("r.json").score == AbsoluteResidual()


def test_nothing_is_read_without_trust(saved, run):
    done = run("scores", "import", "north.pkl", "--out", "scores.csv")
    assert done.exit_code != 0
    assert "runs whatever program is in the file" in done.stderr
    assert not (saved / "scores.csv").exists()


def test_two_files_of_one_name_are_refused(saved, run):
    done = run("scores", "import", "north.pkl", "north=south.pkl", "--out", "scores.csv", "--trust")
    assert "two files are called 'north'; name their devices: NAME=FILE" in done.stderr
