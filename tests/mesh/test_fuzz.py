"""Thousands of malformed requests to every route: each is answered or dropped, and health is at hand throughout."""

import contextlib
import logging
import random
import re
import time

import pytest

from conformesh.mesh.http.paths import MONITORING, VERBS
from conformesh.mesh.node.heartbeat import Heartbeat
from conformesh.mesh.node.online import OnlineLearning
from conformesh.mesh.node.state import NodeState

from .meshes import config
from .nodes import ask, calibration, serving, short_folder, talk
from .test_requests import silent_and_slow

LEARNING = {"learning": 0.1, "local": 0.05, "bound": 1.0}
VERSIONS = ("HTTP/1.1", "HTTP/9.9")
PLACES = (
    "GET",
    "POST",
    "/mesh",
    "/openapi.json",
    "/metrics",
    *VERSIONS,
    "Host:",
    "Accept:",
    "Content-Length:",
    "Expect:",
)
BETWEEN, ENDS = ("", " ", ":", ": "), ("\n", "\r", "\r\n")
VALUES = ("0", "-1", "9" * 30, "example.org", "application/json", "text/plain; version=1.0.0", "%s%n", "\x00", "é")
ANSWER = re.compile(rb"HTTP/1\.1 \d{3} [A-Za-z -]+\r\n")


def node():
    """a node with heartbeats, so that every route has something to say."""
    about = config()
    state = NodeState(about.name, ["device-00", "device-02"])
    state.certify(calibration())
    return state, Heartbeat(about, state)


def mutated(rng):
    """A request that was good, changed in a few places; or something that never was one."""
    path, verb = rng.choice([*VERBS.items()])
    body = rng.choice([b"", b'{"probabilities": [[1.0, 0.0]]}', b'{"score": 0.5}', b"{", b"[" * 500, rng.randbytes(40)])
    head = f"{verb} {path}{rng.choice(['', '?', '?a=b', '/', '/..', '%00'])} HTTP/1.1\r\nHost: localhost\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body) + rng.choice([0, 0, 0, 1, -1, 10])}\r\n"
    for _ in range(rng.randrange(3)):
        head += "".join(map(rng.choice, (PLACES, BETWEEN, VALUES, ENDS)))
    raw = bytearray(head.encode("utf-8") + rng.choice([b"\r\n", b"\r\n", b"\n", b""]) + body)
    for _ in range(rng.choice([0, 1, 1, 3, 10])):
        place = rng.randrange(len(raw))
        raw[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
        if not raw:
            return rng.randbytes(20)
    return bytes(raw)


def hammer(count, seed, caplog):
    rng = random.Random(seed)
    state, heartbeat = node()
    more = {"heartbeat": heartbeat, "recalibrate": lambda: "started", "accept_roster": lambda body: "taken"}
    with (
        caplog.at_level(logging.WARNING, "conformesh.node"),
        short_folder() as folder,
        serving(state, online=OnlineLearning(config(folder=folder, online=LEARNING), state), **more) as service,
    ):
        slowest = 0.0
        for number in range(count):
            said = talk(service, mutated(rng), close=True)
            assert not said or ANSWER.match(said), said[:200]
            if number % 100 == 0:
                begun = time.monotonic()
                assert ask(service, "GET", "/health")[0] == 200
                slowest = max(slowest, time.monotonic() - begun)
        for path, verb in VERBS.items():
            if verb == "GET":
                assert ask(service, "GET", path)[0] == 200
    assert "unexpectedly" not in caplog.text
    assert slowest < 5.0


def test_malformed_requests_are_answered_or_dropped(caplog):
    hammer(2000, 15, caplog)


@pytest.mark.slow
def test_ten_thousand_of_them(caplog):
    hammer(10_000, 16, caplog)


@pytest.mark.parametrize("path", ["/mesh", "/openapi.json", "/status"])
def test_silent_and_slow_programs_keep_no_route_waiting(path):
    """500 connections that say nothing or drip; of a few answers the fastest, lest a busy machine decides."""
    state, heartbeat = node()
    with serving(state, heartbeat=heartbeat) as service, contextlib.ExitStack() as stack:
        silent_and_slow(service, stack, 400, 100)
        seconds, until = [], time.monotonic() + 10.0
        if path not in MONITORING:  # which has a reserve; all else has a place once others were silent for a second
            while ask(service, "GET", path)[0] == 503:
                assert time.monotonic() < until
                time.sleep(0.1)
        for _ in range(5):
            begun = time.monotonic()
            assert ask(service, "GET", path)[0] == 200
            seconds.append(time.monotonic() - begun)
        assert min(seconds) < 1.0
