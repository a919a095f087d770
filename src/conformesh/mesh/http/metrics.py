"""A node's state as metrics, in the forms that Prometheus reads; `prometheus_client` writes them.

The state counts by itself, whether anybody asks or not: the library is loaded when metrics are first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from conformesh import __version__
from conformesh.mesh.node.status import DURATION_BUCKETS, Phase, Trouble

PREFIX = "conformesh"
Now = Mapping[str, Any]  # a snapshot of the state, with `healthy` and perhaps `mesh`
WeightedScores = Iterable[
    tuple[tuple[str, ...], float | None]
]  # values of the labels, and the number; None is left out


class Metric(NamedTuple):
    """One family: its name without the prefix, what kind it is, what it says, its labels, and where its samples are."""

    name: str
    kind: Literal["info", "gauge", "counter", "histogram"]
    words: str
    labels: tuple[str, ...]
    samples: Callable[[Now], WeightedScores]

    @property
    def exposed(self) -> str:
        """The name under which it is found."""
        return f"{PREFIX}_{self.name}" + ("_total" if self.kind == "counter" else "")


def _at(*path: str) -> Callable[[Now], WeightedScores]:
    """Return what reads one number of a snapshot; it is left out where there is none yet."""

    def read(now: Now) -> WeightedScores:
        value: Any = now
        for name in path:
            value = None if value is None else value.get(name)
        return [((), None if value is None else float(value))]

    return read


def _each(key: str) -> Callable[[Now], WeightedScores]:
    """Return what reads one number for each neighbour."""
    return lambda now: [((name,), one[key]) for name, one in now["neighbours"].items()]


def _words(*path: str) -> Callable[[Now], WeightedScores]:
    """Return what reads numbers that stand beside words."""

    def read(now: Now) -> WeightedScores:
        table: Any = now
        for name in path:
            table = (table or {}).get(name)
        return [((word,), count) for word, count in (table or {}).items()]

    return read


def _refusals(now: Now) -> WeightedScores:
    tables = [*((name, one["refused"]) for name, one in now["neighbours"].items()), ("", now["refused"])]
    return [((name, reason), count) for name, reasons in tables for reason, count in reasons.items()]


def _runs(now: Now) -> WeightedScores:
    runs = now["runs"]
    return [(("certified",), runs["certified"]), (("failed",), sum(runs["failed"].values()))]


def _heard(now: Now) -> WeightedScores:
    gathering = now.get("gathering")
    return [((), None if gathering is None else len(gathering["reported"]))]


METRICS: tuple[Metric, ...] = (
    Metric(
        "info", "info", "Which node this is.", ("device", "version"), lambda now: [((now["device"], __version__), 1)]
    ),
    Metric(
        "phase",
        "gauge",
        "1 for the phase the node is in.",
        ("phase",),
        lambda now: [((phase.value,), phase.value == now["phase"]) for phase in Phase],
    ),
    Metric("phase_seconds", "gauge", "Seconds in this phase.", (), _at("seconds_in_phase")),
    Metric(
        "healthy",
        "gauge",
        "1 with a certified threshold, no trouble, and the latest requested run done or within its patience.",
        (),
        _at("healthy"),
    ),
    Metric(
        "run_requested_seconds",
        "gauge",
        "Seconds since a run was requested that has not succeeded yet; none where there is none.",
        (),
        _at("request", "seconds_ago"),
    ),
    Metric(
        "trouble",
        "gauge",
        "1 while something of the device itself is wrong; /health says what.",
        ("what",),
        lambda now: [((trouble.value,), trouble.value in now["troubles"]) for trouble in Trouble],
    ),
    Metric(
        "scores_unreadable",
        "gauge",
        "1 while the file of scores, as it is now, cannot be read.",
        (),
        lambda now: [((), Trouble.SCORES.value in now["troubles"])],
    ),
    Metric(
        "scores_read_failures",
        "counter",
        "Times that the file of scores could not be read.",
        (),
        _at("scores_read_failures"),
    ),
    Metric(
        "certificate_expiry_timestamp_seconds",
        "gauge",
        "When the first of certificate and authority ends; none where links have no certificates.",
        (),
        _at("certificate_expires"),
    ),
    Metric("roster", "gauge", "The number of the roster in force.", (), _at("roster", "number")),
    Metric("run", "gauge", "The number of the current run.", (), _at("run")),
    Metric("round", "gauge", "The open round of the current run.", (), _at("round")),
    Metric(
        "runs", "counter", "Runs that ended here since the start, with a threshold or without.", ("outcome",), _runs
    ),
    Metric("run_failures", "counter", "Runs that failed, by reason.", ("reason",), _words("runs", "failed")),
    Metric(
        "run_duration_seconds",
        "histogram",
        "How long runs took that ended with a threshold.",
        (),
        lambda now: [],  # a histogram is made of all its numbers at once
    ),
    Metric("run_rounds", "gauge", "Rounds of the last run that ended with a threshold.", (), _at("runs", "rounds")),
    Metric("threshold", "gauge", "The certified threshold.", (), _at("certified", "threshold")),
    Metric("alpha", "gauge", "The miscoverage level the threshold is for.", (), _at("certified", "alpha")),
    Metric(
        "scores", "gauge", "Calibration scores behind the threshold, on all devices.", (), _at("certified", "scores")
    ),
    Metric("devices", "gauge", "Devices that made the threshold.", (), _at("certified", "devices")),
    Metric(
        "certified_timestamp_seconds", "gauge", "When the threshold was made.", (), _at("certified", "made_seconds")
    ),
    Metric(
        "heard_devices", "gauge", "Without rounds: devices that were heard in this run, itself among them.", (), _heard
    ),
    Metric(
        "mesh_devices",
        "gauge",
        "Devices of the mesh by what was last heard of them, itself among them.",
        ("health",),
        _words("mesh", "health"),
    ),
    Metric("frames_sent", "counter", "Frames sent, resent ones included.", (), _at("sent", "frames")),
    Metric("bytes_sent", "counter", "Bytes sent, resent ones included.", (), _at("sent", "bytes")),
    Metric("frames_resent", "counter", "Frames sent again.", (), _at("sent", "resent_frames")),
    Metric(
        "neighbour_last_heard_seconds",
        "gauge",
        "Seconds since the neighbour was last heard.",
        ("neighbour",),
        _each("last_heard_seconds_ago"),
    ),
    Metric(
        "link_up", "gauge", "0 where nothing has arrived from the neighbour for too long.", ("neighbour",), _each("up")
    ),
    Metric("neighbour_round", "gauge", "The last round the neighbour was heard in.", ("neighbour",), _each("round")),
    Metric(
        "frames_received", "counter", "Frames received from the neighbour.", ("neighbour",), _each("frames_received")
    ),
    Metric("bytes_received", "counter", "Bytes received from the neighbour.", ("neighbour",), _each("bytes_received")),
    Metric(
        "frames_refused",
        "counter",
        "Frames refused, by reason; an empty neighbour is anybody.",
        ("neighbour", "reason"),
        _refusals,
    ),
    Metric("pulses_sent", "counter", "Pulses sent, which tell others how this node is.", (), _at("mesh", "sent")),
    Metric("pulse_bytes_sent", "counter", "Bytes of pulses sent, to each neighbour.", (), _at("mesh", "sent_bytes")),
    Metric("pulses_received", "counter", "Pulses received from neighbours.", (), _at("mesh", "heard")),
    Metric("pulse_bytes_received", "counter", "Bytes of pulses received.", (), _at("mesh", "heard_bytes")),
    Metric("pulses_refused", "counter", "Pulses refused, by reason.", ("reason",), _words("mesh", "refused")),
    Metric(
        "online_steps", "counter", "Examples whose labels this device has seen.", (), _at("online", "device", "steps")
    ),
    Metric(
        "online_misses", "counter", "Of these, with a score above the threshold.", (), _at("online", "device", "misses")
    ),
    Metric("online_threshold", "gauge", "The threshold for the next example.", (), _at("online", "threshold")),
    Metric(
        "online_bound",
        "gauge",
        "How far from alpha the rate of misses of this device can be at most.",
        (),
        _at("online", "device", "within"),
    ),
    Metric(
        "online_evidence",
        "gauge",
        "The largest evidence of drift so far, of this device and of all; none without a drift alarm.",
        ("of",),
        _words("online", "alarm", "evidence"),
    ),
    Metric(
        "online_alarm",
        "gauge",
        "1 where the drift alarm is raised: the evidence has reached 1 / level.",
        ("of",),
        _words("online", "alarm", "raised"),
    ),
)


class Exposition:
    """Writes metrics; raises ImportError where `prometheus_client` is missing.

    Parameters
    ----------
    now
        Returns what they are made of.
    about_process
        Whether to add memory, time and files of the process.
    """

    def __init__(self, now: Callable[[], Now], about_process: bool = True) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._registry = CollectorRegistry(auto_describe=False)  # its own: a program may run several nodes
        self._registry.register(_Collector(now))
        if about_process:
            ProcessCollector(namespace=PREFIX, registry=self._registry)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics and their type, in the form that the header Accept asks for."""
        from prometheus_client.exposition import choose_encoder

        try:
            encode, content_type = choose_encoder(accept)
            return encode(self._registry), content_type
        except (ValueError, TypeError):  # of a version or an escaping that nobody knows
            encode, content_type = choose_encoder("")
            return encode(self._registry), content_type


