"""``conformesh privacy``."""

from __future__ import annotations

import json
from fractions import Fraction

import msgspec
import numpy as np
import pytest

from conformesh import METHODS, Network, calibrate
from conformesh.privacy.account import Account
from conformesh.privacy.histogram import Release

CYCLE = ("privacy", "--plan", "--devices", 20, "--network", "cycle")


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
    assert "Name the network with --network" in shown.stdout
    found = json.loads(
        run("privacy", tmp_path / "result.json", "--network", "torus", "--coalition", "d10,d2", "--json").stdout
    )
    assert found["coalition"] == ["d2", "d10"]
    assert {*found["bare"]} <= {*names} - {"d2", "d10"}
    assert found["bare"]


@pytest.mark.parametrize(("method", "words"), [("e-dcp", "true scores of somebody"), ("p-dcp", "points of the grid")])
def test_adapted_scores_reveal_more_by_a_plan_and_by_a_result(run, tmp_path, method, words):
    plan = ("privacy", "--plan", "--devices", 20, "--network", "torus", "--method", method, "--adapt", "prior")
    shown = run(*plan)
    assert shown.exit_code == 0, shown.output
    for part in (words, "the sum of the losses of all rows, for each setting", "readers of predictions"):
        assert part in shown.stdout
    assert ("the sum of the losses of its rows" in shown.stdout) is (method == "e-dcp")
    rng = np.random.default_rng(0)
    rows = [(rng.dirichlet(np.ones(3), 12), np.arange(12) % 3) for _ in range(20)]
    calibrate(rows, "torus", 0.1, method, adapt="prior").save(tmp_path / "result.json")
    found = json.loads(run("privacy", tmp_path / "result.json", "--network", "torus", "--json").stdout)
    assert found["reveals"] == json.loads(run(*plan, "--json").stdout)["reveals"]


def test_a_plan_with_an_unknown_adaptation_or_mixture_is_refused(run):
    for option, words in (
        ("--adapt", "unknown adaptation 'priro', did you mean 'prior'"),
        ("--mixture", "mixture 'priro'"),
    ):
        shown = run(*CYCLE, "--method", "e-dcp", option, "priro")
        assert shown.exit_code == 2
        assert words in shown.stderr


def test_a_device_of_a_mesh_has_its_result_read(run, tmp_path):
    network = Network.cycle(4)
    one = calibrate([np.arange(30.0)] * 4, network, 0.1, "e-dcp").to_dict()
    one["device_ids"] = ["a"]
    one["answers"][0]["thresholds"] = one["answers"][0]["thresholds"][:1]
    wrapped = {"format": "conformesh-node-result/3", "roster": ["a", "b", "c", "d"], "calibration": one}
    (tmp_path / "result.json").write_text(json.dumps(wrapped))
    found = json.loads(run("privacy", "result.json", "--network", "cycle", "--coalition", 2, "--json").stdout)
    assert (found["devices"], len(found["coalition"])) == (4, 2)


