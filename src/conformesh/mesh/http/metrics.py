"""The status of a node as metrics, in the formats that Prometheus reads; `prometheus_client` writes them.

The node counts whether anybody asks or not: the library is loaded when metrics are first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple, get_args

from conformesh import __version__
from conformesh.mesh.node.heartbeat_table import HeartbeatCounts
from conformesh.mesh.node.status import (
    DURATION_BUCKETS,
    AlarmScope,
    CertifiedStatus,
    DeviceHealth,
    JsonNumber,
    MeshStatus,
    NeighbourStatus,
    NodeStatus,
    OnlineStatus,
    Phase,
    Trouble,
)

PREFIX = "conformesh"
Sample = tuple[tuple[str, ...], JsonNumber | None]  # values of the labels, and the number; None is left out


@dataclass(frozen=True)
class Snapshot:
    """What metrics are made of, taken at one moment; None for a part that the node does not have."""

    status: NodeStatus
    healthy: bool
    mesh: MeshStatus | None = None
    heartbeats: HeartbeatCounts | None = None
    online: OnlineStatus | None = None


class Metric(NamedTuple):
    """One family: its name without the prefix, its kind, its help text, its labels, and its samples in a snapshot."""

    name: str
    kind: Literal["info", "gauge", "counter", "histogram"]
    words: str
    labels: tuple[str, ...]
    samples: Callable[[Snapshot], Iterable[Sample]]

    @property
    def exposed(self) -> str:
        """The name that Prometheus shows."""
        return f"{PREFIX}_{self.name}" + ("_total" if self.kind == "counter" else "")


def _single(read: Callable[[Snapshot], JsonNumber | None]) -> Callable[[Snapshot], Iterable[Sample]]:
    """Return the samples of a metric without labels."""
    return lambda now: [((), read(now))]


def _per_word(read: Callable[[Snapshot], Mapping[str, JsonNumber]]) -> Callable[[Snapshot], Iterable[Sample]]:
    """Return the samples of a metric with one label, from a number for each of its values."""
    return lambda now: [((word,), number) for word, number in read(now).items()]


def _per_neighbour(read: Callable[[NeighbourStatus], float | None]) -> Callable[[Snapshot], Iterable[Sample]]:
    return lambda now: [((name,), read(neighbour)) for name, neighbour in now.status.neighbours.items()]


def _certified(read: Callable[[CertifiedStatus], JsonNumber | None]) -> Callable[[Snapshot], Iterable[Sample]]:
    return _single(lambda now: None if now.status.certified is None else read(now.status.certified))


def _heartbeats(read: Callable[[HeartbeatCounts], float]) -> Callable[[Snapshot], Iterable[Sample]]:
    return _single(lambda now: None if now.heartbeats is None else read(now.heartbeats))


def _online(read: Callable[[OnlineStatus], JsonNumber]) -> Callable[[Snapshot], Iterable[Sample]]:
    return _single(lambda now: None if now.online is None else read(now.online))


def _refused_frames(now: Snapshot) -> Iterable[Sample]:
    # Frames that belong to no neighbour have an empty label.
    by_neighbour = {name: one.refused for name, one in now.status.neighbours.items()} | {"": now.status.refused}
    return [((name, reason), count) for name, reasons in by_neighbour.items() for reason, count in reasons.items()]


def _ended_runs(now: Snapshot) -> Mapping[str, JsonNumber]:
    runs = now.status.runs
    return {"certified": runs.certified, "failed": sum(runs.failed.values())}


def _devices_by_health(now: Snapshot) -> Mapping[str, JsonNumber]:
    if now.mesh is None:
        return {}
    # A health that no device has is 0 and not missing: an alert on a missing series would never fire.
    counts = dict.fromkeys(get_args(DeviceHealth), 0)
    for device in now.mesh.devices:
        counts[device.health] += 1
    return counts


def _reported_devices(now: Snapshot) -> int | None:
    return None if now.status.gathering is None else len(now.status.gathering.reported)


def _alarm_evidence(now: Snapshot) -> Mapping[str, JsonNumber]:
    alarm = None if now.online is None else now.online.alarm
    return {} if alarm is None else {"device": alarm.evidence.device, "fleet": alarm.evidence.fleet}


def _raised_alarms(now: Snapshot) -> Mapping[str, JsonNumber]:
    alarm = None if now.online is None else now.online.alarm
    return {} if alarm is None else {scope: scope in alarm.raised.raised() for scope in get_args(AlarmScope)}


def _calibration_coverage(now: Snapshot) -> Mapping[str, JsonNumber]:
    found = now.status.calibration_coverage
    return {f"{one.alpha:g}": one.coverage for one in found if one.coverage is not None}


def _coverage(field: str) -> Callable[[Snapshot], Mapping[str, JsonNumber]]:
    return lambda now: {f"{one.alpha:g}": getattr(one, field) for one in now.status.coverage}


METRICS: tuple[Metric, ...] = (
    Metric(
        "info",
        "info",
        "Which node this is.",
        ("device", "version"),
        lambda now: [((now.status.device, __version__), 1)],
    ),
    Metric(
        "phase",
        "gauge",
        "1 for the phase the node is in.",
        ("phase",),
        _per_word(lambda now: {phase.value: phase is now.status.phase for phase in Phase}),
    ),
    Metric("phase_seconds", "gauge", "Seconds in this phase.", (), _single(lambda now: now.status.seconds_in_phase)),
    Metric(
        "healthy",
        "gauge",
        "1 with a certified threshold, no trouble, and the latest requested run done or within its patience.",
        (),
        _single(lambda now: now.healthy),
    ),
    Metric(
        "run_requested_seconds",
        "gauge",
        "Seconds since a run was requested that has not succeeded yet; none where there is none.",
        (),
        _single(lambda now: None if now.status.request is None else now.status.request.seconds_ago),
    ),
    Metric(
        "trouble",
        "gauge",
        "1 while something of the device itself is wrong; /health says what.",
        ("what",),
        _per_word(lambda now: {trouble.value: trouble in now.status.troubles for trouble in Trouble}),
    ),
    Metric(
        "scores_unreadable",
        "gauge",
        "1 while the file of scores, as it is now, cannot be read.",
        (),
        _single(lambda now: Trouble.SCORES in now.status.troubles),
    ),
    Metric(
        "scores_read_failures",
        "counter",
        "Times that the file of scores could not be read.",
        (),
        _single(lambda now: now.status.scores_read_failures),
    ),
    Metric(
        "certificate_expiry_timestamp_seconds",
        "gauge",
        "When the first of certificate and authority ends; none where links have no certificates.",
        (),
        _single(lambda now: now.status.certificate_expires),
    ),
    Metric("roster", "gauge", "The number of the roster in force.", (), _single(lambda now: now.status.roster.number)),
    Metric("run", "gauge", "The number of the current run.", (), _single(lambda now: now.status.run)),
    Metric("round", "gauge", "The open round of the current run.", (), _single(lambda now: now.status.round)),
    Metric(
        "runs",
        "counter",
        "Runs that ended here since the start, with a threshold or without.",
        ("outcome",),
        _per_word(_ended_runs),
    ),
    Metric(
        "run_failures",
        "counter",
        "Runs that failed, by reason.",
        ("reason",),
        _per_word(lambda now: now.status.runs.failed),
    ),
    Metric(
        "run_duration_seconds",
        "histogram",
        "How long runs took that ended with a threshold.",
        (),
        lambda now: [],  # a histogram is made of all its numbers at once
    ),
    Metric(
        "run_rounds",
        "gauge",
        "Rounds of the last run that ended with a threshold.",
        (),
        _single(lambda now: now.status.runs.rounds),
    ),
    Metric("threshold", "gauge", "The certified threshold.", (), _certified(lambda certified: certified.threshold)),
    Metric(
        "alpha",
        "gauge",
        "The miscoverage level the threshold is for.",
        (),
        _certified(lambda certified: certified.alpha),
    ),
    Metric(
        "scores",
        "gauge",
        "Calibration scores behind the threshold, on all devices.",
        (),
        _certified(lambda certified: certified.scores),
    ),
    Metric("devices", "gauge", "Devices that made the threshold.", (), _certified(lambda certified: certified.devices)),
    Metric(
        "certified_timestamp_seconds",
        "gauge",
        "When the threshold was made.",
        (),
        _certified(lambda certified: certified.made_seconds),
    ),
    Metric(
        "calibration_coverage",
        "gauge",
        "With adapted scores: the share of this device's own calibration rows that are covered.",
        ("alpha",),
        _per_word(_calibration_coverage),
    ),
    *(
        Metric(name, "gauge", words, ("alpha",), _per_word(_coverage(field)))
        for name, field, words in (
            ("coverage", "coverage", "Share of labelled examples whose sets cover, on this device since its result."),
            ("coverage_low", "low", "Lower end of the exact 95 % interval of conformesh_coverage, for one look."),
            ("coverage_high", "high", "Upper end of the exact 95 % interval of conformesh_coverage, for one look."),
            ("coverage_rows", "rows", "Labelled examples that were sent to /evaluate since the result."),
            ("set_size", "mean_size", "Mean number of labels in their sets, or mean width of their intervals."),
        )
    ),
    Metric(
        "heard_devices",
        "gauge",
        "Without rounds: devices that were heard in this run, itself among them.",
        (),
        _single(_reported_devices),
    ),
    Metric(
        "mesh_devices",
        "gauge",
        "Devices of the mesh by what was last heard of them, itself among them.",
        ("health",),
        _per_word(_devices_by_health),
    ),
    Metric(
        "frames_sent", "counter", "Frames sent, resent ones included.", (), _single(lambda now: now.status.sent.frames)
    ),
    Metric(
        "bytes_sent", "counter", "Bytes sent, resent ones included.", (), _single(lambda now: now.status.sent.bytes)
    ),
    Metric("frames_resent", "counter", "Frames sent again.", (), _single(lambda now: now.status.sent.resent_frames)),
    Metric(
        "neighbour_last_heard_seconds",
        "gauge",
        "Seconds since the neighbour was last heard.",
        ("neighbour",),
        _per_neighbour(lambda one: one.last_heard_seconds_ago),
    ),
    Metric(
        "link_up",
        "gauge",
        "0 where nothing has arrived from the neighbour for too long.",
        ("neighbour",),
        _per_neighbour(lambda one: one.up),
    ),
    Metric(
        "neighbour_round",
        "gauge",
        "The last round the neighbour was heard in.",
        ("neighbour",),
        _per_neighbour(lambda one: one.round),
    ),
    Metric(
        "frames_received",
        "counter",
        "Frames received from the neighbour.",
        ("neighbour",),
        _per_neighbour(lambda one: one.frames_received),
    ),
    Metric(
        "bytes_received",
        "counter",
        "Bytes received from the neighbour.",
        ("neighbour",),
        _per_neighbour(lambda one: one.bytes_received),
    ),
    Metric(
        "frames_refused",
        "counter",
        "Frames refused, by reason; an empty neighbour is anybody.",
        ("neighbour", "reason"),
        _refused_frames,
    ),
    Metric(
        "heartbeats_sent",
        "counter",
        "Heartbeats sent, which tell others the status of this node.",
        (),
        _heartbeats(lambda counts: counts.sent),
    ),
    Metric(
        "heartbeat_bytes_sent",
        "counter",
        "Bytes of heartbeats sent, to each neighbour.",
        (),
        _heartbeats(lambda counts: counts.sent_bytes),
    ),
    Metric(
        "heartbeats_received",
        "counter",
        "Heartbeats received from neighbours.",
        (),
        _heartbeats(lambda counts: counts.received),
    ),
    Metric(
        "heartbeat_bytes_received",
        "counter",
        "Bytes of heartbeats received.",
        (),
        _heartbeats(lambda counts: counts.received_bytes),
    ),
    Metric(
        "heartbeats_refused",
        "counter",
        "Heartbeats refused, by reason.",
        ("reason",),
        _per_word(lambda now: {} if now.heartbeats is None else now.heartbeats.refused),
    ),
    Metric(
        "online_steps",
        "counter",
        "Examples whose labels this device has seen.",
        (),
        _online(lambda online: online.device.steps),
    ),
    Metric(
        "online_misses",
        "counter",
        "Of these, with a score above the threshold.",
        (),
        _online(lambda online: online.device.misses),
    ),
    Metric(
        "online_threshold", "gauge", "The threshold for the next example.", (), _online(lambda online: online.threshold)
    ),
    Metric(
        "online_bound",
        "gauge",
        "How far from alpha the rate of misses of this device can be at most.",
        (),
        _online(lambda online: online.device.within),
    ),
    Metric(
        "online_evidence",
        "gauge",
        "The largest evidence of drift so far, of this device and of all; none without a drift alarm.",
        ("of",),
        _per_word(_alarm_evidence),
    ),
    Metric(
        "online_alarm",
        "gauge",
        "1 where the drift alarm is raised: the evidence has reached 1 / level.",
        ("of",),
        _per_word(_raised_alarms),
    ),
)


class Exposition:
    """Writes metrics; raises ImportError if `prometheus_client` is missing.

    Parameters
    ----------
    take_snapshot
        Returns what they are made of.
    about_process
        Whether to add memory, time and files of the process.
    """

    def __init__(self, take_snapshot: Callable[[], Snapshot], about_process: bool = True) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._registry = CollectorRegistry(auto_describe=False)  # its own: a program may run several nodes
        self._registry.register(_Collector(take_snapshot))
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

    def __init__(self, take_snapshot: Callable[[], Snapshot]) -> None:
        self._take_snapshot = take_snapshot

    def describe(self) -> list[Any]:
        """Return nothing: names are unique by the table, and need not be asked for now."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield a family for each metric that has a number now."""
        now = self._take_snapshot()
        for metric in METRICS:
            family = _MAKE[metric.kind](metric, now)
            if family.samples:
                yield family


def _info(metric: Metric, now: Snapshot) -> Any:
    from prometheus_client.core import InfoMetricFamily

    ((values, _),) = metric.samples(now)
    return InfoMetricFamily(PREFIX, metric.words, dict(zip(metric.labels, values, strict=True)))


def _numbers(metric: Metric, now: Snapshot) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(f"{PREFIX}_{metric.name}", metric.words, labels=metric.labels)
    for values, number in metric.samples(now):
        if number is not None:
            family.add_metric(values, float(number))
    return family


def _durations(metric: Metric, now: Snapshot) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    ends = [*map(str, DURATION_BUCKETS), "+Inf"]
    buckets = [*zip(ends, accumulate(now.status.runs.durations), strict=True)]
    return HistogramMetricFamily(f"{PREFIX}_{metric.name}", metric.words, buckets, now.status.runs.seconds)


_MAKE = {"info": _info, "gauge": _numbers, "counter": _numbers, "histogram": _durations}
