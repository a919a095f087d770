"""Traces of a node's runs and of requests to it, by OpenTelemetry: only where they are switched on.

Without that nothing is imported, and nothing costs anything. With it, spans are handed to a thread of the library's,
which sends them in batches: a collector that is slow or down delays nothing, and is complained of once.
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
SHUTDOWN_SECONDS = 2.0  # seconds that a node which stops waits for its last spans to be sent
# Name of the span for each phase of a device.
PHASE_SPANS = {"greeting": "greeting", "running": "calibrating", "finishing": "finishing"}

P = ParamSpec("P")


def _harmless(method: Callable[Concatenate[Traces, P], None]) -> Callable[Concatenate[Traces, P], None]:
    """Let nothing that goes wrong with a trace reach the run that it is of; complain once."""

    @wraps(method)
    def wrapped(self: Traces, /, *args: P.args, **named: P.kwargs) -> None:
        try:
            method(self, *args, **named)
        except Exception:
            LOG.log(logging.DEBUG if self.complained else logging.WARNING, "a trace failed", exc_info=True)
            self.complained = True

    return wrapped


class Traces:
    """The traces of one node; safe to use from its own thread and from that of its service.

    Parameters
    ----------
    config
        Of which device they are.
    provider
        A `TracerProvider` of OpenTelemetry's SDK.
    """

    def __init__(self, config: DeviceConfig, provider: Any) -> None:
        self.complained = False
        self._provider = provider
        self._tracer = provider.get_tracer("conformesh", __version__)
        self._about = {
            "conformesh.device": config.name,
            "conformesh.mesh": config.mesh,
            "conformesh.mode": config.run.mode,
            "conformesh.method": config.run.method,
            "conformesh.alpha": config.guarantee.alpha,
        }
        self._run: Any = None  # the span of the run under way
        self._number = 0
        self._part: Any = None  # the span of its phase
        self._phase = ""

    @_harmless
    def at(self, run: int, phase: str, roster: int) -> None:
        """Note in which run and phase the device is; a run that is left for another one ends."""
        if (run, phase) == (self._number, self._phase):
            return
        from opentelemetry.trace import set_span_in_context

        if self._run is not None and run != self._number:
            self._end("left")
        self._number, self._phase = run, phase
        self._end_part()
        if phase not in PHASE_SPANS:
            return
        if self._run is None:
            about = {**self._about, "conformesh.run": run, "conformesh.roster": roster}
            self._run = self._tracer.start_span("run", attributes=about)
        self._part = self._tracer.start_span(PHASE_SPANS[phase], context=set_span_in_context(self._run))

    @_harmless
    def end(self, outcome: str, rounds: int | None = None, reason: str | None = None) -> None:
        """End the run under way: certified after so many rounds, or failed for a reason in one word."""
        if self._run is None and reason is not None:  # it could not even begin
            self._run = self._tracer.start_span("run", attributes=self._about)
        self._end(outcome, rounds, reason)

    @_harmless
    def request(self, verb: str, path: str, status: int, began: int, ended: int) -> None:
        """Note a request of a local program that was answered, with times in nanoseconds since 1970."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        about = {"http.request.method": verb, "http.response.status_code": status, "conformesh.device": self._device}
        if path:
            about["http.route"] = path
        name = f"{verb} {path}".strip()
        span = self._tracer.start_span(name, kind=SpanKind.SERVER, attributes=about, start_time=began)
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended)

    def close(self) -> None:
        """Send what is left, for a moment: a collector that is down keeps no node from stopping."""
        self.end("stopped")
        closing = threading.Thread(target=self._provider.shutdown, name="last traces", daemon=True)
        closing.start()
        closing.join(SHUTDOWN_SECONDS)

    @property
    def _device(self) -> str:
        return self._about["conformesh.device"]

    def _end_part(self) -> None:
        if self._part is not None:
            self._part.end()
        self._part = None

    def _end(self, outcome: str, rounds: int | None = None, reason: str | None = None) -> None:
        if self._run is None:
            return
        from opentelemetry.trace import Status, StatusCode

        self._end_part()
        self._run.set_attribute("conformesh.outcome", outcome)
        if rounds is not None:
            self._run.set_attribute("conformesh.rounds", rounds)
        if reason is not None:
            self._run.set_attribute("conformesh.reason", reason)
            self._run.set_status(Status(StatusCode.ERROR, reason))
        self._run.end()
        self._run = None


def make_traces(config: DeviceConfig, wanted: bool = False) -> Traces | None:
    """Return the traces of a node, where they are `wanted` or the environment names a collector; else None.

    A ValueError says how to install what is missing, where they are wanted; a variable that is set for all programs of
    a machine is no reason not to start.
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
    _complain_once()
    service = os.environ.get("OTEL_SERVICE_NAME") or DEFAULT_SERVICE
    about = {SERVICE_NAME: service, "service.version": __version__, "service.instance.id": config.name}
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    LOG.info("traces of runs and requests are sent to an OpenTelemetry collector")
    return Traces(config, provider)


class _Once(logging.Handler):
    """Passes on the first complaint of the library, in one line, and no other."""

    said = False

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, if it is the first."""
        if not self.said:
            self.said = True
            words = " ".join(record.getMessage().split())
            LOG.warning("traces are lost, and the node goes on: %s", words[:300])


def _complain_once() -> None:
    library = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, _Once) for handler in library.handlers):
        library.addHandler(_Once(logging.WARNING))
        library.propagate = False