class _Collector:
    """What a registry asks for families."""

    def __init__(self, now: Callable[[], Now]) -> None:
        self._now = now

    def describe(self) -> list[Any]:
        """Return nothing: names are unique by the table, and need not be asked for now."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield a family for each metric that has a number now."""
        now = self._now()
        for metric in METRICS:
            family = _MAKE[metric.kind](metric, now)
            if family.samples:
                yield family


def _info(metric: Metric, now: Now) -> Any:
    from prometheus_client.core import InfoMetricFamily

    ((values, _),) = metric.samples(now)
    return InfoMetricFamily(PREFIX, metric.words, dict(zip(metric.labels, values, strict=True)))


def _numbers(metric: Metric, now: Now) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(f"{PREFIX}_{metric.name}", metric.words, labels=metric.labels)
    for values, number in metric.samples(now):
        if number is not None:
            family.add_metric(values, float(number))
    return family


def _durations(metric: Metric, now: Now) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    ends = [*map(str, DURATION_BUCKETS), "+Inf"]
    buckets = [*zip(ends, accumulate(now["runs"]["durations"]), strict=True)]
    return HistogramMetricFamily(f"{PREFIX}_{metric.name}", metric.words, buckets, now["runs"]["seconds"])


_MAKE = {"info": _info, "gauge": _numbers, "counter": _numbers, "histogram": _durations}
