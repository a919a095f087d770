"""Bad requests, broken clients and many clients at once: the service says why, or goes on."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from conformesh.mesh.http.client import Client
from conformesh.mesh.http.paths import LARGEST_BODY

from .nodes import JSON, ask, asked, calibration, serving, short_folder, state, talk

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["unix", "tcp"])
def where(request):
    return request.param


# --- bad requests -----------------------------------------------------------------------------------------------------

TABLE = '{"probabilities": %s}'
BAD_BODIES = [
    ("", "does not parse"),
    ("{", "does not parse"),
    ("[]", "got list"),
    ("{}", "got neither"),
    ('{"probabilities": [[1.0]], "outputs": [[1.0]]}', "got probabilities, outputs"),
    ('{"probabilities": [[1.0]], "scores": "lac"}', "unknown field 'scores', did you mean 'score'?"),
    ('{"probabilities": [[1.0]], "score": "lca"}', "unknown score 'lca', did you mean 'lac'?"),
    ('{"probabilities": [[1.0]], "score": 3}', "'score' must be a name"),
    ('{"probabilities": [[1.0]], "score": {"name": "lac", "x": 1}}', "unknown option"),
    ('{"probabilities": [[1.0]], "score": "aps"}', "calibrated with LAC()"),
    (TABLE % "3", "must be a list"),
    (TABLE % "null", "must be a list"),
    (TABLE % "[0.5, 0.5]", "for a single row"),
    (TABLE % "[[0.5, 0.5], [1.0]]", "rows of equal length"),
    (TABLE % "[[0.5, null]]", "numbers only"),
    (TABLE % '[[0.5, "half"]]', "numbers only"),
    (TABLE % '[[0.5, "inf"]]', "between 0 and 1"),
    (TABLE % '[{"a": 1}]', "numbers only"),
    (TABLE % "[[true, false]]", "numbers only"),
    (TABLE % "[[0.5, true]]", "numbers only"),
    (TABLE % "[[NaN, 1.0]]", "JSON has no NaN"),
    (TABLE % "[[Infinity, 1.0]]", "JSON has no Infinity"),
    (TABLE % "[[1e999, 0.0]]", "between 0 and 1"),
    (TABLE % ("[[1" + "0" * 400 + "]]"), "numbers only"),
    (TABLE % ("[[1" + "0" * 5000 + "]]"), "limit"),
    (TABLE % "[[[0.5]]]", "shape (rows, classes)"),
    (TABLE % "[[], []]", "at least one class"),
    (TABLE % "[[2.0, -1.0]]", "look like logits"),
    ("[" * 200_000, "too deep"),
    (b"\xff\xfe\x00", "does not parse"),
]


def test_bad_bodies_are_400_in_one_line():
    with serving() as service:
        for body, words in BAD_BODIES:
            status, answer = asked(service, "POST", "/predict", body, JSON)
            assert status == 400, body[:60]
            assert words in answer["error"], (body[:60], answer)
            assert "\n" not in answer["error"]
        assert asked(service, "POST", "/predict", TABLE % "[[1.0, 0.0]]")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "words"),
    [
        ("GET", "/", {}, 404, "there are: GET /threshold"),
        ("GET", "/thresholds", {}, 404, "POST /predict"),
        ("GET", "/../threshold", {}, 404, "there is no"),
        ("POST", "/threshold", {}, 405, "takes GET, got POST"),
        ("PUT", "/threshold", {}, 405, "takes GET, got PUT"),
        ("GET", "/predict", {}, 405, "takes POST, got GET"),
        ("DELETE", "/predict", {}, 405, "takes POST"),
        ("BREW", "/threshold", {}, 501, "BREW"),
        ("POST", "/predict", {"Content-Type": "text/plain"}, 415, "must be application/json, got text/plain"),
        ("POST", "/predict", {"Content-Length": "many"}, 400, "Content-Length must be"),
        ("POST", "/predict", {"Content-Length": "-1"}, 400, "Content-Length must be"),
        ("POST", "/predict", {"Transfer-Encoding": "chunked"}, 411, "Content-Length"),
    ],
)
def test_bad_requests_matrix(where, method, path, headers, status, words):
    with serving(where=where) as service:
        got, answered, text = ask(service, method, path, b"{}" if method == "POST" else None, headers)
        assert got == status
        assert words in json.loads(text)["error"]
        if status == 405:
            assert answered["Allow"] in {"GET", "POST"}


def test_a_line_that_others_may_take_for_two_is_no_header():
    with serving() as service:
        raw = talk(service, b"GET /metrics HTTP/1.1\r\nAccept: text/plain; version=2.x\rX: y\r\n\r\n")
        assert raw.startswith(b"HTTP/1.1 400 ")
        assert b"\rX: y" not in raw


def test_head_has_no_body():
    with serving() as service:
        raw = talk(service, b"HEAD /threshold HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.startswith(b"HTTP/1.1 405 ")
        assert raw.endswith(b"\r\n\r\n")


def test_too_large_a_body_is_413_also_for_a_client_that_writes_first(where):
    with serving(where=where) as service:
        status, answer = asked(service, "POST", "/predict", b" " * (LARGEST_BODY + 1))
        assert status == 413
        assert "16,777,216" in answer["error"]
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        assert b" 413 " in talk(service, head + b"Content-Length: %d\r\n\r\n" % 10**30, close=True)


@pytest.mark.parametrize(
    "header", ["Origin: http://example.org", "Host: example.org", "Host: 127.0.0.1.example.org", "Host: ["]
)
def test_web_pages_are_kept_out_of_a_port(header):
    called = threading.Event()
    with serving(where="tcp", recalibrate=called.set) as service:
        host = b"" if header.startswith("Host") else b"Host: 127.0.0.1\r\n"
        raw = talk(service, b"POST /recalibrate HTTP/1.1\r\n" + host + header.encode() + b"\r\n\r\n")
        assert b" 403 " in raw
        assert not called.is_set()


# --- broken and many clients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /threshold HTTP/9.9\r\n\r\n",
        b"GET /threshold FTP\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /threshold HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
        b"GET //[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /threshold HTTP/1.1\r\nHost: [\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: text/plain; version=2.x\rX: y\r\n\r\n",
    ],
)
def test_broken_clients_do_no_harm(where, raw, caplog):
    with serving(where=where) as service:
        talk(service, raw, close=True)
        assert asked(service, "GET", "/threshold")[0] == 200
    assert "unexpectedly" not in caplog.text


@pytest.mark.parametrize("start", [b"", b"GET /thr", b"POST /predict HTTP/1.1\r\nContent-Length: 10\r\n\r\n{"])
def test_a_silent_client_is_dropped(start):
    with serving(silence=0.05) as service:
        assert b" 200 " not in talk(service, start)


def test_a_dripping_client_is_dropped():
    """Each byte comes within the patience; the whole request does not."""
    with serving(silence=5.0, request=0.1) as service, service.address.new_socket() as connection:
        connection.connect(service.address.target())
        connection.settimeout(0.01)
        dropped = False
        for _ in range(1000):
            try:
                connection.sendall(b"x")
                dropped = connection.recv(1000) == b""
            except TimeoutError:
                continue
            except OSError:
                dropped = True
            if dropped:
                break
        assert dropped


def test_thirty_two_threads_at_once(where):
    node = state()
    body = json.dumps({"probabilities": [[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]]})
    start = threading.Barrier(33)
    problems = []

    def work(i):
        start.wait()
        for _ in range(10):
            path = ("/threshold", "/status", "/metrics", "/health")[i % 4]
            status, _, text = ask(service, "GET", path)
            answer = asked(service, "POST", "/predict", body)
            # 1 - p <= threshold, for the threshold that the same answer names: never half of two results
            sets = [[0, 1, 2], [1]] if answer[1]["threshold"] == 0.75 else [[0], [1]]
            if status != 200 or not text or answer[0] != 200 or answer[1]["sets"] != sets:
                problems.append((status, answer))

    with serving(node, where=where) as service:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
        for thread in threads:
            thread.start()
        start.wait()
        for i in range(200):  # the engine goes on meanwhile
            node.certify(calibration((0.75, 0.5)[i % 2]))
        for thread in threads:
            thread.join()
    assert problems == []


def test_the_task_too_many_is_told_to_come_back_and_questions_are_answered():
    inside, leave = threading.Event(), threading.Event()

    def hold():
        inside.set()
        leave.wait(10)

    with serving(tasks=1, recalibrate=hold) as service:
        first = threading.Thread(target=asked, args=(service, "POST", "/recalibrate"))
        first.start()
        assert inside.wait(10)
        status, headers, text = ask(service, "POST", "/recalibrate")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "at work for 1 programs already" in json.loads(text)["error"]
        assert asked(service, "GET", "/health")[0] == 200
        leave.set()
        first.join()
        assert asked(service, "POST", "/recalibrate")[0] == 202


def silent_and_slow(service, stack, silent, slow):
    """Connect so many programs that say nothing, and so many that send one byte a second; all stay until the end."""
    links = [stack.enter_context(service.address.new_socket()) for _ in range(silent + slow)]
    for link in links:
        link.connect(service.address.target())
    over = threading.Event()
    dripping = links[silent:]

    def drip():
        for byte in b"GET /health HTTP/1.1" + b"x" * 1000:
            for link in dripping:
                with contextlib.suppress(OSError):
                    link.send(bytes([byte]))
            if over.wait(1.0):
                return

    thread = threading.Thread(target=drip)
    thread.start()
    stack.callback(thread.join)
    stack.callback(over.set)
    return links


@pytest.mark.parametrize("silent", [200, 300])
def test_silent_and_slow_programs_keep_nobody_waiting(where, silent):
    """The fastest of a few answers, so that a busy machine does not decide; before, all places were taken for 10 s."""
    with serving(where=where) as service, contextlib.ExitStack() as stack:
        silent_and_slow(service, stack, silent, 40)
        for path in ("/health", "/metrics"):
            seconds = []
            for _ in range(5):
                begun = time.monotonic()
                assert ask(service, "GET", path)[0] == 200
                seconds.append(time.monotonic() - begun)
            assert min(seconds) < 1.0


def connected(service, stack, count):
    """So many open connections that have said nothing yet."""
    links = [stack.enter_context(service.address.new_socket()) for _ in range(count)]
    for link in links:
        link.settimeout(10)
        link.connect(service.address.target())
    return links


def read_all(link):
    return b"".join(iter(lambda: link.recv(65536), b""))


def test_connections_beyond_the_limit_are_told_503_and_health_is_answered(where):
    """300 programs connect, and only then send their requests; before, the first 44 were dropped without an answer."""
    with serving(where=where) as service, contextlib.ExitStack() as stack:
        links = connected(service, stack, 300)
        status, headers, text = ask(service, "GET", "/threshold")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "256 connections already" in json.loads(text)["error"]
        for path in ("/health", "/status", "/metrics"):
            assert ask(service, "GET", path)[0] == 200
        answers = []
        for link in links:
            with contextlib.suppress(OSError):  # it may have been refused already
                link.sendall(b"GET /threshold HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answers.append(read_all(link)[:12])
        assert {*answers} == {b"HTTP/1.1 200", b"HTTP/1.1 503"}
        assert answers.count(b"HTTP/1.1 200") >= 256


def test_a_connection_that_is_silent_makes_room_and_is_told_so(monkeypatch):
    monkeypatch.setattr("conformesh.mesh.http.server.IDLE_BEFORE_REFUSAL", 0.0)
    with serving(connections=3) as service, contextlib.ExitStack() as stack:
        links = connected(service, stack, 3)
        head = b"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\n"
        links[0].sendall(head + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert links[0].recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"  # it was heard, so the second is the silent one
        assert asked(service, "GET", "/threshold")[0] == 200
        assert links[1].recv(12) == b"HTTP/1.1 503"
        links[0].sendall(b"{}")
        assert links[0].recv(12) == b"HTTP/1.1 400"


def test_a_head_or_a_body_that_does_not_arrive_in_time_is_told_408():
    with serving(silence=0.2, request=0.2) as service:
        assert talk(service, b"GET /thr").startswith(b"HTTP/1.1 408")
        head = b"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n"
        assert talk(service, head + b"{").startswith(b"HTTP/1.1 408")


def large_head(length=LARGEST_BODY):
    return b"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % length


def test_a_request_that_is_refused_half_way_keeps_none_of_its_bytes():
    """Its client may stay connected for long, and the limit of bytes over all connections no longer counts them."""
    with serving(silence=0.3, request=20.0) as service, contextlib.ExitStack() as stack:
        (link,) = connected(service, stack, 1)
        link.sendall(large_head() + bytes(2**20))
        assert link.recv(12) == b"HTTP/1.1 408"
        assert [len(client.request._data) for client in [*service._clients]] == [0]


def test_large_bodies_share_one_budget_and_small_ones_need_none():
    """Refused before any of its bytes is read; when another body has gone, there is room again."""
    with serving() as service, contextlib.ExitStack() as stack:
        links = connected(service, stack, 2)
        for link in links:
            link.sendall(large_head().replace(b"Content-Type", b"Expect: 100-continue\r\nContent-Type"))
            assert link.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"  # there is room for it
        answer = talk(service, large_head())
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 1" in answer
        assert b"bytes of other requests already" in answer
        assert asked(service, "POST", "/predict", TABLE % "[[1.0, 0.0]]")[0] == 200
        links[0].close()
        body = (TABLE % "[[1.0, 0.0]]") + " " * (LARGEST_BODY // 2)
        for _ in range(100):
            if asked(service, "POST", "/predict", body)[0] == 200:
                return
            time.sleep(0.05)
        raise AssertionError("no room after a body has gone")


UNFINISHED = """
import sys
from tests.mesh.nodes import state
from conformesh.mesh.http.replies import NodeInterface
from conformesh.mesh.http.server import Service
with Service(NodeInterface(state()), sys.argv[1]) as service:
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to measure memory")
def test_thirty_unfinished_bodies_take_bounded_memory():
    """Each is as large as a body may be but for its last byte: 480 MB if all were kept, as they were before."""

    def resident():
        return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def fill(link):
        with contextlib.suppress(OSError):  # most are refused
            link.sendall(large_head() + bytes(LARGEST_BODY - 1))

    with short_folder() as folder, contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", UNFINISHED, str(folder)]
        pipe = subprocess.PIPE
        process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT))
        stack.callback(process.kill)
        assert process.stdout.readline() == "ready\n"
        before = resident()
        links = []
        for _ in range(30):
            link = stack.enter_context(socket.socket(socket.AF_UNIX))
            link.settimeout(10)
            link.connect(str(folder / "node.sock"))
            links.append(link)
        threads = [threading.Thread(target=fill, args=(link,)) for link in links]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = resident()
        print(f"resident memory: {before:.0f} MiB before, {after:.0f} MiB with 30 unfinished bodies")
        assert after - before < 60  # two bodies of 16 MiB, with some slack for the allocator
        assert Client(folder).health()["healthy"]


