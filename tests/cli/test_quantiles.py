"""``conformesh quantiles``: the answer of the library, from files and flags."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from conformesh import Network, calibrate, quantiles


@pytest.fixture
def patients(tmp_path):
    """Ages of patients of five hospitals, and a column that is no number."""
    rng = np.random.default_rng(0)
    ages = {f"h{k}": rng.integers(18, 95, 40 + 20 * k) for k in range(5)}
    rows = [(name, int(age), "yes") for name, own in ages.items() for age in own]
    pl.DataFrame(rows, schema=["hospital", "age", "insured"], orient="row").write_csv(tmp_path / "patients.csv")
    return ages


AGES = ("quantiles", "patients.csv", "--device-column", "hospital", "--score-column", "age", "--network", "cycle")


def test_the_command_answers_as_the_library_does(run, patients):
    shown = run(*AGES, "-q", "0.1,0.5", "-q", 1, "--json")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    right = quantiles(patients, Network.cycle(5).relabelled([*patients]), [0.1, 0.5, 1])
    assert found["values"] == right.values.tolist()
    assert (found["q"], found["n"], found["column"], found["epsilon"]) == ([0.1, 0.5, 1.0], 400, "age", None)
    assert json.loads(run(*AGES, "--json").stdout)["q"] == [0.25, 0.5, 0.75]


def test_people_see_a_table_and_what_it_means(run, patients, tmp_path):
    shown = run(*AGES, "--out", "quantiles.csv")
    assert shown.exit_code == 0, shown.output
    pooled = np.sort(np.concatenate([*patients.values()]))
    assert f"0.75     {pooled[299]}\n" in shown.stdout
    assert "guarantee: counted: each value is the smallest with at least the part q of all 400 values" in shown.stdout
    assert "400 values of age on 5 devices" in shown.stdout
    assert pl.read_csv(tmp_path / "quantiles.csv")["value"].to_list() == pooled[[99, 199, 299]].tolist()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-q", "50"], "q must be a number from 0 to 1, got 50; for the percentile 50 write 0.5"),
        (["-q", "median"], "q must be a number from 0 to 1, got 'median'"),
        (["--score-column", "agee"], "did you mean 'age'?"),
        (["--score-column", "insured"], "insured must be a number, got 'yes'"),
        (["--out", "found.txt"], "must end in .json or .csv"),
        (["--aggregate", "magic"], "unknown aggregator"),
    ],
)
def test_a_mistake_is_one_line(run, patients, words, said):
    shown = run(*AGES, *words)
    assert shown.exit_code == 2
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr


def test_without_column_the_error_names_an_option_that_works(run, patients):
    shown = run("quantiles", "patients.csv", "--device-column", "hospital")
    assert "another name is given with --score-column" in shown.stderr
    assert run("quantiles", "patients.csv", "--device-column", "hospital", "--score-column", "age").exit_code == 0


PRIVATE = (*AGES, "--epsilon", "4", "--range", "0", "120")


def test_private_quantiles_and_others_from_the_same_release(run, patients, tmp_path):
    shown = run(*PRIVATE, "--out", "private.json")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[0].split() == ["q", "value", "rank", "error"]
    assert "privacy: none: this was a simulation, and one program saw all values" in shown.stdout
    first = json.loads((tmp_path / "private.json").read_text())
    assert (first["epsilon"], first["confidence"], first["column"]) == (4, 0.95, "age")
    other = json.loads(run("quantiles", "private.json", "-q", "0.5,0.9", "--json").stdout)
    assert (other["values"][0], other["release"], other["cost"]) == (first["values"][1], first["release"], None)
    assert "spends no further epsilon" in run("quantiles", "private.json").stdout


def test_quantiles_of_a_private_calibration(run, tmp_path):
    rng = np.random.default_rng(3)
    devices = [rng.random(80) for _ in range(6)]
    calibrate(devices, "cycle", 0.1, "p-dcp", epsilon=4, grid="logit").save(tmp_path / "result.json")
    found = json.loads(run("quantiles", "result.json", "-q", "0.5", "--json").stdout)
    assert (found["epsilon"], found["column"], found["devices"]) == (4, "score", 6)
    assert abs(np.searchsorted(np.sort(np.concatenate(devices)), found["values"][0]) - 240) <= found["rank_error"][0]
    calibrate(devices, "cycle", 0.1).save(tmp_path / "exact.json")
    assert "comes from a run without epsilon" in run("quantiles", "exact.json").stderr
    groups = [np.arange(80) % 2] * 6
    calibrate(devices, "cycle", [0.1, 0.2], "p-dcp", groups=groups, epsilon=4, grid="logit").save(
        tmp_path / "groups.json"
    )
    assert "a histogram for each of 2 groups" in run("quantiles", "groups.json").stderr
    calibrate(devices, "cycle", [0.1, 0.2], "p-dcp", epsilon=4, grid="logit").save(tmp_path / "levels.json")
    assert run("quantiles", "levels.json").exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*AGES, "--range", 0, 120), "--range is for private quantiles; give --epsilon too"),
        ((*AGES, "--cap", 3), "--cap is for private quantiles; give --epsilon too"),
        ((*AGES, "--epsilon", "much"), "epsilon must be a number, got 'much'"),
        ((*PRIVATE, "-q", 0), "strictly between 0 and 1"),
        ((*PRIVATE, "--confidence", 95), "confidence must lie strictly between 0 and 1, got 95"),
        ((*AGES, "--epsilon", 1, "--range", 9, 1), "LO below HI"),
        (("quantiles", "some.json", "--epsilon", 1), "--epsilon is for a file of values, and some.json is a result"),
    ],
)
def test_mistakes_in_private_options_are_one_line(run, patients, words, said):
    shown = run(*words)
    assert shown.exit_code == 2
    assert said in shown.stderr
