"""`conformesh online`: streams from a file, a table, a picture and rows; the numbers are the library's."""

import json
import urllib.request

import numpy as np
import polars as pl
import pytest

from conformesh import Network
from conformesh.cli import console
from conformesh.common.random_streams import random_stream as drawn
from conformesh.online import LEARNERS, Alarm, online
from conformesh.online import simulation as simulating
from conformesh.view import OnlineRecorder, Trace

STEPS, DEVICES = 120, 6


@pytest.fixture
def table():
    return np.random.default_rng(0).random((DEVICES, STEPS))


@pytest.fixture
def stream(table, tmp_path):
    """In any order of rows, and under other names."""
    rows = [(t, f"d{k}", table[k, t]) for k in range(DEVICES) for t in range(STEPS)]
    order = np.random.default_rng(1).permutation(len(rows))
    path = tmp_path / "stream.csv"
    path.write_text("\n".join(["when,where,error", *(f"{t},{k},{float(s)!r}" for t, k, s in (rows[i] for i in order))]))
    return path


WORDS = ("--time-column", "when", "--device-column", "where", "--score-column", "error", "--network", "cycle")


def test_json_has_the_librarys_numbers(run, stream, table):
    result = run("online", stream, *WORDS, "--no-picture", "--json")
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    found = online(table, Network.cycle(DEVICES))
    assert (said["labels"], said["misses"]) == (found.account().labels, found.account().misses)
    assert said["words"] == str(found.account())
    assert [*said["device_misses"].values()] == found.rates.tolist()
    assert {*said["alone"]} == {*LEARNERS}
    alone = online(table, Network.cycle(DEVICES), learner="tracker", coupling="alone")
    assert said["alone"]["tracker"]["misses"] == alone.account().misses


def test_a_table_a_picture_and_rows(run, stream, table, tmp_path):
    words = ("--learner", "tracker", "--coupling", "counted", "--rows", "rows.parquet", "--out", "p.png")
    result = run("online", stream, *WORDS, *words)
    assert result.exit_code == 0, result.stderr
    assert "6 devices, 120 steps, 720 labels" in result.stdout
    assert "tracker, counted" in result.stdout
    assert "guaranteed within" in result.stdout
    assert (tmp_path / "p.png").stat().st_size > 10_000
    rows = pl.read_parquet(tmp_path / "rows.parquet")
    assert len(rows) == STEPS * DEVICES
    assert (rows["miss"] == (rows["score"] > rows["threshold"]).cast(pl.Int8)).all()


def test_a_shift_raises_the_alarm_and_a_quiet_stream_does_not(run, tmp_path):
    rng = np.random.default_rng(3)
    quiet, loud = rng.random(400), np.concatenate([rng.random(200), 1 + rng.random(200)])
    rows = [f"{t},{name},{float(s)!r}" for name, own in (("quiet", quiet), ("loud", loud)) for t, s in enumerate(own)]
    (tmp_path / "s.csv").write_text("\n".join(["time,device,score", *rows]))
    result = run("online", "s.csv", "--network", "chain", "--no-picture", "--no-beside", "--json")
    drift = json.loads(result.stdout)["drift"]
    assert [*drift] == ["loud"]
    assert 200 < drift["loud"] < 260


def test_the_alarm_of_another_stream_draws_other_numbers(run, tmp_path):
    """The chance of a false alarm is also over the draws: with one seed for all streams the first p-value is fixed."""
    rng, found = np.random.default_rng(5), []
    words = ("--network", "chain", "--no-picture", "--no-beside", "--json")
    for name in ("a.csv", "b.csv"):
        rows = [f"{t},{k},{float(s)!r}" for k in (0, 1) for t, s in enumerate(rng.random(50))]
        (tmp_path / name).write_text("\n".join(["time,device,score", *rows]))
        found.append(json.loads(run("online", name, *words).stdout)["alarm_seed"])
    assert found[0] != found[1]
    assert json.loads(run("online", "a.csv", *words).stdout)["alarm_seed"] == found[0]
    assert json.loads(run("online", "a.csv", *words, "--seed", "7").stdout)["alarm_seed"] == 7


def test_late_labels_and_lost_messages(run, stream):
    words = ("--delay", "3", "--fault", "loss=0.3", "--learner", "tracker", "--coupling", "mixed", "--no-beside")
    said = json.loads(run("online", stream, *WORDS, *words, "--no-picture", "--json").stdout)
    assert said["labels"] == DEVICES * (STEPS - 3)
    assert abs(said["rate"] - 0.1) <= said["bound"]


def test_an_interrupted_run_says_how_to_go_on_and_does(run, stream, monkeypatch):
    """Interrupted in the network's run, then in that of the first lone learner; the third time goes to the end."""
    words = (*WORDS, "--no-picture", "--json", "--checkpoint", "kept/c.npz")
    straight = run("online", stream, *WORDS, "--no-picture", "--json")
    monkeypatch.setattr(simulating, "_BLOCK_STEPS", 16)
    share = simulating.Rule.share
    for steps, note in (
        (50, "note: following streams: step 48 of 120 is saved in kept/c.npz; the same command goes on there"),
        (95, "note: tracker, alone: step 16 of 120 is saved in kept/c-tracker.npz; the same command goes on there"),
    ):
        left = iter([True] * steps)
        with monkeypatch.context() as patched:
            patched.setattr(simulating.Rule, "share", lambda *asked, left=left: _shared(share, left, *asked))
            stopped = run("online", stream, *words)
        assert stopped.exit_code == 130
        assert stopped.stderr.splitlines()[-2:] == [note, "error: interrupted"]
        assert not stopped.stdout
    went_on = run("online", stream, *words)
    assert went_on.exit_code == 0, went_on.stderr
    assert "note: tracker, alone: going on after step 16 of 120, from kept/c-tracker.npz; --no-resume" in went_on.stderr
    assert went_on.stdout == straight.stdout
    other = run("online", stream, *words, "--alpha", "0.2")
    assert other.exit_code == 2
    assert "kept/c.npz: is a checkpoint of a run with rule" in other.stderr
    assert run("online", stream, *words, "--alpha", "0.2", "--no-resume").exit_code == 0


