"""`conformesh predict`: the library's sets, row by row."""

from __future__ import annotations

import csv as csv_module
import io
import json

import numpy as np
import polars as pl
import pytest

from conformesh import Calibration
from conformesh import scores as kinds

LABELS = ["cat", "dog", "owl", "fox"]


@pytest.fixture
def probabilities() -> np.ndarray:
    return np.random.default_rng(5).dirichlet(np.full(4, 0.6), 30)


@pytest.fixture
def result(run, scores) -> str:
    """A calibration whose devices have thresholds of their own."""
    assert run("calibrate", scores, "--method", "local", "--alpha", "0.2", "--out", "r.json").exit_code == 0
    return "r.json"


def rows_of(text: str) -> list[dict[str, str]]:
    return [*csv_module.DictReader(io.StringIO(text))]


def as_csv(values: np.ndarray, labels: list[str], device: list[str] | None = None) -> str:
    head = ([] if device is None else ["device"]) + labels
    lines = [",".join(head)]
    for i, row in enumerate(values.tolist()):
        lines.append(",".join(([] if device is None else [device[i]]) + list(map(repr, row))))
    return "\n".join(lines) + "\n"


def sets_of(text: str, labels: list[str]) -> np.ndarray:
    rows = rows_of(text)
    assert [int(row["row"]) for row in rows] == list(range(len(rows)))
    found = np.array([[label in row["set"].split() for label in labels] for row in rows])
    assert [int(row["size"]) for row in rows] == found.sum(axis=1).tolist()
    return found


@pytest.mark.parametrize("score", ["lac", "margin", "aps", "raps"])
def test_sets_equal_the_library(run, csv, result, probabilities, score):
    answer = run("predict", result, csv(as_csv(probabilities, LABELS)), "--score", score)
    assert answer.exit_code == 0, answer.output
    expected = Calibration.load(result).predict(probabilities, score=kinds.get_score(score))
    assert np.array_equal(sets_of(answer.stdout, LABELS), expected)
    assert answer.stderr == ""


def test_formats_agree(run, csv, result, probabilities, tmp_path):
    files = [csv(as_csv(probabilities, ["0", "1", "2", "3"])), "p.parquet", "p.npz", "o.npz", "p.npy"]
    pl.DataFrame(probabilities, schema=["0", "1", "2", "3"], orient="row").write_parquet("p.parquet")
    np.savez("p.npz", probabilities=probabilities, logits=probabilities * 9)
    np.savez("o.npz", outputs=probabilities)
    np.save("p.npy", probabilities)
    answers = {run("predict", result, name, "--score", "lac").stdout for name in files}
    answers.add(run("predict", result, "-", "--score", "lac", input=as_csv(probabilities, ["0", "1", "2", "3"])).stdout)
    assert len(answers) == 1


def test_json_lines_and_indices(run, csv, result, probabilities):
    path = csv(as_csv(probabilities, LABELS))
    lines = [json.loads(line) for line in run("predict", result, path, "--format", "jsonl").stdout.splitlines()]
    numbers = [
        json.loads(x) for x in run("predict", result, path, "--format", "jsonl", "--indices").stdout.splitlines()
    ]
    assert len(lines) == len(probabilities)
    for named, numbered in zip(lines, numbers, strict=True):
        assert named["size"] == len(named["set"])
        assert named["set"] == [LABELS[i] for i in numbered["set"]]


def test_rows_use_the_threshold_of_their_device(run, csv, result, probabilities):
    calibration = Calibration.load(result)
    device = [calibration.device_ids[i % 12] for i in range(len(probabilities))]
    expected = calibration.predict(probabilities, score=kinds.LAC(), device=device)
    path = csv(as_csv(probabilities, LABELS, device))
    assert np.array_equal(sets_of(run("predict", result, path).stdout, LABELS), expected)
    renamed = csv(path.read_text().replace("device,", "where,"), "renamed.csv")
    answer = run("predict", result, renamed, "--device-column", "where")
    assert np.array_equal(sets_of(answer.stdout, LABELS), expected)
    np.savez("p.npz", probabilities=probabilities, device=np.array(device))
    answer = run("predict", result, "p.npz")
    assert np.array_equal(sets_of(answer.stdout, ["0", "1", "2", "3"]), expected)
    one = run("predict", result, path, "--device", device[0])
    assert np.array_equal(
        sets_of(one.stdout, LABELS), calibration.predict(probabilities, score=kinds.LAC(), device=device[0])
    )


