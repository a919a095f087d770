"""Nodes for the tests of the local service: a calibration, a state with a clock moved by hand, a short folder."""

import http.client
import json
import shutil
import socket
import tempfile
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np

from conformesh import Certificate, Cost
from conformesh.guarantee import Guarantee
from conformesh.mesh.http.replies import NodeInterface
from conformesh.mesh.http.server import Service, ServiceLimits
from conformesh.mesh.node.state import NodeState
from conformesh.results.result import Answer, Result
from conformesh.scores import LAC

JSON = {"Content-Type": "application/json"}
DEVICES = ("a", "b", "c")


def calibration(threshold=0.75, score=LAC(), *, method="e-dcp", alpha="0.1", **changes):  # noqa: B008 - frozen
    """Return a result; `changes` are fields of it or of its answer."""
    bracket = (threshold - 0.05, threshold + 0.05) if np.isfinite(threshold) else None
    devices = changes.get("device_ids", DEVICES)
    level = Fraction(alpha)
    one = {"thresholds": np.full(len(devices), threshold, dtype=float), "examples": 60, "bracket": bracket}
    one |= {"certificate": Certificate("counted", 57, 57)}
    one |= {name: changes.pop(name) for name in [*changes] if name in Answer.__struct_fields__}
    facts = {
        "guarantee": Guarantee(alphas=(level,)),
        "answers": (Answer(part=(), alpha=level, **one),),
        "method": method,
        "device_ids": DEVICES,
        "cost": Cost(12, np.full(3, 24.0), np.full(3, 1536.0)),
        "score": score,
    }
    return Result(**{**facts, **changes})


def threshold_in(made):
    """Return the threshold in the JSON of a result, as it is written there."""
    return made["answers"][0]["thresholds"][0]


class Clock:
    """Two clocks that move when told."""

    def __init__(self):
        self.now, self.wall = 100.0, 1_700_000_000.0

    def pass_by(self, seconds):
        self.now += seconds
        self.wall += seconds


def state(certified=True, score=LAC(), threshold=0.75, clock=None):  # noqa: B008
    clock = clock or Clock()
    found = NodeState("a", ("b", "c"), clock=lambda: clock.now, wall=lambda: clock.wall)
    found.begin_run(3)
    if certified:
        found.certify(calibration(threshold, score))
    return found


@contextmanager
def short_folder():
    """A folder whose path leaves room for a Unix socket's name, whatever the tests' own temporary folder is."""
    folder = Path(tempfile.mkdtemp(prefix="cm", dir="/tmp" if Path("/tmp").is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def serving(node=None, where="unix", **options):
    """A running service on a socket of its own, or on a port the system chooses."""
    with short_folder() as folder:
        address = folder if where == "unix" else "127.0.0.1:0"
        parts = {
            name: options.pop(name)
            for name in ("recalibrate", "accept_roster", "heartbeat", "online", "read_rows")
            if name in options
        }
        traced, limits = options.pop("trace_reply", None), ServiceLimits(**options)
        interface = NodeInterface(node or state(), **parts)
        with Service(interface, address, trace_reply=traced, limits=limits) as service:
            yield service


def talk(service, raw, *, close=False):
    """Send raw bytes, and return everything that comes back until the service closes."""
    with service.address.new_socket() as connection:
        connection.settimeout(10)
        connection.connect(service.address.target())
        connection.sendall(raw)
        if close:
            connection.shutdown(socket.SHUT_WR)
        pieces = []
        try:
            while piece := connection.recv(65536):
                pieces.append(piece)
        except ConnectionResetError:
            pass
        return b"".join(pieces)


def ask(service, method, path, body=None, headers=None):
    """One request over whatever the service listens on: status, headers, body."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = service.address.new_socket()
    connection.sock.settimeout(10)
    connection.sock.connect(service.address.target())
    try:
        connection.request(method, path, body, headers or ({} if body is None else JSON))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def numbers(text):
    """The samples of an exposition: name and labels as they are written, and the number."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def asked(service, method, path, body=None, headers=None):
    """The same, as status and JSON."""
    status, _, text = ask(service, method, path, body, headers)
    return status, json.loads(text)
