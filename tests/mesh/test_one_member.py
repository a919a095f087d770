"""What one member can make a node spend, over real links: part of the table in docs/networks.md."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformesh import Network
from conformesh.mesh import link
from conformesh.mesh.config.device_toml import read_device
from conformesh.peer import frames
from conformesh.peer.frames import HELLO, LARGEST_FRAME_BODY, LARGEST_WORDS, Frame, FrameError
from conformesh.peer.json_bodies import Hello
from tests.mesh.real import make_mesh, wait_for

zenoh = pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")

MB = 10**6


class Payload:
    """What Zenoh hands over; it counts how often it was copied."""

    def __init__(self, data):
        self.data, self.copies = data, 0

    def __len__(self):
        return len(self.data)

    def to_bytes(self):
        self.copies += 1
        return self.data


def test_what_does_not_fit_is_dropped_before_it_is_copied_and_others_are_not_affected():
    inbox = link._Inbox(1000)
    small, large = Payload(b"x" * 100), Payload(b"x" * 1000)
    assert (inbox.put(1, large), large.copies) == (b"", 0)
    assert [bool(inbox.put(1, small)) for _ in range(4)] == [True, True, False, False]
    assert inbox.put(2, small) == small.data
    assert [(sender, data) for sender, data, _ in inbox.pop_all()] == [(1, small.data)] * 2 + [(2, small.data)]
    assert inbox.put(1, small) == small.data


def test_many_small_messages_fill_the_room_too():
    """Each message costs memory beside its bytes: of empty ones there could be millions."""
    inbox = link._Inbox(10_000)
    for _ in range(1000):
        inbox.put(1, Payload(b""))
    assert len(inbox) < 50


def memory(pid, what):
    """Return the memory of a process in MB, now (VmRSS) or at its highest (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) * 1024 / MB


@contextmanager
def attacked(root):
    """A node that waits for its neighbour, and a session with that neighbour's certificate, which is in our hands."""
    folders, _ = make_mesh(root / "mesh", Network.chain(2))
    config = read_device(folders[1])
    with (root / "log").open("wb") as log:
        node = subprocess.Popen([sys.executable, "-m", "conformesh", "node", str(folders[0])], stderr=log)
        session = zenoh.open(link._zenoh_config(zenoh, config))
        try:
            transport = link.Transport(session, config)
            wait_for(lambda: [*transport.receive(0.1)])  # it greets: the link is up
            yield node, session, link._keys(config, config.name, "device-00")[1]
        finally:
            session.close()
            node.terminate()
            node.wait(timeout=30)


def flood(session, key, data):
    """Send as an attacker does: wait until the link takes it instead of dropping it."""
    session.put(key, data, congestion_control=zenoh.CongestionControl.BLOCK)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("size", [60 * MB, pytest.param(300 * MB, marks=pytest.mark.slow)])
def test_large_messages_cost_little_memory_and_no_long_lines(tmp_path, size):
    """Measured: 300 MB raised a node from 70 to 643 MB at its highest, and now from 70 to 87 MB.

    With it go a message of the largest size that is let through, a greeting of 30 MB that differs from the node's,
    which was a line of 30 MB in the log, and one of the largest size for greetings.
    """
    with attacked(tmp_path) as (node, session, key):
        before = memory(node.pid, "VmHWM")
        flood(session, key, b"x" * size)
        flood(session, key, b"x" * LARGEST_FRAME_BODY)
        body = Hello({"mesh": "m" * (30 * MB)}, 1, frozenset()).pack()
        head = frames.encode_frame(Frame(HELLO, 0, 1, 0))
        flood(session, key, head[: -frames.CHECK.size] + body + b"0000")
        medium = Hello({"mesh": "m" * (LARGEST_WORDS - 100)}, 1, frozenset())
        flood(session, key, frames.encode_frame(Frame(HELLO, 0, 1, 0, frames.WANT, medium.pack())))
        wait_for(lambda: b"do not agree" in (tmp_path / "log").read_bytes())  # all of it has arrived
        assert memory(node.pid, "VmHWM") - before < 60
        lines = (tmp_path / "log").read_bytes().splitlines()
        assert max(map(len, lines)) < 4200
        assert sum(map(len, lines)) < 100_000
        assert node.poll() is None


def test_a_greeting_that_is_too_long_is_refused_before_it_is_parsed(monkeypatch):
    body = Hello({"mesh": "m" * LARGEST_WORDS}, 1, frozenset()).pack()
    monkeypatch.setattr(frames, "LARGEST_WORDS", len(body))
    data = frames.encode_frame(Frame(HELLO, 0, 1, 0, 0, body))
    assert frames.decode_frame(data).body == body
    monkeypatch.setattr(frames, "LARGEST_WORDS", len(body) - 1)
    with pytest.raises(FrameError, match="the body of a hello frame may have"):
        frames.decode_frame(data)
