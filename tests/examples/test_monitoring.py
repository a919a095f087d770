"""Dashboard, alerts and scrape files: Prometheus can read every expression, and the node has every metric in them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from conformesh.mesh.http.metrics import METRICS
from conformesh.mesh.node.state import Phase, Trouble
from conformesh.peer.settings import FAILURES
from tests.mesh.nodes import ask, serving

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
ALERTS, ALERTS_TEST, DASHBOARD = FOLDER / "alerts.yml", FOLDER / "alerts-test.yml", FOLDER / "grafana-dashboard.json"
PUT_ON = {"job", "instance", "mesh", "device"}  # labels of the scrape files
EVERYTHING = 'group by (job, instance, mesh, device, neighbour, reason, what, version) ({__name__=~"conformesh_.+|up"})'
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's prometheus")


def promtool(*words):
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def alerts():
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def board():
    return json.loads(DASHBOARD.read_text())


def dashboard_expressions():
    """Every expression, with Grafana's own variables as it would fill them in."""
    found = [target["expr"] for panel in board()["panels"] for target in panel.get("targets", ())]
    return [re.sub(r"\$__(rate_interval|range|interval)", "5m", expression) for expression in found]


def expressions():
    return [*(rule["expr"] for rule in alerts()), *dashboard_expressions()]


def exposed():
    """Names that Prometheus gets from nodes, and their labels: those of the table, and what the library adds."""
    with serving() as service:
        status, _, text = ask(service, "GET", "/metrics")
    assert status == 200
    library = dict.fromkeys(re.findall(r"^# TYPE (conformesh_process_\w+)", text, re.M), ())
    table = {one.exposed + suffix: one.labels for one in METRICS for suffix in SUFFIXES.get(one.kind, ("",))}
    return {**library, **table}


def test_every_metric_in_an_expression_is_one_of_the_node():
    used = {name for expression in expressions() for name in re.findall(r"\bconformesh_\w+", expression)}
    assert len(used) > 20
    assert used - exposed().keys() == set()


def test_every_label_that_is_asked_for_is_one_of_its_metric():
    labels = exposed()
    for name, asked in re.findall(r"\b(conformesh_\w+)\{([^}]*)\}", "\n".join(expressions())):
        assert {*re.findall(r"(\w+)!?[=~]", re.sub(r'"[^"]*"', "", asked))} <= {*labels[name]} | PUT_ON, (name, asked)


def test_words_in_expressions_are_those_of_the_node():
    everything = "\n".join(expressions())
    assert {*re.findall(r'\bphase="([^"]*)"', everything)} == {phase.value for phase in Phase}
    assert {*re.findall(r'\bwhat="([^"]*)"', everything)} <= {trouble.value for trouble in Trouble}
    (failing,) = [rule for rule in alerts() if rule["alert"] == "ConformeshCalibrationFails"]
    advised = {*re.findall(r'eq \$labels.reason "(\w+)"', failing["annotations"]["description"])}
    assert advised == FAILURES.keys() - {"protocol", "other"}, "these two are read about in the log"


@needs_promtool
def test_every_expression_of_the_dashboard_is_one(tmp_path):
    rules = [{"record": f"panel:{k}", "expr": expression} for k, expression in enumerate(dashboard_expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    status, words = promtool("check", "rules", file)
    assert (status, f"{len(rules)} rules found" in words) == (0, True), words
    rules[3]["expr"] += ")"  # the check itself: it does read them
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert promtool("check", "rules", file)[0] != 0


def test_the_dashboard_is_of_no_installation_in_particular():
    sources = re.findall(r'"uid": "([^"]*)"', DASHBOARD.read_text())
    assert {*sources} == {"${datasource}", "conformesh"}, "a data source is chosen, the dashboard's own name stays"
    assert "id" not in board(), "Grafana gives it one; another would be somebody else's dashboard"
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    known = {one["name"] for one in board()["templating"]["list"]}
    asked = re.findall(r"\$(?!__)\{?(\w+)", "\n".join([*dashboard_expressions(), *sources]))
    assert {*asked} == known == {"datasource", "job", "mesh", "device"}
    assert all("job=" in one and "mesh=" in one for one in dashboard_expressions()), "of one mesh only"


def test_panels_do_not_overlap():
    taken = set()
    for panel in board()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_grafana_knows_every_field_of_the_dashboard():
    """What its own library reads and writes again is what is in the file."""
    words = "needs grafana-foundation-sdk, of the package index"
    dashboards = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason=words)
    from grafana_foundation_sdk.cog import encoder, plugins

    plugins.register_default_plugins()
    again = json.loads(encoder.JSONEncoder().encode(dashboards.Dashboard.from_json(board())))
    assert_is_within(board(), again)


def assert_is_within(part, whole, path=""):
    if isinstance(part, dict):
        assert part.keys() <= whole.keys(), (path, part.keys() - whole.keys())
        for key in part:
            assert_is_within(part[key], whole[key], f"{path}/{key}")
    elif isinstance(part, list):
        assert len(part) == len(whole), path
        for k, (one, other) in enumerate(zip(part, whole, strict=True)):
            assert_is_within(one, other, f"{path}/{k}")
    else:
        assert part == whole, path


def test_every_alert_says_how_bad_it_is_and_what_to_do():
    names = [rule["alert"] for rule in alerts()]
    assert len({*names}) == len(names) == 18
    listed = re.findall(r"^\| `(Conformesh\w+)` \| (\w+) \|", (FOLDER / "README.md").read_text(), re.M)
    assert listed == [(rule["alert"], rule["labels"]["severity"]) for rule in alerts()]
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning"}, rule
        assert "$labels.mesh" in rule["annotations"]["summary"], "it says about whom"
        assert len(rule["annotations"]["description"]) > 80, rule


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then():
    assert promtool("check", "rules", ALERTS)[0] == 0
    status, words = promtool("test", "rules", ALERTS_TEST)
    assert status == 0, words


@needs_promtool
@pytest.mark.parametrize("expression", ["vector(1) > 1", EVERYTHING])
def test_no_alert_is_left_out_by_their_tests(tmp_path, expression):
    """The tests themselves: alerts that never fire, or for every series, are all found out."""
    rules = yaml.safe_load(ALERTS.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = expression
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(rules))
    shutil.copy(ALERTS_TEST, tmp_path)
    status, words = promtool("test", "rules", tmp_path / ALERTS_TEST.name)
    assert status != 0
    assert {*re.findall(r'alertname=\\?"(\w+)', words)} == {rule["alert"] for rule in alerts()}


@needs_promtool
@pytest.mark.parametrize("words", [("prometheus.yml",), ("--agent", "agent.yml")])
def test_prometheus_takes_the_scrape_files(words):
    status, told = promtool("check", "config", *words[:-1], FOLDER / words[-1])
    assert status == 0, told


@pytest.mark.parametrize("name", ["prometheus.yml", "agent.yml"])
def test_only_loopback_is_scraped_and_every_target_has_its_labels(name):
    """A node answers nobody else; and without the labels no alert says whom it is about."""
    (job,) = yaml.safe_load((FOLDER / name).read_text())["scrape_configs"]
    assert job["job_name"] == "conformesh"
    for one in job["static_configs"]:
        assert all(target.startswith("127.0.0.1:") for target in one["targets"])
        assert one["labels"].keys() == {"mesh", "device"}
