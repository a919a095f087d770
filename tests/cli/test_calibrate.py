"""`conformesh calibrate`: the answer of the library, from files and flags."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import pytest

from conformesh import METHODS, Network, Result, calibrate
from conformesh.cli.options import method_options, options_of_methods, read_key_values, read_method_options
from conformesh.common.names import natural_order
from conformesh.protocols.options import option

KEYS = {"format", "guarantee", "answers", "method", "options", "network", "device_ids", "cost", "score", "seconds"}
ANSWER = {"part", "alpha", "thresholds", "certificate", "estimate", "bracket", "examples", "facts", "windows"}
CERTIFICATE = {
    "kind",
    "required_rank",
    "counted_rank",
    "epsilon",
    "epsilon_T",
    "epsilon_bias",
    "assumption",
    "mixture",
    "rule",
    "weight",
    "pac_confidence",
    "time_uniform",
    "bound",
    "test",
    "losses",
    "heard",
    "byzantine",
    "noise",
    "mixture_bound",
    "short",
}
COST = {"rounds", "numbers_per_device", "bits_per_device"}


def answer_in(shown):
    """Return the one answer of a result that was printed as JSON."""
    (answer,) = json.loads(shown.stdout)["answers"]
    return answer


@pytest.mark.parametrize("method", METHODS)
def test_every_method_prints_one_json_object(run, scores, held, method):
    result = run("calibrate", scores, "--method", method, "--network", "cycle", "--json")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    found = json.loads(result.stdout)
    assert found.keys() >= KEYS
    assert found["format"] == "conformesh-result/1"
    (answer,) = found["answers"]
    assert answer.keys() == ANSWER
    assert answer["certificate"].keys() == CERTIFICATE
    assert found["cost"].keys() == COST
    names = natural_order(held)
    network = Network.cycle(len(names)).relabelled(names)
    expected = calibrate([held[name] for name in names], network, 0.1, method)
    assert answer["thresholds"] == expected.thresholds.tolist()
    assert found["device_ids"] == list(names)
    assert answer["examples"] == sum(map(len, held.values()))


def test_csv_parquet_npz_and_stdin_agree(run, scores, table, tmp_path):
    device, score = table
    pl.DataFrame({"score": score, "device": device}).write_parquet(tmp_path / "s.parquet")
    np.savez(tmp_path / "s.npz", device=device, score=score)
    answers = [run("calibrate", name, "--json") for name in (scores, "s.parquet", "s.npz")]
    answers.append(run("calibrate", "-", "--json", input=scores.read_bytes()))
    found = [json.loads(answer.stdout) for answer in answers]
    for one in found:
        del one["seconds"]
    assert found[0]["network"] == "torus 4x3"
    assert all(one == found[0] for one in found[1:])


def test_out_and_redirected_json_load_again(run, scores, tmp_path):
    result = run("calibrate", scores, "--json", "--out", "r.json", "--score", "raps", "--score-option", "k_reg=2")
    (tmp_path / "redirected.json").write_text(result.stdout)
    saved, redirected = Result.load("r.json"), Result.load("redirected.json")
    assert saved.to_dict() == redirected.to_dict()
    assert saved.score is not None
    assert saved.score.options()["k_reg"] == 2


def test_plain_lines_in_a_pipe(run, scores):
    lines = run("calibrate", scores, "--method", "q-dcp").stdout.splitlines()
    found = dict(line.split(": ", 1) for line in lines)
    assert found.keys() >= {"threshold", "guarantee", "rank", "epsilon", "assuming", "cost", "devices", "network"}
    assert found["guarantee"].startswith("assumed")
    assert found["network"] == "torus 4x3"


def test_infinity_is_a_word_and_a_warning(run, csv):
    result = run("calibrate", csv("device,score\n1,0.5\n2,0.4\n3,0.1\n4,0.3\n"), "--json")
    assert result.exit_code == 0
    assert answer_in(result)["thresholds"] == ["inf"] * 4
    assert result.stderr.startswith("warning: alpha=0.1 needs rank 5 but there are only 4 scores")
    assert result.stderr.count("\n") == 1


def test_strict_turns_the_warning_into_an_error(run, csv):
    result = run("calibrate", csv("device,score\n1,0.5\n2,0.4\n3,0.1\n4,0.3\n"), "--strict")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: alpha=0.1 needs rank 5")
    assert result.stderr.count("\n") == 1


def test_without_a_torus_the_devices_talk_around_a_cycle(run, csv):
    rows = "".join(f"{device},{score / 10}\n" for device in range(5) for score in range(10))
    result = run("calibrate", csv("device,score\n" + rows), "--json")
    assert json.loads(result.stdout)["network"] == "cycle 5"
    assert result.stderr == "note: 5 devices form no torus, they talk around a cycle; choose with --network\n"


def test_one_device_is_alone(run, csv):
    result = run("calibrate", csv("device,score\n" + "".join(f"a,{i}\n" for i in range(20))), "--json")
    assert (len(answer_in(result)["thresholds"]), answer_in(result)["certificate"]["required_rank"]) == (1, 19)
    assert result.stderr == ""


def test_devices_come_in_natural_order(run, csv):
    rows = "".join(f"dev-{device},{device}\n" for device in (10, 9, 2, 1))
    result = run("calibrate", csv("device,score\n" + rows), "--method", "local", "--alpha", "0.5", "--json")
    found = json.loads(result.stdout)
    assert found["device_ids"] == ["dev-1", "dev-2", "dev-9", "dev-10"]
    assert answer_in(result)["thresholds"] == [1.0, 2.0, 9.0, 10.0]


def test_a_device_of_the_graph_may_have_no_scores(run, csv):
    path = csv("device,score\n" + "".join(f"{'abc'[i % 3]},{i}\n" for i in range(60)))
    graph = csv("a b\nb c\nc quiet\n", "edges.txt")
    result = run("calibrate", path, "--network", graph, "--json", "--method", "fcp")
    found = json.loads(result.stdout)
    assert found["device_ids"] == ["a", "b", "c", "quiet"]
    assert found["network"] == "edges.txt"
    assert answer_in(result)["certificate"]["required_rank"] == 58  # ceil(0.9 (60 + 4))


def test_seed_and_options_reach_the_topology(run, scores):
    def network(*words: str) -> tuple[str, float]:
        result = run("calibrate", scores, "--json", "--network", "erdos-renyi", "--network-option", "p=0.4", *words)
        found = json.loads(result.stdout)
        return found["network"], found["cost"]["numbers_per_device"]

    assert network()[0] == "erdos-renyi 12 p=0.4"
    assert network("--seed", "3") == network("--seed", "3")
    assert len({network("--seed", str(seed)) for seed in range(4)}) > 1


def test_seed_reaches_a_method_that_has_one(run, scores):
    words = ("calibrate", scores, "--json", "--method", "wfcp", "--noise", "0.0003", "--alpha", "0.3")
    thresholds = {answer_in(run(*words, "--seed", seed))["thresholds"][0] for seed in range(5)}
    assert len(thresholds) > 1
    assert json.loads(run(*words, "--seed", 3).stdout)["options"]["seed"] == 3


# --- flags ------------------------------------------------------------------------------------------------------------


def test_every_option_of_every_method_is_a_flag(run):
    """Each flag is in the help, in the panel of its method or with the names of those that have it."""
    page = run("calibrate", "--help", env={"COLUMNS": "200"}).stdout
    panels = dict(re.findall(r"(?ms)^(\S[^\n]*):\n(.*?)(?=^\S|\Z)", page))
    assert [*panels][:5] == ["Arguments", "Options", "Guarantee", "Files and columns", "Running"]
    assert [*panels][-1] == "Options of several methods"
    for name, flag in options_of_methods().items():
        if name == "seed":
            continue
        own, shared = panels.get(f"Options of {next(iter(flag.fields))}", ""), panels["Options of several methods"]
        assert f"  --{name.replace('_', '-')} " in (own if len(flag.fields) == 1 else shared), name
        assert len(flag.fields) == 1 or all(method in flag.help for method in flag.fields)
    for method, entry in METHODS.items():
        assert {f.name for f in fields(entry.options) if "help" in f.metadata} == {
            name for name, flag in options_of_methods().items() if method in flag.fields
        }


def test_flags_arrive_in_the_types_of_the_method(run, scores):
    words = (
        "--method h-dcp --rounds 40 --bins 64 --range -0.5 1.5 --eta 0.5 --weights metropolis --bound paper "
        "--no-rounding --wire 32"
    )
    found = json.loads(run("calibrate", scores, "--json", *words.split()).stdout)
    assert found["options"] == {
        "rounds": 40,
        "bins": 64,
        "range": [-0.5, 1.5],
        "eta": 0.5,
        "weights": "metropolis",
        "consensus": "gossip",
        "bound": "paper",
        "rounding": False,
        "spectrum": "map",
        "wire": 32,
    }
    words = "--method q-dcp --kappa 500 --mu 10 --s0 0.7 --epsilon0 0.2 --start zeros --c 100 --averaging 30 --rounds 9"
    found = json.loads(run("calibrate", scores, "--json", *words.split()).stdout)
    given = {"kappa": 500.0, "mu": 10.0, "s0": "0.7", "epsilon0": 0.2, "start": "zeros", "c": 100.0, "averaging": 30}
    assert found["options"].items() >= {**given, "rounds": 9}.items()


def test_a_new_method_brings_its_flags(monkeypatch):
    @dataclass(frozen=True)
    class Fancy:
        rounds: float = option(2.5, "fancy rounds")
        brand_new: Literal["a", "b"] = option("a", "something new")
        twice: bool = option(False, "do it twice")

    monkeypatch.setitem(METHODS, "fancy", replace(METHODS["cp"], options=Fancy))

    declared = method_options().options
    assert callable(declared)
    assert {"rounds", "brand_new", "twice"} <= {option.name for option in declared()}
    assert "fancy rounds".capitalize() in options_of_methods()["rounds"].help
    assert read_method_options("fancy", {"rounds": "3", "twice": True}) == {"rounds": 3.0, "twice": True}
    assert read_method_options("h-dcp", {"rounds": "3", "twice": None}) == {"rounds": 3}
    with pytest.raises(ValueError, match="brand_new must be 'a' or 'b', got 'c'"):
        read_method_options("fancy", {"brand_new": "c"})


def test_key_values_take_the_types_of_their_keys():
    hints = {"p": float | None, "rows": int, "randomised": bool}
    assert read_key_values(["p=0.3", "rows=4", "randomised=yes", "other=x"], "option", hints) == {
        "p": 0.3,
        "rows": 4,
        "randomised": True,
        "other": "x",
    }
    with pytest.raises(ValueError, match="option randomised must be true or false, got 'perhaps'"):
        read_key_values(["randomised=perhaps"], "option", hints)


def test_result_holds_no_score(run, scores, held):
    """Saved results travel between devices: apart from thresholds no score may be in them."""
    text = run("calibrate", scores, "--json", "--method", "h-dcp").stdout
    assert not any(repr(float(value)) in text for values in held.values() for value in values)


def test_paths_with_other_endings_are_csv(run, scores, tmp_path):
    (tmp_path / "scores.txt").write_bytes(scores.read_bytes())
    one, other = (answer_in(run("calibrate", name, "--json")) for name in (scores, Path("scores.txt")))
    assert one["thresholds"] == other["thresholds"]


HEAVY = {"polars", "numba", "scipy", "networkx", "rich", "matplotlib", "sklearn", "zenoh", "cryptography", "mpi4py"}


def test_a_thousand_scores_load_nothing_heavy(tmp_path, environment):
    """The time from the shell is that of what is loaded: NumPy and the parser of the command line."""
    rows = "".join(f"{i % 20},{(37 * i) % 1000 / 1000}\n" for i in range(1000))
    (tmp_path / "s.csv").write_text("device,score\n" + rows)
    code = (
        "import atexit, sys; from conformesh.cli import main; sys.argv[1:] = ['calibrate', 's.csv', '--out', 'r.json'];"
        "atexit.register(lambda: print('loaded', *sorted({name.partition('.')[0] for name in sys.modules}))); main()"
    )
    words = [sys.executable, "-c", code]
    answer = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    loaded = answer.stdout.splitlines()[-1].split()
    assert "numpy" in loaded
    assert HEAVY & {*loaded} == set()


def test_a_mixture_is_a_name_a_column_or_a_file(run, csv, tmp_path):
    """Six devices with unequal numbers of scores; `d5` is as likely as all others together."""
    rng = np.random.default_rng(1)
    held = {f"d{k}": rng.normal(k, size=20 + 5 * k) for k in range(6)}
    shares = {name: 5.0 if name == "d5" else 1.0 for name in held}
    rows = [(name, score, shares[name]) for name, own in held.items() for score in own.tolist()]
    (tmp_path / "s.csv").write_text("device,score,share\n" + "".join(f"{d},{s!r},{w}\n" for d, s, w in rows))
    (tmp_path / "w.csv").write_text("device,share\n" + "".join(f"{d},{w}\n" for d, w in shares.items()))

    def found(*words):
        answer = run("calibrate", "s.csv", "--network", "cycle", "--json", *words)
        assert answer.exit_code == 0, answer.output
        return answer_in(answer)

    network = Network.cycle(6).relabelled([*held])
    for words, mixture in (
        ("--mixture equal", "equal"),
        ("--mixture paper", "paper"),
        ("--share-column share", shares),
        ("--mixture w.csv", shares),
        ("--mixture w.csv --share-column share", shares),
    ):
        expected = calibrate(held, network, 0.1, mixture=mixture)
        answer = found(*words.split())
        assert answer["thresholds"] == expected.thresholds.tolist()
        assert answer["certificate"]["mixture"] == expected.certificate.mixture
    for words, asked in (
        ("--mixture own", {"mixture": "own"}),
        ("--mixture any", {"mixture": "any"}),
        ("--mixture-bound 2", {"mixture_bound": 2}),
        ("--mixture w.csv --mixture-bound 1.5", {"mixture": shares, "mixture_bound": 1.5}),
    ):
        answer, expected = found(*words.split()), calibrate(held, network, 0.1, **asked)
        assert answer["thresholds"] == expected.thresholds.tolist()
        assert answer["certificate"]["mixture_bound"] == asked.get("mixture_bound")
    sure = found("--pac-confidence", "0.9")["certificate"]
    assert (sure["rule"], sure["pac_confidence"]) == ("binomial", 0.9)
    always = found("--mixture", "equal", "--pac-confidence", "0.5", "--time-uniform", "--alpha", "0.5")["certificate"]
    assert (always["rule"], always["time_uniform"]) == ("time-uniform", True)
    once = found("--mixture", "equal", "--pac-confidence", "0.5", "--no-time-uniform", "--alpha", "0.5")["certificate"]
    assert (once["rule"], once["time_uniform"]) == ("binomial", False)
    assert found("--mixture", "paper", "--rank-rule", "ghost")["certificate"]["rule"] == "ghost"
    for words, said in (
        (("--share-column", "shares"), "needs a column 'shares'"),
        (("--mixture", "shares"), "--mixture must be sizes, paper, equal, "),
        (("--mixture", "equal", "--share-column", "share"), "--mixture equal names no shares"),
        (("--mixture-bound", "0.5"), "mixture_bound must be a finite number of at least 1"),
        (("--mixture-bound", "2", "--mixture", "any"), "leave mixture_bound out"),
        (("--rank-rule", "rank"), "unknown rank rule 'rank'"),
        (("--pac-confidence", "sure"), "pac_confidence must be a number"),
        (("--time-uniform",), "time_uniform=True needs pac_confidence"),
        (("--time-uniform", "--pac-confidence", "0.9"), "needs a mixture that is fixed in advance"),
    ):
        answer = run("calibrate", "s.csv", *words)
        assert answer.exit_code == 2
        assert said in answer.stderr
    shown = run("calibrate", "s.csv", "--mixture", "equal").stdout
    assert "about: a new example is as likely from any device; by the swap rank" in shown


@pytest.mark.parametrize("command", ["calibrate", "compare", "plan", "mesh init"])
def test_the_option_confidence_is_explained(run, command):
    result = run(*command.split(), "--confidence", "0.9")
    assert result.exit_code == 2
    for words in ("1 - alpha", "--alpha", "--pac-confidence"):
        assert words in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("calibrate", "SCORES"),
        ("compare", "SCORES", "--method", "e-dcp,fcp", "--network", "cycle"),
        ("plan", "--devices", "4", "--method", "fcp"),
        ("privacy", "--plan", "--devices", "4", "--method", "e-dcp"),
        ("mesh", "init", "MESH", "--devices", "2", "--insecure"),
    ],
)
def test_alpha_above_a_half_gets_one_warning(run, scores, tmp_path, words):
    given = [{"SCORES": str(scores), "MESH": str(tmp_path / "mesh")}.get(word, word) for word in words]
    result = run(*given, "--alpha", "0.9")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("warning: alpha=0.9 asks for a coverage of only 10 %; did you mean alpha=0.1?") == 1