def test_score_comes_from_the_result_the_flag_or_a_note(run, csv, scores, result, probabilities):
    path = csv(as_csv(probabilities, LABELS))
    assert run("predict", result, path).stderr == (
        "note: the result does not name its score, taking 'lac'; name it with --score\n"
    )
    run("calibrate", scores, "--score", "aps", "--out", "aps.json")
    assert run("predict", "aps.json", path).stdout == run("predict", "aps.json", path, "--score", "aps").stdout
    clash = run("predict", "aps.json", path, "--score", "lac")
    assert clash.exit_code == 2
    assert "calibrated with APS" in clash.stderr


def test_intervals_for_regression(run, csv, scores):
    run("calibrate", scores, "--score", "absolute-residual", "--out", "r.json")
    predictions = np.array([1.0, -2.5, 1e6])
    text = run("predict", "r.json", csv("y\n1\n-2.5\n1e6\n")).stdout
    found = np.array([[float(row["lower"]), float(row["upper"])] for row in rows_of(text)])
    assert np.array_equal(found, Calibration.load("r.json").predict(predictions))
    run("calibrate", csv("device,score\na,1\nb,2\nc,2\nd,1\n"), "--score", "cqr", "--out", "inf.json")
    bands = csv("low,high\n0,1\n", "bands.csv")
    assert rows_of(run("predict", "inf.json", bands).stdout) == [{"row": "0", "lower": "-inf", "upper": "inf"}]
    assert json.loads(run("predict", "inf.json", bands, "--format", "jsonl").stdout)["upper"] == "inf"


def test_logits_are_taken_for_the_logit_score(run, csv, scores, probabilities):
    run("calibrate", scores, "--score", "logit", "--out", "r.json")
    np.savez("p.npz", probabilities=probabilities, logits=9 * probabilities)
    expected = Calibration.load("r.json").predict(9 * probabilities)
    assert np.array_equal(sets_of(run("predict", "r.json", "p.npz").stdout, ["0", "1", "2", "3"]), expected)


def test_quoting(run, csv, result):
    answer = run("predict", result, csv('"a, b",c\n0.5,0.5\n'))
    assert rows_of(answer.stdout)[0]["set"] == "a, b c"
    assert "--format jsonl" in answer.stderr


def test_pipeline(command, scores, tmp_path, probabilities):
    (tmp_path / "p.csv").write_text(as_csv(probabilities, LABELS))
    calibrated = command("calibrate", "-", "--json", input=scores.read_text())
    assert calibrated.returncode == 0, calibrated.stderr
    answer = command("predict", "-", "p.csv", "--score", "lac", input=calibrated.stdout)
    expected = Calibration.from_dict(json.loads(calibrated.stdout)).predict(probabilities, score=kinds.LAC())
    assert np.array_equal(sets_of(answer.stdout, LABELS), expected)


BAD = {
    "both stdin": (["-", "-"], "only one of RESULT and PROBABILITIES"),
    "both devices": (["r.json", "p.csv", "--device", "d1", "--device-column", "x"], "not both"),
    "not JSON": (["p.csv", "p.csv"], "does not parse"),
    "other JSON": (["other.json", "p.csv"], "needed a result of `conformesh calibrate`"),
    "half a result": (["half.json", "p.csv"], "half.json: it lacks"),
    "unknown device": (["r.json", "p.csv", "--device", "zz"], "unknown device 'zz'"),
    "unknown device in a row": (["r.json", "strange.csv"], "unknown device 'zz'"),
    "missing column": (["r.json", "p.csv", "--device-column", "zz"], "needs a column 'zz'"),
    "text": (["r.json", "text.csv"], "text.csv, line 2: dog must be a number, got 'x'"),
    "logits": (["r.json", "logits.csv"], "these look like logits"),
    "no class": (["r.json", "device.csv"], "no column but 'device'"),
    "npz without outputs": (["r.json", "x.npz"], "needs an array 'probabilities', 'logits' or 'outputs'"),
    "npz lengths": (["r.json", "y.npz"], "one entry per row"),
    "npz shape": (["r.json", "z.npy"], "(rows, classes)"),
    "columns": (["r.json", "p.csv", "--score", "cqr"], "shape (rows, 2)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(run, csv, result, probabilities, case):
    csv(as_csv(probabilities, LABELS), "p.csv")
    csv("cat,dog\n0.5,x\n", "text.csv")
    csv("cat,dog\n5,7\n", "logits.csv")
    csv("device\nd1\n", "device.csv")
    csv("device,cat,dog\nzz,0.5,0.5\n", "strange.csv")
    csv('{"a": 1}', "other.json")
    csv('{"format": "conformesh-calibration/1"}', "half.json")
    np.savez("x.npz", q=probabilities)
    np.savez("y.npz", probabilities=probabilities, device=np.array(["d1"]))
    np.save("z.npy", np.zeros((2, 2, 2)))
    words, problem = BAD[case]
    answer = run("predict", *words)
    assert answer.exit_code == 2, answer.output
    assert problem in answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("error: ")
    assert answer.stdout == ""
