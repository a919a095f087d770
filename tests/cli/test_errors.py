"""Bad input is one line on stderr, exit code 2, and nothing on stdout."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

GOOD = "device,score\n" + "".join(f"{k},{(7 * k + 3 * i) % 10}\n" for k in range(4) for i in range(10))


def refused(result, *words: str, lines: int = 1) -> str:
    """Check that the command said what was wrong, and return the line."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == lines, result.stderr
    for word in words:
        assert word in result.stderr
    return result.stderr


FILES = {
    "nan": ("device,score\na,0.5\nb,nan\n", ["small.csv, line 3", "got NaN", "device 'b'"]),
    "empty file": ("", ["small.csv is empty", "'device' and 'score'"]),
    "only blank": ("\n\n", ["small.csv is empty"]),
    "no rows": ("device,score\n", ["small.csv has no rows"]),
    "missing score": (
        "device,scroe\na,1\n",
        ["needs a column 'score'", "'device', 'scroe'", "did you mean", "--score-column"],
    ),
    "missing device": ("place,score\na,1\n", ["needs a column 'device'", "'place', 'score'", "--device-column"]),
    "text for a number": ("device,score\na,0.5\nb,abc\n", ["line 3", "must be a number", "'abc'"]),
    "empty score": ("device,score\na,0.5\nb,\n", ["line 3", "the cell is empty"]),
    "empty device": ("device,score\na,0.5\n  ,0.2\n", ["line 3", "the device is empty"]),
    "ragged": ("device,score\na,0.5\nb,1,2\n", ["line 3 has 3 fields, the header 2"]),
    "blank lines count": ("device,score\n\na,0.5\n\nb,x\n", ["line 5", "'x'"]),
}


@pytest.mark.parametrize("case", FILES)
def test_bad_files(run, csv, case):
    text, words = FILES[case]
    refused(run("calibrate", csv(text)), *words)


@pytest.mark.parametrize("case", ["nan", "text for a number", "no rows"])
def test_bad_standard_input_has_a_name(run, case):
    text, _ = FILES[case]
    assert "standard input" in refused(run("calibrate", "-", input=text))


def test_bad_parquet_and_npz(run, tmp_path):
    pl.DataFrame({"device": ["a", "b"], "score": [0.5, None]}).write_parquet("x.parquet")
    refused(run("calibrate", "x.parquet"), "x.parquet, row 1", "the cell is empty")
    pl.DataFrame({"device": ["a", "b"], "score": [0.5, float("nan")]}).write_parquet("x.parquet")
    refused(run("calibrate", "x.parquet"), "row 1", "NaN")
    pl.DataFrame({"device": [1.5, 2.0], "score": [0.5, 1.0]}).write_parquet("x.parquet")
    refused(run("calibrate", "x.parquet"), "'device' must hold names or integers")
    (tmp_path / "x.parquet").write_bytes(b"not parquet at all")
    refused(run("calibrate", "x.parquet"), "cannot be read as Parquet")
    np.savez("x.npz", device=np.array(["a", "b"]), score=np.array([1.0]))
    refused(run("calibrate", "x.npz"), "lengths device 2, score 1")
    np.savez("x.npz", device=np.array(["a", "b"]), score=np.array([[1.0], [2.0]]))
    refused(run("calibrate", "x.npz"), "'score' must be one-dimensional")
    np.savez("x.npz", device=np.array(["a", "b"]), score=np.array(["x", "y"]))
    refused(run("calibrate", "x.npz"), "'score' must hold numbers")
    np.savez("x.npz", device=np.array(["a", ""]), score=np.array([1.0, 2.0]))
    refused(run("calibrate", "x.npz"), "row 1", "the device is empty")
    np.savez("x.npz", device=np.array([], dtype=str), score=np.array([]))
    refused(run("calibrate", "x.npz"), "no rows")
    np.savez("x.npz", device=np.array([{}, {}]), score=np.array([1.0, 2.0]))
    refused(run("calibrate", "x.npz"), "cannot be read as NPZ")
    (tmp_path / "x.npz").write_bytes(b"PK nonsense")
    refused(run("calibrate", "x.npz"), "cannot be read as NPZ")


def test_unreadable_files(run, tmp_path):
    refused(run("calibrate", "nowhere.csv"), "nowhere.csv: cannot read the file")
    refused(run("calibrate", tmp_path), "a folder of scores holds Parquet files or NPZ files, this one has neither")
    refused(run("predict", "nowhere.json", "nowhere.csv"), "nowhere.json")


