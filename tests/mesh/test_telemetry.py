"""Traces of a node: what a run and a request leave behind, and that nothing of it is there unless it is wanted."""

import builtins
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conformesh import Network
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.http.client import Client
from conformesh.mesh.node.node import Node
from conformesh.mesh.node.telemetry import MISSING, SHUTDOWN_SECONDS, Traces, make_traces
from tests.mesh.meshes import config
from tests.mesh.nodes import ask, serving, short_folder
from tests.mesh.real import finish, make_mesh, start, wait_for
from tests.mesh.test_serving import after

pytest.importorskip("opentelemetry.sdk", reason="traces need OpenTelemetry: pip install 'conformesh[telemetry]'")
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode


class Kept:
    """Traces that stay in memory."""

    def __init__(self, about=None):
        self.exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.traces = Traces(about or config(), provider)

    def spans(self, name=None):
        return [span for span in self.exporter.get_finished_spans() if name in (None, span.name)]


def facts(span):
    return {key.removeprefix("conformesh."): value for key, value in span.attributes.items()}


# --- one run after another --------------------------------------------------------------------------------------------


def test_a_run_is_a_span_and_its_phases_are_inside():
    kept = Kept()
    for phase in ("greeting", "greeting", "running", "finishing", "finished"):
        kept.traces.enter_phase(3, phase, 2)
    kept.traces.end_run("certified", rounds=12)
    (run,) = kept.spans("run")
    assert facts(run) == {
        **{"device": "device-01", "mesh": "0123456789abcdef", "mode": "rounds", "method": "e-dcp", "alpha": "0.1"},
        **{"run": 3, "roster": 2, "outcome": "certified", "rounds": 12},
    }
    assert [span.name for span in kept.spans()] == ["greeting", "calibrating", "finishing", "run"]
    assert {span.parent.span_id for span in kept.spans() if span is not run} == {run.context.span_id}
    assert run.status.status_code is StatusCode.UNSET


def test_a_failure_says_why_in_one_word():
    kept = Kept()
    kept.traces.enter_phase(3, "running", 2)
    kept.traces.end_run("failed", reason="lost")
    (run,) = kept.spans("run")
    assert (facts(run)["outcome"], facts(run)["reason"]) == ("failed", "lost")
    assert run.status.status_code is StatusCode.ERROR
    kept.traces.end_run("failed", reason="scores")  # it did not even begin
    assert [facts(span)["reason"] for span in kept.spans("run")] == ["lost", "scores"]


def test_a_run_that_is_left_for_another_ends():
    kept = Kept()
    kept.traces.enter_phase(3, "running", 2)
    kept.traces.enter_phase(4, "greeting", 2)
    kept.traces.end_run("stopped")
    assert [(facts(span)["run"], facts(span)["outcome"]) for span in kept.spans("run")] == [(3, "left"), (4, "stopped")]
    kept.traces.end_run("stopped")
    assert len(kept.spans("run")) == 2


def test_requests_are_spans_of_their_own():
    kept = Kept()
    with serving(trace_reply=kept.traces.record_request) as service:
        ask(service, "GET", "/threshold?x=secret")
        ask(service, "GET", "/no/such/path")
        ask(service, "POST", "/recalibrate")
    spans = {span.name: span for span in kept.spans()}
    assert {*spans} == {"GET /threshold", "GET", "POST /recalibrate"}
    assert spans["GET"].attributes["http.response.status_code"] == 404
    assert spans["POST /recalibrate"].attributes["http.response.status_code"] == 501
    assert spans["POST /recalibrate"].status.status_code is StatusCode.ERROR
    assert all(0 < span.end_time - span.start_time < 30e9 for span in spans.values())


def test_what_goes_wrong_with_a_trace_is_said_once_and_harms_nobody(caplog):
    kept = Kept()

    def broken(*_, **__):
        raise RuntimeError("no more spans")

    kept.traces._tracer.start_span = broken
    with caplog.at_level(logging.INFO, "conformesh.node"), serving(trace_reply=kept.traces.record_request) as service:
        for run in range(3):
            kept.traces.enter_phase(run + 1, "greeting", 1)
            kept.traces.end_run("failed", reason="lost")
            assert ask(service, "GET", "/health")[0] == 200
    assert caplog.text.count("a trace failed") == 1


# --- switched on, or not ----------------------------------------------------------------------------------------------


