"""Tables of what there is follow the registries."""

from __future__ import annotations

import json

import pytest

from conformesh import METHODS, TOPOLOGIES
from conformesh.engines import ENGINES
from conformesh.graph.weights import WEIGHTS
from conformesh.protocols.aggregate import AGGREGATORS
from conformesh.scores import SCORES
from conformesh.scores.adapt import ADAPTATIONS

TABLES = {
    "methods": METHODS,
    "topologies": TOPOLOGIES,
    "scores": SCORES,
    "adaptations": ADAPTATIONS,
    "weights": WEIGHTS,
    "aggregators": AGGREGATORS,
    "engines": ENGINES,
}


@pytest.mark.parametrize("name", TABLES)
def test_every_entry_has_a_line(run, name):
    result = run(name)
    assert result.exit_code == 0
    assert result.stderr == ""
    head, rule, *rows = result.stdout.splitlines()
    assert [row.split()[0] for row in rows] == [*TABLES[name]]
    assert {*rule} == {"-", " "}
    assert "summary" in head


@pytest.mark.parametrize("name", TABLES)
def test_json_says_the_same_and_more(run, name):
    rows = json.loads(run(name, "--json").stdout)
    assert [next(iter(row.values())) for row in rows] == [*TABLES[name]]
    assert all(row["summary"] for row in rows)


def test_json_lists_the_options_of_methods(run):
    rows = {row["method"]: row for row in json.loads(run("methods", "--json").stdout)}
    for name, method in METHODS.items():
        assert [option["name"] for option in rows[name]["options"]] == list(method.option_names())
        assert all(option["help"] for option in rows[name]["options"])
