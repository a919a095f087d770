"""Bad requests, broken clients and many clients at once: the service says why, or goes on."""

import json
import threading

import pytest

from conformesh.mesh.http.handler import LARGEST_BODY

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


def test_the_place_too_many_is_told_to_come_back(monkeypatch):
    monkeypatch.setattr("conformesh.mesh.http.server.WAIT_FOR_A_PLACE", 0.01)
    inside, leave = threading.Event(), threading.Event()

    def hold():
        inside.set()
        leave.wait(10)

    with serving(places=1, recalibrate=hold) as service:
        first = threading.Thread(target=asked, args=(service, "POST", "/recalibrate"))
        first.start()
        assert inside.wait(10)
        assert b"answering 1 programs already" in talk(service, b"")
        leave.set()
        first.join()
        monkeypatch.setattr("conformesh.mesh.http.server.WAIT_FOR_A_PLACE", 10.0)
        assert asked(service, "GET", "/threshold")[0] == 200
