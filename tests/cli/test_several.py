"""Several levels, groups and warm starts from the command line."""

import csv
import io
import json

import numpy as np
import pytest

from conformesh import Network, Result, calibrate, scores


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=360)
    labels = np.array([rng.choice(3, p=row) for row in p])
    device = rng.integers(0, 6, 360)
    score = scores.LAC()(p, labels)
    path = tmp_path / "scores.csv"
    rows = [f"{d},{s!r},{'abc'[y]}" for d, s, y in zip(device.tolist(), score.tolist(), labels.tolist(), strict=True)]
    path.write_text("device,score,class\n" + "\n".join(rows) + "\n")
    outputs = tmp_path / "p.csv"
    outputs.write_text("a,b,c\n" + "\n".join(",".join(map(repr, row)) for row in p[:20].tolist()) + "\n")
    held = [score[device == k] for k in range(6)]
    return path, outputs, held, ["abc"[y] for y in labels], device, p


def test_levels_in_one_run_equal_single_runs(run, table):
    path, _, held, *_ = table
    found = json.loads(run("calibrate", path, "--alpha", "0.1, 0.2", "--network", "cycle", "--json").stdout)
    assert [item["alpha"] for item in found["answers"]] == [0.1, 0.2]
    for item in found["answers"]:
        assert item["thresholds"] == calibrate(held, Network.cycle(6), item["alpha"]).thresholds.tolist()
    shown = run("calibrate", path, "--alpha", "0.1,0.2", "--network", "cycle").stdout
    assert "one run for all" in shown


def test_groups_and_class_conditional_sets(run, table):
    path, outputs, held, labels, device, p = table
    run("calibrate", path, "--group-column", "class", "--network", "cycle", "--score", "lac", "--out", "r.json")
    groups = [np.array(labels)[device == k] for k in range(6)]
    several = calibrate(held, Network.cycle(6), (0.1,), groups=groups, score=scores.LAC())
    printed = run("predict", "r.json", outputs).stdout
    expected = several.predict(p[:20], labels=("a", "b", "c"))
    for row, inside in zip(csv.DictReader(io.StringIO(printed)), expected, strict=True):
        assert row["set"].split() == [name for name, member in zip("abc", inside, strict=True) if member]
    table_shown = run("calibrate", path, "--group-column", "class", "--network", "cycle").stdout
    assert [line.split()[0] for line in table_shown.splitlines()[2:5]] == ["a", "b", "c"]


