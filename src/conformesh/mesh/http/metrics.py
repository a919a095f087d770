"""A node's state in the text format that Prometheus reads: https://prometheus.io/docs/instrumenting/exposition_formats/."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from conformesh._version import __version__
from conformesh.mesh.node.state import Phase, Trouble

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Samples = Iterable[tuple[Mapping[str, str], float | None]]
NO_LABELS: Mapping[str, str] = {}


def exposition(snapshot: Mapping[str, Any], healthy: bool) -> str:
    """Return the metrics of `NodeState.snapshot()`; what is not known yet is left out."""
    return "".join(_family(*family) for family in _families(snapshot, healthy))


def _families(now: Mapping[str, Any], healthy: bool) -> Iterable[tuple[str, str, str, Samples]]:
    sent, peers, found = now["sent"], now["neighbours"], now["certified"] or {}

    def own(value: float | None) -> Samples:
        return [(NO_LABELS, value)]

    def each(key: str) -> Samples:
        return [({"neighbour": name}, peer[key]) for name, peer in peers.items()]

    refusals = [
        ({"neighbour": name, "reason": reason}, count)
        for name, reasons in [*((n, p["refused"]) for n, p in peers.items()), ("", now["refused"])]
        for reason, count in reasons.items()
    ]
    threshold = found.get("threshold")
    yield "info", "gauge", "Which node this is.", [({"device": now["device"], "version": __version__}, 1)]
    yield (
        "phase",
        "gauge",
        "1 for the phase the node is in.",
        [({"phase": phase.value}, phase.value == now["phase"]) for phase in Phase],
    )
    yield "phase_seconds", "gauge", "Seconds in this phase.", own(now["seconds_in_phase"])
    yield "healthy", "gauge", "1 where a certified threshold is there and nothing is wrong.", own(healthy)
    yield (
        "trouble",
        "gauge",
        "1 while something of the device itself is wrong; /health says what.",
        [({"what": trouble.value}, trouble.value in now["troubles"]) for trouble in Trouble],
    )
    yield "roster", "gauge", "The number of the roster in force.", own(now["roster"]["number"])
    yield "run", "gauge", "The number of the current run.", own(now["run"])
    yield "round", "gauge", "The open round of the current run.", own(now["round"])
    yield "threshold", "gauge", "The certified threshold.", own(None if threshold is None else float(threshold))
    yield "alpha", "gauge", "The miscoverage level the threshold is for.", own(found.get("alpha"))
    yield "scores", "gauge", "Calibration scores behind the threshold, on all devices.", own(found.get("scores"))
    yield "devices", "gauge", "Devices that made the threshold.", own(found.get("devices"))
    yield "certified_timestamp_seconds", "gauge", "When the threshold was made.", own(found.get("made_seconds"))
    yield "frames_sent_total", "counter", "Frames sent, resent ones included.", own(sent["frames"])
    yield "bytes_sent_total", "counter", "Bytes sent, resent ones included.", own(sent["bytes"])
    yield "frames_resent_total", "counter", "Frames sent again.", own(sent["resent_frames"])
    yield (
        "neighbour_last_heard_seconds",
        "gauge",
        "Seconds since the neighbour was last heard.",
        each("last_heard_seconds_ago"),
    )
    yield "neighbour_round", "gauge", "The last round the neighbour was heard in.", each("round")
    yield "frames_received_total", "counter", "Frames received from the neighbour.", each("frames_received")
    yield "bytes_received_total", "counter", "Bytes received from the neighbour.", each("bytes_received")
    yield "frames_refused_total", "counter", "Frames refused, by reason; an empty neighbour is anybody.", refusals


def _family(name: str, kind: str, words: str, samples: Samples) -> str:
    lines = [f"conformesh_{name}{_labels(labels)} {_value(value)}\n" for labels, value in samples if value is not None]
    head = f"# HELP conformesh_{name} {words}\n# TYPE conformesh_{name} {kind}\n"
    return head + "".join(lines) if lines else ""


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _value(value: float) -> str:
    number = float(value)
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return str(int(number)) if number.is_integer() else repr(number)
