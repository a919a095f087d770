"""`conformesh predict`: the library's sets, row by row."""

from __future__ import annotations

import csv as csv_module
import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace

from conformesh import Network, Result, calibrate
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
    expected = Result.load(result).predict(probabilities, score=kinds.get_score(score))
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
    calibration = Result.load(result)
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
    assert np.array_equal(found, Result.load("r.json").predict(predictions))
    run("calibrate", csv("device,score\na,1\nb,2\nc,2\nd,1\n"), "--score", "cqr", "--out", "inf.json")
    bands = csv("low,high\n0,1\n", "bands.csv")
    assert rows_of(run("predict", "inf.json", bands).stdout) == [{"row": "0", "lower": "-inf", "upper": "inf"}]
    assert json.loads(run("predict", "inf.json", bands, "--format", "jsonl").stdout)["upper"] == "inf"


def test_intervals_of_two_sides(run, tmp_path):
    cqr = kinds.CQR()
    held = [cqr.sides(np.tile([0.0, 1.0], (40, 1)), np.arange(40) / 10 + k) for k in range(4)]
    sides = calibrate(held, Network.cycle(4), 0.1, symmetric=False, score=cqr)
    sides.save(tmp_path / "sides.json")
    (tmp_path / "bands.csv").write_text("lower,upper\n0,1\n2,5\n")
    done = run("predict", "sides.json", "bands.csv")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "row,lower,upper"
    ends = np.array([line.split(",")[1:] for line in lines[1:]], float)
    np.testing.assert_array_equal(ends, sides.predict([[0.0, 1.0], [2.0, 5.0]]))
    assert "say which alpha: 0.1, got 0.2" in run("predict", "sides.json", "bands.csv", "--alpha", "0.2").stderr


def test_logits_are_taken_for_the_logit_score(run, csv, scores, probabilities):
    run("calibrate", scores, "--score", "logit", "--out", "r.json")
    np.savez("p.npz", probabilities=probabilities, logits=9 * probabilities)
    expected = Result.load("r.json").predict(9 * probabilities)
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
    expected = Result.from_dict(json.loads(calibrated.stdout)).predict(probabilities, score=kinds.LAC())
    assert np.array_equal(sets_of(answer.stdout, LABELS), expected)


