"""`conformesh reproduce`: what there is, one experiment from nothing, and everything in a smoke version."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

from conformesh.cli import app
from conformesh.lab.datasets.synthetic import synthetic_outputs
from conformesh.lab.reproduction.experiments import EXPERIMENTS, get_experiment
from conformesh.lab.reproduction.reproduction import DEFAULT_SEED, PAPER_DRAWS

pytestmark = pytest.mark.xdist_group("reproduce")  # they share what is computed
WORDS = ("reproduce", "star-table", "--quick", "--scores", "logits", "--jobs", "1")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The table from nothing; without outputs of a real model."""
    folder = tmp_path_factory.mktemp("reproduce") / "results" / "table"  # neither exists yet
    return CliRunner().invoke(app, [*WORDS, "--out", str(folder)]), folder


def test_list_names_everything(run):
    result = run("reproduce", "--list")
    assert (result.exit_code, result.stderr) == (0, "")
    head, _, *rows = result.stdout.splitlines()
    assert head.split() == ["name", "item", "what"]
    assert len(rows) == len(EXPERIMENTS)
    for row, name in zip(rows, EXPERIMENTS, strict=True):
        assert row.startswith(name)
        assert get_experiment(name).item in row
        assert get_experiment(name).title in row


def test_help_says_what_is_written(run):
    page = " ".join(run("reproduce", "--help", env={"COLUMNS": "200"}).stdout.split())
    assert all(word in page for word in ("PDF, PNG", "report.html", "--data", "--quick", f"by default {PAPER_DRAWS}"))
    assert f"[default: {DEFAULT_SEED}]" in page


def test_without_a_name_it_says_which_there_are(run, tmp_path):
    result = run("reproduce")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: reproduce needs a name, or all; known: q-dcp-alpha, ")
    assert result.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_an_unknown_name_suggests_the_nearest(run, tmp_path):
    result = run("reproduce", "star-tabel", "--quick")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: unknown experiment 'star-tabel', did you mean 'star-table'? known: ")
    assert result.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("words", [("--draws", "0"), ("--jobs", "0"), ("--scores", "softmax"), ("--seed", "x")])
def test_flags_are_checked(run, words, tmp_path):
    result = run("reproduce", "star-table", *words)
    assert result.exit_code == 2
    assert words[0] in result.stderr
    assert not [*tmp_path.iterdir()]


def test_outputs_of_another_size_are_refused(run, tmp_path):
    np.savez(tmp_path / "seven.npz", logits=np.zeros((4, 7)), labels=np.arange(4))
    result = run("reproduce", "star-table", "--quick", "--data", "seven.npz")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: seven.npz: the paper's experiments need outputs for 100 (cifar100) or 9")
    assert [path.name for path in tmp_path.iterdir()] == ["seven.npz"]


def test_a_table_and_files_from_nothing(first):
    result, folder = first
    assert result.exit_code == 0, result.output
    note = "note: no --data for cifar100: using synthetic outputs, and saying so in every picture\n"
    assert result.stderr == note
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["item", "experiment", "scores", "variant", "verdict"]
    assert [line.split()[:5] for line in lines[2:4]] == [
        ["Table", "1", "star-table", "logits", variant] for variant in ("as-written", "as-released")
    ]
    assert all("2 findings hold" in line for line in lines[2:4])
    assert lines[4].startswith("14 of 14 points computed in ")
    assert lines[5] == f"report: {folder / 'report.html'}"
    written = {path.name for path in folder.iterdir()}
    assert written == {
        *("cache", "provenance.json", "report.html", "rows.parquet"),
        *("star-table.csv", "star-table-logits.pdf", "star-table-logits.png"),
    }
    assert "Synthetic data." in (folder / "report.html").read_text()


def test_a_second_run_computes_nothing_and_speaks_json(first, run):
    _, folder = first
    result = run(*WORDS, "--out", folder, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["report"] == str(folder / "report.html")
    assert [(row["experiment"], row["item"], row["scores"], row["variant"]) for row in found["verdicts"]] == [
        ("star-table", "Table 1", "logits", variant) for variant in ("as-written", "as-released")
    ]
    for row in found["verdicts"]:
        assert row["verdict"].startswith("agrees" if row["agrees"] else "differs")
        assert [finding["says"] for finding in row["findings"]] == [f.says for f in get_experiment("table-1").findings]
        assert all(isinstance(finding["holds"], bool) and finding["figures"] for finding in row["findings"])
    provenance = json.loads((folder / "provenance.json").read_text())
    assert (provenance["computed"], provenance["points"], provenance["synthetic"]) == (0, 14, True)


def test_items_and_repeated_names_are_one_experiment(first, run):
    _, folder = first
    result = run("reproduce", "table-1", *WORDS[1:], "--out", folder)
    assert result.exit_code == 0
    assert "0 of 14 points computed" in result.stdout
    assert result.stdout.count("Table 1") == 2


def test_given_outputs_are_used(run, tmp_path):
    """What comes from a file is not called synthetic; the other data set is not missed where nobody asks for it."""
    outputs = synthetic_outputs(2000, 100)
    (tmp_path / "outputs").mkdir()
    np.savez(tmp_path / "outputs" / "mine.npz", logits=outputs.values, labels=outputs.labels)
    result = run(*WORDS, "--data", "outputs", "--out", "here", "--draws", "1", "--seed", "4")
    assert (result.exit_code, result.stderr) == (0, "")
    provenance = json.loads((tmp_path / "here" / "provenance.json").read_text())
    assert (provenance["seed"], provenance["draws"], provenance["synthetic"]) == (4, "1", False)
    assert provenance["data"]["cifar100"].startswith("mine.npz, sha256 ")
    assert "published points met" in result.stdout


@pytest.mark.slow
def test_everything_quickly_from_nothing(environment, tmp_path):
    """`reproduce all --quick`: every figure, without a warning, in less than three minutes on two cores."""
    words = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "conformesh.cli",
        "reproduce",
        "all",
        "--quick",
        "--jobs",
        "2",
        "--json",
    ]
    started = time.perf_counter()
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    seconds = time.perf_counter() - started
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "note: no --data for cifar100 and pathmnist: using synthetic outputs, and saying so in every picture"
    ]
    found = json.loads(done.stdout)
    assert len(found["verdicts"]) == 4 * len(EXPERIMENTS)
    folder = tmp_path / "conformesh-reproduction"
    for name in EXPERIMENTS:
        assert (folder / f"{name}.csv").stat().st_size > 500
        for scores in ("logits", "confidences"):
            assert (folder / f"{name}-{scores}.pdf").read_bytes().startswith(b"%PDF-")
            assert (folder / f"{name}-{scores}.png").read_bytes().startswith(b"\x89PNG")
    report = (folder / "report.html").read_text()
    assert report.count("<img ") == 2 * len(EXPERIMENTS)
    assert seconds < 180