def _shared(share, left, *asked):
    if not next(left, False):
        raise KeyboardInterrupt
    return share(*asked)


def test_an_interrupted_run_without_a_file_says_what_would_have_kept_it(run, stream, monkeypatch):
    monkeypatch.setattr(simulating.Rule, "share", lambda *asked: _shared(None, iter([])))
    stopped = run("online", stream, *WORDS)
    assert stopped.exit_code == 130
    assert "note: nothing was saved; with --checkpoint FILE the same command would go on from here" in stopped.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--learner", "trakcer"), "unknown learner 'trakcer', did you mean 'tracker'?"),
        (("--coupling", "mix"), "unknown coupling 'mix'"),
        (("--learner", "dtaci", "--coupling", "mixed"), "mixed"),
        (("--alpha", "1.5"), "alpha"),
        (("--out", "p.txt"), "the picture must end in"),
        (("--rows", "rows.txt"), "rows.txt: the name must end in .csv or .parquet or .npz"),
        (("--fault", "byzantine=1"), "Byzantine devices and attack go together"),
    ],
)
def test_mistakes_in_words(run, stream, words, why):
    result = run("online", stream, *WORDS, *words)
    assert result.exit_code == 2
    assert why in result.stderr
    assert result.stderr.count("\n") <= 2


def test_a_trace_and_a_report_beside_the_same_result(run, stream, table, tmp_path):
    words = ("--no-picture", "--no-beside", "--json", "--window", "40")
    plain = run("online", stream, *WORDS, *words)
    both = run("online", stream, *WORDS, *words, "--trace", "run.json.gz", "--report", "run.html")
    assert both.exit_code == 0, both.stderr
    assert both.stdout == plain.stdout
    [found] = Trace.load(tmp_path / "run.json.gz").runs
    said, last = json.loads(plain.stdout), found.steps[-1]
    assert (last.everybody.labels, last.everybody.misses) == (said["labels"], said["misses"])
    assert last.everybody.lately == pytest.approx(
        online(table, Network.cycle(DEVICES)).rolling_coverage(40)[-1], abs=5e-5
    )
    assert dict(found.result)["misses"] == said["words"]
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")


def test_a_page_is_there_while_streams_are_followed(run, stream, monkeypatch):
    """Asked after the last step, before the command ends."""
    pages = []
    finish = OnlineRecorder.finish

    def finishing(own, facts):
        [line] = [line for line in messages if "see it at" in line]
        address = line.rpartition(" ")[2]
        with urllib.request.urlopen(f"{address}trace.json", timeout=30) as answer:
            pages.append(json.load(answer))
        finish(own, facts)

    messages = []
    monkeypatch.setattr(console, "print_status", messages.append)
    monkeypatch.setattr(OnlineRecorder, "finish", finishing)
    result = run("online", stream, *WORDS, "--no-picture", "--no-beside", "--view", "127.0.0.1:0")
    assert result.exit_code == 0, result.stderr
    [page] = pages
    assert page["runs"][0]["steps"][-1]["everybody"]["labels"] == STEPS * DEVICES


def test_alarms_are_in_the_trace_where_they_were_raised(run, tmp_path):
    """In blocks of 1,024 steps, with labels that are missing; the same alarms as of all scores at once."""
    rng = np.random.default_rng(3)
    scores = np.abs(rng.normal(size=(2, 1180))) * np.where(np.arange(1180) < 1060, 1, 4)[None]
    seen = (rng.random(scores.shape) < 0.8) | [[True], [False]]  # so that no step is without any label
    rows = [f"{t},{k},{float(scores[k, t])!r}" for t in range(1180) for k in range(2) if seen[k, t]]
    (tmp_path / "s.csv").write_text("\n".join(["time,device,score", *rows]))
    words = ("--network", "chain", "--no-picture", "--no-beside", "--json", "--trace", "t.json")
    result = run("online", tmp_path / "s.csv", *words)
    assert result.exit_code == 0, result.stderr
    alarm, values = Alarm(level=0.05, alpha=0.1), np.where(seen, scores, np.nan).T
    key = json.loads(result.stdout)["alarm_seed"]
    state = alarm.follow(alarm.begin(2), values, drawn(key, "alarm").random(values.shape), seen.T)
    labels = state.raised_at.tolist()
    assert json.loads(result.stdout)["drift"] == {"0": labels[0], "1": labels[1]}
    [found] = Trace.load(tmp_path / "t.json").runs
    logged = {row: (step.at, words) for step in found.steps for row, _, words in step.log}
    assert logged == {
        row: (np.flatnonzero(seen[row])[label - 1] + 1, f"drift alarm at its label {label:,}")
        for row, label in enumerate(labels)
    }