def test_a_warm_start_is_exact_and_cheaper(run, table):
    path = table[0]
    cold = json.loads(run("calibrate", path, "--network", "cycle", "--json", "--out", "old.json").stdout)
    warm = json.loads(run("calibrate", path, "--network", "cycle", "--json", "--warm", "old.json").stdout)
    assert warm["answers"][0]["thresholds"] == cold["answers"][0]["thresholds"]
    assert warm["cost"]["numbers_per_device"] < cold["cost"]["numbers_per_device"]
    assert Result.load("old.json").bracket is not None
    several = ("calibrate", path, "--network", "cycle", "--json", "--alpha", "0.1,0.2", "--group-column", "class")
    fresh, again = (json.loads(run(*several, *more).stdout) for more in ((), ("--warm", "old.json")))
    assert [one["thresholds"] for one in again["answers"]] == [one["thresholds"] for one in fresh["answers"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--alpha", "0.1,2"], "alpha must lie strictly between 0 and 1, got 2"),
        (["--group-column", "species"], "species"),
        (["--warm", "no.json"], "no.json"),
    ],
)
def test_mistakes_exit_2_with_one_line(run, table, words, message):
    done = run("calibrate", table[0], *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_warm_start_is_for_methods_that_search(run, table):
    run("calibrate", table[0], "--out", "old.json")
    refused = run("calibrate", table[0], "--warm", "old.json", "--method", "h-dcp")
    assert refused.exit_code == 2
    assert "'h-dcp' has no option 'warm': it belongs to e-dcp" in refused.stderr


def test_predict_refuses_what_does_not_fit(run, table):
    path, outputs, *_ = table
    run("calibrate", path, "--group-column", "class", "--alpha", "0.1,0.2", "--score", "lac", "--out", "r.json")
    assert "say which alpha" in run("predict", "r.json", outputs).stderr
    assert run("predict", "r.json", outputs, "--alpha", "0.2").exit_code == 0
    assert run("predict", "r.json", outputs, "--alpha", "0.2", "--device", "1").exit_code == 0
    assert "unknown device '7'" in run("predict", "r.json", outputs, "--alpha", "0.2", "--device", "7").stderr
    run("calibrate", path, "--score", "lac", "--out", "one.json")
    assert "for thresholds by group" in run("predict", "one.json", outputs, "--group-column", "a").stderr


@pytest.fixture
def people(tmp_path):
    """Rows of four devices with two columns of groups, and the same groups in one column of lists."""
    rng = np.random.default_rng(1)
    sex, age = rng.choice(["f", "m"], 240), rng.choice(["old", "young", ""], 240)
    p = rng.dirichlet(np.ones(3), size=240)
    labels = rng.integers(0, 3, 240)
    score, device = scores.LAC()(p, labels), rng.integers(0, 4, 240)
    lists = [";".join([f"sex={s}"] + [f"age={a}"] * bool(a)) for s, a in zip(sex, age, strict=True)]
    columns = zip(device.tolist(), score.tolist(), sex, age, lists, strict=True)
    (tmp_path / "s.csv").write_text(
        "device,score,sex,age,tags\n" + "".join(f"{d},{x!r},{s},{a},{t}\n" for d, x, s, a, t in columns)
    )
    rows = "".join(f"{','.join(map(repr, row))},{s},{a}\n" for row, s, a in zip(p.tolist(), sex, age, strict=True))
    (tmp_path / "p.csv").write_text("0,1,2,sex,age\n" + rows)
    groups = [[t.split(";") for t, d in zip(lists, device, strict=True) if d == k] for k in range(4)]
    return tmp_path, [score[device == k] for k in range(4)], groups, lists, p


@pytest.mark.parametrize(
    "words",
    [["--group-column", "sex", "--group-column", "age"], ["--group-column", "sex,age"], ["--group-column", "tags"]],
)
@pytest.mark.parametrize("rule", [None, "max", "regression"])
def test_groups_that_overlap_come_in_several_columns_or_in_lists(run, people, words, rule):
    folder, held, groups, lists, p = people
    asked = [] if rule is None else ["--group-rule", rule]
    done = run("calibrate", folder / "s.csv", *words, *asked, "--network", "cycle", "--score", "lac", "--out", "r.json")
    assert done.exit_code == 0, done.stderr
    expected = calibrate(held, Network.cycle(4), (0.1,), groups=groups, group_rule=rule, score=scores.LAC())
    found = Result.load("r.json")
    assert found.guarantee.groups.rule == expected.guarantee.groups.rule == (rule or "seq")
    assert found.groups == ("age=old", "age=young", "sex=f", "sex=m", "everyone")
    rows = [text.split(";") for text in lists]
    wanted = expected.thresholds_for(groups=rows)
    np.testing.assert_array_equal(found.thresholds_for(groups=rows), wanted)
    assert f"{found.guarantee.groups.rule}: " in done.stdout
    printed = run("predict", "r.json", folder / "p.csv", "--group-column", "sex,age").stdout
    sizes = [int(row["size"]) for row in csv.DictReader(io.StringIO(printed))]
    assert sizes == (1 - p <= wanted[:, None]).sum(axis=1).tolist()


def test_a_rule_needs_groups(run, people):
    assert (
        "say how groups are covered; name them with groups="
        in run("calibrate", people[0] / "s.csv", "--group-rule", "max").stderr
    )
    assert (
        "unknown group rule"
        in run("calibrate", people[0] / "s.csv", "--group-column", "sex", "--group-rule", "mx").stderr
    )
