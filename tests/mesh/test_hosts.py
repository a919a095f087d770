"""The hosts of the tests are what they seem: late, lossy and cut as told, closed to the outside, gone at the end."""

import errno
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from scipy import stats

from tests.mesh.hosts import Hosts, why_not
from tests.mesh.real import wait_for

if why_not():
    pytest.skip(why_not(), allow_module_level=True)

PORT = 7000
OUTSIDE = "192.0.2.1"  # set aside for examples (RFC 5737): nobody has it


def opened(hosts, k, kind=socket.SOCK_DGRAM):
    """Open a socket of a host, at its address."""
    found = hosts.inside(k, lambda: socket.socket(socket.AF_INET, kind))
    found.bind((hosts.addresses[k], PORT))
    found.settimeout(1.0)
    return found


def arrived(receiver, quiet=0.3):
    """Return all that a socket receives until nothing has come for a while."""
    receiver.settimeout(quiet)
    found = []
    try:
        while True:
            found.append(receiver.recv(100))
    except TimeoutError:
        return found


@pytest.fixture
def three():
    with Hosts(3) as hosts, ExitStack() as stack:
        yield hosts, [stack.enter_context(opened(hosts, k)) for k in range(3)]


def test_packets_take_as_long_as_told(three):
    """There and back takes two delays, never less; how much more depends on what else the machine does."""
    hosts, (a, b, _) = three
    hosts.set(delay=0.05)
    took = []
    for k in range(11):
        began = time.monotonic()
        a.sendto(b"%d" % k, b.getsockname())
        data, sender = b.recvfrom(100)
        b.sendto(data, sender)
        assert a.recv(100) == b"%d" % k
        took.append(time.monotonic() - began)
    assert min(took) >= 0.1
    assert sorted(took)[5] < 0.15


def test_packets_vanish_at_the_rate_told(three):
    """False alarm below 1e-6 on each side; power above 0.99 against a rate of 0.2 or 0.4."""
    hosts, (a, b, _) = three
    sent = 1000
    hosts.set(loss=0.3, seed=20)
    found = []
    for k in range(sent):
        a.sendto(b"%d" % k, b.getsockname())
        if k % 100 == 99:  # a socket holds some 250 packets
            found += arrived(b, quiet=0.05)
    assert [*map(int, found)] == sorted({*map(int, found)})  # one delay for all: in order, once each
    assert min(stats.binom.cdf(len(found), sent, 0.7), stats.binom.sf(len(found) - 1, sent, 0.7)) > 1e-6
    counts = hosts.set(loss=0.0)
    assert (counts["carried"], counts["lost"], counts["refused"]) == (len(found), sent - len(found), 0)


def test_one_seed_loses_the_same_packets(three):
    hosts, (a, b, _) = three

    def losing(seed):
        hosts.set(loss=0.5, seed=seed)
        for k in range(40):
            a.sendto(b"%d" % k, b.getsockname())
        return arrived(b, quiet=0.1)

    first, again, other = losing(1), losing(1), losing(2)
    assert first == again != other


def test_a_cut_is_between_those_named_and_heals(three):
    hosts, (a, b, c) = three
    hosts.split({0, 2}, {1})
    a.sendto(b"to b", b.getsockname())
    b.sendto(b"to a", a.getsockname())
    a.sendto(b"to c", c.getsockname())
    assert (c.recv(100), arrived(a, 0.1), arrived(b, 0.1)) == (b"to c", [], [])
    hosts.split()
    a.sendto(b"healed", b.getsockname())
    assert b.recv(100) == b"healed"


def test_a_cut_holds_for_packets_under_way(three):
    hosts, (a, b, _) = three
    hosts.set(delay=0.2)
    a.sendto(b"late", b.getsockname())
    wait_for(lambda: hosts.set()["carried"] == 1)
    hosts.split({0}, {1})
    assert arrived(b) == []


def test_nothing_outside_can_be_reached(three):
    """No route leads there, the switch hands nothing to others, and this machine's loopback is not that of a host."""
    hosts, (a, _, _) = three
    for way in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with hosts.inside(0, lambda way=way: socket.socket(socket.AF_INET, way)) as one:
            with pytest.raises(OSError, match="unreachable") as refused:
                one.connect((OUTSIDE, PORT))
            assert refused.value.errno == errno.ENETUNREACH
    a.sendto(b"nobody", (hosts.addresses[0].rsplit(".", 1)[0] + ".200", PORT))
    wait_for(lambda: hosts.set()["strange"] == 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = listener.getsockname()
        with hosts.inside(0, socket.socket) as one, pytest.raises(ConnectionRefusedError):
            one.connect(here)
    routes = hosts.inside(0, lambda: Path("/proc/thread-self/net/route").read_text()).splitlines()[1:]
    assert [line.split()[1] for line in routes] == ["0000570A"]  # 10.87.0.0, as the kernel writes it


def test_a_thousand_packets_a_second_are_in_time():
    """Each of ten hosts sends to the next: all arrive, none early, and nine in ten within twice the delay."""
    with Hosts(10) as hosts, ExitStack() as stack:
        hosts.set(delay=0.05)
        sockets = [stack.enter_context(opened(hosts, k)) for k in range(10)]
        late = []
        for _ in range(60):
            for k, one in enumerate(sockets):
                one.sendto(str(time.monotonic()).encode(), sockets[(k + 1) % 10].getsockname())
            late += delays(sockets, 0.01)
        late += delays(sockets, 0.3)
        assert len(late) == 600
        assert min(late) >= 0.05
        assert sorted(late)[540] < 0.1


def delays(sockets, seconds):
    """Return how long the packets took that arrive in this time; each says when it was sent."""
    found, end = [], time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for one in select.select(sockets, [], [], left)[0]:
            sent = float(one.recv(100))
            found.append(time.monotonic() - sent)
    return found


def test_all_is_gone_at_the_end():
    with Hosts(2) as hosts:
        process = hosts.start(1, ["sleep", "60"])
        assert process.poll() is None
        assert hosts.start(0, ["true"]).wait() == 0
    assert process.poll() == -signal.SIGKILL
    assert hosts._switch.returncode == 0


def test_all_is_gone_when_a_test_is_killed():
    """What a test started dies with it, and its namespaces, which have no names, with that."""
    words = """
from tests.mesh.hosts import Hosts
hosts = Hosts(2).__enter__()
print(hosts._switch.pid, flush=True)
hosts.start(0, ["sh", "-c", "echo $$; exec sleep 60"])
input()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", words], cwd=Path(__file__).parents[2], text=True, **pipes) as test:
        started = [int(test.stdout.readline()) for _ in range(2)]
        assert all(alive(pid) for pid in started)
        test.kill()
    wait_for(lambda: not any(alive(pid) for pid in started), seconds=10)


def alive(pid):
    """Whether a process runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
