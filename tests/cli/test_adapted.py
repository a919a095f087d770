"""Adapted scores from the shell: calibrate, predict and evaluate do what the library does, and say what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from conformesh import Result, adapt, calibrate
from tests.engines.mpi import start

CLASSES = ["ant", "bee", "cat", "doe"]
DEVICES = [f"d{k}" for k in range(5)]


def rows_of(rng, rows, first, shift=0) -> pl.DataFrame:
    """Outputs that know the label, mostly one of two; with a shift they name another class."""
    truth = np.concatenate([np.arange(4), rng.choice([first % 4, (first + 1) % 4], rows - 4)])
    outputs = rng.dirichlet(np.ones(4), rows)
    outputs[np.arange(rows), (truth + shift) % 4] += 0.4
    outputs /= outputs.sum(axis=1, keepdims=True)
    return pl.DataFrame({name: outputs[:, c] for c, name in enumerate(CLASSES)}).with_columns(
        label=pl.Series([CLASSES[c] for c in truth]), sex=pl.Series(["F" if row % 2 else "M" for row in range(rows)])
    )


def on_devices(rng, rows, bad="") -> pl.DataFrame:
    each = [rows_of(rng, rows, k, int(name == bad)).with_columns(device=pl.lit(name)) for k, name in enumerate(DEVICES)]
    return pl.concat(each).sample(fraction=1.0, shuffle=True, seed=3)


@pytest.fixture
def frames() -> tuple[pl.DataFrame, pl.DataFrame]:
    rng = np.random.default_rng(4)
    return on_devices(rng, 40), on_devices(rng, 60, bad="d3")


@pytest.fixture
def files(run, frames) -> None:
    """cal.csv and test.csv, and r.json, their calibration; `run` has changed to an empty folder."""
    for frame, name in zip(frames, ("cal", "test"), strict=True):
        frame.drop("sex").write_csv(f"{name}.csv")
        frame.drop("sex").write_parquet(f"{name}.parquet")
    made = run("calibrate", "cal.csv", "--adapt", "prior", "--alpha", "0.2", "--seed", 5, "--out", "r.json")
    assert made.exit_code == 0, made.output


def in_python(frame, **more):
    return calibrate(frame.drop("sex"), "cycle", 0.2, adapt="prior", rng=5, **more)


def sets_of(lines):
    return [line.split(",")[2] for line in lines.splitlines()[1:]]


def test_the_shell_calibrates_and_predicts_as_the_library(run, files, frames):
    expected, made = in_python(frames[0]), Result.load("r.json")
    assert made.guarantee.adapt == adapt.Prior()
    assert made.classes == tuple(CLASSES)
    assert made.thresholds.tolist() == expected.thresholds.tolist()
    assert (made.adapted.hidden, made.adapted.digests) == (expected.adapted.hidden, expected.adapted.digests)
    device = frames[1]["device"].to_numpy()
    sets = expected.predict(frames[1].select(CLASSES), device=device, as_names=True)
    for end in ("csv", "parquet"):
        answer = run("predict", "r.json", f"test.{end}", "--rows", f"cal.{end}")
        assert answer.exit_code == 0, answer.output
        assert sets_of(answer.stdout) == [" ".join(labels) for labels in sets]
    frames[1].filter(pl.col("device") == "d2").drop("sex", "device", "label").write_csv("new.csv")
    alone = run("predict", "r.json", "new.csv", "--rows", "cal.csv", "--device", "d2")
    assert sets_of(alone.stdout) == [" ".join(sets[row]) for row in np.flatnonzero(device == "d2")]
    frames[0].filter(pl.col("device") == "d2").drop("sex", "device").write_csv("own.csv")
    nameless = run("predict", "r.json", "new.csv", "--rows", "own.csv", "--device", "d2")
    assert nameless.stdout == alone.stdout


def test_the_chosen_setting_is_said(run, files):
    chosen = Result.load("r.json").adapted
    strength, temperature = chosen.choices[int(np.argmin(chosen.losses))]
    said = f"chosen on the rows of all devices: strength {strength:g}, temperature {temperature:g}"
    assert said in run("calibrate", "cal.csv", "--adapt", "prior", "--alpha", "0.2").stdout
    fixed = "--adapt-option", "strength=4", "--adapt-option", "temperature=1"
    found = run("calibrate", "cal.csv", "--adapt", "prior", *fixed).stdout
    assert "adapted, Prior(strength=4, temperature=1" in found
    assert "chosen on" not in found


def test_evaluate_by_device_flags_the_bad_site(run, files, frames):
    expected = in_python(frames[0])
    device, truth = frames[1]["device"].to_numpy(), frames[1]["label"].to_numpy()
    evaluation = expected.evaluate(frames[1].select(CLASSES), truth, device=device)
    found = json.loads(run("evaluate", "r.json", "test.csv", "--rows", "cal.csv", "--json").stdout)
    assert found == {**evaluation.report(), "picture": None}
    words = ("evaluate", "r.json", "test.csv", "--rows", "cal.csv", "--by", "device")
    by_device = json.loads(run(*words, "--json").stdout)
    sites = expected.sites(frames[1].drop("sex"))
    assert by_device == {**sites.report(), "picture": None}
    assert by_device["flagged"] == ["d3"]
    answer = run(*words, "--plot", "sites.svg")
    assert answer.exit_code == 0, answer.output
    facts, table = answer.stdout.split("\n\n")
    assert "1 of 5 devices cover less than 0.8" in facts
    assert table.splitlines()[2].split()[0] == "d3"
    assert "<svg" in Path("sites.svg").read_text()
    lenient = json.loads(run(*words, "--nominal", "0.01", "--family-wise-error", "0.01", "--json").stdout)
    assert (lenient["flagged"], lenient["nominal"], lenient["family_wise_error"]) == ([], 0.01, 0.01)


def test_evaluate_by_device_of_plain_scores(run, files, frames):
    assert run("scores", "make", "cal.csv", "--score", "lac", "--out", "s.csv").exit_code == 0
    assert run("calibrate", "s.csv", "--alpha", "0.2", "--out", "p.json").exit_code == 0
    plain = Result.load("p.json")
    expected = plain.sites(frames[1].drop("sex")).report()
    found = json.loads(run("evaluate", "p.json", "test.csv", "--by", "device", "--json").stdout)
    assert found == {**expected, "picture": None}
    one = json.loads(run("evaluate", "p.json", "test.csv", "--by", "class", "--json").stdout)
    assert [name for name in one if name.startswith("per_")] == ["per_class"]
    shown = run("evaluate", "p.json", "test.csv", "--by", "class").stdout
    assert "class  rows" in shown
    assert "device  rows" not in shown
    frames[1].drop("sex", "device").write_csv("nameless.csv")
    alone = json.loads(run("evaluate", "p.json", "nameless.csv", "--by", "device", "--device", "d1", "--json").stdout)
    assert [*alone["per_device"]] == ["d1"]


def test_groups(run, files, frames):
    for frame, name in zip(frames, ("cal", "test"), strict=True):
        frame.write_csv(f"{name}.csv")
    made = run("calibrate", "cal.csv", "--adapt", "prior", "--alpha", "0.2", "--seed", 5, "--group-column", "sex",
               "--out", "g.json")  # fmt: skip
    assert made.exit_code == 0, made.output
    expected = calibrate(frames[0], "cycle", 0.2, adapt="prior", groups="sex", rng=5)
    answer = run("predict", "g.json", "test.csv", "--rows", "cal.csv", "--group-column", "sex")
    assert answer.exit_code == 0, answer.output
    sets = expected.predict(
        frames[1].select(CLASSES),
        device=frames[1]["device"].to_numpy(),
        groups=frames[1]["sex"].to_list(),
        as_names=True,
    )
    assert sets_of(answer.stdout) == [" ".join(labels) for labels in sets]
    found = run("evaluate", "g.json", "test.csv", "--rows", "cal.csv", "--group-column", "sex", "--by", "group")
    assert "group  rows" in found.stdout
    assert expected.sites(frames[1], groups="sex").flagged == ("d3",)


@pytest.mark.parametrize("with_scale", [False, True])
@pytest.mark.parametrize("name", ["scale", "even"])
def test_regression(run, name, with_scale):
    rng = np.random.default_rng(6)
    device = np.arange(200) % 4
    columns = {"device": [f"s{k}" for k in device], "prediction": rng.normal(size=200)}
    columns |= {"scale": rng.uniform(1, 2, 200)} if with_scale else {}
    frame = pl.DataFrame({**columns, "label": columns["prediction"] + device + rng.normal(size=200)})
    frame.write_csv("cal.csv")
    made = run("calibrate", "cal.csv", "--adapt", name, "--alpha", "0.2", "--seed", 1, "--out", "r.json")
    assert made.exit_code == 0, made.output
    expected = calibrate(frame, alpha=0.2, adapt=name, rng=1)
    wanted = frame.select([*columns][1:]).to_numpy()
    intervals = expected.predict(wanted if with_scale else wanted[:, 0], device=frame["device"].to_numpy())
    lines = run("predict", "r.json", "cal.csv", "--rows", "cal.csv").stdout.splitlines()[1:]
    ends = np.array([[float(cell) for cell in line.split(",")[1:3]] for line in lines])
    assert np.array_equal(ends, intervals)
    found = json.loads(run("evaluate", "r.json", "cal.csv", "--rows", "cal.csv", "--by", "device", "--json").stdout)
    assert found == {**expected.sites(frame).report(), "picture": None}
    if with_scale:
        frame.drop("scale").write_csv("bare.csv")
        answer = run("predict", "r.json", "bare.csv", "--rows", "cal.csv")
        assert answer.exit_code == 2
        assert "outputs must be predictions beside scales, two columns, as in calibration" in answer.stderr


def test_options_of_an_adaptation(run, files):
    words = ("--adapt-option", "strength=5,inf", "--adapt-option", "window=full", "--json")
    made = json.loads(run("calibrate", "cal.csv", "--adapt", "prior", *words).stdout)
    assert made["guarantee"]["adapt"] == {
        "name": "prior", "strength": [5, "inf"], "temperature": "auto", "prior": None, "window": "full"
    }  # fmt: skip


def test_one_call_of_with_rows_is_enough(run, files, frames):
    """In Python a loaded result takes the rows of several devices at once."""
    loaded, device = Result.load("r.json"), frames[1]["device"].to_numpy()
    ready = loaded.with_rows(frames[0].drop("sex"))
    outputs = frames[1].select(CLASSES)
    expected = in_python(frames[0]).predict(outputs, device=device)
    assert np.array_equal(ready.predict(outputs, device=device), expected)
    own = frames[0]["device"].to_numpy()
    apart = loaded.with_rows(frames[0].select(CLASSES), frames[0]["label"], device=own)
    assert np.array_equal(apart.predict(outputs, device=device), expected)
    with pytest.raises(ValueError, match=r"with_rows\(\) needs the device of each row"):
        loaded.with_rows(frames[0].select(CLASSES), frames[0]["label"])


CALIBRATE = ("calibrate", "cal.csv", "--adapt", "prior")
PREDICT, EVALUATE = ("predict", "r.json"), ("evaluate", "r.json")
ROWS = ("--rows", "cal.csv")
BAD = {
    "no rows": ((*PREDICT, "test.csv"), "r.json has adapted scores, so predictions need the rows"),
    "no rows to evaluate": ((*EVALUATE, "test.csv"), "give their file with --rows FILE"),
    "other rows": ((*PREDICT, "test.csv", "--rows", "test.csv"), "these are not the rows that it calibrated with"),
    "reordered rows": ((*PREDICT, "test.csv", "--rows", "reversed.csv"), "these are not the rows"),
    "strange device": ((*PREDICT, "bare.csv", *ROWS, "--device", "d9"), "device 'd9' took no part"),
    "rows of strangers": ((*PREDICT, "test.csv", "--rows", "mars.csv"), "device 'mars' took no part"),
    "no device": ((*PREDICT, "bare.csv", *ROWS), "need the device of each row; give --device NAME"),
    "rows without a device": ((*PREDICT, "test.csv", "--rows", "lone.csv"), "lone.csv: has no column 'device'"),
    "rows without labels": ((*PREDICT, "test.csv", "--rows", "unlabelled.csv"), "unlabelled.csv: needs a column"),
    "rows of another device": ((*PREDICT, "bare.csv", "--rows", "d1.csv", "--device", "d2"), "no row of device 'd2'"),
    "two devices": ((*PREDICT, "test.csv", *ROWS, "--device", "d2"), "--device d2 predicts for its own examples only"),
    "a score beside": ((*PREDICT, "test.csv", *ROWS, "--score", "aps"), "leave --score aps out"),
    "stdin twice": ((*PREDICT, "-", "--rows", "-"), "only one of PROBABILITIES and --rows can come from"),
    "rows of plain": (("predict", "p.json", "test.csv", *ROWS), "is for results with adapted scores"),
    "calibrate without labels": (("calibrate", "unlabelled.csv", "--adapt", "prior"), "needs a column 'label'"),
    "calibrate without devices": (("calibrate", "bare.csv", "--adapt", "prior"), "needs a column 'device'"),
    "calibrate scores": (("calibrate", "s.csv", "--adapt", "prior"), "needs a column 'label'"),
    "score and adapt": ((*CALIBRATE, "--score", "lac"), "--adapt prior replaces the score; leave --score lac out"),
    "unknown": (("calibrate", "cal.csv", "--adapt", "prir"), "unknown adaptation 'prir', did you mean 'prior'"),
    "unknown option": ((*CALIBRATE, "--adapt-option", "strenth=1"), "did you mean 'strength'"),
    "option alone": (("calibrate", "cal.csv", "--adapt-option", "strength=1"), "needs --adapt"),
    "epsilon": ((*CALIBRATE, "--method", "p-dcp", "--epsilon", "1"), "adapt"),
    "by what": ((*EVALUATE, "test.csv", *ROWS, "--by", "devise"), "unknown --by 'devise', did you mean 'device'"),
    "by centre": ((*EVALUATE, "test.csv", *ROWS, "--by", "centre"), "--by centre: the result has no centres"),
    "by group": (("evaluate", "p.json", "test.csv", "--by", "group"), "--by group: the rows name no groups"),
    "error of what": ((*EVALUATE, "test.csv", *ROWS, "--nominal", "0.8"), "go with --by device"),
    "error": ((*EVALUATE, "test.csv", *ROWS, "--by", "device", "--family-wise-error", "2"), "strictly between 0 and 1"),
}  # fmt: skip


def test_what_is_missing_is_said(run, csv, files, frames):
    calibration, tests = (frame.drop("sex") for frame in frames)
    calibration.reverse().write_csv("reversed.csv")
    calibration.drop("device").write_csv("lone.csv")
    calibration.drop("label").write_csv("unlabelled.csv")
    calibration.filter(pl.col("device") == "d1").write_csv("d1.csv")
    calibration.with_columns(device=pl.lit("mars")).write_csv("mars.csv")
    tests.drop("device").write_csv("bare.csv")
    csv("device,score\n" + "".join(f"{name},0.5\n" for name in DEVICES), "s.csv")
    assert run("calibrate", "s.csv", "--score", "lac", "--out", "p.json").exit_code == 0
    for case, (words, problem) in BAD.items():
        answer = run(*words)
        assert answer.exit_code == 2, (case, answer.output)
        assert problem in answer.stderr, (case, answer.stderr)
        assert len([line for line in answer.stderr.splitlines() if line.startswith("error: ")]) == 1, case


def test_ranks_calibrate_as_one_process(run, files, tmp_path):
    words = ("calibrate", tmp_path / "cal.csv", "--adapt", "prior", "--alpha", "0.2", "--seed", "5", "--json")
    done = start(2, "conformesh.cli", *words, "--engine", "mpi")
    assert done.returncode == 0, done.stderr
    found, expected = json.loads(done.stdout), Result.load("r.json").to_dict()
    assert (found["answers"], found["adapted"]) == (expected["answers"], expected["adapted"])
