"""The server of a view: what pages are told, and that looking is all that can be done."""

import json
import re
import socket
import sys
import threading
import time

import pytest

pytest.importorskip("uvicorn", reason="a view needs Starlette and uvicorn: pip install 'conformesh[view]'")
from conformesh.view import events, routes
from conformesh.view.server import ServerLimits, ViewServer, parse_view_address, read_token, serving_view
from conformesh.view.trace import Column, Step, Trace
from tests.view.served import Page, ask, connect, has_come_to, has_steps, recording, serving, step, talk

PARTS = ("/", "/page/view.css", "/page/view.js", "/page/vendor.js")


@pytest.fixture(scope="module")
def view():
    """A view of a run that has ended, for tests that only look."""
    done = recording(steps=5)
    done.end([("threshold", "4.5")])
    with serving([done]) as server:
        yield server


# --- the page and what it is told -------------------------------------------------------------------------------------


def test_the_page_and_its_parts(view):
    kinds = {"/": "text/html", ".css": "text/css", ".js": "text/javascript"}
    for path in PARTS:
        status, headers, body = ask(view, path)
        assert (status, int(headers["Content-Length"])) == (200, len(body))
        kind = kinds["/" if path == "/" else path[path.rindex(".") :]]
        assert headers["Content-Type"] == f"{kind}; charset=utf-8"
    assert b"</html>" in ask(view)[2]


@pytest.mark.parametrize("path", ["/page/../server.py", "/page/%2e%2e/server.py", "/page/", "/page/LICENSES.txt", "//"])
def test_no_path_leads_to_another_file(view, path):
    status, _, body = ask(view, path)
    assert status == 404
    assert "no such path; a view has /" in json.loads(body)["error"]


def test_head_is_get_without_a_body(view):
    for path in (*PARTS, "/health", "/events", "/trace.json", "/report.html"):
        status, headers, body = ask(view, path, "HEAD")
        assert (status, body) == (200, b"")
        assert headers["Content-Type"].split(";")[0] == ask(view, path, "HEAD")[1]["Content-Type"].split(";")[0]


def test_a_page_is_told_everything_and_then_what_is_new():
    running = recording(steps=3)
    with serving([running]) as server, Page(server) as page:
        runs = page.follow(has_steps(3))
        assert runs[0]["heading"]["devices"] == ["0", "1", "2"]
        running.add(step(3))
        assert page.follow(has_steps(4))[0]["steps"][3] == {"at": 3.0, "devices": {"threshold": {"values": [3.5] * 3}}}
        running.end([("threshold", "3.5")])
        assert page.follow(lambda runs: runs[0]["result"])[0]["result"] == [["threshold", "3.5"]]


def test_two_pages_see_the_same_and_each_event_is_encoded_once(monkeypatch):
    made = []
    encoded = events._EncodedRun._encoded
    monkeypatch.setattr(events._EncodedRun, "_encoded", lambda *given: made.append(1) or encoded(*given))
    running = recording()
    with serving([running]) as server, Page(server) as one, Page(server) as other:
        for page in (one, other):
            page.follow(lambda runs: 0 in runs)
        for number in range(20):
            running.add(step(number))
        assert one.follow(has_steps(20)) == other.follow(has_steps(20))
        assert len(made) <= 20  # and not 40


def test_a_page_that_comes_later_sees_the_same():
    running = recording(steps=10)
    with serving([running]) as server, Page(server) as first:
        first.follow(has_steps(10))
        running.add(step(10))
        first.follow(has_steps(11))
        with Page(server) as second:
            assert second.follow(has_steps(11)) == first.runs


def test_runs_may_be_added_and_may_begin_anew():
    runs = [recording(steps=1)]
    with serving(lambda: runs) as server, Page(server) as page:
        page.follow(has_steps(1))
        runs.append(recording(steps=2, name="another"))
        page.follow(has_steps(2, run=1))
        runs[0] = recording(devices=5, steps=4)
        page.follow(lambda runs: len(runs[0]["heading"]["devices"]) == 5)
        assert len(page.follow(has_steps(4))[0]["steps"]) == 4
        assert page.runs[1]["heading"]["name"] == "another"


