"""`conformesh evaluate` says what the library measures, also of regression, from the predictions on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace

from conformesh import Result, calibrate
from conformesh.files.score_files import read_scores
from conformesh.scores import CQR, AbsoluteResidual, NormalisedResidual

LABELS = ["cat", "dog", "owl", "fox"]
ROWS = 120


@pytest.fixture
def probabilities() -> np.ndarray:
    return np.random.default_rng(5).dirichlet(np.full(4, 0.6), ROWS)


@pytest.fixture
def truth(probabilities) -> np.ndarray:
    """Labels that the outputs predict well, as column numbers."""
    rng = np.random.default_rng(6)
    return np.array([rng.choice(4, p=row) for row in probabilities])


@pytest.fixture
def result(run, scores) -> str:
    """A calibration with class names, whose devices have thresholds of their own."""
    made = run("calibrate", scores, "--method", "local", "--alpha", "0.2", "--score", "lac", "--out", "r.json")
    assert made.exit_code == 0
    raw = json.loads(Path("r.json").read_text())
    Path("r.json").write_text(json.dumps({**raw, "classes": LABELS}))
    return "r.json"


def frame(probabilities, names=LABELS, **more) -> pl.DataFrame:
    return pl.DataFrame(probabilities, schema=names, orient="row").with_columns(
        **{key: pl.Series(key, [*cells]) for key, cells in more.items()}
    )


def test_it_measures_what_the_library_measures(run, result, probabilities, truth):
    calibration = Result.load(result)
    device = [calibration.device_ids[i % 12] for i in range(ROWS)]
    expected = calibration.evaluate(probabilities, truth, device=device)
    frame(probabilities, label=[LABELS[c] for c in truth], device=device).write_csv("o.csv")
    found = json.loads(run("evaluate", result, "o.csv", "--json").stdout)
    assert found == {**expected.report(), "picture": None}
    assert [*found["per_class"]] == LABELS
    assert found["coverage"]["rows"] == ROWS
    assert found["nominal"] == 0.8
    one = json.loads(run("evaluate", result, "o.csv", "--device", "d3", "--json").stdout)
    assert one["coverage"] == calibration.evaluate(probabilities, truth, device="d3").coverage.report()


def test_formats_and_orders_agree(run, result, probabilities, truth):
    """Columns in another order are put right, and labels with them: by name, or by number in the file's own order."""
    order = [2, 0, 3, 1]
    other, names = probabilities[:, order], [LABELS[c] for c in order]
    shifted = np.argsort(order)[truth]
    frame(probabilities, label=[LABELS[c] for c in truth]).write_csv("a.csv")
    frame(other, names, truth=shifted).write_parquet("b.parquet")
    np.savez("c.npz", probabilities=other, classes=np.array(names), y=shifted)
    np.save("d.npy", probabilities)
    np.save("y.npy", truth)
    np.savez("e.npz", probabilities=probabilities, label=np.array([LABELS[c] for c in truth]))
    words = [["a.csv"], ["b.parquet", "--label-column", "truth"], ["c.npz"], ["d.npy", "--labels", "y.npy"], ["e.npz"]]
    answers = [run("evaluate", result, *more, "--json") for more in words]
    assert {answer.exit_code for answer in answers} == {0}, [answer.output for answer in answers]
    assert len({answer.stdout for answer in answers}) == 1


def test_classes_that_are_numbers_are_labels(run, result, probabilities, truth):
    """Columns and labels of the file are these numbers, in whatever order; they are no places."""
    numbers, order = (2, 0, 11, 7), [2, 0, 3, 1]
    calibration = replace(Result.load(result), classes=numbers)
    calibration.save("n.json")
    names = [str(numbers[c]) for c in order]
    frame(probabilities[:, order], names, label=[numbers[c] for c in truth]).write_csv("o.csv")
    found = json.loads(run("evaluate", "n.json", "o.csv", "--json").stdout)
    expected = calibration.evaluate(probabilities, np.array(numbers)[truth])
    assert found == {**expected.report(), "picture": None}
    assert [*found["per_class"]] == ["2", "0", "11", "7"]
    assert found["coverage"] == Result.load(result).evaluate(probabilities, truth).coverage.report()


def test_two_sides(run):
    cqr, rng = CQR(), np.random.default_rng(0)
    band, y = np.tile([0.0, 1.0], (80, 1)), rng.normal(size=80)
    sides = calibrate(np.split(cqr.sides(band[:40], y[:40]), 4), "cycle", 0.4, symmetric=False, score=cqr)
    sides.save("sides.json")
    pl.DataFrame({"lower": band[40:, 0], "upper": band[40:, 1], "label": y[40:]}).write_csv("o.csv")
    found = json.loads(run("evaluate", "sides.json", "o.csv", "--json").stdout)
    assert found == {**sides.evaluate(band[40:], y[40:]).report(), "picture": None}
    assert found["nominal"] == 0.6


