"""HTML forms: well formed, escaped, small, without colours of their own, and drawn for every public result."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import conformesh
from conformesh import Network, calibrate, control, detect, p_values, quantiles, scores
from conformesh import calibrate as agree
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.comparison import compare, compared_ways, cost_fronts
from conformesh.lab.planning.planner import plan
from conformesh.pipeline.solver import solve_draws
from conformesh.plots import html
from conformesh.results.evaluation import Coverage, Evaluation
from conformesh.scores.centres import Centres
from conformesh.scores.losses import FalseNegativeRate

EVIL = '<script>alert("1")</script>'
TAGS = {"div", "style", "b", "span", "p", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "figure"}
TAGS |= {"figcaption", "svg", "g", "title", "path", "circle", "rect", "text"}
ATTRIBUTES = {"class", "open", "width", "height", "viewBox", "fill", "stroke", "font-size", "role", "aria-label", "d"}
ATTRIBUTES |= {
    "opacity",
    "stroke-width",
    "stroke-dasharray",
    "stroke-linecap",
    "text-anchor",
    "x",
    "y",
    "cx",
    "cy",
    "r",
}


def checked(html: str) -> ET.Element:
    """Parse a card, and refuse what it must not have: other tags, handlers, addresses, colours."""
    root = ET.fromstring(html)
    for element in root.iter():
        assert element.tag in TAGS, element.tag
        assert {*element.keys()} <= ATTRIBUTES, element.keys()
        for name in ("fill", "stroke"):
            assert element.get(name) in (None, "none", "currentColor")
    assert not re.search(r"https?:|url\(|src=|@import", html)
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b|\b(white|black)\b(?!-)", html.replace("&#x27;", ""))
    assert "<script" not in html
    return root


@pytest.fixture(scope="module")
def results():
    rng = np.random.default_rng(0)
    network = Network.torus(3, 2).relabelled([EVIL, *"bcdef"])
    held = [rng.random(40) for _ in range(6)]
    lac = scores.LAC()
    probabilities = rng.dirichlet(np.ones(3), 60)
    labels = np.array([rng.choice(3, p=row) for row in probabilities])
    found = {"Result": agree(held, network, 0.1, score=lac)}
    found["local"] = agree(held, network, 0.2, "local")
    found["average"] = agree(held, network, 0.1, "average")
    found["Certificate"], found["Cost"] = found["Result"].certificate, found["Result"].cost
    rows = [[EVIL, *"bcdef"][i % 6] for i in range(60)]
    found["Evaluation"] = found["Result"].evaluate(probabilities, labels, device=rows).named([EVIL, "y", "z"])
    groups = [np.array([EVIL, "two"])[rng.integers(0, 2, 40)] for _ in held]
    found["groups"] = calibrate(held, network, [0.1, 0.2], groups=groups, score=lac)
    found["PValues"] = p_values(held, network, probabilities[:15], score=lac, classes=[EVIL, "y", "z"])
    found["Quantiles"] = quantiles({"device": range(6), "score": rng.random(6)}, Network.cycle(6))
    found["Detection"] = detect(held, network, [rng.random(5) for _ in held], 0.3)
    inputs = [rng.random(40) for _ in held]
    near = calibrate(held, network, inputs=inputs, centres=Centres.at([0.0, 1.0], 0.5), score=lac)
    found["centres"] = near
    found["by centre"] = found["centres"].evaluate(probabilities, labels, inputs=rng.random(60), rng=0)
    found["Comparison"] = compare(held, [network], 0.1, compared_ways(["e-dcp", "local", "wfcp"]))
    found["CostFront"] = cost_fronts(held, [network])[0]
    found["Plan"] = plan(network, 40, methods=["e-dcp", "q-dcp", "average"])
    found["Network"] = network
    loss = FalseNegativeRate()
    table = rng.random((120, 4))
    truth = rng.random((120, 4)) < table
    items = [loss(table[k * 20 : (k + 1) * 20], truth[k * 20 : (k + 1) * 20]) for k in range(6)]
    found["risk"] = control(items, network, 0.2, loss=loss)
    found["RiskEvaluation"] = found["risk"].evaluate(table, truth, device=rows * 2)
    cqr, band = scores.CQR(), np.tile([-1.0, 1.0], (40, 1))
    sides = [cqr.sides(band, rng.exponential(size=40) * 2 - 1) for _ in held]
    found["sides"] = calibrate(sides, network, 0.25, score=cqr, symmetric=False, lower_share="0.4")
    found["SidesCertificate"] = found["sides"].certificate
    found["Slab"] = found["Evaluation"].worst_slab(probabilities, directions=5, rng=0)
    found["Batch"] = solve_draws(WeightedScores.of(held), network, (0.1, 0.2), "e-dcp")
    return found


NAMES = [
    *("Result", "local", "average", "Certificate", "Cost", "Evaluation", "groups", "PValues", "Detection"),
    "Quantiles",
    *("centres", "by centre", "Comparison", "CostFront", "Plan", "Network", "risk", "RiskEvaluation"),
    *("Batch", "sides", "SidesCertificate", "Slab"),
]


@pytest.mark.parametrize("name", NAMES)
def test_every_result_has_a_form_that_is_safe(results, name):
    html = results[name]._repr_html_()
    root = checked(html)
    assert root.get("class") == "cfm"
    assert len(html) < 30_000
    assert not repr(results[name]).startswith(f"{name}(kind=")
    assert "array(" not in repr(results[name])


def test_two_sides_say_what_each_promises(results):
    found = results["sides"]
    rows = {row.find("th").text: row.find("td").text for row in checked(found._repr_html_()).findall("table/tr")}
    assert [*rows][:4] == ["lower side", "upper side", "both", "about"]
    assert rows["lower side"] == "missed at most 0.1; rank required 217, counted 217 of 240 scores"
    assert rows["both"] == "missed at most 0.25, by the union bound"
    assert repr(found.certificate).startswith("SidesCertificate(counted: ")
    assert repr(results["Slab"]).startswith("Slab(worst slab: coverage ")


def test_groups_and_centres_have_a_table_of_thresholds(results):
    tables = [*checked(results["groups"]._repr_html_()).iter("tbody")]
    assert next(cell.text for cell in next(tables[0].iter("tr"))) == EVIL
    places = [row.find("td").text for row in next(checked(results["centres"]._repr_html_()).iter("tbody"))]
    assert places == ["centre 0 at (0)", "centre 1 at (1)"]
    rows = {row.find("th").text for row in checked(results["risk"]._repr_html_()).findall("table/tr")}
    assert {"mean loss", "about", "lambda"} <= rows


def test_public_results_are_all_here():
    """A result that is exported has a form; what is no result is named."""
    no_results = {
        "CalibrationNote",
        "TooFewScores",
        "Faults",
        "Centres",
        "Table",
        "METHODS",
        "TOPOLOGIES",
    }
    for name in conformesh.__all__:
        thing = getattr(conformesh, name)
        if isinstance(thing, type) and name not in no_results:
            assert callable(getattr(thing, "_repr_html_", None)), name


def test_names_are_shown_but_never_run(results):
    """The name of a device, a group and a class may hold anything."""
    for name in ("local", "Evaluation", "groups", "Detection", "Network"):
        assert "&lt;script&gt;" in results[name]._repr_html_(), name
    strange = html.html_card(
        EVIL, kind="counted", claim=EVIL, rows=[(EVIL, EVIL)], parts=[html.html_table([EVIL], [[EVIL]])]
    )
    assert checked(strange).find("div/b").text == EVIL


def test_the_certificate_comes_first(results):
    root = checked(results["Result"]._repr_html_())
    assert root.find("div/span").text == "● counted"
    names = [row.find("th").text for row in root.findall("table/tr")]
    assert names[:4] == ["rank", "about", "threshold", "cost"]


def test_a_thousand_devices_take_little_room():
    rng = np.random.default_rng(1)
    hits = rng.random((1000, 30)) < 0.9
    devices = {f"device {k}": Coverage.of(row) for k, row in enumerate(hits)}
    classes = {c: Coverage.of(hits[:, c % 30]) for c in range(100)}
    sizes = dict.fromkeys(range(80), 100)
    found = Evaluation(Coverage.of(hits.ravel()), 3.0, 0.0, 0.5, classes, devices, {}, sizes, 0.9)
    network = Network.torus(40, 25)
    local = agree([*rng.random((1000, 20))], network, 0.1, "local")
    for result in (found, network, local):
        html = result._repr_html_()
        checked(html)
        assert len(html) < 30_000
    many = Network.of("random-regular", 5000, degree=4)
    assert "too many" in many._repr_html_()


def test_every_edge_is_drawn_once():
    """A path that goes on where it can covers the same lines."""
    for network in (Network.torus(4, 3), Network.of("star", 7), Network.of("complete", 6), Network.chain(9)):
        from conformesh.graph.layout import device_positions, edge_lines

        where = device_positions(network)
        lines = [tuple(tuple(round(50 * float(x)) for x in end) for end in line) for line in edge_lines(network, where)]
        text = html._trails(lines)
        found, at = [], (0, 0)
        for letter, numbers in re.findall(r"([Mlhv])([-\d ]*)", text):
            step = [int(number) for number in re.findall(r"-?\d+", numbers)]
            if letter == "M":
                at = (step[0], step[1])
                continue
            move = (step[0], 0) if letter == "h" else (0, step[0]) if letter == "v" else (step[0], step[1])
            there = (at[0] + move[0], at[1] + move[1])
            found.append(frozenset((at, there)))
            at = there
        assert sorted(map(sorted, found)) == sorted(map(sorted, map(frozenset, lines)))


def test_a_group_without_rows_is_left_out():
    none, all_ = Coverage.of(np.zeros(0, dtype=bool)), Coverage.of(np.ones(9, dtype=bool))
    found = Evaluation(all_, 1.0, 0.0, 1.0, per_group={"nobody": none, "all": all_}, nominal=0.9)
    assert found.parts == {"group": {"all": all_}}
    assert "nobody" not in found._repr_html_()
    assert "nan" not in str(found.report())


def test_no_values_no_picture():
    assert html.interval_chart({"a": html.IntervalMark(np.inf, np.inf, np.inf)}, "threshold", "device") == ""


def test_a_node_loads_no_forms_and_no_pictures():
    code = (
        "import sys, conformesh.cli.node, conformesh.peer.device, conformesh.api, conformesh.results.result\n"
        "names = ('conformesh.plots.html', 'conformesh.plots', 'matplotlib', 'networkx')\n"
        "print([m for m in names if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