def test_a_long_recording_comes_in_pieces():
    """No event is larger than a piece, but for what surrounds the steps; none is lost, none comes twice."""
    long = recording(devices=200, steps=400)
    with serving([long]) as server, Page(server) as page:
        sizes, got = [], 0
        while got < 400:
            name, data = page.next()
            if name == "steps":
                assert data["from"] == got
                got += len(data["steps"])
                sizes.append(len(json.dumps(data["steps"], separators=(",", ":"))))
        assert max(sizes) <= events.EVENT_BYTES + 1000
        assert len(sizes) > 2


def test_nothing_is_sent_ten_times_a_second_at_most_and_only_if_it_is_new():
    running = recording()
    with serving([running]) as server, Page(server) as page:
        page.follow(lambda runs: 0 in runs)
        over, until = threading.Event(), time.monotonic() + 0.5

        def work():
            number = 0
            while not over.wait(0.002):
                running.add(step(number))
                number += 1

        thread = threading.Thread(target=work)
        thread.start()
        count = 0
        while time.monotonic() < until:
            count += page.next()[0] == "steps"
        over.set()
        thread.join()
        assert 1 <= count <= 7


def test_who_reads_nothing_grows_nothing_and_then_skips_to_what_is_current(monkeypatch):
    monkeypatch.setattr(events, "SKIP_SECONDS", 0.2)
    running = recording(devices=500)
    with serving([running], limits=ServerLimits(stalled=60)) as server, Page(server, room=4096) as slow:
        slow.follow(lambda runs: 0 in runs)
        with Page(server) as quick:
            for number in range(3000):
                running.add(step(number, 500))
                if number % 500 == 0:
                    quick.follow(has_come_to(number + 1))
            quick.follow(has_come_to(3000))  # nobody waits for who is slow
        buffers = [one.transport.get_write_buffer_size() for one in server._server.server_state.connections]
        assert max(buffers) <= 2 * events.EVENT_BYTES + 2**16
        slow.follow(has_come_to(3000))
        got = slow.runs[0]["steps"]
        assert len(got) < 3000
        assert got[-1]["devices"]["threshold"]["values"] == [2999.5] * 500
        running.add(step(3000, 500))
        slow.follow(has_come_to(3001))
        assert slow.runs[0]["steps"][-1]["at"] == 3000


def test_who_stops_reading_is_dropped():
    running = recording(devices=10_000)
    with serving([running], limits=ServerLimits(stalled=0.2)) as server, connect(server, room=4096) as link:
        link.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % server.port)
        link.recv(1000)
        state = server._server.server_state
        until = time.monotonic() + 20
        number = 0
        while state.connections:
            running.add(step(number, 10_000))
            number += 1
            assert time.monotonic() < until
            time.sleep(0.02)


def test_one_page_too_many_is_told_so(view):
    with serving([recording()], limits=ServerLimits(streams=1)) as server, Page(server) as page:
        page.follow(lambda runs: 0 in runs)
        status, headers, body = ask(server, "/events")
        assert (status, headers["Retry-After"]) == (503, "5")
        assert "1 pages follow this view already" in json.loads(body)["error"]
        assert ask(server, "/health")[0] == 200
        page.close()
        until = time.monotonic() + 20
        while ask(server, "/events", "HEAD")[0] != 200:
            assert time.monotonic() < until


def test_a_recording_that_cannot_be_read_ends_nobody(caplog, monkeypatch):
    monkeypatch.setattr(events, "RETRY_SECONDS", 0.05)
    runs = [recording(steps=1)]

    def broken():
        if not runs:
            raise RuntimeError("no ink")
        return runs

    with serving(broken) as server, Page(server) as page:
        page.follow(has_steps(1))
        kept = runs.pop()
        until = time.monotonic() + 20
        while "cannot be shown" not in caplog.text:
            assert time.monotonic() < until
            time.sleep(0.01)
        runs.append(kept)
        kept.add(step(1))
        page.follow(has_steps(2))