@pytest.fixture
def plain(monkeypatch):
    """An environment that says nothing of traces, and a library that complains to nobody else afterwards."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    library = logging.getLogger("opentelemetry")
    before = library.handlers[:], library.propagate
    yield monkeypatch
    library.handlers[:], library.propagate = before


def test_without_being_asked_for_there_are_none(plain):
    assert make_traces(config()) is None
    plain.setenv("OTEL_SDK_DISABLED", "true")
    assert make_traces(config(), wanted=True) is None


def test_nothing_is_imported_unless_it_is_wanted(plain):
    code = (
        "import sys, conformesh.mesh.node.node, conformesh.mesh.node.main\n"
        "from conformesh.mesh.node.telemetry import make_traces\n"
        "assert make_traces(None) is None\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.startswith(("opentelemetry", "requests", "prometheus_client"))]


def test_what_is_missing_is_said_with_how_to_get_it(plain, caplog):
    real = builtins.__import__

    def absent(name, *rest):
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *rest)

    plain.setattr(builtins, "__import__", absent)
    with pytest.raises(ValueError, match=r"pip install 'conformesh\[telemetry\]'"):
        make_traces(config(), wanted=True)
    plain.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    with caplog.at_level(logging.WARNING, "conformesh.node"):
        assert make_traces(config()) is None
    assert MISSING in caplog.text


def test_a_collector_that_is_down_is_complained_of_once_and_delays_nothing(plain, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    plain.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    plain.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    plain.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    with caplog.at_level(logging.INFO, "conformesh.node"):
        traces = make_traces(config())
        begun = time.monotonic()
        for run in range(500):
            traces.enter_phase(run, "running", 1)
            traces.end_run("certified", rounds=3)
        assert time.monotonic() - begun < 5.0
        wait_for(lambda: "traces are lost, and the node continues" in caplog.text, 60)
        begun = time.monotonic()
        traces.close()
        assert time.monotonic() - begun < SHUTDOWN_SECONDS + 3.0
    assert caplog.text.count("traces are lost") == 1


# --- real runs --------------------------------------------------------------------------------------------------------


@contextmanager
def traced(folder):
    """A node in a thread of its own, with what it leaves behind."""
    about = read_device(folder)
    kept = Kept(about)
    node = Node(about, traces=kept.traces)
    thread = threading.Thread(target=node.run, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        node.stopping.set()
        thread.join(20)


def test_runs_of_real_nodes_leave_spans():
    pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
    with short_folder() as root, ExitStack() as stack:
        folders, _ = make_mesh(root / "m", Network.chain(2), insecure=True)
        clients = [Client(folder) for folder in folders]
        kept = [stack.enter_context(traced(folder)) for folder in folders]
        run, _ = after(clients, 0)
        clients[0].recalibrate()
        last, _ = after(clients, run)
        for one, folder in zip(kept, folders, strict=True):
            ended = [facts(span) for span in one.spans("run") if facts(span)["outcome"] == "certified"]
            assert [span["run"] for span in ended][-2:] == [run, last]
            assert {span["device"] for span in ended} == {folder.name}
            assert all(span["rounds"] > 0 for span in ended)
            assert {"greeting", "calibrating", "finishing"} >= {span.name for span in one.spans()} - {
                *("run", "GET /status", "GET /threshold", "POST /recalibrate")
            }
            assert one.spans("calibrating")


@contextmanager
def collector():
    """A receiver of OTLP over HTTP on loopback; yields its address and the spans that come."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                data = gzip.decompress(data)
            for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
                about = {one.key: one.value.string_value for one in resource.resource.attributes}
                for scope in resource.scope_spans:
                    spans.extend((self.path, about, span) for span in scope.spans)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", spans
        finally:
            server.shutdown()
            thread.join()


def test_spans_reach_a_collector(plain):
    """Two processes that calibrate once: what they leave behind arrives before they end."""
    pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
    with short_folder() as root, collector() as (address, spans):
        plain.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        folders, _ = make_mesh(root / "m", Network.chain(2), insecure=True)
        found = [finish(process) for process in [start(folder) for folder in folders]]
        assert [code for code, _, _ in found] == [0, 0], found
    runs = [(about, span) for path, about, span in spans if span.name == "run" and path == "/v1/traces"]
    assert {about["service.instance.id"] for about, _ in runs} == {"device-00", "device-01"}
    assert {about["service.name"] for about, _ in runs} == {"conformesh-node"}
    said = [{one.key: one.value.string_value for one in span.attributes} for _, span in runs]
    assert {one["conformesh.outcome"] for one in said} == {"certified"}
    assert {span.name for _, _, span in spans} >= {"run", "greeting", "calibrating"}
