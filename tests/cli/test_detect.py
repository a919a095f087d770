"""`conformesh detect`: the answer of the library, from files and flags."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from conformesh import Network, detect


@pytest.fixture
def files(tmp_path):
    """Scores of four devices; test points of three, and of a fifth that has no scores."""
    rng = np.random.default_rng(0)
    held = {f"d{k}": rng.normal(size=60) for k in range(4)}
    tests = {f"d{k}": np.append(rng.normal(size=6), 8.5) for k in (0, 1, 3, 4)}
    for name, devices in (("scores", held), ("tests", tests)):
        rows = [(device, score) for device, own in devices.items() for score in own.tolist()]
        pl.DataFrame(rows, schema=["device", "score"], orient="row").write_csv(tmp_path / f"{name}.csv")
    return held, tests


def test_the_command_answers_as_the_library_does(run, files):
    held, tests = files
    result = run("detect", "scores.csv", "tests.csv", "--fdr", "0.2", "--network", "cycle", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    ids = tuple(f"d{k}" for k in range(5))
    network = Network.cycle(5).relabelled(ids)
    everyone = {name: held.get(name, []) for name in ids}, {name: tests.get(name, []) for name in ids}
    right = detect(everyone[0], network, everyone[1], fdr=0.2, rng=found["seed"])
    for name in ids:
        assert found["flagged"][name] == right.flagged[name].tolist()
        assert found["p_values"][name] == right.p_values[name].tolist()
    assert found["certificate"] == right.certificate
    assert found["kind"] == "counted"
    other, again = (
        json.loads(run("detect", "scores.csv", "tests.csv", "--fdr", "0.2", "--json", *more).stdout)
        for more in ([], ["--seed", str(found["seed"])])
    )
    assert other["seed"] != again["seed"] == found["seed"]
    assert again["flagged"] == found["flagged"]


def test_people_see_who_is_flagged_and_why(run, files, tmp_path):
    result = run("detect", "scores.csv", "tests.csv", "--network", "cycle", "--no-p-values", "--out", "found.csv")
    assert result.exit_code == 0, result.output
    assert "the false discovery rate is at most 0.1" in " ".join(result.stdout.split())
    table = pl.read_csv(tmp_path / "found.csv")
    assert table.columns == ["device", "row", "score", "flagged"]
    assert table.filter(pl.col("flagged"))["row"].to_list().count(6) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fdr", "2"], "fdr must lie strictly between 0 and 1"),
        (["--rule", "magic"], "rule must be thinned or plain"),
        (["--sample-size", "many"], "--sample-size must be a whole number"),
        (["--sample-size", "241"], "sample_size=241 of 240 scores is too many"),
        (["--out", "found.txt"], "must end in .json or .csv"),
        (["--aggregate", "magic"], "unknown aggregator"),
        (["--engine", "magic"], "unknown engine"),
    ],
)
def test_what_cannot_be_is_one_line(run, files, words, said):
    result = run("detect", "scores.csv", "tests.csv", "--network", "cycle", *words)
    assert result.exit_code != 0
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_only_one_file_can_come_from_a_pipe(run):
    assert "only one of SCORES and TESTS" in run("detect", "-", "-").stderr


def test_scores_and_tests_of_two_kinds_are_refused(run):
    assert run("scores", "synthetic", "--rows", 400, "--classes", 4, "--out", "o.npz").exit_code == 0
    for name in ("lac", "aps"):
        assert run("scores", "make", "o.npz", "--out", f"{name}.csv", "--devices", 4, "--score", name).exit_code == 0
    refused = run("detect", "lac.csv", "aps.csv")
    assert refused.exit_code == 2
    assert "lac.csv and aps.csv: holds scores of two kinds, lac and aps" in refused.stderr
