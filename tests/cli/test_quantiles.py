"""``conformesh quantiles``: the answer of the library, from files and flags."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from conformesh import Network, quantiles


@pytest.fixture
def patients(tmp_path):
    """Ages of patients of five hospitals, and a column that is no number."""
    rng = np.random.default_rng(0)
    ages = {f"h{k}": rng.integers(18, 95, 40 + 20 * k) for k in range(5)}
    rows = [(name, int(age), "yes") for name, own in ages.items() for age in own]
    pl.DataFrame(rows, schema=["hospital", "age", "insured"], orient="row").write_csv(tmp_path / "patients.csv")
    return ages


AGES = ("quantiles", "patients.csv", "--device-column", "hospital", "--column", "age", "--topology", "cycle")


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
    assert "guarantee: counted: each value is the smallest with at least q n of the n = 400 values" in shown.stdout
    assert "400 values of age on 5 devices" in shown.stdout
    assert pl.read_csv(tmp_path / "quantiles.csv")["value"].to_list() == pooled[[99, 199, 299]].tolist()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-q", "50"], "q must be a number from 0 to 1, got 50; for the percentile 50 write 0.5"),
        (["-q", "median"], "q must be a number from 0 to 1, got 'median'"),
        (["--column", "agee"], "did you mean 'age'?"),
        (["--column", "insured"], "insured must be a number, got 'yes'"),
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
