"""Traces of a node's runs and requests, by OpenTelemetry, if they are switched on.

Otherwise OpenTelemetry is not imported, and there is no cost. A thread of that library sends the spans in batches: a
collector that is slow or down delays nothing, and is logged once.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from conformesh import __version__
from conformesh.mesh.config.device_config import DeviceConfig

LOG = logging.getLogger("conformesh.node")
VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
DISABLED = "OTEL_SDK_DISABLED"
MISSING = "traces need OpenTelemetry: pip install 'conformesh[telemetry]'"
DEFAULT_SERVICE = "conformesh-node"
SHUTDOWN_SECONDS = 2.0  # seconds that a stopping node waits for its last spans to be sent
# Name of the span for each phase of a device.
PHASE_SPANS = {"greeting": "greeting", "running": "calibrating", "finishing": "finishing"}

P = ParamSpec("P")


def _harmless(method: Callable[Concatenate[Traces, P], None]) -> Callable[Concatenate[Traces, P], None]:
    """Catch every error of a trace, as no trace may end a run; log the first as a warning."""

    @wraps(method)
    def wrapped(self: Traces, /, *args: P.args, **named: P.kwargs) -> None:
        try:
            method(self, *args, **named)
        except Exception:
            LOG.log(logging.DEBUG if self.has_warned else logging.WARNING, "a trace failed", exc_info=True)
            self.has_warned = True

    return wrapped


class Traces:
    """The traces of one node; safe to use from its own thread and from that of its service.

    Parameters
    ----------
    config
        Configuration of the device.
    provider
        A `TracerProvider` of OpenTelemetry's SDK.
    """

    def __init__(self, config: DeviceConfig, provider: Any) -> None:
        self.has_warned = False
        self._provider = provider
        self._tracer = provider.get_tracer("conformesh", __version__)
        self._attributes = {
            "conformesh.device": config.name,
            "conformesh.mesh": config.mesh,
            "conformesh.mode": config.run.mode,
            "conformesh.method": config.run.method,
            "conformesh.alpha": config.guarantee.alpha,
        }
        self._run_span: Any = None  # the span of the run under way
        self._number = 0
        self._phase_span: Any = None  # the span of its phase
        self._phase = ""

    @_harmless
    def enter_phase(self, run: int, phase: str, roster: int) -> None:
        """Record the run and phase of the device; the span of an earlier run ends with outcome "left"."""
        if (run, phase) == (self._number, self._phase):
            return
        from opentelemetry.trace import set_span_in_context

        if self._run_span is not None and run != self._number:
            self._end("left")
        self._number, self._phase = run, phase
        self._end_phase()
        if phase not in PHASE_SPANS:
            return
        if self._run_span is None:
            attributes = {**self._attributes, "conformesh.run": run, "conformesh.roster": roster}
            self._run_span = self._tracer.start_span("run", attributes=attributes)
        self._phase_span = self._tracer.start_span(PHASE_SPANS[phase], context=set_span_in_context(self._run_span))

    @_harmless
    def end_run(self, outcome: str, rounds: int | None = None, reason: str | None = None) -> None:
        """End the span of the run: certified after so many rounds, or failed for a reason in one word."""
        if self._run_span is None and reason is not None:  # it failed before its first phase
            self._run_span = self._tracer.start_span("run", attributes=self._attributes)
        self._end(outcome, rounds, reason)

    @_harmless
    def record_request(self, verb: str, path: str, status: int, began: int, ended: int) -> None:
        """Record a request of a local program and its reply; times are in nanoseconds since 1970."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        attributes = {
            "http.request.method": verb,
            "http.response.status_code": status,
            "conformesh.device": self._attributes["conformesh.device"],
        }
        if path:
            attributes["http.route"] = path
        name = f"{verb} {path}".strip()
        span = self._tracer.start_span(name, kind=SpanKind.SERVER, attributes=attributes, start_time=began)
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended)

    def close(self) -> None:
        """Send the last spans, in at most `SHUTDOWN_SECONDS`: a collector that is down must not keep a node running."""
        self.end_run("stopped")
        closing = threading.Thread(target=self._provider.shutdown, name="last traces", daemon=True)
        closing.start()
        closing.join(SHUTDOWN_SECONDS)

    def _end_phase(self) -> None:
        if self._phase_span is not None:
            self._phase_span.end()
        self._phase_span = None

    def _end(self, outcome: str, rounds: int | None = None, reason: str | None = None) -> None:
        if self._run_span is None:
            return
        from opentelemetry.trace import Status, StatusCode

        self._end_phase()
        self._run_span.set_attribute("conformesh.outcome", outcome)
        if rounds is not None:
            self._run_span.set_attribute("conformesh.rounds", rounds)
        if reason is not None:
            self._run_span.set_attribute("conformesh.reason", reason)
            self._run_span.set_status(Status(StatusCode.ERROR, reason))
        self._run_span.end()
        self._run_span = None


def make_traces(config: DeviceConfig, wanted: bool = False) -> Traces | None:
    """Return the traces of a node if they are `wanted` or the environment names a collector; otherwise None.

    If OpenTelemetry is missing, traces that are `wanted` raise a ValueError that says how to install it. An environment
    variable only causes a warning: it may be set for all programs of a machine, and must not keep a node from starting.
    """
    named = any(os.environ.get(variable) for variable in VARIABLES)
    if os.environ.get(DISABLED, "").lower() == "true" or not (wanted or named):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        if wanted:
            raise ValueError(MISSING) from None
        LOG.warning("%s", MISSING)
        return None
    _warn_once()
    service = os.environ.get("OTEL_SERVICE_NAME") or DEFAULT_SERVICE
    attributes = {SERVICE_NAME: service, "service.version": __version__, "service.instance.id": config.name}
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    LOG.info("traces of runs and requests are sent to an OpenTelemetry collector")
    return Traces(config, provider)


class _FirstWarning(logging.Handler):
    """Logs the first warning of the library, in one line, and drops all others."""

    is_logged = False

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record if it is the first."""
        if not self.is_logged:
            self.is_logged = True
            words = " ".join(record.getMessage().split())
            LOG.warning("traces are lost, and the node continues: %s", words[:300])


def _warn_once() -> None:
    library = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, _FirstWarning) for handler in library.handlers):
        library.addHandler(_FirstWarning(logging.WARNING))
        library.propagate = False
