"""Traces: what was visible of runs, step by step. The page, reports and files all show this one document.

A run has a heading, which never changes (who talks to whom, and where to draw them), and steps. A step says what has
changed since the one before; so what is known at any moment follows from the steps up to it. In JSON infinity is the
word "inf", as everywhere, and None (null) means unknown.

``{"format": "conformesh-trace/1", "made": "2026-...", "runs": [{"heading": ..., "steps": [...], "result": ...}, ...]}``
"""

from __future__ import annotations

import gzip
import math
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from conformesh import __version__
from conformesh.files.atomic_writes import write_file
from conformesh.files.json_numbers import parse_json
from conformesh.files.schemas import validate
from conformesh.graph.layout import device_positions
from conformesh.graph.network import Network

TRACE_FORMAT = "conformesh-trace/1"
_MAX_DEVICES = 20_000  # devices that a page can draw
SPREAD_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # quantile levels over the devices, in `CoverageOfAll.spread`
MAX_TRACE_BYTES = 2**29  # bytes of a decompressed file: a small file must not fill the memory

FieldValue = float | int | str | None
Fact = tuple[str, str]

# Fields of a device in a step, and their names on the page, in its order. words.js has the same table.
FIELDS = {
    "health": "health",  # of a node: healthy, unhealthy, silent, unknown
    "phase": "state",  # starting, waiting for neighbours, calibrating, certified, failed, ...
    "threshold": "threshold",  # so far, or certified
    "certified": "certified threshold",  # of a node that learns online, whose threshold moves on from there
    "labels": "labels",  # that have come, online
    "misses": "misses",  # of these
    "lately": "covered lately",  # share of the last labels
    "within": "guaranteed within",  # how far from alpha the share of misses can be
    "alarm": "drift alarm",  # in words, once it was raised
    "kind": "guarantee",  # of its certificate
    "about": "about",  # whom the certificate is about, in words
    "run": "run",
    "round": "round",
    "heard": "devices heard",
    "known": "scores known",
    "roster": "roster",
    "sent": "bytes sent",  # in all
    "byzantine": "Byzantine",  # why it counts as one
    "problem": "problem",  # what is wrong, in words
}


