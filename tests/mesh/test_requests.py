"""Bad requests, broken clients and many clients at once: the service says why, or goes on."""

import contextlib
import json
import threading
import time

import pytest

from conformesh.mesh.http.interface import LARGEST_BODY

from .nodes import JSON, ask, asked, calibration, serving, state, talk


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
    with serving(patience=0.05) as service:
        assert b" 200 " not in talk(service, start)


def test_a_dripping_client_is_dropped():
    """Each byte comes within the patience; the whole request does not."""
    with serving(patience=5.0, whole=0.1) as service, service.address.new_socket() as connection:
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

    with serving(places=1, recalibrate=hold) as service:
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


def test_one_connection_too_many_drops_the_one_that_was_silent_for_longest():
    with serving(most=3) as service, contextlib.ExitStack() as stack:
        links = [stack.enter_context(service.address.new_socket()) for _ in range(3)]
        for link in links:
            link.settimeout(10)
            link.connect(service.address.target())
        head = b"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\n"
        links[0].sendall(head + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert links[0].recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"  # it was heard, so the second is the silent one
        assert asked(service, "GET", "/health")[0] == 200
        assert links[1].recv(1) == b""
        links[0].sendall(b"{}")
        assert links[0].recv(12) == b"HTTP/1.1 400"


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