BAD = {
    "both stdin": (["-", "-"], "only one of RESULT and PROBABILITIES"),
    "both devices": (["r.json", "p.csv", "--device", "d1", "--device-column", "x"], "not both"),
    "not JSON": (["p.csv", "p.csv"], "does not parse"),
    "other JSON": (["other.json", "p.csv"], "needed a result of `conformesh calibrate`"),
    "half a result": (["half.json", "p.csv"], "half.json: it lacks"),
    "an old result": (["old.json", "p.csv"], "old.json: needed a result"),
    "what to do with it": (["old.json", "p.csv"], "calibrate again"),
    "unknown device": (["r.json", "p.csv", "--device", "zz"], "unknown device 'zz'"),
    "unknown device in a row": (["r.json", "strange.csv"], "unknown device 'zz'"),
    "missing column": (["r.json", "p.csv", "--device-column", "zz"], "needs a column 'zz'"),
    "text": (["r.json", "text.csv"], "text.csv, line 2: dog must be a number, got 'x'"),
    "logits": (["r.json", "logits.csv"], "these look like logits"),
    "no class": (["r.json", "device.csv"], "no column but 'device'"),
    "npz without outputs": (["r.json", "x.npz"], "needs an array 'probabilities', 'logits' or 'outputs'"),
    "npz lengths": (["r.json", "y.npz"], "one entry per row"),
    "npz shape": (["r.json", "z.npy"], "(rows, classes)"),
    "columns": (["r.json", "p.csv", "--score", "cqr"], "this score reads 2 columns, lower and upper; found 'cat'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(run, csv, result, probabilities, case):
    csv(as_csv(probabilities, LABELS), "p.csv")
    csv("cat,dog\n0.5,x\n", "text.csv")
    csv("cat,dog\n5,7\n", "logits.csv")
    csv("device\nd1\n", "device.csv")
    csv("device,cat,dog\nzz,0.5,0.5\n", "strange.csv")
    csv('{"a": 1}', "other.json")
    csv('{"format": "conformesh-result/1"}', "half.json")
    csv('{"format": "conformesh-calibration/1"}', "old.json")
    np.savez("x.npz", q=probabilities)
    np.savez("y.npz", probabilities=probabilities, device=np.array(["d1"]))
    np.save("z.npy", np.zeros((2, 2, 2)))
    words, problem = BAD[case]
    answer = run("predict", *words)
    assert answer.exit_code == 2, answer.output
    assert problem in answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("error: ")
    assert answer.stdout == ""


# --- which columns are classes ----------------------------------------------------------------------------------------


@pytest.fixture
def named(run, csv, probabilities) -> str:
    """A calibration that knows its classes, made from the file that `scores make` reads."""
    truth = [LABELS[int(row.argmax())] for row in probabilities]
    lines = as_csv(probabilities, LABELS).splitlines()
    rows = [f"{7 * i},{line},{label}" for i, (line, label) in enumerate(zip(lines[1:], truth, strict=True))]
    text = "\n".join([f"id,{lines[0]},label", *rows])
    csv(text + "\n", "outputs.csv")
    made = run("scores", "make", "outputs.csv", "--devices", "4", "--partition", "iid", "--out", "s.csv")
    assert made.exit_code == 0, made.stderr
    assert run("calibrate", "s.csv", "--score", "lac", "--alpha", "0.2", "--out", "named.json").exit_code == 0
    return "named.json"


def test_classes_travel_from_outputs_to_sets(run, named, probabilities):
    assert Result.load(named).classes == tuple(LABELS)
    answer = run("predict", named, "outputs.csv")
    assert (answer.exit_code, answer.stderr) == (0, "")
    expected = Result.load(named).predict(probabilities)
    assert np.array_equal(sets_of(answer.stdout, LABELS), expected)
    rows = rows_of(answer.stdout)
    assert [*rows[0]] == ["row", "size", "set", "id", "label"]
    assert [int(row["id"]) for row in rows] == [7 * i for i in range(30)]
    assert [row["label"] for row in rows] == [LABELS[int(row.argmax())] for row in probabilities]


def test_classes_that_are_numbers_are_columns_by_their_names(run, csv, named, probabilities):
    numbers = (3, 5, 7, 11)
    replace(Result.load(named), classes=numbers).save("numbers.json")
    assert Result.load("numbers.json").classes == numbers
    columns = [*map(str, numbers)]
    answer = run("predict", "numbers.json", csv(as_csv(probabilities[:, ::-1], columns[::-1])))
    assert answer.exit_code == 0, answer.output
    assert np.array_equal(sets_of(answer.stdout, columns), Result.load(named).predict(probabilities))


def test_a_function_is_not_in_the_file(run, csv, probabilities):
    def surprise(outputs, labels):
        return 1 - outputs[np.arange(len(labels)), labels]

    calibrate([np.arange(9) / 10], "chain", 0.2, score=surprise).save("own.json")
    for command in ("predict", "evaluate"):
        answer = run(command, "own.json", csv(as_csv(probabilities, LABELS)))
        assert answer.exit_code == 2
        assert "surprise', which no file holds; load it in Python and give it the function" in answer.stderr


def test_every_format_carries_the_classes(run, named, probabilities):
    for end in ("parquet", "npz"):
        run("scores", "make", "outputs.csv", "--devices", "4", "--partition", "iid", "--out", f"s.{end}")
        result = run("calibrate", f"s.{end}", "--score", "lac", "--alpha", "0.2", "--json")
        assert json.loads(result.stdout)["classes"] == LABELS
    several = run("calibrate", "s.csv", "--score", "lac", "--alpha", "0.2,0.5", "--json")
    assert json.loads(several.stdout)["classes"] == LABELS


def test_columns_in_another_order_are_matched_by_name(run, csv, named, probabilities):
    order = [2, 0, 3, 1]
    path = csv(as_csv(probabilities[:, order], [LABELS[i] for i in order]), "p.csv")
    assert run("predict", named, path).stdout == run("predict", named, csv(as_csv(probabilities, LABELS))).stdout


def test_outputs_without_names_are_taken_in_order(run, csv, named, probabilities):
    np.save("p.npy", probabilities)
    expected = run("predict", named, csv(as_csv(probabilities, LABELS))).stdout
    assert run("predict", named, "p.npy").stdout == expected
    assert run("predict", named, csv(as_csv(probabilities, ["0", "1", "2", "3"]))).stdout == expected


def test_columns_pass_through_when_named(run, csv, named, probabilities):
    text = as_csv(probabilities, LABELS).splitlines()
    lines = [f"who,{text[0]},weight,truth", *(f"r{i},{x},{i / 2},cat" for i, x in enumerate(text[1:]))]
    path = csv("\n".join(lines) + "\n", "p.csv")
    words = ("--id-column", "who", "--label-column", "truth", "--keep", "weight")
    rows = rows_of(run("predict", named, path, *words).stdout)
    assert [*rows[0]] == ["row", "size", "set", "who", "truth", "weight"]
    kept = [(row["who"], row["weight"], row["truth"]) for row in rows[:2]]
    assert kept == [("r0", "0.0", "cat"), ("r1", "0.5", "cat")]
    assert run("predict", named, path, *words, "--out", "sets.parquet").stdout == ""
    frame = pl.read_parquet("sets.parquet")
    objects = [json.loads(x) for x in run("predict", named, path, *words, "--format", "jsonl").stdout.splitlines()]
    assert frame.to_dicts() == objects
    run("predict", named, path, *words, "--out", "sets.jsonl")
    run("predict", named, path, *words, "--out", "sets.csv")
    assert [json.loads(line) for line in Path("sets.jsonl").read_text().splitlines()] == objects
    assert rows_of(Path("sets.csv").read_text()) == rows
    assert [" ".join(one["set"]) for one in objects] == [row["set"] for row in rows]


@pytest.mark.parametrize("known", [True, False], ids=["classes known", "classes unknown"])
def test_a_number_beside_the_classes_is_no_class(run, csv, named, result, probabilities, known):
    """Before, an id of 3 was a class of probability 3, and a label of 0 one that is never certain."""
    text = as_csv(probabilities, LABELS).splitlines()
    for column, values in {"id": range(30), "label": [i % 4 for i in range(30)]}.items():
        path = csv("\n".join([f"{text[0]},{column}", *map("{},{}".format, text[1:], values)]) + "\n", "p.csv")
        answer = run("predict", named if known else result, path, "--score", "lac")
        assert answer.exit_code == 0, answer.stderr
        rows = rows_of(answer.stdout)
        assert {label for row in rows for label in row["set"].split()} <= {*LABELS}
        assert [int(row[column]) for row in rows] == [*values]
    other = csv("\n".join([f"{text[0]},age", *(f"{x},{i % 2}" for i, x in enumerate(text[1:]))]) + "\n", "p.csv")
    refusal = run("predict", named if known else result, other, "--score", "lac")
    assert refusal.exit_code == 2
    assert "'age'" in refusal.stderr
    assert "--keep age" in refusal.stderr


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (["cat", "dog", "owl", "bee"], "it lacks 'fox' and has 'bee'"),
        (["cat", "dog", "owl"], "3 classes, but the scores came from 4: it lacks 'fox'"),
        (["0", "1", "2"], "3 classes, but the scores came from 4"),
        (["cat", "dog", "owl", "fox", "bee"], "column 'bee' is none of the classes 'cat', 'dog', 'owl', 'fox'"),
        (["0.25", "0.5", "0.125", "-1"], "the first line must name the classes, got the number '0.25'"),
        (["", "dog", "owl", "fox"], "column 1 has no name"),
        (["cat", "cat", "owl", "fox"], "two columns 'cat'"),
    ],
)
def test_other_classes_are_refused(run, csv, named, columns, problem):
    row = ",".join([repr(1 / len(columns))] * len(columns))
    answer = run("predict", named, csv(",".join(columns) + f"\n{row}\n", "p.csv"))
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert problem in answer.stderr


