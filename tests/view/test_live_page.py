"""The page beside a server: it follows what is sent, asks about one device, and says when nobody answers."""

import json
import queue
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from conformesh.view.report import PAGE_FILE, SCRIPT_FILES, STYLE_FILES, read_page_file
from tests.view import traces
from tests.view.pages import TIMEOUT, drawn, until

pytestmark = pytest.mark.xdist_group("browser")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PARTS = {"/": ("text/html", read_page_file(PAGE_FILE))}
PARTS |= {f"/page/{name}": ("text/css", read_page_file(name)) for name in STYLE_FILES}
PARTS |= {f"/page/{name}": ("text/javascript", read_page_file(name)) for name in SCRIPT_FILES}
TOLD = {
    "facts": [["uptime", "3 minutes"]],
    "neighbours": [
        {"row": 0, "name": "pump-0", "last_heard_seconds_ago": 0.25, "frames_received": 7, "bytes_received": 1234}
    ],
    "log": [[0, "warning", "the disk is nearly full"]],
    "certificate": "rank 54 of 60",
}


class Server(ThreadingHTTPServer):
    """Serves the page under the policy that the real server has; a test says what is sent, and when it hangs up."""

    daemon_threads = True
    answering = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.sending: queue.Queue[tuple[str, object] | None] = queue.Queue()

    def send(self, name, **data):
        self.sending.put((name, data))


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        if not self.server.answering:
            self.close_connection = True
        elif self.path in PARTS:
            self.answer(200, *PARTS[self.path])
        elif self.path == "/events":
            self.stream()
        elif self.path in {"/device/0/1", "/device/0/2"}:
            self.answer(200, "application/json", json.dumps(TOLD if self.path.endswith("1") else {}))
        else:
            self.answer(404, "text/plain", "nothing here")

    def answer(self, status, kind, text):
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(text.encode())

    def stream(self):
        self.answer(200, "text/event-stream", "retry: 100\n\n")
        while (event := self.server.sending.get()) is not None:
            name, data = event
            self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """A server that listens on loopback, and ends with the test."""
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.05,))
        thread.start()
        yield found
        found.sending.put(None)
        found.shutdown()
        thread.join()


