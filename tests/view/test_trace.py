"""Traces on disk: written and read again, and refused in words where they make no sense."""

import gzip
import json

import numpy as np
import pytest

from conformesh import Network, calibrate
from conformesh.view import Recorder, Trace
from conformesh.view.trace import TRACE_FORMAT, TraceHeading


@pytest.fixture(scope="module")
def trace():
    recorder, rng = Recorder(), np.random.default_rng(0)
    held = [rng.random(30) for _ in range(6)]
    for network in (Network.chain(6), Network.torus(3, 2)):
        recorder.finish(calibrate(held, network, 0.1, observer=recorder))
    return recorder.trace()


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_what_is_written_is_read(trace, tmp_path, name):
    path = trace.save(tmp_path / name)
    assert Trace.load(path) == trace
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


def test_the_same_trace_is_the_same_file(trace, tmp_path):
    assert trace.save(tmp_path / "a.gz").read_bytes() == trace.save(tmp_path / "b.gz").read_bytes()


def changed(trace, where, value):
    raw = json.loads(trace.to_json())
    place = raw
    *path, last = where
    for key in path:
        place = place[key]
    place[last] = value
    return raw


STEP = ("runs", 0, "steps", 1)
BAD = [
    (("format",), "conformesh-trace/9", "needed a trace of the format"),
    (("runs",), 3, "runs must be"),
    (("runs", 0, "heading", "colour"), "red", "colour"),
    (("runs", 0, "heading", "places"), [[0, 0]], "needed a place for each of 6 devices, got 1"),
    (("runs", 0, "heading", "edges"), [[0, 6]], "an edge: needed a number from 0 to 5, got 0 to 6"),
    (("runs", 0, "heading", "wraps"), [99], "an edge around"),
    ((*STEP, "at"), "soon", "at must be"),
    ((*STEP, "at"), -1, "steps must go forward"),
    ((*STEP, "devices"), {"heard": {"values": [1], "rows": [6]}}, "heard at 1: needed a number from 0 to 5"),
    ((*STEP, "devices"), {"heard": {"values": [1, 2], "rows": [0]}}, "needed 1 values, got 2"),
    ((*STEP, "devices"), {"heard": {"values": [1]}}, "needed 6 values, got 1"),
    ((*STEP, "devices"), {"heard": {"values": [{}] * 6}}, "must be"),
    ((*STEP, "said"), {"bits": [1, 2]}, "bits at 1: needed 6 values"),
    ((*STEP, "said"), {"bits": [1], "rows": [-1]}, "a speaker at 1"),
    ((*STEP, "flow"), {"links": [10], "bytes": [1]}, "a link at 1: needed a number from 0 to 9"),
    ((*STEP, "flow"), {"links": [1], "bytes": []}, "needed 1 values, got 0"),
    ((*STEP, "lost"), [10], "a lost message at 1"),
    ((*STEP, "log"), [[6, "info", "hello"]], "a record at 1"),
]


@pytest.mark.parametrize(("where", "value", "words"), BAD, ids=lambda value: str(value)[:40])
def test_a_trace_that_makes_no_sense_is_refused(trace, tmp_path, where, value, words):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(changed(trace, where, value)))
    with pytest.raises(ValueError, match=words) as error:
        Trace.load(path)
    assert "bad.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "ends too early"),
        (b"[]", "got 'list'"),
        (b"\x1f\x8bnonsense", "does not unpack"),
        (gzip.compress(b"{}", mtime=0), "got None"),
        (b'{"format": "conformesh-result/3"}', "write one with --trace"),
        (b"\xff\xfe", "needed JSON"),
    ],
)
def test_other_files_are_refused(tmp_path, body, words):
    path = tmp_path / "other.json"
    path.write_bytes(body)
    with pytest.raises(ValueError, match=words):
        Trace.load(path)


def test_a_file_that_unpacks_without_end_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("conformesh.view.trace.MAX_TRACE_BYTES", 10_000)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 10**7))
    with pytest.raises(ValueError, match="may have 10,000 bytes"):
        Trace.load(path)


def test_edges_around_a_torus_are_marked():
    heading = TraceHeading.of("a", Network.torus(5, 4))
    assert len(heading.edges) == 40
    assert len(heading.wraps) == 9
    assert not TraceHeading.of("a", Network.cycle(5)).wraps
    assert TRACE_FORMAT in Trace.of([]).format
