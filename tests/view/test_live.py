"""The page in a real browser while something goes on: a calibration, a mesh whose node is killed, a trace."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("uvicorn", reason="a view needs Starlette and uvicorn: pip install 'conformesh[view]'")
from conformesh import Network, calibrate
from conformesh.engines.observers import ObserverGroup, RunObserver
from conformesh.view import Recorder
from conformesh.view.mesh_watch import MeshWatch
from conformesh.view.recording import recording_of_run
from conformesh.view.server import new_token
from tests.mesh.nodes import short_folder
from tests.mesh.real import drawn_scores, make_mesh
from tests.view.served import recording, serving, step
from tests.view.test_mesh_watch import TWENTY, real  # noqa: F401 - a fixture

pytestmark = pytest.mark.xdist_group("browser")
# When a row of the table first says that a device is silent, in milliseconds since 1970.
WATCH = """() => {
  const silent = () => document.querySelector("table.devices tbody").innerText.includes("silent");
  window.seen = new Promise((done) => {
    const look = () => (silent() ? done(Date.now()) : requestAnimationFrame(look));
    look();
  });
}"""
MOMENT = 30_000  # milliseconds to wait for what should come at once


@contextmanager
def opened(browser, url, tab="table"):
    """A page at this address; whatever it complains about fails the test."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(MOMENT)
    complaints = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda problem: complaints.append(str(problem)))
    try:
        page.goto(url)
        page.evaluate("conformesh.ready")
        page.click(f"#tab-{tab}")
        yield page
        assert page.evaluate("conformesh.errors") == []
        assert complaints == []
    finally:
        context.close()


def rows(page):
    """The table of devices, as it is shown."""
    return page.locator("table.devices tbody tr")


def wait_for_rows(page, words, count):
    """Wait until so many rows of the table have these words."""
    page.wait_for_function(
        "([words, count]) => [...document.querySelectorAll('table.devices tbody tr')]"
        ".filter((row) => row.innerText.includes(words)).length === count",
        arg=[words, count],
    )


def test_the_page_follows_a_calibration_to_its_end(browser, twenty_devices):
    recorder, looked = Recorder(), threading.Event()
    found = []

    class Waits(RunObserver):
        keeps_messages = False

        def __call__(self, *round_):
            looked.wait(60)  # the first round goes on when the page is there

    observer = ObserverGroup(recorder, Waits())

    def work():
        found.append(calibrate(twenty_devices, Network.torus(5, 4), alpha=0.1, observer=observer))
        recorder.finish(found[0])

    thread = threading.Thread(target=work)
    thread.start()
    with serving(recorder.recordings) as server, opened(browser, server.url) as page:
        wait_for_rows(page, "calibrating", 20)
        looked.set()
        wait_for_rows(page, "certified", 20)
        thread.join()
        assert rows(page).count() == 20
        threshold = str(found[0].threshold)[:6]
        assert all(threshold in text for text in rows(page).all_inner_texts())
        page.wait_for_function("() => conformesh.runs[0].result !== null")
        assert page.evaluate("conformesh.latencies.length") > 0


def test_two_pages_show_the_same_and_one_that_comes_later_too(browser):
    running = recording(devices=5, steps=3)
    with serving([running]) as server, opened(browser, server.url) as one, opened(browser, server.url) as other:
        running.add(step(3, 5))
        for page in (one, other):
            wait_for_rows(page, "3.5", 5)
        with opened(browser, server.url) as late:
            wait_for_rows(late, "3.5", 5)
            assert rows(late).all_inner_texts() == rows(one).all_inner_texts() == rows(other).all_inner_texts()


def test_a_browser_with_the_token_gets_in_and_has_no_token_in_its_address(browser):
    token = new_token()
    with serving([recording(steps=2)], token=token) as server, opened(browser, server.url) as page:
        wait_for_rows(page, "1.5", 3)
        assert token not in page.url
        assert page.evaluate("document.cookie") == ""  # scripts cannot read it


def test_a_page_of_another_origin_gets_nothing(browser):
    """A page on another port, which a browser counts as the same site."""
    with serving([recording(steps=2)]) as other, serving([recording(steps=2)]) as server:
        page = browser.new_page()
        page.goto(f"{other.url}health")
        tried = "url => fetch(url).then((answer) => answer.status, (problem) => String(problem))"
        assert "TypeError" in page.evaluate(tried, f"{server.url}trace.json")
        page.close()


def test_a_server_that_is_gone_is_said(browser):
    with serving([recording(steps=2)]) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url)
        page.evaluate("conformesh.ready")
        server.stop()
        page.wait_for_selector("#banner:not([hidden])", timeout=MOMENT)
        context.close()


def test_a_trace_is_replayed(browser, twenty_devices):
    recorder = Recorder()
    result = calibrate(twenty_devices, Network.torus(5, 4), alpha=0.1, observer=recorder)
    recorder.finish(result)
    runs = [recording_of_run(run) for run in recorder.trace().runs]
    with serving(runs) as server, opened(browser, server.url) as page:
        wait_for_rows(page, "certified", 20)
        page.locator("input[type=range]").first.focus()
        page.keyboard.press("Home")
        wait_for_rows(page, "calibrating", 20)
        page.keyboard.press("End")
        wait_for_rows(page, "certified", 20)


@pytest.mark.parametrize("real", [3, pytest.param(20, marks=TWENTY)], indirect=True)
def test_a_killed_node_is_seen_within_two_seconds(browser, real):  # noqa: F811
    root, _, processes = real
    with ExitStack() as stack:
        watch = stack.enter_context(MeshWatch(root))
        server = stack.enter_context(serving(watch.recordings, details=watch.details))
        page = stack.enter_context(opened(browser, server.url))
        wait_for_rows(page, "certified", len(processes))
        page.evaluate(WATCH)
        begun = time.time()
        os.kill(processes[1].pid, signal.SIGKILL)
        took = page.evaluate("window.seen") / 1000 - begun
        print(f"a killed node of {len(processes)} was seen after {took:.3f} s")
        assert took < 2
        wait_for_rows(page, "silent", 1)


@pytest.mark.slow
@pytest.mark.meshes
def test_the_page_follows_mesh_up_with_twenty_processes(browser):
    pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
    with short_folder() as root:
        _, thresholds = make_mesh(root / "m", Network.torus(5, 4), scores=drawn_scores(20), insecure=True)
        words = [sys.executable, "-m", "conformesh", "mesh", "up", str(root / "m"), "--view", ":0", "--json"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            try:
                url = re.search(r"see it at (\S+)", process.stderr.readline())[1]
                context = browser.new_context()
                page = context.new_page()
                page.set_default_timeout(120_000)
                page.goto(url)
                page.evaluate("conformesh.ready")
                page.wait_for_function("() => conformesh.runs[0].result !== null")
                assert page.evaluate("conformesh.runs[0].latest.fields.get('threshold')") == thresholds
                context.close()
                assert process.wait(timeout=120) == 0
            finally:
                process.kill()
