"""``calibrate`` and ``compare`` with --view, --trace and --report: the same results, and something to look at."""

import json
import threading
import urllib.request

import numpy as np
import pytest

from conformesh.cli import recording
from conformesh.view import Recorder, Trace


@pytest.fixture
def scores(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "scores.csv"
    rows = [f"{k},{score}" for k in range(8) for score in rng.random(20)]
    path.write_text("\n".join(["device,score", *rows]))
    return path


def without_time(text):
    found = json.loads(text)
    found.pop("seconds")
    return found


def test_a_trace_and_a_report_are_written_beside_the_same_result(run, scores, tmp_path):
    trace, report = tmp_path / "run.json.gz", tmp_path / "run.html"
    plain = run("calibrate", str(scores), "--json")
    both = run("calibrate", str(scores), "--json", "--trace", str(trace), "--report", str(report))
    assert without_time(both.stdout) == without_time(plain.stdout)
    assert f"conformesh view {trace}" in both.stderr
    [found] = Trace.load(trace).runs
    assert found.steps[-1].devices["threshold"].values == json.loads(plain.stdout)["answers"][0]["thresholds"]
    assert found.result[0][0] == "threshold"
    page = report.read_text()
    assert page.startswith("<!doctype html>")
    assert 'id="trace"' in page


def test_the_same_run_gives_the_same_trace(run, scores, tmp_path):
    runs = []
    for name in ("a.json", "b.json"):
        run("calibrate", str(scores), "--method", "q-dcp", "--trace", str(tmp_path / name))
        [found] = Trace.load(tmp_path / name).runs
        runs.append((found.heading, found.steps))
    assert runs[0] == runs[1]


def test_several_levels_are_one_run(run, scores, tmp_path):
    run("calibrate", str(scores), "--alpha", "0.2,0.1", "--trace", str(tmp_path / "t.json"))
    [found] = Trace.load(tmp_path / "t.json").runs
    assert found.result[0] == ("shown", "the first of 2 results")


def test_a_page_is_there_while_it_runs(run, scores, monkeypatch):
    """Asked by a thread while the run waits at its end."""
    pages, done = [], threading.Event()
    finish = Recorder.finish

    def ask(url):
        pages.append(urllib.request.urlopen(url, timeout=20).read().decode())
        with urllib.request.urlopen(f"{url}trace.json", timeout=20) as answer:
            pages.append(json.load(answer))
        done.set()

    def slow(self, result):
        finish(self, result)
        asker = threading.Thread(target=ask, args=(said[0].removeprefix("see it at "),))
        asker.start()
        assert done.wait(30)
        asker.join()

    said = []
    monkeypatch.setattr(Recorder, "finish", slow)
    monkeypatch.setattr("conformesh.cli.console.print_status", said.append)
    result = run("calibrate", str(scores), "--view", ":0")
    assert result.exit_code == 0, result.stderr
    assert "<!doctype html>" in pages[0]
    assert pages[1]["runs"][0]["heading"]["name"] == "e-dcp on torus 4x2"


def test_a_comparison_stands_side_by_side(run, scores, tmp_path):
    words = ("--method", "e-dcp,fcp", "--network", "chain,cycle", "--no-picture", "--json")
    plain = run("compare", str(scores), *words)
    seen = run("compare", str(scores), *words, "--trace", str(tmp_path / "t.json"))
    assert json.loads(plain.stdout) == json.loads(seen.stdout)
    names = [found.heading.name for found in Trace.load(tmp_path / "t.json").runs]
    assert names[:2] == ["e-dcp top-k on chain 8", "e-dcp window on chain 8"]
    assert len(names) == 8


def test_a_method_that_cannot_run_says_why_in_the_trace(run, scores, tmp_path, monkeypatch):
    words = ("--method", "e-dcp", "--network", "chain", "--no-picture", "--trace", str(tmp_path / "t.json"))

    def broken(*_, **__):
        raise ArithmeticError("sums do not add up")

    monkeypatch.setattr("conformesh.engines.simulator.Simulator.run", broken)
    run("compare", str(scores), *words)
    runs = Trace.load(tmp_path / "t.json").runs
    assert {found.result[0] for found in runs} == {("failed", "sums do not add up")}


def test_too_many_runs_side_by_side_are_refused(run, scores, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "_MOST_RUNS", 2)
    result = run("compare", str(scores), "--method", "e-dcp", "--network", "chain", "--report", "r.html")
    assert result.exit_code == 2
    assert "at most 2 runs side by side, and this comparison has 3" in result.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--trace", "run.txt"), "--trace needs a name that ends in .json"),
        (("--report", "run.pdf"), "--report needs a name that ends in .html"),
        (("--report", "nowhere/run.html"), "there is no folder nowhere"),
        (("--view", "127.0.0.1:99999"), "HOST:PORT"),
    ],
)
def test_mistakes_are_said_before_anything_runs(run, scores, tmp_path, monkeypatch, words, why):
    monkeypatch.chdir(tmp_path)
    result = run("calibrate", str(scores), *words)
    assert result.exit_code == 2
    assert why in result.stderr
    assert "threshold" not in result.stdout
