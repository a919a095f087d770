"""Views for the tests: recordings that are moved by hand, servers on free ports, and clients that talk to them."""

import http.client
import json
import socket
import ssl
import time
from contextlib import contextmanager

from conformesh import Network
from conformesh.view.recording import Recording
from conformesh.view.server import ViewServer
from conformesh.view.trace import Column, Step, TraceHeading


def recording(devices=3, steps=0, name="by hand", **more):
    """A run of a cycle that has gone some steps."""
    found = Recording(TraceHeading.of(name, Network.cycle(devices), **more))
    for number in range(steps):
        found.add(step(number, devices))
    return found


def step(number, devices=3, **more):
    """One step, with a threshold for every device."""
    return Step(at=float(number), devices={"threshold": Column([number + 0.5] * devices)}, **more)


@contextmanager
def serving(recordings=(), **options):
    """A running view on a port that the system chooses."""
    with ViewServer(recordings, **{"port": 0, **options}) as server:
        yield server


def connect(server, tls=None, room=None):
    """A connection to a view, which waits long but not for ever; `room` is what it takes without being read."""
    link = socket.socket(socket.AF_INET6 if ":" in server.host else socket.AF_INET)
    if room is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    link.settimeout(20)
    link.connect(("::1" if ":" in server.host else "127.0.0.1", server.port))
    return link if tls is None else tls.wrap_socket(link)


def ask(server, path="/", method="GET", headers=(), tls=None):
    """One request: status, headers, body. A header of None is left out."""
    connection = http.client.HTTPConnection("x")
    connection.sock = connect(server, tls)
    given = {"Host": f"127.0.0.1:{server.port}", **dict(headers)}
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in given.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def talk(server, raw, close=False):
    """Send raw bytes, and return all that comes back."""
    with connect(server) as link:
        pieces = []
        try:
            link.sendall(raw)
            if close:
                link.shutdown(socket.SHUT_WR)
            while piece := link.recv(65536):
                pieces.append(piece)
        except ConnectionError:
            pass
        return b"".join(pieces)


class Page:
    """Follows the events of a view, as its page does."""

    def __init__(self, server, headers=(), room=None):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port)
        self.connection.sock = connect(server, room=room)
        self.connection.request("GET", "/events", headers=dict(headers))
        self.answer = self.connection.getresponse()
        self.runs = {}

    def next(self):
        """The name and the data of the next event."""
        name, late = "", time.monotonic() + 60
        while True:
            assert time.monotonic() < late, "nothing is told any more"
            line = self.answer.readline()
            if not line:
                raise EOFError("the view has ended")
            word, _, text = line.decode().rstrip("\n").partition(": ")
            if word == "event":
                name = text
            elif word == "data":
                return name, json.loads(text)

    def follow(self, until):
        """Take events until a condition holds of the runs: lists of steps, and how each ended."""
        late = time.monotonic() + 60
        while not until(self.runs):
            assert time.monotonic() < late, "waited in vain"
            name, data = self.next()
            number = data["run"]
            if name == "run":
                self.runs[number] = {"heading": data["heading"], "steps": [], "result": None}
            elif name == "steps":
                assert data["sent"] > 1e9
                self.runs[number]["steps"] += data["steps"]
                self.runs[number]["place"] = data["from"] + len(data["steps"])
            else:
                self.runs[number]["result"] = data["result"]
        return self.runs

    def close(self):
        self.answer.close()
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def has_steps(many, run=0):
    """A condition: so many steps of a run have arrived."""
    return lambda runs: run in runs and len(runs[run]["steps"]) >= many


def has_come_to(place, run=0):
    """A condition: a page is at this place of a run, whether it was told every step or not."""
    return lambda runs: run in runs and runs[run].get("place", 0) >= place


def trusting(cert):
    """What a client needs that trusts one certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cert)
    return context
