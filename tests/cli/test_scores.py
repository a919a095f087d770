"""`conformesh scores`: the listing as before, and scores made from a model's outputs."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from conformesh import Result
from conformesh.cli import SUBCOMMANDS
from conformesh.files.model_outputs import read_model_outputs
from conformesh.files.score_files import read_scores
from conformesh.lab.datasets.partition import PARTITIONS, partition
from conformesh.lab.datasets.synthetic import synthetic_outputs
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.local_scores import read_local_scores, scatter_scores
from conformesh.scores import get_score

SOFTMAX = "note: o.npz holds logits, score 'lac' reads probabilities: taking their softmax\n"
UNUSED = "note: 1,200 rows are not used; --test-out FILE keeps them for predict\n"


@pytest.fixture
def outputs(run):
    """Outputs of a synthetic model with 40 classes, written by the command and as the library makes them."""
    assert run("scores", "synthetic", "--rows", 2000, "--classes", 40, "--out", "o.npz").exit_code == 0
    return synthetic_outputs(2000, 40)


def scores_in(name="s.csv"):
    """Each device's scores, by name."""
    found = read_scores(name)
    return dict(zip(found.devices, found.scores, strict=True))


# --- the group --------------------------------------------------------------------------------------------------------


def test_help_lists_the_commands(run):
    page = run("scores", "--help")
    assert page.exit_code == 0
    assert page.stdout.startswith("Usage: conformesh scores [OPTIONS] COMMAND")
    for name, (_, line) in SUBCOMMANDS["scores"].items():
        assert f"  {name} " in page.stdout
        assert line[:40] in page.stdout
        assert f"Usage: conformesh scores {name} [OPTIONS]" in run("scores", name, "--help").stdout