def test_the_table_for_people(run, result, probabilities, truth):
    frame(probabilities, label=truth, device=["d1"] * 60 + ["d2"] * 60).write_csv("o.csv")
    answer = run("evaluate", result, "o.csv", "--plot", "pictures/o.svg")
    assert answer.exit_code == 0, answer.output
    facts, devices, classes = answer.stdout.split("\n\n")
    assert facts.splitlines()[0].endswith("on 120 rows; asked for 0.8")
    assert facts.splitlines()[-1] == "picture: pictures/o.svg"
    assert devices.splitlines()[0].split() == ["device", "rows", "coverage", "95", "%", "interval"]
    assert {line.split()[0] for line in classes.splitlines()[2:]} == {*LABELS}
    assert "<svg" in Path("pictures/o.svg").read_text()


def test_groups_and_class_conditional_sets(run, csv, probabilities, truth):
    rng = np.random.default_rng(3)
    rows = "".join(f"d{i % 5},{rng.random()!r},{LABELS[i % 4]},{'ab'[i % 2]}\n" for i in range(400))
    made = csv("device,score,label,side\n" + rows, "s.csv")
    names = [LABELS[c] for c in truth]
    frame(probabilities, label=names, side=["ab"[i % 2] for i in range(ROWS)]).write_csv("o.csv")
    for column, more in (("side", ["--group-column", "side"]), ("label", ["--keep", "side"])):
        assert run("calibrate", made, "--group-column", column, "--score", "lac", "--out", "g.json").exit_code == 0
        answer = run("evaluate", "g.json", "o.csv", *more, "--json")
        assert answer.exit_code == 0, answer.output
        found, several = json.loads(answer.stdout), Result.load("g.json")
        if column == "side":
            groups = ["ab"[i % 2] for i in range(ROWS)]
            expected = several.evaluate(probabilities, truth, groups=groups)
            assert found["per_group"] == expected.report()["per_group"]
        else:
            hits = several.predict(probabilities, labels=LABELS)[np.arange(ROWS), truth]
            assert found["coverage"]["covered"] == int(hits.sum())
    run("calibrate", made, "--alpha", "0.1,0.3", "--score", "lac", "--out", "g.json")
    rates = [json.loads(run("evaluate", "g.json", "o.csv", "--keep", "side", "--alpha", a, "--json").stdout)
             for a in ("0.1", "0.3")]  # fmt: skip
    assert rates[0]["coverage"]["covered"] >= rates[1]["coverage"]["covered"]


