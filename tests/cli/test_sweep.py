"""`conformesh sweep`: the grid beforehand, rows and summary afterwards, one line for what is wrong."""

import json
from pathlib import Path

import polars as pl

from conformesh.lab.sweeps.config import read_sweep_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "sweep.toml"
CONFIG = """
draws = 2
alphas = [0.1, 0.2]
scores = { source = "synthetic", test_per_device = 5 }
networks = [{ topology = "chain", devices = 6 }]
methods = [{ name = "e-dcp" }, { name = "average" }]
"""


def test_the_example_is_right_and_dry_run_writes_nothing(run, tmp_path):
    assert len(read_sweep_config(EXAMPLE).networks) == 3
    result = run("sweep", EXAMPLE, "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "20 draws, alpha 0.05, 0.1, 0.2: 720 rows from 240 cells" in result.stdout
    assert len(result.stdout.splitlines()) == 2 + 3 * 4 + 3
    assert not [*tmp_path.iterdir()]


def test_rows_summary_and_provenance(run, tmp_path):
    (tmp_path / "sweep.toml").write_text(CONFIG)
    result = run("sweep", "sweep.toml", "--out", "out", "--jobs", 1)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "8 rows: out/rows.parquet"
    assert result.stdout.split()[:5] == ["network", "method", "alpha", "draws", "threshold"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "cells",
        "rows.parquet",
        "summary.csv",
        "provenance.json",
    }
    again = run("sweep", "sweep.toml", "--out", "out", "--jobs", 1, "--json")
    lines = json.loads(again.stdout)
    assert len(lines) == len(pl.read_csv(tmp_path / "out" / "summary.csv")) == 4
    assert {line["covered"] is not None for line in lines} == {True}
    assert json.loads((tmp_path / "out" / "provenance.json").read_text())["computed"] == 0


def test_a_wrong_key_is_one_line(run, tmp_path):
    (tmp_path / "sweep.toml").write_text(CONFIG.replace("alphas", "alfas"))
    result = run("sweep", "sweep.toml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: sweep.toml: unknown field 'alfas', did you mean 'alphas'? known: scores")
    assert result.stderr.count("\n") == 1


def test_a_network_that_cannot_be_built_is_said_before_anything_runs(run, tmp_path):
    (tmp_path / "sweep.toml").write_text(CONFIG.replace('"chain", devices = 6', '"torus", devices = 7'))
    for words in (("--dry-run",), ("--out", "out")):
        result = run("sweep", "sweep.toml", *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("error: networks: topology 'torus' with 7 devices: ")
    assert not (tmp_path / "out").exists()


def test_an_unknown_backend_is_refused(run, tmp_path):
    (tmp_path / "sweep.toml").write_text(CONFIG)
    result = run("sweep", "sweep.toml", "--backend", "dusk")
    assert result.exit_code == 2
    assert "unknown backend 'dusk', did you mean 'dask'? known: loky, dask, ray" in result.stderr