def test_help_loads_nothing_that_a_command_needs(environment):
    script = (
        "import sys\n"
        "from conformesh.cli import app\n"
        "try:\n    app(['scores', '--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('polars', 'matplotlib', 'sklearn', 'torch') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        (("mkae",), "No such command 'mkae'", "try: conformesh scores --help"),
        (("make",), "Missing argument 'OUTPUTS'", "try: conformesh scores make --help"),
        (("make", "o.npz"), "Missing option '--out'", "try: conformesh scores make --help"),
        (("--json", "make", "o.npz", "--out", "s.csv"), "--json belongs behind make", "try: conformesh scores --help"),
    ],
)
def test_usage_errors_are_a_line_and_a_hint(run, words, problem, hint):
    result = run("scores", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    error, advice = result.stderr.splitlines()
    assert problem in error
    assert advice == hint


def test_debug_shows_where_a_command_of_the_group_failed(run):
    result = run("scores", "make", "nowhere.npz", "--out", "s.csv", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


# --- synthetic --------------------------------------------------------------------------------------------------------


def test_synthetic_outputs_are_the_library_s(run, outputs):
    found = read_model_outputs("o.npz")
    assert found.digest == outputs.digest
    assert found.synthetic
    result = run("scores", "synthetic", "--rows", 100, "--classes", 5, "--seed", 3, "--out", "p.npz", "--json")
    facts = json.loads(result.stdout)
    assert facts["digest"] == synthetic_outputs(100, 5, 3).digest == read_model_outputs("p.npz").digest
    assert (facts["rows"], facts["classes"], facts["kind"], facts["out"]) == (100, 5, "logits", "p.npz")


# --- make -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["lac", "logit", "margin", "aps", "raps"])
def test_scores_equal_the_library(run, outputs, score):
    result = run("scores", "make", "o.npz", "--score", score, "--out", "s.npz")
    assert result.exit_code == 0, result.output
    assert result.stderr == ("" if score == "logit" else SOFTMAX.replace("lac", score))
    values = outputs.values if score == "logit" else outputs.probabilities()
    expected, home = get_score(score)(values, outputs.labels), partition(outputs.labels, 20)
    held = scores_in("s.npz")
    assert [*held] == [str(k) for k in range(20)]
    for k in range(20):
        assert held[str(k)].tobytes() == expected[home == k].tobytes()


def test_formats_agree_to_the_last_bit(run, outputs):
    for end in ("csv", "parquet", "npz"):
        assert run("scores", "make", "o.npz", "--out", f"s.{end}").exit_code == 0
    one, *others = (scores_in(f"s.{end}") for end in ("csv", "parquet", "npz"))
    for other in others:
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert pl.read_csv("s.csv").columns == ["device", "score", "label", "classes", "score_function"]
    known = [read_scores(f"s.{end}").classes for end in ("csv", "parquet", "npz")]
    assert known == [tuple(map(str, range(40)))] * 3


def test_the_summary_says_what_was_done(run, outputs):
    result = run("scores", "make", "o.npz", "--out", "s.csv", "--seed", 7)
    lines = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert lines == {
        "outputs": "o.npz (synthetic): logits, 2,000 rows, 40 classes",
        "accuracy": f"{outputs.accuracy:.4f}",
        "score": "lac",
        "devices": "20, by class",
        "scores": "2,000; a device has 100 to 100, median 100",
        "seed": "7",
        "written": "s.csv",
    }


def test_json_for_machines(run, outputs):
    words = ("--score", "raps", "--score-option", "k_reg=2", "--devices", 7, "--calibration", 800, "--seed", 3)
    result = run("scores", "make", "o.npz", *words, "--out", "s.csv", "--json")
    assert result.stdout.count("\n") == 1
    assert result.stderr == SOFTMAX.replace("lac", "raps") + UNUSED
    facts = json.loads(result.stdout)
    assert facts == {
        "outputs": "o.npz",
        "kind": "logits",
        "rows": 2000,
        "classes": 40,
        "accuracy": outputs.accuracy,
        "synthetic": True,
        "digest": outputs.digest,
        "score": "raps",
        "score_options": {"penalty": 0.01, "k_reg": 2, "randomised": False, "seed": None},
        "partition": "class",
        "devices": 7,
        "scores": 800,
        "scores_per_device": {"min": 100, "median": 120.0, "max": 120},
        "held_out": 1200,
        "seed": 3,
        "out": "s.csv",
        "test_out": None,
    }


@pytest.mark.parametrize("kind", PARTITIONS)
def test_every_partition(run, outputs, kind):
    words = ("--devices", 6, "--partition", kind, "--concentration", 0.2, "--seed", 5)
    assert run("scores", "make", "o.npz", *words, "--out", "s.csv").exit_code == 0
    home = partition(outputs.labels, 6, kind, seed=5, concentration=0.2, classes=40)
    assert {name: len(held) for name, held in scores_in().items()} == {
        str(k): size for k, size in enumerate(np.bincount(home, minlength=6).tolist()) if size
    }


def test_the_file_may_name_its_devices(run, csv):
    head, rows = "cat,dog,label,where\n", "0.25,0.75,dog,b\n0.5,0.5,cat,a\n1,0,cat,b\n"
    result = run("scores", "make", csv(head + rows, "o.csv"), "--device-column", "where", "--out", "s.csv")
    assert result.stderr == ""
    assert {name: held.tolist() for name, held in scores_in().items()} == {"a": [0.5], "b": [0.25, 0.0]}
    assert pl.read_csv("s.csv")["label"].to_list() == ["dog", "cat", "cat"]
    csv((head + rows).replace("where", "device"), "p.csv")
    result = run("scores", "make", "p.csv", "--out", "t.csv")
    assert result.stderr == "note: taking the devices that p.csv names; choose with --partition\n"
    assert scores_in("t.csv").keys() == {"a", "b"}
    assert run("scores", "make", "p.csv", "--devices", 2, "--out", "t.csv").stderr == ""
    assert {name: held.tolist() for name, held in scores_in("t.csv").items()} == {"0": [0.5, 0.0], "1": [0.25]}


def test_labels_in_a_file_of_their_own(run, outputs):
    np.save("p.npy", outputs.probabilities())
    np.save("y.npy", outputs.labels[:, None])
    for words in (("o.npz",), ("p.npy", "--labels", "y.npy")):
        assert run("scores", "make", *words, "--out", f"{words[0]}.csv").exit_code == 0
    one, other = scores_in("o.npz.csv"), scores_in("p.npy.csv")
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_a_logarithm_makes_logits(run, csv):
    csv("cat,dog,label\n0.5,0.5,0\n1,0,1\n", "o.csv")
    result = run("scores", "make", "o.csv", "--score", "logit", "--devices", 1, "--out", "s.csv")
    assert result.stderr == "note: o.csv holds probabilities, score 'logit' reads logits: taking their logarithm\n"
    assert scores_in()["0"].tolist() == [1.0 - np.log(0.5), np.inf]


def test_seeds_choose_the_rows(run, outputs):
    def made(seed):
        run("scores", "make", "o.npz", "--calibration", 0.1, "--seed", seed, "--out", "s.csv")
        return [held.tolist() for held in scores_in().values()]

    assert made(0) == made(0) != made(1)
    assert [len(held) for held in made(0)] == [10] * 20


def test_rows_are_chosen_by_a_fresh_seed_by_default(run, outputs):
    """A fixed one takes the same ranks of every file that is sorted by its scores. The printed seed repeats a run."""

    def made(*more):
        facts = json.loads(
            run("scores", "make", "o.npz", "--calibration", 0.1, "--out", "s.csv", "--json", *more).stdout
        )
        return facts["seed"], [held.tolist() for held in scores_in().values()]

    (first, rows), (second, others) = made(), made()
    assert first != second
    assert rows != others
    assert made("--seed", first) == (first, rows)


def test_from_outputs_to_sets(run, outputs):
    """Make, calibrate, predict: half of the rows calibrate, the sets of the others cover them.

    Of 1000 test rows 900 should be covered; 850 is five standard deviations away.
    """
    words = ("--calibration", 0.5, "--test-out", "t.npz")
    made = run("scores", "make", "o.npz", *words, "--out", "s.csv")
    assert made.stderr == SOFTMAX
    assert made.stdout.splitlines()[-1] == "held out: 1,000 rows in t.npz"
    assert run("calibrate", "s.csv", "--score", "lac", "--out", "r.json").exit_code == 0
    lines = run("predict", "r.json", "t.npz", "--format", "jsonl").stdout.splitlines()
    test = read_model_outputs("t.npz")
    assert test.devices == [str(k) for k in partition(test.labels, 20)]
    assert test.synthetic
    covered = [str(label) in json.loads(line)["set"] for label, line in zip(test.labels, lines, strict=True)]
    expected = Result.load("r.json").predict(test.probabilities(), device=test.devices)
    assert covered == expected[np.arange(1000), test.labels].tolist()
    assert sum(covered) > 850
    held = np.concatenate([*scores_in().values(), get_score("lac")(test.probabilities(), test.labels)])
    everything = get_score("lac")(outputs.probabilities(), outputs.labels)
    assert np.array_equal(np.sort(held), np.sort(everything))


def test_class_names_reach_the_sets(run):
    names = ["cat", "dog", "owl"]
    p = np.random.default_rng(0).dirichlet(np.ones(3), 90)
    pl.DataFrame({**dict(zip(names, p.T, strict=True)), "label": [names[k % 3] for k in range(90)]}).write_csv("o.csv")
    words = ("--devices", 3, "--calibration", 60, "--test-out", "t.npz", "--out", "s.csv")
    assert run("scores", "make", "o.csv", *words).exit_code == 0
    assert run("calibrate", "s.csv", "--group-column", "label", "--score", "lac", "--out", "r.json").exit_code == 0
    sets = [
        json.loads(line)["set"]
        for line in run("predict", "r.json", "t.npz", "--format", "jsonl").stdout.split("\n")[:-1]
    ]
    assert len(sets) == 30
    assert {label for one in sets for label in one} == {*names}


BAD = {
    "score": ("--score lca", "unknown score 'lca', did you mean 'lac'?"),
    "regression": (
        "--score cqr",
        "o.npz: holds 'logits', outputs of classes, and this score is for regression: it reads lower and upper",
    ),
    "score option": ("--score-option q=1", "unknown option of score 'lac' 'q'"),
    "partition": ("--partition clas", "unknown partition 'clas', did you mean 'class'?"),
    "no device": ("--partition device", "--partition device needs a column of devices in o.npz"),
    "no such column": ("--device-column where", "needs a column 'where'"),
    "too many devices": ("--devices 41", "41 devices need as many classes, got 40"),
    "no devices": ("--devices 0", "devices must be at least 1, got 0"),
    "devices text": ("--devices many", "devices must be a whole number, got 'many'"),
    "concentration": ("--partition dirichlet --concentration 0", "concentration must be a positive finite number"),
    "concentration text": ("--concentration x", "concentration must be a number, got 'x'"),
    "calibration": ("--calibration 0", "calibration must be a fraction up to 1 or a number of rows up to 2000, got 0"),
    "half a row": ("--calibration 1.5", "or a number of rows up to 2000, got 1.5"),
    "too many rows": ("--calibration 2001", "got 2001"),
    "infinite": ("--calibration inf", "got inf"),
    "nothing left": ("--test-out t.npz", "--test-out t.npz has no rows left"),
    "test ending": ("--calibration 0.5 --test-out t.csv", "t.csv: the name must end in .npz"),
    "ending": ("--out s.txt", "s.txt: the name must end in .csv or .parquet or .npz"),
    "no directory": ("--out no/s.csv", "no/s.csv: cannot write the file"),
    "seed": ("--seed -1", "seed must be at least 0, got -1"),
    "labels": ("--labels nowhere.npy", "nowhere.npy: cannot read the file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings(run, outputs, case):
    flags, problem = BAD[case]
    result = run("scores", "make", "o.npz", "--out", "s.csv", *flags.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert problem in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")


def test_devices_of_the_file_and_a_number_contradict(run, csv):
    csv("cat,dog,label,device\n0.25,0.75,dog,b\n", "o.csv")
    for words, problem in (
        (("--partition", "device", "--devices", 2), "--devices 2 has no meaning with --partition device"),
        (("--partition", "iid", "--device-column", "device"), "--device-column device goes with --partition device"),
    ):
        result = run("scores", "make", "o.csv", *words, "--out", "s.csv")
        assert result.exit_code == 2
        assert problem in result.stderr


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--rows 0", "rows must be at least 1, got 0"),
        ("--classes 1", "classes must be at least 2, got 1"),
        ("--seed x", "seed must be a whole number, got 'x'"),
        ("--out o.csv", "o.csv: the name must end in .npz"),
    ],
)
def test_bad_synthetic_settings(run, flags, problem):
    result = run("scores", "synthetic", "--out", "o.npz", *flags.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert problem in result.stderr


# --- which score made the numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_a_file_records_its_score_and_calibrate_keeps_it(run, outputs, ending):
    """Without --score the recorded one is used; another one, or another option, is refused by name."""
    file = f"s.{ending}"
    made = run("scores", "make", "o.npz", "--out", file, "--score", "raps", "--score-option", "k_reg=2")
    assert made.exit_code == 0, made.stderr
    assert read_scores(file).made_by == ("raps", {"penalty": 0.01, "k_reg": 2, "randomised": False})
    for words in ([], ["--score", "raps"], ["--score", "raps", "--score-option", "k_reg=2"]):
        done = run("calibrate", file, *words, "--out", "r.json")
        assert done.exit_code == 0, done.stderr
        assert Result.load("r.json").score == get_score("raps", k_reg=2)
    for words in (["aps"], ["lac"], ["raps", "--score-option", "k_reg=3"]):
        done = run("calibrate", file, "--score", *words)
        assert done.exit_code == 2
        assert f"{file}: holds scores of RAPS(penalty=0.01, k_reg=2" in done.stderr
        assert f"but {words[0].upper()}(" in done.stderr


def test_a_mesh_takes_only_scores_of_its_own_kind(run, outputs):
    assert run("scores", "make", "o.npz", "--out", "lac.csv", "--devices", 4).exit_code == 0
    assert run("scores", "make", "o.npz", "--out", "aps.csv", "--devices", 4, "--score", "aps").exit_code == 0
    refused = run("mesh", "init", "m", "--insecure", "--scores", "lac.csv", "--score", "aps")
    assert refused.exit_code == 2
    assert "holds scores of LAC(), but APS(randomised=False, seed=None) was named" in refused.stderr
    assert run("mesh", "init", "m", "--insecure", "--scores", "lac.csv").exit_code == 0
    folder = min(pathlib.Path("m").glob("*/device.toml")).parent
    config = read_device(folder)
    assert config.scores.score == "lac"
    assert len(read_local_scores(config)) == len(scores_in("lac.csv")["0"])
    with pytest.raises(ValueError, match=r"aps.csv: holds scores of APS.*but LAC\(\) was named"):
        scatter_scores("m", "aps.csv")
    pl.read_csv("aps.csv").filter(pl.col("device") == 0).write_csv(folder / "scores.csv")
    with pytest.raises(ValueError, match=r"scores.csv: holds scores of APS.*but LAC\(\) was named"):
        read_local_scores(config)


def test_files_of_two_kinds_are_not_mixed(run, outputs, tmp_path):
    for name in ("lac", "aps"):
        assert run("scores", "make", "o.npz", "--out", f"{name}.csv", "--devices", 4, "--score", name).exit_code == 0
    both = pl.concat([pl.read_csv(f"{name}.csv", schema_overrides={"classes": pl.String}) for name in ("lac", "aps")])
    both.write_csv("both.csv")
    done = run("calibrate", "both.csv")
    assert 'both.csv: holds scores of two kinds, aps {"randomised":false} and lac;' in done.stderr
    (tmp_path / "folder").mkdir()
    both.filter(pl.col("device") < 2).write_parquet("folder/a.parquet")
    assert "holds scores of two kinds" in run("calibrate", "folder").stderr


def test_randomised_scores_of_several_seeds_are_of_one_kind(run, outputs):
    """`scores make` draws a fresh seed, so every device that makes its scores records another one."""
    parts = []
    for name in ("a.csv", "b.csv"):
        words = ("--devices", 4, "--score", "aps", "--score-option", "randomised=true")
        assert run("scores", "make", "o.npz", "--out", name, *words).exit_code == 0
        parts.append(pl.read_csv(name, schema_overrides={"classes": pl.String}))
    assert read_scores("a.csv").made_by.options["seed"] != read_scores("b.csv").made_by.options["seed"]
    pl.concat(parts).drop("id", strict=False).write_csv("both.csv")
    assert read_scores("both.csv").made_by == ("aps", {"randomised": True})
    done = run("calibrate", "both.csv", "--out", "r.json")
    assert done.exit_code == 0, done.stderr
    assert Result.load("r.json").score == get_score("aps", randomised=True)


@pytest.mark.parametrize(
    ("score", "values", "words"),
    [
        ("lac", "0.5 1.5", "device a, row 1: scores of 'lac' are between 0 and 1, got 1.5"),
        ("lac", "12 40", "device a, row 0: scores of 'lac' are between 0 and 1, got 12"),
        ("aps", "0.5 -0.1", "device a, row 1: scores of 'aps' are between 0 and 1, got -0.1"),
        ("margin", "0.5 -2", "device a, row 1: scores of 'margin' are between -1 and 1, got -2"),
        ("rank", "1 2 -3", "device a, row 2: scores of 'rank' are at least 0, got -3"),
        ("absolute-residual", "1 -1e-4", "device a, row 1: scores of 'absolute-residual' are at least 0, got -0.0001"),
    ],
)
def test_scores_out_of_range_are_refused(run, score, values, words):
    rows = "".join(f"a,{value}\n" for value in values.split())
    pathlib.Path("s.csv").write_text("device,score\nb,0.5\n" + rows)
    done = run("calibrate", "s.csv", "--score", score)
    assert done.exit_code == 2
    assert words in done.stderr