BAD = {
    "both stdin": (["-", "-"], "only one of RESULT and OUTPUTS"),
    "both devices": (["r.json", "o.csv", "--device", "d1", "--device-column", "x"], "not both"),
    "no label": (["r.json", "bare.csv"], "bare.csv: needs a column 'label', found 'cat', 'dog', 'owl', 'fox'"),
    "strange label": (["r.json", "strange.csv"], "unknown label 'cow', did you mean"),
    "far label": (["r.json", "far.npz"], "label must lie between 0 and 3"),
    "lengths": (["r.json", "bare.csv", "--labels", "two.csv"], "needs a label for each of the 1 rows"),
    "picture": (["r.json", "o.csv", "--plot", "o.gif"], "o.gif: the picture must end in .png, .pdf, .svg"),
    "alpha": (["r.json", "o.csv", "--alpha", "0.3"], "say which alpha: 0.2, got 0.3"),
    "groups": (["r.json", "grouped.csv", "--group-column", "x"], "groups= is for thresholds by group"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(run, csv, result, case):
    csv("cat,dog,owl,fox,label\n0.25,0.25,0.25,0.25,cat\n", "o.csv")
    csv("cat,dog,owl,fox\n0.25,0.25,0.25,0.25\n", "bare.csv")
    csv("cat,dog,owl,fox,label,x\n0.25,0.25,0.25,0.25,cat,m\n", "grouped.csv")
    csv("cat,dog,owl,fox,label\n0.25,0.25,0.25,0.25,cow\n", "strange.csv")
    csv("label\ncat\ndog\n", "two.csv")
    np.savez("far.npz", probabilities=np.full((1, 4), 0.25), label=np.array([4]))
    words, problem = BAD[case]
    answer = run("evaluate", *words)
    assert answer.exit_code == 2
    assert problem in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_risk_control_is_evaluated_in_python(run, csv):
    lines = "".join(f"d{i % 4},{i},{lam},{1 - lam}\n" for i in range(80) for lam in (0.0, 0.5, 1.0))
    made = run("control", csv("device,item,lambda,loss\n" + lines, "l.csv"), "--out", "c.json")
    assert made.exit_code == 0, made.output
    csv("a,b,label\n0.5,0.5,a\n", "o.csv")
    assert "use Python" in run("evaluate", "c.json", "o.csv").stderr


# --- regression from the shell ----------------------------------------------------------------------------------------


@pytest.fixture
def predictions() -> pl.DataFrame:
    rng = np.random.default_rng(9)
    x = rng.random(200)
    spread = 0.2 + x
    columns = {
        "site": [f"s{i % 5}" for i in range(200)],
        "prediction": 3 * x,
        "scale": spread,
        "lower": 3 * x - spread,
        "upper": 3 * x + spread,
        "label": 3 * x + spread * rng.normal(size=200),
    }
    return pl.DataFrame(columns)


@pytest.mark.parametrize("score", [AbsoluteResidual(), NormalisedResidual(), CQR()], ids=lambda score: score.name)
@pytest.mark.parametrize("end", ["csv", "parquet", "npz"])
def test_regression_goes_from_end_to_end(run, predictions, score, end):
    """Scores, the split, intervals and coverage are those of the library, bit for bit."""
    if end == "npz":
        np.savez("p.npz", **{name: predictions[name].to_numpy().astype(str if name == "site" else float)
                             for name in predictions.columns})  # fmt: skip
    else:
        _ = predictions.write_csv("p.csv") if end == "csv" else predictions.write_parquet("p.parquet")
    made = run(
        *("scores", "make", f"p.{end}", "--score", score.name, "--device-column", "site", "--calibration", "0.5"),
        *("--out", "s.csv", "--test-out", "t.npz", "--json"),
    )
    assert made.exit_code == 0, made.output
    facts = json.loads(made.stdout)
    assert (facts["kind"], facts["columns"], facts["scores"]) == ("predictions", [*score.columns], 100)
    with np.load("t.npz") as archive:
        table = dict(archive)
    assert table["outputs"].shape == ((100,) if len(score.columns) == 1 else (100, 2))
    every = score(predictions.select(score.columns).to_numpy().squeeze(), predictions["label"].to_numpy())
    assert {*np.concatenate(read_scores("s.csv").scores)} <= {*every}
    assert run("calibrate", "s.csv", "--score", score.name, "--out", "r.json").exit_code == 0
    calibration = Result.load("r.json")
    lines = run("predict", "r.json", "t.npz").stdout.splitlines()[1:]
    ends = np.array([[float(cell) for cell in line.split(",")[1:3]] for line in lines])
    assert np.array_equal(ends, calibration.predict(table["outputs"]))
    found = json.loads(run("evaluate", "r.json", "t.npz", "--json").stdout)
    expected = calibration.evaluate(table["outputs"], table["label"], device=table["device"])
    assert found == {**expected.report(), "picture": None}
    assert found["singleton"] is None
    assert [*found["per_device"]] == [f"s{k}" for k in range(5)]


def test_columns_of_predictions_by_other_names(run, predictions):
    renamed = predictions.rename({"lower": "q05", "upper": "q95", "label": "y"}).drop("prediction", "scale")
    renamed.write_csv("p.csv")
    words = ("scores", "make", "p.csv", "--score", "cqr", "--label-column", "y", "--device-column", "site")
    assert run(*words, "--out", "a.csv").exit_code == 0  # two are left, in their order
    assert run(*words, "--output-columns", "q05,q95", "--out", "b.csv").exit_code == 0
    assert Path("a.csv").read_text() == Path("b.csv").read_text()
    answer = run(*words[:4], "absolute-residual", "--label-column", "y", "--keep", "site", "--out", "c.csv")
    assert answer.exit_code == 2
    assert "this score reads 1 column, prediction; found 'q05', 'q95'; name them" in answer.stderr
    assert "--output-columns" in answer.stderr


@pytest.mark.parametrize("partition", ["iid", "class", "dirichlet"])
def test_numbers_are_spread_over_devices(run, predictions, partition):
    """Of labels without classes, equal stretches of their order serve as classes."""
    predictions.drop("site").write_csv("p.csv")
    words = ("--score", "absolute-residual", "--partition", partition, "--devices", 4, "--out", "s.csv")
    assert run("scores", "make", "p.csv", *words).exit_code == 0
    made = pl.read_csv("s.csv")
    assert made.columns == ["device", "score", "label", "score_function"]
    if partition == "class":
        ends = made.group_by("device").agg(pl.col("label").min().alias("low"), pl.col("label").max().alias("high"))
        ends = ends.sort("low")
        assert made["device"].value_counts()["count"].to_list() == [50] * 4
        assert all(high < low for high, low in zip(ends["high"][:-1], ends["low"][1:], strict=True))