def test_a_view_that_stops_tells_the_rest():
    """A run that has just ended is seen to its end, also where the server ends with it."""
    running = recording(steps=2)
    with serving([running]) as server, Page(server) as page:
        page.follow(has_steps(2))
        running.add(step(2))
        running.end([("threshold", "2.5")])
        server.stop()
        assert page.follow(lambda runs: runs[0]["result"])[0]["result"] == [["threshold", "2.5"]]
        assert len(page.runs[0]["steps"]) == 3


def test_a_view_that_stops_lets_its_pages_go():
    with serving([recording(steps=2)]) as server, connect(server) as silent:
        pages = [Page(server) for _ in range(3)]
        for page in pages:
            page.follow(has_steps(2))
        begun = time.monotonic()
        server.stop()
        assert time.monotonic() - begun < 5
        assert silent.recv(1) == b""
        for page in pages:
            with pytest.raises((EOFError, ConnectionError)):
                page.next()
            page.close()
        assert not server._thread.is_alive()
        server.stop()


# --- devices and downloads --------------------------------------------------------------------------------------------


def test_details_are_asked_for_once_in_a_while(monkeypatch):
    asked = []

    def details(run, row):
        asked.append((run, row))
        return {"facts": [("state", "certified")], "neighbours": [], "log": [], "certificate": None}

    with serving([recording()], details=details) as server:
        for _ in range(5):
            status, _, body = ask(server, "/device/0/1")
            assert (status, json.loads(body)["facts"]) == (200, [["state", "certified"]])
        assert asked == [(0, 1)]
        monkeypatch.setattr(routes, "_FRESH_SECONDS", 0.0)
        ask(server, "/device/0/1")
        assert asked == [(0, 1)] * 2


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/device/0/1", "this device cannot be asked: only what was recorded is known"),
        ("/device/0/3", "there is no device in row 3 of run 0"),
        ("/device/1/0", "there is no device in row 0 of run 1"),
        ("/device/0/-1", "a device is named by the numbers of its run and its row, got '0/-1'"),
        ("/device/0/" + "9" * 5000, "a device is named by the numbers"),
        ("/device/0/%D9%A1", "a device is named by the numbers"),
    ],
)
def test_devices_that_nobody_can_ask(view, path, words):
    status, _, body = ask(view, path)
    assert status == 404
    assert words in json.loads(body)["error"]


def test_devices_that_answer_late_hold_up_nobody(monkeypatch):
    leave, inside = threading.Event(), threading.Semaphore(0)

    def details(run, row):
        inside.release()
        leave.wait(20)

    monkeypatch.setattr(routes, "MAX_QUESTIONS", 2)
    with serving([recording(5)], details=details) as server:
        threads = [threading.Thread(target=ask, args=(server, f"/device/0/{row}")) for row in (0, 1, 0, 1)]
        for thread in threads:
            thread.start()
        assert inside.acquire(timeout=20)
        assert inside.acquire(timeout=20)  # of four that ask, two ask the devices
        begun = time.monotonic()
        assert ask(server, "/health")[0] == 200
        status, _, body = ask(server, "/device/0/2")
        assert time.monotonic() - begun < 5
        assert status == 503
        assert "2 devices are being asked already" in json.loads(body)["error"]
        leave.set()
        for thread in threads:
            thread.join()


def test_what_was_recorded_so_far_can_be_had(view, tmp_path):
    status, headers, body = ask(view, "/trace.json")
    assert (status, headers["Content-Disposition"]) == (200, 'attachment; filename="conformesh-trace.json"')
    (tmp_path / "t.json").write_bytes(body)
    [run] = Trace.load(tmp_path / "t.json").runs
    assert (len(run.steps), run.result) == (5, [("threshold", "4.5")])
    status, headers, body = ask(view, "/report.html")
    assert (status, headers["Content-Disposition"]) == (200, 'attachment; filename="conformesh-report.html"')
    assert b'<script type="application/gzip" id="trace">' in body