FLAGS = {
    "alpha too large": ("--alpha 1.2", "alpha must lie strictly between 0 and 1, got 1.2"),
    "alpha zero": ("--alpha 0", "alpha must lie strictly between 0 and 1, got 0"),
    "alpha text": ("--alpha often", "alpha must be a number strictly between 0 and 1, got 'often'"),
    "method": ("--method hdcp", "unknown method 'hdcp', did you mean 'h-dcp'?"),
    "engine": ("--engine mpu", "unknown engine 'mpu', did you mean 'mpi'?"),
    "topology": ("--network rign", "unknown topology 'rign'"),
    "topology misspelt": ("--network torsu", "did you mean 'torus'?"),
    "score": ("--score lca", "unknown score 'lca', did you mean 'lac'?"),
    "other method's option": ("--method h-dcp --kappa 3", "method 'h-dcp' has no option 'kappa': it belongs to q-dcp"),
    "no options at all": ("--method cp --rounds 3", "method 'cp' has no option 'rounds'"),
    "choice": ("--method h-dcp --bound sound", "bound must be 'cumulative' or 'row' or 'paper', got 'sound'"),
    "integer": ("--method h-dcp --rounds many", "rounds must be a whole number, got 'many'"),
    "number": ("--method h-dcp --eta fast", "eta must be a number, got 'fast'"),
    "range text": ("--method h-dcp --range 0 top", "range must be a number, got 'top'"),
    "range reversed": ("--method h-dcp --range 3 1", "range must be two finite numbers LO < HI"),
    "wire": ("--method h-dcp --wire 8", "wire must be 16, 32 or 64"),
    "seed text": ("--seed x", "seed must be a whole number, got 'x'"),
    "seed negative": ("--seed -1", "seed must be at least 0, got -1"),
    "topology option unknown": ("--network-option q=1", "topology 'torus' has no option 'q'"),
    "topology option text": ("--network-option rows=x", "network option rows must be a whole number, got 'x'"),
    "topology option no pair": ("--network-option rows", "network option must be key=value, got 'rows'"),
    "score option unknown": ("--score raps --score-option q=1", "unknown option of score 'raps' 'q'"),
    "score option alone": ("--score-option q=1", "needs --score"),
    "network option of a file": ("--network x.txt --network-option rows=3", "x.txt is a file of edges"),
    "network that is nothing": ("--network x", "nor is there a file x of edges"),
    "no directory": (
        "--out no/such/place.json",
        "error: no/such/place.json: cannot write the file: No such file or directory; check the folder",
    ),
}


@pytest.mark.parametrize("case", FLAGS)
def test_bad_flags(run, csv, case):
    flags, words = FLAGS[case]
    refused(run("calibrate", csv(GOOD), *flags.split()), words)


def test_bad_graphs(run, csv):
    scores = csv(GOOD)
    refused(
        run("calibrate", scores, "--network", csv("0 1\n1 2\n", "edges.txt")),
        "unknown device '3'",
        "small.csv",
        "edges.txt",
    )
    refused(
        run("calibrate", scores, "--network", csv("0 1\n2 3\n", "edges.txt")),
        "not connected",
        "2 components: {0, 1} and {2, 3}",
    )
    refused(run("calibrate", scores, "--network", csv("0 1 2\n", "edges.txt")), "line 1", "two device names")
    refused(run("calibrate", scores, "--network", "nowhere.txt"), "nowhere.txt")


USAGE = {
    "no scores": (["calibrate"], "Missing argument 'SCORES'", "try: conformesh calibrate --help"),
    "no such flag": (["calibrate", "x.csv", "--bogus"], "No such option", "try: conformesh calibrate --help"),
    "half a range": (["calibrate", "x.csv", "--range", "1"], "'--range' requires 2 arguments", "try: conformesh"),
    "no such command": (["calibrte"], "'calibrte'", "try: conformesh --help"),
    "format": (["predict", "a", "b", "--format", "xml"], "--format", "try: conformesh predict --help"),
}


@pytest.mark.parametrize("case", USAGE)
def test_usage_errors_are_a_line_and_a_hint(run, case):
    words, problem, hint = USAGE[case]
    error, advice = refused(run(*words), lines=2).splitlines()
    assert problem in error
    assert advice.startswith(hint)


def test_unexpected_failures_exit_1_and_debug_shows_where(run, csv, monkeypatch):
    monkeypatch.setattr("conformesh.files.score_files.read_table", lambda source, *_: {}[source])
    result = run("calibrate", csv(GOOD))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: unexpected KeyError: ")
    assert "--debug" in result.stderr
    assert result.stderr.count("\n") == 1
    for words in (("--debug", "calibrate", csv(GOOD)), ("calibrate", csv(GOOD), "--debug")):
        result = run(*words)
        assert result.exit_code == 1
        assert "Traceback (most recent call last)" in result.stderr
        assert "KeyError" in result.stderr


def test_debug_also_explains_bad_input(run):
    result = run("calibrate", "nowhere.csv", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "Traceback" not in run("calibrate", "nowhere.csv").stderr