@pytest.mark.parametrize(
    ("length", "status"), [(None, 100), (LARGEST_BODY + 1, 413), (10**30, 413), (-1, 400)], ids=str
)
def test_a_program_that_asks_before_it_sends_is_told(where, length, status):
    body = (TABLE % "[[1.0, 0.0]]").encode()
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
    with serving(where=where) as service, service.address.new_socket() as link:
        link.settimeout(10)
        link.connect(service.address.target())
        link.sendall(head + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length))
        assert link.recv(12) == b"HTTP/1.1 %d" % status
        if status == 100:
            link.sendall(body)
            answer = b"".join(iter(lambda: link.recv(65536), b""))
            assert b"HTTP/1.1 200 OK" in answer


def test_a_post_without_a_length_has_no_body():
    with serving() as service:
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert b" 400 " in talk(service, head)


def test_a_request_in_single_bytes_is_the_same_request():
    raw = b"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 32\r\n\r\n"
    body = b'{"probabilities": [[1.0, 0.0]]} '
    with serving() as service, service.address.new_socket() as link:
        link.settimeout(10)
        link.connect(service.address.target())
        for byte in raw + body:
            link.sendall(bytes([byte]))
        assert b'"sets": [[0]]' in b"".join(iter(lambda: link.recv(65536), b""))


def test_a_slow_reader_of_a_large_answer_gets_all_of_it():
    rows = 60_000
    body = json.dumps({"probabilities": [[0.5, 0.5]] * rows}).encode()
    head = b"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving() as service, service.address.new_socket() as link:
        link.settimeout(20)
        link.connect(service.address.target())
        link.sendall(head + body)
        answer = link.recv(1000)
        assert asked(service, "GET", "/health")[0] == 200  # meanwhile
        answer += b"".join(iter(lambda: link.recv(65536), b""))
        assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["sets"]) == rows
