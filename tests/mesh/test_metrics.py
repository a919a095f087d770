"""What a node tells Prometheus: names and labels as they always were, counts of runs, and forms to choose from."""

import builtins
import math
import re
from pathlib import Path
from typing import get_args

import pytest

from conformesh.mesh.http.metrics import METRICS, Exposition, Snapshot
from conformesh.mesh.node.status import DURATION_BUCKETS, Gathering, RunCounts
from conformesh.peer.settings import FAILURES, Failure

from .nodes import Clock, ask, asked, calibration, numbers, serving, state

pytest.importorskip("prometheus_client", reason="metrics need prometheus-client: pip install 'conformesh[mesh]'")
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families

BEFORE = {  # names and labels that dashboards already know, from before `prometheus_client` wrote them
    "conformesh_info": ("device", "version"),
    "conformesh_phase": ("phase",),
    "conformesh_phase_seconds": (),
    "conformesh_healthy": (),
    "conformesh_trouble": ("what",),
    "conformesh_roster": (),
    "conformesh_run": (),
    "conformesh_round": (),
    "conformesh_threshold": (),
    "conformesh_alpha": (),
    "conformesh_scores": (),
    "conformesh_devices": (),
    "conformesh_certified_timestamp_seconds": (),
    "conformesh_frames_sent_total": (),
    "conformesh_bytes_sent_total": (),
    "conformesh_frames_resent_total": (),
    "conformesh_neighbour_last_heard_seconds": ("neighbour",),
    "conformesh_neighbour_round": ("neighbour",),
    "conformesh_frames_received_total": ("neighbour",),
    "conformesh_bytes_received_total": ("neighbour",),
    "conformesh_frames_refused_total": ("neighbour", "reason"),
}


def busy():
    """A node of which everything is known."""
    node = state()
    node.count_received("b", size=100, round=4)
    node.count_refused("b", 'a "bad"\nframe\\')
    node.count_refused(None, "stranger")
    node.set_file_status(1_800_000_000.0, 2)
    node.set_gathering(Gathering(["a", "b"], 3, ["c"], {}, {}, []))
    return node


@pytest.fixture(scope="module")
def text():
    with serving(busy()) as service:
        status, headers, text = ask(service, "GET", "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return text


def test_names_and_labels_are_those_of_the_table(text):
    shown = {sample.name: {*sample.labels} for family in families(text) for sample in family.samples}
    for name, labels in BEFORE.items():
        assert shown[name] == {*labels}, name
    known = {metric.exposed: {*metric.labels} for metric in METRICS}
    for name, labels in shown.items():
        if not name.startswith(("conformesh_process_", "conformesh_run_duration_seconds_")):
            assert known[name] == labels, name
    assert "conformesh_process_resident_memory_bytes" in shown


def test_every_family_says_what_it_is(text):
    for family in families(text):
        assert family.documentation.endswith(".")
        counted = all(sample.name.endswith("_total") for sample in family.samples)
        assert (family.type == "counter") == counted, family.name


def test_values(text):
    shown = numbers(text)
    assert shown['conformesh_phase{phase="certified"}'] == 1
    assert shown['conformesh_phase{phase="failed"}'] == 0
    assert shown['conformesh_frames_refused_total{neighbour="b",reason="a \\"bad\\"\\nframe\\\\"}'] == 1
    assert shown['conformesh_frames_refused_total{neighbour="",reason="stranger"}'] == 1
    assert shown['conformesh_neighbour_last_heard_seconds{neighbour="b"}'] == 0
    assert 'conformesh_neighbour_last_heard_seconds{neighbour="c"}' not in shown
    assert shown["conformesh_certificate_expiry_timestamp_seconds"] == 1_800_000_000
    assert (shown["conformesh_scores_read_failures_total"], shown["conformesh_scores_unreadable"]) == (2, 0)
    assert shown["conformesh_heard_devices"] == 2


def test_runs_are_counted_by_outcome_reason_and_duration():
    node = state(certified=False)
    node.set_round(7)
    for seconds in (0.1, 0.2, 700.0):
        node.certify(calibration(seconds=seconds))
    node.certify(calibration(), final=False)  # more may be heard: no end of a run
    node.fail("b is gone", "lost")
    node.fail("words alone count nothing")
    with serving(node) as service:
        shown = numbers(ask(service, "GET", "/metrics")[2])
        assert asked(service, "GET", "/status")[1]["failure"] == "lost"
    assert shown['conformesh_runs_total{outcome="certified"}'] == 3
    assert shown['conformesh_runs_total{outcome="failed"}'] == 1
    by_reason = {reason: shown[f'conformesh_run_failures_total{{reason="{reason}"}}'] for reason in FAILURES}
    assert by_reason == {reason: float(reason == "lost") for reason in FAILURES}
    assert shown['conformesh_run_duration_seconds_bucket{le="0.1"}'] == 1
    assert shown['conformesh_run_duration_seconds_bucket{le="0.25"}'] == 2
    assert shown['conformesh_run_duration_seconds_bucket{le="600.0"}'] == 2
    assert shown['conformesh_run_duration_seconds_bucket{le="+Inf"}'] == shown["conformesh_run_duration_seconds_count"]
    assert shown["conformesh_run_duration_seconds_sum"] == pytest.approx(700.3)
    assert shown["conformesh_run_rounds"] == 7


def test_metrics_that_the_docs_name_exist(text):
    """Those that alarms ask for, besides the table that is made from the code."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    known = {metric.exposed for metric in METRICS} | {name.partition("{")[0] for name in numbers(text)}
    named = {*re.findall(r"\bconformesh_[a-z_]+", page)}
    assert len(named) > 30
    assert named <= known


def test_run_counts_know_no_reason_that_is_not_in_the_table():
    runs = RunCounts()
    runs.count_failure("the moon")
    assert runs.failed == {reason: int(reason == "other") for reason in FAILURES}
    assert len(runs.durations) == len(DURATION_BUCKETS) + 1
    assert get_args(Failure) == tuple(FAILURES)


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text",
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
        "text/html, application/openmetrics-text;version=1.0.0;q=0.5",
    ],
)
def test_open_metrics_for_who_accepts_them(accept):
    with serving(busy()) as service:
        _, headers, text = ask(service, "GET", "/metrics", headers={"Accept": accept})
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert {family.name for family in open_families(text)} >= {"conformesh", "conformesh_runs", "conformesh_phase"}


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "text/html",
        "application/openmetrics-text; version=x",
        "text/plain; version=7.x",
        "text/plain; version=1.0.0; escaping=y",
    ],
)
def test_plain_text_for_everybody_else(accept):
    with serving(busy()) as service:
        status, headers, _ = ask(service, "GET", "/metrics", headers={"Accept": accept})
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")


def test_without_the_library_metrics_say_how_to_get_it(monkeypatch):
    real = builtins.__import__

    def absent(name, *rest):
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with serving() as service:
        status, answer = asked(service, "GET", "/metrics")
        assert status == 501
        assert "pip install 'conformesh[mesh]'" in answer["error"]
        assert asked(service, "GET", "/status")[0] == 200


def test_two_nodes_in_a_program_have_metrics_of_their_own():
    clock = Clock()
    first, second = (
        Exposition(lambda k=k: Snapshot(state(threshold=k, clock=clock).status(), healthy=True)) for k in (1, 2)
    )
    assert numbers(first.text()[0].decode())["conformesh_threshold"] == 1
    assert numbers(second.text()[0].decode())["conformesh_threshold"] == 2
    assert math.isfinite(numbers(first.text()[0].decode())["conformesh_process_cpu_seconds_total"])
