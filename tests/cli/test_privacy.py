"""``conformesh privacy``."""

from __future__ import annotations

import json

import numpy as np
import pytest

from conformesh import METHODS, Network, calibrate, calibrate_several

CYCLE = ("privacy", "--plan", "--devices", 20, "--topology", "cycle")


def test_a_plan_says_who_would_learn_what(run):
    shown = run(*CYCLE, "--method", "h-dcp", "--bins", 50, "--range", 0, 1, "--coalition", "3,")
    assert shown.exit_code == 0, shown.output
    assert "its exact histogram" in shown.stdout
    assert "a coalition of {3} has 19 of 19 other devices' own numbers" in shown.stdout
    assert " 50\n" in shown.stdout
    assert "smallest" not in shown.stdout  # a given range is not agreed on


@pytest.mark.parametrize("method", METHODS)
def test_json_of_every_method(run, method):
    found = json.loads(run(*CYCLE, "--method", method, "--json").stdout)
    assert found["method"] == method
    assert len(found["coalition"]) == 1
    assert found["worst"]
    assert {row["to"] for row in found["reveals"]} <= {"neighbours", "everybody", "a server", "the coalition"}


def test_a_result_says_what_it_revealed_and_with_its_map_what_a_coalition_learned(run, tmp_path):
    names = [f"d{k}" for k in range(20)]
    rng = np.random.default_rng(0)
    result = calibrate([rng.random(30) for _ in names], Network.torus(5, 4).relabelled(names), 0.1, "e-dcp")
    result.save(tmp_path / "result.json")
    shown = run("privacy", tmp_path / "result.json")
    assert shown.exit_code == 0, shown.output
    assert "e-dcp on torus 5x4" in shown.stdout
    assert "the threshold: a true score of somebody" in shown.stdout
    assert "--topology or --graph" in shown.stdout
    found = json.loads(
        run("privacy", tmp_path / "result.json", "--topology", "torus", "--coalition", "d10,d2", "--json").stdout
    )
    assert found["coalition"] == ["d2", "d10"]
    assert {*found["bare"]} <= {*names} - {"d2", "d10"}
    assert found["bare"]


def test_a_device_of_a_mesh_has_its_result_read(run, tmp_path):
    network = Network.cycle(4)
    one = calibrate([np.arange(30.0)] * 4, network, 0.1, "e-dcp").to_dict()
    one |= {"device_ids": ["a"], "devices": 1, "thresholds": one["thresholds"][:1], "scores": 120}
    wrapped = {"format": "conformesh-node-result/3", "roster": ["a", "b", "c", "d"], "calibration": one}
    (tmp_path / "result.json").write_text(json.dumps(wrapped))
    found = json.loads(run("privacy", "result.json", "--topology", "cycle", "--coalition", 2, "--json").stdout)
    assert (found["devices"], len(found["coalition"])) == (4, 2)


def test_several_thresholds_of_one_run_and_facts_that_say_what_they_revealed(run, tmp_path):
    scores, groups = [np.arange(40.0)] * 6, [np.arange(40) % 2] * 6
    several = calibrate_several(scores, Network.torus(3, 2), [0.1, 0.2], groups=groups, method="e-dcp")
    several.save(tmp_path / "several.json")
    shown = run("privacy", "several.json")
    assert shown.exit_code == 0, shown.output
    assert "several thresholds of one run" in shown.stderr
    one = calibrate(scores, Network.torus(3, 2), 0.1, "e-dcp").to_dict()
    one["options"]["revealed_pivots"] = "7 totals"
    (tmp_path / "told.json").write_text(json.dumps(one))
    assert "revealed_pivots: 7 totals" in run("privacy", "told.json").stdout
    assert json.loads(run("privacy", "told.json", "--json").stdout)["revealed_pivots"] == "7 totals"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give a RESULT, or --plan"),
        (("--plan",), "say with --method"),
        (("--plan", "--method", "e-dcp"), "say how many devices"),
        (("--plan", "--method", "e-dcp", "--devices", 6, "--coalition", 6), "leave somebody out"),
        (("--plan", "--method", "e-dcp", "--devices", 6, "--coalition", "zz,"), "no device 'zz'"),
        (("--plan", "--method", "e-dpc", "--devices", 6), "did you mean 'e-dcp'"),
        (("--plan", "--method", "e-dcp", "--devices", 6, "--bins", 3), "belongs to"),
        (("nowhere.json", "--method", "e-dcp"), "--method is for a run to come"),
        (("--plan", "--method", "e-dcp", "--devices", 6, "--graph", "edges.txt"), "not both"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(run, words, said):
    shown = run("privacy", *words)
    assert shown.exit_code == 2
    assert said in shown.stderr