def test_several_thresholds_of_one_run_and_facts_that_say_what_they_revealed(run, tmp_path):
    scores, groups = [np.arange(40.0)] * 6, [np.arange(40) % 2] * 6
    several = calibrate(scores, Network.torus(3, 2), [0.1, 0.2], groups=groups, method="e-dcp")
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
        (("result.json", "--plan"), "one of the three"),
        (("--plan", "--account", "d0"), "one of the three"),
        (("--account", "nowhere"), "needed a device's folder (with device.toml) or its privacy.json"),
        (("--plan",), "say with --method"),
        (("--plan", "--method", "e-dcp"), "give the number of devices"),
        (("--plan", "--method", "e-dcp", "--devices", 6, "--coalition", 6), "leave somebody out"),
        (("--plan", "--method", "e-dcp", "--devices", 6, "--coalition", "zz,"), "no device 'zz'"),
        (("--plan", "--method", "e-dpc", "--devices", 6), "did you mean 'e-dcp'"),
        (("--plan", "--method", "e-dcp", "--devices", 6, "--bins", 3), "belongs to"),
        (("nowhere.json", "--method", "e-dcp"), "--method is for a run to come"),
        (("--plan", "--method", "e-dcp", "--devices", 6, "--network", "edges.txt"), "names already; leave it out"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(run, words, said):
    shown = run("privacy", *words)
    assert shown.exit_code == 2
    assert said in shown.stderr


# --- private runs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(1)
    return [rng.random(100) for _ in range(20)]


@pytest.fixture(scope="module")
def private(scores):
    return calibrate(scores, Network.torus(5, 4), 0.1, "p-dcp", epsilon=2, grid="logit")


def test_a_private_result_is_explained_with_other_levels_at_no_cost(run, private, tmp_path):
    private.save(tmp_path / "result.json")
    shown = run("privacy", "result.json")
    assert shown.exit_code == 0, shown.output
    for words in (
        "protects: nothing: this was a simulation",
        "On a mesh it would protect each score",
        "exp(2) = 7.39",
        "at least 19 of 20 devices keep their noise secret",
        "devices: all 20 took part",
        "on average over calibration scores, the new example and the noise",
        "of epoch 1; nothing else can be read",
        "other levels cost no further epsilon",
        "how many of all scores lie in each of",  # the table of who learns what follows
    ):
        assert words in shown.stdout
    found = json.loads(run("privacy", "result.json", "--alpha", "0.1,0.3", "--json").stdout)["private"]
    release = msgspec.convert(private.options["release"], Release)
    assert [level["threshold"] for level in found["levels"]] == [
        release.answer(Fraction(alpha)).threshold for alpha in ("0.1", "0.3")
    ]
    assert found["levels"][0]["threshold"] == private.threshold
    assert (found["epsilon"], found["unit"], found["simulated"], found["epochs"]) == (2, "score", True, [1])
    assert found["inflation"] == private.certificate.noise.inflation
    assert f"{release.answer(Fraction('0.3')).threshold:.6g}" in run("privacy", "result.json", "--alpha", 0.3).stdout


def test_lost_devices_and_windows_are_named(run, private, tmp_path):
    """A result of a mesh: three of twenty devices were lost, and two epochs were added up."""
    one = private.to_dict()
    (answer,) = one["answers"]
    answer["certificate"]["noise"] |= {"devices": 17, "honest": 16, "epochs": [4, 5], "simulated": False}
    answer["thresholds"] = answer["thresholds"][:1]
    one["device_ids"] = ["d0"]
    wrapped = {"format": "conformesh-node-result/3", "roster": [f"d{k}" for k in range(20)], "calibration": one}
    (tmp_path / "result.json").write_text(json.dumps(wrapped))
    shown = run("privacy", "result.json")
    assert shown.exit_code == 0, shown.output
    assert "devices: 17 of 20 took part; the others were lost before the release" in shown.stdout
    assert "of epochs 4, 5 added up" in shown.stdout
    assert "protects: each score: with it or without it" in shown.stdout
    assert "simulation" not in shown.stdout


def test_groups_have_a_line_each(run, scores, tmp_path):
    groups = [np.arange(100) % 2] * 20
    several = calibrate(scores, Network.torus(5, 4), [0.1, 0.2], "p-dcp", groups=groups, epsilon=2)
    several.save(tmp_path / "several.json")
    found = json.loads(run("privacy", "several.json", "--alpha", 0.2, "--json").stdout)["private"]["levels"]
    assert [(one["group"], one["threshold"]) for one in found] == [
        (group, several[group, 0.2].threshold) for group in ("0", "1")
    ]
    assert "at least 0.9 in each group" in run("privacy", "several.json").stdout


def test_another_level_needs_a_release(run, tmp_path):
    calibrate([np.arange(30.0)] * 4, "cycle", 0.1).save(tmp_path / "exact.json")
    assert "was made without epsilon" in run("privacy", "exact.json", "--alpha", 0.2).stderr


PRIVATE = ("privacy", "--plan", "--method", "p-dcp", "--devices", 20)


def test_a_private_plan_says_what_a_run_would_cost(run, private):
    """The predicted cost is that of a run: cells, price, rounds and bits."""
    shown = run(*PRIVATE, "--epsilon", 2)
    assert shown.exit_code == 0, shown.output
    for words in (
        "never from data",
        "with fewer the threshold is +inf",
        "if scores fill all cells evenly",
        "--unit device --cap 100 would need at least",
        "an attempt that fails before the masks are revealed costs no epsilon",
        "each epoch may be released 1 time at epsilon 2: a score loses at most 2 in its lifetime",
    ):
        assert words in shown.stdout
    found = json.loads(run(*PRIVATE, "--epsilon", 2, "--json").stdout)["private"]
    noise = private.certificate.noise
    assert (found["cells"], found["inflation"], found["honest"]) == (noise.cells, noise.inflation, noise.honest)
    assert (found["rounds"], found["bits_per_device"]) == (private.cost.rounds, private.cost.bits_per_device)
    assert (
        found["number_needed"]
        == msgspec.convert(private.options["release"], Release).inflation(Fraction("0.1")).number_needed
    )
    assert 0.002 < found["spread"] < 2 * noise.spread


def test_a_private_plan_that_cannot_be_says_what_is_missing(run):
    few = run(*PRIVATE, "--epsilon", 0.1, "--expected-scores", 5)
    assert "of no use: 100 expected scores are too few, and the threshold would be +inf" in few.stdout
    assert "and these are more than the about 10 that may lie above the threshold" in few.stdout
    whole = ("--epsilon", 1, "--unit", "device", "--cap", 100)
    shown = run(*PRIVATE, *whole)
    assert shown.exit_code == 0, shown.output
    assert "20 are too few, and the run would be refused" in shown.stdout
    found = json.loads(run(*PRIVATE, *whole, "--json").stdout)["private"]
    assert found["refused"]
    needed = found["devices_needed_for_unit_device"]
    enough = json.loads(run("privacy", "--plan", "--method", "p-dcp", *whole, "--devices", needed, "--json").stdout)
    assert not enough["private"]["refused"]
    assert "keep their noise secret" not in run(*PRIVATE).stdout  # without epsilon there is none


@pytest.fixture
def device(run, tmp_path):
    """The folder of a device of a private mesh."""
    made = run("mesh", "init", "mesh", "--devices", 4, "--method", "p-dcp", "--epsilon", 0.5, "--releases", 2)
    assert made.exit_code == 0, made.output
    return next(path.parent for path in (tmp_path / "mesh").glob("*/device.toml"))


def test_an_account_says_what_was_released_and_what_is_left(run, device):
    fresh = run("privacy", "--account", device)
    assert fresh.exit_code == 0, fresh.output
    assert "2 times at epsilon 0.5: a score loses at most 1 in its lifetime" in fresh.stdout
    assert "may release epoch 1 (2 releases left)" in fresh.stdout
    account = Account(device / "privacy.json", epoch=1, releases=2)
    account.charge(1, ["a", "b", "c", "d"], b"first")
    assert "may release epoch 1 (1 release left)" in run("privacy", "--account", device / "privacy.json").stdout
    account.charge(1, ["a", "b", "c"], b"second")
    used = run("privacy", "--account", device)
    assert "next run: refused: epoch 1 was released 2 times, and the option releases allows 2" in used.stdout
    assert f"next epoch: conformesh mesh epoch {device} 2, on every device" in used.stdout
    found = json.loads(run("privacy", "--account", device, "--json").stdout)
    assert found["refusal"] == account.refusal()
    assert found["epochs"] == [{"epoch": 1, "releases": 2, "left": 0, "devices": 3}]
    assert run("mesh", "epoch", device, 2).exit_code == 0  # as the text says
    assert "may release epoch 2 (2 releases left)" in run("privacy", "--account", device).stdout


def test_an_account_tells_of_exact_runs_and_of_a_damaged_file(run, device):
    Account(device / "privacy.json", epoch=1).charge_exact(["a", "b", "c", "d"], "digest", 3)
    shown = run("privacy", "--account", device).stdout
    assert "exact runs: with 1 roster, of all scores up to epoch 1; no run with epsilon may release" in shown
    assert "next run: refused: epoch 1 was counted without noise" in shown
    (device / "privacy.json").write_text("{")
    broken = run("privacy", "--account", device)
    assert broken.exit_code == 0, broken.output
    assert "next run: takes part without scores" in broken.stdout
    assert "needed JSON" in json.loads(run("privacy", "--account", device, "--json").stdout)["problem"]


def test_an_account_of_another_method_is_refused(run, tmp_path):
    assert run("mesh", "init", "mesh", "--devices", 4, "--insecure").exit_code == 0
    folder = next(path.parent for path in (tmp_path / "mesh").glob("*/device.toml"))
    assert "method 'e-dcp' is not private" in run("privacy", "--account", folder).stderr
