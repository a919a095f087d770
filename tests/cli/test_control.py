"""`conformesh control`: the answer of the library, from files and flags, and sets by `conformesh predict`."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from conformesh import LambdaTests, Network, Result, control
from conformesh.scores.losses import FalseNegativeRate, StepLosses


@pytest.fixture
def table():
    """Losses of six devices, two to four true labels an item, in no order."""
    rng = np.random.default_rng(3)
    rows = [
        (f"site-{d}", f"i{i}", lam, (m - 1 - j) / m)
        for d in range(6)
        for i in range(int(rng.integers(15, 40)))
        for m in [int(rng.integers(2, 5))]
        for j, lam in enumerate(np.sort(rng.random(m)).tolist())
    ]
    return pl.DataFrame(rows, schema=["device", "item", "lambda", "loss"], orient="row").sample(
        fraction=1, shuffle=True, seed=1
    )


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("target", ["sizes", "equal"])
def test_files_give_the_librarys_answer(run, table, tmp_path, ending, target):
    file = tmp_path / f"losses.{ending}"
    if ending == "npz":
        np.savez(
            file,
            **{name: table[name].to_numpy().astype(str if i < 2 else float) for i, name in enumerate(table.columns)},
        )
    else:
        getattr(table, f"write_{ending}")(file)
    result = run("control", file, "--risk", "0.2", "--mixture", target, "--network", "cycle", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    expected = control(table, "cycle", 0.2, mixture=target)
    (answer,) = found["answers"]
    assert answer["thresholds"] == expected.thresholds.tolist()
    assert answer["certificate"]["required_rank"] == expected.certificate.required_rank
    assert (answer["alpha"], found["guarantee"]["loss"]) == (0.2, {"bound": 1.0, "loss": None})


def test_what_is_printed_says_lambda_and_losses(run, table):
    result = run("control", "-", "--risk", "0.2", input=table.write_csv())
    words = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    expected = control(table, Network.torus(3, 2).relabelled([f"site-{d}" for d in range(6)]), 0.2)
    left, allowed = expected.mean_losses
    assert words["lambda"].startswith(f"{expected.threshold:.6g} ")
    assert words["mean loss"] == f"{left:.4g} of the items at lambda, allowed {allowed:.4g}"
    assert words["method"] == "e-dcp, risk 0.2 of a loss up to 1"


def test_several_risks_are_a_table(run, table):
    result = run("control", "-", "--risk", "0.1,0.3", "--out", "s.json", input=table.write_csv())
    assert [line.split()[0] for line in result.stdout.splitlines()[2:4]] == ["0.1", "0.3"]
    sets = run("predict", "s.json", "-", "--alpha", "0.3", input="a,b\n0.5,0.5\n")
    assert sets.exit_code == 2
    assert "does not name its loss; control again with --loss" in sets.stderr


def test_predict_builds_the_sets_of_the_loss(run, table, tmp_path):
    words = ("control", "-", "--risk", "0.2", "--loss", "false-negative-rate", "--out", "r.json")
    assert run(*words, input=table.write_csv()).exit_code == 0
    result = Result.load(tmp_path / "r.json")
    assert result.guarantee.loss.loss == FalseNegativeRate()
    outputs = np.random.default_rng(0).random((5, 4)).round(3)
    file = pl.DataFrame(outputs, schema=list("abcd")).write_csv()
    found = run("predict", "r.json", "-", input=file)
    sets = [line.split(",")[2] for line in found.stdout.splitlines()[1:]]
    assert sets == [" ".join(np.array([*"abcd"])[row]) for row in result.predict(outputs)]
    refused = run("predict", "r.json", "-", "--score", "aps", input=file)
    assert "goes by its loss, not by a score" in refused.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.drop("lambda"), "needs a column 'lambda'"),
        (lambda t: t.drop("device"), "needs a column 'device'"),
        (lambda t: t.with_columns(loss=2.0), "losses must lie between 0 and 1, got 2"),
        (lambda t: t.with_columns(loss=1 - pl.col("loss")), "the loss rises"),
        (lambda t: t.with_columns(pl.lit(0.5).alias("lambda")), "has two losses at lambda 0.5"),
    ],
)
def test_what_is_wrong_is_one_line(run, table, change, words):
    result = run("control", "-", input=change(table).write_csv())
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--risk", "2"], "risk must be a number strictly between 0 and the largest possible loss, 1, got 2"),
        (["--bound", "x"], "--bound must be a number, got 'x'"),
        (["--loss", "regret"], "unknown loss 'regret'"),
        (["--loss-option", "score=lac"], "needs --loss"),
        (["--risk", "0.001", "--strict"], "risk=0.001 is too small for"),
    ],
)
def test_flags_that_cannot_be(run, table, flags, words):
    result = run("control", "-", *flags, input=table.write_csv())
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_device_without_items_is_in_the_graph(run, tmp_path):
    steps = StepLosses.of([([0.1, 0.4], [0.5, 0.0])] * 30)
    rows = "".join(f"a,{i},{lam},{loss}\n" for i in range(30) for lam, loss in ((0.1, 0.5), (0.4, 0.0)))
    (tmp_path / "edges.txt").write_text("a b\n")
    found = run("control", "-", "--network", "edges.txt", "--json", input="device,item,lambda,loss\n" + rows)
    assert found.exit_code == 0, found.output
    expected = control({"a": steps, "b": StepLosses.none()}, Network.from_edges(tmp_path / "edges.txt"), 0.1)
    assert json.loads(found.stdout)["answers"][0]["thresholds"] == expected.thresholds.tolist()


def test_a_bound_is_what_items_lose_below_their_first_lambda(run):
    rows = "".join(f"a,{i},{lam},{loss}\n" for i in range(30) for lam, loss in ((0.1, 2.5), (0.4, 0.0)))
    found = run("control", "-", "--bound", "3", "--risk", "1", "--json", input="device,item,lambda,loss\n" + rows)
    assert found.exit_code == 0, found.output
    (answer,) = json.loads(found.stdout)["answers"]
    assert answer["certificate"]["weight"] == answer["certificate"]["losses"]
    assert answer["thresholds"] == [0.4]


# --- losses that rise and fall ----------------------------------------------------------------------------------------


@pytest.fixture
def answers():
    """Six devices whose model is right as often as it is sure: answers that are wrong, or not given, at six lambdas."""
    rng = np.random.default_rng(0)
    rows = []
    for d in range(6):
        for i, (sure, luck) in enumerate(rng.random((60, 2)).tolist()):
            for lam in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4):
                rows.append((f"site-{d}", f"i{i}", lam, float(sure > lam and luck > sure), float(sure <= lam)))
    return pl.DataFrame(rows, schema=["device", "item", "lambda", "wrong", "silent"], orient="row")


TESTS = ("--non-monotone", "--pac-confidence", "0.9")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tests_of_lambdas_are_those_of_the_library(run, answers, tmp_path, ending):
    file = tmp_path / f"losses.{ending}"
    getattr(answers, f"write_{ending}")(file)
    words = ("--risk", "wrong=0.1,silent=0.9", "--testing", "holm", "--grid", "descending", "--mixture", "equal")
    found = run("control", file, *TESTS, *words, "--out", "tests.json", "--json")
    assert found.exit_code == 0, found.output
    expected = control(
        answers,
        None,
        {"wrong": 0.1, "silent": 0.9},
        monotone=False,
        pac_confidence=0.9,
        grid="descending",
        testing="holm",
        mixture="equal",
    )
    saved = LambdaTests.load(tmp_path / "tests.json")
    assert saved.threshold == expected.threshold == 0.7
    for name, risk in expected.risks.items():
        assert json.loads(found.stdout)["risks"][name]["p_values"] == risk.p_values.tolist()


def test_tests_of_lambdas_are_printed_with_a_line_for_each(run, answers):
    file = answers.rename({"wrong": "loss"}).write_csv()
    found = run("control", "-", *TESTS, "--risk", "0.1", "--grid", "0.9,0.7,0.5", input=file)
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[0] == "lambda: 0.7"
    assert lines[1].startswith("guarantee: counted: with probability at least 0.9 over the calibration data")
    assert [line.split()[0] for line in lines[-3:]] == ["0.9", "0.7", "0.5"]
    none = run("control", "-", *TESTS, "--risk", "0.001", "--grid", "0.9,0.7", input=file)
    assert none.exit_code == 0
    assert none.stdout.startswith("lambda: none\nguarantee: none: no lambda of the grid is certified")
    strict = run("control", "-", *TESTS, "--risk", "0.001", "--grid", "0.9,0.7", "--strict", input=file)
    assert strict.exit_code == 2
    assert "360 items cannot certify a risk of 0.001" in strict.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--grid", "0.9"], "--grid needs --non-monotone"),
        (["--pac-confidence", "0.9"], "--pac-confidence needs --non-monotone"),
        (["--risk", "wrong=0.1"], "--risk wrong=0.1 names a column, for several risks at once, which needs --non-mon"),
        (["--non-monotone", "--grid", "0.9"], "--non-monotone needs --pac-confidence, such as 0.9"),
        ([*TESTS], "--non-monotone needs --grid: the lambdas in the order of testing"),
        ([*TESTS, "--grid", "0.9,x"], "--grid must be numbers, or ascending or descending, got 'x'"),
        ([*TESTS, "--grid", "0.95"], "device site-0, item i0: column 'loss' has no row for lambda 0.95"),
        ([*TESTS, "--grid", "0.9", "--risk", "loss=0.1,0.2"], "--risk must be COLUMN=RISK for each of several risks"),
        ([*TESTS, "--grid", "0.9", "--risk", "loss=0.1,loss=0.2"], "--risk must name each column once"),
        ([*TESTS, "--grid", "0.9", "--risk", "loss=0.1,regret=0.2"], "needs a column 'regret'"),
        ([*TESTS, "--grid", "0.9", "--testing", "best"], "unknown testing 'best'"),
    ],
)
def test_flags_of_tests_that_cannot_be(run, answers, flags, words):
    found = run("control", "-", *flags, input=answers.rename({"wrong": "loss"}).write_csv())
    assert found.exit_code == 2
    assert words in found.stderr


def test_predict_builds_the_sets_of_the_chosen_lambda(run, answers, tmp_path):
    file = answers.rename({"wrong": "loss"}).write_csv()
    words = ("control", "-", *TESTS, "--grid", "0.9,0.7", "--loss", "wrong-and-answered", "--out", "t.json")
    assert run(*words, input=file).exit_code == 0
    outputs = "a,b,c\n0.8,0.1,0.1\n0.5,0.3,0.2\n"
    found = run("predict", "t.json", "-", input=outputs)
    assert [line.split(",")[2] for line in found.stdout.splitlines()[1:]] == ["a", "a b c"]  # lambda is 0.7
    for flags, refused in (
        (("--device", "site-0"), "--device does not go with tests of lambdas"),
        (("--score", "lac"), "--score does not go with tests of lambdas"),
    ):
        assert refused in run("predict", "t.json", "-", *flags, input=outputs).stderr
    assert run("control", "-", *TESTS, "--grid", "0.9", "--out", "u.json", input=file).exit_code == 0
    assert "the tests do not name their loss" in run("predict", "u.json", "-", input=outputs).stderr
    refused = run("evaluate", "t.json", "-", input=outputs)
    assert refused.exit_code == 2
    assert "holds tests of lambdas" in refused.stderr