def test_downloads_that_nobody_takes_are_few():
    big = recording(devices=2000, steps=600)  # more than a socket takes
    with serving([big], limits=ServerLimits(answer=60)) as server:
        raw = b"GET /trace.json HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % server.port
        with connect(server, room=4096) as one, connect(server, room=4096) as two:
            for link in (one, two):
                link.sendall(raw)
                assert link.recv(12) == b"HTTP/1.1 200"
            status, _, body = ask(server, "/trace.json")
            assert status == 503
            assert "2 downloads are under way already" in json.loads(body)["error"]
        until = time.monotonic() + 20
        while ask(server, "/trace.json")[0] != 200:
            assert time.monotonic() < until


def test_nothing_is_told_of_single_devices_of_a_private_run():
    """Whatever a recording has: a mistake of who records is not told on."""
    secret = recording(private=True)
    fields = {name: Column([0.123456, 1, 2]) for name in ("threshold", "heard", "known", "round")}
    words = {name: Column(["hush", "hush", "hush"]) for name in ("kind", "about")}
    log = [(0, "info", "threshold 0.123456"), (-1, "info", "begun"), (1, "error", "no link")]
    secret.add(Step(at=1.0, devices=fields | words, bracket=(0.123456, 9.0, 1, 2), log=log))
    asked = []
    with serving([secret], details=lambda *which: asked.append(which) or {}) as server, Page(server) as page:
        [got] = page.follow(has_steps(1))[0]["steps"]
        assert got == {
            "at": 1.0,
            "devices": {"round": {"values": [0.123456, 1, 2]}},
            "log": [[-1, "info", "begun"], [1, "error", "no link"]],
        }
        assert json.loads(ask(server, "/trace.json")[2])["runs"][0]["steps"] == [got]
        status, _, body = ask(server, "/device/0/0")
        assert (status, asked) == (404, [])
        assert "this run is private" in json.loads(body)["error"]


# --- how it is started ------------------------------------------------------------------------------------------------


def test_without_the_extra_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(
        ValueError, match=re.escape("a view needs Starlette and uvicorn: pip install 'conformesh[view]'")
    ):
        ViewServer([])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_beyond_this_machine_only_with_a_token(host):
    with pytest.raises(ValueError, match="beyond this machine a view needs a token"):
        ViewServer([], host=host)


def test_a_place_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port} is in use; stop what listens there"):
            ViewServer([], port=port).start()
    with pytest.raises(ValueError, match=r"a view cannot listen at .nowhere\.invalid."):
        ViewServer([], host="nowhere.invalid", token="x" * 43).start()


def test_shown_says_where_to_look_and_what_to_mind():
    said = []
    with serving_view([recording()], "127.0.0.1:0", say=said.append) as url:
        assert said == [f"see it at {url}"]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
    said.clear()
    with serving_view([recording()], "0.0.0.0:0", say=said.append) as url:
        assert re.search(r"\?token=[\w-]{43}$", url)
        assert said[1].startswith("warning: without TLS the token and all that is shown can be read on the way")
    said.clear()
    with serving_view([recording()], None, say=said.append) as url:
        assert (url, said) == ("", [])


def test_addresses_of_views():
    assert parse_view_address("localhost") == ("localhost", 8750)
    for wrong in ("127.0.0.1:99999", "a:b:c", "/tmp/x", "http://localhost:1"):
        with pytest.raises(ValueError, match="a view needs HOST:PORT"):
            parse_view_address(wrong)


def test_tokens_from_files(tmp_path):
    path = tmp_path / "token"
    path.write_text("a" * 43 + "\nmore\n")
    assert read_token(path) == "a" * 43
    for wrong in ("", "short\n", "a b" * 30, "é" * 40):
        path.write_text(wrong, encoding="utf-8")
        with pytest.raises(ValueError, match="a token needs at least 32 letters"):
            read_token(path)


def test_ipv6_too():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serving([recording()], host="::1") as server:
        assert server.url == f"http://[::1]:{server.port}/"
        assert ask(server, "/health", headers={"Host": f"[::1]:{server.port}"})[0] == 200


def test_a_view_is_started_once():
    with serving([]) as server:
        with pytest.raises(RuntimeError, match="has been started already"):
            server.start()
        assert talk(server, b"GET /health HTTP/1.0\r\nHost: localhost:%d\r\n\r\n" % server.port).startswith(
            b"HTTP/1.1 200"
        )