class Column(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """New values of some devices, by row; without rows, of all of them."""

    values: list[FieldValue]
    rows: list[int] | None = None


class SentBits(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Devices that sent to all neighbours, by row (None: all), and the bits of each (one number: all the same)."""

    bits: list[int]
    rows: list[int] | None = None


class Flow(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Bytes along links: link 2 e goes from the first to the second end of edge e, 2 e + 1 back."""

    links: list[int]
    bytes: list[int]


class CoverageOfAll(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Coverage of all devices together that learn online.

    Attributes
    ----------
    alpha
        The share of misses that was asked for.
    labels, misses
        How many labels have come so far, and how many of their examples were missed.
    within
        Bounds on the coverage so far, whatever the scores; None if nothing is guaranteed.
    window, own
        Over how many of the last steps, or labels where time is in seconds, `lately` is taken: of all, and of a device.
    lately
        The share that was covered of the last labels; None where there were none.
    spread
        The least, the quartiles and the greatest of the devices' shares that were covered lately.
    """

    alpha: float
    labels: int
    misses: int
    window: int
    own: int
    within: tuple[float, float] | None = None
    lately: float | None = None
    spread: tuple[float, float, float, float, float] | None = None


class Step(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """What has changed.

    Attributes
    ----------
    at
        The number of the round, or of steps of streams, or seconds since the first step, as the heading's `unit` says.
    devices
        By field (`FIELDS`), what is new about devices.
    said, flow, lost
        Messages to neighbours; bytes along links; links (as in `Flow`) on which a message was lost.
    bracket
        Low and high end of the bracket of the threshold, and how many scores lie at or below each; None: unknown.
    everybody
        What all devices together have covered, where they learn online.
    log
        Row (-1: no device in particular), level and text.
    """

    at: float
    devices: dict[str, Column] = {}
    said: SentBits | None = None
    flow: Flow | None = None
    lost: list[int] = []
    bracket: tuple[FieldValue, FieldValue, int | None, int | None] | None = None
    everybody: CoverageOfAll | None = None
    log: list[tuple[int, str, str]] = []


class TraceHeading(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """What never changes in a run.

    Attributes
    ----------
    name, facts
        What it is, in a line, and in pairs of a name and words.
    unit
        What `Step.at` counts.
    devices, edges
        Names by row, and pairs of rows, each once.
    places
        Where to draw each device; x to the right, y up, in any scale.
    wraps
        Edges (numbers of them) that leave the picture on one side and come back on the other.
    rank, scores
        The required rank, and the number of scores; None if not known yet.
    private
        Whether single devices show only what their neighbours see anyway.
    live
        Whether more is to come.
    """

    name: str
    devices: list[str]
    edges: list[tuple[int, int]]
    places: list[tuple[float, float]]
    unit: Literal["rounds", "steps", "seconds"] = "rounds"
    wraps: list[int] = []
    facts: list[Fact] = []
    rank: int | None = None
    scores: int | None = None
    private: bool = False
    live: bool = False

    @classmethod
    def of(cls, name: str, network: Network, **more: Any) -> TraceHeading:
        """Return the heading of a run on a network."""
        require_drawable_network(network)
        pairs = np.column_stack([network.receivers, network.indices])
        pairs = pairs[pairs[:, 0] < pairs[:, 1]]
        where = device_positions(network, quick=True)
        around = network.name.startswith("torus") and np.abs(where[pairs[:, 0]] - where[pairs[:, 1]]).max(axis=1) > 1.5
        return cls(
            name=name,
            devices=[*network.ids],
            edges=[(int(a), int(b)) for a, b in pairs],
            places=[(float(x), float(y)) for x, y in np.round(where, 4)],
            wraps=np.flatnonzero(around).tolist(),
            **more,
        )


def round_bound_up(bound: float) -> float:
    """Return a bound rounded up to four decimals: rounding down would claim too much."""
    return math.ceil(1e4 * bound - 1e-9) / 1e4


def require_drawable_network(network: Network) -> None:
    """Raise an error for a network that is too large to draw."""
    if network.devices > _MAX_DEVICES:
        raise ValueError(
            f"a view shows at most {_MAX_DEVICES:,} devices, and {network.name} has {network.devices:,}; look at a "
            "smaller network, or at the result alone"
        )


class TracedRun(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One run: its heading, its steps, and its result as pairs of a name and a text."""

    heading: TraceHeading
    steps: list[Step] = []
    result: list[Fact] | None = None


class Trace(Struct, forbid_unknown_fields=True):
    """Runs that are shown side by side."""

    runs: list[TracedRun]
    format: str = TRACE_FORMAT
    made: str = ""
    version: str = __version__

    @classmethod
    def of(cls, runs: Iterable[TracedRun]) -> Trace:
        """Return a trace that was made now."""
        return cls([*runs], made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

    def to_json(self) -> bytes:
        """Return the document."""
        return msgspec.json.encode(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the document, packed where the name ends in .gz."""
        target, body = Path(path), self.to_json()
        write_file(target, gzip.compress(body, 6, mtime=0) if target.suffix == ".gz" else body)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a document, and check that it makes sense."""
        where = os.fspath(path)
        raw = parse_json(_unpacked(Path(path).read_bytes(), where), where)
        got = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
        if got != TRACE_FORMAT:
            raise ValueError(
                f"{where}: needed a trace of the format {TRACE_FORMAT}, got {got!r}; write one with --trace"
            )
        found = validate(raw, cls, where)
        for run in found.runs:
            _check_run(run, where)
        return found

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a page that shows the trace and needs no server, no other file and no network."""
        from conformesh.view.report import write_trace_report

        return write_trace_report(self, path)


def _unpacked(data: bytes, where: str) -> bytes:
    """Return what is in a file, packed or not, if it is not too large."""
    if data[:2] == b"\x1f\x8b":
        unpacking = zlib.decompressobj(wbits=31)
        try:
            data = unpacking.decompress(data, MAX_TRACE_BYTES + 1)
        except zlib.error as problem:
            raise ValueError(f"{where}: needed a packed trace, but it does not unpack ({problem})") from None
    if len(data) > MAX_TRACE_BYTES:
        raise ValueError(f"{where}: a trace may have {MAX_TRACE_BYTES:,} bytes, this has more")
    return data


def _check_run(run: TracedRun, where: str) -> None:
    """Raise an error for rows and links that do not exist, which the page could not draw."""
    devices, edges = len(run.heading.devices), len(run.heading.edges)
    if devices > _MAX_DEVICES:
        raise ValueError(f"{where}: a view shows at most {_MAX_DEVICES:,} devices, got {devices:,}")
    if len(run.heading.places) != devices:
        raise ValueError(f"{where}: needed a place for each of {devices} devices, got {len(run.heading.places)}")
    _check_range([row for edge in run.heading.edges for row in edge], devices, f"{where}: an edge")
    _check_range(run.heading.wraps, edges, f"{where}: an edge around")
    before = -math.inf
    for step in run.steps:
        if not before <= step.at < math.inf:
            raise ValueError(f"{where}: steps must go forward in time, got {step.at} after {before}")
        before = step.at
        for name, column in step.devices.items():
            _check_range(column.rows or (), devices, f"{where}: {name} at {step.at:g}")
            _check_length(column.values, column.rows, devices, f"{where}: {name} at {step.at:g}")
        if step.said is not None:
            _check_range(step.said.rows or (), devices, f"{where}: a speaker at {step.at:g}")
            if len(step.said.bits) != 1:
                _check_length(step.said.bits, step.said.rows, devices, f"{where}: bits at {step.at:g}")
        if step.flow is not None:
            _check_range(step.flow.links, 2 * edges, f"{where}: a link at {step.at:g}")
            _check_length(step.flow.bytes, step.flow.links, 0, f"{where}: bytes at {step.at:g}")
        _check_range(step.lost, 2 * edges, f"{where}: a lost message at {step.at:g}")
        _check_range([row + 1 for row, _, _ in step.log], devices + 1, f"{where}: a record at {step.at:g}")


def _check_range(rows: Sequence[int], many: int, what: str) -> None:
    if rows and not 0 <= min(rows) <= max(rows) < many:
        raise ValueError(f"{what}: needed a number from 0 to {many - 1}, got {min(rows)} to {max(rows)}")


def _check_length(values: Sequence[Any], rows: Sequence[int] | None, many: int, what: str) -> None:
    needed = many if rows is None else len(rows)
    if len(values) != needed:
        raise ValueError(f"{what}: needed {needed} values, got {len(values)}")
