"""Parts of a guarantee from the command line, alone and together: the answer of the library, or its refusal."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import polars as pl
import pytest

from conformesh import Centres, Network, Result, calibrate, control
from conformesh.common.names import natural_order
from conformesh.scores import CQR, LAC
from conformesh.scores.losses import StepLosses

DEVICES = 12
NETWORK = Network.torus(4, 3).relabelled([f"d{k}" for k in range(DEVICES)])
CENTRES = Centres.at([[0.2, 0.2], [0.8, 0.8]], 0.5)
CLASS_WEIGHTS = {"a=b": 1.0, "c": 2.5}


@pytest.fixture
def frame(tmp_path):
    """Rows with every column that a guarantee may depend on, in the order of devices, and centres in a file."""
    rng, rows = np.random.default_rng(2), 600
    found = pl.DataFrame(
        {
            "device": np.sort(rng.integers(0, DEVICES, rows)),
            "score": rng.random(rows),
            "lower": rng.normal(size=rows),
            "upper": rng.normal(size=rows),
            "sex": rng.choice(["F", "M"], rows),
            "w": rng.choice([0.5, 1.0, 3.0], rows),
            "x": rng.random(rows),
            "y": rng.random(rows),
            "kind": rng.choice([*CLASS_WEIGHTS], rows),
        }
    ).with_columns(pl.format("d{}", "device").alias("device"))
    found.sample(fraction=1, shuffle=True, seed=1).write_csv(tmp_path / "s.csv")
    pl.DataFrame(CENTRES.points, schema=["x", "y"]).write_csv(tmp_path / "centres.csv")
    return pl.read_csv(tmp_path / "s.csv")


GROUPS = (("--group-column", "sex"), {"groups": "sex"})
WEIGHTS = (("--weight-column", "w", "--weight-bound", "3"), {"weight": "w", "weight_bound": 3})
TESTS = (("--test-weights", "1,2"), {"test_weights": [1, 2]})
SIDES = (("--sides", "--lower-share", "0.25"), {"symmetric": False, "lower_share": "0.25"})
LOCAL = (
    ("--centres", "centres.csv", "--bandwidth", "0.5", "--input-column", "x,y"),
    {"centres": CENTRES, "inputs": ["x", "y"]},
)
CLASSES = (
    ("--label-column", "kind", "--class-weight", "a=b=1", "--class-weight", "c=2.5"),
    {"labels": "kind", "class_weights": CLASS_WEIGHTS},
)
LEVELS = (("--alpha", "0.1,0.3"), {"alpha": ["0.1", "0.3"]})
PAC = (("--pac-confidence", "0.9"), {"pac_confidence": "0.9"})
COMBINATIONS = {
    "sides": (SIDES,),
    "centres": (LOCAL,),
    "classes": (CLASSES,),
    "test weights": (WEIGHTS, TESTS),
    "levels of groups with weights": (LEVELS, GROUPS, WEIGHTS),
    "sides of groups": (SIDES, GROUPS, LEVELS),
    "centres of groups": (LOCAL, GROUPS),
    "centres and weights": (LOCAL, WEIGHTS, GROUPS),
    "sides near centres with weights": (SIDES, LOCAL, WEIGHTS),
    "confidence of sides": (SIDES, PAC),
    "confidence of groups": (GROUPS, PAC),
    "confidence with weights": (WEIGHTS, PAC),
    "confidence with centres": (LOCAL, PAC),
    "test weights alone": (TESTS,),
    "labels alone": (CLASSES[0][:2], {"labels": "kind"}),
}
REFUSED = {"confidence of groups", "confidence with weights", "confidence with centres", "test weights alone"}


@pytest.mark.parametrize("case", [name for name in COMBINATIONS if name != "labels alone"])
def test_the_command_answers_as_the_library_does(run, frame, case):
    words = [word for part, _ in COMBINATIONS[case] for word in part]
    asked = {name: value for _, given in COMBINATIONS[case] for name, value in given.items()}
    shown = run("calibrate", "s.csv", *words, "--json")
    if case in REFUSED:
        with pytest.raises(ValueError) as refusal:
            calibrate(frame, NETWORK, **asked)
        assert shown.exit_code == 2
        assert shown.stderr == f"error: {refusal.value}\n"
        return
    assert shown.exit_code == 0, shown.output
    found, right = Result.from_dict(json.loads(shown.stdout)), calibrate(frame, NETWORK, **asked)
    assert found.parts == right.parts
    assert found.alphas == right.alphas
    for one, other in zip(found.answers, right.answers, strict=True):
        assert one.certificate == other.certificate
        np.testing.assert_array_equal(one.thresholds, other.thresholds)
    in_words = run("calibrate", "s.csv", *words)
    assert in_words.exit_code == 0
    for answer in right.answers:
        assert f"{answer.threshold:.6g}" in in_words.stdout


def test_labels_without_weights_of_classes_are_refused(run, frame):
    assert "labels go with class_weights=" in run("calibrate", "s.csv", "--label-column", "kind").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--centres", "centres.csv", "--bandwidth", "1"), "needs --input-column"),
        (("--centres", "centres.csv", "--input-column", "x"), "needs --bandwidth"),
        (("--centres", "centres.csv", "--bandwidth", "1", "--input-column", "x,z"), "centres.csv: needs a column 'z'"),
        (("--centres", "centres.csv", "--bandwidth", "-1", "--input-column", "x"), "bandwidth must be a number above"),
        (("--input-column", "x"), "inputs go with"),
        (("--lower-share", "0.3"), "use it with symmetric=False"),
        (("--class-weight", "a"), "--class-weight must be CLASS=RATIO, got 'a'"),
        (("--class-weight", "c=x", "--label-column", "kind"), "the ratio of class c must be a number from 0 on"),
        (("--class-weight", "c=1"), "class_weights needs labels="),
        (("--class-weight", "c=1", "--label-column", "kind"), "a=b"),
    ],
)
def test_what_is_missing_is_named(run, frame, words, said):
    shown = run("calibrate", "s.csv", *words)
    assert shown.exit_code == 2
    assert said in shown.stderr
    assert shown.stderr.count("\n") == 1


def arrays_of(frame):
    """Return the columns of a frame as NPZ holds them."""
    return {column.name: np.array(column.to_list()) for column in frame.get_columns()}


def test_sides_of_a_folder(run, frame, tmp_path):
    for name, part in frame.partition_by("device", as_dict=True, include_key=False).items():
        (tmp_path / "parts" / f"device={name[0]}").mkdir(parents=True)
        part.drop("score").write_parquet(tmp_path / "parts" / f"device={name[0]}" / "0.parquet")
    (tmp_path / "arrays").mkdir()
    for k in range(2):
        some = frame.filter(pl.col("device").is_in([f"d{d}" for d in range(k, DEVICES, 2)]))
        np.savez(tmp_path / "arrays" / f"{k}.npz", **arrays_of(some))
    words = ("--sides", "--group-column", "sex", "--input-column", "x,y", "--centres", "centres.csv")
    answers = [
        json.loads(run("calibrate", source, *words, "--bandwidth", "0.5", "--json").stdout)["answers"]
        for source in ("s.csv", "parts", "arrays")
    ]
    assert answers[0] == answers[1] == answers[2]


# --- from results to sets ---------------------------------------------------------------------------------------------


def test_rows_draw_centres_and_have_weights(run, frame, tmp_path):
    """predict and evaluate read the columns by which thresholds differ."""
    rng = np.random.default_rng(4)
    outputs = pl.DataFrame(rng.dirichlet(np.ones(3), 50), schema=["k0", "k1", "k2"])
    more = outputs.with_columns(x=rng.random(50), y=rng.random(50), w=rng.choice([0.5, 1.5, 3.0], 50), label=0)
    more.write_csv(tmp_path / "p.csv")
    values = outputs.to_numpy()
    made = run("calibrate", "s.csv", *LOCAL[0], "--score", "lac", "--out", "c.json")
    assert made.exit_code == 0, made.output
    assert "predict needs inputs=" in run("predict", "c.json", "p.csv", "--keep", "x,y,w").stderr
    sizes = _sizes(run("predict", "c.json", "p.csv", "--input-column", "x,y", "--keep", "w", "--seed", "5"))
    inputs = more.select("x", "y").to_numpy()
    assert sizes == Result.load("c.json").predict(values, inputs=inputs, rng=5).sum(axis=1).tolist()
    found = json.loads(run("evaluate", "c.json", "p.csv", "--input-column", "x,y", "--keep", "w", "--json").stdout)
    right = Result.load("c.json").evaluate(values, np.zeros(50, int), inputs=inputs, rng=0)
    assert found["coverage"] == right.coverage.report()
    made = run("calibrate", "s.csv", *WEIGHTS[0], *TESTS[0], "--score", "lac", "--out", "w.json")
    assert made.exit_code == 0, made.output
    sizes = _sizes(run("predict", "w.json", "p.csv", "--weight-column", "w", "--keep", "x,y"))
    assert sizes == Result.load("w.json").predict(values, weight=more["w"].to_numpy()).sum(axis=1).tolist()


def _sizes(shown):
    assert shown.exit_code == 0, shown.output
    return [int(row["size"]) for row in csv.DictReader(io.StringIO(shown.stdout))]


def test_sets_by_class_and_intervals_by_side(run, frame, tmp_path):
    rng = np.random.default_rng(4)
    values = rng.dirichlet(np.ones(2), 30)
    pl.DataFrame(values, schema=[*CLASS_WEIGHTS]).write_csv(tmp_path / "p.csv")
    run("calibrate", "s.csv", *CLASSES[0], "--score", "lac", "--out", "k.json")
    expected = Result.load("k.json").predict(values, score=LAC(), labels=[*CLASS_WEIGHTS])
    assert _sizes(run("predict", "k.json", "p.csv")) == expected.sum(axis=1).tolist()
    run("calibrate", "s.csv", *SIDES[0], "--score", "cqr", "--out", "i.json")
    (tmp_path / "b.csv").write_text("lower,upper\n0,1\n2,5\n")
    rows = csv.DictReader(io.StringIO(run("predict", "i.json", "b.csv").stdout))
    ends = [[float(row["lower"]), float(row["upper"])] for row in rows]
    assert ends == Result.load("i.json").predict(np.array([[0.0, 1.0], [2.0, 5.0]]), score=CQR()).tolist()


# --- risk control -----------------------------------------------------------------------------------------------------


@pytest.fixture
def losses(tmp_path):
    """Losses of six devices, with a group, a weight and an input of every item; the rows in no order."""
    rng = np.random.default_rng(3)
    rows = [
        (f"s{d}", f"i{i}", lam, loss, sex, weight, x)
        for d in range(6)
        for i in range(60)
        for sex, weight, x in [(str(rng.choice(["F", "M"])), float(rng.choice([1.0, 2.0])), float(rng.random()))]
        for lam, loss in zip(np.sort(rng.random(2)).tolist(), (0.5, 0.0), strict=True)
    ]
    columns = ["device", "item", "lambda", "loss", "sex", "w", "x"]
    found = pl.DataFrame(rows, schema=columns, orient="row").sample(fraction=1, shuffle=True, seed=1)
    found.write_csv(tmp_path / "l.csv")
    (tmp_path / "centres.csv").write_text("x\n0.1\n0.9\n")
    return pl.read_csv(tmp_path / "l.csv")


CONTROLLED = {
    "groups": (("--group-column", "sex"), {"groups": "sex"}),
    "weights": (("--weight-column", "w", "--weight-bound", "2"), {"weight": "w", "weight_bound": 2}),
    "centres": (
        ("--centres", "centres.csv", "--bandwidth", "0.5", "--input-column", "x"),
        {"centres": Centres.at([0.1, 0.9], 0.5), "inputs": "x"},
    ),
}


@pytest.mark.parametrize("parts", [["groups"], ["weights"], ["centres"], ["groups", "weights", "centres"]])
@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_risks_by_group_weight_and_centre(run, losses, parts, ending, tmp_path):
    if ending == "npz":
        np.savez(tmp_path / "l.npz", **arrays_of(losses))
    words = [word for part in parts for word in CONTROLLED[part][0]]
    asked = {name: value for part in parts for name, value in CONTROLLED[part][1].items()}
    shown = run("control", f"l.{ending}", "--risk", "0.2,0.3", "--network", "cycle", *words, "--json")
    assert shown.exit_code == 0, shown.output
    found, right = Result.from_dict(json.loads(shown.stdout)), control(losses, "cycle", [0.2, 0.3], **asked)
    assert found.parts == right.parts
    for one, other in zip(found.answers, right.answers, strict=True):
        assert one.certificate == other.certificate
        np.testing.assert_array_equal(one.thresholds, other.thresholds)
    in_words = run("control", f"l.{ending}", "--risk", "0.2,0.3", "--network", "cycle", *words)
    assert f"{right.answers[0].threshold:.6g}" in in_words.stdout


def test_an_item_is_in_one_group(run, tmp_path):
    (tmp_path / "l.csv").write_text("device,item,lambda,loss,sex\na,1,0.1,0.5,F\na,1,0.4,0,M\n")
    shown = run("control", "l.csv", "--group-column", "sex")
    assert shown.exit_code == 2
    assert "l.csv, line 3: sex must be the same in all rows of an item" in shown.stderr


def test_devices_without_items_have_no_groups(run, tmp_path):
    rows = "".join(f"b,{i},{lam},{loss},g\n" for i in range(30) for lam, loss in ((0.1, 0.5), (0.4, 0.0)))
    (tmp_path / "l.csv").write_text("device,item,lambda,loss,sex\n" + rows)
    (tmp_path / "edges.txt").write_text("a b\nb c\n")
    shown = run("control", "l.csv", "--network", "edges.txt", "--group-column", "sex", "--json")
    assert shown.exit_code == 0, shown.output
    steps = StepLosses.of([([0.1, 0.4], [0.5, 0.0])] * 30)
    network = Network.from_edges(tmp_path / "edges.txt")
    assert network.ids == natural_order(network.ids)
    right = control([StepLosses.none(), steps, StepLosses.none()], network, 0.1, groups=[[], ["g"] * 30, []])
    assert json.loads(shown.stdout)["answers"][0]["thresholds"] == right["g"].thresholds.tolist()