def test_one_row_at_a_time_from_standard_input(run, csv, named, probabilities):
    whole = rows_of(run("predict", named, csv(as_csv(probabilities, LABELS))).stdout)
    for i in range(3):
        (row,) = rows_of(run("predict", named, "-", input=as_csv(probabilities[i : i + 1], LABELS)).stdout)
        assert (row["row"], row["set"]) == ("0", whole[i]["set"])


def test_a_randomised_score_draws_for_each_row_alike_in_any_call(run, csv, probabilities):
    """A row has one draw, whether it comes alone or with others; another seed draws anew."""
    alike = np.tile([0.4, 0.3, 0.2, 0.1], (200, 1)) + 1e-6 * np.arange(200)[:, None] * [1, -1, 0, 0]
    csv("device,score\n" + "".join(f"{i % 4},{(i + 0.5) / 80}\n" for i in range(80)), "s.csv")
    run("calibrate", "s.csv", "--score", "aps", "--score-option", "randomised=yes", "--out", "r.json", "--alpha", "0.5")
    path = csv(as_csv(alike, LABELS), "p.csv")
    whole = rows_of(run("predict", "r.json", path).stdout)
    assert len({row["set"] for row in whole}) > 1
    assert rows_of(run("predict", "r.json", path).stdout) == whole
    assert rows_of(run("predict", "r.json", path, "--seed", "1").stdout) != whole
    texts = [as_csv(row[None], LABELS) for row in alike[:9]]
    alone = [rows_of(run("predict", "r.json", "-", input=text).stdout)[0]["set"] for text in texts]
    assert alone == [row["set"] for row in whole[:9]]
