"""The view in a browser: how soon a picture shows what has happened, and what that costs the server and the run.

A thousand devices are made up in a process of their own, which records ten updates a second and serves them; Chromium
follows. From an event to the picture is from the moment at which the step is recorded to the end of the frame that
draws it, both by the clock of this machine; the page itself counts from when the server sent it. The share of a core is
that of the whole process, so what makes the updates up is in it.

Real nodes are processes of their own, certified before anything is measured; the view of their mesh is one more. A
killed node counts as shown when an event about it arrives.

A run that is watched is compared in processor time, of the server's threads as well: where they share one processor,
that is how much longer it takes, and with more of them it is less.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from harness import Row, Series

from conformesh import Network, calibrate
from conformesh.view import Recorder
from conformesh.view.recording import Recording
from conformesh.view.server import ViewServer
from conformesh.view.trace import Column, SentBits, Step, TraceHeading

RATE = 10  # updates a second
LATEST = 0.1  # seconds from event to picture
SHARE = 0.3  # of a core
SLOWER = 1.05  # times as long, with somebody watching
SOON = 2.0  # seconds until a killed node is shown
RUNS = (("q-dcp", 1000, 50), ("h-dcp", 1000, 50), ("e-dcp", 10_000, 50))  # method, devices, scores of each
PATIENCE = 300.0  # seconds for nodes to start
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
# In the page: the time from every step to the end of the frame that has drawn it.
FRAMES = """(began) => {
  window.events = [];
  let known = conformesh.runs[0].steps.length;
  const look = () => {
    const { steps } = conformesh.runs[0];
    const fresh = steps.slice(known);
    known = steps.length;
    if (fresh.length) setTimeout(() => fresh.forEach((step) => events.push(Date.now() - 1000 * (began + step.at))));
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""


# --- devices that are made up -----------------------------------------------------------------------------------------


def serve(devices: int, seconds: float) -> None:
    """Record and serve so many devices: print where and since when, and at the end the share of a core."""
    rng = np.random.default_rng(0)
    recording = Recording(TraceHeading.of("made up", Network.of("torus", devices), unit="seconds", live=True))
    began = time.time()
    recording.add(Step(at=0, devices={"phase": Column(["calibrating"] * devices)}))
    with ViewServer([recording], port=0) as server:
        print(json.dumps([server.url, began]), flush=True)
        sys.stdin.readline()  # the page is there
        start, used, number = time.monotonic(), time.process_time(), 0
        while time.monotonic() - start < seconds:
            number += 1
            time.sleep(max(start + number / RATE - time.monotonic(), 0))
            columns = {
                "threshold": Column(rng.random(devices).round(6).tolist()),
                "round": Column([number] * devices),
                "sent": Column(rng.integers(1000, 9000, devices).tolist()),
            }
            recording.add(Step(at=time.time() - began, devices=columns, said=SentBits([64])))
        share = (time.process_time() - used) / (time.monotonic() - start)
        print(json.dumps([share, number]), flush=True)
        sys.stdin.readline()


def _pictures(devices: int, seconds: float) -> list[Row]:
    why = _no_browser()
    if why:
        return [Row(f"{devices:,} made-up devices in a browser", note=f"not measured: {why}")]
    from playwright.sync_api import sync_playwright

    words = [sys.executable, __file__, json.dumps(["serve", devices, seconds])]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            url, began = json.loads(server.stdout.readline())
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=[*QUIET])
                page = browser.new_page(viewport={"width": 1400, "height": 900})
                page.goto(url)
                page.evaluate("conformesh.ready")
                page.evaluate(FRAMES, began)
                server.stdin.write("go\n")
                server.stdin.flush()
                share, updates = json.loads(server.stdout.readline())
                page.wait_for_timeout(1000)
                events, sent = page.evaluate("[events, conformesh.latencies]")
                browser.close()
            server.stdin.write("enough\n")
        finally:
            server.kill()
    what = f"{devices:,} made-up devices, {RATE} updates a second"
    return [
        Row(
            f"{what}: from event to picture, median",
            ours=statistics.median(events) / 1000,
            target=f"under {1000 * LATEST:g} ms",
            met=statistics.median(events) / 1000 < LATEST,
            note=f"{len(events)} of {updates} drawn; from event {_spread(events)}; from sending {_spread(sent)}",
        ),
        Row(
            f"{what}: 95 of 100 pictures",
            ours=_part(events, 95),
            target=f"under {1000 * LATEST:g} ms",
            met=_part(events, 95) < LATEST,
        ),
        _share_row(f"{what}: the server", share),
    ]


def _no_browser() -> str:
    """Return why there is no browser to measure with."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return "" if shutil.which("chromium") else "there is no chromium"


def _part(milliseconds: Sequence[float], share: float) -> float:
    return float(np.percentile(milliseconds, share)) / 1000


def _spread(milliseconds: Sequence[float]) -> str:
    found = [_part(milliseconds, share) * 1000 for share in (50, 95, 100)]
    return "p50 {:.0f}, p95 {:.0f}, largest {:.0f} ms".format(*found)


def _share_row(what: str, share: float, target: float = SHARE) -> Row:
    words = f"{100 * share:.1f} % of a core"
    return Row(what, target=f"under {100 * target:.0f} % of a core", met=share < target, note=words)


# --- real nodes -------------------------------------------------------------------------------------------------------


@contextmanager
def _mesh(devices: int) -> Iterator[tuple[Path, list[subprocess.Popen[bytes]]]]:
    """Start so many nodes on this machine; they are ended by their numbers."""
    from tests.mesh.nodes import short_folder
    from tests.mesh.real import make_mesh

    from conformesh.mesh.node.main import Start

    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with short_folder() as root:
        folders, _ = make_mesh(root / "m", Network.of("torus", devices), insecure=True, patience=PATIENCE)
        processes = [subprocess.Popen(Start(str(folder)).command(), **quiet) for folder in folders]
        try:
            yield root / "m", processes
        finally:
            for one in processes:
                one.kill()
            for one in processes:
                one.wait()


class _Follower:
    """Follows a view's events in a thread, and keeps when each device's health was told last."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self.connection = HTTPConnection(where.hostname or "", where.port, timeout=60)
        self.connection.request("GET", "/events")
        self.answer = self.connection.getresponse()
        self.health: dict[int, tuple[str, float]] = {}
        self.changed = threading.Condition()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        for line in iter(self.answer.readline, b""):
            if not line.startswith(b"data: ") or b'"steps"' not in line:
                continue
            for step in json.loads(line[6:])["steps"]:
                column = step.get("devices", {}).get("health", {"values": []})
                rows = column.get("rows", range(len(column["values"])))
                with self.changed:
                    self.health |= {
                        row: (value, time.monotonic()) for row, value in zip(rows, column["values"], strict=True)
                    }
                    self.changed.notify_all()

    def wait(self, healthy: int) -> None:
        """Wait until so many are healthy."""
        with self.changed:
            if not self.changed.wait_for(
                lambda: [word for word, _ in self.health.values()].count("healthy") == healthy, PATIENCE
            ):
                raise RuntimeError(f"of {len(self.health)} nodes not {healthy} were healthy in {PATIENCE:g} s")

    def until_silent(self, row: int) -> float:
        with self.changed:
            if not self.changed.wait_for(lambda: self.health[row][0] == "silent", PATIENCE):
                raise RuntimeError("a killed node was never shown")
            return self.health[row][1]


def _nodes(devices: int, seconds: float, killed: int) -> list[Row]:
    what = f"{devices} real nodes, watched"
    with ExitStack() as stack:
        root, processes = stack.enter_context(_mesh(devices))
        words = [sys.executable, "-m", "conformesh", "view", str(root), "--port", "0"]
        view = stack.enter_context(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
        stack.callback(view.kill)
        assert view.stderr is not None
        follower = _Follower(view.stderr.readline().split()[-1])
        follower.wait(devices)
        time.sleep(2)  # what the last run leaves behind
        before, start = _processor_seconds(view.pid), time.monotonic()
        time.sleep(seconds)
        share = (_processor_seconds(view.pid) - before) / (time.monotonic() - start)
        took = []
        for row in range(killed):
            begun = time.monotonic()
            os.kill(processes[row].pid, signal.SIGKILL)
            took.append(follower.until_silent(row) - begun)
    note = f"{killed} killed, one after the other; the last to be shown after {max(took):.2f} s"
    return [
        _share_row(f"{what}: the view", share, 0.1 if devices <= 20 else SHARE),
        Row(
            f"{what}: a killed one is shown",
            statistics.median(took),
            target=f"within {SOON:g} s",
            met=max(took) < SOON,
            note=note,
        ),
    ]


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far; nothing where the system does not tell."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- runs that are watched --------------------------------------------------------------------------------------------


def _watched(method: str, devices: int, scores: int, repeats: int) -> list[Row]:
    """The same calibration alone, recorded, and followed by a page in another process, in turn."""
    rng, network = np.random.default_rng(1), Network.of("torus", devices)
    held = [rng.random(scores) for _ in range(devices)]
    times: dict[str, list[float]] = {"alone": [], "recorded": [], "with a page": []}

    def run(how: str, recorder: Recorder | None = None) -> None:
        start = time.process_time()
        result = calibrate(held, network, alpha=0.1, method=method, observer=recorder)
        times[how].append(time.process_time() - start)
        if recorder is not None:
            recorder.finish(result)

    seen = Recorder()
    words = [sys.executable, __file__]
    run("alone")
    times["alone"].clear()  # that was to warm up
    with ViewServer(seen.recordings, port=0) as server:
        follow = [*words, json.dumps(["follow", server.url])]
        with subprocess.Popen(follow, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as page:
            assert page.stdout is not None
            page.stdout.readline()
            for _ in range(repeats):
                run("alone")
                run("recorded", Recorder())
                run("with a page", seen)
                time.sleep(1.0)  # what is left to tell does not count for the next
            page.kill()
    found = []
    for how in ("recorded", "with a page"):
        ratios = [b / a for a, b in zip(times["alone"], times[how], strict=True)]
        low, slower, high = np.percentile(ratios, (25, 50, 75)).tolist()
        # A limit that lies between the quartiles is neither kept nor missed: the machine was too busy to tell.
        met = True if high <= SLOWER else False if low > SLOWER else None
        note = f"{slower:.3f} times the processor time, quartiles of {repeats} repeats {low:.3f} and {high:.3f}"
        ours, alone = statistics.median(times[how]), statistics.median(times["alone"])
        what = f"{method}, torus of {devices:,}, {scores} scores each: {how}"
        target, words = f"at most {SLOWER:g} times as long", "" if met is not None else "; too noisy to tell"
        found.append(Row(what, ours, alone, "alone", 1 / slower, target, met, note + words))
    return found


def follow(url: str) -> None:
    """Follow a view until this process is ended."""
    _Follower(url)
    print("here", flush=True)
    sys.stdin.readline()


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """How soon a page shows what happens, what its server takes, and what a run that is watched takes."""
    rows = _pictures(*(50, 2.0) if quick else (1000, 20.0))
    for method, devices, scores in (("e-dcp", 20, 10),) if quick else RUNS:
        rows += _watched(method, devices, scores, 1 if quick else 11)
    for devices in (4,) if quick else (20, 100):
        try:
            rows += _nodes(devices, 1.0 if quick else 10.0, 1 if quick else 5)
        except (RuntimeError, OSError) as problem:
            rows.append(Row(f"{devices} real nodes, watched", note=f"not measured: {problem}"))
    return rows, []


if __name__ == "__main__":
    what, *given = json.loads(sys.argv[1])
    {"serve": serve, "follow": follow}[what](*given)
