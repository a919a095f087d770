"""``conformesh plan``."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from matplotlib.image import imread

from conformesh import METHODS, Network, calibrate

TORUS = ("plan", "--devices", 20, "--network", "torus", "--scores-per-device", 50)


def test_the_table_names_every_method_and_says_which_to_use(run):
    shown = run(*TORUS)
    assert shown.exit_code == 0, shown.output
    for method in METHODS:
        assert f"\n{method} " in shown.stdout
    assert shown.stdout.startswith(
        "figures from runs on the network itself, torus 5x4: 20 devices, 40 edges, diameter 4"
    )
    assert "Which should I use? Use " in shown.stdout


def test_json_equals_the_ledger_of_runs(run, tmp_path):
    """With the scores at hand every row is a run of `calibrate` on them."""
    rng = np.random.default_rng(3)
    scores = [rng.random(50) for _ in range(20)]
    lines = [f"{device},{float(score)!r}" for device in range(20) for score in scores[device]]
    (tmp_path / "scores.csv").write_text("\n".join(["device,score", *lines]) + "\n")
    asked = ("--scores", tmp_path / "scores.csv", "--method", "e-dcp,h-dcp,fcp,r-dcp", "--json")
    found = json.loads(run("plan", *asked).stdout)
    assert found["simulated"]["draws"] == 0
    for row in found["rows"]:
        chosen = {} if row["variant"] is None else {METHODS[row["method"]].execution.variants: row["variant"]}
        cost = calibrate(scores, Network.torus(5, 4), 0.1, row["method"], **chosen).cost
        assert (row["rounds"], row["bits_per_device"]) == (cost.rounds, cost.bits_per_device), row["method"]
        assert row["largest_bytes"] == cost.bits.max() / 8
    assert len(found["rows"]) == 4 + 4 + 2


def test_csv_has_a_line_for_each_row(run):
    rows = [*csv.DictReader(io.StringIO(run(*TORUS, "--method", "fcp,h-dcp", "--csv").stdout))]
    assert [row["method"] for row in rows] == ["h-dcp"] * 4 + ["fcp"]
    assert rows[-1]["bytes_per_device"] == "400"


def test_options_of_methods_are_flags(run):
    found = json.loads(
        run(*TORUS, "--method", "h-dcp", "--bins", 10, "--range", 0, 1, "--consensus", "finite-time", "--json").stdout
    )
    (row,) = found["rows"]
    assert row["numbers_per_device"] == 8 * 10


def test_a_graph_of_ones_own(run, tmp_path):
    Network.of("geometric", 30).to_edges(tmp_path / "graph.txt")
    found = json.loads(run("plan", "--network", tmp_path / "graph.txt", "--json").stdout)
    assert (found["devices"], found["network"]) == (30, "graph.txt")


def test_a_billion_devices_are_planned_on_fewer(run):
    asked = ("plan", "--devices", "1e9", "--network", "torus", "--method", "e-dcp,fcp", "--simulate-up-to", 100)
    found = json.loads(run(*asked, "--json").stdout)
    assert found["devices"] == 10**9
    assert (found["simulated"]["devices"], found["simulated"]["is_smaller"]) == (100, True)
    assert found["recommended"]["method"] == "e-dcp"
    shown = run(*asked).stdout
    assert "figures from runs on a smaller network than asked for, torus 10x10: 100 devices" in shown.splitlines()[0]


def test_what_takes_too_long_is_named(run):
    asked = ("--devices", 400, "--method", "h-dcp", "--consensus", "projection", "--time-limit", 0.2)
    shown = run("plan", *asked)
    assert "not here: h-dcp projection, stopped in round" in shown.stdout


def test_the_picture(run, tmp_path):
    shown = run(*TORUS, "--method", "e-dcp,h-dcp,fcp", "--plot", tmp_path / "deep" / "plan.png")
    assert shown.exit_code == 0, shown.output
    height, width, _ = imread(tmp_path / "deep" / "plan.png").shape
    assert width > 1000
    assert height > 500


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan",), "--devices"),
        ((*TORUS, "--link", "fast"), "LATENCY,BANDWIDTH"),
        ((*TORUS, "--alpha", "2"), "alpha must lie strictly between 0 and 1"),
        ((*TORUS, "--sort", "beauty"), "sort must be one of"),
        ((*TORUS, "--method", "e-dpc"), "did you mean 'e-dcp'"),
        ((*TORUS, "--method", "fcp", "--bins", "5"), "it belongs to h-dcp, r-dcp, wfcp"),
        ((*TORUS, "--json", "--csv"), "give one of them"),
        ((*TORUS, "--plot", "plan.txt"), "must end in .png"),
        ((*TORUS, "--network", "graph.txt"), "names already; leave it out"),
        ((*TORUS, "--network-option", "p=1"), "has no option 'p'"),
        ((*TORUS, "--share-column", "w"), "there is no file of scores"),
        (("plan", "--devices", "many"), "whole number"),
        (("plan", "--devices", "1e9", "--network", "torsu"), "did you mean 'torus'"),
        ((*TORUS, "--simulate-up-to", "0"), "simulate up to"),
        ((*TORUS, "--time-limit", "0"), "time_limit must be more than 0"),
    ],
)
def test_bad_input_is_one_line(run, words, says):
    shown = run(*words)
    assert shown.exit_code == 2
    assert says in shown.stderr
    assert shown.stderr.startswith("error: ")


def test_a_number_of_scores_is_no_file_of_them(run):
    result = run("plan", "--devices", "20", "--scores", "80")
    assert result.exit_code == 2
    assert "--scores is a file of scores, got the number 80" in result.stderr
    assert "--scores-per-device 80" in result.stderr
