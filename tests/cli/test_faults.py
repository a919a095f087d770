"""`--fault`: what goes wrong in the simulated network, and mistakes in words."""

import json

import pytest

from conformesh.cli.options import read_faults
from conformesh.protocols.faults import Faults

LOSSY = ("--fault", "loss=0.3", "--fault", "seed=7")
BEARING = {"h-dcp": ("--consensus", "projection"), "q-dcp": ("--asynchronous", "--rounds", "50")}


@pytest.mark.parametrize("method", BEARING)
def test_what_bears_faults_runs_under_them(run, scores, method):
    words = ("calibrate", scores, "--network", "cycle", "--method", method, *BEARING[method], "--json")
    lossy, again, whole = (json.loads(run(*words, *fault).stdout) for fault in (LOSSY, LOSSY, ()))
    assert lossy["answers"][0]["certificate"]["kind"] == "counted"
    assert lossy["cost"] == again["cost"] != whole["cost"] or method == "h-dcp"  # whose devices speak in every round
    assert lossy["answers"] == again["answers"]


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (["loss=0.3"], "method 'e-dcp' with these options needs every message"),
        (["loss"], "fault must be key=value, got 'loss'"),
        (["loss=many"], "fault loss must be a number, got 'many'"),
        (["loss=1"], "loss must be at least 0 and below 1, got 1.0"),
        (["lose=0.1"], "unknown fault 'lose', did you mean 'loss'?"),
        (["byzantine=a"], "fault byzantine must be a whole number, got 'a'"),
        (["byzantine=1"], "Byzantine devices and attack go together"),
    ],
)
def test_mistakes_are_said_in_words(run, scores, faults, words):
    given = [word for fault in faults for word in ("--fault", fault)]
    result = run("calibrate", scores, "--network", "cycle", *given)
    assert result.exit_code != 0
    assert words in " ".join((result.stderr or str(result.exception)).split())


def test_faults_are_read_from_words():
    given = read_faults(["loss=0.25", "activation=0.5", "links=0.9", "byzantine=3;7", "attack=any", "seed=4"])
    assert given == Faults(0.25, 0.5, 0.9, (3, 7), "any", 4)
    assert read_faults([]) is None is read_faults(["seed=4"])