@pytest.fixture
def page(browser, server):
    """The page of that server; nothing but lost connections is written to its console."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    found = context.new_page()
    found.set_default_timeout(TIMEOUT)
    messages = []
    found.on("console", lambda message: messages.append(message.text))
    found.on("pageerror", lambda problem: messages.append(str(problem)))
    found.goto(f"http://127.0.0.1:{server.server_port}/")
    yield found
    assert found.evaluate("conformesh.errors") == []
    assert [text for text in messages if "ERR_" not in text] == []
    context.close()


def plain(value):
    return json.loads(msgspec.json.encode(value))


RUN = traces.watched().runs[0]
HEADING = {**plain(RUN.heading), "live": True}
ALL = plain(RUN.steps)


def test_it_follows_to_the_end(page, server):
    server.send("run", run=0, heading=HEADING)
    for place, step in enumerate(ALL):
        server.send("steps", run=0, **{"from": place}, steps=[step], sent=time.time())
        until(page, f"conformesh.runs[0]?.steps.length === {place + 1} && conformesh.step === {place}")
    page.evaluate("conformesh.ready")
    until(page, "document.querySelector('.faults').textContent.includes('silent: pump-1')")
    assert page.get_by_role("button", name="live").get_attribute("aria-pressed") == "true"
    assert page.get_by_role("link", name="save report").get_attribute("href") == "report.html"
    until(page, f"conformesh.latencies.length === {len(ALL)}")
    assert all(0 <= each < TIMEOUT for each in page.evaluate("conformesh.latencies"))
    server.send("end", run=0, result=[["ended", "well"]])
    until(page, "document.querySelector('.result').textContent.includes('well')")


def test_a_finished_run_is_played(page, server):
    """A file that is served, or a calibration that took no time: it begins at the beginning."""
    server.send("run", run=0, heading=plain(RUN.heading))
    server.send("steps", run=0, **{"from": 0}, steps=ALL, sent=time.time())
    server.send("end", run=0, result=[])
    until(page, "conformesh.playing && conformesh.step < 2")
    assert page.get_by_role("button", name="live").is_hidden()


def test_who_looks_back_is_not_pulled_along(page, server):
    server.send("run", run=0, heading=HEADING)
    server.send("steps", run=0, **{"from": 0}, steps=ALL[:4], sent=time.time())
    until(page, "conformesh.runs[0]?.steps.length === 4 && conformesh.step === 3")
    page.get_by_role("button", name="step back").click()
    until(page, "conformesh.step === 2")
    server.send("steps", run=0, **{"from": 2}, steps=ALL[2:6], sent=time.time())  # two of them for the second time
    until(page, "conformesh.runs[0].steps.length === 6")
    assert page.evaluate("conformesh.step") == 2
    page.get_by_role("button", name="live").click()
    until(page, "conformesh.step === 5")


def test_the_page_of_a_live_device_asks_the_node(page, server):
    server.send("run", run=0, heading=HEADING)
    server.send("steps", run=0, **{"from": 0}, steps=ALL, sent=time.time())
    until(page, "conformesh.runs[0]?.steps.length === 7")
    page.evaluate("conformesh.panels[0].actions.pick(0, 1)")
    until(page, "document.querySelector('#device').textContent.includes('3 minutes')")
    drawn(page)
    words = " ".join(page.inner_text("#device").split())
    assert "rank 54 of 60" in words
    assert "the disk is nearly full" in words
    assert "heard 0.25 s ago, 7 frames, 1,234 bytes" in words
    page.evaluate("conformesh.panels[0].actions.pick(0, 2)")
    until(page, "!document.querySelector('#device').textContent.includes('3 minutes')")
    drawn(page)
    assert "says two things" in page.inner_text("#device")


def test_a_server_that_is_gone_is_told_and_found_again(page, server):
    """Nothing is invented meanwhile; afterwards everything comes once more, from the beginning."""
    server.send("run", run=0, heading=HEADING)
    server.send("steps", run=0, **{"from": 0}, steps=ALL[:4], sent=time.time())
    until(page, "conformesh.runs[0]?.steps.length === 4")
    server.answering = False
    server.sending.put(None)
    banner = page.get_by_role("alert")
    banner.wait_for(state="visible")
    assert banner.inner_text() == "the server does not answer; trying again"
    assert page.evaluate("conformesh.runs[0].steps.length") == 4
    server.answering = True
    server.send("run", run=0, heading=HEADING)
    server.send("steps", run=0, **{"from": 0}, steps=ALL[:5], sent=time.time())
    until(page, "conformesh.runs[0].steps.length === 5 && conformesh.step === 4")
    assert banner.is_hidden()


def test_another_roster_begins_another_run(page, server):
    """Of a mesh the latest run is shown; the one before can be chosen."""
    server.send("run", run=0, heading=HEADING)
    server.send("steps", run=0, **{"from": 0}, steps=ALL, sent=time.time())
    server.send("run", run=1, heading={**HEADING, "name": "six pumps, roster 2"})
    server.send("steps", run=1, **{"from": 0}, steps=ALL[:2], sent=time.time())
    until(page, "conformesh.panels.length === 1 && conformesh.panels[0].run.heading.name.endsWith('roster 2')")
    page.locator("#which").select_option("0")
    until(page, "conformesh.panels[0].run.heading.name === 'six pumps' && conformesh.step === 6")


def test_coverage_grows_as_nodes_say_more(page, server):
    """What a mesh learns: in seconds, with windows of labels, and of devices some of which do not learn."""
    server.send("run", run=0, heading=HEADING)
    server.send("steps", run=0, **{"from": 0}, steps=ALL[:1], sent=time.time())
    until(page, "conformesh.runs[0]?.steps.length === 1")
    assert page.evaluate("conformesh.panels[0].online.lately.figure.hidden")
    for place, labels in enumerate((100, 400, 700), 1):
        devices = {"labels": {"values": [labels], "rows": [1]}, "misses": {"values": [labels // 10], "rows": [1]}}
        devices["lately"] = {"values": [0.9], "rows": [1]}
        everybody = {"alpha": 0.1, "labels": labels, "misses": labels // 10, "window": 200, "own": 200, "lately": 0.9}
        everybody["within"] = [0.9 - 20 / labels, 1]
        step = {"at": float(place), "devices": devices, "everybody": everybody}
        server.send("steps", run=0, **{"from": place}, steps=[step], sent=time.time())
        until(page, f"document.querySelector('.learnt')?.textContent.includes('{labels}')")
    until(page, "conformesh.panels[0].online.lately.plot?.data[0].length === 4")
    page.evaluate("conformesh.panels[0].actions.pick(0, 1)")
    until(page, "document.querySelectorAll('.learnt tbody tr').length === 2")
    words = " ".join(page.inner_text(".online").split())
    assert "all 0.900 0.900 700 0.871 to 1.000 pump-1 0.900 0.900 700 nothing" in words
    page.evaluate("conformesh.panels[0].actions.pick(0, 2)")
    until(page, "document.querySelectorAll('.learnt tbody tr').length === 1")  # it does not learn
    server.send("run", run=0, heading=HEADING)  # again from the beginning, as after a lost connection
    server.send("steps", run=0, **{"from": 0}, steps=ALL[:1], sent=time.time())
    until(page, "conformesh.panels[0].online.lately.figure.hidden")
    page.evaluate("conformesh.panels[0].actions.pick(0, 1)")
    page.set_viewport_size({"width": 1000, "height": 900})
    drawn(page)
    assert page.locator(".online").text_content() == ""
